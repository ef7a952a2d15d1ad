//! The runs that enter the memory of a lane owner: those of the lane that was read, new submissions, and archived runs that a
//! command may reopen. Each is looked up in the archive before it continues, and may have to wait for its session or a place.
//!
//! # Invariants
//!
//! - I78: A run with a damaged or lost log is reported as such in every list, and resuming it fails with the reason.
//!   (`tests/tests/queues/power_loss.rs::run_with_a_damaged_log_says_so`)
//! - I261: A command that may reopen an ended run is decided on once, at any time of its arrival and across crashes: the run is
//!   reopened, or the command is refused and leaves nothing in the lane.
//!   (`tests/tests/reopen.rs::reopened_run_survives_a_kill_after_any_append`,
//!   `tests/tests/reopen.rs::command_while_a_run_is_archived_reopens_it`,
//!   `tests/tests/reopen.rs::suspended_owner_does_not_disturb_a_reopened_run`,
//!   `tests/tests/reopen.rs::refused_commands_leave_an_archived_run_as_it_is`)

use std::collections::HashMap;
use std::sync::Arc;

use millrace_protocol::admission::LaneGrant;
use millrace_protocol::ids::{RunId, SessionId};
use millrace_protocol::plan::{HoldChange, SessionTurn};
use millrace_protocol::registry::{QueuePlace, RunSummary};
use millrace_runtime::clock;
use millrace_runtime::store::archive;
use tracing::{info, warn};

use super::LaneOwnerState;
use crate::lane::DemandOutcome;
use crate::lane::bookkeeping::LogCheck;
use crate::lane::holds::AdmissionStep;
use crate::live::{LiveRun, RunPhase};
use crate::reader::fold::{ArchivedRun, FoldedLane};
use crate::strays::count_unsubmitted;

impl LaneOwnerState {
    /// Takes over the runs that were read from the lane, and starts to follow it.
    pub(in crate::lane) fn take_over_runs(&mut self, folded: FoldedLane, server: String) {
        let FoldedLane { runs, position, strays, is_without_journals } = folded;
        let (through, lane) = (position.sequence, self.args.lane);
        info!(%lane, runs = runs.len(), through, strays = strays.count(), is_without_journals, "lane taken over");
        self.log = LogCheck::new(server, position);
        self.strays = strays;
        self.offers.fair_share.set_live_slots(self.args.cluster.borrow().slots.clone());
        self.args.status.record_caught_up(through, runs.len());
        self.runs = runs;
        for (run, live) in &self.runs {
            self.sessions.add_run(run, live);
        }
        let ids: Vec<RunId> = self.runs.keys().cloned().collect();
        let submitted = self.runs.iter().filter(|(_, live)| live.is_submitted());
        let known = submitted.map(|(run, _)| run.clone()).collect();
        self.io.report_lost_runs(Arc::clone(&self.args.live_runs), known);
        self.check_archive_of_all(&ids);
        self.background.spawn(self.io.clone().follow_lane(through));
        self.background.spawn(self.io.clone().watch_queues(self.args.queues.clone()));
        self.background.spawn(self.io.clone().send_periodic_ticks());
    }

    /// Checks whether a run is archived before it is resumed. It may have been submitted again, or read while an earlier
    /// owner was removing it. The summary is marked before anything is removed, so checking after reading finds the mark.
    /// The mark alone is not enough: a run that the archive does not hold exists only in the lane.
    pub(super) fn check_archive(&mut self, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        if live.phase == RunPhase::Parked {
            self.park_damaged_run(run);
        } else {
            live.phase = RunPhase::CheckingArchive;
            self.io.check_archive(run.clone(), live.is_submitted());
        }
    }

    /// Checks all runs that were read from the lane. Most are not archived, and batches of summaries show that.
    fn check_archive_of_all(&mut self, runs: &[RunId]) {
        let is_usual = |live: &LiveRun| live.phase != RunPhase::Parked && live.is_submitted();
        let (usual, others): (Vec<RunId>, Vec<RunId>) =
            runs.iter().cloned().partition(|run| self.runs.get(run).is_some_and(is_usual));
        for run in &usual {
            if let Some(live) = self.runs.get_mut(run) {
                live.phase = RunPhase::CheckingArchive;
            }
        }
        self.io.read_summaries(&usual);
        for run in &others {
            // If it was never submitted, its commands are strays.
            if let Some(live) = self.runs.get(run).filter(|live| live.last_sequence == 0) {
                self.lookups.insert(run.clone(), live.queued_sequences());
            }
        }
        others.iter().for_each(|run| self.check_archive(run));
    }

    /// Resumes the runs whose summaries are not marked as archived, and checks the others.
    pub(in crate::lane) fn on_summaries_read(&mut self, runs: &[RunId], summaries: &[RunSummary]) {
        let summaries: HashMap<&RunId, &RunSummary> =
            summaries.iter().map(|summary| (&summary.run, summary)).collect();
        for run in runs {
            let Some(live) = self.runs.get_mut(run) else { continue };
            let stored = summaries.get(run);
            if stored.is_some_and(|stored| archive::has_archive(stored)) {
                self.io.check_archive(run.clone(), true);
                continue;
            }
            let current = live.summary(run, self.args.lane, clock::now());
            let is_current =
                current.zip(stored).is_some_and(|(now, stored)| now.is_same_except_times(stored));
            live.is_summary_stale &= !is_current;
            self.on_archive_checked(run, ArchivedRun::None);
        }
    }

    pub(in crate::lane) fn on_archive_checked(&mut self, run: &RunId, archived: ArchivedRun) {
        let is_checking = |live: &&mut LiveRun| live.phase == RunPhase::CheckingArchive;
        let Some(live) = self.runs.get_mut(run).filter(is_checking) else { return };
        match archived {
            ArchivedRun::None if live.is_submitted() && live.log_damage.is_some() => {
                self.park_damaged_run(run)
            }
            ArchivedRun::None if live.is_submitted() => self.continue_folded_run(run),
            ArchivedRun::None => {
                if live.last_sequence > 0 {
                    warn!(%run, "ignoring a run that has decisions and was never submitted");
                }
                self.remove_unknown_run(run, 0);
            }
            // It arrived after the read.
            ArchivedRun::Ended { through, .. } if live.has_reopening_command(through) => {
                self.check_archive(run)
            }
            ArchivedRun::Ended { through, folded: _ } => {
                warn!(%run, "removing late messages of an archived run");
                self.remove_unknown_run(run, through);
                self.io.purge_run(run.clone(), through);
            }
            ArchivedRun::Reopened(folded) => {
                info!(%run, "continuing an archived run");
                self.lookups.remove(run);
                self.replace_run(run, *folded);
                if self.runs.get(run).is_some_and(|live| live.log_damage.is_some()) {
                    self.park_damaged_run(run);
                } else {
                    self.continue_folded_run(run);
                }
            }
        }
    }

    /// Forgets a run that the lane does not hold. Its messages after sequence `through` are strays.
    fn remove_unknown_run(&mut self, run: &RunId, through: u64) {
        if let Some(live) = self.runs.remove(run) {
            self.sessions.remove_run(run, &live);
        }
        let now = tokio::time::Instant::now();
        for sequence in self.lookups.remove(run).unwrap_or_default() {
            if sequence > through {
                count_unsubmitted(self.args.lane, run, sequence);
                self.strays.add(sequence, now);
            }
        }
    }

    /// Replaces a run by a newer fold of it. The facts that have arrived meanwhile stay queued.
    fn replace_run(&mut self, run: &RunId, mut live: LiveRun) {
        if let Some(mut old) = self.runs.remove(run) {
            self.sessions.remove_run(run, &old);
            live.queue_facts(old.take_inbox());
        }
        self.sessions.add_run(run, &live);
        self.runs.insert(run.clone(), live);
    }

    /// Parks a run whose log is damaged, and reports it.
    fn park_damaged_run(&mut self, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        let Some(damage) = live.log_damage.clone() else { return };
        live.phase = RunPhase::Parked;
        live.is_summary_stale = false;
        let summary = live.summary(run, self.args.lane, clock::now());
        self.io.report_damage(run.clone(), summary, damage);
    }

    /// Resumes a run after it was folded: carries out all pending effects and decides on the facts that are not answered.
    fn continue_folded_run(&mut self, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        live.phase = RunPhase::Idle;
        let session = live.holds.session().map(|(session, _)| session.clone());
        let effects = live.pending_effects_of_all_tasks();
        self.carry_out_effects(run, effects);
        self.offer_claimed_work_of_run(run);
        self.commit_or_delay_claims(run);
        session.iter().for_each(|session| self.advance_session(session));
    }

    /// Reads and folds a run again, because another supervisor has decided on it.
    pub(super) fn refold_run(&mut self, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        live.phase = RunPhase::Refolding;
        self.offers.fair_share.remove_run(run);
        self.io.refold_run(run.clone());
    }

    pub(in crate::lane) fn on_run_refolded(&mut self, run: RunId, live: LiveRun) {
        self.replace_run(&run, live);
        self.check_archive(&run);
    }

    /// Looks up a run in the archive, for a command that may reopen it.
    pub(super) fn look_up_run(&mut self, run: &RunId) {
        self.lookups.entry(run.clone()).or_default();
        self.runs.entry(run.clone()).or_default();
        self.check_archive(run);
    }

    // ---- sessions

    /// Prepares the turn of the next run of a session, if the runs before it have ended.
    pub(super) fn advance_session(&mut self, session: &SessionId) {
        if let Some(run) = self.sessions.take_next_run(session, &self.runs) {
            let start = self.runs.get(&run).and_then(|live| live.plan.run.start.clone());
            if let Some(start) = start {
                self.io.prepare_session_turn(run, session.clone(), start);
            }
        }
        self.sessions.update_places(session, &mut self.runs);
    }

    pub(in crate::lane) fn on_session_turn_prepared(&mut self, run: &RunId, turn: Box<SessionTurn>) {
        self.sessions.finish_preparing(run);
        if let Some(live) = self.runs.get_mut(run) {
            live.holds.add_change(HoldChange::SessionTurn(turn));
            self.commit_or_delay_claims(run);
        }
    }

    // ---- admission

    /// Reports the runs of the lane, to get places for those that wait. Without a limit they have places at once; `is_check_due` is
    /// `true` if that must be checked.
    pub(super) fn request_places(&mut self, is_check_due: bool) {
        let current = self.args.cluster.borrow().caps;
        if current.caps.max_running_runs.is_some() {
            match self.admission.next_step(&current, self.args.lane, &self.runs) {
                Some(AdmissionStep::ClaimLane) => self.io.claim_lane_on_board(),
                Some(AdmissionStep::Report(report)) => self.io.report_demand(report),
                None => {}
            }
            return;
        }
        if !self.admission.stop_reporting() && !is_check_due {
            return;
        }
        let waiting = self.runs.iter().filter(|(_, live)| live.waits_for_place_since().is_some());
        let granted = waiting.map(|(run, _)| run.clone()).collect();
        self.change_places(LaneGrant { granted, ..LaneGrant::default() });
    }

    /// Carries out the places that the runs of the lane got.
    pub(in crate::lane) fn on_places_assigned(&mut self, outcome: DemandOutcome) {
        match outcome {
            DemandOutcome::Assigned(grant, revision) => {
                self.admission.finish_report(Some(revision));
                self.change_places(grant);
            }
            DemandOutcome::NotClaimed => self.admission.lose_claim(),
            DemandOutcome::Failed => self.admission.finish_report(None),
        }
    }

    fn change_places(&mut self, grant: LaneGrant) {
        let LaneGrant { granted, refused, positions } = grant;
        let granted = granted.into_iter().map(|run| (run, HoldChange::PlaceGranted));
        let refused = refused.into_iter().map(|(run, waiting)| (run, HoldChange::PlaceRefused { waiting }));
        for (run, change) in granted.chain(refused) {
            if let Some(live) = self.runs.get_mut(&run) {
                live.holds.add_change(change);
                self.commit_or_delay_claims(&run);
            }
        }
        for (run, position) in positions {
            let Some(live) = self.runs.get_mut(&run) else { continue };
            let place = Some(QueuePlace { position, behind: None });
            if live.holds.queue_place != place {
                live.holds.queue_place = place;
                live.is_summary_stale = true;
            }
        }
    }
}
