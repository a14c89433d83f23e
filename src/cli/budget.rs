//! `budget show`.

use std::collections::BTreeSet;

use clap::Subcommand;
use serde_json::{Value, json};

use tollgate::store::BudgetView;

use super::answer::Answer;
use super::context::Common;
use super::exit::CliError;
use super::json as shapes;
use super::text::{clean, section, table};

/// What can be done with budgets.
#[derive(Debug, Subcommand)]
pub enum Budget {
    /// Show what a run may spend, what it has spent, and on what
    Show {
        /// The run: its id, or the beginning of it
        run: String,
    },
}

/// Does it.
pub async fn perform(common: &Common, command: Budget) -> Result<Answer, CliError> {
    let Budget::Show { run } = command;
    let store = common.existing_store().await?;
    let run = store.resolve_prefix(&run).await?;
    let found = store.run(&run).await?;
    let root = found.map_or_else(|| run.clone(), |run| run.root_id);
    let budget = store.budget(&root).await?;
    let charges = table(
        &["step", "dimension", "amount", "charged", "given back"],
        budget.charges.iter().map(|charge| {
            vec![
                charge.step.clone(),
                charge.dimension.clone(),
                charge.amount.to_string(),
                charge.charged_at.to_string(),
                charge.refunded_at.map_or_else(String::new, |at| at.to_string()),
            ]
        }),
    );
    let of = if root == run { String::new() } else { format!(" (of its root {root})") };
    let mut text = format!("budget of run {}{}\n\n", clean(&run), clean(&of));
    let dimensions = dimensions_table(&budget);
    text.push_str(if dimensions.is_empty() { "no caps, and nothing charged\n" } else { &dimensions });
    text.push_str(&section("charges", &charges));
    let charges: Vec<Value> = budget
        .charges
        .iter()
        .map(|charge| {
            json!({
                "run": charge.run,
                "step": charge.step,
                "dimension": charge.dimension,
                "amount": charge.amount,
                "dispatch": charge.key.dispatch,
                "generation": charge.key.generation,
                "request": charge.key.request,
                "charged_at": shapes::time(charge.charged_at),
                "refunded_at": shapes::opt_time(charge.refunded_at),
            })
        })
        .collect();
    let json = json!({ "run": run, "root": root, "dimensions": dimensions_json(&budget), "charges": charges });
    Ok(Answer::done(text, json))
}

fn dimensions(budget: &BudgetView) -> impl Iterator<Item = (&String, [Option<String>; 3])> {
    let names: BTreeSet<&String> = budget.caps.keys().chain(budget.used.keys()).collect();
    names.into_iter().map(|name| {
        let (cap, used) = (budget.caps.get(name).copied(), budget.used.get(name).copied().unwrap_or_default());
        // A cap that a retry lowered below what is used leaves nothing.
        let left = cap.map(|cap| cap.checked_sub(used).unwrap_or_default());
        (name, [cap.map(|cap| cap.to_string()), Some(used.to_string()), left.map(|left| left.to_string())])
    })
}

/// Caps, use and what is left.
pub fn dimensions_table(budget: &BudgetView) -> String {
    table(
        &["dimension", "cap", "used", "left"],
        dimensions(budget).map(|(name, [cap, used, left])| {
            let none = || "none".to_owned();
            vec![
                name.clone(),
                cap.unwrap_or_else(none),
                used.unwrap_or_default(),
                left.unwrap_or_else(|| "-".to_owned()),
            ]
        }),
    )
}

/// Caps, use and what is left.
pub fn dimensions_json(budget: &BudgetView) -> Vec<Value> {
    dimensions(budget)
        .map(|(name, [cap, used, left])| json!({ "dimension": name, "cap": cap, "used": used, "left": left }))
        .collect()
}
