//! The one place that knows which database it is: connections, transactions, arguments and rows.
//!
//! SQL is written once, by the verbs, with `$1` placeholders and `@` before each table's name; what stands here turns
//! it into the database's own. There are two ways in. [`Database::read`] opens a read transaction on a pooled
//! connection; [`Database::write`] hands a whole write transaction to the one writer, as a closure, in one hop. On SQLite
//! a statement is executed where it is asked for, on the thread that asks: it takes microseconds, and a hop to another
//! thread would cost more than most of them. This module knows no table and no rule of the design.

mod sqlite;
mod writer;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::error::StoreError;
use crate::clock::Timestamp;
use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use sqlite::{Connection, Readers};
use writer::Writer;

/// What to do where there is no store yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// Create it.
    Create,
    /// Say so, and write nothing.
    Refuse,
}

/// An open database with its migrations applied.
#[derive(Debug)]
pub(super) struct Database {
    names: Arc<Names>,
    backend: Backend,
}

#[derive(Debug)]
enum Backend {
    Sqlite { readers: Arc<Readers>, writer: Writer },
}

impl Database {
    /// Opens the database at `url`, creating file and folder where they are missing, and migrates it. When it returns,
    /// the schema is the one that this program knows.
    pub(super) async fn open(url: &str, prefix: &str, missing: Missing) -> Result<Database, StoreError> {
        let names = Arc::new(Names::new(prefix)?);
        let file = sqlite::File::parse(url)?;
        if missing == Missing::Refuse {
            file.check_is_a_store(&names).await?;
        }
        let writer = Writer::start(file.clone(), names.clone()).await?;
        Ok(Database { names, backend: Backend::Sqlite { readers: Arc::new(Readers::of(file)), writer } })
    }

    /// A read transaction: everything read through it is of one moment. `doing` completes "the store failed while …".
    /// Dropping it ends it.
    pub(super) async fn read(&self, doing: &'static str) -> Result<Tx, StoreError> {
        let connection = match &self.backend {
            Backend::Sqlite { readers, .. } => readers.begin(doing).await?,
        };
        Ok(Tx { connection, names: self.names.clone(), doing })
    }

    /// Runs `job` in a write transaction. `Ok` is durable when this returns; on `Err` nothing of it is. A caller that
    /// stops waiting changes nothing: the job still ends one way or the other.
    pub(super) async fn write<T, E, F>(&self, doing: &'static str, job: F) -> Result<T, E>
    where
        F: for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        match &self.backend {
            Backend::Sqlite { writer, .. } => writer.run(doing, job).await,
        }
    }

    /// Every statement sent so far, as the verbs write it, with the tables' names.
    #[cfg(test)]
    pub(super) fn statements(&self) -> Vec<String> {
        self.names.statements()
    }
}

/// An open transaction.
pub(super) struct Tx {
    connection: Connection,
    names: Arc<Names>,
    doing: &'static str,
}

impl Tx {
    /// Executes one statement; how many rows it changed.
    pub(super) async fn execute(&mut self, sql: &str, args: Vec<Arg>) -> Result<u64, StoreError> {
        let sql = self.names.statement(sql, &args, self.doing)?;
        self.connection.execute(&sql, &args).map_err(|error| sqlite::error_while(self.doing, error))
    }

    /// Every row of one statement.
    pub(super) async fn fetch_all(&mut self, sql: &str, args: Vec<Arg>) -> Result<Vec<Row>, StoreError> {
        let sql = self.names.statement(sql, &args, self.doing)?;
        let answer = self.connection.fetch_all(&sql, &args).map_err(|error| sqlite::error_while(self.doing, error))?;
        let Answer { columns, rows } = answer;
        Ok(rows.into_iter().map(|values| Row { columns: columns.clone(), values, doing: self.doing }).collect())
    }

    /// The first row of one statement, if it has one. The statement is always executed to its end.
    pub(super) async fn fetch_optional(&mut self, sql: &str, args: Vec<Arg>) -> Result<Option<Row>, StoreError> {
        Ok(self.fetch_all(sql, args).await?.into_iter().next())
    }

    /// An error of this transaction about a value that it read.
    pub(super) fn corrupt(&self, what: impl Into<String>) -> StoreError {
        StoreError::Corrupt { doing: self.doing, what: what.into() }
    }
}

/// An argument of a statement. A NULL has a type too: Postgres wants to know it.
#[derive(Debug, Clone)]
pub(super) enum Arg {
    /// Text.
    Text(Option<String>),
    /// An integer of 64 bits.
    Int(Option<i64>),
    /// Bytes.
    Bytes(Option<Vec<u8>>),
}

macro_rules! arg_from {
    ($($type:ty => |$value:ident| $arg:expr;)*) => {
        $(impl From<$type> for Arg {
            fn from($value: $type) -> Arg {
                $arg
            }
        })*
    };
}

arg_from! {
    &str => |value| Arg::Text(Some(value.to_owned()));
    &String => |value| Arg::Text(Some(value.clone()));
    String => |value| Arg::Text(Some(value));
    Option<String> => |value| Arg::Text(value);
    Option<&str> => |value| Arg::Text(value.map(str::to_owned));
    i64 => |value| Arg::Int(Some(value));
    bool => |value| Arg::Int(Some(i64::from(value)));
    Timestamp => |value| Arg::Int(Some(value.0));
    Option<Timestamp> => |value| Arg::Int(value.map(|moment| moment.0));
    Vec<u8> => |value| Arg::Bytes(Some(value));
}

/// The arguments of a statement, each converted.
macro_rules! args {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::store::db::Arg::from($value)),*]
    };
}
pub(super) use args;

/// `$from, $from+1, …`: placeholders for a list of `count` values.
pub(super) fn placeholders(from: usize, count: usize) -> String {
    (from..from + count).map(|number| format!("${number}")).collect::<Vec<_>>().join(", ")
}

/// The smallest text that is greater than every text that begins with `prefix`, in the order of code points, which is
/// the database's order of bytes. `None` where there is none: the range has no end.
pub(super) fn end_of_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        if let Some(next) = (u32::from(last) + 1..=u32::from(char::MAX)).find_map(char::from_u32) {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

/// A value of an answer.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Null,
    Text(String),
    Int(i64),
    Bytes(Vec<u8>),
}

impl Value {
    /// What it is, for an error: the value itself may be anybody's.
    fn kind(&self) -> &'static str {
        match self {
            Value::Null => "nothing",
            Value::Text(_) => "text",
            Value::Int(_) => "an integer",
            Value::Bytes(_) => "bytes",
        }
    }
}

/// What a statement answered.
struct Answer {
    columns: Arc<[String]>,
    rows: Vec<Vec<Value>>,
}

/// One row of an answer. Every getter names the column in its error.
pub(super) struct Row {
    columns: Arc<[String]>,
    values: Vec<Value>,
    doing: &'static str,
}

impl Row {
    fn value(&self, column: &str) -> Result<&Value, StoreError> {
        let at = self.columns.iter().position(|name| name == column);
        at.and_then(|at| self.values.get(at)).ok_or_else(|| self.corrupt(column, "the statement has no such column"))
    }

    fn unexpected(&self, column: &str, expected: &str, found: &Value) -> StoreError {
        self.corrupt(column, format!("expected {expected}, found {}", found.kind()))
    }

    pub(super) fn corrupt(&self, column: &str, why: impl std::fmt::Display) -> StoreError {
        StoreError::Corrupt { doing: self.doing, what: format!("column {column}: {why}") }
    }

    pub(super) fn text(&self, column: &str) -> Result<String, StoreError> {
        self.opt_text(column)?.ok_or_else(|| self.unexpected(column, "text", &Value::Null))
    }

    pub(super) fn opt_text(&self, column: &str) -> Result<Option<String>, StoreError> {
        match self.value(column)? {
            Value::Null => Ok(None),
            Value::Text(text) => Ok(Some(text.clone())),
            other => Err(self.unexpected(column, "text", other)),
        }
    }

    pub(super) fn int(&self, column: &str) -> Result<i64, StoreError> {
        self.opt_int(column)?.ok_or_else(|| self.unexpected(column, "an integer", &Value::Null))
    }

    pub(super) fn opt_int(&self, column: &str) -> Result<Option<i64>, StoreError> {
        match self.value(column)? {
            Value::Null => Ok(None),
            Value::Int(value) => Ok(Some(*value)),
            other => Err(self.unexpected(column, "an integer", other)),
        }
    }

    pub(super) fn flag(&self, column: &str) -> Result<bool, StoreError> {
        Ok(self.int(column)? != 0)
    }

    pub(super) fn bytes(&self, column: &str) -> Result<Vec<u8>, StoreError> {
        match self.value(column)? {
            Value::Bytes(bytes) => Ok(bytes.clone()),
            other => Err(self.unexpected(column, "bytes", other)),
        }
    }

    pub(super) fn time(&self, column: &str) -> Result<Timestamp, StoreError> {
        Ok(Timestamp(self.int(column)?))
    }

    pub(super) fn opt_time(&self, column: &str) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.opt_int(column)?.map(Timestamp))
    }

    /// An integer that must fit the narrower type `T`.
    pub(super) fn count<T: TryFrom<i64>>(&self, column: &str) -> Result<T, StoreError> {
        let value = self.int(column)?;
        T::try_from(value).map_err(|_| self.corrupt(column, format!("{value} is out of range")))
    }

    /// A word with a type of its own, such as a state.
    pub(super) fn word<T: std::str::FromStr<Err = String>>(&self, column: &str) -> Result<T, StoreError> {
        self.text(column)?.parse().map_err(|error: String| self.corrupt(column, error))
    }

    /// A value stored as JSON text.
    pub(super) fn json<T: DeserializeOwned>(&self, column: &str) -> Result<T, StoreError> {
        serde_json::from_str(&self.text(column)?).map_err(|error| self.corrupt(column, error))
    }

    /// A value stored as JSON text, or nothing.
    pub(super) fn opt_json<T: DeserializeOwned>(&self, column: &str) -> Result<Option<T>, StoreError> {
        let text = self.opt_text(column)?;
        text.map(|text| serde_json::from_str(&text)).transpose().map_err(|error| self.corrupt(column, error))
    }
}

/// The names of tables, and the statements in which they have been put.
#[derive(Debug)]
struct Names {
    prefix: String,
    statements: Mutex<HashMap<String, Statement>>,
}

#[derive(Debug, Clone)]
struct Statement {
    sql: Arc<str>,
    parameters: usize,
}

/// Lists of varying length make statements of varying text; past this many, they are translated anew each time.
const STATEMENTS_KEPT_MAX: usize = 512;

impl Names {
    fn new(prefix: &str) -> Result<Names, StoreError> {
        let first_is_letter = prefix.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
        let is_name = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_';
        if !first_is_letter || !prefix.chars().all(is_name) || prefix.len() > 40 {
            return Err(StoreError::Prefix { prefix: prefix.to_owned() });
        }
        Ok(Names { prefix: prefix.to_owned(), statements: Mutex::default() })
    }

    fn put_into(&self, sql: &str) -> String {
        sql.replace('@', &self.prefix)
    }

    /// `sql` for the database. SQLite reads an argument that is missing as NULL, silently; here it is an error.
    fn statement(&self, sql: &str, args: &[Arg], doing: &'static str) -> Result<Arc<str>, StoreError> {
        let mut statements = self.statements.lock().unwrap_or_else(PoisonError::into_inner);
        let statement = match statements.get(sql) {
            Some(statement) => statement.clone(),
            None => {
                // SQLite numbers `?2` by its number, and `$2` by where it stands first.
                let translated = self.put_into(sql).replace('$', "?");
                let statement = Statement { sql: translated.into(), parameters: count_parameters(sql) };
                if statements.len() < STATEMENTS_KEPT_MAX {
                    statements.insert(sql.to_owned(), statement.clone());
                }
                statement
            }
        };
        if statement.parameters != args.len() {
            let what = format!("{} arguments for {} in: {sql}", args.len(), statement.parameters);
            return Err(StoreError::failed(doing, what));
        }
        Ok(statement.sql)
    }

    #[cfg(test)]
    fn statements(&self) -> Vec<String> {
        let statements = self.statements.lock().unwrap_or_else(PoisonError::into_inner);
        statements.keys().map(|sql| self.put_into(sql)).collect()
    }
}

/// The highest number of a `$` placeholder.
fn count_parameters(sql: &str) -> usize {
    let numbers = sql.split('$').skip(1).map(|rest| {
        let digits = rest.find(|char: char| !char.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse().unwrap_or(0)
    });
    numbers.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_of_table_names_cannot_carry_sql() {
        for good in ["tollgate_", "t", "_x9_"] {
            assert!(Names::new(good).is_ok(), "{good}");
        }
        for bad in ["", "9x", "T_", "a b", "a;", "a\"", "é"] {
            assert!(Names::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_end_of_a_prefix_is_past_everything_that_begins_with_it() {
        let check = |prefix: &str, expected: Option<&str>| {
            assert_eq!(end_of_prefix(prefix).as_deref(), expected, "{prefix:?}");
        };
        check("", None);
        check("a", Some("b"));
        check("50%", Some("50&"));
        check("a\u{10FFFF}", Some("b"));
        check("\u{10FFFF}", None);
        // Surrogates are no characters: the next one is past them.
        check("\u{D7FF}", Some("\u{E000}"));
    }

    #[test]
    fn a_missing_argument_is_an_error_and_not_a_null() {
        let names = Names::new("t_").expect("a good prefix");
        let sql = "SELECT 1 FROM @runs WHERE id = $1 AND state = $2";
        let (too_few, enough): (Vec<Arg>, Vec<Arg>) = (args!["a"], args!["a", "b"]);
        assert!(names.statement(sql, &too_few, "testing").is_err());
        let sent = names.statement(sql, &enough, "testing").expect("enough arguments");
        assert_eq!(&*sent, "SELECT 1 FROM t_runs WHERE id = ?1 AND state = ?2");
    }
}
