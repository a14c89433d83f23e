//! Steps of runs: their rows, and how a commit changes them (S5).
//!
//! Every change of state is checked against [`StepState::may_become`]. What the run does next is decided elsewhere.

use super::StoreError;
use super::db::{Row, Tx, args};
use super::events::event;
use crate::clock::Timestamp;
use crate::journal::{Dependency, Failure, JournalError, NewEvent, Skipped, StepEnd, events};
use crate::run::state::StepState;

/// One step of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRow {
    /// Unique in the run.
    pub key: String,
    /// From 0, in the order of the definition.
    pub position: u32,
    /// What a person reads; `None` where the definition has none.
    pub title: Option<String>,
    /// What a person is to do, for a manual step.
    pub instructions: Option<String>,
    /// The action that it performs, if it performs one.
    pub action: Option<String>,
    /// Where it stands.
    pub state: StepState,
    /// The canonical text of its input; stored with its first reservation and never changed (R2).
    pub input: Option<String>,
    /// Its SHA-256 digest.
    pub input_hash: Option<String>,
    /// When it was first reserved.
    pub reserved_at: Option<Timestamp>,
    /// How often it failed since the last resume.
    pub tries: u32,
    /// How often a person asked for a new effect key (R1).
    pub key_retries: u32,
    /// The canonical text of its output, once it is completed or skipped.
    pub output: Option<String>,
    /// Why it failed, is blocked, or waits to be tried again.
    pub failure: Option<Failure>,
    /// A person's notes.
    pub notes: Option<String>,
    /// What a person offered as evidence.
    pub evidence: Option<String>,
    /// A summary; kept when the step is reopened.
    pub summary: Option<String>,
    /// What it waits for.
    pub dependency: Option<Dependency>,
    /// Whether the same attempt goes on when it wakes.
    pub same_attempt: bool,
    /// When it was first reserved, or begun by a person.
    pub started_at: Option<Timestamp>,
    /// When it was completed or skipped, or failed.
    pub completed_at: Option<Timestamp>,
}

const COLUMNS: &str = "key, position, title, instructions, action, state, input, input_hash, reserved_at, tries, \
    key_retries, output, failure, notes, evidence, summary, dependency, same_attempt, started_at, completed_at";

fn from_row(row: &Row) -> Result<StepRow, StoreError> {
    Ok(StepRow {
        key: row.text("key")?,
        position: row.count("position")?,
        title: row.opt_text("title")?,
        instructions: row.opt_text("instructions")?,
        action: row.opt_text("action")?,
        state: row.word("state")?,
        input: row.opt_text("input")?,
        input_hash: row.opt_text("input_hash")?,
        reserved_at: row.opt_time("reserved_at")?,
        tries: row.count("tries")?,
        key_retries: row.count("key_retries")?,
        output: row.opt_text("output")?,
        failure: row.opt_json("failure")?,
        notes: row.opt_text("notes")?,
        evidence: row.opt_text("evidence")?,
        summary: row.opt_text("summary")?,
        dependency: row.opt_json("dependency")?,
        same_attempt: row.flag("same_attempt")?,
        started_at: row.opt_time("started_at")?,
        completed_at: row.opt_time("completed_at")?,
    })
}

/// The steps of `run`, in order.
pub(super) async fn of_run(tx: &mut Tx, run: &str) -> Result<Vec<StepRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM @steps WHERE run_id = $1 ORDER BY position");
    tx.fetch_all(&sql, args![run]).await?.iter().map(from_row).collect()
}

/// One step.
pub(super) async fn find(tx: &mut Tx, run: &str, key: &str) -> Result<Option<StepRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM @steps WHERE run_id = $1 AND key = $2");
    tx.fetch_optional(&sql, args![run, key]).await?.as_ref().map(from_row).transpose()
}

/// The key of the first step that is not behind the run: where it stands.
pub(super) async fn current(tx: &mut Tx, run: &str) -> Result<Option<String>, StoreError> {
    let sql = "SELECT key FROM @steps WHERE run_id = $1 AND state NOT IN ('completed', 'skipped') \
               ORDER BY position LIMIT 1";
    tx.fetch_optional(sql, args![run]).await?.map(|row| row.text("key")).transpose()
}

/// A step that must exist and be allowed to go to `to`.
pub(super) async fn find_to_become(tx: &mut Tx, run: &str, key: &str, to: StepState) -> Result<StepRow, JournalError> {
    let inconsistent = |what: String| JournalError::Inconsistent { run: run.to_owned(), what };
    let step = find(tx, run, key).await?.ok_or_else(|| inconsistent(format!("it has no step {key}")))?;
    match step.state.may_become(to) {
        true => Ok(step),
        false => Err(inconsistent(format!("step {key} is {} and cannot become {to}", step.state))),
    }
}

/// What a step's row says once it has stopped running.
struct Projection<'a> {
    state: StepState,
    output: Option<&'a str>,
    failure: Option<&'a Failure>,
    dependency: Option<&'a Dependency>,
    same_attempt: bool,
    counts_as_try: bool,
    completed_at: Option<Timestamp>,
}

impl<'a> Projection<'a> {
    fn of(end: &'a StepEnd, at: Timestamp) -> Projection<'a> {
        let nothing = Projection {
            state: StepState::Completed,
            output: None,
            failure: None,
            dependency: None,
            same_attempt: false,
            counts_as_try: false,
            completed_at: None,
        };
        match end {
            StepEnd::Completed { output } => Projection { output: Some(output), completed_at: Some(at), ..nothing },
            StepEnd::Failed { failure } => Projection {
                state: StepState::Failed,
                failure: Some(failure),
                counts_as_try: true,
                completed_at: Some(at),
                ..nothing
            },
            StepEnd::Blocked { failure } => Projection { state: StepState::Blocked, failure: Some(failure), ..nothing },
            StepEnd::Waiting { dependency, same_attempt, failure } => Projection {
                state: StepState::Waiting,
                failure: failure.as_ref(),
                dependency: Some(dependency),
                same_attempt: *same_attempt,
                counts_as_try: failure.is_some(),
                ..nothing
            },
        }
    }
}

/// Changes a step's state by how it ended. A failure counts as a try, also where the step waits after it.
pub(super) async fn end(tx: &mut Tx, run: &str, key: &str, end: &StepEnd, at: Timestamp) -> Result<(), JournalError> {
    let projection = Projection::of(end, at);
    find_to_become(tx, run, key, projection.state).await?;
    write(tx, run, key, &projection).await
}

/// Whether a step stands exactly as this end leaves it. Between two equal ends it ran, and did not.
pub(super) async fn has_ended(tx: &mut Tx, run: &str, key: &str, end: &StepEnd) -> Result<bool, StoreError> {
    let wanted = Projection::of(end, Timestamp(0));
    Ok(find(tx, run, key).await?.is_some_and(|step| {
        step.state == wanted.state
            && step.output.as_deref() == wanted.output
            && step.failure.as_ref() == wanted.failure
            && step.dependency.as_ref() == wanted.dependency
            && step.same_attempt == wanted.same_attempt
    }))
}

async fn write(tx: &mut Tx, run: &str, key: &str, projection: &Projection<'_>) -> Result<(), JournalError> {
    let failure = projection.failure.map(to_json).transpose()?;
    let dependency = projection.dependency.map(to_json).transpose()?;
    tx.execute(
        "UPDATE @steps SET state = $3, output = $4, failure = $5, dependency = $6, same_attempt = $7, \
         tries = tries + $8, completed_at = $9 WHERE run_id = $1 AND key = $2",
        args![
            run,
            key,
            projection.state.as_str(),
            projection.output,
            failure,
            dependency,
            projection.same_attempt,
            projection.counts_as_try,
            projection.completed_at,
        ],
    )
    .await?;
    Ok(())
}

/// Skips steps that their conditions skip: output and variable are null (R13).
pub(super) async fn skip(
    tx: &mut Tx,
    run: &str,
    skipped: &[Skipped],
    at: Timestamp,
    happened: &mut Vec<NewEvent>,
) -> Result<(), JournalError> {
    for Skipped { step, save_as } in skipped {
        find_to_become(tx, run, step, StepState::Skipped).await?;
        tx.execute(
            "UPDATE @steps SET state = 'skipped', output = 'null', completed_at = $3 WHERE run_id = $1 AND key = $2",
            args![run, step, at],
        )
        .await?;
        if let Some(name) = save_as {
            set_variable(tx, run, name, "null").await?;
        }
        happened.push(event(events::STEP_SKIPPED, Some(step), serde_json::json!({})));
    }
    Ok(())
}

/// Sets a variable of the run to a canonical text.
pub(super) async fn set_variable(tx: &mut Tx, run: &str, name: &str, value: &str) -> Result<(), StoreError> {
    tx.execute(
        "INSERT INTO @variables (run_id, name, value) VALUES ($1, $2, $3) \
         ON CONFLICT (run_id, name) DO UPDATE SET value = excluded.value",
        args![run, name, value],
    )
    .await?;
    Ok(())
}

/// The canonical text of a value of ours.
pub(super) fn to_json<T: serde::Serialize>(value: &T) -> Result<String, StoreError> {
    let value = serde_json::to_value(value);
    let value = value.map_err(|error| StoreError::failed("writing a value as JSON", error.to_string()))?;
    Ok(crate::json::canonical(&value))
}

/// Makes a step pending again, as if it had not been tried.
pub(super) async fn begin_again(tx: &mut Tx, run: &str, key: &str) -> Result<(), JournalError> {
    find_to_become(tx, run, key, StepState::Pending).await?;
    tx.execute(
        "UPDATE @steps SET state = 'pending', failure = NULL, dependency = NULL, same_attempt = 0, tries = 0, \
         completed_at = NULL WHERE run_id = $1 AND key = $2",
        args![run, key],
    )
    .await?;
    Ok(())
}
