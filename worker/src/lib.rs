//! Workers: processes that offer capabilities and run tasks. This crate has the interface of a capability, the built-in
//! capabilities and capability files; queues, leases, journals and draining are in `millrace_host`.
//!
//! ```text
//! Capability           the interface; implemented by
//! ├─ agent             an agent, from a file or a builder
//! ├─ external          a program (command) or a service (http)
//! └─ builtin           echo, and the files of the built-in agents
//! handler              a capability as the handler of its queue; each order becomes an Attempt
//! file                 capabilities by name or file, with their tools
//! ```
//!
//! A custom worker is a `main` with a list of capabilities. [`run_worker_program`] reads the arguments that the built-in
//! worker has; [`run_worker`] takes a configuration instead.
//!
//! ```no_run
//! # use millrace_worker::*;
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! struct Parameters {
//!     /// The text to repeat in capitals.
//!     text: String,
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     let shout = capability!("shout", "Repeats a text in capitals.", async |_attempt, parameters: Parameters| {
//!         Ok(TaskResult { output: parameters.text.to_uppercase(), ..TaskResult::default() })
//!     });
//!     run_worker_program("shouter", vec![shout.expect("the name is valid")])
//! }
//! ```

#![warn(missing_docs)]

pub mod agent;
mod args;
mod attempt;
pub mod builtin;
mod capability;
mod external;
pub mod file;
mod hooks;
mod tools;

use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

pub use agent::{Agent, AgentError};
pub use args::Args;
pub use attempt::{Attempt, ChildTask, LostTask};
pub use capability::{Capability, CapabilityOutcome, capability_from_function, capability_with_parameters};
pub use millrace_agent::approval::{approval_question, input_question};
pub use millrace_agent::corpus::Corpus;
pub use millrace_agent::hooks::{Hook, HookContext, HookEvent, HookPoint, HookRefusal};
pub use millrace_agent::session::ModelPreferences;
pub use millrace_agent::spec::AnswerForm;
pub use millrace_agent::tool::{Effect, Tool, ToolError, tool_from_function as tool};
pub use millrace_agent::turn::{Limits, UsageTotals};
pub use millrace_host::AgentHostConfig;
pub use millrace_protocol::ids::WorkerId;
pub use millrace_protocol::plan::{ReviewCheck, ReviewPolicy};
pub use millrace_protocol::question::{
    Answer, AnswerKind, ExpiryAction, Question, QuestionExpiry, QuestionSubject,
};
pub use millrace_protocol::result::{
    CapabilityDescription, ErrorKind, PlanProposal, Quotation, Source, SourceKind, TaskError, TaskResult,
    Usage,
};
pub use millrace_protocol::work::{InputResult, Order};
pub use millrace_runtime::ConnectionSettings;
pub use millrace_runtime::ops::runtime::{block_on, token_cancelled_by_signals};
pub use millrace_runtime::ops::telemetry;
pub use millrace_runtime::program::{ProgramError, run_program};
pub use tokio_util::sync::CancellationToken;
pub use tools::run_as_launcher;

use millrace_host::run_agent_role;
use millrace_host::{self as host, HostArgs, HostedHandler};
use millrace_protocol::registry::ProcessRole;
use millrace_runtime::program::parse_arguments;
use millrace_tools::mcp::McpPool;

use capability::CapabilityHandler;

/// The configuration of a worker.
pub struct WorkerConfig {
    /// The capabilities that it offers.
    pub capabilities: Vec<Arc<dyn Capability>>,
    /// The process.
    pub host: AgentHostConfig,
}

impl WorkerConfig {
    /// Creates a worker with 8 slots for each capability, 20 s of grace and the platform's cache folder.
    #[must_use]
    pub fn new(connection: ConnectionSettings, capabilities: Vec<Arc<dyn Capability>>) -> Self {
        Self { capabilities, host: AgentHostConfig::new(connection) }
    }
}

/// Runs the worker that a command line asks for. See [`run`].
///
/// # Errors
/// An argument or a capability file is invalid, or as for [`run`].
pub async fn run_worker_from_args(args: Args, shutdown: CancellationToken) -> Result<(), ProgramError> {
    run_worker_process(args.into_config().await?, shutdown).await
}

/// Runs the worker of a process; when it ends, so do its MCP servers.
async fn run_worker_process(config: WorkerConfig, shutdown: CancellationToken) -> Result<(), ProgramError> {
    let outcome = run_worker(config, shutdown).await;
    McpPool::close_shared().await;
    outcome
}

/// Runs a program that is a worker with these capabilities: reads the arguments that `millrace worker` has, other than
/// `--capability` (`--nats`, `--slots`, `--http`, `--model`, …), starts logging, and stops at the first signal. Its exit
/// codes are those of `millrace worker`.
pub fn run_worker_program(name: &'static str, capabilities: Vec<Arc<dyn Capability>>) -> ExitCode {
    #[derive(clap::Parser)]
    struct CustomWorker {
        #[command(flatten)]
        host: HostArgs,
    }

    run_as_launcher().unwrap_or_else(|| {
        let CustomWorker { host } = parse_arguments();
        run_program(name, |shutdown| async move {
            let config = WorkerConfig { capabilities, host: AgentHostConfig::parse_args(host)? };
            run_worker_process(config, shutdown).await
        })
    })
}

/// Runs a worker until `shutdown` is cancelled and tasks in flight have ended or were released.
///
/// # Errors
/// A capability is offered twice, a model is unknown, the cluster can't be used, or the worker failed too often.
pub fn run_worker(
    config: WorkerConfig,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), ProgramError>> {
    async move {
        let WorkerConfig { capabilities, host } = config;
        let mut names = BTreeSet::new();
        if let Some(name) =
            capabilities.iter().map(|one| one.describe().name).find(|name| !names.insert(name.clone()))
        {
            return Err(host::HostError::Duplicate(name).into());
        }
        let models = capabilities.iter().filter_map(|capability| capability.model().cloned()).collect();
        let slots = host.slots;
        run_agent_role(ProcessRole::Worker, host, models, shutdown, |agents| {
            let service = |capability: Arc<dyn Capability>| HostedHandler {
                slots: capability.max_concurrent_attempts().unwrap_or(slots),
                handler: Arc::new(CapabilityHandler::new(capability, agents.clone())),
            };
            capabilities.into_iter().map(service).collect()
        })
        .await
    }
    .boxed()
}
