//! How much of each run's work stands in each queue. A run of ten thousand tasks does not stand before one of three:
//! no run keeps more unclaimed orders in a queue than its share of the live slots. What does not fit waits here, in
//! order; all of it is derived from plans and can be built again.

use std::collections::{BTreeMap, HashMap, VecDeque};

use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::Work;
use millrace_protocol::subject::Topic;

/// How many orders a run may keep in a queue however small its share is: enough to hide the way there and back.
const MIN_SHARE: usize = 16;
/// How many slots a queue is taken to have before its workers have been heard of.
const UNKNOWN_SLOTS: usize = 64;

/// The windows of all queues.
#[derive(Debug, Default)]
pub struct Windows {
    queues: BTreeMap<Capability, Queue>,
    slots: BTreeMap<Capability, usize>,
}

#[derive(Debug, Default)]
struct Queue {
    runs: BTreeMap<RunId, Backlog>,
}

#[derive(Debug, Default)]
struct Backlog {
    waiting: VecDeque<Work>,
    offered: HashMap<Topic, Work>,
}

impl Windows {
    /// Enters work that is owed; it is offered by a later [`Self::open`].
    pub fn add(&mut self, capability: &Capability, run: &RunId, work: Work) {
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

    /// The work of a run that may be offered now, as far as it is owed still: what is not gets no place, which nobody
    /// would ever free again. Twice the share of the slots, so that a worker that is done finds the next order waiting.
    pub fn open(
        &mut self,
        capability: &Capability,
        run: &RunId,
        is_owed: impl Fn(&Work) -> bool,
    ) -> Vec<Work> {
        let slots = self.slots.get(capability).copied().unwrap_or(UNKNOWN_SLOTS);
        let Some(queue) = self.queues.get_mut(capability) else { return Vec::new() };
        let share = (2 * slots / queue.runs.len().max(1)).max(MIN_SHARE);
        let Some(backlog) = queue.runs.get_mut(run) else { return Vec::new() };
        let mut open = Vec::new();
        while backlog.offered.len() < share
            && let Some(work) = backlog.waiting.pop_front()
        {
            if is_owed(&work) {
                backlog.offered.insert(Topic::journal(&work), work.clone());
                open.push(work);
            }
        }
        if backlog.offered.is_empty() && backlog.waiting.is_empty() {
            queue.runs.remove(run);
        }
        open
    }

    /// Some work was claimed: its place is free. Says whether it was offered here.
    pub fn claimed(&mut self, capability: &Capability, run: &RunId, topic: &Topic) -> bool {
        let Some(queue) = self.queues.get_mut(capability) else { return false };
        let Some(backlog) = queue.runs.get_mut(run) else { return false };
        let was_offered = backlog.offered.remove(topic).is_some();
        if backlog.offered.is_empty() && backlog.waiting.is_empty() {
            queue.runs.remove(run);
        }
        was_offered
    }

    /// Some work is not wanted any more.
    pub fn withdraw(&mut self, capability: &Capability, run: &RunId, work: &Work) {
        if let Some(backlog) = self.queues.get_mut(capability).and_then(|queue| queue.runs.get_mut(run)) {
            backlog.waiting.retain(|waiting| waiting != work);
        }
        self.claimed(capability, run, &Topic::journal(work));
    }

    /// Some work could not be offered: it waits again, before the rest.
    pub fn put_back(&mut self, capability: &Capability, run: &RunId, work: Work) {
        if let Some(backlog) = self.queues.get_mut(capability).and_then(|queue| queue.runs.get_mut(run))
            && backlog.offered.remove(&Topic::journal(&work)).is_some()
        {
            backlog.waiting.push_front(work);
        }
    }

    /// A run is over, or read anew.
    pub fn forget(&mut self, run: &RunId) {
        for queue in self.queues.values_mut() {
            queue.runs.remove(run);
        }
    }

    /// How many slots live workers have for each capability.
    pub fn set_slots(&mut self, slots: BTreeMap<Capability, usize>) {
        self.slots = slots;
    }

    /// The queues and runs that have work waiting.
    #[must_use]
    pub fn waiting(&self) -> Vec<(Capability, RunId)> {
        let waiting = |(capability, queue): (&Capability, &Queue)| {
            let runs = queue.runs.iter().filter(|(_, backlog)| !backlog.waiting.is_empty());
            runs.map(|(run, _)| (capability.clone(), run.clone())).collect::<Vec<_>>()
        };
        self.queues.iter().flat_map(waiting).collect()
    }

    /// All work that was offered and not claimed.
    #[must_use]
    pub fn offered(&self) -> Vec<(RunId, Work)> {
        let runs = self.queues.values().flat_map(|queue| &queue.runs);
        runs.flat_map(|(run, backlog)| backlog.offered.values().map(|work| (run.clone(), work.clone())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::TaskId;

    use super::*;

    fn work(n: u32) -> Work {
        Work::Task { task: TaskId::new(format!("t{n}")).unwrap(), attempt: 1 }
    }

    fn owed(_: &Work) -> bool {
        true
    }

    #[test]
    fn what_is_not_owed_any_more_takes_no_place() {
        let (echo, run) = (Capability::new("echo").unwrap(), RunId::new("r").unwrap());
        let mut windows = Windows::default();
        windows.set_slots([(echo.clone(), 8)].into());
        (0..40).for_each(|n| windows.add(&echo, &run, work(n)));
        let is_late = |owed: &Work| (30..40).any(|n| *owed == work(n));
        assert_eq!(windows.open(&echo, &run, is_late), (30..40).map(work).collect::<Vec<_>>());
        (30..40).for_each(|n| assert!(windows.claimed(&echo, &run, &Topic::journal(&work(n)))));
        windows.add(&echo, &run, work(50));
        assert_eq!(windows.open(&echo, &run, |_| false), []);
        assert!(windows.queues[&echo].runs.is_empty(), "a run of which nothing is left takes no share");
    }

    #[test]
    fn a_large_run_does_not_stand_before_a_small_one() {
        let (echo, large, small) =
            (Capability::new("echo").unwrap(), RunId::new("large").unwrap(), RunId::new("small").unwrap());
        let mut windows = Windows::default();
        windows.set_slots([(echo.clone(), 20)].into());
        (0..10_000).for_each(|n| windows.add(&echo, &large, work(n)));
        assert_eq!(windows.open(&echo, &large, owed).len(), 40, "alone it has twice the slots");
        (0..3).for_each(|n| windows.add(&echo, &small, work(n)));
        assert_eq!(windows.open(&echo, &small, owed).len(), 3);
        assert!(windows.claimed(&echo, &large, &Topic::journal(&work(0))));
        assert_eq!(windows.open(&echo, &large, owed), [], "39 is more than its half of 40");
    }

    #[test]
    fn work_is_offered_in_order_and_a_claim_frees_a_place() {
        let (echo, run) = (Capability::new("echo").unwrap(), RunId::new("r").unwrap());
        let mut windows = Windows::default();
        windows.set_slots([(echo.clone(), 8)].into());
        (0..18).for_each(|n| windows.add(&echo, &run, work(n)));
        assert_eq!(windows.open(&echo, &run, owed), (0..16).map(work).collect::<Vec<_>>());
        assert_eq!(windows.open(&echo, &run, owed), []);
        assert!(windows.claimed(&echo, &run, &Topic::journal(&work(3))));
        assert!(!windows.claimed(&echo, &run, &Topic::journal(&work(3))), "a second claim frees nothing");
        assert_eq!(windows.open(&echo, &run, owed), [work(16)]);
        windows.put_back(&echo, &run, work(16));
        assert_eq!(windows.open(&echo, &run, owed), [work(16)], "what could not be offered comes first");
    }
}
