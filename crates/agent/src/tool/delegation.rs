//! The tools with which an agent delegates work to other capabilities; [`ChildTasks`] is their shared state.

use std::sync::{Arc, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use millrace_protocol::child::{Delegation, EndedTask, MAX_CHILD_MESSAGE, TaskEnd};
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{AttemptEnd, Plan, Task};
use millrace_protocol::wait::{WaitCondition, WaitEnd};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::children::{
    ChildTasks, TaskArguments, describe_lost_task, format_result, parse_task, result_of_task, source_error,
};
use super::{
    Call, Effect, Output, Tool, ToolError, ToolResult, ToolSpec, keep_head_and_tail, read_arguments,
    schema_of,
};

/// The longest wait for tasks, in seconds: a week.
const MAX_SECONDS: u32 = 604_800;

/// The most characters of an objective in a list of tasks.
const MAX_LISTED_OBJECTIVE: usize = 300;

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "CheckTask")]
#[serde(deny_unknown_fields)]
struct OneTaskArguments {
    /// The task.
    #[schemars(length(min = 1, max = 64))]
    task: String,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "WaitFor")]
#[serde(deny_unknown_fields)]
struct WaitForArguments {
    /// The tasks.
    #[schemars(length(min = 1, max = 32))]
    tasks: Vec<String>,
    /// true if the end of one of them is enough.
    any: Option<bool>,
    /// The longest wait in seconds; without a limit by default.
    #[schemars(range(min = 1, max = 604_800))]
    seconds: Option<u32>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "MessageTask")]
#[serde(deny_unknown_fields)]
struct MessageTaskArguments {
    /// The task.
    #[schemars(length(min = 1, max = 64))]
    task: String,
    /// The instruction.
    #[schemars(length(min = 1, max = 4_000))]
    text: String,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "CancelTask")]
#[serde(deny_unknown_fields)]
struct CancelTaskArguments {
    /// The task.
    #[schemars(length(min = 1, max = 64))]
    task: String,
    /// The reason.
    #[schemars(length(min = 1, max = 1_000))]
    reason: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "ListTasks")]
#[serde(deny_unknown_fields)]
struct ListTasksArguments {}

/// The tools of one kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Task,
    Start,
    Check,
    Wait,
    Message,
    Cancel,
    List,
}

struct DelegationTool {
    kind: Kind,
    children: Arc<ChildTasks>,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident = $kind:ident;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(children: Arc<ChildTasks>) -> Arc<dyn Tool> {
            Arc::new(DelegationTool { kind: Kind::$kind, children })
        }
    )*};
}

constructors! {
    /// `task{description, capability, parameters?, output?, review?, limits?}`: delegates a task and waits for its end.
    task_tool = Task;
    /// `start_task{…}`: delegates a task and returns its id at once.
    start_task_tool = Start;
    /// `check_task{task}`: the state of a delegated task, and its result.
    check_task_tool = Check;
    /// `wait_for{tasks, any?, seconds?}`: waits for the ends of delegated tasks.
    wait_for_tool = Wait;
    /// `message_task{task, text}`: an instruction for the next attempt at a delegated task.
    message_task_tool = Message;
    /// `cancel_task{task, reason?}`: cancels a delegated task.
    cancel_child_tool = Cancel;
    /// `list_tasks{}`: the delegated tasks of this attempt.
    list_tasks_tool = List;
}

impl DelegationTool {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Task => "task",
            Kind::Start => "start_task",
            Kind::Check => "check_task",
            Kind::Wait => "wait_for",
            Kind::Message => "message_task",
            Kind::Cancel => "cancel_task",
            Kind::List => "list_tasks",
        }
    }

    fn description(&self) -> String {
        match self.kind {
            Kind::Task => format!(
                "Delegates a task to another agent and returns its result: its data or text, with its sources. Call it \
                 several times in one message to let the tasks run at once. A task without a result returns an error as \
                 JSON: kind, message, limit, usage, produced. Capabilities: {}",
                self.children.describe_capabilities()
            ),
            Kind::Start => format!(
                "Delegates a task to another agent and returns its id at once. Its budget counts as used from now on. \
                 Tasks that have not ended when you answer are cancelled. Capabilities: {}",
                self.children.describe_capabilities()
            ),
            Kind::Check => "Returns the state of a delegated task, and its result once it is completed.".into(),
            Kind::Wait => "Waits until delegated tasks have ended and returns their results or errors, as JSON. Nothing is \
                           used up meanwhile."
                .into(),
            Kind::Message => "Adds an instruction to a delegated task. Its next attempt gets it, if there is one: after a \
                              failure or a rejected review. An attempt that runs already does not."
                .into(),
            Kind::Cancel => "Cancels a delegated task that has not ended.".into(),
            Kind::List => "Lists the tasks that this task has delegated, as JSON.".into(),
        }
    }

    async fn run(&self, arguments: Value, call: &Call) -> Result<Output, ToolError> {
        if self.delegated_tasks() > 0 && self.children.order.fork.is_some() {
            return Err(ToolError::Refused("a fork can't delegate; do it yourself".into()));
        }
        match self.kind {
            Kind::Task => {
                let child = self.children.build_child(read_arguments(self.name(), arguments)?, call).await?;
                Err(ToolError::Delegates(Box::new(child)))
            }
            Kind::Start => {
                let child = self.children.build_child(read_arguments(self.name(), arguments)?, call).await?;
                let (id, delegated) = (child.id.clone(), child.budget.as_usage());
                let delegation = Delegation { children: vec![child], ..Delegation::default() };
                let text = json!({ "task": id, "state": "starting" }).to_string();
                Ok(Output { text, delegated, delegation: Some(Box::new(delegation)), ..Output::default() })
            }
            Kind::Check => {
                let OneTaskArguments { task } = read_arguments(self.name(), arguments)?;
                self.check_task(&parse_task(&task)?).await.map(Output::from)
            }
            Kind::Wait => {
                let WaitForArguments { tasks, any, seconds } = read_arguments(self.name(), arguments)?;
                let tasks: Result<Vec<TaskId>, ToolError> =
                    tasks.iter().map(|task| parse_task(task)).collect();
                let until = seconds.map(|seconds| {
                    let wait = SignedDuration::from_secs(seconds.min(MAX_SECONDS).into());
                    Timestamp::now().saturating_add(wait).unwrap_or(Timestamp::MAX)
                });
                Err(ToolError::Waits(WaitCondition::Tasks {
                    tasks: tasks?,
                    any: any.unwrap_or(false),
                    until,
                }))
            }
            Kind::Message => {
                let MessageTaskArguments { task, text } = read_arguments(self.name(), arguments)?;
                if text.len() > MAX_CHILD_MESSAGE {
                    let refusal = format!("a message may have at most {MAX_CHILD_MESSAGE} bytes");
                    return Err(ToolError::Refused(refusal));
                }
                let id = self.open_child(&task).await?;
                let answer = format!("the next attempt at {id} gets it, if there is one");
                let delegation = Delegation { messages: vec![(id, text)], ..Delegation::default() };
                Ok(Output { text: answer, delegation: Some(Box::new(delegation)), ..Output::default() })
            }
            Kind::Cancel => {
                let CancelTaskArguments { task, reason } = read_arguments(self.name(), arguments)?;
                let id = self.open_child(&task).await?;
                let answer = format!("{id} is cancelled");
                let reason = reason.unwrap_or_else(|| "it is not wanted any more".into());
                let delegation = Delegation { cancels: vec![(id, reason)], ..Delegation::default() };
                Ok(Output { text: answer, delegation: Some(Box::new(delegation)), ..Output::default() })
            }
            Kind::List => self.list_tasks().await.map(Output::from),
        }
    }

    /// The schema of a task; `mode` is only there if there is a choice.
    fn task_schema(&self) -> Value {
        let mut schema = schema_of::<TaskArguments>();
        if let Some(properties) = schema["properties"].as_object_mut()
            && self.children.access.fork.is_none()
        {
            properties.remove("mode");
        }
        schema
    }

    /// Returns the id of a child that has not ended.
    async fn open_child(&self, name: &str) -> Result<TaskId, ToolError> {
        let id = parse_task(name)?;
        let plan = self.children.read_plan().await?;
        match self.find_child(&plan, &id) {
            Some(child) if child.state().is_terminal() => {
                Err(ToolError::Refused(format!("the task {id} is {} already", child.state())))
            }
            Some(_) => Ok(id),
            None if self.was_started(&id) => Ok(id),
            None => Err(self.unknown_task_error(&plan, &id)),
        }
    }

    fn find_child<'p>(&self, plan: &'p Plan, id: &TaskId) -> Option<&'p Task> {
        self.own_children(plan).find(|child| child.spec.id == *id)
    }

    fn own_children<'p>(&self, plan: &'p Plan) -> impl Iterator<Item = &'p Task> + use<'p> {
        let attempt = self.children.attempt;
        let parent = plan.task(&self.children.task);
        let is_own =
            move |child: &&Task| child.spec.parent.as_ref().is_some_and(|parent| parent.attempt == attempt);
        parent.into_iter().flat_map(move |parent| plan.children(parent)).filter(is_own)
    }

    /// `true` if the attempt has started this task, which may not be in the plan yet.
    fn was_started(&self, id: &TaskId) -> bool {
        self.children.delegated.lock().unwrap_or_else(PoisonError::into_inner).contains_key(id)
    }

    fn unknown_task_error(&self, plan: &Plan, id: &TaskId) -> ToolError {
        let own: Vec<&str> = self.own_children(plan).map(|child| child.spec.id.as_str()).collect();
        let own = if own.is_empty() { "none".to_owned() } else { own.join(", ") };
        ToolError::Refused(format!("this task has delegated no task {id}; there are: {own}"))
    }

    async fn check_task(&self, id: &TaskId) -> Result<String, ToolError> {
        let plan = self.children.read_plan().await?;
        let Some(child) = self.find_child(&plan, id) else {
            let parent = plan.task(&self.children.task).and_then(Task::current_attempt);
            let refused = parent.into_iter().flat_map(|attempt| &attempt.refused_children);
            if let Some((_, reason)) = refused.into_iter().find(|(refused, _)| refused == id) {
                return Ok(json!({ "task": id, "kind": "refused", "message": reason }).to_string());
            }
            return match self.was_started(id) {
                true => Ok(json!({ "task": id, "state": "starting" }).to_string()),
                false => Err(self.unknown_task_error(&plan, id)),
            };
        };
        let Some(end) = child.end() else {
            let waits_for = child.describe_wait();
            let state = json!({
                "task": id, "state": child.state(), "attempt": child.attempt, "waits_for": waits_for,
                "since": child.since.to_string(),
            });
            return Ok(state.to_string());
        };
        let usage = plan.usage_with_children(child);
        let ended = EndedTask { task: id.clone(), end, usage };
        match (&ended.end, result_of_task(child)) {
            (TaskEnd::Completed { .. }, Some(input)) => {
                let result = self.children.sources.read_result(&input).await.map_err(source_error)?;
                let text = keep_head_and_tail(&format_result(&result), super::MAX_RESULT_CHARS);
                Ok(json!({ "task": id, "state": "completed", "result": text }).to_string())
            }
            (end, _) => Ok(describe_lost_task(&ended, end).to_string()),
        }
    }

    async fn list_tasks(&self) -> Result<String, ToolError> {
        let plan = self.children.read_plan().await?;
        let tasks: Vec<Value> = self
            .own_children(&plan)
            .map(|child| {
                let last = child.current_attempt().and_then(|attempt| attempt.end.as_ref());
                let summary = match last {
                    Some(AttemptEnd::Finished { summary, .. }) => Some(summary),
                    Some(AttemptEnd::Errored(_) | AttemptEnd::TimedOut(_)) | None => None,
                };
                json!({
                    "task": child.spec.id,
                    "capability": child.spec.capability,
                    "state": child.state(),
                    "objective": keep_head_and_tail(&child.spec.objective, MAX_LISTED_OBJECTIVE),
                    "summary": summary,
                    "reason": child.end_reason(),
                })
            })
            .collect();
        Ok(Value::Array(tasks).to_string())
    }

    async fn end_wait_for(&self, tasks: &[EndedTask], wanted: &[String]) -> Result<Output, ToolError> {
        let mut results = Vec::new();
        for ended in tasks {
            results.push(match self.children.describe_end(ended, None).await {
                Ok(text) => json!({ "task": ended.task, "state": "completed", "result": text }),
                Err(ToolError::Lost { .. }) => describe_lost_task(ended, &ended.end),
                Err(error) => return Err(error),
            });
        }
        let open = wanted.iter().filter(|task| tasks.iter().all(|ended| ended.task.as_str() != **task));
        results.extend(open.map(|task| json!({ "task": task, "state": "not ended" })));
        Ok(Value::Array(results).to_string().into())
    }
}

impl Tool for DelegationTool {
    fn spec(&self) -> ToolSpec {
        let schema = match self.kind {
            Kind::Task | Kind::Start => self.task_schema(),
            Kind::Check => schema_of::<OneTaskArguments>(),
            Kind::Wait => schema_of::<WaitForArguments>(),
            Kind::Message => schema_of::<MessageTaskArguments>(),
            Kind::Cancel => schema_of::<CancelTaskArguments>(),
            Kind::List => schema_of::<ListTasksArguments>(),
        };
        ToolSpec { name: self.name().into(), description: self.description().into(), schema: schema.into() }
    }

    fn effect(&self) -> Effect {
        match self.kind {
            Kind::Task | Kind::Start | Kind::Message | Kind::Cancel => Effect::Idempotent,
            Kind::Check | Kind::Wait | Kind::List => Effect::Pure,
        }
    }

    fn delegated_tasks(&self) -> u32 {
        u32::from(matches!(self.kind, Kind::Task | Kind::Start))
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        self.run(arguments, call).boxed()
    }

    fn end_wait<'a>(
        &'a self,
        arguments: Value,
        end: &'a WaitEnd,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Output, ToolError>> {
        async move {
            let WaitEnd::TasksEnded(ended) = end else { return Ok(super::describe_wait_end(end).into()) };
            match (self.kind, ended.first()) {
                (Kind::Task, Some(only)) => {
                    self.children.count_earlier_call(&arguments, call);
                    let text = self.children.describe_end(only, arguments.get("output")).await?;
                    Ok(Output { text, delegated: only.usage, ..Output::default() })
                }
                _ => {
                    let WaitForArguments { tasks, .. } = read_arguments(self.name(), arguments)?;
                    self.end_wait_for(ended, &tasks).await
                }
            }
        }
        .boxed()
    }

    /// Counts the tasks that the attempt has delegated before.
    fn on_replay(&self, arguments: &Value, result: &ToolResult, call: &Call) {
        if self.delegated_tasks() == 0 {
            return;
        }
        let error = serde_json::from_str::<Value>(&result.text).ok();
        let is_of_task = error
            .is_some_and(|error| error["task"].as_str() == Some(self.children.id_of_call(call).as_str()));
        if !result.is_error || is_of_task {
            self.children.count_earlier_call(arguments, call);
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::result::Usage;

    use super::*;
    use crate::tool::children::lost_task_error;

    #[test]
    fn error_of_a_lost_task_names_kind_and_limit() {
        let task = TaskId::new("a-1-0-0").unwrap();
        let end = TaskEnd::TimedOut { message: "it ran longer than its limit".into() };
        let ended = EndedTask { task, end, usage: Usage::default() };
        let ToolError::Lost { text, .. } = lost_task_error(&ended, &ended.end) else { panic!("it is lost") };
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((error["kind"].as_str(), error["task"].as_str()), (Some("timed_out"), Some("a-1-0-0")));
    }
}
