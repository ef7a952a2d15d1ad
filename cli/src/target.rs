//! The cluster that a command talks to: the `--nats` and `--data` arguments, and the connection they lead to.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use millrace_client::{read_decisions, read_log_damage};
use millrace_local_cluster::users::ClusterUse;
use millrace_local_cluster::{self as local, ClusterLifetime, LocalCluster, folders};
use millrace_protocol::ids::RunId;
use millrace_protocol::safe_text::single_line;
use millrace_runtime::nats::connection::parse_server_urls;
use millrace_runtime::{Bus, ConnectionSettings, Fault};

use crate::exit::CommandError;
use crate::history::RunHistory;
use crate::invocation::command_hint;

/// Timeout of a command that waits for a restarting server.
const RESTART_PATIENCE: Duration = Duration::from_secs(2);
/// The number of times that a start is repeated because another process has just used the data folder.
const START_TRIES: u32 = 20;

/// The arguments that select a cluster.
#[derive(Args, Debug, Clone)]
pub struct ClusterTarget {
    /// NATS server of the cluster. Credentials are read from MILLRACE_NATS_NKEY or MILLRACE_NATS_CREDS (files), or from
    /// MILLRACE_NATS_USER and MILLRACE_NATS_PASSWORD [default: the local cluster running on the data folder]
    #[arg(long, env = "MILLRACE_NATS_URL", hide_env_values = true, value_name = "URL", value_parser = parse_server_urls)]
    pub nats: Option<String>,
    /// Data folder of a local cluster
    #[arg(long, env = "MILLRACE_DATA", value_name = "DIR", default_value_os_t = folders::default_data_folder())]
    pub data: PathBuf,
}

impl ClusterTarget {
    pub fn of_data_folder(data: &Path) -> Self {
        Self { nats: None, data: data.to_owned() }
    }

    /// Connects to the cluster. A server that is restarting is waited for.
    pub async fn connect(&self) -> Result<Bus, CommandError> {
        if let Some(url) = &self.nats {
            return Ok(Bus::join_existing_cluster(
                &ConnectionSettings::from_environment(url),
                "millrace",
                RESTART_PATIENCE,
            )
            .await?);
        }
        let info = local::find_running_cluster(&self.data).ok_or_else(|| self.no_cluster_error())?;
        Ok(info.connect().await?)
    }

    /// Connects to the cluster as one of its users: a local cluster does not stop by itself until the use is dropped.
    pub async fn use_cluster(&self) -> Result<(Bus, Option<ClusterUse>), CommandError> {
        if self.nats.is_some() || !local::has_nats_store(&self.data) {
            return Ok((self.connect().await?, None));
        }
        let registered = ClusterUse::register(&self.data, false).await;
        let (cluster_use, running) = registered.map_err(CommandError::unusable_environment)?;
        let info = running.ok_or_else(|| self.no_cluster_error())?;
        Ok((info.connect().await?, Some(cluster_use)))
    }

    /// Calls `read` with a connection for reading.
    pub async fn read<T>(
        &self,
        read: impl AsyncFnOnce(&Bus) -> Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        ReadConnection::open_for_reading(self).await?.read_and_close(read).await
    }

    /// Calls `send` with a connection for a command that is to be decided on.
    pub async fn command<T>(
        &self,
        send: impl AsyncFnOnce(&Bus) -> Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        ReadConnection::open_for_command(self).await?.read_and_close(send).await
    }

    fn no_cluster_error(&self) -> CommandError {
        let data = self.data.display();
        CommandError::unusable_environment(anyhow!(
            "no cluster is running on {data}; start one with `{}`, or give the address of one with --nats",
            command_hint("up")
        ))
    }
}

/// The processes that a command starts while no cluster is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OfflineCluster {
    Server,
    /// A server and a supervisor: the command has to be decided on.
    Supervisor,
}

/// A connection for one short command. If no cluster is running on the data folder but one has run there before, its
/// nats-server is started for the duration, without workers, so that no run makes progress.
pub struct ReadConnection {
    bus: Bus,
    offline: Option<LocalCluster>,
    is_offline: bool,
    /// Keeps a cluster from stopping that runs only while it is used.
    _cluster_use: Option<ClusterUse>,
}

impl ReadConnection {
    pub async fn open_for_reading(target: &ClusterTarget) -> Result<Self, CommandError> {
        Self::open(target, OfflineCluster::Server).await
    }

    /// Connects for a command that is to be decided on.
    pub async fn open_for_command(target: &ClusterTarget) -> Result<Self, CommandError> {
        Self::open(target, OfflineCluster::Supervisor).await
    }

    async fn open(target: &ClusterTarget, needs: OfflineCluster) -> Result<Self, CommandError> {
        let unusable = CommandError::unusable_environment;
        if target.nats.is_some() {
            let bus = target.connect().await?;
            return Ok(Self { bus, offline: None, is_offline: false, _cluster_use: None });
        }
        for _ in 0..START_TRIES {
            if !local::has_nats_store(&target.data) {
                break;
            }
            let accepts_one_command = needs == OfflineCluster::Server;
            let (cluster_use, running) =
                ClusterUse::register(&target.data, accepts_one_command).await.map_err(unusable)?;
            if let Some(info) = running {
                let is_offline = info.lifetime == ClusterLifetime::OneCommand;
                let bus = info.connect().await?;
                return Ok(Self { bus, offline: None, is_offline, _cluster_use: Some(cluster_use) });
            }
            drop(cluster_use);
            let has_supervisor = needs == OfflineCluster::Supervisor;
            let cluster = match LocalCluster::start_for_one_command(&target.data, has_supervisor).await {
                Ok(cluster) => cluster,
                // Another process was faster.
                Err(_) if local::is_data_folder_in_use(&target.data) => continue,
                Err(error) => return Err(CommandError::unusable_environment(error)),
            };
            return match cluster.info().connect().await {
                Ok(bus) => Ok(Self { bus, offline: Some(cluster), is_offline: true, _cluster_use: None }),
                Err(fault) => {
                    cluster.stop().await;
                    Err(fault.into())
                }
            };
        }
        Err(target.no_cluster_error())
    }

    /// `true` if no cluster is running, so that no run makes progress.
    pub fn is_offline(&self) -> bool {
        self.is_offline
    }

    /// Calls `read` with the connection, then stops the server if it was started for this.
    pub async fn read_and_close<T>(
        self,
        read: impl AsyncFnOnce(&Bus) -> Result<T, CommandError>,
    ) -> Result<T, CommandError> {
        let outcome = read(&self.bus).await;
        if let Some(cluster) = self.offline {
            cluster.stop_after_readers().await;
        }
        outcome
    }
}

/// Refuses a run whose log is damaged.
pub async fn refuse_damaged_log(bus: &Bus, run: &RunId) -> Result<(), CommandError> {
    let Some(damage) = read_log_damage(bus, run).await? else { return Ok(()) };
    Err(CommandError::unusable_environment(anyhow!(
        "the log of run {run} is damaged: {}; it cannot continue. Restore a backup with `{}`, or submit the run again",
        single_line(&damage),
        command_hint("restore")
    )))
}

/// Reads the history of a run, up to its last decision.
pub async fn read_run_history(bus: &Bus, run: &RunId) -> Result<RunHistory, Fault> {
    let mut history = RunHistory::default();
    read_decisions(bus, run, |decision| history.add_decision(decision)).await?;
    Ok(history)
}
