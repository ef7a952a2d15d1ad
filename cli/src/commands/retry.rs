//! `millrace retry`: retries a task, and the tasks that depend on it.

use clap::Args;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{CommandAction, Edit};
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandError, CommandExit};
use crate::steer::{SteeringArguments, refuse_edit_of_ended_run, refuse_unknown_task};

const EXAMPLE: &str = "\
Example:
  millrace retry latest draft --feedback \"Cite the 2024 edition\"";

/// The arguments of `millrace retry`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLE)]
pub struct RetryArguments {
    #[command(flatten)]
    steering: SteeringArguments,
    /// The task: failed, cancelled, waiting for a retry, or completed
    task: TaskId,
    /// Feedback for the next attempt, in addition to the objective
    #[arg(long, value_name = "TEXT")]
    feedback: Option<String>,
}

/// Retries a task and waits for the decision.
pub async fn run_command(
    arguments: RetryArguments,
    interrupt: CancellationToken,
) -> Result<CommandExit, CommandError> {
    let RetryArguments { steering, task, feedback } = arguments;
    let make = async |_: &_, plan: &_| {
        refuse_unknown_task(plan, &task)?;
        Ok(CommandAction::Edit(Edit::Retry { task, feedback }))
    };
    steering.checked_command(&interrupt, refuse_edit_of_ended_run, make).await
}
