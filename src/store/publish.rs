//! Publishing a run: all of it or none, once per start key, at most one under way in its scope (S1).
//!
//! What a definition says, whoever publishes has checked; here it is text with a hash.

use std::collections::BTreeMap;

use super::db::{Tx, args};
use super::events::{append, event_once};
use super::runs::{self, Occupant};
use super::{Store, StoreError, budgets};
use crate::budget::Amount;
use crate::clock::Timestamp;
use crate::journal::events;

/// A run to publish.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRun {
    /// A fresh id.
    pub id: String,
    /// Its workflow's ref.
    pub workflow_ref: String,
    /// The frozen definition.
    pub definition: NewDefinition,
    /// What a person reads.
    pub title: String,
    /// Where at most one top-level run of the workflow may be under way; `None`: anywhere, any number.
    pub scope: Option<String>,
    /// The canonical text of its parameters.
    pub params: String,
    /// The canonical text of its labels.
    pub labels: String,
    /// Under which it is started once, however often it is published; unique in the store.
    pub start_key: Option<String>,
    /// Start it although its scope is occupied.
    pub forced: bool,
    /// Its budget's caps.
    pub caps: BTreeMap<String, Amount>,
    /// Its steps, in order.
    pub steps: Vec<NewStep>,
    /// The publisher's clock.
    pub at: Timestamp,
}

/// A frozen definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDefinition {
    /// SHA-256 of its body.
    pub hash: String,
    /// The version of its format.
    pub format: u32,
    /// Its text.
    pub body: String,
}

/// A step of a run to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewStep {
    /// Unique in the run.
    pub key: String,
    /// What a person reads.
    pub title: Option<String>,
    /// What a person is to do.
    pub instructions: Option<String>,
    /// The action that it performs.
    pub action: Option<String>,
}

/// What became of a publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The run's id; an earlier run's where the start key was used before.
    pub run: String,
    /// Whether it was there already, so that nothing was written.
    pub existing: bool,
}

/// Why a run was not published. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The start key belongs to a run that is not the one asked for.
    #[error("start key `{key}` already started run {run}, with another {}; use a new key", differs.join(" and another "))]
    StartKeyReused {
        /// The key.
        key: String,
        /// The run that it started.
        run: String,
        /// What differs: `definition` (the workflow, or the component that one of its actions is pinned to), `params`,
        /// `scope`, `budget`.
        differs: Vec<&'static str>,
    },
    /// Another run of the workflow is under way in the scope.
    #[error(
        "run {} of {} occupies scope `{}`: it is {}{}",
        _0.run, _0.workflow_ref, _0.scope, _0.state,
        _0.step.as_ref().map_or_else(String::new, |step| format!(" at step {step}"))
    )]
    Occupied(Box<Occupant>),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// Publishes a run. When it returns, run, steps, definition, budget and the event `run.started` are durable
    /// together; on an error none of them is. With a start key that was used before, the run of that time comes back
    /// and nothing is written.
    ///
    /// # Errors
    /// Where the start key started something else, or, unless forced, another run is under way in the scope.
    pub async fn publish(&self, run: NewRun) -> Result<Published, PublishError> {
        self.database.write("publishing a run", move |tx| Box::pin(async move { publish(tx, &run).await })).await
    }
}

async fn publish(tx: &mut Tx, new: &NewRun) -> Result<Published, PublishError> {
    if let Some(existing) = started_before(tx, new).await? {
        return Ok(existing);
    }
    if let Some(scope) = new.scope.as_deref().filter(|_| !new.forced)
        && let Some(occupant) = runs::under_way(tx, &new.workflow_ref, scope, &new.id).await?
    {
        return Err(PublishError::Occupied(Box::new(occupant)));
    }
    let NewDefinition { hash, format, body } = &new.definition;
    tx.execute(
        "INSERT INTO @definitions (hash, ref, format, body) VALUES ($1, $2, $3, $4) ON CONFLICT (hash) DO NOTHING",
        args![hash, &new.workflow_ref, i64::from(*format), body],
    )
    .await?;
    tx.execute(
        "INSERT INTO @runs (id, root_id, ref, definition_hash, title, entry_step, scope, params, labels, forced, start_key, \
         state, generation, event_seq, created_at, updated_at) \
         VALUES ($1, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 'active', 0, 0, $11, $11)",
        args![
            &new.id,
            &new.workflow_ref,
            hash,
            &new.title,
            new.steps.first().map(|step| step.key.as_str()),
            new.scope.as_deref(),
            &new.params,
            &new.labels,
            new.forced,
            new.start_key.as_deref(),
            new.at,
        ],
    )
    .await?;
    for (position, step) in (0i64..).zip(&new.steps) {
        tx.execute(
            "INSERT INTO @steps (run_id, key, position, title, instructions, action, state, tries, key_retries, same_attempt) \
             VALUES ($1, $2, $3, $4, $5, $6, 'pending', 0, 0, 0)",
            args![
                &new.id,
                &step.key,
                position,
                step.title.as_deref(),
                step.instructions.as_deref(),
                step.action.as_deref(),
            ],
        )
        .await?;
    }
    budgets::set_caps(tx, &new.id, &new.caps).await?;
    let data = serde_json::json!({ "workflow": new.workflow_ref, "definition": hash });
    let started = event_once(events::RUN_STARTED, None, data, events::RUN_STARTED.to_owned());
    append(tx, &new.id, new.at, vec![started]).await?;
    Ok(Published { run: new.id.clone(), existing: false })
}

/// The run that this start key started, if it is the one asked for.
async fn started_before(tx: &mut Tx, new: &NewRun) -> Result<Option<Published>, PublishError> {
    let Some(key) = &new.start_key else { return Ok(None) };
    let sql = "SELECT id, definition_hash, params, scope FROM @runs WHERE start_key = $1";
    let Some(row) = tx.fetch_optional(sql, args![key]).await? else { return Ok(None) };
    let run = row.text("id")?;
    let caps = budgets::caps(tx, &run).await?;
    let differs: Vec<&'static str> = [
        ("definition", row.text("definition_hash")? != new.definition.hash),
        ("params", row.text("params")? != new.params),
        ("scope", row.opt_text("scope")? != new.scope),
        ("budget", caps != new.caps),
    ]
    .into_iter()
    .filter_map(|(what, differs)| differs.then_some(what))
    .collect();
    match differs.is_empty() {
        true => Ok(Some(Published { run, existing: true })),
        false => Err(PublishError::StartKeyReused { key: key.clone(), run, differs }),
    }
}
