//! What the fold keeps beside the tasks so that nobody has to count, counted anew from the tasks alone. Equal to the plan
//! wherever the fold is right; nothing that decides may need it.

use std::collections::BTreeMap;

use super::reserved::Reservations;
use super::state::{ErroredFor, Plan, TaskState};

impl Plan {
    /// The same plan with everything that follows from its tasks, reservations and occasions worked out from scratch.
    #[must_use]
    pub fn recounted(&self) -> Self {
        let mut plan = self.clone();
        plan.recount_tasks();
        plan.recount_links();
        plan.raised = plan.occasions.iter().cloned().collect();
        plan.reserved = Reservations::default();
        for (work, amounts) in self.reserved.iter() {
            plan.reserve(work, *amounts);
        }
        plan.waiting = BTreeMap::new();
        plan.wait_for_all();
        plan
    }

    fn recount_tasks(&mut self) {
        self.index.clear();
        self.counts = [0; 9];
        (self.budgeted, self.final_at) = (0, None);
        (self.retries, self.reviews, self.open_by_capability) = Default::default();
        for (position, task) in (0_u32..).zip(&self.tasks) {
            self.index.insert(task.spec.id.clone(), position);
            self.counts[task.state as usize] += 1;
            self.budgeted += u32::from(!task.spec.budget.is_empty());
            if task.spec.is_final {
                self.final_at.get_or_insert(position);
            }
            if !task.state.is_terminal() {
                *self.open_by_capability.entry(task.spec.capability.clone()).or_default() += 1;
            }
            if let (TaskState::Errored, Some(ErroredFor::Retry(at))) = (task.state, task.errored) {
                self.retries.insert((at, position));
            }
            if let (TaskState::NeedsReview, Some(at)) = (task.state, task.review_at) {
                self.reviews.insert((at, position));
            }
        }
    }

    fn recount_links(&mut self) {
        let mut dependents = vec![Vec::new(); self.tasks.len()];
        let mut unmet = Vec::with_capacity(self.tasks.len());
        for (position, task) in (0_u32..).zip(&self.tasks) {
            for at in task.spec.depends_on.iter().filter_map(|id| self.position(id)) {
                dependents[at as usize].push(position);
            }
            unmet.push(self.unmet(&task.spec));
        }
        for ((task, dependents), unmet) in self.tasks.iter_mut().zip(dependents).zip(unmet) {
            (task.dependents, task.unmet) = (dependents, unmet);
        }
    }
}
