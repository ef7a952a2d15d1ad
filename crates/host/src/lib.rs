//! Hosting work: a process that pulls orders from queues, passes each to a handler, and appends its outcome. Workers and
//! critics are hosts with different handlers. This crate owns leases, slots, journals, cancellation and draining, and gives agents
//! what they need of the cluster; it does not know what the work means.
//!
//! ```text
//! serve_queues ── HostRoot           heartbeats, lease renewals, stops; restarts failed queues
//!        ├─ stop listener (a task)   subscribes to stops
//!        └─ QueueActor               one per capability: its slots and the orders in flight
//!           ├─ SlotFiller (a task)   requests exactly as many orders as slots are free
//!           └─ OrderRunner (a task)  one per order: claim, run the handler, append the outcome, acknowledge
//! ```
//! The status of a queue (`queue_status`) outlives the actor that serves it.
//!
//! A panic in a runner affects one order only: a panic of the handler becomes its outcome, any other returns the order
//! to the queue. A queue actor that fails loses its orders in flight, which are redelivered when their leases expire.
//!
//! | interface | implemented by | backed by |
//! |---|---|---|
//! | `agent::turn::Host` | [`AttemptContext`] | the attempt's journal in the log, the blob store |
//! | `agent::sources::OrderInputs` | [`ClusterReader`] | the log, the blob store, the registry |
//! | `agent::files::Files` | [`NatsFiles`] | the run's workspace |
//! | `models::RateLimiter` | [`NatsRateLimiter`] | the cluster's rate limits |
//! | `models::RequestObserver` | [`ModelMetrics`] | the process's metrics page |
//! | `agent::model::DeltaListener` | [`LiveOutputStream`] | core NATS, for `millrace watch` |

mod attempt;
mod files;
mod live_stream;
mod models;
mod order_lease;
mod program;
mod pull;
mod queue_actor;
mod queue_status;
mod reader;
mod root;
mod runner;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::ids::{Capability, WorkerId};
use millrace_protocol::registry::{Heartbeat, ProcessRole};
use millrace_protocol::result::{CapabilityDescription, TaskError};
use millrace_protocol::work::{Order, WorkOutcome};
use millrace_runtime::ops::health::Health;
use millrace_runtime::program::ProgramError;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault};
use ractor::{Actor, ActorRef};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use attempt::AttemptContext;
pub use files::NatsFiles;
pub use live_stream::LiveOutputStream;
pub use models::{ModelMetrics, NatsRateLimiter};
pub use program::{AgentHostConfig, HostArgs, default_document_cache, new_random_process_id, run_agent_role};
pub use reader::ClusterReader;

use queue_status::QueueStatus;

/// Does the work of one queue. One value serves all concurrent orders of the process.
pub trait OrderHandler: Send + Sync + 'static {
    /// Returns the description, for the registry, of the capability whose queue this handler serves.
    fn describe_capability(&self) -> CapabilityDescription;

    /// `true` if this process may take the order; otherwise it is returned to the queue for another process.
    fn accepts_order(&self, order: &Order, process: &WorkerId) -> bool {
        let _ = (order, process);
        true
    }

    /// Runs an attempt. A panic becomes an error of kind `Panic`. The future is dropped at an await when the work is
    /// stopped.
    ///
    /// # Errors
    /// The error with which the attempt ends instead of a result.
    fn run_attempt<'a>(
        &'a self,
        attempt: &'a mut AttemptContext,
    ) -> BoxFuture<'a, Result<WorkOutcome, TaskError>>;
}

/// A queue that a process serves.
pub struct HostedHandler {
    pub handler: Arc<dyn OrderHandler>,
    /// The maximum number of concurrent orders, at least 1.
    pub slots: u32,
}

/// The configuration of a host.
pub struct HostConfig {
    /// The id of the process in journals and heartbeats.
    pub id: WorkerId,
    pub role: ProcessRole,
    /// The queues that it serves.
    pub services: Vec<HostedHandler>,
    /// The grace period for work in flight after a shutdown was requested.
    pub grace: Duration,
    pub health: Health,
}

/// The error of a failed host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The cluster can't be used.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// There is no queue to serve, or one without a slot.
    #[error(
        "nothing to do: no capability, or one without a slot; configure at least one, with 1 slot or more each"
    )]
    NothingToDo,
    /// Two handlers for one queue.
    #[error("the capability {0} is configured twice; rename one of them")]
    Duplicate(Capability),
    /// Its actors failed too often.
    #[error("the process failed: {0}")]
    Crashed(String),
}

impl From<HostError> for ProgramError {
    fn from(error: HostError) -> Self {
        match error {
            HostError::NothingToDo | HostError::Duplicate(_) => Self::refused_input(error),
            HostError::Fault(_) | HostError::Crashed(_) => Self::bad_environment(error),
        }
    }
}

/// The time for a shutdown after the grace period: returning orders and removing the heartbeat.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval at which a starting process retries its registration.
const REGISTER_RETRY: Duration = Duration::from_millis(500);

/// State that the actors of a process share.
struct HostContext {
    bus: Bus,
    id: WorkerId,
    health: Health,
    /// The status of each queue, by capability.
    statuses: BTreeMap<Capability, Arc<QueueStatus>>,
    /// The number of invalid orders.
    invalid_orders: AtomicU64,
    /// The check for orders whose decision is not in the log.
    order_check: order_lease::OrderCheck,
    log_limit: Arc<runner::AttemptLogLimit>,
}

/// Kills the root actor when the future of [`serve_queues`] is dropped; orders in flight are redelivered when their leases
/// expire.
struct KillRootOnDrop(ActorRef<root::HostRootMessage>);

impl Drop for KillRootOnDrop {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// Serves the queues until `shutdown` is cancelled, then waits for work in flight within the grace period and returns
/// the rest to the queue. Dropping the future stops everything at once, like a crash.
///
/// # Errors
/// There is no queue to serve, the cluster can't be used at the start, or the actors failed too often.
pub fn serve_queues<'a>(
    bus: &'a Bus,
    config: HostConfig,
    shutdown: CancellationToken,
) -> BoxFuture<'a, Result<(), HostError>> {
    async move {
        let HostConfig { id, role, services, grace, health } = config;
        check_handlers(&services)?;
        let slots: Vec<(Capability, u32)> = services
            .iter()
            .map(|service| (service.handler.describe_capability().name, service.slots))
            .collect();
        let labels: Vec<String> = slots.iter().map(|(name, slots)| format!("{name}:{slots}")).collect();
        let statuses = queue_status::new_queue_statuses(&slots);
        let checked = statuses.clone();
        health.add_readiness_check("capabilities", move || queue_status::check_all_queues_ready(&checked));
        let heartbeat = build_first_heartbeat(id.clone(), role, slots);
        if !register_with_retries(bus, &services, &heartbeat, &shutdown).await? {
            return Ok(());
        }
        statuses.values().for_each(|status| status.set_registered());
        let log_limit = Arc::new(runner::AttemptLogLimit::new(Instant::now()));
        let shared = Arc::new(HostContext {
            bus: bus.clone(),
            id,
            health,
            statuses,
            invalid_orders: AtomicU64::new(0),
            order_check: order_lease::OrderCheck::default(),
            log_limit: Arc::clone(&log_limit),
        });
        let arguments = root::HostRootArguments { shared, services, heartbeat: heartbeat.clone(), grace };
        let (root, mut terminated) = Actor::spawn(None, root::HostRoot, arguments)
            .await
            .map_err(|error| HostError::Crashed(error.to_string()))?;
        let root = KillRootOnDrop(root);
        info!(id = %heartbeat.id, capabilities = labels.join(" "), "ready");
        let outcome = tokio::select! {
            _ = &mut terminated => Err(HostError::Crashed("its queues failed too often; see the log".into())),
            () = shutdown.cancelled() => {
                info!(grace = ?grace, "stopping; waiting for work in flight");
                // This fails only if the actor has terminated already.
                drop(root.0.cast(root::HostRootMessage::Drain));
                if tokio::time::timeout(grace + SHUTDOWN_TIMEOUT, &mut terminated).await.is_err() {
                    warn!("returning work in flight timed out; it is redelivered when its leases expire");
                }
                Ok(())
            }
        };
        drop(root);
        log_limit.report_left_out();
        if let Err(fault) = registry::remove_heartbeat(bus, &heartbeat).await {
            warn!(%fault, "removing the heartbeat failed; it expires by itself");
        }
        bus.flush_client().await;
        outcome
    }
    .boxed()
}

/// Registers the capabilities and sends the first heartbeat, with retries. Returns `false` if a shutdown was requested
/// before that succeeded.
async fn register_with_retries(
    bus: &Bus,
    services: &[HostedHandler],
    heartbeat: &Heartbeat,
    shutdown: &CancellationToken,
) -> Result<bool, Fault> {
    let registration = async {
        loop {
            match register_capabilities(bus, services, heartbeat).await {
                Err(fault) if fault.is_transient() => {
                    warn!(%fault, "registration failed; retrying");
                    tokio::time::sleep(REGISTER_RETRY).await;
                }
                result => return result,
            }
        }
    };
    tokio::select! {
        result = registration => result.map(|()| true),
        () = shutdown.cancelled() => Ok(false),
    }
}

async fn register_capabilities(
    bus: &Bus,
    services: &[HostedHandler],
    heartbeat: &Heartbeat,
) -> Result<(), Fault> {
    for service in services {
        registry::register_capability(bus, &service.handler.describe_capability()).await?;
    }
    registry::send_heartbeat(bus, heartbeat).await
}

fn check_handlers(services: &[HostedHandler]) -> Result<(), HostError> {
    if services.is_empty() || services.iter().any(|service| service.slots == 0) {
        return Err(HostError::NothingToDo);
    }
    let mut names = std::collections::BTreeSet::new();
    match services
        .iter()
        .map(|service| service.handler.describe_capability().name)
        .find(|name| !names.insert(name.clone()))
    {
        Some(name) => Err(HostError::Duplicate(name)),
        None => Ok(()),
    }
}

fn build_first_heartbeat(id: WorkerId, role: ProcessRole, slots: Vec<(Capability, u32)>) -> Heartbeat {
    Heartbeat {
        id,
        role,
        host: registry::host_name(),
        pid: std::process::id(),
        started: jiff::Timestamp::now(),
        slots,
        busy: 0,
        busy_with: Vec::new(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        lanes: Vec::new(),
        suspended: None,
        last_problem: None,
    }
}

impl HostContext {
    /// Counts an invalid order and returns their number.
    fn count_invalid_order(&self) -> u64 {
        self.invalid_orders.fetch_add(1, Ordering::Relaxed) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_serve_is_a_refused_input_and_a_crash_is_not() {
        let twice = Capability::new("echo").unwrap();
        for (error, code) in [
            (HostError::NothingToDo, 2),
            (HostError::Duplicate(twice), 2),
            (HostError::Crashed("why".into()), 4),
        ] {
            assert_eq!(ProgramError::from(error).exit_code() as u8, code);
        }
    }
}
