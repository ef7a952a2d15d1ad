//! The actor of one queue that the process serves. It holds the orders in flight and owns the task of the [`OrderRunner`] of
//! each. The root supervises it. It dies only of bugs; its orders are then redelivered when their leases expire. It reads
//! nothing at its start.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::Work;
use millrace_protocol::result::Build;
use millrace_protocol::subject;
use millrace_runtime::log::journal::Journal;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::order_lease::OrderLease;
use crate::pull::SlotFiller;
use crate::queue_status::QueueStatus;
use crate::runner::OrderRunner;
use crate::{HostContext, OrderHandler};

/// The delay before an order is redelivered whose runner failed because of a bug.
const FAILURE_DELAY: Duration = Duration::from_secs(1);
/// The timeout of recording that an order is returned because this process stops.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// The program that hosts the work, as journals name it.
const PROGRAM: &str = concat!("millrace ", env!("CARGO_PKG_VERSION"));

pub(crate) struct QueueActorArguments {
    pub shared: Arc<HostContext>,
    pub status: Arc<QueueStatus>,
    pub handler: Arc<dyn OrderHandler>,
    pub slots: u32,
}

pub(crate) struct QueueActorState {
    shared: Arc<HostContext>,
    status: Arc<QueueStatus>,
    handler: Arc<dyn OrderHandler>,
    capability: Capability,
    build: Arc<Build>,
    in_flight: HashMap<OrderNumber, OrderInFlight>,
    last_number: OrderNumber,
    draining: CancellationToken,
    filler_runs: bool,
}

/// The number of an order, in the sequence in which this process got them.
type OrderNumber = u64;

/// An order with a runner.
struct OrderInFlight {
    lease: Arc<OrderLease>,
    since: Instant,
    cancelled: CancellationToken,
    runner: AbortHandle,
    /// The reason for which the runner was killed; it decides what happens to the order.
    kill_reason: Option<RunnerKillReason>,
}

#[derive(Clone, Copy)]
enum RunnerKillReason {
    /// The work was stopped.
    Stop,
    /// This process stops; another continues the work.
    Drain,
}

pub(crate) enum QueueActorMessage {
    /// An order arrived, with its slot.
    Arrived(Arc<OrderLease>, OwnedSemaphorePermit),
    /// The slot filler ended.
    FillerEnded,
    /// Renew the leases of orders in flight.
    Renew,
    /// Stop the work on a run, or on one piece of it.
    Stop(RunId, Option<Work>),
    /// The runner of an order ended; with an error if it panicked.
    RunnerEnded(OrderNumber, Option<&'static str>),
    /// An order in flight is no longer in the queue.
    Withdrawn(Arc<OrderLease>),
    /// Pull no more orders, and stop when none are in flight.
    Drain,
    /// Return all orders in flight to the queue.
    ReturnAll,
}

pub(crate) struct QueueActor;

impl Actor for QueueActor {
    type Msg = QueueActorMessage;
    type State = QueueActorState;
    type Arguments = QueueActorArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<QueueActorMessage>,
        arguments: QueueActorArguments,
    ) -> Result<QueueActorState, ActorProcessingErr> {
        let QueueActorArguments { shared, status, handler, slots } = arguments;
        let description = handler.describe_capability();
        let build = Arc::new(Build { program: PROGRAM.to_owned(), capability: description.version });
        let capability = description.name;
        let draining = CancellationToken::new();
        let filler = SlotFiller {
            bus: shared.bus.clone(),
            capability: capability.clone(),
            slots: Arc::new(Semaphore::new(slots as usize)),
            draining: draining.clone(),
            status: status.clone(),
        };
        tokio::spawn(run_slot_filler(filler, myself));
        let in_flight = HashMap::new();
        Ok(QueueActorState {
            shared,
            status,
            handler,
            capability,
            build,
            in_flight,
            last_number: 0,
            draining,
            filler_runs: true,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<QueueActorMessage>,
        message: QueueActorMessage,
        state: &mut QueueActorState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            QueueActorMessage::Arrived(lease, slot) => state.start_runner(&myself, lease, slot).await,
            QueueActorMessage::RunnerEnded(order, failure) => {
                state.handle_runner_end(order, failure).await;
                state.stop_if_drained(&myself);
            }
            QueueActorMessage::FillerEnded => state.handle_filler_end(&myself)?,
            QueueActorMessage::Renew => state.renew_leases(&myself),
            QueueActorMessage::Withdrawn(lease) => state.stop_withdrawn_work(&lease),
            QueueActorMessage::Stop(run, work) => state.stop_work(&run, work.as_ref()),
            QueueActorMessage::Drain => state.start_draining(),
            QueueActorMessage::ReturnAll => state.kill_all_runners(RunnerKillReason::Drain),
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<QueueActorMessage>,
        state: &mut QueueActorState,
    ) -> Result<(), ActorProcessingErr> {
        state.draining.cancel();
        Ok(())
    }
}

impl Drop for QueueActorState {
    /// Stops the slot filler and the runners, however the actor ends.
    fn drop(&mut self) {
        self.draining.cancel();
        self.in_flight.values().for_each(|in_flight| in_flight.runner.abort());
    }
}

/// Runs the slot filler, and notifies the queue when it ends, even by a panic.
async fn run_slot_filler(filler: SlotFiller, queue: ActorRef<QueueActorMessage>) {
    struct NotifyFillerEndOnDrop(ActorRef<QueueActorMessage>);
    impl Drop for NotifyFillerEndOnDrop {
        fn drop(&mut self) {
            drop(self.0.cast(QueueActorMessage::FillerEnded));
        }
    }
    let queue = NotifyFillerEndOnDrop(queue);
    filler
        .fill_slots_until_draining(|lease, slot| {
            // If the queue actor is gone, the lease expires and the order is redelivered.
            drop(queue.0.cast(QueueActorMessage::Arrived(Arc::new(lease), slot)));
        })
        .await;
}

/// Notifies the queue when the runner of an order has ended, also by a panic or an abort.
struct NotifyRunnerEndOnDrop {
    order: OrderNumber,
    queue: ActorRef<QueueActorMessage>,
}

impl Drop for NotifyRunnerEndOnDrop {
    fn drop(&mut self) {
        let failure = std::thread::panicking().then_some("it panicked");
        // If the queue actor is gone, the lease expires and the order is redelivered.
        drop(self.queue.cast(QueueActorMessage::RunnerEnded(self.order, failure)));
    }
}

/// Works on an order. `_notify` is dropped after the runner.
async fn run_order(_notify: NotifyRunnerEndOnDrop, runner: OrderRunner) {
    runner.run().await;
}

impl QueueActorState {
    async fn start_runner(
        &mut self,
        myself: &ActorRef<QueueActorMessage>,
        lease: Arc<OrderLease>,
        slot: OwnedSemaphorePermit,
    ) {
        if !lease.is_of_queue(&self.capability) {
            // Its own queue delivers it. An acknowledgement would remove it there.
            warn!(
                subject = lease.subject(),
                "leaving an order to the queue of its capability: the server has lost its newest messages"
            );
            self.status.invalid.increment();
            return;
        }
        if self.draining.is_cancelled() {
            lease.release_order(Duration::ZERO).await;
            return;
        }
        if lease.is_redelivery() {
            self.status.redelivered.increment();
        }
        let cancelled = CancellationToken::new();
        let runner = OrderRunner {
            shared: self.shared.clone(),
            status: self.status.clone(),
            handler: self.handler.clone(),
            build: self.build.clone(),
            lease: lease.clone(),
            cancelled: cancelled.clone(),
            draining: self.draining.clone(),
            _slot: slot,
        };
        self.last_number += 1;
        let order = self.last_number;
        let notify = NotifyRunnerEndOnDrop { order, queue: myself.clone() };
        let runner = tokio::spawn(run_order(notify, runner)).abort_handle();
        self.in_flight.insert(
            order,
            OrderInFlight { lease, since: Instant::now(), cancelled, runner, kill_reason: None },
        );
    }

    /// Handles the end of a runner. A runner that was not killed has handled its order itself.
    async fn handle_runner_end(&mut self, order: OrderNumber, failure: Option<&str>) {
        let Some(OrderInFlight { lease, kill_reason, .. }) = self.in_flight.remove(&order) else {
            return;
        };
        match (kill_reason, failure) {
            (Some(RunnerKillReason::Stop), _) => {
                self.status.done.increment();
                lease.acknowledge_order().await;
            }
            (Some(RunnerKillReason::Drain), _) => {
                self.status.returned.increment();
                self.append_release_of_claim(&lease).await;
                lease.release_order(Duration::ZERO).await;
            }
            (None, Some(error)) => {
                warn!(subject = lease.subject(), %error, "a runner failed; returning its order to the queue");
                self.status.returned.increment();
                lease.release_order(FAILURE_DELAY).await;
            }
            (None, None) => {}
        }
    }

    /// Records in the journal that the work is released because this process stops, so that its claim does not count.
    async fn append_release_of_claim(&self, lease: &OrderLease) {
        let releasing = async {
            let order = lease.decode_order().await?;
            Journal::append_release_for_worker(
                &self.shared.bus,
                &order,
                &self.shared.id,
                "its worker stopped",
            )
            .await
        };
        match tokio::time::timeout(RELEASE_TIMEOUT, releasing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                debug!(%error, "could not record in the journal that the work was released; this claim counts as one without progress")
            }
            Err(_) => debug!(
                "recording in the journal that the work was released timed out; this claim may count as one without progress"
            ),
        }
    }

    /// Renews the leases in a task, so that a slow connection does not block the actor. The task also checks that each
    /// order is still in the queue, to notice missed stops.
    fn renew_leases(&self, myself: &ActorRef<QueueActorMessage>) {
        let third = Duration::from_millis(self.shared.bus.settings().work_lease_ms / 3);
        let due: Vec<Arc<OrderLease>> = self
            .in_flight
            .values()
            .filter(|in_flight| in_flight.since.elapsed() >= third)
            .map(|in_flight| in_flight.lease.clone())
            .collect();
        if due.is_empty() {
            return;
        }
        let queue = myself.clone();
        tokio::spawn(async move {
            for lease in &due {
                lease.renew_lease().await;
            }
            for lease in due {
                match lease.is_order_gone().await {
                    // If the queue actor is gone, so are its runners.
                    Ok(true) => drop(queue.cast(QueueActorMessage::Withdrawn(lease))),
                    Ok(false) => {}
                    Err(fault) => debug!(%fault, "cannot check whether an order is still in the queue"),
                }
            }
        });
    }

    fn stop_work(&mut self, run: &RunId, work: Option<&Work>) {
        let prefix = format!("work.{}.{run}.", self.capability);
        let expected = work.map(|work| subject::order_subject(run, &self.capability, work));
        for in_flight in self.in_flight.values_mut() {
            let subject = in_flight.lease.subject();
            if expected.as_ref().map_or_else(|| subject.starts_with(&prefix), |expected| subject == expected)
            {
                info!(subject, "stopping work on request");
                in_flight.kill_runner(RunnerKillReason::Stop);
            }
        }
    }

    fn stop_withdrawn_work(&mut self, lease: &Arc<OrderLease>) {
        let mut in_flight = self.in_flight.values_mut();
        if let Some(in_flight) = in_flight.find(|in_flight| Arc::ptr_eq(&in_flight.lease, lease)) {
            info!(subject = lease.subject(), "stopping work: its order was withdrawn");
            in_flight.kill_runner(RunnerKillReason::Stop);
        }
    }

    fn start_draining(&mut self) {
        self.draining.cancel();
    }

    fn kill_all_runners(&mut self, kill_reason: RunnerKillReason) {
        for in_flight in self.in_flight.values_mut() {
            info!(subject = in_flight.lease.subject(), "returning work in flight to the queue");
            in_flight.kill_runner(kill_reason);
        }
    }

    fn handle_filler_end(&mut self, myself: &ActorRef<QueueActorMessage>) -> Result<(), ActorProcessingErr> {
        self.filler_runs = false;
        if !self.draining.is_cancelled() {
            return Err("the slot filler failed".into());
        }
        self.stop_if_drained(myself);
        Ok(())
    }

    fn stop_if_drained(&self, myself: &ActorRef<QueueActorMessage>) {
        if self.draining.is_cancelled() && !self.filler_runs && self.in_flight.is_empty() {
            myself.stop(None);
        }
    }
}

impl OrderInFlight {
    fn kill_runner(&mut self, kill_reason: RunnerKillReason) {
        self.cancelled.cancel();
        // The first reason wins: stopped work is never returned to the queue.
        self.kill_reason.get_or_insert(kill_reason);
        self.runner.abort();
    }
}
