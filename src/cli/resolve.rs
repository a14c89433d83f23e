//! `runs resolve` and `runs abandon`: a person's word.

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};
use serde_json::json;

use tollgate::run::state::RunState;
use tollgate::run::{Resolve as Resolution, Verdict};

use super::answer::Answer;
use super::context::{Common, os_user, read_text};
use super::exit::CliError;
use super::run::Driving;
use super::text::section;

/// `runs resolve`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("verdict").required(true).args(["succeeded", "failed", "reconcile", "retry_with_new_key"])))]
pub struct Resolve {
    /// The run: its id, or the beginning of it
    run: String,
    /// Which step, where several are for a person to settle
    #[arg(long)]
    step: Option<String>,
    /// It happened; the step completes
    #[arg(long)]
    succeeded: bool,
    /// What the step's output is then: JSON, or @FILE; without it, null
    #[arg(long, value_name = "JSON|@FILE", requires = "succeeded", conflicts_with_all = ["failed", "reconcile", "retry_with_new_key"])]
    output: Option<String>,
    /// It did not happen; step and run fail. Refused until the effect can no longer appear
    #[arg(long)]
    failed: bool,
    /// Ask the action once more what became of it, and go on from the answer
    #[arg(long)]
    reconcile: bool,
    /// It did not happen; the step begins again under a new key. Refused until the effect can no longer appear
    #[arg(long)]
    retry_with_new_key: bool,
    /// Why, for the record
    #[arg(long, value_name = "TEXT", required_unless_present = "reconcile", value_parser = NonEmptyStringValueParser::new())]
    because: Option<String>,
    /// Who says so [default: the user of the operating system]
    #[arg(long = "as", value_name = "ACTOR")]
    actor: Option<String>,
    #[command(flatten)]
    driving: Driving,
}

/// Records a verdict, or asks the action once more.
pub async fn resolve(common: &Common, command: Resolve) -> Result<Answer, CliError> {
    let store = common.existing_store().await?;
    let run = store.resolve_prefix(&command.run).await?;
    if command.reconcile {
        return reconcile(common, store, &run, command.driving).await;
    }
    let verdict = if command.succeeded {
        Verdict::Succeeded(command.output.as_deref().map(output).transpose()?)
    } else if command.failed {
        Verdict::Failed
    } else {
        Verdict::RetryWithNewKey
    };
    let actor = command.actor.unwrap_or_else(os_user);
    // A verdict calls no guest, so no policy is needed.
    let host = common.host(store, tollgate::policy::Policy::deny_all())?;
    let because = command.because.unwrap_or_default();
    let state = host
        .resolve(Resolution { run: run.clone(), step: command.step, verdict, actor: actor.clone(), because })
        .await?;
    let next = match state {
        RunState::Active | RunState::Blocked | RunState::Failed => {
            vec![common.command(&format!("runs resume {run}"))]
        }
        RunState::Waiting | RunState::Completed | RunState::Abandoned => Vec::new(),
    };
    let text = format!("recorded as {actor}'s word; run {run} is {state}\n{}", section("next", &next.join("\n")));
    Ok(Answer::done(text, json!({ "run": run, "state": state, "actor": actor, "next": next })))
}

/// R8 once more: a run that needs a person is reopened, which asks its action what became of the effect.
async fn reconcile(
    common: &Common,
    store: tollgate::store::Store,
    run: &str,
    driving: Driving,
) -> Result<Answer, CliError> {
    let state = store.run(run).await?.map(|run| run.state);
    if state.is_some_and(|state| !matches!(state, RunState::Blocked | RunState::Waiting | RunState::Active)) {
        let state = state.map_or("gone", RunState::as_str);
        return Err(CliError::refused(
            "NOT_IN_DOUBT",
            format!("run {run} is {state}: only a run that is under way or needs attention has something to reconcile"),
        )
        .next("look at it", format!("runs show {run}")));
    }
    let policy = common.policy()?;
    driving.drive(common, common.host(store, policy)?, run, true, false).await
}

/// The output that a person gives.
fn output(given: &str) -> Result<String, CliError> {
    match given.strip_prefix('@') {
        Some(file) => read_text(std::path::Path::new(file)),
        None => Ok(given.to_owned()),
    }
}

/// `runs abandon`.
#[derive(Debug, Args)]
pub struct Abandon {
    /// The run: its id, or the beginning of it
    run: String,
    /// Why, for the record
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    because: String,
    /// Who says so [default: the user of the operating system]
    #[arg(long = "as", value_name = "ACTOR")]
    actor: Option<String>,
}

/// Abandons a run that is active, waiting or blocked.
pub async fn abandon(common: &Common, command: Abandon) -> Result<Answer, CliError> {
    let store = common.existing_store().await?;
    let run = store.resolve_prefix(&command.run).await?;
    let actor = command.actor.unwrap_or_else(os_user);
    let host = common.host(store, tollgate::policy::Policy::deny_all())?;
    if !host.abandon(&run, &actor, &command.because).await? {
        let state = host.store.run(&run).await?.map_or("gone", |run| run.state.as_str());
        return Err(CliError::refused(
            "RUN_OVER",
            format!("run {run} is {state}; only an active, waiting or blocked run can be abandoned"),
        ));
    }
    let effects = host.store.effects(&run).await?;
    let doubtful: Vec<&str> = effects
        .iter()
        .filter(|effect| super::outcome::is_in_doubt(effect.state))
        .map(|effect| effect.step.as_str())
        .collect();
    let mut text = format!("run {run} is abandoned\n");
    for step in &doubtful {
        text.push_str(&format!("the effect of step {step} is still in doubt\n"));
    }
    let next: Vec<String> =
        if doubtful.is_empty() { Vec::new() } else { vec![common.command(&format!("runs show {run}"))] };
    text.push_str(&section("next", &next.join("\n")));
    let state = RunState::Abandoned;
    Ok(Answer::done(text, json!({ "run": run, "state": state, "actor": actor, "in_doubt": doubtful, "next": next })))
}
