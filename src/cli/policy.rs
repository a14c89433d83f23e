//! `policy check|explain`.

use clap::Subcommand;
use serde_json::{Value, json};

use tollgate::effect::EffectClass;
use tollgate::policy::{Auth, HttpRule, Limits, Overdraw, Policy, load, units};

use super::answer::Answer;
use super::context::{Common, read_text};
use super::exit::CliError;
use super::json as shapes;
use super::text::{count, section, table};

/// What can be done with the policy.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Say everything that is wrong with the policy; else what it grants, and which secrets are missing
    Check,
    /// Say which rule decides a request of an action, or which lines would grant it
    Explain(super::explain::Explain),
}

/// Does it.
pub async fn perform(common: &Common, command: PolicyCommand) -> Result<Answer, CliError> {
    match command {
        PolicyCommand::Check => check(common),
        PolicyCommand::Explain(command) => super::explain::explain(common, command).await,
    }
}

fn check(common: &Common) -> Result<Answer, CliError> {
    let path = common.policy_path();
    let text = match common.policy.is_none() && !path.exists() {
        true => {
            let message = format!("there is no {}", path.display());
            return Err(CliError::refused("NO_POLICY", message)
                .help("`tollgate init` writes one to start from; --policy FILE names another"));
        }
        false => read_text(path)?,
    };
    let policy = Policy::parse(&path.display().to_string(), &text)?;
    let secrets: Vec<Checked> = policy
        .secrets()
        .map(|(name, source)| Checked {
            name: name.to_owned(),
            source: source.to_string(),
            // The value is dropped here; what remains is whether it is there.
            problem: load(name, source).err().map(|error| error.to_string()),
        })
        .collect();
    Ok(Answer::done(said(&policy, &secrets), document(&policy, &secrets)))
}

/// A secret, and whether it is there.
struct Checked {
    name: String,
    source: String,
    problem: Option<String>,
}

fn said(policy: &Policy, secrets: &[Checked]) -> String {
    let apps: Vec<&str> = policy.apps().collect();
    let mut text = format!("{}: no problem found, {}\n", policy.file_name(), count(apps.len(), "app", "apps"));
    let rows = apps.iter().map(|app| {
        let limits = policy.limits(app);
        let different = if limits == policy.limits("") { "those for all".to_owned() } else { limits_line(limits) };
        vec![(*app).to_owned(), classes(policy, app).join(", "), different]
    });
    text.push_str(&section("limits for all", &limits_line(policy.limits(""))));
    text.push_str(&section("apps", &table(&["app", "classes", "limits"], rows)));
    let rules = apps.iter().flat_map(|app| policy.rules(app).map(|rule| rule_row(app, rule)));
    let header = ["app", "actions", "methods", "url", "kind", "auth", "meter", "line"];
    text.push_str(&section("may reach", &table(&header, rules)));
    if apps.is_empty() {
        text.push_str("\nnothing is granted: pure actions only\n");
    }
    let rows = secrets.iter().map(|secret| {
        let there = secret.problem.as_ref().map_or("there".to_owned(), |problem| format!("MISSING: {problem}"));
        vec![secret.name.clone(), secret.source.clone(), there]
    });
    text.push_str(&section("secrets", &table(&["secret", "where", "state"], rows)));
    text
}

fn classes(policy: &Policy, app: &str) -> Vec<&'static str> {
    EffectClass::ALL.into_iter().filter(|class| policy.allows_class(app, *class)).map(EffectClass::as_str).collect()
}

fn limits_line(limits: &Limits) -> String {
    format!(
        "memory {}, cpu {}, wall {}, request {}, response {}, output {}, logs {}, requests {}",
        units::format_size(limits.memory_bytes),
        units::format_duration(limits.cpu),
        units::format_duration(limits.wall),
        units::format_size(limits.request_bytes),
        units::format_size(limits.response_bytes),
        units::format_size(limits.output_bytes),
        units::format_size(limits.logs_bytes),
        limits.requests,
    )
}

fn rule_row(app: &str, rule: &HttpRule) -> Vec<String> {
    let kind = match (&rule.idempotency, rule.safe) {
        (_, true) => "safe".to_owned(),
        (Some(idempotency), false) => {
            let window = idempotency.window.map(|window| format!(" for {}", units::format_duration(window)));
            format!("{}{}", idempotency.header, window.unwrap_or_default())
        }
        (None, false) => "effectful".to_owned(),
    };
    let meter = rule.meter.iter().map(|item| format!("{} {}", item.amount, item.dimension)).collect::<Vec<_>>();
    vec![
        app.to_owned(),
        rule.actions.as_ref().map_or("all".to_owned(), |actions| actions.join(", ")),
        methods(rule).join(", "),
        rule.pattern.to_string(),
        kind,
        rule.auth.as_ref().map_or_else(String::new, auth),
        meter.join(", "),
        rule.line.to_string(),
    ]
}

fn methods(rule: &HttpRule) -> Vec<String> {
    rule.methods.iter().map(ToString::to_string).collect()
}

/// Which header, and which secret: never a value.
fn auth(auth: &Auth) -> String {
    format!("{}: {}", auth.header_name(), auth.secret())
}

fn document(policy: &Policy, secrets: &[Checked]) -> Value {
    let apps: Vec<Value> = policy
        .apps()
        .map(|app| {
            json!({
                "app": app,
                "classes": classes(policy, app),
                "limits": shapes::limits(policy.limits(app)),
                "rules": policy.rules(app).map(rule).collect::<Vec<_>>(),
            })
        })
        .collect();
    let secrets: Vec<Value> = secrets
        .iter()
        .map(|secret| {
            let there = secret.problem.is_none();
            json!({ "name": secret.name, "source": secret.source, "there": there, "problem": secret.problem })
        })
        .collect();
    let limits = shapes::limits(policy.limits(""));
    json!({ "file": policy.file_name(), "limits": limits, "apps": apps, "secrets": secrets })
}

fn rule(rule: &HttpRule) -> Value {
    json!({
        "line": rule.line,
        "actions": rule.actions,
        "methods": methods(rule),
        "url": rule.pattern.to_string(),
        "safe": rule.safe,
        "auth": rule.auth.as_ref().map(|auth| json!({ "header": auth.header_name().as_str(), "secret": auth.secret() })),
        "meter": rule.meter,
        "overdraw": match rule.overdraw { Overdraw::Refuse => "refuse", Overdraw::Charge => "charge" },
        "idempotency": rule.idempotency.as_ref().map(|idempotency| json!({
            "header": idempotency.header.as_str(),
            "window": idempotency.window.map(units::format_duration),
        })),
        "visible_within": rule.visible_within.map(units::format_duration),
        "addresses": rule.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
