//! The sandbox: class × phase, limits, traps.
