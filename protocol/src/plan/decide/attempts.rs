//! Attempts: claims, outcomes and clocks.
//!
//! Waits for models' providers, up to the run's provider timeout.
//!
//! # Invariants
//!
//! - I144: The criteria for the deliverable are checked in every result of the final task, with any kind of review.
//!   (`protocol/tests/rules/judgement.rs::criteria_of_the_run_are_added_to_the_review_of_the_final_task`)
//! - I65: A provider that is away costs no attempt and no run time; its waits are in the log, and a stopped worker returns
//!   waiting work at once. (`tests/tests/behaviours/providers.rs::runs_complete_after_an_outage_and_no_attempt_is_counted`,
//!   `tests/tests/behaviours/providers.rs::waiting_work_of_a_stopped_worker_continues_on_another_at_once`,
//!   `protocol/tests/rules/transcripts.rs::every_transcript_is_unchanged`)
//! - I66: A provider that stays away pauses the run, and the same attempts continue from their journals when it is resumed.
//!   (`tests/tests/behaviours/providers.rs::run_pauses_after_the_provider_timeout_and_resumes_in_the_same_attempt`,
//!   `crates/agent/tests/turn/outage.rs::an_open_breaker_does_not_prolong_the_wait_for_a_provider`,
//!   `tests/tests/first_command.rs::run_paused_for_its_provider_stays_so_when_its_cluster_has_stopped`)

use std::sync::Arc;

use jiff::Timestamp;

use super::super::spec::ReviewPolicy;
use super::super::state::{
    Attempt, AttemptEnd, ErroredTaskWait, Plan, PlannerTrigger, RunParameters, Task, TaskState,
};
use super::super::{
    AttemptClock, AttemptEvent, BudgetEvent, Event, JournalKey, PlanningEvent, ProviderEvent, Refusal,
    ResourceAmounts, TaskEvent, Work,
};
use super::reviews::ask_persons;
use super::turn::find_open_turn;
use super::wave::append_consequences_of_task_ends;
use super::{
    AttemptResult, find_task, find_task_with_attempt, reviews, timestamp_after, truncate_for_plan,
    usage_of_work_in_flight, wrong_state_refusal,
};
use crate::ids::{TaskId, WorkerId};
use crate::result::{Build, ErrorKind, MAX_SUMMARY, TaskError};
use crate::wait::{ProviderStatus, ProviderWait};

pub(super) fn handle_claim(
    plan: &Plan,
    work: &Work,
    worker: &WorkerId,
    build: Option<&Arc<Build>>,
) -> Result<Vec<Event>, Refusal> {
    match work {
        Work::Planning { turn, attempt } => {
            let (turn, attempt) = (*turn, *attempt);
            let current = find_open_turn(plan, turn, attempt)?;
            if current.worker.as_ref() == Some(worker) {
                return Ok(Vec::new());
            }
            Ok(vec![Event::Planning(PlanningEvent::Claimed { turn, attempt, worker: worker.clone() })])
        }
        // The verdict names the critic; a claim of a review changes nothing.
        Work::Review { task, attempt, review } => {
            reviews::check_review_number(reviews::find_task_under_review(plan, task, *attempt)?, *review)
                .map(|()| Vec::new())
        }
        Work::Task { task, attempt } => {
            let task = find_task_with_attempt(plan, task, *attempt)?;
            let claimed = || {
                vec![Event::Attempt(AttemptEvent::Claimed {
                    task: task.spec.id.clone(),
                    attempt: *attempt,
                    worker: worker.clone(),
                    build: build.cloned(),
                })]
            };
            match task.state() {
                TaskState::Ready | TaskState::Rerun | TaskState::Running => {
                    // An attempt that waits for a worker again may have had this one before.
                    let has_same_claimant = task.current_attempt().is_some_and(|current| {
                        current.worker.as_ref() == Some(worker) && current.build.as_ref() == build
                    });
                    if task.state() == TaskState::Running && has_same_claimant {
                        return Ok(Vec::new());
                    }
                    Ok(claimed())
                }
                // The claimant provides the capability: the registry is out of date.
                TaskState::Errored if task.dispatched_work().is_some() => Ok(claimed()),
                TaskState::Pending
                | TaskState::NeedsReview
                | TaskState::Completed
                | TaskState::Errored
                | TaskState::Failed
                | TaskState::Cancelled
                | TaskState::Waiting => Err(wrong_state_refusal(task, "claim ignored")),
            }
        }
    }
}

pub(super) fn handle_attempt_end(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    worker: &WorkerId,
    outcome: &Result<AttemptResult, TaskError>,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let task = find_task_with_attempt(plan, id, attempt)?;
    if task.state() != TaskState::Running {
        return Err(wrong_state_refusal(task, "outcome ignored"));
    }
    let finished = match outcome {
        Ok(finished) if !finished.is_empty => finished,
        Ok(finished) => {
            let error = TaskError {
                usage: finished.usage,
                models: finished.models.clone(),
                ..TaskError::new(ErrorKind::Other, "the result is empty")
            };
            return Ok(fail_attempt(plan, task, &error, now));
        }
        Err(error) if error.kind == ErrorKind::WrongParameters && may_wait_for_other_parameters(task) => {
            return Ok(wait_for_other_parameters(plan, task, error));
        }
        Err(error) => return Ok(fail_attempt(plan, task, error, now)),
    };
    let review = required_review(plan, task, finished);
    let event = Event::Attempt(AttemptEvent::Finished {
        task: id.clone(),
        attempt,
        worker: worker.clone(),
        at_sequence: finished.at_sequence,
        summary: finished.summary.chars().take(MAX_SUMMARY).collect(),
        is_detailed: finished.is_detailed,
        is_answered: finished.is_answered,
        review: (review != task.spec.review).then(|| Box::new(review.clone())),
        usage: finished.usage,
        models: finished.models.clone(),
    });
    match &review {
        ReviewPolicy::None => {}
        ReviewPolicy::Persons(persons) if persons.first.is_none() => {
            let summary: String = finished.summary.chars().take(MAX_SUMMARY).collect();
            return Ok(ask_persons(plan, task, vec![event], (persons, &summary, None)));
        }
        ReviewPolicy::Checks { .. } | ReviewPolicy::Critic { .. } | ReviewPolicy::Persons(_) => {
            return Ok(vec![event]);
        }
    }
    Ok(append_consequences_of_task_ends(
        plan,
        vec![event, Event::Task(TaskEvent::Accepted { task: id.clone(), attempt })],
    ))
}

/// `true` if a task whose parameters a worker rejected may wait for other parameters, as if the registry had rejected
/// them. Limited, because worker and registry may disagree.
fn may_wait_for_other_parameters(task: &Task) -> bool {
    // Nobody changes the parameters of a child: its parent can delegate another one.
    if task.spec.is_child() {
        return false;
    }
    let refused = |attempt: &&Attempt| matches!(&attempt.end, Some(AttemptEnd::Errored(error)) if error.kind == ErrorKind::WrongParameters);
    let so_far = task.attempts.iter().filter(refused).count();
    so_far + 1 < usize::try_from(task.spec.limits.max_attempts).unwrap_or(usize::MAX)
}

fn wait_for_other_parameters(plan: &Plan, task: &Task, error: &TaskError) -> Vec<Event> {
    let (id, attempt) = (task.spec.id.clone(), task.attempt);
    let problem = truncate_for_plan(&error.message);
    let mut events = vec![
        Event::Attempt(AttemptEvent::Errored {
            task: id.clone(),
            attempt,
            error: Box::new(strip_error_for_plan(error)),
            retry_at: None,
        }),
        Event::Task(TaskEvent::Reopened {
            task: id.clone(),
            attempt: attempt + 1,
            ready: true,
            feedback: None,
        }),
        Event::Task(TaskEvent::ParametersRejected { task: id.clone(), problem: problem.clone() }),
    ];
    if plan.has_planner() && plan.run.winding_down.is_none() {
        events.push(Event::Planning(PlanningEvent::TriggerRaised {
            trigger: PlannerTrigger::TaskStuck { task: id, problem },
        }));
    }
    events
}

/// Returns the review of a result: the task's own, or else the capability's. The persons of a capability judge its results also
/// after a task's own review, which a planner or an agent may have set. If reviews are sampled, results outside the sample only
/// run the checks, and no person judges them. The criteria for the deliverable apply to each result of the final task.
fn required_review(plan: &Plan, task: &Task, finished: &AttemptResult) -> ReviewPolicy {
    let criteria = plan.criteria_of_task(task);
    own_or_capability_review(plan, task, finished).with_criteria(criteria)
}

fn own_or_capability_review(plan: &Plan, task: &Task, finished: &AttemptResult) -> ReviewPolicy {
    let review = match (&task.spec.review, &finished.review) {
        (ReviewPolicy::None, of_capability) => of_capability.clone(),
        (
            own @ (ReviewPolicy::Checks { .. } | ReviewPolicy::Critic { .. }),
            ReviewPolicy::Persons(persons),
        ) => ReviewPolicy::Persons(Box::new(persons.after(own.clone()))),
        (own, _) => own.clone(),
    };
    match review.by_critic() {
        ReviewPolicy::Critic { checks, sample_percent: Some(percent), .. }
            if !is_sampled_for_review(plan.run.start.as_ref(), task, *percent) =>
        {
            match checks.as_slice() {
                [] => ReviewPolicy::None,
                _ => ReviewPolicy::Checks { checks: checks.clone() },
            }
        }
        ReviewPolicy::None
        | ReviewPolicy::Checks { .. }
        | ReviewPolicy::Critic { .. }
        | ReviewPolicy::Persons(_) => review,
    }
}

/// `true` if a result is in the sample that models judge. Deterministic, so that every supervisor decides the same:
/// FNV-1a (64 bit) of the run's start in microseconds, the task's id and the attempt.
fn is_sampled_for_review(start: Option<&RunParameters>, task: &Task, percent: u8) -> bool {
    let began = start.map_or(0, |start| start.at.as_microsecond());
    let bytes = began.to_le_bytes().into_iter().chain(task.spec.id.as_str().bytes());
    let hash = bytes.chain(task.attempt.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // The low bits of this hash depend mostly on the last byte; the high ones do not.
    (hash >> 32) % 100 < u64::from(percent)
}

/// Returns the error without the output of its attempt and with a truncated message; both are in the journal.
fn strip_error_for_plan(error: &TaskError) -> TaskError {
    TaskError { message: truncate_for_plan(&error.message), produced: None, ..error.clone() }
}

/// Keeps the beginning of the output of a child's failed attempt: its parent gets it.
fn keep_output_for_parent(task: &Task, error: &TaskError) -> Option<String> {
    let produced = error.produced.as_deref().filter(|_| task.spec.is_child())?;
    Some(truncate_for_plan(produced))
}

fn fail_attempt(plan: &Plan, task: &Task, error: &TaskError, now: Timestamp) -> Vec<Event> {
    let (id, attempt) = (task.spec.id.clone(), task.attempt);
    let retry_at = next_attempt_time(plan, task, error.kind.is_retryable(), now);
    let error = TaskError { produced: keep_output_for_parent(task, error), ..strip_error_for_plan(error) };
    let why = error.message.clone();
    let event = Event::Attempt(AttemptEvent::Errored { task: id, attempt, error: Box::new(error), retry_at });
    fail_task_without_retry(plan, task, event, retry_at, &why)
}

/// Fails a parked attempt and its task, for a reason that another attempt would not change.
pub(super) fn fail_parked_attempt(plan: &Plan, task: &Task, why: &str) -> Vec<Event> {
    let usage = usage_of_work_in_flight(plan, task);
    let error = strip_error_for_plan(&TaskError { usage, ..TaskError::new(ErrorKind::Other, why) });
    let (id, attempt) = (task.spec.id.clone(), task.attempt);
    let event =
        Event::Attempt(AttemptEvent::Errored { task: id, attempt, error: Box::new(error), retry_at: None });
    fail_task_without_retry(plan, task, event, None, why)
}

pub(super) fn time_out_attempt(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    clock: AttemptClock,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let task = find_task_with_attempt(plan, id, attempt)?;
    let waits_outside = matches!(
        task.errored_wait(),
        Some(ErroredTaskWait::Capability { .. } | ErroredTaskWait::Parameters { .. })
    );
    let can_run_out = match (task.state(), clock) {
        (TaskState::Ready | TaskState::Rerun, AttemptClock::QueueWait) | (TaskState::Running, _) => true,
        (TaskState::Errored, AttemptClock::QueueWait) => waits_outside,
        (
            TaskState::Pending
            | TaskState::Ready
            | TaskState::NeedsReview
            | TaskState::Completed
            | TaskState::Rerun
            | TaskState::Errored
            | TaskState::Failed
            | TaskState::Cancelled
            | TaskState::Waiting,
            _,
        ) => false,
    };
    if !can_run_out {
        return Err(wrong_state_refusal(task, "timeout ignored"));
    }
    // While no worker provides the capability, or accepts the parameters, another wait can't help.
    let retry_at = next_attempt_time(plan, task, task.state() != TaskState::Errored, now);
    let usage = usage_of_work_in_flight(plan, task);
    let event = Event::Attempt(AttemptEvent::TimedOut { task: id.clone(), attempt, clock, retry_at, usage });
    let why = match (task.errored_wait(), &task.parameter_problem()) {
        (Some(ErroredTaskWait::Capability { .. }), _) => {
            format!("no worker provides {}", task.spec.capability)
        }
        (Some(ErroredTaskWait::Parameters { .. }), Some(problem)) => {
            format!("{} rejects its parameters: {problem}", task.spec.capability)
        }
        (Some(ErroredTaskWait::Retry(_) | ErroredTaskWait::Parameters { .. }) | None, _) => clock.to_string(),
    };
    Ok(fail_task_without_retry(plan, task, event, retry_at, &why))
}

/// Returns when the next attempt starts; `None` if no attempts are left, another one can't help, or the run is winding
/// down. The final task is retried even while the run is winding down.
fn next_attempt_time(plan: &Plan, task: &Task, is_retryable: bool, now: Timestamp) -> Option<Timestamp> {
    let is_wanted = plan.run.winding_down.is_none() || task.spec.is_final;
    (is_retryable && is_wanted && task.attempt < task.granted)
        .then(|| timestamp_after(now, task.spec.limits.backoff_before_attempt(task.attempt + 1)))
}

fn fail_task_without_retry(
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
        attempts => format!("failed after {attempts} attempts; the last error: {why}"),
    };
    append_consequences_of_task_ends(
        plan,
        vec![event, Event::Task(TaskEvent::Failed { task: task.spec.id.clone(), reason })],
    )
}

pub(super) fn retry_attempt(plan: &Plan, id: &TaskId, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    let task = find_task(plan, id)?;
    match task.errored_wait() {
        Some(ErroredTaskWait::Retry(at)) if *at <= now => {
            Ok(vec![Event::Task(TaskEvent::Ready { task: id.clone(), attempt: task.attempt + 1 })])
        }
        Some(ErroredTaskWait::Retry(at)) => Err(Refusal::NotDue(*at)),
        Some(ErroredTaskWait::Capability { .. } | ErroredTaskWait::Parameters { .. }) | None => {
            Err(wrong_state_refusal(task, "retry ignored"))
        }
    }
}

/// Gives a dispatched task another attempt, which has a journal of its own. The attempt with the stale journal does not
/// count: no worker could ever start it.
pub(super) fn replace_attempt_with_stale_journal(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
) -> Result<Vec<Event>, Refusal> {
    let task = find_task_with_attempt(plan, id, attempt)?;
    if !matches!(task.state(), TaskState::Ready | TaskState::Rerun) {
        return Err(wrong_state_refusal(task, "stale journal ignored"));
    }
    Ok(vec![Event::Task(TaskEvent::Reopened {
        task: id.clone(),
        attempt: attempt + 1,
        ready: true,
        feedback: None,
    })])
}

pub(super) fn handle_status(
    plan: &Plan,
    journal: &JournalKey,
    status: &ProviderStatus,
) -> Result<Vec<Event>, Refusal> {
    let current = find_current_wait(plan, journal)?;
    let journal = journal.clone();
    let event = match status {
        // Repeated as a heartbeat.
        ProviderStatus::Waiting(wait) if current == Some(wait) => return Ok(Vec::new()),
        ProviderStatus::Waiting(wait) => ProviderEvent::Awaited { journal, wait: truncate_error(wait) },
        ProviderStatus::Recovered if current.is_none() => return Ok(Vec::new()),
        ProviderStatus::Recovered => ProviderEvent::Recovered { journal },
        ProviderStatus::GivenUp(wait) => ProviderEvent::GivenUp { journal, wait: truncate_error(wait) },
    };
    Ok(vec![Event::Provider(event)])
}

/// Handles work that was returned because its reservation does not pay for its first request.
pub(super) fn handle_small_reservation(
    plan: &Plan,
    journal: &JournalKey,
    needs: ResourceAmounts,
) -> Result<Vec<Event>, Refusal> {
    find_current_wait(plan, journal)?;
    Ok(vec![Event::Budget(BudgetEvent::TooSmall { journal: journal.clone(), needs })])
}

fn truncate_error(wait: &ProviderWait) -> ProviderWait {
    ProviderWait { error: crate::plan::decide::truncate_for_plan(&wait.error), ..wait.clone() }
}

/// Returns the wait that the plan knows of work in flight.
fn find_current_wait<'a>(plan: &'a Plan, journal: &JournalKey) -> Result<Option<&'a ProviderWait>, Refusal> {
    match journal {
        JournalKey::Task(task, attempt) => {
            let task = find_task_with_attempt(plan, task, *attempt)?;
            match task.state() {
                TaskState::Running => Ok(task.uncounted.current_wait()),
                TaskState::Pending
                | TaskState::Ready
                | TaskState::NeedsReview
                | TaskState::Completed
                | TaskState::Rerun
                | TaskState::Errored
                | TaskState::Failed
                | TaskState::Cancelled
                | TaskState::Waiting => Err(wrong_state_refusal(task, "provider status ignored")),
            }
        }
        JournalKey::Review(task, attempt) => {
            let task = reviews::find_task_under_review(plan, task, *attempt)?;
            match task.review_retry_at() {
                None => Ok(task.uncounted.current_wait()),
                Some(_) => Err(wrong_state_refusal(task, "this review has ended")),
            }
        }
        JournalKey::Planning(turn, attempt) => {
            let current = find_open_turn(plan, *turn, *attempt)?;
            Ok(current.uncounted.current_wait())
        }
    }
}
