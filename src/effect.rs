//! Effect classes, the states of an effect in the journal, and what a crash in the middle calls for.
//!
//! Everything here is a table or a pure function: nothing performs I/O, reads a clock or knows a store. The same functions
//! decide live and in recovery.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

/// What a crash in the middle of an action means. Declared by the action, enforced by what the sandbox links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EffectClass {
    /// Computes only: run again.
    Pure,
    /// Changes this store together with the journal: nothing happened, run again.
    Transactional,
    /// Calls out under a key that the other end honours: run again under the same key.
    Idempotent,
    /// Calls out: reconcile, never run blindly.
    Ambiguous,
}

impl EffectClass {
    /// Every class, in the order of the design's tables.
    pub const ALL: [EffectClass; 4] =
        [EffectClass::Pure, EffectClass::Transactional, EffectClass::Idempotent, EffectClass::Ambiguous];

    /// The class as it is written in a policy and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            EffectClass::Pure => "pure",
            EffectClass::Transactional => "transactional",
            EffectClass::Idempotent => "idempotent",
            EffectClass::Ambiguous => "ambiguous",
        }
    }

    /// Whether `run` may let requests out.
    pub fn calls_out(self) -> bool {
        matches!(self, EffectClass::Idempotent | EffectClass::Ambiguous)
    }

    /// Whether the effect is marked as begun before `run` is called.
    pub fn is_marked(self) -> bool {
        self == EffectClass::Ambiguous
    }
}

impl fmt::Display for EffectClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl FromStr for EffectClass {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        EffectClass::ALL.into_iter().find(|class| class.as_str() == text).ok_or_else(|| {
            format!("`{text}` is not an effect class; the classes are pure, transactional, idempotent and ambiguous")
        })
    }
}

/// What the journal says of an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EffectState {
    /// It may have begun and nobody has written down how it ended.
    Executing,
    /// It happened; its output is stored.
    Succeeded,
    /// It did not happen.
    Failed,
    /// Whether it happened is for a person to find out.
    Ambiguous,
}

impl EffectState {
    /// Every state.
    pub const ALL: [EffectState; 4] =
        [EffectState::Executing, EffectState::Succeeded, EffectState::Failed, EffectState::Ambiguous];

    /// The state as it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            EffectState::Executing => "executing",
            EffectState::Succeeded => "succeeded",
            EffectState::Failed => "failed",
            EffectState::Ambiguous => "ambiguous",
        }
    }
}

impl fmt::Display for EffectState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for EffectState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        EffectState::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| format!("`{text}` is not the state of an effect"))
    }
}

/// Whether the journal may go from `from` (`None`: no record) to `to`.
///
/// `Succeeded` is final: what happened cannot un-happen. A failed effect may begin again under the same key, and one in
/// doubt stays in doubt until somebody answers. An effect may go from nothing to any state, because only an ambiguous one
/// is marked before it is settled.
pub fn may_become(from: Option<EffectState>, to: EffectState) -> bool {
    use EffectState::{Ambiguous, Executing, Failed, Succeeded};
    match (from, to) {
        (None | Some(Failed), _) => true,
        (Some(Executing), Executing | Succeeded | Failed | Ambiguous) => true,
        // An idempotent effect in doubt is run again under its key, which may succeed, fail or stay in doubt.
        (Some(Ambiguous), Executing | Succeeded | Failed | Ambiguous) => true,
        (Some(Succeeded), _) => false,
    }
}

/// What the host knows of a step's effect before it performs the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The journal's record, if there is one.
    pub state: Option<EffectState>,
    /// Whether the recorded input hash is the one at hand. Meaningless without a record.
    pub same_input: bool,
    /// Whether an earlier dispatch of the step may have begun: its reservation is the evidence.
    pub may_have_begun: bool,
    /// Whether the provider still remembers the key (R15). True where no window is stated.
    pub key_remembered: bool,
    /// Whether the action has `reconcile`.
    pub reconcilable: bool,
}

/// What to do about a step, by R8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recovery {
    /// Go through the contract from authorize.
    Perform,
    /// Restore the recorded output (R9).
    Restore,
    /// It succeeded for another input: a person must look.
    InputChanged,
    /// Ask the action what became of it.
    Reconcile,
    /// It may have happened and nobody can be asked: a person must look.
    NeedsAttention,
}

/// R8 and R15 as one table: what to do about a step of `class`, given what is `known`.
///
/// ```
/// use tollgate::effect::{recovery, EffectClass, EffectState, Known, Recovery};
///
/// let crashed = Known {
///     state: Some(EffectState::Executing),
///     same_input: true,
///     may_have_begun: true,
///     key_remembered: true,
///     reconcilable: true,
/// };
/// assert_eq!(recovery(EffectClass::Ambiguous, crashed), Recovery::Reconcile);
/// assert_eq!(recovery(EffectClass::Idempotent, crashed), Recovery::Perform);
/// ```
pub fn recovery(class: EffectClass, known: Known) -> Recovery {
    use EffectState::{Ambiguous, Executing, Failed, Succeeded};
    match (class, known.state) {
        // A pure action has no effect, so there is no journal to read.
        (EffectClass::Pure, _) => Recovery::Perform,
        (_, Some(Succeeded)) if known.same_input => Recovery::Restore,
        (_, Some(Succeeded)) => Recovery::InputChanged,
        // What it does commits together with its record: without one, nothing happened.
        (EffectClass::Transactional, _) => Recovery::Perform,
        (EffectClass::Idempotent, state) => {
            let in_doubt = match state {
                Some(Executing | Ambiguous) => true,
                Some(Failed) | None => known.may_have_begun,
                Some(Succeeded) => false,
            };
            match (in_doubt, known.key_remembered, known.reconcilable) {
                (false, _, _) | (true, true, _) => Recovery::Perform,
                (true, false, true) => Recovery::Reconcile,
                (true, false, false) => Recovery::NeedsAttention,
            }
        }
        (EffectClass::Ambiguous, Some(Executing | Ambiguous)) if known.reconcilable => Recovery::Reconcile,
        // Cannot be uploaded, but a record may name a component that is gone.
        (EffectClass::Ambiguous, Some(Executing | Ambiguous)) => Recovery::NeedsAttention,
        (EffectClass::Ambiguous, Some(Failed) | None) => Recovery::Perform,
    }
}

/// How an action answered when it was asked what became of an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It happened.
    Succeeded,
    /// It did not happen.
    Failed,
    /// Neither can be said.
    Unknown,
}

/// What an answer is worth at the moment it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Belief {
    /// Settle the effect in this state.
    Settle(EffectState),
    /// Too early: ask again at this moment.
    AskAgain(Timestamp),
}

/// R8's rule of belief: before `deadline` plus `visible_within` an effect can still appear at the other end, so only
/// *succeeded* is believed.
///
/// `asked_at` is when the question was asked, not when its answer came: what appeared in between was not seen.
pub fn believe(answer: Answer, asked_at: Timestamp, deadline: Timestamp, visible_within: Duration) -> Belief {
    let settled_by = deadline.plus(visible_within);
    match answer {
        Answer::Succeeded => Belief::Settle(EffectState::Succeeded),
        Answer::Failed | Answer::Unknown if asked_at < settled_by => Belief::AskAgain(settled_by),
        Answer::Failed => Belief::Settle(EffectState::Failed),
        Answer::Unknown => Belief::Settle(EffectState::Ambiguous),
    }
}

/// The key of a step's effect (R1): derived, so that a retry after a crash shows a provider the same one.
///
/// `retry_with_new_key` counts the times that a person asked for a new key; 0 for none.
pub fn effect_key(run_id: &str, step_key: &str, retry_with_new_key: u32) -> String {
    match retry_with_new_key {
        0 => format!("workflow:{run_id}:step:{step_key}"),
        count => format!("workflow:{run_id}:step:{step_key}:retry:{count}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of what can be known, so that no row of the table goes unread.
    fn everything_known() -> impl Iterator<Item = Known> {
        let states = [None].into_iter().chain(EffectState::ALL.into_iter().map(Some));
        states.flat_map(|state| {
            (0..16u8).map(move |bits| Known {
                state,
                same_input: bits & 1 != 0,
                may_have_begun: bits & 2 != 0,
                key_remembered: bits & 4 != 0,
                reconcilable: bits & 8 != 0,
            })
        })
    }

    #[test]
    fn r8_pure_never_reads_the_journal() {
        for known in everything_known() {
            assert_eq!(recovery(EffectClass::Pure, known), Recovery::Perform, "{known:?}");
        }
    }

    #[test]
    fn r8_r9_succeeded_is_restored_or_shown_to_a_person_never_reused() {
        for class in [EffectClass::Transactional, EffectClass::Idempotent, EffectClass::Ambiguous] {
            for known in everything_known().filter(|known| known.state == Some(EffectState::Succeeded)) {
                let expected = if known.same_input { Recovery::Restore } else { Recovery::InputChanged };
                assert_eq!(recovery(class, known), expected, "{class} {known:?}");
            }
        }
    }

    #[test]
    fn r8_an_ambiguous_effect_that_may_have_begun_is_never_performed() {
        for known in everything_known() {
            let in_doubt = matches!(known.state, Some(EffectState::Executing | EffectState::Ambiguous));
            let expected = match (known.state, in_doubt, known.reconcilable) {
                (Some(EffectState::Succeeded), _, _) => continue,
                (_, true, true) => Recovery::Reconcile,
                (_, true, false) => Recovery::NeedsAttention,
                (_, false, _) => Recovery::Perform,
            };
            assert_eq!(recovery(EffectClass::Ambiguous, known), expected, "{known:?}");
        }
    }

    #[test]
    fn r10_a_transactional_step_without_a_record_did_not_happen() {
        for known in everything_known().filter(|known| known.state != Some(EffectState::Succeeded)) {
            assert_eq!(recovery(EffectClass::Transactional, known), Recovery::Perform, "{known:?}");
        }
    }

    #[test]
    fn r15_an_idempotent_step_is_repeated_only_while_its_key_is_remembered() {
        for known in everything_known().filter(|known| known.state != Some(EffectState::Succeeded)) {
            let doubt =
                known.may_have_begun || matches!(known.state, Some(EffectState::Executing | EffectState::Ambiguous));
            let expected = match (doubt && !known.key_remembered, known.reconcilable) {
                (false, _) => Recovery::Perform,
                (true, true) => Recovery::Reconcile,
                (true, false) => Recovery::NeedsAttention,
            };
            assert_eq!(recovery(EffectClass::Idempotent, known), expected, "{known:?}");
        }
    }

    #[test]
    fn r8_only_succeeded_is_believed_early() {
        let deadline = Timestamp(1_000);
        let visible = Duration::from_millis(500);
        let check = |answer, now, expected| {
            assert_eq!(believe(answer, Timestamp(now), deadline, visible), expected, "{answer:?} at {now}");
        };
        check(Answer::Succeeded, 0, Belief::Settle(EffectState::Succeeded));
        check(Answer::Failed, 0, Belief::AskAgain(Timestamp(1_500)));
        check(Answer::Failed, 1_499, Belief::AskAgain(Timestamp(1_500)));
        check(Answer::Failed, 1_500, Belief::Settle(EffectState::Failed));
        check(Answer::Unknown, 1_499, Belief::AskAgain(Timestamp(1_500)));
        check(Answer::Unknown, 1_500, Belief::Settle(EffectState::Ambiguous));
    }

    #[test]
    fn what_succeeded_stays_succeeded() {
        for to in EffectState::ALL {
            assert!(!may_become(Some(EffectState::Succeeded), to), "{to}");
            assert!(may_become(None, to), "{to}");
            assert!(may_become(Some(EffectState::Failed), to), "{to}");
        }
        assert!(may_become(Some(EffectState::Executing), EffectState::Ambiguous));
    }

    #[test]
    fn r1_the_effect_key_is_derived_and_changes_only_for_a_person() {
        assert_eq!(effect_key("r1", "notify[INV-7]", 0), "workflow:r1:step:notify[INV-7]");
        assert_eq!(effect_key("r1", "notify", 2), "workflow:r1:step:notify:retry:2");
    }
}
