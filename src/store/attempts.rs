//! Attempts: reserving one, reclaiming one, finishing it once (S8, S9).
//!
//! [`reserve`] is the one way to an attempt, whether it rides on a claim, a wake or a commit. Who may call it, and at
//! which generation, its callers have checked.

use sha2::{Digest, Sha256};

use super::db::{Row, Tx, args};
use super::events::event_once;
use super::steps::{self, to_json};
use super::{Store, StoreError};
use crate::clock::Timestamp;
use crate::journal::{AttemptEnd, AttemptRecord, JournalError, NewEvent, RequestEvidence, Reservation, events};
use crate::json::replace_nul;
use crate::run::state::StepState;

/// Whether an attempt goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptState {
    /// It was reserved and has not finished.
    Running,
    /// It ended; its record is stored.
    Finished,
}

impl std::str::FromStr for AttemptState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "running" => Ok(AttemptState::Running),
            "finished" => Ok(AttemptState::Finished),
            _ => Err(format!("`{text}` is not the state of an attempt")),
        }
    }
}

/// One attempt of a unit.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptRow {
    /// The step's key, or that of an item or a gate.
    pub unit: String,
    /// From 1.
    pub number: u32,
    /// Its dispatch id.
    pub dispatch: String,
    /// The generation that reserved or reclaimed it last.
    pub generation: i64,
    /// Who holds it, or held it.
    pub holder: Option<String>,
    /// Until when its holder's claim lasted, as far as it was renewed.
    pub claim_expires_at: Option<Timestamp>,
    /// Whether it goes on.
    pub state: AttemptState,
    /// How it ended.
    pub outcome: Option<String>,
    /// Why it failed, if it did.
    pub reason: Option<String>,
    /// What it cost and did; `None` while it runs, and where it was lost.
    pub record: Option<AttemptRecord>,
    /// Whether it may have begun an effect that is not settled.
    pub may_have_begun: bool,
    /// Whether a holder of it was lost: what that one did is in nobody's record.
    pub lost: bool,
    /// When it was reserved.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

/// An attempt that is reserved for whoever asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedAttempt {
    /// The step.
    pub step: String,
    /// From 1.
    pub number: u32,
    /// Its dispatch id; the reservation's where the attempt is new.
    pub dispatch: String,
    /// To be shown when it finishes.
    pub claim_token: String,
    /// The canonical text of the step's input; the one stored first wins over the reservation's (R2).
    pub input: String,
    /// Its SHA-256 digest.
    pub input_hash: String,
    /// When the step was first reserved.
    pub reserved_at: Timestamp,
    /// Whether the attempt was running already, and its holder lost.
    pub reclaimed: bool,
    /// How often the step failed since the last resume.
    pub tries: u32,
    /// How often a person asked for a new effect key (R1).
    pub key_retries: u32,
    /// The start of the step's earliest attempt that may have begun an effect under the present key: one that was still
    /// running when it was reclaimed, or one that let an effectful request out. `None`: nothing has begun (R15).
    pub begun_at: Option<Timestamp>,
}

impl Store {
    /// Every attempt of `run`, by unit and number. Reads only.
    pub async fn attempts(&self, run: &str) -> Result<Vec<AttemptRow>, StoreError> {
        let mut tx = self.database.read("reading attempts").await?;
        of_run(&mut tx, run).await
    }
}

/// Every attempt of `run`, by unit and number.
pub(super) async fn of_run(tx: &mut Tx, run: &str) -> Result<Vec<AttemptRow>, StoreError> {
    let sql = "SELECT unit, number, dispatch, generation, holder, claim_expires_at, state, outcome, reason, record, \
               may_have_begun, lost, started_at, finished_at FROM @attempts WHERE run_id = $1 ORDER BY unit, number";
    tx.fetch_all(sql, args![run]).await?.iter().map(from_row).collect()
}

fn from_row(row: &Row) -> Result<AttemptRow, StoreError> {
    Ok(AttemptRow {
        unit: row.text("unit")?,
        number: row.count("number")?,
        dispatch: row.text("dispatch")?,
        generation: row.int("generation")?,
        holder: row.opt_text("holder")?,
        claim_expires_at: row.opt_time("claim_expires_at")?,
        state: row.word("state")?,
        outcome: row.opt_text("outcome")?,
        reason: row.opt_text("reason")?,
        record: row.opt_json("record")?,
        may_have_begun: row.int("may_have_begun")? != 0,
        lost: row.int("lost")? != 0,
        started_at: row.time("started_at")?,
        finished_at: row.opt_time("finished_at")?,
    })
}

/// Whoever performs a run: what a reservation is made for.
#[derive(Debug, Clone)]
pub(super) struct Claimant {
    pub(super) run: String,
    pub(super) generation: i64,
    pub(super) holder: Option<String>,
    pub(super) claim_expires_at: Option<Timestamp>,
}

/// Reserves an attempt of a step of an active run, with the step's projection and its started event. A running one is
/// reclaimed as it is, with a new claim token and no second event.
pub(super) async fn reserve(
    tx: &mut Tx,
    claimant: &Claimant,
    reservation: &Reservation,
    at: Timestamp,
    happened: &mut Vec<NewEvent>,
) -> Result<ReservedAttempt, JournalError> {
    let Claimant { run, .. } = claimant;
    let step = steps::find_to_become(tx, run, &reservation.step, StepState::Running).await?;
    let (input, input_hash) = match (step.input, step.input_hash) {
        (Some(input), Some(hash)) => (input, hash),
        _ => (reservation.input.clone(), hex::encode(Sha256::digest(reservation.input.as_bytes()))),
    };
    let reserved_at = step.reserved_at.unwrap_or(at);
    let begun_at = begun_at(tx, run, &reservation.step).await?;
    let running = running(tx, run, &reservation.step).await?;
    let (number, dispatch) = match &running {
        Some(running) => {
            reclaim(tx, claimant, running, reservation, at).await?;
            (running.number, running.dispatch.clone())
        }
        None => (start(tx, claimant, reservation, at, happened).await?, reservation.dispatch.clone()),
    };
    // What an earlier attempt left on the step goes: it is this one's now.
    tx.execute(
        "UPDATE @steps SET state = 'running', input = $3, input_hash = $4, reserved_at = $5, output = NULL, \
         failure = NULL, dependency = NULL, same_attempt = 0, started_at = coalesce(started_at, $6), \
         completed_at = NULL WHERE run_id = $1 AND key = $2",
        args![run, &reservation.step, &input, &input_hash, reserved_at, at],
    )
    .await?;
    Ok(ReservedAttempt {
        step: reservation.step.clone(),
        number,
        dispatch,
        claim_token: reservation.claim_token.clone(),
        input,
        input_hash,
        reserved_at,
        reclaimed: running.is_some(),
        tries: step.tries,
        key_retries: step.key_retries,
        begun_at,
    })
}

struct RunningAttempt {
    number: u32,
    dispatch: String,
    generation: i64,
    holder: Option<String>,
    claim_expires_at: Option<Timestamp>,
}

async fn running(tx: &mut Tx, run: &str, unit: &str) -> Result<Option<RunningAttempt>, StoreError> {
    let sql = "SELECT number, dispatch, generation, holder, claim_expires_at FROM @attempts \
               WHERE run_id = $1 AND unit = $2 AND state = 'running'";
    let Some(row) = tx.fetch_optional(sql, args![run, unit]).await? else { return Ok(None) };
    Ok(Some(RunningAttempt {
        number: row.count("number")?,
        dispatch: row.text("dispatch")?,
        generation: row.int("generation")?,
        holder: row.opt_text("holder")?,
        claim_expires_at: row.opt_time("claim_expires_at")?,
    }))
}

async fn begun_at(tx: &mut Tx, run: &str, unit: &str) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT min(started_at) AS begun_at FROM @attempts \
               WHERE run_id = $1 AND unit = $2 AND (state = 'running' OR may_have_begun = 1)";
    tx.fetch_optional(sql, args![run, unit]).await?.map_or(Ok(None), |row| row.opt_time("begun_at"))
}

async fn reclaim(
    tx: &mut Tx,
    claimant: &Claimant,
    running: &RunningAttempt,
    reservation: &Reservation,
    at: Timestamp,
) -> Result<(), JournalError> {
    let own = running.holder == claimant.holder;
    let later = claimant.generation > running.generation;
    let expired = running.claim_expires_at.is_none_or(|expiry| expiry <= at);
    if !(own || later || expired) {
        let what = format!(
            "attempt {} of step {} is held by {} until {}",
            running.number,
            reservation.step,
            running.holder.as_deref().unwrap_or("nobody"),
            running.claim_expires_at.unwrap_or(at),
        );
        return Err(JournalError::Inconsistent { run: claimant.run.clone(), what });
    }
    tx.execute(
        // What its holder did before it was lost, nobody will ever say.
        "UPDATE @attempts SET claim_token = $4, generation = $5, holder = $6, claim_expires_at = $7, \
         may_have_begun = 1, lost = 1 \
         WHERE run_id = $1 AND unit = $2 AND number = $3",
        args![
            &claimant.run,
            &reservation.step,
            i64::from(running.number),
            &reservation.claim_token,
            claimant.generation,
            claimant.holder.as_deref(),
            claimant.claim_expires_at,
        ],
    )
    .await?;
    Ok(())
}

async fn start(
    tx: &mut Tx,
    claimant: &Claimant,
    reservation: &Reservation,
    at: Timestamp,
    happened: &mut Vec<NewEvent>,
) -> Result<u32, JournalError> {
    let Claimant { run, generation, holder, claim_expires_at } = claimant;
    let Reservation { step, dispatch, claim_token, .. } = reservation;
    let row = tx
        .fetch_optional(
            "INSERT INTO @attempts (run_id, unit, number, dispatch, claim_token, generation, holder, claim_expires_at, \
             state, may_have_begun, lost, started_at) \
             SELECT $1, $2, coalesce(max(number), 0) + 1, $3, $4, $5, $6, $7, 'running', 0, 0, $8 \
             FROM @attempts WHERE run_id = $1 AND unit = $2 RETURNING number",
            args![run, step, dispatch, claim_token, *generation, holder.as_deref(), *claim_expires_at, at],
        )
        .await?;
    let number = row.ok_or_else(|| tx.corrupt("a new attempt has no number"))?.count("number")?;
    let data = serde_json::json!({ "attempt": number, "dispatch": dispatch, "generation": generation });
    happened.push(event_once(events::ATTEMPT_STARTED, Some(step), data, format!("attempt.started:{dispatch}")));
    Ok(number)
}

/// Whether this very finish was committed before: its dispatch has finished, with this claim token.
pub(super) async fn is_finished_by(tx: &mut Tx, run: &str, end: &AttemptEnd) -> Result<bool, StoreError> {
    let sql = "SELECT 1 AS found FROM @attempts \
               WHERE run_id = $1 AND dispatch = $2 AND claim_token = $3 AND state = 'finished'";
    Ok(tx.fetch_optional(sql, args![run, &end.dispatch, &end.claim_token]).await?.is_some())
}

/// Whether this very reservation was committed before: its step has an attempt with this claim token.
pub(super) async fn is_reserved_by(tx: &mut Tx, run: &str, reservation: &Reservation) -> Result<bool, StoreError> {
    let sql = "SELECT 1 AS found FROM @attempts WHERE run_id = $1 AND unit = $2 AND claim_token = $3 LIMIT 1";
    Ok(tx.fetch_optional(sql, args![run, &reservation.step, &reservation.claim_token]).await?.is_some())
}

/// Finishes an attempt: by its dispatch id and claim token, while it runs. `unit` is the step that the same commit
/// changes.
pub(super) async fn finish(
    tx: &mut Tx,
    run: &str,
    end: &AttemptEnd,
    unit: Option<&str>,
    at: Timestamp,
    happened: &mut Vec<NewEvent>,
) -> Result<(), JournalError> {
    let inconsistent = |what: String| JournalError::Inconsistent { run: run.to_owned(), what };
    let reason = end.reason.as_deref().map(replace_nul);
    let row = tx
        .fetch_optional(
            "UPDATE @attempts SET state = 'finished', outcome = $4, reason = $5, record = $6, \
             may_have_begun = max(may_have_begun, $7), \
             finished_at = $8 \
             WHERE run_id = $1 AND dispatch = $2 AND claim_token = $3 AND state = 'running' RETURNING unit, number",
            args![
                run,
                &end.dispatch,
                &end.claim_token,
                &end.outcome,
                reason.as_deref(),
                to_json(&end.record)?,
                end.record.requests.iter().any(RequestEvidence::is_effect),
                at,
            ],
        )
        .await?;
    let row = row.ok_or_else(|| {
        inconsistent(format!("dispatch {} does not run under the claim token that its finish shows", end.dispatch))
    })?;
    let (of, number) = (row.text("unit")?, row.count::<u32>("number")?);
    if unit.is_some_and(|unit| unit != of) {
        let what = format!("dispatch {} is an attempt of step {of}, and its finish changes another", end.dispatch);
        return Err(inconsistent(what));
    }
    happened.push(finished_event(&of, number, &end.dispatch, &end.outcome, reason.as_deref()));
    Ok(())
}

/// Ends the running attempts of a run (of one unit, or of all) without a record, because somebody outside decided so.
/// Their claim tokens go, so that a late finish finds nothing.
pub(super) async fn end_running(
    tx: &mut Tx,
    run: &str,
    unit: Option<&str>,
    outcome: &str,
    at: Timestamp,
    happened: &mut Vec<NewEvent>,
) -> Result<(), StoreError> {
    let rows = tx
        .fetch_all(
            "UPDATE @attempts SET state = 'finished', outcome = $3, claim_token = NULL, may_have_begun = 1, lost = 1, \
             finished_at = $4 \
             WHERE run_id = $1 AND state = 'running' AND unit = coalesce($2, unit) RETURNING unit, number, dispatch",
            args![run, unit, outcome, at],
        )
        .await?;
    for row in rows {
        let (unit, number, dispatch) = (row.text("unit")?, row.count::<u32>("number")?, row.text("dispatch")?);
        happened.push(finished_event(&unit, number, &dispatch, outcome, None));
    }
    Ok(())
}

/// Nothing has begun, whatever earlier attempts did: the effect is settled as failed, or the next one has another key.
pub(super) async fn forget_begun(tx: &mut Tx, run: &str, unit: &str) -> Result<(), StoreError> {
    tx.execute("UPDATE @attempts SET may_have_begun = 0, lost = 0 WHERE run_id = $1 AND unit = $2", args![run, unit])
        .await?;
    Ok(())
}

fn finished_event(unit: &str, number: u32, dispatch: &str, outcome: &str, reason: Option<&str>) -> NewEvent {
    let data = match reason {
        Some(reason) => {
            serde_json::json!({ "attempt": number, "dispatch": dispatch, "outcome": outcome, "reason": reason })
        }
        None => serde_json::json!({ "attempt": number, "dispatch": dispatch, "outcome": outcome }),
    };
    event_once(events::ATTEMPT_FINISHED, Some(unit), data, format!("attempt.finished:{dispatch}"))
}
