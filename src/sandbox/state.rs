//! The data of one store: what the host functions of one instance work with.
//!
//! It decides nothing: the class × phase table does, the grant does, the journal does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::clocks::{self, Frozen};
use super::http::HttpHooks;
use super::limits::{CpuMeter, MemoryMeter};
use super::stderr::StderrTail;
use crate::capability::{Capability, Phase, allows};
use crate::clock::Ambient;
use crate::effect::EffectClass;
use crate::egress::Egress;
use crate::journal::{DocumentRead, DocumentWrite, Journal};
use crate::worker::lease::Lease;

/// Resources that a guest may hold at once: each is a host allocation.
const RESOURCES_MAX: usize = 4_096;

/// Whoever watches an attempt as it goes.
pub trait Observer: Send + Sync {
    /// The guest reported progress: `done` of `total`, where a total is known.
    fn progress(&self, step: &str, done: u64, total: Option<u64>, message: &str);

    /// The guest logged a line.
    fn log(&self, step: &str, level: &str, message: &str);
}

/// Watches nothing.
#[derive(Debug, Clone, Copy)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn progress(&self, _step: &str, _done: u64, _total: Option<u64>, _message: &str) {}

    fn log(&self, _step: &str, _level: &str, _message: &str) {}
}

/// Everything about an attempt that its instances share.
pub(super) struct Shared {
    pub class: EffectClass,
    pub app: String,
    pub step: String,
    pub logs_bytes_max: u64,
    pub variables: String,
    pub with: Arc<Value>,
    pub input: Arc<Value>,
    pub frozen: Frozen,
    pub egress: Egress,
    pub journal: Option<Arc<dyn Journal>>,
    pub lease: Arc<Lease>,
    pub ambient: Ambient,
    pub observer: Arc<dyn Observer>,
    pub cpu: Arc<CpuMeter>,
    pub stderr: StderrTail,
    pub notes: Mutex<Notes>,
    pub documents: Mutex<Documents>,
}

/// What an attempt leaves behind, whatever becomes of its instances.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub logs: Vec<String>,
    pub logs_bytes: u64,
    pub logs_dropped: bool,
    pub memory_peak: u64,
}

/// What an attempt read and wrote of its app's documents. Nothing is written to the store before the attempt settles.
#[derive(Debug, Default)]
pub(super) struct Documents {
    /// Every key read from the store, and what it held.
    pub keys: BTreeMap<String, Option<String>>,
    /// Every prefix listed, and what it held.
    pub ranges: BTreeMap<String, Vec<(String, String)>>,
    /// Bytes of all that was read, keys included.
    pub read_bytes: usize,
    /// Buffered writes; `None` removes.
    pub writes: BTreeMap<String, Option<String>>,
}

impl Shared {
    pub fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn documents(&self) -> MutexGuard<'_, Documents> {
        self.documents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The documents' reads and writes, as a commit takes them.
    pub fn take_documents(&self) -> (Vec<DocumentRead>, Vec<DocumentWrite>) {
        let Documents { keys, ranges, writes, .. } = std::mem::take(&mut *self.documents());
        let app = || self.app.clone();
        let keys = keys.into_iter().map(|(key, seen)| DocumentRead::Key { app: app(), key, seen });
        let ranges = ranges.into_iter().map(|(prefix, seen)| DocumentRead::Range { app: app(), prefix, seen });
        let writes = writes.into_iter().map(|(key, value)| DocumentWrite { app: app(), key, value }).collect();
        (keys.chain(ranges).collect(), writes)
    }
}

/// The data of one store.
pub(super) struct GuestState {
    pub shared: Arc<Shared>,
    pub phase: Phase,
    pub memory: MemoryMeter,
    pub cpu: Arc<CpuMeter>,
    /// Of the present phase; made when the guest first asks for anything of it, which most calls never do.
    wasi: Option<WasiCtx>,
    http: WasiHttpCtx,
    hooks: HttpHooks,
    table: ResourceTable,
}

impl GuestState {
    pub fn new(shared: Arc<Shared>, memory: MemoryMeter) -> GuestState {
        let mut table = ResourceTable::new();
        table.set_max_capacity(RESOURCES_MAX);
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(64 << 10);
        GuestState {
            phase: Phase::Describe,
            memory,
            cpu: shared.cpu.clone(),
            wasi: None,
            http,
            hooks: HttpHooks::new(shared.egress.clone()),
            table,
            shared,
        }
    }

    /// The host calls the export of `phase` next: clocks and randomness start anew.
    pub fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.memory.instantiating = false;
        // A growth refused in an earlier phase is no explanation of a trap in this one.
        self.memory.refused = None;
        self.shared.egress.enter(phase);
        self.wasi = None;
    }

    /// Whether the phase may use `capability`; a refusal is recorded with its reason.
    pub fn check(&self, capability: Capability) -> Result<(), String> {
        if allows(self.shared.class, self.phase, capability) {
            return Ok(());
        }
        let reason =
            format!("{} is not for {} of a {} action", capability.as_str(), self.phase, self.shared.class.as_str());
        self.shared.egress.deny(capability.as_str(), &reason, "");
        Err(reason)
    }
}

/// A request body whose writer is gone looks like one that is whole. So egress is closed before the resources go, however
/// the instance ends: returned from, trapped, or given up with the future that called it.
impl Drop for GuestState {
    fn drop(&mut self) {
        self.shared.egress.close();
    }
}

impl WasiView for GuestState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let GuestState { wasi, table, shared, phase, .. } = self;
        let ctx = wasi.get_or_insert_with(|| {
            let real = allows(shared.class, *phase, Capability::RealTime);
            clocks::context(*phase, (!real).then_some(&shared.frozen), &shared.stderr)
        });
        WasiCtxView { ctx, table }
    }
}

impl WasiHttpView for GuestState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.hooks, table: &mut self.table, ctx: &mut self.http }
    }
}
