//! The size of each role's prompt in tokens, as a golden table: a change of a prompt shows up in review. `UPDATE_GOLDEN=1`
//! rewrites it.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use crate::answers::support::{PRODUCER, ScriptedTask};
use crate::planner::support::{Log, PlanBuilder, id, offer, order, seen_by};
use millrace_agent::corpus::{Corpus, InputFile};
use millrace_agent::critic::{ReviewEvidence, ReviewTask, build_review_brief};
use millrace_agent::model::{Message, ModelAbility, Request};
use millrace_agent::planner::{PlanningForm, PlanningSnapshot, PlanningTurn};
use millrace_agent::roles::DocumentList;
use millrace_agent::session::tools::{BuiltInToolNames, ToolContext};
use millrace_agent::spec::AgentSpec;
use millrace_agent::tool::Toolbox;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{Budget, PlannerTrigger, PlanningMode};
use millrace_protocol::result::TaskResult;
use serde_json::{Value, json};

const GOLDEN: &str = "tests/golden/prompt_tokens.txt";
const OBJECTIVE: &str = "How much does the Tarn 20 weigh, and how long does its battery last?";

/// The parts of a prompt, in tokens.
struct PromptSize {
    instructions: usize,
    tools: usize,
    form: usize,
    /// The task, or the planner's board, without its documents.
    task: usize,
}

impl PromptSize {
    /// The parts that do not depend on the work: instructions, tools and the form of the answer.
    fn fixed(&self) -> usize {
        self.instructions + self.tools + self.form
    }
}

fn count_tokens(text: &str) -> usize {
    tiktoken_rs::o200k_base_singleton().encode_ordinary(text).len()
}

fn planner_size(turn: &Arc<PlanningTurn>) -> PromptSize {
    let documents = DocumentList::default();
    let file = InputFile { path: "a.txt".into(), bytes: b"text".to_vec() };
    let corpus = Some(Arc::new(Corpus::build_or_load(vec![file], None).unwrap()));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../worker/capabilities/planner.yaml");
    let spec = AgentSpec::load(&path, &BuiltInToolNames).unwrap_or_else(|fault| panic!("{fault}"));
    let sources: Arc<dyn millrace_agent::sources::OrderInputs> = Arc::new(Log::default());
    let context = ToolContext { corpus, stateful: turn.create_tools(&sources), ..ToolContext::default() };
    let toolbox = Toolbox::new(context.open_tools(&spec.tools)).unwrap();
    let offered = toolbox.specs().with_hidden_tools(&turn.hidden_tools(&documents, false));
    let tools: Vec<String> = offered.iter().map(|spec| serde_json::to_string(spec).unwrap()).collect();
    PromptSize {
        instructions: count_tokens(&turn.instructions().render_without_task()),
        tools: tools.iter().map(|tool| count_tokens(tool)).sum(),
        form: count_tokens(&turn.answer_schema("plan").schema.to_string()),
        task: count_tokens(&turn.render_board(&order(), &documents)),
    }
}

fn planners() -> Vec<(String, PromptSize)> {
    let offers = || -> Vec<_> {
        [
            ("producer", "Combines the results of the tasks it depends on into one report with citations. Does no research."),
            ("research", "Answers one question from the documents of the run, with verbatim quotations and their sources."),
            ("worker", "Carries out a task with the files of the run."),
        ]
        .map(|(name, about)| offer(name, about, None, 4))
        .to_vec()
    };
    // A single question is planned without a prompt.
    let first = || {
        let made =
            PlanBuilder::with(PlanningMode::Llm, "Compare how licences treat patents.", Budget::default());
        made.with_turn(vec![PlannerTrigger::NoPlan])
    };
    let later = || {
        let mut made = PlanBuilder::started(PlanningMode::Llm);
        made.add("law", "research", &[]).add("facts", "research", &[]);
        made.add("report", "producer", &["law", "facts"]).last("report").completed("law").failed("facts");
        made.with_turn(vec![PlannerTrigger::TaskLost { task: id("facts") }])
    };
    let sized = |plan, ability, form: Option<PlanningForm>| {
        let seen: PlanningSnapshot = seen_by(&plan, ability, offers());
        let form = form.unwrap_or(seen.form);
        planner_size(&Arc::new(PlanningTurn::new(plan, PlanningSnapshot { form, ..seen })))
    };
    use ModelAbility::{Small, Strong};
    vec![
        ("planner, first turn, small".into(), sized(first(), Small, None)),
        (
            "planner, first turn with other capabilities, small".into(),
            sized(first(), Small, Some(PlanningForm::Tasks)),
        ),
        ("planner, first turn, strong".into(), sized(first(), Strong, None)),
        ("planner, later turn, small".into(), sized(later(), Small, None)),
        ("planner, later turn, strong".into(), sized(later(), Strong, None)),
    ]
}

/// Measures a prompt. Lines with a bar, which hold passages and results, do not count.
fn measure_prompt(system: &str, tools: &[String], form: &Value, task: &str) -> PromptSize {
    let own: Vec<&str> = task.lines().filter(|line| !line.starts_with("| ")).collect();
    PromptSize {
        instructions: count_tokens(system),
        tools: tools.iter().map(|tool| count_tokens(tool)).sum(),
        form: count_tokens(&form.to_string()),
        task: count_tokens(&own.join("\n")),
    }
}

fn size_of_request(request: &Request) -> PromptSize {
    let Message::User { text } = &request.messages[0] else { panic!("the task comes first") };
    let tools: Vec<String> = request.tools.iter().map(|tool| serde_json::to_string(tool).unwrap()).collect();
    measure_prompt(&request.system, &tools, &request.answer.as_ref().unwrap().schema, text)
}

fn finding() -> TaskResult {
    let source = json!({"id": "S1", "kind": "document", "title": "Tarn 20", "location": "tarn.md"});
    let quotation =
        |text: &str, line: u32| json!({"source": "S1", "text": text, "first_line": line, "last_line": line});
    let quotations = [quotation("It weighs 1.4 kg.", 4), quotation("Its battery lasts nine hours.", 5)];
    TaskResult {
        summary: "It weighs 1.4 kg.".into(),
        output: "The Tarn 20 weighs 1.4 kg [S1]. Its battery lasts nine hours [S1].".into(),
        sources: vec![serde_json::from_value(source).unwrap()],
        quotations: quotations.map(|one| serde_json::from_value(one).unwrap()).to_vec(),
        ..TaskResult::default()
    }
}

async fn research_size(ability: &str) -> PromptSize {
    let answer = json!({"quotations": [], "output": "x", "summary": "x", "notes": "1 thing is missing"});
    let mut task = ScriptedTask::research(ability, OBJECTIVE, vec![answer]);
    task.run().await.unwrap();
    size_of_request(&task.requests()[0])
}

async fn producer_size(ability: &str) -> PromptSize {
    let answer = json!({"output": "The Tarn 20 weighs 1.4 kg [1].", "summary": "x", "notes": "nothing"});
    let answer = match ability {
        "small" => json!({"output": answer["output"], "notes": "nothing"}),
        _ => answer,
    };
    let mut task =
        ScriptedTask { capability: PRODUCER, ..ScriptedTask::research(ability, OBJECTIVE, vec![answer]) };
    task.inputs = vec![("research-1", finding())];
    task.run().await.unwrap();
    size_of_request(&task.requests()[0])
}

fn critic_size(ability: ModelAbility) -> PromptSize {
    let task = ReviewTask {
        task_id: TaskId::new("research-1").unwrap(),
        objective: OBJECTIVE.into(),
        run_objective: OBJECTIVE.into(),
        capability: "research".into(),
        criteria: vec!["It names the weight.".into(), "It answers the objective.".into()],
        documents: DocumentList::default(),
        result: finding(),
        is_cut: false,
        review: 1,
    };
    let toolbox = ReviewEvidence::default().open_tools(&task, ability);
    let brief = build_review_brief(&task, &toolbox, ability);
    let tools: Vec<String> = brief.tools.iter().map(|tool| serde_json::to_string(tool).unwrap()).collect();
    measure_prompt(&brief.system, &tools, &brief.answer.unwrap().schema, &brief.task)
}

async fn roles() -> Vec<(String, PromptSize)> {
    let mut rows = Vec::new();
    for ability in ModelAbility::ALL {
        let name = ability.name();
        rows.push((format!("research, {name}"), research_size(name).await));
        rows.push((format!("producer, {name}"), producer_size(name).await));
        rows.push((format!("critic, {name}"), critic_size(ability)));
    }
    rows
}

#[tokio::test]
async fn prompts_have_the_sizes_of_the_golden_table() {
    let mut table = String::from(
        "Tokens of each prompt (o200k). task: the planner's board, or a task, without documents and passages.\n\n",
    );
    writeln!(
        table,
        "{:<52} {:>5} {:>12} {:>6} {:>5} {:>5}",
        "role", "all", "instructions", "tools", "form", "task"
    )
    .unwrap();
    for (role, size) in planners().into_iter().chain(roles().await) {
        let PromptSize { instructions, tools, form, task } = size;
        let all = size.fixed() + task;
        writeln!(table, "{role:<52} {all:>5} {instructions:>12} {tools:>6} {form:>5} {task:>5}").unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    assert_eq!(table, std::fs::read_to_string(&path).unwrap(), "UPDATE_GOLDEN=1 rewrites {GOLDEN}");
}

#[test]
fn prompts_of_planners_stay_within_their_limits() {
    for (role, size) in planners() {
        // The board of a first turn is part of it; that of a later one grows with its plan.
        let (limit, board) = if role.contains("first turn") { (600, size.task) } else { (1_200, 0) };
        assert!(size.fixed() + board <= limit, "{role}: {} and {} tokens", size.fixed(), size.task);
    }
}

#[tokio::test]
async fn prompts_for_small_models_stay_within_their_limits() {
    for (role, limit) in [("research, small", 400), ("producer, small", 500), ("critic, small", 600)] {
        let rows = roles().await;
        let (_, size) = rows.iter().find(|(name, _)| name == role).unwrap();
        let all = size.fixed() + size.task;
        assert!(all <= limit, "{role}: {all} tokens");
    }
}
