//! Attempts and reviews: their claimants and their ends.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::ids::{TaskId, WorkerId};
use crate::plan::state::{
    Attempt, AttemptEnd, AttemptReview, AttemptWait, ErroredTaskWait, Plan, Task, TaskPhase, TaskState,
};
use crate::plan::{AttemptEvent, ReviewEvent};
use crate::result::{Build, ModelUsage, Usage, Verdict};
use crate::wait::{EndedWait, WaitCondition};

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
            AttemptEvent::Finished {
                task,
                attempt,
                worker,
                at_sequence,
                summary,
                is_detailed,
                is_answered,
                review,
                usage,
                models,
            } => {
                self.spend_on_task(task, *usage, models);
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
            AttemptEvent::Parked { task, attempt, waits } => {
                let until = waits.iter().filter_map(|wait| wait.condition.until(at)).min();
                let questions = waits.iter().filter(|wait| wait.condition.question().is_some()).count();
                self.count_questions(questions);
                self.move_task_to_phase(task, TaskPhase::Waiting { until }, at, |task| {
                    let waits = waits.iter().map(|wait| AttemptWait::begin(wait.clone(), at));
                    let all = &mut task.attempt_entry_mut(*attempt).waits;
                    all.reserve_exact(waits.len());
                    all.extend(waits);
                });
            }
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
