//! Verdicts.

use jiff::Timestamp;

use super::super::spec::{PersonReview, ReviewPolicy};
use super::super::state::{Attempt, Plan, Task, TaskState};
use super::super::{AttemptClock, Event, Refusal, ReviewEvent, TaskEvent};
use super::votes::{Votes, ask_persons, consequence_of_verdict};
use super::wave::append_consequences_of_task_ends;
use super::{
    MAX_REVIEWS, STALE_JOURNAL, find_task, find_task_with_attempt, timeout_error, timestamp_after,
    truncate_for_plan, usage_of_work_in_flight, wrong_state_refusal,
};
use crate::ids::{TaskId, WorkerId};
use crate::result::{ErrorKind, TaskError, Verdict};

pub(super) fn find_task_under_review<'a>(
    plan: &'a Plan,
    id: &TaskId,
    attempt: u32,
) -> Result<&'a Task, Refusal> {
    let task = find_task_with_attempt(plan, id, attempt)?;
    if task.state() == TaskState::NeedsReview {
        Ok(task)
    } else {
        Err(wrong_state_refusal(task, "review ignored"))
    }
}

/// Returns the number of the current try at the review; during a backoff that of the last one.
fn started_review_number(task: &Task) -> u32 {
    task.review_number().saturating_sub(u32::from(task.review_retry_at().is_some()))
}

pub(super) fn check_review_number(task: &Task, review: u32) -> Result<(), Refusal> {
    if review > started_review_number(task) {
        return Err(wrong_state_refusal(task, "this review has not started"));
    }
    if task.review_number() == review {
        Ok(())
    } else {
        Err(wrong_state_refusal(task, "this review has ended"))
    }
}

/// Handles the end of a review. A verdict of an earlier try counts too: an order that no critic claimed in time stays in
/// its queue under that number. An error counts only for the current try.
pub(super) fn handle_review_end(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    review: u32,
    critic: &WorkerId,
    outcome: &Result<Verdict, TaskError>,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let task = find_task_under_review(plan, id, attempt)?;
    let refused = |why: String, verdict: &Verdict| TaskError {
        usage: verdict.usage,
        models: verdict.models.clone(),
        ..TaskError::new(ErrorKind::Other, why)
    };
    let is_author = task.current_attempt().and_then(|current| current.worker.as_ref()) == Some(critic);
    let verdict = match outcome {
        Ok(verdict) if is_author => {
            let error = refused(Refusal::AuthorIsCritic(id.clone()).to_string(), verdict);
            return fail_review(plan, task, review, &error, now);
        }
        Ok(verdict) => verdict,
        Err(error) => return fail_review(plan, task, review, error, now),
    };
    if let Some(inconsistency) = verdict.find_inconsistency() {
        let error = refused(format!("invalid verdict: {inconsistency}"), verdict);
        return fail_review(plan, task, review, &error, now);
    }
    if review > started_review_number(task) {
        return Err(wrong_state_refusal(task, "this review has not started"));
    }
    let verdict_given = Event::Review(ReviewEvent::VerdictGiven {
        task: id.clone(),
        attempt,
        critic: critic.clone(),
        verdict: Box::new(verdict.clone()),
    });
    if let ReviewPolicy::Persons(review) = task.review_policy()
        && needs_persons(review, verdict)
    {
        let summary = task.current_attempt().and_then(Attempt::result_summary).unwrap_or_default();
        return Ok(ask_persons(plan, task, vec![verdict_given], (review, summary, Some(verdict))));
    }
    let next = consequence_of_verdict(plan, task, verdict);
    Ok(append_consequences_of_task_ends(plan, vec![verdict_given, next]))
}

/// `true` if persons must judge a result after this verdict of a critic. Checks have no vote: a result that fails them is
/// rejected.
fn needs_persons(review: &PersonReview, verdict: &Verdict) -> bool {
    match review.first {
        ReviewPolicy::Critic { .. } => {
            let mut votes = Votes::default();
            votes.count(verdict.passed);
            votes.outcome(review).is_none()
        }
        ReviewPolicy::None | ReviewPolicy::Checks { .. } | ReviewPolicy::Persons(_) => verdict.passed,
    }
}

pub(super) fn time_out_review(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    review: u32,
    clock: AttemptClock,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let task = find_task_under_review(plan, id, attempt)?;
    let error = TaskError { usage: usage_of_work_in_flight(plan, task), ..timeout_error(clock, "") };
    fail_review(plan, task, review, &error, now)
}

/// Fails a dispatched try at a review whose journal has entries from before its dispatch.
pub(super) fn replace_review_with_stale_journal(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    review: u32,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let task = find_task_under_review(plan, id, attempt)?;
    check_review_number(task, review)?;
    fail_review(plan, task, review, &TaskError::new(ErrorKind::Other, STALE_JOURNAL), now)
}

/// Ends the backoff of a review.
pub(super) fn retry_review(plan: &Plan, id: &TaskId, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    let task = find_task(plan, id)?;
    match task.review_retry_at() {
        Some(at) if at <= now => Ok(vec![Event::Review(ReviewEvent::Ready { task: id.clone() })]),
        Some(at) => Err(Refusal::NotDue(at)),
        None => Err(wrong_state_refusal(task, "review retry ignored")),
    }
}

fn fail_review(
    plan: &Plan,
    task: &Task,
    review: u32,
    error: &TaskError,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    check_review_number(task, review)?;
    let (id, attempt) = (task.spec.id.clone(), task.attempt);
    let again = review < MAX_REVIEWS && error.kind.is_retryable();
    let message = truncate_for_plan(&error.message);
    let failed = (!again).then(|| {
        Event::Task(TaskEvent::Failed {
            task: id.clone(),
            reason: format!("its result could not be reviewed: {message}"),
        })
    });
    let event = Event::Review(ReviewEvent::Errored {
        task: id,
        attempt,
        review,
        error: message,
        again,
        retry_at: again.then(|| timestamp_after(now, task.spec.limits.backoff_before_attempt(review + 1))),
        usage: error.usage,
        models: error.models.clone(),
    });
    Ok(append_consequences_of_task_ends(plan, std::iter::once(event).chain(failed).collect()))
}
