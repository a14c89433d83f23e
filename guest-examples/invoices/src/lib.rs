//! `billing/triage`: finds the overdue invoices of a CSV file, most overdue first.
//!
//! A pure action. It computes and nothing else, so the host may run it again whenever it likes: after a crash, in a dry
//! run, on another machine. "Today" is a value of the configuration or the host's frozen clock, which shows every attempt
//! the same time; a second run gives the same answer to the byte.

mod csv;
mod date;
mod overdue;

wit_bindgen::generate!({ path: "../../wit", world: "action", generate_all });

use date::Date;
use exports::tollgate::action::actions::Guest;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use tollgate::action::types::{
    ActionDescriptor, Context, EffectClass, Failure, Fate, Hooks, Json, Limits, Outcome, Planned,
};

struct Invoices;

export!(Invoices);

impl Guest for Invoices {
    fn describe() -> Vec<ActionDescriptor> {
        vec![ActionDescriptor {
            name: "triage".into(),
            title: "Find overdue invoices".into(),
            description: "Reads a CSV of invoices and lists those that are unpaid past their due date, most overdue \
                          first."
                .into(),
            effect_class: EffectClass::Pure,
            hooks: Hooks::empty(),
            config_schema: config_schema().to_string(),
            output_schema: Some(output_schema().to_string()),
            http: Vec::new(),
            meters: Vec::new(),
            limits: Limits { memory_bytes: None, cpu_ms: None, wall_ms: None, requests: None },
        }]
    }

    fn run(_action: String, _context: Context, config: Json) -> Outcome {
        match triage(&config) {
            Ok(list) => Outcome::Succeeded(Some(list.to_string())),
            Err(message) => Outcome::Failed(failure("INVOICES_INVALID", message)),
        }
    }

    // A pure action needs none of these, and says so in its hooks: they exist because WIT has no optional exports.

    fn authorize(_action: String, _context: Context, _config: Json) -> Result<(), String> {
        Ok(())
    }

    fn plan(_action: String, _context: Context, _config: Json) -> Result<Planned, Failure> {
        Err(failure("NOT_SUPPORTED", "a pure action is run, not planned".into()))
    }

    fn reconcile(_action: String, _context: Context, _config: Json) -> Result<Fate, Failure> {
        Err(failure("NOT_SUPPORTED", "a pure action has no effect to ask about".into()))
    }
}

fn triage(config: &str) -> Result<Value, String> {
    let config: Value = serde_json::from_str(config).map_err(|error| format!("configuration: {error}"))?;
    let csv = config["csv"].as_str().ok_or("configuration: `csv` must be text")?;
    let today = match config["today"].as_str() {
        Some(text) => Date::parse(text).ok_or_else(|| format!("configuration: `today`: `{text}` is not a date"))?,
        None => today_by_the_clock(),
    };
    let overdue = overdue::overdue(csv, today)?;
    Ok(overdue.into_iter().map(|each| each.to_json()).collect())
}

/// The standard library's clock is the host's: for a pure action the time at which its step was first reserved.
fn today_by_the_clock() -> Date {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Date::from_days_since_epoch((since_epoch.as_secs() / 86_400) as i64)
}

fn failure(code: &str, message: String) -> Failure {
    Failure { message, code: Some(code.into()), retryable: false, retry_after_ms: None, details: None }
}

fn config_schema() -> Value {
    json!({
        "type": "object",
        "required": ["csv"],
        "additionalProperties": false,
        "properties": {
            "csv": {
                "type": "string",
                "description": "CSV with a header line; columns number, customer, email, amount, currency, issued, \
                                due and paid, in any order. `paid` is a date, or empty."
            },
            "today": {
                "type": "string",
                "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
                "description": "The day that decides what is overdue; without it, the day the step was reserved."
            }
        }
    })
}

fn output_schema() -> Value {
    json!({
        "type": "array",
        "items": {
            "type": "object",
            "required": ["number", "customer", "email", "amount", "currency", "due", "days_overdue"],
            "additionalProperties": false,
            "properties": {
                "number": { "type": "string" },
                "customer": { "type": "string" },
                "email": { "type": "string" },
                "amount": { "type": "string", "description": "A decimal as text, as it stood in the file." },
                "currency": { "type": "string" },
                "due": { "type": "string" },
                "days_overdue": { "type": "integer", "minimum": 1 }
            }
        }
    })
}
