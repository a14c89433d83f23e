//! R5: what the action would consume. The same export answers the dry run.

use super::authorize::Authorized;
use super::recall::Work;
use super::settle;
use super::{Gate, Halt};
use crate::budget::{self, ChargeItem};
use crate::capability::Phase;
use crate::effect::EffectClass;
use crate::journal::{Failure, codes};

/// A step and what it will be charged. Made here alone.
pub(super) struct Priced {
    pub work: Work,
    /// Empty where nothing is consumed, or nothing can be planned.
    pub price: Vec<ChargeItem>,
}

pub(super) async fn plan(gate: &Gate, authorized: Authorized) -> Result<Priced, Halt> {
    let Authorized { mut work } = authorized;
    let planned = gate.budgets && work.step.descriptor.hooks.plan && work.step.class() != EffectClass::Pure;
    if !planned {
        return Ok(Priced { work, price: Vec::new() });
    }
    let asked = match work.take_instance(Phase::Plan).await {
        Ok(instance) => instance.plan().await,
        Err(fault) => Err(fault),
    };
    let planned = match asked {
        Ok((instance, Ok(planned))) => {
            work.instance = Some(instance);
            planned
        }
        Ok((_instance, Err(failure))) => return Err(settle::stop(gate, work, failure).await),
        Err(fault) => return Err(settle::stop(gate, work, fault.to_failure()).await),
    };
    match price(&work.step.action.to_string(), &work.step.descriptor.meters, planned.consumes) {
        Ok(price) => Ok(Priced { work, price }),
        Err(message) => {
            let failure = Failure::permanent(codes::OUTCOME_REFUSED, message);
            Err(settle::stop(gate, work, failure).await)
        }
    }
}

/// B1: the amounts that a plan names, exact, summed by dimension; only dimensions that the action declared.
pub(crate) fn price(
    action: &str,
    meters: &[String],
    consumes: Vec<(String, String)>,
) -> Result<Vec<ChargeItem>, String> {
    let price = budget::sum(&format!("the plan of {action}"), consumes).map_err(|error| error.to_string())?;
    match price.iter().find(|item| !meters.contains(&item.dimension)) {
        None => Ok(price),
        Some(item) => Err(format!(
            "the plan of {action} consumes `{}`, which its descriptor does not list under `meters`",
            item.dimension
        )),
    }
}
