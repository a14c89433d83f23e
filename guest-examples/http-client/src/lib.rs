//! One HTTP request at a time over `wasi:http`, for guests: send it, read the whole response, and when that fails say
//! whether the request may have arrived all the same.
//!
//! It adds no credentials and no idempotency key (the host writes both on the way out), follows no redirect, retries
//! nothing, and never panics because of what the other end or the host answers.
//!
//! The crate generates bindings for its own two imports. A guest that uses it generates the bindings of its world as if
//! this crate did not exist: both name the same interfaces, so the component imports them once.

mod encode;
mod url;

pub use encode::query_value;
pub use url::Url;

use bindings::wasi::http::outgoing_handler;
use bindings::wasi::http::types as wasi;
use bindings::wasi::io::streams::{InputStream, StreamError};
use std::fmt;

mod bindings {
    wit_bindgen::generate!({
        inline: "
            package tollgate:http-client;

            world client {
                import wasi:http/types@0.2.12;
                import wasi:http/outgoing-handler@0.2.12;
            }
        ",
        path: "../../wit",
        world: "tollgate:http-client/client",
        generate_all,
    });
}

/// The most that `blocking-write-and-flush` takes at once, by the definition of `wasi:io`.
const WRITE_BYTES_MAX: usize = 4096;
const READ_BYTES_MAX: u64 = 64 * 1024;

/// What is to be sent.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<Vec<u8>>,
}

impl Request {
    pub fn get(url: impl Into<String>) -> Self {
        Self { method: "GET".into(), url: url.into(), headers: Vec::new(), body: None }
    }

    pub fn post_json(url: impl Into<String>, json: String) -> Self {
        Self {
            method: "POST".into(),
            url: url.into(),
            headers: vec![("Content-Type".into(), "application/json".into())],
            body: Some(json.into_bytes()),
        }
    }
}

/// A final status, the headers as they came, and the whole body.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The first header of this name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(each, _)| each.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The beginning of the body, short enough for an error message.
    pub fn excerpt(&self) -> String {
        const CHARS_MAX: usize = 200;
        let text = self.text();
        match text.char_indices().nth(CHARS_MAX) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }

    /// `Retry-After` in milliseconds, where it is a number of seconds. Its other form, a date, is not read: the clocks
    /// of two machines rarely agree well enough for the seconds it is about.
    pub fn retry_after_ms(&self) -> Option<u64> {
        self.header("retry-after")?.trim().parse::<u64>().ok()?.checked_mul(1000)
    }
}

/// Why there is no response. The distinction is what an action that cannot be repeated lives by.
#[derive(Debug, Clone)]
pub enum Error {
    /// Nothing can have arrived: the request was malformed, or no connection came about.
    NotSent(String),
    /// It may have arrived, or nobody can tell. A refusal by the host looks like this too, since its error code has no
    /// room for more than a text; the host knows the difference and does not leave it in doubt.
    Unheard(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(text) | Self::Unheard(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

/// Send and read the whole response.
pub fn send(request: &Request) -> Result<Response, Error> {
    start(request)?.read()
}

/// Send without waiting for the response.
pub fn start(request: &Request) -> Result<Pending, Error> {
    let outgoing = outgoing_request(request)?;
    let body = outgoing.body().map_err(|()| Error::NotSent("the request's body was taken twice".into()))?;
    // The request must be under way before its body is written: nobody drains the body before.
    let response = outgoing_handler::handle(outgoing, None).map_err(refused)?;
    write_body(body, request.body.as_deref().unwrap_or_default());
    Ok(Pending { response })
}

/// A request under way. Dropping it aborts the request, if it still is.
pub struct Pending {
    response: wasi::FutureIncomingResponse,
}

impl Pending {
    /// Wait for the response and read all of it.
    pub fn read(self) -> Result<Response, Error> {
        let (head, incoming) = self.wait()?;
        let body = read_body(incoming)?;
        Ok(Response { body, ..head })
    }

    /// Wait for status and headers alone, and leave the body unread.
    pub fn read_head(self) -> Result<Response, Error> {
        Ok(self.wait()?.0)
    }

    /// Keep the request going without ever looking at it again, until the export returns.
    pub fn forget(self) {
        std::mem::forget(self.response);
    }

    fn wait(self) -> Result<(Response, wasi::IncomingResponse), Error> {
        self.response.subscribe().block();
        let incoming = match self.response.get() {
            Some(Ok(answer)) => answer.map_err(failed)?,
            Some(Err(())) => return Err(Error::Unheard("the response was taken twice".into())),
            None => return Err(Error::Unheard("the host woke the guest without a response".into())),
        };
        let headers = incoming.headers().entries().into_iter();
        let headers = headers.map(|(name, value)| (name, String::from_utf8_lossy(&value).into_owned())).collect();
        Ok((Response { status: incoming.status(), headers, body: Vec::new() }, incoming))
    }
}

fn outgoing_request(request: &Request) -> Result<wasi::OutgoingRequest, Error> {
    let url = Url::parse(&request.url).map_err(Error::NotSent)?;
    let refuse = |what: &str, value: &str| Error::NotSent(format!("`{value}` is no acceptable {what} of a request"));

    let headers = wasi::Fields::new();
    for (name, value) in &request.headers {
        headers
            .append(name, value.as_bytes())
            .map_err(|error| Error::NotSent(format!("header `{name}` of the request: {error}")))?;
    }
    let outgoing = wasi::OutgoingRequest::new(headers);
    outgoing.set_method(&method(&request.method)).map_err(|()| refuse("method", &request.method))?;
    outgoing.set_scheme(Some(&scheme(url.scheme))).map_err(|()| refuse("scheme", url.scheme))?;
    outgoing.set_authority(Some(url.authority)).map_err(|()| refuse("host", url.authority))?;
    outgoing.set_path_with_query(Some(&url.path_with_query)).map_err(|()| refuse("path", &url.path_with_query))?;
    Ok(outgoing)
}

fn method(name: &str) -> wasi::Method {
    match name {
        "GET" => wasi::Method::Get,
        "HEAD" => wasi::Method::Head,
        "POST" => wasi::Method::Post,
        "PUT" => wasi::Method::Put,
        "PATCH" => wasi::Method::Patch,
        "DELETE" => wasi::Method::Delete,
        "OPTIONS" => wasi::Method::Options,
        other => wasi::Method::Other(other.to_owned()),
    }
}

fn scheme(name: &str) -> wasi::Scheme {
    match name {
        "http" => wasi::Scheme::Http,
        "https" => wasi::Scheme::Https,
        other => wasi::Scheme::Other(other.to_owned()),
    }
}

/// Errors are dropped on purpose. A request that the host refuses closes its body first, and the reason is only in the
/// response: whoever gives up here never learns it. A body that really broke off makes the response an error too.
fn write_body(body: wasi::OutgoingBody, bytes: &[u8]) {
    if let Ok(stream) = body.write() {
        let _ = bytes.chunks(WRITE_BYTES_MAX).try_for_each(|chunk| stream.blocking_write_and_flush(chunk));
    }
    let _ = wasi::OutgoingBody::finish(body, None);
}

fn read_body(response: wasi::IncomingResponse) -> Result<Vec<u8>, Error> {
    let taken = |()| Error::Unheard("the response's body was taken twice".into());
    let body = response.consume().map_err(taken)?;
    let stream: InputStream = body.stream().map_err(taken)?;
    let mut whole = Vec::new();
    loop {
        match stream.blocking_read(READ_BYTES_MAX) {
            Ok(bytes) => whole.extend(bytes),
            Err(StreamError::Closed) => return Ok(whole),
            Err(StreamError::LastOperationFailed(error)) => {
                let reason = match wasi::http_error_code(&error) {
                    Some(code) => describe(&code),
                    None => error.to_debug_string(),
                };
                return Err(Error::Unheard(format!("the response broke off: {reason}")));
            }
        }
    }
}

/// `handle` itself said no, so the request never began.
fn refused(code: wasi::ErrorCode) -> Error {
    Error::NotSent(describe(&code))
}

fn failed(code: wasi::ErrorCode) -> Error {
    use wasi::ErrorCode as Code;
    let text = describe(&code);
    match code {
        // Each of these comes before the first byte of a request: no name, no route, no connection, or the host's no.
        Code::DnsTimeout
        | Code::DnsError(_)
        | Code::DestinationNotFound
        | Code::DestinationUnavailable
        | Code::DestinationIpProhibited
        | Code::DestinationIpUnroutable
        | Code::ConnectionRefused
        | Code::TlsCertificateError
        | Code::HttpRequestDenied
        | Code::HttpRequestUriInvalid
        | Code::HttpRequestMethodInvalid => Error::NotSent(text),
        _ => Error::Unheard(text),
    }
}

/// The code's own text where it has one (there the host says what is missing), else its name.
fn describe(code: &wasi::ErrorCode) -> String {
    match code {
        wasi::ErrorCode::InternalError(Some(text)) => text.clone(),
        wasi::ErrorCode::ConnectionRefused => "the connection was refused".into(),
        wasi::ErrorCode::ConnectionTimeout => "the connection timed out".into(),
        wasi::ErrorCode::ConnectionTerminated => "the connection ended before a response".into(),
        wasi::ErrorCode::HttpResponseTimeout => "no response in time".into(),
        wasi::ErrorCode::HttpRequestDenied => "the host refused the request".into(),
        other => format!("{other:?}").trim_start_matches("ErrorCode::").to_owned(),
    }
}
