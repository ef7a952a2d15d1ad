//! The orders of a lane's runs. The plans decide which work is pending; this part turns it into orders for the queues,
//! within each run's share. No I/O.
//!
//! The share limits the orders that each run may have in each queue. A run of ten thousand tasks must not block a run of three: no run
//! keeps more unclaimed orders in a queue than its share of the live slots. The rest waits here, in order. All of it is
//! derived from plans and can be rebuilt.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foldhash::{HashMap, HashSet};
use millrace_protocol::ids::{Capability, Lane, RunId, TaskId};
use millrace_protocol::plan::{JournalKey, Plan, TaskState, Work, is_order_pending, work_in_flight};
use millrace_protocol::subject::CRITIC;
use millrace_protocol::work::Order;

use crate::live::LiveRun;
use crate::order::{build_order, builtin_capability};

/// The work of a lane that waits for a queue or is offered in one.
#[derive(Debug)]
pub(super) struct LaneWorkOffers {
    lane: Lane,
    pub(super) fair_share: FairShareScheduler,
    critic: Capability,
}

impl LaneWorkOffers {
    pub(super) fn new(lane: Lane) -> Self {
        Self { lane, fair_share: FairShareScheduler::default(), critic: builtin_capability(CRITIC) }
    }

    /// Adds work that a decision has made pending. Returns its queue; `None` if the plan does not know the work.
    pub(super) fn add_work(&mut self, run: &RunId, plan: &Plan, work: Work) -> Option<Capability> {
        let capability = plan.queue_of_work(&work)?;
        self.fair_share.add_work(&capability, run, work);
        Some(capability)
    }

    /// Returns the orders of a run that fit into its share of a queue, and counts them as offered.
    pub(super) fn take_next_orders(
        &mut self,
        capability: &Capability,
        run: &RunId,
        live: &LiveRun,
    ) -> Vec<Order> {
        let works =
            self.fair_share.take_next_work(capability, run, |work| is_order_pending(&live.plan, work));
        self.build_orders(run, live, &works)
    }

    /// Returns orders for work that workers have claimed, regardless of shares: it takes no place in a queue. The queue
    /// ignores an order that it still holds; an order that it has lost must be there when the claimant is lost.
    pub(super) fn orders_in_flight(&self, run: &RunId, live: &LiveRun) -> Vec<Order> {
        self.build_orders(run, live, &work_in_flight(&live.plan))
    }

    /// Returns orders for pieces of work as the plan knows them now.
    pub(super) fn build_orders(&self, run: &RunId, live: &LiveRun, works: &[Work]) -> Vec<Order> {
        let Some(last) = live.last_decision() else { return Vec::new() };
        works.iter().filter_map(|work| build_order(run, self.lane, &live.plan, last, work)).collect()
    }

    /// Frees the place of claimed work. Returns its queue, if it was offered from here.
    pub(super) fn free_place_of_claimed_work(
        &mut self,
        run: &RunId,
        plan: &Plan,
        journal: &JournalKey,
    ) -> Option<Capability> {
        let capability = plan.queue_of_journal(journal)?;
        self.fair_share.free_place_of_claimed_work(&capability, run, journal).then_some(capability)
    }

    /// Frees the places of work that the plan no longer waits for, even if its claim was never read.
    pub(super) fn free_places_of_ended_work(&mut self, run: &RunId, plan: &Plan, touched: &BTreeSet<TaskId>) {
        for task in touched.iter().filter_map(|id| plan.task(id)) {
            let (id, attempt) = (&task.spec.id, task.attempt);
            if !matches!(task.state(), TaskState::Ready | TaskState::Rerun) {
                self.fair_share.free_place_of_claimed_work(
                    &task.spec.capability,
                    run,
                    &JournalKey::Task(id.clone(), attempt),
                );
            }
            if task.state() != TaskState::NeedsReview && !task.review_policy().is_none() {
                self.fair_share.free_place_of_claimed_work(
                    &self.critic,
                    run,
                    &JournalKey::Review(id.clone(), attempt),
                );
            }
        }
    }

    /// Makes work wait again that could not be put into its queue, in its old order.
    pub(super) fn put_back_unoffered_work(&mut self, works: Vec<(Capability, RunId, Work)>) {
        for (capability, run, work) in works.into_iter().rev() {
            self.fair_share.put_back_unoffered_work(&capability, &run, work);
        }
    }

    /// Returns the tasks of a run that are running, offered or `held` by a queue, if all others that could be claimed wait for a
    /// place in a queue; `None` if some do not, so that each task has to be looked at. In a large run nearly all wait. Work that waits
    /// although a queue holds its order may hide as many others, until it is claimed.
    pub(super) fn tasks_beside_waiting(
        &self,
        run: &RunId,
        plan: &Plan,
        held: impl Iterator<Item = TaskId>,
    ) -> Option<BTreeSet<TaskId>> {
        let offered = self.fair_share.offered_work(run).filter_map(|work| work.task().cloned());
        let running = plan.tasks().iter().filter(|task| task.state() == TaskState::Running);
        let tasks: BTreeSet<TaskId> =
            running.map(|task| task.spec.id.clone()).chain(offered).chain(held).collect();
        let claimable = [TaskState::Ready, TaskState::Rerun, TaskState::NeedsReview];
        let known = tasks.iter().filter_map(|id| plan.task(id));
        let known = known.filter(|task| claimable.contains(&task.state())).count();
        let all: u32 = claimable.iter().map(|state| plan.task_count_in_state(*state)).sum();
        (all as usize <= known + self.fair_share.waiting_count(run)).then_some(tasks)
    }
}

/// The number of orders that a run may keep in a queue however small its share is: enough to hide the round trip.
const MIN_SHARE: usize = 16;
/// The number of slots assumed for a queue before the first heartbeat of its workers.
const UNKNOWN_SLOTS: usize = 64;

/// The work that waits for a queue or is offered in one, by queue and run.
#[derive(Debug, Default)]
pub(super) struct FairShareScheduler {
    queues: BTreeMap<Capability, QueueBacklogs>,
    slots: BTreeMap<Capability, usize>,
}

#[derive(Debug, Default)]
struct QueueBacklogs {
    runs: BTreeMap<RunId, RunBacklog>,
}

#[derive(Debug, Default)]
struct RunBacklog {
    waiting: VecDeque<Work>,
    offered: HashMap<JournalKey, Work>,
}

impl FairShareScheduler {
    /// Adds work to offer; a later [`Self::take_next_work`] returns it.
    pub(super) fn add_work(&mut self, capability: &Capability, run: &RunId, work: Work) {
        let queue = match self.queues.get_mut(capability) {
            Some(queue) => queue,
            None => self.queues.entry(capability.clone()).or_default(),
        };
        let backlog = match queue.runs.get_mut(run) {
            Some(backlog) => backlog,
            None => queue.runs.entry(run.clone()).or_default(),
        };
        backlog.waiting.push_back(work);
    }

    /// Returns the waiting work of a run that fits into its share, and counts it as offered. Work for which `is_pending`
    /// is false is dropped: no claim would ever free its place. The share is twice the run's part of the slots, so that
    /// a worker that finishes finds the next order in the queue.
    pub(super) fn take_next_work(
        &mut self,
        capability: &Capability,
        run: &RunId,
        is_pending: impl Fn(&Work) -> bool,
    ) -> Vec<Work> {
        let slots = self.slots.get(capability).copied().unwrap_or(UNKNOWN_SLOTS);
        let Some(queue) = self.queues.get_mut(capability) else { return Vec::new() };
        let share = (2 * slots / queue.runs.len().max(1)).max(MIN_SHARE);
        let Some(backlog) = queue.runs.get_mut(run) else { return Vec::new() };
        let mut next = Vec::new();
        while backlog.offered.len() < share
            && let Some(work) = backlog.waiting.pop_front()
        {
            if is_pending(&work) {
                backlog.offered.insert(work.journal_key(), work.clone());
                next.push(work);
            }
        }
        if backlog.offered.is_empty() && backlog.waiting.is_empty() {
            queue.runs.remove(run);
        }
        next
    }

    /// Frees the place of claimed work. Returns `true` if it was offered here.
    pub(super) fn free_place_of_claimed_work(
        &mut self,
        capability: &Capability,
        run: &RunId,
        journal: &JournalKey,
    ) -> bool {
        let Some(queue) = self.queues.get_mut(capability) else { return false };
        let Some(backlog) = queue.runs.get_mut(run) else { return false };
        let was_offered = backlog.offered.remove(journal).is_some();
        if backlog.offered.is_empty() && backlog.waiting.is_empty() {
            queue.runs.remove(run);
        }
        was_offered
    }

    /// Removes work that the plan has withdrawn.
    pub(super) fn remove_withdrawn_work(&mut self, capability: &Capability, run: &RunId, work: &Work) {
        if let Some(backlog) = self.queues.get_mut(capability).and_then(|queue| queue.runs.get_mut(run)) {
            backlog.waiting.retain(|waiting| waiting != work);
        }
        self.free_place_of_claimed_work(capability, run, &work.journal_key());
    }

    /// Makes offered work wait again, before the rest: it could not be put into the queue.
    pub(super) fn put_back_unoffered_work(&mut self, capability: &Capability, run: &RunId, work: Work) {
        if let Some(backlog) = self.queues.get_mut(capability).and_then(|queue| queue.runs.get_mut(run))
            && backlog.offered.remove(&work.journal_key()).is_some()
        {
            backlog.waiting.push_front(work);
        }
    }

    /// Removes a run that has ended or is being folded again.
    pub(super) fn remove_run(&mut self, run: &RunId) {
        for queue in self.queues.values_mut() {
            queue.runs.remove(run);
        }
    }

    /// Sets the number of slots that live workers have for each capability.
    pub(super) fn set_live_slots(&mut self, slots: BTreeMap<Capability, usize>) {
        self.slots = slots;
    }

    /// Returns the queues and runs that have work waiting.
    pub(super) fn runs_with_waiting_work(&self) -> Vec<(Capability, RunId)> {
        let waiting = |(capability, queue): (&Capability, &QueueBacklogs)| {
            let runs = queue.runs.iter().filter(|(_, backlog)| !backlog.waiting.is_empty());
            runs.map(|(run, _)| (capability.clone(), run.clone())).collect::<Vec<_>>()
        };
        self.queues.iter().flat_map(waiting).collect()
    }

    /// Returns the work of a run that waits to be offered.
    pub(super) fn waiting_work(&self, run: &RunId) -> HashSet<&Work> {
        let backlogs = self.queues.values().filter_map(|queue| queue.runs.get(run));
        backlogs.flat_map(|backlog| &backlog.waiting).collect()
    }

    /// The number of pieces of work of a run that wait to be offered.
    pub(super) fn waiting_count(&self, run: &RunId) -> usize {
        let backlogs = self.queues.values().filter_map(|queue| queue.runs.get(run));
        backlogs.map(|backlog| backlog.waiting.len()).sum()
    }

    /// Returns the work of a run that is offered and not claimed.
    pub(super) fn offered_work(&self, run: &RunId) -> impl Iterator<Item = &Work> {
        let backlogs = self.queues.values().filter_map(|queue| queue.runs.get(run));
        backlogs.flat_map(|backlog| backlog.offered.values())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use millrace_protocol::ids::{TaskId, WorkerId};
    use millrace_protocol::plan::{
        Attendance, CapabilityRegistry, CommandAction, Effect, Fact, PlanningMode, RunCommand, Submission,
        TaskSpec, UnknownCapabilityStatus,
    };

    use super::*;
    use crate::live::QueuedFact;

    impl FairShareScheduler {
        /// Returns all work that is offered and not claimed.
        fn unclaimed_work(&self) -> Vec<(RunId, Work)> {
            let runs = self.queues.values().flat_map(|queue| &queue.runs);
            runs.flat_map(|(run, backlog)| backlog.offered.values().map(|work| (run.clone(), work.clone())))
                .collect()
        }
    }

    /// A run in memory, and the offers of its lane.
    struct OfferTestCase {
        run: RunId,
        live: LiveRun,
        offers: LaneWorkOffers,
        sequence: u64,
    }

    impl OfferTestCase {
        /// A submitted run of independent tasks for the capability `echo`; its effects are carried out.
        fn with_submitted_tasks(tasks: &[&str]) -> Self {
            let tasks =
                tasks.iter().map(|id| TaskSpec::new(task_id(id), format!("do {id}"), echo_capability()));
            let submission = Submission::new("find out", PlanningMode::Fixed).with_tasks(tasks);
            let (live, offers) = (LiveRun::default(), LaneWorkOffers::new(Lane(0)));
            let mut case = Self { run: RunId::new("r").unwrap(), live, offers, sequence: 0 };
            case.decide_and_apply_effects(Fact::Submitted(Box::new(submission)));
            case
        }

        /// Decides on a fact and passes the effects to the offers.
        fn decide_and_apply_effects(&mut self, fact: Fact) {
            let now: Timestamp = "2026-11-21T23:00:00Z".parse().unwrap();
            let (me, cluster) = (
                WorkerId::new("s1").unwrap(),
                CapabilityRegistry::with_capability_names([echo_capability()]),
            );
            self.sequence += 1;
            self.live.queue_fact(QueuedFact { sequence: self.sequence, at: now, fact: Box::new(fact) });
            self.live
                .decide_pending_input(
                    &me,
                    (&cluster, UnknownCapabilityStatus::MayRegisterSoon),
                    &Attendance::begin(now),
                    now,
                )
                .unwrap();
            self.sequence += 1;
            assert!(self.live.finish_append(self.sequence));
            let (effects, touched) = self.live.take_effects_of_last_decision();
            self.offers.free_places_of_ended_work(&self.run, &self.live.plan, &touched);
            for effect in effects {
                match effect {
                    Effect::Offer(work) => drop(self.offers.add_work(&self.run, &self.live.plan, work)),
                    Effect::Withdraw(work, queue) => {
                        self.offers.fair_share.remove_withdrawn_work(&queue, &self.run, &work)
                    }
                    Effect::Close => self.offers.fair_share.remove_run(&self.run),
                }
            }
        }

        fn claim_task(&mut self, id: &str) {
            self.decide_and_apply_effects(Fact::Claimed(
                first_attempt(id),
                WorkerId::new("w1").unwrap(),
                None,
            ));
        }

        fn take_next_work(&mut self) -> Vec<Work> {
            work_of_orders(self.offers.take_next_orders(&echo_capability(), &self.run, &self.live))
        }
    }

    fn echo_capability() -> Capability {
        Capability::new("echo").unwrap()
    }

    fn task_id(id: &str) -> TaskId {
        TaskId::new(id).unwrap()
    }

    fn first_attempt(id: &str) -> Work {
        Work::Task { task: task_id(id), attempt: 1 }
    }

    fn work_of_orders(orders: Vec<Order>) -> Vec<Work> {
        orders.into_iter().map(|order| order.work()).collect()
    }

    #[test]
    fn pending_work_is_offered_once() {
        let mut case = OfferTestCase::with_submitted_tasks(&["a", "b"]);
        assert_eq!(case.take_next_work(), [first_attempt("a"), first_attempt("b")]);
        assert_eq!(case.take_next_work(), []);
        assert_eq!(case.offers.fair_share.unclaimed_work().len(), 2);
    }

    #[test]
    fn claim_frees_the_place_of_offered_work_only() {
        let mut case = OfferTestCase::with_submitted_tasks(&["a"]);
        case.take_next_work();
        let topic = first_attempt("a").journal_key();
        assert_eq!(
            case.offers.free_place_of_claimed_work(&case.run, &case.live.plan, &topic),
            Some(echo_capability())
        );
        assert_eq!(
            case.offers.free_place_of_claimed_work(&case.run, &case.live.plan, &topic),
            None,
            "it is free already"
        );
    }

    #[test]
    fn decided_claim_frees_the_place_even_if_it_was_not_read() {
        let mut case = OfferTestCase::with_submitted_tasks(&["a", "b"]);
        case.take_next_work();
        case.claim_task("a");
        assert_eq!(case.offers.fair_share.unclaimed_work(), [(case.run.clone(), first_attempt("b"))]);
    }

    #[test]
    fn claimed_work_is_offered_again_without_taking_a_place() {
        let mut case = OfferTestCase::with_submitted_tasks(&["a", "b"]);
        case.take_next_work();
        case.claim_task("a");
        assert_eq!(work_of_orders(case.offers.orders_in_flight(&case.run, &case.live)), [first_attempt("a")]);
        assert_eq!(case.offers.fair_share.unclaimed_work().len(), 1);
    }

    #[test]
    fn tasks_beside_waiting_are_listed_unless_one_is_lost() {
        let names: Vec<String> = (0..300).map(|n| format!("t{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut case = OfferTestCase::with_submitted_tasks(&names);
        let offered = case.take_next_work().len();
        assert!(offered < 250, "{offered} tasks are offered");
        case.claim_task("t0");
        let listed = |case: &OfferTestCase, held: &[&str]| {
            let held = held.iter().map(|id| task_id(id));
            case.offers.tasks_beside_waiting(&case.run, &case.live.plan, held)
        };
        let tasks = listed(&case, &["t299"]).unwrap();
        assert_eq!(tasks.len(), offered + 1, "those that were offered, and the one in the queue");
        assert!(tasks.contains(&task_id("t0")) && tasks.contains(&task_id("t299")));
        case.offers.fair_share.remove_withdrawn_work(&echo_capability(), &case.run, &first_attempt("t280"));
        assert!(listed(&case, &[]).is_none(), "t280 is neither offered nor does it wait");
    }

    #[test]
    fn work_that_was_cancelled_while_it_waited_is_not_offered() {
        let mut case = OfferTestCase::with_submitted_tasks(&["a", "b"]);
        let control = CommandAction::CancelTask { task: task_id("a"), reason: "not needed".into() };
        case.decide_and_apply_effects(Fact::Control(RunCommand {
            id: "c1".into(),
            by: "ann".into(),
            control,
        }));
        assert_eq!(case.take_next_work(), [first_attempt("b")]);
    }

    #[test]
    fn work_that_could_not_be_offered_keeps_its_order() {
        let mut case = OfferTestCase::with_submitted_tasks(&["a", "b", "c"]);
        let failed = case
            .take_next_work()
            .into_iter()
            .map(|work| (echo_capability(), case.run.clone(), work))
            .collect();
        case.offers.put_back_unoffered_work(failed);
        assert_eq!(case.offers.fair_share.runs_with_waiting_work(), [(echo_capability(), case.run.clone())]);
        assert_eq!(case.take_next_work(), [first_attempt("a"), first_attempt("b"), first_attempt("c")]);
    }

    fn numbered_work(n: u32) -> Work {
        Work::Task { task: TaskId::new(format!("t{n}")).unwrap(), attempt: 1 }
    }

    fn always_pending(_: &Work) -> bool {
        true
    }

    #[test]
    fn work_that_is_no_longer_pending_takes_no_place() {
        let (echo, run) = (Capability::new("echo").unwrap(), RunId::new("r").unwrap());
        let mut shares = FairShareScheduler::default();
        shares.set_live_slots([(echo.clone(), 8)].into());
        (0..40).for_each(|n| shares.add_work(&echo, &run, numbered_work(n)));
        let is_pending = |work: &Work| (30..40).any(|n| *work == numbered_work(n));
        assert_eq!(
            shares.take_next_work(&echo, &run, is_pending),
            (30..40).map(numbered_work).collect::<Vec<_>>()
        );
        (30..40).for_each(|n| {
            assert!(shares.free_place_of_claimed_work(&echo, &run, &numbered_work(n).journal_key()))
        });
        shares.add_work(&echo, &run, numbered_work(50));
        assert_eq!(shares.take_next_work(&echo, &run, |_| false), []);
        assert!(shares.queues[&echo].runs.is_empty(), "a run without work takes no share");
    }

    #[test]
    fn large_run_does_not_block_a_small_one() {
        let (echo, large, small) =
            (Capability::new("echo").unwrap(), RunId::new("large").unwrap(), RunId::new("small").unwrap());
        let mut shares = FairShareScheduler::default();
        shares.set_live_slots([(echo.clone(), 20)].into());
        (0..10_000).for_each(|n| shares.add_work(&echo, &large, numbered_work(n)));
        assert_eq!(
            shares.take_next_work(&echo, &large, always_pending).len(),
            40,
            "alone it gets twice the slots"
        );
        (0..3).for_each(|n| shares.add_work(&echo, &small, numbered_work(n)));
        assert_eq!(shares.take_next_work(&echo, &small, always_pending).len(), 3);
        assert!(shares.free_place_of_claimed_work(&echo, &large, &numbered_work(0).journal_key()));
        assert_eq!(
            shares.take_next_work(&echo, &large, always_pending),
            [],
            "39 is more than its half of 40"
        );
    }

    #[test]
    fn work_is_offered_in_order_and_a_claim_frees_a_place() {
        let (echo, run) = (Capability::new("echo").unwrap(), RunId::new("r").unwrap());
        let mut shares = FairShareScheduler::default();
        shares.set_live_slots([(echo.clone(), 8)].into());
        (0..18).for_each(|n| shares.add_work(&echo, &run, numbered_work(n)));
        assert_eq!(
            shares.take_next_work(&echo, &run, always_pending),
            (0..16).map(numbered_work).collect::<Vec<_>>()
        );
        assert_eq!(shares.take_next_work(&echo, &run, always_pending), []);
        assert!(shares.free_place_of_claimed_work(&echo, &run, &numbered_work(3).journal_key()));
        assert!(
            !shares.free_place_of_claimed_work(&echo, &run, &numbered_work(3).journal_key()),
            "a second claim frees nothing"
        );
        assert_eq!(shares.take_next_work(&echo, &run, always_pending), [numbered_work(16)]);
        shares.put_back_unoffered_work(&echo, &run, numbered_work(16));
        assert_eq!(
            shares.take_next_work(&echo, &run, always_pending),
            [numbered_work(16)],
            "work that was put back comes first"
        );
    }
}
