//! How a phase ends, and the instructions that end it. Performs nothing.

use crate::arguments::Arguments;
use crate::tollgate::action::types::{Consumption, Dependency, DependencyKind, Doubt, Failure, Issue, Json, Planned};
use serde_json::{Value, json};

pub enum Ending {
    /// The list ran out; these are its results.
    Default(Vec<Value>),
    Succeed(Option<Json>),
    Fail(Failure),
    Wait(Dependency),
    Doubt(Doubt),
    Plan(Planned),
    Refuse(String),
    Unknown(String),
    Error(Failure),
}

impl Ending {
    pub fn invalid(message: String) -> Self {
        Self::Fail(Failure { code: Some("PROBE_INVALID".into()), ..failure(message) })
    }

    /// The failure of a phase that cannot end like this.
    pub fn misplaced(self, phase: &str) -> Failure {
        let name = match self {
            Self::Default(_) => "the end of the list",
            Self::Succeed(_) => "succeed",
            Self::Fail(failure) => return failure,
            Self::Wait(_) => "wait",
            Self::Doubt(_) => "doubt",
            Self::Plan(_) => "planned",
            Self::Refuse(_) => "refuse",
            Self::Unknown(_) => "unknown",
            Self::Error(_) => "error",
        };
        Failure { code: Some("PROBE_INVALID".into()), ..failure(format!("`{name}` cannot end `{phase}`")) }
    }
}

/// The ending that `name` stands for; `None` where it stands for none.
///
/// | instruction | phases | takes |
/// | --- | --- | --- |
/// | `succeed` | run, reconcile | `output`: any JSON; absent is no output, not `null` |
/// | `succeed-raw` | run, reconcile | `text`: the output as it is, JSON or not |
/// | `succeed-large` | run, reconcile | `bytes`: the output is a string, together this long |
/// | `fail` | all | `message`, `code`, `retryable` (false), `retry_after_ms`, `details` (any JSON), `details_raw` (text) |
/// | `wait` | run | `kind`: `timer`, `signal` or `run`; `key` |
/// | `doubt` | run | `message`, `code` |
/// | `planned` | plan | `consumes`: list of `dimension`, `amount`; `summary`; `output`; `output_raw`; `issues`: list of `code`, `message` |
/// | `refuse` | authorize | `reason` |
/// | `unknown` | reconcile | `message` |
/// | `error` | reconcile | as `fail`: asking itself failed |
pub fn ending(name: &str, arguments: &mut Arguments) -> Result<Option<Ending>, String> {
    Ok(Some(match name {
        "succeed" => Ending::Succeed(arguments.optional("output").map(|output| output.to_string())),
        "succeed-raw" => Ending::Succeed(Some(arguments.text("text")?)),
        "succeed-large" => Ending::Succeed(Some(large(arguments.number("bytes")?))),
        "fail" => Ending::Fail(failure_of(arguments)?),
        "wait" => Ending::Wait(Dependency { kind: kind(&arguments.text("kind")?)?, key: arguments.text("key")? }),
        "doubt" => Ending::Doubt(Doubt { message: arguments.text("message")?, code: arguments.optional_text("code")? }),
        "planned" => Ending::Plan(planned(arguments)?),
        "refuse" => Ending::Refuse(arguments.text("reason")?),
        "unknown" => Ending::Unknown(arguments.text("message")?),
        "error" => Ending::Error(failure_of(arguments)?),
        _ => return Ok(None),
    }))
}

pub fn results(results: Vec<Value>) -> Json {
    json!({ "results": results }).to_string()
}

pub fn plan_of_nothing() -> Planned {
    Planned { summary: "probe".into(), consumes: Vec::new(), output: None, issues: Vec::new() }
}

pub fn failure(message: String) -> Failure {
    Failure { message, code: None, retryable: false, retry_after_ms: None, details: None }
}

fn failure_of(arguments: &mut Arguments) -> Result<Failure, String> {
    let details = arguments.optional("details").map(|details| details.to_string());
    Ok(Failure {
        message: arguments.text("message")?,
        code: arguments.optional_text("code")?,
        retryable: arguments.flag("retryable", false)?,
        retry_after_ms: arguments.optional_number("retry_after_ms")?,
        details: arguments.optional_text("details_raw")?.or(details),
    })
}

fn planned(arguments: &mut Arguments) -> Result<Planned, String> {
    let output = arguments.optional("output").map(|output| output.to_string());
    Ok(Planned {
        summary: arguments.optional_text("summary")?.unwrap_or_else(|| plan_of_nothing().summary),
        consumes: arguments.list("consumes")?.into_iter().map(consumption).collect::<Result<_, _>>()?,
        output: arguments.optional_text("output_raw")?.or(output),
        issues: arguments.list("issues")?.into_iter().map(issue).collect::<Result<_, _>>()?,
    })
}

/// An amount may be written as text, which is passed on as it is (`"NaN"`), or as a number.
fn consumption(mut arguments: Arguments) -> Result<Consumption, String> {
    let amount = match arguments.value("amount")? {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let consumption = Consumption { dimension: arguments.text("dimension")?, amount };
    arguments.nothing_else()?;
    Ok(consumption)
}

fn issue(mut arguments: Arguments) -> Result<Issue, String> {
    let issue = Issue { code: arguments.text("code")?, message: arguments.text("message")? };
    arguments.nothing_else()?;
    Ok(issue)
}

fn kind(name: &str) -> Result<DependencyKind, String> {
    match name {
        "signal" => Ok(DependencyKind::Signal),
        "timer" => Ok(DependencyKind::Timer),
        "run" => Ok(DependencyKind::Run),
        other => Err(format!("`{other}` is no kind of dependency")),
    }
}

/// A JSON string of so many bytes, its quotes counted.
fn large(bytes: u64) -> Json {
    format!("\"{}\"", "x".repeat((bytes as usize).saturating_sub(2)))
}
