//! A pure action through the contract, beside a fresh store, an instance and one call of the same code.

use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use tollgate::perform::perform;
use tollgate::sandbox::Sandbox;
use tollgate::sandbox::floor::Bare;

use crate::guests::Action;
use crate::measure::{Pair, us};

const ROUNDS: usize = 15;
const CALLS: u32 = 300;

const CSV: &str = "number,customer,email,amount,currency,issued,due,paid\n\
    INV-1,Aldervane,finance@aldervane.example.org,120.50,EUR,2026-08-01,2026-08-31,\n\
    INV-2,Harbour,accounts@harbour.example.com,80.00,EUR,2026-08-01,2026-12-31,\n";

pub async fn measure(sandbox: &Sandbox) {
    let policy = "version = 1\n[app.probe]\nclasses = [\"pure\"]\n[app.invoices]\nclasses = [\"pure\"]\n";
    let nothing = json!({ "run": [] });
    let triage = json!({ "csv": CSV, "today": "2026-11-30" });
    // What `authorize` left in memory must not reach a pure action's result, so that one which has it takes two instances.
    for (guest, action, input, what, instances, floor) in [
        ("invoices", "triage", triage, "1a pure action, a CSV of two lines, per call", 1, "instantiate and call"),
        (
            "probe",
            "pure-op",
            nothing,
            "1b pure action that does nothing, and its authorize, per call",
            2,
            "both, twice",
        ),
    ] {
        let action = Arc::new(Action::load(sandbox, guest, action, input, policy).await);
        let bare = Arc::new(Bare::new(sandbox, &action.component).expect("it links"));
        let (mut one, mut two, mut scale) = (Pair::default(), Pair::default(), Pair::default());
        for round in 0..=ROUNDS {
            let (figure, floor) = (gated(&action, 1).await, barely(&action, &bare, 1, instances).await);
            let (figure_two, floor_two) = (gated(&action, 2).await, barely(&action, &bare, 2, instances).await);
            // The first round warms up.
            if round > 0 {
                one.round(figure, floor);
                two.round(figure_two, floor_two);
                scale.round(figure / figure_two, floor / floor_two);
            }
        }
        one.print(what, "µs", floor, "≤ 1.3");
        two.print("   the same, two tasks on two cores, per call of both", "µs", floor, "-");
        scale.print("   times as many calls with two tasks as with one", "×", floor, "-");
    }
}

/// Microseconds of wall time per call, `tasks` tasks together.
async fn gated(action: &Arc<Action>, tasks: u32) -> f64 {
    together(tasks, || {
        let action = action.clone();
        async move {
            for _ in 0..CALLS {
                let settled = perform(&action.gate, action.reserved.clone()).await.expect("it settles");
                assert!(settled.output().is_some(), "it completes: {:?}", settled.end());
            }
        }
    })
    .await
}

async fn barely(action: &Arc<Action>, bare: &Arc<Bare>, tasks: u32, instances: u32) -> f64 {
    together(tasks, || {
        let (action, bare) = (action.clone(), bare.clone());
        async move {
            let (name, context, input) = (action.reserved.action.action.clone(), action.context(), action.input());
            for _ in 0..CALLS * instances {
                bare.run(&name, &context, &input).await.expect("it succeeds");
            }
        }
    })
    .await
}

async fn together<F: Future<Output = ()> + Send + 'static>(tasks: u32, task: impl Fn() -> F) -> f64 {
    let began = Instant::now();
    let running: Vec<_> = (0..tasks).map(|_| tokio::spawn(task())).collect();
    for task in running {
        task.await.expect("it does not panic");
    }
    us(began.elapsed()) / f64::from(tasks * CALLS)
}
