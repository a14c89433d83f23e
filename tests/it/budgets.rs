//! Budgets: exact, owned by the root, metered (B1 to B6).
