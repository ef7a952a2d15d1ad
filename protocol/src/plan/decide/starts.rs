//! The start of tasks that wait for a time or an event. Each attempt at such a task is parked once, before its first dispatch:
//! the conditions that are met end at once, and the attempt starts when all have ended. The next step of
//! settling finds every task that became ready, so that no attempt is dispatched too early.
//!
//! # Invariants
//!
//! - I130: No attempt at a task with start conditions is dispatched before its time and without its event, by any path that makes
//!   the task ready; until then it holds no worker, no place in a queue and no reservation.
//!   (`protocol/tests/rules/properties.rs::every_run_of_a_fair_world_ends_for_a_true_reason`,
//!   `protocol/tests/rules/table.rs::table_of_states_and_inputs_is_unchanged`,
//!   `tests/tests/waiting.rs::tasks_start_at_their_time_and_after_their_event`)

use jiff::Timestamp;

use super::super::state::{Plan, Task};
use super::super::{AttemptEvent, Event};
use super::waits::{cancel_at_end_of_run, end_waits, ends_by_events};
use crate::wait::{EndedWait, Wait, WaitCondition, WaitEnd};

/// Parks the attempts that would be dispatched without a check of their start.
pub(super) fn park_before_start(plan: &Plan, now: Timestamp) -> Vec<Event> {
    let mut events = Vec::new();
    for &position in &plan.index.unchecked_starts {
        let task = &plan.tasks[position as usize];
        let (waits, ended) = start_waits_of_task(plan, task, now);
        if plan.run.winding_down.is_some() && ended.len() < waits.len() {
            // It may end other tasks of the list as well.
            return if events.is_empty() { cancel_at_end_of_run(plan, task) } else { events };
        }
        events.extend(park_task(task, waits, ended));
    }
    events
}

fn park_task(task: &Task, waits: Vec<Wait>, ended: Vec<EndedWait>) -> Vec<Event> {
    let parked =
        AttemptEvent::Parked { task: task.spec.id.clone(), attempt: task.attempt, waits: waits.clone() };
    end_waits(task, vec![Event::Attempt(parked)], waits.iter(), ended)
}

/// The waits of a task for its start, and the ends of those whose conditions are met. A wait for an event that has expired is
/// left to the clock.
fn start_waits_of_task(plan: &Plan, task: &Task, now: Timestamp) -> (Vec<Wait>, Vec<EndedWait>) {
    let began = plan.began_at().unwrap_or(now);
    let waits = task.spec.start_waits(began);
    let is_over = |wait: &&Wait| matches!(wait.condition, WaitCondition::Until(at) if at <= now);
    let reached = |wait: &Wait| EndedWait { key: wait.key.clone(), end: WaitEnd::TimeReached };
    let mut ended: Vec<EndedWait> = waits.iter().filter(is_over).map(reached).collect();
    ended.extend(ends_by_events(&waits, plan.run.signals.iter(), Vec::new()));
    (waits, ended)
}
