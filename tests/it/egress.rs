//! What leaves, and what is refused before it does.
