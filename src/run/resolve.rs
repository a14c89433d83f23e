//! What a person settles: an effect in doubt, or a run that is no longer wanted.

use serde_json::Value;

use crate::component::ActionName;
use crate::effect::{EffectClass, EffectState, effect_key};
use crate::host::Host;
use crate::journal::{EffectRecord, JournalError};
use crate::json;
use crate::run::state::RunState;
use crate::store::{AttemptState, Resolution, ResolveError, Snapshot, StoreError, Verdict as StoreVerdict};
use crate::workflow::Definition;

/// A person's word about the effect of one step.
#[derive(Debug, Clone)]
pub struct Resolve {
    /// The run.
    pub run: String,
    /// The step; `None`: the one that is blocked or in doubt, if there is exactly one.
    pub step: Option<String>,
    /// What became of it, or what to do.
    pub verdict: Verdict,
    /// Who says so.
    pub actor: String,
    /// Why.
    pub because: String,
}

/// What a person can say of an effect in doubt.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It happened, and this is the step's output as JSON text; `None` is null.
    Succeeded(Option<String>),
    /// It did not happen.
    Failed,
    /// It did not happen, and the step begins again under a new key (R1).
    RetryWithNewKey,
}

/// Why nothing was settled.
#[derive(Debug, thiserror::Error)]
pub enum ResolveRunError {
    /// There is no such run.
    #[error("there is no run {0}")]
    NoSuchRun(String),
    /// No step, or more than one, is in doubt.
    #[error("{0}")]
    Which(String),
    /// The output given is not acceptable.
    #[error("the output given for step {step} is not acceptable: {message}")]
    Output {
        /// The step.
        step: String,
        /// Why.
        message: String,
    },
    /// The store refused it.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Host {
    /// Settles the effect of a step by a person's word. When it returns, effect, step, run and the record of who and why
    /// are durable together; the answer is how the run stands.
    ///
    /// # Errors
    /// [`ResolveRunError`]; nothing was written. *Failed* and *new key* are refused until the effect can no longer appear
    /// at the other end.
    pub async fn resolve(&self, resolve: Resolve) -> Result<RunState, ResolveRunError> {
        let run = &resolve.run;
        let snapshot = self.store.snapshot(run).await?.ok_or_else(|| ResolveRunError::NoSuchRun(run.clone()))?;
        let step = match resolve.step {
            Some(step) => step,
            None => self.in_doubt(run, &snapshot).await?,
        };
        let definition = Definition::from_json(&snapshot.definition).ok();
        let found = definition.as_ref().and_then(|definition| definition.steps.iter().find(|found| found.id == step));
        let verdict = match resolve.verdict {
            Verdict::Failed => {
                let message = format!("{} says that it did not happen: {}", resolve.actor, resolve.because);
                StoreVerdict::Failed { message: json::replace_nul(&message).into_owned() }
            }
            Verdict::RetryWithNewKey => StoreVerdict::RetryWithNewKey,
            Verdict::Succeeded(output) => {
                let refuse = |message: String| ResolveRunError::Output { step: step.clone(), message };
                let output = output.as_deref().unwrap_or("null");
                let value = json::parse(output, OUTPUT_BYTES_MAX).map_err(|error| refuse(error.to_string()))?;
                let schema = match (&definition, found) {
                    (Some(definition), Some(found)) => self.output_schema(definition, &found.action).await?,
                    _ => None,
                };
                if let Some(Err(problems)) = schema.map(|schema| crate::schema::validate(&schema, &value)) {
                    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
                    return Err(refuse(format!("it does not fit the action's schema: {}", problems.join("; "))));
                }
                StoreVerdict::Succeeded { output: json::canonical(&value) }
            }
        };
        let state = self
            .store
            .resolve_effect(Resolution {
                run: run.clone(),
                save_as: found.and_then(|found| found.save_as.clone()),
                step,
                verdict,
                actor: resolve.actor,
                because: resolve.because,
                at: self.ambient.clock.now(),
            })
            .await?;
        Ok(state)
    }

    /// Abandons a run that is active, waiting or blocked, and says whether it did. When it returns, that is durable: a
    /// worker in the middle of it is fenced, and an effect in flight is in doubt (S6).
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn abandon(&self, run: &str, actor: &str, because: &str) -> Result<bool, JournalError> {
        let unmarked = match self.store.snapshot(run).await? {
            Some(snapshot) => self.unmarked_effects(&snapshot),
            None => Vec::new(),
        };
        self.store.abandon(run, actor, because, unmarked, self.ambient.clock.now()).await
    }

    /// Effects of idempotent steps that may be under way: their reservation is the only evidence.
    fn unmarked_effects(&self, snapshot: &Snapshot) -> Vec<EffectRecord> {
        let Ok(definition) = Definition::from_json(&snapshot.definition) else { return Vec::new() };
        let begun =
            snapshot.attempts.iter().filter(|attempt| attempt.state == AttemptState::Running || attempt.may_have_begun);
        begun
            .filter_map(|attempt| {
                let step = definition.steps.iter().find(|step| step.id == attempt.unit)?;
                let row = snapshot.steps.iter().find(|row| row.key == attempt.unit)?;
                let pinned = definition.actions.get(&step.action)?;
                let action: ActionName = step.action.parse().ok()?;
                if pinned.effect_class != EffectClass::Idempotent || row.output.is_some() {
                    return None;
                }
                let grant = self.policy.grant(&action.app, &action.action);
                let wall = step.timeout.map_or(grant.limits.wall, |timeout| timeout.min(grant.limits.wall));
                Some(EffectRecord {
                    key: effect_key(&snapshot.run.id, &step.id, row.key_retries),
                    step: step.id.clone(),
                    class: EffectClass::Idempotent,
                    state: EffectState::Executing,
                    input_hash: row.input_hash.clone().unwrap_or_default(),
                    component: pinned.digest.clone(),
                    generation: snapshot.run.generation,
                    dispatch: attempt.dispatch.clone(),
                    marked_at: attempt.started_at,
                    // A reclaimed attempt began again after it started, so its deadline counts from now.
                    deadline: self.ambient.clock.now().plus(wall),
                    visible_within_ms: u64::try_from(grant.visible_within().as_millis()).unwrap_or(u64::MAX),
                    output: None,
                    failure: None,
                    settled_at: None,
                })
            })
            .collect()
    }

    async fn output_schema(&self, definition: &Definition, action: &str) -> Result<Option<Value>, StoreError> {
        let (Some(pinned), Ok(name)) = (definition.actions.get(action), action.parse::<ActionName>()) else {
            return Ok(None);
        };
        let descriptor = self.registry.descriptor(&pinned.digest, &name.action).await?;
        Ok(descriptor.and_then(|descriptor| descriptor.output_schema))
    }

    /// The one step of a run whose effect is for a person to settle.
    async fn in_doubt(&self, run: &str, snapshot: &Snapshot) -> Result<String, ResolveRunError> {
        let mut steps: Vec<String> = snapshot
            .steps
            .iter()
            .filter(|step| step.state == crate::run::state::StepState::Blocked)
            .map(|step| step.key.clone())
            .collect();
        for effect in self.store.effects_in_doubt().await? {
            if effect.run == run && !steps.contains(&effect.effect.step) {
                steps.push(effect.effect.step);
            }
        }
        match steps.as_slice() {
            [step] => Ok(step.clone()),
            [] => Err(ResolveRunError::Which(format!("no step of run {run} is for a person to settle"))),
            steps => Err(ResolveRunError::Which(format!(
                "several steps of run {run} are for a person to settle: {}; name one with --step",
                steps.join(", ")
            ))),
        }
    }
}

/// The largest output that a person may give.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
