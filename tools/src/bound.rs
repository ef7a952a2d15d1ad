//! Programs that are bound to this process: how they are started so that the kernel kills them when it dies, however it
//! dies, and how they end with all that they have started. What they are for, and what is said to them, is the business
//! of whoever starts them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::ExitCode;
use std::sync::{OnceLock, mpsc};
use std::thread;

use tokio::process::Command;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::execute::Launcher;

/// Arguments: the parent's process number, the program, its arguments.
const BOUND: &str = "__bound-program";

/// A program, without arguments yet. With a launcher the kernel kills it when this process dies; [`spawn`] must start it.
/// Without one it is left to notice that its pipes have closed.
#[must_use]
pub fn command(program: impl AsRef<OsStr>, launcher: Option<&Launcher>) -> Command {
    match launcher.filter(|_| cfg!(target_os = "linux")) {
        Some(launcher) => {
            let mut command = Command::new(launcher.executable());
            command.arg(BOUND).arg(std::process::id().to_string()).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// The processes of a program: it leads a group of its own, by its process number. What is left of them is killed on
/// drop.
pub struct Group(pub u32);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = rustix::process::Pid::from_raw(self.0.cast_signed()) {
            // An error means that nothing is left.
            let _ = rustix::process::kill_process_group(leader, rustix::process::Signal::KILL);
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Starts a program on a thread that stays: to the kernel a process's parent is the thread that started it, and this one
/// lives as long as this process.
///
/// # Errors
/// The thread is gone.
pub async fn spawn<T: Send + 'static>(start: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    static THREAD: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let jobs = THREAD.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        thread::spawn(move || jobs.into_iter().for_each(|job| job()));
        sender
    });
    let (done, when_done) = oneshot::channel();
    let runtime = Handle::current();
    let gone = || io::Error::other("the thread that starts programs is gone");
    let job: Job = Box::new(move || {
        let _entered = runtime.enter();
        drop(done.send(start()));
    });
    jobs.send(job).map_err(|_| gone())?;
    when_done.await.map_err(|_| gone())
}

/// Does what [`command`] asks of the new process, if `arguments` (the program's name first) are its; else returns
/// `None`. [`crate::execute::launcher`] calls it.
pub(crate) fn launch(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    if arguments.next()?.to_str()? != BOUND {
        return None;
    }
    let failed =
        become_bound(arguments).err().unwrap_or_else(|| io::Error::other("it ended before it began"));
    eprintln!("millrace: the program can't be started: {failed}");
    Some(ExitCode::from(126))
}

#[cfg(target_os = "linux")]
fn become_bound(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    use std::os::unix::process::CommandExt;
    let wrong = || io::Error::other("internal command with wrong arguments");
    let parent: i32 = arguments.next().and_then(|text| text.to_str()?.parse().ok()).ok_or_else(wrong)?;
    let program = arguments.next().ok_or_else(wrong)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the line above: the signal would never come.
    if getppid().is_none_or(|pid| pid.as_raw_nonzero().get() != parent) {
        return Ok(());
    }
    Err(std::process::Command::new(program).args(arguments).exec())
}

#[cfg(not(target_os = "linux"))]
fn become_bound(_: impl Iterator<Item = OsString>) -> io::Result<()> {
    Err(io::Error::other("this platform has no parent-death signal"))
}
