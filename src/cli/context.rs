//! What every command takes: where the store is, what the policy is, how to print.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use tollgate::host::Host;
use tollgate::policy::{Policy, units};
use tollgate::sandbox::{Cache, Sandbox};
use tollgate::store::{Store, StoreOptions};

use super::compile;
use super::exit::CliError;
use super::text::{clean, eprint};

/// Where the store is, where nobody says.
pub const STORE_DEFAULT: &str = "sqlite:.tollgate/tollgate.db";
/// Where the policy is, where nobody says.
pub const POLICY_DEFAULT: &str = "tollgate.toml";
/// The environment variable that says where the store is.
const STORE_VARIABLE: &str = "TOLLGATE_STORE";
/// A lease shorter than this could not be renewed in time.
const LEASE_MIN: Duration = Duration::from_millis(100);

/// What every command takes.
#[derive(Debug, Args)]
pub struct Common {
    /// Where runs, components and budgets are kept: sqlite:PATH
    #[arg(long, global = true, value_name = "URL", env = STORE_VARIABLE, default_value = STORE_DEFAULT)]
    pub store: String,
    /// The operator's policy [default: tollgate.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Print one JSON document instead of text
    #[arg(long, global = true)]
    pub json: bool,
}

impl Common {
    /// The store; created where it is missing.
    pub async fn store(&self) -> Result<Store, CliError> {
        Ok(Store::open(&self.store, StoreOptions::default()).await?)
    }

    /// The store, for commands that have nothing to do in an empty one: looking creates nothing.
    pub async fn existing_store(&self) -> Result<Store, CliError> {
        if self.has_store() {
            return Ok(Store::open_existing(&self.store, StoreOptions::default()).await?);
        }
        let message = format!("there is no store at {}", self.store);
        Err(CliError::refused("NO_STORE", message)
            .help("`tollgate init` creates one here; --store URL or TOLLGATE_STORE names another"))
    }

    /// Whether the store is there. An address that is none is for [`Store::open`] to explain.
    pub fn has_store(&self) -> bool {
        let url = self.store.as_str();
        let path = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:")).unwrap_or(url);
        path.is_empty() || path == ":memory:" || path.contains("://") || Path::new(path).exists() || is_other(url)
    }

    /// The policy. Without a file at the default place nothing is granted, and a note says so.
    pub fn policy(&self) -> Result<Policy, CliError> {
        let path = self.policy_path();
        if self.policy.is_none() && !path.exists() {
            eprint(
                "note: there is no tollgate.toml here, so nothing is granted: pure actions only. `tollgate init` writes one \
                 to start from\n",
            );
            return Ok(Policy::deny_all());
        }
        Ok(Policy::parse(&path.display().to_string(), &read_text(path)?)?)
    }

    /// Where the policy is.
    pub fn policy_path(&self) -> &Path {
        self.policy.as_deref().unwrap_or(Path::new(POLICY_DEFAULT))
    }

    /// Everything wired, on `store` and `policy`.
    pub fn host(&self, store: Store, policy: Policy) -> Result<Host, CliError> {
        Ok(Host::new(store, self.sandbox()?, policy))
    }

    /// A sandbox that compiles in a child process, says so where it takes long, and keeps what was compiled.
    pub fn sandbox(&self) -> Result<Sandbox, CliError> {
        let sandbox = Sandbox::new()?.with_compiler(compile::compiler());
        let Some(folder) = compile::cache_folder(|variable| std::env::var_os(variable)) else { return Ok(sandbox) };
        match Cache::open(folder) {
            Ok(cache) => Ok(sandbox.with_cache(cache)),
            Err(error) => {
                eprint(&format!("note: {}; components are compiled every time\n", clean(&error.to_string())));
                Ok(sandbox)
            }
        }
    }

    /// A command to type next. It names the store and the policy where this one had to.
    pub fn command(&self, rest: &str) -> String {
        let mut command = format!("tollgate {rest}");
        let said_by_the_environment = std::env::var(STORE_VARIABLE).is_ok_and(|url| url == self.store);
        if self.store != STORE_DEFAULT && !said_by_the_environment {
            command.push_str(&format!(" --store {}", quoted(&self.store)));
        }
        if let Some(policy) = self.policy.as_deref().filter(|policy| *policy != Path::new(POLICY_DEFAULT)) {
            command.push_str(&format!(" --policy {}", quoted(&policy.display().to_string())));
        }
        command
    }
}

/// An address of a kind that has no file.
fn is_other(url: &str) -> bool {
    url.starts_with("postgres:") || url.starts_with("postgresql:")
}

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_./:=@%+,".contains(char);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// A file's text.
pub fn read_text(path: &Path) -> Result<String, CliError> {
    let bytes = read(path)?;
    String::from_utf8(bytes).map_err(|_| {
        CliError::refused("FILE_UNREADABLE", format!("{} is not UTF-8 text: save it as UTF-8", path.display()))
    })
}

/// The largest file that is read: more than any component, policy or list of parameters has.
const FILE_BYTES_MAX: u64 = 128 << 20;

/// A file's bytes.
pub fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let refused = |why: String| CliError::refused("FILE_UNREADABLE", format!("cannot read {}: {why}", path.display()));
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| refused(error.to_string()))?;
    match bytes.len() as u64 > FILE_BYTES_MAX {
        true => Err(refused(format!("it has more than {} MiB", FILE_BYTES_MAX >> 20))),
        false => Ok(bytes),
    }
}

/// `30s`, `10m`; `0` too.
pub fn duration(text: &str) -> Result<Duration, String> {
    match text {
        "0" => Ok(Duration::ZERO),
        text => units::parse_duration(text).map_err(|error| error.to_string()),
    }
}

/// How long a claim lasts.
pub fn lease(text: &str) -> Result<Duration, String> {
    let lease = duration(text)?;
    if lease < LEASE_MIN {
        Err("a lease is at least 100ms, so that it can be renewed in time".to_owned())
    } else {
        Ok(lease)
    }
}

/// `NAME=VALUE`.
pub fn named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

/// Who is at the keyboard, as the system says: `$USER`, `$LOGNAME`, else the number of the user.
pub fn os_user() -> String {
    ["USER", "LOGNAME"]
        .into_iter()
        .filter_map(|variable| std::env::var(variable).ok())
        .find(|name| !name.is_empty())
        .unwrap_or_else(|| format!("uid:{}", rustix::process::getuid().as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(store: &str, policy: Option<&str>) -> Common {
        Common { store: store.to_owned(), policy: policy.map(PathBuf::from), json: false }
    }

    #[test]
    fn a_next_command_names_what_this_one_had_to() {
        assert_eq!(common(STORE_DEFAULT, None).command("runs list"), "tollgate runs list");
        assert_eq!(
            common("sqlite:my store.db", Some("p.toml")).command("runs list"),
            "tollgate runs list --store 'sqlite:my store.db' --policy p.toml"
        );
    }

    #[test]
    fn a_word_stays_one_in_a_shell() {
        assert_eq!(quoted("sqlite:/a/b.db"), "sqlite:/a/b.db");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
