//! The interface of a capability: a kind of work that tasks can name. It owns what a capability says of itself and
//! what it brings; how it is reached is hidden.

use std::sync::Arc;

use futures::future::BoxFuture;
use millrace_agent::model::Choice;
use millrace_agent::turn::Spent;
use millrace_protocol::ids;
use millrace_protocol::result::{CapabilityDescription, Proposal, TaskError, TaskResult};

use crate::Attempt;

/// A kind of work. One value does all attempts of the process, several at once.
pub trait Capability: Send + Sync + 'static {
    /// Its name, what it does, and which parameters it takes. Parameters are checked against the schema before
    /// [`Capability::run`].
    fn describe(&self) -> CapabilityDescription;

    /// How many attempts of it a worker has in hand at once; `None` is what the worker is told for all.
    fn slots(&self) -> Option<u32> {
        None
    }

    /// The model that it names for itself. It is opened before there is any work, so that a mistake is known early.
    fn model(&self) -> Option<&Choice> {
        None
    }

    /// Does one attempt. What must not be done twice is a [`Attempt::step`]; a panic becomes an error of the attempt.
    /// The future is dropped at an await when the attempt is cancelled.
    ///
    /// # Errors
    /// What the attempt ends with instead of a result. Errors that the attempt's own functions gave are to be returned.
    fn run<'a>(&'a self, attempt: &'a mut Attempt<'_>) -> BoxFuture<'a, Result<Outcome, TaskError>>;
}

/// What an attempt brings.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A task's result.
    Result(TaskResult),
    /// A planner's proposal, and what it took. Only for the capability `planner`.
    Proposal(Proposal, Spent),
}

impl From<TaskResult> for Outcome {
    fn from(result: TaskResult) -> Self {
        Self::Result(result)
    }
}

/// A capability from its name, what it does, and a function. It takes any parameters; one that wants them checked
/// implements [`Capability`].
///
/// # Panics
/// `name` is no name: letters, digits, '-' and '_', at most 64.
pub fn capability<F, T>(name: &str, description: &str, run: F) -> Arc<dyn Capability>
where
    F: for<'a> Fn(&'a mut Attempt<'_>) -> BoxFuture<'a, Result<T, TaskError>> + Send + Sync + 'static,
    T: Into<Outcome> + 'static,
{
    let name = ids::Capability::new(name).expect("a capability's name holds letters, digits, '-' and '_'");
    let description = CapabilityDescription::new(name, description);
    Arc::new(FromFunction { description, run })
}

struct FromFunction<F> {
    description: CapabilityDescription,
    run: F,
}

impl<F, T> Capability for FromFunction<F>
where
    F: for<'a> Fn(&'a mut Attempt<'_>) -> BoxFuture<'a, Result<T, TaskError>> + Send + Sync + 'static,
    T: Into<Outcome> + 'static,
{
    fn describe(&self) -> CapabilityDescription {
        self.description.clone()
    }

    fn run<'a>(&'a self, attempt: &'a mut Attempt<'_>) -> BoxFuture<'a, Result<Outcome, TaskError>> {
        let done = (self.run)(attempt);
        Box::pin(async move { Ok(done.await?.into()) })
    }
}
