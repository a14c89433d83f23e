//! Compiled forms, and the one place where one becomes code that runs.
//!
//! A compiled form is machine code: using one that this host did not make itself is running whatever somebody wrote there.
//! So a [`CompiledForm`] comes of this folder's own compilers or of its authenticated cache, and of nothing else that is
//! safe.
#![allow(unsafe_code, reason = "using compiled code is unsafe by nature; it happens in this file alone")]

use bytes::Bytes;
use wasmtime::Engine;
use wasmtime::component::Component;

/// A component as machine code for this host's engine.
#[derive(Clone)]
pub struct CompiledForm {
    bytes: Bytes,
}

impl CompiledForm {
    /// For a [`Compiler`](super::Compiler) of one's own.
    ///
    /// # Safety
    /// `bytes` are, unchanged, what a compiler of this same build made: what [`serve_one_compilation`] wrote, over a channel
    /// that nobody else can write to. Anything else is the execution of arbitrary code.
    ///
    /// [`serve_one_compilation`]: super::serve_one_compilation
    pub unsafe fn from_trusted(bytes: Bytes) -> CompiledForm {
        CompiledForm { bytes }
    }

    /// What this folder's compilers made, and what its cache has verified.
    pub(super) fn of_this_compiler(bytes: Bytes) -> CompiledForm {
        CompiledForm { bytes }
    }

    /// The machine code, to be kept.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Makes it ready to run. An error is a form of another engine or another version of it.
    pub(in crate::sandbox) fn load(&self, engine: &Engine) -> wasmtime::Result<Component> {
        // SAFETY: `deserialize` asks for bytes that `precompile_component` made and nobody changed. A value of this type is
        // made in three places: by `InProcess` and `ChildProcess`, from what this program's own compiler returned, over
        // memory or an anonymous pipe to a child of this very executable; by the cache, from bytes in memory whose
        // authentication code was verified under a key that only this user can read; and by `from_trusted`, whose caller
        // vouches for it. The bytes are immutable (`Bytes`), and what was verified is what is loaded: no file is read again.
        unsafe { Component::deserialize(engine, &self.bytes) }
    }
}

impl std::fmt::Debug for CompiledForm {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "CompiledForm({} bytes)", self.bytes.len())
    }
}
