//! A held lease, as its holder sees it.
//!
//! The holder counts from *before* it asked the store, on a clock that counts suspension: so it stops believing in its
//! lease no later than the store stops granting it. It never touches the store: whoever renews tells it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Until when this process may act for its run.
#[derive(Debug)]
pub struct Lease {
    valid_until_ms: AtomicU64,
    lost: AtomicBool,
}

impl Lease {
    /// A lease of `length`, asked for at `asked_at` (see [`crate::clock::Clock::elapsed`]).
    pub fn taken(asked_at: Duration, length: Duration) -> Lease {
        Lease { valid_until_ms: AtomicU64::new(millis(asked_at.saturating_add(length))), lost: AtomicBool::new(false) }
    }

    /// A lease that never ends, for whoever performs outside a store's runs: dry runs, tests, an embedder's own.
    pub fn unlimited() -> Lease {
        Lease { valid_until_ms: AtomicU64::new(u64::MAX), lost: AtomicBool::new(false) }
    }

    /// The store renewed it: `length` from when the renewal was asked for.
    pub fn renewed(&self, asked_at: Duration, length: Duration) {
        self.valid_until_ms.fetch_max(millis(asked_at.saturating_add(length)), Ordering::SeqCst);
    }

    /// The store refused to renew it: another worker has the run, or it ended.
    pub fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
    }

    /// Whether the holder may still act at `now`.
    pub fn is_live(&self, now: Duration) -> bool {
        !self.lost.load(Ordering::SeqCst) && millis(now) < self.valid_until_ms.load(Ordering::SeqCst)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r7_a_lease_ends_by_time_or_by_loss_and_is_renewed_from_before_the_request() {
        let second = Duration::from_secs(1);
        let lease = Lease::taken(10 * second, 15 * second);
        assert!(lease.is_live(24 * second));
        assert!(!lease.is_live(25 * second));
        lease.renewed(20 * second, 15 * second);
        assert!(lease.is_live(34 * second));
        assert!(!lease.is_live(35 * second));
        // A renewal that was asked for earlier and answered later does not shorten it.
        lease.renewed(15 * second, 15 * second);
        assert!(lease.is_live(34 * second));
        lease.lose();
        assert!(!lease.is_live(11 * second));
    }
}
