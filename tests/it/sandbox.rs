//! The sandbox: class × phase (design section 3), limits, traps, what a guest is told (R3), what a bad upload is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::capability::{Capability, Phase, allows};
use tollgate::clock::{Ambient, Clock, Ids, SystemClock, Timestamp};
use tollgate::effect::EffectClass;
use tollgate::host::Host;
use tollgate::journal::{codes, events};
use tollgate::run::{DriveOptions, Ended, StartRun};

use super::support::{Performed, World, guest, one_step, options, parse, perform, push, results, run};

/// The probe's action of a class.
fn action(class: EffectClass) -> &'static str {
    match class {
        EffectClass::Pure => "pure-op",
        EffectClass::Transactional => "tx-op",
        EffectClass::Idempotent => "idem-op",
        EffectClass::Ambiguous => "amb-op",
    }
}

/// Announces what one metered request draws.
fn one_email() -> Value {
    json!({ "do": "planned", "consumes": [{ "dimension": "emails", "amount": "1" }] })
}

fn post(world: &World) -> Value {
    json!({ "do": "http", "method": "POST", "url": format!("{}/v1/messages", world.provider.url), "body": "hello" })
}

// ---- Section 3: class × phase -------------------------------------------------------------------------------------

/// The instruction that needs a capability, and succeeds exactly where it is allowed.
fn instruction(capability: Capability, world: &World) -> Value {
    match capability {
        // Where the clock stands still, the loop only ends at the cpu limit.
        Capability::RealTime => json!({ "do": "busy", "ms": 5 }),
        Capability::Variables => json!({ "do": "variables" }),
        Capability::ReadDocuments => json!({ "do": "doc-get", "key": "a" }),
        Capability::WriteDocuments => json!({ "do": "doc-put", "key": "a", "value": 1 }),
        Capability::SafeRequest => json!({ "do": "http", "url": format!("{}/health", world.provider.url) }),
        Capability::EffectfulRequest => {
            json!({ "do": "http", "method": "POST", "url": format!("{}/v1/other", world.provider.url), "body": "x" })
        }
        Capability::Progress => json!({ "do": "heartbeat" }),
        Capability::Log => json!({ "do": "log", "message": "here" }),
    }
}

/// Performs `instruction` in `phase` of an action of `class`, and says whether it succeeded.
async fn tried(host: &Host, world: &World, class: EffectClass, phase: Phase, instruction: Value) -> (bool, Performed) {
    let ended_by = |ending: &str, key: &str| {
        json!([
            instruction,
            { "do": ending, key: "allowed", "if_last": "ok" },
            { "do": ending, key: "refused", "if_last": "error" },
        ])
    };
    let (with, reopened) = match phase {
        Phase::Authorize => (json!({ "authorize": ended_by("refuse", "reason") }), false),
        Phase::Plan => (json!({ "plan": ended_by("fail", "message") }), false),
        Phase::Run => (json!({ "plan": [one_email()], "run": [instruction] }), false),
        Phase::Reconcile => {
            let in_doubt = json!([post(world), { "do": "doubt", "message": "who knows" }]);
            let reconcile = ended_by("succeed", "output");
            (json!({ "plan": [one_email()], "run": in_doubt, "reconcile": reconcile }), true)
        }
        Phase::Describe => panic!("a probe cannot be told what to do in `describe`"),
    };
    let mut performed = perform(host, action(class), &with, "").await;
    if reopened {
        performed.doubt();
        if class == EffectClass::Idempotent {
            tokio::time::sleep(std::time::Duration::from_millis(1_050)).await;
        }
        let reopening = DriveOptions { reopen: true, ..options("test") };
        performed.ended = host.drive(&performed.run, reopening).await.expect("it can be driven");
        performed.record = super::support::last_record(host, &performed.run).await;
    }
    let said = match &performed.ended {
        Ended::Completed { .. } if phase == Phase::Run => {
            let last = performed.results().pop().expect("it has a result");
            if last.get("error").is_none() { "allowed".to_owned() } else { "refused".to_owned() }
        }
        Ended::Completed { outputs } => {
            serde_json::from_str::<Value>(outputs).unwrap()["result"].as_str().unwrap_or_default().to_owned()
        }
        Ended::Failed { failure } if failure.code == codes::TIMEOUT => {
            assert!(failure.message.contains("limit `cpu`"), "{failure:?}");
            "refused".to_owned()
        }
        Ended::Failed { failure } if failure.code == codes::FORBIDDEN => {
            failure.details.as_ref().expect("with details")["reason"].as_str().unwrap_or_default().to_owned()
        }
        Ended::Failed { failure } => failure.message.clone(),
        _ => String::new(),
    };
    assert!(said == "allowed" || said == "refused", "{class} {phase}: {performed:?}");
    (said == "allowed", performed)
}

/// Every capability in the phases of one class, against the table that `capability` proves to be the design's.
async fn check_class(class: EffectClass, phases: &[Phase]) {
    let world = World::new();
    // A window that passes between two attempts: then an idempotent action in doubt is asked (R15).
    world.edit_policy("window = \"24h\"", "window = \"1s\"").edit_policy("cpu = \"1s\"", "cpu = \"200ms\"");
    let host = world.probe().await;
    for &phase in phases {
        for capability in Capability::ALL {
            let expected = allows(class, phase, capability);
            let before = world.provider.effectful_requests().len();
            let (allowed, performed) = tried(&host, &world, class, phase, instruction(capability, &world)).await;
            let what = format!("{} in {phase} of a {class} action", capability.as_str());
            assert_eq!(allowed, expected, "{what}: {performed:?}");

            let posts = world.provider.effectful_requests().len() - before;
            let own = usize::from(phase == Phase::Reconcile);
            let effectful = usize::from(capability == Capability::EffectfulRequest && expected);
            assert_eq!(posts, own + effectful, "{what}");
            // A standing clock refuses nothing; everything else that is refused is on the record, whatever the guest did.
            let denied = !expected && capability != Capability::RealTime;
            let found: Vec<&str> = performed.record.denials.iter().map(|denial| denial.phase.as_str()).collect();
            assert_eq!(found, if denied { vec![phase.as_str()] } else { vec![] }, "{what}: {performed:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn section_3_pure() {
    // `plan` and `reconcile` of a pure action are never called.
    check_class(EffectClass::Pure, &[Phase::Authorize, Phase::Run]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn section_3_transactional() {
    check_class(EffectClass::Transactional, &[Phase::Authorize, Phase::Plan, Phase::Run]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn section_3_idempotent() {
    let phases = [Phase::Authorize, Phase::Plan, Phase::Run, Phase::Reconcile];
    check_class(EffectClass::Idempotent, &phases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn section_3_ambiguous() {
    let phases = [Phase::Authorize, Phase::Plan, Phase::Run, Phase::Reconcile];
    check_class(EffectClass::Ambiguous, &phases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn section_3_environment_arguments_files_and_sockets_are_empty_or_refused_in_every_class() {
    let world = World::new();
    let host = world.probe().await;
    let addr = world.provider.url.strip_prefix("http://").unwrap().to_owned();
    let with = json!({ "run": [
        { "do": "env" },
        { "do": "file", "path": "/etc/passwd" },
        { "do": "file", "path": "written", "write": true },
        { "do": "socket", "addr": addr },
        { "do": "socket", "addr": "localhost:80" },
    ] });
    for class in EffectClass::ALL {
        let performed = perform(&host, action(class), &with, "").await;
        let results = performed.results();
        assert_eq!(results[0], json!({ "variables": 0, "arguments": 0 }), "{class}");
        for refused in &results[1..] {
            assert!(refused["error"].is_string(), "{class}: {refused}");
        }
        // Sockets have no policy that could grant them: the attempt says that they were tried, and so does an event.
        let denials: Vec<_> = performed.record.denials.iter().map(|denial| denial.capability.as_str()).collect();
        assert_eq!(denials, ["wasi:sockets/tcp-create-socket", "wasi:sockets/ip-name-lookup of localhost"], "{class}");
        assert!(performed.record.denials.iter().all(|denial| denial.remedy.is_empty() && denial.phase == "run"));
        let told = host.store.events(&performed.run, 0, 100).await.unwrap();
        let told: Vec<&Value> =
            told.iter().filter(|event| event.kind == events::CAPABILITY_DENIED).map(|event| &event.data).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!(told[0]["capability"], "wasi:sockets/tcp-create-socket");
    }
    assert!(world.provider.requests().is_empty());
}

// ---- Section 3: time and chance -----------------------------------------------------------------------------------

fn clock_and_random() -> Value {
    json!([{ "do": "clock" }, { "do": "random" }, { "do": "sleep", "ms": 30 }, { "do": "clock" }, { "do": "random" }])
}

#[tokio::test(flavor = "multi_thread")]
async fn section_3_the_clock_stands_at_the_reservation_or_runs() {
    let world = World::new();
    let host = world.probe().await;
    for class in EffectClass::ALL {
        let performed = perform(&host, action(class), &json!({ "run": clock_and_random() }), "").await;
        let results = performed.results();
        let started = host.store.attempts(&performed.run).await.unwrap()[0].started_at.0;
        let (first, second) = (&results[0], &results[3]);
        if allows(class, Phase::Run, Capability::RealTime) {
            assert!(first["wall_ms"].as_i64().unwrap() >= started, "{class}: {first}");
            let elapsed = second["monotonic_ns"].as_u64().unwrap() - first["monotonic_ns"].as_u64().unwrap();
            assert!(elapsed >= 30_000_000, "{class}: {elapsed}");
        } else {
            assert_eq!(first, second, "{class}");
            assert_eq!(first["wall_ms"].as_i64(), Some(started), "{class}");
        }
        // Frozen or not, two draws differ: a seed is not a constant.
        assert_ne!(results[1]["secure"], results[4]["secure"], "{class}");
    }
}

/// Ids and times that are the same in every world.
struct SameAgain(AtomicU64);

impl Ids for SameAgain {
    fn next_id(&self) -> String {
        format!("{:032x}", self.0.fetch_add(1, Ordering::Relaxed))
    }
}

impl Clock for SameAgain {
    fn now(&self) -> Timestamp {
        Timestamp(1_800_000_000_000)
    }

    fn elapsed(&self) -> Duration {
        SystemClock.elapsed()
    }
}

/// The outputs of `workflow` in a world of its own, at the same time and under the same ids as in any other.
async fn outputs_in_a_world_of_its_own(text: &str) -> Value {
    let world = World::new();
    let mut host = world.probe().await;
    let same = Arc::new(SameAgain(AtomicU64::new(1)));
    host.ambient = Ambient { clock: same.clone(), ids: same };
    match run(&host, parse(text)).await.1 {
        Ended::Completed { outputs } => serde_json::from_str(&outputs).unwrap(),
        other => panic!("it should complete: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn section_3_a_second_run_is_byte_identical_to_the_first_where_chance_is_seeded() {
    let list = clock_and_random();
    let text = format!(
        "workflow: test/twice\nsteps:\n\
         - {{ id: a, action: probe/pure-op, with: {{ run: {list} }}, saveAs: a }}\n\
         - {{ id: b, action: probe/pure-op, with: {{ run: {list} }}, saveAs: b }}\n\
         - {{ id: c, action: probe/tx-op, with: {{ run: {list} }}, saveAs: c }}\n\
         - {{ id: d, action: probe/idem-op, with: {{ run: {list} }}, saveAs: d }}\n\
         outputs: {{ a: \"{{{{ a }}}}\", b: \"{{{{ b }}}}\", c: \"{{{{ c }}}}\", d: \"{{{{ d }}}}\" }}\n"
    );
    let (first, second) = (outputs_in_a_world_of_its_own(&text).await, outputs_in_a_world_of_its_own(&text).await);
    assert_eq!(first["a"].to_string(), second["a"].to_string());
    assert_eq!(first["b"].to_string(), second["b"].to_string());
    assert_eq!(first["c"].to_string(), second["c"].to_string());
    // The seed is run and step: another step draws other numbers. Where chance is real, nothing repeats.
    assert_ne!(first["a"]["results"][1], first["b"]["results"][1]);
    assert_ne!(first["d"]["results"][1], second["d"]["results"][1]);
}

// ---- Limits, each with what it says when it says no ---------------------------------------------------------------

/// Runs `run` of a pure action under the policy with `from` replaced by `to`, and checks how it fails.
async fn check_limit(from: &str, to: &str, run: Value, code: &str, says: &[&str]) -> Performed {
    let world = World::new();
    let host = world.edit_policy(from, to).probe().await;
    let performed = perform(&host, "pure-op", &json!({ "run": run }), "").await;
    let failure = performed.failure();
    assert_eq!(failure.code, code, "{failure:?}");
    for part in says {
        assert!(failure.message.contains(part), "`{part}` is missing: {failure:?}");
    }
    performed
}

const LINE: &str = "memory = … under [limits] or [app.probe.limits]";

#[tokio::test(flavor = "multi_thread")]
async fn memory_says_which_limit_what_was_asked_and_the_line() {
    // cases.md: a denied growth must not show up as an opaque `unreachable`.
    let limit = (64 << 20).to_string();
    let at_once = json!([{ "do": "alloc", "bytes": 100 << 20 }]);
    let performed =
        check_limit("memory = \"64MiB\"", "memory = \"64MiB\"", at_once, codes::LIMIT, &["`memory`", &limit, LINE])
            .await;
    let failure = performed.failure();
    assert_eq!(failure.details, Some(json!({ "limit": "memory" })));
    assert!(!failure.retryable);
    let asked = failure.message.split("asked for ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(asked.parse::<u64>().unwrap() >= 100 << 20, "{failure:?}");

    let in_steps = json!([{ "do": "alloc", "bytes": 6 << 20, "times": 20 }]);
    let performed =
        check_limit("memory = \"64MiB\"", "memory = \"64MiB\"", in_steps, codes::LIMIT, &["`memory`", &limit, LINE])
            .await;
    let peak = performed.record.memory_peak_bytes;
    assert!((54 << 20..=64 << 20).contains(&peak), "{peak}");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_limited_while_instantiating_too() {
    let says = ["`memory`", "262144 bytes", LINE];
    check_limit("memory = \"64MiB\"", "memory = \"256KiB\"", json!([]), codes::LIMIT, &says).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_can_do_with_less_memory_goes_on() {
    let world = World::new();
    let host = world.probe().await;
    let run = json!([{ "do": "alloc", "bytes": 100 << 20, "try": true }, { "do": "alloc", "bytes": 1 << 20 }]);
    let results = results(&host, "pure-op", run).await;
    assert!(results[0]["error"].is_string() && results[1].is_null(), "{results:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spinning_guest_is_stopped_at_its_cpu_limit() {
    let says = ["limit `cpu`", "300 ms", "cpu = … under [limits] or [app.probe.limits]"];
    let performed =
        check_limit("cpu = \"1s\"", "cpu = \"300ms\"", json!([{ "do": "spin" }]), codes::TIMEOUT, &says).await;
    assert!(performed.failure().retryable);
    assert!((300..1300).contains(&performed.record.cpu_ms), "{:?}", performed.record);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cpu_limit_holds_in_every_phase_and_over_all_of_them() {
    let world = World::new();
    let host = world.edit_policy("cpu = \"1s\"", "cpu = \"300ms\"").probe().await;
    for phase in ["authorize", "plan", "run"] {
        let performed = perform(&host, "amb-op", &json!({ phase: [{ "do": "spin" }] }), "").await;
        let failure = performed.failure();
        assert_eq!(failure.code, codes::TIMEOUT, "{phase}: {failure:?}");
        assert!(failure.message.starts_with(&format!("{phase} was stopped")), "{failure:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleep_is_no_time_on_the_processor() {
    let world = World::new();
    let host = world.edit_policy("cpu = \"1s\"", "cpu = \"300ms\"").probe().await;
    let performed = perform(&host, "pure-op", &json!({ "run": [{ "do": "sleep", "ms": 800 }] }), "").await;
    performed.results();
    assert!(performed.record.wall_ms >= 800 && performed.record.cpu_ms < 300, "{:?}", performed.record);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_sleeps_for_ever_is_stopped_at_its_wall_limit() {
    let says = ["after 1000 ms", "limit `wall`"];
    let sleep = json!([{ "do": "sleep", "ms": 3_600_000 }]);
    let performed = check_limit("wall = \"5s\"", "wall = \"1s\"", sleep.clone(), codes::TIMEOUT, &says).await;
    assert!(performed.failure().retryable);
    assert!((1000..5000).contains(&performed.record.wall_ms), "{:?}", performed.record);

    // The step's own timeout is a wall limit too, where it is the smaller.
    let world = World::new();
    let host = world.probe().await;
    let performed = perform(&host, "pure-op", &json!({ "run": sleep }), "    timeout: 500ms\n").await;
    assert!(performed.failure().message.contains("after 500 ms"), "{performed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_of_outputs_and_of_the_stack() {
    let same = "output = \"64KiB\"";
    let large = |bytes: u64| json!([{ "do": "succeed-large", "bytes": bytes }]);
    let says = ["its output has 65537 bytes", "limit `output`", "65536 bytes"];
    check_limit(same, same, large((64 << 10) + 1), codes::OUTCOME_REFUSED, &says).await;
    check_limit(same, same, json!([{ "do": "recurse" }]), codes::TRAPPED, &["call stack exhausted"]).await;

    let world = World::new();
    let host = world.probe().await;
    let fits = perform(&host, "pure-op", &json!({ "run": large(64 << 10) }), "").await;
    assert!(matches!(fits.ended, Ended::Completed { .. }), "{:?}", fits.ended);
}

/// cases.md: one clear failure, no endless retry.
#[tokio::test(flavor = "multi_thread")]
async fn an_output_of_64_mib_is_one_clear_failure() {
    let world = World::new();
    let host = world.edit_policy("memory = \"64MiB\"", "memory = \"512MiB\"").probe().await;
    let with = json!({ "run": [{ "do": "succeed-large", "bytes": 64 << 20 }] });
    let performed = perform(&host, "pure-op", &with, "    retry: { attempts: 3, backoff: 1ms }\n").await;
    let failure = performed.failure();
    assert_eq!((failure.code.as_str(), failure.retryable), (codes::LIMIT, false), "{failure:?}");
    assert!(failure.message.contains("output = … under [limits] or [app.probe.limits]"), "{failure:?}");
    assert_eq!(host.store.attempts(&performed.run).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_past_the_limit_are_dropped_and_the_attempt_says_so() {
    let world = World::new();
    let host = world.probe().await;
    let cases = [
        (json!({ "do": "log", "message": "x".repeat(1000), "times": 10 }), true),
        (json!({ "do": "log", "message": "", "times": 10_000 }), true),
        (json!({ "do": "log", "message": "a\u{0}b", "level": "warn" }), false),
    ];
    for (log, dropped) in cases {
        let performed = perform(&host, "pure-op", &json!({ "run": [log] }), "").await;
        performed.results();
        let record = &performed.record;
        assert_eq!(record.logs_dropped, dropped, "{} lines", record.logs.len());
        assert!(record.logs.iter().map(String::len).sum::<usize>() <= 4 << 10, "{} lines", record.logs.len());
        assert!(!record.logs.is_empty());
        if !dropped {
            assert_eq!(record.logs, ["warn: a\u{FFFD}b"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_of_requests_say_no() {
    let world = World::new();
    let host = world.probe().await;
    let url = &world.provider.url;
    let post =
        |bytes: u64| json!({ "do": "http", "method": "POST", "url": format!("{url}/v1/m"), "body_bytes": bytes });
    let get = |bytes: u64| json!({ "do": "http", "url": format!("{url}/bytes?n={bytes}"), "read_body": false });
    let cases = [
        ("requests", json!([{ "do": "http", "url": format!("{url}/health"), "times": 21 }]), Some("20"), 20),
        ("requests", json!([{ "do": "http", "url": format!("{url}/health"), "times": 20 }]), None, 20),
        ("request", json!([post((64 << 10) + 1)]), Some("65536"), 0),
        ("request", json!([post(64 << 10)]), None, 1),
        ("response", json!([get((256 << 10) + 1)]), Some("262144"), 1),
        ("response", json!([get(256 << 10)]), None, 1),
    ];
    for (limit, run, says, leave) in cases {
        let before = world.provider.requests().len();
        let performed = perform(&host, "amb-op", &json!({ "plan": [one_email()], "run": run }), "").await;
        let last = performed.results().pop().unwrap();
        assert_eq!(world.provider.requests().len() - before, leave, "{limit}: {last}");
        let denials = &performed.record.denials;
        match says {
            None => assert!(last["error"].is_null() && denials.is_empty(), "{limit}: {last}"),
            Some(figure) => {
                let error = last["error"].as_str().unwrap_or_default();
                assert!(error.contains(&format!("limit `{limit}`")) && error.contains(figure), "{limit}: {last}");
                assert_eq!(denials[0].capability, format!("limit `{limit}`"));
                assert_eq!(denials[0].remedy, format!("{limit} = … under [limits] or [app.probe.limits]"));
            }
        }
    }
}

/// What an attempt has read is kept until it settles, so there is an end to it.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_s_reads_are_counted() {
    let world = World::new();
    let host = world.edit_policy("wall = \"5s\"", "wall = \"60s\"").probe().await;
    let list: Vec<Value> = (0..=10_000).map(|key| json!({ "do": "doc-get", "key": key.to_string() })).collect();
    let mut run = json!(list);
    run.as_array_mut().unwrap().push(json!({ "do": "fail", "message": "too many", "if_last": "error" }));
    let performed = perform(&host, "idem-op", &json!({ "run": run }), "").await;
    assert_eq!(performed.failure().message, "too many");
    run.as_array_mut().unwrap().remove(0);
    run.as_array_mut().unwrap().push(json!({ "do": "fail", "message": "not too many" }));
    let performed = perform(&host, "idem-op", &json!({ "run": run }), "").await;
    assert_eq!(performed.failure().message, "not too many");
}

// ---- Guests that misbehave ----------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn a_trap_is_a_failure_with_the_tail_of_stderr_and_the_next_run_is_untouched() {
    let world = World::new();
    let host = world.probe().await;
    let cases = [
        (json!({ "do": "panic", "message": "out of cheese" }), "unreachable", "out of cheese"),
        (json!({ "do": "abort" }), "unreachable", ""),
        (json!({ "do": "exit", "code": 3 }), "it exited with status", ""),
        (json!({ "do": "exit", "code": 0 }), "it exited with status 0, instead of returning", ""),
        (json!({ "do": "recurse" }), "call stack exhausted", ""),
    ];
    for (bad, message, stderr) in cases {
        for class in [EffectClass::Pure, EffectClass::Transactional, EffectClass::Ambiguous] {
            let with = json!({ "run": [{ "do": "stderr", "message": "before" }, bad] });
            let performed = perform(&host, action(class), &with, "    retry: { attempts: 3, backoff: 1ms }\n").await;
            let failure = performed.failure();
            assert_eq!((failure.code.as_str(), failure.retryable), (codes::TRAPPED, false), "{bad}: {failure:?}");
            assert!(failure.message.starts_with("run trapped: ") && failure.message.contains(message), "{failure:?}");
            assert!(performed.record.stderr.starts_with("before\n"), "{:?}", performed.record.stderr);
            assert!(performed.record.stderr.contains(stderr), "{:?}", performed.record.stderr);
            assert_eq!(host.store.attempts(&performed.run).await.unwrap().len(), 1);
        }
        assert_eq!(results(&host, "tx-op", json!([{ "do": "count" }])).await, [1]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trap_in_authorize_or_plan_fails_before_anything_is_charged() {
    let world = World::new();
    let host = world.probe().await;
    for phase in ["authorize", "plan"] {
        let with = json!({ phase: [{ "do": "panic", "message": "no" }], "run": [post(&world)] });
        let performed = perform(&host, "amb-op", &with, "").await;
        assert_eq!(performed.failure().code, codes::TRAPPED);
        assert!(performed.failure().message.starts_with(&format!("{phase} trapped")), "{performed:?}");
        assert_eq!(super::support::used(&host, &performed.run, "emails").await, "0");
    }
    assert!(world.provider.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_passes_the_json_gate_or_is_refused_with_a_reason() {
    let world = World::new();
    let host = world.probe().await;
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let cases = [
        ("not JSON".to_owned(), Err("not JSON")),
        (String::new(), Err("JSON")),
        ("{} {}".to_owned(), Err("JSON")),
        ("\"\\ud800\"".to_owned(), Err("surrogate")),
        ("18446744073709551616".to_owned(), Err("text")),
        ("-9223372036854775809".to_owned(), Err("text")),
        ("NaN".to_owned(), Err("JSON")),
        ("1e400".to_owned(), Err("number")),
        (deep(65), Err("levels")),
        ("\"a\\u0000b\"".to_owned(), Ok("\"a\\u0000b\"")),
        // The digits of the case that a float would change.
        ("3544790567247868102".to_owned(), Ok("3544790567247868102")),
        ("18446744073709551615".to_owned(), Ok("18446744073709551615")),
        (" { \"b\" : 1.50, \"a\" : null } ".to_owned(), Ok("{\"a\":null,\"b\":1.5}")),
    ];
    for (raw, expected) in cases {
        let with = json!({ "run": [{ "do": "succeed-raw", "text": raw }] });
        let performed = perform(&host, "pure-op", &with, "").await;
        match expected {
            Ok(output) => {
                let Ended::Completed { outputs } = &performed.ended else { panic!("{raw}: {performed:?}") };
                assert_eq!(*outputs, format!("{{\"result\":{output}}}"));
            }
            Err(says) => {
                let failure = performed.failure();
                assert_eq!(failure.code, codes::OUTCOME_REFUSED, "{raw}: {failure:?}");
                assert!(failure.message.contains(says), "{raw}: {failure:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_about_bad_input_can_always_be_stored() {
    let world = World::new();
    let host = world.probe().await;
    let fail =
        json!({ "do": "fail", "message": "a\u{0}b", "code": "BAD INPUT\u{0}", "details_raw": "{\"x\": \"\\ud800\"" });
    let performed = perform(&host, "pure-op", &json!({ "run": [fail] }), "").await;
    let failure = performed.failure();
    assert_eq!((failure.message.as_str(), failure.code.as_str()), ("a\u{FFFD}b", "BADINPUT"));
    let details = failure.details.as_ref().unwrap();
    assert_eq!(details["text"], "{\"x\": \"\\ud800\"");
    assert!(details["unreadable"].is_string());

    // Nothing that a guest says is without a bound.
    let long = "ä".repeat(20 << 10);
    for (action, with) in [
        ("pure-op", json!({ "run": [{ "do": "fail", "message": long }] })),
        ("pure-op", json!({ "run": [{ "do": "doubt", "message": long }] })),
        ("pure-op", json!({ "authorize": [{ "do": "refuse", "reason": long }] })),
        ("amb-op", json!({ "plan": [{ "do": "fail", "message": long }] })),
    ] {
        let performed = perform(&host, action, &with, "").await;
        let length = serde_json::to_string(performed.failure()).unwrap().len();
        assert!((16 << 10..17 << 10).contains(&length), "{length}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spinning_neighbour_is_stopped_and_the_others_do_not_feel_it() {
    let world = World::new();
    let host = world.probe().await;
    // More spinning guests than the machine has processors.
    let spinning: Vec<_> = (0..3)
        .map(|_| {
            let host = host.clone();
            tokio::spawn(async move { perform(&host, "pure-op", &json!({ "run": [{ "do": "spin" }] }), "").await })
        })
        .collect();
    for _ in 0..5 {
        let with = json!({ "run": [{ "do": "sleep", "ms": 20 }, { "do": "count" }] });
        let performed = perform(&host, "pure-op", &with, "").await;
        assert_eq!(performed.results()[1], 1);
        assert!(performed.record.cpu_ms < 500, "{:?}", performed.record);
    }
    for spinning in spinning {
        assert_eq!(spinning.await.unwrap().failure().code, codes::TIMEOUT);
    }
}

// ---- One instance an attempt --------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn one_instance_serves_one_attempt_and_a_pure_run_gets_a_fresh_one() {
    let world = World::new();
    let host = world.probe().await;
    let count = json!({ "do": "count" });
    let with = json!({ "authorize": [count], "plan": [count], "run": [count, count] });
    for (class, expected) in [
        (EffectClass::Pure, [1, 2]),
        (EffectClass::Transactional, [3, 4]),
        (EffectClass::Idempotent, [3, 4]),
        (EffectClass::Ambiguous, [3, 4]),
    ] {
        for _ in 0..2 {
            // Two runs never share an instance.
            let performed = perform(&host, action(class), &with, "").await;
            assert_eq!(performed.results(), expected, "{class}");
        }
    }
    // Neither do two attempts.
    let fails_once = json!({ "do": "fail", "message": "once", "retryable": true, "attempt": 1 });
    let with = json!({ "authorize": [count], "plan": [count], "run": [fails_once, count] });
    let performed = perform(&host, "idem-op", &with, "    retry: { attempts: 2, backoff: 1ms }\n").await;
    assert_eq!(performed.results(), [3]);
    assert_eq!(host.store.attempts(&performed.run).await.unwrap().len(), 2);
}

// ---- R3: what a guest is told -------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn r3_context_variables_bindings_and_references() {
    let world = World::new();
    let host = world.probe().await;
    let list = json!([
        { "do": "context" },
        { "do": "variables" },
        { "do": "binding", "path": "to" }, { "do": "resolve", "path": "to" },
        { "do": "binding", "path": "items[1].price" }, { "do": "resolve", "path": "items[1].price" },
        { "do": "binding", "path": "text" }, { "do": "resolve", "path": "text" },
        { "do": "binding", "path": "items[7]" }, { "do": "resolve", "path": "items[7]" },
        { "do": "binding", "path": "]nonsense[" }, { "do": "resolve", "path": "" },
        { "do": "heartbeat" },
    ]);
    let text = format!(
        "workflow: test/context\n\
         params: {{ type: object }}\n\
         steps:\n\
         - {{ id: before, action: probe/pure-op, with: {{ run: [{{ do: succeed, output: {{ n: 7 }} }}] }}, saveAs: earlier }}\n\
         - id: asks\n  action: probe/pure-op\n  saveAs: told\n  with:\n    run: {list}\n    to: \"{{{{ params.to }}}}\"\n    \
         items: [{{ price: 1 }}, {{ price: \"{{{{ earlier.n }}}}\" }}]\n    text: \"for {{{{ earlier.n }}}}\"\n\
         outputs: {{ told: \"{{{{ told.results }}}}\" }}\n"
    );
    let mut start = StartRun::of(parse(&text));
    start.params = json!({ "to": "ada@example.com" });
    start.labels.insert("asked-by".to_owned(), "a test".to_owned());
    let started = host.start(start).await.unwrap();
    let ended = host.drive(&started.run, options("test")).await.unwrap();
    let Ended::Completed { outputs } = ended else { panic!("{ended:?}") };
    let told = serde_json::from_str::<Value>(&outputs).unwrap()["told"].clone();
    let told = told.as_array().unwrap();
    let run = &started.run;
    assert_eq!(
        told[0],
        json!({
            "run_id": run, "step_key": "asks", "effect_key": format!("workflow:{run}:step:asks"), "attempt": 1,
            "invocation": {
                "workflow": "test/context", "run": run, "params": { "to": "ada@example.com" },
                "labels": { "asked-by": "a test" },
            },
        })
    );
    assert_eq!(told[1]["earlier"], json!({ "n": 7 }), "{}", told[1]);
    let rest = [
        json!("{{ params.to }}"),
        json!("ada@example.com"),
        json!("{{ earlier.n }}"),
        json!(7),
        json!("for {{ earlier.n }}"),
        json!("for 7"),
        json!(null),
        json!(null),
        json!(null),
    ];
    assert_eq!(told[2..11], rest);
    assert_eq!(told[11]["to"], "ada@example.com");
    assert_eq!(told[12], "held");
}

/// R3: what differs between attempts would make a repetition differ, so two classes never see the number.
#[tokio::test(flavor = "multi_thread")]
async fn r3_the_attempt_is_always_1_for_pure_and_transactional_actions() {
    let world = World::new();
    let host = world.probe().await;
    let with = json!({ "run": [
        { "do": "fail", "message": "the first", "retryable": true, "attempt": 1 },
        { "do": "context" },
    ] });
    for class in EffectClass::ALL {
        let performed = perform(&host, action(class), &with, "    retry: { attempts: 2, backoff: 1ms }\n").await;
        assert_eq!(host.store.attempts(&performed.run).await.unwrap().len(), 2, "{class}");
        match class {
            EffectClass::Pure | EffectClass::Transactional => assert_eq!(performed.failure().message, "the first"),
            EffectClass::Idempotent | EffectClass::Ambiguous => assert_eq!(performed.results()[0]["attempt"], 2),
        }
    }
}

// ---- Uploads that are refused -------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_upload_is_refused_with_what_was_found_and_what_was_expected() {
    let world = World::new();
    let host = world.probe().await;
    let wat = |text: &str| wat::parse_str(text).unwrap();
    let whole = guest("probe");
    let exports = "tollgate:action/actions@0.1.0";
    let cases: [(&str, Vec<u8>, &[&str]); 12] = [
        ("nothing", Vec::new(), &["the file is empty"]),
        ("a text", b"#!/bin/sh\n".to_vec(), &["not WebAssembly"]),
        ("a core module", wat("(module)"), &["core WebAssembly module", "wasm32-wasip2"]),
        ("half a component", whole[..whole.len() / 2].to_vec(), &["cut off"]),
        ("its first bytes", whole[..8].to_vec(), &["is missing", exports, "exports nothing"]),
        ("another version of wasm", b"\0asm\x0e\0\x01\0".to_vec(), &["another version"]),
        (
            "two imports that nobody has, at once",
            wat("(component (import \"acme:db/query@1.0.0\" (instance)) (import \"acme:fs/read\" (instance)))"),
            &["`acme:db/query@1.0.0`", "`acme:fs/read`", "nothing of that name"],
        ),
        (
            "a newer version of our interface",
            wat("(component (import \"tollgate:action/host@0.2.0\" (instance)))"),
            &["version 0.2.0", "this host has 0.1.0"],
        ),
        ("a newer WASI", wat("(component (import \"wasi:cli/run@0.3.0\" (instance)))"), &["this host has WASI 0.2"]),
        ("a missing export", wat("(component)"), &["is missing", exports]),
        (
            "a mistyped export",
            wat(&format!("(component (instance $none) (export \"{exports}\" (instance $none)))")),
            &["`describe` is missing", "`run` is missing"],
        ),
        // What is imported and never called is no reason to refuse: only the export is missing here.
        (
            "a WASI interface that this host has nothing behind",
            wat("(component (import \"wasi:keyvalue/store@0.2.0\" (instance (export \"open\" (func)))))"),
            &["is missing"],
        ),
    ];
    for (what, bytes, says) in cases {
        let refusal = host.registry.push("probe", bytes, &host.policy).await.expect_err(what).to_string();
        for part in says {
            assert!(refusal.contains(part), "{what}: `{part}` is missing in: {refusal}");
        }
        assert!(!refusal.contains("keyvalue"), "{refusal}");
    }
    // The version that was active still is.
    assert_eq!(results(&host, "pure-op", json!([{ "do": "count" }])).await, [1]);
}

/// What a component may declare is the operator's to say: a class that the policy does not allow is refused on upload.
#[tokio::test(flavor = "multi_thread")]
async fn a_class_that_the_policy_does_not_allow_is_refused_with_the_line_to_add() {
    let world = World::new();
    world.edit_policy("classes = [\"pure\", \"transactional\", \"idempotent\", \"ambiguous\"]", "classes = [\"pure\"]");
    let host = world.host().await;
    let refusal = host.registry.push("probe", guest("probe"), &host.policy).await.unwrap_err().to_string();
    for class in ["transactional", "idempotent", "ambiguous"] {
        assert!(refusal.contains(&format!("[app.probe]\nclasses = [\"pure\", \"{class}\"]")), "{refusal}");
    }
    world.edit_policy("classes = [\"pure\"]", "classes = [\"pure\", \"transactional\", \"idempotent\", \"ambiguous\"]");
    let host = world.host().await;
    push(&host, "probe", "probe").await;
    let (_, ended) = run(&host, one_step("pure-op", &json!({}), "")).await;
    assert!(matches!(ended, Ended::Completed { .. }), "{ended:?}");
}
