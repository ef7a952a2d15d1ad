//! Limits the orders that each run may have in each queue. A run of ten thousand tasks must not block a run of three: no run
//! keeps more unclaimed orders in a queue than its share of the live slots. The rest waits here, in order. All of it is
//! derived from plans and can be rebuilt.

use std::collections::{BTreeMap, VecDeque};

use foldhash::{HashMap, HashSet};
use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::Work;
use millrace_protocol::subject::Topic;

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
    offered: HashMap<Topic, Work>,
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
                backlog.offered.insert(Topic::journal_of_work(&work), work.clone());
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
        topic: &Topic,
    ) -> bool {
        let Some(queue) = self.queues.get_mut(capability) else { return false };
        let Some(backlog) = queue.runs.get_mut(run) else { return false };
        let was_offered = backlog.offered.remove(topic).is_some();
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
        self.free_place_of_claimed_work(capability, run, &Topic::journal_of_work(work));
    }

    /// Makes offered work wait again, before the rest: it could not be put into the queue.
    pub(super) fn put_back_unoffered_work(&mut self, capability: &Capability, run: &RunId, work: Work) {
        if let Some(backlog) = self.queues.get_mut(capability).and_then(|queue| queue.runs.get_mut(run))
            && backlog.offered.remove(&Topic::journal_of_work(&work)).is_some()
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

    /// Returns all work that is offered and not claimed.
    #[cfg(test)]
    pub(super) fn unclaimed_work(&self) -> Vec<(RunId, Work)> {
        let runs = self.queues.values().flat_map(|queue| &queue.runs);
        runs.flat_map(|(run, backlog)| backlog.offered.values().map(|work| (run.clone(), work.clone())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::TaskId;

    use super::*;

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
            assert!(shares.free_place_of_claimed_work(
                &echo,
                &run,
                &Topic::journal_of_work(&numbered_work(n))
            ))
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
        assert!(shares.free_place_of_claimed_work(&echo, &large, &Topic::journal_of_work(&numbered_work(0))));
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
        assert!(shares.free_place_of_claimed_work(&echo, &run, &Topic::journal_of_work(&numbered_work(3))));
        assert!(
            !shares.free_place_of_claimed_work(&echo, &run, &Topic::journal_of_work(&numbered_work(3))),
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
