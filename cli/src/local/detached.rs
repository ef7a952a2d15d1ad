//! Clusters of other processes: starting one in the background, finding it, stopping it.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::bound::Launcher;
use super::data::{self, ClusterInfo, Holder, Layout};
use super::options::Options;

/// A start may fetch a nats-server first, on a slow network.
const START_LIMIT: Duration = Duration::from_secs(420);
/// The graces that a cluster gives its processes, and some more.
const STOP_LIMIT: Duration = Duration::from_secs(40);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The name of the log of a cluster in the background.
const LOG: &str = "up";
const TAIL_LINES: usize = 12;

/// Why a cluster in the background did not start or stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The data folder can't be used, or is in use.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// The process can't be started, seen or signalled.
    #[error("the operating system refused: {0}")]
    System(#[from] io::Error),
    /// It ended instead of becoming ready.
    #[error("the cluster ended at its start ({status}); its log, {}, ends with:\n{tail}", .log.display())]
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The end of that log.
        tail: String,
    },
    /// It takes too long.
    #[error("the cluster (process {pid}) is not ready after {} s; its log is {}", START_LIMIT.as_secs(), .log.display())]
    NotReady {
        /// The process, which was left running.
        pid: u32,
        /// Its log.
        log: PathBuf,
    },
    /// It does not end.
    #[error("the cluster (process {pid}) did not end within {} s of being asked to", STOP_LIMIT.as_secs())]
    NotStopped {
        /// The process.
        pid: u32,
    },
}

/// Whether a cluster has run on a data folder, so that there is something to read.
pub fn has_store(data: &Path) -> bool {
    Layout::of(data).is_ok_and(|layout| layout.nats_store().is_dir())
}

/// The cluster that runs on `data` now, if one does and is ready; whoever started it.
pub fn running(data: &Path) -> Option<ClusterInfo> {
    Layout::of(data).ok()?.running()
}

/// Starts `millrace up` with these options in the background, and returns when its cluster is ready.
pub async fn start_detached(options: &Options) -> Result<ClusterInfo, Error> {
    let arguments = [vec!["up".into()], options.to_arguments()].concat();
    start_detached_as(&options.data, &arguments).await
}

/// As [`start_detached`], with other arguments to this executable. They must make it start a cluster on `data`.
pub async fn start_detached_as(data: &Path, arguments: &[OsString]) -> Result<ClusterInfo, Error> {
    let layout = Layout::of(data)?;
    layout.create()?;
    if let Holder::Process(pid) = layout.holder() {
        return Err(data::Error::InUse { path: layout.root().to_owned(), pid }.into());
    }
    layout.rotate_log(LOG)?;
    let log = layout.open_log(LOG)?;
    let log_start = log.metadata()?.len();
    let launcher = Launcher::of_this_process()?;
    let mut command = launcher.detached(launcher.executable());
    let process = command.args(arguments).stdout(log.try_clone()?).stderr(log).spawn()?;
    await_cluster(&layout, process, log_start).await
}

async fn await_cluster(layout: &Layout, mut process: Child, log_start: u64) -> Result<ClusterInfo, Error> {
    let deadline = Instant::now() + START_LIMIT;
    let log = layout.log(LOG);
    loop {
        if let Some(info) = layout.running().filter(|info| info.pid == process.id()) {
            return Ok(info);
        }
        if let Some(status) = process.try_wait()? {
            let tail = data::tail(&log, log_start, TAIL_LINES);
            return Err(Error::Ended { status, log, tail });
        }
        if Instant::now() >= deadline {
            return Err(Error::NotReady { pid: process.id(), log });
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Stops the cluster that runs on `data`, in order, and returns when it is gone: `true` if there was one.
pub async fn stop(data: &Path) -> Result<bool, Error> {
    let layout = Layout::of(data)?;
    let Some(info) = layout.running() else { return Ok(false) };
    let Some(pid) = Pid::from_raw(info.pid.cast_signed()) else { return Ok(false) };
    match kill_process(pid, Signal::TERM) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => return Err(io::Error::from(error).into()),
    }
    let deadline = Instant::now() + STOP_LIMIT;
    while layout.holder() == Holder::Process(Some(info.pid)) {
        if Instant::now() >= deadline {
            return Err(Error::NotStopped { pid: info.pid });
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(true)
}
