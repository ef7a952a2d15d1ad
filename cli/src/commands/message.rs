//! `millrace message`: sends a message to the planner of a run.

use clap::Args;
use millrace_protocol::plan::CommandAction;
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandError, CommandExit};
use crate::steer::SteeringArguments;

const EXPLANATION: &str = "\
The planner reads the message in its next turn and may change the plan. A run without a planner refuses it.

Example:
  millrace message latest \"Cover Windows too, and drop the section on pricing\"";

/// The arguments of `millrace message`.
#[derive(Args, Debug)]
#[command(after_help = EXPLANATION)]
pub struct MessageArguments {
    #[command(flatten)]
    steering: SteeringArguments,
    /// The message, at most 16,000 bytes
    text: String,
}

/// Sends the message and waits for the decision on it.
pub async fn run_command(
    arguments: MessageArguments,
    interrupt: CancellationToken,
) -> Result<CommandExit, CommandError> {
    let MessageArguments { steering, text } = arguments;
    steering.run_control_command(&interrupt, async |_, _| Ok(CommandAction::Message { text })).await
}
