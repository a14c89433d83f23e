//! Compiling: who does it, within what, and where the result is kept.
//!
//! A [`Compiler`] turns the bytes of a component that passed intake into its compiled form: [`InProcess`] on a thread,
//! [`ChildProcess`] in a process that can be killed. Nothing here judges a component or links one.

mod cache;
mod child;
mod trusted;

use bytes::Bytes;
use futures::future::BoxFuture;

pub use self::cache::{Cache, CacheError};
pub use self::child::{ChildProcess, CompileLimits, serve_one_compilation};
pub use self::trusted::CompiledForm;
use super::engine;

/// Compiles components. The library's default is [`InProcess`]; whoever takes components from strangers wants
/// [`ChildProcess`].
pub trait Compiler: Send + Sync {
    /// Compiles a component that passed intake.
    fn compile(&self, component: Bytes) -> BoxFuture<'_, Result<CompiledForm, CompileError>>;
}

/// Why there is no compiled form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The compiler does not take it; for the guest's author.
    #[error("the component cannot be compiled: {0}")]
    Refused(String),
    /// It takes more time or memory to compile than is allowed; for the guest's author.
    #[error("the component takes too much to compile: {0}")]
    Limit(String),
    /// It could not be tried, or what came of it cannot be used; ours or the machine's to mend.
    #[error("the compiler failed: {0}")]
    Failed(String),
}

/// Compiles in this process, on a thread that blocks. What intake lets through can still take it long, and nothing can
/// stop it.
#[derive(Debug, Clone, Copy, Default)]
pub struct InProcess;

impl Compiler for InProcess {
    fn compile(&self, component: Bytes) -> BoxFuture<'_, Result<CompiledForm, CompileError>> {
        Box::pin(async move {
            let compiled = tokio::task::spawn_blocking(move || compile_here(&component)).await;
            // A panic of the compiler is its own fault, and must not be the host's.
            let bytes =
                compiled.unwrap_or_else(|_| Err(CompileError::Refused("the compiler gave up on it".to_owned())))?;
            Ok(CompiledForm::of_this_compiler(bytes.into()))
        })
    }
}

/// Compiles on this thread, with the engine's settings.
fn compile_here(component: &[u8]) -> Result<Vec<u8>, CompileError> {
    let engine = engine::compiling_engine().map_err(|error| CompileError::Failed(format!("{error:#}")))?;
    engine.precompile_component(component).map_err(|error| CompileError::Refused(format!("{error:#}")))
}
