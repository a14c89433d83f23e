//! `dry-run`.

use std::collections::BTreeSet;

use clap::Args;
use serde_json::{Value, json};

use tollgate::budget::ChargeItem;
use tollgate::host::Host;
use tollgate::run::{DryRun as Forecast, PlannedStep, StartRun, StepForecast};

use super::answer::Answer;
use super::context::Common;
use super::exit::{CliError, Exit};
use super::json as shapes;
use super::params::Start;
use super::text::{clean, excerpt, section, table};

/// `dry-run`.
#[derive(Debug, Args)]
pub struct DryRun {
    #[command(flatten)]
    start: Start,
}

/// Asks what a run would do.
pub async fn dry_run(common: &Common, command: DryRun) -> Result<Answer, CliError> {
    let start = command.start.read()?;
    let policy = common.policy()?;
    let host = common.host(common.existing_store().await?, policy)?;
    self::forecast(&host, start).await
}

/// Asks what this run would do.
pub async fn forecast(host: &Host, start: StartRun) -> Result<Answer, CliError> {
    let forecast = host.dry_run(start).await?;
    let exit = if forecast.fails() { Exit::Failed } else { Exit::Done };
    Ok(Answer { exit, text: text(&forecast), json: document(&forecast) })
}

fn text(forecast: &Forecast) -> String {
    let rows = forecast.steps.iter().map(|step| {
        vec![step.step.clone(), step.action.clone(), status(&step.forecast).to_owned(), excerpt(&what(&step.forecast))]
    });
    let mut text = format!("{}: what a run would do\n\n", clean(&forecast.workflow));
    text.push_str(&table(&["step", "action", "status", "what"], rows));
    let failures = forecast.steps.iter().filter_map(|step| match &step.forecast {
        StepForecast::Terminal { failure } => Some(format!("{}  {}: {}\n", step.step, failure.code, failure.message)),
        _ => None,
    });
    text.push_str(&section("would fail", &clean(&failures.collect::<String>())));
    text.push_str(&section("issues", &issues(forecast)));
    text.push_str(&section("budget", &budget(forecast)));
    if let Some(runs_out) = &forecast.budget.runs_out {
        text.push_str(&format!("\nat step {}, {}\n", clean(&runs_out.step), clean(&runs_out.exceeded.to_string())));
    }
    match &forecast.outputs {
        Some(outputs) if outputs.as_object().is_some_and(|outputs| !outputs.is_empty()) => {
            text.push_str(&section("outputs", &clean(&format!("{outputs:#}"))));
        }
        _ => {}
    }
    text.push_str(if forecast.fails() { "\nthe run would fail; " } else { "\n" });
    text + "nothing was written, charged or sent\n"
}

fn status(forecast: &StepForecast) -> &'static str {
    match forecast {
        StepForecast::Planned { .. } => "planned",
        StepForecast::Skipped => "skipped",
        StepForecast::Unsupported { .. } => "unsupported",
        StepForecast::Indeterminate { .. } => "indeterminate",
        StepForecast::Terminal { .. } => "terminal",
    }
}

fn what(forecast: &StepForecast) -> String {
    match forecast {
        StepForecast::Planned { output, effects, .. } if effects.is_empty() => {
            output.as_ref().map_or_else(String::new, Value::to_string)
        }
        StepForecast::Planned { effects, .. } => {
            let said = effects.iter().map(|effect| {
                let consumes = consumes(&effect.consumes);
                let consumes = if consumes.is_empty() { consumes } else { format!(" ({consumes})") };
                format!("{}{consumes}", effect.summary)
            });
            said.collect::<Vec<_>>().join("; ")
        }
        StepForecast::Skipped => "its condition does not hold".to_owned(),
        StepForecast::Unsupported { reason } | StepForecast::Indeterminate { reason } => reason.clone(),
        StepForecast::Terminal { failure } => failure.message.clone(),
    }
}

fn consumes(items: &[ChargeItem]) -> String {
    items.iter().map(|item| format!("{} {}", item.amount, item.dimension)).collect::<Vec<_>>().join(", ")
}

fn issues(forecast: &Forecast) -> String {
    let issues = forecast.steps.iter().flat_map(|step| match &step.forecast {
        StepForecast::Planned { issues, .. } => issues.as_slice(),
        _ => &[],
    });
    table(
        &["step", "code", "message"],
        issues.map(|issue| vec![issue.step.clone(), issue.code.clone(), issue.message.clone()]),
    )
}

fn budget(forecast: &Forecast) -> String {
    let (caps, planned) = (&forecast.budget.caps, &forecast.budget.planned);
    let dimensions: BTreeSet<&String> = caps.keys().chain(planned.keys()).collect();
    table(
        &["dimension", "cap", "planned"],
        dimensions.into_iter().map(|dimension| {
            vec![
                dimension.clone(),
                caps.get(dimension).map_or("none".to_owned(), ToString::to_string),
                planned.get(dimension).map_or("0".to_owned(), ToString::to_string),
            ]
        }),
    )
}

fn document(forecast: &Forecast) -> Value {
    let runs_out = forecast.budget.runs_out.as_ref().map(|runs_out| {
        json!({
            "step": runs_out.step,
            "dimension": runs_out.exceeded.dimension,
            "limit": runs_out.exceeded.limit,
            "used": runs_out.exceeded.used,
            "requested": runs_out.exceeded.requested,
        })
    });
    json!({
        "workflow": forecast.workflow,
        "fails": forecast.fails(),
        "steps": forecast.steps.iter().map(step).collect::<Vec<_>>(),
        "budget": {
            "caps": forecast.budget.caps,
            "planned": forecast.budget.planned,
            "runs_out": runs_out,
        },
        "outputs": forecast.outputs,
    })
}

fn step(step: &PlannedStep) -> Value {
    let (mut output, mut effects, mut issues, mut reason, mut failure) =
        (Value::Null, json!([]), json!([]), Value::Null, Value::Null);
    match &step.forecast {
        StepForecast::Planned { output: found, effects: planned, issues: told } => {
            output = json!(found);
            effects = json!(planned);
            issues = json!(told);
        }
        StepForecast::Skipped => {}
        StepForecast::Unsupported { reason: why } | StepForecast::Indeterminate { reason: why } => reason = json!(why),
        StepForecast::Terminal { failure: why } => failure = shapes::failure(why),
    }
    json!({
        "step": step.step,
        "action": step.action,
        "status": status(&step.forecast),
        "output": output,
        "effects": effects,
        "issues": issues,
        "reason": reason,
        "failure": failure,
    })
}
