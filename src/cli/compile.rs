//! How the program compiles components: in a child process that is the program itself, with a line on a terminal where it
//! takes longer than a second, and with what was compiled kept in a folder of the user's.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use tollgate::sandbox::{ChildProcess, CompileError, CompileLimits, CompiledForm, Compiler, serve_one_compilation};

use super::text::{eprint, size};

/// The argument with which the program is its own compiler. For nobody to type.
const ARGUMENT: &str = "compile-component-on-stdin";
/// The environment variable that says where compiled components are kept; empty: nowhere.
const CACHE_VARIABLE: &str = "TOLLGATE_CACHE";
/// This very program, whatever has become of its file since it was started.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// Before this nothing is said, and after it something every so often.
const SPEAK_AFTER: Duration = Duration::from_secs(1);

/// Where this process is a compiler, its whole life. To be asked before anything else is set up.
pub fn child() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    match (arguments.next(), arguments.next()) {
        (Some(argument), None) if argument == ARGUMENT => Some(serve_one_compilation()),
        _ => None,
    }
}

/// Compiles in a child process and says so.
pub fn compiler() -> Arc<dyn Compiler> {
    let limits = CompileLimits::default();
    let inner = ChildProcess::new(THIS_PROGRAM.into(), vec![ARGUMENT.into()], limits);
    Arc::new(Announced { inner, limits, terminal: std::io::stderr().is_terminal() })
}

/// The folder for compiled components: `TOLLGATE_CACHE`, else the user's own by the XDG rules; `None` where there is none.
pub fn cache_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(said) = variable(CACHE_VARIABLE) {
        return (!said.is_empty()).then(|| PathBuf::from(said));
    }
    let absolute = |variable: Option<OsString>| variable.map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable("XDG_CACHE_HOME"))
        .or_else(|| absolute(variable("HOME")).map(|home| home.join(".cache")))
        .map(|caches| caches.join("tollgate").join("compiled"))
}

struct Announced<C> {
    inner: C,
    limits: CompileLimits,
    terminal: bool,
}

impl<C: Compiler> Compiler for Announced<C> {
    fn compile(&self, component: Bytes) -> BoxFuture<'_, Result<CompiledForm, CompileError>> {
        if !self.terminal {
            return self.inner.compile(component);
        }
        Box::pin(async move {
            let began = Instant::now();
            let bytes = component.len();
            let deadline = self.limits.deadline(bytes);
            let mut compiling = self.inner.compile(component);
            let mut spoke = false;
            let done = loop {
                match tokio::time::timeout(SPEAK_AFTER, &mut compiling).await {
                    Ok(done) => break done,
                    Err(_) => {
                        eprint(&format!("\r{}", line(bytes, began.elapsed(), deadline)));
                        spoke = true;
                    }
                }
            };
            if spoke {
                // The line was there for whoever waited.
                eprint("\r\x1b[K");
            }
            done
        })
    }
}

fn line(bytes: usize, elapsed: Duration, deadline: Duration) -> String {
    format!("compiling {}: {} s of at most {} s", size(bytes as u64), elapsed.as_secs(), deadline.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(variables: &[(&str, &str)], expected: Option<&str>) {
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        assert_eq!(cache_folder(variable), expected.map(PathBuf::from), "{variables:?}");
    }

    #[test]
    fn the_cache_is_where_the_user_says_or_with_the_users_other_caches() {
        check(&[], None);
        check(&[("HOME", "/home/ada")], Some("/home/ada/.cache/tollgate/compiled"));
        check(&[("HOME", "/home/ada"), ("XDG_CACHE_HOME", "/var/cache/ada")], Some("/var/cache/ada/tollgate/compiled"));
        check(&[("HOME", "/home/ada"), ("XDG_CACHE_HOME", "relative")], Some("/home/ada/.cache/tollgate/compiled"));
        check(&[("HOME", "/home/ada"), ("TOLLGATE_CACHE", "/c")], Some("/c"));
        check(&[("HOME", "/home/ada"), ("TOLLGATE_CACHE", "")], None);
    }

    #[test]
    fn the_line_says_how_long_it_takes_and_may_take() {
        let said = line(3 << 20, Duration::from_millis(4_500), Duration::from_secs(50));
        assert!(said.ends_with(": 4 s of at most 50 s") && said.starts_with("compiling 3"), "{said}");
    }
}
