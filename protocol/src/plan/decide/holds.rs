//! The hold of a run before its first task: its turn in its session. The owner of the lane finds out when it ends; the rules carry
//! it out once.

use super::super::hold::{HoldChange, SessionTurn};
use super::super::state::Plan;
use super::super::{Event, Refusal, RunEvent, RunHold};

pub(super) fn change_hold(plan: &Plan, change: &HoldChange) -> Result<Vec<Event>, Refusal> {
    match change {
        HoldChange::SessionTurn(_) if !plan.run.holds.has(RunHold::Session) => {
            Err(Refusal::WrongMoment("the run does not wait for its session".into()))
        }
        HoldChange::SessionTurn(turn) => {
            let SessionTurn { position, earlier, documents } = turn.as_ref().clone();
            Ok(vec![Event::Run(RunEvent::SessionTurnCame { position, earlier, documents })])
        }
    }
}
