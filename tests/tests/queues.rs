//! Queues are derived state: the supervisor repairs lost, stale and stranded orders from the plans within seconds, so that
//! every run ends.

mod power_loss;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, stream};
use millrace_protocol::ids::{RunId, WorkerId};
use millrace_protocol::plan::{EndReason, JournalKey, ReviewPolicy, Submission, TaskState};
use millrace_protocol::registry::ProcessRole as Kind;
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::work::{JournalEntry, WorkOutcome};
use millrace_runtime::Bus;
use millrace_runtime::log::append_message;
use millrace_runtime::nats::topology::WORK;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{
    SeededRandom, build_publish_headers, echo_task, fan_out_submission, fixed_submission, run_id, submit_run,
    task_id, wait_for_run_end, wait_for_run_history,
};
use millrace_tests::wait_for_value;
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(180);

async fn wait_for_state(bus: &Bus, run: &RunId, task: &str, state: TaskState) {
    wait_for_value(TIMEOUT, &format!("{task} {state}"), async || {
        let plan = History::read_from_log(bus, run).await.ok()?.folded_plan().clone();
        (plan.task(&task_id(task))?.state() == state).then_some(())
    })
    .await;
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

async fn work_stream(bus: &Bus) -> stream::Stream {
    jetstream::new(bus.client().clone()).get_stream(WORK).await.unwrap()
}

/// The orders in the queues, with their sequences.
async fn queued_orders(bus: &Bus) -> Vec<(u64, String)> {
    let (stream, mut orders) = (work_stream(bus).await, Vec::new());
    let state = &stream.cached_info().state;
    for sequence in state.first_sequence..=state.last_sequence {
        if let Ok(message) = stream.get_raw_message(sequence).await {
            orders.push((sequence, message.subject.to_string()));
        }
    }
    orders
}

/// A worker holds two orders of one run and two of another. One of the latter is withdrawn, the other is done; then
/// the worker dies.
#[tokio::test(flavor = "multi_thread")]
async fn withdrawn_order_strands_no_order_of_a_dead_worker() {
    let _shared = share_machine();
    let setup = ClusterSetup { work_lease: Some(Duration::from_secs(3)), ..ClusterSetup::default() };
    let mut cluster = TestCluster::start_with_workers(setup, 1);
    let (bus, kept, cut) = (cluster.connect_bus().await, run_id("kept"), run_id("cut"));
    let slow = json!({"delay_ms": 6_000});
    submit_run(&bus, &kept, &fixed_submission(vec![echo_task("a", &slow), echo_task("b", &slow)])).await;
    for task in ["a", "b"] {
        wait_for_state(&bus, &kept, task, TaskState::Running).await;
    }
    let tasks = vec![
        echo_task("withdrawn", &json!({"delay_ms": 30_000})),
        echo_task("done", &json!({"delay_ms": 1_500})),
    ];
    submit_run(&bus, &cut, &fixed_submission(tasks)).await;
    for task in ["withdrawn", "done"] {
        wait_for_state(&bus, &cut, task, TaskState::Running).await;
    }
    succeed(cluster.millrace_command().args(["cancel", "cut", "--task", "withdrawn"]));
    wait_for_state(&bus, &cut, "done", TaskState::Completed).await;
    cluster.kill_process("worker-1");
    cluster.start_process(ProcessRole::Worker, "worker-2", &["--capability", "echo"]);
    let killed = Instant::now();
    let history = wait_for_run_history(&bus, &kept, TIMEOUT).await;
    println!("the run of the dead worker was over after {:?}", killed.elapsed());
    history.assert_consistent();
    assert_eq!(history.folded_plan().run.end.as_ref().map(|end| end.reason), Some(EndReason::Completed));
    assert_eq!(history.takeover_count(), 2);
    cluster.stop_all();
}

/// The orders of a run are lost in each of the ways in which a queue can lose them while no worker is there.
#[tokio::test(flavor = "multi_thread")]
async fn lost_orders_are_published_again_within_seconds() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    // The capability is registered and has no worker: the orders stay in the queue.
    cluster.start_process(ProcessRole::Worker, "worker-1", &["--capability", "echo"]);
    let bus = cluster.connect_bus().await;
    cluster.wait_for_heartbeats(&bus, Kind::Worker, 1).await;
    cluster.kill_process("worker-1");
    let run = run_id("lost");
    submit_run(&bus, &run, &fan_out_submission(5, &json!({}))).await;
    let has_all = async || (queued_orders(&bus).await.len() == 5).then_some(());
    wait_for_value(TIMEOUT, "five orders", has_all).await;
    let context = jetstream::new(bus.client().clone());

    work_stream(&bus).await.purge().await.unwrap();
    wait_for_value(TIMEOUT, "the purged orders", has_all).await;
    for (sequence, _) in queued_orders(&bus).await.into_iter().take(2) {
        work_stream(&bus).await.delete_message(sequence).await.unwrap();
    }
    wait_for_value(TIMEOUT, "the deleted orders", has_all).await;
    context.delete_stream(WORK).await.unwrap();
    wait_for_value(TIMEOUT, "the orders of the deleted stream", async || {
        context.get_stream(WORK).await.ok()?;
        has_all().await
    })
    .await;
    work_stream(&bus).await.delete_consumer("echo").await.unwrap();
    cluster.wait_for_log("supervisor-1", "the queue had lost its consumer", TIMEOUT).await;
    // An order that no plan waits for: an attempt that was never dispatched.
    let stray = format!("work.echo.{run}.t1.7");
    context
        .publish_with_headers(stray.clone(), build_publish_headers(), "junk".into())
        .await
        .unwrap()
        .await
        .unwrap();
    wait_for_value(TIMEOUT, "the removal of the stray order", async || {
        queued_orders(&bus).await.iter().all(|(_, subject)| *subject != stray).then_some(())
    })
    .await;

    cluster.restart_process("worker-1");
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    assert_eq!(history.folded_plan().run.end.as_ref().map(|end| end.reason), Some(EndReason::Completed));
    cluster.stop_all();
}

/// The journal of a task holds an outcome before the task is dispatched: the server has lost the newest part of the log, or
/// the entry is forged. Workers only acknowledge work with such a journal.
#[tokio::test(flavor = "multi_thread")]
async fn outcome_from_before_its_dispatch_does_not_stop_the_run() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("early"));
    let mut tasks = vec![echo_task("a", &json!({"delay_ms": 2_000})), echo_task("b", &json!({}))];
    tasks[1].depends_on = vec![task_id("a")];
    submit_run(&bus, &run, &fixed_submission(tasks)).await;
    wait_for_state(&bus, &run, "a", TaskState::Running).await;
    let forged = JournalEntry::Outcome {
        worker: WorkerId::new("forger").unwrap(),
        review: 0,
        outcome: WorkOutcome::Errored(TaskError::new(ErrorKind::Other, "forged")),
    };
    let journal = Topic::Journal(JournalKey::Task(task_id("b"), 1));
    let lane = bus.lane_of_run(&run);
    let forged = append_message(&bus, lane, &run, &journal, &forged, 0).await.unwrap();
    // The successor folds the refusal from the log.
    wait_for_value(TIMEOUT, "the refusal", async || {
        let history = History::read_from_log(&bus, &run).await.ok()?;
        history.decision_on_fact(forged)?.is_err().then_some(())
    })
    .await;
    cluster.kill_process("supervisor-1");
    cluster.restart_process("supervisor-1");
    // The history is not checked for consistency: the forged entry has no claim.
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    let plan = history.folded_plan();
    assert_eq!(plan.run.end.as_ref().map(|end| end.reason), Some(EndReason::Completed));
    assert_eq!(plan.task(&task_id("b")).unwrap().attempt, 2);
    cluster.stop_all();
}

/// One harmful thing that can happen to the queues.
#[derive(Debug, Clone, Copy)]
enum Damage {
    DeleteOrder,
    PurgeExactSubject,
    PurgeQueue,
    DeleteConsumer,
    SkipOrders,
    PublishStray,
    KillWorker,
}

const DAMAGES: [Damage; 7] = [
    Damage::DeleteOrder,
    Damage::PurgeExactSubject,
    Damage::PurgeQueue,
    Damage::DeleteConsumer,
    Damage::SkipOrders,
    Damage::PublishStray,
    Damage::KillWorker,
];

impl Damage {
    async fn inflict(self, cluster: &mut TestCluster, bus: &Bus, random: &mut SeededRandom) {
        let (stream, orders) = (work_stream(bus).await, queued_orders(bus).await);
        let count = u64::try_from(orders.len()).unwrap();
        let any = (count > 0).then(|| &orders[usize::try_from(random.next_below(count)).unwrap()]);
        // Each of these may come too late: the order may be gone by then.
        match (self, any) {
            (Self::DeleteOrder, Some((sequence, _))) => drop(stream.delete_message(*sequence).await),
            (Self::PurgeExactSubject, Some((_, subject))) => drop(stream.purge().filter(subject).await),
            (Self::PurgeQueue, Some(_)) => drop(stream.purge().filter("work.echo.>").await),
            (Self::DeleteConsumer, Some(_)) => drop(stream.delete_consumer("echo").await),
            (Self::SkipOrders, Some(_)) => {
                // The consumer is reset to a position after the last order. It answers this request itself, so there is no
                // answer while it is deleted.
                let next = stream.cached_info().state.last_sequence + 1;
                let request = serde_json::to_vec(&json!({ "seq": next })).unwrap();
                let subject = format!("$JS.API.CONSUMER.RESET.{WORK}.echo");
                let reset = bus.client().request(subject, request.into());
                drop(tokio::time::timeout(Duration::from_secs(2), reset).await);
            }
            (Self::PublishStray, Some((_, subject))) => {
                let context = jetstream::new(bus.client().clone());
                let stray = format!("{}.9", subject.rsplit_once('.').unwrap().0);
                drop(context.publish_with_headers(stray, build_publish_headers(), "junk".into()).await);
            }
            (Self::KillWorker, _) => {
                let name = ["worker-1", "worker-2"][usize::try_from(random.next_below(2)).unwrap()];
                cluster.kill_process(name);
                cluster.restart_process(name);
            }
            (_, None) => {}
        }
    }
}

/// Twenty tasks in two layers, half of them reviewed.
fn reviewed_layers() -> Submission {
    let mut submission = fan_out_submission(20, &json!({"delay_ms": 400, "steps": 2}));
    for number in 0..20 {
        let first = submission.tasks[number % 10].id.clone();
        let task = Arc::make_mut(&mut submission.tasks[number]);
        if number >= 10 {
            task.depends_on = vec![first];
        }
        if number % 2 == 0 {
            task.review = ReviewPolicy::Critic {
                criteria: Vec::new(),
                checks: Vec::new(),
                models: Vec::new(),
                quorum: None,
                sample_percent: None,
            };
        }
    }
    submission
}

#[tokio::test(flavor = "multi_thread")]
async fn every_run_ends_despite_damaged_queues() {
    let _shared = share_machine();
    let seed = std::env::var("MILLRACE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(11);
    let rounds = std::env::var("MILLRACE_QUEUE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(30);
    let mut random = SeededRandom::new(seed);
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 2);
    let bus = cluster.connect_bus().await;
    cluster.wait_for_heartbeats(&bus, Kind::Worker, 2).await;
    let mut runs = Vec::new();
    for round in 0..rounds {
        if round % 3 == 0 {
            let next = run_id(&format!("damaged-{}", runs.len()));
            submit_run(&bus, &next, &reviewed_layers()).await;
            runs.push(next);
        }
        let damage = DAMAGES[usize::try_from(random.next_below(7)).unwrap()];
        damage.inflict(&mut cluster, &bus, &mut random).await;
        if random.next_bool_with_percent(25) {
            let (run, task) = (&runs[runs.len() - 1], format!("t{}", random.next_below(20)));
            // The task may be over already.
            drop(cluster.millrace_command().args(["cancel", run.as_str(), "--task", &task]).output());
        }
    }
    let stopped = Instant::now();
    for run in &runs {
        wait_for_run_end(&bus, run, TIMEOUT).await;
    }
    println!("seed {seed}: {} runs were over {:?} after the last damage", runs.len(), stopped.elapsed());
    for run in &runs {
        let history = wait_for_run_history(&bus, run, TIMEOUT).await;
        history.assert_consistent();
        assert_eq!(history.find_ledger_violations(&cluster.read_ledger()), Vec::<String>::new());
    }
    let left = queued_orders(&bus).await;
    assert!(left.iter().all(|(_, order)| subject::parse_order_subject(order).is_some()), "{left:?}");
    wait_for_value(TIMEOUT, "empty queues", async || queued_orders(&bus).await.is_empty().then_some(()))
        .await;
    cluster.stop_all();
}
