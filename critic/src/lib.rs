//! Critics: processes that judge results. It owns the choice of the reviewer and what a reviewer may not do: judge its
//! own work. The programs of checks are confined by `millrace_tools`. Queues, leases, journals and draining are `millrace_runtime::host`'s.

mod args;
mod checks;
mod echo;
mod program;
mod review;

use futures::FutureExt;
use futures::future::BoxFuture;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millrace_agent::desk::{Desk, Preferences, Settings};
use millrace_agent::model::{OpenError, Opener};
use millrace_models::choice::EmptyName;
use millrace_protocol::ids::WorkerId;
use millrace_protocol::registry::Role;
use millrace_runtime::health::{Health, Page, ServeError};
use millrace_runtime::host::{self, Hosting, Service, document_cache, made_up_id};
use millrace_runtime::limits::Limiter;
use millrace_runtime::metrics::names::Process;
use millrace_runtime::{Bus, Connection, Fault};
use millrace_seat::{Counts, Limits};
use millrace_tools::execute::Launcher;
use tokio_util::sync::CancellationToken;

pub use args::Args;
pub use millrace_runtime::shutdown::{block_on, on_signals};
pub use millrace_runtime::telemetry;
pub use millrace_tools::execute::launcher;

use program::Programs;
use review::Critic;

/// How long a cluster that is only just being made is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a critic needs to know.
pub struct Config {
    /// Where the cluster is and who asks.
    pub connection: Connection,
    /// The critic's name, unique in the cluster; `None` makes one up.
    pub id: Option<WorkerId>,
    /// How many reviews it works on at once, at least 1.
    pub slots: u32,
    /// How long reviews may go on after it was told to stop.
    pub grace: Duration,
    /// The folder in which documents and their indices are kept; `None` keeps them in memory only.
    pub document_cache: Option<PathBuf>,
    /// The models of reviewers where a run names none; none is what the environment asks for, and else
    /// `builtin:extractive`.
    pub models: Preferences,
    /// The file in which requests to models and their replies are kept; `None` keeps none.
    pub record: Option<PathBuf>,
    /// The folders that the programs of checks may read, besides the system's own.
    pub check_folders: Vec<PathBuf>,
    /// What confines the programs of checks; `None` is this program, if its `main` began with [`launcher`], and else no
    /// such check can be made.
    pub launcher: Option<Launcher>,
    /// Where it serves `/livez`, `/readyz` and `/metrics`; nowhere if there is none.
    pub http: Option<SocketAddr>,
}

impl Config {
    /// A critic with 8 slots, 20 s of grace and the platform's cache folder.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self {
            connection,
            id: None,
            slots: 8,
            grace: Duration::from_secs(20),
            document_cache: Some(document_cache()),
            models: Preferences::default(),
            record: None,
            check_folders: Vec::new(),
            launcher: None,
            http: None,
        }
    }
}

/// Why a critic can't work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster can't be used.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// It failed.
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
    /// Signals can't be listened to.
    #[error("signals can't be listened to: {0}")]
    Signals(#[from] std::io::Error),
}

/// Judges until `shutdown` is cancelled and what is in hand has ended or was given back.
///
/// # Errors
/// The cluster can't be used, or the critic failed again and again.
pub fn run(config: Config, shutdown: CancellationToken) -> BoxFuture<'static, Result<(), Error>> {
    async move {
        let Config {
            connection,
            id,
            slots,
            grace,
            document_cache,
            models,
            record,
            check_folders,
            launcher,
            http,
        } = config;
        // What is wrong with the models is said before the cluster is waited for.
        let opener = Opener { record, ..Opener::default() };
        let settings = Settings { models, opener, cache: document_cache };
        drop(Desk::new(settings.clone())?);
        let id = id.unwrap_or_else(|| made_up_id("critic"));
        let health = Health::new(shutdown.clone());
        let mut page = Page::open(http, Process::Critic, health.clone()).await?;
        let joining = Bus::join(&connection, id.as_str(), PATIENCE);
        let Some(bus) = page.join(joining).await? else { return Ok(()) };
        Counts::expect(settings.models.general.iter().chain(settings.models.own.values()));
        let gate = Arc::new(Limits(Limiter::new(&bus)));
        let opener = Opener { gate, observer: Arc::new(Counts), ..settings.opener };
        let launcher = launcher.or_else(Launcher::this_program);
        let programs = Programs { launcher, folders: check_folders };
        let critic = Critic::new(Desk::new(Settings { opener, ..settings })?, programs);
        let services = vec![Service { handler: Arc::new(critic), slots }];
        let hosting = Hosting { id, role: Role::Critic, services, grace, health };
        Ok(host::run(&bus, hosting, shutdown).await?)
    }
    .boxed()
}
