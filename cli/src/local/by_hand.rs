//! A hidden command that keeps a cluster of any programs and tells its events, a JSON object a line.
//!
//! `millrace __cluster --data DIR --children '[{"role": "worker", "number": 1, "program": "sleep", "arguments": ["9"]}]'`.
//! For looking at a cluster's behaviour apart from what its processes do.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::cluster::Cluster;
use super::detached::{start_detached_as, stop};
use super::options::{Child, Options};

/// The command's name, which `--detached` uses again.
pub const NAME: &str = "__cluster";
const ENVIRONMENT_NOT_USABLE: u8 = 4;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    /// The processes, as a JSON array
    #[arg(long, value_parser = parse_children, default_value = "[]")]
    children: Children,
    /// Start the cluster in the background, print how to reach it, and end
    #[arg(long)]
    detached: bool,
    /// Stop the cluster that runs on the data folder
    #[arg(long, conflicts_with = "detached")]
    stop: bool,
}

#[derive(Clone)]
struct Children(Vec<Child>);

fn parse_children(text: &str) -> Result<Children, serde_json::Error> {
    serde_json::from_str(text).map(Children)
}

/// Runs the command. The first of `arguments` is its name.
pub fn run(arguments: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let again: Vec<OsString> =
        arguments.iter().filter(|argument| *argument != "--detached").cloned().collect();
    let arguments = Arguments::parse_from(arguments);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        match arguments {
            Arguments { stop: true, options, .. } => end(&options).await,
            Arguments { detached: true, options, .. } => start(&options, &again).await,
            Arguments { options, children, .. } => keep(options, children).await,
        }
    });
    Ok(outcome.map_or_else(
        |error| {
            eprintln!("millrace: {error}");
            ExitCode::from(ENVIRONMENT_NOT_USABLE)
        },
        |()| ExitCode::SUCCESS,
    ))
}

async fn start(options: &Options, again: &[OsString]) -> anyhow::Result<()> {
    let info = start_detached_as(&options.data, again).await?;
    println!("{}", json!({"event": "ready", "url": info.url, "pid": info.pid}));
    Ok(())
}

async fn end(options: &Options) -> anyhow::Result<()> {
    let was_running = stop(&options.data).await?;
    println!("{}", json!({"event": "stopped", "was_running": was_running}));
    Ok(())
}

async fn keep(options: Options, Children(children): Children) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut cluster = tokio::select! {
        cluster = Cluster::start_with(options, children) => cluster?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    println!("{}", json!({"event": "ready", "url": cluster.info().url, "pid": cluster.info().pid}));
    loop {
        tokio::select! {
            Some(event) = cluster.event() => println!("{}", serde_json::to_string(&event)?),
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
