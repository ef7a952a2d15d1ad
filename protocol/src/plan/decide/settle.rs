//! The next turn of the planner, reservations, and the end of the run. Called again until it returns no events; each call
//! returns the events of the first step that applies.

use jiff::Timestamp;

use super::super::spec::{OnFailedDependency, PlanningMode};
use super::super::state::{DeliverableRule, EndReason, MAX_BLOCKED, Plan, PlannerTrigger, Task, TaskState};
use super::super::{Event, PlanningEvent};
use super::run_end::{ask_about_plan, choose_deliverable, ended_event, mention_plain_plan};
use super::turn::can_call_planner;
use super::waits::end_waits_for_children;
use super::wave::append_consequences_of_task_ends;
use super::{budget, children, has_work_in_progress, waits, winding_down};

/// The detail of the end of a run whose deliverable does not answer its question.
const UNANSWERED: &str = "no passage of the documents answers the question";

pub(super) fn settle_plan(plan: &Plan, now: Timestamp) -> Vec<Event> {
    let some = |events: Vec<Event>| Some(events).filter(|events| !events.is_empty());
    if plan.is_held() {
        return some(settle_children(plan)).unwrap_or_else(|| end_run_if_idle(plan));
    }
    some(settle_children(plan))
        .or_else(|| some(waits::park_before_start(plan, now)))
        .or_else(|| some(settle_budget_of_open_run(plan)))
        .or_else(|| some(winding_down::warn_once_at_soft_limit(plan, now)))
        .or_else(|| some(winding_down::cancel_final_task_without_inputs(plan)))
        .or_else(|| some(request_planning_turn(plan)))
        .or_else(|| some(ask_about_plan(plan)))
        .or_else(|| some(end_run_if_idle(plan)))
        .or_else(|| plan.run.paused.is_none().then(|| budget::reserve_for_waiting_work(plan)))
        .unwrap_or_default()
}

fn settle_budget_of_open_run(plan: &Plan) -> Vec<Event> {
    if is_complete(plan) { Vec::new() } else { budget::wind_down_at_default_tokens(plan) }
}

/// `true` if the deliverable is there and no task is open.
fn is_complete(plan: &Plan) -> bool {
    let is_planned = plan.run.start.as_ref().is_some_and(|start| start.mode != PlanningMode::Fixed);
    plan.open_task_count() == 0
        && match plan.final_task() {
            Some(task) => task.state() == TaskState::Completed,
            None => {
                let completed = plan.planned_task_count_in_state(TaskState::Completed);
                !is_planned && completed == plan.planned_task_count()
            }
        }
}

fn request_planning_turn(plan: &Plan) -> Vec<Event> {
    if plan.planning.turn.is_some() || plan.run.paused.is_some() || plan.planning.triggers.is_empty() {
        return Vec::new();
    }
    // A complete run needs no planner, unless one of the triggers is a message from a user.
    let is_message = |trigger: &PlannerTrigger| matches!(trigger, PlannerTrigger::Message { .. });
    if !can_call_planner(plan) || (is_complete(plan) && !plan.planning.triggers.iter().any(is_message)) {
        return Vec::new();
    }
    let triggers = plan.planning.triggers.clone();
    vec![Event::Planning(PlanningEvent::Requested {
        turn: plan.planning.turns + 1,
        attempt: 1,
        feedback: None,
        triggers,
    })]
}

fn end_run_if_idle(plan: &Plan) -> Vec<Event> {
    if plan.planning.turn.is_some() || has_work_in_progress(plan) {
        return Vec::new();
    }
    let deliverable = choose_deliverable(plan);
    let ended = |reason, detail| vec![ended_event(plan, reason, detail, deliverable.clone())];
    let (open, lost) = (plan.open_task_count(), lost_task_count(plan));
    if let Some((reason, detail)) = plan.run.winding_down.as_ref().filter(|_| lost > 0 || !is_complete(plan))
    {
        return ended(*reason, detail.clone());
    }
    // A planner that is lost counts as one: the run must end for that reason.
    let has_planner = plan.has_planner() || plan.planning.lost.is_some();
    if is_complete(plan) || (open == 0 && (!has_planner || plan.has_failed_fast())) {
        let (reason, detail) =
            end_reason_of_finished_tasks(plan, deliverable.as_ref().map(|(_, rung)| *rung));
        if reason == EndReason::Completed
            && deliverable.as_ref().and_then(|(id, _)| plan.task(id)).is_some_and(|task| !task.is_answered())
        {
            let detail = mention_plain_plan(plan, UNANSWERED.into());
            return ended(EndReason::CompletedPartial, detail);
        }
        return ended(reason, mention_plain_plan(plan, detail));
    }
    if !has_planner {
        return ended(EndReason::NoProgress, describe_open_tasks(plan));
    }
    if can_call_planner(plan) {
        // A run that is paused or held waits as long as the planner is available.
        let trigger = PlannerTrigger::Standstill { report: describe_standstill(plan) };
        return if plan.run.paused.is_some() || plan.is_held() {
            Vec::new()
        } else {
            vec![Event::Planning(PlanningEvent::TriggerRaised { trigger })]
        };
    }
    let (reason, detail) = end_reason_without_planner(plan);
    if open > 0 {
        return winding_down::wind_down_run(plan, reason, &detail);
    }
    ended(reason, detail)
}

/// The reason for the end of a run whose planner is not available any more.
fn end_reason_without_planner(plan: &Plan) -> (EndReason, String) {
    if let Some(error) = plan.planning.lost.as_ref().filter(|_| budget::is_planner_budget_exhausted(plan)) {
        return (EndReason::BudgetExhausted, error.clone());
    }
    if let Some(error) = &plan.planning.lost {
        let detail = format!("no more could be had from the planner; the last: {error}");
        return (EndReason::PlannerUnavailable, detail);
    }
    if plan.planning.idle_turns >= super::MAX_IDLE_TURNS {
        let detail = format!(
            "{} turns of the planner in a row brought the run nowhere. {}",
            plan.planning.idle_turns,
            describe_standstill(plan)
        );
        return (EndReason::NoProgress, detail);
    }
    if plan.planning.repeated_turns >= super::MAX_IDLE_TURNS {
        let detail = format!(
            "{} turns of the planner in a row only repeated what had failed. {}",
            plan.planning.repeated_turns,
            describe_standstill(plan)
        );
        return (EndReason::NoProgress, detail);
    }
    let detail =
        format!("the planner was asked {} times, which is all that this run allows", plan.planning.turns);
    (EndReason::MaxSteps, detail)
}

/// The report to the planner on a plan that makes no progress.
fn describe_standstill(plan: &Plan) -> String {
    if plan.open_task_count() > 0 {
        return describe_open_tasks(plan);
    }
    let what = match plan.final_task() {
        None => {
            "no task of the plan is final: mark the one whose result is the deliverable, or add it".into()
        }
        Some(task) => format!("the final task {} is {}", task.spec.id, task.state()),
    };
    format!("nothing is left to do, but {what}")
}

/// The number of lost tasks. The loss of a child is the affair of its parent.
fn lost_task_count(plan: &Plan) -> u32 {
    [TaskState::Failed, TaskState::Cancelled]
        .map(|state| plan.planned_task_count_in_state(state))
        .iter()
        .sum()
}

/// The end reason of a run in which every task has ended.
fn end_reason_of_finished_tasks(plan: &Plan, rung: Option<DeliverableRule>) -> (EndReason, String) {
    let lost = lost_task_count(plan);
    let has_final = plan.final_task().is_some();
    let first = plan.tasks.iter().find(|task| task.state() == TaskState::Failed && !task.spec.is_child());
    let detail = match first.and_then(|task| task.end_reason().map(|reason| (&task.spec.id, reason))) {
        Some((id, reason)) => format!("task {id} failed: {reason}"),
        None if lost > 0 => format!("{} cancelled", count_tasks_in_words(lost)),
        None => String::new(),
    };
    match rung {
        None => (EndReason::Failed, detail),
        Some(DeliverableRule::Final) if lost == 0 => (EndReason::Completed, detail),
        Some(DeliverableRule::Detailed | DeliverableRule::Producer | DeliverableRule::Any)
            if lost == 0 && !has_final =>
        {
            (EndReason::Completed, detail)
        }
        Some(
            DeliverableRule::Final
            | DeliverableRule::Detailed
            | DeliverableRule::Producer
            | DeliverableRule::Any,
        ) => (EndReason::CompletedPartial, detail),
    }
}

/// Lists the open tasks, at most [`MAX_BLOCKED`], each with the dependency that it waits for.
pub(super) fn describe_open_tasks(plan: &Plan) -> String {
    let waiting = plan.tasks.iter().filter(|task| !task.state().is_terminal());
    let lines: Vec<String> = waiting
        .take(MAX_BLOCKED)
        .map(|task| {
            let skips = task.spec.on_failed_dependency == OnFailedDependency::Skip;
            let mut dependencies = task.spec.depends_on.iter().filter_map(|id| plan.task(id));
            let awaited = dependencies.find(|dependency| match dependency.state() {
                TaskState::Pending => true,
                TaskState::Failed | TaskState::Cancelled => !skips,
                TaskState::Ready
                | TaskState::Running
                | TaskState::NeedsReview
                | TaskState::Completed
                | TaskState::Rerun
                | TaskState::Errored
                | TaskState::Waiting => false,
            });
            match awaited {
                Some(awaited) => {
                    format!("{} waits for {}, which is {}", task.spec.id, awaited.spec.id, awaited.state())
                }
                None => format!("{} is {}", task.spec.id, task.state()),
            }
        })
        .collect();
    let tasks = match plan.open_task_count() {
        1 => "1 task".to_owned(),
        open => format!("{open} tasks"),
    };
    format!("{tasks} can never begin: {}", lines.join("; "))
}

fn count_tasks_in_words(count: u32) -> String {
    if count == 1 { "1 task was".into() } else { format!("{count} tasks were") }
}

/// Cancels the open children whose parent's attempt is over, and ends the waits for children that have ended.
fn settle_children(plan: &Plan) -> Vec<Event> {
    let orphans = plan.index.orphans.iter().map(|&position| &plan.tasks[position as usize]);
    let orphans: Vec<Event> =
        orphans.map(|child| children::cancel_child(plan, child, &why_orphaned(plan, child))).collect();
    if !orphans.is_empty() {
        return append_consequences_of_task_ends(plan, orphans);
    }
    let woken = plan.index.children_ended.iter().map(|&position| &plan.tasks[position as usize]);
    woken.flat_map(|task| end_waits_for_children(plan, task)).collect()
}

fn why_orphaned(plan: &Plan, child: &Task) -> String {
    match plan.parent(child) {
        Some(parent) if parent.state().is_terminal() => {
            format!("its parent {} is {}", parent.spec.id, parent.state())
        }
        Some(parent) => format!("the attempt of its parent {} is over", parent.spec.id),
        None => "its parent is not in the plan".into(),
    }
}
