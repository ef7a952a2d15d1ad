//! The decisions and journals of a run as updates for an editor: the plan, tool calls with their states, thoughts. Pure.

use std::collections::HashMap;

use agent_client_protocol::schema::v1::{
    ContentBlock, ContentChunk, Plan as EditorPlan, PlanEntry, PlanEntryPriority, PlanEntryStatus,
    SessionUpdate, TextContent, ToolCall, ToolCallContent, ToolCallId, ToolCallStatus, ToolCallUpdate,
    ToolCallUpdateFields, ToolKind,
};
use millrace_agent::transcript::{ModelCall, ToolCallResult, TranscriptStep};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Decision, JournalKey, Plan, Task, TaskState};
use millrace_protocol::question::{QuestionAsker, QuestionId};
use millrace_protocol::safe_text::{single_line, terminal_text};
use millrace_views::journal::{TranscriptEntry, TranscriptEvent};
use serde_json::Value;

use crate::history::RunHistory;

/// The maximum number of characters of a tool's result that an editor gets. The transcript of the run has all of it.
const MAX_RESULT: usize = 8_000;
/// The maximum number of characters of a title.
const MAX_TITLE: usize = 120;

/// Derives the updates of a run from its log.
pub struct RunUpdates {
    run: RunId,
    pub history: RunHistory,
    /// The plan that was sent last.
    sent: Vec<PlanEntry>,
    /// The tool calls without a result, by journal and the model's id of the call.
    open: HashMap<(JournalKey, String), OpenCall>,
}

struct OpenCall {
    id: ToolCallId,
    tool: String,
    arguments: Value,
}

impl RunUpdates {
    pub fn new(run: &RunId) -> Self {
        Self { run: run.clone(), history: RunHistory::default(), sent: Vec::new(), open: HashMap::new() }
    }

    pub fn plan(&self) -> &Plan {
        &self.history.plan
    }

    pub fn add_decision(&mut self, decision: &Decision) -> Vec<SessionUpdate> {
        self.history.add_decision(decision);
        let entries: Vec<PlanEntry> = self.plan().tasks().iter().map(plan_entry).collect();
        if entries == self.sent {
            return Vec::new();
        }
        self.sent.clone_from(&entries);
        vec![SessionUpdate::Plan(EditorPlan::new(entries))]
    }

    pub fn add_entry(&mut self, entry: &TranscriptEntry) -> Vec<SessionUpdate> {
        let journal = &entry.journal;
        match (&entry.event, journal) {
            // Critics and the judges of a panel check what others did.
            (_, JournalKey::Review(..)) => Vec::new(),
            (TranscriptEvent::Proposal { proposal, .. }, _) => thought(&proposal.reasoning),
            (_, JournalKey::Planning(..)) => Vec::new(),
            (TranscriptEvent::Step(TranscriptStep::ModelCall(call)), _) if call.judge.is_none() => {
                self.add_model_call(journal, call)
            }
            (TranscriptEvent::Step(TranscriptStep::ToolResult(result)), _) if result.judge.is_none() => {
                self.add_tool_result(journal, result)
            }
            (TranscriptEvent::Result { .. }, _) => self.close_calls(journal, ToolCallStatus::Completed),
            (TranscriptEvent::Error { .. }, _) => self.close_calls(journal, ToolCallStatus::Failed),
            (
                TranscriptEvent::Step(_)
                | TranscriptEvent::Claimed { .. }
                | TranscriptEvent::Released { .. }
                | TranscriptEvent::Parked { .. }
                | TranscriptEvent::Delegated { .. }
                | TranscriptEvent::Note { .. }
                | TranscriptEvent::Verdict { .. }
                | TranscriptEvent::StoredStep { .. }
                | TranscriptEvent::Unreadable { .. },
                _,
            ) => Vec::new(),
        }
    }

    /// Returns the id of the open tool call that a question of its attempt is about, if the transcript has it.
    pub fn call_of_question(
        &self,
        question: &QuestionId,
        tool: &str,
        arguments: &Value,
    ) -> Option<ToolCallId> {
        let QuestionAsker::Attempt(task, attempt) = &question.asker else { return None };
        let journal = JournalKey::Task(task.clone(), *attempt);
        let calls = self.open.iter().filter(|((of, _), call)| *of == journal && call.tool == tool);
        let mut calls = calls.map(|(_, call)| call);
        calls.find(|call| call.arguments == *arguments).map(|call| call.id.clone())
    }

    /// `true` if a tool call of an agent has no result yet.
    pub fn is_open(&self, id: &ToolCallId) -> bool {
        self.open.values().any(|call| call.id == *id)
    }

    fn add_model_call(&mut self, journal: &JournalKey, call: &ModelCall) -> Vec<SessionUpdate> {
        // A call that was refused, or answered by the agent's own state, has its result in the next request.
        let results = call.messages.iter().filter_map(|message| {
            let open = self.open.remove(&(journal.clone(), message.call_id.clone()?))?;
            Some(finished_call(open.id, message.is_error, &message.text))
        });
        let mut updates: Vec<SessionUpdate> = results.collect();
        if call.calls.is_empty() {
            return updates;
        }
        updates.extend(thought(&call.text));
        for request in &call.calls {
            let id = ToolCallId::new(format!("{}/{}/{}", self.name(journal), call.turn, request.id));
            let shown = ToolCall::new(id.clone(), call_title(&request.tool, &request.arguments))
                .kind(kind_of_tool(&request.tool))
                .status(ToolCallStatus::InProgress)
                .raw_input(request.arguments.clone());
            updates.push(SessionUpdate::ToolCall(shown));
            let (tool, arguments) = (request.tool.clone(), request.arguments.clone());
            self.open.insert((journal.clone(), request.id.clone()), OpenCall { id, tool, arguments });
        }
        updates
    }

    fn add_tool_result(&mut self, journal: &JournalKey, result: &ToolCallResult) -> Vec<SessionUpdate> {
        let Some(open) = self.open.remove(&(journal.clone(), result.call_id.clone())) else {
            return Vec::new();
        };
        vec![finished_call(open.id, result.is_error, &result.text)]
    }

    /// Ends the calls of an attempt that has ended, such as the one that gave its answer.
    fn close_calls(&mut self, journal: &JournalKey, status: ToolCallStatus) -> Vec<SessionUpdate> {
        let closed = self.open.extract_if(|(of, _), _| of == journal);
        let closed = closed.map(|(_, call)| call_update(call.id, ToolCallUpdateFields::new().status(status)));
        closed.collect()
    }

    fn name(&self, journal: &JournalKey) -> String {
        match journal {
            JournalKey::Task(task, attempt) | JournalKey::Review(task, attempt) => {
                format!("{}/{task}/{attempt}", self.run)
            }
            JournalKey::Planning(turn, attempt) => format!("{}/planner/{turn}/{attempt}", self.run),
        }
    }
}

/// Returns the title of a tool call: the tool, with the argument that names its object.
pub fn call_title(tool: &str, arguments: &Value) -> String {
    const OBJECTS: [&str; 8] =
        ["file_path", "path", "pattern", "query", "url", "command", "question", "objective"];
    let object = OBJECTS.iter().find_map(|name| arguments[name].as_str());
    let title = object.map_or_else(|| tool.to_owned(), |object| format!("{tool}: {object}"));
    cut(&single_line(&title), MAX_TITLE)
}

/// Returns the kind by which an editor chooses a symbol for a tool.
pub fn kind_of_tool(tool: &str) -> ToolKind {
    match tool {
        "read_file" | "ls" | "read_document" | "list_documents" => ToolKind::Read,
        "write_file" | "edit_file" => ToolKind::Edit,
        "grep" | "glob" | "search_documents" | "web_search" => ToolKind::Search,
        "fetch_url" => ToolKind::Fetch,
        "execute" => ToolKind::Execute,
        "think" | "write_todos" => ToolKind::Think,
        _ => ToolKind::Other,
    }
}

pub fn call_update(id: ToolCallId, fields: ToolCallUpdateFields) -> SessionUpdate {
    SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, fields))
}

fn finished_call(id: ToolCallId, is_error: bool, text: &str) -> SessionUpdate {
    let status = if is_error { ToolCallStatus::Failed } else { ToolCallStatus::Completed };
    let text = cut(&terminal_text(text), MAX_RESULT);
    call_update(id, ToolCallUpdateFields::new().status(status).content(vec![text_content(text)]))
}

pub fn text_content(text: impl Into<String>) -> ToolCallContent {
    ContentBlock::Text(TextContent::new(text)).into()
}

pub fn text_chunk(text: &str) -> ContentChunk {
    ContentChunk::new(ContentBlock::Text(TextContent::new(terminal_text(text))))
}

fn thought(text: &str) -> Vec<SessionUpdate> {
    let text = text.trim();
    if text.is_empty() {
        return Vec::new();
    }
    vec![SessionUpdate::AgentThoughtChunk(text_chunk(&format!("{text}\n\n")))]
}

/// The protocol has three states of an entry: the text names the other ends.
fn plan_entry(task: &Task) -> PlanEntry {
    // An attempt that has been parked waits for a worker again.
    let has_started = task.attempts.iter().any(|attempt| attempt.claimed_at.is_some());
    let (status, end) = match task.state() {
        TaskState::Pending | TaskState::Ready if !has_started => (PlanEntryStatus::Pending, ""),
        TaskState::Pending | TaskState::Ready => (PlanEntryStatus::InProgress, ""),
        TaskState::Running
        | TaskState::NeedsReview
        | TaskState::Rerun
        | TaskState::Errored
        | TaskState::Waiting => (PlanEntryStatus::InProgress, ""),
        TaskState::Completed => (PlanEntryStatus::Completed, ""),
        TaskState::Failed => (PlanEntryStatus::Completed, "failed: "),
        TaskState::Cancelled => (PlanEntryStatus::Completed, "cancelled: "),
    };
    let priority = if task.spec.is_final { PlanEntryPriority::High } else { PlanEntryPriority::Medium };
    PlanEntry::new(format!("{end}{}", single_line(&task.spec.objective)), priority, status)
}

/// Returns a text without its end, if it is longer.
fn cut(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use millrace_agent::transcript::{CallRequest, ModelCallOutcome};
    use millrace_protocol::ids::TaskId;
    use millrace_protocol::result::{ModelUsage, Usage};
    use serde_json::json;

    use super::*;

    fn entry(step: TranscriptStep) -> TranscriptEntry {
        let task = TaskId::new("t").unwrap();
        TranscriptEntry {
            at: jiff::Timestamp::UNIX_EPOCH,
            sequence: 1,
            journal: JournalKey::Task(task, 1),
            step: None,
            event: TranscriptEvent::Step(step),
        }
    }

    fn model_call(arguments: Value) -> TranscriptEntry {
        let calls = vec![CallRequest { id: "c1".into(), tool: "read_file".into(), arguments }];
        entry(TranscriptStep::ModelCall(ModelCall {
            judge: None,
            turn: 0,
            model: None,
            messages: Vec::new(),
            tools: Vec::new(),
            is_compacted: false,
            outcome: ModelCallOutcome::Reply,
            text: "First I look.".into(),
            calls,
            finish: None,
            usage: Usage::default(),
            duration_ms: 0,
        }))
    }

    fn tool_result(text: String) -> TranscriptEntry {
        entry(TranscriptStep::ToolResult(ToolCallResult {
            judge: None,
            turn: 0,
            index: 0,
            tool: "read_file".into(),
            call_id: "c1".into(),
            text,
            is_error: true,
            usage: Usage::default(),
            models: ModelUsage::default(),
            duration_ms: 0,
        }))
    }

    fn shown(updates: &[SessionUpdate]) -> Vec<Value> {
        updates.iter().map(|update| serde_json::to_value(update).unwrap()).collect()
    }

    #[test]
    fn calls_have_a_thought_before_them_and_end_with_their_results() {
        let mut updates = RunUpdates::new(&RunId::new("r").unwrap());
        let arguments = json!({ "file_path": "/a\u{1b}[2J" });
        let sent = shown(&updates.add_entry(&model_call(arguments.clone())));
        assert_eq!(sent.len(), 2, "{sent:?}");
        assert_eq!(sent[0]["sessionUpdate"], "agent_thought_chunk");
        assert_eq!(sent[1]["toolCallId"], "r/t/1/0/c1");
        assert_eq!(sent[1]["status"], "in_progress");
        assert_eq!(sent[1]["kind"], "read");
        assert!(!sent[1]["title"].as_str().unwrap().contains('\u{1b}'), "{sent:?}");

        let question: QuestionId = "t/1/1".parse().unwrap();
        let call = updates.call_of_question(&question, "read_file", &arguments);
        assert_eq!(call.map(|id| id.to_string()).as_deref(), Some("r/t/1/0/c1"));
        assert!(updates.call_of_question(&question, "read_file", &json!({})).is_none());

        let sent = shown(&updates.add_entry(&tool_result("x".repeat(9_000))));
        assert_eq!(sent[0]["status"], "failed", "{sent:?}");
        let text = sent[0]["content"][0]["content"]["text"].as_str().unwrap();
        assert!(text.chars().count() == MAX_RESULT + 1 && text.ends_with('…'));
        assert!(updates.open.is_empty());
    }

    #[test]
    fn titles_name_the_object_of_a_call() {
        assert_eq!(call_title("grep", &json!({ "pattern": "a\nb" })), "grep: a b");
        assert_eq!(call_title("think", &json!("no object")), "think");
        assert!(
            call_title("execute", &json!({ "command": "x".repeat(500) })).chars().count() <= MAX_TITLE + 1
        );
    }
}
