//! SQLite: its file, its settings, its migrations, and the patience that keeps "database is locked" from anybody.
//!
//! Several processes may use one file. Whatever waits for another process's lock waits here, up to [`PATIENCE`]; no
//! other module retries anything.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{
    AssertSqlSafe, Connection as _, Row as _, SqlSafeStr as _, Sqlite, SqliteConnection, SqlitePool, Transaction,
};

use super::{Names, StoreError};

/// How long anything waits for another process's lock before it says so.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long SQLite itself waits before it comes back to us.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// A read holds a connection for the length of one call; more of them than this gain nothing on one file.
const READERS_MAX: u32 = 4;
/// More than there are statements, so that each is prepared once a connection.
const STATEMENTS_PREPARED_MAX: usize = 256;

/// Number, name and text of every migration, in order.
const MIGRATIONS: [(i64, &str, &str); 1] = [(1, "start", include_str!("../../../migrations/sqlite/0001_start.sql"))];

/// The file of a database.
#[derive(Debug, Clone)]
pub(super) struct File {
    path: PathBuf,
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
        let connected = self.connect(self.options().create_if_missing(false).pragma("query_only", "ON")).await;
        let mut connection = connected.map_err(|error| self.unopenable("it cannot be opened", error))?;
        let found = sqlx::query("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = $1")
            .bind(names.put_into("@migrations"))
            .fetch_optional(&mut connection)
            .await;
        match found.map_err(|error| self.unopenable("it cannot be read", error))? {
            Some(_) => Ok(()),
            None => {
                let why = "it is not a store of Tollgate; `tollgate init` creates one".to_owned();
                Err(StoreError::Open { path: self.shown(), why, source: None })
            }
        }
    }

    /// Creates what is missing, switches the file to a write-ahead log and migrates it. The connection becomes the
    /// writer's.
    pub(super) async fn prepare(&self, names: &Names) -> Result<SqliteConnection, StoreError> {
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let made = std::fs::create_dir_all(folder);
            made.map_err(|error| self.unopenable("its folder cannot be created", error))?;
        }
        let connected = self.connect(self.options().create_if_missing(true)).await;
        let mut connection = connected.map_err(|error| self.unopenable("it cannot be opened or created", error))?;
        self.use_write_ahead_log(&mut connection).await?;
        self.migrate(&mut connection, names).await?;
        Ok(connection)
    }

    /// The writer's connection once more, after an error that left the first one in doubt.
    pub(super) async fn reconnect(&self) -> Result<SqliteConnection, sqlx::Error> {
        self.connect(self.options()).await
    }

    /// Connections for reading, opened as they are needed.
    pub(super) fn readers(&self) -> SqlitePool {
        // No idle timeout and no maximal age: either would put a task of the pool's into whatever runtime opens the
        // store.
        SqlitePoolOptions::new()
            .max_connections(READERS_MAX)
            .acquire_timeout(PATIENCE)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .connect_lazy_with(self.options().pragma("query_only", "ON"))
    }

    fn options(&self) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(&self.path)
            .foreign_keys(true)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT)
            .statement_cache_capacity(STATEMENTS_PREPARED_MAX)
    }

    async fn connect(&self, options: SqliteConnectOptions) -> Result<SqliteConnection, sqlx::Error> {
        let patience = Patience::begins();
        loop {
            match SqliteConnection::connect_with(&options).await {
                Err(error) if patience.lasts(&error).await => {}
                result => return result,
            }
        }
    }

    /// Changing the mode wants the file for itself, and SQLite does not always wait for that: of processes that open an
    /// empty file at once, all but one are told that it is locked.
    async fn use_write_ahead_log(&self, connection: &mut SqliteConnection) -> Result<(), StoreError> {
        let patience = Patience::begins();
        loop {
            let row = sqlx::query("PRAGMA journal_mode = WAL").fetch_one(&mut *connection).await;
            match row.and_then(|row| row.try_get::<String, _>(0)) {
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

    /// sqlx's migrator takes no lock on SQLite. Under one write transaction of ours, of processes that start at once
    /// the first migrates, and the others find nothing left to do.
    async fn migrate(&self, connection: &mut SqliteConnection, names: &Names) -> Result<(), StoreError> {
        let migrations = MIGRATIONS.map(|(version, name, sql)| {
            let sql = AssertSqlSafe(names.put_into(sql)).into_sql_str();
            // The last argument: it needs no transaction of its own, it has ours.
            Migration::new(version, name.into(), MigrationType::Simple, sql, true)
        });
        let mut migrator = Migrator::with_migrations(migrations.into());
        migrator.dangerous_set_table_name(names.put_into("@migrations"));
        let begun = control(connection, "BEGIN IMMEDIATE").await;
        begun.map_err(|error| self.unopenable("its schema cannot be locked", error))?;
        // On an error the connection is dropped, which rolls back.
        migrator.run_direct(None, connection, false).await.map_err(|error| self.unmigrated(error))?;
        control(connection, "COMMIT").await.map_err(|error| self.unopenable("its schema cannot be written", error))
    }

    fn unmigrated(&self, error: MigrateError) -> StoreError {
        match error {
            MigrateError::VersionMissing(found) => {
                let known = MIGRATIONS.map(|(version, ..)| version).into_iter().max().unwrap_or(0);
                StoreError::TooNew { path: self.shown(), found, known }
            }
            MigrateError::VersionMismatch(version) => StoreError::Open {
                path: self.shown(),
                why: format!(
                    "its schema {version} is not the one of that number that this program knows; open it with the program that wrote it, or begin a new store"
                ),
                source: None,
            },
            error => self.unopenable("its schema cannot be brought up to date", error),
        }
    }

    fn unopenable(&self, why: &str, error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        StoreError::Open { path: self.shown(), why: why.to_owned(), source: Some(Box::new(error)) }
    }

    fn shown(&self) -> String {
        self.path.display().to_string()
    }
}

/// `BEGIN IMMEDIATE`, `COMMIT` or `ROLLBACK`, however long another process holds the lock that it needs, up to
/// [`PATIENCE`].
///
/// Not sqlx's own transaction: it borrows the connection for its life, and the writer keeps one connection for ever.
pub(super) async fn control(connection: &mut SqliteConnection, statement: &'static str) -> Result<(), sqlx::Error> {
    let patience = Patience::begins();
    loop {
        match sqlx::raw_sql(statement).execute(&mut *connection).await {
            Err(error) if patience.lasts(&error).await => {}
            result => return result.map(|_| ()),
        }
    }
}

/// Begins a read transaction whose moment is now.
pub(super) async fn begin_read(
    readers: &SqlitePool,
    doing: &'static str,
) -> Result<Transaction<'static, Sqlite>, StoreError> {
    let patience = Patience::begins();
    loop {
        match begin_read_once(readers).await {
            Err(error) if patience.lasts(&error).await => {}
            result => return result.map_err(|error| error_while(doing, error)),
        }
    }
}

async fn begin_read_once(readers: &SqlitePool) -> Result<Transaction<'static, Sqlite>, sqlx::Error> {
    let mut transaction = readers.begin().await?;
    // SQLite's BEGIN takes no lock and fixes no moment; the first statement that reads does. Made here, it is the only
    // one that can find the file busy.
    sqlx::query("SELECT 1 FROM sqlite_master LIMIT 1").fetch_optional(&mut *transaction).await?;
    Ok(transaction)
}

/// What became of a statement of the store, in its own error.
pub(super) fn error_while(doing: &'static str, error: sqlx::Error) -> StoreError {
    match is_busy(&error) {
        true => StoreError::Busy { doing, waited: PATIENCE },
        false => StoreError::Database { doing, source: Box::new(error) },
    }
}

/// Another connection holds a lock (SQLITE_BUSY or SQLITE_LOCKED, in any of their extended forms).
fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.and_then(|code| code.parse::<i32>().ok()).is_some_and(|code| matches!(code & 0xff, 5 | 6))
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
    async fn lasts(&self, error: &sqlx::Error) -> bool {
        let lasts = is_busy(error) && self.since.elapsed() < PATIENCE;
        if lasts {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        lasts
    }
}
