//! What may leave the sandbox, and the proof of what did.
//!
//! One [`Egress`] serves one attempt. Every request of its guest takes the same path: **match** a rule of the grant, ask
//! the class × phase table, **resolve** and check the addresses, write the **key** and the credentials, draw from the
//! **meter**, **dial**, and keep **evidence** of all of it. The request's body is held until it is whole, because what
//! R16 compares is the whole request, and so is the response's, because only a whole response was heard (R12).
//!
//! This module names no wasm and no store: an overdraw is charged through [`Overdraw`]. It follows no redirect, retries
//! nothing and shares no connection.

pub mod address;
mod client;
mod decide;
mod evidence;
pub mod pattern;
mod redact;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http_body_util::Full;
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use url::Url;

use self::client::{ClientError, Guard, Timeouts};
pub use self::decide::{Refused, decide};
pub use self::evidence::LimitHit;
use self::evidence::{Evidence, Stage};
use self::redact::Redactor;
use crate::budget::{Allowance, ChargeItem, Exceeded};
use crate::capability::Phase;
use crate::clock::Ambient;
use crate::component::HttpNeed;
use crate::effect::EffectClass;
use crate::journal::{Denial, JournalError, RequestEvidence};
use crate::policy::{Auth, Grant, HttpRule, Overdraw as OverdrawRule, Secrets, missing_addresses};
use crate::worker::lease::Lease;

/// The header that carries the effect key where the rule names none.
pub const DEFAULT_IDEMPOTENCY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// Charges what a request draws beyond its allowance, then and there (B6).
pub trait Overdraw: Send + Sync {
    /// Charges `items` for request `number`, once. `Ok(Some(_))`: the budget does not allow it, and nothing was charged.
    fn charge<'a>(
        &'a self,
        number: u32,
        items: &'a [ChargeItem],
    ) -> BoxFuture<'a, Result<Option<Exceeded>, JournalError>>;
}

/// What one attempt's egress works with.
pub struct EgressConfig {
    /// What the policy grants this action.
    pub grant: Grant,
    /// What the action asked for: the smaller of the two holds.
    pub needs: Vec<HttpNeed>,
    /// Where the credentials come from.
    pub secrets: Arc<Secrets>,
    /// The action's class.
    pub class: EffectClass,
    /// The step's effect key (R1).
    pub effect_key: String,
    /// Time.
    pub ambient: Ambient,
    /// The run's lease.
    pub lease: Arc<Lease>,
}

/// Why a request was not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// Refused; the text says by what, and what would grant it.
    #[error("{0}")]
    Denied(String),
    /// A limit of the policy.
    #[error("{}", .0.message)]
    Limit(LimitHit),
    /// It broke off; the text says where.
    #[error("{0}")]
    Broken(String),
    /// It timed out by the guest's own options.
    #[error("{0}")]
    Timeout(String),
}

/// A request as the guest made it, without its body.
#[derive(Debug)]
pub struct Outgoing {
    /// Its method.
    pub method: http::Method,
    /// Its URL, as text.
    pub url: String,
    /// Its headers; credentials and key are the host's to write.
    pub headers: http::HeaderMap,
    /// How long the guest waits for a connection; `None` waits for the wall limit alone.
    pub connect_timeout: Option<Duration>,
    /// How long the guest waits for the first byte; `None` waits for the wall limit alone.
    pub first_byte_timeout: Option<Duration>,
}

/// A request that may leave once its body is whole.
#[derive(Debug)]
pub struct Admitted {
    number: u32,
    rule: Arc<HttpRule>,
    url: Url,
    key: Option<String>,
    request: http::request::Builder,
    redactor: Redactor,
    timeouts: Timeouts,
}

/// One attempt's way out. Clones share it.
#[derive(Clone)]
pub struct Egress {
    shared: Arc<Shared>,
}

struct Shared {
    config: EgressConfig,
    evidence: Mutex<Evidence>,
    /// A request has moved on: its body is whole, or it is over.
    moved: Notify,
    permit: Mutex<Permit>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// What lets effectful requests out during `run`.
#[derive(Clone, Default)]
struct Permit {
    /// On [`crate::clock::Clock::elapsed`]; `None` lets nothing effectful out.
    deadline: Option<Duration>,
    overdraw: Option<Arc<dyn Overdraw>>,
    budgets: bool,
}

impl Egress {
    /// An attempt that has let nothing out.
    pub fn new(config: EgressConfig) -> Egress {
        Egress {
            shared: Arc::new(Shared {
                config,
                evidence: Mutex::new(Evidence::new()),
                moved: Notify::new(),
                permit: Mutex::default(),
                tasks: Mutex::default(),
            }),
        }
    }

    /// The host calls the export of `phase` now.
    pub fn enter(&self, phase: Phase) {
        self.shared.evidence().phase = phase;
    }

    /// Lets effectful requests out until `deadline` (on [`crate::clock::Clock::elapsed`]), metered by `allowance`. With
    /// `overdraw` `None` budgets are off: meters count and never refuse.
    pub fn arm(&self, deadline: Duration, allowance: Allowance, overdraw: Option<Arc<dyn Overdraw>>) {
        self.shared.evidence().allowance = allowance;
        let budgets = overdraw.is_some();
        *lock(&self.shared.permit) = Permit { deadline: Some(deadline), overdraw, budgets };
    }

    /// Nothing leaves any more that has not left yet. Called before an instance's memory goes away, because a body that
    /// ends there looks like one that is whole.
    pub fn close(&self) {
        self.shared.evidence().end(Stage::OnItsWay, "the attempt was over");
    }

    /// Called when an export has returned: waits until every request that left, or is on its way, was heard or broke off.
    /// Bound it by the wall limit. A request whose body is not whole by then gets a moment for what the guest has written
    /// of it to arrive, and does not leave if that is not all of it.
    pub async fn drain(&self) {
        let _ = tokio::time::timeout(BODY_GRACE, self.until_none_at(&[Stage::AwaitsBody])).await;
        self.shared.evidence().end(Stage::AwaitsBody, "the export returned before its body was whole");
        self.until_none_at(&[Stage::OnItsWay, Stage::Left]).await;
    }

    async fn until_none_at(&self, stages: &[Stage]) {
        loop {
            // Made before looking, so that what moves between the look and the wait ends the wait.
            let moved = self.shared.moved.notified();
            let any = {
                let evidence = self.shared.evidence();
                stages.iter().any(|stage| evidence.any_at(*stage))
            };
            if !any {
                return;
            }
            moved.await;
        }
    }

    /// Breaks off everything that is still in flight.
    pub fn abort(&self) {
        self.shared.evidence().end(Stage::Left, "the attempt was over");
        for task in lock(&self.shared.tasks).drain(..) {
            task.abort();
        }
    }

    /// Every request so far, in order.
    pub fn requests(&self) -> Vec<RequestEvidence> {
        self.shared.evidence().requests()
    }

    /// Every refusal so far, in order.
    pub fn denials(&self) -> Vec<Denial> {
        self.shared.evidence().denials.clone()
    }

    /// The first limit that a request ran into.
    pub fn limit(&self) -> Option<LimitHit> {
        self.shared.evidence().limit.clone()
    }

    /// Records a refusal of something that is not a request.
    pub fn deny(&self, capability: impl Into<String>, reason: impl Into<String>, remedy: impl Into<String>) {
        self.shared.evidence().deny(capability.into(), reason.into(), remedy.into());
    }

    /// Decides a request before its body is seen.
    ///
    /// # Errors
    /// [`EgressError::Denied`] with the deciding rule or the lines that would grant it; [`EgressError::Limit`] past the
    /// number of requests.
    pub fn admit(&self, outgoing: Outgoing) -> Result<Admitted, EgressError> {
        let config = &self.shared.config;
        let number = self.begin(&outgoing)?;
        let refuse = |reason: String, remedy: String| Err(self.refuse(number, &outgoing, reason, remedy));

        let url = match Url::parse(&outgoing.url) {
            Ok(url) => url,
            Err(error) => return refuse(format!("its URL does not parse: {error}"), String::new()),
        };
        let phase = self.shared.evidence().phase;
        let (app, action) = (&config.grant.app, &config.grant.action);
        // First what the policy cannot mend.
        if !config.needs.iter().any(|need| need.covers(&outgoing.method, &url)) {
            let reason =
                format!("{app}/{action} does not ask for it: its descriptor lists no such request under `http`");
            return refuse(reason, String::new());
        }

        let policy_name = config.secrets.policy_name();
        let rule = match decide(policy_name, &config.grant, config.class, phase, &outgoing.method, &url) {
            Ok(rule) => rule,
            Err(Refused { reason, remedy, .. }) => return refuse(reason, remedy),
        };

        let mut headers = outgoing.headers.clone();
        headers.remove(header::HOST);
        let key = match self.write_key(&rule, &mut headers) {
            Ok(key) => key,
            Err(reason) => return refuse(reason, String::new()),
        };
        if let Err(reason) = self.write_credentials(&rule, &mut headers) {
            return refuse(reason, String::new());
        }
        let redactor = self.redactor();
        if let Some(request) = self.shared.evidence().request(number) {
            request.safe = rule.safe;
            request.key.clone_from(&key);
            request.url = redactor.text(url.as_str());
        }
        // One connection carries one request.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        let mut request = http::Request::builder().method(outgoing.method).uri(origin_form(&url));
        request = request.header(header::HOST, host_header(&url));
        if let Some(all) = request.headers_mut() {
            all.extend(headers);
        }
        let timeouts = Timeouts { connect: outgoing.connect_timeout, first_byte: outgoing.first_byte_timeout };
        Ok(Admitted { number, rule: rule.clone(), url, key, request, redactor, timeouts })
    }

    /// Sends an admitted request once `body` is whole. It goes on whoever drops the future: what has left must be heard.
    pub fn send<B>(
        &self,
        admitted: Admitted,
        body: B,
    ) -> impl Future<Output = Result<http::Response<Bytes>, EgressError>> + Send + use<B>
    where
        B: Future<Output = Result<Bytes, EgressError>> + Send + 'static,
    {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let under_way = UnderWay { shared: self.shared.clone(), number: admitted.number };
        let task = tokio::spawn(async move {
            let result = match body.await {
                Ok(body) => under_way.shared.perform(admitted, body).await,
                Err(error) => Err(error),
            };
            if let Err(error) = &result {
                under_way.ends(Some(error.to_string()));
            }
            // The guest may have dropped the request: the evidence is kept all the same.
            let _ = answer.send(result);
        });
        lock(&self.shared.tasks).push(task);
        async move {
            answered
                .await
                .unwrap_or_else(|_| Err(EgressError::Broken("the attempt ended before the answer".to_owned())))
        }
    }

    /// How many bytes a request's body may have.
    pub fn request_bytes_max(&self) -> u64 {
        self.shared.config.grant.limits.request_bytes
    }

    /// The error for a request's body that is too large, recorded as the attempt's limit.
    pub fn request_too_large(&self) -> EgressError {
        let limit = self.request_bytes_max();
        self.shared.hit(LimitHit {
            limit: "request",
            message: format!("the request's body is larger than {limit} bytes (limit `request` of the policy)"),
        })
    }

    /// Takes a request up: from here on there is evidence of it.
    fn begin(&self, outgoing: &Outgoing) -> Result<u32, EgressError> {
        let (method, url) = (outgoing.method.as_str(), outgoing.url.as_str());
        if method.len() > METHOD_BYTES_MAX || url.len() > URL_BYTES_MAX {
            let reason = format!(
                "its method has {} bytes and its URL {}, and at most {METHOD_BYTES_MAX} and {URL_BYTES_MAX} are accepted",
                method.len(),
                url.len()
            );
            let text = format!("a request was refused: {reason}");
            self.deny("a request", reason, "");
            return Err(EgressError::Denied(text));
        }
        let limit = self.shared.config.grant.limits.requests;
        let begun = self.shared.evidence().begin(&outgoing.method, url, limit);
        begun.map_err(|number| {
            self.shared.hit(LimitHit {
                limit: "requests",
                message: format!(
                    "request {number} to {url} is one more than the {limit} that an attempt may make (limit `requests` \
                     of the policy)"
                ),
            })
        })
    }

    fn refuse(&self, number: u32, outgoing: &Outgoing, reason: String, remedy: String) -> EgressError {
        let capability = format!("{} {}", outgoing.method, outgoing.url);
        let text = match remedy.is_empty() {
            true => format!("{capability} was refused: {reason}"),
            false => format!("{capability} was refused: {reason}. To grant it:\n{remedy}"),
        };
        let mut evidence = self.shared.evidence();
        evidence.over(number, Some(reason.clone()), &[]);
        evidence.deny(capability, reason, remedy);
        EgressError::Denied(text)
    }

    /// R16: the key that the host writes into an effectful request, from the label that the guest may have set.
    fn write_key(&self, rule: &HttpRule, headers: &mut http::HeaderMap) -> Result<Option<String>, String> {
        let config = &self.shared.config;
        let header = rule.idempotency.as_ref().map_or(DEFAULT_IDEMPOTENCY_HEADER, |vouched| vouched.header.clone());
        if rule.safe {
            return Ok(None);
        }
        let labels: Vec<&HeaderValue> = headers.get_all(&header).iter().collect();
        let label = match labels.as_slice() {
            [] => None,
            [label] => Some(label.to_str().unwrap_or_default().to_owned()),
            _ => return Err(format!("it sets the header `{header}` more than once")),
        };
        let key = match label {
            None => config.effect_key.clone(),
            Some(label) if is_label(&label) => format!("{}/{label}", config.effect_key),
            Some(_) => {
                return Err(format!(
                    "its header `{header}` is not a label: 1 to 64 letters, digits, `-`, `_` or `.`; the host writes \
                     the key itself"
                ));
            }
        };
        let value = HeaderValue::from_str(&key).map_err(|_| format!("the effect key {key:?} does not fit a header"))?;
        headers.insert(header, value);
        Ok(Some(key))
    }

    /// Writes the rule's credentials over whatever the guest set.
    fn write_credentials(&self, rule: &HttpRule, headers: &mut HeaderMap) -> Result<(), String> {
        let Some(auth) = &rule.auth else { return Ok(()) };
        let Credential { header, value, .. } = self.credential(auth)?;
        let mut value = HeaderValue::from_str(&value)
            .map_err(|_| format!("the secret for its header `{header}` holds characters that a header cannot"))?;
        value.set_sensitive(true);
        headers.insert(header, value);
        Ok(())
    }

    /// Redacts the secrets of every rule that the action has, whichever rule a request goes by: one endpoint can show what
    /// another was sent. A secret that cannot be loaded has not been sent either.
    fn redactor(&self) -> Redactor {
        let auths = self.shared.config.grant.http.iter().filter_map(|rule| rule.auth.as_ref());
        Redactor::new(auths.filter_map(|auth| self.credential(auth).ok()).flat_map(|credential| credential.shown))
    }

    fn credential(&self, auth: &Auth) -> Result<Credential, String> {
        let load = |name: &str| self.shared.config.secrets.load(name).map_err(|error| error.to_string());
        Ok(match auth {
            Auth::Bearer { secret } => {
                let token = load(secret)?.expose().to_owned();
                Credential { header: header::AUTHORIZATION, value: format!("Bearer {token}"), shown: vec![token] }
            }
            Auth::Basic { user, password } => {
                let password = load(password)?.expose().to_owned();
                let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
                let value = format!("Basic {encoded}");
                Credential { header: header::AUTHORIZATION, value, shown: vec![password, encoded] }
            }
            Auth::Header { name, value } => {
                let value = load(value)?.expose().to_owned();
                Credential { header: name.clone(), value: value.clone(), shown: vec![value] }
            }
        })
    }
}

/// How long a body that is not whole when its export returns is waited for: what the guest has written of it is in the
/// host by then, and only has to be passed on.
const BODY_GRACE: Duration = Duration::from_millis(200);

/// What is kept of every request must stay small. Nobody has a method or a URL as long as these.
const METHOD_BYTES_MAX: usize = 64;
const URL_BYTES_MAX: usize = 8 << 10;

impl Shared {
    fn evidence(&self) -> MutexGuard<'_, Evidence> {
        lock(&self.evidence)
    }

    fn hit(&self, hit: LimitHit) -> EgressError {
        let remedy = format!("{} = … under [limits] or [app.{}.limits]", hit.limit, self.config.grant.app);
        let mut evidence = self.evidence();
        evidence.deny(format!("limit `{}`", hit.limit), hit.message.clone(), remedy);
        evidence.limit.get_or_insert_with(|| hit.clone());
        EgressError::Limit(hit)
    }

    async fn perform(self: &Arc<Self>, admitted: Admitted, body: Bytes) -> Result<http::Response<Bytes>, EgressError> {
        let Admitted { number, rule, url, key, request, redactor, timeouts } = admitted;
        let method = request.method_ref().cloned().unwrap_or_default();
        let (shown_url, body_sha256) = (redactor.text(url.as_str()), hex::encode(Sha256::digest(&body)));
        let capability = format!("{method} {shown_url}");
        let in_time = self.evidence().body_is_whole(number, &body_sha256);
        self.moved.notify_waiters();
        if !in_time {
            return Err(did_not_leave(&capability));
        }
        let addresses = match client::resolve(&url, &rule.addresses).await {
            Ok(addresses) => addresses,
            Err(error) => return Err(self.refused_address(number, &rule, &capability, error)),
        };
        let drawn = self.claim(number, &rule, &capability, key.as_deref(), (&method, &url, &body_sha256))?;
        let sent = async {
            self.overdraw(number, &capability, &drawn).await?;
            let request = request
                .body(Full::new(body))
                .map_err(|error| EgressError::Denied(format!("the request is not well-formed: {error}")))?;
            let guard = RequestGuard { shared: self.clone(), number, effectful: !rule.safe };
            guard.point("before-send");
            let response_bytes_max = self.config.grant.limits.response_bytes;
            client::send(&addresses, &url, request, timeouts, response_bytes_max, Arc::new(guard))
                .await
                .map_err(|error| self.broke(number, &capability, error))
        }
        .await;
        match sent {
            Ok(heard) => Ok(self.heard(number, rule.safe, heard.response, &redactor)),
            Err(error) => {
                self.evidence().over(number, Some(error.to_string()), &drawn.from_allowance);
                Err(error)
            }
        }
    }

    /// Binds the key (R16) and draws from the allowance (B6), in one step under the lock.
    fn claim(
        &self,
        number: u32,
        rule: &HttpRule,
        capability: &str,
        key: Option<&str>,
        (method, url, body_sha256): (&http::Method, &Url, &str),
    ) -> Result<Drawn, EgressError> {
        let budgets = lock(&self.permit).budgets;
        let mut evidence = self.evidence();
        if !evidence.is_under_way(number) {
            return Err(did_not_leave(capability));
        }
        if let Some(key) = key
            && let Err(reason) = evidence.bind_key(self.config.class, number, key, method, url, body_sha256)
        {
            let text = format!("{capability} was refused: {reason}");
            evidence.deny_request(number, capability.to_owned(), reason, String::new());
            return Err(EgressError::Denied(text));
        }
        if rule.safe || rule.meter.is_empty() {
            return Ok(Drawn::default());
        }
        let shortfall = match evidence.allowance.draw(&rule.meter) {
            Ok(()) => return Ok(Drawn { from_allowance: rule.meter.clone(), overdrawn: Vec::new() }),
            Err(shortfall) => shortfall,
        };
        if !budgets {
            return Ok(Drawn::default());
        }
        if rule.overdraw == OverdrawRule::Charge {
            return Ok(Drawn { from_allowance: Vec::new(), overdrawn: rule.meter.clone() });
        }
        let reason = format!(
            "it draws {} {} and {} of what `plan` announced is left",
            shortfall.requested, shortfall.dimension, shortfall.remaining
        );
        let remedy =
            "announce it in `plan`, or let the rule charge it then and there: overdraw = \"charge\"".to_owned();
        evidence.over(number, Some(reason.clone()), &[]);
        let text = format!("{capability} was refused: {reason}; {remedy}");
        evidence.deny_request(number, capability.to_owned(), reason, remedy);
        Err(EgressError::Denied(text))
    }

    async fn overdraw(&self, number: u32, capability: &str, drawn: &Drawn) -> Result<(), EgressError> {
        let Some(overdraw) = lock(&self.permit).overdraw.clone() else { return Ok(()) };
        if drawn.overdrawn.is_empty() {
            return Ok(());
        }
        match overdraw.charge(number, &drawn.overdrawn).await {
            Ok(None) => Ok(()),
            Ok(Some(exceeded)) => {
                let reason = format!("it would be charged beyond its plan, and {exceeded}");
                let text = format!("{capability} was refused: {reason}");
                self.evidence().deny_request(number, capability.to_owned(), reason, String::new());
                Err(EgressError::Denied(text))
            }
            Err(error) => Err(EgressError::Broken(format!("{capability} did not leave: {error}"))),
        }
    }

    /// Records what was heard, and keeps the rule's credentials out of what the guest gets to see of it.
    fn heard(
        &self,
        number: u32,
        safe: bool,
        response: http::Response<Bytes>,
        redactor: &Redactor,
    ) -> http::Response<Bytes> {
        if !safe {
            crate::crash::point("answer-heard");
        }
        let at = self.config.ambient.clock.now();
        if let Some(request) = self.evidence().request(number) {
            request.status = Some(response.status().as_u16());
            request.heard_at = Some(at);
        }
        let (mut head, body) = response.into_parts();
        let bytes_before = body.len();
        let body = redactor.bytes(body);
        redact_headers(&mut head.headers, redactor);
        if body.len() != bytes_before && head.headers.contains_key(header::CONTENT_LENGTH) {
            head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        http::Response::from_parts(head, body)
    }

    fn refused_address(&self, number: u32, rule: &HttpRule, capability: &str, error: ClientError) -> EgressError {
        let ClientError::Address { address, range, .. } = &error else {
            return self.broke(number, capability, error);
        };
        let remedy = missing_addresses(rule, *address);
        let reason = format!("it is at {address}, which is {range}");
        let text = format!("{capability} was refused: {reason}. To grant it, add to its rule: {remedy}");
        self.evidence().deny_request(number, capability.to_owned(), reason, remedy);
        EgressError::Denied(text)
    }

    fn broke(&self, number: u32, capability: &str, error: ClientError) -> EgressError {
        let status = match &error {
            ClientError::Body { status, .. } | ClientError::ResponseTooLarge { status, .. } => Some(*status),
            _ => None,
        };
        if let Some(status) = status {
            let at = self.config.ambient.clock.now();
            if let Some(request) = self.evidence().request(number) {
                request.status = Some(status);
                // A refusal is heard by its status; a success only by its whole body (R12).
                if !(200..300).contains(&status) {
                    request.heard_at = Some(at);
                }
            }
        }
        match error {
            ClientError::ResponseTooLarge { limit, .. } => self.hit(LimitHit {
                limit: "response",
                message: format!(
                    "the response to {capability} is larger than {limit} bytes (limit `response` of the policy)"
                ),
            }),
            ClientError::Timeout(_) => EgressError::Timeout(format!("{capability}: {error}")),
            _ => EgressError::Broken(format!("{capability}: {error}")),
        }
    }
}

/// What a request took, and from where.
#[derive(Debug, Default)]
struct Drawn {
    from_allowance: Vec<ChargeItem>,
    overdrawn: Vec<ChargeItem>,
}

/// A request that was handed to a task: it is over when the task is, however that ends.
struct UnderWay {
    shared: Arc<Shared>,
    number: u32,
}

impl UnderWay {
    fn ends(&self, error: Option<String>) {
        self.shared.evidence().over(self.number, error, &[]);
        self.shared.moved.notify_waiters();
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.ends(None);
    }
}

/// A header that the host writes, and the texts in which its secret could be shown. Never printed.
struct Credential {
    header: HeaderName,
    value: String,
    shown: Vec<String>,
}

/// R7: past the deadline, or without a live lease, no byte of an effectful request leaves.
struct RequestGuard {
    shared: Arc<Shared>,
    number: u32,
    effectful: bool,
}

impl RequestGuard {
    /// The crash points around a request are those of an effect: a request that changes nothing passes none.
    fn point(&self, name: &'static str) {
        if self.effectful {
            crate::crash::point(name);
        }
    }
}

impl Guard for RequestGuard {
    fn may_write(&self) -> Result<(), String> {
        let config = &self.shared.config;
        let now = config.ambient.clock.elapsed();
        let deadline = lock(&self.shared.permit).deadline;
        let mut evidence = self.shared.evidence();
        if !evidence.is_under_way(self.number) {
            return Err("the attempt was over".to_owned());
        }
        if self.effectful {
            if !config.lease.is_live(now) {
                return Err("the lease of its run had ended".to_owned());
            }
            if deadline.is_none_or(|deadline| now >= deadline) {
                return Err("the deadline of its attempt had passed".to_owned());
            }
        }
        evidence.left(self.number, config.ambient.clock.now());
        Ok(())
    }

    fn flushed(&self) {
        self.point("request-left");
    }
}

/// A poisoned lock means that another thread panicked while it held it; what it guards is still evidence.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn did_not_leave(capability: &str) -> EgressError {
    EgressError::Broken(format!("{capability} did not leave: the attempt was over"))
}

/// Values are redacted as the bytes that they are: a header may hold more than ASCII.
fn redact_headers(headers: &mut HeaderMap, redactor: &Redactor) {
    for value in headers.values_mut() {
        let redacted = redactor.bytes(Bytes::copy_from_slice(value.as_bytes()));
        if redacted != value.as_bytes() {
            *value = HeaderValue::from_maybe_shared(redacted).unwrap_or(HeaderValue::from_static("[redacted]"));
        }
    }
}

fn is_label(label: &str) -> bool {
    (1..=64).contains(&label.len())
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn origin_form(url: &Url) -> String {
    match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    }
}

fn host_header(url: &Url) -> String {
    match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(host), None) => host.to_owned(),
        (None, _) => String::new(),
    }
}
