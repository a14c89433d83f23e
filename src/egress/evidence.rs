//! What an attempt let out: the requests it made, what was heard, what was refused, what it drew from its allowance.
//!
//! One [`Evidence`] per attempt, behind one lock, so that the questions on which the contract turns (did a byte of an
//! effectful request leave? is a request unheard?) have one answer. It performs no I/O.

use url::Url;

use crate::budget::{Allowance, ChargeItem};
use crate::capability::Phase;
use crate::clock::Timestamp;
use crate::effect::EffectClass;
use crate::journal::{Denial, RequestEvidence};

/// A limit of the policy that an attempt ran into on its way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitHit {
    /// The key of the policy: `requests`, `request`, `response`.
    pub limit: &'static str,
    /// What happened, in one sentence with both figures.
    pub message: String,
}

/// An effectful request that bound its origin and key.
#[derive(Debug)]
struct Keyed {
    origin: String,
    key: String,
    fingerprint: String,
    number: u32,
}

/// The state of one attempt's egress.
#[derive(Debug)]
pub(crate) struct Evidence {
    pub phase: Phase,
    /// Set when the attempt is over: what has not left by then never will.
    pub closed: bool,
    pub requests: Vec<RequestEvidence>,
    pub denials: Vec<Denial>,
    pub limit: Option<LimitHit>,
    pub allowance: Allowance,
    keyed: Vec<Keyed>,
}

impl Evidence {
    pub fn new() -> Evidence {
        Evidence {
            phase: Phase::Describe,
            closed: false,
            requests: Vec::new(),
            denials: Vec::new(),
            limit: None,
            allowance: Allowance::of(&[]),
            keyed: Vec::new(),
        }
    }

    /// The evidence of request `number` (from 1).
    pub fn request(&mut self, number: u32) -> Option<&mut RequestEvidence> {
        self.requests.get_mut(usize::try_from(number).ok()?.checked_sub(1)?)
    }

    /// Records the first byte of request `number`.
    pub fn left(&mut self, number: u32, at: Timestamp) {
        if let Some(request) = self.request(number) {
            request.left_at.get_or_insert(at);
        }
    }

    /// R16: binds `key` at the origin of `url` to this request, or says why another one may not use it.
    ///
    /// The claim of a request of which no byte left does not count.
    pub fn bind_key(
        &mut self,
        class: EffectClass,
        number: u32,
        key: &str,
        method: &http::Method,
        url: &Url,
        body_sha256: &str,
    ) -> Result<(), String> {
        let origin = url.origin().ascii_serialization();
        let fingerprint = format!("{method} {url} {body_sha256}");
        let earlier = self.keyed.iter().find(|keyed| keyed.origin == origin && keyed.key == key);
        if let Some(earlier) = earlier {
            let (same, number) = (earlier.fingerprint == fingerprint, earlier.number);
            if !same {
                return Err(format!(
                    "request {number} already went to {origin} under this key and differs in method, URL or body: the \
                     other end would take this one for a repetition and drop it. Give each request a label of its own: \
                     set the idempotency header to a short word"
                ));
            }
            if class == EffectClass::Ambiguous {
                return Err(format!(
                    "request {number} to {origin} was the same, and an ambiguous action makes an effectful request once"
                ));
            }
            return Ok(());
        }
        self.keyed.push(Keyed { origin, key: key.to_owned(), fingerprint, number });
        Ok(())
    }

    /// Request `number` broke off before a byte of it left: its key and what it drew are free again.
    pub fn never_left(&mut self, number: u32, drawn: &[ChargeItem]) {
        self.keyed.retain(|keyed| keyed.number != number);
        self.allowance.put_back(drawn);
    }
}
