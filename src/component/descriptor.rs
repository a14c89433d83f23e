//! What a component says of its actions, and whether that is acceptable.
//!
//! Pure: it reads no policy and calls no guest.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

use crate::effect::EffectClass;
use crate::egress::pattern::UrlPattern;
use crate::json;
use crate::policy::Limits;
use crate::schema::{Prepared, SchemaProblem};

/// The largest schema that a descriptor may carry.
const SCHEMA_BYTES_MAX: usize = 256 << 10;

/// The name of an action: `app/action`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ActionName {
    /// The owner.
    pub app: String,
    /// The action within the app's component.
    pub action: String,
}

impl FromStr for ActionName {
    type Err = String;

    fn from_str(text: &str) -> Result<ActionName, String> {
        match text.split_once('/') {
            Some((app, action)) if is_name(app) && is_name(action) => {
                Ok(ActionName { app: app.to_owned(), action: action.to_owned() })
            }
            _ => Err(format!("`{text}` is not the name of an action; write it like mail/send")),
        }
    }
}

impl TryFrom<String> for ActionName {
    type Error = String;

    fn try_from(text: String) -> Result<ActionName, String> {
        text.parse()
    }
}

impl From<ActionName> for String {
    fn from(name: ActionName) -> String {
        name.to_string()
    }
}

impl fmt::Display for ActionName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.app, self.action)
    }
}

/// Whether `text` names an app or an action: lower case letters, digits and `-`, from a letter, at most 63.
pub(crate) fn is_name(text: &str) -> bool {
    text.len() <= 63
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Which exports mean something for an action; `run` always does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hooks {
    /// `authorize` is asked before every attempt.
    pub authorize: bool,
    /// `plan` answers for dry run, preflight and charge.
    pub plan: bool,
    /// `reconcile` can be asked what became of an effect.
    pub reconcile: bool,
}

/// A kind of request that an action says it makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpNeed {
    /// A URL pattern as in the policy.
    pub url: String,
    /// Methods.
    pub methods: Vec<String>,
    /// Whether it changes nothing at the other end.
    pub safe: bool,
}

impl HttpNeed {
    /// Whether the action asked for such a request. A policy can grant less than was asked for, and never more.
    pub fn covers(&self, method: &http::Method, url: &Url) -> bool {
        let methods = self.methods.iter().any(|asked| asked == method.as_str());
        let Ok((pattern, any_host)) = self.pattern() else { return false };
        if !any_host {
            return methods && pattern.matches(url);
        }
        let mut url = url.clone();
        // Only a URL that cannot be a base has no host to replace, and no pattern matches one.
        let replaced = url.set_host(Some(ANY_HOST)).is_ok() && url.set_port(None).is_ok();
        methods && replaced && pattern.matches(&url)
    }

    /// The pattern, and whether it asked for any host and port: a bare `*`, which no policy may say.
    fn pattern(&self) -> Result<(UrlPattern, bool), String> {
        for scheme in ["http://", "https://"] {
            if let Some(path) = self.url.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("*/")) {
                return Ok((UrlPattern::parse(&format!("{scheme}{ANY_HOST}/{path}"))?, true));
            }
        }
        Ok((UrlPattern::parse(&self.url)?, false))
    }
}

/// Stands for whatever host a need with a bare `*` is asked about; reserved by RFC 2606.
const ANY_HOST: &str = "any.invalid";

/// Limits that an action asks for; `None` takes the policy's. The smaller of the two holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsNeed {
    /// All linear memories and tables together, in bytes.
    pub memory_bytes: Option<u64>,
    /// Time on the processor, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// Everything, in milliseconds.
    pub wall_ms: Option<u64>,
    /// Requests per attempt.
    pub requests: Option<u32>,
}

impl LimitsNeed {
    /// The limits that are zero, in words.
    fn zeros(&self) -> impl Iterator<Item = &'static str> {
        let zeros = [
            (self.memory_bytes == Some(0), "memory"),
            (self.cpu_ms == Some(0), "processor time"),
            (self.wall_ms == Some(0), "elapsed time"),
        ];
        // No requests at all is a limit that makes sense.
        zeros.into_iter().filter_map(|(zero, name)| zero.then_some(name))
    }

    /// The smaller of what the policy grants and what the action asks for.
    pub fn within(&self, granted: &Limits) -> Limits {
        let millis =
            |need: Option<u64>, granted: Duration| need.map_or(granted, |ms| Duration::from_millis(ms).min(granted));
        Limits {
            memory_bytes: self.memory_bytes.map_or(granted.memory_bytes, |need| need.min(granted.memory_bytes)),
            cpu: millis(self.cpu_ms, granted.cpu),
            wall: millis(self.wall_ms, granted.wall),
            requests: self.requests.map_or(granted.requests, |need| need.min(granted.requests)),
            ..granted.clone()
        }
    }
}

/// One action, as its component describes it. The schemas are texts until [`check_descriptors`] has read them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// The `send` of `mail/send`.
    pub name: String,
    /// For people.
    pub title: String,
    /// For people.
    pub description: String,
    /// What a crash in the middle means.
    pub effect_class: EffectClass,
    /// Which exports mean something.
    pub hooks: Hooks,
    /// JSON Schema of its configuration.
    pub config_schema: Value,
    /// JSON Schema of its output; `None`: any JSON.
    pub output_schema: Option<Value>,
    /// What it asks to reach.
    pub http: Vec<HttpNeed>,
    /// The budget dimensions that its plan may name.
    pub meters: Vec<String>,
    /// The limits it asks for.
    pub limits: LimitsNeed,
    /// Its schemas, made ready when they are first used; `default()` in a new one.
    #[serde(skip)]
    pub prepared: PreparedSchemas,
}

/// The schemas of one action, made ready. Clones share them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PreparedSchemas {
    config: Prepared,
    output: Prepared,
}

impl Descriptor {
    /// Whether `config` fits its config schema.
    ///
    /// # Errors
    /// As [`crate::schema::validate`].
    pub fn check_config(&self, config: &Value) -> Result<(), Vec<SchemaProblem>> {
        self.prepared.config.validate(&self.config_schema, config)
    }

    /// Whether `output` fits its output schema, if it has one.
    ///
    /// # Errors
    /// As [`crate::schema::validate`].
    pub fn check_output(&self, output: &Value) -> Result<(), Vec<SchemaProblem>> {
        self.output_schema.as_ref().map_or(Ok(()), |schema| self.prepared.output.validate(schema, output))
    }
}

/// Everything that is wrong with a component, at once. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct Refusal(pub Vec<String>);

/// Checks what a component says of its actions: names, schemas, and that an ambiguous action can be reconciled.
///
/// `schemas` holds, for each descriptor, the texts of its config schema and output schema; they replace the nulls that the
/// descriptors carry until here.
///
/// # Errors
/// [`Refusal`] naming every fault of every action; for the guest's author.
pub fn check_descriptors(described: Vec<(Descriptor, String, Option<String>)>) -> Result<Vec<Descriptor>, Refusal> {
    let mut faults = Vec::new();
    if described.is_empty() {
        faults.push("`describe` names no action; a component carries at least one".to_owned());
    }
    let mut checked: Vec<Descriptor> = Vec::with_capacity(described.len());
    for (mut descriptor, config_schema, output_schema) in described {
        let name = descriptor.name.clone();
        let mut fault = |text: String| faults.push(format!("action `{name}`: {text}"));
        if !is_name(&name) {
            fault("its name must be lower case letters, digits and `-`, starting with a letter, at most 63".to_owned());
        }
        if checked.iter().any(|earlier| earlier.name == name) {
            fault("`describe` names it twice".to_owned());
        }
        if descriptor.effect_class == EffectClass::Ambiguous && !descriptor.hooks.reconcile {
            fault(
                "it is ambiguous and has no `reconcile`: after a crash nobody could find out what became of its effect. \
                 Export one and set the hook, or declare another class"
                    .to_owned(),
            );
        }
        match read_schema(&config_schema) {
            Ok(schema) => descriptor.config_schema = schema,
            Err(error) => fault(format!("its config schema {error}")),
        }
        match output_schema.as_deref().map(read_schema).transpose() {
            Ok(schema) => descriptor.output_schema = schema,
            Err(error) => fault(format!("its output schema {error}")),
        }
        for need in &descriptor.http {
            if let Err(error) = need.pattern() {
                fault(format!("it asks for the URL `{}`, which {error}", need.url));
            }
            let is_method =
                |method: &String| !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
            if need.methods.is_empty() || !need.methods.iter().all(is_method) {
                fault(format!(
                    "it asks for `{}` with the methods {:?}; name at least one, in capitals: \"GET\", \"POST\"",
                    need.url, need.methods
                ));
            }
        }
        for (index, meter) in descriptor.meters.iter().enumerate() {
            if !crate::budget::is_dimension(meter) {
                fault(format!("its meter `{meter}` is no dimension: 1 to 64 letters, digits, `_`, `-` or `.`"));
            } else if descriptor.meters[..index].contains(meter) {
                fault(format!("it lists the meter `{meter}` twice"));
            }
        }
        for name in descriptor.limits.zeros() {
            fault(format!("its limit on {name} is 0, under which nothing runs; leave it out to take the policy's"));
        }
        checked.push(descriptor);
    }
    if faults.is_empty() { Ok(checked) } else { Err(Refusal(faults)) }
}

fn read_schema(text: &str) -> Result<Value, String> {
    let schema = json::parse(text, SCHEMA_BYTES_MAX).map_err(|error| format!("is not JSON: {error}"))?;
    crate::schema::check_schema(&schema).map_err(|error| format!("does not compile: {error}"))?;
    Ok(schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(name: &str, class: EffectClass, reconcile: bool) -> Descriptor {
        Descriptor {
            name: name.to_owned(),
            title: String::new(),
            description: String::new(),
            effect_class: class,
            hooks: Hooks { reconcile, ..Hooks::default() },
            config_schema: Value::Null,
            output_schema: None,
            http: Vec::new(),
            meters: Vec::new(),
            limits: LimitsNeed::default(),
            prepared: PreparedSchemas::default(),
        }
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let described = vec![
            (descriptor("Send", EffectClass::Ambiguous, false), "{}".to_owned(), None),
            (descriptor("send", EffectClass::Pure, false), "{".to_owned(), Some("{\"type\":7}".to_owned())),
            (descriptor("send", EffectClass::Pure, false), "{}".to_owned(), None),
        ];
        let Err(Refusal(faults)) = check_descriptors(described) else { panic!("a refusal was expected") };
        assert_eq!(faults.len(), 5, "{faults:#?}");
        for (fault, expected) in
            faults.iter().zip(["lower case", "no `reconcile`", "config schema is not JSON", "output schema", "twice"])
        {
            assert!(fault.contains(expected), "{fault} should mention {expected}");
        }
    }

    #[test]
    fn what_cannot_work_is_refused_before_anybody_runs_it() {
        let broken = Descriptor {
            http: vec![
                HttpNeed { url: "https://a.example/**".to_owned(), methods: Vec::new(), safe: false },
                HttpNeed { url: "https://b.example/**".to_owned(), methods: vec!["post".to_owned()], safe: false },
            ],
            meters: vec!["bad meter!".to_owned(), "emails".to_owned(), "emails".to_owned()],
            limits: LimitsNeed { memory_bytes: Some(0), requests: Some(0), ..LimitsNeed::default() },
            ..descriptor("send", EffectClass::Pure, false)
        };
        let Err(Refusal(faults)) = check_descriptors(vec![(broken, "{}".to_owned(), None)]) else {
            panic!("a refusal was expected")
        };
        assert_eq!(faults.len(), 5, "{faults:#?}");
        for (fault, expected) in
            faults.iter().zip(["a.example", "\"post\"", "bad meter!", "`emails` twice", "memory is 0"])
        {
            assert!(fault.contains(expected), "{fault} should mention {expected}");
        }
    }

    #[test]
    fn a_need_covers_what_it_asks_for_and_nothing_else() {
        let need = |url: &str| HttpNeed { url: url.to_owned(), methods: vec!["POST".to_owned()], safe: false };
        #[track_caller]
        fn check(need: &HttpNeed, method: http::Method, url: &str, expected: bool) {
            let url = Url::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(need.covers(&method, &url), expected, "{need:?} {method} {url}");
        }
        let any = need("http://*/v1/**");
        check(&any, http::Method::POST, "http://127.0.0.1:8080/v1/messages", true);
        check(&any, http::Method::GET, "http://127.0.0.1:8080/v1/messages", false);
        check(&any, http::Method::POST, "https://127.0.0.1:8080/v1/messages", false);
        check(&any, http::Method::POST, "http://mail.example/v2", false);
        let one = need("https://api.mail.example/v1/messages");
        check(&one, http::Method::POST, "https://api.mail.example/v1/messages?x=1", true);
        check(&one, http::Method::POST, "https://other.mail.example/v1/messages", false);
    }

    #[test]
    fn the_smaller_limit_holds() {
        let granted = Limits::default();
        let need = LimitsNeed { memory_bytes: Some(1 << 40), cpu_ms: Some(1), wall_ms: None, requests: Some(3) };
        let limits = need.within(&granted);
        assert_eq!(limits.memory_bytes, granted.memory_bytes);
        assert_eq!(limits.cpu, Duration::from_millis(1));
        assert_eq!(limits.wall, granted.wall);
        assert_eq!(limits.requests, 3);
    }
}
