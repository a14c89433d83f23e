//! Steps of runs in the built-in store, beside the same rows written bare.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use tollgate::host::Host;
use tollgate::perform::perform;
use tollgate::policy::Policy;
use tollgate::run::{DriveOptions, Ended, StartRun};
use tollgate::sandbox::Sandbox;
use tollgate::store::{Store, StoreOptions};
use tollgate::workflow::Workflow;

use crate::bare::Bare;
use crate::guests::{Action, guest};
use crate::measure::{Pair, us};

const ROUNDS: usize = 7;
const STEPS: usize = 20;
const RUNS: usize = 64;
const STEPS_OF_EACH: usize = 10;

pub async fn measure(sandbox: &Sandbox) {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let provider = provider();
    let host = host(sandbox, &folder.path().join("figure.db"), &provider).await;
    let floor_path = folder.path().join("floor.db");
    let floor_host = self::host(sandbox, &floor_path, &provider).await;
    let mut bare = Bare::open(&floor_path);

    without_store(sandbox, &provider).await;
    alone(&host, &floor_host, &mut bare, &provider).await;
    together(&host, &floor_host, &mut bare).await;
}

/// The contract around an ambiguous step whose journal keeps nothing: what of it is not the store's.
async fn without_store(sandbox: &Sandbox, provider: &str) {
    let with: serde_json::Value = serde_json::from_str(&ambiguous(provider)).expect("it is JSON");
    let action = Action::load(sandbox, "probe", "amb-op", with, &policy(provider)).await;
    let mut pair = Pair::default();
    for round in 0..=ROUNDS {
        let began = Instant::now();
        for _ in 0..STEPS {
            let settled = perform(&action.gate, action.reserved.clone()).await.expect("it settles");
            assert!(settled.output().is_some(), "{:?}", settled.end());
        }
        let figure = us(began.elapsed()) / STEPS as f64;
        let began = Instant::now();
        for _ in 0..STEPS {
            let address = provider.strip_prefix("http://").expect("it is plain").to_owned();
            let asked = tokio::task::spawn_blocking(move || ask(&address)).await.expect("it does not panic");
            asked.expect("it is answered");
        }
        let floor = us(began.elapsed()) / STEPS as f64;
        if round > 0 {
            pair.round(figure, floor);
        }
    }
    pair.print("2a ambiguous step, a journal that keeps nothing", "µs", "a bare request over loopback", "-");
}

fn ask(address: &str) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"POST /v1/messages HTTP/1.1\r\nhost: bench\r\ncontent-length: 1\r\n\r\nx")?;
    std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
}

/// What an ambiguous step of the probe is told: plan an e-mail, send it.
fn ambiguous(provider: &str) -> String {
    let with = json!({
        "plan": [{ "do": "planned", "consumes": [{ "dimension": "emails", "amount": "1" }] }],
        "run": [{ "do": "http", "method": "POST", "url": format!("{provider}/v1/messages"), "body": "x" }],
    });
    with.to_string()
}

/// One run, one ambiguous step after the other.
async fn alone(host: &Host, floor_host: &Host, bare: &mut Bare, provider: &str) {
    let with = ambiguous(provider);
    let workflow = || workflow(STEPS, "probe/amb-op", &with);
    let mut pair = Pair::default();
    for round in 0..=ROUNDS {
        let run = start(host, workflow()).await;
        let began = Instant::now();
        drive(host, &run).await;
        let figure = us(began.elapsed()) / STEPS as f64;

        let run = start(floor_host, workflow()).await;
        bare.begin();
        bare.reserve(&run, "s0", &with);
        bare.commit();
        let began = Instant::now();
        for step in 0..STEPS - 1 {
            let (this, next) = (format!("s{step}"), format!("s{}", step + 1));
            bare.begin();
            bare.mark(&run, &this);
            bare.commit();
            bare.begin();
            bare.settle_effect(&run, &this, &next, &with);
            bare.commit();
        }
        let floor = us(began.elapsed()) / (STEPS - 1) as f64;
        if round > 0 {
            pair.round(figure, floor);
        }
    }
    pair.print(
        "2b ambiguous step alone: guest, plan, charge, mark, a request over loopback, settle",
        "µs",
        "two bare commits of the same rows",
        "≤ 1.3",
    );
}

/// Many runs at once, pure steps: what the store settles.
async fn together(host: &Host, floor_host: &Host, bare: &mut Bare) {
    let with = json!({ "csv": "number,customer,email,amount,currency,issued,due,paid\n", "today": "2026-11-30" });
    let with = with.to_string();
    let mut pair = Pair::default();
    for round in 0..=ROUNDS {
        let mut runs = Vec::new();
        for _ in 0..RUNS {
            runs.push(start(host, workflow(STEPS_OF_EACH, "invoices/triage", &with)).await);
        }
        let began = Instant::now();
        let driving: Vec<_> = runs
            .into_iter()
            .map(|run| {
                let host = host.clone();
                tokio::spawn(async move { drive(&host, &run).await })
            })
            .collect();
        for drive in driving {
            drive.await.expect("it does not panic");
        }
        let figure = us(began.elapsed()) / (RUNS * STEPS_OF_EACH) as f64;

        let mut runs = Vec::new();
        for _ in 0..RUNS {
            runs.push(start(floor_host, workflow(STEPS_OF_EACH + 1, "invoices/triage", &with)).await);
        }
        bare.begin();
        for run in &runs {
            bare.reserve(run, "s0", &with);
        }
        bare.commit();
        let began = Instant::now();
        bare.begin();
        for step in 0..STEPS_OF_EACH {
            let (this, next) = (format!("s{step}"), format!("s{}", step + 1));
            for run in &runs {
                bare.ask(run, &this, &next);
                bare.settle_pure(run, &this, &next, &with);
            }
        }
        bare.commit();
        let floor = us(began.elapsed()) / (RUNS * STEPS_OF_EACH) as f64;
        if round > 0 {
            pair.round(figure, floor);
        }
    }
    pair.print(
        "3 pure steps of 64 runs at once, claimed, performed and settled, per step",
        "µs",
        "the same statements in one transaction",
        "≤ 2",
    );
    pair.print_rates("   the same, steps per second", "one transaction");
}

async fn host(sandbox: &Sandbox, path: &Path, provider: &str) -> Host {
    let policy = Policy::parse("bench.toml", &policy(provider)).unwrap_or_else(|report| panic!("{report}"));
    let store = Store::open(&format!("sqlite:{}", path.display()), StoreOptions::default()).await;
    let host = Host::new(store.expect("the store opens"), sandbox.clone(), policy);
    for app in ["probe", "invoices"] {
        host.registry.push(app, guest(app), &host.policy).await.unwrap_or_else(|error| panic!("{error}"));
    }
    host
}

fn policy(provider: &str) -> String {
    format!(
        "version = 1\n[app.invoices]\n[app.probe]\nclasses = [\"pure\", \"transactional\", \"idempotent\", \"ambiguous\"]\n[[app.probe.http]]\n\
         url = \"{provider}/v1/**\"\nmethods = [\"POST\"]\nmeter = {{ emails = 1 }}\nvisible_within = \"1s\"\n\
         addresses = [\"127.0.0.0/8\"]\n"
    )
}

fn workflow(steps: usize, action: &str, with: &str) -> Workflow {
    let mut text = "workflow: bench/steps\nsteps:\n".to_owned();
    for step in 0..steps {
        text.push_str(&format!("  - id: s{step}\n    action: {action}\n    with: {with}\n"));
    }
    Workflow::parse("bench.yaml", &text).unwrap_or_else(|report| panic!("{report}"))
}

async fn start(host: &Host, workflow: Workflow) -> String {
    host.start(StartRun::of(workflow)).await.unwrap_or_else(|error| panic!("{error}")).run
}

async fn drive(host: &Host, run: &str) {
    let options = DriveOptions { wait: Duration::ZERO, ..DriveOptions::new("bench") };
    let ended = host.drive(run, options).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(matches!(ended, Ended::Completed { .. }), "{ended:?}");
}

/// A server that answers every request at once, on threads of its own.
fn provider() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("it has an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(stream);
        }
    });
    format!("http://{address}")
}

fn answer(stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(&stream);
    let (mut length, mut line) = (0, String::new());
    while reader.read_line(&mut line)? > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        line.clear();
    }
    std::io::copy(&mut (&mut reader).take(length), &mut std::io::sink())?;
    (&stream).write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
}
