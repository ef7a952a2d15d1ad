//! The root of the supervision tree. It owns the keeper and is linked to the lanes' owners; when one dies it tells
//! the keeper, which starts another from the log. It dies with the keeper: without it nothing would be renewed.

use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::WorkerId;
use millrace_runtime::Bus;
use millrace_runtime::health::Health;
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::Error;
use crate::keeper::Keeper;
use crate::standing::Standing;

struct Root;

impl Actor for Root {
    type Msg = ();
    type State = mpsc::UnboundedSender<ActorId>;
    type Arguments = mpsc::UnboundedSender<ActorId>;

    async fn pre_start(
        &self,
        _myself: ActorRef<()>,
        dead: mpsc::UnboundedSender<ActorId>,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(dead)
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<()>,
        event: SupervisionEvent,
        dead: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let id = match &event {
            SupervisionEvent::ActorFailed(owner, error) => {
                warn!(%error, "a lane's owner died; another begins from the log");
                owner.get_id()
            }
            SupervisionEvent::ActorTerminated(owner, _, _) => owner.get_id(),
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => return Ok(()),
        };
        // The keeper ends before the root only at the very end.
        let _ = dead.send(id);
        Ok(())
    }
}

/// Runs the tree until `shutdown`.
pub(crate) async fn run(
    bus: Bus,
    me: WorkerId,
    linger: Duration,
    shutdown: CancellationToken,
    health: Health,
    standing: Arc<Standing>,
) -> Result<(), Error> {
    let (dead, buried) = mpsc::unbounded_channel();
    let root = Actor::spawn(None, Root, dead).await;
    let (root, ended) = root.map_err(|error| Error::Root(error.to_string()))?;
    let opening = Box::pin(Keeper::open(&bus, me, root.get_cell(), linger, health.clone(), standing));
    let kept = match health.until_told_to_stop(opening).await {
        Some(keeper) => tokio::spawn(keeper?.run(shutdown, buried)).await,
        None => Ok(()),
    };
    root.stop_children_and_wait(None, Some(Duration::from_secs(1))).await;
    root.stop(None);
    ended.await.map_err(|error| Error::Root(error.to_string()))?;
    kept.map_err(|error| Error::Root(error.to_string()))
}
