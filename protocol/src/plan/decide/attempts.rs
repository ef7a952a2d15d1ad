//! Claims, outcomes and clocks of attempts.

use jiff::Timestamp;

use super::super::spec::Review;
use super::super::state::{Attempt, AttemptEnd, ErroredFor, Occasion, Plan, Start, Task, TaskState};
use super::super::{Clock, Event, Refusal, Work};
use super::wave::with_consequences;
use super::{Finished, after, current_attempt, find, in_hand, on_the_plan, planning, reviews, wrong_state};
use crate::ids::{TaskId, WorkerId};
use crate::result::{ErrorKind, MAX_SUMMARY, TaskError};

pub(super) fn claimed(plan: &Plan, work: &Work, worker: &WorkerId) -> Result<Vec<Event>, Refusal> {
    match work {
        Work::Planning { turn, attempt } => {
            let (turn, attempt) = (*turn, *attempt);
            let current = planning::current(plan, turn, attempt)?;
            if current.worker.as_ref() == Some(worker) {
                return Ok(Vec::new());
            }
            Ok(vec![Event::PlanningClaimed { turn, attempt, worker: worker.clone() }])
        }
        // Who reviews is told by the verdict; until then the plan only waits.
        Work::Review { task, attempt, review } => {
            reviews::current(reviews::under_review(plan, task, *attempt)?, *review).map(|()| Vec::new())
        }
        Work::Task { task, attempt } => {
            let (id, attempt) = (task.clone(), *attempt);
            let task = current_attempt(plan, task, attempt)?;
            match task.state {
                TaskState::Ready | TaskState::Rerun | TaskState::Running => {
                    if task.current().is_some_and(|current| current.worker.as_ref() == Some(worker)) {
                        return Ok(Vec::new());
                    }
                    Ok(vec![Event::AttemptClaimed { task: id, attempt, worker: worker.clone() }])
                }
                // Whoever claims offers the capability: the registry is only behind.
                TaskState::Errored if task.given_out().is_some() => {
                    Ok(vec![Event::AttemptClaimed { task: id, attempt, worker: worker.clone() }])
                }
                TaskState::Pending
                | TaskState::NeedsReview
                | TaskState::Completed
                | TaskState::Errored
                | TaskState::Failed
                | TaskState::Cancelled => Err(wrong_state(task, "a claim")),
            }
        }
    }
}

pub(super) fn ended(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    worker: &WorkerId,
    outcome: &Result<Finished, TaskError>,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let task = current_attempt(plan, id, attempt)?;
    if task.state != TaskState::Running {
        return Err(wrong_state(task, "an outcome"));
    }
    let finished = match outcome {
        Ok(finished) if !finished.is_empty => finished,
        Ok(finished) => {
            let error = TaskError {
                usage: finished.usage,
                models: finished.models.clone(),
                ..TaskError::new(ErrorKind::Other, "the result is empty")
            };
            return Ok(errored(plan, task, &error, now));
        }
        Err(error) if error.kind == ErrorKind::WrongParameters && may_wait_for_others(task) => {
            return Ok(stuck(plan, task, error));
        }
        Err(error) => return Ok(errored(plan, task, error, now)),
    };
    let asked = asked(plan, task, finished);
    let event = Event::AttemptFinished {
        task: id.clone(),
        attempt,
        worker: worker.clone(),
        at_sequence: finished.at_sequence,
        summary: finished.summary.chars().take(MAX_SUMMARY).collect(),
        is_detailed: finished.is_detailed,
        review: (asked != task.spec.review).then(|| asked.clone()),
        usage: finished.usage,
        models: finished.models.clone(),
    };
    if !asked.is_none() {
        return Ok(vec![event]);
    }
    Ok(with_consequences(plan, vec![event, Event::TaskAccepted { task: id.clone(), attempt }]))
}

/// Whether a task whose parameters a worker refused may wait for others, as it would have if the registry had known of it
/// before. Where worker and registry do not agree, that comes to an end.
fn may_wait_for_others(task: &Task) -> bool {
    let refused = |attempt: &&Attempt| matches!(&attempt.end, Some(AttemptEnd::Errored(error)) if error.kind == ErrorKind::WrongParameters);
    let so_far = task.attempts.iter().filter(refused).count();
    so_far + 1 < usize::try_from(task.spec.limits.max_attempts).unwrap_or(usize::MAX)
}

fn stuck(plan: &Plan, task: &Task, error: &TaskError) -> Vec<Event> {
    let (id, attempt) = (task.spec.id.clone(), task.attempt);
    let problem = on_the_plan(&error.message);
    let mut events = vec![
        Event::AttemptErrored { task: id.clone(), attempt, error: for_the_plan(error), retry_at: None },
        Event::TaskReopened { task: id.clone(), attempt: attempt + 1, ready: true, feedback: None },
        Event::ParametersWrong { task: id.clone(), problem: problem.clone() },
    ];
    if plan.has_planner() && plan.winding_down.is_none() {
        events.push(Event::OccasionRaised { occasion: Occasion::TaskStuck { task: id, problem } });
    }
    events
}

/// How a result is judged: as the task says, else as its capability does; and of results that are sampled, the others
/// by their checks alone.
fn asked(plan: &Plan, task: &Task, finished: &Finished) -> Review {
    let review = if task.spec.review.is_none() { &finished.review } else { &task.spec.review };
    match review {
        Review::Critic { checks, sample_percent: Some(percent), .. }
            if !is_sampled(plan.start.as_ref(), task, *percent) =>
        {
            match checks.as_slice() {
                [] => Review::None,
                _ => Review::Checks { checks: checks.clone() },
            }
        }
        review @ (Review::None | Review::Checks { .. } | Review::Critic { .. }) => review.clone(),
    }
}

/// Whether a result is among those that models judge. It follows from the run and the attempt, so that whoever decides
/// comes to the same: FNV-1a (64 bit) of the run's start in microseconds, the task's id and the attempt.
fn is_sampled(start: Option<&Start>, task: &Task, percent: u8) -> bool {
    let began = start.map_or(0, |start| start.at.as_microsecond());
    let bytes = began.to_le_bytes().into_iter().chain(task.spec.id.as_str().bytes());
    let hash = bytes.chain(task.attempt.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // The low bits of this hash follow the last byte closely; the high ones do not.
    (hash >> 32) % 100 < u64::from(percent)
}

/// The error without what its attempt had produced, and without more of its text than a person reads: both stay in the
/// journal.
fn for_the_plan(error: &TaskError) -> TaskError {
    TaskError { message: on_the_plan(&error.message), produced: None, ..error.clone() }
}

fn errored(plan: &Plan, task: &Task, error: &TaskError, now: Timestamp) -> Vec<Event> {
    let (id, attempt) = (task.spec.id.clone(), task.attempt);
    let retry_at = next_attempt_at(plan, task, error.kind.is_retryable(), now);
    let error = for_the_plan(error);
    let why = error.message.clone();
    let event = Event::AttemptErrored { task: id, attempt, error, retry_at };
    after_failed_attempt(plan, task, event, retry_at, &why)
}

pub(super) fn time_out(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    clock: Clock,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let task = current_attempt(plan, id, attempt)?;
    let waits_outside = matches!(task.errored, Some(ErroredFor::Capability | ErroredFor::Parameters));
    let can_run_out = match (task.state, clock) {
        (TaskState::Ready | TaskState::Rerun, Clock::QueueWait)
        | (TaskState::Running, Clock::RunTime | Clock::Silence) => true,
        (TaskState::Errored, Clock::QueueWait) => waits_outside,
        (
            TaskState::Pending
            | TaskState::Ready
            | TaskState::Running
            | TaskState::NeedsReview
            | TaskState::Completed
            | TaskState::Rerun
            | TaskState::Errored
            | TaskState::Failed
            | TaskState::Cancelled,
            _,
        ) => false,
    };
    if !can_run_out {
        return Err(wrong_state(task, "a time-out"));
    }
    // Where nobody offers the capability, or takes the parameters, waiting once more can't help.
    let retry_at = next_attempt_at(plan, task, task.state != TaskState::Errored, now);
    let usage = in_hand(plan, task);
    let event = Event::AttemptTimedOut { task: id.clone(), attempt, clock, retry_at, usage };
    let why = match (task.errored, &task.problem) {
        (Some(ErroredFor::Capability), _) => format!("nobody offers the capability {}", task.spec.capability),
        (Some(ErroredFor::Parameters), Some(problem)) => {
            format!("its parameters are not what {} takes: {problem}", task.spec.capability)
        }
        (Some(ErroredFor::Retry(_) | ErroredFor::Parameters) | None, _) => clock.to_string(),
    };
    Ok(after_failed_attempt(plan, task, event, retry_at, &why))
}

/// When the next attempt begins: attempts are left, another can help, and the run is not coming to its end (the final
/// task apart, for whose sake it still goes on).
fn next_attempt_at(plan: &Plan, task: &Task, is_retryable: bool, now: Timestamp) -> Option<Timestamp> {
    let is_wanted = plan.winding_down.is_none() || task.spec.is_final;
    (is_retryable && is_wanted && task.attempt < task.granted)
        .then(|| after(now, task.spec.limits.backoff_before(task.attempt + 1)))
}

fn after_failed_attempt(
    plan: &Plan,
    task: &Task,
    event: Event,
    retry_at: Option<Timestamp>,
    why: &str,
) -> Vec<Event> {
    if retry_at.is_some() {
        return vec![event];
    }
    let reason = match task.attempt {
        0 | 1 => why.to_owned(),
        attempts => format!("{attempts} attempts came to nothing; the last: {why}"),
    };
    with_consequences(plan, vec![event, Event::TaskFailed { task: task.spec.id.clone(), reason }])
}

pub(super) fn retry(plan: &Plan, id: &TaskId, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    let task = find(plan, id)?;
    match task.errored {
        Some(ErroredFor::Retry(at)) if at <= now => {
            Ok(vec![Event::TaskReady { task: id.clone(), attempt: task.attempt + 1 }])
        }
        Some(ErroredFor::Retry(at)) => Err(Refusal::NotDue(at)),
        Some(ErroredFor::Capability | ErroredFor::Parameters) | None => Err(wrong_state(task, "a retry")),
    }
}
