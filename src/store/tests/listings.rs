//! S2, S3, S4: finding runs.

use super::*;

#[tokio::test]
async fn s3_a_prefix_names_exactly_one_run() {
    let (_place, store) = store().await;
    for id in ["abc", "abcdef", "abX", "50%off", "50x", "under_score", "underXscore", "back\\slash"] {
        publish(&store, new_run(id)).await;
    }
    let check = |prefix: &'static str, expected: Result<&'static str, &'static [&'static str]>| {
        let store = store.clone();
        async move {
            match (store.resolve_prefix(prefix).await, expected) {
                (Ok(id), Ok(expected)) => assert_eq!(id, expected, "{prefix}"),
                (Err(PrefixError::NotFound { .. }), Err([])) => {}
                (Err(PrefixError::Ambiguous { matches, .. }), Err(expected)) => {
                    assert_eq!(matches, expected, "{prefix}");
                }
                other => panic!("{prefix}: {other:?}"),
            }
        }
    };
    check("abcd", Ok("abcdef")).await;
    check("abc", Ok("abc")).await;
    check("ab", Err(&["abX", "abc", "abcdef"])).await;
    check("aB", Err(&[])).await;
    check("zzz", Err(&[])).await;
    check("50%", Ok("50%off")).await;
    check("under_", Ok("under_score")).await;
    check("back\\", Ok("back\\slash")).await;
    check("%", Err(&[])).await;
    check("_", Err(&[])).await;
    assert_eq!(store.resolve_prefix("zzz").await.expect_err("none").code(), "RUN_NOT_FOUND");
    assert_eq!(store.resolve_prefix("ab").await.expect_err("three").code(), "RUN_AMBIGUOUS");
}

#[tokio::test]
async fn s4_pages_are_newest_first_and_stay_right_while_runs_arrive() {
    let (_place, store) = store().await;
    // Two of each moment, so that the id decides between them.
    for (id, created) in [("b", 100), ("a", 100), ("d", 200), ("c", 200), ("e", 300)] {
        publish(&store, NewRun { at: at(created), ..new_run(id) }).await;
    }
    let mut seen = Vec::new();
    let mut filter = RunFilter { limit: 2, ..RunFilter::default() };
    loop {
        let page = store.list_runs(&filter).await.expect("listed");
        seen.extend(page.runs.into_iter().map(|run| run.id));
        publish(&store, NewRun { at: at(999), ..new_run(&format!("new-{}", seen.len())) }).await;
        filter.cursor = page.next;
        if filter.cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, ["e", "c", "d", "a", "b"]);
    let wrong = RunFilter { cursor: Some("yesterday".to_owned()), ..RunFilter::default() };
    assert!(matches!(store.list_runs(&wrong).await, Err(StoreError::Cursor { .. })));
}

#[tokio::test]
async fn s4_a_listing_is_of_refs_scope_and_state() {
    let (_place, store) = store().await;
    publish(&store, scoped("r1", "acme")).await;
    publish(&store, NewRun { workflow_ref: "mail/other".to_owned(), ..scoped("r2", "acme") }).await;
    publish(&store, new_run("r3")).await;
    publish(&store, new_run("r4")).await;
    publish(&store, new_run("child")).await;
    break_with(&store, "UPDATE @runs SET parent_id = 'r3', invocation_key = 'k' WHERE id = $1", args!["child"]).await;
    let (fence, reserved) = claim_step(&store, "r4", "w1", "a", "d1", 2_000).await;
    let end = StepEnd::Waiting { dependency: Dependency::timer(at(9_000)), same_attempt: false, failure: None };
    assert_done(store.commit(ending(&fence, &reserved, end, Then::Wait { until: None }, 2_100)).await);

    let check = |filter: RunFilter, expected: &'static [&'static str]| {
        let store = store.clone();
        async move {
            let page = store.list_runs(&filter).await.expect("listed");
            let ids: Vec<&str> = page.runs.iter().map(|run| run.id.as_str()).collect();
            assert_eq!(ids, expected, "{filter:?}");
            assert_eq!(page.next, None);
        }
    };
    let any = RunFilter::default;
    check(any(), &["r1", "r2", "r3", "r4"]).await;
    check(RunFilter { children: true, ..any() }, &["child", "r1", "r2", "r3", "r4"]).await;
    check(RunFilter { state: Some(RunState::Active), ..any() }, &["r1", "r2", "r3"]).await;
    check(RunFilter { state: Some(RunState::Waiting), ..any() }, &["r4"]).await;
    check(RunFilter { scope: ScopeFilter::In(Some("acme".to_owned())), ..any() }, &["r1", "r2"]).await;
    check(RunFilter { scope: ScopeFilter::In(None), ..any() }, &["r3", "r4"]).await;
    check(RunFilter { refs: vec!["mail/other".to_owned()], ..any() }, &["r2"]).await;
    let both = vec!["mail/other".to_owned(), "mail/batch".to_owned()];
    check(RunFilter { refs: both, scope: ScopeFilter::In(Some("acme".to_owned())), ..any() }, &["r1", "r2"]).await;
}

#[tokio::test]
async fn s2_active_runs_are_found_here_and_elsewhere() {
    let (_place, store) = store().await;
    publish(&store, scoped("here-1", "acme")).await;
    publish(&store, NewRun { forced: true, at: at(5_000), ..scoped("here-2", "acme") }).await;
    publish(&store, NewRun { at: at(3_000), ..scoped("there", "zeta") }).await;
    publish(&store, NewRun { at: at(4_000), ..new_run("nowhere") }).await;
    publish(&store, NewRun { workflow_ref: "mail/other".to_owned(), ..scoped("other", "acme") }).await;
    publish(&store, scoped("child", "omega")).await;
    break_with(&store, "UPDATE @runs SET parent_id = 'there', invocation_key = 'k' WHERE id = $1", args!["child"])
        .await;

    let ids = |runs: &[RunRow]| runs.iter().map(|run| run.id.clone()).collect::<Vec<_>>();
    let refs = ["mail/batch".to_owned()];
    let found = store.find_active(&refs, Some("acme")).await.expect("found");
    assert_eq!(ids(&found.here), ["here-2", "here-1"]);
    assert_eq!(ids(&found.elsewhere), ["nowhere", "there"]);
    let found = store.find_active(&refs, None).await.expect("found");
    assert_eq!(ids(&found.here), ["nowhere"]);
    assert_eq!(ids(&found.elsewhere), ["here-2", "there", "here-1"]);
    assert_eq!(store.find_active(&[], Some("acme")).await.expect("found"), ActiveRuns::default());

    // A waiting run is not an active one, and still occupies its scope.
    let (fence, reserved) = claim_step(&store, "there", "w1", "a", "d1", 6_000).await;
    let end = StepEnd::Waiting { dependency: Dependency::timer(at(9_000)), same_attempt: false, failure: None };
    assert_done(store.commit(ending(&fence, &reserved, end, Then::Wait { until: None }, 6_100)).await);
    assert_eq!(store.find_active(&refs, Some("zeta")).await.expect("found").here, []);
    assert_eq!(store.occupant("mail/batch", "zeta").await.expect("read").expect("there").run, "there");
    assert_eq!(store.occupant("mail/batch", "omega").await.expect("read"), None);
}
