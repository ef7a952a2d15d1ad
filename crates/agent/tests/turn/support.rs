//! Helpers for the tests of the turn: a scripted model, a tool `look`, and constructors of replies and calls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::model::{
    AnswerSchema, DeltaListener, FinishReason, Message, Model, ModelAbility, ModelError, Reply, Request,
    ToolCall, ToolResult,
};
use millrace_agent::tool::{Tool, ToolError, Toolbox, tool_from_function};
use millrace_agent::turn::{
    AgentBrief, Answer, AttemptName, Conversation, Host, Limits, Machine, MemoryHost, ToolCallRecord,
    WorkFailure, WorkSummary,
};
use millrace_protocol::ids::{Capability, Lane, RunId, TaskId};
use millrace_protocol::plan::Work;
use millrace_protocol::result::Usage;
use millrace_protocol::work::Order;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// A model that answers the n-th turn of a conversation with the n-th reply, and counts the requests for each.
pub struct Scripted {
    replies: Vec<Reply>,
    requests: Mutex<BTreeMap<usize, usize>>,
}

impl Scripted {
    pub fn new(replies: Vec<Reply>) -> Arc<Self> {
        Arc::new(Self { replies, requests: Mutex::default() })
    }

    pub fn requests_by_turn(&self) -> BTreeMap<usize, usize> {
        self.requests.lock().unwrap().clone()
    }
}

impl Model for Scripted {
    fn name(&self) -> &str {
        "test:scripted"
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        _: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        let turn = request.messages.iter().filter(|m| matches!(m, Message::Assistant { .. })).count();
        *self.requests.lock().unwrap().entry(turn).or_default() += 1;
        let reply = self.replies.get(turn).cloned();
        let missing =
            || ModelError::Overloaded { retry_after: None, message: format!("no reply for turn {turn}") };
        futures::future::ready(reply.ok_or_else(missing)).boxed()
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Look {
    /// The object to look at.
    pub at: String,
    /// The magnification.
    pub depth: Option<Depth>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    Near,
    Far,
}

/// A tool that counts its runs.
pub fn look() -> (Arc<dyn Tool>, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let look = tool_from_function("look", "Looks.", move |Look { at, depth }: Look, _| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move {
            match at.as_str() {
                "nothing" => Err(ToolError::Refused("there is nothing".into())),
                "down" => Err(ToolError::Unavailable("the store is down".into())),
                "abyss" => panic!("it looked back"),
                _ => Ok(format!("saw {at}{}", if depth.is_some() { " closely" } else { "" })),
            }
        }
    });
    (look, runs)
}

/// A toolbox with that tool.
pub fn toolbox() -> (Toolbox, Arc<AtomicUsize>) {
    let (look, runs) = look();
    (Toolbox::new([look]).unwrap(), runs)
}

pub fn brief(toolbox: &Toolbox, answer: Option<AnswerSchema>) -> AgentBrief {
    AgentBrief {
        system: "You look.".into(),
        task: "Look.".into(),
        tools: toolbox.specs(),
        answer,
        limits: Limits::default(),
        max_output_tokens: 100,
        ability: ModelAbility::Strong,
    }
}

pub fn limited(toolbox: &Toolbox, limits: Limits) -> AgentBrief {
    AgentBrief { limits, ..brief(toolbox, None) }
}

pub fn named(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall { id: id.into(), name: name.into(), arguments: arguments.into() }
}

pub fn call(id: &str, arguments: Value) -> ToolCall {
    named(id, "look", &arguments.to_string())
}

pub fn calls(calls: Vec<ToolCall>) -> Reply {
    let usage = Usage { input_tokens: 10, output_tokens: 1, ..Usage::default() };
    Reply { calls, usage, finish: FinishReason::ToolCalls, ..Reply::default() }
}

pub fn says(text: &str) -> Reply {
    Reply { text: text.into(), ..Reply::default() }
}

pub fn result(id: &str, text: &str) -> ToolCallRecord {
    let result = ToolResult { call_id: id.into(), text: text.into(), is_error: false, images: Vec::new() };
    ToolCallRecord {
        result,
        usage: Usage::default(),
        models: BTreeMap::new(),
        delegated: Usage::default(),
        artifacts: Vec::new(),
        has_effects: false,
        is_progress: false,
        page: None,
        took_ms: 0,
    }
}

pub async fn run<A: Answer>(
    brief: AgentBrief,
    toolbox: &Toolbox,
    replies: Vec<Reply>,
) -> (WorkSummary<A>, MemoryHost) {
    let mut journal = MemoryHost::default();
    let conversation = Conversation::new(brief, Scripted::new(replies), toolbox.clone());
    let ended = tokio::time::timeout(Duration::from_secs(20), drive(conversation, &mut journal));
    (ended.await.expect("the work ends").unwrap(), journal)
}

/// A conversation that looks, with a model that the test keeps.
pub fn conversation<M: Model + 'static>(model: &Arc<M>, toolbox: &Toolbox) -> Conversation {
    Conversation::new(brief(toolbox, None), model.clone(), toolbox.clone())
}

/// Drives a conversation whose answers are not checked.
pub async fn drive<A: Answer>(
    conversation: Conversation,
    journal: &mut dyn Host,
) -> Result<WorkSummary<A>, WorkFailure> {
    conversation.drive(journal, &|answer: A| Ok(answer)).await
}

/// The names of a journal's steps.
pub fn names(journal: &MemoryHost) -> Vec<&str> {
    journal.steps().iter().map(|step| step.name.as_str()).collect()
}

/// The tool results in a machine's conversation.
pub fn tool_results<A: Answer>(machine: &Machine<A>) -> Vec<ToolResult> {
    results_in(machine.messages())
}

pub fn results_in(messages: &[Message]) -> Vec<ToolResult> {
    let results = messages.iter().filter_map(|message| match message {
        Message::Tool(result) => Some(result.clone()),
        Message::User { .. } | Message::Assistant { .. } => None,
    });
    results.collect()
}

/// The user's messages in a machine's conversation.
pub fn user_messages<A: Answer>(machine: &Machine<A>) -> Vec<String> {
    let texts = machine.messages().iter().filter_map(|message| match message {
        Message::User { text } => Some(text.clone()),
        Message::Assistant { .. } | Message::Tool(_) => None,
    });
    texts.collect()
}

/// The second attempt at a task.
pub fn attempt() -> AttemptName {
    AttemptName::from_order(&order(Work::Task { task: TaskId::new("t1").unwrap(), attempt: 2 }))
}

pub fn order(work: Work) -> Order {
    Order::new(RunId::new("r1").unwrap(), Lane(0), work, "", Capability::new("c").unwrap())
}
