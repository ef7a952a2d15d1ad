//! What stands in the cluster's buckets: its settings, who is alive, and a summary of each run. All of it but the
//! settings can be thrown away and made anew from the log and from who reports next.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::{Capability, Lane, RunId, WorkerId};
use crate::plan::{EndReason, Plan, TaskState};
use crate::result::Usage;

/// What is fixed when a cluster is made. Every program reads it and refuses to work with another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSettings {
    /// The version of this layout.
    pub version: u32,
    /// How many lanes the log has.
    pub lanes: u16,
    /// How many copies each stream and bucket has: 1, 3 or 5.
    pub replicas: u8,
    /// How long a lane belongs to a supervisor that is not heard of, in milliseconds.
    pub lane_lease_ms: u64,
    /// How long a piece of work belongs to a worker that is not heard of, in milliseconds.
    pub work_lease_ms: u64,
    /// The last order in the stream of queues that counts without a mark of its writer; `None` where programs from before
    /// 0.4 have made the cluster and may still give out orders without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmarked_orders_through: Option<u64>,
}

/// The roles a process can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It owns lanes.
    Supervisor,
    /// It does tasks.
    Worker,
    /// It judges results.
    Critic,
}

impl Role {
    /// Its name, as it stands in keys and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Supervisor => "supervisor",
            Self::Worker => "worker",
            Self::Critic => "critic",
        }
    }
}

/// A sign of life, renewed while a process lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// Who.
    pub id: WorkerId,
    /// What for.
    pub role: Role,
    /// The machine's name.
    pub host: String,
    /// The process on that machine.
    pub pid: u32,
    /// When it started, in microseconds since 1970.
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub started: Timestamp,
    /// What it offers, and how much of each at once.
    pub slots: Vec<(Capability, u32)>,
    /// How many pieces of work it has in hand.
    pub busy: u32,
    /// How many of them are of each capability; empty where the program does not say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub busy_with: Vec<(Capability, u32)>,
    /// The version of the program.
    pub version: String,
}

/// A run in a few words, for lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSummary {
    /// The run.
    pub run: RunId,
    /// Its lane.
    pub lane: Lane,
    /// The beginning of its objective, at most 200 characters.
    pub objective: String,
    /// How it ended; `None` while it is under way.
    pub end: Option<EndReason>,
    /// When it began, in microseconds since 1970.
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub started: Timestamp,
    /// When this was written.
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub updated: Timestamp,
    /// How many tasks are in each state, in the order of [`TaskState::ALL`].
    pub counts: [u32; 9],
    /// Whether its messages are in the archive, no longer in the lane.
    pub archived: bool,
    /// Whether it has ended and can be gone on with.
    #[serde(default)]
    pub is_resumable: bool,
    /// Whether nothing of it is given out until it is resumed.
    #[serde(default)]
    pub is_paused: bool,
    /// Why it is coming to its end.
    #[serde(default)]
    pub winding_down: Option<EndReason>,
    /// What it has used.
    #[serde(default)]
    pub usage: Usage,
}

impl RunSummary {
    /// The summary of a run as its plan stands; `None` before it began.
    #[must_use]
    pub fn of(run: &RunId, lane: Lane, plan: &Plan, now: Timestamp) -> Option<Self> {
        let start = plan.start.as_ref()?;
        Some(Self {
            run: run.clone(),
            lane,
            objective: start.objective.chars().take(200).collect(),
            end: plan.end.as_ref().map(|end| end.reason),
            started: start.at,
            updated: now,
            counts: TaskState::ALL.map(|state| plan.count(state)),
            archived: false,
            is_resumable: plan.is_resumable(),
            is_paused: plan.paused.is_some(),
            winding_down: plan.winding_down.as_ref().map(|(reason, _)| *reason),
            usage: plan.spend.total,
        })
    }

    /// How many tasks there are, and how many are completed.
    #[must_use]
    pub fn progress(&self) -> (u32, u32) {
        (self.counts.iter().sum(), self.counts[TaskState::Completed as usize])
    }
}
