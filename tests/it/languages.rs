//! Guests that are not Rust, under the default limits: a policy here says what an app may reach, and no more. The same
//! cases run on `mail` in Rust and in Python.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate::host::Host;
use tollgate::run::{Ended, StartRun};
use tollgate::workflow::Workflow;

use super::contract::summary;
use super::support::{
    TestClock, World, caps, drive, dry_run, guest, language_guest, last_record, lose_worker_after_effect, parse,
    resume, start,
};

/// A world whose policy is `version = 1` and `apps`, so that every limit is the default.
fn world(apps: impl Fn(&World) -> String) -> World {
    let world = World::new();
    let policy = format!("version = 1\n{}", apps(&world));
    world.edit_policy(&world.policy_text(), &policy);
    world
}

async fn push(host: &Host, app: &str, bytes: Vec<u8>) -> Vec<String> {
    let pushed = host.registry.push(app, bytes, &host.policy).await;
    let (_, inspected) = pushed.unwrap_or_else(|error| panic!("{app}: {error}"));
    inspected.imports.into_iter().map(|import| import.name).collect()
}

fn one_step(action: &str, with: &Value, more: &str) -> Workflow {
    parse(&format!(
        "workflow: test/one\nsteps:\n  - id: only\n    action: {action}\n    with: {with}\n    saveAs: result\n{more}outputs: {{ \
         result: \"{{{{ result }}}}\" }}\n"
    ))
}

fn output(ended: &Ended) -> Value {
    let Ended::Completed { outputs } = ended else { panic!("it should complete: {ended:?}") };
    serde_json::from_str::<Value>(outputs).expect("outputs are JSON")["result"].clone()
}

/// The language's own share of the default limits (500 ms, 64 MiB) leaves most of them to the action. Seen: 5 ms and 14 MiB.
async fn check_headroom(host: &Host, run: &str, what: &str) {
    let record = last_record(host, run).await;
    assert!(record.cpu_ms < 250, "{what}: {} ms on the processor", record.cpu_ms);
    assert!(record.memory_peak_bytes < 32 << 20, "{what}: {} bytes of memory", record.memory_peak_bytes);
}

/// It pushes without a policy of its own, greets, and greets again with the same bytes.
async fn check_hello(app: &str) {
    let world = world(|_| String::new());
    let host = world.host().await;
    let imports = push(&host, app, language_guest(app)).await;
    let needless = ["wasi:cli", "wasi:filesystem", "wasi:sockets", "wasi:random"];
    let imported: Vec<_> = imports.iter().filter(|name| needless.iter().any(|each| name.starts_with(each))).collect();
    assert!(imported.is_empty(), "{app} imports {imported:?}");

    let action = format!("{app}/greet");
    for name in ["Ada", "Gr\u{fc}\u{df}e \u{1f30d}\u{0}\"\\"] {
        let mut texts = Vec::new();
        for _ in 0..2 {
            let id = start(&host, one_step(&action, &json!({ "name": name }), "")).await;
            let ended = drive(&host, &id).await;
            assert_eq!(output(&ended), json!({ "greeting": format!("Hello, {name}!") }), "{app}");
            let stored = host.store.snapshot(&id).await.expect("the store answers").expect("the run is there");
            texts.push(stored.steps[0].output.clone());
            check_headroom(&host, &id, app).await;
        }
        assert_eq!(texts[0], texts[1], "{app}: a pure action's second run is byte-identical to its first");
    }

    let id = start(&host, one_step(&action, &json!({ "name": 5 }), "")).await;
    let Ended::Failed { failure } = drive(&host, &id).await else { panic!("{app} should not see this") };
    assert_eq!(failure.code, "CONFIG_INVALID", "{app}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_in_javascript() {
    check_hello("hello-js").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_in_python() {
    check_hello("hello-python").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_mail_in_rust() {
    check_mail(guest("mail")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_mail_in_python() {
    check_mail(language_guest("mail-python")).await;
}

/// What happens next to a run.
enum Then {
    /// It is driven as far as it goes.
    Drive,
    /// It is reopened and driven.
    Resume,
    /// It is driven until the API has accepted the message, and loses its worker there.
    LoseWorker,
    /// So many seconds pass, and it is driven.
    After(u64),
    /// The API is told something, and it is driven.
    Told(Value),
}

use Then::{After, Drive, LoseWorker, Resume, Told};

/// One run: what it is about, what the API is told, what of the config is not ordinary, lines of the step, and what happens
/// with what comes of it. That is where the run stands, what the journal says of the effect, what is used of `emails`, and
/// how many effectful requests the API received.
struct Case {
    what: &'static str,
    told: Value,
    config: Value,
    step: &'static str,
    then: Vec<(Then, &'static str)>,
}

const LOST: &str = "";
const RETRY: &str = "    retry: { attempts: 2, backoff: 1s }\n";
const SHORT: &str = "    timeout: 1500ms\n";

/// The deadline of an attempt under the default limits (30 s), and how late the API's look-up may miss a message (30 s).
const BELIEVABLE_AFTER_S: u64 = 61;

fn cases() -> Vec<Case> {
    let ordinary = || json!({});
    #[rustfmt::skip]
    let cases = vec![
        Case {
            what: "accepted",
            told: json!({ "mode": "accept" }), config: ordinary(), step: "",
            then: vec![(Drive, "completed | succeeded | 1 | 1"), (Drive, "completed | succeeded | 1 | 1")],
        },
        Case {
            what: "several recipients are one request and one charge",
            told: json!({ "mode": "accept" }),
            config: json!({ "to": ["ada@example.com", "bob@example.com", "carol"] }), step: "",
            then: vec![(Drive, "completed | succeeded | 3 | 1")],
        },
        Case {
            what: "a message of more than one write",
            told: json!({ "mode": "accept" }),
            config: json!({ "text": "Gr\u{fc}\u{df}e ".repeat(2_000), "subject": "\u{1f30d}" }), step: "",
            then: vec![(Drive, "completed | succeeded | 1 | 1")],
        },
        Case {
            what: "accepted, and the connection broke: nobody sends it again, and by its key it is found",
            told: json!({ "mode": "accept-then-drop", "times": 1 }), config: ordinary(), step: RETRY,
            then: vec![
                (Drive, "blocked MAIL_UNHEARD | ambiguous | 1 | 1"),
                (Resume, "completed | succeeded | 1 | 1"),
            ],
        },
        Case {
            what: "accepted, and no answer within its time",
            told: json!({ "mode": "accept-then-hang", "times": 1 }), config: ordinary(), step: SHORT,
            then: vec![
                (Drive, "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous | 1 | 1"),
                (Resume, "completed | succeeded | 1 | 1"),
            ],
        },
        Case {
            what: "accepted, and the worker was lost",
            told: json!({ "mode": "accept-then-hang", "times": 1 }), config: ordinary(), step: "",
            then: vec![(LoseWorker, LOST), (Drive, "completed | succeeded | 1 | 1")],
        },
        Case {
            what: "a look-up that misses it at first is not believed too early",
            told: json!({ "mode": "accept-then-drop", "times": 1, "lookup_lag_ms": 3_600_000 }),
            config: ordinary(), step: RETRY,
            then: vec![
                (Drive, "blocked MAIL_UNHEARD | ambiguous | 1 | 1"),
                (Resume, "waits timer | ambiguous | 1 | 1"),
                (Told(json!({ "lookup_lag_ms": 0 })), "waits timer | ambiguous | 1 | 1"),
                (After(BELIEVABLE_AFTER_S), "completed | succeeded | 1 | 1"),
            ],
        },
        Case {
            what: "not accepted, and nobody said so: believed once it could not appear any more",
            told: json!({ "mode": "drop", "times": 1 }), config: ordinary(), step: "",
            then: vec![
                (Drive, "blocked MAIL_UNHEARD | ambiguous | 1 | 1"),
                (Resume, "waits timer | ambiguous | 1 | 1"),
                (After(BELIEVABLE_AFTER_S), "failed MAIL_NOT_SENT | failed | 1 | 1"),
            ],
        },
        Case {
            what: "refused for good",
            told: json!({ "mode": "refuse", "times": 1 }), config: ordinary(), step: RETRY,
            then: vec![(Drive, "failed MAIL_REFUSED | failed | 1 | 1")],
        },
        Case {
            what: "too many requests: tried again when the API said",
            told: json!({ "mode": "rate-limit", "times": 1, "retry_after": 30 }), config: ordinary(), step: RETRY,
            then: vec![
                (Drive, "retries MAIL_REFUSED | failed | 1 | 1"),
                (After(28), "retries MAIL_REFUSED | failed | 1 | 1"),
                (After(2), "completed | succeeded | 2 | 2"),
            ],
        },
        Case {
            what: "nothing listens",
            told: json!({ "mode": "accept" }), config: json!({ "api": NOTHING_LISTENS }), step: "",
            then: vec![(Drive, "failed MAIL_UNHEARD | failed | 0 | 0")],
        },
        Case {
            what: "the policy does not reach there",
            told: json!({ "mode": "accept" }), config: json!({ "api": "https://api.mail.example" }), step: "",
            then: vec![(Drive, "failed MAIL_UNHEARD | failed | 0 | 0")],
        },
    ];
    cases
}

const NOTHING_LISTENS: &str = "http://127.0.0.1:1";

fn mail_policy(world: &World) -> String {
    let mut text = "[app.mail]\nclasses = [\"ambiguous\"]\n".to_owned();
    for url in [&world.provider.url, NOTHING_LISTENS] {
        text.push_str(&format!(
            r#"
[[app.mail.http]]
url = "{url}/v1/messages"
methods = ["POST"]
meter = {{ emails = 1 }}
idempotency = {{ header = "Idempotency-Key", window = "24h" }}
visible_within = "30s"
addresses = ["127.0.0.0/8"]

[[app.mail.http]]
url = "{url}/v1/messages"
methods = ["GET"]
safe = true
addresses = ["127.0.0.0/8"]
"#
        ));
    }
    text
}

fn config(world: &World, unusual: &Value) -> Value {
    let mut config = json!({ "api": world.provider.url, "to": "ada@example.com", "subject": "Invoice INV-1" });
    for (key, value) in unusual.as_object().expect("an object") {
        config[key] = value.clone();
    }
    config
}

async fn check_mail(bytes: Vec<u8>) {
    let world = world(mail_policy);
    let mut host = world.host().await;
    let clock = TestClock::of(&mut host);
    push(&host, "mail", bytes).await;
    let mut wrong = Vec::new();
    for case in cases() {
        let Case { what, told, config: unusual, step, then } = case;
        world.provider.control(&json!({ "lookup_lag_ms": 0, "retry_after": 1 }));
        world.provider.control(&told);
        let sent_before = world.provider.effectful_requests().len();
        let with = config(&world, &unusual);
        let id = start(&host, one_step("mail/send", &with, step)).await;
        for (number, (then, expected)) in then.into_iter().enumerate() {
            let ended = match then {
                Drive => drive(&host, &id).await,
                Resume => resume(&host, &id).await,
                After(seconds) => {
                    clock.forward(Duration::from_secs(seconds));
                    drive(&host, &id).await
                }
                Told(settings) => {
                    world.provider.control(&settings);
                    drive(&host, &id).await
                }
                LoseWorker => {
                    lose_worker_after_effect(&world, &host, &id).await;
                    continue;
                }
            };
            let found = summary(&world, &host, &id, &ended, sent_before).await;
            if found != expected {
                wrong.push(format!("{what}, {number}\n  expected {expected}\n  found    {found}\n  {ended:?}"));
            }
            if let Ended::Completed { .. } = ended {
                check_message(&world, &with, &output(&ended), what);
            }
        }
        check_headroom(&host, &id, what).await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    check_plan(&world, &host).await;
}

/// What the API accepted last is the message, and the output names it.
fn check_message(world: &World, with: &Value, output: &Value, what: &str) {
    let effects = world.provider.effects();
    let accepted = effects.last().expect("it accepted a message");
    let to = if with["to"].is_array() { with["to"].clone() } else { json!([with["to"]]) };
    assert_eq!(output, &json!({ "id": accepted["id"], "to": to }), "{what}");
    let mut message = json!({ "to": to, "subject": with["subject"] });
    if let Some(text) = with.get("text") {
        message["text"] = text.clone();
    }
    let body: Value = serde_json::from_str(accepted["body"].as_str().expect("text")).expect("it is JSON");
    assert_eq!(body, message, "{what}");
}

/// One plan for the dry run and the charge, and a budget that does not suffice lets nothing out.
async fn check_plan(world: &World, host: &Host) {
    let sent_before = world.provider.requests().len();
    let with = config(world, &json!({ "to": ["ada@example.com", "bob@example.com", "carol"] }));
    let workflow = || one_step("mail/send", &with, "");
    let shown = serde_json::to_value(dry_run(host, workflow()).await).expect("it is JSON");
    let expected = json!({
        "step": "only", "action": "mail/send", "status": "planned", "output": null,
        "effects": [{
            "action": "mail/send", "summary": "send 3 e-mails to ada@example.com and 2 others",
            "consumes": [{ "dimension": "emails", "amount": "3" }],
        }],
        "issues": [{ "step": "only", "code": "ADDRESS_ODD", "message": "`carol` does not look like an e-mail address" }],
    });
    assert_eq!(shown["steps"][0], expected);

    let started = host.start(StartRun { budget: caps(&[("emails", "2")]), ..StartRun::of(workflow()) }).await;
    let ended = drive(host, &started.expect("it starts").run).await;
    let Ended::Failed { failure } = ended else { panic!("it should fail: {ended:?}") };
    assert_eq!(failure.code, "WORKFLOW_BUDGET_EXCEEDED");
    assert_eq!(world.provider.requests().len(), sent_before);
}
