//! The inputs of an agent's work: earlier results, blobs, the plan and the capabilities of the cluster. The crate reads
//! them through [`OrderInputs`] only; the host of the agent implements it.

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use jiff::Timestamp;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    Event, Plan, PlannerConsultMode, PlannerTrigger, PlanningEvent, PlanningMode, RunEvent, apply,
};
use millrace_protocol::result::{CapabilityDescription, TaskResult};
use millrace_protocol::work::{InputResult, Order};
use serde::{Deserialize, Serialize};

/// Read access to everything an order refers to.
pub trait OrderInputs: Send + Sync + 'static {
    /// Returns the result that an input refers to.
    fn read_result<'a>(
        &'a self,
        input: &'a InputResult,
    ) -> BoxFuture<'a, Result<TaskResult, OrderInputError>>;

    /// Returns the blob with this SHA-256.
    fn read_blob<'a>(&'a self, sha256: &'a str) -> BoxFuture<'a, Result<Vec<u8>, OrderInputError>>;

    /// Returns the value of a step of an attempt at a task of the run, as JSON; `None` if its journal has no such step, or a replica that
    /// lags has not got it yet. The default knows no log.
    fn read_step<'a>(
        &'a self,
        task: &'a TaskId,
        attempt: u32,
        step: &'a str,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, OrderInputError>> {
        let _ = (task, attempt, step);
        ready(Ok(None)).boxed()
    }

    /// Returns the values of the steps of an attempt at a task of the run whose names begin with `prefix`, as JSON, in the order of
    /// its journal. The default knows no log.
    fn read_steps<'a>(
        &'a self,
        task: &'a TaskId,
        attempt: u32,
        prefix: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Vec<u8>>, OrderInputError>> {
        let _ = (task, attempt, prefix);
        ready(Ok(Vec::new())).boxed()
    }

    /// Returns the run's plan as of the decision with the sequence `through`. The default knows no log and derives the
    /// plan from the order alone.
    fn read_plan<'a>(
        &'a self,
        order: &'a Order,
        through: u64,
    ) -> BoxFuture<'a, Result<Plan, OrderInputError>> {
        let _ = through;
        ready(Ok(plan_without_log(order))).boxed()
    }

    /// Returns the run's plan as of its last decision. The default knows no log and derives the plan from the order alone.
    fn read_current_plan<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<Plan, OrderInputError>> {
        ready(Ok(plan_without_log(order))).boxed()
    }

    /// Returns the capabilities of the cluster and the number of live slots of each, for planners.
    fn read_offers(&self) -> BoxFuture<'_, Result<Vec<CapabilityOffer>, OrderInputError>> {
        let listing = self.read_capabilities();
        let offer = |about| CapabilityOffer { about, slots: None };
        listing.map(move |all| Ok(all?.into_iter().map(offer).collect())).boxed()
    }

    /// Returns the capabilities of the cluster, for agents that consult each other.
    fn read_capabilities(&self) -> BoxFuture<'_, Result<Vec<CapabilityDescription>, OrderInputError>> {
        ready(Ok(Vec::new())).boxed()
    }
}

/// A failure to read a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderInputError {
    /// The store does not respond. A retry may succeed.
    #[error("{0}")]
    Unavailable(String),
    /// The data is missing or corrupt. A retry does not help.
    #[error("{0}")]
    Broken(String),
}

/// A capability that a planner can use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CapabilityOffer {
    /// Its description, as registered.
    #[serde(flatten)]
    pub about: CapabilityDescription,
    /// The number of slots that live workers have for it; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
}

/// Returns the plan of a run that has no decisions yet, as far as an order describes it.
#[must_use]
pub fn plan_without_log(order: &Order) -> Plan {
    let mut plan = Plan::default();
    let started = Event::Run(RunEvent::Started {
        objective: order.mission.clone(),
        mode: PlanningMode::Llm,
        documents: order.documents.clone().map(Box::new),
        model: order.model.clone(),
        models: Default::default(),
        fail_fast: false,
        budget: Box::default(),
        consult: PlannerConsultMode::Judgement,
        approve_plan: false,
        verification: None,
        criteria: Vec::new(),
        after: Vec::new(),
        labels: Default::default(),
        session: None,
    });
    let requested = Event::Planning(PlanningEvent::Requested {
        turn: 1,
        attempt: 1,
        feedback: None,
        triggers: vec![PlannerTrigger::NoPlan],
    });
    for event in [started, requested] {
        apply(&mut plan, &event, Timestamp::UNIX_EPOCH);
    }
    plan
}
