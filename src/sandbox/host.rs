//! The imports of `tollgate:action` on this side of the sandbox: `host` and `documents`.
//!
//! Every function asks the class × phase table first. Where the interface has an error of its own a refusal is that
//! error; elsewhere it is a trap.

use serde_json::Value;

use super::bindings::tollgate::action::documents::{self, DocumentError, Entry};
use super::bindings::tollgate::action::host::{self, Level};
use super::bindings::tollgate::action::types;
use super::state::GuestState;
use crate::capability::Capability;
use crate::json;

/// The largest document.
const DOCUMENT_BYTES_MAX: usize = 256 << 10;
/// The longest key of a document.
const KEY_BYTES_MAX: usize = 512;
/// How many entries one listing returns.
const LISTED_MAX: usize = 1_000;
/// How many reads, and how many bytes of them, one attempt may make: the host keeps them until the attempt settles.
const READS_MAX: usize = 10_000;
const READ_BYTES_MAX: usize = 64 << 20;
/// How many documents one attempt may write.
const WRITES_MAX: usize = 1_000;
/// The longest message of a line of log that is kept whole.
const LOG_LINE_BYTES_MAX: usize = 4 << 10;

/// A refusal with no room in the interface: a trap that says which capability.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refused(pub String);

impl GuestState {
    fn require(&self, capability: Capability) -> wasmtime::Result<()> {
        self.check(capability).map_err(|reason| Refused(reason).into())
    }
}

impl types::Host for GuestState {}

impl host::Host for GuestState {
    async fn variables(&mut self) -> wasmtime::Result<String> {
        self.require(Capability::Variables)?;
        Ok(self.shared.variables.clone())
    }

    async fn binding(&mut self, path: String) -> wasmtime::Result<Option<String>> {
        self.require(Capability::Variables)?;
        Ok(crate::workflow::binding(&self.shared.with, &path))
    }

    async fn resolve_reference(&mut self, path: String) -> wasmtime::Result<Option<String>> {
        self.require(Capability::Variables)?;
        Ok(json::at_path(&self.shared.input, &path).map(json::canonical))
    }

    async fn heartbeat(&mut self) -> wasmtime::Result<host::Lease> {
        self.require(Capability::Progress)?;
        let live = self.shared.lease.is_live(self.shared.ambient.clock.elapsed());
        Ok(if live { host::Lease::Held } else { host::Lease::Lost })
    }

    async fn progress(&mut self, done: u64, total: Option<u64>, message: String) -> wasmtime::Result<()> {
        self.require(Capability::Progress)?;
        self.shared.observer.progress(&self.shared.step, done, total, &json::replace_nul(&message));
        Ok(())
    }

    async fn log(&mut self, level: Level, message: String) -> wasmtime::Result<()> {
        let level = match level {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        };
        let message = json::replace_nul(&message[..message.floor_char_boundary(LOG_LINE_BYTES_MAX)]).into_owned();
        let line = format!("{level}: {message}");
        let mut notes = self.shared.notes();
        // The line as it is kept: an empty message takes room too.
        let bytes = notes.logs_bytes.saturating_add(line.len() as u64);
        if notes.logs_dropped || bytes > self.shared.logs_bytes_max {
            notes.logs_dropped = true;
            return Ok(());
        }
        notes.logs_bytes = bytes;
        notes.logs.push(line);
        drop(notes);
        self.shared.observer.log(&self.shared.step, level, &message);
        Ok(())
    }
}

impl documents::Host for GuestState {
    async fn get(&mut self, key: String) -> wasmtime::Result<Result<Option<String>, DocumentError>> {
        Ok(self.get_document(key).await)
    }

    async fn list(&mut self, prefix: String) -> wasmtime::Result<Result<Vec<Entry>, DocumentError>> {
        Ok(self.list_documents(prefix).await)
    }

    async fn put(&mut self, key: String, value: String) -> wasmtime::Result<Result<(), DocumentError>> {
        Ok(self.parse_document(&value).and_then(|value| self.write_document(key, Some(json::canonical(&value)))))
    }

    async fn delete(&mut self, key: String) -> wasmtime::Result<Result<(), DocumentError>> {
        Ok(self.write_document(key, None))
    }
}

impl GuestState {
    async fn get_document(&mut self, key: String) -> Result<Option<String>, DocumentError> {
        self.check(Capability::ReadDocuments).map_err(DocumentError::Denied)?;
        check_key(&key)?;
        {
            let documents = self.shared.documents();
            if let Some(written) = documents.writes.get(&key) {
                return Ok(written.clone());
            }
            // One attempt sees one value of a key, whatever others commit meanwhile.
            if let Some(seen) = documents.keys.get(&key) {
                return Ok(seen.clone());
            }
        }
        let journal = self.journal()?;
        let value = journal.document(&self.shared.app, &key).await.map_err(unavailable)?;
        self.count_read(key.len() + value.as_ref().map_or(0, String::len))?;
        self.shared.documents().keys.insert(key, value.clone());
        Ok(value)
    }

    async fn list_documents(&mut self, prefix: String) -> Result<Vec<Entry>, DocumentError> {
        self.check(Capability::ReadDocuments).map_err(DocumentError::Denied)?;
        if prefix.len() > KEY_BYTES_MAX {
            return Err(DocumentError::Invalid(format!("a prefix has at most {KEY_BYTES_MAX} bytes")));
        }
        let seen = self.shared.documents().ranges.get(&prefix).cloned();
        let seen = match seen {
            Some(seen) => seen,
            None => {
                let journal = self.journal()?;
                let listed = journal.documents(&self.shared.app, &prefix, LISTED_MAX + 1).await.map_err(unavailable)?;
                // A listing that was cut short is refused, and is no read: it could never hold when it is checked.
                if listed.len() > LISTED_MAX {
                    return Err(DocumentError::Invalid(format!(
                        "more than {LISTED_MAX} documents begin with `{prefix}`; choose a longer prefix"
                    )));
                }
                let bytes = listed.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
                self.count_read(prefix.len() + bytes)?;
                self.shared.documents().ranges.insert(prefix.clone(), listed.clone());
                listed
            }
        };
        let mut entries: std::collections::BTreeMap<String, String> = seen.into_iter().collect();
        for (key, written) in self.shared.documents().writes.range(prefix.clone()..) {
            if !key.starts_with(&prefix) {
                break;
            }
            match written {
                Some(value) => entries.insert(key.clone(), value.clone()),
                None => entries.remove(key),
            };
        }
        Ok(entries.into_iter().map(|(key, value)| Entry { key, value }).collect())
    }

    fn write_document(&mut self, key: String, value: Option<String>) -> Result<(), DocumentError> {
        self.check(Capability::WriteDocuments).map_err(DocumentError::Denied)?;
        check_key(&key)?;
        let mut documents = self.shared.documents();
        if documents.writes.len() >= WRITES_MAX && !documents.writes.contains_key(&key) {
            return Err(DocumentError::Invalid(format!("an attempt may write at most {WRITES_MAX} documents")));
        }
        documents.writes.insert(key, value);
        Ok(())
    }

    fn count_read(&self, bytes: usize) -> Result<(), DocumentError> {
        let mut documents = self.shared.documents();
        let reads = documents.keys.len() + documents.ranges.len();
        let bytes = documents.read_bytes.saturating_add(bytes);
        if reads >= READS_MAX || bytes > READ_BYTES_MAX {
            return Err(DocumentError::Invalid(format!(
                "an attempt may make at most {READS_MAX} reads of {READ_BYTES_MAX} bytes together"
            )));
        }
        documents.read_bytes = bytes;
        Ok(())
    }

    fn parse_document(&self, value: &str) -> Result<Value, DocumentError> {
        json::parse(value, DOCUMENT_BYTES_MAX).map_err(|error| DocumentError::Invalid(error.to_string()))
    }

    fn journal(&self) -> Result<std::sync::Arc<dyn crate::journal::Journal>, DocumentError> {
        self.shared
            .journal
            .clone()
            .ok_or_else(|| DocumentError::Denied("there are no documents in this phase".to_owned()))
    }
}

fn unavailable(error: crate::journal::JournalError) -> DocumentError {
    DocumentError::Unavailable(error.to_string())
}

fn check_key(key: &str) -> Result<(), DocumentError> {
    if (1..=KEY_BYTES_MAX).contains(&key.len()) && !key.contains('\0') {
        return Ok(());
    }
    Err(DocumentError::Invalid(format!("a document's key has 1 to {KEY_BYTES_MAX} bytes and no NUL")))
}
