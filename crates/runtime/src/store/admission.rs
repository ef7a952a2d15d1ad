//! Admission: the caps on the number of runs, and the board of running and waiting runs, both in the bucket [`LIMITS`], as is the
//! attendance. The board follows from the lanes: if it is lost, the owners of the lanes write it again. Only supervisors may write it.

use millrace_protocol::admission::{
    AdmissionBoard, AdmissionCaps, CurrentCaps, DemandReport, LaneGrant, LaneNotClaimed, LaneOwnerToken,
};
use millrace_protocol::ids::Lane;
use millrace_protocol::plan::Attendance;

use crate::nats::provenance::new_id;
use crate::nats::topology::{ADMISSION_BOARD, ATTENDANCE, LIMITS};
use crate::store::bucket::{Bucket, Change};
use crate::{Bus, Fault};

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
///
/// # Errors
/// The server does not respond, or other lanes changed the board all the time.
pub async fn claim_lane(bus: &Bus, lane: Lane) -> Result<LaneOwnerToken, Fault> {
    let owner = LaneOwnerToken(new_id());
    change_board(bus, |board| board.claim_lane(lane, owner.clone())).await?;
    Ok(owner)
}

/// Reports the runs of a lane, for the current caps. Returns the places of its waiting runs, and the revision of these caps.
///
/// # Errors
/// The server does not respond, or other lanes changed the board all the time.
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
