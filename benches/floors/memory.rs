//! Memory at its peak with as many guests alive as the engine has places for.

use std::sync::Arc;

use serde_json::json;
use tollgate::perform::perform;
use tollgate::sandbox::Sandbox;
use tollgate::sandbox::floor::Bare;

use crate::guests::Action;
use crate::measure::Pair;

const ROUNDS: usize = 3;
const GUESTS: u32 = 64;

pub async fn measure(sandbox: &Sandbox) {
    let policy = "version = 1\n[app.probe]\nclasses = [\"pure\"]\n";
    let sleep = json!({ "run": [{ "do": "sleep", "ms": 1_000 }] });
    let action = Arc::new(Action::load(sandbox, "probe", "pure-op", sleep, policy).await);
    let bare = Arc::new(Bare::new(sandbox, &action.component).expect("it links"));
    let before = status("VmRSS:");
    let (mut peak, mut each) = (Pair::default(), Pair::default());
    for _ in 0..ROUNDS {
        let floor = peak_with({
            let (action, bare) = (action.clone(), bare.clone());
            move || {
                let (action, bare) = (action.clone(), bare.clone());
                async move {
                    let (name, context) = (action.reserved.action.action.clone(), action.context());
                    bare.run(&name, &context, &action.input()).await.expect("it succeeds");
                }
            }
        })
        .await;
        let figure = peak_with({
            let action = action.clone();
            move || {
                let action = action.clone();
                async move {
                    let settled = perform(&action.gate, action.reserved.clone()).await.expect("it settles");
                    assert!(settled.output().is_some(), "{:?}", settled.end());
                }
            }
        })
        .await;
        peak.round(figure, floor);
        each.round((figure - before) * 1024.0 / f64::from(GUESTS), (floor - before) * 1024.0 / f64::from(GUESTS));
    }
    peak.print("6 peak memory of the process, 64 guests asleep in it", "MiB", "64 bare instances", "-");
    each.print("   each one's share of what the process had not before the first", "KiB", "a bare instance", "-");
}

/// Resident memory at its peak, in MiB.
async fn peak_with<F: Future<Output = ()> + Send + 'static>(guest: impl Fn() -> F) -> f64 {
    // Forgets the peak so far: compiling the guest was the largest.
    std::fs::write("/proc/self/clear_refs", "5").expect("this is Linux");
    let guests: Vec<_> = (0..GUESTS).map(|_| tokio::spawn(guest())).collect();
    for guest in guests {
        guest.await.expect("it does not panic");
    }
    status("VmHWM:")
}

/// A line of this process's status, in MiB.
fn status(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("it is there");
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().expect("it is a number");
    kib / 1024.0
}
