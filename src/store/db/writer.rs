//! The one writer of a process: a thread that owns one connection and runs one write transaction after another.
//!
//! A job is a whole transaction and costs one hop, however many statements it has. It is run to its end even where its
//! caller stops waiting, and a job that panics undoes itself alone. The thread has a runtime of its own, so that a
//! commit neither waits for a busy runtime nor dies with one. It knows nothing of what a job writes, which is why
//! several jobs could share one transaction, each in a savepoint, without anybody above noticing.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sqlx::{Connection as _, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use super::sqlite::{File, control, error_while};
use super::{Connection, Names, StoreError, Tx};

/// Jobs that wait for the writer before whoever brings another one waits too.
const JOBS_WAITING_MAX: usize = 1024;

/// The way to the writer. The thread ends when the last handle is gone and every job before is done.
#[derive(Debug)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Box<dyn Job>>,
}

impl Writer {
    /// Starts the thread and waits until the file is open and migrated.
    pub(super) async fn start(file: File, names: Arc<Names>) -> Result<Writer, StoreError> {
        const DOING: &str = "starting its writer";
        let (jobs, waiting) = mpsc::channel(JOBS_WAITING_MAX);
        let (ready, opened) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(|error| StoreError::Database { doing: DOING, source: Box::new(error) })?;
        let thread = std::thread::Builder::new().name("tollgate-writer".to_owned());
        let started = thread.spawn(move || {
            runtime.block_on(async move {
                let connection = match file.prepare(&names).await {
                    Ok(connection) => connection,
                    Err(error) => return drop(ready.send(Err(error))),
                };
                if ready.send(Ok(())).is_ok() {
                    serve(file, Tx { connection: Connection::Writer(connection), names, doing: DOING }, waiting).await;
                }
            });
        });
        started.map_err(|error| StoreError::Database { doing: DOING, source: Box::new(error) })?;
        opened.await.unwrap_or_else(|_| Err(StoreError::failed(DOING, "its thread ended")))?;
        Ok(Writer { jobs })
    }

    /// See [`super::Database::write`].
    pub(super) async fn run<T, E, F>(&self, doing: &'static str, body: F) -> Result<T, E>
    where
        F: for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Transaction { doing, body: Some(body), outcome: None, reply };
        let gone = || E::from(StoreError::failed(doing, "the writer of the store has ended"));
        self.jobs.send(Box::new(job)).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// One write transaction, as the writer sees it.
trait Job: Send {
    fn doing(&self) -> &'static str;

    /// Runs its statements; whether they are to be committed.
    fn run<'t>(&'t mut self, tx: &'t mut Tx) -> BoxFuture<'t, bool>;

    /// Tells the caller, now that the transaction has ended: by its own result, or by what kept it from one.
    fn finish(self: Box<Self>, ended: Result<(), StoreError>);
}

struct Transaction<T, E, F> {
    doing: &'static str,
    body: Option<F>,
    outcome: Option<Result<T, E>>,
    reply: oneshot::Sender<Result<T, E>>,
}

impl<T, E, F> Job for Transaction<T, E, F>
where
    F: for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<T, E>> + Send,
    T: Send,
    E: From<StoreError> + Send,
{
    fn doing(&self) -> &'static str {
        self.doing
    }

    fn run<'t>(&'t mut self, tx: &'t mut Tx) -> BoxFuture<'t, bool> {
        Box::pin(async move {
            let Some(body) = self.body.take() else { return false };
            let outcome = body(tx).await;
            let commit = outcome.is_ok();
            self.outcome = Some(outcome);
            commit
        })
    }

    fn finish(self: Box<Self>, ended: Result<(), StoreError>) {
        let answer = match (ended, self.outcome) {
            (Ok(()), Some(outcome)) => outcome,
            (Ok(()), None) => {
                Err(E::from(StoreError::failed(self.doing, "a fault of ours stopped it; nothing was written")))
            }
            (Err(error), _) => Err(E::from(error)),
        };
        // Nobody may be waiting any more, which changes nothing.
        let _ = self.reply.send(answer);
    }
}

async fn serve(file: File, mut tx: Tx, mut waiting: mpsc::Receiver<Box<dyn Job>>) {
    while let Some(mut job) = waiting.recv().await {
        tx.doing = job.doing();
        let Ended { result, connection_usable } = transact(&mut tx, job.as_mut()).await;
        job.finish(result);
        if !connection_usable && let Ok(connection) = file.reconnect().await {
            // Dropping the old one rolls back whatever it still had open. Where there is no new one yet, the next job's
            // BEGIN fails on the old one, and brings us here again.
            tx.connection = Connection::Writer(connection);
        }
    }
    if let Connection::Writer(connection) = tx.connection {
        let _ = connection.close().await;
    }
}

struct Ended {
    result: Result<(), StoreError>,
    connection_usable: bool,
}

async fn transact(tx: &mut Tx, job: &mut dyn Job) -> Ended {
    let doing = tx.doing;
    if let Err(error) = control(tx.connection.sqlite(), "BEGIN IMMEDIATE").await {
        let error = error_while(doing, error);
        let connection_usable = matches!(error, StoreError::Busy { .. });
        return Ended { result: Err(error), connection_usable };
    }
    // A panic has unwound the job's own values and nothing of the connection, which lives on another thread.
    let commit = AssertUnwindSafe(job.run(tx)).catch_unwind().await.unwrap_or(false);
    let connection: &mut SqliteConnection = tx.connection.sqlite();
    if !commit {
        // What the job said stands, whether or not the connection is still good for a rollback.
        let connection_usable = control(connection, "ROLLBACK").await.is_ok();
        return Ended { result: Ok(()), connection_usable };
    }
    match control(connection, "COMMIT").await {
        Ok(()) => Ended { result: Ok(()), connection_usable: true },
        Err(error) => Ended { result: Err(error_while(doing, error)), connection_usable: false },
    }
}
