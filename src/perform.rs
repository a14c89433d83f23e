//! THE CONTRACT around one guest call: recall, authorize, plan, charge and mark, act, settle.
//!
//! The order is the contract. Each stage consumes what the stage before it made, and only that stage can make it, so a
//! stage that is skipped or moved does not compile. Charging before acting is the only order that cannot overspend;
//! marking before acting is the only one that leaves evidence when the process dies in the middle.
//!
//! | | pure | transactional | idempotent | ambiguous |
//! | --- | --- | --- | --- | --- |
//! | charged | no | with its record | before acting | before acting, with the mark |
//! | marked before acting | no | no | no | yes |
//! | commits | 1 | 1 | 1, or 2 with a charge | 2 |
//! | crash in the middle | run again | run again | run again, same key | reconcile |
//!
//! What this module does not do: it claims no run, evaluates no expression, sleeps for no retry. It performs one attempt of
//! one step and says what the run should do next.

mod act;
mod authorize;
mod charge;
mod plan;
mod recall;
mod reconcile;
mod rehearse;
mod settle;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;

use self::act::Acted;
use self::authorize::Authorized;
use self::charge::Cleared;
use self::plan::Priced;
use self::recall::{Fresh, Recalled};
pub use self::rehearse::{Rehearsed, rehearse};
pub use self::settle::{How, Settled};
use crate::clock::{Ambient, Timestamp};
use crate::component::{ActionName, Descriptor};
use crate::egress::{Egress, EgressConfig};
use crate::journal::{Fence, Journal, JournalError, Then};
use crate::json;
use crate::policy::{Grant, Limits, Policy, Secrets};
use crate::sandbox::{AttemptSetup, CallContext, Component, Observer, Sandbox};
use crate::worker::lease::Lease;

/// Performs one attempt of one reserved step, and settles it.
///
/// # Errors
/// [`JournalError::Fenced`] where somebody else has the run by now: drop it and write nothing more. Any other error is the
/// store's: what the attempt did is in the journal as far as it got, and performing the step again recovers from there.
pub async fn perform(gate: &Gate, step: Reserved) -> Result<Settled, JournalError> {
    let mut ended = contract(gate, step).await;
    loop {
        match ended {
            Ok(settled) | Err(Halt::Settled(settled)) => return Ok(*settled),
            Err(Halt::Journal(error)) => return Err(error),
            // R10: what a transactional action read has changed; there are no other effects.
            Err(Halt::Conflict(again)) => ended = stages(gate, *again).await,
        }
    }
}

async fn contract(gate: &Gate, step: Reserved) -> Result<Box<Settled>, Halt> {
    // R8, R9: the journal first.
    match recall::recall(gate, step).await? {
        Recalled::Settled(settled) => Ok(settled),
        Recalled::InDoubt(effect) => reconcile::reconcile(gate, *effect).await,
        Recalled::Fresh(fresh) => stages(gate, *fresh).await,
    }
}

async fn stages(gate: &Gate, fresh: Fresh) -> Result<Box<Settled>, Halt> {
    // R4: may whoever started this run do this?
    let authorized: Authorized = authorize::authorize(gate, fresh).await?;
    // R5: what would it consume?
    let priced: Priced = plan::plan(gate, authorized).await?;
    // R6, R7: charged and marked in one commit, where the class asks for it.
    let cleared: Cleared = charge::charge_and_mark(gate, priced).await?;
    // R11, R12: the only stage that lets anything out.
    let acted: Acted = act::act(gate, cleared).await;
    // R9, R13: result, variables, events and what follows, in one commit.
    settle::settle(gate, acted).await
}

/// Why the contract ended before its last stage.
enum Halt {
    /// A stage refused, and has settled the refusal.
    Settled(Box<Settled>),
    /// What a stage was based on no longer holds, and nothing was written: once more from authorize.
    Conflict(Box<Fresh>),
    /// The journal failed or fenced.
    Journal(JournalError),
}

impl From<JournalError> for Halt {
    fn from(error: JournalError) -> Halt {
        Halt::Journal(error)
    }
}

/// What the contract works with, the same for every step.
pub struct Gate {
    /// Where guests run.
    pub sandbox: Sandbox,
    /// Where it is written down.
    pub journal: Arc<dyn Journal>,
    /// What is granted.
    pub policy: Arc<Policy>,
    /// Where credentials come from.
    pub secrets: Arc<Secrets>,
    /// Compiled components by digest.
    pub components: Arc<dyn Components>,
    /// Time and ids.
    pub ambient: Ambient,
    /// Whether budgets are on. Off: `plan` is not called at execution, nothing is charged, meters count and never refuse.
    pub budgets: bool,
    /// The embedder's own check, asked before the action's `authorize`; `None` asks the action alone.
    pub check: Option<Arc<dyn Check>>,
    /// Whoever watches.
    pub observer: Arc<dyn Observer>,
}

/// Finds a compiled component by its digest.
pub trait Components: Send + Sync {
    /// The component, or why it cannot be had; for the operator.
    fn component<'a>(&'a self, digest: &'a str) -> BoxFuture<'a, Result<Component, String>>;
}

/// The embedder's own check of whether a run may do something (R4).
pub trait Check: Send + Sync {
    /// `Err` is the refusal's reason, for the operator.
    fn check<'a>(&'a self, call: &'a CheckedCall<'a>) -> BoxFuture<'a, Result<(), String>>;
}

/// What a [`Check`] is asked about.
#[derive(Debug)]
pub struct CheckedCall<'a> {
    /// The action.
    pub action: &'a ActionName,
    /// What the guest would be told.
    pub context: &'a CallContext,
    /// The evaluated configuration.
    pub input: &'a Value,
}

/// One reserved attempt of one step: everything that performing it needs.
#[derive(Clone)]
pub struct Reserved {
    /// The run, at the generation at which it is held.
    pub fence: Fence,
    /// The step's key.
    pub step: String,
    /// Its action.
    pub action: ActionName,
    /// What the action's component says of it.
    pub descriptor: Arc<Descriptor>,
    /// The digest that the run's definition pinned.
    pub component: String,
    /// The step's `with`, as its author wrote it.
    pub with: Arc<Value>,
    /// The evaluated configuration, stored with the first reservation (R2).
    pub input: Arc<Value>,
    /// Hash of its canonical text.
    pub input_hash: String,
    /// The variable that its output lands in.
    pub save_as: Option<String>,
    /// How often and how patiently it is tried.
    pub retry: Retry,
    /// The limit on one attempt that the workflow sets; `None`: the policy's wall limit alone.
    pub timeout: Option<Duration>,
    /// The attempt's number, from 1.
    pub attempt: u32,
    /// Its dispatch id.
    pub dispatch: String,
    /// Shown when it finishes.
    pub claim_token: String,
    /// When the step was first reserved: the time that frozen phases see.
    pub reserved_at: Timestamp,
    /// Attempts since the last resume that ended in a failure.
    pub tries: u32,
    /// How often a person asked for a new effect key.
    pub key_retries: u32,
    /// When the earliest attempt began that may have begun an effect; `None` where none may have.
    pub begun_at: Option<Timestamp>,
    /// Whether a request of an earlier attempt may have left and was not heard.
    pub unheard_before: bool,
    /// What started the run: a canonical JSON object.
    pub invocation: String,
    /// The run's variables: a canonical JSON object.
    pub variables: String,
    /// The run's lease.
    pub lease: Arc<Lease>,
    /// What the run does once this step is completed.
    pub continuation: Arc<dyn Continuation>,
}

/// How often and how patiently a step is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// All attempts together; 1 never retries.
    pub attempts: u32,
    /// Before the second attempt; doubled before each further one.
    pub backoff: Duration,
    /// The longest that is waited.
    pub max_backoff: Duration,
}

/// What a run does once a step is completed; pure, so that it can be asked before the commit that it rides on.
pub trait Continuation: Send + Sync {
    /// After the step completed with `output`.
    fn after(&self, output: &Value, now: Timestamp) -> Then;
}

impl Reserved {
    /// R1.
    pub fn effect_key(&self) -> String {
        crate::effect::effect_key(&self.fence.run, &self.step, self.key_retries)
    }

    fn class(&self) -> crate::effect::EffectClass {
        self.descriptor.effect_class
    }

    /// What the policy grants this action, its own smaller limits and the step's timeout applied.
    fn grant(&self, gate: &Gate) -> Grant {
        let mut grant = gate.policy.grant(&self.action.app, &self.action.action);
        let limits: Limits = self.descriptor.limits.within(&grant.limits);
        let wall = self.timeout.map_or(limits.wall, |timeout| timeout.min(limits.wall));
        grant.limits = Limits { wall, ..limits };
        grant
    }

    /// The attempt's sandbox setup and way out, under `effect_key`.
    fn setup(&self, gate: &Gate, effect_key: String) -> (AttemptSetup, Egress) {
        let class = self.class();
        let grant = self.grant(gate);
        let limits = grant.limits.clone();
        let egress = Egress::new(EgressConfig {
            grant,
            needs: self.descriptor.http.clone(),
            secrets: gate.secrets.clone(),
            class,
            effect_key: effect_key.clone(),
            ambient: gate.ambient.clone(),
            lease: self.lease.clone(),
        });
        let setup = AttemptSetup {
            app: self.action.app.clone(),
            action: self.action.action.clone(),
            class,
            limits,
            context: self.context(effect_key),
            input: self.input.clone(),
            with: self.with.clone(),
            variables: self.variables.clone(),
            frozen_at: self.reserved_at,
            seed: format!("{}\n{}", self.fence.run, self.step),
            egress: egress.clone(),
            journal: Some(gate.journal.clone()),
            lease: self.lease.clone(),
            ambient: gate.ambient.clone(),
            observer: gate.observer.clone(),
        };
        (setup, egress)
    }

    fn context(&self, effect_key: String) -> CallContext {
        CallContext {
            run_id: self.fence.run.clone(),
            step_key: self.step.clone(),
            effect_key,
            // R3: what differs between attempts would make a repetition differ.
            attempt: if self.class().calls_out() { self.attempt } else { 1 },
            invocation: self.invocation.clone(),
        }
    }
}

/// Checks an output that a guest returned as text: JSON gate, size, schema. The canonical value, or why it is refused.
fn accept_output(descriptor: &Descriptor, limits: &Limits, output: Option<&str>) -> Result<Value, String> {
    let Some(text) = output else { return Ok(Value::Null) };
    let bytes_max = usize::try_from(limits.output_bytes).unwrap_or(usize::MAX);
    if text.len() > bytes_max {
        return Err(format!(
            "its output has {} bytes, and the limit `output` of the policy is {bytes_max} bytes",
            text.len()
        ));
    }
    let value = json::parse(text, bytes_max).map_err(|error| format!("its output is not acceptable JSON: {error}"))?;
    if let Err(problems) = descriptor.check_output(&value) {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        return Err(format!("its output does not fit its own schema: {}", problems.join("; ")));
    }
    Ok(value)
}
