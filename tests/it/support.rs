//! What the tests need: guests built once, a provider each, a store each, workflows over the probe guest.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};

use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate::budget;
use tollgate::host::Host;
use tollgate::policy::Policy;
use tollgate::run::{DriveOptions, DryRun, Ended, StartRun};
use tollgate::sandbox::{Cache, Sandbox};
use tollgate::store::{Store, StoreOptions};
use tollgate::workflow::Workflow;

/// The folder of the built guests. Built once per test run, by the same script as everywhere.
pub fn guests() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| folder_of("scripts/build-guests"))
}

/// The folder of the guests that are not Rust.
fn language_guests() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| folder_of("scripts/build-language-guests"))
}

/// Runs a script that builds guests and says where they are.
fn folder_of(script: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let built = Command::new(path).stderr(Stdio::inherit()).output().expect("the script runs");
    assert!(built.status.success(), "{script} failed");
    let printed = String::from_utf8(built.stdout).expect("it prints text");
    PathBuf::from(printed.lines().last().expect("its last line is the folder"))
}

pub fn guest(name: &str) -> Vec<u8> {
    read_guest(guests(), name)
}

pub fn language_guest(name: &str) -> Vec<u8> {
    read_guest(language_guests(), name)
}

fn read_guest(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(format!("{name}.wasm"))).expect("the guest was built")
}

/// One engine for all tests of this process, and one place for what it compiles.
pub fn sandbox() -> Sandbox {
    static SANDBOX: OnceLock<Sandbox> = OnceLock::new();
    let new = || {
        let cache = Cache::open(Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled")).expect("the folder is ours");
        Sandbox::new().expect("the sandbox can be set up").with_cache(cache)
    };
    SANDBOX.get_or_init(new).clone()
}

/// A file that cargo built beside the program.
fn built(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().expect("it lies in a folder").join(name);
    assert!(path.exists(), "{} is missing: run the tests with scripts/test", path.display());
    path
}

pub fn program() -> PathBuf {
    built("tollgate")
}

/// A provider of its own, on a port of its own, with a ledger on disk.
pub struct Provider {
    child: Child,
    pub url: String,
    ledger: PathBuf,
}

impl Provider {
    pub fn start(folder: &Path) -> Provider {
        let ledger = folder.join("ledger.jsonl");
        let mut child = Command::new(built("examples/provider"))
            .arg("--ledger")
            .arg(&ledger)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the provider starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its stdout is piped")).read_line(&mut line).expect("it speaks");
        let url = line.trim().strip_prefix("listening on ").expect("it says where it listens").to_owned();
        Provider { child, url, ledger }
    }

    pub fn port(&self) -> &str {
        self.url.rsplit(':').next().expect("the url ends in a port")
    }

    /// Switches how it answers, with one real request.
    pub fn control(&self, settings: &Value) {
        use std::io::{Read as _, Write as _};
        let body = settings.to_string();
        let mut stream = std::net::TcpStream::connect(format!("127.0.0.1:{}", self.port())).expect("it listens");
        write!(
            stream,
            "PUT /control HTTP/1.1\r\nhost: provider\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    fn lines(&self, kind: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.ledger).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("the ledger is JSON lines"))
            .filter(|line| line["kind"] == kind)
            .collect()
    }

    /// Every request that it received.
    pub fn requests(&self) -> Vec<Value> {
        self.lines("request")
    }

    /// Every request that could have had an effect.
    pub fn effectful_requests(&self) -> Vec<Value> {
        self.requests().into_iter().filter(|request| request["method"] != "GET").collect()
    }

    /// Every effect that it accepted.
    pub fn effects(&self) -> Vec<Value> {
        self.lines("effect")
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder with a store, a policy and a provider.
pub struct World {
    pub folder: TempDir,
    pub provider: Provider,
    policy: Mutex<String>,
}

impl World {
    /// With the policy that most tests want: everything of the probe granted on the provider, metered in `emails`.
    pub fn new() -> World {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let provider = Provider::start(folder.path());
        let policy = Mutex::new(policy(&provider.url));
        World { folder, provider, policy }
    }

    pub fn store_path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    pub fn policy_text(&self) -> String {
        self.policy.lock().expect("no test panicked while it held it").clone()
    }

    /// Replaces a piece of the policy, which must be there.
    pub fn edit_policy(&self, from: &str, to: &str) -> &World {
        let mut policy = self.policy.lock().expect("no test panicked while it held it");
        assert!(policy.contains(from), "the policy has no `{from}`");
        *policy = policy.replace(from, to);
        drop(policy);
        self
    }

    /// Adds lines at the end of the policy, as an operator pastes a remedy.
    pub fn extend_policy(&self, lines: &str) -> &World {
        let mut policy = self.policy.lock().expect("no test panicked while it held it");
        policy.push_str(&format!("\n{lines}\n"));
        drop(policy);
        self
    }

    pub async fn host(&self) -> Host {
        let url = format!("sqlite:{}", self.store_path().display());
        let store = Store::open(&url, StoreOptions::default()).await.expect("the store opens");
        let policy = Policy::parse("tollgate.toml", &self.policy_text()).unwrap_or_else(|report| panic!("{report}"));
        Host::new(store, sandbox(), policy)
    }

    /// A host with the probe pushed as app `probe`.
    pub async fn probe(&self) -> Host {
        let host = self.host().await;
        push(&host, "probe", "probe").await;
        host
    }
}

pub async fn push(host: &Host, app: &str, name: &str) {
    host.registry.push(app, guest(name), &host.policy).await.unwrap_or_else(|error| panic!("{error}"));
}

/// The policy of most tests.
fn policy(provider: &str) -> String {
    format!(
        r#"version = 1

[limits]
memory = "64MiB"
cpu = "1s"
wall = "5s"
request = "64KiB"
response = "256KiB"
output = "64KiB"
logs = "4KiB"
requests = 20

[app.probe]
classes = ["pure", "transactional", "idempotent", "ambiguous"]

[[app.probe.http]]
url = "{provider}/v1/**"
methods = ["POST"]
meter = {{ emails = 1 }}
idempotency = {{ header = "Idempotency-Key", window = "24h" }}
visible_within = "1s"
addresses = ["127.0.0.0/8"]

[[app.probe.http]]
url = "{provider}/**"
methods = ["GET"]
safe = true
addresses = ["127.0.0.0/8"]
"#
    )
}

/// A workflow of one step over the probe's `action`, whose config is `with`.
pub fn one_step(action: &str, with: &Value, more: &str) -> Workflow {
    let text = format!(
        "workflow: test/one\nbudget: {{ emails: 100 }}\nsteps:\n  - id: only\n    action: probe/{action}\n    with: {with}\n    \
         saveAs: result\n{more}outputs: {{ result: \"{{{{ result }}}}\" }}\n"
    );
    parse(&text)
}

#[track_caller]
pub fn parse(text: &str) -> Workflow {
    Workflow::parse("test.yaml", text).unwrap_or_else(|report| panic!("{report}\n{text}"))
}

pub fn options(holder: &str) -> DriveOptions {
    DriveOptions { wait: std::time::Duration::from_secs(20), ..DriveOptions::new(holder) }
}

/// Starts a run and drives it until it ends.
pub async fn run(host: &Host, workflow: Workflow) -> (String, Ended) {
    let started = host.start(StartRun::of(workflow)).await.unwrap_or_else(|error| panic!("{error}"));
    let ended = host.drive(&started.run, options("test")).await.unwrap_or_else(|error| panic!("{error}"));
    (started.run, ended)
}

pub async fn dry_run(host: &Host, workflow: Workflow) -> DryRun {
    host.dry_run(StartRun::of(workflow)).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Runs one step of the probe and answers its output's `results`.
pub async fn results(host: &Host, action: &str, instructions: Value) -> Vec<Value> {
    let (_, ended) = run(host, one_step(action, &json!({ "run": instructions }), "")).await;
    let Ended::Completed { outputs } = ended else { panic!("it should complete: {ended:?}") };
    let outputs: Value = serde_json::from_str(&outputs).expect("outputs are JSON");
    outputs["result"]["results"].as_array().expect("the probe answers with results").clone()
}

/// Runs one step of the probe that must fail, and answers its failure.
pub async fn failure(host: &Host, action: &str, with: Value) -> tollgate::journal::Failure {
    match run(host, one_step(action, &with, "")).await.1 {
        Ended::Failed { failure } => failure,
        other => panic!("it should fail: {other:?}"),
    }
}

/// Caps by dimension.
pub fn caps(pairs: &[(&str, &str)]) -> BTreeMap<String, budget::Amount> {
    budget::caps("test", pairs.iter().copied()).expect("the caps are amounts")
}

/// What is used of a dimension of a run's budget, as text.
pub async fn used(host: &Host, run: &str, dimension: &str) -> String {
    let view = host.store.budget(run).await.expect("the store answers");
    view.used.get(dimension).map_or_else(|| "0".to_owned(), ToString::to_string)
}

/// A clock that runs like the machine's and can be put forward.
#[derive(Default)]
pub struct TestClock {
    ahead_ms: std::sync::atomic::AtomicI64,
}

impl TestClock {
    /// Gives `host` such a clock.
    pub fn of(host: &mut Host) -> std::sync::Arc<TestClock> {
        let clock = std::sync::Arc::new(TestClock::default());
        host.ambient.clock = clock.clone();
        clock
    }

    pub fn forward(&self, by: std::time::Duration) {
        let by_ms = i64::try_from(by.as_millis()).expect("it is not for ever");
        self.ahead_ms.fetch_add(by_ms, std::sync::atomic::Ordering::SeqCst);
    }

    fn ahead(&self) -> std::time::Duration {
        let ahead_ms = self.ahead_ms.load(std::sync::atomic::Ordering::SeqCst);
        std::time::Duration::from_millis(ahead_ms.unsigned_abs())
    }
}

impl tollgate::clock::Clock for TestClock {
    fn now(&self) -> tollgate::clock::Timestamp {
        tollgate::clock::SystemClock.now().plus(self.ahead())
    }

    fn elapsed(&self) -> std::time::Duration {
        tollgate::clock::SystemClock.elapsed() + self.ahead()
    }
}

pub async fn start(host: &Host, workflow: Workflow) -> String {
    host.start(StartRun::of(workflow)).await.unwrap_or_else(|error| panic!("{error}")).run
}

/// Drives a run as far as it goes without waiting for anything.
pub async fn drive(host: &Host, run: &str) -> Ended {
    let options = DriveOptions { wait: std::time::Duration::ZERO, ..DriveOptions::new("test") };
    host.drive(run, options).await.unwrap_or_else(|error| panic!("{error}"))
}

/// As [`drive`], after reopening the run.
pub async fn resume(host: &Host, run: &str) -> Ended {
    let options = DriveOptions { wait: std::time::Duration::ZERO, reopen: true, ..DriveOptions::new("test") };
    host.drive(run, options).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Waits until something is so; for a minute at most.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..6_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("it never came to pass that {what}");
}

/// Drives a run until the provider has accepted its first effect, and loses its worker there.
pub async fn lose_worker_after_effect(world: &World, host: &Host, run: &str) {
    let (driving, id) = (host.clone(), run.to_owned());
    let before = world.provider.effects().len();
    let worker = tokio::spawn(async move { driving.drive(&id, options("test")).await.map(|_| ()) });
    until("the provider accepted an effect", async || world.provider.effects().len() > before).await;
    worker.abort();
    assert!(worker.await.is_err_and(|error| error.is_cancelled()), "the worker should have been lost in the middle");
}

/// A run of one step of the probe: how it ended, and what its last attempt left as evidence.
#[derive(Debug)]
pub struct Performed {
    pub run: String,
    pub ended: Ended,
    pub record: tollgate::journal::AttemptRecord,
}

impl Performed {
    /// The `results` of a completed step.
    #[track_caller]
    pub fn results(&self) -> Vec<Value> {
        let Ended::Completed { outputs } = &self.ended else { panic!("it should complete: {self:?}") };
        let outputs: Value = serde_json::from_str(outputs).expect("outputs are JSON");
        outputs["result"]["results"].as_array().expect("the probe answers with results").clone()
    }

    #[track_caller]
    pub fn failure(&self) -> &tollgate::journal::Failure {
        match &self.ended {
            Ended::Failed { failure } => failure,
            _ => panic!("it should fail: {self:?}"),
        }
    }

    /// Why a step that needs a person does.
    #[track_caller]
    pub fn doubt(&self) -> &tollgate::journal::Failure {
        match &self.ended {
            Ended::Blocked { failure: Some(failure), .. } => failure,
            _ => panic!("it should need a person: {self:?}"),
        }
    }
}

/// Runs one step of the probe; `more` are lines of the step (`    retry: { attempts: 2 }`).
pub async fn perform(host: &Host, action: &str, with: &Value, more: &str) -> Performed {
    let (run, ended) = run(host, one_step(action, with, more)).await;
    let record = last_record(host, &run).await;
    Performed { run, ended, record }
}

/// What the last attempt of a run left as evidence.
pub async fn last_record(host: &Host, run: &str) -> tollgate::journal::AttemptRecord {
    let attempts = host.store.attempts(run).await.expect("the store answers");
    attempts.last().and_then(|attempt| attempt.record.clone()).expect("an attempt is finished")
}
