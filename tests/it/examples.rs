//! The example guests, as their authors would use them: invoices, webhook and mail, each under a policy like an operator's.
//! The ledger's tests are in `transactional`.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::host::Host;
use tollgate::run::{Ended, StartRun};

use super::support::{
    TestClock, World, caps, drive, dry_run, lose_worker_after_effect, parse, push, resume, start, used,
};

/// A world with the three examples pushed under a policy for each.
async fn world() -> (World, Host) {
    let world = World::new();
    let url = world.provider.url.clone();
    let apps = format!(
        r#"[app.billing]
classes = ["pure"]
limits = {{ cpu = "500ms" }}

[app.webhook]
classes = ["idempotent"]

[[app.webhook.http]]
actions = ["deliver"]
url = "{url}/hooks/*"
methods = ["POST"]
meter = {{ deliveries = 1 }}
idempotency = {{ header = "Idempotency-Key", window = "24h" }}
visible_within = "1s"
addresses = ["127.0.0.0/8"]

[app.mail]
classes = ["ambiguous"]

[[app.mail.http]]
actions = ["send"]
url = "{url}/v1/messages"
methods = ["POST"]
meter = {{ emails = 1 }}
idempotency = {{ header = "Idempotency-Key", window = "24h" }}
visible_within = "30s"
addresses = ["127.0.0.0/8"]

[[app.mail.http]]
actions = ["send"]
url = "{url}/v1/messages"
methods = ["GET"]
safe = true
addresses = ["127.0.0.0/8"]

[app.probe]"#
    );
    world.edit_policy("[app.probe]", &apps);
    let host = world.host().await;
    push(&host, "billing", "invoices").await;
    push(&host, "webhook", "webhook").await;
    push(&host, "mail", "mail").await;
    (world, host)
}

fn step(action: &str, with: &Value, more: &str) -> tollgate::workflow::Workflow {
    parse(&format!(
        "workflow: billing/one\nbudget: {{ emails: 100, deliveries: 100 }}\nsteps:\n  - id: only\n    action: {action}\n    with: \
         {with}\n    saveAs: result\n{more}outputs: {{ result: \"{{{{ result }}}}\" }}\n"
    ))
}

fn result(ended: Ended) -> Value {
    let Ended::Completed { outputs } = ended else { panic!("it should complete: {ended:?}") };
    serde_json::from_str::<Value>(&outputs).expect("outputs are JSON")["result"].clone()
}

fn shipped_csv() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest-examples/invoices/invoices.csv");
    std::fs::read_to_string(path).expect("it is shipped")
}

/// What is overdue on 2026-11-30 in the file that is shipped.
#[tokio::test(flavor = "multi_thread")]
async fn invoices_finds_what_is_overdue_in_the_shipped_file() {
    let (_world, host) = world().await;
    let triage = "workflow: billing/triage\nparams: { type: object, required: [csv], properties: { csv: { type: string } } }\n\
                  steps:\n  - id: triage\n    action: billing/triage\n    with: { csv: \"{{ params.csv }}\", today: '2026-11-30' }\n    \
                  saveAs: overdue\noutputs: { result: \"{{ overdue }}\" }\n";
    let mut texts = Vec::new();
    for _ in 0..2 {
        let params = json!({ "csv": shipped_csv() });
        let started = host.start(StartRun { params, ..StartRun::of(parse(triage)) }).await.expect("it starts").run;
        let found = result(drive(&host, &started).await);
        let stored = host.store.snapshot(&started).await.expect("the store answers").expect("the run is there");
        texts.push(stored.steps[0].output.clone());
        let list = found.as_array().expect("a list");
        let numbers: Vec<_> = list.iter().map(|invoice| invoice["number"].as_str().unwrap_or_default()).collect();
        #[rustfmt::skip]
        assert_eq!(numbers, [
            "INV-2026-0412", "INV-2026-0431", "INV-2026-0447", "INV-2026-0452", "INV-2026-0468", "INV-2026-0471",
            "INV-2026-0485", "INV-2026-0490", "INV-2026-0497",
        ]);
        let first = json!({
            "number": "INV-2026-0412", "customer": "Alder & Vane, Shipping Agents", "email": "finance@aldervane.example.org",
            "amount": "8320.75", "currency": "EUR", "due": "2026-09-09", "days_overdue": 82,
        });
        assert_eq!(list[0], first);
        assert_eq!(list[8]["days_overdue"], 1, "due yesterday is overdue, due today is not");
    }
    assert_eq!(texts[0], texts[1], "a pure action's second run is byte-identical to its first");
}

/// A mistake in the file is a failure that says where; without `today` it is the day on which the step was reserved.
#[tokio::test(flavor = "multi_thread")]
async fn invoices_says_where_the_file_is_wrong() {
    let (_world, mut host) = world().await;
    let broken = shipped_csv().replace("2026-09-09", "2026-09-31");
    let id = start(&host, step("billing/triage", &json!({ "csv": broken, "today": "2026-11-30" }), "")).await;
    let Ended::Failed { failure } = drive(&host, &id).await else { panic!("it should fail") };
    assert_eq!(failure.code, "INVOICES_INVALID");
    assert!(failure.message.starts_with("line 4, "), "{}", failure.message);
    assert!(failure.message.contains("(due): `2026-09-31` is not a date"), "{}", failure.message);

    let clock = TestClock::of(&mut host);
    // In a hundred years every invoice that is not paid is overdue.
    clock.forward(Duration::from_secs(36_525 * 86_400));
    let id = start(&host, step("billing/triage", &json!({ "csv": shipped_csv() }), "")).await;
    assert_eq!(result(drive(&host, &id).await).as_array().expect("a list").len(), 12);

    let id = start(&host, step("billing/triage", &json!({ "csv": "x", "today": "yesterday" }), "")).await;
    let Ended::Failed { failure } = drive(&host, &id).await else { panic!("it should fail") };
    assert_eq!(failure.code, "CONFIG_INVALID");
    assert!(failure.message.contains("steps.only.with.today"), "{}", failure.message);
}

fn delivery(world: &World) -> Value {
    let url = format!("{}/hooks/t0p-s3cret", world.provider.url);
    json!({ "url": url, "event": "invoice.overdue", "payload": { "number": "INV-1", "id": 3_544_790_567_247_868_102_i64 } })
}

/// A receiver that says 429 is asked again when it said, under the same key, with the same bytes.
#[tokio::test(flavor = "multi_thread")]
async fn webhook_comes_back_when_the_receiver_said() {
    let (world, mut host) = world().await;
    let clock = TestClock::of(&mut host);
    world.provider.control(&json!({ "mode": "rate-limit", "times": 2, "retry_after": 60, "dedup": true }));
    let retry = "    retry: { attempts: 3, backoff: 1s }\n";
    let id = start(&host, step("webhook/deliver", &delivery(&world), retry)).await;
    for _ in 0..2 {
        let Ended::Waiting { failure: Some(failure), .. } = drive(&host, &id).await else { panic!("it should wait") };
        assert_eq!(failure.code, "DELIVERY_REFUSED");
        assert!(failure.message.contains(" answered 429: "), "{}", failure.message);
        assert!(!failure.message.contains("t0p-s3cret"), "the path is the receiver's secret: {}", failure.message);
        clock.forward(Duration::from_secs(55));
        assert!(matches!(drive(&host, &id).await, Ended::Waiting { .. }), "not before the minute is over");
        clock.forward(Duration::from_secs(5));
    }
    assert_eq!(result(drive(&host, &id).await), json!({ "status": 202 }));
    let requests = world.provider.effectful_requests();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| request["key"] == requests[0]["key"]));
    assert!(requests.iter().all(|request| request["body_sha256"] == requests[0]["body_sha256"]));
    assert!(requests[0]["body"].as_str().expect("text").contains("3544790567247868102"));
    assert_eq!(world.provider.effects().len(), 1);
    assert_eq!(used(&host, &id, "deliveries").await, "3", "each dispatch is charged");
}

/// What was delivered and not heard is delivered again under the same key, and a receiver that honours it has one effect.
#[tokio::test(flavor = "multi_thread")]
async fn webhook_is_repeated_under_its_key_and_happens_once() {
    let (world, mut host) = world().await;
    let clock = TestClock::of(&mut host);
    world.provider.control(&json!({ "mode": "accept-then-drop", "times": 1, "dedup": true }));
    let retry = "    retry: { attempts: 2, backoff: 1s }\n";
    let id = start(&host, step("webhook/deliver", &delivery(&world), retry)).await;
    let Ended::Waiting { failure: Some(failure), .. } = drive(&host, &id).await else { panic!("it should wait") };
    assert_eq!(failure.code, "DELIVERY_UNANSWERED");
    clock.forward(Duration::from_secs(1));
    assert_eq!(result(drive(&host, &id).await), json!({ "status": 202 }));
    assert_eq!((world.provider.effectful_requests().len(), world.provider.effects().len()), (2, 1));

    // A worker that is lost in the middle is no different.
    world.provider.control(&json!({ "mode": "accept-then-hang", "times": 1, "dedup": true }));
    let id = start(&host, step("webhook/deliver", &delivery(&world), "")).await;
    lose_worker_after_effect(&world, &host, &id).await;
    assert_eq!(result(drive(&host, &id).await), json!({ "status": 202 }));
    assert_eq!((world.provider.effectful_requests().len(), world.provider.effects().len()), (4, 2));
}

/// An answer that promises nothing for later is final; where the policy does not reach, nothing leaves.
#[tokio::test(flavor = "multi_thread")]
async fn webhook_takes_a_refusal_as_final() {
    let (world, host) = world().await;
    world.provider.control(&json!({ "mode": "refuse" }));
    let retry = "    retry: { attempts: 5, backoff: 1ms }\n";
    let id = start(&host, step("webhook/deliver", &delivery(&world), retry)).await;
    let Ended::Failed { failure } = drive(&host, &id).await else { panic!("it should fail") };
    assert_eq!(failure.code, "DELIVERY_REFUSED");
    assert_eq!(world.provider.effectful_requests().len(), 1);
    assert_eq!(used(&host, &id, "deliveries").await, "1");

    let mut elsewhere = delivery(&world);
    elsewhere["url"] = format!("{}/other", world.provider.url).into();
    let id = start(&host, step("webhook/deliver", &elsewhere, "")).await;
    let Ended::Failed { failure } = drive(&host, &id).await else { panic!("it should fail") };
    assert_eq!(failure.code, "DELIVERY_UNANSWERED");
    assert!(failure.message.contains("no rule of the policy grants it"), "{}", failure.message);
    assert_eq!(world.provider.effectful_requests().len(), 1);
    assert_eq!(used(&host, &id, "deliveries").await, "0", "nothing left: it is given back");
}

fn message(world: &World, to: Value) -> Value {
    json!({ "api": world.provider.url, "to": to, "subject": "Invoice INV-1", "text": "Please pay." })
}

/// One e-mail per recipient is planned, charged and drawn, whatever the number of requests.
#[tokio::test(flavor = "multi_thread")]
async fn mail_plans_and_charges_by_recipient() {
    let (world, host) = world().await;
    let list = json!(["ada@example.com", "bob@example.com", "carol"]);
    let dry = dry_run(&host, step("mail/send", &message(&world, list.clone()), "")).await;
    let shown = serde_json::to_value(&dry).expect("it is JSON");
    let expected = json!({
        "step": "only", "action": "mail/send", "status": "planned", "output": null,
        "effects": [{
            "action": "mail/send", "summary": "send 3 e-mails to ada@example.com and 2 others",
            "consumes": [{ "dimension": "emails", "amount": "3" }],
        }],
        "issues": [{ "step": "only", "code": "ADDRESS_ODD", "message": "`carol` does not look like an e-mail address" }],
    });
    assert_eq!(shown["steps"][0], expected);
    assert_eq!(world.provider.requests(), Vec::<Value>::new());

    let id = start(&host, step("mail/send", &message(&world, list.clone()), "")).await;
    assert_eq!(result(drive(&host, &id).await), json!({ "id": "msg-1", "to": list }));
    assert_eq!(used(&host, &id, "emails").await, "3");
    assert_eq!(world.provider.effects().len(), 1);

    let workflow = step("mail/send", &message(&world, list), "");
    let started = host.start(StartRun { budget: caps(&[("emails", "2")]), ..StartRun::of(workflow) }).await;
    let Ended::Failed { failure } = drive(&host, &started.expect("it starts").run).await else {
        panic!("it should fail")
    };
    assert_eq!(failure.code, "WORKFLOW_BUDGET_EXCEEDED");
    assert_eq!(world.provider.effects().len(), 1);
}

/// Accepted and then silence: the mail may have gone out, so that nobody sends it again; asked by its key, the API has it.
#[tokio::test(flavor = "multi_thread")]
async fn mail_that_was_accepted_and_not_heard_is_found_by_its_key() {
    let (world, host) = world().await;
    world.provider.control(&json!({ "mode": "accept-then-drop", "times": 1 }));
    let retry = "    retry: { attempts: 5, backoff: 1ms }\n";
    let id = start(&host, step("mail/send", &message(&world, json!("ada@example.com")), retry)).await;
    let Ended::Blocked { failure: Some(failure), .. } = drive(&host, &id).await else { panic!("it should block") };
    assert_eq!(failure.code, "MAIL_UNHEARD");
    assert_eq!(result(resume(&host, &id).await), json!({ "id": "msg-1", "to": ["ada@example.com"] }));
    assert_eq!(world.provider.effects().len(), 1);
    assert_eq!(world.provider.effectful_requests().len(), 1);
    assert_eq!(used(&host, &id, "emails").await, "1");

    // The same after a worker was lost, without anybody's resuming it.
    world.provider.control(&json!({ "mode": "accept-then-hang", "times": 1 }));
    let id = start(&host, step("mail/send", &message(&world, json!("bob@example.com")), "")).await;
    lose_worker_after_effect(&world, &host, &id).await;
    assert_eq!(result(drive(&host, &id).await), json!({ "id": "msg-2", "to": ["bob@example.com"] }));
    assert_eq!(world.provider.effectful_requests().len(), 2);
}

/// A look-up that misses what was accepted a moment ago is not believed until the API could no longer miss it.
#[tokio::test(flavor = "multi_thread")]
async fn mail_that_a_lookup_misses_at_first_is_not_sent_again() {
    let (world, mut host) = world().await;
    let clock = TestClock::of(&mut host);
    world.provider.control(&json!({ "mode": "accept-then-drop", "times": 1, "lookup_lag_ms": 3_600_000 }));
    let retry = "    retry: { attempts: 5, backoff: 1ms }\n";
    let id = start(&host, step("mail/send", &message(&world, json!("ada@example.com")), retry)).await;
    assert!(matches!(drive(&host, &id).await, Ended::Blocked { .. }));
    let Ended::Waiting { failure: None, .. } = resume(&host, &id).await else { panic!("it should ask again later") };
    world.provider.control(&json!({ "lookup_lag_ms": 0 }));
    clock.forward(Duration::from_secs(36));
    assert_eq!(result(drive(&host, &id).await)["id"], "msg-1");
    assert_eq!(world.provider.effectful_requests().len(), 1);
}

/// What the API refused was not sent, and may be sent again where it said so; what never left is not charged.
#[tokio::test(flavor = "multi_thread")]
async fn mail_that_was_certainly_not_sent_fails_or_is_tried_again() {
    let (world, mut host) = world().await;
    let clock = TestClock::of(&mut host);
    let retry = "    retry: { attempts: 2, backoff: 1s }\n";
    world.provider.control(&json!({ "mode": "refuse", "times": 1 }));
    let id = start(&host, step("mail/send", &message(&world, json!("ada@example.com")), retry)).await;
    let Ended::Failed { failure } = drive(&host, &id).await else { panic!("it should fail") };
    assert_eq!(failure.code, "MAIL_REFUSED");

    world.provider.control(&json!({ "mode": "unavailable", "times": 1, "retry_after": 30 }));
    let id = start(&host, step("mail/send", &message(&world, json!("ada@example.com")), retry)).await;
    assert!(matches!(drive(&host, &id).await, Ended::Waiting { failure: Some(_), .. }));
    clock.forward(Duration::from_secs(30));
    assert_eq!(result(drive(&host, &id).await)["id"], "msg-1");
    assert_eq!(used(&host, &id, "emails").await, "2");
    assert_eq!(world.provider.effects().len(), 1);

    let mut elsewhere = message(&world, json!("ada@example.com"));
    elsewhere["api"] = "https://api.mail.example".into();
    let id = start(&host, step("mail/send", &elsewhere, "")).await;
    let ended = drive(&host, &id).await;
    assert!(matches!(&ended, Ended::Failed { .. }), "nothing left, so nothing is in doubt: {ended:?}");
    assert_eq!(used(&host, &id, "emails").await, "0");
}
