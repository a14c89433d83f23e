//! Where secrets come from, and what carries them: a value that nothing prints.
//!
//! The policy names secrets and says where each is kept; their values are read here, when they are needed, and leave
//! only through [`Secret::expose`]. This module does not decide which request gets which secret. It is the one place of
//! the policy that reads anything from outside.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::PathBuf;

use http::{HeaderName, header};

use super::Policy;

/// The longest secret that is read, in bytes. It has to fit a request header.
pub const SECRET_BYTES_MAX: usize = 16 * 1024;

/// Where a secret is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// In the environment variable of this name.
    Env(String),
    /// In this file; a relative path starts at the working directory of the process.
    File(PathBuf),
}

impl fmt::Display for SecretSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretSource::Env(variable) => write!(formatter, "environment variable {variable}"),
            SecretSource::File(path) => write!(formatter, "file {}", path.display()),
        }
    }
}

/// A secret's value. `Debug` does not show it and `Display` does not exist, so that it cannot reach a log by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value; `None` where it is empty, since an empty secret protects nothing and would be found everywhere by
    /// whoever looks for it to redact it.
    pub fn new(value: impl Into<String>) -> Option<Secret> {
        let value = value.into();
        (!value.is_empty()).then_some(Secret(value))
    }

    /// The value itself, for the request that it belongs to and for redacting.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(redacted)")
    }
}

/// Why a secret cannot be used. It names the secret and where it is kept, never its value.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The environment variable does not exist.
    #[error("secret `{name}`: environment variable {variable} is not set")]
    Unset {
        /// The secret, by its name in the policy.
        name: String,
        /// The variable.
        variable: String,
    },
    /// The file cannot be read.
    #[error("secret `{name}`: cannot read {}: {error}", path.display())]
    Unreadable {
        /// The secret, by its name in the policy.
        name: String,
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        error: std::io::Error,
    },
    /// There is nothing in it.
    #[error("secret `{name}`: {source_name} is empty")]
    Empty {
        /// The secret, by its name in the policy.
        name: String,
        /// Where it is kept.
        source_name: String,
    },
    /// It is not UTF-8.
    #[error("secret `{name}`: {source_name} is not UTF-8 text")]
    NotText {
        /// The secret, by its name in the policy.
        name: String,
        /// Where it is kept.
        source_name: String,
    },
    /// It is longer than [`SECRET_BYTES_MAX`].
    #[error("secret `{name}`: {source_name} holds more than {SECRET_BYTES_MAX} bytes")]
    TooLong {
        /// The secret, by its name in the policy.
        name: String,
        /// Where it is kept.
        source_name: String,
    },
    /// The policy names no such secret.
    #[error("secret `{name}` is not in the [secrets] of the policy")]
    Unknown {
        /// The name that was asked for.
        name: String,
    },
}

/// Reads a secret from where it is kept. One line break at the end of a file is not part of it.
///
/// # Errors
/// Where there is none, it is empty, too long or not text.
pub fn load(name: &str, source: &SecretSource) -> Result<Secret, SecretError> {
    let (name, source_name) = (name.to_owned(), source.to_string());
    let value = match source {
        SecretSource::Env(variable) => {
            let Some(value) = std::env::var_os(variable) else {
                return Err(SecretError::Unset { name, variable: variable.clone() });
            };
            value.into_encoded_bytes()
        }
        SecretSource::File(path) => {
            let mut bytes = Vec::new();
            // One byte more than allowed tells "too long", plus room for the line break that is taken off.
            let limit = u64::try_from(SECRET_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(3);
            let read = std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes));
            if let Err(error) = read {
                return Err(SecretError::Unreadable { name, path: path.clone(), error });
            }
            if bytes.ends_with(b"\n") {
                bytes.pop();
                if bytes.ends_with(b"\r") {
                    bytes.pop();
                }
            }
            bytes
        }
    };
    if value.len() > SECRET_BYTES_MAX {
        return Err(SecretError::TooLong { name, source_name });
    }
    // The error of this conversion holds the bytes; it is dropped here.
    let Ok(value) = String::from_utf8(value) else {
        return Err(SecretError::NotText { name, source_name });
    };
    Secret::new(value).ok_or(SecretError::Empty { name, source_name })
}

/// How the host proves to the other end who is asking. Holds the names of secrets, not their values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// `Authorization: Bearer …`.
    Bearer {
        /// The name of the secret that is the token.
        secret: String,
    },
    /// `Authorization: Basic …`.
    Basic {
        /// The user name itself.
        user: String,
        /// The name of the secret that is the password.
        password: String,
    },
    /// A header of its own.
    Header {
        /// The header.
        name: HeaderName,
        /// The name of the secret that is the header's whole value.
        value: String,
    },
}

impl Auth {
    /// The name of the secret that it needs.
    pub fn secret(&self) -> &str {
        match self {
            Auth::Bearer { secret } => secret,
            Auth::Basic { password, .. } => password,
            Auth::Header { value, .. } => value,
        }
    }

    /// The header that it sets. What the guest wrote there must be replaced.
    pub fn header_name(&self) -> HeaderName {
        match self {
            Auth::Bearer { .. } | Auth::Basic { .. } => header::AUTHORIZATION,
            Auth::Header { name, .. } => name.clone(),
        }
    }
}

/// The secrets that a policy names: where each is kept, without any value.
#[derive(Debug, Clone)]
pub struct Secrets {
    policy_name: String,
    sources: BTreeMap<String, SecretSource>,
}

impl Secrets {
    /// Those of `policy`.
    pub fn of(policy: &Policy) -> Secrets {
        let sources = policy.secrets().map(|(name, source)| (name.to_owned(), source.clone())).collect();
        Secrets { policy_name: policy.file_name().to_owned(), sources }
    }

    /// The name of the policy's file.
    pub fn policy_name(&self) -> &str {
        &self.policy_name
    }

    /// Reads a secret from where it is kept, anew at each call, so that a rotated secret is used without a restart.
    ///
    /// # Errors
    /// [`SecretError::Unknown`], and those of [`load`].
    pub fn load(&self, name: &str) -> Result<Secret, SecretError> {
        match self.sources.get(name) {
            Some(source) => load(name, source),
            None => Err(SecretError::Unknown { name: name.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_file(content: &[u8], expected: Result<&str, &str>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, content).unwrap();
        match (load("mail_key", &SecretSource::File(path)), expected) {
            (Ok(secret), Ok(expected)) => assert_eq!(secret.expose(), expected),
            (Err(error), Err(expected)) => {
                let message = error.to_string();
                assert!(message.starts_with("secret `mail_key`"), "{message}");
                assert!(message.contains(expected), "{message}");
            }
            (found, _) => panic!("{found:?}"),
        }
    }

    #[test]
    fn a_file_gives_its_text_without_one_line_break() {
        check_file(b"word", Ok("word"));
        check_file(b"word\n", Ok("word"));
        check_file(b"word\r\n", Ok("word"));
        check_file(b"word\n\n", Ok("word\n"));
        check_file(b" word ", Ok(" word "));
        check_file(b"", Err("is empty"));
        check_file(b"\n", Err("is empty"));
        check_file(b"\r\n", Err("is empty"));
        check_file(b"\xff", Err("is not UTF-8"));
        check_file(&vec![b'x'; SECRET_BYTES_MAX + 1], Err("more than 16384 bytes"));
        let longest = "x".repeat(SECRET_BYTES_MAX);
        check_file(format!("{longest}\r\n").as_bytes(), Ok(&longest));
        check_file(format!("{longest}x\r\n").as_bytes(), Err("more than 16384 bytes"));
    }

    #[test]
    fn a_secret_that_is_not_there_is_an_error_with_its_name() {
        let missing = SecretSource::File(PathBuf::from("/nonexistent/key"));
        let message = load("mail_key", &missing).unwrap_err().to_string();
        assert!(message.starts_with("secret `mail_key`: cannot read /nonexistent/key: "), "{message}");

        let folder = SecretSource::File(std::env::temp_dir());
        assert!(matches!(load("mail_key", &folder), Err(SecretError::Unreadable { .. })));

        let unset = SecretSource::Env("TOLLGATE_NO_SUCH_VARIABLE".to_owned());
        assert_eq!(
            load("mail_key", &unset).unwrap_err().to_string(),
            "secret `mail_key`: environment variable TOLLGATE_NO_SUCH_VARIABLE is not set"
        );
    }

    #[test]
    fn a_variable_gives_its_text() {
        // A variable that cargo sets for every test, since setting one is not safe.
        let source = SecretSource::Env("CARGO_PKG_NAME".to_owned());
        assert_eq!(load("name", &source).unwrap().expose(), env!("CARGO_PKG_NAME"));
    }

    #[test]
    fn a_policy_s_secrets_are_loaded_by_name() {
        let text = "version = 1\nsecrets.key = { env = \"CARGO_PKG_NAME\" }";
        let secrets = Secrets::of(&Policy::parse("policy.toml", text).unwrap());
        assert_eq!(secrets.policy_name(), "policy.toml");
        assert_eq!(secrets.load("key").unwrap().expose(), env!("CARGO_PKG_NAME"));
        assert_eq!(
            secrets.load("other").unwrap_err().to_string(),
            "secret `other` is not in the [secrets] of the policy"
        );
    }

    #[test]
    fn an_auth_says_which_secret_and_header_it_needs() {
        let secret = || "mail_key".to_owned();
        for (auth, header) in [
            (Auth::Bearer { secret: secret() }, "authorization"),
            (Auth::Basic { user: "user".to_owned(), password: secret() }, "authorization"),
            (Auth::Header { name: HeaderName::from_static("x-api-key"), value: secret() }, "x-api-key"),
        ] {
            assert_eq!((auth.secret(), auth.header_name().as_str()), ("mail_key", header));
        }
    }

    #[test]
    fn no_debug_text_shows_a_value() {
        let secret = Secret::new("hunter2").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(redacted)");
        assert_eq!(format!("{:?}", Some((1, secret))), "Some((1, Secret(redacted)))");
        assert_eq!(Secret::new(""), None);
    }
}
