//! D1 to D3: what a step would do, asked of the same exports, with nothing written and nothing let out but safe requests.

use serde_json::Value;

use super::{Gate, Reserved, accept_output, authorize, plan};
use crate::budget::ChargeItem;
use crate::capability::Phase;
use crate::effect::EffectClass;
use crate::journal::{Failure, codes};
use crate::sandbox::{Attempt, Component, Fault, Instance, Outcome, PlanIssue};

/// What a step would do.
#[derive(Debug, Clone, PartialEq)]
pub enum Rehearsed {
    /// It would do this.
    Planned {
        /// The output that later steps may assume; `None` where it cannot be known.
        output: Option<Value>,
        /// What it would do and consume; `None` of a pure action.
        effect: Option<(String, Vec<ChargeItem>)>,
        /// What its plan wants told.
        issues: Vec<PlanIssue>,
    },
    /// It has no `plan`.
    Unsupported,
    /// It cannot be said yet.
    Indeterminate(String),
    /// It would fail.
    Terminal(Failure),
}

/// Asks what `step` would do. Writes nothing; makes only safe requests (D5).
pub async fn rehearse(gate: &Gate, step: &Reserved) -> Rehearsed {
    match ask(gate, step).await {
        Ok(rehearsed) => rehearsed,
        Err(fault) => Rehearsed::Terminal(fault.to_failure()),
    }
}

async fn ask(gate: &Gate, step: &Reserved) -> Result<Rehearsed, Fault> {
    let component = match gate.components.component(&step.component).await {
        Ok(component) => component,
        Err(error) => return Ok(Rehearsed::Terminal(Failure::permanent(codes::HOST_ERROR, error))),
    };
    if let Err((by, reason)) = authorize::before_the_action(gate, step).await {
        return Ok(refused(by, &reason));
    }
    let (setup, _egress) = step.setup(gate, step.effect_key());
    let attempt = Attempt::new(&gate.sandbox, setup).await;
    let mut instance = None;
    if step.descriptor.hooks.authorize {
        let (returned, allowed) = attempt.instantiate(&component, Phase::Authorize).await?.authorize().await?;
        if let Err(reason) = allowed {
            return Ok(refused(authorize::BY_THE_ACTION, &reason));
        }
        instance = Some(returned);
    }
    if step.class() == EffectClass::Pure {
        // D2: a pure action is simply run.
        drop(instance);
        return run_pure(gate, step, &attempt, &component).await;
    }
    if !step.descriptor.hooks.plan {
        return Ok(Rehearsed::Unsupported);
    }
    let instance: Instance = match instance {
        Some(instance) => instance,
        None => attempt.instantiate(&component, Phase::Plan).await?,
    };
    let (_instance, planned) = instance.plan().await?;
    let planned = match planned {
        Ok(planned) => planned,
        Err(failure) => return Ok(Rehearsed::Terminal(failure)),
    };
    let refuse = |message: String| Rehearsed::Terminal(Failure::permanent(codes::OUTCOME_REFUSED, message));
    let price = match plan::price(&step.action.to_string(), &step.descriptor.meters, planned.consumes) {
        Ok(price) => price,
        Err(message) => return Ok(refuse(message)),
    };
    let limits = step.grant(gate).limits;
    let output = match &planned.output {
        None => None,
        Some(text) => match accept_output(&step.descriptor, &limits, Some(text)) {
            Ok(output) => Some(output),
            Err(message) => return Ok(refuse(format!("its plan: {message}"))),
        },
    };
    Ok(Rehearsed::Planned { output, effect: Some((planned.summary, price)), issues: planned.issues })
}

async fn run_pure(gate: &Gate, step: &Reserved, attempt: &Attempt, component: &Component) -> Result<Rehearsed, Fault> {
    let outcome = attempt.instantiate(component, Phase::Run).await?.run().await?;
    let limits = step.grant(gate).limits;
    Ok(match outcome {
        Outcome::Succeeded(output) => match accept_output(&step.descriptor, &limits, output.as_deref()) {
            Ok(output) => Rehearsed::Planned { output: Some(output), effect: None, issues: Vec::new() },
            Err(message) => Rehearsed::Terminal(Failure::permanent(codes::OUTCOME_REFUSED, message)),
        },
        Outcome::Failed(failure) => Rehearsed::Terminal(failure),
        Outcome::Ambiguous(message, code) => Rehearsed::Terminal(Failure::permanent(&code, message)),
        Outcome::Waiting(dependency) => Rehearsed::Indeterminate(format!(
            "dependency {}:{} is not satisfied",
            dependency.kind.as_str(),
            dependency.key
        )),
    })
}

fn refused(by: &str, reason: &str) -> Rehearsed {
    Rehearsed::Terminal(authorize::forbidden(by, reason))
}
