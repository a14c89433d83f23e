//! R9, R11, R12, R13: what an attempt's end means, and the one commit that writes it down.
//!
//! [`verdict`] is the pure table of R11 and R12; everything after it turns a verdict into a [`Commit`]: the effect's
//! record, the attempt's evidence, the step, the variable, the events, and what the run does next.

use std::time::Duration;

use serde_json::{Value, json};

use super::act::Acted;
use super::charge::{charge, is_in_doubt, over_budget};
use super::recall::Work;
use super::{Gate, Halt, Reserved, accept_output};
use crate::clock::Timestamp;
use crate::effect::{EffectClass, EffectState};
use crate::journal::{
    AttemptEnd, AttemptRecord, ChargeKey, Commit, Committed, Dependency, EffectRecord, Failure, JournalError,
    RequestEvidence, StepEnd, Then, codes, events,
};
use crate::json;
use crate::sandbox::{Fault, Outcome};

/// How often a transactional attempt begins again after a conflict before it fails retryably.
const CONFLICTS_MAX: u32 = 16;

/// How a step came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The contract went through.
    Performed,
    /// The journal had the output (R9), or the reason to stop.
    Restored,
    /// The action was asked (R8).
    Reconciled,
}

/// A settled attempt: what was committed.
#[derive(Debug, Clone)]
pub struct Settled {
    end: StepEnd,
    /// What the run does next.
    pub then: Then,
    /// How the step came to this.
    pub how: How,
    /// What the attempt cost and did.
    pub record: AttemptRecord,
    /// The performer's clock when it settled.
    pub at: Timestamp,
}

impl Settled {
    /// How the step stands.
    pub fn end(&self) -> &StepEnd {
        &self.end
    }

    /// The canonical text of its output, if it is completed.
    pub fn output(&self) -> Option<&str> {
        match &self.end {
            StepEnd::Completed { output } => Some(output),
            StepEnd::Failed { .. } | StepEnd::Blocked { .. } | StepEnd::Waiting { .. } => None,
        }
    }
}

/// How an attempt ended, its output already checked.
#[derive(Debug, Clone, PartialEq)]
enum Ended {
    Succeeded(Value),
    Refused(String),
    Failed(Failure),
    Waiting(Dependency),
    Ambiguous(String, String),
    Fault(Fault),
}

/// What the host knows of the effectful requests of an attempt, and of those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Left {
    /// A byte of one left in this attempt.
    any: bool,
    /// One left in this attempt and was not heard.
    unheard: bool,
    /// One of an earlier attempt may have left unheard.
    unheard_before: bool,
}

impl Left {
    fn of(requests: &[RequestEvidence], unheard_before: bool) -> Left {
        Left {
            any: requests.iter().any(RequestEvidence::is_effect),
            unheard: requests.iter().any(RequestEvidence::is_unheard),
            unheard_before,
        }
    }
}

/// What an attempt's end means.
#[derive(Debug, Clone, PartialEq)]
enum Verdict {
    /// The step is completed with this output.
    Complete(Value),
    /// The step fails, or is tried again. Where nothing left, the charge is given back.
    Fail { failure: Failure, nothing_left: bool, in_doubt_if_last: bool },
    /// Whether the effect happened is for a person to find out.
    Doubt(Failure),
    /// The step waits. Where nothing left, mark and charge are unwound; else the effect stays as it is.
    Park { dependency: Dependency, nothing_left: bool },
}

/// R11 and R12 as one table.
fn verdict(class: EffectClass, ended: Ended, left: Left) -> Verdict {
    let nothing_left = class.calls_out() && !left.any;
    let fail = |failure| Verdict::Fail { failure, nothing_left, in_doubt_if_last: false };
    let refused = |message: &str| Failure::permanent(codes::OUTCOME_REFUSED, message);
    match (class, ended) {
        (_, Ended::Succeeded(output)) => Verdict::Complete(output),
        (_, Ended::Waiting(dependency)) => Verdict::Park { dependency, nothing_left },

        // Nothing can be in doubt: there is no effect, or it is undone with the transaction.
        (EffectClass::Pure | EffectClass::Transactional, Ended::Ambiguous(message, code)) => {
            fail(Failure::permanent(&code, message))
        }
        (EffectClass::Pure | EffectClass::Transactional, Ended::Refused(message)) => fail(refused(&message)),
        (EffectClass::Pure | EffectClass::Transactional, Ended::Failed(failure)) => fail(failure),
        (EffectClass::Pure | EffectClass::Transactional, Ended::Fault(fault)) => fail(fault.to_failure()),

        // Nothing left the sandbox, so nothing is in doubt, whatever the guest says.
        (EffectClass::Ambiguous, Ended::Ambiguous(message, code)) if !left.any => {
            fail(Failure::permanent(&code, message))
        }
        (EffectClass::Ambiguous, Ended::Refused(message)) if !left.any => fail(refused(&message)),
        (EffectClass::Ambiguous, Ended::Failed(failure)) if !left.any => fail(failure),
        (EffectClass::Ambiguous, Ended::Fault(fault)) if !left.any => fail(fault.to_failure()),

        (_, Ended::Ambiguous(message, code)) if left.any || left.unheard_before => {
            Verdict::Doubt(Failure::permanent(&code, message))
        }
        (EffectClass::Ambiguous, Ended::Failed(failure)) if !left.unheard => fail(failure),
        (EffectClass::Ambiguous, Ended::Failed(failure)) => {
            Verdict::Doubt(unknown(&format!("the action failed ({})", failure.message)))
        }
        (EffectClass::Ambiguous, Ended::Refused(message)) => Verdict::Doubt(unknown(&message)),
        (EffectClass::Ambiguous, Ended::Fault(fault)) => Verdict::Doubt(unknown(&fault.to_string())),
        (EffectClass::Ambiguous, Ended::Ambiguous(message, code)) => fail(Failure::permanent(&code, message)),

        // An idempotent effect can be repeated under its key; only when it no longer is, an unheard request is in doubt.
        (EffectClass::Idempotent, Ended::Refused(message)) if left.any || left.unheard_before => {
            Verdict::Doubt(unknown(&message))
        }
        (EffectClass::Idempotent, Ended::Refused(message)) => {
            Verdict::Fail { failure: refused(&message), nothing_left, in_doubt_if_last: left.unheard_before }
        }
        (EffectClass::Idempotent, Ended::Ambiguous(message, code)) => fail(Failure::permanent(&code, message)),
        (EffectClass::Idempotent, Ended::Failed(failure)) => {
            let in_doubt_if_last = left.unheard || left.unheard_before;
            Verdict::Fail { failure, nothing_left, in_doubt_if_last }
        }
        (EffectClass::Idempotent, Ended::Fault(fault)) => {
            let in_doubt_if_last = left.unheard || left.unheard_before;
            Verdict::Fail { failure: fault.to_failure(), nothing_left, in_doubt_if_last }
        }
    }
}

fn unknown(what: &str) -> Failure {
    Failure::permanent(codes::OUTCOME_UNKNOWN, format!("a request left and what became of it is not known: {what}"))
}

/// The last stage: one commit.
pub(super) async fn settle(gate: &Gate, acted: Acted) -> Result<Box<Settled>, Halt> {
    let Acted { work, price, charged, mark, ended } = acted;
    crate::crash::point("before-settle");
    let class = work.step.class();
    let record = work.attempt.record();
    let limits = work.step.grant(gate).limits;
    let ended = match ended {
        Ok(Outcome::Succeeded(output)) => match accept_output(&work.step.descriptor, &limits, output.as_deref()) {
            Ok(output) => Ended::Succeeded(output),
            Err(message) => Ended::Refused(message),
        },
        Ok(Outcome::Failed(failure)) => Ended::Failed(failure),
        Ok(Outcome::Waiting(dependency)) => Ended::Waiting(dependency),
        Ok(Outcome::Ambiguous(message, code)) => Ended::Ambiguous(message, code),
        Err(fault) => Ended::Fault(fault),
    };
    let mut left = Left::of(&record.requests, work.step.unheard_before);
    // A doubt that an earlier attempt left is ended by an answer, and not by this attempt's letting nothing out.
    left.unheard_before |= !left.any && is_in_doubt(work.record.as_ref());
    let verdict = verdict(class, ended, left);

    let now = gate.ambient.clock.now();
    let mut writing = Writing::of(gate, &work.step, record, now);
    if class == EffectClass::Transactional {
        let (reads, writes) = work.attempt.take_documents();
        writing.commit.reads = reads;
        if matches!(verdict, Verdict::Complete(_)) {
            writing.commit.writes = writes;
            writing.commit.charge = charge(&work, &price);
        }
    }
    let base = mark.or_else(|| work.record.clone());
    let settled = writing.verdict(&work.step, verdict, charged, base);
    match gate.journal.commit(settled.commit.clone()).await? {
        Committed::Done => Ok(settled.done()),
        Committed::Conflict => Err(begin_again(gate, work).await),
        Committed::Exceeded(exceeded) => Err(stop(gate, work, over_budget(&exceeded)).await),
    }
}

/// Settles a step that a stage stopped before it acted: nothing left, nothing is charged.
pub(super) async fn stop(gate: &Gate, work: Work, failure: Failure) -> Halt {
    let mut stopped = stopped(gate, &work, failure);
    if work.step.class() == EffectClass::Transactional {
        // R10: a refusal or a failure is believed only if what it was based on still holds.
        stopped.commit.reads = work.attempt.take_documents().0;
    }
    match gate.journal.commit(stopped.commit.clone()).await {
        Ok(Committed::Done) => Halt::Settled(stopped.done()),
        Ok(Committed::Conflict) => begin_again(gate, work).await,
        Ok(Committed::Exceeded(_)) => {
            Halt::Journal(inconsistent(&stopped.commit, "a commit without a charge exceeded a budget"))
        }
        Err(error) => Halt::Journal(error),
    }
}

/// R10: what the attempt read has changed. It begins again in a fresh instance, or fails where that has happened too often.
async fn begin_again(gate: &Gate, work: Work) -> Halt {
    if work.conflicts < CONFLICTS_MAX {
        return Halt::Conflict(Box::new(work.again(gate).await));
    }
    let failure = Failure::retryable(
        codes::CONFLICT,
        format!("the documents that it read were changed by others {} times in a row", work.conflicts + 1),
    );
    match commit(gate, stopped(gate, &work, failure)).await {
        Ok(settled) => Halt::Settled(settled),
        Err(halt) => halt,
    }
}

fn stopped(gate: &Gate, work: &Work, failure: Failure) -> Writing {
    let writing = Writing::of(gate, &work.step, work.attempt.record(), gate.ambient.clock.now());
    let verdict = Verdict::Fail {
        failure,
        nothing_left: false,
        in_doubt_if_last: leaves_doubt(&work.step, work.record.as_ref()),
    };
    writing.verdict(&work.step, verdict, false, work.record.clone())
}

/// Whether an idempotent step that is not repeated any more leaves what an earlier attempt began in doubt (R12).
fn leaves_doubt(step: &Reserved, record: Option<&EffectRecord>) -> bool {
    step.class() == EffectClass::Idempotent && (step.unheard_before || is_in_doubt(record))
}

fn inconsistent(commit: &Commit, what: &str) -> JournalError {
    JournalError::Inconsistent { run: commit.fence.run.clone(), what: what.to_owned() }
}

/// A step whose component could not even be loaded.
pub(super) async fn failed_before_acting(
    gate: &Gate,
    step: &Reserved,
    failure: Failure,
    effect: Option<EffectRecord>,
) -> Result<Box<Settled>, Halt> {
    let writing = Writing::of(gate, step, AttemptRecord::default(), gate.ambient.clock.now());
    let verdict = Verdict::Fail { failure, nothing_left: false, in_doubt_if_last: leaves_doubt(step, effect.as_ref()) };
    commit(gate, writing.verdict(step, verdict, false, effect)).await
}

/// R9: the recorded output, byte for byte.
pub(super) async fn restored(gate: &Gate, step: &Reserved, output: String) -> Result<Box<Settled>, Halt> {
    let mut writing = Writing::of(gate, step, AttemptRecord::default(), gate.ambient.clock.now());
    writing.how = How::Restored;
    commit(gate, writing.completed(step, output)).await
}

/// A step that a person must look at.
pub(super) async fn blocked(
    gate: &Gate,
    step: &Reserved,
    effect: Option<EffectRecord>,
    failure: Failure,
    how: How,
) -> Result<Box<Settled>, Halt> {
    let mut writing = Writing::of(gate, step, AttemptRecord::default(), gate.ambient.clock.now());
    writing.how = how;
    writing.commit.effect = effect;
    commit(gate, writing.blocked(step, failure)).await
}

pub(super) async fn commit(gate: &Gate, settled: Writing) -> Result<Box<Settled>, Halt> {
    match gate.journal.commit(settled.commit.clone()).await? {
        Committed::Done => Ok(settled.done()),
        Committed::Conflict | Committed::Exceeded(_) => {
            Err(Halt::Journal(inconsistent(&settled.commit, "a commit without reads or a charge was not done")))
        }
    }
}

/// A settling commit as it is put together.
pub(super) struct Writing {
    pub commit: Commit,
    pub how: How,
    record: AttemptRecord,
    end: Option<StepEnd>,
    /// Of the action's grant: recorded with an effect that had no mark.
    visible_within_ms: u64,
}

impl Writing {
    pub fn of(gate: &Gate, step: &Reserved, record: AttemptRecord, now: Timestamp) -> Writing {
        let mut commit = Commit::new(step.fence.clone(), now);
        for denial in &record.denials {
            commit = commit.event(events::CAPABILITY_DENIED, &step.step, json!(denial));
        }
        let visible_within = step.grant(gate).visible_within();
        Writing {
            commit,
            how: How::Performed,
            record,
            end: None,
            visible_within_ms: u64::try_from(visible_within.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Turns a verdict into the commit's parts. `base` is the effect's record so far: the mark, or what an earlier attempt
    /// left.
    fn verdict(mut self, step: &Reserved, verdict: Verdict, charged: bool, base: Option<EffectRecord>) -> Writing {
        let class = step.class();
        let give_back = ChargeKey { dispatch: step.dispatch.clone(), generation: step.fence.generation, request: None };
        match verdict {
            Verdict::Complete(output) => {
                let output = json::canonical(&output);
                if class != EffectClass::Pure {
                    let effect = self.effect(step, base, EffectState::Succeeded);
                    self.commit.effect = Some(EffectRecord { output: Some(output.clone()), failure: None, ..effect });
                }
                self.completed(step, output)
            }
            Verdict::Fail { failure, nothing_left, in_doubt_if_last } => {
                let retried = self.retries(step, &failure);
                if nothing_left {
                    self.commit.refund = Some(give_back);
                }
                if in_doubt_if_last && !retried {
                    let failure = Failure {
                        details: Some(json!({ "last failure": failure })),
                        ..unknown(&format!("its tries are used up ({})", failure.message))
                    };
                    return self.in_doubt(step, base, failure);
                }
                let begun = base.as_ref().is_some_and(|record| record.state != EffectState::Failed);
                if class.is_marked() && begun || class == EffectClass::Idempotent && !retried && (charged || begun) {
                    let effect = self.effect(step, base, EffectState::Failed);
                    self.commit.effect = Some(EffectRecord { failure: Some(failure.clone()), ..effect });
                }
                self.failed(step, failure)
            }
            Verdict::Doubt(failure) => self.in_doubt(step, base, failure),
            Verdict::Park { dependency, nothing_left } => {
                if nothing_left {
                    self.commit.refund = Some(give_back);
                    if class.is_marked() {
                        // Unwound: on waking the contract starts from authorize.
                        self.commit.effect = Some(self.effect(step, base, EffectState::Failed));
                    }
                } else if class == EffectClass::Idempotent {
                    self.commit.effect = Some(self.effect(step, base, EffectState::Executing));
                }
                self.parked(step, dependency, false, None)
            }
        }
    }

    fn effect(&self, step: &Reserved, base: Option<EffectRecord>, state: EffectState) -> EffectRecord {
        let now = self.commit.at;
        let base = base.unwrap_or_else(|| EffectRecord {
            key: step.effect_key(),
            step: step.step.clone(),
            class: step.class(),
            state,
            input_hash: step.input_hash.clone(),
            component: step.component.clone(),
            generation: step.fence.generation,
            dispatch: step.dispatch.clone(),
            marked_at: step.begun_at.unwrap_or(now),
            deadline: now,
            visible_within_ms: self.visible_within_ms,
            output: None,
            failure: None,
            settled_at: None,
        });
        let settled_at = (state != EffectState::Executing).then_some(now);
        EffectRecord { state, generation: step.fence.generation, settled_at, ..base }
    }

    fn in_doubt(mut self, step: &Reserved, base: Option<EffectRecord>, failure: Failure) -> Writing {
        let effect = self.effect(step, base, EffectState::Ambiguous);
        self.commit.effect = Some(EffectRecord { failure: Some(failure.clone()), ..effect });
        self.blocked(step, failure)
    }

    /// R13: the output lands in its variable, however the step was completed.
    pub fn completed(mut self, step: &Reserved, output: String) -> Writing {
        // What is written is canonical JSON of our own making.
        let value: Value = serde_json::from_str(&output).unwrap_or_default();
        self.commit.variable = step.save_as.clone().map(|name| (name, output.clone()));
        let then = step.continuation.after(&value, self.commit.at);
        let outcome = match self.how {
            How::Performed => "succeeded",
            How::Restored => "restored",
            How::Reconciled => "reconciled",
        };
        let event = json!({ "attempt": step.attempt, "how": outcome, "output_bytes": output.len() });
        self.ends(step, outcome, None, StepEnd::Completed { output }, then, events::STEP_COMPLETED, event)
    }

    /// Failed, or tried again after a backoff.
    pub fn failed(self, step: &Reserved, failure: Failure) -> Writing {
        let event = json!({ "attempt": step.attempt, "code": failure.code, "message": failure.message });
        let reason = Some(format!("{}: {}", failure.code, failure.message));
        if self.retries(step, &failure) {
            let due = retry_at(step, &failure, self.commit.at);
            let end =
                StepEnd::Waiting { dependency: Dependency::timer(due), same_attempt: false, failure: Some(failure) };
            return self.ends(
                step,
                "failed",
                reason,
                end,
                Then::Wait { until: Some(due) },
                events::STEP_WAITING,
                event,
            );
        }
        let then = Then::Fail { skipped: Vec::new(), step: Some(step.step.clone()), failure: failure.clone() };
        self.ends(step, "failed", reason, StepEnd::Failed { failure }, then, events::STEP_FAILED, event)
    }

    /// For a person.
    pub fn blocked(self, step: &Reserved, failure: Failure) -> Writing {
        let event = json!({ "attempt": step.attempt, "code": failure.code, "message": failure.message });
        let reason = Some(format!("{}: {}", failure.code, failure.message));
        self.ends(step, "blocked", reason, StepEnd::Blocked { failure }, Then::Block, events::STEP_BLOCKED, event)
    }

    /// Waits for a dependency. With `same_attempt` the attempt goes on when it wakes, and uses up no retry.
    pub fn parked(
        mut self,
        step: &Reserved,
        dependency: Dependency,
        same_attempt: bool,
        failure: Option<Failure>,
    ) -> Writing {
        let event = json!({ "attempt": step.attempt, "for": dependency });
        let then = Then::Wait { until: dependency.due };
        let end = StepEnd::Waiting { dependency, same_attempt, failure };
        if same_attempt {
            self.commit.step = Some((step.step.clone(), end.clone()));
            self.commit.then = Some(then);
            self.commit = self.commit.event(events::STEP_WAITING, &step.step, event);
            self.end = Some(end);
            return self;
        }
        self.ends(step, "waiting", None, end, then, events::STEP_WAITING, event)
    }

    /// Whether a failure is followed by another try.
    pub fn retries(&self, step: &Reserved, failure: &Failure) -> bool {
        failure.retryable && step.tries.saturating_add(1) < step.retry.attempts
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one commit, named where they are given")]
    fn ends(
        mut self,
        step: &Reserved,
        outcome: &str,
        reason: Option<String>,
        end: StepEnd,
        then: Then,
        kind: &'static str,
        event: Value,
    ) -> Writing {
        self.commit.attempt = Some(AttemptEnd {
            dispatch: step.dispatch.clone(),
            claim_token: step.claim_token.clone(),
            outcome: outcome.to_owned(),
            reason,
            record: self.record.clone(),
        });
        // One that goes on, because the step waits or could not be asked, is not settled.
        if let Some(effect) = self.commit.effect.as_ref().filter(|effect| effect.state != EffectState::Executing) {
            let settled = json!({ "key": effect.key, "state": effect.state });
            self.commit = self.commit.event(events::EFFECT_SETTLED, &step.step, settled);
        }
        self.commit.step = Some((step.step.clone(), end.clone()));
        self.commit.then = Some(then);
        self.commit = self.commit.event(kind, &step.step, event);
        self.end = Some(end);
        self
    }

    /// The commit is durable.
    fn done(self) -> Box<Settled> {
        crate::crash::point("settled");
        Box::new(Settled {
            // Every way to put a settling commit together says how the step and the run stand.
            end: self.end.unwrap_or(StepEnd::Completed { output: "null".to_owned() }),
            then: self.commit.then.unwrap_or(Then::Block),
            how: self.how,
            record: self.record,
            at: self.commit.at,
        })
    }
}

/// Exponential from the step's backoff, never before what the failure asks for.
fn retry_at(step: &Reserved, failure: &Failure, now: Timestamp) -> Timestamp {
    let doubled = 2u32.checked_pow(step.tries.min(31)).unwrap_or(u32::MAX);
    let backoff: Duration = step.retry.backoff.saturating_mul(doubled).min(step.retry.max_backoff);
    now.plus(backoff).max(failure.not_before.unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> Failure {
        Failure::permanent(codes::ACTION_ERROR, "it failed")
    }

    fn every_end() -> Vec<Ended> {
        vec![
            Ended::Succeeded(Value::Null),
            Ended::Refused("its output is not JSON".to_owned()),
            Ended::Failed(failure()),
            Ended::Waiting(Dependency::timer(Timestamp(1))),
            Ended::Ambiguous("it may have gone through".to_owned(), "X".to_owned()),
            Ended::Fault(Fault::Trap { phase: crate::capability::Phase::Run, message: "unreachable".to_owned() }),
        ]
    }

    const NOTHING: Left = Left { any: false, unheard: false, unheard_before: false };
    const HEARD: Left = Left { any: true, unheard: false, unheard_before: false };
    const UNHEARD: Left = Left { any: true, unheard: true, unheard_before: false };

    /// One letter an end, in the order of `every_end`: Complete, Fail, give Back (fail with nothing left), Doubt, Park,
    /// Unwind (park with nothing left), Last (fail, in doubt when it is the last try).
    #[track_caller]
    fn check(class: EffectClass, left: Left, expected: &str) {
        let found: String = every_end()
            .into_iter()
            .map(|ended| match verdict(class, ended, left) {
                Verdict::Complete(_) => 'C',
                Verdict::Fail { in_doubt_if_last: true, .. } => 'L',
                Verdict::Fail { nothing_left: true, .. } => 'B',
                Verdict::Fail { .. } => 'F',
                Verdict::Doubt(_) => 'D',
                Verdict::Park { nothing_left: true, .. } => 'U',
                Verdict::Park { .. } => 'P',
            })
            .collect();
        assert_eq!(found, expected, "{class} {left:?}");
    }

    #[test]
    fn r11_r12_the_table_of_verdicts() {
        use EffectClass::{Ambiguous, Idempotent, Pure, Transactional};
        //                    succeeded, refused, failed, waiting, ambiguous, fault
        check(Pure, NOTHING, "CFFPFF");
        check(Transactional, NOTHING, "CFFPFF");
        check(Idempotent, NOTHING, "CBBUBB");
        check(Idempotent, HEARD, "CDFPDF");
        check(Idempotent, UNHEARD, "CDLPDL");
        check(Ambiguous, NOTHING, "CBBUBB");
        check(Ambiguous, HEARD, "CDFPDD");
        check(Ambiguous, UNHEARD, "CDDPDD");
    }

    #[test]
    fn r12_an_unheard_request_of_an_earlier_attempt_counts_when_the_step_is_not_repeated() {
        check(EffectClass::Idempotent, Left { unheard_before: true, ..NOTHING }, "CDLUDL");
        check(EffectClass::Idempotent, Left { unheard_before: true, ..HEARD }, "CDLPDL");
    }
}
