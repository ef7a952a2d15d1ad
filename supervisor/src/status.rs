//! The status of the lanes that this process owns, for the health check and the metrics page: which they are, and up to
//! which message each has been read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_protocol::ids::Lane;
use millrace_protocol::registry::LaneReport;
use millrace_runtime::ops::metrics::names::{
    DECISIONS, LANE_FOLD_SECONDS, LANE_LAG, LANE_LEASES_LOST, LANE_TAKEOVERS, LANES_HELD, RUNS_LIVE,
};
use millrace_runtime::ops::metrics::{Counter, Gauge, Histogram};
use millrace_runtime::{Bus, log};
use tracing::debug;

/// The interval at which the lag of each lane is measured.
const LAG_INTERVAL: Duration = Duration::from_secs(5);

/// The status of all lanes of the process.
pub(crate) struct SupervisorStatus {
    lanes: Mutex<BTreeMap<Lane, Arc<LaneStatus>>>,
    /// The lanes whose owner failed and which have no new owner in this process yet.
    crashed: Mutex<BTreeSet<Lane>>,
    /// `true` once this process knows which lanes are its share.
    is_assigned: AtomicBool,
    held: Gauge,
    takeovers: Counter,
    leases_lost: Counter,
    decisions: Counter,
    folding: Histogram,
}

pub(crate) struct LaneStatus {
    started: Instant,
    is_caught_up: AtomicBool,
    is_lease_lost: AtomicBool,
    through: AtomicU64,
    live: Gauge,
    lag: Gauge,
    /// Counts the decisions that were appended.
    pub decisions: Counter,
    leases_lost: Counter,
    folding: Histogram,
}

impl SupervisorStatus {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            lanes: Mutex::default(),
            crashed: Mutex::default(),
            is_assigned: AtomicBool::new(false),
            held: LANES_HELD.with_labels(&[]),
            takeovers: LANE_TAKEOVERS.with_labels(&[]),
            leases_lost: LANE_LEASES_LOST.with_labels(&[]),
            decisions: DECISIONS.with_labels(&[]),
            folding: LANE_FOLD_SECONDS.with_labels(&[]),
        })
    }

    /// Adds a lane whose lease was acquired.
    pub fn add_lane(&self, lane: Lane) -> Arc<LaneStatus> {
        let name = lane.to_string();
        let status = Arc::new(LaneStatus {
            started: Instant::now(),
            is_caught_up: AtomicBool::new(false),
            is_lease_lost: AtomicBool::new(false),
            through: AtomicU64::new(0),
            live: RUNS_LIVE.with_labels(&[&name]),
            lag: LANE_LAG.with_labels(&[&name]),
            decisions: self.decisions.clone(),
            leases_lost: self.leases_lost.clone(),
            folding: self.folding.clone(),
        });
        self.takeovers.increment();
        self.update_lanes(|lanes| drop(lanes.insert(lane, status.clone())));
        self.lock_crashed_lanes().remove(&lane);
        status
    }

    /// Removes a lane that this process no longer owns.
    pub fn remove_lane(&self, lane: Lane) {
        self.update_lanes(|lanes| drop(lanes.remove(&lane)));
    }

    /// Removes a lane whose owner failed; the process is not ready until the lane has an owner again.
    pub fn record_owner_crash(&self, lane: Lane) {
        self.lock_crashed_lanes().insert(lane);
        self.remove_lane(lane);
    }

    /// Notes that this process has acquired its share of the lanes, except those that another supervisor still holds.
    pub fn record_assignment(&self, share: &BTreeSet<Lane>) {
        self.lock_crashed_lanes().retain(|lane| share.contains(lane));
        self.is_assigned.store(true, Ordering::Relaxed);
    }

    fn lock_crashed_lanes(&self) -> MutexGuard<'_, BTreeSet<Lane>> {
        self.crashed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update_lanes(&self, change: impl FnOnce(&mut BTreeMap<Lane, Arc<LaneStatus>>)) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut lanes);
        self.held.set(f64::from(u32::try_from(lanes.len()).unwrap_or(u32::MAX)));
    }

    /// Checks readiness: every lane of this process has an owner that has caught up. The error names those that do not.
    pub fn check_readiness(&self) -> Result<(), String> {
        if !self.is_assigned.load(Ordering::Relaxed) {
            return Err("lanes not assigned yet".into());
        }
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let folding = lanes.iter().filter(|(_, lane)| !lane.is_caught_up.load(Ordering::Relaxed));
        let folding = folding.map(|(lane, _)| format!("folding lane {lane}"));
        let crashed = self.lock_crashed_lanes();
        let missing: Vec<String> =
            folding.chain(crashed.iter().map(|lane| format!("owner of lane {lane} crashed"))).collect();
        if missing.is_empty() { Ok(()) } else { Err(missing.join(", ")) }
    }

    /// The lanes as the heartbeat reports them.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts of messages and runs, never negative"
    )]
    pub fn lane_reports(&self) -> Vec<LaneReport> {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let report = |(lane, status): (&Lane, &Arc<LaneStatus>)| LaneReport {
            lane: *lane,
            lag: status.lag.get() as u64,
            runs: status.live.get() as u32,
        };
        lanes.iter().map(report).collect()
    }

    /// Measures the lag of each lane at intervals, forever.
    pub async fn measure_lag(self: Arc<Self>, bus: Bus) {
        let mut rounds = tokio::time::interval(LAG_INTERVAL);
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone();
            for (lane, status) in lanes {
                match log::measure_lane_lag(&bus, lane, status.through.load(Ordering::Relaxed)).await {
                    Ok(lag) => status.lag.set(lag as f64),
                    Err(fault) => debug!(%lane, %fault, "cannot read the lane's lag"),
                }
            }
        }
    }
}

impl LaneStatus {
    /// Notes that the whole lane was read and folded.
    pub fn record_caught_up(&self, through: u64, runs: usize) {
        self.folding.record(self.started.elapsed());
        self.record_read_sequence(through);
        self.set_live_runs(runs);
        self.is_caught_up.store(true, Ordering::Relaxed);
    }

    /// Notes that the messages up to this sequence were read.
    pub fn record_read_sequence(&self, through: u64) {
        self.through.store(through, Ordering::Relaxed);
    }

    /// Sets the number of live runs.
    pub fn set_live_runs(&self, runs: usize) {
        self.live.set(runs as f64);
    }

    /// Counts a lost lease once, no matter who notices it first.
    pub fn record_lease_loss(&self) {
        if !self.is_lease_lost.swap(true, Ordering::Relaxed) {
            self.leases_lost.increment();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_every_lane_has_caught_up() {
        let status = SupervisorStatus::new();
        assert_eq!(status.check_readiness(), Err("lanes not assigned yet".to_owned()));
        status.record_assignment(&BTreeSet::new());
        assert_eq!(status.check_readiness(), Ok(()), "a process without a share of the lanes is ready");
        let (one, other) = (status.add_lane(Lane(3)), status.add_lane(Lane(5)));
        assert_eq!(status.check_readiness(), Err("folding lane 3, folding lane 5".to_owned()));
        one.record_caught_up(7, 1);
        assert_eq!(status.check_readiness(), Err("folding lane 5".to_owned()));
        other.record_caught_up(9, 0);
        assert_eq!(status.check_readiness(), Ok(()));
        status.add_lane(Lane(3));
        assert!(status.check_readiness().is_err(), "a new owner of the lane must catch up again");
        status.remove_lane(Lane(3));
        assert_eq!(status.check_readiness(), Ok(()));
    }

    #[test]
    fn heartbeat_reports_each_lane_with_its_runs() {
        let status = SupervisorStatus::new();
        status.add_lane(Lane(3)).record_caught_up(7, 2);
        status.add_lane(Lane(4)).lag.set(9.0);
        let reports =
            [LaneReport { lane: Lane(3), lag: 0, runs: 2 }, LaneReport { lane: Lane(4), lag: 9, runs: 0 }];
        assert_eq!(status.lane_reports(), reports);
        status.remove_lane(Lane(3));
        assert_eq!(status.lane_reports(), reports[1..]);
    }

    #[test]
    fn lane_is_not_ready_while_its_owner_keeps_crashing() {
        let status = SupervisorStatus::new();
        let share = BTreeSet::from([Lane(3)]);
        status.record_assignment(&share);
        for _ in 0..2 {
            status.add_lane(Lane(3));
            assert!(status.check_readiness().is_err());
            status.record_owner_crash(Lane(3));
            status.record_assignment(&share);
            assert_eq!(status.check_readiness(), Err("owner of lane 3 crashed".to_owned()));
        }
        status.add_lane(Lane(3)).record_caught_up(7, 1);
        assert_eq!(status.check_readiness(), Ok(()));
        status.record_owner_crash(Lane(3));
        status.record_assignment(&BTreeSet::new());
        assert_eq!(status.check_readiness(), Ok(()), "the lane now belongs to another supervisor");
    }
}
