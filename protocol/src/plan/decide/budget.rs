//! Reservations: what work may use is set aside before it is given out. Three pools limit it: the run's, its capability's
//! and its task's. Where a pool has nothing left and nothing of it may still come back, what waits for it is given up:
//! a task for its own, the run for its own, which then comes to its end with what it has.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::super::budget::{Amounts, Budget, Dimension, WhenSpent};
use super::super::spec::OnFailedDependency;
use super::super::state::{EndReason, ErroredFor, Occasion, Plan, Task, TaskState};
use super::super::{Event, Refusal, Work};
use super::wave::with_consequences;
use super::{final_task, in_hand, planning};
use crate::ids::TaskId;
use crate::result::Usage;
use crate::subject::{CRITIC, PLANNER};

/// An attempt takes one part in so many of what its pool has left.
const SHARE: u64 = 4;
/// An attempt at a task with a budget of its own leaves so much of it for its review.
const TASK_SHARE: u64 = 2;
/// Below one part in so many of a limit, there is nothing left.
const LEAST: u64 = 16;

/// What comes of asking for a reservation.
enum Sized {
    /// It fits.
    Fits(Amounts),
    /// It may fit when work that is under way has ended.
    Later,
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

/// What one pool has.
struct Account {
    pool: Pool,
    limits: Amounts,
    used: Usage,
    reserved: BTreeMap<Dimension, u64>,
    /// Percent of the limits that this work may not touch.
    held_back: u64,
    share: u64,
    /// What an attempt takes where that is said.
    said: Amounts,
}

impl Account {
    fn size(&self) -> Sized {
        let mut amounts = Amounts::default();
        let mut is_later = false;
        for (dimension, limit) in self.limits.iter() {
            let within = limit - limit / 100 * self.held_back - limit % 100 * self.held_back / 100;
            let used = dimension.of(&self.used);
            let reserved = self.reserved.get(&dimension).copied().unwrap_or(0);
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
        if is_later { Sized::Later } else { Sized::Fits(amounts) }
    }
}

/// What the run uses, while reservations are made one after the other.
struct Ledger<'a> {
    plan: &'a Plan,
    budget: &'a Budget,
    made: Vec<(Work, Amounts)>,
}

impl Ledger<'_> {
    fn reserved(&self, of: impl Fn(&Work) -> bool) -> BTreeMap<Dimension, u64> {
        let made = self.made.iter().map(|(work, amounts)| (work, amounts));
        let mut sum: BTreeMap<Dimension, u64> = BTreeMap::new();
        for (_, amounts) in self.plan.reserved.iter().chain(made).filter(|(work, _)| of(work)) {
            for (dimension, amount) in amounts.iter() {
                let so_far = sum.entry(dimension).or_default();
                *so_far = so_far.saturating_add(amount);
            }
        }
        sum
    }

    fn capability(&self, work: &Work) -> Option<&str> {
        match work {
            Work::Planning { .. } => Some(PLANNER),
            Work::Review { .. } => Some(CRITIC),
            Work::Task { task, .. } => Some(self.plan.task(task)?.spec.capability.as_str()),
        }
    }

    fn size(&self, work: &Work) -> Sized {
        let task = work.task().and_then(|id| self.plan.task(id));
        let mut all = Amounts { ..self.budget.attempt };
        for account in [self.of_run(task), self.of_capability(work), self.of_task(task)].into_iter().flatten() {
            match account.size() {
                Sized::Fits(amounts) => all = all.min(amounts),
                other => return other,
            }
        }
        Sized::Fits(all)
    }

    fn of_run(&self, task: Option<&Task>) -> Option<Account> {
        if self.budget.amounts.is_empty() {
            return None;
        }
        let is_last = self.plan.winding_down.is_some() || task.is_some_and(|task| task.spec.is_final);
        let holds_back = !is_last && final_task(self.plan).is_none_or(|task| !task.state.is_terminal());
        Some(Account {
            pool: Pool::Run,
            limits: self.budget.amounts,
            used: self.plan.spend.total,
            reserved: self.reserved(|_| true),
            held_back: if holds_back { u64::from(self.budget.final_percent) } else { 0 },
            share: if is_last { TASK_SHARE } else { SHARE },
            said: self.budget.attempt,
        })
    }

    fn of_capability(&self, work: &Work) -> Option<Account> {
        let name = self.capability(work)?;
        let limits = *self.budget.capabilities.get(name)?;
        Some(Account {
            pool: Pool::Capability,
            limits,
            used: self.plan.spend.by_capability.get(name).copied().unwrap_or_default(),
            reserved: self.reserved(|other| self.capability(other) == Some(name)),
            held_back: 0,
            share: SHARE,
            said: self.budget.attempt,
        })
    }

    fn of_task(&self, task: Option<&Task>) -> Option<Account> {
        let task = task.filter(|task| !task.spec.budget.is_empty())?;
        Some(Account {
            pool: Pool::Task,
            limits: task.spec.budget,
            used: task.usage(),
            reserved: self.reserved(|other| other.task() == Some(&task.spec.id)),
            held_back: 0,
            share: TASK_SHARE,
            said: Amounts::default(),
        })
    }
}

/// The work that waits for a reservation, in the order in which it gets one: the planner, what is to be judged, and then
/// the tasks as they were added.
fn waiting(plan: &Plan) -> Vec<Work> {
    let planning = plan.planning.as_ref().filter(|planning| planning.retry_at.is_none());
    let planning = planning.map(|planning| Work::Planning { turn: planning.turn, attempt: planning.attempt });
    let tasks = || plan.waiting.iter().map(|&at| &plan.tasks[at as usize]);
    let reviews = tasks().filter(|task| task.state == TaskState::NeedsReview && task.review_at.is_none());
    let reviews = reviews.map(|task| Work::Review {
        task: task.spec.id.clone(),
        attempt: task.attempt,
        review: task.review,
    });
    let attempts = tasks().filter(|task| task.state != TaskState::NeedsReview);
    let attempts = attempts.map(|task| Work::Task { task: task.spec.id.clone(), attempt: task.attempt });
    let all = planning.into_iter().chain(reviews).chain(attempts);
    all.filter(|work| plan.needs_reservation(work) && plan.reserved.of(work).is_none()).collect()
}

/// Makes reservations for what waits, as far as there is something left; gives up what can never have one.
pub(super) fn reserve(plan: &Plan) -> Vec<Event> {
    let Some(start) = &plan.start else { return Vec::new() };
    if !start.budget.counts() && plan.budgeted == 0 {
        return Vec::new();
    }
    let mut ledger = Ledger { plan, budget: &start.budget, made: Vec::new() };
    for work in waiting(plan) {
        match ledger.size(&work) {
            Sized::Fits(amounts) => ledger.made.push((work, amounts)),
            Sized::Later => {}
            Sized::Never(pool, why) => {
                // What was found so far is made first; this is found again when it has been.
                if ledger.made.is_empty() {
                    return given_up(plan, &work, pool, &why);
                }
                break;
            }
        }
    }
    ledger.made.into_iter().map(|(work, amounts)| Event::Reserved { work, amounts }).collect()
}

fn given_up(plan: &Plan, work: &Work, pool: Pool, why: &str) -> Vec<Event> {
    let of_task = |task: &TaskId| {
        let reason = match pool {
            Pool::Run => format!("the run's budget is used up: {why}"),
            Pool::Capability => format!("the budget of its capability is used up: {why}"),
            Pool::Task => format!("its budget is used up: {why}"),
        };
        with_consequences(plan, vec![Event::TaskFailed { task: task.clone(), reason }])
    };
    match (pool, work) {
        (Pool::Run, _) if plan.winding_down.is_none() => {
            wind_down(plan, EndReason::BudgetExhausted, &format!("the budget is used up: {why}"))
        }
        (_, Work::Task { task, .. } | Work::Review { task, .. }) => of_task(task),
        (_, Work::Planning { .. }) => {
            planning::given_up(plan, &format!("the planner's budget is used up: {why}")).into_iter().collect()
        }
    }
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
        (used >= limit / 100 * soft + limit % 100 * soft / 100)
            .then(|| format!("{} of {} are used", dimension.say(used), dimension.say(limit)))
    });
    amounts.or_else(|| {
        let limit = SignedDuration::try_from(budget.wall_time?).ok()?;
        let worked = plan.worked(now);
        let is_low = worked.as_millis() >= limit.as_millis() / 100 * i128::from(soft);
        is_low.then(|| format!("{:#} of {:#} are over", rounded(worked), rounded(limit)))
    })
}

fn rounded(time: SignedDuration) -> SignedDuration {
    SignedDuration::from_secs(time.as_secs())
}

/// The time that the run may take is over.
pub(super) fn wall_time(plan: &Plan, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    let limit = plan.start.as_ref().and_then(|start| start.budget.wall_time);
    let limit = limit.and_then(|limit| SignedDuration::try_from(limit).ok());
    match limit {
        Some(limit) if plan.worked(now) >= limit && plan.winding_down.is_none() => {
            let detail = format!("the time of {:#} that it may take is over", rounded(limit));
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
    let last = final_task(plan).filter(|task| can_be_made(plan, task, &stays));
    let mut events = vec![Event::WindingDown { reason, detail: detail.to_owned() }];
    events.extend(planning::given_up(plan, detail));
    if let Some(task) = last.filter(|task| task.state == TaskState::Pending) {
        let spec = super::super::TaskSpec {
            on_failed_dependency: OnFailedDependency::Skip,
            ..task.spec.clone()
        };
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
        if !dependencies.into_iter().any(|dependency| stays(dependency)) {
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
    let Some(task) = final_task(plan).filter(waits) else { return Vec::new() };
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
