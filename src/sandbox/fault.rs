//! Why a call into a guest did not return: limits, traps, refusals, as types.
//!
//! It classifies what wasmtime raised; what that means for an effect is `perform`'s to say.

use std::time::Duration;

use serde_json::json;
use wasmtime::Trap;
use wasmtime_wasi::I32Exit;

use super::host::Refused;
use super::limits::{CpuExceeded, MemoryExceeded};
use crate::capability::Phase;
use crate::journal::{Failure, codes};

/// Why a call did not return. The instance is gone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A limit of the policy stopped it.
    #[error("{phase} was stopped: it {message}. {}", to_allow_more(limit, app))]
    Limit {
        /// The export that was running.
        phase: Phase,
        /// The policy's key: `memory`, `cpu`, `output`.
        limit: &'static str,
        /// What was asked and what the limit is.
        message: String,
        /// Whose limits to change.
        app: String,
    },
    /// The wall limit or the step's timeout stopped it.
    #[error("{phase} was stopped after {} ms: limit `wall` of the policy, or the step's `timeout`", .after.as_millis())]
    Wall {
        /// The export that was running.
        phase: Phase,
        /// How long the attempt had.
        after: Duration,
    },
    /// `run` said that it succeeded, and a request that it had made was not heard within the wall limit.
    #[error(
        "run returned, and a request that had left was not heard within {} ms: limit `wall` of the policy, or the step's \
         `timeout`",
        .after.as_millis()
    )]
    Unheard {
        /// How long the attempt had.
        after: Duration,
    },
    /// It touched what it may not, through an interface without an error for that.
    #[error("{phase} was stopped: {reason}")]
    Refused {
        /// The export that was running.
        phase: Phase,
        /// What and why.
        reason: String,
    },
    /// It panicked, ran out of stack, or otherwise trapped.
    #[error("{phase} trapped: {message}")]
    Trap {
        /// The export that was running.
        phase: Phase,
        /// What wasmtime says.
        message: String,
    },
    /// The host could not run it: ours or the machine's to mend.
    #[error("the host could not call {phase}: {message}")]
    Host {
        /// The export that was to run.
        phase: Phase,
        /// What happened.
        message: String,
    },
}

/// Which line of the policy moves a limit. `describe` is called before there is an app to have one.
fn to_allow_more(limit: &str, app: &str) -> String {
    match app {
        "" => "`describe` runs under the default limits, whatever the policy says".to_owned(),
        app => format!(
            "To allow more: {limit} = … under [limits] or [app.{app}.limits] of the policy, unless its own descriptor asks \
             for less"
        ),
    }
}

impl Fault {
    /// Classifies what a call raised. `memory_refused` is the last growth that was refused: an `unreachable` that follows
    /// it is its echo, because a Rust guest aborts when it cannot allocate.
    pub(super) fn of(
        phase: Phase,
        app: &str,
        error: &wasmtime::Error,
        memory_refused: Option<MemoryExceeded>,
    ) -> Fault {
        let limit = |limit, message: String| Fault::Limit { phase, limit, message, app: app.to_owned() };
        if let Some(exceeded) = error.downcast_ref::<CpuExceeded>() {
            return limit("cpu", exceeded.to_string());
        }
        if let Some(exceeded) = error.downcast_ref::<MemoryExceeded>() {
            return limit("memory", exceeded.to_string());
        }
        if let Some(Refused(reason)) = error.downcast_ref::<Refused>() {
            return Fault::Refused { phase, reason: reason.clone() };
        }
        if error.is::<wasmtime::PoolConcurrencyLimitError>() {
            return Fault::Host { phase, message: format!("it is out of places for instances: {error}") };
        }
        if let Some(exit) = error.downcast_ref::<I32Exit>() {
            return Fault::Trap { phase, message: format!("it exited with status {}, instead of returning", exit.0) };
        }
        if let (Some(Trap::UnreachableCodeReached), Some(refused)) = (error.downcast_ref::<Trap>(), memory_refused) {
            return limit("memory", refused.to_string());
        }
        // wasmtime has no type for it. What a call may hand over at once is sized by the limit on outputs.
        if error.root_cause().to_string().contains("fuel allocated for hostcalls") {
            return limit("output", "handed over more at once than the limit `output` has room for".to_owned());
        }
        // The chain from the root: the last cause is the trap, what stands before it is wasmtime's backtrace.
        Fault::Trap { phase, message: format!("{:#}", error.root_cause()) }
    }

    /// The failure that a step fails with where nothing of an effect is in doubt (R12).
    pub fn to_failure(&self) -> Failure {
        let text = self.to_string();
        match self {
            Fault::Limit { limit: "cpu", .. } | Fault::Wall { .. } | Fault::Unheard { .. } => {
                Failure::retryable(codes::TIMEOUT, text)
            }
            Fault::Limit { limit, .. } => {
                Failure::permanent(codes::LIMIT, text).with_details(json!({ "limit": limit }))
            }
            Fault::Refused { .. } | Fault::Trap { .. } => Failure::permanent(codes::TRAPPED, text),
            Fault::Host { .. } => Failure::retryable(codes::HOST_ERROR, text),
        }
    }
}
