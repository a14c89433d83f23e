//! Why the store could not do what it was asked, in words for whoever must act.
//!
//! Refusals that belong to one verb (a scope that is occupied, an ambiguous prefix) are that verb's own error type;
//! this one is for what can go wrong with any of them.

use std::time::Duration;

use crate::journal::JournalError;

/// What can go wrong with any verb of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address names no store that this program can open. The operator's to mend.
    #[error("`{url}` is not an address of a store: {why}")]
    Address {
        /// The address.
        url: String,
        /// What is wrong with it and what to write instead.
        why: String,
    },
    /// The prefix of the table names is not one. The embedder's to mend.
    #[error(
        "`{prefix}` cannot begin a table's name: use lower-case letters, digits and `_`, not a digit first, at most 40"
    )]
    Prefix {
        /// The prefix.
        prefix: String,
    },
    /// The database could not be opened. The operator's to mend.
    #[error("cannot open the store {path}: {why}")]
    Open {
        /// The file.
        path: String,
        /// What is in the way.
        why: String,
        /// What the system or the database said.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// A newer program has migrated the store. The operator's to mend.
    #[error(
        "the store {path} has schema {found}, newer than the {known} that this program knows: run a newer tollgate, or restore a backup from before the upgrade"
    )]
    TooNew {
        /// The file.
        path: String,
        /// The version found.
        found: i64,
        /// The newest that this program knows.
        known: i64,
    },
    /// A cursor that no page of this listing gave out. The caller's to mend.
    #[error(
        "`{cursor}` is not a cursor of this listing; take it from the page before, or leave it out for the first page"
    )]
    Cursor {
        /// The cursor.
        cursor: String,
    },
    /// Another process holds the write lock and does not let go.
    #[error(
        "the store was busy for {} s while {doing}: another process holds it with a long transaction; find and end that process, then try again",
        waited.as_secs()
    )]
    Busy {
        /// What the store was doing.
        doing: &'static str,
        /// How long it waited.
        waited: Duration,
    },
    /// The database failed. Where a write was under way, whether it is durable is not known.
    #[error("the store failed while {doing}")]
    Database {
        /// What the store was doing.
        doing: &'static str,
        /// What the database said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A stored value is not what this program writes: somebody edited the file, or it is ours to mend.
    #[error("the store holds a value that cannot be read while {doing}: {what}")]
    Corrupt {
        /// What the store was doing.
        doing: &'static str,
        /// Which value, and what was expected.
        what: String,
    },
}

impl StoreError {
    /// A failure of the database that has no error of its own.
    pub(super) fn failed(doing: &'static str, what: impl Into<String>) -> StoreError {
        StoreError::Database { doing, source: what.into().into() }
    }

    /// The same error for another job, whose statements shared the transaction that it ended.
    pub(super) fn shared_with(&self, doing: &'static str) -> StoreError {
        match self {
            StoreError::Busy { waited, .. } => StoreError::Busy { doing, waited: *waited },
            StoreError::Database { source, .. } => StoreError::failed(doing, source.to_string()),
            other => StoreError::failed(doing, other.to_string()),
        }
    }
}

impl From<StoreError> for JournalError {
    fn from(error: StoreError) -> JournalError {
        match error {
            StoreError::Database { doing, source } => JournalError::Database { doing, source },
            StoreError::Busy { doing, .. } | StoreError::Corrupt { doing, .. } => {
                JournalError::Database { doing, source: Box::new(error) }
            }
            other => JournalError::Database { doing: "opening the store", source: Box::new(other) },
        }
    }
}
