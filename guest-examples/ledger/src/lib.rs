//! `ledger/open`, `ledger/reserve`, `ledger/book` and `ledger/freeze`: accounts, and money set aside from them.
//!
//! Transactional actions. They read and write the app's documents, and the host commits the writes together with the
//! journal's record of the step, or not at all. So there is nothing here about repetition or half-done work: an attempt
//! that fails, or whose worker dies, leaves no trace, and one that conflicts with another is simply run again.
//!
//! `authorize` reads the same world as `run`, and the host checks before it commits that neither has changed: an account
//! frozen in between stops the booking.
//!
//! The rules are in `account.rs`, which touches no host; here they meet the documents.

mod account;

wit_bindgen::generate!({ path: "../../wit", world: "action", generate_all });

use account::{Account, Refused, Reservation};
use exports::tollgate::action::actions::Guest;
use serde_json::{Value, json};
use tollgate::action::documents::{self, DocumentError};
use tollgate::action::types::{
    ActionDescriptor, Context, EffectClass, Failure, Fate, Hooks, Json, Limits, Outcome, Planned,
};

/// Integers up to here survive every JSON reader, those that know only floats included.
const CENTS_MAX: u64 = (1 << 53) - 1;

struct Ledger;

export!(Ledger);

impl Guest for Ledger {
    fn describe() -> Vec<ActionDescriptor> {
        vec![
            action(
                "open",
                "Open an account",
                "Creates an account with a balance in cents.",
                Hooks::empty(),
                json!({
                    "account": name_schema(), "balance": { "type": "integer", "minimum": 0, "maximum": CENTS_MAX }
                }),
            ),
            action(
                "reserve",
                "Reserve an amount",
                "Sets an amount of an account aside. Refuses an overdraft.",
                Hooks::AUTHORIZE,
                json!({
                    "account": name_schema(), "amount": { "type": "integer", "minimum": 1, "maximum": CENTS_MAX }, "reservation": name_schema()
                }),
            ),
            action(
                "book",
                "Book a reservation",
                "Takes a reserved amount out of its account, once.",
                Hooks::AUTHORIZE,
                json!({ "reservation": name_schema() }),
            ),
            action(
                "freeze",
                "Freeze an account",
                "Freezes or thaws an account: a frozen one refuses every booking.",
                Hooks::empty(),
                json!({ "account": name_schema(), "frozen": { "type": "boolean" } }),
            ),
        ]
    }

    /// A frozen account is a matter of access, so it is refused here. An account or reservation that does not exist is
    /// not: whoever started the run may well ask, and gets a failure from `run` that says what is missing.
    fn authorize(action: String, _context: Context, config: Json) -> Result<(), String> {
        let frozen = frozen_account(&action, &config).map_err(|failure| failure.message)?;
        match frozen {
            Some(name) => Err(format!("account `{name}` is frozen")),
            None => Ok(()),
        }
    }

    fn run(action: String, _context: Context, config: Json) -> Outcome {
        match perform(&action, &config) {
            Ok(output) => Outcome::Succeeded(Some(output.to_string())),
            Err(failure) => Outcome::Failed(failure),
        }
    }

    // What is committed with the journal is never in doubt, and consumes no budget: neither hook is declared.

    fn plan(_action: String, _context: Context, _config: Json) -> Result<Planned, Failure> {
        Err(failure("NOT_SUPPORTED", "the ledger's actions have no plan"))
    }

    fn reconcile(_action: String, _context: Context, _config: Json) -> Result<Fate, Failure> {
        Err(failure("NOT_SUPPORTED", "a transactional action has nothing to reconcile"))
    }
}

fn perform(action: &str, config: &str) -> Result<Value, Failure> {
    let config = Config::parse(config)?;
    match action {
        "open" => open(config.text("account")?, config.cents("balance")?),
        "reserve" => reserve(config.text("account")?, config.cents("amount")?, config.text("reservation")?),
        "book" => book(config.text("reservation")?),
        "freeze" => freeze(config.text("account")?, config.flag("frozen")?),
        other => Err(failure("NOT_SUPPORTED", &format!("the ledger has no action `{other}`"))),
    }
}

fn open(name: &str, balance: u64) -> Result<Value, Failure> {
    if find_account(name)?.is_some() {
        return Err(failure("ACCOUNT_EXISTS", &format!("account `{name}` is open already")));
    }
    let account = Account::open(balance);
    write(&account_key(name), &account.to_json())?;
    Ok(statement(name, &account))
}

fn reserve(name: &str, amount: u64, id: &str) -> Result<Value, Failure> {
    if find_reservation(id)?.is_some() {
        return Err(failure("RESERVATION_EXISTS", &format!("reservation `{id}` was made already")));
    }
    let mut account = the_account(name)?;
    account.reserve(amount).map_err(|refused| overdraft(name, refused))?;
    let reservation = Reservation { account: name.into(), amount, booked: false };
    write(&account_key(name), &account.to_json())?;
    write(&reservation_key(id), &reservation.to_json())?;
    Ok(with(statement(name, &account), "reservation", id.into()))
}

fn book(id: &str) -> Result<Value, Failure> {
    let mut reservation = find_reservation(id)?
        .ok_or_else(|| failure("RESERVATION_NOT_FOUND", &format!("there is no reservation `{id}`")))?;
    if reservation.booked {
        return Err(failure("RESERVATION_BOOKED", &format!("reservation `{id}` is booked already")));
    }
    let name = reservation.account.clone();
    let mut account = the_account(&name)?;
    account.book(reservation.amount).map_err(|refused| overdraft(&name, refused))?;
    reservation.booked = true;
    write(&account_key(&name), &account.to_json())?;
    write(&reservation_key(id), &reservation.to_json())?;
    Ok(with(with(statement(&name, &account), "reservation", id.into()), "booked", reservation.amount.into()))
}

fn freeze(name: &str, frozen: bool) -> Result<Value, Failure> {
    let mut account = the_account(name)?;
    account.frozen = frozen;
    write(&account_key(name), &account.to_json())?;
    Ok(statement(name, &account))
}

/// The name of the account that this configuration is about, if that account is frozen.
fn frozen_account(action: &str, config: &str) -> Result<Option<String>, Failure> {
    let config = Config::parse(config)?;
    let name = match action {
        "book" => find_reservation(config.text("reservation")?)?.map(|reservation| reservation.account),
        _ => Some(config.text("account")?.to_owned()),
    };
    let Some(name) = name else { return Ok(None) };
    let is_frozen = find_account(&name)?.is_some_and(|account| account.frozen);
    Ok(is_frozen.then_some(name))
}

fn account_key(name: &str) -> String {
    format!("account/{name}")
}

fn reservation_key(id: &str) -> String {
    format!("reservation/{id}")
}

fn the_account(name: &str) -> Result<Account, Failure> {
    find_account(name)?.ok_or_else(|| {
        failure("ACCOUNT_NOT_FOUND", &format!("there is no account `{name}`: `ledger/open` creates one"))
    })
}

fn find_account(name: &str) -> Result<Option<Account>, Failure> {
    read(&account_key(name), Account::from_json)
}

fn find_reservation(id: &str) -> Result<Option<Reservation>, Failure> {
    read(&reservation_key(id), Reservation::from_json)
}

fn read<T>(key: &str, understand: fn(&Value) -> Option<T>) -> Result<Option<T>, Failure> {
    let Some(text) = documents::get(key).map_err(|error| document_failure(key, error))? else { return Ok(None) };
    let value = serde_json::from_str(&text).ok().and_then(|value: Value| understand(&value));
    let damaged =
        || failure("LEDGER_DAMAGED", &format!("document `{key}` is not what the ledger writes there: {text}"));
    value.map(Some).ok_or_else(damaged)
}

fn write(key: &str, value: &Value) -> Result<(), Failure> {
    documents::put(key, &value.to_string()).map_err(|error| document_failure(key, error))
}

fn document_failure(key: &str, error: DocumentError) -> Failure {
    let (text, retryable) = match error {
        DocumentError::Denied(text) | DocumentError::Invalid(text) => (text, false),
        DocumentError::Unavailable(text) => (text, true),
    };
    Failure { retryable, ..failure("DOCUMENT_ERROR", &format!("document `{key}`: {text}")) }
}

fn overdraft(name: &str, refused: Refused) -> Failure {
    let Refused { available, requested } = refused;
    let message = format!("account `{name}` has {available} cents available, {requested} were asked for");
    let details = json!({ "account": name, "available": available, "requested": requested });
    Failure { details: Some(details.to_string()), ..failure("INSUFFICIENT_FUNDS", &message) }
}

fn failure(code: &str, message: &str) -> Failure {
    Failure { message: message.into(), code: Some(code.into()), retryable: false, retry_after_ms: None, details: None }
}

/// What every action answers with: the account as it now stands.
fn statement(name: &str, account: &Account) -> Value {
    with(with(account.to_json(), "account", name.into()), "available", account.available().into())
}

fn with(mut object: Value, key: &str, value: Value) -> Value {
    object[key] = value;
    object
}

/// The configuration of one action. The host has checked it against the schema; a mismatch is a mistake in this file.
struct Config(Value);

impl Config {
    fn parse(text: &str) -> Result<Self, Failure> {
        serde_json::from_str(text).map(Self).map_err(|error| failure("CONFIG_INVALID", &error.to_string()))
    }

    fn text(&self, key: &str) -> Result<&str, Failure> {
        self.0[key].as_str().ok_or_else(|| missing(key, "text"))
    }

    fn cents(&self, key: &str) -> Result<u64, Failure> {
        self.0[key].as_u64().ok_or_else(|| missing(key, "a whole number of cents"))
    }

    fn flag(&self, key: &str) -> Result<bool, Failure> {
        self.0[key].as_bool().ok_or_else(|| missing(key, "true or false"))
    }
}

fn missing(key: &str, kind: &str) -> Failure {
    failure("CONFIG_INVALID", &format!("`{key}` must be {kind}"))
}

fn action(name: &str, title: &str, description: &str, hooks: Hooks, properties: Value) -> ActionDescriptor {
    let required: Vec<_> = properties.as_object().into_iter().flat_map(|each| each.keys().cloned()).collect();
    let config_schema = json!({
        "type": "object", "required": required, "additionalProperties": false, "properties": properties
    });
    ActionDescriptor {
        name: name.into(),
        title: title.into(),
        description: description.into(),
        effect_class: EffectClass::Transactional,
        hooks,
        config_schema: config_schema.to_string(),
        output_schema: Some(statement_schema().to_string()),
        http: Vec::new(),
        meters: Vec::new(),
        limits: Limits { memory_bytes: None, cpu_ms: None, wall_ms: None, requests: None },
    }
}

/// Names become parts of document keys, so they are kept short and plain.
fn name_schema() -> Value {
    json!({ "type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$" })
}

fn statement_schema() -> Value {
    let cents = json!({ "type": "integer", "minimum": 0 });
    json!({
        "type": "object",
        "required": ["account", "balance", "reserved", "available", "frozen"],
        "properties": {
            "account": { "type": "string" }, "balance": cents, "reserved": cents, "available": cents, "booked": cents,
            "frozen": { "type": "boolean" }, "reservation": { "type": "string" }
        }
    })
}
