//! Component intake: what is refused and in which words, what compiling may cost, what is kept and what is believed of it,
//! and that a push that fails changes nothing.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate::component::{Caps, IntakeError, PushError, check_bytes};
use tollgate::run::Ended;
use tollgate::sandbox::{
    Cache, ChildProcess, CompileError, CompileLimits, CompiledForm, Compiler, InProcess, LoadError, Sandbox,
};

use super::support::{World, guest, one_step, perform, program, push, run, sandbox};

const ACTIONS: &str = "tollgate:action/actions@0.1.0";

// ---- Components made by hand --------------------------------------------------------------------------------------

/// A component in WAT, with everything that a test may want to have otherwise.
struct Handmade {
    /// The export's name.
    exported: String,
    /// Name, type and flattened parameters of what `actions` exports.
    functions: Vec<(&'static str, String, usize)>,
    /// Component-level text before everything else: imports, further modules.
    before: String,
    /// What the module imports, and the instance that serves it.
    core_imports: String,
    served: String,
    /// The bodies of `describe` (after which its list is returned) and `run`.
    describe: String,
    run: String,
    /// Name, class, hooks and config schema of each action.
    actions: Vec<(&'static str, u8, u8, &'static str)>,
}

/// The interface's types, as an import of them.
const TYPES: &str = r#"
(type $types-type (instance
  (type $t1 (enum "pure" "transactional" "idempotent" "ambiguous"))
  (export "effect-class" (type $effect-class (eq $t1)))
  (type $t2 (flags "authorize" "plan" "reconcile"))
  (export "hooks" (type $hooks (eq $t2)))
  (type $strings (list string))
  (type $t3 (record (field "url" string) (field "methods" $strings) (field "safe" bool)))
  (export "http-need" (type $http-need (eq $t3)))
  (type $ou64 (option u64))
  (type $ou32 (option u32))
  (type $t4 (record (field "memory-bytes" $ou64) (field "cpu-ms" $ou64) (field "wall-ms" $ou64) (field "requests" $ou32)))
  (export "limits" (type $limits (eq $t4)))
  (type $ostring (option string))
  (type $needs (list $http-need))
  (type $t5 (record (field "name" string) (field "title" string) (field "description" string)
    (field "effect-class" $effect-class) (field "hooks" $hooks) (field "config-schema" string)
    (field "output-schema" $ostring) (field "http" $needs) (field "meters" $strings) (field "limits" $limits)))
  (export "action-descriptor" (type $action-descriptor (eq $t5)))
  (type $t6 (record (field "run-id" string) (field "step-key" string) (field "effect-key" string) (field "attempt" u32)
    (field "invocation" string)))
  (export "context" (type $context (eq $t6)))
  (type $t7 (record (field "dimension" string) (field "amount" string)))
  (export "consumption" (type $consumption (eq $t7)))
  (type $t8 (record (field "code" string) (field "message" string)))
  (export "issue" (type $issue (eq $t8)))
  (type $consumes (list $consumption))
  (type $issues (list $issue))
  (type $t9 (record (field "summary" string) (field "consumes" $consumes) (field "output" $ostring)
    (field "issues" $issues)))
  (export "planned" (type $planned (eq $t9)))
  (type $t10 (record (field "message" string) (field "code" $ostring) (field "retryable" bool)
    (field "retry-after-ms" $ou64) (field "details" $ostring)))
  (export "failure" (type $failure (eq $t10)))
  (type $t11 (enum "signal" "timer" "run"))
  (export "dependency-kind" (type $dependency-kind (eq $t11)))
  (type $t12 (record (field "kind" $dependency-kind) (field "key" string)))
  (export "dependency" (type $dependency (eq $t12)))
  (type $t13 (record (field "message" string) (field "code" $ostring)))
  (export "doubt" (type $doubt (eq $t13)))
  (type $t14 (variant (case "succeeded" $ostring) (case "failed" $failure) (case "waiting" $dependency)
    (case "ambiguous" $doubt)))
  (export "outcome" (type $outcome (eq $t14)))
  (type $t15 (variant (case "succeeded" $ostring) (case "failed" $failure) (case "unknown" string)))
  (export "fate" (type $fate (eq $t15)))
))
(import "tollgate:action/types@0.1.0" (instance $types (type $types-type)))
(alias export $types "action-descriptor" (type $action-descriptor))
(alias export $types "context" (type $context))
(alias export $types "planned" (type $planned))
(alias export $types "failure" (type $failure))
(alias export $types "outcome" (type $outcome))
(alias export $types "fate" (type $fate))
(type $descriptors (list $action-descriptor))
(type $allowed (result (error string)))
(type $planning (result $planned (error $failure)))
(type $asking (result $fate (error $failure)))
"#;

/// Where the module keeps what `describe` returns.
const IMAGE_AT: usize = 1024;
/// The parameters `action`, `context` and `config`, flattened.
const FLAT: usize = 13;

impl Default for Handmade {
    fn default() -> Handmade {
        let asked = r#"(param "action" string) (param "context" $context) (param "config" string)"#;
        let function = |name, result: &str| (name, format!("{asked} (result {result})"), FLAT);
        Handmade {
            exported: ACTIONS.to_owned(),
            functions: vec![
                ("describe", "(result $descriptors)".to_owned(), 0),
                function("authorize", "$allowed"),
                function("plan", "$planning"),
                function("run", "$outcome"),
                function("reconcile", "$asking"),
            ],
            before: String::new(),
            core_imports: String::new(),
            served: String::new(),
            describe: String::new(),
            run: "unreachable".to_owned(),
            actions: vec![("pure-op", 0, 0, "{}")],
        }
    }
}

impl Handmade {
    fn text(&self) -> String {
        let mut module = format!(
            "(core module $module {}\n(memory (export \"memory\") 4)\n(global $free (mut i32) (i32.const 131072))\n(func \
             (export \"realloc\") (param i32 i32 i32 i32) (result i32)\n(global.set $free (i32.and (i32.add (global.get \
             $free) (i32.const 15)) (i32.const -16)))\n(global.get $free) (global.set $free (i32.add (global.get $free) \
             (local.get 3))))\n(data (i32.const {IMAGE_AT}) \"{}\")\n",
            self.core_imports,
            escaped(&image(&self.actions)),
        );
        let mut lifted = String::new();
        let mut exports = String::new();
        for (name, ty, flat) in &self.functions {
            let params = if *flat == 0 { String::new() } else { format!("(param{})", " i32".repeat(*flat)) };
            let body = match *name {
                "describe" => format!("{} i32.const {IMAGE_AT}", self.describe),
                "run" => self.run.clone(),
                _ => "unreachable".to_owned(),
            };
            writeln!(module, "(func (export \"{name}\") {params} (result i32) {body})").unwrap();
            writeln!(
                lifted,
                "(func ${name} {ty} (canon lift (core func $i \"{name}\") (memory $memory) (realloc (core func $i \
                 \"realloc\"))))"
            )
            .unwrap();
            write!(exports, "(export \"{name}\" (func ${name}))").unwrap();
        }
        format!(
            "(component {TYPES} {}\n{module})\n(core instance $i (instantiate $module {}))\n(alias core export $i \"memory\" \
             (core memory $memory))\n{lifted}(instance $actions {exports})\n(export \"{}\" (instance $actions)))",
            self.before, self.served, self.exported
        )
    }

    #[track_caller]
    fn bytes(&self) -> Vec<u8> {
        let text = self.text();
        wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// A list of action descriptors as the canonical ABI lays it out at [`IMAGE_AT`].
fn image(actions: &[(&str, u8, u8, &str)]) -> Vec<u8> {
    const DESCRIPTOR_BYTES: usize = 120;
    let records_at = IMAGE_AT + 8;
    let strings_at = records_at + DESCRIPTOR_BYTES * actions.len();
    let mut strings: Vec<u8> = Vec::new();
    let mut records: Vec<u8> = Vec::new();
    let word = |value: usize| u32::try_from(value).unwrap().to_le_bytes();
    for (name, class, hooks, schema) in actions {
        let mut record = [0; DESCRIPTOR_BYTES];
        for (at, text) in [(0, name), (8, name), (16, name), (28, schema)] {
            record[at..at + 4].copy_from_slice(&word(strings_at + strings.len()));
            record[at + 4..at + 8].copy_from_slice(&word(text.len()));
            strings.extend(text.bytes());
        }
        record[24] = *class;
        record[25] = *hooks;
        records.extend(record);
    }
    [&word(records_at)[..], &word(actions.len()), &records, &strings].concat()
}

fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "\\{byte:02x}").unwrap();
        text
    })
}

/// A body of `run` that returns `succeeded(none)`.
const SUCCEEDS: &str = "(i32.store8 (i32.const 65536) (i32.const 0)) (i32.store8 (i32.const 65544) (i32.const 0)) i32.const \
                        65536";

/// A component that imports a WASI interface that this host has nothing behind, and calls it where `calls` says.
fn with_unserved_import(in_describe: bool, in_run: bool) -> Vec<u8> {
    let call = |calls: bool| if calls { "(call $open)" } else { "" };
    Handmade {
        before: r#"
            (import "wasi:keyvalue/store@0.2.0" (instance $kv (export "open" (func))))
            (core func $kv-open (canon lower (func $kv "open")))"#
            .to_owned(),
        core_imports: r#"(import "kv" "open" (func $open))"#.to_owned(),
        served: r#"(with "kv" (instance (export "open" (func $kv-open))))"#.to_owned(),
        describe: call(in_describe).to_owned(),
        run: format!("{} {SUCCEEDS}", call(in_run)),
        ..Handmade::default()
    }
    .bytes()
}

// ---- Refusals -----------------------------------------------------------------------------------------------------

#[track_caller]
fn refused(what: &str, bytes: &[u8]) -> IntakeError {
    check_bytes(bytes, &Caps::default()).map_or_else(|error| error, |_| panic!("{what} should be refused"))
}

#[track_caller]
fn check(what: &str, bytes: &[u8], says: &[&str]) {
    let text = refused(what, bytes).to_string();
    for part in says {
        assert!(text.contains(part), "{what}: `{part}` is missing in:\n{text}");
    }
}

#[test]
fn what_is_made_by_hand_is_accepted_and_so_is_every_real_guest() {
    let report = check_bytes(&Handmade::default().bytes(), &Caps::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.len(), 1);
    for name in ["probe", "mail", "webhook", "ledger", "invoices"] {
        let report = check_bytes(&guest(name), &Caps::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(report.iter().all(|import| !import.stubbed), "{name}: {report:?}");
    }
}

#[test]
fn a_core_module_a_truncated_file_and_an_invalid_one_are_told_apart() {
    let whole = guest("probe");
    check("a core module", &wat::parse_str("(module)").unwrap(), &["a core WebAssembly module", "wasm32-wasip2"]);
    for cut in [1, 5, 9, 100, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
        // A cut at the end of a section leaves a component; no other does.
        let error = refused("half a component", &whole[..cut]);
        assert!(matches!(error, IntakeError::Truncated(_) | IntakeError::Interface(_)), "{cut}: {error:?}");
    }
    check("half a component", &whole[..whole.len() / 2], &["the file is cut off", &format!("{}", whole.len() / 2)]);
    check("the first 8 bytes", &whole[..8], &[&format!("export `{ACTIONS}` is missing"), "exports nothing"]);
    let invalid = Handmade { run: "i32.const 1 i64.add".to_owned(), ..Handmade::default() }.text();
    let invalid = wat::parse_str(invalid).unwrap();
    check("a function that does not type", &invalid, &["the component is not valid", "type mismatch", "at byte"]);
}

#[test]
fn a_newer_interface_names_both_versions() {
    let newer = Handmade { exported: "tollgate:action/actions@0.2.0".to_owned(), ..Handmade::default() };
    check("a newer export", &newer.bytes(), &["built for version 0.2.0", "this host has 0.1.0"]);
    let newer = r#"(component (import "tollgate:action/host@0.3.1" (instance)))"#;
    check("a newer import", &wat::parse_str(newer).unwrap(), &["built for version 0.3.1", "this host has 0.1.0"]);
}

#[test]
fn a_missing_a_misspelt_and_a_mistyped_export_are_told_apart_and_named_at_once() {
    let mut made = Handmade::default();
    // `authorize` is missing, `reconcile` misspelt, `plan` and `run` mistyped.
    made.functions.retain(|(name, ..)| *name != "authorize");
    for (name, ty, flat) in &mut made.functions {
        match *name {
            "reconcile" => *name = "reconsile",
            "plan" => {
                *ty = r#"(param "action" string) (param "context" string) (param "config" string) (result $planning)"#
                    .to_owned();
                *flat = 6;
            }
            "run" => *ty = ty.replace("$outcome", "$fate"),
            _ => {}
        }
    }
    made.before =
        r#"(import "acme:db/query@1.0.0" (instance)) (import "tollgate:action/hosts@0.1.0" (instance))"#.to_owned();
    check(
        "many faults",
        &made.bytes(),
        &[
            "`authorize` is missing; expected `authorize: func(action: string, context: context, config: string) -> \
             result<_, string>`",
            "`reconsile` is misspelt; expected `reconcile: func(",
            "`plan` is mistyped\n  found    plan: func(action: string, context: string, config: string) -> \
             result<planned, failure>\n  expected plan: func(action: string, context: context, config: string) -> \
             result<planned, failure>\n  parameter `context`: found `string`, expected `context`",
            "`run` is mistyped",
            "found    run: func(action: string, context: context, config: string) -> fate",
            "expected run: func(action: string, context: context, config: string) -> outcome",
            "the result, `fate`: the case `waiting` and `ambiguous` is missing",
            "import `acme:db/query@1.0.0`: this host has nothing of that name",
            "import `tollgate:action/hosts@0.1.0`",
            "did you mean `tollgate:action/host@0.1.0`?",
        ],
    );
}

#[test]
fn a_misspelt_interface_and_a_mistyped_field_are_named() {
    let misspelt = Handmade { exported: "tollgate:action/acttions@0.1.0".to_owned(), ..Handmade::default() };
    check("a misspelt interface", &misspelt.bytes(), &["`tollgate:action/acttions@0.1.0` is misspelt", ACTIONS]);
    let text = Handmade::default().text();
    let fields = text.replace(r#"(field "attempt" u32)"#, r#"(field "atempt" u64)"#);
    let flat = fields.replace(
        &format!("(param{})", " i32".repeat(FLAT)),
        &format!("(param{} i64{})", " i32".repeat(8), " i32".repeat(4)),
    );
    check(
        "a misspelt field",
        &wat::parse_str(&flat).unwrap(),
        &["`run` is mistyped", "parameter `context`, `context`: found the field `atempt`, expected `attempt`"],
    );
    let instance = r#"(component (import "tollgate:action/host@0.1.0" (instance (export "heartbeet" (func))
        (export "variables" (func (result u32))))))"#;
    check(
        "a misspelt and a mistyped import",
        &wat::parse_str(instance).unwrap(),
        &[
            "`tollgate:action/host@0.1.0`: this host's has no `heartbeet`; did you mean `heartbeat`?",
            "`variables` is mistyped\n  found    variables: func() -> u32\n  expected variables: func() -> string",
        ],
    );
    let module = format!(r#"(component (core module $m) (export "{ACTIONS}" (core module $m)))"#);
    check(
        "a module for an interface",
        &wat::parse_str(&module).unwrap(),
        &["found a core module, expected an interface"],
    );
}

/// What describes itself badly hears of all of it, the classes that the policy refuses included.
#[tokio::test(flavor = "multi_thread")]
async fn every_fault_of_a_description_and_every_refused_class_is_named_at_once() {
    let world = World::new();
    world.edit_policy("classes = [\"pure\", \"transactional\", \"idempotent\", \"ambiguous\"]", "classes = [\"pure\"]");
    let host = world.host().await;
    let actions = vec![("Send", 0, 0, "{}"), ("notify", 3, 0, "{}"), ("count", 1, 0, r#"{"type": 7}"#)];
    let bytes = Handmade { actions, ..Handmade::default() }.bytes();
    let refused = host.registry.push("probe", bytes, &host.policy).await.unwrap_err();
    assert!(matches!(refused, PushError::Refused(_)), "{refused:?}");
    let text = refused.to_string();
    for part in [
        "action `Send`: its name must be",
        "action `notify`: it is ambiguous and has no `reconcile`",
        "action `count`: its config schema does not compile",
        "action `notify` is ambiguous, and tollgate.toml does not allow probe that class",
        "action `count` is transactional, and tollgate.toml does not allow probe that class",
    ] {
        assert!(text.contains(part), "`{part}` is missing in:\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wasi_interface_that_is_never_called_loads_and_refuses_when_it_is() {
    let world = World::new();
    let host = world.host().await;
    let name = "wasi:keyvalue/store@0.2.0";
    let (_, inspected) = host
        .registry
        .push("probe", with_unserved_import(false, false), &host.policy)
        .await
        .unwrap_or_else(|e| panic!("{e}"));
    assert!(inspected.imports.iter().any(|import| import.name == name && import.stubbed), "{inspected:?}");
    let (_, ended) = run(&host, one_step("pure-op", &json!({}), "")).await;
    assert!(matches!(ended, Ended::Completed { .. }), "{ended:?}");

    let pushed = host.registry.push("probe", with_unserved_import(false, true), &host.policy).await;
    pushed.unwrap_or_else(|error| panic!("{error}"));
    let performed = perform(&host, "pure-op", &json!({}), "").await;
    assert!(performed.failure().message.contains(&format!("{name}#open")), "{performed:?}");
    assert_eq!(performed.record.denials[0].capability, format!("{name}#open"), "{performed:?}");

    // `describe` has nothing granted either.
    let refused = host.registry.push("probe", with_unserved_import(true, false), &host.policy).await.unwrap_err();
    assert!(matches!(&refused, PushError::Describe(_)) && refused.to_string().contains(name), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_push_leaves_the_active_version_active_and_activate_rolls_back() {
    let world = World::new();
    let host = world.probe().await;
    let active = async || host.store.component("probe", None).await.unwrap().unwrap().version;
    let whole = guest("probe");
    let mut mistyped = Handmade::default();
    mistyped.functions.pop();
    for bytes in [b"no component".to_vec(), whole[..whole.len() / 2].to_vec(), mistyped.bytes(), {
        Handmade { actions: vec![("Bad", 0, 0, "{}")], ..Handmade::default() }.bytes()
    }] {
        host.registry.push("probe", bytes, &host.policy).await.unwrap_err();
        assert_eq!(active().await, 1);
    }
    // A second version whose action traps.
    let (pushed, _) = host.registry.push("probe", Handmade::default().bytes(), &host.policy).await.unwrap();
    assert_eq!((pushed.version, active().await), (2, 2));
    let (_, ended) = run(&host, one_step("pure-op", &json!({}), "")).await;
    assert!(matches!(ended, Ended::Failed { .. }), "{ended:?}");

    let rolled_back = host.registry.activate("probe", 1, &host.policy).await.unwrap();
    assert_eq!((rolled_back.row.version, rolled_back.before, active().await), (1, Some(2), 1));
    let (_, ended) = run(&host, one_step("pure-op", &json!({}), "")).await;
    assert!(matches!(ended, Ended::Completed { .. }), "{ended:?}");
    let again = host.registry.activate("probe", 1, &host.policy).await.unwrap();
    assert_eq!(again.before, Some(1));
    // Forward again, and only one is active.
    host.registry.activate("probe", 2, &host.policy).await.unwrap();
    let rows = host.store.components().await.unwrap();
    assert_eq!(rows.iter().map(|row| (row.version, row.active)).collect::<Vec<_>>(), [(1, false), (2, true)]);

    let none = host.registry.activate("probe", 3, &host.policy).await.unwrap_err();
    assert!(matches!(none, PushError::NoSuchVersion { version: 3, .. }), "{none:?}");
    // What the policy no longer allows is not made active.
    world.edit_policy("classes = [\"pure\", \"transactional\", \"idempotent\", \"ambiguous\"]", "classes = [\"pure\"]");
    let host = world.host().await;
    let refused = host.registry.activate("probe", 1, &host.policy).await.unwrap_err();
    assert!(matches!(refused, PushError::Classes(_)), "{refused:?}");
    assert_eq!(host.store.component("probe", None).await.unwrap().unwrap().version, 2);
}

// ---- Hostile components -------------------------------------------------------------------------------------------

/// A component of some 30 KB whose only function compiles for minutes: loops in loops, each carrying every local.
fn nested_loops() -> Vec<u8> {
    let (loops, locals) = (3_900, 4_900);
    let mut body = format!("(local{})", " i64".repeat(locals));
    for _ in 0..loops {
        body.push_str("loop ");
    }
    for local in 0..locals.min(1_500) {
        write!(body, "local.get {local} i64.const 1 i64.add local.set {} ", (local * 7 + 1) % locals).unwrap();
    }
    for depth in 0..loops {
        write!(body, "i32.const 1 br_if 0 local.get {} drop end ", depth % locals).unwrap();
    }
    Handmade { before: format!("(core module (func {body}))"), ..Handmade::default() }.bytes()
}

/// A component with one function of more than 6.8 MB.
fn one_long_function() -> Vec<u8> {
    let step = "i64.const -9223372036854775808 local.get 0 i64.add local.set 0 ";
    let body = step.repeat(6_800_000 / 16);
    Handmade { before: format!("(core module (func (local i64) {body}))"), ..Handmade::default() }.bytes()
}

/// Nothing is too large, so that only the child process stands between a hostile component and the host.
fn no_caps() -> Caps {
    let max = u64::MAX;
    Caps {
        bytes: max,
        component_depth: max,
        modules: max,
        items: max,
        functions: max,
        function_bytes: max,
        locals: max,
        nesting: max,
        loop_work: max,
        loop_work_total: max,
        branch_targets: max,
    }
}

fn child(limits: CompileLimits) -> ChildProcess {
    ChildProcess::new(program(), vec!["compile-component-on-stdin".into()], limits)
}

const ROOMY: CompileLimits =
    CompileLimits { memory_bytes: 2 << 30, base: Duration::from_secs(60), per_mebibyte: Duration::from_secs(60) };

async fn compile_error(limits: CompileLimits, bytes: Vec<u8>) -> CompileError {
    let sandbox = sandbox().with_caps(no_caps()).with_compiler(Arc::new(child(limits)));
    match sandbox.load(bytes).await {
        Err(LoadError::Compile(error)) => error,
        other => panic!("compiling it should fail: {other:?}"),
    }
}

#[test]
fn hostile_components_are_refused_by_their_numbers_before_anything_compiles_them() {
    let began = Instant::now();
    let loops = nested_loops();
    assert!(loops.len() < 64 << 10, "{}", loops.len());
    check("nested loops", &loops, &["for its loops in loops times its locals, and at most 1000000 are compiled"]);
    let long = one_long_function();
    assert!(long.len() > 6_800_000, "{}", long.len());
    check("one long function", &long, &["bytes, and at most 2097152 are compiled"]);
    let deep = format!("(component {} {})", "(component ".repeat(60), ")".repeat(60));
    check("components in components", &wat::parse_str(deep).unwrap(), &["components nested in each other"]);
    assert!(began.elapsed() < Duration::from_secs(60), "it took {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_component_is_stopped_by_the_deadline_and_takes_nothing_of_the_host() {
    let limits = CompileLimits { base: Duration::from_secs(2), per_mebibyte: Duration::ZERO, ..ROOMY };
    let bytes = nested_loops();
    let began = Instant::now();
    let before = memory_peak_kib();
    let error = compile_error(limits, bytes).await;
    assert!(matches!(&error, CompileError::Limit(text) if text == "it was not done after 2.0 s"), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
    let grown = memory_peak_kib().saturating_sub(before);
    assert!(grown < 512 << 10, "the host grew by {grown} KiB");
}

/// Whatever becomes of the process that asked for it, which kills it at the deadline: a compiler's own time is limited.
#[test]
fn a_hostile_component_is_stopped_by_the_limit_on_the_processors_time() {
    const XCPU: i32 = 24;
    let mut child = Command::new(program())
        .arg("compile-component-on-stdin")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let request = [&(2_u64 << 30).to_le_bytes()[..], &1_u64.to_le_bytes(), &nested_loops()].concat();
    // Dropped when it is written, which ends the request.
    child.stdin.take().unwrap().write_all(&request).unwrap();
    let began = Instant::now();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(XCPU), "{status}");
    assert!(began.elapsed() < Duration::from_secs(30), "it took {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_component_is_stopped_by_the_limit_on_memory() {
    let error = compile_error(CompileLimits { memory_bytes: 200 << 20, ..ROOMY }, one_long_function()).await;
    assert!(matches!(&error, CompileError::Limit(text) if text.contains("bytes of memory")), "{error:?}");
}

/// The most memory that this process ever had.
fn memory_peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_compiles_what_the_host_runs_and_says_what_it_cannot() {
    let world = World::new();
    let mut host = world.host().await;
    // With a cache that has nothing yet, so that it is the child that compiles.
    let fresh = |name: &str| Cache::open(world.folder.path().join(name)).unwrap();
    host.sandbox = sandbox().with_cache(fresh("first")).with_compiler(Arc::new(child(ROOMY)));
    host.registry = tollgate::component::Registry::new(host.store.clone(), host.sandbox.clone(), host.ambient.clone());
    push(&host, "probe", "probe").await;
    let (_, ended) = run(&host, one_step("pure-op", &json!({}), "")).await;
    assert!(matches!(ended, Ended::Completed { .. }), "{ended:?}");

    // The compiler itself is asked, without intake before it.
    let refused = child(ROOMY).compile(Bytes::from_static(b"no component")).await.unwrap_err();
    assert!(matches!(refused, CompileError::Refused(_)), "{refused:?}");
    let nobody = ChildProcess::new("/nowhere/tollgate".into(), Vec::new(), ROOMY);
    let failed = nobody.compile(Bytes::from_static(b"")).await.unwrap_err();
    assert!(matches!(&failed, CompileError::Failed(text) if text.contains("cannot be started")), "{failed:?}");
    // A program that is none of ours, and succeeds without an answer.
    let other = ChildProcess::new("/bin/true".into(), Vec::new(), ROOMY);
    let sandbox = sandbox().with_cache(fresh("second")).with_compiler(Arc::new(other));
    let failed = sandbox.load(Handmade::default().bytes()).await.unwrap_err();
    assert!(matches!(&failed, LoadError::Compile(CompileError::Failed(_))), "{failed:?}");
}

// ---- The cache ----------------------------------------------------------------------------------------------------

/// Counts what it compiles.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Compiler for Counting {
    fn compile(&self, component: Bytes) -> BoxFuture<'_, Result<CompiledForm, CompileError>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        InProcess.compile(component)
    }
}

impl Counting {
    fn sandbox(self: &Arc<Counting>, folder: &Path) -> Sandbox {
        sandbox().with_compiler(self.clone()).with_cache(Cache::open(folder).unwrap())
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// The only entry of a cache.
fn entry(folder: &Path) -> std::path::PathBuf {
    let mut entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.extension().is_some_and(|extension| extension == "compiled")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_load_calls_no_compiler() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, compiler) = (folder.path().join("cache"), Arc::new(Counting::default()));
    let bytes = guest("invoices");
    let first = compiler.sandbox(&cache).load(bytes.clone()).await.unwrap();
    assert_eq!(compiler.count(), 1);
    let second = compiler.sandbox(&cache).load(bytes.clone()).await.unwrap();
    let third = compiler.sandbox(&cache).load_accepted(bytes).await.unwrap();
    assert_eq!(compiler.count(), 1);
    assert_eq!(second.digest(), first.digest());
    assert_eq!(second.describe().await.unwrap(), first.describe().await.unwrap());
    assert_eq!(third.imports(), first.imports());
}

/// Neither a changed byte nor a cut, nor a genuine entry of another component or another key, is ever loaded; each is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_entry_is_never_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, compiler) = (folder.path().join("cache"), Arc::new(Counting::default()));
    let bytes = Bytes::from(Handmade::default().bytes());
    // Each sandbox has loaded nothing yet.
    let sandbox = || compiler.sandbox(&cache);
    sandbox().load(bytes.clone()).await.unwrap();
    let entry = entry(&cache);
    let whole = std::fs::read(&entry).unwrap();

    let mut forgeries: Vec<(String, Vec<u8>)> = Vec::new();
    let step = (whole.len() / 300).max(1);
    for index in (0..64.min(whole.len())).chain((64..whole.len()).step_by(step)) {
        let mut forged = whole.clone();
        forged[index] ^= 1 << (index % 8);
        forgeries.push((format!("byte {index}"), forged));
    }
    assert!(forgeries.len() > 300);
    for cut in [0, 1, 15, 16, 47, 48, whole.len() / 2, whole.len() - 1] {
        forgeries.push((format!("cut at {cut}"), whole[..cut].to_vec()));
    }
    // Genuine machine code without a code, and with one of another key.
    forgeries.push(("bare".to_owned(), whole[48..].to_vec()));
    let elsewhere = folder.path().join("elsewhere");
    Arc::new(Counting::default()).sandbox(&elsewhere).load(bytes.clone()).await.unwrap();
    forgeries.push(("another key".to_owned(), std::fs::read(self::entry(&elsewhere)).unwrap()));
    // Genuine, under this key, of another component.
    let other = Handmade { actions: vec![("other", 0, 0, "{}")], ..Handmade::default() }.bytes();
    std::fs::remove_file(&entry).unwrap();
    sandbox().load(other).await.unwrap();
    forgeries.push(("another component".to_owned(), std::fs::read(self::entry(&cache)).unwrap()));

    for (what, forged) in forgeries {
        std::fs::write(&entry, &forged).unwrap();
        let before = compiler.count();
        let component = sandbox().load_accepted(bytes.clone()).await.unwrap();
        assert_eq!(compiler.count(), before + 1, "{what}: it was believed");
        assert_ne!(std::fs::read(&entry).unwrap(), forged, "{what}: it was not replaced");
        assert_eq!(component.describe().await.unwrap()[0].0.name, "pure-op", "{what}");
    }
    let before = compiler.count();
    sandbox().load_accepted(bytes).await.unwrap();
    assert_eq!(compiler.count(), before, "and the genuine one is believed");
}

/// What went through a cache is judged like anything else: a refused component is not in it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_neither_compiled_nor_kept() {
    let folder = tempfile::tempdir().unwrap();
    let compiler = Arc::new(Counting::default());
    let sandbox = compiler.sandbox(folder.path());
    let mut made = Handmade::default();
    made.functions.pop();
    for _ in 0..2 {
        sandbox.load_accepted(made.bytes()).await.unwrap_err();
    }
    assert_eq!(compiler.count(), 0);
}

// ---- The program --------------------------------------------------------------------------------------------------

fn tollgate(world: &World, cache: &Path, arguments: &[&str]) -> Output {
    std::fs::write(world.folder.path().join("tollgate.toml"), world.policy_text()).unwrap();
    Command::new(program())
        .current_dir(world.folder.path())
        .env("TOLLGATE_CACHE", cache)
        .args(arguments)
        .output()
        .expect("the program starts")
}

#[track_caller]
fn answer(output: &Output, exit: i32) -> Value {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(exit), "{stdout}{stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"))
}

#[test]
fn the_program_compiles_once_and_rolls_back() {
    let world = World::new();
    let cache = world.folder.path().join("compiled");
    let probe = super::support::guests().join("probe.wasm");
    let probe = probe.to_str().unwrap();
    let second = world.folder.path().join("second.wasm");
    std::fs::write(&second, Handmade::default().bytes()).unwrap();

    let pushed = answer(&tollgate(&world, &cache, &["component", "push", "probe", probe, "--json"]), 0);
    assert_eq!(pushed["version"], 1);
    let kept = std::fs::metadata(entry(&cache)).unwrap();
    answer(&tollgate(&world, &cache, &["component", "inspect", probe, "--json"]), 0);
    // Compiling it again would have replaced it.
    assert_eq!(std::fs::metadata(entry(&cache)).unwrap().ino(), kept.ino());

    let pushed =
        answer(&tollgate(&world, &cache, &["component", "push", "probe", second.to_str().unwrap(), "--json"]), 0);
    assert_eq!(pushed["version"], 2);
    let activated = answer(&tollgate(&world, &cache, &["component", "activate", "probe", "1", "--json"]), 0);
    assert_eq!(
        (&activated["version"], &activated["before"], &activated["active"]),
        (&json!(1), &json!(2), &json!(true))
    );
    let shown = answer(&tollgate(&world, &cache, &["component", "show", "probe", "--json"]), 0);
    assert_eq!(shown["version"], 1);
    let text = tollgate(&world, &cache, &["component", "activate", "probe", "2"]);
    assert!(
        String::from_utf8_lossy(&text.stdout).contains("probe version 2 is active, in place of version 1"),
        "{text:?}"
    );

    let none = answer(&tollgate(&world, &cache, &["component", "activate", "probe", "9", "--json"]), 3);
    assert_eq!(none["error"]["code"], "COMPONENT_NOT_FOUND");
    std::fs::write(&second, &std::fs::read(probe).unwrap()[..1000]).unwrap();
    let refused =
        answer(&tollgate(&world, &cache, &["component", "push", "probe", second.to_str().unwrap(), "--json"]), 3);
    assert_eq!(refused["error"]["code"], "COMPONENT_REFUSED");
    assert!(refused["error"]["message"].as_str().unwrap().contains("the file is cut off"), "{refused}");

    // A cache that is open to others is not used, and that is said.
    std::fs::set_permissions(&cache, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let open = tollgate(&world, &cache, &["component", "inspect", probe, "--json"]);
    assert!(String::from_utf8_lossy(&open.stderr).contains("open to others"), "{open:?}");
    answer(&open, 0);
}

// ---- Anything at all ----------------------------------------------------------------------------------------------

/// One change to a file.
#[derive(Debug, Clone)]
enum Change {
    Set(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Remove(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        8 => (at(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        1 => at().prop_map(Change::Cut),
        2 => (at(), 1_usize..64).prop_map(|(at, length)| Change::Remove(at, length)),
        2 => (at(), prop::collection::vec(any::<u8>(), 1..16)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
    ]
}

fn changed(mut bytes: Vec<u8>, changes: Vec<Change>) -> Vec<u8> {
    for change in changes {
        if bytes.is_empty() {
            break;
        }
        match change {
            Change::Set(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            Change::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Change::Remove(at, length) => {
                let at = at.index(bytes.len());
                let end = (at + length).min(bytes.len());
                bytes.drain(at..end);
            }
            Change::Insert(at, more) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, more);
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_intake_panic(bytes in prop::collection::vec(any::<u8>(), 0..512), like_a_component in any::<bool>()) {
        let begin: &[u8] = if like_a_component { b"\0asm\x0d\0\x01\0" } else { b"" };
        let _ = check_bytes(&[begin, &bytes].concat(), &Caps::default());
    }

    #[test]
    fn no_change_to_a_component_makes_intake_panic(small in any::<bool>(), changes in prop::collection::vec(change(), 1..6)) {
        static SMALL: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| Handmade::default().bytes());
        static LARGE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| guest("invoices"));
        let whole = if small { SMALL.clone() } else { LARGE.clone() };
        let _ = check_bytes(&changed(whole, changes), &Caps::default());
    }
}
