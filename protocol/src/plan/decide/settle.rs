//! Whom to ask next, what may be given out, and the end. Asked again and again until it says nothing more: each answer
//! is the first of these that applies.

use jiff::Timestamp;

use super::super::spec::{Mode, OnFailedDependency};
use super::super::state::{EndReason, FinalRung, MAX_BLOCKED, Occasion, Plan, Task, TaskState};
use super::super::{AttemptEnd, Event};
use super::{budget, is_in_motion, planning};
use crate::ids::TaskId;

pub(super) fn settle(plan: &Plan, now: Timestamp) -> Vec<Event> {
    let steps: [&dyn Fn() -> Vec<Event>; 5] =
        [&|| budget::warn(plan, now), &|| budget::abandon_final(plan), &|| ask(plan), &|| end(plan), &|| {
            if plan.paused.is_none() { budget::reserve(plan) } else { Vec::new() }
        }];
    steps.iter().map(|step| step()).find(|events| !events.is_empty()).unwrap_or_default()
}

/// Whether what was asked for is there, and nothing is left to do.
fn is_complete(plan: &Plan) -> bool {
    let is_planned = plan.start.as_ref().is_some_and(|start| start.mode != Mode::Fixed);
    plan.open() == 0
        && match plan.final_task() {
            Some(task) => task.state == TaskState::Completed,
            None => !is_planned && plan.count(TaskState::Completed) == tasks(plan),
        }
}

fn tasks(plan: &Plan) -> u32 {
    u32::try_from(plan.tasks.len()).unwrap_or(u32::MAX)
}

fn ask(plan: &Plan) -> Vec<Event> {
    if plan.planning.is_some() || plan.paused.is_some() || plan.occasions.is_empty() {
        return Vec::new();
    }
    // What the planner would be asked about does no harm to a run that has what it is for; a user's word is heard.
    let is_message = |occasion: &Occasion| matches!(occasion, Occasion::Message { .. });
    if !planning::is_available(plan) || (is_complete(plan) && !plan.occasions.iter().any(is_message)) {
        return Vec::new();
    }
    let occasions = plan.occasions.clone();
    vec![Event::PlanningAsked { turn: plan.turns + 1, attempt: 1, feedback: None, occasions }]
}

fn end(plan: &Plan) -> Vec<Event> {
    if plan.planning.is_some() || is_in_motion(plan) {
        return Vec::new();
    }
    let deliverable = deliverable(plan);
    let ended = |reason, detail| vec![Event::RunEnded { reason, detail, deliverable: deliverable.clone() }];
    let (open, lost) = (plan.open(), plan.count(TaskState::Failed) + plan.count(TaskState::Cancelled));
    if let Some((reason, detail)) = plan.winding_down.as_ref().filter(|_| lost > 0 || !is_complete(plan)) {
        return ended(*reason, detail.clone());
    }
    // Whoever is lost for good can't be asked, whether or not the run would ask any more.
    let has_planner = plan.has_planner() || plan.planner_lost.is_some();
    if is_complete(plan) || (open == 0 && (!has_planner || plan.has_failed_fast())) {
        let (reason, detail) = outcome(plan, deliverable.as_ref().map(|(_, rung)| *rung));
        return ended(reason, detail);
    }
    if !has_planner {
        return ended(EndReason::NoProgress, blocked(plan));
    }
    if planning::is_available(plan) {
        // A run that is paused ends when nothing is left to ask; else it waits to be resumed.
        let occasion = Occasion::Standstill { report: report(plan) };
        return if plan.paused.is_some() { Vec::new() } else { vec![Event::OccasionRaised { occasion }] };
    }
    let (reason, detail) = given_up(plan);
    if open > 0 {
        return budget::wind_down(plan, reason, &detail);
    }
    ended(reason, detail)
}

/// Why a run ends whose planner can't help it any more.
fn given_up(plan: &Plan) -> (EndReason, String) {
    if let Some(error) = plan.planner_lost.as_ref().filter(|_| budget::is_planner_spent(plan)) {
        return (EndReason::BudgetExhausted, error.clone());
    }
    if let Some(error) = &plan.planner_lost {
        let detail = format!("no more could be had from the planner; the last: {error}");
        return (EndReason::PlannerUnavailable, detail);
    }
    if plan.idle_turns >= super::MAX_IDLE_TURNS {
        let detail = format!(
            "{} turns of the planner in a row brought the run nowhere. {}",
            plan.idle_turns,
            report(plan)
        );
        return (EndReason::NoProgress, detail);
    }
    let detail = format!("the planner was asked {} times, which is all that this run allows", plan.turns);
    (EndReason::MaxSteps, detail)
}

/// What a planner should know of a plan that stands still.
fn report(plan: &Plan) -> String {
    if plan.open() > 0 {
        return blocked(plan);
    }
    let what = match plan.final_task() {
        None => {
            "no task of the plan is final: mark the one whose result is the deliverable, or add it".into()
        }
        Some(task) => format!("the final task {} is {}", task.spec.id, task.state),
    };
    format!("nothing is left to do, but {what}")
}

/// How a run ends in which every task has ended.
fn outcome(plan: &Plan, rung: Option<FinalRung>) -> (EndReason, String) {
    let lost = plan.count(TaskState::Failed) + plan.count(TaskState::Cancelled);
    let has_final = plan.final_task().is_some();
    let first = plan.tasks.iter().find(|task| task.state == TaskState::Failed);
    let detail = match first.and_then(|task| task.reason.as_ref().map(|reason| (&task.spec.id, reason))) {
        Some((id, reason)) => format!("task {id} failed: {reason}"),
        None if lost > 0 => format!("{} cancelled", tasks_were(lost)),
        None => String::new(),
    };
    match rung {
        None => (EndReason::Failed, detail),
        Some(FinalRung::Final) if lost == 0 => (EndReason::Completed, detail),
        Some(FinalRung::Detailed | FinalRung::Producer | FinalRung::Any) if lost == 0 && !has_final => {
            (EndReason::Completed, detail)
        }
        Some(FinalRung::Final | FinalRung::Detailed | FinalRung::Producer | FinalRung::Any) => {
            (EndReason::CompletedPartial, detail)
        }
    }
}

/// A rule by which the deliverable is chosen, and whether it finds a task.
type Rung<'a> = (FinalRung, &'a dyn Fn(&&Task) -> bool);

/// The completed task whose result is the deliverable: the final one, else the newest with text beyond its summary, else
/// the newest of a producer, else the newest.
pub(super) fn deliverable(plan: &Plan) -> Option<(TaskId, FinalRung)> {
    let completed = || plan.tasks.iter().rev().filter(|task| task.state == TaskState::Completed);
    let is_detailed = |task: &&Task| {
        let end = task.current().and_then(|attempt| attempt.end.as_ref());
        matches!(end, Some(AttemptEnd::Finished { is_detailed: true, .. }))
    };
    let named = |rung| move |task: &Task| (task.spec.id.clone(), rung);
    let rungs: [Rung<'_>; 4] = [
        (FinalRung::Final, &|task| task.spec.is_final),
        (FinalRung::Detailed, &is_detailed),
        (FinalRung::Producer, &|task| task.spec.capability.as_str() == "producer"),
        (FinalRung::Any, &|_| true),
    ];
    rungs.iter().find_map(|(rung, is_it)| completed().find(|task| is_it(task)).map(named(*rung)))
}

/// Which tasks are open and what each waits for; at most [`MAX_BLOCKED`] of them are named.
pub(super) fn blocked(plan: &Plan) -> String {
    let waiting = plan.tasks.iter().filter(|task| !task.state.is_terminal());
    let lines: Vec<String> = waiting
        .take(MAX_BLOCKED)
        .map(|task| {
            let skips = task.spec.on_failed_dependency == OnFailedDependency::Skip;
            let mut dependencies = task.spec.depends_on.iter().filter_map(|id| plan.task(id));
            let awaited = dependencies.find(|dependency| match dependency.state {
                TaskState::Pending => true,
                TaskState::Failed | TaskState::Cancelled => !skips,
                TaskState::Ready
                | TaskState::Running
                | TaskState::NeedsReview
                | TaskState::Completed
                | TaskState::Rerun
                | TaskState::Errored => false,
            });
            match awaited {
                Some(awaited) => {
                    format!("{} waits for {}, which is {}", task.spec.id, awaited.spec.id, awaited.state)
                }
                None => format!("{} is {}", task.spec.id, task.state),
            }
        })
        .collect();
    let tasks = match plan.open() {
        1 => "1 task".to_owned(),
        open => format!("{open} tasks"),
    };
    format!("{tasks} can never begin: {}", lines.join("; "))
}

fn tasks_were(count: u32) -> String {
    if count == 1 { "1 task was".into() } else { format!("{count} tasks were") }
}
