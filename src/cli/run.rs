//! `run`, and performing a run from the command line.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use tollgate::host::Host;
use tollgate::run::state::StepState;
use tollgate::run::{DriveOptions, StartError, StartRun, Started};
use tollgate::store::{PublishError, StepRow};

use super::answer::Answer;
use super::context::{Common, duration, lease};
use super::exit::CliError;
use super::outcome;
use super::params::Start;
use super::progress::Lines;
use super::text::eprint;

/// `run`.
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    start: Start,
    /// Start it once under this key: the same key again goes on with the same run
    #[arg(long)]
    key: Option<String>,
    /// Where at most one run of the workflow may be under way: a customer, a checkout
    #[arg(long)]
    scope: Option<String>,
    /// Where another run is under way in the scope, go on with that one instead of refusing
    #[arg(long, requires = "scope")]
    attach: bool,
    /// Start it although another run is under way in the scope
    #[arg(long, requires = "scope", conflicts_with = "attach")]
    force: bool,
    #[command(flatten)]
    driving: Driving,
}

/// How a run is performed.
#[derive(Debug, Args)]
pub struct Driving {
    /// How long to wait in all, for backoff, timers and other holders
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    wait: Duration,
    /// How long a claim lasts unless it is renewed
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = lease)]
    lease: Duration,
    /// A line a step also where stderr is no terminal, and the guests' log lines
    #[arg(long, short)]
    verbose: bool,
}

impl Driving {
    /// Performs a run until it ends, needs a person, or waits for too long; and says how it stands.
    pub async fn drive(
        self,
        common: &Common,
        mut host: Host,
        run: &str,
        reopen: bool,
        existing: bool,
    ) -> Result<Answer, CliError> {
        let lines = Arc::new(Lines::new(self.verbose));
        host.watch = lines.clone();
        let options = DriveOptions { holder: holder(&host), lease: self.lease, wait: self.wait, reopen };
        if let Some(snapshot) = host.store.snapshot(run).await? {
            let done = |step: &&StepRow| matches!(step.state, StepState::Completed | StepState::Skipped);
            lines.count(snapshot.steps.iter().filter(done).count(), snapshot.steps.len());
        }
        let ended = {
            let mut driving = pin!(host.drive(run, options));
            let mut seconds = tokio::time::interval(Duration::from_secs(1));
            loop {
                tokio::select! {
                    ended = &mut driving => break ended,
                    _ = seconds.tick() => lines.tick(),
                }
            }
        };
        lines.close();
        outcome::answer(common, &host.store, run, ended?, existing).await
    }
}

/// Starts a run and performs it.
pub async fn run(common: &Common, command: Run) -> Result<Answer, CliError> {
    let Run { start, key, scope, attach, force, driving } = command;
    let start = StartRun { key, scope, force, ..start.read()? };
    let policy = common.policy()?;
    let host = common.host(common.store().await?, policy)?;
    self::start(common, host, start, attach, driving).await
}

/// Starts what was read and performs it; with `attach`, what occupies its scope instead.
pub async fn start(
    common: &Common,
    host: Host,
    start: StartRun,
    attach: bool,
    driving: Driving,
) -> Result<Answer, CliError> {
    let (workflow, scope) = (start.workflow.workflow_ref.clone(), start.scope.clone());
    let (run, existing, how) = match host.start(start).await {
        Ok(Started { run, existing: false }) => (run, false, ""),
        Ok(Started { run, existing: true }) => (run, true, ", started before under this key"),
        Err(StartError::Publish(PublishError::Occupied(occupant))) if attach => {
            (occupant.run, true, ", under way in this scope already")
        }
        Err(error) => return Err(error.into()),
    };
    // First, so that whoever started it can go on with it if this process dies.
    eprint(&format!("run {run}{how}\n"));
    warn_of_others(&host, &workflow, scope.as_deref(), &run).await?;
    driving.drive(common, host, &run, false, existing).await
}

/// Says which other runs of the workflow are under way outside the scope: what they do may be what this one is about to do.
async fn warn_of_others(host: &Host, workflow: &str, scope: Option<&str>, run: &str) -> Result<(), CliError> {
    let Some(scope) = scope else { return Ok(()) };
    let active = host.store.find_active(&[workflow.to_owned()], Some(scope)).await?;
    for other in active.elsewhere.iter().filter(|other| other.id != run) {
        let place =
            other.scope.as_ref().map_or_else(|| "without a scope".to_owned(), |scope| format!("in scope {scope}"));
        eprint(&format!("note: run {} of {workflow} is {} {place}\n", other.id, other.state));
    }
    Ok(())
}

/// Who holds a run's lease: machine, process, and a few random characters, because containers share names and numbers.
fn holder(host: &Host) -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let machine = Some(machine.trim()).filter(|name| !name.is_empty()).unwrap_or("localhost");
    let random: String = host.ambient.ids.next_id().chars().take(4).collect();
    format!("{machine}:{}:{random}", std::process::id())
}
