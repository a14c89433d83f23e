//! The contract, in process: what each class does, what is charged, what is written.
//!
//! Most tests are tables over the probe guest. A row's last column says where the run stands, what the journal says of the
//! effect, what is used of `emails`, and how many effectful requests the provider received.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tollgate::clock::{Clock as _, Timestamp};
use tollgate::effect::{EffectClass, EffectState};
use tollgate::host::Host;
use tollgate::journal::{Commit, Committed, EffectRecord, Failure, Fence, Journal as _, JournalError};
use tollgate::perform::{Check, CheckedCall};
use tollgate::run::state::{RunState, StepState};
use tollgate::run::{DriveError, DriveOptions, Ended, Resolve, ResolveRunError, StartRun, Verdict};
use tollgate::store::{EventRow, ResolveError, StepRow};
use tollgate::workflow::Workflow;

use super::support::{
    TestClock, World, drive, failure, lose_worker_after_effect, one_step, options, parse, push, resume, run, start,
    until, used,
};

/// A moment that no test lives to see.
const FAR: &str = "2099-01-01T00:00:00Z";

fn post(world: &World) -> Value {
    json!({ "do": "http", "method": "POST", "url": format!("{}/v1/messages", world.provider.url), "body": "hello" })
}

fn lookup(world: &World) -> Value {
    json!({ "do": "lookup", "url": format!("{}/v1/messages?key=$KEY", world.provider.url) })
}

/// The instruction, at one attempt alone.
fn at(attempt: u32, mut instruction: Value) -> Value {
    instruction["attempt"] = attempt.into();
    instruction
}

/// A plan of one e-mail.
fn one_email() -> Value {
    json!([{ "do": "planned", "consumes": [{ "dimension": "emails", "amount": "1" }] }])
}

fn fail(code: &str) -> Value {
    json!({ "do": "fail", "message": "it failed", "code": code })
}

fn fail_retryably() -> Value {
    json!({ "do": "fail", "message": "again", "code": "AGAIN", "retryable": true })
}

fn attempts(count: u32) -> String {
    format!("    retry: {{ attempts: {count}, backoff: 1ms }}\n")
}

fn stands(ended: &Ended) -> String {
    match ended {
        Ended::Completed { .. } => "completed".to_owned(),
        Ended::Failed { failure } => format!("failed {}", failure.code),
        Ended::Blocked { failure, .. } => {
            format!("blocked {}", failure.as_ref().map_or("", |failure| failure.code.as_str()))
        }
        Ended::Waiting { failure: Some(failure), .. } => format!("retries {}", failure.code),
        Ended::Waiting { dependency, .. } => {
            format!("waits {}", dependency.as_ref().map_or("", |dependency| dependency.kind.as_str()))
        }
        other => format!("{other:?}"),
    }
}

/// Where the run stands, the effect's state, what is used, and what was sent beyond `sent_before`.
pub async fn summary(world: &World, host: &Host, run: &str, ended: &Ended, sent_before: usize) -> String {
    let effects = host.store.effects(run).await.expect("the store answers");
    let effect = effects.last().map_or("none", |effect| effect.state.as_str());
    let sent = world.provider.effectful_requests().len() - sent_before;
    format!("{} | {effect} | {} | {sent}", stands(ended), used(host, run, "emails").await)
}

async fn effect(host: &Host, run: &str) -> EffectRecord {
    let mut effects = host.store.effects(run).await.expect("the store answers");
    assert_eq!(effects.len(), 1, "{effects:?}");
    effects.remove(0)
}

async fn step(host: &Host, run: &str) -> StepRow {
    host.store.snapshot(run).await.expect("the store answers").expect("the run is there").steps.remove(0)
}

async fn events(host: &Host, run: &str, kind: &str) -> Vec<EventRow> {
    let events = host.store.events(run, 0, 1_000).await.expect("the store answers");
    events.into_iter().filter(|event| event.kind == kind).collect()
}

async fn state(host: &Host, run: &str) -> RunState {
    host.store.run(run).await.expect("the store answers").expect("the run is there").state
}

fn outputs(ended: Ended) -> Value {
    let Ended::Completed { outputs } = ended else { panic!("it should complete: {ended:?}") };
    serde_json::from_str(&outputs).expect("outputs are JSON")
}

/// One row: what, `run`, the provider's mode, more keys of the step, and what it comes to.
type Row = (&'static str, Value, &'static str, &'static str, &'static str);

async fn check_table(world: &World, host: &Host, action: &str, plan: &Value, table: Vec<Row>) {
    let mut wrong = Vec::new();
    for (what, instructions, mode, more, expected) in table {
        world.provider.control(&json!({ "mode": mode, "latency_ms": 300 }));
        let sent_before = world.provider.effectful_requests().len();
        let with = json!({ "plan": plan, "run": instructions });
        let id = start(host, one_step(action, &with, more)).await;
        let ended = drive(host, &id).await;
        let found = summary(world, host, &id, &ended, sent_before).await;
        if found != expected {
            wrong.push(format!("{action}, {what}\n  expected {expected}\n  found    {found}\n  {ended:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// R11, R12: every end of an ambiguous action, where nothing left, where what left was heard, and where it was not.
#[tokio::test(flavor = "multi_thread")]
async fn r11_r12_every_end_of_an_ambiguous_action() {
    let world = World::new();
    let host = world.probe().await;
    let post = post(&world);
    let silent = |mut instruction: Value| {
        instruction["do"] = "http-fire-and-forget".into();
        instruction
    };
    let elsewhere = json!({ "do": "http", "method": "POST", "url": "http://127.0.0.1:1/" });
    let wait = json!({ "do": "wait", "kind": "timer", "key": FAR });
    let doubt = json!({ "do": "doubt", "message": "it may have gone through", "code": "MAYBE" });
    let sleep = json!({ "do": "sleep", "ms": 30_000 });
    let not_json = json!({ "do": "succeed-raw", "text": "{" });
    let short = "    timeout: 1500ms\n";
    #[rustfmt::skip]
    let table = vec![
        ("nothing, succeeded", json!([{ "do": "succeed", "output": 5 }]), "accept", "", "completed | succeeded | 1 | 0"),
        ("nothing, trap", json!([{ "do": "panic", "message": "no" }]), "accept", "", "failed WORKFLOW_ACTION_TRAPPED | failed | 0 | 0"),
        ("nothing, exit", json!([{ "do": "exit" }]), "accept", "", "failed WORKFLOW_ACTION_TRAPPED | failed | 0 | 0"),
        ("nothing, timeout", json!([sleep]), "accept", short, "failed WORKFLOW_TIMEOUT | failed | 0 | 0"),
        ("nothing, output is no JSON", json!([not_json]), "accept", "", "failed WORKFLOW_OUTCOME_REFUSED | failed | 0 | 0"),
        ("nothing, output too large", json!([{ "do": "succeed-large", "bytes": 70_000 }]), "accept", "", "failed WORKFLOW_OUTCOME_REFUSED | failed | 0 | 0"),
        ("nothing, failed", json!([fail("NO")]), "accept", "", "failed NO | failed | 0 | 0"),
        ("nothing, failed without a code", json!([{ "do": "fail", "message": "no" }]), "accept", "", "failed WORKFLOW_ACTION_ERROR | failed | 0 | 0"),
        ("nothing, ambiguous", json!([doubt]), "accept", "", "failed MAYBE | failed | 0 | 0"),
        ("nothing, ambiguous without a code", json!([{ "do": "doubt", "message": "?" }]), "accept", "", "failed WORKFLOW_ACTION_ERROR | failed | 0 | 0"),
        ("nothing, waiting", json!([wait]), "accept", "", "waits timer | failed | 0 | 0"),
        ("refused by the policy, failed", json!([elsewhere, fail("NO")]), "accept", "", "failed NO | failed | 0 | 0"),
        ("heard, succeeded", json!([post]), "accept", "", "completed | succeeded | 1 | 1"),
        ("heard, trap", json!([post, { "do": "panic", "message": "no" }]), "accept", "", "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous | 1 | 1"),
        ("heard, timeout", json!([post, sleep]), "accept", short, "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous | 1 | 1"),
        ("heard, output is no JSON", json!([post, not_json]), "accept", "", "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous | 1 | 1"),
        ("heard, output too large", json!([post, { "do": "succeed-large", "bytes": 70_000 }]), "accept", "", "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous | 1 | 1"),
        ("heard, failed", json!([post, fail("NO")]), "accept", "", "failed NO | failed | 1 | 1"),
        ("heard as a refusal, failed", json!([post, fail("NO")]), "refuse", "", "failed NO | failed | 1 | 1"),
        ("heard, ambiguous", json!([post, doubt]), "accept", "", "blocked MAYBE | ambiguous | 1 | 1"),
        ("heard, waiting", json!([post, wait]), "accept", "", "waits timer | executing | 1 | 1"),
        ("heard after the export returned, failed", json!([silent(post.clone()), fail("NO")]), "accept-late", "", "failed NO | failed | 1 | 1"),
        ("accepted and unheard, failed", json!([post, fail("NO")]), "accept-then-drop", "", "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous | 1 | 1"),
        ("unheard, failed", json!([post, fail("NO")]), "drop", "", "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous | 1 | 1"),
        ("unheard, failed retryably", json!([post, fail_retryably()]), "drop", "    retry: { attempts: 3 }\n", "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous | 1 | 1"),
        ("unheard, ambiguous", json!([post, doubt]), "drop", "", "blocked MAYBE | ambiguous | 1 | 1"),
        ("unheard, succeeded", json!([post, { "do": "succeed" }]), "drop", "", "completed | succeeded | 1 | 1"),
        ("in flight until wall, failed", json!([silent(post.clone()), fail("NO")]), "accept-then-hang", short, "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous | 1 | 1"),
    ];
    check_table(&world, &host, "amb-op", &one_email(), table).await;
}

/// R11, R12: the same of an idempotent action, which is repeated rather than doubted, while it can be.
#[tokio::test(flavor = "multi_thread")]
async fn r11_r12_every_end_of_an_idempotent_action() {
    let world = World::new();
    let host = world.probe().await;
    let post = post(&world);
    let wait = json!({ "do": "wait", "kind": "timer", "key": FAR });
    let doubt = json!({ "do": "doubt", "message": "it may have gone through", "code": "MAYBE" });
    let not_json = json!({ "do": "succeed-raw", "text": "{" });
    #[rustfmt::skip]
    let table = vec![
        ("nothing, succeeded", json!([{ "do": "succeed" }]), "accept", "", "completed | succeeded | 1 | 0"),
        ("nothing, trap", json!([{ "do": "panic", "message": "no" }]), "accept", "", "failed WORKFLOW_ACTION_TRAPPED | failed | 0 | 0"),
        ("nothing, refused output", json!([not_json]), "accept", "", "failed WORKFLOW_OUTCOME_REFUSED | failed | 0 | 0"),
        ("nothing, failed", json!([fail("NO")]), "accept", "", "failed NO | failed | 0 | 0"),
        ("nothing, waiting", json!([wait]), "accept", "", "waits timer | none | 0 | 0"),
        ("heard, succeeded", json!([post]), "accept", "", "completed | succeeded | 1 | 1"),
        ("heard, trap", json!([post, { "do": "panic", "message": "no" }]), "accept", "", "failed WORKFLOW_ACTION_TRAPPED | failed | 1 | 1"),
        ("heard, refused output", json!([post, not_json]), "accept", "", "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous | 1 | 1"),
        ("heard, failed", json!([post, fail("NO")]), "accept", "", "failed NO | failed | 1 | 1"),
        ("heard, ambiguous", json!([post, doubt]), "accept", "", "blocked MAYBE | ambiguous | 1 | 1"),
        ("heard, waiting", json!([post, wait]), "accept", "", "waits timer | executing | 1 | 1"),
        ("unheard, failed", json!([post, fail("NO")]), "drop", "", "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous | 1 | 1"),
        ("unheard, trap", json!([post, { "do": "panic", "message": "no" }]), "drop", "", "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous | 1 | 1"),
        ("unheard, ambiguous", json!([post, doubt]), "drop", "", "blocked MAYBE | ambiguous | 1 | 1"),
        ("unheard, tried again", json!([post, fail_retryably()]), "drop", "    retry: { attempts: 2, backoff: 1h, maxBackoff: 1h }\n", "retries AGAIN | none | 1 | 1"),
    ];
    check_table(&world, &host, "idem-op", &one_email(), table).await;
}

/// R11: what a pure or a transactional action answers. Its `ambiguous` is a failure; nothing of it is ever in doubt.
#[tokio::test(flavor = "multi_thread")]
async fn r11_every_end_of_a_pure_and_of_a_transactional_action() {
    let world = World::new();
    let host = world.probe().await;
    let wait = json!({ "do": "wait", "kind": "signal", "key": "go" });
    let doubt = json!({ "do": "doubt", "message": "perhaps", "code": "MAYBE" });
    let rows = |done: &'static str| -> Vec<Row> {
        #[rustfmt::skip]
        let table = vec![
            ("succeeded", json!([{ "do": "succeed" }]), "accept", "", done),
            ("trap", json!([{ "do": "abort" }]), "accept", "", "failed WORKFLOW_ACTION_TRAPPED | none | 0 | 0"),
            ("spins", json!([{ "do": "spin" }]), "accept", "", "failed WORKFLOW_TIMEOUT | none | 0 | 0"),
            ("sleeps", json!([{ "do": "sleep", "ms": 30_000 }]), "accept", "    timeout: 500ms\n", "failed WORKFLOW_TIMEOUT | none | 0 | 0"),
            ("refused output", json!([{ "do": "succeed-raw", "text": "[1e999]" }]), "accept", "", "failed WORKFLOW_OUTCOME_REFUSED | none | 0 | 0"),
            ("failed", json!([fail("NO")]), "accept", "", "failed NO | none | 0 | 0"),
            ("ambiguous", json!([doubt]), "accept", "", "failed MAYBE | none | 0 | 0"),
            ("waiting", json!([wait]), "accept", "", "waits signal | none | 0 | 0"),
            ("a request", json!([post(&world)]), "accept", "", done),
        ];
        table
    };
    check_table(&world, &host, "pure-op", &Value::Null, rows("completed | none | 0 | 0")).await;
    check_table(&world, &host, "tx-op", &one_email(), rows("completed | succeeded | 1 | 0")).await;
}

/// R11: a failure is the guest's, word for word; its default code and its default of not being tried again are the host's.
#[tokio::test(flavor = "multi_thread")]
async fn r11_a_failure_keeps_its_message_code_and_details() {
    let world = World::new();
    let host = world.probe().await;
    let full =
        json!({ "run": [{ "do": "fail", "message": "no\u{0}way", "code": "NO_WAY", "details": { "left": 0 } }] });
    let Failure { code, message, retryable, details, .. } = failure(&host, "pure-op", full).await;
    assert_eq!((code.as_str(), message.as_str(), retryable), ("NO_WAY", "no\u{fffd}way", false));
    assert_eq!(details, Some(json!({ "left": 0 })));

    let bare = json!({ "run": [{ "do": "fail", "message": "no" }] });
    let bare = failure(&host, "pure-op", bare).await;
    assert_eq!(bare, Failure::permanent("WORKFLOW_ACTION_ERROR", "no"));

    let unreadable = json!({ "run": [{ "do": "fail", "message": "no", "details_raw": "{\"a\":\"\\ud800\"}" }] });
    let details = failure(&host, "pure-op", unreadable).await.details.expect("something is kept");
    assert!(details["unreadable"].is_string(), "{details}");
}

/// R1: the key is derived from run and step, and the same at every attempt.
#[tokio::test(flavor = "multi_thread")]
async fn r1_the_effect_key_is_the_same_at_every_attempt() {
    let world = World::new();
    let host = world.probe().await;
    for action in ["idem-op", "amb-op"] {
        let sent_before = world.provider.effectful_requests().len();
        let with = json!({
            "plan": one_email(),
            "run": [post(&world), at(1, fail_retryably()), at(2, fail_retryably())],
        });
        let (id, ended) = run(&host, one_step(action, &with, &attempts(3))).await;
        assert_eq!(stands(&ended), "completed", "{ended:?}");
        let requests = world.provider.effectful_requests().split_off(sent_before);
        let keys: Vec<_> = requests.iter().map(|request| request["key"].as_str().unwrap_or_default()).collect();
        assert_eq!(keys, vec![format!("workflow:{id}:step:only"); 3], "{action}");
        assert_eq!(effect(&host, &id).await.key, keys[0]);
        // B5: charged by dispatch.
        assert_eq!(used(&host, &id, "emails").await, "3", "{action}");
    }
}

/// R1: only a person's word changes the key, and the record says whose.
#[tokio::test(flavor = "multi_thread")]
async fn r1_a_new_key_is_a_persons_word_and_recorded() {
    let world = World::new();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    world.provider.control(&json!({ "mode": "drop", "times": 1 }));
    let with = json!({ "plan": one_email(), "run": [post(&world), at(1, fail("NO"))] });
    let id = start(&host, one_step("amb-op", &with, "")).await;
    assert_eq!(stands(&drive(&host, &id).await), "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN");

    clock.forward(Duration::from_secs(7));
    assert_eq!(resolve(&host, &id, Verdict::RetryWithNewKey).await.expect("it is late enough"), RunState::Active);
    assert_eq!(stands(&drive(&host, &id).await), "completed");
    let keys: Vec<_> = world.provider.effectful_requests().iter().map(|request| request["key"].clone()).collect();
    assert_eq!(keys, [format!("workflow:{id}:step:only"), format!("workflow:{id}:step:only:retry:1")]);
    let states: Vec<_> =
        host.store.effects(&id).await.expect("the store answers").iter().map(|effect| effect.state).collect();
    assert_eq!(states, [EffectState::Failed, EffectState::Succeeded]);
    let resolved = &events(&host, &id, "effect.resolved").await[0];
    assert_eq!(resolved.data["actor"], "Ada");
    assert_eq!(resolved.data["because"], "she looked");
    assert_eq!(resolved.data["verdict"], "retry with a new key");
}

async fn resolve(host: &Host, run: &str, verdict: Verdict) -> Result<RunState, ResolveRunError> {
    let (actor, because) = ("Ada".to_owned(), "she looked".to_owned());
    host.resolve(Resolve { run: run.to_owned(), step: None, verdict, actor, because }).await
}

/// R1, R12: under a new key nothing has begun yet: what the attempts under the old one left unheard is a person's by then.
#[tokio::test(flavor = "multi_thread")]
async fn r1_r12_under_a_new_key_the_old_requests_leave_nothing_in_doubt() {
    let world = World::new();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    world.provider.control(&json!({ "mode": "drop", "times": 1 }));
    let with = json!({ "plan": one_email(), "run": [at(1, post(&world)), fail("NO")] });
    let id = start(&host, one_step("idem-op", &with, "")).await;
    assert_eq!(stands(&drive(&host, &id).await), "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN");
    clock.forward(Duration::from_secs(7));
    resolve(&host, &id, Verdict::RetryWithNewKey).await.expect("it is late enough");
    assert_eq!(stands(&drive(&host, &id).await), "failed NO");
}

/// R2: evaluated once, stored, and the same at every attempt.
#[tokio::test(flavor = "multi_thread")]
async fn r2_the_input_is_stored_with_the_first_reservation_and_stays() {
    let world = World::new();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    let url = format!("{}/v1/messages", world.provider.url);
    let post = json!({ "do": "http", "method": "POST", "url": url, "body": "{{ params.text }} {{ params.n + 1 }}" });
    let with = json!({
        "plan": one_email(),
        "run": [post, at(1, fail_retryably()), { "do": "resolve", "path": "run[0].body" }, { "do": "binding", "path": "run[0].body" }],
    });
    let workflow = one_step("idem-op", &with, "    retry: { attempts: 2, backoff: 1h, maxBackoff: 1h }\n");
    let params = json!({ "text": "hello", "n": 3_544_790_567_247_868_102_i64 });
    let started = host.start(StartRun { params, ..StartRun::of(workflow) }).await.expect("it starts").run;
    assert_eq!(stands(&drive(&host, &started).await), "retries AGAIN");
    let first = step(&host, &started).await;
    clock.forward(Duration::from_secs(3_601));
    let results = outputs(drive(&host, &started).await)["result"]["results"].clone();
    let second = step(&host, &started).await;
    assert_eq!((&first.input, &first.input_hash), (&second.input, &second.input_hash));
    assert_eq!(first.reserved_at, second.reserved_at, "the frozen phases see the time of the first reservation");

    let bodies: Vec<_> = world.provider.effectful_requests().iter().map(|request| request["body"].clone()).collect();
    assert_eq!(bodies, ["hello 3544790567247868103"; 2]);
    // R3: the value stored at the path, and the expression written there.
    assert_eq!(results[1], "hello 3544790567247868103");
    assert_eq!(results[2], "{{ params.text }} {{ params.n + 1 }}");
}

/// R2: what does not evaluate or does not fit fails the step with the path, before anything else happens.
#[tokio::test(flavor = "multi_thread")]
async fn r2_what_does_not_evaluate_or_fit_fails_before_anything_else() {
    let world = World::new();
    world.edit_policy("[app.probe]", "[app.ledger]\nclasses = [\"transactional\"]\n\n[app.probe]");
    let host = world.probe().await;
    push(&host, "ledger", "ledger").await;
    let first = json!({ "run": [{ "do": "succeed", "output": [{ "email": "ada@example.com" }] }] });
    let two = |step: &str| {
        parse(&format!(
            "workflow: test/two\nsteps:\n  - {{ id: first, action: probe/pure-op, with: {first}, saveAs: overdue }}\n  - {step}\n"
        ))
    };
    let misspelt = json!({ "authorize": [{ "do": "panic", "message": "no" }], "run": [post(&world)], "to": "{{ overdue[0].emial }}" });
    let table = [
        (
            two(&format!("{{ id: second, action: probe/amb-op, with: {misspelt} }}")),
            "steps.second.with.to: \"{{ overdue[0].emial }}\" is undefined",
        ),
        (
            two("{ id: second, action: ledger/open, with: { account: ada, balance: -5 } }"),
            "steps.second.with.balance: ",
        ),
        (two("{ id: second, action: probe/amb-op, if: \"{{ overdue[0].emial }}\", with: {} }"), "steps.second.if: "),
    ];
    for (workflow, message) in table {
        let (id, ended) = run(&host, workflow).await;
        let Ended::Failed { failure } = ended else { panic!("it should fail: {ended:?}") };
        assert_eq!((failure.code.as_str(), failure.retryable), ("CONFIG_INVALID", false));
        assert!(failure.message.contains(message), "{}", failure.message);
        let stored = host.store.snapshot(&id).await.expect("the store answers").expect("the run is there");
        assert_eq!(stored.steps[1].state, StepState::Failed);
        assert!(stored.attempts.iter().all(|attempt| attempt.unit == "first"), "nothing was reserved for it");
        assert!(host.store.effects(&id).await.expect("the store answers").is_empty());
    }
    assert_eq!(world.provider.requests(), Vec::<Value>::new());
}

/// R3: a guest is told its attempt only where it calls out; elsewhere it is 1, because what differs between attempts would
/// make a repetition differ.
#[tokio::test(flavor = "multi_thread")]
async fn r3_the_attempt_is_told_only_where_it_can_matter() {
    let world = World::new();
    let patient = world.probe().await;
    world.edit_policy("wall = \"5s\"", "wall = \"300ms\"").edit_policy("cpu = \"1s\"", "cpu = \"300ms\"");
    let hasty = world.host().await;
    let with = json!({ "run": [{ "do": "sleep", "ms": 600 }, { "do": "context" }] });
    for (action, told) in [("pure-op", 1), ("tx-op", 1), ("idem-op", 2), ("amb-op", 2)] {
        let id = start(&patient, one_step(action, &with, "    retry: { attempts: 2, backoff: 1s }\n")).await;
        assert_eq!(stands(&drive(&hasty, &id).await), "retries WORKFLOW_TIMEOUT", "{action}");
        let ended = patient.drive(&id, options("test")).await.expect("it can be driven");
        let context = outputs(ended)["result"]["results"][1].clone();
        assert_eq!(context["attempt"], told, "{action}");
        assert_eq!(context["run_id"], id);
        assert_eq!(context["step_key"], "only");
        assert_eq!(context["effect_key"], format!("workflow:{id}:step:only"));
        assert_eq!(context["invocation"]["workflow"], "test/one");
        assert_eq!(events(&patient, &id, "attempt.started").await.len(), 2, "{action}");
    }
}

/// R4: a refusal is a failure like any other, of fixed words, before any charge, mark or effect, and is not tried again.
#[tokio::test(flavor = "multi_thread")]
async fn r4_a_refusal_says_nothing_and_changes_nothing() {
    let world = World::new();
    let host = world.probe().await;
    for action in ["pure-op", "tx-op", "idem-op", "amb-op"] {
        let with = json!({
            "authorize": [{ "do": "refuse", "reason": "Ada is on leave" }],
            "plan": [{ "do": "panic", "message": "plan" }],
            "run": [{ "do": "panic", "message": "run" }],
        });
        let id = start(&host, one_step(action, &with, &attempts(3))).await;
        let ended = drive(&host, &id).await;
        assert_eq!(summary(&world, &host, &id, &ended, 0).await, "failed FORBIDDEN | none | 0 | 0", "{action}");
        let Ended::Failed { failure } = ended else { unreachable!("it failed") };
        assert_eq!(failure.message, "not authorized to perform this action");
        assert!(!failure.retryable);
        // For the operator, who needs it.
        assert_eq!(failure.details.expect("there are details")["reason"], "Ada is on leave");
        assert_eq!(events(&host, &id, "attempt.finished").await.len(), 1, "{action}");
    }
}

/// What an embedder's check was asked.
#[derive(Default)]
struct Asked {
    calls: Mutex<Vec<(String, Value)>>,
    refuses: bool,
}

impl Check for Asked {
    fn check<'a>(&'a self, call: &'a CheckedCall<'a>) -> BoxFuture<'a, Result<(), String>> {
        let mut calls = self.calls.lock().expect("nobody panicked");
        calls.push((format!("{} {}", call.action, call.context.effect_key), call.input.clone()));
        let answer = if self.refuses { Err("the customer has left".to_owned()) } else { Ok(()) };
        Box::pin(async move { answer })
    }
}

/// R4: the embedder's own check is asked first; where it refuses, the action is not asked.
#[tokio::test(flavor = "multi_thread")]
async fn r4_the_embedders_check_is_asked_first() {
    let world = World::new();
    let mut host = world.probe().await;
    let check = Arc::new(Asked { refuses: true, ..Asked::default() });
    host.check = Some(check.clone());
    let with = json!({ "authorize": [{ "do": "panic", "message": "asked" }], "run": [post(&world)] });
    let (id, ended) = run(&host, one_step("amb-op", &with, "")).await;
    let Ended::Failed { failure } = &ended else { panic!("it should fail: {ended:?}") };
    assert_eq!(
        (failure.code.as_str(), failure.message.as_str()),
        ("FORBIDDEN", "not authorized to perform this action")
    );
    let details = failure.details.clone().expect("there are details");
    assert_eq!(details, json!({ "refused by": "the host's own check", "reason": "the customer has left" }));
    assert_eq!(*check.calls.lock().expect("fine"), [(format!("probe/amb-op workflow:{id}:step:only"), with)]);

    // It may allow, and the action still refuse; a plain-idem has no `authorize`, and the check is asked all the same.
    let check = Arc::new(Asked::default());
    host.check = Some(check.clone());
    let with = json!({ "authorize": [{ "do": "refuse", "reason": "no" }] });
    assert_eq!(super::support::failure(&host, "pure-op", with).await.code, "FORBIDDEN");
    let (_, ended) = run(&host, one_step("plain-idem", &json!({}), "")).await;
    assert_eq!(stands(&ended), "completed");
    assert_eq!(check.calls.lock().expect("fine").len(), 2);
}

/// R4: a policy that no longer allows the class refuses what was pushed under an earlier one.
#[tokio::test(flavor = "multi_thread")]
async fn r4_a_policy_that_no_longer_allows_the_class_refuses() {
    let world = World::new();
    let host = world.probe().await;
    let with = json!({ "plan": one_email(), "run": [post(&world)] });
    let id = start(&host, one_step("amb-op", &with, "")).await;
    world.edit_policy("\"idempotent\", \"ambiguous\"]", "\"idempotent\"]");
    let narrowed = world.host().await;
    let ended = drive(&narrowed, &id).await;
    assert_eq!(summary(&world, &narrowed, &id, &ended, 0).await, "failed FORBIDDEN | none | 0 | 0");
    let Ended::Failed { failure } = ended else { unreachable!("it failed") };
    assert_eq!(failure.details.expect("there are details")["refused by"], "the policy");
}

/// R5: with budgets off `plan` is not called, nothing is charged, and meters count without refusing; with budgets on it is
/// called also where the budget names no cap.
#[tokio::test(flavor = "multi_thread")]
async fn r5_plan_is_called_exactly_where_budgets_are_on() {
    let world = World::new();
    let mut host = world.probe().await;
    let with = json!({ "plan": [{ "do": "panic", "message": "planned" }], "run": [post(&world)] });
    let uncapped = || {
        parse(&format!(
            "workflow: test/uncapped\nsteps:\n  - {{ id: only, action: probe/amb-op, with: {} }}\n",
            json!({ "plan": one_email(), "run": [post(&world)] })
        ))
    };
    assert_eq!(failure(&host, "amb-op", with.clone()).await.code, "WORKFLOW_ACTION_TRAPPED");
    let (id, ended) = run(&host, uncapped()).await;
    assert_eq!(summary(&world, &host, &id, &ended, 0).await, "completed | succeeded | 1 | 1");

    host.budgets = false;
    let (id, ended) = run(&host, one_step("amb-op", &with, "")).await;
    assert_eq!(summary(&world, &host, &id, &ended, 1).await, "completed | succeeded | 0 | 1");
}

/// R5: a `plan` that errs or answers nonsense fails the step before anything is charged or sent.
#[tokio::test(flavor = "multi_thread")]
async fn r5_a_plan_that_errs_stops_the_step_before_the_charge() {
    let world = World::new();
    let host = world.probe().await;
    for action in ["tx-op", "idem-op", "amb-op"] {
        let with = json!({ "plan": [{ "do": "fail", "message": "no", "code": "NO_PLAN" }], "run": [post(&world)] });
        let (id, ended) = run(&host, one_step(action, &with, "")).await;
        assert_eq!(summary(&world, &host, &id, &ended, 0).await, "failed NO_PLAN | none | 0 | 0", "{action}");
    }
}

/// R7: before the first byte leaves, the mark is durable with everything that recovery needs, and the charge with it.
#[tokio::test(flavor = "multi_thread")]
async fn r7_the_mark_is_durable_before_anything_leaves() {
    let world = World::new();
    let host = world.probe().await;
    world.provider.control(&json!({ "mode": "accept-late", "latency_ms": 1_500 }));
    let with = json!({ "plan": one_email(), "run": [post(&world)] });
    let id = start(&host, one_step("amb-op", &with, "")).await;
    let (driving, driven) = (host.clone(), id.clone());
    let worker = tokio::spawn(async move { drive(&driving, &driven).await });
    until("the request arrived", async || !world.provider.effects().is_empty()).await;

    let mark = effect(&host, &id).await;
    let row = host.store.run(&id).await.expect("the store answers").expect("the run is there");
    let component = host.store.component("probe", None).await.expect("the store answers").expect("it was pushed");
    assert_eq!(mark.key, format!("workflow:{id}:step:only"));
    assert_eq!((mark.state, mark.class), (EffectState::Executing, EffectClass::Ambiguous));
    assert_eq!(mark.input_hash, tollgate::json::hash(&with));
    assert_eq!(mark.component, component.digest);
    assert_eq!(mark.generation, row.generation);
    assert_eq!(mark.deadline, mark.marked_at.plus(Duration::from_secs(5)));
    assert_eq!(mark.visible_within_ms, 1_000);
    assert_eq!(used(&host, &id, "emails").await, "1");
    let arrived = world.provider.requests()[0]["at"].as_i64().expect("a time");
    assert!(mark.marked_at.0 <= arrived, "{} {arrived}", mark.marked_at.0);
    let stored = host.store.snapshot(&id).await.expect("the store answers").expect("the run is there");
    assert_eq!(stored.attempts[0].dispatch, mark.dispatch);

    assert_eq!(stands(&worker.await.expect("it does not panic")), "completed");
    assert_eq!(effect(&host, &id).await.state, EffectState::Succeeded);
}

/// R7: past the deadline no byte of an effectful request leaves; the host knows it, so nothing is in doubt (R12).
#[tokio::test(flavor = "multi_thread")]
async fn r7_past_the_deadline_nothing_leaves() {
    let world = World::new();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    let with = json!({ "plan": one_email(), "run": [{ "do": "sleep", "ms": 1_000 }, post(&world), fail("NO")] });
    let id = start(&host, one_step("amb-op", &with, "")).await;
    let (driving, driven) = (host.clone(), id.clone());
    let worker = tokio::spawn(async move { drive(&driving, &driven).await });
    until("it is marked", async || !host.store.effects(&id).await.expect("it answers").is_empty()).await;
    clock.forward(Duration::from_secs(6));
    let ended = worker.await.expect("it does not panic");
    assert_eq!(summary(&world, &host, &id, &ended, 0).await, "failed NO | failed | 0 | 0");
    let stored = host.store.snapshot(&id).await.expect("the store answers").expect("the run is there");
    let record = stored.attempts[0].record.clone().expect("it has a record");
    assert!(record.requests[0].error.as_ref().is_some_and(|error| error.contains("deadline")), "{record:?}");
}

/// R7, R14: without a live lease no byte of an effectful request leaves, and whoever lost it writes nothing more.
#[tokio::test(flavor = "multi_thread")]
async fn r7_without_a_live_lease_nothing_leaves() {
    let world = World::new();
    let host = world.probe().await;
    let with = json!({ "plan": one_email(), "run": [{ "do": "sleep", "ms": 2_000 }, post(&world)] });
    let id = start(&host, one_step("amb-op", &with, "")).await;
    let (driving, driven) = (host.clone(), id.clone());
    let options = DriveOptions { lease: Duration::from_millis(900), ..options("test") };
    let worker = tokio::spawn(async move { driving.drive(&driven, options).await });
    until("it is marked", async || !host.store.effects(&id).await.expect("it answers").is_empty()).await;
    assert!(host.abandon(&id, "Ada", "no longer wanted").await.expect("the store answers"));
    let ended = worker.await.expect("it does not panic");
    assert!(matches!(&ended, Err(DriveError::Journal(JournalError::Fenced { .. }))), "{ended:?}");
    assert_eq!(world.provider.requests(), Vec::<Value>::new());
}

/// Writes a record under the key of a step of a run that nobody has claimed, as an earlier worker would have.
async fn plant(host: &Host, run: &str, class: EffectClass, with: &Value, state: EffectState) -> EffectRecord {
    let record = record_of(host, run, "only", class, with, state).await;
    write(host, run, record.clone()).await;
    record
}

async fn record_of(
    host: &Host,
    run: &str,
    step: &str,
    class: EffectClass,
    with: &Value,
    state: EffectState,
) -> EffectRecord {
    let component = host.store.component("probe", None).await.expect("the store answers").expect("it was pushed");
    let now = host.ambient.clock.now();
    EffectRecord {
        key: format!("workflow:{run}:step:{step}"),
        step: step.to_owned(),
        class,
        state,
        input_hash: tollgate::json::hash(with),
        component: component.digest,
        generation: 0,
        dispatch: "planted".to_owned(),
        marked_at: now,
        deadline: now.plus(Duration::from_secs(5)),
        visible_within_ms: 1_000,
        output: (state == EffectState::Succeeded)
            .then(|| r#"{"a":1.5,"b":"\u0000","c":3544790567247868102}"#.to_owned()),
        failure: None,
        settled_at: None,
    }
}

async fn write(host: &Host, run: &str, record: EffectRecord) {
    let row = host.store.run(run).await.expect("the store answers").expect("the run is there");
    let mut commit = Commit::new(Fence { run: run.to_owned(), generation: row.generation }, host.ambient.clock.now());
    commit.effect = Some(record);
    assert_eq!(host.store.commit(commit).await.expect("the store answers"), Committed::Done);
}

/// The classes that have a journal, with the probe's action of each.
const JOURNALED: [(EffectClass, &str); 3] =
    [(EffectClass::Transactional, "tx-op"), (EffectClass::Idempotent, "idem-op"), (EffectClass::Ambiguous, "amb-op")];

/// Whatever is asked traps.
fn nobody_is_asked() -> Value {
    let trap = json!([{ "do": "panic", "message": "nobody is asked" }]);
    json!({ "authorize": trap, "plan": trap, "run": trap, "reconcile": trap })
}

/// R8, R9: what succeeded for this input is restored byte for byte; nothing runs, nothing is charged, nobody is asked.
#[tokio::test(flavor = "multi_thread")]
async fn r8_r9_what_succeeded_is_restored_byte_for_byte() {
    let world = World::new();
    let mut host = world.probe().await;
    let check = Arc::new(Asked { refuses: true, ..Asked::default() });
    host.check = Some(check.clone());
    for (class, action) in JOURNALED {
        let with = nobody_is_asked();
        let id = start(&host, one_step(action, &with, "")).await;
        let planted = plant(&host, &id, class, &with, EffectState::Succeeded).await;
        let ended = drive(&host, &id).await;
        assert_eq!(summary(&world, &host, &id, &ended, 0).await, "completed | succeeded | 0 | 0", "{action}");
        assert_eq!(step(&host, &id).await.output, planted.output, "{action}: byte for byte");
        assert_eq!(outputs(ended)["result"], json!({ "a": 1.5, "b": "\u{0}", "c": 3_544_790_567_247_868_102_i64 }));
        assert_eq!(events(&host, &id, "step.completed").await[0].data["how"], "restored", "{action}");
        assert_eq!(effect(&host, &id).await.dispatch, "planted", "{action}: the record stays as it was");
    }
    assert!(check.calls.lock().expect("fine").is_empty(), "nobody is asked");
}

/// R8: what succeeded for another input is for a person, never silently reused; a person's word then completes the step.
#[tokio::test(flavor = "multi_thread")]
async fn r8_what_succeeded_for_another_input_needs_attention() {
    let world = World::new();
    let host = world.probe().await;
    for (class, action) in JOURNALED {
        let with = nobody_is_asked();
        let id = start(&host, one_step(action, &with, &attempts(3))).await;
        plant(&host, &id, class, &json!({ "other": true }), EffectState::Succeeded).await;
        let ended = drive(&host, &id).await;
        let expected = "blocked WORKFLOW_EFFECT_INPUT_CHANGED | succeeded | 0 | 0";
        assert_eq!(summary(&world, &host, &id, &ended, 0).await, expected, "{action}");
        // Asked again, it says the same again.
        let ended = resume(&host, &id).await;
        assert_eq!(summary(&world, &host, &id, &ended, 0).await, expected, "{action}");
        assert_eq!(state(&host, &id).await, RunState::Blocked);
        let resolved = resolve(&host, &id, Verdict::Succeeded(Some("7".to_owned()))).await;
        assert_eq!(resolved.expect("it is blocked"), RunState::Active, "{action}");
        assert_eq!(outputs(drive(&host, &id).await)["result"], 7, "{action}");
    }
}

/// R8: what failed goes through the contract again, under the same key; so does an idempotent effect in doubt.
#[tokio::test(flavor = "multi_thread")]
async fn r8_what_failed_is_performed_again_under_the_same_key() {
    let world = World::new();
    let host = world.probe().await;
    let table = [
        (EffectClass::Ambiguous, "amb-op", EffectState::Failed),
        (EffectClass::Idempotent, "idem-op", EffectState::Failed),
        (EffectClass::Idempotent, "idem-op", EffectState::Executing),
        (EffectClass::Idempotent, "idem-op", EffectState::Ambiguous),
    ];
    for (class, action, planted) in table {
        let sent_before = world.provider.effectful_requests().len();
        let with =
            json!({ "plan": one_email(), "run": [post(&world)], "reconcile": [{ "do": "panic", "message": "asked" }] });
        let id = start(&host, one_step(action, &with, "")).await;
        plant(&host, &id, class, &with, planted).await;
        let ended = drive(&host, &id).await;
        let found = summary(&world, &host, &id, &ended, sent_before).await;
        assert_eq!(found, "completed | succeeded | 1 | 1", "{action} {planted}");
        let key = &world.provider.effectful_requests()[sent_before]["key"];
        assert_eq!(*key, format!("workflow:{id}:step:only"));
    }
}

/// R8: what may have begun is asked about, without authorization or charge; early, only *succeeded* is believed, and
/// waiting to ask again uses up no retry.
#[tokio::test(flavor = "multi_thread")]
async fn r8_what_may_have_begun_is_reconciled() {
    let world = World::new();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    let asks_again = "waits timer | executing | 0 | 0";
    #[rustfmt::skip]
    let table = [
        (json!({ "do": "succeed", "output": 5 }), "completed | succeeded | 0 | 0", ""),
        (json!({ "do": "succeed" }), "completed | succeeded | 0 | 0", ""),
        (fail("GONE"), asks_again, "failed GONE | failed | 0 | 0"),
        (json!({ "do": "unknown", "message": "who knows" }), asks_again, "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous | 0 | 0"),
    ];
    for doubt in [EffectState::Executing, EffectState::Ambiguous] {
        for (answer, early, late) in &table {
            let mut with = nobody_is_asked();
            with["reconcile"] = json!([answer]);
            let id = start(&host, one_step("amb-op", &with, "")).await;
            let planted = plant(&host, &id, EffectClass::Ambiguous, &with, doubt).await;
            let ended = drive(&host, &id).await;
            let early = early.replace("executing", doubt.as_str());
            assert_eq!(summary(&world, &host, &id, &ended, 0).await, early, "{doubt} {answer}");
            if late.is_empty() {
                assert_eq!(events(&host, &id, "step.completed").await[0].data["how"], "reconciled");
                continue;
            }
            let Ended::Waiting { until, .. } = ended else { unreachable!("it waits") };
            assert_eq!(until, Some(planted.believable_from()), "it asks again exactly then");
            assert_eq!(step(&host, &id).await.tries, 0, "it uses up no retry");

            clock.forward(Duration::from_secs(7));
            let ended = drive(&host, &id).await;
            assert_eq!(summary(&world, &host, &id, &ended, 0).await, *late, "{doubt} {answer}");
            assert_eq!(events(&host, &id, "attempt.started").await.len(), 1, "the same attempt asked again");
        }
    }
}

/// R8: *failed*, once it is believed, fails the step with its error, and is tried again where it may be: under the same key.
#[tokio::test(flavor = "multi_thread")]
async fn r8_an_effect_found_not_to_have_happened_may_be_tried_again() {
    let world = World::new();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    world.provider.control(&json!({ "mode": "drop", "times": 1 }));
    let with = json!({ "plan": one_email(), "run": [post(&world), at(1, fail("NO"))], "reconcile": [lookup(&world)] });
    let id = start(&host, one_step("amb-op", &with, "    retry: { attempts: 2, backoff: 1ms }\n")).await;
    assert_eq!(stands(&drive(&host, &id).await), "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN");
    assert_eq!(stands(&resume(&host, &id).await), "waits timer", "it asks, and does not believe it yet");
    clock.forward(Duration::from_secs(7));
    let ended = host.drive(&id, options("test")).await.expect("it can be driven");
    assert_eq!(summary(&world, &host, &id, &ended, 0).await, "completed | succeeded | 2 | 2");
    assert_eq!(world.provider.effects().len(), 1);
    let requests = world.provider.effectful_requests();
    assert_eq!(requests[0]["key"], requests[1]["key"]);
}

/// R8: a worker is lost after its request left: the action is asked under its key, and nothing is done twice.
#[tokio::test(flavor = "multi_thread")]
async fn r8_a_lost_worker_is_followed_by_a_question() {
    let world = World::new();
    let host = world.probe().await;
    world.provider.control(&json!({ "mode": "accept-then-hang" }));
    let with = json!({ "plan": one_email(), "run": [post(&world)], "reconcile": [lookup(&world)] });
    let id = start(&host, one_step("amb-op", &with, "")).await;
    lose_worker_after_effect(&world, &host, &id).await;
    let ended = drive(&host, &id).await;
    assert_eq!(summary(&world, &host, &id, &ended, 0).await, "completed | succeeded | 1 | 1");
    assert_eq!(outputs(ended)["result"], json!({ "id": "msg-1" }));
    assert_eq!(events(&host, &id, "attempt.started").await.len(), 1, "S8: the attempt is reclaimed as it is");
}

/// R8: where asking itself errs, the effect stays as it was and the step tries again; when its retries run out it is for a
/// person, never failed.
#[tokio::test(flavor = "multi_thread")]
async fn r8_reconcile_that_errs_never_fails_the_run() {
    let world = World::new();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    let table = [
        json!({ "do": "error", "message": "the API is down", "code": "DOWN" }),
        json!({ "do": "error", "message": "the API is down", "code": "DOWN", "retryable": true }),
        json!({ "do": "panic", "message": "no" }),
        json!({ "do": "succeed-raw", "text": "{" }),
        json!({ "do": "succeed-large", "bytes": 70_000 }),
    ];
    for answer in table {
        let mut with = nobody_is_asked();
        with["reconcile"] = json!([answer]);
        let retry = "    retry: { attempts: 3, backoff: 1m }\n";
        let id = start(&host, one_step("amb-op", &with, retry)).await;
        plant(&host, &id, EffectClass::Ambiguous, &with, EffectState::Executing).await;
        let tries = "retries WORKFLOW_EFFECT_RECONCILE_FAILED | executing | 0 | 0";
        let over = "blocked WORKFLOW_EFFECT_RECONCILE_FAILED | executing | 0 | 0";
        for expected in [tries, tries, over] {
            let ended = drive(&host, &id).await;
            assert_eq!(summary(&world, &host, &id, &ended, 0).await, expected, "{answer}");
            clock.forward(Duration::from_secs(120));
        }
        assert_eq!(state(&host, &id).await, RunState::Blocked);
        assert_eq!(events(&host, &id, "effect.reconcile_failed").await.len(), 3, "{answer}");
        assert!(events(&host, &id, "effect.settled").await.is_empty(), "{answer}: nothing was settled");
        // It is in the inbox, and a resume asks once more.
        let inbox = host.store.effects_in_doubt().await.expect("the store answers");
        assert!(inbox.iter().any(|doubt| doubt.run == id));
        assert_eq!(stands(&resume(&host, &id).await), "retries WORKFLOW_EFFECT_RECONCILE_FAILED");
    }
}

/// R8: the component that began the effect is asked, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn r8_the_recorded_component_is_asked() {
    let world = World::new();
    let host = world.probe().await;
    let mut with = nobody_is_asked();
    with["reconcile"] = json!([{ "do": "succeed" }]);
    let id = start(&host, one_step("amb-op", &with, "")).await;
    let planted = plant(&host, &id, EffectClass::Ambiguous, &with, EffectState::Executing).await;
    let gone = "0".repeat(64);
    write(&host, &id, EffectRecord { component: gone.clone(), ..planted }).await;
    let Ended::Blocked { failure: Some(failure), .. } = drive(&host, &id).await else { panic!("it should block") };
    assert_eq!(failure.code, "WORKFLOW_EFFECT_RECONCILE_FAILED");
    assert!(failure.message.contains(&gone), "{}", failure.message);
    assert_eq!(effect(&host, &id).await.state, EffectState::Executing);
}

/// R12: `waiting` after a request left keeps the effect executing; on waking, the action is asked.
#[tokio::test(flavor = "multi_thread")]
async fn r12_waking_after_a_request_left_asks() {
    let world = World::new();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    let when = clock.now().plus(Duration::from_secs(3_600)).to_string();
    let wait = json!({ "do": "wait", "kind": "timer", "key": when });
    let with = json!({ "plan": one_email(), "run": [post(&world), wait], "reconcile": [lookup(&world)] });
    let id = start(&host, one_step("amb-op", &with, "")).await;
    let ended = drive(&host, &id).await;
    assert_eq!(summary(&world, &host, &id, &ended, 0).await, "waits timer | executing | 1 | 1");
    assert!(events(&host, &id, "effect.settled").await.is_empty(), "an executing effect is not settled");
    clock.forward(Duration::from_secs(3_601));
    let ended = drive(&host, &id).await;
    assert_eq!(summary(&world, &host, &id, &ended, 0).await, "completed | succeeded | 1 | 1");
    assert_eq!(events(&host, &id, "step.completed").await[0].data["how"], "reconciled");
}

/// R11, R12: `waiting` where nothing left unwinds mark and charge, starts from authorize on waking, and uses no retry.
#[tokio::test(flavor = "multi_thread")]
async fn r12_waking_where_nothing_left_starts_from_authorize() {
    let world = World::new();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    for action in ["idem-op", "amb-op"] {
        let when = clock.now().plus(Duration::from_secs(3_600)).to_string();
        let sent_before = world.provider.effectful_requests().len();
        let wait = at(1, json!({ "do": "wait", "kind": "timer", "key": when }));
        let with = json!({ "plan": one_email(), "run": [wait, post(&world)] });
        let id = start(&host, one_step(action, &with, "")).await;
        let ended = drive(&host, &id).await;
        assert_eq!(stands(&ended), "waits timer");
        assert_eq!(used(&host, &id, "emails").await, "0", "{action}");
        assert_eq!(step(&host, &id).await.tries, 0);
        clock.forward(Duration::from_secs(3_601));
        let ended = drive(&host, &id).await;
        assert_eq!(summary(&world, &host, &id, &ended, sent_before).await, "completed | succeeded | 1 | 1", "{action}");
    }
}

/// R11: a step waits for another run until that run ends, whichever way.
#[tokio::test(flavor = "multi_thread")]
async fn r11_a_step_waits_for_another_run() {
    let world = World::new();
    let host = world.probe().await;
    let other = start(&host, one_step("pure-op", &json!({ "run": [fail("NO")] }), "")).await;
    let wait = at(1, json!({ "do": "wait", "kind": "run", "key": other }));
    let id = start(&host, one_step("amb-op", &json!({ "run": [wait] }), "")).await;
    assert_eq!(stands(&drive(&host, &id).await), "waits run");
    assert_eq!(stands(&drive(&host, &id).await), "waits run");
    assert_eq!(stands(&drive(&host, &other).await), "failed NO");
    assert_eq!(stands(&drive(&host, &id).await), "completed");
}

/// R12: an idempotent step whose retries run out with a request unheard, or whose output is refused after one, is in doubt.
#[tokio::test(flavor = "multi_thread")]
async fn r12_an_idempotent_step_that_can_no_longer_be_repeated_is_in_doubt() {
    let world = World::new();
    let host = world.probe().await;
    let first_unheard = |second: Value| json!([at(1, post(&world)), at(1, fail_retryably()), second]);
    let table = [
        ("tries used up", json!([post(&world), fail_retryably()]), "drop", 2, "2 | 2"),
        ("the second sent nothing and failed for good", first_unheard(fail("NO")), "drop", 1, "1 | 1"),
        ("the second sent nothing and trapped", first_unheard(json!({ "do": "abort" })), "drop", 1, "1 | 1"),
        (
            "the second's output was refused",
            first_unheard(json!({ "do": "succeed-raw", "text": "{" })),
            "drop",
            1,
            "1 | 1",
        ),
    ];
    for (what, instructions, mode, times, figures) in table {
        world.provider.control(&json!({ "mode": mode, "times": times }));
        let sent_before = world.provider.effectful_requests().len();
        let with = json!({ "plan": one_email(), "run": instructions });
        let (id, ended) = run(&host, one_step("idem-op", &with, &attempts(2))).await;
        let found = summary(&world, &host, &id, &ended, sent_before).await;
        // Where the second sent nothing, its own charge was given back.
        let given_back = format!("blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous | {figures}");
        let kept = given_back.replace("| 1 | 1", "| 2 | 1");
        assert!(found == given_back || found == kept, "{what}: {found}");
    }
}

/// R11: `ambiguous` from an idempotent action is journaled, and resuming runs it again under its key.
#[tokio::test(flavor = "multi_thread")]
async fn r11_an_idempotent_effect_in_doubt_is_run_again_when_resumed() {
    let world = World::new();
    let host = world.probe().await;
    let doubt = at(1, json!({ "do": "doubt", "message": "perhaps", "code": "MAYBE" }));
    let with = json!({ "plan": one_email(), "run": [post(&world), doubt] });
    let id = start(&host, one_step("idem-op", &with, "")).await;
    assert_eq!(stands(&drive(&host, &id).await), "blocked MAYBE");
    let ended = resume(&host, &id).await;
    assert_eq!(summary(&world, &host, &id, &ended, 0).await, "completed | succeeded | 2 | 2");
    let requests = world.provider.effectful_requests();
    assert_eq!(requests[0]["key"], requests[1]["key"]);
}

/// R12: every attempt keeps its evidence.
#[tokio::test(flavor = "multi_thread")]
async fn r12_every_attempt_keeps_its_evidence() {
    let world = World::new();
    let host = world.probe().await;
    world.provider.control(&json!({ "mode": "accept-then-drop", "times": 1 }));
    let with = json!({ "plan": one_email(), "run": [post(&world), at(1, fail_retryably())] });
    let (id, ended) = run(&host, one_step("idem-op", &with, &attempts(2))).await;
    assert_eq!(stands(&ended), "completed");
    let stored = host.store.snapshot(&id).await.expect("the store answers").expect("the run is there");
    let evidence: Vec<_> = stored
        .attempts
        .iter()
        .map(|attempt| attempt.record.as_ref().expect("it has a record").requests[0].clone())
        .collect();
    let [lost, heard] = evidence.as_slice() else { panic!("there should be two attempts") };
    assert!(lost.left_at.is_some() && lost.heard_at.is_none() && lost.status.is_none() && lost.error.is_some());
    assert!(heard.left_at.is_some() && heard.heard_at.is_some() && heard.status == Some(202) && heard.error.is_none());
    assert_eq!(lost.key, Some(format!("workflow:{id}:step:only")));
    assert_eq!(lost.body_sha256.as_deref(), world.provider.requests()[0]["body_sha256"].as_str());
}

/// R13: an output lands in its variable however the step was completed; a skipped step's is null.
#[tokio::test(flavor = "multi_thread")]
async fn r13_save_as_however_the_step_was_completed() {
    let world = World::new();
    let host = world.probe().await;
    let succeed = |n: u32| json!({ "run": [{ "do": "succeed", "output": { "n": n } }] });
    let mut asked = nobody_is_asked();
    asked["reconcile"] = json!([{ "do": "succeed", "output": { "n": 4 } }]);
    let in_doubt = json!({ "plan": one_email(), "run": [post(&world), { "do": "panic", "message": "no" }] });
    let shows = json!({ "run": [{ "do": "succeed", "output": {
        "by name": ["{{ ran }}", "{{ restored }}", "{{ skipped }}", "{{ reconciled }}", "{{ resolved }}", "{{ empty }}"],
        "by step": ["{{ steps.a.output }}", "{{ steps.b.output }}", "{{ steps.c.output }}", "{{ steps.d.output }}", "{{ steps.e.output }}", "{{ steps.f.output }}"],
    } }] });
    let workflow: Workflow = parse(&format!(
        "workflow: test/saves\nsteps:\n\
         \x20 - {{ id: a, action: probe/pure-op, with: {}, saveAs: ran }}\n\
         \x20 - {{ id: b, action: probe/tx-op, with: {}, saveAs: restored }}\n\
         \x20 - {{ id: c, action: probe/amb-op, if: \"{{{{ ran.n == 7 }}}}\", with: {}, saveAs: skipped }}\n\
         \x20 - {{ id: d, action: probe/amb-op, with: {asked}, saveAs: reconciled }}\n\
         \x20 - {{ id: e, action: probe/amb-op, with: {in_doubt}, saveAs: resolved }}\n\
         \x20 - {{ id: f, action: probe/pure-op, with: {{ run: [{{ do: succeed }}] }}, saveAs: empty }}\n\
         \x20 - {{ id: g, action: probe/pure-op, with: {shows}, saveAs: shown }}\n\
         outputs: {{ shown: \"{{{{ shown }}}}\" }}\n",
        succeed(1),
        nobody_is_asked(),
        nobody_is_asked(),
    ));
    let id = start(&host, workflow).await;
    let (transactional, ambiguous) = (EffectClass::Transactional, EffectClass::Ambiguous);
    let restored = record_of(&host, &id, "b", transactional, &nobody_is_asked(), EffectState::Succeeded).await;
    write(&host, &id, EffectRecord { output: Some(r#"{"n":2}"#.to_owned()), ..restored }).await;
    write(&host, &id, record_of(&host, &id, "d", ambiguous, &asked, EffectState::Executing).await).await;

    assert_eq!(stands(&drive(&host, &id).await), "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN");
    let step_e = Resolve {
        run: id.clone(),
        step: Some("e".to_owned()),
        verdict: Verdict::Succeeded(Some(r#"{ "n" : 5 }"#.to_owned())),
        actor: "Ada".to_owned(),
        because: "she looked".to_owned(),
    };
    assert_eq!(host.resolve(step_e).await.expect("it is blocked"), RunState::Active);
    let shown = outputs(drive(&host, &id).await)["shown"].clone();
    let expected = json!([{ "n": 1 }, { "n": 2 }, null, { "n": 4 }, { "n": 5 }, null]);
    assert_eq!(shown["by name"], expected);
    assert_eq!(shown["by step"], expected);
    let stored = host.store.snapshot(&id).await.expect("the store answers").expect("the run is there");
    let variable = |name: &str| stored.variables.get(name).map(String::as_str);
    assert_eq!(variable("skipped"), Some("null"));
    assert_eq!(variable("resolved"), Some(r#"{"n":5}"#), "in canonical form");
    assert_eq!(stored.steps[2].state, StepState::Skipped);
}

/// R14: a second claim fences the first, in the middle of its act: the first writes nothing more.
#[tokio::test(flavor = "multi_thread")]
async fn r14_a_second_claim_fences_the_first() {
    let world = World::new();
    let (first, second) = (world.probe().await, world.host().await);
    world.provider.control(&json!({ "mode": "accept-late", "latency_ms": 2_000 }));
    let with = json!({ "plan": one_email(), "run": [post(&world)], "reconcile": [lookup(&world)] });
    let id = start(&first, one_step("amb-op", &with, "")).await;
    let (driving, driven) = (first.clone(), id.clone());
    let worker = tokio::spawn(async move { driving.drive(&driven, options("test")).await });
    until("the request arrived", async || !world.provider.effects().is_empty()).await;
    // The same holder: whoever was restarted need not wait for its own lease.
    let ended = drive(&second, &id).await;
    assert_eq!(summary(&world, &second, &id, &ended, 0).await, "completed | succeeded | 1 | 1");
    let before = second.store.run(&id).await.expect("the store answers");
    let late = worker.await.expect("it does not panic");
    assert!(matches!(&late, Err(DriveError::Journal(JournalError::Fenced { .. }))), "{late:?}");
    assert_eq!(second.store.run(&id).await.expect("the store answers"), before, "it wrote nothing more");
}

/// R14: while a lease lives nobody else performs the run.
#[tokio::test(flavor = "multi_thread")]
async fn r14_a_held_run_is_not_performed_by_another() {
    let world = World::new();
    let host = world.probe().await;
    let id = start(&host, one_step("pure-op", &json!({ "run": [{ "do": "sleep", "ms": 1_500 }] }), "")).await;
    let (driving, driven) = (host.clone(), id.clone());
    let worker = tokio::spawn(async move { driving.drive(&driven, options("first")).await });
    until("it is claimed", async || events(&host, &id, "run.claimed").await.len() == 1).await;
    let other = DriveOptions { wait: Duration::ZERO, ..DriveOptions::new("second") };
    let ended = host.drive(&id, other).await.expect("the store answers");
    assert!(matches!(&ended, Ended::Held { holder, .. } if holder == "first"), "{ended:?}");
    assert_eq!(stands(&worker.await.expect("it does not panic").expect("it is driven")), "completed");
    assert_eq!(events(&host, &id, "run.claimed").await.len(), 1);
}

/// R14, S6: abandoned in the middle of its act, a run stays abandoned; its effect is in doubt, and settling it never
/// revives the run.
#[tokio::test(flavor = "multi_thread")]
async fn r14_s6_abandoned_in_the_middle_stays_abandoned() {
    let world = World::new();
    let host = world.probe().await;
    world.provider.control(&json!({ "mode": "accept-late", "latency_ms": 1_500 }));
    let with = json!({ "plan": one_email(), "run": [post(&world)], "reconcile": [lookup(&world)] });
    let id = start(&host, one_step("amb-op", &with, "")).await;
    let (driving, driven) = (host.clone(), id.clone());
    let worker = tokio::spawn(async move { driving.drive(&driven, options("test")).await });
    until("the request arrived", async || !world.provider.effects().is_empty()).await;
    assert!(host.abandon(&id, "Ada", "no longer wanted").await.expect("the store answers"));
    let late = worker.await.expect("it does not panic");
    assert!(matches!(&late, Err(DriveError::Journal(JournalError::Fenced { .. }))), "{late:?}");
    assert_eq!(state(&host, &id).await, RunState::Abandoned);
    assert_eq!(effect(&host, &id).await.state, EffectState::Ambiguous);
    assert!(!host.abandon(&id, "Ada", "again").await.expect("the store answers"));

    let resolved = resolve(&host, &id, Verdict::Succeeded(Some("1".to_owned()))).await;
    assert_eq!(resolved.expect("the effect is in doubt"), RunState::Abandoned);
    assert_eq!(effect(&host, &id).await.state, EffectState::Succeeded);
    assert_eq!(drive(&host, &id).await, Ended::Abandoned);
    let options = DriveOptions { reopen: true, ..options("test") };
    assert!(matches!(host.drive(&id, options).await, Err(DriveError::Over { state: RunState::Abandoned, .. })));
    assert_eq!(world.provider.effectful_requests().len(), 1);
}

/// R15: within the window an idempotent step that may have begun is run again under its key; past it, it is treated as an
/// ambiguous one.
#[tokio::test(flavor = "multi_thread")]
async fn r15_past_the_window_of_its_key_an_idempotent_step_is_not_repeated() {
    let world = World::new();
    world.edit_policy("meter = { emails = 1 }\n", "");
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    #[rustfmt::skip]
    let table = [
        ("plain-idem", 23, "completed | succeeded | 0 | 2"),
        ("idem-op", 23, "completed | succeeded | 0 | 2"),
        ("plain-idem", 25, "blocked WORKFLOW_EFFECT_KEY_EXPIRED | ambiguous | 0 | 1"),
        ("idem-op", 25, "completed | succeeded | 0 | 1"),
    ];
    for (action, later, expected) in table {
        world.provider.control(&json!({ "mode": "accept-then-hang", "times": 1 }));
        let sent_before = world.provider.effectful_requests().len();
        let with = json!({ "run": [post(&world)], "reconcile": [lookup(&world)] });
        let id = start(&host, one_step(action, &with, "")).await;
        lose_worker_after_effect(&world, &host, &id).await;
        clock.forward(hours(later));
        let ended = drive(&host, &id).await;
        assert_eq!(summary(&world, &host, &id, &ended, sent_before).await, expected, "{action} {later} hours later");
        if stands(&ended).starts_with("blocked") {
            // Asking a person again does not repeat it either.
            assert_eq!(stands(&resume(&host, &id).await), "blocked WORKFLOW_EFFECT_KEY_EXPIRED");
            assert_eq!(resolve(&host, &id, Verdict::Failed).await.expect("it is late"), RunState::Failed);
        }
    }
}

/// R15: the window counts from the first attempt that let something out, over attempts that were heard and tried again.
#[tokio::test(flavor = "multi_thread")]
async fn r15_the_window_counts_from_the_first_attempt() {
    let world = World::new();
    world.edit_policy("meter = { emails = 1 }\n", "");
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    let with = json!({ "run": [post(&world), fail_retryably()] });
    let retry = "    retry: { attempts: 5, backoff: 10h, maxBackoff: 10h }\n";
    let id = start(&host, one_step("plain-idem", &with, retry)).await;
    for expected in ["retries AGAIN", "retries AGAIN", "retries AGAIN", "blocked WORKFLOW_EFFECT_KEY_EXPIRED"] {
        assert_eq!(stands(&drive(&host, &id).await), expected);
        clock.forward(Duration::from_secs(10 * 3_600 + 60));
    }
    assert_eq!(world.provider.effectful_requests().len(), 3, "at 0, 10 and 20 hours, and not at 30");
}

/// R8, section 2: *failed* and a new key are refused until the effect can no longer appear; *succeeded* never is.
#[tokio::test(flavor = "multi_thread")]
async fn r8_a_person_is_believed_early_only_about_success() {
    let world = World::new();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    let with = json!({ "plan": one_email(), "run": [post(&world), { "do": "panic", "message": "no" }] });
    let workflow = || one_step("amb-op", &with, "");
    let blocked = async || {
        let id = start(&host, workflow()).await;
        assert_eq!(stands(&drive(&host, &id).await), "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN");
        id
    };
    let id = blocked().await;
    for verdict in [Verdict::Failed, Verdict::RetryWithNewKey] {
        let until = effect(&host, &id).await.believable_from();
        match resolve(&host, &id, verdict).await {
            Err(ResolveRunError::Resolve(ResolveError::TooEarly { until: said, .. })) => assert_eq!(said, until),
            other => panic!("it should be too early: {other:?}"),
        }
    }
    assert_eq!(state(&host, &id).await, RunState::Blocked, "nothing was written");
    assert_eq!(resolve(&host, &id, Verdict::Succeeded(None)).await.expect("believed"), RunState::Active);
    assert_eq!(outputs(drive(&host, &id).await)["result"], Value::Null);

    let id = blocked().await;
    clock.forward(Duration::from_secs(7));
    assert_eq!(resolve(&host, &id, Verdict::Failed).await.expect("late enough"), RunState::Failed);
    assert_eq!(effect(&host, &id).await.state, EffectState::Failed);
    let Ended::Failed { failure } = drive(&host, &id).await else { panic!("it failed") };
    assert!(failure.message.contains("Ada"), "{}", failure.message);
    assert_eq!(used(&host, &id, "emails").await, "1", "a person's word gives no charge back");

    // What is settled is not for a person any more, and an output must be JSON.
    assert!(matches!(resolve(&host, &id, Verdict::Failed).await, Err(ResolveRunError::Which(_))));
    let id = blocked().await;
    let nonsense = resolve(&host, &id, Verdict::Succeeded(Some("{".to_owned()))).await;
    assert!(matches!(nonsense, Err(ResolveRunError::Output { .. })), "{nonsense:?}");
}

/// Section 4: attempts count all, backoff doubles up to its cap, and a resume starts the count anew.
#[tokio::test(flavor = "multi_thread")]
async fn retries_are_counted_spaced_and_started_anew_by_a_resume() {
    let world = World::new();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    let with = json!({ "run": [fail_retryably()] });
    let retry = "    retry: { attempts: 4, backoff: 10s, maxBackoff: 15s }\n";
    let id = start(&host, one_step("idem-op", &with, retry)).await;
    let mut ended = drive(&host, &id).await;
    for (number, backoff) in [(1, 10), (2, 15), (3, 15)] {
        let stored = host.store.snapshot(&id).await.expect("the store answers").expect("the run is there");
        let last = stored.attempts.last().expect("there is an attempt");
        assert_eq!(last.number, number);
        let due = last.finished_at.expect("it ended").plus(Duration::from_secs(backoff));
        assert!(
            matches!(&ended, Ended::Waiting { until, failure: Some(failure), .. }
            if *until == Some(due) && failure.code == "AGAIN"),
            "{number}: {ended:?} {due}"
        );
        assert_eq!(stands(&drive(&host, &id).await), "retries AGAIN", "not before it is due");
        clock.forward(Duration::from_secs(backoff));
        ended = drive(&host, &id).await;
    }
    assert_eq!(stands(&ended), "failed AGAIN");
    assert_eq!(step(&host, &id).await.tries, 4);
    assert_eq!(stands(&drive(&host, &id).await), "failed AGAIN", "only an explicit resume goes on");

    assert_eq!(stands(&resume(&host, &id).await), "retries AGAIN");
    assert_eq!(step(&host, &id).await.tries, 1);
    assert_eq!(events(&host, &id, "run.reopened").await.len(), 1);
    assert_eq!(events(&host, &id, "attempt.started").await.len(), 5, "attempts are numbered on");
}

/// R11: a failure that says when to come back is not tried before then, whatever the backoff.
#[tokio::test(flavor = "multi_thread")]
async fn r11_retry_after_is_honoured() {
    let world = World::new();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    let busy = json!({ "do": "fail", "message": "busy", "retryable": true, "retry_after_ms": 60_000, "attempt": 1 });
    let id = start(&host, one_step("idem-op", &json!({ "run": [busy] }), &attempts(2))).await;
    let before: Timestamp = clock.now();
    let Ended::Waiting { until: Some(due), .. } = drive(&host, &id).await else { panic!("it should wait") };
    assert!(due >= before.plus(Duration::from_secs(60)) && due <= clock.now().plus(Duration::from_secs(60)), "{due}");
    clock.forward(Duration::from_secs(59));
    assert_eq!(stands(&drive(&host, &id).await), "retries WORKFLOW_ACTION_ERROR");
    clock.forward(Duration::from_secs(1));
    assert_eq!(stands(&drive(&host, &id).await), "completed");
}

/// R11: what is not retryable is not tried again.
#[tokio::test(flavor = "multi_thread")]
async fn r11_what_is_not_retryable_is_tried_once() {
    let world = World::new();
    let host = world.probe().await;
    for (what, instructions) in [
        ("failed", json!([fail("NO")])),
        ("trapped", json!([{ "do": "abort" }])),
        ("its output was refused", json!([{ "do": "succeed-raw", "text": "" }])),
    ] {
        let (id, _) = run(&host, one_step("pure-op", &json!({ "run": instructions }), &attempts(3))).await;
        assert_eq!(events(&host, &id, "attempt.started").await.len(), 1, "{what}");
    }
}

/// R14: a completed run cannot be resumed; a failed one goes on where it failed, and what was done stays done.
#[tokio::test(flavor = "multi_thread")]
async fn r14_only_a_failed_run_can_be_resumed() {
    let world = World::new();
    let host = world.probe().await;
    let first = json!({ "run": [{ "do": "doc-add", "key": "count" }] });
    let second = json!({ "run": [at(1, fail("NO"))] });
    let id = start(
        &host,
        parse(&format!(
            "workflow: test/two\nsteps:\n  - {{ id: first, action: probe/tx-op, with: {first} }}\n  - {{ id: second, \
             action: probe/idem-op, with: {second} }}\n"
        )),
    )
    .await;
    assert_eq!(stands(&drive(&host, &id).await), "failed NO");
    assert_eq!(stands(&resume(&host, &id).await), "completed");
    assert_eq!(host.store.document("probe", "count").await.expect("the store answers").as_deref(), Some("1"));
    let again = host.drive(&id, DriveOptions { reopen: true, ..options("test") }).await;
    assert!(matches!(&again, Err(DriveError::Over { state: RunState::Completed, .. })), "{again:?}");
    assert_eq!(stands(&drive(&host, &id).await), "completed", "asking where it stands is no resume");
}

/// R11: a step that waits again and again for what is there already is paced: it does not fill the store, and whoever waits
/// for nothing is told what it waits for.
#[tokio::test(flavor = "multi_thread")]
async fn r11_a_wait_for_a_moment_that_has_passed_is_paced() {
    let world = World::new();
    let host = world.probe().await;
    for action in ["pure-op", "tx-op", "idem-op", "amb-op"] {
        let wait = json!({ "do": "wait", "kind": "timer", "key": "2020-01-01T00:00:00Z" });
        let id = start(&host, one_step(action, &json!({ "run": [wait] }), "")).await;
        assert_eq!(stands(&drive(&host, &id).await), "waits timer", "{action}");
        assert_eq!(events(&host, &id, "attempt.started").await.len(), 1, "{action}");
        let options = DriveOptions { wait: Duration::from_millis(1_200), ..options("test") };
        assert_eq!(stands(&host.drive(&id, options).await.expect("it can be driven")), "waits timer", "{action}");
        let started = events(&host, &id, "attempt.started").await.len();
        assert!((2..=4).contains(&started), "{action}: {started}");
        assert_eq!(step(&host, &id).await.tries, 0, "{action}: waiting uses no retry");
    }
}
