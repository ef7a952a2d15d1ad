//! Programs that are MCP servers: how they are started, so that they end with this process, and where what they say
//! on standard error goes.

use std::ffi::OsString;
use std::io;
use std::process::{ExitCode, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;

use process_wrap::tokio::{CommandWrap, KillOnDrop, ProcessGroup};
use rmcp::transport::TokioChildProcess;
use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::info;

use super::settings::Server;
use crate::execute::Launcher;

/// Arguments: the parent's process number, the program, its arguments.
const BOUND: &str = "__bound-server";

/// What programs commonly need of the environment. The rest is named in the settings.
const COMMON: [&str; 9] = ["HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"];

/// Starts a server's program. With a launcher the kernel kills it when this process dies, however it dies; without
/// one it is left to notice that its standard input has closed.
pub(super) async fn start(server: &Server, launcher: Option<&Launcher>) -> io::Result<TokioChildProcess> {
    let mut command = CommandWrap::from(command(server, launcher));
    command.wrap(KillOnDrop).wrap(ProcessGroup::leader());
    let builder = TokioChildProcess::builder(command).stderr(Stdio::piped());
    let (child, said) = on_a_thread_that_stays(move || builder.spawn()).await??;
    if let Some(said) = said {
        tokio::spawn(log(server.name.clone(), said));
    }
    Ok(child)
}

fn command(server: &Server, launcher: Option<&Launcher>) -> Command {
    let program = server.command.clone().unwrap_or_default();
    let mut command = match launcher.filter(|_| cfg!(target_os = "linux")) {
        Some(launcher) => {
            let mut command = Command::new(launcher.executable());
            command.arg(BOUND).arg(std::process::id().to_string()).arg(program);
            command
        }
        None => Command::new(program),
    };
    let names = COMMON.into_iter().chain(server.env.iter().map(String::as_str));
    let environment = names.filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?)));
    command.args(&server.args).env_clear().envs(environment);
    if let Some(folder) = &server.cwd {
        command.current_dir(folder);
    }
    command
}

/// The processes of a server: its program leads a group of its own. What is left of them is killed on drop.
pub(super) struct Group(pub(super) u32);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = rustix::process::Pid::from_raw(self.0.cast_signed()) {
            // An error means that nothing is left.
            let _ = rustix::process::kill_process_group(leader, rustix::process::Signal::KILL);
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// To the kernel a process's parent is the thread that started it: this one lives as long as this process.
async fn on_a_thread_that_stays<T: Send + 'static>(
    job: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
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
        drop(done.send(job()));
    });
    jobs.send(job).map_err(|_| gone())?;
    when_done.await.map_err(|_| gone())
}

async fn log(server: String, mut said: ChildStderr) {
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = said.read(&mut buffer).await {
        for line in String::from_utf8_lossy(&buffer[..count]).lines().filter(|line| !line.trim().is_empty()) {
            info!(server, "{}", line.trim_end());
        }
    }
}

/// Does what [`start`] asks of the new process, if `arguments` (the program's name first) are its; else returns
/// `None`. [`crate::execute::launcher`] calls it.
pub fn bound(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    if arguments.next()?.to_str()? != BOUND {
        return None;
    }
    let failed =
        become_bound(arguments).err().unwrap_or_else(|| io::Error::other("it ended before it began"));
    eprintln!("millrace: the MCP server can't be started: {failed}");
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
