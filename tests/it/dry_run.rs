//! Dry run: the same operation with nothing written (D1 to D5).
