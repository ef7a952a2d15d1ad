//! `millrace backup`: a copy of a cluster in a folder, taken while it runs; and the check of such a copy.

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use millrace_runtime::Bus;
use millrace_runtime::backup::{self, Error, Manifest, Progress};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::client::{Reading, Target};
use crate::exit::{Exit, Stop};
use crate::view::{emit, print_line, say};

/// The arguments of `millrace backup`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Where the backup is to be: a folder that is not there yet
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Check every byte of the backup that is there, and take none
    #[arg(long)]
    verify: bool,
    /// Print what is in it as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Takes a backup, or checks one. Nothing is left of one that is interrupted.
pub async fn command(arguments: Arguments, shutdown: CancellationToken) -> Result<Exit, Stop> {
    if arguments.verify {
        let manifest = backup::verify(&arguments.folder, &shutdown, &tell).map_err(stopped)?;
        return Ok(report(&manifest, &arguments, "is whole"));
    }
    let reading = Reading::open(&arguments.target).await?;
    reading.with(async |bus| take(bus, &arguments, &shutdown).await).await
}

async fn take(bus: &Bus, arguments: &Arguments, shutdown: &CancellationToken) -> Result<Exit, Stop> {
    let manifest = tokio::select! {
        taken = backup::take(bus, &arguments.folder, &tell) => taken.map_err(stopped)?,
        () = shutdown.cancelled() => return Err(stopped(Error::Stopped)),
    };
    Ok(report(&manifest, arguments, "is taken"))
}

fn report(manifest: &Manifest, arguments: &Arguments, what: &str) -> Exit {
    if arguments.json {
        emit(&described(manifest));
        return Exit::Completed;
    }
    let folder = arguments.folder.display();
    let (size, at) = (bytes(manifest.bytes()), manifest.taken.strftime("%Y-%m-%d %H:%M:%S UTC"));
    print_line(&format!("the backup {folder} of {at} {what}: {} files, {size}", manifest.parts.len()));
    Exit::Completed
}

/// What a backup holds, for machines.
pub fn described(manifest: &Manifest) -> Value {
    let parts = manifest.parts.iter().map(|part| {
        json!({ "name": part.name(), "file": part.file, "bytes": part.bytes, "messages": part.count() })
    });
    json!({
        "taken": manifest.taken, "version": manifest.version, "settings": manifest.settings,
        "bytes": manifest.bytes(), "parts": parts.collect::<Vec<_>>(),
    })
}

/// Progress for people, a line each.
pub fn tell(progress: Progress<'_>) {
    let Progress { doing, what, bytes: so_far, is_done } = progress;
    let more = if is_done { "" } else { " so far" };
    say(&format!("millrace: {doing} {what}: {}{more}", bytes(so_far)));
}

/// How a command ends that comes to nothing for this reason.
pub fn stopped(error: Error) -> Stop {
    let exit = match &error {
        Error::Exists { .. }
        | Error::Foreign { .. }
        | Error::Newer { .. }
        | Error::Damaged { .. }
        | Error::Occupied { .. }
        | Error::Unfinished { .. } => Exit::Refused,
        Error::File { .. } | Error::Stream { .. } | Error::Fault(_) => Exit::Environment,
        Error::Stopped => Exit::Interrupted,
    };
    Stop { exit, error: anyhow!(error) }
}

fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}
