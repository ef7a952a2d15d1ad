//! The state of a run, and its tasks by state. Pure.

use millrace_api_form::Named;
use millrace_protocol::plan::{EndReason, PauseReason, Plan, TaskState};
use millrace_protocol::registry::RunSummary;
use schemars::JsonSchema;
use serde::Serialize;

/// The state of a run: how it ended, or what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema, Named)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It waits for a supervisor.
    Submitted,
    /// It waits for its turn in its session, or for a place among the running runs.
    Queued,
    /// Its tasks are carried out.
    Running,
    /// No new tasks start until it is resumed.
    Paused,
    /// Nothing of it runs until it is resumed.
    Interrupted,
    /// It ends as soon as what is in progress has ended.
    WindingDown,
    /// Its log is damaged; it cannot continue.
    LogDamaged,
    /// Everything was done.
    Completed,
    /// There is a deliverable, but not everything was done.
    CompletedPartial,
    /// There is no deliverable.
    Failed,
    /// A user cancelled it.
    Cancelled,
    /// No remaining task can start.
    NoProgress,
    /// The planner gave no usable answer.
    PlannerUnavailable,
    /// The budget is used up.
    BudgetExhausted,
    /// The number of planner turns is used up.
    MaxSteps,
}

impl RunState {
    /// Returns the state of a run in a list; `None` is a run that no supervisor has started.
    pub fn of_summary(summary: Option<&RunSummary>) -> Self {
        let Some(summary) = summary else { return Self::Submitted };
        match summary.end {
            _ if summary.log_damage.is_some() => Self::LogDamaged,
            Some(end) => end.into(),
            None if summary.is_paused && summary.waiting_for_provider.is_some() => Self::Paused,
            None if summary.is_interrupted => Self::Interrupted,
            None if summary.is_paused => Self::Paused,
            None if summary.hold.is_some() => Self::Queued,
            None if summary.winding_down.is_some() => Self::WindingDown,
            None => Self::Running,
        }
    }

    pub(crate) fn of_plan(plan: &Plan) -> Self {
        match (&plan.run.end, &plan.run.start) {
            (Some(end), _) => end.reason.into(),
            (None, None) => Self::Submitted,
            (None, Some(_)) => match plan.pause_reason() {
                Some(PauseReason::Provider(_) | PauseReason::User) => Self::Paused,
                Some(PauseReason::Interruption) => Self::Interrupted,
                None if plan.is_held() => Self::Queued,
                None if plan.run.winding_down.is_some() => Self::WindingDown,
                None => Self::Running,
            },
        }
    }

    /// `true` if nothing more happens in the run: it has ended, or its log is damaged.
    pub fn has_ended(self) -> bool {
        !matches!(
            self,
            Self::Submitted
                | Self::Queued
                | Self::Running
                | Self::Paused
                | Self::Interrupted
                | Self::WindingDown
        )
    }
}

impl From<EndReason> for RunState {
    fn from(reason: EndReason) -> Self {
        match reason {
            EndReason::Completed => Self::Completed,
            EndReason::CompletedPartial => Self::CompletedPartial,
            EndReason::Failed => Self::Failed,
            EndReason::Cancelled => Self::Cancelled,
            EndReason::NoProgress => Self::NoProgress,
            EndReason::PlannerUnavailable => Self::PlannerUnavailable,
            EndReason::BudgetExhausted => Self::BudgetExhausted,
            EndReason::MaxSteps => Self::MaxSteps,
        }
    }
}

/// The number of tasks, by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TaskCounts {
    /// All tasks.
    pub total: u32,
    /// Tasks that wait for dependencies.
    pub pending: u32,
    /// Tasks that wait for a worker.
    pub ready: u32,
    /// Tasks that a worker has claimed.
    pub running: u32,
    /// Tasks whose result is reviewed.
    pub needs_review: u32,
    /// Tasks whose result was accepted.
    pub completed: u32,
    /// Tasks whose result was rejected, and that wait for a worker.
    pub rerun: u32,
    /// Tasks that wait for their next attempt, their capability, or other parameters.
    pub errored: u32,
    /// Tasks that failed.
    pub failed: u32,
    /// Tasks that were cancelled.
    pub cancelled: u32,
    /// Tasks that wait for a time or an event, without a worker.
    pub waiting: u32,
}

impl TaskCounts {
    pub(crate) fn new(count: impl Fn(TaskState) -> u32) -> Self {
        Self {
            total: TaskState::ALL.into_iter().map(&count).sum(),
            pending: count(TaskState::Pending),
            ready: count(TaskState::Ready),
            running: count(TaskState::Running),
            needs_review: count(TaskState::NeedsReview),
            completed: count(TaskState::Completed),
            rerun: count(TaskState::Rerun),
            errored: count(TaskState::Errored),
            failed: count(TaskState::Failed),
            cancelled: count(TaskState::Cancelled),
            waiting: count(TaskState::Waiting),
        }
    }
}
