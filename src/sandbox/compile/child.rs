//! Compiling in a child process: with a deadline, a limit on processor time and a limit on memory, so that no component can
//! hang this process or blow it up.
//!
//! The child is a program that calls [`serve_one_compilation`] and nothing else. It inherits no environment and no files
//! but its three pipes. Its request is 16 bytes of limits and the component, on stdin; its answer is the compiled form, on
//! stdout, or a text on stderr.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::Semaphore;

use super::{CompileError, CompiledForm, Compiler, compile_here};

/// The child says no; the text is for the guest's author.
const REFUSED: u8 = 65;
/// The child could not try; the text is for the operator.
const FAILED: u8 = 70;
/// The largest compiled form that is taken: an 18 MB guest has about 60 MB.
const COMPILED_BYTES_MAX: u64 = 512 << 20;
/// How much of the child's stderr is read.
const TEXT_BYTES_MAX: u64 = 16 << 10;
/// How many threads the child compiles with at most: memory is bounded for all of them together.
const THREADS_MAX: usize = 4;

/// What one compilation may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompileLimits {
    /// Memory, as the child's address space, in bytes.
    pub memory_bytes: u64,
    /// Time for any component: of the processor and on the wall.
    pub base: Duration,
    /// And for each mebibyte of it.
    pub per_mebibyte: Duration,
}

impl Default for CompileLimits {
    /// 2 GiB; 20 s and 10 s for each mebibyte. A component of 18 MB takes about 20 s of the processor.
    fn default() -> CompileLimits {
        CompileLimits { memory_bytes: 2 << 30, base: Duration::from_secs(20), per_mebibyte: Duration::from_secs(10) }
    }
}

impl CompileLimits {
    /// How long a component of so many bytes may take.
    pub fn deadline(&self, bytes: usize) -> Duration {
        let more = self.per_mebibyte.as_secs_f64() * (bytes as f64 / f64::from(1 << 20));
        self.base.saturating_add(Duration::try_from_secs_f64(more).unwrap_or(Duration::MAX))
    }
}

/// Compiles in child processes, one at a time. Clones share the turn.
#[derive(Debug, Clone)]
pub struct ChildProcess {
    program: PathBuf,
    arguments: Vec<OsString>,
    limits: CompileLimits,
    turn: Arc<Semaphore>,
}

impl ChildProcess {
    /// Starts `program` with `arguments` for each component. It must be of this very build and call
    /// [`serve_one_compilation`]; `/proc/self/exe` is this program itself, even after its file was replaced.
    pub fn new(program: PathBuf, arguments: Vec<OsString>, limits: CompileLimits) -> ChildProcess {
        ChildProcess { program, arguments, limits, turn: Arc::new(Semaphore::new(1)) }
    }

    async fn run(&self, component: &[u8]) -> Result<CompiledForm, CompileError> {
        let failed = |what: &str, error: std::io::Error| CompileError::Failed(format!("{what}: {error}"));
        let deadline = self.limits.deadline(component.len());
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .env("RAYON_NUM_THREADS", threads.to_string())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Whoever lets go of this future lets go of the child.
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed("its process cannot be started", error))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(CompileError::Failed("its process has no pipes".to_owned()));
        };
        let header = header(&self.limits, deadline);
        let conversation = async {
            let ask = async move {
                // A child that died tells why by its status; that it stopped reading is no news.
                let _ = stdin.write_all(&header).await;
                let _ = stdin.write_all(component).await;
                let _ = stdin.shutdown().await;
            };
            let ((), form, text) =
                tokio::join!(ask, all_of(stdout, COMPILED_BYTES_MAX), all_of(stderr, TEXT_BYTES_MAX));
            let status = child.wait().await;
            (form, text, status)
        };
        let Ok((form, text, status)) = tokio::time::timeout(deadline, conversation).await else {
            let _ = child.kill().await;
            return Err(CompileError::Limit(format!("it was not done after {}", seconds(deadline))));
        };
        let status = status.map_err(|error| failed("its process cannot be waited for", error))?;
        let text = text.map(|text| String::from_utf8_lossy(&text).trim().to_owned()).unwrap_or_default();
        self.verdict(status, &text, deadline)?;
        let form = form.map_err(|error| failed("its answer cannot be read", error))?;
        if form.len() as u64 > COMPILED_BYTES_MAX {
            return Err(CompileError::Limit(format!("its compiled form has more than {COMPILED_BYTES_MAX} bytes")));
        }
        Ok(CompiledForm::of_this_compiler(form.into()))
    }

    /// What the child's end means.
    fn verdict(&self, status: ExitStatus, text: &str, deadline: Duration) -> Result<(), CompileError> {
        let memory = || CompileError::Limit(format!("more than {} bytes of memory", self.limits.memory_bytes));
        match (status.code(), status.signal()) {
            (Some(0), _) => Ok(()),
            (Some(code), _) if code == i32::from(REFUSED) => Err(CompileError::Refused(text.to_owned())),
            (Some(code), _) if code == i32::from(FAILED) => Err(CompileError::Failed(text.to_owned())),
            _ if text.contains("memory allocation of") || text.contains("Cannot allocate memory") => Err(memory()),
            (None, Some(signal)) if signal == XCPU || signal == KILL => {
                Err(CompileError::Limit(format!("more than {} of the processor's time", seconds(deadline))))
            }
            // A panic or an exhausted stack: this component makes the compiler fail.
            _ => Err(CompileError::Refused(format!("the compiler gave up on it ({status}): {text}"))),
        }
    }
}

const XCPU: i32 = rustix::process::Signal::XCPU.as_raw();
const KILL: i32 = rustix::process::Signal::KILL.as_raw();

impl Compiler for ChildProcess {
    fn compile(&self, component: Bytes) -> BoxFuture<'_, Result<CompiledForm, CompileError>> {
        Box::pin(async move {
            // Never closed, so that a place is always to be had in the end.
            let _turn = self.turn.acquire().await;
            self.run(&component).await
        })
    }
}

fn header(limits: &CompileLimits, deadline: Duration) -> [u8; 16] {
    let cpu_seconds = deadline.as_secs().saturating_add(1);
    let mut header = [0; 16];
    header[..8].copy_from_slice(&limits.memory_bytes.to_le_bytes());
    header[8..].copy_from_slice(&cpu_seconds.to_le_bytes());
    header
}

/// Everything that comes, and one byte past the limit.
async fn all_of(pipe: impl AsyncRead + Unpin, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut read = Vec::new();
    let mut pipe = pipe.take(limit + 1);
    pipe.read_to_end(&mut read).await?;
    Ok(read)
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// The child's whole life: takes the limits and a component from stdin, limits itself, compiles, writes the compiled form
/// to stdout. To be called before anything else in `main`, before threads are started.
pub fn serve_one_compilation() -> ExitCode {
    let said = |code: u8, text: &str| {
        // The parent reads it, or is gone.
        let _ = std::io::stderr().write_all(text.as_bytes());
        ExitCode::from(code)
    };
    match compile_stdin() {
        Ok(()) => ExitCode::SUCCESS,
        Err(CompileError::Refused(text) | CompileError::Limit(text)) => said(REFUSED, &text),
        Err(CompileError::Failed(text)) => said(FAILED, &text),
    }
}

fn compile_stdin() -> Result<(), CompileError> {
    let failed = |error: std::io::Error| CompileError::Failed(error.to_string());
    let mut stdin = std::io::stdin().lock();
    let (mut memory, mut cpu) = ([0; 8], [0; 8]);
    stdin.read_exact(&mut memory).map_err(failed)?;
    stdin.read_exact(&mut cpu).map_err(failed)?;
    let (memory, cpu) = (u64::from_le_bytes(memory), u64::from_le_bytes(cpu));
    let limits = [
        (Resource::As, memory, memory),
        // The soft limit's signal says what it was; the hard one is for whoever ignores it.
        (Resource::Cpu, cpu, cpu.saturating_add(1)),
        (Resource::Core, 0, 0),
        (Resource::Fsize, 0, 0),
    ];
    for (resource, soft, hard) in limits {
        setrlimit(resource, Rlimit { current: Some(soft), maximum: Some(hard) })
            .map_err(|error| CompileError::Failed(format!("cannot limit itself: {error}")))?;
    }
    let mut component = Vec::new();
    stdin.read_to_end(&mut component).map_err(failed)?;
    let form = compile_here(&component)?;
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&form).and_then(|()| stdout.flush()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_grows_with_the_component() {
        let limits = CompileLimits::default();
        assert_eq!(limits.deadline(0), Duration::from_secs(20));
        assert_eq!(limits.deadline(18 << 20), Duration::from_secs(200));
        let longest = CompileLimits { base: Duration::MAX, per_mebibyte: Duration::MAX, ..limits };
        assert_eq!(longest.deadline(1 << 30), Duration::MAX);
    }

    #[track_caller]
    fn check(status: i32, text: &str, expected: &str) {
        let child = ChildProcess::new(PathBuf::new(), Vec::new(), CompileLimits::default());
        let verdict = child.verdict(ExitStatus::from_raw(status), text, Duration::from_secs(7));
        let said = verdict.map_or_else(|error| error.to_string(), |()| "done".to_owned());
        assert!(said.contains(expected), "{said} should mention {expected}");
    }

    #[test]
    fn the_end_of_a_child_says_whose_fault_it_was() {
        check(0, "", "done");
        check(i32::from(REFUSED) << 8, "no such thing", "cannot be compiled: no such thing");
        check(i32::from(FAILED) << 8, "cannot limit itself", "the compiler failed: cannot limit itself");
        check(XCPU, "", "more than 7.0 s of the processor's time");
        check(KILL, "", "more than 7.0 s of the processor's time");
        check(6, "memory allocation of 8 bytes failed", "more than 2147483648 bytes of memory");
        check(6, "thread 'main' has overflowed its stack", "gave up on it");
        check(101 << 8, "thread 'main' panicked", "gave up on it");
    }
}
