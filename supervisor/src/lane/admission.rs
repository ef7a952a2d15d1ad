//! The runs of a lane on the board of admission: its owner claims the lane, and reports the runs as they are in the log. All of it
//! follows from the runs in memory, so that a new owner reports the same. No I/O.

use std::collections::HashMap;

use millrace_protocol::admission::{CurrentCaps, DemandReport, LaneDemand, LaneOwnerToken};
use millrace_protocol::ids::{Lane, RunId};

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
