//! Runs: states and transitions, starting one, driving it step by step, rehearsing it, settling what a person must settle.
//!
//! `perform` performs one attempt; this module decides which. It calls no guest itself and names no table.

pub mod state;

#[cfg(feature = "store")]
mod drive;
#[cfg(feature = "store")]
mod dry_run;
#[cfg(feature = "store")]
mod resolve;
#[cfg(feature = "store")]
mod resume_point;
#[cfg(feature = "store")]
mod start;

#[cfg(feature = "store")]
pub use drive::{DriveError, DriveOptions, Ended};
#[cfg(feature = "store")]
pub use dry_run::{BudgetForecast, DryRun, PlannedEffect, PlannedStep, RunsOut, StepForecast, StepIssue};
#[cfg(feature = "store")]
pub use resolve::{Resolve, ResolveRunError, Verdict};
#[cfg(feature = "store")]
pub use start::{StartError, StartRun, Started};

use crate::clock::Timestamp;
use crate::perform::Settled;
use crate::sandbox::{Observer, Unobserved};

/// Whoever watches a run as it goes.
pub trait Watch: Observer {
    /// The run was claimed at this generation.
    fn claimed(&self, _run: &str, _generation: i64) {}

    /// An attempt of a step begins.
    fn step_begins(&self, _step: &str, _action: &str, _attempt: u32) {}

    /// An attempt of a step was settled.
    fn step_settled(&self, _step: &str, _settled: &Settled) {}

    /// The run waits until this moment before it goes on.
    fn waits(&self, _until: Timestamp) {}

    /// Somebody else holds the run until this moment, unless it is renewed.
    fn held_by(&self, _holder: &str, _expires_at: Timestamp) {}
}

impl Watch for Unobserved {}
