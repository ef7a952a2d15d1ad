//! The tasks of the plan and their dependencies: adding, changing and linking them.
//!
//! The links between tasks and their children, and what follows from them: which children are orphans, and which waits for
//! children are to end.

use std::sync::Arc;

use jiff::Timestamp;

use crate::child::{EndedTask, TaskEnd};
use crate::ids::TaskId;
use crate::plan::GraphEvent;
use crate::plan::attendance::UncountedTime;
use crate::plan::spec::{OnFailedDependency, TaskSpec};
use crate::plan::state::{AttemptEnd, Plan, PlanIndex, Task, TaskPhase, TaskState};
use crate::wait::WaitCondition;

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

impl PlanIndex {
    pub(in crate::plan) fn count_new_task(&mut self, spec: &TaskSpec, state: TaskState) {
        self.counts[state as usize] += 1;
        self.child_counts[state as usize] += u32::from(spec.is_child());
    }

    /// Counts a task's change of state.
    pub(super) fn count_state_change(&mut self, spec: &TaskSpec, from: TaskState, to: TaskState) {
        let child = u32::from(spec.is_child());
        self.counts[from as usize] -= 1;
        self.child_counts[from as usize] -= child;
        self.counts[to as usize] += 1;
        self.child_counts[to as usize] += child;
    }
}

impl Plan {
    /// Links a new task to its parent, which must be in the plan already.
    pub(super) fn link_to_parent(&mut self, position: u32) {
        if let Some(parent) = self.parent_position(position) {
            self.index.children.entry(parent).or_default().push(position);
        }
    }

    /// The position of a task's parent, if that was added before it.
    fn parent_position(&self, position: u32) -> Option<u32> {
        let parent = self.tasks[position as usize].spec.parent.as_ref()?;
        self.task_position(&parent.task).filter(|at| *at < position)
    }

    /// Updates what the index derives from a task and its children, after one of them changed.
    pub(super) fn update_children_index_of(&mut self, id: &TaskId) {
        if let Some(position) = self.task_position(id) {
            self.update_children_index(position);
        }
    }

    /// Updates what the index derives from a task, its children and its parent, after the task changed.
    pub(super) fn update_children_index(&mut self, position: u32) {
        let children = std::mem::take(self.index.children.entry(position).or_default());
        children.iter().for_each(|&child| self.update_orphan(child));
        match children.is_empty() {
            true => drop(self.index.children.remove(&position)),
            false => drop(self.index.children.insert(position, children)),
        }
        self.update_orphan(position);
        self.update_children_ended(position);
        if let Some(parent) = self.parent_position(position) {
            self.update_children_ended(parent);
        }
    }

    fn update_orphan(&mut self, position: u32) {
        let task = &self.tasks[position as usize];
        let Some(parent) = &task.spec.parent else { return };
        let live = self.parent_position(position).and_then(|at| self.tasks[at as usize].live_attempt());
        if !task.state().is_terminal() && live != Some(parent.attempt) {
            self.index.orphans.insert(position);
        } else {
            self.index.orphans.remove(&position);
        }
    }

    fn update_children_ended(&mut self, position: u32) {
        if self.tasks[position as usize].state() == TaskState::Waiting
            && self.has_wait_for_ended_children(&self.tasks[position as usize])
        {
            self.index.children_ended.insert(position);
        } else {
            self.index.children_ended.remove(&position);
        }
    }

    fn has_wait_for_ended_children(&self, task: &Task) -> bool {
        let open = task.current_attempt().into_iter().flat_map(|attempt| attempt.open_waits());
        open.into_iter().any(|wait| self.has_wait_ended(task, &wait.condition))
    }

    /// `true` if the children that a wait of a task is for have ended.
    pub(in crate::plan) fn has_wait_ended(&self, task: &Task, condition: &WaitCondition) -> bool {
        let WaitCondition::Tasks { tasks, any, .. } = condition else { return false };
        let mut ended = tasks.iter().map(|child| !self.is_open_child(task, child));
        if *any { tasks.is_empty() || ended.any(|it| it) } else { ended.all(|it| it) }
    }

    /// `true` if a task has this child and it has not ended.
    pub(in crate::plan) fn is_open_child(&self, parent: &Task, child: &TaskId) -> bool {
        self.child_of(parent, child).is_some_and(|child| !child.state().is_terminal())
    }

    /// The child of this id, if it is one of the current attempt of `parent`.
    pub(in crate::plan) fn child_of(&self, parent: &Task, child: &TaskId) -> Option<&Task> {
        let position = self.task_position(child)?;
        let linked = self.parent_position(position).map(|at| &self.tasks[at as usize].spec.id);
        let child = &self.tasks[position as usize];
        let attempt = child.spec.parent.as_ref().map(|own| own.attempt);
        (linked == Some(&parent.spec.id) && attempt == Some(parent.attempt)).then_some(child)
    }

    /// The ends of those of these children that have ended.
    pub(in crate::plan) fn ended_children(&self, parent: &Task, children: &[TaskId]) -> Vec<EndedTask> {
        children.iter().filter_map(|child| self.ended_child(parent, child)).collect()
    }

    fn ended_child(&self, parent: &Task, id: &TaskId) -> Option<EndedTask> {
        let task = id.clone();
        let Some(child) = self.child_of(parent, id) else {
            let refused = parent.current_attempt().map(|attempt| &attempt.refused_children);
            let reason = refused.into_iter().flatten().find(|(child, _)| child == id);
            let unknown = || format!("{} has no such task", parent.spec.id);
            let reason = reason.map_or_else(unknown, |(_, reason)| reason.clone());
            return Some(EndedTask { task, end: TaskEnd::Refused { reason }, usage: Default::default() });
        };
        Some(EndedTask { task, end: child.end()?, usage: self.usage_with_children(child) })
    }

    pub(in crate::plan) fn recount_children(&mut self) {
        self.index.children.clear();
        (self.index.orphans, self.index.children_ended) = Default::default();
        for position in (0_u32..).take(self.tasks.len()) {
            self.link_to_parent(position);
        }
        for position in (0_u32..).take(self.tasks.len()) {
            self.update_orphan(position);
            self.update_children_ended(position);
        }
    }
}

impl Task {
    /// The end of the task, as its parent gets it; `None` while it is open.
    pub fn end(&self) -> Option<TaskEnd> {
        let last = self.attempts.last().and_then(|attempt| attempt.end.as_ref());
        match &self.phase {
            TaskPhase::Completed => {
                let summary = self.accepted_result().map(|(_, _, summary)| summary.to_owned());
                Some(TaskEnd::Completed { summary: summary.unwrap_or_default() })
            }
            TaskPhase::Failed { reason } => Some(match last {
                Some(AttemptEnd::TimedOut(_)) => TaskEnd::TimedOut { message: reason.clone() },
                Some(AttemptEnd::Errored(error)) => TaskEnd::Failed {
                    kind: Some(error.kind),
                    message: reason.clone(),
                    limit: error.limit,
                    produced: error.produced.clone(),
                },
                Some(AttemptEnd::Finished { .. }) | None => {
                    TaskEnd::Failed { kind: None, message: reason.clone(), limit: None, produced: None }
                }
            }),
            TaskPhase::Cancelled { reason, .. } => Some(TaskEnd::Cancelled { reason: reason.clone() }),
            TaskPhase::Pending
            | TaskPhase::Ready
            | TaskPhase::Running
            | TaskPhase::NeedsReview { .. }
            | TaskPhase::Rerun
            | TaskPhase::Errored(_)
            | TaskPhase::Waiting { .. } => None,
        }
    }
}
