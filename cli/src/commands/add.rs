//! `millrace add`: the tasks of a plan file, for a run that is under way.

use std::path::PathBuf;

use clap::Args;
use millrace_protocol::plan::{Control, Edit, Plan};
use millrace_runtime::Bus;
use tokio_util::sync::CancellationToken;

use crate::commands::submit::warn_of_unknown;
use crate::exit::{Exit, Stop};
use crate::plan_file;
use crate::steer::Steering;

/// The arguments of `millrace add`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    steering: Steering,
    /// Plan file with the tasks, all of which are added or none; they may depend on those of the run
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
}

/// Adds tasks, and waits until it is decided.
pub async fn command(arguments: Arguments, interrupt: CancellationToken) -> Result<Exit, Stop> {
    let Arguments { steering, plan: file } = arguments;
    let make = async |bus: &Bus, plan: &Plan| {
        let tasks = plan_file::load_more(&file, plan).map_err(Stop::refused)?;
        warn_of_unknown(bus, tasks.iter().map(|task| &task.capability)).await?;
        Ok(Control::Edit(Edit::Add(tasks)))
    };
    steering.command(&interrupt, make).await
}
