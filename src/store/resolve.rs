//! A person settles what only a person can: an effect in doubt, or a step that is blocked.
//!
//! It comes from outside: it raises the generation, which fences a worker in the middle, and it is recorded with who
//! and why. It never revives a run that has ended; there it settles the effect and no more.

use serde_json::{Value, json};

use super::db::{Tx, args};
use super::events::{append, event};
use super::runs::{self, RunRow, Standing};
use super::steps::{self, StepRow};
use super::{Store, StoreError, attempts, effects};
use crate::clock::Timestamp;
use crate::effect::{EffectState, effect_key};
use crate::journal::{EffectRecord, Failure, JournalError, NewEvent, StepEnd, codes, events};
use crate::run::state::{RunState, StepState};

/// What a person found out, and decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    /// The run.
    pub run: String,
    /// The key of the step.
    pub step: String,
    /// What became of it, or what to do.
    pub verdict: Verdict,
    /// The variable that the step's `saveAs` names (R13).
    pub save_as: Option<String>,
    /// Who says so.
    pub actor: String,
    /// Why.
    pub because: String,
    /// The clock of whoever records it.
    pub at: Timestamp,
}

/// What a person says of an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It happened; the canonical text of the output that the step gets.
    Succeeded {
        /// The output.
        output: String,
    },
    /// It did not happen, and the step and its run fail.
    Failed {
        /// Why.
        message: String,
    },
    /// It did not happen, and the step begins again under a new key (R1).
    RetryWithNewKey,
}

impl Verdict {
    fn as_str(&self) -> &'static str {
        match self {
            Verdict::Succeeded { .. } => "succeeded",
            Verdict::Failed { .. } => "failed",
            Verdict::RetryWithNewKey => "retry with a new key",
        }
    }
}

/// Why a person's word could not be taken. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// There is no such run.
    #[error("there is no run {run}")]
    NoSuchRun {
        /// The run.
        run: String,
    },
    /// There is no such step.
    #[error("run {run} has no step {step}")]
    NoSuchStep {
        /// The run.
        run: String,
        /// The step.
        step: String,
    },
    /// Nothing about the step is for a person to settle.
    #[error("step {step} of run {run} is {state}, and its effect is not in doubt: there is nothing to settle")]
    NotInDoubt {
        /// The run.
        run: String,
        /// The step.
        step: String,
        /// The step's state.
        state: StepState,
    },
    /// The effect can still appear at the other end, so that only *succeeded* is believed (R8).
    #[error(
        "the effect of step {step} can still appear at the other end until {until}: until then it can only be resolved as succeeded; look again then"
    )]
    TooEarly {
        /// The step.
        step: String,
        /// From when on every verdict is taken.
        until: Timestamp,
    },
    /// The store failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl From<StoreError> for ResolveError {
    fn from(error: StoreError) -> ResolveError {
        ResolveError::Journal(error.into())
    }
}

impl Store {
    /// Records what a person says of a step whose effect is in doubt, or that is blocked; the state in which it leaves
    /// the run. When it returns, the effect, the step, the run and the record of who and why are durable together.
    ///
    /// *Succeeded* completes the step and leaves the run active and nobody's, so that a resume goes on; where another
    /// run has come to occupy the scope meanwhile, it stays blocked until a resume finds the scope free. *Failed* fails
    /// step and run. A new key makes the step pending and the run active. Of a run that has ended, only the effect is
    /// settled.
    ///
    /// # Errors
    /// Where there is nothing to settle, or it is too early for any verdict but *succeeded*.
    pub async fn resolve_effect(&self, resolution: Resolution) -> Result<RunState, ResolveError> {
        self.database
            .write("settling an effect", move |tx| Box::pin(async move { resolve(tx, &resolution).await }))
            .await
    }
}

async fn resolve(tx: &mut Tx, resolution: &Resolution) -> Result<RunState, ResolveError> {
    let Resolution { run: id, step: key, verdict, at, .. } = resolution;
    let run = runs::find(tx, id).await?.ok_or_else(|| ResolveError::NoSuchRun { run: id.clone() })?;
    let step = steps::find(tx, id, key).await?;
    let step = step.ok_or_else(|| ResolveError::NoSuchStep { run: id.clone(), step: key.clone() })?;
    let effect = effects::find(tx, id, &effect_key(id, key, step.key_retries)).await?;
    let in_doubt = effect.filter(|effect| matches!(effect.state, EffectState::Executing | EffectState::Ambiguous));
    // Of a run that has ended, there is only the effect to settle.
    let settles_step = !run.state.is_terminal();
    if in_doubt.is_none() && !(settles_step && step.state == StepState::Blocked) {
        return Err(ResolveError::NotInDoubt { run: id.clone(), step: key.clone(), state: step.state });
    }
    if let Some(effect) = &in_doubt {
        let until = effect.believable_from();
        if !matches!(verdict, Verdict::Succeeded { .. }) && *at < until {
            return Err(ResolveError::TooEarly { step: key.clone(), until });
        }
    }

    let mut happened = vec![resolved_event(resolution, in_doubt.as_ref())];
    let generation = run.generation + 1;
    runs::raise_generation(tx, id).await?;
    if let Some(effect) = in_doubt {
        effects::put(tx, id, generation, &settled(effect, verdict, *at)).await?;
    }
    attempts::end_running(tx, id, Some(key), "resolved", *at, &mut happened).await?;
    match verdict {
        Verdict::RetryWithNewKey if run.state != RunState::Abandoned => use_new_key(tx, id, key).await?,
        Verdict::Failed { .. } => attempts::forget_begun(tx, id, key).await?,
        Verdict::Succeeded { .. } | Verdict::RetryWithNewKey => {}
    }
    let state = match settles_step {
        true => settle_step(tx, resolution, &run, &step, &mut happened).await?,
        false => run.state,
    };
    append(tx, id, *at, happened).await?;
    Ok(state)
}

fn resolved_event(resolution: &Resolution, effect: Option<&EffectRecord>) -> NewEvent {
    let mut data = json!({
        "verdict": resolution.verdict.as_str(),
        "actor": resolution.actor,
        "because": resolution.because,
    });
    if let (Some(effect), Value::Object(fields)) = (effect, &mut data) {
        fields.insert("key".to_owned(), effect.key.as_str().into());
        fields.insert("was".to_owned(), effect.state.as_str().into());
    }
    event(events::EFFECT_RESOLVED, Some(&resolution.step), data)
}

fn settled(effect: EffectRecord, verdict: &Verdict, at: Timestamp) -> EffectRecord {
    let (state, output, failure) = match verdict {
        Verdict::Succeeded { output } => (EffectState::Succeeded, Some(output.clone()), None),
        Verdict::Failed { message } => (EffectState::Failed, None, Some(failure(message))),
        Verdict::RetryWithNewKey => {
            (EffectState::Failed, None, Some(failure("a person had it begun again under a new key")))
        }
    };
    EffectRecord { state, output, failure, settled_at: Some(at), ..effect }
}

fn failure(message: &str) -> Failure {
    Failure::permanent(codes::ACTION_ERROR, message)
}

/// The next attempt has a key of its own, under which nothing has begun.
async fn use_new_key(tx: &mut Tx, run: &str, step: &str) -> Result<(), StoreError> {
    let sql = "UPDATE @steps SET key_retries = key_retries + 1 WHERE run_id = $1 AND key = $2";
    tx.execute(sql, args![run, step]).await?;
    attempts::forget_begun(tx, run, step).await
}

async fn settle_step(
    tx: &mut Tx,
    resolution: &Resolution,
    run: &RunRow,
    step: &StepRow,
    happened: &mut Vec<NewEvent>,
) -> Result<RunState, JournalError> {
    let (id, key, at) = (run.id.as_str(), step.key.as_str(), resolution.at);
    let state = match &resolution.verdict {
        Verdict::Failed { message } => {
            let failure = failure(message);
            steps::end(tx, id, key, &StepEnd::Failed { failure: failure.clone() }, at).await?;
            let data = json!({ "code": failure.code, "message": failure.message });
            happened.push(event(events::STEP_FAILED, Some(key), data.clone()));
            happened.push(event(events::RUN_FAILED, Some(key), data));
            let standing = Standing { failure: Some(&failure), ..Standing::only(RunState::Failed) };
            runs::change(tx, id, run.state, &standing, at).await?;
            return Ok(RunState::Failed);
        }
        Verdict::Succeeded { output } => {
            steps::end(tx, id, key, &StepEnd::Completed { output: output.clone() }, at).await?;
            if let Some(name) = &resolution.save_as {
                steps::set_variable(tx, id, name, output).await?;
            }
            happened.push(event(events::STEP_COMPLETED, Some(key), json!({ "resolved": true })));
            state_to_go_on(tx, run).await?
        }
        Verdict::RetryWithNewKey => {
            steps::begin_again(tx, id, key).await?;
            state_to_go_on(tx, run).await?
        }
    };
    runs::change(tx, id, run.state, &Standing::only(state), at).await?;
    Ok(state)
}

/// Active; or blocked still, where another run has come to occupy the scope: a resume applies that guard again (S1).
async fn state_to_go_on(tx: &mut Tx, run: &RunRow) -> Result<RunState, StoreError> {
    let stays = run.state == RunState::Blocked && runs::in_the_way(tx, run).await?.is_some();
    Ok(if stays { RunState::Blocked } else { RunState::Active })
}
