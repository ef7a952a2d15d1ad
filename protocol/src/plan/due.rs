//! The pending effects of a plan, derived from its state: start, replay, takeover and a lost message are one case. Every
//! effect is idempotent.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::AttemptClock;
use super::attendance::{Attendance, MAX_SILENCE, StoppedClocks};
use super::spec::TaskLimits;
use super::state::{ErroredTaskWait, Plan, Task, TaskPhase, TaskState};
use super::work::Work;
use crate::ids::{Capability, TaskId, WorkerId};
use crate::subject::PLANNER;

/// A pending effect: something to do outside the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Publish an order for work to its queue, unless it is there.
    Offer(Work),
    /// Remove an order from the queue of a capability, and notify its claimant to stop. The order of a task whose
    /// capability was changed is in the queue of the old one.
    Withdraw(Work, Capability),
    /// Close the run: empty its queues, notify its workers, archive it.
    Close,
}

/// The part of a plan whose pending effects or dispatched orders are wanted.
#[derive(Debug, Clone, Copy)]
pub enum EffectScope<'a> {
    /// All tasks: at a start and at a takeover.
    All,
    /// The planner's turn, the run's end, and these tasks: after a decision, the tasks that its events name.
    Tasks(&'a BTreeSet<TaskId>),
}

/// Returns the pending effects of a plan. Orders of a run that has ended and can be resumed are withdrawn.
#[must_use]
pub fn pending_effects(plan: &Plan, scope: EffectScope<'_>) -> Vec<Effect> {
    if plan.run.end.as_ref().is_some_and(|end| !end.is_resumable) {
        return vec![Effect::Close];
    }
    let mut effects: Vec<Effect> = find_effect_of_planning_turn(plan).into_iter().collect();
    match scope {
        EffectScope::All => effects.extend(plan.tasks().iter().flat_map(|task| effects_of_task(plan, task))),
        EffectScope::Tasks(ids) => {
            effects.extend(
                ids.iter().filter_map(|id| plan.task(id)).flat_map(|task| effects_of_task(plan, task)),
            );
        }
    }
    effects
}

/// `true` if the order for this work must still be published. While it waited for a place in the queue, the work may have
/// been done with an order that an earlier owner of the run published.
#[must_use]
pub fn is_order_pending(plan: &Plan, work: &Work) -> bool {
    let is_it = |effect: Effect| matches!(effect, Effect::Offer(pending) if pending == *work);
    plan.run.end.is_none()
        && match work {
            Work::Planning { .. } => find_effect_of_planning_turn(plan).is_some_and(is_it),
            Work::Task { task, .. } | Work::Review { task, .. } => {
                plan.task(task).is_some_and(|task| effects_of_task(plan, task).any(is_it))
            }
        }
}

/// `true` if work may be dispatched: the run is neither over nor paused, its plan needs no approval any more, and the work has
/// its reservation.
fn may_dispatch(plan: &Plan, work: &Work) -> bool {
    let is_held = match work {
        Work::Planning { .. } => false,
        Work::Task { .. } | Work::Review { .. } => plan.needs_approval(),
    };
    !is_held
        && plan.run.end.is_none()
        && plan.run.paused.is_none()
        && !plan.is_held()
        && (!plan.needs_reservation(work) || plan.budget.reserved.amounts_of_work(work).is_some())
}

/// An order that a queue may hold, because the plan has dispatched its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DispatchedOrder {
    pub work: Work,
    /// `true` if the queue must hold the order: the work may be claimed now, or it is in flight and must be redelivered if
    /// its worker is lost.
    pub is_required: bool,
    /// The worker that has claimed the work. Claims of reviews are not in the plan.
    pub worker: Option<WorkerId>,
}

/// Returns the orders that queues may hold, for the planner's turn and the tasks of the scope.
#[must_use]
pub fn dispatched_orders(plan: &Plan, scope: EffectScope<'_>) -> Vec<DispatchedOrder> {
    let planning = plan.planning.turn.as_ref().filter(|turn| turn.retry_at.is_none());
    let planning = planning.map(|turn| DispatchedOrder {
        work: turn.work(),
        is_required: may_dispatch(plan, &turn.work()) || (turn.worker.is_some() && plan.is_live()),
        worker: turn.worker.clone(),
    });
    let order_of_task = |task: &Task| {
        let work = task.dispatched_work()?;
        let is_running = task.state() == TaskState::Running;
        let is_required = match task.state() {
            TaskState::Running => plan.is_live(),
            TaskState::Ready | TaskState::Rerun | TaskState::NeedsReview => may_dispatch(plan, &work),
            TaskState::Pending
            | TaskState::Completed
            | TaskState::Errored
            | TaskState::Failed
            | TaskState::Cancelled
            | TaskState::Waiting => false,
        };
        let attempt = task.current_attempt().filter(|_| is_running);
        Some(DispatchedOrder { work, is_required, worker: attempt.and_then(|it| it.worker.clone()) })
    };
    let planning = planning.into_iter();
    match scope {
        EffectScope::All => planning.chain(plan.tasks().iter().filter_map(order_of_task)).collect(),
        EffectScope::Tasks(ids) => {
            planning.chain(ids.iter().filter_map(|id| plan.task(id)).filter_map(order_of_task)).collect()
        }
    }
}

/// Returns the work in flight: claimed and not ended. Its orders stay in their queues until it ends, so that another worker
/// receives them if the claimant is lost.
#[must_use]
pub fn work_in_flight(plan: &Plan) -> Vec<Work> {
    let is_in_flight = |order: &DispatchedOrder| order.is_required && order.worker.is_some();
    dispatched_orders(plan, EffectScope::All)
        .into_iter()
        .filter(is_in_flight)
        .map(|order| order.work)
        .collect()
}

fn find_effect_of_planning_turn(plan: &Plan) -> Option<Effect> {
    let Some(planning) = &plan.planning.turn else {
        return plan.planning.superseded.clone().map(withdraw_planning_order);
    };
    let work = planning.work();
    match (planning.retry_at, &planning.worker) {
        (Some(_), _) => Some(withdraw_planning_order(work)),
        (None, None) if may_dispatch(plan, &work) => Some(Effect::Offer(work)),
        (None, None) if plan.run.paused.is_some() => Some(withdraw_planning_order(work)),
        (None, _) => None,
    }
}

fn withdraw_planning_order(work: Work) -> Effect {
    Effect::Withdraw(work, Capability::new(PLANNER).expect("it is letters"))
}

/// Withdraws work of a task from the queue that it is in now.
fn withdraw_task_order(task: &Task, work: Work) -> Effect {
    let queue = work.queue_name(&task.spec.capability);
    Effect::Withdraw(work, queue)
}

/// The pending effects of a task: withdraw superseded work, offer the current work.
fn effects_of_task(plan: &Plan, task: &Task) -> impl Iterator<Item = Effect> + use<> {
    let superseded = task.superseded.clone().into_iter();
    superseded.map(|(work, queue)| Effect::Withdraw(work, queue)).chain(effect_of_current_work(plan, task))
}

fn effect_of_current_work(plan: &Plan, task: &Task) -> Option<Effect> {
    match &task.phase {
        TaskPhase::Ready | TaskPhase::Rerun => {
            let work = task.attempt_work();
            match may_dispatch(plan, &work) {
                true => Some(Effect::Offer(work)),
                false => plan.run.paused.is_some().then(|| withdraw_task_order(task, work)),
            }
        }
        TaskPhase::NeedsReview { retry_at: Some(_) } => None,
        TaskPhase::NeedsReview { retry_at: None } => {
            let review = task.review_work();
            match may_dispatch(plan, &review) {
                true => Some(Effect::Offer(review)),
                false => plan.run.is_interrupted.then(|| withdraw_task_order(task, review)),
            }
        }
        TaskPhase::Pending
        | TaskPhase::Running
        | TaskPhase::Completed
        | TaskPhase::Errored(_)
        | TaskPhase::Failed { .. }
        | TaskPhase::Cancelled { .. }
        | TaskPhase::Waiting { .. } => task.orphaned_work().map(|work| withdraw_task_order(task, work)),
    }
}

/// How long an ended run can be resumed: 7 days.
pub const RETIREMENT: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Returns the overdue backoffs and timeouts, as inputs to decide on; before them, the absences that clocks of the plan must
/// not count. `last_entry` returns the time of the last entry in the
/// journal of a running attempt, if it is known.
pub fn overdue_inputs(
    plan: &Plan,
    now: Timestamp,
    attendance: &Attendance,
    last_entry: impl Fn(&TaskId) -> Option<Timestamp>,
) -> Vec<OverdueInput> {
    if let Some(end) = &plan.run.end {
        let is_over = end.is_resumable && now.duration_since(end.at) >= RETIREMENT;
        return is_over.then_some(OverdueInput::Retire).into_iter().collect();
    }
    if !plan.is_live() {
        return Vec::new();
    }
    let absences = plan.unrecorded_absences(attendance, now);
    if !absences.is_empty() {
        // They change what the clocks show.
        return absences.into_iter().map(OverdueInput::Absence).collect();
    }
    let over =
        |waiting: &BTreeSet<(Timestamp, u32)>, overdue: fn(TaskId) -> OverdueInput| -> Vec<OverdueInput> {
            let over = waiting.iter().take_while(|(at, _)| *at <= now);
            over.map(|&(_, position)| overdue(plan.tasks()[position as usize].spec.id.clone())).collect()
        };
    let clocks = plan.tasks().iter().filter_map(|task| {
        let (work, clock) = find_expired_clock_of_task(plan, task, now, attendance, &last_entry)?;
        Some(OverdueInput::Clock(work, clock))
    });
    find_overdue_planning_turn(plan, now, attendance)
        .into_iter()
        .chain(over(&plan.index.retries, OverdueInput::Retry))
        .chain(over(&plan.index.waits, OverdueInput::WaitTime))
        .chain(over(&plan.index.reviews, OverdueInput::RetryReview))
        .chain(clocks)
        .chain(find_overdue_time_limit(plan, now))
        .collect()
}

fn find_overdue_time_limit(plan: &Plan, now: Timestamp) -> Option<OverdueInput> {
    let is_stopped = plan.run.paused.is_some() || plan.is_held() || plan.run.winding_down.is_some();
    let time = plan.elapsed_time(now).filter(|_| !is_stopped)?;
    (time.is_past_limit() || (!plan.budget.is_low && time.is_past_soft_limit()))
        .then_some(OverdueInput::WallTime)
}

/// The end of the first backoff to end, if there is one. Apart from clocks, nothing is overdue before.
#[must_use]
pub fn next_backoff_end(plan: &Plan) -> Option<Timestamp> {
    let planning = plan.planning.turn.as_ref().and_then(|planning| planning.retry_at);
    let tasks = [&plan.index.retries, &plan.index.reviews, &plan.index.waits].map(|waiting| waiting.first());
    let tasks = tasks.into_iter().flatten().map(|(at, _)| *at);
    tasks.chain(planning).min()
}

/// Something overdue: an input that owns its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverdueInput {
    /// The backoff of a task is over.
    Retry(TaskId),
    /// The time of a wait of a parked attempt has come.
    WaitTime(TaskId),
    /// The backoff of a review is over.
    RetryReview(TaskId),
    /// The backoff of the planner's turn is over.
    RetryPlanning,
    /// A clock ran out.
    Clock(Work, AttemptClock),
    /// A worker, or every supervisor, was absent, so that clocks stopped.
    Absence(StoppedClocks),
    /// The run's time limit, or its soft limit, is reached.
    WallTime,
    /// An ended run was not resumed within [`RETIREMENT`].
    Retire,
}

fn find_overdue_planning_turn(plan: &Plan, now: Timestamp, attendance: &Attendance) -> Option<OverdueInput> {
    let planning = plan.planning.turn.as_ref()?;
    if let Some(at) = planning.retry_at {
        return (at <= now).then_some(OverdueInput::RetryPlanning);
    }
    let limits = TaskLimits::default();
    let work = Work::Planning { turn: planning.turn, attempt: planning.attempt };
    if planning.worker.is_none() && !may_dispatch(plan, &work) {
        return None;
    }
    let passed = |at| planning.uncounted.counted(planning.since, at);
    let clock = match &planning.worker {
        None => (passed(now) >= signed(limits.queue_wait)).then_some(AttemptClock::QueueWait),
        Some(worker) => {
            let claim = ClaimantSigns::new(attendance, worker, planning.since, || None, now);
            let is_over = planning.worked.saturating_add(passed(claim.until)) >= signed(limits.run_time);
            is_over.then_some(AttemptClock::RunTime).or(claim.queue_clock(limits.queue_wait, now))
        }
    };
    clock.map(|clock| OverdueInput::Clock(work, clock))
}

/// The clock of a task's work that ran out, if one did.
fn find_expired_clock_of_task(
    plan: &Plan,
    task: &Task,
    now: Timestamp,
    attendance: &Attendance,
    last_entry: &impl Fn(&TaskId) -> Option<Timestamp>,
) -> Option<(Work, AttemptClock)> {
    let limits = &task.spec.limits;
    let passed = |since, at| task.uncounted.counted(since, at);
    let clock = match &task.phase {
        TaskPhase::Ready | TaskPhase::Rerun => {
            let is_over = passed(task.since, now) >= signed(limits.queue_wait);
            // Work that is not dispatched waits for no worker.
            (is_over && may_dispatch(plan, &task.attempt_work())).then_some(AttemptClock::QueueWait)
        }
        TaskPhase::Errored(Some(ErroredTaskWait::Capability { .. } | ErroredTaskWait::Parameters { .. })) => {
            let may_start = plan.run.paused.is_none() && !plan.is_held() && !plan.needs_approval();
            let is_over = may_start && passed(task.since, now) >= signed(limits.queue_wait);
            is_over.then_some(AttemptClock::QueueWait)
        }
        TaskPhase::Running => {
            let (worker, worked) = task.current_attempt().map(|it| (it.worker.as_ref(), it.worked))?;
            let claim = worker.map(|worker| {
                ClaimantSigns::new(attendance, worker, task.since, || last_entry(&task.spec.id), now)
            });
            let until = claim.as_ref().map_or(now, |claim| claim.until);
            let is_over = worked.saturating_add(passed(task.since, until)) >= signed(limits.run_time);
            // The lookup is skipped where it can't matter. Work that waits for a provider has nothing to write.
            let is_silent = |since| passed(since, until) >= signed(limits.silence);
            let last = || last_entry(&task.spec.id).unwrap_or(task.since).max(task.since);
            let silence = || (is_silent(task.since) && is_silent(last())).then_some(AttemptClock::Silence);
            let queue = || claim.as_ref().and_then(|claim| claim.queue_clock(limits.queue_wait, now));
            is_over.then_some(AttemptClock::RunTime).or_else(silence).or_else(queue)
        }
        TaskPhase::NeedsReview { retry_at: Some(_) } => None,
        TaskPhase::NeedsReview { retry_at: None } => {
            let limit = limits.queue_wait.saturating_add(limits.run_time);
            let work = task.review_work();
            let is_over = passed(task.since, now) >= signed(limit) && may_dispatch(plan, &work);
            return is_over.then_some((work, AttemptClock::QueueWait));
        }
        TaskPhase::Pending
        | TaskPhase::Errored(_)
        | TaskPhase::Completed
        | TaskPhase::Failed { .. }
        | TaskPhase::Cancelled { .. }
        | TaskPhase::Waiting { .. } => None,
    };
    clock.map(|clock| (task.attempt_work(), clock))
}

/// The claimant of work, as far as it is there.
struct ClaimantSigns {
    /// The end of the time for which it may have worked: now, or its last sign if it is lost.
    until: Timestamp,
    /// When its heartbeats were first missed: since then the work waits for another worker.
    lost: Option<Timestamp>,
}

impl ClaimantSigns {
    fn new(
        attendance: &Attendance,
        worker: &WorkerId,
        since: Timestamp,
        last_entry: impl Fn() -> Option<Timestamp>,
        now: Timestamp,
    ) -> Self {
        match attendance.lost_claimant(worker, since) {
            Some((seen, lost)) => {
                // A later entry may be the first one after a suspension, of which the next heartbeat tells.
                let last = last_entry().filter(|at| at.duration_since(seen) <= MAX_SILENCE);
                let until = last.map_or(seen, |at| at.max(seen)).min(now);
                Self { until, lost: Some(lost) }
            }
            None => Self { until: now, lost: None },
        }
    }

    /// The queue-wait clock, if no other worker has taken the work over in time.
    fn queue_clock(&self, limit: std::time::Duration, now: Timestamp) -> Option<AttemptClock> {
        let is_over = |lost: &Timestamp| now.duration_since(*lost) >= signed(limit);
        self.lost.filter(is_over).map(|_| AttemptClock::QueueWait)
    }
}

fn signed(limit: std::time::Duration) -> SignedDuration {
    SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX)
}
