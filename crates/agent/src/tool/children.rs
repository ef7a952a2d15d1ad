//! The tasks that an attempt delegates: their limits (as a capability file or a call sets them: some are limits of the task, the others of
//! the agent), how one is built from a call, and what its end says. A delegated task is a child of the agent's task in the plan: it runs
//! on any machine, and ends with the agent's attempt at the latest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_protocol::child::{EndedTask, TaskEnd, child_id};
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::overrides::AgentOverrides;
use millrace_protocol::parameters::TaskParameters;
use millrace_protocol::plan::{Plan, ResourceAmounts, ReviewPolicy, Task, TaskLimits, TaskSpec};
use millrace_protocol::result::{CapabilityDescription, TaskResult};
use millrace_protocol::wire::InlineOrStoredBytes;
use millrace_protocol::work::{Assignment, InputResult, Order};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Call, TaskResultSource, ToolError, check_value_against_schema, keep_head_and_tail};
use crate::sources::{OrderInputError, OrderInputs};
use crate::spec::{AgentAccess, AskableAgent, ForkAccess};
use crate::turn::Dollars;

/// The largest number of capabilities in the description of a tool.
const MAX_LISTED: usize = 40;

/// The most characters of an objective in a list of tasks.
const MAX_LISTED_OBJECTIVE: usize = 300;

/// The limits of a delegated task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ChildLimits {
    /// Input and output tokens of all its attempts and reviews. An attempt may use half of what is left.
    #[schemars(range(min = 1))]
    pub tokens: Option<u64>,
    /// Model calls, as for tokens.
    #[schemars(range(min = 1))]
    pub model_calls: Option<u64>,
    /// Cost in US dollars, as for tokens.
    pub cost: Option<Dollars>,
    /// Seconds of one attempt from its claim to its end; 1800 by default.
    #[schemars(range(min = 1, max = 604_800))]
    pub seconds: Option<u32>,
    /// Seconds that an attempt waits for a worker; 3600 by default.
    #[schemars(range(min = 1, max = 604_800))]
    pub wait_seconds: Option<u32>,
    /// Attempts until it fails; 3 by default.
    #[schemars(range(min = 1, max = 100))]
    pub attempts: Option<u32>,
    /// Model replies of one attempt, at most those of the capability.
    #[schemars(range(min = 1))]
    pub turns: Option<u32>,
    /// Tool calls of one attempt, at most those of the capability.
    pub tool_calls: Option<u32>,
}

impl ChildLimits {
    /// The budget of the task.
    pub fn amounts(&self) -> ResourceAmounts {
        ResourceAmounts {
            tokens: self.tokens,
            model_calls: self.model_calls,
            cost_micros: self.cost.map(Dollars::micros),
            ..ResourceAmounts::default()
        }
    }

    /// The limits that the agent itself keeps, if there are any.
    pub fn to_overrides(&self) -> Option<Box<AgentOverrides>> {
        let overrides =
            AgentOverrides { turns: self.turns, tool_calls: self.tool_calls, ..AgentOverrides::default() };
        (!overrides.is_empty()).then(|| Box::new(overrides))
    }

    /// The smaller of each limit.
    pub(super) fn min(self, other: Self) -> Self {
        fn smaller<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            match (one, other) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            }
        }
        Self {
            tokens: smaller(self.tokens, other.tokens),
            model_calls: smaller(self.model_calls, other.model_calls),
            cost: smaller(self.cost, other.cost),
            seconds: smaller(self.seconds, other.seconds),
            wait_seconds: smaller(self.wait_seconds, other.wait_seconds),
            attempts: smaller(self.attempts, other.attempts),
            turns: smaller(self.turns, other.turns),
            tool_calls: smaller(self.tool_calls, other.tool_calls),
        }
    }

    /// The limits of each of its attempts that are no overrides.
    pub fn task_limits(&self) -> TaskLimits {
        let default = TaskLimits::default();
        let seconds = |seconds: Option<u32>| seconds.map(|seconds| Duration::from_secs(seconds.into()));
        TaskLimits {
            run_time: seconds(self.seconds).unwrap_or(default.run_time),
            queue_wait: seconds(self.wait_seconds).unwrap_or(default.queue_wait),
            max_attempts: self.attempts.unwrap_or(default.max_attempts),
            ..default
        }
    }
}

/// The shared state of the delegation tools of a session.
pub struct ChildTasks {
    pub(super) order: Arc<Order>,
    pub(super) task: TaskId,
    pub(super) attempt: u32,
    pub(super) access: AgentAccess,
    pub(super) sources: Arc<dyn OrderInputs>,
    /// The results that the session reads, with the numbers of their sources if it writes a report.
    pub(super) results: Option<Arc<dyn TaskResultSource>>,
    /// The capabilities that could be asked when the session began.
    pub(super) known: Vec<CapabilityDescription>,
    /// The tools of the agent itself: it can pass on no others.
    pub(super) own_tools: BTreeSet<String>,
    /// The tasks that the attempt has delegated, for the bounds of the capability file.
    pub(super) delegated: Mutex<BTreeMap<TaskId, Capability>>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Task")]
#[serde(deny_unknown_fields)]
pub(super) struct TaskArguments {
    /// What to do, in full: the agent that does it sees this text and the files, and nothing of this conversation.
    #[schemars(length(min = 1, max = 60_000))]
    pub(super) description: String,
    /// The capability that does it.
    #[schemars(length(min = 1, max = 64))]
    pub(super) capability: String,
    /// "fork": the task continues this conversation as another agent of your own capability, and can't delegate. "isolated" by default.
    pub(super) mode: Option<TaskMode>,
    /// Parameters of the capability.
    pub(super) parameters: Option<TaskParameters>,
    /// A JSON Schema that the data of its result must match. Only for a capability whose results have data.
    pub(super) output: Option<Value>,
    /// Criteria by which its result is reviewed before you get it, one sentence each.
    pub(super) review: Option<Vec<String>>,
    /// Its limits.
    pub(super) limits: Option<ChildLimits>,
}

/// The part of the conversation that a delegated task receives.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum TaskMode {
    Isolated,
    Fork,
}

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
    pub(super) fn check_fork(&self, capability: &str) -> Result<ForkAccess, ToolError> {
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
    pub(super) fn overrides_for(&self, entry: Option<&AskableAgent>, limits: &ChildLimits) -> AgentOverrides {
        let own = entry.map(|entry| entry.overrides.clone()).unwrap_or_default();
        let tools = own.tools.map(|tools| tools.intersection(&self.own_tools).cloned().collect());
        AgentOverrides { tools, turns: limits.turns, tool_calls: limits.tool_calls, ..own }
    }

    pub(super) fn id_of_call(&self, call: &Call) -> TaskId {
        child_id(&self.task, self.attempt, &format!("{}-{}", call.turn, call.index))
    }

    /// The capabilities that may be asked, for the description of a tool.
    pub(super) fn describe_capabilities(&self) -> String {
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
    pub(super) async fn build_child(
        &self,
        arguments: TaskArguments,
        call: &Call,
    ) -> Result<TaskSpec, ToolError> {
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
        let objective = objective_with_output(description, output.as_ref(), &about)?;
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
    pub(super) fn count(
        &self,
        id: &TaskId,
        capability: &Capability,
        most: Option<u32>,
    ) -> Result<(), ToolError> {
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
    pub(super) fn count_earlier_call(&self, arguments: &Value, call: &Call) {
        if let Some(Ok(capability)) = arguments["capability"].as_str().map(Capability::new) {
            let mut delegated = self.delegated.lock().unwrap_or_else(PoisonError::into_inner);
            delegated.insert(self.id_of_call(call), capability);
        }
    }

    /// Returns a capability to which the agent may delegate; it may always fork its own.
    pub(super) async fn find_capability(
        &self,
        name: &str,
        is_fork: bool,
    ) -> Result<CapabilityDescription, ToolError> {
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

    pub(super) async fn read_plan(&self) -> Result<Plan, ToolError> {
        self.sources.read_current_plan(&self.order).await.map_err(source_error)
    }

    /// The text of a child's end for the model: its result, or the error as JSON.
    pub(super) async fn describe_end(
        &self,
        ended: &EndedTask,
        output: Option<&Value>,
    ) -> Result<String, ToolError> {
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

/// The objective of a task whose result must have data of this schema.
pub(super) fn objective_with_output(
    description: String,
    output: Option<&Value>,
    about: &CapabilityDescription,
) -> Result<String, ToolError> {
    let Some(schema) = output else { return Ok(description) };
    if about.output.is_none() {
        let text = format!("the results of {} have no data; leave \"output\" out", about.name);
        return Err(ToolError::Refused(text));
    }
    jsonschema::validator_for(schema)
        .map_err(|error| ToolError::Refused(format!("\"output\" is not a valid JSON Schema: {error}")))?;
    Ok(format!("{description}\n\nThe data of the result must match this JSON Schema: {schema}"))
}

/// Returns why the data of a result does not match a schema; `None` if it does.
pub(super) fn find_data_problem(schema: &Value, result: &TaskResult) -> Option<String> {
    match &result.data {
        None => Some("there is none".into()),
        Some(data) => check_value_against_schema(schema, data).err(),
    }
}

/// The error of a task that has no result, as JSON.
pub(super) fn lost_task_error(ended: &EndedTask, end: &TaskEnd) -> ToolError {
    let error = describe_lost_task(ended, end);
    ToolError::Lost { text: error.to_string(), delegated: ended.usage }
}

pub(super) fn describe_lost_task(ended: &EndedTask, end: &TaskEnd) -> Value {
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
pub(super) fn format_result(result: &TaskResult) -> String {
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

pub(super) fn source_error(error: OrderInputError) -> ToolError {
    match error {
        OrderInputError::Unavailable(why) => ToolError::Unavailable(why),
        OrderInputError::Broken(why) => {
            ToolError::Failed { message: "the plan can't be read".into(), detail: why }
        }
    }
}

pub(super) fn parse_task(name: &str) -> Result<TaskId, ToolError> {
    TaskId::new(name).map_err(|invalid| ToolError::Refused(invalid.to_string()))
}

/// The result of a task of the plan, to be read.
pub(super) fn result_of_task(task: &Task) -> Option<InputResult> {
    let (attempt, at_sequence, summary) = task.accepted_result()?;
    InputResult::of_attempt(task, attempt, at_sequence, summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_file_and_of_the_call_are_both_kept() {
        let call = ChildLimits { tokens: Some(900), seconds: Some(60), ..ChildLimits::default() };
        let file = ChildLimits { tokens: Some(500), attempts: Some(1), ..ChildLimits::default() };
        let both = call.min(file);
        assert_eq!((both.tokens, both.seconds, both.attempts), (Some(500), Some(60), Some(1)));
        assert_eq!(both.task_limits().run_time, Duration::from_secs(60));
    }
}
