//! A capability as the handler of a queue: validates the parameters, runs the capability, and converts what it returns
//! into the outcome of the attempt.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::session::AgentHost;
use millrace_agent::turn::UsageTotals;
use millrace_host as host;
use millrace_protocol::plan::Work;
use millrace_protocol::result::{CapabilityDescription, ErrorKind, TaskError};
use millrace_protocol::schema::CompiledSchema;
use millrace_protocol::work::{self, Order};
use serde_json::Value;

use crate::{Attempt, Capability, CapabilityOutcome};

pub(crate) struct CapabilityHandler {
    capability: Arc<dyn Capability>,
    description: CapabilityDescription,
    /// The schema of its parameters: compiling it takes longer than a small task.
    parameters: CompiledSchema,
    agents: Arc<AgentHost>,
}

impl CapabilityHandler {
    pub fn new(capability: Arc<dyn Capability>, agents: Arc<AgentHost>) -> Self {
        Self { description: capability.describe(), capability, parameters: CompiledSchema::default(), agents }
    }

    async fn run_attempt(&self, host: &mut host::AttemptContext) -> Result<work::WorkOutcome, TaskError> {
        self.validate_parameters(host.order())?;
        self.refuse_tasks_of_agents(host.order())?;
        let outcome = self.capability.run(&mut Attempt::new(host, &self.agents)).await?;
        match (outcome, &host.order().work()) {
            (CapabilityOutcome::Result(result), Work::Task { .. }) => {
                host.store_finished_outcome(result, self.description.review.clone()).await
            }
            (CapabilityOutcome::Proposal(proposal, UsageTotals { usage, models }), Work::Planning { .. }) => {
                Ok(work::WorkOutcome::Proposed { proposal, usage, models })
            }
            (CapabilityOutcome::Result(_) | CapabilityOutcome::Proposal(..), work) => {
                Err(wrong_outcome_error(&self.description, work))
            }
        }
    }

    /// Validates an order's parameters against the capability's schema.
    fn validate_parameters(&self, order: &Order) -> Result<(), TaskError> {
        let Some(schema) = &self.description.parameters else {
            return Ok(());
        };
        let parameters = Value::Object(order.parameters.clone().into_iter().collect());
        self.parameters.check_value(schema, &parameters).map_err(|mistakes| {
            let message = format!("invalid parameters for {}: {mistakes}", self.description.name);
            TaskError::new(ErrorKind::WrongParameters, message)
        })
    }

    /// Refuses a task that only an agent can do: one with restrictions, or one that continues a conversation.
    fn refuse_tasks_of_agents(&self, order: &Order) -> Result<(), TaskError> {
        let is_restricted = order.overrides.as_ref().is_some_and(|overrides| overrides.has_restrictions());
        let continues = order.fork.is_some() || order.shared.is_some();
        if self.capability.is_agent() || !(is_restricted || continues) {
            return Ok(());
        }
        let name = &self.description.name;
        let message = match is_restricted {
            true => format!(
                "{name} is no agent and can't be restricted to tools or file rules, as this task requires"
            ),
            false => format!("{name} is no agent and can't continue a conversation, as this task requires"),
        };
        Err(TaskError::new(ErrorKind::InvalidTask, message))
    }
}

impl host::OrderHandler for CapabilityHandler {
    fn describe_capability(&self) -> CapabilityDescription {
        self.description.clone()
    }

    fn run_attempt<'a>(
        &'a self,
        attempt: &'a mut host::AttemptContext,
    ) -> BoxFuture<'a, Result<work::WorkOutcome, TaskError>> {
        self.run_attempt(attempt).boxed()
    }
}

fn wrong_outcome_error(description: &CapabilityDescription, work: &Work) -> TaskError {
    let (order, hint) = match work {
        Work::Task { .. } => ("a task", "it must return a result"),
        Work::Review { .. } => ("a review", "only critics do reviews"),
        Work::Planning { .. } => ("a planning turn", "it must return a proposal"),
    };
    let message = format!("the capability {} got an order for {order}: {hint}", description.name);
    TaskError::new(ErrorKind::Panic, message)
}
