//! R4: may whoever started this run do this? Asked before any charge, mark or effect.

use serde_json::json;

use super::recall::{Fresh, Work};
use super::settle;
use super::{CheckedCall, Gate, Halt, Reserved};
use crate::capability::Phase;
use crate::journal::{Failure, codes};

/// A step that may be performed. Made here alone.
pub(super) struct Authorized {
    pub work: Work,
}

pub(super) async fn authorize(gate: &Gate, fresh: Fresh) -> Result<Authorized, Halt> {
    let Fresh { mut work } = fresh;
    if let Err((by, reason)) = before_the_action(gate, &work.step).await {
        return Err(refuse(gate, work, by, reason).await);
    }
    if !work.step.descriptor.hooks.authorize {
        return Ok(Authorized { work });
    }
    let asked = match work.take_instance(Phase::Authorize).await {
        Ok(instance) => instance.authorize().await,
        Err(fault) => Err(fault),
    };
    match asked {
        Ok((instance, Ok(()))) => {
            work.instance = Some(instance);
            Ok(Authorized { work })
        }
        Ok((_instance, Err(reason))) => Err(refuse(gate, work, BY_THE_ACTION, reason).await),
        Err(fault) => Err(settle::stop(gate, work, fault.to_failure()).await),
    }
}

/// Whoever refused where the action itself did.
pub(super) const BY_THE_ACTION: &str = "the action's `authorize`";

/// What is asked before the action is: the policy, and the embedder's own check. A refusal says by whom, and why.
pub(super) async fn before_the_action(gate: &Gate, step: &Reserved) -> Result<(), (&'static str, String)> {
    // The policy may have changed since the component was pushed.
    let (app, class) = (&step.action.app, step.class());
    if !gate.policy.allows_class(app, class) {
        let reason = format!("it does not allow {app} the class {class}: {}", gate.policy.missing_class(app, class));
        return Err(("the policy", reason));
    }
    let Some(check) = &gate.check else { return Ok(()) };
    let context = step.context(step.effect_key());
    let call = CheckedCall { action: &step.action, context: &context, input: &step.input };
    check.check(&call).await.map_err(|reason| ("the host's own check", reason))
}

async fn refuse(gate: &Gate, work: Work, by: &str, reason: String) -> Halt {
    settle::stop(gate, work, forbidden(by, &reason)).await
}

/// The message is fixed: a reason could tell a caller what it may not know. The operator finds it in the details.
pub(super) fn forbidden(by: &str, reason: &str) -> Failure {
    Failure::permanent(codes::FORBIDDEN, "not authorized to perform this action")
        .with_details(json!({ "refused by": by, "reason": crate::json::replace_nul(reason) }))
}
