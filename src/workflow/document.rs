//! A YAML or JSON text as a tree whose every node knows its bytes, so that a problem found later can name its line.
//!
//! The tree holds what JSON can hold and nothing else: the same gate as [`crate::json`] (integers within 64 bits,
//! bounded depth and size, no key twice), plus bounds on what YAML's aliases may multiply. Numbers keep the text they
//! were written in, so that `0.1` is exactly a tenth to whoever asks for the text.
//!
//! It knows nothing of workflows, and performs no I/O.

use std::ops::Range;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput, Tag};
use serde_json::{Map, Number, Value};

use crate::json;
use crate::source::Problem;

/// How many bytes a workflow file may have.
pub(super) const BYTES_MAX: usize = 1 << 20;
/// How many values a file may hold once its aliases are followed.
const NODES_MAX: usize = 100_000;

/// One value and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// Its bytes in the text; of a mapping or list, from its first byte to its last.
    pub span: Range<usize>,
    /// What it is.
    pub data: Data,
}

/// What JSON can hold.
#[derive(Debug, Clone)]
pub(super) enum Data {
    Null,
    Bool(bool),
    /// The number, and the text it was written in.
    Number(Number, String),
    String(String),
    List(Vec<Node>),
    Mapping(Vec<Entry>),
}

/// One entry of a mapping. No two entries of one mapping have the same key.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub key: String,
    pub key_span: Range<usize>,
    pub value: Node,
}

impl Node {
    /// The value without its places.
    pub fn to_value(&self) -> Value {
        match &self.data {
            Data::Null => Value::Null,
            Data::Bool(value) => Value::Bool(*value),
            Data::Number(number, _) => Value::Number(number.clone()),
            Data::String(text) => Value::String(text.clone()),
            Data::List(items) => Value::Array(items.iter().map(Node::to_value).collect()),
            Data::Mapping(entries) => {
                let pairs = entries.iter().map(|entry| (entry.key.clone(), entry.value.to_value()));
                Value::Object(pairs.collect::<Map<_, _>>())
            }
        }
    }

    /// What it is, for a message: `a number`.
    pub fn kind(&self) -> &'static str {
        match &self.data {
            Data::Null => "nothing",
            Data::Bool(_) => "true or false",
            Data::Number(..) => "a number",
            Data::String(_) => "text",
            Data::List(_) => "a list",
            Data::Mapping(_) => "a mapping",
        }
    }
}

/// The tree that `text` holds. A name that ends in `.json` makes it JSON and nothing else; any other text is JSON where
/// it is valid JSON, and YAML where it is not.
///
/// # Errors
/// The problems that keep it from being one tree: one of syntax, or all of the others (keys given twice, numbers that
/// do not fit, tags).
pub(super) fn read(name: &str, text: &str) -> Result<Node, Vec<Problem>> {
    if text.len() > BYTES_MAX {
        let message = format!("the file has {} bytes and a workflow may have {BYTES_MAX}", text.len());
        return Err(vec![Problem::whole(message)]);
    }
    let is_json = name.rsplit('.').next().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    if is_json || text.trim_start().starts_with('{') {
        match json::parse(text, BYTES_MAX) {
            Ok(_) => {
                let mut nodes = 0;
                let node = JsonReader { text, at: 0, nodes: &mut nodes }.node();
                return node.ok_or_else(|| vec![too_many_nodes(0..0)]);
            }
            Err(error) if is_json => {
                let at = error.offset.unwrap_or(0);
                return Err(vec![Problem::at(at..at, error.message)]);
            }
            // A flow mapping of YAML looks like JSON from outside.
            Err(_) => {}
        }
    }
    YamlReader::new(text).read()
}

fn too_many_nodes(span: Range<usize>) -> Problem {
    Problem::at(span, format!("the file holds more than {NODES_MAX} values"))
        .help("aliases (`*name`) are followed and count each time")
}

/// Reads JSON that [`json::parse`] has accepted, to learn where each value stands.
struct JsonReader<'t, 'n> {
    text: &'t str,
    at: usize,
    nodes: &'n mut usize,
}

impl JsonReader<'_, '_> {
    /// The next value; `None` where there are too many.
    fn node(&mut self) -> Option<Node> {
        *self.nodes += 1;
        if *self.nodes > NODES_MAX {
            return None;
        }
        let start = self.skip_space();
        let data = match self.text.as_bytes().get(start)? {
            b'"' => Data::String(self.string()?),
            b'[' => {
                let mut items = Vec::new();
                self.at += 1;
                while self.text.as_bytes().get(self.skip_space())? != &b']' {
                    items.push(self.node()?);
                    self.skip_comma();
                }
                self.at += 1;
                Data::List(items)
            }
            b'{' => {
                let mut entries = Vec::new();
                self.at += 1;
                while self.text.as_bytes().get(self.skip_space())? != &b'}' {
                    let key_start = self.at;
                    let key = self.string()?;
                    let key_span = key_start..self.at;
                    self.skip_space();
                    // The colon.
                    self.at += 1;
                    entries.push(Entry { key, key_span, value: self.node()? });
                    self.skip_comma();
                }
                self.at += 1;
                Data::Mapping(entries)
            }
            b't' => self.word("true", Data::Bool(true)),
            b'f' => self.word("false", Data::Bool(false)),
            b'n' => self.word("null", Data::Null),
            _ => {
                let end = json::end_of_number(self.text.as_bytes(), start);
                let literal = self.text.get(start..end)?;
                self.at = end;
                Data::Number(serde_json::from_str(literal).ok()?, literal.to_owned())
            }
        };
        Some(Node { span: start..self.at, data })
    }

    fn string(&mut self) -> Option<String> {
        let start = self.at;
        self.at = json::end_of_string(self.text.as_bytes(), start);
        serde_json::from_str(self.text.get(start..self.at)?).ok()
    }

    fn word(&mut self, word: &str, data: Data) -> Data {
        self.at += word.len();
        data
    }

    fn skip_space(&mut self) -> usize {
        while self.text.as_bytes().get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.at
    }

    fn skip_comma(&mut self) {
        if self.text.as_bytes().get(self.skip_space()) == Some(&b',') {
            self.at += 1;
        }
    }
}

/// Builds the tree from the parser's events. The parser is asked for one event at a time and the open collections stand
/// on a stack of our own, so that depth is an error and never the end of the process's stack.
struct YamlReader<'t> {
    text: &'t str,
    /// The byte at which each character starts, and the length of the text at the end: the parser counts characters.
    bytes: Vec<usize>,
    open: Vec<Open>,
    /// What each anchor names; `None` while it is still open.
    anchors: std::collections::HashMap<usize, Option<Node>>,
    root: Option<Node>,
    nodes: usize,
    problems: Vec<Problem>,
}

/// A collection whose end has not come yet.
struct Open {
    start: usize,
    anchor: usize,
    items: Collecting,
}

enum Collecting {
    List(Vec<Node>),
    Mapping(Vec<Entry>, Option<(String, Range<usize>)>),
}

impl<'t> YamlReader<'t> {
    fn new(text: &'t str) -> Self {
        let mut bytes: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        bytes.push(text.len());
        YamlReader {
            text,
            bytes,
            open: Vec::new(),
            anchors: std::collections::HashMap::new(),
            root: None,
            nodes: 0,
            problems: Vec::new(),
        }
    }

    fn read(mut self) -> Result<Node, Vec<Problem>> {
        let text = self.text;
        let mut parser = Parser::new(StrInput::new(text));
        let mut documents = 0;
        while let Some(event) = parser.next_event() {
            let (event, span) = match event {
                Ok(event) => event,
                Err(error) => {
                    let at = self.byte(error.marker().index());
                    self.problems.push(Problem::at(at..at, format!("this is not YAML: {}", error.info())));
                    break;
                }
            };
            let span = self.span(span);
            let step = match event {
                Event::StreamEnd => break,
                Event::DocumentStart(_) => {
                    documents += 1;
                    if documents > 1 {
                        self.problems.push(
                            Problem::at(span, "a second document begins here")
                                .help("one file holds one workflow: put the other into a file of its own"),
                        );
                        break;
                    }
                    Ok(())
                }
                Event::Scalar(text, style, anchor, tag) => self.scalar(&text, style, anchor, tag.as_deref(), span),
                Event::SequenceStart(anchor, tag) => {
                    self.begin(span, anchor, tag.as_deref(), Collecting::List(Vec::new()))
                }
                Event::MappingStart(anchor, tag) => {
                    self.begin(span, anchor, tag.as_deref(), Collecting::Mapping(Vec::new(), None))
                }
                Event::SequenceEnd | Event::MappingEnd => {
                    self.end(span);
                    Ok(())
                }
                Event::Alias(anchor) => self.alias(anchor, span),
                Event::Nothing | Event::StreamStart | Event::DocumentEnd => Ok(()),
            };
            // Only what would take the reader out of its bounds ends the reading.
            if let Err(problem) = step {
                self.problems.push(problem);
                break;
            }
        }
        match (self.root, self.problems.is_empty()) {
            (Some(root), true) => Ok(root),
            (None, true) => Err(vec![Problem::whole("the file is empty").help("begin with `workflow: app/name`")]),
            (_, false) => Err(self.problems),
        }
    }

    fn byte(&self, character: usize) -> usize {
        self.bytes.get(character).copied().unwrap_or(self.text.len())
    }

    fn span(&self, span: Span) -> Range<usize> {
        let start = self.byte(span.start.index());
        start..self.byte(span.end.index()).max(start)
    }

    fn count(&mut self, nodes: usize, span: &Range<usize>) -> Result<(), Problem> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > NODES_MAX { Err(too_many_nodes(span.clone())) } else { Ok(()) }
    }

    fn begin(
        &mut self,
        span: Range<usize>,
        anchor: usize,
        tag: Option<&Tag>,
        items: Collecting,
    ) -> Result<(), Problem> {
        self.count(1, &span)?;
        self.check_depth(1, &span)?;
        if let Some(tag) = tag {
            self.problems.push(tag_problem(tag, span.clone()));
        }
        if anchor > 0 {
            self.anchors.insert(anchor, None);
        }
        self.open.push(Open { start: span.start, anchor, items });
        Ok(())
    }

    fn check_depth(&self, more: usize, span: &Range<usize>) -> Result<(), Problem> {
        if self.open.len() + more <= json::MAX_DEPTH {
            return Ok(());
        }
        Err(Problem::at(span.clone(), format!("more than {} levels of lists and mappings", json::MAX_DEPTH)))
    }

    fn end(&mut self, span: Range<usize>) {
        let Some(open) = self.open.pop() else { return };
        let data = match open.items {
            Collecting::List(items) => Data::List(items),
            Collecting::Mapping(entries, _) => Data::Mapping(entries),
        };
        // A block collection ends where the next thing begins; a reader wants to see the collection alone.
        let end = span.end.max(open.start);
        let shown = self.text.get(open.start..end).map_or(end, |part| open.start + part.trim_end().len());
        self.add(Node { span: open.start..shown, data }, open.anchor);
    }

    fn alias(&mut self, anchor: usize, span: Range<usize>) -> Result<(), Problem> {
        let Some(Some(node)) = self.anchors.get(&anchor) else {
            return Err(Problem::at(span, "this alias stands within what it names"));
        };
        // Both bounds are checked before anything is copied.
        let (nodes, levels) = measure(node);
        let node = node.clone();
        self.count(nodes, &span)?;
        self.check_depth(levels, &span)?;
        self.add(node, 0);
        Ok(())
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
        span: Range<usize>,
    ) -> Result<(), Problem> {
        self.count(1, &span)?;
        let text_tag = tag.is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix == "str");
        if let (Some(tag), false) = (tag, text_tag) {
            self.problems.push(tag_problem(tag, span.clone()));
        }
        if self.expects_key() {
            if text == "<<" && style == ScalarStyle::Plain {
                let problem = Problem::at(span.clone(), "merge keys (`<<`) are not part of YAML 1.2");
                self.problems.push(problem.help("write the entries out"));
            }
            // A key is its text, whatever it looks like: `404:` is the key "404".
            self.add(Node { span, data: Data::String(text.to_owned()) }, anchor);
            return Ok(());
        }
        let data = if style != ScalarStyle::Plain || text_tag {
            Data::String(text.to_owned())
        } else {
            match plain(text) {
                Ok(data) => data,
                Err((message, help)) => {
                    self.problems.push(Problem::at(span.clone(), message).help(help));
                    Data::Null
                }
            }
        };
        self.add(Node { span, data }, anchor);
        Ok(())
    }

    fn expects_key(&self) -> bool {
        matches!(self.open.last(), Some(Open { items: Collecting::Mapping(_, None), .. }))
    }

    /// Put a finished node where it belongs.
    fn add(&mut self, mut node: Node, anchor: usize) {
        if anchor > 0 {
            self.anchors.insert(anchor, Some(node.clone()));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        match &mut open.items {
            Collecting::List(items) => items.push(node),
            Collecting::Mapping(_, key @ None) => match node.data {
                Data::String(text) => *key = Some((text, node.span)),
                _ => {
                    let problem = Problem::at(node.span.clone(), "a list or mapping cannot be a key");
                    self.problems.push(problem.help("an expression is text and needs quotes: \"{{ … }}\""));
                    *key = Some((String::new(), node.span));
                }
            },
            Collecting::Mapping(entries, key @ Some(_)) => {
                let Some((key, key_span)) = key.take() else { return };
                // A value that is not there has no place of its own.
                if node.span.is_empty() {
                    node.span = key_span.clone();
                }
                if entries.iter().any(|entry| entry.key == key) {
                    let problem = Problem::at(key_span, format!("`{key}` is given twice in this mapping"));
                    self.problems.push(problem.help("leave one of them out"));
                } else {
                    entries.push(Entry { key, key_span, value: node });
                }
            }
        }
    }
}

/// How many nodes there are in `node`, and how many levels of lists and mappings.
fn measure(node: &Node) -> (usize, usize) {
    let children: Vec<&Node> = match &node.data {
        Data::List(items) => items.iter().collect(),
        Data::Mapping(entries) => entries.iter().map(|entry| &entry.value).collect(),
        _ => return (1, 0),
    };
    let (nodes, levels) = children
        .into_iter()
        .map(measure)
        .fold((0usize, 0usize), |(nodes, levels), child| (nodes.saturating_add(child.0), levels.max(child.1)));
    (nodes.saturating_add(1), levels + 1)
}

fn tag_problem(tag: &Tag, span: Range<usize>) -> Problem {
    let suffix = tag.suffix.as_str();
    let shown = if tag.is_yaml_core_schema() { format!("!!{suffix}") } else { format!("!{suffix}") };
    Problem::at(span, format!("the tag `{shown}` has no meaning here")).help("write the value itself, text in quotes")
}

/// What a plain scalar means: the core schema of YAML 1.2, except where it would surprise. Else the message and the
/// help.
fn plain(text: &str) -> Result<Data, (String, String)> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Data::Null),
        "true" | "True" | "TRUE" => return Ok(Data::Bool(true)),
        "false" | "False" | "FALSE" => return Ok(Data::Bool(false)),
        _ => {}
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Err((
            format!("`{text}` is not a number that JSON can hold"),
            "write it in quotes to make it text".into(),
        ));
    }
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        let Some(digits) = text.strip_prefix(prefix) else { continue };
        if !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix)) {
            return match u64::from_str_radix(digits, radix) {
                Ok(number) => Ok(Data::Number(number.into(), text.to_owned())),
                Err(_) => Err((json::too_large(text), "64 bits is the limit for numbers".into())),
            };
        }
    }
    if !unsigned.is_empty() && unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
        if unsigned.len() > 1 && unsigned.starts_with('0') {
            let message = format!("`{text}` looks like a number and would lose its leading zeros");
            return Err((message, format!("write \"{text}\" to keep them, or the number without them")));
        }
        let literal = text.strip_prefix('+').unwrap_or(text);
        return match literal.parse::<i64>().map(Number::from).or_else(|_| literal.parse::<u64>().map(Number::from)) {
            Ok(number) => Ok(Data::Number(number, literal.to_owned())),
            Err(_) => Err((json::too_large(literal), "64 bits is the limit for numbers".into())),
        };
    }
    if is_float(unsigned) {
        return match text.parse::<f64>().ok().and_then(Number::from_f64) {
            Some(number) => Ok(Data::Number(number, text.to_owned())),
            None => {
                Err((format!("`{text}` is beyond what a double holds"), "write it in quotes to make it text".into()))
            }
        };
    }
    Ok(Data::String(text.to_owned()))
}

/// `( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?`
fn is_float(text: &str) -> bool {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['-', '+']).unwrap_or(exponent))),
        None => (text, None),
    };
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    digits(whole)
        && digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent.is_none_or(|exponent| !exponent.is_empty() && digits(exponent))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::source::Report;

    #[track_caller]
    fn check(text: &str, expected: Value) {
        match read("test.yaml", text) {
            Ok(node) => assert_eq!(node.to_value(), expected, "{text}"),
            Err(problems) => panic!("{text}\n{}", Report::unless_empty("test.yaml", text, problems).unwrap_err()),
        }
    }

    #[track_caller]
    fn check_refused(name: &str, text: &str, expected: &[&str]) {
        let problems = read(name, text).expect_err(text);
        let report = Report::unless_empty(name, text, problems).unwrap_err().to_string();
        let lines: Vec<&str> = report.lines().filter(|line| !line.starts_with("  ")).collect();
        assert_eq!(lines.len(), expected.len(), "{report}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.contains(expected), "says:     {line}\nexpected: {expected}");
        }
    }

    #[test]
    fn scalars_mean_what_a_careful_reader_expects() {
        for (text, expected) in [
            ("null", json!(null)),
            ("~", json!(null)),
            ("true", json!(true)),
            ("yes", json!("yes")),
            ("off", json!("off")),
            ("3", json!(3)),
            ("-3", json!(-3)),
            ("+3", json!(3)),
            ("0", json!(0)),
            ("0x1F", json!(31)),
            ("0o17", json!(15)),
            ("0x", json!("0x")),
            ("0b1", json!("0b1")),
            ("3544790567247868102", json!(3544790567247868102u64)),
            ("18446744073709551615", json!(18446744073709551615u64)),
            ("1.5", json!(1.5)),
            (".5", json!(0.5)),
            ("5.", json!(5.0)),
            ("1e3", json!(1000.0)),
            ("1e", json!("1e")),
            ("e3", json!("e3")),
            (".", json!(".")),
            ("-", json!([null])),
            ("1.2.3", json!("1.2.3")),
            ("1_000", json!("1_000")),
            ("12:30", json!("12:30")),
            ("2026-01-01", json!("2026-01-01")),
            ("inf", json!("inf")),
            ("\"12\"", json!("12")),
            ("'12'", json!("12")),
            ("!!str 12", json!("12")),
            ("|\n  a\n  b\n", json!("a\nb\n")),
            (">\n  a\n  b\n", json!("a b\n")),
            ("\"\\u00e9\\0\"", json!("é\0")),
            ("{404: a, true: b, ~: c}", json!({ "404": "a", "true": "b", "~": "c" })),
            ("a:\nb: 1", json!({ "a": null, "b": 1 })),
            ("a: &x {b: 1}\nc: *x", json!({ "a": { "b": 1 }, "c": { "b": 1 } })),
            ("# only\n- 1 # one\n", json!([1])),
            ("\u{feff}a: 1", json!({ "a": 1 })),
            ("{\"a\": \"\\ud83d\\ude00\",\t\"b\": 1e2}", json!({ "a": "😀", "b": 100.0 })),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn problems_of_the_text_have_line_and_column() {
        check_refused("a.yaml", "", &["the file is empty"]);
        check_refused("a.yaml", "# nothing\n", &["the file is empty"]);
        check_refused("a.yaml", "a: 1\nb: [1, 2\n", &["this is not YAML"]);
        check_refused(
            "a.yaml",
            "é: 1\nb: 007\né: 2\nc: !x 1\n",
            &["a.yaml:2:4: `007` looks like a number", "a.yaml:3:1: `é` is given twice", "a.yaml:4:4: the tag `!x`"],
        );
        check_refused(
            "a.yaml",
            "a: 99999999999999999999\nb: .inf\nc: 1e999\nd: 0xfffffffffffffffff",
            &[
                "a.yaml:1:4: the integer 99999999999999999999 does not fit 64 bits",
                "a.yaml:2:4: `.inf`",
                "a.yaml:3:4: `1e999` is beyond",
                "a.yaml:4:4: the integer 0xfffffffffffffffff does not fit",
            ],
        );
        check_refused("a.yaml", "a: 1\n---\nb: 2\n", &["a.yaml:2:1: a second document"]);
        check_refused("a.yaml", "a: &x {b: 1}\nc:\n  <<: *x\n", &["a.yaml:3:3: merge keys"]);
        check_refused("a.yaml", "? [a]\n: 1\n", &["a.yaml:1:3: a list or mapping cannot be a key"]);
        check_refused("a.yaml", "to: {{ x }}\n", &["a.yaml:1:6: a list or mapping cannot be a key"]);
        check_refused("a.yaml", "a: &x [*x]\n", &["a.yaml:1:8: this alias stands within what it names"]);
        check_refused("a.json", "{\"é\": 1,\n \"b\": }", &["a.json:2:7: this is not JSON: expected value"]);
        check_refused("a.json", "{\"a\": 1, \"a\": 2}", &["the key \"a\" is given twice"]);
        check_refused("a.json", "a: 1", &["a.json:1:1: this is not JSON"]);
        check_refused("stdin", "{\"a\": 1,\n \"a\": 2}", &["stdin:2:2: `a` is given twice"]);
    }

    #[test]
    fn depth_and_size_are_bounded_however_they_are_written() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(read("a.yaml", &nested(64)).is_ok());
        check_refused("a.yaml", &nested(65), &["a.yaml:1:65: more than 64 levels"]);
        // The parser has bounds of its own, which may be met first.
        for opening in ["[", "- ", "{a: ", "? ", "[{", "- ? "] {
            assert!(read("a.yaml", &opening.repeat(200_000)).is_err());
        }
        check_refused("a.yaml", &"x".repeat(BYTES_MAX + 1), &["a.yaml: the file has 1048577 bytes"]);
        check_refused("a.json", &format!("[{}1]", "1,".repeat(150_000)), &["more than 100000 values"]);
        check_refused("a.yaml", &format!("a:\n  [{}1]", "1,".repeat(150_000)), &["more than 100000 values"]);
    }

    #[test]
    fn aliases_cannot_multiply_without_end() {
        let mut text = "l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let previous = format!("*l{}", level - 1);
            text.push_str(&format!("l{level}: &l{level} [{}]\n", [previous.as_str(); 10].join(", ")));
        }
        check_refused("a.yaml", &text, &["more than 100000 values"]);
        let mut text = "l0: &l0 [x]\n".to_owned();
        for level in 1..80 {
            text.push_str(&format!("l{level}: &l{level} [*l{}]\n", level - 1));
        }
        check_refused("a.yaml", &text, &["more than 64 levels"]);
    }

    #[test]
    fn spans_are_of_the_value_alone() {
        #[track_caller]
        fn shown(name: &str, text: &str, key: &str, expected: &str) {
            let node = read(name, text).unwrap();
            let Data::Mapping(entries) = &node.data else { panic!("a mapping") };
            let entry = entries.iter().find(|entry| entry.key == key).unwrap();
            assert_eq!(&text[entry.value.span.clone()], expected);
            assert_eq!(text[entry.key_span.clone()].trim_matches('"'), key);
        }
        let yaml = "é: \"ä\"\nlist:\n  - a\n  - b\n\nmap: {x: 1}\nblock: |\n  text\nlast:\n  deep:\n    x: ö\n";
        shown("a.yaml", yaml, "é", "\"ä\"");
        shown("a.yaml", yaml, "map", "{x: 1}");
        shown("a.yaml", yaml, "last", "deep:\n    x: ö");
        shown("a.json", "{\"é\": [1, {\"a\" : -1.5e3}] , \"b\":true}", "é", "[1, {\"a\" : -1.5e3}]");
        shown("a.json", "{\"é\": [1, {\"a\" : -1.5e3}] , \"b\":true}", "b", "true");
    }

    #[test]
    fn numbers_keep_the_text_they_were_written_in() {
        for (name, text) in [("a.yaml", "0.10"), ("a.yaml", "1e2"), ("a.json", "0.10"), ("a.json", "-1E+2")] {
            let Data::Number(_, literal) = read(name, text).unwrap().data else { panic!("a number") };
            assert_eq!(literal, text);
        }
    }

    #[test]
    fn json_and_yaml_read_the_same_tree() {
        let value = json!({ "a": [1, -2.5, "x\n\"é", null, true, { "": [] }], "n": 3544790567247868102u64 });
        let text = value.to_string();
        assert_eq!(read("a.json", &text).unwrap().to_value(), value);
        assert_eq!(YamlReader::new(&text).read().unwrap().to_value(), value);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn no_text_panics(text in "[-:,?&*!|>'\"%@`{}\\[\\]#\\t \\n\\ra-c0-9é😀~<\\\\.\u{0}\u{feff}]{0,60}") {
            let _ = read("a.yaml", &text);
            let _ = read("a.json", &text);
        }

        #[test]
        fn any_text_is_read_or_refused(text in any::<String>()) {
            let _ = read("a.yaml", &text);
        }
    }
}
