//! Budgets: what is charged, when, to the millionth; what is refused, in which words; what is given back.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate::budget::Amount;
use tollgate::host::Host;
use tollgate::journal::{ChargeKey, Failure};
use tollgate::run::{Ended, StartRun};
use tollgate::workflow::Workflow;

use super::support::{
    TestClock, World, caps, drive, lose_worker_after_effect, one_step, options, parse, resume, run, start, used,
};

/// Dimensions and amounts.
type Items<'a> = &'a [(&'a str, &'a str)];

/// A plan of these amounts, in this order.
fn plan(items: Items) -> Value {
    let items: Vec<Value> =
        items.iter().map(|(dimension, amount)| json!({ "dimension": dimension, "amount": amount })).collect();
    json!([{ "do": "planned", "consumes": items }])
}

/// A request that the policy meters, under a key of its own.
fn post(world: &World, label: &str) -> Value {
    json!({
        "do": "http",
        "method": "POST",
        "url": format!("{}/v1/messages", world.provider.url),
        "headers": { "idempotency-key": label },
        "body": label,
    })
}

/// A workflow under `budget` with a step for each action and config.
fn steps(budget: &str, steps: &[(&str, Value)]) -> Workflow {
    let mut text = format!("workflow: test/steps\nbudget: {budget}\nsteps:\n");
    for (index, (action, with)) in steps.iter().enumerate() {
        text.push_str(&format!("  - {{ id: s{index}, action: probe/{action}, with: {with} }}\n"));
    }
    parse(&text)
}

fn failed(ended: Ended) -> Failure {
    match ended {
        Ended::Failed { failure } => failure,
        other => panic!("it should fail: {other:?}"),
    }
}

fn results(ended: &Ended) -> Value {
    let Ended::Completed { outputs } = ended else { panic!("it should complete: {ended:?}") };
    let outputs: Value = serde_json::from_str(outputs).expect("outputs are JSON");
    outputs["result"]["results"].clone()
}

/// Every charge of a run: step, dimension, amount, the request's number of an overdraw, whether it was given back.
async fn charges(host: &Host, run: &str) -> Vec<(String, String, String, Option<u32>, bool)> {
    let view = host.store.budget(run).await.expect("the store answers");
    let shown = view.charges.into_iter().map(|charge| {
        let (amount, given_back) = (charge.amount.to_string(), charge.refunded_at.is_some());
        (charge.step, charge.dimension, amount, charge.key.request, given_back)
    });
    shown.collect()
}

/// B1: 0.1 and 0.2 fit 0.3, whatever the classes; a charge rounds up, a cap down, to a millionth.
#[tokio::test(flavor = "multi_thread")]
async fn b1_amounts_are_exact_from_end_to_end() {
    let world = World::new();
    let host = world.probe().await;
    let with = |amount: &str| json!({ "plan": plan(&[("usd", amount)]) });
    #[rustfmt::skip]
    let table = [
        ("{ usd: 0.3 }", vec![("tx-op", "0.1"), ("amb-op", "0.2")], "0.3", true),
        ("{ usd: 0.3 }", vec![("idem-op", "0.1"), ("idem-op", "0.2"), ("tx-op", "0.000001")], "0.3", false),
        ("{ usd: \"0.3000009\" }", vec![("amb-op", "0.3"), ("amb-op", "0.0000001")], "0.3", false),
        ("{ usd: 1 }", vec![("amb-op", "0.0000001")], "0.000001", true),
        ("{ usd: \"9223372036854.775807\" }", vec![("amb-op", "9223372036854.775806"), ("amb-op", "0.000001")], "9223372036854.775807", true),
        ("{ usd: \"9223372036854.775807\" }", vec![("amb-op", "9223372036854.775807"), ("amb-op", "0.000001")], "9223372036854.775807", false),
        ("{ usd: 0 }", vec![("amb-op", "0")], "0", true),
        ("{ usd: 0 }", vec![("amb-op", "0.0000000000000000000001")], "0", false),
    ];
    for (budget, charged, total, fits) in table {
        let list: Vec<_> = charged.iter().map(|(action, amount)| (*action, with(amount))).collect();
        let (id, ended) = run(&host, steps(budget, &list)).await;
        assert_eq!(matches!(ended, Ended::Completed { .. }), fits, "{budget} {charged:?}: {ended:?}");
        assert_eq!(used(&host, &id, "usd").await, total, "{budget} {charged:?}");
        if !fits {
            assert_eq!(failed(ended).code, "WORKFLOW_BUDGET_EXCEEDED");
        }
    }
}

/// B1: what is no amount is a clear failure that names the plan and the dimension; nothing is charged or sent.
#[tokio::test(flavor = "multi_thread")]
async fn b1_what_is_no_amount_fails_and_names_the_dimension() {
    let world = World::new();
    let host = world.probe().await;
    #[rustfmt::skip]
    let table: [(Items, &str); 12] = [
        (&[("usd", "NaN")], "dimension usd: \"NaN\" is not a finite number"),
        (&[("usd", "inf")], "dimension usd: \"inf\" is not a finite number"),
        (&[("usd", "-Infinity")], "dimension usd: \"-Infinity\" is not a finite number"),
        (&[("usd", "-1")], "dimension usd: \"-1\" is negative"),
        (&[("usd", "-0.0")], "dimension usd: \"-0.0\" is negative"),
        (&[("usd", "")], "dimension usd: an amount is missing"),
        (&[("usd", "1e3")], "dimension usd: \"1e3\" has an exponent"),
        (&[("usd", "1,5")], "dimension usd: \"1,5\" is not an amount"),
        (&[("", "1")], "a dimension has no name"),
        (&[("u s d", "1")], "\"u s d\" does not name a dimension"),
        (&[("usd", "9223372036854"), ("usd", "9223372036854")], "dimension usd: the sum is too large"),
        (&[("emails", "1"), ("stamps", "1")], "consumes `stamps`, which its descriptor does not list under `meters`"),
    ];
    for action in ["tx-op", "idem-op", "amb-op"] {
        for (items, says) in table {
            let with = json!({ "plan": plan(items), "run": [post(&world, "a")] });
            let (id, ended) = run(&host, one_step(action, &with, "    retry: { attempts: 3 }\n")).await;
            let failure = failed(ended);
            assert_eq!((failure.code.as_str(), failure.retryable), ("WORKFLOW_OUTCOME_REFUSED", false), "{items:?}");
            assert!(failure.message.contains(&format!("the plan of probe/{action}")), "{}", failure.message);
            assert!(
                failure.message.replace('`', "\"").contains(&says.replace('`', "\"")),
                "{items:?}: {}",
                failure.message
            );
            assert!(charges(&host, &id).await.is_empty());
            assert!(host.store.effects(&id).await.expect("it answers").is_empty());
        }
    }
    assert_eq!(world.provider.requests(), Vec::<Value>::new());
}

/// R6: equal to the cap fits; over it, all four figures are in the details and in the message, and nothing is consumed.
#[tokio::test(flavor = "multi_thread")]
async fn r6_over_the_cap_says_all_four_figures_and_consumes_nothing() {
    let world = World::new();
    let host = world.probe().await;
    for action in ["tx-op", "idem-op", "amb-op"] {
        let ok = json!({ "plan": plan(&[("emails", "1.5"), ("usd", "1")]) });
        let over = json!({
            "plan": plan(&[("usd", "2"), ("emails", "0.75")]),
            "run": [{ "do": "doc-put", "key": "spent", "value": true }, post(&world, "a")],
        });
        let (id, ended) = run(&host, steps("{ emails: 2, usd: 3 }", &[(action, ok), (action, over)])).await;
        let failure = failed(ended);
        assert_eq!((failure.code.as_str(), failure.retryable), ("WORKFLOW_BUDGET_EXCEEDED", false));
        let details = json!({ "dimension": "emails", "limit": "2", "used": "1.5", "requested": "0.75" });
        assert_eq!(failure.details, Some(details), "{action}");
        assert_eq!(failure.message, "the budget for emails is exceeded: limit 2, used 1.5, requested 0.75");
        assert_eq!(used(&host, &id, "emails").await, "1.5", "{action}");
        assert_eq!(used(&host, &id, "usd").await, "1", "{action}: all dimensions or none");
        assert_eq!(charges(&host, &id).await.len(), 2);
        let effects = host.store.effects(&id).await.expect("it answers");
        assert!(effects.iter().all(|effect| effect.step == "s0"), "{action}: no mark without its charge");
    }
    assert_eq!(world.provider.requests(), Vec::<Value>::new());
    let document = tollgate::journal::Journal::document(&host.store, "probe", "spent").await;
    assert_eq!(document.expect("the store answers"), None);
}

/// R6: a dimension named twice is summed; of several over their caps, the first in the plan's order is reported.
#[tokio::test(flavor = "multi_thread")]
async fn r6_the_first_over_the_cap_in_the_plans_order_is_reported() {
    let world = World::new();
    let host = world.probe().await;
    #[rustfmt::skip]
    let table: [(Items, &str, &str); 5] = [
        (&[("usd", "9"), ("emails", "9")], "usd", "9"),
        (&[("emails", "9"), ("usd", "9")], "emails", "9"),
        (&[("calls", "9"), ("emails", "1"), ("usd", "9")], "usd", "9"),
        (&[("emails", "1"), ("usd", "1"), ("emails", "1.5")], "emails", "2.5"),
        (&[("usd", "9"), ("emails", "1"), ("emails", "1.5")], "usd", "9"),
    ];
    for (items, dimension, requested) in table {
        let (_, ended) =
            run(&host, steps("{ emails: 2, usd: 2 }", &[("amb-op", json!({ "plan": plan(items) }))])).await;
        let details = failed(ended).details.expect("there are details");
        assert_eq!((&details["dimension"], &details["requested"]), (&json!(dimension), &json!(requested)), "{items:?}");
    }
}

/// B2: a dimension without a cap is counted, and never refuses. Pure is never charged.
#[tokio::test(flavor = "multi_thread")]
async fn b2_a_dimension_without_a_cap_is_counted() {
    let world = World::new();
    let host = world.probe().await;
    let with = json!({ "plan": plan(&[("emails", "1"), ("calls", "1000000")]) });
    let pure = json!({ "plan": plan(&[("calls", "1")]) });
    let list = [("tx-op", with.clone()), ("pure-op", pure), ("idem-op", with.clone()), ("amb-op", with)];
    let (id, ended) = run(&host, steps("{ emails: 3 }", &list)).await;
    assert!(matches!(ended, Ended::Completed { .. }), "{ended:?}");
    assert_eq!(used(&host, &id, "emails").await, "3");
    assert_eq!(used(&host, &id, "calls").await, "3000000");
}

/// B4: a start's caps override the definition's, by dimension: higher, lower, and where the definition has none.
#[tokio::test(flavor = "multi_thread")]
async fn b4_a_start_overrides_the_definitions_caps() {
    let world = World::new();
    let host = world.probe().await;
    #[rustfmt::skip]
    let table: [(Items, Option<&str>); 4] = [
        (&[("emails", "5")], None),
        (&[], Some("emails")),
        (&[("emails", "5"), ("usd", "0.5")], Some("usd")),
        (&[("emails", "2.999999")], Some("emails")),
    ];
    for (overrides, refused) in table {
        let with = json!({ "plan": plan(&[("emails", "3"), ("usd", "1")]) });
        let workflow = steps("{ emails: 2 }", &[("amb-op", with)]);
        let started =
            host.start(StartRun { budget: caps(overrides), ..StartRun::of(workflow) }).await.expect("it starts");
        let ended = host.drive(&started.run, options("test")).await.expect("it can be driven");
        match refused {
            None => assert!(matches!(ended, Ended::Completed { .. }), "{overrides:?}: {ended:?}"),
            Some(dimension) => {
                assert_eq!(failed(ended).details.expect("there are details")["dimension"], dimension, "{overrides:?}")
            }
        }
    }
}

/// B4: each root has a budget of its own, and the steps of one root share it.
#[tokio::test(flavor = "multi_thread")]
async fn b4_each_root_has_a_budget_of_its_own() {
    let world = World::new();
    let host = world.probe().await;
    let with = json!({ "plan": plan(&[("emails", "2")]) });
    for _ in 0..3 {
        let (id, ended) =
            run(&host, steps("{ emails: 3 }", &[("amb-op", with.clone()), ("amb-op", with.clone())])).await;
        assert_eq!(failed(ended).code, "WORKFLOW_BUDGET_EXCEEDED");
        assert_eq!(used(&host, &id, "emails").await, "2");
    }
}

/// B5: a reclaimed attempt that acts again is charged again, under its dispatch and its new generation.
#[tokio::test(flavor = "multi_thread")]
async fn b5_a_reclaimed_attempt_is_charged_again() {
    let world = World::new();
    let host = world.probe().await;
    world.provider.control(&json!({ "mode": "accept-then-hang", "times": 1 }));
    let with = json!({ "plan": plan(&[("emails", "1")]), "run": [post(&world, "a")] });
    let id = start(&host, one_step("idem-op", &with, "")).await;
    lose_worker_after_effect(&world, &host, &id).await;
    assert_eq!(used(&host, &id, "emails").await, "1", "charged before it acted");
    assert!(matches!(drive(&host, &id).await, Ended::Completed { .. }));
    assert_eq!(used(&host, &id, "emails").await, "2");
    let view = host.store.budget(&id).await.expect("the store answers");
    let keys: Vec<&ChargeKey> = view.charges.iter().map(|charge| &charge.key).collect();
    let [first, second] = keys.as_slice() else { panic!("there should be two charges: {keys:?}") };
    assert_eq!(first.dispatch, second.dispatch);
    assert!(first.generation < second.generation);
}

/// B5, R12: given back only where nothing left: a refusal that was heard keeps its charge, a try that sent nothing does not.
#[tokio::test(flavor = "multi_thread")]
async fn b5_a_charge_is_given_back_only_where_nothing_left() {
    let world = World::new();
    let host = world.probe().await;
    let again = |attempt: u32| json!({ "do": "fail", "message": "again", "retryable": true, "attempt": attempt });
    let mut late = post(&world, "a");
    late["attempt"] = 3.into();
    let mut early = post(&world, "a");
    early["attempt"] = 1.into();
    world.provider.control(&json!({ "mode": "refuse", "times": 1 }));
    for action in ["idem-op", "amb-op"] {
        world.provider.control(&json!({ "mode": "refuse", "times": 1 }));
        let with = json!({ "plan": plan(&[("emails", "1")]), "run": [early, again(1), again(2), late] });
        let (id, ended) = run(&host, one_step(action, &with, "    retry: { attempts: 3, backoff: 1ms }\n")).await;
        assert!(matches!(ended, Ended::Completed { .. }), "{ended:?}");
        let given_back: Vec<bool> = charges(&host, &id).await.into_iter().map(|charge| charge.4).collect();
        assert_eq!(given_back, [false, true, false], "{action}");
        assert_eq!(used(&host, &id, "emails").await, "2", "{action}");
    }
}

/// B6: a guest cannot do more than it said: past the plan's allowance a metered request is refused before it leaves.
#[tokio::test(flavor = "multi_thread")]
async fn b6_past_the_plan_a_metered_request_is_refused() {
    let world = World::new();
    let host = world.probe().await;
    for action in ["idem-op", "amb-op"] {
        let sent_before = world.provider.effectful_requests().len();
        let with = json!({
            "plan": plan(&[("emails", "1")]),
            "run": [post(&world, "first"), post(&world, "second"), post(&world, "third")],
        });
        let (id, ended) = run(&host, one_step(action, &with, "")).await;
        let results = results(&ended);
        assert_eq!(results[0]["status"], 202, "{results}");
        for refused in [&results[1], &results[2]] {
            let error = refused["error"].as_str().expect("it was refused");
            assert!(error.contains("emails") && error.contains("overdraw = \"charge\""), "{error}");
        }
        assert_eq!(world.provider.effectful_requests().len() - sent_before, 1, "{action}");
        assert_eq!(used(&host, &id, "emails").await, "1");
    }
    // A plan that announces nothing allows nothing, and what was refused leaves nothing in doubt.
    let with = json!({ "run": [post(&world, "first"), { "do": "fail", "message": "no" }] });
    let sent_before = world.provider.effectful_requests().len();
    assert_eq!(failed(run(&host, one_step("amb-op", &with, "")).await.1).code, "WORKFLOW_ACTION_ERROR");
    assert_eq!(world.provider.effectful_requests().len(), sent_before);
}

/// B6: what a request drew that never left can be drawn again.
#[tokio::test(flavor = "multi_thread")]
async fn b6_what_did_not_leave_did_not_draw() {
    let world = World::new();
    world.extend_policy(
        "[[app.probe.http]]\nurl = \"http://127.0.0.1:1/**\"\nmethods = [\"POST\"]\nmeter = { emails = 1 }\naddresses = \
         [\"127.0.0.0/8\"]\n",
    );
    let host = world.probe().await;
    let nobody_listens = json!({ "do": "http", "method": "POST", "url": "http://127.0.0.1:1/x", "body": "hello" });
    let with = json!({ "plan": plan(&[("emails", "1")]), "run": [nobody_listens, post(&world, "a")] });
    let (id, ended) = run(&host, one_step("amb-op", &with, "")).await;
    let results = results(&ended);
    assert!(results[0]["error"].is_string(), "{results}");
    assert_eq!(results[1]["status"], 202, "{results}");
    assert_eq!(used(&host, &id, "emails").await, "1");
}

/// B6: safe requests do not draw.
#[tokio::test(flavor = "multi_thread")]
async fn b6_safe_requests_do_not_draw() {
    let world = World::new();
    let host = world.probe().await;
    let get = json!({ "do": "http", "url": format!("{}/v1/messages", world.provider.url), "times": 3 });
    let with = json!({ "plan": plan(&[("emails", "1")]), "run": [get, post(&world, "a")] });
    let (id, ended) = run(&host, one_step("amb-op", &with, "")).await;
    assert_eq!(results(&ended)[1]["status"], 202);
    assert_eq!(used(&host, &id, "emails").await, "1");
    assert_eq!(world.provider.requests().len(), 4);
}

/// B6: `overdraw = "charge"` charges then and there, by the request's number, and refuses past the cap.
#[tokio::test(flavor = "multi_thread")]
async fn b6_an_overdraw_is_charged_then_and_there_up_to_the_cap() {
    let world = World::new();
    world.edit_policy("meter = { emails = 1 }", "meter = { emails = 1 }\noverdraw = \"charge\"");
    let host = world.probe().await;
    let with = json!({
        "plan": plan(&[("emails", "1")]),
        "run": [post(&world, "a"), post(&world, "b"), post(&world, "c"), post(&world, "d")],
    });
    let started = host
        .start(StartRun { budget: caps(&[("emails", "3")]), ..StartRun::of(one_step("amb-op", &with, "")) })
        .await
        .expect("it starts");
    let ended = host.drive(&started.run, options("test")).await.expect("it can be driven");
    let results = results(&ended);
    for allowed in 0..3 {
        assert_eq!(results[allowed]["status"], 202, "{results}");
    }
    let error = results[3]["error"].as_str().expect("the fourth was refused");
    assert!(error.contains("limit 3, used 3, requested 1"), "{error}");
    assert_eq!(world.provider.effectful_requests().len(), 3);
    assert_eq!(used(&host, &started.run, "emails").await, "3");
    let requests: Vec<_> = charges(&host, &started.run).await.into_iter().map(|charge| charge.3).collect();
    assert_eq!(requests, [None, Some(2), Some(3)]);
}

/// B6, R12: an overdraw is given back with the rest where nothing left.
#[tokio::test(flavor = "multi_thread")]
async fn b6_an_overdraw_for_a_request_that_never_left_is_given_back() {
    let world = World::new();
    let url = format!("{}/v1/**", world.provider.url);
    world
        .edit_policy("meter = { emails = 1 }", "meter = { emails = 1 }\noverdraw = \"charge\"")
        .edit_policy(&url, "http://127.0.0.1:1/**");
    let host = world.probe().await;
    let nobody_listens = json!({ "do": "http", "method": "POST", "url": "http://127.0.0.1:1/x", "body": "hello" });
    let with = json!({ "run": [nobody_listens, { "do": "fail", "message": "no" }] });
    let (id, ended) = run(&host, one_step("amb-op", &with, "")).await;
    assert_eq!(failed(ended).code, "WORKFLOW_ACTION_ERROR");
    assert_eq!(charges(&host, &id).await, [("only".to_owned(), "emails".to_owned(), "1".to_owned(), Some(1), true)]);
    assert_eq!(used(&host, &id, "emails").await, "0");
}

/// B6: with budgets off, meters never refuse.
#[tokio::test(flavor = "multi_thread")]
async fn b6_with_budgets_off_meters_never_refuse() {
    let world = World::new();
    let mut host = world.probe().await;
    host.budgets = false;
    let with = json!({ "run": [post(&world, "a"), post(&world, "b")] });
    let (id, ended) = run(&host, one_step("amb-op", &with, "")).await;
    assert_eq!((&results(&ended)[0]["status"], &results(&ended)[1]["status"]), (&json!(202), &json!(202)));
    assert_eq!(used(&host, &id, "emails").await, "0");
}

/// B5: a run that is resumed after its budget ran out is refused again, and one that was charged before stays charged.
#[tokio::test(flavor = "multi_thread")]
async fn b5_a_resume_gives_no_fresh_budget() {
    let world = World::new();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    let ok = json!({ "plan": plan(&[("emails", "2")]) });
    let over = json!({ "plan": plan(&[("emails", "2")]), "run": [post(&world, "a")] });
    let id = start(&host, steps("{ emails: 3 }", &[("amb-op", ok), ("amb-op", over)])).await;
    assert_eq!(failed(drive(&host, &id).await).code, "WORKFLOW_BUDGET_EXCEEDED");
    clock.forward(Duration::from_secs(3_600));
    let failure = failed(resume(&host, &id).await);
    assert_eq!(failure.details.expect("there are details")["used"], "2");
    let view = host.store.budget(&id).await.expect("the store answers");
    assert_eq!(view.used.get("emails"), Amount::from_micros(2_000_000).as_ref());
}
