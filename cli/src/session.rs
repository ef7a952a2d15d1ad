//! The local cluster of `run` and `resume`: joins the one on the data folder, or starts one that lives as long as somebody
//! uses it.
//!
//! A cluster is started as a process of its own (`millrace up --while-used`), so that it outlives the command that started
//! it while others use it. Its messages, and those of its processes, go to a log, from which each user prints new lines.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use millrace_local_cluster::logs::AppendedLines;
use millrace_local_cluster::users::ClusterUse;
use millrace_local_cluster::{
    self as local, ClusterInfo, ClusterLifetime, DetachedCluster, DetachedClusterError, LocalOptions,
    WebOffer,
};
use millrace_runtime::Bus;
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::view::print_stderr_line;

/// Time that work has to end after an interrupt.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The number of times that a start is repeated because another process has just started a cluster.
const START_TRIES: u32 = 5;

/// A use of the cluster on a data folder.
pub struct ClusterSession {
    data: PathBuf,
    info: ClusterInfo,
    cluster_use: ClusterUse,
    is_new: bool,
}

/// The start of a cluster, if none is running.
#[derive(Clone, Copy)]
pub struct ClusterStart<'a> {
    pub options: &'a LocalOptions,
    pub web: WebOffer,
}

impl<'a> From<&'a LocalOptions> for ClusterStart<'a> {
    fn from(options: &'a LocalOptions) -> Self {
        Self { options, web: WebOffer::AsConfigured }
    }
}

/// A use of a cluster that keeps running in the background when the use ends.
pub struct LastingCluster {
    pub bus: Bus,
    pub info: ClusterInfo,
    /// `true` if it was started for this use.
    pub is_new: bool,
    _cluster_use: ClusterUse,
}

impl LastingCluster {
    /// Joins the cluster on the data folder, or starts one, and lets it run until `millrace down`.
    pub async fn join_or_start(options: &LocalOptions) -> Result<Self, CommandError> {
        let unusable = CommandError::unusable_environment;
        let (cluster_use, running) = ClusterUse::register(&options.data, false).await.map_err(unusable)?;
        let (info, is_new) = match running {
            Some(info) => {
                cluster_use.keep_cluster_running().map_err(CommandError::unusable_environment)?;
                (info, false)
            }
            None => (local::start_detached(options).await.map_err(describe_failed_start)?.info, true),
        };
        let bus = info.connect().await?;
        Ok(Self { bus, info, is_new, _cluster_use: cluster_use })
    }
}

/// The log output of the cluster of a session.
struct ClusterOutput {
    log: AppendedLines,
    /// The last error that the cluster has logged.
    last_error: Option<String>,
    data: PathBuf,
    pid: u32,
    /// The process of the cluster, if the session has started it.
    started: Option<DetachedCluster>,
}

impl ClusterSession {
    /// Joins the cluster on the data folder, or starts one.
    async fn open(start: ClusterStart<'_>) -> Result<(Self, ClusterOutput), CommandError> {
        let data = start.options.data.clone();
        for _ in 0..START_TRIES {
            let (cluster_use, running) =
                ClusterUse::register(&data, false).await.map_err(CommandError::unusable_environment)?;
            let mut log = local::cluster_log(&data).map_err(CommandError::unusable_environment)?;
            let (info, started) = match running {
                Some(info) => (info, None),
                None => match start_and_print(start, &mut log).await {
                    Ok(started) => (started.info.clone(), Some(started)),
                    // Another command was faster, or a command reads from the folder for a moment.
                    Err(_) if local::is_data_folder_in_use(&data) => continue,
                    Err(error) => return Err(describe_failed_start(error)),
                },
            };
            let (pid, is_new) = (info.pid, started.is_some());
            let output = ClusterOutput { log, last_error: None, data: data.clone(), pid, started };
            return Ok((Self { data, info, cluster_use, is_new }, output));
        }
        Err(CommandError::unusable_environment(anyhow!(
            "other processes keep using the data folder {}; try again",
            data.display()
        )))
    }

    pub fn info(&self) -> &ClusterInfo {
        &self.info
    }

    /// `true` if this session has started the cluster.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Lets the cluster run until `millrace down`, also if nobody uses it.
    pub fn keep_cluster_running(&self) -> Result<(), CommandError> {
        self.cluster_use.keep_cluster_running().map_err(CommandError::unusable_environment)?;
        Ok(())
    }

    /// `true` if others use the cluster, too.
    pub fn has_other_users(&self) -> bool {
        // If the lock can't be read, the cluster stops with this session, as far as is known.
        self.cluster_use.has_other_users().unwrap_or(false)
    }

    /// `true` if the cluster stops with its last user.
    pub fn stops_with_its_users(&self) -> bool {
        let running = local::find_running_cluster(&self.data);
        running.is_none_or(|info| info.lifetime == ClusterLifetime::WhileUsed)
    }
}

impl ClusterOutput {
    /// Prints what the cluster logs. Returns when the cluster has ended with an error.
    async fn print_until_error(&mut self) -> CommandError {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let is_over = !local::is_running_as(&self.data, self.pid);
            self.print_new_lines();
            let error = self.last_error.take_if(|_| is_over);
            if let Some(error) = error {
                let code = match &mut self.started {
                    Some(started) => started.wait_for_exit_code().await,
                    None => None,
                };
                return error_with_code(code, error);
            }
        }
    }

    fn print_new_lines(&mut self) {
        for line in self.log.read_new_lines() {
            match line.strip_prefix("error: ") {
                Some(error) => self.last_error = Some(error.to_owned()),
                None => print_stderr_line(&line),
            }
        }
    }
}

/// Starts a cluster and prints what it logs meanwhile, such as the progress of a download.
async fn start_and_print(
    start: ClusterStart<'_>,
    log: &mut AppendedLines,
) -> Result<DetachedCluster, DetachedClusterError> {
    let starting = local::start_while_used(start.options, start.web);
    tokio::pin!(starting);
    loop {
        tokio::select! {
            result = &mut starting => {
                if result.is_ok() {
                    print_cluster_lines(log);
                }
                return result;
            }
            () = tokio::time::sleep(POLL_INTERVAL) => print_cluster_lines(log),
        }
    }
}

fn print_cluster_lines(log: &mut AppendedLines) {
    log.read_new_lines()
        .iter()
        .filter(|line| !line.starts_with("error: "))
        .for_each(|line| print_stderr_line(line));
}

/// Returns the error of a cluster that did not start: its own last words and its own exit code.
fn describe_failed_start(error: DetachedClusterError) -> CommandError {
    let DetachedClusterError::Ended { status, tail, .. } = &error else {
        return CommandError::unusable_environment(error);
    };
    let last = tail.lines().rev().find_map(|line| line.strip_prefix("error: "));
    match last {
        Some(last) => {
            // The error may have several lines, such as the end of the server's log.
            let from = tail.rfind(last).map_or(last, |at| &tail[at..]);
            error_with_code(status.code(), from.to_owned())
        }
        None => CommandError::unusable_environment(error),
    }
}

fn error_with_code(code: Option<i32>, text: String) -> CommandError {
    match code {
        Some(2) => refused!(text),
        Some(_) | None => CommandError::unusable_environment(anyhow!(text)),
    }
}

/// Calls `work` with a connection to the local cluster on the data folder: the one that is running, or one that is started
/// for it and stops afterwards, unless others use it by then.
pub async fn run_with_local_cluster<'a>(
    start: impl Into<ClusterStart<'a>>,
    interrupt: &CancellationToken,
    work: impl AsyncFnOnce(&Bus, &ClusterSession) -> CommandResult,
) -> CommandResult {
    let (session, mut output) = tokio::select! {
        opened = ClusterSession::open(start.into()) => opened?,
        () = interrupt.cancelled() => return Ok(CommandExit::Interrupted),
    };
    let work = async {
        let bus = session.info().connect().await?;
        work(&bus, &session).await
    };
    let grace = async {
        interrupt.cancelled().await;
        tokio::time::sleep(INTERRUPT_GRACE).await;
    };
    let outcome = tokio::select! {
        outcome = work => outcome,
        error = output.print_until_error() => Err(error),
        () = grace => Ok(CommandExit::Interrupted),
    };
    output.print_new_lines();
    // A folder that can't be used any more has no cluster to wait for.
    let _ = session.cluster_use.end().await;
    outcome
}
