//! A task with its attempts. Pure.

use millrace_api_form::Named;
use millrace_protocol::child::ParentTask;
use millrace_protocol::form::{ErrorDetails, Time};
use millrace_protocol::ids::{Capability, RunId, TaskId, WorkerId};
use millrace_protocol::overrides::AgentOverrides;
use millrace_protocol::parameters::TaskParameters;
use millrace_protocol::plan::{Attempt, AttemptEnd, ErroredTaskWait, Plan, Task, TaskState};
use millrace_protocol::result::{Build, Usage, Verdict};
use millrace_runtime::work::queue_place::PlacesInQueue;
use schemars::JsonSchema;
use serde::Serialize;

use crate::question::{QuestionDetails, WaitDetails};
use crate::queue_wait::{describe_place, waiting_work_of_task};
use crate::wording::describe_task_wait;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema, Named)]
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

impl<'a> TaskJson<'a> {
    pub(crate) fn new(plan: &Plan, task: &'a Task, hold: Option<&str>) -> Self {
        let attempts = task.attempts.iter().map(|one| AttemptJson::new(task, one)).collect();
        Self {
            task: TaskHead { waiting_for: describe_task_wait(task, hold), ..TaskHead::new(plan, task) },
            attempts,
        }
    }

    /// Describes its wait for a worker by its place in the queue, if it has one.
    pub(crate) fn set_place(&mut self, run: &RunId, plan: &Plan, places: &PlacesInQueue) {
        let waiting = plan.task(self.task.id).and_then(|task| waiting_work_of_task(run, task));
        if let Some(waiting) = waiting
            && let Some(place) = places.get(&waiting)
        {
            self.task.waiting_for = Some(describe_place(&waiting, place));
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
