//! The state of a cluster: processes, capabilities, lanes, limits, files, logs, backups; and the environment.

use std::collections::BTreeMap;

use jiff::Timestamp;
use millrace_protocol::ids::{Capability, RunId, WorkerId};
use millrace_protocol::registry::{
    ClusterSettings, ClusterSettingsJson, Heartbeat, ProblemJson, ProcessRole,
};
use millrace_protocol::result::CapabilityInterface;
use millrace_runtime::ops::cluster_status::{
    CapabilityStatus, ClusterStatus, LaneState, QueueState, busy_slots,
};
use millrace_runtime::store::backup::{BackupManifest, RestoreReport};
use millrace_runtime::store::rate_limits::LimitStatus;
use millrace_runtime::store::workspace::FileVersionInfo;
use millrace_runtime::work::registry::ReceivedHeartbeat;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{Time, milliseconds, tagged};

/// The state of a cluster.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ClusterJson<'a> {
    /// Everything: `millrace status`.
    Status {
        /// When it was read.
        at: Time,
        /// The settings.
        cluster: ClusterSettingsJson<'a>,
        /// The processes.
        processes: Vec<ProcessJson<'a>>,
        /// The capabilities.
        capabilities: Vec<CapabilityJson<'a>>,
        /// The lanes of the log.
        lanes: Vec<LaneJson<'a>>,
        /// The number of runs, by state.
        runs: &'a BTreeMap<String, u64>,
        /// The storage of the account.
        storage: StorageJson,
    },
    /// The workers and critics: `millrace workers`.
    Workers {
        /// The workers and critics.
        workers: Vec<ProcessJson<'a>>,
    },
    /// The capabilities: `millrace capabilities`.
    Capabilities {
        /// The capabilities.
        capabilities: Vec<CapabilityJson<'a>>,
    },
}

impl<'a> ClusterJson<'a> {
    pub fn status(settings: &'a ClusterSettings, status: &'a ClusterStatus, now: Timestamp) -> Self {
        Self::Status {
            at: now.into(),
            cluster: settings.into(),
            processes: status.processes.iter().map(|process| ProcessJson::new(process, now)).collect(),
            capabilities: status.capabilities.iter().map(|one| CapabilityJson::new(one, now)).collect(),
            lanes: status.lanes.iter().map(LaneJson::from).collect(),
            runs: &status.runs,
            storage: StorageJson {
                used_bytes: status.storage.used_bytes,
                limit_bytes: status.storage.limit_bytes,
            },
        }
    }

    pub fn workers(workers: impl Iterator<Item = &'a ReceivedHeartbeat>, now: Timestamp) -> Self {
        Self::Workers { workers: workers.map(|process| ProcessJson::new(process, now)).collect() }
    }

    pub fn capabilities(status: &'a ClusterStatus, now: Timestamp) -> Self {
        let capabilities =
            status.capabilities.iter().map(|one| CapabilityJson::new(one, now).with_interface(one));
        Self::Capabilities { capabilities: capabilities.collect() }
    }
}

/// The storage of the account.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StorageJson {
    /// The bytes in use, all replicas together.
    used_bytes: u64,
    /// The limit; `null` if there is none.
    limit_bytes: Option<u64>,
}

/// The slots of a process or a capability.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SlotsJson {
    /// The slots with work in flight.
    pub busy: u32,
    /// All slots.
    pub total: u32,
}

/// A process.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProcessJson<'a> {
    /// Its id.
    id: &'a WorkerId,
    /// Its role.
    role: ProcessRole,
    /// Its host.
    host: &'a str,
    /// Its process id on that host.
    pid: u32,
    /// Its version.
    version: &'a str,
    /// When it started.
    started_at: Time,
    /// Its last heartbeat.
    last_heartbeat_at: Time,
    /// The age of its last heartbeat in milliseconds.
    heartbeat_age_ms: u64,
    /// Its slots.
    slots: SlotsJson,
    /// Its capabilities.
    capabilities: Vec<ProcessCapabilityJson<'a>>,
    /// Of a supervisor: the lanes that it owns.
    lanes: Vec<u16>,
    /// The last warning or error in its log.
    last_problem: Option<ProblemJson<'a>>,
}

/// A capability of a process.
#[derive(Debug, Serialize, JsonSchema)]
struct ProcessCapabilityJson<'a> {
    /// Its name.
    name: &'a Capability,
    /// The slots that the process has for it.
    slots: SlotsJson,
}

impl<'a> ProcessJson<'a> {
    pub fn new(process: &'a ReceivedHeartbeat, now: Timestamp) -> Self {
        let ReceivedHeartbeat { heartbeat, at } = process;
        let capabilities = heartbeat.slots.iter().map(|(name, total)| ProcessCapabilityJson {
            name,
            slots: SlotsJson { busy: busy_slots(heartbeat, name), total: *total },
        });
        Self {
            id: &heartbeat.id,
            role: heartbeat.role,
            host: &heartbeat.host,
            pid: heartbeat.pid,
            version: &heartbeat.version,
            started_at: heartbeat.started.into(),
            last_heartbeat_at: (*at).into(),
            heartbeat_age_ms: milliseconds(now.duration_since(*at)),
            slots: process_slots(heartbeat),
            capabilities: capabilities.collect(),
            lanes: heartbeat.lanes.iter().map(|report| report.lane.0).collect(),
            last_problem: heartbeat.last_problem.as_ref().map(Into::into),
        }
    }
}

/// Returns the slots of a process; a supervisor and a gateway have none.
pub fn process_slots(heartbeat: &Heartbeat) -> SlotsJson {
    let busy = match heartbeat.role {
        ProcessRole::Worker | ProcessRole::Critic => heartbeat.busy,
        ProcessRole::Supervisor | ProcessRole::Gateway => 0,
    };
    let total = heartbeat.slots.iter().fold(0_u32, |total, (_, slots)| total.saturating_add(*slots));
    SlotsJson { busy, total }
}

/// A capability.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CapabilityJson<'a> {
    /// Its name.
    name: &'a Capability,
    /// Its description; `null` if it is not announced.
    description: Option<&'a str>,
    /// The number of processes that provide it.
    workers: u32,
    /// Their slots.
    slots: SlotsJson,
    /// Its queue; `null` if it has none yet.
    queue: Option<QueueJson>,
    /// The schemas of its input and output; in the list of capabilities only.
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<CapabilityInterface<'a>>,
}

/// The queue of a capability.
#[derive(Debug, Serialize, JsonSchema)]
struct QueueJson {
    /// The orders that wait for a worker.
    pending: u64,
    /// The orders in progress.
    in_progress: u64,
    /// The orders in progress that were delivered more than once.
    redelivered: u64,
    /// When the oldest order was published.
    oldest_order_at: Option<Time>,
    /// The age of the oldest order in milliseconds.
    oldest_order_age_ms: Option<u64>,
}

impl QueueJson {
    fn new(queue: &QueueState, now: Timestamp) -> Self {
        Self {
            pending: queue.pending,
            in_progress: queue.in_progress,
            redelivered: queue.redelivered,
            oldest_order_at: queue.oldest_at.map(Time::from),
            oldest_order_age_ms: queue.oldest_at.map(|at| milliseconds(now.duration_since(at))),
        }
    }
}

impl<'a> CapabilityJson<'a> {
    pub fn new(capability: &'a CapabilityStatus, now: Timestamp) -> Self {
        let CapabilityStatus { name, description, slots, queue } = capability;
        Self {
            name,
            description: description.as_ref().map(|description| description.description.as_str()),
            workers: slots.workers,
            slots: SlotsJson { busy: slots.busy, total: slots.total },
            queue: queue.as_ref().map(|queue| QueueJson::new(queue, now)),
            interface: None,
        }
    }

    pub fn with_interface(self, capability: &'a CapabilityStatus) -> Self {
        Self { interface: capability.description.as_ref().map(Into::into), ..self }
    }
}

/// A lane of the log.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LaneJson<'a> {
    /// The lane.
    lane: u16,
    /// The supervisor that owns it.
    owner: Option<&'a WorkerId>,
    /// The messages that its owner has not read yet.
    lag_messages: Option<u64>,
    /// The messages in it.
    messages: u64,
    /// The live runs in it.
    live_runs: Option<u32>,
}

impl<'a> From<&'a LaneState> for LaneJson<'a> {
    fn from(lane: &'a LaneState) -> Self {
        Self {
            lane: lane.lane.0,
            owner: lane.owner.as_ref(),
            lag_messages: lane.lag,
            messages: lane.messages,
            live_runs: lane.live_runs,
        }
    }
}

/// A rate limit and its use: a line of `millrace limits --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "limit")]
#[schemars(transform = tagged("limit"))]
pub struct LimitJson<'a> {
    /// The model or provider.
    name: &'a str,
    /// Requests per minute.
    requests: LimitUseJson,
    /// Tokens per minute.
    tokens: LimitUseJson,
    /// The end of the pause that the provider asked for.
    paused_until: Option<Time>,
}

/// The use of a limit in the last minute.
#[derive(Debug, Serialize, JsonSchema)]
struct LimitUseJson {
    /// The limit; `null` is unlimited.
    limit: Option<u64>,
    /// The use in the last minute.
    used: u64,
    /// The remainder; `null` is unlimited.
    left: Option<u64>,
}

impl LimitUseJson {
    fn new(limit: Option<u64>, used: u64) -> Self {
        Self { limit, used, left: limit.map(|limit| limit.saturating_sub(used)) }
    }
}

impl<'a> From<&'a LimitStatus> for LimitJson<'a> {
    fn from(status: &'a LimitStatus) -> Self {
        let LimitStatus { name, limit, requests, tokens, paused_until } = status;
        Self {
            name,
            requests: LimitUseJson::new(limit.requests, *requests),
            tokens: LimitUseJson::new(limit.tokens, *tokens),
            paused_until: paused_until.map(Time::from),
        }
    }
}

/// A version of a file of a run: a line of `millrace files --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "file")]
#[schemars(transform = tagged("file"))]
pub struct FileJson<'a> {
    /// Its path.
    path: &'a str,
    /// Its size in bytes.
    bytes: u64,
    /// Its version, from 1.
    version: u64,
    /// Its author.
    author: &'a str,
    /// When it was written.
    at: Time,
    /// `true` if this version deletes the file.
    deleted: bool,
    /// Its content, if one file was asked for and it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

impl<'a> FileJson<'a> {
    /// Returns a version of a file, with its content if that was read.
    pub fn new(entry: &'a FileVersionInfo, text: Option<&'a str>) -> Self {
        Self {
            path: entry.path.as_str(),
            bytes: entry.size,
            version: entry.version,
            author: &entry.author,
            at: entry.time.into(),
            deleted: entry.is_deletion,
            text,
        }
    }
}

/// A line of a log: a line of `millrace logs --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "log_line")]
#[schemars(transform = tagged("log_line"))]
pub struct LogLineJson<'a> {
    /// The process.
    pub process: &'a str,
    /// When it was logged; `null` if the line has no time.
    pub at: Option<Time>,
    /// The line.
    pub text: &'a str,
}

/// A backup or what was restored from one.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BackupOutcome<'a> {
    /// A backup was taken or verified.
    Backup {
        /// The backup.
        #[serde(flatten)]
        backup: BackupJson<'a>,
    },
    /// A backup was restored.
    Restored {
        /// The backup.
        backup: BackupJson<'a>,
        /// The settings of the restored cluster.
        cluster: ClusterSettingsJson<'a>,
        /// The number of archived runs.
        archived_runs: u64,
        /// The runs in the lanes.
        live_runs: &'a [RunId],
        /// Data that the backup refers to and does not have.
        missing: Vec<MissingJson<'a>>,
    },
}

/// The contents of a backup.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BackupJson<'a> {
    /// When it was started.
    taken_at: Time,
    /// The version of the program that took it.
    version: &'a str,
    /// The settings of its cluster.
    cluster: ClusterSettingsJson<'a>,
    /// Its size in bytes.
    bytes: u64,
    /// Its files.
    parts: Vec<BackupPartJson<'a>>,
}

/// A file of a backup.
#[derive(Debug, Serialize, JsonSchema)]
struct BackupPartJson<'a> {
    /// The stream or bucket.
    name: &'a str,
    /// The file.
    file: &'a str,
    /// Its size in bytes.
    bytes: u64,
    /// The number of messages or entries.
    messages: u64,
}

/// A reference to data that does not exist.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MissingJson<'a> {
    /// The data.
    missing: &'a str,
    /// The place of the reference.
    referenced_by: &'a str,
}

impl<'a> From<&'a BackupManifest> for BackupJson<'a> {
    fn from(manifest: &'a BackupManifest) -> Self {
        let parts = manifest.parts.iter().map(|part| BackupPartJson {
            name: part.name(),
            file: &part.file,
            bytes: part.bytes,
            messages: part.message_or_entry_count(),
        });
        Self {
            taken_at: manifest.taken.into(),
            version: &manifest.version,
            cluster: (&manifest.settings).into(),
            bytes: manifest.total_bytes(),
            parts: parts.collect(),
        }
    }
}

impl<'a> From<&'a RestoreReport> for BackupOutcome<'a> {
    fn from(report: &'a RestoreReport) -> Self {
        let RestoreReport { manifest, settings, archived, live, missing } = report;
        let missing =
            missing.iter().map(|one| MissingJson { missing: &one.what, referenced_by: &one.referenced_by });
        Self::Restored {
            backup: manifest.into(),
            cluster: settings.into(),
            archived_runs: *archived as u64,
            live_runs: live,
            missing: missing.collect(),
        }
    }
}

/// The result of `millrace bench`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "bench")]
#[schemars(transform = tagged("bench"))]
pub struct BenchJson {
    /// The report; its fields depend on the benchmarks, and may change with every release.
    #[serde(flatten)]
    pub report: BTreeMap<String, serde_json::Value>,
}
