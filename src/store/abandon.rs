//! Abandoning a run and its children (S6).
//!
//! It comes from outside: it raises the generation, which fences a worker in the middle, and it asks nobody.

use std::collections::BTreeSet;

use serde_json::json;

use super::db::{Tx, args};
use super::events::{append, event};
use super::runs::{self, Standing};
use super::{Store, attempts, effects};
use crate::clock::Timestamp;
use crate::journal::{EffectRecord, JournalError, events};
use crate::run::state::RunState;

impl Store {
    /// Abandons a run that is active, waiting or blocked, and every such run under it; whether it did. When it returns
    /// `true`, the runs are abandoned, workers in the middle fenced, and effects under way left `ambiguous`, durably
    /// together. On `false` (there is no such run, or it has ended) nothing was written.
    ///
    /// `unmarked` are effects of the run that may be under way without a record: an idempotent one is not marked before it
    /// acts. Those that have none yet get one, `ambiguous`.
    pub async fn abandon(
        &self,
        run: &str,
        actor: &str,
        because: &str,
        unmarked: Vec<EffectRecord>,
        at: Timestamp,
    ) -> Result<bool, JournalError> {
        let (run, actor, because) = (run.to_owned(), actor.to_owned(), because.to_owned());
        self.database
            .write("abandoning a run", move |tx| {
                Box::pin(async move {
                    if !abandon_tree(tx, &run, &actor, &because, at).await? {
                        return Ok(false);
                    }
                    effects::leave_unmarked_in_doubt(tx, &run, unmarked).await?;
                    Ok(true)
                })
            })
            .await
    }
}

async fn abandon_tree(
    tx: &mut Tx,
    root: &str,
    actor: &str,
    because: &str,
    at: Timestamp,
) -> Result<bool, JournalError> {
    if !abandon_one(tx, root, actor, because, at).await? {
        return Ok(false);
    }
    // A child that has ended may have children that have not.
    let mut seen = BTreeSet::from([root.to_owned()]);
    let mut parents = vec![root.to_owned()];
    while let Some(parent) = parents.pop() {
        let children = tx.fetch_all("SELECT id FROM @runs WHERE parent_id = $1", args![&parent]).await?;
        for child in children {
            let child = child.text("id")?;
            if seen.insert(child.clone()) {
                abandon_one(tx, &child, actor, because, at).await?;
                parents.push(child);
            }
        }
    }
    Ok(true)
}

async fn abandon_one(tx: &mut Tx, id: &str, actor: &str, because: &str, at: Timestamp) -> Result<bool, JournalError> {
    let run = runs::find(tx, id).await?;
    let Some(run) = run.filter(|run| run.state.may_become(RunState::Abandoned)) else { return Ok(false) };
    runs::change(tx, id, run.state, &Standing::only(RunState::Abandoned), at).await?;
    runs::raise_generation(tx, id).await?;
    effects::leave_in_doubt(tx, id).await?;
    let mut happened = Vec::new();
    attempts::end_running(tx, id, None, "abandoned", at, &mut happened).await?;
    happened.push(event(events::RUN_ABANDONED, None, json!({ "actor": actor, "because": because, "was": run.state })));
    append(tx, id, at, happened).await?;
    Ok(true)
}
