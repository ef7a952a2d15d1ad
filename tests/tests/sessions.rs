//! Runs of sessions, which wait for the runs before them, with real processes that are killed meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_client::read_plan;
use millrace_protocol::ids::{RunId, SessionId};
use millrace_protocol::plan::{CommandAction, Edit, Event, RunEvent, Submission};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::subject::Topic;
use millrace_protocol::wire;
use millrace_runtime::Bus;
use millrace_runtime::log::read_topic;
use millrace_runtime::work::registry;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{
    apply_command, echo_task, fixed_submission, run_id, submit_run, task_id, wait_for_archive,
    wait_for_run_end,
};
use millrace_tests::wait_for_value;
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(120);

fn of_session(session: &str, delay_ms: u64, fail_rate: f64) -> Submission {
    let mut task = echo_task("say", &json!({ "delay_ms": delay_ms, "fail_rate": fail_rate, "steps": 2 }));
    task.limits.max_attempts = 1;
    Submission { session: Some(SessionId::new(session).unwrap()), ..fixed_submission(vec![task]) }
}

async fn summary_of(bus: &Bus, run: &RunId) -> Option<RunSummary> {
    registry::read_summary(bus, run).await.unwrap()
}

/// The sequences of a run's submission, turn, first claim and first end.
async fn milestones(bus: &Bus, run: &RunId) -> BTreeMap<&'static str, u64> {
    let all = all_milestones(bus, run).await;
    all.into_iter().map(|(name, sequences)| (name, sequences[0])).collect()
}

/// The sequences of a run's submission, turns, attempts and ends.
async fn all_milestones(bus: &Bus, run: &RunId) -> BTreeMap<&'static str, Vec<u64>> {
    let history = History::read_from_log(bus, run).await.unwrap();
    history.assert_consistent();
    let mut found = BTreeMap::new();
    found.insert("submitted", vec![history.records().first().unwrap().sequence]);
    for record in history.records() {
        let Ok(decision) = bus.decode_record::<millrace_protocol::plan::Decision>(record).await else {
            continue;
        };
        for event in &decision.events {
            let name = if let Event::Run(RunEvent::SessionTurnCame { .. }) = event {
                "turn"
            } else if let Event::Run(RunEvent::Ended { .. }) = event {
                "ended"
            } else if let Event::Attempt(_) = event {
                "attempt"
            } else {
                continue;
            };
            found.entry(name).or_insert_with(Vec::new).push(record.sequence);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_a_session_run_in_their_order_while_supervisors_are_killed() {
    let _shared = share_machine();
    let setup = ClusterSetup { lanes: 4, linger: Duration::from_millis(300), ..ClusterSetup::default() };
    let mut cluster = TestCluster::start_with_workers(setup, 1);
    cluster.start_process(ProcessRole::Supervisor, "supervisor-2", &[]);
    let bus = cluster.connect_bus().await;
    let submissions =
        [of_session("chat", 1_200, 0.0), of_session("chat", 1_200, 1.0), of_session("chat", 1_200, 0.0)];
    let submitting = submissions.iter().map(|submission| millrace_client::submit_run(&bus, submission));
    let runs = futures::future::try_join_all(submitting).await.unwrap();
    // Another session, and a run without one, do not wait.
    let other = millrace_client::submit_run(&bus, &of_session("other", 0, 0.0)).await.unwrap();
    let free = run_id("free");
    submit_run(&bus, &free, &fixed_submission(vec![echo_task("say", &json!({}))])).await;

    let mut by_order = Vec::new();
    for run in &runs {
        let submitted = read_topic(&bus, bus.lane_of_run(run), run, &Topic::Submitted).await.unwrap();
        by_order.push((submitted[0].sequence, run.clone()));
    }
    by_order.sort();
    let ordered: Vec<RunId> = by_order.into_iter().map(|(_, run)| run).collect();
    let waiting = wait_for_value(TIMEOUT, "the place of the last run", async || {
        summary_of(&bus, &ordered[2]).await.filter(|summary| summary.queue_place.is_some())
    })
    .await;
    assert!(
        waiting.waiting_for.as_ref().is_some_and(|text| text.contains("in session chat, position")),
        "{waiting:?}"
    );
    let listed = cluster.millrace_command().args(["list", "--session", "chat"]).output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("queued"), "{listed:?}");

    let mut kills = 0;
    for run in &ordered {
        loop {
            let name = format!("supervisor-{}", 1 + kills % 2);
            cluster.kill_process(&name);
            tokio::time::sleep(Duration::from_millis(400)).await;
            cluster.restart_process(&name);
            kills += 1;
            let has_ended = async || read_plan(&bus, run).await.ok()?.run.end.map(drop);
            if tokio::time::timeout(Duration::from_secs(3), async {
                while has_ended().await.is_none() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            })
            .await
            .is_ok()
            {
                break;
            }
            assert!(kills < 40, "run {run} does not end:\n{}", cluster.read_all_logs());
        }
    }
    for run in [&other, &free] {
        wait_for_run_end(&bus, run, TIMEOUT).await;
    }
    let mut last_end = 0;
    for (position, run) in (1..).zip(&ordered) {
        let found = milestones(&bus, run).await;
        assert!(found["turn"] > last_end, "{run} got its turn before the end of the one before: {found:?}");
        assert!(found["attempt"] > found["turn"], "{run}: {found:?}");
        last_end = found["ended"];
        let plan = read_plan(&bus, run).await.unwrap();
        assert_eq!(plan.run.holds.position, Some(position));
        let after: Vec<&RunId> = plan.run.start.as_ref().unwrap().after.iter().map(|it| &it.run).collect();
        assert_eq!(after, ordered[..position as usize - 1].iter().collect::<Vec<_>>());
    }
    // The last run sees the result of the completed run and the failure of the other one.
    let plan = read_plan(&bus, &ordered[2]).await.unwrap();
    let failed = ordered.iter().zip([0, 1]).find(|(run, _)| **run == runs[1]);
    let start = plan.run.start.unwrap();
    if let Some((failed, _)) = failed {
        let about = start.after.iter().find(|about| about.run == *failed).unwrap();
        assert!(about.summary.starts_with("the run ended as failed"), "{}", about.summary);
    }
    let manifest = bus.blobs().get(&start.documents.unwrap().manifest).await.unwrap();
    let documents: Vec<millrace_protocol::plan::Document> =
        wire::decode_message_pack(&manifest, "documents").unwrap();
    let completed = ordered[..2].iter().find(|run| **run != runs[1]).unwrap();
    let report = format!("earlier/{completed}/report.md");
    assert!(documents.iter().any(|document| document.path == report), "{documents:?}");
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_and_paused_runs_of_a_session_let_the_next_one_run() {
    let _shared = share_machine();
    let setup = ClusterSetup { linger: Duration::from_millis(50), ..ClusterSetup::default() };
    let cluster = TestCluster::start_with_workers(setup, 1);
    let bus = cluster.connect_bus().await;
    let mut runs = Vec::new();
    for delay in [600_000, 0, 0] {
        runs.push(millrace_client::submit_run(&bus, &of_session("chat", delay, 0.0)).await.unwrap());
    }
    let cancel = CommandAction::CancelRun { reason: "not needed".into() };
    apply_command(&bus, &runs[1], cancel, TIMEOUT).await;
    let plan = read_plan(&bus, &runs[2]).await.unwrap();
    assert!(plan.is_held(), "the first run is in progress");
    apply_command(&bus, &runs[0], CommandAction::CancelRun { reason: "too slow".into() }, TIMEOUT).await;
    wait_for_run_end(&bus, &runs[2], TIMEOUT).await;
    let plan = read_plan(&bus, &runs[2]).await.unwrap();
    assert_eq!(plan.run.holds.position, Some(2), "a run that was cancelled before its turn has no number");
    let after = plan.run.start.unwrap().after;
    assert!(after.len() == 1 && after[0].summary.starts_with("the run ended as cancelled"), "{after:?}");
    // A run that comes much later sees those of the archive.
    wait_for_archive(&bus, &runs[2], TIMEOUT).await;
    let late = millrace_client::submit_run(&bus, &of_session("chat", 0, 0.0)).await.unwrap();
    wait_for_run_end(&bus, &late, TIMEOUT).await;
    let start = read_plan(&bus, &late).await.unwrap().run.start.unwrap();
    let after: Vec<RunId> = start.after.into_iter().map(|about| about.run).collect();
    assert_eq!(after, [runs[0].clone(), runs[2].clone()]);
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn reopened_run_of_a_session_runs_at_once_and_the_next_one_waits() {
    let _shared = share_machine();
    let setup = ClusterSetup { linger: Duration::from_millis(50), ..ClusterSetup::default() };
    let cluster = TestCluster::start_with_workers(setup, 1);
    let bus = cluster.connect_bus().await;
    let submit =
        async |delay| millrace_client::submit_run(&bus, &of_session("chat", delay, 0.0)).await.unwrap();
    let first = submit(4_000).await;
    wait_for_archive(&bus, &first, TIMEOUT).await;
    // The second run is in progress, which the reopened one does not wait for.
    let second = submit(600_000).await;
    let is_running = async |run: &RunId| {
        read_plan(&bus, run).await.ok()?.tasks().first()?.current_attempt()?.worker.clone()
    };
    wait_for_value(TIMEOUT, "the second run", async || is_running(&second).await).await;
    let retry = Edit::Retry { task: task_id("say"), feedback: None, changes: None };
    apply_command(&bus, &first, CommandAction::Edit(retry), TIMEOUT).await;
    let third = submit(0).await;
    wait_for_value(TIMEOUT, "the attempt of the reopened run", async || {
        let plan = read_plan(&bus, &first).await.ok()?;
        let attempt = plan.tasks()[0].current_attempt()?;
        attempt.worker.clone().filter(|_| plan.tasks()[0].attempt == 2)
    })
    .await;
    apply_command(&bus, &second, CommandAction::CancelRun { reason: "enough".into() }, TIMEOUT).await;
    wait_for_run_end(&bus, &third, TIMEOUT).await;
    let second_end = *all_milestones(&bus, &first).await["ended"].last().unwrap();
    let turn = milestones(&bus, &third).await["turn"];
    assert!(
        turn > second_end,
        "its turn at {turn} came before the second end of the first run at {second_end}"
    );
    cluster.stop_all();
}
