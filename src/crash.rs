//! Named points at which a process kills or stops itself, for the crash tests.
//!
//! Without the feature `crash-points` every point is an empty function: a shipped program cannot be told to die.
//!
//! With it, `TOLLGATE_CRASH_AT=name` makes the process SIGKILL itself the first time it passes the point `name`;
//! `name:stop` makes it SIGSTOP itself, so that a test can let time pass and continue it; `name@2` waits for the second
//! time.

/// Every point, in the order in which a step passes them.
pub const POINTS: [&str; 10] = [
    "published",
    "claimed",
    "reserved",
    "charged",
    "marked",
    "before-send",
    "request-left",
    "answer-heard",
    "before-settle",
    "settled",
];

/// Passes the point `name`.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub fn point(_name: &'static str) {}

/// Passes the point `name`: dies or stops here if the environment says so.
#[cfg(feature = "crash-points")]
pub fn point(name: &'static str) {
    use std::sync::atomic::{AtomicU32, Ordering};
    static PASSED: AtomicU32 = AtomicU32::new(0);

    debug_assert!(POINTS.contains(&name), "`{name}` is not a crash point");
    let Ok(wanted) = std::env::var("TOLLGATE_CRASH_AT") else { return };
    let (wanted, stop) = match wanted.strip_suffix(":stop") {
        Some(rest) => (rest.to_owned(), true),
        None => (wanted, false),
    };
    let (wanted, times) = match wanted.split_once('@') {
        Some((point, times)) => (point.to_owned(), times.parse().unwrap_or(1)),
        None => (wanted, 1),
    };
    if wanted != name || PASSED.fetch_add(1, Ordering::SeqCst) + 1 != times {
        return;
    }
    let signal = if stop { rustix::process::Signal::STOP } else { rustix::process::Signal::KILL };
    let delivered = rustix::process::kill_process(rustix::process::getpid(), signal);
    debug_assert!(delivered.is_ok(), "a process may signal itself");
    // The signal reaches the process and not this thread, which would otherwise get on a little further.
    std::thread::sleep(std::time::Duration::from_millis(200));
}
