//! What comes next in a run: which steps are skipped, which one runs and with what input, or what the run yields.
//!
//! A pure function of the definition and of what has happened. It changes nothing: whoever calls writes down what it
//! says, in the same commit as what led to it, and reserves the step it names.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::expression::{EvaluationError, Scope, condition, evaluate};
use super::{Definition, Step};

/// What has happened in a run, as far as expressions can see it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Progress {
    /// The run's parameters.
    pub params: Value,
    /// The variables that steps have saved, by name.
    pub variables: BTreeMap<String, Value>,
    /// The output of every step that has completed or was skipped, by step key; null where it has none.
    pub outputs: BTreeMap<String, Value>,
}

impl Progress {
    /// The step is over, however it came about (R13): its output is kept under its key, and in the variable that its
    /// `saveAs` names. Of a skipped step, and of one without output, the output is null.
    pub fn record(&mut self, step: &Step, output: Value) {
        if let Some(name) = &step.save_as {
            self.variables.insert(name.clone(), output.clone());
        }
        self.outputs.insert(step.id.clone(), output);
    }

    /// What expressions see of it.
    pub fn scope(&self) -> Scope {
        Scope::new(&self.params, &self.variables, &self.outputs)
    }
}

/// What comes next.
#[derive(Debug, Clone, PartialEq)]
pub struct Next {
    /// The steps whose `if` does not hold, by index, in order: to be recorded as skipped, with null for their output
    /// and their variable (R13; [`Progress::record`]).
    pub skipped: Vec<usize>,
    /// What comes after them.
    pub then: Then,
}

/// What comes after the skipped steps.
#[derive(Debug, Clone, PartialEq)]
pub enum Then {
    /// Reserve this step with this input, which is evaluated now and never again (R2). Whether it fits the action's
    /// schema is still to be checked.
    Reserve {
        /// The index of the step.
        step: usize,
        /// Its `with`, with every expression replaced by its value.
        input: Value,
    },
    /// The step's `if` or `with` has no value: the step fails with `CONFIG_INVALID`, before anything else happens (R2).
    Stop {
        /// The index of the step.
        step: usize,
        /// Which expression, and why.
        error: EvaluationError,
    },
    /// No step is left: the run completes.
    Complete {
        /// What it yields, by name: an object.
        outputs: Value,
    },
    /// No step is left, and what the run should yield has no value: the run fails with `CONFIG_INVALID`.
    OutputsFailed(EvaluationError),
}

/// What comes next, where every step before index `from` is over (0: at the start) and `progress` says how.
///
/// A step that is skipped is seen as skipped, with a null output, by everything after it.
pub fn advance(definition: &Definition, progress: &Progress, from: usize) -> Next {
    let mut scope = progress.scope();
    let mut skipped = Vec::new();
    for (index, step) in definition.steps.iter().enumerate().skip(from) {
        let runs = match &step.condition {
            Some(expression) => condition(expression, &step.path("if"), &scope),
            None => Ok(true),
        };
        let then = match runs {
            Ok(false) => {
                scope.record(&step.id, step.save_as.as_deref(), &Value::Null);
                skipped.push(index);
                continue;
            }
            Ok(true) => match evaluate(&step.with, &step.path("with"), &scope) {
                Ok(input) => Then::Reserve { step: index, input },
                Err(error) => Then::Stop { step: index, error },
            },
            Err(error) => Then::Stop { step: index, error },
        };
        return Next { skipped, then };
    }
    let outputs: Map<String, Value> =
        definition.outputs.iter().map(|(name, template)| (name.clone(), template.clone())).collect();
    let then = match evaluate(&Value::Object(outputs), "outputs", &scope) {
        Ok(outputs) => Then::Complete { outputs },
        Err(error) => Then::OutputsFailed(error),
    };
    Next { skipped, then }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::definition::tests::definition;
    use super::*;

    const WORKFLOW: &str = r#"
workflow: billing/dunning
steps:
  - { id: triage, action: billing/triage, with: { csv: "{{ params.csv }}" }, saveAs: overdue }
  - id: warn
    if: "{{ overdue | length > 2 }}"
    action: mail/send
    with: { count: "{{ overdue | length }}" }
    saveAs: warned
  - id: remind
    if: warned is none
    action: mail/send
    with: { to: "{{ overdue[0].email }}", warned: "{{ steps.warn.output }}" }
outputs: { first: "{{ overdue[0].id }}", warned: "{{ warned }}", reminded: "{{ steps.remind.output }}" }
"#;

    /// Progress in which the outputs given belong to the first steps, in order.
    fn progress(definition: &Definition, params: Value, outputs: &[Value]) -> Progress {
        let mut progress = Progress { params, ..Progress::default() };
        for (step, output) in definition.steps.iter().zip(outputs) {
            progress.record(step, output.clone());
        }
        progress
    }

    #[track_caller]
    fn check(text: &str, params: Value, outputs: &[Value], expected: Next) {
        let definition = definition(text);
        let progress = progress(&definition, params, outputs);
        assert_eq!(advance(&definition, &progress, outputs.len()), expected);
        // Asking changes nothing, so a repetition gets the same answer.
        assert_eq!(advance(&definition, &progress, outputs.len()), expected);
    }

    fn invoices(count: usize) -> Value {
        Value::from_iter((0..count).map(|id| json!({ "id": id, "email": format!("{id}@example.com") })))
    }

    #[test]
    fn r2_the_first_step_gets_its_input_evaluated() {
        let expected = Then::Reserve { step: 0, input: json!({ "csv": "a,b" }) };
        check(WORKFLOW, json!({ "csv": "a,b" }), &[], Next { skipped: vec![], then: expected });
    }

    #[test]
    fn r13_a_skipped_steps_output_is_null_to_what_follows() {
        let expected = Then::Reserve { step: 2, input: json!({ "to": "0@example.com", "warned": null }) };
        check(WORKFLOW, json!({}), &[invoices(1)], Next { skipped: vec![1], then: expected });
    }

    #[test]
    fn a_condition_that_holds_runs_its_step() {
        let expected = Then::Reserve { step: 1, input: json!({ "count": 3 }) };
        check(WORKFLOW, json!({}), &[invoices(3)], Next { skipped: vec![], then: expected });
    }

    #[test]
    fn r13_outputs_see_what_was_skipped_and_what_completed_without_output() {
        let outputs = json!({ "first": 0, "warned": { "sent": 1 }, "reminded": null });
        let expected = Next { skipped: vec![2], then: Then::Complete { outputs } };
        check(WORKFLOW, json!({}), &[invoices(3), json!({ "sent": 1 })], expected);
        let outputs = json!({ "first": 0, "warned": null, "reminded": null });
        let expected = Next { skipped: vec![], then: Then::Complete { outputs } };
        check(WORKFLOW, json!({}), &[invoices(1), json!(null), json!(null)], expected);
    }

    #[test]
    fn r2_what_does_not_evaluate_stops_its_step_and_names_the_path() {
        let definition = definition(WORKFLOW);
        for (outputs, skipped, step, expected) in [
            (
                vec![json!([{ "id": 1, "emial": "x" }])],
                vec![1],
                2,
                r#"steps.remind.with.to: "{{ overdue[0].email }}" is undefined"#,
            ),
            (
                vec![json!([])],
                vec![1],
                2,
                r#"steps.remind.with.to: "{{ overdue[0].email }}" cannot be evaluated: `overdue[0]` is undefined"#,
            ),
            (
                vec![json!(3)],
                vec![],
                1,
                r#"steps.warn.if: "overdue | length > 2" cannot be evaluated: cannot calculate length of value of type number"#,
            ),
        ] {
            let next = advance(&definition, &progress(&definition, json!({}), &outputs), outputs.len());
            assert_eq!(next.skipped, skipped);
            let Then::Stop { step: stopped, error } = next.then else { panic!("{:?}", next.then) };
            assert_eq!(stopped, step);
            assert_eq!(error.to_string(), expected);
        }
        let next = advance(&definition, &progress(&definition, json!({}), &[json!([{}]), json!(1), json!(1)]), 3);
        let Then::OutputsFailed(error) = next.then else { panic!("{:?}", next.then) };
        assert_eq!(error.to_string(), r#"outputs.first: "{{ overdue[0].id }}" is undefined"#);
    }

    #[test]
    fn a_workflow_whose_every_step_is_skipped_completes() {
        let text = "workflow: a/b\nsteps:\n- {id: s, if: false, action: mail/send}\n- {id: t, if: params.go, action: mail/send}";
        let complete = Then::Complete { outputs: json!({}) };
        check(text, json!({ "go": 0 }), &[], Next { skipped: vec![0, 1], then: complete });
        let reserve = Then::Reserve { step: 1, input: json!({}) };
        check(text, json!({ "go": true }), &[], Next { skipped: vec![0], then: reserve });
    }

    #[test]
    fn past_the_end_there_are_only_outputs() {
        let definition = definition("workflow: a/b\nsteps: [{id: s, action: mail/send}]");
        let next = advance(&definition, &Progress::default(), usize::MAX);
        assert_eq!(next, Next { skipped: vec![], then: Then::Complete { outputs: json!({}) } });
    }
}
