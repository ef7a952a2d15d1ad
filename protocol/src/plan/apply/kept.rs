//! What is kept beside the tasks so that nobody has to count: it follows from them, and changes with them.
//! [`super::super::recount`] works the same out from scratch.

use crate::ids::Capability;
use crate::plan::state::{Plan, TaskState};

impl Plan {
    /// One more open task of a capability, or one fewer.
    pub(super) fn count_open(&mut self, capability: &Capability, is_open: bool) {
        let open = match self.open_by_capability.get_mut(capability) {
            Some(open) => open,
            None => self.open_by_capability.entry(capability.clone()).or_default(),
        };
        *open = if is_open { *open + 1 } else { open.saturating_sub(1) };
        if *open == 0 {
            self.open_by_capability.remove(capability);
        }
    }

    /// Notes that work of a task waits for a reservation, if it does.
    pub(super) fn wait(&mut self, position: u32) {
        if !self.is_counted() {
            return;
        }
        let task = &self.tasks[position as usize];
        let work = match task.state {
            TaskState::Ready | TaskState::Rerun | TaskState::NeedsReview => task.given_out(),
            TaskState::Pending
            | TaskState::Running
            | TaskState::Completed
            | TaskState::Errored
            | TaskState::Failed
            | TaskState::Cancelled => None,
        };
        if work.is_some_and(|work| self.needs_reservation(&work) && self.reserved.of(&work).is_none()) {
            let group = self.group(position);
            self.waiting.entry(group).or_default().insert(position);
        }
    }

    pub(in crate::plan) fn wait_for_all(&mut self) {
        for position in (0_u32..).take(self.tasks.len()) {
            self.wait(position);
        }
    }

    pub(super) fn wait_no_more(&mut self, position: u32) {
        if self.waiting.is_empty() {
            return;
        }
        let group = self.group(position);
        if let Some(waiting) = self.waiting.get_mut(&group) {
            waiting.remove(&position);
            if waiting.is_empty() {
                self.waiting.remove(&group);
            }
        }
    }

    /// Under what the work of a task waits.
    fn group(&self, position: u32) -> Option<Capability> {
        let task = &self.tasks[position as usize];
        (task.state != TaskState::NeedsReview).then(|| task.spec.capability.clone())
    }
}
