//! Exit codes, and which of the library's errors leads to which: the one place that decides it.

use std::error::Error;
use std::io::IsTerminal;
use std::process::ExitCode;

use miette::{Diagnostic, GraphicalReportHandler};
use serde_json::{Value, json};

use tollgate::budget::BudgetError;
use tollgate::component::PushError;
use tollgate::journal::JournalError;
use tollgate::run::{DriveError, ResolveRunError, StartError};
use tollgate::sandbox::{CompileError, DescribeError, Fault, LoadError, SandboxError};
use tollgate::source::Report;
use tollgate::store::{PrefixError, PublishError, ResolveError, StoreError};

use super::context::Common;
use super::text::{clean, eprint};

/// How the program ends. The numbers are documented and do not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The run completed, or the command did what it was asked.
    Done = 0,
    /// Our or the machine's fault.
    Fault = 1,
    /// The command line is wrong.
    Usage = 2,
    /// An input was refused: a file, a component, an id, a verdict that comes too early.
    Refused = 3,
    /// The run failed, or a dry run says that it would.
    Failed = 4,
    /// The run needs a person.
    Attention = 5,
    /// The run waits for longer than it was to be waited for.
    Waits = 6,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub struct CliError {
    /// How the program ends.
    pub exit: Exit,
    /// A short, stable word for programs.
    pub code: &'static str,
    message: String,
    /// The problems of a file, each with its place.
    report: Option<Box<Report>>,
    /// What to do.
    help: Option<String>,
    /// What a command is good for, and that command without its `tollgate`.
    next: Option<(&'static str, String)>,
}

impl CliError {
    /// An input was refused.
    pub fn refused(code: &'static str, message: impl Into<String>) -> CliError {
        CliError { exit: Exit::Refused, code, message: message.into(), report: None, help: None, next: None }
    }

    /// Our or the machine's fault.
    pub fn fault(code: &'static str, message: impl Into<String>) -> CliError {
        CliError { exit: Exit::Fault, ..CliError::refused(code, message) }
    }

    /// The same error with what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> CliError {
        self.help = Some(help.into());
        self
    }

    /// The same error with the command to type next.
    #[must_use]
    pub fn next(mut self, what_for: &'static str, command: impl Into<String>) -> CliError {
        self.next = Some((what_for, command.into()));
        self
    }

    /// Says it: on stderr for people, with the source lines where that is a terminal; on stdout for programs.
    pub fn print(&self, common: &Common) {
        let next = self.next.as_ref().map(|(what_for, command)| format!("{what_for}: {}", common.command(command)));
        let help = self.help.clone().or(next);
        if common.json {
            // Whoever asked for JSON reads stdout. If nobody does, there is nobody to tell.
            let _ = super::text::print(&format!("{}\n", self.to_json(help.as_deref())));
            return;
        }
        let mut text = match &self.report {
            Some(report) if std::io::stderr().is_terminal() => drawn(report),
            // `file:line:column: message` needs nothing before it: editors read it as it is.
            Some(report) => format!("{}\n", clean(&report.to_string())),
            None => format!("error: {}\n", clean(&self.message)),
        };
        if let Some(help) = &help {
            text.push_str(&format!("  {}\n", clean(help).replace('\n', "\n  ")));
        }
        eprint(&text);
    }

    fn to_json(&self, help: Option<&str>) -> Value {
        let problems: Vec<Value> = self.report.iter().flat_map(|report| problems(report)).collect();
        json!({ "error": {
            "exit": self.exit as u8,
            "code": self.code,
            "message": self.message,
            "help": help,
            "problems": problems,
        }})
    }
}

/// Every problem of a file, as programs get it.
fn problems(report: &Report) -> impl Iterator<Item = Value> {
    report.problems().zip(report.places()).map(|(problem, place)| {
        json!({
            "file": report.name(),
            "line": place.map(|(line, _)| line),
            "column": place.map(|(_, column)| column),
            "message": problem.message,
            "help": problem.help,
        })
    })
}

/// Every problem with its source lines.
fn drawn(report: &Report) -> String {
    let handler = GraphicalReportHandler::new();
    let mut text = String::new();
    for problem in report.related().into_iter().flatten() {
        if handler.render_report(&mut text, problem).is_err() {
            return format!("{}\n", clean(&report.to_string()));
        }
    }
    text
}

/// An error with everything that lies behind it, none of it twice.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let message = next.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = next.source();
    }
    text
}

impl From<Report> for CliError {
    fn from(report: Report) -> CliError {
        let message = report.to_string();
        CliError { report: Some(Box::new(report)), ..CliError::refused("FILE_INVALID", message) }
    }
}

impl From<BudgetError> for CliError {
    fn from(error: BudgetError) -> CliError {
        CliError::refused("BUDGET_INVALID", error.to_string())
    }
}

impl From<SandboxError> for CliError {
    fn from(error: SandboxError) -> CliError {
        CliError::fault("SANDBOX_FAILED", error.to_string())
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> CliError {
        let message = with_causes(&error);
        match error {
            StoreError::Address { .. } => CliError::refused("STORE_ADDRESS", message),
            StoreError::Cursor { .. } => CliError::refused("CURSOR_INVALID", message),
            _ => CliError::fault("STORE_FAILED", message),
        }
    }
}

impl From<JournalError> for CliError {
    fn from(error: JournalError) -> CliError {
        let message = with_causes(&error);
        match error {
            JournalError::Fenced { run, .. } => {
                CliError::fault("RUN_FENCED", message).next("see what became of it", format!("runs show {run}"))
            }
            JournalError::Inconsistent { .. } => CliError::fault("STORE_INCONSISTENT", message),
            JournalError::Database { .. } => CliError::fault("STORE_FAILED", message),
        }
    }
}

impl From<PrefixError> for CliError {
    fn from(error: PrefixError) -> CliError {
        let code = error.code();
        match error {
            PrefixError::Store(error) => error.into(),
            PrefixError::NotFound { .. } => {
                CliError::refused(code, error.to_string()).next("see which there are", "runs list")
            }
            PrefixError::Ambiguous { .. } => CliError::refused(code, error.to_string()),
        }
    }
}

impl From<PushError> for CliError {
    fn from(error: PushError) -> CliError {
        match error {
            PushError::Store(error) => error.into(),
            PushError::Describe(DescribeError { fault: Fault::Host { .. }, .. }) => {
                CliError::fault("SANDBOX_FAILED", error.to_string())
            }
            PushError::Classes(_) => CliError::refused("CLASS_NOT_ALLOWED", error.to_string()),
            PushError::NoSuchVersion { .. } => CliError::refused("COMPONENT_NOT_FOUND", error.to_string())
                .next("see which there are", "component list"),
            PushError::Load(LoadError::Compile(CompileError::Failed(_))) => {
                CliError::fault("SANDBOX_FAILED", error.to_string())
            }
            PushError::App(_) | PushError::Load(_) | PushError::Describe(_) | PushError::Refused(_) => {
                CliError::refused("COMPONENT_REFUSED", error.to_string())
            }
        }
    }
}

impl From<StartError> for CliError {
    fn from(error: StartError) -> CliError {
        match error {
            StartError::Workflow(report) => (*report).into(),
            StartError::Params { .. } => CliError::refused("PARAMS_INVALID", error.to_string()),
            StartError::Name(_) => CliError::refused("NAME_INVALID", error.to_string()),
            StartError::Publish(PublishError::StartKeyReused { .. }) => {
                CliError::refused("START_KEY_REUSED", error.to_string())
            }
            StartError::Publish(PublishError::Occupied(ref occupant)) => {
                let run = &occupant.run;
                CliError::refused("SCOPE_OCCUPIED", error.to_string()).help(format!(
                    "go on with that one:  the same command with --attach, or tollgate runs resume {run}\n\
                     give it up:           tollgate runs abandon {run} --because …\n\
                     start one beside it:  the same command with --force"
                ))
            }
            StartError::Publish(PublishError::Store(error)) | StartError::Store(error) => error.into(),
        }
    }
}

impl From<DriveError> for CliError {
    fn from(error: DriveError) -> CliError {
        let message = with_causes(&error);
        match error {
            DriveError::NoSuchRun(_) => CliError::refused("RUN_NOT_FOUND", message),
            DriveError::Over { run, .. } => {
                CliError::refused("RUN_OVER", message).next("look at it", format!("runs show {run}"))
            }
            DriveError::Occupied(_) => CliError::refused("SCOPE_OCCUPIED", message),
            DriveError::Definition { .. } => CliError::fault("DEFINITION_UNUSABLE", message),
            DriveError::Journal(error) => error.into(),
            DriveError::Store(error) => error.into(),
        }
    }
}

impl From<ResolveRunError> for CliError {
    fn from(error: ResolveRunError) -> CliError {
        let message = error.to_string();
        match error {
            ResolveRunError::NoSuchRun(_) | ResolveRunError::Resolve(ResolveError::NoSuchRun { .. }) => {
                CliError::refused("RUN_NOT_FOUND", message)
            }
            ResolveRunError::Which(_) => CliError::refused("STEP_NOT_NAMED", message),
            ResolveRunError::Output { .. } => CliError::refused("OUTPUT_INVALID", message),
            ResolveRunError::Resolve(ResolveError::NoSuchStep { .. }) => CliError::refused("STEP_NOT_FOUND", message),
            ResolveRunError::Resolve(ResolveError::NotInDoubt { .. }) => CliError::refused("NOT_IN_DOUBT", message),
            ResolveRunError::Resolve(ResolveError::TooEarly { .. }) => CliError::refused("TOO_EARLY", message),
            ResolveRunError::Resolve(ResolveError::Journal(error)) => error.into(),
            ResolveRunError::Store(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(error: impl Into<CliError>, exit: Exit, message: &str) {
        let error = error.into();
        assert_eq!(error.exit, exit, "{}", error.message);
        assert!(error.message.contains(message), "{} should contain {message}", error.message);
    }

    #[test]
    fn whoever_must_act_decides_the_code() {
        let disk = || StoreError::Database { doing: "committing", source: "disk I/O error".into() };
        check(disk(), Exit::Fault, "the store failed while committing: disk I/O error");
        check(StartError::Store(disk()), Exit::Fault, "disk I/O error");
        check(PushError::Store(disk()), Exit::Fault, "disk I/O error");
        check(PrefixError::Store(disk()), Exit::Fault, "disk I/O error");
        check(DriveError::Store(disk()), Exit::Fault, "disk I/O error");
        check(ResolveRunError::Resolve(ResolveError::Journal(disk().into())), Exit::Fault, "disk I/O error");
        check(StoreError::Cursor { cursor: "x".into() }, Exit::Refused, "`x` is not a cursor");
        check(PrefixError::NotFound { prefix: "3f".into() }, Exit::Refused, "`3f`");
        check(PushError::App("Mail".into()), Exit::Refused, "`Mail`");
        check(PushError::NoSuchVersion { app: "mail".into(), version: 7 }, Exit::Refused, "mail version 7");
        let failed = CompileError::Failed("no process".into());
        check(PushError::Load(failed.into()), Exit::Fault, "no process");
        let refused = CompileError::Limit("too long".into());
        check(PushError::Load(refused.into()), Exit::Refused, "too long");
        check(DriveError::NoSuchRun("3f".into()), Exit::Refused, "3f");
        check(JournalError::Fenced { run: "3f".into(), generation: 2 }, Exit::Fault, "no longer this worker's");
    }

    #[test]
    fn a_cause_that_the_message_quotes_is_not_said_twice() {
        let source = tollgate::workflow::DefinitionError::Damaged("it has no steps".to_owned());
        check(
            DriveError::Definition { run: "3f".into(), source },
            Exit::Fault,
            "run 3f: the stored definition is damaged: it has no steps",
        );
    }
}
