//! Parses the conversation of a request: the tools called, their arguments and their results. It is the counterpart of the
//! formats in which the tools show passages and results.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::model::{FinishReason, Message, Reply, Request, ToolCall, ToolResult};

/// A tool call with its result.
pub(super) struct ToolExchange<'a> {
    pub tool: &'a str,
    pub arguments: Value,
    pub result: &'a ToolResult,
}

/// The calls of a conversation that have results, in order.
pub(super) fn list_tool_exchanges(request: &Request) -> Vec<ToolExchange<'_>> {
    let mut results: BTreeMap<&str, &ToolResult> = BTreeMap::new();
    for message in &request.messages {
        match message {
            Message::Tool(result) => {
                results.insert(&result.call_id, result);
            }
            Message::User { .. } | Message::Assistant { .. } => {}
        }
    }
    let calls = request.messages.iter().flat_map(|message| match message {
        Message::Assistant { calls, .. } => calls.as_slice(),
        Message::User { .. } | Message::Tool(_) => &[],
    });
    calls
        .filter_map(|call| {
            let result = results.get(call.id.as_str())?;
            let arguments = serde_json::from_str(&call.arguments).ok()?;
            Some(ToolExchange { tool: &call.name, arguments, result })
        })
        .collect()
}

impl ToolExchange<'_> {
    /// Deserialises a JSON result.
    pub fn parse_result<T: DeserializeOwned>(&self) -> Option<T> {
        if self.result.is_error { None } else { serde_json::from_str(&self.result.text).ok() }
    }

    pub fn text_argument(&self, name: &str) -> &str {
        self.arguments[name].as_str().unwrap_or_default()
    }
}

/// `true` if a tool may be called.
pub(super) fn has_tool(request: &Request, name: &str) -> bool {
    request.tools.iter().any(|tool| tool.name == name)
}

/// A reply that calls tools concurrently.
pub(super) fn reply_with_calls(request: &Request, calls: Vec<(&str, Value)>) -> Reply {
    let turn = request.messages.iter().filter(|message| matches!(message, Message::Assistant { .. })).count();
    let calls = calls
        .into_iter()
        .enumerate()
        .map(|(at, (name, arguments))| ToolCall {
            id: format!("call-{turn}-{at}"),
            name: name.to_owned(),
            arguments: arguments.to_string(),
        })
        .collect();
    Reply { calls, finish: FinishReason::ToolCalls, ..Reply::default() }
}

/// A reply with a final answer.
pub(super) fn reply_with_answer(answer: &impl serde::Serialize) -> Reply {
    let text = serde_json::to_string(answer).expect("answers hold only names, texts and numbers");
    Reply { text, ..Reply::default() }
}

/// Numbered lines of one document, as shown by a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NumberedLines<'a> {
    pub path: &'a str,
    /// The text after the path: for a read, the title.
    pub title: &'a str,
    /// The number of lines of the document.
    pub line_count: usize,
    pub lines: Vec<(usize, &'a str)>,
}

impl NumberedLines<'_> {
    pub fn first_line(&self) -> usize {
        self.lines.first().map_or(0, |(number, _)| *number)
    }

    pub fn last_line(&self) -> usize {
        self.lines.last().map_or(0, |(number, _)| *number)
    }
}

/// The passages of a search, best first.
pub(super) fn parse_search_hits(exchange: &ToolExchange<'_>) -> Vec<PassageHit> {
    let text = if exchange.result.is_error { "" } else { exchange.result.text.as_str() };
    text.lines()
        .filter_map(|line| {
            let (range, rest) = line.strip_prefix("== lines ")?.split_once(" of ")?;
            let (first, last) = range.split_once(" to ")?;
            let (path, score) = rest.rsplit_once(", score ")?;
            let score = score.split_once(',').map_or(score, |(score, _)| score);
            Some(PassageHit {
                path: path.to_owned(),
                first_line: first.parse().ok()?,
                last_line: last.parse().ok()?,
                score: score.parse().ok()?,
            })
        })
        .collect()
}

/// The position of a passage found by a search.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PassageHit {
    pub path: String,
    pub first_line: usize,
    pub last_line: usize,
    /// The score in its search.
    pub score: f64,
}

/// The document frequency of each word, from the head of a search's result: `word in 3 of 15`.
pub(super) fn parse_word_counts(exchange: &ToolExchange<'_>) -> Vec<(String, usize, usize)> {
    let head = exchange.result.text.lines().next().unwrap_or_default();
    let counts = head.strip_prefix("Documents with the words: ").unwrap_or_default();
    counts
        .trim_end_matches('.')
        .split("; ")
        .filter_map(|count| {
            let (word, numbers) = count.split_once(" in ")?;
            let (some, all) = numbers.split_once(" of ")?;
            Some((word.to_owned(), some.parse().ok()?, all.parse().ok()?))
        })
        .collect()
}

/// The lines shown by a read; `None` for an error.
pub(super) fn parse_read_lines<'a>(exchange: &ToolExchange<'a>) -> Option<NumberedLines<'a>> {
    if exchange.result.is_error {
        return None;
    }
    let (head, body) = exchange.result.text.split_once('\n')?;
    let (range, named) = head.strip_prefix("== lines ")?.split_once(", ")?;
    let line_count = range.rsplit_once(" of ")?.1.parse().ok()?;
    let path = exchange.text_argument("path");
    let title = named.strip_prefix(path)?.strip_prefix(": ")?;
    let lines = body
        .lines()
        .filter_map(|line| {
            let (number, text) = line.split_once('\t')?;
            Some((number.parse().ok()?, text))
        })
        .collect();
    // The path in the arguments lives as long as the exchange, the one in the result as long as the request.
    let path = &named[..path.len()];
    Some(NumberedLines { path, title, line_count, lines })
}
