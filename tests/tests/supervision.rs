//! Tasks of supervisors besides decisions: sharing lanes, archiving, rejecting duplicates, waiting for capabilities,
//! timeouts, cancelling, and recovering from crashes of the server under load.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::{
    AttemptClock, AttemptEnd, Budget, EndReason, Plan, Submission, TaskLimits, TaskState,
};
use millrace_protocol::registry::{ProcessRole as Kind, RunSummary, SUBMISSION_IS_MISSING};
use millrace_protocol::subject::Topic;
use millrace_runtime::Bus;
use millrace_runtime::log::lane::LaneScan;
use millrace_runtime::log::{AppendError, append_message};
use millrace_runtime::nats::topology::{
    CAPABILITIES, ClusterOptions, HEARTBEATS, LEASES, LIMITS, MEMBERS, RUNS, WORK, bucket_stream, lane_stream,
};
use millrace_runtime::work::registry;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::history::History;
use millrace_tests::machine::{lock_machine, share_machine};
use millrace_tests::plans::{
    build_publish_headers, echo_task, fan_out_submission, fixed_submission, run_id, submit_run, task_id,
    wait_for_archive, wait_for_run_end, wait_for_run_history,
};
use millrace_tests::wait_for_value;
use rustix::process::Signal;
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(120);

fn end_reason(plan: &Plan) -> Option<EndReason> {
    plan.run.end.as_ref().map(|end| end.reason)
}

async fn read_plan(bus: &Bus, run: &RunId) -> Plan {
    History::read_from_log(bus, run).await.unwrap().folded_plan().clone()
}

/// Waits until a task is in a state.
async fn wait_for_task_state(bus: &Bus, run: &RunId, task: &str, state: TaskState) {
    wait_for_value(TIMEOUT, &format!("{task} {state}"), async || {
        let plan = History::read_from_log(bus, run).await.ok()?.folded_plan().clone();
        (plan.task(&task_id(task))?.state() == state).then_some(())
    })
    .await;
}

/// Submits runs side by side and waits until all are completed.
async fn submit_and_complete_runs(bus: &Bus, names: &[String]) {
    for name in names {
        submit_run(bus, &run_id(name), &fan_out_submission(5, &json!({"delay_ms": 5}))).await;
    }
    for name in names {
        let history = wait_for_run_history(bus, &run_id(name), TIMEOUT).await;
        history.assert_consistent();
        assert_eq!(end_reason(history.folded_plan()), Some(EndReason::Completed), "{name}");
    }
}

/// Waits until all eight lanes are owned, by so many supervisors.
async fn wait_for_owners(cluster: &TestCluster, bus: &Bus, count: usize) {
    wait_for_value(TIMEOUT, "shared lanes", async || {
        let owners = cluster.lane_owners(bus).await;
        let names: BTreeSet<&String> = owners.values().collect();
        (owners.len() == 8 && names.len() == count).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn supervisors_share_lanes_and_take_over_orphaned_ones() {
    let _shared = share_machine();
    let mut cluster =
        TestCluster::start_with_workers(ClusterSetup { lanes: 8, ..ClusterSetup::default() }, 2);
    cluster.start_process(ProcessRole::Supervisor, "supervisor-2", &[]);
    cluster.start_process(ProcessRole::Supervisor, "supervisor-3", &[]);
    let bus = cluster.connect_bus().await;
    wait_for_owners(&cluster, &bus, 3).await;
    let names: Vec<String> = (0..24).map(|n| format!("first-{n}")).collect();
    let lanes: BTreeSet<_> = names.iter().map(|name| bus.lane_of_run(&run_id(name))).collect();
    assert_eq!(lanes.len(), 8, "the runs are in all lanes");
    submit_and_complete_runs(&bus, &names).await;

    cluster.stop_process("supervisor-2");
    wait_for_owners(&cluster, &bus, 2).await;
    submit_and_complete_runs(&bus, &(0..24).map(|n| format!("second-{n}")).collect::<Vec<_>>()).await;
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn archived_run_leaves_its_lane_and_stays_readable() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(
        ClusterSetup { linger: Duration::from_millis(200), ..ClusterSetup::default() },
        1,
    );
    let (bus, run) = (cluster.connect_bus().await, run_id("archived"));
    let mut submission = fan_out_submission(10, &json!({"steps": 1}));
    Arc::make_mut(&mut submission.tasks[9]).is_final = true;
    submit_run(&bus, &run, &submission).await;
    wait_for_run_end(&bus, &run, TIMEOUT).await;
    wait_for_value(TIMEOUT, "an empty lane", async || {
        let left = LaneScan::new(&bus, bus.lane_of_run(&run)).next_records().await.ok()?;
        left.is_empty().then_some(())
    })
    .await;
    let history = History::read_from_log(&bus, &run).await.unwrap();
    history.assert_consistent();
    assert_eq!(history.task_outcomes().len(), 10);

    let first = history.records().first().unwrap().sequence;
    for arguments in [
        vec!["show", "archived"],
        vec!["show", "latest", "--json"],
        vec!["replay", "archived"],
        vec!["replay", "archived", "--log"],
        vec!["watch", "archived"],
        vec!["list"],
    ] {
        let output = cluster.millrace_command().args(&arguments).output().unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {text}");
        assert!(text.contains("t9") || text.contains("archived"), "{arguments:?}: {text}");
    }
    let early = cluster
        .millrace_command()
        .args(["replay", "archived", "--json", "--at"])
        .arg(first.to_string())
        .output();
    let early: serde_json::Value = serde_json::from_slice(&early.unwrap().stdout).unwrap();
    assert_eq!(early["plan"]["start"], json!(null), "nothing is started before the first decision: {early}");
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_an_archived_run_are_not_run_again() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(
        ClusterSetup { linger: Duration::from_millis(50), ..ClusterSetup::default() },
        1,
    );
    let (bus, run) = (cluster.connect_bus().await, run_id("in-part"));
    submit_run(&bus, &run, &fan_out_submission(10, &json!({"steps": 2}))).await;
    cluster.wait_for_log("supervisor-1", "archived", TIMEOUT).await;
    let (history, ledger) = (History::read_from_log(&bus, &run).await.unwrap(), cluster.read_ledger());
    cluster.kill_process("supervisor-1");

    // The lane as a new owner sees it while the old one removes the run: the beginning of the run only.
    let context = async_nats::jetstream::new(bus.client().clone());
    let half = &history.records()[..history.records().len() / 2];
    for record in half {
        let (subject, payload) = (record.subject.clone(), record.payload.clone());
        let sent = context.publish_with_headers(subject, build_publish_headers(), payload).await.unwrap();
        sent.await.unwrap();
    }
    let end = history.records().last().unwrap().sequence;
    let written = millrace_runtime::store::archive::archive_run(&bus, bus.lane_of_run(&run), &run, end, 0)
        .await
        .unwrap();
    assert_eq!(written.last, 0, "leftovers replace nothing");
    cluster.restart_process("supervisor-1");
    cluster.wait_for_log("supervisor-1", "removing late messages of an archived run", TIMEOUT).await;
    wait_for_value(TIMEOUT, "an empty lane", async || {
        LaneScan::new(&bus, bus.lane_of_run(&run)).next_records().await.ok()?.is_empty().then_some(())
    })
    .await;
    submit_and_complete_runs(&bus, &["another".to_owned()]).await;
    let done = cluster.read_ledger();
    assert_eq!(done, ledger, "no step is repeated");
    assert_eq!(History::read_from_log(&bus, &run).await.unwrap().task_outcomes(), history.task_outcomes());
    cluster.stop_all();
}

/// A server that has lost its newest bytes holds the end of an archived run again, and an older version of its summary.
#[tokio::test(flavor = "multi_thread")]
async fn archived_run_survives_an_older_summary_and_a_rest_in_its_lane() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(
        ClusterSetup { linger: Duration::from_millis(50), ..ClusterSetup::default() },
        1,
    );
    let (bus, run) = (cluster.connect_bus().await, run_id("rest"));
    submit_run(&bus, &run, &fan_out_submission(10, &json!({"steps": 2}))).await;
    cluster.wait_for_log("supervisor-1", "run archived", TIMEOUT).await;
    let history = History::read_from_log(&bus, &run).await.unwrap();
    cluster.kill_process("supervisor-1");
    let context = async_nats::jetstream::new(bus.client().clone());
    for record in &history.records()[history.records().len() / 2..] {
        let (subject, payload) = (record.subject.clone(), record.payload.clone());
        let sent = context.publish_with_headers(subject, build_publish_headers(), payload).await.unwrap();
        sent.await.unwrap();
    }
    for damage in [None, Some(SUBMISSION_IS_MISSING.to_owned())] {
        let summary = registry::read_summary(&bus, &run).await.unwrap().unwrap();
        let older = RunSummary { archived: false, end: None, log_damage: damage, ..summary };
        registry::write_summary(&bus, &older).await.unwrap();
        let readable = History::read_from_log(&bus, &run).await.unwrap();
        assert_eq!(readable.task_outcomes(), history.task_outcomes());
        cluster.restart_process("supervisor-1");
        let summary = wait_for_archive(&bus, &run, TIMEOUT).await;
        assert_eq!((summary.end, summary.log_damage), (Some(EndReason::Completed), None));
        wait_for_value(TIMEOUT, "an empty lane", async || {
            LaneScan::new(&bus, bus.lane_of_run(&run)).next_records().await.ok()?.is_empty().then_some(())
        })
        .await;
        cluster.kill_process("supervisor-1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resubmitted_run_is_rejected() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(
        ClusterSetup { linger: Duration::from_millis(200), ..ClusterSetup::default() },
        1,
    );
    let (bus, run) = (cluster.connect_bus().await, run_id("again"));
    let submission = fan_out_submission(3, &json!({ "delay_ms": 100 }));
    submit_run(&bus, &run, &submission).await;
    let second = append_message(
        &bus,
        bus.lane_of_run(&run),
        &run,
        &Topic::Submitted,
        &fan_out_submission(7, &json!({})),
        0,
    )
    .await;
    assert!(matches!(second, Err(AppendError::Fenced { .. })), "{second:?}");

    wait_for_run_end(&bus, &run, TIMEOUT).await;
    let summary = wait_for_archive(&bus, &run, TIMEOUT).await;
    cluster.wait_for_log("supervisor-1", "archived", TIMEOUT).await;
    // Its subject is empty now, so the server accepts it; the supervisor does not.
    append_message(
        &bus,
        bus.lane_of_run(&run),
        &run,
        &Topic::Submitted,
        &fan_out_submission(7, &json!({})),
        0,
    )
    .await
    .unwrap();
    cluster.wait_for_log("supervisor-1", "removing late messages of an archived run", TIMEOUT).await;
    assert_eq!(registry::read_summary(&bus, &run).await.unwrap(), Some(summary));
    assert_eq!(read_plan(&bus, &run).await.tasks().len(), 3);
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn task_without_a_worker_waits_until_one_registers() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    let (bus, run) = (cluster.connect_bus().await, run_id("healed"));
    submit_run(&bus, &run, &fixed_submission(vec![echo_task("a", &json!({}))])).await;
    wait_for_task_state(&bus, &run, "a", TaskState::Errored).await;
    cluster.start_process(ProcessRole::Worker, "worker-1", &["--capability", "echo"]);
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    assert_eq!(end_reason(history.folded_plan()), Some(EndReason::Completed));
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_the_three_timeouts_ends_an_attempt() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup { slots: 2, ..ClusterSetup::default() }, 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("clocks"));
    let half = Duration::from_millis(500);
    let slow = |name: &str, limits: TaskLimits| {
        let mut task = echo_task(name, &json!({ "delay_ms": 20_000 }));
        task.limits = TaskLimits { max_attempts: 1, ..limits };
        task
    };
    let mut waits = echo_task("waits", &json!({}));
    waits.limits = TaskLimits { max_attempts: 1, queue_wait: half, ..TaskLimits::default() };
    // Two tasks take both slots, so the third one waits.
    submit_run(
        &bus,
        &run,
        &fixed_submission(vec![
            slow("runs", TaskLimits { run_time: Duration::from_secs(3), ..TaskLimits::default() }),
            slow("silent", TaskLimits { silence: Duration::from_secs(3), ..TaskLimits::default() }),
        ]),
    )
    .await;
    wait_for_task_state(&bus, &run, "silent", TaskState::Running).await;
    wait_for_task_state(&bus, &run, "runs", TaskState::Running).await;
    let second = millrace_tests::plans::run_id("waiting");
    submit_run(&bus, &second, &fixed_submission(vec![waits])).await;
    let (first, second) =
        (wait_for_run_history(&bus, &run, TIMEOUT).await, wait_for_run_history(&bus, &second, TIMEOUT).await);
    for (history, task, clock) in [
        (&first, "runs", AttemptClock::RunTime),
        (&first, "silent", AttemptClock::Silence),
        (&second, "waits", AttemptClock::QueueWait),
    ] {
        let task = history.folded_plan().task(&task_id(task)).unwrap();
        assert_eq!(task.state(), TaskState::Failed);
        assert_eq!(task.attempts.last().unwrap().end, Some(AttemptEnd::TimedOut(clock)), "{}", task.spec.id);
        history.assert_consistent();
    }
    cluster.wait_for_log("worker-1", "stopping work on request", TIMEOUT).await;
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn fail_fast_run_ends_at_the_first_failure() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("fails-fast"));
    let mut fails = echo_task("fails", &json!({"fail_rate": 1.0, "delay_ms": 200}));
    fails.limits.max_attempts = 1;
    let slow = echo_task("slow", &json!({"delay_ms": 600_000}));
    let mut submission = fixed_submission(vec![fails, slow]);
    submission.fail_fast = true;
    submit_run(&bus, &run, &submission).await;
    // The run does not wait for the slow task, which takes longer than this.
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_eq!(end_reason(history.folded_plan()), Some(EndReason::Failed));
    let state = |task: &str| history.folded_plan().task(&task_id(task)).unwrap().state();
    assert_eq!((state("fails"), state("slow")), (TaskState::Failed, TaskState::Cancelled));
    history.assert_consistent();
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn work_finished_without_a_lane_owner_frees_its_slots() {
    let _shared = share_machine();
    let mut cluster = TestCluster::with_server_only(ClusterSetup::default());
    cluster.start_process(ProcessRole::Supervisor, "supervisor-1", &[]);
    let bus = cluster.connect_bus().await;
    let run = run_id("left");
    submit_run(&bus, &run, &fan_out_submission(400, &json!({}))).await;
    // A supervisor that knows no worker yet dispatches many more orders than one that knows the number of slots.
    let offered = async || count_queued_orders(&bus).await.filter(|orders| *orders > 100);
    wait_for_value(TIMEOUT, "orders for future workers", offered).await;
    // Only supervisors create the queue, after the first orders.
    wait_for_value(TIMEOUT, "the queue of these orders", async || find_echo_queue(&bus).await).await;
    cluster.kill_process("supervisor-1");
    cluster.start_process(ProcessRole::Worker, "worker-1", &["--capability", "echo"]);
    let ledger_now = async || count_queued_orders(&bus).await.filter(|orders| *orders == 0);
    wait_for_value(TIMEOUT, "an empty queue", ledger_now).await;
    cluster.restart_process("supervisor-1");
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    assert_eq!(end_reason(history.folded_plan()), Some(EndReason::Completed));
    cluster.stop_all();
}

/// `Some` if the queue of `echo` exists.
async fn find_echo_queue(bus: &Bus) -> Option<()> {
    let work = async_nats::jetstream::new(bus.client().clone()).get_stream(WORK).await.ok()?;
    work.consumer_info("echo").await.ok().map(|_| ())
}

/// The number of orders that are pending or in flight.
async fn count_queued_orders(bus: &Bus) -> Option<u64> {
    let work = async_nats::jetstream::new(bus.client().clone()).get_stream(WORK).await.ok()?;
    Some(work.cached_info().state.messages)
}

/// The plan of a run, folded from the only lane.
async fn fold_plan_from_lane(bus: &Bus, run: &RunId) -> Option<Plan> {
    let mut runs = millrace_supervisor::fold_lane(bus, Lane(0)).await.ok()?.runs;
    Some(runs.remove(run)?.plan)
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_summary_write_is_retried() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("spent"));
    let budget = Budget { wall_time: Some(Duration::from_secs(2)), ..Budget::default() };
    let mut behind = echo_task("behind", &json!({}));
    behind.depends_on = vec![task_id("first")];
    let row = vec![echo_task("first", &json!({"delay_ms": 6_000})), behind];
    submit_run(&bus, &run, &Submission { budget, ..fixed_submission(row) }).await;
    let summary = async || registry::read_summary(&bus, &run).await.ok().flatten();
    wait_for_value(TIMEOUT, "a running run", async || {
        summary().await.filter(|summary| summary.counts[TaskState::Running as usize] == 1)
    })
    .await;

    let context = async_nats::jetstream::new(bus.client().clone());
    context.delete_key_value(RUNS).await.unwrap();
    wait_for_value(TIMEOUT, "its end", async || end_reason(&fold_plan_from_lane(&bus, &run).await?)).await;
    Bus::connect_and_ensure_cluster(&cluster.connection_settings(), "test", &ClusterOptions::default())
        .await
        .unwrap();
    let summarized = wait_for_value(TIMEOUT, "a summary", summary).await;
    assert_eq!(
        summarized.end,
        Some(EndReason::BudgetExhausted),
        "nothing more is decided on it: that is its last word"
    );
    cluster.stop_all();
}

/// The number of readers of the only lane.
async fn count_lane_readers(bus: &Bus) -> Option<usize> {
    let context = async_nats::jetstream::new(bus.client().clone());
    Some(context.get_stream(lane_stream(Lane(0))).await.ok()?.cached_info().state.consumer_count)
}

#[tokio::test(flavor = "multi_thread")]
async fn suspended_owner_leaves_no_lane_reader_behind() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let bus = cluster.connect_bus().await;
    assert_eq!(cluster.wait_for_stable_owner(&bus).await, "supervisor-1");
    assert_eq!(count_lane_readers(&bus).await, Some(1));
    cluster.send_signal("supervisor-1", Signal::STOP);
    wait_for_value(TIMEOUT, "an expired lease", async || {
        cluster.lane_owners(&bus).await.is_empty().then_some(())
    })
    .await;
    cluster.send_signal("supervisor-1", Signal::CONT);
    cluster.wait_for_log("supervisor-1", "lease not renewed in time", TIMEOUT).await;
    assert_eq!(cluster.wait_for_stable_owner(&bus).await, "supervisor-1");
    // The server removes an unused reader after 30 seconds.
    wait_for_value(TIMEOUT, "one reader", async || {
        count_lane_readers(&bus).await.filter(|readers| *readers == 1)
    })
    .await;
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn owner_keeps_its_lease_while_it_decides_on_a_very_large_plan() {
    let _shared = share_machine();
    let mut cluster =
        TestCluster::start_with_workers(ClusterSetup { slots: 1, ..ClusterSetup::default() }, 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("large"));
    assert_eq!(cluster.wait_for_stable_owner(&bus).await, "supervisor-1");
    submit_run(&bus, &run, &fan_out_submission(100_000, &json!({"delay_ms": 600_000}))).await;
    let is_started = async || {
        let summary = registry::read_summary(&bus, &run).await.ok()??;
        (summary.counts[TaskState::Running as usize] == 1).then_some(())
    };
    wait_for_value(TIMEOUT, "a running task", is_started).await;
    // The next owner folds the plan.
    cluster.kill_process("supervisor-1");
    cluster.restart_process("supervisor-1");
    cluster.wait_for_log("supervisor-1", "lane taken over lane=0 runs=1", TIMEOUT).await;
    assert_eq!(cluster.wait_for_stable_owner(&bus).await, "supervisor-1");
    let log = cluster.read_log("supervisor-1");
    assert!(!log.contains("lease not renewed") && !log.contains("lease lost"), "{log}");
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_drops_a_cancelled_run_within_a_second() {
    let _alone = lock_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup { slots: 1, ..ClusterSetup::default() }, 1);
    let (bus, run, next) = (cluster.connect_bus().await, run_id("cancelled"), run_id("next"));
    submit_run(&bus, &run, &fan_out_submission(3, &json!({"delay_ms": 60_000}))).await;
    wait_for_task_state(&bus, &run, "t0", TaskState::Running).await;
    let cancelled =
        cluster.millrace_command().args(["cancel", "cancelled", "--reason", "enough"]).spawn().unwrap();
    let took = cluster.wait_for_log("worker-1", "stopping work on request", TIMEOUT).await;
    println!("a worker stopped a cancelled run {} ms after the command was started", took.as_millis());
    assert!(took < Duration::from_secs(1), "it took {took:?}");
    assert!(cancelled.wait_with_output().unwrap().status.success());
    // Its slot is free, and no order of the old run blocks the new one.
    submit_run(&bus, &next, &fan_out_submission(3, &json!({}))).await;
    assert_eq!(
        end_reason(wait_for_run_history(&bus, &next, TIMEOUT).await.folded_plan()),
        Some(EndReason::Completed)
    );
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_eq!(end_reason(history.folded_plan()), Some(EndReason::Cancelled));
    history.assert_consistent();
    let again = cluster.millrace_command().args(["cancel", "cancelled"]).output().unwrap();
    assert_eq!(again.status.code(), Some(2), "there is nothing left to cancel");
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_buckets_are_created_again() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("through"));
    cluster.wait_for_heartbeats(&bus, Kind::Worker, 1).await;
    submit_run(&bus, &run, &fan_out_submission(100, &json!({"delay_ms": 200}))).await;
    wait_for_value(TIMEOUT, "progress", async || {
        let summary = registry::read_summary(&bus, &run).await.ok()??;
        (summary.completed_and_total_tasks().1 >= 100).then_some(())
    })
    .await;
    let context = async_nats::jetstream::new(bus.client().clone());
    for bucket in [LEASES, MEMBERS, HEARTBEATS] {
        context.delete_stream(bucket_stream(bucket)).await.unwrap();
    }
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    // No supervisor needs these for its own work, so each is deleted alone, while all else is well.
    for bucket in [RUNS, CAPABILITIES, LIMITS] {
        context.delete_stream(bucket_stream(bucket)).await.unwrap();
        wait_for_value(TIMEOUT, bucket, async || {
            context.get_stream(bucket_stream(bucket)).await.ok().map(drop)
        })
        .await;
    }
    wait_for_value(TIMEOUT, "the capabilities to be announced again", async || {
        let names = registry::read_capability_names(&bus).await.ok()?;
        (!names.is_empty()).then_some(())
    })
    .await;
    submit_and_complete_runs(&bus, &["afterwards".to_owned()]).await;
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn server_killed_three_times_under_load_loses_nothing() {
    let _shared = share_machine();
    let mut cluster =
        TestCluster::start_with_workers(ClusterSetup { slots: 32, ..ClusterSetup::default() }, 2);
    let (bus, run) = (cluster.connect_bus().await, run_id("loaded"));
    cluster.wait_for_heartbeats(&bus, Kind::Worker, 2).await;
    submit_run(&bus, &run, &fan_out_submission(2_000, &json!({"delay_ms": 100, "steps": 1}))).await;
    for part in 1..=3 {
        wait_for_value(TIMEOUT, "progress", async || {
            let summary = registry::read_summary(&bus, &run).await.ok()??;
            (summary.completed_and_total_tasks().1 >= part * 300).then_some(())
        })
        .await;
        cluster.server.restart();
    }
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    assert_eq!(history.find_ledger_violations(&cluster.read_ledger()), Vec::<String>::new());
    assert_eq!(history.folded_plan().task_count_in_state(TaskState::Completed), 2_000);
    let attempts: usize = history.task_outcomes().values().map(|fate| fate.attempts.len()).sum();
    assert_eq!(attempts, 2_000, "no attempt was lost");
    cluster.stop_all();
}
