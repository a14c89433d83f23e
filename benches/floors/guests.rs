//! The example guests, a gate without a store around them, and what a step of it needs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;
use tollgate::clock::{Ambient, Timestamp};
use tollgate::component::Descriptor;
use tollgate::journal::{Commit, Committed, EffectRecord, Fence, Journal, JournalError, Then};
use tollgate::json;
use tollgate::perform::{Components, Continuation, Gate, Reserved, Retry};
use tollgate::policy::{Policy, Secrets};
use tollgate::sandbox::{CallContext, Component, Sandbox, Unobserved};
use tollgate::worker::lease::Lease;

/// The bytes of an example guest, built where that has not been done.
pub fn guest(name: &str) -> Vec<u8> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/build-guests");
    let built = Command::new(script).stderr(Stdio::null()).output().expect("scripts/build-guests runs");
    assert!(built.status.success(), "scripts/build-guests failed");
    let printed = String::from_utf8(built.stdout).expect("it prints text");
    let folder = PathBuf::from(printed.lines().last().expect("its last line is the folder"));
    std::fs::read(folder.join(format!("{name}.wasm"))).expect("the guest was built")
}

/// One action, loaded.
pub struct Action {
    pub gate: Gate,
    pub component: Component,
    pub reserved: Reserved,
}

impl Action {
    /// `action` of the guest `name` with this configuration, behind a gate whose journal keeps nothing.
    pub async fn load(sandbox: &Sandbox, name: &str, action: &str, input: Value, policy: &str) -> Action {
        let inspected = tollgate::component::inspect(sandbox, guest(name)).await.expect("the guest is acceptable");
        let component = sandbox.load(guest(name)).await.expect("the guest loads");
        let policy = Policy::parse("bench.toml", policy).unwrap_or_else(|report| panic!("{report}"));
        let descriptor = inspected.actions.into_iter().find(|found| found.name == action).expect("it has the action");
        let reserved = reserved(name, action, descriptor, &inspected.digest, input);
        let gate = Gate {
            sandbox: sandbox.clone(),
            journal: Arc::new(Nothing),
            secrets: Arc::new(Secrets::of(&policy)),
            policy: Arc::new(policy),
            components: Arc::new(One(component.clone())),
            ambient: Ambient::system(),
            budgets: true,
            check: None,
            observer: Arc::new(Unobserved),
        };
        Action { gate, component, reserved }
    }

    /// Its configuration as the guest gets it.
    pub fn input(&self) -> String {
        json::canonical(&self.reserved.input)
    }

    /// What the guest is told.
    pub fn context(&self) -> CallContext {
        CallContext {
            run_id: self.reserved.fence.run.clone(),
            step_key: self.reserved.step.clone(),
            effect_key: self.reserved.effect_key(),
            attempt: 1,
            invocation: self.reserved.invocation.clone(),
        }
    }
}

fn reserved(app: &str, action: &str, descriptor: Descriptor, digest: &str, input: Value) -> Reserved {
    Reserved {
        fence: Fence { run: "6502e89a97364f9aa20aa3912b9537a1".to_owned(), generation: 1 },
        step: "only".to_owned(),
        action: format!("{app}/{action}").parse().expect("it is a name"),
        descriptor: Arc::new(descriptor),
        component: digest.to_owned(),
        with: Arc::new(input.clone()),
        input_hash: json::hash(&input),
        input: Arc::new(input),
        save_as: None,
        retry: Retry { attempts: 1, backoff: std::time::Duration::ZERO, max_backoff: std::time::Duration::ZERO },
        timeout: None,
        attempt: 1,
        dispatch: "991db11671824a2d94eb49ccec5719e3".to_owned(),
        claim_token: "3c1f0c2e6a5b4d7f8091a2b3c4d5e6f7".to_owned(),
        reserved_at: Timestamp(1_796_002_158_087),
        tries: 0,
        key_retries: 0,
        begun_at: None,
        unheard_before: false,
        invocation: r#"{"labels":{},"params":{},"run":"6502e89a97364f9aa20aa3912b9537a1","workflow":"bench/one"}"#
            .to_owned(),
        variables: "{}".to_owned(),
        lease: Arc::new(Lease::unlimited()),
        continuation: Arc::new(Last),
    }
}

/// Nothing comes after it.
struct Last;

impl Continuation for Last {
    fn after(&self, _output: &Value, _now: Timestamp) -> Then {
        Then::Complete { skipped: Vec::new(), outputs: "{}".to_owned() }
    }
}

/// The one component there is.
struct One(Component);

impl Components for One {
    fn component<'a>(&'a self, _digest: &'a str) -> BoxFuture<'a, Result<Component, String>> {
        Box::pin(async move { Ok(self.0.clone()) })
    }
}

/// A journal that takes everything and keeps nothing.
struct Nothing;

impl Journal for Nothing {
    fn effect<'a>(&'a self, _run: &'a str, _key: &'a str) -> BoxFuture<'a, Result<Option<EffectRecord>, JournalError>> {
        Box::pin(async { Ok(None) })
    }

    fn commit(&self, _commit: Commit) -> BoxFuture<'_, Result<Committed, JournalError>> {
        Box::pin(async { Ok(Committed::Done) })
    }

    fn document<'a>(&'a self, _app: &'a str, _key: &'a str) -> BoxFuture<'a, Result<Option<String>, JournalError>> {
        Box::pin(async { Ok(None) })
    }

    fn documents<'a>(
        &'a self,
        _app: &'a str,
        _prefix: &'a str,
        _limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, String)>, JournalError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}
