//! An agent's to-do list and notes. It implements the inner tools and the size limits of the stored texts. All of it is
//! part of the machine's state.

use std::fmt::Write;

use millrace_protocol::foreign_json::plain_json_error;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::record::{ModelStep, ModelStepOutcome};
use crate::tool::{
    APPEND_NOTE_NAME, AppendNoteArguments, InnerTool, MAX_NOTES_READ, ReadNotesArguments, ThinkArguments,
    Todo, TodoStatus, WriteTodosArguments,
};

/// The maximum number of characters of all notes together.
const MAX_NOTES: usize = 60_000;

/// An agent's to-do list and notes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Scratchpad {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    todos: Vec<Todo>,
    /// Oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

impl Scratchpad {
    /// Executes a call of an inner tool. The arguments have been validated against its schema.
    pub fn run_inner_tool(&mut self, inner: InnerTool, arguments: Value) -> Result<String, String> {
        match inner {
            InnerTool::Think => {
                let ThinkArguments { thought } = parse_arguments(arguments)?;
                Ok(format!("Noted ({} characters). Continue.", thought.chars().count()))
            }
            InnerTool::WriteTodos => {
                let WriteTodosArguments { todos } = parse_arguments(arguments)?;
                self.todos = todos;
                Ok(format!("Updated todo list to:\n{}", self.format_todo_list().unwrap_or("(empty)".into())))
            }
            InnerTool::AppendNote => {
                let AppendNoteArguments { note } = parse_arguments(arguments)?;
                self.append_note(note)
            }
            InnerTool::CompactConversation => Err("this conversation can't be compacted".into()),
            InnerTool::ReadNotes => {
                let ReadNotesArguments { whole } = parse_arguments(arguments)?;
                let limit = if whole == Some(true) { usize::MAX } else { MAX_NOTES_READ };
                Ok(self.format_newest_notes(limit).unwrap_or_else(|| "There are no notes yet.".into()))
            }
            InnerTool::State => Err("this agent has no state".into()),
        }
    }

    /// The same to-do list with these notes.
    #[must_use]
    pub fn with_notes(self, notes: Vec<String>) -> Self {
        Self { notes, ..self }
    }

    fn append_note(&mut self, note: String) -> Result<String, String> {
        let length = note.chars().count();
        let stored: usize = self.notes.iter().map(|note| note.chars().count()).sum();
        if stored + length > MAX_NOTES {
            return Err(format!(
                "the notes are full: {stored} of at most {MAX_NOTES} characters; nothing was added. Work with the notes you have."
            ));
        }
        self.notes.push(note);
        Ok(format!("Note {} saved ({} characters in total).", self.notes.len(), stored + length))
    }

    /// The to-do list as text; `None` if it is empty.
    pub fn format_todo_list(&self) -> Option<String> {
        let lines: Vec<String> = self
            .todos
            .iter()
            .map(|todo| {
                let mark = match todo.status {
                    TodoStatus::Pending => "[pending]",
                    TodoStatus::InProgress => "[in_progress]",
                    TodoStatus::Completed => "[completed]",
                };
                format!("{mark} {}", todo.content)
            })
            .collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// The newest notes that fit into `limit` characters, oldest first; `None` if there are none.
    pub fn format_newest_notes(&self, limit: usize) -> Option<String> {
        let numbered: Vec<String> =
            self.notes.iter().enumerate().map(|(at, note)| format!("{}. {note}\n", at + 1)).collect();
        // Room for the line about omitted notes.
        let mut room = limit.saturating_sub(100);
        let fitting = numbered.iter().rev().take_while(|note| {
            let length = note.chars().count();
            let fits = length <= room;
            room = room.saturating_sub(length);
            fits
        });
        let left_out = numbered.len() - fitting.count();
        let mut text = String::new();
        if left_out > 0 {
            let _ =
                writeln!(text, "[{left_out} older notes left out; read_notes with whole=true returns all]");
        }
        text.extend(numbered[left_out..].iter().map(String::as_str));
        (!numbered.is_empty()).then(|| text.trim_end().to_owned())
    }
}

/// The newest of these notes that fit into `limit` characters, oldest first; `None` if there are none.
#[must_use]
pub(crate) fn format_notes(notes: &[String], limit: usize) -> Option<String> {
    Scratchpad::default().with_notes(notes.to_vec()).format_newest_notes(limit)
}

/// Returns the notes at the end of an attempt, from the values of its steps `model.…`: those with which it began, and those that
/// its replies added. Steps that are not an agent's are ignored.
#[must_use]
pub(crate) fn collect_recorded_notes(steps: &[Vec<u8>]) -> Vec<String> {
    let mut scratch = Scratchpad::default();
    for step in steps.iter().filter_map(|bytes| serde_json::from_slice::<ModelStep>(bytes).ok()) {
        if let Some(inherited) = step.inherited {
            scratch.notes = inherited.notes;
        }
        let ModelStepOutcome::Reply(reply) = step.outcome else { continue };
        let notes = reply.calls.iter().filter(|call| call.name == APPEND_NOTE_NAME);
        for arguments in notes.filter_map(|call| serde_json::from_str(&call.arguments).ok()) {
            // The machine refused a note that does not fit, too.
            drop(scratch.run_inner_tool(InnerTool::AppendNote, arguments));
        }
    }
    scratch.notes
}

fn parse_arguments<T: serde::de::DeserializeOwned>(arguments: Value) -> Result<T, String> {
    serde_json::from_value(arguments)
        .map_err(|mistake| format!("invalid arguments: {}", plain_json_error(&mistake.to_string())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_to_do_list_is_replaced_as_a_whole() {
        let mut scratch = Scratchpad::default();
        let write = |scratch: &mut Scratchpad, todos| {
            scratch.run_inner_tool(InnerTool::WriteTodos, json!({"todos": todos})).unwrap()
        };
        let first = json!([{"content": "a", "status": "in_progress"}, {"content": "b", "status": "pending"}]);
        assert_eq!(write(&mut scratch, first), "Updated todo list to:\n[in_progress] a\n[pending] b");
        let second = json!([{"content": "b", "status": "completed"}]);
        assert_eq!(write(&mut scratch, second), "Updated todo list to:\n[completed] b");
        assert_eq!(write(&mut scratch, json!([])), "Updated todo list to:\n(empty)");
        assert_eq!(scratch.format_todo_list(), None);
    }

    #[test]
    fn read_notes_returns_the_newest_or_all_on_request() {
        let mut scratch = Scratchpad::default();
        let notes = |scratch: &mut Scratchpad, arguments| {
            scratch.run_inner_tool(InnerTool::ReadNotes, arguments).unwrap()
        };
        assert_eq!(notes(&mut scratch, json!({})), "There are no notes yet.");
        for n in 0..15 {
            let note = format!("{n}{}", "ä".repeat(3_998));
            scratch.run_inner_tool(InnerTool::AppendNote, json!({"note": note})).unwrap();
        }
        let newest = notes(&mut scratch, json!({}));
        assert!(newest.starts_with("[14 older notes left out"), "{newest}");
        assert!(newest.contains("\n15. 14ä") && newest.chars().count() <= MAX_NOTES_READ);
        let whole = notes(&mut scratch, json!({"whole": true}));
        assert!(whole.starts_with("1. 0ä") && whole.chars().count() > 59_000);
        let full =
            scratch.run_inner_tool(InnerTool::AppendNote, json!({"note": "x".repeat(100)})).unwrap_err();
        assert!(full.starts_with("the notes are full"), "{full}");
        assert_eq!(notes(&mut scratch, json!({"whole": true})), whole, "a refused note is not saved");
    }
}
