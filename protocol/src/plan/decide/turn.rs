//! The current turn of the planner, and whether there may be another one.

use jiff::Timestamp;

use super::super::state::{Plan, PlanningTurn};
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
