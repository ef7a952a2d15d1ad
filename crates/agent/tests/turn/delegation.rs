//! Calls that delegate tasks: the delegated tasks, their budgets, and their results for the model.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use millrace_agent::model::Reply;
use millrace_agent::sources::{OrderInputError, OrderInputs};
use millrace_agent::spec::{AgentAccess, AskableAgent};
use millrace_agent::tool::{
    ChildLimits, ChildTasks, ResultEntry, TaskResultSource, ToolError, Toolbox, start_task_tool, task_tool,
    wait_for_tool,
};
use millrace_agent::turn::{DriveError, MemoryHost, PlainText, WorkOutcome, WorkSummary};
use millrace_protocol::child::{EndedTask, TaskEnd};
use millrace_protocol::ids::{Capability, Lane, RunId, TaskId};
use millrace_protocol::overrides::AgentOverrides;
use millrace_protocol::plan::{ResourceAmounts, TaskSpec, Work};
use millrace_protocol::result::{
    CapabilityDescription, ErrorKind, ExceededLimit, Source, SourceKind, TaskResult, Usage,
};
use millrace_protocol::wait::{EndedWait, Wait, WaitEnd};
use millrace_protocol::work::{InputResult, Order};
use serde_json::{Value, json};

use super::support::{self, Scripted, calls, conversation, named, names, says};

/// A cluster with the capabilities `research`, `numbers` and `other`.
pub struct Cluster;

pub fn capability(name: &str) -> Capability {
    Capability::new(name).unwrap()
}

impl OrderInputs for Cluster {
    fn read_result<'a>(&'a self, _: &'a InputResult) -> BoxFuture<'a, Result<TaskResult, OrderInputError>> {
        ready(Err(OrderInputError::Broken("there is none".into()))).boxed()
    }

    fn read_blob<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<u8>, OrderInputError>> {
        ready(Err(OrderInputError::Broken("there is none".into()))).boxed()
    }

    fn read_capabilities(&self) -> BoxFuture<'_, Result<Vec<CapabilityDescription>, OrderInputError>> {
        let about = |name: &str| CapabilityDescription::new(capability(name), format!("does {name}"));
        let parameters =
            json!({"type": "object", "required": ["unit"], "properties": {"unit": {"type": "string"}}});
        let numbers = CapabilityDescription {
            output: Some(json!({"type": "object"})),
            parameters: Some(parameters),
            ..about("numbers")
        };
        ready(Ok(vec![about("research"), numbers, about("other"), about("planner")])).boxed()
    }
}

/// The results of the children.
struct Results;

impl TaskResultSource for Results {
    fn list_results(&self) -> BoxFuture<'_, Result<Vec<ResultEntry>, ToolError>> {
        ready(Ok(Vec::new())).boxed()
    }

    fn get_result<'a>(&'a self, task: &'a TaskId) -> BoxFuture<'a, Result<Option<TaskResult>, ToolError>> {
        let source = Source {
            id: "S1".into(),
            kind: SourceKind::Document,
            title: "Mills".into(),
            location: "mills.txt".into(),
            sha256: None,
            accessed_at: None,
        };
        let result = match task.as_str() {
            "t-1-0-0" => {
                TaskResult { output: "Found [S1].".into(), sources: vec![source], ..TaskResult::default() }
            }
            _ => TaskResult { data: Some(json!({"count": "seven"})), ..TaskResult::default() },
        };
        ready(Ok(Some(result))).boxed()
    }
}

fn toolbox(access: AgentAccess) -> Toolbox {
    let work = Work::Task { task: TaskId::new("t").unwrap(), attempt: 1 };
    let order = Order::new(RunId::new("r").unwrap(), Lane(0), work, "lead", capability("lead"));
    let known = vec![CapabilityDescription::new(capability("research"), "does research")];
    let results: Option<Arc<dyn TaskResultSource>> = Some(Arc::new(Results));
    let children = ChildTasks::new(&order, access, Arc::new(Cluster), results, known).unwrap();
    let own = ["task", "start_task", "wait_for"].map(str::to_owned);
    let children = Arc::new(children.with_own_tools(own.into()));
    let tools = [task_tool(children.clone()), start_task_tool(children.clone()), wait_for_tool(children)];
    Toolbox::new(tools).unwrap()
}

pub fn task(id: &str, arguments: &Value) -> millrace_agent::model::ToolCall {
    named(id, "task", &arguments.to_string())
}

async fn drive(
    replies: Vec<Reply>,
    tools: &Toolbox,
    journal: &mut MemoryHost,
    reserved: ResourceAmounts,
) -> Result<WorkSummary<PlainText>, DriveError> {
    let model = Scripted::new(replies);
    let mut conversation = conversation(&model, tools);
    conversation.allowance = reserved;
    support::drive(conversation, journal).await.map_err(|failure| *failure.error)
}

pub fn parked(ended: Result<WorkSummary<PlainText>, DriveError>) -> (Vec<Wait>, Vec<TaskSpec>) {
    match ended {
        Err(DriveError::Parked(waits, children)) => (waits, children),
        other => panic!("it is not parked: {other:?}"),
    }
}

fn ended(key: &str, task: &str, end: TaskEnd, tokens: u64) -> EndedWait {
    let usage = Usage { model_calls: 1, input_tokens: tokens, ..Usage::default() };
    let ended = EndedTask { task: TaskId::new(task).unwrap(), end, usage };
    EndedWait { key: key.into(), end: WaitEnd::TasksEnded(vec![ended]) }
}

fn completed() -> TaskEnd {
    TaskEnd::Completed { summary: "found".into() }
}

fn tokens(amount: u64) -> ResourceAmounts {
    ResourceAmounts { tokens: Some(amount), ..ResourceAmounts::default() }
}

/// The text of a recorded result, and whether it is an error.
pub fn recorded(journal: &MemoryHost, step: &str) -> (String, bool) {
    let step = journal.steps().iter().find(|recorded| recorded.name == step).unwrap();
    (step.value["text"].as_str().unwrap().to_owned(), step.value["is_error"] == true)
}

fn three_tasks() -> Vec<Reply> {
    let turn = vec![
        task("a", &json!({"description": "look it up", "capability": "research"})),
        task(
            "b",
            &json!({"description": "count", "capability": "numbers", "parameters": {"unit": "mills"},
                          "output": {"type": "object", "properties": {"count": {"type": "integer"}}}}),
        ),
        task("c", &json!({"description": "look again", "capability": "research", "limits": {"tokens": 50}})),
    ];
    vec![calls(turn), says("done")]
}

#[tokio::test]
async fn tasks_of_one_message_run_at_once_and_share_what_is_left() {
    let (tools, mut journal) = (toolbox(AgentAccess::default()), MemoryHost::default());
    let (waits, children) = parked(drive(three_tasks(), &tools, &mut journal, tokens(10_000)).await);
    assert_eq!((waits.len(), children.len()), (3, 3));
    let ids: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
    assert_eq!(ids, ["t-1-0-0", "t-1-0-1", "t-1-0-2"]);
    let budgets: Vec<u64> = children.iter().filter_map(|child| child.budget.tokens).collect();
    // 11 tokens are used, and the next request needs 11: four shares of 9,978.
    assert_eq!(budgets, [2_494, 2_494, 50]);
    assert!(children[1].objective.contains("must match this JSON Schema"), "{}", children[1].objective);

    // Another worker delegates the same.
    let mut again = journal.clone().with_ended_waits(Vec::new());
    let tools = toolbox(AgentAccess::default());
    assert_eq!(parked(drive(three_tasks(), &tools, &mut again, tokens(10_000)).await).1, children);
}

#[tokio::test]
async fn model_gets_results_with_sources_and_structured_errors() {
    let (tools, mut journal) = (toolbox(AgentAccess::default()), MemoryHost::default());
    parked(drive(three_tasks(), &tools, &mut journal, tokens(10_000)).await);
    let failed = TaskEnd::Failed {
        kind: Some(ErrorKind::Limit),
        message: "its budget is used up".into(),
        limit: Some(ExceededLimit::Allowance),
        produced: Some("half of it".into()),
    };
    let ends = vec![
        ended("tool.0.0.task", "t-1-0-0", completed(), 100),
        ended("tool.0.1.task", "t-1-0-1", completed(), 100),
        ended("tool.0.2.task", "t-1-0-2", failed, 40),
    ];
    let mut journal = journal.with_ended_waits(ends);
    let summary = drive(three_tasks(), &tools, &mut journal, tokens(10_000)).await.unwrap();
    assert_eq!(summary.outcome, WorkOutcome::Answered(PlainText("done".into())));
    assert_eq!(summary.usage.input_tokens, 10, "the tasks report what they used");
    let (text, is_error) = recorded(&journal, "tool.0.0.task");
    assert_eq!((text.as_str(), is_error), ("Found [S1].\n\nSources:\n[S1] Mills (mills.txt)", false));
    let (text, is_error) = recorded(&journal, "tool.0.1.task");
    let error: Value = serde_json::from_str(&text).unwrap();
    assert!(is_error && error["kind"] == "wrong_output", "{text}");
    let (text, is_error) = recorded(&journal, "tool.0.2.task");
    let error: Value = serde_json::from_str(&text).unwrap();
    assert!(is_error, "{text}");
    assert_eq!(
        (&error["kind"], &error["limit"], &error["produced"], &error["usage"]["input_tokens"]),
        (&json!("limit"), &json!("allowance"), &json!("half of it"), &json!(40))
    );
}

/// The usage of tasks counts against the attempt's amounts, in the attempt itself and in one that replays it.
#[tokio::test]
async fn usage_of_tasks_counts_against_the_amounts_of_the_attempt() {
    let (tools, mut journal) = (toolbox(AgentAccess::default()), MemoryHost::default());
    let one = || {
        let only = task("a", &json!({"description": "look it up", "capability": "research"}));
        vec![calls(vec![only]), says("done")]
    };
    parked(drive(one(), &tools, &mut journal, tokens(2_000)).await);
    let ends = vec![ended("tool.0.0.task", "t-1-0-0", completed(), 1_985)];
    let mut journal = journal.with_ended_waits(ends.clone());
    let stopped = drive(one(), &tools, &mut journal, tokens(2_000)).await.unwrap();
    assert!(matches!(stopped.outcome, WorkOutcome::Stopped(_)), "{:?}", stopped.outcome);
    assert_eq!(names(&journal), ["model.0", "tool.0.0.task"], "no request is sent any more");
    let mut replayed = MemoryHost::with_steps(journal.steps().to_vec());
    let again = drive(one(), &tools, &mut replayed, tokens(2_000)).await.unwrap();
    assert_eq!(again.outcome, stopped.outcome);
}

#[tokio::test]
async fn bad_calls_are_refused_with_what_there_is() {
    let entry = AskableAgent { max: Some(1), ..AskableAgent::new(capability("research")) };
    let agents = Some(vec![entry, AskableAgent::new(capability("numbers"))]);
    let some = AgentAccess { agents, ..AgentAccess::default() };
    let start = |id: &str, arguments: Value| named(id, "start_task", &arguments.to_string());
    let turns = || {
        let first = vec![
            start("a", json!({"description": "x", "capability": "other"})),
            start("b", json!({"description": "x", "capability": "planner"})),
            start("c", json!({"description": "x", "capability": "numbers"})),
            start("d", json!({"description": "x", "capability": "research", "output": {"type": "object"}})),
            start("e", json!({"description": "x", "capability": "research"})),
        ];
        let second = vec![start("f", json!({"description": "y", "capability": "research"}))];
        vec![calls(first), calls(second), says("done")]
    };
    let (tools, mut journal) = (toolbox(some.clone()), MemoryHost::default());
    drive(turns(), &tools, &mut journal, ResourceAmounts::default()).await.unwrap();
    let expected = [
        ("tool.0.0.start_task", "there is no capability \"other\" to ask; there are: research, numbers"),
        ("tool.0.1.start_task", "there is no capability \"planner\" to ask"),
        ("tool.0.2.start_task", "the parameters do not fit numbers: 'unit' is missing"),
        ("tool.0.3.start_task", "the results of research have no data; leave \"output\" out"),
        ("tool.1.0.start_task", "this task may delegate at most 1 of its tasks to research"),
    ];
    for (step, text) in expected {
        let (found, is_error) = recorded(&journal, step);
        assert!(is_error && found.starts_with(text), "{step}: {found}");
    }
    assert_eq!(
        recorded(&journal, "tool.0.4.start_task"),
        (r#"{"task":"t-1-0-4","state":"starting"}"#.into(), false)
    );
    assert_eq!(journal.delegations().len(), 1);

    // A worker that continues after the first turn knows what was delegated.
    let steps: Vec<_> =
        journal.steps().iter().filter(|step| !step.name.starts_with("tool.1.")).cloned().collect();
    let steps = steps.into_iter().take_while(|step| step.name != "model.2").collect();
    let mut resumed = MemoryHost::with_steps(steps);
    drive(turns(), &toolbox(some), &mut resumed, ResourceAmounts::default()).await.unwrap();
    let (found, is_error) = recorded(&resumed, "tool.1.0.start_task");
    assert!(is_error && found.contains("at most 1 of its tasks to research"), "{found}");
    assert!(resumed.delegations().is_empty());
}

/// The budget of a task in the background counts as used at its start: nothing waits for its end.
#[tokio::test]
async fn background_task_sets_its_budget_aside() {
    let (tools, mut journal) = (toolbox(AgentAccess::default()), MemoryHost::default());
    let arguments = json!({"description": "x", "capability": "research", "limits": {"tokens": 80}});
    let turn = vec![named("a", "start_task", &arguments.to_string())];
    let replies = vec![calls(turn), says("done")];
    let stopped = drive(replies.clone(), &tools, &mut journal, tokens(2_000)).await.unwrap();
    assert!(matches!(stopped.outcome, WorkOutcome::Answered(_)), "{:?}", stopped.outcome);
    let step = journal.steps().iter().find(|step| step.name == "tool.0.0.start_task").unwrap();
    assert_eq!(step.value["delegated"]["input_tokens"], 80);
    assert_eq!(journal.delegations()[0].children[0].budget.tokens, Some(80));
}

/// Overrides of the capability file travel with the task: the stricter limits, and no tool that the asking agent lacks.
#[tokio::test]
async fn task_has_the_overrides_of_the_file() {
    let entry = AskableAgent {
        limits: ChildLimits { turns: Some(5), ..ChildLimits::default() },
        overrides: AgentOverrides {
            model: Some("openai:small".into()),
            tools: Some(["task", "grep", "time__now"].map(str::to_owned).into()),
            ..AgentOverrides::default()
        },
        ..AskableAgent::new(capability("research"))
    };
    let access = AgentAccess { agents: Some(vec![entry]), ..AgentAccess::default() };
    let (tools, mut journal) = (toolbox(access), MemoryHost::default());
    let arguments =
        json!({"description": "x", "capability": "research", "limits": {"turns": 9, "tool_calls": 4}});
    let replies = vec![calls(vec![task("a", &arguments)]), says("done")];
    let (_, children) = parked(drive(replies, &tools, &mut journal, ResourceAmounts::default()).await);
    let overrides = children[0].overrides.clone().unwrap();
    let passed: Vec<&str> = overrides.tools.iter().flatten().map(String::as_str).collect();
    assert_eq!(passed, ["task"], "the asking agent has task, start_task and wait_for");
    assert_eq!((overrides.model.as_deref(), overrides.turns), (Some("openai:small"), Some(5)));
    assert_eq!(overrides.tool_calls, Some(4));
}

#[test]
fn task_at_the_largest_depth_delegates_no_more() {
    let work = Work::Task { task: TaskId::new("t").unwrap(), attempt: 1 };
    let order = Order::new(RunId::new("r").unwrap(), Lane(0), work, "lead", capability("lead"));
    let order = Order { depth: 3, ..order };
    let children = ChildTasks::new(&order, AgentAccess::default(), Arc::new(Cluster), None, Vec::new());
    assert!(children.is_none());
}
