//! Foreign programs: capabilities, hooks and MCP servers start and end their programs here. The caller decides on its purpose and
//! its input; commands of the tool `execute` are confined besides, see [`crate::execute`].
//!
//! ```text
//! this process ── socket: files, reports ── keeper: a session of its own, subreaper, ignores SIGTERM
//!      └──────────── pipes ─────────────────── program: a process group of its own
//!                                                 └─ its processes, in sessions of their own too
//! ```
//!
//! The keeper is a second process of this executable, started as a [`Launcher`]. The kernel makes orphaned processes of the program
//! children of the keeper, also those that have a session of their own or forked twice. When the program exits, or when the
//! socket is closed because this process dropped [`RunningProgram`] or died, the keeper stops and kills all of them. It logs the
//! processes that it can't kill.
//!
//! Without a launcher, or on other platforms than Linux, the program's process group is killed.
//!
//! # Invariants
//!
//! - I280: No process that a program has started outlives its call, or the worker, however either ends.
//!   (`crates/tools/tests/program.rs::no_process_of_any_sort_outlives_its_program`,
//!   `tests/tests/foreign_processes.rs::no_foreign_process_outlives_its_attempt`)
//! - I281: A program that has exited has answered, although its processes hold its output open.
//!   (`crates/tools/tests/program.rs::a_program_that_has_exited_has_answered`)

#[cfg(target_os = "linux")]
pub(crate) mod keeper;
#[cfg(target_os = "linux")]
pub(crate) mod process_table;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use crate::execute::Launcher;

/// The time in which the output of a program that has exited is read. It is in the pipe already.
const DRAIN_TIME: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default)]
pub struct Program {
    pub command: Vec<OsString>,
    /// Its working directory; that of this process by default.
    pub folder: Option<PathBuf>,
    pub environment: BTreeMap<OsString, OsString>,
}

impl Program {
    /// Passes on variables of this process, as far as they are set.
    pub fn pass_variables<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let variables = names.into_iter().filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
        self.environment.extend(variables);
        self
    }
}

/// A running program. Dropping it kills the program and all processes that it has started.
#[derive(Debug)]
pub struct RunningProgram {
    pub stdin: Option<pipe::Sender>,
    pub stdout: Option<pipe::Receiver>,
    pub stderr: Option<pipe::Receiver>,
    process: Child,
    #[cfg(target_os = "linux")]
    keeper: Option<keeper::KeeperSocket>,
    /// The program's process group; `None` when the program has ended.
    group: Option<Pid>,
}

#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error("can't wait for it: {0}")]
    Wait(io::Error),
    #[error("can't read its output: {0}")]
    Read(io::Error),
    #[error("its output is longer than {0} bytes")]
    TooLong(usize),
}

/// The ends of the pipes that the program gets: input, output, error.
type ProgramPipes = (PipeReader, PipeWriter, PipeWriter);

impl RunningProgram {
    pub async fn start(launcher: Option<&Launcher>, program: &Program) -> io::Result<Self> {
        let ((input, stdin), (stdout, output), (stderr, error)) = (io::pipe()?, io::pipe()?, io::pipe()?);
        let (stdin, stdout, stderr) = (
            Some(pipe::Sender::from_owned_fd(OwnedFd::from(stdin))?),
            Some(pipe::Receiver::from_owned_fd(OwnedFd::from(stdout))?),
            Some(pipe::Receiver::from_owned_fd(OwnedFd::from(stderr))?),
        );
        let pipes = (input, output, error);
        #[cfg(target_os = "linux")]
        if let Some(launcher) = launcher {
            let (process, keeper, group) = keeper::start_in_keeper(launcher, program, pipes).await?;
            return Ok(Self { stdin, stdout, stderr, process, keeper: Some(keeper), group });
        }
        #[cfg(not(target_os = "linux"))]
        let _ = launcher;
        let process = start_directly(program, pipes)?;
        let group = process.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(Self {
            stdin,
            stdout,
            stderr,
            process,
            #[cfg(target_os = "linux")]
            keeper: None,
            group,
        })
    }

    /// Waits for the end of the program, and then until all of its processes have ended. Can be cancelled and called again.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        #[cfg(target_os = "linux")]
        if let Some(keeper) = &mut self.keeper {
            let status = keeper.wait_for_end().await?;
            self.group = None;
            return Ok(status);
        }
        let status = self.process.wait().await?;
        self.kill_group();
        Ok(status)
    }

    /// Writes the input of the program, reads its output to the end or until it has exited, and waits for its end.
    ///
    /// # Errors
    /// See [`ExchangeError`]. The program is still running then; it ends when it is dropped.
    pub async fn exchange(
        &mut self,
        input: &[u8],
        max_output: usize,
    ) -> Result<(ExitStatus, Vec<u8>), ExchangeError> {
        let (stdin, stdout) = (self.stdin.take(), self.stdout.take());
        let exited = CancellationToken::new();
        let feeding = async {
            if let Some(mut stdin) = stdin {
                // Not an error: a program may close its input without reading it.
                drop(stdin.write_all(input).await);
            }
            std::future::pending().await
        };
        let waiting = async {
            let status = tokio::select! {
                status = self.wait() => status,
                never = feeding => never,
            };
            exited.cancel();
            status.map_err(ExchangeError::Wait)
        };
        tokio::try_join!(waiting, read_output(stdout, max_output, &exited))
    }

    /// Closes the input of the program and waits up to `grace` for its exit, then ends it.
    pub async fn end(mut self, grace: Duration) {
        self.stdin = None;
        // An error means that it has ended.
        let _ = tokio::time::timeout(grace, self.wait()).await;
        self.kill_group();
        #[cfg(target_os = "linux")]
        if let Some(keeper) = self.keeper.take() {
            keeper.end(&mut self.process).await;
        }
    }

    fn kill_group(&mut self) {
        if let Some(group) = self.group.take() {
            // An error means that no process is left.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// The keeper ends the other processes, since its socket is closed.
impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.kill_group();
    }
}

fn start_directly(program: &Program, (input, output, error): ProgramPipes) -> io::Result<Child> {
    let (name, arguments) = split_command(program)?;
    let mut command = Command::new(name);
    command.args(arguments).env_clear().envs(&program.environment).process_group(0).kill_on_drop(true);
    command.stdin(Stdio::from(input)).stdout(Stdio::from(output)).stderr(Stdio::from(error));
    if let Some(folder) = &program.folder {
        command.current_dir(folder);
    }
    command.spawn()
}

fn split_command(program: &Program) -> io::Result<(&OsString, &[OsString])> {
    program.command.split_first().ok_or_else(|| io::Error::other("the command is empty"))
}

/// Reads output to its end, but not much longer than until the program has exited: its processes may hold the pipe open.
async fn read_output(
    stdout: Option<pipe::Receiver>,
    max: usize,
    exited: &CancellationToken,
) -> Result<Vec<u8>, ExchangeError> {
    let Some(mut stdout) = stdout else { return Ok(Vec::new()) };
    let mut output = Vec::new();
    let mut drained = pin!(async {
        exited.cancelled().await;
        tokio::time::sleep(DRAIN_TIME).await;
    });
    loop {
        let read = tokio::select! {
            biased;
            read = stdout.read_buf(&mut output) => read.map_err(ExchangeError::Read)?,
            () = &mut drained => 0,
        };
        match read {
            _ if output.len() > max => return Err(ExchangeError::TooLong(max)),
            0 => return Ok(output),
            _ => {}
        }
    }
}

/// Reads what a program writes to its standard error, up to `max` bytes, while `program` runs and a little longer.
pub async fn with_error_output<T, E>(
    stderr: Option<pipe::Receiver>,
    max: usize,
    program: impl Future<Output = Result<T, E>>,
) -> (Result<T, E>, Vec<u8>) {
    let exited = CancellationToken::new();
    let running = async {
        let outcome = program.await;
        exited.cancel();
        outcome
    };
    let (outcome, error) = tokio::join!(running, read_output(stderr, max, &exited));
    (outcome, error.unwrap_or_default())
}

/// Names processes that can't be ended, for the log.
pub(crate) fn left_message(processes: &[String]) -> String {
    format!("cannot end processes that the program started: {}", processes.join(", "))
}

/// Runs as the keeper of a program if this process was started as one; returns `None` otherwise. Called by
/// [`crate::execute::launcher`].
#[cfg(target_os = "linux")]
pub(crate) fn run_as_keeper(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    keeper::run_as_keeper(arguments)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn run_as_keeper(_: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    None
}
