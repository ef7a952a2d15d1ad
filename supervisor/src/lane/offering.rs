//! Orders: which work goes into which queue, when, and when it is taken out again. What is owed was decided before; here
//! it is given out by the windows, and nothing is kept of it but in them.

use std::collections::BTreeSet;
use std::time::Duration;

use millrace_protocol::ids::{Capability, RunId, TaskId};
use millrace_protocol::plan::{TaskState, Work, in_hand, is_owed};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::work::Order;
use millrace_runtime::queue;
use ractor::ActorRef;
use tracing::{debug, warn};

use super::{Message, State, tell};
use crate::live::LiveRun;
use crate::order::{named, order};

/// How long work that could not be offered waits before it is tried again.
const OFFER_AGAIN: Duration = Duration::from_millis(200);

impl State {
    /// Puts as much of a run's work in a queue as its share allows.
    pub(super) fn offer(&mut self, myself: &ActorRef<Message>, capability: &Capability, run: &RunId) {
        let Some(live) = self.runs.get(run) else { return };
        let works = self.windows.open(capability, run, |work| is_owed(&live.plan, work));
        self.put(myself, run, works);
    }

    pub(super) fn offer_waiting(&mut self, myself: &ActorRef<Message>) {
        for (capability, run) in self.windows.waiting() {
            self.offer(myself, &capability, &run);
        }
    }

    pub(super) fn put(&self, myself: &ActorRef<Message>, run: &RunId, works: Vec<Work>) {
        let Some(live) = self.runs.get(run) else { return };
        let orders: Vec<Order> =
            works.iter().filter_map(|work| order(run, self.lane, &live.plan, live.last, work)).collect();
        if orders.is_empty() {
            return;
        }
        let (bus, to) = (self.bus.clone(), myself.clone());
        tokio::spawn(async move {
            if let Err((orders, fault)) = queue::offer(&bus, orders).await {
                warn!(%fault, orders = orders.len(), "work could not be offered; trying again");
                let works = orders.into_iter().map(|order| {
                    let queue = subject::queue(&order.capability, &order.work);
                    (named(queue), order.run, order.work)
                });
                let works = works.collect();
                tokio::time::sleep(OFFER_AGAIN).await;
                tell(&to, Message::NotOffered(works));
            }
        });
    }

    /// Offers what workers have in hand, past the windows: it takes no place of work that waits. The queue refuses what
    /// it still has, and what it has lost comes to another worker when its own is lost.
    pub(super) fn offer_in_hand(&self, myself: &ActorRef<Message>, run: &RunId) {
        if let Some(live) = self.runs.get(run) {
            self.put(myself, run, in_hand(&live.plan));
        }
    }

    pub(super) fn not_offered(&mut self, works: Vec<(Capability, RunId, Work)>) {
        for (capability, run, work) in works.into_iter().rev() {
            self.windows.put_back(&capability, &run, work);
        }
    }

    pub(super) fn withdraw(&mut self, run: &RunId, work: Work, capability: Capability) {
        self.windows.withdraw(&capability, run, &work);
        let (bus, run) = (self.bus.clone(), run.clone());
        tokio::spawn(async move {
            // What is missed here is told by the journal: the plan waits for another attempt, or for none.
            if let Err(fault) = queue::withdraw(&bus, &run, &capability, &work).await {
                debug!(%run, %fault, "an order could not be withdrawn");
            }
            if let Err(fault) = queue::stop(&bus, &run, Some(&work)).await {
                debug!(%run, %fault, "a worker could not be told to stop");
            }
        });
    }

    /// Work that the plan does not wait for any more has no place in a queue, whether its claim was seen or not.
    pub(super) fn free_places(&mut self, run: &RunId, touched: &BTreeSet<TaskId>) {
        let Some(live) = self.runs.get(run) else { return };
        for task in touched.iter().filter_map(|id| live.plan.task(id)) {
            let (id, attempt) = (&task.spec.id, task.attempt);
            if !matches!(task.state, TaskState::Ready | TaskState::Rerun) {
                self.windows.claimed(&task.spec.capability, run, &Topic::Task(id.clone(), attempt));
            }
            if task.state != TaskState::NeedsReview && !task.asked.is_none() {
                self.windows.claimed(&self.critic, run, &Topic::Review(id.clone(), attempt));
            }
        }
    }

    pub(super) fn learn(&mut self, myself: &ActorRef<Message>) {
        self.windows.set_slots(self.known.borrow_and_update().slots.clone());
        self.runs.values_mut().for_each(LiveRun::ask_cluster);
        self.offer_waiting(myself);
    }
}
