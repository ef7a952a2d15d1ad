//! Clusters that run in other processes: starting one in the background, finding it, stopping it.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use crate::data::{self, ClusterInfo, DataLayout, LockHolder};
use crate::launcher::Launcher;
use crate::logs::AppendedLines;
use crate::options::{LocalOptions, WebOffer};

/// A start may include fetching a nats-server over a slow network.
const START_LIMIT: Duration = Duration::from_secs(420);
/// The grace periods of all processes and a margin.
const STOP_LIMIT: Duration = Duration::from_secs(40);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The name of the log of a cluster in the background.
const LOG: &str = "up";
const TAIL_LINES: usize = 12;

/// Errors of starting or stopping a cluster in the background.
#[derive(Debug, thiserror::Error)]
pub enum DetachedClusterError {
    /// The data folder can't be used, or is in use.
    #[error(transparent)]
    Data(#[from] data::DataFolderError),
    /// The process can't be started, seen or signalled.
    #[error("operating system error: {0}")]
    System(#[from] io::Error),
    /// It ended before it was ready.
    #[error("the cluster ended while starting ({status}); its log, {}, ends with:\n{tail}", .log.display())]
    Ended {
        status: ExitStatus,
        log: PathBuf,
        /// The end of that log.
        tail: String,
    },
    /// It was not ready in time.
    #[error("the cluster (process {pid}) is not ready after {} s; its log is {}", START_LIMIT.as_secs(), .log.display())]
    NotReady {
        /// The process; it is still running.
        pid: u32,
        log: PathBuf,
    },
    /// It did not stop in time.
    #[error("the cluster (process {pid}) did not stop within {} s of SIGTERM", STOP_LIMIT.as_secs())]
    NotStopped {
        /// The process.
        pid: u32,
    },
}

/// `true` if a cluster has run on a data folder, so that there is something to read.
pub fn has_nats_store(data: &Path) -> bool {
    DataLayout::new(data).is_ok_and(|layout| layout.nats_store_path().is_dir())
}

/// Returns the cluster that is running on `data`, if there is one and it is ready.
pub fn find_running_cluster(data: &Path) -> Option<ClusterInfo> {
    DataLayout::new(data).ok()?.running_cluster()
}

/// `true` if a process uses the data folder: a cluster is running on it, starting or stopping.
pub fn is_data_folder_in_use(data: &Path) -> bool {
    DataLayout::new(data).is_ok_and(|layout| layout.lock_holder() != LockHolder::None)
}

/// `true` if the cluster of process `pid` has not ended.
pub fn is_running_as(data: &Path, pid: u32) -> bool {
    DataLayout::new(data).is_ok_and(|layout| layout.lock_holder() == LockHolder::Process(Some(pid)))
}

/// Returns what a cluster in the background logs from now on.
pub fn cluster_log(data: &Path) -> Result<AppendedLines, DetachedClusterError> {
    Ok(AppendedLines::from_end(DataLayout::new(data)?.log_path(LOG)))
}

/// Starts `millrace up` with these options in the background and returns when its server and streams are ready. Its processes may
/// still fail, and end it.
pub async fn start_detached(options: &LocalOptions) -> Result<DetachedCluster, DetachedClusterError> {
    let arguments = [vec!["up".into()], options.to_arguments()].concat();
    start_detached_as(&options.data, &arguments).await
}

/// Starts a cluster in the background that stops when nobody uses it ([`crate::users`]), and returns when it is ready. The
/// caller must be a user of it.
pub async fn start_while_used(
    options: &LocalOptions,
    web: WebOffer,
) -> Result<DetachedCluster, DetachedClusterError> {
    let no_web = match web {
        WebOffer::AsConfigured => Vec::new(),
        WebOffer::Never => vec!["--no-web".into()],
    };
    let arguments = [vec!["up".into(), "--while-used".into()], no_web, options.to_arguments()].concat();
    start_detached_as(&options.data, &arguments).await
}

/// A cluster in the background that this process has started.
#[derive(Debug)]
pub struct DetachedCluster {
    pub info: ClusterInfo,
    process: Child,
    log: ClusterLog,
}

/// The log of a cluster in the background, from its start.
#[derive(Debug)]
struct ClusterLog {
    path: PathBuf,
    start: u64,
}

impl ClusterLog {
    fn ended_error(&self, status: ExitStatus) -> DetachedClusterError {
        let tail = data::last_lines_of_file(&self.path, self.start, TAIL_LINES);
        DetachedClusterError::Ended { status, log: self.path.clone(), tail }
    }
}

impl DetachedCluster {
    /// Waits until the process ends, and returns the error with the end of its log.
    pub async fn wait_for_failure(&mut self) -> DetachedClusterError {
        loop {
            match self.process.try_wait() {
                Ok(None) => sleep(POLL_INTERVAL).await,
                Ok(Some(status)) => return self.log.ended_error(status),
                Err(error) => return error.into(),
            }
        }
    }

    /// Waits for the end of the process for as long as a stop may take, and returns its exit code; `None` if a signal ended
    /// it or it has not ended.
    pub async fn wait_for_exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + STOP_LIMIT;
        loop {
            match self.process.try_wait() {
                Ok(None) if Instant::now() < deadline => sleep(POLL_INTERVAL).await,
                Ok(status) => return status.and_then(|status| status.code()),
                Err(_) => return None,
            }
        }
    }
}

/// Like [`start_detached`], with other arguments to this executable, which must start a cluster on `data`.
pub async fn start_detached_as(
    data: &Path,
    arguments: &[OsString],
) -> Result<DetachedCluster, DetachedClusterError> {
    let layout = DataLayout::new(data)?;
    layout.create_folders()?;
    if let LockHolder::Process(pid) = layout.lock_holder() {
        return Err(data::DataFolderError::InUse { path: layout.root_path().to_owned(), pid }.into());
    }
    layout.rotate_log(LOG)?;
    let log = layout.open_log(LOG)?;
    let log_start = log.metadata()?.len();
    let launcher = Launcher::from_current_exe()?;
    let mut command = launcher.build_detached_command(launcher.executable());
    let process = command.args(arguments).stdout(log.try_clone()?).stderr(log).spawn()?;
    await_cluster(&layout, process, ClusterLog { path: layout.log_path(LOG), start: log_start }).await
}

async fn await_cluster(
    layout: &DataLayout,
    mut process: Child,
    log: ClusterLog,
) -> Result<DetachedCluster, DetachedClusterError> {
    let deadline = Instant::now() + START_LIMIT;
    loop {
        if let Some(info) = layout.running_cluster().filter(|info| info.pid == process.id()) {
            return Ok(DetachedCluster { info, process, log });
        }
        if let Some(status) = process.try_wait()? {
            return Err(log.ended_error(status));
        }
        if Instant::now() >= deadline {
            return Err(DetachedClusterError::NotReady { pid: process.id(), log: log.path });
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Stops the cluster that is running on `data` and returns when it has ended; `false` if none was running.
pub async fn stop_cluster(data: &Path) -> Result<bool, DetachedClusterError> {
    let layout = DataLayout::new(data)?;
    let Some(info) = layout.running_cluster() else { return Ok(false) };
    let Some(pid) = Pid::from_raw(info.pid.cast_signed()) else { return Ok(false) };
    match kill_process(pid, Signal::TERM) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => return Err(io::Error::from(error).into()),
    }
    let deadline = Instant::now() + STOP_LIMIT;
    while layout.lock_holder() == LockHolder::Process(Some(info.pid)) {
        if Instant::now() >= deadline {
            return Err(DetachedClusterError::NotStopped { pid: info.pid });
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(true)
}
