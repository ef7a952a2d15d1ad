//! All rules. [`decide`] says what a fact, a command or the passing of time means for a run: the events it makes, or
//! why it makes none. The table of moves is in [`super`].
//!
//! | file | rules of |
//! |---|---|
//! | `begin` | a run that is handed in |
//! | `planning` | a planner's turn, from the question to what of its answer holds |
//! | `edits` | one change of a plan, whoever wants it |
//! | `attempts` | claims, outcomes and clocks of attempts |
//! | `reviews` | verdicts |
//! | `wave` | what follows for other tasks from a task's end |
//! | `steering` | what users command |
//! | `registry` | what the cluster can do |
//! | `budget` | reservations, and what happens when there is nothing left |
//! | `settle` | whom to ask next, and the end |

mod attempts;
mod begin;
mod budget;
mod edits;
mod planning;
mod registry;
mod reviews;
mod settle;
mod steering;
mod wave;

use jiff::{SignedDuration, Timestamp};

use super::cluster::Cluster;
use super::event::whole_micros;
use super::spec::{Review, Submission};
use super::state::{End, Plan, Task, TaskState};
use super::{Clock, Command, Event, RETIREMENT, Refusal, Work};
use crate::ids::{TaskId, WorkerId};
use crate::result::{ErrorKind, MAX_MESSAGE, ModelUsage, Proposal, TaskError, Usage, Verdict};

pub(super) use edits::{By, edit};

/// How often the planner may come to nothing at one turn before it is asked no more.
pub const MAX_PLANNING_ATTEMPTS: u32 = 3;
/// How often the review of one attempt may come to nothing before the task fails.
pub const MAX_REVIEWS: u32 = 3;
/// How many turns of the planner in a row may bring the run nowhere before it is asked no more.
pub const MAX_IDLE_TURNS: u32 = 3;

/// What a decision can be asked on.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// Somebody wrote to the log.
    Fact(&'a Fact),
    /// The backoff of a task is over.
    Retry(&'a TaskId),
    /// The backoff of a review is over.
    RetryReview(&'a TaskId),
    /// The backoff of the planner's turn is over.
    RetryPlanning,
    /// A clock of a piece of work ran out.
    Clock(&'a Work, Clock),
    /// The time that the run may take is over, or the soft part of it.
    WallTime,
    /// A run that ended was not gone on with for long enough.
    Retire,
    /// This is what the cluster can do; that something is missing may be said already, or everybody is just starting.
    Cluster(&'a Cluster, MayBeMissing),
    /// Everything else is decided: who is to be asked, what may be given out, has the run come to its end? To be asked
    /// again until it says nothing more.
    Settle,
}

/// Whether a capability that is not known is missing, or may only not have been heard of yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MayBeMissing {
    /// It is missing.
    Yes,
    /// It may still come.
    NotYet,
}

/// What clients, workers and critics have written, as far as it matters to the plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Fact {
    /// A client handed the run in.
    Submitted(Box<Submission>),
    /// A worker claimed a piece of work.
    Claimed(Work, WorkerId),
    /// A planner's attempt ended.
    Planned {
        /// The turn.
        turn: u32,
        /// The attempt.
        attempt: u32,
        /// What it proposes, and what that took; or why it came to nothing.
        outcome: Result<Planned, TaskError>,
    },
    /// A worker's attempt ended.
    Ended {
        /// The task.
        task: TaskId,
        /// The attempt.
        attempt: u32,
        /// Who worked on it.
        worker: WorkerId,
        /// What it brought.
        outcome: Result<Finished, TaskError>,
    },
    /// A critic's review ended.
    Reviewed {
        /// The task.
        task: TaskId,
        /// The attempt under review.
        attempt: u32,
        /// Which try at the review this was.
        review: u32,
        /// Who judged.
        critic: WorkerId,
        /// The judgement, or why there is none.
        outcome: Result<Verdict, TaskError>,
    },
    /// A user steers.
    Control(Command),
}

/// A result, as far as the plan needs to know it.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Where it is: a sequence of the lane.
    pub at_sequence: u64,
    /// The result in a sentence.
    pub summary: String,
    /// Whether there is nothing in it.
    pub is_empty: bool,
    /// Whether there is text in it beyond the summary.
    pub is_detailed: bool,
    /// How its capability wants it judged where the task does not say.
    pub review: Review,
    /// What it took.
    pub usage: Usage,
    /// The same by model.
    pub models: ModelUsage,
}

/// What a planner's turn came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// What it wants.
    pub proposal: Proposal,
    /// What it took.
    pub usage: Usage,
    /// The same by model.
    pub models: ModelUsage,
}

/// Decides. Pure: the same plan, input and time give the same events. The caller logs them, applies them, and asks
/// [`super::due`] what to do.
///
/// # Errors
/// Why the input changes nothing.
pub fn decide(plan: &Plan, input: &Input<'_>, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    if let Input::Fact(Fact::Submitted(submission)) = input {
        return begin::submit(plan, submission);
    }
    if let Some(end) = &plan.end {
        return match input {
            Input::Fact(Fact::Control(command)) if end.is_resumable => steering::reopen(plan, command, end),
            Input::Retire if end.is_resumable => retire(end, now),
            Input::Fact(_)
            | Input::Retry(_)
            | Input::RetryReview(_)
            | Input::RetryPlanning
            | Input::Clock(..)
            | Input::WallTime
            | Input::Retire
            | Input::Cluster(..)
            | Input::Settle => Err(Refusal::RunAlreadyEnded(end.reason)),
        };
    }
    if plan.start.is_none() {
        return Err(Refusal::NotSubmitted);
    }
    match input {
        Input::Fact(fact) => on_fact(plan, fact, now),
        Input::Retry(task) => attempts::retry(plan, task, now),
        Input::RetryReview(task) => reviews::retry(plan, task, now),
        Input::RetryPlanning => planning::retry(plan, now),
        Input::Clock(Work::Task { task, attempt }, clock) => {
            attempts::time_out(plan, task, *attempt, *clock, now)
        }
        Input::Clock(Work::Review { task, attempt, review }, clock) => {
            reviews::time_out(plan, task, *attempt, *review, *clock, now)
        }
        Input::Clock(Work::Planning { turn, attempt }, clock) => {
            planning::time_out(plan, *turn, *attempt, *clock, now)
        }
        Input::WallTime => budget::wall_time(plan, now),
        Input::Retire => Err(Refusal::WrongMoment("the run has not ended".into())),
        Input::Cluster(cluster, may_be_missing) => Ok(registry::learn(plan, cluster, *may_be_missing)),
        Input::Settle => Ok(settle::settle(plan, now)),
    }
}

fn retire(end: &End, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    let at = end.at.saturating_add(RETIREMENT).unwrap_or(Timestamp::MAX);
    if now < at { Err(Refusal::NotDue(at)) } else { Ok(vec![Event::RunRetired]) }
}

fn on_fact(plan: &Plan, fact: &Fact, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    match fact {
        Fact::Submitted(submission) => begin::submit(plan, submission),
        Fact::Claimed(work, worker) => attempts::claimed(plan, work, worker),
        Fact::Planned { turn, attempt, outcome } => planning::planned(plan, *turn, *attempt, outcome, now),
        Fact::Ended { task, attempt, worker, outcome } => {
            attempts::ended(plan, task, *attempt, worker, outcome, now)
        }
        Fact::Reviewed { task, attempt, review, critic, outcome } => {
            reviews::reviewed(plan, task, *attempt, *review, critic, outcome, now)
        }
        Fact::Control(command) => steering::command(plan, command),
    }
}

// ---- shared

fn find<'a>(plan: &'a Plan, id: &TaskId) -> Result<&'a Task, Refusal> {
    plan.task(id).ok_or_else(|| Refusal::UnknownTask(id.clone()))
}

fn current_attempt<'a>(plan: &'a Plan, id: &TaskId, attempt: u32) -> Result<&'a Task, Refusal> {
    let task = find(plan, id)?;
    if task.attempt == attempt {
        Ok(task)
    } else {
        Err(Refusal::NotCurrentAttempt { task: id.clone(), attempt, current: task.attempt })
    }
}

fn wrong_state(task: &Task, what: &str) -> Refusal {
    Refusal::WrongState { task: task.spec.id.clone(), state: task.state, what: what.into() }
}

fn after(now: Timestamp, wait: std::time::Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    whole_micros(now.saturating_add(wait).unwrap_or(Timestamp::MAX))
}

/// As much of an error's text as a person reads; the rest stays in the journal.
fn on_the_plan(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).collect()
}

fn clock_error(clock: Clock, of: &str) -> TaskError {
    TaskError::new(ErrorKind::Other, format!("{of}{clock}"))
}

/// What is counted as used of work that is given up while somebody has it in hand: nobody can say what it was, so all
/// that it had reserved.
fn in_hand(plan: &Plan, task: &Task) -> Usage {
    match task.state {
        TaskState::Running | TaskState::NeedsReview => {
            task.given_out().map(|work| given_up(plan, &work)).unwrap_or_default()
        }
        TaskState::Pending
        | TaskState::Ready
        | TaskState::Completed
        | TaskState::Rerun
        | TaskState::Errored
        | TaskState::Failed
        | TaskState::Cancelled => Usage::default(),
    }
}

/// What is counted as used of work that is given up in somebody's hand.
fn given_up(plan: &Plan, work: &Work) -> Usage {
    plan.reserved.of(work).map(|amounts| amounts.as_usage()).unwrap_or_default()
}

/// Whether anything of the plan is under way or waits for somebody outside of it.
fn is_in_motion(plan: &Plan) -> bool {
    plan.open() > plan.count(TaskState::Pending)
}
