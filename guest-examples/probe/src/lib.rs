//! A guest that does what its configuration says. The host's own tests drive it to see what each class of action may do
//! in each phase, and what becomes of a guest that misbehaves.
//!
//! The configuration has up to four lists of instructions, `authorize`, `plan`, `run` and `reconcile`. An export performs
//! the list of its phase in order. Every instruction has a `"do"` and leaves one result, an error as `{"error": text}`,
//! without stopping; some instructions end the phase instead, and the rest of the list is not performed:
//!
//! ```json
//! { "run": [ { "do": "doc-add", "key": "n", "by": 1 }, { "do": "fail", "message": "no", "attempt": 1 } ] }
//! ```
//!
//! A list without an ending ends thus: `authorize` allows, `plan` consumes nothing, `run` succeeds with
//! `{"results": […]}`, `reconcile` does not know. What an instruction takes is written at its arm in `instruction.rs`;
//! unknown instructions and unknown keys are failures with the code `PROBE_INVALID`, so that a test's typing error shows.

mod arguments;
mod ending;
mod instruction;

wit_bindgen::generate!({
    // The world of actions, and beyond it what only a probe would import.
    inline: "
        package tollgate:probe;

        world probe {
            include tollgate:action/action@0.1.0;
            import wasi:random/random@0.2.12;
            import wasi:random/insecure@0.2.12;
            import wasi:random/insecure-seed@0.2.12;
        }
    ",
    path: "../../wit",
    world: "tollgate:probe/probe",
    generate_all,
});

use ending::Ending;
use exports::tollgate::action::actions::Guest;
use serde_json::Value;
use tollgate::action::types::{
    ActionDescriptor, Context, EffectClass, Failure, Fate, Hooks, HttpNeed, Json, Limits, Outcome, Planned,
};

struct Probe;

export!(Probe);

impl Guest for Probe {
    fn describe() -> Vec<ActionDescriptor> {
        vec![
            action("pure-op", EffectClass::Pure, Hooks::AUTHORIZE),
            action("tx-op", EffectClass::Transactional, Hooks::AUTHORIZE | Hooks::PLAN),
            action("idem-op", EffectClass::Idempotent, Hooks::all()),
            action("plain-idem", EffectClass::Idempotent, Hooks::empty()),
            action("amb-op", EffectClass::Ambiguous, Hooks::all()),
        ]
    }

    fn authorize(_action: String, context: Context, config: Json) -> Result<(), String> {
        match perform("authorize", &context, &config) {
            Ending::Default(_) => Ok(()),
            Ending::Refuse(reason) => Err(reason),
            Ending::Fail(failure) => Err(failure.message),
            other => Err(other.misplaced("authorize").message),
        }
    }

    fn plan(_action: String, context: Context, config: Json) -> Result<Planned, Failure> {
        match perform("plan", &context, &config) {
            Ending::Default(_) => Ok(ending::plan_of_nothing()),
            Ending::Plan(planned) => Ok(planned),
            Ending::Fail(failure) => Err(failure),
            other => Err(other.misplaced("plan")),
        }
    }

    fn run(_action: String, context: Context, config: Json) -> Outcome {
        match perform("run", &context, &config) {
            Ending::Default(results) => Outcome::Succeeded(Some(ending::results(results))),
            Ending::Succeed(output) => Outcome::Succeeded(output),
            Ending::Fail(failure) => Outcome::Failed(failure),
            Ending::Wait(dependency) => Outcome::Waiting(dependency),
            Ending::Doubt(doubt) => Outcome::Ambiguous(doubt),
            other => Outcome::Failed(other.misplaced("run")),
        }
    }

    fn reconcile(_action: String, context: Context, config: Json) -> Result<Fate, Failure> {
        match perform("reconcile", &context, &config) {
            Ending::Default(_) => Ok(Fate::Unknown("the probe was not told".into())),
            Ending::Succeed(output) => Ok(Fate::Succeeded(output)),
            Ending::Fail(failure) => Ok(Fate::Failed(failure)),
            Ending::Unknown(message) => Ok(Fate::Unknown(message)),
            Ending::Error(failure) => Err(failure),
            other => Err(other.misplaced("reconcile")),
        }
    }
}

fn perform(phase: &str, context: &Context, config: &str) -> Ending {
    let list = serde_json::from_str(config).map(|mut config: Value| config[phase].take());
    match list {
        Ok(Value::Null) => Ending::Default(Vec::new()),
        Ok(Value::Array(list)) => instruction::perform_all(list, context),
        Ok(_) => Ending::invalid(format!("`{phase}` must be a list of instructions")),
        Err(error) => Ending::invalid(error.to_string()),
    }
}

/// Asks for everything that its class can have, so that the operator's policy alone decides.
fn action(name: &str, effect_class: EffectClass, hooks: Hooks) -> ActionDescriptor {
    let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"].map(str::to_owned);
    let need = |url: &str| HttpNeed { url: url.into(), methods: methods.to_vec(), safe: true };
    let has_plan = hooks.contains(Hooks::PLAN);
    ActionDescriptor {
        name: name.into(),
        title: format!("Probe {name}"),
        description: "Performs the instructions of its configuration.".into(),
        effect_class,
        hooks,
        config_schema: r#"{"type":"object"}"#.into(),
        output_schema: None,
        // A transactional action has no HTTP in any phase.
        http: match effect_class {
            EffectClass::Transactional => Vec::new(),
            _ => ["http://*/**", "https://*/**"].map(need).into(),
        },
        meters: if has_plan { ["emails", "usd", "calls"].map(str::to_owned).into() } else { Vec::new() },
        limits: Limits { memory_bytes: None, cpu_ms: None, wall_ms: None, requests: None },
    }
}
