//! R4: may whoever started this run do this? Asked before any charge, mark or effect.

use serde_json::json;

use super::recall::{Fresh, Work};
use super::settle;
use super::{CheckedCall, Gate, Halt};
use crate::journal::{Failure, codes};

/// A step that may be performed. Made here alone.
pub(super) struct Authorized {
    pub work: Work,
}

pub(super) async fn authorize(gate: &Gate, fresh: Fresh) -> Result<Authorized, Halt> {
    let Fresh { mut work } = fresh;
    // The policy may have changed since the component was pushed.
    let (app, class) = (&work.step.action.app, work.step.class());
    if !gate.policy.allows_class(app, class) {
        let reason = format!("it does not allow {app} the class {class}: {}", gate.policy.missing_class(app, class));
        return Err(refuse(gate, work, "the policy", reason).await);
    }
    if let Some(check) = &gate.check {
        let context = work.step.context(work.step.effect_key());
        let call = CheckedCall { action: &work.step.action, context: &context, input: &work.step.input };
        if let Err(reason) = check.check(&call).await {
            return Err(refuse(gate, work, "the host's own check", reason).await);
        }
    }
    if !work.step.descriptor.hooks.authorize {
        return Ok(Authorized { work });
    }
    let asked = match work.take_instance().await {
        Ok(instance) => instance.authorize().await,
        Err(fault) => Err(fault),
    };
    match asked {
        Ok((instance, Ok(()))) => {
            work.instance = Some(instance);
            Ok(Authorized { work })
        }
        Ok((_instance, Err(reason))) => Err(refuse(gate, work, "the action's `authorize`", reason).await),
        Err(fault) => Err(settle::stop(gate, work, fault.to_failure()).await),
    }
}

async fn refuse(gate: &Gate, work: Work, by: &str, reason: String) -> Halt {
    settle::stop(gate, work, forbidden(by, &reason)).await
}

/// The message is fixed: a reason could tell a caller what it may not know. The operator finds it in the details.
pub(super) fn forbidden(by: &str, reason: &str) -> Failure {
    Failure::permanent(codes::FORBIDDEN, "not authorized to perform this action")
        .with_details(json!({ "refused by": by, "reason": crate::json::replace_nul(reason) }))
}
