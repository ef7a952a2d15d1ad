//! Verdicts.

use jiff::Timestamp;

use super::super::state::{Plan, Task, TaskState};
use super::super::{Clock, Event, Refusal};
use super::wave::with_consequences;
use super::{MAX_REVIEWS, after, clock_error, current_attempt, find, in_hand, on_the_plan, wrong_state};
use crate::ids::{TaskId, WorkerId};
use crate::result::{ErrorKind, TaskError, Verdict};

pub(super) fn under_review<'a>(plan: &'a Plan, id: &TaskId, attempt: u32) -> Result<&'a Task, Refusal> {
    let task = current_attempt(plan, id, attempt)?;
    if task.state == TaskState::NeedsReview { Ok(task) } else { Err(wrong_state(task, "a review")) }
}

/// Which try at the review is under way; between two of them it is the one before.
fn begun(task: &Task) -> u32 {
    task.review - u32::from(task.review_at.is_some())
}

pub(super) fn current(task: &Task, review: u32) -> Result<(), Refusal> {
    if review > begun(task) {
        return Err(wrong_state(task, "a review that has not begun"));
    }
    if task.review == review { Ok(()) } else { Err(wrong_state(task, "a review that is over")) }
}

/// A verdict counts from an earlier try at the review too: an order that nobody took in time still waits in its queue
/// under that number. Whatever is no verdict counts from the current try alone.
pub(super) fn reviewed(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    review: u32,
    critic: &WorkerId,
    outcome: &Result<Verdict, TaskError>,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let task = under_review(plan, id, attempt)?;
    let refused = |why: String, verdict: &Verdict| TaskError {
        usage: verdict.usage,
        models: verdict.models.clone(),
        ..TaskError::new(ErrorKind::Other, why)
    };
    let is_author = task.current().and_then(|current| current.worker.as_ref()) == Some(critic);
    let verdict = match outcome {
        Ok(verdict) if is_author => {
            let error = refused(Refusal::AuthorIsCritic(id.clone()).to_string(), verdict);
            return errored(plan, task, review, &error, now);
        }
        Ok(verdict) => verdict,
        Err(error) => return errored(plan, task, review, error, now),
    };
    if let Some(inconsistency) = verdict.inconsistency() {
        let error = refused(format!("the verdict was refused: {inconsistency}"), verdict);
        return errored(plan, task, review, &error, now);
    }
    if review > begun(task) {
        return Err(wrong_state(task, "a review that has not begun"));
    }
    let id = id.clone();
    let given =
        Event::VerdictGiven { task: id.clone(), attempt, critic: critic.clone(), verdict: verdict.clone() };
    let may_rerun = plan.winding_down.is_none() || task.spec.is_final;
    let next = if verdict.passed {
        Event::TaskAccepted { task: id, attempt }
    } else if attempt < task.granted && may_rerun {
        Event::TaskRerun { task: id, attempt: attempt + 1 }
    } else {
        let why = verdict.feedback.as_ref().unwrap_or(&verdict.reasoning);
        let reason = format!("its result was rejected at attempt {attempt} of {attempt}: {why}");
        Event::TaskFailed { task: id, reason: on_the_plan(&reason) }
    };
    Ok(with_consequences(plan, vec![given, next]))
}

pub(super) fn time_out(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    review: u32,
    clock: Clock,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let task = under_review(plan, id, attempt)?;
    let error = TaskError { usage: in_hand(plan, task), ..clock_error(clock, "") };
    errored(plan, task, review, &error, now)
}

/// The backoff of a review is over.
pub(super) fn retry(plan: &Plan, id: &TaskId, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    let task = find(plan, id)?;
    match task.review_at {
        Some(at) if at <= now => Ok(vec![Event::ReviewReady { task: id.clone() }]),
        Some(at) => Err(Refusal::NotDue(at)),
        None => Err(wrong_state(task, "a review's retry")),
    }
}

fn errored(
    plan: &Plan,
    task: &Task,
    review: u32,
    error: &TaskError,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    current(task, review)?;
    let (id, attempt) = (task.spec.id.clone(), task.attempt);
    let again = review < MAX_REVIEWS && error.kind.is_retryable();
    let message = on_the_plan(&error.message);
    let failed = (!again).then(|| Event::TaskFailed {
        task: id.clone(),
        reason: format!("its result could not be judged: {message}"),
    });
    let event = Event::ReviewErrored {
        task: id,
        attempt,
        review,
        error: message,
        again,
        retry_at: again.then(|| after(now, task.spec.limits.backoff_before(review + 1))),
        usage: error.usage,
        models: error.models.clone(),
    };
    Ok(with_consequences(plan, std::iter::once(event).chain(failed).collect()))
}
