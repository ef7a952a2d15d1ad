//! A planner's turn through a real queue: the plan is read from the log as it stood when the turn was asked for, and a
//! worker that takes the turn over comes to the same proposal.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use std::sync::Arc;

use jiff::Timestamp;
use millrace_protocol::ids::{Capability as Name, TaskId};
use millrace_protocol::plan::{Consult, Decision, Edit, Event, Mode, Occasion, TaskSpec, Work};
use millrace_protocol::result::Proposal;
use millrace_protocol::subject::Topic;
use millrace_protocol::work::{Entry, Order, Outcome};
use millrace_runtime::{log, registry};
use millrace_tests::eventually;
use millrace_worker::{CancellationToken, Config, Preferences, WorkerId, builtin, run};
use support::{Cluster, PATIENCE, order_for};

/// The model changes the plan by tools, with a pause behind each reply in which its worker can be lost.
const SCRIPT: &str = "
rules:
- turns:
  - calls: [{view_qa_report: {task_id: facts}}, {add_task: {id: other, objective: Ask otherwise., capability: echo}}]
    delay: 0.3
  - calls: [{patch_task: {task_id: report, depends_on: [other]}}, {cancel_task: {task_id: lost}}]
    delay: 0.3
  - answer: {reasoning: Another route., tasks: [{id: check, objective: Check it., capability: echo, depends_on: [other]}]}
    delay: 0.3
";

fn id(text: &str) -> TaskId {
    TaskId::new(text).unwrap()
}

async fn decide(cluster: &Cluster, order: &Order, previous: u64, events: Vec<Event>) -> u64 {
    let by = WorkerId::new("supervisor").unwrap();
    let decision = Decision { by, previous, at: Timestamp::now(), answers: Vec::new(), events };
    log::append(&cluster.bus, order.lane, &order.run, &Topic::Plan, &decision, previous).await.unwrap()
}

/// A run whose planner is asked about a task that failed; what is decided later is not for this turn.
async fn asked(cluster: &Cluster) -> Order {
    let order = order_for("planner", Work::Planning { turn: 1, attempt: 1 });
    let task = |name: &str, depends_on: &[&str]| {
        let echo = Name::new("echo").unwrap();
        let depends_on = depends_on.iter().map(|name| id(name)).collect();
        let spec = TaskSpec { depends_on, ..TaskSpec::new(id(name), format!("Do {name}."), echo) };
        Event::TaskAdded { ready: spec.depends_on.is_empty(), spec }
    };
    let started = Event::RunStarted {
        objective: "Find it out.".into(),
        mode: Mode::Llm,
        documents: None,
        model: None,
        models: Default::default(),
        fail_fast: false,
        budget: Box::default(),
        consult: Consult::Judgement,
    };
    let tasks = vec![task("facts", &[]), task("lost", &[]), task("report", &["facts"])];
    let first = decide(cluster, &order, 0, [vec![started], tasks].concat()).await;
    let failed = Event::TaskFailed { task: id("facts"), reason: "no worker took it in time".into() };
    let occasions = vec![Occasion::TaskLost { task: id("facts") }];
    let planning = Event::PlanningAsked { turn: 1, attempt: 1, feedback: None, occasions };
    let plan_at = decide(cluster, &order, first, vec![failed, planning]).await;
    let gone = Event::TaskCancelled {
        task: id("lost"),
        reason: "later".into(),
        with: None,
        usage: Default::default(),
    };
    decide(cluster, &order, plan_at, vec![gone]).await;
    Order { plan_at, ..order }
}

fn work(cluster: &Cluster, name: &str, script: &str) -> tokio::task::JoinHandle<()> {
    let offered = vec![builtin::open("planner").unwrap(), builtin::open("echo").unwrap()];
    let config = Config {
        id: Some(WorkerId::new(name).unwrap()),
        models: Preferences::parse([format!("script:{script}").as_str()]).unwrap(),
        document_cache: None,
        ..Config::new(cluster.connection(), offered)
    };
    let running = run(config, CancellationToken::new());
    tokio::spawn(async move { running.await.unwrap() })
}

async fn proposal(cluster: &Cluster, order: &Order) -> Proposal {
    match cluster.outcome(order).await.1 {
        Outcome::Proposed { proposal, .. } => proposal,
        other @ (Outcome::Finished { .. } | Outcome::Judged(_) | Outcome::Errored(_)) => panic!("{other:?}"),
    }
}

fn steps(journal: &[(u64, Entry)]) -> Vec<&str> {
    let names = journal.iter().filter_map(|(_, entry)| match entry {
        Entry::Step { name, .. } => Some(name.as_str()),
        Entry::Claimed { .. } | Entry::Note { .. } | Entry::Released { .. } | Entry::Outcome { .. } => None,
    });
    names.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_reads_the_plan_it_was_asked_about_and_survives_the_loss_of_its_worker() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.yaml");
    std::fs::write(&script, SCRIPT).unwrap();
    let script = script.to_str().unwrap();
    let cluster = Arc::new(Cluster::with_lease(std::time::Duration::from_secs(1)).await);
    let order = asked(&cluster).await;
    cluster.offer(&order).await;

    let first = work(&cluster, "first", script);
    eventually(PATIENCE, "the tools of the first reply", async || {
        (steps(&cluster.journal(&order).await).len() >= 4).then_some(())
    })
    .await;
    first.abort();
    let second = work(&cluster, "second", script);
    let proposal = proposal(&cluster, &order).await;
    second.abort();

    let journal = cluster.journal(&order).await;
    let all = [
        "board",
        "model.0",
        "tool.0.0.view_qa_report",
        "tool.0.1.add_task",
        "model.1",
        "tool.1.0.patch_task",
        "tool.1.1.cancel_task",
        "model.2",
    ];
    assert_eq!(steps(&journal), all, "nothing is asked for twice");
    assert_eq!(proposal.tasks.len(), 1);
    let edits: Vec<&str> = proposal.edits.iter().map(Edit::name).collect();
    assert_eq!(edits, ["patch_task", "cancel_task", "add_tasks"]);
    let known = registry::capability_names(&cluster.bus).await.unwrap();
    assert!(known.contains("planner") && known.contains("echo"));
}
