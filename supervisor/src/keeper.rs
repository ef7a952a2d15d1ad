//! Who owns which lane. A loop that says that we are there, learns who else is, takes the lanes that fall to us,
//! renews their leases and gives back what falls to others; it starts and stops the lanes' owners. It also learns what
//! the cluster can do and passes that on.
//!
//! It waits for the server freely: owners watch their leases' age by themselves.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::{Lane, WorkerId};
use millrace_protocol::plan::Cluster;
use millrace_protocol::registry::{Beat, Role};
use millrace_runtime::health::Health;
use millrace_runtime::lease::{Lease, Share};
use millrace_runtime::{Bus, Fault, registry};
use ractor::{Actor, ActorCell, ActorRef};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::lane::{Arguments, Known, LaneOwner, Message};
use crate::queues;
use crate::standing::{LaneStanding, Standing};

/// How long a lane's owner may take to finish what it appends when it is stopped.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// How long it may take to hand all lanes on at the end: a server that is away is not waited for.
const GOODBYE: Duration = Duration::from_secs(8);
/// How often it is learnt what the cluster can do.
const LEARN: Duration = Duration::from_secs(1);
/// How long it may take to read a bucket: while that is waited for, no lease is renewed.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often we say to everybody that we live.
const BEAT: Duration = Duration::from_secs(3);
/// How long a lane whose owner died is left alone, so that one that can't be read does not spin.
const AFTER_DEATH: Duration = Duration::from_millis(500);

/// The loop and what it holds.
pub struct Keeper {
    bus: Bus,
    me: WorkerId,
    share: Share,
    root: ActorCell,
    linger: Duration,
    held: HashMap<Lane, Held>,
    known: watch::Sender<Arc<Known>>,
    /// Lanes whose owners died, and until when they are left alone.
    resting: HashMap<Lane, tokio::time::Instant>,
    started: jiff::Timestamp,
    health: Health,
    standing: Arc<Standing>,
}

struct Held {
    lease: watch::Sender<Lease>,
    owner: ActorRef<Message>,
    standing: Arc<LaneStanding>,
}

impl Keeper {
    /// Opens what it needs.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn open(
        bus: &Bus,
        me: WorkerId,
        root: ActorCell,
        linger: Duration,
        health: Health,
        standing: Arc<Standing>,
    ) -> Result<Self, Fault> {
        let share = Share::open(bus, me.clone()).await?;
        let (known, _) = watch::channel(Arc::new(learn(bus).await?));
        Ok(Self {
            bus: bus.clone(),
            me,
            share,
            root,
            linger,
            held: HashMap::new(),
            known,
            resting: HashMap::new(),
            started: jiff::Timestamp::now(),
            health,
            standing,
        })
    }

    /// Runs until `stop`, then hands all lanes on. `dead` says whose owner has died.
    pub async fn run(mut self, stop: CancellationToken, mut dead: mpsc::UnboundedReceiver<ractor::ActorId>) {
        let lease = Duration::from_millis(self.bus.settings().lane_lease_ms);
        let mut rounds =
            tokio::time::interval((lease / 8).clamp(Duration::from_millis(50), Duration::from_millis(250)));
        let mut learning = tokio::time::interval(LEARN);
        let mut beating = tokio::time::interval(BEAT);
        for interval in [&mut rounds, &mut learning, &mut beating] {
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        }
        let queues = tokio::spawn(queues::keep(self.bus.clone(), self.known.subscribe()));
        loop {
            self.health.beat();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(id) = dead.recv() => or_stopped(&stop, self.bury(id)).await,
                _ = rounds.tick() => or_stopped(&stop, self.round()).await,
                _ = learning.tick() => or_stopped(&stop, self.learn()).await,
                _ = beating.tick() => or_stopped(&stop, self.beat()).await,
            }
        }
        queues.abort();
        if tokio::time::timeout(GOODBYE, Box::pin(self.leave())).await.is_err() {
            warn!("the lanes could not be handed on in time; their leases run out by themselves");
        }
    }

    async fn round(&mut self) {
        if let Err(fault) = self.try_round().await {
            debug!(%fault, "could not look after the lanes; trying again");
        }
    }

    async fn try_round(&mut self) -> Result<(), Fault> {
        self.renew().await?;
        let members = within("the supervisors", self.share.join()).await?;
        let wanted = self.share.wanted(&members);
        let unwanted: Vec<Lane> = self.held.keys().filter(|lane| !wanted.contains(lane)).copied().collect();
        for lane in unwanted {
            info!(%lane, "another supervisor is to have this lane");
            self.give_up(lane, true).await;
        }
        self.resting.retain(|_, until| *until > tokio::time::Instant::now());
        let missing: BTreeSet<Lane> = wanted
            .iter()
            .filter(|lane| !self.held.contains_key(lane) && !self.resting.contains_key(lane))
            .copied()
            .collect();
        for lane in missing {
            if let Some(lease) = self.share.take(lane).await? {
                self.start(lane, lease).await;
            }
        }
        self.standing.settled(&wanted);
        Ok(())
    }

    async fn renew(&mut self) -> Result<(), Fault> {
        let lanes: Vec<Lane> = self.held.keys().copied().collect();
        for lane in lanes {
            self.health.beat();
            let Some(held) = self.held.get(&lane) else { continue };
            let mut lease = held.lease.borrow().clone();
            if self.share.renew(&mut lease).await? {
                held.lease.send_replace(lease);
            } else {
                warn!(%lane, "the lease was lost; stepping down");
                held.standing.lost();
                self.give_up(lane, false).await;
            }
        }
        Ok(())
    }

    async fn start(&mut self, lane: Lane, lease: Lease) {
        let (lease, leased) = watch::channel(lease);
        let standing = self.standing.take(lane);
        let arguments = Arguments {
            bus: self.bus.clone(),
            lane,
            me: self.me.clone(),
            lease: leased,
            known: self.known.subscribe(),
            linger: self.linger,
            standing: standing.clone(),
        };
        match Actor::spawn_linked(None, LaneOwner, arguments, self.root.clone()).await {
            Ok((owner, _)) => {
                self.held.insert(lane, Held { lease, owner, standing });
            }
            Err(error) => {
                self.standing.leave(lane);
                warn!(%lane, %error, "the lane's owner did not start");
            }
        }
    }

    /// Stops a lane's owner, and gives the lease back where it is still ours.
    async fn give_up(&mut self, lane: Lane, is_ours: bool) {
        self.health.beat();
        let Some(held) = self.held.remove(&lane) else { return };
        self.standing.leave(lane);
        if held.owner.stop_and_wait(None, Some(STOP_PATIENCE)).await.is_err() {
            held.owner.kill();
        }
        let lease = held.lease.borrow().clone();
        if is_ours && let Err(fault) = self.share.give_back(&lease).await {
            debug!(%lane, %fault, "a lease could not be given back; it runs out by itself");
        }
    }

    /// An owner has died: its lane is given back, and taken again if it still falls to us.
    async fn bury(&mut self, id: ractor::ActorId) {
        let dead = self.held.iter().find(|(_, held)| held.owner.get_id() == id).map(|(lane, _)| *lane);
        if let Some(lane) = dead {
            self.resting.insert(lane, tokio::time::Instant::now() + AFTER_DEATH);
            self.standing.fell(lane);
            self.give_up(lane, true).await;
        }
    }

    async fn learn(&mut self) {
        match within("what the cluster can do", learn(&self.bus)).await {
            Ok(known) => {
                self.known.send_if_modified(|old| {
                    let is_new = **old != known;
                    if is_new {
                        *old = Arc::new(known);
                    }
                    is_new
                });
            }
            Err(fault) => debug!(%fault, "could not learn what the cluster can do"),
        }
    }

    fn sign(&self) -> Beat {
        Beat {
            id: self.me.clone(),
            role: Role::Supervisor,
            host: millrace_runtime::registry::host(),
            pid: std::process::id(),
            started: self.started,
            slots: Vec::new(),
            busy: u32::try_from(self.held.len()).unwrap_or(u32::MAX),
            busy_with: Vec::new(),
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }

    async fn beat(&self) {
        if let Err(fault) = registry::beat(&self.bus, &self.sign()).await {
            debug!(%fault, "a sign of life was lost");
        }
    }

    async fn leave(mut self) {
        let lanes: Vec<Lane> = self.held.keys().copied().collect();
        for lane in lanes {
            self.give_up(lane, true).await;
        }
        for left in [self.share.leave().await, registry::leave(&self.bus, &self.sign()).await] {
            if let Err(fault) = left {
                debug!(%fault, "could not say that we are gone");
            }
        }
        self.bus.flush().await;
    }
}

/// Does something that the server answers; it is given up where that takes long after it was time to stop.
async fn or_stopped(stop: &CancellationToken, work: impl Future<Output = ()>) {
    let stopped = async {
        stop.cancelled().await;
        tokio::time::sleep(STOP_PATIENCE).await;
    };
    tokio::select! {
        () = work => {}
        () = stopped => debug!("it is time to stop; what was being done is left"),
    }
}

/// Waits for what is read of a bucket, as long as leases can wait to be renewed.
async fn within<T>(what: &str, reading: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let late = |_| Err(Fault::unavailable(what, "no answer in time"));
    tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(late)
}

async fn learn(bus: &Bus) -> Result<Known, Fault> {
    let mut cluster = Cluster::of(registry::capabilities(bus).await?.values());
    let mut slots = BTreeMap::new();
    for (capability, free) in registry::beats(bus).await?.into_iter().flat_map(|beat| beat.slots) {
        *slots.entry(capability).or_default() += usize::try_from(free).unwrap_or(usize::MAX);
    }
    slots.iter().for_each(|(capability, slots)| cluster.set_slots(capability, *slots));
    Ok(Known { cluster, slots })
}
