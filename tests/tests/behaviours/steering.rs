//! Users that steer a run under way: what a command does, once; and why one that comes too late does nothing.

use std::time::{Duration, Instant};

use millrace_protocol::plan::{Control, Edit, EndReason, Mode, Patch, Plan, Refusal, Submission, TaskState};
use millrace_tests::eventually;
use millrace_tests::plans::{echo, fixed, id};
use millrace_tests::provider::{Provider, Reply};
use millrace_tests::stage::{PATIENCE, Run, Stage, write};
use serde_json::json;

use crate::planning::planned;
use crate::{end, state};

/// How soon a provider must have lost its connection. It is a second by intent; two busy cores prove no second.
const SOON: Duration = Duration::from_secs(5);

fn cancel(task: &str) -> Control {
    Control::CancelTask { task: id(task), reason: "not needed any more".into() }
}

async fn running(run: &Run<'_>, task: &str) {
    run.until("it to run", |plan| (state(plan, task) == TaskState::Running).then_some(())).await;
}

/// Waits until the provider has been asked, gives a command, and says how long it took until somebody hung up on it.
async fn hangs_up(provider: &Provider, run: &Run<'_>, control: Control) -> Duration {
    let before = provider.seen().hung_up.len();
    eventually(PATIENCE, "a request", async || (provider.seen().asked.len() > before).then_some(())).await;
    let given = Instant::now();
    run.command("stop", control).await.unwrap();
    let at =
        eventually(PATIENCE, "a closed connection", async || provider.seen().hung_up.get(before).copied())
            .await;
    at.duration_since(given)
}

pub async fn a_cancelled_run_or_task_hangs_up_on_its_provider_within_a_second(stage: &Stage) {
    let cancel_run = Control::CancelRun { reason: "enough".into() };
    for (name, control, reason) in [
        ("cancelled-run", cancel_run, EndReason::Cancelled),
        ("cancelled-task", cancel("asks"), EndReason::CompletedPartial),
    ] {
        let provider = Provider::start(vec![Reply::Silence]).await;
        let tasks = vec![write("asks", "ask it"), echo("other", &json!({"delay_ms": 500}))];
        let submission = Submission { model: Some(provider.model.clone()), ..fixed(tasks) };
        let run = stage.hand_in(name, &submission).await;
        run.until("the other's end", |plan| (state(plan, "other") == TaskState::Completed).then_some(()))
            .await;
        let took = hangs_up(&provider, &run, control).await;
        println!("  {name}: the connection was closed {} ms after the command was given", took.as_millis());
        assert!(took < SOON, "{name}: it took {took:?}");
        let history = run.ended().await;
        assert_eq!(
            (end(history.plan()), state(history.plan(), "asks")),
            (reason, TaskState::Cancelled),
            "{name}"
        );
        assert_eq!(provider.seen().asked.len(), 1, "{name}: nobody asks again");
    }
}

pub async fn a_cancelled_run_hangs_up_on_its_planner_s_and_its_critic_s_provider(stage: &Stage) {
    let provider = Provider::start(vec![Reply::Silence]).await;
    let planner = Submission { model: Some(provider.model.clone()), ..Submission::new("plan it", Mode::Llm) };
    let run = stage.hand_in("cancelled-planner", &planner).await;
    let took = hangs_up(&provider, &run, Control::CancelRun { reason: "enough".into() }).await;
    println!("  planner: the connection was closed {} ms after the command was given", took.as_millis());
    assert!(took < SOON, "it took {took:?}");
    assert_eq!(end(run.ended().await.plan()), EndReason::Cancelled);

    let provider = Provider::start(vec![Reply::Text("it is written".into()), Reply::Silence]).await;
    let mut judged = write("judged", "write it");
    judged.review = millrace_protocol::plan::Review::critic(vec!["it is there".into()]);
    let critic = Submission { model: Some(provider.model.clone()), ..fixed(vec![judged]) };
    let run = stage.hand_in("cancelled-critic", &critic).await;
    eventually(PATIENCE, "the critic", async || (provider.seen().asked.len() == 2).then_some(())).await;
    let took = hangs_up(&provider, &run, cancel("judged")).await;
    println!("  critic: the connection was closed {} ms after the command was given", took.as_millis());
    assert!(took < SOON, "it took {took:?}");
    assert_eq!(end(run.ended().await.plan()), EndReason::Failed);
}

pub async fn a_paused_run_gives_nothing_out_and_goes_on_when_it_is_resumed(stage: &Stage) {
    let mut tasks = vec![echo("first", &json!({"delay_ms": 1000})), echo("second", &json!({}))];
    tasks[1].depends_on = vec![id("first")];
    let run = stage.hand_in("paused", &fixed(tasks)).await;
    running(&run, "first").await;
    run.command("pause", Control::Pause).await.unwrap();
    run.until("the first's end", |plan| (state(plan, "first") == TaskState::Completed).then_some(())).await;
    // Other runs go on meanwhile, and this one does not.
    let other = stage.hand_in("not-paused", &fixed(vec![echo("t", &json!({"delay_ms": 500}))])).await;
    assert_eq!(end(other.ended().await.plan()), EndReason::Completed);
    let waits = |plan: &Plan| {
        let task = plan.task(&id("second")).unwrap();
        (task.state == TaskState::Ready && task.attempts.is_empty()).then_some(())
    };
    run.until("a task that is not begun", waits).await;
    let refused = run.command("pause-2", Control::Pause).await.unwrap_err();
    assert_eq!(refused.to_string(), "the run is paused already");
    run.command("resume", Control::Resume { budget: None }).await.unwrap();
    let history = run.ended().await;
    assert_eq!(end(history.plan()), EndReason::Completed);
    assert!(history.plan().paused_for.as_millis() > 0);
}

pub async fn a_task_that_waits_runs_as_it_was_edited(stage: &Stage) {
    let rules =
        "rules:\n- when: {task: write it in verse}\n  reply: {text: in verse}\n- reply: {text: in prose}\n";
    let mut tasks = vec![
        echo("first", &json!({"delay_ms": 1500})),
        write("second", "write it"),
        echo("third", &json!({})),
    ];
    tasks[1].depends_on = vec![id("first")];
    tasks[2].depends_on = vec![id("first")];
    let submission = Submission { model: Some(stage.model("edited", rules)), ..fixed(tasks) };
    let run = stage.hand_in("edited", &submission).await;
    running(&run, "first").await;
    let mut patch = Patch::of(id("second"));
    patch.objective = Some("write it in verse".into());
    run.command("edit", Control::Edit(Edit::Patch(patch.clone()))).await.unwrap();
    let mut behind = Patch::of(id("third"));
    behind.depends_on = Some(vec![id("second")]);
    run.command("order", Control::Edit(Edit::Patch(behind))).await.unwrap();
    // What can't be is refused, and changes nothing.
    let mut circle = Patch::of(id("second"));
    circle.depends_on = Some(vec![id("third")]);
    let refused = run.command("circle", Control::Edit(Edit::Patch(circle))).await.unwrap_err();
    assert!(refused.to_string().contains("circle"), "{refused}");
    let mut late = patch.clone();
    late.task = id("first");
    let refused = run.command("late", Control::Edit(Edit::Patch(late))).await.unwrap_err();
    assert!(refused.to_string().contains("task first is running"), "{refused}");
    let history = run.ended().await;
    assert_eq!(end(history.plan()), EndReason::Completed);
    assert_eq!(run.result(&history, "second").await.output, "in verse");
    let third = history.plan().task(&id("third")).unwrap();
    assert_eq!(third.spec.depends_on, [id("second")]);
}

pub async fn a_finished_task_that_is_retried_takes_back_what_was_built_on_it(stage: &Stage) {
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
        write("base", "begin"),
        write("house", "build on it"),
        echo("other", &json!({})),
        echo("slow", &json!({"delay_ms": 5000})),
    ];
    tasks[1].depends_on = vec![id("base")];
    let submission = Submission { model: Some(stage.model("retried", rules)), ..fixed(tasks) };
    let run = stage.hand_in("retried", &submission).await;
    run.until("the house", |plan| (state(plan, "house") == TaskState::Completed).then_some(())).await;
    let retry = Edit::Retry { task: id("base"), feedback: Some("make it better".into()) };
    run.command("retry", Control::Edit(retry)).await.unwrap();
    let history = run.ended().await;
    let plan = history.plan();
    assert_eq!(end(plan), EndReason::Completed);
    assert_eq!(run.result(&history, "house").await.output, "built on a better base");
    let attempts = |task: &str| plan.task(&id(task)).unwrap().attempts.len();
    assert_eq!(["base", "house", "other"].map(attempts), [2, 2, 1], "what was not built on it stays");
}

pub async fn what_a_user_says_reaches_the_planner_s_next_turn(stage: &Stage) {
    let rules = "
- when: {answer: plan, task: 'ann: in two words'}
  reply: {answer: {reasoning: I was told, patch: [{task: omega, objective: write two words}]}}
- when: {answer: plan}
  reply: {answer: {reasoning: as it was}}
- when: {task: write two words}
  reply: {text: two words}
- reply: {text: many words}
";
    let mut tasks = vec![echo("first", &json!({"delay_ms": 6000})), write("omega", "write it")];
    tasks[1].depends_on = vec![id("first")];
    tasks[1].is_final = true;
    let run = stage.hand_in("told", &planned(stage, "told", Mode::Hybrid, tasks, rules)).await;
    running(&run, "first").await;
    run.command("say", Control::Message { text: "in two words".into() }).await.unwrap();
    let history = run.ended().await;
    assert_eq!(run.result(&history, "omega").await.output, "two words");
    assert_eq!(history.plan().messages, [("ann".to_owned(), "in two words".to_owned())]);
    assert_eq!(history.plan().reasoning, ["I was told"]);
}

pub async fn a_command_that_is_given_twice_is_carried_out_once(stage: &Stage) {
    let run = stage.hand_in("repeated", &fixed(vec![echo("slow", &json!({"delay_ms": 3000}))])).await;
    running(&run, "slow").await;
    let add = || Control::Edit(Edit::Add(vec![echo("more", &json!({}))]));
    run.command("add", add()).await.unwrap();
    let refused = run.command("add", add()).await.unwrap_err();
    assert_eq!(refused, Refusal::AlreadyApplied("add".into()));
    let refused = run.command("add-again", add()).await.unwrap_err();
    assert!(refused.to_string().contains("task more is there twice"), "{refused}");
    let history = run.ended().await;
    assert_eq!((end(history.plan()), history.plan().tasks().len()), (EndReason::Completed, 2));
}

pub async fn a_command_that_comes_too_late_is_refused_with_the_reason(stage: &Stage) {
    let tasks = vec![echo("done", &json!({})), echo("slow", &json!({"delay_ms": 4000}))];
    let run = stage.hand_in("late", &fixed(tasks)).await;
    run.until("the first's end", |plan| (state(plan, "done") == TaskState::Completed).then_some(())).await;
    running(&run, "slow").await;
    let retry = |task: &str| Control::Edit(Edit::Retry { task: id(task), feedback: None });
    let tell = Control::Message { text: "hello".into() };
    let finish = Control::Edit(Edit::Finish { reason: "I say so".into() });
    for (name, control, told) in [
        ("1", cancel("done"), "task done is completed"),
        ("2", cancel("nobody"), "there is no task nobody"),
        ("3", retry("slow"), "task slow is running"),
        ("4", Control::Resume { budget: None }, "the run is not paused"),
        ("5", tell, "this run has no planner"),
        ("6", finish, "only the planner finishes a run"),
        ("7", Control::Edit(Edit::MarkFinal { task: id("nobody") }), "there is no task nobody"),
    ] {
        let refused = run.command(name, control).await.unwrap_err().to_string();
        assert!(refused.contains(told), "{name}: {refused}");
    }
    let history = run.ended().await;
    assert_eq!(end(history.plan()), EndReason::Completed, "what was refused changed nothing");
    assert!(history.plan().commands.is_empty());
    // Once a run is over, whoever asks is told so by the command itself.
    let said = stage.cluster.command().args(["cancel", "late"]).output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(2), "{text}");
    assert!(text.contains("completed"), "{text}");
}
