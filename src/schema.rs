//! JSON Schemas: does one compile, and does a value fit it. For workflow parameters, action configurations and outputs.
//!
//! Schemas come from strangers, so they are held to bounds: nothing is ever fetched (a reference outside the schema is
//! an error), patterns that backtrack are cut off, and a schema whose references multiply is refused before it is
//! compiled. `format` is an annotation, as the draft says, unless the schema names a draft in which it is not.
//!
//! Nothing here performs I/O, and nothing here changes a value: defaults in a schema are not filled in.

mod shape;

use std::fmt;
use std::sync::{Arc, OnceLock};

use jsonschema::paths::LocationSegment;
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use crate::json;

/// How many problems of one value are reported; the rest are counted.
const PROBLEMS_MAX: usize = 20;
/// How much a pattern may backtrack in one match.
const BACKTRACK_MAX: usize = 100_000;
/// How many bytes a compiled pattern may take.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// How many characters of a value an error message quotes.
const QUOTED_CHARS_MAX: usize = 200;

/// One place at which a value does not fit its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaProblem {
    /// The place in the value, as in [`json::at_path`]: `items[0].price`; empty for the whole value.
    pub path: String,
    /// What does not fit, in one sentence without a final stop.
    pub message: String,
}

impl fmt::Display for SchemaProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => formatter.write_str(&self.message),
            path => write!(formatter, "{path}: {}", self.message),
        }
    }
}

/// Whether `schema` is a JSON Schema that can be used: draft 2020-12 unless its `$schema` says otherwise.
///
/// # Errors
/// What is wrong with it and where, in one sentence for its author.
pub fn check_schema(schema: &Value) -> Result<(), String> {
    compile(schema).map(drop)
}

/// Whether `instance` fits `schema`.
///
/// ```
/// use serde_json::json;
///
/// let schema = json!({ "type": "object", "properties": { "to": { "type": "string" } }, "required": ["to"] });
/// assert!(tollgate::schema::validate(&schema, &json!({ "to": "ada@example.com" })).is_ok());
/// let problems = tollgate::schema::validate(&schema, &json!({ "to": 1 })).unwrap_err();
/// assert_eq!(problems[0].to_string(), "to: 1 is not of type \"string\"");
/// ```
///
/// # Errors
/// Every place that does not fit (the first 20, and how many more there are), in the order of the schema. A schema that
/// does not compile is one problem of the whole value.
pub fn validate(schema: &Value, instance: &Value) -> Result<(), Vec<SchemaProblem>> {
    match Schema::compile(schema) {
        Ok(schema) => schema.validate(instance),
        Err(message) => {
            let message = format!("its schema cannot be used: {message}");
            Err(vec![SchemaProblem { path: String::new(), message }])
        }
    }
}

/// A schema made ready once, for a caller that checks many values against it.
#[derive(Debug)]
pub struct Schema {
    validator: Validator,
}

impl Schema {
    /// Make `schema` ready; see [`check_schema`] for what is accepted.
    ///
    /// # Errors
    /// As [`check_schema`].
    pub fn compile(schema: &Value) -> Result<Schema, String> {
        compile(schema).map(|validator| Schema { validator })
    }

    /// Whether `instance` fits.
    ///
    /// # Errors
    /// As [`validate`].
    pub fn validate(&self, instance: &Value) -> Result<(), Vec<SchemaProblem>> {
        let mut problems = Vec::new();
        let mut more = 0usize;
        for error in self.validator.iter_errors(instance) {
            if problems.len() == PROBLEMS_MAX {
                more += 1;
                continue;
            }
            let path = dotted(error.instance_path().segments());
            problems.push(SchemaProblem { path, message: bounded(&error.to_string()) });
        }
        if more > 0 {
            problems.push(SchemaProblem { path: String::new(), message: format!("and {more} more problems") });
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

/// A schema made ready when it is first used, which costs many times what checking a value does. Clones share it.
#[derive(Clone, Default)]
pub struct Prepared {
    made_of: Arc<OnceLock<(Value, Result<Schema, String>)>>,
}

impl Prepared {
    /// As [`validate`]. Meant to be asked about one schema always; about another one it is right too, and slow.
    ///
    /// # Errors
    /// As [`validate`].
    pub fn validate(&self, schema: &Value, instance: &Value) -> Result<(), Vec<SchemaProblem>> {
        let (made_of, ready) = self.made_of.get_or_init(|| (schema.clone(), Schema::compile(schema)));
        match ready {
            Ok(ready) if made_of == schema => ready.validate(instance),
            _ => validate(schema, instance),
        }
    }
}

/// What is ready says nothing that the schema itself does not.
impl PartialEq for Prepared {
    fn eq(&self, _other: &Prepared) -> bool {
        true
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Prepared")
    }
}

fn compile(schema: &Value) -> Result<Validator, String> {
    shape::check_shape(schema)?;
    let patterns = PatternOptions::fancy_regex().backtrack_limit(BACKTRACK_MAX).size_limit(PATTERN_BYTES_MAX);
    jsonschema::options().offline().with_pattern_options(patterns).build(schema).map_err(|error| {
        let path = dotted(error.instance_path().segments());
        let message = bounded(&error.to_string());
        if path.is_empty() { message } else { format!("{path}: {message}") }
    })
}

fn dotted<'a>(segments: impl Iterator<Item = LocationSegment<'a>>) -> String {
    let mut path = String::new();
    for segment in segments {
        match segment {
            LocationSegment::Property(key) => json::push_key(&mut path, &key),
            LocationSegment::Index(index) => json::push_index(&mut path, index),
        }
    }
    path
}

/// A message may quote the value at fault, which can be large, and it must be possible to store it.
fn bounded(message: &str) -> String {
    let message = json::replace_nul(message);
    match message.char_indices().nth(QUOTED_CHARS_MAX * 2) {
        None => message.into_owned(),
        Some(_) => {
            let head: String = message.chars().take(QUOTED_CHARS_MAX).collect();
            let tail: Vec<char> = message.chars().rev().take(QUOTED_CHARS_MAX).collect();
            format!("{head} … {}", tail.into_iter().rev().collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(schema: Value, instance: Value, expected: &[&str]) {
        let problems = match validate(&schema, &instance) {
            Ok(()) => Vec::new(),
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(problems, expected, "{schema} {instance}");
    }

    #[track_caller]
    fn check_unusable(schema: Value, expected: &str) {
        let message = check_schema(&schema).expect_err(&schema.to_string());
        assert!(message.contains(expected), "{schema}\n  says:     {message}\n  expected: {expected}");
    }

    #[test]
    fn problems_name_their_place_all_at_once() {
        let schema = json!({
            "type": "object",
            "required": ["to", "subject"],
            "properties": {
                "to": { "type": "string" },
                "items": { "type": "array", "items": { "type": "object", "properties": { "odd key": { "minimum": 3 } } } },
            },
            "additionalProperties": false,
        });
        check(
            schema.clone(),
            json!({ "to": "a", "subject": "b" }),
            &["Additional properties are not allowed ('subject' was unexpected)"],
        );
        let problems = validate(&schema, &json!({ "to": 1, "items": [{}, { "odd key": 2 }] })).unwrap_err();
        let mut lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        lines.sort();
        assert_eq!(
            lines,
            [
                "\"subject\" is a required property",
                "items[1][\"odd key\"]: 2 is less than the minimum of 3",
                "to: 1 is not of type \"string\"",
            ]
        );
    }

    #[test]
    fn integers_of_64_bits_are_compared_exactly() {
        let schema = json!({ "const": 3544790567247868102u64 });
        check(schema.clone(), json!(3544790567247868102u64), &[]);
        assert!(validate(&schema, &json!(3544790567247868103u64)).is_err());
    }

    #[test]
    fn a_schema_may_be_true_or_false() {
        check(json!(true), json!({ "any": "thing" }), &[]);
        assert!(validate(&json!(false), &json!(1)).is_err());
    }

    #[test]
    fn unusable_schemas_say_why() {
        check_unusable(json!({ "type": "strin" }), "type: ");
        check_unusable(json!({ "type": "string", "pattern": "(" }), "pattern");
        check_unusable(json!(3), "3 is not of types");
        check_unusable(json!({ "properties": { "a": { "minimum": "x" } } }), "properties.a.minimum");
        check_unusable(json!({ "$ref": "#/$defs/absent" }), "leads nowhere");
    }

    #[test]
    fn nothing_is_ever_fetched() {
        for reference in ["https://example.com/schema.json", "file:///etc/passwd", "other.json", "//example.com/x"] {
            check_unusable(json!({ "properties": { "a": { "$ref": reference } } }), "nothing is fetched");
        }
        check_unusable(json!({ "$schema": "https://example.com/draft" }), "");
        check_unusable(json!({ "$defs": { "a": { "$id": "https://example.com/a" } } }), "`$id` below the root");
        assert!(check_schema(&json!({ "$ref": "https://json-schema.org/draft/2020-12/schema" })).is_ok());
    }

    #[test]
    fn recursive_schemas_work() {
        let tree = json!({
            "$ref": "#/%24defs/node",
            "$defs": { "node": { "type": "object", "properties": { "left": { "$ref": "#/$defs/node" } } } },
        });
        check(tree, json!({ "left": { "left": 3 } }), &["left.left: 3 is not of type \"object\""]);
        for endless in [
            json!({ "$ref": "#" }),
            json!({ "allOf": [{ "$ref": "#" }] }),
            json!({ "$dynamicAnchor": "x", "allOf": [{ "$dynamicRef": "#x" }] }),
        ] {
            check(endless, json!(1), &[]);
        }
    }

    #[test]
    fn references_that_multiply_are_refused_before_they_are_followed() {
        let bomb = |link: &dyn Fn(usize) -> String, part: &dyn Fn(usize, Value) -> Value| {
            let mut definitions = serde_json::Map::new();
            for level in 0..40 {
                let next = json!({ "$ref": link(level + 1) });
                definitions.insert(format!("d{level}"), part(level, json!([next.clone(), next])));
            }
            definitions.insert("d40".to_owned(), part(40, json!([true])));
            json!({ "$ref": link(0), "$defs": definitions })
        };
        check_unusable(bomb(&|level| format!("#/$defs/d{level}"), &|_, all| json!({ "allOf": all })), "20000 parts");
        check_unusable(
            bomb(&|level| format!("#d{level}"), &|level, all| json!({ "$anchor": format!("d{level}"), "allOf": all })),
            "20000 parts",
        );
        check_unusable(
            bomb(
                &|level| format!("#/$defs/d{level}"),
                &|_, all| json!({ "properties": { "default": { "anyOf": all } } }),
            ),
            "20000 parts",
        );
    }

    #[test]
    fn recursion_that_doubles_at_each_level_is_refused_and_trees_are_not() {
        let back = json!({ "$ref": "#" });
        let twice = json!({ "allOf": [back, back] });
        for schema in [
            json!({ "properties": { "c": twice } }),
            json!({ "additionalProperties": twice }),
            json!({ "items": twice }),
            json!({ "prefixItems": [twice] }),
            json!({ "items": back, "contains": back }),
            json!({ "properties": { "c": back }, "patternProperties": { "^c": back } }),
            json!({ "anyOf": [{ "items": back }, { "items": back }] }),
            json!({ "if": { "properties": { "c": back } }, "then": { "properties": { "c": back } } }),
            json!({ "allOf": [{ "properties": { "c": back } }, { "additionalProperties": back }] }),
            json!({ "properties": { "c": { "$ref": "#/$defs/a" } }, "$defs": { "a": { "oneOf": [back, { "not": back }] } } }),
            // The same place one level down and two levels down: as the rabbits of Fibonacci.
            json!({ "properties": { "c": { "allOf": [back, { "properties": { "c": back } }] } } }),
            json!({ "$dynamicAnchor": "x", "items": { "allOf": [{ "$dynamicRef": "#x" }, { "$dynamicRef": "#x" }] } }),
        ] {
            check_unusable(schema, "double the work");
        }
        for schema in [
            json!({ "properties": { "left": back, "right": back } }),
            json!({ "properties": { "children": { "items": back } }, "additionalProperties": back }),
            json!({ "prefixItems": [back, back], "items": back }),
            // One, or a list of them.
            json!({ "properties": { "c": { "anyOf": [back, { "items": back }] } } }),
            json!({ "anyOf": [{ "type": "string" }, { "items": back }, { "additionalProperties": back }] }),
            json!({ "oneOf": [{ "properties": { "and": { "items": back } } }, { "properties": { "or": { "items": back } } }] }),
            json!({ "allOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/a" }], "$defs": { "a": { "items": { "type": "null" } } } }),
        ] {
            check_schema(&schema).unwrap_or_else(|message| panic!("{schema}: {message}"));
        }
    }

    /// On the stack of a test, which is that of a worker.
    #[test]
    fn chains_are_followed_up_to_their_bound_and_no_further() {
        let chain = |length: usize| {
            let mut definitions = serde_json::Map::new();
            for level in 0..length {
                definitions
                    .insert(format!("d{level}"), json!({ "items": { "$ref": format!("#/$defs/d{}", level + 1) } }));
            }
            definitions.insert(format!("d{length}"), json!({ "type": "string" }));
            json!({ "$ref": "#/$defs/d0", "$defs": definitions })
        };
        check_unusable(chain(100), "more than 200 deep");
        let mut instance = json!(1);
        for _ in 0..63 {
            instance = json!([instance]);
        }
        check(chain(64), instance.clone(), &[]);
        let list =
            json!({ "$defs": { "l": { "items": { "$ref": "#/$defs/l" }, "type": "array" } }, "$ref": "#/$defs/l" });
        let path = "[0]".repeat(63);
        check(list, instance, &[&format!("{path}: 1 is not of type \"array\"")]);
    }

    #[test]
    fn a_pattern_that_backtracks_without_end_is_cut_off() {
        let schema = json!({ "pattern": "^(a+)+(?=b)$" });
        let start = std::time::Instant::now();
        assert!(validate(&schema, &json!("a".repeat(60))).is_err());
        assert!(start.elapsed().as_secs() < 10);
    }

    #[test]
    fn messages_are_bounded_and_can_be_stored() {
        let problems =
            validate(&json!({ "type": "integer" }), &json!(format!("\0{}", "x".repeat(100_000)))).unwrap_err();
        assert!(problems[0].message.len() < 1000, "{}", problems[0].message.len());
        assert!(problems[0].message.ends_with("is not of type \"integer\""));
        let many = validate(&json!({ "items": { "type": "integer" } }), &json!(vec!["x"; 100])).unwrap_err();
        assert_eq!(many.len(), 21);
        assert_eq!(many[20].message, "and 80 more problems");
    }
}
