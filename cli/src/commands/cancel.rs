//! `millrace cancel`: cancels a run, or one of its tasks and its dependents.

use clap::Args;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::CommandAction;
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandError, CommandExit};
use crate::steer::{SteeringArguments, refuse_unknown_task};

const EXAMPLES: &str = "\
A cancelled run can't be resumed; `millrace pause` stops a run that is to be resumed later.

Examples:
  millrace cancel latest
  millrace cancel latest --task draft --reason \"out of scope\"";

/// The arguments of `millrace cancel`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CancelArguments {
    #[command(flatten)]
    steering: SteeringArguments,
    /// Cancel only this task. Tasks that depend on it follow their own on_failed_dependency
    #[arg(long, value_name = "TASK")]
    task: Option<TaskId>,
    /// Reason; recorded in the log
    #[arg(long, value_name = "TEXT", default_value = "cancelled by the user")]
    reason: String,
}

/// Cancels and waits for the decision.
pub async fn run_command(
    arguments: CancelArguments,
    interrupt: CancellationToken,
) -> Result<CommandExit, CommandError> {
    let CancelArguments { steering, task, reason } = arguments;
    let make = async |_: &_, plan: &_| match task {
        None => Ok(CommandAction::CancelRun { reason }),
        Some(task) => {
            refuse_unknown_task(plan, &task)?;
            Ok(CommandAction::CancelTask { task, reason })
        }
    };
    steering.run_control_command(&interrupt, make).await
}
