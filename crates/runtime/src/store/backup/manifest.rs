//! The manifest of a backup, `manifest.json`.

use jiff::Timestamp;
use millrace_protocol::registry::ClusterSettings;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackupManifest {
    /// The format of the folder and of what it holds; see [`millrace_protocol::format`].
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
