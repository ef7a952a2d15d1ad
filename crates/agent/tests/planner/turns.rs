//! Complete turns with a scripted model: tools, corrections, and the same proposal after each point of interruption.

use std::path::Path;
use std::sync::Arc;

use millrace_agent::session::tools::BuiltInToolNames;
use millrace_agent::session::{AgentHost, AgentSession, HostSettings, ModelPreferences, SessionEnvironment};
use millrace_agent::spec::AgentSpec;
use millrace_agent::turn::MemoryHost;
use millrace_protocol::plan::{Edit, PlannerTrigger, PlanningMode};
use millrace_protocol::result::{PlanProposal, TaskError};

use super::support::{Log, PlanBuilder, id, order};

pub fn planner() -> AgentSpec {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../worker/capabilities/planner.yaml");
    AgentSpec::load(&path, &BuiltInToolNames).unwrap_or_else(|fault| panic!("{fault}"))
}

/// A host whose model answers by a script.
pub fn host(folder: &Path, script: &str) -> AgentHost {
    let file = folder.join("script.yaml");
    std::fs::write(&file, script).unwrap();
    let models = ModelPreferences::parse([format!("script:{}", file.display()).as_str()]).unwrap();
    AgentHost::new(HostSettings { models, ..HostSettings::default() }).unwrap()
}

pub async fn run(
    host: &AgentHost,
    log: &Arc<Log>,
    journal: &mut MemoryHost,
) -> Result<PlanProposal, TaskError> {
    let (env, planner, order) = (SessionEnvironment::new(log.clone(), journal), planner(), order());
    let session = AgentSession::prepare(host, &planner, &order, env).await.unwrap();
    let planned = session.run_planning().await;
    planned.map(|(proposal, _)| proposal).map_err(|error| match error {
        millrace_agent::session::SessionError::Task(error) => error,
        error @ (millrace_agent::session::SessionError::Source(_)
        | millrace_agent::session::SessionError::ReservationTooSmall(_)
        | millrace_agent::session::SessionError::Parked(..)
        | millrace_agent::session::SessionError::ProviderAway(_)) => panic!("{error}"),
    })
}

const REPAIR: &str = r#"
rules:
- turns:
  - calls:
    - view_qa_report: {task_id: facts}
    - think: {thought: Another route.}
    - add_task: {id: facts-2, objective: Ask otherwise., capability: research}
    - patch_task: {task_id: report, depends_on: [law, facts-2]}
    - add_task: {id: x, objective: Cook., capability: cooking}
  - calls:
    - get_task_result: {task_id: law, max_chars: 500}
    - retry_task: {task_id: facts, feedback: Again.}
    - cancel_task: {task_id: facts}
  - answer:
      reasoning: Not yet.
      finished: true
  - answer:
      reasoning: Another route to the facts.
      tasks: [{id: check, objective: Check both., capability: research, depends_on: [law, facts-2]}]
"#;

fn log() -> Arc<Log> {
    let mut made = PlanBuilder::started(PlanningMode::Llm);
    made.add("law", "research", &[]).add("facts", "research", &[]);
    made.add("report", "producer", &["law", "facts"]).last("report").completed("law").failed("facts");
    Arc::new(Log::with_plan(made.with_turn(vec![PlannerTrigger::TaskLost { task: id("facts") }])))
}

#[tokio::test]
async fn turn_resumed_after_any_step_gives_the_same_proposal() {
    let folder = tempfile::tempdir().unwrap();
    let (host, log) = (host(folder.path(), REPAIR), log());
    let mut journal = MemoryHost::default();
    let whole = run(&host, &log, &mut journal).await.unwrap();
    let names: Vec<&str> = journal.steps().iter().map(|step| step.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "board",
            "model.0",
            "tool.0.0.view_qa_report",
            "tool.0.1.add_task",
            "tool.0.2.patch_task",
            "tool.0.3.add_task",
            "model.1",
            "tool.1.0.get_task_result",
            "tool.1.1.retry_task",
            "tool.1.2.cancel_task",
            "model.2",
            "model.3",
        ]
    );
    let edits: Vec<&str> = whole.all_edits().map(|edit| edit.name()).collect();
    assert_eq!(edits, ["add_tasks", "patch_task", "retry_task", "cancel_task", "add_tasks"]);
    assert_eq!(whole.reasoning, "Another route to the facts.");

    let text = |at: usize| journal.steps()[at].value["text"].as_str().unwrap().to_owned();
    assert!(text(3).starts_with("added and ready: facts-2; "), "{}", text(3));
    assert!(
        text(5).starts_with("task x needs the capability cooking, which no worker provides"),
        "{}",
        text(5)
    );

    for prefix in 0..=names.len() {
        let mut resumed = MemoryHost::with_steps(journal.steps()[..prefix].to_vec());
        let proposal = run(&host, &log, &mut resumed).await.unwrap();
        assert_eq!(proposal, whole, "after {prefix} steps");
        let without_times = |journal: &MemoryHost| -> Vec<(String, String)> {
            let steps = journal.steps().iter();
            steps.map(|step| (step.name.clone(), step.value["text"].to_string())).collect()
        };
        assert_eq!(without_times(&resumed), without_times(&journal), "after {prefix} steps");
    }
}

#[tokio::test]
async fn valid_finish_ends_the_turn() {
    let script = "
rules:
- turns:
  - calls:
    - finish: {reason: The report says it all.}
    - add_task: {objective: More., capability: research}
  - answer: {reasoning: Done., finished: true}
";
    let folder = tempfile::tempdir().unwrap();
    let mut made = PlanBuilder::started(PlanningMode::Llm);
    made.add("report", "producer", &[]).last("report").completed("report");
    let log = Arc::new(Log::with_plan(made.with_turn(vec![])));
    let mut journal = MemoryHost::default();
    let proposal = run(&host(folder.path(), script), &log, &mut journal).await.unwrap();
    assert_eq!(proposal.edits, [Edit::Finish { reason: "The report says it all.".into() }]);
    let refused = &journal.steps()[3].value;
    assert_eq!(refused["is_error"], true, "{refused}");
}

#[tokio::test]
async fn repeated_claim_of_the_end_reaches_the_rules() {
    let script = "rules: [{reply: {answer: {reasoning: Done., finished: true}}}]";
    let folder = tempfile::tempdir().unwrap();
    let mut journal = MemoryHost::default();
    let proposal = run(&host(folder.path(), script), &log(), &mut journal).await.unwrap();
    assert_eq!(proposal.edits, [Edit::Finish { reason: "Done.".into() }]);
    assert_eq!(journal.steps().len(), 4, "two corrections: the board and three replies");
}

#[tokio::test]
async fn invalid_answers_end_the_attempt_with_the_reason() {
    for (script, expected) in [
        ("rules: [{reply: {text: I will think about it.}}]", "The answer is not one JSON object"),
        (
            "rules: [{reply: {answer: {reasoning: x, plan: [a, b]}}}]",
            "unknown field `plan`, expected one of `reasoning`, `questions`, `tasks`, `retry`",
        ),
        (
            "rules: [{reply: {answer: {reasoning: x, tasks: [{id: a, objective: x, capability: cook}]}}}]",
            "must be one of",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = MemoryHost::default();
        let error = run(&host(folder.path(), script), &log(), &mut journal).await.unwrap_err();
        assert!(
            error.message.contains("the answer was still invalid") && error.message.contains(expected),
            "{error}"
        );
    }
}

#[tokio::test]
async fn unknown_tools_and_bad_arguments_are_reported_to_the_model() {
    let script = r"
rules:
- turns:
  - calls:
    - delete_everything: {}
    - add_task: {objective: x}
    - add_tasks: {tasks: many}
    - retry_task: {task_id: 7}
  - answer: {reasoning: One more try., retry: [{task: facts}]}
";
    let folder = tempfile::tempdir().unwrap();
    let mut journal = MemoryHost::default();
    let proposal = run(&host(folder.path(), script), &log(), &mut journal).await.unwrap();
    assert_eq!(proposal.edits.len(), 1);
}
