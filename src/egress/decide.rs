//! Whether an action may make a request in a phase: which rule decides it, or which lines would grant it.
//!
//! Pure. It serves the request itself and whoever asks beforehand (`policy explain`), so that they cannot disagree.

use std::net::IpAddr;
use std::sync::Arc;

use url::Url;

use super::address;
use crate::capability::{Capability, Phase, allows};
use crate::effect::EffectClass;
use crate::policy::{Grant, HttpRule, missing_idempotency, missing_rule};

/// Why a request is refused, and what would grant it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Why, in a clause.
    pub reason: String,
    /// The lines to add, ready to paste; empty where nothing would grant it, a comment where no rule can.
    pub remedy: String,
    /// The line of the rule that matches the request and does not suffice; `None` where none matches.
    pub line: Option<usize>,
}

/// The rule that lets an action of `class` make this request in `phase`.
///
/// # Errors
/// [`Refused`], with the lines that would grant it: exact, scheme and port included.
pub fn decide(
    policy_name: &str,
    grant: &Grant,
    class: EffectClass,
    phase: Phase,
    method: &http::Method,
    url: &Url,
) -> Result<Arc<HttpRule>, Refused> {
    let refused = |reason: String, remedy: String, line| Err(Refused { reason, remedy, line });
    let may = |capability| allows(class, phase, capability);
    if !may(Capability::SafeRequest) {
        let article = if matches!(class, EffectClass::Idempotent | EffectClass::Ambiguous) { "an" } else { "a" };
        let reason = format!("the {phase} of {article} {class} action may make no request");
        return refused(reason, String::new(), None);
    }
    let Some(rule) = grant.rule_for(method, url) else {
        let address = match url.host() {
            Some(url::Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(url::Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            _ => None,
        };
        let address = address.filter(|address| address::refused(*address, &[]).is_some());
        // RFC 9110, section 9.2.1: what these methods ask for changes nothing.
        let reads = matches!(*method, http::Method::GET | http::Method::HEAD);
        let safe = reads || !may(Capability::EffectfulRequest);
        let mut remedy = missing_rule(&grant.app, &grant.action, method, url, safe, address);
        if !safe && class == EffectClass::Idempotent && !remedy.starts_with('#') {
            // Otherwise the lines would lead straight to the next refusal.
            remedy = format!("{remedy}\n{}", missing_idempotency());
        }
        let reason = format!("no rule of the policy grants it to {}/{}", grant.app, grant.action);
        return refused(reason, remedy, None);
    };
    let at = format!("the rule at line {} of {policy_name}", rule.line);
    if !rule.safe && !may(Capability::EffectfulRequest) {
        let reason = format!("{at} does not call it safe, and {phase} may make safe requests only");
        return refused(reason, "if it changes nothing at the other end: safe = true".to_owned(), Some(rule.line));
    }
    if !rule.safe && class == EffectClass::Idempotent && rule.idempotency.is_none() {
        let reason = format!(
            "an idempotent action may make an effectful request only where the operator vouches that the endpoint honours \
             the key, and {at} does not"
        );
        return refused(reason, missing_idempotency().to_owned(), Some(rule.line));
    }
    Ok(rule.clone())
}
