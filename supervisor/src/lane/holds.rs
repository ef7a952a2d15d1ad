//! Which runs of a lane may start: those with a place on the board of admission, for which its owner claims the lane and reports the
//! runs as they are in the log, and the next run of each session, in the order of the submissions in the lane. All of it follows from
//! the runs in memory, so that a new owner computes the same. No I/O.

use std::collections::{BTreeMap, HashMap, HashSet};

use millrace_protocol::admission::{CurrentCaps, DemandReport, LaneDemand, LaneOwnerToken};
use millrace_protocol::ids::{Lane, RunId, SessionId};
use millrace_protocol::plan::RunHold;
use millrace_protocol::registry::QueuePlace;

use crate::live::{LiveRun, RunPhase};

/// The reports of a lane.
#[derive(Debug, Default)]
pub(super) struct LaneAdmission {
    /// The token of this owner; `None` before it has claimed the lane.
    owner: Option<LaneOwnerToken>,
    /// The last report that is on the board, and the revision of the caps at its time.
    reported: Option<(u64, LaneDemand)>,
    /// The report that is in flight.
    in_flight: Option<LaneDemand>,
    is_busy: bool,
}

/// The next step of a lane.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AdmissionStep {
    /// Claim the lane on the board.
    ClaimLane,
    /// Report the runs.
    Report(DemandReport),
}

impl LaneAdmission {
    /// Returns the next step; `None` while one is in flight, and if nothing has changed and no run waits. A report is made only after
    /// the lane was claimed, by an owner whose lease is valid.
    pub(super) fn next_step(
        &mut self,
        current: &CurrentCaps,
        lane: Lane,
        runs: &HashMap<RunId, LiveRun>,
    ) -> Option<AdmissionStep> {
        if self.is_busy {
            return None;
        }
        let Some(owner) = self.owner.clone() else {
            self.is_busy = true;
            return Some(AdmissionStep::ClaimLane);
        };
        let demand = demand_of_runs(runs);
        let is_known =
            |(revision, known): &(u64, LaneDemand)| *revision == current.revision && *known == demand;
        if demand.waiting.is_empty() && self.reported.as_ref().is_some_and(is_known) {
            return None;
        }
        self.is_busy = true;
        self.in_flight = Some(demand.clone());
        Some(AdmissionStep::Report(DemandReport { lane, owner, demand }))
    }

    /// Ends a claim; `None` if it failed.
    pub(super) fn finish_claim(&mut self, owner: Option<LaneOwnerToken>) {
        *self = Self { owner, ..Self::default() };
    }

    /// Ends a report, which was made for the caps of this revision; `None` if it failed, and is repeated.
    pub(super) fn finish_report(&mut self, revision: Option<u64>) {
        self.is_busy = false;
        self.reported = revision.zip(self.in_flight.take());
    }

    /// Ends a report that was rejected: the lane must be claimed again.
    pub(super) fn lose_claim(&mut self) {
        *self = Self::default();
    }

    /// Notes that the number of running runs is unlimited. Returns `true` if it was limited before.
    pub(super) fn stop_reporting(&mut self) -> bool {
        let was_reporting = self.reported.is_some();
        self.reported = None;
        was_reporting
    }
}

fn demand_of_runs(runs: &HashMap<RunId, LiveRun>) -> LaneDemand {
    let mut demand = LaneDemand::default();
    for (run, live) in runs {
        // The log of a parked run is damaged: nothing of it is carried out.
        if live.phase == RunPhase::Parked {
            continue;
        }
        if live.is_running_in_log() {
            demand.running = demand.running.saturating_add(1);
        } else if let Some(since) = live.waits_for_place_since() {
            demand.waiting.insert(run.clone(), since);
        }
    }
    demand
}

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
