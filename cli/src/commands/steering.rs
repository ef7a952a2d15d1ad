//! The commands that steer a run: each appends a command to its log, and waits for the decision on it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use millrace_protocol::foreign_json::{JsonOrText, mend_json_text, parse_foreign_json, parse_json_or_text};
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::parameters::TaskParameters;
use millrace_protocol::plan::{
    CapabilityRegistry, CommandAction, Edit, OnFailedDependency, Plan, PlanTime, ReviewPolicy, StartEvent,
    TaskPatch,
};
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, clock};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::commands::submit::warn_of_unregistered_capabilities;
use crate::exit::{CommandError, CommandResult};
use crate::plan_file::{self, AdditionalTasks};
use crate::steer::{SteeringArguments, refuse_edit_of_ended_run, refuse_unknown_task};
use crate::submission::check_tasks_of_file;

const CANCEL_HELP: &str = "\
A cancelled run can't be resumed; `millrace pause` stops a run that is to be resumed later.

Examples:
  millrace cancel latest
  millrace cancel latest --task draft --reason \"out of scope\"";

#[derive(Args, Debug)]
#[command(after_help = CANCEL_HELP)]
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

impl CancelArguments {
    /// Cancels and waits for the decision.
    pub async fn run(self, interrupt: CancellationToken) -> CommandResult {
        let CancelArguments { steering, task, reason } = self;
        let make = async |_: &_, plan: &_| match task {
            None => Ok(CommandAction::CancelRun { reason }),
            Some(task) => {
                refuse_unknown_task(plan, &task)?;
                Ok(CommandAction::CancelTask { task, reason })
            }
        };
        steering.run_control_command(&interrupt, make).await
    }
}

#[derive(Args, Debug)]
#[command(after_help = "`millrace resume RUN` continues the run.")]
pub struct PauseArguments {
    #[command(flatten)]
    steering: SteeringArguments,
}

impl PauseArguments {
    /// Pauses and waits for the decision.
    pub async fn run(self, interrupt: CancellationToken) -> CommandResult {
        self.steering.run_control_command(&interrupt, async |_, _| Ok(CommandAction::Pause)).await
    }
}

const MESSAGE_HELP: &str = "\
The planner reads the message in its next turn and may change the plan. A run without a planner refuses it.

Example:
  millrace message latest \"Cover Windows too, and drop the section on pricing\"";

#[derive(Args, Debug)]
#[command(after_help = MESSAGE_HELP)]
pub struct MessageArguments {
    #[command(flatten)]
    steering: SteeringArguments,
    /// The message, at most 16,000 bytes
    text: String,
}

impl MessageArguments {
    /// Sends the message and waits for the decision on it.
    pub async fn run(self, interrupt: CancellationToken) -> CommandResult {
        let MessageArguments { steering, text } = self;
        steering.run_control_command(&interrupt, async |_, _| Ok(CommandAction::Message { text })).await
    }
}

const SIGNAL_HELP: &str = "\
An event ends the waits for its name. It is kept: a wait that begins later gets the oldest event of its name that its attempt
has not received yet.

Examples:
  millrace signal latest deployed
  millrace signal latest deployed --payload '{\"version\": 3}'";

#[derive(Args, Debug)]
#[command(after_help = SIGNAL_HELP)]
pub struct SignalArguments {
    #[command(flatten)]
    steering: SteeringArguments,
    /// The name of the event
    name: String,
    /// The data of the event, as JSON of at most 16,000 bytes; the attempt that waits receives it
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
}

impl SignalArguments {
    /// Signals the event and waits for the decision on it.
    pub async fn run(self, interrupt: CancellationToken) -> CommandResult {
        let SignalArguments { steering, name, payload } = self;
        let data = mend_json_text(payload.unwrap_or_default());
        if let Err(mistake) = check_data(&data) {
            return Err(refused!("--payload is not JSON: {mistake}; quote a text: --payload '\"…\"'"));
        }
        steering.run_control_command(&interrupt, async |_, _| Ok(CommandAction::Signal { name, data })).await
    }
}

fn check_data(data: &str) -> Result<(), serde_json::Error> {
    if data.is_empty() { Ok(()) } else { parse_foreign_json::<Value>(data).map(drop) }
}

const ADD_HELP: &str = "\
Example:
  millrace add latest --plan more-tasks.yaml

`millrace schema plan` prints the format of the file.";

#[derive(Args, Debug)]
#[command(after_help = ADD_HELP)]
pub struct AddArguments {
    #[command(flatten)]
    steering: SteeringArguments,
    /// Plan file with the tasks. Either all are added or none; they may depend on tasks of the run
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
}

impl AddArguments {
    /// Adds tasks and waits for the decision.
    pub async fn run(self, interrupt: CancellationToken) -> CommandResult {
        let AddArguments { steering, plan: file } = self;
        let make = async |bus: &Bus, plan: &Plan| {
            let AdditionalTasks { tasks, positions } =
                plan_file::load_additional_tasks(&file, plan).map_err(CommandError::invalid_input)?;
            let known = registry::read_capabilities(bus).await?;
            let known = CapabilityRegistry::from_descriptions(known.values());
            let name = file.display().to_string();
            for unknown in check_tasks_of_file(&name, (&tasks, &positions), &known, plan.has_planner())? {
                note!("warning: {unknown}; tasks that need it will wait");
            }
            Ok(CommandAction::Edit(Edit::Add(tasks)))
        };
        steering.checked_command(&interrupt, refuse_edit_of_ended_run, make).await
    }
}

const EDIT_HELP: &str = "\
Examples:
  millrace edit latest draft --objective \"Write two pages, with a table\"
  millrace edit latest draft --depends-on sources,interviews --max-attempts 5
  millrace edit latest draft --not-before 2026-12-01T09:00:00Z --wait-for-event approved
  millrace edit latest draft --final";

#[derive(Args, Debug)]
#[command(after_help = EDIT_HELP)]
pub struct EditArguments {
    #[command(flatten)]
    steering: SteeringArguments,
    /// The task; no worker may have claimed it yet
    task: TaskId,
    #[command(flatten)]
    changes: TaskChanges,
    /// Make its result the deliverable of the run, instead of any other task's; can't be combined with other changes
    #[arg(long = "final", conflicts_with = "TaskChanges")]
    is_final: bool,
}

/// The fields to change; all others stay as they are.
#[derive(Args, Debug, Clone)]
#[group(multiple = true)]
pub struct TaskChanges {
    /// New objective of the task
    #[arg(long, value_name = "TEXT")]
    objective: Option<String>,
    /// Capability that executes it
    #[arg(long, value_name = "NAME")]
    capability: Option<Capability>,
    /// Complete list of the tasks it depends on, separated by commas; an empty text means none
    #[arg(long, value_name = "TASKS", value_parser = parse_dependencies)]
    depends_on: Option<DependencyList>,
    /// Set a parameter to a JSON value (anything else is taken as text); null removes it. May be given several times
    #[arg(long = "param", value_name = "NAME=JSON", value_parser = parse_parameter)]
    parameters: Vec<(String, Value)>,
    /// How its result is reviewed, as in a plan file: none, critic, {criteria: […]} or {checks: […]}
    #[arg(long, value_name = "REVIEW", value_parser = parse_review)]
    review: Option<ReviewPolicy>,
    /// Maximum number of attempts
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Maximum run time of an attempt, such as 15m
    #[arg(long, value_name = "TIME", value_parser = clock::parse_duration)]
    run_time: Option<Duration>,
    /// Policy if a task it depends on fails or is cancelled: cancel, skip (run without it) or ask (the planner)
    #[arg(long, value_name = "POLICY", value_parser = plan_file::parse_on_failed_dependency)]
    on_failed_dependency: Option<OnFailedDependency>,
    /// Time before which it does not start: 2026-12-01T09:00:00Z, or 2h after the start of the run; none removes it
    #[arg(long, value_name = "TIME", value_parser = parse_not_before)]
    not_before: Option<PlanTime>,
    /// Event without which it does not start, as in a plan file: NAME or {name, until, on_expiry}; none removes it
    #[arg(long, value_name = "EVENT", value_parser = parse_start_event)]
    wait_for_event: Option<Box<StartEvent>>,
}

fn parse_not_before(text: &str) -> Result<PlanTime, String> {
    plan_file::parse_not_before(text).map_err(|mistake| mistake.to_string())
}

fn parse_start_event(text: &str) -> Result<Box<StartEvent>, String> {
    plan_file::parse_start_event(text).map_err(|mistake| mistake.to_string())
}

/// Task ids separated by commas.
#[derive(Debug, Clone)]
struct DependencyList(Vec<TaskId>);

fn parse_dependencies(text: &str) -> Result<DependencyList, String> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let tasks = names.map(|name| TaskId::new(name).map_err(|error| error.to_string()));
    tasks.collect::<Result<_, _>>().map(DependencyList)
}

fn parse_parameter(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            let value = match parse_json_or_text(value.as_bytes())
                .map_err(|mistake| format!("its value {mistake}"))?
            {
                JsonOrText::Json(value) => value,
                JsonOrText::Text(_) => Value::String(value.into()),
            };
            Ok((name.into(), value))
        }
        Some(_) | None => Err("expected NAME=JSON".into()),
    }
}

fn parse_review(text: &str) -> Result<ReviewPolicy, String> {
    plan_file::parse_review(text).map_err(|mistake| mistake.to_string())
}

impl EditArguments {
    /// Changes a task and waits for the decision.
    pub async fn run(self, interrupt: CancellationToken) -> CommandResult {
        let EditArguments { steering, task, changes, is_final } = self;
        if !is_final && changes.is_empty() {
            return Err(refused!(
                "nothing to change is given; name a change: --objective, --capability, --depends-on, --param, --review, \
                 --max-attempts, --run-time, --on-failed-dependency, --not-before, --wait-for-event or --final"
            ));
        }
        let make = async |bus: &Bus, plan: &Plan| {
            refuse_unknown_task(plan, &task)?;
            warn_of_unregistered_capabilities(bus, changes.new_capability()).await?;
            Ok(CommandAction::Edit(if is_final {
                Edit::MarkFinal { task }
            } else {
                Edit::Patch(changes.into_patch(task, plan))
            }))
        };
        steering.run_control_command(&interrupt, make).await
    }
}

impl TaskChanges {
    /// The capability that replaces that of the task.
    pub fn new_capability(&self) -> impl Iterator<Item = &Capability> {
        self.capability.iter()
    }

    pub fn is_empty(&self) -> bool {
        let any_task = TaskId::new("task").expect("a valid id");
        self.clone().into_patch(any_task, &Plan::default()).changed_fields().is_empty()
    }

    pub fn into_patch(self, task: TaskId, plan: &Plan) -> TaskPatch {
        let limits = plan_file::changed_limits(plan, &task, (self.max_attempts, self.run_time));
        TaskPatch {
            objective: self.objective,
            capability: self.capability,
            depends_on: self.depends_on.map(|DependencyList(tasks)| tasks),
            parameters: self.parameters.into_iter().collect::<TaskParameters>(),
            review: self.review,
            limits,
            on_failed_dependency: self.on_failed_dependency,
            not_before: self.not_before,
            wait_for_event: self.wait_for_event,
            ..TaskPatch::without_changes(task)
        }
    }
}

const RETRY_HELP: &str = "\
Examples:
  millrace retry latest draft --feedback \"Cite the 2024 edition\"
  millrace retry latest fetch --param url=\"https://example.org/new\" --run-time 30m";

#[derive(Args, Debug)]
#[command(after_help = RETRY_HELP)]
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

impl RetryArguments {
    /// Retries a task and waits for the decision.
    pub async fn run(self, interrupt: CancellationToken) -> CommandResult {
        let RetryArguments { steering, task, feedback, changes } = self;
        let make = async |bus: &Bus, plan: &Plan| {
            refuse_unknown_task(plan, &task)?;
            warn_of_unregistered_capabilities(bus, changes.new_capability()).await?;
            let is_changed = !changes.is_empty();
            let changes = is_changed.then(|| Box::new(changes.into_patch(task.clone(), plan)));
            Ok(CommandAction::Edit(Edit::Retry { task, feedback, changes }))
        };
        steering.checked_command(&interrupt, refuse_edit_of_ended_run, make).await
    }
}
