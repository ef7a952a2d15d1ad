//! The root actor of a host. It starts a [`QueueActor`] per capability and restarts failed ones, forwards stops, and
//! triggers heartbeats and lease renewals. It dies when its queues fail too often, and the process with it. It reads
//! nothing at its start.
//!
//! # Invariants
//!
//! - I41: Stopped work ends within a second, down to the connection to a provider and the programs of a tool; a missed stop
//!   message is noticed at the next lease renewal.
//!   (`worker/tests/stopping.rs::a_stop_closes_the_provider_request_within_a_second`,
//!   `worker/tests/stopping.rs::a_stop_kills_a_program_and_its_children_within_a_second`,
//!   `worker/tests/stopping.rs::a_withdrawn_order_is_noticed_at_renewal_if_the_stop_was_lost`)

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Absence, Work};
use millrace_protocol::registry::Heartbeat;
use millrace_runtime::fault::backoff;
use millrace_runtime::ops::telemetry;
use millrace_runtime::work::queue::StopSubscription;
use millrace_runtime::work::registry;
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tracing::{debug, error, warn};

use crate::queue_actor::{self, QueueActor};
use crate::{HostContext, HostedHandler, OrderHandler};

/// The heartbeat interval: three heartbeats fit into their maximum age.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// The longest time between two heartbeats in which the process counts as running.
const MAX_PAUSE: SignedDuration = SignedDuration::from_secs(6);
/// More queue failures than this within [`WINDOW`] stop the process.
const MAX_FAILURES: usize = 5;
const WINDOW: Duration = Duration::from_secs(30);

pub(crate) struct HostRootArguments {
    pub shared: Arc<HostContext>,
    pub services: Vec<HostedHandler>,
    pub heartbeat: Heartbeat,
    pub grace: Duration,
}

pub(crate) struct HostRootState {
    shared: Arc<HostContext>,
    heartbeat: Heartbeat,
    /// When the last one was sent, by the wall clock: it runs on while the machine is suspended.
    last_heartbeat: Timestamp,
    grace: Duration,
    queues: HashMap<ActorId, ServedQueueActor>,
    failures: Vec<Instant>,
    draining: bool,
    listener: tokio::task::JoinHandle<()>,
}

struct ServedQueueActor {
    queue: ActorRef<queue_actor::QueueActorMessage>,
    handler: Arc<dyn OrderHandler>,
    slots: u32,
}

pub(crate) enum HostRootMessage {
    /// Send a heartbeat.
    Heartbeat,
    /// Renew the leases.
    Renew,
    /// Stop the work on a run, or on one piece of it.
    Stop(RunId, Option<Work>),
    /// Pull no more orders, and stop when none are in flight.
    Drain,
    /// The grace period is over.
    GraceOver,
}

pub(crate) struct HostRoot;

impl Actor for HostRoot {
    type Msg = HostRootMessage;
    type State = HostRootState;
    type Arguments = HostRootArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<HostRootMessage>,
        arguments: HostRootArguments,
    ) -> Result<HostRootState, ActorProcessingErr> {
        let HostRootArguments { shared, services, heartbeat, grace } = arguments;
        shared.health.record_loop_iteration();
        let third = Duration::from_millis((shared.bus.settings().work_lease_ms / 3).max(1));
        myself.send_interval(third, || HostRootMessage::Renew);
        myself.send_interval(HEARTBEAT, || HostRootMessage::Heartbeat);
        let listener = tokio::spawn(forward_stop_messages(shared.clone(), myself.clone()));
        let queues = HashMap::new();
        let mut state = HostRootState {
            shared,
            heartbeat,
            last_heartbeat: Timestamp::now(),
            grace,
            queues,
            failures: Vec::new(),
            draining: false,
            listener,
        };
        for HostedHandler { handler, slots } in services {
            state.start_queue_actor(&myself, handler, slots).await?;
        }
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<HostRootMessage>,
        message: HostRootMessage,
        state: &mut HostRootState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            HostRootMessage::Heartbeat => state.send_heartbeat(),
            HostRootMessage::Renew => state.send_to_all_queues(|| queue_actor::QueueActorMessage::Renew),
            HostRootMessage::Stop(run, work) => {
                state.send_to_all_queues(|| queue_actor::QueueActorMessage::Stop(run.clone(), work.clone()));
            }
            HostRootMessage::Drain => state.start_draining(&myself),
            HostRootMessage::GraceOver => {
                state.send_to_all_queues(|| queue_actor::QueueActorMessage::ReturnAll)
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<HostRootMessage>,
        event: SupervisionEvent,
        state: &mut HostRootState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(queue, _, _) => {
                state.handle_queue_end(&myself, queue.get_id(), "it stopped").await
            }
            SupervisionEvent::ActorFailed(queue, error) => {
                state.handle_queue_end(&myself, queue.get_id(), &error.to_string()).await
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => Ok(()),
        }
    }
}

impl Drop for HostRootState {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// Subscribes to stops and forwards them. A stop that is missed during a disconnect is noticed at the next lease
/// renewal or append.
async fn forward_stop_messages(shared: Arc<HostContext>, root: ActorRef<HostRootMessage>) {
    let mut tries = 0;
    loop {
        match StopSubscription::subscribe_to_stops(&shared.bus).await {
            Ok(mut stops) => {
                tries = 0;
                while let Some((run, work)) = stops.next_stop().await {
                    if root.cast(HostRootMessage::Stop(run, work)).is_err() {
                        return;
                    }
                }
            }
            Err(fault) => warn!(%fault, "stop subscription failed; retrying"),
        }
        tries += 1;
        tokio::time::sleep(backoff(tries)).await;
    }
}

impl HostRootState {
    async fn start_queue_actor(
        &mut self,
        myself: &ActorRef<HostRootMessage>,
        handler: Arc<dyn OrderHandler>,
        slots: u32,
    ) -> Result<(), ActorProcessingErr> {
        let status = self.shared.statuses.get(&handler.describe_capability().name);
        let status = status.ok_or("a handler has changed its capability")?.clone();
        let arguments = queue_actor::QueueActorArguments {
            shared: self.shared.clone(),
            status,
            handler: handler.clone(),
            slots,
        };
        let (queue, _) = Actor::spawn_linked(None, QueueActor, arguments, myself.get_cell()).await?;
        self.queues.insert(queue.get_id(), ServedQueueActor { queue, handler, slots });
        Ok(())
    }

    fn send_to_all_queues(&self, message: impl Fn() -> queue_actor::QueueActorMessage) {
        for served in self.queues.values() {
            // A failed queue restarts without orders in flight.
            drop(served.queue.cast(message()));
        }
    }

    fn send_heartbeat(&mut self) {
        self.shared.log_limit.report_left_out();
        self.shared.health.record_loop_iteration();
        let (last, now) = (self.last_heartbeat, Timestamp::now());
        if now.duration_since(last) > MAX_PAUSE {
            self.heartbeat.suspended = Some(Absence { from: last, until: now });
        }
        self.last_heartbeat = now;
        let statuses = self.shared.statuses.iter();
        self.heartbeat.busy_with =
            statuses.map(|(name, status)| (name.clone(), status.busy_slots())).collect();
        self.heartbeat.busy = self.heartbeat.busy_with.iter().map(|(_, busy)| busy).sum();
        self.heartbeat.last_problem = telemetry::last_problem();
        let (shared, heartbeat) = (self.shared.clone(), self.heartbeat.clone());
        let capabilities: Vec<_> =
            self.queues.values().map(|served| served.handler.describe_capability()).collect();
        tokio::spawn(async move {
            if let Err(fault) = registry::send_heartbeat(&shared.bus, &heartbeat).await {
                debug!(%fault, "heartbeat failed");
            }
            for capability in capabilities {
                if let Err(fault) = registry::restore_capability(&shared.bus, &capability).await {
                    debug!(capability = %capability.name, %fault, "failed to check the entry of a capability");
                }
            }
        });
    }

    fn start_draining(&mut self, myself: &ActorRef<HostRootMessage>) {
        self.draining = true;
        self.send_to_all_queues(|| queue_actor::QueueActorMessage::Drain);
        myself.send_after(self.grace, || HostRootMessage::GraceOver);
        self.stop_if_drained(myself);
    }

    async fn handle_queue_end(
        &mut self,
        myself: &ActorRef<HostRootMessage>,
        id: ActorId,
        why: &str,
    ) -> Result<(), ActorProcessingErr> {
        let Some(ServedQueueActor { handler, slots, .. }) = self.queues.remove(&id) else {
            return Ok(());
        };
        if self.draining {
            self.stop_if_drained(myself);
            return Ok(());
        }
        let capability = handler.describe_capability().name;
        error!(%capability, why, "the queue actor failed; restarting it");
        self.failures.retain(|failure| failure.elapsed() < WINDOW);
        self.failures.push(Instant::now());
        if self.failures.len() > MAX_FAILURES {
            return Err(format!("the queue of {capability} failed too often: {why}").into());
        }
        self.start_queue_actor(myself, handler, slots).await
    }

    fn stop_if_drained(&self, myself: &ActorRef<HostRootMessage>) {
        if self.draining && self.queues.is_empty() {
            myself.stop(None);
        }
    }
}
