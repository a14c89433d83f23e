//! Documents of apps: JSON values under keys, and what a transactional action saw of them (R10).
//!
//! Keys are compared as bytes. A write happens only inside a commit, after the commit's reads were found to hold.

use super::db::{Tx, args, end_of_prefix};
use super::events::limit_of;
use super::{Store, StoreError};
use crate::journal::{DocumentRead, DocumentWrite};

impl Store {
    pub(super) async fn read_document(&self, app: &str, key: &str) -> Result<Option<String>, StoreError> {
        let mut tx = self.database.read("reading a document").await?;
        find(&mut tx, app, key).await
    }

    pub(super) async fn read_documents(
        &self,
        app: &str,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<(String, String)>, StoreError> {
        let mut tx = self.database.read("listing documents").await?;
        list(&mut tx, app, prefix, limit).await
    }
}

async fn find(tx: &mut Tx, app: &str, key: &str) -> Result<Option<String>, StoreError> {
    let sql = "SELECT value FROM @documents WHERE app = $1 AND key = $2";
    tx.fetch_optional(sql, args![app, key]).await?.map(|row| row.text("value")).transpose()
}

async fn list(tx: &mut Tx, app: &str, prefix: &str, limit: usize) -> Result<Vec<(String, String)>, StoreError> {
    let limit = limit_of(limit);
    let rows = match end_of_prefix(prefix) {
        Some(end) => {
            let sql =
                "SELECT key, value FROM @documents WHERE app = $1 AND key >= $2 AND key < $3 ORDER BY key LIMIT $4";
            tx.fetch_all(sql, args![app, prefix, end, limit]).await?
        }
        None => {
            let sql = "SELECT key, value FROM @documents WHERE app = $1 AND key >= $2 ORDER BY key LIMIT $3";
            tx.fetch_all(sql, args![app, prefix, limit]).await?
        }
    };
    rows.iter().map(|row| Ok((row.text("key")?, row.text("value")?))).collect()
}

/// Whether everything that was read is still what it was; an absent key and a range are reads too.
pub(super) async fn reads_hold(tx: &mut Tx, reads: &[DocumentRead]) -> Result<bool, StoreError> {
    for read in reads {
        let holds = match read {
            DocumentRead::Key { app, key, seen } => find(tx, app, key).await? == *seen,
            // One more than was seen, so that a row that joined is noticed without listing everything.
            DocumentRead::Range { app, prefix, seen } => list(tx, app, prefix, seen.len() + 1).await? == *seen,
        };
        if !holds {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes documents, in order; the last write of a key stands.
pub(super) async fn write(tx: &mut Tx, writes: &[DocumentWrite]) -> Result<(), StoreError> {
    for DocumentWrite { app, key, value } in writes {
        match value {
            Some(value) => {
                tx.execute(
                    "INSERT INTO @documents (app, key, value) VALUES ($1, $2, $3) \
                     ON CONFLICT (app, key) DO UPDATE SET value = excluded.value",
                    args![app, key, value],
                )
                .await?;
            }
            None => {
                tx.execute("DELETE FROM @documents WHERE app = $1 AND key = $2", args![app, key]).await?;
            }
        }
    }
    Ok(())
}
