//! What others are told of runs: summaries as they change, and the end, with which a run leaves the lane for the
//! archive. Nothing here waits for it.

use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::registry::RunSummary;
use millrace_runtime::registry;
use ractor::ActorRef;
use tracing::debug;

use super::{Message, State, tell};
use crate::closing;
use crate::live::{LiveRun, Phase};

impl State {
    /// Writes the summaries of runs that have changed.
    pub(super) fn report(&mut self) {
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
        let bus = self.bus.clone();
        tokio::spawn(async move {
            for summary in summaries {
                if let Err(fault) = registry::summarise(&bus, &summary).await {
                    debug!(run = %summary.run, %fault, "a summary could not be written");
                }
            }
        });
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
        tokio::spawn(async move {
            let run = summary.run.clone();
            closing::close(&bus, summary, end, linger).await;
            tell(&to, Message::Closed(run));
        });
    }

    pub(super) fn closed(&mut self, run: &RunId) {
        self.runs.remove(run);
        self.patient.remove(run);
    }
}
