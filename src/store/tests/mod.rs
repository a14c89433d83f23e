//! The store against real SQLite files, rule by rule.
//!
//! What stands here is the scaffolding: a store in a folder of its own, runs to put into it, and a performer's usual
//! moves. Nothing of it knows a table, except where a test must break what no verb can.

mod claiming;
mod database;
mod listings;
mod money;
mod outside;
mod performing;
mod publishing;

use std::time::Duration;

use super::db::{Arg, args};
use super::*;
use crate::clock::Timestamp;
use crate::effect::{EffectClass, EffectState};
use crate::journal::{
    AttemptEnd, AttemptRecord, Charge, ChargeKey, Commit, Committed, Dependency, EffectRecord, Failure, Fence, Journal,
    JournalError, RequestEvidence, Reservation, StepEnd, Then, events as kinds,
};
use crate::run::state::{RunState, StepState};

const LEASE: Duration = Duration::from_secs(15);

/// A moment of the tests' clock, in milliseconds.
fn at(ms: i64) -> Timestamp {
    Timestamp(ms)
}

/// A store on a file of its own, removed with it.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().expect("a folder for the test") }
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.folder.path().join("deep/er/store.db").display())
    }

    async fn open(&self) -> Store {
        Store::open(&self.url(), StoreOptions::default()).await.expect("the store opens")
    }
}

/// A fresh store.
async fn store() -> (Place, Store) {
    let place = Place::new();
    let store = place.open().await;
    (place, store)
}

/// A run of `mail/batch` with steps `a` and `b` and no scope.
fn new_run(id: &str) -> NewRun {
    let step = |key: &str| NewStep {
        key: key.to_owned(),
        title: Some(format!("Step {key}")),
        instructions: None,
        action: Some("mail/send".to_owned()),
    };
    NewRun {
        id: id.to_owned(),
        workflow_ref: "mail/batch".to_owned(),
        definition: NewDefinition { hash: "d1".to_owned(), format: 1, body: r#"{"steps":[]}"#.to_owned() },
        title: "A batch".to_owned(),
        scope: None,
        params: r#"{"n":1}"#.to_owned(),
        labels: "{}".to_owned(),
        start_key: None,
        forced: false,
        caps: Default::default(),
        steps: vec![step("a"), step("b")],
        at: at(1_000),
    }
}

fn scoped(id: &str, scope: &str) -> NewRun {
    NewRun { scope: Some(scope.to_owned()), ..new_run(id) }
}

async fn publish(store: &Store, run: NewRun) -> String {
    store.publish(run).await.expect("the run is published").run
}

fn reservation(step: &str, dispatch: &str) -> Reservation {
    Reservation {
        step: step.to_owned(),
        dispatch: dispatch.to_owned(),
        claim_token: format!("token of {dispatch}"),
        input: format!(r#"{{"for":"{dispatch}"}}"#),
    }
}

fn request(run: &RunRow, holder: &str, now: i64, reservation: Option<Reservation>) -> ClaimRequest {
    ClaimRequest {
        run: run.id.clone(),
        expected_generation: run.generation,
        holder: holder.to_owned(),
        lease: LEASE,
        at: at(now),
        reservation,
        reopen: false,
    }
}

async fn run_of(store: &Store, id: &str) -> RunRow {
    store.run(id).await.expect("the store reads").expect("the run exists")
}

async fn step_of(store: &Store, id: &str, key: &str) -> StepRow {
    let snapshot = store.snapshot(id).await.expect("the store reads").expect("the run exists");
    snapshot.steps.into_iter().find(|step| step.key == key).expect("the step exists")
}

/// Claims `run` for `holder` at `now` with an attempt of `step`.
async fn claim_step(
    store: &Store,
    run: &str,
    holder: &str,
    step: &str,
    dispatch: &str,
    now: i64,
) -> (Fence, ReservedAttempt) {
    let row = run_of(store, run).await;
    let reopen = matches!(row.state, RunState::Failed | RunState::Blocked);
    let request = ClaimRequest { reopen, ..request(&row, holder, now, Some(reservation(step, dispatch))) };
    match store.claim(request).await.expect("the store claims") {
        Claim::Claimed { generation, reserved, .. } => {
            (Fence { run: run.to_owned(), generation }, reserved.expect("an attempt was asked for"))
        }
        other => panic!("{run} was not claimed: {other:?}"),
    }
}

fn finish(reserved: &ReservedAttempt, outcome: &str) -> AttemptEnd {
    AttemptEnd {
        dispatch: reserved.dispatch.clone(),
        claim_token: reserved.claim_token.clone(),
        outcome: outcome.to_owned(),
        reason: None,
        record: AttemptRecord::default(),
    }
}

fn failure() -> Failure {
    Failure::retryable("PROVIDER_DOWN", "the provider is down")
}

/// The commit that completes the step of `reserved` with `output`.
fn completing(fence: &Fence, reserved: &ReservedAttempt, output: &str, now: i64) -> Commit {
    Commit {
        attempt: Some(finish(reserved, "succeeded")),
        step: Some((reserved.step.clone(), StepEnd::Completed { output: output.to_owned() })),
        variable: Some((format!("{}_out", reserved.step), output.to_owned())),
        ..Commit::new(fence.clone(), at(now))
    }
    .event(kinds::STEP_COMPLETED, &reserved.step, serde_json::json!({}))
}

/// The commit that ends the step of `reserved` as `end` says.
fn ending(fence: &Fence, reserved: &ReservedAttempt, end: StepEnd, then: Then, now: i64) -> Commit {
    Commit {
        attempt: Some(finish(reserved, "failed")),
        step: Some((reserved.step.clone(), end)),
        then: Some(then),
        ..Commit::new(fence.clone(), at(now))
    }
}

fn failing(fence: &Fence, reserved: &ReservedAttempt, now: i64) -> Commit {
    let step = Some(reserved.step.clone());
    let then = Then::Fail { skipped: Vec::new(), step, failure: failure() };
    ending(fence, reserved, StepEnd::Failed { failure: failure() }, then, now)
}

/// The mark of an ambiguous effect of `reserved`.
fn mark(fence: &Fence, reserved: &ReservedAttempt, now: i64) -> EffectRecord {
    EffectRecord {
        key: crate::effect::effect_key(&fence.run, &reserved.step, reserved.key_retries),
        step: reserved.step.clone(),
        class: EffectClass::Ambiguous,
        state: EffectState::Executing,
        input_hash: reserved.input_hash.clone(),
        component: "sha256:c1".to_owned(),
        generation: fence.generation,
        dispatch: reserved.dispatch.clone(),
        marked_at: at(now),
        deadline: at(now + 30_000),
        visible_within_ms: 10_000,
        output: None,
        failure: None,
        settled_at: None,
    }
}

fn marking(fence: &Fence, reserved: &ReservedAttempt, now: i64) -> Commit {
    let commit = Commit { effect: Some(mark(fence, reserved, now)), ..Commit::new(fence.clone(), at(now)) };
    commit.event(kinds::EFFECT_MARKED, &reserved.step, serde_json::json!({}))
}

fn request_that_left() -> RequestEvidence {
    RequestEvidence {
        number: 1,
        phase: "run".to_owned(),
        method: "POST".to_owned(),
        url: "https://api.mail.example/v1/messages".to_owned(),
        safe: false,
        key: Some("workflow:r1:step:a".to_owned()),
        body_sha256: None,
        left_at: Some(at(2_500)),
        status: None,
        heard_at: None,
        error: None,
    }
}

#[track_caller]
fn assert_done(result: Result<Committed, JournalError>) {
    match result {
        Ok(Committed::Done) => {}
        other => panic!("not committed: {other:?}"),
    }
}

#[track_caller]
fn assert_fenced<T: std::fmt::Debug>(result: Result<T, JournalError>) {
    match result {
        Err(JournalError::Fenced { .. }) => {}
        other => panic!("not fenced: {other:?}"),
    }
}

#[track_caller]
fn assert_inconsistent<T: std::fmt::Debug>(result: Result<T, JournalError>, naming: &str) {
    match result {
        Err(JournalError::Inconsistent { what, .. }) if what.contains(naming) => {}
        other => panic!("not inconsistent with a word about {naming:?}: {other:?}"),
    }
}

/// The kinds of a run's events, having checked that they are numbered without a gap.
async fn kinds_of(store: &Store, run: &str) -> Vec<String> {
    let events = store.events(run, 0, 1_000).await.expect("the store reads");
    let numbers: Vec<i64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=i64::try_from(events.len()).expect("few")).collect::<Vec<_>>(), "S12: without a gap");
    assert_eq!(run_of(store, run).await.event_seq, numbers.last().copied().unwrap_or(0));
    events.into_iter().map(|event| event.kind).collect()
}

/// Everything about a run that a write can change.
async fn everything(store: &Store, run: &str) -> String {
    let snapshot = store.snapshot(run).await.expect("the store reads");
    let events = store.events(run, 0, 1_000).await.expect("the store reads");
    let effects = store.effects(run).await.expect("the store reads");
    let budget = store.budget(run).await.expect("the store reads");
    format!("{snapshot:#?}\n{events:#?}\n{effects:#?}\n{budget:#?}")
}

/// Breaks what no verb can.
async fn break_with(store: &Store, sql: &'static str, args: Vec<Arg>) {
    let broken: Result<u64, StoreError> =
        store.database.write("breaking it", move |tx| Box::pin(async move { tx.execute(sql, args).await })).await;
    broken.expect("the test breaks the store");
}
