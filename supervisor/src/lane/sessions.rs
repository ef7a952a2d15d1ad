//! The sessions of a lane: which run of each is next. The order is that of the submissions in the lane, which the log has decided;
//! all of it follows from the runs in memory, so that a new owner computes the same. No I/O.

use std::collections::{BTreeMap, HashMap, HashSet};

use millrace_protocol::ids::{RunId, SessionId};
use millrace_protocol::plan::RunHold;
use millrace_protocol::registry::QueuePlace;

use crate::live::{LiveRun, RunPhase};

/// The runs of a lane that belong to sessions.
#[derive(Debug, Default)]
pub(super) struct SessionQueues {
    /// The runs of each session in memory, by the sequences of their submissions.
    sessions: HashMap<SessionId, BTreeMap<u64, RunId>>,
    /// The runs whose turn is being prepared.
    preparing: HashSet<RunId>,
}

impl SessionQueues {
    /// Adds a run, if it belongs to a session. Returns the session.
    pub(super) fn add_run(&mut self, run: &RunId, live: &LiveRun) -> Option<SessionId> {
        let (session, sequence) = live.holds.session()?;
        self.sessions.entry(session.clone()).or_default().insert(sequence, run.clone());
        Some(session.clone())
    }

    /// Removes a run that has left the lane. Returns its session, if it belongs to one.
    pub(super) fn remove_run(&mut self, run: &RunId, live: &LiveRun) -> Option<SessionId> {
        self.preparing.remove(run);
        let (session, sequence) = live.holds.session()?;
        if let Some(runs) = self.sessions.get_mut(session) {
            runs.remove(&sequence);
            if runs.is_empty() {
                self.sessions.remove(session);
            }
        }
        Some(session.clone())
    }

    /// Returns the sessions of runs in memory.
    pub(super) fn all(&self) -> Vec<SessionId> {
        self.sessions.keys().cloned().collect()
    }

    /// Returns the run whose turn has come: the first one that waits, once those before it have ended. Each is returned once, until
    /// [`Self::finish_preparing`].
    pub(super) fn take_next_run(
        &mut self,
        session: &SessionId,
        runs: &HashMap<RunId, LiveRun>,
    ) -> Option<RunId> {
        let members = self.sessions.get(session)?.values();
        let mut open =
            members.filter_map(|run| Some((run, runs.get(run)?))).filter(|(_, live)| is_open(live));
        let (run, live) = open.next()?;
        let is_next = live.plan.run.holds.has(RunHold::Session) && live.plan.is_live();
        (is_next && self.preparing.insert(run.clone())).then(|| run.clone())
    }

    /// Ends the preparation of a run's turn.
    pub(super) fn finish_preparing(&mut self, run: &RunId) {
        self.preparing.remove(run);
    }

    /// Updates the places of the waiting runs of a session. Runs whose place has changed need a new summary.
    pub(super) fn update_places(&self, session: &SessionId, runs: &mut HashMap<RunId, LiveRun>) {
        let Some(members) = self.sessions.get(session) else { return };
        let (mut position, mut behind): (u32, Option<RunId>) = (0, None);
        for run in members.values() {
            let Some(live) = runs.get_mut(run).filter(|live| is_open(live)) else { continue };
            if live.plan.run.holds.has(RunHold::Session) {
                position += 1;
                let place = QueuePlace { position, behind: behind.clone() };
                if live.holds.queue_place.as_ref() != Some(&place) {
                    live.holds.queue_place = Some(place);
                    live.is_summary_stale = true;
                }
            }
            behind = Some(run.clone());
        }
    }
}

/// `true` if the runs behind this one must wait for it: its end is not in the log. A run whose log is damaged never ends.
fn is_open(live: &LiveRun) -> bool {
    match live.phase {
        RunPhase::Parked => false,
        RunPhase::Appending => true,
        RunPhase::Idle | RunPhase::CheckingArchive | RunPhase::Refolding | RunPhase::Closing => {
            live.plan.run.end.is_none()
        }
    }
}
