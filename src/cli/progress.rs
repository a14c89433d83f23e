//! A line a step as it goes, on stderr: for whoever watches, and for nobody where there is no terminal.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};

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
    /// The step that is under way, as its line begins.
    open: Option<String>,
    /// The last line, so that what is polled is said once.
    last: String,
}

impl Lines {
    /// On stderr: where that is a terminal, or with `verbose`.
    pub fn new(verbose: bool) -> Lines {
        let live = std::io::stderr().is_terminal();
        Lines { shown: live || verbose, live, verbose, state: Mutex::default() }
    }

    /// Takes away the line of a step that is under way, so that whoever prints next begins a line.
    pub fn close(&self) {
        self.opens(None);
    }

    /// A whole line, above the one that is open.
    fn line(&self, text: &str) {
        if !self.shown {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.last == text {
            return;
        }
        text.clone_into(&mut state.last);
        let again = state.open.as_deref().unwrap_or_default();
        match self.live {
            true => eprint(&format!("\r\u{1b}[K{}\n{again}", clean(text))),
            false => eprint(&format!("{}\n", clean(text))),
        }
    }

    fn opens(&self, text: Option<String>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.live && (text.is_some() || state.open.is_some()) {
            eprint(&format!("\r\u{1b}[K{}", text.as_deref().unwrap_or_default()));
        }
        state.last.clear();
        state.open = text.filter(|_| self.live);
    }
}

impl Observer for Lines {
    fn progress(&self, step: &str, done: u64, total: Option<u64>, message: &str) {
        // Only where it can be written over: a guest may report often.
        if self.live {
            let of = total.map_or_else(String::new, |total| format!(" of {total}"));
            let text = excerpt(&format!("{step}  {done}{of}  {message}"));
            self.opens(Some(format!("  {}", clean(&text))));
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
        self.opens(Some(format!("  {step}  {action}{attempt} …")));
    }

    fn step_settled(&self, step: &str, settled: &Settled) {
        self.opens(None);
        self.line(&format!("  {step}  {}", end(settled)));
    }

    fn waits(&self, until: Timestamp) {
        // Mostly the step that was settled last has just said so.
        let until = format!("waits until {until}");
        let is_said = |state: &State| state.last.contains(&until);
        if !is_said(&self.state.lock().unwrap_or_else(PoisonError::into_inner)) {
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
