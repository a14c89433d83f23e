//! The tail of what a guest writes to stdout and stderr: kept for the attempt, never printed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

/// How much of the tail is kept.
const TAIL_BYTES: usize = 8 << 10;

/// A stream that takes everything and remembers the end of it.
#[derive(Clone, Default)]
pub(super) struct StderrTail {
    tail: Arc<Mutex<VecDeque<u8>>>,
}

impl StderrTail {
    /// What was kept, as text; bytes that are not UTF-8 and NUL are replaced.
    pub fn text(&self) -> String {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let (front, back) = tail.as_slices();
        let bytes: Vec<u8> = front.iter().chain(back).copied().collect();
        crate::json::replace_nul(&String::from_utf8_lossy(&bytes)).into_owned()
    }

    fn take(&self, bytes: &[u8]) {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
        let excess = (tail.len() + bytes.len()).saturating_sub(TAIL_BYTES);
        tail.drain(..excess);
        tail.extend(bytes);
    }
}

impl IsTerminal for StderrTail {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for StderrTail {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for StderrTail {
    async fn ready(&mut self) {}
}

impl OutputStream for StderrTail {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.take(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(64 << 10)
    }
}

impl AsyncWrite for StderrTail {
    fn poll_write(self: Pin<&mut Self>, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.take(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_bounded_and_is_the_end() {
        let tail = StderrTail::default();
        tail.take(b"first ");
        tail.take(&[b'x'; TAIL_BYTES]);
        tail.take(b"\0last\xff");
        let text = tail.text();
        assert!(text.ends_with("\u{fffd}last\u{fffd}"), "{text}");
        assert!(!text.contains("first"));
        assert_eq!(tail.tail.lock().map(|tail| tail.len()).unwrap_or_default(), TAIL_BYTES);
    }
}
