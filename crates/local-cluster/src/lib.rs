//! Local clusters: nats-server, supervisors, workers and critics as child processes of this one, on one data folder.
//!
//! ```text
//! Cluster ─── manager thread ─── Processes ─┬─ nats-server
//!                                           ├─ supervisor-1 …
//!                                           ├─ worker-1 …
//!                                           └─ critic-1 …
//! ```
//!
//! A process that dies unexpectedly is restarted. A stop begins with workers and critics and ends with the server. If this
//! process is killed, the kernel kills the others. Durable data stays in the data folder, for the next cluster on it.
//!
//! [`nats_server`] finds a nats-server program or downloads one; [`folders`] has the default paths; [`logs`] reads the logs
//! of the processes. This crate knows nothing of runs, plans or streams.

mod cluster;
pub mod data;
mod detached;
pub mod folders;
mod launcher;
pub mod logs;
pub mod nats_server;
mod options;
mod processes;
mod server;
pub mod users;

use std::ffi::OsString;
use std::process::ExitCode;

pub use cluster::{LocalCluster, StartError};
pub use data::{ClusterInfo, ClusterLifetime};
pub use detached::{
    DetachedCluster, DetachedClusterError, cluster_log, find_running_cluster, has_nats_store,
    is_data_folder_in_use, is_running_as, start_detached, start_while_used, stop_cluster,
};
pub use launcher::Launcher;
pub use options::{ApiAddress, ChildRole, ChildSpec, LocalOptions, WebOffer};
pub use processes::{ProcessEvent, StartProcessError};
pub use server::{ServerConfig, ServerRoutes};

/// Runs an internal command of this crate, if `arguments` (of the process, program name first) name one. Must be called
/// first in `main`, before there are threads.
pub fn run_if_internal_command(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if arguments.get(1).is_some_and(|first| first == cluster::NAME) {
        return Some(cluster::run_debug_command(arguments[1..].to_vec()).unwrap_or_else(|error| {
            eprintln!("millrace: {error}");
            ExitCode::FAILURE
        }));
    }
    launcher::run_if_launcher_command(arguments)
}
