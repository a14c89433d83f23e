//! The states of a run and of its steps, and the only transitions between them.
//!
//! Tables and nothing else: no I/O, no clock, no store. The store asks them before it writes, live and in recovery
//! alike.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// It can be performed now.
    Active,
    /// It waits for a dependency.
    Waiting,
    /// It waits for a person.
    Blocked,
    /// It ended well.
    Completed,
    /// It ended badly; it can be resumed explicitly.
    Failed,
    /// Somebody gave it up. Never revived.
    Abandoned,
}

impl RunState {
    /// Every state, in the order in which the design names them.
    pub const ALL: [RunState; 6] = [
        RunState::Active,
        RunState::Waiting,
        RunState::Blocked,
        RunState::Completed,
        RunState::Failed,
        RunState::Abandoned,
    ];

    /// The state as it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            RunState::Active => "active",
            RunState::Waiting => "waiting",
            RunState::Blocked => "blocked",
            RunState::Completed => "completed",
            RunState::Failed => "failed",
            RunState::Abandoned => "abandoned",
        }
    }

    /// Whether nothing happens to the run any more, unless somebody explicitly resumes a failed one.
    pub fn is_terminal(self) -> bool {
        matches!(self, RunState::Completed | RunState::Failed | RunState::Abandoned)
    }

    /// Whether the run is under way: active or waiting. At most one such run of a workflow occupies a scope (S1).
    pub fn is_under_way(self) -> bool {
        matches!(self, RunState::Active | RunState::Waiting)
    }

    /// Whether a run in this state may go to `to` (R14, S5, S6).
    ///
    /// ```
    /// use tollgate::run::state::RunState;
    ///
    /// assert!(RunState::Failed.may_become(RunState::Active));
    /// assert!(!RunState::Abandoned.may_become(RunState::Active));
    /// ```
    pub fn may_become(self, to: RunState) -> bool {
        use RunState::{Abandoned, Active, Blocked, Completed, Failed, Waiting};
        match self {
            Active => matches!(to, Waiting | Blocked | Completed | Failed | Abandoned),
            // A person may settle the effect of a step that waits to ask again; that fails the run or lets it go on.
            Waiting | Blocked => matches!(to, Active | Failed | Abandoned),
            // Only by an explicit, recorded resume.
            Failed => to == Active,
            Completed | Abandoned => false,
        }
    }
}

/// Where a step of a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepState {
    /// Nothing has begun.
    Pending,
    /// An attempt of it is reserved.
    Running,
    /// It waits for a dependency.
    Waiting,
    /// A person must settle it.
    Blocked,
    /// It is done; its output is stored.
    Completed,
    /// It failed.
    Failed,
    /// Its condition skipped it; its output is null.
    Skipped,
}

impl StepState {
    /// Every state, in the order in which the design names them.
    pub const ALL: [StepState; 7] = [
        StepState::Pending,
        StepState::Running,
        StepState::Waiting,
        StepState::Blocked,
        StepState::Completed,
        StepState::Failed,
        StepState::Skipped,
    ];

    /// The state as it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            StepState::Pending => "pending",
            StepState::Running => "running",
            StepState::Waiting => "waiting",
            StepState::Blocked => "blocked",
            StepState::Completed => "completed",
            StepState::Failed => "failed",
            StepState::Skipped => "skipped",
        }
    }

    /// Whether the step is behind the run: completed or skipped. A failed one can be tried again.
    pub fn is_terminal(self) -> bool {
        matches!(self, StepState::Completed | StepState::Skipped)
    }

    /// Whether a step in this state may go to `to`.
    pub fn may_become(self, to: StepState) -> bool {
        use StepState::{Blocked, Completed, Failed, Pending, Running, Skipped, Waiting};
        match self {
            // It fails without an attempt where its input does not evaluate (R2).
            Pending => matches!(to, Running | Failed | Skipped),
            // To itself: a running attempt is reclaimed as it is (S8). To pending: a person chose a new effect key.
            Running => matches!(to, Running | Waiting | Blocked | Completed | Failed | Pending),
            Waiting => matches!(to, Running | Completed | Failed | Pending),
            Blocked => matches!(to, Pending | Completed | Failed),
            // Tried again within its retries, or reopened by a resume.
            Failed => matches!(to, Running | Pending),
            Completed | Skipped => false,
        }
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl fmt::Display for StepState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for RunState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        RunState::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            format!(
                "`{text}` is not the state of a run; the states are active, waiting, blocked, completed, failed and abandoned"
            )
        })
    }
}

impl FromStr for StepState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        StepState::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| format!("`{text}` is not the state of a step"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r14_only_a_failed_run_comes_back_from_its_end() {
        for from in RunState::ALL.into_iter().filter(|state| state.is_terminal()) {
            for to in RunState::ALL {
                assert_eq!(from.may_become(to), (from, to) == (RunState::Failed, RunState::Active), "{from} to {to}");
            }
        }
    }

    #[test]
    fn s6_what_can_be_abandoned_is_active_waiting_or_blocked() {
        for from in RunState::ALL {
            assert_eq!(from.may_become(RunState::Abandoned), !from.is_terminal(), "{from}");
        }
    }

    #[test]
    fn a_step_that_is_behind_the_run_stays_there() {
        for from in StepState::ALL.into_iter().filter(|state| state.is_terminal()) {
            for to in StepState::ALL {
                assert!(!from.may_become(to), "{from} to {to}");
            }
        }
    }

    #[test]
    fn every_state_reads_back_as_it_was_written() {
        for state in RunState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
            assert_eq!(serde_json::to_value(state).ok(), Some(serde_json::Value::from(state.as_str())));
        }
        for state in StepState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
            assert_eq!(serde_json::to_value(state).ok(), Some(serde_json::Value::from(state.as_str())));
        }
        assert!("Active".parse::<RunState>().is_err());
    }
}
