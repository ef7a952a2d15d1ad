//! Holds of a run before its first task: its turn in its session, and a place among the running runs. The owner of the lane
//! finds out when they end; the rules carry it out once.
//!
//! # Invariants
//!
//! - I182: Runs of a session start in the order of their submissions, one after the other, also across crashes; while a run
//!   waits, nothing of it is dispatched, reserved or timed.
//!   (`protocol/tests/rules/holds.rs::held_run_dispatches_reserves_and_times_nothing`,
//!   `tests/tests/sessions.rs::runs_of_a_session_run_in_their_order_while_supervisors_are_killed`)

use super::super::hold::{HoldChange, SessionTurn};
use super::super::state::{EndReason, Plan};
use super::super::{Event, Refusal, RunEvent, RunHold};
use super::turn::give_up_turn;
use super::wave::TaskEndPropagation;

pub(super) fn change_hold(plan: &Plan, change: &HoldChange) -> Result<Vec<Event>, Refusal> {
    let has_begun = plan.run.holds.ended.is_some();
    match change {
        HoldChange::WaitForPlace(_) if plan.run.holds.has(RunHold::Place) || has_begun => {
            Err(refusal("the run waits for a place, or has one"))
        }
        HoldChange::WaitForPlace(submitted) => {
            Ok(vec![Event::Run(RunEvent::Held { hold: RunHold::Place, submitted: Some(*submitted) })])
        }
        HoldChange::SessionTurn(_) if !plan.run.holds.has(RunHold::Session) => {
            Err(refusal("the run does not wait for its session"))
        }
        HoldChange::SessionTurn(turn) => {
            let SessionTurn { position, earlier, documents } = turn.as_ref().clone();
            let documents = documents.map(Box::new);
            Ok(vec![Event::Run(RunEvent::SessionTurnCame { position, earlier, documents })])
        }
        HoldChange::PlaceGranted | HoldChange::PlaceRefused { .. } if !plan.run.holds.has(RunHold::Place) => {
            Err(refusal("the run does not wait for a place"))
        }
        // Its place is free again: a run that is paused before it begins does not block others.
        HoldChange::PlaceGranted if plan.run.paused.is_some() => Err(refusal("the run is paused")),
        HoldChange::PlaceGranted => Ok(vec![Event::Run(RunEvent::PlaceGranted)]),
        HoldChange::PlaceRefused { waiting } => Ok(refuse_place(plan, *waiting)),
    }
}

/// Ends a run that can't wait for a place.
fn refuse_place(plan: &Plan, waiting: u32) -> Vec<Event> {
    let why = format!(
        "the run was refused: {waiting} runs wait for a place, as many as allowed; submit it again later, or raise the limit"
    );
    let mut wave = TaskEndPropagation::default();
    wave.events.push(Event::Run(RunEvent::PlaceRefused { waiting }));
    wave.cancel_all_open_tasks(plan, None, &why);
    wave.events.extend(give_up_turn(plan, "the run was refused"));
    wave.events.push(Event::Run(RunEvent::Ended {
        reason: EndReason::Failed,
        detail: why,
        deliverable: None,
        is_resumable: false,
    }));
    wave.events
}

fn refusal(why: &str) -> Refusal {
    Refusal::WrongMoment(why.into())
}
