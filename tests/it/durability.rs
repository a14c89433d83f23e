//! How often a step commits, and what happens when a commit's acknowledgement is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tollgate::effect::EffectClass;
use tollgate::host::Host;
use tollgate::journal::{Commit, Committed, EffectRecord, Journal, JournalError};
use tollgate::run::{Ended, StartRun};
use tollgate::store::Store;

use super::support::{World, one_step, options, run};

/// A journal that counts its commits, and can lose the acknowledgement of one: it commits and then reports an error.
struct Watched {
    store: Store,
    commits: AtomicUsize,
    loses: Option<usize>,
}

impl Journal for Watched {
    fn effect<'a>(&'a self, run: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<EffectRecord>, JournalError>> {
        self.store.effect(run, key)
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, JournalError>> {
        Box::pin(async move {
            let number = self.commits.fetch_add(1, Ordering::SeqCst);
            let committed = self.store.commit(commit).await?;
            if self.loses == Some(number) {
                let source = "the connection broke after the commit".into();
                return Err(JournalError::Database { doing: "acknowledging a commit", source });
            }
            Ok(committed)
        })
    }

    fn document<'a>(&'a self, app: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<String>, JournalError>> {
        Journal::document(&self.store, app, key)
    }

    fn documents<'a>(
        &'a self,
        app: &'a str,
        prefix: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, String)>, JournalError>> {
        Journal::documents(&self.store, app, prefix, limit)
    }
}

fn watched(host: &mut Host, loses: Option<usize>) -> Arc<Watched> {
    let journal = Arc::new(Watched { store: host.store.clone(), commits: AtomicUsize::new(0), loses });
    host.journal = journal.clone();
    journal
}

/// The action and the config of a step of `class` that has its effect, and consumes something where `charged`.
fn step(world: &World, class: EffectClass, charged: bool) -> (&'static str, Value) {
    let url = &world.provider.url;
    let consumes = if charged { json!([{ "dimension": "emails", "amount": "1" }]) } else { json!([]) };
    let plan = json!([{ "do": "planned", "consumes": consumes }]);
    let post = json!([{ "do": "http", "method": "POST", "url": format!("{url}/v1/messages"), "body": "x" }]);
    let look = json!([{ "do": "lookup", "url": format!("{url}/v1/messages?key=$KEY") }]);
    match class {
        EffectClass::Pure => ("pure-op", json!({ "run": [{ "do": "random" }] })),
        EffectClass::Transactional => {
            ("tx-op", json!({ "plan": plan, "run": [{ "do": "doc-add", "key": "n", "by": 1 }] }))
        }
        EffectClass::Idempotent => ("idem-op", json!({ "plan": plan, "run": post, "reconcile": look })),
        EffectClass::Ambiguous => ("amb-op", json!({ "plan": plan, "run": post, "reconcile": look })),
    }
}

/// Section 2: two commits for an ambiguous or a charged idempotent step, one for the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_commits_as_often_as_its_class_says() {
    let world = World::new();
    // Unmetered, so that an idempotent step can go without a charge.
    world.edit_policy("meter = { emails = 1 }\n", "");
    let mut host = world.probe().await;
    for (class, charged, expected) in [
        (EffectClass::Pure, false, 1),
        (EffectClass::Transactional, false, 1),
        (EffectClass::Transactional, true, 1),
        (EffectClass::Idempotent, false, 1),
        (EffectClass::Idempotent, true, 2),
        (EffectClass::Ambiguous, false, 2),
        (EffectClass::Ambiguous, true, 2),
    ] {
        let journal = watched(&mut host, None);
        let (action, with) = step(&world, class, charged);
        let (_, ended) = run(&host, one_step(action, &with, "")).await;
        assert!(matches!(ended, Ended::Completed { .. }), "{class}: {ended:?}");
        assert_eq!(journal.commits.load(Ordering::SeqCst), expected, "{class}, charged: {charged}");
    }
}

/// B5 and R9: a commit that landed and whose acknowledgement was lost is found again; nothing is doubled, nothing lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_acknowledgement_loses_and_doubles_nothing() {
    for class in EffectClass::ALL {
        for lost in 0..2 {
            let world = World::new();
            // A claim that was let go, and an effect that can be believed at once.
            world.edit_policy("visible_within = \"1s\"", "visible_within = \"100ms\"");
            world.edit_policy("wall = \"5s\"", "wall = \"2s\"");
            let mut host = world.probe().await;
            let (action, with) = step(&world, class, true);
            let more = "    retry: { attempts: 3, backoff: 10ms }\n";
            let started = host.start(StartRun::of(one_step(action, &with, more))).await.expect("it starts");
            let journal = watched(&mut host, Some(lost));
            let first = host.drive(&started.run, options("one")).await;
            let happened = journal.commits.load(Ordering::SeqCst) > lost;
            assert_eq!(first.is_err(), happened, "{class}, commit {lost}: {first:?}");
            let ended = host.drive(&started.run, options("two")).await.expect("it is driven again");
            assert!(matches!(ended, Ended::Completed { .. }), "{class}, commit {lost}: {ended:?}");

            let view = host.store.budget(&started.run).await.expect("it answers");
            let charged = view.used.get("emails").map_or(0, |amount| amount.micros()) / 1_000_000;
            let effects = i64::try_from(world.provider.effects().len()).expect("few");
            match class {
                EffectClass::Pure => assert_eq!((effects, charged), (0, 0)),
                EffectClass::Transactional => {
                    let count = Journal::document(&host.store, "probe", "n").await.expect("it answers");
                    assert_eq!((count.as_deref(), charged), (Some("1"), 1), "commit {lost}");
                }
                EffectClass::Idempotent => {
                    assert!((1..=charged).contains(&effects), "commit {lost}: {effects} ≤ {charged}")
                }
                EffectClass::Ambiguous => assert!(effects == 1 && charged >= 1, "commit {lost}: {effects} ≤ {charged}"),
            }
        }
    }
}
