//! `millrace add`: adds the tasks of a plan file to a run in progress, or to an ended one, which continues with them.

use std::path::PathBuf;

use clap::Args;
use millrace_protocol::plan::{CapabilityRegistry, CommandAction, Edit, Plan};
use millrace_runtime::Bus;
use millrace_runtime::work::registry;
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandError, CommandExit};
use crate::plan_file::{self, AdditionalTasks};
use crate::steer::{SteeringArguments, refuse_edit_of_ended_run};
use crate::submission::check_tasks_of_file;
use crate::view::print_stderr_line;

const EXAMPLE: &str = "\
Example:
  millrace add latest --plan more-tasks.yaml

`millrace schema plan` prints the format of the file.";

/// The arguments of `millrace add`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLE)]
pub struct AddArguments {
    #[command(flatten)]
    steering: SteeringArguments,
    /// Plan file with the tasks. Either all are added or none; they may depend on tasks of the run
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
}

/// Adds tasks and waits for the decision.
pub async fn run_command(
    arguments: AddArguments,
    interrupt: CancellationToken,
) -> Result<CommandExit, CommandError> {
    let AddArguments { steering, plan: file } = arguments;
    let make = async |bus: &Bus, plan: &Plan| {
        let AdditionalTasks { tasks, positions } =
            plan_file::load_additional_tasks(&file, plan).map_err(CommandError::invalid_input)?;
        let known = registry::read_capabilities(bus).await?;
        let known = CapabilityRegistry::from_descriptions(known.values());
        let name = file.display().to_string();
        for unknown in check_tasks_of_file(&name, (&tasks, &positions), &known, plan.has_planner())? {
            print_stderr_line(&format!("millrace: warning: {unknown}; tasks that need it will wait"));
        }
        Ok(CommandAction::Edit(Edit::Add(tasks)))
    };
    steering.checked_command(&interrupt, refuse_edit_of_ended_run, make).await
}
