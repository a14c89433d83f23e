//! R6, R7: the charge and the mark, in one commit, before anything can leave.
//!
//! A charge without a mark cannot exist outside this transaction: this is the one place that builds either.

use std::time::Duration;

use serde_json::json;

use super::plan::Priced;
use super::recall::Work;
use super::settle;
use super::{Gate, Halt};
use crate::budget::{ChargeItem, Exceeded};
use crate::clock::Timestamp;
use crate::effect::{EffectClass, EffectState};
use crate::journal::{Charge, ChargeKey, Commit, Committed, EffectRecord, Failure, codes, events};

/// A step that may act. Made here alone.
pub(super) struct Cleared {
    pub work: Work,
    /// What the plan announced.
    pub price: Vec<ChargeItem>,
    /// Whether the price has been charged; a transactional one is charged when it settles.
    pub charged: bool,
    /// The mark, where the class has one.
    pub mark: Option<EffectRecord>,
    /// Past this moment no byte of an effectful request leaves, on the holder's own clock.
    pub deadline: Duration,
}

pub(super) async fn charge_and_mark(gate: &Gate, priced: Priced) -> Result<Cleared, Halt> {
    let Priced { work, price } = priced;
    let class = work.step.class();
    // The holder counts from before its request, so its own deadline is never later than the recorded one.
    let elapsed = gate.ambient.clock.elapsed();
    let now = gate.ambient.clock.now();
    let grant = work.step.grant(gate);
    let wall = grant.limits.wall;
    let deadline = elapsed.saturating_add(wall.min(key_is_remembered_for(&work, grant.window(), now)));
    // An idempotent effect in doubt is marked too: what it begins now must not be settled before it can have ended.
    let mark = (class.is_marked() || is_in_doubt(work.record.as_ref())).then(|| mark(gate, &work, now, wall));
    let charge = match class {
        EffectClass::Pure | EffectClass::Transactional => None,
        EffectClass::Idempotent | EffectClass::Ambiguous => charge(&work, &price),
    };
    if charge.is_none() && mark.is_none() {
        return Ok(Cleared { work, price, charged: false, mark, deadline });
    }

    let step = work.step.step.clone();
    let mut commit = Commit::new(work.step.fence.clone(), now);
    let charged = charge.is_some();
    commit.charge = charge;
    if let Some(mark) = &mark {
        commit = commit.event(
            events::EFFECT_MARKED,
            &step,
            json!({ "key": mark.key, "attempt": work.step.attempt, "deadline": mark.deadline }),
        );
    }
    commit.effect.clone_from(&mark);
    match gate.journal.commit(commit).await? {
        Committed::Done => {
            crate::crash::point(if class.is_marked() { "marked" } else { "charged" });
            Ok(Cleared { work, price, charged, mark, deadline })
        }
        Committed::Exceeded(exceeded) => Err(settle::stop(gate, work, over_budget(&exceeded)).await),
        Committed::Conflict => Err(Halt::Journal(crate::journal::JournalError::Inconsistent {
            run: work.step.fence.run.clone(),
            what: "a commit without reads met a conflict".to_owned(),
        })),
    }
}

/// R15: for how long the provider remembers the key of an idempotent step: past that, nothing leaves under it. Without a
/// window, for ever.
fn key_is_remembered_for(work: &Work, window: Option<Duration>, now: Timestamp) -> Duration {
    let Some(window) = window.filter(|_| work.step.class() == EffectClass::Idempotent) else { return Duration::MAX };
    match work.begun_at() {
        Some(begun_at) => window.saturating_sub(now.since(begun_at)),
        None => window,
    }
}

/// Whether a record leaves open what became of its effect.
pub(super) fn is_in_doubt(record: Option<&EffectRecord>) -> bool {
    record.is_some_and(|record| matches!(record.state, EffectState::Executing | EffectState::Ambiguous))
}

/// The charge for `price`; `None` where nothing is consumed.
pub(super) fn charge(work: &Work, price: &[ChargeItem]) -> Option<Charge> {
    let key = ChargeKey { dispatch: work.step.dispatch.clone(), generation: work.step.fence.generation, request: None };
    (!price.is_empty()).then(|| Charge { key, step: work.step.step.clone(), items: price.to_vec() })
}

/// R6's failure: the message says all four figures.
pub(super) fn over_budget(exceeded: &Exceeded) -> Failure {
    Failure::permanent(codes::BUDGET_EXCEEDED, exceeded.to_string()).with_details(json!({
        "dimension": exceeded.dimension,
        "limit": exceeded.limit,
        "used": exceeded.used,
        "requested": exceeded.requested,
    }))
}

fn mark(gate: &Gate, work: &Work, now: Timestamp, wall: Duration) -> EffectRecord {
    let step = &work.step;
    EffectRecord {
        key: step.effect_key(),
        step: step.step.clone(),
        class: step.class(),
        state: EffectState::Executing,
        input_hash: step.input_hash.clone(),
        component: step.component.clone(),
        generation: step.fence.generation,
        dispatch: step.dispatch.clone(),
        // R15 counts from the first beginning.
        marked_at: if step.class().is_marked() { now } else { work.begun_at().unwrap_or(now) },
        deadline: now.plus(wall),
        visible_within_ms: u64::try_from(step.grant(gate).visible_within().as_millis()).unwrap_or(u64::MAX),
        output: None,
        failure: None,
        settled_at: None,
    }
}
