//! The messages between the tool and its launcher: the request, the reports, and the confinement that they name.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::settings::{ByteLimits, CommandLimits};

/// Set to 0, the allocator of the launcher does not commit a gibibyte at its start, which would count as memory of the
/// launcher against the limit of its command. Commands do not get the variable.
pub(crate) const ALLOCATOR_VARIABLE: &str = "MIMALLOC_ARENA_EAGER_COMMIT";

/// Argument of a launcher, followed by a [`LaunchRequest`] as JSON. Standard input is the socket to the tool; output and
/// errors go to the tool's pipe.
pub(super) const SUPERVISE_ARGUMENT: &str = "__execute";
/// Like [`SUPERVISE_ARGUMENT`], inside the namespaces.
pub(super) const SUPERVISE_IN_NAMESPACES_ARGUMENT: &str = "__execute-inside";

/// A command to run, with its confinement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LaunchRequest {
    pub(super) command: String,
    /// Absolute, without symlinks.
    pub(super) folder: PathBuf,
    pub(super) read: Vec<PathBuf>,
    pub(super) network: bool,
    pub(super) limits: CommandLimits,
    pub(super) bytes: ByteLimits,
    pub(super) namespaces: bool,
}

/// A message from the launcher to the tool, one JSON object per line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LauncherReport {
    Started(Confinement),
    Failed(String),
    /// The bytes of memory that all processes of the command use.
    Memory(u64),
    Left(Vec<String>),
    Ended {
        /// The exit code as in shells: 128 plus the signal number if a signal ended it.
        code: i32,
        signal: Option<i32>,
        /// The limit that it exceeded, for which it was killed.
        exceeded: Option<ExceededLimit>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ExceededLimit {
    Processes,
    Memory,
    /// All commands of the worker use too much memory, and this one the most of it.
    SharedMemory,
    Disk,
    /// All temporary working folders of the worker are too large, and this one is the largest.
    SharedDisk,
    FullDisk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    pub landlock: bool,
    /// Seccomp filters refuse sockets without network access, and kernel interfaces that commands do not need.
    pub seccomp: bool,
    /// It has its own namespaces: root file system, processes and, unless network access is enabled, network.
    pub namespaces: bool,
    /// It cannot send signals to processes that it did not start.
    pub signals: bool,
    /// The kernel limits its number of processes. Otherwise they are counted a few times per second.
    pub processes: bool,
    pub network: NetworkAccess,
}

/// The network access of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkAccess {
    /// Full access.
    Open,
    /// Full access except TCP.
    NoTcp,
    /// No access.
    None,
}

impl std::fmt::Display for Confinement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match (self.landlock, self.namespaces, self.signals) {
            (true, true, _) => "landlock and namespaces (files, processes)",
            (true, false, true) => "landlock (files, signals)",
            (true, false, false) => "landlock (files)",
            (false, true, _) => "namespaces (files, processes)",
            (false, false, _) => "resource limits only",
        })?;
        f.write_str(if self.seccomp { ", seccomp (system calls)" } else { "" })?;
        f.write_str(match self.network {
            NetworkAccess::Open => "; full network access",
            NetworkAccess::NoTcp => "; no TCP",
            NetworkAccess::None => "; no network",
        })
    }
}
