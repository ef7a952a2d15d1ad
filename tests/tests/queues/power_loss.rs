//! A power loss in the middle of a run: all processes and the server are killed, each stream loses another number of its
//! newest bytes, and everything is started again. The run completes with the right inputs everywhere, or says why it cannot
//! continue.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use async_nats::jetstream;
use jiff::SignedDuration;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{EndReason, ReviewPolicy, Submission, TaskState};
use millrace_protocol::registry::ProcessRole as Kind;
use millrace_protocol::wire::{decode_task_result, encode_body, encode_with_inline_body};
use millrace_protocol::work::{DecisionId, Order};
use millrace_runtime::Bus;
use millrace_runtime::nats::direct_get;
use millrace_runtime::nats::topology::WORK;
use millrace_runtime::work::registry;
use millrace_tests::cluster::{ClusterSetup, TestCluster};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{
    SeededRandom, build_publish_headers, echo_task, fan_out_submission, fixed_submission, run_id, submit_run,
    task_id, wait_for_run_history,
};
use millrace_tests::power_loss::{SyncedStore, cut_newest_block, flip_bit, position_written_at};
use millrace_tests::wait_for_value;
use serde_json::json;

const LAYERS: u64 = 6;
const WIDTH: u64 = 5;
const TIMEOUT: Duration = Duration::from_secs(180);
const PROCESSES: [&str; 4] = ["supervisor-1", "critic-1", "worker-1", "worker-2"];

fn number_from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Layers of tasks that depend on two tasks of the layer before; a fifth of them are reviewed.
fn digested_layers(random: &mut SeededRandom) -> Submission {
    let mut tasks = Vec::new();
    for layer in 0..LAYERS {
        for place in 0..WIDTH {
            let parameters = json!({
                "delay_ms": random.next_below(150), "steps": random.next_below(3), "digest": true,
            });
            let mut task = echo_task(&format!("l{layer}-{place}"), &parameters);
            task.limits.max_attempts = 10;
            if layer > 0 {
                let before = [place, random.next_below(WIDTH)];
                task.depends_on = before.iter().map(|at| task_id(&format!("l{}-{at}", layer - 1))).collect();
                task.depends_on.dedup();
            }
            if random.next_bool_with_percent(20) {
                task.review = ReviewPolicy::critic(vec!["it is short".into()]);
            }
            tasks.push(task);
        }
    }
    fixed_submission(tasks)
}

/// The digests that `echo` computes if every task reads the right inputs.
fn expected_digests(submission: &Submission) -> BTreeMap<TaskId, String> {
    let mut digests = BTreeMap::<TaskId, String>::new();
    for task in &submission.tasks {
        let mut inputs = task.depends_on.clone();
        inputs.sort();
        let text = inputs.iter().fold(task.id.to_string(), |text, input| text + " " + &digests[input]);
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        digests.insert(task.id.clone(), format!("{hash:016x}"));
    }
    digests
}

async fn accepted_digests(bus: &Bus, history: &History) -> BTreeMap<TaskId, String> {
    let mut digests = BTreeMap::new();
    for (task, result) in history.accepted_results() {
        let bytes = bus.blobs().read_inline_or_stored(&result).await.unwrap();
        let data = decode_task_result(&bytes).unwrap().data.unwrap();
        digests.insert(task, data["digest"].as_str().unwrap().to_owned());
    }
    digests
}

/// The state of a run after the power loss.
#[derive(Debug, PartialEq, Eq)]
enum Continuation {
    Ended,
    /// Its submission was lost before it had a summary.
    Forgotten,
    /// Its summary reports a damaged log.
    Damaged,
}

async fn find_continuation(bus: &Bus, run: &RunId) -> Option<Continuation> {
    let summary = registry::read_summary(bus, run).await.ok()?;
    match &summary {
        Some(summary) if summary.end.is_some() => return Some(Continuation::Ended),
        Some(summary) if summary.log_damage.is_some() => return Some(Continuation::Damaged),
        Some(_) => return None,
        None => {}
    }
    let history = History::read_from_log(bus, run).await.ok()?;
    history.records().is_empty().then_some(Continuation::Forgotten)
}

/// Simulates one power loss and returns a description of the result.
async fn lose_power(seed: u64) -> String {
    let mut random = SeededRandom::new(seed);
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 2);
    let store = cluster.server.data_folder().join("store");
    let (bus, run) = (cluster.connect_bus().await, run_id(&format!("power-{seed}")));
    cluster.wait_for_heartbeats(&bus, Kind::Worker, 2).await;
    let synced = SyncedStore::read(&store);
    let submission = digested_layers(&mut random);
    submit_run(&bus, &run, &submission).await;
    tokio::time::sleep(Duration::from_millis(50 + random.next_below(900))).await;
    cluster.server.kill();
    PROCESSES.iter().for_each(|name| cluster.kill_process(name));
    drop(bus);
    let lost = synced.lose_newest_bytes(&store, &mut random);
    let restarted = Instant::now();
    cluster.server.restart();
    PROCESSES.iter().for_each(|name| cluster.restart_process(name));
    let bus = cluster.connect_bus().await;
    let what = format!("the end of seed {seed}, which lost {lost}");
    let continuation = wait_for_value(TIMEOUT, &what, async || find_continuation(&bus, &run).await).await;
    let took = restarted.elapsed();
    if continuation == Continuation::Ended {
        let history = wait_for_value(TIMEOUT, &what, async || {
            let history = History::read_from_log(&bus, &run).await.ok()?;
            history.folded_plan().run.end.is_some().then_some(history)
        })
        .await;
        history.assert_consistent();
        let end = history.folded_plan().run.end.as_ref().map(|end| (end.reason, end.detail.clone()));
        assert_eq!(
            end.as_ref().map(|(reason, _)| *reason),
            Some(EndReason::Completed),
            "seed {seed}: {end:?}"
        );
        assert_eq!(accepted_digests(&bus, &history).await, expected_digests(&submission), "seed {seed}");
    }
    let discarded = ["critic-1", "worker-1", "worker-2"].map(|name| {
        cluster.read_log(name).matches("removing an order whose decision is not in the log").count()
    });
    let discarded: usize = discarded.iter().sum();
    // A process may be so new that it does not handle signals yet, so that all are killed.
    drop(cluster);
    format!("seed {seed}: {continuation:?} after {took:.1?}, {discarded} orders discarded; lost {lost}")
}

#[test]
fn run_continues_after_a_power_loss_or_says_why_not() {
    let _shared = share_machine();
    let first = number_from_environment("MILLRACE_POWER_LOSS_FIRST", 0);
    let next = AtomicU64::new(first);
    let end = first + number_from_environment("MILLRACE_POWER_LOSS_SEEDS", 4);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..number_from_environment("MILLRACE_POWER_LOSS_PARALLEL", 2) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let result = std::panic::catch_unwind(|| {
                        let runtime = tokio::runtime::Runtime::new().unwrap();
                        runtime.block_on(lose_power(seed))
                    });
                    match result {
                        Ok(text) => println!("{text}"),
                        Err(_) => failed.lock().unwrap().push(seed),
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner().unwrap(), Vec::<u64>::new(), "these seeds failed");
}

/// The stream of the queues loses its end, the position of the consumer does not. The server (2.15.1) then counts the orders
/// that are left as acknowledged, and delivers none of them again.
#[tokio::test(flavor = "multi_thread")]
async fn orders_are_delivered_after_the_queues_have_lost_their_end() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 2);
    let store = cluster.server.data_folder().join("store");
    let bus = cluster.connect_bus().await;
    cluster.wait_for_heartbeats(&bus, Kind::Worker, 2).await;
    let synced = SyncedStore::read(&store);
    let (first, second) = (run_id("first"), run_id("second"));
    // The first four orders stay in flight, the others are acknowledged.
    let delay = |task| if task < 4 { 3_000 } else { 50 };
    let tasks = (0..16).map(|task| echo_task(&format!("t{task}"), &json!({"delay_ms": delay(task)})));
    submit_run(&bus, &first, &fixed_submission(tasks.collect())).await;
    wait_for_value(TIMEOUT, "twelve results and four claims", async || {
        let history = History::read_from_log(&bus, &first).await.ok()?;
        let count = |state| history.folded_plan().task_count_in_state(state);
        (count(TaskState::Completed) == 12 && count(TaskState::Running) == 4).then_some(())
    })
    .await;
    // The server writes positions later than messages.
    let claimed = SystemTime::now();
    wait_for_value(TIMEOUT, "the position of the consumer", async || {
        (position_written_at(&store, "WORK/obs/echo")? > claimed).then_some(())
    })
    .await;
    cluster.server.kill();
    PROCESSES.iter().for_each(|name| cluster.kill_process(name));
    drop(bus);
    let synced = synced.length_of_newest_block(&store, "WORK");
    cut_newest_block(&store, "WORK", |length| synced + (length - synced) / 8);
    cluster.server.restart();
    PROCESSES.iter().for_each(|name| cluster.restart_process(name));
    let bus = cluster.connect_bus().await;
    submit_run(&bus, &second, &fan_out_submission(16, &json!({}))).await;
    for run in [&first, &second] {
        let started = Instant::now();
        let history = wait_for_run_history(&bus, run, TIMEOUT).await;
        println!("{run} was over after {:?}", started.elapsed());
        history.assert_consistent();
        let end = history.folded_plan().run.end.as_ref().map(|end| end.reason);
        assert_eq!(end, Some(EndReason::Completed));
    }
    cluster.stop_all();
}

/// A queue holds an order of a decision that the lane has lost, with other content than the plan: a worker that comes later
/// discards it, and receives the order that the plan needs.
#[tokio::test(flavor = "multi_thread")]
async fn order_of_a_lost_decision_is_discarded() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("stale"));
    cluster.wait_for_heartbeats(&bus, Kind::Worker, 1).await;
    cluster.kill_process("worker-1");
    submit_run(&bus, &run, &fixed_submission(vec![echo_task("a", &json!({"steps": 1}))])).await;
    let queued = async || direct_get::read_matching(bus.client(), WORK, "work.>", 1).await.ok()?.pop();
    let published = wait_for_value(TIMEOUT, "the order", queued).await;
    let order = bus.decode_record::<Order>(&published).await.unwrap();
    let decided = order.decided.unwrap();
    let lost = DecisionId::new(decided.sequence, decided.at - SignedDuration::from_millis(1));
    let parameters = [("steps".to_owned(), json!(3))].into();
    let stale = Order { decided: Some(lost), parameters, ..order };
    let context = jetstream::new(bus.client().clone());
    context.get_stream(WORK).await.unwrap().delete_message(published.sequence).await.unwrap();
    let payload = encode_with_inline_body::<Order>(&encode_body(&stale));
    let sent = context.publish_with_headers(published.subject, build_publish_headers(), payload.into());
    sent.await.unwrap().await.unwrap();
    cluster.restart_process("worker-1");
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    assert_eq!(cluster.read_ledger(), "stale a 1 1\n", "the steps of the order that the plan needs");
    let log = cluster.read_log("worker-1");
    assert!(log.contains("removing an order whose decision is not in the log"), "{log}");
    cluster.stop_all();
}

/// The stream of the queues loses all orders, the position of the consumer of `echo` does not. The next order belongs to another
/// capability and has the sequence of an order that `echo` had delivered, so that the server delivers it to workers of `echo`.
#[tokio::test(flavor = "multi_thread")]
async fn order_with_the_sequence_of_a_lost_one_stays_in_its_own_queue() {
    let _shared = share_machine();
    let setup = ClusterSetup { work_lease: Some(Duration::from_secs(3)), ..ClusterSetup::default() };
    let mut cluster = TestCluster::start_with_workers(setup, 1);
    let store = cluster.server.data_folder().join("store");
    let (bus, run) = (cluster.connect_bus().await, run_id("first"));
    cluster.wait_for_heartbeats(&bus, Kind::Worker, 1).await;
    let tasks = ["a", "b"].map(|task| echo_task(task, &json!({"delay_ms": 60_000})));
    submit_run(&bus, &run, &fixed_submission(tasks.into())).await;
    wait_for_value(TIMEOUT, "two claims", async || {
        let history = History::read_from_log(&bus, &run).await.ok()?;
        (history.folded_plan().task_count_in_state(TaskState::Running) == 2).then_some(())
    })
    .await;
    let claimed = SystemTime::now();
    wait_for_value(TIMEOUT, "the position of the consumer", async || {
        (position_written_at(&store, "WORK/obs/echo")? > claimed).then_some(())
    })
    .await;
    cluster.server.kill();
    PROCESSES[..3].iter().for_each(|name| cluster.kill_process(name));
    drop(bus);
    cut_newest_block(&store, "WORK", |_| 0);
    cluster.server.restart();
    let bus = cluster.connect_bus().await;
    let context = jetstream::new(bus.client().clone());
    // Nothing is published for `later`, so that nothing but the sequence leads here.
    for task in ["x", "y"] {
        let published = context.publish_with_headers(
            format!("work.later.other.{task}.1"),
            build_publish_headers(),
            "order".into(),
        );
        let sequence = published.await.unwrap().await.unwrap().sequence;
        assert!(sequence <= 2, "the order of {task} has sequence {sequence}");
    }
    cluster.restart_process("worker-1");
    cluster.wait_for_log("worker-1", "leaving an order to the queue of its capability", TIMEOUT).await;
    let orders = async || direct_get::read_matching(bus.client(), WORK, "work.later.>", 1).await.ok();
    assert_eq!(orders().await.map(|orders| orders.len()), Some(2), "the orders are still in their queue");
    ["supervisor-1", "critic-1"].iter().for_each(|name| cluster.restart_process(name));
    // Both tasks are published again.
    wait_for_value(TIMEOUT, "two claims of the restarted worker", async || {
        let history = History::read_from_log(&bus, &run).await.ok()?;
        (history.takeover_count() == 2).then_some(())
    })
    .await;
}

/// Only the server and its newest messages are lost. The supervisor has decided on some of them.
#[tokio::test(flavor = "multi_thread")]
async fn supervisor_that_survives_a_loss_of_messages_reads_the_lane_again() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let store = cluster.server.data_folder().join("store");
    let (bus, run) = (cluster.connect_bus().await, run_id("survivor"));
    submit_run(&bus, &run, &fan_out_submission(24, &json!({"delay_ms": 300, "steps": 3}))).await;
    wait_for_value(TIMEOUT, "the first results", async || {
        let history = History::read_from_log(&bus, &run).await.ok()?;
        (history.folded_plan().task_count_in_state(TaskState::Completed) >= 8).then_some(())
    })
    .await;
    cluster.server.kill();
    cut_newest_block(&store, "LANE_0", |length| length - 2_000);
    cluster.server.restart();
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    let end = history.folded_plan().run.end.as_ref().map(|end| end.reason);
    assert_eq!(end, Some(EndReason::Completed));
    cluster.wait_for_log("supervisor-1", "the restarted server lacks the last message", TIMEOUT).await;
    cluster.stop_all();
}

/// A bit of a lane's first message is flipped: the server drops the block without a word.
#[tokio::test(flavor = "multi_thread")]
async fn run_with_a_damaged_log_says_so() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let store = cluster.server.data_folder().join("store");
    let (bus, run) = (cluster.connect_bus().await, run_id("damaged"));
    submit_run(&bus, &run, &fan_out_submission(8, &json!({"delay_ms": 60_000}))).await;
    wait_for_value(TIMEOUT, "the summary", async || {
        registry::read_summary(&bus, &run).await.ok()?.filter(|summary| summary.counts[2] > 0)
    })
    .await;
    cluster.server.kill();
    PROCESSES[..3].iter().for_each(|name| cluster.kill_process(name));
    flip_bit(&store, "LANE_0", |_| 100);
    cluster.server.restart();
    PROCESSES[..3].iter().for_each(|name| cluster.restart_process(name));
    let bus = cluster.connect_bus().await;
    wait_for_value(TIMEOUT, "the report of the damage", async || {
        registry::read_summary(&bus, &run).await.ok()?.filter(|summary| summary.log_damage.is_some())
    })
    .await;
    let list = cluster.millrace_command().arg("list").output().unwrap();
    let text = String::from_utf8_lossy(&list.stdout);
    assert!(text.contains("log damaged") && !text.contains("running"), "{text}");
    for arguments in [&["show", "damaged"][..], &["resume"], &["resume", "damaged"], &["watch", "damaged"]] {
        let output = cluster.millrace_command().args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("the log of run damaged is damaged: "), "{arguments:?}: {text}");
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {text}");
    }
    cluster.stop_all();
}
