//! One request over one connection: resolve, check the address, dial it, TLS, send, hear the answer whole.
//!
//! Every byte of the request goes through a [`Guard`], which is asked before each write: nothing else in this crate writes
//! to a guest's socket. There is no pool, no proxy, no redirect and no retry: each of them would make a request that the
//! journal does not know.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::address;

/// Asked before every write of a request.
pub(crate) trait Guard: Send + Sync + 'static {
    /// Whether a byte may leave now. The first `Ok` is the moment at which the request left.
    fn may_write(&self) -> Result<(), String>;

    /// Bytes were handed to the network and flushed.
    fn flushed(&self);
}

/// How long to wait for what, within the attempt's wall limit; `None` waits for that alone.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Timeouts {
    pub connect: Option<Duration>,
    pub first_byte: Option<Duration>,
}

/// Why a request came to nothing. Whether it left is the guard's to know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("the name {host} does not resolve: {error}")]
    Resolve { host: String, error: String },
    #[error("{host} is at {address}, which is {range}: not reachable unless a rule names the range")]
    Address { host: String, address: IpAddr, range: &'static str },
    #[error("cannot connect to {address}: {error}")]
    Connect { address: SocketAddr, error: String },
    #[error("no TLS connection with {host}: {error}")]
    Tls { host: String, error: String },
    #[error("the connection broke: {0}")]
    Transport(String),
    #[error("timed out {0}")]
    Timeout(&'static str),
    /// The status arrived, and then the body broke off.
    #[error("the body of the {status} response broke off: {error}")]
    Body { status: u16, error: String },
    #[error("the response is larger than {limit} bytes")]
    ResponseTooLarge { limit: u64, status: u16 },
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Heard {
    pub response: http::Response<Bytes>,
}

/// The addresses of `url` that may be dialled, each checked.
pub(crate) async fn resolve(url: &Url, allowed: &[IpNet]) -> Result<Vec<SocketAddr>, ClientError> {
    let port = url.port_or_known_default().unwrap_or(443);
    let host = url.host_str().unwrap_or_default().to_owned();
    let candidates: Vec<SocketAddr> = match url.host() {
        Some(Host::Ipv4(address)) => vec![SocketAddr::from((address, port))],
        Some(Host::Ipv6(address)) => vec![SocketAddr::from((address, port))],
        Some(Host::Domain(name)) => tokio::net::lookup_host((name, port))
            .await
            .map_err(|error| ClientError::Resolve { host: host.clone(), error: error.to_string() })?
            .collect(),
        None => Vec::new(),
    };
    let mut refusal = None;
    let mut checked = Vec::new();
    for candidate in candidates {
        match address::refused(candidate.ip(), allowed) {
            None => checked.push(candidate),
            Some(range) => {
                refusal = Some(ClientError::Address { host: host.clone(), address: candidate.ip(), range });
            }
        }
    }
    match (checked.is_empty(), refusal) {
        (false, _) => Ok(checked),
        (true, Some(refusal)) => Err(refusal),
        (true, None) => Err(ClientError::Resolve { host, error: "it has no address".to_owned() }),
    }
}

/// Sends `request` to the first of `addresses` that accepts a connection and hears the whole answer.
pub(crate) async fn send(
    addresses: &[SocketAddr],
    url: &Url,
    request: http::Request<Full<Bytes>>,
    timeouts: Timeouts,
    response_bytes_max: u64,
    guard: Arc<dyn Guard>,
) -> Result<Heard, ClientError> {
    let stream = within(timeouts.connect, "while connecting", dial(addresses)).await?;
    if url.scheme() == "https" {
        let host = url.host_str().unwrap_or_default();
        let stream = within(timeouts.connect, "in the TLS handshake", handshake(host, stream)).await?;
        exchange(Guarded { stream, guard, wrote: false }, request, timeouts, response_bytes_max).await
    } else {
        exchange(Guarded { stream, guard, wrote: false }, request, timeouts, response_bytes_max).await
    }
}

async fn dial(addresses: &[SocketAddr]) -> Result<TcpStream, ClientError> {
    let mut last = ClientError::Transport("there is no address to dial".to_owned());
    for &address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Nagle's algorithm would hold a small request back; failing to turn it off only costs time.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last = ClientError::Connect { address, error: error.to_string() },
        }
    }
    Err(last)
}

async fn handshake(host: &str, stream: TcpStream) -> Result<tokio_rustls::client::TlsStream<TcpStream>, ClientError> {
    static CONNECTOR: LazyLock<Result<TlsConnector, String>> = LazyLock::new(|| {
        let mut roots = rustls::RootCertStore::empty();
        // Certificates that do not parse are passed over: a machine's store often holds some.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map(|config| config.with_root_certificates(roots).with_no_client_auth())
            .map(|config| TlsConnector::from(Arc::new(config)))
            .map_err(|error| error.to_string())
    });
    let failed = |error: String| ClientError::Tls { host: host.to_owned(), error };
    let connector = CONNECTOR.as_ref().map_err(|error| failed(error.clone()))?;
    let name =
        ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(|error| failed(error.to_string()))?;
    connector.connect(name, stream).await.map_err(|error| failed(error.to_string()))
}

async fn exchange<S>(
    stream: Guarded<S>,
    request: http::Request<Full<Bytes>>,
    timeouts: Timeouts,
    response_bytes_max: u64,
) -> Result<Heard, ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broke = |error: hyper::Error| ClientError::Transport(describe(&error));
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        // Bounds what the head of a response can make us hold.
        .max_buf_size(64 * 1024)
        .max_headers(128)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(broke)?;
    // The connection is driven beside the exchange and ends with it: dropping the guard aborts it.
    let connection = AbortOnDrop(tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection of a guest's request ended");
        }
    }));
    let response = within(timeouts.first_byte, "waiting for the answer", async {
        sender.send_request(request).await.map_err(broke)
    })
    .await?;
    let (head, mut body) = response.into_parts();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| ClientError::Body { status: head.status.as_u16(), error: describe(&error) })?;
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() as u64 + data.len() as u64 > response_bytes_max {
            return Err(ClientError::ResponseTooLarge { limit: response_bytes_max, status: head.status.as_u16() });
        }
        whole.extend_from_slice(&data);
    }
    drop(connection);
    Ok(Heard { response: http::Response::from_parts(head, whole.freeze()) })
}

async fn within<T>(
    limit: Option<Duration>,
    doing: &'static str,
    work: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    match limit {
        None => work.await,
        Some(limit) => tokio::time::timeout(limit, work).await.unwrap_or(Err(ClientError::Timeout(doing))),
    }
}

/// hyper's own text says which half broke; the cause says why.
fn describe(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A stream whose every write asks first.
struct Guarded<S> {
    stream: S,
    guard: Arc<dyn Guard>,
    wrote: bool,
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Err(refusal) = self.guard.may_write() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal)));
        }
        self.wrote = true;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS holds bytes back until they are flushed, so a flush is a write.
        if self.wrote
            && let Err(refusal) = self.guard.may_write()
        {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal)));
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if self.wrote && matches!(flushed, Poll::Ready(Ok(()))) {
            self.guard.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Closing a TLS connection flushes what it still holds back.
        if self.wrote
            && let Err(refusal) = self.guard.may_write()
        {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal)));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
