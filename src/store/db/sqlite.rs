//! SQLite: its file, its settings, its migrations, and the patience that keeps "database is locked" from anybody.
//!
//! Several processes may use one file. Whatever waits for another process's lock waits here, up to [`PATIENCE`]; no
//! other module retries anything.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{OpenFlags, OptionalExtension as _, ToSql};
use sha2::{Digest as _, Sha256};

use super::{Answer, Arg, Names, StoreError, Value};

/// How long anything waits for another process's lock before it says so.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long SQLite itself waits before it comes back to us, where a thread of ours may stand still for it.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// Connections for reading that are kept. A read holds one for the length of one call.
const READERS_KEPT_MAX: usize = 8;
/// More than there are statements, so that each is prepared once a connection.
const STATEMENTS_PREPARED_MAX: usize = 256;

/// Number, name and text of every migration, in order.
const MIGRATIONS: [(i64, &str, &str); 1] = [(1, "start", include_str!("../../../migrations/sqlite/0001_start.sql"))];

/// The file of a database.
#[derive(Debug, Clone)]
pub(super) struct File {
    path: PathBuf,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    /// Writing, on a thread of its own.
    Writing,
    /// Writing, where a missing file is created.
    Creating,
    /// Reading, on a thread that others need too.
    Reading,
}

impl File {
    /// Reads `sqlite:PATH`, `sqlite://PATH` or a plain path.
    pub(super) fn parse(url: &str) -> Result<File, StoreError> {
        let refused = |why: &str| Err(StoreError::Address { url: url.to_owned(), why: why.to_owned() });
        if url.starts_with("postgres:") || url.starts_with("postgresql:") {
            return refused("this version keeps its store on SQLite only; write sqlite:PATH");
        }
        let path = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:")).unwrap_or(url);
        if path.contains("://") {
            return refused("write sqlite:PATH");
        }
        if path.is_empty() || path == ":memory:" {
            return refused("a store is a file, so that it outlives the process; write sqlite:PATH");
        }
        Ok(File { path: PathBuf::from(path) })
    }

    /// Looks, without writing anything, whether the file holds a store.
    pub(super) async fn check_is_a_store(&self, names: &Names) -> Result<(), StoreError> {
        let connected = self.connect(For::Reading).await;
        let connection = connected.map_err(|error| self.unopenable("it cannot be opened", error))?;
        let sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = $1";
        let found = connection.inner().query_row(sql, [names.put_into("@migrations")], |_| Ok(())).optional();
        match found.map_err(|error| self.unopenable("it cannot be read", error))? {
            Some(()) => Ok(()),
            None => {
                let why = "it is not a store of Tollgate; `tollgate init` creates one".to_owned();
                Err(StoreError::Open { path: self.shown(), why, source: None })
            }
        }
    }

    /// Creates what is missing, switches the file to a write-ahead log and migrates it. The connection becomes the
    /// writer's.
    pub(super) async fn prepare(&self, names: &Names) -> Result<Connection, StoreError> {
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let made = std::fs::create_dir_all(folder);
            made.map_err(|error| self.unopenable("its folder cannot be created", error))?;
        }
        let connected = self.connect(For::Creating).await;
        let mut connection = connected.map_err(|error| self.unopenable("it cannot be opened or created", error))?;
        self.use_write_ahead_log(&mut connection).await?;
        self.migrate(&mut connection, names).await?;
        Ok(connection)
    }

    /// The writer's connection once more, after an error that left the first one in doubt.
    pub(super) async fn reconnect(&self) -> Result<Connection, rusqlite::Error> {
        self.connect(For::Writing).await
    }

    async fn connect(&self, purpose: For) -> Result<Connection, rusqlite::Error> {
        let patience = Patience::begins();
        loop {
            match self.connect_once(purpose) {
                Err(error) if patience.lasts(&error).await => {}
                result => return result,
            }
        }
    }

    fn connect_once(&self, purpose: For) -> Result<Connection, rusqlite::Error> {
        // A connection belongs to one thread at a time, which the compiler sees to. A path is a path, and no URI.
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags.set(OpenFlags::SQLITE_OPEN_CREATE, purpose == For::Creating);
        let inner = rusqlite::Connection::open_with_flags(&self.path, flags)?;
        inner.set_prepared_statement_cache_capacity(STATEMENTS_PREPARED_MAX);
        match purpose {
            For::Reading => {
                inner.busy_timeout(Duration::ZERO)?;
                inner.pragma_update(None, "query_only", true)?;
            }
            For::Writing | For::Creating => inner.busy_timeout(BUSY_TIMEOUT)?,
        }
        inner.pragma_update(None, "foreign_keys", true)?;
        inner.pragma_update(None, "synchronous", "FULL")?;
        Ok(Connection { inner: Some(inner), home: None })
    }

    /// Changing the mode wants the file for itself, and SQLite does not always wait for that: of processes that open an
    /// empty file at once, all but one are told that it is locked.
    async fn use_write_ahead_log(&self, connection: &mut Connection) -> Result<(), StoreError> {
        let patience = Patience::begins();
        loop {
            let mode = connection.inner().query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
            match mode {
                Ok(mode) if mode == "wal" => return Ok(()),
                Ok(mode) => {
                    let why =
                        format!("its file system allows no write-ahead log (journal mode {mode}); use a local one");
                    return Err(StoreError::Open { path: self.shown(), why, source: None });
                }
                Err(error) if patience.lasts(&error).await => {}
                Err(error) => return Err(self.unopenable("it cannot be switched to a write-ahead log", error)),
            }
        }
    }

    /// Under one write transaction: of processes that start at once the first migrates, and the others find nothing left
    /// to do.
    async fn migrate(&self, connection: &mut Connection, names: &Names) -> Result<(), StoreError> {
        let begun = connection.control("BEGIN IMMEDIATE").await;
        begun.map_err(|error| self.unopenable("its schema cannot be locked", error))?;
        // On an error the connection is dropped, which rolls back.
        let found = apply_migrations(connection.inner(), names)
            .map_err(|error| self.unopenable("its schema cannot be brought up to date", error))?;
        match found {
            Found::Known => {
                let committed = connection.control("COMMIT").await;
                committed.map_err(|error| self.unopenable("its schema cannot be written", error))
            }
            Found::Newer(found) => {
                let known = MIGRATIONS.map(|(version, ..)| version).into_iter().max().unwrap_or(0);
                Err(StoreError::TooNew { path: self.shown(), found, known })
            }
            Found::Other(version) => Err(StoreError::Open {
                path: self.shown(),
                why: format!(
                    "its schema {version} is not the one of that number that this program knows; open it with the program that wrote it, or begin a new store"
                ),
                source: None,
            }),
        }
    }

    fn unopenable(&self, why: &str, error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        StoreError::Open { path: self.shown(), why: why.to_owned(), source: Some(Box::new(error)) }
    }

    fn shown(&self) -> String {
        self.path.display().to_string()
    }
}

/// The schema that a file was found with.
enum Found {
    /// One that this program has brought, or now has.
    Known,
    /// One with a migration that this program does not know: its number.
    Newer(i64),
    /// One whose migration of this number has another text.
    Other(i64),
}

fn apply_migrations(connection: &rusqlite::Connection, names: &Names) -> Result<Found, rusqlite::Error> {
    connection.execute_batch(&names.put_into(
        "CREATE TABLE IF NOT EXISTS @migrations \
         (version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, sha256 TEXT NOT NULL) STRICT",
    ))?;
    let applied: Vec<(i64, String)> = connection
        .prepare(&names.put_into("SELECT version, sha256 FROM @migrations ORDER BY version DESC"))?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let unknown = applied.iter().find(|(version, _)| MIGRATIONS.iter().all(|(known, ..)| known != version));
    if let Some((version, _)) = unknown {
        return Ok(Found::Newer(*version));
    }
    for (version, name, sql) in MIGRATIONS {
        let sql = names.put_into(sql);
        let sha256 = hex::encode(Sha256::digest(sql.as_bytes()));
        match applied.iter().find(|(applied, _)| *applied == version) {
            Some((_, same)) if *same == sha256 => {}
            Some(_) => return Ok(Found::Other(version)),
            None => {
                connection.execute_batch(&sql)?;
                let record = names.put_into("INSERT INTO @migrations (version, name, sha256) VALUES ($1, $2, $3)");
                connection.execute(&record, (version, name, sha256))?;
            }
        }
    }
    Ok(Found::Known)
}

/// A connection: the writer's, for as long as the process lives, or a reader's in a transaction, which ends and gives the
/// connection back when this is dropped.
pub(super) struct Connection {
    /// `None` only while it is dropped.
    inner: Option<rusqlite::Connection>,
    home: Option<Arc<Readers>>,
}

impl Connection {
    fn inner(&self) -> &rusqlite::Connection {
        // It is taken out by `drop` alone.
        self.inner.as_ref().expect("a connection is there until it is dropped")
    }

    /// Executes one statement; how many rows it changed.
    pub(super) fn execute(&mut self, sql: &str, args: &[Arg]) -> Result<u64, rusqlite::Error> {
        let changed = self.inner().prepare_cached(sql)?.execute(rusqlite::params_from_iter(args))?;
        Ok(u64::try_from(changed).unwrap_or(u64::MAX))
    }

    /// Executes one statement to its end; every row of its answer.
    pub(super) fn fetch_all(&mut self, sql: &str, args: &[Arg]) -> Result<Answer, rusqlite::Error> {
        let mut statement = self.inner().prepare_cached(sql)?;
        let columns: Arc<[String]> = statement.column_names().into_iter().map(str::to_owned).collect();
        let mut answer = Answer { columns, rows: Vec::new() };
        let mut rows = statement.query(rusqlite::params_from_iter(args))?;
        while let Some(row) = rows.next()? {
            let values = (0..answer.columns.len()).map(|column| value_of(column, row.get_ref(column)?));
            answer.rows.push(values.collect::<Result<_, _>>()?);
        }
        Ok(answer)
    }

    /// `BEGIN IMMEDIATE`, `COMMIT`, `ROLLBACK` or one of a savepoint, however long another process holds the lock that
    /// it needs, up to [`PATIENCE`].
    pub(super) async fn control(&mut self, statement: &'static str) -> Result<(), rusqlite::Error> {
        let patience = Patience::begins();
        loop {
            match self.execute(statement, &[]) {
                Err(error) if patience.lasts(&error).await => {}
                result => return result.map(|_| ()),
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let (Some(inner), Some(home)) = (self.inner.take(), self.home.take()) {
            home.take_back(inner);
        }
    }
}

/// Connections for reading, opened as they are needed and kept. Each read is executed where it is asked for, so that
/// there are never many more of them than threads that ask.
#[derive(Debug)]
pub(super) struct Readers {
    file: File,
    idle: Mutex<Vec<rusqlite::Connection>>,
}

impl Readers {
    /// The readers of `file`; none is opened yet.
    pub(super) fn of(file: File) -> Readers {
        Readers { file, idle: Mutex::default() }
    }

    /// Begins a read transaction whose moment is now.
    pub(super) async fn begin(self: &Arc<Readers>, doing: &'static str) -> Result<Connection, StoreError> {
        let patience = Patience::begins();
        loop {
            match self.begin_once().await {
                Err(error) if patience.lasts(&error).await => {}
                result => return result.map_err(|error| error_while(doing, error)),
            }
        }
    }

    async fn begin_once(self: &Arc<Readers>) -> Result<Connection, rusqlite::Error> {
        let idle = self.idle().pop();
        let mut connection = match idle {
            Some(inner) => Connection { inner: Some(inner), home: None },
            None => self.file.connect(For::Reading).await?,
        };
        connection.home = Some(self.clone());
        connection.execute("BEGIN", &[])?;
        // SQLite's BEGIN takes no lock and fixes no moment; the first statement that reads does. Made here, it is the only
        // one that can find the file busy.
        connection.fetch_all("SELECT 1 FROM sqlite_master LIMIT 1", &[])?;
        Ok(connection)
    }

    fn take_back(&self, connection: rusqlite::Connection) {
        // Where its BEGIN failed it has no transaction to end.
        let usable = connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok();
        let mut idle = self.idle();
        if usable && idle.len() < READERS_KEPT_MAX {
            idle.push(connection);
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<rusqlite::Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ToSql for Arg {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>, rusqlite::Error> {
        let value = match self {
            Arg::Text(Some(text)) => ValueRef::Text(text.as_bytes()),
            Arg::Int(Some(value)) => ValueRef::Integer(*value),
            Arg::Bytes(Some(bytes)) => ValueRef::Blob(bytes),
            Arg::Text(None) | Arg::Int(None) | Arg::Bytes(None) => ValueRef::Null,
        };
        Ok(ToSqlOutput::Borrowed(value))
    }
}

fn value_of(column: usize, value: ValueRef<'_>) -> Result<Value, rusqlite::Error> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(value) => Value::Int(value),
        ValueRef::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => Value::Text(text.to_owned()),
            Err(error) => return Err(rusqlite::Error::Utf8Error(column, error)),
        },
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_owned()),
        // No column of the schema holds one.
        ValueRef::Real(_) => {
            let name = "a real number".to_owned();
            return Err(rusqlite::Error::InvalidColumnType(column, name, rusqlite::types::Type::Real));
        }
    })
}

/// What became of a statement of the store, in its own error.
pub(super) fn error_while(doing: &'static str, error: rusqlite::Error) -> StoreError {
    match is_busy(&error) {
        true => StoreError::Busy { doing, waited: PATIENCE },
        false => StoreError::Database { doing, source: Box::new(error) },
    }
}

/// Another connection holds a lock (SQLITE_BUSY or SQLITE_LOCKED, in any of their extended forms).
fn is_busy(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
    error.sqlite_error_code().is_some_and(|code| matches!(code, DatabaseBusy | DatabaseLocked))
}

/// Waits for a lock that another process holds, and stops waiting one day.
struct Patience {
    since: Instant,
}

impl Patience {
    fn begins() -> Patience {
        Patience { since: Instant::now() }
    }

    /// Whether to try again after `error`; where so, a moment has passed.
    async fn lasts(&self, error: &rusqlite::Error) -> bool {
        let lasts = is_busy(error) && self.since.elapsed() < PATIENCE;
        if lasts {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        lasts
    }
}
