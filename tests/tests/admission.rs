//! Caps on the numbers of running and of waiting runs, with supervisors that are killed and suspended meanwhile.

use std::time::Duration;

use jiff::Timestamp;
use millrace_client::read_plan;
use millrace_protocol::admission::{AdmissionBoard, AdmissionCaps};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{CommandAction, Decision, Edit, Event, RunEvent, Submission};
use millrace_protocol::registry::{ProcessRole as Kind, RunSummary};
use millrace_protocol::work::JournalEntry;
use millrace_runtime::Bus;
use millrace_runtime::store::admission::{read_board, read_caps, set_caps};
use millrace_runtime::work::registry;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{apply_command, echo_task, fixed_submission, task_id, wait_for_archive};
use millrace_tests::wait_for_value;
use rustix::process::Signal;
use serde_json::json;
use tokio_util::sync::CancellationToken;

const TIMEOUT: Duration = Duration::from_secs(120);
const LANES: u16 = 4;

fn submission(delay_ms: u64) -> Submission {
    fixed_submission(vec![echo_task("say", &json!({ "delay_ms": delay_ms }))])
}

/// Sets the caps, and waits until the owners of all lanes have reported for them.
async fn set_caps_everywhere(bus: &Bus, running: u32, waiting: Option<u32>) {
    let caps = AdmissionCaps { max_running_runs: Some(running), max_waiting_runs: waiting };
    set_caps(bus, &caps).await.unwrap();
    let revision = read_caps(bus).await.unwrap().revision;
    wait_for_board(bus, "reports of all lanes", |board| {
        board.lanes.len() == usize::from(LANES)
            && board.lanes.values().all(|lane| lane.caps_revision == revision)
    })
    .await;
}

async fn wait_for_board(bus: &Bus, what: &str, is_it: impl Fn(&AdmissionBoard) -> bool) {
    wait_for_value(TIMEOUT, what, async || read_board(bus).await.ok().filter(|board| is_it(board)).map(drop))
        .await;
}

/// `true` for a board with so many running and waiting runs, all of which know their places.
fn has_counts(running: u32, waiting: u32) -> impl Fn(&AdmissionBoard) -> bool {
    move |board| {
        let granted = board.lanes.values().any(|lane| !lane.granted.is_empty());
        !granted && (board.running_count(), board.waiting_count()) == (running, waiting)
    }
}

/// When the log got the decisions about the place of a run.
#[derive(Debug, Default)]
struct PlaceInLog {
    granted: Option<Timestamp>,
    ended: Option<Timestamp>,
    is_refused: bool,
}

async fn place_of(bus: &Bus, run: &RunId) -> PlaceInLog {
    let history = History::read_from_log(bus, run).await.unwrap();
    history.assert_consistent();
    let mut place = PlaceInLog::default();
    for record in history.records() {
        let Ok(decision) = bus.decode_record::<Decision>(record).await else { continue };
        for event in &decision.events {
            if let Event::Run(RunEvent::PlaceGranted) = event {
                assert_eq!(place.granted.replace(record.time), None, "{run}: a second place");
            } else if let Event::Run(RunEvent::PlaceRefused { .. }) = event {
                place.is_refused = true;
            } else if let Event::Run(RunEvent::Ended { .. }) = event {
                place.ended = Some(record.time);
            }
        }
    }
    place
}

/// Follows the board until it is dropped; fails if a run overtakes another one.
async fn check_order(bus: Bus, is_over: CancellationToken) -> usize {
    let mut order: Vec<RunId> = Vec::new();
    while !is_over.is_cancelled() {
        if let Ok(board) = read_board(&bus).await {
            let waiting: Vec<RunId> = board.waiting.into_iter().map(|waiting| waiting.run).collect();
            let known: Vec<RunId> = order.iter().filter(|run| waiting.contains(run)).cloned().collect();
            assert!(waiting.starts_with(&known), "{waiting:?} after {order:?}");
            let new: Vec<RunId> = waiting.into_iter().filter(|run| !order.contains(run)).collect();
            order.extend(new);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    order.len()
}

async fn has_ended(bus: &Bus, run: &RunId) -> Option<()> {
    read_plan(bus, run).await.ok()?.run.end.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_runs_at_once_keep_the_caps_and_their_order_while_supervisors_die_and_sleep() {
    const RUNNING: u32 = 3;
    const WAITING: u32 = 30;
    let _shared = share_machine();
    let setup = ClusterSetup { lanes: LANES, linger: Duration::from_millis(50), ..ClusterSetup::default() };
    let mut cluster = TestCluster::start_with_workers(setup, 1);
    cluster.start_process(ProcessRole::Supervisor, "supervisor-2", &[]);
    let bus = cluster.connect_bus().await;
    cluster.wait_for_heartbeats(&bus, Kind::Supervisor, 2).await;
    set_caps_everywhere(&bus, RUNNING, Some(WAITING)).await;
    let is_over = CancellationToken::new();
    let order = tokio::spawn(check_order(bus.clone(), is_over.clone()));
    let submissions: Vec<Submission> = (0..50).map(|_| submission(400)).collect();
    let submitting = submissions.iter().map(|submission| millrace_client::submit_run(&bus, submission));
    let runs = futures::future::try_join_all(submitting).await.unwrap();
    wait_for_value(TIMEOUT, "a waiting run with its position", async || {
        let all = registry::read_run_summaries(&bus).await.ok()?;
        let text = "a place among the running runs, position";
        let waits = |summary: &RunSummary| summary.waiting_for.as_ref().is_some_and(|it| it.contains(text));
        all.iter().any(waits).then_some(())
    })
    .await;
    let listed = cluster.millrace_command().arg("list").output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("queued"), "{listed:?}");

    for round in 0..2 {
        // One supervisor is killed, and another one is suspended for longer than its lease.
        let (killed, suspended) =
            (format!("supervisor-{}", 1 + round % 2), format!("supervisor-{}", 2 - round % 2));
        cluster.kill_process(&killed);
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.restart_process(&killed);
        cluster.wait_for_heartbeats(&bus, Kind::Supervisor, 2).await;
        let taken = cluster.read_log(&killed).matches("lane taken over").count();
        cluster.send_signal(&suspended, Signal::STOP);
        cluster.wait_for_log_again(&killed, "lane taken over", taken, TIMEOUT).await;
        tokio::time::sleep(Duration::from_millis(700)).await;
        cluster.send_signal(&suspended, Signal::CONT);
    }
    let (mut spans, mut refused) = (Vec::new(), 0);
    for run in &runs {
        wait_for_value(TIMEOUT, "the end of a run", async || has_ended(&bus, run).await).await;
        let place = place_of(&bus, run).await;
        assert_ne!(place.granted.is_some(), place.is_refused, "{run}: {place:?}");
        refused += usize::from(place.is_refused);
        spans.extend(place.granted.map(|granted| (granted, place.ended.unwrap())));
    }
    is_over.cancel();
    let listed = order.await.unwrap();
    println!("{refused} runs were refused, and {listed} waited");
    assert!((1..=50 - (RUNNING + WAITING) as usize).contains(&refused), "{refused} runs were refused");
    assert!(listed >= WAITING as usize - 5, "{listed} runs were on the board");
    for (granted, _) in &spans {
        let running = spans.iter().filter(|(from, until)| from <= granted && granted < until).count();
        assert!(running <= RUNNING as usize, "{running} runs had places at {granted}");
    }
    // Without caps nothing waits, and nothing is decided about places.
    set_caps(&bus, &AdmissionCaps::default()).await.unwrap();
    wait_for_value(TIMEOUT, "a run without a cap", async || {
        let run = millrace_client::submit_run(&bus, &submission(0)).await.ok()?;
        wait_for_value(TIMEOUT, "its end", async || has_ended(&bus, &run).await).await;
        place_of(&bus, &run).await.granted.is_none().then_some(())
    })
    .await;
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn lower_caps_stop_no_run_and_places_are_free_after_all_supervisors_were_killed() {
    let _shared = share_machine();
    let setup = ClusterSetup { lanes: LANES, linger: Duration::from_millis(50), ..ClusterSetup::default() };
    let mut cluster = TestCluster::start_with_workers(setup, 1);
    let bus = cluster.connect_bus().await;
    set_caps_everywhere(&bus, 2, None).await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(millrace_client::submit_run(&bus, &submission(600_000)).await.unwrap());
        let count = u32::try_from(runs.len()).unwrap();
        wait_for_board(&bus, "a run on the board", |board| {
            board.running_count() + board.waiting_count() == count
        })
        .await;
    }
    wait_for_board(&bus, "two running runs", has_counts(2, 1)).await;
    set_caps_everywhere(&bus, 1, None).await;
    wait_for_board(&bus, "running runs that go on", has_counts(2, 1)).await;
    // The end of one leaves as many as allowed. A run that is paused while it waits is not in the queue.
    apply_command(&bus, &runs[0], CommandAction::CancelRun { reason: "enough".into() }, TIMEOUT).await;
    wait_for_board(&bus, "one running run", has_counts(1, 1)).await;
    apply_command(&bus, &runs[2], CommandAction::Pause, TIMEOUT).await;
    wait_for_board(&bus, "an empty queue", has_counts(1, 0)).await;
    let short = millrace_client::submit_run(&bus, &submission(1_500)).await.unwrap();
    wait_for_board(&bus, "the short run in the queue", has_counts(1, 1)).await;
    apply_command(&bus, &runs[2], CommandAction::Resume { budget: None }, TIMEOUT).await;
    wait_for_board(&bus, "a longer queue", has_counts(1, 2)).await;
    assert_eq!(read_board(&bus).await.unwrap().waiting[0].run, short, "a resumed run comes last");
    apply_command(&bus, &runs[1], CommandAction::CancelRun { reason: "enough".into() }, TIMEOUT).await;
    wait_for_value(TIMEOUT, "the claim of the short run", async || {
        read_plan(&bus, &short).await.ok()?.tasks()[0].current_attempt()?.worker.clone()
    })
    .await;
    // It completes while there is no supervisor.
    cluster.kill_process("supervisor-1");
    wait_for_value(TIMEOUT, "the outcome of the short run", async || {
        let history = History::read_from_log(&bus, &short).await.ok()?;
        for record in history.records() {
            if let Ok(JournalEntry::Outcome { .. }) = bus.decode_record::<JournalEntry>(record).await {
                return Some(());
            }
        }
        None
    })
    .await;
    cluster.restart_process("supervisor-1");
    wait_for_value(TIMEOUT, "a place of the last run", async || place_of(&bus, &runs[2]).await.granted).await;
    wait_for_board(&bus, "one running run", has_counts(1, 0)).await;
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn reopened_run_counts_and_waits_for_no_place() {
    let _shared = share_machine();
    let setup = ClusterSetup { lanes: LANES, linger: Duration::from_millis(50), ..ClusterSetup::default() };
    let mut cluster = TestCluster::start_with_workers(setup, 1);
    let bus = cluster.connect_bus().await;
    set_caps_everywhere(&bus, 1, None).await;
    let ended = millrace_client::submit_run(&bus, &submission(0)).await.unwrap();
    wait_for_archive(&bus, &ended, TIMEOUT).await;
    let running = millrace_client::submit_run(&bus, &submission(600_000)).await.unwrap();
    wait_for_board(&bus, "one running run", has_counts(1, 0)).await;
    // Without a worker the reopened run does not end.
    cluster.kill_process("worker-1");
    let retry = Edit::Retry { task: task_id("say"), feedback: None, changes: None };
    apply_command(&bus, &ended, CommandAction::Edit(retry), TIMEOUT).await;
    wait_for_board(&bus, "two running runs", has_counts(2, 0)).await;
    // It counts: the next one waits although the other one has ended.
    let next = millrace_client::submit_run(&bus, &submission(0)).await.unwrap();
    apply_command(&bus, &running, CommandAction::CancelRun { reason: "enough".into() }, TIMEOUT).await;
    wait_for_board(&bus, "the reopened run and a waiting one", has_counts(1, 1)).await;
    cluster.restart_process("worker-1");
    wait_for_value(TIMEOUT, "the end of the next run", async || has_ended(&bus, &next).await).await;
    let history = History::read_from_log(&bus, &ended).await.unwrap();
    let (second_end, granted) = (history.records().last().unwrap().time, place_of(&bus, &next).await.granted);
    assert!(granted.unwrap() >= second_end, "{granted:?} before {second_end}");
    cluster.stop_all();
}
