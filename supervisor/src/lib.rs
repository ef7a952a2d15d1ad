//! The plan owner. Any number of supervisors share the lanes of a cluster; each folds its lanes, decides, and offers
//! work. It holds no model key, never waits for a model, and keeps nothing that is not in the log.
//!
//! ```text
//! Root                 restarts nothing by itself; tells the keeper who died
//! ├─ keeper (task)     membership, leases, what the cluster can do; starts and stops owners
//! │  └─ queues (task)  one for each capability that is known
//! └─ LaneOwner × n     one lane: fold, decide, append, offer; dies when it can't write
//!    ├─ reader (task)  the lane as it grows
//!    └─ tasks          appends, offers, refolds, closing: each sends its result back
//! ```

mod args;
mod closing;
mod keeper;
mod lane;
mod live;
mod order;
mod queues;
mod reader;
mod root;
mod standing;
mod window;

use futures::FutureExt;
use futures::future::BoxFuture;
use std::net::SocketAddr;
use std::time::Duration;

use millrace_protocol::ids::WorkerId;
use millrace_runtime::health::{Health, Page, ServeError};
use millrace_runtime::metrics::names::Process;
use millrace_runtime::topology::Wanted;
use millrace_runtime::{Bus, Connection, Fault};
use tokio_util::sync::CancellationToken;
use tracing::info;

pub use args::Args;
pub use live::LiveRun;
pub use reader::catch_up;
use standing::Standing;

/// What a supervisor needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// The cluster.
    pub connection: Connection,
    /// Its name among the supervisors; made up if there is none.
    pub id: Option<WorkerId>,
    /// What it expects of the cluster; the first to come fixes it.
    pub wanted: Wanted,
    /// How long a run stays in its lane after its end, for those who watch it.
    pub linger: Duration,
    /// Where it says how it is; nowhere if there is none.
    pub http: Option<SocketAddr>,
}

/// Why a supervisor ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster can't be used.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// It can't say how it is.
    #[error(transparent)]
    Http(#[from] ServeError),
    /// Signals can't be listened to.
    #[error("signals can't be listened to: {0}")]
    Signals(#[from] std::io::Error),
    /// The root actor could not be started or died.
    #[error("the supervisor's root actor failed: {0}")]
    Root(String),
}

/// Supervises until `shutdown`.
///
/// # Errors
/// The cluster can't be used, or the root actor died.
pub fn run(config: Config, shutdown: CancellationToken) -> BoxFuture<'static, Result<(), Error>> {
    async move {
        let me = config.id.unwrap_or_else(|| millrace_runtime::registry::made_id("supervisor"));
        let (health, standing) = (Health::new(shutdown.clone()), Standing::new());
        let looking = standing.clone();
        health.add("lanes", move || looking.check());
        let mut page = Page::open(config.http, Process::Supervisor, health.clone()).await?;
        let connecting = Bus::connect(&config.connection, me.as_str(), &config.wanted);
        let Some(bus) = page.join(connecting).await? else { return Ok(()) };
        let looking = page.is_served().then(|| tokio::spawn(standing.clone().look(bus.clone())));
        info!(id = %me, lanes = bus.settings().lanes, "supervising");
        let ended = root::run(bus, me, config.linger, shutdown, health, standing).await;
        looking.inspect(|looking| looking.abort());
        ended
    }
    .boxed()
}
