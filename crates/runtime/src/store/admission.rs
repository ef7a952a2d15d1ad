//! Admission: the caps on the number of runs, and the board of running and waiting runs, both in the bucket [`LIMITS`], as is the
//! attendance. The board follows from the lanes: if it is lost, the owners of the lanes write it again. Only supervisors may write it.
//!
//! The sessions of a cluster: the runs of each whose turn has come, in their order. The owner of the session's lane adds a run
//! before it decides that its turn has come. A run that left its lane is known to its session from here.

use millrace_protocol::admission::{
    AdmissionBoard, AdmissionCaps, CurrentCaps, DemandReport, LaneGrant, LaneNotClaimed, LaneOwnerToken,
};
use millrace_protocol::ids::{Lane, RunId, SessionId};
use millrace_protocol::plan::Attendance;
use serde::{Deserialize, Serialize};

use crate::Fault;
use crate::nats::bus::Bus;
use crate::nats::record::new_id;
use crate::nats::topology::{ADMISSION_BOARD, ATTENDANCE, LIMITS, SESSIONS};
use crate::store::bucket::{Bucket, Change};

/// The key of the caps.
const CAPS: &str = "runs.caps";
static CAPS_STORE: Bucket<AdmissionCaps> = Bucket::new(LIMITS, "");
static ATTENDANCE_STORE: Bucket<Attendance> = Bucket::new(LIMITS, "");
static BOARD_STORE: Bucket<AdmissionBoard> = Bucket::new(LIMITS, "");

pub async fn read_caps(bus: &Bus) -> Result<CurrentCaps, Fault> {
    Ok(match CAPS_STORE.read_state(bus, CAPS).await?.entry {
        Some(entry) => CurrentCaps { caps: entry.value, revision: entry.sequence, since: Some(entry.at) },
        None => CurrentCaps::default(),
    })
}

/// Sets the caps, which are valid. Supervisors know them a second later.
pub async fn set_caps(bus: &Bus, caps: &AdmissionCaps) -> Result<(), Fault> {
    CAPS_STORE.put(bus, CAPS, caps).await
}

/// Returns the attendance, as a supervisor last wrote it.
pub async fn read_attendance(bus: &Bus) -> Result<Option<Attendance>, Fault> {
    ATTENDANCE_STORE.read(bus, ATTENDANCE).await
}

/// Writes the attendance.
pub async fn write_attendance(bus: &Bus, attendance: &Attendance) -> Result<(), Fault> {
    ATTENDANCE_STORE.put(bus, ATTENDANCE, &attendance.to_store()).await
}

/// Returns the board, as the owners of the lanes last wrote it.
pub async fn read_board(bus: &Bus) -> Result<AdmissionBoard, Fault> {
    Ok(BOARD_STORE.read(bus, ADMISSION_BOARD).await?.unwrap_or_default())
}

/// Claims a lane on the board, so that reports of earlier owners are rejected. Returns the token of the new owner.
/// Fails also if other lanes changed the board all the time.
pub async fn claim_lane(bus: &Bus, lane: Lane) -> Result<LaneOwnerToken, Fault> {
    let owner = LaneOwnerToken(new_id());
    change_board(bus, |board| board.claim_lane(lane, owner.clone())).await?;
    Ok(owner)
}

/// Reports the runs of a lane, for the current caps. Returns the places of its waiting runs, and the revision of these caps.
/// Fails also if other lanes changed the board all the time.
pub async fn report_lane(
    bus: &Bus,
    report: &DemandReport,
) -> Result<Result<(LaneGrant, u64), LaneNotClaimed>, Fault> {
    let current = read_caps(bus).await?;
    let lanes = bus.settings().lanes;
    let grant = change_board(bus, |board| board.update(&current, lanes, report)).await?;
    Ok(grant.map(|grant| (grant, current.revision)))
}

/// Changes the board by compare-and-set, and returns the result of the change that was written.
async fn change_board<T>(bus: &Bus, change: impl Fn(&mut AdmissionBoard) -> T) -> Result<T, Fault> {
    let changed = |known: Option<AdmissionBoard>| {
        let known = known.unwrap_or_default();
        let mut board = known.clone();
        let result = change(&mut board);
        if board == known { Change::Keep(result) } else { Change::Write(board, result) }
    };
    BOARD_STORE.change(bus, ADMISSION_BOARD, changed).await
}

static STORE: Bucket<SessionRecord> = Bucket::new(SESSIONS, "");

/// The number of runs of a session that its record names: the newest ones.
pub const MAX_SESSION_RUNS: usize = 1_000;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The number of runs so far.
    pub count: u32,
    /// The newest of them, oldest first, at most [`MAX_SESSION_RUNS`].
    pub runs: Vec<RunId>,
}

impl SessionRecord {
    /// Returns the number of a run, from 1, and the runs before it, oldest first; `None` if the record does not name it.
    pub fn find_run(&self, run: &RunId) -> Option<(u32, &[RunId])> {
        let at = self.runs.iter().position(|it| it == run)?;
        let after = u32::try_from(self.runs.len() - at - 1).unwrap_or(u32::MAX);
        Some((self.count.saturating_sub(after), &self.runs[..at]))
    }

    /// Adds a run as the newest one.
    fn add_run(&mut self, run: &RunId) {
        self.count = self.count.saturating_add(1);
        self.runs.push(run.clone());
        self.runs.drain(..self.runs.len().saturating_sub(MAX_SESSION_RUNS));
    }
}

/// Adds a run to its session, unless it is there. Returns its number, from 1, and the runs before it, oldest first.
/// Fails also if other processes change the session all the time.
pub async fn join_session(bus: &Bus, session: &SessionId, run: &RunId) -> Result<(u32, Vec<RunId>), Fault> {
    let join = |record: Option<SessionRecord>| {
        let mut record = record.unwrap_or_default();
        let is_new = record.find_run(run).is_none();
        if is_new {
            record.add_run(run);
        }
        let (position, before) = record.find_run(run).unwrap_or_default();
        let found = (position, before.to_vec());
        if is_new { Change::Write(record, found) } else { Change::Keep(found) }
    };
    STORE.change(bus, session.as_str(), join).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_id(number: usize) -> RunId {
        RunId::new(format!("r{number}")).unwrap()
    }

    #[test]
    fn runs_are_numbered_and_the_oldest_are_forgotten() {
        let mut record = SessionRecord::default();
        (1..=3).for_each(|number| record.add_run(&run_id(number)));
        assert_eq!(record.find_run(&run_id(3)), Some((3, &[run_id(1), run_id(2)][..])));
        assert_eq!(record.find_run(&run_id(1)), Some((1, &[][..])));
        assert_eq!(record.find_run(&run_id(4)), None);
        (4..=MAX_SESSION_RUNS + 2).for_each(|number| record.add_run(&run_id(number)));
        assert_eq!(record.find_run(&run_id(2)), None);
        let (position, before) = record.find_run(&run_id(MAX_SESSION_RUNS + 2)).unwrap();
        assert_eq!((position as usize, before.len()), (MAX_SESSION_RUNS + 2, MAX_SESSION_RUNS - 1));
    }
}
