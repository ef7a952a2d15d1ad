//! Ends of a run that its planner or a user decides, and the deliverable at the end.

use super::super::state::{AttemptEnd, DeliverableRule, EndReason, Plan, Task, TaskState};
use super::super::{Event, RunEvent};
use super::turn::give_up_turn;
use super::wave::TaskEndPropagation;
use super::{budget, truncate_for_plan};
use crate::ids::TaskId;

/// Ends a run that its planner has finished: open tasks are not needed.
pub(super) fn finish_run(plan: &Plan, reason: &str) -> Vec<Event> {
    let mut wave = TaskEndPropagation::default();
    wave.cancel_all_open_tasks(plan, None, "the planner finished the run without it");
    let mut events = wave.events;
    let deliverable = plan
        .final_task()
        .filter(|task| task.state() == TaskState::Completed)
        .map(|task| (task.spec.id.clone(), DeliverableRule::Final));
    let detail = mention_plain_plan(plan, truncate_for_plan(reason));
    events.push(Event::Run(RunEvent::ended(EndReason::Completed, detail, deliverable)));
    events
}

/// Ends a run that its planner has given up: it ends with the results that it has.
pub(super) fn give_up_run(plan: &Plan, reason: &str) -> Vec<Event> {
    let mut wave = TaskEndPropagation::default();
    wave.cancel_all_open_tasks(plan, None, "the planner gave up the run");
    let mut events = wave.events;
    let deliverable = choose_deliverable(plan);
    let reached = deliverable.as_ref().map_or(EndReason::Failed, |_| EndReason::CompletedPartial);
    let detail = mention_plain_plan(plan, truncate_for_plan(reason));
    events.push(ended_event(plan, reached, detail, deliverable));
    events
}

pub(super) fn cancel_run(plan: &Plan, reason: &str) -> Vec<Event> {
    let mut wave = TaskEndPropagation::default();
    wave.cancel_all_open_tasks(plan, None, &truncate_for_plan(reason));
    wave.events.extend(give_up_turn(plan, "the run was cancelled"));
    let detail = truncate_for_plan(reason);
    wave.events.push(Event::Run(RunEvent::ended(EndReason::Cancelled, detail, choose_deliverable(plan))));
    wave.events
}

/// Adds to the detail of an end that the planner gave no valid plan.
pub(super) fn mention_plain_plan(plan: &Plan, detail: String) -> String {
    let Some(why) = &plan.planning.fallback else { return detail };
    let plain =
        truncate_for_plan(&format!("the planner gave no valid plan, so a plain one was carried out: {why}"));
    if detail.is_empty() { plain } else { format!("{detail}; {plain}") }
}

/// A rule that chooses the deliverable, and its predicate.
type DeliverablePredicate<'a> = (DeliverableRule, &'a dyn Fn(&&Task) -> bool);

/// The completed task whose result is the deliverable: the final one, else the newest with text beyond its summary, else
/// the newest of a producer, else the newest.
pub(super) fn choose_deliverable(plan: &Plan) -> Option<(TaskId, DeliverableRule)> {
    let is_completed = |task: &&Task| task.state() == TaskState::Completed && !task.spec.is_child();
    let completed = || plan.tasks.iter().rev().filter(is_completed);
    let is_detailed = |task: &&Task| {
        let end = task.current_attempt().and_then(|attempt| attempt.end.as_ref());
        matches!(end, Some(AttemptEnd::Finished { is_detailed: true, .. }))
    };
    let named = |rung| move |task: &Task| (task.spec.id.clone(), rung);
    let rungs: [DeliverablePredicate<'_>; 4] = [
        (DeliverableRule::Final, &|task| task.spec.is_final),
        (DeliverableRule::Detailed, &is_detailed),
        (DeliverableRule::Producer, &|task| task.spec.capability.as_str() == "producer"),
        (DeliverableRule::Any, &|_| true),
    ];
    rungs.iter().find_map(|(rung, is_it)| completed().find(|task| is_it(task)).map(named(*rung)))
}

/// Returns the end of a run by itself. One with results can be resumed if larger limits make its failed tasks run again.
pub(super) fn ended_event(
    plan: &Plan,
    reason: EndReason,
    detail: String,
    deliverable: Option<(TaskId, DeliverableRule)>,
) -> Event {
    let is_limited = reason == EndReason::CompletedPartial && budget::has_task_stopped_by_limits(plan);
    let is_resumable = reason.can_be_retried() || is_limited;
    Event::Run(RunEvent::Ended { reason, detail, deliverable, is_resumable })
}
