//! `component push|inspect|activate|list|show`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};

use tollgate::capability::{Capability, Phase, allows};
use tollgate::component::{Descriptor, Inspected, descriptors, inspect};
use tollgate::store::{Activated, ComponentRow};

use super::answer::Answer;
use super::context::{Common, read};
use super::exit::CliError;
use super::json as shapes;
use super::text::{count, fields, section, size, table};

/// What can be done with components.
#[derive(Debug, Subcommand)]
pub enum Component {
    /// Upload a component as the next version of an app
    Push {
        /// The app that owns it: lower case letters, digits and `-`
        app: String,
        /// The component
        file: PathBuf,
    },
    /// Say what a component is, without uploading it
    Inspect {
        /// The component
        file: PathBuf,
    },
    /// Make a version that was pushed before the active one: to roll back, or forward again
    Activate {
        /// The app
        app: String,
        /// Which version, as `component list` numbers them
        version: u32,
    },
    /// List every version of every app
    List,
    /// Show a version of an app's component
    Show {
        /// The app
        app: String,
        /// Which version; without it, the active one
        #[arg(long, value_name = "N")]
        version: Option<u32>,
    },
}

/// Does it.
pub async fn perform(common: &Common, command: Component) -> Result<Answer, CliError> {
    match command {
        Component::Push { app, file } => {
            let bytes = read(&file)?;
            let policy = common.policy()?;
            let host = common.host(common.store().await?, policy)?;
            let (pushed, inspected) = host.registry.push(&app, bytes, &host.policy).await?;
            let what = if pushed.existing { "is the active version already" } else { "is active" };
            let text = format!(
                "{app} version {} {what}\n{}",
                pushed.version,
                described(&inspected.digest, &inspected.actions, Some(&app))
            );
            let json = json!({
                "app": app,
                "version": pushed.version,
                "existing": pushed.existing,
                "digest": inspected.digest,
                "bytes": inspected.bytes,
                "actions": actions(&inspected.actions),
            });
            Ok(Answer::done(text, json))
        }
        Component::Inspect { file } => {
            let inspected = inspect(&common.sandbox()?, read(&file)?).await?;
            Ok(Answer::done(inspected_text(&inspected), inspected_json(&inspected)))
        }
        Component::Activate { app, version } => {
            let store = common.existing_store().await?;
            let policy = common.policy()?;
            let host = common.host(store, policy)?;
            let Activated { row, before } = host.registry.activate(&app, version, &host.policy).await?;
            let what = match before {
                Some(before) if before == version => "is the active version already".to_owned(),
                Some(before) => format!("is active, in place of version {before}"),
                None => "is active".to_owned(),
            };
            let text = format!(
                "{app} version {version} {what}\n{}",
                described(&row.digest, &descriptors(&row.descriptors), Some(&app))
            );
            let mut json = self::row(&row);
            json["before"] = json!(before);
            Ok(Answer::done(text, json))
        }
        Component::List => {
            let rows = common.existing_store().await?.components().await?;
            Ok(Answer::done(
                list_text(&rows, common),
                json!({ "components": rows.iter().map(row).collect::<Vec<_>>() }),
            ))
        }
        Component::Show { app, version } => {
            let found = common.existing_store().await?.component(&app, version).await?;
            let found = found.ok_or_else(|| {
                let which = version.map_or_else(String::new, |version| format!(" version {version}"));
                CliError::refused("COMPONENT_NOT_FOUND", format!("there is no component {app}{which}"))
                    .next("see which there are", "component list")
            })?;
            let active = if found.active { "active" } else { "not active" };
            let text = format!(
                "{} version {}, {active}, pushed {}\n{}",
                found.app,
                found.version,
                found.pushed_at,
                described(&found.digest, &descriptors(&found.descriptors), Some(&found.app))
            );
            Ok(Answer::done(text, row(&found)))
        }
    }
}

fn actions(found: &[Descriptor]) -> Vec<Value> {
    found.iter().map(shapes::action).collect()
}

fn row(row: &ComponentRow) -> Value {
    json!({
        "app": row.app,
        "version": row.version,
        "digest": row.digest,
        "active": row.active,
        "pushed_at": shapes::time(row.pushed_at),
        "actions": actions(&descriptors(&row.descriptors)),
    })
}

fn list_text(rows: &[ComponentRow], common: &Common) -> String {
    if rows.is_empty() {
        return format!("no components; {} uploads one\n", common.command("component push APP FILE.wasm"));
    }
    table(
        &["app", "version", "active", "pushed", "actions", "digest"],
        rows.iter().map(|row| {
            let names: Vec<String> = descriptors(&row.descriptors).into_iter().map(|action| action.name).collect();
            vec![
                row.app.clone(),
                row.version.to_string(),
                if row.active { "yes" } else { "" }.to_owned(),
                row.pushed_at.to_string(),
                names.join(", "),
                row.digest.clone(),
            ]
        }),
    )
}

fn described(digest: &str, found: &[Descriptor], app: Option<&str>) -> String {
    fields(&[("digest", Some(digest.to_owned()))]) + &section("actions", &actions_table(found, app))
}

fn actions_table(found: &[Descriptor], app: Option<&str>) -> String {
    table(
        &["action", "class", "hooks", "meters", "title"],
        found.iter().map(|action| {
            vec![
                app.map_or_else(|| action.name.clone(), |app| format!("{app}/{}", action.name)),
                action.effect_class.to_string(),
                hooks(action),
                action.meters.join(", "),
                action.title.clone(),
            ]
        }),
    )
}

fn hooks(action: &Descriptor) -> String {
    let hooks = action.hooks;
    let named = [("authorize", hooks.authorize), ("plan", hooks.plan), ("reconcile", hooks.reconcile)];
    let names: Vec<&str> = named.into_iter().filter_map(|(name, has)| has.then_some(name)).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(", ") }
}

fn inspected_text(inspected: &Inspected) -> String {
    let requests = inspected.actions.iter().flat_map(|action| {
        action.http.iter().map(|need| {
            let safe = if need.safe { "safe" } else { "" };
            vec![action.name.clone(), need.methods.join(", "), need.url.clone(), safe.to_owned()]
        })
    });
    let imports = inspected.imports.iter().map(|import| {
        vec![import.name.clone(), if import.stubbed { "refuses when it is called" } else { "" }.to_owned()]
    });
    let size = size(inspected.bytes as u64);
    let mut text = fields(&[
        ("digest", Some(inspected.digest.clone())),
        ("size", Some(size)),
        ("compiled in", Some(format!("{:.1} ms", millis(inspected.compiled_in)))),
        ("instantiated and described in", Some(format!("{:.1} ms", millis(inspected.described_in)))),
    ]);
    text.push_str(&section("actions", &actions_table(&inspected.actions, None)));
    for (names, phases, action) in alike(&inspected.actions) {
        let heading = format!("what {} may touch ({})", names.join(", "), action.effect_class);
        text.push_str(&section(&heading, &touches_table(action, &phases)));
    }
    text.push_str(&section("asks to reach", &table(&["action", "methods", "url", ""], requests)));
    let heading = count(inspected.imports.len(), "import", "imports");
    text.push_str(&section(&heading, &table(&["interface", ""], imports)));
    text
}

/// The actions by what holds for all of a kind: their names, the exports that mean something for them, and one of them.
fn alike(actions: &[Descriptor]) -> Vec<(Vec<&str>, Vec<Phase>, &Descriptor)> {
    let mut kinds: Vec<(Vec<&str>, Vec<Phase>, &Descriptor)> = Vec::new();
    for action in actions {
        let same = |(_, _, other): &&mut (_, _, &Descriptor)| {
            (other.effect_class, other.hooks) == (action.effect_class, action.hooks)
        };
        match kinds.iter_mut().find(same) {
            Some((names, ..)) => names.push(&action.name),
            None => kinds.push((vec![&action.name], phases(action), action)),
        }
    }
    kinds
}

fn phases(action: &Descriptor) -> Vec<Phase> {
    let means = |phase: &Phase| match phase {
        Phase::Describe | Phase::Run => true,
        Phase::Authorize => action.hooks.authorize,
        Phase::Plan => action.hooks.plan,
        Phase::Reconcile => action.hooks.reconcile,
    };
    Phase::ALL.into_iter().filter(means).collect()
}

fn touches_table(action: &Descriptor, phases: &[Phase]) -> String {
    let header: Vec<&str> = std::iter::once("").chain(phases.iter().map(|phase| phase.as_str())).collect();
    let row = |capability: Capability| {
        let may = |phase: &Phase| if allows(action.effect_class, *phase, capability) { "yes" } else { "-" };
        let cells = phases.iter().map(|phase| may(phase).to_owned());
        std::iter::once(capability.as_str().to_owned()).chain(cells).collect()
    };
    table(&header, Capability::ALL.into_iter().map(row))
}

/// By phase, what an action may touch.
fn touches_json(action: &Descriptor) -> Value {
    let of = |phase: Phase| {
        let may = Capability::ALL.into_iter().filter(|capability| allows(action.effect_class, phase, *capability));
        may.map(|capability| Value::from(capability.as_str())).collect::<Value>()
    };
    Value::Object(phases(action).into_iter().map(|phase| (phase.as_str().to_owned(), of(phase))).collect())
}

fn inspected_json(inspected: &Inspected) -> Value {
    let imports: Vec<Value> =
        inspected.imports.iter().map(|import| json!({ "interface": import.name, "stubbed": import.stubbed })).collect();
    json!({
        "digest": inspected.digest,
        "bytes": inspected.bytes,
        "actions": actions(&inspected.actions),
        "touches": inspected
            .actions
            .iter()
            .map(|action| json!({ "action": action.name, "phases": touches_json(action) }))
            .collect::<Vec<_>>(),
        "imports": imports,
        "compiled_ms": millis(inspected.compiled_in),
        "described_ms": millis(inspected.described_in),
    })
}

/// To the microsecond.
fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
