//! What the world still owes a plan, asked of its state: start, replay, takeover and a lost message are one case.
//! Every effect is safe to repeat.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::Clock;
use super::decide::Input;
use super::spec::Limits;
use super::state::{ErroredFor, Plan, Planning, Task, TaskState};
use crate::ids::{Capability, TaskId};
use crate::subject::{CRITIC, PLANNER};

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

impl Work {
    /// The task that it is for, if it is for one.
    #[must_use]
    pub fn task(&self) -> Option<&TaskId> {
        match self {
            Self::Task { task, .. } | Self::Review { task, .. } => Some(task),
            Self::Planning { .. } => None,
        }
    }
}

/// What is to be done in the world for a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Put work in its queue, unless it is there.
    Offer(Work),
    /// Take work out of the queue of a capability, and tell who works on it to stop. A task that was given to another
    /// capability is in the queue of the one before.
    Withdraw(Work, Capability),
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

/// What the world owes the plan. Of a run that has ended and can be gone on with, what is still out is taken back.
#[must_use]
pub fn due(plan: &Plan, scope: Scope<'_>) -> Vec<Effect> {
    if plan.end.as_ref().is_some_and(|end| !end.is_resumable) {
        return vec![Effect::Close];
    }
    let mut effects: Vec<Effect> = due_for_planning(plan).into_iter().collect();
    match scope {
        Scope::All => effects.extend(plan.tasks().iter().flat_map(|task| due_for(plan, task))),
        Scope::Tasks(ids) => {
            effects.extend(ids.iter().filter_map(|id| plan.task(id)).flat_map(|task| due_for(plan, task)));
        }
    }
    effects
}

/// Whether this very work is to be offered still. What waited for a place in a queue may have been done meanwhile, by an
/// order that an earlier owner of the run had put there.
#[must_use]
pub fn is_owed(plan: &Plan, work: &Work) -> bool {
    let is_it = |effect: Effect| matches!(effect, Effect::Offer(owed) if owed == *work);
    plan.end.is_none()
        && match work {
            Work::Planning { .. } => due_for_planning(plan).is_some_and(is_it),
            Work::Task { task, .. } | Work::Review { task, .. } => {
                plan.task(task).is_some_and(|task| due_for(plan, task).any(is_it))
            }
        }
}

/// Whether work may be given out: the run goes on and is not paused, and what it may use is set aside.
fn may_be_given_out(plan: &Plan, work: &Work) -> bool {
    plan.end.is_none()
        && plan.paused.is_none()
        && (!plan.needs_reservation(work) || plan.reserved.of(work).is_some())
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
    let Some(planning) = &plan.planning else {
        return plan.planning_superseded.clone().map(withdraw_planning);
    };
    let work = planning.work();
    match (planning.retry_at, &planning.worker) {
        (Some(_), _) => Some(withdraw_planning(work)),
        (None, None) if may_be_given_out(plan, &work) => Some(Effect::Offer(work)),
        (None, None) if plan.paused.is_some() => Some(withdraw_planning(work)),
        (None, _) => None,
    }
}

fn withdraw_planning(work: Work) -> Effect {
    Effect::Withdraw(work, Capability::new(PLANNER).expect("the planner's name is one"))
}

/// Takes back work of a task from the queue that it is in as the task is now.
fn withdraw(task: &Task, work: Work) -> Effect {
    let capability = queue(task, &work);
    Effect::Withdraw(work, capability)
}

/// The capability in whose queue the work of a task is.
pub(super) fn queue(task: &Task, work: &Work) -> Capability {
    match work {
        Work::Review { .. } => Capability::new(CRITIC).expect("the critic's name is one"),
        Work::Task { .. } | Work::Planning { .. } => task.spec.capability.clone(),
    }
}

/// The capability that work is for, whose budget it counts against; `None` for a task that is not there.
pub(super) fn capability_of(plan: &Plan, work: &Work) -> Option<Capability> {
    match work {
        Work::Planning { .. } => Capability::new(PLANNER).ok(),
        Work::Task { task, .. } | Work::Review { task, .. } => Some(queue(plan.task(task)?, work)),
    }
}

/// What is owed for a task: that work which is not wanted any more is taken back, and that the current work is offered.
fn due_for(plan: &Plan, task: &Task) -> impl Iterator<Item = Effect> + use<> {
    let superseded = task.superseded.clone().into_iter();
    superseded.map(|(work, queue)| Effect::Withdraw(work, queue)).chain(due_now(plan, task))
}

fn due_now(plan: &Plan, task: &Task) -> Option<Effect> {
    let attempt = task.attempt;
    let work = || Work::Task { task: task.spec.id.clone(), attempt };
    let review = || Work::Review { task: task.spec.id.clone(), attempt, review: task.review };
    match task.state {
        TaskState::Ready | TaskState::Rerun => {
            let work = work();
            match may_be_given_out(plan, &work) {
                true => Some(Effect::Offer(work)),
                false => plan.paused.is_some().then(|| withdraw(task, work)),
            }
        }
        TaskState::NeedsReview => {
            let review = review();
            (task.review_at.is_none() && may_be_given_out(plan, &review)).then_some(Effect::Offer(review))
        }
        TaskState::Pending
        | TaskState::Running
        | TaskState::Completed
        | TaskState::Errored
        | TaskState::Failed
        | TaskState::Cancelled => task.left_behind().map(|work| withdraw(task, work)),
    }
}

/// How long a run that has ended, and can be gone on with, waits for that: 7 days.
pub const RETIREMENT: SignedDuration = SignedDuration::from_hours(7 * 24);

/// What time alone has brought about: backoffs that are over and clocks that have run out, as inputs to decide on.
/// `heard` says when the journal of a running attempt was last written to, where that is known.
pub fn overdue(plan: &Plan, now: Timestamp, heard: impl Fn(&TaskId) -> Option<Timestamp>) -> Vec<Overdue> {
    if let Some(end) = &plan.end {
        let is_over = end.is_resumable && now.duration_since(end.at) >= RETIREMENT;
        return is_over.then_some(Overdue::Retire).into_iter().collect();
    }
    if !plan.is_live() {
        return Vec::new();
    }
    let over = |waiting: &BTreeSet<(Timestamp, u32)>, overdue: fn(TaskId) -> Overdue| -> Vec<Overdue> {
        let over = waiting.iter().take_while(|(at, _)| *at <= now);
        over.map(|&(_, position)| overdue(plan.tasks()[position as usize].spec.id.clone())).collect()
    };
    let clocks = plan.tasks().iter().filter_map(|task| {
        let (work, clock) = run_out(plan, task, now, &heard)?;
        Some(Overdue::Clock(work, clock))
    });
    planning_overdue(plan, now)
        .into_iter()
        .chain(over(&plan.retries, Overdue::Retry))
        .chain(over(&plan.reviews, Overdue::RetryReview))
        .chain(clocks)
        .chain(wall_time(plan, now))
        .collect()
}

fn wall_time(plan: &Plan, now: Timestamp) -> Option<Overdue> {
    let time = plan.elapsed(now).filter(|_| plan.paused.is_none() && plan.winding_down.is_none())?;
    (time.is_over() || (!plan.budget_is_low && time.is_low())).then_some(Overdue::WallTime)
}

/// The soonest backoff that ends, if there is one: when [`overdue`] will have something to say at the latest, clocks
/// apart.
#[must_use]
pub fn next_retry(plan: &Plan) -> Option<Timestamp> {
    let planning = plan.planning.as_ref().and_then(|planning| planning.retry_at);
    let tasks = [plan.retries.first(), plan.reviews.first()].into_iter().flatten().map(|(at, _)| *at);
    tasks.chain(planning).min()
}

/// An input that owns its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Overdue {
    /// The backoff of a task is over.
    Retry(TaskId),
    /// The backoff of a review is over.
    RetryReview(TaskId),
    /// The backoff of the planner's turn is over.
    RetryPlanning,
    /// A clock ran out.
    Clock(Work, Clock),
    /// The time that the run may take is over, or the soft part of it.
    WallTime,
    /// A run that ended was not gone on with for long enough.
    Retire,
}

impl Overdue {
    /// The input to decide on.
    #[must_use]
    pub fn input(&self) -> Input<'_> {
        match self {
            Self::Retry(task) => Input::Retry(task),
            Self::RetryReview(task) => Input::RetryReview(task),
            Self::RetryPlanning => Input::RetryPlanning,
            Self::Clock(work, clock) => Input::Clock(work, *clock),
            Self::WallTime => Input::WallTime,
            Self::Retire => Input::Retire,
        }
    }
}

fn planning_overdue(plan: &Plan, now: Timestamp) -> Option<Overdue> {
    let planning = plan.planning.as_ref()?;
    if let Some(at) = planning.retry_at {
        return (at <= now).then_some(Overdue::RetryPlanning);
    }
    let limits = Limits::default();
    let work = Work::Planning { turn: planning.turn, attempt: planning.attempt };
    if planning.worker.is_none() && !may_be_given_out(plan, &work) {
        return None;
    }
    let (limit, clock) = match planning.worker {
        None => (limits.queue_wait, Clock::QueueWait),
        Some(_) => (limits.run_time, Clock::RunTime),
    };
    passed(planning.since, limit, now).then_some(Overdue::Clock(work, clock))
}

fn run_out(
    plan: &Plan,
    task: &Task,
    now: Timestamp,
    heard: &impl Fn(&TaskId) -> Option<Timestamp>,
) -> Option<(Work, Clock)> {
    let limits = &task.spec.limits;
    let (id, attempt) = (|| task.spec.id.clone(), task.attempt);
    // What is not given out waits for nobody.
    let is_out = |work: &Work| may_be_given_out(plan, work);
    let clock = match task.state {
        TaskState::Ready | TaskState::Rerun => {
            let is_over = passed(task.since, limits.queue_wait, now);
            (is_over && is_out(&Work::Task { task: id(), attempt })).then_some(Clock::QueueWait)
        }
        TaskState::Errored
            if matches!(task.errored, Some(ErroredFor::Capability | ErroredFor::Parameters)) =>
        {
            let is_over = plan.paused.is_none() && passed(task.since, limits.queue_wait, now);
            is_over.then_some(Clock::QueueWait)
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
            let is_over = task.review_at.is_none() && passed(task.since, limit, now) && is_out(&work);
            return is_over.then_some((work, Clock::QueueWait));
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
