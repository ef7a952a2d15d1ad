//! Planned runs with failures, a user's edits and a budget, while processes crash: each ends as it does without
//! crashes, and only those model requests are repeated whose replies were lost with a worker.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millrace_protocol::plan::{
    Budget, CommandAction, DeliverableRule, Edit, EndReason, Plan, PlanningMode, ResourceAmounts, RunCommand,
    Submission, TaskState,
};
use millrace_protocol::subject::Topic;
use millrace_runtime::Bus;
use millrace_runtime::log::publish_message;
use millrace_runtime::work::registry;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::crashes::crash_processes_at_random;
use millrace_tests::history::History;
use millrace_tests::plans::{echo_task, run_id, task_id};
use millrace_tests::testbed::{TIMEOUT, TestBed, verdict_json};
use serde_json::{Value, json};

use super::budgets::{budget_of_ten_replies, many_writers_submission, writer_model_rules};
use super::{cluster_setup, end_reason};

/// The event for which the run waits before its last task, so that it cannot end before the user's commands.
const STEERED: &str = "steered";

/// The rules of a planner that adds six tasks, replaces a failed one, and handles a user's message.
fn planner_rules() -> String {
    let passes = verdict_json("");
    let parts: Vec<Value> = (0..6)
        .map(|n| json!({"id": format!("t{n}"), "objective": format!("write part {n}"), "capability": "writer", "criteria": ["it is there"]}))
        .collect();
    let parts = Value::from(parts);
    format!(
        "rules:
- when: {{answer: verdict}}
  reply: {{answer: {passes}, delay: 0.1}}
- when: {{answer: plan, task: There is no plan}}
  turns:
  - calls: [{{add_tasks: {{tasks: {parts}}}}}]
    delay: 0.2
  - calls:
    - add_task: {{id: road, objective: go straight, capability: writer, depends_on: [t0]}}
    - add_task: {{id: pause, objective: wait for the user, capability: echo, parameters: {{await_event: {STEERED}}}}}
    - add_task: {{id: omega, objective: put it together, capability: writer, depends_on: [t1, t2, t3, t4, t5, road, pause], final: true}}
    delay: 0.2
  - answer: {{reasoning: parts and a whole}}
- when: {{answer: plan, task: road is lost}}
  reply:
    answer:
      reasoning: around it
      tasks: [{{id: detour, objective: go around, capability: writer, depends_on: [t0]}}]
      patch: [{{task: omega, depends_on: [t1, t2, t3, t4, t5, detour, pause]}}]
    delay: 0.3
- when: {{answer: plan}}
  reply: {{answer: {{reasoning: as it is}}, delay: 0.1}}
- when: {{task: go straight}}
  reply: {{error: bad_request, message: there is no way, delay: 0.1}}
- when: {{task: put it together}}
  reply: {{text: all of it, delay: 0.2}}
- turns:
  - calls: [now]
    delay: 0.15
  - {{text: a part, delay: 0.15}}
"
    )
}

fn planned_submission(testbed: &TestBed) -> Submission {
    let budget = Budget {
        amounts: ResourceAmounts { model_calls: Some(400), ..ResourceAmounts::default() },
        attempt: ResourceAmounts { model_calls: Some(12), ..ResourceAmounts::default() },
        ..Budget::default()
    };
    let model = Some(testbed.write_scripted_model("deaths", &planner_rules()));
    Submission { model, budget, ..Submission::new("find out what there is", PlanningMode::Llm) }
}

/// The outcome that crashes must not change: the ends of the run and of each task, and the deliverable.
type RunEnding = (EndReason, Option<String>, BTreeMap<String, TaskState>);

fn run_ending(plan: &Plan) -> RunEnding {
    let tasks = plan.tasks().iter().map(|task| (task.spec.id.to_string(), task.state())).collect();
    let deliverable = plan.run.end.as_ref().unwrap().deliverable.as_ref();
    let chosen = deliverable.map(|(task, rung)| format!("{task} {rung:?}"));
    (end_reason(plan), chosen, tasks)
}

async fn is_run_over(bus: &Bus, name: &str) -> bool {
    registry::read_summary(bus, &run_id(name))
        .await
        .ok()
        .flatten()
        .is_some_and(|summary| summary.end.is_some())
}

/// Publishes two commands of a user as soon as there is a plan, despite crashes, and then the event for which the run waits.
async fn publish_user_commands(bus: &Bus, name: &str) {
    let run = run_id(name);
    let started = Instant::now();
    while !History::read_from_log(bus, &run)
        .await
        .is_ok_and(|history| history.folded_plan().tasks().len() >= 9)
    {
        assert!(started.elapsed() < TIMEOUT, "timed out waiting for a plan");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let add = CommandAction::Edit(Edit::Add(vec![echo_task("extra", &json!({ "delay_ms": 300 }))]));
    let say = CommandAction::Message { text: "well done".into() };
    let steered = CommandAction::Signal { name: STEERED.into(), data: String::new() };
    for (name, control) in [("add", add), ("say", say), ("go", steered)] {
        let command = RunCommand { id: name.into(), by: "ann".into(), control };
        publish_message(bus, bus.lane_of_run(&run), &run, &Topic::Control, &command, name)
            .await
            .expect("the command is written");
    }
}

/// The number of model requests that were answered more than once.
fn count_repeated_requests(recorded: &[Value]) -> usize {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for one in recorded {
        *counts.entry(one["request"].to_string()).or_default() += 1;
    }
    counts.values().map(|times| times - 1).sum()
}

async fn run_without_crashes() -> RunEnding {
    let testbed = TestBed::start(cluster_setup()).await;
    let run = testbed.submit_run("no-crashes", &planned_submission(&testbed)).await;
    publish_user_commands(&testbed.bus, "no-crashes").await;
    let history = run.wait_for_end().await;
    let ending = run_ending(history.folded_plan());
    testbed.stop_and_check();
    ending
}

fn seed_count() -> u64 {
    std::env::var("MILLRACE_CHAOS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2)
}

#[tokio::test(flavor = "multi_thread")]
async fn crashes_do_not_change_the_end_of_a_planned_run() {
    let expected = run_without_crashes().await;
    assert_eq!(
        (expected.0, expected.1.as_deref()),
        (EndReason::CompletedPartial, Some("omega Final")),
        "{expected:?}"
    );
    for seed in 0..seed_count() {
        let mut testbed = TestBed::start(ClusterSetup::default()).await;
        let name = format!("deaths-{seed}");
        let submission = planned_submission(&testbed);
        testbed.submit_run(&name, &submission).await;
        let (bus, steered) = (testbed.bus.clone(), name.clone());
        let steering = tokio::spawn(async move { publish_user_commands(&bus, &steered).await });
        let bus = testbed.bus.clone();
        let crashes = crash_processes_at_random(&mut testbed.cluster, seed + 1, &async || {
            is_run_over(&bus, &name).await
        })
        .await;
        let started = Instant::now();
        while !is_run_over(&testbed.bus, &name).await && started.elapsed() < TIMEOUT {
            testbed.cluster.restart_exited();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        steering.await.unwrap();
        let history = testbed.run_handle(run_id(&name)).wait_for_end().await;
        let (again, takeovers) =
            (count_repeated_requests(&testbed.read_recorded_replies()), history.takeover_count());
        println!(
            "  seed {seed}: {crashes} crashes, {takeovers} takeovers, {} continued, {} replies, {again} repeated, {:.1} s",
            history.continued_attempt_count(),
            testbed.read_recorded_replies().len(),
            started.elapsed().as_secs_f64()
        );
        assert_eq!(run_ending(history.folded_plan()), expected, "seed {seed}");
        // A reply is lost if its worker is killed before it records the reply.
        assert!(again <= takeovers, "seed {seed}: {again} requests were repeated in {takeovers} takeovers");
        // The processes are killed: one that is just starting, and found no server, would exit with an error.
        drop(testbed);
    }
}

/// Kills every process of a cluster, including the server.
fn kill_all_processes(cluster: &mut TestCluster) {
    for role in [ProcessRole::Supervisor, ProcessRole::Worker, ProcessRole::Critic] {
        cluster.names_with_role(role).iter().for_each(|name| cluster.kill_process(name));
    }
    cluster.server.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn run_out_of_budget_survives_a_full_restart() {
    let mut testbed = TestBed::start(cluster_setup()).await;
    let model = testbed.write_scripted_model("outlives", &writer_model_rules());
    let run =
        testbed.submit_run("outlives", &many_writers_submission(model, 12, budget_of_ten_replies())).await.id;
    let stopped = testbed.run_handle(run.clone()).wait_until_run_stopped().await;
    assert_eq!(
        (end_reason(&stopped), stopped.is_resumable()),
        (EndReason::BudgetExhausted, true),
        "{:?}",
        stopped.run.end
    );
    kill_all_processes(&mut testbed.cluster);
    testbed.cluster.server.restart();
    for role in [ProcessRole::Supervisor, ProcessRole::Critic, ProcessRole::Worker] {
        for name in testbed.cluster.names_with_role(role) {
            testbed.cluster.restart_process(&name);
        }
    }
    let more = ResourceAmounts { tokens: Some(10_000_000), ..ResourceAmounts::default() };
    let more = Budget { amounts: more, ..Budget::default() };
    testbed
        .run_handle(run.clone())
        .send_command("more", CommandAction::Resume { budget: Some(more) })
        .await
        .unwrap();
    let history = testbed.run_handle(run).wait_for_completion().await;
    let plan = history.folded_plan();
    assert_eq!(plan.task_count_in_state(TaskState::Completed), 13, "{:?}", plan.run.end);
    assert_eq!(plan.run.end.as_ref().unwrap().deliverable, Some((task_id("omega"), DeliverableRule::Final)));
    let again =
        |task: &&millrace_protocol::plan::Task| task.state() == TaskState::Completed && !task.spec.is_final;
    for task in stopped.tasks().iter().filter(again) {
        assert_eq!(plan.task(&task.spec.id).unwrap().attempts.len(), 1, "finished tasks are not redone");
    }
    testbed.stop_and_check();
}
