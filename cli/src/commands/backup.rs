//! `millrace backup`: copies a running cluster to a folder, or verifies such a copy.

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use millrace_runtime::Bus;
use millrace_runtime::store::backup::{self, BackupError, BackupManifest, BackupProgress};
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::json::{BackupOutcome, print_json};
use crate::target::ClusterTarget;
use crate::view::{format_byte_size, print_stdout_line};

const EXAMPLES: &str = "\
The backup holds runs, files, settings and the archive; it is taken while runs make progress.

Examples:
  millrace backup backups/monday
  millrace backup backups/monday --verify
  millrace restore backups/monday --data /new/folder";

/// The arguments of `millrace backup`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BackupArguments {
    /// Folder for the backup; it must not exist yet
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Verify every byte of an existing backup instead of taking one
    #[arg(long)]
    verify: bool,
    /// Print the contents of the backup as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

/// Takes or verifies a backup. An interrupted backup is removed.
pub async fn run_command(arguments: BackupArguments, shutdown: CancellationToken) -> CommandResult {
    if arguments.verify {
        let manifest =
            backup::verify_backup(&arguments.folder, &shutdown, &print_progress).map_err(map_backup_error)?;
        return Ok(print_backup_report(&manifest, &arguments, "is complete"));
    }
    arguments.target.read(async |bus| write_backup(bus, &arguments, &shutdown).await).await
}

async fn write_backup(bus: &Bus, arguments: &BackupArguments, shutdown: &CancellationToken) -> CommandResult {
    let manifest = tokio::select! {
        taken = backup::take_backup(bus, &arguments.folder, &print_progress) => taken.map_err(map_backup_error)?,
        () = shutdown.cancelled() => return Err(map_backup_error(BackupError::Stopped)),
    };
    Ok(print_backup_report(&manifest, arguments, "is complete"))
}

fn print_backup_report(manifest: &BackupManifest, arguments: &BackupArguments, what: &str) -> CommandExit {
    if arguments.json {
        print_json(&BackupOutcome::Backup { backup: manifest.into() });
        return CommandExit::Completed;
    }
    let folder = arguments.folder.display();
    let (size, at) =
        (format_byte_size(manifest.total_bytes()), manifest.taken.strftime("%Y-%m-%d %H:%M:%S UTC"));
    print_stdout_line(&format!("the backup {folder} of {at} {what}: {} files, {size}", manifest.parts.len()));
    CommandExit::Completed
}

pub fn print_progress(progress: BackupProgress<'_>) {
    let BackupProgress { operation: doing, what, bytes: so_far, is_done } = progress;
    let more = if is_done { "" } else { " so far" };
    note!("{doing} {what}: {}{more}", format_byte_size(so_far));
}

/// Maps an error of backup or restore to an exit code.
pub fn map_backup_error(error: BackupError) -> CommandError {
    let exit = match &error {
        BackupError::Exists { .. }
        | BackupError::NotABackup { .. }
        | BackupError::OtherFormat { .. }
        | BackupError::Damaged { .. }
        | BackupError::Occupied { .. }
        | BackupError::Unfinished { .. } => CommandExit::Refused,
        BackupError::File { .. } | BackupError::Stream { .. } | BackupError::Fault(_) => {
            CommandExit::Environment
        }
        BackupError::Stopped => CommandExit::Interrupted,
    };
    CommandError { exit, error: anyhow!(error) }
}
