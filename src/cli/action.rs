//! `action invoke`: one action, performed once, as a run of a workflow of one step.

use std::collections::BTreeMap;
use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use tollgate::budget::caps;
use tollgate::component::{ActionName, descriptors};
use tollgate::host::Host;
use tollgate::json;
use tollgate::run::StartRun;
use tollgate::workflow::{EVALUATED_BYTES_MAX, Workflow};

use super::answer::Answer;
use super::context::{Common, named, read_text};
use super::exit::CliError;
use super::run::Driving;
use super::{dry_run, run};

/// The step of such a workflow.
const STEP: &str = "invoke";

/// What can be done with actions.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Perform one action once, under everything that holds for a step of a workflow
    Invoke(Invoke),
}

/// `action invoke`.
#[derive(Debug, Args)]
pub struct Invoke {
    /// The action: app/action
    action: ActionName,
    /// Its configuration: a JSON object, or a file with one
    #[arg(long, value_name = "JSON|@FILE", default_value = "{}")]
    config: String,
    /// The cap of a dimension
    #[arg(long, value_name = "DIMENSION=AMOUNT", value_parser = named)]
    budget: Vec<(String, String)>,
    /// Perform it once under this key: the same key again goes on with the same run
    #[arg(long)]
    key: Option<String>,
    /// Say what it would do, without doing it
    #[arg(long, conflicts_with = "key")]
    dry_run: bool,
    #[command(flatten)]
    driving: Driving,
}

/// Does it.
pub async fn perform(common: &Common, command: Action) -> Result<Answer, CliError> {
    let Action::Invoke(Invoke { action, config, budget, key, dry_run, driving }) = command;
    let config = read_config(&config)?;
    let budget = caps("--budget", budget)?;
    // An action that can be invoked was pushed, so that there is a store already.
    let policy = common.policy()?;
    let host = common.host(common.existing_store().await?, policy)?;
    check(&host, &action, &config).await?;
    let workflow = workflow(&action, &config)?;
    let start = StartRun { params: config, budget, key, ..StartRun::of(workflow) };
    match dry_run {
        true => dry_run::forecast(&host, start).await,
        false => run::start(common, host, start, false, driving).await,
    }
}

fn read_config(given: &str) -> Result<Value, CliError> {
    let (from, text) = match given.strip_prefix('@') {
        Some(file) => (file, read_text(Path::new(file))?),
        None => ("--config", given.to_owned()),
    };
    match json::parse(&text, EVALUATED_BYTES_MAX) {
        Ok(config @ Value::Object(_)) => Ok(config),
        Ok(_) => Err(refused(format!("{from}: a configuration is one JSON object, such as {{\"name\": \"value\"}}"))),
        Err(error) => Err(refused(format!("{from}: {error}"))),
    }
}

/// Says before anything is written what a run would only fail of.
async fn check(host: &Host, action: &ActionName, config: &Value) -> Result<(), CliError> {
    let component = host.store.component(&action.app, None).await?;
    let found = component.iter().flat_map(|row| descriptors(&row.descriptors));
    let Some(descriptor) = found.into_iter().find(|found| found.name == action.action) else {
        let message = match component {
            Some(row) => format!("{} version {} has no action `{}`", row.app, row.version, action.action),
            None => format!("there is no component {}", action.app),
        };
        return Err(CliError::refused("ACTION_NOT_FOUND", message).next("see which there are", "component list"));
    };
    descriptor.check_config(config).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        refused(format!("the configuration does not fit {action}: {}", problems.join("; ")))
    })
}

/// The configuration is the run's parameters, and the step takes each of them as it is: nothing in it is an expression.
fn workflow(action: &ActionName, config: &Value) -> Result<Workflow, CliError> {
    let names = config.as_object().into_iter().flat_map(Map::keys);
    let with: BTreeMap<&String, String> =
        names.map(|name| (name, format!("{{{{ params[{}] }}}}", Value::from(name.as_str())))).collect();
    let text = json!({
        "workflow": action.to_string(),
        "title": format!("{action}, invoked by itself"),
        "steps": [{ "id": STEP, "action": action.to_string(), "with": with }],
        "outputs": { "output": format!("{{{{ steps.{STEP}.output }}}}") },
    });
    Ok(Workflow::parse(&format!("{action}.json"), &text.to_string())?)
}

fn refused(message: String) -> CliError {
    CliError::refused("CONFIG_INVALID", message)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tollgate::workflow::{Scope, evaluate};

    use super::*;

    #[test]
    fn what_a_configuration_holds_reaches_the_action_as_it_is() {
        let config = json!({
            "plain": 1, "text": "{{ params }} {% if %}", "with \"quotes\" and \\": [null, { "{{": "}}" }], "ä\n}}": "x",
        });
        let workflow = workflow(&"mail/send".parse().expect("it is a name"), &config).expect("it is a workflow");
        assert_eq!(workflow.workflow_ref, "mail/send");
        let scope = Scope::new(&config, &BTreeMap::new(), &BTreeMap::new());
        assert_eq!(evaluate(&workflow.steps[0].with, "with", &scope).expect("it evaluates"), config);
    }
}
