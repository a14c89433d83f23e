//! Transactional actions: effect, charge and record together or not at all, over reads that still hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tollgate::clock::Timestamp;
use tollgate::effect::EffectState;
use tollgate::host::Host;
use tollgate::journal::{Commit, Committed, DocumentWrite, EffectRecord, Failure, Fence, Journal, JournalError};
use tollgate::run::{Ended, StartRun};
use tollgate::sandbox::Sandbox;
use tollgate::store::Store;
use tollgate::workflow::Workflow;

use super::support::{World, drive, failure, one_step, options, parse, push, results, resume, run, start, used};

fn add(key: &str) -> Value {
    json!({ "do": "doc-add", "key": key })
}

fn one_email() -> Value {
    json!([{ "do": "planned", "consumes": [{ "dimension": "emails", "amount": "1" }] }])
}

async fn document(host: &Host, app: &str, key: &str) -> Option<Value> {
    let text = host.store.document(app, key).await.expect("the store answers");
    text.map(|text| serde_json::from_str(&text).expect("a document is JSON"))
}

/// Writes a document as a run of somebody else's would.
async fn put(store: &Store, run: &str, generation: i64, key: &str, value: &str) {
    let mut commit = Commit::new(Fence { run: run.to_owned(), generation }, Timestamp(0));
    commit.writes = vec![DocumentWrite { app: "probe".to_owned(), key: key.to_owned(), value: Some(value.to_owned()) }];
    assert_eq!(store.commit(commit).await.expect("the store answers"), Committed::Done);
}

/// R10: of many at once, from two hosts on one file, each conflict begins again: no addition is lost and none is doubled.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r10_additions_of_many_runs_at_once_are_exact() {
    let world = World::new();
    let hosts = [world.probe().await, world.host().await];
    let runs = 20;
    let with = json!({ "plan": one_email(), "run": [add("sum"), { "do": "doc-add", "key": "by two", "by": 2 }] });
    let retry = "    retry: { attempts: 20, backoff: 5ms, maxBackoff: 100ms }\n";
    let ended = join_all((0..runs).map(|index| {
        let (host, workflow) = (hosts[index % 2].clone(), one_step("tx-op", &with, retry));
        tokio::spawn(async move { run(&host, workflow).await })
    }))
    .await;
    let mut seen = Vec::new();
    for ended in ended {
        let (id, ended) = ended.expect("it does not panic");
        let Ended::Completed { outputs } = ended else { panic!("it should complete: {ended:?}") };
        let outputs: Value = serde_json::from_str(&outputs).expect("outputs are JSON");
        seen.push(outputs["result"]["results"][0].as_u64().expect("a sum"));
        assert_eq!(used(&hosts[0], &id, "emails").await, "1", "charged once, however often it began again");
    }
    assert_eq!(document(&hosts[0], "probe", "sum").await, Some(json!(runs)));
    assert_eq!(document(&hosts[0], "probe", "by two").await, Some(json!(2 * runs)));
    seen.sort_unstable();
    assert_eq!(seen, (1..=runs as u64).collect::<Vec<_>>(), "each saw a world of its own");
}

/// A journal in which a stranger writes the document `flag` just before the first commits that have reads.
struct Stranger {
    store: Store,
    /// A run of the stranger's, which nobody claims.
    run: String,
    /// How many commits are preceded by one of the stranger's.
    times: usize,
    commits: AtomicUsize,
    value: &'static str,
}

impl Journal for Stranger {
    fn effect<'a>(&'a self, run: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<EffectRecord>, JournalError>> {
        self.store.effect(run, key)
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, JournalError>> {
        Box::pin(async move {
            if !commit.reads.is_empty() {
                let number = self.commits.fetch_add(1, Ordering::SeqCst);
                if number < self.times {
                    let value = self.value.replace('#', &number.to_string());
                    put(&self.store, &self.run, 0, "flag", &value).await;
                }
            }
            self.store.commit(commit).await
        })
    }

    fn document<'a>(&'a self, app: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<String>, JournalError>> {
        self.store.document(app, key)
    }

    fn documents<'a>(
        &'a self,
        app: &'a str,
        prefix: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, String)>, JournalError>> {
        self.store.documents(app, prefix, limit)
    }
}

/// A host in whose way the stranger gets `times` times.
async fn contested(host: &Host, times: usize, value: &'static str) -> (Host, Arc<Stranger>) {
    let run = start(host, one_step("pure-op", &json!({}), "")).await;
    let stranger = Arc::new(Stranger { store: host.store.clone(), run, times, commits: AtomicUsize::new(0), value });
    (Host { journal: stranger.clone(), ..host.clone() }, stranger)
}

/// R10: what was read (a key, an absent key, a range; in authorize, plan or run) still holds at commit, or authorize, plan and
/// run are called again, in a fresh instance.
#[tokio::test(flavor = "multi_thread")]
async fn r10_a_read_that_changed_begins_the_contract_again() {
    let world = World::new();
    let host = world.probe().await;
    let get = json!([{ "do": "doc-get", "key": "flag" }]);
    let list = json!([{ "do": "doc-list", "prefix": "fl" }]);
    let count = json!([{ "do": "count" }, { "do": "doc-get", "key": "flag" }]);
    let blind = json!([{ "do": "doc-put", "key": "other", "value": 1 }]);
    let elsewhere = json!([{ "do": "doc-get", "key": "flagship" }, { "do": "doc-list", "prefix": "g" }]);
    // How often the contract is gone through where the stranger writes once: the last commit is the one that holds.
    #[rustfmt::skip]
    let table = [
        ("run reads the key", json!({ "run": get }), 2),
        ("run lists the range", json!({ "run": list }), 2),
        ("authorize reads the key", json!({ "authorize": get, "run": blind }), 2),
        ("authorize lists the range", json!({ "authorize": list, "run": blind }), 2),
        ("plan reads the key", json!({ "plan": get, "run": blind }), 2),
        ("reads only what stays as it is", json!({ "run": elsewhere }), 1),
        ("the instance is fresh", json!({ "run": count }), 2),
    ];
    for (what, with, expected) in table {
        let (contested, stranger) = contested(&host, 1, "\"seen #\"").await;
        put(&host.store, &stranger.run, 0, "flag", "\"first\"").await;
        let (id, ended) = run(&contested, one_step("tx-op", &with, "")).await;
        let Ended::Completed { outputs } = ended else { panic!("{what}: {ended:?}") };
        assert_eq!(stranger.commits.load(Ordering::SeqCst), expected, "{what}");
        let stored = host.store.snapshot(&id).await.expect("the store answers").expect("the run is there");
        assert_eq!(stored.attempts.len(), 1, "{what}: a conflict uses up no attempt");
        let outputs: Value = serde_json::from_str(&outputs).expect("outputs are JSON");
        let results = outputs["result"]["results"].clone();
        if what == "run reads the key" {
            assert_eq!(results, json!(["seen 0"]), "it completed over what it saw last");
        }
        if what == "the instance is fresh" {
            assert_eq!(results, json!([1, "seen 0"]));
        }
    }
}

/// R10: a failure, a wait and a refusal are believed only if what they were based on still holds.
#[tokio::test(flavor = "multi_thread")]
async fn r10_a_verdict_other_than_success_is_validated_too() {
    let world = World::new();
    let host = world.probe().await;
    let get = json!({ "do": "doc-get", "key": "flag" });
    let wait = json!({ "do": "wait", "kind": "signal", "key": "go" });
    #[rustfmt::skip]
    let table = [
        ("failure", json!({ "run": [get, { "do": "fail", "message": "no" }] })),
        ("wait", json!({ "run": [get, wait] })),
        ("trap", json!({ "run": [get, { "do": "abort" }] })),
        ("refusal", json!({ "authorize": [get, { "do": "refuse", "reason": "no" }] })),
        ("failing plan", json!({ "plan": [get, { "do": "fail", "message": "no" }] })),
        ("budget", json!({ "plan": [get, { "do": "planned", "consumes": [{ "dimension": "emails", "amount": "101" }] }] })),
    ];
    for (what, with) in table {
        let (contested, stranger) = contested(&host, 3, "\"seen #\"").await;
        let id = start(&host, one_step("tx-op", &with, "")).await;
        let ended = drive(&contested, &id).await;
        assert!(!matches!(ended, Ended::Completed { .. }), "{what}: {ended:?}");
        let commits = stranger.commits.load(Ordering::SeqCst);
        assert_eq!(commits, 4, "{what}: three times it no longer held, once it did");
    }
}

/// R10: after a bounded number of conflicts the step fails with `WORKFLOW_CONFLICT`, retryably, whatever its verdict was.
#[tokio::test(flavor = "multi_thread")]
async fn r10_after_too_many_conflicts_the_step_fails_retryably() {
    let world = World::new();
    let host = world.probe().await;
    let get = json!({ "do": "doc-get", "key": "flag" });
    #[rustfmt::skip]
    let table = [
        ("success", json!({ "plan": one_email(), "run": [get, add("spent")] })),
        ("failure", json!({ "run": [get, { "do": "fail", "message": "no" }] })),
        ("refusal", json!({ "authorize": [get, { "do": "refuse", "reason": "no" }] })),
        ("failing plan", json!({ "plan": [get, { "do": "fail", "message": "no" }] })),
    ];
    for (what, with) in table {
        let (contested, stranger) = contested(&host, usize::MAX, "#").await;
        let id =
            start(&host, one_step("tx-op", &with, "    retry: { attempts: 2, backoff: 1h, maxBackoff: 1h }\n")).await;
        let ended = drive(&contested, &id).await;
        let Ended::Waiting { failure: Some(failure), .. } = ended else { panic!("{what}: it should retry: {ended:?}") };
        assert_eq!((failure.code.as_str(), failure.retryable), ("WORKFLOW_CONFLICT", true), "{what}");
        let tries = stranger.commits.load(Ordering::SeqCst);
        assert!((2..100).contains(&tries), "{what}: a bounded number of times: {tries}");
        assert_eq!(used(&host, &id, "emails").await, "0", "{what}");
    }
    assert_eq!(document(&host, "probe", "spent").await, None);
}

/// A journal whose first commits with reads wait for each other and then all conflict.
struct AllConflictAtOnce {
    store: Store,
    barrier: Barrier,
    left: AtomicUsize,
}

impl Journal for AllConflictAtOnce {
    fn effect<'a>(&'a self, run: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<EffectRecord>, JournalError>> {
        self.store.effect(run, key)
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, JournalError>> {
        Box::pin(async move {
            let takes = |left: usize| left.checked_sub(1);
            if !commit.reads.is_empty() && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, takes).is_ok() {
                self.barrier.wait().await;
                return Ok(Committed::Conflict);
            }
            self.store.commit(commit).await
        })
    }

    fn document<'a>(&'a self, app: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<String>, JournalError>> {
        self.store.document(app, key)
    }

    fn documents<'a>(
        &'a self,
        app: &'a str,
        prefix: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, String)>, JournalError>> {
        self.store.documents(app, prefix, limit)
    }
}

/// R10: as many attempts as may run at once all conflict at once. Each begins again in the place that it has: none waits for
/// another's.
#[tokio::test(flavor = "multi_thread")]
async fn r10_conflicts_of_a_full_house_do_not_wait_for_each_other() {
    let world = World::new();
    let store = world.host().await.store;
    let policy = tollgate::policy::Policy::parse("tollgate.toml", &world.policy_text()).expect("it is a policy");
    // A sandbox of its own, so that its places are nobody else's.
    let mut host = Host::new(store.clone(), Sandbox::new().expect("there is room for another"), policy);
    push(&host, "probe", "probe").await;
    let places = 64;
    host.journal = Arc::new(AllConflictAtOnce { store, barrier: Barrier::new(places), left: AtomicUsize::new(places) });
    let with = json!({ "run": [{ "do": "doc-get", "key": "flag" }] });
    let all = join_all((0..places).map(|_| {
        let (host, workflow) = (host.clone(), one_step("tx-op", &with, ""));
        tokio::spawn(async move { run(&host, workflow).await.1 })
    }));
    let ended = tokio::time::timeout(Duration::from_secs(60), all).await.expect("they wait for each other");
    for ended in ended {
        let ended = ended.expect("it does not panic");
        assert!(matches!(ended, Ended::Completed { .. }), "{ended:?}");
    }
}

/// R10: `failed`, `waiting`, a trap, a refused output, a refusal and an exhausted budget unwind writes, charge and record.
#[tokio::test(flavor = "multi_thread")]
async fn r10_everything_but_success_unwinds_writes_charge_and_record() {
    let world = World::new();
    let host = world.probe().await;
    let wait = json!({ "do": "wait", "kind": "signal", "key": "go" });
    let too_much = json!([{ "do": "planned", "consumes": [{ "dimension": "emails", "amount": "101" }] }]);
    #[rustfmt::skip]
    let table = [
        ("failed", json!({ "plan": one_email(), "run": [add("n"), { "do": "fail", "message": "no" }] })),
        ("ambiguous", json!({ "plan": one_email(), "run": [add("n"), { "do": "doubt", "message": "perhaps" }] })),
        ("waiting", json!({ "plan": one_email(), "run": [add("n"), wait] })),
        ("trap", json!({ "plan": one_email(), "run": [add("n"), { "do": "abort" }] })),
        ("refused output", json!({ "plan": one_email(), "run": [add("n"), { "do": "succeed-raw", "text": "{" }] })),
        ("refusal", json!({ "authorize": [{ "do": "refuse", "reason": "no" }], "plan": one_email(), "run": [add("n")] })),
        ("over budget", json!({ "plan": too_much, "run": [add("n")] })),
    ];
    for (what, with) in table {
        let id = start(&host, one_step("tx-op", &with, "")).await;
        let ended = drive(&host, &id).await;
        assert!(!matches!(ended, Ended::Completed { .. }), "{what}: {ended:?}");
        assert_eq!(document(&host, "probe", "n").await, None, "{what}");
        assert_eq!(used(&host, &id, "emails").await, "0", "{what}");
        assert!(host.store.effects(&id).await.expect("it answers").is_empty(), "{what}");
        assert!(host.store.budget(&id).await.expect("it answers").charges.is_empty(), "{what}: not even given back");
    }
    let with = json!({ "plan": one_email(), "run": [add("n")] });
    let (id, ended) = run(&host, one_step("tx-op", &with, "")).await;
    assert!(matches!(ended, Ended::Completed { .. }), "{ended:?}");
    assert_eq!(document(&host, "probe", "n").await, Some(json!(1)));
    let effects = host.store.effects(&id).await.expect("it answers");
    assert_eq!(effects[0].state, EffectState::Succeeded);
}

/// R10: inside an attempt a guest sees its own writes, over one unchanging view of the store.
#[tokio::test(flavor = "multi_thread")]
async fn r10_a_guest_sees_its_own_writes() {
    let world = World::new();
    let host = world.probe().await;
    let found = results(
        &host,
        "tx-op",
        json!([
            { "do": "doc-put", "key": "a/1", "value": 1 },
            { "do": "doc-put", "key": "a/2", "value_raw": "{ \"b\" : 2 , \"a\" : \"\\u0000\" }" },
            { "do": "doc-put", "key": "b", "value": 3 },
            { "do": "doc-get", "key": "a/1" },
            { "do": "doc-list", "prefix": "a/" },
            { "do": "doc-delete", "key": "a/1" },
            { "do": "doc-get", "key": "a/1" },
            { "do": "doc-list", "prefix": "" },
            { "do": "doc-delete", "key": "never there" },
        ]),
    )
    .await;
    let two = json!({ "key": "a/2", "value": { "b": 2, "a": "\u{0}" } });
    assert_eq!(found[3], 1);
    assert_eq!(found[4], json!([{ "key": "a/1", "value": 1 }, two]));
    assert_eq!(found[6], Value::Null);
    assert_eq!(found[7], json!([two, { "key": "b", "value": 3 }]));
    let stored = host.store.document("probe", "a/2").await.expect("the store answers");
    assert_eq!(stored.as_deref(), Some(r#"{"a":"\u0000","b":2}"#), "in canonical form");
    assert_eq!(document(&host, "probe", "a/1").await, None);
}

/// Two apps, one store: a key that another app wrote is never seen, listed, changed or removed.
#[tokio::test(flavor = "multi_thread")]
async fn r10_documents_of_another_app_are_not_seen() {
    let world = World::new();
    world.edit_policy(
        "[app.probe]",
        "[app.other]\nclasses = [\"pure\", \"transactional\", \"idempotent\", \"ambiguous\"]\n\n[app.probe]",
    );
    let host = world.probe().await;
    push(&host, "other", "probe").await;
    let step = |app: &str, instructions: Value| -> Workflow {
        parse(&format!(
            "workflow: test/apps\nsteps:\n  - {{ id: only, action: {app}/tx-op, with: {}, saveAs: result }}\noutputs: {{ result: \
             \"{{{{ result }}}}\" }}\n",
            json!({ "run": instructions })
        ))
    };
    let (_, ended) = run(&host, step("probe", json!([{ "do": "doc-put", "key": "secret", "value": "probe's" }]))).await;
    assert!(matches!(ended, Ended::Completed { .. }), "{ended:?}");
    let looks = json!([
        { "do": "doc-get", "key": "secret" },
        { "do": "doc-list", "prefix": "" },
        { "do": "doc-delete", "key": "secret" },
        { "do": "doc-put", "key": "mine", "value": 1 },
    ]);
    let (_, ended) = run(&host, step("other", looks)).await;
    let Ended::Completed { outputs } = ended else { panic!("it should complete: {ended:?}") };
    assert!(outputs.contains(r#"{"results":[null,[],null,null]}"#), "{outputs}");
    assert_eq!(document(&host, "probe", "secret").await, Some(json!("probe's")));
    assert_eq!(document(&host, "probe", "mine").await, None);
    assert_eq!(document(&host, "other", "mine").await, Some(json!(1)));
}

/// Section 3: who may read and who may write, by class and phase.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_run_of_a_transactional_action_writes() {
    let world = World::new();
    let host = world.probe().await;
    let asks = json!([{ "do": "doc-get", "key": "k" }, { "do": "doc-put", "key": "k", "value": 1 }, { "do": "doc-delete", "key": "k" }]);
    #[rustfmt::skip]
    let table = [("pure-op", false, false), ("idem-op", true, false), ("amb-op", true, false), ("tx-op", true, true)];
    for (action, reads, writes) in table {
        let found = results(&host, action, asks.clone()).await;
        let denied = |index: usize| found[index]["error"].as_str().is_some_and(|error| error.starts_with("denied: "));
        assert_eq!((!denied(0), !denied(1), !denied(2)), (reads, writes, writes), "{action}: {found:?}");
    }
    // In authorize and plan nobody writes. There the error ends the phase.
    for phase in ["authorize", "plan"] {
        let with = json!({ phase: [{ "do": "doc-put", "key": "k", "value": 1, "ignore_error": false }] });
        for action in ["tx-op", "amb-op"] {
            let failure: Failure = failure(&host, action, with.clone()).await;
            let told = failure.details.map(|details| details.to_string()).unwrap_or_default() + &failure.message;
            assert!(told.contains("denied: "), "{action} {phase}: {told}");
        }
    }
    assert_eq!(document(&host, "probe", "k").await, None);
}

/// What a document may be: JSON through the one gate, under a key of bounded length.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_is_none_is_refused_to_the_guest() {
    let world = World::new();
    let host = world.probe().await;
    let put = |key: &str, value: &str| json!({ "do": "doc-put", "key": key, "value_raw": value });
    let long = "k".repeat(513);
    let found = results(
        &host,
        "tx-op",
        json!([
            put("k", "{"), put("k", "\"\\ud800\""), put("k", "35447905672478681020"), put("", "1"), put(&long, "1"), put("a\u{0}b", "1"),
            { "do": "doc-get", "key": "" },
            put("k", "3544790567247868102"),
        ]),
    )
    .await;
    for refused in &found[..7] {
        assert!(refused["error"].as_str().is_some_and(|error| error.starts_with("invalid: ")), "{refused}");
    }
    let stored = host.store.document("probe", "k").await.expect("the store answers");
    assert_eq!(stored.as_deref(), Some("3544790567247868102"));
}

/// Two runs of one workflow with the same parameters do not see each other's outputs; a resumed one does its work once.
#[tokio::test(flavor = "multi_thread")]
async fn a_completed_transactional_step_is_not_run_again() {
    let world = World::new();
    let host = world.probe().await;
    let workflow = || {
        parse(&format!(
            "workflow: test/two\nsteps:\n  - {{ id: first, action: probe/tx-op, with: {}, saveAs: sum }}\n  - {{ id: second, \
             action: probe/pure-op, with: {} }}\n",
            json!({ "run": [add("n")] }),
            json!({ "run": [{ "do": "fail", "message": "no" }] })
        ))
    };
    let mut sums = Vec::new();
    for _ in 0..2 {
        let started = host.start(StartRun::of(workflow())).await.expect("it starts").run;
        assert!(matches!(drive(&host, &started).await, Ended::Failed { .. }));
        assert!(matches!(resume(&host, &started).await, Ended::Failed { .. }));
        let stored = host.store.snapshot(&started).await.expect("the store answers").expect("the run is there");
        sums.push(stored.variables["sum"].clone());
    }
    assert_eq!(sums, [r#"{"results":[1]}"#, r#"{"results":[2]}"#]);
    assert_eq!(document(&host, "probe", "n").await, Some(json!(2)));
}

/// A ledger in a world of its own.
async fn ledger() -> (World, Host) {
    let world = World::new();
    world.edit_policy("[app.probe]", "[app.ledger]\nclasses = [\"transactional\"]\n\n[app.probe]");
    let host = world.host().await;
    push(&host, "ledger", "ledger").await;
    (world, host)
}

async fn book(host: &Host, action: &str, with: Value) -> Result<Value, Failure> {
    let text = format!(
        "workflow: books/{action}\nsteps:\n  - {{ id: only, action: ledger/{action}, with: {with}, saveAs: result, retry: {{ \
         attempts: 20, backoff: 5ms, maxBackoff: 50ms }} }}\noutputs: {{ result: \"{{{{ result }}}}\" }}\n"
    );
    match run(host, parse(&text)).await.1 {
        Ended::Completed { outputs } => {
            Ok(serde_json::from_str::<Value>(&outputs).expect("outputs are JSON")["result"].clone())
        }
        Ended::Failed { failure } => Err(failure),
        other => panic!("it should end: {other:?}"),
    }
}

/// The ledger's story: open, reserve, book; no overdraft, nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_reserves_and_books_and_refuses_an_overdraft() {
    let (_world, host) = ledger().await;
    let opened = book(&host, "open", json!({ "account": "ada", "balance": 1_000 })).await.expect("it opens");
    assert_eq!(
        opened,
        json!({ "account": "ada", "balance": 1_000, "reserved": 0, "available": 1_000, "frozen": false })
    );
    let reserve = |amount: u64, name: &str| json!({ "account": "ada", "amount": amount, "reservation": name });
    book(&host, "reserve", reserve(600, "r1")).await.expect("there is enough");

    let refused = book(&host, "reserve", reserve(401, "r2")).await.expect_err("there is not enough");
    assert_eq!(refused.code, "INSUFFICIENT_FUNDS");
    assert_eq!(refused.details, Some(json!({ "account": "ada", "available": 400, "requested": 401 })));
    assert_eq!(document(&host, "ledger", "reservation/r2").await, None);

    let booked = book(&host, "book", json!({ "reservation": "r1" })).await.expect("it was reserved");
    assert_eq!((&booked["balance"], &booked["reserved"], &booked["booked"]), (&json!(400), &json!(0), &json!(600)));
    for (action, with, code) in [
        ("book", json!({ "reservation": "r1" }), "RESERVATION_BOOKED"),
        ("book", json!({ "reservation": "r9" }), "RESERVATION_NOT_FOUND"),
        ("reserve", reserve(1, "r1"), "RESERVATION_EXISTS"),
        ("open", json!({ "account": "ada", "balance": 1 }), "ACCOUNT_EXISTS"),
        ("freeze", json!({ "account": "bob", "frozen": true }), "ACCOUNT_NOT_FOUND"),
    ] {
        assert_eq!(book(&host, action, with).await.expect_err("it is refused").code, code, "{action}");
    }
    assert_eq!(document(&host, "ledger", "account/ada").await.expect("it is open")["balance"], 400);
}

/// R4: access can be revoked between reserving and booking: a frozen account refuses, until it is thawed.
#[tokio::test(flavor = "multi_thread")]
async fn r4_a_frozen_account_refuses_the_booking() {
    let (_world, host) = ledger().await;
    book(&host, "open", json!({ "account": "ada", "balance": 10 })).await.expect("it opens");
    book(&host, "reserve", json!({ "account": "ada", "amount": 10, "reservation": "r1" })).await.expect("enough");
    book(&host, "freeze", json!({ "account": "ada", "frozen": true })).await.expect("it exists");
    let refused = book(&host, "book", json!({ "reservation": "r1" })).await.expect_err("it is frozen");
    assert_eq!(
        (refused.code.as_str(), refused.message.as_str()),
        ("FORBIDDEN", "not authorized to perform this action")
    );
    assert_eq!(refused.details.expect("for the operator")["reason"], "account `ada` is frozen");
    book(&host, "freeze", json!({ "account": "ada", "frozen": false })).await.expect("it exists");
    book(&host, "book", json!({ "reservation": "r1" })).await.expect("it is thawed");
}

/// R10: many reserve from one account at once: exactly what is there goes out.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r10_an_account_is_never_overdrawn_by_many_at_once() {
    let (world, host) = ledger().await;
    let other = world.host().await;
    book(&host, "open", json!({ "account": "ada", "balance": 7 })).await.expect("it opens");
    let all = join_all((0..12).map(|index| {
        let host = if index % 2 == 0 { host.clone() } else { other.clone() };
        let with = json!({ "account": "ada", "amount": 1, "reservation": format!("r{index}") });
        tokio::spawn(async move { book(&host, "reserve", with).await })
    }))
    .await;
    let mut codes: Vec<String> = all
        .into_iter()
        .filter_map(|reserved| reserved.expect("it does not panic").err().map(|failure| failure.code))
        .collect();
    codes.dedup();
    assert_eq!(codes, ["INSUFFICIENT_FUNDS"]);
    let account = document(&host, "ledger", "account/ada").await.expect("it is open");
    assert_eq!(account, json!({ "balance": 7, "reserved": 7, "frozen": false }));
    let reservations = host.store.documents("ledger", "reservation/", 100).await.expect("the store answers");
    assert_eq!(reservations.len(), 7);
}

/// Time limits hold for a transactional action too, and leave nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_transactional_action_that_is_stopped_leaves_nothing() {
    let world = World::new();
    let host = world.probe().await;
    let with = json!({ "plan": one_email(), "run": [add("n"), { "do": "spin" }] });
    let id = start(&host, one_step("tx-op", &with, "")).await;
    let ended = host.drive(&id, options("test")).await.expect("it can be driven");
    let Ended::Failed { failure } = ended else { panic!("it should fail: {ended:?}") };
    assert_eq!((failure.code.as_str(), failure.retryable), ("WORKFLOW_TIMEOUT", true));
    assert_eq!(document(&host, "probe", "n").await, None);
    assert_eq!(used(&host, &id, "emails").await, "0");
}
