//! The root of the supervision tree. It runs the lane manager and is linked to the lane owners. When an owner stops, it
//! notifies the manager, which starts a new one from the log. It ends with the manager: without it no lease is renewed.

use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::WorkerId;
use millrace_runtime::Bus;
use millrace_runtime::ops::health::Health;
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::ProgramError;
use crate::lane_manager::LaneManager;
use crate::status::SupervisorStatus;

struct SupervisionRoot;

impl Actor for SupervisionRoot {
    type Msg = ();
    type State = mpsc::UnboundedSender<ActorId>;
    type Arguments = mpsc::UnboundedSender<ActorId>;

    async fn pre_start(
        &self,
        _myself: ActorRef<()>,
        stopped_owners: mpsc::UnboundedSender<ActorId>,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(stopped_owners)
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<()>,
        event: SupervisionEvent,
        stopped_owners: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let id = match &event {
            SupervisionEvent::ActorFailed(owner, error) => {
                warn!(%error, "lane owner failed; restarting it from the log");
                owner.get_id()
            }
            SupervisionEvent::ActorTerminated(owner, _, _) => owner.get_id(),
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => return Ok(()),
        };
        // Only during shutdown does the manager end first.
        let _ = stopped_owners.send(id);
        Ok(())
    }
}

/// Runs the supervision tree until `shutdown`.
pub(crate) async fn run_supervision_tree(
    bus: Bus,
    me: WorkerId,
    linger: Duration,
    shutdown: CancellationToken,
    health: Health,
    status: Arc<SupervisorStatus>,
) -> Result<(), ProgramError> {
    let (stopped_owners, owner_stops) = mpsc::unbounded_channel();
    let root = Actor::spawn(None, SupervisionRoot, stopped_owners).await;
    let (root, ended) = root.map_err(|error| ProgramError::Root(error.to_string()))?;
    let opening = Box::pin(LaneManager::open(&bus, me, root.get_cell(), linger, health.clone(), status));
    let managed = match health.run_until_stopping(opening).await {
        Some(manager) => tokio::spawn(manager?.run_until_shutdown(shutdown, owner_stops)).await,
        None => Ok(()),
    };
    root.stop_children_and_wait(None, Some(Duration::from_secs(1))).await;
    root.stop(None);
    ended.await.map_err(|error| ProgramError::Root(error.to_string()))?;
    managed.map_err(|error| ProgramError::Root(error.to_string()))
}
