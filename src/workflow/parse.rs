//! From the text of a workflow file to a [`Workflow`], or to everything that is wrong with it, each with its line.
//!
//! What can be known before a run is checked here: names, durations, amounts, schemas, the syntax of every expression,
//! and whether what it refers to can be there by then. What only a run can know (whether a value has the field that an
//! expression asks for) is not.
//!
//! Nothing here opens a file: the text comes from the caller, and the name is only for messages.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::document::{self, Data, Entry, Node};
use super::expression::{self, Reference, SyntaxProblem};
use super::{Retry, Source, Step, Workflow};
use crate::budget::{self, Amount};
use crate::policy::reader::nearest;
use crate::policy::units::parse_duration;
use crate::schema;
use crate::source::{Problem, Report};

/// How many steps a workflow may have.
const STEPS_MAX: usize = 1000;
/// How many bytes each half of `app/name`, an id or a variable may have.
const NAME_BYTES_MAX: usize = 63;

const WORKFLOW_KEYS: [&str; 6] = ["workflow", "title", "params", "budget", "steps", "outputs"];
/// Keys of the format that this version does not know yet.
const WORKFLOW_KEYS_LATER: [&str; 2] = ["onFailure", "schedule"];
const STEP_KEYS: [&str; 9] = ["id", "title", "instructions", "action", "with", "saveAs", "if", "retry", "timeout"];
const STEP_KEYS_LATER: [&str; 6] = ["forEach", "manual", "workflow", "wait", "gate", "agent"];
/// What a step does where it does not perform an action. Such a step is not told to have an `action`.
const INSTEAD_OF_ACTION: [&str; 4] = ["manual", "workflow", "wait", "agent"];
const RETRY_KEYS: [&str; 3] = ["attempts", "backoff", "maxBackoff"];

/// Words that an expression cannot use as a name.
const RESERVED: [&str; 14] =
    ["true", "false", "none", "True", "False", "None", "and", "or", "not", "in", "is", "if", "else", "loop"];

/// Whether `name` names an action or a workflow: `app/name`, each half of lower-case letters, digits and `-`, beginning
/// with a letter, at most 63 bytes long.
pub fn is_qualified_name(name: &str) -> bool {
    let is_half = |half: &str| is_word(half, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    name.split_once('/').is_some_and(|(app, rest)| is_half(app) && is_half(rest))
}

impl Workflow {
    /// The workflow that `text` holds, in YAML or JSON. `name` is what messages call the file; one that ends in `.json`
    /// makes it JSON and nothing else.
    ///
    /// ```
    /// let report = tollgate::workflow::Workflow::parse("a.yaml", "workflow: a/b\nsteps:\n  - id: s\n    acton: a/c\n");
    /// let lines = report.unwrap_err().to_string();
    /// assert!(lines.contains("a.yaml:4:5: unknown key `acton`"));
    /// assert!(lines.contains("did you mean `action`?"));
    /// ```
    ///
    /// # Errors
    /// Everything that is wrong with the text, in its order; where it is no YAML or JSON at all, only that.
    pub fn parse(name: &str, text: &str) -> Result<Workflow, Report> {
        let mut reader = Reader { text, problems: Vec::new() };
        let workflow = match document::read(name, text) {
            Ok(root) => reader.workflow(name, &root),
            Err(problems) => {
                reader.problems = problems;
                None
            }
        };
        if workflow.is_none() && reader.problems.is_empty() {
            reader.problems.push(Problem::whole("this is not a workflow"));
        }
        Report::unless_empty(name, text, reader.problems)?;
        workflow.ok_or_else(|| Report::one(name, text, Problem::whole("this is not a workflow")))
    }
}

/// Reads the tree and notes what is wrong with it. A part that cannot be read is `None` and has been noted.
struct Reader<'t> {
    text: &'t str,
    problems: Vec<Problem>,
}

/// The entries of a mapping whose keys are known.
struct Fields<'n> {
    entries: &'n [Entry],
    /// The mapping itself, for what is missing from it.
    span: Range<usize>,
}

impl<'n> Fields<'n> {
    fn get(&self, key: &str) -> Option<&'n Node> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    fn has_any(&self, keys: &[&str]) -> bool {
        self.entries.iter().any(|entry| keys.contains(&entry.key.as_str()))
    }
}

/// What an expression at some place of the file can refer to.
struct Visible<'v> {
    /// The ids of the steps that are over by then.
    steps: Vec<&'v str>,
    /// The variables that they save.
    variables: Vec<&'v str>,
    /// The id and the variable of every step of the file.
    all: &'v [(Option<String>, Option<String>)],
    /// The names of the parameters, where the schema lets there be no others.
    params: Option<&'v [String]>,
}

impl Reader<'_> {
    fn workflow(&mut self, name: &str, root: &Node) -> Option<Workflow> {
        let fields = self.fields(root, "a workflow", &WORKFLOW_KEYS, &WORKFLOW_KEYS_LATER)?;
        let workflow_ref = self.required(&fields, "workflow", "the workflow has no name: add `workflow: app/name`");
        let workflow_ref = workflow_ref.and_then(|node| self.qualified_name(node, "a workflow's name"));
        let title = self.text_of(&fields, "title");
        let params_schema =
            fields.get("params").map_or_else(|| Some(json!({ "type": "object" })), |node| self.params(node));
        let budget = fields.get("budget").map(|node| self.budget(node)).unwrap_or_default();
        let closed = params_schema.as_ref().and_then(closed_params);

        let nodes = self.required(&fields, "steps", "the workflow has no steps: add `steps:` with at least one");
        let nodes = nodes.and_then(|node| self.list(node, "`steps`")).unwrap_or_default();
        let names: Vec<(Option<String>, Option<String>)> = nodes.iter().map(names_of).collect();
        let mut steps = Vec::new();
        let mut actions = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            let visible = Visible::at(index, &names, closed.as_deref());
            if let Some((step, action)) = self.step(node, index, &visible) {
                steps.push(step);
                actions.push(action);
            }
        }
        let visible = Visible::at(nodes.len(), &names, closed.as_deref());
        let outputs = fields.get("outputs").map(|node| self.outputs(node, &visible)).unwrap_or_default();

        Some(Workflow {
            workflow_ref: workflow_ref?,
            title,
            params_schema: params_schema?,
            budget,
            // A step that could not be read has been noted, and what is left would be another workflow.
            steps: (steps.len() == nodes.len() && !steps.is_empty()).then_some(steps)?,
            outputs,
            source: Source { name: name.to_owned(), text: self.text.to_owned(), actions },
        })
    }

    fn step(&mut self, node: &Node, index: usize, visible: &Visible) -> Option<(Step, Range<usize>)> {
        let fields = self.fields(node, "a step", &STEP_KEYS, &STEP_KEYS_LATER)?;
        let id = self.required(&fields, "id", "this step has no `id`");
        let id = id.and_then(|node| self.id(node, index, visible.all));
        let action = if fields.has_any(&INSTEAD_OF_ACTION) && fields.get("action").is_none() {
            None
        } else {
            self.required(&fields, "action", "this step has no `action`: add `action: app/action`")
        };
        let span = action.map(|node| node.span.clone()).unwrap_or_default();
        let action = action.and_then(|node| self.qualified_name(node, "an action's name"));
        let with = match fields.get("with") {
            Some(node) => self.with(node, visible),
            None => Some(Value::Object(Map::new())),
        };
        let save_as = fields.get("saveAs").map(|node| self.variable(node, index, visible.all));
        let condition = fields.get("if").map(|node| self.condition(node, visible));
        let retry = fields.get("retry").map_or_else(|| Some(Retry::default()), |node| self.retry(node));
        let timeout = fields.get("timeout").map(|node| self.timeout(node));
        let title = self.text_of(&fields, "title");
        let instructions = self.text_of(&fields, "instructions");
        let step = Step {
            id: id?,
            title,
            instructions,
            action: action?,
            with: with?,
            save_as: optional(save_as)?,
            condition: optional(condition)?,
            retry: retry?,
            timeout: optional(timeout)?,
        };
        Some((step, span))
    }

    fn id(&mut self, node: &Node, index: usize, all: &[(Option<String>, Option<String>)]) -> Option<String> {
        let id = self.text_node(node, "`id`")?;
        let is_id = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
        if !is_word(id, is_id) {
            let problem = Problem::at(node.span.clone(), format!("`{}` cannot be an id", short(id)));
            self.problems.push(problem.help(
                "an id is made of lower-case letters, digits, `_` and `-`, begins with a letter, and has at most 63 of them",
            ));
            return None;
        }
        if all.iter().take(index).any(|(other, _)| other.as_deref() == Some(id)) {
            let problem = Problem::at(node.span.clone(), format!("an earlier step has the id `{id}` already"));
            self.problems.push(problem.help("give this step another id"));
            return None;
        }
        Some(id.to_owned())
    }

    fn variable(&mut self, node: &Node, index: usize, all: &[(Option<String>, Option<String>)]) -> Option<String> {
        let name = self.text_node(node, "`saveAs`")?;
        if !is_variable(name) {
            let problem = Problem::at(node.span.clone(), format!("`{}` cannot be a variable", short(name)));
            self.problems.push(
                problem.help("a variable is made of letters, digits and `_`, does not begin with a digit, and has at most 63 of them"),
            );
            return None;
        }
        if expression::ROOTS.contains(&name) || expression::BUILT_IN.contains(&name) || RESERVED.contains(&name) {
            let problem = Problem::at(node.span.clone(), format!("`{name}` means something else in an expression"));
            self.problems.push(problem.help("choose another name"));
            return None;
        }
        if all.iter().take(index).any(|(_, other)| other.as_deref() == Some(name)) {
            let problem = Problem::at(node.span.clone(), format!("an earlier step saves `{name}` already"));
            self.problems.push(problem.help("choose another name: a variable is written once"));
            return None;
        }
        Some(name.to_owned())
    }

    fn params(&mut self, node: &Node) -> Option<Value> {
        let schema = node.to_value();
        match schema::check_schema(&schema) {
            Ok(()) => Some(schema),
            Err(message) => {
                let problem = Problem::at(node.span.clone(), format!("`params` is not a JSON Schema: {message}"));
                self.problems.push(problem);
                None
            }
        }
    }

    /// B1: an amount is read from the text as it was written, so that 0.1 is a tenth.
    fn budget(&mut self, node: &Node) -> BTreeMap<String, Amount> {
        let mut caps = BTreeMap::new();
        let Some(entries) = self.mapping(node, "`budget`") else { return caps };
        if entries.len() > budget::DIMENSIONS_MAX {
            let message = format!("a budget has at most {} dimensions", budget::DIMENSIONS_MAX);
            self.problems.push(Problem::at(node.span.clone(), message));
        }
        for entry in entries {
            let dimension = &entry.key;
            if !budget::is_dimension(dimension) {
                let message = format!("`{}` cannot be a dimension of a budget", short(dimension));
                self.problems.push(
                    Problem::at(entry.key_span.clone(), message)
                        .help("a dimension is made of letters, digits, `_`, `.` and `-`, and has 1 to 64 of them"),
                );
                continue;
            }
            let literal = match &entry.value.data {
                Data::Number(_, literal) => literal,
                Data::String(text) => text,
                _ => {
                    self.wrong_kind(&entry.value, &format!("the cap of `{dimension}`"), "a number");
                    continue;
                }
            };
            match Amount::parse_cap(literal) {
                Ok(cap) => {
                    caps.insert(dimension.clone(), cap);
                }
                Err(error) => {
                    let message = format!("the cap of `{dimension}`: {error}");
                    self.problems.push(Problem::at(entry.value.span.clone(), message));
                }
            }
        }
        caps
    }

    fn retry(&mut self, node: &Node) -> Option<Retry> {
        let fields = self.fields(node, "`retry`", &RETRY_KEYS, &[])?;
        let attempts = match fields.get("attempts").map(|node| (&node.data, node)) {
            None => Some(Retry::default().attempts),
            Some((Data::Number(number, _), node)) => {
                let attempts = number.as_u64().and_then(|attempts| u32::try_from(attempts).ok()).filter(|&n| n >= 1);
                if attempts.is_none() {
                    let message = format!("`attempts` counts all attempts: a whole number from 1 to {}", u32::MAX);
                    self.problems.push(Problem::at(node.span.clone(), message));
                }
                attempts
            }
            Some((_, node)) => {
                self.wrong_kind(node, "`attempts`", "a whole number");
                None
            }
        };
        let backoff = fields.get("backoff").map(|node| self.duration(node, "`backoff`"));
        let max_backoff = fields.get("maxBackoff").map(|node| self.duration(node, "`maxBackoff`"));
        let (backoff, max_backoff) = (optional(backoff)?, optional(max_backoff)?);
        let retry = Retry {
            attempts: attempts?,
            // A file that gives only one of the two means it, whatever the other is by default.
            backoff: backoff.unwrap_or(Retry::BACKOFF.min(max_backoff.unwrap_or(Retry::BACKOFF))),
            max_backoff: max_backoff.unwrap_or(Retry::MAX_BACKOFF.max(backoff.unwrap_or_default())),
        };
        if retry.max_backoff < retry.backoff {
            let span = fields.get("maxBackoff").map_or(node.span.clone(), |node| node.span.clone());
            self.problems.push(Problem::at(span, "`maxBackoff` is shorter than `backoff`"));
            return None;
        }
        Some(retry)
    }

    fn timeout(&mut self, node: &Node) -> Option<Duration> {
        let timeout = self.duration(node, "`timeout`")?;
        if timeout.is_zero() {
            let problem = Problem::at(node.span.clone(), "`timeout` is zero: no attempt could succeed");
            self.problems.push(problem.help("leave it out for no limit but the action's own"));
            return None;
        }
        Some(timeout)
    }

    fn duration(&mut self, node: &Node, what: &str) -> Option<Duration> {
        let text = match &node.data {
            Data::String(text) => text,
            Data::Number(_, literal) => literal,
            _ => {
                self.wrong_kind(node, what, "a time such as 30s");
                return None;
            }
        };
        let duration = match parse_duration(text) {
            Ok(duration) => duration,
            Err(error) => {
                self.problems.push(Problem::at(node.span.clone(), format!("{what}: {error}")));
                return None;
            }
        };
        if duration.subsec_nanos() % 1_000_000 != 0 {
            let message = format!("{what}: {text:?} is finer than a millisecond");
            self.problems.push(Problem::at(node.span.clone(), message).help("write whole milliseconds, such as 5ms"));
            return None;
        }
        Some(duration)
    }

    fn with(&mut self, node: &Node, visible: &Visible) -> Option<Value> {
        self.mapping(node, "`with`")?;
        self.template(node, visible);
        Some(node.to_value())
    }

    fn outputs(&mut self, node: &Node, visible: &Visible) -> BTreeMap<String, Value> {
        let Some(entries) = self.mapping(node, "`outputs`") else { return BTreeMap::new() };
        self.template(node, visible);
        entries.iter().map(|entry| (entry.key.clone(), entry.value.to_value())).collect()
    }

    /// Check every expression of a template.
    fn template(&mut self, node: &Node, visible: &Visible) {
        match &node.data {
            Data::String(text) => match expression::check_template(text) {
                Ok(references) => self.references(node, text, &references, visible),
                Err(problems) => self.syntax(node, text, &problems),
            },
            Data::List(items) => items.iter().for_each(|item| self.template(item, visible)),
            Data::Mapping(entries) => {
                for entry in entries {
                    if entry.key.contains("{{") || entry.key.contains("{%") {
                        let problem = Problem::at(entry.key_span.clone(), "a key cannot hold an expression");
                        self.problems.push(problem.help("keys are taken as they are written; expressions are values"));
                    }
                    self.template(&entry.value, visible);
                }
            }
            _ => {}
        }
    }

    fn condition(&mut self, node: &Node, visible: &Visible) -> Option<String> {
        let text = match &node.data {
            Data::String(text) => text,
            Data::Bool(holds) => return Some(holds.to_string()),
            _ => {
                self.wrong_kind(node, "`if`", "an expression, or true or false");
                return None;
            }
        };
        match expression::check_condition(text) {
            Ok((expression, references)) => {
                self.references(node, text, &references, visible);
                Some(expression)
            }
            Err(problems) => {
                self.syntax(node, text, &problems);
                None
            }
        }
    }

    fn syntax(&mut self, node: &Node, text: &str, problems: &[SyntaxProblem]) {
        for problem in problems {
            let span = self.place(node, text, problem.range.as_ref());
            self.problems.push(Problem::at(span, format!("this expression cannot be read: {}", problem.message)));
        }
    }

    fn references(&mut self, node: &Node, text: &str, references: &[Reference], visible: &Visible) {
        for reference in references {
            if let Err((message, help)) = visible.check(reference) {
                let span = self.place(node, text, reference.range.as_ref());
                let problem = Problem::at(span, message);
                self.problems.push(match help {
                    Some(help) => problem.help(help),
                    None => problem,
                });
            }
        }
    }

    /// Where `range` of the string `text`, which `node` holds, stands in the file: exactly where the string is written
    /// as it is, by line in a block, and the whole of it where escapes keep one from knowing.
    fn place(&self, node: &Node, text: &str, range: Option<&Range<usize>>) -> Range<usize> {
        let (Some(range), Some(written)) = (range, self.text.get(node.span.clone())) else { return node.span.clone() };
        let start = node.span.start;
        for quote in [0, 1] {
            if written.get(quote..).is_some_and(|inner| inner.starts_with(text)) {
                return start + quote + range.start..start + quote + range.end;
            }
        }
        let line_start = text.get(..range.start).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1);
        let line = text.get(line_start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
        match written.find(line) {
            Some(at) if !line.is_empty() => {
                let from = start + at + (range.start - line_start);
                from..(from + range.len()).min(start + at + line.len()).max(from)
            }
            _ => node.span.clone(),
        }
    }

    fn fields<'n>(&mut self, node: &'n Node, what: &str, known: &[&str], later: &[&str]) -> Option<Fields<'n>> {
        let entries = self.mapping(node, what)?;
        for entry in entries {
            let key = entry.key.as_str();
            if known.contains(&key) {
                continue;
            }
            if later.contains(&key) {
                let message = format!("this version of Tollgate does not know `{key}` yet");
                let problem = Problem::at(entry.key_span.clone(), message);
                self.problems.push(problem.help("leave it out, or use a version of Tollgate that knows it"));
                continue;
            }
            let help = match nearest(key, known).or_else(|| nearest(key, later)) {
                Some(known) => format!("did you mean `{known}`?"),
                None => format!("{what} has the keys {}", known.join(", ")),
            };
            self.problems.push(Problem::at(entry.key_span.clone(), format!("unknown key `{}`", short(key))).help(help));
        }
        Some(Fields { entries, span: node.span.clone() })
    }

    fn required<'n>(&mut self, fields: &Fields<'n>, key: &str, message: &str) -> Option<&'n Node> {
        let node = fields.get(key);
        if node.is_none() {
            // The first byte: a mapping of a hundred lines is no place.
            let start = fields.span.start;
            self.problems.push(Problem::at(start..start, message));
        }
        node
    }

    fn text_of(&mut self, fields: &Fields<'_>, key: &str) -> Option<String> {
        let node = fields.get(key)?;
        self.text_node(node, &format!("`{key}`")).map(str::to_owned)
    }

    fn text_node<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n str> {
        match &node.data {
            Data::String(text) => Some(text),
            _ => {
                self.wrong_kind(node, what, "text");
                None
            }
        }
    }

    fn qualified_name(&mut self, node: &Node, what: &str) -> Option<String> {
        let name = self.text_node(node, what)?;
        if is_qualified_name(name) {
            return Some(name.to_owned());
        }
        let problem = Problem::at(node.span.clone(), format!("`{}` cannot be {what}", short(name)));
        self.problems.push(problem.help(
            "write app/name, each of lower-case letters, digits and `-`, beginning with a letter, at most 63 of them",
        ));
        None
    }

    fn list<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n [Node]> {
        let Data::List(items) = &node.data else {
            self.wrong_kind(node, what, "a list");
            return None;
        };
        if items.is_empty() {
            self.problems.push(Problem::at(node.span.clone(), format!("{what} is empty: there must be at least one")));
            return None;
        }
        if items.len() > STEPS_MAX {
            let message = format!("{what} has {} entries and may have {STEPS_MAX}", items.len());
            self.problems.push(Problem::at(node.span.clone(), message));
            return None;
        }
        Some(items)
    }

    fn mapping<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n [Entry]> {
        match &node.data {
            Data::Mapping(entries) => Some(entries),
            _ => {
                self.wrong_kind(node, what, "a mapping");
                None
            }
        }
    }

    fn wrong_kind(&mut self, node: &Node, what: &str, wanted: &str) {
        self.problems.push(Problem::at(node.span.clone(), format!("{what} must be {wanted}, not {}", node.kind())));
    }
}

impl<'v> Visible<'v> {
    /// What can be referred to once the first `index` steps are over.
    fn at(index: usize, all: &'v [(Option<String>, Option<String>)], params: Option<&'v [String]>) -> Visible<'v> {
        let before = &all[..index.min(all.len())];
        Visible {
            steps: before.iter().filter_map(|(id, _)| id.as_deref()).collect(),
            variables: before.iter().filter_map(|(_, variable)| variable.as_deref()).collect(),
            all,
            params,
        }
    }

    /// Else the message and the help.
    fn check(&self, reference: &Reference) -> Result<(), (String, Option<String>)> {
        let root = reference.root.as_str();
        match (root, reference.members.first().map(String::as_str), reference.members.get(1).map(String::as_str)) {
            ("steps", Some(id), member) => self.check_step(id, member),
            ("steps", None, _) => Ok(()),
            ("params", Some(name), _) => match self.params {
                Some(names) if !names.iter().any(|known| known == name) => {
                    let known: Vec<&str> = names.iter().map(String::as_str).collect();
                    Err((format!("the workflow has no parameter `{name}`"), did_you_mean(name, &known, "params.")))
                }
                _ => Ok(()),
            },
            ("params", None, _) => Ok(()),
            _ if self.variables.contains(&root) => Ok(()),
            _ => Err((format!("nothing is called `{root}` here: no earlier step saves it"), self.help_for(root))),
        }
    }

    fn check_step(&self, id: &str, member: Option<&str>) -> Result<(), (String, Option<String>)> {
        if self.steps.contains(&id) {
            return match member {
                None | Some("output") => Ok(()),
                Some(other) => Err((
                    format!("a step has an output and nothing called `{other}`"),
                    Some(format!("write `steps.{id}.output`, and `steps.{id}.output.{other}` for a part of it")),
                )),
            };
        }
        if self.all.iter().any(|(other, _)| other.as_deref() == Some(id)) {
            return Err((
                format!("the step `{id}` is not over by then"),
                Some("an expression sees the steps before its own".to_owned()),
            ));
        }
        // `steps.send-mail` is a subtraction to an expression.
        let dashed = self.steps.iter().find(|step| step.strip_prefix(id).is_some_and(|rest| rest.starts_with('-')));
        let help = match dashed {
            Some(step) => Some(format!("a `-` subtracts: write `steps[\"{step}\"].output`")),
            None => did_you_mean(id, &self.steps, "steps."),
        };
        Err((format!("no earlier step has the id `{id}`"), help))
    }

    fn help_for(&self, root: &str) -> Option<String> {
        if self.steps.contains(&root) {
            return Some(format!("the output of the step `{root}` is `steps.{root}.output`"));
        }
        let saved_later = self.all.iter().find(|(_, variable)| variable.as_deref() == Some(root));
        if let Some((Some(id), _)) = saved_later {
            return Some(format!("the step `{id}` saves it, and is not over by then"));
        }
        if self.params.is_some_and(|names| names.iter().any(|name| name == root)) {
            return Some(format!("the parameter is `params.{root}`"));
        }
        let mut known = self.variables.clone();
        known.extend(expression::ROOTS);
        did_you_mean(root, &known, "").or_else(|| {
            (!self.variables.is_empty()).then(|| format!("earlier steps save {}", self.variables.join(", ")))
        })
    }
}

fn did_you_mean(word: &str, known: &[&str], prefix: &str) -> Option<String> {
    nearest(word, known).map(|known| format!("did you mean `{prefix}{known}`?"))
}

/// `None` where a part was given and could not be read; `Some(None)` where it was not given.
fn optional<T>(part: Option<Option<T>>) -> Option<Option<T>> {
    match part {
        None => Some(None),
        Some(None) => None,
        Some(Some(part)) => Some(Some(part)),
    }
}

/// The id and the variable that a step states, so that other steps can be checked even where this one is wrong.
fn names_of(node: &Node) -> (Option<String>, Option<String>) {
    let Data::Mapping(entries) = &node.data else { return (None, None) };
    let text = |key: &str| {
        entries.iter().find(|entry| entry.key == key).and_then(|entry| match &entry.value.data {
            Data::String(text) => Some(text.clone()),
            _ => None,
        })
    };
    (text("id"), text("saveAs"))
}

/// The names of the parameters, where the schema says that there are no others.
fn closed_params(schema: &Value) -> Option<Vec<String>> {
    let closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    let alone = schema.get("patternProperties").is_none();
    let names = schema.get("properties").and_then(Value::as_object)?;
    (closed && alone).then(|| names.keys().cloned().collect())
}

fn is_word(word: &str, allowed: impl Fn(u8) -> bool) -> bool {
    word.len() <= NAME_BYTES_MAX
        && word.starts_with(|first: char| first.is_ascii_lowercase())
        && word.bytes().all(allowed)
}

fn is_variable(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A name as a message can quote it.
fn short(name: &str) -> String {
    if name.chars().count() <= 80 { name.to_owned() } else { name.chars().take(80).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::WORKFLOW_SCHEMA;
    use super::*;

    const DUNNING: &str = r#"
workflow: billing/dunning
title: Remind customers of overdue invoices
params: { type: object, required: [invoices], properties: { invoices: { type: string } } }   # JSON Schema
budget: { emails: 100, usd: 0.1 }
steps:
  - id: triage
    action: billing/triage
    with: { csv: "{{ params.invoices }}" }
    saveAs: overdue
  - id: remind
    if: "{{ overdue | length > 50 }}"
    action: mail/send
    with: { to: "{{ overdue[0].email }}", subject: "Invoice {{ overdue[0].number }}" }
    retry: { attempts: 5, backoff: 2s, maxBackoff: 5m }
    timeout: 30s                       # of one attempt
outputs: { reminded: "{{ steps.remind.output | length }}" }
"#;

    #[track_caller]
    fn parsed(name: &str, text: &str) -> Workflow {
        Workflow::parse(name, text).unwrap_or_else(|report| panic!("{report}"))
    }

    /// `expected`: the lines of the report, each with the help that follows it after ` | `.
    #[track_caller]
    fn check_refused(text: &str, expected: &[&str]) {
        let report =
            Workflow::parse("w.yaml", text).map(|workflow| format!("{workflow:?}")).expect_err(text).to_string();
        let lines = report.replace("\n  ", " | ");
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines, expected, "\n{report}");
    }

    /// As `check_refused`, of one step whose fields are given as a flow mapping's content, at line 2 from column 10.
    #[track_caller]
    fn check_step_refused(fields: &str, expected: &[&str]) {
        check_refused(&format!("workflow: a/b\nsteps: [{{{fields}}}]"), expected);
    }

    #[test]
    fn a_whole_workflow_is_read() {
        let workflow = parsed("dunning.yaml", DUNNING);
        assert_eq!(workflow.workflow_ref, "billing/dunning");
        assert_eq!(workflow.title.as_deref(), Some("Remind customers of overdue invoices"));
        assert_eq!(workflow.params_schema["required"], json!(["invoices"]));
        let caps: Vec<(String, String)> =
            workflow.budget.iter().map(|(dimension, cap)| (dimension.clone(), cap.to_string())).collect();
        assert_eq!(caps, [("emails".to_owned(), "100".to_owned()), ("usd".to_owned(), "0.1".to_owned())]);
        assert_eq!(
            workflow.outputs,
            BTreeMap::from([("reminded".into(), json!("{{ steps.remind.output | length }}"))])
        );
        let [triage, remind] = workflow.steps.as_slice() else { panic!("two steps") };
        assert_eq!(triage.save_as.as_deref(), Some("overdue"));
        assert_eq!((triage.retry, triage.timeout, triage.condition.as_deref()), (Retry::default(), None, None));
        assert_eq!(remind.condition.as_deref(), Some("overdue | length > 50"));
        assert_eq!(remind.timeout, Some(Duration::from_secs(30)));
        assert_eq!(
            remind.retry,
            Retry { attempts: 5, backoff: Duration::from_secs(2), max_backoff: Duration::from_secs(300) }
        );
        assert_eq!(remind.with["subject"], json!("Invoice {{ overdue[0].number }}"));
    }

    #[test]
    fn json_is_read_as_yaml_is() {
        let yaml =
            parsed("a.yaml", "workflow: a/b\nsteps:\n- id: s\n  action: c/d\n  with: {n: 3544790567247868102, t: é}\n");
        let json = r#"{"workflow": "a/b", "steps": [{"id": "s", "action": "c/d", "with": {"n": 3544790567247868102, "t": "\u00e9"}}]}"#;
        for name in ["a.json", "stdin"] {
            assert_eq!(parsed(name, json).steps, yaml.steps);
        }
        let report = Workflow::parse("a.json", "{\"workflow\": \"a/b\",\n \"steps\": [{\"id\": 1}]}").unwrap_err();
        assert_eq!(
            report.to_string(),
            "a.json:2:12: this step has no `action`: add `action: app/action`\na.json:2:19: `id` must be text, not a number"
        );
    }

    #[test]
    fn a_file_that_says_little_gets_the_documented_defaults() {
        let workflow = parsed("a.yaml", "workflow: a/b\nsteps: [{id: s, action: c/d}]");
        assert_eq!(workflow.params_schema, json!({ "type": "object" }));
        assert!(workflow.budget.is_empty() && workflow.outputs.is_empty() && workflow.title.is_none());
        assert_eq!(workflow.steps[0].with, json!({}));
        assert_eq!(workflow.steps[0].retry.attempts, 1);
    }

    #[test]
    fn every_problem_is_reported_at_once_with_its_line() {
        check_refused(
            r#"workflow: Billing
titel: x
budget: { emails: -1 }
steps:
  - id: One
    action: nope
  - id: two
    timeout: 30
"#,
            &[
                "w.yaml:1:11: `Billing` cannot be a workflow's name | write app/name, each of lower-case letters, digits and `-`, beginning with a letter, at most 63 of them",
                "w.yaml:2:1: unknown key `titel` | did you mean `title`?",
                "w.yaml:3:19: the cap of `emails`: \"-1\" is negative: an amount is 0 or more",
                "w.yaml:5:9: `One` cannot be an id | an id is made of lower-case letters, digits, `_` and `-`, begins with a letter, and has at most 63 of them",
                "w.yaml:6:13: `nope` cannot be an action's name | write app/name, each of lower-case letters, digits and `-`, beginning with a letter, at most 63 of them",
                "w.yaml:7:5: this step has no `action`: add `action: app/action`",
                "w.yaml:8:14: `timeout`: \"30\" has no unit: write it as 30s, 30m or 500ms",
            ],
        );
    }

    #[test]
    fn what_later_versions_know_is_refused_as_such() {
        check_refused(
            r#"workflow: a/b
onFailure: { action: a/c }
schedule: x
steps:
  - id: s
    action: a/c
    forEach: { in: x }
    gate: {}
  - id: t
    manual: {}
  - id: u
    wait: {}
  - { id: v, workflow: a/d }
  - { id: x, agent: {} }
"#,
            &[
                "w.yaml:2:1: this version of Tollgate does not know `onFailure` yet | leave it out, or use a version of Tollgate that knows it",
                "w.yaml:3:1: this version of Tollgate does not know `schedule` yet | leave it out, or use a version of Tollgate that knows it",
                "w.yaml:7:5: this version of Tollgate does not know `forEach` yet | leave it out, or use a version of Tollgate that knows it",
                "w.yaml:8:5: this version of Tollgate does not know `gate` yet | leave it out, or use a version of Tollgate that knows it",
                "w.yaml:10:5: this version of Tollgate does not know `manual` yet | leave it out, or use a version of Tollgate that knows it",
                "w.yaml:12:5: this version of Tollgate does not know `wait` yet | leave it out, or use a version of Tollgate that knows it",
                "w.yaml:13:14: this version of Tollgate does not know `workflow` yet | leave it out, or use a version of Tollgate that knows it",
                "w.yaml:14:14: this version of Tollgate does not know `agent` yet | leave it out, or use a version of Tollgate that knows it",
            ],
        );
    }

    #[test]
    fn unknown_keys_are_errors_with_the_nearest_known_one() {
        check_step_refused(
            "id: s, action: a/c, saveas: x",
            &["w.yaml:2:30: unknown key `saveas` | did you mean `saveAs`?"],
        );
        check_step_refused(
            "id: s, action: a/c, foreach: x",
            &["w.yaml:2:30: unknown key `foreach` | did you mean `forEach`?"],
        );
        check_step_refused(
            "id: s, action: a/c, retry: { atempts: 1, x: 2 }",
            &[
                "w.yaml:2:39: unknown key `atempts` | did you mean `attempts`?",
                "w.yaml:2:51: unknown key `x` | `retry` has the keys attempts, backoff, maxBackoff",
            ],
        );
    }

    #[test]
    fn references_are_checked_against_the_steps_that_are_over_by_then() {
        check_refused(
            r#"workflow: a/b
steps:
  - id: one
    action: a/c
    if: later
    with: { x: "{{ steps.two.output }}", y: "{{ steps.one.output }}" }
    saveAs: first
  - id: send-two
    action: a/c
    with:
      - "{{ fist }}"
    saveAs: later
  - id: three
    action: a/c
    with: { a: "{{ fist }}", b: "x {{ first + steps.send.output }}", c: "{{ steps['nope'].output }}", d: "{{ steps.one.outptu }}", e: "{{ one }}" }
outputs: { x: "{{ steps.tree.output }}", ok: "{{ later }}{{ steps['send-two'].output }}" }
"#,
            &[
                "w.yaml:5:9: nothing is called `later` here: no earlier step saves it | the step `send-two` saves it, and is not over by then",
                "w.yaml:6:20: no earlier step has the id `two`",
                "w.yaml:6:49: the step `one` is not over by then | an expression sees the steps before its own",
                "w.yaml:11:7: `with` must be a mapping, not a list",
                "w.yaml:15:20: nothing is called `fist` here: no earlier step saves it | did you mean `first`?",
                "w.yaml:15:47: no earlier step has the id `send` | a `-` subtracts: write `steps[\"send-two\"].output`",
                "w.yaml:15:77: no earlier step has the id `nope`",
                "w.yaml:15:110: a step has an output and nothing called `outptu` | write `steps.one.output`, and `steps.one.output.outptu` for a part of it",
                "w.yaml:15:139: nothing is called `one` here: no earlier step saves it | the output of the step `one` is `steps.one.output`",
                "w.yaml:16:19: no earlier step has the id `tree` | did you mean `steps.three`?",
            ],
        );
    }

    #[test]
    fn parameters_are_checked_where_the_schema_lets_there_be_no_others() {
        let text = |params: &str| {
            format!(
                "workflow: a/b\nparams: {params}\nsteps: [{{id: s, action: a/c, with: {{x: \"{{{{ params.bach }}}}\"}}}}]"
            )
        };
        check_refused(
            &text("{properties: {batch: {}}, additionalProperties: false}"),
            &["w.yaml:3:44: the workflow has no parameter `bach` | did you mean `params.batch`?"],
        );
        assert!(Workflow::parse("w.yaml", &text("{properties: {batch: {}}}")).is_ok());
        check_refused(
            "workflow: a/b\nparams: {type: strin}\nsteps: [{id: s, action: a/c}]",
            &[
                "w.yaml:2:9: `params` is not a JSON Schema: type: \"strin\" is not valid under any of the schemas listed in the 'anyOf' keyword",
            ],
        );
    }

    #[test]
    fn expressions_are_compiled_and_errors_point_into_the_text() {
        check_refused(
            r#"workflow: a/b
steps:
  - id: s
    action: a/c
    if: 'params.a b'
    with:
      plain: é {{ params.a | lenght }}
      block: |
        first
        then {{ params. }}
      "{{ key }}": 1
      list: ["{{ 1 + }}"]
      escaped: "{{ \"a\" b }}"
"#,
            &[
                "w.yaml:5:19: this expression cannot be read: unexpected input after expression",
                "w.yaml:7:30: this expression cannot be read: there is no filter `lenght`",
                "w.yaml:10:25: this expression cannot be read: unexpected end of variable block, expected identifier or integer",
                "w.yaml:11:7: a key cannot hold an expression | keys are taken as they are written; expressions are values",
                "w.yaml:12:22: this expression cannot be read: unexpected end of variable block",
                "w.yaml:13:16: this expression cannot be read: unexpected identifier, expected end of variable block",
            ],
        );
        check_refused(
            "workflow: a/b\nsteps:\n  - id: s\n    action: a/c\n    with: { to: {{ params.a }} }\n",
            &["w.yaml:5:18: a list or mapping cannot be a key | an expression is text and needs quotes: \"{{ … }}\""],
        );
    }

    #[test]
    fn names_ids_and_variables_are_checked() {
        check_refused(
            r#"workflow: a/b
steps:
  - { id: s, action: a/c, saveAs: x }
  - { id: s, action: a/c, saveAs: x }
  - { id: t, action: a/c, saveAs: params }
  - { id: u, action: a/c, saveAs: not }
  - { id: v, action: a/c, saveAs: a-b }
  - { id: 7, action: a/c }
"#,
            &[
                "w.yaml:4:11: an earlier step has the id `s` already | give this step another id",
                "w.yaml:4:35: an earlier step saves `x` already | choose another name: a variable is written once",
                "w.yaml:5:35: `params` means something else in an expression | choose another name",
                "w.yaml:6:35: `not` means something else in an expression | choose another name",
                "w.yaml:7:35: `a-b` cannot be a variable | a variable is made of letters, digits and `_`, does not begin with a digit, and has at most 63 of them",
                "w.yaml:8:11: `id` must be text, not a number",
            ],
        );
        for (name, expected) in [
            ("a/b", true),
            ("billing-2/dun-ning", true),
            ("a", false),
            ("a/", false),
            ("/b", false),
            ("a/b/c", false),
            ("A/b", false),
            ("a/-b", false),
            ("a/1", false),
            ("a_b/c", false),
            ("é/b", false),
        ] {
            assert_eq!(is_qualified_name(name), expected, "{name}");
        }
        assert!(!is_qualified_name(&format!("a/{}", "b".repeat(64))));
    }

    #[test]
    fn b1_budgets_take_the_number_as_it_was_written() {
        let cap = |text: &str| {
            let text = format!("workflow: a/b\nbudget: {{ d: {text} }}\nsteps: [{{id: s, action: a/c}}]");
            Workflow::parse("w.yaml", &text).map(|workflow| workflow.budget["d"].to_string())
        };
        for (text, expected) in [
            ("100", "100"),
            ("0", "0"),
            ("0.1", "0.1"),
            ("0.30", "0.3"),
            ("\"0.1\"", "0.1"),
            ("9007199254740.993", "9007199254740.993"),
            // A cap rounds down.
            ("0.12345678", "0.123456"),
        ] {
            assert_eq!(cap(text).unwrap(), expected, "{text}");
        }
        for text in ["-1", "1e2", ".nan", ".inf", "1e999", "9223372036855", "x", "true", "[]", "~", "\"\"", "0x10"] {
            assert!(cap(text).is_err(), "{text}");
        }
        check_refused(
            "workflow: a/b\nbudget: { \"\": 1, \"a b\": 1 }\nsteps: [{id: s, action: a/c}]",
            &[
                "w.yaml:2:11: `` cannot be a dimension of a budget | a dimension is made of letters, digits, `_`, `.` and `-`, and has 1 to 64 of them",
                "w.yaml:2:18: `a b` cannot be a dimension of a budget | a dimension is made of letters, digits, `_`, `.` and `-`, and has 1 to 64 of them",
            ],
        );
    }

    #[test]
    fn retries_and_timeouts_are_exact_and_bounded() {
        let retry = |text: &str| {
            let text = format!("workflow: a/b\nsteps: [{{id: s, action: a/c, retry: {text}}}]");
            Workflow::parse("w.yaml", &text).map(|workflow| {
                let retry = workflow.steps[0].retry;
                (retry.attempts, retry.backoff.as_millis(), retry.max_backoff.as_millis())
            })
        };
        for (text, expected) in [
            ("{}", (1, 1000, 300_000)),
            ("{attempts: 3}", (3, 1000, 300_000)),
            ("{backoff: 1h2m3s}", (1, 3_723_000, 3_723_000)),
            ("{maxBackoff: 5ms}", (1, 5, 5)),
            ("{backoff: 0s}", (1, 0, 300_000)),
            ("{attempts: 4294967295, backoff: 1d, maxBackoff: 36500d}", (u32::MAX, 86_400_000, 3_153_600_000_000)),
        ] {
            assert_eq!(retry(text).unwrap(), expected, "{text}");
        }
        for text in [
            "{attempts: 0}",
            "{attempts: -1}",
            "{attempts: 1.5}",
            "{attempts: 4294967296}",
            "{attempts: \"3\"}",
            "{attempts: ~}",
            "{backoff: 2}",
            "{backoff: 2x}",
            "{backoff: -2s}",
            "{backoff: 1M}",
            "{backoff: 999999999999d}",
            "{backoff: 1us}",
            "{backoff: 2s, maxBackoff: 1s}",
            "{backoff: []}",
            "3",
            "~",
        ] {
            assert!(retry(text).is_err(), "{text}");
        }
        check_step_refused(
            "id: s, action: a/c, timeout: 0s",
            &[
                "w.yaml:2:39: `timeout` is zero: no attempt could succeed | leave it out for no limit but the action's own",
            ],
        );
        check_step_refused(
            "id: s, action: a/c, timeout: 1500us",
            &["w.yaml:2:39: `timeout`: \"1500us\" is finer than a millisecond | write whole milliseconds, such as 5ms"],
        );
    }

    #[test]
    fn files_of_another_kind_are_refused() {
        check_refused("", &["w.yaml: the file is empty | begin with `workflow: app/name`"]);
        check_refused("hello", &["w.yaml:1:1: a workflow must be a mapping, not text"]);
        check_refused("workflow: a/b\nsteps: []", &["w.yaml:2:8: `steps` is empty: there must be at least one"]);
        check_refused("workflow: a/b\nsteps: {}", &["w.yaml:2:8: `steps` must be a list, not a mapping"]);
        check_refused("workflow: a/b\nsteps:\n", &["w.yaml:2:1: `steps` must be a list, not nothing"]);
        check_refused(
            "{}",
            &[
                "w.yaml:1:1: the workflow has no name: add `workflow: app/name`",
                "w.yaml:1:1: the workflow has no steps: add `steps:` with at least one",
            ],
        );
        let many = format!("workflow: a/b\nsteps: [{}]", "{id: s, action: a/c},".repeat(1001));
        check_refused(&many, &["w.yaml:2:8: `steps` has 1001 entries and may have 1000"]);
    }

    /// The published schema sees the shape of a file as the reader does. What only the reader sees is marked.
    #[test]
    fn the_published_schema_and_the_reader_agree() {
        let schema: Value = serde_json::from_str(WORKFLOW_SCHEMA).unwrap();
        schema::check_schema(&schema).unwrap();
        let step = |fields: Value| {
            let mut step = json!({ "id": "s", "action": "a/c" });
            if let (Some(step), Some(fields)) = (step.as_object_mut(), fields.as_object()) {
                step.extend(fields.clone());
            }
            json!({ "workflow": "a/b", "steps": [step] })
        };
        let top = |fields: Value| {
            let mut workflow = json!({ "workflow": "a/b", "steps": [{ "id": "s", "action": "a/c" }] });
            if let (Some(workflow), Some(fields)) = (workflow.as_object_mut(), fields.as_object()) {
                workflow.extend(fields.clone());
            }
            workflow
        };
        let both = [
            (json!({}), false),
            (json!([]), false),
            (json!({ "workflow": "a/b" }), false),
            (json!({ "workflow": "a/b", "steps": [] }), false),
            (json!({ "workflow": "a/b", "steps": [1] }), false),
            (json!({ "workflow": "a/b", "steps": [{ "id": "s" }] }), false),
            (json!({ "workflow": "a/b", "steps": [{ "action": "a/c" }] }), false),
            (top(json!({})), true),
            (top(json!({ "workflow": "A/b" })), false),
            (top(json!({ "workflow": "a" })), false),
            (top(json!({ "title": "x" })), true),
            (top(json!({ "title": 1 })), false),
            (top(json!({ "onFailure": {} })), false),
            (top(json!({ "unknown": {} })), false),
            (top(json!({ "params": { "type": "object" } })), true),
            (top(json!({ "params": true })), true),
            (top(json!({ "params": [] })), false),
            (top(json!({ "budget": { "emails": 100, "usd": "0.1", "x.y-z_1": 0 } })), true),
            (top(json!({ "budget": { "emails": -1 } })), false),
            (top(json!({ "budget": { "emails": "-1" } })), false),
            (top(json!({ "budget": { "emails": "" } })), false),
            (top(json!({ "budget": { "emails": "1e2" } })), false),
            (top(json!({ "budget": { "emails": 1e30 } })), false),
            (top(json!({ "budget": { "emails": null } })), false),
            (top(json!({ "budget": { "": 1 } })), false),
            (top(json!({ "budget": { "a b": 1 } })), false),
            (top(json!({ "budget": [] })), false),
            (top(json!({ "outputs": { "x": ["{{ params }}"] } })), true),
            (top(json!({ "outputs": "x" })), false),
            (step(json!({ "id": "a-b_c1" })), true),
            (step(json!({ "id": "A" })), false),
            (step(json!({ "id": "a".repeat(64) })), false),
            (step(json!({ "id": 1 })), false),
            (step(json!({ "action": "c" })), false),
            (step(json!({ "title": "x", "instructions": "y" })), true),
            (step(json!({ "with": { "a": [null, { "b": 1.5 }] } })), true),
            (step(json!({ "with": [] })), false),
            (step(json!({ "with": "{{ params }}" })), false),
            (step(json!({ "saveAs": "Over_due1" })), true),
            (step(json!({ "saveAs": "a-b" })), false),
            (step(json!({ "saveAs": "" })), false),
            (step(json!({ "if": "params.a" })), true),
            (step(json!({ "if": "{{ params.a }}" })), true),
            (step(json!({ "if": true })), true),
            (step(json!({ "if": "" })), false),
            (step(json!({ "if": 1 })), false),
            (step(json!({ "retry": {} })), true),
            (step(json!({ "retry": { "attempts": 3, "backoff": "2s", "maxBackoff": "1h30m" } })), true),
            (step(json!({ "retry": { "attempts": 0 } })), false),
            (step(json!({ "retry": { "attempts": 1.5 } })), false),
            (step(json!({ "retry": { "attempts": 4294967296u64 } })), false),
            (step(json!({ "retry": { "backoff": 2 } })), false),
            (step(json!({ "retry": { "backoff": "2" } })), false),
            (step(json!({ "retry": { "backoff": "1m1h" } })), false),
            (step(json!({ "retry": { "backoff": "" } })), false),
            (step(json!({ "retry": { "unknown": 1 } })), false),
            (step(json!({ "retry": 3 })), false),
            (step(json!({ "timeout": "1d2h3m4s5ms" })), true),
            (step(json!({ "timeout": "30" })), false),
            (step(json!({ "timeout": null })), false),
            (step(json!({ "forEach": {} })), false),
            (step(json!({ "manual": {} })), false),
            (step(json!({ "wait": {} })), false),
            (step(json!({ "gate": {} })), false),
            (step(json!({ "workflow": "a/c" })), false),
            (step(json!({ "agent": {} })), false),
        ];
        for (file, expected) in both {
            let text = file.to_string();
            assert_eq!(Workflow::parse("w.json", &text).is_ok(), expected, "the reader, of {text}");
            assert_eq!(schema::validate(&schema, &file).is_ok(), expected, "the schema, of {text}");
        }
        for reserved in RESERVED.iter().chain(&expression::ROOTS).chain(&expression::BUILT_IN) {
            let file = step(json!({ "saveAs": reserved }));
            assert!(Workflow::parse("w.json", &file.to_string()).is_err(), "{reserved}");
            assert!(schema::validate(&schema, &file).is_err(), "{reserved}");
        }
        // What no schema can see.
        for file in [
            top(json!({ "params": { "type": "strin" } })),
            top(json!({ "outputs": { "x": "{{ nope }}" } })),
            step(json!({ "if": "a b" })),
            step(json!({ "timeout": "0s" })),
            step(json!({ "retry": { "backoff": "2s", "maxBackoff": "1s" } })),
            json!({ "workflow": "a/b", "steps": [{ "id": "s", "action": "a/c" }, { "id": "s", "action": "a/c" }] }),
        ] {
            assert!(Workflow::parse("w.json", &file.to_string()).is_err(), "{file}");
            assert!(schema::validate(&schema, &file).is_ok(), "{file}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn no_text_panics(at in 0..DUNNING.len(), length in 0..20usize, with in "[-:{}\\[\\]\"'|>&*!%#, \n\\ta0é\0]{0,4}") {
            // A real file with a piece replaced reaches further than noise does.
            let start = (0..=at).rev().find(|at| DUNNING.is_char_boundary(*at)).unwrap_or(0);
            let end = (start + length).min(DUNNING.len());
            let text = format!("{}{with}{}", &DUNNING[..start], &DUNNING[end..]);
            if let Err(report) = Workflow::parse("w.yaml", &text) {
                prop_assert!(report.problems().count() > 0);
                for problem in report.problems() {
                    if let Some(span) = &problem.span {
                        prop_assert!(span.start <= span.end && span.end <= text.len());
                    }
                }
            }
        }
    }
}
