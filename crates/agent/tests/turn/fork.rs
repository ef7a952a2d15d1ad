//! Forks: tasks that continue the conversation of the agent that delegates them.

use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::model::{DeltaListener, Message, Model, ModelError, Reply, Request};
use millrace_agent::spec::{AgentAccess, ForkAccess};
use millrace_agent::tool::{ChildLimits, ChildTasks, Toolbox, append_note_tool, start_task_tool, task_tool};
use millrace_agent::turn::{
    ContinuedConversation, Conversation, DriveError, ForkedConversation, Machine, MemoryHost, PlainText,
    WorkOutcome, WorkSummary, format_fork_task,
};
use millrace_protocol::ids::{Lane, RunId, TaskId};
use millrace_protocol::plan::{TaskSpec, Work};
use millrace_protocol::wire::InlineOrStoredBytes;
use millrace_protocol::work::Order;
use serde_json::{Value, json};

use super::delegation::{Cluster, capability, parked, recorded, task};
use super::support::{self, Scripted, brief, call, calls, conversation, look, named, names, says};

/// A scripted model that keeps the requests that it gets.
struct Listening {
    scripted: Arc<Scripted>,
    requests: Mutex<Vec<Request>>,
}

impl Listening {
    fn new(replies: Vec<Reply>) -> Arc<Self> {
        Arc::new(Self { scripted: Scripted::new(replies), requests: Mutex::default() })
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

impl Model for Listening {
    fn name(&self) -> &str {
        self.scripted.name()
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        listener: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        self.requests.lock().unwrap().push(request.clone());
        self.scripted.reply(request, listener).boxed()
    }
}

fn order(task: &str) -> Order {
    let work = Work::Task { task: TaskId::new(task).unwrap(), attempt: 1 };
    Order::new(RunId::new("r").unwrap(), Lane(0), work, "lead", capability("other"))
}

/// The tools of the capability `other` for an order.
fn toolbox(order: &Order, fork: Option<ForkAccess>) -> Toolbox {
    let access = AgentAccess { agents: Some(Vec::new()), fork, ..AgentAccess::default() };
    let children = ChildTasks::new(order, access, Arc::new(Cluster), None, Vec::new()).unwrap();
    let children = Arc::new(children);
    Toolbox::new([task_tool(children.clone()), start_task_tool(children), look().0, append_note_tool()])
        .unwrap()
}

fn allowed() -> Option<ForkAccess> {
    Some(ForkAccess { max: Some(2), limits: ChildLimits { turns: Some(7), ..ChildLimits::default() } })
}

fn fork_call(id: &str, description: &str) -> millrace_agent::model::ToolCall {
    task(id, &json!({"description": description, "capability": "other", "mode": "fork"}))
}

async fn drive(
    conversation: Conversation,
    journal: &mut MemoryHost,
) -> Result<WorkSummary<PlainText>, DriveError> {
    support::drive(conversation, journal).await.map_err(|failure| *failure.error)
}

/// An agent that looks and takes a note, and then forks itself twice in a message.
fn replies_of_parent() -> Vec<Reply> {
    let note = named("n", "append_note", &json!({"note": "the mill is red"}).to_string());
    let look = vec![call("l", json!({"at": "mill"})), note];
    vec![calls(look), calls(vec![fork_call("a", "count the sails"), fork_call("b", "count the doors")])]
}

async fn run_parent(journal: &mut MemoryHost) -> (Arc<Listening>, Vec<TaskSpec>) {
    let (tools, model) = (toolbox(&order("t"), allowed()), Listening::new(replies_of_parent()));
    let ended = drive(conversation(&model, &tools), journal).await;
    (model, parked(ended).1)
}

fn conversation_of(child: &TaskSpec) -> ForkedConversation {
    match child.fork.as_deref() {
        Some(InlineOrStoredBytes::Inline(bytes)) => serde_json::from_slice(bytes).unwrap(),
        other => panic!("no conversation: {other:?}"),
    }
}

/// The conversation of the attempt at a fork, as a session makes it.
fn fork_attempt(child: &TaskSpec, model: &Arc<Listening>) -> Conversation {
    let order = Order { fork: child.fork.clone(), objective: child.objective.clone(), ..order("t-1-1-0") };
    let (tools, fork) = (toolbox(&order, allowed()), conversation_of(child));
    // Another release may have other instructions by now.
    let other = millrace_agent::turn::AgentBrief { system: "Changed.".into(), ..brief(&tools, None) };
    let brief = fork.to_brief(other);
    let next = format_fork_task(&order);
    let mut conversation = Conversation::new(brief, model.clone(), tools);
    conversation.continued = Some(ContinuedConversation { conversation: fork, next, has_passages: false });
    conversation
}

fn bytes_of(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

#[tokio::test]
async fn first_request_of_a_fork_begins_with_the_bytes_of_its_parents_last_one() {
    let (model, children) = run_parent(&mut MemoryHost::default()).await;
    assert_eq!(children.len(), 2);
    let before = model.requests().pop().unwrap();
    for (child, at) in children.iter().zip(0..) {
        assert_eq!(child.overrides.as_ref().unwrap().turns, Some(7), "the limits of forks");
        let model = Listening::new(vec![Reply::default(), Reply::default(), says("four")]);
        let summary = drive(fork_attempt(child, &model), &mut MemoryHost::default()).await.unwrap();
        assert_eq!(summary.outcome, WorkOutcome::Answered(PlainText("four".into())));
        assert_eq!(summary.usage.model_calls, 1, "no reply of its parent is requested again");
        let first = model.requests().remove(0);
        assert_eq!((&first.system, bytes_of(&first.tools)), (&before.system, bytes_of(&before.tools)));
        let (beginning, whole) = (bytes_of(&before.messages), bytes_of(&first.messages));
        let beginning = beginning.strip_suffix(b"]").unwrap();
        assert!(whole.starts_with(beginning), "the beginning is the same, byte for byte");
        let rest = &first.messages[before.messages.len()..];
        assert!(matches!(&rest[0], Message::Assistant { calls, .. } if calls.len() == 2));
        let results: Vec<&str> = rest[1..]
            .iter()
            .map(|message| match message {
                Message::Tool(result) => result.text.as_str(),
                Message::User { .. } | Message::Assistant { .. } => panic!("{message:?}"),
            })
            .collect();
        let tasks = ["count the sails", "count the doors"];
        assert!(results[at].starts_with("You are a fork") && results[at].ends_with(tasks[at]), "{results:?}");
        assert!(results[1 - at].contains("You do not get its result"), "{results:?}");
    }
}

/// A worker that takes the parent over makes the same forks, and one that takes a fork over has the same conversation.
#[tokio::test]
async fn forks_are_the_same_after_a_takeover() {
    let mut journal = MemoryHost::default();
    let (_, children) = run_parent(&mut journal).await;
    let mut again = MemoryHost::with_steps(journal.steps().to_vec());
    let (model, repeated) = run_parent(&mut again).await;
    assert_eq!((repeated, model.requests().len()), (children.clone(), 0));

    let replies = || {
        let looks = calls(vec![call("x", json!({"at": "sails"}))]);
        vec![Reply::default(), Reply::default(), looks, says("four")]
    };
    let mut journal = MemoryHost::default();
    let attempt = fork_attempt(&children[0], &Listening::new(replies()));
    let whole = drive(attempt, &mut journal).await.unwrap();
    for kept in 0..journal.steps().len() {
        let mut cut = MemoryHost::with_steps(journal.steps()[..kept].to_vec());
        let attempt = fork_attempt(&children[0], &Listening::new(replies()));
        let resumed = drive(attempt, &mut cut).await.unwrap();
        assert_eq!((&resumed.outcome, resumed.usage), (&whole.outcome, whole.usage));
        assert_eq!(cut.steps().len(), journal.steps().len());
    }
}

/// A fork has the notes of its parent and no delegation.
#[tokio::test]
async fn fork_has_the_notes_and_can_not_delegate() {
    let (_, children) = run_parent(&mut MemoryHost::default()).await;
    let plain = task("c", &json!({"description": "x", "capability": "other"}));
    let turn = calls(vec![fork_call("b", "again"), plain]);
    let model = Listening::new(vec![Reply::default(), Reply::default(), turn, says("alone")]);
    let mut journal = MemoryHost::default();
    let machine: Machine<PlainText> = fork_attempt(&children[0], &model).begin();
    assert!(machine.partial_result().unwrap().contains("the mill is red"));
    drive(fork_attempt(&children[0], &model), &mut journal).await.unwrap();
    for step in ["tool.0.0.task", "tool.0.1.task"] {
        let (text, is_error) = recorded(&journal, step);
        assert!(is_error && text.contains("a fork can't delegate"), "{text}");
    }
}

/// The conversation of a shared agent is recorded once, after its answer, and the next call continues it.
#[tokio::test]
async fn call_of_a_shared_agent_continues_after_the_last_answer() {
    let (tools, model) = (toolbox(&order("t"), None), Listening::new(vec![says("one")]));
    let record = async |mut conversation: Conversation, journal: &mut MemoryHost| {
        conversation.is_recorded = true;
        drive(conversation, journal).await.unwrap()
    };
    let mut journal = MemoryHost::default();
    record(conversation(&model, &tools), &mut journal).await;
    assert_eq!(names(&journal), ["model.0", "conversation"]);
    for kept in 0..=2 {
        let mut cut = MemoryHost::with_steps(journal.steps()[..kept].to_vec());
        record(conversation(&Scripted::new(vec![says("one")]), &tools), &mut cut).await;
        assert_eq!(names(&cut), ["model.0", "conversation"], "it is recorded once");
    }
    let before = model.requests().remove(0);
    let ended: ForkedConversation = serde_json::from_value(journal.steps()[1].value.clone()).unwrap();
    // The tools are those of the call: it has no others in its toolbox.
    let tools = Toolbox::new([look().0]).unwrap();
    let model = Listening::new(vec![Reply::default(), says("two")]);
    let mut next = Conversation::new(ended.to_brief(brief(&tools, None)), model.clone(), tools);
    let doors = "And the doors?".into();
    next.continued = Some(ContinuedConversation { conversation: ended, next: doors, has_passages: true });
    let summary = drive(next, &mut MemoryHost::default()).await.unwrap();
    assert_eq!(
        (summary.outcome, summary.usage.model_calls),
        (WorkOutcome::Answered(PlainText("two".into())), 1)
    );
    let first = model.requests().remove(0);
    assert_eq!((&first.system, &first.messages[0]), (&before.system, &before.messages[0]));
    let names = |request: &Request| request.tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
    assert_eq!((names(&first).join(" "), names(&before).len()), ("look".to_owned(), 4));
    assert!(matches!(&first.messages[1], Message::Assistant { text, .. } if text == "one"));
    assert_eq!(first.messages[2], Message::User { text: "And the doors?".into() });
}

#[tokio::test]
async fn only_what_the_file_allows_is_forked() {
    let refused = async |fork: Option<ForkAccess>, calls_of_turn: Vec<millrace_agent::model::ToolCall>| {
        let (tools, mut journal) = (toolbox(&order("t"), fork), MemoryHost::default());
        let model = Scripted::new(vec![calls(calls_of_turn), says("done")]);
        let ended = drive(conversation(&model, &tools), &mut journal).await;
        (ended, journal)
    };
    let has_mode = |fork| {
        let tools = toolbox(&order("t"), fork);
        let schema = tools.get("task").unwrap().spec().schema;
        schema["properties"].get("mode").is_some()
    };
    assert!(has_mode(allowed()) && !has_mode(None), "only an agent that may fork is offered the mode");
    let wrong = task("a", &json!({"description": "x", "capability": "research", "mode": "fork"}));
    let (_, journal) = refused(allowed(), vec![wrong]).await;
    assert!(recorded(&journal, "tool.0.0.task").0.contains("a fork is of the capability other"));
    let start = |id: &str| {
        let arguments: Value = json!({"description": "x", "capability": "other", "mode": "fork"});
        named(id, "start_task", &arguments.to_string())
    };
    let (ended, journal) = refused(allowed(), vec![start("a"), start("b"), start("c")]).await;
    ended.unwrap();
    assert!(recorded(&journal, "tool.0.2.start_task").0.contains("at most 2 of its tasks to other"));
    let started: Vec<&TaskSpec> = journal.delegations().iter().flat_map(|one| &one.children).collect();
    assert_eq!(started.len(), 2);
    assert!(started.iter().all(|child| conversation_of(child).ability() == Default::default()));
}
