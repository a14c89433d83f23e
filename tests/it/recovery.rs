//! Orders of events that once broke a rule: crashes, refusals, clocks and people in between.
//!
//! Each test is a sequence that once ended wrongly: an effect doubled, settled as failed while it could still appear,
//! or lost from sight. Time is put forward rather than waited for, except where the provider's or the sandbox's counts.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tollgate::clock::Clock as _;
use tollgate::effect::EffectState;
use tollgate::host::Host;
use tollgate::journal::EffectRecord;
use tollgate::perform::{Check, CheckedCall};
use tollgate::run::state::RunState;
use tollgate::run::{DriveError, DriveOptions, Ended, Resolve, ResolveRunError, StartRun, StepForecast, Verdict};
use tollgate::store::ResolveError;

use super::support::{
    TestClock, World, caps, drive, one_step, options, parse, program, push, resume, start, until, used,
};

const WINDOW: Duration = Duration::from_secs(24 * 3_600);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn post(at: &str) -> Value {
    json!({ "do": "http", "method": "POST", "url": format!("{at}/v1/messages"), "body": "hello" })
}

fn get(at: &str) -> Value {
    json!({ "do": "http", "url": format!("{at}/v1/messages?key=$KEY") })
}

fn lookup(at: &str) -> Value {
    json!({ "do": "lookup", "url": format!("{at}/v1/messages?key=$KEY") })
}

fn sleep(ms: u64) -> Value {
    json!({ "do": "sleep", "ms": ms })
}

fn fail(code: &str) -> Value {
    json!({ "do": "fail", "message": "it failed", "code": code })
}

fn fail_retryably() -> Value {
    json!({ "do": "fail", "message": "again", "code": "AGAIN", "retryable": true })
}

fn doubt() -> Value {
    json!({ "do": "doubt", "message": "it may have gone through", "code": "MAYBE" })
}

fn one_email() -> Value {
    json!([{ "do": "planned", "consumes": [{ "dimension": "emails", "amount": "1" }] }])
}

/// The instruction, at one attempt alone.
fn at(attempt: u32, mut instruction: Value) -> Value {
    instruction["attempt"] = attempt.into();
    instruction
}

/// The request, whose error ends the attempt as a failure that may be tried again.
fn or_fail(mut request: Value) -> Value {
    request["ignore_error"] = false.into();
    request
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

async fn effect(host: &Host, run: &str) -> EffectRecord {
    let mut effects = host.store.effects(run).await.expect("the store answers");
    assert_eq!(effects.len(), 1, "{effects:?}");
    effects.remove(0)
}

/// How the run stands, and its one effect.
async fn summary(host: &Host, run: &str, ended: &Ended) -> String {
    format!("{} | {}", stands(ended), effect(host, run).await.state)
}

async fn state(host: &Host, run: &str) -> RunState {
    host.store.run(run).await.expect("the store answers").expect("the run is there").state
}

async fn in_inbox(host: &Host, run: &str) -> bool {
    host.store.effects_in_doubt().await.expect("the store answers").iter().any(|doubt| doubt.run == run)
}

async fn events(host: &Host, run: &str) -> Vec<tollgate::store::EventRow> {
    host.store.events(run, 0, 10_000).await.expect("the store answers")
}

async fn count(host: &Host, run: &str, kind: &str) -> usize {
    events(host, run).await.iter().filter(|event| event.kind == kind).count()
}

fn outputs(ended: &Ended) -> Value {
    let Ended::Completed { outputs } = ended else { panic!("it should complete: {ended:?}") };
    serde_json::from_str(outputs).expect("outputs are JSON")
}

async fn resolve(host: &Host, run: &str, verdict: Verdict) -> Result<RunState, ResolveRunError> {
    let (actor, because) = ("Ada".to_owned(), "she looked".to_owned());
    host.resolve(Resolve { run: run.to_owned(), step: None, verdict, actor, because }).await
}

/// Drives a run in the background.
fn driving(host: &Host, run: &str, options: DriveOptions) -> JoinHandle<Result<Ended, DriveError>> {
    let (host, run) = (host.clone(), run.to_owned());
    tokio::spawn(async move { host.drive(&run, options).await })
}

/// As [`resume`], without waiting for it.
fn resuming(host: &Host, run: &str) -> JoinHandle<Result<Ended, DriveError>> {
    driving(host, run, DriveOptions { wait: Duration::ZERO, reopen: true, ..DriveOptions::new("test") })
}

async fn ended(worker: JoinHandle<Result<Ended, DriveError>>) -> Ended {
    worker.await.expect("it does not panic").unwrap_or_else(|error| panic!("{error}"))
}

/// Waits until the provider has accepted one more effect than `before`, and loses the worker there.
async fn lose(world: &World, worker: JoinHandle<Result<Ended, DriveError>>, before: usize) {
    until("the provider accepted an effect", async || world.provider.effects().len() > before).await;
    worker.abort();
    assert!(worker.await.is_err_and(|error| error.is_cancelled()), "the worker should have been lost in the middle");
}

/// The program resumes the run and dies as its first request has left, which arrives through the door.
async fn dies_as_its_request_has_left(world: &World, _door: &Door, run: &str) {
    let policy = world.folder.path().join("tollgate.toml");
    std::fs::write(&policy, world.policy_text()).expect("the folder is ours");
    let before = world.provider.effects().len();
    let mut command = Command::new(program());
    command
        .arg("--store")
        .arg(format!("sqlite:{}", world.store_path().display()))
        .arg("--policy")
        .arg(policy)
        .args(["runs", "resume", run, "--wait", "30s", "--lease", "2s"])
        .env("TOLLGATE_CRASH_AT", "request-left")
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let output = tokio::task::spawn_blocking(move || command.output().expect("the program starts"));
    let output = output.await.expect("it does not panic");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.signal(), Some(9), "it should have been killed: {} {said}", output.status);
    until("the request arrived", async || world.provider.effects().len() > before).await;
}

/// A port of our own before the provider's, at which nothing listens while it is shut. What a caller sent before it
/// died arrives whole: its end is not passed on.
struct Door {
    url: String,
    provider: String,
    relaying: Option<JoinHandle<()>>,
}

impl Door {
    /// The policy then grants the door, in place of the provider.
    async fn before(world: &World) -> Door {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        world.edit_policy(&world.provider.url, &url);
        let mut door = Door { url, provider: format!("127.0.0.1:{}", world.provider.port()), relaying: None };
        door.relay(listener);
        door
    }

    fn relay(&mut self, listener: TcpListener) {
        let provider = self.provider.clone();
        self.relaying = Some(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut caller, _)) = listener.accept().await {
                let provider = provider.clone();
                connections.spawn(async move {
                    let mut provider = TcpStream::connect(provider).await.expect("the provider listens");
                    let ((mut from_caller, mut to_caller), (mut from_provider, mut to_provider)) =
                        (caller.split(), provider.split());
                    let forth = async {
                        let _ = tokio::io::copy(&mut from_caller, &mut to_provider).await;
                        std::future::pending::<()>().await;
                    };
                    tokio::select! {
                        () = forth => {}
                        _ = tokio::io::copy(&mut from_provider, &mut to_caller) => {}
                    }
                });
            }
        }));
    }

    async fn shut(&mut self) {
        let relaying = self.relaying.take().expect("it is open");
        relaying.abort();
        let _ = relaying.await;
    }

    async fn open(&mut self) {
        let address = self.url.trim_start_matches("http://");
        self.relay(TcpListener::bind(address).await.expect("the port is still ours"));
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Some(relaying) = &self.relaying {
            relaying.abort();
        }
    }
}

/// A world without meters, so that any action may post.
fn unmetered() -> World {
    let world = World::new();
    world.edit_policy("meter = { emails = 1 }\n", "");
    world
}

/// R8: what a look-up did not see is worth the moment at which it was made, however late the answer is given.
#[tokio::test(flavor = "multi_thread")]
async fn r8_a_look_up_made_too_early_and_answered_late_is_not_believed() {
    let world = World::new();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    let url = world.provider.url.clone();
    for answer in [fail_retryably(), json!({ "do": "unknown", "message": "who knows" })] {
        world.provider.control(&json!({ "mode": "accept", "lookup_lag_ms": 3_600_000 }));
        let (sent, requests) = (world.provider.effectful_requests().len(), world.provider.requests().len());
        let with = json!({
            "plan": one_email(),
            "run": [post(&url), { "do": "panic", "message": "no" }],
            "reconcile": [get(&url), sleep(1_500), answer],
        });
        let id = start(&host, one_step("amb-op", &with, &attempts(2))).await;
        assert_eq!(
            summary(&host, &id, &drive(&host, &id).await).await,
            "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous"
        );
        let believable_from = effect(&host, &id).await.believable_from();

        let asking = resuming(&host, &id);
        until("it looked", async || world.provider.requests().len() == requests + 2).await;
        assert!(clock.now() < believable_from, "the machine is far too slow for this test");
        clock.forward(seconds(7));
        let asked = ended(asking).await;
        assert!(clock.now() > believable_from, "its answer came late enough, and does not count");
        assert_eq!(summary(&host, &id, &asked).await, "waits timer | ambiguous", "{answer}");
        let Ended::Waiting { until, .. } = asked else { unreachable!("it waits") };
        assert_eq!(until, Some(believable_from));
        assert_eq!(world.provider.effectful_requests().len(), sent + 1, "nothing is done again");

        // Asked again, what it says counts.
        let expected = if answer["do"] == "fail" {
            "retries AGAIN | failed"
        } else {
            "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous"
        };
        assert_eq!(summary(&host, &id, &drive(&host, &id).await).await, expected);
    }
}

/// R12, R15: the process of an idempotent attempt dies as its request has left; whoever reclaims it lets nothing out,
/// and its tries run out. Nobody heard what became of the request, so a person must look; past the window it is not
/// repeated.
#[tokio::test(flavor = "multi_thread")]
async fn r12_r15_a_lost_request_is_not_forgotten_by_attempts_that_let_nothing_out() {
    async fn lost_then_unreachable(action: &str, past_the_window: &str) {
        let world = unmetered();
        let mut door = Door::before(&world).await;
        let mut host = world.probe().await;
        let clock = TestClock::of(&mut host);
        let with = json!({ "run": [or_fail(post(&door.url))], "reconcile": [lookup(&door.url)] });
        let id = start(&host, one_step(action, &with, &attempts(2))).await;
        dies_as_its_request_has_left(&world, &door, &id).await;
        door.shut().await;
        let found = host.drive(&id, options("another")).await.expect("it can be driven");
        assert_eq!(
            summary(&host, &id, &found).await,
            "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous",
            "{action}"
        );
        assert_eq!(count(&host, &id, "attempt.started").await, 2, "{action}: the reclaimed one, and one more");
        assert!(in_inbox(&host, &id).await, "{action}");

        door.open().await;
        clock.forward(WINDOW + seconds(60));
        let found = resume(&host, &id).await;
        assert_eq!(summary(&host, &id, &found).await, past_the_window, "{action}");
        assert_eq!(world.provider.effectful_requests().len(), 1, "{action}: it is not repeated");
    }
    tokio::join!(
        lost_then_unreachable("plain-idem", "blocked WORKFLOW_EFFECT_KEY_EXPIRED | ambiguous"),
        lost_then_unreachable("idem-op", "completed | succeeded"),
    );
}

/// R1, R7, R8: while a later attempt of an idempotent step in doubt acts, a person's *failed* and new key are too
/// early, whatever the deadline of the attempt that left the doubt.
#[tokio::test(flavor = "multi_thread")]
async fn r1_r7_r8_a_verdict_is_too_early_while_a_later_attempt_acts() {
    let world = World::new();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    let with = json!({ "plan": one_email(), "run": [post(&world.provider.url), at(1, doubt())] });
    let id = start(&host, one_step("idem-op", &with, "")).await;
    assert_eq!(summary(&host, &id, &drive(&host, &id).await).await, "blocked MAYBE | ambiguous");
    clock.forward(seconds(7));
    assert!(
        effect(&host, &id).await.believable_from() < clock.now(),
        "of the first attempt nothing can appear any more"
    );

    world.provider.control(&json!({ "mode": "accept-late", "latency_ms": 2_000 }));
    let acting = resuming(&host, &id);
    until("the second attempt's request arrived", async || world.provider.effects().len() == 2).await;
    for verdict in [Verdict::Failed, Verdict::RetryWithNewKey] {
        match resolve(&host, &id, verdict.clone()).await {
            Err(ResolveRunError::Resolve(ResolveError::TooEarly { until, .. })) => assert!(until > clock.now()),
            other => panic!("{verdict:?} should be too early: {other:?}"),
        }
    }
    // Nothing was written: the attempt is not fenced.
    let found = ended(acting).await;
    assert_eq!(summary(&host, &id, &found).await, "completed | succeeded");
    let keys: Vec<_> = world.provider.effectful_requests().iter().map(|request| request["key"].clone()).collect();
    assert_eq!(keys, vec![format!("workflow:{id}:step:only"); 2]);
}

/// R8, R15: an idempotent attempt just inside the window is lost; asked past the window, *failed* is believed only once
/// what that attempt let out must have appeared, not the attempt that began.
#[tokio::test(flavor = "multi_thread")]
async fn r8_r15_the_deadline_of_an_idempotent_effect_moves_with_the_attempt_that_acts() {
    let world = unmetered();
    world.edit_policy("wall = \"5s\"", "wall = \"60s\"");
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    let url = world.provider.url.clone();
    for doubted in [true, false] {
        world.provider.control(&json!({ "mode": "accept" }));
        let before = world.provider.effects().len();
        let with = json!({ "run": [post(&url), at(1, doubt())], "reconcile": [fail("GONE")] });
        let id = start(&host, one_step("idem-op", &with, "")).await;
        if doubted {
            assert_eq!(summary(&host, &id, &drive(&host, &id).await).await, "blocked MAYBE | ambiguous");
        }
        world.provider.control(&json!({ "mode": "accept-then-hang" }));
        if !doubted {
            lose(&world, driving(&host, &id, options("test")), before).await;
        }
        clock.forward(WINDOW - seconds(30));
        lose(&world, resuming(&host, &id), before + 1).await;
        clock.forward(seconds(40));

        let found = drive(&host, &id).await;
        assert_eq!(stands(&found), "waits timer", "doubted {doubted}: {found:?}");
        let Ended::Waiting { until: Some(until), .. } = found else { unreachable!("it waits") };
        assert!(until > clock.now(), "doubted {doubted}");
        let effects = host.store.effects(&id).await.expect("the store answers");
        assert!(effects.iter().all(|effect| effect.state != EffectState::Failed), "{effects:?}");
        clock.forward(seconds(90));
        assert_eq!(summary(&host, &id, &drive(&host, &id).await).await, "failed GONE | failed", "doubted {doubted}");
        assert_eq!(world.provider.effectful_requests().len(), before + 2, "doubted {doubted}: it was not repeated");
    }
}

/// R8: what was settled as failed has not happened, whoever settled it and however long ago: a resume performs it
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn r8_an_idempotent_effect_that_failed_is_performed_again_past_its_window() {
    let world = unmetered();
    let mut host = world.probe().await;
    let clock = TestClock::of(&mut host);
    let url = world.provider.url.clone();
    let failed = json!([post(&url), at(1, fail("NO"))]);
    let doubted = json!([post(&url), at(1, doubt())]);
    let table = [
        ("the action said so, and was charged", "idem-op", json!({ "plan": one_email(), "run": failed })),
        ("the action said so, uncharged", "idem-op", json!({ "run": failed })),
        ("the action said so, and has no hooks", "plain-idem", json!({ "run": failed })),
        (
            "it trapped after it was heard",
            "plain-idem",
            json!({ "run": [post(&url), at(1, json!({ "do": "abort" }))] }),
        ),
        ("a look-up said so", "idem-op", json!({ "run": doubted, "reconcile": [fail("GONE")] })),
        ("a person said so", "plain-idem", json!({ "run": doubted })),
    ];
    for (what, action, with) in table {
        let before = world.provider.effectful_requests().len();
        let id = start(&host, one_step(action, &with, "")).await;
        let first = stands(&drive(&host, &id).await);
        clock.forward(WINDOW + seconds(60));
        match what {
            "a look-up said so" => assert_eq!(stands(&resume(&host, &id).await), "failed GONE"),
            "a person said so" => {
                assert_eq!(resolve(&host, &id, Verdict::Failed).await.expect("it is late"), RunState::Failed);
            }
            _ => assert!(first.starts_with("failed "), "{what}: {first}"),
        }
        let found = resume(&host, &id).await;
        assert_eq!(stands(&found), "completed", "{what}: {found:?}");
        assert_eq!(world.provider.effectful_requests().len(), before + 2, "{what}");
        assert_eq!(effect(&host, &id).await.state, EffectState::Succeeded, "{what}");
    }
}

/// R15: the window may pass within an attempt, whether it counts from that one or from an earlier one: from then on no
/// byte leaves under the key.
#[tokio::test(flavor = "multi_thread")]
async fn r15_no_byte_leaves_after_the_window_passed_within_an_attempt() {
    async fn passes(before_it: Duration, run: impl Fn(&str) -> Value, expected: Value) {
        let world = unmetered();
        world.edit_policy("window = \"24h\"", "window = \"30s\"").edit_policy("wall = \"5s\"", "wall = \"60s\"");
        let mut host = world.probe().await;
        let clock = TestClock::of(&mut host);
        let with = json!({ "run": run(&world.provider.url) });
        let id = start(&host, one_step("plain-idem", &with, &attempts(2))).await;
        if !before_it.is_zero() {
            assert_eq!(stands(&drive(&host, &id).await), "retries AGAIN");
            clock.forward(before_it);
        }
        let sent = world.provider.effectful_requests().len();
        // Neither the lease nor the wall limit ends before the window does.
        let acting = driving(&host, &id, DriveOptions { lease: seconds(3_600), ..options("test") });
        until("it looked", async || world.provider.requests().iter().any(|request| request["method"] == "GET")).await;
        clock.forward(seconds(40) - before_it);
        let found = ended(acting).await;
        let results = outputs(&found)["result"]["results"].as_array().expect("a list").clone();
        let statuses: Vec<&Value> = results.iter().map(|result| &result["status"]).collect();
        assert_eq!(json!(statuses), expected, "{results:?}");
        let refused = results.last().and_then(|result| result["error"].as_str()).unwrap_or_default();
        assert!(refused.contains("deadline"), "{results:?}");
        let heard = statuses.iter().filter(|status| ***status == 202).count();
        assert_eq!(world.provider.effectful_requests().len() - sent, heard);
    }
    // Two labels are two keys, so that nothing but the window stands against the second.
    let labelled = |url: &str| {
        let mut labelled = post(url);
        labelled["headers"] = json!({ "Idempotency-Key": "second" });
        labelled
    };
    tokio::join!(
        passes(
            Duration::ZERO,
            |url| json!([post(url), get(url), sleep(2_000), labelled(url)]),
            json!([202, 200, null, null]),
        ),
        passes(
            seconds(15),
            |url| json!([at(2, get(url)), at(2, sleep(2_000)), post(url), at(1, fail_retryably())]),
            json!([200, null, null]),
        ),
    );
}

/// Refuses everything.
struct Refuses;

impl Check for Refuses {
    fn check<'a>(&'a self, _call: &'a CheckedCall<'a>) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async { Err("the customer has left".to_owned()) })
    }
}

/// R12: what an idempotent attempt left in doubt is ended by an answer, and by nothing else: not by a later attempt
/// that is refused, is stopped or fails before it lets anything out.
#[tokio::test(flavor = "multi_thread")]
async fn r12_a_doubt_outlives_every_attempt_that_lets_nothing_out() {
    let world = World::new();
    let mut door = Door::before(&world).await;
    let host = world.probe().await;
    let post = post(&door.url);
    let run = |second: Value| json!([at(2, second), post, at(1, doubt())]);
    let unknown = "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN";
    let trap = json!({ "do": "abort" });
    #[rustfmt::skip]
    let table = [
        ("authorize refuses", json!({ "authorize": [at(2, json!({ "do": "refuse", "reason": "no" }))], "run": run(sleep(0)) }), unknown),
        ("authorize traps", json!({ "authorize": [at(2, trap.clone())], "run": run(sleep(0)) }), unknown),
        ("the budget refuses", json!({ "run": run(sleep(0)) }), unknown),
        ("the plan errs", json!({ "plan": [at(2, fail("NO"))], "run": run(sleep(0)) }), unknown),
        ("the plan is nonsense", json!({ "plan": [at(2, json!({ "do": "planned", "consumes": [{ "dimension": "emails", "amount": "NaN" }] }))], "run": run(sleep(0)) }), unknown),
        ("nothing listens", json!({ "run": [or_fail(post.clone()), at(1, doubt())] }), unknown),
        ("it fails", json!({ "run": run(fail("NO")) }), unknown),
        ("it traps", json!({ "run": run(trap) }), unknown),
        ("its output is refused", json!({ "run": run(json!({ "do": "succeed-raw", "text": "{" })) }), unknown),
        ("it has its doubts again", json!({ "run": run(doubt()) }), "blocked MAYBE"),
        ("the host's own check refuses", json!({ "run": run(sleep(0)) }), unknown),
        ("the policy no longer allows the class", json!({ "run": run(sleep(0)) }), unknown),
    ];
    let mut wrong = Vec::new();
    for (what, mut with, expected) in table {
        let mut plan = with["plan"].as_array().cloned().unwrap_or_default();
        plan.extend(one_email().as_array().cloned().unwrap_or_default());
        with["plan"] = plan.into();
        let cap = if what == "the budget refuses" { "1" } else { "100" };
        let budget = caps(&[("emails", cap)]);
        let start = StartRun { budget, ..StartRun::of(one_step("idem-op", &with, "")) };
        let id = host.start(start).await.expect("it starts").run;
        assert_eq!(summary(&host, &id, &drive(&host, &id).await).await, "blocked MAYBE | ambiguous", "{what}");
        let before = world.provider.effectful_requests().len();
        let mut other = host.clone();
        match what {
            "nothing listens" => door.shut().await,
            "the host's own check refuses" => other.check = Some(Arc::new(Refuses)),
            "the policy no longer allows the class" => {
                world.edit_policy("\"idempotent\", \"ambiguous\"]", "\"ambiguous\"]");
                other = world.host().await;
            }
            _ => {}
        }
        let found = summary(&other, &id, &resume(&other, &id).await).await;
        if found != format!("{expected} | ambiguous") {
            wrong.push(format!("{what}\n  expected {expected} | ambiguous\n  found    {found}"));
            continue;
        }
        assert_eq!(state(&host, &id).await, RunState::Blocked, "{what}");
        assert!(in_inbox(&host, &id).await, "{what}");
        assert_eq!(used(&host, &id, "emails").await, "1", "{what}: what the second attempt was charged is given back");
        assert_eq!(world.provider.effectful_requests().len(), before, "{what}");
        if what == "nothing listens" {
            door.open().await;
        }
        // It is not stuck either: an attempt that is answered ends the doubt.
        if what != "the budget refuses" {
            assert_eq!(summary(&host, &id, &resume(&host, &id).await).await, "completed | succeeded", "{what}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// R11: whoever waits again and again for what is there already does not spin: every look is paced, whatever is waited
/// for.
#[tokio::test(flavor = "multi_thread")]
async fn r11_waiting_for_what_is_there_already_does_not_spin() {
    let world = unmetered();
    let host = world.probe().await;
    let over = start(&host, one_step("pure-op", &json!({ "run": [fail("NO")] }), "")).await;
    assert_eq!(stands(&drive(&host, &over).await), "failed NO");
    let timer = json!({ "do": "wait", "kind": "timer", "key": "2020-01-01T00:00:00Z" });
    let run = json!({ "do": "wait", "kind": "run", "key": over });
    let post = post(&world.provider.url);
    let rows = [
        ("pure-op", json!([timer]), "waits timer"),
        ("tx-op", json!([timer]), "waits timer"),
        ("idem-op", json!([timer]), "waits timer"),
        ("amb-op", json!([timer]), "waits timer"),
        ("pure-op", json!([run]), "waits run"),
        ("tx-op", json!([run]), "waits run"),
        ("idem-op", json!([run]), "waits run"),
        ("amb-op", json!([run]), "waits run"),
        ("idem-op", json!([post, timer]), "waits timer"),
        ("idem-op", json!([post, run]), "waits run"),
        ("idem-op", json!([at(1, timer.clone())]), "completed"),
        ("amb-op", json!([at(1, run.clone())]), "completed"),
    ];
    join_all(rows.into_iter().map(|(action, instructions, expected)| {
        let host = &host;
        async move {
            let id = start(host, one_step(action, &json!({ "run": instructions }), "")).await;
            // What ends is given the time to.
            let wait = if expected == "completed" { seconds(20) } else { seconds(1) };
            let driven = host.drive(&id, DriveOptions { wait, ..options("test") });
            let driven = tokio::time::timeout(seconds(60), driven).await.expect("it does not drive for ever");
            assert_eq!(stands(&driven.expect("it can be driven")), expected, "{action} {instructions}");
            let attempts = count(host, &id, "attempt.started").await;
            assert!((1..5).contains(&attempts), "{action} {instructions}: {attempts} attempts");
            let events = events(host, &id).await.len();
            assert!(events < 50, "{action} {instructions}: {events} events");
        }
    }))
    .await;
    assert!(world.provider.effectful_requests().len() < 10);
}

/// S6: an idempotent effect is not marked before it acts, and is in the inbox all the same once its run is abandoned in
/// the middle of it; settling it never revives the run.
#[tokio::test(flavor = "multi_thread")]
async fn s6_an_idempotent_effect_in_flight_is_in_doubt_once_its_run_is_abandoned() {
    async fn abandoned(what: &str) {
        let world = unmetered();
        let door = Door::before(&world).await;
        let mut host = world.probe().await;
        let url = &door.url;
        let instructions = match what {
            "died, after it had failed" => json!([at(1, fail("NO")), post(url)]),
            "waits to be tried again" => json!([post(url), fail_retryably()]),
            _ => json!([post(url)]),
        };
        let with = json!({ "plan": one_email(), "run": instructions });
        let retry = "    retry: { attempts: 2, backoff: 1h, maxBackoff: 1h }\n";
        let id = start(&host, one_step("idem-op", &with, retry)).await;
        match what {
            "died, after it had failed" => {
                assert_eq!(summary(&host, &id, &drive(&host, &id).await).await, "failed NO | failed");
                dies_as_its_request_has_left(&world, &door, &id).await;
            }
            "waits to be tried again" => {
                world.provider.control(&json!({ "mode": "accept-then-drop" }));
                assert_eq!(stands(&drive(&host, &id).await), "retries AGAIN");
            }
            _ => dies_as_its_request_has_left(&world, &door, &id).await,
        }
        assert!(host.abandon(&id, "Ada", "no longer wanted").await.expect("the store answers"), "{what}");
        assert_eq!(state(&host, &id).await, RunState::Abandoned, "{what}");
        assert!(in_inbox(&host, &id).await, "{what}: its effect is in the inbox");
        let doubted = effect(&host, &id).await;
        assert_eq!(doubted.state, EffectState::Ambiguous, "{what}");
        assert_eq!(doubted.key, format!("workflow:{id}:step:only"), "{what}");

        let early = resolve(&host, &id, Verdict::Failed).await;
        assert!(matches!(early, Err(ResolveRunError::Resolve(ResolveError::TooEarly { .. }))), "{what}: {early:?}");
        let verdict = match what {
            "waits to be tried again" => {
                TestClock::of(&mut host).forward(seconds(60));
                Verdict::Failed
            }
            _ => Verdict::Succeeded(Some("1".to_owned())),
        };
        assert_eq!(resolve(&host, &id, verdict).await.expect("it is in doubt"), RunState::Abandoned, "{what}");
        assert!(!in_inbox(&host, &id).await, "{what}");
        assert_eq!(drive(&host, &id).await, Ended::Abandoned, "{what}");
        let reopened = host.drive(&id, DriveOptions { reopen: true, ..options("test") }).await;
        assert!(matches!(reopened, Err(DriveError::Over { state: RunState::Abandoned, .. })), "{what}: {reopened:?}");
        assert_eq!(world.provider.effects().len(), 1, "{what}");
    }
    tokio::join!(abandoned("died"), abandoned("died, after it had failed"), abandoned("waits to be tried again"));
}

/// R11: `retry-after` counts from the moment at which the action said it, and is believed for a day at most.
#[tokio::test(flavor = "multi_thread")]
async fn r11_retry_after_counts_from_the_end_of_the_call_and_is_capped() {
    let world = World::new();
    let host = world.probe().await;
    let day = seconds(24 * 3_600);
    for (asked_ms, slept_ms, counts) in [(60_000, 1_500, seconds(60)), (u64::MAX, 0, day), (u64::MAX / 1_000, 0, day)] {
        let busy = json!({ "do": "fail", "message": "busy", "retryable": true, "retry_after_ms": asked_ms });
        let with = json!({ "run": [sleep(slept_ms), busy] });
        let id = start(&host, one_step("idem-op", &with, &attempts(2))).await;
        let Ended::Waiting { until: Some(until), .. } = drive(&host, &id).await else { panic!("it should wait") };
        let attempt = host.store.attempts(&id).await.expect("the store answers").remove(0);
        let earliest = attempt.started_at.plus(Duration::from_millis(slept_ms)).plus(counts);
        let latest = attempt.finished_at.expect("it ended").plus(counts);
        assert!(earliest <= until && until <= latest, "{asked_ms}: {earliest} {until} {latest}");
    }
}

/// R11, R12: who says `succeeded` while a request of its own hangs past the wall limit does not know that. An ambiguous
/// step needs attention, an idempotent one is tried again under its key.
#[tokio::test(flavor = "multi_thread")]
async fn r11_r12_succeeded_beside_a_request_that_nobody_heard_is_not_believed() {
    async fn hangs(action: &str, tries: u32, expected: &str, requests: usize) {
        let world = World::new();
        let host = world.probe().await;
        world.provider.control(&json!({ "mode": "accept-then-hang", "times": 1 }));
        let mut silent = post(&world.provider.url);
        silent["do"] = "http-fire-and-forget".into();
        let with = json!({ "plan": one_email(), "run": [silent, { "do": "succeed", "output": "sent" }] });
        let id = start(&host, one_step(action, &with, &format!("    timeout: 2s\n{}", attempts(tries)))).await;
        let found = host.drive(&id, options("test")).await.expect("it can be driven");
        assert_eq!(summary(&host, &id, &found).await, expected, "{action} {tries}");
        let keys: Vec<_> = world.provider.effectful_requests().iter().map(|sent| sent["key"].clone()).collect();
        assert_eq!(keys, vec![format!("workflow:{id}:step:only"); requests], "{action} {tries}");
    }
    let in_doubt = "blocked WORKFLOW_EFFECT_OUTCOME_UNKNOWN | ambiguous";
    tokio::join!(
        hangs("amb-op", 3, in_doubt, 1),
        hangs("idem-op", 2, "completed | succeeded", 2),
        hangs("idem-op", 1, in_doubt, 1),
    );
}

/// D3: what may depend on an output that is not known is indeterminate, also where only its evaluation would say which
/// output is meant.
#[tokio::test(flavor = "multi_thread")]
async fn d3_an_output_chosen_by_an_expression_may_be_one_that_is_not_known() {
    let world = World::new();
    let host = world.probe().await;
    let known = json!({ "run": [{ "do": "succeed", "output": { "id": 1 } }] });
    let sends = json!({ "plan": one_email(), "run": [post(&world.provider.url)] });
    for expression in [
        "steps[params.which].output",
        "steps[params.which].output.results[0].status",
        "(steps)[params.which].output",
        "(steps|items|list)[1][1].output.results",
        "10-steps[params.which].output.n",
        "10-sent.n",
    ] {
        let shown = json!({ "run": [{ "do": "succeed", "output": format!("{{{{ {expression} }}}}") }] });
        let workflow = parse(&format!(
            "workflow: test/chosen\nparams: {{ type: object }}\nsteps:\n\
             \x20 - {{ id: known, action: probe/pure-op, with: {known} }}\n\
             \x20 - {{ id: send, action: probe/amb-op, with: {sends}, saveAs: sent }}\n\
             \x20 - {{ id: show, action: probe/pure-op, with: {shown} }}\n\
             \x20 - {{ id: maybe, action: probe/pure-op, if: \"{{{{ {expression} == 1 }}}}\" }}\n\
             outputs: {{ result: \"{{{{ {expression} }}}}\" }}\n"
        ));
        let params = json!({ "which": "send" });
        let dry = host.dry_run(StartRun { params, ..StartRun::of(workflow) }).await.expect("it is planned");
        assert!(!dry.fails(), "{expression}: {dry:?}");
        assert_eq!(dry.outputs, None, "{expression}");
        assert_eq!(dry.steps.len(), 4, "{expression}");
        for step in &dry.steps[2..] {
            let forecast = &step.forecast;
            assert!(
                matches!(forecast, StepForecast::Indeterminate { .. }),
                "{expression} in {}: {forecast:?}",
                step.step
            );
        }
    }
    assert_eq!(world.provider.requests(), Vec::<Value>::new());
}

/// R13: a person's output is what later steps read, so it is held to the action's schema like the action's own.
#[tokio::test(flavor = "multi_thread")]
async fn r13_a_persons_output_must_fit_the_actions_schema() {
    let world = World::new();
    world.extend_policy(&format!(
        "[app.mail]\nclasses = [\"ambiguous\"]\n\n\
         [[app.mail.http]]\nurl = \"{url}/v1/messages\"\nmethods = [\"POST\"]\n\
         meter = {{ emails = 1 }}\nvisible_within = \"1s\"\naddresses = [\"127.0.0.0/8\"]\n\n[[app.mail.http]]\n\
         url = \"{url}/v1/messages\"\nmethods = [\"GET\"]\nsafe = true\naddresses = [\"127.0.0.0/8\"]\n",
        url = world.provider.url
    ));
    let host = world.host().await;
    push(&host, "mail", "mail").await;
    world.provider.control(&json!({ "mode": "accept-then-drop" }));
    let with = json!({ "api": world.provider.url, "to": "ada@example.com", "subject": "hello" });
    let id = start(
        &host,
        parse(&format!(
            "workflow: test/mail\nsteps:\n  - {{ id: only, action: mail/send, with: {with}, saveAs: sent }}\n\
             outputs: {{ sent: \"{{{{ sent }}}}\" }}\n"
        )),
    )
    .await;
    assert_eq!(summary(&host, &id, &drive(&host, &id).await).await, "blocked MAIL_UNHEARD | ambiguous");
    let before = events(&host, &id).await.len();
    for output in [None, Some("{}"), Some("7"), Some(r#"{"id":7,"to":["ada@example.com"]}"#), Some(r#"{"id":"msg-1"}"#)]
    {
        match resolve(&host, &id, Verdict::Succeeded(output.map(str::to_owned))).await {
            Err(ResolveRunError::Output { step, message }) => {
                assert_eq!(step, "only");
                assert!(message.contains("schema"), "{message}");
            }
            other => panic!("{output:?} should be refused: {other:?}"),
        }
    }
    assert_eq!((state(&host, &id).await, effect(&host, &id).await.state), (RunState::Blocked, EffectState::Ambiguous));
    assert_eq!(events(&host, &id).await.len(), before, "nothing was written");

    let output = r#"{ "to": ["ada@example.com"], "id": "msg-1" }"#;
    let resolved = resolve(&host, &id, Verdict::Succeeded(Some(output.to_owned()))).await;
    assert_eq!(resolved.expect("it fits"), RunState::Active);
    let sent = outputs(&drive(&host, &id).await)["sent"].clone();
    assert_eq!(sent, json!({ "id": "msg-1", "to": ["ada@example.com"] }));
}

/// R14: of two that resume one run at once, one performs it, and the other is told how it ended: it does not resume
/// what it has not seen.
#[tokio::test(flavor = "multi_thread")]
async fn r14_two_resumes_at_once_are_both_told_how_the_run_ended() {
    async fn both(what: &str) {
        let world = World::new();
        let host = world.probe().await;
        world.provider.control(&json!({ "mode": "accept-late", "latency_ms": 1_500 }));
        let instructions = match what {
            "active" => json!([post(&world.provider.url)]),
            "failed" => json!([at(1, fail("NO")), post(&world.provider.url)]),
            _ => json!([at(1, fail("NO")), post(&world.provider.url), at(2, fail("STILL"))]),
        };
        let id = start(&host, one_step("amb-op", &json!({ "plan": one_email(), "run": instructions }), "")).await;
        if what != "active" {
            assert_eq!(stands(&drive(&host, &id).await), "failed NO", "{what}");
        }
        let resuming = |holder: &str| host.drive(&id, DriveOptions { reopen: true, ..options(holder) });
        let (first, second) = tokio::join!(resuming("first"), resuming("second"));
        let expected = if what == "fails again" { "failed STILL" } else { "completed" };
        for ended in [first, second] {
            let ended = ended.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(stands(&ended), expected, "{what}");
        }
        assert_eq!(world.provider.effects().len(), 1, "{what}: it was performed once");
    }
    tokio::join!(both("active"), both("failed"), both("fails again"));
}
