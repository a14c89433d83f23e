//! A component, compiled and linked: what it imports is judged here.
//!
//! It calls no export but `describe`.

use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Linker, ResourceType};

use super::bindings::tollgate::action::types as wit;
use super::bindings::{Action, ActionPre};
use super::host::Refused;
use super::state::GuestState;
use super::{Attempt, AttemptSetup, Fault, Sandbox};
use crate::capability::Phase;
use crate::component::{Descriptor, Hooks, HttpNeed, LimitsNeed, PreparedSchemas};
use crate::effect::EffectClass;

/// The package of this version of the interface.
const PACKAGE: &str = "tollgate:action";
/// Its version.
const VERSION: &str = "0.1.0";
/// The interface that a component exports.
const ACTIONS: &str = "tollgate:action/actions@0.1.0";

/// A component that can be instantiated. Clones share the compiled code.
#[derive(Clone)]
pub struct Component {
    digest: Arc<str>,
    pub(super) pre: ActionPre<GuestState>,
    pub(super) sandbox: Sandbox,
    imports: Arc<Vec<ImportReport>>,
}

/// What the host makes of one import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportReport {
    /// `wasi:http/outgoing-handler@0.2.12`.
    pub name: String,
    /// Whether calling it only refuses: this version of the host has nothing behind it.
    pub stubbed: bool,
}

/// Why a component cannot be loaded; for the guest's author.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The bytes are no component.
    #[error("{0}")]
    NotAComponent(String),
    /// It imports what no host of this version has. All such imports at once.
    #[error("{}", .0.join("\n"))]
    Imports(Vec<String>),
    /// It does not export what the interface asks for.
    #[error("{0}")]
    Exports(String),
}

impl Component {
    /// SHA-256 of the uploaded bytes, in hexadecimal digits.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Every interface that it imports.
    pub fn imports(&self) -> &[ImportReport] {
        &self.imports
    }

    /// Calls `describe` in a sandbox with nothing granted. The schemas come back as texts beside their descriptors, for
    /// [`crate::component::check_descriptors`].
    ///
    /// # Errors
    /// [`Fault`] where it trapped or ran into a limit.
    pub async fn describe(&self) -> Result<Vec<(Descriptor, String, Option<String>)>, Fault> {
        let attempt = Attempt::new(&self.sandbox, AttemptSetup::describe()).await;
        let described = attempt.instantiate(self, Phase::Describe).await?.describe().await?;
        Ok(described.into_iter().map(descriptor).collect())
    }
}

impl std::fmt::Debug for Component {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Component({})", self.digest)
    }
}

/// SHA-256 of a component's bytes, in hexadecimal digits: its identity.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

impl Sandbox {
    /// Compiles `bytes` on a thread of its own and links it.
    ///
    /// # Errors
    /// [`LoadError`], which says what was found, what was expected, and what to do.
    pub async fn load(&self, bytes: Vec<u8>) -> Result<Component, LoadError> {
        let sandbox = self.clone();
        let compiled = tokio::task::spawn_blocking(move || sandbox.load_blocking(&bytes)).await;
        // A panic of the compiler is its own fault, and must not be the host's.
        compiled.unwrap_or_else(|_| Err(LoadError::NotAComponent("the compiler failed on this component".to_owned())))
    }

    fn load_blocking(&self, bytes: &[u8]) -> Result<Component, LoadError> {
        recognise(bytes)?;
        let engine = &self.inner.engine;
        let component = wasmtime::component::Component::from_binary(engine, bytes)
            .map_err(|error| LoadError::NotAComponent(format!("the component is not valid: {error:#}")))?;

        let ty = component.component_type();
        let mut imports = Vec::new();
        let mut refused = Vec::new();
        let mut linker = self.inner.linker.clone();
        for (name, import) in ty.imports(engine) {
            let known = is_linked(name);
            imports.push(ImportReport { name: name.to_owned(), stubbed: !known });
            if known {
                continue;
            }
            match (is_wasi_0_2(name), import.ty) {
                (true, ComponentItem::ComponentInstance(instance)) => {
                    stub(&mut linker, engine, name, &instance)
                        .map_err(|error| LoadError::Exports(format!("import `{name}`: {error:#}")))?;
                }
                _ => refused.push(refusal_of_import(name)),
            }
        }
        if !refused.is_empty() {
            return Err(LoadError::Imports(refused));
        }
        let exports: Vec<String> = ty.exports(engine).map(|(name, _)| name.to_owned()).collect();
        if !exports.iter().any(|name| name == ACTIONS) {
            let found = if exports.is_empty() { "nothing".to_owned() } else { exports.join(", ") };
            return Err(LoadError::Exports(format!(
                "the component does not export `{ACTIONS}`; it exports {found}. Build it against wit/ with world \
                 `tollgate:action/action`"
            )));
        }
        let pre = linker
            .instantiate_pre(&component)
            .and_then(ActionPre::new)
            .map_err(|error| LoadError::Exports(format!("the component does not fit `{ACTIONS}`: {error:#}")))?;
        Ok(Component { digest: digest(bytes).into(), pre, sandbox: self.clone(), imports: Arc::new(imports) })
    }
}

/// Tells a core module and other bytes from a component before the compiler sees them.
fn recognise(bytes: &[u8]) -> Result<(), LoadError> {
    let refuse = |text: String| Err(LoadError::NotAComponent(text));
    match bytes {
        [0, b'a', b's', b'm', 0x0d, 0, 1, 0, ..] => Ok(()),
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => refuse(
            "this is a core WebAssembly module, not a component. Build it for the target wasm32-wasip2, or wrap it with \
             `wasm-tools component new`"
                .to_owned(),
        ),
        [0, b'a', b's', b'm', ..] => {
            refuse("this is WebAssembly of another version than this host knows (a component of version 0d 00 01 00)".to_owned())
        }
        [] => refuse("the file is empty".to_owned()),
        _ => refuse("this is not WebAssembly: it does not begin with 00 61 73 6d".to_owned()),
    }
}

/// The interfaces behind which this host has something.
fn is_linked(name: &str) -> bool {
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
    let tollgate =
        ["types", "host", "documents"].iter().any(|interface| name == format!("{PACKAGE}/{interface}@{VERSION}"));
    let wasi = is_wasi_0_2(name)
        && name
            .strip_prefix("wasi:")
            .and_then(|rest| rest.split_once('@'))
            .is_some_and(|(interface, _)| WASI.contains(&interface));
    tollgate || wasi
}

fn is_wasi_0_2(name: &str) -> bool {
    name.starts_with("wasi:") && name.rsplit_once('@').is_some_and(|(_, version)| version.starts_with("0.2."))
}

fn refusal_of_import(name: &str) -> String {
    match name.rsplit_once('@') {
        Some((interface, version)) if interface.starts_with(&format!("{PACKAGE}/")) && version != VERSION => format!(
            "import `{name}`: the component was built for version {version} of {PACKAGE}, and this host has {VERSION}. \
             Build it against this host's wit/"
        ),
        _ if name.starts_with("wasi:") => {
            format!("import `{name}`: this host has WASI 0.2. Build for the target wasm32-wasip2")
        }
        _ => format!("import `{name}`: this host has nothing of that name; it has WASI 0.2 and {PACKAGE}@{VERSION}"),
    }
}

/// Defines every function of a known interface that this host has nothing behind as a refusal.
fn stub(
    linker: &mut Linker<GuestState>,
    engine: &wasmtime::Engine,
    name: &str,
    instance: &wasmtime::component::types::ComponentInstance,
) -> wasmtime::Result<()> {
    let mut defined = linker.instance(name)?;
    for (item_name, item) in instance.exports(engine) {
        match item.ty {
            ComponentItem::ComponentFunc(_) => {
                let capability = format!("{name}#{item_name}");
                defined.func_new(item_name, move |store, _, _, _| {
                    let reason = format!("this host has nothing behind {capability}");
                    store.data().shared.egress.deny(&capability, &reason, "");
                    Err(Refused(reason).into())
                })?;
            }
            ComponentItem::Resource(_) => {
                defined.resource(item_name, ResourceType::host::<()>(), |_, _| Ok(()))?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn descriptor(raw: wit::ActionDescriptor) -> (Descriptor, String, Option<String>) {
    let class = match raw.effect_class {
        wit::EffectClass::Pure => EffectClass::Pure,
        wit::EffectClass::Transactional => EffectClass::Transactional,
        wit::EffectClass::Idempotent => EffectClass::Idempotent,
        wit::EffectClass::Ambiguous => EffectClass::Ambiguous,
    };
    let http = raw.http.into_iter().map(|need| HttpNeed { url: need.url, methods: need.methods, safe: need.safe });
    let descriptor = Descriptor {
        name: raw.name,
        title: raw.title,
        description: raw.description,
        effect_class: class,
        hooks: Hooks {
            authorize: raw.hooks.contains(wit::Hooks::AUTHORIZE),
            plan: raw.hooks.contains(wit::Hooks::PLAN),
            reconcile: raw.hooks.contains(wit::Hooks::RECONCILE),
        },
        config_schema: Value::Null,
        output_schema: None,
        http: http.collect(),
        meters: raw.meters,
        limits: LimitsNeed {
            memory_bytes: raw.limits.memory_bytes,
            cpu_ms: raw.limits.cpu_ms,
            wall_ms: raw.limits.wall_ms,
            requests: raw.limits.requests,
        },
        prepared: PreparedSchemas::default(),
    };
    (descriptor, raw.config_schema, raw.output_schema)
}

impl Component {
    /// Instantiates it into `store`.
    pub(super) async fn instantiate(&self, store: &mut wasmtime::Store<GuestState>) -> wasmtime::Result<Action> {
        self.pre.instantiate_async(store).await
    }
}
