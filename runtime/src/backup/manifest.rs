//! What a backup consists of, as its `manifest.json` says it. It reads and writes that one text and touches no other
//! file.

use jiff::Timestamp;
use millrace_protocol::registry::ClusterSettings;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The format of the folder that this program writes and reads.
pub const FORMAT: u32 = 1;

/// What a backup consists of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format of the folder.
    pub format: u32,
    /// The version of the program that took it.
    pub version: String,
    /// When it was begun.
    pub taken: Timestamp,
    /// The settings of the cluster.
    pub settings: ClusterSettings,
    /// For each lane, the last version of a file, by its sequence, that may be from before the lane's copy.
    pub files_through: Vec<u64>,
    /// Its files, in the order in which they were copied.
    pub parts: Vec<Part>,
}

/// One file of a backup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The file, in the backup's folder.
    pub file: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its SHA-256 in hexadecimal.
    pub sha256: String,
    /// What it holds.
    pub content: Content,
}

/// What a file of a backup holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// A stream.
    Stream {
        /// Its name.
        name: String,
        /// Its configuration, as the server has it.
        config: Value,
        /// Its state when the copy was begun, as the server told it.
        state: Value,
    },
    /// The entries of a bucket.
    Bucket {
        /// Its name.
        name: String,
        /// How many lines there are.
        entries: u64,
    },
}

impl Manifest {
    /// The size of all files in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

impl Part {
    /// The name of its stream or bucket.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.content {
            Content::Stream { name, .. } | Content::Bucket { name, .. } => name,
        }
    }

    /// How many messages or entries it holds, as far as is known.
    #[must_use]
    pub fn count(&self) -> u64 {
        match &self.content {
            Content::Stream { state, .. } => state["messages"].as_u64().unwrap_or_default(),
            Content::Bucket { entries, .. } => *entries,
        }
    }
}
