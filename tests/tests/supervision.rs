//! What supervisors do beside deciding: sharing lanes, archiving, refusing what was there before, waiting for
//! capabilities, watching clocks, cancelling, and getting over a server that dies under load.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::{AttemptEnd, Budget, Clock, EndReason, Limits, Plan, Submission, TaskState};
use millrace_protocol::registry::Role as Kind;
use millrace_protocol::subject::Topic;
use millrace_runtime::log::{AppendError, append, read_lane};
use millrace_runtime::topology::{RUNS, WORK, Wanted, lane_stream};
use millrace_runtime::{Bus, registry};
use millrace_tests::cluster::{Cluster, Role, Setup, alone};
use millrace_tests::eventually;
use millrace_tests::history::History;
use millrace_tests::plans::{appended, echo, ended, fan_out, finished, fixed, forget_marks, id, run, submit};
use rustix::process::Signal;
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(60);

fn end_of(plan: &Plan) -> Option<EndReason> {
    plan.end.as_ref().map(|end| end.reason)
}

async fn plan_of(bus: &Bus, run: &RunId) -> Plan {
    History::read(bus, run).await.unwrap().plan().clone()
}

/// Waits until a task is in a state.
async fn reached(bus: &Bus, run: &RunId, task: &str, state: TaskState) {
    eventually(PATIENCE, &format!("{task} {state}"), async || {
        let plan = History::read(bus, run).await.ok()?.plan().clone();
        (plan.task(&id(task))?.state == state).then_some(())
    })
    .await;
}

/// Runs side by side, which all complete.
async fn all_complete(bus: &Bus, names: &[String]) {
    for name in names {
        submit(bus, &run(name), &fan_out(5, &json!({"delay_ms": 5}))).await;
    }
    for name in names {
        let history = finished(bus, &run(name), PATIENCE).await;
        history.assert_holds();
        assert_eq!(end_of(history.plan()), Some(EndReason::Completed), "{name}");
    }
}

/// Waits until all eight lanes have owners, who are so many.
async fn shared_by(cluster: &Cluster, bus: &Bus, count: usize) {
    eventually(PATIENCE, "lanes that are shared", async || {
        let owners = cluster.owners(bus).await;
        let names: BTreeSet<&String> = owners.values().collect();
        (owners.len() == 8 && names.len() == count).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_supervisors_share_eight_lanes_and_those_that_stay_take_what_another_leaves() {
    let _alone = alone();
    let mut cluster = Cluster::start(Setup { lanes: 8, ..Setup::default() }, 2);
    cluster.add(Role::Supervisor, "supervisor-2", &[]);
    cluster.add(Role::Supervisor, "supervisor-3", &[]);
    let bus = cluster.bus().await;
    shared_by(&cluster, &bus, 3).await;
    let names: Vec<String> = (0..24).map(|n| format!("first-{n}")).collect();
    let lanes: BTreeSet<_> = names.iter().map(|name| bus.lane(&run(name))).collect();
    assert_eq!(lanes.len(), 8, "the runs are in all lanes");
    all_complete(&bus, &names).await;

    cluster.stop("supervisor-2");
    shared_by(&cluster, &bus, 2).await;
    all_complete(&bus, &(0..24).map(|n| format!("second-{n}")).collect::<Vec<_>>()).await;
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_run_leaves_its_lane_empty_and_the_archive_answers_for_it() {
    let _alone = alone();
    let cluster = Cluster::start(Setup { linger: Duration::from_millis(200), ..Setup::default() }, 1);
    let (bus, run) = (cluster.bus().await, run("archived"));
    let mut submission = fan_out(10, &json!({"steps": 1}));
    submission.tasks[9].is_final = true;
    submit(&bus, &run, &submission).await;
    ended(&bus, &run, PATIENCE).await;
    eventually(PATIENCE, "an empty lane", async || {
        let left = read_lane(&bus, bus.lane(&run)).next().await.ok()?;
        left.is_empty().then_some(())
    })
    .await;
    let history = History::read(&bus, &run).await.unwrap();
    history.assert_holds();
    assert_eq!(history.fates().len(), 10);

    let first = history.records().first().unwrap().sequence;
    for arguments in [
        vec!["show", "archived"],
        vec!["show", "latest", "--json"],
        vec!["replay", "archived"],
        vec!["replay", "archived", "--log"],
        vec!["watch", "archived"],
        vec!["list"],
    ] {
        let said = cluster.command().args(&arguments).output().unwrap();
        let text =
            String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "{arguments:?}: {text}");
        assert!(text.contains("t9") || text.contains("archived"), "{arguments:?}: {text}");
    }
    let early =
        cluster.command().args(["replay", "archived", "--json", "--at"]).arg(first.to_string()).output();
    let early: serde_json::Value = serde_json::from_slice(&early.unwrap().stdout).unwrap();
    assert_eq!(early["plan"]["start"], json!(null), "before its first decision nothing has begun: {early}");
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archived_run_of_which_a_part_is_found_in_the_lane_is_neither_done_nor_archived_again() {
    let _alone = alone();
    let mut cluster = Cluster::start(Setup { linger: Duration::from_millis(50), ..Setup::default() }, 1);
    let (bus, run) = (cluster.bus().await, run("in-part"));
    submit(&bus, &run, &fan_out(10, &json!({"steps": 2}))).await;
    cluster.heard("supervisor-1", "archived", PATIENCE).await;
    let (history, ledger) = (History::read(&bus, &run).await.unwrap(), cluster.ledger_text());
    cluster.kill("supervisor-1");

    // As a new owner sees the lane while the old one removes the run from it: the beginning, and then nothing.
    let context = async_nats::jetstream::new(bus.client().clone());
    let half = &history.records()[..history.records().len() / 2];
    for record in half {
        let (subject, payload) = (record.subject.clone(), record.payload.clone());
        let sent = context.publish_with_headers(subject, appended(), payload).await.unwrap();
        sent.await.unwrap();
    }
    let end = history.records().last().unwrap().sequence;
    let written = millrace_runtime::archive::write(&bus, bus.lane(&run), &run, end).await.unwrap();
    assert_eq!(written, 0, "a part replaces nothing");
    cluster.restart("supervisor-1");
    cluster
        .heard("supervisor-1", "late messages of a run that is in the archive are removed", PATIENCE)
        .await;
    eventually(PATIENCE, "an empty lane", async || {
        read_lane(&bus, bus.lane(&run)).next().await.ok()?.is_empty().then_some(())
    })
    .await;
    all_complete(&bus, &["another".to_owned()]).await;
    let done = cluster.ledger_text();
    assert_eq!(done, ledger, "nothing was done again");
    assert_eq!(History::read(&bus, &run).await.unwrap().fates(), history.fates());
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_handed_in_again_is_refused_and_changes_nothing() {
    let _alone = alone();
    let cluster = Cluster::start(Setup { linger: Duration::from_millis(200), ..Setup::default() }, 1);
    let (bus, run) = (cluster.bus().await, run("again"));
    let submission = fan_out(3, &json!({"delay_ms": 100}));
    submit(&bus, &run, &submission).await;
    let second = append(&bus, bus.lane(&run), &run, &Topic::Submitted, &fan_out(7, &json!({})), 0).await;
    assert!(matches!(second, Err(AppendError::Fenced { .. })), "{second:?}");

    ended(&bus, &run, PATIENCE).await;
    let archived = async || registry::summary(&bus, &run).await.unwrap().filter(|summary| summary.archived);
    let summary = eventually(PATIENCE, "the archive", archived).await;
    cluster.heard("supervisor-1", "archived", PATIENCE).await;
    // Its subject is empty now, so that the server takes it; the supervisor does not.
    append(&bus, bus.lane(&run), &run, &Topic::Submitted, &fan_out(7, &json!({})), 0).await.unwrap();
    cluster
        .heard("supervisor-1", "late messages of a run that is in the archive are removed", PATIENCE)
        .await;
    assert_eq!(registry::summary(&bus, &run).await.unwrap(), Some(summary));
    assert_eq!(plan_of(&bus, &run).await.tasks().len(), 3);
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_nobody_can_do_says_so_and_goes_on_when_somebody_comes() {
    let _alone = alone();
    let mut cluster = Cluster::start(Setup::default(), 0);
    let (bus, run) = (cluster.bus().await, run("healed"));
    submit(&bus, &run, &fixed(vec![echo("a", &json!({}))])).await;
    reached(&bus, &run, "a", TaskState::Errored).await;
    cluster.add(Role::Worker, "worker-1", &["--capability", "echo"]);
    let history = finished(&bus, &run, PATIENCE).await;
    history.assert_holds();
    assert_eq!(end_of(history.plan()), Some(EndReason::Completed));
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_the_three_clocks_ends_an_attempt() {
    let _alone = alone();
    let cluster = Cluster::start(Setup { slots: 2, ..Setup::default() }, 1);
    let (bus, run) = (cluster.bus().await, run("clocks"));
    let half = Duration::from_millis(500);
    let slow = |name: &str, limits: Limits| {
        let mut task = echo(name, &json!({"delay_ms": 20_000}));
        task.limits = Limits { max_attempts: 1, ..limits };
        task
    };
    let mut waits = echo("waits", &json!({}));
    waits.limits = Limits { max_attempts: 1, queue_wait: half, ..Limits::default() };
    // Two take both slots, so that the third waits.
    submit(
        &bus,
        &run,
        &fixed(vec![
            slow("runs", Limits { run_time: Duration::from_secs(3), ..Limits::default() }),
            slow("silent", Limits { silence: Duration::from_secs(3), ..Limits::default() }),
        ]),
    )
    .await;
    reached(&bus, &run, "silent", TaskState::Running).await;
    reached(&bus, &run, "runs", TaskState::Running).await;
    let second = millrace_tests::plans::run("waiting");
    submit(&bus, &second, &fixed(vec![waits])).await;
    let (first, second) = (finished(&bus, &run, PATIENCE).await, finished(&bus, &second, PATIENCE).await);
    for (history, task, clock) in [
        (&first, "runs", Clock::RunTime),
        (&first, "silent", Clock::Silence),
        (&second, "waits", Clock::QueueWait),
    ] {
        let task = history.plan().task(&id(task)).unwrap();
        assert_eq!(task.state, TaskState::Failed);
        assert_eq!(task.attempts.last().unwrap().end, Some(AttemptEnd::TimedOut(clock)), "{}", task.spec.id);
        history.assert_holds();
    }
    cluster.heard("worker-1", "stopping work that is not wanted any more", PATIENCE).await;
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_failure_ends_a_run_that_says_so() {
    let _alone = alone();
    let cluster = Cluster::start(Setup::default(), 1);
    let (bus, run) = (cluster.bus().await, run("fails-fast"));
    let mut fails = echo("fails", &json!({"fail_rate": 1.0, "delay_ms": 200}));
    fails.limits.max_attempts = 1;
    let slow = echo("slow", &json!({"delay_ms": 30_000}));
    let mut submission = fixed(vec![fails, slow]);
    submission.fail_fast = true;
    let started = Instant::now();
    submit(&bus, &run, &submission).await;
    let history = finished(&bus, &run, PATIENCE).await;
    assert!(started.elapsed() < Duration::from_secs(10), "nobody waits for the slow one");
    assert_eq!(end_of(history.plan()), Some(EndReason::Failed));
    let state = |task: &str| history.plan().task(&id(task)).unwrap().state;
    assert_eq!((state("fails"), state("slow")), (TaskState::Failed, TaskState::Cancelled));
    history.assert_holds();
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_was_done_while_nobody_owned_the_lane_takes_no_place_of_what_waits() {
    let _alone = alone();
    let mut cluster = Cluster::new(Setup::default());
    cluster.add(Role::Supervisor, "supervisor-1", &[]);
    let bus = cluster.bus().await;
    let run = run("left");
    submit(&bus, &run, &fan_out(400, &json!({}))).await;
    // A supervisor that has heard of no worker yet offers much more than one does that knows how few slots there are.
    let offered = async || orders(&bus).await.filter(|orders| *orders > 100);
    eventually(PATIENCE, "orders for workers to come", offered).await;
    // It is made behind the first orders, and by supervisors alone.
    eventually(PATIENCE, "the queue of these orders", async || queue_of_echo(&bus).await).await;
    cluster.kill("supervisor-1");
    cluster.add(Role::Worker, "worker-1", &["--capability", "echo"]);
    let done = async || orders(&bus).await.filter(|orders| *orders == 0);
    eventually(PATIENCE, "a queue that was worked off", done).await;
    cluster.restart("supervisor-1");
    let history = finished(&bus, &run, PATIENCE).await;
    history.assert_holds();
    assert_eq!(end_of(history.plan()), Some(EndReason::Completed));
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_orders_an_older_supervisor_gave_out_goes_on_at_once() {
    let _alone = alone();
    let mut cluster = Cluster::new(Setup::default());
    cluster.add(Role::Supervisor, "supervisor-1", &[]);
    let bus = cluster.bus().await;
    let run = run("older");
    submit(&bus, &run, &fan_out(20, &json!({}))).await;
    let offered = async || orders(&bus).await.filter(|orders| *orders == 20);
    eventually(PATIENCE, "orders for a worker to come", offered).await;
    cluster.kill("supervisor-1");
    forget_marks(&bus).await;
    cluster.restart("supervisor-1");
    cluster.heard("supervisor-1", "orders without a mark are refused from here on", PATIENCE).await;
    cluster.add(Role::Worker, "worker-1", &["--capability", "echo"]);
    // What is refused is offered again only after half a minute.
    let history = finished(&bus, &run, Duration::from_secs(20)).await;
    history.assert_holds();
    assert_eq!(end_of(history.plan()), Some(EndReason::Completed));
    cluster.end();
}

/// Whether workers find their queue.
async fn queue_of_echo(bus: &Bus) -> Option<()> {
    let work = async_nats::jetstream::new(bus.client().clone()).get_stream(WORK).await.ok()?;
    work.consumer_info("echo").await.ok().map(|_| ())
}

/// How many orders wait or are in hand.
async fn orders(bus: &Bus) -> Option<u64> {
    let work = async_nats::jetstream::new(bus.client().clone()).get_stream(WORK).await.ok()?;
    Some(work.cached_info().state.messages)
}

/// What the only lane holds of a run, as its owner would fold it.
async fn folded(bus: &Bus, run: &RunId) -> Option<Plan> {
    let (mut runs, _) = millrace_supervisor::catch_up(bus, Lane(0)).await.ok()?;
    Some(runs.remove(run)?.plan)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_summary_that_could_not_be_written_is_written_as_soon_as_it_can_be() {
    let _alone = alone();
    let cluster = Cluster::start(Setup::default(), 1);
    let (bus, run) = (cluster.bus().await, run("spent"));
    let budget = Budget { wall_time: Some(Duration::from_secs(2)), ..Budget::default() };
    let mut behind = echo("behind", &json!({}));
    behind.depends_on = vec![id("first")];
    let row = vec![echo("first", &json!({"delay_ms": 6_000})), behind];
    submit(&bus, &run, &Submission { budget, ..fixed(row) }).await;
    let summary = async || registry::summary(&bus, &run).await.ok().flatten();
    eventually(PATIENCE, "a run that is under way", async || {
        summary().await.filter(|summary| summary.counts[TaskState::Running as usize] == 1)
    })
    .await;

    let context = async_nats::jetstream::new(bus.client().clone());
    context.delete_key_value(RUNS).await.unwrap();
    eventually(PATIENCE, "its end", async || end_of(&folded(&bus, &run).await?)).await;
    Bus::connect(&cluster.connection(), "test", &Wanted::default()).await.unwrap();
    let told = eventually(PATIENCE, "a summary", summary).await;
    assert_eq!(
        told.end,
        Some(EndReason::BudgetExhausted),
        "nothing more is decided on it: that is its last word"
    );
    cluster.end();
}

/// How many readers there are of the only lane.
async fn readers(bus: &Bus) -> Option<usize> {
    let context = async_nats::jetstream::new(bus.client().clone());
    Some(context.get_stream(lane_stream(Lane(0))).await.ok()?.cached_info().state.consumer_count)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_slept_over_its_lease_leaves_no_reader_of_the_lane_behind() {
    let _alone = alone();
    let cluster = Cluster::start(Setup::default(), 1);
    let bus = cluster.bus().await;
    assert_eq!(cluster.owner(&bus).await, "supervisor-1");
    assert_eq!(readers(&bus).await, Some(1));
    cluster.signal("supervisor-1", Signal::STOP);
    eventually(PATIENCE, "a lease that runs out", async || {
        cluster.owners(&bus).await.is_empty().then_some(())
    })
    .await;
    cluster.signal("supervisor-1", Signal::CONT);
    cluster.heard("supervisor-1", "the lease is stale; stepping down", PATIENCE).await;
    assert_eq!(cluster.owner(&bus).await, "supervisor-1");
    // The server forgets one that nobody asks any more after half a minute.
    eventually(PATIENCE, "one reader", async || readers(&bus).await.filter(|readers| *readers == 1)).await;
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_is_dropped_by_its_worker_within_a_second() {
    let _alone = alone();
    let cluster = Cluster::start(Setup { slots: 1, ..Setup::default() }, 1);
    let (bus, run, next) = (cluster.bus().await, run("cancelled"), run("next"));
    submit(&bus, &run, &fan_out(3, &json!({"delay_ms": 60_000}))).await;
    reached(&bus, &run, "t0", TaskState::Running).await;
    let cancelled = cluster.command().args(["cancel", "cancelled", "--reason", "enough"]).spawn().unwrap();
    let took = cluster.heard("worker-1", "stopping work that is not wanted any more", PATIENCE).await;
    println!("a worker heard of a cancelled run {} ms after the command was started", took.as_millis());
    assert!(took < Duration::from_secs(1), "it took {took:?}");
    assert!(cancelled.wait_with_output().unwrap().status.success());
    // Its slot is free, and nothing of the old run stands before the new one.
    submit(&bus, &next, &fan_out(3, &json!({}))).await;
    assert_eq!(end_of(finished(&bus, &next, PATIENCE).await.plan()), Some(EndReason::Completed));
    let history = finished(&bus, &run, PATIENCE).await;
    assert_eq!(end_of(history.plan()), Some(EndReason::Cancelled));
    history.assert_holds();
    let again = cluster.command().args(["cancel", "cancelled"]).output().unwrap();
    assert_eq!(again.status.code(), Some(2), "there is nothing left to cancel");
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_three_times_under_load_loses_nothing() {
    let _alone = alone();
    let mut cluster = Cluster::start(Setup { slots: 32, ..Setup::default() }, 2);
    let (bus, run) = (cluster.bus().await, run("loaded"));
    cluster.known(&bus, Kind::Worker, 2).await;
    submit(&bus, &run, &fan_out(2_000, &json!({"delay_ms": 100, "steps": 1}))).await;
    for part in 1..=3 {
        eventually(PATIENCE, "progress", async || {
            let summary = registry::summary(&bus, &run).await.ok()??;
            (summary.progress().1 >= part * 300).then_some(())
        })
        .await;
        cluster.server.restart();
    }
    let history = finished(&bus, &run, PATIENCE).await;
    history.assert_holds();
    assert_eq!(history.broken_by_ledger(&cluster.ledger_text()), Vec::<String>::new());
    assert_eq!(history.plan().count(TaskState::Completed), 2_000);
    let attempts: usize = history.fates().values().map(|fate| fate.attempts.len()).sum();
    assert_eq!(attempts, 2_000, "no attempt was lost");
    cluster.end();
}
