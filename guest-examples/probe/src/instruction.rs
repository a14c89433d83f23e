//! The instructions that do something. Each arm of `act` says what an instruction takes and what it leaves as its result.

use crate::arguments::Arguments;
use crate::ending::{Ending, ending, failure};
use crate::tollgate::action::documents::{self, DocumentError};
use crate::tollgate::action::host::{self, Lease, Level};
use crate::tollgate::action::types::Context;
use crate::wasi::clocks::monotonic_clock;
use crate::wasi::random::{insecure, insecure_seed, random};
use http_client::{Request, Response, query_value};
use serde_json::{Value, json};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Lives as long as the instance: shows which phases share one.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Any instruction may carry these besides its own keys:
///
/// - `attempt`: only at this attempt;
/// - `if_last`: `ok` or `error`, only where the result before this one was that (no result yet is `ok`);
/// - `times`: perform it so often; the last result counts;
/// - `ignore_error`: true by default; false ends the phase with the error as its failure (retryable).
pub fn perform_all(list: Vec<Value>, context: &Context) -> Ending {
    let mut results = Vec::new();
    for (position, instruction) in list.into_iter().enumerate() {
        match perform(instruction, context, &results) {
            Ok(Done::Skipped) => {}
            Ok(Done::Result(result)) => results.push(result),
            Ok(Done::Ended(ending)) => return ending,
            Err(mistake) => return Ending::invalid(format!("instruction {position}: {mistake}")),
        }
    }
    Ending::Default(results)
}

enum Done {
    Skipped,
    Result(Value),
    Ended(Ending),
}

fn perform(instruction: Value, context: &Context, results: &[Value]) -> Result<Done, String> {
    let mut arguments = Arguments::of(instruction)?;
    let name = arguments.text("do")?;
    let attempt = arguments.optional_number("attempt")?;
    let last_was = arguments.optional_text("if_last")?;
    let times = arguments.optional_number("times")?.unwrap_or(1);
    let ignore_error = arguments.flag("ignore_error", true)?;

    if attempt.is_some_and(|attempt| attempt != u64::from(context.attempt)) {
        return Ok(Done::Skipped);
    }
    if last_was.is_some_and(|wanted| wanted != last(results)) {
        return Ok(Done::Skipped);
    }
    if let Some(ending) = ending(&name, &mut arguments)? {
        return arguments.nothing_else().map(|()| Done::Ended(ending));
    }
    if name == "lookup" {
        let url = arguments.text("url")?;
        return arguments.nothing_else().map(|()| Done::Ended(look_up(&url, context)));
    }

    let act = act(&name, arguments, context)?;
    let mut result = Ok(Value::Null);
    for _ in 0..times {
        result = act();
    }
    Ok(match result {
        Ok(value) => Done::Result(value),
        Err(error) if ignore_error => Done::Result(json!({ "error": error })),
        Err(error) => Done::Ended(Ending::Fail(crate::Failure { retryable: true, ..failure(error) })),
    })
}

fn last(results: &[Value]) -> &'static str {
    if results.last().is_some_and(|result| result.get("error").is_some()) { "error" } else { "ok" }
}

/// What an instruction is going to do, its arguments already checked.
type Act<'a> = Box<dyn Fn() -> Result<Value, String> + 'a>;

fn act<'a>(name: &str, mut given: Arguments, context: &'a Context) -> Result<Act<'a>, String> {
    let act: Act<'a> = match name {
        // HTTP: `method` (GET), `url`, `headers` {name: text}, `body` (text), `body_bytes` (a body of so many `x`
        // instead), `read_body` (true). In url and body, `$KEY` is the effect key and `$ATTEMPT` the attempt. Leaves
        // {status, body}, with `with_headers` also {headers}; an error is the host's text.
        "http" => {
            let (read_body, with_headers) = (given.flag("read_body", true)?, given.flag("with_headers", false)?);
            let request = request(&mut given, context)?;
            Box::new(move || http(&request, read_body, with_headers))
        }
        // As `http`, but does not wait: the request is still under way when the next instruction begins. With `abort`
        // (false), the guest then gives it up. Leaves "started".
        "http-fire-and-forget" => {
            let abort = given.flag("abort", false)?;
            let request = request(&mut given, context)?;
            Box::new(move || {
                let pending = http_client::start(&request).map_err(|error| error.to_string())?;
                if abort {
                    drop(pending)
                } else {
                    pending.forget()
                }
                Ok("started".into())
            })
        }

        // Documents. `doc-get` leaves the value, or null where there is none; `doc-list` [{key, value}]; `doc-add` reads a
        // number (absent is 0), adds `by` (1), writes it and leaves it; `doc-put` (`value`, or `value_raw` as text) and
        // `doc-delete` leave null.
        "doc-get" => {
            let key = given.text("key")?;
            Box::new(move || get(&key))
        }
        "doc-put" => {
            let key = given.text("key")?;
            let value = given.optional_text("value_raw")?;
            let value = value.map_or_else(|| given.value("value").map(|value| value.to_string()), Ok)?;
            Box::new(move || documents::put(&key, &value).map(|()| Value::Null).map_err(document_error))
        }
        "doc-list" => {
            let prefix = given.text("prefix")?;
            Box::new(move || list(&prefix))
        }
        "doc-delete" => {
            let key = given.text("key")?;
            Box::new(move || documents::delete(&key).map(|()| Value::Null).map_err(document_error))
        }
        "doc-add" => {
            let key = given.text("key")?;
            let by = given.optional_number("by")?.unwrap_or(1);
            Box::new(move || {
                let sum = get(&key)?.as_u64().unwrap_or(0) + by;
                documents::put(&key, &sum.to_string()).map_err(document_error)?;
                Ok(sum.into())
            })
        }

        // The host's own imports. `log`: `message`, `level` (info; debug, warn, error). `progress`: `done`, `total`,
        // `message`. `heartbeat` leaves "held" or "lost". `binding` and `resolve` take a `path`, and leave null for none.
        "log" => {
            let (level, message) = (level(given.optional_text("level")?)?, given.text("message")?);
            Box::new(move || {
                host::log(level, &message);
                Ok(Value::Null)
            })
        }
        "progress" => {
            let (done, total) = (given.number("done")?, given.optional_number("total")?);
            let message = given.optional_text("message")?.unwrap_or_default();
            Box::new(move || {
                host::progress(done, total, &message);
                Ok(Value::Null)
            })
        }
        "heartbeat" => Box::new(|| {
            Ok(match host::heartbeat() {
                Lease::Held => "held".into(),
                Lease::Lost => "lost".into(),
            })
        }),
        "variables" => Box::new(|| json_of(host::variables())),
        "binding" => {
            let path = given.text("path")?;
            Box::new(move || Ok(json!(host::binding(&path))))
        }
        "resolve" => {
            let path = given.text("path")?;
            Box::new(move || host::resolve_reference(&path).map_or(Ok(Value::Null), json_of))
        }
        "context" => Box::new(|| {
            Ok(json!({
                "run_id": context.run_id,
                "step_key": context.step_key,
                "effect_key": context.effect_key,
                "attempt": context.attempt,
                "invocation": json_of(context.invocation.clone())?,
            }))
        }),

        // The surroundings. `clock` leaves {wall_ms, monotonic_ns}; `random` {secure, insecure, seed} as hexadecimal text;
        // `env` {variables, arguments} as counts; `file` (`path`, `write` false) and `socket` (`addr` as host:port, the
        // host a name or an address) leave "opened" or the error.
        "clock" => Box::new(clock),
        "random" => Box::new(|| {
            let (low, high) = insecure_seed::insecure_seed();
            Ok(json!({
                "secure": format!("{:016x}", random::get_random_u64()),
                "insecure": format!("{:016x}", insecure::get_insecure_random_u64()),
                "seed": format!("{high:016x}{low:016x}"),
            }))
        }),
        "env" => Box::new(|| {
            Ok(json!({ "variables": std::env::vars_os().count(), "arguments": std::env::args_os().count() }))
        }),
        "file" => {
            let (path, write) = (given.text("path")?, given.flag("write", false)?);
            Box::new(move || {
                let opened = std::fs::OpenOptions::new().read(!write).write(write).create(write).open(&path);
                opened.map(|_| "opened".into()).map_err(|error| error.to_string())
            })
        }
        "socket" => {
            let addr = given.text("addr")?;
            Box::new(move || {
                std::net::TcpStream::connect(&addr).map(|_| "opened".into()).map_err(|error| error.to_string())
            })
        }
        "stdout" => {
            let message = given.text("message")?;
            Box::new(move || {
                println!("{message}");
                Ok(Value::Null)
            })
        }
        "stderr" => {
            let message = given.text("message")?;
            Box::new(move || {
                eprintln!("{message}");
                Ok(Value::Null)
            })
        }

        // Time, memory and the instance. `sleep`: `ms`. `busy`: `ms`, computing until the monotonic clock says so. `spin`:
        // for ever. `alloc`: `bytes`, kept until the instance ends; traps where there are not so many, or with `try`
        // leaves the error. `recurse`: until the stack is full. `count` adds one to a global and leaves it.
        "sleep" => {
            let time = Duration::from_millis(given.number("ms")?);
            Box::new(move || {
                std::thread::sleep(time);
                Ok(Value::Null)
            })
        }
        "busy" => {
            let time = Duration::from_millis(given.number("ms")?);
            Box::new(move || {
                let begun = monotonic_clock::now();
                while Duration::from_nanos(monotonic_clock::now() - begun) < time {}
                Ok(Value::Null)
            })
        }
        "spin" => Box::new(|| {
            let mut turns = 0_u64;
            loop {
                turns = black_box(turns).wrapping_add(1);
            }
        }),
        "alloc" => {
            let (bytes, fallible) = (given.number("bytes")?, given.flag("try", false)?);
            Box::new(move || allocate(bytes, fallible))
        }
        "recurse" => Box::new(|| Ok(recurse(1).into())),
        "count" => Box::new(|| Ok((COUNT.fetch_add(1, Ordering::Relaxed) + 1).into())),

        // Ends that no guest means. `panic`: `message`. `abort`: a trap without a message. `exit`: `code` (0).
        "panic" => {
            let message = given.text("message")?;
            Box::new(move || panic!("{message}"))
        }
        "abort" => Box::new(|| std::process::abort()),
        "exit" => {
            let code = given.optional_number("code")?.unwrap_or(0);
            Box::new(move || std::process::exit(code as i32))
        }

        other => return Err(format!("there is no instruction `{other}`")),
    };
    given.nothing_else().map_err(|mistake| format!("`{name}`: {mistake}"))?;
    Ok(act)
}

/// Ends `reconcile` by asking `url` (`$KEY` as in `http`), which answers like a mail API: `{"messages": […]}` with one
/// entry is success with its `{"id"}`, with none a retryable failure. Anything else is unknown; no answer is an error.
fn look_up(url: &str, context: &Context) -> Ending {
    let unheard = |message: String| Ending::Error(crate::Failure { retryable: true, ..failure(message) });
    let response = match http_client::send(&Request::get(fill_url(url, context))) {
        Ok(response) if response.status == 200 => response,
        Ok(response) => return unheard(format!("the look-up answered {}", response.status)),
        Err(error) => return unheard(error.to_string()),
    };
    let answer: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    match answer["messages"].as_array().map(Vec::as_slice) {
        Some([]) => Ending::Fail(crate::Failure { retryable: true, ..failure("nothing under this key".into()) }),
        Some([one]) => Ending::Succeed(Some(json!({ "id": one["id"] }).to_string())),
        Some(several) => Ending::Unknown(format!("{} messages under one key", several.len())),
        None => Ending::Unknown("the look-up's answer has no list of messages".into()),
    }
}

fn request(given: &mut Arguments, context: &Context) -> Result<Request, String> {
    let headers = match given.optional("headers") {
        None => Vec::new(),
        Some(Value::Object(headers)) => headers
            .into_iter()
            .map(|(name, value)| Ok((name, value.as_str().ok_or("a header must be text")?.to_owned())))
            .collect::<Result<_, String>>()?,
        Some(_) => return Err("`headers` must be an object".into()),
    };
    let body = given.optional_text("body")?.map(|body| fill(&body, &context.effect_key, context));
    let large = given.optional_number("body_bytes")?.map(|bytes| "x".repeat(bytes as usize));
    Ok(Request {
        method: given.optional_text("method")?.unwrap_or_else(|| "GET".into()),
        url: fill_url(&given.text("url")?, context),
        headers,
        body: large.or(body).map(String::into_bytes),
    })
}

fn fill_url(url: &str, context: &Context) -> String {
    fill(url, &query_value(&context.effect_key), context)
}

fn fill(text: &str, key: &str, context: &Context) -> String {
    text.replace("$KEY", key).replace("$ATTEMPT", &context.attempt.to_string())
}

fn http(request: &Request, read_body: bool, with_headers: bool) -> Result<Value, String> {
    let pending = http_client::start(request);
    let response: Response = pending
        .and_then(|pending| if read_body { pending.read() } else { pending.read_head() })
        .map_err(|error| error.to_string())?;
    let mut result = json!({ "status": response.status, "body": response.text() });
    if with_headers {
        let headers = response.headers.into_iter().map(|(name, value)| (name, Value::String(value)));
        result["headers"] = headers.collect();
    }
    Ok(result)
}

fn get(key: &str) -> Result<Value, String> {
    documents::get(key).map_err(document_error)?.map_or(Ok(Value::Null), json_of)
}

fn list(prefix: &str) -> Result<Value, String> {
    let entries = documents::list(prefix).map_err(document_error)?;
    entries.into_iter().map(|entry| Ok(json!({ "key": entry.key, "value": json_of(entry.value)? }))).collect()
}

fn document_error(error: DocumentError) -> String {
    match error {
        DocumentError::Denied(text) => format!("denied: {text}"),
        DocumentError::Invalid(text) => format!("invalid: {text}"),
        DocumentError::Unavailable(text) => format!("unavailable: {text}"),
    }
}

fn json_of(text: String) -> Result<Value, String> {
    serde_json::from_str(&text).map_err(|error| format!("the host passed what is not JSON ({error}): {text}"))
}

fn level(name: Option<String>) -> Result<Level, String> {
    match name.as_deref() {
        None | Some("info") => Ok(Level::Info),
        Some("debug") => Ok(Level::Debug),
        Some("warn") => Ok(Level::Warn),
        Some("error") => Ok(Level::Error),
        Some(other) => Err(format!("`{other}` is no level")),
    }
}

fn clock() -> Result<Value, String> {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|error| error.to_string())?;
    Ok(json!({ "wall_ms": wall.as_millis() as u64, "monotonic_ns": monotonic_clock::now() }))
}

fn allocate(bytes: u64, fallible: bool) -> Result<Value, String> {
    let mut memory: Vec<u8> = Vec::new();
    let bytes = usize::try_from(bytes).map_err(|_| "more than there are addresses".to_owned())?;
    match fallible {
        true => memory.try_reserve_exact(bytes).map_err(|error| error.to_string())?,
        false => memory.reserve_exact(bytes),
    }
    // Kept, and seen by nobody: without the black box the allocation would not have to happen.
    black_box(&memory);
    std::mem::forget(memory);
    Ok(Value::Null)
}

/// Fills the call stack, not the stack in linear memory: nothing of a turn needs an address. What is done with the result
/// keeps each turn's frame alive, and cannot be folded into a loop.
fn recurse(depth: u64) -> u64 {
    if depth == u64::MAX { 0 } else { (recurse(depth + 1) ^ depth).wrapping_mul(3) }
}
