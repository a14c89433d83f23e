//! The journal's records of effects.
//!
//! What may follow what is [`effect::may_become`]'s; this file reads and writes.

use super::db::{Row, Tx, args};
use super::steps::to_json;
use super::{Store, StoreError};
use crate::clock::Timestamp;
use crate::effect::{self, EffectState};
use crate::journal::{EffectRecord, Failure, JournalError, codes};
use crate::run::state::RunState;

/// An effect that nobody has settled yet, with what a person needs to know of its run.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectInDoubt {
    /// The run.
    pub run: String,
    /// Its workflow's ref.
    pub workflow_ref: String,
    /// Its title.
    pub title: String,
    /// Its scope.
    pub scope: Option<String>,
    /// Where the run stands; an effect that is `executing` in an active run with a live lease is simply under way.
    pub run_state: RunState,
    /// Until when a worker holds the run.
    pub lease_expires_at: Option<Timestamp>,
    /// The record.
    pub effect: EffectRecord,
}

const COLUMNS: &str = "e.key, e.step, e.class, e.state, e.input_hash, e.component, e.generation, e.dispatch, e.marked_at, \
    e.deadline, e.visible_within_ms, e.output, e.failure, e.settled_at";

impl Store {
    /// Every effect of `run`, by when it was marked. Reads only.
    pub async fn effects(&self, run: &str) -> Result<Vec<EffectRecord>, StoreError> {
        let mut tx = self.database.read("reading effects").await?;
        let sql = format!("SELECT {COLUMNS} FROM @effects e WHERE e.run_id = $1 ORDER BY e.marked_at, e.key");
        tx.fetch_all(&sql, args![run]).await?.iter().map(from_row).collect()
    }

    /// Every effect of every run that is `executing` or `ambiguous`, by when it was marked. Reads only.
    pub async fn effects_in_doubt(&self) -> Result<Vec<EffectInDoubt>, StoreError> {
        let mut tx = self.database.read("reading effects in doubt").await?;
        let sql = format!(
            "SELECT {COLUMNS}, r.id, r.ref, r.title, r.scope, r.state AS run_state, r.lease_expires_at \
             FROM @effects e JOIN @runs r ON r.id = e.run_id WHERE e.state IN ('executing', 'ambiguous') \
             ORDER BY e.marked_at, e.run_id, e.key"
        );
        let rows = tx.fetch_all(&sql, args![]).await?;
        rows.iter()
            .map(|row| {
                Ok(EffectInDoubt {
                    run: row.text("id")?,
                    workflow_ref: row.text("ref")?,
                    title: row.text("title")?,
                    scope: row.opt_text("scope")?,
                    run_state: row.word("run_state")?,
                    lease_expires_at: row.opt_time("lease_expires_at")?,
                    effect: from_row(row)?,
                })
            })
            .collect()
    }

    pub(super) async fn read_effect(&self, run: &str, key: &str) -> Result<Option<EffectRecord>, StoreError> {
        let mut tx = self.database.read("reading an effect").await?;
        find(&mut tx, run, key).await
    }
}

fn from_row(row: &Row) -> Result<EffectRecord, StoreError> {
    Ok(EffectRecord {
        key: row.text("key")?,
        step: row.text("step")?,
        class: row.word("class")?,
        state: row.word("state")?,
        input_hash: row.text("input_hash")?,
        component: row.text("component")?,
        generation: row.int("generation")?,
        dispatch: row.text("dispatch")?,
        marked_at: row.time("marked_at")?,
        deadline: row.time("deadline")?,
        visible_within_ms: row.count("visible_within_ms")?,
        output: row.opt_text("output")?,
        failure: row.opt_json("failure")?,
        settled_at: row.opt_time("settled_at")?,
    })
}

/// One record.
pub(super) async fn find(tx: &mut Tx, run: &str, key: &str) -> Result<Option<EffectRecord>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM @effects e WHERE e.run_id = $1 AND e.key = $2");
    tx.fetch_optional(&sql, args![run, key]).await?.as_ref().map(from_row).transpose()
}

/// Writes a record over the one that is there, if the journal may go from one to the other. The generation written is
/// the writer's, whatever the record says.
pub(super) async fn put(tx: &mut Tx, run: &str, generation: i64, record: &EffectRecord) -> Result<(), JournalError> {
    let before = find(tx, run, &record.key).await?.map(|record| record.state);
    if !effect::may_become(before, record.state) {
        let before = before.map_or("absent", EffectState::as_str);
        let what = format!("effect {} is {before} and cannot become {}", record.key, record.state);
        return Err(JournalError::Inconsistent { run: run.to_owned(), what });
    }
    tx.execute(
        "INSERT INTO @effects (run_id, key, step, class, state, input_hash, component, generation, dispatch, marked_at, \
         deadline, visible_within_ms, output, failure, settled_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) \
         ON CONFLICT (run_id, key) DO UPDATE SET step = excluded.step, class = excluded.class, state = excluded.state, \
         input_hash = excluded.input_hash, component = excluded.component, generation = excluded.generation, \
         dispatch = excluded.dispatch, marked_at = excluded.marked_at, deadline = excluded.deadline, \
         visible_within_ms = excluded.visible_within_ms, output = excluded.output, failure = excluded.failure, \
         settled_at = excluded.settled_at",
        args![
            run,
            &record.key,
            &record.step,
            record.class.as_str(),
            record.state.as_str(),
            &record.input_hash,
            &record.component,
            generation,
            &record.dispatch,
            record.marked_at,
            record.deadline,
            i64::try_from(record.visible_within_ms).unwrap_or(i64::MAX),
            record.output.as_deref(),
            record.failure.as_ref().map(to_json).transpose()?,
            record.settled_at,
        ],
    )
    .await?;
    Ok(())
}

/// Effects that may be under way without a record get one, so that they are in the inbox.
pub(super) async fn leave_unmarked_in_doubt(
    tx: &mut Tx,
    run: &str,
    unmarked: Vec<EffectRecord>,
) -> Result<(), JournalError> {
    for effect in unmarked {
        if find(tx, run, &effect.key).await?.is_none() {
            let effect = EffectRecord { state: EffectState::Ambiguous, failure: Some(abandoned()), ..effect };
            put(tx, run, effect.generation, &effect).await?;
        }
    }
    Ok(())
}

fn abandoned() -> Failure {
    let message = "the run was abandoned while this effect was under way; find out at the other end what became of it";
    Failure::permanent(codes::OUTCOME_UNKNOWN, message)
}

/// The run was abandoned: whatever of it was under way is for a person to find out.
pub(super) async fn leave_in_doubt(tx: &mut Tx, run: &str) -> Result<(), StoreError> {
    let failure = to_json(&abandoned())?;
    tx.execute(
        "UPDATE @effects SET state = 'ambiguous', failure = $2 WHERE run_id = $1 AND state = 'executing'",
        args![run, failure],
    )
    .await?;
    Ok(())
}
