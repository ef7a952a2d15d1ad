//! Whole turns at the desk with a scripted model: the tools, the corrections, and the same proposal wherever the turn was
//! taken up.

use std::path::Path;
use std::sync::Arc;

use millrace_agent::desk::shelf::Inner;
use millrace_agent::desk::{Desk, Preferences, Seat, Settings};
use millrace_agent::spec::Spec;
use millrace_agent::turn::MemoryJournal;
use millrace_protocol::plan::{Edit, Mode, Occasion};
use millrace_protocol::result::{Proposal, TaskError};

use crate::support::{Log, Made, id, order};

pub fn planner() -> Spec {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/capabilities/planner.yaml");
    Spec::load(&path, &Inner).unwrap_or_else(|fault| panic!("{fault}"))
}

/// A desk whose model answers by a script.
fn desk(folder: &Path, script: &str) -> Desk {
    let file = folder.join("script.yaml");
    std::fs::write(&file, script).unwrap();
    let models = Preferences::parse([format!("script:{}", file.display()).as_str()]).unwrap();
    Desk::new(Settings { models, ..Settings::default() }).unwrap()
}

async fn run(desk: &Desk, log: &Arc<Log>, journal: &mut MemoryJournal) -> Result<Proposal, TaskError> {
    let seat = Seat::new(log.clone(), journal);
    let planned = desk.plan(&planner(), &order(), seat).await;
    planned.map(|(proposal, _)| proposal).map_err(|error| match error {
        millrace_agent::desk::DeskError::Task(error) => error,
        millrace_agent::desk::DeskError::Source(error) => panic!("{error}"),
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
    let mut made = Made::started(Mode::Llm);
    made.add("law", "research", &[]).add("facts", "research", &[]);
    made.add("report", "producer", &["law", "facts"]).last("report").completed("law").failed("facts");
    Arc::new(Log::of(made.asked(vec![Occasion::TaskLost { task: id("facts") }])))
}

#[tokio::test]
async fn a_turn_taken_up_behind_any_step_comes_to_the_same_proposal() {
    let folder = tempfile::tempdir().unwrap();
    let (desk, log) = (desk(folder.path(), REPAIR), log());
    let mut journal = MemoryJournal::default();
    let whole = run(&desk, &log, &mut journal).await.unwrap();
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
    let edits: Vec<&str> = whole.all().map(|edit| edit.name()).collect();
    assert_eq!(edits, ["add_tasks", "patch_task", "retry_task", "cancel_task", "add_tasks"]);
    assert_eq!(whole.reasoning, "Another route to the facts.");

    let told = |at: usize| journal.steps()[at].value["text"].as_str().unwrap().to_owned();
    assert!(told(3).starts_with("added and ready at once: facts-2; "), "{}", told(3));
    assert!(told(5).starts_with("task x needs the capability cooking, which nobody offers"), "{}", told(5));

    for prefix in 0..=names.len() {
        let mut resumed = MemoryJournal::holding(journal.steps()[..prefix].to_vec());
        let proposal = run(&desk, &log, &mut resumed).await.unwrap();
        assert_eq!(proposal, whole, "behind {prefix} steps");
        let without_times = |journal: &MemoryJournal| -> Vec<(String, String)> {
            let steps = journal.steps().iter();
            steps.map(|step| (step.name.clone(), step.value["text"].to_string())).collect()
        };
        assert_eq!(without_times(&resumed), without_times(&journal), "behind {prefix} steps");
    }
}

#[tokio::test]
async fn a_finish_that_holds_ends_the_turn_and_nothing_follows_it() {
    let script = "
rules:
- turns:
  - calls:
    - finish: {reason: The report says it all.}
    - add_task: {objective: More., capability: research}
  - answer: {reasoning: Done., finished: true}
";
    let folder = tempfile::tempdir().unwrap();
    let mut made = Made::started(Mode::Llm);
    made.add("report", "producer", &[]).last("report").completed("report");
    let log = Arc::new(Log::of(made.asked(vec![])));
    let mut journal = MemoryJournal::default();
    let proposal = run(&desk(folder.path(), script), &log, &mut journal).await.unwrap();
    assert_eq!(proposal.edits, [Edit::Finish { reason: "The report says it all.".into() }]);
    let refused = &journal.steps()[3].value;
    assert_eq!(refused["is_error"], true, "{refused}");
}

#[tokio::test]
async fn a_claim_of_the_end_that_is_repeated_reaches_the_rules() {
    let script = "rules: [{reply: {answer: {reasoning: Done., finished: true}}}]";
    let folder = tempfile::tempdir().unwrap();
    let mut journal = MemoryJournal::default();
    let proposal = run(&desk(folder.path(), script), &log(), &mut journal).await.unwrap();
    assert_eq!(proposal.edits, [Edit::Finish { reason: "Done.".into() }]);
    assert_eq!(journal.steps().len(), 4, "it was told twice: the board and three replies");
}

#[tokio::test]
async fn rubbish_ends_the_attempt_with_what_is_wrong() {
    for (script, expected) in [
        ("rules: [{reply: {text: I will think about it.}}]", "The answer is not one JSON object"),
        (
            "rules: [{reply: {answer: {reasoning: x, plan: [a, b]}}}]",
            "unknown field `plan`, expected one of `reasoning`, `tasks`, `retry`",
        ),
        (
            "rules: [{reply: {answer: {reasoning: x, tasks: [{id: a, objective: x, capability: cook}]}}}]",
            "must be one of",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = MemoryJournal::default();
        let error = run(&desk(folder.path(), script), &log(), &mut journal).await.unwrap_err();
        assert!(
            error.message.contains("the answer could not be used") && error.message.contains(expected),
            "{error}"
        );
    }
}

#[tokio::test]
async fn tools_that_do_not_exist_and_bad_arguments_are_told_and_the_turn_goes_on() {
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
    let mut journal = MemoryJournal::default();
    let proposal = run(&desk(folder.path(), script), &log(), &mut journal).await.unwrap();
    assert_eq!(proposal.edits.len(), 1);
}
