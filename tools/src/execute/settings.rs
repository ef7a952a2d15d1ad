//! How a capability sets `execute`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Seconds that a command may take, unless it asks for others or the settings name others.
pub const DEFAULT_TIMEOUT: u32 = 120;
/// The most seconds that a command may ask for.
pub const MAX_TIMEOUT: u32 = 3_600;

/// What `execute` may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The folder that commands work in, and the only one that they can write to. Without one, a folder of its own
    /// that is removed afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// What commands can read besides the programs and libraries of the system.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub read: Vec<PathBuf>,
    /// Whether commands have the network: all of it, private addresses too.
    pub network: bool,
    /// Variables of the worker's environment that commands get besides PATH and HOME.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds that a command may take unless it asks for others.
    #[schemars(range(min = 1, max = 3_600))]
    pub timeout_s: u32,
    /// What there must be to confine commands; without it none runs.
    pub require: Vec<Confined>,
    /// How much a command may use.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            folder: None,
            read: Vec::new(),
            network: false,
            env: Vec::new(),
            timeout_s: DEFAULT_TIMEOUT,
            require: vec![Confined::Landlock],
            limits: Limits::default(),
        }
    }
}

/// A means of the kernel to confine a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Confined {
    /// Landlock: files, and signals and TCP where the kernel is new enough.
    Landlock,
    /// Namespaces: files, processes, network.
    Namespace,
}

/// How much a command may use. A process that wants more is refused or killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Seconds of computing, each process for itself.
    pub cpu_s: u64,
    /// MiB of memory, each process for itself.
    pub memory_mb: u64,
    /// Open files, each process for itself.
    pub files: u64,
    /// Processes at once, all together.
    pub processes: u64,
    /// MiB of one file.
    pub file_size_mb: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { cpu_s: 3_600, memory_mb: 2_048, files: 512, processes: 256, file_size_mb: 1_024 }
    }
}
