//! Runs as they are read: one row, a whole snapshot, who occupies a scope; and how a run changes its state.
//!
//! Publishing is `publish`'s, claiming is `claims`', listing is `listing`'s.

use std::collections::BTreeMap;

use super::attempts::{self, AttemptRow};
use super::db::{Row, Tx, args};
use super::steps::{self, StepRow, to_json};
use super::{Store, StoreError};
use crate::clock::Timestamp;
use crate::journal::{Failure, JournalError};
use crate::run::state::RunState;

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    /// Its id.
    pub id: String,
    /// The root of its tree; its own id where it is the root.
    pub root_id: String,
    /// The run that spawned it; `None` for a root.
    pub parent_id: Option<String>,
    /// Its workflow's ref.
    pub workflow_ref: String,
    /// The frozen definition it performs.
    pub definition_hash: String,
    /// What a person reads.
    pub title: String,
    /// The key of its first step; `None` where it has no step.
    pub entry_step: Option<String>,
    /// Where at most one top-level run of its workflow may be under way; `None`: anywhere, any number.
    pub scope: Option<String>,
    /// The canonical text of its parameters.
    pub params: String,
    /// The canonical text of its labels.
    pub labels: String,
    /// Whether it was started in spite of the guard on its scope.
    pub forced: bool,
    /// The key under which it was started once.
    pub start_key: Option<String>,
    /// Where it stands.
    pub state: RunState,
    /// The fencing token: raised by every claim, and from outside.
    pub generation: i64,
    /// Who holds it.
    pub lease_holder: Option<String>,
    /// Until when, unless renewed.
    pub lease_expires_at: Option<Timestamp>,
    /// When a waiting run is to be looked at again; `None`: when its dependency is satisfied.
    pub wake_at: Option<Timestamp>,
    /// The canonical text of its outputs, once it is completed.
    pub outputs: Option<String>,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// The number of its last event.
    pub event_seq: i64,
    /// When it was published.
    pub created_at: Timestamp,
    /// When it changed last; renewing a lease is no change.
    pub updated_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

/// A run with everything that its performer needs, all of one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The run.
    pub run: RunRow,
    /// The text of its frozen definition.
    pub definition: String,
    /// Its steps, in order.
    pub steps: Vec<StepRow>,
    /// Names and canonical texts of its variables.
    pub variables: BTreeMap<String, String>,
    /// Its attempts, by unit and number.
    pub attempts: Vec<AttemptRow>,
}

/// The run that occupies a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    /// Its id.
    pub run: String,
    /// Its workflow's ref.
    pub workflow_ref: String,
    /// Its title.
    pub title: String,
    /// The scope.
    pub scope: String,
    /// Active or waiting; or blocked, which is reported and refuses nobody.
    pub state: RunState,
    /// The key of the step at which it stands.
    pub step: Option<String>,
}

impl Store {
    /// One run. Reads only.
    pub async fn run(&self, id: &str) -> Result<Option<RunRow>, StoreError> {
        let mut tx = self.database.read("reading a run").await?;
        find(&mut tx, id).await
    }

    /// A run with its definition, steps, variables and attempts, all of one moment. Reads only.
    pub async fn snapshot(&self, id: &str) -> Result<Option<Snapshot>, StoreError> {
        let mut tx = self.database.read("reading a run").await?;
        let Some(run) = find(&mut tx, id).await? else { return Ok(None) };
        let sql = "SELECT body FROM @definitions WHERE hash = $1";
        let definition = tx.fetch_optional(sql, args![&run.definition_hash]).await?;
        let definition = definition.ok_or_else(|| tx.corrupt(format!("run {id} has no definition")))?.text("body")?;
        let sql = "SELECT name, value FROM @variables WHERE run_id = $1";
        let variables = tx.fetch_all(sql, args![id]).await?;
        let variables = variables.iter().map(|row| Ok((row.text("name")?, row.text("value")?)));
        Ok(Some(Snapshot {
            definition,
            variables: variables.collect::<Result<_, StoreError>>()?,
            steps: steps::of_run(&mut tx, id).await?,
            attempts: attempts::of_run(&mut tx, id).await?,
            run,
        }))
    }

    /// The run that occupies `scope` for a workflow: the one that is active or waiting, else the latest blocked one,
    /// which is reported and refuses nobody (S2). Child runs never answer. Reads only.
    pub async fn occupant(&self, workflow_ref: &str, scope: &str) -> Result<Option<Occupant>, StoreError> {
        let mut tx = self.database.read("looking for the run that occupies a scope").await?;
        match under_way(&mut tx, workflow_ref, scope, "").await? {
            Some(occupant) => Ok(Some(occupant)),
            None => {
                let sql = "SELECT id, ref, title, scope, state FROM @runs WHERE ref = $1 AND scope = $2 \
                           AND parent_id IS NULL AND state = 'blocked' ORDER BY updated_at DESC, id LIMIT 1";
                let row = tx.fetch_optional(sql, args![workflow_ref, scope]).await?;
                occupant(&mut tx, row).await
            }
        }
    }
}

/// The columns of a [`RunRow`].
pub(super) const COLUMNS: &str = "id, root_id, parent_id, ref, definition_hash, title, entry_step, scope, params, labels, \
    forced, start_key, state, generation, lease_holder, lease_expires_at, wake_at, outputs, failure, event_seq, created_at, \
    updated_at, finished_at";

/// Reads a row of [`COLUMNS`].
pub(super) fn from_row(row: &Row) -> Result<RunRow, StoreError> {
    Ok(RunRow {
        id: row.text("id")?,
        root_id: row.text("root_id")?,
        parent_id: row.opt_text("parent_id")?,
        workflow_ref: row.text("ref")?,
        definition_hash: row.text("definition_hash")?,
        title: row.text("title")?,
        entry_step: row.opt_text("entry_step")?,
        scope: row.opt_text("scope")?,
        params: row.text("params")?,
        labels: row.text("labels")?,
        forced: row.flag("forced")?,
        start_key: row.opt_text("start_key")?,
        state: row.word("state")?,
        generation: row.int("generation")?,
        lease_holder: row.opt_text("lease_holder")?,
        lease_expires_at: row.opt_time("lease_expires_at")?,
        wake_at: row.opt_time("wake_at")?,
        outputs: row.opt_text("outputs")?,
        failure: row.opt_json("failure")?,
        event_seq: row.int("event_seq")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
        finished_at: row.opt_time("finished_at")?,
    })
}

/// One run.
pub(super) async fn find(tx: &mut Tx, id: &str) -> Result<Option<RunRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM @runs WHERE id = $1");
    tx.fetch_optional(&sql, args![id]).await?.as_ref().map(from_row).transpose()
}

/// The top-level run of a workflow, other than `except`, that is active or waiting in a scope. Forced ones count: they
/// are exempt from being refused, not from being there.
pub(super) async fn under_way(
    tx: &mut Tx,
    workflow_ref: &str,
    scope: &str,
    except: &str,
) -> Result<Option<Occupant>, StoreError> {
    let sql = "SELECT id, ref, title, scope, state FROM @runs WHERE ref = $1 AND scope = $2 AND id <> $3 \
               AND parent_id IS NULL AND state IN ('active', 'waiting') ORDER BY updated_at DESC, id LIMIT 1";
    let row = tx.fetch_optional(sql, args![workflow_ref, scope, except]).await?;
    occupant(tx, row).await
}

async fn occupant(tx: &mut Tx, row: Option<Row>) -> Result<Option<Occupant>, StoreError> {
    let Some(row) = row else { return Ok(None) };
    let run = row.text("id")?;
    Ok(Some(Occupant {
        step: steps::current(tx, &run).await?,
        run,
        workflow_ref: row.text("ref")?,
        title: row.text("title")?,
        scope: row.text("scope")?,
        state: row.word("state")?,
    }))
}

/// The run that would stand in the way of `run` being under way again, by the guard on scopes (S1).
pub(super) async fn in_the_way(tx: &mut Tx, run: &RunRow) -> Result<Option<Occupant>, StoreError> {
    match &run.scope {
        Some(scope) if !run.forced && run.parent_id.is_none() => under_way(tx, &run.workflow_ref, scope, &run.id).await,
        _ => Ok(None),
    }
}

/// How a run stands once its performer, or a person, has changed it.
#[derive(Debug)]
pub(super) struct Standing<'a> {
    pub(super) state: RunState,
    pub(super) outputs: Option<&'a str>,
    pub(super) failure: Option<&'a Failure>,
    pub(super) wake_at: Option<Timestamp>,
}

impl Standing<'_> {
    /// A state with nothing else to say.
    pub(super) fn only(state: RunState) -> Standing<'static> {
        Standing { state, outputs: None, failure: None, wake_at: None }
    }
}

/// Changes a run's state from `from`. A waiting run stays with its holder, who may wake it; any other state but active
/// lets go of the lease, so that whoever resumes it need not wait for that to expire.
pub(super) async fn change(
    tx: &mut Tx,
    run: &str,
    from: RunState,
    standing: &Standing<'_>,
    at: Timestamp,
) -> Result<(), JournalError> {
    let Standing { state, outputs, failure, wake_at } = standing;
    if from != *state && !from.may_become(*state) {
        let what = format!("it is {from} and cannot become {state}");
        return Err(JournalError::Inconsistent { run: run.to_owned(), what });
    }
    tx.execute(
        "UPDATE @runs SET state = $2, outputs = $3, failure = $4, wake_at = $5, finished_at = $6, updated_at = $7, \
         lease_holder = CASE WHEN $8 = 1 THEN lease_holder END, \
         lease_expires_at = CASE WHEN $8 = 1 THEN lease_expires_at END WHERE id = $1",
        args![
            run,
            state.as_str(),
            *outputs,
            failure.map(to_json).transpose()?,
            *wake_at,
            state.is_terminal().then_some(at),
            at,
            state.is_under_way(),
        ],
    )
    .await?;
    Ok(())
}

/// Fences whoever holds the run, from outside, and takes the lease from them.
pub(super) async fn raise_generation(tx: &mut Tx, run: &str) -> Result<(), StoreError> {
    let sql =
        "UPDATE @runs SET generation = generation + 1, lease_holder = NULL, lease_expires_at = NULL WHERE id = $1";
    tx.execute(sql, args![run]).await?;
    Ok(())
}
