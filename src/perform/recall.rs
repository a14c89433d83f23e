//! R8, R9, R15: the journal is read first.

use std::time::Duration;

use super::reconcile::InDoubt;
use super::settle::{self, How, Settled};
use super::{Gate, Halt, Reserved};
use crate::capability::Phase;
use crate::clock::Timestamp;
use crate::effect::{EffectState, Known, Recovery, recovery};
use crate::egress::Egress;
use crate::journal::{EffectRecord, Failure, codes};
use crate::policy::units::format_duration;
use crate::sandbox::{Attempt, Component, Instance};

/// What the journal says about a step.
pub(super) enum Recalled {
    /// It is over: restored, or a person must look.
    Settled(Box<Settled>),
    /// It may have happened: ask.
    InDoubt(Box<InDoubt>),
    /// Go through the contract.
    Fresh(Box<Fresh>),
}

/// A step that goes through the contract from authorize. Made here alone, and again after a conflict.
pub(super) struct Fresh {
    pub work: Work,
}

/// What the stages hand on to each other.
pub(super) struct Work {
    pub step: Reserved,
    pub component: Component,
    pub attempt: Attempt,
    pub egress: Egress,
    /// The live instance, where a stage has needed one.
    pub instance: Option<Instance>,
    /// The journal's record before this attempt.
    pub record: Option<EffectRecord>,
    /// How often a conflict has begun this attempt again.
    pub conflicts: u32,
}

impl Work {
    /// When an effect of the step may have begun first under its present key; `None` where none may have.
    pub fn begun_at(&self) -> Option<Timestamp> {
        begun_at(&self.step, self.record.as_ref())
    }

    /// The live instance, or a fresh one for the export of `phase`.
    pub async fn take_instance(&mut self, phase: Phase) -> Result<Instance, crate::sandbox::Fault> {
        match self.instance.take() {
            Some(instance) => Ok(instance),
            None => self.attempt.instantiate(&self.component, phase).await,
        }
    }

    /// The same step in a fresh attempt of the sandbox, after a conflict (R10).
    pub async fn again(self, gate: &Gate) -> Fresh {
        let Work { step, component, record, conflicts, instance, attempt, egress } = self;
        // Before the next attempt waits for a place: this one has one, and whoever holds one must not wait for another.
        drop((instance, attempt, egress));
        let (setup, egress) = step.setup(gate, step.effect_key());
        let attempt = Attempt::new(&gate.sandbox, setup).await;
        let work = Work { step, component, attempt, egress, instance: None, record, conflicts: conflicts + 1 };
        Fresh { work }
    }
}

pub(super) async fn recall(gate: &Gate, step: Reserved) -> Result<Recalled, Halt> {
    let class = step.class();
    let key = step.effect_key();
    let record = match class {
        crate::effect::EffectClass::Pure => None,
        _ => gate.journal.effect(&step.fence.run, &key).await?,
    };
    let window = step.grant(gate).window();
    let now = gate.ambient.clock.now();
    let begun_at = begun_at(&step, record.as_ref());
    let known = Known {
        state: record.as_ref().map(|record| record.state),
        same_input: record.as_ref().is_some_and(|record| record.input_hash == step.input_hash),
        may_have_begun: step.begun_at.is_some(),
        key_remembered: match (window, begun_at) {
            (Some(window), Some(begun_at)) => now.since(begun_at) < window,
            (None, _) | (_, None) => true,
        },
        reconcilable: step.descriptor.hooks.reconcile,
    };
    match recovery(class, known) {
        Recovery::Perform => fresh(gate, step, record).await,
        Recovery::Restore => {
            let output = record.and_then(|record| record.output).unwrap_or_else(|| "null".to_owned());
            Ok(Recalled::Settled(settle::restored(gate, &step, output).await?))
        }
        Recovery::InputChanged => {
            let failure = Failure::permanent(
                codes::INPUT_CHANGED,
                "the effect of this step succeeded for another input; its output is not reused",
            );
            Ok(Recalled::Settled(settle::blocked(gate, &step, None, failure, How::Restored).await?))
        }
        Recovery::Reconcile => {
            let record = record.unwrap_or_else(|| begun_without_record(gate, &step, key, window));
            Ok(Recalled::InDoubt(Box::new(InDoubt { step, record })))
        }
        Recovery::NeedsAttention => {
            let record = record.unwrap_or_else(|| begun_without_record(gate, &step, key, window));
            let failure = Failure::permanent(
                codes::KEY_EXPIRED,
                format!(
                    "the effect may have begun {} ago, the provider remembers its key for {}, and the action has no \
                     `reconcile` to ask",
                    format_duration(seconds(now.since(begun_at.unwrap_or(now)))),
                    format_duration(window.unwrap_or_default()),
                ),
            );
            let record = EffectRecord { state: EffectState::Ambiguous, failure: Some(failure.clone()), ..record };
            Ok(Recalled::Settled(settle::blocked(gate, &step, Some(record), failure, How::Restored).await?))
        }
    }
}

fn begun_at(step: &Reserved, record: Option<&EffectRecord>) -> Option<Timestamp> {
    let recorded = record.filter(|record| record.state != EffectState::Failed).map(|record| record.marked_at);
    recorded.into_iter().chain(step.begun_at).min()
}

fn seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs())
}

async fn fresh(gate: &Gate, step: Reserved, record: Option<EffectRecord>) -> Result<Recalled, Halt> {
    let component = match gate.components.component(&step.component).await {
        Ok(component) => component,
        Err(error) => {
            let failure = Failure::permanent(
                codes::HOST_ERROR,
                format!("the component {} of {} cannot be loaded: {error}", step.component, step.action),
            );
            let settled = settle::failed_before_acting(gate, &step, failure, record).await?;
            return Ok(Recalled::Settled(settled));
        }
    };
    let (setup, egress) = step.setup(gate, step.effect_key());
    // The wall limit is armed here, before anything is instantiated.
    let attempt = Attempt::new(&gate.sandbox, setup).await;
    let work = Work { step, component, attempt, egress, instance: None, record, conflicts: 0 };
    Ok(Recalled::Fresh(Box::new(Fresh { work })))
}

/// The record of an idempotent effect that may have begun: its reservation is the evidence, there was no mark.
fn begun_without_record(gate: &Gate, step: &Reserved, key: String, window: Option<Duration>) -> EffectRecord {
    let begun_at = step.begun_at.unwrap_or(step.reserved_at);
    let grant = step.grant(gate);
    EffectRecord {
        key,
        step: step.step.clone(),
        class: step.class(),
        state: EffectState::Executing,
        input_hash: step.input_hash.clone(),
        component: step.component.clone(),
        generation: step.fence.generation,
        dispatch: step.dispatch.clone(),
        marked_at: begun_at,
        // It was repeated only while its key was remembered, so nothing left later than this.
        deadline: begun_at.plus(window.unwrap_or_default()).plus(grant.limits.wall),
        visible_within_ms: u64::try_from(grant.visible_within().as_millis()).unwrap_or(u64::MAX),
        output: None,
        failure: None,
        settled_at: None,
    }
}
