//! The supervisor: it owns the plans of runs. Any number of supervisors share the lanes of a cluster; each folds its
//! lanes, decides, and offers work. It has no model key, never waits for a model, and has no state that is not in the
//! log.
//!
//! ```text
//! SupervisionRoot            notifies the lane manager when a lane owner stops; restarts nothing itself
//! ├─ LaneManager (task)      membership, heartbeats, capability snapshot; acquires lanes, starts and stops lane owners
//! │  ├─ LeaseRenewal × n     renews the lease of one lane
//! │  └─ queues (task)        creates a queue for each registered capability
//! └─ LaneOwner × n (actors)  one lane each: fold, decide, append, offer; stops when it can't write
//!    ├─ follow (task)        reads new messages of the lane
//!    └─ other tasks          append, offer, refold, close: each sends its result to its owner
//! ```
//!
//! # Invariants
//!
//! - I11: If any process is killed at any moment, the run ends as if undisturbed, and no journaled step runs twice.
//!   (`tests/tests/chaos.rs::crashes_do_not_change_the_end_of_a_run`)
//! - I12: A log cut after any message leads to the same end.
//!   (`tests/tests/prefixes.rs::log_cut_after_any_message_recovers_to_the_same_end`)
//! - I49: Three machines with a server each: whichever is cut off, killed or restarted, a run ends as undisturbed.
//!   (`tests/tests/machines.rs::partitions_and_kills_on_three_machines_lose_no_task`)
//! - I116: A log of a waiting run, cut after any message, recovers to the same end: no question, sleep or event is lost or
//!   repeated. (`tests/tests/prefixes.rs::log_of_a_waiting_run_cut_after_any_message_recovers_to_the_same_end`)
//! - I132: A log of a run with children and grandchildren, cut after any message, recovers to the same end.
//!   (`tests/tests/prefixes.rs::log_of_a_run_with_children_cut_after_any_message_recovers_to_the_same_end`)
//! - I134: The loss of any role after any message of a waiting run changes neither its end nor the number of its waits, questions
//!   and children. (`tests/tests/kill_sweep.rs::kill_behind_any_append_changes_nothing`)

mod args;
mod closing;
mod lane;
mod lane_manager;
mod live;
mod order;
mod queues;
mod reader;
mod retention;
mod root;
mod session_turn;
mod status;
mod strays;

use futures::FutureExt;
use futures::future::BoxFuture;
use std::net::SocketAddr;
use std::time::Duration;

use millrace_protocol::ids::WorkerId;
use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::ops::health::Health;
use millrace_runtime::ops::metrics::names::ProcessKind;
use millrace_runtime::program::ClusterProgram;
use millrace_runtime::{Bus, ConnectionSettings};
use tokio_util::sync::CancellationToken;
use tracing::info;

pub use args::SupervisorArgs;
pub use live::{LiveRun, PendingInput, QueuedFact, RunMilestone, RunPhase};
pub use millrace_runtime::program::{ProgramError, run_program};
pub use reader::fold::{FoldedLane, fold_whole_lane};
pub use reader::outline::{fold_lane, fold_lane_without_journals};
use status::SupervisorStatus;

/// The configuration of a supervisor.
#[derive(Debug, Clone)]
pub struct SupervisorConfig {
    /// The address and credentials of the cluster.
    pub connection: ConnectionSettings,
    /// Its id among the supervisors; generated if `None`.
    pub id: Option<WorkerId>,
    /// The settings of the cluster; the first process that connects fixes them.
    pub wanted: ClusterOptions,
    /// The time that a run stays in its lane after its end, so that clients that watch it see the end.
    pub linger: Duration,
    /// The address of the health and metrics server; `None` serves none.
    pub http: Option<SocketAddr>,
}

/// Runs the supervisor that a command line asks for. See [`run_supervisor`].
pub async fn run_with_args(args: SupervisorArgs, shutdown: CancellationToken) -> Result<(), ProgramError> {
    run_supervisor(args.into_config(), shutdown).await
}

/// Runs a supervisor until `shutdown` is cancelled.
/// Errors: the cluster is unreachable or unusable, or the root actor failed.
pub fn run_supervisor(
    config: SupervisorConfig,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), ProgramError>> {
    async move {
        let me = config.id.unwrap_or_else(|| millrace_runtime::work::registry::new_process_id("supervisor"));
        let status = SupervisorStatus::new();
        let (health, checked) = (Health::new(shutdown.clone()), status.clone());
        health.add_readiness_check("lanes", move || checked.check_readiness());
        let mut program =
            ClusterProgram::open_with_health_checks(ProcessKind::Supervisor, config.http, health.clone())
                .await?;
        let connecting = Bus::connect_and_ensure_cluster(&config.connection, me.as_str(), &config.wanted);
        let Some(bus) = program.wait_for_connection(connecting).await? else { return Ok(()) };
        let lag_task = tokio::spawn(status.clone().measure_lag(bus.clone()));
        info!(id = %me, lanes = bus.settings().lanes, "supervising");
        let ended = root::run_supervision_tree(bus, me, config.linger, shutdown, health, status).await;
        lag_task.abort();
        ended
    }
    .boxed()
}
