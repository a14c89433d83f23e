//! `runs list|show|resume|resolve|abandon`.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use tollgate::run::state::RunState;
use tollgate::store::{Page, RunFilter};

use super::answer::Answer;
use super::context::Common;
use super::exit::CliError;
use super::json as shapes;
use super::resolve::{self, Abandon, Resolve};
use super::run::Driving;
use super::show;
use super::text::{eprint, excerpt, table};

/// How many characters of a run's id a table shows: enough to name it.
const ID_CHARS: usize = 12;

/// What can be done with runs.
#[derive(Debug, Subcommand)]
pub enum Runs {
    /// List runs, newest first
    List(List),
    /// Show everything about a run
    Show {
        /// The run: its id, or the beginning of it
        run: String,
        /// Its events too
        #[arg(long)]
        events: bool,
    },
    /// Go on with a run from its journal; reopen a failed one; ask again about one that needs attention
    Resume {
        /// The run: its id, or the beginning of it
        run: String,
        #[command(flatten)]
        driving: Driving,
    },
    /// Settle an effect of which only a person knows what became of it
    Resolve(Resolve),
    /// Give up a run that is active, waiting or blocked
    Abandon(Abandon),
}

/// `runs list`.
#[derive(Debug, Args)]
pub struct List {
    /// Only those in this state: active, waiting, blocked, completed, failed or abandoned
    #[arg(long, value_name = "STATE")]
    status: Option<RunState>,
    /// Only those of this workflow
    #[arg(long, value_name = "REF")]
    workflow: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Where the page before ended, as it says
    #[arg(long)]
    cursor: Option<String>,
}

/// Does it.
pub async fn perform(common: &Common, command: Runs) -> Result<Answer, CliError> {
    match command {
        Runs::List(command) => list(common, command).await,
        Runs::Show { run, events } => {
            let store = common.existing_store().await?;
            let run = store.resolve_prefix(&run).await?;
            show::show(common, &store, &run, events).await
        }
        Runs::Resume { run, driving } => {
            let store = common.existing_store().await?;
            let run = store.resolve_prefix(&run).await?;
            let host = common.host(store, common.policy()?)?;
            eprint(&format!("run {run}\n"));
            driving.drive(common, host, &run, true, true).await
        }
        Runs::Resolve(command) => resolve::resolve(common, command).await,
        Runs::Abandon(command) => resolve::abandon(common, command).await,
    }
}

async fn list(common: &Common, command: List) -> Result<Answer, CliError> {
    let store = common.existing_store().await?;
    let filter = RunFilter {
        refs: command.workflow.clone().into_iter().collect(),
        state: command.status,
        cursor: command.cursor,
        limit: usize::from(command.limit),
        ..RunFilter::default()
    };
    let Page { runs, next } = store.list_runs(&filter).await?;
    let mut text = table(
        &["run", "workflow", "state", "created", "updated", "title"],
        runs.iter().map(|run| {
            vec![
                run.id.chars().take(ID_CHARS).collect(),
                run.workflow_ref.clone(),
                run.state.to_string(),
                run.created_at.to_string(),
                run.updated_at.to_string(),
                excerpt(&run.title),
            ]
        }),
    );
    if runs.is_empty() {
        text.push_str("no runs\n");
    }
    if let Some(next) = &next {
        let mut rest = format!("runs list --cursor {next} --limit {}", command.limit);
        for (option, value) in
            [("status", command.status.map(|state| state.to_string())), ("workflow", command.workflow)]
        {
            if let Some(value) = value {
                rest.push_str(&format!(" --{option} {}", super::context::quoted(&value)));
            }
        }
        text.push_str(&format!("\nmore: {}\n", common.command(&rest)));
    }
    let runs: Vec<Value> = runs.iter().map(shapes::run).collect();
    Ok(Answer::done(text, json!({ "runs": runs, "next": next })))
}
