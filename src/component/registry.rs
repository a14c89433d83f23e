//! The components of a store: pushing them, and having them compiled when they are needed.
//!
//! Loaded components are kept in memory by digest. What is kept on disk, and why it can be trusted, is the sandbox's
//! concern.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use serde_json::Value;

use super::{Descriptor, ImportReport, Refusal, check_descriptors};
use crate::clock::Ambient;
use crate::component::descriptor::is_name;
use crate::json;
use crate::perform::Components;
use crate::policy::Policy;
use crate::sandbox::{Component, DescribeError, LoadError, Sandbox};
use crate::store::{Activated, Pushed, Store, StoreError};

/// How many compiled components are kept.
const LOADED_MAX: usize = 64;

/// The components of one store, compiled in one sandbox. Clones share them.
#[derive(Clone)]
pub struct Registry {
    store: Store,
    sandbox: Sandbox,
    ambient: Ambient,
    loaded: Arc<Mutex<HashMap<String, Component>>>,
    /// A lock for each component that is being loaded: whoever wants it too waits for the first.
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
    /// It cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// `describe` did not return; for the guest's author.
    #[error("{0}")]
    Describe(DescribeError),
    /// What it says of itself is not acceptable, for the guest's author; and, at the same time, the classes that the policy
    /// does not allow the app.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The policy does not allow the app these classes; for the operator. Nothing else is wrong.
    #[error("{}", .0.join("\n"))]
    Classes(Vec<String>),
    /// The app has no component of this version; for whoever asked for it.
    #[error("there is no component {app} version {version}")]
    NoSuchVersion {
        /// The app.
        app: String,
        /// The version.
        version: u32,
    },
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
        let (inspected, component) = examine(&self.sandbox, bytes, |_| Vec::new()).await?;
        self.keep(component);
        Ok(inspected)
    }

    /// Makes a component the active version of `app`. When it returns, that is durable; on any error the version that was
    /// active still is.
    ///
    /// # Errors
    /// [`PushError`]. Everything that is wrong with what the component says of itself is named at once, and so are the
    /// classes that the policy does not allow the app, each with the line to add.
    pub async fn push(&self, app: &str, bytes: Vec<u8>, policy: &Policy) -> Result<(Pushed, Inspected), PushError> {
        if !is_name(app) {
            return Err(PushError::App(app.to_owned()));
        }
        let refused = |actions: &[Descriptor]| classes_refused(app, actions, policy);
        let (inspected, component) = examine(&self.sandbox, bytes.clone(), refused).await?;
        self.keep(component);
        let descriptors = json::canonical(&serde_json::to_value(&inspected.actions).unwrap_or(Value::Null));
        let now = self.ambient.clock.now();
        let pushed = self.store.push_component(app, &inspected.digest, bytes, &descriptors, now).await?;
        Ok((pushed, inspected))
    }

    /// Makes a version that was pushed before the active one of `app`: new runs get it, runs under way keep what they were
    /// started with. When it returns, that is durable; on any error the version that was active still is.
    ///
    /// # Errors
    /// [`PushError`] where there is no such version, where the policy no longer allows the app its classes, and where this
    /// host cannot load it any more.
    pub async fn activate(&self, app: &str, version: u32, policy: &Policy) -> Result<Activated, PushError> {
        let none = || PushError::NoSuchVersion { app: app.to_owned(), version };
        let row = self.store.component(app, Some(version)).await?.ok_or_else(none)?;
        let refused = classes_refused(app, &descriptors(&row.descriptors), policy);
        if !refused.is_empty() {
            return Err(PushError::Classes(refused));
        }
        let bytes = self.store.component_bytes(&row.digest).await?.ok_or_else(none)?;
        self.keep(self.sandbox.load_accepted(bytes).await?);
        self.store.activate_component(app, version).await?.ok_or_else(none)
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

    fn kept(&self, digest: &str) -> Option<Component> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).get(digest).cloned()
    }

    async fn load(&self, digest: &str) -> Result<Component, String> {
        if let Some(component) = self.kept(digest) {
            return Ok(component);
        }
        let loading = {
            let mut loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
            loading.entry(digest.to_owned()).or_default().clone()
        };
        let _first = loading.lock().await;
        let loaded = match self.kept(digest) {
            Some(component) => Ok(component),
            None => self.load_stored(digest).await,
        };
        self.loading.lock().unwrap_or_else(PoisonError::into_inner).remove(digest);
        loaded
    }

    async fn load_stored(&self, digest: &str) -> Result<Component, String> {
        let bytes = self.store.component_bytes(digest).await.map_err(|error| error.to_string())?;
        let bytes = bytes.ok_or("the store does not have it; push it again")?;
        let component = self.sandbox.load_accepted(bytes).await.map_err(|error| error.to_string())?;
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
    Ok(examine(sandbox, bytes, |_| Vec::new()).await?.0)
}

/// Loads, asks and checks; `refused` says what else is wrong with the actions that it has.
async fn examine(
    sandbox: &Sandbox,
    bytes: Vec<u8>,
    refused: impl FnOnce(&[Descriptor]) -> Vec<String>,
) -> Result<(Inspected, Component), PushError> {
    let size = bytes.len();
    let began = Instant::now();
    let component = sandbox.load(bytes).await?;
    let compiled_in = began.elapsed();
    let described = component.describe().await.map_err(PushError::Describe)?;
    let described_in = began.elapsed().saturating_sub(compiled_in);
    let declared: Vec<Descriptor> = described.iter().map(|(descriptor, ..)| descriptor.clone()).collect();
    let refused = refused(&declared);
    let actions = match check_descriptors(described) {
        Ok(actions) if refused.is_empty() => actions,
        Ok(_) => return Err(PushError::Classes(refused)),
        Err(Refusal(faults)) => return Err(Refusal([faults, refused].concat()).into()),
    };
    let inspected = Inspected {
        digest: component.digest().to_owned(),
        bytes: size,
        actions,
        imports: component.imports().to_vec(),
        compiled_in,
        described_in,
    };
    Ok((inspected, component))
}

/// The classes that the policy does not allow the app, each with the line that would.
fn classes_refused(app: &str, actions: &[Descriptor], policy: &Policy) -> Vec<String> {
    let refused = actions.iter().filter(|action| !policy.allows_class(app, action.effect_class));
    refused
        .map(|action| {
            let class = action.effect_class;
            format!(
                "action `{}` is {class}, and {} does not allow {app} that class. To allow it:\n{}",
                action.name,
                policy.file_name(),
                policy.missing_class(app, class)
            )
        })
        .collect()
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
