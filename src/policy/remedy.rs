//! What to write into the policy so that something that was refused is granted: the exact lines, for error messages.
//!
//! The lines grant what was refused and nothing more. Whether it should be granted is the operator's to judge; nothing
//! here looks at a policy or changes one.

use std::net::IpAddr;

use http::Method;
use ipnet::IpNet;
use url::Url;

use super::{HttpRule, Limit};
use crate::effect::EffectClass;
use crate::egress::pattern::UrlPattern;

/// The rule that would grant a request for which there is none.
///
/// `safe` asks for a rule that planning and reconciling may use too. `need_addresses` is the address that the host
/// resolved to, where that is one that a rule must name; `None` otherwise. The query is left out, since it does not
/// count.
///
/// A request that no rule can grant, because its URL matches no pattern or its method is never granted, gets a comment
/// that says why.
///
/// ```
/// use tollgate::policy::missing_rule;
///
/// let url = "http://127.0.0.1:8080/v1/messages?draft=1".parse()?;
/// let address = Some("127.0.0.1".parse()?);
/// assert_eq!(
///     missing_rule("mail", "send", &http::Method::POST, &url, false, address),
///     r#"[[app.mail.http]]
/// actions = ["send"]
/// url = "http://127.0.0.1:8080/v1/messages"
/// methods = ["POST"]
/// addresses = ["127.0.0.1/32"]"#
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn missing_rule(
    app: &str,
    action: &str,
    method: &Method,
    url: &Url,
    safe: bool,
    need_addresses: Option<IpAddr>,
) -> String {
    let pattern = match UrlPattern::exactly(url) {
        Ok(pattern) => pattern,
        Err(why) => return format!("# no rule can grant this request: its URL {why}"),
    };
    if let Some(why) = super::parse::ungrantable(method.as_str()) {
        return format!("# no rule can grant this request: its method {why}");
    }
    let mut lines = vec![
        format!("[[app.{}.http]]", key(app)),
        format!("actions = [{}]", quoted(action)),
        format!("url = {}", quoted(&pattern.to_string())),
        format!("methods = [{}]", quoted(method.as_str())),
    ];
    if safe {
        lines.push("safe = true".to_owned());
    }
    if let Some(ip) = need_addresses {
        lines.push(format!("addresses = [{}]", quoted(&IpNet::from(ip).to_string())));
    }
    lines.join("\n")
}

/// The line that opens `ip` to a rule that there is; it takes the place of the rule's `addresses`, where it has any. (A
/// second rule for the same request would be an error.)
pub fn missing_addresses(rule: &HttpRule, ip: IpAddr) -> String {
    let ranges = rule.addresses.iter().copied().chain([IpNet::from(ip)]);
    let ranges: Vec<String> = ranges.map(|range| quoted(&range.to_string())).collect();
    format!("addresses = [{}]", ranges.join(", "))
}

/// The line of a rule with which the operator vouches that the other end honours idempotency keys in the usual header.
pub fn missing_idempotency() -> &'static str {
    r#"idempotency = { header = "Idempotency-Key" }"#
}

/// The lines that set a limit of an app. `value` is what to allow, as the policy writes it: `128MiB`, `2s`, `200`.
pub fn missing_limit(app: &str, limit: Limit, value: &str) -> String {
    let value = if limit == Limit::Requests { value.to_owned() } else { quoted(value) };
    format!("[app.{}]\nlimits.{} = {value}", key(app), limit.key())
}

pub(super) fn classes(app: &str, classes: &[EffectClass]) -> String {
    let classes: Vec<String> = classes.iter().map(|class| quoted(class.as_str())).collect();
    format!("[app.{}]\nclasses = [{}]", key(app), classes.join(", "))
}

/// A guest chose some of these texts, so they are escaped like any other. JSON's escapes are TOML's, except that JSON
/// leaves DEL as it is.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

fn key(name: &str) -> String {
    if super::is_name(name) { name.to_owned() } else { quoted(name) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    /// The lines, added to a policy, grant exactly that request.
    #[track_caller]
    fn check(method: &Method, url: &str, safe: bool, address: Option<&str>, expected: &str) {
        let url: Url = url.parse().unwrap();
        let address = address.map(|ip| ip.parse().unwrap());
        let lines = missing_rule("mail", "send", method, &url, safe, address);
        assert_eq!(lines, expected);

        let policy = Policy::parse("policy.toml", &format!("version = 1\n{lines}\n")).unwrap();
        let grant = policy.grant("mail", "send");
        let rule = grant.rule_for(method, &url).expect("the lines grant the request");
        assert_eq!(rule.safe, safe);
        assert!(address.is_none_or(|ip| crate::egress::address::refused(ip, &rule.addresses).is_none()));
        assert!(policy.grant("mail", "other").http.is_empty());
        assert!(policy.grant("other", "send").http.is_empty());
    }

    #[test]
    fn the_lines_to_add_grant_exactly_what_was_refused() {
        check(
            &Method::POST,
            "https://api.mail.example/v1/messages?key=word#part",
            false,
            None,
            "[[app.mail.http]]\n\
             actions = [\"send\"]\n\
             url = \"https://api.mail.example/v1/messages\"\n\
             methods = [\"POST\"]",
        );
        check(
            &Method::GET,
            "http://LOCALHOST:8080",
            true,
            Some("::1"),
            "[[app.mail.http]]\n\
             actions = [\"send\"]\n\
             url = \"http://localhost:8080/\"\n\
             methods = [\"GET\"]\n\
             safe = true\n\
             addresses = [\"::1/128\"]",
        );
        // A star in a path is no wildcard.
        check(
            &Method::DELETE,
            "http://10.0.0.7/a/*/%c3%bc\"",
            false,
            Some("10.0.0.7"),
            "[[app.mail.http]]\n\
             actions = [\"send\"]\n\
             url = \"http://10.0.0.7/a/%2A/%C3%BC%22\"\n\
             methods = [\"DELETE\"]\n\
             addresses = [\"10.0.0.7/32\"]",
        );
    }

    #[test]
    fn a_request_that_no_rule_can_grant_says_why() {
        for (method, url, why) in [
            ("GET", "https://a.example/a%2Fb", "its URL has an encoded slash or backslash in its path"),
            ("GET", "https://user@a.example/", "its URL has a user name or password"),
            ("GET", &format!("https://a.example/{}", "a".repeat(2048)), "its URL is longer than a pattern can be"),
            ("get", "https://a.example/", "its method is not in capitals"),
            ("CONNECT", "https://a.example/", "its method opens a tunnel, into which the host could not look"),
        ] {
            let lines = missing_rule("mail", "send", &method.parse().unwrap(), &url.parse().unwrap(), true, None);
            assert_eq!(lines, format!("# no rule can grant this request: {why}"));
        }
    }

    #[test]
    fn a_guest_s_words_cannot_break_out_of_their_quotes() {
        let url = "https://a.example/".parse().unwrap();
        let lines = missing_rule("ma]il", "se\"]\nsafe = true\u{7f}", &Method::GET, &url, false, None);
        assert!(
            lines.starts_with("[[app.\"ma]il\".http]]\nactions = [\"se\\\"]\\nsafe = true\\u007f\"]\nurl = "),
            "{lines}"
        );
        assert!(toml::de::DeTable::parse(&lines).is_ok());
    }

    #[test]
    fn a_rule_keeps_the_ranges_that_it_has() {
        let text = "version = 1\n\
             [[app.mail.http]]\n\
             url = \"http://a.example/\"\n\
             methods = [\"GET\"]\n\
             addresses = [\"10.0.0.0/8\"]\n\
             ";
        let rule = Policy::parse("p", text).unwrap().grant("mail", "send").http[0].clone();
        assert_eq!(
            missing_addresses(&rule, "127.0.0.1".parse().unwrap()),
            "addresses = [\"10.0.0.0/8\", \"127.0.0.1/32\"]"
        );
    }

    #[test]
    fn the_other_lines_are_valid_too() {
        let stated = Policy::parse("p", "version = 1\n[app.mail]\nclasses = [\"ambiguous\"]").unwrap();
        for (policy, class, expected) in [
            (Policy::deny_all(), EffectClass::Ambiguous, "[app.mail]\nclasses = [\"pure\", \"ambiguous\"]"),
            (stated.clone(), EffectClass::Pure, "[app.mail]\nclasses = [\"pure\", \"ambiguous\"]"),
            (stated, EffectClass::Ambiguous, "[app.mail]\nclasses = [\"ambiguous\"]"),
        ] {
            let lines = policy.missing_class("mail", class);
            assert_eq!(lines, expected);
            assert!(Policy::parse("p", &format!("version = 1\n{lines}")).unwrap().allows_class("mail", class));
        }
        for (limit, value) in [
            (Limit::Memory, "128MiB"),
            (Limit::Cpu, "2s"),
            (Limit::Wall, "1m"),
            (Limit::Request, "2MiB"),
            (Limit::Response, "16MiB"),
            (Limit::Output, "2MiB"),
            (Limit::Logs, "1MiB"),
            (Limit::Requests, "200"),
        ] {
            let text = format!("version = 1\n{}", missing_limit("mail", limit, value));
            let grant = Policy::parse("p", &text).unwrap().grant("mail", "send");
            assert_eq!(grant.limit_line(limit), Some(3), "{text}");
        }
        let rule = "version = 1\n[[app.mail.http]]\nurl = \"http://a.example/\"\nmethods = [\"POST\"]\n";
        let text = format!("{rule}{}", missing_idempotency());
        assert!(Policy::parse("p", &text).unwrap().grant("mail", "send").http[0].idempotency.is_some());
    }
}
