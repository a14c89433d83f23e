//! A frozen definition: a workflow with its actions pinned to the components that perform them, as a run keeps it.
//!
//! Its canonical JSON is what is stored and hashed, and reading that JSON gives the same definition back. Nothing here
//! stores it, and nothing here looks an action up: whoever freezes says which component an action is pinned to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Step, Workflow};
use crate::budget::Amount;
use crate::effect::EffectClass;
use crate::json::{self, JsonError};
use crate::schema::{self, SchemaProblem};
use crate::source::{Problem, Report};

/// The version of the stored form that this Tollgate writes, and the only one that it reads.
pub const FORMAT: u32 = 1;
/// How many bytes a stored definition may have; a workflow file has at most a megabyte.
const BYTES_MAX: usize = 16 << 20;

/// One version of a workflow, as a run is started with it and keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Definition {
    /// The version of the stored form: [`FORMAT`].
    pub format: u32,
    /// The workflow's name, `app/name`.
    #[serde(rename = "workflow")]
    pub workflow_ref: String,
    /// One line for a person; `None` where the file had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The JSON Schema of the parameters.
    #[serde(rename = "params")]
    pub params_schema: Value,
    /// The cap of each dimension. A dimension that is not here is uncapped, and still counted.
    pub budget: BTreeMap<String, Amount>,
    /// The steps in order; at least one.
    pub steps: Vec<Step>,
    /// What the run yields, by name: templates.
    pub outputs: BTreeMap<String, Value>,
    /// What each action that a step names is pinned to, by the action's name.
    pub actions: BTreeMap<String, PinnedAction>,
}

/// The component that performs an action of a definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PinnedAction {
    /// The SHA-256 digest of the component, as the store names it.
    pub digest: String,
    /// The class that the action declared when it was pinned.
    pub effect_class: EffectClass,
}

/// Why a stored text is not a definition that can be used. The operator must act.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// It does not pass the JSON gate.
    #[error("the stored definition is not JSON: {0}")]
    Json(#[from] JsonError),
    /// Another version of Tollgate wrote it.
    #[error(
        "the stored definition has format {found} and this version of Tollgate reads format {FORMAT}: \
         run it with the version that pushed it, or push the workflow again with this one"
    )]
    Format {
        /// The format that it states; `none` where it states none.
        found: String,
    },
    /// It is of this version's format and yet not what this version writes.
    #[error("the stored definition is damaged: {0}")]
    Damaged(String),
}

impl Definition {
    /// Pin every action of a workflow. `pin` says which component performs an action, and is asked once for each;
    /// [`Workflow::actions`] lists them for a caller that has to look them up beforehand.
    ///
    /// # Errors
    /// Every step whose action `pin` does not know, by line of the workflow's file.
    pub fn freeze(workflow: Workflow, pin: impl Fn(&str) -> Option<PinnedAction>) -> Result<Definition, Report> {
        let pinned: BTreeMap<String, Option<PinnedAction>> =
            workflow.actions().into_iter().map(|action| (action.to_owned(), pin(action))).collect();
        let mut problems = Vec::new();
        for (step, span) in workflow.steps.iter().zip(&workflow.source.actions) {
            if matches!(pinned.get(&step.action), Some(Some(_))) {
                continue;
            }
            let (app, action) = step.action.split_once('/').unwrap_or((&step.action, ""));
            problems.push(Problem::at(span.clone(), format!("there is no action `{}`", step.action)).help(format!(
                "push a component of the app `{app}` whose `describe` lists `{action}`, then try again"
            )));
        }
        Report::unless_empty(&workflow.source.name, &workflow.source.text, problems)?;
        Ok(Definition {
            format: FORMAT,
            workflow_ref: workflow.workflow_ref,
            title: workflow.title,
            params_schema: workflow.params_schema,
            budget: workflow.budget,
            steps: workflow.steps,
            outputs: workflow.outputs,
            actions: pinned.into_iter().filter_map(|(action, pinned)| Some((action, pinned?))).collect(),
        })
    }

    /// The form that is stored: canonical JSON. [`Definition::from_json`] gives the same definition back.
    pub fn to_json(&self) -> String {
        json::canonical(&self.to_value())
    }

    /// The definition that [`Definition::to_json`] wrote.
    ///
    /// # Errors
    /// A text that is no JSON, one of another format, and one of this format that this version would not have written.
    pub fn from_json(text: &str) -> Result<Definition, DefinitionError> {
        let value = json::parse(text, BYTES_MAX)?;
        let format = value.get("format");
        // Before anything else: another format may have another shape.
        if format != Some(&Value::from(FORMAT)) {
            return Err(DefinitionError::Format { found: format.map_or("none".to_owned(), json::canonical) });
        }
        let definition: Definition =
            serde_json::from_value(value).map_err(|error| DefinitionError::Damaged(error.to_string()))?;
        let unpinned = definition.steps.iter().find(|step| !definition.actions.contains_key(&step.action));
        match unpinned {
            Some(step) => Err(DefinitionError::Damaged(format!("the action `{}` is not pinned", step.action))),
            None if definition.steps.is_empty() => Err(DefinitionError::Damaged("it has no steps".to_owned())),
            None => Ok(definition),
        }
    }

    /// The SHA-256 digest of [`Definition::to_json`], in lower-case hexadecimal: two definitions with the same hash run
    /// the same way.
    pub fn hash(&self) -> String {
        json::hash(&self.to_value())
    }

    /// What a step's action is pinned to. Every step of a definition has one; `None` for an action that no step names.
    pub fn pinned(&self, action: &str) -> Option<&PinnedAction> {
        self.actions.get(action)
    }

    fn to_value(&self) -> Value {
        // Every field is a string, a number, a list or a map with text for keys, none of which can fail.
        serde_json::to_value(self).unwrap_or(Value::Null)
    }
}

/// Whether `params` fits what the workflow says of its parameters.
///
/// # Errors
/// Every place that does not fit; its path begins at the parameters (`batch`, not `params.batch`).
pub fn validate_params(definition: &Definition, params: &Value) -> Result<(), Vec<SchemaProblem>> {
    schema::validate(&definition.params_schema, params)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub fn pin(action: &str) -> Option<PinnedAction> {
        let class = match action {
            "billing/triage" => EffectClass::Pure,
            "mail/send" => EffectClass::Ambiguous,
            _ => return None,
        };
        Some(PinnedAction { digest: "ab".repeat(32), effect_class: class })
    }

    pub fn definition(text: &str) -> Definition {
        let workflow = Workflow::parse("test.yaml", text).unwrap_or_else(|report| panic!("{report}"));
        Definition::freeze(workflow, pin).unwrap_or_else(|report| panic!("{report}"))
    }

    const FULL: &str = r#"
workflow: billing/dunning
title: Remind customers
params: { type: object, required: [invoices], properties: { invoices: { type: string } } }
budget: { emails: 100, usd: "0.10" }
steps:
  - id: triage
    title: Sort
    instructions: Look
    action: billing/triage
    with: { csv: "{{ params.invoices }}", big: 18446744073709551615, small: -9223372036854775808, half: 0.5 }
    saveAs: overdue
  - id: remind
    if: "{{ overdue | length > 0 }}"
    action: mail/send
    retry: { attempts: 5, backoff: 2s, maxBackoff: 5m }
    timeout: 30s
outputs: { reminded: "{{ steps.remind.output }}" }
"#;

    #[test]
    fn stored_form_is_canonical_and_loses_nothing() {
        let definition = definition(FULL);
        let text = definition.to_json();
        assert_eq!(
            text,
            concat!(
                r#"{"actions":{"billing/triage":{"digest":"abababababababababababababababababababababababababababababababab","effectClass":"pure"},"#,
                r#""mail/send":{"digest":"abababababababababababababababababababababababababababababababab","effectClass":"ambiguous"}},"#,
                r#""budget":{"emails":"100","usd":"0.1"},"format":1,"outputs":{"reminded":"{{ steps.remind.output }}"},"#,
                r#""params":{"properties":{"invoices":{"type":"string"}},"required":["invoices"],"type":"object"},"#,
                r#""steps":[{"action":"billing/triage","id":"triage","instructions":"Look","#,
                r#""retry":{"attempts":1,"backoffMs":1000,"maxBackoffMs":300000},"saveAs":"overdue","title":"Sort","#,
                r#""with":{"big":18446744073709551615,"csv":"{{ params.invoices }}","half":0.5,"small":-9223372036854775808}},"#,
                r#"{"action":"mail/send","id":"remind","if":"overdue | length > 0","#,
                r#""retry":{"attempts":5,"backoffMs":2000,"maxBackoffMs":300000},"timeoutMs":30000,"with":{}}],"#,
                r#""title":"Remind customers","workflow":"billing/dunning"}"#,
            )
        );
        let again = Definition::from_json(&text).unwrap();
        assert_eq!(again, definition);
        assert_eq!(again.to_json(), text);
        assert_eq!(again.hash(), definition.hash());
        assert_eq!(again.pinned("mail/send").unwrap().effect_class, EffectClass::Ambiguous);
    }

    #[test]
    fn the_hash_is_of_what_runs_and_not_of_how_it_was_written() {
        let minimal = "workflow: a/b\nsteps: [{id: s, action: mail/send, with: {a: 1, b: 2}}]";
        let same = "# a comment\nsteps:\n- with:\n    b: 2\n    a: 0x1\n  action: mail/send\n  id: s\nworkflow: a/b\nbudget: {}\n";
        let other = "workflow: a/b\nsteps: [{id: s, action: mail/send, with: {a: 1, b: 3}}]";
        assert_eq!(definition(minimal).hash(), definition(same).hash());
        assert_ne!(definition(minimal).hash(), definition(other).hash());
        let workflow = Workflow::parse("a.yaml", minimal).unwrap();
        let moved = Definition::freeze(workflow, |_| {
            Some(PinnedAction { digest: "cd".repeat(32), effect_class: EffectClass::Ambiguous })
        });
        assert_ne!(definition(minimal).hash(), moved.unwrap().hash(), "another component is another definition");
    }

    #[test]
    fn every_action_that_is_missing_is_named_by_line() {
        let text = r#"workflow: a/b
steps:
  - id: one
    action: x/y
  - { id: two, action: mail/send }
  - { id: three, action: x/z }
  - { id: four, action: x/y }
"#;
        let workflow = Workflow::parse("a.yaml", text).unwrap();
        assert_eq!(workflow.actions().into_iter().collect::<Vec<_>>(), ["mail/send", "x/y", "x/z"]);
        let report = Definition::freeze(workflow, pin).unwrap_err();
        let lines: Vec<String> =
            report.to_string().lines().filter(|line| !line.starts_with(' ')).map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                "a.yaml:4:13: there is no action `x/y`",
                "a.yaml:6:26: there is no action `x/z`",
                "a.yaml:7:25: there is no action `x/y`",
            ]
        );
    }

    #[test]
    fn another_format_is_refused_before_its_shape_is_looked_at() {
        for (text, expected) in [
            (r#"{"format": 2, "whatever": 1}"#, "has format 2 and this version of Tollgate reads format 1"),
            (r#"{"format": "1"}"#, "has format \"1\""),
            ("{}", "has format none"),
            ("[]", "has format none"),
            (r#"{"format": 1}"#, "damaged: missing field"),
            ("{", "is not JSON: line 1, column 2"),
        ] {
            let error = Definition::from_json(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let text = definition(FULL).to_json();
        for damage in [
            text.replace("\"format\":1", "\"format\":1,\"extra\":1"),
            text.replace("\"mail/send\":{", "\"mail/other\":{"),
            text.replace("\"attempts\":5", "\"attempts\":-5"),
            text.replace("\"usd\":\"0.1\"", "\"usd\":0.1"),
            text.replace("\"pure\"", "\"poor\""),
        ] {
            assert_ne!(damage, text);
            let error = Definition::from_json(&damage).unwrap_err();
            assert!(matches!(error, DefinitionError::Damaged(_)), "{error}");
        }
    }

    #[test]
    fn params_are_checked_against_the_workflows_own_schema() {
        let full = definition(FULL);
        assert!(validate_params(&full, &json!({ "invoices": "a" })).is_ok());
        let problems = validate_params(&full, &json!({ "invoices": 1 })).unwrap_err();
        assert_eq!(problems[0].to_string(), "invoices: 1 is not of type \"string\"");
        let minimal = definition("workflow: a/b\nsteps: [{id: s, action: mail/send}]");
        assert!(validate_params(&minimal, &json!({ "any": 1 })).is_ok());
        assert!(validate_params(&minimal, &json!([])).is_err());
    }
}
