//! What the tests of critics share, besides what they share with those of workers: critics and workers of this process,
//! results to judge, and the orders to judge them.
#![allow(dead_code, unused_imports, reason = "each test program uses its own part of it")]

#[path = "../../../worker/tests/support/mod.rs"]
mod shared;

use std::sync::Arc;

use futures::FutureExt;
use millrace_critic::{Config, Error, run};
use millrace_protocol::ids::WorkerId;
use millrace_protocol::plan::Work;
use millrace_protocol::result::{TaskResult, Verdict};
use millrace_protocol::work::{Input, Order, Outcome};
use millrace_tools::execute::Launcher;
use millrace_worker::{CancellationToken, Capability, builtin, capability};
use serde_json::json;
use tokio::task::JoinHandle;

pub use shared::{Cluster, PATIENCE, counts, order, order_for};

/// A worker or critic of this process, which ends with the test.
pub struct Process<E> {
    stop: CancellationToken,
    task: JoinHandle<Result<(), E>>,
}

impl<E: std::fmt::Debug> Process<E> {
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("it stops in time").unwrap().unwrap();
    }
}

pub fn critic(cluster: &Cluster, id: &str) -> Process<Error> {
    let id = Some(WorkerId::new(id).unwrap());
    let launcher = Some(Launcher::at(env!("CARGO_BIN_EXE_millrace-critic")));
    let config = Config { id, launcher, document_cache: None, ..Config::new(cluster.connection()) };
    let stop = CancellationToken::new();
    Process { task: tokio::spawn(run(config, stop.clone())), stop }
}

pub fn worker(cluster: &Cluster) -> Process<millrace_worker::Error> {
    let built_in = builtin::NAMES.iter().filter_map(|name| builtin::open(name));
    let capabilities = built_in.chain([given()]).collect();
    let config = millrace_worker::Config {
        id: Some(WorkerId::new("author").unwrap()),
        document_cache: None,
        ..millrace_worker::Config::new(cluster.connection(), capabilities)
    };
    let stop = CancellationToken::new();
    Process { task: tokio::spawn(millrace_worker::run(config, stop.clone())), stop }
}

/// A capability whose results are what its tasks say.
fn given() -> Arc<dyn Capability> {
    capability("given", "Gives what it is given.", |attempt| {
        async move { attempt.parameter::<TaskResult>("result") }.boxed()
    })
}

/// The order to review a result that a worker was made to give.
pub async fn review_of(cluster: &Cluster, task: &str, result: &TaskResult) -> Order {
    let order = order("given", task, json!({ "result": result }));
    cluster.offer(&order).await;
    let (sequence, given) = cluster.result(&order).await;
    review(&order, Cluster::input(&order, "author", sequence, &given))
}

/// The order to review what an order came to.
pub fn review(of: &Order, input: Input) -> Order {
    let Work::Task { task, attempt } = of.work.clone() else { panic!("no task") };
    Order {
        work: Work::Review { task, attempt, review: 1 },
        inputs: vec![input],
        parameters: Default::default(),
        ..of.clone()
    }
}

/// The verdict that an order to review comes to.
pub async fn verdict(cluster: &Cluster, order: &Order) -> Verdict {
    let (_, outcome) = cluster.outcome(order).await;
    let Outcome::Judged(verdict) = outcome else { panic!("{outcome:?}") };
    assert_eq!(verdict.inconsistency(), None);
    verdict
}
