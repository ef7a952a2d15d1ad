//! What an agent writes down for itself: its to-do list and its notes. It owns what the inner tools do and the bounds of
//! what they keep; all of it is part of the machine's state.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::tool::{AppendNote, Inner, MAX_NOTES_READ, ReadNotes, Think, Todo, TodoStatus, WriteTodos};

/// The most characters of all notes together.
const MAX_NOTES: usize = 60_000;

/// An agent's to-do list and notes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Scratch {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    todos: Vec<Todo>,
    /// Oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

impl Scratch {
    /// Carries out a call of an inner tool. The arguments have passed its schema.
    ///
    /// # Errors
    /// What the model is told in place of a result.
    pub fn call(&mut self, inner: Inner, arguments: Value) -> Result<String, String> {
        match inner {
            Inner::Think => {
                let Think { thought } = read(arguments)?;
                Ok(format!("Noted ({} characters). Go on.", thought.chars().count()))
            }
            Inner::WriteTodos => {
                let WriteTodos { todos } = read(arguments)?;
                self.todos = todos;
                Ok(format!("Updated todo list to:\n{}", self.todo_list().unwrap_or("(empty)".into())))
            }
            Inner::AppendNote => {
                let AppendNote { note } = read(arguments)?;
                self.append(note)
            }
            Inner::ReadNotes => {
                let ReadNotes { whole } = read(arguments)?;
                let limit = if whole == Some(true) { usize::MAX } else { MAX_NOTES_READ };
                Ok(self.newest_notes(limit).unwrap_or_else(|| "There are no notes yet.".into()))
            }
        }
    }

    fn append(&mut self, note: String) -> Result<String, String> {
        let length = note.chars().count();
        let kept: usize = self.notes.iter().map(|note| note.chars().count()).sum();
        if kept + length > MAX_NOTES {
            return Err(format!(
                "the notes are full: {kept} of at most {MAX_NOTES} characters; nothing was added. Work with what is there."
            ));
        }
        self.notes.push(note);
        Ok(format!("Note {} kept ({} characters in all).", self.notes.len(), kept + length))
    }

    /// The to-do list as text; `None` if it is empty.
    pub fn todo_list(&self) -> Option<String> {
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

    /// The newest notes that fit into so many characters, oldest first; `None` if there are none at all.
    pub fn newest_notes(&self, limit: usize) -> Option<String> {
        let numbered: Vec<String> =
            self.notes.iter().enumerate().map(|(at, note)| format!("{}. {note}\n", at + 1)).collect();
        // Room for the line on what was left out.
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
            let _ = writeln!(text, "[{left_out} older notes left out; read_notes with whole=true gives all]");
        }
        text.extend(numbered[left_out..].iter().map(String::as_str));
        (!numbered.is_empty()).then(|| text.trim_end().to_owned())
    }
}

fn read<T: serde::de::DeserializeOwned>(arguments: Value) -> Result<T, String> {
    serde_json::from_value(arguments).map_err(|mistake| format!("the arguments do not fit: {mistake}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_to_do_list_is_replaced_whole() {
        let mut scratch = Scratch::default();
        let write =
            |scratch: &mut Scratch, todos| scratch.call(Inner::WriteTodos, json!({"todos": todos})).unwrap();
        let first = json!([{"content": "a", "status": "in_progress"}, {"content": "b", "status": "pending"}]);
        assert_eq!(write(&mut scratch, first), "Updated todo list to:\n[in_progress] a\n[pending] b");
        let second = json!([{"content": "b", "status": "completed"}]);
        assert_eq!(write(&mut scratch, second), "Updated todo list to:\n[completed] b");
        assert_eq!(write(&mut scratch, json!([])), "Updated todo list to:\n(empty)");
        assert_eq!(scratch.todo_list(), None);
    }

    #[test]
    fn of_many_notes_the_newest_are_read_and_all_of_them_on_demand() {
        let mut scratch = Scratch::default();
        let notes = |scratch: &mut Scratch, arguments| scratch.call(Inner::ReadNotes, arguments).unwrap();
        assert_eq!(notes(&mut scratch, json!({})), "There are no notes yet.");
        for n in 0..15 {
            let note = format!("{n}{}", "ä".repeat(3_998));
            scratch.call(Inner::AppendNote, json!({"note": note})).unwrap();
        }
        let newest = notes(&mut scratch, json!({}));
        assert!(newest.starts_with("[14 older notes left out"), "{newest}");
        assert!(newest.contains("\n15. 14ä") && newest.chars().count() <= MAX_NOTES_READ);
        let whole = notes(&mut scratch, json!({"whole": true}));
        assert!(whole.starts_with("1. 0ä") && whole.chars().count() > 59_000);
        let full = scratch.call(Inner::AppendNote, json!({"note": "x".repeat(100)})).unwrap_err();
        assert!(full.starts_with("the notes are full"), "{full}");
        assert_eq!(notes(&mut scratch, json!({"whole": true})), whole, "a note that was refused is not kept");
    }
}
