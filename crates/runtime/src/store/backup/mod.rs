//! Backups: a copy of a cluster in a folder, taken while the cluster runs, and restoring it into an empty account. This
//! module starts and stops no process, and does not know what a plan is.
//!
//! A backup contains what can't be derived: the lanes, the archive, files, blobs, the settings, limits, registered
//! capabilities, the summaries of archived runs, and the records and rules of deletions. Queues, leases, members, heartbeats and the summaries of live runs
//! are not copied: the first supervisor of the restored cluster creates them again, and dispatches the pending effects
//! of plans.
//!
//! # Consistency
//!
//! Streams are copied as snapshots of the server, which keep every sequence; plans, journals and orders refer to each
//! other by sequence. A snapshot is read block by block while writers continue, with two consequences:
//!
//! - It can end after any message. A lane that ends anywhere is like a lane whose supervisor died there, and is resumed
//!   like one.
//! - A message that is *removed* meanwhile may be missing from one block while a related one is in another. Only ended
//!   runs are ever removed, from their lanes, and only after they are archived and their summaries say so.
//!
//! Hence the order of copying, in which no copy refers to something that did not exist when its part was copied:
//!
//! ```text
//! lanes ─▶ summaries ─▶ archive ─▶ files ─▶ blobs ─▶ capabilities, limits
//! ```
//!
//! | state of a run when its summary was copied | source of the restored run |
//! |---|---|
//! | marked as archived | the archive, which was copied later; its messages in the copied lane may be incomplete and are removed |
//! | not marked | its lane, from which nothing had been removed by then; its object in the copied archive is newer and is removed |
//!
//! Files are copied after the lanes, so that a lane never refers to a missing version. File versions that are newer
//! than the copied lane of a live run are removed on restore: the work that wrote them is executed again and must not
//! see them.
//!
//! While a backup is taken, supervisors delete no runs and sweep no blobs ([`super::retention`]). Otherwise archives are removed
//! only when they are replaced. If something was removed from the archive, the files or the blobs while they were copied, because
//! it was in progress or the cluster has no holds, they are copied again.
//!
//! # The folder
//!
//! ```text
//! manifest.json         the files with sizes and checksums, the settings, the time, and the program version
//! manifest.json.sha256  the checksum of manifest.json
//! LANE_0.snapshot …     the server's snapshot of a stream: a tar archive in S2 compression
//! runs.jsonl …          the entries of a bucket, one per line
//! ```
//!
//! The folder appears under its name when all of it is on disk, and not before.
//!
//! # Invariants
//!
//! - I56: A backup taken while runs come and go is complete, and a lost cluster continues from it.
//!   (`tests/tests/backup.rs::backup_during_many_runs_is_always_complete`,
//!   `tests/tests/backup.rs::lost_cluster_continues_from_its_backup`,
//!   `tests/tests/backup.rs::unfinished_restore_is_reported_until_it_is_removed`)
//! - I263: A reopened run is backed up and deleted with both parts of its log.
//!   (`tests/tests/reopen.rs::backup_of_a_reopened_run_restores_both_parts`,
//!   `tests/tests/reopen.rs::deleted_run_is_gone_with_both_parts_and_is_not_reopened`)

mod check;
mod copy;
mod folder;
mod restore;
mod snapshot;

use std::path::PathBuf;

use jiff::Timestamp;
use millrace_protocol::registry::ClusterSettings;
use millrace_protocol::wire::OtherFormat;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Fault;

pub use check::DanglingReference;
pub use copy::take_backup;
pub use folder::verify_backup;
pub use restore::{RestoreOptions, RestoreReport, restore_backup};

/// The error of taking, verifying or restoring a backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The folder exists already.
    #[error("{} exists already; choose a folder that does not", .folder.display())]
    Exists { folder: PathBuf },
    /// A file can't be written or read.
    #[error("{what} {}: {why}", .path.display())]
    File {
        /// The operation, such as `writing`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        why: std::io::Error,
    },
    /// The folder is not a backup.
    #[error("{} is not a backup: {why}; choose the folder of a backup", .folder.display())]
    NotABackup {
        folder: PathBuf,
        /// The missing or invalid part.
        why: String,
    },
    /// The backup has another format.
    #[error("the backup {} {format}; nothing was restored", .folder.display())]
    OtherFormat { folder: PathBuf, format: OtherFormat },
    /// A file of the backup is damaged.
    #[error("{} is damaged: {why}; nothing was restored; use another copy of this backup, or an older backup", .file.display())]
    Damaged {
        file: PathBuf,
        /// The difference.
        why: String,
    },
    /// The server could not send or restore a stream.
    #[error("{what} stream {stream}: {why}")]
    Stream {
        /// `copying` or `restoring`.
        what: &'static str,
        stream: String,
        /// The cause.
        why: String,
    },
    /// The account has a cluster already.
    #[error(
        "the account at {url} is not empty: it has {what}; restore into another account, another server, or an empty \
         data folder"
    )]
    Occupied {
        /// The address of the server.
        url: String,
        /// The existing streams.
        what: String,
    },
    /// Another restore is in progress there, or was killed.
    #[error(
        "a restore into the account at {url} is unfinished; wait for it, or, if it was killed, remove its remains with \
         --again"
    )]
    Unfinished {
        /// The address of the server.
        url: String,
    },
    /// The operation was stopped.
    #[error("stopped; nothing was created")]
    Stopped,
    /// The server does not respond, or rejects a request.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// The progress of an operation.
#[derive(Debug, Clone, Copy)]
pub struct BackupProgress<'a> {
    /// The operation, such as `copying`.
    pub operation: &'static str,
    /// The stream, bucket or file.
    pub what: &'a str,
    /// The number of bytes so far.
    pub bytes: u64,
    /// `true` if this item is complete.
    pub is_done: bool,
}

/// A callback for progress.
pub type OnBackupProgress<'a> = &'a (dyn Fn(BackupProgress<'_>) + Send + Sync);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackupManifest {
    /// The format of the folder and of what it holds; see [`millrace_protocol::wire`].
    pub format: u16,
    /// The version of the program that took it.
    pub version: String,
    /// When it was started.
    pub taken: Timestamp,
    pub settings: ClusterSettings,
    /// For each lane, the last sequence of the files stream that may be older than the copy of the lane.
    pub files_through: Vec<u64>,
    /// Its files, in the order in which they were copied.
    pub parts: Vec<BackupPart>,
}

/// One file of a backup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackupPart {
    /// The file, in the backup's folder.
    pub file: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its SHA-256 in hexadecimal.
    pub sha256: String,
    pub content: BackupPartContent,
}

/// The content of a file of a backup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackupPartContent {
    Stream {
        name: String,
        /// Its configuration, as the server returned it.
        config: Value,
        /// Its state when the copy was started, as the server returned it.
        state: Value,
    },
    /// The entries of a bucket.
    Bucket {
        name: String,
        /// The number of lines.
        entries: u64,
    },
}

impl BackupManifest {
    /// Returns the size of all files in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

impl BackupPart {
    /// Returns the name of its stream or bucket.
    pub fn name(&self) -> &str {
        match &self.content {
            BackupPartContent::Stream { name, .. } | BackupPartContent::Bucket { name, .. } => name,
        }
    }

    /// Returns the number of messages or entries, 0 if unknown.
    pub fn message_or_entry_count(&self) -> u64 {
        match &self.content {
            BackupPartContent::Stream { state, .. } => state["messages"].as_u64().unwrap_or_default(),
            BackupPartContent::Bucket { entries, .. } => *entries,
        }
    }
}
