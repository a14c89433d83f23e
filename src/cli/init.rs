//! `init`: something to start from. It never writes over anything.

use std::io::{ErrorKind, Write};
use std::path::Path;

use serde_json::json;

use super::answer::Answer;
use super::context::{Common, POLICY_DEFAULT};
use super::exit::CliError;
use super::text::section;

const POLICY: &str = include_str!("starter/tollgate.toml");
const WORKFLOW: &str = include_str!("starter/hello.yaml");

/// Writes a policy and a workflow and creates the store; what is there stays as it is.
pub async fn init(common: &Common) -> Result<Answer, CliError> {
    let policy = common.policy.as_deref().unwrap_or(Path::new(POLICY_DEFAULT));
    let (mut created, mut kept) = (Vec::new(), Vec::new());
    for (path, text) in [(policy, POLICY), (Path::new("workflows/hello.yaml"), WORKFLOW)] {
        let list = if write_new(path, text)? { &mut created } else { &mut kept };
        list.push(path.display().to_string());
    }
    let list = if common.has_store() { &mut kept } else { &mut created };
    list.push(common.store.clone());
    let _store = common.store().await?;

    let next: Vec<String> = ["policy check", "component push APP FILE.wasm", "workflow check workflows/hello.yaml"]
        .into_iter()
        .chain(["run workflows/hello.yaml --param name=world"])
        .map(|rest| common.command(rest))
        .collect();
    let mut text: String = created.iter().map(|name| format!("created {name}\n")).collect();
    text.extend(kept.iter().map(|name| format!("kept    {name}, which was there\n")));
    text.push_str(&section("next", &next.join("\n")));
    text.push_str("\nThe workflow runs once a component with the action hello/greet is pushed, or one of your own stands in it.\n");
    Ok(Answer::done(text, json!({ "created": created, "kept": kept, "next": next })))
}

/// Writes a file that is not there yet; whether it did.
fn write_new(path: &Path, text: &str) -> Result<bool, CliError> {
    let failed =
        |error: std::io::Error| CliError::fault("FILE_UNWRITABLE", format!("cannot write {}: {error}", path.display()));
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    match std::fs::File::create_new(path) {
        Ok(mut file) => file.write_all(text.as_bytes()).map(|()| true).map_err(failed),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use tollgate::effect::EffectClass;
    use tollgate::policy::{Limits, Policy};
    use tollgate::workflow::Workflow;

    use super::*;

    #[test]
    fn the_starter_policy_grants_nothing_and_states_the_defaults() {
        let policy = Policy::parse("tollgate.toml", POLICY).expect("the starter policy is valid");
        assert_eq!(policy.apps().count(), 0);
        assert_eq!(policy.limits("any"), &Limits::default());
        assert!(!policy.allows_class("any", EffectClass::Ambiguous));
    }

    /// Everything that the starter policy explains, as if somebody took the comment signs out.
    #[test]
    fn what_the_starter_policy_explains_is_valid() {
        let examples: String = POLICY
            .lines()
            .map(|line| line.strip_prefix("#| ").unwrap_or(line))
            .fold(String::new(), |text, line| text + line + "\n");
        let policy = Policy::parse("tollgate.toml", &examples).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(policy.apps().collect::<Vec<_>>(), ["mail"]);
        assert_eq!(policy.rules("mail").count(), 2);
        assert_eq!(policy.secrets().count(), 1);
    }

    #[test]
    fn the_starter_workflow_is_valid() {
        let workflow = Workflow::parse("hello.yaml", WORKFLOW).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(workflow.workflow_ref, "hello/world");
    }
}
