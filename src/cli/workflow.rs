//! `workflow check`, and reading a workflow's file.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Value, json};

use tollgate::policy::Policy;
use tollgate::workflow::Workflow as Parsed;

use super::answer::Answer;
use super::context::{Common, read_text};
use super::exit::CliError;
use super::text::{count, table};

/// What can be done with workflow files.
#[derive(Debug, Subcommand)]
pub enum Workflow {
    /// Say everything that is wrong with a workflow file; with a store, also which actions nobody has
    Check {
        /// The file, YAML or JSON
        file: PathBuf,
    },
}

/// A workflow's file, parsed.
pub fn read_workflow(file: &Path) -> Result<Parsed, CliError> {
    Ok(Parsed::parse(&file.display().to_string(), &read_text(file)?)?)
}

/// Does it.
pub async fn perform(common: &Common, command: Workflow) -> Result<Answer, CliError> {
    let Workflow::Check { file } = command;
    let workflow = read_workflow(&file)?;
    let (name, title, budget) = (workflow.workflow_ref.clone(), workflow.title.clone(), workflow.budget.clone());
    let steps = workflow.steps.clone();
    let definition = match common.has_store() {
        true => {
            // Whether the policy grants what the actions do is asked when they are pushed and performed.
            let host = common.host(common.store().await?, Policy::deny_all())?;
            Some(host.freeze(workflow).await?)
        }
        false => None,
    };
    let pinned = |action: &str| definition.as_ref().and_then(|definition| definition.actions.get(action));
    let rows = steps.iter().map(|step| {
        let class = pinned(&step.action).map_or("not looked up".to_owned(), |pinned| pinned.effect_class.to_string());
        vec![step.id.clone(), step.action.clone(), class, step.title.clone().unwrap_or_default()]
    });
    let mut text = format!("{name}: {}, no problem found\n", count(steps.len(), "step", "steps"));
    text.push_str(&table(&["step", "action", "class", "title"], rows));
    if definition.is_none() {
        text.push_str(&format!(
            "there is no store at {}, so whether the actions exist was not checked\n",
            common.store
        ));
    }
    let steps: Vec<Value> = steps
        .iter()
        .map(|step| {
            let pinned = pinned(&step.action);
            json!({
                "step": step.id,
                "action": step.action,
                "class": pinned.map(|pinned| pinned.effect_class),
                "component": pinned.map(|pinned| &pinned.digest),
            })
        })
        .collect();
    let json = json!({
        "workflow": name,
        "title": title,
        "actions_checked": definition.is_some(),
        "definition": definition.as_ref().map(|definition| definition.hash()),
        "budget": budget,
        "steps": steps,
    });
    Ok(Answer::done(text, json))
}
