//! `millrace retry`: retries a task, with changes if wanted, and the tasks that depend on it.

use clap::Args;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{CommandAction, Edit, Plan};
use millrace_runtime::Bus;
use tokio_util::sync::CancellationToken;

use crate::commands::edit::TaskChanges;
use crate::commands::submit::warn_of_unregistered_capabilities;
use crate::exit::{CommandError, CommandExit};
use crate::steer::{SteeringArguments, refuse_edit_of_ended_run, refuse_unknown_task};

const EXAMPLES: &str = "\
Examples:
  millrace retry latest draft --feedback \"Cite the 2024 edition\"
  millrace retry latest fetch --param url=\"https://example.org/new\" --run-time 30m";

/// The arguments of `millrace retry`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RetryArguments {
    #[command(flatten)]
    steering: SteeringArguments,
    /// The task: failed, cancelled, waiting for a retry, or completed
    task: TaskId,
    /// Feedback for the next attempt, in addition to the objective
    #[arg(long, value_name = "TEXT")]
    feedback: Option<String>,
    #[command(flatten)]
    changes: TaskChanges,
}

/// Retries a task and waits for the decision.
pub async fn run_command(
    arguments: RetryArguments,
    interrupt: CancellationToken,
) -> Result<CommandExit, CommandError> {
    let RetryArguments { steering, task, feedback, changes } = arguments;
    let make = async |bus: &Bus, plan: &Plan| {
        refuse_unknown_task(plan, &task)?;
        warn_of_unregistered_capabilities(bus, changes.new_capability()).await?;
        let is_changed = !changes.is_empty();
        let changes = is_changed.then(|| Box::new(changes.into_patch(task.clone(), plan)));
        Ok(CommandAction::Edit(Edit::Retry { task, feedback, changes }))
    };
    steering.checked_command(&interrupt, refuse_edit_of_ended_run, make).await
}
