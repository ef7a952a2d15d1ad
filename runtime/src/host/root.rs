//! The root of a hosting process: an actor that starts a [`Queue`] per capability and restarts one that failed, passes
//! on what is stopped, and keeps the beat: signs of life and the renewal of leases. It dies when its queues fail too
//! often, and the process with it. It reads nothing at its start.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::Work;
use millrace_protocol::registry::Beat;
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tracing::{debug, error, warn};

use super::pull::pause;
use super::queue::{self, Queue};
use super::{Handler, Service, Shared};
use crate::queue::Stops;
use crate::registry;

/// How often the process says that it lives; three of them fit into the age of a beat.
const BEAT: Duration = Duration::from_secs(3);
/// This many failures of queues within [`WINDOW`] end the process.
const MAX_FAILURES: usize = 5;
const WINDOW: Duration = Duration::from_secs(30);

pub(super) struct Arguments {
    pub shared: Arc<Shared>,
    pub services: Vec<Service>,
    pub beat: Beat,
    pub grace: Duration,
}

pub(super) struct State {
    shared: Arc<Shared>,
    beat: Beat,
    grace: Duration,
    queues: HashMap<ActorId, Serving>,
    failures: Vec<Instant>,
    draining: bool,
    listener: tokio::task::JoinHandle<()>,
}

struct Serving {
    queue: ActorRef<queue::Message>,
    handler: Arc<dyn Handler>,
    slots: u32,
}

pub(super) enum Message {
    /// Time to say that we live.
    Beat,
    /// Time to renew leases.
    Renew,
    /// Work on a run, or one piece of it, is not wanted any more.
    Stop(RunId, Option<Work>),
    /// Take nothing more, and end when nothing is in hand.
    Drain,
    /// Work in hand has had its time.
    GraceOver,
}

pub(super) struct Root;

impl Actor for Root {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let Arguments { shared, services, beat, grace } = arguments;
        shared.health.beat();
        let third = Duration::from_millis((shared.bus.settings().work_lease_ms / 3).max(1));
        myself.send_interval(third, || Message::Renew);
        myself.send_interval(BEAT, || Message::Beat);
        let listener = tokio::spawn(listen(shared.clone(), myself.clone()));
        let queues = HashMap::new();
        let mut state =
            State { shared, beat, grace, queues, failures: Vec::new(), draining: false, listener };
        for Service { handler, slots } in services {
            state.serve(&myself, handler, slots).await?;
        }
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Beat => state.beat(),
            Message::Renew => state.tell_all(|| queue::Message::Renew),
            Message::Stop(run, work) => {
                state.tell_all(|| queue::Message::Stop(run.clone(), work.clone()));
            }
            Message::Drain => state.drain(&myself),
            Message::GraceOver => state.tell_all(|| queue::Message::GiveBack),
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
            SupervisionEvent::ActorTerminated(queue, _, _) => {
                state.ended(&myself, queue.get_id(), "it stopped").await
            }
            SupervisionEvent::ActorFailed(queue, error) => {
                state.ended(&myself, queue.get_id(), &error.to_string()).await
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => Ok(()),
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// Hears what is stopped and passes it on. A stop that is missed while the server is away is found out at the next
/// renewal or append.
async fn listen(shared: Arc<Shared>, root: ActorRef<Message>) {
    let mut tries = 0;
    loop {
        match Stops::listen(&shared.bus).await {
            Ok(mut stops) => {
                tries = 0;
                while let Some((run, work)) = stops.next().await {
                    if root.cast(Message::Stop(run, work)).is_err() {
                        return;
                    }
                }
            }
            Err(fault) => warn!(%fault, "stops are not heard; trying again"),
        }
        tries += 1;
        tokio::time::sleep(pause(tries)).await;
    }
}

impl State {
    async fn serve(
        &mut self,
        myself: &ActorRef<Message>,
        handler: Arc<dyn Handler>,
        slots: u32,
    ) -> Result<(), ActorProcessingErr> {
        let standing = self.shared.standings.get(&handler.describe().name);
        let standing = standing.ok_or("a capability has changed its name")?.clone();
        let arguments =
            queue::Arguments { shared: self.shared.clone(), standing, handler: handler.clone(), slots };
        let (queue, _) = Actor::spawn_linked(None, Queue, arguments, myself.get_cell()).await?;
        self.queues.insert(queue.get_id(), Serving { queue, handler, slots });
        Ok(())
    }

    fn tell_all(&self, message: impl Fn() -> queue::Message) {
        for serving in self.queues.values() {
            // One that is gone is restarted without anything in hand.
            drop(serving.queue.cast(message()));
        }
    }

    fn beat(&mut self) {
        self.shared.health.beat();
        let standings = self.shared.standings.iter();
        self.beat.busy_with = standings.map(|(name, standing)| (name.clone(), standing.busy())).collect();
        self.beat.busy = self.beat.busy_with.iter().map(|(_, busy)| busy).sum();
        let (shared, beat) = (self.shared.clone(), self.beat.clone());
        tokio::spawn(async move {
            if let Err(fault) = registry::beat(&shared.bus, &beat).await {
                debug!(%fault, "a sign of life was lost");
            }
        });
    }

    fn drain(&mut self, myself: &ActorRef<Message>) {
        self.draining = true;
        self.tell_all(|| queue::Message::Drain);
        myself.send_after(self.grace, || Message::GraceOver);
        self.end_if_drained(myself);
    }

    async fn ended(
        &mut self,
        myself: &ActorRef<Message>,
        id: ActorId,
        why: &str,
    ) -> Result<(), ActorProcessingErr> {
        let Some(Serving { handler, slots, .. }) = self.queues.remove(&id) else {
            return Ok(());
        };
        if self.draining {
            self.end_if_drained(myself);
            return Ok(());
        }
        let capability = handler.describe().name;
        error!(%capability, why, "the queue failed; starting it again");
        self.failures.retain(|failure| failure.elapsed() < WINDOW);
        self.failures.push(Instant::now());
        if self.failures.len() > MAX_FAILURES {
            return Err(format!("the queue of {capability} failed too often: {why}").into());
        }
        self.serve(myself, handler, slots).await
    }

    fn end_if_drained(&self, myself: &ActorRef<Message>) {
        if self.draining && self.queues.is_empty() {
            myself.stop(None);
        }
    }
}
