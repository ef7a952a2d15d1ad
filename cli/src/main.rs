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

mod budget;
mod commands;
mod connection_monitor;
mod disk_monitor;
mod doctor;
mod documents;
mod evaluation;
mod exit;
mod help;
mod interrupted;
mod invocation;
mod json;
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
mod view;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use millrace_plan_file as plan_file;
use millrace_runtime::program;
use millrace_views::history;

use commands::{
    answer, audit, backup, bench, completions, config, delete, eval, files, inbox, limits, list, logs, man,
    mcp, memories, metrics, prune, replay, restore, resume, retention, run, schema, sessions, show, status,
    steering, submit, token, trace, up, watch, webhook,
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
    /// Measure throughput and latency on this machine
    Bench(millrace_bench::BenchArguments),
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
    /// Serve the HTTP API of a cluster
    Serve(millrace_gateway::ServeArguments),
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
    let is_process = matches!(
        command,
        Command::Supervisor(_)
            | Command::Worker(_)
            | Command::Critic(_)
            | Command::Metrics(_)
            | Command::Serve(_)
    );
    let level = if is_process { "info" } else { "error" };
    millrace_runtime::ops::telemetry::init_logging(level);
    program::warn_if_visible(hidden);
    let shutdown = millrace_runtime::ops::runtime::token_cancelled_by_signals()
        .map_err(CommandError::unusable_environment)?;
    let exit = match command {
        Command::Run(arguments) => run::run_command(arguments, shutdown).await?,
        Command::Resume(arguments) => resume::run_command(arguments, shutdown).await?,
        Command::Up(arguments) => up::run_up_command(arguments, shutdown).await?,
        Command::Down(arguments) => run_until_interrupt(&shutdown, up::run_down_command(arguments)).await?,
        Command::Submit(arguments) => {
            run_until_interrupt(&shutdown, submit::run_command(arguments, shutdown.clone())).await?
        }
        Command::Watch(arguments) => {
            run_until_interrupt(&shutdown, watch::run_command(arguments, shutdown.clone())).await?
        }
        Command::List(arguments) => run_until_interrupt(&shutdown, list::run_command(arguments)).await?,
        Command::Sessions(arguments) => {
            run_until_interrupt(&shutdown, sessions::run_command(arguments)).await?
        }
        Command::Show(arguments) => run_until_interrupt(&shutdown, show::run_command(arguments)).await?,
        Command::Status(arguments) => run_until_interrupt(&shutdown, status::show_status(arguments)).await?,
        Command::Workers(arguments) => {
            run_until_interrupt(&shutdown, status::show_workers(arguments)).await?
        }
        Command::Capabilities(arguments) => {
            run_until_interrupt(&shutdown, status::show_capabilities(arguments)).await?
        }
        Command::Logs(arguments) => run_until_interrupt(&shutdown, logs::run_command(arguments)).await?,
        Command::Cancel(arguments) => arguments.run(shutdown).await?,
        Command::Pause(arguments) => arguments.run(shutdown).await?,
        Command::Edit(arguments) => arguments.run(shutdown).await?,
        Command::Retry(arguments) => arguments.run(shutdown).await?,
        Command::Add(arguments) => arguments.run(shutdown).await?,
        Command::Message(arguments) => arguments.run(shutdown).await?,
        Command::Signal(arguments) => arguments.run(shutdown).await?,
        Command::Inbox(arguments) => {
            run_until_interrupt(&shutdown, inbox::run_command(arguments, shutdown.clone())).await?
        }
        Command::Answer(arguments) => answer::run_command(arguments, shutdown).await?,
        Command::Files(arguments) => run_until_interrupt(&shutdown, files::run_command(arguments)).await?,
        Command::Delete(arguments) => run_until_interrupt(&shutdown, delete::run_command(arguments)).await?,
        Command::Prune(arguments) => run_until_interrupt(&shutdown, prune::run_command(arguments)).await?,
        Command::Retention(arguments) => {
            run_until_interrupt(&shutdown, retention::run_command(arguments)).await?
        }
        Command::Memories(arguments) => {
            run_until_interrupt(&shutdown, memories::run_command(arguments)).await?
        }
        Command::Limits(arguments) => {
            run_until_interrupt(&shutdown, limits::run_command(arguments, shutdown.clone())).await?
        }
        Command::Token(arguments) => run_until_interrupt(&shutdown, token::run_command(arguments)).await?,
        Command::Webhook(arguments) => {
            run_until_interrupt(&shutdown, webhook::run_command(arguments)).await?
        }
        Command::Audit(arguments) => run_until_interrupt(&shutdown, audit::run_command(arguments)).await?,
        Command::Replay(arguments) => run_until_interrupt(&shutdown, replay::run_command(arguments)).await?,
        Command::Trace(arguments) => run_until_interrupt(&shutdown, trace::run_command(arguments)).await?,
        Command::Backup(arguments) => backup::run_command(arguments, shutdown).await?,
        Command::Restore(arguments) => restore::run_command(arguments, shutdown).await?,
        Command::Config(arguments) => config::run_command(&arguments, profile)?,
        Command::Completions(arguments) => completions::run_command(&arguments, Cli::command()),
        Command::Man(arguments) => man::run_command(&arguments, Cli::command())?,
        Command::Schema(arguments) => schema::run_command(&arguments),
        Command::Doctor(arguments) => {
            return tokio::select! {
                checked = doctor::run_command(arguments) => Ok(checked?),
                () = shutdown.cancelled() => Ok(CommandExit::Interrupted.into()),
            };
        }
        Command::NatsConfig(arguments) => commands::nats_config::run_command(arguments)?,
        Command::Eval(arguments) => Box::pin(eval::run_command(arguments, shutdown)).await?,
        Command::Bench(arguments) => bench::run_command(arguments, shutdown).await?,
        Command::Supervisor(arguments) => {
            run_role_process(millrace_supervisor::run_with_args(arguments, shutdown)).await?
        }
        Command::Worker(arguments) => {
            run_role_process(millrace_worker::run_worker_from_args(arguments, shutdown)).await?
        }
        Command::Critic(arguments) => {
            run_role_process(millrace_critic::run_critic_from_args(arguments, shutdown)).await?
        }
        Command::Metrics(arguments) => run_role_process(metrics::run_command(arguments, shutdown)).await?,
        Command::Mcp(arguments) => Box::pin(mcp::run_command(arguments, shutdown)).await?,
        Command::Serve(arguments) => {
            run_role_process(Box::pin(millrace_gateway::run_with_args(arguments, shutdown))).await?
        }
    };
    Ok(exit.into())
}

/// Runs a process of a cluster until it is stopped.
async fn run_role_process(running: impl Future<Output = Result<(), program::ProgramError>>) -> CommandResult {
    running.await?;
    Ok(CommandExit::Completed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_the_error_text_contains_is_not_repeated() {
        let cause = || std::io::Error::other("the disk is gone");
        let repeated = anyhow::Error::new(cause()).context("can't write a: the disk is gone; mend it");
        assert_eq!(super::format_with_causes(&repeated), "can't write a: the disk is gone; mend it");
        let distinct = anyhow::Error::new(cause()).context("can't write a").context("the run is kept");
        assert_eq!(super::format_with_causes(&distinct), "the run is kept: can't write a: the disk is gone");
    }

    #[test]
    fn the_arguments_of_every_command_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
