//! Computes the index of a plan from scratch. It equals the index that the fold keeps unless the fold has a bug; it is for
//! tests, the rules must not need it.

use std::collections::BTreeMap;

use super::state::Plan;

impl Plan {
    /// Returns the same plan with everything derived from its tasks, reservations and triggers computed from scratch.
    pub fn with_recounted_index(&self) -> Self {
        let mut plan = self.clone();
        plan.recount_tasks();
        plan.recount_links();
        plan.recount_children();
        plan.index.unchecked_starts.clear();
        (0_u32..).take(plan.tasks.len()).for_each(|position| plan.update_unchecked_start(position));
        plan.index.raised = plan.planning.triggers.iter().cloned().collect();
        plan.budget.reserved = self.budget.reserved.recounted();
        plan.index.waiting = BTreeMap::new();
        plan.index.waiting_children.clear();
        plan.add_all_waiting_for_reservation();
        plan
    }

    fn recount_tasks(&mut self) {
        self.index.by_id.clear();
        (self.index.counts, self.index.child_counts) = Default::default();
        (self.index.budgeted, self.index.final_at) = (0, None);
        (self.index.retries, self.index.reviews, self.index.waits) = Default::default();
        self.index.open_by_capability.clear();
        for (position, task) in (0_u32..).zip(&self.tasks) {
            self.index.by_id.insert(task.spec.id.clone(), position);
            self.index.count_new_task(&task.spec, task.state());
            self.index.budgeted += u32::from(!task.spec.budget.is_empty());
            if task.spec.is_final {
                self.index.final_at.get_or_insert(position);
            }
            if !task.state().is_terminal() {
                *self.index.open_by_capability.entry(task.spec.capability.clone()).or_default() += 1;
            }
            self.index.insert_backoff(position, &task.phase);
        }
    }

    fn recount_links(&mut self) {
        let mut dependents = vec![Vec::new(); self.tasks.len()];
        let mut unmet = Vec::with_capacity(self.tasks.len());
        for (position, task) in (0_u32..).zip(&self.tasks) {
            for at in task.spec.depends_on.iter().filter_map(|id| self.task_position(id)) {
                dependents[at as usize].push(position);
            }
            unmet.push(self.count_unmet_dependencies(&task.spec));
        }
        for ((task, dependents), unmet) in self.tasks.iter_mut().zip(dependents).zip(unmet) {
            (task.dependents, task.unmet) = (dependents, unmet);
        }
    }
}
