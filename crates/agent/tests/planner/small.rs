//! Planners that are small models: the meaning of their answers, the messages about their mistakes, and the plan that is
//! carried out if none of their answers is valid.

use std::sync::Arc;

use millrace_agent::model::ModelAbility;
use millrace_agent::planner::{PlanAnswer, PlanningForm, PlanningSnapshot, PlanningTurn};
use millrace_agent::roles::DocumentList;
use millrace_agent::sources::CapabilityOffer;
use millrace_agent::turn::MemoryHost;
use millrace_protocol::plan::{Budget, OnFailedDependency, Plan, PlannerTrigger, PlanningMode, TaskSpec};
use millrace_protocol::result::PlanProposal;
use serde_json::{Value, json};

use super::support::{Log, PlanBuilder, offer, offers, order, seen_by};
use super::turns::{host, run};

/// An objective that the planner splits; that of [`empty`].
const OBJECTIVE: &str = "Compare how licences treat patents.";

/// A plan without tasks of a run with this objective.
fn asking(objective: &str) -> Plan {
    PlanBuilder::with(PlanningMode::Llm, objective, Budget::default()).with_turn(vec![PlannerTrigger::NoPlan])
}

fn empty() -> Plan {
    asking(OBJECTIVE)
}

/// The capabilities of a cluster without any of its users' own.
fn usual_offers() -> Vec<CapabilityOffer> {
    ["critic", "echo", "planner", "producer", "research", "worker"]
        .map(|name| offer(name, "Does it.", None, 4))
        .to_vec()
}

fn turn(plan: Plan, offers: Vec<CapabilityOffer>) -> PlanningTurn {
    let seen = seen_by(&plan, ModelAbility::Small, offers);
    PlanningTurn::new(plan, seen)
}

fn answer(value: Value) -> PlanAnswer {
    serde_json::from_value(value).unwrap()
}

fn accepted(turn: &PlanningTurn, value: Value) -> PlanProposal {
    let answer = turn.validate_answer(answer(value)).unwrap_or_else(|why| panic!("{why}"));
    turn.build_proposal(answer)
}

/// The tasks of a proposal: id, capability, dependencies, and a star for the final one.
fn graph(proposal: &PlanProposal) -> Vec<String> {
    let marked = |task: &TaskSpec| {
        let by_edit = proposal.edits.iter().any(
            |edit| matches!(edit, millrace_protocol::plan::Edit::MarkFinal { task: end } if *end == task.id),
        );
        task.is_final || by_edit
    };
    let show = |task: &TaskSpec| {
        let depends_on: Vec<&str> = task.depends_on.iter().map(|id| id.as_str()).collect();
        let end = if marked(task) { "*" } else { "" };
        format!("{}{end} {} [{}]", task.id, task.capability, depends_on.join(" "))
    };
    proposal.tasks.iter().map(show).collect()
}

const PLAIN: [&str; 2] = ["research-1 research []", "report* producer [research-1]"];

#[test]
fn dependency_on_a_capability_means_its_tasks() {
    // An answer that a 1.5B model gave nine times, and one with two tasks of research.
    let task = |capability: &str, depends_on: &[&str]| json!({"objective": format!("Do {capability}."), "capability": capability, "depends_on": depends_on});
    let one = json!({"tasks": [task("research", &[]), task("producer", &["research"])]});
    assert_eq!(
        graph(&accepted(&turn(empty(), offers()), one)),
        ["research-1 research []", "producer-1* producer [research-1]"]
    );
    let mut other = task("research", &["Research"]);
    other["objective"] = "Find the dates.".into();
    let two = json!({"tasks": [task("research", &[]), other, task("producer", &["research"])]});
    assert_eq!(
        graph(&accepted(&turn(empty(), offers()), two)),
        ["research-1 research []", "research-2 research []", "producer-1* producer [research-1 research-2]"]
    );
    let mut named = task("research", &[]);
    named["id"] = "patents".into();
    let made = json!({"tasks": [named, task("producer", &["research-1"])]});
    assert_eq!(
        graph(&accepted(&turn(empty(), offers()), made)),
        ["patents research []", "producer-1* producer [patents]"]
    );
}

#[test]
fn report_that_is_alone_gets_its_research() {
    for depends_on in [json!([]), json!(["research-1"]), json!(["research"])] {
        let lone = json!({"tasks": [{"id": "report", "objective": "Report.", "capability": "producer", "depends_on": depends_on}]});
        let proposal = accepted(&turn(empty(), offers()), lone);
        assert_eq!(proposal.tasks.len(), 2, "{proposal:?}");
        assert_eq!(proposal.tasks[0].objective, OBJECTIVE);
        assert_eq!(proposal.tasks[1].depends_on, [proposal.tasks[0].id.clone()]);
        assert_eq!(proposal.fallback, None, "the planner's own report is used");
    }
    let unreported = json!({"tasks": [
        {"objective": "Find a.", "capability": "research"}, {"objective": "Find b.", "capability": "research"}
    ]});
    assert_eq!(
        graph(&accepted(&turn(empty(), offers()), unreported)),
        ["research-1 research []", "research-2 research []", "report* producer [research-1 research-2]"]
    );
}

#[test]
fn named_final_task_wins_over_the_marks_of_all() {
    let task = |id: &str, capability: &str, depends_on: &[&str]| json!({"id": id, "objective": format!("Do {id}."), "capability": capability, "depends_on": depends_on, "final": true});
    let all_final = json!({
        "tasks": [
            task("a", "research", &["report"]), task("b", "research", &["report"]), task("report", "producer", &["a", "b"])
        ],
        "final_task": "report",
    });
    assert_eq!(
        graph(&accepted(&turn(empty(), offers()), all_final)),
        ["a research []", "b research []", "report* producer [a b]"]
    );
    let backwards = json!({
        "tasks": [task("a", "research", &["report"]), task("report", "producer", &[])],
        "final_task": "report",
    });
    assert_eq!(
        graph(&accepted(&turn(empty(), offers()), backwards)),
        ["a research []", "report* producer [a]"]
    );
}

#[test]
fn questions_are_enough_for_a_plan() {
    let first = turn(empty(), usual_offers());
    let schema = first.answer_schema("plan").schema;
    assert_eq!(schema["required"], json!(["questions"]));
    assert_eq!(schema["properties"].as_object().unwrap().len(), 1);
    assert_eq!(schema["properties"]["questions"]["maxItems"], 2, "two for its one sentence");
    assert_eq!(schema["properties"]["questions"]["items"]["maxLength"], 400);
    assert!(first.max_output_tokens() <= 1_500);
    assert_eq!(graph(&accepted(&first, json!({"questions": [OBJECTIVE]}))), PLAIN);
    let proposal = accepted(&first, json!({"questions": ["What is a?", "what is A?", " ", "What is b?"]}));
    assert_eq!(
        graph(&proposal),
        ["research-1 research []", "research-2 research []", "report* producer [research-1 research-2]"]
    );
    assert_eq!(proposal.tasks[2].objective, OBJECTIVE);
    assert_eq!(proposal.tasks[2].on_failed_dependency, OnFailedDependency::Skip);
    assert!(!proposal.reasoning.is_empty());

    let many: Vec<String> = (0..20).map(|n| format!("What is {n}?")).collect();
    let proposal = accepted(&first, json!({ "questions": many }));
    assert_eq!(proposal.tasks.len(), 9);
    assert!(proposal.tasks[7].objective.contains("What is 7? What is 8?"), "nothing is dropped");
}

#[test]
fn number_of_questions_follows_from_the_objective() {
    for (objective, most) in [
        ("Compare the saws", 2),
        ("How heavy is it? Who repairs it?", 4),
        ("Compare the saws. Name the lathe. Who repairs them? Since when? What does it cost?", 8),
    ] {
        let turn = turn(asking(objective), usual_offers());
        assert_eq!(
            turn.answer_schema("plan").schema["properties"]["questions"]["maxItems"],
            most,
            "{objective}"
        );
    }
}

#[test]
fn single_question_is_one_task_of_research() {
    let form = |objective: &str, ability| PlanningForm::choose(&asking(objective), &usual_offers(), ability);
    let question = "When is the alarm tested, and by whom?";
    assert_eq!(form(question, ModelAbility::Small), PlanningForm::SingleQuestion);
    assert_eq!(form(question, ModelAbility::Strong), PlanningForm::Tasks);
    for question in
        ["谁修理锯子？", "من يصلح المنشار؟", "Wer repariert die Säge, und seit wann?", "誰が直しますか?"]
    {
        assert_eq!(form(question, ModelAbility::Small), PlanningForm::SingleQuestion, "{question}");
    }
    let long = format!("{}?", "How often ".repeat(30));
    for several in [
        "Compare the saws.",
        "How heavy is it? Who repairs it?",
        "The saw broke. Why?",
        "锯子坏了。为什么？",
        long.as_str(),
    ] {
        assert_eq!(form(several, ModelAbility::Small), PlanningForm::Questions, "{several}");
    }
    let own = offers();
    let with_own = PlanningForm::choose(&asking(question), &own, ModelAbility::Small);
    assert_eq!(with_own, PlanningForm::Tasks, "other capabilities may have the answer");
    let mut log = PlanBuilder::with(PlanningMode::Llm, question, Budget::default());
    let messages = log.plan.run.messages.len();
    assert_eq!(messages, 0);
    log.plan.run.messages.push(("ada".into(), "In German, please.".into()));
    let plan = log.with_turn(vec![PlannerTrigger::NoPlan]);
    assert_eq!(PlanningForm::choose(&plan, &usual_offers(), ModelAbility::Small), PlanningForm::Questions);
}

#[tokio::test]
async fn no_model_plans_a_single_question() {
    let script = "ability: small\nrules: [{reply: {error: bad_request, message: asked}}]";
    let folder = tempfile::tempdir().unwrap();
    let mut journal = MemoryHost::default();
    let log = Arc::new(Log { offers: usual_offers(), ..Log::with_plan(asking("When is the alarm tested?")) });
    let host = host(folder.path(), script);
    let proposal = run(&host, &log, &mut journal).await.unwrap();
    assert_eq!(graph(&proposal), ["research-1* research []"]);
    assert_eq!(
        (proposal.tasks[0].objective.as_str(), &proposal.fallback),
        ("When is the alarm tested?", &None)
    );
    let mut resumed = MemoryHost::with_steps(journal.steps().to_vec());
    assert_eq!(run(&host, &log, &mut resumed).await.unwrap(), proposal);
}

#[test]
fn one_task_reads_all_documents_if_they_fit() {
    let plan = empty();
    let seen =
        PlanningSnapshot { documents_fit: true, ..seen_by(&plan, ModelAbility::Small, usual_offers()) };
    let turn = PlanningTurn::new(plan, seen);
    let proposal = accepted(&turn, json!({"questions": ["What is a?", "What is b?"]}));
    assert_eq!(graph(&proposal), PLAIN);
    assert_eq!(proposal.tasks[0].objective, "What is a? What is b?");
    let documents = DocumentList { count: 2, paths: vec!["a".into(), "b".into()], ..DocumentList::default() };
    assert!(turn.render_board(&order(), &documents).contains("one research task can read all of them"));
}

#[test]
fn first_turn_offers_no_tool_but_a_search_in_many_documents() {
    let few = DocumentList { count: 12, ..DocumentList::default() };
    let many = DocumentList { count: 41, ..DocumentList::default() };
    for ability in [ModelAbility::Small, ModelAbility::Strong] {
        let plan = empty();
        let seen = seen_by(&plan, ability, offers());
        let turn = PlanningTurn::new(plan, seen);
        let hidden = turn.hidden_tools(&few, true);
        assert!(hidden.contains("search_documents") && hidden.contains("add_task") && hidden.contains("now"));
        let offers_search = !turn.hidden_tools(&many, false).contains("search_documents");
        assert_eq!(
            offers_search,
            ability == ModelAbility::Strong,
            "a small model would ask about what it finds"
        );
    }
}

#[test]
fn later_turns_offer_the_tools_that_their_state_allows() {
    let offered = |made: &PlanBuilder, ability: ModelAbility, has_own_instructions: bool| -> Vec<&str> {
        let plan = made.clone().with_turn(vec![]);
        let seen = seen_by(&plan, ability, offers());
        let turn = PlanningTurn::new(plan, seen);
        let hidden = turn.hidden_tools(&DocumentList::default(), has_own_instructions);
        let tools = ["add_task", "patch_task", "cancel_task", "retry_task", "view_qa_report"];
        tools.into_iter().filter(|name| !hidden.contains(name)).collect()
    };
    use ModelAbility::{Small, Strong};
    let mut running = PlanBuilder::started(PlanningMode::Llm);
    running.add("law", "research", &[]).last("law").claimed("law");
    assert_eq!(offered(&running, Strong, true), ["add_task", "cancel_task", "view_qa_report"]);
    let mut lost = PlanBuilder::started(PlanningMode::Llm);
    lost.add("law", "research", &[]).add("report", "producer", &["law"]).last("report").failed("law");
    let all = ["add_task", "patch_task", "cancel_task", "retry_task", "view_qa_report"];
    assert_eq!(offered(&lost, Strong, true), all);
    assert_eq!(offered(&lost, Strong, false), ["view_qa_report"], "the answer makes the changes");
    assert!(offered(&lost, Small, false).is_empty(), "a small model answers at once");
}

#[test]
fn same_answer_is_never_refused_in_the_same_words() {
    let circle = json!({"tasks": [
        {"id": "a", "objective": "x", "capability": "research", "depends_on": ["b"]},
        {"id": "b", "objective": "y", "capability": "research", "depends_on": ["a"]},
    ]});
    let turn = turn(empty(), offers());
    let refuse = || turn.validate_answer(answer(circle.clone())).unwrap_err();
    let (first, second) = (refuse(), refuse());
    assert_ne!(first, second);
    assert!(second.contains("the same answer as before") && second.contains("dependency cycle"), "{second}");
    let example = &second[second.find('{').unwrap()..];
    let plain: PlanAnswer = serde_json::from_str(example).unwrap();
    assert_eq!(graph(&turn.build_proposal(turn.validate_answer(plain).unwrap())), PLAIN);
    assert!(turn.validate_answer(answer(circle)).is_ok(), "there is no third refusal");
}

#[test]
fn plain_plan_follows_the_last_refusal() {
    let circle = json!({"tasks": [
        {"id": "a", "objective": "x", "capability": "research", "depends_on": ["b"]},
        {"id": "b", "objective": "y", "capability": "research", "depends_on": ["a"]},
    ]});
    let turn = turn(empty(), offers());
    for _ in 0..2 {
        assert!(turn.validate_answer(answer(circle.clone())).is_err());
    }
    let proposal = turn.build_proposal(turn.validate_answer(answer(circle)).unwrap());
    assert_eq!(graph(&proposal), PLAIN);
    assert!(proposal.fallback.as_ref().unwrap().contains("dependency cycle"), "{proposal:?}");
    assert!(proposal.reasoning.contains("gave no valid plan"));
}

#[tokio::test]
async fn planner_without_any_valid_answer_leaves_a_plain_plan() {
    // The script repeats a call of a tool that does not exist; another answers with prose.
    let scripts = [
        "rules: [{reply: {calls: [{read_document: {path: aurland.txt}}]}}]",
        "rules: [{reply: {text: 'Sure! Here is the plan: first, we look.'}}]",
        "ability: small\nrules: [{reply: {answer: {questions: []}}}]",
    ];
    for script in scripts {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = MemoryHost::default();
        let log = Arc::new(Log::with_plan(empty()));
        let proposal = run(&host(folder.path(), script), &log, &mut journal).await.unwrap();
        assert_eq!(graph(&proposal), PLAIN, "{script}");
        assert!(proposal.fallback.is_some(), "{script}");
        let mut resumed = MemoryHost::with_steps(journal.steps()[..2].to_vec());
        let again = run(&host(folder.path(), script), &log, &mut resumed).await.unwrap();
        assert_eq!(again, proposal, "the turn resumes to the same plan");
    }
}

#[tokio::test]
async fn prompt_of_a_small_planner_has_no_tools() {
    let script = "ability: small\nrules: [{when: {offered: add_task}, reply: {error: bad_request, message: offered}}, {reply: {answer: {questions: ['What is it?']}}}]";
    let folder = tempfile::tempdir().unwrap();
    let mut journal = MemoryHost::default();
    let log = Log { offers: usual_offers(), ..Log::with_plan(empty()) };
    let proposal = run(&host(folder.path(), script), &Arc::new(log), &mut journal).await.unwrap();
    assert_eq!(graph(&proposal), PLAIN);
    let snapshot: PlanningSnapshot = serde_json::from_value(journal.steps()[0].value.clone()).unwrap();
    assert_eq!((snapshot.form, snapshot.ability), (PlanningForm::Questions, ModelAbility::Small));
    let sent = &journal.steps()[1].value["sent"];
    assert!(sent["system"].as_str().unwrap().starts_with("You plan the research of a run."), "{sent}");
    assert_eq!(sent["tools"].as_array().map_or(0, Vec::len), 0, "{sent}");
}
