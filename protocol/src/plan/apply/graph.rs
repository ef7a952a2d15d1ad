//! The tasks of the plan and their dependencies: adding, changing and linking them.

use std::sync::Arc;

use jiff::Timestamp;

use crate::ids::TaskId;
use crate::plan::GraphEvent;
use crate::plan::spec::{OnFailedDependency, TaskSpec};
use crate::plan::state::{Plan, Task, TaskPhase, UncountedTime};

impl Plan {
    pub(super) fn apply_graph(&mut self, event: &GraphEvent, at: Timestamp) {
        match event {
            GraphEvent::TaskAdded { spec, ready } => self.add_task(spec, *ready, at),
            GraphEvent::TaskPatched { spec, attempt } => self.replace_task_spec(spec, *attempt),
            GraphEvent::FinalMarked { task } => self.mark_final(task),
        }
    }

    /// Reserves the memory of more tasks at once: a list that grows by doubling is copied again and again, and up to half of it stays unused.
    pub(super) fn reserve_tasks(&mut self, more: usize) {
        self.tasks.reserve(more);
        self.index.by_id.reserve(more);
    }

    fn add_task(&mut self, spec: &Arc<TaskSpec>, ready: bool, at: Timestamp) {
        if self.index.by_id.contains_key(&spec.id) {
            return;
        }
        let position = u32::try_from(self.tasks.len()).expect("a plan has fewer than 2^32 tasks");
        let phase = if ready { TaskPhase::Ready } else { TaskPhase::Pending };
        self.index.count_new_task(spec, phase.state());
        self.index.budgeted += u32::from(!spec.budget.is_empty());
        self.count_open_task(&spec.capability, true);
        self.tasks.push(Task {
            spec: Arc::clone(spec),
            phase,
            since: at,
            attempt: u32::from(ready),
            granted: spec.limits.max_attempts,
            unmet: self.count_unmet_dependencies(spec),
            instructions: Vec::new(),
            superseded: Vec::new(),
            own_policy: None,
            uncounted: UncountedTime::default(),
            attempts: Vec::new(),
            dependents: Vec::new(),
        });
        self.index.by_id.insert(spec.id.clone(), position);
        if spec.is_final {
            self.index.final_at.get_or_insert(position);
        }
        self.link_to_dependencies(spec, position);
        self.link_to_parent(position);
        self.add_if_waiting_for_reservation(position);
        self.update_unchecked_start(position);
        self.update_children_index(position);
    }

    /// Links a new task to its dependencies. A seed plan may name tasks that are added later: those are linked when they are
    /// added.
    fn link_to_dependencies(&mut self, spec: &TaskSpec, position: u32) {
        for dependency in &spec.depends_on {
            match self.task_position(dependency) {
                Some(at) => insert_sorted(&mut self.tasks[at as usize].dependents, position),
                None => self.index.unlinked.entry(dependency.clone()).or_default().push(position),
            }
        }
        for waiting in self.index.unlinked.remove(&spec.id).unwrap_or_default() {
            insert_sorted(&mut self.tasks[position as usize].dependents, waiting);
        }
    }

    fn unlink_from_dependencies(&mut self, spec: &TaskSpec, position: u32) {
        for dependency in &spec.depends_on {
            let linked = match self.task_position(dependency) {
                Some(at) => Some(&mut self.tasks[at as usize].dependents),
                None => self.index.unlinked.get_mut(dependency),
            };
            if let Some(linked) = linked {
                linked.retain(|&dependent| dependent != position);
            }
        }
    }

    /// Changes a task. A dispatched attempt with the old specification is withdrawn.
    fn replace_task_spec(&mut self, spec: &Arc<TaskSpec>, attempt: u32) {
        let Some(position) = self.task_position(&spec.id) else { return };
        let old = Arc::clone(&self.tasks[position as usize].spec);
        self.unlink_from_dependencies(&old, position);
        self.link_to_dependencies(spec, position);
        self.remove_waiting_for_reservation(position);
        if old.capability != spec.capability && !self.tasks[position as usize].state().is_terminal() {
            self.count_open_task(&old.capability, false);
            self.count_open_task(&spec.capability, true);
        }
        self.index.budgeted += u32::from(!spec.budget.is_empty());
        self.index.budgeted -= u32::from(!old.budget.is_empty());
        if attempt > 0 {
            self.supersede_current_attempt(&spec.id);
            if let Some(work) = self.tasks[position as usize].dispatched_work() {
                self.budget.reserved.release(&work);
            }
        }
        let unmet = self.count_unmet_dependencies(spec);
        let is_at_its_end = self.run.winding_down.is_some();
        let task = &mut self.tasks[position as usize];
        let (before, now) = (old.limits.max_attempts, spec.limits.max_attempts);
        task.granted = task.granted.saturating_add(now).saturating_sub(before);
        task.own_policy = policy_to_restore_on_resume(task, spec.on_failed_dependency, is_at_its_end);
        // An event of its own changes which task is final.
        task.spec = Arc::clone(spec);
        if task.spec.is_final != old.is_final {
            Arc::make_mut(&mut task.spec).is_final = old.is_final;
        }
        task.unmet = unmet;
        if attempt > 0 {
            // The withdrawn attempt does not count as one.
            task.granted = task.granted.saturating_add(attempt.saturating_sub(task.attempt));
            task.attempt = attempt;
        }
        // If the limit is now below the current attempt, that one is the last.
        task.granted = task.granted.max(task.attempt);
        self.add_if_waiting_for_reservation(position);
        self.update_unchecked_start(position);
        self.update_children_index(position);
    }

    /// Makes a task the only final one.
    fn mark_final(&mut self, task: &TaskId) {
        let position = self.task_position(task);
        for (at, is_final) in [(self.index.final_at, false), (position, true)] {
            if let Some(at) = at {
                Arc::make_mut(&mut self.tasks[at as usize].spec).is_final = is_final;
            }
        }
        self.index.final_at = position;
    }

    /// The number of dependencies of `spec` that are not met.
    pub(in crate::plan) fn count_unmet_dependencies(&self, spec: &TaskSpec) -> u32 {
        let policy = spec.on_failed_dependency;
        let is_met =
            |id: &&TaskId| self.task(id).is_some_and(|task| task.state().satisfies_dependency(policy));
        let unmet = spec.depends_on.iter().filter(|id| !is_met(id)).count();
        u32::try_from(unmet).expect("a task has fewer than 2^32 dependencies")
    }
}

/// The policy to restore when the run is resumed. Winding down replaces the policy of the final task; any other change of it
/// is meant to stay.
fn policy_to_restore_on_resume(
    task: &Task,
    now: OnFailedDependency,
    is_at_its_end: bool,
) -> Option<OnFailedDependency> {
    let before = task.spec.on_failed_dependency;
    match (before == now, is_at_its_end) {
        (true, _) => task.own_policy,
        (false, true) => task.own_policy.or(Some(before)),
        (false, false) => None,
    }
}

/// Inserts into a sorted list, usually at its end. A task that depends on another twice is in it twice.
fn insert_sorted(sorted: &mut Vec<u32>, position: u32) {
    let at = sorted.partition_point(|&before| before <= position);
    sorted.insert(at, position);
}
