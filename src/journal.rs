//! What one performed step writes down, and the trait through which it does.
//!
//! [`Journal`] is what the contract in `perform` needs of a store, and no more: read the effect, commit. Every durable
//! write of a performer is one [`Commit`], fenced by the generation of its run, applied whole or not at all. A commit says
//! what happened in this order, which is also the order in which a store applies it: fence, reads, charge, effect, refund,
//! documents, attempt, step, variable, what the run does next, events.
//!
//! This module holds values and a trait. It performs no I/O and knows no SQL.

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::budget::{ChargeItem, Exceeded};
use crate::clock::Timestamp;
use crate::effect::{EffectClass, EffectState};

/// A step's failure, as it is stored and shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// A short, stable, upper-case word, listed in [`codes`] where it is the host's.
    pub code: String,
    /// What happened, for whoever must act. NUL has been replaced.
    pub message: String,
    /// Whether trying again may help.
    pub retryable: bool,
    /// Not before this moment; `None` leaves it to the step's backoff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Whatever else is known, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

impl Failure {
    /// A failure that trying again will not mend.
    pub fn permanent(code: &str, message: impl Into<String>) -> Failure {
        let message = crate::json::replace_nul(&message.into()).into_owned();
        Failure { code: code.to_owned(), message, retryable: false, not_before: None, details: None }
    }

    /// A failure that trying again may mend.
    pub fn retryable(code: &str, message: impl Into<String>) -> Failure {
        Failure { retryable: true, ..Failure::permanent(code, message) }
    }

    /// The same failure with details.
    #[must_use]
    pub fn with_details(mut self, details: Value) -> Failure {
        self.details = Some(details);
        self
    }
}

/// The host's own failure codes.
pub mod codes {
    /// The step's configuration does not evaluate or does not fit its schema (R2).
    pub const CONFIG_INVALID: &str = "CONFIG_INVALID";
    /// The embedder's check or the action's `authorize` refused (R4).
    pub const FORBIDDEN: &str = "FORBIDDEN";
    /// The charge does not fit the budget (R6).
    pub const BUDGET_EXCEEDED: &str = "WORKFLOW_BUDGET_EXCEEDED";
    /// The default code of an action's own failure (R11).
    pub const ACTION_ERROR: &str = "WORKFLOW_ACTION_ERROR";
    /// The effect succeeded for another input (R8).
    pub const INPUT_CHANGED: &str = "WORKFLOW_EFFECT_INPUT_CHANGED";
    /// `reconcile` could not find out (R8).
    pub const RECONCILE_FAILED: &str = "WORKFLOW_EFFECT_RECONCILE_FAILED";
    /// What became of the effect is not known (R12).
    pub const OUTCOME_UNKNOWN: &str = "WORKFLOW_EFFECT_OUTCOME_UNKNOWN";
    /// The documents that a transactional action read kept changing under it (R10).
    pub const CONFLICT: &str = "WORKFLOW_CONFLICT";
    /// The provider has forgotten the idempotency key, and the action cannot be asked (R15).
    pub const KEY_EXPIRED: &str = "WORKFLOW_EFFECT_KEY_EXPIRED";
    /// A trap: a panic, an `unreachable`, an exhausted stack.
    pub const TRAPPED: &str = "WORKFLOW_ACTION_TRAPPED";
    /// A limit of the policy stopped the action.
    pub const LIMIT: &str = "WORKFLOW_LIMIT_EXCEEDED";
    /// The wall or cpu limit stopped the action, or the step's timeout did.
    pub const TIMEOUT: &str = "WORKFLOW_TIMEOUT";
    /// The action returned what the host refuses: not JSON, too large, not fitting its own schema.
    pub const OUTCOME_REFUSED: &str = "WORKFLOW_OUTCOME_REFUSED";
    /// The host's own fault; the message says whose to mend.
    pub const HOST_ERROR: &str = "WORKFLOW_HOST_ERROR";
}

/// Names the run that a performer performs, at the generation at which it claimed it (R14).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// The run.
    pub run: String,
    /// The generation that the performer's claim raised it to.
    pub generation: i64,
}

/// The journal's record of one effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EffectRecord {
    /// The effect key (R1).
    pub key: String,
    /// The key of its step.
    pub step: String,
    /// The class it was begun under.
    pub class: EffectClass,
    /// Where it stands.
    pub state: EffectState,
    /// Hash of the canonical input.
    pub input_hash: String,
    /// Digest of the component that began it: reconciling asks the same code.
    pub component: String,
    /// The generation that wrote the record last.
    pub generation: i64,
    /// The dispatch that began it.
    pub dispatch: String,
    /// When it was marked as begun, by the store's clock.
    pub marked_at: Timestamp,
    /// No byte of it leaves after this moment (R7).
    pub deadline: Timestamp,
    /// How long after the deadline it can still appear at the other end, in milliseconds.
    pub visible_within_ms: u64,
    /// The canonical text of its output once it succeeded.
    pub output: Option<String>,
    /// Why it failed or is in doubt.
    pub failure: Option<Failure>,
    /// When it went from `executing` to what it is; `None` while it is executing.
    pub settled_at: Option<Timestamp>,
}

impl EffectRecord {
    /// From when on *failed* and *unknown* are believed (R8).
    pub fn believable_from(&self) -> Timestamp {
        self.deadline.plus(std::time::Duration::from_millis(self.visible_within_ms))
    }
}

/// The key of one charge (B5): a dispatch at a generation, and a request's number where it was an overdraw.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChargeKey {
    /// The dispatch charged.
    pub dispatch: String,
    /// The generation at which it acts.
    pub generation: i64,
    /// The number of the request that was charged then and there; `None` for what `plan` announced.
    pub request: Option<u32>,
}

/// A charge against the root of the run tree (R6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// Under which it is charged once, however often it is committed.
    pub key: ChargeKey,
    /// The step it is for.
    pub step: String,
    /// All of them or none.
    pub items: Vec<ChargeItem>,
}

/// What a transactional action read, and what it saw: checked again when it commits (R10).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DocumentRead {
    /// One key of an app; `None` where it was absent.
    Key {
        /// The owner.
        app: String,
        /// The key.
        key: String,
        /// The canonical text seen.
        seen: Option<String>,
    },
    /// A range of an app by prefix, as it was listed.
    Range {
        /// The owner.
        app: String,
        /// The prefix; empty is every key.
        prefix: String,
        /// Keys and canonical texts, in key order.
        seen: Vec<(String, String)>,
    },
}

/// A buffered write of a transactional action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentWrite {
    /// The owner.
    pub app: String,
    /// The key.
    pub key: String,
    /// The canonical text to store; `None` removes the key.
    pub value: Option<String>,
}

/// One outgoing request, as evidence (R12). Secrets are redacted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestEvidence {
    /// From 1, in the order in which the attempt made them.
    pub number: u32,
    /// The phase that made it: `plan`, `run`, …
    pub phase: String,
    /// `POST`.
    pub method: String,
    /// With its query.
    pub url: String,
    /// Whether its grant calls it safe.
    pub safe: bool,
    /// The idempotency key that the host wrote into it, if any.
    pub key: Option<String>,
    /// SHA-256 of its body.
    pub body_sha256: Option<String>,
    /// When its first byte was let out; `None` where none was.
    pub left_at: Option<Timestamp>,
    /// The final status, once it arrived.
    pub status: Option<u16>,
    /// When it was heard: a final status, and the whole body where that counts. `None`: unheard.
    pub heard_at: Option<Timestamp>,
    /// Why it was refused or broke off.
    pub error: Option<String>,
}

impl RequestEvidence {
    /// An effectful request of which at least one byte left.
    pub fn is_effect(&self) -> bool {
        !self.safe && self.left_at.is_some()
    }

    /// An effectful request that left and was not heard: its fate is unknown.
    pub fn is_unheard(&self) -> bool {
        self.is_effect() && self.heard_at.is_none()
    }
}

/// A capability that a guest tried and the sandbox refused, with the line of policy that would grant it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// The phase in which it was tried.
    pub phase: String,
    /// What was tried: `POST https://api.mail.example/v1/messages`, `wasi:sockets/tcp`.
    pub capability: String,
    /// Why it was refused.
    pub reason: String,
    /// What to write where; empty where nothing would grant it.
    pub remedy: String,
}

/// What an attempt cost and did, durable when it settles.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Every outgoing request, in order.
    pub requests: Vec<RequestEvidence>,
    /// Everything refused.
    pub denials: Vec<Denial>,
    /// Lines that the guest logged.
    pub logs: Vec<String>,
    /// Whether lines were dropped at the limit on logs.
    pub logs_dropped: bool,
    /// The last part of what it wrote to stderr.
    pub stderr: String,
    /// Time on the processor, in milliseconds.
    pub cpu_ms: u64,
    /// Elapsed time, in milliseconds.
    pub wall_ms: u64,
    /// The most memory that its instances held at once, in bytes.
    pub memory_peak_bytes: u64,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptEnd {
    /// The dispatch that it was.
    pub dispatch: String,
    /// The token that its reservation issued; finishing must show it (S8, S9).
    pub claim_token: String,
    /// `succeeded`, `failed`, `blocked`, `restored`, `reconciled`, `waiting`.
    pub outcome: String,
    /// Its failure reason, if it failed.
    pub reason: Option<String>,
    /// What it cost and did.
    pub record: AttemptRecord,
}

/// How a step stands after a commit.
#[derive(Debug, Clone, PartialEq)]
pub enum StepEnd {
    /// Done, with the canonical text of its output (`null` where it has none).
    Completed {
        /// The output.
        output: String,
    },
    /// Failed; whether it is tried again is the commit's `then`.
    Failed {
        /// Why.
        failure: Failure,
    },
    /// A person must settle it.
    Blocked {
        /// Why.
        failure: Failure,
    },
    /// It waits for a dependency.
    Waiting {
        /// On what.
        dependency: Dependency,
        /// Whether the same attempt goes on when it wakes (a reconcile that asks again), or a new one starts.
        same_attempt: bool,
        /// Why it waits, where it waits after a failure.
        failure: Option<Failure>,
    },
}

/// What a waiting step waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// `signal`, `timer` or `run`.
    pub kind: DependencyKind,
    /// The signal's name, the timer's time, the run's id.
    pub key: String,
    /// When a timer is due; `None` for the other kinds.
    pub due: Option<Timestamp>,
}

impl Dependency {
    /// A timer that is due at `due`.
    pub fn timer(due: Timestamp) -> Dependency {
        Dependency { kind: DependencyKind::Timer, key: due.to_string(), due: Some(due) }
    }
}

/// The kinds of dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DependencyKind {
    /// Somebody's signal.
    Signal,
    /// A moment.
    Timer,
    /// Another run's end.
    Run,
}

impl DependencyKind {
    /// The kind as it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            DependencyKind::Signal => "signal",
            DependencyKind::Timer => "timer",
            DependencyKind::Run => "run",
        }
    }
}

/// A step's reservation: one attempt, the input it gets, and when (R2).
#[derive(Debug, Clone, PartialEq)]
pub struct Reservation {
    /// The step.
    pub step: String,
    /// A fresh dispatch id, used where the reservation makes a new attempt.
    pub dispatch: String,
    /// A fresh claim token; always issued.
    pub claim_token: String,
    /// The canonical text of the evaluated input, used where the step has none stored yet.
    pub input: String,
}

/// What the run does after a commit.
#[derive(Debug, Clone, PartialEq)]
pub enum Then {
    /// Go straight on: skip these steps, reserve that one. The reservation rides on this commit.
    Reserve {
        /// Keys of the steps that their conditions skip, in order.
        skipped: Vec<Skipped>,
        /// The step that runs next.
        next: Reservation,
    },
    /// The last step is done (S13).
    Complete {
        /// Keys of the steps that their conditions skip, in order.
        skipped: Vec<Skipped>,
        /// The canonical text of the run's outputs.
        outputs: String,
    },
    /// The run fails, with this step's failure. `step` is `None` where no step failed (its outputs did not evaluate).
    Fail {
        /// Keys of the steps that their conditions skip, in order.
        skipped: Vec<Skipped>,
        /// The step that failed.
        step: Option<String>,
        /// Why.
        failure: Failure,
    },
    /// The run waits with its step, at the latest until this moment; `None` waits for the dependency alone.
    Wait {
        /// When to look again.
        until: Option<Timestamp>,
    },
    /// The run needs a person.
    Block,
}

/// A step that its condition skipped; its output is null (R13).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Its key.
    pub step: String,
    /// The variable that its `saveAs` names, set to null.
    pub save_as: Option<String>,
}

/// An event to append to the run (S12).
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// `step.completed`, `effect.marked`, …
    pub kind: &'static str,
    /// The step it is about.
    pub step: Option<String>,
    /// Whatever else there is to say, by name.
    pub data: Value,
    /// Appended once under this key, where one is due.
    pub idempotency_key: Option<String>,
}

/// The names of events.
pub mod events {
    /// The run was published.
    pub const RUN_STARTED: &str = "run.started";
    /// Somebody claimed the run.
    pub const RUN_CLAIMED: &str = "run.claimed";
    /// The run completed.
    pub const RUN_COMPLETED: &str = "run.completed";
    /// The run failed.
    pub const RUN_FAILED: &str = "run.failed";
    /// The run needs a person.
    pub const RUN_BLOCKED: &str = "run.blocked";
    /// The run waits.
    pub const RUN_WAITING: &str = "run.waiting";
    /// A waiting run went on.
    pub const RUN_WOKEN: &str = "run.woken";
    /// A failed or blocked run was reopened.
    pub const RUN_REOPENED: &str = "run.reopened";
    /// The run was abandoned.
    pub const RUN_ABANDONED: &str = "run.abandoned";
    /// An attempt was reserved.
    pub const ATTEMPT_STARTED: &str = "attempt.started";
    /// An attempt finished.
    pub const ATTEMPT_FINISHED: &str = "attempt.finished";
    /// A step was completed.
    pub const STEP_COMPLETED: &str = "step.completed";
    /// A step failed.
    pub const STEP_FAILED: &str = "step.failed";
    /// A step was skipped by its condition.
    pub const STEP_SKIPPED: &str = "step.skipped";
    /// A step waits.
    pub const STEP_WAITING: &str = "step.waiting";
    /// A step needs a person.
    pub const STEP_BLOCKED: &str = "step.blocked";
    /// The budget was charged.
    pub const BUDGET_CHARGED: &str = "budget.charged";
    /// A request was charged beyond its plan, then and there.
    pub const BUDGET_OVERDRAWN: &str = "budget.overdrawn";
    /// A charge was given back.
    pub const BUDGET_REFUNDED: &str = "budget.refunded";
    /// An effect may have begun from here on.
    pub const EFFECT_MARKED: &str = "effect.marked";
    /// An effect was settled.
    pub const EFFECT_SETTLED: &str = "effect.settled";
    /// Asking what became of an effect failed.
    pub const RECONCILE_FAILED: &str = "effect.reconcile_failed";
    /// A person settled an effect.
    pub const EFFECT_RESOLVED: &str = "effect.resolved";
    /// The sandbox refused a capability.
    pub const CAPABILITY_DENIED: &str = "capability.denied";
}

/// One durable write of a performer, whole or not at all.
#[derive(Debug, Clone)]
pub struct Commit {
    /// Zero runs at this generation: fenced, nothing is written.
    pub fence: Fence,
    /// The performer's clock when it built the commit.
    pub at: Timestamp,
    /// Reads that must still hold; otherwise [`Committed::Conflict`] and nothing is written.
    pub reads: Vec<DocumentRead>,
    /// Charged against the run's root; otherwise [`Committed::Exceeded`] and nothing is written.
    pub charge: Option<Charge>,
    /// Every charge of this dispatch at this generation is given back, overdraws included.
    pub refund: Option<ChargeKey>,
    /// Written over the effect's record.
    pub effect: Option<EffectRecord>,
    /// Documents written.
    pub writes: Vec<DocumentWrite>,
    /// The attempt that ends here.
    pub attempt: Option<AttemptEnd>,
    /// The step whose state changes, by key.
    pub step: Option<(String, StepEnd)>,
    /// A variable set to a canonical text (R13).
    pub variable: Option<(String, String)>,
    /// What the run does next; `None` leaves it as it is.
    pub then: Option<Then>,
    /// Appended in this order.
    pub events: Vec<NewEvent>,
}

impl Commit {
    /// A commit that writes nothing yet.
    pub fn new(fence: Fence, at: Timestamp) -> Commit {
        Commit {
            fence,
            at,
            reads: Vec::new(),
            charge: None,
            refund: None,
            effect: None,
            writes: Vec::new(),
            attempt: None,
            step: None,
            variable: None,
            then: None,
            events: Vec::new(),
        }
    }

    /// The same commit with one more event about `step`.
    #[must_use]
    pub fn event(mut self, kind: &'static str, step: &str, data: Value) -> Commit {
        self.events.push(NewEvent { kind, step: Some(step.to_owned()), data, idempotency_key: None });
        self
    }
}

/// What became of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Committed {
    /// It is durable.
    Done,
    /// A read no longer holds; nothing was written.
    Conflict,
    /// The charge does not fit; nothing was written.
    Exceeded(Exceeded),
}

/// Why a journal could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Somebody else has claimed the run, or it ended (R14). The performer drops the run and writes nothing more.
    #[error(
        "run {run} is no longer this worker's: it was claimed again, abandoned or settled since generation {generation}"
    )]
    Fenced {
        /// The run.
        run: String,
        /// The generation at which this performer held it.
        generation: i64,
    },
    /// What is stored and what the performer holds do not fit together. Ours to mend.
    #[error("the store and its performer disagree about run {run}: {what}")]
    Inconsistent {
        /// The run.
        run: String,
        /// How.
        what: String,
    },
    /// The database failed. Whether the commit is durable is not known; committing it again is safe.
    #[error("the store failed while {doing}")]
    Database {
        /// What the store was doing.
        doing: &'static str,
        /// What the database said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// What the contract needs of a store.
pub trait Journal: Send + Sync {
    /// The record of the effect `key` of `run`; `None` where there is none. Reads only.
    fn effect<'a>(&'a self, run: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<EffectRecord>, JournalError>>;

    /// Applies `commit`. When it returns [`Committed::Done`], everything in it is durable, in one transaction; on any
    /// other answer nothing of it is. Committing twice what was committed once changes nothing the second time.
    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, JournalError>>;

    /// The canonical text under `key` of `app`. Reads only; no lock or transaction outlives the call.
    fn document<'a>(&'a self, app: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<String>, JournalError>>;

    /// Keys and canonical texts of `app` whose key begins with `prefix`, in byte order of the key, at most `limit`.
    fn documents<'a>(
        &'a self,
        app: &'a str,
        prefix: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, String)>, JournalError>>;
}
