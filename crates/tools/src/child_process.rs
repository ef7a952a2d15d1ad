//! Child processes bound to the lifetime of this process: the kernel kills them when this process dies for any reason, and
//! they end together with all processes they started. Their purpose and their input are up to the caller.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::ExitCode;
use std::sync::{OnceLock, mpsc};
use std::thread;

use tokio::process::Command;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::execute::Launcher;

/// Marks the arguments of a launcher process: the parent's process id, the program, its arguments.
const LAUNCH_ARGUMENT: &str = "__bound-program";

/// Returns a command without arguments. With a launcher, the kernel kills the program when this process dies; it must be
/// started by [`run_on_spawn_thread`]. Without a launcher, the program itself must notice that its pipes were closed.
#[must_use]
pub fn command_bound_to_parent(program: impl AsRef<OsStr>, launcher: Option<&Launcher>) -> Command {
    match launcher.filter(|_| cfg!(target_os = "linux")) {
        Some(launcher) => {
            let mut command = Command::new(launcher.executable());
            command.arg(LAUNCH_ARGUMENT).arg(std::process::id().to_string()).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// The process group of a program, by the process id of its leader. Kills all remaining processes of the group on drop.
pub struct ProcessGroupGuard(pub u32);

impl Drop for ProcessGroupGuard {
    fn drop(&mut self) {
        if let Some(leader) = rustix::process::Pid::from_raw(self.0.cast_signed()) {
            // An error means that no process is left.
            let _ = rustix::process::kill_process_group(leader, rustix::process::Signal::KILL);
        }
    }
}

type SpawnJob = Box<dyn FnOnce() + Send>;

/// Starts a program on a permanent thread. The kernel's parent-death signal refers to the thread that started the
/// program, so that thread must live as long as this process.
///
/// # Errors
/// The thread has died.
pub async fn run_on_spawn_thread<T: Send + 'static>(
    start: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    static THREAD: OnceLock<mpsc::Sender<SpawnJob>> = OnceLock::new();
    let jobs = THREAD.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<SpawnJob>();
        thread::spawn(move || jobs.into_iter().for_each(|job| job()));
        sender
    });
    let (sender, receiver) = oneshot::channel();
    let runtime = Handle::current();
    let thread_gone = || io::Error::other("the thread that starts programs has died");
    let job: SpawnJob = Box::new(move || {
        let _entered = runtime.enter();
        drop(sender.send(start()));
    });
    jobs.send(job).map_err(|_| thread_gone())?;
    receiver.await.map_err(|_| thread_gone())
}

/// Executes the program of [`command_bound_to_parent`] in the new process if `arguments` (beginning with the program name)
/// come from it; returns `None` otherwise. Called by [`crate::execute::launcher`].
pub(crate) fn exec_bound_program(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    if arguments.next()?.to_str()? != LAUNCH_ARGUMENT {
        return None;
    }
    let failed = exec_with_parent_death_signal(arguments)
        .err()
        .unwrap_or_else(|| io::Error::other("its parent has already died"));
    eprintln!("millrace: cannot start the program: {failed}");
    Some(ExitCode::from(126))
}

#[cfg(target_os = "linux")]
fn exec_with_parent_death_signal(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    use std::os::unix::process::CommandExt;
    let invalid_arguments = || io::Error::other("invalid arguments for an internal command");
    let parent: i32 =
        arguments.next().and_then(|text| text.to_str()?.parse().ok()).ok_or_else(invalid_arguments)?;
    let program = arguments.next().ok_or_else(invalid_arguments)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the parent died before the line above, the signal will never arrive.
    if getppid().is_none_or(|pid| pid.as_raw_nonzero().get() != parent) {
        return Ok(());
    }
    Err(std::process::Command::new(program).args(arguments).exec())
}

#[cfg(not(target_os = "linux"))]
fn exec_with_parent_death_signal(_: impl Iterator<Item = OsString>) -> io::Result<()> {
    Err(io::Error::other("this platform does not support parent-death signals"))
}
