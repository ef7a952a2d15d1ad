//! Commands of users on running runs: their effects, exactly once, and the reasons for refusing late ones.

use std::time::{Duration, Instant};

use millrace_protocol::plan::{
    CommandAction, Edit, EndReason, Plan, PlanningMode, Refusal, Submission, TaskPatch, TaskState,
};
use millrace_tests::plans::{echo_task, fixed_submission, task_id};
use millrace_tests::provider::{StubProvider, StubReply};
use millrace_tests::testbed::{RunHandle, TIMEOUT, TestBed, writer_task};
use millrace_tests::wait_for_value;
use serde_json::json;

use super::planning::planned_submission;
use super::{end_reason, task_state};

/// The time within which the connection to a provider must be closed. The aim is one second; on two busy cores the test
/// allows more.
const SOON: Duration = Duration::from_secs(20);

fn cancel_command(task: &str) -> CommandAction {
    CommandAction::CancelTask { task: task_id(task), reason: "not needed any more".into() }
}

async fn wait_for_running_task(run: &RunHandle<'_>, task: &str) {
    run.wait_for_plan("the task to run", |plan| (task_state(plan, task) == TaskState::Running).then_some(()))
        .await;
}

/// Waits for a request to the provider, publishes a command, and returns the time until the connection was closed.
async fn measure_time_to_disconnect(
    provider: &StubProvider,
    run: &RunHandle<'_>,
    control: CommandAction,
) -> Duration {
    let before = provider.recorded_activity().disconnects.len();
    wait_for_value(TIMEOUT, "a request", async || {
        (provider.recorded_activity().requests.len() > before).then_some(())
    })
    .await;
    let sent_at = Instant::now();
    run.send_command("stop", control).await.unwrap();
    let at = wait_for_value(TIMEOUT, "a closed connection", async || {
        provider.recorded_activity().disconnects.get(before).copied()
    })
    .await;
    at.duration_since(sent_at)
}

pub async fn cancel_closes_the_worker_s_provider_connection(testbed: &TestBed) {
    let cancel_run = CommandAction::CancelRun { reason: "enough".into() };
    for (name, control, reason) in [
        ("cancelled-run", cancel_run, EndReason::Cancelled),
        ("cancelled-task", cancel_command("asks"), EndReason::CompletedPartial),
    ] {
        let provider = StubProvider::start(vec![StubReply::Silence]).await;
        let tasks = vec![writer_task("asks", "ask it"), echo_task("other", &json!({"delay_ms": 500}))];
        let submission = Submission { model: Some(provider.model.clone()), ..fixed_submission(tasks) };
        let run = testbed.submit_run(name, &submission).await;
        run.wait_for_plan("the other's end", |plan| {
            (task_state(plan, "other") == TaskState::Completed).then_some(())
        })
        .await;
        let took = measure_time_to_disconnect(&provider, &run, control).await;
        println!("  {name}: the connection was closed {} ms after the command was given", took.as_millis());
        assert!(took < SOON, "{name}: it took {took:?}");
        let history = run.wait_for_end().await;
        assert_eq!(
            (end_reason(history.folded_plan()), task_state(history.folded_plan(), "asks")),
            (reason, TaskState::Cancelled),
            "{name}"
        );
        assert_eq!(provider.recorded_activity().requests.len(), 1, "{name}: no request is repeated");
    }
}

pub async fn cancel_closes_planner_and_critic_connections(testbed: &TestBed) {
    let provider = StubProvider::start(vec![StubReply::Silence]).await;
    let planner =
        Submission { model: Some(provider.model.clone()), ..Submission::new("plan it", PlanningMode::Llm) };
    let run = testbed.submit_run("cancelled-planner", &planner).await;
    let took =
        measure_time_to_disconnect(&provider, &run, CommandAction::CancelRun { reason: "enough".into() })
            .await;
    println!("  planner: the connection was closed {} ms after the command was given", took.as_millis());
    assert!(took < SOON, "it took {took:?}");
    assert_eq!(end_reason(run.wait_for_end().await.folded_plan()), EndReason::Cancelled);

    let provider =
        StubProvider::start(vec![StubReply::Text("it is written".into()), StubReply::Silence]).await;
    let mut judged = writer_task("judged", "write it");
    judged.review = millrace_protocol::plan::ReviewPolicy::critic(vec!["it is there".into()]);
    let critic = Submission { model: Some(provider.model.clone()), ..fixed_submission(vec![judged]) };
    let run = testbed.submit_run("cancelled-critic", &critic).await;
    wait_for_value(TIMEOUT, "the critic", async || {
        (provider.recorded_activity().requests.len() == 2).then_some(())
    })
    .await;
    let took = measure_time_to_disconnect(&provider, &run, cancel_command("judged")).await;
    println!("  critic: the connection was closed {} ms after the command was given", took.as_millis());
    assert!(took < SOON, "it took {took:?}");
    assert_eq!(end_reason(run.wait_for_end().await.folded_plan()), EndReason::Failed);
}

pub async fn paused_run_dispatches_nothing_until_resumed(testbed: &TestBed) {
    let mut tasks = vec![echo_task("first", &json!({ "delay_ms": 1000 })), echo_task("second", &json!({}))];
    tasks[1].depends_on = vec![task_id("first")];
    let run = testbed.submit_run("paused", &fixed_submission(tasks)).await;
    wait_for_running_task(&run, "first").await;
    run.send_command("pause", CommandAction::Pause).await.unwrap();
    run.wait_for_plan("the first's end", |plan| {
        (task_state(plan, "first") == TaskState::Completed).then_some(())
    })
    .await;
    // Meanwhile other runs make progress.
    let other = testbed
        .submit_run("not-paused", &fixed_submission(vec![echo_task("t", &json!({"delay_ms": 500}))]))
        .await;
    assert_eq!(end_reason(other.wait_for_end().await.folded_plan()), EndReason::Completed);
    let waits = |plan: &Plan| {
        let task = plan.task(&task_id("second")).unwrap();
        (task.state() == TaskState::Ready && task.attempts.is_empty()).then_some(())
    };
    run.wait_for_plan("a ready task without attempts", waits).await;
    let refused = run.send_command("pause-2", CommandAction::Pause).await.unwrap_err();
    assert_eq!(refused.to_string(), "the run is already paused");
    run.send_command("resume", CommandAction::Resume { budget: None }).await.unwrap();
    let history = run.wait_for_end().await;
    assert_eq!(end_reason(history.folded_plan()), EndReason::Completed);
    assert!(history.folded_plan().run.paused_for.as_millis() > 0);
}

pub async fn waiting_task_runs_as_edited(testbed: &TestBed) {
    let rules =
        "rules:\n- when: {task: write it in verse}\n  reply: {text: in verse}\n- reply: {text: in prose}\n";
    let mut tasks = vec![
        echo_task("first", &json!({"delay_ms": 1500})),
        writer_task("second", "write it"),
        echo_task("third", &json!({})),
    ];
    tasks[1].depends_on = vec![task_id("first")];
    tasks[2].depends_on = vec![task_id("first")];
    let submission =
        Submission { model: Some(testbed.write_scripted_model("edited", rules)), ..fixed_submission(tasks) };
    let run = testbed.submit_run("edited", &submission).await;
    wait_for_running_task(&run, "first").await;
    let mut patch = TaskPatch::without_changes(task_id("second"));
    patch.objective = Some("write it in verse".into());
    run.send_command("edit", CommandAction::Edit(Edit::Patch(patch.clone()))).await.unwrap();
    let mut behind = TaskPatch::without_changes(task_id("third"));
    behind.depends_on = Some(vec![task_id("second")]);
    run.send_command("order", CommandAction::Edit(Edit::Patch(behind))).await.unwrap();
    // Invalid edits are refused and change nothing.
    let mut circle = TaskPatch::without_changes(task_id("second"));
    circle.depends_on = Some(vec![task_id("third")]);
    let refused = run.send_command("circle", CommandAction::Edit(Edit::Patch(circle))).await.unwrap_err();
    assert!(refused.to_string().contains("dependency cycle"), "{refused}");
    let mut late = patch.clone();
    late.task = task_id("first");
    let refused = run.send_command("late", CommandAction::Edit(Edit::Patch(late))).await.unwrap_err();
    assert!(refused.to_string().contains("task first is running"), "{refused}");
    let history = run.wait_for_end().await;
    assert_eq!(end_reason(history.folded_plan()), EndReason::Completed);
    assert_eq!(run.read_task_result(&history, "second").await.output, "in verse");
    let third = history.folded_plan().task(&task_id("third")).unwrap();
    assert_eq!(third.spec.depends_on, [task_id("second")]);
}

pub async fn retrying_a_finished_task_redoes_its_dependents(testbed: &TestBed) {
    let rules = "
rules:
- when: {task: build on it, last: a better base}
  reply: {text: built on a better base}
- when: {task: build on it}
  reply: {text: built on a base}
- when: {task: make it better}
  reply: {text: a better base}
- reply: {text: a base}
";
    let mut tasks = vec![
        writer_task("base", "begin"),
        writer_task("tower", "build on it"),
        echo_task("other", &json!({})),
        echo_task("slow", &json!({"delay_ms": 5000})),
    ];
    tasks[1].depends_on = vec![task_id("base")];
    let submission =
        Submission { model: Some(testbed.write_scripted_model("retried", rules)), ..fixed_submission(tasks) };
    let run = testbed.submit_run("retried", &submission).await;
    run.wait_for_plan("the tower", |plan| (task_state(plan, "tower") == TaskState::Completed).then_some(()))
        .await;
    let retry = Edit::Retry { task: task_id("base"), feedback: Some("make it better".into()), changes: None };
    run.send_command("retry", CommandAction::Edit(retry)).await.unwrap();
    let history = run.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!(end_reason(plan), EndReason::Completed);
    assert_eq!(run.read_task_result(&history, "tower").await.output, "built on a better base");
    let attempts = |task: &str| plan.task(&task_id(task)).unwrap().attempts.len();
    assert_eq!(["base", "tower", "other"].map(attempts), [2, 2, 1], "only dependents are redone");
}

pub async fn user_message_reaches_the_planner_s_next_turn(testbed: &TestBed) {
    let rules = "
- when: {answer: plan, task: 'ann: in two words'}
  reply: {answer: {reasoning: I was told, patch: [{task: omega, objective: write two words}]}}
- when: {answer: plan}
  reply: {answer: {reasoning: as it was}}
- when: {task: write two words}
  reply: {text: two words}
- reply: {text: many words}
";
    let mut tasks = vec![echo_task("first", &json!({"delay_ms": 6000})), writer_task("omega", "write it")];
    tasks[1].depends_on = vec![task_id("first")];
    tasks[1].is_final = true;
    let run = testbed
        .submit_run("told", &planned_submission(testbed, "told", PlanningMode::Hybrid, tasks, rules))
        .await;
    wait_for_running_task(&run, "first").await;
    run.send_command("say", CommandAction::Message { text: "in two words".into() }).await.unwrap();
    let history = run.wait_for_end().await;
    assert_eq!(run.read_task_result(&history, "omega").await.output, "two words");
    assert_eq!(history.folded_plan().run.messages, [("ann".to_owned(), "in two words".to_owned())]);
    assert_eq!(history.folded_plan().planning.reasoning, ["I was told"]);
}

pub async fn repeated_command_is_applied_once(testbed: &TestBed) {
    let run = testbed
        .submit_run("repeated", &fixed_submission(vec![echo_task("slow", &json!({ "delay_ms": 3000 }))]))
        .await;
    wait_for_running_task(&run, "slow").await;
    let add = || CommandAction::Edit(Edit::Add(vec![echo_task("more", &json!({}))]));
    run.send_command("add", add()).await.unwrap();
    let refused = run.send_command("add", add()).await.unwrap_err();
    assert_eq!(refused, Refusal::AlreadyApplied("add".into()));
    let refused = run.send_command("add-again", add()).await.unwrap_err();
    assert!(refused.to_string().contains("duplicate task id more"), "{refused}");
    let history = run.wait_for_end().await;
    assert_eq!(
        (end_reason(history.folded_plan()), history.folded_plan().tasks().len()),
        (EndReason::Completed, 2)
    );
}

pub async fn late_command_is_rejected_with_the_reason(testbed: &TestBed) {
    let tasks = vec![echo_task("done", &json!({})), echo_task("slow", &json!({ "delay_ms": 4000 }))];
    let run = testbed.submit_run("late", &fixed_submission(tasks)).await;
    run.wait_for_plan("the first's end", |plan| {
        (task_state(plan, "done") == TaskState::Completed).then_some(())
    })
    .await;
    wait_for_running_task(&run, "slow").await;
    let retry =
        |task: &str| CommandAction::Edit(Edit::Retry { task: task_id(task), feedback: None, changes: None });
    let tell = CommandAction::Message { text: "hello".into() };
    let finish = CommandAction::Edit(Edit::Finish { reason: "I say so".into() });
    for (name, control, expected) in [
        ("1", cancel_command("done"), "task done is completed"),
        ("2", cancel_command("nobody"), "there is no task nobody"),
        ("3", retry("slow"), "task slow is running"),
        ("4", CommandAction::Resume { budget: None }, "the run is not paused"),
        ("5", tell, "this run has no planner"),
        ("6", finish, "only the planner can finish a run"),
        ("7", CommandAction::Edit(Edit::MarkFinal { task: task_id("nobody") }), "there is no task nobody"),
    ] {
        let refused = run.send_command(name, control).await.unwrap_err().to_string();
        assert!(refused.contains(expected), "{name}: {refused}");
    }
    let history = run.wait_for_end().await;
    assert_eq!(end_reason(history.folded_plan()), EndReason::Completed, "refused commands change nothing");
    assert!(history.folded_plan().run.commands.is_empty());
    // For an ended run the command line refuses the command itself.
    let output = testbed.cluster.millrace_command().args(["cancel", "late"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("completed"), "{text}");
}
