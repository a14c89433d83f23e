//! The one writer of a process: a thread that owns one connection and runs one write transaction after another.
//!
//! A job is a whole transaction and costs one hop, however many statements it has. Jobs that came while the last COMMIT
//! waited for the disk share the next one, each in a savepoint of its own, and nobody above notices. A job is run to its
//! end even where its caller stops waiting, and one that panics undoes itself alone. The thread has a runtime of its own,
//! so that a commit neither waits for a busy runtime nor dies with one. It knows nothing of what a job writes.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::sqlite::{File, error_while};
use super::{Names, StoreError, Tx};

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
                    serve(file, Tx { connection, names, doing: DOING }, waiting).await;
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

/// Jobs that share one COMMIT: more of them make the first wait for the last, and fewer wait more often for the disk.
const JOBS_TOGETHER_MAX: usize = 128;

async fn serve(file: File, mut tx: Tx, mut waiting: mpsc::Receiver<Box<dyn Job>>) {
    while let Some(first) = waiting.recv().await {
        let mut batch = vec![first];
        // Whoever came while the last COMMIT waited for the disk goes together: it is the sync that takes time.
        while batch.len() < JOBS_TOGETHER_MAX
            && let Ok(job) = waiting.try_recv()
        {
            batch.push(job);
        }
        let connection_usable = match batch.len() {
            1 => alone(&mut tx, batch.remove(0)).await,
            _ => together(&mut tx, batch).await,
        };
        if !connection_usable && let Ok(connection) = file.reconnect().await {
            // Dropping the old one rolls back whatever it still had open. Where there is no new one yet, the next job's
            // BEGIN fails on the old one, and brings us here again.
            tx.connection = connection;
        }
    }
}

/// Runs one job in a transaction of its own. Whether the connection is still good.
async fn alone(tx: &mut Tx, mut job: Box<dyn Job>) -> bool {
    tx.doing = job.doing();
    if let Err(error) = tx.connection.control("BEGIN IMMEDIATE").await {
        let error = error_while(tx.doing, error);
        let connection_usable = matches!(error, StoreError::Busy { .. });
        job.finish(Err(error));
        return connection_usable;
    }
    let commit = run(job.as_mut(), tx).await;
    if !commit {
        // What the job said stands, whether or not the connection is still good for a rollback.
        let connection_usable = tx.connection.control("ROLLBACK").await.is_ok();
        job.finish(Ok(()));
        return connection_usable;
    }
    let committed = tx.connection.control("COMMIT").await;
    let connection_usable = committed.is_ok();
    job.finish(committed.map_err(|error| error_while(tx.doing, error)));
    connection_usable
}

/// Runs several jobs in one transaction, each in a savepoint: one that fails is undone alone. Whether the connection is
/// still good.
async fn together(tx: &mut Tx, mut batch: Vec<Box<dyn Job>>) -> bool {
    let mut broken = tx.connection.control("BEGIN IMMEDIATE").await.err();
    for job in &mut batch {
        if broken.is_none() {
            tx.doing = job.doing();
            broken = in_a_savepoint(job.as_mut(), tx).await.err();
        }
    }
    if broken.is_none() {
        broken = tx.connection.control("COMMIT").await.err();
    }
    // Where the transaction broke, what a job said that undid itself may rest on what another one wrote, and is not told.
    let broken = broken.map(|error| error_while(tx.doing, error));
    for job in batch {
        let ended = broken.as_ref().map_or(Ok(()), |error| Err(error.shared_with(job.doing())));
        job.finish(ended);
    }
    match broken {
        None => true,
        // Nothing was begun, so there is nothing to roll back.
        Some(StoreError::Busy { .. }) => tx.connection.control("ROLLBACK").await.is_ok(),
        Some(_) => false,
    }
}

async fn in_a_savepoint(job: &mut dyn Job, tx: &mut Tx) -> Result<(), rusqlite::Error> {
    tx.connection.control("SAVEPOINT job").await?;
    if !run(job, tx).await {
        tx.connection.control("ROLLBACK TO job").await?;
    }
    tx.connection.control("RELEASE job").await
}

/// A panic has unwound the job's own values; a statement that it was in has been reset on the way, and what it wrote is
/// rolled back with the rest of the job.
async fn run(job: &mut dyn Job, tx: &mut Tx) -> bool {
    AssertUnwindSafe(job.run(tx)).catch_unwind().await.unwrap_or(false)
}
