//! One queue that the process serves: an actor, supervised by the root, which holds what is in hand and supervises a
//! [`Runner`] for each order. It dies when its own code fails; the orders in hand then come back when their leases run
//! out. It reads nothing at its start.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::Work;
use millrace_protocol::subject;
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::pull::Lease;
use super::puller::Pulling;
use super::runner::{self, Begin, Runner};
use super::standing::Standing;
use super::{Handler, Shared};
use crate::journal::Journal;

/// How long an order rests whose runner failed by a fault of our own.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long it may take to write down that an order is given back because we end.
const PARTING: Duration = Duration::from_secs(1);

pub(super) struct Arguments {
    pub shared: Arc<Shared>,
    pub standing: Arc<Standing>,
    pub handler: Arc<dyn Handler>,
    pub slots: u32,
}

pub(super) struct State {
    shared: Arc<Shared>,
    standing: Arc<Standing>,
    handler: Arc<dyn Handler>,
    capability: Capability,
    in_hand: HashMap<ActorId, InHand>,
    draining: CancellationToken,
    pulling: bool,
}

/// An order that somebody works on.
struct InHand {
    lease: Arc<Lease>,
    since: Instant,
    cancelled: CancellationToken,
    runner: ActorRef<Begin>,
    /// What becomes of the order when the runner was killed.
    killed_for: Option<KilledFor>,
}

#[derive(Clone, Copy)]
enum KilledFor {
    /// The work is not wanted any more.
    Stop,
    /// We end, the work goes on elsewhere.
    Drain,
}

pub(super) enum Message {
    /// An order came, with the slot it takes.
    Arrived(Arc<Lease>, OwnedSemaphorePermit),
    /// No more orders come.
    PullerEnded,
    /// The leases in hand are to be renewed.
    Renew,
    /// Work on a run, or one piece of it, is not wanted any more.
    Stop(RunId, Option<Work>),
    /// An order in hand is not in the queue any more.
    Gone(Arc<Lease>),
    /// Take nothing more, and end when nothing is in hand.
    Drain,
    /// Give everything in hand back.
    GiveBack,
}

pub(super) struct Queue;

impl Actor for Queue {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let Arguments { shared, standing, handler, slots } = arguments;
        let capability = handler.describe().name;
        let draining = CancellationToken::new();
        let pulling = Pulling {
            bus: shared.bus.clone(),
            capability: capability.clone(),
            slots: Arc::new(Semaphore::new(slots as usize)),
            draining: draining.clone(),
            standing: standing.clone(),
        };
        tokio::spawn(pull(pulling, myself));
        let in_hand = HashMap::new();
        Ok(State { shared, standing, handler, capability, in_hand, draining, pulling: true })
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Arrived(lease, slot) => state.begin(&myself, lease, slot).await?,
            Message::PullerEnded => state.puller_ended(&myself)?,
            Message::Renew => state.renew(&myself),
            Message::Gone(lease) => state.gone(&lease),
            Message::Stop(run, work) => state.stop(&run, work.as_ref()),
            Message::Drain => state.drain(),
            Message::GiveBack => state.kill_all(KilledFor::Drain),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Message>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(runner, _, _) => state.ended(runner.get_id(), None).await,
            SupervisionEvent::ActorFailed(runner, error) => state.ended(runner.get_id(), Some(error)).await,
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        state.end_if_drained(&myself);
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Message>, state: &mut State) -> Result<(), ActorProcessingErr> {
        state.draining.cancel();
        Ok(())
    }
}

impl Drop for State {
    /// However the actor ends, nobody pulls for it any more.
    fn drop(&mut self) {
        self.draining.cancel();
    }
}

/// The puller's task. It says when it ends, even by a panic.
async fn pull(pulling: Pulling, queue: ActorRef<Message>) {
    struct Farewell(ActorRef<Message>);
    impl Drop for Farewell {
        fn drop(&mut self) {
            drop(self.0.cast(Message::PullerEnded));
        }
    }
    let queue = Farewell(queue);
    pulling
        .run(|lease, slot| {
            // Where the queue is gone, the lease runs out and the order comes back.
            drop(queue.0.cast(Message::Arrived(Arc::new(lease), slot)));
        })
        .await;
}

impl State {
    async fn begin(
        &mut self,
        myself: &ActorRef<Message>,
        lease: Arc<Lease>,
        slot: OwnedSemaphorePermit,
    ) -> Result<(), ActorProcessingErr> {
        if self.draining.is_cancelled() {
            lease.give_back(Duration::ZERO).await;
            return Ok(());
        }
        if lease.is_repeated() {
            self.standing.redelivered.one();
        }
        let cancelled = CancellationToken::new();
        let arguments = runner::Arguments {
            shared: self.shared.clone(),
            standing: self.standing.clone(),
            handler: self.handler.clone(),
            lease: lease.clone(),
            cancelled: cancelled.clone(),
            _slot: slot,
        };
        let (runner, _) = Actor::spawn_linked(None, Runner, arguments, myself.get_cell()).await?;
        let id = runner.get_id();
        runner.cast(Begin)?;
        self.in_hand.insert(id, InHand { lease, since: Instant::now(), cancelled, runner, killed_for: None });
        Ok(())
    }

    /// A runner ended. One that ended by itself has seen to its order.
    async fn ended(&mut self, id: ActorId, failure: Option<ActorProcessingErr>) {
        let Some(InHand { lease, killed_for, .. }) = self.in_hand.remove(&id) else {
            return;
        };
        match (killed_for, failure) {
            (Some(KilledFor::Stop), _) => {
                self.standing.done.one();
                lease.done().await;
            }
            (Some(KilledFor::Drain), _) => {
                self.standing.returned.one();
                self.release(&lease).await;
                lease.give_back(Duration::ZERO).await;
            }
            (None, Some(error)) => {
                warn!(subject = lease.subject(), %error, "a runner failed; its order goes back");
                self.standing.returned.one();
                lease.give_back(AFTER_FAILURE).await;
            }
            (None, None) => {}
        }
    }

    /// Says that work goes elsewhere because we end, so that our claim counts for nothing.
    async fn release(&self, lease: &Lease) {
        let releasing = async {
            let order = lease.order().await?;
            Journal::release_of(&self.shared.bus, &order, &self.shared.id, "its worker ends").await
        };
        match tokio::time::timeout(PARTING, releasing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, "that work is given back could not be written down"),
            Err(_) => debug!("that work is given back could not be written down in time"),
        }
    }

    /// One task renews all of them: the connection may be slow to take so many words, and the queue goes on. Each is
    /// looked for in the queue as well: who missed that it is not wanted any more finds out here.
    fn renew(&self, myself: &ActorRef<Message>) {
        let third = Duration::from_millis(self.shared.bus.settings().work_lease_ms / 3);
        let old: Vec<Arc<Lease>> = self
            .in_hand
            .values()
            .filter(|in_hand| in_hand.since.elapsed() >= third)
            .map(|in_hand| in_hand.lease.clone())
            .collect();
        if old.is_empty() {
            return;
        }
        let queue = myself.clone();
        tokio::spawn(async move {
            for lease in &old {
                lease.renew().await;
            }
            for lease in old {
                match lease.is_gone().await {
                    // Where the queue is gone, so is the work.
                    Ok(true) => drop(queue.cast(Message::Gone(lease))),
                    Ok(false) => {}
                    Err(fault) => debug!(%fault, "whether an order still waits is not known"),
                }
            }
        });
    }

    fn stop(&mut self, run: &RunId, work: Option<&Work>) {
        let whole = format!("work.{}.{run}.", self.capability);
        let one = work.map(|work| subject::order(run, &self.capability, work));
        for in_hand in self.in_hand.values_mut() {
            let subject = in_hand.lease.subject();
            if one.as_ref().map_or_else(|| subject.starts_with(&whole), |one| subject == one) {
                info!(subject, "stopping work that is not wanted any more");
                in_hand.kill(KilledFor::Stop);
            }
        }
    }

    fn gone(&mut self, lease: &Arc<Lease>) {
        let mut in_hand = self.in_hand.values_mut();
        if let Some(in_hand) = in_hand.find(|in_hand| Arc::ptr_eq(&in_hand.lease, lease)) {
            info!(subject = lease.subject(), "stopping work whose order was withdrawn");
            in_hand.kill(KilledFor::Stop);
        }
    }

    fn drain(&mut self) {
        self.draining.cancel();
    }

    fn kill_all(&mut self, killed_for: KilledFor) {
        for in_hand in self.in_hand.values_mut() {
            info!(subject = in_hand.lease.subject(), "giving work in hand back");
            in_hand.kill(killed_for);
        }
    }

    fn puller_ended(&mut self, myself: &ActorRef<Message>) -> Result<(), ActorProcessingErr> {
        self.pulling = false;
        if !self.draining.is_cancelled() {
            return Err("the puller failed".into());
        }
        self.end_if_drained(myself);
        Ok(())
    }

    fn end_if_drained(&self, myself: &ActorRef<Message>) {
        if self.draining.is_cancelled() && !self.pulling && self.in_hand.is_empty() {
            myself.stop(None);
        }
    }
}

impl InHand {
    fn kill(&mut self, killed_for: KilledFor) {
        self.cancelled.cancel();
        // The first reason counts: work that is not wanted any more is never given back.
        self.killed_for.get_or_insert(killed_for);
        self.runner.kill();
    }
}
