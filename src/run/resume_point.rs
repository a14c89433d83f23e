//! Where a run goes on: read once from the store, and from then on carried along in memory.
//!
//! Pure but for the ids that it is given: it turns what the store holds, or what a step's completion changes, into what the
//! run does next.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::state::StepState;
use crate::clock::{Ids, Timestamp};
use crate::component::Descriptor;
use crate::journal::{Failure, RequestEvidence, Reservation, Skipped, Then, codes};
use crate::json;
use crate::perform::Continuation;
use crate::store::{AttemptState, Snapshot};
use crate::workflow::{self, Definition, DefinitionError, Progress, Step, advance};

/// What does not change while a run is performed.
pub(super) struct Frozen {
    pub definition: Definition,
    /// What the pinned component of each action says of it.
    pub descriptors: BTreeMap<String, Arc<Descriptor>>,
    pub ids: Arc<dyn Ids>,
}

/// How far a run has come: every step before `next` is over.
pub(super) struct Position {
    pub progress: Progress,
    pub next: usize,
}

/// Reads the position of a run from what the store holds.
pub(super) fn position(definition: &Definition, snapshot: &Snapshot) -> Result<Position, DefinitionError> {
    let parse = |what: &str, text: &str| {
        serde_json::from_str::<Value>(text).map_err(|error| DefinitionError::Damaged(format!("{what}: {error}")))
    };
    let mut progress = Progress { params: parse("its params", &snapshot.run.params)?, ..Progress::default() };
    let mut next = definition.steps.len();
    for (index, (step, row)) in definition.steps.iter().zip(&snapshot.steps).enumerate() {
        if step.id != row.key {
            return Err(DefinitionError::Damaged(format!("its step {} is stored as {}", step.id, row.key)));
        }
        match row.state {
            StepState::Completed | StepState::Skipped => {
                let output = row.output.as_deref().unwrap_or("null");
                progress.record(step, parse(&format!("the output of {}", step.id), output)?);
            }
            _ => {
                next = index;
                break;
            }
        }
    }
    Ok(Position { progress, next })
}

impl Frozen {
    pub fn descriptor(&self, step: &Step) -> Option<&Arc<Descriptor>> {
        self.descriptors.get(&step.action)
    }

    /// What the run does where every step before `from` is over (R2, R13). What does not evaluate, or does not fit the
    /// action's schema, fails its step before anything else happens.
    pub fn what_next(&self, progress: &Progress, from: usize) -> Then {
        let next = advance(&self.definition, progress, from);
        let skipped = next
            .skipped
            .iter()
            .filter_map(|index| self.definition.steps.get(*index))
            .map(|step| Skipped { step: step.id.clone(), save_as: step.save_as.clone() })
            .collect();
        let fail = |skipped, step: Option<&Step>, message: String| Then::Fail {
            skipped,
            step: step.map(|step| step.id.clone()),
            failure: Failure::permanent(codes::CONFIG_INVALID, message),
        };
        let at = |index: usize| self.definition.steps.get(index);
        match next.then {
            workflow::Then::Reserve { step: index, input } => match at(index) {
                Some(step) => match self.check_input(step, &input) {
                    Ok(()) => Then::Reserve { skipped, next: self.reservation(&step.id, json::canonical(&input)) },
                    Err(message) => fail(skipped, Some(step), message),
                },
                None => fail(skipped, None, format!("the definition has no step {index}")),
            },
            workflow::Then::Stop { step, error } => fail(skipped, at(step), error.to_string()),
            workflow::Then::Complete { outputs } => Then::Complete { skipped, outputs: json::canonical(&outputs) },
            workflow::Then::OutputsFailed(error) => fail(skipped, None, error.to_string()),
        }
    }

    /// A reservation of the step with fresh ids.
    pub fn reservation(&self, step: &str, input: String) -> Reservation {
        Reservation { step: step.to_owned(), dispatch: self.ids.next_id(), claim_token: self.ids.next_id(), input }
    }

    fn check_input(&self, step: &Step, input: &Value) -> Result<(), String> {
        check_input(self.descriptor(step).map(Arc::as_ref), step, input)
    }
}

/// R2: does an evaluated configuration fit its action's schema? The message names the path.
pub(super) fn check_input(descriptor: Option<&Descriptor>, step: &Step, input: &Value) -> Result<(), String> {
    let Some(descriptor) = descriptor else {
        return Err(format!("the pinned component of {} has no such action", step.action));
    };
    descriptor.check_config(input).map_err(|problems| {
        let problems: Vec<String> = problems
            .iter()
            .map(|problem| {
                let mut path = step.path("with");
                if !problem.path.is_empty() {
                    path = format!("{path}.{}", problem.path);
                }
                format!("{path}: {}", problem.message)
            })
            .collect();
        problems.join("; ")
    })
}

/// What a run does once the step at `index` is completed.
pub(super) struct After {
    pub frozen: Arc<Frozen>,
    pub progress: Progress,
    pub index: usize,
}

impl Continuation for After {
    fn after(&self, output: &Value, _now: Timestamp) -> Then {
        let mut progress = self.progress.clone();
        if let Some(step) = self.frozen.definition.steps.get(self.index) {
            progress.record(step, output.clone());
        }
        self.frozen.what_next(&progress, self.index + 1)
    }
}

/// Whether a request of an earlier attempt of this step may have left unheard under the present key: one that is in its
/// evidence, or any of a holder that was lost, whose evidence died with it. `snapshot` is of before the claim.
pub(super) fn unheard_before(snapshot: &Snapshot, step: &str) -> bool {
    snapshot.attempts.iter().filter(|attempt| attempt.unit == step).any(|attempt| {
        let heard =
            attempt.record.as_ref().is_some_and(|record| !record.requests.iter().any(RequestEvidence::is_unheard));
        attempt.state == AttemptState::Running || attempt.may_have_begun && (attempt.lost || !heard)
    })
}
