//! Critics: processes that review results. A critic first runs the order's checks, then asks the judges. Check programs are
//! sandboxed by `millrace_tools`; queues, leases, journals and draining are in `millrace_host`.
//!
//! # Invariants
//!
//! - I18: No critic reviews its own result. (`critic/tests/critic.rs::a_critic_does_not_review_its_own_result`)

mod args;
mod check_programs;
mod checks;
mod echo;
mod review;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use futures::future::BoxFuture;
use millrace_host::HostedHandler;
use millrace_host::run_agent_role;
use millrace_protocol::registry::ProcessRole;
use millrace_runtime::ConnectionSettings;
use millrace_tools::execute::Launcher;
use tokio_util::sync::CancellationToken;

pub use args::Args;
pub use millrace_host::AgentHostConfig;
pub use millrace_runtime::program::{ProgramError, run_program};

use check_programs::CheckProgramRunner;
use review::Critic;

/// Does the work of an internal process if this process was started as one: the launcher of check programs, or the reader of
/// a document. Returns `None` at once otherwise. It must be the first call in `main`, before there are threads.
#[must_use]
pub fn launcher() -> Option<ExitCode> {
    millrace_tools::execute::launcher().or_else(millrace_documents::run_as_extractor)
}

/// The configuration of a critic.
pub struct CriticConfig {
    /// The process. `slots` is the number of concurrent reviews.
    pub host: AgentHostConfig,
    /// The folders that check programs may read, in addition to the system's own.
    pub check_folders: Vec<PathBuf>,
    /// The launcher that sandboxes check programs. `None` uses this program, if its `main` calls [`launcher`]; otherwise checks by
    /// programs fail.
    pub launcher: Option<Launcher>,
}

impl CriticConfig {
    /// Creates a critic with 8 slots, 20 s of grace and the platform's cache folder.
    #[must_use]
    pub fn new(connection: ConnectionSettings) -> Self {
        Self { host: AgentHostConfig::new(connection), check_folders: Vec::new(), launcher: None }
    }
}

/// Runs the critic that a command line asks for. See [`run`].
///
/// # Errors
/// An argument is invalid, or as for [`run`].
pub async fn run_critic_from_args(args: Args, shutdown: CancellationToken) -> Result<(), ProgramError> {
    run_critic(args.into_config()?, shutdown).await
}

/// Runs a critic until `shutdown` is cancelled and reviews in flight have ended or were released.
///
/// # Errors
/// A model is unknown, the cluster can't be used, or the critic failed too often.
pub fn run_critic(
    config: CriticConfig,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), ProgramError>> {
    let CriticConfig { host, check_folders, launcher } = config;
    let slots = host.slots;
    run_agent_role(ProcessRole::Critic, host, Vec::new(), shutdown, move |agents| {
        let launcher = launcher.or_else(Launcher::this_program);
        let programs = CheckProgramRunner { launcher, folders: check_folders };
        vec![HostedHandler { handler: Arc::new(Critic::new(agents, programs)), slots }]
    })
}
