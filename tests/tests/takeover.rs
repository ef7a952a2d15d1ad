//! Takeover of a lane in which runs wait: their journals are not read, and nothing else changes.

use std::time::Duration;

use async_nats::HeaderMap;
use millrace_protocol::ids::{Lane, RunId, WorkerId};
use millrace_protocol::plan::{CommandAction, EndReason, JournalKey, RunCommand, TaskState};
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::work::{JournalEntry, WorkOutcome};
use millrace_runtime::log::lane::LaneScan;
use millrace_runtime::log::publish_message;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::{Bus, ConnectionSettings};
use millrace_supervisor::{FoldedLane, fold_lane_without_journals, fold_whole_lane};
use millrace_tests::cluster::{ClusterSetup, TestCluster};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{
    SeededRandom, build_publish_headers, echo_task, fixed_submission, run_id, submit_run, task_id,
    wait_for_run_history,
};
use millrace_tests::waits::{TIMEOUT, signal_event, wait_for_task_count};
use millrace_tests::{NatsServer, wait_for_value};
use serde_json::json;

const LANE: Lane = Lane(0);

/// Submits runs with large journals that wait for the event `go`; returns when they wait.
async fn submit_waiting_runs(bus: &Bus, count: usize) -> Vec<RunId> {
    let runs: Vec<RunId> = (0..count).map(|n| run_id(&format!("waiting-{n}"))).collect();
    let parameters = json!({"journal_bytes": 200_000, "await_event": "go", "steps": 2});
    for run in &runs {
        submit_run(bus, run, &fixed_submission(vec![echo_task("t", &parameters)])).await;
    }
    for run in &runs {
        wait_for_task_count(bus, run, TaskState::Waiting, 1).await;
    }
    runs
}

async fn read_whole_lane(bus: &Bus) -> Vec<StreamRecord> {
    let (mut lane, mut all) = (LaneScan::new(bus, LANE), Vec::new());
    loop {
        let records = lane.next_records().await.unwrap();
        if records.is_empty() {
            return all;
        }
        all.extend(records);
    }
}

/// Publishes a message to the lane as it is, without the header of published messages if it is forged.
async fn publish_record(bus: &Bus, subject: &str, payload: &[u8], is_forged: bool) -> u64 {
    let headers = if is_forged { HeaderMap::new() } else { build_publish_headers() };
    let context = async_nats::jetstream::new(bus.client().clone());
    let sent = context.publish_with_headers(subject.to_owned(), headers, payload.to_vec().into()).await;
    sent.unwrap().await.unwrap().sequence
}

/// Facts that no owner has answered, and strays.
async fn publish_unanswered_messages(bus: &Bus, runs: &[RunId]) {
    signal_event(bus, &runs[0], "go", "1").await;
    signal_event(bus, &runs[1], "other", "1").await;
    submit_run(bus, &run_id("late"), &fixed_submission(vec![echo_task("t", &json!({}))])).await;
    signal_event(bus, &run_id("unsubmitted"), "go", "1").await;
    let journal = |task: &str| Topic::Journal(JournalKey::Task(task_id(task), 1));
    for (run, topic, is_forged) in [
        (&runs[2], journal("t"), true),
        (&runs[2], Topic::Plan, true),
        (&runs[3], Topic::Control, true),
        (&run_id("unsubmitted"), journal("t"), false),
        // A running attempt: the forged message must not hide its last entry.
        (&run_id("mixed"), journal("t3"), true),
    ] {
        publish_record(bus, &subject::topic_subject(LANE, run, &topic), b"{}", is_forged).await;
    }
    for subject in ["lane.0.unknown", "lane.0.run.waiting-1.later", "lane.0.run.nobody.later"] {
        publish_record(bus, subject, b"{}", false).await;
    }
}

/// An outcome of a task that is not in the plan, which is refused.
async fn publish_refused_outcome(bus: &Bus, run: &RunId) {
    let outcome = WorkOutcome::Errored(TaskError::new(ErrorKind::Other, "late"));
    let entry = JournalEntry::Outcome { worker: WorkerId::new("late").unwrap(), review: 0, outcome };
    let topic = Topic::Journal(JournalKey::Task(task_id("t"), 7));
    publish_message(bus, LANE, run, &topic, &entry, "late").await.unwrap();
    let control = CommandAction::CancelTask { task: task_id("nothing"), reason: "no such task".into() };
    let command = RunCommand { id: "refused".into(), by: "test".into(), control };
    let refused = publish_message(bus, LANE, run, &Topic::Control, &command, "refused").await.unwrap();
    wait_for_value(TIMEOUT, "the refusal", async || {
        let history = History::read_from_log(bus, run).await.ok()?;
        (history.folded_plan().run.through >= refused).then_some(())
    })
    .await;
}

fn assert_same(at: usize, whole: &FoldedLane, outline: &FoldedLane) {
    assert!(outline.is_without_journals && !whole.is_without_journals);
    assert_eq!(outline.position, whole.position, "after {at} messages");
    assert_eq!(outline.strays.count(), whole.strays.count(), "strays after {at} messages");
    assert_eq!(outline.runs.len(), whole.runs.len(), "runs after {at} messages");
    for (run, live) in &whole.runs {
        assert_eq!(outline.runs.get(run), Some(live), "{run} after {at} messages");
    }
}

/// The log of many waiting and ended runs, cut after any message, is folded to the same runs, facts and strays.
#[tokio::test(flavor = "multi_thread")]
async fn any_prefix_of_a_lane_is_folded_to_the_same_without_its_journals() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 2);
    let bus = cluster.connect_bus().await;
    let runs = submit_waiting_runs(&bus, 4).await;
    let mixed = run_id("mixed");
    let tasks = [
        json!({"fail_rate": 0.5, "seed": 3, "steps": 3}),
        json!({"ask": ["why?"], "journal_bytes": 20_000}),
        json!({"delegate": [{"parameters": {"await_event": "never"}}]}),
        json!({"delay_ms": 100_000}),
    ];
    let tasks = tasks.iter().enumerate().map(|(n, parameters)| echo_task(&format!("t{n}"), parameters));
    submit_run(&bus, &mixed, &fixed_submission(tasks.collect())).await;
    wait_for_task_count(&bus, &mixed, TaskState::Waiting, 3).await;
    wait_for_value(TIMEOUT, "the running task t3", async || {
        let history = History::read_from_log(&bus, &mixed).await.ok()?;
        let plan = history.folded_plan();
        (plan.task(&task_id("t3"))?.state() == TaskState::Running).then_some(())
    })
    .await;
    publish_refused_outcome(&bus, &runs[1]).await;
    cluster.kill_process("supervisor-1");
    publish_unanswered_messages(&bus, &runs).await;
    let records = read_whole_lane(&bus).await;
    let last = records.last().unwrap().sequence;
    assert_eq!(records.len() as u64, last, "no message was removed");

    let server = NatsServer::start();
    let connection = ConnectionSettings::unauthenticated(server.url.clone());
    let options = ClusterOptions { lanes: Some(1), ..ClusterOptions::default() };
    let copy = Bus::connect_and_ensure_cluster(&connection, "test", &options).await.unwrap();
    for (at, record) in records.iter().enumerate() {
        let sequence = publish_record(&copy, &record.subject, &record.payload, record.is_forged()).await;
        assert_eq!(sequence, record.sequence);
        let whole = fold_whole_lane(&copy, LANE).await.unwrap();
        let outline = fold_lane_without_journals(&copy, LANE).await.unwrap();
        assert_same(at + 1, &whole, &outline);
    }
    let folded = fold_whole_lane(&copy, LANE).await.unwrap();
    assert!(folded.runs.len() == 6 && folded.strays.count() >= 6, "{} strays", folded.strays.count());
    println!("{} prefixes are folded to the same", records.len());
    cluster.stop_all();
}

/// The owner is killed again and again, also while it reads the lane, and everything is restarted once. Signals that come while
/// the lane has no owner wake their runs, each wait ends once, and the journals are not read.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_runs_survive_takeovers_that_do_not_read_their_journals() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 2);
    let bus = cluster.connect_bus().await;
    let runs = submit_waiting_runs(&bus, 10).await;
    let mut random = SeededRandom::new(7);
    for (round, run) in runs.iter().enumerate().take(6) {
        let victims: &[&str] =
            if round == 3 { &["supervisor-1", "worker-1", "worker-2"] } else { &["supervisor-1"] };
        victims.iter().for_each(|name| cluster.kill_process(name));
        signal_event(&bus, run, "go", "1").await;
        victims.iter().for_each(|name| cluster.restart_process(name));
        tokio::time::sleep(Duration::from_millis(random.next_below(400))).await;
    }
    cluster.wait_for_log("supervisor-1", "is_without_journals=true", TIMEOUT).await;
    for run in &runs[6..] {
        signal_event(&bus, run, "go", "1").await;
    }
    for run in &runs {
        let history = wait_for_run_history(&bus, run, TIMEOUT).await;
        history.assert_consistent();
        let plan = history.folded_plan();
        assert_eq!(plan.run.end.as_ref().map(|end| end.reason), Some(EndReason::Completed), "{run}");
        assert!(plan.tasks().iter().all(|task| task.attempts.len() == 1), "{run} has another attempt");
    }
    let ledger = cluster.read_ledger();
    assert_eq!(ledger.lines().count(), 20, "each step of the ten attempts once: {ledger}");
    cluster.stop_all();
}
