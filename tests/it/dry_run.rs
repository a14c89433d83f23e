//! The dry run: what each step would do, in what words, and that nothing is written and nothing leaves.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tollgate::host::Host;
use tollgate::perform::{Check, CheckedCall};
use tollgate::run::{DryRun, StartRun};
use tollgate::store::RunFilter;
use tollgate::workflow::Workflow;

use super::support::{World, caps, dry_run, one_step, parse, run};

fn post(world: &World) -> Value {
    json!({ "do": "http", "method": "POST", "url": format!("{}/v1/messages", world.provider.url), "body": "hello" })
}

fn emails(count: u32) -> Value {
    json!([{ "do": "planned", "summary": format!("send {count}"), "consumes": [{ "dimension": "emails", "amount": count }] }])
}

/// A workflow of steps written as flow mappings, without their braces.
fn steps(steps: &[String]) -> Workflow {
    let mut text = String::from("workflow: test/steps\nbudget: { emails: 3 }\nsteps:\n");
    for step in steps {
        text.push_str(&format!("  - {{ {step} }}\n"));
    }
    parse(&text)
}

/// Each step as it would be printed, as JSON.
fn shown(dry: &DryRun) -> Vec<Value> {
    serde_json::to_value(&dry.steps).expect("it is JSON").as_array().expect("a list").clone()
}

/// The forecast of the one step of the probe's `action`.
async fn forecast(host: &Host, action: &str, with: Value) -> Value {
    shown(&dry_run(host, one_step(action, &with, "")).await).remove(0)
}

fn panics() -> Value {
    json!([{ "do": "panic", "message": "it must not be called" }])
}

/// D2: a pure action is simply run.
#[tokio::test(flavor = "multi_thread")]
async fn d2_a_pure_action_is_run() {
    let world = World::new();
    let host = world.probe().await;
    let found =
        forecast(&host, "pure-op", json!({ "plan": panics(), "run": [{ "do": "succeed", "output": [1] }] })).await;
    let expected = json!({
        "step": "only", "action": "probe/pure-op", "status": "planned", "output": [1], "effects": [], "issues": [],
    });
    assert_eq!(found, expected);

    let wait = json!({ "run": [{ "do": "wait", "kind": "signal", "key": "paid" }] });
    let found = forecast(&host, "pure-op", wait).await;
    assert_eq!(found["status"], "indeterminate");
    assert_eq!(found["reason"], "dependency signal:paid is not satisfied");

    #[rustfmt::skip]
    let table = [
        (json!({ "do": "fail", "message": "no such file", "code": "NO_FILE" }), "NO_FILE", "no such file"),
        (json!({ "do": "doubt", "message": "perhaps" }), "WORKFLOW_ACTION_ERROR", "perhaps"),
        (json!({ "do": "panic", "message": "no" }), "WORKFLOW_ACTION_TRAPPED", "run trapped"),
        // On a crowded machine the wall limit may come before the cpu limit.
        (json!({ "do": "spin" }), "WORKFLOW_TIMEOUT", "run was stopped"),
        (json!({ "do": "succeed-raw", "text": "{" }), "WORKFLOW_OUTCOME_REFUSED", "JSON"),
    ];
    for (instruction, code, message) in table {
        let dry = dry_run(&host, one_step("pure-op", &json!({ "run": [instruction] }), "")).await;
        let found = shown(&dry).remove(0);
        assert_eq!((&found["status"], &found["failure"]["code"]), (&json!("terminal"), &json!(code)), "{found}");
        assert!(found["failure"]["message"].as_str().expect("text").contains(message), "{found}");
        assert!(dry.fails());
    }
}

/// D3: the others answer with their plan; without one they cannot be planned.
#[tokio::test(flavor = "multi_thread")]
async fn d3_the_others_are_planned_and_not_run() {
    let world = World::new();
    let host = world.probe().await;
    for action in ["tx-op", "idem-op", "amb-op"] {
        let plan = json!([{
            "do": "planned", "summary": "send two", "consumes": [{ "dimension": "emails", "amount": "2" }],
            "output": { "id": null }, "issues": [{ "code": "ODD", "message": "odd address" }],
        }]);
        let found = forecast(&host, action, json!({ "plan": plan, "run": panics() })).await;
        let name = format!("probe/{action}");
        let expected = json!({
            "step": "only", "action": name, "status": "planned", "output": { "id": null },
            "effects": [{
                "action": name, "summary": "send two", "consumes": [{ "dimension": "emails", "amount": "2" }],
            }],
            "issues": [{ "step": "only", "code": "ODD", "message": "odd address" }],
        });
        assert_eq!(found, expected);
    }
    let found = forecast(&host, "plain-idem", json!({ "run": panics() })).await;
    assert_eq!(
        (&found["status"], &found["reason"]),
        (&json!("unsupported"), &json!("probe/plain-idem cannot be planned"))
    );
}

/// D3: what a plan may not say is terminal, as it is at execution: dry run and charge cannot disagree.
#[tokio::test(flavor = "multi_thread")]
async fn d3_r5_a_plan_is_judged_as_it_is_at_execution() {
    let world = World::new();
    let host = world.probe().await;
    let plans = [
        json!({ "do": "planned", "consumes": [{ "dimension": "usd", "amount": "NaN" }] }),
        json!({ "do": "planned", "consumes": [{ "dimension": "stamps", "amount": "1" }] }),
        json!({ "do": "fail", "message": "no", "code": "NO_PLAN" }),
        json!({ "do": "panic", "message": "no" }),
    ];
    for plan in plans {
        let with = json!({ "plan": [plan] });
        let found = forecast(&host, "amb-op", with.clone()).await;
        let failure = super::support::failure(&host, "amb-op", with).await;
        assert_eq!(found["status"], "terminal", "{found}");
        assert_eq!(found["failure"], serde_json::to_value(&failure).expect("it is JSON"));
    }
    let found = forecast(&host, "amb-op", json!({ "plan": [{ "do": "planned", "output_raw": "{" }] })).await;
    assert_eq!(found["failure"]["code"], "WORKFLOW_OUTCOME_REFUSED", "{found}");
}

/// Refuses everything.
struct Refuses;

impl Check for Refuses {
    fn check<'a>(&'a self, _call: &'a CheckedCall<'a>) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async { Err("the customer has left".to_owned()) })
    }
}

/// D1: authorize is asked, by whomever it is asked at execution; a refusal is terminal and ends the dry run.
#[tokio::test(flavor = "multi_thread")]
async fn d1_a_refusal_is_terminal() {
    let world = World::new();
    let mut host = world.probe().await;
    for action in ["pure-op", "tx-op", "idem-op", "amb-op"] {
        let with =
            json!({ "authorize": [{ "do": "refuse", "reason": "on leave" }], "plan": panics(), "run": panics() });
        let two = steps(&[
            format!("id: first, action: probe/{action}, with: {with}"),
            format!("id: second, action: probe/pure-op, with: {with}"),
        ]);
        let dry = dry_run(&host, two).await;
        assert_eq!(dry.steps.len(), 1, "it ends there");
        let found = shown(&dry).remove(0);
        assert_eq!(found["status"], "terminal");
        let failure = json!({
            "code": "FORBIDDEN", "message": "not authorized to perform this action", "retryable": false,
            "details": { "refused by": "the action's `authorize`", "reason": "on leave" },
        });
        assert_eq!(found["failure"], failure, "{action}");
    }

    host.check = Some(std::sync::Arc::new(Refuses));
    for action in ["amb-op", "plain-idem"] {
        let found = forecast(&host, action, json!({ "authorize": panics(), "plan": panics() })).await;
        assert_eq!(found["failure"]["code"], "FORBIDDEN", "{found}");
        let details = json!({ "refused by": "the host's own check", "reason": "the customer has left" });
        assert_eq!(found["failure"]["details"], details);
    }

    // A class that the policy no longer allows would be refused, so that the dry run says so.
    world.edit_policy("\"idempotent\", \"ambiguous\"]", "\"idempotent\"]");
    let narrowed = world.host().await;
    let found = forecast(&narrowed, "amb-op", json!({ "plan": emails(1) })).await;
    assert_eq!((&found["status"], &found["failure"]["code"]), (&json!("terminal"), &json!("FORBIDDEN")));
    assert_eq!(found["failure"]["details"]["refused by"], "the policy");
}

/// D3: what depends on an output that the dry run does not have is indeterminate, not an error; what does not is asked.
#[tokio::test(flavor = "multi_thread")]
async fn d3_what_depends_on_an_unknown_output_is_indeterminate() {
    let world = World::new();
    let host = world.probe().await;
    let send = json!({ "plan": emails(1) });
    let known = json!({ "plan": [{ "do": "planned", "output": { "id": "m-0" } }] });
    let succeed = |output: &str| json!({ "run": [{ "do": "succeed", "output": output }] });
    let dry = dry_run(
        &host,
        steps(&[
            format!("id: send, action: probe/amb-op, with: {send}, saveAs: sent"),
            format!("id: by-name, action: probe/pure-op, with: {}", succeed("{{ sent.id }}")),
            format!("id: by-step, action: probe/pure-op, with: {}", succeed("{{ steps.send.output.id }}")),
            format!("id: over-two-lines, action: probe/pure-op, with: {}", succeed("{{\nsent.id }}")),
            format!("id: after-that, action: probe/pure-op, with: {}", succeed("{{ steps['by-name'].output }}")),
            format!("id: whether, action: probe/pure-op, if: \"{{{{ sent.id == 'x' }}}}\", with: {}", succeed("x")),
            format!("id: known, action: probe/amb-op, with: {known}, saveAs: known"),
            format!("id: of-the-known, action: probe/pure-op, with: {}", succeed("{{ known.id }}")),
            format!("id: words, action: probe/pure-op, with: {}", succeed("send what was sent")),
            format!("id: never, action: probe/amb-op, if: false, with: {{ plan: {} }}, saveAs: never", panics()),
            format!("id: of-the-skipped, action: probe/pure-op, with: {}", succeed("{{ never is none }}")),
        ]),
    )
    .await;
    let found: Vec<String> = shown(&dry)
        .iter()
        .map(|step| {
            let more = step.get("reason").or(step.get("output")).cloned().unwrap_or_default();
            format!(
                "{} {} {more}",
                step["step"].as_str().unwrap_or_default(),
                step["status"].as_str().unwrap_or_default()
            )
        })
        .collect();
    let unknown = "depends on the output of a step that is not known before it runs";
    let expected = [
        "send planned null".to_owned(),
        format!("by-name indeterminate \"steps.by-name.with {unknown}\""),
        format!("by-step indeterminate \"steps.by-step.with {unknown}\""),
        format!("over-two-lines indeterminate \"steps.over-two-lines.with {unknown}\""),
        format!("after-that indeterminate \"steps.after-that.with {unknown}\""),
        format!("whether indeterminate \"steps.whether.if {unknown}\""),
        "known planned {\"id\":\"m-0\"}".to_owned(),
        "of-the-known planned \"m-0\"".to_owned(),
        "words planned \"send what was sent\"".to_owned(),
        "never skipped null".to_owned(),
        "of-the-skipped planned true".to_owned(),
    ];
    assert_eq!(found, expected);
    assert!(!dry.fails());
}

/// R2: what does not evaluate or does not fit is terminal, with the path.
#[tokio::test(flavor = "multi_thread")]
async fn r2_what_does_not_evaluate_is_terminal() {
    let world = World::new();
    let host = world.probe().await;
    let found = forecast(&host, "amb-op", json!({ "plan": emails(1), "to": "{{ params.nobody }}" })).await;
    assert_eq!(found["failure"]["code"], "CONFIG_INVALID", "{found}");
    assert!(found["failure"]["message"].as_str().expect("text").starts_with("steps.only.with.to: "), "{found}");
}

/// The run's outputs are known where everything that they depend on is.
#[tokio::test(flavor = "multi_thread")]
async fn outputs_are_known_where_what_they_depend_on_is() {
    let world = World::new();
    let host = world.probe().await;
    let dry = dry_run(&host, one_step("pure-op", &json!({ "run": [{ "do": "succeed", "output": 5 }] }), "")).await;
    assert_eq!(dry.outputs, Some(json!({ "result": 5 })));
    let dry = dry_run(&host, one_step("amb-op", &json!({ "plan": emails(1) }), "")).await;
    assert_eq!(dry.outputs, None);
}

/// D4: the sum of the planned effects beside the budget, and which dimension would run out where.
#[tokio::test(flavor = "multi_thread")]
async fn d4_the_sum_is_compared_with_the_budget() {
    let world = World::new();
    let host = world.probe().await;
    let send =
        |id: &str, count: u32| format!("id: {id}, action: probe/amb-op, with: {}", json!({ "plan": emails(count) }));
    let budget = |dry: &DryRun| serde_json::to_value(&dry.budget).expect("it is JSON");

    let dry = dry_run(&host, steps(&[send("first", 1), send("second", 2)])).await;
    let fits = json!({ "caps": { "emails": "3" }, "planned": { "emails": "3" }, "runs_out": null });
    assert_eq!(budget(&dry), fits);
    assert!(!dry.fails());

    let over = || steps(&[send("first", 1), send("second", 2), send("third", 2), send("fourth", 1)]);
    let dry = dry_run(&host, over()).await;
    let runs_out = json!({
        "step": "third",
        "exceeded": { "dimension": "emails", "limit": "3", "used": "3", "requested": "2" },
    });
    let expected = json!({ "caps": { "emails": "3" }, "planned": { "emails": "6" }, "runs_out": runs_out });
    assert_eq!(budget(&dry), expected);
    assert!(dry.fails());
    assert_eq!(dry.steps.len(), 4, "the whole is shown");

    let dry = host.dry_run(StartRun { budget: caps(&[("emails", "6")]), ..StartRun::of(over()) }).await.expect("fine");
    assert!(!dry.fails(), "a start's caps override the definition's");

    // Execution comes to the same end at the same step.
    let (id, ended) = run(&host, over()).await;
    let tollgate::run::Ended::Failed { failure } = ended else { panic!("it should fail: {ended:?}") };
    assert_eq!(failure.details, Some(expected["runs_out"]["exceeded"].clone()));
    let stored = host.store.snapshot(&id).await.expect("the store answers").expect("the run is there");
    assert_eq!(stored.steps.iter().filter(|step| step.output.is_some()).count(), 2);
}

/// Every byte of the store's files but the index of its log, which readers share.
fn store_bytes(world: &World) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(world.folder.path()).expect("the folder is there");
    files
        .map(|file| file.expect("it can be listed").path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("store.db")))
        .filter(|path| !path.to_string_lossy().ends_with("-shm"))
        .map(|path| (path.display().to_string(), std::fs::read(&path).expect("it can be read")))
        .collect()
}

/// D5: no byte of the store changes, and only safe requests leave; an effectful one is refused in every phase of it.
#[tokio::test(flavor = "multi_thread")]
async fn d5_nothing_is_written_and_only_safe_requests_leave() {
    let world = World::new();
    let host = world.probe().await;
    let get = json!({ "do": "http", "url": format!("{}/health", world.provider.url) });
    let put = json!({ "do": "doc-put", "key": "k", "value": 1 });
    let asks = json!([get, post(&world), put]);
    let with = json!({ "authorize": asks, "plan": asks, "run": asks });
    let workflow = || {
        steps(
            &["pure-op", "tx-op", "idem-op", "amb-op"]
                .map(|action| format!("id: {action}, action: probe/{action}, with: {with}")),
        )
    };
    let before = store_bytes(&world);
    assert!(before.keys().any(|name| name.ends_with("store.db")), "{:?}", before.keys());
    let dry = dry_run(&host, workflow()).await;
    assert!(!dry.fails(), "{dry:?}");
    assert_eq!(dry.steps.len(), 4);
    assert!(store_bytes(&world) == before, "a dry run must not write");
    assert!(host.store.list_runs(&RunFilter::default()).await.expect("the store answers").runs.is_empty());
    assert!(host.store.effects_in_doubt().await.expect("the store answers").is_empty());
    assert_eq!(world.provider.effectful_requests(), Vec::<Value>::new());
    // authorize of three classes and plan of two: a transactional action makes no request in any phase.
    assert_eq!(world.provider.requests().len(), 5);

    // The comparison would notice: a run writes.
    let (_, ended) = run(&host, one_step("pure-op", &json!({}), "")).await;
    assert!(matches!(ended, tollgate::run::Ended::Completed { .. }));
    assert!(store_bytes(&world) != before);
}

/// R5, section 3: an effectful request in `plan` is refused at execution too, before any charge.
#[tokio::test(flavor = "multi_thread")]
async fn an_effectful_request_in_plan_is_refused_at_execution_too() {
    let world = World::new();
    let host = world.probe().await;
    for action in ["tx-op", "idem-op", "amb-op"] {
        let mut post = post(&world);
        post["ignore_error"] = false.into();
        let (id, ended) = run(&host, one_step(action, &json!({ "plan": [post] }), "")).await;
        let tollgate::run::Ended::Failed { failure } = ended else { panic!("it should fail: {ended:?}") };
        assert!(failure.message.contains("refused") || failure.message.contains("denied"), "{}", failure.message);
        let stored = host.store.snapshot(&id).await.expect("the store answers").expect("the run is there");
        let record = stored.attempts[0].record.clone().expect("it has a record");
        assert_eq!(record.denials[0].phase, "plan", "{record:?}");
    }
    assert_eq!(world.provider.requests(), Vec::<Value>::new());
}

/// D1: parameters are checked as they are at a start.
#[tokio::test(flavor = "multi_thread")]
async fn parameters_are_checked_as_at_a_start() {
    let world = World::new();
    let host = world.probe().await;
    let workflow = || {
        parse(
            "workflow: test/params\nparams: { type: object, required: [n], properties: { n: { type: integer } } }\n\
             steps:\n  - { id: only, action: probe/pure-op, with: {} }\n",
        )
    };
    let start = || StartRun { params: json!({ "n": "many" }), ..StartRun::of(workflow()) };
    let dry = host.dry_run(start()).await.expect_err("they do not fit").to_string();
    assert_eq!(dry, host.start(start()).await.expect_err("they do not fit").to_string());
    assert!(dry.contains('n'), "{dry}");
}
