//! A neighbour's timer beside guests that spin: what an async runtime owes everybody else in the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tollgate::perform::perform;
use tollgate::sandbox::Sandbox;

use crate::guests::Action;
use crate::measure::{Pair, at};

const ROUNDS: usize = 5;
const TIMER: Duration = Duration::from_millis(2);
const WATCHED: Duration = Duration::from_secs(2);

pub async fn measure(sandbox: &Sandbox) {
    let policy = "version = 1\n[limits]\ncpu = \"300s\"\nwall = \"300s\"\n[app.probe]\nclasses = [\"pure\"]\n";
    let spin = Arc::new(Action::load(sandbox, "probe", "pure-op", json!({ "run": [{ "do": "spin" }] }), policy).await);
    let mut late = Pair::default();
    for _ in 0..ROUNDS {
        let alone = lateness_p99().await;
        let spinning: Vec<_> = (0..2)
            .map(|_| {
                let spin = spin.clone();
                tokio::spawn(async move { perform(&spin.gate, spin.reserved.clone()).await.map(|_| ()) })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let beside = lateness_p99().await;
        for task in &spinning {
            task.abort();
        }
        for task in spinning {
            assert!(task.await.is_err_and(|error| error.is_cancelled()), "it was still spinning");
        }
        late.round(beside, alone);
    }
    late.print("4 lateness of a 2 ms timer beside two spinning guests, p99", "ms", "no guests", "p99 < 10 ms");
}

/// In milliseconds.
async fn lateness_p99() -> f64 {
    let done = Arc::new(AtomicBool::new(false));
    let told = done.clone();
    // On a worker, like any other task of the process.
    let timer = tokio::spawn(async move {
        let mut late = Vec::new();
        while !told.load(Ordering::Relaxed) {
            let began = Instant::now();
            tokio::time::sleep(TIMER).await;
            late.push(began.elapsed().saturating_sub(TIMER).as_secs_f64() * 1e3);
        }
        late
    });
    let (wait, end) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        std::thread::sleep(WATCHED);
        let _ = wait.send(());
    });
    let _ = end.await;
    done.store(true, Ordering::Relaxed);
    let mut late = timer.await.expect("it does not panic");
    late.sort_by(f64::total_cmp);
    at(&late, 0.99)
}
