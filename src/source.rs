//! Problems in a text that a person wrote, each with its place: policy files, workflow files, parameters.
//!
//! A reader of such a file collects every problem it finds and returns them together as one [`Report`]. This module only
//! holds and formats them; it reads nothing.

use std::fmt;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

/// One thing that is wrong in a text, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong, in one sentence without a final stop.
    pub message: String,
    /// The bytes of the text that it is about; `None` where it is about the text as a whole.
    pub span: Option<std::ops::Range<usize>>,
    /// What to write instead, or the next command; `None` where the message says it already.
    pub help: Option<String>,
}

impl Problem {
    /// A problem about the bytes `span` of the text.
    pub fn at(span: std::ops::Range<usize>, message: impl Into<String>) -> Self {
        Problem { message: message.into(), span: Some(span), help: None }
    }

    /// A problem about the text as a whole.
    pub fn whole(message: impl Into<String>) -> Self {
        Problem { message: message.into(), span: None, help: None }
    }

    /// The same problem with advice.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// Every problem found in one text. Never empty.
///
/// Its `Display` names file, line and column of each, one a line. As a [`miette::Diagnostic`] it also shows the source
/// lines.
#[derive(Debug, Clone)]
pub struct Report {
    name: String,
    text: String,
    problems: Vec<Located>,
}

#[derive(Debug, Clone)]
struct Located {
    problem: Problem,
    source: NamedSource<String>,
    place: Option<(usize, usize)>,
    name: String,
}

impl Report {
    /// `Ok(())` where there are no problems, else all of them, in the order of the text.
    ///
    /// # Errors
    /// The report itself, where `problems` is not empty.
    pub fn unless_empty(name: &str, text: &str, mut problems: Vec<Problem>) -> Result<(), Report> {
        if problems.is_empty() {
            return Ok(());
        }
        problems.sort_by_key(|problem| problem.span.as_ref().map_or(0, |span| span.start));
        let problems = problems
            .into_iter()
            .map(|problem| Located {
                source: NamedSource::new(name, text.to_owned()),
                place: problem.span.as_ref().map(|span| line_and_column(text, span.start)),
                name: name.to_owned(),
                problem,
            })
            .collect();
        Err(Report { name: name.to_owned(), text: text.to_owned(), problems })
    }

    /// A report of one problem.
    pub fn one(name: &str, text: &str, problem: Problem) -> Report {
        match Report::unless_empty(name, text, vec![problem]) {
            Err(report) => report,
            Ok(()) => unreachable!("a vector of one problem is not empty"),
        }
    }

    /// The problems, in the order of the text.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter().map(|located| &located.problem)
    }

    /// Line and column (both from 1, columns in characters) of each problem; `None` for one about the whole text.
    pub fn places(&self) -> impl Iterator<Item = Option<(usize, usize)>> + '_ {
        self.problems.iter().map(|located| located.place)
    }

    /// The name under which the text was read.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Line and column (both from 1, columns in characters) of byte `offset` of `text`.
pub fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let before = &text[..offset];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, located) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(formatter)?;
            }
            write!(formatter, "{located}")?;
            if let Some(help) = &located.problem.help {
                write!(formatter, "\n  {}", help.replace('\n', "\n  "))?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Report {}

impl Diagnostic for Report {
    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&self.text)
    }

    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        Some(Box::new(self.problems.iter().map(|located| located as &dyn Diagnostic)))
    }
}

impl fmt::Display for Located {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some((line, column)) => write!(formatter, "{}:{line}:{column}: {}", self.name, self.problem.message),
            None => write!(formatter, "{}: {}", self.name, self.problem.message),
        }
    }
}

impl std::error::Error for Located {}

impl Diagnostic for Located {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.problem.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.problem.span.clone()?;
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(None, span))))
    }
}
