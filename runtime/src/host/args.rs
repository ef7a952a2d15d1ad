//! What hosting programs can be told on the command line: one definition for workers, critics and the `millrace`
//! command that starts them.

use std::path::PathBuf;
use std::time::Duration;

use millrace_protocol::ids::WorkerId;

use crate::health::HttpArgs;
use crate::{Connection, duration};

/// The arguments that workers and critics share.
#[derive(Debug, Clone, clap::Args)]
pub struct HostArgs {
    /// Server of the cluster; several are separated by commas. Credentials are taken from MILLRACE_NATS_NKEY or
    /// MILLRACE_NATS_CREDS (files), or MILLRACE_NATS_USER and MILLRACE_NATS_PASSWORD
    #[arg(
        long,
        env = "MILLRACE_NATS_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "nats://127.0.0.1:4222"
    )]
    pub nats: String,
    /// Number of tasks done at the same time, for each capability
    #[arg(long, env = "MILLRACE_SLOTS", value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub slots: u32,
    /// Name of this process, unique in the cluster; made up where it is left out
    #[arg(long, value_name = "NAME")]
    pub id: Option<WorkerId>,
    /// Language model to use where neither run nor capability names one, as provider:model, and after commas those that
    /// stand in for it; CAPABILITY= before it means that capability alone. May be given several times, in the variable
    /// with ; between
    #[arg(long, env = "MILLRACE_MODEL", value_name = "[CAPABILITY=]MODEL", value_delimiter = ';')]
    pub model: Vec<String>,
    /// File to which all requests to models and their replies are added; replay:FILE plays them again
    #[arg(long, env = "MILLRACE_RECORD", value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// How long work in hand may go on after the process is told to stop, such as 20s
    #[arg(long, env = "MILLRACE_GRACE", value_name = "TIME", default_value = "20s", value_parser = duration::parse)]
    pub grace: Duration,
    /// Folder in which documents and their indices are kept for the next time
    #[arg(long, env = "MILLRACE_DOCUMENT_CACHE", value_name = "DIR", default_value_os_t = document_cache())]
    pub document_cache: PathBuf,
    /// Where it says how it is.
    #[command(flatten)]
    pub http: HttpArgs,
}

impl HostArgs {
    /// Where the cluster is, with the credentials that the environment names.
    #[must_use]
    pub fn connection(&self) -> Connection {
        Connection::with_environment(self.nats.clone())
    }
}

/// A name that no other process has, such as `worker-4f9a01c27be3`.
#[must_use]
pub fn made_up_id(role: &str) -> WorkerId {
    let random = uuid::Uuid::now_v7().simple().to_string();
    WorkerId::new(format!("{role}-{}", &random[20..])).expect("letters, digits and '-' make a name")
}

/// Where documents are kept: `documents` in the platform's cache folder for Millrace, or below the current folder
/// where there is none.
#[must_use]
pub fn document_cache() -> PathBuf {
    let below_home = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).and_then(absolute);
    let home = || std::env::home_dir().and_then(absolute).map(|home| home.join(below_home));
    named
        .or_else(home)
        .map_or_else(|| PathBuf::from(".millrace/cache"), |base| base.join("millrace"))
        .join("documents")
}
