//! The store: runs, steps, attempts, effects, budgets, components, documents and events, durable and fenced.
//!
//! One file for each noun holds its verbs; `commit` applies what a performer writes
//! ([`Journal`](crate::journal::Journal)). `db` alone knows which database it is. Each verb's comment says what is
//! durable when it returns, and every durable write of a performer names the generation of its run (R14). Nothing
//! outside this module names a table; nothing inside it calls a guest, opens a connection to anything else, or reads a
//! clock: time, ids and tokens come in as arguments.

mod abandon;
mod attempts;
mod budgets;
mod claims;
mod commit;
mod components;
mod db;
mod documents;
mod effects;
mod error;
mod events;
mod listing;
mod publish;
mod resolve;
mod runs;
mod steps;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use attempts::{AttemptRow, AttemptState, ReservedAttempt};
pub use budgets::{BudgetView, ChargeRow};
pub use claims::{Claim, ClaimRequest};
pub use components::{Activated, ComponentRow, Pushed};
pub use effects::EffectInDoubt;
pub use error::StoreError;
pub use events::EventRow;
pub use listing::{ActiveRuns, Page, PrefixError, RunFilter, ScopeFilter};
pub use publish::{NewDefinition, NewRun, NewStep, PublishError, Published};
pub use resolve::{Resolution, ResolveError, Verdict};
pub use runs::{Occupant, RunRow, Snapshot};
pub use steps::StepRow;

use db::{Database, Missing};

/// How a store is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// What the names of its tables begin with, so that an embedder can keep them beside its own.
    pub prefix: String,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions { prefix: "tollgate_".to_owned() }
    }
}

/// An open store. Clones share it. Any number of processes may have one file open at once.
#[derive(Debug, Clone)]
pub struct Store {
    database: Arc<Database>,
}

impl Store {
    /// Opens the store at `url`: `sqlite:PATH`, `sqlite://PATH` or a plain path. Creates file and folder where they are
    /// missing. When it returns, the schema is the one that this program knows, durably.
    ///
    /// # Errors
    /// Where the address or the prefix is not one, the file cannot be opened, or a newer program has migrated it.
    pub async fn open(url: &str, options: StoreOptions) -> Result<Store, StoreError> {
        let database = Database::open(url, &options.prefix, Missing::Create).await?;
        Ok(Store { database: Arc::new(database) })
    }

    /// Opens the store at `url` as [`Store::open`] does, but creates none: for whoever has nothing to do in an empty one.
    /// Nothing is written to a file that is not a store.
    ///
    /// # Errors
    /// As [`Store::open`]; and where there is no file, or it is not a store.
    pub async fn open_existing(url: &str, options: StoreOptions) -> Result<Store, StoreError> {
        let database = Database::open(url, &options.prefix, Missing::Refuse).await?;
        Ok(Store { database: Arc::new(database) })
    }
}
