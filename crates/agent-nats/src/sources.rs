//! The log, the blob store and the registry as an agent's sources. Nothing is cached here.

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::sources::{CapabilityOffer, OrderInputError, OrderInputs, plan_without_log};
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::Plan;
use millrace_protocol::result::{CapabilityDescription, TaskResult};
use millrace_protocol::work::{InputResult, Order};
use millrace_runtime::Fault;
use millrace_runtime::work::host::ClusterReader;

/// Reads for the orders of one lane.
pub struct NatsOrderInputs(pub ClusterReader);

impl OrderInputs for NatsOrderInputs {
    fn read_result<'a>(
        &'a self,
        input: &'a InputResult,
    ) -> BoxFuture<'a, Result<TaskResult, OrderInputError>> {
        self.0.read_result(input).map(|read| read.map_err(convert_fault)).boxed()
    }

    fn read_blob<'a>(&'a self, sha256: &'a str) -> BoxFuture<'a, Result<Vec<u8>, OrderInputError>> {
        self.0.read_blob(sha256).map(|read| read.map_err(convert_fault)).boxed()
    }

    fn read_step<'a>(
        &'a self,
        task: &'a TaskId,
        attempt: u32,
        step: &'a str,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, OrderInputError>> {
        self.0.read_step(task, attempt, step).map(|read| read.map_err(convert_fault)).boxed()
    }

    fn read_steps<'a>(
        &'a self,
        task: &'a TaskId,
        attempt: u32,
        prefix: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Vec<u8>>, OrderInputError>> {
        self.0.read_steps(task, attempt, prefix).map(|read| read.map_err(convert_fault)).boxed()
    }

    fn read_capabilities(&self) -> BoxFuture<'_, Result<Vec<CapabilityDescription>, OrderInputError>> {
        self.0.read_capabilities().map(|read| read.map_err(convert_fault)).boxed()
    }

    fn read_offers(&self) -> BoxFuture<'_, Result<Vec<CapabilityOffer>, OrderInputError>> {
        async move {
            let capabilities = self.0.read_capabilities().await.map_err(convert_fault)?;
            let slots = self.0.read_live_slots().await.map_err(convert_fault)?;
            let live = |about: &CapabilityDescription| slots.get(&about.name).copied().unwrap_or(0);
            Ok(capabilities
                .into_iter()
                .map(|about| CapabilityOffer { slots: Some(live(&about)), about })
                .collect())
        }
        .boxed()
    }

    fn read_current_plan<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<Plan, OrderInputError>> {
        let read = self.0.read_current_plan(&order.run, decided_at(order));
        read.map(|read| read.map_err(convert_fault)).boxed()
    }

    fn read_plan<'a>(
        &'a self,
        order: &'a Order,
        through: u64,
    ) -> BoxFuture<'a, Result<Plan, OrderInputError>> {
        async move {
            match through {
                0 => Ok(plan_without_log(order)),
                _ => self.0.read_plan(&order.run, through).await.map_err(convert_fault),
            }
        }
        .boxed()
    }
}

fn decided_at(order: &Order) -> u64 {
    order.decided.map_or(0, |decided| decided.sequence)
}

fn convert_fault(fault: Fault) -> OrderInputError {
    let why = fault.to_string();
    if fault.is_transient() { OrderInputError::Unavailable(why) } else { OrderInputError::Broken(why) }
}
