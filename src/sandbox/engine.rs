//! The wasmtime engine, tuned: pooled instances, epochs to interrupt guests, and the clock that drives the epochs.
//!
//! The figures behind the tuning are in `docs/architecture.md`. It loads no component.

use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

/// How often a running guest is looked at: the grain of the cpu limit, and the longest that a spinning guest keeps a
/// thread to itself.
const TICK: Duration = Duration::from_millis(2);

/// How many guests may be instantiated at once; more wait for a place.
pub(super) const INSTANCES_MAX: u32 = 64;

/// The largest limit on memory that a policy can grant: a 32-bit guest cannot address more.
const MEMORY_MAX_BYTES: usize = 4 << 30;

pub(super) fn new_engine() -> wasmtime::Result<Engine> {
    let mut pool = PoolingAllocationConfig::new();
    // Per component: what toolchains in use need (a Rust guest: 1 memory, 3 core instances), with room.
    let (instances, memories, tables) = (32, 4, 16);
    pool.total_component_instances(INSTANCES_MAX)
        .total_core_instances(INSTANCES_MAX * instances)
        .total_memories(INSTANCES_MAX * memories)
        .total_tables(INSTANCES_MAX * tables)
        .total_stacks(INSTANCES_MAX)
        .max_core_instances_per_component(instances)
        .max_memories_per_component(memories)
        .max_tables_per_component(tables)
        .max_memory_size(MEMORY_MAX_BYTES)
        .table_elements(100_000)
        // Resetting touched pages in place beats giving them back, and costs up to this much per warm slot.
        .linear_memory_keep_resident(2 << 20)
        .table_keep_resident(64 << 10)
        .max_unused_warm_slots(8);

    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .epoch_interruption(true)
        .max_wasm_stack(512 << 10)
        .async_stack_size(2 << 20)
        .wasm_component_model(true)
        // 64-bit memories would escape the pool's bound on memory; nothing in WASI 0.2 needs them. Threads, whose shared
        // memories would too, are not compiled into this host.
        .wasm_memory64(false)
        // A pure action's second run is byte-identical to its first, on any machine.
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        .concurrency_support(false);
    Engine::new(&config)
}

/// Raises the engine's epoch while guests run, and sleeps while none does.
pub(super) struct Ticker {
    shared: Arc<Running>,
}

struct Running {
    guests: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Ticker {
    /// Starts the thread; it ends when the ticker is dropped.
    pub fn start(engine: &Engine) -> std::io::Result<Ticker> {
        let shared = Arc::new(Running { guests: Mutex::new((0, false)), changed: Condvar::new() });
        let (weak, engine): (Weak<Running>, _) = (Arc::downgrade(&shared), engine.weak());
        std::thread::Builder::new().name("tollgate-epoch".to_owned()).spawn(move || {
            while let (Some(running), Some(engine)) = (weak.upgrade(), engine.upgrade()) {
                let guests = running.guests.lock().unwrap_or_else(PoisonError::into_inner);
                let guests = running
                    .changed
                    .wait_while(guests, |(count, stop)| *count == 0 && !*stop)
                    .unwrap_or_else(PoisonError::into_inner);
                if guests.1 {
                    return;
                }
                drop(guests);
                drop(running);
                std::thread::sleep(TICK);
                engine.increment_epoch();
            }
        })?;
        Ok(Ticker { shared })
    }

    /// Ticks until the value is dropped.
    pub fn guest_runs(&self) -> GuestRuns {
        self.shared.guests.lock().unwrap_or_else(PoisonError::into_inner).0 += 1;
        self.shared.changed.notify_all();
        GuestRuns { shared: self.shared.clone() }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.guests.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.shared.changed.notify_all();
    }
}

/// A guest is running.
pub(super) struct GuestRuns {
    shared: Arc<Running>,
}

impl Drop for GuestRuns {
    fn drop(&mut self) {
        self.shared.guests.lock().unwrap_or_else(PoisonError::into_inner).0 -= 1;
    }
}
