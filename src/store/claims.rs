//! Claims: who performs a run, at which generation, until when; and the ways back from waiting, blocked and failed.
//!
//! A claim raises the generation, which fences whoever held the run before (R14). Time comes in from the caller.

use std::time::Duration;

use serde_json::json;

use super::Store;
use super::attempts::{self, Claimant, ReservedAttempt};
use super::db::{Tx, args};
use super::events::{append, event};
use super::runs::{self, Occupant, RunRow, Standing};
use crate::clock::Timestamp;
use crate::journal::{Fence, JournalError, NewEvent, Reservation, events};
use crate::run::state::RunState;

/// Who wants to perform a run.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimRequest {
    /// The run.
    pub run: String,
    /// Its generation when it was read: what was decided from that reading holds only if nothing has moved since.
    pub expected_generation: i64,
    /// Who.
    pub holder: String,
    /// For how long, unless renewed.
    pub lease: Duration,
    /// The claimant's clock.
    pub at: Timestamp,
    /// The attempt to reserve with it. A waiting run becomes active with one, and stays waiting without.
    pub reservation: Option<Reservation>,
    /// Whether to resume a failed or blocked run (S5).
    pub reopen: bool,
}

/// What became of a claim. Only [`Claim::Claimed`] has written anything.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Claim {
    /// The run is the claimant's.
    Claimed {
        /// The generation to name in every write.
        generation: i64,
        /// When the lease ends unless it is renewed.
        lease_expires_at: Timestamp,
        /// The attempt, where one was asked for.
        reserved: Option<ReservedAttempt>,
    },
    /// Somebody else holds it.
    Held {
        /// Who.
        holder: String,
        /// Until when, unless renewed.
        expires_at: Timestamp,
    },
    /// The run has moved since it was read: read it again.
    Changed,
    /// A run in this state is not performed. A failed or blocked one can be reopened.
    NotClaimable {
        /// The state.
        state: RunState,
    },
    /// It cannot be resumed, because another run of its workflow is under way in its scope (S1).
    Occupied(Occupant),
    /// There is no such run.
    NotFound,
}

impl Store {
    /// Claims a run. When it returns [`Claim::Claimed`], the generation is raised, the lease taken, a resume done and
    /// the attempt reserved, durably together; on any other answer nothing was written.
    pub async fn claim(&self, request: ClaimRequest) -> Result<Claim, JournalError> {
        self.database.write("claiming a run", move |tx| Box::pin(async move { claim(tx, &request).await })).await
    }

    /// Renews a lease. When it returns, the new end, which it answers, is durable.
    ///
    /// # Errors
    /// [`JournalError::Fenced`] where the run has another generation, another holder, or has ended.
    pub async fn renew(
        &self,
        fence: &Fence,
        holder: &str,
        lease: Duration,
        at: Timestamp,
    ) -> Result<Timestamp, JournalError> {
        let (fence, holder) = (fence.clone(), holder.to_owned());
        self.database
            .write("renewing a lease", move |tx| {
                Box::pin(async move { renew(tx, &fence, &holder, at.plus(lease)).await })
            })
            .await
    }

    /// Lets go of a run, so that somebody else can claim it at once. When it returns, that is durable.
    ///
    /// # Errors
    /// [`JournalError::Fenced`] where the run has another generation.
    pub async fn release(&self, fence: &Fence) -> Result<(), JournalError> {
        let fence = fence.clone();
        self.database
            .write("releasing a run", move |tx| {
                Box::pin(async move {
                    let sql = "UPDATE @runs SET lease_holder = NULL, lease_expires_at = NULL \
                               WHERE id = $1 AND generation = $2";
                    match tx.execute(sql, args![&fence.run, fence.generation]).await? {
                        0 => Err(fenced(&fence)),
                        _ => Ok(()),
                    }
                })
            })
            .await
    }

    /// Goes on with a run that this holder has claimed: reserves the attempt, and makes a waiting run active. When it
    /// returns, both are durable, under the same generation.
    ///
    /// # Errors
    /// [`JournalError::Fenced`] where the run has another generation, is nobody's, or is neither active nor waiting.
    pub async fn wake(
        &self,
        fence: &Fence,
        reservation: Reservation,
        at: Timestamp,
    ) -> Result<ReservedAttempt, JournalError> {
        let fence = fence.clone();
        self.database
            .write("waking a run", move |tx| Box::pin(async move { wake(tx, &fence, &reservation, at).await }))
            .await
    }
}

/// The answer to a write that names a generation which has passed.
pub(super) fn fenced(fence: &Fence) -> JournalError {
    JournalError::Fenced { run: fence.run.clone(), generation: fence.generation }
}

async fn claim(tx: &mut Tx, request: &ClaimRequest) -> Result<Claim, JournalError> {
    let Some(run) = runs::find(tx, &request.run).await? else { return Ok(Claim::NotFound) };
    let reopens = match run.state {
        RunState::Active | RunState::Waiting => false,
        RunState::Blocked | RunState::Failed if request.reopen => true,
        state => return Ok(Claim::NotClaimable { state }),
    };
    if let Some((holder, expires_at)) = held_by_another(&run, &request.holder, request.at) {
        return Ok(Claim::Held { holder, expires_at });
    }
    if run.generation != request.expected_generation {
        return Ok(Claim::Changed);
    }
    if reopens && let Some(occupant) = runs::in_the_way(tx, &run).await? {
        return Ok(Claim::Occupied(occupant));
    }

    let (generation, lease_expires_at) = (run.generation + 1, request.at.plus(request.lease));
    tx.execute(
        "UPDATE @runs SET generation = $2, lease_holder = $3, lease_expires_at = $4, updated_at = $5 WHERE id = $1",
        args![&run.id, generation, &request.holder, lease_expires_at, request.at],
    )
    .await?;
    let data = json!({ "holder": request.holder, "generation": generation });
    let mut happened = vec![event(events::RUN_CLAIMED, None, data)];
    if reopens {
        reopen(tx, &run, request.at, &mut happened).await?;
    } else if run.state == RunState::Waiting && request.reservation.is_some() {
        activate(tx, &run, request.at, &mut happened).await?;
    }
    let mut reserved = None;
    if let Some(reservation) = &request.reservation {
        let claimant = Claimant {
            run: run.id.clone(),
            generation,
            holder: Some(request.holder.clone()),
            claim_expires_at: Some(lease_expires_at),
        };
        reserved = Some(attempts::reserve(tx, &claimant, reservation, request.at, &mut happened).await?);
    }
    append(tx, &run.id, request.at, happened).await?;
    Ok(Claim::Claimed { generation, lease_expires_at, reserved })
}

fn held_by_another(run: &RunRow, holder: &str, at: Timestamp) -> Option<(String, Timestamp)> {
    let (other, expires_at) = (run.lease_holder.as_deref()?, run.lease_expires_at?);
    (other != holder && expires_at > at).then(|| (other.to_owned(), expires_at))
}

/// A failed or blocked run is performed again from where it stands: its failed and blocked steps are pending once more,
/// with a fresh count of tries. Their inputs and summaries stay.
async fn reopen(tx: &mut Tx, run: &RunRow, at: Timestamp, happened: &mut Vec<NewEvent>) -> Result<(), JournalError> {
    let reopened = tx
        .fetch_all(
            "UPDATE @steps SET state = 'pending', notes = NULL, evidence = NULL, failure = NULL, dependency = NULL, \
             same_attempt = 0, tries = 0, completed_at = NULL \
             WHERE run_id = $1 AND state IN ('failed', 'blocked') RETURNING key",
            args![&run.id],
        )
        .await?;
    let steps = reopened.iter().map(|row| row.text("key")).collect::<Result<Vec<_>, _>>()?;
    runs::change(tx, &run.id, run.state, &Standing::only(RunState::Active), at).await?;
    happened.push(event(events::RUN_REOPENED, None, json!({ "was": run.state, "steps": steps })));
    Ok(())
}

async fn activate(tx: &mut Tx, run: &RunRow, at: Timestamp, happened: &mut Vec<NewEvent>) -> Result<(), JournalError> {
    runs::change(tx, &run.id, run.state, &Standing::only(RunState::Active), at).await?;
    happened.push(event(events::RUN_WOKEN, None, json!({})));
    Ok(())
}

async fn renew(tx: &mut Tx, fence: &Fence, holder: &str, expires_at: Timestamp) -> Result<Timestamp, JournalError> {
    let renewed = tx
        .execute(
            "UPDATE @runs SET lease_expires_at = $4 \
             WHERE id = $1 AND generation = $2 AND lease_holder = $3 AND state IN ('active', 'waiting')",
            args![&fence.run, fence.generation, holder, expires_at],
        )
        .await?;
    if renewed == 0 {
        return Err(fenced(fence));
    }
    tx.execute(
        "UPDATE @attempts SET claim_expires_at = $3 WHERE run_id = $1 AND generation = $2 AND state = 'running'",
        args![&fence.run, fence.generation, expires_at],
    )
    .await?;
    Ok(expires_at)
}

async fn wake(
    tx: &mut Tx,
    fence: &Fence,
    reservation: &Reservation,
    at: Timestamp,
) -> Result<ReservedAttempt, JournalError> {
    let run = runs::find(tx, &fence.run).await?;
    let held =
        |run: &RunRow| run.generation == fence.generation && run.state.is_under_way() && run.lease_holder.is_some();
    let run = run.filter(held).ok_or_else(|| fenced(fence))?;
    let mut happened = Vec::new();
    if run.state == RunState::Waiting {
        activate(tx, &run, at, &mut happened).await?;
    }
    let claimant = Claimant {
        run: run.id,
        generation: fence.generation,
        holder: run.lease_holder,
        claim_expires_at: run.lease_expires_at,
    };
    let reserved = attempts::reserve(tx, &claimant, reservation, at, &mut happened).await?;
    append(tx, &claimant.run, at, happened).await?;
    Ok(reserved)
}
