//! `run`, and performing a run from the command line.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use tollgate::host::Host;
use tollgate::run::DriveOptions;

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
        let ended = host.drive(run, options).await;
        lines.close();
        outcome::answer(common, &host.store, run, ended?, existing).await
    }
}

/// Starts a run and performs it.
pub async fn run(common: &Common, command: Run) -> Result<Answer, CliError> {
    let start = command.start.read()?;
    let policy = common.policy()?;
    let host = common.host(common.store().await?, policy)?;
    let started = host.start(tollgate::run::StartRun { key: command.key, ..start }).await?;
    // First, so that whoever started it can go on with it if this process dies.
    let existing = if started.existing { ", started before under this key" } else { "" };
    eprint(&format!("run {}{existing}\n", started.run));
    command.driving.drive(common, host, &started.run, false, started.existing).await
}

/// Who holds a run's lease: machine, process, and a few random characters, because containers share names and numbers.
fn holder(host: &Host) -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let machine = Some(machine.trim()).filter(|name| !name.is_empty()).unwrap_or("localhost");
    let random: String = host.ambient.ids.next_id().chars().take(4).collect();
    format!("{machine}:{}:{random}", std::process::id())
}
