//! Admission: caps on the number of running and of waiting runs, and the board on which the owners of the lanes agree who runs. Pure; the
//! store of supervisors keeps the board, and changes it by compare-and-set.
//!
//! The owner of each lane reports its runs as they are in the log ([`DemandReport`]), and gets the places of those that wait ([`LaneGrant`]).
//! A place is given to the run that has waited longest on the board, whatever its lane. Three rules keep the number of places exact:
//!
//! - A place is free only if the log says so: its run has ended, or waits no more. A new owner reports what it has read from the log, so
//!   that nothing stays taken by a run that ended while no supervisor was alive.
//! - Only the owner that claimed a lane last reports it. It claims the lane while it has the lease and before it reports for the
//!   first time, so that a late report of an earlier owner, which may have been suspended, is rejected.
//! - Places are given only while every lane has reported for the current caps, so that no running run is left out.
//!
//! # Invariants
//!
//! - I221: Never more runs get places than the caps allow, and none overtakes another on the board, whichever supervisors die or
//!   are suspended; a run that has ended in the log gives its place free, even if no supervisor was alive.
//!   (`protocol/tests/rules/admission.rs::never_more_runs_than_allowed_have_places_while_owners_die_and_report_late`,
//!   `tests/tests/admission.rs::fifty_runs_at_once_keep_the_caps_and_their_order_while_supervisors_die_and_sleep`,
//!   `tests/tests/admission.rs::lower_caps_stop_no_run_and_places_are_free_after_all_supervisors_were_killed`)

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::{Lane, RunId};

/// The maximum number of waiting runs on the board, which is one message. If more may wait, the others wait in their lanes, without a
/// position, until there is room.
pub const MAX_LISTED_RUNS: u32 = 1000;

/// The caps of a cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AdmissionCaps {
    /// The number of runs that may run at once; `None` is unlimited, and no run waits for a place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running_runs: Option<u32>,
    /// The number of runs that may wait for a place; `None` is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_waiting_runs: Option<u32>,
}

/// The caps as they are set at present.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CurrentCaps {
    /// The caps.
    pub caps: AdmissionCaps,
    /// The sequence of the change that set them; 0 if they were never set.
    pub revision: u64,
    /// When they were set; `None` if they never were.
    pub since: Option<Timestamp>,
}

/// Invalid caps.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CapsError {
    /// No run could start.
    #[error("a cap on running runs is 1 or more, or \"unlimited\"; to stop runs, pause them")]
    NoneRunning,
    /// The board can't list as many.
    #[error(
        "{0} waiting runs are too many to count: a cap on them is {MAX_LISTED_RUNS} or less, or \"unlimited\""
    )]
    TooManyWaiting(u32),
    /// No run waits if the number of running runs is unlimited.
    #[error(
        "no run waits for a place while the number of running runs is unlimited; set a cap on running runs too"
    )]
    NoneWait,
}

/// The token of an owner of a lane: each new owner has another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LaneOwnerToken(pub String);

/// A run that waits for a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingRun {
    /// The run.
    pub run: RunId,
    /// Its lane.
    pub lane: Lane,
}

/// The board: the number of running runs of each lane, the places that were given to runs, and the runs that wait.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionBoard {
    /// The last reports of the owners of the lanes.
    #[serde(default)]
    pub lanes: BTreeMap<Lane, LaneEntry>,
    /// The runs that wait, in their order.
    #[serde(default)]
    pub waiting: VecDeque<WaitingRun>,
}

/// A lane on the board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneEntry {
    /// The owner that may report.
    pub owner: LaneOwnerToken,
    /// The revision of the caps for which the lane has reported.
    #[serde(default)]
    pub caps_revision: u64,
    /// The number of runs that run, as the log says.
    #[serde(default)]
    pub running: u32,
    /// The runs that have a place, and still wait as the log says.
    #[serde(default)]
    pub granted: BTreeSet<RunId>,
    /// The number of waiting runs that are not on the board, since it is full.
    #[serde(default)]
    pub unlisted: u32,
}

/// A run that waits for a place, as its lane reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitingSince {
    /// When it was submitted; runs of a lane that are reported together are put on the board in this order.
    pub submitted: Timestamp,
    /// `true` if the run may be refused when as many runs as allowed wait. A run of a session is not: it was accepted before.
    pub is_refusable: bool,
}

/// The runs of a lane, as they are in the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaneDemand {
    /// The number of live runs that wait for nothing.
    pub running: u32,
    /// The runs that wait for a place.
    pub waiting: BTreeMap<RunId, WaitingSince>,
}

/// A report of the owner of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemandReport {
    /// The lane.
    pub lane: Lane,
    /// Its owner.
    pub owner: LaneOwnerToken,
    /// The runs.
    pub demand: LaneDemand,
}

/// The places of the waiting runs of a lane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaneGrant {
    /// The runs that have a place.
    pub granted: Vec<RunId>,
    /// The runs that can't wait, since as many as allowed do, with the number of these.
    pub refused: Vec<(RunId, u32)>,
    /// The numbers of the others in the queue, from 1.
    pub positions: Vec<(RunId, u32)>,
}

/// Another owner has claimed the lane, or the board was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("another supervisor has claimed the lane on the board of admission")]
pub struct LaneNotClaimed;

impl AdmissionCaps {
    /// Checks the caps.
    pub fn validate(self) -> Result<Self, CapsError> {
        match (self.max_running_runs, self.max_waiting_runs) {
            (Some(0), _) => Err(CapsError::NoneRunning),
            (_, Some(waiting)) if waiting > MAX_LISTED_RUNS => Err(CapsError::TooManyWaiting(waiting)),
            (None, Some(_)) => Err(CapsError::NoneWait),
            (Some(_) | None, _) => Ok(self),
        }
    }
}

impl fmt::Display for AdmissionCaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |cap: Option<u32>| cap.map_or_else(|| "unlimited".to_owned(), |cap| cap.to_string());
        let (running, waiting) = (number(self.max_running_runs), number(self.max_waiting_runs));
        write!(f, "running runs: {running}, waiting runs: {waiting}")
    }
}

impl AdmissionBoard {
    /// Returns the number of runs that run or have a place.
    pub fn running_count(&self) -> u32 {
        self.lanes
            .values()
            .fold(0, |sum, lane| sum.saturating_add(lane.running).saturating_add(lane.granted_count()))
    }

    /// Returns the number of runs that wait.
    pub fn waiting_count(&self) -> u32 {
        self.lanes.values().fold(self.listed_count(), |sum, lane| sum.saturating_add(lane.unlisted))
    }

    /// `true` if a run that is submitted now would be refused.
    pub fn is_full(&self, caps: &AdmissionCaps) -> bool {
        let is_at = |count: u32, cap: Option<u32>| cap.is_some_and(|cap| count >= cap);
        is_at(self.running_count(), caps.max_running_runs)
            && is_at(self.waiting_count(), caps.max_waiting_runs)
    }

    /// Makes an owner the only one that may report the lane.
    pub fn claim_lane(&mut self, lane: Lane, owner: LaneOwnerToken) {
        match self.lanes.get_mut(&lane) {
            Some(entry) => entry.owner = owner,
            None => {
                let (granted, unlisted) = (BTreeSet::new(), 0);
                self.lanes.insert(lane, LaneEntry { owner, caps_revision: 0, running: 0, granted, unlisted });
            }
        }
    }

    /// Takes over a report, gives the free places to the runs that have waited longest, and returns the places of the lane's runs.
    /// `lane_count` is the number of lanes of the cluster.
    /// Errors: the reporter is not the owner that claimed the lane last. Nothing has changed.
    pub fn update(
        &mut self,
        current: &CurrentCaps,
        lane_count: u16,
        report: &DemandReport,
    ) -> Result<LaneGrant, LaneNotClaimed> {
        let DemandReport { lane, owner, demand } = report;
        let entry = self.lanes.get_mut(lane).filter(|entry| entry.owner == *owner).ok_or(LaneNotClaimed)?;
        entry.running = demand.running;
        entry.caps_revision = current.revision;
        entry.unlisted = 0;
        entry.granted.retain(|run| demand.waiting.contains_key(run));
        let Some(max_running) = current.caps.max_running_runs else {
            entry.granted.clear();
            self.waiting.retain(|waiting| waiting.lane != *lane);
            return Ok(LaneGrant {
                granted: demand.waiting.keys().cloned().collect(),
                ..LaneGrant::default()
            });
        };
        self.waiting.retain(|waiting| waiting.lane != *lane || demand.waiting.contains_key(&waiting.run));
        let mut grant = LaneGrant::default();
        let new = self.new_runs(*lane, demand);
        let mut unlisted = 0;
        if self.has_every_lane_reported(current, lane_count) {
            self.give_places(max_running);
            for run in new {
                let is_refusable = demand.waiting.get(run).is_some_and(|since| {
                    since.is_refusable && current.since.is_none_or(|set| since.submitted > set)
                });
                if is_refusable && self.is_full(&current.caps) {
                    grant.refused.push((run.clone(), self.waiting_count()));
                } else if self.listed_count() < MAX_LISTED_RUNS {
                    self.waiting.push_back(WaitingRun { run: run.clone(), lane: *lane });
                    self.give_places(max_running);
                } else {
                    unlisted += 1;
                }
            }
        } else {
            unlisted = u32::try_from(new.len()).unwrap_or(u32::MAX);
        }
        if let Some(entry) = self.lanes.get_mut(lane) {
            entry.unlisted = unlisted;
            grant.granted = entry.granted.iter().cloned().collect();
        }
        let numbered = (1..).zip(&self.waiting).filter(|(_, waiting)| waiting.lane == *lane);
        grant.positions = numbered.map(|(position, waiting)| (waiting.run.clone(), position)).collect();
        Ok(grant)
    }

    fn listed_count(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX)
    }

    /// Returns the runs of a report that are not on the board, in the order of their submissions.
    fn new_runs<'a>(&self, lane: Lane, demand: &'a LaneDemand) -> Vec<&'a RunId> {
        let listed: BTreeSet<&RunId> = self.waiting.iter().map(|waiting| &waiting.run).collect();
        let granted = self.lanes.get(&lane).map(|entry| &entry.granted);
        let is_new =
            |run: &RunId| !listed.contains(run) && granted.is_none_or(|granted| !granted.contains(run));
        let mut new: Vec<_> = demand.waiting.iter().filter(|(run, _)| is_new(run)).collect();
        new.sort_by_key(|(run, since)| (since.submitted, *run));
        new.into_iter().map(|(run, _)| run).collect()
    }

    fn has_every_lane_reported(&self, current: &CurrentCaps, lane_count: u16) -> bool {
        let has_reported = |lane: &LaneEntry| lane.caps_revision == current.revision;
        (0..lane_count).all(|lane| self.lanes.get(&Lane(lane)).is_some_and(has_reported))
    }

    /// Gives free places to the first runs of the queue; no more at once than fit into the message of the board.
    fn give_places(&mut self, max_running: u32) {
        let granted = self.lanes.values().fold(0_u32, |sum, lane| sum.saturating_add(lane.granted_count()));
        let free = max_running.saturating_sub(self.running_count());
        let mut free = free.min(MAX_LISTED_RUNS.saturating_sub(granted));
        while free > 0 {
            let Some(next) = self.waiting.pop_front() else { return };
            // A run on the board is in a lane that has been claimed.
            if let Some(entry) = self.lanes.get_mut(&next.lane) {
                entry.granted.insert(next.run);
                free -= 1;
            }
        }
    }
}

impl LaneEntry {
    fn granted_count(&self) -> u32 {
        u32::try_from(self.granted.len()).unwrap_or(u32::MAX)
    }
}
