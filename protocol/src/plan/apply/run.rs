//! The run as a whole: its pauses, its end, and its going on after that.

use jiff::Timestamp;

use crate::ids::TaskId;
use crate::plan::Budget;
use crate::plan::state::{End, EndReason, FinalRung, Plan, TaskState};

impl Plan {
    /// After a pause clocks begin anew for what waits for somebody; and a budget may have grown.
    pub(super) fn resume(&mut self, budget: &Budget, at: Timestamp) {
        if let Some(start) = self.start.as_mut().filter(|start| start.budget != *budget) {
            start.budget = budget.clone();
            self.budget_is_low = false;
        }
        self.waiting.clear();
        self.wait_for_all();
        let Some(since) = self.paused.take() else { return };
        self.paused_for = self.paused_for.saturating_add(at.duration_since(since));
        if let Some(planning) = self.planning.as_mut().filter(|planning| planning.worker.is_none()) {
            planning.since = at;
        }
        for task in &mut self.tasks {
            match task.state {
                TaskState::Ready | TaskState::Rerun | TaskState::NeedsReview | TaskState::Errored => {
                    task.since = at;
                }
                TaskState::Pending
                | TaskState::Running
                | TaskState::Completed
                | TaskState::Failed
                | TaskState::Cancelled => {}
            }
        }
    }

    /// A run that had ended goes on. The time in between is no working time; a pause counts it already.
    pub(super) fn go_on(&mut self, at: Timestamp) {
        if let Some(end) = self.end.take().filter(|_| self.paused.is_none()) {
            self.paused_for = self.paused_for.saturating_add(at.duration_since(end.at));
        }
        self.winding_down = None;
        self.planner_lost = None;
        self.idle_turns = 0;
    }

    pub(super) fn finish(
        &mut self,
        reason: EndReason,
        detail: &str,
        deliverable: Option<&(TaskId, FinalRung)>,
        at: Timestamp,
    ) {
        self.end_turn();
        self.end = Some(End {
            reason,
            detail: detail.to_owned(),
            deliverable: deliverable.cloned(),
            at,
            is_resumable: reason.is_resumable() && !self.has_failed_fast(),
        });
    }
}
