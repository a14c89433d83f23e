//! Expressions: what a `{{ … }}` in a workflow means, and what it evaluates to.
//!
//! A string that is exactly one `{{ expression }}` keeps the type of its value; any other string that holds `{{ }}` or
//! `{% %}` is text with values written in: strings as they are, everything else as JSON. Every other string is itself.
//! What is undefined is an error at its path, never an empty string.
//!
//! Expressions come from strangers and run in the host, so they are held to bounds: a budget of work and memory for one
//! evaluation, and a size and depth for its result. They see the scope that they are given and nothing else: nothing
//! here performs I/O, reads a clock, or can be made to.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::LazyLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value as Dynamic, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, HtmlEscape, Output, State, UndefinedBehavior};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

use crate::json;

/// How many bytes of JSON one evaluation (all of a step's `with`, all of a run's `outputs`) may yield.
pub const EVALUATED_BYTES_MAX: usize = 8 << 20;
/// The work that one evaluation may do, in instructions; one is also worth 64 bytes of memory.
const FUEL: u64 = 1_000_000;
/// How many words and signs one `{{ }}` or `{% %}` may have. The engine builds a tree from them that it walks by
/// recursion, and a chain (`1+1+1+…`) is as deep as it is long: some 3,000 would end the process on a stack of 2 MiB.
const TOKENS_MAX: usize = 1000;
/// How many `{% %}` one string may have; a chain of `elif` is as deep as it is long, too.
const BLOCKS_MAX: usize = 200;
/// How deep loops and blocks may call each other.
const RECURSION_MAX: usize = 32;
/// How many characters the explanation of an error has at most.
const MESSAGE_CHARS_MAX: usize = 600;
/// How many characters of an expression an error shows.
const SHOWN_CHARS_MAX: usize = 200;

/// Names that an expression has without anybody's saving them. No `saveAs` may take one of them.
pub(super) const BUILT_IN: [&str; 2] = ["range", "dict"];
/// The names under which the scope holds what is not a variable.
pub(super) const ROOTS: [&str; 2] = ["params", "steps"];

/// The template name under which a value is caught with its type, and the one under which it is written into text.
const WHOLE: &str = "expression";
const TEXT: &str = "text";

/// What expressions can see: `params`, `steps.<key>.output`, and the variables by name.
///
/// Cheap to clone: the values themselves are shared.
#[derive(Debug, Clone)]
pub struct Scope {
    params: Dynamic,
    variables: BTreeMap<String, Dynamic>,
    steps: BTreeMap<String, Dynamic>,
}

impl Scope {
    /// The scope of a run: its parameters, the variables that steps have saved (by name), and the output of every step
    /// that has completed or was skipped (by step key; null for a skipped one).
    pub fn new(params: &Value, variables: &BTreeMap<String, Value>, outputs: &BTreeMap<String, Value>) -> Scope {
        let mut scope = Scope { params: to_dynamic(params), variables: BTreeMap::new(), steps: BTreeMap::new() };
        scope.variables.extend(variables.iter().map(|(name, value)| (name.clone(), to_dynamic(value))));
        for (key, output) in outputs {
            scope.record(key, None, output);
        }
        scope
    }

    /// The step `key` is over and its output is `output`: it can be seen as `steps.<key>.output`, and under `save_as`
    /// (R13).
    pub fn record(&mut self, key: &str, save_as: Option<&str>, output: &Value) {
        let output = to_dynamic(output);
        if let Some(name) = save_as {
            self.variables.insert(name.to_owned(), output.clone());
        }
        self.steps.insert(key.to_owned(), Dynamic::from_pairs([("output", output)]));
    }

    fn root(&self) -> Dynamic {
        let variables = self.variables.iter().map(|(name, value)| (name.as_str(), value.clone()));
        let steps = Dynamic::from_pairs(self.steps.iter().map(|(key, step)| (key.as_str(), step.clone())));
        // Last, so that no variable can stand in for them.
        let roots = [("params", self.params.clone()), ("steps", steps)];
        Dynamic::from_pairs(variables.chain(roots))
    }
}

/// An expression that has no value. The workflow's author must act; the step fails with `CONFIG_INVALID`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{path}: \"{expression}\" {message}")]
pub struct EvaluationError {
    /// Where it is written: `steps.remind.with.to`.
    pub path: String,
    /// The text at that place as its author wrote it, shortened where it is long.
    pub expression: String,
    /// Why it has no value, as a continuation of the expression: `is undefined`.
    pub message: String,
}

/// `template` with every expression in it replaced by its value (R2). `path` is where the template stands in the
/// workflow; errors extend it. Keys of mappings are not evaluated.
///
/// ```
/// use std::collections::BTreeMap;
/// use serde_json::json;
/// use tollgate::workflow::{Scope, evaluate};
///
/// let variables = BTreeMap::from([("overdue".to_owned(), json!([{ "email": "billing@example.com", "days": 3 }]))]);
/// let scope = Scope::new(&json!({}), &variables, &BTreeMap::new());
///
/// let with = json!({ "days": "{{ overdue[0].days }}", "subject": "{{ overdue[0].days }} days late" });
/// assert_eq!(evaluate(&with, "steps.remind.with", &scope).unwrap(), json!({ "days": 3, "subject": "3 days late" }));
///
/// let with = json!({ "to": "{{ overdue[0].emial }}" });
/// let error = evaluate(&with, "steps.remind.with", &scope).unwrap_err();
/// assert_eq!(error.to_string(), r#"steps.remind.with.to: "{{ overdue[0].emial }}" is undefined"#);
/// ```
///
/// # Errors
/// The first expression, in the order of the keys, that has no value: undefined, of a type that JSON cannot hold, an
/// integer beyond 64 bits, or past the bounds on work, size ([`EVALUATED_BYTES_MAX`]) and depth ([`json::MAX_DEPTH`]).
pub fn evaluate(template: &Value, path: &str, scope: &Scope) -> Result<Value, EvaluationError> {
    Evaluator::new(scope).value(template, &mut path.to_owned())
}

/// Whether the condition `expression` holds, written with or without its `{{ }}`: false, null, zero, and what is empty
/// do not hold, everything else does.
///
/// # Errors
/// As [`evaluate`]: a condition that is undefined neither holds nor does not.
pub fn condition(expression: &str, path: &str, scope: &Scope) -> Result<bool, EvaluationError> {
    let fail = |message: String| error_at(path, expression, message);
    let (inner, _) = bare(expression).map_err(|problem| fail(format!("cannot be used: {}", problem.message)))?;
    // The spaces keep a leading `-` from being read as white space control.
    let (value, _) = Evaluator::new(scope).run(WHOLE, &format!("{{{{ {inner} }}}}")).map_err(fail)?;
    Ok(value.is_true())
}

/// The expression written at `path` of a step's `with`, as its author wrote it: of `{ to: "{{ invoice.email }}" }`,
/// `binding(with, "to")` is `{{ invoice.email }}`.
///
/// A string that holds no expression is itself; a number, a list or any other value is its JSON. `None` where nothing
/// is written at that very place, even if the expression above it has a value there.
pub fn binding(with: &Value, path: &str) -> Option<String> {
    match json::at_path(with, path)? {
        Value::String(text) => Some(text.clone()),
        other => Some(json::canonical(other)),
    }
}

/// What is wrong with an expression as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SyntaxProblem {
    /// What is wrong, in one sentence.
    pub message: String,
    /// Where in the expression's text; `None` for all of it.
    pub range: Option<Range<usize>>,
}

/// A name that an expression uses and does not define itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    /// The name at the root of the scope: `overdue`, `params`, `steps`.
    pub root: String,
    /// The names that follow it after dots, as far as they can be seen: `remind`, `output`.
    pub members: Vec<String>,
    /// Where it is written; `None` where that could not be found out.
    pub range: Option<Range<usize>>,
}

/// Compile a string of a template and say what it refers to. A string without an expression refers to nothing.
pub(super) fn check_template(text: &str) -> Result<Vec<Reference>, Vec<SyntaxProblem>> {
    if !is_template(text) {
        return Ok(Vec::new());
    }
    let tokens = tokens_of_text(text).map_err(|problem| vec![problem])?;
    match ENVIRONMENT.template_from_named_str(TEXT, text) {
        Ok(template) => check_names(template.undeclared_variables(true).into_iter().collect(), &tokens),
        Err(error) => Err(vec![syntax_problem(&error, text.len())]),
    }
}

/// Compile a condition and say what it refers to: the expression without its `{{ }}`, and the references, whose ranges
/// are in the text as it was given.
pub(super) fn check_condition(text: &str) -> Result<(String, Vec<Reference>), Vec<SyntaxProblem>> {
    let (inner, tokens) = bare(text).map_err(|problem| vec![problem])?;
    match ENVIRONMENT.compile_expression(inner) {
        Ok(expression) => {
            let undeclared = expression.undeclared_variables(true).into_iter().collect();
            Ok((inner.to_owned(), check_names(undeclared, &tokens)?))
        }
        Err(error) => Err(vec![syntax_problem(&error, text.len())]),
    }
}

/// The engine, without a limit on fuel: each evaluation sets what is left of its own.
static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(write_value);
    environment.set_recursion_limit(RECURSION_MAX);
    // Errors then know which part of the text they are about.
    environment.set_debug(true);
    // A text keeps its last line break: it may be a message's.
    if let Ok(syntax) = SyntaxConfig::builder().keep_trailing_newline(true).build() {
        environment.set_syntax(syntax);
    }
    // One shows the engine's insides, the other holds what changes while an expression runs.
    environment.remove_global("debug");
    environment.remove_global("namespace");
    // These take something undefined for something empty. Two of them are worth having without that.
    for lenient in ["pprint", "chain", "zip", "indent", "safe"] {
        environment.remove_filter(lenient);
    }
    environment.add_filter("tojson", |state: &State, value: &Dynamic| {
        if value.is_undefined() {
            return Err(minijinja::Error::new(ErrorKind::UndefinedError, "what `tojson` is given is undefined"));
        }
        let text = to_json(value, &mut Room::full()).map(|value| json::canonical(&value)).map_err(from_us)?;
        // Writing JSON is slower than copying bytes, and the engine charges for the text alone.
        state.consume_fuel(text.len() as u64 / 4)?;
        Ok::<String, minijinja::Error>(text)
    });
    for name in ["escape", "e"] {
        environment.add_filter(name, |text: &str| HtmlEscape(text).to_string());
    }
    environment
});

/// Called for every value that a template emits.
fn write_value(output: &mut Output, state: &mut State, value: &Dynamic) -> Result<(), minijinja::Error> {
    if state.name() == WHOLE {
        state.set_temp(WHOLE, value.clone());
        return Ok(());
    }
    if let Some(text) = value.as_str() {
        return output.write_str(text).map_err(minijinja::Error::from);
    }
    let value = to_json(value, &mut Room::full()).map_err(from_us)?;
    output.write_str(&json::canonical(&value)).map_err(minijinja::Error::from)
}

/// Marks an error whose text is already the continuation of an expression.
const FROM_US: &str = "\u{1}";

fn from_us(message: String) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, format!("{FROM_US}{message}"))
}

/// What a result may still take up.
#[derive(Debug, Clone, Copy)]
struct Room {
    bytes: usize,
    levels: usize,
}

impl Room {
    fn full() -> Room {
        Room { bytes: EVALUATED_BYTES_MAX, levels: json::MAX_DEPTH }
    }

    fn take(&mut self, bytes: usize) -> Result<(), String> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or_else(|| {
            format!("makes the result larger than {EVALUATED_BYTES_MAX} bytes: pass less, or a reference to it")
        })?;
        Ok(())
    }

    fn descend(&mut self) -> Result<(), String> {
        self.levels = self.levels.checked_sub(1).ok_or_else(|| {
            format!("makes the result more than {} levels deep: pass a flatter value", json::MAX_DEPTH)
        })?;
        Ok(())
    }
}

/// One evaluation: what is left of its bounds.
struct Evaluator {
    root: Dynamic,
    fuel: u64,
    room: Room,
}

impl Evaluator {
    fn new(scope: &Scope) -> Evaluator {
        Evaluator { root: scope.root(), fuel: FUEL, room: Room::full() }
    }

    fn value(&mut self, template: &Value, path: &mut String) -> Result<Value, EvaluationError> {
        match template {
            Value::String(text) => self.string(text).map_err(|message| error_at(path, text, message)),
            Value::Array(items) => {
                self.enter(path)?;
                let mut values = Vec::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    let length = path.len();
                    json::push_index(path, index);
                    values.push(self.value(item, path)?);
                    path.truncate(length);
                }
                self.room.levels += 1;
                Ok(Value::Array(values))
            }
            Value::Object(map) => {
                self.enter(path)?;
                let mut values = Map::new();
                for (key, item) in map {
                    let length = path.len();
                    json::push_key(path, key);
                    self.room.take(key.len() + 4).map_err(|message| error_at(path, "", message))?;
                    values.insert(key.clone(), self.value(item, path)?);
                    path.truncate(length);
                }
                self.room.levels += 1;
                Ok(Value::Object(values))
            }
            other => Ok(other.clone()),
        }
    }

    fn enter(&mut self, path: &str) -> Result<(), EvaluationError> {
        self.room.descend().map_err(|message| error_at(path, "", message))
    }

    fn string(&mut self, text: &str) -> Result<Value, String> {
        if !is_template(text) {
            self.room.take(text.len() + 2)?;
            return Ok(Value::from(text));
        }
        tokens_of_text(text).map_err(|problem| format!("cannot be used: {}", problem.message))?;
        if let Some(expression) = whole(text) {
            let value = self.run(WHOLE, expression)?.0;
            return to_json(&value, &mut self.room);
        }
        let text = self.run(TEXT, text)?.1;
        self.room.take(text.len() + 2)?;
        Ok(Value::String(text))
    }

    /// The value caught (of [`WHOLE`]) and the text written (of [`TEXT`]).
    fn run(&mut self, name: &str, template: &str) -> Result<(Dynamic, String), String> {
        let mut environment = ENVIRONMENT.clone();
        environment.set_fuel(Some(self.fuel));
        let rendered = environment
            .template_from_named_str(name, template)
            .and_then(|compiled| compiled.render_captured(self.root.clone()))
            .map_err(|error| explain(&error, template))?;
        let state = rendered.state();
        self.fuel = state.fuel_levels().map_or(0, |(_, remaining)| remaining);
        let value = state.get_temp(WHOLE).unwrap_or(Dynamic::UNDEFINED);
        if name == WHOLE && value.is_undefined() {
            return Err("is undefined: give its `if` an `else`".to_owned());
        }
        Ok((value, rendered.into_output()))
    }
}

fn error_at(path: &str, expression: &str, message: String) -> EvaluationError {
    let expression = json::replace_nul(expression);
    let mut shown: String = expression.chars().take(SHOWN_CHARS_MAX).collect();
    if shown.len() < expression.len() {
        shown.push('…');
    }
    // The engine's own words can quote a name or a value of any length.
    let message: String = json::replace_nul(&message).chars().take(MESSAGE_CHARS_MAX).collect();
    EvaluationError { path: json::replace_nul(path).into_owned(), expression: shown, message }
}

/// Whether a string means more than itself.
fn is_template(text: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|opening| text.contains(opening))
}

/// The text without the white space around it, where it is exactly one `{{ expression }}`. Its tokens have been
/// counted.
fn whole(text: &str) -> Option<&str> {
    let trimmed = text.trim();
    let inner = trimmed.strip_prefix("{{")?.strip_suffix("}}")?;
    let inner = inner.strip_prefix('-').unwrap_or(inner);
    let inner = inner.strip_suffix('-').unwrap_or(inner);
    // `{{ a }} and {{ b }}` begins and ends the same way; what stands between the outer braces is then no expression.
    ENVIRONMENT.compile_expression(inner).is_ok().then_some(trimmed)
}

/// The expression of a condition without its `{{ }}`, and its tokens, placed in `text`.
fn bare(text: &str) -> Result<(&str, Vec<Placed<'_>>), SyntaxProblem> {
    let trimmed = text.trim();
    let refuse = |message: &str| Err(SyntaxProblem { message: message.to_owned(), range: None });
    if trimmed.is_empty() {
        return refuse("the condition is empty");
    }
    let inner = match trimmed.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}")) {
        Some(inner) => {
            if tokens_of_text(text)?.iter().filter(|(token, _)| *token == Token::Start).count() > 1 {
                return refuse("a condition is one expression: join several by `and` or `or` within one `{{ }}`");
            }
            let inner = inner.strip_prefix('-').unwrap_or(inner);
            inner.strip_suffix('-').unwrap_or(inner).trim()
        }
        None => trimmed,
    };
    let start = text.find(inner).unwrap_or(0);
    let mut tokens = Vec::new();
    tokens_of_code(text, start..start + inner.len(), None, &mut tokens)?;
    match ENVIRONMENT.compile_expression(inner) {
        Ok(_) => Ok((inner, tokens)),
        Err(_) if is_template(inner) => refuse("a condition is one expression, not text with values written in"),
        Err(error) => {
            let mut problem = syntax_problem(&error, inner.len());
            problem.range = problem.range.map(|range| range.start + start..range.end + start);
            Err(problem)
        }
    }
}

fn syntax_problem(error: &minijinja::Error, length: usize) -> SyntaxProblem {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    SyntaxProblem { message: detail, range: error.range().filter(|range| range.end <= length) }
}

/// Why a template has no value, as the continuation of its text.
fn explain(error: &minijinja::Error, template: &str) -> String {
    let inner = template.trim().trim_start_matches(['{', '-']).trim_end_matches(['}', '-']).trim();
    let part = error.range().and_then(|range| template.get(range)).map(str::trim).unwrap_or_default();
    let detail = error.detail().unwrap_or_default();
    if let Some(message) = detail.strip_prefix(FROM_US) {
        return if part.is_empty() || part == inner {
            message.to_owned()
        } else {
            format!("cannot be evaluated: `{part}` {message}")
        };
    }
    match error.kind() {
        ErrorKind::UndefinedError if detail.is_empty() || detail == format!("`{inner}` is undefined") => {
            "is undefined".to_owned()
        }
        ErrorKind::OutOfFuel => "takes too much work or memory: do less in one step".to_owned(),
        kind if detail.is_empty() => format!("cannot be evaluated: {kind}"),
        _ => format!("cannot be evaluated: {detail}"),
    }
}

fn to_dynamic(value: &Value) -> Dynamic {
    match value {
        Value::Null => Dynamic::from(()),
        Value::Bool(value) => Dynamic::from(*value),
        Value::Number(number) => {
            if let Some(integer) = number.as_i64() {
                Dynamic::from(integer)
            } else if let Some(integer) = number.as_u64() {
                Dynamic::from(integer)
            } else {
                Dynamic::from(number.as_f64().unwrap_or_default())
            }
        }
        Value::String(text) => Dynamic::from(text.as_str()),
        Value::Array(items) => items.iter().map(to_dynamic).collect(),
        Value::Object(map) => Dynamic::from_pairs(map.iter().map(|(key, item)| (key.as_str(), to_dynamic(item)))),
    }
}

/// The JSON of what an expression yielded, or why there is none, as the continuation of the expression's text.
fn to_json(value: &Dynamic, room: &mut Room) -> Result<Value, String> {
    match value.kind() {
        ValueKind::None => Ok(Value::Null),
        ValueKind::Bool => Ok(Value::Bool(value.is_true())),
        ValueKind::Number if value.is_integer() => {
            room.take(8)?;
            let integer = i128::try_from(value.clone());
            let number = integer.ok().and_then(|integer| {
                i64::try_from(integer).map(Number::from).or_else(|_| u64::try_from(integer).map(Number::from)).ok()
            });
            number
                .map(Value::Number)
                .ok_or_else(|| format!("is beyond 64 bits ({value}): make it text with `| string`"))
        }
        ValueKind::Number => {
            room.take(8)?;
            let number = f64::try_from(value.clone()).ok().and_then(Number::from_f64);
            number.map(Value::Number).ok_or_else(|| format!("is {value}, which JSON cannot hold"))
        }
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            room.take(text.len() + 2)?;
            Ok(Value::from(text))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            room.descend()?;
            let mut items = Vec::new();
            for item in value.try_iter().map_err(|error| explain(&error, ""))? {
                room.take(2)?;
                items.push(to_json(&item, room)?);
            }
            room.levels += 1;
            Ok(Value::Array(items))
        }
        ValueKind::Map => {
            room.descend()?;
            let mut map = Map::new();
            for key in value.try_iter().map_err(|error| explain(&error, ""))? {
                let item = value.get_item(&key).map_err(|error| explain(&error, ""))?;
                let Some(name) = key.as_str() else {
                    return Err(format!("has the key {key}, which is no text: JSON cannot hold it"));
                };
                room.take(name.len() + 4)?;
                map.insert(name.to_owned(), to_json(&item, room)?);
            }
            room.levels += 1;
            Ok(Value::Object(map))
        }
        ValueKind::Undefined => Err("holds something undefined".to_owned()),
        ValueKind::Invalid => match value.try_iter() {
            Err(error) => Err(explain(&error, "")),
            Ok(_) => Err("cannot be evaluated".to_owned()),
        },
        kind => Err(format!("is a {kind}, which JSON cannot hold")),
    }
}

/// A word or sign of an expression, as far as names are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token<'t> {
    /// Where a `{{ }}` or `{% %}` begins.
    Start,
    Name(&'t str),
    Text(&'t str),
    Sign(char),
}

type Placed<'t> = (Token<'t>, Range<usize>);

/// The tokens of every `{{ }}` and `{% %}` of a text, found as the engine finds them, so that none is missed in the
/// count. That is why `raw`, within which the engine finds none, is refused.
fn tokens_of_text(text: &str) -> Result<Vec<Placed<'_>>, SyntaxProblem> {
    let mut tokens = Vec::new();
    let mut blocks = 0;
    let mut at = 0;
    while let Some(found) = text.get(at..).and_then(|rest| rest.find('{')) {
        let opening = at + found;
        let inside = opening + 2;
        at = match text.get(opening..inside) {
            Some("{#") => {
                text.get(inside..).and_then(|rest| rest.find("#}")).map_or(text.len(), |end| inside + end + 2)
            }
            Some("{{") => tokens_of_code(text, inside..text.len(), Some(b'}'), &mut tokens)?,
            Some("{%") => {
                blocks += 1;
                let name = text.get(inside..).unwrap_or_default().trim_start_matches(['-', '+']).trim_start();
                if name.starts_with("raw") {
                    let message = "`raw` is not available: write braces as text, such as {{ \"{{\" }}".to_owned();
                    return Err(SyntaxProblem { message, range: Some(opening..inside) });
                }
                if blocks > BLOCKS_MAX {
                    let message = format!("more than {BLOCKS_MAX} `{{% %}}` in one text: split it between steps");
                    return Err(SyntaxProblem { message, range: Some(opening..inside) });
                }
                tokens_of_code(text, inside..text.len(), Some(b'%'), &mut tokens)?
            }
            _ => opening + 1,
        };
    }
    Ok(tokens)
}

/// The tokens of the code that begins at `span.start`; the byte after it. It ends with `closing` and a brace, where no
/// bracket is open; `None`: with the span.
fn tokens_of_code<'t>(
    text: &'t str,
    span: Range<usize>,
    closing: Option<u8>,
    tokens: &mut Vec<Placed<'t>>,
) -> Result<usize, SyntaxProblem> {
    let bytes = text.as_bytes();
    let end = span.end;
    let mut at = span.start;
    let mut open = 0isize;
    let first = tokens.len();
    // Also keeps names of one piece of code from being read together with those of the next.
    tokens.push((Token::Start, at..at));
    while at < end {
        let from = at;
        let byte = bytes[at];
        if tokens.len() - first > TOKENS_MAX {
            let message =
                format!("more than {TOKENS_MAX} words and signs in one expression: split the work between steps");
            return Err(SyntaxProblem { message, range: None });
        }
        if open == 0 && closing == Some(byte) && bytes.get(at + 1) == Some(&b'}') {
            return Ok(at + 2);
        }
        match byte {
            b'"' | b'\'' => {
                at += 1;
                while at < end && bytes[at] != byte {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at = (at + 1).min(end);
                let content = text.get(from + 1..at.saturating_sub(1)).unwrap_or_default();
                tokens.push((Token::Text(content), from..at));
            }
            byte if is_part_of_name(byte) && !byte.is_ascii_digit() => {
                while at < end && is_part_of_name(bytes[at]) {
                    at += 1;
                }
                tokens.push((Token::Name(text.get(from..at).unwrap_or_default()), from..at));
            }
            byte => {
                match byte {
                    b'{' | b'[' | b'(' => open += 1,
                    b'}' | b']' | b')' => open -= 1,
                    _ => {}
                }
                at += 1;
                if !byte.is_ascii_whitespace() {
                    tokens.push((Token::Sign(char::from(byte)), from..at));
                }
            }
        }
    }
    Ok(end)
}

fn is_part_of_name(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

/// Filters and tests that do not exist, and the references of a template: what it leaves undeclared, with places.
fn check_names(undeclared: BTreeSet<String>, tokens: &[Placed<'_>]) -> Result<Vec<Reference>, Vec<SyntaxProblem>> {
    let mut problems = Vec::new();
    for (index, (token, range)) in tokens.iter().enumerate() {
        let Token::Name(name) = token else { continue };
        let before = |back: usize| index.checked_sub(back).map(|at| &tokens[at].0);
        let is_filter = before(1) == Some(&Token::Sign('|'));
        let is_test = before(1) == Some(&Token::Name("is")) && *name != "not"
            || before(1) == Some(&Token::Name("not")) && before(2) == Some(&Token::Name("is"));
        if is_filter && !exists(name, "filter") {
            problems
                .push(SyntaxProblem { message: format!("there is no filter `{name}`"), range: Some(range.clone()) });
        } else if is_test && !exists(name, "test") {
            problems.push(SyntaxProblem { message: format!("there is no test `{name}`"), range: Some(range.clone()) });
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut references = Vec::new();
    for dotted in &undeclared {
        let mut names = dotted.split('.').map(str::to_owned);
        let root = names.next().unwrap_or_default();
        let members: Vec<String> = names.collect();
        references.push(Reference { range: place_of(&root, &members, tokens), root, members });
    }
    // `steps["an-id"]`: the engine sees no name there, a reader does.
    for (index, (token, range)) in tokens.iter().enumerate() {
        let after = |forward: usize| tokens.get(index + forward).map(|(token, _)| token);
        let is_root = index == 0 || tokens[index - 1].0 != Token::Sign('.');
        if *token == Token::Name("steps")
            && is_root
            && after(1) == Some(&Token::Sign('['))
            && let (Some(Token::Text(id)), Some(Token::Sign(']'))) = (after(2), after(3))
        {
            let range = range.start..tokens[index + 3].1.end;
            references.push(Reference { root: "steps".into(), members: vec![(*id).to_owned()], range: Some(range) });
        }
    }
    references.retain(|reference| !BUILT_IN.contains(&reference.root.as_str()));
    Ok(references)
}

/// Whether the engine has a filter or a test of this name.
fn exists(name: &str, kind: &str) -> bool {
    let expression = ENVIRONMENT.compile_expression(if kind == "filter" { "name is filter" } else { "name is test" });
    let scope = Dynamic::from_pairs([("name", name)]);
    expression.and_then(|expression| expression.eval(scope)).is_ok_and(|found| found.is_true())
}

/// Where `root.member.member` is written, or `root` where that cannot be found.
fn place_of(root: &str, members: &[String], tokens: &[Placed<'_>]) -> Option<Range<usize>> {
    let mut fallback = None;
    for (index, (token, range)) in tokens.iter().enumerate() {
        let is_root = index == 0 || tokens[index - 1].0 != Token::Sign('.');
        if *token != Token::Name(root) || !is_root {
            continue;
        }
        let mut end = range.end;
        let follows = members.iter().enumerate().all(|(position, member)| {
            let dot = tokens.get(index + 1 + position * 2).map(|(token, _)| token);
            let name = tokens.get(index + 2 + position * 2);
            end = name.map_or(end, |(_, range)| range.end);
            dot == Some(&Token::Sign('.')) && name.map(|(token, _)| token) == Some(&Token::Name(member))
        });
        if follows {
            return Some(range.start..end);
        }
        fallback = fallback.or(Some(range.clone()));
    }
    fallback
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn scope() -> Scope {
        let params = json!({ "a": "b", "items": [1, 2], "deep": { "x": [{ "y": null }] }, "zero": 0, "empty": "" });
        let variables = BTreeMap::from([
            ("overdue".to_owned(), json!([{ "email": "a@x", "number": 3544790567247868102u64, "cents": 1.5 }])),
            ("large".to_owned(), json!(u64::MAX)),
            ("small".to_owned(), json!(i64::MIN)),
            ("text".to_owned(), json!("x".repeat(1000))),
            ("params".to_owned(), json!("a variable cannot stand in for this")),
        ]);
        let outputs = BTreeMap::from([
            ("remind".to_owned(), json!([1, 2])),
            ("skipped".to_owned(), json!(null)),
            ("send-mail".to_owned(), json!({ "id": 7 })),
        ]);
        Scope::new(&params, &variables, &outputs)
    }

    #[track_caller]
    fn check(template: &str, expected: Value) {
        match evaluate(&json!(template), "here", &scope()) {
            Ok(value) => assert_eq!(value, expected, "{template}"),
            Err(error) => panic!("{error}"),
        }
    }

    #[track_caller]
    fn check_refused(template: &str, expected: &str) {
        let error = evaluate(&json!({ "to": template }), "steps.s.with", &scope()).expect_err(template);
        assert_eq!(error.path, "steps.s.with.to");
        assert_eq!(error.message, expected, "{template}");
    }

    #[test]
    fn one_expression_keeps_the_type_of_its_value() {
        for (template, expected) in [
            ("{{ overdue[0].email }}", json!("a@x")),
            ("  {{ overdue }}\n", json!([{ "email": "a@x", "number": 3544790567247868102u64, "cents": 1.5 }])),
            ("{{- overdue[0].cents -}}", json!(1.5)),
            ("{{ overdue | length > 50 }}", json!(false)),
            ("{{ none }}", json!(null)),
            ("{{ params.deep.x[0].y }}", json!(null)),
            ("{{ params['deep'][\"x\"] }}", json!([{ "y": null }])),
            // A key is a key, not a method of the mapping.
            ("{{ params.items }}", json!([1, 2])),
            ("{{ params.a }}", json!("b")),
            ("{{ {\"a\": {\"b\": 1}} }}", json!({ "a": { "b": 1 } })),
            ("{{ \"}} {{\" }}", json!("}} {{")),
            ("{{ (1, 2) }}", json!([1, 2])),
            ("{{ range(3) }}", json!([0, 1, 2])),
            ("{{ overdue | map(attribute='email') }}", json!(["a@x"])),
            ("{{ dict(a=1) }}", json!({ "a": 1 })),
            ("{{ params.missing | default('d') }}", json!("d")),
            ("{{ params.missing is defined }}", json!(false)),
            ("{{ 1 if params.zero else 2 }}", json!(2)),
            ("{{ params | length }}", json!(5)),
            ("{{ 7 // 2 }}", json!(3)),
            ("{{ 'a' in params }}", json!(true)),
        ] {
            check(template, expected);
        }
    }

    #[test]
    fn integers_of_64_bits_keep_their_digits() {
        check("{{ overdue[0].number }}", json!(3544790567247868102u64));
        check("n={{ overdue[0].number }}", json!("n=3544790567247868102"));
        check("{{ overdue[0].number + 1 }}", json!(3544790567247868103u64));
        check("{{ overdue[0].number | tojson }}", json!("3544790567247868102"));
        check("{{ large }}", json!(u64::MAX));
        check("{{ small }}", json!(i64::MIN));
        check("{{ (large + 1) | string }}", json!("18446744073709551616"));
        check_refused("{{ large + 1 }}", "is beyond 64 bits (18446744073709551616): make it text with `| string`");
        check_refused(
            "x{{ small - 1 }}",
            "cannot be evaluated: `small - 1` is beyond 64 bits (-9223372036854775809): make it text with `| string`",
        );
    }

    #[test]
    fn anything_else_is_text_with_values_written_in() {
        for (template, expected) in [
            ("Invoice {{ overdue[0].number }}", "Invoice 3544790567247868102"),
            ("{{ params.a }}{{ params.a }}", "bb"),
            ("{{ params.a }} and {{ params.items }}", "b and [1,2]"),
            ("{{ none }}|{{ true }}|{{ 1.0 }}|{{ '' }}", "null|true|1.0|"),
            ("{{ params.deep }}.", "{\"x\":[{\"y\":null}]}."),
            ("<{{ '<&>' }}>", "<<&>>"),
            ("{{ '<&>' | e }}.", "&lt;&amp;&gt;."),
            ("two\nlines {{ 1 }}\n", "two\nlines 1\n"),
            ("{% for item in params.items %}{{ loop.index }}={{ item }};{% endfor %}", "1=1;2=2;"),
            ("{% if params.zero %}a{% else %}b{% endif %}", "b"),
            ("{# nothing #}", ""),
            ("{{ '{{' }} x {{ '}}' }}{# {{ a #}{#}{{ b #}", "{{ x }}"),
        ] {
            check(template, json!(expected));
        }
    }

    #[test]
    fn a_string_without_an_expression_is_itself() {
        for text in ["", " a ", "{ a }", "}}", "a % b", "\0", "$x"] {
            check(text, json!(text));
        }
    }

    #[test]
    fn templates_are_evaluated_wherever_they_stand_and_keys_are_not() {
        let template = json!({ "a": ["{{ 1 }}", { "odd key": "x{{ 2 }}" }], "{{ 1 }}": true, "n": 1.5 });
        let expected = json!({ "a": [1, { "odd key": "x2" }], "{{ 1 }}": true, "n": 1.5 });
        assert_eq!(evaluate(&template, "", &scope()).unwrap(), expected);
        let template = json!({ "a": ["{{ 1 }}", { "odd key": "{{ params.no }}" }] });
        let error = evaluate(&template, "steps.s.with", &scope()).unwrap_err();
        assert_eq!(error.to_string(), "steps.s.with.a[1][\"odd key\"]: \"{{ params.no }}\" is undefined");
        assert_eq!(evaluate(&json!("{{ params.no }}"), "", &scope()).unwrap_err().path, "");
    }

    #[test]
    fn r13_outputs_are_seen_by_step_key_and_a_skipped_one_is_null() {
        check("{{ steps.remind.output | length }}", json!(2));
        check("{{ steps.skipped.output }}", json!(null));
        check("{{ steps['send-mail'].output.id }}", json!(7));
        let mut scope = scope();
        scope.record("late", Some("saved"), &json!({ "x": 1 }));
        assert_eq!(evaluate(&json!("{{ saved == steps.late.output }}"), "", &scope).unwrap(), json!(true));
    }

    #[test]
    fn r2_undefined_is_an_error_and_never_an_empty_string() {
        for template in
            ["{{ nope }}", "{{ overdue[0].emial }}", "{{ overdue[1] }}", "{{ steps.nope }}", "{{- params.no -}}"]
        {
            check_refused(template, "is undefined");
        }
        for (template, name) in [
            ("Dear {{ overdue[0].emial }}", "overdue[0].emial"),
            ("{{ overdue[0].emial }} {{ nope }}", "overdue[0].emial"),
            ("{{ nope.x }}", "nope"),
            ("{{ params.no.x }}", "params.no"),
            ("{{ 'a' ~ params.no }}", "params.no"),
            ("{{ params.no | upper }}", "params.no"),
            ("{{ params.no | length }}", "params.no"),
            ("{{ params.no == 1 }}", "params.no"),
            ("{{ params.no in [1] }}", "params.no"),
            ("{{ 1 in params.no }}", "params.no"),
            ("{{ not params.no }}", "params.no"),
            ("{{ params.no or 1 }}", "params.no"),
            ("{{ 1 if params.no else 2 }}", "params.no"),
            ("{% if params.no %}{% endif %}", "params.no"),
            ("{% for x in params.no %}{% endfor %}", "params.no"),
            ("{{ params.no[1:] }}", "params.no"),
        ] {
            check_refused(template, &format!("cannot be evaluated: `{name}` is undefined"));
        }
        for template in ["{{ [params.no] }}", "{{ {'a': params.no} }}", "{{ overdue | map(attribute='no') }}"] {
            check_refused(template, "holds something undefined");
        }
        check_refused("{{ params.no | tojson }}", "cannot be evaluated: what `tojson` is given is undefined");
        check_refused("{{ 1 if false }}", "is undefined: give its `if` an `else`");
        check_refused("a{{ 1 if false }}", "cannot be evaluated: `1 if false` holds something undefined");
        // Whatever takes something undefined without a word is not there.
        for filter in
            ["e", "escape", "indent", "pprint", "chain([])", "zip([])", "safe", "trim", "list", "string", "join"]
        {
            let template = json!(format!("{{{{ params.no | {filter} }}}}"));
            assert!(evaluate(&template, "", &scope()).is_err(), "{filter}");
        }
    }

    #[test]
    fn what_json_cannot_hold_is_an_error() {
        check_refused("{{ {1: 2} }}", "has the key 1, which is no text: JSON cannot hold it");
        check_refused("{{ 10.0 ** 400 }}", "is inf, which JSON cannot hold");
        check_refused("{{ range }}", "is a plain object, which JSON cannot hold");
        check_refused("{{ 1 / 0 }}", "cannot be evaluated: unable to calculate 1 / 0");
        check_refused("{{ debug() }}", "cannot be evaluated: debug is unknown");
        check_refused("{{ overdue | nofilter }}", "cannot be evaluated: filter nofilter is unknown");
    }

    #[test]
    fn work_memory_size_and_depth_are_bounded() {
        let exhausted = "takes too much work or memory: do less in one step";
        for template in [
            "{{ 'x' * 10**9 }}",
            "{{ text | replace('x', text) | replace('x', text) }}",
            "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
            "{{ '%1000000000d' | format(1) }}",
        ] {
            check_refused(template, exhausted);
        }
        check_refused("{{ [0] * 10**9 }}", "cannot be evaluated: repeated sequence is too large");
        check_refused("{{ range(10**12) }}", "cannot be evaluated: range has too many elements");
        let larger = "makes the result larger than 8388608 bytes: pass less, or a reference to it";
        let many = json!(vec!["{{ text * 1000 }}"; 9]);
        assert_eq!(evaluate(&many, "", &scope()).unwrap_err().message, larger);
        // All of one evaluation share what it may do.
        let many = json!(vec!["{{ range(100000) | map('string') | join | length }}"; 50]);
        assert_eq!(evaluate(&many, "", &scope()).unwrap_err().message, exhausted);

        let nested = |levels: usize| format!("{{{{ {}{} }}}}", "[".repeat(levels), "]".repeat(levels));
        assert!(evaluate(&json!(nested(64)), "", &scope()).is_ok());
        assert!(evaluate(&json!([nested(63)]), "", &scope()).is_ok());
        let deeper = "makes the result more than 64 levels deep: pass a flatter value";
        assert_eq!(evaluate(&json!([nested(64)]), "", &scope()).unwrap_err().message, deeper);
    }

    /// Each would end the process if the engine got to see it.
    #[test]
    fn a_chain_as_long_as_the_file_is_refused_before_it_is_compiled() {
        let scope = scope();
        for link in [
            "(",
            "[",
            "-",
            "not ",
            "{1:",
            "a[",
            "a(",
            "a if ",
            "a|b(",
            "1+",
            "1**",
            "1 or ",
            "a.",
            "a|e|",
            "1<",
            "a is ",
            "1~",
            "1 if 1 else ",
            "'' ~ ",
            "{} ~ ",
            "a}}{{",
        ] {
            for (before, after) in
                [("", ""), ("{{ ", " }}"), ("{{ '}}' ~ ", " }}"), ("{{ {'a': ", "} }}"), ("{# ' #}{{ ", " }}")]
            {
                for closing in ["", ")", "]", "+1", "|e", ".a", "[1]", " if 1"] {
                    let text = format!("{before}{}1{}{after}", link.repeat(20_000), closing.repeat(20_000));
                    let _ = check_template(&text);
                    let _ = check_condition(&text);
                    let _ = evaluate(&json!(text), "", &scope);
                    let _ = condition(&text, "", &scope);
                }
            }
        }
        let elifs = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(20_000));
        let ifs = format!("{}{}", "{% if 1 %}".repeat(20_000), "{% endif %}".repeat(20_000));
        for text in [elifs, ifs] {
            assert!(check_template(&text).unwrap_err()[0].message.contains("more than 200 `{% %}`"));
            assert!(evaluate(&json!(text), "", &scope).is_err());
        }
        let longest = format!("{{{{ 1{} }}}}", "+1".repeat(TOKENS_MAX / 2 - 1));
        assert_eq!(evaluate(&json!(longest), "", &scope), Ok(json!(500)));
        let longer = format!("{{{{ 1{} }}}}", "+1".repeat(TOKENS_MAX / 2 + 1));
        assert_eq!(
            evaluate(&json!(longer), "", &scope).unwrap_err().message,
            "cannot be used: more than 1000 words and signs in one expression: split the work between steps"
        );
        // A long text with short expressions is fine.
        let letter = format!("{}{{{{ params.a }}}}", "words and words, ".repeat(1000)).repeat(20);
        assert!(evaluate(&json!(letter), "", &scope).is_ok());
    }

    #[test]
    fn errors_can_be_stored() {
        let text = format!("{{{{ '\0{}' + 1 }}}}", "x".repeat(10_000));
        let error = evaluate(&json!({ "a\0": text }), "p", &scope()).unwrap_err();
        assert!(!error.to_string().contains('\0'));
        assert!(error.to_string().len() < 2000);
        let stored = serde_json::to_string(&error).unwrap();
        assert_eq!(serde_json::from_str::<EvaluationError>(&stored).unwrap(), error);
    }

    #[test]
    fn conditions_hold_or_do_not_with_or_without_braces() {
        for (expression, expected) in [
            ("{{ overdue | length > 0 }}", true),
            ("overdue | length > 50", false),
            (" {{- overdue -}} ", true),
            ("-1 > -2", true),
            ("params.a == \"}} {{\"", false),
            ("{'a': 1}", true),
            ("none", false),
            ("0", false),
            ("''", false),
            ("[]", false),
            ("'false'", true),
            ("true", true),
            ("params.missing is defined", false),
            ("steps.skipped.output is none", true),
        ] {
            assert_eq!(condition(expression, "steps.s.if", &scope()), Ok(expected), "{expression}");
        }
        for (expression, expected) in [
            ("params.no", "is undefined"),
            ("{{ params.no }}", "is undefined"),
            ("params.no == 1", "cannot be evaluated: `params.no` is undefined"),
            ("1 if false", "is undefined: give its `if` an `else`"),
            ("", "cannot be used: the condition is empty"),
        ] {
            let error = condition(expression, "steps.s.if", &scope()).unwrap_err();
            assert_eq!((error.path.as_str(), error.message.as_str()), ("steps.s.if", expected), "{expression}");
        }
    }

    #[test]
    fn r3_a_binding_is_what_its_author_wrote() {
        let with = json!({ "to": "{{ invoice.email }}", "items": [{ "n": 1.50 }], "plain": "text", "odd key": null });
        for (path, expected) in [
            ("to", Some("{{ invoice.email }}")),
            ("plain", Some("text")),
            ("items[0].n", Some("1.5")),
            ("items", Some("[{\"n\":1.5}]")),
            ("[\"odd key\"]", Some("null")),
            ("to.length", None),
            ("absent", None),
            ("items[1]", None),
        ] {
            assert_eq!(binding(&with, path).as_deref(), expected, "{path}");
        }
    }

    #[track_caller]
    fn check_references(text: &str, expected: &[(&str, &str)]) {
        let mut references: Vec<(String, String)> = check_template(text)
            .unwrap()
            .into_iter()
            .map(|found| {
                let members: Vec<String> = std::iter::once(found.root).chain(found.members).collect();
                (members.join("."), found.range.map_or("", |range| &text[range]).to_owned())
            })
            .collect();
        references.sort();
        let expected: Vec<(String, String)> =
            expected.iter().map(|(name, place)| ((*name).to_owned(), (*place).to_owned())).collect();
        assert_eq!(references, expected, "{text}");
    }

    #[test]
    fn references_are_found_with_their_places() {
        check_references("plain", &[]);
        check_references("{{ a.b.c }}", &[("a.b.c", "a.b.c")]);
        check_references("é {{ a[0].b }} {{ a }}", &[("a", "a")]);
        check_references("{% for x in list %}{{ x.y }}{{ loop.index }}{% endfor %}", &[("list", "list")]);
        check_references("{{ 'a.b' }}{{ x.a }}{{ a.b }}", &[("a.b", "a.b"), ("x.a", "x.a")]);
        check_references("{{ range(3) }}", &[]);
        check_references("{{ steps['a-b'].output }}", &[("steps", "steps"), ("steps.a-b", "steps['a-b']")]);
        check_references("{{ x.steps['a-b'] }}", &[("x.steps", "x.steps")]);
        check_references("{# {{ a }} #}{{ b }}", &[("b", "b")]);
        check_references("{{ {'a': {'b': c}} }}", &[("c", "c")]);
        check_references("{{ a | default(b) | map(attribute='c') | select('odd') }}", &[("a", "a"), ("b", "b")]);
    }

    #[test]
    fn what_cannot_be_read_is_said_at_its_place() {
        for (text, place, message) in [
            ("{{ a | lenght }}", Some("lenght"), "there is no filter `lenght`"),
            ("{{ a is not evn }}", Some("evn"), "there is no test `evn`"),
            ("{{ a is evn }}", Some("evn"), "there is no test `evn`"),
            ("x {{ a b }}", Some("b"), "unexpected identifier, expected end of variable block"),
            ("{% macro x() %}{% endmacro %}", Some("macro"), "unknown statement macro"),
            (
                "x {%- raw %}{% endraw %}",
                Some("{%"),
                "`raw` is not available: write braces as text, such as {{ \"{{\" }}",
            ),
            ("{% include 'x' %}", Some("include"), "unknown statement include"),
        ] {
            let problem = check_template(text).unwrap_err().remove(0);
            assert_eq!(problem.message, message, "{text}");
            assert_eq!(problem.range.map(|range| &text[range]), place, "{text}");
        }
        for text in ["{{ a", "{{ }}", "{{ a. }}", "{% if %}", "{% for x in y %}", "{{ a }} {%", "{#"] {
            assert!(check_template(text).is_err(), "{text}");
        }
        for text in
            ["", "{{ a }} and {{ b }}", "x {{ a }}", "{{ a", "a }}", "{% if a %}1{% endif %}", "a b", "a | nofilter"]
        {
            assert!(check_condition(text).is_err(), "{text}");
        }
        let (expression, references) = check_condition(" {{ a.b > 1 }} ").unwrap();
        assert_eq!(expression, "a.b > 1");
        assert_eq!(references[0].range, Some(4..7));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn no_text_panics(text in "([{}%#\"'|().\\[\\],:~+*/ \\-]|a|params|overdue|is|not|in|if|else|for|endfor|set|0|9|é|\\\\|\n|\\{\\{ | \\}\\}){0,30}") {
            let _ = check_template(&text);
            let _ = check_condition(&text);
            let _ = evaluate(&json!([text]), "", &scope());
            let _ = condition(&text, "", &scope());
        }

        #[test]
        fn what_checks_without_references_also_evaluates_or_says_why(text in any::<String>()) {
            let text = format!("{{{{ {text} }}}}");
            let _ = check_template(&text);
            let _ = evaluate(&json!(text), "", &scope());
        }

        #[test]
        fn any_value_passes_through_unchanged(number in any::<i64>(), float in any::<f64>(), text in any::<String>()) {
            prop_assume!(float.is_finite());
            let params = json!({ "value": [number, float, text, { "k": null }] });
            let scope = Scope::new(&params, &BTreeMap::new(), &BTreeMap::new());
            prop_assert_eq!(evaluate(&json!("{{ params.value }}"), "", &scope).unwrap(), params["value"].clone());
            prop_assert_eq!(evaluate(&json!("{{ params.value[2] }}"), "", &scope).unwrap(), json!(text));
        }
    }
}
