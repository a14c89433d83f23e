//! Component intake: is this a component, is it small enough to compile, is it valid, does it fit the interface?
//!
//! Everything here happens before the compiler sees a byte, and everything that is wrong is named at once, in WIT's own
//! words. Pure: no I/O, no clock, no engine. It runs no guest, and what it accepts the sandbox still links for itself, so
//! that nothing is trusted because of what is said here.

mod found;
mod interface;
mod judge;
mod measure;
mod shape;

use wasmparser::{Validator, WasmFeatures};

pub(crate) use judge::{ACTIONS, is_linked, is_wasi_0_2};
pub use measure::Caps;

/// The version of these rules: what passed older ones is judged again before its compiled form is used.
pub(crate) const RULES: u32 = 1;

/// What the host makes of one import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportReport {
    /// `wasi:http/outgoing-handler@0.2.12`.
    pub name: String,
    /// Whether calling it only refuses: this version of the host has nothing behind it.
    pub stubbed: bool,
}

/// Why bytes are not accepted; for the guest's author.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IntakeError {
    /// They are something else than a component.
    #[error("{0}")]
    NotAComponent(String),
    /// They begin like a component and end before it does.
    #[error("{0}")]
    Truncated(String),
    /// It is larger, in one way or several, than what is compiled. All of them at once.
    #[error("{}", .0.join("\n"))]
    TooMuch(Vec<String>),
    /// It is no valid WebAssembly.
    #[error("{0}")]
    Invalid(String),
    /// It does not fit the interface: its imports and exports, all that is wrong with them at once.
    #[error("{}", .0.join("\n"))]
    Interface(Vec<String>),
}

/// Judges the bytes of a component, in time and memory that grow with their number alone.
///
/// # Errors
/// [`IntakeError`], for the guest's author.
pub fn check(bytes: &[u8], caps: &Caps) -> Result<Vec<ImportReport>, IntakeError> {
    if let Some(fault) = caps.fault_of_size(bytes.len()) {
        return Err(IntakeError::TooMuch(vec![fault]));
    }
    measure::recognise(bytes)?;
    let outline = measure::measure(bytes, caps)?;
    let types = Validator::new_with_features(features()).validate_all(bytes).map_err(|error| {
        IntakeError::Invalid(format!("the component is not valid: {} (at byte {})", error.message(), error.offset()))
    })?;
    judge::judge(&outline, types.as_ref())
}

/// What the engine accepts, so that the compiler is never the first to say no.
fn features() -> WasmFeatures {
    let off = WasmFeatures::MEMORY64 | WasmFeatures::THREADS | WasmFeatures::EXCEPTIONS | WasmFeatures::GC_TYPES;
    WasmFeatures::WASM3.difference(off) | WasmFeatures::COMPONENT_MODEL
}
