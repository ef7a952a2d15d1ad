//! What the world still owes a plan, asked of its state: start, replay, takeover and a lost message are one case.
//! Every effect is safe to repeat.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::Clock;
use super::decide::Input;
use super::spec::Limits;
use super::state::{AttemptEnd, ErroredFor, Plan, Planning, Task, TaskState};
use crate::ids::TaskId;

/// A piece of work that somebody can claim; it names one journal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Work {
    /// An attempt at a task.
    Task {
        /// The task.
        task: TaskId,
        /// The attempt, from 1.
        attempt: u32,
    },
    /// A review of an attempt's result.
    Review {
        /// The task.
        task: TaskId,
        /// The attempt under review.
        attempt: u32,
        /// Which try at the review, from 1.
        review: u32,
    },
    /// An attempt at a turn of the planner.
    Planning {
        /// The turn, from 1.
        turn: u32,
        /// The attempt, from 1.
        attempt: u32,
    },
}

/// What is to be done in the world for a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Put work in its queue, unless it is there.
    Offer(Work),
    /// Take work out of its queue, and tell who works on it to stop.
    Withdraw(Work),
    /// The run is over: empty its queues, tell everybody, archive it.
    Close,
}

/// What part of a plan is asked about.
#[derive(Debug, Clone, Copy)]
pub enum Scope<'a> {
    /// All of it: at a start and at a takeover.
    All,
    /// The planner's turn, the run's end, and these tasks: after a decision, those that its events name.
    Tasks(&'a BTreeSet<TaskId>),
}

/// What the world owes the plan.
#[must_use]
pub fn due(plan: &Plan, scope: Scope<'_>) -> Vec<Effect> {
    if plan.end.is_some() {
        return vec![Effect::Close];
    }
    let mut effects: Vec<Effect> = due_for_planning(plan).into_iter().collect();
    match scope {
        Scope::All => effects.extend(plan.tasks().iter().flat_map(due_for)),
        Scope::Tasks(ids) => {
            effects.extend(ids.iter().filter_map(|id| plan.task(id)).flat_map(due_for));
        }
    }
    effects
}

/// Whether this very work is to be offered still. What waited for a place in a queue may have been done meanwhile, by an
/// order that an earlier owner of the run had put there.
#[must_use]
pub fn is_owed(plan: &Plan, work: &Work) -> bool {
    let effect = match work {
        Work::Planning { .. } => due_for_planning(plan),
        Work::Task { task, .. } | Work::Review { task, .. } => plan.task(task).and_then(due_for),
    };
    plan.end.is_none() && matches!(effect, Some(Effect::Offer(owed)) if owed == *work)
}

/// The work that somebody has claimed and not ended. Its orders stay in their queues until it ends: only there does it
/// come to another worker when its own is lost. An order that has got lost itself must be offered again, which is
/// harmless where it has not.
#[must_use]
pub fn in_hand(plan: &Plan) -> Vec<Work> {
    if !plan.is_live() {
        return Vec::new();
    }
    let claimed = |planning: &&Planning| planning.worker.is_some() && planning.retry_at.is_none();
    let planning = plan.planning.as_ref().filter(claimed);
    let planning = planning.map(|planning| Work::Planning { turn: planning.turn, attempt: planning.attempt });
    let running = plan.tasks().iter().filter(|task| task.state == TaskState::Running);
    let running = running.map(|task| Work::Task { task: task.spec.id.clone(), attempt: task.attempt });
    planning.into_iter().chain(running).collect()
}

fn due_for_planning(plan: &Plan) -> Option<Effect> {
    let planning = plan.planning.as_ref()?;
    let work = Work::Planning { turn: planning.turn, attempt: planning.attempt };
    match (planning.retry_at, &planning.worker) {
        (Some(_), _) => Some(Effect::Withdraw(work)),
        (None, None) => Some(Effect::Offer(work)),
        (None, Some(_)) => None,
    }
}

fn due_for(task: &Task) -> Option<Effect> {
    let attempt = task.attempt;
    let work = || Work::Task { task: task.spec.id.clone(), attempt };
    let review = || Work::Review { task: task.spec.id.clone(), attempt, review: task.review };
    match task.state {
        TaskState::Ready | TaskState::Rerun => Some(Effect::Offer(work())),
        TaskState::NeedsReview => Some(Effect::Offer(review())),
        TaskState::Errored | TaskState::Failed | TaskState::Cancelled if attempt > 0 => {
            match left_behind(task)? {
                LeftBehind::Attempt => Some(Effect::Withdraw(work())),
                LeftBehind::Review => Some(Effect::Withdraw(review())),
            }
        }
        TaskState::Pending
        | TaskState::Running
        | TaskState::Completed
        | TaskState::Errored
        | TaskState::Failed
        | TaskState::Cancelled => None,
    }
}

/// What somebody may still have in hand of a task that does not want it any more.
enum LeftBehind {
    Attempt,
    Review,
}

fn left_behind(task: &Task) -> Option<LeftBehind> {
    let current = task.current();
    match current.and_then(|current| current.end.as_ref()) {
        // Offered or claimed, and then cancelled. An order that waits for its capability is wanted still.
        None => (task.state == TaskState::Cancelled).then_some(LeftBehind::Attempt),
        Some(AttemptEnd::TimedOut(_)) => Some(LeftBehind::Attempt),
        Some(AttemptEnd::Errored(_)) => None,
        Some(AttemptEnd::Finished { .. }) => {
            current.is_some_and(|current| current.verdict.is_none()).then_some(LeftBehind::Review)
        }
    }
}

/// What time alone has brought about: backoffs that are over and clocks that have run out, as inputs to decide on.
/// `heard` says when the journal of a running attempt was last written to, where that is known.
pub fn overdue(plan: &Plan, now: Timestamp, heard: impl Fn(&TaskId) -> Option<Timestamp>) -> Vec<Overdue> {
    if !plan.is_live() {
        return Vec::new();
    }
    let retries = plan
        .retries
        .iter()
        .take_while(|(at, _)| *at <= now)
        .map(|&(_, position)| Overdue::Retry(plan.tasks()[position as usize].spec.id.clone()));
    let clocks = plan.tasks().iter().filter_map(|task| {
        let (work, clock) = run_out(task, now, &heard)?;
        Some(Overdue::Clock(work, clock))
    });
    planning_overdue(plan, now).into_iter().chain(retries).chain(clocks).collect()
}

/// The soonest backoff that ends, if there is one: when [`overdue`] will have something to say at the latest, clocks
/// apart.
#[must_use]
pub fn next_retry(plan: &Plan) -> Option<Timestamp> {
    let planning = plan.planning.as_ref().and_then(|planning| planning.retry_at);
    plan.retries.first().map(|(at, _)| *at).into_iter().chain(planning).min()
}

/// An input that owns its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Overdue {
    /// The backoff of a task is over.
    Retry(TaskId),
    /// The backoff of the planner's turn is over.
    RetryPlanning,
    /// A clock ran out.
    Clock(Work, Clock),
}

impl Overdue {
    /// The input to decide on.
    #[must_use]
    pub fn input(&self) -> Input<'_> {
        match self {
            Self::Retry(task) => Input::Retry(task),
            Self::RetryPlanning => Input::RetryPlanning,
            Self::Clock(work, clock) => Input::Clock(work, *clock),
        }
    }
}

fn planning_overdue(plan: &Plan, now: Timestamp) -> Option<Overdue> {
    let planning = plan.planning.as_ref()?;
    if let Some(at) = planning.retry_at {
        return (at <= now).then_some(Overdue::RetryPlanning);
    }
    let limits = Limits::default();
    let (limit, clock) = match planning.worker {
        None => (limits.queue_wait, Clock::QueueWait),
        Some(_) => (limits.run_time, Clock::RunTime),
    };
    let work = Work::Planning { turn: planning.turn, attempt: planning.attempt };
    passed(planning.since, limit, now).then_some(Overdue::Clock(work, clock))
}

fn run_out(
    task: &Task,
    now: Timestamp,
    heard: &impl Fn(&TaskId) -> Option<Timestamp>,
) -> Option<(Work, Clock)> {
    let limits = &task.spec.limits;
    let (id, attempt) = (|| task.spec.id.clone(), task.attempt);
    let clock = match task.state {
        TaskState::Ready | TaskState::Rerun => {
            passed(task.since, limits.queue_wait, now).then_some(Clock::QueueWait)
        }
        TaskState::Errored if task.errored == Some(ErroredFor::Capability) => {
            passed(task.since, limits.queue_wait, now).then_some(Clock::QueueWait)
        }
        TaskState::Running if passed(task.since, limits.run_time, now) => Some(Clock::RunTime),
        TaskState::Running => {
            // Looked up only where it could matter.
            let silent = |since| passed(since, limits.silence, now);
            let last = || heard(&task.spec.id).unwrap_or(task.since).max(task.since);
            (silent(task.since) && silent(last())).then_some(Clock::Silence)
        }
        TaskState::NeedsReview => {
            let limit = limits.queue_wait.saturating_add(limits.run_time);
            let work = Work::Review { task: id(), attempt, review: task.review };
            return passed(task.since, limit, now).then_some((work, Clock::QueueWait));
        }
        TaskState::Pending
        | TaskState::Completed
        | TaskState::Errored
        | TaskState::Failed
        | TaskState::Cancelled => None,
    };
    clock.map(|clock| (Work::Task { task: id(), attempt }, clock))
}

fn passed(since: Timestamp, limit: std::time::Duration, now: Timestamp) -> bool {
    let limit = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
    now.duration_since(since) >= limit
}
