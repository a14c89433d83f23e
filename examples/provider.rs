//! A provider to test against: a real HTTP server with a ledger on disk of every request it received and every effect it
//! accepted, which misbehaves in the ways that providers do when it is told to.
//!
//! ```text
//! cargo run --example provider -- --ledger provider.jsonl --mode accept-then-drop
//! ```
//!
//! It prints one line, `listening on http://127.0.0.1:PORT`, and serves until it is killed. The ledger is the truth that
//! a test counts in: one JSON line per request, one per effect, each synced to the disk before anything is answered, and
//! read again when a provider starts with an existing one.
//!
//! | route | what it does |
//! | --- | --- |
//! | `POST`, `PUT`, `PATCH`, `DELETE` of any path | an effect, subject to the mode; answers 202 `{"id":"msg-N"}` |
//! | `GET /v1/messages?key=K` | `{"messages":[{"id","key","to","subject"}]}`: what was accepted there under that key |
//! | `GET /control`, `PUT /control` | the settings; `PUT` changes those it names. Never in the ledger |
//! | `GET /health` | 200 |
//! | `GET /redirect?to=URL` | 302 to it |
//! | `GET /bytes?n=N` | so many bytes |
//! | `GET` of anything else | method, path and headers, as JSON |
//!
//! It is not a model of good manners: no TLS, no authentication, no limit on connections.

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::{Parser, ValueEnum};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::{TcpListener, TcpStream};

const BODY_BYTES_MAX: usize = 64 << 20;

#[derive(Parser)]
struct Arguments {
    /// Where every request and every effect is written; continued if it exists.
    #[arg(long)]
    ledger: PathBuf,
    #[arg(long, default_value = "127.0.0.1:0")]
    addr: SocketAddr,
    /// Answer a key seen before with the first answer, and have no second effect.
    #[arg(long)]
    dedup: bool,
    /// What becomes of effectful requests.
    #[arg(long, value_enum, default_value = "accept")]
    mode: Mode,
    /// How long an accepted message stays invisible to look-ups.
    #[arg(long, default_value_t = 0)]
    lookup_lag_ms: u64,
    /// The seconds in `Retry-After`.
    #[arg(long, default_value_t = 1)]
    retry_after: u64,
    /// How late `accept-late` answers and `accept-delayed` accepts.
    #[arg(long, default_value_t = 0)]
    latency_ms: u64,
}

/// What becomes of an effectful request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    /// Accepted and answered.
    Accept,
    /// Accepted, and never answered.
    AcceptThenHang,
    /// Accepted, and the connection closed without an answer.
    AcceptThenDrop,
    /// Accepted at once, answered after the latency.
    AcceptLate,
    /// Accepted after the latency, whether or not anyone still waits, then answered.
    AcceptDelayed,
    /// 500, nothing accepted.
    Fail,
    /// 503 with `Retry-After`, nothing accepted.
    Unavailable,
    /// 422, nothing accepted.
    Refuse,
    /// 429 with `Retry-After`, nothing accepted.
    RateLimit,
    /// Nothing accepted, and the connection closed without an answer.
    Drop,
}

/// What `/control` shows and changes.
#[derive(Debug, Clone, Serialize)]
struct Settings {
    mode: Mode,
    /// How many more effectful requests the mode is for; then `accept`. `None` is for ever.
    times: Option<u64>,
    dedup: bool,
    lookup_lag_ms: u64,
    retry_after: u64,
    latency_ms: u64,
}

/// A `mode` without `times` is for ever; everything else stays as it is unless it is named.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    mode: Option<Mode>,
    times: Option<u64>,
    dedup: Option<bool>,
    lookup_lag_ms: Option<u64>,
    retry_after: Option<u64>,
    latency_ms: Option<u64>,
}

impl Settings {
    fn apply(&mut self, change: Change) {
        if let Some(mode) = change.mode {
            self.mode = mode;
            self.times = None;
        }
        self.times = change.times.or(self.times);
        self.dedup = change.dedup.unwrap_or(self.dedup);
        self.lookup_lag_ms = change.lookup_lag_ms.unwrap_or(self.lookup_lag_ms);
        self.retry_after = change.retry_after.unwrap_or(self.retry_after);
        self.latency_ms = change.latency_ms.unwrap_or(self.latency_ms);
    }

    /// The mode of the next effectful request.
    fn next_mode(&mut self) -> Mode {
        match &mut self.times {
            None => return self.mode,
            Some(0) => {}
            Some(left) => {
                *left -= 1;
                return self.mode;
            }
        }
        (self.mode, self.times) = (Mode::Accept, None);
        self.mode
    }
}

struct Provider {
    settings: Mutex<Settings>,
    ledger: Mutex<Ledger>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments { ledger, addr, dedup, mode, lookup_lag_ms, retry_after, latency_ms } = Arguments::parse();
    let provider = Arc::new(Provider {
        settings: Mutex::new(Settings { mode, times: None, dedup, lookup_lag_ms, retry_after, latency_ms }),
        ledger: Mutex::new(Ledger::open(&ledger)?),
    });
    let listener = TcpListener::bind(addr).await.with_context(|| format!("cannot listen on {addr}"))?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "listening on http://{}", listener.local_addr()?)?;
    stdout.flush()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(serve(stream, provider.clone()))),
            Err(error) => {
                eprintln!("cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, provider: Arc<Provider>) {
    let service = service_fn(|request| {
        let provider = provider.clone();
        async move {
            // In a task of its own: a caller who hangs up must not stop what was received from being accepted.
            match tokio::spawn(answer(request, provider)).await {
                Ok(Answer::Response(response)) => Ok(response),
                Ok(Answer::Silence) => std::future::pending().await,
                Ok(Answer::HangUp) | Err(_) => Err("hung up"),
            }
        }
    });
    // An error here is a connection that broke off or was hung up on: the ledger has what matters.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// What the caller gets to see.
enum Answer {
    Response(Response<Full<Bytes>>),
    /// Nothing, with the connection left open.
    Silence,
    /// The end of the connection.
    HangUp,
}

async fn answer(request: Request<Incoming>, provider: Arc<Provider>) -> Answer {
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        // What did not arrive whole was never received.
        Err(error) => return Answer::Response(complain(StatusCode::BAD_REQUEST, error)),
    };
    if head.uri.path() == "/control" {
        return Answer::Response(provider.control(&head.method, &body));
    }
    let received = Received::new(&head, &body);
    let number = match provider.record(received.clone()).await {
        Ok(number) => number,
        Err(error) => return Answer::Response(complain(StatusCode::INSUFFICIENT_STORAGE, error)),
    };
    match head.method {
        Method::GET | Method::HEAD | Method::OPTIONS => Answer::Response(provider.read(&head)),
        _ => provider
            .effect(number, received)
            .await
            .unwrap_or_else(|error| Answer::Response(complain(StatusCode::INSUFFICIENT_STORAGE, error))),
    }
}

impl Provider {
    fn control(&self, method: &Method, body: &[u8]) -> Response<Full<Bytes>> {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        match *method {
            Method::GET => {}
            Method::PUT => match serde_json::from_slice(body) {
                Ok(change) => settings.apply(change),
                Err(error) => return complain(StatusCode::BAD_REQUEST, error),
            },
            _ => return complain(StatusCode::METHOD_NOT_ALLOWED, "GET or PUT"),
        }
        reply(StatusCode::OK, &json!(*settings))
    }

    fn read(&self, head: &http::request::Parts) -> Response<Full<Bytes>> {
        match head.uri.path() {
            "/health" => reply(StatusCode::OK, &json!({ "status": "ok" })),
            "/v1/messages" => {
                let lag_ms = self.settings.lock().unwrap_or_else(PoisonError::into_inner).lookup_lag_ms;
                let key = query(head, "key").unwrap_or_default();
                let ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
                reply(StatusCode::OK, &json!({ "messages": ledger.messages(&key, now_ms().saturating_sub(lag_ms)) }))
            }
            "/redirect" => {
                let to = query(head, "to").and_then(|to| to.parse().ok());
                let mut response = reply(StatusCode::FOUND, &json!({ "to": query(head, "to") }));
                response.headers_mut().extend(to.map(|to: http::HeaderValue| (header::LOCATION, to)));
                response
            }
            "/bytes" => {
                let bytes = query(head, "n").and_then(|n| n.parse().ok()).unwrap_or(0).min(BODY_BYTES_MAX);
                Response::new(Full::new(vec![b'x'; bytes].into()))
            }
            path => {
                let headers = head
                    .headers
                    .iter()
                    .map(|(name, value)| (name.to_string(), Value::from(String::from_utf8_lossy(value.as_bytes()))));
                let headers: Value = headers.collect();
                reply(StatusCode::OK, &json!({ "method": head.method.as_str(), "path": path, "headers": headers }))
            }
        }
    }

    async fn effect(self: Arc<Self>, number: u64, received: Received) -> Result<Answer> {
        let (mode, settings) = {
            let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
            (settings.next_mode(), settings.clone())
        };
        let latency = Duration::from_millis(settings.latency_ms);
        let refusal = match mode {
            Mode::Fail => StatusCode::INTERNAL_SERVER_ERROR,
            Mode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Mode::Refuse => StatusCode::UNPROCESSABLE_ENTITY,
            Mode::RateLimit => StatusCode::TOO_MANY_REQUESTS,
            Mode::Drop => return Ok(Answer::HangUp),
            Mode::Accept | Mode::AcceptThenHang | Mode::AcceptThenDrop | Mode::AcceptLate | Mode::AcceptDelayed => {
                if mode == Mode::AcceptDelayed {
                    tokio::time::sleep(latency).await;
                }
                let id = self.accept(number, received, settings.dedup).await?;
                if mode == Mode::AcceptLate {
                    tokio::time::sleep(latency).await;
                }
                return Ok(match mode {
                    Mode::AcceptThenHang => Answer::Silence,
                    Mode::AcceptThenDrop => Answer::HangUp,
                    _ => Answer::Response(reply(StatusCode::ACCEPTED, &json!({ "id": id }))),
                });
            }
        };
        let mut response = complain(refusal, format!("the provider is told to answer {}", refusal.as_u16()));
        if matches!(mode, Mode::RateLimit | Mode::Unavailable) {
            response.headers_mut().insert(header::RETRY_AFTER, settings.retry_after.into());
        }
        Ok(Answer::Response(response))
    }

    async fn record(self: &Arc<Self>, received: Received) -> Result<u64> {
        self.with_ledger(move |ledger| ledger.record(received)).await
    }

    async fn accept(self: &Arc<Self>, number: u64, received: Received, dedup: bool) -> Result<String> {
        self.with_ledger(move |ledger| ledger.accept(number, received, dedup)).await
    }

    /// The ledger syncs, so it is used where blocking is allowed.
    async fn with_ledger<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Ledger) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let provider = self.clone();
        tokio::task::spawn_blocking(move || work(&mut provider.ledger.lock().unwrap_or_else(PoisonError::into_inner)))
            .await?
    }
}

/// A request as the ledger keeps it.
#[derive(Debug, Clone)]
struct Received {
    method: String,
    path: String,
    key: Option<String>,
    has_authorization: bool,
    body: String,
    body_sha256: String,
}

impl Received {
    fn new(head: &http::request::Parts, body: &[u8]) -> Self {
        let text = |headers: &HeaderMap, name: &str| {
            headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        Self {
            method: head.method.to_string(),
            path: head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            key: text(&head.headers, "idempotency-key"),
            has_authorization: head.headers.contains_key(header::AUTHORIZATION),
            body: String::from_utf8_lossy(body).into_owned(),
            body_sha256: hex::encode(Sha256::digest(body)),
        }
    }
}

/// The file, and what of it is needed to answer.
struct Ledger {
    file: File,
    requests: u64,
    effects: Vec<Effect>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Effect {
    n: u64,
    /// The number of the request that it came from.
    request: u64,
    at: u64,
    key: Option<String>,
    method: String,
    path: String,
    body: String,
    id: String,
}

impl Ledger {
    fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        let options = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = options().with_context(|| format!("cannot open the ledger {shown}"))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(|| format!("cannot read the ledger {shown}"))?;
        // A last line without its end is that of a provider killed while writing; nobody was answered yet.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let text = str::from_utf8(&bytes[..whole]).with_context(|| format!("the ledger {shown} is not text"))?;
        file.set_len(whole as u64)?;
        file.seek(SeekFrom::End(0))?;
        let mut ledger = Self { file, requests: 0, effects: Vec::new() };
        for (index, line) in text.lines().enumerate() {
            ledger.restore(line).with_context(|| format!("line {} of the ledger {shown}", index + 1))?;
        }
        Ok(ledger)
    }

    fn restore(&mut self, line: &str) -> Result<()> {
        let entry: Value = serde_json::from_str(line)?;
        match entry["kind"].as_str() {
            Some("request") => self.requests = self.requests.max(entry["n"].as_u64().context("`n` is missing")?),
            Some("effect") => self.effects.push(serde_json::from_value(entry)?),
            _ => anyhow::bail!("its kind is neither `request` nor `effect`"),
        }
        Ok(())
    }

    /// The request is on the disk when this returns; its number.
    fn record(&mut self, received: Received) -> Result<u64> {
        let n = self.requests + 1;
        self.append(&json!({
            "kind": "request",
            "n": n,
            "at": now_ms(),
            "method": received.method,
            "path": received.path,
            "key": received.key,
            "authorization": received.has_authorization,
            "body_sha256": received.body_sha256,
            "body": received.body,
        }))?;
        self.requests = n;
        Ok(n)
    }

    /// The effect is on the disk when this returns; its id, or with `dedup` that of the first effect under this key.
    fn accept(&mut self, request: u64, received: Received, dedup: bool) -> Result<String> {
        let Received { method, path, key, body, .. } = received;
        let same_key = |effect: &&Effect| dedup && key.is_some() && effect.key == key;
        if let Some(first) = self.effects.iter().find(same_key) {
            return Ok(first.id.clone());
        }
        let n = self.effects.last().map_or(0, |last| last.n) + 1;
        let effect = Effect { n, request, at: now_ms(), key, method, path, body, id: format!("msg-{n}") };
        let mut line = json!(effect);
        line["kind"] = "effect".into();
        self.append(&line)?;
        self.effects.push(effect);
        Ok(format!("msg-{n}"))
    }

    fn append(&mut self, line: &Value) -> Result<()> {
        self.file.write_all(format!("{line}\n").as_bytes())?;
        Ok(self.file.sync_data()?)
    }

    /// The messages under `key` that were accepted by `until_ms`.
    fn messages(&self, key: &str, until_ms: u64) -> Vec<Value> {
        let is_message = |effect: &&Effect| {
            let path = effect.path.split('?').next();
            effect.method == "POST" && path == Some("/v1/messages") && effect.key.as_deref() == Some(key)
        };
        let visible = self.effects.iter().filter(is_message).filter(|effect| effect.at <= until_ms);
        visible
            .map(|effect| {
                let body: Value = serde_json::from_str(&effect.body).unwrap_or_default();
                json!({ "id": effect.id, "key": effect.key, "to": body["to"], "subject": body["subject"] })
            })
            .collect()
    }
}

fn reply(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.to_string().into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

fn complain(status: StatusCode, error: impl std::fmt::Display) -> Response<Full<Bytes>> {
    reply(status, &json!({ "error": error.to_string() }))
}

fn query(head: &http::request::Parts, name: &str) -> Option<String> {
    let pairs = url::form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes());
    pairs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
