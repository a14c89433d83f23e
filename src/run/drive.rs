//! The loop of one run: claim it, perform one step after the other, wait where it waits, let go of it.
//!
//! Every wait lets the run go and claims it again, so that there is one way into a run and not two. It performs no step
//! itself and decides nothing about effects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::resume_point::{After, Frozen, Position, position, unheard_before};
use super::state::{RunState, StepState};
use crate::clock::Timestamp;
use crate::component::ActionName;
use crate::effect::EffectState;
use crate::host::Host;
use crate::journal::{Commit, Committed, Dependency, DependencyKind, Failure, Fence, JournalError, StepEnd, Then};
use crate::json;
use crate::perform::{Reserved, Retry, perform};
use crate::store::{Claim, ClaimRequest, Occupant, ReservedAttempt, Snapshot, StepRow, StoreError};
use crate::worker::lease::Lease;
use crate::workflow::{Definition, DefinitionError, Progress, Step};

/// How long to sleep at most before looking at a waiting run again: the other end of a dependency, or another process, may
/// have moved it.
const POLL: Duration = Duration::from_millis(500);

/// How a run is driven.
#[derive(Debug, Clone)]
pub struct DriveOptions {
    /// Who claims it: what others see who want it too.
    pub holder: String,
    /// How long a claim lasts unless it is renewed; it is renewed three times as often.
    pub lease: Duration,
    /// How long to wait in all, for backoff, timers and other holders; zero waits for nothing.
    pub wait: Duration,
    /// Whether to reopen a run that failed, or that needs a person (R8: its effect is asked once more).
    pub reopen: bool,
}

impl DriveOptions {
    /// As `holder`, with a lease of 15 seconds, waiting up to ten minutes, reopening nothing.
    pub fn new(holder: &str) -> DriveOptions {
        DriveOptions {
            holder: holder.to_owned(),
            lease: Duration::from_secs(15),
            wait: Duration::from_secs(600),
            reopen: false,
        }
    }
}

/// Where driving a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ended {
    /// It completed.
    Completed {
        /// The canonical text of its outputs.
        outputs: String,
    },
    /// It failed.
    Failed {
        /// Why.
        failure: Failure,
    },
    /// It needs a person.
    Blocked {
        /// The step.
        step: String,
        /// Why.
        failure: Option<Failure>,
    },
    /// It waits for longer than it was to be waited for.
    Waiting {
        /// When it goes on; `None`: when its dependency is satisfied.
        until: Option<Timestamp>,
        /// What it waits for.
        dependency: Option<Dependency>,
        /// Why its last try failed, where it waits to be tried again.
        failure: Option<Failure>,
    },
    /// Somebody else holds it for longer than it was to be waited for.
    Held {
        /// Who.
        holder: String,
        /// Until when, unless renewed.
        expires_at: Timestamp,
    },
    /// It was abandoned.
    Abandoned,
}

/// Why a run could not be driven.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// There is no such run.
    #[error("there is no run {0}")]
    NoSuchRun(String),
    /// It is over, and only a failed run can be resumed.
    #[error("run {run} is {state}; only a failed, blocked, waiting or active run can be resumed")]
    Over {
        /// The run.
        run: String,
        /// How it ended.
        state: RunState,
    },
    /// Another run of its workflow is under way in its scope.
    #[error("run {} of {} occupies scope `{}`: resume or abandon that one first", .0.run, .0.workflow_ref, .0.scope)]
    Occupied(Box<Occupant>),
    /// Its definition cannot be used.
    #[error("run {run}: {source}")]
    Definition {
        /// The run.
        run: String,
        /// Why.
        source: DefinitionError,
    },
    /// It was claimed by somebody else, abandoned or settled meanwhile. What was performed until then is in the journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What looking at a run led to.
enum Turn {
    /// It stands so.
    Ended(Ended),
    /// Somebody moved it meanwhile: look again.
    Moved,
    /// It was performed until it needed a person: look at what for.
    Blocked,
    /// It was performed until it had to wait, until this moment or for what its step waits for.
    Parked(Option<Timestamp>),
}

impl Host {
    /// Claims a run and performs it until it ends, needs a person, or waits for longer than `options.wait`.
    ///
    /// # Errors
    /// [`DriveError`]. What was performed until then is durable; driving the run again recovers from there.
    pub async fn drive(&self, run: &str, options: DriveOptions) -> Result<Ended, DriveError> {
        let give_up_at = self.ambient.clock.elapsed().saturating_add(options.wait);
        let mut options = options;
        // What comes to its end while somebody else holds it is not reopened: nobody has seen that end yet.
        let state = self.store.run(run).await?.ok_or_else(|| DriveError::NoSuchRun(run.to_owned()))?.state;
        options.reopen &= !matches!(state, RunState::Active | RunState::Waiting);
        loop {
            let turn = self.turn(run, &options).await?;
            // Of a run that was just parked the store says what for.
            let (look_again_at, ended) = match turn {
                Turn::Ended(Ended::Waiting { until, dependency, failure }) => {
                    (until, Some(Ended::Waiting { until, dependency, failure }))
                }
                Turn::Ended(Ended::Held { holder, expires_at }) => {
                    self.watch.held_by(&holder, expires_at);
                    (Some(expires_at), Some(Ended::Held { holder, expires_at }))
                }
                Turn::Ended(ended) => return Ok(ended),
                Turn::Moved => continue,
                // A run is reopened once: what it comes to then stands.
                Turn::Blocked => {
                    options.reopen = false;
                    continue;
                }
                Turn::Parked(until) => {
                    options.reopen = false;
                    if let Some(until) = until {
                        self.watch.waits(until);
                    }
                    // A moment at least where what it waits for is there already: an action that asks for that again and
                    // again must not fill the store.
                    let now = self.ambient.clock.now();
                    (Some(until.filter(|until| *until > now).unwrap_or_else(|| now.plus(POLL))), None)
                }
            };
            let now = self.ambient.clock.now();
            let left = give_up_at.saturating_sub(self.ambient.clock.elapsed());
            let wanted = look_again_at.map_or(POLL, |at| at.since(now));
            // What nothing but somebody else's act can end is not waited for to the last second, but polled.
            if left.is_zero() || wanted > left && !matches!(ended, Some(Ended::Held { .. })) {
                return match ended {
                    Some(ended) => Ok(ended),
                    None => self.parked(run).await,
                };
            }
            tokio::time::sleep(wanted.min(left).min(POLL).max(Duration::from_millis(1))).await;
        }
    }

    /// How a run stands that was parked a moment ago.
    async fn parked(&self, run: &str) -> Result<Ended, DriveError> {
        let snapshot = self.store.snapshot(run).await?.ok_or_else(|| DriveError::NoSuchRun(run.to_owned()))?;
        if let Some(ended) = standing(&snapshot, false)? {
            return Ok(ended);
        }
        let row = snapshot.steps.iter().find(|row| row.state == StepState::Waiting);
        let (dependency, failure) = row.map_or((None, None), |row| (row.dependency.clone(), row.failure.clone()));
        Ok(Ended::Waiting { until: dependency.as_ref().and_then(|dependency| dependency.due), dependency, failure })
    }

    /// Reads the run, claims it if there is something to do now, and performs it from there.
    async fn turn(&self, run: &str, options: &DriveOptions) -> Result<Turn, DriveError> {
        let snapshot = self.store.snapshot(run).await?.ok_or_else(|| DriveError::NoSuchRun(run.to_owned()))?;
        if let Some(ended) = standing(&snapshot, options.reopen)? {
            return Ok(Turn::Ended(ended));
        }
        let definition = |source| DriveError::Definition { run: run.to_owned(), source };
        let frozen = self.frozen(&snapshot).await?.map_err(definition)?;
        let Position { progress, next } = position(&frozen.definition, &snapshot).map_err(definition)?;
        let row = snapshot.steps.get(next);

        if let Some(waiting) = self.still_waits(row).await? {
            return Ok(Turn::Ended(waiting));
        }
        // What the step was reserved with is what every later attempt gets (R2); otherwise it is evaluated now.
        let then = match row.and_then(|row| row.input.clone().map(|input| (row, input))) {
            Some((row, input)) => Then::Reserve { skipped: Vec::new(), next: frozen.reservation(&row.key, input) },
            None => frozen.what_next(&progress, next),
        };
        // A reservation rides on the claim; whatever else comes next is a commit of its own.
        let reservation = match &then {
            Then::Reserve { skipped, next } if skipped.is_empty() => Some(next.clone()),
            _ => None,
        };
        let (asked_at, now) = (self.ambient.clock.elapsed(), self.ambient.clock.now());
        let claim = self
            .store
            .claim(ClaimRequest {
                run: run.to_owned(),
                expected_generation: snapshot.run.generation,
                holder: options.holder.clone(),
                lease: options.lease,
                at: now,
                reservation: reservation.clone(),
                reopen: options.reopen,
            })
            .await?;
        let (generation, reserved) = match claim {
            Claim::Claimed { generation, reserved, .. } => (generation, reserved),
            Claim::Held { holder, expires_at } => return Ok(Turn::Ended(Ended::Held { holder, expires_at })),
            Claim::Changed => return Ok(Turn::Moved),
            Claim::NotClaimable { state } => return Err(DriveError::Over { run: run.to_owned(), state }),
            Claim::Occupied(occupant) => return Err(DriveError::Occupied(Box::new(occupant))),
            Claim::NotFound => return Err(DriveError::NoSuchRun(run.to_owned())),
        };
        crate::crash::point("claimed");
        self.watch.claimed(run, generation);
        let claimed = Claimed {
            host: self,
            frozen: Arc::new(frozen),
            snapshot: Arc::new(snapshot),
            fence: Fence { run: run.to_owned(), generation },
            lease: Arc::new(Lease::taken(asked_at, options.lease)),
        };
        let renewing = claimed.keep_lease(options);
        let turn = claimed.perform_from(progress, next, then, reserved).await;
        drop(renewing);
        claimed.release().await;
        turn
    }

    /// What does not change while the run is performed.
    async fn frozen(&self, snapshot: &Snapshot) -> Result<Result<Frozen, DefinitionError>, StoreError> {
        let definition = match Definition::from_json(&snapshot.definition) {
            Ok(definition) => definition,
            Err(error) => return Ok(Err(error)),
        };
        let mut found = BTreeMap::new();
        for (name, pinned) in &definition.actions {
            let Ok(ActionName { action, .. }) = name.parse() else { continue };
            if let Some(descriptor) = self.registry.descriptor(&pinned.digest, &action).await? {
                found.insert(name.clone(), Arc::new(descriptor));
            }
        }
        Ok(Ok(Frozen { definition, descriptors: found, ids: self.ambient.ids.clone() }))
    }

    /// Whether the step's dependency is not satisfied yet.
    async fn still_waits(&self, row: Option<&StepRow>) -> Result<Option<Ended>, StoreError> {
        let Some(row) = row.filter(|row| row.state == StepState::Waiting) else { return Ok(None) };
        let Some(dependency) = &row.dependency else { return Ok(None) };
        let satisfied = match dependency.kind {
            DependencyKind::Timer => dependency.due.is_none_or(|due| due <= self.ambient.clock.now()),
            // A run that does not exist may yet be published; a person sees what is waited for.
            DependencyKind::Run => self.store.run(&dependency.key).await?.is_some_and(|run| run.state.is_terminal()),
            // Nobody can send one yet.
            DependencyKind::Signal => false,
        };
        Ok((!satisfied).then(|| Ended::Waiting {
            until: dependency.due,
            dependency: Some(dependency.clone()),
            failure: row.failure.clone(),
        }))
    }
}

/// Where the run stands, if there is nothing to perform.
fn standing(snapshot: &Snapshot, reopen: bool) -> Result<Option<Ended>, DriveError> {
    let run = &snapshot.run;
    let unknown = || Failure::permanent(crate::journal::codes::HOST_ERROR, "the run's failure was not recorded");
    Ok(match run.state {
        RunState::Active | RunState::Waiting => None,
        RunState::Failed | RunState::Blocked if reopen => None,
        RunState::Completed | RunState::Abandoned if reopen => {
            return Err(DriveError::Over { run: run.id.clone(), state: run.state });
        }
        RunState::Completed => {
            Some(Ended::Completed { outputs: run.outputs.clone().unwrap_or_else(|| "{}".to_owned()) })
        }
        RunState::Abandoned => Some(Ended::Abandoned),
        RunState::Failed => Some(Ended::Failed { failure: run.failure.clone().unwrap_or_else(unknown) }),
        RunState::Blocked => {
            let step = snapshot.steps.iter().find(|step| step.state == StepState::Blocked);
            Some(Ended::Blocked {
                step: step.map(|step| step.key.clone()).unwrap_or_default(),
                failure: step.and_then(|step| step.failure.clone()),
            })
        }
    })
}

/// A claimed run.
struct Claimed<'a> {
    host: &'a Host,
    frozen: Arc<Frozen>,
    snapshot: Arc<Snapshot>,
    fence: Fence,
    lease: Arc<Lease>,
}

impl Claimed<'_> {
    /// Performs one step after the other.
    async fn perform_from(
        &self,
        mut progress: Progress,
        mut index: usize,
        then: Then,
        reserved: Option<ReservedAttempt>,
    ) -> Result<Turn, DriveError> {
        let mut attempt = match reserved {
            Some(reserved) => self.first(reserved),
            None => {
                let now = self.host.ambient.clock.now();
                let mut commit = Commit::new(self.fence.clone(), now);
                commit.then = Some(then.clone());
                match self.host.journal.commit(commit).await? {
                    Committed::Done => {}
                    Committed::Conflict | Committed::Exceeded(_) => {
                        return Err(DriveError::Journal(JournalError::Inconsistent {
                            run: self.fence.run.clone(),
                            what: "a commit that only moves the run on was not done".to_owned(),
                        }));
                    }
                }
                crate::crash::point("reserved");
                match self.follow(then, now, &mut progress, &mut index) {
                    Followed::Attempt(attempt) => attempt,
                    Followed::Turn(turn) => return Ok(turn),
                }
            }
        };
        let gate = self.host.gate();
        loop {
            let Some(step) = self.frozen.definition.steps.get(index) else {
                return Ok(Turn::Moved);
            };
            let reserved = match self.reserved(step, index, &progress, attempt) {
                Ok(reserved) => reserved,
                Err(failure) => return self.fail(step, failure).await,
            };
            self.host.watch.step_begins(&step.id, &step.action, reserved.attempt);
            let settled = perform(&gate, reserved).await?;
            self.host.watch.step_settled(&step.id, &settled);
            if let Some(output) = settled.output() {
                progress.record(step, serde_json::from_str(output).unwrap_or_default());
                index += 1;
            }
            match self.follow(settled.then, settled.at, &mut progress, &mut index) {
                Followed::Attempt(next) => attempt = next,
                Followed::Turn(turn) => return Ok(turn),
            }
        }
    }

    /// What was committed about the run, carried on in memory.
    fn follow(&self, then: Then, at: Timestamp, progress: &mut Progress, index: &mut usize) -> Followed {
        let mut skip = |skipped: &[crate::journal::Skipped]| {
            for skipped in skipped {
                if let Some(step) = self.frozen.definition.steps.iter().find(|step| step.id == skipped.step) {
                    progress.record(step, Value::Null);
                    *index += 1;
                }
            }
        };
        match then {
            Then::Reserve { skipped, next } => {
                skip(&skipped);
                let input_hash = json::hash(&serde_json::from_str(&next.input).unwrap_or_default());
                Followed::Attempt(OpenAttempt {
                    number: 1,
                    dispatch: next.dispatch,
                    claim_token: next.claim_token,
                    input: next.input,
                    input_hash,
                    reserved_at: at,
                    tries: 0,
                    key_retries: 0,
                    begun_at: None,
                    unheard_before: false,
                })
            }
            Then::Complete { outputs, .. } => Followed::Turn(Turn::Ended(Ended::Completed { outputs })),
            Then::Fail { failure, .. } => Followed::Turn(Turn::Ended(Ended::Failed { failure })),
            // The store says which step, and why.
            Then::Block => Followed::Turn(Turn::Blocked),
            Then::Wait { until } => Followed::Turn(Turn::Parked(until)),
        }
    }

    /// The attempt that the claim reserved.
    fn first(&self, reserved: ReservedAttempt) -> OpenAttempt {
        OpenAttempt {
            unheard_before: unheard_before(&self.snapshot, &reserved.step),
            number: reserved.number,
            dispatch: reserved.dispatch,
            claim_token: reserved.claim_token,
            input: reserved.input,
            input_hash: reserved.input_hash,
            reserved_at: reserved.reserved_at,
            tries: reserved.tries,
            key_retries: reserved.key_retries,
            begun_at: reserved.begun_at,
        }
    }

    fn reserved(
        &self,
        step: &Step,
        index: usize,
        progress: &Progress,
        attempt: OpenAttempt,
    ) -> Result<Reserved, Failure> {
        let broken = |what: String| Failure::permanent(crate::journal::codes::HOST_ERROR, what);
        let action: ActionName = step.action.parse().map_err(broken)?;
        let pinned = self.frozen.definition.actions.get(&step.action);
        let pinned = pinned.ok_or_else(|| broken(format!("the definition pins no component for {action}")))?;
        let descriptor = self.frozen.descriptor(step).cloned();
        let descriptor = descriptor
            .ok_or_else(|| broken(format!("the store has no component {} with action {action}", pinned.digest)))?;
        let input = serde_json::from_str(&attempt.input).map_err(|error| broken(format!("its input: {error}")))?;
        let run = &self.snapshot.run;
        let text = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
        let invocation = json!({
            "workflow": run.workflow_ref,
            "run": run.id,
            "params": text(&run.params),
            "labels": text(&run.labels),
        });
        Ok(Reserved {
            fence: self.fence.clone(),
            step: step.id.clone(),
            action,
            descriptor,
            component: pinned.digest.clone(),
            with: Arc::new(step.with.clone()),
            input: Arc::new(input),
            input_hash: attempt.input_hash,
            save_as: step.save_as.clone(),
            retry: Retry {
                attempts: step.retry.attempts,
                backoff: step.retry.backoff,
                max_backoff: step.retry.max_backoff,
            },
            timeout: step.timeout,
            attempt: attempt.number,
            dispatch: attempt.dispatch,
            claim_token: attempt.claim_token,
            reserved_at: attempt.reserved_at,
            tries: attempt.tries,
            key_retries: attempt.key_retries,
            begun_at: attempt.begun_at,
            unheard_before: attempt.unheard_before,
            invocation: json::canonical(&invocation),
            variables: json::canonical(&json!(progress.variables)),
            lease: self.lease.clone(),
            continuation: Arc::new(After { frozen: self.frozen.clone(), progress: progress.clone(), index }),
        })
    }

    /// Fails a step that cannot even be put together: its component is gone from the store.
    async fn fail(&self, step: &Step, failure: Failure) -> Result<Turn, DriveError> {
        let mut commit = Commit::new(self.fence.clone(), self.host.ambient.clock.now());
        // R8: a run whose effect is in doubt is never failed.
        let effects = self.host.store.effects(&self.fence.run).await?;
        let in_doubt = effects.iter().any(|effect| {
            effect.step == step.id && matches!(effect.state, EffectState::Executing | EffectState::Ambiguous)
        });
        if in_doubt {
            commit.step = Some((step.id.clone(), StepEnd::Blocked { failure }));
            commit.then = Some(Then::Block);
            let _ = self.host.journal.commit(commit).await?;
            return Ok(Turn::Blocked);
        }
        commit.then = Some(Then::Fail { skipped: Vec::new(), step: Some(step.id.clone()), failure: failure.clone() });
        let _ = self.host.journal.commit(commit).await?;
        Ok(Turn::Ended(Ended::Failed { failure }))
    }

    /// Renews the lease three times as often as it would end, until the value is dropped.
    fn keep_lease(&self, options: &DriveOptions) -> Renewing {
        let (store, ambient) = (self.host.store.clone(), self.host.ambient.clone());
        let (fence, lease, options) = (self.fence.clone(), self.lease.clone(), options.clone());
        Renewing(tokio::spawn(async move {
            loop {
                tokio::time::sleep(options.lease / 3).await;
                let (asked_at, now) = (ambient.clock.elapsed(), ambient.clock.now());
                match store.renew(&fence, &options.holder, options.lease, now).await {
                    Ok(_) => lease.renewed(asked_at, options.lease),
                    Err(JournalError::Fenced { .. }) => {
                        lease.lose();
                        return;
                    }
                    // The lease runs out by itself if this goes on.
                    Err(error) => tracing::warn!(run = fence.run, %error, "a lease was not renewed"),
                }
            }
        }))
    }

    /// Lets the run go, so that whoever wants it next need not wait for the lease to end.
    async fn release(&self) {
        match self.host.store.release(&self.fence).await {
            Ok(()) | Err(JournalError::Fenced { .. }) => {}
            Err(error) => {
                tracing::warn!(run = self.fence.run, %error, "a run was not let go; its lease ends by itself")
            }
        }
    }
}

enum Followed {
    Attempt(OpenAttempt),
    Turn(Turn),
}

/// A reserved attempt, wherever its reservation rode.
struct OpenAttempt {
    number: u32,
    dispatch: String,
    claim_token: String,
    input: String,
    input_hash: String,
    reserved_at: Timestamp,
    tries: u32,
    key_retries: u32,
    begun_at: Option<Timestamp>,
    unheard_before: bool,
}

/// Stops renewing when it is dropped.
struct Renewing(JoinHandle<()>);

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.abort();
    }
}
