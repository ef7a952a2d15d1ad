//! A run as JSON: what it was to do, how it ended and why, all of its tasks with all of their attempts, the planner's
//! turns, what users said and commanded, what was spent and what went wrong. Fields are only ever added. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use millrace_protocol::ids::{Capability, RunId, TaskId, WorkerId};
use millrace_protocol::plan::{
    Amounts, Attempt, AttemptEnd, Budget, EndReason, ErroredFor, FinalRung, Mode, Plan, Spend, Task,
    TaskState,
};
use millrace_protocol::result::{TaskError, TaskResult, Usage, Verdict};
use serde::Serialize;
use serde_json::Value;

use crate::budget;
use crate::story::{Commanded, Message, Story, Trouble, Turn};

/// Everything.
#[derive(Serialize)]
struct Whole<'a> {
    run: &'a RunId,
    objective: Option<&'a str>,
    mode: Option<Mode>,
    started_at: Option<Timestamp>,
    /// How it ended, as in `end`.
    reason: Option<EndReason>,
    detail: Option<&'a str>,
    end: Option<End<'a>>,
    deliverable: Option<Deliverable<'a>>,
    /// The result of the deliverable's task: its text is `output`, structured output `data`.
    result: Option<&'a TaskResult>,
    tasks: Vec<OneTask<'a>>,
    turns: &'a [Turn],
    messages: &'a [Message],
    commands: &'a [Commanded],
    spend: &'a Spend,
    budget: Option<OfBudget<'a>>,
    errors: &'a [Trouble],
    /// The state of the run as the log folds to it.
    plan: &'a Plan,
}

#[derive(Serialize)]
struct End<'a> {
    reason: EndReason,
    detail: &'a str,
    at: Timestamp,
    resumable: bool,
    /// The command that goes on with it, where it can be gone on with.
    #[serde(skip_serializing_if = "Option::is_none")]
    resume_with: Option<String>,
}

#[derive(Serialize)]
struct Deliverable<'a> {
    task: &'a TaskId,
    rung: FinalRung,
    why: &'static str,
}

#[derive(Serialize)]
struct OneTask<'a> {
    id: &'a TaskId,
    objective: &'a str,
    capability: &'a Capability,
    #[serde(skip_serializing_if = "<[TaskId]>::is_empty")]
    depends_on: &'a [TaskId],
    #[serde(rename = "final")]
    is_final: bool,
    state: TaskState,
    /// Why it failed or was cancelled, or what it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    usage: Usage,
    attempts: Vec<OneAttempt<'a>>,
}

#[derive(Serialize)]
struct OneAttempt<'a> {
    number: u32,
    worker: Option<&'a WorkerId>,
    claimed_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Error<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'a Verdict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    critic: Option<&'a WorkerId>,
    usage: Usage,
    review_usage: Usage,
    /// What it was told of attempts before it, and by planner and users.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    told: Vec<String>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Error<'a> {
    OfWork(&'a TaskError),
    TimedOut { kind: &'static str, message: String },
}

#[derive(Serialize)]
struct OfBudget<'a> {
    limits: &'a Budget,
    left: Left,
}

/// What is left, of what is limited.
#[derive(Serialize)]
struct Left {
    #[serde(flatten)]
    amounts: Amounts,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<u32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    capabilities: BTreeMap<Capability, Amounts>,
}

/// A run and the result of its deliverable as JSON, as it stands at a time.
pub fn json(run: &RunId, story: &Story, result: Option<&TaskResult>, now: Timestamp) -> Value {
    let plan = &story.plan;
    let (start, end) = (plan.start.as_ref(), plan.end.as_ref());
    let whole = Whole {
        run,
        objective: start.map(|start| start.objective.as_str()),
        mode: start.map(|start| start.mode),
        started_at: start.map(|start| start.at),
        reason: end.map(|end| end.reason),
        detail: end.map(|end| end.detail.as_str()),
        end: end.map(|end| End {
            reason: end.reason,
            detail: &end.detail,
            at: end.at,
            resumable: end.is_resumable,
            resume_with: how_to_go_on(run, plan),
        }),
        deliverable: end.and_then(|end| end.deliverable.as_ref()).map(|(task, rung)| Deliverable {
            task,
            rung: *rung,
            why: why(*rung),
        }),
        result,
        tasks: plan.tasks().iter().map(task).collect(),
        turns: &story.turns,
        messages: &story.messages,
        commands: &story.commands,
        spend: &plan.spend,
        budget: start.map(|start| OfBudget { limits: &start.budget, left: left(plan, now) }),
        errors: &story.errors,
        plan,
    };
    serde_json::to_value(whole).expect("a run has a form in JSON")
}

/// The command that goes on with a run that has ended, where there is one.
pub fn how_to_go_on(run: &RunId, plan: &Plan) -> Option<String> {
    let more = plan.is_resumable().then(|| budget::suggestion(plan)).flatten()?;
    Some(format!("millrace resume {run} --budget {more}"))
}

/// Why a task's result is the deliverable.
pub fn why(rung: FinalRung) -> &'static str {
    match rung {
        FinalRung::Final => "its task is the final one",
        FinalRung::Detailed => {
            "no final task was completed; it is the newest result with text beyond its summary"
        }
        FinalRung::Producer => "no final task was completed; it is the newest result of a producer",
        FinalRung::Any => "no final task was completed; it is the newest result",
    }
}

fn task(task: &Task) -> OneTask<'_> {
    let spec = &task.spec;
    OneTask {
        id: &spec.id,
        objective: &spec.objective,
        capability: &spec.capability,
        depends_on: &spec.depends_on,
        is_final: spec.is_final,
        state: task.state,
        reason: task.reason.clone().or_else(|| waits(task)),
        usage: task.usage(),
        attempts: task.attempts.iter().map(|one| attempt(task, one)).collect(),
    }
}

fn waits(task: &Task) -> Option<String> {
    match task.errored? {
        ErroredFor::Retry(at) => Some(format!("tries again at {at}")),
        ErroredFor::Capability => Some(format!("nobody offers {:?}", task.spec.capability.as_str())),
        ErroredFor::Parameters => task.problem.clone(),
    }
}

fn attempt<'a>(task: &'a Task, attempt: &'a Attempt) -> OneAttempt<'a> {
    let (summary, error) = match attempt.end.as_ref() {
        None => (None, None),
        Some(AttemptEnd::Finished { summary, .. }) => (Some(summary.as_str()), None),
        Some(AttemptEnd::Errored(error)) => (None, Some(Error::OfWork(error))),
        Some(AttemptEnd::TimedOut(clock)) => {
            (None, Some(Error::TimedOut { kind: "timed_out", message: clock.to_string() }))
        }
    };
    let verdict = attempt.verdict.as_ref();
    OneAttempt {
        number: attempt.number,
        worker: attempt.worker.as_ref(),
        claimed_at: attempt.claimed_at,
        ended_at: attempt.ended_at,
        state: state(task, attempt),
        summary,
        error,
        verdict: verdict.map(|(_, verdict)| verdict.as_ref()),
        critic: verdict.map(|(critic, _)| critic),
        usage: attempt.usage,
        review_usage: attempt.review_usage,
        told: told(task, attempt.number),
    }
}

fn state(task: &Task, attempt: &Attempt) -> &'static str {
    let is_current = task.attempt == attempt.number;
    match (attempt.end.as_ref(), attempt.verdict.as_ref()) {
        (None, _) if is_current && task.state == TaskState::Running => "running",
        (None, _) => "given_up",
        (Some(AttemptEnd::Errored(_)), _) => "errored",
        (Some(AttemptEnd::TimedOut(_)), _) => "timed_out",
        (Some(AttemptEnd::Finished { .. }), Some((_, verdict))) if !verdict.passed => "rejected",
        (Some(AttemptEnd::Finished { .. }), _) if is_current && task.state == TaskState::NeedsReview => {
            "under_review"
        }
        (Some(AttemptEnd::Finished { .. }), _) if is_current && task.state == TaskState::Completed => {
            "accepted"
        }
        (Some(AttemptEnd::Finished { .. }), _) => "given_up",
    }
}

/// What an attempt was told: what the task would tell if it were at that attempt.
fn told(task: &Task, number: u32) -> Vec<String> {
    if task.told.is_empty() && task.attempts.first().is_none_or(|first| first.number >= number) {
        return Vec::new();
    }
    let mut then = task.clone();
    then.attempt = number;
    then.told.retain(|(from, _)| *from <= number);
    then.feedback()
}

fn left(plan: &Plan, now: Timestamp) -> Left {
    let budget = plan.start.as_ref().map(|start| &start.budget);
    let until = plan.end.as_ref().map_or(now, |end| end.at);
    let time = budget.and_then(|budget| budget.wall_time);
    let seconds = time.map(|limit| (limit.as_secs_f64() - plan.worked(until).as_secs_f64()).max(0.0));
    Left {
        amounts: budget::left(plan),
        seconds: seconds.map(|seconds| (seconds * 1000.0).round() / 1000.0),
        steps: plan.has_planner().then(|| plan.steps().saturating_sub(plan.turns)),
        capabilities: budget.map(|budget| of_capabilities(plan, budget)).unwrap_or_default(),
    }
}

fn of_capabilities(plan: &Plan, budget: &Budget) -> BTreeMap<Capability, Amounts> {
    let left = budget.capabilities.iter().map(|(name, limits)| {
        let used = plan.spend.by_capability.get(name).copied().unwrap_or_default();
        let mut left = Amounts::default();
        for (dimension, limit) in limits.iter() {
            left.set(dimension, Some(limit.saturating_sub(dimension.of(&used))));
        }
        (name.clone(), left)
    });
    left.collect()
}
