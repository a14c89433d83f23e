//! The operator's policy: what each app's actions may reach, spend and use.
//!
//! A policy is read once, as a whole ([`Policy::parse`]), and is valid or not there at all; what it says about one
//! action is a [`Grant`]. Nothing is granted that the file does not name.
//!
//! This module decides nothing at run time beyond looking up: which request leaves, what it is charged and which
//! address it goes to is decided where requests are sent. It reads no file; only [`load`] and [`Secrets::load`] read
//! anything from outside, a secret.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method};
use ipnet::IpNet;
use url::Url;

use crate::budget::ChargeItem;
use crate::effect::EffectClass;
use crate::egress::pattern::UrlPattern;
use crate::source::Report;

mod parse;
pub(crate) mod reader;
mod remedy;
mod secrets;
pub mod units;

pub use remedy::{missing_addresses, missing_idempotency, missing_limit, missing_rule};
pub use secrets::{Auth, SECRET_BYTES_MAX, Secret, SecretError, SecretSource, Secrets, load};

/// How long after its last byte an effect can still appear at the other end, where a rule does not say.
pub const VISIBLE_WITHIN_DEFAULT: Duration = Duration::from_secs(10);

/// What the operator allows. Valid as a whole: every secret that a rule names exists, and no two rules of an app could
/// match one request.
#[derive(Debug, Clone)]
pub struct Policy {
    file_name: String,
    limits: LimitSet,
    apps: BTreeMap<String, App>,
    secrets: BTreeMap<String, SecretSource>,
}

#[derive(Debug, Clone)]
struct App {
    /// `None` where the file does not say: pure only.
    classes: Option<Vec<EffectClass>>,
    limits: LimitSet,
    rules: Vec<Arc<HttpRule>>,
}

/// Limits and where each was set.
#[derive(Debug, Clone, Default)]
struct LimitSet {
    limits: Limits,
    /// Lines of the policy file, from 1; a limit that is not here has its default.
    lines: BTreeMap<Limit, usize>,
}

/// How much of everything one attempt may use. None is zero.
///
/// `Default` is what holds where the policy says nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// All linear memories and tables of the instance together, in bytes.
    pub memory_bytes: u64,
    /// Time of the guest on the processor, host waits not counted.
    pub cpu: Duration,
    /// Time of the attempt, host waits counted.
    pub wall: Duration,
    /// The body of one outgoing request, in bytes.
    pub request_bytes: u64,
    /// The body of one response, in bytes.
    pub response_bytes: u64,
    /// What the guest returns, in bytes.
    pub output_bytes: u64,
    /// What is kept of the guest's log and standard error, in bytes.
    pub logs_bytes: u64,
    /// Outgoing requests of one attempt.
    pub requests: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory_bytes: 64 << 20,
            cpu: Duration::from_millis(500),
            wall: Duration::from_secs(30),
            request_bytes: 1 << 20,
            response_bytes: 8 << 20,
            output_bytes: 1 << 20,
            logs_bytes: 64 << 10,
            requests: 100,
        }
    }
}

/// One of the limits, by its key in the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit {
    /// [`Limits::memory_bytes`].
    Memory,
    /// [`Limits::cpu`].
    Cpu,
    /// [`Limits::wall`].
    Wall,
    /// [`Limits::request_bytes`].
    Request,
    /// [`Limits::response_bytes`].
    Response,
    /// [`Limits::output_bytes`].
    Output,
    /// [`Limits::logs_bytes`].
    Logs,
    /// [`Limits::requests`].
    Requests,
}

impl Limit {
    /// Every limit, in the order of the design.
    pub const ALL: [Limit; 8] = [
        Limit::Memory,
        Limit::Cpu,
        Limit::Wall,
        Limit::Request,
        Limit::Response,
        Limit::Output,
        Limit::Logs,
        Limit::Requests,
    ];

    /// Its key in the policy.
    pub const fn key(self) -> &'static str {
        match self {
            Limit::Memory => "memory",
            Limit::Cpu => "cpu",
            Limit::Wall => "wall",
            Limit::Request => "request",
            Limit::Response => "response",
            Limit::Output => "output",
            Limit::Logs => "logs",
            Limit::Requests => "requests",
        }
    }
}

/// What one `[[app.NAME.http]]` of the policy grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRule {
    /// Which URLs.
    pub pattern: UrlPattern,
    /// Which methods. Never empty.
    pub methods: Vec<Method>,
    /// What the host adds to prove who is asking; `None` for nothing.
    pub auth: Option<Auth>,
    /// What each effectful request draws from the allowance; empty for nothing. No amount is zero.
    pub meter: Vec<ChargeItem>,
    /// What happens where the allowance does not suffice.
    pub overdraw: Overdraw,
    /// That the other end honours idempotency keys, and how; `None` where the operator does not vouch for it.
    pub idempotency: Option<Idempotency>,
    /// How long after the host's last byte an effect can still appear at the other end; `None` for
    /// [`VISIBLE_WITHIN_DEFAULT`]. Zero is a statement: at once.
    pub visible_within: Option<Duration>,
    /// Which actions of the app; `None` for all of them. Never empty.
    pub actions: Option<Vec<String>>,
    /// Whether such a request changes nothing at the other end. A safe rule has no meter, idempotency or
    /// `visible_within`.
    pub safe: bool,
    /// Ranges that are not publicly routable and may be dialled all the same; empty for none. It takes nothing away
    /// from the addresses that are publicly routable.
    pub addresses: Vec<IpNet>,
    /// The line of the policy file on which it begins, from 1.
    pub line: usize,
}

/// What a metered request does where the plan's allowance does not suffice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Overdraw {
    /// It is refused before it leaves.
    #[default]
    Refuse,
    /// What is missing is charged then and there, before it leaves.
    Charge,
}

/// How an endpoint recognises a repeated request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// The header that carries the key.
    pub header: HeaderName,
    /// For how long the other end remembers a key; `None` for always. Never zero.
    pub window: Option<Duration>,
}

impl HttpRule {
    /// Whether this rule is for `action`.
    pub fn is_for(&self, action: &str) -> bool {
        self.actions.as_ref().is_none_or(|actions| actions.iter().any(|name| name == action))
    }

    /// Whether this rule stands for requests like this one.
    pub fn matches(&self, method: &Method, url: &Url) -> bool {
        self.methods.contains(method) && self.pattern.matches(url)
    }
}

/// What the policy says about one action.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The app.
    pub app: String,
    /// The action, without its app.
    pub action: String,
    /// Its limits.
    pub limits: Limits,
    /// Its rules, in the order of the file. No request matches two of them.
    pub http: Vec<Arc<HttpRule>>,
    limit_lines: BTreeMap<Limit, usize>,
}

impl Grant {
    /// The rule for a request; `None` where nothing grants it.
    pub fn rule_for(&self, method: &Method, url: &Url) -> Option<&Arc<HttpRule>> {
        self.http.iter().find(|rule| rule.matches(method, url))
    }

    /// How long after the host's last byte an effect of this action can still appear: the longest among its effectful
    /// rules, each of which has [`VISIBLE_WITHIN_DEFAULT`] where it does not say; that also where there is none.
    pub fn visible_within(&self) -> Duration {
        let effectful = self.http.iter().filter(|rule| !rule.safe);
        effectful
            .map(|rule| rule.visible_within.unwrap_or(VISIBLE_WITHIN_DEFAULT))
            .max()
            .unwrap_or(VISIBLE_WITHIN_DEFAULT)
    }

    /// For how long every idempotency key of this action holds: the shortest window among its effectful rules; `None`
    /// where none states a window.
    pub fn window(&self) -> Option<Duration> {
        let effectful = self.http.iter().filter(|rule| !rule.safe);
        effectful.filter_map(|rule| rule.idempotency.as_ref()?.window).min()
    }

    /// The line of the policy file that sets a limit, from 1; `None` where it is the default.
    pub fn limit_line(&self, limit: Limit) -> Option<usize> {
        self.limit_lines.get(&limit).copied()
    }
}

impl Policy {
    /// Reads a policy from the text of its file. `name` is the file's name, for the errors.
    ///
    /// # Errors
    /// Everything that is wrong, each with its place: TOML errors, and where there are none, unknown and missing keys,
    /// values that are none, and contradictions.
    ///
    /// ```
    /// use tollgate::policy::Policy;
    ///
    /// let policy = Policy::parse("policy.toml", r#"
    ///     version = 1
    ///     [[app.mail.http]]
    ///     url = "https://api.mail.example/v1/messages"
    ///     methods = ["POST"]
    /// "#)?;
    /// let grant = policy.grant("mail", "send");
    /// assert!(grant.rule_for(&http::Method::POST, &"https://api.mail.example/v1/messages".parse()?).is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse(name: &str, text: &str) -> Result<Policy, Report> {
        parse::policy(name, text)
    }

    /// The policy that is in force where there is no file: default limits, pure actions, nothing to reach.
    pub fn deny_all() -> Policy {
        Policy {
            file_name: "(no policy file)".to_owned(),
            limits: LimitSet::default(),
            apps: BTreeMap::new(),
            secrets: BTreeMap::new(),
        }
    }

    /// The name under which the policy was read.
    pub fn file_name(&self) -> &str {
        &self.file_name
    }

    /// The apps that the policy names, in order.
    pub fn apps(&self) -> impl Iterator<Item = &str> {
        self.apps.keys().map(String::as_str)
    }

    /// Every rule of an app, in the order of the file.
    pub fn rules(&self, app: &str) -> impl Iterator<Item = &HttpRule> {
        self.apps.get(app).into_iter().flat_map(|app| app.rules.iter().map(Arc::as_ref))
    }

    /// The limits of an app; those for all where the policy does not name it.
    pub fn limits(&self, app: &str) -> &Limits {
        self.apps.get(app).map_or(&self.limits.limits, |app| &app.limits.limits)
    }

    /// Whether an app may have actions of a class. An app whose classes are not stated may have pure ones; where they
    /// are stated, it may have these and no others.
    pub fn allows_class(&self, app: &str, class: EffectClass) -> bool {
        match self.apps.get(app).and_then(|app| app.classes.as_ref()) {
            Some(classes) => classes.contains(&class),
            None => class == EffectClass::Pure,
        }
    }

    /// What is granted to an action. One that the policy does not name gets the limits for all, and nothing to reach.
    pub fn grant(&self, app: &str, action: &str) -> Grant {
        let (set, rules) = match self.apps.get(app) {
            Some(app) => (&app.limits, &*app.rules),
            None => (&self.limits, &[][..]),
        };
        Grant {
            app: app.to_owned(),
            action: action.to_owned(),
            limits: set.limits.clone(),
            http: rules.iter().filter(|rule| rule.is_for(action)).cloned().collect(),
            limit_lines: set.lines.clone(),
        }
    }

    /// Where a secret is kept; `None` where the policy does not name it, which no rule of a valid policy does.
    pub fn secret_source(&self, name: &str) -> Option<&SecretSource> {
        self.secrets.get(name)
    }

    /// Every secret that the policy names, in order.
    pub fn secrets(&self) -> impl Iterator<Item = (&str, &SecretSource)> {
        self.secrets.iter().map(|(name, source)| (name.as_str(), source))
    }

    /// The lines of the policy with which `app` may have actions of `class` too, all that it may have now included.
    pub fn missing_class(&self, app: &str, class: EffectClass) -> String {
        let classes: Vec<EffectClass> =
            EffectClass::ALL.into_iter().filter(|known| *known == class || self.allows_class(app, *known)).collect();
        remedy::classes(app, &classes)
    }
}

/// Whether a text can name an app or an action: a lower-case letter, then up to 62 lower-case letters, digits and `-`.
pub fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.as_bytes()[0].is_ascii_lowercase() && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"version = 1

[limits]
wall = "20s"

[app.mail]
classes = ["ambiguous", "idempotent"]
limits = { cpu = "2s", wall = "40s" }

[[app.mail.http]]
actions = ["send"]
url = "https://api.mail.example/v1/messages"
methods = ["POST"]
idempotency = { header = "Idempotency-Key", window = "24h" }
visible_within = "30s"

[[app.mail.http]]
actions = ["send", "cancel"]
url = "https://api.mail.example/v1/messages/*"
methods = ["DELETE"]
idempotency = { header = "Idempotency-Key", window = "1h" }
visible_within = "5s"

[[app.mail.http]]
url = "https://api.mail.example/v1/messages/*"
methods = ["GET"]
safe = true

[app.quick]
classes = ["ambiguous"]

[[app.quick.http]]
actions = ["at-once"]
url = "https://quick.example/"
methods = ["POST"]
visible_within = "0s"

[[app.quick.http]]
actions = ["unsaid"]
url = "https://quick.example/"
methods = ["POST"]
"#;

    fn policy() -> Policy {
        Policy::parse("policy.toml", TEXT).unwrap()
    }

    #[track_caller]
    fn check_rule(action: &str, method: Method, url: &str, line: Option<usize>) {
        let grant = policy().grant("mail", action);
        let found = grant.rule_for(&method, &url.parse().unwrap()).map(|rule| rule.line);
        assert_eq!(found, line, "{action}: {method} {url}");
    }

    #[test]
    fn a_request_finds_the_rule_of_its_action_method_and_url() {
        let messages = "https://api.mail.example/v1/messages";
        let message = "https://api.mail.example/v1/messages/17";
        check_rule("send", Method::POST, messages, Some(10));
        check_rule("send", Method::POST, &format!("{messages}?dry=1"), Some(10));
        check_rule("cancel", Method::POST, messages, None);
        check_rule("send", Method::PUT, messages, None);
        check_rule("send", Method::POST, message, None);
        check_rule("send", Method::DELETE, message, Some(17));
        check_rule("cancel", Method::DELETE, message, Some(17));
        check_rule("other", Method::DELETE, message, None);
        check_rule("other", Method::GET, message, Some(24));
        check_rule("send", Method::GET, "http://api.mail.example/v1/messages/17", None);
    }

    #[test]
    fn classes_say_no() {
        let policy = policy();
        for (app, allowed) in [
            ("mail", &[EffectClass::Idempotent, EffectClass::Ambiguous][..]),
            ("quick", &[EffectClass::Ambiguous]),
            ("unknown", &[EffectClass::Pure]),
        ] {
            for class in EffectClass::ALL {
                assert_eq!(policy.allows_class(app, class), allowed.contains(&class), "{app}: {class:?}");
            }
        }
        assert!(Policy::deny_all().allows_class("mail", EffectClass::Pure));
        assert!(!Policy::deny_all().allows_class("mail", EffectClass::Transactional));
    }

    #[test]
    fn an_app_s_limits_go_over_those_for_all_and_these_over_the_defaults() {
        let policy = policy();
        let (mail, other) = (policy.grant("mail", "send"), policy.grant("other", "send"));
        let seconds = Duration::from_secs;
        assert_eq!(mail.limits, Limits { cpu: seconds(2), wall: seconds(40), ..Limits::default() });
        assert_eq!(other.limits, Limits { wall: seconds(20), ..Limits::default() });
        assert_eq!(Policy::deny_all().grant("mail", "send").limits, Limits::default());
        let lines = |grant: &Grant| [Limit::Memory, Limit::Cpu, Limit::Wall].map(|limit| grant.limit_line(limit));
        assert_eq!(lines(&mail), [None, Some(8), Some(8)]);
        assert_eq!(lines(&other), [None, None, Some(4)]);
    }

    #[track_caller]
    fn check_times(app: &str, action: &str, visible_within: u64, window: Option<u64>) {
        let grant = policy().grant(app, action);
        let found = (grant.visible_within().as_secs(), grant.window().map(|window| window.as_secs()));
        assert_eq!(found, (visible_within, window), "{app}/{action}");
    }

    // R8 and R15: the longest time to appear and the shortest window hold for the whole action.
    #[test]
    fn the_most_careful_time_among_the_effectful_rules_holds() {
        check_times("mail", "send", 30, Some(3600));
        check_times("mail", "cancel", 5, Some(3600));
        check_times("mail", "other", 10, None);
        check_times("quick", "at-once", 0, None);
        check_times("quick", "unsaid", 10, None);
        check_times("unknown", "send", 10, None);
    }

    #[test]
    fn nothing_is_reachable_without_a_rule() {
        let request = ("https://api.mail.example/v1/messages".parse().unwrap(), Method::POST);
        for policy in [Policy::deny_all(), Policy::parse("p", "version = 1").unwrap(), policy()] {
            assert!(policy.grant("billing", "send").rule_for(&request.1, &request.0).is_none());
        }
        assert_eq!(policy().apps().collect::<Vec<_>>(), ["mail", "quick"]);
    }

    #[test]
    fn names_follow_their_grammar() {
        for name in ["a", "mail", "a-1", &"a".repeat(63)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "Mail", "1a", "-a", "a_b", "a.b", "ä", "a/b", &"a".repeat(64)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
