//! The frame that every program of a cluster shares: logging, signals, the health and metrics page, joining the cluster,
//! and exit codes. A role's `main` is [`run_program`] with the role's own work:
//!
//! ```text
//! main ── logging, runtime, signals ── role: parse the configuration
//!                                         └─ ClusterProgram::open_with_health_page ─ join_existing_cluster ─ the role's work
//! ```
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | stopped by SIGTERM or SIGINT, after work in flight ended or was released |
//! | 2 | the input was refused: command line, configuration, model name, capability file |
//! | 4 | the environment is not usable: no server, no cluster, wrong credentials, address in use, missing key |
//! | 130 | a second signal ended the process at once |

use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

pub use millrace_process_privacy::{MARK_VARIABLE, hide_from_other_processes};
use millrace_protocol::safe_text::{is_unsafe, terminal_text};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::nats::bus::Bus;
use crate::ops::health::{Health, HttpServer, ListenError, ServerPoller};
use crate::ops::metrics::names::ProcessKind;
use crate::ops::runtime::{block_on, token_cancelled_by_signals};
use crate::ops::telemetry;
use crate::{ConnectionSettings, Fault};

/// The time that a program waits for a cluster that is being created.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The exit code of a program that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FailureExitCode {
    /// The input was refused; another try with the same input fails too.
    Refused = 2,
    /// Something that the program needs is missing or does not respond.
    Environment = 4,
}

impl From<FailureExitCode> for ExitCode {
    fn from(code: FailureExitCode) -> Self {
        Self::from(code as u8)
    }
}

/// An error of a part of the program that this crate does not know.
type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// A failure of a program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Invalid input: an argument, a model name, a capability file.
    #[error(transparent)]
    Refused(BoxedError),
    /// Something on this machine is missing, such as a key or a file.
    #[error(transparent)]
    Environment(BoxedError),
    /// The cluster can't be used.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The health and metrics page can't be served.
    #[error(transparent)]
    Http(#[from] ListenError),
    /// The signal handlers can't be installed.
    #[error("can't install signal handlers: {0}")]
    Signals(#[from] std::io::Error),
    /// The program's root actor could not be started or died.
    #[error("the root actor failed: {0}")]
    Root(String),
}

impl ProgramError {
    /// Wraps an error of invalid input.
    pub fn refused_input(error: impl Into<BoxedError>) -> Self {
        Self::Refused(error.into())
    }

    /// Wraps an error of the environment.
    pub fn bad_environment(error: impl Into<BoxedError>) -> Self {
        Self::Environment(error.into())
    }

    /// Returns the exit code of a program that ends with this error.
    pub fn exit_code(&self) -> FailureExitCode {
        match self {
            Self::Refused(_) => FailureExitCode::Refused,
            Self::Environment(_) | Self::Fault(_) | Self::Http(_) | Self::Signals(_) | Self::Root(_) => {
                FailureExitCode::Environment
            }
        }
    }
}

/// Runs a program to its end: hides its environment from other processes, starts logging and a runtime, cancels the token at
/// the first SIGTERM or SIGINT, prints the error, and returns the exit code.
pub fn run_program<F>(name: &str, role: impl FnOnce(CancellationToken) -> F) -> ExitCode
where
    F: Future<Output = Result<(), ProgramError>>,
{
    let hidden = hide_from_other_processes();
    let outcome = block_on(async {
        telemetry::init_logging("info");
        warn_if_visible(hidden);
        role(token_cancelled_by_signals()?).await
    });
    match outcome.map_err(ProgramError::bad_environment).and_then(|outcome| outcome) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", terminal_text(&format!("{name}: {}", format_with_causes(&error))));
            error.exit_code().into()
        }
    }
}

/// Logs a warning if the environment of this process could not be hidden. Called when logging has started.
pub fn warn_if_visible(hidden: std::io::Result<()>) {
    if let Err(error) = hidden {
        warn!(%error, "cannot hide the environment from other processes of this user; its keys may be readable");
    }
}

/// Parses the command line of a program. An error or the help text ends the process.
#[must_use]
pub fn parse_arguments<P: clap::Parser>() -> P {
    let parsed = ignore_empty_variables(P::command()).try_get_matches();
    let parsed = parsed.and_then(|mut matches| P::from_arg_matches_mut(&mut matches));
    parsed.unwrap_or_else(|error| exit_with_usage_error(&error))
}

/// Changes a command so that a variable of the environment that is set but empty counts as unset.
#[must_use]
pub fn ignore_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    let ignore = |argument: clap::Arg| match argument.get_env() {
        Some(name) if is_empty(name) => argument.env(clap::builder::Resettable::Reset),
        Some(_) | None => argument,
    };
    command.mut_args(ignore).mut_subcommands(ignore_empty_variables)
}

/// Prints an error of the command line, or the help text that was asked for, and ends the process. An error quotes the
/// arguments, so it is made safe for a terminal.
pub fn exit_with_usage_error(error: &clap::Error) -> ! {
    let text = error.render().to_string();
    if text.chars().any(is_unsafe) {
        eprint!("{}", terminal_text(&text));
        std::process::exit(error.exit_code());
    }
    error.exit()
}

/// Formats an error and its causes. A cause whose text the error already contains is left out.
pub fn format_with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.map(ToString::to_string).fold(error.to_string(), |text, cause| {
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// A program of a cluster, with its health and metrics page.
pub struct ClusterProgram {
    page: HttpServer,
}

impl ClusterProgram {
    /// Starts serving the page, if there is an address for it.
    pub async fn open_with_health_page(
        process: ProcessKind,
        http: Option<SocketAddr>,
        shutdown: &CancellationToken,
    ) -> Result<Self, ProgramError> {
        Self::open_with_health_checks(process, http, Health::new(shutdown.clone())).await
    }

    /// Opens the page with a health that has checks of the role already, so that the first reader sees them.
    /// Errors: As for [`ClusterProgram::open_with_health_page`].
    pub async fn open_with_health_checks(
        process: ProcessKind,
        http: Option<SocketAddr>,
        health: Health,
    ) -> Result<Self, ProgramError> {
        Ok(Self { page: HttpServer::start(http, process, health).await? })
    }

    /// Returns the health that the page shows.
    pub fn health(&self) -> &Health {
        self.page.health()
    }

    /// Returns the poller of NATS servers, for a program with several connections; `None` if no page is served.
    pub fn server_poller(&self) -> Option<ServerPoller> {
        self.page.server_poller()
    }

    /// Joins a cluster that exists, or that is created within the next seconds.
    /// Errors: As for [`ClusterProgram::wait_for_connection`].
    pub async fn join_existing_cluster(
        &mut self,
        connection: &ConnectionSettings,
        name: &str,
    ) -> Result<Option<Bus>, ProgramError> {
        self.wait_for_connection(Bus::join_existing_cluster(connection, name, JOIN_TIMEOUT)).await
    }

    /// Waits for the connection to the cluster, and reports the server's state on the page from then on. `None` if the
    /// program is stopped first.
    pub async fn wait_for_connection(
        &mut self,
        connecting: impl Future<Output = Result<Bus, Fault>>,
    ) -> Result<Option<Bus>, ProgramError> {
        Ok(self.page.join_cluster_and_poll_server(connecting).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_input_and_a_bad_environment_have_different_exit_codes() {
        for (error, code) in [
            (ProgramError::refused_input("no such model"), 2),
            (ProgramError::bad_environment("no key"), 4),
            (ProgramError::from(Fault::unavailable("connecting", "refused")), 4),
            (ProgramError::Root("why".into()), 4),
        ] {
            assert_eq!(error.exit_code() as u8, code, "{error}");
        }
    }

    #[test]
    fn causes_are_printed_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("can't read the file")]
        struct OuterError(#[source] std::io::Error);
        let outer = OuterError(std::io::Error::other("the disk is gone"));
        assert_eq!(format_with_causes(&outer), "can't read the file: the disk is gone");
        let fault = Fault::unavailable("connecting", "refused");
        assert_eq!(
            format_with_causes(&ProgramError::from(fault)),
            "connecting: no response from the NATS server (refused)"
        );
    }
}
