//! The tools with which an agent delegates work to other capabilities. A delegated task is a child of the agent's task in the
//! plan: it runs on any machine, and ends with the agent's attempt at the latest. [`ChildTasks`] is their shared state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use millrace_protocol::child::{Delegation, EndedTask, MAX_CHILD_MESSAGE, TaskEnd, child_id};
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::overrides::AgentOverrides;
use millrace_protocol::parameters::TaskParameters;
use millrace_protocol::plan::{AttemptEnd, Plan, ReviewPolicy, Task, TaskSpec};
use millrace_protocol::result::{CapabilityDescription, TaskResult};
use millrace_protocol::wait::{WaitCondition, WaitEnd};
use millrace_protocol::wire::InlineOrStoredBytes;
use millrace_protocol::work::{Assignment, InputResult, Order};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Call, ChildLimits, Effect, Output, TaskResultSource, Tool, ToolError, ToolResult, ToolSpec,
    check_value_against_schema, keep_head_and_tail, read_arguments, schema_of,
};
use crate::sources::{OrderInputError, OrderInputs};
use crate::spec::{AgentAccess, AskableAgent, ForkAccess};

/// The largest number of capabilities in the description of a tool.
const MAX_LISTED: usize = 40;
/// The longest wait for tasks, in seconds: a week.
const MAX_SECONDS: u32 = 604_800;
/// The most characters of an objective in a list of tasks.
const MAX_LISTED_OBJECTIVE: usize = 300;

/// The shared state of the delegation tools of a session.
pub struct ChildTasks {
    order: Arc<Order>,
    task: TaskId,
    attempt: u32,
    access: AgentAccess,
    sources: Arc<dyn OrderInputs>,
    /// The results that the session reads, with the numbers of their sources if it writes a report.
    results: Option<Arc<dyn TaskResultSource>>,
    /// The capabilities that could be asked when the session began.
    known: Vec<CapabilityDescription>,
    /// The tools of the agent itself: it can pass on no others.
    own_tools: BTreeSet<String>,
    /// The tasks that the attempt has delegated, for the bounds of the capability file.
    delegated: Mutex<BTreeMap<TaskId, Capability>>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Task")]
#[serde(deny_unknown_fields)]
struct TaskArguments {
    /// What to do, in full: the agent that does it sees this text and the files, and nothing of this conversation.
    #[schemars(length(min = 1, max = 60_000))]
    description: String,
    /// The capability that does it.
    #[schemars(length(min = 1, max = 64))]
    capability: String,
    /// "fork": the task continues this conversation as another agent of your own capability, and can't delegate. "isolated" by default.
    mode: Option<TaskMode>,
    /// Parameters of the capability.
    parameters: Option<TaskParameters>,
    /// A JSON Schema that the data of its result must match. Only for a capability whose results have data.
    output: Option<Value>,
    /// Criteria by which its result is reviewed before you get it, one sentence each.
    review: Option<Vec<String>>,
    /// Its limits.
    limits: Option<ChildLimits>,
}

/// The part of the conversation that a delegated task receives.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum TaskMode {
    Isolated,
    Fork,
}

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

impl ChildTasks {
    /// Creates the state for an attempt; `None` if it may not delegate: it is no attempt at a task, or too deep. A fork has the tools of
    /// the conversation that it continues, and each of its calls is refused.
    #[must_use]
    pub fn new(
        order: &Order,
        access: AgentAccess,
        sources: Arc<dyn OrderInputs>,
        results: Option<Arc<dyn TaskResultSource>>,
        known: Vec<CapabilityDescription>,
    ) -> Option<Self> {
        let Assignment::Task { task, attempt, .. } = &order.assignment else {
            return None;
        };
        let (task, attempt) = (task.clone(), *attempt);
        let (delegated, own_tools) = (Mutex::default(), BTreeSet::new());
        let is_allowed = order.depth < access.depth || order.fork.is_some();
        let order = Arc::new(order.clone());
        is_allowed.then_some(Self {
            order,
            task,
            attempt,
            access,
            sources,
            results,
            known,
            own_tools,
            delegated,
        })
    }

    /// Sets the tools of the agent itself, of which it can pass some on.
    #[must_use]
    pub fn with_own_tools(self, own_tools: BTreeSet<String>) -> Self {
        Self { own_tools, ..self }
    }

    /// Returns the bounds of a fork.
    fn check_fork(&self, capability: &str) -> Result<ForkAccess, ToolError> {
        let Some(fork) = self.access.fork else {
            return Err(ToolError::Refused("this agent may not fork itself; leave \"mode\" out".into()));
        };
        let own = &self.order.capability;
        if capability != own.as_str() {
            let text = format!("a fork is of the capability {own}: name it, or leave \"mode\" out");
            return Err(ToolError::Refused(text));
        }
        Ok(fork)
    }

    /// The overrides of a task with these limits for a listed capability.
    fn overrides_for(&self, entry: Option<&AskableAgent>, limits: &ChildLimits) -> AgentOverrides {
        let own = entry.map(|entry| entry.overrides.clone()).unwrap_or_default();
        let tools = own.tools.map(|tools| tools.intersection(&self.own_tools).cloned().collect());
        AgentOverrides { tools, turns: limits.turns, tool_calls: limits.tool_calls, ..own }
    }

    fn id_of_call(&self, call: &Call) -> TaskId {
        child_id(&self.task, self.attempt, &format!("{}-{}", call.turn, call.index))
    }

    /// The capabilities that may be asked, for the description of a tool.
    fn describe_capabilities(&self) -> String {
        let askable: Vec<&CapabilityDescription> =
            self.known.iter().filter(|about| self.access.allows(&about.name)).collect();
        let listed: Vec<String> = askable
            .iter()
            .take(MAX_LISTED)
            .map(|about| {
                let own = self.access.entry(&about.name).and_then(|entry| entry.description.clone());
                let data = if about.output.is_some() { " Its results have data." } else { "" };
                let text = own.unwrap_or_else(|| about.description.clone());
                format!("{}: {}{data}", about.name, keep_head_and_tail(&text, MAX_LISTED_OBJECTIVE))
            })
            .collect();
        let more = askable.len().saturating_sub(MAX_LISTED);
        let more = if more > 0 { format!("\nand {more} more") } else { String::new() };
        let own = format!("\n{}: this agent itself, only with the mode fork", self.order.capability);
        let more = if self.access.fork.is_some() { more + &own } else { more };
        if listed.is_empty() && more.is_empty() {
            "none".into()
        } else {
            format!("\n{}{more}", listed.join("\n"))
        }
    }

    /// Builds the task that a call delegates, and counts it.
    async fn build_child(&self, arguments: TaskArguments, call: &Call) -> Result<TaskSpec, ToolError> {
        let TaskArguments { description, capability, mode, parameters, output, review, limits } = arguments;
        let fork = match mode {
            Some(TaskMode::Fork) => Some(self.check_fork(&capability)?),
            Some(TaskMode::Isolated) | None => None,
        };
        let about = self.find_capability(&capability, fork.is_some()).await?;
        let own_parameters = || fork.map(|_| self.order.parameters.clone());
        let parameters = parameters.or_else(own_parameters).unwrap_or_default();
        if let Some(schema) = &about.parameters {
            let object = Value::Object(parameters.clone().into_iter().collect());
            check_value_against_schema(schema, &object).map_err(|problem| {
                ToolError::Refused(format!("the parameters do not fit {}: {problem}", about.name))
            })?;
        }
        let id = self.id_of_call(call);
        let objective = match &output {
            None => description,
            Some(_) if about.output.is_none() => {
                let text = format!("the results of {} have no data; leave \"output\" out", about.name);
                return Err(ToolError::Refused(text));
            }
            Some(schema) => {
                if let Err(error) = jsonschema::validator_for(schema) {
                    return Err(ToolError::Refused(format!(
                        "\"output\" is not a valid JSON Schema: {error}"
                    )));
                }
                format!("{description}\n\nThe data of the result must match this JSON Schema: {schema}")
            }
        };
        let entry = || self.access.entry(&about.name).map(|entry| entry.limits);
        let own = fork.map(|fork| fork.limits).or_else(entry).unwrap_or_default();
        let limits = limits.unwrap_or_default().min(own);
        let budget = call.share.min_per_resource(limits.amounts());
        if let Some((resource, _)) = budget.iter().find(|(_, amount)| *amount == 0) {
            let text = format!(
                "the budget of this task has too little left to delegate ({}); do the rest yourself",
                resource.format_amount(0)
            );
            return Err(ToolError::Refused(text));
        }
        let review = match review {
            Some(criteria) if !criteria.is_empty() => ReviewPolicy::critic(criteria),
            Some(_) | None => ReviewPolicy::None,
        };
        let entry = self.access.entry(&about.name).filter(|_| fork.is_none());
        let most = fork.map_or_else(|| entry.and_then(|entry| entry.max), |fork| fork.max);
        self.count(&id, &about.name, most)?;
        let overrides = self.overrides_for(entry, &limits);
        let conversation = fork.and(call.fork.as_deref()).map(|conversation| {
            let bytes = serde_json::to_vec(conversation).expect("a conversation serialises to JSON");
            Box::new(InlineOrStoredBytes::Inline(bytes.into()))
        });
        Ok(TaskSpec {
            fork: conversation,
            is_shared: entry.is_some_and(|entry| entry.is_shared),
            overrides: (!overrides.is_empty()).then(|| Box::new(overrides)),
            parameters,
            review,
            limits: limits.task_limits(),
            budget,
            ..TaskSpec::new(id, objective, about.name)
        })
    }

    /// Counts a delegated task, once.
    fn count(&self, id: &TaskId, capability: &Capability, most: Option<u32>) -> Result<(), ToolError> {
        let mut delegated = self.delegated.lock().unwrap_or_else(PoisonError::into_inner);
        if delegated.contains_key(id) {
            return Ok(());
        }
        let of_capability = delegated.values().filter(|other| *other == capability).count();
        if delegated.len() >= self.access.max as usize {
            return Err(ToolError::Refused(format!(
                "this task may delegate at most {} tasks",
                self.access.max
            )));
        }
        if let Some(most) = most.filter(|most| of_capability >= *most as usize) {
            let text = format!("this task may delegate at most {most} of its tasks to {capability}");
            return Err(ToolError::Refused(text));
        }
        delegated.insert(id.clone(), capability.clone());
        Ok(())
    }

    /// Counts the task of a call that an earlier session has made.
    fn count_earlier_call(&self, arguments: &Value, call: &Call) {
        if let Some(Ok(capability)) = arguments["capability"].as_str().map(Capability::new) {
            let mut delegated = self.delegated.lock().unwrap_or_else(PoisonError::into_inner);
            delegated.insert(self.id_of_call(call), capability);
        }
    }

    /// Returns a capability to which the agent may delegate; it may always fork its own.
    async fn find_capability(&self, name: &str, is_fork: bool) -> Result<CapabilityDescription, ToolError> {
        let all = self.sources.read_capabilities().await.map_err(source_error)?;
        if let Some(own) = all.iter().find(|about| is_fork && about.name.as_str() == name) {
            return Ok(own.clone());
        }
        let askable: Vec<&CapabilityDescription> =
            all.iter().filter(|about| self.access.allows(&about.name)).collect();
        if let Some(about) = askable.iter().find(|about| about.name.as_str() == name) {
            return Ok((*about).clone());
        }
        let names: Vec<&str> = askable.iter().map(|about| about.name.as_str()).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(ToolError::Refused(format!("there is no capability {name:?} to ask; there are: {names}")))
    }

    async fn read_plan(&self) -> Result<Plan, ToolError> {
        self.sources.read_current_plan(&self.order).await.map_err(source_error)
    }

    /// The text of a child's end for the model: its result, or the error as JSON.
    async fn describe_end(&self, ended: &EndedTask, output: Option<&Value>) -> Result<String, ToolError> {
        let TaskEnd::Completed { .. } = &ended.end else {
            return Err(lost_task_error(ended, &ended.end));
        };
        let result = match &self.results {
            Some(results) => results.get_result(&ended.task).await?,
            None => None,
        };
        let Some(result) = result else {
            let message = format!("the result of the task {} can't be found", ended.task);
            return Err(ToolError::Failed { detail: message.clone(), message });
        };
        if let Some(problem) = output.and_then(|schema| find_data_problem(schema, &result)) {
            let produced = result.data.as_ref().map(Value::to_string);
            let message = format!("its data does not match the schema: {problem}");
            let error = json!({
                "task": ended.task, "kind": "wrong_output", "message": message, "usage": ended.usage,
                "produced": produced,
            });
            return Err(ToolError::Lost { text: error.to_string(), delegated: ended.usage });
        }
        Ok(format_result(&result))
    }
}

/// Returns why the data of a result does not match a schema; `None` if it does.
fn find_data_problem(schema: &Value, result: &TaskResult) -> Option<String> {
    match &result.data {
        None => Some("there is none".into()),
        Some(data) => check_value_against_schema(schema, data).err(),
    }
}

/// The error of a task that has no result, as JSON.
fn lost_task_error(ended: &EndedTask, end: &TaskEnd) -> ToolError {
    let error = describe_lost_task(ended, end);
    ToolError::Lost { text: error.to_string(), delegated: ended.usage }
}

fn describe_lost_task(ended: &EndedTask, end: &TaskEnd) -> Value {
    let (kind, message, limit, produced) = match end {
        TaskEnd::Completed { summary } => (json!("completed"), summary, &None, &None),
        TaskEnd::Failed { kind: Some(kind), message, limit, produced } => {
            (json!(kind), message, limit, produced)
        }
        TaskEnd::Failed { kind: None, message, limit, produced } => {
            (json!("failed"), message, limit, produced)
        }
        TaskEnd::TimedOut { message } => (json!("timed_out"), message, &None, &None),
        TaskEnd::Cancelled { reason } => (json!("cancelled"), reason, &None, &None),
        TaskEnd::Refused { reason } => (json!("refused"), reason, &None, &None),
    };
    let mut error = json!({ "task": ended.task, "kind": kind, "message": message, "usage": ended.usage });
    if let Some(limit) = limit {
        error["limit"] = json!(limit);
    }
    if let Some(produced) = produced {
        error["produced"] = json!(produced);
    }
    error
}

/// A result as text: its data, or its output, and its sources.
fn format_result(result: &TaskResult) -> String {
    let body = match &result.data {
        Some(data) => format!("{data:#}"),
        None => result.output.clone(),
    };
    let notes = result.notes.as_ref().map(|notes| format!("\n\nNotes: {notes}")).unwrap_or_default();
    let sources: Vec<String> = result
        .sources
        .iter()
        .map(|source| format!("[{}] {} ({})", source.id, source.title, source.location))
        .collect();
    let sources = match sources.as_slice() {
        [] => String::new(),
        sources => format!("\n\nSources:\n{}", sources.join("\n")),
    };
    format!("{body}{notes}{sources}")
}

fn source_error(error: OrderInputError) -> ToolError {
    match error {
        OrderInputError::Unavailable(why) => ToolError::Unavailable(why),
        OrderInputError::Broken(why) => {
            ToolError::Failed { message: "the plan can't be read".into(), detail: why }
        }
    }
}

fn parse_task(name: &str) -> Result<TaskId, ToolError> {
    TaskId::new(name).map_err(|invalid| ToolError::Refused(invalid.to_string()))
}

/// The result of a task of the plan, to be read.
fn result_of_task(task: &Task) -> Option<InputResult> {
    let (attempt, at_sequence, summary) = task.accepted_result()?;
    InputResult::of_attempt(task, attempt, at_sequence, summary)
}

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
