//! The tasks of the plan and what they depend on: how they are added, changed, and tied to each other.

use jiff::Timestamp;

use crate::ids::TaskId;
use crate::plan::spec::{OnFailedDependency, Review, TaskSpec};
use crate::plan::state::{Plan, Task, TaskState};

impl Plan {
    pub(super) fn add(&mut self, spec: &TaskSpec, ready: bool, at: Timestamp) {
        if self.index.contains_key(&spec.id) {
            return;
        }
        let position = u32::try_from(self.tasks.len()).expect("a plan has fewer than 2^32 tasks");
        let state = if ready { TaskState::Ready } else { TaskState::Pending };
        self.index.insert(spec.id.clone(), position);
        self.counts[state as usize] += 1;
        self.budgeted += u32::from(!spec.budget.is_empty());
        self.count_open(&spec.capability, true);
        self.tasks.push(Task {
            spec: spec.clone(),
            state,
            since: at,
            attempt: u32::from(ready),
            granted: spec.limits.max_attempts,
            review: 0,
            asked: Review::None,
            review_at: None,
            unmet: self.unmet(spec),
            errored: None,
            is_out: false,
            problem: None,
            told: Vec::new(),
            superseded: Vec::new(),
            lost_with: None,
            is_wound_down: false,
            reason: None,
            attempts: Vec::new(),
            dependents: Vec::new(),
        });
        if spec.is_final {
            self.final_at.get_or_insert(position);
        }
        self.link(spec, position);
        self.wait(position);
    }

    /// Enters a new task with those it depends on. A seed plan may name tasks that are added after it: those are
    /// linked when they come.
    fn link(&mut self, spec: &TaskSpec, position: u32) {
        for dependency in &spec.depends_on {
            match self.position(dependency) {
                Some(at) => insert(&mut self.tasks[at as usize].dependents, position),
                None => self.unlinked.entry(dependency.clone()).or_default().push(position),
            }
        }
        if let Some(waiting) = self.unlinked.remove(&spec.id) {
            self.tasks[position as usize].dependents.extend(waiting);
        }
    }

    /// A task is another from now on; one that was offered as it was is taken back.
    pub(super) fn patch(&mut self, spec: &TaskSpec, attempt: u32) {
        let Some(position) = self.position(&spec.id) else { return };
        let old = self.tasks[position as usize].spec.clone();
        for dependency in &old.depends_on {
            if let Some(dependency) = self.task_mut(dependency) {
                dependency.dependents.retain(|&dependent| dependent != position);
            }
        }
        self.link(spec, position);
        self.wait_no_more(position);
        if old.capability != spec.capability && !self.tasks[position as usize].state.is_terminal() {
            self.count_open(&old.capability, false);
            self.count_open(&spec.capability, true);
        }
        self.budgeted += u32::from(!spec.budget.is_empty());
        self.budgeted -= u32::from(!old.budget.is_empty());
        if attempt > 0 {
            self.supersede(&spec.id);
            if let Some(work) = self.tasks[position as usize].given_out() {
                self.reserved.release(&work);
            }
        }
        let unmet = self.unmet(spec);
        let task = &mut self.tasks[position as usize];
        let (before, now) = (old.limits.max_attempts, spec.limits.max_attempts);
        task.granted = (task.granted + now).saturating_sub(before);
        task.spec = spec.clone();
        task.unmet = unmet;
        if attempt > 0 {
            // The attempt that was taken back is not counted as one.
            task.granted += attempt.saturating_sub(task.attempt);
            task.attempt = attempt;
        }
        // With fewer attempts than it had, the one that waits is the last.
        task.granted = task.granted.max(task.attempt);
        self.wait(position);
    }

    /// The task whose result is to be the deliverable; no other's is.
    pub(super) fn mark_final(&mut self, task: &TaskId) {
        let position = self.position(task);
        for (at, is_final) in [(self.final_at, false), (position, true)] {
            if let Some(at) = at {
                self.tasks[at as usize].spec.is_final = is_final;
            }
        }
        self.final_at = position;
    }

    /// How many of the tasks that `spec` depends on are open, or lost.
    pub(in crate::plan) fn unmet(&self, spec: &TaskSpec) -> u32 {
        let unmet = spec.depends_on.iter().filter(|id| self.is_unmet(id, spec.on_failed_dependency)).count();
        u32::try_from(unmet).expect("a task has fewer than 2^32 dependencies")
    }

    fn is_unmet(&self, dependency: &TaskId, policy: OnFailedDependency) -> bool {
        self.task(dependency).is_none_or(|task| match task.state {
            TaskState::Completed => false,
            TaskState::Failed | TaskState::Cancelled => policy != OnFailedDependency::Skip,
            TaskState::Pending
            | TaskState::Ready
            | TaskState::Running
            | TaskState::NeedsReview
            | TaskState::Rerun
            | TaskState::Errored => true,
        })
    }
}

/// Inserts into a list that is sorted; most often at its end.
fn insert(sorted: &mut Vec<u32>, position: u32) {
    if let Err(at) = sorted.binary_search(&position) {
        sorted.insert(at, position);
    }
}
