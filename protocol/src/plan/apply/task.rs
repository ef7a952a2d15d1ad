//! The states of tasks, and the effect of a task's state on the tasks that depend on it.

use jiff::Timestamp;

use crate::ids::{Capability, TaskId};
use crate::plan::state::{ErroredTaskWait, Plan, Task, TaskPhase, TaskState, UncountedTime};
use crate::plan::{StoppedClocks, TaskEvent};

impl Plan {
    pub(super) fn apply_task(&mut self, event: &TaskEvent, at: Timestamp) {
        match event {
            TaskEvent::Ready { task, attempt } => {
                self.record_offered_attempt(task, *attempt, TaskPhase::Ready, at)
            }
            TaskEvent::Rerun { task, attempt } => {
                self.record_offered_attempt(task, *attempt, TaskPhase::Rerun, at)
            }
            TaskEvent::Pending { task } => self.move_task_to_phase(task, TaskPhase::Pending, at, |_| ()),
            TaskEvent::CapabilityMissing { task, capability } => {
                self.wait_for_capability(task, capability, at)
            }
            TaskEvent::ParametersRejected { task, problem } => self.wait_for_parameters(task, problem, at),
            TaskEvent::Reopened { task, attempt, ready, feedback } => {
                self.supersede_current_attempt(task);
                self.reopen_task(
                    task,
                    *attempt,
                    if *ready { TaskPhase::Ready } else { TaskPhase::Pending },
                    at,
                );
                if let (Some(task), Some(feedback)) = (self.task_mut(task), feedback) {
                    task.instructions.push((*attempt, feedback.clone()));
                }
            }
            TaskEvent::Invalidated { task, attempt, usage } => {
                self.spend_in_flight(task, *usage);
                self.supersede_current_attempt(task);
                self.reopen_task(task, *attempt, TaskPhase::Pending, at);
            }
            TaskEvent::Accepted { task, .. } => {
                self.move_task_to_phase(task, TaskPhase::Completed, at, |_| ())
            }
            TaskEvent::Failed { task, reason } => {
                self.add_note_for_planner(|| format!("task {task} failed: {reason}"));
                self.move_task_to_phase(task, TaskPhase::Failed { reason: reason.clone() }, at, |_| ());
            }
            TaskEvent::Instructed { task, attempt, text } => {
                if let Some(task) = self.task_mut(task) {
                    task.instructions.push((*attempt, text.clone()));
                }
            }
            TaskEvent::Cancelled { task, reason, with, usage } => {
                self.add_note_for_planner(|| format!("task {task} was cancelled: {reason}"));
                self.spend_in_flight(task, *usage);
                let is_wound_down = self.run.winding_down.is_some();
                let phase =
                    TaskPhase::Cancelled { reason: reason.clone(), with: with.clone(), is_wound_down };
                self.move_task_to_phase(task, phase, at, |_| ());
            }
        }
    }

    pub(super) fn task_mut(&mut self, id: &TaskId) -> Option<&mut Task> {
        self.task_position(id).map(|at| &mut self.tasks[at as usize])
    }

    /// Moves a task to a phase and updates the index. `change` changes the rest of the task.
    pub(super) fn move_task_to_phase(
        &mut self,
        id: &TaskId,
        to: TaskPhase,
        at: Timestamp,
        change: impl FnOnce(&mut Task),
    ) {
        let Some(position) = self.task_position(id) else { return };
        self.remove_waiting_for_reservation(position);
        let has_reservations = !self.budget.reserved.is_empty();
        let task = &mut self.tasks[position as usize];
        let (from, to_state) = (task.state(), to.state());
        let before = if has_reservations { task.reserved_work() } else { None };
        self.index.count_state_change(&task.spec, from, to_state);
        self.index.remove_backoff(position, &task.phase);
        task.count_work_until(at);
        task.phase = to;
        task.since = at;
        task.uncounted = UncountedTime::default();
        change(task);
        self.index.insert_backoff(position, &task.phase);
        if to_state.is_terminal() || from.is_terminal() {
            self.update_dependents(position, from, to_state);
        }
        if to_state.is_terminal() != from.is_terminal() {
            let capability = self.tasks[position as usize].spec.capability.clone();
            self.count_open_task(&capability, !to_state.is_terminal());
        }
        if let Some(work) = before
            && self.tasks[position as usize].reserved_work().as_ref() != Some(&work)
        {
            self.budget.reserved.release(&work);
        }
        self.add_if_waiting_for_reservation(position);
        self.update_unchecked_start(position);
        self.update_children_index(position);
    }

    /// Excludes an absence from the clocks that it stops.
    pub(super) fn stop_clocks(&mut self, stopped: &StoppedClocks) {
        for task in self.tasks.iter_mut().filter(|task| stopped.concerns_task(task)) {
            task.uncounted.exclude(stopped.absence, task.since);
        }
        if let Some(turn) = self.planning.turn.as_mut().filter(|turn| stopped.concerns_turn(turn)) {
            turn.uncounted.exclude(stopped.absence, turn.since);
        }
    }

    fn record_offered_attempt(&mut self, id: &TaskId, attempt: u32, phase: TaskPhase, at: Timestamp) {
        self.move_task_to_phase(id, phase, at, |task| {
            task.attempt = attempt;
            let work = task.attempt_work();
            task.superseded.retain(|(superseded, _)| *superseded != work);
        });
    }

    /// Gives a task that had ended, or was in flight, its attempts again.
    fn reopen_task(&mut self, id: &TaskId, attempt: u32, phase: TaskPhase, at: Timestamp) {
        self.move_task_to_phase(id, phase, at, |task| {
            task.attempt = attempt;
            task.granted = attempt.saturating_sub(1).saturating_add(task.spec.limits.max_attempts);
        });
    }

    /// Records that the dispatched work of a task is not wanted any more.
    pub(super) fn supersede_current_attempt(&mut self, id: &TaskId) {
        let Some(task) = self.task_mut(id) else { return };
        let Some(work) = task.dispatched_work().or_else(|| task.orphaned_work()) else { return };
        let queue = work.queue_name(&task.spec.capability);
        let superseded = (work, queue);
        if !task.superseded.contains(&superseded) {
            task.superseded.push(superseded);
        }
    }

    /// Lets a task wait for its capability. A dispatched order stays in its queue.
    fn wait_for_capability(&mut self, id: &TaskId, capability: &Capability, at: Timestamp) {
        self.add_note_for_planner(|| format!("task {id} can't begin: nobody offers {capability}"));
        let is_dispatched = self.task(id).is_some_and(|task| task.dispatched_work().is_some());
        let phase = TaskPhase::Errored(Some(ErroredTaskWait::Capability { is_dispatched }));
        self.move_task_to_phase(id, phase, at, |_| ());
    }

    /// Lets a task wait for other parameters.
    fn wait_for_parameters(&mut self, id: &TaskId, problem: &str, at: Timestamp) {
        self.add_note_for_planner(|| format!("task {id} can't begin: {problem}"));
        self.supersede_current_attempt(id);
        let was_dispatched = self.task(id).is_some_and(|task| task.dispatched_work().is_some());
        let phase = TaskPhase::Errored(Some(ErroredTaskWait::Parameters { problem: problem.to_owned() }));
        self.move_task_to_phase(id, phase, at, |task| {
            // The dispatched attempt is withdrawn and does not count as one.
            task.attempt = task.attempt.saturating_add(u32::from(was_dispatched));
            task.granted = task.granted.saturating_add(u32::from(was_dispatched));
        });
    }

    /// Updates how many dependencies the dependents of a task still wait for, after it moved.
    fn update_dependents(&mut self, position: u32, from: TaskState, to: TaskState) {
        let dependents = std::mem::take(&mut self.tasks[position as usize].dependents);
        for &dependent in &dependents {
            let dependent = &mut self.tasks[dependent as usize];
            let policy = dependent.spec.on_failed_dependency;
            match (from.satisfies_dependency(policy), to.satisfies_dependency(policy)) {
                (false, true) => dependent.unmet = dependent.unmet.saturating_sub(1),
                (true, false) => dependent.unmet = dependent.unmet.saturating_add(1),
                (true, true) | (false, false) => {}
            }
        }
        self.tasks[position as usize].dependents = dependents;
    }
}

impl Task {
    /// Adds the time since its claim, if a worker has it, to the work on its attempt.
    fn count_work_until(&mut self, at: Timestamp) {
        if self.state() != TaskState::Running {
            return;
        }
        let worked = self.uncounted.counted(self.since, at);
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.worked = attempt.worked.saturating_add(worked);
        }
    }
}
