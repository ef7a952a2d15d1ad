//! Control commands for a run: appends the command to the log, waits for the decision on it, and prints the outcome. A
//! command has an id that is generated once, so that it is applied once even if it is published several times.

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{
    AnswerCause, CommandAction, Decision, Event, GraphEvent, InputAnswer, Plan, Refusal, RunCommand,
    RunEvent, TaskEvent, UserEvent,
};
use millrace_protocol::safe_text::single_line;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::WireMessage;
use millrace_runtime::log::lane_tail::LaneTail;
use millrace_runtime::log::publish_message;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::store::archive;
use millrace_runtime::{Bus, Fault};
use tokio_util::sync::CancellationToken;

use crate::exit::run_until_interrupt;
use crate::exit::{CommandError, CommandExit};
use crate::invocation::command_hint;
use crate::json::{CommandOutcome, print_json};
use crate::report::resume_command_hint;
use crate::target::{ClusterTarget, ReadConnection, read_run_history};
use crate::view::print_stderr_line;
use millrace_client::{find_run, read_archived_records, retry_transient};

/// Time without a decision after which a hint is printed.
const QUIET: Duration = Duration::from_secs(3);
/// Maximum number of tasks that are listed in a line.
const MAX_NAMED: usize = 10;

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
    ///
    /// # Errors
    /// The run has ended, the command was refused, or the cluster does not answer.
    pub async fn run_control_command(
        self,
        interrupt: &CancellationToken,
        make: impl AsyncFnOnce(&Bus, &Plan) -> Result<CommandAction, CommandError>,
    ) -> Result<CommandExit, CommandError> {
        self.checked_command(interrupt, refuse_ended_run, make).await
    }

    /// Sends the command that `make` derives from the run's plan if `check` allows it, waits for the decision, and prints it.
    ///
    /// # Errors
    /// As for [`Self::command`].
    pub async fn checked_command(
        self,
        interrupt: &CancellationToken,
        check: impl FnOnce(&RunId, &Plan) -> Result<(), CommandError>,
        make: impl AsyncFnOnce(&Bus, &Plan) -> Result<CommandAction, CommandError>,
    ) -> Result<CommandExit, CommandError> {
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
                            print_stderr_line(&format!("millrace: {summary}"));
                        }
                        if is_offline && !ends_run(&events) {
                            print_stderr_line(&format!(
                                "millrace: no cluster is running, so the run makes no progress until `{}`",
                                command_hint(&format!("resume {run}"))
                            ));
                        }
                        Ok(CommandExit::Completed)
                    }
                    None => Ok(CommandExit::Interrupted),
                }
            };
            connection.read_and_close(command).await
        };
        run_until_interrupt(interrupt, Box::pin(work)).await
    }
}

fn ends_run(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Run(RunEvent::Ended { .. })))
}

/// Returns the author of a command: `by`, or else the login name.
pub fn author_name(by: Option<String>) -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|name| !name.trim().is_empty());
    by.or_else(|| variable("LOGNAME"))
        .or_else(|| variable("USER"))
        .or_else(login_name)
        .unwrap_or_else(|| "unknown".into())
}

fn login_name() -> Option<String> {
    let id = rustix::process::getuid().as_raw().to_string();
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.split(':').nth(2) == Some(&id))?;
    line.split(':').next().map(str::to_owned)
}

/// The decision on a message that a client appended to the log of a run.
#[derive(Debug)]
pub enum MessageDecision {
    /// It was applied, with these events.
    Applied(Vec<Event>),
    /// It was refused.
    Refused(Refusal),
    /// The run was archived without a decision on it.
    Archived,
    /// The user interrupted the wait; the message stays in the log.
    Interrupted,
}

/// Appends a message of a client to the log of a run, and waits for the decision on it. `id` is the idempotency key in it.
///
/// # Errors
/// The cluster does not answer, or refuses the message to this identity.
pub async fn append_and_await_decision<M: WireMessage>(
    bus: &Bus,
    run: &RunId,
    topic: &Topic,
    (message, id): (&M, &str),
    interrupt: &CancellationToken,
) -> Result<MessageDecision, Fault> {
    let lane = bus.lane_of_run(run);
    let publishing = publish_message(bus, lane, run, topic, message, id);
    let sequence = bus.fail_on_denial(&subject::topic_subject(lane, run, topic), publishing).await?;
    let answer = tokio::select! {
        answer = await_decision_on_fact(bus, run, sequence) => answer?,
        () = interrupt.cancelled() => return Ok(MessageDecision::Interrupted),
    };
    Ok(match answer {
        Some(Ok(events)) => MessageDecision::Applied(events),
        // It was published twice because the first acknowledgement was lost; the first copy was applied.
        Some(Err(Refusal::AlreadyApplied(applied))) if applied == id => MessageDecision::Applied(Vec::new()),
        Some(Err(refusal)) => MessageDecision::Refused(refusal),
        None => MessageDecision::Archived,
    })
}

/// Appends a command to the log and waits for the decision on it. Returns its events, or `None` if the user interrupts.
///
/// # Errors
/// The command was refused, the run ended before it, or the cluster does not answer.
pub async fn send_command_and_await_decision(
    bus: &Bus,
    run: &RunId,
    by: String,
    control: CommandAction,
    interrupt: &CancellationToken,
) -> Result<Option<Vec<Event>>, CommandError> {
    let id = uuid::Uuid::now_v7().simple().to_string();
    let command = RunCommand { id: id.clone(), by, control };
    match append_and_await_decision(bus, run, &Topic::Control, (&command, &id), interrupt).await? {
        MessageDecision::Applied(events) => Ok(Some(events)),
        MessageDecision::Refused(refusal) => Err(CommandError::invalid_input(anyhow!("{refusal}"))),
        MessageDecision::Interrupted => {
            print_stderr_line(&format!(
                "millrace: the command is in the log; it takes effect on run {run} when a supervisor is running"
            ));
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
pub fn lost_run_error(run: &RunId) -> CommandError {
    CommandError::unusable_environment(anyhow!("lost track of run {run}: the cluster no longer reports it"))
}

/// Waits for the decision on a fact; `None` if the run was archived without one.
async fn await_decision_on_fact(
    bus: &Bus,
    run: &RunId,
    fact: u64,
) -> Result<Option<Result<Vec<Event>, Refusal>>, Fault> {
    let lane = bus.lane_of_run(run);
    let (to, mut arrived) = tokio::sync::mpsc::channel(16);
    let mut tail = LaneTail::follow_subject(bus, lane, subject::topic_subject(lane, run, &Topic::Plan), fact);
    // A read must not be cancelled halfway, so the reader is a task of its own; it ends when its channel is closed.
    let reader = tokio::spawn(async move { while to.send(tail.next_records().await).await.is_ok() {} });
    let mut has_reported = false;
    let answer = loop {
        match tokio::time::timeout(QUIET, arrived.recv()).await {
            Ok(Some(records)) => {
                if let Some(answer) = find_answer_in_records(bus, &records, fact).await? {
                    break Some(answer);
                }
            }
            Ok(None) => break None,
            Err(_) => {
                if retry_transient(|| read_archived_records(bus, run)).await?.is_some() {
                    let records = archive::read_run_from_log_or_archive(bus, lane, run).await?;
                    break find_answer_in_records(bus, &records, fact).await?;
                }
                if !std::mem::replace(&mut has_reported, true) {
                    print_stderr_line(
                        "millrace: no supervisor has answered yet; the command stays in the log (Ctrl-C leaves it there)",
                    );
                }
            }
        }
    };
    reader.abort();
    Ok(answer)
}

async fn find_answer_in_records(
    bus: &Bus,
    records: &[StreamRecord],
    fact: u64,
) -> Result<Option<Result<Vec<Event>, Refusal>>, Fault> {
    for record in records {
        let is_plan = matches!(subject::parse_lane_subject(&record.subject), Some((_, _, Topic::Plan)));
        if record.sequence > fact && is_plan && !record.is_forged() {
            let decision: Decision = bus.decode_record(record).await?;
            if let Some(answer) = find_answer_in_decision(&decision, fact) {
                return Ok(Some(answer));
            }
        }
    }
    Ok(None)
}

/// Returns the answer to a fact in a decision, if there is one: the events, or the refusal.
fn find_answer_in_decision(decision: &Decision, fact: u64) -> Option<Result<Vec<Event>, Refusal>> {
    let mut at = 0;
    for InputAnswer { cause, events, refusal } in &decision.answers {
        let end = at + *events as usize;
        if *cause == AnswerCause::Fact(fact) {
            let own_events = || decision.events.get(at..end).unwrap_or_default().to_vec();
            return Some(refusal.clone().map_or_else(|| Ok(own_events()), Err));
        }
        at = end;
    }
    None
}

/// Refuses a command for a run that has ended, with advice.
pub fn refuse_ended_run(run: &RunId, plan: &Plan) -> Result<(), CommandError> {
    let Some(end) = &plan.run.end else { return Ok(()) };
    let detail =
        if end.detail.is_empty() { String::new() } else { format!(": {}", single_line(&end.detail)) };
    let advice =
        resume_command_hint(run, plan).map(|how| format!("resume it first: {how}")).unwrap_or_else(|| {
            let show = command_hint(&format!("show {run}"));
            let follow_up = command_hint(&format!("run OBJECTIVE --after {run}"));
            format!("`{show}` prints its results; `{follow_up}` follows up on them")
        });
    Err(CommandError::invalid_input(anyhow!("run {run} has ended ({}{detail}); {advice}", end.reason)))
}

/// Refuses a retry or more tasks in a run that has ended for good. One that failed continues with them.
pub fn refuse_edit_of_ended_run(run: &RunId, plan: &Plan) -> Result<(), CommandError> {
    match &plan.run.end {
        Some(end) if end.is_resumable && end.reason.can_be_retried() => Ok(()),
        Some(_) | None => refuse_ended_run(run, plan),
    }
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
    Err(CommandError::invalid_input(anyhow!("there is no task {id} in this run{hint}; {list}")))
}

fn join_task_ids(ids: &[&TaskId]) -> String {
    let names: Vec<&str> = ids.iter().take(MAX_NAMED).map(|id| id.as_str()).collect();
    match ids.len().saturating_sub(MAX_NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

// ---- the outcome of a command, in one line

/// Describes the changes of a command in one line: the run or one task first, then the consequences.
pub fn describe_changes(run: &RunId, events: &[Event]) -> String {
    let (first, named) = match events.iter().find_map(describe_run_change) {
        Some(what) => (format!("run {run} {what}"), 0),
        None => match events.iter().find_map(describe_task_change) {
            Some(what) => (what, 1),
            None => (format!("run {run}: the command was applied"), 0),
        },
    };
    let also = describe_consequences(events, named);
    if also.is_empty() { first } else { format!("{first}; {}", also.join("; ")) }
}

/// Describes a change of the run as a whole.
fn describe_run_change(event: &Event) -> Option<&'static str> {
    if let Event::Run(RunEvent::Ended { .. }) = event {
        Some("is cancelled")
    } else if let Event::Run(RunEvent::Paused) = event {
        Some("is paused: running tasks finish, no new ones start")
    } else if let Event::Run(RunEvent::Interrupted) = event {
        Some("is interrupted: nothing of it runs until it is resumed")
    } else if let Event::Run(RunEvent::Reopened) | Event::Run(RunEvent::Resumed { .. }) = event {
        Some("is resumed")
    } else if let Event::User(UserEvent::MessageReceived { .. }) = event {
        Some("has received the message for its planner")
    } else {
        None
    }
}

/// Describes a change of one task.
fn describe_task_change(event: &Event) -> Option<String> {
    if let Event::Task(TaskEvent::Cancelled { task, .. }) = event {
        Some(format!("task {task} is cancelled"))
    } else if let Event::Task(TaskEvent::Reopened { task, attempt, ready, .. }) = event {
        let when = if *ready { "" } else { " when its dependencies are completed" };
        Some(format!("task {task} will be retried as attempt {attempt}{when}"))
    } else if let Event::Graph(GraphEvent::TaskPatched { spec, .. }) = event {
        Some(format!("task {} is changed", spec.id))
    } else if let Event::Graph(GraphEvent::FinalMarked { task }) = event {
        Some(format!("task {task} is now the final task"))
    } else if let Event::Graph(GraphEvent::TaskAdded { spec, .. }) = event {
        Some(format!("task {} is added", spec.id))
    } else {
        None
    }
}

/// Lists the consequences by kind; `named` events of each kind are in the first part already.
fn describe_consequences(events: &[Event], named: usize) -> Vec<String> {
    let tasks = |what: &str, is_it: fn(&Event) -> bool, skip: usize| {
        let ids: Vec<&TaskId> =
            events.iter().filter(|event| is_it(event)).filter_map(Event::task).skip(skip).collect();
        (!ids.is_empty()).then(|| format!("{what} {}", join_task_ids(&ids)))
    };
    let is_changed = events.iter().any(|event| matches!(event, Event::Graph(GraphEvent::TaskPatched { .. })));
    [
        tasks("also cancelled:", |event| matches!(event, Event::Task(TaskEvent::Cancelled { .. })), named),
        // A changed task that was waiting for a retry is retried at once: that is the same task.
        tasks(
            "retried:",
            |event| matches!(event, Event::Task(TaskEvent::Reopened { .. })),
            named.max(usize::from(is_changed)),
        ),
        tasks(
            "dependents to run again:",
            |event| matches!(event, Event::Task(TaskEvent::Invalidated { .. })),
            0,
        ),
        tasks("also added:", |event| matches!(event, Event::Graph(GraphEvent::TaskAdded { .. })), named),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests;
