//! Compares the queues with the plans of a lane. A queue is derived state: whatever it has lost, keeps too long or will
//! never deliver is found here and repaired by the lane owner. No I/O.
//!
//! Queue and plan are read at different times, so a single difference means nothing: an order may be on its way to the
//! queue, or its acknowledgement may be. Only a difference that two comparisons in a row find is repaired.
//!
//! # Invariants
//!
//! - I63: Queues are repaired from the plans within seconds: an order that is missing, stranded in its queue or wanted by no plan
//!   is published again or removed, so that every run ends even if messages or consumers are deleted. With very large plans the
//!   comparisons take a tenth of their owner's time at most.
//!   (`supervisor/src/lane/queue_audit.rs::comparisons_take_a_tenth_of_the_time_at_most`,
//!   `tests/tests/queues.rs::lost_orders_are_published_again_within_seconds`,
//!   `tests/tests/queues.rs::every_run_ends_despite_damaged_queues`,
//!   `tests/tests/queues.rs::withdrawn_order_strands_no_order_of_a_dead_worker`)
//! - I99: A process works only on orders of its own queues: an order that a consumer delivers because it has the sequence of a
//!   lost one stays in its queue, and an order without a claim within the lease is published again.
//!   (`tests/tests/queues/power_loss.rs::order_with_the_sequence_of_a_lost_one_stays_in_its_own_queue`,
//!   `supervisor/src/lane/queue_audit.rs::delivered_order_is_suspected_until_a_live_worker_claims_it`)
//! - I102: A review that takes long is not published again while a critic works on it.
//!   (`supervisor/src/lane/queue_audit.rs::long_review_is_not_suspected_although_the_plan_has_no_claim_of_it`)

use std::collections::HashMap;
use std::time::{Duration, Instant};

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::Work;
use millrace_protocol::subject;
use millrace_runtime::work::queue::{ConsumerPosition, QueueSnapshot};

/// The maximum number of suspected orders that one comparison returns: each costs requests to the server.
const MAX_SUSPECTS: usize = 200;
/// The minimum pause after a comparison, in multiples of its duration. With a million tasks a comparison takes seconds, in which the
/// owner decides nothing.
const REST: u32 = 9;
/// The time beyond the work lease after which an order that was delivered must have been claimed or delivered again.
const MARGIN: Duration = Duration::from_secs(5);

/// An order that a queue should or may hold, according to the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExpectedOrder {
    pub run: RunId,
    pub work: Work,
    /// `true` if the queue must hold the order; `false` if it may.
    pub is_required: bool,
    /// `true` if a live worker has claimed the work. Its order may look stranded; the worker works nevertheless.
    pub is_in_hand: bool,
}

/// An order that its queue may never deliver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SuspectedOrder {
    pub subject: String,
    pub run: RunId,
    pub work: Work,
    /// `true` if it was suspected for longer than any lease, and no live worker has claimed its work.
    pub is_overdue: bool,
}

/// The repairs that a comparison calls for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct QueueRepairs {
    /// Orders that their queues have lost: publish them again.
    pub missing: Vec<(RunId, Work)>,
    /// The subjects of orders that no plan waits for: remove them.
    pub unwanted: Vec<String>,
    /// Orders that may be stranded: look them up, and if they are, remove and publish them.
    pub suspected: Vec<SuspectedOrder>,
}

/// A difference between a queue and the plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Difference {
    Missing,
    Unwanted,
    Suspected,
}

/// The differences that the last comparison found.
#[derive(Debug)]
pub(super) struct QueueAudit {
    work_lease: Duration,
    open: HashMap<String, (Difference, Instant)>,
    /// When the last comparison was made.
    compared_at: Option<Instant>,
    /// The time before which there is no other comparison.
    rests_until: Option<Instant>,
}

impl QueueAudit {
    pub(super) fn new(work_lease: Duration) -> Self {
        Self { work_lease, open: HashMap::new(), compared_at: None, rests_until: None }
    }

    /// `true` if the last comparison took so long that the next one has to wait.
    pub(super) fn is_resting(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// Notes how long a comparison took, with its repairs.
    pub(super) fn rest_after(&mut self, took: Duration, now: Instant) {
        self.rests_until = Some(now + REST * took);
    }

    /// `false` for queues that were read before the last comparison, while the owner was busy: they confirm no difference.
    pub(super) fn is_read_since_last_comparison(&self, queues: &QueueSnapshot) -> bool {
        self.compared_at.is_none_or(|compared| queues.read_from.is_some_and(|read| read >= compared))
    }

    /// Compares the queues with the orders that they should and may hold, by subject. Orders of runs for which `is_judged` is
    /// false are left alone: they belong to another lane, or their plan is not known at the moment.
    pub(super) fn compare(
        &mut self,
        queues: &QueueSnapshot,
        expected: &HashMap<String, ExpectedOrder>,
        is_judged: impl Fn(&RunId) -> bool,
        now: Instant,
    ) -> QueueRepairs {
        let (before, mut repairs) = (std::mem::take(&mut self.open), QueueRepairs::default());
        self.compared_at = Some(now);
        for (subject, order) in expected {
            let Some(difference) = difference_of_expected(queues, subject, order) else { continue };
            let Some(since) = self.keep_open(&before, subject, difference, now) else { continue };
            match difference {
                Difference::Missing => repairs.missing.push((order.run.clone(), order.work.clone())),
                Difference::Suspected if repairs.suspected.len() < MAX_SUSPECTS => {
                    let is_late = now.duration_since(since) > self.work_lease + MARGIN;
                    repairs.suspected.push(SuspectedOrder {
                        subject: subject.clone(),
                        run: order.run.clone(),
                        work: order.work.clone(),
                        is_overdue: is_late && !order.is_in_hand,
                    });
                }
                Difference::Suspected | Difference::Unwanted => {}
            }
        }
        for (_, subjects) in queues.orders.iter().filter(|(run, _)| is_judged(run)) {
            for subject in subjects.iter().filter(|subject| !expected.contains_key(*subject)) {
                if self.keep_open(&before, subject, Difference::Unwanted, now).is_some() {
                    repairs.unwanted.push(subject.clone());
                }
            }
        }
        repairs
    }

    /// Notes a difference. Returns the time of the first comparison that found it, if that was an earlier one.
    fn keep_open(
        &mut self,
        before: &HashMap<String, (Difference, Instant)>,
        subject: &str,
        difference: Difference,
        now: Instant,
    ) -> Option<Instant> {
        let since = before.get(subject).filter(|(kind, _)| *kind == difference).map(|(_, since)| *since);
        self.open.insert(subject.to_owned(), (difference, since.unwrap_or(now)));
        since
    }
}

fn difference_of_expected(
    queues: &QueueSnapshot,
    subject: &str,
    order: &ExpectedOrder,
) -> Option<Difference> {
    if !queues.orders.get(&order.run).is_some_and(|subjects| subjects.contains(subject)) {
        return order.is_required.then_some(Difference::Missing);
    }
    let (capability, _) = subject::parse_order_subject(subject)?;
    let consumer = queues.consumers.get(&capability).copied().flatten();
    // A consumer that has delivered everything should have led to a claim. It may hold the sequence of an order that a power loss
    // has removed for one of its own, so that the numbers match although an order is stranded. Claims of reviews are not in
    // the plan, so that a long review looks the same: it is left to the redelivery of the queue.
    let is_claimed_in_plan = match order.work {
        Work::Task { .. } | Work::Planning { .. } => true,
        Work::Review { .. } => false,
    };
    let is_suspect = |it: ConsumerPosition| {
        let is_unclaimed = is_claimed_in_plan && order.is_required && !order.is_in_hand;
        it.has_stranded_orders() || (it.undelivered == 0 && is_unclaimed)
    };
    consumer.is_some_and(is_suspect).then_some(Difference::Suspected)
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::{Capability, TaskId};

    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    fn run() -> RunId {
        RunId::new("r").unwrap()
    }

    fn echo() -> Capability {
        Capability::new("echo").unwrap()
    }

    fn work(task: &str) -> Work {
        Work::Task { task: TaskId::new(task).unwrap(), attempt: 1 }
    }

    fn subject_of(task: &str) -> String {
        subject::order_subject(&run(), &echo(), &work(task))
    }

    fn expected(tasks: &[&str], is_in_hand: bool) -> HashMap<String, ExpectedOrder> {
        let order =
            |task: &&str| ExpectedOrder { run: run(), work: work(task), is_required: true, is_in_hand };
        tasks.iter().map(|task| (subject_of(task), order(task))).collect()
    }

    /// A queue that holds the orders of these tasks, and a consumer that knows `known` of them.
    fn queue(tasks: &[&str], known: u64) -> QueueSnapshot {
        let orders = u64::try_from(tasks.len()).unwrap();
        let position = ConsumerPosition {
            orders,
            undelivered: known,
            unacknowledged: 0,
            delivered: 10,
            acknowledged: 10,
        };
        QueueSnapshot {
            orders: [(run(), tasks.iter().map(|task| subject_of(task)).collect())].into(),
            consumers: [(echo(), Some(position))].into(),
            read_from: None,
        }
    }

    struct Case {
        audit: QueueAudit,
        now: Instant,
    }

    impl Case {
        fn new() -> Self {
            Self { audit: QueueAudit::new(LEASE), now: Instant::now() }
        }

        /// Compares, two seconds after the last comparison.
        fn compare(
            &mut self,
            queues: &QueueSnapshot,
            expected: &HashMap<String, ExpectedOrder>,
        ) -> QueueRepairs {
            self.now += Duration::from_secs(2);
            self.audit.compare(queues, expected, |of| *of == run(), self.now)
        }
    }

    #[test]
    fn queue_that_holds_what_the_plan_expects_needs_no_repair() {
        let mut case = Case::new();
        for _ in 0..3 {
            assert_eq!(
                case.compare(&queue(&["a", "b"], 2), &expected(&["a", "b"], false)),
                QueueRepairs::default()
            );
        }
    }

    #[test]
    fn missing_order_is_published_again_after_two_comparisons() {
        let mut case = Case::new();
        assert_eq!(case.compare(&queue(&["a"], 1), &expected(&["a", "b"], false)), QueueRepairs::default());
        let repairs = case.compare(&queue(&["a"], 1), &expected(&["a", "b"], false));
        assert_eq!(repairs, QueueRepairs { missing: vec![(run(), work("b"))], ..QueueRepairs::default() });
    }

    #[test]
    fn queues_that_were_read_before_the_last_comparison_confirm_nothing() {
        let mut case = Case::new();
        let read = |seconds| QueueSnapshot {
            read_from: Some(case.now + Duration::from_secs(seconds)),
            ..QueueSnapshot::default()
        };
        let (at_once, meanwhile, later) = (read(0), read(1), read(3));
        assert!(case.audit.is_read_since_last_comparison(&at_once));
        case.compare(&queue(&["a"], 1), &expected(&["a", "b"], false));
        assert!(!case.audit.is_read_since_last_comparison(&meanwhile));
        assert!(case.audit.is_read_since_last_comparison(&later));
    }

    #[test]
    fn comparisons_take_a_tenth_of_the_time_at_most() {
        let mut case = Case::new();
        assert!(!case.audit.is_resting(case.now));
        case.audit.rest_after(Duration::from_secs(2), case.now);
        assert!(case.audit.is_resting(case.now + Duration::from_secs(17)));
        assert!(!case.audit.is_resting(case.now + Duration::from_secs(18)));
    }

    #[test]
    fn order_that_was_only_on_its_way_is_not_published_again() {
        let mut case = Case::new();
        case.compare(&queue(&["a"], 1), &expected(&["a", "b"], false));
        assert_eq!(
            case.compare(&queue(&["a", "b"], 2), &expected(&["a", "b"], false)),
            QueueRepairs::default()
        );
        assert_eq!(
            case.compare(&queue(&["a"], 1), &expected(&["a", "b"], false)),
            QueueRepairs::default(),
            "the first difference was resolved"
        );
    }

    #[test]
    fn order_that_no_plan_waits_for_is_removed_after_two_comparisons() {
        let mut case = Case::new();
        assert_eq!(case.compare(&queue(&["a", "old"], 2), &expected(&["a"], false)), QueueRepairs::default());
        let repairs = case.compare(&queue(&["a", "old"], 2), &expected(&["a"], false));
        assert_eq!(repairs, QueueRepairs { unwanted: vec![subject_of("old")], ..QueueRepairs::default() });
    }

    #[test]
    fn orders_of_other_lanes_are_left_alone() {
        let mut case = Case::new();
        for _ in 0..3 {
            case.now += Duration::from_secs(2);
            let repairs = case.audit.compare(&queue(&["a"], 1), &HashMap::new(), |_| false, case.now);
            assert_eq!(repairs, QueueRepairs::default());
        }
    }

    #[test]
    fn order_is_suspected_if_the_consumer_knows_fewer_orders_than_the_stream_holds() {
        let mut case = Case::new();
        case.compare(&queue(&["a", "b"], 1), &expected(&["a", "b"], false));
        let mut suspected = case.compare(&queue(&["a", "b"], 1), &expected(&["a", "b"], false)).suspected;
        suspected.sort_by(|a, b| a.subject.cmp(&b.subject));
        let suspect = |task: &str| SuspectedOrder {
            subject: subject_of(task),
            run: run(),
            work: work(task),
            is_overdue: false,
        };
        assert_eq!(suspected, [suspect("a"), suspect("b")]);
    }

    #[test]
    fn suspected_order_is_overdue_after_the_lease_unless_a_live_worker_has_claimed_it() {
        for is_in_hand in [false, true] {
            let mut case = Case::new();
            let rounds = 1 + (LEASE + MARGIN).as_secs() / 2;
            for _ in 0..rounds {
                let repairs = case.compare(&queue(&["a"], 0), &expected(&["a"], is_in_hand));
                assert!(repairs.suspected.iter().all(|suspect| !suspect.is_overdue));
            }
            let repairs = case.compare(&queue(&["a"], 0), &expected(&["a"], is_in_hand));
            assert_eq!(repairs.suspected[0].is_overdue, !is_in_hand);
        }
    }

    #[test]
    fn delivered_order_is_suspected_until_a_live_worker_claims_it() {
        let mut queues = queue(&["a"], 1);
        let position = queues.consumers.get_mut(&echo()).unwrap().as_mut().unwrap();
        (position.undelivered, position.unacknowledged) = (0, 1);
        let mut case = Case::new();
        case.compare(&queues, &expected(&["a"], true));
        assert_eq!(case.compare(&queues, &expected(&["a"], true)), QueueRepairs::default());
        let rounds = 1 + (LEASE + MARGIN).as_secs() / 2;
        for _ in 0..rounds {
            let repairs = case.compare(&queues, &expected(&["a"], false));
            assert!(repairs.suspected.iter().all(|suspect| !suspect.is_overdue));
        }
        assert!(case.compare(&queues, &expected(&["a"], false)).suspected[0].is_overdue);
    }

    #[test]
    fn long_review_is_not_suspected_although_the_plan_has_no_claim_of_it() {
        let critic = Capability::new(subject::CRITIC).unwrap();
        let work = Work::Review { task: TaskId::new("a").unwrap(), attempt: 1, review: 1 };
        let subject = subject::order_subject(&run(), &critic, &work);
        let order = ExpectedOrder { run: run(), work, is_required: true, is_in_hand: false };
        let position = ConsumerPosition {
            orders: 1,
            undelivered: 0,
            unacknowledged: 1,
            delivered: 11,
            acknowledged: 10,
        };
        let queues = QueueSnapshot {
            orders: [(run(), [subject.clone()].into())].into(),
            consumers: [(critic, Some(position))].into(),
            read_from: None,
        };
        let expected = HashMap::from([(subject, order)]);
        let mut case = Case::new();
        for _ in 0..(LEASE + MARGIN).as_secs() {
            assert_eq!(case.compare(&queues, &expected), QueueRepairs::default());
        }
    }
}
