//! `millrace restore`: restores a backup into an empty NATS account or an empty data folder. It starts no cluster; a
//! cluster that is started there continues from the time of the backup.

use std::fmt::Display;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use millrace_runtime::ConnectionSettings;
use millrace_runtime::nats::connection::Credentials;
use millrace_runtime::store::backup::{self, RestoreOptions, RestoreReport};
use tokio_util::sync::CancellationToken;

use super::backup::{map_backup_error, print_progress};
use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::invocation::command_hint;
use crate::json::{BackupOutcome, print_json};
use crate::target::ClusterTarget;
use crate::view::{print_stderr_line, print_stdout_line};
use millrace_local_cluster::{self as local, ClusterInfo, LocalCluster};

/// Maximum number of missing items that are listed.
const SHOWN: usize = 20;

const EXAMPLE: &str = "\
The target must be empty. Exit code 3: everything in the backup was restored, but it refers to data that was \
already missing when the backup was taken.

Example:
  millrace restore backups/monday --data /new/folder
  millrace up --data /new/folder";

/// The arguments of `millrace restore`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLE)]
pub struct RestoreArguments {
    /// Folder that `millrace backup` wrote
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Number of replicas of every stream: 1, 3 or 5 [default: as in the backup]
    #[arg(long, value_name = "N", value_parser = PossibleValuesParser::new(["1", "3", "5"]).map(|n| n.parse::<u8>().unwrap_or(1)), hide_possible_values = true)]
    replicas: Option<u8>,
    /// First remove the partial data of an interrupted restore
    #[arg(long)]
    again: bool,
    /// Print what was restored as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

/// Restores a backup, completely or not at all.
pub async fn run_command(arguments: RestoreArguments, shutdown: CancellationToken) -> CommandResult {
    let request = RestoreOptions {
        folder: arguments.folder.clone(),
        replicas: arguments.replicas,
        again: arguments.again,
    };
    let restored = match &arguments.target.nats {
        Some(url) => {
            restore_into_cluster(&ConnectionSettings::from_environment(url), &request, &shutdown).await?
        }
        None => restore_into_data_folder(&arguments.target, &request, &shutdown).await?,
    };
    Ok(print_restore_report(&restored, &arguments))
}

async fn restore_into_cluster(
    connection: &ConnectionSettings,
    request: &RestoreOptions,
    shutdown: &CancellationToken,
) -> Result<RestoreReport, CommandError> {
    backup::restore_backup(connection, request, shutdown, &print_progress).await.map_err(map_backup_error)
}

/// Restores into the data folder of a local cluster. If none is running on it, its server is started for the duration.
async fn restore_into_data_folder(
    target: &ClusterTarget,
    request: &RestoreOptions,
    shutdown: &CancellationToken,
) -> Result<RestoreReport, CommandError> {
    if let Some(info) = local::find_running_cluster(&target.data) {
        return restore_into_cluster(&connection_to_cluster(&info), request, shutdown).await;
    }
    // Verify first: an invalid backup must not create a data folder.
    backup::verify_backup(&request.folder, shutdown, &|_| {}).map_err(map_backup_error)?;
    let server = LocalCluster::start_for_one_command(&target.data, false)
        .await
        .map_err(CommandError::unusable_environment)?;
    let request = RestoreOptions { replicas: request.replicas.or(Some(1)), ..request.clone() };
    let restored = restore_into_cluster(&connection_to_cluster(server.info()), &request, shutdown).await;
    server.stop().await;
    restored
}

fn connection_to_cluster(info: &ClusterInfo) -> ConnectionSettings {
    let credentials = Credentials::Password { user: info.user.clone(), password: info.password.clone() };
    ConnectionSettings { credentials, ..ConnectionSettings::unauthenticated(info.url.clone()) }
}

fn format_count<N: Display + PartialEq + From<u8>>(count: N, one: &str, several: &str) -> String {
    format!("{count} {}", if count == N::from(1) { one } else { several })
}

fn print_restore_report(restored: &RestoreReport, arguments: &RestoreArguments) -> CommandExit {
    let RestoreReport { manifest, settings, archived, live, missing } = restored;
    if arguments.json {
        print_json(&BackupOutcome::from(restored));
    } else {
        print_stdout_line(&format!(
            "restored the backup of {}: runs in the archive: {archived}; runs in the {}: {}; replicas of each stream: {}",
            manifest.taken.strftime("%Y-%m-%d %H:%M:%S UTC"),
            format_count(settings.lanes, "lane", "lanes"),
            live.len(),
            settings.replicas,
        ));
        print_stderr_line(&match arguments.target.nats {
            Some(_) => {
                "millrace: start supervisors, workers and critics there to resume unfinished runs".into()
            }
            None => format!(
                "millrace: `{}` starts the cluster, which continues unfinished runs",
                command_hint("up")
            ),
        });
    }
    for one in missing.iter().take(SHOWN) {
        note!("{} is missing but referenced by {}", one.what, one.referenced_by);
    }
    if missing.len() > SHOWN {
        note!("{} more are missing", missing.len() - SHOWN);
    }
    if missing.is_empty() { CommandExit::Completed } else { CommandExit::Partial }
}
