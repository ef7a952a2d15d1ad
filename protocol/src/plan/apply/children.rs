//! The links between tasks and their children, and what follows from them: which children are orphans, and which waits for
//! children are to end.

use crate::child::{EndedTask, TaskEnd};
use crate::ids::TaskId;
use crate::plan::spec::TaskSpec;
use crate::plan::state::{AttemptEnd, Plan, PlanIndex, Task, TaskPhase, TaskState};
use crate::wait::WaitCondition;

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
