//! The states of tasks, and the effect of a task's state on the tasks that depend on it. Attempts and
//! reviews: their claimants and their ends.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::ids::{Capability, TaskId, WorkerId};
use crate::plan::attendance::UncountedTime;
use crate::plan::state::{
    Attempt, AttemptEnd, AttemptReview, AttemptWait, ErroredTaskWait, Plan, Task, TaskPhase, TaskState,
};
use crate::plan::{AttemptEvent, ReviewEvent, StoppedClocks, TaskEvent};
use crate::result::{Build, ModelUsage, Usage, Verdict};
use crate::wait::{EndedWait, Wait, WaitCondition};

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

impl Plan {
    pub(super) fn apply_attempt(&mut self, event: &AttemptEvent, at: Timestamp) {
        match event {
            AttemptEvent::Claimed { task, attempt, worker, build } => {
                if !self.is_child(task) {
                    self.planning.idle_turns = 0;
                }
                let build = build.as_ref().map(|build| self.intern_build(build));
                self.apply_claim(task, *attempt, worker, build, at);
            }
            AttemptEvent::Finished { task, usage, models, .. } => {
                self.spend_on_task(task, *usage, models);
                self.finish_attempt(event, at);
            }
            AttemptEvent::Errored { task, attempt, error, retry_at } => {
                self.spend_on_task(task, error.usage, &error.models);
                let end = AttemptEnd::Errored(error.clone());
                self.record_failed_attempt(task, *attempt, end, error.usage, *retry_at, at);
            }
            AttemptEvent::TimedOut { task, attempt, clock, retry_at, usage } => {
                self.add_note_for_planner(|| format!("attempt {attempt} of task {task} timed out: {clock}"));
                self.spend_on_task(task, *usage, &ModelUsage::new());
                self.record_failed_attempt(
                    task,
                    *attempt,
                    AttemptEnd::TimedOut(*clock),
                    *usage,
                    *retry_at,
                    at,
                );
            }
            AttemptEvent::Parked { task, attempt, waits } => self.park_attempt(task, *attempt, waits, at),
            AttemptEvent::QuestionRenewed { task, attempt, key, to } => {
                self.count_questions(1);
                self.renew_question(task, *attempt, key, to, at)
            }
            AttemptEvent::ChildRefused { task, attempt, child, reason } => {
                if let Some(task) = self.task_mut(task) {
                    let refused = (child.clone(), reason.clone());
                    task.attempt_entry_mut(*attempt).refused_children.push(refused);
                }
                self.update_children_index_of(task);
            }
            AttemptEvent::WaitEnded { task, attempt, ended } => self.end_wait(task, *attempt, ended, at),
            AttemptEvent::Woken { task, .. } => {
                if !self.is_child(task) {
                    self.planning.idle_turns = 0;
                }
                self.move_task_to_phase(task, TaskPhase::Ready, at, |_| ());
            }
        }
    }

    fn finish_attempt(&mut self, event: &AttemptEvent, at: Timestamp) {
        let AttemptEvent::Finished {
            task,
            attempt,
            worker,
            at_sequence,
            summary,
            is_detailed,
            is_answered,
            review,
            usage,
            ..
        } = event
        else {
            return;
        };

        self.move_task_to_phase(task, TaskPhase::NeedsReview { retry_at: None }, at, |task| {
            let review = AttemptReview::begin(review.as_deref().unwrap_or(&task.spec.review));
            let end = AttemptEnd::Finished {
                at_sequence: *at_sequence,
                summary: summary.clone(),
                is_detailed: *is_detailed,
                is_answered: *is_answered,
            };
            let record = task.end_attempt(*attempt, end, at);
            record.worker = Some(worker.clone());
            record.usage = *usage;
            record.review = Some(review);
        });
    }

    fn park_attempt(&mut self, task: &TaskId, attempt: u32, waits: &[Wait], at: Timestamp) {
        let until = waits.iter().filter_map(|wait| wait.condition.until(at)).min();
        let questions = waits.iter().filter(|wait| wait.condition.question().is_some()).count();
        self.count_questions(questions);
        self.move_task_to_phase(task, TaskPhase::Waiting { until }, at, |task| {
            let waits = waits.iter().map(|wait| AttemptWait::begin(wait.clone(), at));
            let all = &mut task.attempt_entry_mut(attempt).waits;
            all.reserve_exact(waits.len());
            all.extend(waits);
        });
    }

    fn end_wait(&mut self, id: &TaskId, attempt: u32, ended: &EndedWait, at: Timestamp) {
        self.change_open_wait(id, attempt, &ended.key, |wait| {
            wait.end = Some(ended.end.clone());
            wait.ended_at = Some(at);
        });
    }

    pub(super) fn count_questions(&mut self, more: usize) {
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        self.run.question_count = self.run.question_count.saturating_add(more);
    }

    /// Begins the next round of a question.
    fn renew_question(&mut self, id: &TaskId, attempt: u32, key: &str, to: &str, at: Timestamp) {
        self.change_open_wait(id, attempt, key, |wait| {
            wait.since = at;
            wait.round = wait.round.saturating_add(1);
            if let WaitCondition::Answer(question) = &mut wait.wait.condition {
                question.to = to.to_owned();
            }
        });
    }

    /// Changes an open wait of a parked attempt, and the time at which the first one ends.
    fn change_open_wait(
        &mut self,
        id: &TaskId,
        attempt: u32,
        key: &str,
        change: impl FnOnce(&mut AttemptWait),
    ) {
        let Some(task) = self.task_mut(id).filter(|task| task.state() == TaskState::Waiting) else { return };
        let since = task.since;
        // An attempt that is over has no open wait.
        let Some(record) = task.attempts.last_mut().filter(|record| record.number == attempt) else { return };
        let wait = record.waits.iter_mut().find(|wait| wait.wait.key == key && wait.end.is_none());
        let Some(wait) = wait else { return };
        change(wait);
        let until = record.first_wait_time();
        self.move_task_to_phase(id, TaskPhase::Waiting { until }, since, |_| ());
    }

    pub(super) fn apply_review(&mut self, event: &ReviewEvent, at: Timestamp) {
        match event {
            ReviewEvent::Errored { task, retry_at, usage, models, .. } => {
                self.spend_on_review(task, *usage, models);
                self.schedule_review_retry(task, *retry_at, at);
            }
            ReviewEvent::Ready { task } => {
                self.move_task_to_phase(task, TaskPhase::NeedsReview { retry_at: None }, at, |_| ())
            }
            ReviewEvent::VerdictGiven { task, critic, verdict, .. } => {
                self.record_verdict(task, critic, verdict)
            }
        }
    }

    /// Returns the run's own copy of a build: thousands of attempts share a few.
    fn intern_build(&mut self, build: &Arc<Build>) -> Arc<Build> {
        if let Some(same) = self.builds.iter().find(|other| *other == build) {
            return same.clone();
        }
        self.builds.push(build.clone());
        build.clone()
    }

    fn apply_claim(
        &mut self,
        id: &TaskId,
        attempt: u32,
        worker: &WorkerId,
        build: Option<Arc<Build>>,
        at: Timestamp,
    ) {
        let Some(task) = self.task_mut(id) else { return };
        let is_takeover = task.state() == TaskState::Running;
        task.superseded.clear();
        task.uncounted.end_wait(at);
        let record = task.attempt_entry_mut(attempt);
        record.worker = Some(worker.clone());
        record.build = build;
        record.claimed_at.get_or_insert(at);
        if !is_takeover {
            self.move_task_to_phase(id, TaskPhase::Running, at, |_| ());
        }
    }

    fn record_failed_attempt(
        &mut self,
        id: &TaskId,
        attempt: u32,
        end: AttemptEnd,
        usage: Usage,
        retry_at: Option<Timestamp>,
        at: Timestamp,
    ) {
        self.move_task_to_phase(id, TaskPhase::Errored(retry_at.map(ErroredTaskWait::Retry)), at, |task| {
            task.end_attempt(attempt, end, at).usage = usage;
        });
    }

    /// Ends a failed try at a review; the next one starts at `retry_at`, or at once.
    fn schedule_review_retry(&mut self, id: &TaskId, retry_at: Option<Timestamp>, at: Timestamp) {
        self.move_task_to_phase(id, TaskPhase::NeedsReview { retry_at }, at, |task| {
            if let Some(review) = task.attempts.iter_mut().rev().find_map(|attempt| attempt.review.as_mut()) {
                review.number = review.number.saturating_add(1);
            }
        });
    }

    fn record_verdict(&mut self, id: &TaskId, critic: &WorkerId, verdict: &Verdict) {
        self.spend_on_review(id, verdict.usage, &verdict.models);
        if let Some(record) = self.task_mut(id).and_then(|task| task.attempts.last_mut()) {
            record.set_verdict(critic.clone(), verdict.clone());
        }
    }
}

impl Task {
    /// Returns the record of an attempt; creates it if there is none.
    pub(super) fn attempt_entry_mut(&mut self, number: u32) -> &mut Attempt {
        if self.attempts.last().is_none_or(|last| last.number != number) {
            // Most tasks have one attempt; a growing list would reserve the memory of four.
            self.attempts.reserve_exact(1);
            self.attempts.push(Attempt {
                number,
                worker: None,
                build: None,
                claimed_at: None,
                ended_at: None,
                worked: SignedDuration::ZERO,
                end: None,
                usage: Usage::default(),
                review: None,
                waits: Vec::new(),
                refused_children: Vec::new(),
            });
        }
        self.attempts.last_mut().expect("an attempt was pushed if there was none")
    }

    pub(super) fn end_attempt(&mut self, number: u32, end: AttemptEnd, at: Timestamp) -> &mut Attempt {
        let record = self.attempt_entry_mut(number);
        record.end = Some(end);
        record.ended_at = Some(at);
        record
    }
}
