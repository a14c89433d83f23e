//! The command line: what can be typed, and which file answers it.
//!
//! Every command returns one [`Answer`], for people and for programs at once; what is printed is decided here, and the exit
//! code in `exit` alone.

mod action;
mod answer;
mod budget;
pub mod compile;
mod component;
mod context;
mod dry_run;
mod exit;
mod explain;
mod init;
mod json;
mod outcome;
mod params;
mod policy;
mod progress;
mod resolve;
mod run;
mod runs;
mod show;
mod text;
mod workflow;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use answer::Answer;
use context::Common;
use exit::CliError;

const EXIT_CODES: &str = "\
Exit codes:
  0  completed, or done
  1  our or the machine's fault
  2  usage
  3  an input was refused
  4  the run failed
  5  the run needs attention
  6  the run waits

Every command takes --json. docs/cli.md has the shapes.";

/// Runs other people's actions safely: WebAssembly components behind a gate that charges, journals and reconciles their
/// effects
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, after_help = EXIT_CODES, arg_required_else_help = true)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a policy and a workflow to start from, and create the store
    Init,
    /// Upload components and look at them
    #[command(subcommand)]
    Component(component::Component),
    /// Check workflow files
    #[command(subcommand)]
    Workflow(workflow::Workflow),
    /// Start a run of a workflow and perform it
    Run(run::Run),
    /// Say what a run would do, without doing it
    DryRun(dry_run::DryRun),
    /// Perform one action by itself
    #[command(subcommand)]
    Action(action::Action),
    /// Look at runs, go on with them, settle them
    #[command(subcommand)]
    Runs(runs::Runs),
    /// Look at budgets
    #[command(subcommand)]
    Budget(budget::Budget),
    /// Check the policy, and ask it
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
}

/// Does what the command line says.
pub async fn main() -> ExitCode {
    let Arguments { common, command } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version go to stdout and are no error; a reader that has gone away is none either.
            let _ = error.print();
            return if error.use_stderr() { exit::Exit::Usage.into() } else { exit::Exit::Done.into() };
        }
    };
    let result = perform(&common, command).await.and_then(|answer| {
        answer.print(common.json)?;
        Ok(answer.exit)
    });
    match result {
        Ok(exit) => exit.into(),
        Err(error) => {
            error.print(&common);
            error.exit.into()
        }
    }
}

async fn perform(common: &Common, command: Command) -> Result<Answer, CliError> {
    match command {
        Command::Init => init::init(common).await,
        Command::Component(command) => component::perform(common, command).await,
        Command::Workflow(command) => workflow::perform(common, command).await,
        Command::Run(command) => run::run(common, command).await,
        Command::DryRun(command) => dry_run::dry_run(common, command).await,
        Command::Action(command) => action::perform(common, command).await,
        Command::Runs(command) => runs::perform(common, command).await,
        Command::Budget(command) => budget::perform(common, command).await,
        Command::Policy(command) => policy::perform(common, command).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[track_caller]
    fn parses(line: &str) -> Arguments {
        Arguments::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    #[track_caller]
    fn refuses(line: &str, expected: &str) {
        let error = Arguments::try_parse_from(line.split(' ')).expect_err(line).to_string();
        assert!(error.contains(expected), "{line}\n  says:     {error}\n  expected: {expected}");
    }

    #[test]
    fn what_holds_for_every_command_stands_before_or_after_it() {
        for line in ["tollgate --store sqlite:x.db --json runs list", "tollgate runs list --json --store sqlite:x.db"] {
            let common = parses(line).common;
            assert_eq!(common.store, "sqlite:x.db", "{line}");
            assert!(common.json, "{line}");
        }
    }

    #[test]
    fn a_resolve_has_one_verdict_and_a_reason() {
        parses("tollgate runs resolve 3f --succeeded --output {} --because seen");
        parses("tollgate runs resolve 3f --failed --because seen --as operator --step notify");
        parses("tollgate runs resolve 3f --retry-with-new-key --because seen");
        parses("tollgate runs resolve 3f --reconcile");
        refuses("tollgate runs resolve 3f --because seen", "--succeeded|--failed|--reconcile|--retry-with-new-key");
        refuses("tollgate runs resolve 3f --failed", "--because");
        refuses("tollgate runs resolve 3f --failed --succeeded --because x", "cannot be used with");
        refuses("tollgate runs resolve 3f --failed --output {} --because x", "--output");
    }

    #[test]
    fn times_have_units_and_none_is_zero() {
        parses("tollgate run w.yaml --wait 0 --lease 500ms");
        parses("tollgate runs resume 3f --wait 0s");
        refuses("tollgate run w.yaml --wait 10", "no unit");
        refuses("tollgate run w.yaml --lease 0", "at least 100ms");
    }

    #[test]
    fn an_action_is_named_with_its_app() {
        parses("tollgate action invoke mail/send --config {} --budget emails=1 --key k --wait 0 --lease 2s --json");
        parses("tollgate action invoke mail/send --config @config.json --dry-run");
        refuses("tollgate action invoke send", "write it like mail/send");
        refuses("tollgate action invoke mail/send --dry-run --key k", "cannot be used with");
    }

    #[test]
    fn what_has_a_name_and_a_value_says_both() {
        refuses("tollgate run w.yaml --budget emails", "NAME=VALUE");
        refuses("tollgate run w.yaml --param =3", "NAME=VALUE");
        parses("tollgate run w.yaml --param a= --budget emails=3 --label team=billing");
    }
}
