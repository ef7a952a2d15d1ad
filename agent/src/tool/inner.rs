//! The tools that live in the agent's own conversation: a place to think, a to-do list and notes. This file owns what
//! the model is told of them; what they do is a matter of the machine's state alone, so that nothing of it is journaled.

use std::sync::Arc;

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Call, Output, Tool, ToolError, ToolSpec, schema_of};

/// The most characters of one note.
pub const MAX_NOTE: usize = 4_000;
/// The most characters that [`read_notes`] gives back where it is not asked for all of them.
pub const MAX_NOTES_READ: usize = 8_000;
/// The most entries of a to-do list.
pub const MAX_TODOS: usize = 50;

/// A tool that the machine answers itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inner {
    /// `think{thought}`.
    Think,
    /// `write_todos{todos}`.
    WriteTodos,
    /// `append_note{note}`.
    AppendNote,
    /// `read_notes{whole?}`.
    ReadNotes,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Think {
    /// What you want to get clear about: what is known, what is missing, what to do next.
    #[schemars(length(min = 1))]
    pub thought: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteTodos {
    /// The whole list, in the order of work. It takes the place of the one before.
    #[schemars(length(max = 50))]
    pub todos: Vec<Todo>,
}

/// An entry of an agent's to-do list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Todo {
    /// What is to be done, in a few words.
    #[schemars(length(min = 1, max = 500))]
    pub content: String,
    /// pending, in_progress or completed.
    pub status: TodoStatus,
}

/// How far an entry of a to-do list is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TodoStatus {
    // The values need no description of their own, which would turn the enumeration into a list of alternatives.
    #[expect(missing_docs, reason = "see above")]
    Pending,
    #[expect(missing_docs, reason = "see above")]
    InProgress,
    #[expect(missing_docs, reason = "see above")]
    Completed,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AppendNote {
    /// What to keep: a finding with where it is from, a decision, what is still open.
    #[schemars(length(min = 1, max = 4000))]
    pub note: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadNotes {
    /// true for all notes; else the newest, at most 8000 characters.
    pub whole: Option<bool>,
}

const THINK: &str = "Write down a thought before the next step: what is known, what is missing, what to do next. It \
                     changes nothing and fetches nothing.";

const WRITE_TODOS: &str = "Write the to-do list of this task. The list you give takes the place of the whole list \
before, so repeat what stays. Use it for work of three or more steps, and leave it out for less. Mark an entry \
in_progress before you begin with it and completed as soon as it is done, not later; keep one in_progress at a time; \
mark nothing completed that failed or is half done. Call it once in a message.";

const APPEND_NOTE: &str = "Keep a note for the rest of this task: a finding with where it is from, a decision, what is \
still open. Notes outlive the conversation when that becomes too long, so note what you would not want to look up \
again. At most 4000 characters a note.";

const READ_NOTES: &str =
    "Read the notes of this task: the newest, at most 8000 characters, or all with whole=true.";

impl Inner {
    fn spec(self) -> ToolSpec {
        let (name, description, schema) = match self {
            Self::Think => ("think", THINK, schema_of::<Think>()),
            Self::WriteTodos => ("write_todos", WRITE_TODOS, schema_of::<WriteTodos>()),
            Self::AppendNote => ("append_note", APPEND_NOTE, schema_of::<AppendNote>()),
            Self::ReadNotes => ("read_notes", READ_NOTES, schema_of::<ReadNotes>()),
        };
        ToolSpec { name: name.to_owned(), description: description.to_owned(), schema }
    }
}

/// `think{thought}`: lets a model write down a thought between two steps. It changes nothing.
#[must_use]
pub fn think() -> Arc<dyn Tool> {
    Arc::new(Inside(Inner::Think))
}

/// `write_todos{todos: [{content, status}]}`: the agent's to-do list, given whole each time.
#[must_use]
pub fn write_todos() -> Arc<dyn Tool> {
    Arc::new(Inside(Inner::WriteTodos))
}

/// `append_note{note}`: a note for the rest of the task.
#[must_use]
pub fn append_note() -> Arc<dyn Tool> {
    Arc::new(Inside(Inner::AppendNote))
}

/// `read_notes{whole?}`: the notes of the task.
#[must_use]
pub fn read_notes() -> Arc<dyn Tool> {
    Arc::new(Inside(Inner::ReadNotes))
}

struct Inside(Inner);

impl Tool for Inside {
    fn spec(&self) -> ToolSpec {
        self.0.spec()
    }

    fn inner(&self) -> Option<Inner> {
        Some(self.0)
    }

    fn call<'a>(&'a self, _: Value, _: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        let text = format!("{} works inside an agent's conversation only", self.spec().name);
        Box::pin(futures::future::ready(Err(ToolError::Refused(text))))
    }
}
