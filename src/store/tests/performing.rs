//! S5, S8, S9, S12, S13, R10, R13, R14: claiming, reserving, committing.

use super::*;
use crate::journal::{DocumentRead, DocumentWrite, NewEvent, Skipped};

#[tokio::test]
async fn s12_s13_a_run_goes_from_its_first_step_to_its_outputs() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, a) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    assert_eq!((a.number, a.reclaimed, a.begun_at, a.tries), (1, false, None, 0));
    let then = Then::Reserve { skipped: Vec::new(), next: reservation("b", "d2") };
    assert_done(store.commit(Commit { then: Some(then), ..completing(&fence, &a, "1", 2_100) }).await);
    assert_eq!(step_of(&store, "r1", "b").await.state, StepState::Running);

    let b =
        ReservedAttempt { dispatch: "d2".to_owned(), claim_token: "token of d2".to_owned(), step: "b".to_owned(), ..a };
    let then = Then::Complete { skipped: Vec::new(), outputs: r#"{"sum":3}"#.to_owned() };
    assert_done(store.commit(Commit { then: Some(then), ..completing(&fence, &b, "2", 2_200) }).await);

    let snapshot = store.snapshot("r1").await.expect("read").expect("there");
    assert_eq!((snapshot.run.state, snapshot.run.outputs.as_deref()), (RunState::Completed, Some(r#"{"sum":3}"#)));
    assert_eq!((snapshot.run.finished_at, snapshot.run.lease_holder), (Some(at(2_200)), None));
    assert_eq!(snapshot.variables.get("a_out").map(String::as_str), Some("1"));
    assert_eq!(snapshot.steps[1].output.as_deref(), Some("2"));
    assert!(snapshot.attempts.iter().all(|attempt| attempt.state == AttemptState::Finished));
    assert_eq!(
        kinds_of(&store, "r1").await,
        [
            "run.started",
            "run.claimed",
            "attempt.started",
            "attempt.finished",
            "step.completed",
            "attempt.started",
            "attempt.finished",
            "step.completed",
            "run.completed"
        ]
    );
    assert_eq!(store.events("r1", 3, 2).await.expect("read").iter().map(|event| event.seq).collect::<Vec<_>>(), [4, 5]);
}

#[tokio::test]
async fn s13_a_run_does_not_complete_over_a_step_that_has_not_ended() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, a) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    let before = everything(&store, "r1").await;
    let then = Then::Complete { skipped: Vec::new(), outputs: "{}".to_owned() };
    let early = Commit { then: Some(then), ..completing(&fence, &a, "1", 2_100) };
    assert_inconsistent(store.commit(early).await, "step b");
    assert_eq!(everything(&store, "r1").await, before);
}

#[tokio::test]
async fn r13_a_skipped_step_leaves_null() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, a) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    let skipped = vec![Skipped { step: "b".to_owned(), save_as: Some("later".to_owned()) }];
    let then = Then::Complete { skipped, outputs: "{}".to_owned() };
    assert_done(store.commit(Commit { then: Some(then), ..completing(&fence, &a, "1", 2_100) }).await);
    let snapshot = store.snapshot("r1").await.expect("read").expect("there");
    assert_eq!((snapshot.steps[1].state, snapshot.steps[1].output.as_deref()), (StepState::Skipped, Some("null")));
    assert_eq!(snapshot.variables.get("later").map(String::as_str), Some("null"));
}

#[tokio::test]
async fn r14_whoever_lost_the_run_writes_nothing_more() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (old, a) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    let (new, again) = claim_step(&store, "r1", "w2", "a", "d2", 60_000).await;
    assert_eq!(new.generation, old.generation + 1);
    let before = everything(&store, "r1").await;
    assert_fenced(store.commit(completing(&old, &a, "1", 60_100)).await);
    assert_fenced(store.commit(marking(&old, &a, 60_100)).await);
    assert_fenced(store.commit(Commit::new(old.clone(), at(60_100))).await);
    assert_fenced(store.renew(&old, "w1", LEASE, at(60_100)).await);
    assert_fenced(store.release(&old, at(60_100)).await);
    assert_fenced(store.wake(&old, reservation("a", "d3"), at(60_100)).await);
    assert_eq!(everything(&store, "r1").await, before);
    assert_done(store.commit(completing(&new, &again, "2", 60_200)).await);
}

#[tokio::test]
async fn r14_a_run_that_has_ended_takes_no_more_commits() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, a) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    assert_done(store.commit(failing(&fence, &a, 2_100)).await);
    let before = everything(&store, "r1").await;
    let late = Commit { variable: Some(("late".to_owned(), "1".to_owned())), ..Commit::new(fence.clone(), at(2_200)) };
    assert_fenced(store.commit(late).await);
    assert_eq!(everything(&store, "r1").await, before);
}

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
    store.abandon("r1", "ann", "test", at(2_300)).await.expect("answered");
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
    store.release(&fence, at(11_000)).await.expect("released");
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
    store.release(&fence, at(2_200)).await.expect("released");

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
    store.abandon("r1", "ann", "test", at(2_300)).await.expect("abandoned");
    assert_fenced(store.wake(&fence, reservation("b", "d3"), at(2_400)).await);
}

#[tokio::test]
async fn s9_a_finish_counts_once() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, a) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    let commit = completing(&fence, &a, "1", 2_100);
    let (one, two) = tokio::join!(store.commit(commit.clone()), store.commit(commit.clone()));
    assert_done(one);
    assert_done(two);
    let before = everything(&store, "r1").await;
    // Also when somebody else has the run by now: what was committed stays committed.
    let (_, _) = claim_step(&store, "r1", "w2", "b", "d2", 60_000).await;
    assert_done(store.commit(commit).await);
    let kinds = kinds_of(&store, "r1").await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "attempt.finished" || *kind == "step.completed").count(), 2);
    assert_ne!(everything(&store, "r1").await, before, "the second claim is seen");
}

#[tokio::test]
async fn s9_a_finish_that_does_not_match_undoes_the_whole() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, a) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    let before = everything(&store, "r1").await;
    let of_another_step = Commit {
        step: Some(("b".to_owned(), StepEnd::Completed { output: "1".to_owned() })),
        ..completing(&fence, &a, "1", 2_100)
    };
    assert_inconsistent(store.commit(of_another_step).await, "attempt of step a");
    let unknown = ReservedAttempt { dispatch: "d9".to_owned(), ..a.clone() };
    assert_inconsistent(store.commit(completing(&fence, &unknown, "1", 2_100)).await, "d9");
    assert_eq!(everything(&store, "r1").await, before);
}

#[tokio::test]
async fn every_kind_of_commit_can_be_repeated() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, a) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    let twice = |commit: Commit| {
        let store = store.clone();
        async move {
            assert_done(store.commit(commit.clone()).await);
            let before = everything(&store, "r1").await;
            assert_done(store.commit(commit).await);
            assert_eq!(everything(&store, "r1").await, before);
        }
    };
    twice(marking(&fence, &a, 2_100)).await;
    let settled =
        EffectRecord { state: EffectState::Succeeded, output: Some("1".to_owned()), ..mark(&fence, &a, 2_100) };
    let then = Then::Reserve { skipped: Vec::new(), next: reservation("b", "d2") };
    twice(Commit { effect: Some(settled), then: Some(then), ..completing(&fence, &a, "1", 2_200) }).await;
    let b =
        ReservedAttempt { dispatch: "d2".to_owned(), claim_token: "token of d2".to_owned(), step: "b".to_owned(), ..a };
    twice(failing(&fence, &b, 2_300)).await;
}

#[tokio::test]
async fn what_the_run_does_next_can_be_repeated_on_its_own() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let read = run_of(&store, "r1").await;
    let Ok(Claim::Claimed { generation, .. }) = store.claim(request(&read, "w1", 2_000, None)).await else {
        panic!("not claimed");
    };
    let fence = Fence { run: "r1".to_owned(), generation };
    let skipped = vec![Skipped { step: "a".to_owned(), save_as: None }];
    let reserving = Then::Reserve { skipped, next: reservation("b", "d1") };
    let failing = Then::Fail { skipped: Vec::new(), step: Some("b".to_owned()), failure: failure() };
    for (then, now) in [(reserving, 2_100), (failing, 2_200)] {
        let commit = Commit { then: Some(then), ..Commit::new(fence.clone(), at(now)) };
        assert_done(store.commit(commit.clone()).await);
        let before = everything(&store, "r1").await;
        assert_done(store.commit(commit).await);
        assert_eq!(everything(&store, "r1").await, before);
    }
    let run = run_of(&store, "r1").await;
    assert_eq!((run.state, run.failure), (RunState::Failed, Some(failure())));
    assert_eq!(step_of(&store, "r1", "b").await.state, StepState::Failed);
}

#[tokio::test]
async fn an_effect_that_succeeded_is_never_written_over() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, a) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    let settled =
        EffectRecord { state: EffectState::Succeeded, output: Some("1".to_owned()), ..mark(&fence, &a, 2_100) };
    assert_done(store.commit(Commit { effect: Some(settled.clone()), ..Commit::new(fence.clone(), at(2_100)) }).await);
    assert_inconsistent(store.commit(marking(&fence, &a, 2_200)).await, "succeeded");
    assert_eq!(Journal::effect(&store, "r1", &settled.key).await.expect("read"), Some(settled));
    assert_eq!(Journal::effect(&store, "r1", "workflow:r1:step:b").await.expect("read"), None);
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

#[tokio::test]
async fn s12_an_event_with_a_key_is_appended_once_and_leaves_no_gap() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, _) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    let event = |key: Option<&str>| NewEvent {
        kind: kinds::CAPABILITY_DENIED,
        step: Some("a".to_owned()),
        data: serde_json::json!({}),
        idempotency_key: key.map(str::to_owned),
    };
    // More than fit into one statement, and two of one key.
    let mut many = vec![event(Some("k")), event(Some("k"))];
    many.extend((0..250).map(|_| event(None)));
    assert_done(store.commit(Commit { events: many, ..Commit::new(fence.clone(), at(2_100)) }).await);
    assert_done(store.commit(Commit { events: vec![event(Some("k"))], ..Commit::new(fence, at(2_200)) }).await);
    assert_eq!(kinds_of(&store, "r1").await.len(), 3 + 251);
}

#[tokio::test]
async fn nul_survives_in_outputs_and_failures() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, a) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    let output = crate::json::canonical(&serde_json::json!("a\u{0}b"));
    let then = Then::Reserve { skipped: Vec::new(), next: reservation("b", "d2") };
    assert_done(store.commit(Commit { then: Some(then), ..completing(&fence, &a, &output, 2_100) }).await);
    let step = step_of(&store, "r1", "a").await;
    let read: serde_json::Value = serde_json::from_str(&step.output.expect("stored")).expect("JSON");
    assert_eq!(read, "a\u{0}b");

    let failure = Failure { message: "bad \u{0} input".to_owned(), ..failure() };
    let b =
        ReservedAttempt { dispatch: "d2".to_owned(), claim_token: "token of d2".to_owned(), step: "b".to_owned(), ..a };
    let mut end = finish(&b, "failed");
    end.reason = Some("bad \u{0} input".to_owned());
    let then = Then::Fail { skipped: Vec::new(), step: Some("b".to_owned()), failure: failure.clone() };
    let commit =
        Commit { attempt: Some(end), ..ending(&fence, &b, StepEnd::Failed { failure: failure.clone() }, then, 2_200) };
    assert_done(store.commit(commit).await);
    assert_eq!(run_of(&store, "r1").await.failure, Some(failure));
    let attempts = store.attempts("r1").await.expect("read");
    assert_eq!(attempts[1].reason.as_deref(), Some("bad \u{FFFD} input"));
}

#[tokio::test]
async fn r10_documents_are_written_only_while_what_was_read_holds() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let (fence, _) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
    let write = |key: &str, value: Option<&str>| DocumentWrite {
        app: "mail".to_owned(),
        key: key.to_owned(),
        value: value.map(str::to_owned),
    };
    let absent = |key: &str| DocumentRead::Key { app: "mail".to_owned(), key: key.to_owned(), seen: None };
    let range = |seen: &[(&str, &str)]| DocumentRead::Range {
        app: "mail".to_owned(),
        prefix: "a/".to_owned(),
        seen: seen.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
    };
    let commit = |reads: Vec<DocumentRead>, writes: Vec<DocumentWrite>| {
        let (store, fence) = (store.clone(), fence.clone());
        async move { store.commit(Commit { reads, writes, ..Commit::new(fence, at(2_100)) }).await.expect("answered") }
    };
    let writes = vec![write("a/1", Some("1")), write("a/2", Some("2")), write("b", Some("3"))];
    assert_eq!(commit(vec![absent("a/1"), range(&[])], writes).await, Committed::Done);
    assert_eq!(store.document("mail", "a/1").await.expect("read").as_deref(), Some("1"));
    assert_eq!(store.document("other", "a/1").await.expect("read"), None);
    assert_eq!(store.documents("mail", "a/", 10).await.expect("read").len(), 2);
    assert_eq!(store.documents("mail", "", 2).await.expect("read").len(), 2);

    // An absent key is a read, and so is a range: a row that joined it, left it or changed in it.
    let late = || vec![write("b", Some("4"))];
    assert_eq!(commit(vec![absent("a/1")], late()).await, Committed::Conflict);
    assert_eq!(commit(vec![range(&[("a/1", "1")])], late()).await, Committed::Conflict);
    assert_eq!(commit(vec![range(&[("a/1", "1"), ("a/2", "x")])], late()).await, Committed::Conflict);
    assert_eq!(commit(vec![range(&[("a/1", "1"), ("a/2", "2"), ("a/3", "3")])], late()).await, Committed::Conflict);
    assert_eq!(store.document("mail", "b").await.expect("read").as_deref(), Some("3"));
    assert_eq!(commit(vec![range(&[("a/1", "1"), ("a/2", "2")])], vec![write("b", None)]).await, Committed::Done);
    assert_eq!(store.document("mail", "b").await.expect("read"), None);
}
