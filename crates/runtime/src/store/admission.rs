//! Admission: the caps on the number of runs, and the board of running and waiting runs, both in the bucket [`LIMITS`], as is the
//! attendance. The board follows from the lanes: if it is lost, the owners of the lanes write it again. Only supervisors may write it.

use millrace_protocol::admission::{
    AdmissionBoard, AdmissionCaps, CurrentCaps, DemandReport, LaneGrant, LaneNotClaimed, LaneOwnerToken,
};
use millrace_protocol::ids::Lane;
use millrace_protocol::plan::Attendance;

use crate::fault::backoff;
use crate::nats::provenance::new_id;
use crate::nats::published_bucket::{ExpectedEntry, KeyState, read_key, write_key};
use crate::nats::topology::{ADMISSION_BOARD, ATTENDANCE, LIMITS};
use crate::{Bus, Fault};

/// The key of the caps.
const CAPS: &str = "runs.caps";
/// The maximum number of attempts to change the board while others change it.
const MAX_ATTEMPTS: u32 = 8;

pub async fn read_caps(bus: &Bus) -> Result<CurrentCaps, Fault> {
    let state = read_key::<AdmissionCaps>(bus, LIMITS, CAPS).await?;
    Ok(match state.entry {
        Some(entry) => CurrentCaps { caps: entry.value, revision: entry.sequence, since: Some(entry.at) },
        None => CurrentCaps::default(),
    })
}

/// Sets the caps, which are valid. Supervisors know them a second later.
///
/// # Errors
/// The server does not respond, or denies it.
pub async fn set_caps(bus: &Bus, caps: &AdmissionCaps) -> Result<(), Fault> {
    write_key(bus, LIMITS, CAPS, caps, ExpectedEntry::Any).await.map(drop)
}

/// Returns the attendance, as a supervisor last wrote it.
pub async fn read_attendance(bus: &Bus) -> Result<Option<Attendance>, Fault> {
    let state = read_key::<Attendance>(bus, LIMITS, ATTENDANCE).await?;
    Ok(state.entry.map(|entry| entry.value))
}

/// Writes the attendance.
///
/// # Errors
/// The server does not respond, or denies it.
pub async fn write_attendance(bus: &Bus, attendance: &Attendance) -> Result<(), Fault> {
    write_key(bus, LIMITS, ATTENDANCE, &attendance.to_store(), ExpectedEntry::Any).await.map(drop)
}

/// Returns the board, as the owners of the lanes last wrote it.
pub async fn read_board(bus: &Bus) -> Result<AdmissionBoard, Fault> {
    let state = read_key::<AdmissionBoard>(bus, LIMITS, ADMISSION_BOARD).await?;
    Ok(state.entry.map(|entry| entry.value).unwrap_or_default())
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
    for attempt in 1..=MAX_ATTEMPTS {
        let KeyState { entry, last } = read_key::<AdmissionBoard>(bus, LIMITS, ADMISSION_BOARD).await?;
        let known = entry.map(|entry| entry.value).unwrap_or_default();
        let mut board = known.clone();
        let result = change(&mut board);
        let is_written = board == known
            || write_key(bus, LIMITS, ADMISSION_BOARD, &board, ExpectedEntry::Sequence(last))
                .await?
                .is_some();
        if is_written {
            return Ok(result);
        }
        tokio::time::sleep(backoff(attempt.min(2)) / 4).await;
    }
    Err(Fault::unavailable("the board of admission", "other lanes change it all the time"))
}
