//! The current turn of the planner, and whether there may be another one.
//!
//! Repetitions of lost tasks. A planner that does not learn from a failure plans the same task again, which fails again: the
//! second time it is refused, and a turn that only repeats counts as one without progress.
//!
//! # Invariants
//!
//! - I88: A planner that goes round in circles ends its run: the same lost task is refused, repetitions are no progress, and
//!   tokens are limited by default. (`protocol/tests/rules/repetition.rs::task_that_was_lost_twice_is_refused_with_what_failed`,
//!   `protocol/tests/rules/repetition.rs::turns_that_only_repeat_end_the_run`,
//!   `protocol/tests/rules/repetition.rs::run_without_a_budget_stops_at_the_default_tokens`)

use jiff::Timestamp;

use super::super::edit::Edit;
use super::super::spec::TaskSpec;
use super::super::state::{Plan, PlanningTurn, Task, TaskState};
use super::super::{Event, PlanningEvent, Refusal};
use super::{MAX_IDLE_TURNS, reserved_amounts_as_usage, truncate_for_plan};
use crate::result::{ErrorKind, ExceededLimit, TaskError, Usage};

pub(super) fn find_open_turn(plan: &Plan, turn: u32, attempt: u32) -> Result<&PlanningTurn, Refusal> {
    let current = plan.planning.turn.as_ref().filter(|planning| planning.retry_at.is_none());
    current
        .filter(|planning| (planning.turn, planning.attempt) == (turn, attempt))
        .ok_or(Refusal::NotCurrentTurn { turn, attempt })
}

/// `true` if the planner may be called again: turns are left, it has not failed for good, the run is not winding down, and
/// its last turns made progress.
pub(super) fn can_call_planner(plan: &Plan) -> bool {
    accepts_messages(plan) && plan.planning.idle_turns.max(plan.planning.repeated_turns) < MAX_IDLE_TURNS
}

/// `true` if the planner will read a message: a message resets the count of turns without progress.
pub(super) fn accepts_messages(plan: &Plan) -> bool {
    plan.has_planner()
        && plan.planning.lost.is_none()
        && plan.planning.turns < plan.max_planning_turns()
        && plan.run.winding_down.is_none()
        && !plan.has_failed_fast()
}

/// The usage to count for a turn that is given up: all that was reserved, if a worker has claimed it.
pub(super) fn usage_of_turn_in_flight(plan: &Plan, planning: &PlanningTurn) -> Usage {
    if planning.worker.is_some() {
        reserved_amounts_as_usage(plan, &planning.work())
    } else {
        Usage::default()
    }
}

/// Ends the attempt with an error.
pub(super) fn turn_errored_event(
    planning: &PlanningTurn,
    error: &TaskError,
    retry_at: Option<Timestamp>,
) -> Event {
    Event::Planning(PlanningEvent::Errored {
        turn: planning.turn,
        attempt: planning.attempt,
        error: truncate_for_plan(&error.message),
        retry_at,
        exceeded_reservation: error.limit == Some(ExceededLimit::Allowance),
        is_refused_by_provider: error.is_refused_by_provider,
        usage: error.usage,
        models: error.models.clone(),
    })
}

/// Gives up the planning turn, if one is open.
pub(super) fn give_up_turn(plan: &Plan, why: &str) -> Option<Event> {
    let planning = plan.planning.turn.as_ref()?;
    let error =
        TaskError { usage: usage_of_turn_in_flight(plan, planning), ..TaskError::new(ErrorKind::Other, why) };
    Some(turn_errored_event(planning, &error, None))
}

/// The number of times that the same task may be lost before another one like it is refused.
const MAX_LOST: usize = 2;

/// `true` if two tasks ask the same of the same capability; case and white space do not count.
fn is_same_task(a: &TaskSpec, b: &TaskSpec) -> bool {
    fn words(text: &str) -> impl Iterator<Item = String> + '_ {
        text.split_whitespace().map(str::to_lowercase)
    }
    a.capability == b.capability
        && a.parameters == b.parameters
        && words(&a.objective).eq(words(&b.objective))
}

/// Refuses a task of the planner that was lost twice already.
pub(super) fn refuse_lost_task(plan: &Plan, spec: &TaskSpec) -> Result<(), Refusal> {
    if plan.task_count_in_state(TaskState::Failed) < 2 {
        return Ok(());
    }
    let is_lost = |task: &&Task| task.state() == TaskState::Failed && is_same_task(&task.spec, spec);
    let lost: Vec<&Task> = plan.tasks.iter().filter(is_lost).collect();
    if lost.len() < MAX_LOST {
        return Ok(());
    }
    let ids: Vec<&str> = lost.iter().map(|task| task.spec.id.as_str()).collect();
    let reason = lost.last().and_then(|task| task.end_reason()).unwrap_or("no reason is known");
    Err(Refusal::Unusable(truncate_for_plan(&format!(
        "task {} asks the same as {}, which failed: {reason}; ask for something else, use another capability, or do \
         without it",
        spec.id,
        ids.join(" and ")
    ))))
}

/// `true` if an edit of the planner only repeats: it adds tasks like those that were lost or wait, or retries a task as it
/// was.
pub(super) fn is_repetition(plan: &Plan, edit: &Edit) -> bool {
    match edit {
        Edit::Add(specs) => {
            let is_open_or_lost = |task: &&Task| task.state() != TaskState::Completed;
            let repeats = |spec: &TaskSpec| {
                plan.tasks.iter().filter(is_open_or_lost).any(|task| is_same_task(&task.spec, spec))
            };
            plan.task_count_in_state(TaskState::Failed) > 0 && specs.iter().all(repeats)
        }
        Edit::MarkFinal { .. } => plan.task_count_in_state(TaskState::Failed) > 0,
        Edit::Retry { changes: Some(_), .. } => false,
        Edit::Retry { task, feedback, changes: None } => plan.task(task).is_some_and(|task| {
            let last = task.instructions.last().map(|(_, text)| text.trim());
            let wanted = feedback.as_deref().map(str::trim).filter(|text| !text.is_empty());
            task.state() == TaskState::Failed
                && task.attempt > task.spec.limits.max_attempts
                && wanted == last
        }),
        Edit::Patch(_) | Edit::Cancel { .. } | Edit::Finish { .. } | Edit::GiveUp { .. } => false,
    }
}
