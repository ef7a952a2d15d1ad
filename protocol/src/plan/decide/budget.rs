//! Reservations: what work may use is set aside before it is given out. Three pools limit it: the run's, its capability's
//! and its task's. Where a pool has nothing left and nothing of it may still come back, what waits for it is given up:
//! a task for its own, the run for its own, which then comes to its end with what it has.

use std::collections::btree_set;
use std::iter::Peekable;

use jiff::{SignedDuration, Timestamp};

use super::super::budget::{Amounts, Budget, Elapsed, WhenSpent};
use super::super::due::capability_of;
use super::super::reserved::{Reservations, Sums};
use super::super::spec::{OnFailedDependency, TaskSpec};
use super::super::state::{AttemptEnd, EndReason, ErroredFor, Occasion, Plan, Planning, Task, TaskState};
use super::super::{Event, Refusal, Work};
use super::wave::with_consequences;
use super::{in_hand, planning};
use crate::ids::Capability;
use crate::result::{Limit, Usage};

/// An attempt takes one part in so many of what its pool has left.
const SHARE: u64 = 4;
/// An attempt at a task with a budget of its own leaves so much of it for its review.
const TASK_SHARE: u64 = 2;
/// Below one part in so many of a limit, there is nothing left.
const LEAST: u64 = 16;

/// So many percent of an amount; no amount is too large for it.
fn part(amount: u64, percent: u64) -> u64 {
    amount / 100 * percent + amount % 100 * percent / 100
}

/// What comes of asking for a reservation.
enum Sized {
    /// It fits.
    Fits(Amounts),
    /// It may fit when work of this pool that is under way has ended.
    Later(Pool),
    /// It will never fit: what is used up.
    Never(Pool, String),
}

/// Whose budget it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pool {
    Run,
    Capability,
    Task,
}

impl Pool {
    /// That it is used up.
    fn say(self, why: &str) -> String {
        match self {
            Self::Run => format!("the run's budget is used up: {why}"),
            Self::Capability => format!("the budget of its capability is used up: {why}"),
            Self::Task => format!("its budget is used up: {why}"),
        }
    }
}

/// What one pool has.
struct Account<'a> {
    pool: Pool,
    limits: Amounts,
    used: Usage,
    reserved: Option<&'a Sums>,
    /// Percent of the limits that this work may not touch.
    held_back: u64,
    share: u64,
    /// What an attempt takes where that is said.
    said: Amounts,
}

impl Account<'_> {
    fn size(&self) -> Sized {
        let mut amounts = Amounts::default();
        let mut is_later = false;
        for (dimension, limit) in self.limits.iter() {
            let within = limit - part(limit, self.held_back);
            let used = dimension.of(&self.used);
            let reserved = self.reserved.and_then(|sums| sums.get(&dimension)).copied().unwrap_or(0);
            let reserved = u64::try_from(reserved).unwrap_or(u64::MAX);
            let left = within.saturating_sub(used).saturating_sub(reserved);
            let least = (limit / LEAST).max(1);
            let said = self.said.get(dimension);
            let wanted = said.unwrap_or_else(|| (left / self.share).max(least));
            let least = if said.is_some() { wanted.div_ceil(4).max(1) } else { least };
            if left < least && reserved > 0 {
                is_later = true;
            } else if left < least {
                let (limit, used) = (dimension.say(limit), dimension.say(used));
                return Sized::Never(self.pool, format!("{used} of {limit} are used"));
            }
            amounts.set(dimension, Some(wanted.min(left)));
        }
        if is_later { Sized::Later(self.pool) } else { Sized::Fits(amounts) }
    }
}

/// What the run has reserved, while reservations are made one after the other.
struct Ledger<'a> {
    plan: &'a Plan,
    budget: &'a Budget,
    reserved: Reservations,
    made: Vec<Event>,
}

impl<'a> Ledger<'a> {
    fn new(plan: &'a Plan, budget: &'a Budget) -> Self {
        Self { plan, budget, reserved: plan.reserved.sums(), made: Vec::new() }
    }

    fn make(&mut self, work: Work, amounts: Amounts) {
        if let Some(capability) = capability_of(self.plan, &work) {
            self.reserved.set_aside(&work, capability, amounts);
            self.made.push(Event::Reserved { work, amounts });
        }
    }

    fn size(&self, work: &Work) -> Sized {
        let task = work.task().and_then(|id| self.plan.task(id));
        let mut all = self.budget.attempt;
        let share = if self.outgrew(work, task) { 1 } else { SHARE };
        let accounts = [self.of_run(task, share), self.of_capability(work, share), self.of_task(task)];
        for account in accounts.into_iter().flatten() {
            match account.size() {
                Sized::Fits(amounts) => all = all.min(amounts),
                short @ (Sized::Later(_) | Sized::Never(..)) => return short,
            }
        }
        Sized::Fits(all)
    }

    /// Whether the attempt before came to nothing for want of what it had reserved: this one gets all that is left, lest
    /// the same be paid for again and again.
    fn outgrew(&self, work: &Work, task: Option<&Task>) -> bool {
        match work {
            Work::Planning { .. } => self.plan.planning.as_ref().is_some_and(|planning| planning.outgrew),
            Work::Review { .. } => false,
            Work::Task { .. } => {
                let last = task.and_then(|task| task.attempts.last());
                let end = last.and_then(|attempt| attempt.end.as_ref());
                matches!(end, Some(AttemptEnd::Errored(error)) if error.limit == Some(Limit::Allowance))
            }
        }
    }

    fn of_run(&self, task: Option<&Task>, share: u64) -> Option<Account<'_>> {
        if self.budget.amounts.is_empty() {
            return None;
        }
        let is_last = self.plan.winding_down.is_some() || task.is_some_and(|task| task.spec.is_final);
        let holds_back = !is_last && self.plan.final_task().is_none_or(|task| !task.state.is_terminal());
        Some(Account {
            pool: Pool::Run,
            limits: self.budget.amounts,
            used: self.plan.spend.total,
            reserved: Some(&self.reserved.total),
            held_back: if holds_back { u64::from(self.budget.final_percent) } else { 0 },
            share: if is_last { share.min(TASK_SHARE) } else { share },
            said: self.budget.attempt,
        })
    }

    fn of_capability(&self, work: &Work, share: u64) -> Option<Account<'_>> {
        if self.budget.capabilities.is_empty() {
            return None;
        }
        let name = capability_of(self.plan, work)?;
        let limits = *self.budget.capabilities.get(&name)?;
        Some(Account {
            pool: Pool::Capability,
            limits,
            used: self.plan.spend.by_capability.get(&name).copied().unwrap_or_default(),
            reserved: self.reserved.by_capability.get(&name),
            held_back: 0,
            share,
            said: self.budget.attempt,
        })
    }

    fn of_task(&self, task: Option<&Task>) -> Option<Account<'_>> {
        let task = task.filter(|task| !task.spec.budget.is_empty())?;
        Some(Account {
            pool: Pool::Task,
            limits: task.spec.budget,
            used: task.usage(),
            // One piece of work of a task is under way at a time: what comes before has ended.
            reserved: None,
            held_back: 0,
            share: TASK_SHARE,
            said: Amounts::default(),
        })
    }
}

/// The work that waits for a reservation, in the order in which it gets one: the planner's, what is to be judged, and then
/// the tasks as they were added. What waits for a capability can be passed over, which matters where thousands do.
struct Waiting<'a> {
    plan: &'a Plan,
    planning: Option<Work>,
    /// By capability, those of each in order; reviews are of none, and come first.
    groups: Vec<(&'a Option<Capability>, Peekable<btree_set::Iter<'a, u32>>)>,
    /// Which of them the last work was of.
    last: Option<usize>,
}

impl<'a> Waiting<'a> {
    fn of(plan: &'a Plan) -> Self {
        let planning = plan.planning.as_ref().filter(|planning| planning.retry_at.is_none());
        let is_short = |work: &Work| plan.needs_reservation(work) && plan.reserved.of(work).is_none();
        let groups = plan.waiting.iter().map(|(name, all)| (name, all.iter().peekable())).collect();
        Self { plan, planning: planning.map(Planning::work).filter(is_short), groups, last: None }
    }

    fn next(&mut self) -> Option<Work> {
        self.last = None;
        if let Some(planning) = self.planning.take() {
            return Some(planning);
        }
        let heads = self.groups.iter_mut().enumerate();
        let heads = heads.filter_map(|(at, (name, all))| Some((name.is_some(), **all.peek()?, at)));
        let (_, position, at) = heads.min()?;
        self.groups[at].1.next();
        self.last = Some(at);
        self.plan.tasks[position as usize].given_out()
    }

    /// Passes over all that waits for the capability that the last work was for.
    fn pass_over(&mut self) {
        if let Some(at) = self.last.take() {
            drop(self.groups.swap_remove(at));
        }
    }
}

/// Makes reservations for what waits, as far as there is something left; gives up what can never have one.
pub(super) fn reserve(plan: &Plan) -> Vec<Event> {
    let Some(start) = plan.start.as_ref().filter(|_| plan.is_counted()) else { return Vec::new() };
    let mut ledger = Ledger::new(plan, &start.budget);
    let mut waiting = Waiting::of(plan);
    let mut lost = Vec::new();
    while let Some(work) = waiting.next() {
        match ledger.size(&work) {
            Sized::Fits(amounts) => ledger.make(work, amounts),
            Sized::Later(Pool::Capability) => waiting.pass_over(),
            // Nobody else has more of it but the final task.
            Sized::Later(Pool::Run) => {
                reserve_for_final(plan, &mut ledger);
                break;
            }
            Sized::Later(Pool::Task) => {}
            Sized::Never(Pool::Run, why) if ledger.made.is_empty() && plan.winding_down.is_none() => {
                return wind_down(plan, EndReason::BudgetExhausted, &format!("the budget is used up: {why}"));
            }
            Sized::Never(pool, why) => lost.push((work, pool, why)),
        }
    }
    // What can be given out is given out first; what is lost is found again when it has been.
    if ledger.made.is_empty() { given_up(plan, &lost) } else { ledger.made }
}

fn reserve_for_final(plan: &Plan, ledger: &mut Ledger<'_>) {
    let waits =
        |task: &&Task| matches!(task.state, TaskState::Ready | TaskState::Rerun | TaskState::NeedsReview);
    let Some(work) = plan.final_task().filter(waits).and_then(Task::given_out) else { return };
    if [&plan.reserved, &ledger.reserved].iter().any(|reserved| reserved.of(&work).is_some()) {
        return;
    }
    if let Sized::Fits(amounts) = ledger.size(&work) {
        ledger.make(work, amounts);
    }
}

/// Whether the budget that planners have to themselves is used up.
pub(super) fn is_planner_spent(plan: &Plan) -> bool {
    let Some(start) = &plan.start else { return false };
    let work = Work::Planning { turn: plan.turns, attempt: 1 };
    let ledger = Ledger::new(plan, &start.budget);
    let account = ledger.of_capability(&work, SHARE);
    matches!(account.map(|account| account.size()), Some(Sized::Never(..)))
}

/// Gives up work that can never have a reservation.
fn given_up(plan: &Plan, lost: &[(Work, Pool, String)]) -> Vec<Event> {
    let planning = lost.iter().find(|(work, ..)| work.task().is_none());
    if let Some((_, _, why)) = planning {
        return planning::given_up(plan, &format!("the planner's budget is used up: {why}"))
            .into_iter()
            .collect();
    }
    // Where the first failure ends the run, there is no second one.
    let is_first_alone = plan.start.as_ref().is_some_and(|start| start.fail_fast);
    let lost = lost.iter().take(if is_first_alone { 1 } else { lost.len() });
    let events = lost.filter_map(|(work, pool, why)| {
        let (task, reason) = (work.task()?.clone(), pool.say(why));
        Some(match plan.winding_down {
            None => Event::TaskFailed { task, reason },
            // It comes back when the run is gone on with.
            Some(_) => Event::TaskCancelled { task, reason, with: None, usage: Usage::default() },
        })
    });
    with_consequences(plan, events.collect())
}

/// That the soft part of the budget is used up is said once.
pub(super) fn warn(plan: &Plan, now: Timestamp) -> Vec<Event> {
    if plan.budget_is_low || plan.winding_down.is_some() {
        return Vec::new();
    }
    let Some(detail) = low(plan, now) else { return Vec::new() };
    let low = Event::BudgetLow { detail: detail.clone() };
    let occasion = Event::OccasionRaised { occasion: Occasion::BudgetLow { detail } };
    std::iter::once(low).chain(plan.has_planner().then_some(occasion)).collect()
}

fn low(plan: &Plan, now: Timestamp) -> Option<String> {
    let budget = &plan.start.as_ref()?.budget;
    let soft = u64::from(budget.soft_percent);
    let amounts = budget.amounts.iter().find_map(|(dimension, limit)| {
        let used = dimension.of(&plan.spend.total);
        (used >= part(limit, soft))
            .then(|| format!("{} of {} are used", dimension.say(used), dimension.say(limit)))
    });
    amounts.or_else(|| {
        let time = plan.elapsed(now).filter(Elapsed::is_low)?;
        Some(format!("{:#} of {:#} are over", rounded(time.worked), rounded(time.limit)))
    })
}

fn rounded(time: SignedDuration) -> SignedDuration {
    SignedDuration::from_secs(time.as_secs())
}

/// The time that the run may take is over.
pub(super) fn wall_time(plan: &Plan, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    match plan.elapsed(now) {
        Some(time) if time.is_over() && plan.winding_down.is_none() => {
            let detail = format!("the time of {:#} that it may take is over", rounded(time.limit));
            Ok(wind_down(plan, EndReason::BudgetExhausted, &detail))
        }
        Some(_) => match warn(plan, now) {
            events if events.is_empty() => Err(Refusal::WrongMoment("its time is not over".into())),
            events => Ok(events),
        },
        None => Err(Refusal::WrongMoment("the run may take any time".into())),
    }
}

/// The run comes to its end: nothing is begun any more but the final task, which goes on without what is missing.
pub(super) fn wind_down(plan: &Plan, reason: EndReason, detail: &str) -> Vec<Event> {
    let finishes = plan.start.as_ref().is_some_and(|start| start.budget.when_spent == WhenSpent::Finish);
    let stays = |task: &Task| {
        finishes && matches!(task.state, TaskState::Running | TaskState::NeedsReview) && !task.spec.is_final
    };
    let last = plan.final_task().filter(|task| can_be_made(plan, task, &stays));
    let mut events = vec![Event::WindingDown { reason, detail: detail.to_owned() }];
    events.extend(planning::given_up(plan, detail));
    if let Some(task) = last.filter(|task| task.state == TaskState::Pending) {
        let spec = TaskSpec { on_failed_dependency: OnFailedDependency::Skip, ..task.spec.clone() };
        events.push(Event::TaskPatched { spec: Box::new(spec), attempt: 0 });
    }
    let is_last = |task: &Task| last.is_some_and(|last| last.spec.id == task.spec.id);
    for task in plan.tasks.iter().filter(|task| !task.state.is_terminal() && !stays(task) && !is_last(task)) {
        events.push(Event::TaskCancelled {
            task: task.spec.id.clone(),
            reason: format!("the run comes to its end: {detail}"),
            with: None,
            usage: in_hand(plan, task),
        });
    }
    if let Some(task) = last.filter(|task| task.state == TaskState::Pending) {
        let dependencies = task.spec.depends_on.iter().filter_map(|id| plan.task(id));
        if !dependencies.into_iter().any(&stays) {
            let attempt = task.attempt.max(1);
            events.push(Event::TaskReady { task: task.spec.id.clone(), attempt });
        }
    }
    events
}

/// Whether the final task can still bring the deliverable: it is under way, or something that it builds on is there or
/// about to be.
fn can_be_made(plan: &Plan, task: &Task, stays: &impl Fn(&Task) -> bool) -> bool {
    let has_something = || {
        let mut dependencies = task.spec.depends_on.iter().filter_map(|id| plan.task(id));
        task.spec.depends_on.is_empty()
            || dependencies.any(|dependency| dependency.state == TaskState::Completed || stays(dependency))
    };
    match task.state {
        TaskState::Running | TaskState::NeedsReview | TaskState::Ready | TaskState::Rerun => true,
        TaskState::Errored => matches!(task.errored, Some(ErroredFor::Retry(_))),
        TaskState::Pending => has_something(),
        TaskState::Completed | TaskState::Failed | TaskState::Cancelled => false,
    }
}

/// A final task that was to go on without what is missing, and of which everything is missing, is given up.
pub(super) fn abandon_final(plan: &Plan) -> Vec<Event> {
    if plan.winding_down.is_none() {
        return Vec::new();
    }
    let waits = |task: &&Task| matches!(task.state, TaskState::Ready | TaskState::Pending);
    let Some(task) = plan.final_task().filter(waits) else { return Vec::new() };
    let dependencies = || task.spec.depends_on.iter().filter_map(|id| plan.task(id));
    let is_lost = |dependency: &Task| matches!(dependency.state, TaskState::Failed | TaskState::Cancelled);
    if task.spec.depends_on.is_empty() || !dependencies().all(is_lost) {
        return Vec::new();
    }
    vec![Event::TaskCancelled {
        task: task.spec.id.clone(),
        reason: "nothing that it builds on is there".into(),
        with: None,
        usage: Usage::default(),
    }]
}
