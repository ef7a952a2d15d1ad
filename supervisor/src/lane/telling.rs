//! What others are told of runs: summaries as they change, and the end, with which a run leaves the lane for the
//! archive. Nothing here waits for it.

use std::sync::Arc;

use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::registry::RunSummary;
use millrace_runtime::{Bus, registry};
use ractor::ActorRef;
use tracing::debug;

use super::{Message, State, tell};
use crate::closing;
use crate::live::{LiveRun, Phase};

impl State {
    /// Writes the summaries of runs that have changed. One task at a time does, so that none is written over a newer one.
    pub(super) fn report(&mut self, myself: &ActorRef<Message>) {
        let Ok(pen) = Arc::clone(&self.pen).try_lock_owned() else {
            self.tells_again = true;
            return;
        };
        let now = Timestamp::now();
        // A run that ended and is archived has its last word there; one that can be gone on with stays in the lane.
        let stays = |live: &LiveRun| live.plan.is_live() || live.plan.is_resumable();
        let changed = self.runs.iter_mut().filter(|(_, live)| live.is_unreported && stays(live));
        let summaries: Vec<RunSummary> = changed
            .filter_map(|(run, live)| {
                live.is_unreported = false;
                RunSummary::of(run, self.lane, &live.plan, now)
            })
            .collect();
        if summaries.is_empty() {
            return;
        }
        let (bus, to) = (self.bus.clone(), myself.clone());
        tokio::spawn(async move {
            let failed = write(&bus, summaries).await;
            drop(pen);
            tell(&to, Message::Reported(failed));
        });
    }

    /// What could not be written is written another time.
    pub(super) fn reported(&mut self, myself: &ActorRef<Message>, failed: &[RunId]) {
        for run in failed {
            if let Some(live) = self.runs.get_mut(run) {
                live.is_unreported = true;
            }
        }
        if std::mem::take(&mut self.tells_again) && failed.is_empty() {
            self.report(myself);
        }
    }

    pub(super) fn close(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        if live.phase == Phase::Closing {
            return;
        }
        live.phase = Phase::Closing;
        live.is_unreported = false;
        self.windows.forget(run);
        let Some(summary) = RunSummary::of(run, self.lane, &live.plan, Timestamp::now()) else { return };
        let (bus, end, linger, to) = (self.bus.clone(), live.last, self.linger, myself.clone());
        let pen = Arc::clone(&self.pen);
        tokio::spawn(async move {
            let run = summary.run.clone();
            // What was said of it before must not come behind what is said now.
            drop(pen.lock().await);
            closing::close(&bus, summary, end, linger).await;
            tell(&to, Message::Closed(run));
        });
    }

    pub(super) fn closed(&mut self, run: &RunId) {
        self.runs.remove(run);
        self.patient.remove(run);
    }
}

/// Writes summaries one after the other; gives the runs whose were not written. Where the server does not answer, the
/// rest is not tried.
async fn write(bus: &Bus, summaries: Vec<RunSummary>) -> Vec<RunId> {
    let (mut failed, mut is_away) = (Vec::new(), false);
    for summary in summaries {
        if !is_away {
            let Err(fault) = registry::summarise(bus, &summary).await else { continue };
            debug!(run = %summary.run, %fault, "a summary could not be written; trying again");
            is_away = fault.is_transient();
        }
        failed.push(summary.run);
    }
    failed
}
