//! The example guests, each as its app team would use it.
