//! What a guest may touch: class × phase, as one pure table.
//!
//! The sandbox and egress ask this table on every call that a guest makes; nothing else decides it. It knows nothing of
//! the policy, which can only narrow it, and performs no I/O.

use std::fmt;

use crate::effect::EffectClass;

/// Which export the host is calling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// `describe`, when a component is uploaded.
    Describe,
    /// `authorize`.
    Authorize,
    /// `plan`.
    Plan,
    /// `run`.
    Run,
    /// `reconcile`.
    Reconcile,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Phase; 5] = [Phase::Describe, Phase::Authorize, Phase::Plan, Phase::Run, Phase::Reconcile];

    /// The export's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Describe => "describe",
            Phase::Authorize => "authorize",
            Phase::Plan => "plan",
            Phase::Run => "run",
            Phase::Reconcile => "reconcile",
        }
    }
}

impl std::str::FromStr for Phase {
    type Err = String;

    fn from_str(text: &str) -> Result<Phase, String> {
        let found = Phase::ALL.into_iter().find(|phase| phase.as_str() == text);
        found.ok_or_else(|| {
            format!("`{text}` is not a phase; the phases are describe, authorize, plan, run and reconcile")
        })
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// One thing that a guest can ask of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Capability {
    /// The real time and real randomness, instead of frozen and seeded ones.
    RealTime,
    /// Variables, bindings and references.
    Variables,
    /// Reading its app's documents.
    ReadDocuments,
    /// Writing its app's documents.
    WriteDocuments,
    /// A request that its grant calls safe.
    SafeRequest,
    /// Any other request.
    EffectfulRequest,
    /// Heartbeat and progress.
    Progress,
    /// A line of log.
    Log,
}

impl Capability {
    /// Every capability.
    pub const ALL: [Capability; 8] = [
        Capability::RealTime,
        Capability::Variables,
        Capability::ReadDocuments,
        Capability::WriteDocuments,
        Capability::SafeRequest,
        Capability::EffectfulRequest,
        Capability::Progress,
        Capability::Log,
    ];

    /// The capability in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Capability::RealTime => "the real clock and real randomness",
            Capability::Variables => "variables, bindings and references",
            Capability::ReadDocuments => "reading documents",
            Capability::WriteDocuments => "writing documents",
            Capability::SafeRequest => "safe HTTP requests",
            Capability::EffectfulRequest => "effectful HTTP requests",
            Capability::Progress => "heartbeat and progress",
            Capability::Log => "logging",
        }
    }
}

/// Whether an action of `class` may use `capability` in `phase`: the table of design section 3.
///
/// ```
/// use tollgate::capability::{allows, Capability, Phase};
/// use tollgate::effect::EffectClass;
///
/// assert!(allows(EffectClass::Ambiguous, Phase::Run, Capability::EffectfulRequest));
/// assert!(!allows(EffectClass::Ambiguous, Phase::Plan, Capability::EffectfulRequest));
/// assert!(!allows(EffectClass::Pure, Phase::Run, Capability::SafeRequest));
/// ```
pub fn allows(class: EffectClass, phase: Phase, capability: Capability) -> bool {
    use Capability::{
        EffectfulRequest, Log, Progress, ReadDocuments, RealTime, SafeRequest, Variables, WriteDocuments,
    };
    use EffectClass::{Pure, Transactional};
    match (phase, capability) {
        (_, Log) => true,
        (Phase::Describe, _) => false,
        (_, Variables | Progress) => true,
        (Phase::Authorize | Phase::Plan, RealTime | WriteDocuments | EffectfulRequest) => false,
        (Phase::Authorize | Phase::Plan, ReadDocuments) => true,
        (Phase::Authorize | Phase::Plan, SafeRequest) => class != Transactional,
        (Phase::Run, RealTime | SafeRequest | EffectfulRequest) => class.calls_out(),
        (Phase::Run, ReadDocuments) => class != Pure,
        (Phase::Run, WriteDocuments) => class == Transactional,
        (Phase::Reconcile, RealTime | ReadDocuments | SafeRequest) => true,
        (Phase::Reconcile, WriteDocuments | EffectfulRequest) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of design section 3 written out a second time, a row per capability: a change of one side alone fails.
    #[test]
    fn the_table_of_section_3() {
        let columns = |class: EffectClass| {
            [
                (Phase::Describe, class),
                (Phase::Authorize, class),
                (Phase::Plan, class),
                (Phase::Run, class),
                (Phase::Reconcile, class),
            ]
        };
        // One string per class: D A P R C, `x` where allowed.
        let rows: [(Capability, [&str; 4]); 8] = [
            (Capability::RealTime, ["....x", "....x", "...xx", "...xx"]),
            (Capability::Variables, [".xxxx", ".xxxx", ".xxxx", ".xxxx"]),
            (Capability::ReadDocuments, [".xx.x", ".xxxx", ".xxxx", ".xxxx"]),
            (Capability::WriteDocuments, [".....", "...x.", ".....", "....."]),
            (Capability::SafeRequest, [".xx.x", "....x", ".xxxx", ".xxxx"]),
            (Capability::EffectfulRequest, [".....", ".....", "...x.", "...x."]),
            (Capability::Progress, [".xxxx", ".xxxx", ".xxxx", ".xxxx"]),
            (Capability::Log, ["xxxxx", "xxxxx", "xxxxx", "xxxxx"]),
        ];
        for (capability, by_class) in rows {
            for (class, row) in EffectClass::ALL.into_iter().zip(by_class) {
                for ((phase, class), expected) in columns(class).into_iter().zip(row.chars()) {
                    assert_eq!(
                        allows(class, phase, capability),
                        expected == 'x',
                        "{} in {phase} of a {class} action",
                        capability.as_str()
                    );
                }
            }
        }
    }
}
