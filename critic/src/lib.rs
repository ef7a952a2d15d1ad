//! Critics: processes that review results. A critic first runs the order's checks, then asks the judges. Check programs are
//! sandboxed by `millrace_tools`; queues, leases, journals and draining are in `millrace_host`.
//!
//! The command line of a critic, the same for `millrace critic` and `millrace-critic`.
//!
//! # Invariants
//!
//! - I18: No critic reviews its own result. (`critic/tests/critic.rs::a_critic_does_not_review_its_own_result`)

mod checks;
mod review;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use checks::CheckProgramRunner;
use futures::future::BoxFuture;
use millrace_host::{HostArgs, HostedHandler, run_agent_role};
use millrace_protocol::registry::ProcessRole;
use millrace_runtime::ConnectionSettings;
use millrace_tools::execute::Launcher;
use review::Critic;
use tokio_util::sync::CancellationToken;

pub use millrace_host::AgentHostConfig;
pub use millrace_runtime::program::{ProgramError, run_program};

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

/// Review the results of a cluster's tasks.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The arguments that workers and critics share.
    #[command(flatten)]
    pub host: HostArgs,
    /// A folder that check programs may read, in addition to the system's own (can be given several times)
    #[arg(
        long = "check-folder",
        value_name = "FOLDER",
        env = "MILLRACE_CHECK_FOLDERS",
        value_delimiter = ':'
    )]
    pub check_folders: Vec<PathBuf>,
}

impl Args {
    /// Returns the configuration.
    pub fn into_config(self) -> Result<CriticConfig, ProgramError> {
        let Self { host, check_folders } = self;
        Ok(CriticConfig { host: AgentHostConfig::parse_args(host)?, check_folders, launcher: None })
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches};

    use super::*;

    fn parse_args(arguments: &[&str]) -> Result<Args, clap::Error> {
        let command = Args::augment_args(Command::new("critic").no_binary_name(true));
        command.clone().debug_assert();
        Args::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }

    #[test]
    fn arguments_become_the_configuration() {
        let arguments = [
            "--nats",
            "nats://a:1,nats://b:2",
            "--slots",
            "3",
            "--id",
            "me",
            "--model",
            "builtin:extractive;critic=a:b",
            "--grace",
            "2s",
            "--check-folder",
            "/opt/a:/opt/b",
        ];
        let config = parse_args(&arguments).unwrap().into_config().unwrap();
        assert_eq!(config.check_folders, [PathBuf::from("/opt/a"), PathBuf::from("/opt/b")]);
        let config = config.host;
        assert_eq!(config.connection.url, "nats://a:1,nats://b:2");
        assert_eq!((config.slots, config.id.unwrap().as_str()), (3, "me"));
        assert_eq!(config.models.selections().count(), 2);
        assert_eq!(config.grace, std::time::Duration::from_secs(2));
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for arguments in [["--slots", "0"], ["--id", "a b"], ["--grace", "soon"]] {
            assert!(parse_args(&arguments).is_err(), "{arguments:?}");
        }
        assert!(parse_args(&["--model", "a,"]).unwrap().into_config().is_err());
    }
}
