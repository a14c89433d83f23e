//! S5, S8, R15: claiming, reserving, reclaiming, reopening.

use super::*;

#[tokio::test]
async fn a_claim_says_why_it_was_refused() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let read = run_of(&store, "r1").await;
    let (fence, a) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    let held = Claim::Held { holder: "w1".to_owned(), expires_at: at(17_000) };
    assert_eq!(store.claim(request(&read, "w2", 16_999, None)).await.expect("answered"), held);
    // The lease is over, and what w2 decided was decided on an earlier reading.
    assert_eq!(store.claim(request(&read, "w2", 17_000, None)).await.expect("answered"), Claim::Changed);
    let missing = ClaimRequest { run: "r9".to_owned(), ..request(&read, "w2", 17_000, None) };
    assert_eq!(store.claim(missing).await.expect("answered"), Claim::NotFound);

    assert_done(store.commit(failing(&fence, &a, 2_100)).await);
    let read = run_of(&store, "r1").await;
    let failed = Claim::NotClaimable { state: RunState::Failed };
    assert_eq!(store.claim(request(&read, "w2", 2_200, None)).await.expect("answered"), failed);
    store.abandon("r1", "ann", "test", Vec::new(), at(2_300)).await.expect("answered");
    assert_eq!(run_of(&store, "r1").await.state, RunState::Failed, "a failed run is not abandoned");
}

#[tokio::test]
async fn a_lease_is_renewed_and_released_by_its_holder() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, _) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    assert_eq!(store.renew(&fence, "w1", LEASE, at(10_000)).await.expect("renewed"), at(25_000));
    assert_eq!(run_of(&store, "r1").await.lease_expires_at, Some(at(25_000)));
    assert_eq!(store.attempts("r1").await.expect("read")[0].claim_expires_at, Some(at(25_000)));
    assert_fenced(store.renew(&fence, "w2", LEASE, at(10_000)).await);
    store.release(&fence).await.expect("released");
    let read = run_of(&store, "r1").await;
    assert!(matches!(store.claim(request(&read, "w2", 11_001, None)).await, Ok(Claim::Claimed { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_eight_workers_on_one_file_one_claims_a_run() {
    let place = Place::new();
    let stores = [place.open().await, place.open().await];
    publish(&stores[0], new_run("r1")).await;
    let read = run_of(&stores[0], "r1").await;
    let workers = (0..8).map(|number| {
        let dispatch = format!("d{number}");
        let request = request(&read, &format!("w{number}"), 2_000, Some(reservation("a", &dispatch)));
        let store = stores[number % 2].clone();
        tokio::spawn(async move { store.claim(request).await.expect("answered") })
    });
    let claims = futures::future::join_all(workers).await;
    let claimed = claims.iter().filter(|claim| matches!(claim, Ok(Claim::Claimed { .. }))).count();
    assert_eq!(claimed, 1, "{claims:?}");
    assert_eq!(stores[1].attempts("r1").await.expect("read").len(), 1);
}

#[tokio::test]
async fn s8_a_running_attempt_is_reclaimed_as_it_is_with_a_new_token() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (_, lost) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    let (fence, found) = claim_step(&store, "r1", "w2", "a", "d2", 60_000).await;
    assert_eq!((found.number, found.dispatch.as_str(), found.reclaimed), (1, "d1", true));
    assert_ne!(found.claim_token, lost.claim_token);
    assert_eq!((&found.input, &found.input_hash, found.reserved_at), (&lost.input, &lost.input_hash, at(2_000)));
    assert_eq!(found.begun_at, Some(at(2_000)), "it may have begun");
    assert_eq!(kinds_of(&store, "r1").await, ["run.started", "run.claimed", "attempt.started", "run.claimed"]);

    let under_old_token =
        completing(&fence, &ReservedAttempt { claim_token: lost.claim_token, ..found.clone() }, "1", 61_000);
    assert_inconsistent(store.commit(under_old_token).await, "claim token");
    assert_done(store.commit(completing(&fence, &found, "1", 61_000)).await);
    assert_eq!(store.attempts("r1").await.expect("read").len(), 1);
}

#[tokio::test]
async fn s8_a_new_attempt_gets_the_first_input_and_a_clean_step() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, first) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    assert_eq!(first.input_hash, crate::json::hash(&serde_json::json!({ "for": "d1" })));
    let dependency = Dependency::timer(at(5_000));
    let end = StepEnd::Waiting { dependency: dependency.clone(), same_attempt: false, failure: Some(failure()) };
    assert_done(store.commit(ending(&fence, &first, end, Then::Wait { until: Some(at(5_000)) }, 2_100)).await);
    let parked = step_of(&store, "r1", "a").await;
    assert_eq!((parked.state, parked.tries, parked.dependency), (StepState::Waiting, 1, Some(dependency)));
    assert_eq!(parked.failure, Some(failure()));
    let run = run_of(&store, "r1").await;
    assert_eq!((run.state, run.wake_at), (RunState::Waiting, Some(at(5_000))));

    let second = store.wake(&fence, reservation("a", "d2"), at(5_000)).await.expect("woken");
    assert_eq!((second.number, second.dispatch.as_str(), second.reclaimed, second.tries), (2, "d2", false, 1));
    assert_eq!((&second.input, second.reserved_at), (&first.input, at(2_000)));
    assert_eq!(second.begun_at, None, "the first let nothing out");
    let running = step_of(&store, "r1", "a").await;
    assert_eq!((running.state, running.failure, running.dependency), (StepState::Running, None, None));
    let run = run_of(&store, "r1").await;
    assert_eq!((run.state, run.wake_at), (RunState::Active, None));
    assert_eq!(kinds_of(&store, "r1").await[3..], ["attempt.finished", "run.waiting", "run.woken", "attempt.started"]);
}

#[tokio::test]
async fn s8_a_step_that_waits_in_one_attempt_wakes_in_it() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, first) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    let end = StepEnd::Waiting { dependency: Dependency::timer(at(5_000)), same_attempt: true, failure: None };
    let parking = Commit {
        step: Some(("a".to_owned(), end)),
        then: Some(Then::Wait { until: Some(at(5_000)) }),
        ..Commit::new(fence.clone(), at(2_100))
    };
    assert_done(store.commit(parking.clone()).await);
    let before = everything(&store, "r1").await;
    assert_done(store.commit(parking).await);
    assert_eq!(everything(&store, "r1").await, before, "recommitted");
    store.release(&fence).await.expect("released");

    let (_, woken) = claim_step(&store, "r1", "w2", "a", "d2", 5_000).await;
    assert_eq!((woken.number, woken.dispatch, woken.tries), (1, first.dispatch, 0));
    assert_eq!(run_of(&store, "r1").await.state, RunState::Active);
}

#[tokio::test]
async fn r15_what_left_the_sandbox_is_remembered_over_attempts() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, first) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    let end =
        || StepEnd::Waiting { dependency: Dependency::timer(at(5_000)), same_attempt: false, failure: Some(failure()) };
    let mut commit = ending(&fence, &first, end(), Then::Wait { until: None }, 2_600);
    let record = AttemptRecord { requests: vec![request_that_left()], ..AttemptRecord::default() };
    commit.attempt = Some(AttemptEnd { record: record.clone(), ..finish(&first, "failed") });
    assert_done(store.commit(commit).await);
    assert_eq!(store.attempts("r1").await.expect("read")[0].record, Some(record));
    let second = store.wake(&fence, reservation("a", "d2"), at(5_000)).await.expect("woken");
    assert_done(store.commit(ending(&fence, &second, end(), Then::Wait { until: None }, 5_100)).await);
    let third = store.wake(&fence, reservation("a", "d3"), at(9_000)).await.expect("woken");
    assert_eq!((third.number, third.begun_at), (3, Some(at(2_000))));
}

#[tokio::test]
async fn s8_only_a_step_that_can_run_is_reserved_and_only_in_an_active_run() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let read = run_of(&store, "r1").await;
    let missing = store.claim(request(&read, "w1", 2_000, Some(reservation("nope", "d1")))).await;
    assert_inconsistent(missing, "no step nope");
    assert_eq!(run_of(&store, "r1").await, read, "a claim that fails has claimed nothing");

    let (fence, a) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    assert_done(store.commit(completing(&fence, &a, "1", 2_100)).await);
    assert_inconsistent(store.wake(&fence, reservation("a", "d2"), at(2_200)).await, "completed");
    store.abandon("r1", "ann", "test", Vec::new(), at(2_300)).await.expect("abandoned");
    assert_fenced(store.wake(&fence, reservation("b", "d3"), at(2_400)).await);
}

#[tokio::test]
async fn s5_a_failed_run_is_reopened_with_its_summary_and_a_fresh_count() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, a) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    assert_done(store.commit(failing(&fence, &a, 2_100)).await);
    let annotate = "UPDATE @steps SET notes = 'n', evidence = 'e', summary = 's' WHERE run_id = $1 AND key = 'a'";
    break_with(&store, annotate, args!["r1"]).await;
    let failed = step_of(&store, "r1", "a").await;
    assert_eq!((failed.state, failed.tries, failed.completed_at), (StepState::Failed, 1, Some(at(2_100))));

    let read = run_of(&store, "r1").await;
    let resume = ClaimRequest { reopen: true, ..request(&read, "w2", 3_000, None) };
    assert!(matches!(store.claim(resume).await, Ok(Claim::Claimed { .. })));
    let step = step_of(&store, "r1", "a").await;
    assert_eq!((step.state, step.tries, step.failure, step.completed_at), (StepState::Pending, 0, None, None));
    assert_eq!((step.notes, step.evidence, step.summary.as_deref()), (None, None, Some("s")));
    assert_eq!(step.input, Some(a.input), "the input stays");
    let run = run_of(&store, "r1").await;
    assert_eq!((run.state, run.failure, run.finished_at), (RunState::Active, None, None));
    assert_eq!(kinds_of(&store, "r1").await.last().map(String::as_str), Some("run.reopened"));
}
