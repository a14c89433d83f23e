//! From uploaded bytes to an action that can be performed: describe, check, store, compile.
//!
//! The sandbox compiles and calls; this module decides whether what a component says of itself is acceptable, and finds the
//! component of an action again. It does not touch a guest's instance.

mod descriptor;
#[cfg(feature = "sqlite")]
mod registry;

pub use descriptor::{
    ActionName, Descriptor, Hooks, HttpNeed, LimitsNeed, PreparedSchemas, Refusal, check_descriptors,
};
#[cfg(feature = "sqlite")]
pub use registry::{Inspected, PushError, Registry, descriptors, inspect};
