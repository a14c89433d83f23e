//! Starting a run: freeze the definition, check the parameters, publish it whole.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::budget::Amount;
use crate::component::{ActionName, descriptors};
use crate::host::Host;
use crate::json;
use crate::schema::SchemaProblem;
use crate::source::Report;
use crate::store::{NewDefinition, NewRun, NewStep, PublishError, StoreError};
use crate::workflow::{Definition, PinnedAction, Workflow, validate_params};

/// What a run is started with.
#[derive(Debug, Clone)]
pub struct StartRun {
    /// The workflow, parsed; its actions are pinned to the components that are active now.
    pub workflow: Workflow,
    /// Its parameters.
    pub params: Value,
    /// Start it once under this key, however often it is started; `None` starts another.
    pub key: Option<String>,
    /// Caps that replace those of the definition, by dimension.
    pub budget: BTreeMap<String, Amount>,
    /// Where at most one run of the workflow may be under way; `None`: anywhere, any number.
    pub scope: Option<String>,
    /// Start it although its scope is occupied.
    pub force: bool,
    /// What else to remember about whoever asked for it.
    pub labels: BTreeMap<String, String>,
}

impl StartRun {
    /// `workflow` without parameters, key, scope or labels, under its own budget.
    pub fn of(workflow: Workflow) -> StartRun {
        StartRun {
            workflow,
            params: Value::Object(serde_json::Map::new()),
            key: None,
            budget: BTreeMap::new(),
            scope: None,
            force: false,
            labels: BTreeMap::new(),
        }
    }
}

/// A published run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// Its id.
    pub run: String,
    /// Whether its key had started it before.
    pub existing: bool,
}

/// Why a run was not started. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The workflow names actions that no active component has.
    #[error(transparent)]
    Workflow(Box<Report>),
    /// The parameters do not fit the workflow's schema.
    #[error("the parameters do not fit {workflow}: {}", .problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Params {
        /// The workflow.
        workflow: String,
        /// Each with its path.
        problems: Vec<SchemaProblem>,
    },
    /// The key, or the scope, is not one: an empty variable of a script is no key under which to start something once.
    #[error("{0}")]
    Name(String),
    /// The key or the scope belongs to another run.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Host {
    /// Freezes a workflow: its actions pinned to the components that are active now.
    ///
    /// # Errors
    /// [`StartError::Workflow`] naming every action that no active component has, where it stands in the file.
    pub async fn freeze(&self, workflow: Workflow) -> Result<Definition, StartError> {
        let mut pinned = BTreeMap::new();
        let actions: BTreeSet<String> = workflow.actions().into_iter().map(str::to_owned).collect();
        for name in actions {
            let Ok(ActionName { app, action }) = name.parse() else { continue };
            let Some(row) = self.store.component(&app, None).await? else { continue };
            if let Some(found) = descriptors(&row.descriptors).into_iter().find(|found| found.name == action) {
                pinned.insert(name, PinnedAction { digest: row.digest, effect_class: found.effect_class });
            }
        }
        Definition::freeze(workflow, |action| pinned.get(action).cloned())
            .map_err(|report| StartError::Workflow(Box::new(report)))
    }

    /// Starts a run. When it returns, run, steps, definition, budget and started event are durable together.
    ///
    /// # Errors
    /// [`StartError`]; nothing was written.
    pub async fn start(&self, start: StartRun) -> Result<Started, StartError> {
        check_name("start key", start.key.as_deref())?;
        check_name("scope", start.scope.as_deref())?;
        let definition = self.freeze(start.workflow).await?;
        check_params(&definition, &start.params)?;
        let mut caps = definition.budget.clone();
        caps.extend(start.budget);
        let title = definition.title.clone().unwrap_or_else(|| definition.workflow_ref.clone());
        let steps = definition.steps.iter().map(|step| NewStep {
            key: step.id.clone(),
            title: step.title.clone(),
            instructions: step.instructions.clone(),
            action: Some(step.action.clone()),
        });
        let published = self
            .store
            .publish(NewRun {
                id: self.ambient.ids.next_id(),
                workflow_ref: definition.workflow_ref.clone(),
                definition: NewDefinition {
                    hash: definition.hash(),
                    format: definition.format,
                    body: definition.to_json(),
                },
                title,
                scope: start.scope,
                params: json::canonical(&start.params),
                labels: json::canonical(&json!(start.labels)),
                start_key: start.key,
                forced: start.force,
                caps,
                steps: steps.collect(),
                at: self.ambient.clock.now(),
            })
            .await?;
        crate::crash::point("published");
        Ok(Started { run: published.run, existing: published.existing })
    }
}

/// The longest start key or scope, in bytes.
const NAME_BYTES_MAX: usize = 256;

fn check_name(what: &str, name: Option<&str>) -> Result<(), StartError> {
    match name {
        Some(name) if !(1..=NAME_BYTES_MAX).contains(&name.len()) || name.contains('\0') => Err(StartError::Name(
            format!("a {what} has 1 to {NAME_BYTES_MAX} bytes and no NUL, and this one has {}", name.len()),
        )),
        _ => Ok(()),
    }
}

pub(super) fn check_params(definition: &Definition, params: &Value) -> Result<(), StartError> {
    validate_params(definition, params)
        .map_err(|problems| StartError::Params { workflow: definition.workflow_ref.clone(), problems })
}
