//! Budgets: caps and counts of a root, and the charges against it (R6, B1 to B5).
//!
//! The arithmetic is [`crate::budget`]'s; here it happens inside the one write transaction that also records it, which
//! is what keeps two workers from both spending the last of it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::db::{Row, Tx, args};
use super::events::event;
use super::{Store, StoreError};
use crate::budget::{self, Amount, Exceeded};
use crate::clock::Timestamp;
use crate::journal::{Charge, ChargeKey, JournalError, NewEvent, events};

/// What a root may spend, what it has spent, and on what.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BudgetView {
    /// What each dimension is capped at; a dimension that is not named is uncapped and still counted (B2).
    pub caps: BTreeMap<String, Amount>,
    /// What is charged now, refunds taken off.
    pub used: BTreeMap<String, Amount>,
    /// Every charge, oldest first.
    pub charges: Vec<ChargeRow>,
}

/// One charge on one dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChargeRow {
    /// The run that was charged for: the root, or a run under it.
    pub run: String,
    /// Its step.
    pub step: String,
    /// Under which it was charged.
    pub key: ChargeKey,
    /// What is counted.
    pub dimension: String,
    /// How much.
    pub amount: Amount,
    /// When.
    pub charged_at: Timestamp,
    /// When it was given back.
    pub refunded_at: Option<Timestamp>,
}

impl Store {
    /// The budget of the run tree whose root is `root`. Empty where there is no such root. Reads only.
    pub async fn budget(&self, root: &str) -> Result<BudgetView, StoreError> {
        let mut tx = self.database.read("reading a budget").await?;
        let caps = amounts(&mut tx, CAPS, root).await?;
        let used = amounts(&mut tx, USED, root).await?;
        let sql = "SELECT run_id, step, dispatch, generation, request, dimension, amount, charged_at, refunded_at \
                   FROM @charges WHERE root_id = $1 ORDER BY charged_at, run_id, dispatch, generation, request, dimension";
        let charges = tx.fetch_all(sql, args![root]).await?.iter().map(charge_row).collect::<Result<_, _>>()?;
        Ok(BudgetView { caps, used, charges })
    }
}

const CAPS: &str = "SELECT dimension, cap AS amount FROM @budget_caps WHERE root_id = $1";
const USED: &str = "SELECT dimension, used AS amount FROM @budget_used WHERE root_id = $1";

async fn amounts(tx: &mut Tx, sql: &str, root: &str) -> Result<BTreeMap<String, Amount>, StoreError> {
    let rows = tx.fetch_all(sql, args![root]).await?;
    rows.iter().map(|row| Ok((row.text("dimension")?, amount(row)?))).collect()
}

fn amount(row: &Row) -> Result<Amount, StoreError> {
    let micros = row.int("amount")?;
    Amount::from_micros(micros).ok_or_else(|| row.corrupt("amount", format!("{micros} is negative")))
}

fn charge_row(row: &Row) -> Result<ChargeRow, StoreError> {
    let request: u32 = row.count("request")?;
    Ok(ChargeRow {
        run: row.text("run_id")?,
        step: row.text("step")?,
        key: ChargeKey {
            dispatch: row.text("dispatch")?,
            generation: row.int("generation")?,
            request: (request != PLANNED).then_some(request),
        },
        dimension: row.text("dimension")?,
        amount: amount(row)?,
        charged_at: row.time("charged_at")?,
        refunded_at: row.opt_time("refunded_at")?,
    })
}

/// The number of the request of a charge that `plan` announced; requests count from 1.
const PLANNED: u32 = 0;

/// The root of a run's tree, found by its parents. A parent whose row is gone is an error: whoever lost its root is not
/// given a fresh budget (B4).
async fn root_of(tx: &mut Tx, run: &str) -> Result<String, JournalError> {
    let inconsistent = |what: String| JournalError::Inconsistent { run: run.to_owned(), what };
    let mut seen = BTreeSet::new();
    let mut at = run.to_owned();
    loop {
        let row = tx.fetch_optional("SELECT parent_id FROM @runs WHERE id = $1", args![&at]).await?;
        let row = row.ok_or_else(|| inconsistent(format!("its ancestor {at} is gone, and with it the budget")))?;
        let Some(parent) = row.opt_text("parent_id")? else { return Ok(at) };
        if !seen.insert(at) {
            return Err(inconsistent(format!(
                "its ancestors form a circle through {parent}, so that no root has a budget"
            )));
        }
        at = parent;
    }
}

/// Whether everything under this key is charged, and not given back.
pub(super) async fn is_charged(tx: &mut Tx, run: &str, key: &ChargeKey) -> Result<bool, StoreError> {
    let sql = "SELECT 1 AS found FROM @charges \
               WHERE run_id = $1 AND dispatch = $2 AND generation = $3 AND request = $4 AND refunded_at IS NULL LIMIT 1";
    let args = args![run, &key.dispatch, key.generation, i64::from(key.request.unwrap_or(PLANNED))];
    Ok(tx.fetch_optional(sql, args).await?.is_some())
}

/// Charges all of it or none. What is charged under its key already is not charged again (B5).
///
/// The inner result is the budget's answer; where it is `Err`, nothing was written.
pub(super) async fn charge(
    tx: &mut Tx,
    run: &str,
    charge: &Charge,
    at: Timestamp,
    happened: &mut Vec<NewEvent>,
) -> Result<Result<(), Exceeded>, JournalError> {
    let Charge { key, step, items } = charge;
    if items.is_empty() || is_charged(tx, run, key).await? {
        return Ok(Ok(()));
    }
    let root = root_of(tx, run).await?;
    let caps = amounts(tx, CAPS, &root).await?;
    let used = amounts(tx, USED, &root).await?;
    if let Err(exceeded) = budget::check(&caps, &used, items) {
        return Ok(Err(exceeded));
    }
    let out_of_range = || JournalError::Inconsistent {
        run: run.to_owned(),
        what: "its charge is past the range that its budget allowed".to_owned(),
    };
    let mut sums: BTreeMap<&str, Amount> = BTreeMap::new();
    for item in items {
        let sum = sums.entry(&item.dimension).or_default();
        *sum = sum.checked_add(item.amount).ok_or_else(out_of_range)?;
    }
    for (dimension, amount) in &sums {
        let before = used.get(*dimension).copied().unwrap_or_default();
        set_used(tx, &root, dimension, before.checked_add(*amount).ok_or_else(out_of_range)?).await?;
        tx.execute(
            "INSERT INTO @charges (root_id, run_id, step, dispatch, generation, request, dimension, amount, charged_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
             ON CONFLICT (run_id, dispatch, generation, request, dimension) \
             DO UPDATE SET amount = excluded.amount, charged_at = excluded.charged_at, refunded_at = NULL",
            args![
                &root,
                run,
                step,
                &key.dispatch,
                key.generation,
                i64::from(key.request.unwrap_or(PLANNED)),
                *dimension,
                amount.micros(),
                at,
            ],
        )
        .await?;
    }
    let mut data = json!({ "dispatch": key.dispatch, "generation": key.generation, "amounts": shown(&sums) });
    if let (Some(request), Value::Object(fields)) = (key.request, &mut data) {
        fields.insert("request".to_owned(), request.into());
    }
    happened.push(event(events::BUDGET_CHARGED, Some(step), data));
    Ok(Ok(()))
}

/// Gives back every charge of a dispatch at a generation, overdraws included, that was not given back before.
pub(super) async fn refund(
    tx: &mut Tx,
    run: &str,
    key: &ChargeKey,
    at: Timestamp,
    happened: &mut Vec<NewEvent>,
) -> Result<(), JournalError> {
    let rows = tx
        .fetch_all(
            "UPDATE @charges SET refunded_at = $4 \
             WHERE run_id = $1 AND dispatch = $2 AND generation = $3 AND refunded_at IS NULL \
             RETURNING root_id, step, dimension, amount",
            args![run, &key.dispatch, key.generation, at],
        )
        .await?;
    let Some(first) = rows.first() else { return Ok(()) };
    let (root, step) = (first.text("root_id")?, first.text("step")?);
    let used = amounts(tx, USED, &root).await?;
    let mut sums: BTreeMap<String, Amount> = BTreeMap::new();
    let wrong = |dimension: &str| JournalError::Inconsistent {
        run: run.to_owned(),
        what: format!("more {dimension} would be given back than were charged"),
    };
    for row in &rows {
        let dimension = row.text("dimension")?;
        let sum = sums.entry(dimension.clone()).or_default();
        *sum = sum.checked_add(amount(row)?).ok_or_else(|| wrong(&dimension))?;
    }
    for (dimension, sum) in &sums {
        let before = used.get(dimension).copied().unwrap_or_default();
        set_used(tx, &root, dimension, before.checked_sub(*sum).ok_or_else(|| wrong(dimension))?).await?;
    }
    let data = json!({ "dispatch": key.dispatch, "generation": key.generation, "amounts": shown(&sums) });
    happened.push(event(events::BUDGET_REFUNDED, Some(&step), data));
    Ok(())
}

async fn set_used(tx: &mut Tx, root: &str, dimension: &str, used: Amount) -> Result<(), StoreError> {
    tx.execute(
        "INSERT INTO @budget_used (root_id, dimension, used) VALUES ($1, $2, $3) \
         ON CONFLICT (root_id, dimension) DO UPDATE SET used = excluded.used",
        args![root, dimension, used.micros()],
    )
    .await?;
    Ok(())
}

/// Amounts as decimal text, never as floats (B1).
fn shown<D: AsRef<str>>(amounts: &BTreeMap<D, Amount>) -> Value {
    amounts.iter().map(|(dimension, amount)| (dimension.as_ref().to_owned(), Value::from(amount.to_string()))).collect()
}

/// What a root may spend.
pub(super) async fn caps(tx: &mut Tx, root: &str) -> Result<BTreeMap<String, Amount>, StoreError> {
    amounts(tx, CAPS, root).await
}

/// What a new root may spend.
pub(super) async fn set_caps(tx: &mut Tx, root: &str, caps: &BTreeMap<String, Amount>) -> Result<(), StoreError> {
    for (dimension, cap) in caps {
        tx.execute(
            "INSERT INTO @budget_caps (root_id, dimension, cap) VALUES ($1, $2, $3)",
            args![root, dimension, cap.micros()],
        )
        .await?;
    }
    Ok(())
}
