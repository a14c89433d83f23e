//! Everything wired: what the program does goes through here, and an embedder with the built-in store starts here.
//!
//! It holds no logic of its own: `component` uploads, `run` starts, drives, rehearses and settles.

use std::sync::Arc;

use crate::clock::Ambient;
use crate::component::Registry;
use crate::journal::Journal;
use crate::perform::{Check, Gate};
use crate::policy::{Policy, Secrets};
use crate::run::Watch;
use crate::sandbox::{Sandbox, Unobserved};
use crate::store::Store;

/// A store, a sandbox and a policy. Clones share them.
///
/// ```no_run
/// use tollgate::host::Host;
/// use tollgate::policy::Policy;
/// use tollgate::run::{DriveOptions, StartRun};
/// use tollgate::sandbox::Sandbox;
/// use tollgate::store::{Store, StoreOptions};
/// use tollgate::workflow::Workflow;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::parse("tollgate.toml", &std::fs::read_to_string("tollgate.toml")?)?;
/// let store = Store::open("sqlite:.tollgate/tollgate.db", StoreOptions::default()).await?;
/// let host = Host::new(store, Sandbox::new()?, policy);
///
/// host.registry.push("billing", std::fs::read("invoices.wasm")?, &host.policy).await?;
/// let workflow = Workflow::parse("dunning.yaml", &std::fs::read_to_string("dunning.yaml")?)?;
/// let started = host.start(StartRun::of(workflow)).await?;
/// let ended = host.drive(&started.run, DriveOptions::new("worker-1")).await?;
/// println!("{ended:?}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Host {
    /// Runs, components, effects, budgets, events.
    pub store: Store,
    /// Where performers write: the store itself, or whatever an embedder puts around it.
    pub journal: Arc<dyn Journal>,
    /// Where guests run.
    pub sandbox: Sandbox,
    /// What is granted.
    pub policy: Arc<Policy>,
    /// The store's components, compiled when they are needed.
    pub registry: Registry,
    /// Time and ids.
    pub ambient: Ambient,
    /// Whether budgets are on. Off: `plan` is not called at execution, nothing is charged, meters count and never refuse.
    pub budgets: bool,
    /// The embedder's own check (R4); `None` asks the actions alone.
    pub check: Option<Arc<dyn Check>>,
    /// Whoever watches runs as they go.
    pub watch: Arc<dyn Watch>,
}

impl Host {
    /// On the machine's clocks, with budgets on, watched by nobody, with no check of its own.
    pub fn new(store: Store, sandbox: Sandbox, policy: Policy) -> Host {
        let ambient = Ambient::system();
        let registry = Registry::new(store.clone(), sandbox.clone(), ambient.clone());
        Host {
            journal: Arc::new(store.clone()),
            store,
            sandbox,
            policy: Arc::new(policy),
            registry,
            ambient,
            budgets: true,
            check: None,
            watch: Arc::new(Unobserved),
        }
    }

    /// What the contract works with.
    pub fn gate(&self) -> Gate {
        Gate {
            sandbox: self.sandbox.clone(),
            journal: self.journal.clone(),
            policy: self.policy.clone(),
            secrets: Arc::new(Secrets::of(&self.policy)),
            components: Arc::new(self.registry.clone()),
            ambient: self.ambient.clone(),
            budgets: self.budgets,
            check: self.check.clone(),
            observer: Arc::new(Watched(self.watch.clone())),
        }
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Host")
    }
}

/// A run's watcher, as the sandbox sees it.
struct Watched(Arc<dyn Watch>);

impl crate::sandbox::Observer for Watched {
    fn progress(&self, step: &str, done: u64, total: Option<u64>, message: &str) {
        self.0.progress(step, done, total, message);
    }

    fn log(&self, step: &str, level: &str, message: &str) {
        self.0.log(step, level, message);
    }
}
