//! The sandbox: the engine, the components loaded into it, and one instance per attempt.
//!
//! Nothing outside this folder names wasmtime. It enforces the class × phase table on every import, memory, cpu and wall
//! limits on every call, and never uses an instance again that trapped: a call consumes its instance and gives it back
//! only if it returned. It writes nothing to a store and decides nothing about effects.

mod bindings;
mod clocks;
mod compile;
mod component;
mod engine;
mod fault;
#[cfg(feature = "bench-floors")]
pub mod floor;
mod host;
mod http;
mod instance;
mod limits;
mod sockets;
mod state;
mod stderr;

use std::sync::Arc;

use tokio::sync::Semaphore;
use wasmtime::Engine;
use wasmtime::component::{HasSelf, Linker};

use crate::component::Caps;

pub use self::compile::{
    Cache, CacheError, ChildProcess, CompileError, CompileLimits, CompiledForm, Compiler, InProcess,
    serve_one_compilation,
};
pub use self::component::{Component, DescribeError, LoadError};
pub use self::fault::Fault;
pub use self::instance::{Attempt, AttemptSetup, CallContext, Instance, Outcome, PlanIssue, Planned, Reconciled};
use self::state::GuestState;
pub use self::state::{Observer, Unobserved};

/// An engine with everything that a guest can import linked into it. Make one per process and share it.
#[derive(Clone)]
pub struct Sandbox {
    inner: Arc<Inner>,
    compiler: Arc<dyn Compiler>,
    cache: Option<Cache>,
    caps: Arc<Caps>,
}

struct Inner {
    engine: Engine,
    fingerprint: String,
    linker: Linker<GuestState>,
    ticker: engine::Ticker,
    places: Arc<Semaphore>,
}

/// Why the sandbox could not be set up: ours or the machine's to mend.
#[derive(Debug, thiserror::Error)]
#[error("the sandbox cannot be set up on this machine: {0}")]
pub struct SandboxError(String);

impl Sandbox {
    /// Sets up the engine; components are compiled in this process and kept nowhere. Reserves address space, not memory.
    ///
    /// # Errors
    /// Where the machine refuses the address space or a thread; the text says what wasmtime or the system said.
    pub fn new() -> Result<Sandbox, SandboxError> {
        let failed = |error: String| SandboxError(error);
        let engine = engine::new_engine().map_err(|error| failed(format!("{error:#}")))?;
        let linker = linker(&engine).map_err(|error| failed(format!("{error:#}")))?;
        let ticker = engine::Ticker::start(&engine).map_err(|error| failed(error.to_string()))?;
        let places = Arc::new(Semaphore::new(engine::INSTANCES_MAX as usize));
        let fingerprint = engine::fingerprint(&engine);
        let inner = Arc::new(Inner { engine, fingerprint, linker, ticker, places });
        Ok(Sandbox { inner, compiler: Arc::new(InProcess), cache: None, caps: Arc::default() })
    }

    /// The same sandbox with another compiler than [`InProcess`].
    #[must_use]
    pub fn with_compiler(self, compiler: Arc<dyn Compiler>) -> Sandbox {
        Sandbox { compiler, ..self }
    }

    /// The same sandbox with a place for compiled forms.
    #[must_use]
    pub fn with_cache(self, cache: Cache) -> Sandbox {
        Sandbox { cache: Some(cache), ..self }
    }

    /// The same sandbox with other caps on what is compiled.
    #[must_use]
    pub fn with_caps(self, caps: Caps) -> Sandbox {
        Sandbox { caps: Arc::new(caps), ..self }
    }
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Sandbox")
    }
}

fn linker(engine: &Engine) -> wasmtime::Result<Linker<GuestState>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    sockets::refuse(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    bindings::tollgate::action::types::add_to_linker::<_, HasSelf<GuestState>>(&mut linker, |state| state)?;
    bindings::tollgate::action::host::add_to_linker::<_, HasSelf<GuestState>>(&mut linker, |state| state)?;
    bindings::tollgate::action::documents::add_to_linker::<_, HasSelf<GuestState>>(&mut linker, |state| state)?;
    Ok(linker)
}
