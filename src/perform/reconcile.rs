//! R8: what became of an effect that may have begun? Asked of the code that began it, under its key, with its input.
//!
//! It authorizes nothing, charges nothing and lets out safe requests only.

use std::sync::Arc;

use super::settle::{self, How, Settled, Writing};
use super::{Gate, Halt, Reserved, accept_output};
use crate::capability::Phase;
use crate::effect::{Answer, Belief, EffectState, believe};
use crate::journal::{AttemptRecord, Dependency, EffectRecord, Failure, codes, events};
use crate::json;
use crate::sandbox::{Attempt, Fault, Reconciled};
use crate::worker::lease::Lease;

/// A step whose effect may have happened.
pub(super) struct InDoubt {
    pub step: Reserved,
    pub record: EffectRecord,
}

pub(super) async fn reconcile(gate: &Gate, doubt: InDoubt) -> Result<Box<Settled>, Halt> {
    let InDoubt { step, record } = doubt;
    // An answer is worth what could be seen when the question was asked, however late it comes.
    let asked_at = gate.ambient.clock.now();
    let (answer, evidence) = ask(gate, &step, &record).await;
    let now = gate.ambient.clock.now();
    let mut writing = Writing::of(gate, &step, evidence, now);
    writing.how = How::Reconciled;

    let (answered, output, failure) = match answer {
        Ok(Reconciled::Succeeded(output)) => {
            match accept_output(&step.descriptor, &step.grant(gate).limits, output.as_deref()) {
                Ok(output) => (Answer::Succeeded, Some(json::canonical(&output)), None),
                Err(message) => return could_not_ask(gate, &step, record, writing, message).await,
            }
        }
        Ok(Reconciled::Failed(failure)) => (Answer::Failed, None, Some(failure)),
        Ok(Reconciled::Unknown(reason)) => {
            let message = format!("the action was asked what became of its effect and does not know: {reason}");
            (Answer::Unknown, None, Some(Failure::permanent(codes::OUTCOME_UNKNOWN, message)))
        }
        Ok(Reconciled::Error(failure)) => {
            return could_not_ask(gate, &step, record, writing, failure.message).await;
        }
        Err(fault) => return could_not_ask(gate, &step, record, writing, fault.to_string()).await,
    };
    let visible_within = std::time::Duration::from_millis(record.visible_within_ms);
    let state = match believe(answered, asked_at, record.deadline, visible_within) {
        Belief::AskAgain(at) => {
            // Nothing is settled: the same attempt asks again, and uses up no retry.
            let waiting = writing.parked(&step, Dependency::timer(at), true, None);
            return settle::commit(gate, waiting).await;
        }
        Belief::Settle(state) => state,
    };
    writing.commit.effect = Some(EffectRecord {
        state,
        generation: step.fence.generation,
        output: output.clone(),
        failure: failure.clone(),
        settled_at: Some(now),
        ..record
    });
    let writing = match (state, failure) {
        (EffectState::Succeeded, _) => writing.completed(&step, output.unwrap_or_else(|| "null".to_owned())),
        (EffectState::Failed, Some(failure)) => writing.failed(&step, failure),
        (_, failure) => {
            let failure = failure.unwrap_or_else(|| Failure::permanent(codes::OUTCOME_UNKNOWN, "its fate is unknown"));
            writing.blocked(&step, failure)
        }
    };
    settle::commit(gate, writing).await
}

async fn ask(gate: &Gate, step: &Reserved, record: &EffectRecord) -> (Result<Reconciled, Fault>, AttemptRecord) {
    let component = match gate.components.component(&record.component).await {
        Ok(component) => component,
        Err(error) => {
            let message = format!("the component {} that began the effect cannot be loaded: {error}", record.component);
            return (Err(Fault::Host { phase: Phase::Reconcile, message }), AttemptRecord::default());
        }
    };
    // Only safe requests leave, and the answer is fenced when it is committed: an old lease can do no harm here.
    let step = Reserved { lease: Arc::new(Lease::unlimited()), ..step.clone() };
    let (setup, _egress) = step.setup(gate, record.key.clone());
    let attempt = Attempt::new(&gate.sandbox, setup).await;
    let answer = match attempt.instantiate(&component, Phase::Reconcile).await {
        Ok(instance) => instance.reconcile().await,
        Err(fault) => Err(fault),
    };
    (answer, attempt.record())
}

/// R8: asking failed. The effect stays as it is; the step tries again, and when its tries are used up a person must look:
/// it never becomes `failed`.
async fn could_not_ask(
    gate: &Gate,
    step: &Reserved,
    record: EffectRecord,
    mut writing: Writing,
    why: String,
) -> Result<Box<Settled>, Halt> {
    let failure = Failure::retryable(
        codes::RECONCILE_FAILED,
        format!("asking the action what became of its effect failed: {why}"),
    );
    let event = serde_json::json!({ "key": record.key, "code": failure.code, "message": failure.message });
    writing.commit = writing.commit.event(events::RECONCILE_FAILED, &step.step, event);
    // An idempotent effect past its window may have no record yet: from here on it has one.
    writing.commit.effect = Some(EffectRecord { generation: step.fence.generation, ..record });
    let writing = match writing.retries(step, &failure) {
        true => writing.failed(step, failure),
        false => writing.blocked(step, failure),
    };
    settle::commit(gate, writing).await
}
