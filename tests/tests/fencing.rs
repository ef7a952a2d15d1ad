//! Fencing: one writer at a time, enforced by the server and not by clocks. Covers owners and workers that were
//! suspended past their leases, and owners that another one has overtaken.

use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::ids::{Lane, RunId, WorkerId};
use millrace_protocol::plan::{
    Attendance, CapabilityRegistry as Offered, CommandAction, Decision, EndReason, Fact, RunCommand,
    Submission, UnknownCapabilityStatus,
};
use millrace_protocol::registry::ProcessRole as Kind;
use millrace_protocol::subject::Topic;
use millrace_runtime::Bus;
use millrace_runtime::log::{AppendError, append_message, read_topic};
use millrace_runtime::work::registry;
use millrace_supervisor::{LiveRun, QueuedFact, fold_lane};
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{
    echo_task, fan_out_submission, fixed_submission, run_id, submit_run, task_id, wait_for_run_history,
};
use millrace_tests::wait_for_value;
use rustix::process::Signal;
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(120);
const LANE: Lane = Lane(0);

/// A run of about five seconds on two workers with eight slots each.
fn long_submission() -> Submission {
    fan_out_submission(800, &json!({"delay_ms": 100}))
}

/// A cluster with two supervisors: returns the name of the lane's owner first, then the other's.
async fn start_two_supervisors(setup: ClusterSetup) -> (TestCluster, Bus, String, String) {
    let mut cluster = TestCluster::start_with_workers(setup, 2);
    cluster.start_process(ProcessRole::Supervisor, "supervisor-2", &[]);
    let bus = cluster.connect_bus().await;
    cluster.wait_for_heartbeats(&bus, Kind::Supervisor, 2).await;
    let owner = cluster.wait_for_stable_owner(&bus).await;
    let other = if owner == "supervisor-1" { "supervisor-2" } else { "supervisor-1" };
    (cluster, bus, owner, other.into())
}

async fn last_decision_sequence(bus: &Bus, run: &RunId) -> u64 {
    let decisions = read_topic(bus, LANE, run, &Topic::Plan).await.unwrap_or_default();
    decisions.last().map_or(0, |record| record.sequence)
}

#[tokio::test(flavor = "multi_thread")]
async fn suspended_supervisor_steps_down_when_it_wakes() {
    let _shared = share_machine();
    let (cluster, bus, owner, other) = start_two_supervisors(ClusterSetup::default()).await;
    let run = run_id("slept");
    submit_run(&bus, &run, &long_submission()).await;
    wait_for_value(TIMEOUT, "decisions", async || {
        (last_decision_sequence(&bus, &run).await > 0).then_some(())
    })
    .await;

    let taken = cluster.read_log(&other).matches("lane taken over").count();
    cluster.send_signal(&owner, Signal::STOP);
    cluster.wait_for_log_again(&other, "lane taken over", taken, TIMEOUT).await;
    wait_for_value(TIMEOUT, "the successor's decisions", async || {
        let history = History::read_from_log(&bus, &run).await.ok()?;
        history.deciding_supervisors().last().is_some_and(|last| last.starts_with(&other)).then_some(())
    })
    .await;
    cluster.send_signal(&owner, Signal::CONT);
    let took = cluster.wait_for_log(&owner, "stepping down", TIMEOUT).await;
    println!("a supervisor that slept past its lease stepped down {} ms after it woke", took.as_millis());
    assert!(took < Duration::from_secs(1), "it stepped down after {took:?}");

    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    assert_eq!(history.folded_plan().run.end.as_ref().map(|end| end.reason), Some(EndReason::Completed));
    cluster.stop_all();
}

/// The run as its owner sees it at this moment.
async fn read_live_run(bus: &Bus, run: &RunId) -> LiveRun {
    let mut runs = fold_lane(bus, LANE).await.unwrap().runs;
    runs.remove(run).expect("the run is in its lane")
}

#[tokio::test(flavor = "multi_thread")]
async fn server_rejects_decisions_of_a_stale_owner() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 2);
    let (bus, run) = (cluster.connect_bus().await, run_id("refused"));
    submit_run(&bus, &run, &long_submission()).await;
    let me = WorkerId::new("stale-owner").unwrap();
    for _ in 0..10 {
        let mut stale = wait_for_value(TIMEOUT, "a decision", async || {
            Some(read_live_run(&bus, &run).await).filter(|live| live.last_sequence > 0)
        })
        .await;
        wait_for_value(TIMEOUT, "the owner's next decision", async || {
            (last_decision_sequence(&bus, &run).await > stale.last_sequence).then_some(())
        })
        .await;
        // The most harmful decision that it could make: to end the run.
        let control = CommandAction::CancelRun { reason: "a stale owner".into() };
        let command = RunCommand { id: "stale".into(), by: "nobody".into(), control };
        let fact = Box::new(Fact::Control(command));
        stale.queue_fact(QueuedFact { sequence: u64::MAX / 2, at: Timestamp::now(), fact });
        let offered = Offered::default();
        let decision = stale
            .decide_pending_input(
                &me,
                (&offered, UnknownCapabilityStatus::MayRegisterSoon),
                &Attendance::begin(Timestamp::now()),
                Timestamp::now(),
            )
            .expect("it decides");
        let refused = append_message(&bus, LANE, &run, &Topic::Plan, &decision, stale.last_sequence).await;
        assert!(
            matches!(refused, Err(AppendError::Fenced { last }) if last > stale.last_sequence),
            "after {}: {refused:?}",
            stale.last_sequence
        );
    }
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    assert!(!history.deciding_supervisors().contains(&me.to_string()), "none of its decisions is in the log");
    assert_eq!(history.folded_plan().run.end.as_ref().map(|end| end.reason), Some(EndReason::Completed));
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn overtaken_owner_rereads_the_run_and_continues() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 2);
    let (bus, run) = (cluster.connect_bus().await, run_id("overtaken"));
    submit_run(&bus, &run, &long_submission()).await;
    let usurper = WorkerId::new("usurper").unwrap();
    for _ in 0..5 {
        // The owner is fast: some of these come too late and are rejected themselves.
        Box::pin(wait_for_value(TIMEOUT, "a free position in the chain", async || {
            let live = read_live_run(&bus, &run).await;
            let decision = Decision {
                by: usurper.clone(),
                previous: live.last_sequence,
                at: Timestamp::now(),
                answers: Vec::new(),
                events: Vec::new(),
            };
            (live.last_sequence > 0).then_some(())?;
            append_message(&bus, LANE, &run, &Topic::Plan, &decision, live.last_sequence).await.ok()
        }))
        .await;
    }
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    assert_eq!(history.folded_plan().run.end.as_ref().map(|end| end.reason), Some(EndReason::Completed));
    let foreign = history.deciding_supervisors().iter().filter(|by| **by == usurper.to_string()).count();
    let log = cluster.read_log("supervisor-1");
    let refused = log.matches("another supervisor has extended this run").count();
    let noticed = log.matches("another supervisor has decided on this run").count();
    println!("overtaken {foreign} times: refused {refused} times, noticed {noticed} times");
    assert_eq!(foreign, 5);
    assert!(refused + noticed > 0, "the owner never noticed:\n{log}");
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn suspended_worker_is_rejected_and_drops_its_work() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup { slots: 1, ..ClusterSetup::default() }, 2);
    let (bus, run) = (cluster.connect_bus().await, run_id("dropped"));
    let parameters = json!({"steps": 30, "delay_ms": 3000});
    submit_run(&bus, &run, &fixed_submission(vec![echo_task("long", &parameters)])).await;
    let steps =
        async || History::read_from_log(&bus, &run).await.map_or(0, |history| history.recorded_steps().len());
    wait_for_value(TIMEOUT, "three steps", async || (steps().await >= 3).then_some(())).await;

    let history = History::read_from_log(&bus, &run).await.unwrap();
    let holder =
        history.folded_plan().task(&task_id("long")).and_then(|task| task.current_attempt()?.worker.clone());
    let holder = holder.expect("a worker has claimed it").to_string();
    let holder = holder.rsplit_once('-').expect("an id ends with a number").0;
    cluster.send_signal(holder, Signal::STOP);
    let before = steps().await;
    wait_for_value(TIMEOUT, "another worker's steps", async || {
        let history = History::read_from_log(&bus, &run).await.ok()?;
        (history.takeover_count() == 1 && history.recorded_steps().len() > before).then_some(())
    })
    .await;
    cluster.send_signal(holder, Signal::CONT);
    let took =
        cluster.wait_for_log(holder, "another process has claimed this work; dropping it", TIMEOUT).await;
    println!("a worker that slept past its lease dropped the work {} ms after it woke", took.as_millis());
    assert!(took < Duration::from_secs(1), "it dropped the work after {took:?}");

    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    assert_eq!(history.find_ledger_violations(&cluster.read_ledger()), Vec::<String>::new());
    assert_eq!(
        (history.takeover_count(), history.continued_attempt_count(), history.recorded_steps().len()),
        (1, 1, 30)
    );
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn lane_is_taken_over_in_10_s_after_a_kill_1_s_after_a_stop() {
    let _shared = share_machine();
    // The default lease.
    let (mut cluster, bus, owner, other) =
        start_two_supervisors(ClusterSetup { lane_lease: None, ..ClusterSetup::default() }).await;
    let taken = cluster.read_log(&other).matches("lane taken over").count();
    let started = std::time::Instant::now();
    cluster.send_signal(&owner, Signal::TERM);
    cluster.wait_for_log_again(&other, "lane taken over", taken, TIMEOUT).await;
    let orderly = started.elapsed();
    cluster.stop_process(&owner);

    cluster.restart_process(&owner);
    cluster.wait_for_heartbeats(&bus, Kind::Supervisor, 2).await;
    let owner = cluster.wait_for_stable_owner(&bus).await;
    let other = if owner == "supervisor-1" { "supervisor-2" } else { "supervisor-1" };
    let taken = cluster.read_log(other).matches("lane taken over").count();
    cluster.kill_process(&owner);
    let killed = cluster.wait_for_log_again(other, "lane taken over", taken, TIMEOUT).await;
    println!(
        "taken over {} ms after an orderly stop, {} ms after a kill",
        orderly.as_millis(),
        killed.as_millis()
    );
    assert!(orderly < Duration::from_millis(1500), "after an orderly stop: {orderly:?}");
    assert!(killed < Duration::from_secs(10), "after a kill: {killed:?}");
    assert!(registry::read_heartbeats(&bus).await.is_ok());
    cluster.stop_all();
}
