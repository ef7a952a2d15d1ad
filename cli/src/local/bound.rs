//! Starts programs that can't outlive this process, and programs that do so on purpose.
//!
//! Both go through this same executable once more: it arranges what only the new process can arrange for itself, then
//! becomes the program wanted (`exec`). No unsafe code runs between fork and exec that way.
//!
//! - *Bound* on Linux: the kernel is asked to kill the process when its parent dies. The setting survives `exec`. The
//!   kernel's "parent" is the *thread* that started the process, so bound programs are to be started from a thread that
//!   lives as long as they may.
//! - *Bound* elsewhere: the intermediate process stays. It holds the reading end of a pipe as its standard input, whose
//!   writing end closes when the parent dies, and then kills the program.
//! - *Detached*: the process gets a session of its own, so that no terminal can signal it.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Binds by the kernel's death signal. Arguments: parent's pid, `--hold=FILE` or `--hold=`, program, its arguments.
const BOUND: &str = "__bound";
/// Binds by a pipe on standard input. The same arguments.
const BOUND_BY_PIPE: &str = "__bound-by-pipe";
/// Starts a session. Arguments: program, its arguments.
const DETACHED: &str = "__detached";

/// The way that suits this platform.
const BINDING: &str = if cfg!(target_os = "linux") { BOUND } else { BOUND_BY_PIPE };

/// The exit code of a process that could not become the program wanted: the shell's "found but can't be run".
const NOT_STARTED: u8 = 126;

/// How long a held file's previous holder, which the kernel is killing, may take to be gone.
const HOLD_LIMIT: Duration = Duration::from_secs(10);

/// This executable, as the means of starting others.
#[derive(Clone, Debug)]
pub struct Launcher {
    executable: PathBuf,
}

impl Launcher {
    /// Takes the executable of this process.
    pub fn of_this_process() -> io::Result<Self> {
        Ok(Self { executable: std::env::current_exe()? })
    }

    /// The executable itself.
    pub fn executable(&self) -> &Path {
        &self.executable
    }

    /// A command that runs `program` bound to this process. Arguments added to it go to the program; its standard
    /// input is not the caller's to set, and the thread that spawns it must live as long as the program may.
    pub fn bound(&self, program: &Path) -> Command {
        self.bound_command(program, "--hold=".into())
    }

    /// As [`Self::bound`], with an exclusive lock on the file `hold` that lasts exactly as long as the program does,
    /// whatever becomes of this process. The program starts when the lock is free.
    pub fn bound_holding(&self, program: &Path, hold: &Path) -> Command {
        let mut argument = OsString::from("--hold=");
        argument.push(hold);
        self.bound_command(program, argument)
    }

    fn bound_command(&self, program: &Path, hold: OsString) -> Command {
        let mut command = Command::new(&self.executable);
        command.arg(BINDING).arg(process::id().to_string()).arg(hold).arg(program);
        command.stdin(if BINDING == BOUND_BY_PIPE { Stdio::piped() } else { Stdio::null() });
        command
    }

    /// A command that runs `program` in a session of its own, outliving this process.
    pub fn detached(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.executable);
        command.arg(DETACHED).arg(program).stdin(Stdio::null());
        command
    }
}

/// Does what this module's commands ask of the new process, if `arguments` (those of the process, the program's name
/// first) are theirs; else returns `None`. To be called first of all in `main`, before there are threads.
pub fn intercept(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    let first = arguments.next()?;
    let outcome = match first.to_str()? {
        BOUND => become_bound(arguments),
        BOUND_BY_PIPE => stay_as_watcher(arguments),
        DETACHED => become_detached(arguments),
        _ => return None,
    };
    Some(outcome.unwrap_or_else(|error| {
        eprintln!("millrace: {error}");
        ExitCode::from(NOT_STARTED)
    }))
}

/// What is to be run, and for whom.
struct Order {
    parent: u32,
    hold: Option<PathBuf>,
    program: OsString,
    arguments: Vec<OsString>,
}

impl Order {
    fn parse(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let parent = arguments.next()?.to_str()?.parse().ok()?;
        let hold = strip_hold(&arguments.next()?)?;
        Some(Self { parent, hold, program: arguments.next()?, arguments: arguments.collect() })
    }

    fn expect(arguments: impl Iterator<Item = OsString>) -> io::Result<Self> {
        Self::parse(arguments).ok_or_else(|| io::Error::other("internal command with wrong arguments"))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
    }

    fn hold(&self) -> io::Result<Option<File>> {
        self.hold.as_deref().map(lock_when_free).transpose()
    }
}

fn strip_hold(argument: &OsString) -> Option<Option<PathBuf>> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let path = argument.as_bytes().strip_prefix(b"--hold=")?;
    Some((!path.is_empty()).then(|| PathBuf::from(OsString::from_vec(path.to_vec()))))
}

#[cfg(target_os = "linux")]
fn become_bound(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    use rustix::io::{FdFlags, fcntl_setfd};
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    use std::os::fd::IntoRawFd;
    let order = Order::expect(arguments)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the line above: the signal would never come.
    let parent = getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
    if parent != order.parent {
        return Ok(ExitCode::from(NOT_STARTED));
    }
    if let Some(lock) = order.hold()? {
        fcntl_setfd(&lock, FdFlags::empty())?;
        let _left_open_for_the_program = lock.into_raw_fd();
    }
    Err(not_run(&order.program, order.command().exec()))
}

#[cfg(not(target_os = "linux"))]
fn become_bound(_: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    Err(io::Error::other("this platform has no parent-death signal"))
}

/// The program is killed when standard input closes, is asked to stop when this process is, and passes its exit code
/// on (a signal as 128 and its number, as shells do).
fn stay_as_watcher(arguments: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let order = Order::expect(arguments)?;
    let _held_until_the_program_ended = order.hold()?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(watch(&order))
}

async fn watch(order: &Order) -> io::Result<ExitCode> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut asked_to_stop = signal(SignalKind::terminate())?;
    let parent_died = pipe_closed();
    tokio::pin!(parent_died);
    let mut command = tokio::process::Command::from(order.command());
    let mut program =
        command.stdin(Stdio::null()).kill_on_drop(true).spawn().map_err(|e| not_run(&order.program, e))?;
    loop {
        tokio::select! {
            status = program.wait() => return Ok(as_shells_do(status?)),
            _ = asked_to_stop.recv() => {
                if let Some(pid) = program.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
                    rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
                }
            }
            () = &mut parent_died => {
                program.start_kill()?;
                return Ok(as_shells_do(program.wait().await?));
            }
        }
    }
}

fn as_shells_do(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Ends when standard input does. A plain thread reads it: tokio's standard input would keep the runtime from ending.
async fn pipe_closed() {
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
    Err(not_run(&program, Command::new(&program).args(arguments).exec()))
}

fn not_run(program: &OsString, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{} can't be run: {error}", program.display()))
}

fn lock_when_free(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).append(true).open(path)?;
    let deadline = Instant::now() + HOLD_LIMIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                let text =
                    format!("{} is still held by an earlier process that does not end", path.display());
                return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
            }
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(arguments: &[&str]) -> Option<Order> {
        Order::parse(arguments.iter().map(OsString::from))
    }

    #[test]
    fn an_order_is_read_as_the_launcher_writes_it() {
        let launcher = Launcher { executable: "/bin/millrace".into() };
        let mut command = launcher.bound_holding(Path::new("/bin/sleep"), Path::new("/data dir/lock"));
        command.arg("--hold=x");
        let written: Vec<OsString> = command.get_args().skip(1).map(OsString::from).collect();
        let order = Order::parse(written.into_iter()).unwrap();
        assert_eq!(order.parent, process::id());
        assert_eq!(order.hold, Some("/data dir/lock".into()));
        assert_eq!((order.program, order.arguments), ("/bin/sleep".into(), vec!["--hold=x".into()]));
    }

    #[test]
    fn an_incomplete_order_is_none() {
        assert!(order(&["12", "--hold=", "sleep"]).is_some());
        for wrong in [&["12", "--hold="][..], &["12", "sleep", "1"], &["x", "--hold=", "sleep"], &[]] {
            assert!(order(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn arguments_of_other_commands_are_left_alone() {
        for arguments in [&["millrace"][..], &["millrace", "doctor"], &["millrace", "run", "__bound"]] {
            assert!(intercept(arguments.iter().map(OsString::from)).is_none(), "{arguments:?}");
        }
    }
}
