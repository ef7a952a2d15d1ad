//! The lane owner: the actor that decides on all runs of one lane.
//!
//! It holds the live runs of its lane, folded. The root actor supervises it. It stops with an error when it can't
//! append to the log or its lease is stale; the lane manager then starts a new one, which reads the log again. At its
//! start it reads and folds the lane, carries out the pending effects of each plan, and decides on the facts that no
//! decision has answered. A restart and a takeover are the same code path.
//!
//! `handle` never waits for NATS: appends, offers, reads and archiving run as tasks that send their results back as
//! messages. Work on very large plans takes seconds; it runs beside the other tasks of the process. Each run has at most
//! one decision in flight; facts that arrive meanwhile go into the next one. Effects are carried out only when their
//! decision is in the log.
//!
//! | file | content |
//! |---|---|
//! | `state` | [`LaneOwnerState`]: the steps of the actor, in the order in which a run passes through them |
//! | `io` | [`LaneOwnerIo`]: NATS operations as tasks that send their result to the actor |
//! | `offers` | [`LaneWorkOffers`]: the orders of the runs and their queues, each run within its share |
//! | `queue_audit` | [`QueueAudit`]: compares the queues with the plans |
//! | `holds` | [`LaneAdmission`] and [`SessionQueues`]: which runs may start |
//! | `bookkeeping` | claims that wait briefly, counts of messages, stale summaries, and the server that holds the log |
//!
//! [`LaneOwnerState`]: state::LaneOwnerState
//! [`LaneOwnerIo`]: io::LaneOwnerIo
//! [`LaneWorkOffers`]: offers::LaneWorkOffers
//! [`QueueAudit`]: queue_audit::QueueAudit
//! [`LaneAdmission`]: holds::LaneAdmission
//! [`SessionQueues`]: holds::SessionQueues
//!
//! # Invariants
//!
//! - I13: A stale owner changes nothing: the server refuses it, and it steps down when it wakes.
//!   (`tests/tests/fencing.rs::server_rejects_decisions_of_a_stale_owner`,
//!   `tests/tests/fencing.rs::suspended_supervisor_steps_down_when_it_wakes`)

mod bookkeeping;
mod holds;
mod io;
mod offers;
mod queue_audit;
mod state;

use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::admission::{LaneGrant, LaneOwnerToken};
use millrace_protocol::ids::{Capability, Lane, RunId, WorkerId};
use millrace_protocol::plan::{Attendance, SessionTurn, Work};
use millrace_protocol::registry::RunSummary;
use millrace_runtime::log::AppendError;
use millrace_runtime::nats::strays::SequenceRange;
use millrace_runtime::ops::runtime::{LONG_PLAN, run_possibly_long};
use millrace_runtime::work::lane_lease::LaneLease;
use millrace_runtime::work::queue::QueueSnapshot;
use millrace_runtime::{Bus, Fault};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tracing::info;

use crate::closing::{ClosedRun, LiveRunIndex};
use crate::live::LiveRun;
use crate::queues::CapabilitySnapshot;
use crate::reader::fold::{ArchivedRun, FoldedLane};
use crate::reader::{LaneMessageItems, LogPosition};
use crate::status::LaneStatus;
use state::LaneOwnerState;

/// The arguments of a lane owner.
pub struct LaneOwnerArgs {
    /// The connection to the cluster.
    pub bus: Bus,
    pub lane: Lane,
    /// The id of this supervisor.
    pub me: WorkerId,
    /// The lease on the lane; the lane manager renews it.
    pub lease: watch::Receiver<LaneLease>,
    /// The capability snapshot; the lane manager refreshes it.
    pub cluster: watch::Receiver<Arc<CapabilitySnapshot>>,
    /// The presence of supervisors and workers; the lane manager refreshes it.
    pub attendance: watch::Receiver<Arc<Attendance>>,
    /// The state of the queues; the queue task refreshes it.
    pub queues: watch::Receiver<Arc<QueueSnapshot>>,
    /// The live runs according to their summaries.
    pub live_runs: Arc<LiveRunIndex>,
    /// The time that a run stays in the lane after its end, so that clients that watch it see the end.
    pub linger: Duration,
    /// The status of the lane, for the health check and metrics.
    pub status: Arc<LaneStatus>,
}

/// A message to a lane owner. All but the last three carry a result of a task in `io`.
pub enum LaneMessage {
    /// The lane was read and folded, on the server with this id.
    CaughtUp(FoldedLane, String),
    /// An operation failed that the owner can't continue without.
    Broken(Fault),
    /// A batch of messages of the lane was read, up to this position.
    Items(Vec<LaneMessageItems>, LogPosition, OwnedSemaphorePermit),
    /// The log was checked on the server with this id: `true` if it contains what was read, `None` if the server did not
    /// respond.
    LogChecked(String, Option<bool>),
    /// The summaries of these runs were read, as far as there are any.
    SummariesRead(Vec<RunId>, Vec<RunSummary>),
    /// The archive was checked for a run.
    ArchiveChecked(RunId, ArchivedRun),
    /// An append ended, with the sequence of the decision.
    Appended(RunId, Result<u64, AppendError>),
    /// A run was read and folded again.
    Refolded(RunId, Box<LiveRun>),
    /// Orders could not be put into their queues.
    NotOffered(Vec<(Capability, RunId, Work)>),
    /// The state of the queues was read.
    QueuesRead(Arc<QueueSnapshot>),
    /// These orders were stranded in their queues and have been removed.
    StrandedOrdersRemoved(Vec<(RunId, Work)>),
    /// The turn of a run in its session was prepared.
    SessionTurnPrepared(RunId, Box<SessionTurn>),
    /// The lane was claimed on the board of admission; `None` if that failed.
    ClaimedOnBoard(Option<LaneOwnerToken>),
    /// The runs of the lane were reported to the board of admission.
    PlacesAssigned(DemandOutcome),
    /// A batch of summaries was written, except those of these runs.
    SummariesWritten(Vec<RunId>),
    /// Strays were deleted, except these.
    StraysDeleted(Vec<SequenceRange>),
    /// A run was closed, unless a command reopens it.
    Closed(RunId, ClosedRun),
    /// The capability snapshot has changed.
    ClusterChanged,
    /// The delayed claims have waited long enough.
    FlushClaims,
    /// Time has passed.
    Tick,
}

/// The outcome of a report to the board of admission.
pub enum DemandOutcome {
    /// The runs have these places, by the caps of this revision.
    Assigned(LaneGrant, u64),
    /// The lane is claimed by another owner, or by none.
    NotClaimed,
    /// The board could not be changed.
    Failed,
}

pub struct LaneOwner;

impl Actor for LaneOwner {
    type Msg = LaneMessage;
    type State = LaneOwnerState;
    type Arguments = LaneOwnerArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<LaneMessage>,
        args: LaneOwnerArgs,
    ) -> Result<LaneOwnerState, ActorProcessingErr> {
        Ok(LaneOwnerState::start_reading_lane(myself, args))
    }

    async fn handle(
        &self,
        _myself: ActorRef<LaneMessage>,
        message: LaneMessage,
        state: &mut LaneOwnerState,
    ) -> Result<(), ActorProcessingErr> {
        state.check_lease()?;
        run_possibly_long(state.size_of_work(&message) >= LONG_PLAN, || state.handle_message(message))
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<LaneMessage>,
        state: &mut LaneOwnerState,
    ) -> Result<(), ActorProcessingErr> {
        info!(lane = %state.args.lane, runs = state.runs.len(), "stopped owning the lane");
        Ok(())
    }
}

impl LaneOwnerState {
    fn handle_message(&mut self, message: LaneMessage) -> Result<(), ActorProcessingErr> {
        match message {
            LaneMessage::CaughtUp(folded, server) => self.take_over_runs(folded, server),
            LaneMessage::Broken(fault) => return Err(fault.into()),
            LaneMessage::Items(messages, through, _permit) => self.handle_lane_messages(messages, through),
            LaneMessage::LogChecked(server, is_complete) => self.on_log_checked(server, is_complete)?,
            LaneMessage::SummariesRead(runs, summaries) => self.on_summaries_read(&runs, &summaries),
            LaneMessage::ArchiveChecked(run, archived) => self.on_archive_checked(&run, archived),
            LaneMessage::Appended(run, result) => self.on_decision_appended(&run, result)?,
            LaneMessage::Refolded(run, live) => self.on_run_refolded(run, *live),
            LaneMessage::NotOffered(works) => self.offers.put_back_unoffered_work(works),
            LaneMessage::QueuesRead(queues) => self.repair_queues(&queues),
            LaneMessage::StrandedOrdersRemoved(works) => self.publish_dispatched_orders(&works),
            LaneMessage::SessionTurnPrepared(run, turn) => self.on_session_turn_prepared(&run, turn),
            LaneMessage::ClaimedOnBoard(owner) => self.admission.finish_claim(owner),
            LaneMessage::PlacesAssigned(outcome) => self.on_places_assigned(outcome),
            LaneMessage::SummariesWritten(failed) => self.on_summaries_written(&failed),
            LaneMessage::StraysDeleted(rest) => self.on_strays_deleted(rest),
            LaneMessage::Closed(run, closed) => self.on_run_closed(&run, closed),
            LaneMessage::ClusterChanged => self.on_capabilities_changed(),
            LaneMessage::FlushClaims => self.commit_delayed_claims(),
            LaneMessage::Tick => self.check_clocks_and_republish(),
        }
        Ok(())
    }

    /// The number of tasks that are gone through to handle a message, at most; for a message that names no run, of all runs.
    fn size_of_work(&self, message: &LaneMessage) -> usize {
        match message {
            LaneMessage::CaughtUp(folded, _) => folded.runs.values().map(LiveRun::task_count).sum(),
            LaneMessage::Refolded(_, live) => live.task_count(),
            LaneMessage::ArchiveChecked(run, _)
            | LaneMessage::Appended(run, _)
            | LaneMessage::SessionTurnPrepared(run, _)
            | LaneMessage::Closed(run, _) => self.runs.get(run).map_or(0, LiveRun::task_count),
            LaneMessage::Broken(_)
            | LaneMessage::Items(..)
            | LaneMessage::LogChecked(..)
            | LaneMessage::SummariesRead(..)
            | LaneMessage::NotOffered(_)
            | LaneMessage::QueuesRead(_)
            | LaneMessage::StrandedOrdersRemoved(_)
            | LaneMessage::ClaimedOnBoard(_)
            | LaneMessage::PlacesAssigned(_)
            | LaneMessage::SummariesWritten(_)
            | LaneMessage::StraysDeleted(_)
            | LaneMessage::ClusterChanged
            | LaneMessage::FlushClaims
            | LaneMessage::Tick => self.task_count,
        }
    }
}
