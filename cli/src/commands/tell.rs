//! `millrace tell`: a message to the planner of a run.

use clap::Args;
use millrace_protocol::plan::Control;
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Stop};
use crate::steer::Steering;

/// The arguments of `millrace tell`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    steering: Steering,
    /// What the planner is told, at most 16,000 bytes
    text: String,
}

/// Tells the planner, and waits until it is decided.
pub async fn command(arguments: Arguments, interrupt: CancellationToken) -> Result<Exit, Stop> {
    let Arguments { steering, text } = arguments;
    steering.command(&interrupt, async |_, _| Ok(Control::Message { text })).await
}
