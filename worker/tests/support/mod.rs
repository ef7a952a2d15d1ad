//! What the tests of workers and critics share: a cluster without a supervisor, whose orders are handed out and whose
//! journals are read by the test itself.
#![allow(dead_code, reason = "each test program uses its own part of it")]

use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::{Capability, RunId, TaskId, WorkerId};
use millrace_protocol::plan::{Document, DocumentSet, Work};
use millrace_protocol::result::TaskResult;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire;
use millrace_protocol::work::{Entry, Input, Order, Outcome};
use millrace_runtime::topology::Wanted;
use millrace_runtime::{Bus, Connection, log, queue};
use millrace_tests::{NatsServer, eventually};
use serde_json::Value;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A cluster on a server of its own.
pub struct Cluster {
    pub server: NatsServer,
    pub bus: Bus,
}

impl Cluster {
    /// With a lease on work that is long enough never to matter.
    pub async fn start() -> Self {
        Self::with_lease(Duration::from_secs(60)).await
    }

    pub async fn with_lease(work_lease: Duration) -> Self {
        let server = NatsServer::start();
        let wanted = Wanted { work_lease: Some(work_lease), ..Wanted::default() };
        let bus = Bus::connect(&connection(&server.url), "test", &wanted).await.unwrap();
        Self { server, bus }
    }

    pub fn connection(&self) -> Connection {
        connection(&self.server.url)
    }

    /// Puts an order in its queue, making that as a supervisor would.
    pub async fn offer(&self, order: &Order) {
        let place = subject::order(&order.run, &order.capability, &order.work);
        let queues = [Capability::new(place.split('.').nth(1).unwrap()).unwrap()].into();
        queue::ensure(&self.bus, &queues).await.unwrap();
        queue::offer(&self.bus, vec![order.clone()]).await.map_err(|(_, fault)| fault).unwrap();
    }

    /// The journal of an order as it stands.
    pub async fn journal(&self, order: &Order) -> Vec<(u64, Entry)> {
        let topic = Topic::journal(&order.work);
        let mut entries = Vec::new();
        for record in log::read_topic(&self.bus, order.lane, &order.run, &topic).await.unwrap() {
            entries.push((record.sequence, self.bus.open::<Entry>(&record).await.unwrap()));
        }
        entries
    }

    /// The outcome of an order, with its sequence, once it is there.
    pub async fn outcome(&self, order: &Order) -> (u64, Outcome) {
        eventually(PATIENCE, &format!("the outcome of {:?}", order.work), async || {
            let journal = self.journal(order).await;
            journal.into_iter().find_map(|(sequence, entry)| match entry {
                Entry::Outcome { outcome, .. } => Some((sequence, outcome)),
                Entry::Claimed { .. } | Entry::Step { .. } | Entry::Note { .. } | Entry::Released { .. } => {
                    None
                }
            })
        })
        .await
    }

    /// The result that an order came to, with the sequence of its outcome.
    pub async fn result(&self, order: &Order) -> (u64, TaskResult) {
        let (sequence, outcome) = self.outcome(order).await;
        let Outcome::Finished { result, .. } = outcome else {
            panic!("{:?} came to {outcome:?}", order.work);
        };
        let bytes = self.bus.blobs().resolve(&result).await.unwrap();
        (sequence, wire::read_result(&bytes).unwrap())
    }

    /// An input as the supervisor would name it, from an order and the sequence of its outcome.
    pub fn input(order: &Order, worker: &str, sequence: u64, result: &TaskResult) -> Input {
        let Work::Task { task, .. } = &order.work else { panic!("no task") };
        Input {
            task: task.clone(),
            objective: order.objective.clone(),
            capability: order.capability.clone(),
            worker: WorkerId::new(worker).unwrap(),
            summary: result.summary.clone(),
            at_sequence: sequence,
        }
    }

    /// Waits until a queue holds this many orders that nobody acknowledged.
    pub async fn waiting(&self, capability: &str, count: u64) {
        let settings = self.bus.settings().clone();
        let context = async_nats::jetstream::new(self.bus.client().clone());
        let capability = Capability::new(capability).unwrap();
        eventually(PATIENCE, &format!("{count} orders in the queue of {capability}"), async || {
            let mut queue =
                millrace_runtime::topology::ensure_queue(&context, &settings, &capability).await.unwrap();
            let info = queue.info().await.unwrap();
            (info.num_pending + info.num_ack_pending as u64 == count).then_some(())
        })
        .await;
    }

    /// Keeps documents for a run.
    pub async fn documents(&self, files: &[(&str, &str)]) -> DocumentSet {
        let mut documents = Vec::new();
        for (path, text) in files {
            let stored = self.bus.blobs().put(text.as_bytes()).await.unwrap();
            documents.push(Document { path: (*path).into(), sha256: stored.sha256, size: stored.size });
        }
        let manifest = self.bus.blobs().put(&wire::body(&documents)).await.unwrap();
        let bytes = documents.iter().map(|document| document.size).sum();
        DocumentSet { manifest: manifest.sha256, count: documents.len() as u32, bytes }
    }
}

fn connection(url: &str) -> Connection {
    Connection::open(url.to_owned())
}

/// An order for the first attempt at a task of the run `r`.
pub fn order(capability: &str, task: &str, parameters: Value) -> Order {
    let work = Work::Task { task: TaskId::new(task).unwrap(), attempt: 1 };
    let parameters = serde_json::from_value(parameters).unwrap();
    Order { parameters, ..order_for(capability, work) }
}

pub fn order_for(capability: &str, work: Work) -> Order {
    let run = RunId::new("r").unwrap();
    let lane = run.lane(1);
    Order::new(run, lane, work, "test", Capability::new(capability).unwrap())
}

/// How often each of the journal's entries is there: claims, steps, outcomes.
pub fn counts(journal: &[(u64, Entry)]) -> (usize, usize, usize) {
    journal.iter().fold((0, 0, 0), |(claims, steps, outcomes), (_, entry)| match entry {
        Entry::Claimed { .. } => (claims + 1, steps, outcomes),
        Entry::Step { .. } => (claims, steps + 1, outcomes),
        Entry::Note { .. } | Entry::Released { .. } => (claims, steps, outcomes),
        Entry::Outcome { .. } => (claims, steps, outcomes + 1),
    })
}

/// The subject of an order's queue.
pub fn order_subject(order: &Order) -> String {
    subject::order(&order.run, &order.capability, &order.work)
}

/// Something that is counted from several tasks.
#[derive(Clone, Default)]
pub struct Counter(Arc<std::sync::atomic::AtomicUsize>);

impl Counter {
    pub fn add(&self) -> usize {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1
    }

    pub fn get(&self) -> usize {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}
