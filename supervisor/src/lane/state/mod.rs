//! The state of a lane owner and its steps, in the order in which a run passes through them: it enters ([`entering`]), facts
//! arrive, decisions are committed, effects are carried out ([`effects`]), and it closes.

mod effects;
mod entering;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::{Capability, Lane, RunId};
use millrace_protocol::plan::{EndReason, Fact, Plan, TaskState};
use millrace_runtime::clock;
use millrace_runtime::log::AppendError;
use millrace_runtime::nats::strays::{SequenceRange, StrayMessages};
use ractor::{ActorProcessingErr, ActorRef};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use super::bookkeeping::{CLAIM_DELAY, ClaimBatcher, LogCheck, LogStatus, MessageCounts, SummaryBatcher};
use super::holds::{LaneAdmission, SessionQueues};
use super::io::LaneOwnerIo;
use super::offers::LaneWorkOffers;
use super::queue_audit::QueueAudit;
use super::{LaneMessage, LaneOwnerArgs};
use crate::closing::{ClosedRun, EndedRun};
use crate::live::{LiveRun, PendingInput, RunMilestone, RunPhase, may_reopen_run};
use crate::reader::{LaneItem, LaneMessageItems, LogPosition};
use crate::retention::keep_retention;
use crate::strays::{clean_shared_streams, count_unsubmitted, stray_grace_period};

/// The interval, in ticks, at which all clocks are checked and summaries are written.
const CLOCK_TICKS: u64 = 20;
/// The interval, in ticks, at which the lane reports its runs while the number of running runs is limited; CLOCK_TICKS is a multiple.
const ADMISSION_TICKS: u64 = 2;
/// The maximum number of characters of an objective in a log line.
const MAX_OBJECTIVE: usize = 100;

pub struct LaneOwnerState {
    pub(super) args: LaneOwnerArgs,
    io: LaneOwnerIo,
    pub(super) runs: HashMap<RunId, LiveRun>,
    pub(super) offers: LaneWorkOffers,
    audit: QueueAudit,
    log: LogCheck,
    claims: ClaimBatcher,
    summaries: SummaryBatcher,
    sessions: SessionQueues,
    pub(super) admission: LaneAdmission,
    message_counts: MessageCounts,
    /// The runs that the lane does not hold and that a command may reopen, with the sequences of their messages. The archive is
    /// looked up for them.
    lookups: HashMap<RunId, Vec<u64>>,
    /// The stray messages of the lane that are to be deleted.
    strays: StrayMessages,
    is_deleting_strays: bool,
    ticks: u64,
    /// The number of tasks of all runs when the clocks were last checked, a second ago at most.
    pub(super) task_count: usize,
    /// The tasks that run as long as the owner; dropping the set aborts them.
    background: JoinSet<()>,
}

impl LaneOwnerState {
    pub(super) fn start_reading_lane(myself: ActorRef<LaneMessage>, args: LaneOwnerArgs) -> Self {
        let io = LaneOwnerIo::new(args.bus.clone(), args.lane, myself);
        let mut background = JoinSet::new();
        background.spawn(io.clone().read_lane());
        background.spawn(io.clone().watch_capability_snapshots(args.cluster.clone()));
        if args.lane == Lane(0) {
            background.spawn(clean_shared_streams(args.bus.clone()));
            background.spawn(keep_retention(args.bus.clone()));
        }
        Self {
            audit: QueueAudit::new(Duration::from_millis(args.bus.settings().work_lease_ms)),
            offers: LaneWorkOffers::new(args.lane),
            args,
            io,
            runs: HashMap::new(),
            log: LogCheck::default(),
            claims: ClaimBatcher::default(),
            summaries: SummaryBatcher::default(),
            sessions: SessionQueues::default(),
            admission: LaneAdmission::default(),
            message_counts: MessageCounts::default(),
            lookups: HashMap::new(),
            strays: StrayMessages::default(),
            is_deleting_strays: false,
            ticks: 0,
            task_count: 0,
            background,
        }
    }

    /// Fails if the lease is stale: a process that was suspended resumes here and must not continue as the owner.
    pub(super) fn check_lease(&self) -> Result<(), ActorProcessingErr> {
        let lane = self.args.lane;
        if self.args.lease.borrow().is_stale(&self.args.bus) {
            warn!(%lane, "lease not renewed in time (process suspended, or NATS slow?); stepping down");
            self.args.status.record_lease_loss();
            return Err(format!("lease of lane {lane} is stale").into());
        }
        Ok(())
    }

    /// Returns `true` if the log contains everything that this owner has read, and starts a check if that is not known.
    fn is_log_confirmed(&mut self) -> bool {
        let server = self.io.connected_server();
        match self.log.compare_server(server.as_deref()) {
            LogStatus::Confirmed => true,
            LogStatus::Unconfirmed => false,
            LogStatus::CheckPosition(position) => {
                self.io.check_log(server.unwrap_or_default(), position);
                false
            }
        }
    }

    /// Handles the result of a check of the log. Fails if the server has lost messages: the next owner reads the lane again.
    pub(super) fn on_log_checked(
        &mut self,
        server: String,
        is_complete: Option<bool>,
    ) -> Result<(), ActorProcessingErr> {
        let lane = self.args.lane;
        if is_complete == Some(false) {
            warn!(%lane, "the restarted server lacks the last message that was read; reading the lane again");
            return Err(format!(
                "the server has lost messages of lane {lane}, or removed the last one that was read"
            )
            .into());
        }
        self.log.finish_check(is_complete.map(|_| server));
        if is_complete.is_some() {
            let runs: Vec<RunId> = self.runs.keys().cloned().collect();
            runs.iter().for_each(|run| self.commit_or_delay_claims(run));
            self.offer_all_waiting_work();
        }
        Ok(())
    }

    // ---- messages of the lane arrive

    /// Handles a batch of messages of the lane: queues all of them before anything is offered or decided.
    pub(super) fn handle_lane_messages(&mut self, messages: Vec<LaneMessageItems>, through: LogPosition) {
        self.args.status.record_read_sequence(through.sequence);
        self.log.record_position(through);
        let (mut touched, mut freed) = (BTreeSet::new(), BTreeSet::new());
        let now = tokio::time::Instant::now();
        for LaneMessageItems { run, sequence, is_forged, items } in messages {
            let is_known = run.as_ref().is_some_and(|run| self.is_known_or_begins(run, &items));
            let is_stray = is_forged || (run.is_some() && !is_known);
            if is_stray {
                self.strays.add(sequence, now);
            }
            let Some(run) = run else { continue };
            if !is_known {
                count_unsubmitted(self.args.lane, &run, sequence);
                continue;
            }
            if let Some(sequences) = self.lookups.get_mut(&run).filter(|_| !is_forged) {
                sequences.push(sequence);
            }
            for item in items {
                freed.extend(self.handle_lane_item(&run, item).map(|capability| (capability, run.clone())));
            }
            self.message_counts.count_message(&run, sequence);
            touched.insert(run);
        }
        for (capability, run) in freed {
            self.offer_waiting_work_of_run(&capability, &run);
        }
        for run in touched {
            self.commit_or_delay_claims(&run);
        }
    }

    /// Returns `true` if a run is in memory. A submission brings it there, and so does a command that may reopen an archived run.
    fn is_known_or_begins(&mut self, run: &RunId, items: &[LaneItem]) -> bool {
        if self.runs.contains_key(run) {
            return true;
        }
        let is_submission = |item: &LaneItem| matches!(item, LaneItem::Fact(queued) if matches!(*queued.fact, Fact::Submitted(_)));
        if items.iter().any(is_submission) {
            self.runs.entry(run.clone()).or_default();
            self.check_archive(run);
            return true;
        }
        let may_reopen =
            |item: &LaneItem| matches!(item, LaneItem::Fact(queued) if may_reopen_run(&queued.fact));
        if items.iter().any(may_reopen) {
            self.look_up_run(run);
            return true;
        }
        let is_opaque = items.iter().any(|item| matches!(item, LaneItem::OpaqueSubmission));
        if is_opaque {
            self.runs.entry(run.clone()).or_default().phase = RunPhase::Parked;
        }
        is_opaque
    }

    /// Handles one message of a run in memory; returns the queue in which it freed a place.
    fn handle_lane_item(&mut self, run: &RunId, item: LaneItem) -> Option<Capability> {
        let live = self.runs.get_mut(run)?;
        match item {
            LaneItem::Fact(queued) => {
                let is_submission = matches!(*queued.fact, Fact::Submitted(_));
                live.queue_fact(queued);
                if is_submission {
                    self.sessions.add_run(run, live);
                }
            }
            LaneItem::SubmittedAt(at) => live.holds.record_submission_time(at),
            LaneItem::Claimed(journal) => {
                return self.offers.free_place_of_claimed_work(run, &live.plan, &journal);
            }
            // The time of the server's clock may differ, or jump.
            LaneItem::JournalActivity(task, _) => live.record_activity(&task, clock::now()),
            LaneItem::Forged { sequence } => live.record_forged_sequence(sequence),
            LaneItem::OpaqueSubmission => {}
            LaneItem::Decision { sequence } => {
                if live.is_overtaken_by_decision(sequence) {
                    let last_known = live.last_sequence;
                    warn!(
                        %run,
                        their_decision = sequence,
                        last_known,
                        "another supervisor has decided on this run; reading the run again"
                    );
                    self.refold_run(run);
                }
            }
        }
        None
    }

    pub(super) fn on_capabilities_changed(&mut self) {
        self.offers.fair_share.set_live_slots(self.args.cluster.borrow_and_update().slots.clone());
        self.runs.values_mut().for_each(LiveRun::request_cluster_check);
        self.offer_all_waiting_work();
    }

    /// Checks clocks, and repeats what may have been lost.
    pub(super) fn check_clocks_and_republish(&mut self) {
        self.ticks += 1;
        if !self.is_log_confirmed() {
            return;
        }
        let all_clocks = self.ticks.is_multiple_of(CLOCK_TICKS);
        let now = clock::now();
        let attendance = Arc::clone(&self.args.attendance.borrow());
        let mut due = Vec::new();
        for (run, live) in &mut self.runs {
            // After an interruption, clocks are right when the absence is known.
            if !attendance.is_interrupted(now) {
                live.update_overdue_inputs(now, &attendance, all_clocks);
            }
            let needs_check = live.needs_cluster_check(live.unknown_capability_status(now));
            let is_urgent = live.pending_input() == PendingInput::Urgent;
            if live.phase == RunPhase::Idle && (needs_check || is_urgent) {
                due.push(run.clone());
            }
        }
        due.iter().for_each(|run| self.commit_decision(run));
        if self.ticks.is_multiple_of(ADMISSION_TICKS) {
            self.request_places(all_clocks);
        }
        if all_clocks {
            self.task_count = self.runs.values().map(LiveRun::task_count).sum();
            self.sessions.all().iter().for_each(|session| self.advance_session(session));
            self.delete_due_strays();
            self.args.status.set_live_runs(self.runs.len());
            self.write_summaries();
            self.offer_all_waiting_work();
        }
    }

    // ---- decisions

    /// Commits a decision on the pending input of a run. Claims alone wait for a moment first.
    fn commit_or_delay_claims(&mut self, run: &RunId) {
        let Some(live) = self.runs.get(run) else { return };
        match live.pending_input() {
            PendingInput::Nothing => {}
            PendingInput::Urgent => self.commit_decision(run),
            PendingInput::ClaimsOnly => {
                if self.claims.delay_claims_of_run(run) {
                    self.io.send_to_owner_after(CLAIM_DELAY, || LaneMessage::FlushClaims);
                }
            }
        }
    }

    /// Commits decisions on the claims that were delayed.
    pub(super) fn commit_delayed_claims(&mut self) {
        for run in self.claims.take_delayed_runs() {
            if self.runs.get(&run).is_some_and(|live| live.pending_input() != PendingInput::Nothing) {
                self.commit_decision(&run);
            }
        }
    }

    /// Decides on the pending input of an idle run and starts to append the decision;
    /// [`Self::on_decision_appended`] carries out its effects.
    fn commit_decision(&mut self, run: &RunId) {
        if !self.is_log_confirmed() {
            return;
        }
        let Some(live) = self.runs.get_mut(run) else { return };
        let (now, snapshot) = (clock::now(), Arc::clone(&self.args.cluster.borrow()));
        let unknown_status = live.unknown_capability_status(now);
        let attendance = Arc::clone(&self.args.attendance.borrow());
        live.holds.is_place_needed = snapshot.caps.caps.max_running_runs.is_some();
        if let Some(decision) =
            live.decide_pending_input(&self.args.me, (&snapshot.cluster, unknown_status), &attendance, now)
        {
            live.phase = RunPhase::Appending;
            live.is_summary_stale = true;
            self.io.append_decision(run.clone(), decision, live.expected_sequence());
        }
    }

    pub(super) fn on_decision_appended(
        &mut self,
        run: &RunId,
        result: Result<u64, AppendError>,
    ) -> Result<(), ActorProcessingErr> {
        let Some(live) = self.runs.get_mut(run) else { return Ok(()) };
        match result {
            Ok(sequence) if live.finish_append(sequence) => {}
            Ok(sequence) => {
                warn!(
                    %run,
                    our_decision = sequence,
                    "another supervisor has decided on this run after our decision; reading the run again"
                );
                self.refold_run(run);
                return Ok(());
            }
            Err(AppendError::Fenced { last }) => {
                let expected = live.expected_sequence();
                if last < expected {
                    debug!(%run, last, expected, "a forged message was deleted, or the archived part; reading the run again");
                } else {
                    warn!(%run, last, expected, "append rejected: another supervisor has extended this run");
                }
                self.refold_run(run);
                return Ok(());
            }
            Err(AppendError::Fault(fault)) => return Err(fault.into()),
        }
        self.args.status.decisions.increment();
        let milestones = live.take_milestones();
        // The stored summary still marks a reopened run as archived.
        let is_reopened = live.archived_span.is_some() && milestones.contains(&RunMilestone::Reopened);
        milestones.into_iter().for_each(|milestone| log_milestone(run, &live.plan, milestone));
        let (effects, touched) = live.take_effects_of_last_decision();
        self.offers.free_places_of_ended_work(run, &live.plan, &touched);
        // Clients that wait for the end of a run may stop the cluster when it ends, so the summary of a run that stays in
        // the lane is written at once. Closing writes that of any other.
        let is_resumable = live.plan.is_resumable();
        let session = live.holds.session().map(|(session, _)| session.clone());
        self.carry_out_effects(run, effects);
        self.commit_or_delay_claims(run);
        session.iter().for_each(|session| self.advance_session(session));
        if is_resumable || is_reopened {
            self.write_summaries();
        }
        Ok(())
    }

    // ---- stray messages

    /// Deletes the stray messages that were found before the grace period.
    fn delete_due_strays(&mut self) {
        if self.is_deleting_strays {
            return;
        }
        let grace = stray_grace_period(&self.args.bus);
        let due = self.strays.take_due(tokio::time::Instant::now(), grace);
        if !due.is_empty() {
            self.is_deleting_strays = true;
            self.io.delete_strays(due);
        }
    }

    /// Ends a deletion; the rest is deleted after another grace period.
    pub(super) fn on_strays_deleted(&mut self, rest: Vec<SequenceRange>) {
        self.is_deleting_strays = false;
        let now = tokio::time::Instant::now();
        rest.into_iter().for_each(|range| self.strays.add_range(range, now));
    }

    // ---- summaries and the end of a run

    /// Writes the summaries of the runs that have changed.
    fn write_summaries(&mut self) {
        let now = clock::now();
        if let Some(batch) = self.summaries.take_next_batch(self.args.lane, &mut self.runs, now) {
            self.io.write_summaries(batch);
        }
    }

    pub(super) fn on_summaries_written(&mut self, failed: &[RunId]) {
        if self.summaries.finish_batch(&mut self.runs, failed) {
            self.write_summaries();
        }
    }

    /// Closes a run that has ended. If a command waits that may reopen it, that is decided on first.
    fn close_run(&mut self, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        if live.phase == RunPhase::Closing || live.has_reopening_command(0) {
            return;
        }
        live.phase = RunPhase::Closing;
        live.is_summary_stale = false;
        self.offers.fair_share.remove_run(run);
        let is_complete = live.plan.run.end.as_ref().is_some_and(|end| end.reason == EndReason::Completed);
        let ended = EndedRun {
            end: live.last_sequence,
            answered: live.plan.run.through,
            has_open_work: !is_complete || live.plan.task_count_in_state(TaskState::Cancelled) > 0,
            messages: self.message_counts.count_through(run, live.last_sequence),
            linger: self.args.linger,
        };
        if let Some(summary) = live.summary(run, self.args.lane, clock::now()) {
            self.io.archive_run(summary, ended, self.summaries.batch_lock());
        }
    }

    pub(super) fn on_run_closed(&mut self, run: &RunId, closed: ClosedRun) {
        let ClosedRun::Archived { through } = closed else {
            self.refold_run(run);
            return;
        };
        let closed = self.runs.remove(run);
        self.claims.remove_run(run);
        self.message_counts.remove_run(run);
        let reopening = closed.as_ref().is_some_and(|live| live.has_reopening_command(through));
        let facts = closed.map(|mut live| {
            let session = self.sessions.remove_run(run, &live);
            session.iter().for_each(|session| self.advance_session(session));
            live.take_inbox()
        });
        // A command may have arrived after the archive was written.
        if reopening {
            self.look_up_run(run);
            if let Some((live, facts)) = self.runs.get_mut(run).zip(facts) {
                live.queue_facts(facts.into_iter().filter(|queued| queued.sequence > through).collect());
            }
        }
    }
}

/// Logs that a run began, continues after its end, or ended.
fn log_milestone(run: &RunId, plan: &Plan, milestone: RunMilestone) {
    match (milestone, &plan.run.start, &plan.run.end) {
        (RunMilestone::Started, Some(start), _) => {
            let objective: String = start.objective.chars().take(MAX_OBJECTIVE).collect();
            info!(%run, mode = ?start.mode, objective = ?objective, "run started");
        }
        (RunMilestone::Reopened, _, _) => info!(%run, "run reopened"),
        (RunMilestone::Ended, Some(start), Some(end)) => {
            let usage = plan.budget.spend.total;
            let duration_ms = u64::try_from(end.at.duration_since(start.at).as_millis()).unwrap_or_default();
            info!(
                %run,
                outcome = %end.reason,
                completed = plan.task_count_in_state(TaskState::Completed),
                tasks = plan.tasks().len(),
                duration_ms,
                tokens = usage.input_tokens.saturating_add(usage.output_tokens),
                "run ended"
            );
        }
        // The end is gone if the same decision reopened the run.
        (RunMilestone::Started | RunMilestone::Ended, _, _) => {}
    }
}
