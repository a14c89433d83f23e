//! `mail/send`: sends one e-mail to one or several recipients through an HTTP mail API.
//!
//! An ambiguous action: this API promises nothing about repetitions, and an e-mail cannot be called back. So the code
//! must be able to say three different things, and never one for another:
//!
//! - `succeeded`: the API said that it accepted the message;
//! - `failed`: the message was certainly not accepted, and may be sent again;
//! - `ambiguous`: it may have been accepted. The host does not repeat it, and asks `reconcile` or a person.
//!
//! The decisions are in `answer.rs`, which touches no host; here they meet the network.

mod answer;
mod message;

wit_bindgen::generate!({ path: "../../wit", world: "action", generate_all });

use answer::{Found, Sent};
use exports::tollgate::action::actions::Guest;
use http_client::{Error, Request, Response, query_value};
use message::Message;
use serde_json::{Value, json};
use tollgate::action::types::{
    ActionDescriptor, Consumption, Context, Doubt, EffectClass, Failure, Fate, Hooks, HttpNeed, Issue, Json, Limits,
    Outcome, Planned,
};

struct Mail;

export!(Mail);

impl Guest for Mail {
    fn describe() -> Vec<ActionDescriptor> {
        vec![ActionDescriptor {
            name: "send".into(),
            title: "Send an e-mail".into(),
            description: "Sends one e-mail, to one or several recipients in one request.".into(),
            effect_class: EffectClass::Ambiguous,
            hooks: Hooks::PLAN | Hooks::RECONCILE,
            config_schema: config_schema().to_string(),
            output_schema: Some(output_schema().to_string()),
            http: ["https://*/v1/messages", "http://*/v1/messages"].into_iter().flat_map(needs).collect(),
            meters: vec!["emails".into()],
            limits: Limits { memory_bytes: None, cpu_ms: None, wall_ms: None, requests: None },
        }]
    }

    /// One e-mail per recipient, whatever the number of requests: that is what the API bills.
    fn plan(_action: String, _context: Context, config: Json) -> Result<Planned, Failure> {
        let message = parse(&config)?;
        let issues = message.odd_addresses().map(|address| Issue {
            code: "ADDRESS_ODD".into(),
            message: format!("`{address}` does not look like an e-mail address"),
        });
        Ok(Planned {
            summary: message.summary(),
            consumes: vec![Consumption { dimension: "emails".into(), amount: message.to.len().to_string() }],
            // The API chooses the id.
            output: None,
            issues: issues.collect(),
        })
    }

    fn run(_action: String, _context: Context, config: Json) -> Outcome {
        match parse(&config) {
            Ok(message) => send(&message),
            Err(failure) => Outcome::Failed(failure),
        }
    }

    fn reconcile(_action: String, context: Context, config: Json) -> Result<Fate, Failure> {
        let message = parse(&config)?;
        let key = &context.effect_key;
        let response = http_client::send(&Request::get(format!("{}?key={}", message.endpoint(), query_value(key))))
            .map_err(|error| failure("MAIL_LOOKUP_FAILED", format!("the mail API cannot be asked: {error}"), true))?;
        if response.status != 200 {
            let retryable = matches!(response.status, 408 | 429 | 500..=599);
            return Err(refused("MAIL_LOOKUP_FAILED", &response, retryable));
        }
        Ok(match answer::of_lookup(&response.body, key) {
            Found::One(id) => Fate::Succeeded(Some(output(&id, &message))),
            // The host knows how late an accepted message may still appear, and asks again before it believes this.
            Found::None => {
                Fate::Failed(failure("MAIL_NOT_SENT", "the mail API has no message under this key".into(), true))
            }
            Found::Unclear(text) => Fate::Unknown(text),
        })
    }

    // Not declared: whoever may start the run may send.

    fn authorize(_action: String, _context: Context, _config: Json) -> Result<(), String> {
        Ok(())
    }
}

fn send(message: &Message) -> Outcome {
    let response = match http_client::send(&Request::post_json(message.endpoint(), message.body())) {
        Ok(response) => response,
        // No connection, so no message: there is nothing to be in doubt about.
        Err(Error::NotSent(text)) => {
            return Outcome::Failed(failure("MAIL_NOT_SENT", format!("the mail API was not reached: {text}"), true));
        }
        // It may be on its way. If the host knows better (it refused the request itself), it settles this as a failure.
        Err(Error::Unheard(text)) => {
            return doubt(format!("the request was sent, the mail API's answer was not heard: {text}"));
        }
    };
    match answer::of_send(response.status, &response.body) {
        Sent::Accepted(id) => Outcome::Succeeded(Some(output(&id, message))),
        Sent::Unclear(why) => {
            let Response { status, .. } = response;
            doubt(format!("the mail API answered {status}, and {why}: {}", response.excerpt()))
        }
        Sent::Refused { retryable } => Outcome::Failed(refused("MAIL_REFUSED", &response, retryable)),
    }
}

fn parse(config: &str) -> Result<Message, Failure> {
    Message::parse(config).map_err(|text| failure("CONFIG_INVALID", text, false))
}

/// The same from `run` and from `reconcile`: later steps cannot tell which of the two learned it.
fn output(id: &str, message: &Message) -> Json {
    json!({ "id": id, "to": message.to }).to_string()
}

fn doubt(message: String) -> Outcome {
    Outcome::Ambiguous(Doubt { message, code: Some("MAIL_UNHEARD".into()) })
}

fn refused(code: &str, response: &Response, retryable: bool) -> Failure {
    let message = format!("the mail API answered {}: {}", response.status, response.excerpt());
    Failure { retry_after_ms: response.retry_after_ms(), ..failure(code, message, retryable) }
}

fn failure(code: &str, message: String, retryable: bool) -> Failure {
    Failure { message, code: Some(code.into()), retryable, retry_after_ms: None, details: None }
}

/// Sending changes something, looking up does not: only the latter is open to `reconcile`.
fn needs(url: &str) -> [HttpNeed; 2] {
    [("POST", false), ("GET", true)].map(|(method, safe)| HttpNeed {
        url: url.into(),
        methods: vec![method.into()],
        safe,
    })
}

fn config_schema() -> Value {
    json!({
        "type": "object",
        "required": ["api", "to", "subject"],
        "additionalProperties": false,
        "properties": {
            "api": {
                "type": "string",
                "pattern": "^https?://[^/?#]+/?$",
                "description": "Where the mail API is, without a path: `https://api.mail.example`."
            },
            "to": {
                "oneOf": [
                    { "type": "string", "minLength": 1 },
                    { "type": "array", "minItems": 1, "maxItems": 1000, "items": { "type": "string", "minLength": 1 } }
                ]
            },
            "subject": { "type": "string" },
            "text": { "type": "string" }
        }
    })
}

fn output_schema() -> Value {
    json!({
        "type": "object",
        "required": ["id", "to"],
        "additionalProperties": false,
        "properties": {
            "id": { "type": "string", "description": "The mail API's name for the message." },
            "to": { "type": "array", "items": { "type": "string" } }
        }
    })
}
