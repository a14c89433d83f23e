//! Tollgate runs other people's actions safely.
//!
//! An app team uploads a WebAssembly component; a workflow names its actions; a worker performs them. Between the guest's
//! code and the world stands the host: it decides what the guest may touch, charges a budget before anything leaves, writes
//! down that an effect is about to happen before it happens, and after a crash asks what became of it instead of doing it
//! twice.
//!
//! # The flow
//!
//! ```text
//! bytes ──► component ──► store                         upload: judge, compile, describe, store
//! file  ──► workflow  ──► store                         check, freeze, publish a run
//! run   ──► run::drive ──► perform ──► settled ──► …    one step after the other
//!                           │
//!                           ├─ recall      what the journal says already      (R8, R9)
//!                           ├─ authorize   may they?                          (R4)
//!                           ├─ plan        what would it consume?             (R5)
//!                           ├─ charge      budget and mark, one commit        (R6, R7)
//!                           ├─ act         sandbox ──► egress ──► the world   (R11)
//!                           └─ settle      effect, result, events, one commit (R9, R12, R13)
//! ```
//!
//! # The map
//!
//! - [`mod@perform`]: the contract around one guest call, readable top to bottom.
//! - [`effect`], [`budget`], [`capability`]: pure tables. None of them performs I/O.
//! - [`sandbox`]: engine, limits, instances, imports. Nothing outside it names wasmtime.
//! - [`egress`]: what may leave, and the proof of what did.
//! - [`policy`]: the operator's file, validated. It grants; nothing else does.
//! - [`component`]: whether an upload is acceptable, and what it says of itself.
//! - [`workflow`]: parse, check, freeze, evaluate. No I/O.
//! - [`run`]: states and transitions, starting, driving, dry-running and resolving a run.
//! - [`worker`]: the lease.
//! - [`journal`]: what one performed step writes down, and the trait through which it does.
//! - [`store`]: the journal and the run repository on SQLite. Nothing outside it names a table.
//! - [`clock`]: time and ids are passed in.
//!
//! # What holds everywhere
//!
//! - An effectful request leaves only between a durable mark (or, for an idempotent action, a reservation) and its
//!   deadline, under a live lease, from `run`, by a rule of the policy.
//! - Every durable write of a performer names the generation of its run.
//! - No input of a guest, a file or a network makes the host panic.
//! - Machine code runs only if this build's compiler made it: `sandbox::compile::trusted` alone is `unsafe`.
//! - Nothing global is installed: no logger, no runtime, no signal handler, no default TLS provider.
//!
//! # Features
//!
//! `sqlite` is the built-in store; `cli` is the program. Without either the library is the gate alone: an embedder brings a
//! [`journal::Journal`].

pub mod budget;
pub mod capability;
pub mod clock;
pub mod component;
pub mod crash;
pub mod effect;
pub mod egress;
#[cfg(feature = "store")]
pub mod host;
pub mod journal;
pub mod json;
pub mod perform;
pub mod policy;
pub mod run;
pub mod sandbox;
pub mod schema;
pub mod source;
#[cfg(feature = "store")]
pub mod store;
pub mod worker;
pub mod workflow;
