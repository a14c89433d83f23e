//! From uploaded bytes to an action that can be performed: judge, describe, check, store.
//!
//! `intake` judges the bytes before anything compiles them; the sandbox compiles and calls; this module decides whether what
//! a component says of itself is acceptable, and finds the component of an action again. It does not touch a guest's
//! instance.

mod descriptor;
pub(crate) mod intake;
#[cfg(feature = "store")]
mod registry;

pub use descriptor::{
    ActionName, Descriptor, Hooks, HttpNeed, LimitsNeed, PreparedSchemas, Refusal, check_descriptors,
};
pub use intake::{Caps, ImportReport, IntakeError, check as check_bytes};
#[cfg(feature = "store")]
pub use registry::{Inspected, PushError, Registry, descriptors, inspect};
