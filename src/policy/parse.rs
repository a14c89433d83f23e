//! From the text of a policy file to a valid policy, or to everything that is wrong with it.
//!
//! The file is read section by section, and every section to its end, whatever is wrong in it; a rule that cannot be
//! read is left out of the checks between rules, so that one mistake is reported once. Nothing here opens a file or
//! looks at the value of a secret.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method, header};
use ipnet::IpNet;
use toml::de::{DeTable, DeValue};

use super::reader::{Reader, Value, listed, nearest};
use super::{App, Auth, HttpRule, Idempotency, Limit, LimitSet, Overdraw, Policy, SecretSource, is_name, units};
use crate::budget::{self, Amount, ChargeItem};
use crate::effect::EffectClass;
use crate::egress::address;
use crate::egress::pattern::UrlPattern;
use crate::source::{Problem, Report};

/// The longest policy file that is read, in bytes.
const POLICY_BYTES_MAX: usize = 1 << 20;

/// The format that this version reads.
const VERSION: u32 = 1;

const APP_KEYS: &[&str] = &["classes", "limits", "http"];
const APP_KEYS_UNENFORCED: &[&str] = &["concurrency", "statements"];
const RULE_KEYS: &[&str] =
    &["actions", "url", "methods", "auth", "meter", "overdraw", "idempotency", "visible_within", "safe", "addresses"];
const RULE_KEYS_UNENFORCED: &[&str] = &["rate", "mode"];
/// They say something about an effect, and a safe request has none.
const EFFECTFUL_KEYS: &[&str] = &["meter", "overdraw", "idempotency", "visible_within"];

/// Headers by which HTTP itself works. The host's client writes them; a rule that set one would break the connection.
const CONNECTION_HEADERS: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Secrets by name. `None` for one whose source could not be read, so that a rule that names it is not wrong as well.
type SecretNames = BTreeMap<String, Option<SecretSource>>;

pub(super) fn policy(name: &str, text: &str) -> Result<Policy, Report> {
    if text.len() > POLICY_BYTES_MAX {
        let problem = Problem::whole(format!("a policy is at most {POLICY_BYTES_MAX} bytes long"));
        return Err(Report::one(name, "", problem));
    }
    let (root, errors) = DeTable::parse_recoverable(text);
    // A tree with holes in it would only give problems that are not there, so these are reported by themselves.
    let mut problems: Vec<Problem> = errors
        .iter()
        .map(|error| match error.span() {
            Some(span) => Problem::at(span, error.message()),
            None => Problem::whole(error.message()),
        })
        .collect();
    // What is nested is closed level by level, each with the same complaint.
    problems.dedup();
    Report::unless_empty(name, text, problems)?;

    let mut reader = Reader::new(text);
    let root = root.get_ref();
    reader.keys(root, "a policy", &["version", "limits", "app", "secrets"], &[]);
    version(&mut reader, root);
    let secrets = root.get("secrets").map(|value| secrets(&mut reader, value)).unwrap_or_default();
    let mut limits = LimitSet::default();
    if let Some(value) = root.get("limits") {
        read_limits(&mut reader, value, "`limits`", &mut limits);
    }
    let apps = root.get("app").map(|value| apps(&mut reader, value, &limits, &secrets)).unwrap_or_default();

    Report::unless_empty(name, text, reader.into_problems())?;
    let secrets = secrets.into_iter().filter_map(|(name, source)| Some((name, source?))).collect();
    Ok(Policy { file_name: name.to_owned(), limits, apps, secrets })
}

fn version(reader: &mut Reader<'_>, root: &DeTable<'_>) {
    let Some(value) = root.get("version") else {
        let problem = Problem::whole("the policy does not say its `version`");
        return reader.note(problem.help(format!("write `version = {VERSION}` on its first line")));
    };
    if reader.count(value, "`version`").is_some_and(|version| version != VERSION) {
        reader.note(Problem::at(value.span(), format!("this version of tollgate reads policies of version {VERSION}")));
    }
}

fn secrets(reader: &mut Reader<'_>, value: &Value<'_>) -> SecretNames {
    let mut secrets = SecretNames::new();
    let Some(table) = reader.table(value, "`secrets`") else { return secrets };
    for (key, value) in table.iter() {
        let name: &str = key.get_ref();
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if !(1..=64).contains(&name.len()) || !name.bytes().all(allowed) {
            reader.note(
                Problem::at(key.span(), format!("{name:?} does not name a secret"))
                    .help("write 1 to 64 of A-Z, a-z, 0-9, `_` and `-`"),
            );
        }
        secrets.insert(name.to_owned(), secret_source(reader, value, name));
    }
    secrets
}

fn secret_source(reader: &mut Reader<'_>, value: &Value<'_>, name: &str) -> Option<SecretSource> {
    let what = format!("secret `{name}`");
    if value.get_ref().is_str() {
        // Somebody may have put the secret itself here: say where it belongs, and do not repeat it.
        let problem = Problem::at(value.span(), format!("{what} must say where it is kept, not what it is"));
        reader.note(problem.help(r#"write { env = "VARIABLE" } or { file = "/path" }"#));
        return None;
    }
    let table = reader.table(value, &what)?;
    reader.keys(table, &what, &["env", "file"], &[]);
    match (table.get("env"), table.get("file")) {
        (Some(env), None) => reader.parsed(env, "`env`", |variable| match variable {
            "" => Err("a variable has a name"),
            name if name.contains(['=', '\0']) => Err("the name of a variable has no `=` and no NUL"),
            name => Ok(SecretSource::Env(name.to_owned())),
        }),
        (None, Some(file)) => reader.parsed(file, "`file`", |path| match path {
            "" => Err("a file has a name"),
            path if path.contains('\0') => Err("the name of a file has no NUL"),
            path => Ok(SecretSource::File(PathBuf::from(path))),
        }),
        (both, _) => {
            let number = if both.is_some() { "two places" } else { "no place" };
            let problem = Problem::at(value.span(), format!("{what} names {number} where it is kept"));
            reader.note(problem.help(r#"write { env = "VARIABLE" } or { file = "/path" }"#));
            None
        }
    }
}

fn read_limits(reader: &mut Reader<'_>, value: &Value<'_>, what: &str, set: &mut LimitSet) {
    let Some(table) = reader.table(value, what) else { return };
    reader.keys(table, what, &Limit::ALL.map(Limit::key), &[]);
    let limits = &mut set.limits;
    for limit in Limit::ALL {
        let Some((key, value)) = table.get_key_value(limit.key()) else { continue };
        let what = format!("`{}`", limit.key());
        match limit {
            Limit::Memory => assign(&mut limits.memory_bytes, size(reader, value, &what)),
            Limit::Cpu => assign(&mut limits.cpu, positive_duration(reader, value, &what)),
            Limit::Wall => assign(&mut limits.wall, positive_duration(reader, value, &what)),
            Limit::Request => assign(&mut limits.request_bytes, size(reader, value, &what)),
            Limit::Response => assign(&mut limits.response_bytes, size(reader, value, &what)),
            Limit::Output => assign(&mut limits.output_bytes, size(reader, value, &what)),
            Limit::Logs => assign(&mut limits.logs_bytes, size(reader, value, &what)),
            Limit::Requests => assign(&mut limits.requests, reader.count(value, &what)),
        }
        set.lines.insert(limit, reader.line(&key.span()));
    }
}

fn assign<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

fn size(reader: &mut Reader<'_>, value: &Value<'_>, what: &str) -> Option<u64> {
    let bytes = reader.parsed(value, what, units::parse_size)?;
    not_zero(reader, value, what, bytes == 0).then_some(bytes)
}

fn positive_duration(reader: &mut Reader<'_>, value: &Value<'_>, what: &str) -> Option<Duration> {
    let duration = reader.parsed(value, what, units::parse_duration)?;
    not_zero(reader, value, what, duration.is_zero()).then_some(duration)
}

fn not_zero(reader: &mut Reader<'_>, value: &Value<'_>, what: &str, zero: bool) -> bool {
    if zero {
        reader.note(Problem::at(value.span(), format!("{what} is zero: it must be more")));
    }
    !zero
}

fn apps(reader: &mut Reader<'_>, value: &Value<'_>, limits: &LimitSet, secrets: &SecretNames) -> BTreeMap<String, App> {
    let mut apps = BTreeMap::new();
    let Some(table) = reader.table(value, "`app`") else { return apps };
    for (key, value) in table.iter() {
        let name: &str = key.get_ref();
        if !is_name(name) {
            reader.note(
                Problem::at(key.span(), format!("{name:?} does not name an app"))
                    .help("write a lower-case letter, then up to 62 lower-case letters, digits and `-`"),
            );
        }
        if let Some(table) = reader.table(value, &format!("app {name:?}")) {
            apps.insert(name.to_owned(), app(reader, name, table, limits, secrets));
        }
    }
    apps
}

fn app(reader: &mut Reader<'_>, name: &str, table: &DeTable<'_>, limits: &LimitSet, secrets: &SecretNames) -> App {
    reader.keys(table, "an app", APP_KEYS, APP_KEYS_UNENFORCED);
    let classes = table.get("classes").and_then(|value| {
        reader.texts(value, "`classes`", "leave it out for pure actions only", |reader, text, span| {
            let class = text.parse::<EffectClass>().ok();
            if class.is_none() {
                let known = EffectClass::ALL.map(EffectClass::as_str);
                let help = match nearest(text, &known) {
                    Some(known) => format!("did you mean \"{known}\"?"),
                    None => format!("the classes are {}", listed(&known)),
                };
                reader.note(Problem::at(span, format!("{text:?} is no effect class")).help(help));
            }
            class
        })
    });
    let mut limits = limits.clone();
    if let Some(value) = table.get("limits") {
        read_limits(reader, value, "`limits`", &mut limits);
    }
    let rules = table.get("http").map(|value| rules(reader, name, value, secrets)).unwrap_or_default();
    App { classes, limits, rules }
}

fn rules(reader: &mut Reader<'_>, app: &str, value: &Value<'_>, secrets: &SecretNames) -> Vec<Arc<HttpRule>> {
    if value.get_ref().is_table() {
        let problem = Problem::at(value.span(), "`http` is a list of rules");
        reader.note(problem.help(format!("write [[app.{app}.http]] with two brackets")));
        return Vec::new();
    }
    let mut rules: Vec<Arc<HttpRule>> = Vec::new();
    for element in reader.list(value, "`http`").unwrap_or_default() {
        let Some(table) = reader.table(element, "a rule") else { continue };
        let Some(rule) = rule(reader, element, table, secrets) else { continue };
        // The first is enough: a rule that is everybody's rival would otherwise fill the report.
        if let Some((earlier, method, action)) = rules.iter().find_map(|earlier| clash(earlier, &rule)) {
            let action = action.map(|action| format!(" of action `{action}`")).unwrap_or_default();
            let message = format!(
                "the rules of app `{app}` at lines {} and {} could both match one request: \
                 a {method}{action} to `{}` and to `{}`",
                earlier.line, rule.line, earlier.pattern, rule.pattern
            );
            let help = "tell them apart by url, methods or actions, or make them one rule (the query does not count)";
            reader.note(Problem::at(element.span(), message).help(help));
        }
        rules.push(Arc::new(rule));
    }
    rules
}

/// Whether one request could match both, and an example of its method and, where the rules name actions, its action.
fn clash<'r>(
    earlier: &'r Arc<HttpRule>,
    later: &'r HttpRule,
) -> Option<(&'r Arc<HttpRule>, &'r Method, Option<&'r String>)> {
    let method = earlier.methods.iter().find(|method| later.methods.contains(method))?;
    let action = match (&earlier.actions, &later.actions) {
        (None, None) => None,
        (Some(actions), None) | (None, Some(actions)) => actions.first(),
        (Some(earlier), Some(later)) => Some(earlier.iter().find(|action| later.contains(action))?),
    };
    earlier.pattern.overlaps(&later.pattern).then_some((earlier, method, action))
}

/// `None` where it cannot be told which requests the rule is for. Whatever else is wrong is noted, and left out.
fn rule(reader: &mut Reader<'_>, element: &Value<'_>, table: &DeTable<'_>, secrets: &SecretNames) -> Option<HttpRule> {
    reader.keys(table, "a rule", RULE_KEYS, RULE_KEYS_UNENFORCED);
    let safe = table.get("safe").and_then(|value| reader.flag(value, "`safe`")).unwrap_or(false);
    contradictions(reader, table, safe);

    let pattern = match table.get("url") {
        Some(value) => {
            reader.parsed(value, "`url`", |text| UrlPattern::parse(text).map_err(|error| format!("{text:?} {error}")))
        }
        None => missing(reader, element, "url", r#""https://api.example/v1/*""#),
    };
    let methods = match table.get("methods") {
        Some(value) => reader.texts(value, "`methods`", "a rule without methods grants nothing", method),
        None => missing(reader, element, "methods", r#"["GET"]"#),
    };
    let actions = table
        .get("actions")
        .map(|value| reader.texts(value, "`actions`", "leave it out for every action of the app", action));
    let auth = table.get("auth").and_then(|value| auth(reader, value, secrets));
    let meter = table.get("meter").map(|value| meter(reader, value)).unwrap_or_default();
    let overdraw = table.get("overdraw").and_then(|value| {
        reader.parsed(value, "`overdraw`", |text| match text {
            "refuse" => Ok(Overdraw::Refuse),
            "charge" => Ok(Overdraw::Charge),
            other => Err(format!("{other:?} is neither \"refuse\" nor \"charge\"")),
        })
    });
    let idempotency = table.get("idempotency").and_then(|value| idempotency(reader, value, auth.as_ref()));
    let visible_within =
        table.get("visible_within").and_then(|value| reader.parsed(value, "`visible_within`", units::parse_duration));
    let addresses = table
        .get("addresses")
        .and_then(|value| reader.texts(value, "`addresses`", "leave it out for public addresses only", range))
        .unwrap_or_default();

    Some(HttpRule {
        pattern: pattern?,
        methods: methods?,
        auth,
        meter,
        overdraw: overdraw.unwrap_or_default(),
        idempotency,
        visible_within,
        actions: match actions {
            Some(actions) => Some(actions?),
            None => None,
        },
        safe,
        addresses,
        line: reader.line(&element.span()),
    })
}

fn contradictions(reader: &mut Reader<'_>, table: &DeTable<'_>, safe: bool) {
    for name in EFFECTFUL_KEYS {
        if let (true, Some((key, _))) = (safe, table.get_key_value(*name)) {
            let problem = Problem::at(key.span(), format!("`{name}` contradicts `safe = true`"));
            reader.note(problem.help("a safe request changes nothing at the other end: take out one of the two"));
        }
    }
    if let (false, Some((key, _)), None) = (safe, table.get_key_value("overdraw"), table.get("meter")) {
        let problem = Problem::at(key.span(), "`overdraw` without `meter`: there is nothing to overdraw");
        reader.note(problem.help("add meter = { dimension = 1 }, or take `overdraw` out"));
    }
}

fn missing<T>(reader: &mut Reader<'_>, element: &Value<'_>, key: &str, example: &str) -> Option<T> {
    let problem = Problem::at(element.span(), format!("this rule has no `{key}`"));
    reader.note(problem.help(format!("add {key} = {example}")));
    None
}

/// Why no rule can grant a method, as a clause that follows it; `None` where one can.
pub(super) fn ungrantable(method: &str) -> Option<&'static str> {
    match method {
        "CONNECT" => Some("opens a tunnel, into which the host could not look"),
        "TRACE" => Some("is answered with the request itself and what the host added to it"),
        // A method is compared with its case: one in small letters is another one, and no server knows it.
        method if method.contains(|letter: char| letter.is_ascii_lowercase()) => Some("is not in capitals"),
        _ => None,
    }
}

fn method(reader: &mut Reader<'_>, text: &str, span: std::ops::Range<usize>) -> Option<Method> {
    let upper = text.to_ascii_uppercase();
    let problem = match (Method::from_bytes(text.as_bytes()), ungrantable(text)) {
        (Ok(method), None) => return Some(method),
        (Ok(_), Some(why)) if upper == text => Problem::at(span, format!("{text} cannot be granted: it {why}")),
        (Ok(_), Some(why)) => Problem::at(span, format!("{text:?} {why}")).help(format!("write \"{upper}\"")),
        (Err(_), _) => Problem::at(span, format!("{text:?} is not an HTTP method")),
    };
    reader.note(problem);
    None
}

fn action(reader: &mut Reader<'_>, text: &str, span: std::ops::Range<usize>) -> Option<String> {
    if is_name(text) {
        return Some(text.to_owned());
    }
    let help = match text.split_once('/') {
        Some((_, name)) if is_name(name) => format!("write \"{name}\": a rule is for the actions of its own app"),
        _ => "write a lower-case letter, then up to 62 lower-case letters, digits and `-`".to_owned(),
    };
    reader.note(Problem::at(span, format!("{text:?} does not name an action")).help(help));
    None
}

fn range(reader: &mut Reader<'_>, text: &str, span: std::ops::Range<usize>) -> Option<IpNet> {
    let problem = match text.parse::<IpNet>() {
        Ok(range) if range != range.trunc() => {
            let problem = Problem::at(span, format!("{text:?} has bits beyond its prefix"));
            problem.help(format!("write \"{}\"", range.trunc()))
        }
        Ok(range) if !address::opens(&range) => {
            // Whoever writes this probably wants to narrow the rule down, which it would not do.
            let problem = Problem::at(span, format!("{text:?} is public and reachable as it is"));
            problem.help("`addresses` only opens ranges that are refused otherwise: take it out")
        }
        Ok(range) => return Some(range),
        Err(_) => {
            let problem = Problem::at(span, format!("{text:?} is not a range of addresses"));
            match text.parse::<std::net::IpAddr>() {
                Ok(ip) => problem.help(format!("write \"{}\"", IpNet::from(ip))),
                Err(_) => problem.help("write it as \"127.0.0.0/8\" or \"fd00::/8\""),
            }
        }
    };
    reader.note(problem);
    None
}

fn auth(reader: &mut Reader<'_>, value: &Value<'_>, secrets: &SecretNames) -> Option<Auth> {
    let table = reader.table(value, "`auth`")?;
    reader.keys(table, "`auth`", &["bearer", "basic", "header"], &[]);
    match (table.get("bearer"), table.get("basic"), table.get("header")) {
        (Some(bearer), None, None) => Some(Auth::Bearer { secret: secret_name(reader, bearer, "`bearer`", secrets)? }),
        (None, Some(basic), None) => {
            let table = reader.table(basic, "`basic`")?;
            reader.keys(table, "`basic`", &["user", "password"], &[]);
            let user = match required(reader, basic, table, "`basic`", "user") {
                Some(user) => reader.parsed(user, "`user`", |user| {
                    // RFC 7617: the first colon ends the user name.
                    let wrong = user.contains(|character: char| character == ':' || character.is_control());
                    if wrong { Err("a user name has no colon and no control character") } else { Ok(user.to_owned()) }
                }),
                None => None,
            };
            let password = match required(reader, basic, table, "`basic`", "password") {
                Some(password) => secret_name(reader, password, "`password`", secrets),
                None => None,
            };
            Some(Auth::Basic { user: user?, password: password? })
        }
        (None, None, Some(header)) => {
            let table = reader.table(header, "`header`")?;
            reader.keys(table, "`header`", &["name", "value"], &[]);
            let name = match required(reader, header, table, "`header`", "name") {
                Some(name) => reader.parsed(name, "`name`", header_name),
                None => None,
            };
            let value = match required(reader, header, table, "`header`", "value") {
                Some(value) => secret_name(reader, value, "`value`", secrets),
                None => None,
            };
            Some(Auth::Header { name: name?, value: value? })
        }
        _ => {
            let problem = Problem::at(value.span(), "`auth` has exactly one of `bearer`, `basic` and `header`");
            reader.note(problem.help(
                "write { bearer = \"SECRET\" }, { basic = { user = \"NAME\", password = \"SECRET\" } } \
                 or { header = { name = \"X-Api-Key\", value = \"SECRET\" } }",
            ));
            None
        }
    }
}

fn required<'v, 'i>(
    reader: &mut Reader<'_>,
    value: &Value<'_>,
    table: &'v DeTable<'i>,
    owner: &str,
    key: &str,
) -> Option<&'v Value<'i>> {
    let found = table.get(key);
    if found.is_none() {
        reader.note(Problem::at(value.span(), format!("{owner} has no `{key}`")));
    }
    found
}

fn secret_name(reader: &mut Reader<'_>, value: &Value<'_>, what: &str, secrets: &SecretNames) -> Option<String> {
    let name = reader.text(value, what)?;
    if secrets.contains_key(name) {
        return Some(name.to_owned());
    }
    // The text is not repeated: it may be the secret itself, put in the wrong place.
    let problem = Problem::at(value.span(), format!("{what} names a secret that is not in [secrets]"));
    let known: Vec<&str> = secrets.keys().map(String::as_str).collect();
    reader.note(match nearest(name, &known) {
        Some(known) => problem.help(format!("did you mean `{known}`?")),
        None => problem.help("add it there by a name of your choice: NAME = { env = \"VARIABLE\" }"),
    });
    None
}

fn meter(reader: &mut Reader<'_>, value: &Value<'_>) -> Vec<ChargeItem> {
    let mut meter = Vec::new();
    let Some(table) = reader.table(value, "`meter`") else { return meter };
    if table.is_empty() {
        reader.note(Problem::at(value.span(), "`meter` names no dimension: leave it out to meter nothing"));
    }
    if table.len() > budget::DIMENSIONS_MAX {
        let message = format!("`meter` names more than {} dimensions", budget::DIMENSIONS_MAX);
        reader.note(Problem::at(value.span(), message));
    }
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in entries {
        let dimension: &str = key.get_ref();
        // The digits as they are written, never a float.
        let text = match value.get_ref() {
            DeValue::String(text) => &**text,
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
            DeValue::Float(float) => float.as_str(),
            _ => {
                let problem = Problem::at(value.span(), format!("the meter of {dimension:?} must be a decimal number"));
                reader.note(problem.help("write digits and at most one decimal point, such as 1 or 0.25"));
                continue;
            }
        };
        match budget::sum("`meter`", [(dimension, text)]) {
            Ok(items) if items.iter().any(|item| item.amount == Amount::ZERO) => {
                let message = format!("the meter of {dimension:?} is zero, which meters nothing: take it out");
                reader.note(Problem::at(value.span(), message));
            }
            Ok(items) => meter.extend(items),
            Err(error) => {
                let about_the_amount = matches!(error, budget::BudgetError::Amount { .. });
                let span = if about_the_amount { value.span() } else { key.span() };
                reader.note(Problem::at(span, error.to_string()));
            }
        }
    }
    meter
}

fn idempotency(reader: &mut Reader<'_>, value: &Value<'_>, auth: Option<&Auth>) -> Option<Idempotency> {
    let table = reader.table(value, "`idempotency`")?;
    reader.keys(table, "`idempotency`", &["header", "window"], &[]);
    let header = match required(reader, value, table, "`idempotency`", "header") {
        Some(value) => reader.parsed(value, "`header`", |text| {
            let header = header_name(text)?;
            // A key is no secret: it would replace what proves who is asking, or be redacted.
            if matches!(header, header::AUTHORIZATION | header::COOKIE | header::PROXY_AUTHORIZATION) {
                return Err(format!("{text:?} is a header for secrets, not for an idempotency key"));
            }
            match auth.is_some_and(|auth| auth.header_name() == header) {
                true => Err(format!("{text:?} is the header that `auth` sets")),
                false => Ok(header),
            }
        }),
        None => None,
    };
    let window = match table.get("window") {
        Some(value) => Some(positive_duration(reader, value, "`window`")?),
        None => None,
    };
    Some(Idempotency { header: header?, window })
}

fn header_name(text: &str) -> Result<HeaderName, String> {
    match HeaderName::from_bytes(text.as_bytes()) {
        Ok(name) if CONNECTION_HEADERS.contains(&name.as_str()) => {
            Err(format!("{text:?} is a header that the connection itself needs"))
        }
        Ok(name) => Ok(name),
        Err(_) => Err(format!("{text:?} is not the name of a header")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::Limits;

    /// The policy has exactly these problems, in this order: `line:column: message`, of which the beginning is enough.
    #[track_caller]
    fn check_problems(text: &str, expected: &[&str]) {
        let found = match Policy::parse("p", text) {
            Ok(_) => Vec::new(),
            Err(report) => {
                let places = report.places().map(|place| place.unwrap_or_default());
                places
                    .zip(report.problems())
                    .map(|((line, column), problem)| format!("{line}:{column}: {}", problem.message))
                    .collect()
            }
        };
        let fits =
            found.len() == expected.len() && found.iter().zip(expected).all(|(found, start)| found.starts_with(start));
        assert!(fits, "in\n{text}\nfound {found:#?}\nexpected {expected:#?}");
    }

    /// As [`check_problems`], for the lines of one rule, the first of which is line 6 of the file.
    #[track_caller]
    fn check_rule_problems(lines: &str, expected: &[&str]) {
        check_problems(&format!("{RULE}{lines}\n"), expected);
    }

    #[track_caller]
    fn check_help(lines: &str, expected: &str) {
        let report = Policy::parse("p", &format!("{RULE}{lines}\n")).unwrap_err();
        let helps: Vec<_> = report.problems().filter_map(|problem| problem.help.clone()).collect();
        assert!(helps.iter().any(|help| help.contains(expected)), "{lines}: {helps:?}");
    }

    #[track_caller]
    fn rule_of(lines: &str) -> HttpRule {
        let policy = Policy::parse("p", &format!("{RULE}{lines}\n")).unwrap();
        (*policy.grant("mail", "send").http[0]).clone()
    }

    const RULE: &str = "version = 1\n\
             [secrets]\n\
             mail_key = { env = \"MAIL_KEY\" }\n\
             [[app.mail.http]]\n\
             url = \"https://api.example/v1\"\n\
             ";
    const POST: &str = "methods = [\"POST\"]\n";

    #[test]
    fn the_example_of_the_design_is_read() {
        let text = r#"
version = 1

[limits]
memory   = "64MiB"
cpu      = "500ms"
wall     = "30s"
request  = "1MiB"
response = "8MiB"
output   = "1MiB"
logs     = "64KiB"
requests = 100

[app.mail]
classes     = ["ambiguous"]
limits      = { cpu = "2s" }

[[app.mail.http]]
actions = ["send"]
url     = "https://api.mail.example/v1/messages"
methods = ["POST"]
auth    = { bearer = "mail_key" }
meter   = { emails = 1 }
idempotency    = { header = "Idempotency-Key", window = "24h" }
visible_within = "30s"

[[app.mail.http]]
actions = ["send"]
url     = "https://api.mail.example/v1/messages/*"
methods = ["GET"]
auth    = { bearer = "mail_key" }
safe    = true

[secrets]
mail_key = { env = "MAIL_KEY" }
"#;
        let policy = Policy::parse("policy.toml", text).unwrap();
        assert_eq!(policy.file_name(), "policy.toml");
        let grant = policy.grant("mail", "send");
        assert_eq!(grant.limits, Limits { cpu: Duration::from_secs(2), ..Limits::default() });
        let [post, get] = &*grant.http else { panic!("{:?}", grant.http) };
        assert_eq!(
            **post,
            HttpRule {
                pattern: UrlPattern::parse("https://api.mail.example/v1/messages").unwrap(),
                methods: vec![Method::POST],
                auth: Some(Auth::Bearer { secret: "mail_key".to_owned() }),
                meter: budget::sum("", [("emails", "1")]).unwrap(),
                overdraw: Overdraw::Refuse,
                idempotency: Some(Idempotency {
                    header: HeaderName::from_static("idempotency-key"),
                    window: Some(Duration::from_secs(86_400)),
                }),
                visible_within: Some(Duration::from_secs(30)),
                actions: Some(vec!["send".to_owned()]),
                safe: false,
                addresses: Vec::new(),
                line: 18,
            }
        );
        assert!(get.safe);
        assert_eq!(get.line, 27);
        assert_eq!(policy.secret_source("mail_key"), Some(&SecretSource::Env("MAIL_KEY".to_owned())));
        assert_eq!(policy.secret_source("other"), None);
    }

    #[test]
    fn every_problem_is_reported_at_once_with_its_place() {
        let text = r#"version = 2
limitz = {}

[limits]
memory = 64
cpu = "0s"

[app.Mail]
classes = ["pure", "ambigous"]
concurrency = 16

[[app.mail.http]]
url = "api.example"
methods = []
rate = "10/s"
"#;
        check_problems(
            text,
            &[
                "1:11: this version of tollgate reads policies of version 1",
                "2:1: a policy has no key \"limitz\"",
                "5:10: `memory` must be text in quotes, not an integer",
                "6:7: `cpu` is zero",
                "8:6: \"Mail\" does not name an app",
                "9:20: \"ambigous\" is no effect class",
                "10:1: `concurrency` is not enforced by this version of tollgate",
                "13:7: `url`: \"api.example\" does not start with https:// or http://",
                "14:11: `methods` is empty: a rule without methods grants nothing",
                "15:1: `rate` is not enforced by this version of tollgate",
            ],
        );
        let report = Policy::parse("policy.toml", text).unwrap_err().to_string();
        assert!(
            report.contains("policy.toml:2:1: a policy has no key \"limitz\"\n  did you mean `limits`?"),
            "{report}"
        );
    }

    #[test]
    fn what_is_not_toml_is_reported_at_once_too() {
        check_problems("version = \nx = \"\\q\"\n", &["1:11: ", "2:7: "]);
        check_problems("version = 1\nversion = 1\n", &["2:1: duplicate key"]);
        check_problems("[limits]\n[limits]\n", &["2:2: duplicate key"]);
        check_problems(
            &format!("version = 1\nx = {}", "[".repeat(1_000)),
            &["2:85: cannot recurse further", "2:1005: unclosed array"],
        );
        check_problems(&"#".repeat(POLICY_BYTES_MAX + 1), &["0:0: a policy is at most 1048576 bytes long"]);
    }

    #[test]
    fn version_is_required() {
        check_problems("", &["0:0: the policy does not say its `version`"]);
        check_problems("version = 1", &[]);
        for wrong in ["2", "0", "-1", "\"1\"", "1.0", "99999999999999999999"] {
            check_problems(&format!("version = {wrong}"), &["1:11: "]);
        }
    }

    #[test]
    fn limits_say_no() {
        for key in ["memory", "request", "response", "output", "logs"] {
            for (value, message) in [
                ("\"64\"", ": \"64\" has no unit"),
                ("\"64M\"", ": \"64M\" is not a size"),
                ("\"30s\"", ": \"30s\" is not a size"),
                ("\"0MiB\"", " is zero"),
                ("\"99999999TiB\"", ": \"99999999TiB\" is too large"),
                ("64", " must be text in quotes, not an integer"),
            ] {
                check_problems(
                    &format!("version = 1\n[limits]\n{key} = {value}"),
                    &[&format!("3:{}: `{key}`{message}", key.len() + 4)],
                );
            }
        }
        for key in ["cpu", "wall"] {
            for (value, message) in [
                ("\"30\"", ": \"30\" has no unit"),
                ("\"1MiB\"", ": \"1MiB\" is not a time"),
                ("\"0s\"", " is zero"),
                ("\"99999d\"", ": \"99999d\" is too long"),
                ("30", " must be text in quotes, not an integer"),
            ] {
                check_problems(
                    &format!("version = 1\n[app.a]\nlimits.{key} = {value}"),
                    &[&format!("3:{}: `{key}`{message}", key.len() + 11)],
                );
            }
        }
        for value in ["0", "-1", "4294967296"] {
            check_problems(
                &format!("version = 1\n[limits]\nrequests = {value}"),
                &["3:12: `requests` must be a whole number from 1 to"],
            );
        }
        check_problems(
            "version = 1\n[limits]\nrequests = \"100\"",
            &["3:12: `requests` must be a whole number, not text"],
        );
        check_problems("version = 1\n[limits]\nmemry = \"1MiB\"", &["3:1: `limits` has no key \"memry\""]);
        check_problems("version = 1\nlimits = 1", &["2:10: `limits` must be a table, not an integer"]);
    }

    #[test]
    fn limits_are_read() {
        let text = "version = 1\n\
             [limits]\n\
             memory = \"1MiB\"\n\
             cpu = \"1s\"\n\
             wall = \"2s\"\n\
             request = \"1B\"\n\
             response = \"2B\"\n\
             output = \"3B\"\n\
             logs = \"4B\"\n\
             requests = 5";
        let expected = Limits {
            memory_bytes: 1 << 20,
            cpu: Duration::from_secs(1),
            wall: Duration::from_secs(2),
            request_bytes: 1,
            response_bytes: 2,
            output_bytes: 3,
            logs_bytes: 4,
            requests: 5,
        };
        let grant = Policy::parse("p", text).unwrap().grant("any", "any");
        assert_eq!(grant.limits, expected);
        assert_eq!(Limit::ALL.map(|limit| grant.limit_line(limit)), [3, 4, 5, 6, 7, 8, 9, 10].map(Some));
    }

    #[test]
    fn an_app_says_no() {
        for (app, expected) in [
            ("[app.mail]\nclases = []", "3:1: an app has no key \"clases\""),
            ("[app.mail]\nclasses = []", "3:11: `classes` is empty: leave it out for pure actions only"),
            ("[app.mail]\nclasses = \"pure\"", "3:11: `classes` must be a list, not text"),
            ("[app.mail]\nclasses = [1]", "3:12: every element of `classes` must be text in quotes, not an integer"),
            ("[app.mail]\nclasses = [\"pure\", \"pure\"]", "3:20: `classes` names \"pure\" twice"),
            ("[app.mail]\nclasses = [\"Pure\"]", "3:12: \"Pure\" is no effect class"),
            ("[app.mail]\nstatements = {}", "3:1: `statements` is not enforced"),
            ("[app.\"\"]", "2:6: \"\" does not name an app"),
            ("[app.\"a/b\"]", "2:6: \"a/b\" does not name an app"),
            ("[app]\nmail = 1", "3:8: app \"mail\" must be a table, not an integer"),
            ("app = 1", "2:7: `app` must be a table, not an integer"),
            ("[app.mail.http]\nurl = \"x\"", "2:1: `http` is a list of rules"),
            ("[app.mail]\nhttp = 1", "3:8: `http` must be a list, not an integer"),
            ("[app.mail]\nhttp = [1]", "3:9: a rule must be a table, not an integer"),
        ] {
            check_problems(&format!("version = 1\n{app}"), &[expected]);
        }
    }

    #[test]
    fn a_rule_says_which_requests_it_is_for() {
        check_rule_problems("", &["4:1: this rule has no `methods`"]);
        check_rule_problems("methods = \"POST\"", &["6:11: `methods` must be a list"]);
        check_rule_problems("methods = [\"POST\", \"post\"]", &["6:20: \"post\" is not in capitals"]);
        check_rule_problems("methods = [\"POST\", \"POST\"]", &["6:20: `methods` names \"POST\" twice"]);
        check_rule_problems(
            "methods = [\"P OST\", \"\"]",
            &["6:12: \"P OST\" is not an HTTP method", "6:21: \"\" is not an HTTP method"],
        );
        check_rule_problems(
            "methods = [\"CONNECT\", \"TRACE\"]",
            &["6:12: CONNECT cannot be granted", "6:23: TRACE cannot be granted"],
        );
        check_help("methods = [\"Post\"]", "write \"POST\"");
        assert_eq!(rule_of("methods = [\"GET\", \"PROPFIND\"]").methods[1].as_str(), "PROPFIND");

        check_rule_problems(&format!("{POST}actions = []"), &["7:11: `actions` is empty"]);
        check_rule_problems(&format!("{POST}actions = [\"Send\"]"), &["7:12: \"Send\" does not name an action"]);
        check_rule_problems(
            &format!("{POST}actions = [\"send\", \"send\"]"),
            &["7:20: `actions` names \"send\" twice"],
        );
        check_help(&format!("{POST}actions = [\"mail/send\"]"), "write \"send\"");
        assert_eq!(rule_of(POST).actions, None);

        check_rule_problems(&format!("{POST}metods = []"), &["7:1: a rule has no key \"metods\""]);
        check_rule_problems(&format!("{POST}mode = \"audit\""), &["7:1: `mode` is not enforced"]);
        check_rule_problems(&format!("{POST}safe = 1"), &["7:8: `safe` must be true or false, not an integer"]);
    }

    #[test]
    fn a_url_says_no() {
        for (url, expected) in [
            ("", "does not start with https:// or http://"),
            ("https://user@a.example/", "has a user name"),
            ("https://a.example/?x=1", "has a query"),
            ("https://a.example/#x", "has a fragment"),
            ("https://*/", "has a `*` in its host"),
            ("https://a.example:x/", "is no URL: invalid port number"),
            ("https://a.example/**/x", "has `**` before its end"),
        ] {
            let text = format!("version = 1\n[[app.mail.http]]\nmethods = [\"GET\"]\nurl = {url:?}");
            check_problems(&text, &[&format!("4:7: `url`: {url:?} {expected}")]);
        }
        check_problems("version = 1\n[[app.mail.http]]\nmethods = [\"GET\"]\n", &["2:1: this rule has no `url`"]);
    }

    #[test]
    fn auth_says_no() {
        for (auth, expected) in [
            ("\"mail_key\"", "7:8: `auth` must be a table, not text"),
            ("{}", "7:8: `auth` has exactly one of"),
            ("{ bearer = \"mail_key\", header = {} }", "7:8: `auth` has exactly one of"),
            ("{ bearer = 1 }", "7:19: `bearer` must be text in quotes"),
            ("{ bearer = \"sk_live_1\" }", "7:19: `bearer` names a secret that is not in [secrets]"),
            ("{ basic = { user = \"a\", password = \"x\" } }", "7:43: `password` names a secret that is not in"),
            ("{ basic = { user = \"a:b\", password = \"mail_key\" } }", "7:27: `user`: a user name has no colon"),
            ("{ basic = { password = \"mail_key\" } }", "7:18: `basic` has no `user`"),
            ("{ basic = { user = \"a\" } }", "7:18: `basic` has no `password`"),
            ("{ header = { name = \"X-Key\" } }", "7:19: `header` has no `value`"),
            ("{ header = { name = \"X-Key\", value = \"x\" } }", "7:45: `value` names a secret that is not in"),
            ("{ header = { name = \"X Key\", value = \"mail_key\" } }", "7:28: `name`: \"X Key\" is not the name of a"),
            ("{ header = { name = \"Host\", value = \"mail_key\" } }", "7:28: `name`: \"Host\" is a header that the"),
        ] {
            check_rule_problems(&format!("{POST}auth = {auth}"), &[expected]);
        }
        check_rule_problems(
            &format!("{POST}auth = {{ bearr = \"mail_key\" }}"),
            &["7:8: `auth` has exactly one of", "7:10: `auth` has no key \"bearr\""],
        );
        check_help(&format!("{POST}auth = {{ bearer = \"mailkey\" }}"), "did you mean `mail_key`?");
        // What is written there may be the secret itself.
        let report = Policy::parse("p", &format!("{RULE}{POST}auth.bearer = \"hunter2\"")).unwrap_err();
        assert!(!report.to_string().contains("hunter2"), "{report}");
    }

    #[test]
    fn auth_is_read() {
        let secret = || "mail_key".to_owned();
        for (auth, expected) in [
            ("{ bearer = \"mail_key\" }", Auth::Bearer { secret: secret() }),
            (
                "{ basic = { user = \"user\", password = \"mail_key\" } }",
                Auth::Basic { user: "user".to_owned(), password: secret() },
            ),
            (
                "{ header = { name = \"X-Api-Key\", value = \"mail_key\" } }",
                Auth::Header { name: HeaderName::from_static("x-api-key"), value: secret() },
            ),
        ] {
            assert_eq!(rule_of(&format!("{POST}auth = {auth}")).auth, Some(expected));
        }
    }

    // B6.
    #[test]
    fn b6_a_meter_says_no() {
        for (meter, expected) in [
            ("1", "7:9: `meter` must be a table, not an integer"),
            ("{}", "7:9: `meter` names no dimension"),
            ("{ emails = -1 }", "7:20: `meter`, dimension emails: \"-1\" is negative"),
            ("{ emails = nan }", "7:20: `meter`, dimension emails: \"nan\" is not a finite number"),
            ("{ emails = inf }", "7:20: `meter`, dimension emails: \"inf\" is not a finite number"),
            ("{ emails = 1e3 }", "7:20: `meter`, dimension emails: \"1e3\" has an exponent"),
            ("{ emails = 0x10 }", "7:20: the meter of \"emails\" must be a decimal number"),
            ("{ emails = true }", "7:20: the meter of \"emails\" must be a decimal number"),
            ("{ emails = \"\" }", "7:20: `meter`, dimension emails: an amount is missing"),
            ("{ emails = 0 }", "7:20: the meter of \"emails\" is zero"),
            ("{ emails = 99999999999999999999 }", "7:20: `meter`, dimension emails: \"99999999999999999999\" is too"),
            ("{ \"\" = 1 }", "7:11: `meter`: a dimension has no name"),
            ("{ \"e mails\" = 1 }", "7:11: `meter`: \"e mails\" does not name a dimension"),
        ] {
            check_rule_problems(&format!("{POST}meter = {meter}"), &[expected]);
        }
        let many: Vec<String> = (0..=budget::DIMENSIONS_MAX).map(|number| format!("d{number} = 1")).collect();
        check_rule_problems(&format!("{POST}meter = {{ {} }}", many.join(", ")), &["7:9: `meter` names more than 64"]);
    }

    // B1: amounts are the digits as written; B6: the order is the file's.
    #[test]
    fn b1_b6_a_meter_is_exact_and_in_order() {
        let rule =
            rule_of(&format!("{POST}meter = {{ usd = 0.1, emails = 1_000, bytes = \"0.0000001\", sms = 2.50 }}"));
        let shown: Vec<_> = rule.meter.iter().map(|item| (&*item.dimension, item.amount.to_string())).collect();
        let expected = [("usd", "0.1"), ("emails", "1000"), ("bytes", "0.000001"), ("sms", "2.5")];
        assert_eq!(shown, expected.map(|(dimension, amount)| (dimension, amount.to_owned())));
    }

    #[test]
    fn b6_overdraw_says_no() {
        let metered = format!("{POST}meter.emails = 1\n");
        check_rule_problems(&format!("{metered}overdraw = \"allow\""), &["8:12: `overdraw`: \"allow\" is neither"]);
        check_rule_problems(&format!("{metered}overdraw = true"), &["8:12: `overdraw` must be text in quotes"]);
        check_rule_problems(&format!("{POST}overdraw = \"charge\""), &["7:1: `overdraw` without `meter`"]);
        for (lines, expected) in [
            ("", Overdraw::Refuse),
            ("overdraw = \"refuse\"", Overdraw::Refuse),
            ("overdraw = \"charge\"", Overdraw::Charge),
        ] {
            assert_eq!(rule_of(&format!("{metered}{lines}")).overdraw, expected);
        }
    }

    #[test]
    fn idempotency_says_no() {
        for (idempotency, expected) in [
            ("\"Idempotency-Key\"", "7:15: `idempotency` must be a table, not text"),
            ("{}", "7:15: `idempotency` has no `header`"),
            ("{ window = \"24h\" }", "7:15: `idempotency` has no `header`"),
            ("{ header = \"I K\" }", "7:26: `header`: \"I K\" is not the name of a header"),
            ("{ header = \"Content-Length\" }", "7:26: `header`: \"Content-Length\" is a header that the connection"),
            ("{ header = \"Authorization\" }", "7:26: `header`: \"Authorization\" is a header for secrets"),
            ("{ header = \"K\", window = \"24\" }", "7:40: `window`: \"24\" has no unit"),
            ("{ header = \"K\", window = \"0s\" }", "7:40: `window` is zero"),
            ("{ header = \"K\", windw = \"1s\" }", "7:31: `idempotency` has no key \"windw\""),
        ] {
            check_rule_problems(&format!("{POST}idempotency = {idempotency}"), &[expected]);
        }
        check_rule_problems(
            &format!(
                "{POST}auth.header = {{ name = \"x-key\", value = \"mail_key\" }}\nidempotency.header = \"X-Key\""
            ),
            &["8:22: `header`: \"X-Key\" is the header that `auth` sets"],
        );
        let idempotency = rule_of(&format!("{POST}idempotency.header = \"X-Key\"")).idempotency.unwrap();
        assert_eq!((idempotency.header.as_str(), idempotency.window), ("x-key", None));
    }

    #[test]
    fn visible_within_says_no() {
        check_rule_problems(&format!("{POST}visible_within = \"30\""), &["7:18: `visible_within`: \"30\" has no unit"]);
        check_rule_problems(&format!("{POST}visible_within = 30"), &["7:18: `visible_within` must be text"]);
        let rule = rule_of(&format!("{POST}visible_within = \"0s\""));
        assert_eq!(rule.visible_within, Some(Duration::ZERO));
    }

    #[test]
    fn addresses_say_no() {
        for (addresses, expected) in [
            ("[]", "7:13: `addresses` is empty"),
            ("\"127.0.0.0/8\"", "7:13: `addresses` must be a list"),
            ("[\"localhost\"]", "7:14: \"localhost\" is not a range of addresses"),
            ("[\"127.0.0.1\"]", "7:14: \"127.0.0.1\" is not a range of addresses"),
            ("[\"127.0.0.0/33\"]", "7:14: \"127.0.0.0/33\" is not a range of addresses"),
            ("[\"127.0.0.1/8\"]", "7:14: \"127.0.0.1/8\" has bits beyond its prefix"),
            ("[\"8.8.8.0/24\"]", "7:14: \"8.8.8.0/24\" is public"),
        ] {
            check_rule_problems(&format!("{POST}addresses = {addresses}"), &[expected]);
        }
        check_help(&format!("{POST}addresses = [\"::1\"]"), "write \"::1/128\"");
        check_help(&format!("{POST}addresses = [\"127.0.0.1/8\"]"), "write \"127.0.0.0/8\"");
        let rule = rule_of(&format!("{POST}addresses = [\"127.0.0.0/8\", \"::1/128\"]"));
        assert_eq!(rule.addresses, ["127.0.0.0/8", "::1/128"].map(|range| range.parse().unwrap()));
    }

    #[test]
    fn a_safe_rule_says_nothing_about_effects() {
        check_rule_problems(
            &format!(
                "{POST}safe = true\n\
             meter.emails = 1\n\
             overdraw = \"charge\"\n\
             idempotency.header = \"K\"\n\
             visible_within = \"1s\""
            ),
            &[
                "8:1: `meter` contradicts `safe = true`",
                "9:1: `overdraw` contradicts `safe = true`",
                "10:1: `idempotency` contradicts `safe = true`",
                "11:1: `visible_within` contradicts `safe = true`",
            ],
        );
        assert!(rule_of(&format!("{POST}safe = true\nauth.bearer = \"mail_key\"")).safe);
        assert!(!rule_of(&format!("{POST}safe = false\nmeter.emails = 1")).safe);
    }

    #[test]
    fn secrets_say_no() {
        for (secret, expected) in [
            ("key = \"hunter2\"", "3:7: secret `key` must say where it is kept, not what it is"),
            ("key = 1", "3:7: secret `key` must be a table, not an integer"),
            ("key = {}", "3:7: secret `key` names no place"),
            ("key = { env = \"A\", file = \"b\" }", "3:7: secret `key` names two places"),
            ("key = { env = \"\" }", "3:15: `env`: a variable has a name"),
            ("key = { env = \"A=B\" }", "3:15: `env`: the name of a variable has no `=`"),
            ("key = { file = \"\" }", "3:16: `file`: a file has a name"),
            ("key = { file = \"\\u0000\" }", "3:16: `file`: the name of a file has no NUL"),
            ("key = { env = 1 }", "3:15: `env` must be text in quotes"),
            ("\"k y\" = { env = \"A\" }", "3:1: \"k y\" does not name a secret"),
        ] {
            check_problems(&format!("version = 1\n[secrets]\n{secret}"), &[expected]);
        }
        check_problems(
            "version = 1\n[secrets]\nkey = { evn = \"A\" }",
            &["3:7: secret `key` names no place", "3:9: secret `key` has no key \"evn\""],
        );
        check_problems("version = 1\nsecrets = 1", &["2:11: `secrets` must be a table"]);
        let report = Policy::parse("p", "version = 1\nsecrets.key = \"hunter2\"").unwrap_err();
        assert!(!report.to_string().contains("hunter2"), "{report}");

        let policy =
            Policy::parse("p", "version = 1\n[secrets]\na = { env = \"A\" }\nb = { file = \"/run/b\" }").unwrap();
        let secrets: Vec<_> = policy.secrets().collect();
        let (a, b) = (SecretSource::Env("A".to_owned()), SecretSource::File(PathBuf::from("/run/b")));
        assert_eq!(secrets, [("a", &a), ("b", &b)]);
    }

    #[test]
    fn one_mistake_is_reported_once() {
        // A secret whose place is wrong is still the secret that a rule names.
        check_problems(
            "version = 1\n\
             [secrets]\n\
             key = {}\n\
             [[app.mail.http]]\n\
             url = \"https://a.example/\"\n\
             methods = [\"GET\"]\n\
             auth.bearer = \"key\"",
            &["3:7: secret `key` names no place"],
        );
        // A rule whose actions cannot be read is not said to clash with the others of its URL.
        check_rule_problems(
            &format!("{POST}[[app.mail.http]]\nurl = \"https://api.example/v1\"\n{POST}actions = [\"Other\"]"),
            &["10:12: \"Other\" does not name an action"],
        );
    }

    /// Two rules, at lines 2 and 6: whether they are said to clash.
    #[track_caller]
    fn check_clash(one: [&str; 3], two: [&str; 3], expected: Option<&str>) {
        let rule = |[url, methods, actions]: [&str; 3]| {
            let actions = if actions.is_empty() { String::new() } else { format!("actions = [{actions}]") };
            format!("[[app.mail.http]]\nurl = \"{url}\"\nmethods = [{methods}]\n{actions}\n")
        };
        for (one, two) in [(one, two), (two, one)] {
            let found = Policy::parse("p", &format!("version = 1\n{}{}", rule(one), rule(two))).err();
            let shown = found.map(|report| report.to_string()).unwrap_or_default();
            match expected {
                None => assert_eq!(shown, ""),
                Some(example) => {
                    let start = "p:6:1: the rules of app `mail` at lines 2 and 6 could both match one request: ";
                    assert!(shown.starts_with(start) && shown.contains(example), "{shown}");
                }
            }
        }
    }

    #[test]
    fn two_rules_that_could_match_one_request_are_an_error_that_names_both() {
        let (exact, star, rest) = ("https://a.example/v1/x", "https://a.example/v1/*", "https://*.example/**");
        check_clash([exact, "'GET'", ""], [exact, "'GET'", ""], Some("a GET to `https://a.example/v1/x` and to"));
        check_clash([exact, "'GET'", ""], [star, "'POST', 'GET'", ""], Some("a GET to"));
        check_clash([exact, "'GET'", ""], [rest, "'GET'", "'send'"], Some("a GET of action `send` to"));
        check_clash([star, "'GET'", "'a', 'send'"], [rest, "'GET'", "'send', 'b'"], Some("of action `send`"));
        check_clash([exact, "'GET'", ""], [exact, "'POST'", ""], None);
        check_clash([exact, "'GET'", "'a'"], [exact, "'GET'", "'b'"], None);
        check_clash([exact, "'GET'", ""], ["https://a.example/v2/*", "'GET'", ""], None);
        check_clash([exact, "'GET'", ""], ["http://a.example/v1/x", "'GET'", ""], None);
    }

    #[test]
    fn rules_of_different_apps_do_not_clash() {
        let rule = |app: &str| format!("[[app.{app}.http]]\nurl = \"https://a.example/\"\nmethods = [\"GET\"]\n");
        check_problems(&format!("version = 1\n{}{}", rule("a"), rule("b")), &[]);
        // Of several clashes, each later rule has one.
        check_problems(
            &format!("version = 1\n{0}{0}{0}", rule("a")),
            &["5:1: the rules of app `a` at lines 2 and 5", "8:1: the rules of app `a` at lines 2 and 8"],
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = Policy::parse("p", &text);
        }

        // Values of every kind at every key: refused or taken, never a panic, and every problem has its place.
        #[test]
        fn no_value_panics(
            key in prop_oneof![
                Just("version"), Just("limits"), Just("limits.cpu"), Just("limits.memory"), Just("limits.requests"),
                Just("app"), Just("app.a"), Just("app.a.classes"), Just("app.a.limits"), Just("app.a.http"),
                Just("secrets"), Just("secrets.k"), Just("secrets.k.env"), Just("secrets.k.file"),
            ],
            rule_key in proptest::sample::select(RULE_KEYS),
            value in prop_oneof![
                Just("1"), Just("-1"), Just("1.5"), Just("nan"), Just("true"), Just("\"x\""), Just("\"\""), Just("[]"),
                Just("{}"), Just("[[]]"), Just("[{}]"), Just("[1, \"x\", \"x\"]"), Just("{ x = 1 }"),
                Just("1979-05-27"),
                Just("{ header = {} }"), Just("{ basic = 1 }"), Just("\"\\u0000\""), Just("99999999999999999999999"),
            ],
        ) {
            let rule = format!("version = 1\n[[app.a.http]]\n{rule_key} = {value}\n");
            for text in [format!("{key} = {value}\n"), rule] {
                if let Err(report) = Policy::parse("p", &text) {
                    prop_assert!(report.problems().count() > 0);
                    prop_assert!(report.problems().all(|problem| !problem.message.is_empty()));
                }
            }
        }

        // What is granted is what was written: a request of the rule's own finds the rule, in any spelling of its URL.
        #[test]
        fn a_valid_rule_grants_its_own_request(path in "(/[a-z0-9~.-]{1,8}){1,4}", port in 1_u16..) {
            prop_assume!(!path.split('/').any(|segment| matches!(segment, "." | "..")));
            let rule = format!("url = \"http://h.example:{port}{path}\"\nmethods = [\"GET\"]");
            let text = format!("version = 1\n[[app.a.http]]\n{rule}");
            let grant = Policy::parse("p", &text).unwrap().grant("a", "b");
            let url = format!("HTTP://H.example.:{port}{path}?q").parse().unwrap();
            prop_assert!(grant.rule_for(&Method::GET, &url).is_some());
            prop_assert!(grant.rule_for(&Method::POST, &url).is_none());
        }
    }
}
