//! Shared by the tests of critics: critics and workers in this process, results to review, and the orders to review them.

#[allow(dead_code, reason = "the tests of workers use all of it")]
#[path = "../../../worker/tests/support/mod.rs"]
mod shared;

use std::sync::Arc;

use futures::FutureExt;
use millrace_critic::{AgentHostConfig, CriticConfig, ProgramError, run_critic};
use millrace_protocol::ids::WorkerId;
use millrace_protocol::plan::Work;
use millrace_protocol::result::{TaskResult, Verdict};
use millrace_protocol::work::{Assignment, InputResult, Order, ReviewBrief, WorkOutcome};
use millrace_tools::execute::Launcher;
use millrace_worker::{CancellationToken, Capability, builtin, capability_from_function};
use serde_json::json;
use tokio::task::JoinHandle;

pub use shared::{Cluster, PATIENCE, build_order, build_order_for_work, count_entries};

/// A worker or critic in this process, which ends with the test.
pub struct RoleTask<E> {
    stop: CancellationToken,
    task: JoinHandle<Result<(), E>>,
}

impl<E: std::fmt::Debug> RoleTask<E> {
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("the process stops in time").unwrap().unwrap();
    }
}

pub fn start_critic(cluster: &Cluster, id: &str) -> RoleTask<ProgramError> {
    let id = Some(WorkerId::new(id).unwrap());
    let launcher = Some(Launcher::at(env!("CARGO_BIN_EXE_millrace-critic")));
    let host = AgentHostConfig { id, document_cache: None, ..AgentHostConfig::new(cluster.connection()) };
    let config = CriticConfig { host, launcher, check_folders: Vec::new() };
    let stop = CancellationToken::new();
    RoleTask { task: tokio::spawn(run_critic(config, stop.clone())), stop }
}

pub fn start_worker(cluster: &Cluster) -> RoleTask<millrace_worker::ProgramError> {
    let built_in = builtin::NAMES.iter().filter_map(|name| builtin::open_built_in(name));
    let capabilities = built_in.chain([given_result_capability()]).collect();
    let host = AgentHostConfig {
        id: Some(WorkerId::new("author").unwrap()),
        document_cache: None,
        ..AgentHostConfig::new(cluster.connection())
    };
    let config = millrace_worker::WorkerConfig { capabilities, host };
    let stop = CancellationToken::new();
    RoleTask { task: tokio::spawn(millrace_worker::run_worker(config, stop.clone())), stop }
}

/// A capability that returns the result in its parameters.
fn given_result_capability() -> Arc<dyn Capability> {
    capability_from_function("given", "Returns the result in its parameters.", |attempt| {
        async move { attempt.parse_parameter::<TaskResult>("result") }.boxed()
    })
}

/// Lets a worker return a result, and creates the order to review it.
pub async fn review_order_for_new_result(cluster: &Cluster, task: &str, result: &TaskResult) -> Order {
    let order = build_order("given", task, json!({ "result": result }));
    cluster.publish_order(&order).await;
    let (sequence, given) = cluster.await_result(&order).await;
    build_review_order(&order, Cluster::build_input(&order, "author", sequence, &given))
}

/// Creates the order to review the outcome of an order.
pub fn build_review_order(of: &Order, input: InputResult) -> Order {
    let Work::Task { task, attempt } = of.work() else { panic!("not a task") };
    Order {
        assignment: Work::Review { task, attempt, review: 1 }.into(),
        inputs: vec![input],
        parameters: Default::default(),
        ..of.clone()
    }
}

/// Returns the same review with other requirements.
pub fn with_review_brief(order: Order, brief: ReviewBrief) -> Order {
    let Assignment::Review { task, attempt, review, .. } = order.assignment else { panic!("not a review") };
    Order { assignment: Assignment::Review { task, attempt, review, brief }, ..order }
}

/// Waits for the verdict of an order to review.
pub async fn await_verdict(cluster: &Cluster, order: &Order) -> Verdict {
    let (_, outcome) = cluster.await_outcome(order).await;
    let WorkOutcome::Judged(verdict) = outcome else { panic!("{outcome:?}") };
    assert_eq!(verdict.find_inconsistency(), None);
    verdict
}
