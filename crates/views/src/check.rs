//! Checks, each with what it found and how to fix it: those of `millrace doctor`, and those of a cluster. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use millrace_protocol::registry::ProcessRole;
use millrace_runtime::ops::cluster_status::{CapabilityStatus, ClusterStatus};
use millrace_runtime::store::rate_limits::LimitStatus;
use schemars::JsonSchema;
use serde::Serialize;

use crate::tagged;

/// The age of a warning in the log of a process after which it is no longer reported.
const RECENT: SignedDuration = SignedDuration::from_mins(15);
/// The age of an order after which its queue is reported.
const OLD_ORDER: SignedDuration = SignedDuration::from_mins(5);
/// The number of unread messages after which a lane is reported.
const HIGH_LAG: u64 = 10_000;
/// The part of the storage in use, in percent, after which it is reported.
const NEARLY_FULL: u64 = 90;
/// The maximum number of names that a check lists.
const MAX_NAMES: usize = 8;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// No problem found.
    Ok,
    /// A run can start, but there may be a problem.
    Warn,
    /// A run can't start.
    Missing,
}

impl fmt::Display for CheckStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Missing => "missing",
        })
    }
}

/// The result of one check.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CheckResult {
    /// The subject of the check.
    pub name: &'static str,
    /// The result.
    pub status: CheckStatus,
    /// The finding.
    pub found: String,
    /// Suggested fix, if there is a problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl CheckResult {
    pub fn new_ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Ok, found: found.into(), advice: None }
    }

    /// Creates a check with a problem that keeps no run from starting.
    pub fn new_warning(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Warn, found: found.into(), advice: Some(advice.into()) }
    }

    /// Creates a check with a problem that keeps runs from starting.
    pub fn new_missing(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Missing, found: found.into(), advice: Some(advice.into()) }
    }
}

/// The checks of a cluster.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "cluster_checks")]
#[schemars(transform = tagged("cluster_checks"))]
pub struct ClusterChecks {
    /// `true` if runs make progress.
    pub usable: bool,
    /// The checks; several may have one name.
    pub checks: Vec<CheckResult>,
}

impl ClusterChecks {
    #[must_use]
    pub fn new(status: &ClusterStatus, limits: &[LimitStatus], now: Timestamp) -> Self {
        let mut checks = vec![
            check_supervisors(status),
            check_lanes(status),
            check_workers(status),
            check_versions(status),
            check_storage(status),
        ];
        checks.extend(status.capabilities.iter().filter_map(|capability| check_queue(capability, now)));
        checks.extend(limits.iter().filter_map(|limit| check_limit(limit, now)));
        checks.extend(check_logs(status, now));
        Self { usable: checks.iter().all(|check| check.status != CheckStatus::Missing), checks }
    }
}

fn count(status: &ClusterStatus, role: ProcessRole) -> usize {
    status.processes.iter().filter(|process| process.heartbeat.role == role).count()
}

fn check_supervisors(status: &ClusterStatus) -> CheckResult {
    const NAME: &str = "supervisors";
    match count(status, ProcessRole::Supervisor) {
        0 => CheckResult::new_missing(
            NAME,
            "no supervisor is alive: submitted runs do not start, and running ones make no progress",
            "start one: `millrace supervisor --nats URL`",
        ),
        1 => CheckResult::new_ok(NAME, "1 is alive; a second one would take over at once if it dies"),
        many => CheckResult::new_ok(NAME, format!("{many} are alive")),
    }
}

fn check_lanes(status: &ClusterStatus) -> CheckResult {
    const NAME: &str = "lanes";
    let lanes = |is_bad: &dyn Fn(&millrace_runtime::ops::cluster_status::LaneState) -> bool| {
        let bad = status.lanes.iter().filter(|lane| is_bad(lane)).map(|lane| lane.lane.to_string());
        bad.collect::<Vec<String>>()
    };
    let orphaned = lanes(&|lane| lane.owner.is_none());
    if !orphaned.is_empty() {
        let found = format!("no supervisor owns lane {}: its runs make no progress", join(&orphaned));
        let advice =
            "a lane is taken over within its lease; if this persists, read the logs of the supervisors";
        return CheckResult::new_missing(NAME, found, advice);
    }
    let late = lanes(&|lane| lane.lag.is_some_and(|lag| lag > HIGH_LAG));
    if !late.is_empty() {
        let found = format!("the owner of lane {} is more than {HIGH_LAG} messages behind", join(&late));
        let advice = "add supervisors, or give the existing ones more CPU time";
        return CheckResult::new_warning(NAME, found, advice);
    }
    CheckResult::new_ok(NAME, format!("each of the {} lanes has an owner that keeps up", status.lanes.len()))
}

fn check_workers(status: &ClusterStatus) -> CheckResult {
    const NAME: &str = "workers";
    match (count(status, ProcessRole::Worker), count(status, ProcessRole::Critic)) {
        (0, _) => CheckResult::new_missing(
            NAME,
            "no worker is alive: tasks wait in their queues",
            "start one: `millrace worker --nats URL`",
        ),
        (workers, 0) => CheckResult::new_warning(
            NAME,
            format!("no critic is alive (workers: {workers}): results that need a review wait"),
            "start one: `millrace critic --nats URL`",
        ),
        (workers, critics) => {
            CheckResult::new_ok(NAME, format!("{workers} workers and {critics} critics are alive"))
        }
    }
}

fn check_versions(status: &ClusterStatus) -> CheckResult {
    const NAME: &str = "versions";
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for process in &status.processes {
        versions.entry(&process.heartbeat.version).or_default().insert(process.heartbeat.role.name());
    }
    let all: Vec<String> = versions
        .iter()
        .map(|(version, roles)| {
            format!("{version} ({})", roles.iter().copied().collect::<Vec<_>>().join(", "))
        })
        .collect();
    match all.as_slice() {
        [] => CheckResult::new_ok(NAME, "no process is alive"),
        [one] => CheckResult::new_ok(NAME, format!("all processes are of version {one}")),
        [_, _, ..] => CheckResult::new_warning(
            NAME,
            format!("processes are of several versions: {}", all.join("; ")),
            "finish the upgrade: supervisors first, then workers and critics",
        ),
    }
}

fn check_storage(status: &ClusterStatus) -> CheckResult {
    const NAME: &str = "storage";
    let used = status.storage.used_bytes;
    let Some(limit) = status.storage.limit_bytes else {
        return CheckResult::new_ok(NAME, format!("{} MiB are in use; there is no limit", used >> 20));
    };
    let found = format!("{} of {} MiB are in use", used >> 20, limit >> 20);
    let percent = used.saturating_mul(100).checked_div(limit).unwrap_or(100);
    if percent >= 100 {
        CheckResult::new_missing(NAME, found, "writes are refused: raise the limit, or free storage")
    } else if percent >= NEARLY_FULL {
        CheckResult::new_warning(NAME, found, "writes are refused at the limit: raise it, or free storage")
    } else {
        CheckResult::new_ok(NAME, found)
    }
}

fn check_queue(capability: &CapabilityStatus, now: Timestamp) -> Option<CheckResult> {
    const NAME: &str = "queue";
    let queue = capability.queue.as_ref().filter(|queue| queue.pending > 0)?;
    let (name, pending) = (capability.name.as_str(), queue.pending);
    if capability.slots.workers == 0 {
        let found = format!("{pending} orders wait for {name:?}, which no live process provides");
        let advice = "start a worker that provides it, or edit or cancel the tasks";
        return Some(CheckResult::new_warning(NAME, found, advice));
    }
    let age = now.duration_since(queue.oldest_at?);
    if age < OLD_ORDER {
        return None;
    }
    let (busy, total) = (capability.slots.busy, capability.slots.total);
    let found = format!(
        "{pending} orders wait for {name:?}, the oldest for {} min; {busy} of {total} slots are busy",
        age.as_mins()
    );
    Some(CheckResult::new_warning(NAME, found, "add workers or slots, or lower the load"))
}

fn check_limit(limit: &LimitStatus, now: Timestamp) -> Option<CheckResult> {
    const NAME: &str = "limit";
    let until = limit.paused_until.filter(|until| *until > now)?;
    let found = format!("the provider of {} asked for a pause until {until}", limit.name);
    let advice = "calls continue by themselves; if this recurs, lower the limit: `millrace limits set MODEL --requests N`";
    Some(CheckResult::new_warning(NAME, found, advice))
}

/// Reports the processes that logged a warning or an error a short time ago.
fn check_logs(status: &ClusterStatus, now: Timestamp) -> Vec<CheckResult> {
    let recent = status.processes.iter().filter_map(|process| {
        let problem = process.heartbeat.last_problem.as_ref()?;
        (now.duration_since(problem.at) < RECENT).then(|| {
            let found = format!("{} logged {}: {}", process.heartbeat.id, problem.level, problem.message);
            CheckResult::new_warning("log", found, "read its log around that time")
        })
    });
    recent.take(MAX_NAMES).collect()
}

fn join(names: &[String]) -> String {
    let shown = names.iter().take(MAX_NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(MAX_NAMES) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        Some(_) | None => shown,
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::{Capability, Lane, WorkerId};
    use millrace_protocol::registry::{Heartbeat, ProblemReport};
    use millrace_runtime::ops::cluster_status::{AccountStorage, CapabilitySlots, LaneState, QueueState};
    use millrace_runtime::work::registry::ReceivedHeartbeat;

    use super::*;

    fn now() -> Timestamp {
        "2026-11-24T06:00:00Z".parse().unwrap()
    }

    fn process(role: ProcessRole, version: &str) -> ReceivedHeartbeat {
        let heartbeat = Heartbeat {
            id: WorkerId::new(format!("{}-1", role.name())).unwrap(),
            role,
            host: "machine".into(),
            pid: 1,
            started: now(),
            slots: Vec::new(),
            busy: 0,
            busy_with: Vec::new(),
            version: version.into(),
            lanes: Vec::new(),
            suspended: None,
            last_problem: None,
        };
        ReceivedHeartbeat { heartbeat, at: now() }
    }

    fn healthy() -> ClusterStatus {
        let roles = [ProcessRole::Supervisor, ProcessRole::Worker, ProcessRole::Critic, ProcessRole::Gateway];
        ClusterStatus {
            processes: roles.map(|role| process(role, "0.5.0")).into(),
            capabilities: Vec::new(),
            lanes: vec![LaneState {
                lane: Lane(0),
                owner: Some(WorkerId::new("supervisor-1").unwrap()),
                messages: 3,
                lag: Some(0),
                live_runs: Some(1),
            }],
            runs: BTreeMap::new(),
            storage: AccountStorage { used_bytes: 1 << 30, limit_bytes: Some(10 << 30) },
        }
    }

    fn problems(status: &ClusterStatus) -> Vec<(&'static str, CheckStatus)> {
        let checks = ClusterChecks::new(status, &[], now()).checks.into_iter();
        let problems = checks.filter(|check| check.status != CheckStatus::Ok);
        problems
            .inspect(|check| assert!(check.advice.is_some(), "{check:?}"))
            .map(|check| (check.name, check.status))
            .collect()
    }

    #[test]
    fn each_problem_of_a_cluster_is_reported_with_advice() {
        use CheckStatus::{Missing, Warn};
        assert_eq!(problems(&healthy()), []);
        let mut status = healthy();
        status.processes.clear();
        assert_eq!(problems(&status), [("supervisors", Missing), ("workers", Missing)]);
        let mut status = healthy();
        status.lanes[0].owner = None;
        assert_eq!(problems(&status), [("lanes", Missing)]);
        let mut status = healthy();
        status.lanes[0].lag = Some(20_000);
        assert_eq!(problems(&status), [("lanes", Warn)]);
        let mut status = healthy();
        status.processes.push(process(ProcessRole::Worker, "0.4.0"));
        status.storage.used_bytes = (10 << 30) / 100 * 95;
        assert_eq!(problems(&status), [("versions", Warn), ("storage", Warn)]);
        let mut status = healthy();
        let queue = |workers, minutes| CapabilityStatus {
            name: Capability::new("echo").unwrap(),
            description: None,
            slots: CapabilitySlots { workers, total: 4, busy: 4 },
            queue: Some(QueueState {
                capability: Capability::new("echo").unwrap(),
                pending: 9,
                in_progress: 4,
                redelivered: 0,
                oldest_at: Some(now() - SignedDuration::from_mins(minutes)),
            }),
        };
        status.capabilities = vec![queue(1, 1), queue(0, 1), queue(1, 30)];
        assert_eq!(problems(&status), [("queue", Warn), ("queue", Warn)]);
        let mut status = healthy();
        let report = ProblemReport { at: now(), level: "warn".into(), message: "lease lost".into() };
        status.processes[0].heartbeat.last_problem = Some(report);
        assert_eq!(problems(&status), [("log", Warn)]);
    }
}
