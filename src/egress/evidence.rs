//! What an attempt let out: the requests it made, what was heard, what was refused, what it drew from its allowance.
//!
//! One [`Evidence`] per attempt, behind one lock, so that the questions on which the contract turns (may this byte leave?
//! did one leave? is a request unheard?) have one answer. It performs no I/O and waits for nothing.

use url::Url;

use crate::budget::{Allowance, ChargeItem};
use crate::capability::Phase;
use crate::clock::Timestamp;
use crate::effect::EffectClass;
use crate::journal::{Denial, RequestEvidence};

/// Refusals kept per attempt: a guest that probes in a loop must not fill the store.
const DENIALS_MAX: usize = 100;

/// A limit of the policy that an attempt ran into on its way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitHit {
    /// The key of the policy: `requests`, `request`, `response`.
    pub limit: &'static str,
    /// What happened, in one sentence with both figures.
    pub message: String,
}

/// How far a request has come. It only moves forward, and only a request that is on its way can leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The guest has not finished its body.
    AwaitsBody,
    /// Its body is whole, and no byte of it has left.
    OnItsWay,
    /// A byte of it has left.
    Left,
    /// Nothing more of it leaves or is heard.
    Over,
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
    pub denials: Vec<Denial>,
    pub limit: Option<LimitHit>,
    pub allowance: Allowance,
    /// Request `n` (from 1) is at `n - 1`.
    requests: Vec<(Stage, RequestEvidence)>,
    keyed: Vec<Keyed>,
}

impl Evidence {
    pub fn new() -> Evidence {
        Evidence {
            phase: Phase::Describe,
            denials: Vec::new(),
            limit: None,
            allowance: Allowance::of(&[]),
            requests: Vec::new(),
            keyed: Vec::new(),
        }
    }

    /// Takes up the next request and gives it its number; `Err` with that number where `requests_max` were made already.
    pub fn begin(&mut self, method: &http::Method, url: &str, requests_max: u32) -> Result<u32, u64> {
        let number = self.requests.len() as u64 + 1;
        let within = u32::try_from(number).ok().filter(|number| *number <= requests_max);
        let Some(number) = within else { return Err(number) };
        let evidence = RequestEvidence {
            number,
            phase: self.phase.to_string(),
            method: method.to_string(),
            url: url.to_owned(),
            safe: false,
            key: None,
            body_sha256: None,
            left_at: None,
            status: None,
            heard_at: None,
            error: None,
        };
        self.requests.push((Stage::AwaitsBody, evidence));
        Ok(number)
    }

    /// The evidence of every request, in order.
    pub fn requests(&self) -> Vec<RequestEvidence> {
        self.requests.iter().map(|(_, evidence)| evidence.clone()).collect()
    }

    /// The evidence of request `number`.
    pub fn request(&mut self, number: u32) -> Option<&mut RequestEvidence> {
        self.entry(number).map(|(_, evidence)| evidence)
    }

    /// Whether a request is at `stage`.
    pub fn any_at(&self, stage: Stage) -> bool {
        self.requests.iter().any(|(at, _)| *at == stage)
    }

    /// The body of request `number` is whole. False where it came too late: the request is over.
    #[must_use]
    pub fn body_is_whole(&mut self, number: u32, body_sha256: &str) -> bool {
        match self.entry(number) {
            Some((stage @ Stage::AwaitsBody, evidence)) => {
                *stage = Stage::OnItsWay;
                evidence.body_sha256 = Some(body_sha256.to_owned());
                true
            }
            _ => false,
        }
    }

    /// Whether bytes of request `number` may leave, as far as its own course is concerned.
    pub fn is_under_way(&mut self, number: u32) -> bool {
        matches!(self.entry(number), Some((Stage::OnItsWay | Stage::Left, _)))
    }

    /// A byte of request `number` leaves.
    pub fn left(&mut self, number: u32, at: Timestamp) {
        if let Some((stage @ Stage::OnItsWay, evidence)) = self.entry(number) {
            *stage = Stage::Left;
            evidence.left_at = Some(at);
        }
    }

    /// Nothing more of request `number` leaves or is heard. Where it broke off before a byte of it left, its key and what
    /// it drew are free again: the same step that makes sure that none leaves later.
    pub fn over(&mut self, number: u32, error: Option<String>, drawn: &[ChargeItem]) {
        let Some((stage, evidence)) = self.entry(number) else { return };
        let never_left = *stage < Stage::Left;
        *stage = Stage::Over;
        evidence.error = evidence.error.take().or(error);
        if never_left {
            self.keyed.retain(|keyed| keyed.number != number);
            self.allowance.put_back(drawn);
        }
    }

    /// Ends every request that has come no further than `last`, with what to say of those that have not left.
    pub fn end(&mut self, last: Stage, reason: &str) {
        for (stage, evidence) in self.requests.iter_mut().filter(|(stage, _)| *stage <= last && *stage != Stage::Over) {
            let error = match stage {
                Stage::Left => "the attempt ended before the answer".to_owned(),
                _ => format!("it did not leave: {reason}"),
            };
            *stage = Stage::Over;
            evidence.error.get_or_insert(error);
        }
    }

    /// Records a refusal of something that is not a request, or of a request that is being made now.
    pub fn deny(&mut self, capability: String, reason: String, remedy: String) {
        self.record_denial(Denial { phase: self.phase.to_string(), capability, reason, remedy });
    }

    /// Records the refusal of request `number`, which may have been made by an earlier phase.
    pub fn deny_request(&mut self, number: u32, capability: String, reason: String, remedy: String) {
        let phase = self.request(number).map(|request| request.phase.clone()).unwrap_or_default();
        self.record_denial(Denial { phase, capability, reason, remedy });
    }

    fn record_denial(&mut self, denial: Denial) {
        if self.denials.len() < DENIALS_MAX && !self.denials.contains(&denial) {
            self.denials.push(denial);
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
            let number = earlier.number;
            if earlier.fingerprint != fingerprint {
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
        }
        // A repetition holds the key too: the first may yet break off before it leaves, and this one not.
        self.keyed.push(Keyed { origin, key: key.to_owned(), fingerprint, number });
        Ok(())
    }

    fn entry(&mut self, number: u32) -> Option<&mut (Stage, RequestEvidence)> {
        self.requests.get_mut(usize::try_from(number).ok()?.checked_sub(1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHARGE: &str = "calls";

    fn draw(evidence: &mut Evidence) -> Vec<ChargeItem> {
        let one = crate::budget::sum("test", [(CHARGE, "1")]).unwrap();
        evidence.allowance = Allowance::of(&one);
        evidence.allowance.draw(&one).unwrap();
        one
    }

    fn bind(evidence: &mut Evidence, class: EffectClass, number: u32, body: &str) -> Result<(), String> {
        let url = "https://api.example/v1".parse().unwrap();
        evidence.bind_key(class, number, "key", &http::Method::POST, &url, body)
    }

    fn begun(evidence: &mut Evidence, requests: u32) {
        for number in 1..=requests {
            assert_eq!(evidence.begin(&http::Method::POST, "https://api.example/v1", requests), Ok(number));
        }
    }

    #[test]
    fn only_a_request_on_its_way_can_leave_and_nothing_comes_back_from_being_over() {
        let mut evidence = Evidence::new();
        begun(&mut evidence, 2);
        assert_eq!(evidence.begin(&http::Method::POST, "https://api.example/v1", 2), Err(3));

        evidence.left(1, Timestamp(1));
        assert!(evidence.any_at(Stage::AwaitsBody) && !evidence.is_under_way(1));
        assert!(evidence.body_is_whole(1, "a") && evidence.is_under_way(1));
        evidence.left(1, Timestamp(2));
        evidence.left(1, Timestamp(3));
        assert_eq!(evidence.requests()[0].left_at, Some(Timestamp(2)));

        evidence.end(Stage::OnItsWay, "the attempt was over");
        assert!(evidence.is_under_way(1), "what has left is still to be heard");
        assert!(!evidence.body_is_whole(2, "b") && !evidence.is_under_way(2));
        evidence.end(Stage::Left, "the attempt was over");
        assert!(!evidence.is_under_way(1));
        evidence.left(2, Timestamp(4));
        let errors: Vec<_> = evidence.requests().into_iter().map(|request| (request.left_at, request.error)).collect();
        assert_eq!(
            errors,
            [
                (Some(Timestamp(2)), Some("the attempt ended before the answer".to_owned())),
                (None, Some("it did not leave: the attempt was over".to_owned())),
            ]
        );
    }

    // R16, B6: what never left holds neither key nor allowance; what left holds both.
    #[test]
    fn key_and_allowance_are_free_again_only_where_no_byte_left() {
        for (leaves, free) in [(false, true), (true, false)] {
            let mut evidence = Evidence::new();
            begun(&mut evidence, 2);
            let drawn = draw(&mut evidence);
            assert!(evidence.body_is_whole(1, "a"));
            bind(&mut evidence, EffectClass::Ambiguous, 1, "a").unwrap();
            if leaves {
                evidence.left(1, Timestamp(1));
            }
            evidence.over(1, Some("it broke".to_owned()), &drawn);
            assert_eq!(bind(&mut evidence, EffectClass::Ambiguous, 2, "a").is_ok(), free);
            assert_eq!(evidence.allowance.draw(&drawn).is_ok(), free);
        }
    }

    #[test]
    fn r16_a_repetition_holds_the_key_when_the_first_never_left() {
        let mut evidence = Evidence::new();
        begun(&mut evidence, 3);
        bind(&mut evidence, EffectClass::Idempotent, 1, "a").unwrap();
        bind(&mut evidence, EffectClass::Idempotent, 2, "a").unwrap();
        evidence.over(1, None, &[]);
        assert!(bind(&mut evidence, EffectClass::Idempotent, 3, "b").is_err());
        evidence.over(2, None, &[]);
        assert!(bind(&mut evidence, EffectClass::Idempotent, 3, "b").is_ok());
    }

    #[test]
    fn refusals_are_kept_once_and_not_without_end() {
        let mut evidence = Evidence::new();
        for number in 0..2 * DENIALS_MAX {
            for _ in 0..2 {
                evidence.deny(format!("thing {number}"), "no".to_owned(), String::new());
            }
        }
        assert_eq!(evidence.denials.len(), DENIALS_MAX);
        assert_eq!(evidence.denials[1].capability, "thing 1");
    }
}
