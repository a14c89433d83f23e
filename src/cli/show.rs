//! `runs show`: everything that is known of a run.

use serde_json::{Value, json};

use tollgate::clock::{Clock, SystemClock, Timestamp};
use tollgate::journal::{AttemptRecord, EffectRecord, RequestEvidence};
use tollgate::run::state::{RunState, StepState};
use tollgate::store::{AttemptRow, AttemptState, BudgetView, EventRow, RunRow, Snapshot, StepRow, Store};

use super::answer::Answer;
use super::budget::{dimensions_json, dimensions_table};
use super::context::Common;
use super::exit::CliError;
use super::json as shapes;
use super::outcome::{Next, is_in_doubt, request_cells, verdicts};
use super::text::{clean, excerpt, fields, indented, section, size, table};

/// How many events are read at once.
const EVENTS_AT_ONCE: usize = 500;

/// Shows a run.
pub async fn show(common: &Common, store: &Store, run: &str, with_events: bool) -> Result<Answer, CliError> {
    let snapshot = store.snapshot(run).await?;
    let snapshot = snapshot.ok_or_else(|| CliError::refused("RUN_NOT_FOUND", format!("there is no run {run}")))?;
    // In the order in which the run came to them, not in that of their names.
    let mut snapshot = snapshot;
    let positions: std::collections::HashMap<String, u32> =
        snapshot.steps.iter().map(|step| (step.key.clone(), step.position)).collect();
    snapshot.attempts.sort_by_key(|attempt| (positions.get(&attempt.unit).copied(), attempt.number));
    let shown = Shown {
        effects: store.effects(run).await?,
        budget: store.budget(&snapshot.run.root_id).await?,
        events: if with_events { events(store, run).await? } else { Vec::new() },
        next: Vec::new(),
        snapshot,
    };
    let shown = Shown { next: next(common, &shown), ..shown };
    Ok(Answer::done(shown.text(), shown.json(with_events)))
}

struct Shown {
    snapshot: Snapshot,
    effects: Vec<EffectRecord>,
    budget: BudgetView,
    events: Vec<EventRow>,
    next: Vec<Next>,
}

async fn events(store: &Store, run: &str) -> Result<Vec<EventRow>, CliError> {
    let mut events: Vec<EventRow> = Vec::new();
    loop {
        let after = events.last().map_or(0, |event| event.seq);
        let more = store.events(run, after, EVENTS_AT_ONCE).await?;
        let last = more.len() < EVENTS_AT_ONCE;
        events.extend(more);
        if last {
            return Ok(events);
        }
    }
}

/// What can be typed next.
fn next(common: &Common, shown: &Shown) -> Vec<Next> {
    let run = &shown.snapshot.run;
    let doubtful = shown.effects.iter().filter(|effect| is_in_doubt(effect.state));
    let mut next = match run.state {
        RunState::Active | RunState::Waiting | RunState::Blocked | RunState::Failed => {
            vec![Next::now(common.command(&format!("runs resume {}", run.id)))]
        }
        RunState::Completed | RunState::Abandoned => Vec::new(),
    };
    let mut steps: Vec<(&str, Option<Timestamp>)> = Vec::new();
    if matches!(run.state, RunState::Blocked | RunState::Abandoned | RunState::Failed) {
        let now = SystemClock.now();
        steps.extend(
            doubtful.map(|effect| (effect.step.as_str(), Some(effect.believable_from()).filter(|until| *until > now))),
        );
        for step in shown.snapshot.steps.iter().filter(|step| step.state == StepState::Blocked) {
            if !steps.iter().any(|(key, _)| *key == step.key) {
                steps.push((&step.key, None));
            }
        }
    }
    next.extend(steps.iter().flat_map(|(step, until)| verdicts(common, &run.id, step, *until)));
    next
}

impl Shown {
    fn text(&self) -> String {
        let Snapshot { run, steps, attempts, .. } = &self.snapshot;
        let mut text = head(run, steps);
        if let Some(failure) = &run.failure {
            text.push_str(&section("failure", &clean(&format!("{}: {}", failure.code, failure.message))));
        }
        text.push_str(&section("steps", &steps_table(steps, attempts)));
        text.push_str(&section("attempts", &attempts_table(attempts)));
        for attempt in attempts {
            text.push_str(&evidence(attempt));
        }
        text.push_str(&section("effects in doubt", &self.doubt_table()));
        text.push_str(&section("budget", &dimensions_table(&self.budget)));
        if let Some(outputs) = &run.outputs {
            text.push_str(&section("outputs", &clean(&format!("{:#}", shapes::stored(outputs)))));
        }
        text.push_str(&section("events", &events_table(&self.events)));
        text.push_str(&section("next", &Next::lines(&self.next)));
        text
    }

    fn doubt_table(&self) -> String {
        table(
            &["step", "effect", "begun", "every verdict is believed from", "key"],
            self.effects.iter().filter(|effect| is_in_doubt(effect.state)).map(|effect| {
                vec![
                    effect.step.clone(),
                    effect.state.to_string(),
                    effect.marked_at.to_string(),
                    effect.believable_from().to_string(),
                    effect.key.clone(),
                ]
            }),
        )
    }

    fn json(&self, with_events: bool) -> Value {
        let Snapshot { run, steps, attempts, variables, .. } = &self.snapshot;
        let mut document = shapes::whole_run(run);
        let variables: serde_json::Map<String, Value> =
            variables.iter().map(|(name, text)| (name.clone(), shapes::stored(text))).collect();
        let rest = [
            ("steps", steps.iter().map(step_json).collect()),
            ("variables", Value::Object(variables)),
            ("attempts", attempts.iter().map(attempt_json).collect()),
            ("effects", self.effects.iter().map(effect_json).collect()),
            ("budget", Value::Array(dimensions_json(&self.budget))),
            ("events", if with_events { self.events.iter().map(event_json).collect() } else { Value::Null }),
            ("next", Next::commands(&self.next)),
        ];
        if let Value::Object(fields) = &mut document {
            fields.extend(rest.into_iter().map(|(name, value)| (name.to_owned(), value)));
        }
        document
    }
}

fn head(run: &RunRow, steps: &[StepRow]) -> String {
    let current = steps.iter().find(|step| !step.state.is_terminal() && step.state != StepState::Pending);
    let state = match current {
        Some(step) if !run.state.is_terminal() || run.state == RunState::Failed => {
            format!("{} at step {}", run.state, step.key)
        }
        _ => run.state.to_string(),
    };
    let lease = run.lease_holder.as_ref().zip(run.lease_expires_at);
    let labels = Some(run.labels.as_str()).filter(|labels| *labels != "{}");
    fields(&[
        ("run", Some(run.id.clone())),
        ("workflow", Some(run.workflow_ref.clone())),
        ("title", Some(run.title.clone()).filter(|title| *title != run.workflow_ref)),
        ("state", Some(state)),
        ("waits until", run.wake_at.map(|at| at.to_string())),
        ("held by", lease.map(|(holder, expires_at)| format!("{holder} until {expires_at}, unless renewed"))),
        ("scope", run.scope.clone()),
        ("key", run.start_key.clone()),
        ("parent", run.parent_id.clone()),
        ("params", Some(excerpt(&run.params))),
        ("labels", labels.map(str::to_owned)),
        ("created", Some(run.created_at.to_string())),
        ("updated", Some(run.updated_at.to_string())),
        ("finished", run.finished_at.map(|at| at.to_string())),
    ])
}

fn steps_table(steps: &[StepRow], attempts: &[AttemptRow]) -> String {
    table(
        &["step", "action", "state", "attempts", "result"],
        steps.iter().map(|step| {
            let count = attempts.iter().filter(|attempt| attempt.unit == step.key).count();
            vec![
                step.key.clone(),
                step.action.clone().unwrap_or_default(),
                step.state.to_string(),
                count.to_string(),
                result(step),
            ]
        }),
    )
}

fn result(step: &StepRow) -> String {
    let why = step.failure.as_ref().map(|failure| format!("{}: {}", failure.code, failure.message));
    let waits = step.dependency.as_ref().filter(|_| step.state == StepState::Waiting).map(|dependency| {
        let after = why.as_ref().map_or_else(String::new, |why| format!(" after {why}"));
        format!("for {} {}{after}", dependency.kind.as_str(), dependency.key)
    });
    excerpt(&waits.or(why).or_else(|| step.output.clone()).unwrap_or_default())
}

fn attempts_table(attempts: &[AttemptRow]) -> String {
    table(
        &["step", "attempt", "outcome", "started", "wall", "cpu", "memory", "reason"],
        attempts.iter().map(|attempt| {
            let measured =
                |measure: fn(&AttemptRecord) -> String| attempt.record.as_ref().map(measure).unwrap_or_default();
            vec![
                attempt.unit.clone(),
                attempt.number.to_string(),
                outcome(attempt).to_owned(),
                attempt.started_at.to_string(),
                measured(|record| format!("{} ms", record.wall_ms)),
                measured(|record| format!("{} ms", record.cpu_ms)),
                measured(|record| size(record.memory_peak_bytes)),
                excerpt(attempt.reason.as_deref().unwrap_or_default()),
            ]
        }),
    )
}

fn outcome(attempt: &AttemptRow) -> &str {
    match attempt.state {
        AttemptState::Running => "running",
        AttemptState::Finished => attempt.outcome.as_deref().unwrap_or("finished"),
    }
}

/// What an attempt left behind: the whole reason, requests, refusals, log lines, stderr.
fn evidence(attempt: &AttemptRow) -> String {
    let mut body = String::new();
    if let Some(reason) = &attempt.reason {
        body.push_str(&format!("{}\n", clean(reason)));
    }
    if let Some(record) = &attempt.record {
        body.push_str(&part("requests", &requests_table(&record.requests)));
        for denial in &record.denials {
            let refused = format!("{} in {}: {}", denial.capability, denial.phase, denial.reason);
            body.push_str(&format!("refused: {}\n", clean(&refused)));
            if !denial.remedy.is_empty() {
                body.push_str(&format!("to grant it, write in the policy:\n{}", indented(&clean(&denial.remedy))));
            }
        }
        let dropped = if record.logs_dropped { "… and more, dropped at the limit `logs`\n" } else { "" };
        body.push_str(&part("log", &(clean(&record.logs.join("\n")).into_owned() + "\n" + dropped)));
        body.push_str(&part("stderr", &clean(&record.stderr)));
    }
    section(&format!("step {}, attempt {}: {}", attempt.unit, attempt.number, outcome(attempt)), &body)
}

fn requests_table(requests: &[RequestEvidence]) -> String {
    table(
        &["phase", "kind", "request", "left", "status", "heard", "key"],
        requests.iter().map(|request| {
            let kind = if request.safe { "safe" } else { "effect" };
            [vec![request.phase.clone(), kind.to_owned()], request_cells(request)].concat()
        }),
    )
}

fn part(heading: &str, body: &str) -> String {
    if body.trim().is_empty() { String::new() } else { format!("{heading}:\n{}", indented(body)) }
}

fn events_table(events: &[EventRow]) -> String {
    table(
        &["seq", "at", "event", "step", "data"],
        events.iter().map(|event| {
            vec![
                event.seq.to_string(),
                event.at.to_string(),
                event.kind.clone(),
                event.step.clone().unwrap_or_default(),
                excerpt(&event.data.to_string()),
            ]
        }),
    )
}

fn step_json(step: &StepRow) -> Value {
    json!({
        "step": step.key,
        "position": step.position,
        "title": step.title,
        "action": step.action,
        "state": step.state,
        "input": shapes::opt_stored(step.input.as_ref()),
        "output": shapes::opt_stored(step.output.as_ref()),
        "failure": shapes::opt_failure(step.failure.as_ref()),
        "dependency": shapes::opt_dependency(step.dependency.as_ref()),
        "tries": step.tries,
        "key_retries": step.key_retries,
        "reserved_at": shapes::opt_time(step.reserved_at),
        "started_at": shapes::opt_time(step.started_at),
        "completed_at": shapes::opt_time(step.completed_at),
    })
}

fn attempt_json(attempt: &AttemptRow) -> Value {
    json!({
        "step": attempt.unit,
        "attempt": attempt.number,
        "dispatch": attempt.dispatch,
        "generation": attempt.generation,
        "holder": attempt.holder,
        "outcome": outcome(attempt),
        "reason": attempt.reason,
        "started_at": shapes::time(attempt.started_at),
        "finished_at": shapes::opt_time(attempt.finished_at),
        "record": attempt.record.as_ref().map(record_json),
    })
}

fn record_json(record: &AttemptRecord) -> Value {
    json!({
        "requests": record.requests.iter().map(shapes::request).collect::<Vec<_>>(),
        "denials": record.denials.iter().map(shapes::denial).collect::<Vec<_>>(),
        "logs": record.logs,
        "logs_dropped": record.logs_dropped,
        "stderr": record.stderr,
        "cpu_ms": record.cpu_ms,
        "wall_ms": record.wall_ms,
        "memory_peak_bytes": record.memory_peak_bytes,
    })
}

fn effect_json(effect: &EffectRecord) -> Value {
    json!({
        "step": effect.step,
        "key": effect.key,
        "class": effect.class,
        "state": effect.state,
        "input_hash": effect.input_hash,
        "component": effect.component,
        "generation": effect.generation,
        "marked_at": shapes::time(effect.marked_at),
        "deadline": shapes::time(effect.deadline),
        "believable_from": shapes::time(effect.believable_from()),
        "output": shapes::opt_stored(effect.output.as_ref()),
        "failure": shapes::opt_failure(effect.failure.as_ref()),
        "settled_at": shapes::opt_time(effect.settled_at),
    })
}

fn event_json(event: &EventRow) -> Value {
    json!({
        "seq": event.seq,
        "kind": event.kind,
        "step": event.step,
        "at": shapes::time(event.at),
        "data": event.data,
    })
}
