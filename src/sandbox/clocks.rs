//! What a guest sees of time and chance: frozen and seeded, or real, by phase.
//!
//! Each phase gets a WASI context of its own, so that its random streams start anew and nothing of the host is inherited:
//! no environment, no arguments, no files, no network.

use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use sha2::{Digest as _, Sha256};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxBuilder};

use super::stderr::StderrTail;
use crate::capability::Phase;
use crate::clock::Timestamp;

/// The largest amount of randomness that one call may ask for: it is allocated by the host.
const RANDOM_BYTES_MAX: u64 = 1 << 20;

/// What makes a frozen phase repeatable.
#[derive(Debug, Clone)]
pub(super) struct Frozen {
    /// The time of the step's first reservation.
    pub now: Timestamp,
    /// Run id and step key.
    pub seed: String,
}

/// The WASI context of one phase. `frozen` is `None` where the phase sees the real clock and real randomness.
pub(super) fn context(phase: Phase, frozen: Option<&Frozen>, stderr: &StderrTail) -> WasiCtx {
    let mut builder = WasiCtxBuilder::new();
    builder.stderr(stderr.clone()).stdout(stderr.clone()).max_random_size(RANDOM_BYTES_MAX);
    // Refused before that already, with a record; see `sockets`.
    builder.allow_tcp(false).allow_udp(false).allow_ip_name_lookup(false);
    if let Some(frozen) = frozen {
        let seed = Sha256::digest(format!("{}\n{phase}", frozen.seed));
        let stream = |label: u8| {
            let mut bytes: [u8; 32] = Sha256::new().chain_update(seed).chain_update([label]).finalize().into();
            bytes[0] ^= label;
            StdRng::from_seed(bytes)
        };
        let mut insecure_seed = [0; 16];
        insecure_seed.copy_from_slice(&seed[..16]);
        builder
            .wall_clock(FrozenClock(frozen.now))
            .monotonic_clock(FrozenClock(frozen.now))
            .secure_random(stream(1))
            .insecure_random(stream(2))
            .insecure_random_seed(u128::from_le_bytes(insecure_seed));
    }
    builder.build()
}

/// A clock that stands still. A sleep is real all the same; a busy wait runs into the cpu limit.
struct FrozenClock(Timestamp);

impl FrozenClock {
    fn time(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.0).unwrap_or(0))
    }
}

impl HostWallClock for FrozenClock {
    fn resolution(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn now(&self) -> Duration {
        self.time()
    }
}

impl HostMonotonicClock for FrozenClock {
    fn resolution(&self) -> u64 {
        1_000_000
    }

    fn now(&self) -> u64 {
        u64::try_from(self.time().as_nanos()).unwrap_or(u64::MAX)
    }
}
