//! Hosting work: one process that takes orders from queues, hands each to a handler and writes down what comes of it.
//! Workers and critics are this with different handlers. It owns leases, slots, journals, cancelling and draining; it
//! does not know what any work means.
//!
//! ```text
//! run ── Root                   beats, renewals and stops go out from here; restarts a queue that failed
//!        ├─ listener (a task)   what is stopped, on core NATS
//!        └─ Queue               one per capability: its slots, and what is in hand
//!           ├─ puller (a task)  asks for exactly as many orders as slots are free
//!           └─ Runner           one per order: claim, handle, write the outcome, acknowledge
//! ```
//! How each queue stands (whether it is open, what is in hand, what was counted) outlives the actor that serves it.
//!
//! A runner that panics takes nothing with it: the handler's own panics become outcomes, any other gives the order
//! back. A queue that fails loses what it has in hand, which comes back when its lease runs out.

mod args;
mod attempt;
mod pull;
mod puller;
mod queue;
mod reader;
mod root;
mod runner;
mod standing;

use futures::FutureExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use millrace_protocol::ids::{Capability, WorkerId};
use millrace_protocol::registry::{Beat, Role};
use millrace_protocol::result::{CapabilityDescription, TaskError};
use millrace_protocol::work::{Order, Outcome};
use ractor::{Actor, ActorRef};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use args::{HostArgs, document_cache, made_up_id};
pub use attempt::Attempt;
pub use reader::Reader;

use crate::bus::Bus;
use crate::health::Health;
use crate::{Fault, registry};
use standing::Standing;

/// Does the work of one queue. One value serves all orders of the process at once.
pub trait Handler: Send + Sync + 'static {
    /// The capability whose queue it serves, as the registry shows it.
    fn describe(&self) -> CapabilityDescription;

    /// Whether `me` may take this order; one it may not take goes back for another process.
    fn takes(&self, order: &Order, me: &WorkerId) -> bool {
        let _ = (order, me);
        true
    }

    /// Does the work. A panic becomes an error of kind `Panic`. The future is dropped at an await when the work is
    /// stopped.
    ///
    /// # Errors
    /// What the attempt is to end with instead of a result.
    fn run<'a>(&'a self, attempt: &'a mut Attempt) -> BoxFuture<'a, Result<Outcome, TaskError>>;
}

/// A queue to serve.
pub struct Service {
    /// Who does the work.
    pub handler: Arc<dyn Handler>,
    /// How many orders it may have in hand at once, at least 1.
    pub slots: u32,
}

/// What a process hosts.
pub struct Hosting {
    /// What the process is called in journals and in the registry.
    pub id: WorkerId,
    /// Its role.
    pub role: Role,
    /// The queues it serves.
    pub services: Vec<Service>,
    /// How long work in hand may go on after the process was told to stop.
    pub grace: Duration,
    /// Where it says how it is.
    pub health: Health,
}

/// Why a process can't host.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster can't be used.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// There is nothing to serve.
    #[error("nothing to do: no capability with a slot is offered; name at least one, with 1 slot or more")]
    NothingToDo,
    /// Two handlers for one queue.
    #[error("the capability {0} is offered twice; give one of them another name")]
    Twice(Capability),
    /// It failed again and again.
    #[error("the process gives up: {0}")]
    Crashed(String),
}

/// How long what is left after the grace may take: giving orders back and saying goodbye.
pub const GOODBYE: Duration = Duration::from_secs(5);

/// How long a process that starts waits before it says again what it offers.
const ANNOUNCE_AGAIN: Duration = Duration::from_millis(500);

/// What the actors of a process share.
struct Shared {
    bus: Bus,
    id: WorkerId,
    health: Health,
    /// How each queue stands, by its capability.
    standings: BTreeMap<Capability, Arc<Standing>>,
    /// How many orders were no orders.
    garbage: AtomicU64,
}

/// Ends everything where the future of [`run`] is dropped: what is in hand then comes back when its lease runs out.
struct EndOnDrop(ActorRef<root::Message>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// Serves the queues until `shutdown` is cancelled, then lets work in hand end within the grace and gives the rest
/// back. Dropping the future ends it at once, as a crash would.
///
/// # Errors
/// There is nothing to do, the cluster can't be used at the start, or the process failed again and again.
pub fn run<'a>(
    bus: &'a Bus,
    hosting: Hosting,
    shutdown: CancellationToken,
) -> BoxFuture<'a, Result<(), Error>> {
    async move {
        let Hosting { id, role, services, grace, health } = hosting;
        check(&services)?;
        let names: Vec<String> = services
            .iter()
            .map(|service| format!("{}:{}", service.handler.describe().name, service.slots))
            .collect();
        let slots = services
            .iter()
            .map(|service| (service.handler.describe().name, service.slots))
            .collect::<Vec<_>>();
        let standings = standing::all(&slots);
        let standing = standings.clone();
        health.add("capabilities", move || standing::check(&standing));
        let beat = first_beat(id.clone(), role, slots);
        if !announce(bus, &services, &beat, &shutdown).await? {
            return Ok(());
        }
        standings.values().for_each(|standing| standing.registered());
        let shared = Arc::new(Shared { bus: bus.clone(), id, health, standings, garbage: AtomicU64::new(0) });
        let arguments = root::Arguments { shared, services, beat: beat.clone(), grace };
        let (root, mut ended) = Actor::spawn(None, root::Root, arguments)
            .await
            .map_err(|error| Error::Crashed(error.to_string()))?;
        let root = EndOnDrop(root);
        info!(id = %beat.id, capabilities = names.join(" "), "ready");
        let outcome = tokio::select! {
            _ = &mut ended => Err(Error::Crashed("its queues failed too often; the log says why".into())),
            () = shutdown.cancelled() => {
                info!(grace = ?grace, "letting work in hand end");
                // It is gone already if this fails, and then there is nothing to drain.
                drop(root.0.cast(root::Message::Drain));
                if tokio::time::timeout(grace + GOODBYE, &mut ended).await.is_err() {
                    warn!("work in hand could not be given back in time; it comes back by itself");
                }
                Ok(())
            }
        };
        drop(root);
        if let Err(fault) = registry::leave(bus, &beat).await {
            warn!(%fault, "could not leave the registry; it forgets by itself");
        }
        bus.flush().await;
        outcome
    }
    .boxed()
}

/// Says what is offered and that we live, again and again while the server does not answer. `false` if it was time to stop
/// before that came through: nothing is in hand then.
async fn announce(
    bus: &Bus,
    services: &[Service],
    beat: &Beat,
    shutdown: &CancellationToken,
) -> Result<bool, Fault> {
    let said = async {
        loop {
            match say(bus, services, beat).await {
                Err(fault) if fault.is_transient() => {
                    warn!(%fault, "could not say what is offered here; trying again");
                    tokio::time::sleep(ANNOUNCE_AGAIN).await;
                }
                said => return said,
            }
        }
    };
    tokio::select! {
        said = said => said.map(|()| true),
        () = shutdown.cancelled() => Ok(false),
    }
}

async fn say(bus: &Bus, services: &[Service], beat: &Beat) -> Result<(), Fault> {
    for service in services {
        registry::register(bus, &service.handler.describe()).await?;
    }
    registry::beat(bus, beat).await
}

fn check(services: &[Service]) -> Result<(), Error> {
    if services.is_empty() || services.iter().any(|service| service.slots == 0) {
        return Err(Error::NothingToDo);
    }
    let mut names = std::collections::BTreeSet::new();
    match services
        .iter()
        .map(|service| service.handler.describe().name)
        .find(|name| !names.insert(name.clone()))
    {
        Some(twice) => Err(Error::Twice(twice)),
        None => Ok(()),
    }
}

fn first_beat(id: WorkerId, role: Role, slots: Vec<(Capability, u32)>) -> Beat {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_else(|| "unknown".into());
    Beat {
        id,
        role,
        host: host.trim().to_owned(),
        pid: std::process::id(),
        started: jiff::Timestamp::now(),
        slots,
        busy: 0,
        busy_with: Vec::new(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

impl Shared {
    /// Counts an order that is none.
    fn count_garbage(&self) -> u64 {
        self.garbage.fetch_add(1, Ordering::Relaxed) + 1
    }
}
