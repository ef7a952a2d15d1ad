//! What comes in from the lane: facts, claims, signs of life, and decisions, which say whether somebody else owns the
//! lane too. Here it only finds its run; what follows from it is decided elsewhere.

use std::collections::BTreeSet;

use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::{Fact, Work};
use millrace_protocol::subject::Topic;
use ractor::ActorRef;
use tracing::warn;

use super::{Message, State};
use crate::live::Phase;
use crate::order::queue as queue_of;
use crate::reader::Item;

impl State {
    pub(super) fn take(&mut self, myself: &ActorRef<Message>, items: Vec<(RunId, Item)>, through: u64) {
        self.standing.read(through);
        let (mut touched, mut freed) = (BTreeSet::new(), BTreeSet::new());
        for (run, item) in items {
            freed.extend(self.take_one(myself, &run, item));
            if !touched.contains(&run) {
                touched.insert(run);
            }
        }
        // What many claims make room for is offered together.
        for (capability, run) in freed {
            self.offer(myself, &capability, &run);
        }
        for run in touched {
            self.advance(myself, &run);
        }
    }

    /// Takes one item in; gives the queue in which it freed a place.
    fn take_one(
        &mut self,
        myself: &ActorRef<Message>,
        run: &RunId,
        item: Item,
    ) -> Option<(Capability, RunId)> {
        match item {
            Item::Taken(topic) => return self.taken(run, &topic),
            Item::Fact { sequence, fact } => match (self.runs.get_mut(run), fact.as_ref()) {
                (Some(live), _) => live.receive(sequence, *fact),
                (None, Fact::Submitted(_)) => {
                    self.runs.entry(run.clone()).or_default().receive(sequence, *fact);
                    self.look_up(myself, run);
                }
                (None, _) => warn!(%run, sequence, "a fact about an unknown run is passed over"),
            },
            Item::Heard(task, at) => {
                if let Some(live) = self.runs.get_mut(run) {
                    live.hear(&task, at);
                }
            }
            Item::Decided { sequence } => self.decided(myself, run, sequence),
            Item::Stray { sequence } => {
                if let Some(live) = self.runs.get_mut(run) {
                    live.pass_over(sequence);
                }
            }
        }
        None
    }

    /// Work was claimed: its place in the queue is free. Gives the queue, if it was offered there by us.
    fn taken(&mut self, run: &RunId, topic: &Topic) -> Option<(Capability, RunId)> {
        let live = self.runs.get(run)?;
        let work = match topic {
            Topic::Task(task, attempt) => Work::Task { task: task.clone(), attempt: *attempt },
            Topic::Review(task, attempt) => Work::Review { task: task.clone(), attempt: *attempt, review: 1 },
            Topic::Planning(turn, attempt) => Work::Planning { turn: *turn, attempt: *attempt },
            Topic::Submitted | Topic::Plan | Topic::Control => return None,
        };
        let capability = queue_of(&live.plan, &work)?;
        self.windows.claimed(&capability, run, topic).then(|| (capability, run.clone()))
    }

    /// A decision was read. Ours are known by their sequences; one that is not says that somebody else owns the lane
    /// too, and knows more of this run than we do.
    fn decided(&mut self, myself: &ActorRef<Message>, run: &RunId, sequence: u64) {
        let Some(live) = self.runs.get_mut(run) else { return };
        match live.phase {
            // The message that says so may still be on its way to us.
            Phase::Appending => live.unexplained = live.unexplained.max(sequence),
            Phase::Looking | Phase::Idle | Phase::Closing if sequence > live.last => {
                warn!(%run, sequence, last = live.last, "another owner has decided on this run");
                self.refold(myself, run);
            }
            Phase::Looking | Phase::Idle | Phase::Closing | Phase::Refolding | Phase::Parked => {}
        }
    }
}
