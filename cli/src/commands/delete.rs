//! `millrace delete`: deletes runs that have ended.

use std::time::Duration;

use clap::Args;
use millrace_client::{Administrator, author_name, find_run};
use millrace_protocol::audit::Actor;
use millrace_runtime::store::retention::{DeletionRequest, wait_for_deletion};

use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::json::{RunDeletionJson, print_json};
use crate::target::ClusterTarget;

const EXAMPLES: &str = "\
A live run is refused: cancel it first. A run that could be resumed can't be any more from then on. Blobs that nothing else refers to are removed in the background.

Examples:
  millrace delete 20261121-231500-k3f9q2
  millrace delete latest
  millrace prune --older-than 30d";

/// The arguments of `millrace delete`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DeleteArguments {
    /// Run id, a unique prefix of one, or `latest`; may be several
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<String>,
    /// Timeout of each deletion, which a supervisor carries out
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = millrace_runtime::clock::parse_duration)]
    wait: Duration,
    /// Author, recorded with the deletion [default: your login name]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Print a JSON object for each run
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

/// Requests the deletions and waits for them.
pub async fn run_command(arguments: DeleteArguments) -> CommandResult {
    let DeleteArguments { runs, wait, by, json, target } = arguments;
    let by = author_name(by);
    let deleting = async |bus: &millrace_runtime::Bus| {
        // All names are looked up first: a mistake in one deletes nothing, and `latest` means one run.
        let mut found = Vec::new();
        for text in &runs {
            let run = find_run(bus, text).await.map_err(CommandError::invalid_input)?;
            if !found.contains(&run) {
                found.push(run);
            }
        }
        let administrator = Administrator::new(bus, Actor::local(by));
        let mut is_complete = true;
        for run in &found {
            let request = administrator.delete_run(run).await.map_err(deletion_error)?;
            let deleted = match request {
                DeletionRequest::Deleted => true,
                DeletionRequest::Recorded | DeletionRequest::Pending => {
                    wait_for_deletion(bus, run, wait).await.map_err(deletion_error)?
                }
            };
            is_complete &= deleted;
            match (json, deleted) {
                (true, _) => print_json(&RunDeletionJson { run, deleted }),
                (false, true) => note!("run {run} is deleted"),
                (false, false) => note!("run {run} will be deleted as soon as a supervisor can do it"),
            }
        }
        Ok(if is_complete { CommandExit::Completed } else { CommandExit::Partial })
    };
    target.command(deleting).await
}

/// Converts the reason why a run can't be deleted.
pub fn deletion_error(error: millrace_runtime::store::retention::DeletionError) -> CommandError {
    use millrace_runtime::store::retention::DeletionError;
    match error {
        DeletionError::NotFound(_) | DeletionError::Live(_) => refused!(error),
        DeletionError::Fault(fault) => fault.into(),
    }
}
