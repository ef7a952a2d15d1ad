//! The interface of a capability, a kind of work that tasks can name; and a capability as the handler of a queue, which validates the
//! parameters, runs the capability, and converts what it returns into the outcome of the attempt.

use std::marker::PhantomData;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::model::ModelSelection;
use millrace_agent::session::AgentHost;
use millrace_agent::tool::schema_of;
use millrace_agent::turn::UsageTotals;
use millrace_host as host;
use millrace_protocol::ids::{self, InvalidName};
use millrace_protocol::plan::Work;
use millrace_protocol::result::{CapabilityDescription, ErrorKind, PlanProposal, TaskError, TaskResult};
use millrace_protocol::schema::CompiledSchema;
use millrace_protocol::work::{self, Order};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Attempt;

/// A kind of work. One value serves all attempts of the process, several of them concurrently.
pub trait Capability: Send + Sync + 'static {
    /// Returns its name, what it does, and the schema of its parameters. Parameters are validated against the schema
    /// before [`Capability::run`].
    fn describe(&self) -> CapabilityDescription;

    /// Returns how many attempts of it a worker runs at once; `None` uses the worker's default.
    fn max_concurrent_attempts(&self) -> Option<u32> {
        None
    }

    /// Returns the model that its file names. It is opened when the worker starts, so that a mistake is reported early.
    fn model(&self) -> Option<&ModelSelection> {
        None
    }

    /// Returns `true` if it is an agent: it applies the overrides of a delegated task, and continues conversations. Any other
    /// capability refuses a task that requires that.
    fn is_agent(&self) -> bool {
        false
    }

    /// Runs one attempt. Effects that must not happen twice belong into an [`Attempt::run_step`]; a panic becomes an error of
    /// the attempt. The future is dropped at an await when the attempt is cancelled.
    ///
    /// # Errors
    /// The error that the attempt ends with. Errors of the attempt's own methods must be returned.
    fn run<'a>(&'a self, attempt: &'a mut Attempt<'_>)
    -> BoxFuture<'a, Result<CapabilityOutcome, TaskError>>;
}

/// The outcome of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum CapabilityOutcome {
    /// A task's result.
    Result(TaskResult),
    /// A planner's proposal and its usage. Only for the capability `planner`.
    Proposal(PlanProposal, UsageTotals),
}

impl From<TaskResult> for CapabilityOutcome {
    fn from(result: TaskResult) -> Self {
        Self::Result(result)
    }
}

/// Creates a capability from a name, a description and a function. Its parameters are not validated:
/// [`capability_with_parameters`] does that.
///
/// # Panics
/// `name` is invalid: at most 64 letters, digits, '-' and '_'.
pub fn capability_from_function<F, T>(name: &str, description: &str, run: F) -> Arc<dyn Capability>
where
    F: for<'a> Fn(&'a mut Attempt<'_>) -> BoxFuture<'a, Result<T, TaskError>> + Send + Sync + 'static,
    T: Into<CapabilityOutcome> + 'static,
{
    let name = ids::Capability::new(name).expect("a capability's name holds letters, digits, '-' and '_'");
    let description = CapabilityDescription::new(name, description);
    Arc::new(FunctionCapability { description, run })
}

/// Creates a capability from a name, a description and a function of an attempt and its typed parameters. The schema of the
/// parameters is that of `P`, whose doc comments become descriptions; the supervisor checks the parameters of a task
/// against it before the task starts. `P` should deny unknown fields. The macro [`capability!`](crate::capability!) calls
/// it with an async closure.
///
/// # Errors
/// `name` is invalid: at most 64 letters, digits, '-' and '_'.
pub fn capability_with_parameters<P, F, T>(
    name: &str,
    description: &str,
    run: F,
) -> Result<Arc<dyn Capability>, InvalidName>
where
    P: DeserializeOwned + JsonSchema + Send + 'static,
    F: for<'a> Fn(&'a mut Attempt<'_>, P) -> BoxFuture<'a, Result<T, TaskError>> + Send + Sync + 'static,
    T: Into<CapabilityOutcome> + 'static,
{
    let description = CapabilityDescription {
        parameters: Some(schema_of::<P>()),
        ..CapabilityDescription::new(ids::Capability::new(name)?, description)
    };
    Ok(Arc::new(TypedCapability { description, run, parameters: PhantomData }))
}

/// Creates a capability from a name, a description and an async closure of an attempt and its typed parameters, as
/// [`capability_with_parameters`] does.
///
/// ```
/// # use millrace_worker::{TaskResult, capability};
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// struct Parameters {
///     /// The text to count the words of.
///     text: String,
/// }
///
/// let count = capability!("word-count", "Counts words.", async |attempt, parameters: Parameters| {
///     let text = parameters.text;
///     let words = attempt.run_step("count", async { Ok(text.split_whitespace().count()) }).await?;
///     Ok(TaskResult { output: format!("{words} words"), ..TaskResult::default() })
/// })?;
/// assert_eq!(count.describe().parameters.unwrap()["required"][0], "text");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[macro_export]
macro_rules! capability {
    ($name:expr, $description:expr, async |$attempt:ident, $parameters:ident : $type:ty| $body:expr) => {
        $crate::capability_with_parameters::<$type, _, _>(
            $name,
            $description,
            |$attempt, $parameters: $type| ::std::boxed::Box::pin(async move { $body }),
        )
    };
}

/// A function of an attempt and its parameters.
struct TypedCapability<P, F> {
    description: CapabilityDescription,
    run: F,
    parameters: PhantomData<fn() -> P>,
}

impl<P, F, T> Capability for TypedCapability<P, F>
where
    P: DeserializeOwned + JsonSchema + Send + 'static,
    F: for<'a> Fn(&'a mut Attempt<'_>, P) -> BoxFuture<'a, Result<T, TaskError>> + Send + Sync + 'static,
    T: Into<CapabilityOutcome> + 'static,
{
    fn describe(&self) -> CapabilityDescription {
        self.description.clone()
    }

    fn run<'a>(
        &'a self,
        attempt: &'a mut Attempt<'_>,
    ) -> BoxFuture<'a, Result<CapabilityOutcome, TaskError>> {
        let outcome = attempt.parse_parameters().map(|parameters| (self.run)(attempt, parameters));
        Box::pin(async move { Ok(outcome?.await?.into()) })
    }
}

struct FunctionCapability<F> {
    description: CapabilityDescription,
    run: F,
}

impl<F, T> Capability for FunctionCapability<F>
where
    F: for<'a> Fn(&'a mut Attempt<'_>) -> BoxFuture<'a, Result<T, TaskError>> + Send + Sync + 'static,
    T: Into<CapabilityOutcome> + 'static,
{
    fn describe(&self) -> CapabilityDescription {
        self.description.clone()
    }

    fn run<'a>(
        &'a self,
        attempt: &'a mut Attempt<'_>,
    ) -> BoxFuture<'a, Result<CapabilityOutcome, TaskError>> {
        let outcome = (self.run)(attempt);
        Box::pin(async move { Ok(outcome.await?.into()) })
    }
}

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
