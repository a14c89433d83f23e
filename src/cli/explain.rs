//! `policy explain`.

use clap::Args;
use serde_json::json;
use url::Url;

use tollgate::capability::Phase;
use tollgate::component::{ActionName, descriptors};
use tollgate::effect::EffectClass;
use tollgate::egress::{Refused, decide};

use super::answer::Answer;
use super::context::Common;
use super::exit::{CliError, Exit};
use super::text::indented;

/// `policy explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// The action: mail/send
    action: ActionName,
    /// The export that makes the request: authorize, plan, run or reconcile
    #[arg(long, default_value = "run")]
    phase: Phase,
    /// The action's class, where no component of the app is pushed yet
    #[arg(long)]
    class: Option<EffectClass>,
    /// POST, GET, …
    method: http::Method,
    /// The URL, scheme included
    url: Url,
}

/// Says which rule decides, or which lines would grant it.
pub async fn explain(common: &Common, command: Explain) -> Result<Answer, CliError> {
    let Explain { action, phase, class, method, url } = command;
    let policy = common.policy()?;
    let class = match class {
        Some(class) => class,
        None => declared(common, &action).await?,
    };
    let head = json!({
        "action": action.to_string(),
        "class": class,
        "phase": phase.as_str(),
        "method": method.as_str(),
        "url": url.as_str(),
    });
    let grant = policy.grant(&action.app, &action.action);
    let decided = decide(policy.file_name(), &grant, class, phase, &method, &url);
    let (granted, line, reason, remedy) = match decided {
        Ok(rule) if policy.allows_class(&action.app, class) => (true, Some(rule.line), String::new(), String::new()),
        // A rule alone is not enough: the class must be allowed too.
        Ok(rule) => {
            let reason = format!("{} does not allow {} the class {class}", policy.file_name(), action.app);
            (false, Some(rule.line), reason, policy.missing_class(&action.app, class))
        }
        Err(Refused { reason, remedy, line }) => (false, line, reason, remedy),
    };
    let mut text = match (granted, line) {
        (true, Some(line)) => format!("granted: by the rule at line {line} of {}\n", policy.file_name()),
        _ => format!("refused: {reason}\n"),
    };
    if !remedy.is_empty() {
        text.push_str(&format!("to grant it:\n{}", indented(&remedy)));
    }
    let mut json = head;
    for (name, value) in [
        ("granted", json!(granted)),
        ("line", json!(line)),
        ("reason", json!((!granted).then_some(reason))),
        ("remedy", json!((!remedy.is_empty()).then_some(remedy))),
    ] {
        json[name] = value;
    }
    let exit = if granted { Exit::Done } else { Exit::Refused };
    Ok(Answer { exit, ..Answer::done(text, json) })
}

/// The class that the active component declares.
async fn declared(common: &Common, action: &ActionName) -> Result<EffectClass, CliError> {
    let unknown = |what: String| {
        CliError::refused("ACTION_NOT_FOUND", what)
            .help("push its component, or say which class it has: --class ambiguous")
    };
    let store = common.existing_store().await?;
    let row = store.component(&action.app, None).await?;
    let row = row.ok_or_else(|| unknown(format!("the store has no component of {}", action.app)))?;
    let found = descriptors(&row.descriptors).into_iter().find(|found| found.name == action.action);
    let found = found
        .ok_or_else(|| unknown(format!("the active component of {} has no action {}", action.app, action.action)))?;
    Ok(found.effect_class)
}
