//! Workers against a real NATS server: an order from the queue to its outcome, and everything that can come between.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::Work;
use millrace_protocol::registry::{Beat, Role};
use millrace_protocol::result::ErrorKind;
use millrace_protocol::subject::Topic;
use millrace_protocol::wire::{self, Blob};
use millrace_protocol::work::{Entry, Order, Outcome};
use millrace_runtime::{Bus, log, marks, queue, registry};
use millrace_tests::eventually;
use millrace_tests::plans::{appended, forget_marks, offer_unmarked};
use millrace_worker::{
    CancellationToken, Capability, Config, Error, TaskError, TaskResult, WorkerId, builtin, capability, run,
};
use serde_bytes::ByteBuf;
use serde_json::json;
use support::{Cluster, Counter, PATIENCE, counts, order, order_for, order_subject};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A worker of this process.
struct Worker {
    stop: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

impl Worker {
    fn start(cluster: &Cluster, id: &str, capabilities: Vec<Arc<dyn Capability>>) -> Self {
        Self::with_grace(cluster, id, capabilities, PATIENCE)
    }

    fn with_grace(
        cluster: &Cluster,
        id: &str,
        capabilities: Vec<Arc<dyn Capability>>,
        grace: Duration,
    ) -> Self {
        let config = Config {
            id: Some(WorkerId::new(id).unwrap()),
            slots: 4,
            grace,
            document_cache: None,
            ..Config::new(cluster.connection(), capabilities)
        };
        let stop = CancellationToken::new();
        Self { task: tokio::spawn(run(config, stop.clone())), stop }
    }

    fn echo(cluster: &Cluster) -> Self {
        Self::start(cluster, "echoing", vec![builtin::open("echo").unwrap()])
    }

    async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("it stops in time").unwrap().unwrap();
    }

    /// Ends it as a lost process would: nothing is given back, nothing is said.
    fn lose(self) {
        self.task.abort();
    }
}

/// A capability that says when it begins, and ends when it is let go.
struct Gate {
    begun: Arc<Notify>,
    go: Arc<Notify>,
    dropped: Counter,
}

impl Gate {
    fn new() -> (Self, Arc<dyn Capability>) {
        let gate = Self { begun: Arc::default(), go: Arc::default(), dropped: Counter::default() };
        let (begun, go, dropped) = (gate.begun.clone(), gate.go.clone(), gate.dropped.clone());
        let capability = capability("gate", "Waits.", move |_| {
            let (begun, go, dropped) = (begun.clone(), go.clone(), dropped.clone());
            Box::pin(async move {
                let guard = OnDrop(dropped);
                begun.notify_one();
                go.notified().await;
                std::mem::forget(guard);
                Ok(TaskResult { output: "through".into(), ..TaskResult::default() })
            })
        });
        (gate, capability)
    }

    async fn begun(&self) {
        tokio::time::timeout(PATIENCE, self.begun.notified()).await.expect("it begins in time");
    }
}

struct OnDrop(Counter);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.add();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_done_written_down_and_leaves_the_queue() {
    let cluster = Cluster::start().await;
    let order = order("echo", "t", json!({"bytes": 100}));
    cluster.offer(&order).await;
    let worker = Worker::echo(&cluster);
    let (_, result) = cluster.result(&order).await;
    assert_eq!(result.output.len(), 100);
    assert_eq!(counts(&cluster.journal(&order).await), (1, 0, 1));
    cluster.waiting("echo", 0).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_comes_while_a_request_stands_idle_is_taken_at_once() {
    let cluster = Cluster::start().await;
    let worker = Worker::echo(&cluster);
    let beats = async || registry::beats(&cluster.bus).await.unwrap();
    eventually(PATIENCE, "the worker", async || (!beats().await.is_empty()).then_some(())).await;
    // Long enough for the server's word on the request that stands, which the order must not wait behind.
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    let order = order("echo", "t", json!({}));
    let started = Instant::now();
    cluster.offer(&order).await;
    cluster.outcome(&order).await;
    assert!(started.elapsed() < Duration::from_millis(700), "{:?}", started.elapsed());
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_parameters_end_the_attempt_with_an_error_that_names_them() {
    let cluster = Cluster::start().await;
    let order = order("echo", "t", json!({"bytes": "many"}));
    cluster.offer(&order).await;
    let worker = Worker::echo(&cluster);
    let (_, outcome) = cluster.outcome(&order).await;
    let text = "the parameters for echo are wrong: 'bytes' must be an integer, not string";
    assert_eq!(outcome, Outcome::Errored(TaskError::new(ErrorKind::WrongParameters, text)));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_an_outcome_and_the_worker_goes_on() {
    let cluster = Cluster::start().await;
    let panics = capability("panics", "Panics.", |attempt| {
        Box::pin(async move {
            assert!(attempt.order().parameters.contains_key("calm"), "no calm here");
            Ok(TaskResult { output: "calm".into(), ..TaskResult::default() })
        })
    });
    let worker = Worker::start(&cluster, "w", vec![panics]);
    let (wild, calm) = (order("panics", "wild", json!({})), order("panics", "calm", json!({"calm": 1})));
    cluster.offer(&wild).await;
    let (_, outcome) = cluster.outcome(&wild).await;
    let error = TaskError::new(ErrorKind::Panic, "the capability panicked: no calm here");
    assert_eq!(outcome, Outcome::Errored(error));
    cluster.offer(&calm).await;
    assert_eq!(cluster.result(&calm).await.1.output, "calm");
    cluster.waiting("panics", 0).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_takes_over_repeats_no_step_wherever_the_first_was_lost() {
    const STEPS: usize = 4;
    for lost_before in 0..=STEPS {
        let cluster = Cluster::with_lease(Duration::from_millis(600)).await;
        let ledger = Counter::default();
        let order = order("steps", "t", json!({}));
        let reached = Arc::new(Notify::new());
        let first = steps(STEPS, Some((lost_before, reached.clone())), &ledger);
        cluster.offer(&order).await;
        let worker = Worker::start(&cluster, "first", vec![first]);
        tokio::time::timeout(PATIENCE, reached.notified()).await.expect("it gets that far");
        worker.lose();
        let worker = Worker::start(&cluster, "second", vec![steps(STEPS, None, &ledger)]);
        let (_, result) = cluster.result(&order).await;
        assert_eq!(result.output, "[1, 2, 3, 4]", "each step did what it was counted for, once");
        assert_eq!(ledger.get(), STEPS, "lost before step {lost_before}");
        assert_eq!(counts(&cluster.journal(&order).await), (2, STEPS, 1));
        cluster.waiting("steps", 0).await;
        worker.stop().await;
    }
}

/// A capability of some steps, each of which counts. It stops for ever before the step that is named.
fn steps(count: usize, stop: Option<(usize, Arc<Notify>)>, ledger: &Counter) -> Arc<dyn Capability> {
    let ledger = ledger.clone();
    capability("steps", "Counts its steps.", move |attempt| {
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
                    done.push(attempt.step(&format!("step.{number}"), async { Ok(ledger.add()) }).await?);
                }
            }
            Ok(TaskResult { output: format!("{done:?}"), ..TaskResult::default() })
        })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_with_another_step_ends_the_attempt_with_an_error() {
    let cluster = Cluster::with_lease(Duration::from_millis(600)).await;
    let order = order("steps", "t", json!({}));
    cluster.offer(&order).await;
    let reached = Arc::new(Notify::new());
    let first = steps(2, Some((1, reached.clone())), &Counter::default());
    let worker = Worker::start(&cluster, "first", vec![first]);
    tokio::time::timeout(PATIENCE, reached.notified()).await.unwrap();
    worker.lose();
    let other = capability("steps", "Another program.", |attempt| {
        Box::pin(async move {
            attempt.step("other", async { Ok(1) }).await?;
            Ok(TaskResult::default())
        })
    });
    let worker = Worker::start(&cluster, "second", vec![other]);
    let (_, outcome) = cluster.outcome(&order).await;
    let Outcome::Errored(error) = outcome else { panic!("{outcome:?}") };
    assert_eq!(error.kind, ErrorKind::Panic);
    assert!(error.message.starts_with("the journal diverged at step 1: it holds \"step.0\""), "{error}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_journal_another_continued_is_fenced_and_drops_the_work() {
    let cluster = Cluster::start().await;
    let (gate, capability) = Gate::new();
    let order = order("gate", "t", json!({}));
    cluster.offer(&order).await;
    let stale = Worker::start(&cluster, "stale", vec![capability]);
    gate.begun().await;
    // Another worker takes the work over, as if the first one's lease had run out.
    let successor = WorkerId::new("successor").unwrap();
    let claim = millrace_runtime::journal::Journal::claim(&cluster.bus, &order, &successor).await.unwrap();
    let millrace_runtime::journal::Claim::Ours(mut journal) = claim else { panic!("it can be claimed") };
    assert_eq!(journal.claim_number(), 2);
    gate.go.notify_one();
    // It ends what it has in hand, and what it brings is refused by the server.
    stale.stop().await;
    assert_eq!(gate.dropped.get(), 0, "it came to its end");
    assert_eq!(counts(&cluster.journal(&order).await), (2, 0, 0), "nothing of the stale worker's");
    // It acknowledged nothing: the order is there for its successor.
    cluster.waiting("gate", 1).await;
    journal.finish(Outcome::Errored(TaskError::new(ErrorKind::Other, "mine"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_worker_goes_on_when_the_lease_of_a_silent_one_runs_out_and_not_before() {
    let lease = Duration::from_millis(1_500);
    let cluster = Cluster::with_lease(lease).await;
    let (gate, waits) = Gate::new();
    let order = order("gate", "t", json!({}));
    cluster.offer(&order).await;
    let first = Worker::start(&cluster, "first", vec![waits]);
    gate.begun().await;
    let (second_gate, waits) = Gate::new();
    let second = Worker::start(&cluster, "second", vec![waits]);
    // Three leases long the first one renews, and nobody else gets the order.
    let early = tokio::time::timeout(lease * 3, second_gate.begun.notified()).await;
    assert!(early.is_err(), "a renewed lease does not run out");
    first.lose();
    second_gate.begun().await;
    second_gate.go.notify_one();
    assert_eq!(cluster.result(&order).await.1.output, "through");
    assert_eq!(counts(&cluster.journal(&order).await), (2, 0, 1));
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_drops_the_work_at_once_and_the_order_with_it() {
    let cluster = Cluster::start().await;
    let (gate, capability) = Gate::new();
    let worker = Worker::start(&cluster, "w", vec![capability]);
    let (one, two) = (order("gate", "one", json!({})), order("gate", "two", json!({})));
    for order in [&one, &two] {
        cluster.offer(order).await;
        gate.begun().await;
    }
    queue::stop(&cluster.bus, &RunId::new("other").unwrap(), None).await.unwrap();
    queue::stop(&cluster.bus, &one.run, Some(&one.work)).await.unwrap();
    cluster.waiting("gate", 1).await;
    assert_eq!(gate.dropped.get(), 1, "only the one that was named");
    queue::stop(&cluster.bus, &two.run, None).await.unwrap();
    cluster.waiting("gate", 0).await;
    assert_eq!(gate.dropped.get(), 2);
    for order in [&one, &two] {
        assert_eq!(counts(&cluster.journal(order).await), (1, 0, 0), "a stopped attempt writes nothing");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_told_to_stop_ends_what_it_has_and_takes_nothing_more() {
    let cluster = Cluster::start().await;
    let (gate, capability) = Gate::new();
    let worker = Worker::start(&cluster, "w", vec![capability]);
    let (in_hand, later) = (order("gate", "in-hand", json!({})), order("gate", "later", json!({})));
    cluster.offer(&in_hand).await;
    gate.begun().await;
    worker.stop.cancel();
    eventually(PATIENCE, "a queue that nobody asks", async || {
        let context = async_nats::jetstream::new(cluster.bus.client().clone());
        let mut queue =
            millrace_runtime::topology::ensure_queue(&context, cluster.bus.settings(), &later.capability)
                .await
                .unwrap();
        (queue.info().await.unwrap().num_waiting == 0).then_some(())
    })
    .await;
    cluster.offer(&later).await;
    gate.go.notify_one();
    worker.stop().await;
    assert_eq!(cluster.result(&in_hand).await.1.output, "through");
    assert!(cluster.journal(&later).await.is_empty());
    cluster.waiting("gate", 1).await;
    assert!(registry::beats(&cluster.bus).await.unwrap().is_empty(), "it left the registry");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_outlives_the_grace_is_given_back_at_once() {
    let cluster = Cluster::start().await;
    let (gate, waits) = Gate::new();
    let order = order("gate", "t", json!({}));
    cluster.offer(&order).await;
    let first = Worker::with_grace(&cluster, "first", vec![waits], Duration::from_millis(50));
    gate.begun().await;
    first.stop().await;
    assert_eq!(gate.dropped.get(), 1);
    let (gate, waits) = Gate::new();
    let second = Worker::start(&cluster, "second", vec![waits]);
    // Well before the lease of a minute runs out.
    gate.begun().await;
    gate.go.notify_one();
    assert_eq!(cluster.result(&order).await.1.output, "through");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_five_workers_were_lost_over_is_given_up() {
    let cluster = Cluster::start().await;
    let order = order("echo", "t", json!({}));
    let topic = Topic::journal(&order.work);
    let mut last = 0;
    for claim in 1..=5 {
        let entry = Entry::Claimed { worker: WorkerId::new("lost").unwrap(), claim };
        last = log::append(&cluster.bus, order.lane, &order.run, &topic, &entry, last).await.unwrap();
    }
    cluster.offer(&order).await;
    let worker = Worker::echo(&cluster);
    let (_, outcome) = cluster.outcome(&order).await;
    let Outcome::Errored(error) = outcome else { panic!("{outcome:?}") };
    assert_eq!(error.kind, ErrorKind::Abandoned);
    cluster.waiting("echo", 0).await;
    worker.stop().await;
}

#[tokio::test]
async fn work_that_comes_a_step_further_with_each_worker_that_is_lost_goes_on() {
    let cluster = Cluster::start().await;
    let order = order("echo", "t", json!({"steps": 5}));
    let topic = Topic::journal(&order.work);
    let mut last = 0;
    let step = |number: u32| {
        let value = Blob::Inline(ByteBuf::from(number.to_string().into_bytes()));
        Entry::Step { number, name: format!("echo.{number}"), value }
    };
    let claim = |claim| Entry::Claimed { worker: WorkerId::new("lost").unwrap(), claim };
    for entry in [claim(1), claim(2), step(1), claim(3), claim(4), step(2), claim(5), claim(6), claim(7)] {
        last = log::append(&cluster.bus, order.lane, &order.run, &topic, &entry, last).await.unwrap();
    }
    cluster.offer(&order).await;
    let worker = Worker::echo(&cluster);
    cluster.result(&order).await;
    assert_eq!(counts(&cluster.journal(&order).await), (8, 5, 1));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_in_a_queue_is_taken_out_and_the_next_order_is_done() {
    let cluster = Cluster::start().await;
    let misplaced = order("echo", "elsewhere", json!({}));
    let sealed = millrace_protocol::wire::seal::<millrace_protocol::work::Order>(
        &millrace_protocol::wire::body(&misplaced),
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
        context.publish_with_headers(subject, appended(), payload.into()).await.unwrap().await.unwrap();
    }
    let worker = Worker::echo(&cluster);
    let order = order("echo", "good", json!({}));
    cluster.offer(&order).await;
    cluster.result(&order).await;
    cluster.waiting("echo", 0).await;
    assert!(cluster.journal(&misplaced).await.is_empty(), "an order on another's subject is not done");
    worker.stop().await;
}

/// Puts an order in its queue as a supervisor from before 0.4 does, or the server for somebody else.
async fn unmarked(cluster: &Cluster, task: &str) -> Order {
    let order = order("echo", task, json!({}));
    let payload = wire::seal::<Order>(&wire::body(&order));
    offer_unmarked(&cluster.bus, &order_subject(&order), &payload).await;
    order
}

/// The cluster as somebody finds it who only comes now.
async fn joined(cluster: &Cluster) -> Bus {
    Bus::join(&cluster.connection(), "late", PATIENCE).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_of_older_supervisors_are_done_until_the_last_of_these_has_gone() {
    let cluster = Cluster::start().await;
    let order = order("echo", "older", json!({}));
    cluster.offer(&order).await;
    forget_marks(&cluster.bus).await;
    let older = Beat {
        id: WorkerId::new("older").unwrap(),
        role: Role::Supervisor,
        host: "box".into(),
        pid: 1,
        started: jiff::Timestamp::UNIX_EPOCH,
        slots: Vec::new(),
        busy: 0,
        busy_with: Vec::new(),
        version: "0.3.0".into(),
    };
    let worker = Worker::echo(&cluster);
    cluster.result(&order).await;
    let bus = joined(&cluster).await;
    registry::beat(&bus, &older).await.unwrap();
    assert!(!marks::require(&bus).await.unwrap(), "an older supervisor lives");
    cluster.result(&unmarked(&cluster, "and-again").await).await;

    registry::leave(&cluster.bus, &older).await.unwrap();
    assert!(marks::require(&bus).await.unwrap(), "it has gone");
    let since = Instant::now();
    for number in 0.. {
        let order = unmarked(&cluster, &format!("stray-{number}")).await;
        cluster.waiting("echo", 0).await;
        if cluster.journal(&order).await.is_empty() {
            break;
        }
        assert!(since.elapsed() < PATIENCE, "orders without a mark are still done");
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_orders_without_a_mark_those_count_that_were_there_before_marks_were_asked_for() {
    let cluster = Cluster::start().await;
    let before = order("echo", "before", json!({}));
    cluster.offer(&before).await;
    forget_marks(&cluster.bus).await;
    assert!(marks::require(&joined(&cluster).await).await.unwrap());
    let after = unmarked(&cluster, "after").await;
    let worker = Worker::echo(&cluster);
    cluster.result(&before).await;
    cluster.waiting("echo", 0).await;
    assert!(
        cluster.journal(&after).await.is_empty(),
        "whoever came later can't have been an older supervisor"
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_new_cluster_an_order_without_a_mark_is_none() {
    let cluster = Cluster::start().await;
    let stray = unmarked(&cluster, "stray").await;
    let worker = Worker::echo(&cluster);
    let order = order("echo", "good", json!({}));
    cluster.offer(&order).await;
    cluster.result(&order).await;
    cluster.waiting("echo", 0).await;
    assert!(cluster.journal(&stray).await.is_empty());
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_was_done_already_is_only_acknowledged() {
    let cluster = Cluster::start().await;
    let worker = Worker::echo(&cluster);
    let order = order("echo", "t", json!({}));
    cluster.offer(&order).await;
    cluster.outcome(&order).await;
    cluster.waiting("echo", 0).await;
    cluster.offer(&order).await;
    cluster.waiting("echo", 0).await;
    assert_eq!(counts(&cluster.journal(&order).await), (1, 0, 1));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_restarts_loses_no_work() {
    let mut cluster = Cluster::start().await;
    let worker = Worker::echo(&cluster);
    let orders: Vec<_> =
        (0..40).map(|number| order("echo", &format!("t{number}"), json!({"delay_ms": 100}))).collect();
    for order in &orders {
        cluster.offer(order).await;
    }
    cluster.outcome(&orders[5]).await;
    cluster.server.restart();
    for order in &orders {
        cluster.result(order).await;
        assert_eq!(counts(&cluster.journal(order).await).2, 1);
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_shows_itself_and_what_it_offers() {
    let cluster = Cluster::start().await;
    let worker =
        Worker::start(&cluster, "w", builtin::NAMES.iter().filter_map(|name| builtin::open(name)).collect());
    let beat =
        eventually(PATIENCE, "a beat", async || registry::beats(&cluster.bus).await.unwrap().pop()).await;
    assert_eq!((beat.id.as_str(), beat.slots.len(), beat.pid), ("w", 5, std::process::id()));
    let known: Vec<_> = registry::capability_names(&cluster.bus).await.unwrap().into_iter().collect();
    assert_eq!(
        known.iter().map(|name| name.as_str()).collect::<Vec<_>>(),
        ["echo", "planner", "producer", "research", "worker"]
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_anything_to_offer_or_offering_it_twice_is_refused() {
    let cluster = Cluster::start().await;
    let refused = async |capabilities: Vec<Arc<dyn Capability>>| {
        Worker::start(&cluster, "w", capabilities).task.await.unwrap().unwrap_err().to_string()
    };
    assert!(refused(Vec::new()).await.starts_with("nothing to do"));
    let echo = || builtin::open("echo").unwrap();
    assert!(refused(vec![echo(), echo()]).await.starts_with("the capability echo is offered twice"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capability_that_answers_something_else_than_asked_is_told_so() {
    let cluster = Cluster::start().await;
    let planner = capability("planner", "No planner.", |_| {
        Box::pin(async { Ok(TaskResult { output: "a poem".into(), ..TaskResult::default() }) })
    });
    let worker = Worker::start(&cluster, "w", vec![planner]);
    let order = order_for("planner", Work::Planning { turn: 1, attempt: 1 });
    cluster.offer(&order).await;
    let (_, outcome) = cluster.outcome(&order).await;
    let text = "the capability planner was asked for a plan: bring a proposal";
    assert_eq!(outcome, Outcome::Errored(TaskError::new(ErrorKind::Panic, text)));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn never_more_work_is_in_hand_than_there_are_slots() {
    let cluster = Cluster::start().await;
    let (running, most) = (Counter::default(), Arc::new(std::sync::Mutex::new((0_usize, 0_usize))));
    let busy = {
        let (running, most) = (running.clone(), most.clone());
        capability("busy", "Counts how many run at once.", move |_| {
            let (running, most) = (running.clone(), most.clone());
            Box::pin(async move {
                {
                    let mut most = most.lock().unwrap();
                    most.0 += 1;
                    most.1 = most.1.max(most.0);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
                most.lock().unwrap().0 -= 1;
                running.add();
                Ok(TaskResult { output: "done".into(), ..TaskResult::default() })
            })
        })
    };
    let worker = Worker::start(&cluster, "w", vec![busy]);
    for number in 0..300 {
        cluster.offer(&order("busy", &format!("t{number}"), json!({}))).await;
    }
    cluster.waiting("busy", 0).await;
    assert_eq!((running.get(), most.lock().unwrap().1), (300, 4));
    worker.stop().await;
    let first = order_for("busy", Work::Task { task: TaskId::new("t0").unwrap(), attempt: 1 });
    assert_eq!(order_subject(&first), "work.busy.r.t0.1");
}
