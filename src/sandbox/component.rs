//! A component, loaded: judged, compiled or found compiled, linked.
//!
//! It calls no export but `describe`.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component as Compiled, Linker, ResourceType};

use super::bindings::tollgate::action::types as wit;
use super::bindings::{Action, ActionPre};
use super::host::Refused;
use super::state::GuestState;
use super::{Attempt, AttemptSetup, CompileError, Fault, Sandbox};
use crate::capability::Phase;
use crate::component::intake::{self, ACTIONS, ImportReport, IntakeError, is_linked, is_wasi_0_2};
use crate::component::{Descriptor, Hooks, HttpNeed, LimitsNeed, PreparedSchemas};
use crate::effect::EffectClass;

/// A component that can be instantiated. Clones share the compiled code.
#[derive(Clone)]
pub struct Component {
    digest: Arc<str>,
    pub(super) pre: ActionPre<GuestState>,
    pub(super) sandbox: Sandbox,
    imports: Arc<Vec<ImportReport>>,
}

/// Why a component cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Its bytes are not accepted; for the guest's author.
    #[error(transparent)]
    Intake(#[from] IntakeError),
    /// It could not be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// It does not fit this host; for the guest's author.
    #[error("{0}")]
    Link(String),
}

/// Why `describe` did not return; for the guest's author, who has no attempt to look at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{fault}{}", said(.stderr))]
pub struct DescribeError {
    /// What stopped it.
    pub fault: Fault,
    /// The last part of what it wrote to stderr: a panic's message.
    pub stderr: String,
}

fn said(stderr: &str) -> String {
    match stderr.trim() {
        "" => String::new(),
        text => format!("\nit wrote to stderr:\n    {}", text.replace('\n', "\n    ")),
    }
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
    /// [`DescribeError`] where it trapped or ran into a limit.
    pub async fn describe(&self) -> Result<Vec<(Descriptor, String, Option<String>)>, DescribeError> {
        let attempt = Attempt::new(&self.sandbox, AttemptSetup::describe()).await;
        let described = match attempt.instantiate(self, Phase::Describe).await {
            Ok(instance) => instance.describe().await,
            Err(fault) => Err(fault),
        };
        match described {
            Ok(described) => Ok(described.into_iter().map(descriptor).collect()),
            Err(fault) => Err(DescribeError { fault, stderr: attempt.record().stderr }),
        }
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
    /// Judges a component in full, has it compiled unless its compiled form is kept already, and links it.
    ///
    /// # Errors
    /// [`LoadError`], which says what was found, what was expected, and what to do.
    pub async fn load(&self, bytes: impl Into<Bytes>) -> Result<Component, LoadError> {
        let (bytes, caps) = (bytes.into(), self.caps.clone());
        let judged = bytes.clone();
        blocking(move || intake::check(&judged, &caps)).await??;
        let sandbox = self.clone();
        let digested = bytes.clone();
        let (digest, kept) = blocking(move || sandbox.kept(digest(&digested))).await?;
        let compiled = match kept {
            Some(compiled) => compiled,
            None => self.compile(&digest, bytes).await?,
        };
        self.link(digest, compiled).await
    }

    /// As [`Sandbox::load`], for bytes that were accepted before, as those of a store were: where their compiled form is
    /// kept, they are not judged again.
    ///
    /// # Errors
    /// As there.
    pub async fn load_accepted(&self, bytes: impl Into<Bytes>) -> Result<Component, LoadError> {
        let (bytes, sandbox) = (bytes.into(), self.clone());
        let digested = bytes.clone();
        match blocking(move || sandbox.kept(digest(&digested))).await? {
            (digest, Some(compiled)) => self.link(digest, compiled).await,
            (_, None) => self.load(bytes).await,
        }
    }

    /// The compiled form that is kept, ready to be linked. What cannot be used is as good as none.
    fn kept(&self, digest: String) -> (String, Option<Compiled>) {
        let form = self.cache.as_ref().and_then(|cache| cache.get(&self.entry(&digest)));
        let compiled = form.and_then(|form| form.load(&self.inner.engine).ok());
        (digest, compiled)
    }

    /// The name of a compiled form: for this component, by this engine.
    fn entry(&self, digest: &str) -> String {
        format!("{digest}-{}", self.inner.fingerprint)
    }

    async fn compile(&self, digest: &str, bytes: Bytes) -> Result<Compiled, LoadError> {
        let form = self.compiler.compile(bytes).await?;
        let (sandbox, entry) = (self.clone(), self.entry(digest));
        blocking(move || {
            let compiled = form
                .load(&sandbox.inner.engine)
                .map_err(|error| CompileError::Failed(format!("what it made is not for this engine: {error:#}")))?;
            if let Some(cache) = &sandbox.cache
                && let Err(error) = cache.put(&entry, &form)
            {
                tracing::warn!(%error, folder = %cache.folder().display(), "a compiled component is not kept");
            }
            Ok(compiled)
        })
        .await?
    }

    async fn link(&self, digest: String, compiled: Compiled) -> Result<Component, LoadError> {
        let sandbox = self.clone();
        blocking(move || sandbox.link_here(digest, compiled)).await?
    }

    fn link_here(self, digest: String, compiled: Compiled) -> Result<Component, LoadError> {
        let engine = &self.inner.engine;
        let ty = compiled.component_type();
        let mut imports = Vec::new();
        let mut linker = self.inner.linker.clone();
        for (name, import) in ty.imports(engine) {
            let known = is_linked(name);
            imports.push(ImportReport { name: name.to_owned(), stubbed: !known });
            match import.ty {
                _ if known => {}
                ComponentItem::ComponentInstance(instance) if is_wasi_0_2(name) => {
                    stub(&mut linker, engine, name, &instance)
                        .map_err(|error| LoadError::Link(format!("import `{name}`: {error:#}")))?;
                }
                // Intake has explained it better; what is here was never judged, or by other rules.
                _ => return Err(LoadError::Link(format!("import `{name}`: this host has nothing of that name"))),
            }
        }
        let pre = linker
            .instantiate_pre(&compiled)
            .and_then(ActionPre::new)
            .map_err(|error| LoadError::Link(format!("the component does not fit `{ACTIONS}`: {error:#}")))?;
        Ok(Component { digest: digest.into(), pre, sandbox: self, imports: Arc::new(imports) })
    }
}

/// Runs work that computes or reads files on a thread for that. A panic of the engine is its own fault, and must not be the
/// host's.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, LoadError> {
    let gave_up = |_| LoadError::Compile(CompileError::Refused("the engine gave up on it".to_owned()));
    tokio::task::spawn_blocking(work).await.map_err(gave_up)
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
