//! Attempts and reviews: who has them in hand, and how they end.

use jiff::Timestamp;

use crate::ids::{TaskId, WorkerId};
use crate::plan::state::{Attempt, AttemptEnd, ErroredFor, Plan, Task, TaskState};
use crate::result::{Usage, Verdict};

impl Plan {
    pub(super) fn claim(&mut self, id: &TaskId, attempt: u32, worker: &WorkerId, at: Timestamp) {
        let Some(task) = self.task_mut(id) else { return };
        let took_over = task.state == TaskState::Running;
        task.superseded.clear();
        let record = task.record(attempt);
        record.worker = Some(worker.clone());
        record.claimed_at.get_or_insert(at);
        if !took_over {
            self.move_to(id, TaskState::Running, at, |_| ());
        }
    }

    pub(super) fn error(
        &mut self,
        id: &TaskId,
        attempt: u32,
        end: AttemptEnd,
        usage: Usage,
        retry_at: Option<Timestamp>,
        at: Timestamp,
    ) {
        self.move_to(id, TaskState::Errored, at, |task| {
            task.end_attempt(attempt, end, at).usage = usage;
            task.errored = retry_at.map(ErroredFor::Retry);
        });
    }

    /// A review came to nothing; the next try at it waits, if there is one.
    pub(super) fn review_again(&mut self, id: &TaskId, retry_at: Option<Timestamp>, at: Timestamp) {
        self.move_to(id, TaskState::NeedsReview, at, |task| {
            task.review = task.review.saturating_add(1);
            task.review_at = retry_at;
        });
    }

    pub(super) fn judge(&mut self, id: &TaskId, critic: &WorkerId, verdict: &Verdict) {
        self.spend_on_review(id, verdict.usage, &verdict.models);
        if let Some(record) = self.task_mut(id).and_then(|task| task.attempts.last_mut()) {
            record.verdict = Some((critic.clone(), Box::new(verdict.clone())));
        }
    }
}

impl Task {
    /// The record of an attempt, made if it is not there.
    pub(super) fn record(&mut self, number: u32) -> &mut Attempt {
        if self.attempts.last().is_none_or(|last| last.number != number) {
            self.attempts.push(Attempt {
                number,
                worker: None,
                claimed_at: None,
                ended_at: None,
                end: None,
                usage: Usage::default(),
                verdict: None,
                review_usage: Usage::default(),
            });
        }
        self.attempts.last_mut().expect("an attempt was pushed if there was none")
    }

    pub(super) fn end_attempt(&mut self, number: u32, end: AttemptEnd, at: Timestamp) -> &mut Attempt {
        let record = self.record(number);
        record.end = Some(end);
        record.ended_at = Some(at);
        record
    }
}
