//! Workflows: from a file that a person wrote to a definition that a run keeps, and on to what comes next in the run.
//!
//! ```text
//! text ── Workflow::parse ──▶ Workflow ── Definition::freeze ──▶ Definition ── advance ──▶ what to do next
//!          every problem at once           pins its actions         and Progress
//! ```
//!
//! - `document`: a YAML or JSON text as a tree whose nodes know their bytes
//! - `parse`: the tree as a [`Workflow`], or everything that is wrong with it
//! - `expression`: what `{{ … }}` means
//! - `definition`: a workflow with its actions pinned, as it is stored
//! - `advance`: which step comes next, and with what input
//!
//! Nothing here performs I/O, reads a clock, or knows a store: files are read, actions looked up and runs changed by
//! whoever calls.

mod advance;
mod definition;
mod document;
mod expression;
mod parse;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::budget::Amount;

pub use advance::{Next, Progress, Then, advance};
pub use definition::{Definition, DefinitionError, FORMAT, PinnedAction, validate_params};
pub use expression::{EVALUATED_BYTES_MAX, EvaluationError, Scope, binding, condition, evaluate};
pub use parse::is_qualified_name;

/// The published JSON Schema of workflow files, for editors and for whoever writes such files by program.
///
/// It sees the shape of a file; [`Workflow::parse`] sees also what a schema cannot: whether expressions compile, and
/// whether what they refer to is there.
pub const WORKFLOW_SCHEMA: &str = include_str!("../../docs/workflow.schema.json");

/// A workflow that was read and checked: every expression compiles, and refers only to what is there by then.
#[derive(Debug, Clone)]
pub struct Workflow {
    /// Its name, `app/name`.
    pub workflow_ref: String,
    /// One line for a person; `None` where the file has none.
    pub title: Option<String>,
    /// The JSON Schema of its parameters; any object where the file says nothing.
    pub params_schema: Value,
    /// The cap of each dimension. A dimension that is not here is uncapped, and still counted.
    pub budget: BTreeMap<String, Amount>,
    /// Its steps in order; at least one.
    pub steps: Vec<Step>,
    /// What the run yields, by name: templates, evaluated once the last step is over.
    pub outputs: BTreeMap<String, Value>,
    /// Where it came from, for problems that are found later.
    source: Source,
}

impl Workflow {
    /// The names of the actions it uses, each once.
    pub fn actions(&self) -> BTreeSet<&str> {
        self.steps.iter().map(|step| step.action.as_str()).collect()
    }
}

#[derive(Debug, Clone)]
struct Source {
    name: String,
    text: String,
    /// Where each step names its action.
    actions: Vec<Range<usize>>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Step {
    /// Its name, unique in the workflow; the step's key in a run.
    pub id: String,
    /// One line for a person; `None` where the file has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What a person should know who looks at this step; `None` where the file has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// The action it performs, `app/action`.
    pub action: String,
    /// The template of the action's configuration: an object; empty where the file says nothing.
    pub with: Value,
    /// The variable that its output lands in; `None` for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_as: Option<String>,
    /// The expression that must hold for the step to run, without `{{ }}`; `None`: it always runs.
    #[serde(rename = "if", default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// What happens after a failure that may be tried again.
    pub retry: Retry,
    /// How long one attempt may take; `None`: as long as the action's limits allow.
    #[serde(rename = "timeoutMs", default, skip_serializing_if = "Option::is_none", with = "optional_milliseconds")]
    pub timeout: Option<Duration>,
}

impl Step {
    /// The place of `field` (`with`, `if`) of this step, as errors name it: `steps.remind.with`.
    pub fn path(&self, field: &str) -> String {
        let mut path = "steps".to_owned();
        crate::json::push_key(&mut path, &self.id);
        crate::json::push_key(&mut path, field);
        path
    }
}

/// How often a step is tried, and how long it waits in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Retry {
    /// How many attempts there are in all, the first included; at least 1.
    pub attempts: u32,
    /// The wait after the first attempt; it doubles after each further one. Zero: try again at once.
    #[serde(rename = "backoffMs", with = "milliseconds")]
    pub backoff: Duration,
    /// The longest wait; never less than `backoff`.
    #[serde(rename = "maxBackoffMs", with = "milliseconds")]
    pub max_backoff: Duration,
}

impl Retry {
    /// The wait before the first repetition, where the file says nothing.
    pub const BACKOFF: Duration = Duration::from_secs(1);
    /// The longest wait, where the file says nothing.
    pub const MAX_BACKOFF: Duration = Duration::from_secs(300);

    /// How long to wait after `attempt` (from 1) has failed: `backoff`, doubled for each attempt before it, at most
    /// `max_backoff`. `None` where no attempt is left.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::workflow::Retry;
    ///
    /// let retry = Retry { attempts: 4, backoff: Duration::from_secs(2), max_backoff: Duration::from_secs(5) };
    /// let waits: Vec<_> = (1..=4).map(|attempt| retry.wait_after(attempt).map(|wait| wait.as_secs())).collect();
    /// assert_eq!(waits, [Some(2), Some(4), Some(5), None]);
    /// ```
    pub fn wait_after(&self, attempt: u32) -> Option<Duration> {
        if attempt >= self.attempts {
            return None;
        }
        let doublings = attempt.saturating_sub(1);
        let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
        Some(self.backoff.checked_mul(factor).map_or(self.max_backoff, |wait| wait.min(self.max_backoff)))
    }
}

/// One attempt, no repetition; the waits are those of a file that says nothing.
impl Default for Retry {
    fn default() -> Retry {
        Retry { attempts: 1, backoff: Retry::BACKOFF, max_backoff: Retry::MAX_BACKOFF }
    }
}

/// Durations are stored as whole milliseconds, which is what timestamps count.
mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

mod optional_milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => super::milliseconds::serialize(duration, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_never_overflow() {
        let retry =
            Retry { attempts: u32::MAX, backoff: Duration::from_secs(1), max_backoff: Duration::from_secs(300) };
        for (attempt, seconds) in [(0, 1), (1, 1), (2, 2), (9, 256), (10, 300), (33, 300), (4_000_000_000, 300)] {
            assert_eq!(retry.wait_after(attempt), Some(Duration::from_secs(seconds)), "{attempt}");
        }
        assert_eq!(retry.wait_after(u32::MAX), None);
        assert_eq!(Retry::default().wait_after(1), None);
        let at_once = Retry { attempts: 9, backoff: Duration::ZERO, max_backoff: Duration::ZERO };
        assert_eq!(at_once.wait_after(8), Some(Duration::ZERO));
        let vast = Retry { attempts: 99, backoff: Duration::MAX, max_backoff: Duration::MAX };
        assert_eq!(vast.wait_after(40), Some(Duration::MAX));
    }

    #[test]
    fn paths_quote_only_what_needs_it() {
        let mut step = Step {
            id: "send-mail".into(),
            title: None,
            instructions: None,
            action: "mail/send".into(),
            with: Value::Null,
            save_as: None,
            condition: None,
            retry: Retry::default(),
            timeout: None,
        };
        assert_eq!(step.path("with"), "steps.send-mail.with");
        step.id = "a b".into();
        assert_eq!(step.path("if"), "steps[\"a b\"].if");
    }
}
