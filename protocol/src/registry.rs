//! The contents of the cluster's buckets: its settings, heartbeats, and a summary of each run. All but the settings can be
//! deleted: they are rebuilt from the log and the next heartbeats.

use jiff::Timestamp;
use millrace_api_form::{ApiForm, Named};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{Capability, Lane, RunId, SessionId, WorkerId};
use crate::labels::Labels;
use crate::plan::{Absence, EndReason, Plan, RunHold, RunWait, TaskState};
use crate::result::Usage;
use crate::wait::ProviderWait;

/// The settings of a cluster.
// They are fixed when it is created; a program with other settings refuses to join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ApiForm)]
pub struct ClusterSettings {
    /// The format of everything that is stored in the cluster; see [`crate::wire`].
    #[api(skip)]
    pub version: u16,
    /// The number of lanes of the log.
    pub lanes: u16,
    /// The number of replicas of each stream.
    // And of each bucket: 1, 3 or 5.
    pub replicas: u8,
    /// The lease of a supervisor on its lanes in milliseconds.
    pub lane_lease_ms: u64,
    /// The lease of a worker on its work in milliseconds.
    pub work_lease_ms: u64,
}

/// The roles a process can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Named)]
#[serde(rename_all = "snake_case")]
pub enum ProcessRole {
    /// Owns lanes and decides.
    Supervisor,
    /// Executes tasks.
    Worker,
    /// Reviews results.
    Critic,
    /// Serves the HTTP API.
    Gateway,
}

/// A heartbeat, repeated as long as a process lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The process.
    pub id: WorkerId,
    /// Its role.
    pub role: ProcessRole,
    /// Its host name.
    pub host: String,
    /// Its process id on that host.
    pub pid: u32,
    /// The time of its start, in microseconds since 1970.
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub started: Timestamp,
    /// The capabilities that it provides, with the number of slots of each.
    pub slots: Vec<(Capability, u32)>,
    /// The number of pieces of work in flight.
    pub busy: u32,
    /// The same by capability; empty if the program does not report it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub busy_with: Vec<(Capability, u32)>,
    /// The version of the program.
    pub version: String,
    /// Of a supervisor: the lanes that it owns; empty if the program does not report them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<LaneReport>,
    /// The last time in which the process was suspended, by its clock; `None` if it was not, or if the program does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<Absence>,
    /// The last problem in the log of the process; `None` if there was none, or if the program does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_problem: Option<ProblemReport>,
}

/// The state of a lane, as its owner reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneReport {
    /// The lane.
    pub lane: Lane,
    /// The number of messages that the owner has not read yet.
    pub lag: u64,
    /// The number of live runs.
    pub runs: u32,
}

/// A warning or an error in a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ApiForm)]
#[api(name = "ProblemJson")]
pub struct ProblemReport {
    /// When it was logged.
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub at: Timestamp,
    /// `warn` or `error`.
    pub level: String,
    /// The line.
    // Without its time and level, at most `MAX_PROBLEM` characters.
    pub message: String,
}

/// The maximum length of a reported problem in characters.
pub const MAX_PROBLEM: usize = 400;

/// The damage of a log that does not contain the submission of a run any more.
pub const SUBMISSION_IS_MISSING: &str = "its submission is missing from the lane";

/// The summary of a run, for lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSummary {
    /// The run.
    pub run: RunId,
    /// Its lane.
    pub lane: Lane,
    /// Its objective, truncated to 200 characters.
    pub objective: String,
    /// The reason of its end; `None` while it is live.
    pub end: Option<EndReason>,
    /// The time of its start, in microseconds since 1970.
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub started: Timestamp,
    /// The time at which this summary was written.
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub updated: Timestamp,
    /// The number of tasks in each state but the last, in the order of [`TaskState::ALL`].
    pub counts: [u32; 9],
    /// The number of tasks whose attempts are parked.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waiting: u32,
    /// The number of its open questions to persons.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub open_questions: u32,
    /// The number of its questions so far, open and closed; each round counts. Any change of the open questions changes this number
    /// or the other.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub questions: u32,
    /// `true` if its messages are in the archive and no longer in the lane.
    pub archived: bool,
    /// `true` if it has ended and can be resumed.
    pub is_resumable: bool,
    /// `true` if it is paused.
    pub is_paused: bool,
    /// `true` if it is paused because it was interrupted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_interrupted: bool,
    /// The provider that it waits for, or for which it is paused; of several waits the oldest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for_provider: Option<ProviderWait>,
    /// The reason why it is winding down.
    pub winding_down: Option<EndReason>,
    /// Its usage so far.
    pub usage: Usage,
    /// The current wait; `None` while one of its own tasks is in progress, and if the program that wrote the summary does not report
    /// waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<RunWait>,
    /// A description of the wait, also of the hold before the first task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// The damage of its log, if the run cannot continue because of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_damage: Option<String>,
    /// Its labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Its number in its session, from 1; `None` before its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_position: Option<u32>,
    /// The reason for which it waits before its first task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<RunHold>,
    /// Its place among the runs that wait for this reason, as the owner of its lane last saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_place: Option<QueuePlace>,
    /// Its usage by capability and by model; `None` if it has used nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spend: Option<Box<SummarySpend>>,
    /// The sequences of the first and the last of its archived messages; `None` until it is archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived_span: Option<(u64, u64)>,
}

/// The place of a run in a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueuePlace {
    /// Its number, from 1: the run with 1 is the next.
    pub position: u32,
    /// The run of the session that must end before; `None` if its turn is being prepared, or if it waits for a place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<RunId>,
}

/// The usage of a run by capability and by model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummarySpend {
    /// By capability, `planner` and `critic` among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_capability: Vec<(Capability, Usage)>,
    /// By model, as far as known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_model: Vec<(String, Usage)>,
}

impl SummarySpend {
    /// Returns the usage of a run; `None` if it has used nothing.
    fn from_plan(plan: &Plan) -> Option<Box<Self>> {
        let spend = &plan.budget.spend;
        let by_capability = spend.by_capability.iter().map(|(name, usage)| (name.clone(), *usage));
        let by_model = spend.by_model.iter().map(|(name, usage)| (name.clone(), *usage));
        let all = Self { by_capability: by_capability.collect(), by_model: by_model.collect() };
        (all != Self::default()).then(|| Box::new(all))
    }
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl RunSummary {
    /// Returns the summary of a run with this plan; `None` before its first decision.
    #[must_use]
    pub fn from_plan(run: &RunId, lane: Lane, plan: &Plan, now: Timestamp) -> Option<Self> {
        let start = plan.run.start.as_ref()?;
        let hold = plan.run.holds.first().filter(|_| plan.is_live());
        let (wait, waiting_for) = plan.current_wait().unzip();
        let is_paused = plan.run.paused.is_some();
        Some(Self {
            run: run.clone(),
            lane,
            objective: start.objective.chars().take(200).collect(),
            end: plan.run.end.as_ref().map(|end| end.reason),
            started: start.at,
            updated: now,
            counts: std::array::from_fn(|state| plan.task_count_in_state(TaskState::ALL[state])),
            waiting: plan.task_count_in_state(TaskState::Waiting),
            open_questions: u32::try_from(plan.open_questions().count()).unwrap_or(u32::MAX),
            questions: plan.run.question_count,
            archived: false,
            is_resumable: plan.is_resumable(),
            is_paused,
            is_interrupted: plan.run.is_interrupted,
            waiting_for_provider: plan.oldest_provider_wait().cloned(),
            winding_down: plan.run.winding_down.as_ref().map(|(reason, _)| *reason),
            usage: plan.budget.spend.total,
            wait,
            waiting_for: hold.filter(|_| !is_paused).map(|hold| hold.to_string()).or(waiting_for.flatten()),
            log_damage: None,
            labels: start.labels.clone(),
            session: start.session.clone(),
            session_position: plan.run.holds.position,
            hold,
            queue_place: None,
            spend: SummarySpend::from_plan(plan),
            archived_span: None,
        })
    }

    /// Returns the summary with the place of a run that waits.
    #[must_use]
    pub fn with_queue_place(self, place: Option<QueuePlace>) -> Self {
        let (Some(hold), Some(place)) = (self.hold, place) else { return self };
        let position = place.position;
        let waiting_for = match (hold, &place.behind, &self.session) {
            (RunHold::Session, Some(run), Some(session)) => {
                format!("run {run} in session {session}, position {position}")
            }
            // Its turn is being prepared.
            (RunHold::Session, None, Some(session)) => {
                format!("its turn in session {session}, position {position}")
            }
            (RunHold::Session | RunHold::Place, _, _) => format!("{hold}, position {position}"),
        };
        Self { waiting_for: Some(waiting_for), queue_place: Some(place), ..self }
    }

    /// `true` if both summaries of a run say the same, whenever they were written.
    pub fn is_same_except_times(&self, other: &Self) -> bool {
        *self == Self { started: self.started, updated: self.updated, ..other.clone() }
    }

    /// Returns the number of tasks in a state.
    pub fn task_count(&self, state: TaskState) -> u32 {
        self.counts.get(state as usize).copied().unwrap_or(self.waiting)
    }

    /// Returns the number of tasks, and how many of them are completed.
    pub fn completed_and_total_tasks(&self) -> (u32, u32) {
        (self.counts.iter().sum::<u32>() + self.waiting, self.counts[TaskState::Completed as usize])
    }
}
