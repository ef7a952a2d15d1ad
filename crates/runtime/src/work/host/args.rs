//! The command line arguments of workers and critics, also used by the `millrace` command that starts them.

use std::path::PathBuf;
use std::time::Duration;

use millrace_protocol::ids::WorkerId;

use crate::nats::connection::parse_server_urls;
use crate::ops::health::HttpArgs;
use crate::{ConnectionSettings, duration};

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
    /// with commas. CAPABILITY=MODEL sets it for one capability, TIER=MODEL for `tier:TIER` in capability files. Can be repeated; separate with ; in the variable
    #[arg(long, env = "MILLRACE_MODEL", value_name = "[CAPABILITY=]MODEL", value_delimiter = ';')]
    pub model: Vec<String>,
    /// File to which all model requests and replies are appended; replay:FILE replays them
    #[arg(long, env = "MILLRACE_RECORD", value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Time limit of one call of a model, such as 20m, unless the model's settings have a timeout [default: 10m]
    #[arg(long, env = "MILLRACE_CALL_TIMEOUT", value_name = "TIME", value_parser = duration::parse_duration)]
    pub call_timeout: Option<Duration>,
    /// Grace period for work in progress after the process is asked to stop, such as 20s
    #[arg(long, env = "MILLRACE_GRACE", value_name = "TIME", default_value = "20s", value_parser = duration::parse_duration)]
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
