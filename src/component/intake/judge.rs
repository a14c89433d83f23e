//! Imports and exports of a valid component, against what this host has and expects (design section 3).
//!
//! Imports that are neither WASI 0.2's nor Tollgate's are refused; WASI interfaces with nothing behind them are stubbed.

use wasmparser::types::TypesRef;

use super::found::{Found, Item};
use super::interface::Expected;
use super::measure::Outline;
use super::shape::{Signature, differences};
use super::{ImportReport, IntakeError};
use crate::policy::reader::nearest;

/// The package of this version of the interface.
const PACKAGE: &str = "tollgate:action";
/// Its version.
const VERSION: &str = "0.1.0";
/// The interface that a component exports.
pub(crate) const ACTIONS: &str = "tollgate:action/actions@0.1.0";
/// The interfaces that it can import of us.
const OURS: [&str; 3] =
    ["tollgate:action/types@0.1.0", "tollgate:action/host@0.1.0", "tollgate:action/documents@0.1.0"];

/// The WASI interfaces behind which this host has something.
const WASI: [&str; 29] = [
    "cli/environment",
    "cli/exit",
    "cli/stdin",
    "cli/stdout",
    "cli/stderr",
    "cli/terminal-input",
    "cli/terminal-output",
    "cli/terminal-stdin",
    "cli/terminal-stdout",
    "cli/terminal-stderr",
    "clocks/wall-clock",
    "clocks/monotonic-clock",
    "filesystem/types",
    "filesystem/preopens",
    "http/types",
    "http/outgoing-handler",
    "io/error",
    "io/poll",
    "io/streams",
    "random/random",
    "random/insecure",
    "random/insecure-seed",
    "sockets/tcp",
    "sockets/udp",
    "sockets/tcp-create-socket",
    "sockets/udp-create-socket",
    "sockets/instance-network",
    "sockets/network",
    "sockets/ip-name-lookup",
];

/// How many faults are named; of more, how many there are.
const FAULTS_MAX: usize = 50;
/// How many names are listed.
const NAMES_MAX: usize = 12;

/// Whether this host has something behind an interface.
pub(crate) fn is_linked(name: &str) -> bool {
    let wasi = is_wasi_0_2(name)
        && name
            .strip_prefix("wasi:")
            .and_then(|rest| rest.split_once('@'))
            .is_some_and(|(interface, _)| WASI.contains(&interface));
    OURS.contains(&name) || wasi
}

/// Whether an interface is of the WASI that this host has, whatever is behind it.
pub(crate) fn is_wasi_0_2(name: &str) -> bool {
    name.starts_with("wasi:") && name.rsplit_once('@').is_some_and(|(_, version)| version.starts_with("0.2."))
}

/// Judges a valid component: every import and every export of it, and everything that is wrong with them.
pub(super) fn judge(outline: &Outline, types: TypesRef<'_>) -> Result<Vec<ImportReport>, IntakeError> {
    let found = Found::new(types, &outline.imports, &outline.exports);
    let expected = Expected::of_this_host();
    let mut faults = Vec::new();
    let mut imports = Vec::new();
    for name in &outline.imports {
        let item = found.import(name);
        match item {
            Some(Item::Interface(functions)) if is_linked(name) => {
                imports.push(ImportReport { name: name.clone(), stubbed: false });
                if let Some(known) = expected.and_then(|expected| expected.functions(name)) {
                    imported(name, &functions, &known, &found, &mut faults);
                }
            }
            Some(Item::Interface(_)) if is_wasi_0_2(name) => {
                imports.push(ImportReport { name: name.clone(), stubbed: true });
            }
            Some(Item::Other(what)) if is_linked(name) || is_wasi_0_2(name) => {
                faults.push(format!("import `{name}`: found {what}, expected an interface"));
            }
            _ => faults.push(unknown_import(name)),
        }
    }
    match found.export(ACTIONS) {
        Some(Item::Interface(functions)) => {
            if let Some(known) = expected.and_then(|expected| expected.functions(ACTIONS)) {
                exported(&functions, &known, &found, &mut faults);
            }
        }
        Some(Item::Other(what)) => faults.push(format!("export `{ACTIONS}`: found {what}, expected an interface")),
        None => faults.push(no_actions(&outline.exports)),
    }
    if faults.len() > FAULTS_MAX {
        let more = faults.len() - FAULTS_MAX;
        faults.truncate(FAULTS_MAX);
        faults.push(format!("and {more} more"));
    }
    if faults.is_empty() { Ok(imports) } else { Err(IntakeError::Interface(faults)) }
}

/// The functions that a component takes of an interface that the host has.
fn imported(
    interface: &str,
    functions: &[(&str, Option<wasmparser::component_types::ComponentFuncTypeId>)],
    known: &[(String, Signature)],
    found: &Found<'_>,
    faults: &mut Vec<String>,
) {
    let names: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
    for (name, function) in functions {
        let Some((_, expected)) = known.iter().find(|(known, _)| known == name) else {
            let help = match nearest(name, &names) {
                Some(meant) => format!("; did you mean `{meant}`?"),
                None => format!("; it has {}", some_of(&names)),
            };
            faults.push(format!("import `{interface}`: this host's has no `{name}`{help}"));
            continue;
        };
        compare(&format!("import `{interface}`"), name, *function, expected, found, faults);
    }
}

/// The functions that a component offers, against those that the host calls: missing, misspelt and mistyped ones.
fn exported(
    functions: &[(&str, Option<wasmparser::component_types::ComponentFuncTypeId>)],
    known: &[(String, Signature)],
    found: &Found<'_>,
    faults: &mut Vec<String>,
) {
    // What is exported and not expected may be a misspelling of something that is missing; each is one once.
    let mut spare: Vec<&str> =
        functions.iter().map(|(name, _)| *name).filter(|name| !known.iter().any(|(known, _)| known == name)).collect();
    for (name, expected) in known {
        if let Some((_, function)) = functions.iter().find(|(found, _)| found == name) {
            compare(&format!("export `{ACTIONS}`"), name, *function, expected, found, faults);
            continue;
        }
        match spare.iter().position(|found| nearest(found, &[name]).is_some()) {
            Some(index) => {
                let misspelt = spare.remove(index);
                faults.push(format!("export `{ACTIONS}`: `{misspelt}` is misspelt; expected `{name}: {expected}`"));
            }
            None => faults.push(format!("export `{ACTIONS}`: `{name}` is missing; expected `{name}: {expected}`")),
        }
    }
}

fn compare(
    place: &str,
    name: &str,
    function: Option<wasmparser::component_types::ComponentFuncTypeId>,
    expected: &Signature,
    found: &Found<'_>,
    faults: &mut Vec<String>,
) {
    let Some(signature) = function.and_then(|id| found.signature(id)) else {
        faults.push(format!("{place}: `{name}` is no func; expected `{name}: {expected}`"));
        return;
    };
    let differences = differences(expected, &signature);
    if !differences.is_empty() {
        faults.push(format!(
            "{place}: `{name}` is mistyped\n  found    {name}: {signature}\n  expected {name}: {expected}\n  {}",
            differences.join("\n  ")
        ));
    }
}

/// What to say where a component does not export the interface.
fn no_actions(exports: &[String]) -> String {
    let build = "Build it against wit/ with world `tollgate:action/action`";
    let other = exports.iter().find_map(|name| {
        let version = name.strip_prefix("tollgate:action/actions@")?;
        Some((name, version))
    });
    if let Some((name, version)) = other {
        return format!(
            "export `{name}`: the component was built for version {version} of {PACKAGE}, and this host has {VERSION}. \
             Build it against this host's wit/"
        );
    }
    if let Some(misspelt) = exports.iter().find(|name| nearest(name, &[ACTIONS]).is_some()) {
        return format!("export `{misspelt}` is misspelt; expected `{ACTIONS}`. {build}");
    }
    let names: Vec<&str> = exports.iter().map(String::as_str).collect();
    let found = if names.is_empty() { "nothing".to_owned() } else { some_of(&names) };
    format!("export `{ACTIONS}` is missing; the component exports {found}. {build}")
}

fn unknown_import(name: &str) -> String {
    match name.rsplit_once('@') {
        Some((interface, version)) if interface.starts_with("tollgate:action/") && version != VERSION => {
            return format!(
                "import `{name}`: the component was built for version {version} of {PACKAGE}, and this host has {VERSION}. \
                 Build it against this host's wit/"
            );
        }
        _ if name.starts_with("wasi:") => {
            return format!("import `{name}`: this host has WASI 0.2. Build for the target wasm32-wasip2");
        }
        _ => {}
    }
    let has = format!("this host has nothing of that name; it has WASI 0.2 and {PACKAGE}@{VERSION}");
    match nearest(name, &OURS) {
        Some(meant) => format!("import `{name}`: {has}; did you mean `{meant}`?"),
        None => format!("import `{name}`: {has}"),
    }
}

fn some_of(names: &[&str]) -> String {
    let shown: Vec<String> = names.iter().take(NAMES_MAX).map(|name| format!("`{name}`")).collect();
    match names.len().checked_sub(NAMES_MAX) {
        None | Some(0) => shown.join(", "),
        Some(more) => format!("{} and {more} more", shown.join(", ")),
    }
}
