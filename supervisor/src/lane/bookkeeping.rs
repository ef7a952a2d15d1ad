//! State of a lane owner beside the plans of its runs. No I/O.
//!
//! [`ClaimBatcher`]: claims that wait briefly before they are decided on. A claim has no effects, so it can share an append with the
//! claims and outcomes that follow within milliseconds.
//!
//! [`MessageCounts`]: the number of messages of each run that the owner has seen in its lane. It sizes the read of a run that is archived: a
//! server that has sent that many messages does not search the rest of the lane.
//!
//! [`SummaryBatcher`]: the summaries of changed runs, which lists show. One batch is written at a time, so that no older summary is written
//! over a newer one.
//!
//! [`LogCheck`] detects that a restarted server has lost the newest messages of the lane. A restarted server has another id: the plans of the
//! owner may be newer than its log, and new messages may reuse sequences that the owner has read already.
//!
//! # Invariants
//!
//! - I76: A lane owner neither decides nor publishes orders until the messages that it has read are confirmed to be on the
//!   connected server. (`tests/tests/queues/power_loss.rs::supervisor_that_survives_a_loss_of_messages_reads_the_lane_again`,
//!   `supervisor/src/lane/bookkeeping.rs::another_server_is_checked_once_before_it_is_confirmed`)

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::registry::RunSummary;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::live::LiveRun;
use crate::reader::LogPosition;

pub(super) const CLAIM_DELAY: Duration = Duration::from_millis(5);

/// The runs whose claims wait.
#[derive(Debug, Default)]
pub(super) struct ClaimBatcher {
    delayed: BTreeSet<RunId>,
    is_timer_running: bool,
}

impl ClaimBatcher {
    /// Delays the claims of a run. Returns `true` if the caller must start the timer, which calls
    /// [`Self::take_delayed_runs`] after [`CLAIM_DELAY`].
    #[must_use]
    pub(super) fn delay_claims_of_run(&mut self, run: &RunId) -> bool {
        self.delayed.insert(run.clone());
        !std::mem::replace(&mut self.is_timer_running, true)
    }

    /// Ends the wait; returns the runs that were delayed.
    pub(super) fn take_delayed_runs(&mut self) -> BTreeSet<RunId> {
        self.is_timer_running = false;
        std::mem::take(&mut self.delayed)
    }

    /// Forgets a run that has been closed.
    pub(super) fn remove_run(&mut self, run: &RunId) {
        self.delayed.remove(run);
    }
}

/// Counts the messages of the runs of a lane. Runs of an earlier owner are counted from its takeover on.
#[derive(Default)]
pub(super) struct MessageCounts {
    /// The number of messages, and the sequence of the last one.
    runs: HashMap<RunId, (usize, u64)>,
}

impl MessageCounts {
    pub(super) fn count_message(&mut self, run: &RunId, sequence: u64) {
        match self.runs.get_mut(run) {
            Some((count, last)) => (*count, *last) = (*count + 1, sequence),
            None => {
                self.runs.insert(run.clone(), (1, sequence));
            }
        }
    }

    /// Returns the number of messages up to the decision `end`, which its owner may have appended and not read yet.
    pub(super) fn count_through(&self, run: &RunId, end: u64) -> usize {
        let (count, last) = self.runs.get(run).copied().unwrap_or_default();
        count + usize::from(last < end)
    }

    pub(super) fn remove_run(&mut self, run: &RunId) {
        self.runs.remove(run);
    }
}

/// Decides when summaries are written.
#[derive(Debug, Default)]
pub(super) struct SummaryBatcher {
    /// Held while a batch is written.
    lock: Arc<Mutex<()>>,
    /// `true` if a batch was requested while another one was being written.
    is_dirty: bool,
}

/// Summaries to be written. No other batch can be made until this one is dropped.
#[derive(Debug)]
pub(super) struct SummaryBatch {
    pub(super) summaries: Vec<RunSummary>,
    _lock: OwnedMutexGuard<()>,
}

impl SummaryBatcher {
    /// Returns the summaries of the runs that have changed, if there are any and no batch is being written.
    pub(super) fn take_next_batch(
        &mut self,
        lane: Lane,
        runs: &mut HashMap<RunId, LiveRun>,
        now: Timestamp,
    ) -> Option<SummaryBatch> {
        let Ok(lock) = Arc::clone(&self.lock).try_lock_owned() else {
            self.is_dirty = true;
            return None;
        };
        // Closing a run writes its final summary; a run that can be resumed stays in the lane.
        let stays = |live: &LiveRun| live.plan.is_live() || live.plan.is_resumable();
        // The summary of a run with a damaged log is written by itself.
        let is_changed = |live: &LiveRun| live.is_summary_stale && live.log_damage.is_none();
        let changed = runs.iter_mut().filter(|(_, live)| is_changed(live) && stays(live));
        let summaries: Vec<RunSummary> = changed
            .filter_map(|(run, live)| {
                live.is_summary_stale = false;
                let place = live.holds.queue_place.clone();
                Some(live.summary(run, lane, now)?.with_queue_place(place))
            })
            .collect();
        (!summaries.is_empty()).then_some(SummaryBatch { summaries, _lock: lock })
    }

    /// Ends a batch. The summaries that were not written are written with a later batch. Returns `true` if the caller
    /// should request the next batch at once.
    #[must_use]
    pub(super) fn finish_batch(&mut self, runs: &mut HashMap<RunId, LiveRun>, failed: &[RunId]) -> bool {
        for run in failed {
            if let Some(live) = runs.get_mut(run) {
                live.is_summary_stale = true;
            }
        }
        std::mem::take(&mut self.is_dirty) && failed.is_empty()
    }

    /// The lock that is held while a batch is written.
    pub(super) fn batch_lock(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.lock)
    }
}

/// The server that holds the log, and how far this owner has read it.
#[derive(Debug, Default)]
pub(super) struct LogCheck {
    /// The id of the server on which the log is known to contain what was read.
    server: String,
    position: LogPosition,
    is_checking: bool,
}

/// The result of comparing the id of the connected server with that of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogStatus {
    /// The log contains everything that was read.
    Confirmed,
    /// This is not known yet.
    Unconfirmed,
    /// This is not known yet, and the caller must look up the message at this position.
    CheckPosition(LogPosition),
}

impl LogCheck {
    /// The log was read from this server up to this position.
    pub(super) fn new(server: String, position: LogPosition) -> Self {
        Self { server, position, is_checking: false }
    }

    /// Notes the last message that was read.
    pub(super) fn record_position(&mut self, position: LogPosition) {
        self.position = position;
    }

    /// Compares with the id of the connected server; `None` while there is no connection.
    pub(super) fn compare_server(&mut self, server: Option<&str>) -> LogStatus {
        match server {
            Some(server) if server == self.server => LogStatus::Confirmed,
            Some(_) if !self.is_checking => {
                self.is_checking = true;
                LogStatus::CheckPosition(self.position)
            }
            Some(_) | None => LogStatus::Unconfirmed,
        }
    }

    /// Ends a check: the log of this server contains the message, or `None`: the server did not respond.
    pub(super) fn finish_check(&mut self, server: Option<String>) {
        self.is_checking = false;
        if let Some(server) = server {
            self.server = server;
        }
    }
}

#[cfg(test)]
mod claims_tests {
    use super::*;

    fn run_id(name: &str) -> RunId {
        RunId::new(name).unwrap()
    }

    #[test]
    fn one_timer_serves_all_delayed_runs() {
        let mut claims = ClaimBatcher::default();
        assert!(claims.delay_claims_of_run(&run_id("a")), "the first claim starts the timer");
        assert!(!claims.delay_claims_of_run(&run_id("b")), "the timer is running");
        assert!(!claims.delay_claims_of_run(&run_id("a")));
        assert_eq!(claims.take_delayed_runs(), BTreeSet::from([run_id("a"), run_id("b")]));
        assert!(claims.delay_claims_of_run(&run_id("a")), "a claim after the flush starts a new timer");
    }

    #[test]
    fn closed_run_is_not_flushed() {
        let mut claims = ClaimBatcher::default();
        assert!(claims.delay_claims_of_run(&run_id("a")));
        claims.remove_run(&run_id("a"));
        assert_eq!(claims.take_delayed_runs(), BTreeSet::new());
    }
}

#[cfg(test)]
mod summaries_tests {
    use millrace_protocol::ids::WorkerId;
    use millrace_protocol::plan::{
        Attendance, CapabilityRegistry, Fact, PlanningMode, Submission, UnknownCapabilityStatus,
    };

    use super::*;
    use crate::live::QueuedFact;

    fn test_time() -> Timestamp {
        "2026-11-21T23:00:00Z".parse().unwrap()
    }

    fn run_id(name: &str) -> RunId {
        RunId::new(name).unwrap()
    }

    fn submitted_run() -> LiveRun {
        let mut live = LiveRun::default();
        let fact = Box::new(Fact::Submitted(Box::new(Submission::new("find out", PlanningMode::Llm))));
        live.queue_fact(QueuedFact { sequence: 1, at: test_time(), fact });
        live.decide_pending_input(
            &WorkerId::new("s1").unwrap(),
            (&CapabilityRegistry::default(), UnknownCapabilityStatus::MayRegisterSoon),
            &Attendance::begin(test_time()),
            test_time(),
        )
        .unwrap();
        live
    }

    fn runs_in_batch(batch: &SummaryBatch) -> Vec<&RunId> {
        batch.summaries.iter().map(|summary| &summary.run).collect()
    }

    #[test]
    fn only_changed_runs_are_in_a_batch() {
        let (mut summaries, mut runs) =
            (SummaryBatcher::default(), HashMap::from([(run_id("a"), submitted_run())]));
        let mut unchanged = submitted_run();
        unchanged.is_summary_stale = false;
        runs.insert(run_id("b"), unchanged);
        runs.insert(run_id("unsubmitted"), LiveRun::default());
        let batch = summaries.take_next_batch(Lane(0), &mut runs, test_time()).unwrap();
        assert_eq!(runs_in_batch(&batch), [&run_id("a")]);
        drop(batch);
        assert!(!summaries.finish_batch(&mut runs, &[]));
        assert!(
            summaries.take_next_batch(Lane(0), &mut runs, test_time()).is_none(),
            "nothing has changed since"
        );
    }

    #[test]
    fn change_during_a_batch_is_written_right_after_it() {
        let (mut summaries, mut runs) =
            (SummaryBatcher::default(), HashMap::from([(run_id("a"), submitted_run())]));
        let batch = summaries.take_next_batch(Lane(0), &mut runs, test_time()).unwrap();
        runs.get_mut(&run_id("a")).unwrap().is_summary_stale = true;
        assert!(summaries.take_next_batch(Lane(0), &mut runs, test_time()).is_none(), "one batch at a time");
        drop(batch);
        assert!(summaries.finish_batch(&mut runs, &[]), "the caller requests the next batch");
        assert!(summaries.take_next_batch(Lane(0), &mut runs, test_time()).is_some());
    }

    #[test]
    fn failed_summary_waits_for_a_later_batch() {
        let (mut summaries, mut runs) =
            (SummaryBatcher::default(), HashMap::from([(run_id("a"), submitted_run())]));
        let batch = summaries.take_next_batch(Lane(0), &mut runs, test_time()).unwrap();
        assert!(summaries.take_next_batch(Lane(0), &mut runs, test_time()).is_none());
        drop(batch);
        assert!(!summaries.finish_batch(&mut runs, &[run_id("a")]), "the server may be away: not at once");
        assert!(summaries.take_next_batch(Lane(0), &mut runs, test_time()).is_some(), "it is still stale");
    }
}

#[cfg(test)]
mod log_check_tests {
    use super::*;

    #[test]
    fn another_server_is_checked_once_before_it_is_confirmed() {
        let position = LogPosition { sequence: 7, ..LogPosition::default() };
        let mut check = LogCheck::new("a".into(), position);
        assert_eq!(check.compare_server(Some("a")), LogStatus::Confirmed);
        assert_eq!(check.compare_server(None), LogStatus::Unconfirmed);
        assert_eq!(check.compare_server(Some("b")), LogStatus::CheckPosition(position));
        assert_eq!(check.compare_server(Some("b")), LogStatus::Unconfirmed);
        check.finish_check(None);
        assert_eq!(check.compare_server(Some("b")), LogStatus::CheckPosition(position));
        check.finish_check(Some("b".into()));
        assert_eq!(check.compare_server(Some("b")), LogStatus::Confirmed);
    }
}
