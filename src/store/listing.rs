//! Finding runs: by a prefix of an id, by a filter in pages, and those under way in a scope (S2, S3, S4).
//!
//! Reads only. Every listing follows an index.

use super::db::{Arg, Tx, args, end_of_prefix, placeholders};
use super::events::limit_of;
use super::runs::{self, COLUMNS, RunRow};
use super::{Store, StoreError};
use crate::clock::Timestamp;
use crate::run::state::RunState;

/// Which runs to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFilter {
    /// Of these workflows; empty: of any.
    pub refs: Vec<String>,
    /// In which scope.
    pub scope: ScopeFilter,
    /// In exactly this state; `None`: in any.
    pub state: Option<RunState>,
    /// Whether child runs are listed too.
    pub children: bool,
    /// Where the page before ended; `None`: the first page.
    pub cursor: Option<String>,
    /// At most so many.
    pub limit: usize,
}

impl Default for RunFilter {
    fn default() -> RunFilter {
        RunFilter { refs: Vec::new(), scope: ScopeFilter::Any, state: None, children: false, cursor: None, limit: 50 }
    }
}

/// In which scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScopeFilter {
    /// In any, and in none.
    Any,
    /// In this one; `None`: runs without a scope.
    In(Option<String>),
}

/// One page of a listing.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// Newest created first, then by id.
    pub runs: Vec<RunRow>,
    /// The cursor of the next page; `None`: this is the last.
    pub next: Option<String>,
}

/// Active runs of some workflows, as seen from a scope.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ActiveRuns {
    /// In the scope, most recently updated first.
    pub here: Vec<RunRow>,
    /// In other scopes and in none, most recently updated first.
    pub elsewhere: Vec<RunRow>,
}

/// Why a prefix names no run.
#[derive(Debug, thiserror::Error)]
pub enum PrefixError {
    /// No id begins with it.
    #[error("no run's id begins with `{prefix}`")]
    NotFound {
        /// The prefix.
        prefix: String,
    },
    /// Several ids begin with it.
    #[error("`{prefix}` is the beginning of several runs' ids: {}; write more of the one you mean", matches.join(", "))]
    Ambiguous {
        /// The prefix.
        prefix: String,
        /// The ids, in order; the first hundred where there are more.
        matches: Vec<String>,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl PrefixError {
    /// A short, stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            PrefixError::NotFound { .. } => "RUN_NOT_FOUND",
            PrefixError::Ambiguous { .. } => "RUN_AMBIGUOUS",
            PrefixError::Store(_) => "STORE_FAILED",
        }
    }
}

/// More matches than these help nobody to choose.
const MATCHES_MAX: usize = 100;
/// More active runs than these are a listing's business.
const ACTIVE_MAX: usize = 100;

impl Store {
    /// The id of the one run whose id begins with `prefix`. An exact id wins over longer ones; case counts; every
    /// character stands for itself. Reads only.
    ///
    /// # Errors
    /// Where none or several begin with it.
    pub async fn resolve_prefix(&self, prefix: &str) -> Result<String, PrefixError> {
        let mut tx = self.database.read("looking for a run").await?;
        if runs::find(&mut tx, prefix).await?.is_some() {
            return Ok(prefix.to_owned());
        }
        let mut matches = ids_from(&mut tx, prefix).await?;
        match (matches.pop(), matches.is_empty()) {
            (None, _) => Err(PrefixError::NotFound { prefix: prefix.to_owned() }),
            (Some(only), true) => Ok(only),
            (Some(last), false) => {
                matches.push(last);
                Err(PrefixError::Ambiguous { prefix: prefix.to_owned(), matches })
            }
        }
    }

    /// One page of runs, newest created first, then by id. A cursor stays right while rows arrive. Reads only.
    ///
    /// # Errors
    /// Where the cursor is not one.
    pub async fn list_runs(&self, filter: &RunFilter) -> Result<Page, StoreError> {
        let after = filter.cursor.as_deref().map(read_cursor).transpose()?;
        let mut conditions = Conditions::default();
        if !filter.refs.is_empty() {
            conditions.is_one_of("ref", &filter.refs);
        }
        match &filter.scope {
            ScopeFilter::Any => {}
            ScopeFilter::In(None) => conditions.add("scope IS NULL"),
            ScopeFilter::In(Some(scope)) => conditions.compare("scope =", scope),
        }
        if let Some(state) = filter.state {
            conditions.compare("state =", state.as_str());
        }
        if !filter.children {
            conditions.add("parent_id IS NULL");
        }
        if let Some((created_at, id)) = after {
            // The first comparison is the one that an index can follow.
            conditions.compare("created_at <=", created_at);
            let (at, id) = (conditions.argument(created_at), conditions.argument(id));
            conditions.add(format!("(created_at < {at} OR id > {id})"));
        }
        let mut tx = self.database.read("listing runs").await?;
        let limit = filter.limit.max(1);
        let mut runs = conditions.fetch(&mut tx, "created_at DESC, id", limit.saturating_add(1)).await?;
        let more = runs.len() > limit;
        runs.truncate(limit);
        let last = runs.last().filter(|_| more);
        Ok(Page { next: last.map(|run| format!("{}:{}", run.created_at.0, run.id)), runs })
    }

    /// The active top-level runs of these workflows: in a scope (`None`: those without one), and apart from them
    /// elsewhere. The first hundred of each. No refs, no answer. Reads only.
    pub async fn find_active(&self, refs: &[String], scope: Option<&str>) -> Result<ActiveRuns, StoreError> {
        if refs.is_empty() {
            return Ok(ActiveRuns::default());
        }
        let active = || {
            let mut conditions = Conditions::default();
            conditions.is_one_of("ref", refs);
            conditions.add("state = 'active' AND parent_id IS NULL");
            conditions
        };
        let (mut here, mut elsewhere) = (active(), active());
        match scope {
            Some(scope) => {
                here.compare("scope =", scope);
                let other = elsewhere.argument(scope);
                elsewhere.add(format!("(scope IS NULL OR scope <> {other})"));
            }
            None => {
                here.add("scope IS NULL");
                elsewhere.add("scope IS NOT NULL");
            }
        }
        let mut tx = self.database.read("looking for active runs").await?;
        Ok(ActiveRuns {
            here: here.fetch(&mut tx, "updated_at DESC, id", ACTIVE_MAX).await?,
            elsewhere: elsewhere.fetch(&mut tx, "updated_at DESC, id", ACTIVE_MAX).await?,
        })
    }
}

async fn ids_from(tx: &mut Tx, prefix: &str) -> Result<Vec<String>, StoreError> {
    let limit = limit_of(MATCHES_MAX);
    let rows = match end_of_prefix(prefix) {
        Some(end) => {
            let sql = "SELECT id FROM @runs WHERE id >= $1 AND id < $2 ORDER BY id LIMIT $3";
            tx.fetch_all(sql, args![prefix, end, limit]).await?
        }
        None => {
            let sql = "SELECT id FROM @runs WHERE id >= $1 ORDER BY id LIMIT $2";
            tx.fetch_all(sql, args![prefix, limit]).await?
        }
    };
    rows.iter().map(|row| row.text("id")).collect()
}

fn read_cursor(cursor: &str) -> Result<(Timestamp, &str), StoreError> {
    let parts = cursor.split_once(':').and_then(|(at, id)| Some((Timestamp(at.parse().ok()?), id)));
    parts.ok_or_else(|| StoreError::Cursor { cursor: cursor.to_owned() })
}

/// The conditions of a listing, with their arguments.
#[derive(Default)]
struct Conditions {
    texts: Vec<String>,
    args: Vec<Arg>,
}

impl Conditions {
    fn add(&mut self, condition: impl Into<String>) {
        self.texts.push(condition.into());
    }

    /// The placeholder of one more argument.
    fn argument(&mut self, value: impl Into<Arg>) -> String {
        self.args.push(value.into());
        format!("${}", self.args.len())
    }

    fn compare(&mut self, column_and_operator: &str, value: impl Into<Arg>) {
        let placeholder = self.argument(value);
        self.add(format!("{column_and_operator} {placeholder}"));
    }

    fn is_one_of(&mut self, column: &str, values: &[String]) {
        let list = placeholders(self.args.len() + 1, values.len());
        self.args.extend(values.iter().map(Arg::from));
        self.add(format!("{column} IN ({list})"));
    }

    async fn fetch(mut self, tx: &mut Tx, order: &str, limit: usize) -> Result<Vec<RunRow>, StoreError> {
        let limit = self.argument(limit_of(limit));
        let conditions = if self.texts.is_empty() { "TRUE".to_owned() } else { self.texts.join(" AND ") };
        let sql = format!("SELECT {COLUMNS} FROM @runs WHERE {conditions} ORDER BY {order} LIMIT {limit}");
        tx.fetch_all(&sql, self.args).await?.iter().map(runs::from_row).collect()
    }
}
