//! `millrace pause`: nothing more of a run is given out until it is resumed.

use clap::Args;
use millrace_protocol::plan::Control;
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Stop};
use crate::steer::Steering;

/// The arguments of `millrace pause`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    steering: Steering,
}

/// Pauses, and waits until it is decided.
pub async fn command(arguments: Arguments, interrupt: CancellationToken) -> Result<Exit, Stop> {
    arguments.steering.command(&interrupt, async |_, _| Ok(Control::Pause)).await
}
