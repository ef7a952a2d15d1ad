//! A capability whose work is done by an agent. Its [`AgentSpec`] comes from a capability file or from the builder here; each
//! attempt is a [`AgentSession`].

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::hooks::Hook;
use millrace_agent::model::ModelSelection;
use millrace_agent::session::{AgentSession, MemoryFile, SessionEnvironment, SessionError, tools};
use millrace_agent::skills::Skill;
use millrace_agent::spec::{AgentSpec, AnswerForm, CommandHook, MemoryPlace, Template, ToolReference};
use millrace_agent::tool::{Tool, ToolSpec};
use millrace_agent::turn::Limits;
use millrace_protocol::plan::{ReviewPolicy, Work};
use millrace_protocol::result::{self, CapabilityDescription, TaskError};

use crate::hooks::CommandHookRunner;
use crate::tools::McpServers;
use crate::{Attempt, Capability, CapabilityOutcome};

/// An agent as a capability.
///
/// ```
/// # use millrace_worker::*;
/// # use millrace_worker::agent::*;
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Order { /** Its number. */ number: u32 }
///
/// let orders = tool("find_order", "Looks an order up.", |Order { number }, _| async move {
///     Ok(format!("order {number} is on its way"))
/// });
/// let clerk = Agent::new("clerk", "Answers questions on orders.")
///     .instructions("You answer questions on orders. Look each order up.")
///     .tool(orders)
///     .model("openai:gpt-6-sol")
///     .build()?;
/// # Ok::<(), AgentError>(())
/// ```
#[derive(Clone)]
pub struct Agent {
    spec: AgentSpec,
    /// Tools in addition to the built-in ones.
    tools: Vec<Arc<dyn Tool>>,
    servers: McpServers,
    /// The folder of its capability file, with its memory files.
    folder: Option<PathBuf>,
    /// Its hooks.
    hooks: Vec<Arc<dyn Hook>>,
    /// Its skills.
    skills: Vec<Arc<Skill>>,
    /// The first mistake in the calls to the builder.
    mistake: Option<AgentError>,
}

/// A mistake in the definition of an agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("can't build the agent {agent}: {why}")]
pub struct AgentError {
    /// The agent's name.
    pub agent: String,
    /// The mistake and the expected value.
    pub why: String,
}

impl Agent {
    /// Creates an agent that answers in plain text and has no tools.
    ///
    /// # Panics
    /// `name` is invalid: at most 64 letters, digits, '-' and '_'.
    #[must_use]
    pub fn new(name: &str, description: &str) -> Self {
        let spec = AgentSpec::new(name, description);
        Self::from_spec(spec, Vec::new(), McpServers::default(), None)
    }

    /// Creates a built-in agent.
    pub(crate) fn from_built_in_spec(spec: AgentSpec) -> Self {
        Self::from_spec(spec, Vec::new(), McpServers::default(), None)
    }

    /// Creates the agent of a capability file, with its tools that reach outside of the process.
    pub(crate) fn from_spec(
        spec: AgentSpec,
        tools: Vec<Arc<dyn Tool>>,
        servers: McpServers,
        folder: Option<&Path>,
    ) -> Self {
        let hooks = folder.into_iter().flat_map(|folder| {
            let runner = |hook: &CommandHook| CommandHookRunner::new(hook.clone(), folder);
            spec.hooks.iter().map(runner).map(|hook| Arc::new(hook) as Arc<dyn Hook>)
        });
        let hooks = hooks.collect();
        let folder = folder.map(Path::to_owned);
        Self { spec, tools, servers, folder, hooks, skills: Vec::new(), mistake: None }
    }

    /// Sets the skills that were loaded from the folders of its capability file.
    pub(crate) fn with_skills(self, skills: Vec<Arc<Skill>>) -> Self {
        Self { skills, ..self }
    }

    /// Sets the system prompt: a template, as in a capability file.
    #[must_use]
    pub fn instructions(mut self, text: &str) -> Self {
        match Template::new(text) {
            Ok(template) => self.spec.instructions = template,
            Err(error) => self.record_error(format!("its instructions: {error}")),
        }
        self
    }

    /// Adds a tool of your own.
    #[must_use]
    pub fn tool(mut self, tool: Arc<dyn Tool>) -> Self {
        let ToolSpec { name, .. } = tool.spec();
        let is_taken = tools::list_built_in_tool_names().any(|built_in| built_in == name)
            || self.tools.iter().any(|tool| tool.spec().name == name);
        if is_taken {
            self.record_error(format!("there already is a tool {name:?}; choose another name"));
        }
        self.tools.push(tool);
        self
    }

    /// Adds a built-in tool, such as `think` or `read_document`.
    #[must_use]
    pub fn built_in(mut self, name: &str) -> Self {
        if tools::list_built_in_tool_names().any(|built_in| built_in == name) {
            self.spec.tools.push(ToolReference::named(name));
        } else {
            let available = tools::list_built_in_tool_names().collect::<Vec<_>>().join(", ");
            self.record_error(format!("there is no built-in tool {name:?}; available: {available}"));
        }
        self
    }

    /// Adds a hook, which sees its calls of models and tools after the hooks added before.
    #[must_use]
    pub fn hook(mut self, hook: Arc<dyn Hook>) -> Self {
        self.hooks.push(hook);
        self
    }

    /// Sets the model, as `provider:model`; fallback models follow after commas.
    #[must_use]
    pub fn model(mut self, names: &str) -> Self {
        match ModelSelection::parse(names) {
            Ok(selection) => self.spec.model = Some(selection),
            Err(error) => self.record_error(error.to_string()),
        }
        self
    }

    /// Sets the form of its answers.
    #[must_use]
    pub fn answer(mut self, form: AnswerForm) -> Self {
        self.spec.answer = form;
        self
    }

    /// Sets its limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.spec.limits = limits;
        self
    }

    /// Sets the JSON Schema of its parameters.
    #[must_use]
    pub fn input(mut self, schema: serde_json::Value) -> Self {
        self.spec.about.input = Some(schema);
        self
    }

    /// Sets how its results are reviewed if the task does not say.
    #[must_use]
    pub fn review(mut self, review: ReviewPolicy) -> Self {
        self.spec.about.review = review;
        self
    }

    /// Adds a criterion that critics check in each of its results.
    #[must_use]
    pub fn criterion(mut self, sentence: &str) -> Self {
        self.spec.about.add_criterion(sentence);
        self
    }

    /// Builds the capability.
    pub fn build(self) -> Result<Arc<dyn Capability>, AgentError> {
        match self.mistake {
            Some(error) => Err(error),
            None => Ok(Arc::new(self)),
        }
    }

    fn record_error(&mut self, why: String) {
        self.mistake.get_or_insert(AgentError { agent: self.spec.about.name.to_string(), why });
    }

    /// Runs a session for one attempt.
    async fn run_session(&self, attempt: &mut Attempt<'_>) -> Result<CapabilityOutcome, TaskError> {
        let (agents, order) = (attempt.agents, attempt.order().clone());
        let overrides = order.overrides.as_deref().cloned().unwrap_or_default();
        let spec = self.spec.with_overrides(&overrides).map_err(|why| {
            TaskError::new(result::ErrorKind::InvalidTask, format!("its overrides can't be applied: {why}"))
        })?;
        let mut tools = self.open_tools().await?;
        if let Some(allowed) = &overrides.tools {
            tools.retain(|tool| allowed.contains(&tool.spec().name));
        }
        let memory_files = match &self.folder {
            Some(folder) => read_memory_files(&spec, folder).await?,
            None => Vec::new(),
        };
        let outcome: Result<CapabilityOutcome, SessionError> = async {
            let (hooks, skills) = (self.hooks.clone(), self.skills.clone());
            let environment =
                SessionEnvironment { memory_files, hooks, skills, tools, ..attempt.host.agent_environment() };
            let session = AgentSession::prepare(agents, &spec, &order, environment).await?;
            match (&order.work(), spec.answer) {
                (Work::Planning { .. }, AnswerForm::Plan) => {
                    let (proposal, spent) = session.run_planning().await?;
                    Ok(CapabilityOutcome::Proposal(proposal, spent))
                }
                (Work::Task { .. } | Work::Review { .. } | Work::Planning { .. }, _) => {
                    Ok(CapabilityOutcome::Result(session.run_work().await?))
                }
            }
        }
        .await;
        outcome.map_err(|error| attempt.host.end_with_session_error(error))
    }

    /// Returns the tools in addition to the built-in ones.
    async fn open_tools(&self) -> Result<Vec<Arc<dyn Tool>>, TaskError> {
        let mut tools = self.tools.clone();
        tools.extend(self.servers.open_tools().await?);
        Ok(tools)
    }
}

/// Reads the memory files beside a capability file. Missing ones are passed over.
async fn read_memory_files(spec: &AgentSpec, folder: &Path) -> Result<Vec<MemoryFile>, TaskError> {
    let mut files = Vec::new();
    for place in spec.memory.iter().flatten() {
        let MemoryPlace::Beside(path) = place else { continue };
        match tokio::fs::read_to_string(folder.join(path)).await {
            Ok(text) => files.push(MemoryFile { place: path.display().to_string(), text }),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                let text = format!("the memory file {} can't be read: {error}", folder.join(path).display());
                return Err(TaskError::new(result::ErrorKind::InvalidTask, text));
            }
        }
    }
    Ok(files)
}

impl Capability for Agent {
    fn describe(&self) -> CapabilityDescription {
        self.spec.describe()
    }

    fn max_concurrent_attempts(&self) -> Option<u32> {
        self.spec.about.slots.map(u32::from)
    }

    fn model(&self) -> Option<&ModelSelection> {
        self.spec.model.as_ref()
    }

    fn is_agent(&self) -> bool {
        true
    }

    fn run<'a>(
        &'a self,
        attempt: &'a mut Attempt<'_>,
    ) -> BoxFuture<'a, Result<CapabilityOutcome, TaskError>> {
        self.run_session(attempt).boxed()
    }
}

#[cfg(test)]
mod tests {
    use millrace_agent::tool::tool_from_function;
    use schemars::JsonSchema;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize, JsonSchema)]
    struct NoParameters {}

    fn custom_tool(name: &str) -> Arc<dyn Tool> {
        tool_from_function(name, "Does nothing.", |NoParameters {}: NoParameters, _| async {
            Ok(String::new())
        })
    }

    #[test]
    fn an_agent_is_built_from_its_parts() {
        let agent = Agent::new("clerk", "Answers.")
            .instructions("You are a clerk. {{ task.objective }}")
            .built_in("think")
            .tool(custom_tool("find"))
            .model("builtin:extractive")
            .criterion("It is polite.")
            .build()
            .unwrap();
        assert_eq!(agent.describe().criteria, ["It is polite."]);
        assert_eq!(agent.model().unwrap().models[0].name, "builtin:extractive");
    }

    #[test]
    fn the_first_mistake_in_the_builder_is_reported() {
        let error = |agent: Agent| agent.build().err().unwrap().to_string();
        let agent = || Agent::new("clerk", "Answers.");
        for (message, expected) in [
            (
                error(agent().instructions("{{ taks }}").model("")),
                "its instructions: line 1: there is no \"taks\"",
            ),
            (
                error(agent().built_in("thin")),
                "there is no built-in tool \"thin\"; available: add_task, add_tasks",
            ),
            (error(agent().tool(custom_tool("think"))), "there already is a tool \"think\""),
            (error(agent().tool(custom_tool("a")).tool(custom_tool("a"))), "there already is a tool \"a\""),
            (error(agent().model("")), "\"\" names no model"),
        ] {
            assert!(message.starts_with(&format!("can't build the agent clerk: {expected}")), "{message}");
        }
    }
}
