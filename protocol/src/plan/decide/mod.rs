//! The rules. [`decide`] turns a fact, a command or the passing of time into events, or refuses it. The table of
//! transitions is in [`super`].
//!
//! | file | rules of |
//! |---|---|
//! | `begin` | the submission of a run, and waits before its first task |
//! | `children` | delegated tasks: adding them, their ends, and the end of their parent |
//! | `planning` | a planning turn, from the request to the valid edits of its answer |
//! | `edits` | edits of a plan, by the planner or a user |
//! | `attempts` | claims, outcomes and clocks of attempts, and waits for models' providers |
//! | `reviews` | verdicts of critics, and reviews by persons |
//! | `waits` | waits of parked attempts, starts that wait, and questions that nobody has to answer |
//! | `wave` | consequences of a task's end for other tasks |
//! | `turn` | whether the planner gets a turn, and tasks that it plans again although they were lost |
//! | `run_end` | the approval of the plan by a person, the end of the run, and larger limits with which it continues |
//! | `steering` | commands and answers of users |
//! | `registry` | changes of the capability registry |
//! | `budget` | reservations |
//! | `winding_down` | the limits of the run as a whole, and winding it down |
//! | `settle` | the next planning turn, and the end of the run |

mod attempts;
mod begin;
mod budget;
mod children;
mod edits;
mod planning;
mod registry;
mod reviews;
mod run_end;
mod settle;
mod steering;
mod turn;
mod waits;
mod wave;
mod winding_down;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::attendance::StoppedClocks;
use super::cluster::CapabilityRegistry;
use super::edit::CommandAction;
use super::event::truncate_to_micros;
use super::hold::HoldChange;
use super::spec::{ReviewCheck, ReviewPolicy, Submission, TaskSpec};
use super::state::{Plan, RunEnd, Task, TaskState};
use super::{
    AttemptClock, Event, JournalKey, OverdueInput, RETIREMENT, Refusal, ResourceAmounts, RunCommand,
    RunEvent, Work,
};
use crate::child::Delegation;
use crate::ids::{TaskId, WorkerId};
use crate::question::RunAnswer;
use crate::result::{Build, ErrorKind, MAX_MESSAGE, ModelUsage, PlanProposal, TaskError, Usage, Verdict};
use crate::wait::{ProviderStatus, Wait};

pub use begin::{find_criteria_problem, find_earlier_runs_problem};
pub(super) use edits::{EditAuthor, decide_edit};
pub use run_end::{suggest_larger_limits, tasks_without_budget};

/// The maximum number of failed attempts at a planning turn before the planner counts as unavailable.
pub const MAX_PLANNING_ATTEMPTS: u32 = 3;
/// The maximum number of failed reviews of one attempt before the task fails.
pub const MAX_REVIEWS: u32 = 3;
/// The maximum number of planning turns in a row without progress before the planner is no longer called.
pub const MAX_IDLE_TURNS: u32 = 3;

/// The error of work whose journal has entries from before its dispatch.
const STALE_JOURNAL: &str = "its journal has entries from before it was dispatched: the server has lost messages, or \
                             somebody forged them";

#[derive(Debug, Clone, Copy)]
pub enum DecisionInput<'a> {
    /// A message in the log.
    Fact(&'a Fact),
    /// The backoff of a task has ended.
    Retry(&'a TaskId),
    /// The time of a wait of a parked attempt has come.
    WaitTime(&'a TaskId),
    /// The backoff of a review has ended.
    RetryReview(&'a TaskId),
    /// The backoff of the planning turn has ended.
    RetryPlanning,
    /// A clock of a piece of work ran out.
    Clock(&'a Work, AttemptClock),
    /// The journal of dispatched work has entries from before its dispatch: a server lost messages, or somebody forged
    /// them. No worker can do the work with this journal.
    StaleJournal(&'a Work),
    /// A worker, or every supervisor, was absent.
    Absence(&'a StoppedClocks),
    /// The run's time limit, or its soft limit, has passed.
    WallTime,
    /// A run that has ended was not resumed in time.
    Retire,
    /// A hold of the run begins or ends.
    Hold(&'a HoldChange),
    /// The capabilities of the cluster. Shortly after the start of the run, an unknown capability may still be registered.
    Cluster(&'a CapabilityRegistry, UnknownCapabilityStatus),
    /// The consequences of the previous input: work to dispatch, planning turns to start, the end of the run. Repeated
    /// until it produces no more events.
    Settle,
}

impl OverdueInput {
    /// Returns the input to decide on.
    pub fn input(&self) -> DecisionInput<'_> {
        match self {
            Self::Retry(task) => DecisionInput::Retry(task),
            Self::WaitTime(task) => DecisionInput::WaitTime(task),
            Self::RetryReview(task) => DecisionInput::RetryReview(task),
            Self::RetryPlanning => DecisionInput::RetryPlanning,
            Self::Clock(work, clock) => DecisionInput::Clock(work, *clock),
            Self::Absence(stopped) => DecisionInput::Absence(stopped),
            Self::WallTime => DecisionInput::WallTime,
            Self::Retire => DecisionInput::Retire,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownCapabilityStatus {
    /// It counts as missing.
    Missing,
    /// It may still be registered.
    MayRegisterSoon,
}

/// A message of a client, worker or critic, as far as the plan needs it.
#[derive(Debug, Clone, PartialEq)]
pub enum Fact {
    /// A client submitted the run.
    Submitted(Box<Submission>),
    /// A worker claimed a piece of work; the last field is its software, if it named it.
    Claimed(Work, WorkerId, Option<Arc<Build>>),
    /// An attempt at a planning turn ended.
    Planned {
        turn: u32,
        attempt: u32,
        /// The proposal, or the error.
        outcome: Result<PlanningResult, TaskError>,
    },
    /// A worker's attempt ended.
    Ended { task: TaskId, attempt: u32, worker: WorkerId, outcome: Result<AttemptResult, TaskError> },
    /// A worker parked its attempt.
    Parked {
        task: TaskId,
        attempt: u32,
        worker: WorkerId,
        waits: Vec<Wait>,
        /// The children that the waits are for and that are not in the plan yet.
        children: Vec<TaskSpec>,
    },
    /// A running attempt changed its children.
    Delegated {
        task: TaskId,
        attempt: u32,
        worker: WorkerId,
        /// The changes.
        delegation: Delegation,
    },
    /// A critic's review ended.
    Reviewed {
        task: TaskId,
        /// The attempt under review.
        attempt: u32,
        /// The number of this try at the review, from 1.
        review: u32,
        critic: WorkerId,
        outcome: Result<Verdict, TaskError>,
    },
    /// The wait of claimed work for its provider has changed.
    Provider(JournalKey, ProviderStatus),
    /// The reservation of claimed work does not pay for its first request, which needs these amounts.
    ReservationTooSmall(JournalKey, ResourceAmounts),
    /// A user's command.
    Control(RunCommand),
    /// A person's answer to a question.
    Answered(RunAnswer),
}

impl Fact {
    /// Returns the task, the attempt and the worker, if it reports the end or a wait of an attempt.
    pub fn reported_attempt(&self) -> Option<(&TaskId, u32, &WorkerId)> {
        match self {
            Self::Ended { task, attempt, worker, .. } | Self::Parked { task, attempt, worker, .. } => {
                Some((task, *attempt, worker))
            }
            Self::Submitted(_)
            | Self::Claimed(..)
            | Self::Planned { .. }
            | Self::Delegated { .. }
            | Self::Reviewed { .. }
            | Self::Provider(..)
            | Self::ReservationTooSmall(..)
            | Self::Control(_)
            | Self::Answered(_) => None,
        }
    }
}

/// A result, as far as the plan needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptResult {
    /// The sequence of its journal entry in the lane.
    pub at_sequence: u64,
    pub summary: String,
    /// `true` if it has no usable content.
    pub is_empty: bool,
    /// `true` if it has text beyond the summary.
    pub is_detailed: bool,
    /// `false` if it does not answer its question.
    pub is_answered: bool,
    /// The review that its capability declares, for tasks that declare none.
    pub review: ReviewPolicy,
    /// The usage of the attempt.
    pub usage: Usage,
    /// The same by model.
    pub models: ModelUsage,
}

/// The outcome of a planning turn.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanningResult {
    pub proposal: PlanProposal,
    /// The usage of the attempt.
    pub usage: Usage,
    /// The same by model.
    pub models: ModelUsage,
}

impl Fact {
    /// `true` if a user cancels the whole run.
    pub fn is_run_cancellation(&self) -> bool {
        matches!(self, Self::Control(RunCommand { control: CommandAction::CancelRun { .. }, .. }))
    }

    /// Returns the work whose end this fact reports, if it reports one.
    pub fn ended_work(&self) -> Option<Work> {
        match self {
            Self::Ended { task, attempt, .. } => Some(Work::Task { task: task.clone(), attempt: *attempt }),
            Self::Reviewed { task, attempt, review, .. } => {
                Some(Work::Review { task: task.clone(), attempt: *attempt, review: *review })
            }
            Self::Planned { turn, attempt, .. } => Some(Work::Planning { turn: *turn, attempt: *attempt }),
            Self::Submitted(_)
            | Self::Claimed(..)
            | Self::Parked { .. }
            | Self::Delegated { .. }
            | Self::Control(_)
            | Self::Answered(_)
            | Self::Provider(..)
            | Self::ReservationTooSmall(..) => None,
        }
    }
}

/// Decides on an input. Pure: the same plan, input and time give the same events. The caller logs the events, applies
/// them, and asks [`super::due`] for the effects.
pub fn decide(plan: &Plan, input: &DecisionInput<'_>, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    if let DecisionInput::Fact(Fact::Submitted(submission)) = input {
        return begin::start_run(plan, submission);
    }
    if let Some(end) = &plan.run.end {
        return decide_after_end(plan, input, end, now);
    }
    if plan.run.start.is_none() {
        return Err(Refusal::NotSubmitted);
    }
    match input {
        DecisionInput::Fact(fact) => decide_fact(plan, fact, now),
        DecisionInput::Retry(task) => attempts::retry_attempt(plan, task, now),
        DecisionInput::WaitTime(task) => waits::end_waits_by_time(plan, task, now),
        DecisionInput::RetryReview(task) => reviews::retry_review(plan, task, now),
        DecisionInput::RetryPlanning => planning::retry_turn(plan, now),
        DecisionInput::Absence(stopped) => {
            let event = || Event::Run(RunEvent::ClocksStopped(stopped.in_micros()));
            Ok(plan.has_counted(stopped).then(event).into_iter().collect())
        }
        DecisionInput::Clock(Work::Task { task, attempt }, clock) => {
            attempts::time_out_attempt(plan, task, *attempt, *clock, now)
        }
        DecisionInput::Clock(Work::Review { task, attempt, review }, clock) => {
            reviews::time_out_review(plan, task, *attempt, *review, *clock, now)
        }
        DecisionInput::Clock(Work::Planning { turn, attempt }, clock) => {
            planning::time_out_turn(plan, *turn, *attempt, *clock, now)
        }
        DecisionInput::StaleJournal(Work::Task { task, attempt }) => {
            attempts::replace_attempt_with_stale_journal(plan, task, *attempt)
        }
        DecisionInput::StaleJournal(Work::Review { task, attempt, review }) => {
            reviews::replace_review_with_stale_journal(plan, task, *attempt, *review, now)
        }
        DecisionInput::StaleJournal(Work::Planning { turn, attempt }) => {
            planning::replace_attempt_with_stale_journal(plan, *turn, *attempt, now)
        }
        DecisionInput::WallTime => winding_down::handle_time_limit(plan, now),
        DecisionInput::Retire => Err(Refusal::WrongMoment("the run has not ended".into())),
        DecisionInput::Hold(change) => begin::change_hold(plan, change),
        DecisionInput::Cluster(cluster, unknown_status) => {
            Ok(registry::check_tasks_against_registry(plan, cluster, *unknown_status))
        }
        DecisionInput::Settle => Ok(settle::settle_plan(plan, now)),
    }
}

/// Decides on an input of a run that has ended.
fn decide_after_end(
    plan: &Plan,
    input: &DecisionInput<'_>,
    end: &RunEnd,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    match input {
        DecisionInput::Fact(Fact::Control(command)) => steering::continue_ended_run(plan, command, end, now),
        DecisionInput::Retire if end.is_resumable => retire_run(end, now),
        DecisionInput::Fact(_)
        | DecisionInput::Retry(_)
        | DecisionInput::WaitTime(_)
        | DecisionInput::RetryReview(_)
        | DecisionInput::RetryPlanning
        | DecisionInput::Clock(..)
        | DecisionInput::StaleJournal(_)
        | DecisionInput::Absence(_)
        | DecisionInput::WallTime
        | DecisionInput::Retire
        | DecisionInput::Hold(_)
        | DecisionInput::Cluster(..)
        | DecisionInput::Settle => Err(Refusal::RunAlreadyEnded(end.reason)),
    }
}

fn retire_run(end: &RunEnd, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    let at = end.at.saturating_add(RETIREMENT).unwrap_or(Timestamp::MAX);
    if now < at { Err(Refusal::NotDue(at)) } else { Ok(vec![Event::Run(RunEvent::Retired)]) }
}

fn decide_fact(plan: &Plan, fact: &Fact, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    match fact {
        Fact::Submitted(submission) => begin::start_run(plan, submission),
        Fact::Claimed(work, worker, build) => attempts::handle_claim(plan, work, worker, build.as_ref()),
        Fact::Planned { turn, attempt, outcome } => {
            planning::handle_turn_end(plan, *turn, *attempt, outcome, now)
        }
        Fact::Ended { task, attempt, worker, outcome } => {
            attempts::handle_attempt_end(plan, task, *attempt, worker, outcome, now)
        }
        Fact::Reviewed { task, attempt, review, critic, outcome } => {
            reviews::handle_review_end(plan, task, *attempt, *review, critic, outcome, now)
        }
        Fact::Parked { task, attempt, worker, waits, children } => {
            waits::handle_parked(plan, task, *attempt, worker, (waits, children), now)
        }
        Fact::Delegated { task, attempt, worker: _, delegation } => {
            children::handle_delegation(plan, task, *attempt, delegation)
        }
        Fact::Provider(journal, status) => attempts::handle_status(plan, journal, status),
        Fact::ReservationTooSmall(journal, needs) => {
            attempts::handle_small_reservation(plan, journal, *needs)
        }
        Fact::Control(command) => steering::handle_command(plan, command),
        Fact::Answered(answer) => steering::handle_answer(plan, answer),
    }
}

// ---- shared

fn find_task<'a>(plan: &'a Plan, id: &TaskId) -> Result<&'a Task, Refusal> {
    plan.task(id).ok_or_else(|| Refusal::UnknownTask(id.clone()))
}

fn find_task_with_attempt<'a>(plan: &'a Plan, id: &TaskId, attempt: u32) -> Result<&'a Task, Refusal> {
    let task = find_task(plan, id)?;
    if task.attempt == attempt {
        Ok(task)
    } else {
        Err(Refusal::NotCurrentAttempt { task: id.clone(), attempt, current: task.attempt })
    }
}

fn wrong_state_refusal(task: &Task, what: &str) -> Refusal {
    Refusal::WrongState { task: task.spec.id.clone(), state: task.state(), what: what.into() }
}

fn timestamp_after(now: Timestamp, wait: std::time::Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    truncate_to_micros(now.saturating_add(wait).unwrap_or(Timestamp::MAX))
}

/// Truncates an error message to the length that the plan keeps; the whole text is in the journal.
fn truncate_for_plan(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).collect()
}

fn timeout_error(clock: AttemptClock, of: &str) -> TaskError {
    TaskError::new(ErrorKind::Other, format!("{of}{clock}"))
}

/// The usage to count for work of a task that is given up while a worker has it: the actual usage is unknown, so all that
/// was reserved.
fn usage_of_work_in_flight(plan: &Plan, task: &Task) -> Usage {
    match task.state() {
        TaskState::Running | TaskState::NeedsReview | TaskState::Waiting => {
            usage_of_reserved_work(plan, task)
        }
        TaskState::Ready if task.is_woken() => usage_of_reserved_work(plan, task),
        TaskState::Pending
        | TaskState::Ready
        | TaskState::Completed
        | TaskState::Rerun
        | TaskState::Errored
        | TaskState::Failed
        | TaskState::Cancelled => Usage::default(),
    }
}

/// The reservation of the work of a task, without what its children have used and reserved: that came out of it.
fn usage_of_reserved_work(plan: &Plan, task: &Task) -> Usage {
    let reserved = task.reserved_work().and_then(|work| plan.budget.reserved.amounts_of_work(&work));
    let mut left = reserved.unwrap_or_default();
    let of_children = children::usage_of_children(plan, task);
    for (resource, amount) in reserved.unwrap_or_default().iter() {
        left.set(resource, Some(amount.saturating_sub(resource.amount_used(&of_children))));
    }
    left.as_usage()
}

/// The usage to count for work that is given up while a worker has it.
fn reserved_amounts_as_usage(plan: &Plan, work: &Work) -> Usage {
    plan.budget.reserved.amounts_of_work(work).map(|amounts| amounts.as_usage()).unwrap_or_default()
}

/// `true` if any work of the plan is in flight or waits for something outside of the plan.
fn has_work_in_progress(plan: &Plan) -> bool {
    plan.open_task_count() > plan.task_count_in_state(TaskState::Pending)
}

/// Rejects checks that run programs: only users and capabilities may choose programs, because a planner may follow
/// instructions in text that it has read.
fn refuse_program_checks(review: &ReviewPolicy) -> Result<(), Refusal> {
    let checks = match review.by_critic() {
        ReviewPolicy::None | ReviewPolicy::Persons(_) => &[][..],
        ReviewPolicy::Checks { checks } | ReviewPolicy::Critic { checks, .. } => checks,
    };
    if checks.iter().any(|check| matches!(check, ReviewCheck::Command { .. })) {
        return Err(Refusal::Unusable(
            "a planner can't request a check that runs a program; use another check".into(),
        ));
    }
    Ok(())
}
