//! The index of the plan: data derived from the tasks, updated with them. [`super::super::recount`] computes the same from
//! scratch.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::ids::Capability;
use crate::plan::state::{ErroredTaskWait, Plan, PlanIndex, TaskPhase};

impl PlanIndex {
    pub(in crate::plan) fn insert_backoff(&mut self, position: u32, phase: &TaskPhase) {
        if let Some((backoffs, until)) = self.backoff_of_phase(phase) {
            backoffs.insert((until, position));
        }
    }

    pub(super) fn remove_backoff(&mut self, position: u32, phase: &TaskPhase) {
        if let Some((backoffs, until)) = self.backoff_of_phase(phase) {
            backoffs.remove(&(until, position));
        }
    }

    /// The backoff of a task in this phase, and the set it belongs to.
    fn backoff_of_phase(
        &mut self,
        phase: &TaskPhase,
    ) -> Option<(&mut BTreeSet<(Timestamp, u32)>, Timestamp)> {
        match phase {
            TaskPhase::Errored(Some(ErroredTaskWait::Retry(until))) => Some((&mut self.retries, *until)),
            TaskPhase::NeedsReview { retry_at: Some(until) } => Some((&mut self.reviews, *until)),
            TaskPhase::Waiting { until: Some(until) } => Some((&mut self.waits, *until)),
            TaskPhase::Pending
            | TaskPhase::Ready
            | TaskPhase::Running
            | TaskPhase::Waiting { until: None }
            | TaskPhase::NeedsReview { retry_at: None }
            | TaskPhase::Completed
            | TaskPhase::Rerun
            | TaskPhase::Errored(_)
            | TaskPhase::Failed { .. }
            | TaskPhase::Cancelled { .. } => None,
        }
    }
}

impl Plan {
    /// Counts an open task of a capability up or down.
    pub(super) fn count_open_task(&mut self, capability: &Capability, is_open: bool) {
        let open = match self.index.open_by_capability.get_mut(capability) {
            Some(open) => open,
            None => self.index.open_by_capability.entry(capability.clone()).or_default(),
        };
        *open = if is_open { *open + 1 } else { open.saturating_sub(1) };
        if *open == 0 {
            self.index.open_by_capability.remove(capability);
        }
    }

    /// Updates whether the start of a task is to be checked, after it changed.
    pub(in crate::plan) fn update_unchecked_start(&mut self, position: u32) {
        if self.tasks[position as usize].has_unchecked_start() {
            self.index.unchecked_starts.insert(position);
        } else {
            self.index.unchecked_starts.remove(&position);
        }
    }

    /// Adds a task to those whose work waits for a reservation, if it does.
    pub(super) fn add_if_waiting_for_reservation(&mut self, task_position: u32) {
        if !self.needs_any_reservation() {
            return;
        }
        let task = &self.tasks[task_position as usize];
        let work = match task.phase {
            TaskPhase::Ready | TaskPhase::Rerun | TaskPhase::NeedsReview { .. } => task.dispatched_work(),
            TaskPhase::Pending
            | TaskPhase::Running
            | TaskPhase::Waiting { .. }
            | TaskPhase::Completed
            | TaskPhase::Errored(_)
            | TaskPhase::Failed { .. }
            | TaskPhase::Cancelled { .. } => None,
        };
        if work.is_some_and(|work| {
            self.needs_reservation(&work) && self.budget.reserved.amounts_of_work(&work).is_none()
        }) {
            if self.tasks[task_position as usize].spec.is_child() {
                self.index.waiting_children.insert(task_position);
                return;
            }
            let group = self.reservation_queue_key(task_position);
            self.index.waiting.entry(group).or_default().insert(task_position);
        }
    }

    pub(in crate::plan) fn add_all_waiting_for_reservation(&mut self) {
        for position in (0_u32..).take(self.tasks.len()) {
            self.add_if_waiting_for_reservation(position);
        }
    }

    pub(super) fn remove_waiting_for_reservation(&mut self, task_position: u32) {
        if self.index.waiting_children.remove(&task_position) || self.index.waiting.is_empty() {
            return;
        }
        let group = self.reservation_queue_key(task_position);
        if let Some(waiting) = self.index.waiting.get_mut(&group) {
            waiting.remove(&task_position);
            if waiting.is_empty() {
                self.index.waiting.remove(&group);
            }
        }
    }

    /// The key under which the work of a task waits for a reservation.
    fn reservation_queue_key(&self, position: u32) -> Option<Capability> {
        let task = &self.tasks[position as usize];
        (!matches!(task.phase, TaskPhase::NeedsReview { .. })).then(|| task.spec.capability.clone())
    }
}
