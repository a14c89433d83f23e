//! What a command has to say, for people and for programs.

use serde_json::Value;

use super::exit::{CliError, Exit};
use super::text;

/// What a command came to.
#[derive(Debug)]
pub struct Answer {
    /// How the program ends.
    pub exit: Exit,
    /// For people: whole lines.
    pub text: String,
    /// For programs: one document.
    pub json: Value,
}

impl Answer {
    /// The command did what it was asked.
    pub fn done(text: String, json: Value) -> Answer {
        Answer { exit: Exit::Done, text, json }
    }

    /// Prints one of the two on stdout. A reader that has gone away is no error.
    ///
    /// # Errors
    /// Where stdout cannot be written to for another reason: a full disk behind a redirection.
    pub fn print(&self, as_json: bool) -> Result<(), CliError> {
        match as_json {
            true => text::print(&format!("{}\n", self.json)),
            false => text::print(&self.text),
        }
        .map_err(|error| CliError::fault("STDOUT_FAILED", format!("stdout cannot be written to: {error}")))
    }
}
