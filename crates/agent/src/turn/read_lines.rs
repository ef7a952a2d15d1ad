//! The lines that an attempt has read with its tools, so that code can cite them for an answer. It notes the result of each call
//! as it is recorded: a resumed attempt has the same lines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::record::ToolCallRecord;
use super::{ForkedConversation, ValidatedToolCall};
use crate::corpus::{Corpus, Document};
use crate::model::Message;
use crate::tool::{list_shown_lines, parse_numbered_lines};

/// The lines that an attempt has read, in the order of reading.
#[derive(Debug, Default)]
pub(crate) struct ReadLines(Mutex<Vec<(String, ReadPart)>>);

/// The part of a document that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ReadPart {
    /// The numbers of its lines.
    Lines(Vec<usize>),
    /// All of it: the tool does not number lines.
    Whole,
}

impl ReadLines {
    /// The lines that a continued conversation shows.
    pub fn of_conversation(conversation: &ForkedConversation) -> Self {
        let read = Self::default();
        let mut calls = BTreeMap::new();
        for message in &conversation.messages {
            match message {
                Message::Assistant { calls: made, .. } => {
                    calls.extend(made.iter().map(|call| (call.id.as_str(), call)));
                }
                Message::Tool(result) if !result.is_error => {
                    let Some(call) = calls.get(result.call_id.as_str()) else { continue };
                    let arguments = serde_json::from_str(&call.arguments).unwrap_or(Value::Null);
                    read.add_documents(&call.name, &arguments, &result.text);
                }
                Message::Tool(_) | Message::User { .. } => {}
            }
        }
        read
    }

    /// Notes the lines that the result of a call shows.
    pub(super) fn note_result(&self, call: &ValidatedToolCall, record: &ToolCallRecord) {
        if record.result.is_error {
            return;
        }
        let text = &record.result.text;
        match &record.page {
            None => self.add_documents(&call.tool, &call.arguments, text),
            Some(page) => {
                let lines = parse_numbered_lines(text);
                let part = if lines.is_empty() { ReadPart::Whole } else { ReadPart::Lines(lines) };
                self.lock().push((page.name.clone(), part));
            }
        }
    }

    /// Returns the lines of documents and pages that are in `corpus`, each once.
    pub fn list_lines<'c>(&self, corpus: &'c Corpus) -> Vec<(&'c Document, usize)> {
        let (mut lines, mut listed) = (Vec::new(), BTreeSet::new());
        for (name, part) in self.lock().iter() {
            let Some(document) = corpus.find_document(name) else { continue };
            let numbers = match part {
                ReadPart::Lines(numbers) => numbers.clone(),
                ReadPart::Whole => (1..=document.line_count()).collect(),
            };
            for number in numbers {
                if document.nth_line(number).is_some() && listed.insert((document.path.as_str(), number)) {
                    lines.push((document, number));
                }
            }
        }
        lines
    }

    fn add_documents(&self, tool: &str, arguments: &Value, text: &str) {
        let shown = list_shown_lines(tool, arguments, text).into_iter();
        self.lock().extend(shown.map(|(document, lines)| (document, ReadPart::Lines(lines))));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(String, ReadPart)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
