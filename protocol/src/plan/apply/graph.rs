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
            own_policy: None,
            reason: None,
            attempts: Vec::new(),
            dependents: Vec::new(),
        });
        self.index.insert(spec.id.clone(), position);
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
        for waiting in self.unlinked.remove(&spec.id).unwrap_or_default() {
            insert(&mut self.tasks[position as usize].dependents, waiting);
        }
    }

    /// Takes a task away from those it depended on.
    fn unlink(&mut self, spec: &TaskSpec, position: u32) {
        for dependency in &spec.depends_on {
            let linked = match self.position(dependency) {
                Some(at) => Some(&mut self.tasks[at as usize].dependents),
                None => self.unlinked.get_mut(dependency),
            };
            if let Some(linked) = linked {
                linked.retain(|&dependent| dependent != position);
            }
        }
    }

    /// A task is another from now on; one that was offered as it was is taken back.
    pub(super) fn patch(&mut self, spec: &TaskSpec, attempt: u32) {
        let Some(position) = self.position(&spec.id) else { return };
        let old = self.tasks[position as usize].spec.clone();
        self.unlink(&old, position);
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
        let is_at_its_end = self.winding_down.is_some();
        let task = &mut self.tasks[position as usize];
        let (before, now) = (old.limits.max_attempts, spec.limits.max_attempts);
        task.granted = task.granted.saturating_add(now).saturating_sub(before);
        task.own_policy = own_policy(task, spec.on_failed_dependency, is_at_its_end);
        // Which task is final is said by an event of its own.
        task.spec = TaskSpec { is_final: old.is_final, ..spec.clone() };
        task.unmet = unmet;
        if attempt > 0 {
            // The attempt that was taken back is not counted as one.
            task.granted = task.granted.saturating_add(attempt.saturating_sub(task.attempt));
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
        let policy = spec.on_failed_dependency;
        let is_met = |id: &&TaskId| self.task(id).is_some_and(|task| task.state.meets(policy));
        let unmet = spec.depends_on.iter().filter(|id| !is_met(id)).count();
        u32::try_from(unmet).expect("a task has fewer than 2^32 dependencies")
    }
}

/// The policy that a task is to have again when the run is gone on with: the end of a run lets it go on without what is
/// missing; whoever changes it otherwise means it.
fn own_policy(task: &Task, now: OnFailedDependency, is_at_its_end: bool) -> Option<OnFailedDependency> {
    let before = task.spec.on_failed_dependency;
    match (before == now, is_at_its_end) {
        (true, _) => task.own_policy,
        (false, true) => task.own_policy.or(Some(before)),
        (false, false) => None,
    }
}

/// Inserts into a list that is sorted; most often at its end. Who depends on a task twice stands in it twice.
fn insert(sorted: &mut Vec<u32>, position: u32) {
    let at = sorted.partition_point(|&before| before <= position);
    sorted.insert(at, position);
}
