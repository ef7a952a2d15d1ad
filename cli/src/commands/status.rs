//! `millrace status`, `millrace workers` and `millrace capabilities`: the processes, queues, lanes and runs of a cluster.

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use millrace_protocol::registry::{ClusterSettings, ProcessRole};
use millrace_protocol::safe_text::single_line;
use millrace_runtime::Bus;
use millrace_runtime::ops::cluster_status::{CapabilityStatus, ClusterStatus, LaneState, QueueState};
use millrace_runtime::work::registry::ReceivedHeartbeat;

use crate::exit::{CommandExit, CommandResult};
use crate::interrupted::offline_cluster_hint;
use crate::json::{ClusterJson, print_json, process_slots};
use crate::target::{ClusterTarget, ReadConnection};
use crate::view::{align_columns, format_age, print_stderr_line, print_stdout_line};

/// The maximum number of characters of a description or problem in a table.
const MAX_TEXT: usize = 100;

pub const STATUS_EXAMPLES: &str = "\
Examples:
  millrace status
  millrace status --json
  millrace status --nats nats://HOST";

pub const WORKERS_EXAMPLES: &str = "\
Examples:
  millrace workers
  millrace workers --json";

pub const CAPABILITIES_EXAMPLES: &str = "\
Examples:
  millrace capabilities
  millrace capabilities --json";

#[derive(Args, Debug)]
pub struct StatusArguments {
    /// Print one JSON object (see `millrace schema status`)
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

/// A view of the cluster's status: as JSON, and as lines.
struct StatusView {
    json: for<'a> fn(&'a ClusterSettings, &'a ClusterStatus, Timestamp) -> ClusterJson<'a>,
    lines: fn(&ClusterStatus, Timestamp) -> Vec<String>,
}

pub async fn show_status(arguments: StatusArguments) -> CommandResult {
    fn json<'a>(settings: &'a ClusterSettings, status: &'a ClusterStatus, now: Timestamp) -> ClusterJson<'a> {
        ClusterJson::status(settings, status, now)
    }
    show(arguments, StatusView { json, lines: status_lines }).await
}

/// Lists the workers and critics.
pub async fn show_workers(arguments: StatusArguments) -> CommandResult {
    fn json<'a>(_: &'a ClusterSettings, status: &'a ClusterStatus, now: Timestamp) -> ClusterJson<'a> {
        ClusterJson::workers(status.processes.iter().filter(|process| takes_orders(process)), now)
    }
    let lines = |status: &ClusterStatus, now| {
        let workers: Vec<&ReceivedHeartbeat> =
            status.processes.iter().filter(|process| takes_orders(process)).collect();
        if workers.is_empty() {
            vec!["no worker or critic is running".to_owned()]
        } else {
            process_table(&workers, now)
        }
    };
    show(arguments, StatusView { json, lines }).await
}

pub async fn show_capabilities(arguments: StatusArguments) -> CommandResult {
    fn json<'a>(_: &'a ClusterSettings, status: &'a ClusterStatus, now: Timestamp) -> ClusterJson<'a> {
        ClusterJson::capabilities(status, now)
    }
    let lines = |status: &ClusterStatus, now| {
        let mut lines = capability_table(&status.capabilities, now);
        lines.push(String::new());
        for capability in &status.capabilities {
            if let Some(description) = &capability.description {
                lines.push(format!("{}: {}", capability.name, shorten(&description.description)));
            }
        }
        lines
    };
    show(arguments, StatusView { json, lines }).await
}

async fn show(arguments: StatusArguments, view: StatusView) -> CommandResult {
    let reading = ReadConnection::open_for_reading(&arguments.target).await?;
    let is_offline = reading.is_offline();
    let read = async |bus: &Bus| {
        let status = ClusterStatus::read(bus).await?;
        let now = Timestamp::now();
        if arguments.json {
            print_json(&(view.json)(bus.settings(), &status, now));
        } else {
            (view.lines)(&status, now).iter().for_each(|line| print_stdout_line(line));
        }
        Ok(if is_offline { Some(offline_cluster_hint(bus).await?) } else { None })
    };
    let hint = reading.read_and_close(read).await?;
    hint.iter().for_each(|hint| print_stderr_line(hint));
    Ok(CommandExit::Completed)
}

fn takes_orders(process: &ReceivedHeartbeat) -> bool {
    match process.heartbeat.role {
        ProcessRole::Worker | ProcessRole::Critic => true,
        ProcessRole::Supervisor | ProcessRole::Gateway => false,
    }
}

// ---- text

fn status_lines(status: &ClusterStatus, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    let runs: Vec<String> = status
        .runs
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    let runs = if runs.is_empty() { "none".to_owned() } else { runs.join(", ") };
    lines.push(format!("runs: {runs}"));
    let limit =
        status.storage.limit_bytes.map(|limit| format!(" of {} MiB", limit >> 20)).unwrap_or_default();
    lines.push(format!("storage: {} MiB{limit}", status.storage.used_bytes >> 20));
    lines.push(String::new());
    if status.processes.is_empty() {
        lines.push("no process is running".to_owned());
    } else {
        lines.extend(process_table(&status.processes.iter().collect::<Vec<_>>(), now));
    }
    lines.push(String::new());
    lines.extend(capability_table(&status.capabilities, now));
    lines.push(String::new());
    lines.extend(lane_table(&status.lanes));
    let problems: Vec<String> =
        status.processes.iter().filter_map(|process| problem_line(process, now)).collect();
    if !problems.is_empty() {
        lines.push(String::new());
        lines.push("last problems:".to_owned());
        lines.extend(problems);
    }
    lines
}

fn problem_line(process: &ReceivedHeartbeat, now: Timestamp) -> Option<String> {
    let heartbeat = &process.heartbeat;
    let problem = heartbeat.last_problem.as_ref()?;
    let (age, level) = (age(problem.at, now), single_line(&problem.level));
    Some(format!("  {}, {age} ago, {level}: {}", heartbeat.id, single_line(&problem.message)))
}

fn process_table(processes: &[&ReceivedHeartbeat], now: Timestamp) -> Vec<String> {
    let row = |process: &&ReceivedHeartbeat| {
        let ReceivedHeartbeat { heartbeat, at } = process;
        let slots = process_slots(heartbeat);
        let work = match heartbeat.role {
            ProcessRole::Supervisor => format!("{} lanes", heartbeat.busy),
            ProcessRole::Gateway => String::new(),
            ProcessRole::Worker | ProcessRole::Critic => {
                format!("{}/{}", slots.busy, slots.total)
            }
        };
        let capabilities: Vec<&str> = heartbeat.slots.iter().map(|(name, _)| name.as_str()).collect();
        [
            heartbeat.id.to_string(),
            heartbeat.role.name().to_owned(),
            format!("{} ({})", single_line(&heartbeat.host), heartbeat.pid),
            single_line(&heartbeat.version),
            age(heartbeat.started, now),
            format!("{} ago", age(*at, now)),
            work,
            capabilities.join(" "),
        ]
    };
    let heads = ["PROCESS", "ROLE", "HOST (PID)", "VERSION", "UP", "HEARTBEAT", "BUSY", "CAPABILITIES"];
    table(heads, processes.iter().map(row).collect())
}

fn capability_table(capabilities: &[CapabilityStatus], now: Timestamp) -> Vec<String> {
    let row = |capability: &CapabilityStatus| {
        let CapabilityStatus { name, slots, queue, .. } = capability;
        let count = |count: fn(&QueueState) -> u64| {
            queue.as_ref().map_or_else(|| "-".to_owned(), |queue| count(queue).to_string())
        };
        let oldest = queue.as_ref().and_then(|queue| queue.oldest_at);
        [
            name.to_string(),
            slots.workers.to_string(),
            format!("{}/{}", slots.busy, slots.total),
            count(|queue| queue.pending),
            count(|queue| queue.in_progress),
            oldest.map_or_else(|| "-".to_owned(), |at| age(at, now)),
        ]
    };
    let heads = ["CAPABILITY", "WORKERS", "BUSY", "QUEUED", "IN PROGRESS", "OLDEST ORDER"];
    table(heads, capabilities.iter().map(row).collect())
}

fn lane_table(lanes: &[LaneState]) -> Vec<String> {
    let row = |lane: &LaneState| {
        let number = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
        [
            lane.lane.to_string(),
            lane.owner.as_ref().map_or_else(|| "nobody".to_owned(), ToString::to_string),
            number(lane.lag.map(|lag| lag.to_string())),
            lane.messages.to_string(),
            number(lane.live_runs.map(|runs| runs.to_string())),
        ]
    };
    table(["LANE", "OWNER", "LAG", "MESSAGES", "LIVE RUNS"], lanes.iter().map(row).collect())
}

/// Returns a table with aligned columns.
fn table<const N: usize>(heads: [&str; N], rows: Vec<[String; N]>) -> Vec<String> {
    let all: Vec<[String; N]> = std::iter::once(heads.map(str::to_owned)).chain(rows).collect();
    align_columns(&all)
}

fn age(at: Timestamp, now: Timestamp) -> String {
    format_age(now.duration_since(at).max(SignedDuration::ZERO))
}

fn shorten(text: &str) -> String {
    let text = single_line(text);
    match text.char_indices().nth(MAX_TEXT) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::{Capability, Lane, WorkerId};
    use millrace_protocol::registry::{Heartbeat, ProblemReport};
    use millrace_runtime::ops::cluster_status::{AccountStorage, CapabilitySlots};

    use serde_json::{Value, json};

    use super::*;
    use crate::json::{CapabilityJson, LaneJson, ProcessJson, to_value};

    fn now() -> Timestamp {
        "2026-11-21T23:00:00Z".parse().unwrap()
    }

    fn ago(seconds: i64) -> Timestamp {
        now() - SignedDuration::from_secs(seconds)
    }

    fn status() -> ClusterStatus {
        let research = Capability::new("research").unwrap();
        let heartbeat = Heartbeat {
            id: WorkerId::new("worker-1").unwrap(),
            role: ProcessRole::Worker,
            host: "box\u{1b}[2J".into(),
            pid: 4711,
            started: ago(150),
            slots: vec![(research.clone(), 8)],
            busy: 3,
            busy_with: vec![(research.clone(), 3)],
            version: "0.5.0".into(),
            lanes: Vec::new(),
            suspended: None,
            last_problem: Some(ProblemReport {
                at: ago(70),
                level: "warn".into(),
                message: "heartbeat failed\u{202e}\u{9b}0m".into(),
            }),
        };
        ClusterStatus {
            processes: vec![ReceivedHeartbeat { heartbeat, at: ago(2) }],
            capabilities: vec![CapabilityStatus {
                name: research.clone(),
                description: None,
                slots: CapabilitySlots { workers: 1, total: 8, busy: 3 },
                queue: Some(QueueState {
                    capability: research,
                    pending: 5,
                    in_progress: 3,
                    redelivered: 1,
                    oldest_at: Some(ago(42)),
                }),
            }],
            lanes: vec![
                LaneState {
                    lane: Lane(0),
                    owner: WorkerId::new("s").ok(),
                    messages: 9,
                    lag: Some(2),
                    live_runs: Some(1),
                },
                LaneState { lane: Lane(1), owner: None, messages: 0, lag: None, live_runs: None },
            ],
            runs: [("paused".to_owned(), 1), ("running".to_owned(), 2), ("failed".to_owned(), 0)].into(),
            storage: AccountStorage { used_bytes: 3 << 20, limit_bytes: Some(1 << 30) },
        }
    }

    #[test]
    fn tables_show_processes_queues_lanes_and_problems() {
        let text = status_lines(&status(), now()).join("\n");
        assert_eq!(
            text,
            "runs: 1 paused, 2 running
storage: 3 MiB of 1024 MiB

PROCESS   ROLE    HOST (PID)      VERSION  UP          HEARTBEAT  BUSY  CAPABILITIES
worker-1  worker  box [2J (4711)  0.5.0    2 min 30 s  2 s ago    3/8   research

CAPABILITY  WORKERS  BUSY  QUEUED  IN PROGRESS  OLDEST ORDER
research    1        3/8   5       3            42 s

LANE  OWNER   LAG  MESSAGES  LIVE RUNS
0     s       2    9         1
1     nobody  -    0         -

last problems:
  worker-1, 1 min 10 s ago, warn: heartbeat failed� 0m"
        );
    }

    #[test]
    fn json_has_named_counts_and_ages() {
        let status = status();
        let worker = to_value(&ProcessJson::new(&status.processes[0], now()));
        assert_eq!(worker["slots"], json!({ "busy": 3, "total": 8 }));
        assert_eq!(worker["heartbeat_age_ms"], 2_000);
        assert_eq!(worker["started_at"], "2026-11-21T22:57:30Z");
        assert_eq!(worker["last_problem"]["level"], "warn");
        let capability = to_value(&CapabilityJson::new(&status.capabilities[0], now()));
        assert_eq!(capability["queue"]["oldest_order_age_ms"], 42_000);
        assert_eq!(to_value(&LaneJson::from(&status.lanes[1]))["owner"], Value::Null);
    }
}
