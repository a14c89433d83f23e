//! S6 and what a person settles: writes from outside a run's performer.

use super::*;

fn resolution(verdict: Verdict, now: i64) -> Resolution {
    Resolution {
        run: "r1".to_owned(),
        step: "a".to_owned(),
        verdict,
        save_as: Some("saved".to_owned()),
        actor: "ann".to_owned(),
        because: "looked it up".to_owned(),
        at: at(now),
    }
}

fn succeeded() -> Verdict {
    Verdict::Succeeded { output: r#"{"id":7}"#.to_owned() }
}

fn failed() -> Verdict {
    Verdict::Failed { message: "never arrived".to_owned() }
}

/// A run whose step `a` was marked at 2,100 and whose worker is gone.
async fn in_doubt(store: &Store) -> (Fence, ReservedAttempt) {
    publish(store, scoped("r1", "acme")).await;
    let (fence, a) = claim_step(store, "r1", "w1", "a", "d1", 2_000).await;
    assert_done(store.commit(marking(&fence, &a, 2_100)).await);
    (fence, a)
}

/// After this moment every verdict is believed: the deadline and what can still appear are over.
const BELIEVABLE_FROM: i64 = 2_100 + 30_000 + 10_000;

async fn state_of_effect(store: &Store) -> EffectState {
    store.effects("r1").await.expect("read")[0].state
}

#[tokio::test]
async fn a_person_settles_an_effect_as_succeeded() {
    let (_place, store) = store().await;
    let (fence, a) = in_doubt(&store).await;
    assert_eq!(store.effects_in_doubt().await.expect("read").len(), 1);
    let state = store.resolve_effect(resolution(succeeded(), 3_000)).await.expect("believed at any time");
    assert_eq!(state, RunState::Active);

    assert_fenced(store.commit(completing(&fence, &a, "0", 3_100)).await);
    let snapshot = store.snapshot("r1").await.expect("read").expect("there");
    assert_eq!(
        (snapshot.steps[0].state, snapshot.steps[0].output.as_deref()),
        (StepState::Completed, Some(r#"{"id":7}"#))
    );
    assert_eq!(snapshot.variables.get("saved").map(String::as_str), Some(r#"{"id":7}"#));
    assert_eq!((snapshot.run.state, snapshot.run.lease_holder), (RunState::Active, None));
    assert_eq!(state_of_effect(&store).await, EffectState::Succeeded);
    assert_eq!(store.effects_in_doubt().await.expect("read"), []);
    assert_eq!(kinds_of(&store, "r1").await[4..], ["effect.resolved", "attempt.finished", "step.completed"]);
    let resolved = &store.events("r1", 4, 1).await.expect("read")[0];
    assert_eq!((&resolved.data["actor"], &resolved.data["because"]), (&"ann".into(), &"looked it up".into()));

    let (_, b) = claim_step(&store, "r1", "w2", "b", "d2", 3_200).await;
    assert_eq!(b.number, 1);
    let again = store.resolve_effect(resolution(succeeded(), 3_300)).await;
    assert!(matches!(again, Err(ResolveError::NotInDoubt { .. })));
}

#[tokio::test]
async fn r8_failed_and_a_new_key_are_refused_while_the_effect_can_still_appear() {
    for verdict in [failed(), Verdict::RetryWithNewKey] {
        let (_place, store) = store().await;
        in_doubt(&store).await;
        let before = everything(&store, "r1").await;
        let early = store.resolve_effect(resolution(verdict.clone(), BELIEVABLE_FROM - 1)).await;
        assert!(matches!(early, Err(ResolveError::TooEarly { until, .. }) if until == at(BELIEVABLE_FROM)));
        assert_eq!(everything(&store, "r1").await, before);
        store.resolve_effect(resolution(verdict, BELIEVABLE_FROM)).await.expect("believed");
        assert_eq!(state_of_effect(&store).await, EffectState::Failed);
    }
}

#[tokio::test]
async fn a_person_settles_an_effect_as_failed() {
    let (_place, store) = store().await;
    in_doubt(&store).await;
    let state = store.resolve_effect(resolution(failed(), BELIEVABLE_FROM)).await.expect("believed");
    assert_eq!(state, RunState::Failed);
    let run = run_of(&store, "r1").await;
    assert_eq!(run.failure.map(|failure| failure.message).as_deref(), Some("never arrived"));
    assert_eq!(step_of(&store, "r1", "a").await.state, StepState::Failed);
    // And it can be resumed: the same key again (R8).
    let (_, a) = claim_step(&store, "r1", "w2", "a", "d2", BELIEVABLE_FROM + 1).await;
    assert_eq!((a.number, a.key_retries), (2, 0));
    // Somebody said that it did not happen, so nothing has begun under this key.
    assert_eq!(a.begun_at, None);
}

#[tokio::test]
async fn r1_a_new_key_begins_afresh() {
    let (_place, store) = store().await;
    in_doubt(&store).await;
    let state = store.resolve_effect(resolution(Verdict::RetryWithNewKey, BELIEVABLE_FROM)).await.expect("believed");
    assert_eq!(state, RunState::Active);
    assert_eq!(step_of(&store, "r1", "a").await.state, StepState::Pending);
    let (fence, a) = claim_step(&store, "r1", "w2", "a", "d2", BELIEVABLE_FROM + 1).await;
    assert_eq!((a.number, a.key_retries, a.begun_at, a.reclaimed), (2, 1, None, false));
    assert_done(store.commit(marking(&fence, &a, BELIEVABLE_FROM + 2)).await);
    let keys: Vec<_> = store.effects("r1").await.expect("read").into_iter().map(|effect| effect.key).collect();
    assert_eq!(keys, ["workflow:r1:step:a", "workflow:r1:step:a:retry:1"]);
}

#[tokio::test]
async fn r15_a_blocked_step_without_a_record_is_settled_too() {
    for (verdict, run_state, step_state) in [
        (succeeded(), RunState::Active, StepState::Completed),
        (failed(), RunState::Failed, StepState::Failed),
        (Verdict::RetryWithNewKey, RunState::Active, StepState::Pending),
    ] {
        let (_place, store) = store().await;
        publish(&store, new_run("r1")).await;
        let (fence, a) = claim_step(&store, "r1", "w1", "a", "d1", 2_000).await;
        assert_done(
            store.commit(ending(&fence, &a, StepEnd::Blocked { failure: failure() }, Then::Block, 2_100)).await,
        );
        let state = store.resolve_effect(resolution(verdict, 2_200)).await.expect("settled");
        assert_eq!((state, run_of(&store, "r1").await.state), (run_state, run_state));
        assert_eq!(step_of(&store, "r1", "a").await.state, step_state);
    }
}

#[tokio::test]
async fn what_is_not_in_doubt_is_not_settled() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let not_in_doubt = store.resolve_effect(resolution(succeeded(), 2_000)).await;
    assert!(matches!(not_in_doubt, Err(ResolveError::NotInDoubt { state: StepState::Pending, .. })));
    let no_step = Resolution { step: "z".to_owned(), ..resolution(succeeded(), 2_000) };
    assert!(matches!(store.resolve_effect(no_step).await, Err(ResolveError::NoSuchStep { .. })));
    let no_run = Resolution { run: "r9".to_owned(), ..resolution(succeeded(), 2_000) };
    assert!(matches!(store.resolve_effect(no_run).await, Err(ResolveError::NoSuchRun { .. })));
}

#[tokio::test]
async fn s1_settling_does_not_put_two_runs_into_one_scope() {
    let (_place, store) = store().await;
    let (fence, a) = in_doubt(&store).await;
    let effect = EffectRecord { state: EffectState::Ambiguous, ..mark(&fence, &a, 2_100) };
    let blocking = ending(&fence, &a, StepEnd::Blocked { failure: failure() }, Then::Block, 2_200);
    assert_done(store.commit(Commit { effect: Some(effect), ..blocking }).await);
    publish(&store, scoped("r2", "acme")).await;
    let state = store.resolve_effect(resolution(succeeded(), 3_000)).await.expect("settled");
    assert_eq!(state, RunState::Blocked, "r2 is there");
    assert_eq!(step_of(&store, "r1", "a").await.state, StepState::Completed);
    store.abandon("r2", "ann", "test", Vec::new(), at(3_100)).await.expect("abandoned");
    let (_, b) = claim_step(&store, "r1", "w1", "b", "d2", 3_200).await;
    assert_eq!(b.number, 1);
}

#[tokio::test]
async fn s6_an_abandoned_run_stays_abandoned_and_its_effect_in_the_inbox() {
    let (_place, store) = store().await;
    let (fence, a) = in_doubt(&store).await;
    assert!(store.abandon("r1", "ann", "no longer wanted", Vec::new(), at(2_200)).await.expect("abandoned"));
    assert!(!store.abandon("r1", "ann", "again", Vec::new(), at(2_300)).await.expect("answered"));

    // The worker in the middle comes back, with a success.
    let settled = EffectRecord { state: EffectState::Succeeded, ..mark(&fence, &a, 2_100) };
    assert_fenced(store.commit(Commit { effect: Some(settled), ..completing(&fence, &a, "1", 2_400) }).await);
    let run = run_of(&store, "r1").await;
    assert_eq!(
        (run.state, run.generation, run.finished_at),
        (RunState::Abandoned, fence.generation + 1, Some(at(2_200)))
    );
    let inbox = store.effects_in_doubt().await.expect("read");
    assert_eq!((inbox[0].effect.state, inbox[0].run_state), (EffectState::Ambiguous, RunState::Abandoned));
    assert_eq!(kinds_of(&store, "r1").await[4..], ["attempt.finished", "run.abandoned"]);

    // Settling it revives nothing.
    let state = store.resolve_effect(resolution(succeeded(), 3_000)).await.expect("settled");
    assert_eq!((state, run_of(&store, "r1").await.state), (RunState::Abandoned, RunState::Abandoned));
    assert_eq!(step_of(&store, "r1", "a").await.state, StepState::Running, "as it was left");
    assert_eq!(store.effects_in_doubt().await.expect("read"), []);
    let read = run_of(&store, "r1").await;
    let resume = ClaimRequest { reopen: true, ..request(&read, "w1", 4_000, None) };
    assert_eq!(store.claim(resume).await.expect("answered"), Claim::NotClaimable { state: RunState::Abandoned });
}

#[tokio::test]
async fn s6_children_are_abandoned_too() {
    let (_place, store) = store().await;
    for id in ["root", "child", "grandchild", "stranger"] {
        publish(&store, new_run(id)).await;
    }
    let adopt = "UPDATE @runs SET parent_id = $2, invocation_key = 'k' WHERE id = $1";
    break_with(&store, adopt, args!["child", "root"]).await;
    break_with(&store, adopt, args!["grandchild", "child"]).await;
    // A child that has failed stays failed; what is under it is still found.
    let (fence, a) = claim_step(&store, "child", "w1", "a", "d1", 2_000).await;
    assert_done(store.commit(failing(&fence, &a, 2_100)).await);
    assert!(store.abandon("root", "ann", "test", Vec::new(), at(3_000)).await.expect("abandoned"));
    for (id, state) in [
        ("root", RunState::Abandoned),
        ("child", RunState::Failed),
        ("grandchild", RunState::Abandoned),
        ("stranger", RunState::Active),
    ] {
        assert_eq!(run_of(&store, id).await.state, state, "{id}");
    }
    assert!(!store.abandon("r9", "ann", "test", Vec::new(), at(3_000)).await.expect("answered"));
}
