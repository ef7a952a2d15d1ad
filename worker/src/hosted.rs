//! A capability as the handler of a queue: checks the parameters, runs it, and puts what it brings into the words of
//! the journal. It decides nothing about the work.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::desk::Desk;
use millrace_agent::tool;
use millrace_agent::turn::Spent;
use millrace_protocol::plan::Work;
use millrace_protocol::result::{CapabilityDescription, ErrorKind, TaskError};
use millrace_protocol::work::{self, Order};
use millrace_runtime::host;
use serde_json::Value;

use crate::{Attempt, Capability, Outcome};

pub(crate) struct Hosted {
    capability: Arc<dyn Capability>,
    description: CapabilityDescription,
    desk: Arc<Desk>,
}

impl Hosted {
    pub fn new(capability: Arc<dyn Capability>, desk: Arc<Desk>) -> Self {
        Self { description: capability.describe(), capability, desk }
    }

    async fn attempt(&self, host: &mut host::Attempt) -> Result<work::Outcome, TaskError> {
        check(&self.description, host.order())?;
        let outcome = self.capability.run(&mut Attempt::new(host, &self.desk)).await?;
        match (outcome, &host.order().work) {
            (Outcome::Result(result), Work::Task { .. }) => {
                host.finished(result, self.description.review.clone()).await
            }
            (Outcome::Proposal(proposal, Spent { usage, models }), Work::Planning { .. }) => {
                Ok(work::Outcome::Proposed { proposal, usage, models })
            }
            (Outcome::Result(_) | Outcome::Proposal(..), work) => Err(unfit(&self.description, work)),
        }
    }
}

impl host::Handler for Hosted {
    fn describe(&self) -> CapabilityDescription {
        self.description.clone()
    }

    fn run<'a>(&'a self, attempt: &'a mut host::Attempt) -> BoxFuture<'a, Result<work::Outcome, TaskError>> {
        self.attempt(attempt).boxed()
    }
}

fn unfit(description: &CapabilityDescription, work: &Work) -> TaskError {
    let (asked, hint) = match work {
        Work::Task { .. } => ("a task", "bring a result"),
        Work::Review { .. } => ("a review", "only a critic does reviews"),
        Work::Planning { .. } => ("a plan", "bring a proposal"),
    };
    let message = format!("the capability {} was asked for {asked}: {hint}", description.name);
    TaskError::new(ErrorKind::Panic, message)
}

/// Checks an order's parameters against the capability's schema.
fn check(description: &CapabilityDescription, order: &Order) -> Result<(), TaskError> {
    let Some(schema) = &description.parameters else {
        return Ok(());
    };
    let parameters = Value::Object(order.parameters.clone().into_iter().collect());
    tool::check(schema, &parameters).map_err(|mistakes| {
        let message = format!("the parameters for {} are wrong: {mistakes}", description.name);
        TaskError::new(ErrorKind::WrongParameters, message)
    })
}
