//! S1: a run is published whole, once per start key, and at most one at a time in a scope.

use std::collections::BTreeMap;

use super::*;
use crate::budget::Amount;

#[tokio::test]
async fn s1_a_published_run_has_everything() {
    let (_place, store) = store().await;
    let caps = BTreeMap::from([("emails".to_owned(), Amount::parse_cap("100").expect("an amount"))]);
    let published = store.publish(NewRun { caps: caps.clone(), ..scoped("r1", "acme") }).await.expect("published");
    assert_eq!(published, Published { run: "r1".to_owned(), existing: false });

    let snapshot = store.snapshot("r1").await.expect("read").expect("there");
    assert_eq!(snapshot.definition, r#"{"steps":[]}"#);
    assert_eq!(snapshot.run.state, RunState::Active);
    assert_eq!((snapshot.run.root_id.as_str(), snapshot.run.entry_step.as_deref()), ("r1", Some("a")));
    let steps: Vec<_> = snapshot.steps.iter().map(|step| (step.key.as_str(), step.position, step.state)).collect();
    assert_eq!(steps, [("a", 0, StepState::Pending), ("b", 1, StepState::Pending)]);
    assert_eq!(kinds_of(&store, "r1").await, ["run.started"]);
    assert_eq!(store.budget("r1").await.expect("read").caps, caps);
    assert!(store.snapshot("r2").await.expect("read").is_none());
}

#[tokio::test]
async fn s1_a_publish_that_fails_late_leaves_nothing() {
    let (_place, store) = store().await;
    let mut run = new_run("r1");
    // The second step of one key is refused after run, definition and the first step were written.
    run.steps[1].key = "a".to_owned();
    store.publish(run).await.expect_err("two steps of one key");
    assert!(store.run("r1").await.expect("read").is_none());
    publish(&store, new_run("r1")).await;
}

#[tokio::test]
async fn s1_a_scope_holds_one_run_of_a_workflow_unless_forced() {
    let (_place, store) = store().await;
    publish(&store, scoped("r1", "acme")).await;
    let refused = store.publish(scoped("r2", "acme")).await.expect_err("the scope is occupied");
    assert!(
        matches!(&refused, PublishError::Occupied(occupant) if occupant.run == "r1" && occupant.step.as_deref() == Some("a"))
    );
    assert_eq!(refused.to_string(), "run r1 of mail/batch occupies scope `acme`: it is active at step a");
    assert!(store.run("r2").await.expect("read").is_none());

    publish(&store, scoped("other-scope", "zeta")).await;
    publish(&store, NewRun { workflow_ref: "mail/other".to_owned(), ..scoped("other-ref", "acme") }).await;
    publish(&store, new_run("no-scope-1")).await;
    publish(&store, new_run("no-scope-2")).await;
    publish(&store, NewRun { forced: true, ..scoped("forced", "acme") }).await;

    // The forced one is there, although it asked nobody.
    store.abandon("r1", "ann", "test", Vec::new(), at(2_000)).await.expect("abandoned");
    let refused = store.publish(scoped("r3", "acme")).await.expect_err("the forced one occupies the scope");
    assert!(matches!(refused, PublishError::Occupied(occupant) if occupant.run == "forced"));
    store.abandon("forced", "ann", "test", Vec::new(), at(2_000)).await.expect("abandoned");
    publish(&store, scoped("r3", "acme")).await;
}

#[tokio::test]
async fn s1_a_waiting_run_occupies_its_scope_and_a_blocked_one_only_shows() {
    let (_place, store) = store().await;
    publish(&store, scoped("r1", "acme")).await;
    let (fence, reserved) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    let end = StepEnd::Waiting { dependency: Dependency::timer(at(9_000)), same_attempt: false, failure: None };
    assert_done(store.commit(ending(&fence, &reserved, end, Then::Wait { until: Some(at(9_000)) }, 2_100)).await);
    assert!(matches!(store.publish(scoped("r2", "acme")).await, Err(PublishError::Occupied(_))));

    let reserved = store.wake(&fence, reservation("a", "d2"), at(9_000)).await.expect("woken");
    assert_done(
        store.commit(ending(&fence, &reserved, StepEnd::Blocked { failure: failure() }, Then::Block, 9_100)).await,
    );
    let occupant = store.occupant("mail/batch", "acme").await.expect("read").expect("shown");
    assert_eq!((occupant.run.as_str(), occupant.state, occupant.step.as_deref()), ("r1", RunState::Blocked, Some("a")));
    publish(&store, scoped("r2", "acme")).await;
    let occupant = store.occupant("mail/batch", "acme").await.expect("read").expect("shown");
    assert_eq!(occupant.run, "r2");

    // And the guard is applied again when the blocked one is resumed.
    let resume = ClaimRequest { reopen: true, ..request(&run_of(&store, "r1").await, "w1", 10_000, None) };
    assert!(matches!(store.claim(resume.clone()).await, Ok(Claim::Occupied(occupant)) if occupant.run == "r2"));
    assert_eq!(run_of(&store, "r1").await.state, RunState::Blocked);
    store.abandon("r2", "ann", "test", Vec::new(), at(10_000)).await.expect("abandoned");
    assert!(matches!(store.claim(resume).await, Ok(Claim::Claimed { .. })));
}

#[tokio::test]
async fn s1_a_start_key_starts_one_run() {
    let (_place, store) = store().await;
    let keyed = |id: &str| NewRun { start_key: Some("k1".to_owned()), ..scoped(id, "acme") };
    publish(&store, keyed("r1")).await;
    let again = store.publish(keyed("r2")).await.expect("the same run, though its scope is occupied");
    assert_eq!(again, Published { run: "r1".to_owned(), existing: true });
    assert!(store.run("r2").await.expect("read").is_none());

    let check = |run: NewRun, differs: &'static [&'static str]| {
        let store = store.clone();
        async move {
            match store.publish(run).await {
                Err(PublishError::StartKeyReused { run, differs: found, .. }) => {
                    assert_eq!((run.as_str(), found.as_slice()), ("r1", differs));
                }
                other => panic!("not refused: {other:?}"),
            }
        }
    };
    check(NewRun { params: r#"{"n":2}"#.to_owned(), ..keyed("r3") }, &["params"]).await;
    let definition = NewDefinition { hash: "d2".to_owned(), format: 1, body: "{}".to_owned() };
    check(NewRun { definition: definition.clone(), ..keyed("r3") }, &["definition"]).await;
    let elsewhere = NewRun { definition, scope: None, ..keyed("r3") };
    check(elsewhere, &["definition", "scope"]).await;
    let caps = [("emails".to_owned(), Amount::MAX)].into();
    check(NewRun { caps, ..keyed("r3") }, &["budget"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s1_ten_publishers_with_one_key_at_once_start_one_run() {
    let place = Place::new();
    let stores = [place.open().await, place.open().await];
    let publishers = (0..10).map(|number| {
        let store = stores[number % 2].clone();
        let run = NewRun { start_key: Some("k1".to_owned()), ..new_run(&format!("r{number}")) };
        tokio::spawn(async move { store.publish(run).await.expect("one run for all") })
    });
    let published = futures::future::join_all(publishers).await.into_iter().map(|joined| joined.expect("no panic"));
    let published: Vec<Published> = published.collect();
    assert_eq!(published.iter().filter(|published| !published.existing).count(), 1);
    assert!(published.iter().all(|one| one.run == published[0].run));
    assert_eq!(stores[0].list_runs(&RunFilter::default()).await.expect("listed").runs.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s1_of_ten_publishers_in_one_scope_at_once_one_gets_it() {
    let place = Place::new();
    let stores = [place.open().await, place.open().await];
    let publishers = (0..10).map(|number| {
        let (store, run) = (stores[number % 2].clone(), scoped(&format!("r{number}"), "acme"));
        tokio::spawn(async move { store.publish(run).await })
    });
    let results = futures::future::join_all(publishers).await.into_iter().map(|joined| joined.expect("no panic"));
    let results: Vec<_> = results.collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    assert_eq!(results.iter().filter(|result| matches!(result, Err(PublishError::Occupied(_)))).count(), 9);
}

#[tokio::test]
async fn a_component_is_a_new_version_only_if_its_digest_is_new() {
    let (_place, store) = store().await;
    let push = |digest: &'static str, now| {
        let store = store.clone();
        async move { store.push_component("mail", digest, digest.as_bytes().to_vec(), "[]", at(now)).await.expect("pushed") }
    };
    assert_eq!(push("c1", 1).await, Pushed { version: 1, existing: false });
    assert_eq!(push("c1", 2).await, Pushed { version: 1, existing: true });
    assert_eq!(push("c2", 3).await, Pushed { version: 2, existing: false });
    // Back to what an earlier version was: a version of its own, so that history reads forwards.
    assert_eq!(push("c1", 4).await, Pushed { version: 3, existing: false });

    let active = store.component("mail", None).await.expect("read").expect("there");
    assert_eq!((active.version, active.digest.as_str()), (3, "c1"));
    let second = store.component("mail", Some(2)).await.expect("read").expect("there");
    assert_eq!((second.digest.as_str(), second.active), ("c2", false));
    assert_eq!(store.component("other", None).await.expect("read"), None);
    assert_eq!(store.components().await.expect("read").len(), 3);
    assert_eq!(store.component_bytes("c2").await.expect("read"), Some(b"c2".to_vec()));
    assert_eq!(store.component_bytes("c3").await.expect("read"), None);
    assert_eq!(store.component_by_digest("c1").await.expect("read").expect("there").version, 3);
}
