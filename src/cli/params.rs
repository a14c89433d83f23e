//! What a run is started with, from the command line: `--params`, `--param`, `--budget`, `--label`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value};

use tollgate::budget::caps;
use tollgate::json;
use tollgate::run::StartRun;
use tollgate::workflow::Workflow;

use super::context::{named, read_text};
use super::exit::CliError;
use super::workflow::read_workflow;

/// The largest parameters that are accepted, as canonical text.
const PARAMS_BYTES_MAX: usize = 8 << 20;

/// What a run is started with.
#[derive(Debug, Args)]
pub struct Start {
    /// The workflow: YAML or JSON
    pub file: PathBuf,
    /// All parameters: JSON that begins with `{`, else a file; `-` reads stdin
    #[arg(long, value_name = "JSON|FILE")]
    params: Option<String>,
    /// One parameter, over those of --params: text where its schema says `string`, else JSON; @FILE is the file's text
    #[arg(long, value_name = "NAME=VALUE|NAME=@FILE", value_parser = named)]
    param: Vec<(String, String)>,
    /// The cap of a dimension, over the workflow's own
    #[arg(long, value_name = "DIMENSION=AMOUNT", value_parser = named)]
    budget: Vec<(String, String)>,
    /// Something to remember about whoever asked for the run
    #[arg(long, value_name = "NAME=VALUE", value_parser = named)]
    label: Vec<(String, String)>,
}

impl Start {
    /// The run to start.
    pub fn read(self) -> Result<StartRun, CliError> {
        let workflow = read_workflow(&self.file)?;
        let params = params(&workflow, self.params.as_deref(), &self.param)?;
        let budget = caps("--budget", self.budget)?;
        let mut labels = BTreeMap::new();
        for (name, value) in self.label {
            if labels.insert(name.clone(), value).is_some() {
                return Err(CliError::refused("LABEL_TWICE", format!("--label {name} is given twice")));
            }
        }
        Ok(StartRun { params, budget, labels, ..StartRun::of(workflow) })
    }
}

fn params(workflow: &Workflow, all: Option<&str>, each: &[(String, String)]) -> Result<Value, CliError> {
    let mut params = match all {
        Some(given) => whole(given)?,
        None => Map::new(),
    };
    let mut seen: Vec<&str> = Vec::new();
    for (name, text) in each {
        if seen.contains(&name.as_str()) {
            return Err(refused(format!("--param {name} is given twice")));
        }
        seen.push(name);
        params.insert(name.clone(), one(&workflow.params_schema, name, text)?);
    }
    // Texts of files have not passed the gate yet, and neither has the sum.
    json::parse(&json::canonical(&Value::Object(params)), PARAMS_BYTES_MAX).map_err(|error| refused(error.to_string()))
}

/// What `--params` says.
fn whole(given: &str) -> Result<Map<String, Value>, CliError> {
    let (from, text) = match given {
        inline if inline.trim_start().starts_with('{') => ("--params".to_owned(), inline.to_owned()),
        "-" => ("stdin".to_owned(), stdin()?),
        file => (file.to_owned(), read_text(Path::new(file))?),
    };
    match json::parse(&text, PARAMS_BYTES_MAX) {
        Ok(Value::Object(params)) => Ok(params),
        Ok(_) => Err(refused(format!("{from}: parameters are one JSON object, such as {{\"name\": \"value\"}}"))),
        Err(error) => Err(refused(format!("{from}: {error}"))),
    }
}

fn stdin() -> Result<String, CliError> {
    let mut text = String::new();
    let limit = PARAMS_BYTES_MAX as u64 + 1;
    match std::io::stdin().lock().take(limit).read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) => Err(CliError::refused("FILE_UNREADABLE", format!("cannot read stdin: {error}"))),
    }
}

/// What one `--param` says. A text that could be either is never guessed at: the schema decides.
fn one(schema: &Value, name: &str, text: &str) -> Result<Value, CliError> {
    if let Some(file) = text.strip_prefix('@') {
        return Ok(Value::String(read_text(Path::new(file))?));
    }
    if is_text(schema, name) {
        return Ok(Value::String(text.to_owned()));
    }
    json::parse(text, PARAMS_BYTES_MAX).map_err(|error| {
        refused(format!("--param {name}: the workflow does not say that {name} is a string, and this is not JSON: {error}"))
            .help(format!("write a text with its quotes, --param '{name}=\"…\"', or declare {name} as a string in the workflow's params"))
    })
}

/// Whether the schema says that a parameter is text, or text and nothing but null otherwise.
fn is_text(schema: &Value, name: &str) -> bool {
    match &schema["properties"][name]["type"] {
        Value::String(kind) => kind == "string",
        Value::Array(kinds) => {
            kinds.contains(&Value::from("string")) && kinds.iter().all(|kind| kind == "string" || kind == "null")
        }
        _ => false,
    }
}

fn refused(message: String) -> CliError {
    CliError::refused("PARAMS_INVALID", message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const WORKFLOW: &str = r"
workflow: test/params
params:
  type: object
  properties:
    text: { type: string }
    maybe: { type: [string, 'null'] }
    number: { type: integer }
    either: { type: [string, integer] }
steps: [{ id: one, action: test/one }]
";

    fn given(all: Option<&str>, each: &[(&str, &str)]) -> Result<Value, CliError> {
        let workflow = Workflow::parse("test.yaml", WORKFLOW).expect("the workflow parses");
        let each: Vec<_> = each.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        params(&workflow, all, &each)
    }

    #[track_caller]
    fn check(all: Option<&str>, each: &[(&str, &str)], expected: Value) {
        assert_eq!(given(all, each).expect("they are accepted"), expected);
    }

    #[track_caller]
    fn refuses(all: Option<&str>, each: &[(&str, &str)], expected: &str) {
        let error = format!("{:?}", given(all, each).expect_err("they are refused"));
        assert!(error.contains(expected), "{error} should contain {expected}");
    }

    #[test]
    fn the_schema_decides_what_is_text() {
        check(None, &[("text", "7"), ("maybe", "null")], json!({ "text": "7", "maybe": "null" }));
        check(None, &[("number", "7"), ("either", "\"7\"")], json!({ "number": 7, "either": "7" }));
        check(None, &[("unknown", "[1]")], json!({ "unknown": [1] }));
        refuses(None, &[("either", "seven")], "does not say that either is a string");
        refuses(None, &[("unknown", "01234")], "does not say that unknown is a string");
    }

    #[test]
    fn one_overrides_all() {
        check(Some(" {\"text\":\"a\",\"number\":1}"), &[("number", "2")], json!({ "text": "a", "number": 2 }));
        refuses(None, &[("number", "1"), ("number", "2")], "given twice");
    }

    #[test]
    fn the_gate_is_at_the_door() {
        refuses(Some("{\"number\":123456789012345678901}"), &[], "does not fit 64 bits");
        refuses(Some("{\"a\":1,\"a\":2}"), &[], "--params: line 1");
        refuses(None, &[("number", "1e999")], "number");
        refuses(Some("absent.json"), &[], "cannot read absent.json");
    }

    #[test]
    fn a_file_is_text() {
        let file = std::env::temp_dir().join(format!("tollgate-params-{}", std::process::id()));
        std::fs::write(&file, "7\n").expect("a temporary file");
        check(None, &[("number", &format!("@{}", file.display()))], json!({ "number": "7\n" }));
        std::fs::write(&file, [0xff]).expect("a temporary file");
        refuses(None, &[("number", &format!("@{}", file.display()))], "is not UTF-8 text");
        std::fs::remove_file(&file).expect("a temporary file");
    }
}
