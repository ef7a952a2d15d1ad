//! How runs come into the owner's hands: the lane as it was read at the start, a run that another owner has extended
//! and that is read anew, and one that was handed in or handed on and may be in the archive already. It decides nothing
//! about them.

use std::collections::HashMap;

use millrace_protocol::ids::RunId;
use millrace_runtime::{Bus, Fault, archive, log, registry};
use ractor::ActorRef;
use tracing::{debug, info, warn};

use super::{Message, State, tell, timers};
use crate::live::{LiveRun, Phase};
use crate::reader;

impl State {
    pub(super) fn begin(&mut self, myself: &ActorRef<Message>, runs: HashMap<RunId, LiveRun>, through: u64) {
        info!(lane = %self.lane, runs = runs.len(), through, "took the lane");
        self.windows.set_slots(self.known.borrow().slots.clone());
        self.standing.folded(through, runs.len());
        self.runs = runs;
        let ids: Vec<RunId> = self.runs.keys().cloned().collect();
        for run in ids {
            self.resume(myself, &run);
        }
        self.tasks.push(tokio::spawn(reader::follow(self.bus.clone(), self.lane, through, myself.clone())));
        self.tasks.push(tokio::spawn(timers::run(myself.clone())));
    }

    /// Goes on with a run that was folded: what is owed, and what was never answered.
    pub(super) fn resume(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        if live.phase != Phase::Parked {
            self.look_up(myself, run);
        }
    }

    /// A run that is in the archive is over, whatever of it the lane still holds: it was handed in again, or read while
    /// another owner was removing it. That is marked before anything is removed, so that asking after reading tells. The
    /// mark alone is not believed: what the archive does not hold is nowhere else.
    pub(super) fn look_up(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        live.phase = Phase::Looking;
        let (bus, run, to) = (self.bus.clone(), run.clone(), myself.clone());
        tokio::spawn(async move {
            match is_archived(&bus, &run).await {
                Ok(archived) => tell(&to, Message::Looked(run, archived)),
                Err(fault) => tell(&to, Message::Broken(fault)),
            }
        });
    }

    pub(super) fn looked(&mut self, myself: &ActorRef<Message>, run: &RunId, archived: bool) {
        let Some(live) = self.runs.get_mut(run).filter(|live| live.phase == Phase::Looking) else { return };
        if !archived && live.is_submitted() {
            self.go_on(myself, run);
            return;
        }
        self.runs.remove(run);
        if archived {
            warn!(%run, "late messages of a run that is in the archive are removed");
            let (bus, lane, run) = (self.bus.clone(), self.lane, run.clone());
            tokio::spawn(async move {
                if let Err(fault) = log::purge_run(&bus, lane, &run, u64::MAX - 1).await {
                    debug!(%run, %fault, "they could not be removed");
                }
            });
        } else {
            warn!(%run, "messages of a run that was never handed in are passed over");
        }
    }

    fn go_on(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        live.phase = Phase::Idle;
        let effects = live.owed_in_all();
        self.carry_out(myself, run, effects);
        self.offer_in_hand(myself, run);
        self.advance(myself, run);
    }

    pub(super) fn refold(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        live.phase = Phase::Refolding;
        self.windows.forget(run);
        let (bus, lane, run, to) = (self.bus.clone(), self.lane, run.clone(), myself.clone());
        tokio::spawn(async move {
            match reader::refold(&bus, lane, &run).await {
                Ok(live) => tell(&to, Message::Refolded(run, Box::new(live))),
                Err(fault) => tell(&to, Message::Broken(fault)),
            }
        });
    }

    pub(super) fn refolded(&mut self, myself: &ActorRef<Message>, run: RunId, mut live: LiveRun) {
        if let Some(mut old) = self.runs.remove(&run) {
            live.receive_all(old.take_inbox());
        }
        self.runs.insert(run.clone(), live);
        self.resume(myself, &run);
    }
}

/// Whether a run is over and in the archive.
async fn is_archived(bus: &Bus, run: &RunId) -> Result<bool, Fault> {
    let summary = registry::summary(bus, run).await?;
    if !summary.is_some_and(|summary| summary.archived) {
        return Ok(false);
    }
    let holds = archive::holds(bus, run).await?;
    if !holds {
        warn!(%run, "a run is said to be in the archive, which does not hold it: the lane counts");
    }
    Ok(holds)
}
