//! How performing a run ended: the exit code, the words, the document, and the commands to type next.

use serde_json::{Value, json};

use tollgate::clock::{Clock, SystemClock, Timestamp};
use tollgate::effect::EffectState;
use tollgate::journal::{Dependency, Failure, RequestEvidence};
use tollgate::run::Ended;
use tollgate::run::state::StepState;
use tollgate::store::{Snapshot, StepRow, Store};

use super::answer::Answer;
use super::context::{Common, quoted};
use super::exit::{CliError, Exit};
use super::json as shapes;
use super::text::{clean, excerpt, excerpt_to, section, table};

/// How many characters of a request a table shows: it is evidence, and its end often says most.
const URL_CHARS_MAX: usize = 200;

/// Everything that is said about how a run stands.
#[derive(Debug, Default)]
struct Outcome {
    outputs: Value,
    failure: Option<Failure>,
    step: Option<String>,
    until: Option<Timestamp>,
    dependency: Value,
    holder: Option<String>,
    requests: Vec<(u32, RequestEvidence)>,
    next: Vec<Next>,
}

/// A command to type next.
#[derive(Debug)]
pub struct Next {
    /// The command.
    pub command: String,
    /// When it is of no use yet.
    pub refused_until: Option<Timestamp>,
}

impl Next {
    /// A command that can be typed now.
    pub fn now(command: String) -> Next {
        Next { command, refused_until: None }
    }

    /// One a line, for people.
    pub fn lines(all: &[Next]) -> String {
        let line = |next: &Next| match next.refused_until {
            Some(until) => format!("{}   # refused until {until}\n", next.command),
            None => format!("{}\n", next.command),
        };
        all.iter().map(line).collect()
    }

    /// The commands alone, for programs.
    pub fn commands(all: &[Next]) -> Value {
        all.iter().map(|next| next.command.as_str()).collect()
    }
}

/// Says how performing `run` ended.
pub async fn answer(
    common: &Common,
    store: &Store,
    run: &str,
    ended: Ended,
    existing: bool,
) -> Result<Answer, CliError> {
    let snapshot = store.snapshot(run).await?;
    let snapshot = snapshot.ok_or_else(|| CliError::refused("RUN_NOT_FOUND", format!("there is no run {run}")))?;
    let mut outcome = Outcome::default();
    let show = Next::now(common.command(&format!("runs show {run}")));
    let resume = Next::now(common.command(&format!("runs resume {run}")));
    let (exit, first) = match ended {
        Ended::Completed { outputs } => {
            outcome.outputs = shapes::stored(&outputs);
            (Exit::Done, format!("run {run} completed"))
        }
        Ended::Failed { failure } => {
            outcome.step = in_state(&snapshot, &[StepState::Failed]).map(|step| step.key.clone());
            let at = outcome.step.as_ref().map_or_else(String::new, |step| format!(" at step {step}"));
            let text = format!("run {run} failed{at}\n{}", said(&failure));
            outcome.failure = Some(failure);
            outcome.next = vec![show, resume];
            (Exit::Failed, text)
        }
        Ended::Blocked { step, failure } => {
            outcome.requests = effects_that_left(&snapshot, &step);
            outcome.until = doubtful_until(store, run, &step).await?;
            outcome.next = vec![show, resume];
            outcome.next.extend(verdicts(common, run, &step, outcome.until));
            let why = failure.as_ref().map_or_else(String::new, |why| format!("\n{}", said(why)));
            let text = format!("run {run} needs attention at step {step}{why}");
            (outcome.step, outcome.failure) = (Some(step), failure);
            (Exit::Attention, text)
        }
        Ended::Waiting { until, dependency, failure } => {
            let step = in_state(&snapshot, &[StepState::Waiting]);
            let text = format!("run {run} {}", waiting(step, until, dependency.as_ref(), failure.as_ref()));
            outcome.step = step.map(|step| step.key.clone());
            outcome.until = until;
            outcome.dependency = shapes::opt_dependency(dependency.as_ref());
            outcome.failure = failure;
            outcome.next = vec![show, resume];
            (Exit::Waits, text)
        }
        Ended::Held { holder, expires_at } => {
            let text = format!("run {run} is held by {holder} until {expires_at}, unless that renews its lease");
            outcome.step = in_state(&snapshot, &[StepState::Running]).map(|step| step.key.clone());
            (outcome.holder, outcome.until) = (Some(holder), Some(expires_at));
            outcome.next = vec![show, resume];
            (Exit::Waits, text)
        }
        Ended::Abandoned => {
            outcome.next = vec![show];
            (Exit::Refused, format!("run {run} was abandoned; a new key, or none, starts another"))
        }
    };
    Ok(Answer { exit, text: outcome.text(&first), json: outcome.json(&snapshot, existing) })
}

impl Outcome {
    fn text(&self, first: &str) -> String {
        let mut text = format!("{}\n", clean(first));
        if self.outputs.as_object().is_some_and(|outputs| !outputs.is_empty()) {
            text.push_str(&format!("{}\n", clean(&format!("{:#}", self.outputs))));
        }
        text.push_str(&section("what left", &left_table(&self.requests)));
        text.push_str(&section("next", &Next::lines(&self.next)));
        text
    }

    fn json(&self, snapshot: &Snapshot, existing: bool) -> Value {
        let requests: Vec<Value> = self
            .requests
            .iter()
            .map(|(attempt, request)| {
                let mut shape = shapes::request(request);
                shape["attempt"] = json!(attempt);
                shape
            })
            .collect();
        json!({
            "run": snapshot.run.id,
            "workflow": snapshot.run.workflow_ref,
            "state": snapshot.run.state,
            "existing": existing,
            "outputs": self.outputs,
            "failure": shapes::opt_failure(self.failure.as_ref()),
            "step": self.step,
            "until": shapes::opt_time(self.until),
            "dependency": self.dependency,
            "holder": self.holder,
            "requests": requests,
            "next": Next::commands(&self.next),
        })
    }
}

/// A failure in words. A guest wrote some of them: its further lines are set in, so that none looks like one of ours.
fn said(failure: &Failure) -> String {
    format!("{}: {}", failure.code, failure.message.replace('\n', "\n    "))
}

fn in_state<'a>(snapshot: &'a Snapshot, states: &[StepState]) -> Option<&'a StepRow> {
    snapshot.steps.iter().find(|step| states.contains(&step.state))
}

fn waiting(
    step: Option<&StepRow>,
    until: Option<Timestamp>,
    dependency: Option<&Dependency>,
    failure: Option<&Failure>,
) -> String {
    let at = step.map_or_else(String::new, |step| format!(" at step {}", step.key));
    let for_what = match (until, dependency) {
        (Some(until), _) => format!(" until {until}"),
        (None, Some(dependency)) => format!(" for {} {}", dependency.kind.as_str(), dependency.key),
        (None, None) => String::new(),
    };
    // Only an attempt that was asked what became of its effect goes on as it is.
    let to_ask = match step.is_some_and(|step| step.same_attempt) {
        true => "\nthen its action is asked again what became of its effect",
        false => "",
    };
    let after = failure.map_or_else(String::new, |failure| format!("\nafter {}", said(failure)));
    format!("waits{at}{for_what}{to_ask}{after}")
}

/// The effectful requests of every attempt of a step of which a byte left: what there is to go by.
fn effects_that_left(snapshot: &Snapshot, step: &str) -> Vec<(u32, RequestEvidence)> {
    let attempts = snapshot.attempts.iter().filter(|attempt| attempt.unit == step);
    attempts
        .flat_map(|attempt| {
            let requests = attempt.record.iter().flat_map(|record| &record.requests);
            requests.filter(|request| request.is_effect()).map(|request| (attempt.number, request.clone()))
        })
        .collect()
}

fn left_table(requests: &[(u32, RequestEvidence)]) -> String {
    table(
        &["attempt", "request", "left", "status", "heard", "key"],
        requests.iter().map(|(attempt, request)| [vec![attempt.to_string()], request_cells(request)].concat()),
    )
}

/// What there is to say of a request: what it was, when it left, what was heard, and under which key.
pub fn request_cells(request: &RequestEvidence) -> Vec<String> {
    let heard = match (request.heard_at, &request.error) {
        (Some(at), _) => at.to_string(),
        (None, Some(error)) => format!("no: {}", excerpt(error)),
        (None, None) => "no".to_owned(),
    };
    vec![
        excerpt_to(&format!("{} {}", request.method, request.url), URL_CHARS_MAX),
        request.left_at.map_or("no".to_owned(), |at| at.to_string()),
        request.status.map_or("-".to_owned(), |status| status.to_string()),
        heard,
        request.key.clone().unwrap_or_default(),
    ]
}

/// Until when only *succeeded* is believed of a step's effect; `None` where every verdict is taken now.
async fn doubtful_until(store: &Store, run: &str, step: &str) -> Result<Option<Timestamp>, CliError> {
    let now = SystemClock.now();
    let effects = store.effects(run).await?;
    let in_doubt = effects.iter().filter(|effect| effect.step == step && is_in_doubt(effect.state));
    Ok(in_doubt.map(|effect| effect.believable_from()).filter(|until| *until > now).max())
}

/// Whether nobody knows yet what became of an effect.
pub fn is_in_doubt(state: EffectState) -> bool {
    matches!(state, EffectState::Executing | EffectState::Ambiguous)
}

/// The commands with which a person settles a step.
pub fn verdicts(common: &Common, run: &str, step: &str, until: Option<Timestamp>) -> Vec<Next> {
    // Settled already, and blocked because another run came to occupy its scope: there is only going on.
    if step.is_empty() {
        return vec![Next { command: common.command(&format!("runs resume {run}")), refused_until: None }];
    }
    let resolve = |verdict: &str, refused_until: Option<Timestamp>| {
        let step = quoted(step);
        Next { command: common.command(&format!("runs resolve {run} --step {step} {verdict}")), refused_until }
    };
    vec![
        resolve("--succeeded --output 'JSON' --because 'TEXT'", None),
        resolve("--failed --because 'TEXT'", until),
        resolve("--retry-with-new-key --because 'TEXT'", until),
    ]
}
