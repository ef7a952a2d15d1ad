//! Shared by the tests of workers and critics: a cluster without a supervisor; the test itself offers orders and reads
//! journals.

use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::{Capability, RunId, TaskId, WorkerId};
use millrace_protocol::plan::{Document, DocumentSet, Work};
use millrace_protocol::result::TaskResult;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire;
use millrace_protocol::work::{InputResult, JournalEntry, Order, WorkOutcome};
use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::work::queue;
use millrace_runtime::{Bus, ConnectionSettings, log};
use millrace_tests::{NatsServer, wait_for_value};
use serde_json::Value;

/// The deadline of every wait.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A cluster on its own server.
pub struct Cluster {
    pub server: NatsServer,
    pub bus: Bus,
}

impl Cluster {
    /// Starts a cluster with work leases that never expire during a test.
    pub async fn start() -> Self {
        Self::start_with_lease(Duration::from_secs(60)).await
    }

    pub async fn start_with_lease(work_lease: Duration) -> Self {
        let server = NatsServer::start();
        let wanted = ClusterOptions { work_lease: Some(work_lease), ..ClusterOptions::default() };
        let bus =
            Bus::connect_and_ensure_cluster(&connection_to(&server.url), "test", &wanted).await.unwrap();
        Self { server, bus }
    }

    pub fn connection(&self) -> ConnectionSettings {
        connection_to(&self.server.url)
    }

    /// Publishes an order and creates its queue, as a supervisor would.
    pub async fn publish_order(&self, order: &Order) {
        let place = subject::order_subject(&order.run, &order.capability, &order.work());
        let queues = [Capability::new(place.split('.').nth(1).unwrap()).unwrap()].into();
        queue::ensure_queues(&self.bus, &queues).await.unwrap();
        queue::publish_orders(&self.bus, vec![order.clone()]).await.map_err(|(_, fault)| fault).unwrap();
    }

    /// Returns the current journal of an order.
    pub async fn read_journal(&self, order: &Order) -> Vec<(u64, JournalEntry)> {
        let topic = Topic::journal_of_work(&order.work());
        let mut entries = Vec::new();
        for record in log::read_topic(&self.bus, order.lane, &order.run, &topic).await.unwrap() {
            entries.push((record.sequence, self.bus.decode_record::<JournalEntry>(&record).await.unwrap()));
        }
        entries
    }

    /// Waits for the outcome of an order; returns it with its sequence.
    pub async fn await_outcome(&self, order: &Order) -> (u64, WorkOutcome) {
        wait_for_value(PATIENCE, &format!("the outcome of {:?}", order.work()), async || {
            let journal = self.read_journal(order).await;
            journal.into_iter().find_map(|(sequence, entry)| match entry {
                JournalEntry::Outcome { outcome, .. } => Some((sequence, outcome)),
                JournalEntry::Claimed { .. }
                | JournalEntry::Step { .. }
                | JournalEntry::Note { .. }
                | JournalEntry::Parked { .. }
                | JournalEntry::Delegated { .. }
                | JournalEntry::Released { .. } => None,
            })
        })
        .await
    }

    /// Waits for the result of an order; returns it with the sequence of its outcome.
    pub async fn await_result(&self, order: &Order) -> (u64, TaskResult) {
        let (sequence, outcome) = self.await_outcome(order).await;
        let WorkOutcome::Finished { result, .. } = outcome else {
            panic!("{:?} ended with {outcome:?}", order.work());
        };
        let bytes = self.bus.blobs().read_inline_or_stored(&result).await.unwrap();
        (sequence, wire::decode_task_result(&bytes).unwrap())
    }

    /// Creates an input as a supervisor would, from an order and the sequence of its outcome.
    pub fn build_input(order: &Order, worker: &str, sequence: u64, result: &TaskResult) -> InputResult {
        let Work::Task { task, .. } = &order.work() else { panic!("not a task") };
        InputResult {
            task: task.clone(),
            objective: order.objective.clone(),
            capability: order.capability.clone(),
            worker: WorkerId::new(worker).unwrap(),
            summary: result.summary.clone(),
            at_sequence: sequence,
        }
    }

    /// Waits until a queue holds this many unacknowledged orders.
    pub async fn await_waiting_orders(&self, capability: &str, count: u64) {
        let settings = self.bus.settings().clone();
        let context = async_nats::jetstream::new(self.bus.client().clone());
        let capability = Capability::new(capability).unwrap();
        wait_for_value(PATIENCE, &format!("{count} orders in the queue of {capability}"), async || {
            let mut queue = millrace_runtime::nats::topology::ensure_queue(&context, &settings, &capability)
                .await
                .unwrap();
            let info = queue.info().await.unwrap();
            (info.num_pending + info.num_ack_pending as u64 == count).then_some(())
        })
        .await;
    }

    /// Stores documents for a run.
    #[allow(dead_code, reason = "the tests of critics use it")]
    pub async fn store_documents(&self, files: &[(&str, &str)]) -> DocumentSet {
        let mut documents = Vec::new();
        for (path, text) in files {
            let stored = self.bus.blobs().put_blob(text.as_bytes()).await.unwrap();
            documents.push(Document { path: (*path).into(), sha256: stored.sha256, size: stored.size });
        }
        let manifest = self.bus.blobs().put_blob(&wire::encode_body(&documents)).await.unwrap();
        let bytes = documents.iter().map(|document| document.size).sum();
        DocumentSet { manifest: manifest.sha256, count: documents.len() as u32, bytes }
    }
}

fn connection_to(url: &str) -> ConnectionSettings {
    ConnectionSettings::unauthenticated(url.to_owned())
}

/// Creates an order for the first attempt at a task of the run `r`.
pub fn build_order(capability: &str, task: &str, parameters: Value) -> Order {
    let work = Work::Task { task: TaskId::new(task).unwrap(), attempt: 1 };
    let parameters = serde_json::from_value(parameters).unwrap();
    Order { parameters, ..build_order_for_work(capability, work) }
}

pub fn build_order_for_work(capability: &str, work: Work) -> Order {
    let run = RunId::new("r").unwrap();
    let lane = run.lane(1);
    Order::new(run, lane, work, "test", Capability::new(capability).unwrap())
}

/// Counts the entries of a journal: claims, steps, outcomes.
pub fn count_entries(journal: &[(u64, JournalEntry)]) -> (usize, usize, usize) {
    journal.iter().fold((0, 0, 0), |(claims, steps, outcomes), (_, entry)| match entry {
        JournalEntry::Claimed { .. } => (claims + 1, steps, outcomes),
        JournalEntry::Step { .. } => (claims, steps + 1, outcomes),
        JournalEntry::Note { .. }
        | JournalEntry::Parked { .. }
        | JournalEntry::Delegated { .. }
        | JournalEntry::Released { .. } => (claims, steps, outcomes),
        JournalEntry::Outcome { .. } => (claims, steps, outcomes + 1),
    })
}

/// Returns the subject of an order.
pub fn order_subject(order: &Order) -> String {
    subject::order_subject(&order.run, &order.capability, &order.work())
}

/// A counter that several tasks share.
#[derive(Clone, Default)]
pub struct Counter(Arc<std::sync::atomic::AtomicUsize>);

impl Counter {
    pub fn increment(&self) -> usize {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1
    }

    pub fn get(&self) -> usize {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}
