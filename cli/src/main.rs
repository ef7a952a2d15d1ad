//! The `millrace` command: arguments in, exit codes out. What the commands do is in [`commands`]; the processes of a
//! cluster are this same program under the commands `supervisor`, `worker` and `critic`.

mod bench;
mod budget;
mod certificate;
mod client;
mod commands;
mod doctor;
mod exit;
mod folders;
mod intake;
mod local;
mod nats_config;
mod nats_server;
mod plan_file;
mod prices;
mod report;
mod steer;
mod story;
mod view;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio_util::sync::CancellationToken;

use commands::run::until;
use commands::{
    add, backup, cancel, edit, files, limits, list, metrics, pause, replay, restore, resume, retry, run,
    schema, show, submit, tell, up, watch,
};
use exit::{Exit, Stop};

/// Durable deep agents: hand in an objective, get a cited deliverable back, and lose nothing on the way.
///
/// Exit codes: 0 completed, 1 failed, 2 refused (input, usage, or a command that the run's rules say no to), 3 partial
/// (there is a deliverable, but not everything was done), 4 environment not usable, 130 interrupted.
#[derive(Parser)]
#[command(name = "millrace", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Do a run on this machine, from the objective to the deliverable
    Run(run::RunArguments),
    /// Go on with a run that was cut off, was paused, or has used up its budget
    Resume(resume::Arguments),
    /// Start a cluster on this machine that stays
    Up(up::UpArguments),
    /// Stop a cluster that runs in the background
    Down(up::DownArguments),
    /// Hand a run in to a cluster, and print its id
    Submit(submit::Arguments),
    /// Follow a run to its end
    Watch(watch::Arguments),
    /// List the runs of a cluster
    List(list::Arguments),
    /// Show a run as it stands, and its deliverable
    Show(show::Arguments),
    /// Cancel a run, or one of its tasks
    Cancel(cancel::Arguments),
    /// Give nothing more of a run out, until it is resumed
    Pause(pause::Arguments),
    /// Change a task that waits
    Edit(edit::Arguments),
    /// Have a task done once more, and what was built on it
    Retry(retry::Arguments),
    /// Add the tasks of a plan file to a run
    Add(add::Arguments),
    /// Tell the planner of a run something
    Tell(tell::Arguments),
    /// List, show or fetch the files of a run
    Files(files::Arguments),
    /// Show or change the rates that models may be asked at
    Limits(limits::Arguments),
    /// Fold the log of a run to its state as of any message
    Replay(replay::Arguments),
    /// Copy a cluster into a folder while it runs
    Backup(backup::Arguments),
    /// Put a backup into an empty account or data folder
    Restore(restore::Arguments),
    /// Print the JSON Schema of a file that you can write
    Schema(schema::Arguments),
    /// Say what a run needs, what of it is there, and what to do about the rest
    Doctor(doctor::Arguments),
    /// Write what NATS servers and the processes of a cluster know each other by: identities, permissions, certificates
    NatsConfig(commands::nats_config::Arguments),
    /// Measure how fast runs go through a cluster on this machine
    Bench(bench::Arguments),
    /// Be a supervisor of a cluster
    Supervisor(millrace_supervisor::Args),
    /// Be a worker of a cluster
    Worker(millrace_worker::Args),
    /// Be a critic of a cluster
    Critic(millrace_critic::Args),
    /// Measure a cluster as a whole, for Prometheus
    Metrics(metrics::Arguments),
}

fn main() -> ExitCode {
    if let Some(code) = millrace_worker::launcher() {
        return code;
    }
    if let Some(code) = local::intercept(std::env::args_os()) {
        return code;
    }
    let cli = Cli::parse();
    match millrace_runtime::shutdown::block_on(dispatch(cli.command)) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => stop(error),
        Err(error) => stop(Stop::environment(error)),
    }
}

fn stop(stop: Stop) -> ExitCode {
    view::say(&format!("error: {}", in_full(&stop.error)));
    stop.exit.into()
}

/// An error and its causes. Many errors say their cause themselves, which is not said once more.
fn in_full(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        said if said.contains(&cause) => text,
        said => format!("{said}: {cause}"),
    })
}

async fn dispatch(command: Command) -> Result<ExitCode, Stop> {
    // Processes of a cluster tell how they are; commands for people tell only what goes wrong.
    let level = match &command {
        Command::Supervisor(_) | Command::Worker(_) | Command::Critic(_) | Command::Metrics(_) => "info",
        Command::Run(_)
        | Command::Resume(_)
        | Command::Up(_)
        | Command::Down(_)
        | Command::Submit(_)
        | Command::Watch(_)
        | Command::List(_)
        | Command::Show(_)
        | Command::Cancel(_)
        | Command::Pause(_)
        | Command::Edit(_)
        | Command::Retry(_)
        | Command::Add(_)
        | Command::Tell(_)
        | Command::Files(_)
        | Command::Limits(_)
        | Command::Replay(_)
        | Command::Backup(_)
        | Command::Restore(_)
        | Command::Schema(_)
        | Command::Doctor(_)
        | Command::NatsConfig(_)
        | Command::Bench(_) => "error",
    };
    millrace_runtime::telemetry::init(level);
    let shutdown = millrace_runtime::shutdown::on_signals().map_err(Stop::environment)?;
    let exit = match command {
        Command::Run(arguments) => run::run(arguments, shutdown).await?,
        Command::Resume(arguments) => resume::command(arguments, shutdown).await?,
        Command::Up(arguments) => up::up(arguments, shutdown).await?,
        Command::Down(arguments) => until(&shutdown, up::down(arguments)).await?,
        Command::Submit(arguments) => until(&shutdown, submit::command(arguments)).await?,
        Command::Watch(arguments) => {
            until(&shutdown, Box::pin(watch::command(arguments, shutdown.clone()))).await?
        }
        Command::List(arguments) => until(&shutdown, list::command(arguments)).await?,
        Command::Show(arguments) => until(&shutdown, Box::pin(show::command(arguments))).await?,
        Command::Cancel(arguments) => cancel::command(arguments, shutdown).await?,
        Command::Pause(arguments) => pause::command(arguments, shutdown).await?,
        Command::Edit(arguments) => edit::command(arguments, shutdown).await?,
        Command::Retry(arguments) => retry::command(arguments, shutdown).await?,
        Command::Add(arguments) => add::command(arguments, shutdown).await?,
        Command::Tell(arguments) => tell::command(arguments, shutdown).await?,
        Command::Files(arguments) => until(&shutdown, files::command(arguments)).await?,
        Command::Limits(arguments) => until(&shutdown, limits::command(arguments, shutdown.clone())).await?,
        Command::Replay(arguments) => until(&shutdown, replay::command(arguments)).await?,
        Command::Backup(arguments) => backup::command(arguments, shutdown).await?,
        Command::Restore(arguments) => restore::command(arguments, shutdown).await?,
        Command::Schema(arguments) => schema::command(&arguments),
        Command::Doctor(arguments) => {
            return tokio::select! {
                looked = doctor::run(arguments) => Ok(looked?),
                () = shutdown.cancelled() => Ok(Exit::Interrupted.into()),
            };
        }
        Command::NatsConfig(arguments) => commands::nats_config::command(arguments)?,
        Command::Bench(arguments) => bench::command(arguments, shutdown).await?,
        Command::Supervisor(arguments) => supervisor(arguments, shutdown).await?,
        Command::Worker(arguments) => worker(arguments, shutdown).await?,
        Command::Critic(arguments) => critic(arguments, shutdown).await?,
        Command::Metrics(arguments) => metrics::command(arguments, shutdown).await?,
    };
    Ok(exit.into())
}

async fn supervisor(arguments: millrace_supervisor::Args, shutdown: CancellationToken) -> Result<Exit, Stop> {
    millrace_supervisor::run(arguments.into_config(), shutdown).await.map_err(Stop::environment)?;
    Ok(Exit::Completed)
}

async fn worker(arguments: millrace_worker::Args, shutdown: CancellationToken) -> Result<Exit, Stop> {
    let config = arguments.into_config().await.map_err(Stop::refused)?;
    millrace_worker::run(config, shutdown).await.map_err(Stop::environment)?;
    Ok(Exit::Completed)
}

async fn critic(arguments: millrace_critic::Args, shutdown: CancellationToken) -> Result<Exit, Stop> {
    let config = arguments.into_config().map_err(Stop::refused)?;
    millrace_critic::run(config, shutdown).await.map_err(Stop::environment)?;
    Ok(Exit::Completed)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn a_cause_that_an_error_says_itself_is_not_said_twice() {
        let cause = || std::io::Error::other("the disk is gone");
        let says_it = anyhow::Error::new(cause()).context("can't write a: the disk is gone; mend it");
        assert_eq!(super::in_full(&says_it), "can't write a: the disk is gone; mend it");
        let is_silent = anyhow::Error::new(cause()).context("can't write a").context("the run is kept");
        assert_eq!(super::in_full(&is_silent), "the run is kept: can't write a: the disk is gone");
    }

    #[test]
    fn the_arguments_of_every_command_agree_with_each_other() {
        super::Cli::command().debug_assert();
    }
}
