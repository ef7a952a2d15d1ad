//! Ended and archived runs that a retry of a task, or more tasks, reopen: they end again with a new deliverable, and all of their log is
//! in the archive.

use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use millrace_client::{MessageDecision, Patience, append_and_await_decision};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{
    CommandAction, Edit, EndReason, Event, Plan, RunCommand, RunEvent, Submission,
};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::subject::Topic;
use millrace_runtime::log::lane::LaneScan;
use millrace_runtime::store::archive;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, log};
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{echo_task, fixed_submission, run_id, submit_run, task_id};
use millrace_tests::wait_for_value;
use rustix::process::Signal;
use serde_json::json;
use tokio_util::sync::CancellationToken;

const TIMEOUT: Duration = Duration::from_secs(30);

fn short_linger() -> ClusterSetup {
    ClusterSetup { linger: Duration::from_millis(50), ..ClusterSetup::default() }
}

/// A chain of two tasks; the last one is final.
fn chain() -> Submission {
    let first = echo_task("draft", &json!({"steps": 1}));
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
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

async fn run_millrace(cluster: &TestCluster, arguments: &[&str]) -> (bool, String) {
    let (mut command, arguments) = (cluster.millrace_command(), arguments.join(" "));
    command.args(arguments.split(' '));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
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
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(short_linger(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("again"));
    submit_run(&bus, &run, &chain()).await;
    let (before, first) = wait_for_archive(&bus, &run, 1).await;

    let (is_ok, text) = run_millrace(&cluster, &["retry", "again", "draft", "--feedback", "cite"]).await;
    assert!(is_ok, "{text}");
    let (history, second) = wait_for_archive(&bus, &run, 2).await;
    history.assert_consistent();
    let plan = history.folded_plan();
    assert_eq!(end_of(plan), (EndReason::Completed, "report".into()));
    assert_eq!((attempts_of(plan, "draft"), attempts_of(plan, "report")), (2, 2));
    assert_eq!(count_reopenings(&history), 1);
    let sequences =
        |history: &History| -> Vec<u64> { history.records().iter().map(|record| record.sequence).collect() };
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
    assert_eq!(
        (attempts_of(plan, "draft"), attempts_of(plan, "law"), attempts_of(plan, "report")),
        (2, 1, 3)
    );
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
        &["show", "again", "report"],
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
    assert!(LaneScan::new(&bus, bus.lane_of_run(&run)).next_records().await.unwrap().is_empty());
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_commands_leave_an_archived_run_as_it_is() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(short_linger(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("ended"));
    submit_run(&bus, &run, &chain()).await;
    wait_for_archive(&bus, &run, 1).await;
    let empty = run_id("no-plan");
    submit_run(&bus, &empty, &Submission { objective: String::new(), ..chain() }).await;
    wait_for_archive(&bus, &empty, 1).await;

    for (arguments, reason) in [
        (["resume", "ended", "--budget", "tokens=5000"].as_slice(), "completed"),
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
    let edit = Edit::Retry { task: task_id("nobody"), feedback: None, changes: None };
    let command = RunCommand { id: id.into(), by: "test".into(), control: CommandAction::Edit(edit) };
    let interrupt = CancellationToken::new();
    let patience = Patience { interrupt: &interrupt, on_quiet: &|| {} };
    let sent = append_and_await_decision(&bus, &run, &Topic::Control, (&command, id), patience);
    let decision = tokio::time::timeout(TIMEOUT, sent).await.unwrap().unwrap();
    let is_refused = |decision: &MessageDecision| matches!(decision, MessageDecision::Refused(refusal) if refusal.to_string().contains("nobody"));
    assert!(is_refused(&decision), "{decision:?}");
    let (history, summary) = wait_for_archive(&bus, &run, 1).await;
    history.assert_consistent();
    assert_eq!((count_reopenings(&history), summary.end), (0, Some(EndReason::Completed)));

    // So does one for a run that does not exist: it is a stray.
    let nobody = run_id("nobody");
    log::publish_message(&bus, bus.lane_of_run(&nobody), &nobody, &Topic::Control, &command, "stray")
        .await
        .unwrap();
    wait_for_value(TIMEOUT, "an empty lane", async || {
        let left = log::read_run(&bus, bus.lane_of_run(&nobody), &nobody, 1).await.ok()?;
        left.is_empty().then_some(())
    })
    .await;
    cluster.stop_all();
}

/// Appends a retry of the first task of a chain.
async fn request_retry(bus: &Bus, run: &RunId, id: &str) {
    let edit = Edit::Retry { task: task_id("draft"), feedback: None, changes: None };
    // A server stores one message of an id.
    let id = format!("{run}-{id}");
    let command = RunCommand { id: id.clone(), by: "test".into(), control: CommandAction::Edit(edit) };
    let lane = bus.lane_of_run(run);
    let sent = async || log::publish_message(bus, lane, run, &Topic::Control, &command, &id).await.ok();
    wait_for_value(TIMEOUT, "the server", sent).await;
}

/// The ends of the tasks, and that of the run.
fn summarise(history: &History) -> String {
    format!("{:?} {:?}", history.task_outcomes(), end_of(history.folded_plan()))
}

/// A supervisor that is killed after any append, from the command to the second archive, changes nothing: the run is reopened once,
/// ends like one without a kill, and no step runs twice.
#[tokio::test(flavor = "multi_thread")]
async fn reopened_run_survives_a_kill_after_any_append() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(short_linger(), 1);
    let bus = cluster.connect_bus().await;
    let run = run_id("undisturbed");
    submit_run(&bus, &run, &chain()).await;
    let (before, _) = wait_for_archive(&bus, &run, 1).await;
    request_retry(&bus, &run, "retry").await;
    let (undisturbed, _) = wait_for_archive(&bus, &run, 2).await;
    let (expected, appends) = (summarise(&undisturbed), undisturbed.records().len() - before.records().len());
    assert!(appends > 6, "{appends}");

    // The last kills come after the last append: during the archiving, the mark and the removal.
    for count in 1..appends + 4 {
        let run = run_id(&format!("kill-{count}"));
        submit_run(&bus, &run, &chain()).await;
        let (before, _) = wait_for_archive(&bus, &run, 1).await;
        request_retry(&bus, &run, "retry").await;
        let wanted = before.records().len() + count.min(appends);
        wait_for_value(TIMEOUT, &format!("{wanted} messages"), async || {
            let history = History::read_from_log(&bus, &run).await.ok()?;
            (history.records().len() >= wanted || count_ends(&history) == 2).then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_millis(25 * count.saturating_sub(appends) as u64)).await;
        cluster.kill_process("supervisor-1");
        cluster.restart_process("supervisor-1");
        let (history, summary) = wait_for_archive(&bus, &run, 2).await;
        history.assert_consistent();
        assert_eq!(summarise(&history), expected, "{run}");
        assert_eq!((count_reopenings(&history), summary.end), (1, Some(EndReason::Completed)), "{run}");
        assert_eq!(history.find_ledger_violations(&cluster.read_ledger()), Vec::<String>::new(), "{run}");
    }
    cluster.wait_for_stable_owner(&bus).await;
    cluster.stop_all();
}

/// Two supervisors, each of which may hold the lane; the owner is suspended while the other one reopens the run, and wakes up as one that
/// has read an older archive.
#[tokio::test(flavor = "multi_thread")]
async fn suspended_owner_does_not_disturb_a_reopened_run() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(short_linger(), 1);
    cluster.start_process(ProcessRole::Supervisor, "supervisor-2", &[]);
    let (bus, run) = (cluster.connect_bus().await, run_id("two-owners"));
    submit_run(&bus, &run, &chain()).await;
    wait_for_archive(&bus, &run, 1).await;
    let owner = cluster.wait_for_stable_owner(&bus).await;
    let owner = ["supervisor-1", "supervisor-2"].into_iter().find(|name| owner.starts_with(name)).unwrap();
    request_retry(&bus, &run, "first").await;
    cluster.send_signal(owner, Signal::STOP);
    let (history, _) = wait_for_archive(&bus, &run, 2).await;
    history.assert_consistent();
    request_retry(&bus, &run, "second").await;
    cluster.send_signal(owner, Signal::CONT);
    let (history, _) = wait_for_archive(&bus, &run, 3).await;
    history.assert_consistent();
    assert_eq!(count_reopenings(&history), 2);
    assert_eq!(attempts_of(history.folded_plan(), "report"), 3);
    assert_eq!(history.find_ledger_violations(&cluster.read_ledger()), Vec::<String>::new());
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn command_while_a_run_is_archived_reopens_it() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(short_linger(), 1);
    let bus = cluster.connect_bus().await;
    for delay in [0_u64, 20, 40, 50, 55, 60, 65, 70, 80, 100, 150] {
        let run = run_id(&format!("closing-{delay}"));
        submit_run(&bus, &run, &chain()).await;
        wait_for_value(TIMEOUT, "the end", async || {
            let history = History::read_from_log(&bus, &run).await.ok()?;
            (count_ends(&history) == 1).then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_millis(delay)).await;
        request_retry(&bus, &run, "retry").await;
        let (history, _) = wait_for_archive(&bus, &run, 2).await;
        history.assert_consistent();
        assert_eq!(count_reopenings(&history), 1, "{run}");
    }
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_run_is_gone_with_both_parts_and_is_not_reopened() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(short_linger(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("gone"));
    let mut submission = chain();
    submission.tasks[0] = Arc::new(echo_task("draft", &json!({"steps": 1, "delay_ms": 1500})));
    submit_run(&bus, &run, &submission).await;
    wait_for_archive(&bus, &run, 1).await;
    request_retry(&bus, &run, "retry").await;
    wait_for_value(TIMEOUT, "a live summary", async || {
        let summary = registry::read_summary(&bus, &run).await.ok()??;
        (!summary.archived && summary.end.is_none() && summary.archived_span.is_some()).then_some(())
    })
    .await;
    let (is_ok, text) = run_millrace(&cluster, &["delete", "gone"]).await;
    assert!(!is_ok && text.contains("gone"), "a live run is refused: {text}");
    wait_for_archive(&bus, &run, 2).await;
    let (is_ok, text) = run_millrace(&cluster, &["delete", "gone"]).await;
    assert!(is_ok, "{text}");
    wait_for_value(TIMEOUT, "nothing of the run", async || {
        let left = archive::read_run_from_log_or_archive(&bus, bus.lane_of_run(&run), &run).await.ok()?;
        let summary = registry::read_summary(&bus, &run).await.ok()?;
        (left.is_empty() && summary.is_none()).then_some(())
    })
    .await;
    let (is_ok, _) = run_millrace(&cluster, &["retry", "gone", "draft"]).await;
    assert!(!is_ok);
    cluster.stop_all();
}

/// The backup is taken while the archive holds the first part of a run, and its lane the rest.
#[tokio::test(flavor = "multi_thread")]
async fn backup_of_a_reopened_run_restores_both_parts() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(short_linger(), 1);
    let (bus, run, other) = (cluster.connect_bus().await, run_id("moved"), run_id("ended"));
    for run in [&run, &other] {
        submit_run(&bus, run, &chain()).await;
    }
    let (before, _) = wait_for_archive(&bus, &run, 1).await;
    let (ended, _) = wait_for_archive(&bus, &other, 1).await;
    // No worker runs the retried task.
    cluster.stop_process("worker-1");
    request_retry(&bus, &run, "retry").await;
    wait_for_value(TIMEOUT, "a live summary", async || {
        let summary = registry::read_summary(&bus, &run).await.ok()??;
        (!summary.archived && summary.archived_span.is_some()).then_some(())
    })
    .await;
    let folder = cluster.test_folder().join("backup");
    let (is_ok, text) = run_millrace(&cluster, &["backup", folder.to_str().unwrap()]).await;
    assert!(is_ok, "{text}");
    let moved = tempfile::tempdir().unwrap();
    let copied = moved.path().join("backup");
    std::fs::rename(&folder, &copied).unwrap();
    cluster.server.kill();
    drop(cluster);

    let mut cluster = TestCluster::with_server_only(short_linger());
    let (is_ok, text) = run_millrace(&cluster, &["restore", copied.to_str().unwrap(), "--json"]).await;
    assert!(is_ok && text.contains("\"missing\":[]") && text.contains("\"live_runs\":[\"moved\"]"), "{text}");
    let bus = cluster.connect_bus().await;
    let restored = History::read_from_log(&bus, &run).await.unwrap();
    assert_eq!((count_ends(&restored), count_reopenings(&restored)), (1, 1));
    assert!(restored.records().len() > before.records().len());
    cluster.start_process(ProcessRole::Supervisor, "supervisor-1", &[]);
    cluster.start_process(ProcessRole::Worker, "worker-1", &["--capability", "echo"]);
    let (history, _) = wait_for_archive(&bus, &run, 2).await;
    history.assert_consistent();
    assert_eq!(end_of(history.folded_plan()), (EndReason::Completed, "report".into()));
    let (again, _) = wait_for_archive(&bus, &other, 1).await;
    assert_eq!(again.task_outcomes(), ended.task_outcomes());
    cluster.stop_all();
}
