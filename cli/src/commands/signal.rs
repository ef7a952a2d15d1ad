//! `millrace signal`: signals an event to a run, which ends the waits for it.

use anyhow::anyhow;
use clap::Args;
use millrace_protocol::foreign_json::{mend_json_text, parse_foreign_json};
use millrace_protocol::plan::CommandAction;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandError, CommandExit};
use crate::steer::SteeringArguments;

const EXPLANATION: &str = "\
An event ends the waits for its name. It is kept: a wait that begins later gets the oldest event of its name that its attempt
has not received yet.

Examples:
  millrace signal latest deployed
  millrace signal latest deployed --payload '{\"version\": 3}'";

/// The arguments of `millrace signal`.
#[derive(Args, Debug)]
#[command(after_help = EXPLANATION)]
pub struct SignalArguments {
    #[command(flatten)]
    steering: SteeringArguments,
    /// The name of the event
    name: String,
    /// The data of the event, as JSON of at most 16,000 bytes; the attempt that waits receives it
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
}

/// Signals the event and waits for the decision on it.
pub async fn run_command(
    arguments: SignalArguments,
    interrupt: CancellationToken,
) -> Result<CommandExit, CommandError> {
    let SignalArguments { steering, name, payload } = arguments;
    let data = mend_json_text(payload.unwrap_or_default());
    if let Err(mistake) = check_data(&data) {
        return Err(CommandError::invalid_input(anyhow!(
            "--payload is not JSON: {mistake}; quote a text: --payload '\"…\"'"
        )));
    }
    steering.run_control_command(&interrupt, async |_, _| Ok(CommandAction::Signal { name, data })).await
}

fn check_data(data: &str) -> Result<(), serde_json::Error> {
    if data.is_empty() { Ok(()) } else { parse_foreign_json::<Value>(data).map(drop) }
}
