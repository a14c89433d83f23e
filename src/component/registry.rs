//! The components of a store: pushing them, and having them compiled when they are needed.
//!
//! It keeps compiled code in memory only, by digest: a compiled form that is read back from anywhere would be code that
//! nobody has verified.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use serde_json::Value;

use super::{Descriptor, Refusal, check_descriptors};
use crate::clock::Ambient;
use crate::component::descriptor::is_name;
use crate::json;
use crate::perform::Components;
use crate::policy::Policy;
use crate::sandbox::{Component, Fault, ImportReport, LoadError, Sandbox};
use crate::store::{Pushed, Store, StoreError};

/// How many compiled components are kept.
const LOADED_MAX: usize = 64;

/// The largest component that is accepted. A Python guest has 18 MB.
const COMPONENT_BYTES_MAX: usize = 64 << 20;

/// The components of one store, compiled in one sandbox. Clones share them.
#[derive(Clone)]
pub struct Registry {
    store: Store,
    sandbox: Sandbox,
    ambient: Ambient,
    loaded: Arc<Mutex<HashMap<String, Component>>>,
    /// A lock for each component that is being compiled: whoever wants it too waits for the first.
    loading: Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>,
}

/// What a component is, before it is anybody's.
#[derive(Debug, Clone)]
pub struct Inspected {
    /// SHA-256 of its bytes.
    pub digest: String,
    /// How many bytes it has.
    pub bytes: usize,
    /// Its actions.
    pub actions: Vec<Descriptor>,
    /// What it imports.
    pub imports: Vec<ImportReport>,
    /// How long it took to compile and link.
    pub compiled_in: Duration,
    /// How long it took to instantiate it and call `describe`.
    pub described_in: Duration,
}

/// Why a component is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The app's name is not one.
    #[error("`{0}` is not the name of an app: lower case letters, digits and `-`, starting with a letter, at most 63")]
    App(String),
    /// It is larger than anything that is accepted.
    #[error(
        "the component has {found} bytes, and at most {limit} are accepted; build it in release mode, with `strip`"
    )]
    TooLarge {
        /// Its size.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// It cannot be loaded; for the guest's author.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// `describe` did not return; for the guest's author.
    #[error("{0}")]
    Describe(Fault),
    /// What it says of itself is not acceptable; for the guest's author.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The policy does not allow the app these classes; for the operator.
    #[error("{}", .0.join("\n"))]
    Classes(Vec<String>),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Registry {
    /// The components of `store`, compiled in `sandbox`.
    pub fn new(store: Store, sandbox: Sandbox, ambient: Ambient) -> Registry {
        Registry { store, sandbox, ambient, loaded: Arc::default(), loading: Arc::default() }
    }

    /// Loads a component, asks what it is and checks that. Stores nothing.
    ///
    /// # Errors
    /// [`PushError`], every fault of the component's description at once.
    pub async fn inspect(&self, bytes: Vec<u8>) -> Result<Inspected, PushError> {
        let (inspected, component) = examine(&self.sandbox, bytes).await?;
        self.keep(component);
        Ok(inspected)
    }

    /// Makes a component the active version of `app`. When it returns, that is durable; on any error the version that was
    /// active still is.
    ///
    /// # Errors
    /// [`PushError`]. Classes that the policy does not allow the app are refused all at once, each with the line to add.
    pub async fn push(&self, app: &str, bytes: Vec<u8>, policy: &Policy) -> Result<(Pushed, Inspected), PushError> {
        if !is_name(app) {
            return Err(PushError::App(app.to_owned()));
        }
        let inspected = self.inspect(bytes.clone()).await?;
        let refused: Vec<String> = inspected
            .actions
            .iter()
            .filter(|action| !policy.allows_class(app, action.effect_class))
            .map(|action| {
                let class = action.effect_class;
                format!(
                    "action `{}` is {class}, and {} does not allow {app} that class. To allow it:\n{}",
                    action.name,
                    policy.file_name(),
                    policy.missing_class(app, class)
                )
            })
            .collect();
        if !refused.is_empty() {
            return Err(PushError::Classes(refused));
        }
        let descriptors = json::canonical(&serde_json::to_value(&inspected.actions).unwrap_or(Value::Null));
        let now = self.ambient.clock.now();
        let pushed = self.store.push_component(app, &inspected.digest, bytes, &descriptors, now).await?;
        Ok((pushed, inspected))
    }

    /// What the component of this digest says of `action`; `None` where the store has no such component or it no such
    /// action.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn descriptor(&self, digest: &str, action: &str) -> Result<Option<Descriptor>, StoreError> {
        let Some(row) = self.store.component_by_digest(digest).await? else { return Ok(None) };
        Ok(descriptors(&row.descriptors).into_iter().find(|descriptor| descriptor.name == action))
    }

    fn keep(&self, component: Component) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.len() >= LOADED_MAX {
            loaded.clear();
        }
        loaded.insert(component.digest().to_owned(), component);
    }

    async fn load(&self, digest: &str) -> Result<Component, String> {
        if let Some(component) = self.kept(digest) {
            return Ok(component);
        }
        let compiling = {
            let mut loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
            loading.entry(digest.to_owned()).or_default().clone()
        };
        let _first = compiling.lock().await;
        let loaded = match self.kept(digest) {
            Some(component) => Ok(component),
            None => self.compile(digest).await,
        };
        self.loading.lock().unwrap_or_else(PoisonError::into_inner).remove(digest);
        loaded
    }

    fn kept(&self, digest: &str) -> Option<Component> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).get(digest).cloned()
    }

    async fn compile(&self, digest: &str) -> Result<Component, String> {
        let bytes = self.store.component_bytes(digest).await.map_err(|error| error.to_string())?;
        let bytes = bytes.ok_or("the store does not have it; push it again")?;
        let component = self.sandbox.load(bytes).await.map_err(|error| error.to_string())?;
        if component.digest() != digest {
            return Err("its stored bytes have another digest: the store is damaged".to_owned());
        }
        self.keep(component.clone());
        Ok(component)
    }
}

/// As [`Registry::inspect`], for whoever has no store.
///
/// # Errors
/// As there.
pub async fn inspect(sandbox: &Sandbox, bytes: Vec<u8>) -> Result<Inspected, PushError> {
    Ok(examine(sandbox, bytes).await?.0)
}

async fn examine(sandbox: &Sandbox, bytes: Vec<u8>) -> Result<(Inspected, Component), PushError> {
    if bytes.len() > COMPONENT_BYTES_MAX {
        return Err(PushError::TooLarge { found: bytes.len(), limit: COMPONENT_BYTES_MAX });
    }
    let size = bytes.len();
    let began = Instant::now();
    let component = sandbox.load(bytes).await?;
    let compiled_in = began.elapsed();
    let described = component.describe().await.map_err(PushError::Describe)?;
    let described_in = began.elapsed().saturating_sub(compiled_in);
    let inspected = Inspected {
        digest: component.digest().to_owned(),
        bytes: size,
        actions: check_descriptors(described)?,
        imports: component.imports().to_vec(),
        compiled_in,
        described_in,
    };
    Ok((inspected, component))
}

/// The descriptors stored with a component. Written by this program, so that anything unreadable is no action.
pub fn descriptors(text: &str) -> Vec<Descriptor> {
    serde_json::from_str(text).unwrap_or_default()
}

impl Components for Registry {
    fn component<'a>(&'a self, digest: &'a str) -> BoxFuture<'a, Result<Component, String>> {
        Box::pin(self.load(digest))
    }
}
