//! The `millrace` command: parses arguments, runs a command, returns an exit code. The commands are in [`commands`]; the
//! processes of a cluster are this same program under the commands `supervisor`, `worker`, `critic` and `metrics`.

/// Returns the error of a command that is refused, with a text.
macro_rules! refused {
    ($($text:tt)*) => { $crate::exit::CommandError::invalid_input(anyhow::anyhow!($($text)*)) };
}

/// Prints a line for the user to standard error.
macro_rules! note {
    ($($text:tt)*) => { $crate::view::print_stderr_line(&format!("millrace: {}", format_args!($($text)*))) };
}

mod acp;
mod budget;
mod commands;
mod doctor;
mod documents;
mod evaluation;
mod exit;
mod help;
mod interrupted;
mod invocation;
mod json;
mod monitors;
mod open_page;
mod prices;
mod questions;
mod report;
mod session;
mod settings;
mod steer;
mod submission;
mod target;
mod transcript;
mod verifier;
mod view;

use std::pin::Pin;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use millrace_plan_file as plan_file;
use millrace_runtime::program;
use millrace_views::history;
use tokio_util::sync::CancellationToken;

use commands::{
    acp as acp_command, answer, audit, backup, bench, completions, config, delete, eval, files, inbox,
    limits, list, logs, man, mcp, memories, metrics, prune, replay, restore, resume, retention, run, schema,
    sessions, show, status, steering, submit, token, trace, up, verify, watch, webhook,
};
use exit::{CommandError, CommandExit, CommandResult, run_until_interrupt};
use settings::SettingsSources;

/// The allocator: an agent's step takes a third less CPU time with it than with the allocator of the C library, and static
/// programs do not get a slow one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Durable deep agents: submit an objective, get a cited deliverable, lose no work on the way.
///
/// Exit codes: 0 completed; 1 failed; 2 refused (invalid input or usage, or a command that the state of the run does not
/// allow); 3 partial (there is a deliverable, but not every task completed); 4 the environment is unusable; 5
/// paused or interrupted by others (`millrace resume` continues); 130 interrupted by you.
#[derive(Parser)]
#[command(name = "millrace", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Profile of millrace.toml
    #[arg(long, global = true, env = "MILLRACE_PROFILE", hide_env_values = true, value_name = "NAME")]
    profile: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Work(WorkCommand),
    #[command(flatten)]
    Steering(SteeringCommand),
    #[command(flatten)]
    Cluster(ClusterCommand),
    #[command(flatten)]
    Setup(SetupCommand),
    #[command(flatten)]
    Process(ProcessCommand),
}

/// Commands that run objectives, and show their runs.
#[derive(Subcommand)]
enum WorkCommand {
    /// Run an objective on this machine and print the deliverable
    Run(run::RunArguments),
    /// Resume a run that was interrupted, paused, or out of budget
    Resume(resume::ResumeArguments),
    /// Start a cluster on this machine
    Up(up::UpArguments),
    /// Stop a cluster that runs in the background
    Down(up::DownArguments),
    /// Submit a run to a running cluster and print its id
    Submit(submit::SubmitArguments),
    /// Follow a run until it ends
    Watch(watch::WatchArguments),
    /// List runs
    List(list::ListArguments),
    /// List sessions: runs that run one after the other
    Sessions(sessions::SessionsArguments),
    /// Show a run, or the transcript of one of its tasks
    Show(show::ShowArguments),
}

/// Commands that steer a run.
#[derive(Subcommand)]
enum SteeringCommand {
    /// Cancel a run or one of its tasks
    Cancel(steering::CancelArguments),
    /// Pause a run: running tasks finish, no new ones start
    Pause(steering::PauseArguments),
    /// Change a task that no worker has claimed yet
    Edit(steering::EditArguments),
    /// Retry a task and the tasks that depend on it
    Retry(steering::RetryArguments),
    /// Add tasks from a plan file to a run
    Add(steering::AddArguments),
    /// Send a message to a run's planner
    #[command(alias = "tell")]
    Message(steering::MessageArguments),
    /// Signal an event to a run, whose attempts may wait for it
    Signal(steering::SignalArguments),
}

/// Commands that show or change what a cluster holds.
#[derive(Subcommand)]
enum ClusterCommand {
    /// Show the open questions of runs to persons
    Inbox(inbox::InboxArguments),
    /// Approve, edit or reject tool calls of runs, or give inputs
    Answer(answer::AnswerArguments),
    /// List, show or download a run's files
    Files(files::FilesArguments),
    /// List, show, download or remove what agents remember across runs
    Memories(memories::MemoriesArguments),
    /// Create, list and revoke tokens of the HTTP API
    Token(token::TokenArguments),
    /// Create, list, test and delete webhooks
    Webhook(webhook::WebhookArguments),
    /// List administrative actions: who changed tokens and limits
    Audit(audit::AuditArguments),
    /// Delete ended runs with their events, results and files
    Delete(delete::DeleteArguments),
    /// Delete the runs that ended some time ago
    Prune(prune::PruneArguments),
    /// Show or change the rules by which supervisors delete runs
    Retention(retention::RetentionArguments),
    /// Show or change the rate limits of models
    Limits(limits::LimitsArguments),
    /// Reconstruct a run's state at any point in its log
    Replay(replay::ReplayArguments),
    /// Show a run as spans, or write them for OpenTelemetry
    Trace(trace::TraceArguments),
    /// Show processes, queues, lanes and runs of a cluster
    #[command(after_help = status::STATUS_EXAMPLES)]
    Status(status::StatusArguments),
    /// List the workers and critics of a cluster
    #[command(after_help = status::WORKERS_EXAMPLES)]
    Workers(status::StatusArguments),
    /// List the capabilities of a cluster, with their slots and queues
    #[command(after_help = status::CAPABILITIES_EXAMPLES)]
    Capabilities(status::StatusArguments),
    /// Print the logs of a local cluster
    Logs(logs::Arguments),
}

/// Commands that set up, check and measure.
#[derive(Subcommand)]
enum SetupCommand {
    /// Back up a cluster to a folder while it runs
    Backup(backup::BackupArguments),
    /// Restore a backup into an empty cluster or data folder
    Restore(restore::RestoreArguments),
    /// Show the settings in effect, and where they are set
    Config(config::ConfigArguments),
    /// Print the completions of a shell
    Completions(completions::CompletionsArguments),
    /// Print or write manual pages
    Man(man::ManArguments),
    /// Print the JSON Schema of plan files or capability files
    Schema(schema::SchemaArguments),
    /// Check the environment and suggest fixes
    Doctor(doctor::DoctorArguments),
    /// Generate NATS configuration: users, permissions, certificates
    NatsConfig(commands::nats_config::NatsConfigArguments),
    /// Evaluate models and capability files against expected facts
    Eval(eval::EvalArguments),
    /// Verify the statements of a text with documents
    Verify(verify::VerifyArguments),
    /// Measure throughput and latency on this machine
    Bench(millrace_bench::BenchArguments),
}

/// Processes of a cluster.
#[derive(Subcommand)]
enum ProcessCommand {
    /// Run a supervisor
    Supervisor(millrace_supervisor::SupervisorArgs),
    /// Run a worker
    Worker(millrace_worker::Args),
    /// Run a critic
    Critic(millrace_critic::Args),
    /// Export cluster-wide metrics to Prometheus
    Metrics(metrics::MetricsArguments),
    /// Serve MCP to an assistant that starts this command
    Mcp(mcp::McpArguments),
    /// Serve an editor that starts this command (ACP)
    Acp(Box<acp_command::AcpArguments>),
    /// Serve the HTTP API of a cluster
    Serve(Box<millrace_gateway::ServeArguments>),
}

fn main() -> ExitCode {
    if let Some(code) = millrace_worker::run_as_launcher() {
        return code;
    }
    let hidden = program::hide_from_other_processes();
    if let Some(code) = millrace_local_cluster::run_if_internal_command(std::env::args_os()) {
        return code;
    }
    if let Err(error) = apply_settings() {
        return print_command_error(CommandError::invalid_input(error));
    }
    let Cli { command, profile } = help::parse_command_line();
    match millrace_runtime::ops::runtime::block_on(dispatch_command(command, profile, hidden)) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => print_command_error(error),
        Err(error) => print_command_error(CommandError::unusable_environment(error)),
    }
}

/// Reads the settings and starts the program again with them, if files have any.
fn apply_settings() -> anyhow::Result<()> {
    // Commands that need no settings must work with a mistake in a file; `config` reads the files itself.
    const WITHOUT_SETTINGS: [&str; 5] = ["completions", "config", "help", "man", "schema"];
    match help::find_command_and_profile::<Cli>() {
        Some((command, profile)) if !WITHOUT_SETTINGS.contains(&command.as_str()) => {
            let settings = SettingsSources::of_this_process(profile)?.read_settings()?;
            settings.warnings.iter().for_each(|warning| view::print_stderr_line(warning));
            settings.apply_to_process()
        }
        Some(_) | None => Ok(()),
    }
}

fn print_command_error(stop: CommandError) -> ExitCode {
    let message = invocation::complete_hints(&format_with_causes(&stop.error));
    if invocation::is_json() {
        json::print_json(&json::ErrorLine::new(stop.exit, message));
    } else {
        view::print_error(&message);
    }
    stop.exit.into()
}

fn format_with_causes(error: &anyhow::Error) -> String {
    program::format_with_causes(error.as_ref())
}

async fn dispatch_command(
    command: Command,
    profile: Option<String>,
    hidden: std::io::Result<()>,
) -> Result<ExitCode, CommandError> {
    // Processes of a cluster log what they do; commands for people log errors only.
    let level = match &command {
        Command::Process(ProcessCommand::Mcp(_) | ProcessCommand::Acp(_))
        | Command::Work(_)
        | Command::Steering(_)
        | Command::Cluster(_)
        | Command::Setup(_) => "error",
        Command::Process(_) => "info",
    };
    millrace_runtime::ops::telemetry::init_logging(level);
    program::warn_if_visible(hidden);
    let shutdown = millrace_runtime::ops::runtime::token_cancelled_by_signals()
        .map_err(CommandError::unusable_environment)?;
    let exit = match command {
        Command::Work(command) => command.run(shutdown).await?,
        Command::Steering(command) => command.run(shutdown).await?,
        Command::Cluster(command) => command.run(shutdown).await?,
        Command::Setup(command) => command.run(profile, shutdown).await?,
        Command::Process(command) => command.run(shutdown).await?,
    };
    Ok(exit.into())
}

impl WorkCommand {
    async fn run(self, shutdown: CancellationToken) -> CommandResult {
        let interrupt = &shutdown;
        match self {
            Self::Run(arguments) => run::run_command(arguments, shutdown).await,
            Self::Resume(arguments) => resume::run_command(arguments, shutdown).await,
            Self::Up(arguments) => up::run_up_command(arguments, shutdown).await,
            Self::Down(arguments) => run_until_interrupt(interrupt, up::run_down_command(arguments)).await,
            Self::Submit(arguments) => {
                run_until_interrupt(interrupt, submit::run_command(arguments, shutdown.clone())).await
            }
            Self::Watch(arguments) => {
                run_until_interrupt(interrupt, watch::run_command(arguments, shutdown.clone())).await
            }
            Self::List(arguments) => run_until_interrupt(interrupt, list::run_command(arguments)).await,
            Self::Sessions(arguments) => {
                run_until_interrupt(interrupt, sessions::run_command(arguments)).await
            }
            Self::Show(arguments) => run_until_interrupt(interrupt, show::run_command(arguments)).await,
        }
    }
}

impl SteeringCommand {
    async fn run(self, shutdown: CancellationToken) -> CommandResult {
        match self {
            Self::Cancel(arguments) => arguments.run(shutdown).await,
            Self::Pause(arguments) => arguments.run(shutdown).await,
            Self::Edit(arguments) => arguments.run(shutdown).await,
            Self::Retry(arguments) => arguments.run(shutdown).await,
            Self::Add(arguments) => arguments.run(shutdown).await,
            Self::Message(arguments) => arguments.run(shutdown).await,
            Self::Signal(arguments) => arguments.run(shutdown).await,
        }
    }
}

impl ClusterCommand {
    async fn run(self, shutdown: CancellationToken) -> CommandResult {
        let interrupt = shutdown.clone();
        let work: BoxedWork = match self {
            Self::Answer(arguments) => return answer::run_command(arguments, shutdown).await,
            Self::Inbox(arguments) => Box::pin(inbox::run_command(arguments, shutdown)),
            Self::Limits(arguments) => Box::pin(limits::run_command(arguments, shutdown)),
            Self::Files(arguments) => Box::pin(files::run_command(arguments)),
            Self::Memories(arguments) => Box::pin(memories::run_command(arguments)),
            Self::Token(arguments) => Box::pin(token::run_command(arguments)),
            Self::Webhook(arguments) => Box::pin(webhook::run_command(arguments)),
            Self::Audit(arguments) => Box::pin(audit::run_command(arguments)),
            Self::Delete(arguments) => Box::pin(delete::run_command(arguments)),
            Self::Prune(arguments) => Box::pin(prune::run_command(arguments)),
            Self::Retention(arguments) => Box::pin(retention::run_command(arguments)),
            Self::Replay(arguments) => Box::pin(replay::run_command(arguments)),
            Self::Trace(arguments) => Box::pin(trace::run_command(arguments)),
            Self::Status(arguments) => Box::pin(status::show_status(arguments)),
            Self::Workers(arguments) => Box::pin(status::show_workers(arguments)),
            Self::Capabilities(arguments) => Box::pin(status::show_capabilities(arguments)),
            Self::Logs(arguments) => Box::pin(logs::run_command(arguments)),
        };
        run_until_interrupt(&interrupt, work).await
    }
}

type BoxedWork = Pin<Box<dyn Future<Output = CommandResult>>>;

impl SetupCommand {
    async fn run(self, profile: Option<String>, shutdown: CancellationToken) -> CommandResult {
        match self {
            Self::Backup(arguments) => backup::run_command(arguments, shutdown).await,
            Self::Restore(arguments) => restore::run_command(arguments, shutdown).await,
            Self::Config(arguments) => config::run_command(&arguments, profile),
            Self::Completions(arguments) => Ok(completions::run_command(&arguments, Cli::command())),
            Self::Man(arguments) => man::run_command(&arguments, Cli::command()),
            Self::Schema(arguments) => Ok(schema::run_command(&arguments)),
            Self::Doctor(arguments) => doctor::run_command(arguments, &shutdown).await,
            Self::NatsConfig(arguments) => commands::nats_config::run_command(arguments),
            Self::Eval(arguments) => Box::pin(eval::run_command(arguments, shutdown)).await,
            Self::Verify(arguments) => {
                run_until_interrupt(&shutdown, Box::pin(verify::run_command(arguments))).await
            }
            Self::Bench(arguments) => bench::run_command(arguments, shutdown).await,
        }
    }
}

impl ProcessCommand {
    async fn run(self, shutdown: CancellationToken) -> CommandResult {
        match self {
            Self::Supervisor(arguments) => millrace_supervisor::run_with_args(arguments, shutdown).await?,
            Self::Worker(arguments) => millrace_worker::run_worker_from_args(arguments, shutdown).await?,
            Self::Critic(arguments) => millrace_critic::run_critic_from_args(arguments, shutdown).await?,
            Self::Metrics(arguments) => metrics::run_command(arguments, shutdown).await?,
            Self::Acp(arguments) => return Box::pin(acp_command::run_command(*arguments, shutdown)).await,
            Self::Mcp(arguments) => return Box::pin(mcp::run_command(arguments, shutdown)).await,
            Self::Serve(arguments) => {
                Box::pin(millrace_gateway::run_with_args(*arguments, shutdown)).await?;
            }
        }
        Ok(CommandExit::Completed)
    }
}
