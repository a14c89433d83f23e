//! `webhook/deliver`: posts an event to a URL.
//!
//! An idempotent action. The receiver recognises a repetition by its idempotency key, which the host writes into the
//! request: the same key at every attempt. So after a crash the host simply runs it again, and all this code owes it is
//! to send the same request every time, and to say which failures are worth another try.

wit_bindgen::generate!({ path: "../../wit", world: "action", generate_all });

use exports::tollgate::action::actions::Guest;
use http_client::{Request, Response, Url};
use serde_json::{Value, json};
use tollgate::action::types::{
    ActionDescriptor, Consumption, Context, EffectClass, Failure, Fate, Hooks, HttpNeed, Json, Limits, Outcome, Planned,
};

struct Webhook;

export!(Webhook);

impl Guest for Webhook {
    fn describe() -> Vec<ActionDescriptor> {
        vec![ActionDescriptor {
            name: "deliver".into(),
            title: "Deliver an event".into(),
            description: "Posts an event with its payload, as JSON, to a URL that honours idempotency keys.".into(),
            effect_class: EffectClass::Idempotent,
            hooks: Hooks::PLAN,
            config_schema: config_schema().to_string(),
            output_schema: Some(output_schema().to_string()),
            http: ["https://*/**", "http://*/**"]
                .map(|url| HttpNeed { url: url.into(), methods: vec!["POST".into()], safe: false })
                .into(),
            meters: vec!["deliveries".into()],
            limits: Limits { memory_bytes: None, cpu_ms: None, wall_ms: None, requests: Some(1) },
        }]
    }

    fn plan(_action: String, _context: Context, config: Json) -> Result<Planned, Failure> {
        let delivery = Delivery::parse(&config)?;
        Ok(Planned {
            summary: format!("deliver `{}` to {}", delivery.event, delivery.host()?),
            consumes: vec![Consumption { dimension: "deliveries".into(), amount: "1".into() }],
            output: None,
            issues: Vec::new(),
        })
    }

    fn run(_action: String, _context: Context, config: Json) -> Outcome {
        let outcome = Delivery::parse(&config).and_then(|delivery| deliver(&delivery));
        match outcome {
            Ok(output) => Outcome::Succeeded(Some(output.to_string())),
            Err(failure) => Outcome::Failed(failure),
        }
    }

    // Not declared: anyone who may start the run may deliver, and a repetition under the same key needs no asking.

    fn authorize(_action: String, _context: Context, _config: Json) -> Result<(), String> {
        Ok(())
    }

    fn reconcile(_action: String, _context: Context, _config: Json) -> Result<Fate, Failure> {
        Err(failure("NOT_SUPPORTED", "a receiver of webhooks cannot be asked what it received".into(), false))
    }
}

struct Delivery {
    url: String,
    event: String,
    payload: Value,
}

impl Delivery {
    /// The host has checked the configuration against the schema; a mismatch here is a mistake in this file.
    fn parse(config: &str) -> Result<Self, Failure> {
        let invalid = |text: String| failure("CONFIG_INVALID", text, false);
        let config: Value = serde_json::from_str(config).map_err(|error| invalid(error.to_string()))?;
        let text =
            |key: &str| config[key].as_str().map(str::to_owned).ok_or_else(|| invalid(format!("`{key}` must be text")));
        Ok(Self { url: text("url")?, event: text("event")?, payload: config["payload"].clone() })
    }

    /// For people: a path of a webhook is often a secret of its receiver's.
    fn host(&self) -> Result<&str, Failure> {
        let url = Url::parse(&self.url).map_err(|text| failure("URL_INVALID", text, false))?;
        Ok(url.authority)
    }

    /// Of the configuration alone, so that every attempt sends the same bytes under the same key.
    fn request(&self) -> Request {
        Request::post_json(&self.url, json!({ "event": self.event, "payload": self.payload }).to_string())
    }
}

fn deliver(delivery: &Delivery) -> Result<Value, Failure> {
    match http_client::send(&delivery.request()) {
        Ok(response) if response.is_success() => Ok(json!({ "status": response.status })),
        Ok(response) => Err(refused(delivery.host()?, &response)),
        // Whether it arrived does not matter here: the next attempt uses the same key.
        Err(error) => {
            let message = format!("no answer from {}: {error}", delivery.host()?);
            Err(failure("DELIVERY_UNANSWERED", message, true))
        }
    }
}

/// Only an answer that promises nothing for later is final.
fn refused(host: &str, response: &Response) -> Failure {
    let retryable = matches!(response.status, 408 | 425 | 429 | 500..=599);
    let message = format!("{host} answered {}: {}", response.status, response.excerpt());
    Failure { retry_after_ms: response.retry_after_ms(), ..failure("DELIVERY_REFUSED", message, retryable) }
}

fn failure(code: &str, message: String, retryable: bool) -> Failure {
    Failure { message, code: Some(code.into()), retryable, retry_after_ms: None, details: None }
}

fn config_schema() -> Value {
    json!({
        "type": "object",
        "required": ["url", "event"],
        "additionalProperties": false,
        "properties": {
            "url": { "type": "string", "pattern": "^https?://" },
            "event": { "type": "string", "minLength": 1 },
            "payload": { "description": "Any JSON; null where it is absent." }
        }
    })
}

fn output_schema() -> Value {
    json!({
        "type": "object",
        "required": ["status"],
        "additionalProperties": false,
        "properties": { "status": { "type": "integer" } }
    })
}
