//! The journal: what a performer writes, whole or not at all ([`Journal`]).
//!
//! [`apply`] reads in the order that the trait promises: fence, reads, charge, effect, refund, documents, attempt,
//! step, variable, what the run does next, events. The log of events keeps the order in which things happened: what the
//! budget and the attempt did, then the performer's own events, then what the run does next.

use futures::future::BoxFuture;
use serde_json::json;

use super::attempts::{self, Claimant};
use super::claims::fenced;
use super::db::{Tx, args};
use super::events::{append, event};
use super::runs::{self, Standing};
use super::{Store, StoreError, budgets, documents, effects, steps};
use crate::budget::Exceeded;
use crate::clock::Timestamp;
use crate::effect::EffectState;
use crate::journal::{
    Commit, Committed, EffectRecord, Failure, Journal, JournalError, NewEvent, Skipped, StepEnd, Then, events,
};
use crate::run::state::{RunState, StepState};

impl Journal for Store {
    fn effect<'a>(&'a self, run: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<EffectRecord>, JournalError>> {
        Box::pin(async move { Ok(self.read_effect(run, key).await?) })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, JournalError>> {
        Box::pin(async move {
            let job =
                self.database.write("committing a step", move |tx| Box::pin(async move { apply(tx, &commit).await }));
            match job.await {
                Ok(()) => Ok(Committed::Done),
                Err(Undone::Conflict) => Ok(Committed::Conflict),
                Err(Undone::Exceeded(exceeded)) => Ok(Committed::Exceeded(exceeded)),
                Err(Undone::Failed(error)) => Err(error),
            }
        })
    }

    fn document<'a>(&'a self, app: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<String>, JournalError>> {
        Box::pin(async move { Ok(self.read_document(app, key).await?) })
    }

    fn documents<'a>(
        &'a self,
        app: &'a str,
        prefix: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, String)>, JournalError>> {
        Box::pin(async move { Ok(self.read_documents(app, prefix, limit).await?) })
    }
}

/// Why a commit was rolled back.
enum Undone {
    Conflict,
    Exceeded(Exceeded),
    Failed(JournalError),
}

impl From<StoreError> for Undone {
    fn from(error: StoreError) -> Undone {
        Undone::Failed(error.into())
    }
}

impl From<JournalError> for Undone {
    fn from(error: JournalError) -> Undone {
        Undone::Failed(error)
    }
}

async fn apply(tx: &mut Tx, commit: &Commit) -> Result<(), Undone> {
    if has_ended_already(tx, commit).await? {
        return Ok(());
    }
    let (run, at) = (commit.fence.run.as_str(), commit.at);
    let claimant = pass_fence(tx, commit).await?;
    if has_begun_already(tx, commit).await? {
        return Ok(());
    }
    if !documents::reads_hold(tx, &commit.reads).await? {
        return Err(Undone::Conflict);
    }
    let mut happened = Vec::new();
    if let Some(charge) = &commit.charge {
        budgets::charge(tx, run, charge, at, &mut happened).await?.map_err(Undone::Exceeded)?;
    }
    if let Some(effect) = &commit.effect {
        effects::put(tx, run, commit.fence.generation, effect).await?;
    }
    if let Some(key) = &commit.refund {
        budgets::refund(tx, run, key, at, &mut happened).await?;
    }
    documents::write(tx, &commit.writes).await?;
    let step = commit.step.as_ref().map(|(key, _)| key.as_str());
    if let Some(end) = &commit.attempt {
        attempts::finish(tx, run, end, step, at, &mut happened).await?;
    }
    if let Some(effect) = commit.effect.as_ref().filter(|effect| effect.state == EffectState::Failed) {
        attempts::forget_begun(tx, run, &effect.step).await?;
    }
    if let Some((key, end)) = &commit.step {
        steps::end(tx, run, key, end, at).await?;
    }
    if let Some((name, value)) = &commit.variable {
        steps::set_variable(tx, run, name, value).await?;
    }
    happened.extend(commit.events.iter().cloned());
    if let Some(then) = &commit.then {
        go_on(tx, &claimant, then, at, &mut happened).await?;
    }
    append(tx, run, at, happened).await?;
    Ok(())
}

/// Zero rows at this generation, or a run that is not active: fenced (R14).
async fn pass_fence(tx: &mut Tx, commit: &Commit) -> Result<Claimant, JournalError> {
    let fence = &commit.fence;
    let sql = "UPDATE @runs SET updated_at = $3 WHERE id = $1 AND generation = $2 AND state = 'active' \
               RETURNING lease_holder, lease_expires_at";
    let row = tx.fetch_optional(sql, args![&fence.run, fence.generation, commit.at]).await?;
    let row = row.ok_or_else(|| fenced(fence))?;
    Ok(Claimant {
        run: fence.run.clone(),
        generation: fence.generation,
        holder: row.opt_text("lease_holder")?,
        claim_expires_at: row.opt_time("lease_expires_at")?,
    })
}

async fn go_on(
    tx: &mut Tx,
    claimant: &Claimant,
    then: &Then,
    at: Timestamp,
    happened: &mut Vec<NewEvent>,
) -> Result<(), JournalError> {
    let run = claimant.run.as_str();
    let (standing, says) = match then {
        Then::Reserve { skipped, next } => {
            steps::skip(tx, run, skipped, at, happened).await?;
            attempts::reserve(tx, claimant, next, at, happened).await?;
            return Ok(());
        }
        Then::Complete { skipped, outputs } => {
            steps::skip(tx, run, skipped, at, happened).await?;
            let unfinished = steps::current(tx, run).await?;
            if let Some(step) = unfinished {
                let what = format!("it was to complete, and its step {step} has not ended");
                return Err(JournalError::Inconsistent { run: run.to_owned(), what });
            }
            let standing = Standing { outputs: Some(outputs), ..Standing::only(RunState::Completed) };
            (standing, event(events::RUN_COMPLETED, None, json!({})))
        }
        Then::Fail { skipped, step, failure } => {
            fail_steps(tx, run, skipped, step.as_deref(), failure, at, happened).await?;
            let data = json!({ "code": failure.code, "message": failure.message });
            let standing = Standing { failure: Some(failure), ..Standing::only(RunState::Failed) };
            (standing, event(events::RUN_FAILED, step.as_deref(), data))
        }
        Then::Wait { until } => {
            let standing = Standing { wake_at: *until, ..Standing::only(RunState::Waiting) };
            (standing, event(events::RUN_WAITING, None, json!({ "until": until })))
        }
        Then::Block => (Standing::only(RunState::Blocked), event(events::RUN_BLOCKED, None, json!({}))),
    };
    runs::change(tx, run, RunState::Active, &standing, at).await?;
    happened.push(says);
    Ok(())
}

/// The step of a run's failure is failed with it, unless this commit failed it already: one whose input does not
/// evaluate fails without an attempt (R2).
async fn fail_steps(
    tx: &mut Tx,
    run: &str,
    skipped: &[Skipped],
    step: Option<&str>,
    failure: &Failure,
    at: Timestamp,
    happened: &mut Vec<NewEvent>,
) -> Result<(), JournalError> {
    steps::skip(tx, run, skipped, at, happened).await?;
    let Some(key) = step else { return Ok(()) };
    if steps::find(tx, run, key).await?.is_some_and(|step| step.state == StepState::Failed) {
        return Ok(());
    }
    let data = json!({ "code": failure.code, "message": failure.message });
    happened.push(event(events::STEP_FAILED, Some(key), data));
    steps::end(tx, run, key, &StepEnd::Failed { failure: failure.clone() }, at).await
}

/// Whether this very commit is durable already, and its acknowledgement was lost: one that ends something. What has
/// ended stays ended, whoever has the run by now, so that this is asked before the fence.
///
/// It is recognised by what it alone can have written: an attempt finished under its claim token, the next step
/// reserved under its claim token, a step or a run that stands exactly as it would leave them. Of a commit that writes
/// only documents, a refund, a variable or events, all but its events without an idempotency key is the same the second
/// time anyway.
async fn has_ended_already(tx: &mut Tx, commit: &Commit) -> Result<bool, JournalError> {
    let run = commit.fence.run.as_str();
    Ok(match (&commit.attempt, &commit.step, &commit.then) {
        (Some(end), _, _) => attempts::is_finished_by(tx, run, end).await?,
        (None, Some((key, end)), _) => steps::has_ended(tx, run, key, end).await?,
        (None, None, Some(then)) => went_on(tx, commit, then).await?,
        (None, None, None) => false,
    })
}

/// The same of a commit that only begins something, by a charge under its key or a mark that is its own. The performer
/// acts on the answer, so that this is asked after the fence.
async fn has_begun_already(tx: &mut Tx, commit: &Commit) -> Result<bool, JournalError> {
    if commit.attempt.is_some() || commit.step.is_some() || commit.then.is_some() {
        return Ok(false);
    }
    let run = commit.fence.run.as_str();
    match (&commit.charge, &commit.effect) {
        (Some(charge), _) if !charge.items.is_empty() => Ok(budgets::is_charged(tx, run, &charge.key).await?),
        (_, Some(effect)) => {
            let as_written = EffectRecord { generation: commit.fence.generation, ..effect.clone() };
            Ok(effects::find(tx, run, &effect.key).await?.is_some_and(|stored| stored == as_written))
        }
        _ => Ok(false),
    }
}

async fn went_on(tx: &mut Tx, commit: &Commit, then: &Then) -> Result<bool, StoreError> {
    let state = match then {
        Then::Reserve { next, .. } => return attempts::is_reserved_by(tx, &commit.fence.run, next).await,
        Then::Complete { .. } => RunState::Completed,
        Then::Fail { .. } => RunState::Failed,
        Then::Wait { .. } => RunState::Waiting,
        Then::Block => RunState::Blocked,
    };
    let run = runs::find(tx, &commit.fence.run).await?;
    Ok(run.is_some_and(|run| {
        run.generation == commit.fence.generation && run.state == state && run.updated_at == commit.at
    }))
}
