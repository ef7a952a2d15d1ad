//! Ended and archived runs that a retry of a task, or more tasks, reopen: they end again with a new deliverable, and all of their log is
//! in the archive.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{EndReason, Event, Plan, RunEvent, Submission};
use millrace_protocol::registry::RunSummary;
use millrace_runtime::log::scan_lane;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, log};
use millrace_tests::cluster::{ClusterSetup, TestCluster, lock_machine};
use millrace_tests::history::History;
use millrace_tests::plans::{echo_task, fixed_submission, run_id, submit_run, task_id};
use millrace_tests::wait_for_value;
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(120);

fn short_linger() -> ClusterSetup {
    ClusterSetup { linger: Duration::from_millis(50), ..ClusterSetup::default() }
}

/// A chain of two tasks; the last one is final.
fn chain() -> Submission {
    let first = echo_task("draft", &json!({"steps": 1, "text": "a draft"}));
    let mut last = echo_task("report", &json!({"steps": 1}));
    (last.depends_on, last.is_final) = (vec![task_id("draft")], true);
    fixed_submission(vec![first, last])
}

/// Waits until a run is archived with so many ends, and its lane is empty.
async fn wait_for_archive(bus: &Bus, run: &RunId, ends: usize) -> (History, RunSummary) {
    wait_for_value(TIMEOUT, &format!("{run} archived with {ends} ends"), async || {
        let summary = registry::read_summary(bus, run).await.ok()??;
        let left = log::read_run(bus, bus.lane_of_run(run), run, 1).await.ok()?;
        let history = History::read_from_log(bus, run).await.ok()?;
        let is_done = summary.archived && left.is_empty() && count_ends(&history) == ends;
        is_done.then_some((history, summary))
    })
    .await
}

fn count_ends(history: &History) -> usize {
    history.timed_events().filter(|(_, event)| matches!(event, Event::Run(RunEvent::Ended { .. }))).count()
}

fn count_reopenings(history: &History) -> usize {
    history.timed_events().filter(|(_, event)| matches!(event, Event::Run(RunEvent::Reopened))).count()
}

fn end_of(plan: &Plan) -> (EndReason, String) {
    let end = plan.run.end.as_ref().unwrap();
    (end.reason, end.deliverable.as_ref().map(|(task, _)| task.to_string()).unwrap_or_default())
}

fn attempts_of(plan: &Plan, task: &str) -> u32 {
    plan.task(&task_id(task)).unwrap().attempt
}

/// Runs the command; returns its output as text.
fn millrace(cluster: &TestCluster, arguments: &[&str]) -> (bool, String) {
    let output: Output = cluster.millrace_command().args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

async fn run_millrace(cluster: &TestCluster, arguments: &[&str]) -> (bool, String) {
    let (mut command, arguments) = (cluster.millrace_command(), arguments.join(" "));
    command.args(arguments.split(' '));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

/// Writes a plan file with a task that uses the draft.
fn write_plan_file(cluster: &TestCluster) -> PathBuf {
    let file = cluster.test_folder().join("more.yaml");
    let text = "tasks:\n  - id: law\n    capability: echo\n    objective: say it\n    depends_on: [draft]\n    parameters: {steps: 1}\n";
    std::fs::write(&file, text).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn archived_run_is_reopened_by_a_retry_and_again_by_more_tasks() {
    let _alone = lock_machine();
    let cluster = TestCluster::start_with_workers(short_linger(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("again"));
    submit_run(&bus, &run, &chain()).await;
    let (before, first) = wait_for_archive(&bus, &run, 1).await;

    let (is_ok, text) =
        run_millrace(&cluster, &["retry", "again", "draft", "--feedback", "cite"]).await;
    assert!(is_ok, "{text}");
    let (history, second) = wait_for_archive(&bus, &run, 2).await;
    history.assert_consistent();
    let plan = history.folded_plan();
    assert_eq!(end_of(plan), (EndReason::Completed, "report".into()));
    assert_eq!((attempts_of(plan, "draft"), attempts_of(plan, "report")), (2, 2));
    assert_eq!(count_reopenings(&history), 1);
    let sequences = |history: &History| -> Vec<u64> {
        history.records().iter().map(|record| record.sequence).collect()
    };
    assert!(sequences(&history).starts_with(&sequences(&before)), "the log continues");
    assert_eq!(first.archived_span.unwrap().0, second.archived_span.unwrap().0);
    assert!(second.archived_span.unwrap().1 > first.archived_span.unwrap().1);

    let file = write_plan_file(&cluster);
    let (is_ok, text) = run_millrace(&cluster, &["add", "again", "--plan", file.to_str().unwrap()]).await;
    assert!(is_ok, "{text}");
    let (history, _) = wait_for_archive(&bus, &run, 3).await;
    history.assert_consistent();
    let plan = history.folded_plan();
    assert_eq!(end_of(plan), (EndReason::Completed, "report".into()));
    assert_eq!((attempts_of(plan, "draft"), attempts_of(plan, "law"), attempts_of(plan, "report")), (2, 1, 3));
    assert_eq!(
        plan.task(&task_id("report")).unwrap().spec.depends_on,
        [task_id("draft"), task_id("law")],
        "the final task uses the new one"
    );
    assert_eq!(history.find_ledger_violations(&cluster.read_ledger()), Vec::<String>::new());
    assert_eq!(count_reopenings(&history), 2);

    for arguments in [
        ["show", "again"].as_slice(),
        &["show", "again", "--json"],
        &["show", "again", "--task", "report"],
        &["replay", "again"],
        &["replay", "again", "--log"],
        &["watch", "again"],
        &["list"],
    ] {
        let (is_ok, text) = millrace(&cluster, arguments);
        assert!(is_ok && (text.contains("report") || text.contains("again")), "{arguments:?}: {text}");
    }
    let (_, log) = millrace(&cluster, &["replay", "again", "--log"]);
    assert_eq!(log.matches("reopened").count().min(2), 2, "{log}");
    assert!(scan_lane(&bus, bus.lane_of_run(&run)).next_records().await.unwrap().is_empty());
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_commands_leave_an_archived_run_as_it_is() {
    let _alone = lock_machine();
    let cluster = TestCluster::start_with_workers(short_linger(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("ended"));
    submit_run(&bus, &run, &chain()).await;
    wait_for_archive(&bus, &run, 1).await;
    let empty = run_id("no-plan");
    submit_run(&bus, &empty, &Submission { objective: String::new(), ..chain() }).await;
    wait_for_archive(&bus, &empty, 1).await;

    for (arguments, reason) in [
        (["resume", "ended"].as_slice(), "completed"),
        (&["cancel", "ended"], "completed"),
        (&["pause", "ended"], "completed"),
        (&["retry", "ended", "nobody"], "nobody"),
        (&["retry", "no-plan", "draft"], "failed"),
    ] {
        let (is_ok, text) = run_millrace(&cluster, arguments).await;
        assert!(!is_ok && text.contains(reason), "{arguments:?}: {text}");
    }

    // A command that the rules refuse gets its answer in the log, and leaves no trace in the lane.
    let id = "refused";
    let command = millrace_protocol::plan::RunCommand {
        id: id.into(),
        by: "test".into(),
        control: millrace_protocol::plan::CommandAction::Edit(millrace_protocol::plan::Edit::Retry {
            task: task_id("nobody"),
            feedback: None,
        }),
    };
    let interrupt = tokio_util::sync::CancellationToken::new();
    let patience = millrace_client::Patience { interrupt: &interrupt, on_quiet: &|| {} };
    let topic = millrace_protocol::subject::Topic::Control;
    let sent = millrace_client::append_and_await_decision(&bus, &run, &topic, (&command, id), patience);
    let decision = tokio::time::timeout(TIMEOUT, sent).await.unwrap().unwrap();
    assert!(
        matches!(&decision, millrace_client::MessageDecision::Refused(refusal) if refusal.to_string().contains("nobody")),
        "{decision:?}"
    );
    let (history, summary) = wait_for_archive(&bus, &run, 1).await;
    history.assert_consistent();
    assert_eq!((count_reopenings(&history), summary.end), (0, Some(EndReason::Completed)));

    // So does one for a run that does not exist: it is a stray.
    let nobody = run_id("nobody");
    log::publish_message(&bus, bus.lane_of_run(&nobody), &nobody, &topic, &command, "stray").await.unwrap();
    wait_for_value(TIMEOUT, "an empty lane", async || {
        let left = log::read_run(&bus, bus.lane_of_run(&nobody), &nobody, 1).await.ok()?;
        left.is_empty().then_some(())
    })
    .await;
    cluster.stop_all();
}
