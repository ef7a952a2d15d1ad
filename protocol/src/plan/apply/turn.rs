//! The planner's turn, from the question to its end, and what it is told.

use jiff::Timestamp;

use crate::ids::WorkerId;
use crate::plan::state::{MAX_NOTES, Occasion, Plan, Planning};

impl Plan {
    /// Something that the planner should know at its next turn.
    pub(super) fn note(&mut self, text: impl FnOnce() -> String) {
        if !self.has_planner() {
            return;
        }
        if self.notes.len() >= MAX_NOTES {
            self.notes.remove(0);
        }
        self.notes.push(text());
    }

    pub(super) fn raise(&mut self, occasion: &Occasion) {
        if self.raised.insert(occasion.clone()) {
            self.occasions.push(occasion.clone());
        }
    }

    pub(super) fn forget_occasions(&mut self) {
        self.occasions.clear();
        self.raised.clear();
    }

    pub(super) fn end_turn(&mut self) -> Option<Planning> {
        let planning = self.planning.take()?;
        self.reserved.release(&planning.work());
        Some(planning)
    }

    /// The planner is asked: for the first time at a turn, or once more.
    pub(super) fn ask(
        &mut self,
        turn: u32,
        attempt: u32,
        feedback: Option<&String>,
        occasions: &[Occasion],
        at: Timestamp,
    ) {
        let (notes, outgrew) = match self.planning.take() {
            Some(before) => (before.notes, before.outgrew),
            None => (std::mem::take(&mut self.notes), false),
        };
        self.planning_superseded = None;
        if attempt == 1 {
            self.forget_occasions();
        }
        self.turns = self.turns.max(turn);
        self.planning = Some(Planning {
            turn,
            attempt,
            worker: None,
            since: at,
            feedback: feedback.cloned(),
            retry_at: None,
            outgrew,
            occasions: occasions.to_vec(),
            notes,
        });
    }

    /// A planner takes the turn: its first claim begins the clock, and those that take it over do not.
    pub(super) fn claim_turn(&mut self, worker: &WorkerId, at: Timestamp) {
        if let Some(planning) = &mut self.planning
            && planning.worker.replace(worker.clone()).is_none()
        {
            planning.since = at;
        }
    }

    /// An attempt at the turn came to nothing: another follows it, or the planner is asked no more.
    pub(super) fn fail_turn(&mut self, error: &str, retry_at: Option<Timestamp>, outgrew: bool) {
        match (self.end_turn(), retry_at) {
            (Some(planning), Some(retry_at)) => {
                self.planning = Some(Planning {
                    outgrew,
                    retry_at: Some(retry_at),
                    feedback: Some(error.to_owned()),
                    ..planning
                });
            }
            (given_up, _) => {
                self.planning_superseded = given_up.map(|planning| planning.work());
                self.planner_lost = Some(error.to_owned());
            }
        }
    }
}
