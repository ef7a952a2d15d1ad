//! The summaries of changed runs, which lists show. One batch is written at a time, so that no older summary is written
//! over a newer one.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::registry::RunSummary;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::live::LiveRun;

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

#[cfg(test)]
mod tests {
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
