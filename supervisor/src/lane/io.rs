//! The NATS operations of a lane owner. Each runs as a task of its own and sends its result to the actor as a
//! [`LaneMessage`]; none of them changes a run.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::admission::DemandReport;
use millrace_protocol::ids::{Capability, Lane, RunId, SessionId};
use millrace_protocol::plan::{Decision, RunParameters, Work};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::subject::Topic;
use millrace_protocol::work::Order;
use millrace_runtime::nats::strays::SequenceRange;
use millrace_runtime::nats::topology::lane_stream;
use millrace_runtime::ops::metrics::names::QUEUE_REPAIRS;
use millrace_runtime::store::retention::read_deletion;
use millrace_runtime::store::{admission, archive};
use millrace_runtime::work::queue::{self, QueueSnapshot};
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault, log};
use ractor::ActorRef;
use tokio::sync::{Mutex, Semaphore, watch};
use tracing::{debug, info, warn};

use super::bookkeeping::SummaryBatch;
use super::queue_audit::SuspectedOrder;
use super::{DemandOutcome, LaneMessage};
use crate::closing::{self, EndedRun, LiveRunIndex};
use crate::queues::CapabilitySnapshot;
use crate::reader::fold::{self, ArchivedRun};
use crate::reader::outline::fold_lane;
use crate::reader::{self, LaneFeed, LogPosition};
use crate::session_turn;
use crate::strays::delete_strays;

/// The number of runs that are looked up in the archive at the same time.
const MAX_LOOKUPS: usize = 64;
/// The number of batches that may wait in the actor's mailbox: mailboxes themselves are unbounded.
const MAX_BATCHES: usize = 8;
/// The pause before orders that could not be offered are offered again.
const OFFER_RETRY: Duration = Duration::from_millis(200);
const NEVER_CLOSED: &str = "the semaphore is never closed";
/// The interval of ticks; backoffs are checked at each.
const TICK: Duration = Duration::from_millis(50);

/// Starts the NATS operations of one lane owner.
#[derive(Clone)]
pub(super) struct LaneOwnerIo {
    bus: Bus,
    lane: Lane,
    owner: ActorRef<LaneMessage>,
    lookups: Arc<Semaphore>,
}

impl LaneOwnerIo {
    pub(super) fn new(bus: Bus, lane: Lane, owner: ActorRef<LaneMessage>) -> Self {
        Self { bus, lane, owner, lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)) }
    }

    /// Starts an operation whose result goes to the owner, which may have stopped meanwhile. Without the result of an operation that
    /// fails, the owner can't continue.
    fn start<F>(&self, operation: impl FnOnce(Self) -> F)
    where
        F: Future<Output = Result<LaneMessage, Fault>> + Send + 'static,
    {
        let (operation, owner, lane) = (operation(self.clone()), self.owner.clone(), self.lane);
        tokio::spawn(async move {
            if owner.cast(operation.await.unwrap_or_else(LaneMessage::Broken)).is_err() {
                debug!(%lane, "lane owner has stopped; discarding a result");
            }
        });
    }

    /// Sends a message to the owner after a pause.
    pub(super) fn send_to_owner_after(
        &self,
        pause: Duration,
        message: impl FnOnce() -> LaneMessage + Send + 'static,
    ) {
        drop(self.owner.send_after(pause, message));
    }

    // ---- tasks that run as long as the owner

    /// Returns the id of the connected server; `None` while there is no connection.
    pub(super) fn connected_server(&self) -> Option<String> {
        self.bus.connected_server()
    }

    /// Reads and folds the whole lane.
    pub(super) async fn read_lane(self) {
        let server = self.connected_server().unwrap_or_default();
        let folded = fold_lane(&self.bus, self.lane).await;
        let folded = folded.map(|folded| LaneMessage::CaughtUp(folded, server));
        // The owner may have stopped meanwhile.
        drop(self.owner.cast(folded.unwrap_or_else(LaneMessage::Broken)));
    }

    /// Reads the messages that are appended to the lane after the sequence `through`.
    pub(super) async fn follow_lane(self, through: u64) {
        let permits = Arc::new(Semaphore::new(MAX_BATCHES));
        let mut feed = LaneFeed::open_after_sequence(&self.bus, self.lane, through);
        loop {
            let (messages, through) = feed.next_messages().await;
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            if self.owner.cast(LaneMessage::Items(messages, through, permit)).is_err() {
                return;
            }
        }
    }

    /// Reports changes of the capability snapshot.
    pub(super) async fn watch_capability_snapshots(
        self,
        mut cluster: watch::Receiver<Arc<CapabilitySnapshot>>,
    ) {
        while cluster.changed().await.is_ok() && self.owner.cast(LaneMessage::ClusterChanged).is_ok() {}
    }

    /// Reports the state of the queues, each time that it was read.
    pub(super) async fn watch_queues(self, mut queues: watch::Receiver<Arc<QueueSnapshot>>) {
        while queues.changed().await.is_ok() {
            let state = Arc::clone(&queues.borrow_and_update());
            if self.owner.cast(LaneMessage::QueuesRead(state)).is_err() {
                return;
            }
        }
    }

    pub(super) async fn send_periodic_ticks(self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            if self.owner.cast(LaneMessage::Tick).is_err() {
                return;
            }
        }
    }

    // ---- tasks that end by themselves

    /// Checks whether the log of this server contains the message at a position.
    pub(super) fn check_log(&self, server: String, position: LogPosition) {
        self.start(move |io| async move {
            let checked = reader::has_position(&io.bus, io.lane, position).await;
            let is_complete = checked
                .inspect_err(|fault| debug!(lane = %io.lane, %fault, "failed to check the log; retrying"));
            Ok(LaneMessage::LogChecked(server, is_complete.ok()))
        });
    }

    /// Checks whether the archive holds a run, and whether the lane continues it. `is_submitted` says whether the lane holds its submission.
    pub(super) fn check_archive(&self, run: RunId, is_submitted: bool) {
        self.start(move |io| async move {
            let _permit = io.lookups.acquire().await.expect(NEVER_CLOSED);
            let archived = read_archived_run(&io.bus, io.lane, &run, is_submitted).await?;
            Ok(LaneMessage::ArchiveChecked(run, archived))
        });
    }

    pub(super) fn read_summaries(&self, runs: &[RunId]) {
        for batch in runs.chunks(registry::MAX_SUMMARIES) {
            let batch = batch.to_vec();
            self.start(move |io| async move {
                let _permit = io.lookups.acquire().await.expect(NEVER_CLOSED);
                let summaries = registry::read_summaries(&io.bus, &batch).await?;
                Ok(LaneMessage::SummariesRead(batch, summaries))
            });
        }
    }

    /// Reports the runs in their summaries that the lane has lost. `known` are those that it holds.
    pub(super) fn report_lost_runs(&self, index: Arc<LiveRunIndex>, known: HashSet<RunId>) {
        let io = self.clone();
        tokio::spawn(async move {
            if let Err(fault) = closing::report_lost_runs(&io.bus, io.lane, &index, &known).await {
                warn!(lane = %io.lane, %fault, "failed to look for lost runs");
            }
        });
    }

    /// Writes the damage of a run's log into its summary; into `folded` if the run has none.
    pub(super) fn report_damage(&self, run: RunId, folded: Option<RunSummary>, damage: String) {
        let io = self.clone();
        tokio::spawn(async move {
            let report = async {
                let Some(summary) = registry::read_summary(&io.bus, &run).await?.or(folded) else {
                    return Ok(());
                };
                if summary.log_damage.as_ref() == Some(&damage) {
                    return Ok(());
                }
                closing::report_damage(&io.bus, summary, damage).await
            };
            if let Err::<(), Fault>(fault) = report.await {
                warn!(%run, %fault, "failed to report that the log of a run is damaged");
            }
        });
    }

    /// Removes the messages of an archived run from the lane, up to a sequence: a command that reopens it may follow.
    pub(super) fn purge_run(&self, run: RunId, through: u64) {
        let io = self.clone();
        tokio::spawn(async move {
            if let Err(fault) = log::purge_run(&io.bus, io.lane, &run, through).await {
                debug!(%run, %fault, "failed to remove late messages");
            }
        });
    }

    /// Deletes stray messages of the lane.
    pub(super) fn delete_strays(&self, strays: Vec<SequenceRange>) {
        self.start(move |io| async move {
            Ok(LaneMessage::StraysDeleted(delete_strays(&io.bus, &lane_stream(io.lane), strays).await))
        });
    }

    /// Reads and folds a run again.
    pub(super) fn refold_run(&self, run: RunId) {
        self.start(move |io| async move {
            let live = fold::fold_run(&io.bus, io.lane, &run).await?;
            Ok(LaneMessage::Refolded(run, Box::new(live)))
        });
    }

    /// Appends a decision to the plan of a run whose last message in the lane has the sequence `last`.
    pub(super) fn append_decision(&self, run: RunId, decision: Decision, last: u64) {
        self.start(move |io| async move {
            let result = log::append_message(&io.bus, io.lane, &run, &Topic::Plan, &decision, last).await;
            Ok(LaneMessage::Appended(run, result))
        });
    }

    /// Puts orders into their queues; a queue ignores an order that it already holds.
    pub(super) fn publish_orders(&self, orders: Vec<Order>) {
        if orders.is_empty() {
            return;
        }
        let io = self.clone();
        tokio::spawn(async move {
            if let Err((orders, fault)) = queue::publish_orders(&io.bus, orders).await {
                warn!(%fault, orders = orders.len(), "failed to offer work; retrying");
                io.return_orders(orders);
            }
        });
    }

    /// Returns orders that could not be published to the owner, after a pause.
    pub(super) fn return_orders(&self, orders: Vec<Order>) {
        let works = orders.into_iter().map(|order| {
            let work = order.work();
            (work.queue_name(&order.capability), order.run, work)
        });
        let works: Vec<_> = works.collect();
        self.send_to_owner_after(OFFER_RETRY, || LaneMessage::NotOffered(works));
    }

    /// Takes an order out of its queue and notifies the worker that has claimed it.
    pub(super) fn withdraw_order(&self, run: RunId, work: Work, capability: Capability) {
        let bus = self.bus.clone();
        tokio::spawn(async move {
            // A failure is harmless: the journal shows the worker that the plan no longer waits for this attempt.
            if let Err(fault) = queue::withdraw_order(&bus, &run, &capability, &work).await {
                debug!(%run, %fault, "failed to withdraw an order");
            }
            if let Err(fault) = queue::publish_stop(&bus, &run, Some(&work)).await {
                debug!(%run, %fault, "failed to publish a stop message");
            }
        });
    }

    /// Removes orders that no plan waits for.
    pub(super) fn remove_orders(&self, subjects: Vec<String>) {
        if subjects.is_empty() {
            return;
        }
        info!(lane = %self.lane, orders = subjects.len(), "removing orders that no plan waits for");
        count_repairs("unwanted", subjects.len());
        let bus = self.bus.clone();
        tokio::spawn(async move {
            for subject in subjects {
                if let Err(fault) = queue::remove_order(&bus, &subject).await {
                    debug!(subject, %fault, "failed to remove an order; the next comparison finds it again");
                }
            }
        });
    }

    /// Removes those of these orders that their queues will never deliver, and reports them to the owner.
    pub(super) fn remove_stranded_orders(&self, suspected: Vec<SuspectedOrder>) {
        if suspected.is_empty() {
            return;
        }
        let io = self.clone();
        tokio::spawn(async move {
            let mut stranded = Vec::new();
            for SuspectedOrder { subject, run, work, is_overdue } in suspected {
                match queue::remove_if_stranded(&io.bus, &subject, is_overdue).await {
                    Ok(true) => stranded.push((run, work)),
                    Ok(false) => {}
                    Err(fault) => debug!(subject, %fault, "failed to look up an order; retrying"),
                }
            }
            if !stranded.is_empty() {
                let orders = stranded.len();
                warn!(lane = %io.lane, orders, "orders were stranded in their queues; publishing them again");
                count_repairs("stranded", orders);
                drop(io.owner.cast(LaneMessage::StrandedOrdersRemoved(stranded)));
            }
        });
    }

    /// Prepares the turn of a run with these parameters in its session.
    pub(super) fn prepare_session_turn(&self, run: RunId, session: SessionId, start: RunParameters) {
        self.start(move |io| async move {
            let turn = session_turn::prepare_session_turn(&io.bus, &run, &session, &start).await;
            Ok(LaneMessage::SessionTurnPrepared(run, Box::new(turn)))
        });
    }

    /// Claims the lane on the board of admission.
    pub(super) fn claim_lane_on_board(&self) {
        self.start(move |io| async move {
            let claimed = admission::claim_lane(&io.bus, io.lane).await;
            if let Err(fault) = &claimed {
                debug!(lane = %io.lane, %fault, "failed to claim the lane on the board of admission; retrying");
            }
            Ok(LaneMessage::ClaimedOnBoard(claimed.ok()))
        });
    }

    /// Reports the runs of the lane, and gets their places.
    pub(super) fn report_demand(&self, report: DemandReport) {
        self.start(move |io| async move {
            let outcome = match admission::report_lane(&io.bus, &report).await {
                Ok(Ok((grant, revision))) => DemandOutcome::Assigned(grant, revision),
                Ok(Err(rejection)) => {
                    debug!(lane = %io.lane, %rejection, "claiming the lane again");
                    DemandOutcome::NotClaimed
                }
                Err(fault) => {
                    debug!(lane = %io.lane, %fault, "failed to report the runs of the lane; retrying");
                    DemandOutcome::Failed
                }
            };
            Ok(LaneMessage::PlacesAssigned(outcome))
        });
    }

    pub(super) fn write_summaries(&self, batch: SummaryBatch) {
        self.start(move |io| async move {
            Ok(LaneMessage::SummariesWritten(write_summary_batch(&io.bus, batch).await))
        });
    }

    /// Archives a run that has ended. It waits for `summary_lock` first, so that no older summary is written over the
    /// final one.
    pub(super) fn archive_run(&self, summary: RunSummary, ended: EndedRun, summary_lock: Arc<Mutex<()>>) {
        self.start(move |io| async move {
            let run = summary.run.clone();
            drop(summary_lock.lock().await);
            let closed = closing::close_ended_run(&io.bus, summary, ended).await;
            Ok(LaneMessage::Closed(run, closed))
        });
    }
}

/// Counts repaired orders in the metrics.
pub(super) fn count_repairs(difference: &str, orders: usize) {
    QUEUE_REPAIRS.with_labels(&[difference]).add(u32::try_from(orders).unwrap_or(u32::MAX).into());
}

/// Looks up a run in the archive. A run that the archive holds may have been submitted again, unless its summary says that it is
/// archived, or was. A run that is being deleted can't be reopened.
async fn read_archived_run(
    bus: &Bus,
    lane: Lane,
    run: &RunId,
    is_submitted: bool,
) -> Result<ArchivedRun, Fault> {
    let summary = registry::read_summary(bus, run).await?;
    if is_submitted {
        if !summary.as_ref().is_some_and(archive::has_archive) {
            return Ok(ArchivedRun::None);
        }
    } else if read_deletion(bus, run).await?.is_some_and(|deletion| deletion.state.is_pending()) {
        return Ok(ArchivedRun::None);
    }
    let archived = match fold::fold_run_with_archive(bus, lane, run).await {
        // A damaged archive is no reason for the whole lane to wait.
        Err(fault) if !archive::is_archived(bus, run).await? => {
            warn!(%run, %fault, "failed to read the archive of a run");
            if let Some(summary) =
                summary.filter(|summary| !is_submitted && !summary.archived && archive::has_archive(summary))
            {
                closing::report_damage(bus, summary, "its archive is incomplete or damaged".into()).await?;
            }
            ArchivedRun::None
        }
        archived => archived?,
    };
    if is_submitted && matches!(archived, ArchivedRun::None) {
        warn!(%run, "summary says archived, but the archive does not hold the run; using the lane");
    }
    Ok(archived)
}

/// Writes summaries one after the other; returns the runs whose summary was not written. If the server does not answer,
/// the rest is not attempted.
async fn write_summary_batch(bus: &Bus, batch: SummaryBatch) -> Vec<RunId> {
    let (mut failed, mut is_away) = (Vec::new(), false);
    for summary in batch.summaries {
        if !is_away {
            // The part in the archive grows with each end: an owner that was suspended writes over no later state.
            let is_current = |stored: Option<&RunSummary>| !closing::is_superseded(&summary, stored);
            let written = match summary.archived_span {
                Some(_) => registry::write_summary_if(bus, &summary, is_current).await,
                None => registry::write_summary(bus, &summary).await,
            };
            let Err(fault) = written else { continue };
            debug!(run = %summary.run, %fault, "failed to write a summary; retrying");
            is_away = fault.is_transient();
        }
        failed.push(summary.run);
    }
    failed
}
