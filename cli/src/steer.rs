//! Control commands for a run: appends the command to the log, waits for the decision on it, and prints the outcome. A
//! command has an id that is generated once, so that it is applied once even if it is published several times.

use anyhow::anyhow;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{
    CommandAction, Event, Plan, RunCommand, RunEvent, suggest_larger_limits, tasks_without_budget,
};
use millrace_protocol::safe_text::single_line;
use millrace_protocol::subject::Topic;
use millrace_runtime::Bus;
use millrace_views::changes::join_task_ids;
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandError, CommandExit};
use crate::exit::{CommandResult, run_until_interrupt};
use crate::invocation::{command_hint, is_remote};
use crate::json::{CommandOutcome, print_json};
use crate::report::resume_command_hint;
use crate::target::{ClusterTarget, ReadConnection, read_run_history};
use crate::view::print_stderr_line;
use millrace_client::{AppliedMessage, MessageDecision, Patience, append_and_await_decision, find_run};

pub use millrace_client::author_name;
pub use millrace_views::changes::describe_changes;

/// The arguments common to all control commands: run, author, cluster.
#[derive(Args, Debug)]
pub struct SteeringArguments {
    /// Run id, a unique prefix of it, or `latest`
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    run: String,
    /// Author of the command, recorded in the log [default: your login name]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Print the outcome as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

impl SteeringArguments {
    /// Sends the command that `make` derives from the run's plan, waits for the decision, and prints it.
    pub async fn run_control_command(
        self,
        interrupt: &CancellationToken,
        make: impl AsyncFnOnce(&Bus, &Plan) -> Result<CommandAction, CommandError>,
    ) -> CommandResult {
        self.checked_command(interrupt, refuse_ended_run, make).await
    }

    /// Sends the command that `make` derives from the run's plan if `check` allows it, waits for the decision, and prints it.
    pub async fn checked_command(
        self,
        interrupt: &CancellationToken,
        check: impl FnOnce(&RunId, &Plan) -> Result<(), CommandError>,
        make: impl AsyncFnOnce(&Bus, &Plan) -> Result<CommandAction, CommandError>,
    ) -> CommandResult {
        let Self { run, by, json, target } = self;
        let work = async {
            let connection = ReadConnection::open_for_command(&target).await?;
            let is_offline = connection.is_offline();
            let command = async |bus: &Bus| {
                let run = find_run(bus, &run).await?;
                let plan = read_run_history(bus, &run).await?.plan;
                check(&run, &plan)?;
                let control = make(bus, &plan).await?;
                match send_command_and_await_decision(bus, &run, author_name(by), control, interrupt).await? {
                    Some(events) => {
                        let summary = describe_changes(&run, &events);
                        if json {
                            print_json(&CommandOutcome::applied(&run, summary, &events));
                        } else {
                            note!("{summary}");
                        }
                        if is_offline && !ends_run(&events) {
                            note!(
                                "no cluster is running, so the run makes no progress until `{}`",
                                command_hint(&format!("resume {run}"))
                            );
                        }
                        Ok(CommandExit::Completed)
                    }
                    None => Ok(CommandExit::Interrupted),
                }
            };
            connection.read_and_close(command).await
        };
        run_until_interrupt(interrupt, work).await
    }
}

fn ends_run(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Run(RunEvent::Ended { .. })))
}

/// Returns the patience of a command: until the user interrupts, with a hint if no supervisor answers.
pub fn patience(interrupt: &CancellationToken) -> Patience<'_> {
    Patience { interrupt, on_quiet: &print_quiet_hint }
}

fn print_quiet_hint() {
    print_stderr_line(
        "millrace: no supervisor has answered yet; the command stays in the log (Ctrl-C leaves it there)",
    );
}

/// Appends a command to the log and waits for the decision on it. Returns its events, or `None` if the user interrupts.
pub async fn send_command_and_await_decision(
    bus: &Bus,
    run: &RunId,
    by: String,
    control: CommandAction,
    interrupt: &CancellationToken,
) -> Result<Option<Vec<Event>>, CommandError> {
    let id = uuid::Uuid::now_v7().simple().to_string();
    let command = RunCommand { id: id.clone(), by, control };
    match append_and_await_decision(bus, run, &Topic::Control, (&command, &id), patience(interrupt)).await? {
        MessageDecision::Applied(AppliedMessage { sequence: _, events }) => Ok(Some(events)),
        MessageDecision::Refused(refusal) => Err(refused!("{refusal}")),
        MessageDecision::Interrupted => {
            note!("the command is in the log; it takes effect on run {run} when a supervisor is running");
            Ok(None)
        }
        MessageDecision::Archived => {
            let plan = read_run_history(bus, run).await?.plan;
            refuse_ended_run(run, &plan)?;
            Err(lost_run_error(run))
        }
    }
}

/// The error about a run that is neither in its lane nor in the archive.
fn lost_run_error(run: &RunId) -> CommandError {
    CommandError::unusable_environment(anyhow!("lost track of run {run}: the cluster no longer reports it"))
}

/// Refuses a command for a run that has ended, with advice.
pub fn refuse_ended_run(run: &RunId, plan: &Plan) -> Result<(), CommandError> {
    let Some(end) = &plan.run.end else { return Ok(()) };
    let detail =
        if end.detail.is_empty() { String::new() } else { format!(": {}", single_line(&end.detail)) };
    let advice =
        resume_command_hint(run, plan).map(|how| format!("resume it first: {how}")).unwrap_or_else(|| {
            let show = command_hint(&format!("show {run}"));
            let submit = if is_remote() { "submit" } else { "run" };
            let follow_up = command_hint(&format!("{submit} OBJECTIVE --after {run}"));
            // A task that has used up its budget fails again.
            let can_retry = plan.can_be_reopened()
                && suggest_larger_limits(plan).is_none()
                && tasks_without_budget(plan).is_empty();
            let retry = can_retry.then(|| command_hint(&format!("retry {run} TASK")));
            let retry =
                retry.map(|retry| format!(", `{retry}` runs a task of it again, with changes if wanted"));
            format!(
                "`{show}` prints its results; `{follow_up}` follows up on them{}",
                retry.unwrap_or_default()
            )
        });
    Err(refused!("run {run} has ended ({}{detail}); {advice}", end.reason))
}

/// Refuses a retry or more tasks in an ended run that they can't reopen: its budget was used up, or it never had a plan.
pub fn refuse_edit_of_ended_run(run: &RunId, plan: &Plan) -> Result<(), CommandError> {
    if plan.can_be_reopened() { Ok(()) } else { refuse_ended_run(run, plan) }
}

/// Refuses an unknown task id. Before the first decision no task is known; the supervisor then checks the id.
pub fn refuse_unknown_task(plan: &Plan, id: &TaskId) -> Result<(), CommandError> {
    if plan.run.start.is_none() || plan.task(id).is_some() {
        return Ok(());
    }
    let ids: Vec<&TaskId> = plan.tasks().iter().map(|task| &task.spec.id).collect();
    let hint = millrace_strict_yaml::did_you_mean_hint(id.as_str(), ids.iter().map(|id| id.as_str()));
    let list =
        if ids.is_empty() { "it has no tasks".into() } else { format!("its tasks: {}", join_task_ids(&ids)) };
    Err(refused!("there is no task {id} in this run{hint}; {list}"))
}
