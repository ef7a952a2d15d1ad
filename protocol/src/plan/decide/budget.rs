//! Reservations: the resources that work may use are reserved before it is dispatched. Three pools limit them: the run's,
//! its capability's and its task's. If a pool is exhausted and no work in flight can return anything to it, the work that
//! waits for it is given up: a task for its own pool, the run for its own, which then winds down with what it has.
//!
//! # Invariants
//!
//! - I38: Under a budget nothing is dispatched without a reservation, and no limit is exceeded by more than one model call per
//!   attempt in flight. (`protocol/tests/rules/properties.rs::invariants_hold_for_any_inputs`,
//!   `crates/agent/tests/turn/allowance.rs::attempt_exceeds_its_reservation_by_at_most_one_call`,
//!   `worker/tests/stopping.rs::an_order_limits_its_attempt_to_the_reserved_amounts`)
//! - I39: A run that ended for lack of budget survives every process and resumes with more.
//!   (`tests/tests/behaviours/crashes.rs::run_out_of_budget_survives_a_full_restart`)

use std::collections::btree_set;
use std::iter::Peekable;

use super::super::budget::{Budget, ResourceAmounts, ResourceKind};
use super::super::reserved::{AmountSums, Reservations};
use super::super::state::{AttemptEnd, EndReason, Plan, PlanningTurn, Task, TaskState};
use super::super::{BudgetEvent, Event, TaskEvent, Work};
use super::turn::give_up_turn;
use super::wave::append_consequences_of_task_ends;
use super::winding_down::{percentage_of, wind_down_run};
use crate::ids::Capability;
use crate::result::{ExceededLimit, Usage};

/// The divisor of the rest of its pool that an attempt reserves: a quarter.
pub(super) const SHARE: u64 = 4;
/// The divisor for a task's own budget: an attempt reserves half, and leaves the rest for its review.
const TASK_SHARE: u64 = 2;
/// The divisor of a limit below which a pool counts as exhausted: a sixteenth.
const LEAST: u64 = 16;

/// The result of a reservation request.
enum ReservationDecision {
    Fits(ResourceAmounts),
    /// It may fit when work in flight of this pool has ended.
    Later(BudgetPool),
    /// It will never fit; the reason.
    Never(BudgetPool, String),
}

/// The owner of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BudgetPool {
    Run,
    Capability,
    Task,
}

impl BudgetPool {
    fn describe_exhaustion(self, why: &str) -> String {
        match self {
            Self::Run => format!("the run's budget is exhausted: {why}"),
            Self::Capability => format!("the budget of its capability is exhausted: {why}"),
            Self::Task => format!("its budget is exhausted: {why}"),
        }
    }
}

pub(super) struct BudgetPoolState<'a> {
    pub pool: BudgetPool,
    pub limits: ResourceAmounts,
    pub used: Usage,
    pub reserved: Option<&'a AmountSums>,
    /// The percentage of the limits that this work may not use.
    pub held_back: u64,
    pub share: u64,
    /// The requested reservation of an attempt, if there is one.
    pub requested: ResourceAmounts,
    /// What the first request of the work needs, as far as that is known.
    pub needs: ResourceAmounts,
    /// The same of the final task.
    pub needs_of_final: ResourceAmounts,
}

impl BudgetPoolState<'_> {
    /// The pool as if no work were in flight.
    fn without_reservations(self) -> Self {
        Self { reserved: None, ..self }
    }

    /// The amount of a limit that this work may not use: what the first request of the final task is known to need, if that
    /// is more than the percentage.
    fn held_back_of(&self, dimension: ResourceKind, limit: u64) -> u64 {
        if self.held_back == 0 {
            return 0;
        }
        let needs = self.needs_of_final.get(dimension).unwrap_or(0);
        percentage_of(limit, self.held_back).max(needs).min(limit)
    }

    /// The smallest amount with which work is dispatched.
    fn least_reservation(&self, dimension: ResourceKind, limit: u64) -> u64 {
        let least = match self.requested.get(dimension) {
            Some(requested) => requested.div_ceil(4),
            None => limit / LEAST,
        };
        least.max(1).max(self.needs.get(dimension).unwrap_or(0))
    }

    /// The amount of a limit that this work may use and that is not used; reservations are left out.
    fn unused_amount(&self, dimension: ResourceKind, limit: u64) -> u64 {
        let within = limit - self.held_back_of(dimension, limit);
        within.saturating_sub(dimension.amount_used(&self.used))
    }

    /// Returns the limits that stop work, each at least doubled, until work fits that uses a quarter of it.
    pub fn larger_limits(&self) -> ResourceAmounts {
        let mut larger = ResourceAmounts::default();
        for (dimension, limit) in self.limits.iter() {
            if self.unused_amount(dimension, limit) < self.least_reservation(dimension, limit) {
                larger.set(dimension, Some(self.sufficient_limit(dimension, limit)));
            }
        }
        larger
    }

    pub fn sufficient_limit(&self, dimension: ResourceKind, limit: u64) -> u64 {
        let is_enough = |limit: &u64| {
            let usable = limit - self.held_back_of(dimension, *limit);
            let wanted = self.least_reservation(dimension, *limit).max(usable / SHARE);
            self.unused_amount(dimension, *limit) >= wanted
        };
        let mut doubled = std::iter::successors(limit.checked_mul(2), |limit| limit.checked_mul(2));
        doubled.find(is_enough).unwrap_or(u64::MAX)
    }

    fn reservation_for_attempt(&self) -> ReservationDecision {
        let mut amounts = ResourceAmounts::default();
        let mut is_later = false;
        for (dimension, limit) in self.limits.iter() {
            let within = limit - self.held_back_of(dimension, limit);
            let used = dimension.amount_used(&self.used);
            let reserved = self.reserved.and_then(|sums| sums.get(&dimension)).copied().unwrap_or(0);
            let reserved = u64::try_from(reserved).unwrap_or(u64::MAX);
            let left = within.saturating_sub(used).saturating_sub(reserved);
            let least = self.least_reservation(dimension, limit);
            let wanted = self.requested.get(dimension).unwrap_or_else(|| (left / self.share).max(least));
            let wanted = wanted.max(self.needs.get(dimension).unwrap_or(0));
            if left < least && reserved > 0 {
                is_later = true;
            } else if left < least {
                let (limit, used) = (dimension.format_amount(limit), dimension.format_amount(used));
                return ReservationDecision::Never(self.pool, format!("{used} of {limit} used"));
            }
            amounts.set(dimension, Some(wanted.min(left)));
        }
        if is_later { ReservationDecision::Later(self.pool) } else { ReservationDecision::Fits(amounts) }
    }
}

/// The reservations of the run while more are added.
pub(super) struct ReservationLedger<'a> {
    plan: &'a Plan,
    budget: &'a Budget,
    reserved: Reservations,
    made: Vec<Event>,
}

impl<'a> ReservationLedger<'a> {
    pub fn new(plan: &'a Plan, budget: &'a Budget) -> Self {
        Self { plan, budget, reserved: plan.budget.reserved.without_single_reservations(), made: Vec::new() }
    }

    fn reserve_for_work(&mut self, work: Work, amounts: ResourceAmounts) {
        if let Some(capability) = self.plan.queue_of_work(&work) {
            self.reserved.reserve(&work, capability, amounts, self.plan.draws_on_parent(&work));
            self.made.push(Event::Budget(BudgetEvent::Reserved { work, amounts }));
        }
    }

    fn reservation_size_for(&self, work: &Work) -> ReservationDecision {
        let task = work.task().and_then(|id| self.plan.task(id));
        let mut all = self.budget.attempt;
        let share = if self.has_previous_attempt_exceeded_reservation(work, task) { 1 } else { SHARE };
        let needs = self.needs_of(work);
        if let Some((dimension, allowed)) = all
            .iter()
            .find(|(dimension, allowed)| needs.get(*dimension).is_some_and(|needs| needs > *allowed))
        {
            let needs = dimension.format_amount(needs.get(dimension).unwrap_or(0));
            let why = format!(
                "its first request needs {needs}, and an attempt may use {}",
                dimension.format_amount(allowed)
            );
            return ReservationDecision::Never(BudgetPool::Task, why);
        }
        // The amounts of a child are reserved for its parent, which waits for it: it must not wait for other work.
        let accounts = match self.plan.draws_on_parent(work) {
            false => [self.run_pool(task, share), self.capability_pool(work, share), self.task_pool(task)],
            true => {
                let of_capability = self.capability_pool(work, share);
                [None, of_capability.map(BudgetPoolState::without_reservations), self.task_pool(task)]
            }
        };
        let needs_of_final = self.needs_of_final_task();
        for account in
            accounts.into_iter().flatten().map(|pool| BudgetPoolState { needs, needs_of_final, ..pool })
        {
            match account.reservation_for_attempt() {
                ReservationDecision::Fits(amounts) => all = all.min_per_resource(amounts),
                short @ (ReservationDecision::Later(_) | ReservationDecision::Never(..)) => return short,
            }
        }
        ReservationDecision::Fits(all)
    }

    /// `true` if the previous attempt exceeded its reservation: this one gets all that is left, so that the same is not
    /// paid for again and again.
    fn has_previous_attempt_exceeded_reservation(&self, work: &Work, task: Option<&Task>) -> bool {
        match work {
            Work::Planning { .. } => {
                self.plan.planning.turn.as_ref().is_some_and(|planning| planning.exceeded_reservation)
            }
            Work::Review { .. } => false,
            Work::Task { .. } => {
                let last = task.and_then(|task| task.attempts.last());
                let end = last.and_then(|attempt| attempt.end.as_ref());
                matches!(end, Some(AttemptEnd::Errored(error)) if error.limit == Some(ExceededLimit::Allowance))
            }
        }
    }

    /// Returns what the first request of work needs, as far as that is known.
    pub fn needs_of(&self, work: &Work) -> ResourceAmounts {
        let needs =
            self.plan.queue_of_work(work).and_then(|queue| self.plan.budget.needs.get(&queue).copied());
        needs.unwrap_or_default()
    }

    /// Returns what the first request of the final task needs: what is known of its capability, or else the most that is
    /// known of any.
    pub fn needs_of_final_task(&self) -> ResourceAmounts {
        let known = &self.plan.budget.needs;
        let own = self.plan.final_task().and_then(|task| known.get(&task.spec.capability));
        own.copied()
            .unwrap_or_else(|| known.values().copied().fold(ResourceAmounts::default(), ResourceAmounts::max))
    }

    pub fn run_pool(&self, task: Option<&Task>, share: u64) -> Option<BudgetPoolState<'_>> {
        if self.budget.amounts.is_empty() {
            return None;
        }
        let is_last = self.plan.run.winding_down.is_some() || task.is_some_and(|task| task.spec.is_final);
        let holds_back = !is_last && self.plan.final_task().is_none_or(|task| !task.state().is_terminal());
        Some(BudgetPoolState {
            pool: BudgetPool::Run,
            limits: self.budget.amounts,
            used: self.plan.budget.spend.total,
            reserved: Some(&self.reserved.total),
            held_back: if holds_back { u64::from(self.budget.final_percent) } else { 0 },
            share: if is_last { share.min(TASK_SHARE) } else { share },
            requested: self.budget.attempt,
            needs: ResourceAmounts::default(),
            needs_of_final: ResourceAmounts::default(),
        })
    }

    pub fn capability_pool(&self, work: &Work, share: u64) -> Option<BudgetPoolState<'_>> {
        if self.budget.capabilities.is_empty() {
            return None;
        }
        let name = self.plan.queue_of_work(work)?;
        let limits = *self.budget.capabilities.get(&name)?;
        Some(BudgetPoolState {
            pool: BudgetPool::Capability,
            limits,
            used: self.plan.budget.spend.by_capability.get(&name).copied().unwrap_or_default(),
            reserved: self.reserved.by_capability.get(&name),
            held_back: 0,
            share,
            requested: self.budget.attempt,
            needs: ResourceAmounts::default(),
            needs_of_final: ResourceAmounts::default(),
        })
    }

    pub fn task_pool(&self, task: Option<&Task>) -> Option<BudgetPoolState<'_>> {
        let task = task.filter(|task| !task.spec.budget.is_empty())?;
        Some(BudgetPoolState {
            pool: BudgetPool::Task,
            limits: task.spec.budget,
            used: self.plan.usage_with_children(task),
            // A task has one piece of work in flight at a time: earlier work has ended.
            reserved: None,
            held_back: 0,
            share: TASK_SHARE,
            requested: ResourceAmounts::default(),
            needs: ResourceAmounts::default(),
            needs_of_final: ResourceAmounts::default(),
        })
    }
}

/// The work that waits for a reservation, in its order: the planning turn, reviews, and then tasks as they were added. All
/// work of one capability can be skipped at once, which matters for thousands of tasks.
struct WorkAwaitingReservation<'a> {
    plan: &'a Plan,
    planning: Option<Work>,
    /// The tasks by capability, each in order; reviews are under `None`, and come first.
    groups: Vec<(&'a Option<Capability>, Peekable<btree_set::Iter<'a, u32>>)>,
    /// The key of the last returned work.
    last: Option<usize>,
}

impl<'a> WorkAwaitingReservation<'a> {
    fn of_plan(plan: &'a Plan) -> Self {
        let planning = plan.planning.turn.as_ref().filter(|planning| planning.retry_at.is_none());
        let is_short = |work: &Work| {
            plan.needs_reservation(work) && plan.budget.reserved.amounts_of_work(work).is_none()
        };
        // Tasks do not start before the approval of the plan.
        let waiting = Some(&plan.index.waiting).filter(|_| !plan.needs_approval()).into_iter().flatten();
        let groups = waiting.map(|(name, all)| (name, all.iter().peekable())).collect();
        Self { plan, planning: planning.map(PlanningTurn::work).filter(is_short), groups, last: None }
    }

    fn next_work(&mut self) -> Option<Work> {
        self.last = None;
        if let Some(planning) = self.planning.take() {
            return Some(planning);
        }
        let heads = self.groups.iter_mut().enumerate();
        let heads = heads.filter_map(|(at, (name, all))| Some((name.is_some(), **all.peek()?, at)));
        let (_, position, at) = heads.min()?;
        self.groups[at].1.next();
        self.last = Some(at);
        self.plan.tasks[position as usize].dispatched_work()
    }

    /// Skips all work of the capability of the last returned work.
    fn skip_capability_of_last_work(&mut self) {
        if let Some(at) = self.last.take() {
            drop(self.groups.swap_remove(at));
        }
    }
}

/// Reserves for waiting work, as far as the pools allow; gives up work that can never get a reservation.
pub(super) fn reserve_for_waiting_work(plan: &Plan) -> Vec<Event> {
    let Some(start) = plan.run.start.as_ref().filter(|_| plan.needs_any_reservation()) else {
        return Vec::new();
    };
    let mut ledger = ReservationLedger::new(plan, &start.budget);
    let mut waiting = WorkAwaitingReservation::of_plan(plan);
    let mut lost = reserve_for_children(plan, &mut ledger);
    while let Some(work) = waiting.next_work() {
        match ledger.reservation_size_for(&work) {
            ReservationDecision::Fits(amounts) => ledger.reserve_for_work(work, amounts),
            ReservationDecision::Later(BudgetPool::Capability) => waiting.skip_capability_of_last_work(),
            // Only the final task may use more of it.
            ReservationDecision::Later(BudgetPool::Run) => {
                reserve_for_final_task(plan, &mut ledger);
                break;
            }
            ReservationDecision::Later(BudgetPool::Task) => {}
            ReservationDecision::Never(BudgetPool::Run, why)
                if ledger.made.is_empty() && plan.run.winding_down.is_none() =>
            {
                return wind_down_run(
                    plan,
                    EndReason::BudgetExhausted,
                    &format!("the budget is exhausted: {why}"),
                );
            }
            ReservationDecision::Never(pool, why) => lost.push((work, pool, why)),
        }
    }
    // Dispatch first what can be dispatched; lost work is found again afterwards.
    if ledger.made.is_empty() { give_up_work_without_reservation(plan, &lost) } else { ledger.made }
}

/// Reserves for children. Returns those that can never get a reservation.
fn reserve_for_children(plan: &Plan, ledger: &mut ReservationLedger<'_>) -> Vec<(Work, BudgetPool, String)> {
    let mut lost = Vec::new();
    let waiting = plan.index.waiting_children.iter();
    for work in waiting.filter_map(|&position| plan.tasks[position as usize].dispatched_work()) {
        match ledger.reservation_size_for(&work) {
            ReservationDecision::Fits(amounts) => ledger.reserve_for_work(work, amounts),
            ReservationDecision::Later(_) => {}
            ReservationDecision::Never(pool, why) => lost.push((work, pool, why)),
        }
    }
    lost
}

fn reserve_for_final_task(plan: &Plan, ledger: &mut ReservationLedger<'_>) {
    let waits =
        |task: &&Task| matches!(task.state(), TaskState::Ready | TaskState::Rerun | TaskState::NeedsReview);
    let last = plan.final_task().filter(|task| waits(task) && !plan.needs_approval());
    let Some(work) = last.and_then(Task::dispatched_work) else { return };
    if [&plan.budget.reserved, &ledger.reserved]
        .iter()
        .any(|reserved| reserved.amounts_of_work(&work).is_some())
    {
        return;
    }
    if let ReservationDecision::Fits(amounts) = ledger.reservation_size_for(&work) {
        ledger.reserve_for_work(work, amounts);
    }
}

/// `true` if the planner's own budget is exhausted.
pub(super) fn is_planner_budget_exhausted(plan: &Plan) -> bool {
    let Some(start) = &plan.run.start else { return false };
    let work = Work::Planning { turn: plan.planning.turns, attempt: 1 };
    let ledger = ReservationLedger::new(plan, &start.budget);
    let account = ledger.capability_pool(&work, SHARE);
    matches!(account.map(|account| account.reservation_for_attempt()), Some(ReservationDecision::Never(..)))
}

/// Gives up work that can never get a reservation.
fn give_up_work_without_reservation(plan: &Plan, lost: &[(Work, BudgetPool, String)]) -> Vec<Event> {
    let planning = lost.iter().find(|(work, ..)| work.task().is_none());
    if let Some((_, _, why)) = planning {
        return give_up_turn(plan, &format!("the planner's budget is exhausted: {why}"))
            .into_iter()
            .collect();
    }
    // With fail_fast, only one failure counts.
    let is_first_alone = plan.run.start.as_ref().is_some_and(|start| start.fail_fast);
    let lost = lost.iter().take(if is_first_alone { 1 } else { lost.len() });
    let events = lost.filter_map(|(work, pool, why)| {
        let (task, reason) = (work.task()?.clone(), pool.describe_exhaustion(why));
        // A larger budget of the run does not help a task that has used its own.
        let comes_back = match pool {
            BudgetPool::Task => false,
            BudgetPool::Run | BudgetPool::Capability => plan.run.winding_down.is_some(),
        };
        let (usage, with) = (Usage::default(), None);
        Some(Event::Task(match comes_back {
            false => TaskEvent::Failed { task, reason },
            true => TaskEvent::Cancelled { task, reason, with, usage },
        }))
    });
    append_consequences_of_task_ends(plan, events.collect())
}

/// Winds down a run whose user set no limit, when it has used far more tokens than its plan needs: a planner or an agent
/// that goes round in circles comes to an end.
pub(super) fn wind_down_at_default_tokens(plan: &Plan) -> Vec<Event> {
    if plan.run.winding_down.is_some() || plan.run.end.is_some() {
        return Vec::new();
    }
    let used = ResourceKind::Tokens.amount_used(&plan.budget.spend.total);
    let Some(limit) = plan.default_token_limit().filter(|limit| used >= *limit) else { return Vec::new() };
    let detail = format!(
        "{used} tokens are used, and without a budget of tokens a run may use {limit} for the tasks of this plan"
    );
    wind_down_run(plan, EndReason::BudgetExhausted, &detail)
}
