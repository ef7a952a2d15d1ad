//! How the lanes of this process stand: which are held, whether they are folded, how far each was read, and what was
//! counted of them. It decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_protocol::ids::Lane;
use millrace_runtime::metrics::names::{
    DECISIONS, LANE_FOLD_SECONDS, LANE_LAG, LANE_LEASES_LOST, LANE_TAKEOVERS, LANES_HELD, RUNS_LIVE,
};
use millrace_runtime::metrics::{Level, Tally, Timing};
use millrace_runtime::{Bus, log};
use tracing::debug;

/// How often it is looked how far behind each lane's reader is.
const LOOK: Duration = Duration::from_secs(5);

/// How all lanes of the process stand.
pub(crate) struct Standing {
    lanes: Mutex<BTreeMap<Lane, Arc<LaneStanding>>>,
    /// Lanes whose owners died here, and which have not been taken again.
    fallen: Mutex<BTreeSet<Lane>>,
    /// Whether it is known by now which lanes are to be held.
    is_settled: AtomicBool,
    held: Level,
    takeovers: Tally,
    leases_lost: Tally,
    decisions: Tally,
    folding: Timing,
}

/// How one lane stands.
pub(crate) struct LaneStanding {
    began: Instant,
    is_folded: AtomicBool,
    is_lost: AtomicBool,
    through: AtomicU64,
    live: Level,
    lag: Level,
    /// Decisions that were appended.
    pub decisions: Tally,
    leases_lost: Tally,
    folding: Timing,
}

impl Standing {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            lanes: Mutex::default(),
            fallen: Mutex::default(),
            is_settled: AtomicBool::new(false),
            held: LANES_HELD.level(&[]),
            takeovers: LANE_TAKEOVERS.tally(&[]),
            leases_lost: LANE_LEASES_LOST.tally(&[]),
            decisions: DECISIONS.tally(&[]),
            folding: LANE_FOLD_SECONDS.timing(&[]),
        })
    }

    /// A lane was taken.
    pub fn take(&self, lane: Lane) -> Arc<LaneStanding> {
        let name = lane.to_string();
        let taken = Arc::new(LaneStanding {
            began: Instant::now(),
            is_folded: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            through: AtomicU64::new(0),
            live: RUNS_LIVE.level(&[&name]),
            lag: LANE_LAG.level(&[&name]),
            decisions: self.decisions.clone(),
            leases_lost: self.leases_lost.clone(),
            folding: self.folding.clone(),
        });
        self.takeovers.one();
        self.change(|lanes| drop(lanes.insert(lane, taken.clone())));
        self.fallen().remove(&lane);
        taken
    }

    /// A lane is not held any more.
    pub fn leave(&self, lane: Lane) {
        self.change(|lanes| drop(lanes.remove(&lane)));
    }

    /// The owner of a lane has died, and the lane is to be taken again.
    pub fn fell(&self, lane: Lane) {
        self.fallen().insert(lane);
        self.leave(lane);
    }

    /// All lanes that are to be held now are, but for those that somebody else holds still.
    pub fn settled(&self, wanted: &BTreeSet<Lane>) {
        self.fallen().retain(|lane| wanted.contains(lane));
        self.is_settled.store(true, Ordering::Relaxed);
    }

    fn fallen(&self) -> MutexGuard<'_, BTreeSet<Lane>> {
        self.fallen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<Lane, Arc<LaneStanding>>)) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut lanes);
        self.held.set(f64::from(u32::try_from(lanes.len()).unwrap_or(u32::MAX)));
    }

    /// Whether all lanes that are held are folded, and none waits to be taken again; else which is not.
    pub fn check(&self) -> Result<(), String> {
        if !self.is_settled.load(Ordering::Relaxed) {
            return Err("not shared out yet".into());
        }
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let folding = lanes.iter().filter(|(_, lane)| !lane.is_folded.load(Ordering::Relaxed));
        let folding = folding.map(|(lane, _)| format!("folding lane {lane}"));
        let fallen = self.fallen();
        let missing: Vec<String> =
            folding.chain(fallen.iter().map(|lane| format!("the owner of lane {lane} died"))).collect();
        if missing.is_empty() { Ok(()) } else { Err(missing.join(", ")) }
    }

    /// Looks for ever how far behind the readers of the lanes are.
    pub async fn look(self: Arc<Self>, bus: Bus) {
        let mut rounds = tokio::time::interval(LOOK);
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone();
            for (lane, standing) in lanes {
                match log::behind(&bus, lane, standing.through.load(Ordering::Relaxed)).await {
                    Ok(lag) => standing.lag.set(lag as f64),
                    Err(fault) => debug!(%lane, %fault, "how far behind a lane's reader is is not known"),
                }
            }
        }
    }
}

impl LaneStanding {
    /// The lane was read to its end.
    pub fn folded(&self, through: u64, runs: usize) {
        self.folding.record(self.began.elapsed());
        self.read(through);
        self.holds(runs);
        self.is_folded.store(true, Ordering::Relaxed);
    }

    /// Messages were read, up to this one.
    pub fn read(&self, through: u64) {
        self.through.store(through, Ordering::Relaxed);
    }

    /// So many runs are held.
    pub fn holds(&self, runs: usize) {
        self.live.set(runs as f64);
    }

    /// The lease was lost; whoever notices it first says so.
    pub fn lost(&self) {
        if !self.is_lost.swap(true, Ordering::Relaxed) {
            self.leases_lost.one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_hold_when_all_that_are_held_are_folded() {
        let standing = Standing::new();
        assert_eq!(standing.check(), Err("not shared out yet".to_owned()));
        standing.settled(&BTreeSet::new());
        assert_eq!(standing.check(), Ok(()), "a process that is to have no lane is well");
        let (one, other) = (standing.take(Lane(3)), standing.take(Lane(5)));
        assert_eq!(standing.check(), Err("folding lane 3, folding lane 5".to_owned()));
        one.folded(7, 1);
        assert_eq!(standing.check(), Err("folding lane 5".to_owned()));
        other.folded(9, 0);
        assert_eq!(standing.check(), Ok(()));
        standing.take(Lane(3));
        assert!(standing.check().is_err(), "one that is taken again is folded again");
        standing.leave(Lane(3));
        assert_eq!(standing.check(), Ok(()));
    }

    #[test]
    fn a_lane_whose_owner_dies_again_and_again_holds_at_no_moment_until_it_is_folded_or_falls_to_another() {
        let standing = Standing::new();
        let wanted = BTreeSet::from([Lane(3)]);
        standing.settled(&wanted);
        for _ in 0..2 {
            standing.take(Lane(3));
            assert!(standing.check().is_err());
            standing.fell(Lane(3));
            standing.settled(&wanted);
            assert_eq!(standing.check(), Err("the owner of lane 3 died".to_owned()));
        }
        standing.take(Lane(3)).folded(7, 1);
        assert_eq!(standing.check(), Ok(()));
        standing.fell(Lane(3));
        standing.settled(&BTreeSet::new());
        assert_eq!(standing.check(), Ok(()), "it is another's to take");
    }
}
