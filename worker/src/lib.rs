//! Workers: processes that offer capabilities and carry tasks out. It owns the interface that a capability is written
//! against and the built-in capabilities; queues, leases, journals and draining are `millrace_runtime::host`'s.
//!
//! A worker of one's own is a `main` with a list of capabilities:
//!
//! ```no_run
//! # use millrace_worker::*;
//! # #[tokio::main]
//! # async fn main() -> Result<(), Error> {
//! let shout = capability("shout", "Repeats its objective in capitals.", |attempt| {
//!     Box::pin(async move { Ok(TaskResult { output: attempt.order().objective.to_uppercase(), ..TaskResult::default() }) })
//! });
//! let config = Config::new(Connection::with_environment("nats://127.0.0.1:4222"), vec![shout]);
//! run(config, on_signals()?).await
//! # }
//! ```

pub mod agent;
mod args;
mod attempt;
pub mod builtin;
mod capability;
mod command;
pub mod file;
mod hosted;
mod http;
mod outside;
mod servers;
mod shelf;

use futures::FutureExt;
use futures::future::BoxFuture;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use agent::{Agent, AgentError};
pub use args::Args;
pub use attempt::Attempt;
pub use capability::{Capability, Outcome, capability};
pub use millrace_agent::corpus::Corpus;
pub use millrace_agent::desk::Preferences;
pub use millrace_agent::spec::AnswerForm;
pub use millrace_agent::tool::{Effect, Tool, ToolError, typed as tool};
pub use millrace_agent::turn::{Limits, Spent};
pub use millrace_protocol::ids::WorkerId;
pub use millrace_protocol::plan::{Review, ReviewCheck};
pub use millrace_protocol::result::{
    CapabilityDescription, ErrorKind, Proposal, Quotation, Source, SourceKind, TaskError, TaskResult, Usage,
};
pub use millrace_protocol::work::{Input, Order};
pub use millrace_runtime::shutdown::{block_on, on_signals};
pub use millrace_runtime::{Connection, telemetry};
pub use shelf::launcher;
pub use tokio_util::sync::CancellationToken;

use millrace_agent::desk::{Desk, Settings};
use millrace_agent::model::{OpenError, Opener};
use millrace_models::choice::EmptyName;
use millrace_protocol::registry::Role;
use millrace_runtime::health::{Health, Page, ServeError};
use millrace_runtime::host::{self, Hosting, Service, document_cache, made_up_id};
use millrace_runtime::limits::Limiter;
use millrace_runtime::metrics::names::Process;
use millrace_runtime::{Bus, Fault};
use millrace_seat::{Counts, Limits as Gate};

use hosted::Hosted;

/// How long a cluster that is only just being made is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a worker needs to know.
pub struct Config {
    /// Where the cluster is and who asks.
    pub connection: Connection,
    /// The worker's name, unique in the cluster; `None` makes one up.
    pub id: Option<WorkerId>,
    /// What it offers.
    pub capabilities: Vec<Arc<dyn Capability>>,
    /// How many attempts of each capability it works on at once, at least 1.
    pub slots: u32,
    /// How long attempts may go on after it was told to stop.
    pub grace: Duration,
    /// The folder in which documents and their indices are kept; `None` keeps them in memory only.
    pub document_cache: Option<PathBuf>,
    /// The models of agents where neither the run nor the capability names one; none is what the environment asks
    /// for, and else `builtin:extractive`.
    pub models: Preferences,
    /// The file in which requests to models and their replies are kept; `None` keeps none.
    pub record: Option<PathBuf>,
    /// Where it serves `/livez`, `/readyz` and `/metrics`; nowhere if there is none.
    pub http: Option<SocketAddr>,
}

impl Config {
    /// A worker with 8 slots for each capability, 20 s of grace and the platform's cache folder.
    #[must_use]
    pub fn new(connection: Connection, capabilities: Vec<Arc<dyn Capability>>) -> Self {
        Self {
            connection,
            id: None,
            capabilities,
            slots: 8,
            grace: Duration::from_secs(20),
            document_cache: Some(document_cache()),
            models: Preferences::default(),
            record: None,
            http: None,
        }
    }
}

/// Why a worker can't work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster can't be used.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// It offers nothing or failed.
    #[error(transparent)]
    Host(#[from] host::Error),
    /// It can't say how it is.
    #[error(transparent)]
    Http(#[from] ServeError),
    /// A model that was named can't be used.
    #[error(transparent)]
    Model(#[from] OpenError),
    /// The text of `--model` names none.
    #[error(transparent)]
    NoModel(#[from] EmptyName),
    /// A capability that was named can't be offered.
    #[error(transparent)]
    Capability(#[from] file::FileError),
    /// Signals can't be listened to.
    #[error("signals can't be listened to: {0}")]
    Signals(#[from] std::io::Error),
}

/// Works until `shutdown` is cancelled and what is in hand has ended or was given back.
///
/// # Errors
/// The cluster can't be used, nothing is offered, or the worker failed again and again.
pub fn run(config: Config, shutdown: CancellationToken) -> BoxFuture<'static, Result<(), Error>> {
    async move {
        let Config { connection, id, capabilities, slots, grace, document_cache, models, record, http } =
            config;
        // What is wrong with the models is said before the cluster is waited for.
        let opener = Opener { record, ..Opener::default() };
        let settings = Settings { models, opener, cache: document_cache };
        check(&Desk::new(settings.clone())?, &capabilities)?;
        let id = id.unwrap_or_else(|| made_up_id("worker"));
        let health = Health::new(shutdown.clone());
        let mut page = Page::open(http, Process::Worker, health.clone()).await?;
        let joining = Bus::join(&connection, id.as_str(), PATIENCE);
        let Some(bus) = page.join(joining).await? else { return Ok(()) };
        let named = capabilities.iter().filter_map(|capability| capability.model());
        Counts::expect(named.chain(&settings.models.general).chain(settings.models.own.values()));
        let gate = Arc::new(Gate(Limiter::new(&bus)));
        let opener = Opener { gate, observer: Arc::new(Counts), ..settings.opener };
        let desk = Arc::new(Desk::new(Settings { opener, ..settings })?);
        let services = capabilities.into_iter().map(|capability| {
            let slots = capability.slots().unwrap_or(slots);
            let handler = Arc::new(Hosted::new(capability, desk.clone()));
            Service { handler, slots }
        });
        let hosting = Hosting { id, role: Role::Worker, services: services.collect(), grace, health };
        Ok(host::run(&bus, hosting, shutdown).await?)
    }
    .boxed()
}

fn check(desk: &Desk, capabilities: &[Arc<dyn Capability>]) -> Result<(), OpenError> {
    capabilities.iter().filter_map(|capability| capability.model()).try_for_each(|choice| desk.check(choice))
}
