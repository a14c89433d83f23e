//! Limits that the sandbox itself enforces: memory in total, and time on the processor.
//!
//! Wall time is the caller's, who drops the call; requests and their sizes are egress's.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use wasmtime::{ResourceLimiter, StoreContextMut, UpdateDeadline};

use super::engine::CORE_INSTANCES_MAX;
use super::state::GuestState;

/// A guest used up its time on the processor. Raised as a trap, found again by downcasting.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("used {used_ms} ms of processor time, and the limit `cpu` is {limit_ms} ms")]
pub(super) struct CpuExceeded {
    pub used_ms: u64,
    pub limit_ms: u64,
}

/// A guest wanted more memory than its limit allows.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("asked for {requested} bytes of memory in total, and the limit `memory` is {limit} bytes")]
pub(super) struct MemoryExceeded {
    pub requested: u64,
    pub limit: u64,
}

/// Memory of all linear memories and tables of one attempt together.
#[derive(Debug)]
pub(super) struct MemoryMeter {
    limit: u64,
    used: u64,
    last_growth: u64,
    /// The most that was held at once.
    pub peak: u64,
    /// Instantiating cannot say no politely, so it traps with a type.
    pub instantiating: bool,
    /// The last growth that was refused: an `unreachable` that follows is its echo.
    pub refused: Option<MemoryExceeded>,
}

/// What a table entry costs the host: a pointer, and its share of what it points to.
const TABLE_ENTRY_BYTES: u64 = 16;

impl MemoryMeter {
    pub fn new(limit: u64) -> MemoryMeter {
        MemoryMeter { limit, used: 0, last_growth: 0, peak: 0, instantiating: true, refused: None }
    }

    fn grow(&mut self, bytes: u64) -> wasmtime::Result<bool> {
        let requested = self.used.saturating_add(bytes);
        if requested > self.limit {
            let refused = MemoryExceeded { requested, limit: self.limit };
            self.refused = Some(refused);
            return if self.instantiating { Err(refused.into()) } else { Ok(false) };
        }
        self.used = requested;
        self.last_growth = bytes;
        self.peak = self.peak.max(self.used);
        Ok(true)
    }

    /// wasmtime granted a growth and then could not carry it out.
    fn undo(&mut self) {
        self.used = self.used.saturating_sub(self.last_growth);
        self.last_growth = 0;
    }
}

impl ResourceLimiter for MemoryMeter {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        self.grow(desired.saturating_sub(current) as u64)
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.undo();
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        self.grow((desired.saturating_sub(current) as u64).saturating_mul(TABLE_ENTRY_BYTES))
    }

    fn table_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.undo();
        Ok(())
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES_MAX as usize
    }

    fn tables(&self) -> usize {
        64
    }

    fn memories(&self) -> usize {
        16
    }
}

/// Time on the processor of one attempt, host waits not counted.
#[derive(Debug)]
pub(super) struct CpuMeter {
    limit_ns: u64,
    used_ns: AtomicU64,
    /// The thread's clock when the current poll began.
    poll_began_ns: AtomicU64,
}

impl CpuMeter {
    pub fn new(limit: Duration) -> Arc<CpuMeter> {
        Arc::new(CpuMeter {
            limit_ns: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX),
            used_ns: AtomicU64::new(0),
            poll_began_ns: AtomicU64::new(0),
        })
    }

    pub fn used(&self) -> Duration {
        Duration::from_nanos(self.used_ns.load(Ordering::Relaxed))
    }

    /// Asked at each epoch, from within a poll: has the guest used up its time?
    pub fn check(&self) -> Result<(), CpuExceeded> {
        let poll = thread_cpu_ns().saturating_sub(self.poll_began_ns.load(Ordering::Relaxed));
        let used = self.used_ns.load(Ordering::Relaxed).saturating_add(poll);
        if used <= self.limit_ns {
            return Ok(());
        }
        Err(CpuExceeded { used_ms: used / 1_000_000, limit_ms: self.limit_ns / 1_000_000 })
    }

    /// Meters every poll of `inner`.
    pub fn meter<F>(self: &Arc<Self>, inner: F) -> Metered<F> {
        Metered { inner: Box::pin(inner), meter: self.clone() }
    }
}

/// The epoch callback of every store: stop at the limit, else let the others run.
pub(super) fn at_epoch(store: StoreContextMut<'_, GuestState>) -> wasmtime::Result<UpdateDeadline> {
    store.data().cpu.check()?;
    Ok(UpdateDeadline::Yield(1))
}

/// A future whose polls are metered by the thread's own clock, wherever it is polled.
pub(super) struct Metered<F> {
    inner: Pin<Box<F>>,
    meter: Arc<CpuMeter>,
}

impl<F: Future> Future for Metered<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let began = thread_cpu_ns();
        self.meter.poll_began_ns.store(began, Ordering::Relaxed);
        let polled = self.inner.as_mut().poll(cx);
        self.meter.used_ns.fetch_add(thread_cpu_ns().saturating_sub(began), Ordering::Relaxed);
        polled
    }
}

fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}
