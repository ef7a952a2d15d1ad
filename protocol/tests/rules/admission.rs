//! The board on which lanes agree which runs have places.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use millrace_protocol::admission::{
    AdmissionBoard, AdmissionCaps, CapsError, CurrentCaps, DemandReport, LaneDemand, LaneGrant,
    LaneNotClaimed, LaneOwnerToken, MAX_LISTED_RUNS, WaitingSince,
};
use millrace_protocol::ids::{Lane, RunId};

use crate::random::RandomDraws;

const LANES: u16 = 3;

fn run_id(number: u64) -> RunId {
    RunId::new(format!("r{number:04}")).unwrap()
}

fn time(second: u64) -> Timestamp {
    Timestamp::from_second(i64::try_from(second).unwrap()).unwrap()
}

fn caps(running: u32, waiting: u32) -> CurrentCaps {
    let caps = AdmissionCaps { max_running_runs: Some(running), max_waiting_runs: Some(waiting) };
    CurrentCaps { caps, revision: 1, since: Some(time(0)) }
}

fn owner(number: u64) -> LaneOwnerToken {
    LaneOwnerToken(format!("o{number}"))
}

/// A report of the first owner of a lane.
fn report(lane: u16, running: u32, waiting: &[u64]) -> DemandReport {
    let since = |number| WaitingSince { submitted: time(number), is_refusable: true };
    let waiting = waiting.iter().map(|number| (run_id(*number), since(*number))).collect();
    DemandReport { lane: Lane(lane), owner: owner(0), demand: LaneDemand { running, waiting } }
}

/// A board on which all lanes have reported that they have no runs.
fn empty_board(caps: &CurrentCaps) -> AdmissionBoard {
    let mut board = AdmissionBoard::default();
    for lane in 0..LANES {
        board.claim_lane(Lane(lane), owner(0));
        board.update(caps, LANES, &report(lane, 0, &[])).unwrap();
    }
    board
}

fn ids(numbers: &[u64]) -> Vec<RunId> {
    numbers.iter().map(|number| run_id(*number)).collect()
}

#[test]
fn run_that_waited_longest_in_any_lane_gets_the_place_that_becomes_free() {
    let caps = caps(1, 10);
    let mut board = empty_board(&caps);
    let mut update =
        |lane, running, waiting: &[u64]| board.update(&caps, LANES, &report(lane, running, waiting)).unwrap();
    assert_eq!(update(0, 0, &[1]).granted, ids(&[1]));
    let grant = update(1, 0, &[3, 2]);
    assert_eq!((grant.granted, grant.positions), (vec![], vec![(run_id(2), 1), (run_id(3), 2)]));
    assert_eq!(update(0, 1, &[4]).positions, [(run_id(4), 3)]);
    // The run of lane 0 ends: the place goes to lane 1, which learns it with its next report.
    assert_eq!(update(0, 0, &[4]).granted, []);
    assert_eq!(update(1, 0, &[2, 3]).granted, ids(&[2]));
    // A place whose run was cancelled or paused before it was used is free again.
    assert_eq!(update(1, 0, &[3]).granted, ids(&[3]));
}

#[test]
fn runs_beyond_the_cap_of_waiting_runs_are_refused_latest_first() {
    let caps = caps(2, 2);
    let mut board = empty_board(&caps);
    let grant = board.update(&caps, LANES, &report(0, 0, &[5, 4, 3, 2, 1])).unwrap();
    assert_eq!((grant.granted, grant.refused), (ids(&[1, 2]), vec![(run_id(5), 2)]));
    assert_eq!(grant.positions, [(run_id(3), 1), (run_id(4), 2)]);
    assert!(board.is_full(&caps.caps));
    // A run that waited for its session, or was submitted before the caps were set, waits all the same.
    let mut waits = report(1, 0, &[6]);
    waits.demand.waiting.get_mut(&run_id(6)).unwrap().is_refusable = false;
    assert_eq!(board.update(&caps, LANES, &waits).unwrap().positions, [(run_id(6), 3)]);
    assert_eq!(board.update(&caps, LANES, &report(2, 0, &[0])).unwrap().positions, [(run_id(0), 4)]);
}

#[test]
fn running_runs_count_and_lower_caps_stop_none_of_them() {
    let caps = caps(1, 5);
    let mut board = empty_board(&caps);
    let grant = board.update(&caps, LANES, &report(0, 3, &[4])).unwrap();
    assert_eq!((grant.granted, grant.positions), (vec![], vec![(run_id(4), 1)]));
    assert_eq!(board.update(&caps, LANES, &report(0, 1, &[4])).unwrap().granted, []);
    assert_eq!(board.update(&caps, LANES, &report(0, 0, &[4])).unwrap().granted, ids(&[4]));
}

#[test]
fn no_place_is_given_before_every_lane_has_reported_for_the_caps() {
    let caps = caps(5, 5);
    let mut board = AdmissionBoard::default();
    (0..LANES).for_each(|lane| board.claim_lane(Lane(lane), owner(0)));
    for (lane, running) in [(0, 0), (1, 4)] {
        assert_eq!(board.update(&caps, LANES, &report(lane, running, &[1])).unwrap(), LaneGrant::default());
    }
    board.update(&caps, LANES, &report(2, 1, &[])).unwrap();
    assert_eq!(board.update(&caps, LANES, &report(0, 0, &[1])).unwrap().positions, [(run_id(1), 1)]);
    let raised =
        CurrentCaps { caps: AdmissionCaps { max_running_runs: Some(6), ..caps.caps }, revision: 2, ..caps };
    assert_eq!(board.update(&raised, LANES, &report(0, 0, &[1])).unwrap().granted, []);
    board.update(&raised, LANES, &report(1, 4, &[])).unwrap();
    board.update(&raised, LANES, &report(2, 1, &[])).unwrap();
    assert_eq!(board.update(&raised, LANES, &report(0, 0, &[1])).unwrap().granted, ids(&[1]));
}

#[test]
fn late_report_of_an_earlier_owner_is_rejected() {
    let caps = caps(1, 5);
    let mut board = empty_board(&caps);
    board.update(&caps, LANES, &report(0, 1, &[])).unwrap();
    board.claim_lane(Lane(0), owner(1));
    let before = board.clone();
    assert_eq!(board.update(&caps, LANES, &report(0, 0, &[])), Err(LaneNotClaimed));
    assert_eq!(board, before);
    assert_eq!(AdmissionBoard::default().update(&caps, LANES, &report(0, 0, &[])), Err(LaneNotClaimed));
}

#[test]
fn runs_that_do_not_fit_on_the_board_wait_in_their_lanes() {
    let unlimited = CurrentCaps {
        caps: AdmissionCaps { max_running_runs: Some(1), max_waiting_runs: None },
        ..caps(1, 0)
    };
    let mut board = empty_board(&unlimited);
    let all: Vec<u64> = (0..u64::from(MAX_LISTED_RUNS) + 50).collect();
    let grant = board.update(&unlimited, LANES, &report(0, 0, &all)).unwrap();
    assert_eq!((grant.granted, grant.positions.len()), (ids(&[0]), MAX_LISTED_RUNS as usize));
    assert_eq!(board.waiting_count(), MAX_LISTED_RUNS + 49);
    assert_eq!(board.update(&unlimited, LANES, &report(0, 0, &all[1..])).unwrap().granted, ids(&[1]));
    assert_eq!(board.waiting_count(), MAX_LISTED_RUNS + 48);
}

#[test]
fn invalid_caps_are_refused() {
    let caps =
        |running, waiting| AdmissionCaps { max_running_runs: running, max_waiting_runs: waiting }.validate();
    assert_eq!(caps(Some(0), None), Err(CapsError::NoneRunning));
    assert_eq!(caps(None, Some(1)), Err(CapsError::NoneWait));
    assert_eq!(caps(Some(1), Some(1001)), Err(CapsError::TooManyWaiting(1001)));
    assert!(caps(None, None).is_ok() && caps(Some(1), Some(0)).is_ok());
}

/// The state of a run in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Logged {
    Waiting,
    Paused,
    Running,
}

/// A lane with its log, and its current owner.
#[derive(Debug, Default)]
struct LaneModel {
    runs: BTreeMap<RunId, Logged>,
    /// The places that its owner got, and has not appended.
    pending: BTreeSet<RunId>,
    owner: u64,
    is_claimed: bool,
}

/// A cluster whose owners die, are suspended and report late.
struct ClusterModel {
    board: AdmissionBoard,
    caps: CurrentCaps,
    lanes: Vec<LaneModel>,
    /// Reports of owners that were suspended.
    late: Vec<DemandReport>,
    next: u64,
}

impl ClusterModel {
    fn new(caps: CurrentCaps) -> Self {
        let lanes = (0..LANES).map(|_| LaneModel::default()).collect();
        Self { board: AdmissionBoard::default(), caps, lanes, late: Vec::new(), next: 0 }
    }

    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn report_of(&self, lane: u16) -> DemandReport {
        let LaneModel { runs, pending, owner: token, .. } = &self.lanes[usize::from(lane)];
        let count = runs.values().filter(|state| **state == Logged::Running).count();
        let mut report = report(lane, u32::try_from(count).unwrap(), &[]);
        report.owner = owner(*token);
        for (number, run) in (1..=self.next).map(|number| (number, run_id(number))) {
            let is_waiting = match runs.get(&run) {
                Some(Logged::Waiting) => true,
                // Until the owner has decided about its place.
                Some(Logged::Paused) => pending.contains(&run),
                Some(Logged::Running) | None => false,
            };
            if is_waiting {
                report
                    .demand
                    .waiting
                    .insert(run, WaitingSince { submitted: time(number), is_refusable: true });
            }
        }
        report
    }

    /// Updates the board, and checks that no more runs get places than allowed, and that none is overtaken.
    fn update(&mut self, report: &DemandReport) -> Result<LaneGrant, LaneNotClaimed> {
        let order =
            |board: &AdmissionBoard| board.waiting.iter().map(|it| it.run.clone()).collect::<Vec<_>>();
        let granted = |board: &AdmissionBoard| {
            board.lanes.values().flat_map(|lane| lane.granted.iter().cloned()).collect::<BTreeSet<_>>()
        };
        let (waited, had) = (order(&self.board), granted(&self.board));
        let before = self.places();
        let grant = self.board.update(&self.caps, LANES, report)?;
        let (after, cap) = (self.places(), self.caps.caps.max_running_runs.unwrap());
        let is_given = !after.is_subset(&before);
        assert!(!is_given || after.len() <= cap as usize, "{after:?} have places of {cap}: {:?}", self.board);
        let (waits, has) = (order(&self.board), granted(&self.board));
        let still: Vec<RunId> = waited.iter().filter(|run| waits.contains(run)).cloned().collect();
        assert!(waits.starts_with(&still), "{waits:?} overtake {still:?}");
        let first_left = waited.iter().position(|run| waits.contains(run)).unwrap_or(waited.len());
        for new in has.difference(&had) {
            let was = waited.iter().position(|run| run == new);
            assert!(was.map_or(still.is_empty(), |was| was < first_left), "{new} overtakes {still:?}");
        }
        Ok(grant)
    }

    /// Returns the runs that have places: they run, or the board has given them one.
    fn places(&self) -> BTreeSet<RunId> {
        let logs = self.lanes.iter().flat_map(|lane| &lane.runs);
        let running = logs.filter(|(_, state)| **state == Logged::Running).map(|(run, _)| run.clone());
        running.chain(self.board.lanes.values().flat_map(|lane| lane.granted.iter().cloned())).collect()
    }

    /// Lets the owner of a lane report.
    fn report(&mut self, lane: u16) {
        let report = self.report_of(lane);
        let grant = self.update(&report);
        let lane = &mut self.lanes[usize::from(lane)];
        match grant {
            Ok(grant) => {
                lane.pending.extend(grant.granted);
                lane.runs.retain(|run, _| !grant.refused.iter().any(|(refused, _)| refused == run));
            }
            // A late owner has claimed the board.
            Err(LaneNotClaimed) => lane.is_claimed = false,
        }
    }

    /// Lets the owner of a lane append what it got. A run that is paused or has ended meanwhile gets nothing.
    fn append(&mut self, lane: u16) {
        let places = self.places();
        let LaneModel { runs, pending, .. } = &mut self.lanes[usize::from(lane)];
        for run in std::mem::take(pending) {
            if let Some(state) = runs.get_mut(&run).filter(|state| **state == Logged::Waiting) {
                assert!(places.contains(&run), "{run} begins without a place");
                *state = Logged::Running;
            }
        }
    }

    /// Replaces the owner of a lane.
    fn replace_owner(&mut self, lane: u16) {
        let owner = self.next_number();
        let lane = &mut self.lanes[usize::from(lane)];
        lane.owner = owner;
        lane.is_claimed = false;
        lane.pending.clear();
    }

    /// Does one thing at random.
    fn step(&mut self, draws: &mut RandomDraws) {
        let lane = u16::try_from(draws.draw_below(usize::from(LANES))).unwrap();
        let at = usize::from(lane);
        let pick = draws.draw_below(self.lanes[at].runs.len().max(1));
        let picked = self.lanes[at].runs.keys().nth(pick).cloned();
        match draws.draw_below(12) {
            0..3 => {
                let run = run_id(self.next_number());
                self.lanes[at].runs.insert(run, Logged::Waiting);
            }
            // It ends, or is cancelled.
            3 => drop(picked.and_then(|run| self.lanes[at].runs.remove(&run))),
            4 => {
                let state = picked.and_then(|run| self.lanes[at].runs.get_mut(&run));
                match state {
                    Some(state) if *state == Logged::Waiting => *state = Logged::Paused,
                    Some(state) if *state == Logged::Paused => *state = Logged::Waiting,
                    Some(_) | None => {}
                }
            }
            // The owner dies, perhaps after it has made a report that arrives later.
            5 => {
                if self.lanes[at].is_claimed {
                    self.late.push(self.report_of(lane));
                }
                self.replace_owner(lane);
            }
            6 if !self.late.is_empty() => {
                let late = self.late.swap_remove(draws.draw_below(self.late.len()));
                drop(self.update(&late));
            }
            7 if draws.draw_below(10) == 0 => {
                let running = 1 + u32::try_from(draws.draw_below(4)).unwrap();
                self.caps.caps.max_running_runs = Some(running);
                self.caps.revision += 1;
            }
            // The owner dies after its report is on the board and before it appends anything.
            8 if self.lanes[at].is_claimed => {
                self.report(lane);
                self.replace_owner(lane);
            }
            _ if !self.lanes[at].is_claimed => {
                self.board.claim_lane(Lane(lane), owner(self.lanes[at].owner));
                self.lanes[at].is_claimed = true;
            }
            9 => self.append(lane),
            _ => {
                self.report(lane);
                if draws.draw_below(2) == 0 {
                    self.append(lane);
                }
            }
        }
    }
}

#[test]
fn never_more_runs_than_allowed_have_places_while_owners_die_and_report_late() {
    for seed in 0..100 {
        let mut draws = RandomDraws(seed);
        let (running, waiting) = (1 + draws.draw_below(4), draws.draw_below(8));
        let (running, waiting) = (u32::try_from(running).unwrap(), u32::try_from(waiting).unwrap());
        let mut cluster = ClusterModel::new(caps(running, waiting));
        for _ in 0..300 {
            cluster.step(&mut draws);
            assert!(cluster.board.waiting.len() <= waiting as usize, "seed {seed}: {:?}", cluster.board);
        }
        // All supervisors are killed; their successors give every waiting run a place or refuse it.
        for lane in 0..LANES {
            cluster.replace_owner(lane);
            cluster.board.claim_lane(Lane(lane), owner(cluster.lanes[usize::from(lane)].owner));
        }
        for round in 0..3_000 {
            if cluster.lanes.iter().all(|lane| lane.runs.is_empty()) {
                break;
            }
            let lane = round % LANES;
            cluster.lanes[usize::from(lane)].runs.retain(|_, state| *state == Logged::Waiting);
            cluster.report(lane);
            cluster.append(lane);
        }
        assert!(cluster.lanes.iter().all(|lane| lane.runs.is_empty()), "seed {seed}: {:?}", cluster.board);
    }
}
