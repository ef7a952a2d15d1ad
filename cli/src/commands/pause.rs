//! `millrace pause`: stops dispatching tasks of a run until it is resumed.

use clap::Args;
use millrace_protocol::plan::CommandAction;
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandError, CommandExit};
use crate::steer::SteeringArguments;

/// The arguments of `millrace pause`.
#[derive(Args, Debug)]
#[command(after_help = "`millrace resume RUN` continues the run.")]
pub struct PauseArguments {
    #[command(flatten)]
    steering: SteeringArguments,
}

/// Pauses and waits for the decision.
pub async fn run_command(
    arguments: PauseArguments,
    interrupt: CancellationToken,
) -> Result<CommandExit, CommandError> {
    arguments.steering.run_control_command(&interrupt, async |_, _| Ok(CommandAction::Pause)).await
}
