//! Workers against a real NATS server: orders from the queue to their outcome, and everything that can go wrong.
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{
    Cluster, Counter, PATIENCE, build_order, build_order_for_work, count_entries, order_subject,
};
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::Work;
use millrace_protocol::result::ErrorKind;
use millrace_protocol::subject::Topic;
use millrace_protocol::wire::{self, InlineOrStoredBytes};
use millrace_protocol::work::{InputResult, JournalEntry, Order, WorkOutcome};
use millrace_runtime::log;
use millrace_runtime::work::{queue, registry};
use millrace_tests::plans::{build_publish_headers, publish_order_without_id};
use millrace_tests::wait_for_value;
use millrace_worker::{
    AgentHostConfig, CancellationToken, Capability, ProgramError, TaskError, TaskResult, WorkerConfig,
    WorkerId, builtin, capability_from_function, run_worker,
};
use serde_bytes::ByteBuf;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A worker in this process.
struct RunningWorker {
    stop: CancellationToken,
    task: JoinHandle<Result<(), ProgramError>>,
}

impl RunningWorker {
    fn start_worker(cluster: &Cluster, id: &str, capabilities: Vec<Arc<dyn Capability>>) -> Self {
        Self::start_with_grace(cluster, id, capabilities, PATIENCE)
    }

    fn start_with_grace(
        cluster: &Cluster,
        id: &str,
        capabilities: Vec<Arc<dyn Capability>>,
        grace: Duration,
    ) -> Self {
        let host = AgentHostConfig {
            id: Some(WorkerId::new(id).unwrap()),
            slots: 4,
            grace,
            document_cache: None,
            ..AgentHostConfig::new(cluster.connection())
        };
        let config = WorkerConfig { capabilities, host };
        let stop = CancellationToken::new();
        Self { task: tokio::spawn(run_worker(config, stop.clone())), stop }
    }

    fn start_echo_worker(cluster: &Cluster) -> Self {
        Self::start_worker(cluster, "echoing", vec![builtin::open_built_in("echo").unwrap()])
    }

    async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("the worker stops in time").unwrap().unwrap();
    }

    /// Ends it as a crash would: nothing is released, nothing is published.
    fn abort_without_shutdown(self) {
        self.task.abort();
    }
}

/// A capability that signals when an attempt begins, and ends it when released.
struct CapabilityGate {
    begun: Arc<Notify>,
    go: Arc<Notify>,
    dropped: Counter,
}

impl CapabilityGate {
    fn new() -> (Self, Arc<dyn Capability>) {
        let gate = Self { begun: Arc::default(), go: Arc::default(), dropped: Counter::default() };
        let (begun, go, dropped) = (gate.begun.clone(), gate.go.clone(), gate.dropped.clone());
        let capability = capability_from_function("gate", "Waits.", move |_| {
            let (begun, go, dropped) = (begun.clone(), go.clone(), dropped.clone());
            Box::pin(async move {
                let guard = CountOnDrop(dropped);
                begun.notify_one();
                go.notified().await;
                std::mem::forget(guard);
                Ok(TaskResult { output: "through".into(), ..TaskResult::default() })
            })
        });
        (gate, capability)
    }

    async fn wait_until_begun(&self) {
        tokio::time::timeout(PATIENCE, self.begun.notified()).await.expect("an attempt begins in time");
    }
}

struct CountOnDrop(Counter);

impl Drop for CountOnDrop {
    fn drop(&mut self) {
        self.0.increment();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completed_order_is_journaled_and_acknowledged() {
    let cluster = Cluster::start().await;
    let order = build_order("echo", "t", json!({"bytes": 100}));
    cluster.publish_order(&order).await;
    let worker = RunningWorker::start_echo_worker(&cluster);
    let (_, result) = cluster.await_result(&order).await;
    assert_eq!(result.output.len(), 100);
    assert_eq!(count_entries(&cluster.read_journal(&order).await), (1, 0, 1));
    cluster.await_waiting_orders("echo", 0).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_arrives_at_an_idle_worker_starts_at_once() {
    let cluster = Cluster::start().await;
    let worker = RunningWorker::start_echo_worker(&cluster);
    let beats = async || registry::read_heartbeats(&cluster.bus).await.unwrap();
    wait_for_value(PATIENCE, "the worker", async || (!beats().await.is_empty()).then_some(())).await;
    // Longer than the server's first response to the pull request, which must not delay the order.
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    let order = build_order("echo", "t", json!({}));
    let started = Instant::now();
    cluster.publish_order(&order).await;
    cluster.await_outcome(&order).await;
    assert!(started.elapsed() < Duration::from_millis(700), "{:?}", started.elapsed());
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_another_message_has_replaced_is_not_read() {
    let cluster = Cluster::start().await;
    let worker = RunningWorker::start_echo_worker(&cluster);
    let [one, two] = ["one", "two"].map(|task| build_order("echo", task, json!({"digest": true})));
    let mut results = Vec::new();
    for order in [&one, &two] {
        cluster.publish_order(order).await;
        results.push(cluster.await_result(order).await);
    }
    let journal = cluster.read_journal(&one).await;
    let JournalEntry::Claimed { worker: by, .. } = &journal[0].1 else { panic!("{journal:?}") };
    let right = Cluster::build_input(&one, by.as_str(), results[0].0, &results[0].1);
    let cases = [
        ("right", right.clone(), false),
        ("task", InputResult { at_sequence: results[1].0, ..right.clone() }, true),
        ("worker", InputResult { worker: WorkerId::new("another").unwrap(), ..right.clone() }, true),
        ("summary", InputResult { summary: "something else".into(), ..right }, true),
    ];
    for (task, input, is_replaced) in cases {
        let order = Order { inputs: vec![input], ..build_order("echo", task, json!({"digest": true})) };
        cluster.publish_order(&order).await;
        match (cluster.await_outcome(&order).await.1, is_replaced) {
            (WorkOutcome::Finished { .. }, false) => {}
            (WorkOutcome::Errored(error), true) => {
                assert!(error.message.contains("another message is in its place"), "{task}: {error:?}");
            }
            (outcome, _) => panic!("{task}: {outcome:?}"),
        }
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_parameters_end_the_attempt_with_their_names() {
    let cluster = Cluster::start().await;
    let order = build_order("echo", "t", json!({"bytes": "many"}));
    cluster.publish_order(&order).await;
    let worker = RunningWorker::start_echo_worker(&cluster);
    let (_, outcome) = cluster.await_outcome(&order).await;
    let text = "invalid parameters for echo: 'bytes' must be an integer, not string";
    assert_eq!(outcome, WorkOutcome::Errored(TaskError::new(ErrorKind::WrongParameters, text)));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_an_outcome_and_the_worker_continues() {
    let cluster = Cluster::start().await;
    let panics = capability_from_function("panics", "Panics.", |attempt| {
        Box::pin(async move {
            assert!(attempt.order().parameters.contains_key("calm"), "no calm here");
            Ok(TaskResult { output: "calm".into(), ..TaskResult::default() })
        })
    });
    let worker = RunningWorker::start_worker(&cluster, "w", vec![panics]);
    let (wild, calm) =
        (build_order("panics", "wild", json!({})), build_order("panics", "calm", json!({"calm": 1})));
    cluster.publish_order(&wild).await;
    let (_, outcome) = cluster.await_outcome(&wild).await;
    let error = TaskError::new(ErrorKind::Panic, "the capability panicked: no calm here");
    assert_eq!(outcome, WorkOutcome::Errored(error));
    cluster.publish_order(&calm).await;
    assert_eq!(cluster.await_result(&calm).await.1.output, "calm");
    cluster.await_waiting_orders("panics", 0).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_repeats_no_step_wherever_the_first_worker_crashed() {
    const STEPS: usize = 4;
    for lost_before in 0..=STEPS {
        let cluster = Cluster::start_with_lease(Duration::from_millis(600)).await;
        let ledger = Counter::default();
        let order = build_order("steps", "t", json!({}));
        let reached = Arc::new(Notify::new());
        let first = steps_capability(STEPS, Some((lost_before, reached.clone())), &ledger);
        cluster.publish_order(&order).await;
        let worker = RunningWorker::start_worker(&cluster, "first", vec![first]);
        tokio::time::timeout(PATIENCE, reached.notified()).await.expect("the step is reached");
        worker.abort_without_shutdown();
        let worker =
            RunningWorker::start_worker(&cluster, "second", vec![steps_capability(STEPS, None, &ledger)]);
        let (_, result) = cluster.await_result(&order).await;
        assert_eq!(result.output, "[1, 2, 3, 4]", "each step was executed once");
        assert_eq!(ledger.get(), STEPS, "lost before step {lost_before}");
        assert_eq!(count_entries(&cluster.read_journal(&order).await), (2, STEPS, 1));
        cluster.await_waiting_orders("steps", 0).await;
        worker.stop().await;
    }
}

/// A capability with several steps that each count. It hangs before the step `stop`.
fn steps_capability(
    count: usize,
    stop: Option<(usize, Arc<Notify>)>,
    ledger: &Counter,
) -> Arc<dyn Capability> {
    let ledger = ledger.clone();
    capability_from_function("steps", "Counts its steps.", move |attempt| {
        let (stop, ledger) = (stop.clone(), ledger.clone());
        Box::pin(async move {
            let mut done = Vec::new();
            for number in 0..=count {
                if let Some((before, reached)) = &stop
                    && *before == number
                {
                    reached.notify_one();
                    std::future::pending::<()>().await;
                }
                if number < count {
                    done.push(
                        attempt.run_step(&format!("step.{number}"), async { Ok(ledger.increment()) }).await?,
                    );
                }
            }
            Ok(TaskResult { output: format!("{done:?}"), ..TaskResult::default() })
        })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diverging_journal_ends_the_attempt_with_an_error() {
    let cluster = Cluster::start_with_lease(Duration::from_millis(600)).await;
    let order = build_order("steps", "t", json!({}));
    cluster.publish_order(&order).await;
    let reached = Arc::new(Notify::new());
    let first = steps_capability(2, Some((1, reached.clone())), &Counter::default());
    let worker = RunningWorker::start_worker(&cluster, "first", vec![first]);
    tokio::time::timeout(PATIENCE, reached.notified()).await.unwrap();
    worker.abort_without_shutdown();
    let other = capability_from_function("steps", "Another program.", |attempt| {
        Box::pin(async move {
            attempt.run_step("other", async { Ok(1) }).await?;
            Ok(TaskResult::default())
        })
    });
    let worker = RunningWorker::start_worker(&cluster, "second", vec![other]);
    let (_, outcome) = cluster.await_outcome(&order).await;
    let WorkOutcome::Errored(error) = outcome else { panic!("{outcome:?}") };
    assert_eq!(error.kind, ErrorKind::Panic);
    assert!(error.message.starts_with("the journal diverged at step 1: it contains \"step.0\""), "{error}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_worker_is_fenced_and_drops_the_attempt() {
    let cluster = Cluster::start().await;
    let (gate, capability) = CapabilityGate::new();
    let order = build_order("gate", "t", json!({}));
    cluster.publish_order(&order).await;
    let stale = RunningWorker::start_worker(&cluster, "stale", vec![capability]);
    gate.wait_until_begun().await;
    // Another worker takes over, as if the first worker's lease had expired.
    let successor = WorkerId::new("successor").unwrap();
    let claim = millrace_runtime::log::journal::Journal::claim_work(&cluster.bus, &order, &successor, None)
        .await
        .unwrap();
    let millrace_runtime::log::journal::ClaimResult::Acquired(mut journal) = claim else {
        panic!("not claimable")
    };
    assert_eq!(journal.claim_number(), 2);
    gate.go.notify_one();
    // The stale worker finishes its attempt, and the server rejects its outcome.
    stale.stop().await;
    assert_eq!(gate.dropped.get(), 0, "it was not dropped");
    assert_eq!(
        count_entries(&cluster.read_journal(&order).await),
        (2, 0, 0),
        "nothing from the stale worker"
    );
    // It acknowledged nothing: the order is still in the queue for the new claimant.
    cluster.await_waiting_orders("gate", 1).await;
    journal.append_outcome(WorkOutcome::Errored(TaskError::new(ErrorKind::Other, "mine"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_waits_for_the_lease_of_a_silent_worker() {
    let lease = Duration::from_millis(1_500);
    let cluster = Cluster::start_with_lease(lease).await;
    let (gate, waits) = CapabilityGate::new();
    let order = build_order("gate", "t", json!({}));
    cluster.publish_order(&order).await;
    let first = RunningWorker::start_worker(&cluster, "first", vec![waits]);
    gate.wait_until_begun().await;
    let (second_gate, waits) = CapabilityGate::new();
    let second = RunningWorker::start_worker(&cluster, "second", vec![waits]);
    // For three leases the first worker renews, and the second does not get the order.
    let early = tokio::time::timeout(lease * 3, second_gate.begun.notified()).await;
    assert!(early.is_err(), "a renewed lease does not expire");
    first.abort_without_shutdown();
    second_gate.wait_until_begun().await;
    second_gate.go.notify_one();
    assert_eq!(cluster.await_result(&order).await.1.output, "through");
    assert_eq!(count_entries(&cluster.read_journal(&order).await), (2, 0, 1));
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_drops_the_attempt_and_its_order() {
    let cluster = Cluster::start().await;
    let (gate, capability) = CapabilityGate::new();
    let worker = RunningWorker::start_worker(&cluster, "w", vec![capability]);
    let (one, two) = (build_order("gate", "one", json!({})), build_order("gate", "two", json!({})));
    for order in [&one, &two] {
        cluster.publish_order(order).await;
        gate.wait_until_begun().await;
    }
    queue::publish_stop(&cluster.bus, &RunId::new("other").unwrap(), None).await.unwrap();
    queue::publish_stop(&cluster.bus, &one.run, Some(&one.work())).await.unwrap();
    cluster.await_waiting_orders("gate", 1).await;
    assert_eq!(gate.dropped.get(), 1, "only the stopped one");
    queue::publish_stop(&cluster.bus, &two.run, None).await.unwrap();
    cluster.await_waiting_orders("gate", 0).await;
    assert_eq!(gate.dropped.get(), 2);
    for order in [&one, &two] {
        assert_eq!(
            count_entries(&cluster.read_journal(order).await),
            (1, 0, 0),
            "a stopped attempt writes nothing"
        );
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_worker_finishes_its_attempts_and_takes_no_more() {
    let cluster = Cluster::start().await;
    let (gate, capability) = CapabilityGate::new();
    let worker = RunningWorker::start_worker(&cluster, "w", vec![capability]);
    let (in_flight, later) =
        (build_order("gate", "in-flight", json!({})), build_order("gate", "later", json!({})));
    cluster.publish_order(&in_flight).await;
    gate.wait_until_begun().await;
    worker.stop.cancel();
    wait_for_value(PATIENCE, "no pull request on the queue", async || {
        let context = async_nats::jetstream::new(cluster.bus.client().clone());
        let mut queue = millrace_runtime::nats::topology::ensure_queue(
            &context,
            cluster.bus.settings(),
            &later.capability,
        )
        .await
        .unwrap();
        (queue.info().await.unwrap().num_waiting == 0).then_some(())
    })
    .await;
    cluster.publish_order(&later).await;
    gate.go.notify_one();
    worker.stop().await;
    assert_eq!(cluster.await_result(&in_flight).await.1.output, "through");
    assert!(cluster.read_journal(&later).await.is_empty());
    cluster.await_waiting_orders("gate", 1).await;
    assert!(registry::read_heartbeats(&cluster.bus).await.unwrap().is_empty(), "it left the registry");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_outlives_the_grace_is_released() {
    let cluster = Cluster::start().await;
    let (gate, waits) = CapabilityGate::new();
    let order = build_order("gate", "t", json!({}));
    cluster.publish_order(&order).await;
    let first = RunningWorker::start_with_grace(&cluster, "first", vec![waits], Duration::from_millis(50));
    gate.wait_until_begun().await;
    first.stop().await;
    assert_eq!(gate.dropped.get(), 1);
    let (gate, waits) = CapabilityGate::new();
    let second = RunningWorker::start_worker(&cluster, "second", vec![waits]);
    // Well before the lease of a minute expires.
    gate.wait_until_begun().await;
    gate.go.notify_one();
    assert_eq!(cluster.await_result(&order).await.1.output, "through");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_given_up_after_five_lost_workers() {
    let cluster = Cluster::start().await;
    let order = build_order("echo", "t", json!({}));
    let topic = Topic::journal_of_work(&order.work());
    let mut last = 0;
    for claim in 1..=5 {
        let entry = JournalEntry::Claimed { worker: WorkerId::new("lost").unwrap(), claim, build: None };
        last = log::append_message(&cluster.bus, order.lane, &order.run, &topic, &entry, last).await.unwrap();
    }
    cluster.publish_order(&order).await;
    let worker = RunningWorker::start_echo_worker(&cluster);
    let (_, outcome) = cluster.await_outcome(&order).await;
    let WorkOutcome::Errored(error) = outcome else { panic!("{outcome:?}") };
    assert_eq!(error.kind, ErrorKind::Abandoned);
    cluster.await_waiting_orders("echo", 0).await;
    worker.stop().await;
}

#[tokio::test]
async fn an_order_that_progresses_with_each_lost_worker_continues() {
    let cluster = Cluster::start().await;
    let order = build_order("echo", "t", json!({ "steps": 5 }));
    let topic = Topic::journal_of_work(&order.work());
    let mut last = 0;
    let step = |number: u32| {
        let value = InlineOrStoredBytes::Inline(ByteBuf::from(number.to_string().into_bytes()));
        JournalEntry::Step { number, name: format!("echo.{number}"), value }
    };
    let claim = |claim| JournalEntry::Claimed { worker: WorkerId::new("lost").unwrap(), claim, build: None };
    for entry in [claim(1), claim(2), step(1), claim(3), claim(4), step(2), claim(5), claim(6), claim(7)] {
        last = log::append_message(&cluster.bus, order.lane, &order.run, &topic, &entry, last).await.unwrap();
    }
    cluster.publish_order(&order).await;
    let worker = RunningWorker::start_echo_worker(&cluster);
    cluster.await_result(&order).await;
    assert_eq!(count_entries(&cluster.read_journal(&order).await), (8, 5, 1));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_removed_from_the_queue_and_the_next_order_runs() {
    let cluster = Cluster::start().await;
    let misplaced = build_order("echo", "elsewhere", json!({}));
    let sealed = millrace_protocol::wire::encode_with_inline_body::<millrace_protocol::work::Order>(
        &millrace_protocol::wire::encode_body(&misplaced),
    );
    let newer = sealed.clone();
    for (subject, payload) in [
        ("work.echo.r.t1.1", b"nonsense".to_vec()),
        ("work.echo.r.t2.1", Vec::new()),
        ("work.echo.r.t3.1", sealed[..sealed.len() / 2].to_vec()),
        ("work.echo.r.t4.1", newer),
        ("work.echo.x", sealed.clone()),
    ] {
        let context = async_nats::jetstream::new(cluster.bus.client().clone());
        context
            .publish_with_headers(subject, build_publish_headers(), payload.into())
            .await
            .unwrap()
            .await
            .unwrap();
    }
    let worker = RunningWorker::start_echo_worker(&cluster);
    let order = build_order("echo", "good", json!({}));
    cluster.publish_order(&order).await;
    cluster.await_result(&order).await;
    cluster.await_waiting_orders("echo", 0).await;
    assert!(cluster.read_journal(&misplaced).await.is_empty(), "an order on another's subject is not done");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn order_of_a_newer_release_stays_in_its_queue() {
    let cluster = Cluster::start().await;
    let newer = build_order("echo", "newer", json!({}));
    let mut payload = wire::encode_with_inline_body::<Order>(&wire::encode_body(&newer));
    // The format in the envelope, after the head of the map and its first key.
    payload[3] = 99;
    let context = async_nats::jetstream::new(cluster.bus.client().clone());
    let sent =
        context.publish_with_headers(order_subject(&newer), build_publish_headers(), payload.into()).await;
    sent.unwrap().await.unwrap();
    let worker = RunningWorker::start_echo_worker(&cluster);
    let order = build_order("echo", "good", json!({}));
    cluster.publish_order(&order).await;
    cluster.await_result(&order).await;
    cluster.await_waiting_orders("echo", 1).await;
    assert!(cluster.read_journal(&newer).await.is_empty(), "it was claimed");
    worker.stop().await;
}

/// Publishes an order without a Millrace-Id header, as a redirected server reply.
async fn offer_without_id(cluster: &Cluster, task: &str) -> Order {
    let order = build_order("echo", task, json!({}));
    let payload = wire::encode_with_inline_body::<Order>(&wire::encode_body(&order));
    publish_order_without_id(&cluster.bus, &order_subject(&order), &payload).await;
    order
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_cluster_ignores_orders_without_an_id() {
    let cluster = Cluster::start().await;
    let stray = offer_without_id(&cluster, "stray").await;
    let worker = RunningWorker::start_echo_worker(&cluster);
    let order = build_order("echo", "good", json!({}));
    cluster.publish_order(&order).await;
    cluster.await_result(&order).await;
    cluster.await_waiting_orders("echo", 0).await;
    assert!(cluster.read_journal(&stray).await.is_empty());
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completed_order_is_only_acknowledged() {
    let cluster = Cluster::start().await;
    let worker = RunningWorker::start_echo_worker(&cluster);
    let order = build_order("echo", "t", json!({}));
    cluster.publish_order(&order).await;
    cluster.await_outcome(&order).await;
    cluster.await_waiting_orders("echo", 0).await;
    cluster.publish_order(&order).await;
    cluster.await_waiting_orders("echo", 0).await;
    assert_eq!(count_entries(&cluster.read_journal(&order).await), (1, 0, 1));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_restart_loses_no_work() {
    let mut cluster = Cluster::start().await;
    let worker = RunningWorker::start_echo_worker(&cluster);
    let orders: Vec<_> =
        (0..40).map(|number| build_order("echo", &format!("t{number}"), json!({"delay_ms": 100}))).collect();
    for order in &orders {
        cluster.publish_order(order).await;
    }
    cluster.await_outcome(&orders[5]).await;
    cluster.server.restart();
    for order in &orders {
        cluster.await_result(order).await;
        assert_eq!(count_entries(&cluster.read_journal(order).await).2, 1);
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_registers_itself_and_its_capabilities() {
    let cluster = Cluster::start().await;
    let worker = RunningWorker::start_worker(
        &cluster,
        "w",
        builtin::NAMES.iter().filter_map(|name| builtin::open_built_in(name)).collect(),
    );
    let beat = wait_for_value(PATIENCE, "a heartbeat", async || {
        registry::read_heartbeats(&cluster.bus).await.unwrap().pop()
    })
    .await;
    assert_eq!(
        (beat.id.as_str(), beat.slots.len(), beat.pid),
        ("w", builtin::NAMES.len(), std::process::id())
    );
    let names: Vec<_> = registry::read_capability_names(&cluster.bus).await.unwrap().into_iter().collect();
    assert_eq!(
        names.iter().map(|name| name.as_str()).collect::<Vec<_>>(),
        ["echo", "planner", "producer", "research", "verify", "worker"]
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_no_or_duplicate_capabilities_is_refused() {
    let cluster = Cluster::start().await;
    let refused = async |capabilities: Vec<Arc<dyn Capability>>| {
        RunningWorker::start_worker(&cluster, "w", capabilities).task.await.unwrap().unwrap_err().to_string()
    };
    assert!(refused(Vec::new()).await.starts_with("nothing to do"));
    let echo = || builtin::open_built_in("echo").unwrap();
    assert!(refused(vec![echo(), echo()]).await.starts_with("the capability echo is configured twice"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_kind_of_outcome_is_an_error() {
    let cluster = Cluster::start().await;
    let planner = capability_from_function("planner", "No planner.", |_| {
        Box::pin(async { Ok(TaskResult { output: "a poem".into(), ..TaskResult::default() }) })
    });
    let worker = RunningWorker::start_worker(&cluster, "w", vec![planner]);
    let order = build_order_for_work("planner", Work::Planning { turn: 1, attempt: 1 });
    cluster.publish_order(&order).await;
    let (_, outcome) = cluster.await_outcome(&order).await;
    let text = "the capability planner got an order for a planning turn: it must return a proposal";
    assert_eq!(outcome, WorkOutcome::Errored(TaskError::new(ErrorKind::Panic, text)));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_in_flight_never_exceed_the_slots() {
    let cluster = Cluster::start().await;
    let (running, most) = (Counter::default(), Arc::new(std::sync::Mutex::new((0_usize, 0_usize))));
    let busy = {
        let (running, most) = (running.clone(), most.clone());
        capability_from_function("busy", "Counts how many run at once.", move |_| {
            let (running, most) = (running.clone(), most.clone());
            Box::pin(async move {
                {
                    let mut most = most.lock().unwrap();
                    most.0 += 1;
                    most.1 = most.1.max(most.0);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
                most.lock().unwrap().0 -= 1;
                running.increment();
                Ok(TaskResult { output: "done".into(), ..TaskResult::default() })
            })
        })
    };
    let worker = RunningWorker::start_worker(&cluster, "w", vec![busy]);
    for number in 0..300 {
        cluster.publish_order(&build_order("busy", &format!("t{number}"), json!({}))).await;
    }
    cluster.await_waiting_orders("busy", 0).await;
    assert_eq!((running.get(), most.lock().unwrap().1), (300, 4));
    worker.stop().await;
    let first = build_order_for_work("busy", Work::Task { task: TaskId::new("t0").unwrap(), attempt: 1 });
    assert_eq!(order_subject(&first), "work.busy.r.t0.1");
}
