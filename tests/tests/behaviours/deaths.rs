//! Runs that a planner makes, with failures, a user's edits and a budget, while processes die: each comes to the end that
//! it comes to when nobody dies, and of what models have said only what was lost with its worker is asked for again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millrace_protocol::plan::{
    Amounts, Budget, Command, Control, Edit, EndReason, FinalRung, Mode, Plan, Submission, TaskState,
};
use millrace_protocol::subject::Topic;
use millrace_runtime::log::tell;
use millrace_runtime::{Bus, registry};
use millrace_tests::cluster::{Cluster, Role, Setup};
use millrace_tests::history::History;
use millrace_tests::plans::{echo, id, run};
use millrace_tests::stage::{PATIENCE, Stage, verdict};
use millrace_tests::strikes::strike;
use serde_json::{Value, json};

use crate::spending::{many, ten_replies, writes};
use crate::{end, setup};

/// A planner that makes six tasks, replaces one that is lost, and takes in what a user says.
fn rules() -> String {
    let passes = verdict("");
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
    - add_task: {{id: omega, objective: put it together, capability: writer, depends_on: [t1, t2, t3, t4, t5, road], final: true}}
    delay: 0.2
  - answer: {{reasoning: parts and a whole}}
- when: {{answer: plan, task: road is lost}}
  reply:
    answer:
      reasoning: around it
      tasks: [{{id: detour, objective: go around, capability: writer, depends_on: [t0]}}]
      patch: [{{task: omega, depends_on: [t1, t2, t3, t4, t5, detour]}}]
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

fn submission(stage: &Stage) -> Submission {
    let budget = Budget {
        amounts: Amounts { model_calls: Some(400), ..Amounts::default() },
        attempt: Amounts { model_calls: Some(12), ..Amounts::default() },
        ..Budget::default()
    };
    let model = Some(stage.model("deaths", &rules()));
    Submission { model, budget, ..Submission::new("find out what there is", Mode::Llm) }
}

/// What must be the same whoever dies: how the run and each of its tasks ended, and what is the deliverable.
type Ending = (EndReason, Option<String>, BTreeMap<String, TaskState>);

fn ending(plan: &Plan) -> Ending {
    let tasks = plan.tasks().iter().map(|task| (task.spec.id.to_string(), task.state)).collect();
    let deliverable = plan.end.as_ref().unwrap().deliverable.as_ref();
    let chosen = deliverable.map(|(task, rung)| format!("{task} {rung:?}"));
    (end(plan), chosen, tasks)
}

async fn is_over(bus: &Bus, name: &str) -> bool {
    registry::summary(bus, &run(name)).await.ok().flatten().is_some_and(|summary| summary.end.is_some())
}

/// Two commands of a user, as soon as there is a plan; whatever dies, they are written.
async fn steer(bus: &Bus, name: &str) {
    let run = run(name);
    let started = Instant::now();
    while !History::read(bus, &run).await.is_ok_and(|history| history.plan().tasks().len() >= 8) {
        assert!(started.elapsed() < PATIENCE, "no plan came");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let add = Control::Edit(Edit::Add(vec![echo("extra", &json!({"delay_ms": 300}))]));
    for (name, control) in [("add", add), ("say", Control::Message { text: "well done".into() })] {
        let command = Command { id: name.into(), by: "ann".into(), control };
        tell(bus, bus.lane(&run), &run, &Topic::Control, &command, name)
            .await
            .expect("the command is written");
    }
}

/// How often the same was asked of a model and answered.
fn repeated(recorded: &[Value]) -> usize {
    let mut asked: BTreeMap<String, usize> = BTreeMap::new();
    for one in recorded {
        *asked.entry(one["request"].to_string()).or_default() += 1;
    }
    asked.values().map(|times| times - 1).sum()
}

async fn undisturbed() -> Ending {
    let stage = Stage::open(setup()).await;
    let run = stage.hand_in("calm", &submission(&stage)).await;
    steer(&stage.bus, "calm").await;
    let history = run.ended().await;
    let ending = ending(history.plan());
    stage.close();
    ending
}

fn seeds() -> u64 {
    std::env::var("MILLRACE_CHAOS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2)
}

pub async fn whatever_dies_a_planned_run_comes_to_the_same_end_and_asks_again_only_for_what_was_lost() {
    let calm = undisturbed().await;
    assert_eq!((calm.0, calm.1.as_deref()), (EndReason::CompletedPartial, Some("omega Final")), "{calm:?}");
    for seed in 0..seeds() {
        let mut stage = Stage::open(Setup::default()).await;
        let name = format!("deaths-{seed}");
        let submission = submission(&stage);
        stage.hand_in(&name, &submission).await;
        let (bus, steered) = (stage.bus.clone(), name.clone());
        let steering = tokio::spawn(async move { steer(&bus, &steered).await });
        let bus = stage.bus.clone();
        let strikes = strike(&mut stage.cluster, seed + 1, &async || is_over(&bus, &name).await).await;
        let started = Instant::now();
        while !is_over(&stage.bus, &name).await && started.elapsed() < PATIENCE {
            stage.cluster.keep();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        steering.await.unwrap();
        let history = stage.run(run(&name)).ended().await;
        let (again, takeovers) = (repeated(&stage.recorded()), history.takeovers());
        println!(
            "  seed {seed}: {strikes} strikes, {takeovers} takeovers, {} continued, {} replies, {again} asked again, {:.1} s",
            history.continued(),
            stage.recorded().len(),
            started.elapsed().as_secs_f64()
        );
        assert_eq!(ending(history.plan()), calm, "seed {seed}");
        // A reply that came back to a worker that was killed before it could write it down was never in the log.
        assert!(
            again <= takeovers,
            "seed {seed}: {again} replies were asked for again in {takeovers} takeovers"
        );
        // Not in order: some process may be just starting, and a start that the server was away from is an error.
        drop(stage);
    }
}

/// Kills every process of a cluster, the server too.
fn kill_all(cluster: &mut Cluster) {
    for role in [Role::Supervisor, Role::Worker, Role::Critic] {
        cluster.names(role).iter().for_each(|name| cluster.kill(name));
    }
    cluster.server.kill();
}

pub async fn a_run_whose_budget_is_used_up_outlives_every_process_and_goes_on_with_more() {
    let mut stage = Stage::open(setup()).await;
    let model = stage.model("outlives", &writes());
    let run = stage.hand_in("outlives", &many(model, 12, ten_replies())).await.id;
    let stopped = stage.run(run.clone()).stopped().await;
    assert_eq!(
        (end(&stopped), stopped.is_resumable()),
        (EndReason::BudgetExhausted, true),
        "{:?}",
        stopped.end
    );
    kill_all(&mut stage.cluster);
    stage.cluster.server.restart();
    for role in [Role::Supervisor, Role::Critic, Role::Worker] {
        for name in stage.cluster.names(role) {
            stage.cluster.restart(&name);
        }
    }
    let more = Amounts { tokens: Some(10_000_000), ..Amounts::default() };
    let more = Budget { amounts: more, ..Budget::default() };
    stage.run(run.clone()).command("more", Control::Resume { budget: Some(more) }).await.unwrap();
    let history = stage.run(run).completed().await;
    let plan = history.plan();
    assert_eq!(plan.count(TaskState::Completed), 13, "{:?}", plan.end);
    assert_eq!(plan.end.as_ref().unwrap().deliverable, Some((id("omega"), FinalRung::Final)));
    let again =
        |task: &&millrace_protocol::plan::Task| task.state == TaskState::Completed && !task.spec.is_final;
    for task in stopped.tasks().iter().filter(again) {
        assert_eq!(plan.task(&task.spec.id).unwrap().attempts.len(), 1, "what was done is not done again");
    }
    stage.close();
}
