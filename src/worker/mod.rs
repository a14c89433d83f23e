//! Holding a run: the lease that a claimant renews while it works.
//!
//! The store decides who holds a run; this module only knows how its holder measures that.

pub mod lease;
