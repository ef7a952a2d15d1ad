//! A process that hosts agents: what workers and critics share around their services.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::model::{self, ModelFactory, ModelSelection};
use millrace_agent::session::{AgentHost, HostSettings, ModelPreferences};
use millrace_protocol::ids::WorkerId;
use millrace_protocol::registry::ProcessRole;
use millrace_runtime::ConnectionSettings;
use millrace_runtime::ops::metrics::names::ProcessKind;
use millrace_runtime::program::{ClusterProgram, ProgramError};
use millrace_runtime::store::rate_limits::ClusterRateLimiter;
use millrace_runtime::work::host::{
    self, HostArgs, HostConfig, HostedHandler, default_document_cache, new_random_process_id,
};
use tokio_util::sync::CancellationToken;

use crate::{ModelMetrics, NatsRateLimiter};

/// The configuration of a process that hosts agents.
pub struct AgentHostConfig {
    /// The address of the cluster and the credentials.
    pub connection: ConnectionSettings,
    /// The name of the process, unique in the cluster; `None` generates one.
    pub id: Option<WorkerId>,
    /// The number of orders of each queue in flight at once, at least 1.
    pub slots: u32,
    /// The time that work in flight may continue after shutdown was requested.
    pub grace: Duration,
    /// The folder in which documents and their indices are cached; `None` keeps them in memory only.
    pub document_cache: Option<PathBuf>,
    /// The models of agents where neither the run nor the capability names one. If this names none either, the
    /// environment variables decide, then `builtin:extractive`.
    pub models: ModelPreferences,
    /// The file to which requests to models and their replies are recorded; `None` records nothing.
    pub record: Option<PathBuf>,
    /// The time limit of a request to a model whose settings have none; `None` is 10 minutes.
    pub call_timeout: Option<Duration>,
    /// The address of `/livez`, `/readyz` and `/metrics`; `None` serves none of them.
    pub http: Option<SocketAddr>,
}

impl AgentHostConfig {
    /// Creates a configuration with 8 slots, 20 s of grace and the platform's cache folder.
    #[must_use]
    pub fn new(connection: ConnectionSettings) -> Self {
        Self {
            connection,
            id: None,
            slots: 8,
            grace: Duration::from_secs(20),
            document_cache: Some(default_document_cache()),
            models: ModelPreferences::default(),
            record: None,
            call_timeout: None,
            http: None,
        }
    }

    /// Creates the configuration that a command line asks for.
    pub fn parse_args(args: HostArgs) -> Result<Self, ProgramError> {
        let connection = args.connection();
        let HostArgs { nats: _, slots, id, model, record, call_timeout, grace, document_cache, http } = args;
        let models =
            ModelPreferences::parse(model.iter().map(String::as_str)).map_err(ProgramError::refused_input)?;
        let (document_cache, http) = (Some(document_cache), http.address);
        Ok(Self { connection, id, slots, grace, document_cache, models, record, call_timeout, http })
    }
}

/// Hosts agents until `shutdown` is cancelled and work in flight has ended or was released. `named` are the models that
/// the services' capabilities name. All models are opened before the process joins the cluster, so that a mistake is
/// reported at once.
///
/// # Errors
/// A model is unknown or can't be opened, the cluster can't be used, or the process failed too often.
pub fn run_agent_role<'a>(
    role: ProcessRole,
    config: AgentHostConfig,
    named: Vec<ModelSelection>,
    shutdown: CancellationToken,
    services: impl FnOnce(Arc<AgentHost>) -> Vec<HostedHandler> + Send + 'a,
) -> BoxFuture<'a, Result<(), ProgramError>> {
    async move {
        let AgentHostConfig {
            connection,
            id,
            slots: _,
            grace,
            document_cache,
            models,
            record,
            call_timeout,
            http,
        } = config;
        let selections = || named.iter().chain(models.selections());
        selections().try_for_each(model::validate_selection).map_err(ProgramError::refused_input)?;
        let factory = ModelFactory { record_file: record, call_timeout, ..ModelFactory::default() };
        let settings = HostSettings { models: models.clone(), factory, cache: document_cache };
        let unmetered = AgentHost::new(settings.clone()).map_err(ProgramError::bad_environment)?;
        named
            .iter()
            .try_for_each(|selection| unmetered.check_model_selection(selection))
            .map_err(ProgramError::bad_environment)?;
        let process = match role {
            ProcessRole::Supervisor => ProcessKind::Supervisor,
            ProcessRole::Worker => ProcessKind::Worker,
            ProcessRole::Critic => ProcessKind::Critic,
            ProcessRole::Gateway => ProcessKind::Gateway,
        };
        let id = id.unwrap_or_else(|| new_random_process_id(role.name()));
        let mut program = ClusterProgram::open_with_health_page(process, http, &shutdown).await?;
        let Some(bus) = program.join_existing_cluster(&connection, id.as_str()).await? else { return Ok(()) };
        ModelMetrics::create_series_for_selections(selections());
        let rate_limiter = Arc::new(NatsRateLimiter(ClusterRateLimiter::new(&bus)));
        let factory = ModelFactory { rate_limiter, observer: Arc::new(ModelMetrics), ..settings.factory };
        let agents =
            AgentHost::new(HostSettings { factory, ..settings }).map_err(ProgramError::bad_environment)?;
        let services = services(Arc::new(agents));
        let host_config = HostConfig { id, role, services, grace, health: program.health().clone() };
        Ok(host::serve_queues(&bus, host_config, shutdown).await?)
    }
    .boxed()
}
