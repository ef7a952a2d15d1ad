//! A month of waiting, by a clock that the test moves while the processes are down: only questions with an expiry
//! expire, once for each round; sleeps end once; leases, heartbeats and the archive are unaffected.

use std::path::Path;
use std::time::Duration;

use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::{
    AttemptEvent, EndReason, Event, PlanTime, StartEvent, Submission, TaskSpec, TaskState,
};
use millrace_protocol::question::Answer;
use millrace_protocol::registry::ProcessRole as Role;
use millrace_runtime::Bus;
use millrace_tests::clock::TestClock;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{echo_task, fixed_submission, run_id, submit_run, wait_for_run_history};
use millrace_tests::wait_for_value;
use millrace_tests::waits::{
    TIMEOUT, answer_question, read_open_questions, signal_event, wait_for_task_count,
};
use serde_json::json;

const DAY: Duration = Duration::from_secs(86_400);

/// Agents whose calls wait: for a person, with and without an expiry, and for a time.
const SCRIPT: &str = r#"
rules:
- when: {task: "echo forever"}
  turns: [{calls: [{write_file: {file_path: /forever.txt, content: x}}]}, {text: "{{last}}"}]
- when: {task: "echo again"}
  turns: [{calls: [{write_file: {file_path: /again.txt, content: x}}]}, {text: "{{last}}"}]
- when: {task: "echo rejected"}
  turns: [{calls: [{write_file: {file_path: /rejected.txt, content: x}}]}, {text: "{{last}}"}]
- when: {task: "echo asleep"}
  turns: [{calls: [{sleep_for: {seconds: 1728000}}]}, {text: "{{last}}"}]
"#;

/// Writes the capability files and the script; returns the arguments of a worker that offers them.
fn write_capabilities(folder: &Path) -> Vec<String> {
    let week = 7 * DAY.as_secs();
    let rules = [
        ("forever", json!([{"tool": "write_file"}])),
        ("again", json!([{"tool": "write_file", "expires_s": week, "on_expiry": "ask_again"}])),
        ("rejected", json!([{"tool": "write_file", "expires_s": week, "on_expiry": "reject"}])),
        ("asleep", json!([])),
    ];
    let script = folder.join("model.yaml");
    std::fs::write(&script, SCRIPT).unwrap();
    let mut arguments = vec!["--model".to_owned(), format!("script:{}", script.display())];
    for (name, approve) in rules {
        let path = folder.join(format!("{name}.yaml"));
        let file = json!({
            "name": name, "description": "Waits.", "instructions": "Wait.",
            "tools": ["write_file", "sleep_for"], "approve": approve,
        });
        std::fs::write(&path, file.to_string()).unwrap();
        arguments.extend(["--capability".to_owned(), path.display().to_string()]);
    }
    arguments.extend(["--capability".to_owned(), "echo".to_owned()]);
    arguments
}

fn waiting_submission() -> Submission {
    let agent =
        |name: &str| TaskSpec { capability: Capability::new(name).unwrap(), ..echo_task(name, &json!({})) };
    let later =
        TaskSpec { not_before: Some(PlanTime::AfterStart(20 * DAY)), ..echo_task("later", &json!({})) };
    let event = StartEvent { name: "deployed".into(), expiry: None };
    let deployed = TaskSpec { wait_for_event: Some(Box::new(event)), ..echo_task("deployed", &json!({})) };
    let mut tasks = ["forever", "again", "rejected", "asleep"].map(agent).to_vec();
    tasks.extend([echo_task("signalled", &json!({"await_event": "go"})), later, deployed]);
    fixed_submission(tasks)
}

/// The events of a run about one task that fit.
fn count_events(history: &History, task: &str, fits: fn(&AttemptEvent) -> bool) -> usize {
    let of_task = |event: &&AttemptEvent| event.task().as_str() == task;
    let events = history
        .timed_events()
        .filter_map(|(_, event)| if let Event::Attempt(event) = event { Some(event) } else { None });
    events.filter(of_task).filter(|event| fits(event)).count()
}

fn count_rounds(history: &History, task: &str) -> usize {
    1 + count_events(history, task, |event| matches!(event, AttemptEvent::QuestionRenewed { .. }))
}

/// Waits until so many questions are open and `again` is in its round.
async fn wait_for_round(bus: &Bus, run: &RunId, round: u32, open: usize) {
    wait_for_value(TIMEOUT, &format!("round {round} and {open} open questions"), async || {
        let questions = read_open_questions(bus, run).await?;
        let current = questions.iter().find(|question| question.task() == "again")?;
        (current.id.round == round && questions.len() == open).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn month_of_waiting_expires_only_what_was_asked_to() {
    let _shared = share_machine();
    let clock = match TestClock::new() {
        Ok(clock) => clock,
        Err(why) => return println!("passed over: no clock to move here ({why}); it needs Linux and cc"),
    };
    let setup = ClusterSetup { clock: Some(clock.clone()), ..ClusterSetup::default() };
    let mut cluster = TestCluster::start_with_workers(setup, 0);
    let folder = tempfile::tempdir().unwrap();
    let arguments = write_capabilities(folder.path());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    cluster.start_process(ProcessRole::Worker, "worker-1", &arguments);
    let (bus, run) = (cluster.connect_bus().await, run_id("month"));
    let early = run_id("early");
    submit_run(&bus, &early, &fixed_submission(vec![echo_task("a", &json!({}))])).await;
    wait_for_run_history(&bus, &early, TIMEOUT).await;
    submit_run(&bus, &run, &waiting_submission()).await;
    wait_for_task_count(&bus, &run, TaskState::Waiting, 7).await;
    wait_for_round(&bus, &run, 1, 3).await;

    // The day at which all processes are started again, the round of `again`, the open questions, and the waiting tasks.
    let days = [
        (6, 1, 3, 7),
        (8, 2, 2, 6),
        (14, 2, 2, 6),
        (16, 3, 2, 6),
        (19, 3, 2, 6),
        (21, 3, 2, 4),
        (31, 4, 2, 4),
    ];
    for (day, round, open, waiting) in days {
        let names = ["supervisor-1", "worker-1", "critic-1"];
        names.iter().for_each(|name| cluster.kill_process(name));
        clock.write_offset(day * DAY);
        names.iter().for_each(|name| cluster.restart_process(name));
        wait_for_round(&bus, &run, round, open).await;
        wait_for_task_count(&bus, &run, TaskState::Waiting, waiting).await;
        // Every lane has an owner, and every process is seen.
        let today = run_id(&format!("day-{day}"));
        submit_run(&bus, &today, &fixed_submission(vec![echo_task("a", &json!({}))])).await;
        let history = wait_for_run_history(&bus, &today, TIMEOUT).await;
        assert_eq!(history.folded_plan().run.end.as_ref().unwrap().reason, EndReason::Completed);
        cluster.wait_for_heartbeats(&bus, Role::Worker, 1).await;
    }

    for question in read_open_questions(&bus, &run).await.unwrap() {
        answer_question(&bus, &run, "ann", &question, Answer::Approve).await;
    }
    signal_event(&bus, &run, "go", "").await;
    signal_event(&bus, &run, "deployed", "").await;
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    let plan = history.folded_plan();
    assert_eq!(plan.run.end.as_ref().unwrap().reason, EndReason::Completed);
    assert!(plan.tasks().iter().all(|task| task.attempts.len() == 1), "no attempt was begun again");
    assert_eq!((count_rounds(&history, "forever"), count_rounds(&history, "again")), (1, 4));
    assert_eq!(count_rounds(&history, "rejected"), 1);
    let is_end = |event: &AttemptEvent| matches!(event, AttemptEvent::WaitEnded { .. });
    for task in ["forever", "again", "rejected", "asleep", "signalled", "later", "deployed"] {
        assert_eq!(count_events(&history, task, is_end), 1, "the wait of {task} ended once");
    }
    // The run of the first day is in the archive, and has not changed.
    let shown = cluster.millrace_command().args(["show", "early", "--json"]).output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["task_counts"]["completed"], 1, "{shown:#}");
    cluster.stop_all();
}
