//! How a task comes from one state into another, and what that means for those that depend on it.

use jiff::Timestamp;

use crate::ids::{Capability, TaskId};
use crate::plan::Work;
use crate::plan::due::queue;
use crate::plan::state::{ErroredFor, Plan, Task, TaskState};

impl Plan {
    pub(super) fn task_mut(&mut self, id: &TaskId) -> Option<&mut Task> {
        self.position(id).map(|at| &mut self.tasks[at as usize])
    }

    /// Moves a task to a state and keeps what is derived from states.
    pub(super) fn move_to(
        &mut self,
        id: &TaskId,
        to: TaskState,
        at: Timestamp,
        change: impl FnOnce(&mut Task),
    ) {
        let Some(position) = self.position(id) else { return };
        self.wait_no_more(position);
        let is_reserved = !self.reserved.is_empty();
        let task = &mut self.tasks[position as usize];
        let from = task.state;
        let before = if is_reserved { task.given_out() } else { None };
        self.counts[from as usize] -= 1;
        self.counts[to as usize] += 1;
        if let Some(ErroredFor::Retry(due)) = task.errored.take() {
            self.retries.remove(&(due, position));
        }
        if let Some(due) = task.review_at.take() {
            self.reviews.remove(&(due, position));
        }
        task.problem = None;
        task.is_out = false;
        task.state = to;
        task.since = at;
        change(task);
        if to.is_terminal() || from.is_terminal() {
            self.tell_dependents(position, from, to);
        }
        if to.is_terminal() != from.is_terminal() {
            let capability = self.tasks[position as usize].spec.capability.clone();
            self.count_open(&capability, !to.is_terminal());
        }
        let task = &self.tasks[position as usize];
        if let Some(ErroredFor::Retry(due)) = task.errored {
            self.retries.insert((due, position));
        }
        if let Some(due) = task.review_at {
            self.reviews.insert((due, position));
        }
        if let Some(work) = before
            && self.tasks[position as usize].given_out().as_ref() != Some(&work)
        {
            self.reserved.release(&work);
        }
        self.wait(position);
    }

    pub(super) fn offer(&mut self, id: &TaskId, attempt: u32, state: TaskState, at: Timestamp) {
        self.move_to(id, state, at, |task| {
            task.attempt = attempt;
            let work = Work::Task { task: task.spec.id.clone(), attempt };
            task.superseded.retain(|(superseded, _)| *superseded != work);
        });
    }

    /// A task that had ended, or was under way, has its attempts before it again.
    pub(super) fn reopen(&mut self, id: &TaskId, attempt: u32, state: TaskState, at: Timestamp) {
        self.move_to(id, state, at, |task| {
            task.attempt = attempt;
            task.granted = attempt.saturating_sub(1).saturating_add(task.spec.limits.max_attempts);
            task.reason = None;
            task.lost_with = None;
            task.is_wound_down = false;
        });
    }

    /// Work that was given out for a task is not wanted any more.
    pub(super) fn supersede(&mut self, id: &TaskId) {
        let Some(task) = self.task_mut(id) else { return };
        let Some(work) = task.given_out().or_else(|| task.left_behind()) else { return };
        let superseded = (work.clone(), queue(task, &work));
        if !task.superseded.contains(&superseded) {
            task.superseded.push(superseded);
        }
    }

    /// Nobody offers what a task needs. An order of it that is out stays there.
    pub(super) fn miss(&mut self, id: &TaskId, capability: &Capability, at: Timestamp) {
        self.note(|| format!("task {id} can't begin: nobody offers {capability}"));
        let is_out = self.task(id).is_some_and(|task| task.given_out().is_some());
        self.move_to(id, TaskState::Errored, at, |task| {
            task.errored = Some(ErroredFor::Capability);
            task.is_out = is_out;
        });
    }

    /// A task waits for other parameters.
    pub(super) fn refuse_parameters(&mut self, id: &TaskId, problem: &str, at: Timestamp) {
        self.note(|| format!("task {id} can't begin: {problem}"));
        self.supersede(id);
        let was_given_out = self.task(id).is_some_and(|task| task.given_out().is_some());
        self.move_to(id, TaskState::Errored, at, |task| {
            // The attempt that was given out is taken back, and not counted as one.
            task.attempt = task.attempt.saturating_add(u32::from(was_given_out));
            task.granted = task.granted.saturating_add(u32::from(was_given_out));
            task.errored = Some(ErroredFor::Parameters);
            task.problem = Some(problem.to_owned());
        });
    }

    pub(super) fn give_up(&mut self, id: &TaskId, state: TaskState, reason: &str, at: Timestamp) {
        self.move_to(id, state, at, |task| task.reason = Some(reason.into()));
    }

    /// A task was moved: those that depend on it wait for one fewer where it need not be waited for any more, and for one
    /// more where it must be again.
    fn tell_dependents(&mut self, position: u32, from: TaskState, to: TaskState) {
        let dependents = std::mem::take(&mut self.tasks[position as usize].dependents);
        for &dependent in &dependents {
            let dependent = &mut self.tasks[dependent as usize];
            let policy = dependent.spec.on_failed_dependency;
            match (from.meets(policy), to.meets(policy)) {
                (false, true) => dependent.unmet = dependent.unmet.saturating_sub(1),
                (true, false) => dependent.unmet = dependent.unmet.saturating_add(1),
                (true, true) | (false, false) => {}
            }
        }
        self.tasks[position as usize].dependents = dependents;
    }
}
