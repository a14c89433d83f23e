//! The one gate that every JSON document passes on its way in, and the one form in which JSON is stored and hashed.
//!
//! What gets through [`parse`] is the same whatever store is behind it: valid UTF-8, no lone surrogate, integers within
//! 64 bits with every digit kept, at most [`MAX_DEPTH`] levels, no key twice, and no larger than the caller allows.
//! [`canonical`] writes a value in the one form that is hashed and compared. Paths ([`at_path`]) name places in a
//! value.
//!
//! `"\u0000"` is a valid JSON string and is kept: the canonical form stores it escaped, so that it never reaches a
//! store as a raw NUL. Only in the *message* of an error is it replaced ([`replace_nul`]).
//!
//! Nothing here performs I/O, knows a schema or changes a value.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use sha2::{Digest, Sha256};

use crate::source::line_and_column;

/// How many objects and lists may stand within each other: `[]` is one level.
pub const MAX_DEPTH: usize = 64;

/// Why a text did not pass the gate. Whoever sent the text must act; the message says how.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct JsonError {
    /// What is wrong and what to send instead, in one sentence without a final stop.
    pub message: String,
    /// The byte of the text at which it was noticed; `None` where it is about the text as a whole.
    pub offset: Option<usize>,
    /// Line and column of `offset`, both from 1, columns in characters.
    pub place: Option<(usize, usize)>,
}

impl JsonError {
    fn at(text: &str, offset: usize, message: impl Into<String>) -> JsonError {
        JsonError { message: message.into(), offset: Some(offset), place: Some(line_and_column(text, offset)) }
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some((line, column)) => write!(formatter, "line {line}, column {column}: {}", self.message),
            None => formatter.write_str(&self.message),
        }
    }
}

/// The value that `text` holds, where it passes the gate.
///
/// ```
/// use tollgate::json;
///
/// let value = json::parse(r#"{"id": 3544790567247868102}"#, 1024).unwrap();
/// assert_eq!(json::canonical(&value), r#"{"id":3544790567247868102}"#);
///
/// let refused = json::parse(r#"{"id": 35447905672478681020}"#, 1024).unwrap_err();
/// assert_eq!(
///     refused.to_string(),
///     "line 1, column 8: the integer 35447905672478681020 does not fit 64 bits: send it as text, \"35447905672478681020\"",
/// );
/// ```
///
/// # Errors
/// What is wrong, where, and what to send instead: a text of more than `bytes_max` bytes, one that is not JSON, an
/// integer beyond 64 bits, a number beyond a double, a lone surrogate, a key given twice, more than [`MAX_DEPTH`]
/// levels.
pub fn parse(text: &str, bytes_max: usize) -> Result<Value, JsonError> {
    check_size(text.len(), bytes_max)?;
    scan(text)?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    Document
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value))
        .map_err(|error| explain(text, &error))
}

/// As [`parse`], of bytes that may not even be text.
///
/// # Errors
/// As [`parse`]; and the place of the first byte that is not UTF-8.
pub fn parse_bytes(bytes: &[u8], bytes_max: usize) -> Result<Value, JsonError> {
    check_size(bytes.len(), bytes_max)?;
    match std::str::from_utf8(bytes) {
        Ok(text) => parse(text, bytes_max),
        Err(error) => {
            // What precedes the fault is valid, so its place can be counted in characters.
            let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            Err(JsonError::at(&valid, valid.len(), "this byte is not UTF-8: send the document as UTF-8 text"))
        }
    }
}

/// The one form in which a value is stored, compared and hashed: keys sorted by code point, no white space, integers as
/// digits, floats as the shortest text that reads back as the same number.
pub fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write_canonical(value, &mut text);
    text
}

/// The SHA-256 digest of the canonical form, in lower-case hexadecimal.
pub fn hash(value: &Value) -> String {
    hex::encode(Sha256::digest(canonical(value).as_bytes()))
}

/// The text with every NUL replaced by U+FFFD, so that a message about bad input can be stored anywhere.
pub fn replace_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{FFFD}")) } else { Cow::Borrowed(text) }
}

/// The value at `path`: `to`, `items[0].price`, `["an odd key"].x`; the empty path is the whole value.
///
/// `None` where nothing stands there, and where `path` is not a path.
///
/// ```
/// let value = serde_json::json!({ "items": [{ "price": 3 }] });
/// assert_eq!(tollgate::json::at_path(&value, "items[0].price"), Some(&serde_json::json!(3)));
/// assert_eq!(tollgate::json::at_path(&value, "items[1].price"), None);
/// ```
pub fn at_path<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    let mut at = value;
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(bracket) = rest.strip_prefix('[') {
            if bracket.starts_with('"') {
                let mut keys = serde_json::Deserializer::from_str(bracket).into_iter::<String>();
                let key = keys.next()?.ok()?;
                rest = bracket.get(keys.byte_offset()..)?.strip_prefix(']')?;
                at = at.as_object()?.get(&key)?;
            } else {
                let (index, after) = bracket.split_once(']')?;
                // `parse` alone would take a sign.
                if !index.bytes().all(|byte| byte.is_ascii_digit()) {
                    return None;
                }
                at = at.as_array()?.get(index.parse::<usize>().ok()?)?;
                rest = after;
            }
        } else {
            let bare = if rest.len() == path.len() { rest } else { rest.strip_prefix('.')? };
            let end = bare.find(['.', '[']).unwrap_or(bare.len());
            let (key, after) = bare.split_at(end);
            if key.is_empty() {
                return None;
            }
            at = at.as_object()?.get(key)?;
            rest = after;
        }
    }
    Some(at)
}

/// Extend `path` by a key of an object: `.key`, `key` where the path was empty, `["an odd key"]` where the key is not
/// made of letters, digits, `_` and `-` alone, beginning with a letter or `_`.
pub fn push_key(path: &mut String, key: &str) {
    let plain = key.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && key.chars().all(|other| other.is_ascii_alphanumeric() || other == '_' || other == '-');
    if plain {
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
    } else {
        path.push('[');
        write_string(key, path);
        path.push(']');
    }
}

/// Extend `path` by a position in a list, from 0: `[3]`.
pub fn push_index(path: &mut String, index: usize) {
    path.push('[');
    path.push_str(&index.to_string());
    path.push(']');
}

fn check_size(bytes: usize, bytes_max: usize) -> Result<(), JsonError> {
    if bytes <= bytes_max {
        return Ok(());
    }
    let message = format!("the document has {bytes} bytes and at most {bytes_max} are accepted here: send less");
    Err(JsonError { message, offset: None, place: None })
}

/// What serde_json would not refuse, or not with the right advice: integers that it would turn into floats, and depth.
/// Tolerant of anything else, which the parser proper reports.
fn scan(text: &str) -> Result<(), JsonError> {
    let bytes = text.as_bytes();
    let mut depth = 0usize;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at = end_of_string(bytes, at);
                continue;
            }
            b'[' | b'{' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    let message = format!("more than {MAX_DEPTH} levels of lists and objects: send a flatter document");
                    return Err(JsonError::at(text, at, message));
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'-' | b'0'..=b'9' => {
                let end = end_of_number(bytes, at);
                check_integer(text, at..end)?;
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

/// The byte after the string that opens at `start`, or the end of the text.
pub(crate) fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The byte after the number that starts at `start`.
pub(crate) fn end_of_number(bytes: &[u8], start: usize) -> usize {
    let belongs = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    bytes[start..].iter().position(|byte| !belongs(byte)).map_or(bytes.len(), |length| start + length)
}

fn check_integer(text: &str, span: std::ops::Range<usize>) -> Result<(), JsonError> {
    let literal = &text[span.clone()];
    let digits = literal.strip_prefix('-').unwrap_or(literal);
    let whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !whole || literal.parse::<i64>().is_ok() || literal.parse::<u64>().is_ok() {
        return Ok(());
    }
    Err(JsonError::at(text, span.start, too_large(literal)))
}

/// The one sentence about an integer beyond 64 bits.
pub(crate) fn too_large(literal: &str) -> String {
    if literal.len() > 80 {
        return format!("an integer of {} digits does not fit 64 bits: send it as text, in quotes", literal.len());
    }
    format!("the integer {literal} does not fit 64 bits: send it as text, \"{literal}\"")
}

fn explain(text: &str, error: &serde_json::Error) -> JsonError {
    let full = error.to_string();
    let message = full.rsplit_once(" at line ").map_or(full.as_str(), |(message, _)| message);
    let message = if message.contains("surrogate") || message == "unexpected end of hex escape" {
        "half a surrogate pair in a `\\u` escape is not a character: send both halves or neither".to_owned()
    } else if message == "number out of range" {
        "this number is beyond what a double holds: send it as text, in quotes".to_owned()
    } else if error.is_eof() {
        format!("the JSON ends too early: {message}")
    } else if error.is_data() {
        message.to_owned()
    } else {
        format!("this is not JSON: {message}")
    };
    // The parser counts lines from 1 and columns in bytes; a column of 0 is the line break itself.
    let line_start = match error.line() {
        0 | 1 => 0,
        line => text.match_indices('\n').nth(line - 2).map_or(text.len(), |(at, _)| at + 1),
    };
    let offset = if error.is_eof() { text.len() } else { line_start + error.column().saturating_sub(1) };
    JsonError::at(text, offset.min(text.len()), message)
}

fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(true) => text.push_str("true"),
        Value::Bool(false) => text.push_str("false"),
        Value::Number(number) => text.push_str(&number.to_string()),
        Value::String(string) => write_string(string, text),
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_canonical(item, text);
            }
            text.push(']');
        }
        Value::Object(map) => {
            // Sorted here: whether the map type keeps order is decided by whichever crate asks serde_json for it.
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            text.push('{');
            for (index, (key, item)) in entries.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_string(key, text);
                text.push(':');
                write_canonical(item, text);
            }
            text.push('}');
        }
    }
}

fn write_string(string: &str, text: &mut String) {
    text.push_str(&Value::from(string).to_string());
}

/// Reads a value as serde_json does, and refuses a key that an object has already.
struct Document;

impl<'de> DeserializeSeed<'de> for Document {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Document {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(Document)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                let key = Value::from(key);
                return Err(A::Error::custom(format!("the key {key} is given twice in one object: leave one out")));
            }
            map.insert(key, access.next_value_seed(Document)?);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check_accepted(text: &str, expected: &str) {
        let value = parse(text, 1 << 20).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(canonical(&value), expected);
        assert_eq!(parse_bytes(text.as_bytes(), 1 << 20).unwrap(), value);
        assert_eq!(parse(&canonical(&value), 1 << 20).unwrap(), value, "the canonical form reads back");
    }

    #[track_caller]
    fn check_refused(text: &str, expected: &str) {
        let error = parse(text, 1 << 20).expect_err(text);
        assert!(error.to_string().contains(expected), "{text}\n  says:     {error}\n  expected: {expected}");
    }

    #[test]
    fn accepted_texts_in_canonical_form() {
        for (text, expected) in [
            ("null", "null"),
            (" [ ] ", "[]"),
            (r#"{"b": 1, "a": [true, false]}"#, r#"{"a":[true,false],"b":1}"#),
            (r#"{"z": 1, "é": 2, "Z": 3, "😀": 4, "": 5}"#, r#"{"":5,"Z":3,"z":1,"é":2,"😀":4}"#),
            // Every digit of a 64-bit integer survives.
            ("3544790567247868102", "3544790567247868102"),
            ("9223372036854775807", "9223372036854775807"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("18446744073709551615", "18446744073709551615"),
            ("0.1", "0.1"),
            ("1.0", "1.0"),
            ("1e3", "1000.0"),
            ("0.30000000000000004", "0.30000000000000004"),
            ("5e-324", "5e-324"),
            // NUL is a character like any other, and never raw in what is stored.
            (r#""\u0000""#, r#""\u0000""#),
            (r#""\ud83d\ude00""#, "\"😀\""),
            (r#""\/\"\\\n""#, r#""/\"\\\n""#),
            (r#"{"a": "[[[[ 99999999999999999999 {"}"#, r#"{"a":"[[[[ 99999999999999999999 {"}"#),
        ] {
            check_accepted(text, expected);
        }
    }

    #[test]
    fn refused_texts_say_where_and_what_to_do() {
        for (text, expected) in [
            ("", "line 1, column 1: the JSON ends too early"),
            ("{\"a\": 1,\n \"b\": }", "line 2, column 7: this is not JSON: expected value"),
            ("{\"é\": 1,\n \"é\": 2}", "line 2, column 4: the key \"é\" is given twice in one object"),
            ("[1] 2", "line 1, column 5: this is not JSON: trailing characters"),
            ("[1,]", "this is not JSON: trailing comma"),
            ("18446744073709551616", "the integer 18446744073709551616 does not fit 64 bits: send it as text"),
            ("[\n  -9223372036854775809]", "line 2, column 3: the integer -9223372036854775809 does not fit 64 bits"),
            (&"9".repeat(500), "an integer of 500 digits does not fit 64 bits"),
            ("1e999", "beyond what a double holds: send it as text"),
            (r#""\ud800""#, "half a surrogate pair"),
            (r#""\ud800\u0041""#, "half a surrogate pair"),
            (r#""\udc00""#, "half a surrogate pair"),
            ("NaN", "this is not JSON"),
            ("-", "line 1, column 2: the JSON ends too early"),
            ("01", "invalid number"),
            ("'a'", "this is not JSON"),
            ("\"a\nb\"", "control character"),
            ("\"open", "the JSON ends too early"),
            ("\"open\\", "the JSON ends too early"),
        ] {
            check_refused(text, expected);
        }
    }

    #[test]
    fn depth_of_64_passes_and_65_does_not() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(parse(&nested(64), 1 << 20).is_ok());
        check_refused(&nested(65), "line 1, column 65: more than 64 levels");
        check_refused(&"[".repeat(1 << 19), "more than 64 levels");
        check_refused(&"{\"a\":".repeat(65), "more than 64 levels");
    }

    #[test]
    fn size_is_checked_before_anything_else() {
        assert!(parse("[1]", 3).is_ok());
        let error = parse("[1] ", 3).unwrap_err();
        assert_eq!(error.to_string(), "the document has 4 bytes and at most 3 are accepted here: send less");
        assert_eq!(parse_bytes(&[0xff; 4], 3).unwrap_err().place, None);
    }

    #[test]
    fn bytes_that_are_not_utf8_are_named_by_place() {
        let error = parse_bytes(b"{\n\"\xc3\xa9\xff\": 1}", 100).unwrap_err();
        assert_eq!(error.place, Some((2, 3)));
        assert!(error.to_string().contains("not UTF-8"));
        // CESU-8: a surrogate written as bytes.
        assert!(parse_bytes(b"\"\xed\xa0\x80\"", 100).is_err());
    }

    #[test]
    fn hash_is_of_the_canonical_form() {
        let a = parse(r#"{"b":1,"a":2}"#, 100).unwrap();
        let b = parse(r#"{ "a": 2, "b": 1 }"#, 100).unwrap();
        assert_eq!(hash(&a), hash(&b));
        assert_eq!(hash(&json!({})), "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
        assert_ne!(hash(&json!(1)), hash(&json!("1")));
        assert_ne!(hash(&json!(1)), hash(&json!(1.0)));
    }

    #[test]
    fn nul_in_a_message_is_replaced() {
        assert_eq!(replace_nul("a\0b\0"), "a\u{FFFD}b\u{FFFD}");
        assert!(matches!(replace_nul("plain"), Cow::Borrowed("plain")));
    }

    #[test]
    fn paths_find_what_they_name() {
        let value = json!({
            "to": "x", "items": [{ "price": 3, "tags": [["t"]] }], "odd key": { "x": 1 }, "a\"]b": 2, "": 4, "0": 5,
            "dash-ed": 6, "a.b": 7,
        });
        for (path, expected) in [
            ("", Some(value.clone())),
            ("to", Some(json!("x"))),
            ("items[0].price", Some(json!(3))),
            ("items[0].tags[0][0]", Some(json!("t"))),
            ("[\"odd key\"].x", Some(json!(1))),
            ("[\"odd key\"][\"x\"]", Some(json!(1))),
            ("[\"a\\\"]b\"]", Some(json!(2))),
            ("[\"\"]", Some(json!(4))),
            ("0", Some(json!(5))),
            ("dash-ed", Some(json!(6))),
            ("[\"a.b\"]", Some(json!(7))),
            ("missing", None),
            ("to.x", None),
            ("items[1]", None),
            ("items[+0]", None),
            ("items[-1]", None),
            ("items[99999999999999999999999]", None),
            ("items[0", None),
            ("items[]", None),
            ("items.0", None),
            (".to", None),
            ("to.", None),
            ("items[0]price", None),
            ("a..b", None),
            ("[\"odd key\"", None),
            ("[\"odd key", None),
            ("[", None),
            ("é", None),
        ] {
            assert_eq!(at_path(&value, path).cloned(), expected, "{path}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_filter("finite", |float| float.is_finite()).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// Every place of a value with the path that the helpers build for it.
    fn places(value: &Value, path: String, found: &mut Vec<(String, Value)>) {
        match value {
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let mut deeper = path.clone();
                    push_index(&mut deeper, index);
                    places(item, deeper, found);
                }
            }
            Value::Object(map) => {
                for (key, item) in map {
                    let mut deeper = path.clone();
                    push_key(&mut deeper, key);
                    places(item, deeper, found);
                }
            }
            _ => {}
        }
        found.push((path, value.clone()));
    }

    proptest! {
        #[test]
        fn canonical_form_is_a_fixed_point(value in any_json()) {
            let text = canonical(&value);
            let again = parse(&text, usize::MAX).unwrap();
            prop_assert_eq!(&again, &value);
            prop_assert_eq!(canonical(&again), text);
        }

        #[test]
        fn built_paths_find_their_place(value in any_json()) {
            let mut found = Vec::new();
            places(&value, String::new(), &mut found);
            for (path, expected) in found {
                prop_assert_eq!(at_path(&value, &path), Some(&expected), "{}", path);
            }
        }

        #[test]
        fn no_text_panics(text in any::<String>(), bytes in any::<Vec<u8>>()) {
            let _ = parse(&text, 1 << 20);
            let _ = parse_bytes(&bytes, 1 << 20);
            let _ = at_path(&Value::Null, &text);
        }
    }
}
