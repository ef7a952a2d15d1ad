//! A process that hosts agents: the command line arguments that workers and critics share (also used by the `millrace` command that
//! starts them), and its start.

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
use millrace_runtime::nats::connection::parse_server_urls;
use millrace_runtime::ops::health::HttpArgs;
use millrace_runtime::ops::metrics::names::ProcessKind;
use millrace_runtime::program::{ClusterProgram, ProgramError};
use millrace_runtime::store::rate_limits::ClusterRateLimiter;
use millrace_runtime::{ConnectionSettings, clock};
use tokio_util::sync::CancellationToken;

use crate::{HostConfig, HostedHandler, ModelMetrics, NatsRateLimiter, serve_queues};

/// The arguments that workers and critics share.
#[derive(Debug, Clone, clap::Args)]
pub struct HostArgs {
    /// NATS server of the cluster; separate several with commas. Credentials are read from MILLRACE_NATS_NKEY or
    /// MILLRACE_NATS_CREDS (files), or MILLRACE_NATS_USER and MILLRACE_NATS_PASSWORD
    #[arg(
        long,
        env = "MILLRACE_NATS_URL",
        hide_env_values = true,
        value_name = "URL",
        value_parser = parse_server_urls,
        default_value = "nats://127.0.0.1:4222"
    )]
    pub nats: String,
    /// Number of concurrent tasks per capability
    #[arg(long, env = "MILLRACE_SLOTS", value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub slots: u32,
    /// Id of this process, unique in the cluster; random by default
    #[arg(long, value_name = "NAME")]
    pub id: Option<WorkerId>,
    /// Default language model, as provider:model, for runs and capabilities that name none; separate fallback models
    /// with commas. CAPABILITY=MODEL sets it for one capability (planner, critic and verifier too; verifier=none lets no model verify statements, embeddings=MODEL lets searches find documents by meaning), TIER=MODEL for `tier:TIER` in capability files. Can be repeated; separate with ; in the variable
    #[arg(long, env = "MILLRACE_MODEL", value_name = "[CAPABILITY=]MODEL", value_delimiter = ';')]
    pub model: Vec<String>,
    /// File to which all model requests and replies are appended; replay:FILE replays them
    #[arg(long, env = "MILLRACE_RECORD", value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Time limit of one call of a model, such as 20m, unless the model's settings have a timeout [default: 10m]
    #[arg(long, env = "MILLRACE_CALL_TIMEOUT", value_name = "TIME", value_parser = clock::parse_duration)]
    pub call_timeout: Option<Duration>,
    /// Grace period for work in progress after the process is asked to stop, such as 20s
    #[arg(long, env = "MILLRACE_GRACE", value_name = "TIME", default_value = "20s", value_parser = clock::parse_duration)]
    pub grace: Duration,
    /// Cache folder for documents and their indices
    #[arg(long, env = "MILLRACE_DOCUMENT_CACHE", value_name = "DIR", default_value_os_t = default_document_cache())]
    pub document_cache: PathBuf,
    /// The health and metrics server.
    #[command(flatten)]
    pub http: HttpArgs,
}

impl HostArgs {
    /// Returns the connection to the cluster, with the credentials that the environment names.
    pub fn connection(&self) -> ConnectionSettings {
        ConnectionSettings::from_environment(self.nats.clone())
    }
}

/// Returns a unique random id for a process, such as `worker-4f9a01c27be3`.
#[must_use]
pub fn new_random_process_id(role: &str) -> WorkerId {
    let random = uuid::Uuid::now_v7().simple().to_string();
    WorkerId::new(format!("{role}-{}", &random[20..])).expect("letters, digits and '-' make a valid id")
}

/// Returns the default document cache: `documents` in the platform's cache folder for Millrace, or below the current
/// folder if there is none.
#[must_use]
pub fn default_document_cache() -> PathBuf {
    let below_home = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let configured = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).and_then(absolute);
    let home = || std::env::home_dir().and_then(absolute).map(|home| home.join(below_home));
    configured
        .or_else(home)
        .map_or_else(|| PathBuf::from(".millrace/cache"), |base| base.join("millrace"))
        .join("documents")
}

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
        Ok(serve_queues(&bus, host_config, shutdown).await?)
    }
    .boxed()
}
