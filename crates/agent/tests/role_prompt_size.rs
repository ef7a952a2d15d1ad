//! The size of the prompts of research, producer and critic in tokens, as a golden table: a change of a prompt shows up in
//! review. `UPDATE_GOLDEN=1` rewrites it. The planner's prompts have a table of their own.

#![allow(clippy::unwrap_used, reason = "a test and its helpers may panic")]

#[path = "answers/support.rs"]
mod support;

use std::fmt::Write;
use std::path::Path;

use millrace_agent::critic::{ReviewEvidence, ReviewTask, build_review_brief};
use millrace_agent::model::{Message, ModelAbility, Request};
use millrace_agent::roles::DocumentList;
use millrace_agent::turn::ConversationFormat;
use millrace_protocol::ids::TaskId;
use millrace_protocol::result::TaskResult;
use serde_json::{Value, json};

use support::{PRODUCER, ScriptedTask};

const GOLDEN: &str = "tests/golden/role_prompt_tokens.txt";
const OBJECTIVE: &str = "How much does the Tarn 20 weigh, and how long does its battery last?";

/// The parts of a prompt, in tokens.
struct PromptSize {
    instructions: usize,
    tools: usize,
    form: usize,
    /// The first message without the lines of passages and results.
    task: usize,
}

impl PromptSize {
    fn measure(system: &str, tools: &[String], form: &Value, task: &str) -> Self {
        let own: Vec<&str> = task.lines().filter(|line| !line.starts_with("| ")).collect();
        Self {
            instructions: count_tokens(system),
            tools: tools.iter().map(|tool| count_tokens(tool)).sum(),
            form: count_tokens(&form.to_string()),
            task: count_tokens(&own.join("\n")),
        }
    }

    fn of_request(request: &Request) -> Self {
        let Message::User { text } = &request.messages[0] else { panic!("the task comes first") };
        let tools: Vec<String> =
            request.tools.iter().map(|tool| serde_json::to_string(tool).unwrap()).collect();
        Self::measure(&request.system, &tools, &request.answer.as_ref().unwrap().schema, text)
    }

    fn all(&self) -> usize {
        self.instructions + self.tools + self.form + self.task
    }
}

fn count_tokens(text: &str) -> usize {
    tiktoken_rs::o200k_base_singleton().encode_ordinary(text).len()
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
    PromptSize::of_request(&task.requests()[0])
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
    PromptSize::of_request(&task.requests()[0])
}

fn critic_size(ability: ModelAbility) -> PromptSize {
    let format = ConversationFormat::current(ability);
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
    let toolbox = ReviewEvidence::default().open_tools(&task, format);
    let brief = build_review_brief(&task, &toolbox, format);
    let tools: Vec<String> = brief.tools.iter().map(|tool| serde_json::to_string(tool).unwrap()).collect();
    PromptSize::measure(&brief.system, &tools, &brief.answer.unwrap().schema, &brief.task)
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
        "Tokens of each prompt (o200k). task: the first message without the lines of passages and results.\n\n",
    );
    writeln!(
        table,
        "{:<20} {:>5} {:>12} {:>6} {:>5} {:>5}",
        "role", "all", "instructions", "tools", "form", "task"
    )
    .unwrap();
    for (role, size) in roles().await {
        let PromptSize { instructions, tools, form, task } = size;
        let all = size.all();
        writeln!(table, "{role:<20} {all:>5} {instructions:>12} {tools:>6} {form:>5} {task:>5}").unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    assert_eq!(table, std::fs::read_to_string(&path).unwrap(), "UPDATE_GOLDEN=1 rewrites {GOLDEN}");
}

#[tokio::test]
async fn prompts_for_small_models_stay_within_their_limits() {
    for (role, limit) in [("research, small", 400), ("producer, small", 500), ("critic, small", 600)] {
        let rows = roles().await;
        let (_, size) = rows.iter().find(|(name, _)| name == role).unwrap();
        assert!(size.all() <= limit, "{role}: {} tokens", size.all());
    }
}
