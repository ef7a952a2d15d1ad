//! What an agent builds on, read from the log and the blob store. It keeps nothing.

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::desk::{SourceError, Sources};
use millrace_agent::planner::{self, Offer};
use millrace_protocol::plan::Plan;
use millrace_protocol::result::{CapabilityDescription, ErrorKind, TaskError, TaskResult};
use millrace_protocol::work::{Input, Order};
use millrace_runtime::Fault;
use millrace_runtime::host::{Attempt, Reader};

/// What the runtime reads, as an agent's sources.
pub struct Reading(pub Reader);

impl Sources for Reading {
    fn result<'a>(&'a self, input: &'a Input) -> BoxFuture<'a, Result<TaskResult, SourceError>> {
        self.0.result(input).map(|read| read.map_err(source_error)).boxed()
    }

    fn blob<'a>(&'a self, sha256: &'a str) -> BoxFuture<'a, Result<Vec<u8>, SourceError>> {
        self.0.blob(sha256).map(|read| read.map_err(source_error)).boxed()
    }

    fn capabilities(&self) -> BoxFuture<'_, Result<Vec<CapabilityDescription>, SourceError>> {
        self.0.capabilities().map(|read| read.map_err(source_error)).boxed()
    }

    fn offers(&self) -> BoxFuture<'_, Result<Vec<Offer>, SourceError>> {
        async move {
            let known = self.0.capabilities().await.map_err(source_error)?;
            let slots = self.0.slots().await.map_err(source_error)?;
            let live = |about: &CapabilityDescription| slots.get(&about.name).copied().unwrap_or(0);
            Ok(known.into_iter().map(|about| Offer { slots: Some(live(&about)), about }).collect())
        }
        .boxed()
    }

    fn plan<'a>(&'a self, order: &'a Order, through: u64) -> BoxFuture<'a, Result<Plan, SourceError>> {
        async move {
            match through {
                0 => Ok(planner::blank(order)),
                _ => self.0.plan(&order.run, through).await.map_err(source_error),
            }
        }
        .boxed()
    }
}

fn source_error(fault: Fault) -> SourceError {
    let why = fault.to_string();
    if fault.is_transient() { SourceError::Unavailable(why) } else { SourceError::Broken(why) }
}

/// What a source that can't be read means for an attempt. Where it may be readable later, the attempt ends without an
/// outcome, and another goes on with it; else it is an error of the work. To be returned either way.
pub fn unreadable(attempt: &mut Attempt, error: SourceError) -> TaskError {
    match error {
        SourceError::Unavailable(why) => {
            attempt.fault(Fault::unavailable("reading what the work builds on", why))
        }
        SourceError::Broken(why) => TaskError::new(ErrorKind::Other, why),
    }
}
