//! Reads values out of a TOML tree, and notes everything that is wrong on the way.
//!
//! A reader never stops at a problem: what cannot be read is noted with its place and comes back as `None`, so that one
//! pass over a file finds every problem in it. It knows nothing of what the keys mean.

use std::fmt::Display;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::source::{Problem, line_and_column};

/// A value and where it stands.
pub(super) type Value<'t> = Spanned<DeValue<'t>>;

pub(super) struct Reader<'t> {
    text: &'t str,
    problems: Vec<Problem>,
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Reader { text, problems: Vec::new() }
    }

    pub(super) fn note(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// The line, from 1, on which `span` begins.
    pub(super) fn line(&self, span: &Range<usize>) -> usize {
        line_and_column(self.text, span.start).0
    }

    /// Notes every key of `table` that is not `known`. Those of `unenforced` are known to the format but not enforced
    /// by this version: accepting them would promise what nobody keeps.
    pub(super) fn keys(&mut self, table: &DeTable<'_>, owner: &str, known: &[&str], unenforced: &[&str]) {
        for (key, _) in table.iter() {
            let name: &str = key.get_ref();
            if known.contains(&name) {
                continue;
            }
            let problem = if unenforced.contains(&name) {
                Problem::at(key.span(), format!("`{name}` is not enforced by this version of tollgate"))
                    .help("take it out: a key of the policy that nothing enforces is an error")
            } else {
                let help = match nearest(name, known) {
                    Some(known) => format!("did you mean `{known}`?"),
                    None => format!("its keys are {}", listed(known)),
                };
                Problem::at(key.span(), format!("{owner} has no key {name:?}")).help(help)
            };
            self.note(problem);
        }
    }

    pub(super) fn text<'v>(&mut self, value: &'v Value<'_>, what: &str) -> Option<&'v str> {
        let text = value.get_ref().as_str();
        if text.is_none() {
            self.wrong_kind(value, what, "text in quotes");
        }
        text
    }

    pub(super) fn flag(&mut self, value: &Value<'_>, what: &str) -> Option<bool> {
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            self.wrong_kind(value, what, "true or false");
        }
        flag
    }

    pub(super) fn table<'v, 'i>(&mut self, value: &'v Value<'i>, what: &str) -> Option<&'v DeTable<'i>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.wrong_kind(value, what, "a table");
        }
        table
    }

    pub(super) fn list<'v, 'i>(&mut self, value: &'v Value<'i>, what: &str) -> Option<&'v [Value<'i>]> {
        let Some(list) = value.get_ref().as_array() else {
            self.wrong_kind(value, what, "a list");
            return None;
        };
        Some(list)
    }

    /// A whole number from 1.
    pub(super) fn count(&mut self, value: &Value<'_>, what: &str) -> Option<u32> {
        let Some(integer) = value.get_ref().as_integer() else {
            self.wrong_kind(value, what, "a whole number");
            return None;
        };
        let count = u32::from_str_radix(integer.as_str(), integer.radix()).ok().filter(|count| *count > 0);
        if count.is_none() {
            self.note(Problem::at(value.span(), format!("{what} must be a whole number from 1 to {}", u32::MAX)));
        }
        count
    }

    /// Text that `parse` understands; its error follows the name of the key.
    pub(super) fn parsed<T, E: Display>(
        &mut self,
        value: &Value<'_>,
        what: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(value, what)?;
        match parse(text) {
            Ok(parsed) => Some(parsed),
            Err(error) => {
                self.note(Problem::at(value.span(), format!("{what}: {error}")));
                None
            }
        }
    }

    /// A list of at least one text, none of them twice, each understood by `parse`, which may note problems of its own.
    /// `None` where any of it is wrong.
    pub(super) fn texts<T>(
        &mut self,
        value: &Value<'_>,
        what: &str,
        empty_means: &str,
        mut parse: impl FnMut(&mut Self, &str, Range<usize>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let list = self.list(value, what)?;
        if list.is_empty() {
            self.note(Problem::at(value.span(), format!("{what} is empty: {empty_means}")));
            return None;
        }
        let mut seen: Vec<&str> = Vec::new();
        let mut parsed = Vec::new();
        for element in list {
            let Some(text) = self.text(element, &format!("every element of {what}")) else { continue };
            if seen.contains(&text) {
                self.note(Problem::at(element.span(), format!("{what} names {text:?} twice")));
                continue;
            }
            seen.push(text);
            parsed.extend(parse(self, text, element.span()));
        }
        (parsed.len() == list.len()).then_some(parsed)
    }

    fn wrong_kind(&mut self, value: &Value<'_>, what: &str, wanted: &str) {
        let found = match value.get_ref() {
            DeValue::String(_) => "text",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a float",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.note(Problem::at(value.span(), format!("{what} must be {wanted}, not {found}")));
    }
}

/// The one of `known` that `word` was probably meant to be; `None` where none is near.
pub(crate) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    // A longer word is not compared: the distance costs the product of the lengths, and a file's writer chose the word.
    if word.len() > 64 {
        return None;
    }
    known
        .iter()
        .map(|known| (distance(&word.to_lowercase(), known), *known))
        .filter(|(distance, known)| *distance <= known.chars().count().div_ceil(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// How many letters were added, left out or replaced.
fn distance(one: &str, two: &str) -> usize {
    let two: Vec<char> = two.chars().collect();
    let mut row: Vec<usize> = (0..=two.len()).collect();
    for (index, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in two.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[two.len()]
}

/// `` `a`, `b` and `c` ``.
pub(crate) fn listed(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_nearest(word: &str, expected: Option<&str>) {
        assert_eq!(nearest(word, &["url", "methods", "meter", "idempotency", "safe"]), expected, "{word}");
    }

    #[test]
    fn a_typing_error_finds_the_word() {
        check_nearest("method", Some("methods"));
        check_nearest("metehods", Some("methods"));
        check_nearest("Methods", Some("methods"));
        check_nearest("metre", Some("meter"));
        check_nearest("meters", Some("meter"));
        check_nearest("urls", Some("url"));
        check_nearest("idempotence", Some("idempotency"));
        check_nearest("address", None);
        check_nearest("", None);
        check_nearest(&"methods".repeat(1000), None);
    }

    #[test]
    fn words_are_listed_for_a_person() {
        assert_eq!(listed(&["a"]), "`a`");
        assert_eq!(listed(&["a", "b", "c"]), "`a`, `b` and `c`");
        assert_eq!(listed(&[]), "");
    }
}
