//! The capability that is an agent: what it is, a [`Spec`] says, from a file or from a builder; what it works with lies
//! on the desk. Here it only gets its attempt.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::desk::DeskError;
use millrace_agent::desk::shelf;
use millrace_agent::model::Choice;
use millrace_agent::spec::{AnswerForm, Shelf, Spec, Template};
use millrace_agent::tool::{Tool, ToolSpec};
use millrace_agent::turn::Limits;
use millrace_forms::Place;
use millrace_protocol::plan::{Review, Work};
use millrace_protocol::result::{CapabilityDescription, TaskError};

use crate::servers::Servers;
use crate::{Attempt, Capability, Outcome};

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
    spec: Spec,
    /// Tools beyond those that the desk knows.
    tools: Vec<Arc<dyn Tool>>,
    servers: Servers,
    /// What is wrong with what was asked for so far.
    wrong: Option<AgentError>,
}

/// Why an agent can't be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the agent {agent} can't be built: {why}")]
pub struct AgentError {
    /// Its name.
    pub agent: String,
    /// What is wrong, and what was expected.
    pub why: String,
}

impl Agent {
    /// An agent that answers in plain text and has no tools.
    ///
    /// # Panics
    /// `name` is no name: letters, digits, '-' and '_', at most 64.
    #[must_use]
    pub fn new(name: &str, description: &str) -> Self {
        let spec = Spec::new(name, description);
        Self { spec, tools: Vec::new(), servers: Servers::default(), wrong: None }
    }

    /// An agent of a file, with the tools that the desk does not know.
    pub(crate) fn of(spec: Spec, tools: Vec<Arc<dyn Tool>>, servers: Servers) -> Self {
        Self { spec, tools, servers, wrong: None }
    }

    /// What it is told: a template, as in a capability file.
    #[must_use]
    pub fn instructions(mut self, text: &str) -> Self {
        match Template::new(text) {
            Ok(template) => self.spec.instructions = template,
            Err(error) => self.refuse(format!("its instructions: {error}")),
        }
        self
    }

    /// A tool of its own.
    #[must_use]
    pub fn tool(mut self, tool: Arc<dyn Tool>) -> Self {
        let ToolSpec { name, .. } = tool.spec();
        let is_taken =
            shelf::NAMES.contains(&name.as_str()) || self.tools.iter().any(|known| known.spec().name == name);
        if is_taken {
            self.refuse(format!("there is a tool {name:?} already; give it another name"));
        }
        self.tools.push(tool);
        self
    }

    /// One of the built-in tools, such as `think` or `read_document`.
    #[must_use]
    pub fn built_in(mut self, name: &str) -> Self {
        if shelf::Inner.names().contains(&name) {
            let place = Place { line: 1, column: 1 };
            let entry = millrace_agent::spec::ToolEntry { name: name.to_owned(), place, settings: None };
            self.spec.tools.push(entry);
        } else {
            let known = shelf::Inner.names().join(", ");
            self.refuse(format!("there is no built-in tool {name:?}; there are {known}"));
        }
        self
    }

    /// Its model, `provider:model`, with others that stand in for it behind commas.
    #[must_use]
    pub fn model(mut self, names: &str) -> Self {
        match Choice::parse(names) {
            Ok(choice) => self.spec.model = Some(choice),
            Err(error) => self.refuse(error.to_string()),
        }
        self
    }

    /// How it answers.
    #[must_use]
    pub fn answer(mut self, form: AnswerForm) -> Self {
        self.spec.answer = form;
        self
    }

    /// How far it may go.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.spec.limits = limits;
        self
    }

    /// The JSON Schema of its parameters.
    #[must_use]
    pub fn input(mut self, schema: serde_json::Value) -> Self {
        self.spec.about.input = Some(schema);
        self
    }

    /// How its results are judged where a task does not say.
    #[must_use]
    pub fn review(mut self, review: Review) -> Self {
        self.spec.about.review = review;
        self
    }

    /// What critics ask of each of its results, besides what its review asks.
    #[must_use]
    pub fn criterion(mut self, sentence: &str) -> Self {
        self.spec.about.ask(sentence);
        self
    }

    /// The agent as a capability of a worker.
    ///
    /// # Errors
    /// Something that was asked for is wrong; the first of it is told.
    pub fn build(self) -> Result<Arc<dyn Capability>, AgentError> {
        match self.wrong {
            Some(error) => Err(error),
            None => Ok(Arc::new(self)),
        }
    }

    fn refuse(&mut self, why: String) {
        self.wrong.get_or_insert(AgentError { agent: self.spec.about.name.to_string(), why });
    }

    async fn plan(&self, attempt: &mut Attempt<'_>) -> Result<Outcome, TaskError> {
        let (desk, order) = (attempt.desk(), attempt.order().clone());
        let tools = self.tools().await?;
        let planned = desk.plan(&self.spec, &order, attempt.chair().seat(tools)).await;
        planned
            .map(|(proposal, spent)| Outcome::Proposal(proposal, spent))
            .map_err(|error| failed(attempt, error))
    }

    async fn work(&self, attempt: &mut Attempt<'_>) -> Result<Outcome, TaskError> {
        let (desk, order) = (attempt.desk(), attempt.order().clone());
        let tools = self.tools().await?;
        let worked = desk.work(&self.spec, &order, attempt.chair().seat(tools)).await;
        worked.map(Outcome::Result).map_err(|error| failed(attempt, error))
    }

    async fn tools(&self) -> Result<Vec<Arc<dyn Tool>>, TaskError> {
        let mut tools = self.tools.clone();
        tools.extend(self.servers.tools().await?);
        Ok(tools)
    }
}

fn failed(attempt: &mut Attempt<'_>, error: DeskError) -> TaskError {
    match error {
        DeskError::Task(error) => error,
        DeskError::Source(error) => attempt.unreadable(error),
    }
}

impl Capability for Agent {
    fn describe(&self) -> CapabilityDescription {
        self.spec.describe()
    }

    fn slots(&self) -> Option<u32> {
        self.spec.about.slots
    }

    fn model(&self) -> Option<&Choice> {
        self.spec.model.as_ref()
    }

    fn run<'a>(&'a self, attempt: &'a mut Attempt<'_>) -> BoxFuture<'a, Result<Outcome, TaskError>> {
        match (&attempt.order().work, self.spec.answer) {
            (Work::Planning { .. }, AnswerForm::Plan) => self.plan(attempt).boxed(),
            (Work::Task { .. } | Work::Review { .. } | Work::Planning { .. }, _) => {
                self.work(attempt).boxed()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_agent::tool::typed;
    use schemars::JsonSchema;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}

    fn own(name: &str) -> Arc<dyn Tool> {
        typed(name, "Does nothing.", |Nothing {}: Nothing, _| async { Ok(String::new()) })
    }

    #[test]
    fn an_agent_is_built_from_its_parts() {
        let agent = Agent::new("clerk", "Answers.")
            .instructions("You are a clerk. {{ task.objective }}")
            .built_in("think")
            .tool(own("find"))
            .model("builtin:extractive")
            .criterion("It is polite.")
            .build()
            .unwrap();
        assert_eq!(agent.describe().criteria, ["It is polite."]);
        assert_eq!(agent.model().unwrap().models[0].name, "builtin:extractive");
    }

    #[test]
    fn the_first_mistake_of_a_builder_is_told() {
        let says = |agent: Agent| agent.build().err().unwrap().to_string();
        let agent = || Agent::new("clerk", "Answers.");
        for (said, expected) in [
            (
                says(agent().instructions("{{ taks }}").model("")),
                "its instructions: line 1: there is no \"taks\"",
            ),
            (
                says(agent().built_in("thin")),
                "there is no built-in tool \"thin\"; there are add_task, add_tasks",
            ),
            (says(agent().tool(own("think"))), "there is a tool \"think\" already"),
            (says(agent().tool(own("a")).tool(own("a"))), "there is a tool \"a\" already"),
            (says(agent().model("")), "\"\" names no model"),
        ] {
            assert!(said.starts_with(&format!("the agent clerk can't be built: {expected}")), "{said}");
        }
    }
}
