//! What a person settles: an effect in doubt, or a run that is no longer wanted.

use crate::host::Host;
use crate::journal::JournalError;
use crate::json;
use crate::run::state::RunState;
use crate::store::{Resolution, ResolveError, StoreError, Verdict as StoreVerdict};
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
        self.store.abandon(run, actor, because, self.ambient.clock.now()).await
    }

    /// The one step of a run whose effect is for a person to settle.
    async fn in_doubt(&self, run: &str, snapshot: &crate::store::Snapshot) -> Result<String, ResolveRunError> {
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
