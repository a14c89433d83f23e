//! S9, S12, S13, R10, R13, R14: what a performer commits.

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
    assert_fenced(store.release(&old).await);
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
