//! The inner tools, which the machine itself answers: a place to think, a to-do list and notes. This file owns their specs
//! and descriptions; their effects are part of the machine's state, so none of them is journaled.
//!
//! Also has the tool that tells the current time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Call, Output, Tool, ToolError, ToolSpec, tool_from_function, typed_spec};

/// The maximum number of characters of one note.
pub const MAX_NOTE: usize = 4_000;
/// The maximum number of characters that [`read_notes_tool`] returns by default.
pub const MAX_NOTES_READ: usize = 8_000;
/// The maximum number of entries of a to-do list.
pub const MAX_TODOS: usize = 50;

/// A tool that the machine answers itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InnerTool {
    /// `think{thought}`.
    Think,
    /// `write_todos{todos}`.
    WriteTodos,
    /// `append_note{note}`.
    AppendNote,
    /// `read_notes{whole?}`.
    ReadNotes,
    /// A tool over the agent's state.
    State,
    /// `compact_conversation{}`.
    CompactConversation,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Think")]
#[serde(deny_unknown_fields)]
pub(crate) struct ThinkArguments {
    /// Your thought: the known facts, the missing ones, the next step.
    #[schemars(length(min = 1))]
    pub thought: String,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "WriteTodos")]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteTodosArguments {
    /// The whole list, in the order of work. It replaces the previous one.
    #[schemars(length(max = 50))]
    pub todos: Vec<Todo>,
}

/// An entry of an agent's to-do list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Todo {
    /// The step, in a few words.
    #[schemars(length(min = 1, max = 500))]
    pub content: String,
    /// pending, in_progress or completed.
    pub status: TodoStatus,
}

/// The status of an entry of a to-do list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TodoStatus {
    // The values need no description of their own, which would turn the enumeration into a list of alternatives.
    Pending,
    InProgress,
    Completed,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "AppendNote")]
#[serde(deny_unknown_fields)]
pub(crate) struct AppendNoteArguments {
    /// The text to remember: a finding with its source, a decision, an open question.
    #[schemars(length(min = 1, max = 4000))]
    pub note: String,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "ReadNotes")]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadNotesArguments {
    /// true for all notes; otherwise the newest, at most 8000 characters.
    pub whole: Option<bool>,
}

/// The name of the tool that saves a note.
pub(crate) const APPEND_NOTE_NAME: &str = "append_note";

const THINK: &str = "Write down a thought before the next step: what is known, what is missing, what to do next. It \
                     changes nothing and fetches nothing.";

const WRITE_TODOS: &str = "Write the to-do list of this task. The list replaces the previous one, so repeat what stays. \
Use it for work of three or more steps, and skip it for less. Mark an entry in_progress before you start it and \
completed as soon as it is done, not later; keep one in_progress at a time; mark nothing completed that failed or is \
partly done. Call it once per message.";

const APPEND_NOTE: &str = "Save a note for the rest of this task: a finding with its source, a decision, an open \
question. Notes remain when the conversation is shortened, so note what you would not want to look up again. At most \
4000 characters per note.";

const READ_NOTES: &str =
    "Read the notes of this task: the newest, at most 8000 characters, or all with whole=true.";

const COMPACT_CONVERSATION: &str = "Replace the older part of this conversation by a summary, when a part of the work is done \
and its details are no longer needed. The whole conversation is saved to a file first. Not possible while the conversation is short.";

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "CompactConversation")]
#[serde(deny_unknown_fields)]
struct CompactConversationArguments {}

/// `think{thought}`: lets a model write down a thought between two steps. It has no effect.
#[must_use]
pub fn think_tool() -> Arc<dyn Tool> {
    InnerToolAdapter::create::<ThinkArguments>(InnerTool::Think, "think", THINK)
}

/// `write_todos{todos: [{content, status}]}`: replaces the agent's to-do list.
#[must_use]
pub fn write_todos_tool() -> Arc<dyn Tool> {
    InnerToolAdapter::create::<WriteTodosArguments>(InnerTool::WriteTodos, "write_todos", WRITE_TODOS)
}

/// `append_note{note}`: saves a note for the rest of the task.
#[must_use]
pub fn append_note_tool() -> Arc<dyn Tool> {
    InnerToolAdapter::create::<AppendNoteArguments>(InnerTool::AppendNote, "append_note", APPEND_NOTE)
}

/// `read_notes{whole?}`: reads the notes of the task.
#[must_use]
pub fn read_notes_tool() -> Arc<dyn Tool> {
    InnerToolAdapter::create::<ReadNotesArguments>(InnerTool::ReadNotes, "read_notes", READ_NOTES)
}

/// `compact_conversation{}`: replaces the older part of the conversation by a summary.
#[must_use]
pub fn compact_conversation_tool() -> Arc<dyn Tool> {
    InnerToolAdapter::create::<CompactConversationArguments>(
        InnerTool::CompactConversation,
        "compact_conversation",
        COMPACT_CONVERSATION,
    )
}

/// The specs of the tools that were created in this process: all agents have the same ones.
static SPECS: Mutex<BTreeMap<&'static str, ToolSpec>> = Mutex::new(BTreeMap::new());

struct InnerToolAdapter {
    inner: InnerTool,
    spec: ToolSpec,
}

impl InnerToolAdapter {
    fn create<A: JsonSchema>(
        inner: InnerTool,
        name: &'static str,
        description: &'static str,
    ) -> Arc<dyn Tool> {
        let mut specs = SPECS.lock().unwrap_or_else(PoisonError::into_inner);
        let spec = specs.entry(name).or_insert_with(|| typed_spec::<A>(name, description)).clone();
        Arc::new(Self { inner, spec })
    }
}

impl Tool for InnerToolAdapter {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn inner(&self) -> Option<InnerTool> {
        Some(self.inner)
    }

    fn call<'a>(&'a self, _: Value, _: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        let text = format!("{} works only inside an agent's conversation", self.spec.name);
        Box::pin(futures::future::ready(Err(ToolError::Refused(text))))
    }
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Now")]
#[serde(deny_unknown_fields)]
struct NowArguments {}

/// `now{}`: the current time in UTC, with the date and the day of the week.
#[must_use]
pub fn now_tool() -> Arc<dyn Tool> {
    tool_from_function(
        "now",
        "The current date and time in UTC, with the day of the week.",
        |NowArguments {}: NowArguments, _| async { Ok(format_time(Timestamp::now())) },
    )
}

/// `2026-11-22T03:00:00Z (Sunday, 22 November 2026)`.
fn format_time(now: Timestamp) -> String {
    now.to_zoned(TimeZone::UTC).strftime("%Y-%m-%dT%H:%M:%SZ (%A, %-d %B %Y)").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_has_its_date_and_day() {
        let time = Timestamp::from_second(1_795_316_400).unwrap();
        assert_eq!(format_time(time), "2026-11-22T03:00:00Z (Sunday, 22 November 2026)");
    }
}
