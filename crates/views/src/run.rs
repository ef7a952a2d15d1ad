//! A run: a line of `millrace list --json`, and the complete result (`millrace show --json`, `result.json`, the last line of
//! `millrace run --json`). A field of the list has the same name in the result. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use millrace_protocol::child::ParentTask;
use millrace_protocol::ids::{Capability, Lane, RunId, SessionId, TaskId, WorkerId};
use millrace_protocol::labels::Labels;
use millrace_protocol::overrides::AgentOverrides;
use millrace_protocol::parameters::TaskParameters;
use millrace_protocol::plan::{
    Attempt, AttemptEnd, Budget, DeliverableRule, EarlierRun, EndReason, ErroredTaskWait, PauseReason, Plan,
    PlanningMode, ResourceAmounts, RunHold, Task, TaskState, UsageBreakdown,
};
use millrace_protocol::registry::{QueuePlace, RunSummary};
use millrace_protocol::result::{Build, TaskResult, Usage, Verdict};
use schemars::JsonSchema;
use serde::Serialize;

use crate::history::{FailureRecord, PlannerTurn, RunHistory, UserCommand, UserMessage};
use crate::wording::{describe_hold, describe_task_wait, explain_deliverable_choice};
use crate::{ErrorDetails, ProviderWaitJson, QuestionDetails, Time, WaitDetails, tagged};

/// The state of a run: how it ended, or what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
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
    pub const ALL: [Self; 15] = [
        Self::Submitted,
        Self::Queued,
        Self::Running,
        Self::Paused,
        Self::Interrupted,
        Self::WindingDown,
        Self::LogDamaged,
        Self::Completed,
        Self::CompletedPartial,
        Self::Failed,
        Self::Cancelled,
        Self::NoProgress,
        Self::PlannerUnavailable,
        Self::BudgetExhausted,
        Self::MaxSteps,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Interrupted => "interrupted",
            Self::WindingDown => "winding_down",
            Self::LogDamaged => "log_damaged",
            Self::Completed => "completed",
            Self::CompletedPartial => "completed_partial",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::NoProgress => "no_progress",
            Self::PlannerUnavailable => "planner_unavailable",
            Self::BudgetExhausted => "budget_exhausted",
            Self::MaxSteps => "max_steps",
        }
    }

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

    fn of_plan(plan: &Plan) -> Self {
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
    fn new(count: impl Fn(TaskState) -> u32) -> Self {
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

/// A run in a list: a line of `millrace list --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "run")]
#[schemars(transform = tagged("run"))]
pub struct RunListLine<'a> {
    /// The run.
    run: &'a RunId,
    /// Its state.
    state: RunState,
    /// Its objective, truncated to 200 characters. Fields are absent that are not known before a supervisor has started the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    objective: Option<&'a str>,
    /// Its labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<&'a Labels>,
    /// Its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a SessionId>,
    /// Its number in its session, from 1; absent before its turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_position: Option<u32>,
    /// The reason for which it waits before its first task.
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<RunHold>,
    /// Its place among the runs that wait for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_place: Option<&'a QueuePlace>,
    /// Its lane of the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    lane: Option<u16>,
    /// When it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<Time>,
    /// When it changed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<Time>,
    /// `true` if it has ended and can be resumed.
    resumable: bool,
    /// `true` if its log is in the archive.
    archived: bool,
    /// The number of tasks, by state.
    task_counts: TaskCounts,
    /// Its usage.
    usage: Usage,
    /// The provider that it waits for, or for which it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for_provider: Option<ProviderWaitJson<'a>>,
    /// The wait of its first waiting task, while nothing is in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<&'a str>,
    /// The number of its open questions to persons; `millrace inbox` shows them.
    open_questions: u32,
    /// The damage of its log; such a run cannot continue.
    #[serde(skip_serializing_if = "Option::is_none")]
    log_damage: Option<&'a str>,
}

impl<'a> RunListLine<'a> {
    pub fn new(run: &'a RunId, summary: Option<&'a RunSummary>) -> Self {
        let counts = |summary: &RunSummary| TaskCounts::new(|state| summary.task_count(state));
        Self {
            run,
            state: RunState::of_summary(summary),
            objective: summary.map(|summary| summary.objective.as_str()),
            labels: summary.map(|summary| &summary.labels).filter(|labels| !labels.is_empty()),
            session: summary.and_then(|summary| summary.session.as_ref()),
            session_position: summary.and_then(|summary| summary.session_position),
            hold: summary.and_then(|summary| summary.hold),
            queue_place: summary.and_then(|summary| summary.queue_place.as_ref()),
            lane: summary.map(|RunSummary { lane: Lane(lane), .. }| *lane),
            started_at: summary.map(|summary| summary.started.into()),
            updated_at: summary.map(|summary| summary.updated.into()),
            resumable: summary.is_some_and(|summary| summary.is_resumable),
            archived: summary.is_some_and(|summary| summary.archived),
            task_counts: summary.map(counts).unwrap_or_default(),
            usage: summary.map(|summary| summary.usage).unwrap_or_default(),
            waiting_for_provider: summary
                .and_then(|summary| summary.waiting_for_provider.as_ref())
                .map(Into::into),
            waiting_for: summary.and_then(|summary| summary.waiting_for.as_deref()),
            open_questions: summary.map(|summary| summary.open_questions).unwrap_or_default(),
            log_damage: summary.and_then(|summary| summary.log_damage.as_deref()),
        }
    }

    /// Returns the line for a run that no supervisor has started.
    pub fn submitted(
        run: &'a RunId,
        objective: &'a str,
        labels: &'a Labels,
        session: Option<&'a SessionId>,
    ) -> Self {
        let labels = Some(labels).filter(|labels| !labels.is_empty());
        Self { objective: Some(objective), labels, session, ..Self::new(run, None) }
    }
}

/// A run with everything that happened in it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "result")]
#[schemars(transform = tagged("result"))]
pub struct RunResult<'a> {
    /// The run.
    run: &'a RunId,
    /// Its state.
    state: RunState,
    /// Its objective.
    objective: Option<&'a str>,
    /// The planning mode.
    mode: Option<PlanningMode>,
    /// The runs that it follows up on.
    #[serde(skip_serializing_if = "<[EarlierRun]>::is_empty")]
    after: &'a [EarlierRun],
    /// Its labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<&'a Labels>,
    /// Its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a SessionId>,
    /// Its number in its session, from 1; absent before its turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_position: Option<u32>,
    /// The reason for which it waits before its first task.
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<RunHold>,
    /// When it started.
    started_at: Option<Time>,
    /// Its end; `null` until then.
    end: Option<EndJson<'a>>,
    /// `true` if it has ended and can be resumed.
    resumable: bool,
    /// The provider that the run waits for, or for which it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for_provider: Option<ProviderWaitJson<'a>>,
    /// The task whose result is the deliverable.
    deliverable: Option<DeliverableJson<'a>>,
    /// `false` if the deliverable does not answer its question; absent as long as there is no deliverable.
    #[serde(skip_serializing_if = "Option::is_none")]
    answered: Option<bool>,
    /// The result of the deliverable's task: text in `output`, structured output in `data`.
    result: Option<&'a TaskResult>,
    /// The number of tasks, by state.
    task_counts: TaskCounts,
    /// All tasks, with all attempts.
    tasks: Vec<TaskJson<'a>>,
    /// The planner's turns.
    turns: &'a [PlannerTurn],
    /// The messages of users.
    messages: &'a [UserMessage],
    /// The commands of users.
    commands: &'a [UserCommand],
    /// The usage.
    usage: Usage,
    /// The usage by role, capability and model.
    spend: &'a UsageBreakdown,
    /// The limits, and the remaining amounts.
    budget: Option<BudgetJson<'a>>,
    /// The errors, from first to last.
    errors: &'a [FailureRecord],
}

/// The tasks of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "tasks")]
#[schemars(transform = tagged("tasks"))]
pub struct TaskList<'a> {
    /// The run.
    run: &'a RunId,
    /// The sequence of the last decision; 0 before the first.
    sequence: u64,
    /// The number of tasks, by state.
    task_counts: TaskCounts,
    /// The tasks, with all attempts.
    tasks: Vec<TaskJson<'a>>,
}

impl<'a> TaskList<'a> {
    /// Returns the tasks of a run that `is_wanted` selects.
    pub fn new(run: &'a RunId, (plan, sequence): (&'a Plan, u64), is_wanted: impl Fn(&Task) -> bool) -> Self {
        let hold = describe_hold(plan, false);
        let tasks = plan.tasks().iter().filter(|task| is_wanted(task));
        Self {
            run,
            sequence,
            task_counts: TaskCounts::new(|state| plan.task_count_in_state(state)),
            tasks: tasks.map(|task| TaskJson::new(plan, task, hold)).collect(),
        }
    }
}

/// The end of a run.
#[derive(Debug, Serialize, JsonSchema)]
struct EndJson<'a> {
    /// The reason, as in `state`.
    reason: EndReason,
    /// Details for a person.
    detail: &'a str,
    /// When it ended.
    at: Time,
    /// The command that resumes the run, if it can be resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    resume_with: Option<String>,
}

/// The task whose result is the deliverable.
#[derive(Debug, Serialize, JsonSchema)]
struct DeliverableJson<'a> {
    /// The task.
    task: &'a TaskId,
    /// The rule by which it was chosen.
    rule: DeliverableRule,
    /// The rule, for a person.
    reason: &'static str,
}

/// A task with its attempts.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TaskJson<'a> {
    #[serde(flatten)]
    task: TaskHead<'a>,
    /// Its attempts.
    attempts: Vec<AttemptJson<'a>>,
}

/// A task without its attempts.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TaskHead<'a> {
    /// Its id.
    pub id: &'a TaskId,
    /// Its objective.
    pub objective: &'a str,
    /// The capability that it needs.
    pub capability: &'a Capability,
    /// Its parameters, if it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<&'a TaskParameters>,
    /// The tasks that it depends on.
    pub depends_on: &'a [TaskId],
    /// `true` if its result is the deliverable.
    #[serde(rename = "final")]
    pub is_final: bool,
    /// Its state.
    pub state: TaskState,
    /// Why it failed or was cancelled, or the reason for waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason for waiting, if it has neither started nor ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// Its usage, reviews included; without that of the tasks that it delegated.
    pub usage: Usage,
    /// The task whose attempt delegated it, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<&'a ParentTask>,
    /// `true` if it continues the conversation of the attempt that delegated it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fork: bool,
    /// `true` if it continues the conversation that all such tasks of its capability in the run share.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// The overrides of its agent by its delegation, the restrictions of its parents included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overrides: Option<&'a AgentOverrides>,
    /// Its usage with that of the tasks that it delegated, and of theirs, if it delegated any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_with_children: Option<Usage>,
}

/// The state of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttemptState {
    /// A worker carries it out.
    Running,
    /// It is parked: it waits for a time, an event or an answer, without a worker. Or its waits have ended, and it waits for a worker.
    Waiting,
    /// Its result is reviewed.
    UnderReview,
    /// Its result was accepted.
    Accepted,
    /// Its result was rejected.
    Rejected,
    /// It failed.
    Errored,
    /// It timed out.
    TimedOut,
    /// It is no longer wanted.
    GivenUp,
}

impl AttemptState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::UnderReview => "under_review",
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Errored => "errored",
            Self::TimedOut => "timed_out",
            Self::GivenUp => "given_up",
        }
    }

    /// Returns the state of an attempt of a task.
    pub fn of_attempt(task: &Task, attempt: &Attempt) -> Self {
        let is_current = task.attempt == attempt.number;
        match (attempt.end.as_ref(), attempt.verdict()) {
            (None, _) if is_current && task.state() == TaskState::Running => Self::Running,
            // One that continues, or starts, when a worker takes it.
            (None, _) if is_current && task.live_attempt().is_some() => Self::Waiting,
            (None, _) => Self::GivenUp,
            (Some(AttemptEnd::Finished { .. }), _) if is_current && task.state() == TaskState::Waiting => {
                Self::UnderReview
            }
            (Some(AttemptEnd::Errored(_)), _) => Self::Errored,
            (Some(AttemptEnd::TimedOut(_)), _) => Self::TimedOut,
            (Some(AttemptEnd::Finished { .. }), Some((_, verdict))) if !verdict.passed => Self::Rejected,
            (Some(AttemptEnd::Finished { .. }), _)
                if is_current && task.state() == TaskState::NeedsReview =>
            {
                Self::UnderReview
            }
            (Some(AttemptEnd::Finished { .. }), _) if is_current && task.state() == TaskState::Completed => {
                Self::Accepted
            }
            (Some(AttemptEnd::Finished { .. }), _) => Self::GivenUp,
        }
    }
}

/// An attempt at a task.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AttemptJson<'a> {
    /// Its number, from 1.
    pub number: u32,
    /// The worker that claimed it.
    pub worker: Option<&'a WorkerId>,
    /// The software of that worker: the program, and the version of the capability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build: Option<&'a Build>,
    /// When it was claimed.
    pub claimed_at: Option<Time>,
    /// When it ended.
    pub ended_at: Option<Time>,
    /// The time for which workers have worked on it, as `run_time` counts it: without waits, and without its current part while it
    /// runs.
    pub worked_ms: u64,
    /// Its state.
    pub state: AttemptState,
    /// Its result in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<&'a str>,
    /// Its error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorDetails<'a>>,
    /// The verdict on its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<&'a Verdict>,
    /// The critic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critic: Option<&'a WorkerId>,
    /// Its usage.
    pub usage: Usage,
    /// The usage of its reviews.
    pub review_usage: Usage,
    /// Feedback that it was given: from earlier attempts, the planner and users.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub feedback: Vec<String>,
    /// Its questions to persons, open and closed, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<QuestionDetails<'a>>,
    /// Its other waits, open and ended, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<WaitDetails<'a>>,
}

/// The budget of a run.
#[derive(Debug, Serialize, JsonSchema)]
struct BudgetJson<'a> {
    /// The limits; times are in seconds, as in a plan file.
    limits: &'a Budget,
    /// The remaining amounts, under the names of the limits.
    left: RemainingBudget,
}

/// The remaining amounts of all limited resources.
#[derive(Debug, Serialize, JsonSchema)]
struct RemainingBudget {
    #[serde(flatten)]
    amounts: ResourceAmountsJson,
    /// The remaining time in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    wall_time: Option<f64>,
    /// The remaining turns of the planner.
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<u32>,
    /// The remaining amounts by capability.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    capabilities: BTreeMap<Capability, ResourceAmounts>,
}

/// Amounts of resources; one that is not limited is absent.
#[derive(Debug, Serialize, JsonSchema)]
struct ResourceAmountsJson {
    /// Tokens in both directions.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    /// Tokens sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    input_tokens: Option<u64>,
    /// Tokens received.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_tokens: Option<u64>,
    /// Tokens that the provider read from its cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u64>,
    /// Calls to models.
    #[serde(skip_serializing_if = "Option::is_none")]
    model_calls: Option<u64>,
    /// Millionths of a US dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_micros: Option<u64>,
}

impl From<ResourceAmounts> for ResourceAmountsJson {
    fn from(amounts: ResourceAmounts) -> Self {
        let ResourceAmounts { tokens, input_tokens, output_tokens, cached_tokens, model_calls, cost_micros } =
            amounts;
        Self { tokens, input_tokens, output_tokens, cached_tokens, model_calls, cost_micros }
    }
}

impl<'a> RunResult<'a> {
    /// Returns a run and the result of its deliverable, as of `now`. `resume_with` is the command that resumes it.
    pub fn new(
        run: &'a RunId,
        history: &'a RunHistory,
        result: Option<&'a TaskResult>,
        now: Timestamp,
        resume_with: Option<String>,
    ) -> Self {
        let plan = &history.plan;
        let (start, end) = (plan.run.start.as_ref(), plan.run.end.as_ref());
        let deliverable = end.and_then(|end| end.deliverable.as_ref());
        Self {
            run,
            state: RunState::of_plan(plan),
            objective: start.map(|start| start.objective.as_str()),
            mode: start.map(|start| start.mode),
            after: start.map_or(&[][..], |start| start.after.as_slice()),
            labels: start.map(|start| &start.labels).filter(|labels| !labels.is_empty()),
            session: start.and_then(|start| start.session.as_ref()),
            session_position: plan.run.holds.position,
            hold: plan.run.holds.first().filter(|_| plan.is_live()),
            started_at: start.map(|start| start.at.into()),
            end: end.map(|end| EndJson {
                reason: end.reason,
                detail: &end.detail,
                at: end.at.into(),
                resume_with,
            }),
            resumable: end.is_some_and(|end| end.is_resumable),
            waiting_for_provider: plan.oldest_provider_wait().map(Into::into),
            deliverable: deliverable.map(|(task, rule)| DeliverableJson {
                task,
                rule: *rule,
                reason: explain_deliverable_choice(*rule),
            }),
            answered: deliverable.map(|(id, _)| plan.task(id).is_none_or(Task::is_answered)),
            result,
            task_counts: TaskCounts::new(|state| plan.task_count_in_state(state)),
            tasks: plan
                .tasks()
                .iter()
                .map(|task| TaskJson::new(plan, task, describe_hold(plan, false)))
                .collect(),
            turns: &history.turns,
            messages: &history.messages,
            commands: &history.commands,
            usage: plan.budget.spend.total,
            spend: &plan.budget.spend,
            budget: start
                .map(|start| BudgetJson { limits: &start.budget, left: remaining_budget(plan, now) }),
            errors: &history.errors,
        }
    }

    /// The same while no cluster is running: its tasks wait for one.
    pub fn without_cluster(self, history: &'a RunHistory) -> Self {
        let hold = describe_hold(&history.plan, true);
        Self {
            tasks: {
                let plan = &history.plan;
                plan.tasks().iter().map(|task| TaskJson::new(plan, task, hold)).collect()
            },
            ..self
        }
    }
}

impl<'a> TaskJson<'a> {
    fn new(plan: &Plan, task: &'a Task, hold: Option<&str>) -> Self {
        let attempts = task.attempts.iter().map(|one| AttemptJson::new(task, one)).collect();
        Self {
            task: TaskHead { waiting_for: describe_task_wait(task, hold), ..TaskHead::new(plan, task) },
            attempts,
        }
    }
}

impl<'a> TaskHead<'a> {
    pub fn new(plan: &Plan, task: &'a Task) -> Self {
        let has_children = plan.children(task).next().is_some();
        let spec = &task.spec;
        Self {
            id: &spec.id,
            objective: &spec.objective,
            capability: &spec.capability,
            parameters: (!spec.parameters.is_empty()).then_some(&spec.parameters),
            depends_on: &spec.depends_on,
            is_final: spec.is_final,
            state: task.state(),
            reason: task.end_reason().map(str::to_owned).or_else(|| explain_wait(task)),
            waiting_for: task.describe_wait(),
            usage: task.total_usage(),
            parent: spec.parent.as_ref(),
            fork: spec.fork.is_some(),
            shared: spec.is_shared,
            overrides: spec.overrides.as_deref(),
            usage_with_children: has_children.then(|| plan.usage_with_children(task)),
        }
    }
}

fn explain_wait(task: &Task) -> Option<String> {
    match task.errored_wait()? {
        ErroredTaskWait::Retry(at) => Some(format!("retry at {at}")),
        ErroredTaskWait::Capability { .. } => {
            Some(format!("no worker provides {:?}", task.spec.capability.as_str()))
        }
        ErroredTaskWait::Parameters { .. } => task.parameter_problem().map(str::to_owned),
    }
}

impl<'a> AttemptJson<'a> {
    pub fn new(task: &'a Task, attempt: &'a Attempt) -> Self {
        let (summary, error) = match attempt.end.as_ref() {
            None => (None, None),
            Some(AttemptEnd::Finished { summary, .. }) => (Some(summary.as_str()), None),
            Some(AttemptEnd::Errored(error)) => (None, Some((&**error).into())),
            Some(AttemptEnd::TimedOut(clock)) => (None, Some((*clock).into())),
        };
        let verdict = attempt.verdict();
        Self {
            number: attempt.number,
            worker: attempt.worker.as_ref(),
            build: attempt.build.as_deref(),
            claimed_at: attempt.claimed_at.map(Time::from),
            ended_at: attempt.ended_at.map(Time::from),
            worked_ms: u64::try_from(attempt.worked.as_millis()).unwrap_or_default(),
            state: AttemptState::of_attempt(task, attempt),
            summary,
            error,
            verdict: verdict.map(|(_, verdict)| verdict),
            critic: verdict.map(|(critic, _)| critic),
            usage: attempt.usage,
            review_usage: attempt.review_usage(),
            feedback: feedback_before_attempt(task, attempt.number),
            questions: attempt.questions(task).map(QuestionDetails::from).collect(),
            waits: attempt.waits.iter().filter_map(WaitDetails::of_wait).collect(),
        }
    }
}

/// Returns the feedback that an attempt received: the feedback of the task as of that attempt.
fn feedback_before_attempt(task: &Task, number: u32) -> Vec<String> {
    if task.instructions.is_empty() && task.attempts.first().is_none_or(|first| first.number >= number) {
        return Vec::new();
    }
    let mut earlier = task.clone();
    earlier.attempt = number;
    earlier.instructions.retain(|(from, _)| *from <= number);
    earlier.collect_feedback()
}

fn remaining_budget(plan: &Plan, now: Timestamp) -> RemainingBudget {
    let budget = plan.run.start.as_ref().map(|start| &start.budget);
    let until = plan.run.end.as_ref().map_or(now, |end| end.at);
    let time = budget.and_then(|budget| budget.wall_time);
    let seconds = time.map(|limit| (limit.as_secs_f64() - plan.worked_time(until).as_secs_f64()).max(0.0));
    RemainingBudget {
        amounts: remaining_amounts(plan).into(),
        wall_time: seconds.map(|seconds| (seconds * 1000.0).round() / 1000.0),
        steps: plan.has_planner().then(|| plan.max_planning_turns().saturating_sub(plan.planning.turns)),
        capabilities: budget.map(|budget| remaining_by_capability(plan, budget)).unwrap_or_default(),
    }
}

fn remaining_amounts(plan: &Plan) -> ResourceAmounts {
    let mut remaining = ResourceAmounts::default();
    for (dimension, limit) in plan.run.start.iter().flat_map(|start| start.budget.amounts.iter()) {
        let used = dimension
            .amount_used(&plan.budget.spend.total)
            .saturating_add(plan.budget.reserved.total_reserved(dimension));
        remaining.set(dimension, Some(limit.saturating_sub(used)));
    }
    remaining
}

fn remaining_by_capability(plan: &Plan, budget: &Budget) -> BTreeMap<Capability, ResourceAmounts> {
    let remaining = budget.capabilities.iter().map(|(name, limits)| {
        let used = plan.budget.spend.by_capability.get(name).copied().unwrap_or_default();
        let mut amounts = ResourceAmounts::default();
        for (dimension, limit) in limits.iter() {
            amounts.set(dimension, Some(limit.saturating_sub(dimension.amount_used(&used))));
        }
        (name.clone(), amounts)
    });
    remaining.collect()
}

/// The state of a run at some point of its log: the last line of `millrace replay --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "replay")]
#[schemars(transform = tagged("replay"))]
pub struct ReplayJson<'a> {
    /// The run.
    run: &'a RunId,
    /// The sequence of the last decision; `null` before the first.
    sequence: Option<u64>,
    /// The time of the last decision.
    at: Option<Time>,
    /// The run at that point, without the text of its deliverable.
    result: RunResult<'a>,
    /// The state as folded from the log. For debugging: its fields may change with every release.
    #[schemars(with = "serde_json::Value")]
    plan: Cow<'a, Plan>,
}

impl<'a> ReplayJson<'a> {
    /// Returns the state after the decision at `last`, or the state before the first decision.
    /// `resume_with` is the command that resumes the run.
    pub fn new(
        run: &'a RunId,
        history: &'a RunHistory,
        last: Option<(u64, Timestamp)>,
        resume_with: Option<String>,
    ) -> Self {
        let now = last.map_or(Timestamp::UNIX_EPOCH, |(_, at)| at);
        Self {
            run,
            sequence: last.map(|(sequence, _)| sequence),
            at: last.map(|(_, at)| at.into()),
            result: RunResult::new(run, history, None, now, resume_with),
            plan: Cow::Borrowed(&history.plan),
        }
    }
}
