//! Starts child programs: attached ones die with this process, detached ones outlive it.
//!
//! Both are started through this same executable: the new process first configures itself, then replaces itself with the
//! program (`exec`). That way no unsafe code runs between fork and exec.
//!
//! - *Attached* on Linux: the process sets a parent-death signal, which survives `exec`. For the kernel the parent is the
//!   *thread* that started the process, so attached programs must be started from a thread that lives long enough.
//! - *Attached* elsewhere: the intermediate process stays. Its standard input is a pipe whose other end closes when the
//!   parent dies; it then kills the program.
//! - *Detached*: the process gets a session of its own, so that no terminal can signal it.
//!
//! # Invariants
//!
//! - I23: A command that is killed at any moment leaves no process.
//!   (`cli/tests/local.rs::a_parent_killed_while_starting_leaves_no_process`)

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Attaches by the kernel's parent-death signal. Arguments: parent pid, `--hold=FILE` or `--hold=`, program, its arguments.
const ATTACHED: &str = "__bound";
/// Attaches by a pipe on standard input. The same arguments.
const ATTACHED_BY_PIPE: &str = "__bound-by-pipe";
/// Starts a session. Arguments: program, its arguments.
const DETACHED: &str = "__detached";

/// The method for this platform.
const ATTACH: &str = if cfg!(target_os = "linux") { ATTACHED } else { ATTACHED_BY_PIPE };

/// The exit code if the program can't be executed, as in shells ("found but not executable").
const NOT_STARTED: u8 = 126;

/// How long to wait for the lock of a previous process that the kernel is killing.
const HOLD_LIMIT: Duration = Duration::from_secs(10);

/// Starts programs through this executable.
#[derive(Clone, Debug)]
pub struct Launcher {
    executable: PathBuf,
}

impl Launcher {
    /// Uses the executable of this process.
    pub fn from_current_exe() -> io::Result<Self> {
        Ok(Self { executable: std::env::current_exe()? })
    }

    /// The executable itself.
    pub fn executable(&self) -> &Path {
        &self.executable
    }

    /// Returns a command that runs `program` attached to this process. Arguments that are added go to the program. The
    /// caller must not set standard input, and must spawn it from a thread that outlives the program.
    pub fn build_attached_command(&self, program: &Path) -> Command {
        self.build_command_with_hold(program, "--hold=".into())
    }

    /// Like [`Self::build_attached_command`], with an exclusive lock on the file `hold` for exactly as long as the program lives, even if
    /// this process dies first. The program starts when the lock is free.
    pub fn build_attached_command_with_lock(&self, program: &Path, hold: &Path) -> Command {
        let mut argument = OsString::from("--hold=");
        argument.push(hold);
        self.build_command_with_hold(program, argument)
    }

    fn build_command_with_hold(&self, program: &Path, hold: OsString) -> Command {
        let mut command = Command::new(&self.executable);
        command.arg(ATTACH).arg(process::id().to_string()).arg(hold).arg(program);
        command.stdin(if ATTACH == ATTACHED_BY_PIPE { Stdio::piped() } else { Stdio::null() });
        command
    }

    /// Returns a command that runs `program` in a session of its own, so that it outlives this process.
    pub fn build_detached_command(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.executable);
        command.arg(DETACHED).arg(program).stdin(Stdio::null());
        command
    }
}

/// Runs an internal command of this module, if `arguments` (of the process, program name first) name one; otherwise
/// returns `None`. Must be called first in `main`, before there are threads.
pub fn run_if_launcher_command(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    let first = arguments.next()?;
    let outcome = match first.to_str()? {
        ATTACHED => become_attached(arguments),
        ATTACHED_BY_PIPE => stay_as_watcher(arguments),
        DETACHED => become_detached(arguments),
        _ => return None,
    };
    Some(outcome.unwrap_or_else(|error| {
        eprintln!("millrace: {error}");
        ExitCode::from(NOT_STARTED)
    }))
}

/// The parsed arguments of an internal command.
struct LaunchArguments {
    parent: u32,
    hold: Option<PathBuf>,
    program: OsString,
    arguments: Vec<OsString>,
}

impl LaunchArguments {
    fn parse(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let parent = arguments.next()?.to_str()?.parse().ok()?;
        let hold = parse_hold_option(&arguments.next()?)?;
        Some(Self { parent, hold, program: arguments.next()?, arguments: arguments.collect() })
    }

    fn parse_or_error(arguments: impl Iterator<Item = OsString>) -> io::Result<Self> {
        Self::parse(arguments).ok_or_else(|| io::Error::other("internal command with wrong arguments"))
    }

    fn to_command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
    }

    fn acquire_held_lock(&self) -> io::Result<Option<File>> {
        self.hold.as_deref().map(lock_file_when_free).transpose()
    }
}

fn parse_hold_option(argument: &OsString) -> Option<Option<PathBuf>> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let path = argument.as_bytes().strip_prefix(b"--hold=")?;
    Some((!path.is_empty()).then(|| PathBuf::from(OsString::from_vec(path.to_vec()))))
}

#[cfg(target_os = "linux")]
fn become_attached(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    use rustix::io::{FdFlags, fcntl_setfd};
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    use std::os::fd::IntoRawFd;
    let launch = LaunchArguments::parse_or_error(arguments)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the line above: the signal would never come.
    let parent = getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
    if parent != launch.parent {
        return Ok(ExitCode::from(NOT_STARTED));
    }
    if let Some(lock) = launch.acquire_held_lock()? {
        fcntl_setfd(&lock, FdFlags::empty())?;
        let _inherited_by_the_program = lock.into_raw_fd();
    }
    Err(start_error(&launch.program, launch.to_command().exec()))
}

#[cfg(not(target_os = "linux"))]
fn become_attached(_: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    Err(io::Error::other("this platform has no parent-death signal"))
}

/// Waits for the program: kills it when standard input closes, forwards SIGTERM to it, and returns its exit code (for a
/// signal 128 plus its number, as shells do).
fn stay_as_watcher(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let launch = LaunchArguments::parse_or_error(arguments)?;
    let _held_until_the_program_ends = launch.acquire_held_lock()?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(run_and_watch_parent(&launch))
}

async fn run_and_watch_parent(launch: &LaunchArguments) -> io::Result<ExitCode> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let parent_died = await_pipe_close();
    tokio::pin!(parent_died);
    let mut command = tokio::process::Command::from(launch.to_command());
    let mut program = command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| start_error(&launch.program, e))?;
    loop {
        tokio::select! {
            status = program.wait() => return Ok(shell_exit_code(status?)),
            _ = terminate.recv() => {
                if let Some(pid) = program.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
                    rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
                }
            }
            () = &mut parent_died => {
                program.start_kill()?;
                return Ok(shell_exit_code(program.wait().await?));
            }
        }
    }
}

fn shell_exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Completes when standard input closes. A plain thread reads it: tokio's standard input would block the runtime's end.
async fn await_pipe_close() {
    let (closed, when_closed) = tokio::sync::oneshot::channel::<()>();
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        drop(closed);
    });
    let _ = when_closed.await;
}

fn become_detached(mut arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let program =
        arguments.next().ok_or_else(|| io::Error::other("internal command with wrong arguments"))?;
    rustix::process::setsid()?;
    Err(start_error(&program, Command::new(&program).args(arguments).exec()))
}

fn start_error(program: &OsString, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{} can't be run: {error}", program.display()))
}

fn lock_file_when_free(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).append(true).open(path)?;
    let deadline = Instant::now() + HOLD_LIMIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                let text =
                    format!("{} is still locked by an earlier process that does not end", path.display());
                return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
            }
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_arguments(arguments: &[&str]) -> Option<LaunchArguments> {
        LaunchArguments::parse(arguments.iter().map(OsString::from))
    }

    #[test]
    fn launch_arguments_are_parsed_as_written() {
        let launcher = Launcher { executable: "/bin/millrace".into() };
        let mut command =
            launcher.build_attached_command_with_lock(Path::new("/bin/sleep"), Path::new("/data dir/lock"));
        command.arg("--hold=x");
        let written: Vec<OsString> = command.get_args().skip(1).map(OsString::from).collect();
        let launch = LaunchArguments::parse(written.into_iter()).unwrap();
        assert_eq!(launch.parent, process::id());
        assert_eq!(launch.hold, Some("/data dir/lock".into()));
        assert_eq!((launch.program, launch.arguments), ("/bin/sleep".into(), vec!["--hold=x".into()]));
    }

    #[test]
    fn incomplete_launch_arguments_are_rejected() {
        assert!(parse_arguments(&["12", "--hold=", "sleep"]).is_some());
        for wrong in [&["12", "--hold="][..], &["12", "sleep", "1"], &["x", "--hold=", "sleep"], &[]] {
            assert!(parse_arguments(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn arguments_of_other_commands_are_ignored() {
        for arguments in [&["millrace"][..], &["millrace", "doctor"], &["millrace", "run", "__bound"]] {
            assert!(run_if_launcher_command(arguments.iter().map(OsString::from)).is_none(), "{arguments:?}");
        }
    }
}
