//! The effects of decisions: orders are offered in their queues and withdrawn, and differences between the queues and the plans
//! are repaired.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Instant;

use millrace_protocol::ids::{Capability, RunId, TaskId};
use millrace_protocol::plan::{DispatchedOrder, Effect, EffectScope, Work};
use millrace_protocol::subject;
use millrace_protocol::work::Order;
use millrace_runtime::work::queue::QueueSnapshot;
use tracing::warn;

use super::LaneOwnerState;
use crate::lane::io::count_repairs;
use crate::lane::queue_audit::ExpectedOrder;
use crate::live::RunPhase;

impl LaneOwnerState {
    pub(super) fn carry_out_effects(&mut self, run: &RunId, effects: Vec<Effect>) {
        let mut queues = BTreeSet::new();
        for effect in effects {
            match effect {
                Effect::Offer(work) => {
                    let Some(live) = self.runs.get(run) else { return };
                    queues.extend(self.offers.add_work(run, &live.plan, work));
                }
                Effect::Withdraw(work, capability) => {
                    self.offers.fair_share.remove_withdrawn_work(&capability, run, &work);
                    self.io.withdraw_order(run.clone(), work, capability);
                }
                Effect::Close => self.close_run(run),
            }
        }
        for capability in queues {
            self.offer_waiting_work_of_run(&capability, run);
        }
    }

    /// Offers as much waiting work of a run as fits into its share of a queue.
    pub(super) fn offer_waiting_work_of_run(&mut self, capability: &Capability, run: &RunId) {
        let Some(live) = self.runs.get(run) else { return };
        let orders = self.offers.take_next_orders(capability, run, live);
        self.publish_orders(orders);
    }

    /// Publishes orders, or returns them to the waiting work while the log may lack their decisions.
    fn publish_orders(&mut self, orders: Vec<Order>) {
        match self.is_log_confirmed() {
            true => self.io.publish_orders(orders),
            false => self.io.return_orders(orders),
        }
    }

    pub(super) fn offer_all_waiting_work(&mut self) {
        for (capability, run) in self.offers.fair_share.runs_with_waiting_work() {
            self.offer_waiting_work_of_run(&capability, &run);
        }
    }

    pub(super) fn offer_claimed_work_of_run(&mut self, run: &RunId) {
        let Some(live) = self.runs.get(run) else { return };
        let orders = self.offers.orders_in_flight(run, live);
        self.publish_orders(orders);
    }

    /// Compares the queues with the plans and repairs the differences.
    pub(in crate::lane) fn repair_queues(&mut self, queues: &QueueSnapshot) {
        let began = Instant::now();
        if !self.is_log_confirmed()
            || self.audit.is_resting(began)
            || !self.audit.is_read_since_last_comparison(queues)
        {
            return;
        }
        let expected = self.expected_orders(queues);
        let (bus, lane) = (&self.args.bus, self.args.lane);
        let is_judged = |run: &RunId| {
            bus.lane_of_run(run) == lane && self.runs.get(run).is_none_or(|live| is_plan_known(live.phase))
        };
        let repairs = self.audit.compare(queues, &expected, is_judged, Instant::now());
        if !repairs.missing.is_empty() {
            warn!(%lane, orders = repairs.missing.len(), "orders are missing from their queues; publishing them again");
            count_repairs("missing", repairs.missing.len());
            self.publish_dispatched_orders(&repairs.missing);
        }
        self.io.remove_orders(repairs.unwanted);
        self.io.remove_stranded_orders(repairs.suspected);
        let ended = Instant::now();
        self.audit.rest_after(ended - began, ended);
    }

    /// Returns the orders that the queues should hold, and those that they may hold, by subject. Of those that wait for a place in
    /// a queue, only the orders that it holds all the same.
    fn expected_orders(&self, queues: &QueueSnapshot) -> HashMap<String, ExpectedOrder> {
        let snapshot = self.args.cluster.borrow();
        let mut expected = HashMap::new();
        for (run, live) in self.runs.iter().filter(|(_, live)| is_plan_known(live.phase)) {
            let held = queues.orders.get(run);
            let held_tasks =
                held.into_iter().flatten().filter_map(|subject| subject::task_of_order_subject(subject));
            let tasks = self.offers.tasks_beside_waiting(run, &live.plan, held_tasks);
            let (scope, waiting) = match &tasks {
                Some(tasks) => (EffectScope::Tasks(tasks), None),
                None => (EffectScope::All, Some(self.offers.fair_share.waiting_work(run))),
            };
            for DispatchedOrder { work, is_required, worker } in live.dispatched_orders(scope) {
                let Some(queue) = live.plan.queue_of_work(&work) else { continue };
                let subject = subject::order_subject(run, &queue, &work);
                let is_waiting = waiting.as_ref().is_some_and(|waiting| waiting.contains(&work));
                if is_waiting && !held.is_some_and(|subjects| subjects.contains(&subject)) {
                    continue;
                }
                let is_required = is_required && !is_waiting;
                let is_in_hand = worker.is_some_and(|worker| snapshot.processes.contains(&worker));
                expected.insert(subject, ExpectedOrder { run: run.clone(), work, is_required, is_in_hand });
            }
        }
        expected
    }

    /// Publishes the orders for work that is still dispatched.
    pub(in crate::lane) fn publish_dispatched_orders(&mut self, works: &[(RunId, Work)]) {
        let mut by_run: BTreeMap<&RunId, HashSet<&Work>> = BTreeMap::new();
        for (run, work) in works {
            by_run.entry(run).or_default().insert(work);
        }
        let mut orders = Vec::with_capacity(works.len());
        for (run, works) in by_run {
            let Some(live) = self.runs.get(run) else { continue };
            let tasks: BTreeSet<TaskId> = works.iter().filter_map(|work| work.task().cloned()).collect();
            let dispatched = live.dispatched_orders(EffectScope::Tasks(&tasks)).into_iter();
            let wanted = dispatched.filter(|order| order.is_required && works.contains(&order.work));
            let wanted: Vec<Work> = wanted.map(|order| order.work).collect();
            orders.extend(self.offers.build_orders(run, live, &wanted));
        }
        self.publish_orders(orders);
    }
}

/// `true` if the plan of a run in this phase is the one in the log, so that its orders can be judged by it.
fn is_plan_known(phase: RunPhase) -> bool {
    match phase {
        RunPhase::Idle | RunPhase::Appending => true,
        RunPhase::CheckingArchive | RunPhase::Refolding | RunPhase::Closing | RunPhase::Parked => false,
    }
}
