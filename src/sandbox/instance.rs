//! One attempt's instances and the calls into them.
//!
//! A call consumes its instance and gives it back only if it returned: one that trapped cannot be used again, because
//! nobody has it any more. What an attempt left in flight ends with it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use wasmtime::Store;

use super::bindings::Action;
use super::bindings::tollgate::action::types as wit;
use super::clocks::Frozen;
use super::engine::GuestRuns;
use super::limits::{self, CpuMeter, MemoryMeter};
use super::state::{GuestState, Observer, Shared, Unobserved};
use super::stderr::StderrTail;
use super::{Component, Fault, Sandbox};
use crate::capability::Phase;
use crate::clock::{Ambient, Timestamp};
use crate::effect::EffectClass;
use crate::egress::{Egress, EgressConfig};
use crate::journal::RequestEvidence;
use crate::journal::{AttemptRecord, Dependency, DependencyKind, DocumentRead, DocumentWrite, Failure, Journal, codes};
use crate::json;
use crate::policy::{Limits, Policy, Secrets};
use crate::worker::lease::Lease;

/// What an attempt's instances work with.
pub struct AttemptSetup {
    /// The owner of the action: whose documents, whose limits.
    pub app: String,
    /// The action within its component.
    pub action: String,
    /// Its class.
    pub class: EffectClass,
    /// What holds for this attempt; `wall` already the smaller of limit and timeout.
    pub limits: Limits,
    /// What every export is told.
    pub context: CallContext,
    /// The evaluated configuration.
    pub input: Arc<Value>,
    /// The step's `with`, as its author wrote it.
    pub with: Arc<Value>,
    /// The run's variables: one canonical JSON object.
    pub variables: String,
    /// The time that frozen phases see: the step's first reservation.
    pub frozen_at: Timestamp,
    /// Seeds the randomness of frozen phases: run id and step key.
    pub seed: String,
    /// The attempt's way out.
    pub egress: Egress,
    /// Where documents are read; `None` where there are none.
    pub journal: Option<Arc<dyn Journal>>,
    /// The run's lease.
    pub lease: Arc<Lease>,
    /// Time.
    pub ambient: Ambient,
    /// Whoever watches.
    pub observer: Arc<dyn Observer>,
}

/// What every export but `describe` is told about its step.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// The run.
    pub run_id: String,
    /// The step's key.
    pub step_key: String,
    /// R1.
    pub effect_key: String,
    /// From 1; always 1 for pure and transactional actions.
    pub attempt: u32,
    /// What started the run: a canonical JSON object.
    pub invocation: String,
}

impl AttemptSetup {
    /// For `describe`: nothing is granted, and nothing is there.
    pub(super) fn describe() -> AttemptSetup {
        let policy = Policy::deny_all();
        let grant = policy.grant("", "");
        let limits = grant.limits.clone();
        let (ambient, lease) = (Ambient::system(), Arc::new(Lease::unlimited()));
        let egress = Egress::new(EgressConfig {
            grant,
            needs: Vec::new(),
            secrets: Arc::new(Secrets::of(&policy)),
            class: EffectClass::Pure,
            effect_key: String::new(),
            ambient: ambient.clone(),
            lease: lease.clone(),
        });
        AttemptSetup {
            app: String::new(),
            action: String::new(),
            class: EffectClass::Pure,
            limits,
            context: CallContext {
                run_id: String::new(),
                step_key: String::new(),
                effect_key: String::new(),
                attempt: 1,
                invocation: "{}".to_owned(),
            },
            input: Arc::new(Value::Null),
            with: Arc::new(Value::Null),
            variables: "{}".to_owned(),
            // The same at every upload, so that `describe` cannot answer differently.
            frozen_at: Timestamp(0),
            seed: "describe".to_owned(),
            egress,
            journal: None,
            lease,
            ambient,
            observer: Arc::new(Unobserved),
        }
    }
}

/// One attempt: its limits run from here, across every instance that it makes.
pub struct Attempt {
    sandbox: Sandbox,
    shared: Arc<Shared>,
    limits: Limits,
    action: String,
    context: CallContext,
    input: String,
    began: Instant,
    ends: Instant,
    _place: Option<OwnedSemaphorePermit>,
}

/// A live instance. See the module's comment.
pub struct Instance {
    attempt: Arc<Calls>,
    store: Store<GuestState>,
    exports: Action,
}

/// What an instance needs of its attempt.
struct Calls {
    sandbox: Sandbox,
    shared: Arc<Shared>,
    action: String,
    context: wit::Context,
    input: String,
    wall: Duration,
    ends: Instant,
}

/// What `plan` answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// One line for a person.
    pub summary: String,
    /// Dimension and amount as decimal text, as the guest gave them.
    pub consumes: Vec<(String, String)>,
    /// The output that a dry run should assume, as JSON text; `None` where it cannot be known.
    pub output: Option<String>,
    /// What a dry run should tell.
    pub issues: Vec<PlanIssue>,
}

/// Something that a dry run tells.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct PlanIssue {
    /// A short, stable, upper-case word.
    pub code: String,
    /// For a person.
    pub message: String,
}

/// What `run` answered. Texts are the guest's, unchecked but for their size.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Done; the output as JSON text.
    Succeeded(Option<String>),
    /// Failed, already in the host's terms.
    Failed(Failure),
    /// Waits.
    Waiting(Dependency),
    /// May have gone through: message and code.
    Ambiguous(String, String),
}

/// What `reconcile` answered.
#[derive(Debug, Clone, PartialEq)]
pub enum Reconciled {
    /// It happened; the output as JSON text.
    Succeeded(Option<String>),
    /// It did not happen.
    Failed(Failure),
    /// Neither can be said: why.
    Unknown(String),
    /// Asking failed.
    Error(Failure),
}

impl Attempt {
    /// Waits for a place among the instances that may run at once, then starts the attempt's wall clock.
    pub async fn new(sandbox: &Sandbox, setup: AttemptSetup) -> Attempt {
        // The semaphore is never closed.
        let place = sandbox.inner.places.clone().acquire_owned().await.ok();
        let began = Instant::now();
        let shared = Shared {
            class: setup.class,
            app: setup.app,
            step: setup.context.step_key.clone(),
            logs_bytes_max: setup.limits.logs_bytes,
            variables: setup.variables,
            with: setup.with,
            input: setup.input.clone(),
            frozen: Frozen { now: setup.frozen_at, seed: setup.seed },
            egress: setup.egress,
            journal: setup.journal,
            lease: setup.lease,
            ambient: setup.ambient,
            observer: setup.observer,
            cpu: CpuMeter::new(setup.limits.cpu),
            stderr: StderrTail::default(),
            notes: std::sync::Mutex::default(),
            documents: std::sync::Mutex::default(),
        };
        Attempt {
            sandbox: sandbox.clone(),
            shared: Arc::new(shared),
            ends: began + setup.limits.wall,
            limits: setup.limits,
            action: setup.action,
            context: setup.context,
            input: json::canonical(&setup.input),
            began,
            _place: place,
        }
    }

    /// A fresh instance of `component`, made for the export of `phase`.
    ///
    /// # Errors
    /// [`Fault`] where it trapped or ran into a limit while it was instantiated.
    pub async fn instantiate(&self, component: &Component, phase: Phase) -> Result<Instance, Fault> {
        let state = GuestState::new(self.shared.clone(), MemoryMeter::new(self.limits.memory_bytes));
        let mut store = Store::new(&self.sandbox.inner.engine, state);
        store.limiter(|state| &mut state.memory);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(limits::at_epoch);
        let output = usize::try_from(self.limits.output_bytes).unwrap_or(usize::MAX);
        // What one call may make the host allocate on the guest's behalf: its answer, or a body chunk, with room for both.
        store.set_hostcall_fuel(output.saturating_mul(2).saturating_add(4 << 20));
        let attempt = Arc::new(Calls {
            sandbox: self.sandbox.clone(),
            shared: self.shared.clone(),
            action: self.action.clone(),
            context: self.wit_context(),
            input: self.input.clone(),
            wall: self.limits.wall,
            ends: self.ends,
        });
        let instantiated = attempt.bounded(component.instantiate(&mut store)).await;
        match instantiated {
            Ok(exports) => Ok(Instance { attempt, store, exports }),
            Err(raised) => Err(attempt.fault(phase, raised, store)),
        }
    }

    /// When the wall limit strikes.
    pub fn ends(&self) -> Instant {
        self.ends
    }

    fn wit_context(&self) -> wit::Context {
        wit::Context {
            run_id: self.context.run_id.clone(),
            step_key: self.context.step_key.clone(),
            effect_key: self.context.effect_key.clone(),
            attempt: self.context.attempt,
            invocation: self.context.invocation.clone(),
        }
    }

    /// What the attempt cost and did so far.
    pub fn record(&self) -> AttemptRecord {
        let notes = self.shared.notes();
        AttemptRecord {
            requests: self.shared.egress.requests(),
            denials: self.shared.egress.denials(),
            logs: notes.logs.clone(),
            logs_dropped: notes.logs_dropped,
            stderr: self.shared.stderr.text(),
            cpu_ms: u64::try_from(self.shared.cpu.used().as_millis()).unwrap_or(u64::MAX),
            wall_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            memory_peak_bytes: notes.memory_peak,
        }
    }

    /// What the attempt read and wrote of its app's documents; taken once.
    pub fn take_documents(&self) -> (Vec<DocumentRead>, Vec<DocumentWrite>) {
        self.shared.take_documents()
    }
}

/// A request that nobody waits for any more must not hold a connection for as long as the other end likes.
impl Drop for Attempt {
    fn drop(&mut self) {
        self.shared.egress.abort();
    }
}

/// What a bounded call raised.
enum Raised {
    Wasm(wasmtime::Error),
    Wall,
}

impl Calls {
    /// Runs a call within the attempt's cpu and wall limits.
    async fn bounded<T>(&self, call: impl Future<Output = wasmtime::Result<T>>) -> Result<T, Raised> {
        let _running: GuestRuns = self.sandbox.inner.ticker.guest_runs();
        match tokio::time::timeout_at(self.ends, self.shared.cpu.meter(call)).await {
            Ok(returned) => returned.map_err(Raised::Wasm),
            Err(_) => Err(Raised::Wall),
        }
    }

    /// Types what was raised and lets the instance go, and with it what is in flight: the attempt is over.
    fn fault(&self, phase: Phase, raised: Raised, store: Store<GuestState>) -> Fault {
        self.shared.egress.abort();
        self.note_memory(&store);
        match raised {
            Raised::Wall => Fault::Wall { phase, after: self.wall },
            Raised::Wasm(error) => Fault::of(phase, &self.shared.app, &error, store.data().memory.refused),
        }
    }

    fn note_memory(&self, store: &Store<GuestState>) {
        let mut notes = self.shared.notes();
        notes.memory_peak = notes.memory_peak.max(store.data().memory.peak);
    }
}

/// Calls one export of `actions` within its limits; on a fault the instance is gone.
macro_rules! call {
    ($self:ident, $phase:expr, $call:ident $(, $argument:ident)*) => {{
        let Instance { attempt, mut store, exports } = $self;
        store.data_mut().enter($phase);
        store.set_epoch_deadline(1);
        let called = attempt
            .bounded(exports.tollgate_action_actions().$call(&mut store $(, &attempt.$argument)*))
            .await;
        match called {
            Ok(answer) => {
                attempt.note_memory(&store);
                (Instance { attempt, store, exports }, answer)
            }
            Err(raised) => return Err(attempt.fault($phase, raised, store)),
        }
    }};
}

impl Instance {
    /// Calls `describe`.
    pub(super) async fn describe(self) -> Result<Vec<wit::ActionDescriptor>, Fault> {
        let (_instance, described) = call!(self, Phase::Describe, call_describe);
        Ok(described)
    }

    /// Calls `authorize`. The inner error is the refusal's reason.
    ///
    /// # Errors
    /// [`Fault`] where the call did not return.
    pub async fn authorize(self) -> Result<(Instance, Result<(), String>), Fault> {
        let (instance, allowed) = call!(self, Phase::Authorize, call_authorize, action, context, input);
        Ok((instance, allowed.map_err(|reason| message(&reason))))
    }

    /// Calls `plan`. The inner error is the guest's own failure.
    ///
    /// # Errors
    /// [`Fault`] where the call did not return.
    pub async fn plan(self) -> Result<(Instance, Result<Planned, Failure>), Fault> {
        let (instance, planned) = call!(self, Phase::Plan, call_plan, action, context, input);
        let now = instance.attempt.shared.ambient.clock.now();
        let planned = planned.map_err(|raw| failure(raw, now)).map(|raw| Planned {
            summary: message(&raw.summary),
            consumes: raw.consumes.into_iter().map(|item| (item.dimension, item.amount)).collect(),
            output: raw.output,
            issues: raw
                .issues
                .into_iter()
                .map(|issue| PlanIssue { code: code_of(&issue.code), message: message(&issue.message) })
                .collect(),
        });
        Ok((instance, planned))
    }

    /// Calls `run` and waits, within the wall limit, for the requests that are still in flight when it returns. What is
    /// not heard by then is broken off.
    ///
    /// # Errors
    /// [`Fault`] where the call did not return.
    pub async fn run(self) -> Result<Outcome, Fault> {
        let (instance, outcome) = call!(self, Phase::Run, call_run, action, context, input);
        let now = instance.attempt.shared.ambient.clock.now();
        let egress = instance.attempt.shared.egress.clone();
        if tokio::time::timeout_at(instance.attempt.ends, egress.drain()).await.is_err() {
            egress.abort();
            // Whatever the guest believes: what became of a request that nobody heard is not known (R12).
            let unheard = egress.requests().iter().any(RequestEvidence::is_unheard);
            if unheard && matches!(outcome, wit::Outcome::Succeeded(_)) {
                return Err(Fault::Unheard { after: instance.attempt.wall });
            }
        }
        egress.close();
        Ok(match outcome {
            wit::Outcome::Succeeded(output) => Outcome::Succeeded(output),
            wit::Outcome::Failed(raw) => Outcome::Failed(failure(raw, now)),
            wit::Outcome::Waiting(raw) => match dependency(raw) {
                Ok(dependency) => Outcome::Waiting(dependency),
                Err(message) => Outcome::Failed(Failure::permanent(codes::OUTCOME_REFUSED, message)),
            },
            wit::Outcome::Ambiguous(doubt) => {
                let code = doubt.code.map_or_else(|| codes::ACTION_ERROR.to_owned(), |code| code_of(&code));
                Outcome::Ambiguous(message(&doubt.message), code)
            }
        })
    }

    /// Calls `reconcile`.
    ///
    /// # Errors
    /// [`Fault`] where the call did not return.
    pub async fn reconcile(self) -> Result<Reconciled, Fault> {
        let (_instance, fate) = call!(self, Phase::Reconcile, call_reconcile, action, context, input);
        let now = _instance.attempt.shared.ambient.clock.now();
        Ok(match fate {
            Ok(wit::Fate::Succeeded(output)) => Reconciled::Succeeded(output),
            Ok(wit::Fate::Failed(raw)) => Reconciled::Failed(failure(raw, now)),
            Ok(wit::Fate::Unknown(reason)) => Reconciled::Unknown(message(&reason)),
            Err(raw) => Reconciled::Error(failure(raw, now)),
        })
    }
}

/// The longest that a guest's `retry-after` is believed: what it asks for is often what a stranger's server asked it for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A guest's failure in the host's terms (R11), at the moment at which its call returned.
fn failure(raw: wit::Failure, now: Timestamp) -> Failure {
    const DETAILS_BYTES_MAX: usize = 64 << 10;
    let code = raw.code.map_or_else(|| codes::ACTION_ERROR.to_owned(), |code| code_of(&code));
    let mut failure = Failure::permanent(&code, message(&raw.message));
    failure.retryable = raw.retryable;
    failure.not_before = raw.retry_after_ms.map(|ms| now.plus(Duration::from_millis(ms).min(RETRY_AFTER_MAX)));
    // Details that are no acceptable JSON are kept as the text they are: an error about bad input can always be stored.
    failure.details = raw.details.map(|text| match json::parse(&text, DETAILS_BYTES_MAX) {
        Ok(value) => value,
        Err(error) => serde_json::json!({ "unreadable": error.to_string(), "text": message(&text) }),
    });
    failure
}

/// A guest's text for a person, kept to what a person reads and any store takes.
fn message(text: &str) -> String {
    const MESSAGE_BYTES_MAX: usize = 16 << 10;
    json::replace_nul(&text[..text.floor_char_boundary(MESSAGE_BYTES_MAX)]).into_owned()
}

/// A guest's code, kept to what can be shown in one word.
fn code_of(code: &str) -> String {
    let word: String =
        code.chars().filter(|char| char.is_ascii_alphanumeric() || matches!(char, '_' | '-' | '.')).take(64).collect();
    if word.is_empty() { codes::ACTION_ERROR.to_owned() } else { word }
}

fn dependency(raw: wit::Dependency) -> Result<Dependency, String> {
    let kind = match raw.kind {
        wit::DependencyKind::Signal => DependencyKind::Signal,
        wit::DependencyKind::Timer => DependencyKind::Timer,
        wit::DependencyKind::Run => DependencyKind::Run,
    };
    if raw.key.is_empty() || raw.key.len() > 512 || raw.key.contains('\0') {
        return Err("`waiting` names a dependency whose key is not 1 to 512 bytes without NUL".to_owned());
    }
    let due = match kind {
        DependencyKind::Timer => {
            Some(Timestamp::parse(&raw.key).map_err(|error| format!("`waiting` on a timer: {error}"))?)
        }
        DependencyKind::Signal | DependencyKind::Run => None,
    };
    Ok(Dependency { kind, key: raw.key, due })
}
