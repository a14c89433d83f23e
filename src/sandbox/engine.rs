//! The wasmtime engine, tuned: pooled instances, epochs to interrupt guests, and the clock that drives the epochs.
//!
//! The figures behind the tuning are in `docs/architecture.md`. It loads no component.

use std::hash::{Hash as _, Hasher};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

/// How often a running guest is looked at: the grain of the cpu limit, and the longest that a spinning guest keeps a
/// thread to itself.
const TICK: Duration = Duration::from_millis(2);

/// How many guests may be instantiated at once; more wait for a place.
pub(super) const INSTANCES_MAX: u32 = 64;

/// How many core instances a component may consist of: a bound, not a reservation. A Rust or a JavaScript guest has 3, a
/// Python guest 14 (each shared library is one), and 44 where its WASI is stubbed (each stubbed interface is one too).
pub(super) const CORE_INSTANCES_MAX: u32 = 128;

/// The largest limit on memory that a policy can grant: a 32-bit guest cannot address more.
const MEMORY_MAX_BYTES: usize = 4 << 30;

pub(super) fn new_engine() -> wasmtime::Result<Engine> {
    let mut pool = PoolingAllocationConfig::new();
    // Per component: what toolchains in use need, with room.
    let (instances, memories, tables) = (CORE_INSTANCES_MAX, 4, 16);
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

    let mut config = config();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&config)
}

/// An engine that compiles what [`new_engine`]'s runs, and reserves no address space.
pub(super) fn compiling_engine() -> wasmtime::Result<Engine> {
    Engine::new(&config())
}

/// Says which compiled forms an engine takes: what it was built from and how it is set.
pub(super) fn fingerprint(engine: &Engine) -> String {
    struct Digest(Sha256);
    impl Hasher for Digest {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let mut digest = Digest(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut digest);
    (env!("CARGO_PKG_VERSION"), crate::component::intake::RULES).hash(&mut digest);
    hex::encode(&digest.0.finalize()[..16])
}

fn config() -> Config {
    let mut config = Config::new();
    config
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
    config
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What the one compiles the other must take, in every process.
    #[test]
    fn the_engine_that_compiles_and_the_one_that_runs_have_one_fingerprint() {
        let compiling = compiling_engine().expect("it is set up");
        let running = new_engine().expect("there is room for it");
        assert_eq!(fingerprint(&compiling), fingerprint(&running));
        assert_eq!(fingerprint(&running).len(), 32);
    }
}
