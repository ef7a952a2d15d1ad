//! Events, effects and plans in a few words, for golden texts.

use jiff::Timestamp;
use millrace_protocol::plan::{Effect, ErroredFor, Event, Mode, Plan, Task, TaskState, Work};

use crate::cast;

pub fn event(event: &Event) -> String {
    match event {
        Event::RunStarted { mode: Mode::Fixed, .. } => "RunStarted with a plan".into(),
        Event::RunStarted { mode: Mode::Llm, .. } => "RunStarted without a plan".into(),
        Event::PlanningAsked { turn, attempt, feedback } => {
            format!("PlanningAsked turn {turn} #{attempt}{}", quoted(feedback.as_deref()))
        }
        Event::PlanningClaimed { turn, attempt, worker } => {
            format!("PlanningClaimed turn {turn} #{attempt} by {worker}")
        }
        Event::ProposalAccepted { turn, attempt, .. } => format!("ProposalAccepted turn {turn} #{attempt}"),
        Event::PlanningErrored { turn, attempt, error, retry_at } => {
            format!("PlanningErrored turn {turn} #{attempt} {error:?}{}", again(*retry_at))
        }
        Event::TaskAdded { spec, ready } => {
            format!("TaskAdded {}{}", spec.id, if *ready { ", ready" } else { "" })
        }
        Event::TaskReady { task, attempt } => format!("TaskReady {task}#{attempt}"),
        Event::CapabilityMissing { task, capability } => {
            format!("CapabilityMissing {task}, {capability}")
        }
        Event::TaskPending { task } => format!("TaskPending {task}"),
        Event::AttemptClaimed { task, attempt, worker } => {
            format!("AttemptClaimed {task}#{attempt} by {worker}")
        }
        Event::AttemptFinished { task, attempt, worker, .. } => {
            format!("AttemptFinished {task}#{attempt} by {worker}")
        }
        Event::AttemptErrored { task, attempt, error, retry_at } => {
            format!("AttemptErrored {task}#{attempt} {:?}{}", error.message, again(*retry_at))
        }
        Event::AttemptTimedOut { task, attempt, clock, retry_at } => {
            format!("AttemptTimedOut {task}#{attempt} {clock:?}{}", again(*retry_at))
        }
        Event::ReviewErrored { task, attempt, review, error, again } => {
            let again = if *again { ", again" } else { "" };
            format!("ReviewErrored {task}#{attempt} try {review} {error:?}{again}")
        }
        Event::VerdictGiven { task, attempt, critic, verdict } => {
            let verdict = if verdict.passed { "passed" } else { "rejected" };
            format!("VerdictGiven {task}#{attempt} {verdict} by {critic}")
        }
        Event::TaskAccepted { task, attempt } => format!("TaskAccepted {task}#{attempt}"),
        Event::TaskRerun { task, attempt } => format!("TaskRerun {task}#{attempt}"),
        Event::TaskFailed { task, reason } => format!("TaskFailed {task} {reason:?}"),
        Event::TaskCancelled { task, reason } => format!("TaskCancelled {task} {reason:?}"),
        Event::RunEnded { reason, detail, deliverable } => {
            let detail = if detail.is_empty() { String::new() } else { format!(" {detail:?}") };
            let deliverable = deliverable
                .as_ref()
                .map(|(task, rung)| format!(", the deliverable is of {task} ({rung:?})"))
                .unwrap_or_default();
            format!("RunEnded {reason}{detail}{deliverable}")
        }
    }
}

fn quoted(text: Option<&str>) -> String {
    text.map(|text| format!(" {text:?}")).unwrap_or_default()
}

fn again(retry_at: Option<Timestamp>) -> String {
    retry_at.map(|at| format!(", again at {}", clock_time(at))).unwrap_or_default()
}

/// A time as seconds since the start.
fn clock_time(at: Timestamp) -> String {
    format!("{}s", at.duration_since(cast::start()).as_secs_f64())
}

pub fn work(work: &Work) -> String {
    match work {
        Work::Task { task, attempt } => format!("{task}#{attempt}"),
        Work::Review { task, attempt, review } => format!("review {review} of {task}#{attempt}"),
        Work::Planning { turn, attempt } => format!("planning turn {turn} #{attempt}"),
    }
}

pub fn effect(effect: &Effect) -> String {
    match effect {
        Effect::Offer(offered) => format!("offer {}", work(offered)),
        Effect::Withdraw(withdrawn) => format!("withdraw {}", work(withdrawn)),
        Effect::Close => "close".into(),
    }
}

fn task(task: &Task) -> String {
    let (id, attempt) = (&task.spec.id, task.attempt);
    match task.state {
        TaskState::Ready | TaskState::Rerun | TaskState::Running | TaskState::NeedsReview => {
            format!("{id}#{attempt} {}", task.state)
        }
        TaskState::Errored => match task.errored {
            Some(ErroredFor::Retry(at)) => format!("{id}#{attempt} errored until {}", clock_time(at)),
            Some(ErroredFor::Capability) => format!("{id} errored, waits for {}", task.spec.capability),
            None => format!("{id} errored"),
        },
        TaskState::Pending | TaskState::Completed | TaskState::Failed | TaskState::Cancelled => {
            format!("{id} {}", task.state)
        }
    }
}

pub fn plan(plan: &Plan) -> String {
    plan.tasks().iter().map(task).collect::<Vec<_>>().join(", ")
}
