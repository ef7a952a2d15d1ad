//! A hidden command that runs a cluster of arbitrary programs and prints its events as JSON lines.
//!
//! `millrace __cluster --data DIR --children '[{"role": "worker", "number": 1, "program": "sleep", "arguments": ["9"]}]'`.
//! It tests the management of processes with arbitrary programs.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::cluster::LocalCluster;
use crate::detached::{start_detached_as, stop_cluster};
use crate::options::{ChildSpec, LocalOptions};

/// The name of the command; `--detached` runs it again in the background.
pub const NAME: &str = "__cluster";
const ENVIRONMENT_UNUSABLE: u8 = 4;

#[derive(Parser)]
struct DebugCommandArguments {
    #[command(flatten)]
    options: LocalOptions,
    /// The processes, as a JSON array
    #[arg(long, value_parser = parse_child_specs, default_value = "[]")]
    children: ChildSpecs,
    /// Start the cluster in the background, print its address and exit
    #[arg(long)]
    detached: bool,
    /// Stop the cluster running on the data folder
    #[arg(long, conflicts_with = "detached")]
    stop: bool,
}

#[derive(Clone)]
struct ChildSpecs(Vec<ChildSpec>);

fn parse_child_specs(text: &str) -> Result<ChildSpecs, serde_json::Error> {
    serde_json::from_str(text).map(ChildSpecs)
}

/// Runs the command; the first argument is its name.
pub fn run_debug_command(arguments: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let foreground: Vec<OsString> =
        arguments.iter().filter(|argument| *argument != "--detached").cloned().collect();
    let arguments = DebugCommandArguments::parse_from(arguments);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        match arguments {
            DebugCommandArguments { stop: true, options, .. } => stop_cluster_and_wait(&options).await,
            DebugCommandArguments { detached: true, options, .. } => {
                start_cluster_detached(&options, &foreground).await
            }
            DebugCommandArguments { options, children, .. } => run_until_stopped(options, children).await,
        }
    });
    Ok(outcome.map_or_else(
        |error| {
            eprintln!("millrace: {error}");
            ExitCode::from(ENVIRONMENT_UNUSABLE)
        },
        |()| ExitCode::SUCCESS,
    ))
}

async fn start_cluster_detached(options: &LocalOptions, foreground: &[OsString]) -> anyhow::Result<()> {
    let info = start_detached_as(&options.data, foreground).await?.info;
    println!("{}", json!({"event": "ready", "url": info.url, "pid": info.pid}));
    Ok(())
}

async fn stop_cluster_and_wait(options: &LocalOptions) -> anyhow::Result<()> {
    let was_running = stop_cluster(&options.data).await?;
    println!("{}", json!({"event": "stopped", "was_running": was_running}));
    Ok(())
}

async fn run_until_stopped(options: LocalOptions, ChildSpecs(children): ChildSpecs) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut restart_server = signal(SignalKind::user_defined1())?;
    let mut cluster = tokio::select! {
        cluster = LocalCluster::start_with_children(options, children) => cluster?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    println!("{}", json!({"event": "ready", "url": cluster.info().url, "pid": cluster.info().pid}));
    loop {
        tokio::select! {
            Some(event) = cluster.next_event() => println!("{}", serde_json::to_string(&event)?),
            _ = restart_server.recv() => cluster.restart_server()?,
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    tokio::select! {
        () = cluster.stop() => println!("{}", json!({"event": "stopped"})),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
