//! Events of runs: append-only, gapless per run, in commit order (S12).
//!
//! Whoever changes a run collects what happened and appends it once, in the transaction of the change. Nothing here
//! decides what is worth an event.

use serde_json::Value;

use super::db::{Tx, args, placeholders};
use super::{Store, StoreError};
use crate::clock::Timestamp;
use crate::journal::NewEvent;
use crate::json;

/// One event of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRow {
    /// From 1, without a gap.
    pub seq: i64,
    /// `run.started`, `step.completed`, …: see [`crate::journal::events`].
    pub kind: String,
    /// The step it is about.
    pub step: Option<String>,
    /// When.
    pub at: Timestamp,
    /// Whatever else there is to say, by name.
    pub data: Value,
    /// The key under which it was appended once.
    pub idempotency_key: Option<String>,
}

impl Store {
    /// At most `limit` events of `run` after `after_seq` (0: from the first), in order. Reads only.
    pub async fn events(&self, run: &str, after_seq: i64, limit: usize) -> Result<Vec<EventRow>, StoreError> {
        let mut tx = self.database.read("reading events").await?;
        let rows = tx
            .fetch_all(
                "SELECT seq, kind, step, at, data, idempotency_key FROM @events WHERE run_id = $1 AND seq > $2 \
                 ORDER BY seq LIMIT $3",
                args![run, after_seq, limit_of(limit)],
            )
            .await?;
        rows.iter()
            .map(|row| {
                Ok(EventRow {
                    seq: row.int("seq")?,
                    kind: row.text("kind")?,
                    step: row.opt_text("step")?,
                    at: row.time("at")?,
                    data: row.json("data")?,
                    idempotency_key: row.opt_text("idempotency_key")?,
                })
            })
            .collect()
    }
}

/// A limit as the database takes it.
pub(super) fn limit_of(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// An event about a step, or about the run as a whole.
pub(super) fn event(kind: &'static str, step: Option<&str>, data: Value) -> NewEvent {
    NewEvent { kind, step: step.map(str::to_owned), data, idempotency_key: None }
}

/// An event that is appended once under `key`.
pub(super) fn event_once(kind: &'static str, step: Option<&str>, data: Value, key: String) -> NewEvent {
    NewEvent { kind, step: step.map(str::to_owned), data, idempotency_key: Some(key) }
}

/// So that no statement has more arguments than a database takes.
const ROWS_PER_STATEMENT_MAX: usize = 100;
const COLUMNS: usize = 7;

/// Appends `events` in order. One whose idempotency key the run has already is left out and leaves no gap.
pub(super) async fn append(tx: &mut Tx, run: &str, at: Timestamp, events: Vec<NewEvent>) -> Result<(), StoreError> {
    let events = without_known(tx, run, events).await?;
    if events.is_empty() {
        return Ok(());
    }
    let count = limit_of(events.len());
    let sql = "UPDATE @runs SET event_seq = event_seq + $2 WHERE id = $1 RETURNING event_seq";
    let row = tx.fetch_optional(sql, args![run, count]).await?;
    let last = row.ok_or_else(|| tx.corrupt(format!("run {run} has events and no row")))?.int("event_seq")?;
    let mut seq = last - count;
    for rows in events.chunks(ROWS_PER_STATEMENT_MAX) {
        let values: Vec<String> =
            (0..rows.len()).map(|row| format!("({})", placeholders(1 + row * COLUMNS, COLUMNS))).collect();
        let mut args = Vec::with_capacity(rows.len() * COLUMNS);
        for event in rows {
            seq += 1;
            let (step, key) = (event.step.as_deref(), event.idempotency_key.as_deref());
            args.extend(args![run, seq, event.kind, step, at, json::canonical(&event.data), key]);
        }
        let sql = format!(
            "INSERT INTO @events (run_id, seq, kind, step, at, data, idempotency_key) VALUES {}",
            values.join(", ")
        );
        tx.execute(&sql, args).await?;
    }
    Ok(())
}

async fn without_known(tx: &mut Tx, run: &str, events: Vec<NewEvent>) -> Result<Vec<NewEvent>, StoreError> {
    let mut kept: Vec<NewEvent> = Vec::with_capacity(events.len());
    for event in events {
        let known = match &event.idempotency_key {
            None => false,
            Some(key) => {
                let sql = "SELECT 1 AS found FROM @events WHERE run_id = $1 AND idempotency_key = $2";
                kept.iter().any(|other| other.idempotency_key.as_ref() == Some(key))
                    || tx.fetch_optional(sql, args![run, key]).await?.is_some()
            }
        };
        if !known {
            kept.push(event);
        }
    }
    Ok(kept)
}
