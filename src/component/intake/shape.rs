//! Types as WIT writes them, and the differences between two of them in words.
//!
//! Pure. Where a type comes from is not its concern: `interface` makes the expected ones, `found` those of a component.

use std::fmt;

use crate::policy::reader::{listed, nearest};

/// The longest that a type without a name is written.
const TEXT_CHARS_MAX: usize = 240;
/// How many differences of one function are named.
const DIFFERENCES_MAX: usize = 5;

/// A function's type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Signature {
    pub params: Vec<(String, Shape)>,
    pub result: Option<Shape>,
}

/// A type, and the name under which WIT knows it, if any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    pub name: Option<String>,
    pub kind: Kind,
}

/// A type's structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Primitive(String),
    Record(Vec<(String, Shape)>),
    Variant(Vec<(String, Option<Shape>)>),
    Enum(Vec<String>),
    Flags(Vec<String>),
    Tuple(Vec<Shape>),
    List(Box<Shape>),
    Option(Box<Shape>),
    Result(Option<Box<Shape>>, Option<Box<Shape>>),
    /// Of the resource of this name; `None` where it has none that can be known, which is like any.
    Own(Option<String>),
    Borrow(Option<String>),
    /// Nothing that this version of the interface has, in words.
    Other(String),
}

impl Shape {
    pub fn plain(kind: Kind) -> Shape {
        Shape { name: None, kind }
    }
}

/// What is different, with the place of it; empty where a host that expects one can serve the other.
pub(super) fn differences(expected: &Signature, found: &Signature) -> Vec<String> {
    let mut notes = Vec::new();
    if expected.params.len() != found.params.len() {
        let count = |params: &[_]| match params.len() {
            1 => "1 parameter".to_owned(),
            count => format!("{count} parameters"),
        };
        notes.push(format!("found {}, expected {}", count(&found.params), count(&expected.params)));
    } else {
        for ((expected_name, expected), (name, found)) in expected.params.iter().zip(&found.params) {
            if expected_name != name {
                notes.push(format!("parameter `{name}`: expected its name to be `{expected_name}`"));
            }
            compare(expected, found, &format!("parameter `{name}`"), &mut notes);
        }
    }
    match (&expected.result, &found.result) {
        (None, None) => {}
        (Some(expected), Some(found)) => compare(expected, found, "the result", &mut notes),
        (Some(expected), None) => notes.push(format!("the result: found none, expected `{expected}`")),
        (None, Some(found)) => notes.push(format!("the result: found `{found}`, expected none")),
    }
    notes.truncate(DIFFERENCES_MAX);
    notes
}

fn compare(expected: &Shape, found: &Shape, at: &str, notes: &mut Vec<String>) {
    if notes.len() >= DIFFERENCES_MAX {
        return;
    }
    match (&expected.kind, &found.kind) {
        (Kind::Primitive(one), Kind::Primitive(two)) if one == two => {}
        (Kind::Record(one), Kind::Record(two)) => {
            members("field", &names(one), &names(two), &within(at, found), notes);
            for (name, expected) in one {
                if let Some((_, found_field)) = two.iter().find(|(other, _)| other == name) {
                    compare(expected, found_field, &format!("{}, field `{name}`", within(at, found)), notes);
                }
            }
        }
        (Kind::Variant(one), Kind::Variant(two)) => {
            members("case", &names(one), &names(two), &within(at, found), notes);
            for (name, expected) in one {
                let Some((_, payload)) = two.iter().find(|(other, _)| other == name) else { continue };
                let at = format!("{}, case `{name}`", within(at, found));
                payloads(expected.as_ref(), payload.as_ref(), &at, notes);
            }
        }
        (Kind::Enum(one), Kind::Enum(two)) => members("case", &refs(one), &refs(two), &within(at, found), notes),
        (Kind::Flags(one), Kind::Flags(two)) => members("flag", &refs(one), &refs(two), &within(at, found), notes),
        (Kind::Tuple(one), Kind::Tuple(two)) if one.len() == two.len() => {
            for (index, (expected, found)) in one.iter().zip(two).enumerate() {
                compare(expected, found, &format!("{at}, item {index}"), notes);
            }
        }
        (Kind::List(one), Kind::List(two)) => compare(one, two, &format!("{at}, an item of the list"), notes),
        (Kind::Option(one), Kind::Option(two)) => compare(one, two, &format!("{at}, where it is some"), notes),
        (Kind::Result(ok, err), Kind::Result(found_ok, found_err)) => {
            payloads(ok.as_deref(), found_ok.as_deref(), &format!("{at}, where it is ok"), notes);
            payloads(err.as_deref(), found_err.as_deref(), &format!("{at}, where it is err"), notes);
        }
        (Kind::Own(one), Kind::Own(two)) | (Kind::Borrow(one), Kind::Borrow(two))
            if one.is_none() || two.is_none() || one == two => {}
        _ => {
            // Two types of one name are told apart by what they are.
            let same = expected.to_string() == found.to_string();
            let say = |shape: &Shape| if same { shape.kind.to_string() } else { shape.to_string() };
            notes.push(format!("{at}: found `{}`, expected `{}`", say(found), say(expected)));
        }
    }
}

fn payloads(expected: Option<&Shape>, found: Option<&Shape>, at: &str, notes: &mut Vec<String>) {
    match (expected, found) {
        (None, None) => {}
        (Some(expected), Some(found)) => compare(expected, found, at, notes),
        (Some(expected), None) => notes.push(format!("{at}: found nothing, expected `{expected}`")),
        (None, Some(found)) => notes.push(format!("{at}: found `{found}`, expected nothing")),
    }
}

/// `the result`, or `the result, a planned`, where the type has a name that helps.
fn within(at: &str, shape: &Shape) -> String {
    match &shape.name {
        Some(name) => format!("{at}, `{name}`"),
        None => at.to_owned(),
    }
}

fn names<T>(members: &[(String, T)]) -> Vec<&str> {
    members.iter().map(|(name, _)| name.as_str()).collect()
}

fn refs(members: &[String]) -> Vec<&str> {
    members.iter().map(String::as_str).collect()
}

/// Compares the names of fields, cases or flags.
fn members(what: &str, expected: &[&str], found: &[&str], at: &str, notes: &mut Vec<String>) {
    let unknown: Vec<&str> = found.iter().copied().filter(|name| !expected.contains(name)).collect();
    let mut missing: Vec<&str> = expected.iter().copied().filter(|name| !found.contains(name)).collect();
    for name in unknown.iter().take(DIFFERENCES_MAX) {
        match nearest(name, &missing) {
            Some(meant) => {
                notes.push(format!("{at}: found the {what} `{name}`, expected `{meant}`"));
                missing.retain(|name| *name != meant);
            }
            None => notes.push(format!("{at}: found the {what} `{name}`, which is not expected")),
        }
    }
    if !missing.is_empty() {
        notes.push(format!("{at}: the {what} {} is missing", listed(&missing)));
    }
    if unknown.is_empty() && missing.is_empty() && expected != found {
        notes.push(format!("{at}: found the order {}, expected {}", found.join(", "), expected.join(", ")));
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("func(")?;
        for (index, (name, shape)) in self.params.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(formatter, "{comma}{name}: {shape}")?;
        }
        formatter.write_str(")")?;
        match &self.result {
            Some(shape) => write!(formatter, " -> {shape}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "{}", self.kind),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text();
        match text.char_indices().nth(TEXT_CHARS_MAX) {
            Some((end, _)) => write!(formatter, "{}…", &text[..end]),
            None => formatter.write_str(&text),
        }
    }
}

impl Kind {
    fn text(&self) -> String {
        let many = |shapes: &[Shape]| shapes.iter().map(Shape::to_string).collect::<Vec<_>>().join(", ");
        let of = |payload: Option<&Shape>| payload.map_or_else(|| "_".to_owned(), Shape::to_string);
        match self {
            Kind::Primitive(text) | Kind::Other(text) => text.clone(),
            Kind::Record(fields) => {
                let fields: Vec<String> = fields.iter().map(|(name, shape)| format!("{name}: {shape}")).collect();
                format!("record {{ {} }}", fields.join(", "))
            }
            Kind::Variant(cases) => {
                let cases: Vec<String> = cases
                    .iter()
                    .map(|(name, payload)| {
                        payload.as_ref().map_or_else(|| name.clone(), |shape| format!("{name}({shape})"))
                    })
                    .collect();
                format!("variant {{ {} }}", cases.join(", "))
            }
            Kind::Enum(cases) => format!("enum {{ {} }}", cases.join(", ")),
            Kind::Flags(flags) => format!("flags {{ {} }}", flags.join(", ")),
            Kind::Tuple(shapes) => format!("tuple<{}>", many(shapes)),
            Kind::List(item) => format!("list<{item}>"),
            Kind::Option(some) => format!("option<{some}>"),
            Kind::Result(None, None) => "result".to_owned(),
            Kind::Result(Some(ok), None) => format!("result<{ok}>"),
            Kind::Result(ok, err) => format!("result<{}, {}>", of(ok.as_deref()), of(err.as_deref())),
            Kind::Own(resource) => resource.clone().unwrap_or_else(|| "a resource".to_owned()),
            Kind::Borrow(resource) => format!("borrow<{}>", resource.as_deref().unwrap_or("a resource")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> Shape {
        Shape::plain(Kind::Primitive("string".to_owned()))
    }

    fn record(name: &str, fields: &[(&str, Shape)]) -> Shape {
        let fields = fields.iter().map(|(name, shape)| ((*name).to_owned(), shape.clone())).collect();
        Shape { name: Some(name.to_owned()), kind: Kind::Record(fields) }
    }

    #[track_caller]
    fn check(expected: &Shape, found: &Shape, says: &[&str]) {
        let one = |shape: &Shape| Signature { params: vec![("it".to_owned(), shape.clone())], result: None };
        assert_eq!(differences(&one(expected), &one(found)), says);
    }

    #[test]
    fn a_difference_is_named_where_it_is() {
        let number = || Shape::plain(Kind::Primitive("u32".to_owned()));
        let expected = record("failure", &[("message", text()), ("attempt", number())]);
        check(&expected, &expected, &[]);
        check(
            &expected,
            &record("failure", &[("mesage", text()), ("attempt", text())]),
            &[
                "parameter `it`, `failure`: found the field `mesage`, expected `message`",
                "parameter `it`, `failure`, field `attempt`: found `string`, expected `u32`",
            ],
        );
        check(
            &expected,
            &record("failure", &[("attempt", number()), ("message", text())]),
            &["parameter `it`, `failure`: found the order attempt, message, expected message, attempt"],
        );
        check(
            &expected,
            &record("failure", &[("message", text())]),
            &["parameter `it`, `failure`: the field `attempt` is missing"],
        );
        check(&expected, &text(), &["parameter `it`: found `string`, expected `failure`"]);
        // One name, two types.
        let other = Shape { name: Some("failure".to_owned()), kind: Kind::Enum(vec!["bad".to_owned()]) };
        check(
            &other,
            &record("failure", &[("a", text())]),
            &["parameter `it`: found `record { a: string }`, expected `enum { bad }`"],
        );
    }

    #[test]
    fn types_are_written_as_wit_writes_them() {
        let result = Kind::Result(None, Some(Box::new(text())));
        let list = Kind::List(Box::new(record("entry", &[])));
        let signature = Signature {
            params: vec![("a".to_owned(), Shape::plain(list)), ("b".to_owned(), text())],
            result: Some(Shape::plain(result)),
        };
        assert_eq!(signature.to_string(), "func(a: list<entry>, b: string) -> result<_, string>");
        let long = Kind::Enum((0..1000).map(|index| format!("case-{index}")).collect()).to_string();
        assert!(long.ends_with('…') && long.chars().count() == TEXT_CHARS_MAX + 1, "{long}");
    }
}
