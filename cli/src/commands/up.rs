//! `millrace up` and `millrace down`: start and stop a local cluster.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Args;
use millrace_local_cluster::data::DataFolderError;
use millrace_local_cluster::users::{NoUsers, wait_until_unused};
use millrace_local_cluster::{
    self as local, ChildRole, ClusterInfo, ClusterLifetime, Launcher, LocalCluster, LocalOptions,
    ProcessEvent, WebOffer, folders,
};
use millrace_protocol::subject::CRITIC;
use millrace_runtime::Fault;
use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::work::registry;
use tokio_util::sync::CancellationToken;

use crate::commands::run::{effective_models, find_running_cluster, warn_of_ignored_server};
use crate::commands::run_lines::{RunLines, describe_earlier_runs};
use crate::exit::{CommandError, CommandExit, CommandResult, run_until_interrupt};
use crate::interrupted::{interrupt_unfinished_runs, print_stopped_runs};
use crate::invocation::command_hint;
use crate::json::{CommandOutcome, print_json};
use crate::monitors::{DiskChange, DiskMonitor};
use crate::submission::open_models_to_check;
use crate::view::print_stderr_line;

/// Time that interrupting the live runs of a cluster may take.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(5);
/// Maximum time that a start in the background waits for the first worker.
const REGISTRATION_LIMIT: Duration = Duration::from_secs(10);
/// Delay between two looks at the registered capabilities.
const REGISTRATION_POLL: Duration = Duration::from_millis(50);

const EXAMPLES: &str = "\
Examples:
  millrace up                              run in the foreground, Ctrl-C stops
  millrace up --workers 4 --capability analyst.yaml
  millrace up --detach                     run in the background until `down`
  millrace submit \"...\" && millrace watch latest      in another terminal";

/// The arguments of `millrace up`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct UpArguments {
    #[command(flatten)]
    options: LocalOptions,
    /// Start the cluster in the background and return when it is ready; `millrace down` stops it
    #[arg(long)]
    detach: bool,
    /// Stop when no process uses the cluster any more; for `run` and `resume`
    #[arg(long, hide = true)]
    while_used: bool,
    /// Offer no web_research, even if the environment configures it; for `eval`
    #[arg(long, hide = true, requires = "while_used")]
    no_web: bool,
    /// Print a JSON object when the cluster is running, for each run that starts, is resumed or ends, and at the end
    #[arg(long)]
    json: bool,
}

/// The arguments of `millrace down`.
#[derive(Args, Debug)]
#[command(
    after_help = "No work is lost: the next `millrace up` or `millrace resume` continues unfinished runs; interrupted ones \
                  wait for `millrace resume`."
)]
pub struct DownArguments {
    /// Data folder of the cluster
    #[arg(long, env = "MILLRACE_DATA", value_name = "DIR", default_value_os_t = folders::default_data_folder())]
    data: PathBuf,
    /// Print the outcome as a JSON object
    #[arg(long)]
    json: bool,
}

/// Starts a cluster, and stops it when the user interrupts; or, with `--while-used`, when nobody uses it any more.
pub async fn run_up_command(arguments: UpArguments, interrupt: CancellationToken) -> CommandResult {
    let UpArguments { options, detach, while_used, no_web, json } = arguments;
    let web = if no_web { WebOffer::Never } else { WebOffer::AsConfigured };
    if !while_used {
        // Otherwise the command that started it has warned.
        warn_of_ignored_server("up");
    }
    if detach {
        return run_until_interrupt(&interrupt, start_in_background(options, json)).await;
    }
    let data = options.data.clone();
    if while_used {
        // The command that started it has made the other checks.
        let unused = wait_until_unused(&data);
        return run_cluster(options, web, ClusterLifetime::WhileUsed, false, interrupt, unused).await;
    }
    open_models_to_check(&options)?;
    let unused = std::future::pending();
    run_cluster(options, web, ClusterLifetime::UntilStopped, json, interrupt, unused).await
}

/// Runs a cluster until it is interrupted, unused, or unable to work.
async fn run_cluster(
    options: LocalOptions,
    web: WebOffer,
    lifetime: ClusterLifetime,
    json: bool,
    interrupt: CancellationToken,
    unused: impl Future<Output = Result<NoUsers, DataFolderError>>,
) -> CommandResult {
    let unusable = CommandError::unusable_environment;
    let data = options.data.clone();
    let is_while_used = lifetime == ClusterLifetime::WhileUsed;
    let executable = Launcher::from_current_exe().map_err(CommandError::unusable_environment)?;
    let children = options.child_specs_with_web(executable.executable(), web);
    // Interrupted runs stay stopped: workers start when that is decided.
    let is_prepared = is_while_used && local::has_nats_store(&options.data);
    let (first, workers): (Vec<_>, Vec<_>) =
        children.into_iter().partition(|child| !is_prepared || child.role == ChildRole::Supervisor);
    let (models, settings) = (effective_models(&options), cluster_options(&options));
    let api_url = options.api.is_some().then(|| options.api_url_path());
    // One that was left by a gateway that was killed.
    remove_file_if_any(api_url.as_deref());
    tokio::pin!(unused);
    let mut cluster = tokio::select! {
        cluster = LocalCluster::start_unannounced(options, first, lifetime) => cluster.map_err(unusable)?,
        () = interrupt.cancelled() => return Ok(CommandExit::Interrupted),
        _ = &mut unused => return Ok(CommandExit::Interrupted),
    };
    cluster.set_models(models);
    let mut is_unused = None;
    let mut refusal = None;
    if !workers.is_empty() {
        tokio::select! {
            prepared = prepare_cluster(&mut cluster, &settings) => refusal = prepared.err(),
            () = interrupt.cancelled() => {}
            no_users = &mut unused => is_unused = Some(no_users),
        }
    }
    if is_unused.is_none() && refusal.is_none() && !interrupt.is_cancelled() {
        cluster.announce(workers).await.map_err(unusable)?;
        let runs = (!is_while_used).then(|| show_running_cluster(cluster.info(), &data, api_url, json));
        refusal = tokio::select! {
            () = interrupt.cancelled() => None,
            no_users = &mut unused => {
                is_unused = Some(no_users);
                None
            }
            error = watch_cluster(&mut cluster, &data, runs) => Some(error),
        };
    }
    // A cluster that can't work may have no supervisors.
    stop_cluster(cluster, is_while_used && refusal.is_none()).await;
    drop(is_unused);
    match (json, is_while_used) {
        (true, _) => print_stopped_cluster(&data, true),
        (false, true) => {}
        (false, false) => print_stderr_line("millrace: cluster stopped"),
    }
    refusal.map_or(Ok(CommandExit::Completed), Err)
}

/// Stops a cluster, and before that interrupts its runs if nobody uses it any more.
async fn stop_cluster(mut cluster: LocalCluster, has_runs_to_interrupt: bool) {
    if has_runs_to_interrupt {
        cluster.stop_work().await;
        // A run that can't be interrupted now is interrupted by the next cluster.
        let _ = tokio::time::timeout(INTERRUPT_LIMIT, interrupt_live_runs(cluster.info())).await;
    }
    cluster.stop().await;
}

fn cluster_options(options: &LocalOptions) -> ClusterOptions {
    ClusterOptions {
        lanes: options.lanes,
        lane_lease: options.lane_lease,
        work_lease: options.work_lease,
        ..ClusterOptions::default()
    }
}

/// Prints that a cluster is running, and the URL of its API as soon as it is served. Returns the lines about its runs.
fn show_running_cluster(info: &ClusterInfo, data: &Path, api_url: Option<PathBuf>, json: bool) -> RunLines {
    if json {
        print_started_cluster(info, data);
    } else {
        note!("cluster is running on {} (data in {})", info.url, data.display());
        note!("submit runs with `{}`; Ctrl-C stops the cluster, no work is lost", command_hint("submit"));
        api_url.map(|file| tokio::spawn(print_api_url(file)));
    }
    RunLines::follow(info.clone(), json)
}

fn remove_file_if_any(file: Option<&Path>) {
    if let Some(file) = file {
        // A file that can't be removed is replaced by the gateway.
        let _ = std::fs::remove_file(file);
    }
}

/// Prints the URL of the HTTP API as soon as it is served.
async fn print_api_url(file: PathBuf) {
    let deadline = Instant::now() + REGISTRATION_LIMIT;
    while Instant::now() < deadline {
        if let Ok(url) = std::fs::read_to_string(&file) {
            return note!("the dashboard and the HTTP API are on {} (reference at /docs)", url.trim());
        }
        tokio::time::sleep(REGISTRATION_POLL).await;
    }
}

/// Reports what happens in a cluster, and mends what it can. Returns when the cluster can't work.
async fn watch_cluster(cluster: &mut LocalCluster, data: &Path, mut runs: Option<RunLines>) -> CommandError {
    let mut disk = DiskMonitor::new(data);
    loop {
        let next_line = async {
            match &mut runs {
                Some(runs) => runs.lines.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(line) = next_line => line.print(),
            () = tokio::time::sleep_until(disk.next_check().into()) => {
                cluster.rotate_logs();
                if !cluster.has_store() {
                    return CommandError::unusable_environment(anyhow!(
                        "the store of the cluster on {} was deleted, and its runs with it",
                        data.display()
                    ));
                }
                let Some(change) = disk.check() else { continue };
                // The commands that use a background cluster look at the disk themselves: its log is on the same disk.
                if runs.is_some() || change == DiskChange::Freed {
                    print_stderr_line(&change.describe(data));
                }
                if change == DiskChange::Freed && let Err(error) = cluster.restart_server() {
                    return CommandError::unusable_environment(error);
                }
            }
            Some(event) = cluster.next_event() => match find_refusal(&event) {
                Some(error) => return error,
                None => print_process_event(&event),
            },
        }
    }
}

/// Checks the settings of an existing cluster, and interrupts the runs that it has left unfinished. Reports what happens
/// in the cluster meanwhile.
async fn prepare_cluster(cluster: &mut LocalCluster, settings: &ClusterOptions) -> Result<(), CommandError> {
    let info = cluster.info().clone();
    let preparing = async {
        let bus = info.connect().await?;
        settings.check_settings_match(bus.settings())?;
        interrupt_unfinished_runs(&bus).await
    };
    tokio::pin!(preparing);
    loop {
        tokio::select! {
            prepared = &mut preparing => return prepared,
            Some(event) = cluster.next_event() => match find_refusal(&event) {
                Some(error) => return Err(error),
                None => print_process_event(&event),
            }
        }
    }
}

/// Interrupts the unfinished runs of a cluster.
async fn interrupt_live_runs(info: &ClusterInfo) -> Result<(), CommandError> {
    interrupt_unfinished_runs(&info.connect().await?).await
}

/// Starts a cluster in the background, unless one is running on the data folder already.
async fn start_in_background(options: LocalOptions, json: bool) -> CommandResult {
    let data = options.data.display();
    if let Some(info) = find_running_cluster(&options)? {
        if json {
            print_started_cluster(&info, &options.data);
        } else {
            note!("a cluster is already running on {} (data in {data})", info.url);
            print_stopped_runs(&info.connect().await?, None).await?;
        }
        return Ok(CommandExit::Completed);
    }
    open_models_to_check(&options)?;
    let mut cluster = local::start_detached(&options).await.map_err(CommandError::unusable_environment)?;
    let info = cluster.info.clone();
    let processes = async {
        if options.workers > 0 {
            wait_for_first_capability(&info).await?;
        }
        if options.api.is_some() && !json {
            print_api_url(options.api_url_path()).await;
        }
        Ok::<_, CommandError>(())
    };
    tokio::select! {
        error = cluster.wait_for_failure() => return Err(CommandError::unusable_environment(error)),
        ready = processes => ready?,
    }
    if json {
        print_started_cluster(&info, &options.data);
        return Ok(CommandExit::Completed);
    }
    note!("cluster is running on {} (data in {data})", info.url);
    note!(
        "submit runs with `{}`, read its logs with `{}`, stop it with `{}`",
        command_hint("submit"),
        command_hint("logs"),
        command_hint("down")
    );
    // The cluster runs, even if its runs can't be read.
    let earlier = describe_earlier_runs(&info.connect().await?).await.unwrap_or_default();
    earlier.iter().for_each(|line| print_stderr_line(line));
    Ok(CommandExit::Completed)
}

/// Waits, for a limited time, until a worker has registered, so that a run that is submitted next finds its capabilities.
async fn wait_for_first_capability(info: &ClusterInfo) -> Result<(), CommandError> {
    let bus = info.connect().await?;
    let is_registered = async || {
        let names = registry::read_capability_names(&bus).await?;
        Ok::<_, Fault>(names.iter().any(|name| name.as_str() != CRITIC))
    };
    let deadline = Instant::now() + REGISTRATION_LIMIT;
    while !is_registered().await? && Instant::now() < deadline {
        tokio::time::sleep(REGISTRATION_POLL).await;
    }
    Ok(())
}

fn print_started_cluster(info: &ClusterInfo, data: &Path) {
    let ClusterInfo { url, pid, .. } = info;
    print_json(&CommandOutcome::ClusterStarted { url, data: &data.display().to_string(), pid: *pid });
}

fn print_stopped_cluster(data: &Path, was_running: bool) {
    print_json(&CommandOutcome::ClusterStopped { data: &data.display().to_string(), was_running });
}

/// Returns the error that ends the command if a process refused to start: no restart can help.
fn find_refusal(event: &ProcessEvent) -> Option<CommandError> {
    match event {
        ProcessEvent::Refused { name, code, last_words, log } => {
            let reason = describe_last_words(last_words, &format!("exit code {code}"), log);
            let error = anyhow!("{name} can't start: {reason}");
            Some(match code {
                2 => CommandError::invalid_input(error),
                _ => CommandError::unusable_environment(error),
            })
        }
        ProcessEvent::Started { .. } | ProcessEvent::Died { .. } | ProcessEvent::NotStarted { .. } => None,
    }
}

/// Describes why a process ended: its error, or else how it ended, and where its log is.
fn describe_last_words(last_words: &str, status: &str, log: &Path) -> String {
    let log = log.display();
    match (last_words.strip_prefix("error: "), last_words) {
        (Some(error), _) => error.to_owned(),
        (None, "") => format!("it ended without a message ({status}); its log is {log}"),
        (None, line) => format!("it ended with {status}; the last line of its log {log}: {line}"),
    }
}

/// Prints what went wrong with a process; a normal start is not reported.
fn print_process_event(event: &ProcessEvent) {
    match event {
        ProcessEvent::Started { restarts: 0, .. } => {}
        ProcessEvent::Started { name, pid, restarts } => {
            note!("{name} restarted (process {pid}, restart {restarts})");
        }
        ProcessEvent::Died { name, status, last_words, log, .. } => {
            let why = if last_words.is_empty() { "it wrote no message" } else { last_words.as_str() };
            let log = log.display();
            note!("{name} ended unexpectedly ({status}), restarting; last log line: {why} (its log: {log})");
        }
        ProcessEvent::Refused { name, code, last_words, log } => {
            let why = describe_last_words(last_words, &format!("exit code {code}"), log);
            note!("{name} refused to start: {why}");
        }
        ProcessEvent::NotStarted { name, error, .. } => {
            note!("{name} can't be started: {error}; retrying");
        }
    }
}

/// Stops a cluster that runs in the background.
pub async fn run_down_command(arguments: DownArguments) -> CommandResult {
    let was_up = local::stop_cluster(&arguments.data).await.map_err(CommandError::unusable_environment)?;
    let data = arguments.data.display();
    if arguments.json {
        print_stopped_cluster(&arguments.data, was_up);
        return Ok(CommandExit::Completed);
    }
    print_stderr_line(&if was_up {
        format!("millrace: stopped the cluster on {data}")
    } else {
        format!("millrace: no cluster is running on {data}")
    });
    Ok(CommandExit::Completed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_without_words_is_reported_with_its_exit_code_and_its_log() {
        let refused = |last_words: &str| {
            let (name, log) = ("worker-1".to_owned(), PathBuf::from("/d/logs/worker-1.log"));
            let event = ProcessEvent::Refused { name, code: 4, last_words: last_words.into(), log };
            find_refusal(&event).unwrap().error.to_string()
        };
        assert_eq!(refused("error: no tool"), "worker-1 can't start: no tool");
        assert_eq!(
            refused(""),
            "worker-1 can't start: it ended without a message (exit code 4); its log is /d/logs/worker-1.log"
        );
        let panicked = refused("failed to spawn thread");
        assert!(panicked.contains("/d/logs/worker-1.log: failed to spawn thread"), "{panicked}");
    }
}
