//! The integration tests: one binary, real components, real databases, real sockets on loopback, real signals.
//!
//! `support` starts what they need; each other module is one area of the contract. A test names the rules that it proves.

#![allow(missing_docs, reason = "tests")]

mod it;
