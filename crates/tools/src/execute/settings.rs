//! The settings of `execute` in a capability file.

use std::path::PathBuf;

use millrace_agent::files::ProgramFiles;
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use super::host_limits::{HostLimits, MIB, MIN_MEMORY_MB};

/// Default timeout of a command in seconds.
pub const DEFAULT_TIMEOUT: u32 = 120;
/// Maximum timeout of a command in seconds.
pub const MAX_TIMEOUT: u32 = 3_600;

/// The settings of `execute`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Settings")]
pub struct ExecuteSettings {
    /// The working folder of commands, the only one that they can write to. By default a temporary folder that is
    /// removed afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// The files of the agent's workspace that commands get in their working folder, and those whose changes are kept. By
    /// default all; without effect if `folder` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<ProgramFiles>,
    /// Paths that commands can read in addition to the programs and libraries of the system.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub read: Vec<PathBuf>,
    /// `true` to give commands access to the network, including private addresses. `false` means none at all: the tool is
    /// not available on a machine that cannot guarantee it.
    pub network: bool,
    /// Variables of the worker's environment to pass to commands in addition to PATH and HOME.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Default timeout of a command in seconds.
    #[schemars(range(min = 1, max = 3_600))]
    pub timeout_s: u32,
    /// Kinds of confinement that must be available; otherwise no command runs.
    pub require: Vec<ConfinementKind>,
    /// Resource limits of a command.
    pub limits: CommandLimits,
}

impl Default for ExecuteSettings {
    fn default() -> Self {
        Self {
            folder: None,
            files: None,
            read: Vec::new(),
            network: false,
            env: Vec::new(),
            timeout_s: DEFAULT_TIMEOUT,
            require: vec![ConfinementKind::Landlock],
            limits: CommandLimits::default(),
        }
    }
}

/// A kernel feature that confines commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Confined")]
pub enum ConfinementKind {
    /// Landlock: restricts files, and on newer kernels signals and TCP.
    Landlock,
    /// Namespaces: restrict files, processes and the network.
    Namespace,
    /// Seccomp: restricts sockets and system calls.
    Seccomp,
}

/// The resource limits of a command. Exceeding them fails or kills the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Limits")]
pub struct CommandLimits {
    /// CPU seconds per process.
    #[serde(deserialize_with = "at_least::<1, _>")]
    #[schemars(range(min = 1))]
    pub cpu_s: u64,
    /// MiB of memory per process. By default 2048, or `total_memory_mb` if that is less.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "none_or_at_least::<MIN_MEMORY_MB, _>"
    )]
    #[schemars(range(min = 64))]
    pub memory_mb: Option<u64>,
    /// MiB of memory of all processes together, including files in /tmp. By default half of the memory that the worker may
    /// use, at most 4096.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "none_or_at_least::<MIN_MEMORY_MB, _>"
    )]
    #[schemars(range(min = 64))]
    pub total_memory_mb: Option<u64>,
    /// Open files per process.
    #[serde(deserialize_with = "at_least::<MIN_FILES, _>")]
    #[schemars(range(min = 16))]
    pub files: u64,
    /// Concurrent processes in total.
    #[serde(deserialize_with = "at_least::<1, _>")]
    #[schemars(range(min = 1))]
    pub processes: u64,
    /// MiB per file. By default 1024, or `total_disk_mb` if that is less.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "none_or_at_least::<1, _>")]
    #[schemars(range(min = 1))]
    pub file_size_mb: Option<u64>,
    /// MiB by which commands may enlarge the working folder. By default half of the free space; for a temporary folder at
    /// most 8192, or 512 if the worker's memory is limited as in a container.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "none_or_at_least::<1, _>")]
    #[schemars(range(min = 1))]
    pub total_disk_mb: Option<u64>,
}

/// Minimum number of open files: with less, the launcher and a shell do not start.
pub const MIN_FILES: u64 = 16;

fn at_least<'de, const MIN: u64, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let value = u64::deserialize(deserializer)?;
    if value < MIN {
        return Err(D::Error::custom(format!("{value} is too little: it must be at least {MIN}")));
    }
    Ok(value)
}

fn none_or_at_least<'de, const MIN: u64, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    let Some(value) = Option::<u64>::deserialize(deserializer)? else { return Ok(None) };
    if value < MIN {
        return Err(D::Error::custom(format!("{value} is too little: it must be at least {MIN}")));
    }
    Ok(Some(value))
}

impl Default for CommandLimits {
    fn default() -> Self {
        Self {
            cpu_s: 3_600,
            memory_mb: None,
            total_memory_mb: None,
            files: 512,
            processes: 256,
            file_size_mb: None,
            total_disk_mb: None,
        }
    }
}

const DEFAULT_MEMORY: u64 = 2_048 * MIB;
const DEFAULT_FILE_SIZE: u64 = 1_024 * MIB;

/// The limits of commands on this machine, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ByteLimits {
    /// Per process.
    pub(super) memory: u64,
    /// All processes of a command.
    pub(super) total_memory: u64,
    /// Per file.
    pub(super) file_size: u64,
    /// Growth of the working folder.
    pub(super) total_disk: u64,
    /// All commands of this process.
    pub(super) shared_memory: u64,
    /// All temporary working folders of this process.
    pub(super) shared_disk: u64,
}

impl CommandLimits {
    /// Returns the limits in bytes. A sum is at least what one process or one file is explicitly allowed.
    pub(super) fn in_bytes(&self, host: HostLimits, is_temporary: bool) -> ByteLimits {
        let bytes = |mb: Option<u64>| mb.map(|mb| mb.saturating_mul(MIB));
        let total = |explicit: Option<u64>, default: u64, one: Option<u64>| {
            bytes(explicit).unwrap_or_else(|| default.max(bytes(one).unwrap_or(0)))
        };
        let default_disk = if is_temporary { host.temporary_disk() } else { host.free_half() };
        let total_memory = total(self.total_memory_mb, host.default_command_memory(), self.memory_mb);
        let total_disk = total(self.total_disk_mb, default_disk, self.file_size_mb);
        ByteLimits {
            memory: bytes(self.memory_mb).unwrap_or(DEFAULT_MEMORY).min(total_memory),
            total_memory,
            file_size: bytes(self.file_size_mb).unwrap_or(DEFAULT_FILE_SIZE).min(total_disk),
            total_disk,
            shared_memory: host.memory_for_commands().max(total_memory),
            shared_disk: host.temporary_disk().max(total_disk),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explicit_limits_take_precedence_over_those_of_the_machine() {
        let gib = 1_024 * MIB;
        let pod = HostLimits::new(64 * gib, Some(gib), 200 * gib);
        let limits = |json: &str| serde_json::from_str::<CommandLimits>(json).unwrap().in_bytes(pod, true);
        let default = limits("{}");
        let half = gib / 2;
        assert_eq!((default.memory, default.total_memory, default.shared_memory), (half, half, half));
        assert_eq!((default.file_size, default.total_disk, default.shared_disk), (half, half, half));
        // A file that names no totals.
        let older = limits(
            r#"{"cpu_s": 60, "memory_mb": 3072, "files": 100, "processes": 10, "file_size_mb": 2048}"#,
        );
        assert_eq!((older.memory, older.total_memory, older.shared_memory), (3 * gib, 3 * gib, 3 * gib));
        assert_eq!((older.file_size, older.total_disk, older.shared_disk), (2 * gib, 2 * gib, 2 * gib));
        let total = limits(r#"{"memory_mb": 3072, "total_memory_mb": 256, "total_disk_mb": 64}"#);
        assert_eq!((total.memory, total.total_memory, total.shared_memory), (gib / 4, gib / 4, half));
        assert_eq!((total.file_size, total.total_disk), (64 * MIB, 64 * MIB));
        let folder = CommandLimits::default().in_bytes(pod, false);
        assert_eq!((folder.file_size, folder.total_disk), (gib, 100 * gib));
        let laptop = HostLimits::new(16 * gib, None, 100 * gib);
        let default = CommandLimits::default().in_bytes(laptop, true);
        assert_eq!((default.memory, default.total_memory), (2 * gib, 4 * gib));
    }
}
