//! The program `tollgate`: arguments to library calls to exit codes. It holds no logic of its own and knows nothing of the
//! library but its public API.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

mod cli;

fn main() -> ExitCode {
    // Before threads and logs: a compiler limits itself first, and has nobody to log to.
    if let Some(exit) = cli::compile::child() {
        return exit;
    }
    // To stderr, so that what a command prints stays what it is documented to be.
    let filter = EnvFilter::try_from_env("TOLLGATE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();

    // A guest that spins yields to the runtime at every tick of the engine and is ready again at once. With the default
    // interval a worker would poll it 61 times before it looked at timers and sockets, and a wall limit would come late.
    let runtime = tokio::runtime::Builder::new_multi_thread().event_interval(1).enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(cli::main()),
        Err(error) => {
            eprintln!("error: this machine gives no threads to work with: {error}");
            ExitCode::FAILURE
        }
    }
}
