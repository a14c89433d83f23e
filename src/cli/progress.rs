//! A line a step as it goes, on stderr: for whoever watches, and for nobody where there is no terminal.
//!
//! Each begins with how many of the run's steps have ended. The line of the step that is under way says for how long it
//! has been, second by second, so that a slow action and a dead one can be told apart.

use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tollgate::clock::Timestamp;
use tollgate::journal::StepEnd;
use tollgate::perform::{How, Settled};
use tollgate::run::Watch;
use tollgate::sandbox::Observer;

use super::text::{clean, eprint, excerpt};

/// Shows a run as it goes.
#[derive(Debug)]
pub struct Lines {
    /// Whether lines are shown at all.
    shown: bool,
    /// Whether a line can be written over.
    live: bool,
    /// Whether the guest's log lines are shown too.
    verbose: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The step that is under way.
    open: Option<Open>,
    /// The last line, so that what is polled is said once.
    last: String,
    /// Steps of the run that have ended well.
    done: usize,
    /// Steps of the run in all.
    total: usize,
}

/// The line of a step that is under way, which is written over.
#[derive(Debug)]
struct Open {
    text: String,
    since: Instant,
}

impl Open {
    fn shown(&self) -> String {
        match self.since.elapsed() {
            // Most steps are done by then, and a line that changes is hard to read.
            elapsed if elapsed < Duration::from_secs(1) => self.text.clone(),
            elapsed => format!("{}  {}", self.text, for_reading(elapsed)),
        }
    }
}

impl Lines {
    /// On stderr: where that is a terminal, or with `verbose`.
    pub fn new(verbose: bool) -> Lines {
        let live = std::io::stderr().is_terminal();
        Lines { shown: live || verbose, live, verbose, state: Mutex::default() }
    }

    /// Begins to count the steps of a run: how many have ended well, and how many it has.
    pub fn count(&self, done: usize, total: usize) {
        let mut state = self.state();
        (state.done, state.total) = (done, total);
    }

    /// Says once more for how long the step that is under way has been. To be called about every second.
    pub fn tick(&self) {
        let state = self.state();
        if let Some(open) = state.open.as_ref().filter(|_| self.live) {
            eprint(&format!("\r\u{1b}[K{}", open.shown()));
        }
    }

    /// Takes away the line of a step that is under way, so that whoever prints next begins a line.
    pub fn close(&self) {
        self.opens(None);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A whole line, above the one that is open.
    fn line(&self, text: &str) {
        if !self.shown {
            return;
        }
        let mut state = self.state();
        if state.last == text {
            return;
        }
        text.clone_into(&mut state.last);
        let again = state.open.as_ref().map(Open::shown).unwrap_or_default();
        match self.live {
            true => eprint(&format!("\r\u{1b}[K{}\n{again}", clean(text))),
            false => eprint(&format!("{}\n", clean(text))),
        }
    }

    /// The line of what is under way now, if anything is.
    fn opens(&self, open: Option<Open>) {
        let mut state = self.state();
        if self.live && (open.is_some() || state.open.is_some()) {
            eprint(&format!("\r\u{1b}[K{}", open.as_ref().map(Open::shown).unwrap_or_default()));
        }
        state.last.clear();
        state.open = open.filter(|_| self.live);
    }
}

/// How many of the steps have ended, once that is known.
fn counter(state: &State) -> String {
    match state.total {
        0 => String::new(),
        total => format!("{}/{total}  ", state.done),
    }
}

/// A duration for whoever watches it grow.
fn for_reading(elapsed: Duration) -> String {
    match elapsed.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

impl Observer for Lines {
    fn progress(&self, step: &str, done: u64, total: Option<u64>, message: &str) {
        // Only where it can be written over: a guest may report often.
        if self.live {
            let of = total.map_or_else(String::new, |total| format!(" of {total}"));
            let text = excerpt(&format!("{step}  {done}{of}  {message}"));
            let (counter, since) = {
                let state = self.state();
                // The step has told how far it is: its time goes on.
                (counter(&state), state.open.as_ref().map_or_else(Instant::now, |open| open.since))
            };
            self.opens(Some(Open { text: format!("  {counter}{}", clean(&text)), since }));
        }
    }

    fn log(&self, step: &str, level: &str, message: &str) {
        if self.verbose {
            self.line(&format!("  {step}  {level}: {message}"));
        }
    }
}

impl Watch for Lines {
    fn step_begins(&self, step: &str, action: &str, attempt: u32) {
        let attempt = if attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
        let counter = counter(&self.state());
        self.opens(Some(Open { text: format!("  {counter}{step}  {action}{attempt} …"), since: Instant::now() }));
    }

    fn step_settled(&self, step: &str, settled: &Settled) {
        self.opens(None);
        let counter = {
            let mut state = self.state();
            if matches!(settled.end(), StepEnd::Completed { .. }) {
                state.done = (state.done + 1).min(state.total);
            }
            counter(&state)
        };
        self.line(&format!("  {counter}{step}  {}", end(settled)));
    }

    fn waits(&self, until: Timestamp) {
        // Mostly the step that was settled last has just said so.
        let until = format!("waits until {until}");
        let is_said = |state: &State| state.last.contains(&until);
        let said = is_said(&self.state());
        if !said {
            self.line(&format!("  {until}"));
        }
    }

    fn held_by(&self, holder: &str, expires_at: Timestamp) {
        self.line(&format!("  held by {holder} until {expires_at}, unless renewed"));
    }
}

/// How an attempt ended, on one line.
fn end(settled: &Settled) -> String {
    let took = format!("({} ms)", settled.record.wall_ms);
    match settled.end() {
        StepEnd::Completed { .. } => match settled.how {
            How::Performed => format!("completed {took}"),
            How::Restored => "restored from the journal".to_owned(),
            How::Reconciled => format!("reconciled: it had succeeded {took}"),
        },
        StepEnd::Failed { failure } => format!("failed: {}: {}", failure.code, excerpt(&failure.message)),
        StepEnd::Blocked { failure } => format!("needs attention: {}: {}", failure.code, excerpt(&failure.message)),
        StepEnd::Waiting { dependency, failure, .. } => {
            let why = failure
                .as_ref()
                .map_or_else(String::new, |failure| format!(" after {}: {}", failure.code, excerpt(&failure.message)));
            match dependency.due {
                Some(due) => format!("waits until {due}{why}"),
                None => format!("waits for {} {}{why}", dependency.kind.as_str(), dependency.key),
            }
        }
    }
}
