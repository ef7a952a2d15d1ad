//! A planner's turn through a real queue: it reads the plan as of the decision that asked for the turn, and a worker that
//! resumes the turn reaches the same proposal.
use std::sync::Arc;

use crate::support::{Cluster, PATIENCE, build_order_for_work};
use jiff::Timestamp;
use millrace_protocol::ids::{Capability as Name, TaskId};
use millrace_protocol::plan::{
    Decision, Edit, Event, GraphEvent, PlannerConsultMode, PlannerTrigger, PlanningEvent, PlanningMode,
    RunEvent, TaskEvent, TaskSpec, Work,
};
use millrace_protocol::result::PlanProposal;
use millrace_protocol::subject::Topic;
use millrace_protocol::work::{Assignment, JournalEntry, Order, WorkOutcome};
use millrace_runtime::log;
use millrace_runtime::work::registry;
use millrace_tests::wait_for_value;
use millrace_worker::{
    AgentHostConfig, CancellationToken, ModelPreferences, WorkerConfig, WorkerId, builtin, run_worker,
};

/// The model changes the plan with tools, with a delay before each reply in which its worker can be killed.
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

fn task_id(text: &str) -> TaskId {
    TaskId::new(text).unwrap()
}

async fn append_events(cluster: &Cluster, order: &Order, previous: u64, events: Vec<Event>) -> u64 {
    let by = WorkerId::new("supervisor").unwrap();
    let decision = Decision { by, previous, at: Timestamp::now(), answers: Vec::new(), events };
    log::append_message(&cluster.bus, order.lane, &order.run, &Topic::Plan, &decision, previous)
        .await
        .unwrap()
}

/// Starts a run and returns the order of a planner's turn about a failed task. A later decision is not part of the turn.
async fn planning_order(cluster: &Cluster) -> Order {
    let order = build_order_for_work("planner", Work::Planning { turn: 1, attempt: 1 });
    let task = |name: &str, depends_on: &[&str]| {
        let echo = Name::new("echo").unwrap();
        let depends_on = depends_on.iter().map(|name| task_id(name)).collect();
        let spec = TaskSpec { depends_on, ..TaskSpec::new(task_id(name), format!("Do {name}."), echo) };
        Event::Graph(GraphEvent::TaskAdded { ready: spec.depends_on.is_empty(), spec: Arc::new(spec) })
    };
    let started = Event::Run(RunEvent::Started {
        objective: "Find it out.".into(),
        mode: PlanningMode::Llm,
        documents: None,
        model: None,
        models: Default::default(),
        fail_fast: false,
        budget: Box::default(),
        consult: PlannerConsultMode::Judgement,
        approve_plan: false,
        verification: None,
        criteria: Vec::new(),
        after: Vec::new(),
        labels: Default::default(),
        session: None,
    });
    let tasks = vec![task("facts", &[]), task("lost", &[]), task("report", &["facts"])];
    let first = append_events(cluster, &order, 0, [vec![started], tasks].concat()).await;
    let failed =
        Event::Task(TaskEvent::Failed { task: task_id("facts"), reason: "no worker took it in time".into() });
    let triggers = vec![PlannerTrigger::TaskLost { task: task_id("facts") }];
    let planning =
        Event::Planning(PlanningEvent::Requested { turn: 1, attempt: 1, feedback: None, triggers });
    let plan_at = append_events(cluster, &order, first, vec![failed, planning]).await;
    let cancelled = Event::Task(TaskEvent::Cancelled {
        task: task_id("lost"),
        reason: "later".into(),
        with: None,
        usage: Default::default(),
    });
    append_events(cluster, &order, plan_at, vec![cancelled]).await;
    Order { assignment: Assignment::Planning { turn: 1, attempt: 1, plan_at }, ..order }
}

fn start_worker(cluster: &Cluster, name: &str, script: &str) -> tokio::task::JoinHandle<()> {
    let offered = vec![builtin::open_built_in("planner").unwrap(), builtin::open_built_in("echo").unwrap()];
    let host = AgentHostConfig {
        id: Some(WorkerId::new(name).unwrap()),
        models: ModelPreferences::parse([format!("script:{script}").as_str()]).unwrap(),
        document_cache: None,
        ..AgentHostConfig::new(cluster.connection())
    };
    let config = WorkerConfig { capabilities: offered, host };
    let running = run_worker(config, CancellationToken::new());
    tokio::spawn(async move { running.await.unwrap() })
}

async fn await_proposal(cluster: &Cluster, order: &Order) -> PlanProposal {
    match cluster.await_outcome(order).await.1 {
        WorkOutcome::Proposed { proposal, .. } => proposal,
        other @ (WorkOutcome::Finished { .. } | WorkOutcome::Judged(_) | WorkOutcome::Errored(_)) => {
            panic!("{other:?}")
        }
    }
}

fn step_names(journal: &[(u64, JournalEntry)]) -> Vec<&str> {
    let names = journal.iter().filter_map(|(_, entry)| match entry {
        JournalEntry::Step { name, .. } => Some(name.as_str()),
        JournalEntry::Claimed { .. }
        | JournalEntry::Note { .. }
        | JournalEntry::Parked { .. }
        | JournalEntry::Delegated { .. }
        | JournalEntry::Released { .. }
        | JournalEntry::Outcome { .. } => None,
    });
    names.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_reads_its_plan_and_survives_the_loss_of_its_worker() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.yaml");
    std::fs::write(&script, SCRIPT).unwrap();
    let script = script.to_str().unwrap();
    let cluster = Arc::new(Cluster::start_with_lease(std::time::Duration::from_secs(1)).await);
    let order = planning_order(&cluster).await;
    cluster.publish_order(&order).await;

    let first = start_worker(&cluster, "first", script);
    wait_for_value(PATIENCE, "the tools of the first reply", async || {
        (step_names(&cluster.read_journal(&order).await).len() >= 4).then_some(())
    })
    .await;
    first.abort();
    let second = start_worker(&cluster, "second", script);
    let proposal = await_proposal(&cluster, &order).await;
    second.abort();

    let journal = cluster.read_journal(&order).await;
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
    assert_eq!(step_names(&journal), all, "no reply is requested twice");
    assert_eq!(proposal.tasks.len(), 1);
    let edits: Vec<&str> = proposal.edits.iter().map(Edit::name).collect();
    assert_eq!(edits, ["patch_task", "cancel_task", "add_tasks"]);
    let names = registry::read_capability_names(&cluster.bus).await.unwrap();
    assert!(names.contains("planner") && names.contains("echo"));
}
