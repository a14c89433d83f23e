//! R11: the only stage that lets anything out.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::json;

use super::Gate;
use super::charge::Cleared;
use super::recall::Work;
use crate::budget::{Allowance, ChargeItem, Exceeded};
use crate::capability::Phase;
use crate::clock::Ambient;
use crate::effect::EffectClass;
use crate::egress::Overdraw;
use crate::journal::{Charge, ChargeKey, Commit, Committed, EffectRecord, Fence, Journal, JournalError, events};
use crate::sandbox::{Fault, Outcome};

/// A step that has acted; what that means is for settling to say. Made here alone.
pub(super) struct Acted {
    pub work: Work,
    pub price: Vec<ChargeItem>,
    pub charged: bool,
    pub mark: Option<EffectRecord>,
    pub ended: Result<Outcome, Fault>,
}

pub(super) async fn act(gate: &Gate, cleared: Cleared) -> Acted {
    let Cleared { mut work, price, charged, mark, deadline } = cleared;
    if work.step.class().calls_out() {
        let overdraw = gate.budgets.then(|| Arc::new(ChargeNow::of(gate, &work)) as Arc<dyn Overdraw>);
        work.egress.arm(deadline, Allowance::of(&price), overdraw);
    }
    if work.step.class() == EffectClass::Pure {
        // What `authorize` left in the instance's memory must not reach a result that is repeatable.
        work.instance = None;
    }
    let ended = match work.take_instance(Phase::Run).await {
        Ok(instance) => instance.run().await,
        Err(fault) => Err(fault),
    };
    Acted { work, price, charged, mark, ended }
}

/// B6's overdraw: one commit of its own, keyed by the request's number, before the request leaves.
struct ChargeNow {
    journal: Arc<dyn Journal>,
    ambient: Ambient,
    fence: Fence,
    step: String,
    dispatch: String,
}

impl ChargeNow {
    fn of(gate: &Gate, work: &Work) -> ChargeNow {
        ChargeNow {
            journal: gate.journal.clone(),
            ambient: gate.ambient.clone(),
            fence: work.step.fence.clone(),
            step: work.step.step.clone(),
            dispatch: work.step.dispatch.clone(),
        }
    }
}

impl Overdraw for ChargeNow {
    fn charge<'a>(
        &'a self,
        number: u32,
        items: &'a [ChargeItem],
    ) -> BoxFuture<'a, Result<Option<Exceeded>, JournalError>> {
        Box::pin(async move {
            let key =
                ChargeKey { dispatch: self.dispatch.clone(), generation: self.fence.generation, request: Some(number) };
            let mut commit = Commit::new(self.fence.clone(), self.ambient.clock.now());
            commit.charge = Some(Charge { key, step: self.step.clone(), items: items.to_vec() });
            let commit = commit.event(events::BUDGET_OVERDRAWN, &self.step, json!({ "request": number }));
            match self.journal.commit(commit).await? {
                Committed::Done => Ok(None),
                Committed::Exceeded(exceeded) => Ok(Some(exceeded)),
                Committed::Conflict => Err(JournalError::Inconsistent {
                    run: self.fence.run.clone(),
                    what: "a charge without reads met a conflict".to_owned(),
                }),
            }
        })
    }
}
