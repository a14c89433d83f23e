//! D1 to D5: what a run would do, from the definition and the same exports, with nothing written.
//!
//! Steps are asked in order. What depends on an output that the dry run does not have is `indeterminate`; a step that
//! would fail ends it, as it would end the run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::resume_point::check_input;
use super::start::{StartError, StartRun, check_params};
use crate::budget::{Amount, ChargeItem, Exceeded, check};
use crate::clock::Timestamp;
use crate::component::{ActionName, Descriptor};
use crate::host::Host;
use crate::journal::{Failure, Fence, Then, codes};
use crate::json;
use crate::perform::{Continuation, Rehearsed, Reserved, Retry, rehearse};
use crate::worker::lease::Lease;
use crate::workflow::{Definition, PinnedAction, Progress, Step, condition, evaluate};

/// What a run would do.
#[derive(Debug, Clone, Serialize)]
pub struct DryRun {
    /// The workflow.
    pub workflow: String,
    /// Every step up to the first that would fail, in order.
    pub steps: Vec<PlannedStep>,
    /// What the planned effects come to (D4).
    pub budget: BudgetForecast,
    /// The run's outputs; `None` where they depend on what is not known.
    pub outputs: Option<Value>,
}

/// What one step would do.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedStep {
    /// Its key.
    pub step: String,
    /// Its action.
    pub action: String,
    /// How sure the answer is.
    #[serde(flatten)]
    pub forecast: StepForecast,
}

/// How sure the answer about a step is.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "status", rename_all = "lowercase")]
pub enum StepForecast {
    /// It would run.
    Planned {
        /// Its output, as far as it is known.
        output: Option<Value>,
        /// What it would do; none of a pure action.
        effects: Vec<PlannedEffect>,
        /// What its plan wants told.
        issues: Vec<StepIssue>,
    },
    /// Its condition would skip it.
    Skipped,
    /// It would run, and has no plan.
    Unsupported {
        /// `<action> cannot be planned`.
        reason: String,
    },
    /// It depends on what is not known.
    Indeterminate {
        /// On what.
        reason: String,
    },
    /// It would fail, and the run with it.
    Terminal {
        /// Why.
        failure: Failure,
    },
}

/// An effect that a step would have.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedEffect {
    /// The action.
    pub action: String,
    /// One line for a person.
    pub summary: String,
    /// What it would consume.
    pub consumes: Vec<ChargeItem>,
}

/// Something that a step's plan wants told.
#[derive(Debug, Clone, Serialize)]
pub struct StepIssue {
    /// The step.
    pub step: String,
    /// A short, stable, upper-case word.
    pub code: String,
    /// For a person.
    pub message: String,
}

/// The sum of the planned effects beside the budget (D4).
#[derive(Debug, Clone, Serialize)]
pub struct BudgetForecast {
    /// The caps.
    pub caps: BTreeMap<String, Amount>,
    /// The sum of the planned effects.
    pub planned: BTreeMap<String, Amount>,
    /// The first dimension that would run out, and at which step; `None` where everything fits.
    pub runs_out: Option<RunsOut>,
}

/// Where the budget would run out.
#[derive(Debug, Clone, Serialize)]
pub struct RunsOut {
    /// The step whose charge would not fit.
    pub step: String,
    /// The four figures.
    pub exceeded: Exceeded,
}

impl DryRun {
    /// Whether the run would fail: a step is terminal, or the budget runs out.
    pub fn fails(&self) -> bool {
        self.budget.runs_out.is_some()
            || self.steps.iter().any(|step| matches!(step.forecast, StepForecast::Terminal { .. }))
    }
}

impl Host {
    /// Asks what a run would do. Writes nothing, and makes only safe requests (D5).
    ///
    /// # Errors
    /// As for starting a run; and where the store fails.
    pub async fn dry_run(&self, start: StartRun) -> Result<DryRun, StartError> {
        let definition = self.freeze(start.workflow).await?;
        check_params(&definition, &start.params)?;
        let mut caps = definition.budget.clone();
        caps.extend(start.budget);
        let mut rehearsal = Rehearsal {
            host: self,
            gate: self.gate(),
            run: format!("dry-run-{}", self.ambient.ids.next_id()),
            now: self.ambient.clock.now(),
            progress: Progress { params: start.params, ..Progress::default() },
            unknown: Unknown::default(),
            labels: json!(start.labels),
        };
        let mut dry = DryRun {
            workflow: definition.workflow_ref.clone(),
            steps: Vec::new(),
            budget: BudgetForecast { caps, planned: BTreeMap::new(), runs_out: None },
            outputs: None,
        };
        for step in &definition.steps {
            let forecast = rehearsal.step(&definition, step).await?;
            dry.budget.count(&step.id, &forecast);
            let terminal = matches!(forecast, StepForecast::Terminal { .. });
            dry.steps.push(PlannedStep { step: step.id.clone(), action: step.action.clone(), forecast });
            if terminal {
                return Ok(dry);
            }
        }
        let outputs = Value::Object(definition.outputs.clone().into_iter().collect());
        if !rehearsal.unknown.is_mentioned_in(&outputs) {
            dry.outputs = evaluate(&outputs, "outputs", &rehearsal.progress.scope()).ok();
        }
        Ok(dry)
    }
}

impl BudgetForecast {
    fn count(&mut self, step: &str, forecast: &StepForecast) {
        let StepForecast::Planned { effects, .. } = forecast else { return };
        let items: Vec<ChargeItem> = effects.iter().flat_map(|effect| effect.consumes.clone()).collect();
        if self.runs_out.is_none()
            && let Err(exceeded) = check(&self.caps, &self.planned, &items)
        {
            self.runs_out = Some(RunsOut { step: step.to_owned(), exceeded });
        }
        for item in items {
            let sum = self.planned.entry(item.dimension).or_insert(Amount::ZERO);
            *sum = sum.checked_add(item.amount).unwrap_or(Amount::MAX);
        }
    }
}

struct Rehearsal<'a> {
    host: &'a Host,
    gate: crate::perform::Gate,
    run: String,
    now: Timestamp,
    progress: Progress,
    unknown: Unknown,
    labels: Value,
}

impl Rehearsal<'_> {
    async fn step(&mut self, definition: &Definition, step: &Step) -> Result<StepForecast, StartError> {
        let depends = |what: &str| StepForecast::Indeterminate {
            reason: format!("{} depends on the output of a step that is not known before it runs", step.path(what)),
        };
        let invalid =
            |message: String| StepForecast::Terminal { failure: Failure::permanent(codes::CONFIG_INVALID, message) };
        let scope = self.progress.scope();
        if let Some(expression) = &step.condition {
            if self.unknown.is_mentioned(expression) {
                self.unknown.add(step);
                return Ok(depends("if"));
            }
            match condition(expression, &step.path("if"), &scope) {
                Ok(true) => {}
                Ok(false) => {
                    self.progress.record(step, Value::Null);
                    return Ok(StepForecast::Skipped);
                }
                Err(error) => return Ok(invalid(error.to_string())),
            }
        }
        if self.unknown.is_mentioned_in(&step.with) {
            self.unknown.add(step);
            return Ok(depends("with"));
        }
        let input = match evaluate(&step.with, &step.path("with"), &scope) {
            Ok(input) => input,
            Err(error) => return Ok(invalid(error.to_string())),
        };
        let (Ok(action), Some(pinned)) = (step.action.parse::<ActionName>(), definition.actions.get(&step.action))
        else {
            return Ok(invalid(format!("the definition pins no component for {}", step.action)));
        };
        let descriptor = self.host.registry.descriptor(&pinned.digest, &action.action).await?;
        if let Err(message) = check_input(descriptor.as_ref(), step, &input) {
            return Ok(invalid(message));
        }
        let Some(descriptor) = descriptor else {
            return Ok(invalid(format!("the pinned component of {action} has no such action")));
        };
        let reserved = self.reserved(definition, step, action, pinned, descriptor, input);
        Ok(match rehearse(&self.gate, &reserved).await {
            Rehearsed::Planned { output, effect, issues } => {
                match &output {
                    Some(output) => self.progress.record(step, output.clone()),
                    None => self.unknown.add(step),
                }
                let effects =
                    effect.map(|(summary, consumes)| PlannedEffect { action: step.action.clone(), summary, consumes });
                let issues = issues.into_iter().map(|issue| StepIssue {
                    step: step.id.clone(),
                    code: issue.code,
                    message: issue.message,
                });
                StepForecast::Planned { output, effects: effects.into_iter().collect(), issues: issues.collect() }
            }
            Rehearsed::Unsupported => {
                self.unknown.add(step);
                StepForecast::Unsupported { reason: format!("{} cannot be planned", step.action) }
            }
            Rehearsed::Indeterminate(reason) => {
                self.unknown.add(step);
                StepForecast::Indeterminate { reason }
            }
            Rehearsed::Terminal(failure) => StepForecast::Terminal { failure },
        })
    }

    fn reserved(
        &self,
        definition: &Definition,
        step: &Step,
        action: ActionName,
        pinned: &PinnedAction,
        descriptor: Descriptor,
        input: Value,
    ) -> Reserved {
        let invocation = json!({
            "workflow": definition.workflow_ref,
            "run": self.run,
            "params": self.progress.params,
            "labels": self.labels,
        });
        Reserved {
            fence: Fence { run: self.run.clone(), generation: 0 },
            step: step.id.clone(),
            action,
            descriptor: Arc::new(descriptor),
            component: pinned.digest.clone(),
            with: Arc::new(step.with.clone()),
            input_hash: json::hash(&input),
            input: Arc::new(input),
            save_as: step.save_as.clone(),
            retry: Retry { attempts: 1, backoff: std::time::Duration::ZERO, max_backoff: std::time::Duration::ZERO },
            timeout: step.timeout,
            attempt: 1,
            dispatch: String::new(),
            claim_token: String::new(),
            reserved_at: self.now,
            tries: 0,
            key_retries: 0,
            begun_at: None,
            unheard_before: false,
            invocation: json::canonical(&invocation),
            variables: json::canonical(&json!(self.progress.variables)),
            lease: Arc::new(Lease::unlimited()),
            continuation: Arc::new(Nothing),
        }
    }
}

/// A rehearsed step is not settled, so nothing follows it.
struct Nothing;

impl Continuation for Nothing {
    fn after(&self, _output: &Value, _now: Timestamp) -> Then {
        Then::Block
    }
}

/// The names of outputs that the dry run does not have.
#[derive(Default)]
struct Unknown {
    names: BTreeSet<String>,
}

impl Unknown {
    fn add(&mut self, step: &Step) {
        self.names.insert(step.id.clone());
        self.names.extend(step.save_as.clone());
    }

    /// Whether a string with expressions in a template mentions one of them.
    fn is_mentioned_in(&self, template: &Value) -> bool {
        match template {
            Value::String(text) => (text.contains("{{") || text.contains("{%")) && self.is_mentioned(text),
            Value::Array(list) => list.iter().any(|value| self.is_mentioned_in(value)),
            Value::Object(fields) => fields.values().any(|value| self.is_mentioned_in(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    /// Whether an expression, or a text with some, mentions one of them as a word. A word that only looks like one makes
    /// the answer `indeterminate`, never wrong.
    fn is_mentioned(&self, text: &str) -> bool {
        let is_word = |char: char| char.is_alphanumeric() || matches!(char, '_' | '-');
        let names_one = text.split(|char: char| !is_word(char)).any(|word| self.names.contains(word));
        // `steps[params.which]`, `steps | length`: which step is meant is known only when it is evaluated.
        let whole = !self.names.is_empty()
            && text.match_indices("steps").any(|(at, found)| {
                let (before, after) = (&text[..at], &text[at + found.len()..]);
                !before.ends_with(is_word) && !after.starts_with(is_word) && !after.trim_start().starts_with('.')
            });
        names_one || whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d3_what_may_depend_on_an_unknown_output_is_not_evaluated() {
        let unknown = Unknown { names: ["send".to_owned(), "sent".to_owned()].into() };
        #[track_caller]
        fn check(unknown: &Unknown, text: &str, expected: bool) {
            assert_eq!(unknown.is_mentioned(text), expected, "{text}");
        }
        check(&unknown, "{{ sent.id }}", true);
        check(&unknown, "{{ steps.send.output }}", true);
        check(&unknown, "{{ steps[params.which].output }}", true);
        check(&unknown, "{{ steps | length }}", true);
        check(&unknown, "{{ steps.triage.output }}", false);
        check(&unknown, "{{ overdue | length }} missteps", false);
        check(&Unknown::default(), "{{ steps | length }}", false);
    }
}
