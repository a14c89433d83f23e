//! Time and ids, passed in, so that tests decide them.
//!
//! Two clocks, because they answer different questions. [`Clock::now`] is what gets written down: UTC, comparable between
//! processes, and wrong whenever somebody sets it. [`Clock::elapsed`] is what a holder measures its own lease and deadline
//! with: it never jumps, and it counts the time that the machine was suspended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment in UTC, in milliseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// This moment plus `duration`; the end of time where that is past the representable range.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this moment is; zero where it is not after it.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Reads `2026-11-30T08:00:00Z` (RFC 3339, any offset).
    ///
    /// # Errors
    /// Where `text` is not such a time; the message says what was expected.
    pub fn parse(text: &str) -> Result<Timestamp, String> {
        text.parse::<jiff::Timestamp>()
            .map(|moment| Timestamp(moment.as_millisecond()))
            .map_err(|_| format!("`{text}` is not a time; write it like 2026-11-30T08:00:00Z"))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(moment) => write!(formatter, "{moment:.3}"),
            // Beyond the year 9999: only a saturated sum gets there.
            Err(_) => write!(formatter, "{} ms", self.0),
        }
    }
}

/// Where time comes from.
pub trait Clock: Send + Sync {
    /// The time of day, UTC.
    fn now(&self) -> Timestamp;

    /// Time since some fixed moment of this machine; never jumps, counts suspension.
    fn elapsed(&self) -> Duration;
}

/// Where run ids, dispatch ids and claim tokens come from.
pub trait Ids: Send + Sync {
    /// A new id of lower case letters and digits, whose first characters are random, so that a short prefix names it.
    fn next_id(&self) -> String;
}

/// Time and ids together, as most of the library takes them.
#[derive(Clone)]
pub struct Ambient {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Ids.
    pub ids: Arc<dyn Ids>,
}

impl Ambient {
    /// The machine's clocks and random ids.
    pub fn system() -> Ambient {
        Ambient { clock: Arc::new(SystemClock), ids: Arc::new(RandomIds) }
    }
}

impl fmt::Debug for Ambient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Ambient")
    }
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp(jiff::Timestamp::now().as_millisecond())
    }

    fn elapsed(&self) -> Duration {
        // CLOCK_BOOTTIME and not CLOCK_MONOTONIC: a laptop that slept past a lease must not think that it still holds it.
        let moment = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(u64::try_from(moment.tv_sec).unwrap_or(0), u32::try_from(moment.tv_nsec).unwrap_or(0))
    }
}

/// Random ids: 32 hexadecimal digits of a version 4 UUID.
#[derive(Debug, Clone, Copy)]
pub struct RandomIds;

impl Ids for RandomIds {
    fn next_id(&self) -> String {
        uuid::Uuid::new_v4().simple().to_string()
    }
}
