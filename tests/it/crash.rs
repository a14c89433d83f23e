//! Real processes, killed and stopped at every point, for every class; then started again.
//!
//! The provider does not deduplicate: only this side prevents doubles. What must hold whatever the point: an ambiguous
//! effect happens at most once (R7, R8), no run completes without its effect, ledger ≤ charged ≤ cap (R6, B5), and what a
//! step answered stays what it answered, byte for byte (R9).

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate::effect::EffectClass;
use tollgate::run::state::RunState;
use tollgate::store::RunFilter;

use super::support::{World, program};

const KILL: i32 = 9;
const STOP: i32 = 19;
const CONTINUE: i32 = 18;

/// A world whose policy is quick to forget: what a crash leaves in doubt is settled within seconds.
async fn world() -> World {
    let world = World::new();
    world.edit_policy("wall = \"5s\"", "wall = \"3s\"");
    world.edit_policy("visible_within = \"1s\"", "visible_within = \"500ms\"");
    std::fs::write(world.folder.path().join("tollgate.toml"), world.policy_text()).expect("the folder is ours");
    world.probe().await;
    world
}

/// The program, on the world's store and policy.
fn tollgate(world: &World, crash_at: Option<&str>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command
        .arg("--store")
        .arg(format!("sqlite:{}", world.store_path().display()))
        .arg("--policy")
        .arg(world.folder.path().join("tollgate.toml"))
        .args(arguments)
        .env_remove("TOLLGATE_CRASH_AT")
        .env("TOLLGATE_CACHE", std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(point) = crash_at {
        command.env("TOLLGATE_CRASH_AT", point);
    }
    command
}

fn workflow_file(world: &World, text: &str) -> PathBuf {
    let path = world.folder.path().join("workflow.yaml");
    std::fs::write(&path, text).expect("the folder is ours");
    path
}

/// A step of `class` with an effect, a charge where the class has one, and a step after it that reads its output.
fn workflow(world: &World, class: EffectClass) -> String {
    let url = &world.provider.url;
    let plan = json!([{ "do": "planned", "consumes": [{ "dimension": "emails", "amount": "1" }] }]);
    let post = json!({ "do": "http", "method": "POST", "url": format!("{url}/v1/messages"), "body": "hello",
        "ignore_error": false });
    let look = json!([{ "do": "lookup", "url": format!("{url}/v1/messages?key=$KEY") }]);
    let (action, with) = match class {
        EffectClass::Pure => ("pure-op", json!({ "run": [{ "do": "random" }, { "do": "clock" }] })),
        EffectClass::Transactional => {
            ("tx-op", json!({ "plan": plan, "run": [{ "do": "doc-add", "key": "count", "by": 1 }] }))
        }
        EffectClass::Idempotent => ("idem-op", json!({ "plan": plan, "run": [post], "reconcile": look })),
        EffectClass::Ambiguous => ("amb-op", json!({ "plan": plan, "run": [post], "reconcile": look })),
    };
    format!(
        "workflow: test/crash\nbudget: {{ emails: 10 }}\nsteps:\n  - id: never\n    if: \"{{{{ false }}}}\"\n    action: probe/pure-op\n  - id: first\n    action: probe/{action}\n    with: {with}\n    \
         saveAs: first\n    retry: {{ attempts: 4, backoff: 50ms }}\n  - id: second\n    action: probe/pure-op\n    with: {{ run: \
         [{{ do: succeed, output: \"{{{{ first }}}}\" }}] }}\n    saveAs: second\noutputs: {{ first: \"{{{{ first }}}}\", second: \
         \"{{{{ second }}}}\" }}\n"
    )
}

/// The points that a step of `class` passes, in order.
fn points(class: EffectClass) -> &'static [&'static str] {
    match class {
        EffectClass::Pure | EffectClass::Transactional => {
            &["published", "claimed", "reserved", "before-settle", "settled"]
        }
        EffectClass::Idempotent => &[
            "published",
            "claimed",
            "reserved",
            "charged",
            "before-send",
            "request-left",
            "answer-heard",
            "before-settle",
            "settled",
            "settled@2",
        ],
        EffectClass::Ambiguous => &[
            "published",
            "claimed",
            "reserved",
            "marked",
            "before-send",
            "request-left",
            "answer-heard",
            "before-settle",
            "settled",
            "settled@2",
        ],
    }
}

fn finish(child: Child) -> (ExitStatus, String) {
    let output = child.wait_with_output().expect("the program can be waited for");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status, said)
}

/// Kills the program at `point` of a step of `class`, resumes until the run ends, and checks what must hold.
async fn killed_at(class: EffectClass, point: &str) -> String {
    let world = world().await;
    let file = workflow_file(&world, &workflow(&world, class));
    let file = file.to_str().expect("the path is text");
    let run = ["run", file, "--wait", "30s", "--lease", "2s"];
    let (status, said) = finish(tollgate(&world, Some(point), &run).spawn().expect("the program starts"));
    assert_eq!(status.signal(), Some(KILL), "{class} at {point} should have been killed: {status} {said}");
    let effects_before = world.provider.effects().len();

    let host = world.host().await;
    let runs = host.store.list_runs(&RunFilter::default()).await.expect("the store answers").runs;
    let [run] = runs.as_slice() else { panic!("there should be one run: {runs:?}") };
    let stored_before = host.store.snapshot(&run.id).await.expect("the store answers").expect("the run is there");

    let resume = ["runs", "resume", run.id.as_str(), "--wait", "30s", "--lease", "2s"];
    let (status, said) = finish(tollgate(&world, None, &resume).spawn().expect("the program starts"));
    let ended = host.store.run(&run.id).await.expect("the store answers").expect("the run is there");
    // Killed after the last commit, there was nothing to resume.
    let over = point == "settled@2" && status.code() == Some(3);
    assert!(status.success() || over, "{class} after {point}: {status}\n{said}");
    assert_eq!(ended.state, RunState::Completed, "{class} after {point}: {said}");

    let effects = world.provider.effects();
    let keys: std::collections::BTreeSet<String> =
        effects.iter().map(|effect| effect["key"].as_str().unwrap_or_default().to_owned()).collect();
    let view = host.store.budget(&run.id).await.expect("the store answers");
    let charged = view.used.get("emails").map_or(0, |amount| amount.micros());
    let cap = view.caps.get("emails").map_or(i64::MAX, |amount| amount.micros());
    let happened = i64::try_from(effects.len()).expect("few") * 1_000_000;
    match class {
        EffectClass::Pure => assert_eq!((effects.len(), charged), (0, 0), "{class} after {point}"),
        EffectClass::Transactional => {
            let count = tollgate::journal::Journal::document(&host.store, "probe", "count").await.expect("it answers");
            assert_eq!(count.as_deref(), Some("1"), "{class} after {point}: the document is written once");
            assert_eq!(charged, 1_000_000, "{class} after {point}: charged with it, once");
        }
        EffectClass::Idempotent => {
            assert!(!effects.is_empty(), "{class} after {point}: no run completes without its effect");
            assert_eq!(keys.len(), 1, "{class} after {point}: R1, every repetition has one key: {keys:?}");
        }
        EffectClass::Ambiguous => {
            assert_eq!(effects.len(), 1, "{class} after {point}: the effect happened exactly once: {effects:?}");
            assert_eq!(keys.len(), 1);
        }
    }
    assert!(happened <= charged.max(0) || class == EffectClass::Pure, "{class} after {point}: ledger ≤ charged");
    assert!(charged <= cap, "{class} after {point}: charged ≤ cap");

    let stored = host.store.snapshot(&run.id).await.expect("the store answers").expect("the run is there");
    for (before, after) in stored_before.steps.iter().zip(&stored.steps) {
        if before.output.is_some() {
            assert_eq!(before.output, after.output, "{class} after {point}: R9, byte for byte");
        }
    }
    let attempts = stored.attempts.iter().filter(|attempt| attempt.unit == "first").count();
    format!(
        "{class:<14} {point:<14} effects {effects_before} → {}  charged {:>2}  attempts {attempts}",
        effects.len(),
        charged / 1_000_000
    )
}

/// R1, R6 to R10, R14: every class, killed at every point that it passes.
#[tokio::test(flavor = "multi_thread")]
async fn r7_r8_r9_killed_at_every_point_nothing_is_lost_and_nothing_is_doubled() {
    let mut table = String::from("class          killed at      outcome after resuming\n");
    for class in EffectClass::ALL {
        // Two at a time: mostly they wait for leases and deadlines.
        for pair in points(class).chunks(2) {
            let lines = futures::future::join_all(pair.iter().map(|point| killed_at(class, point))).await;
            for line in lines {
                let _ = writeln!(table, "{line}");
            }
        }
    }
    println!("{table}");
}

fn signal(child: &Child, signal: i32) {
    let sent = Command::new("kill").arg(format!("-{signal}")).arg(child.id().to_string()).status();
    assert!(sent.expect("there is a kill").success(), "the process is ours");
}

/// Waits until the process has stopped itself.
fn wait_until_stopped(child: &Child) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        // The state follows the name, which is in parentheses.
        if stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')) {
            return;
        }
        assert!(Instant::now() < deadline, "the process should have stopped itself: {stat}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// R7: frozen between the mark and the send, past lease and deadline, then woken: no byte leaves, and the host knows it.
#[tokio::test(flavor = "multi_thread")]
async fn r7_stopped_between_mark_and_send_past_lease_and_deadline_sends_nothing() {
    let world = world().await;
    let text = workflow(&world, EffectClass::Ambiguous).replace("attempts: 4", "attempts: 1");
    let file = workflow_file(&world, &text);
    let run = ["run", file.to_str().expect("text"), "--wait", "1s", "--lease", "1s"];
    let child = tollgate(&world, Some("before-send:stop"), &run).spawn().expect("the program starts");
    wait_until_stopped(&child);
    let host = world.host().await;
    let id = host.store.list_runs(&RunFilter::default()).await.expect("it answers").runs[0].id.clone();
    let effects = host.store.effects(&id).await.expect("it answers");
    assert_eq!(effects.len(), 1, "the mark is durable before anything leaves");
    assert_eq!(effects[0].state.as_str(), "executing");
    assert_eq!(effects[0].key, format!("workflow:{id}:step:first"));
    assert!(effects[0].deadline > effects[0].marked_at);

    tokio::time::sleep(Duration::from_millis(4_500)).await;
    signal(&child, CONTINUE);
    let (status, said) = finish(child);
    assert_eq!(world.provider.effectful_requests(), Vec::<Value>::new(), "{status} {said}");
    // Nothing left the sandbox, so nothing is in doubt: failed, and the charge given back (R12).
    assert_eq!(status.code(), Some(4), "{said}");
    let view = host.store.budget(&id).await.expect("it answers");
    assert_eq!(view.used.get("emails").map_or(0, |amount| amount.micros()), 0, "the charge was given back");
}

/// R7, R8, R14: while one worker is frozen before its send, another takes the run over and brings it to its end; the first
/// wakes, sends nothing and writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn r14_a_frozen_worker_whose_run_was_taken_over_sends_and_writes_nothing() {
    let world = world().await;
    let file = workflow_file(&world, &workflow(&world, EffectClass::Ambiguous));
    let run = ["run", file.to_str().expect("text"), "--wait", "1s", "--lease", "1s"];
    let child = tollgate(&world, Some("before-send:stop"), &run).spawn().expect("the program starts");
    wait_until_stopped(&child);
    let host = world.host().await;
    let id = host.store.list_runs(&RunFilter::default()).await.expect("it answers").runs[0].id.clone();

    let resume = ["runs", "resume", id.as_str(), "--wait", "30s", "--lease", "2s"];
    let (status, said) = finish(tollgate(&world, None, &resume).spawn().expect("the program starts"));
    assert!(status.success(), "{status} {said}");
    let before = host.store.snapshot(&id).await.expect("it answers").expect("it is there");
    assert_eq!(world.provider.effects().len(), 1);

    signal(&child, CONTINUE);
    let (status, said) = finish(child);
    assert_eq!(status.code(), Some(1), "it was fenced, and says so: {said}");
    assert_eq!(world.provider.effects().len(), 1, "{said}");
    let after = host.store.snapshot(&id).await.expect("it answers").expect("it is there");
    assert_eq!(after.run.event_seq, before.run.event_seq, "the fenced worker wrote nothing");
}

/// A stop signal of the harness itself works: otherwise the tests above would prove nothing.
#[test]
fn a_stopped_process_is_seen_to_be_stopped() {
    let child = Command::new("sleep").arg("30").spawn().expect("there is a sleep");
    signal(&child, STOP);
    wait_until_stopped(&child);
    signal(&child, KILL);
    let (status, _) = finish(child);
    assert_eq!(status.signal(), Some(KILL));
}
