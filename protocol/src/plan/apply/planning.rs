//! The planner's turn, from its request to its end, and the triggers and notes that the planner receives.

use jiff::{SignedDuration, Timestamp};

use crate::ids::WorkerId;
use crate::plan::PlanningEvent;
use crate::plan::attendance::UncountedTime;
use crate::plan::state::{MAX_NOTES, Plan, PlannerTrigger, PlanningTurn};
use crate::subject::PLANNER;

impl Plan {
    pub(super) fn apply_planning(&mut self, event: &PlanningEvent, at: Timestamp) {
        match event {
            PlanningEvent::TriggerRaised { trigger } => self.add_trigger(trigger),
            PlanningEvent::Requested { turn, attempt, feedback, triggers } => {
                self.request_turn(*turn, *attempt, feedback.as_ref(), triggers, at);
            }
            PlanningEvent::Claimed { worker, .. } => self.claim_turn(worker, at),
            PlanningEvent::ProposalAccepted {
                reasoning,
                fallback,
                is_idle,
                is_repetition,
                usage,
                models,
                ..
            } => {
                self.end_turn();
                self.planning.fallback = self.planning.fallback.take().or_else(|| fallback.clone());
                self.planning.reasoning.push(reasoning.clone());
                self.planning.idle_turns =
                    if *is_idle { self.planning.idle_turns.saturating_add(1) } else { 0 };
                self.planning.repeated_turns =
                    if *is_repetition { self.planning.repeated_turns.saturating_add(1) } else { 0 };
                self.spend_on(PLANNER, *usage, models);
            }
            PlanningEvent::Errored {
                error,
                retry_at,
                exceeded_reservation,
                is_refused_by_provider,
                usage,
                models,
                ..
            } => {
                self.planning.is_refused_by_provider = *is_refused_by_provider;
                self.spend_on(PLANNER, *usage, models);
                self.fail_turn(error, *retry_at, *exceeded_reservation);
            }
        }
    }

    /// Adds a note for the planner's next turn.
    pub(super) fn add_note_for_planner(&mut self, text: impl FnOnce() -> String) {
        if !self.has_planner() {
            return;
        }
        if self.planning.notes.len() >= MAX_NOTES {
            self.planning.notes.remove(0);
        }
        self.planning.notes.push(text());
    }

    fn add_trigger(&mut self, trigger: &PlannerTrigger) {
        if self.index.raised.insert(trigger.clone()) {
            self.planning.triggers.push(trigger.clone());
        }
    }

    pub(super) fn clear_triggers(&mut self) {
        self.planning.triggers.clear();
        self.index.raised.clear();
    }

    pub(super) fn end_turn(&mut self) -> Option<PlanningTurn> {
        let planning = self.planning.turn.take()?;
        self.budget.reserved.release(&planning.work());
        Some(planning)
    }

    /// Requests an attempt at a turn: the first one, or another.
    fn request_turn(
        &mut self,
        turn: u32,
        attempt: u32,
        feedback: Option<&String>,
        triggers: &[PlannerTrigger],
        at: Timestamp,
    ) {
        let (notes, exceeded_reservation) = match self.planning.turn.take() {
            Some(before) => (before.notes, before.exceeded_reservation),
            None => (std::mem::take(&mut self.planning.notes), false),
        };
        self.planning.superseded = None;
        if attempt == 1 {
            self.clear_triggers();
        }
        self.planning.turns = self.planning.turns.max(turn);
        self.planning.turn = Some(PlanningTurn {
            turn,
            attempt,
            worker: None,
            since: at,
            feedback: feedback.cloned(),
            retry_at: None,
            exceeded_reservation,
            triggers: triggers.to_vec(),
            notes,
            uncounted: UncountedTime::default(),
            worked: SignedDuration::ZERO,
        });
    }

    /// Records the claimant of the turn. The first claim starts the clock; takeovers do not.
    fn claim_turn(&mut self, worker: &WorkerId, at: Timestamp) {
        if let Some(planning) = &mut self.planning.turn {
            planning.uncounted.end_wait(at);
            if planning.worker.replace(worker.clone()).is_none() {
                planning.since = at;
            }
        }
    }

    /// Ends a failed attempt at the turn: another follows, or the planner is not consulted any more.
    fn fail_turn(&mut self, error: &str, retry_at: Option<Timestamp>, exceeded_reservation: bool) {
        match (self.end_turn(), retry_at) {
            (Some(planning), Some(retry_at)) => {
                self.planning.turn = Some(PlanningTurn {
                    exceeded_reservation,
                    retry_at: Some(retry_at),
                    feedback: Some(error.to_owned()),
                    uncounted: UncountedTime::default(),
                    ..planning
                });
            }
            (given_up, _) => {
                self.planning.superseded = given_up.map(|planning| planning.work());
                self.planning.lost = Some(error.to_owned());
            }
        }
    }
}
