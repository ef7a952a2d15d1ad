//! A request as scripts see it, and the values of their placeholders.

use serde_json::{Map, Value};

use crate::model::{Message, Request, ToolResult};
use crate::structured::json::find_json_object;

/// The parts of a request that rules and placeholders refer to.
pub struct PlaceholderContext<'a> {
    pub request: &'a Request,
    /// The name of the requested answer; empty for plain text.
    pub answer: &'a str,
    /// The first message.
    pub task: &'a str,
    /// The newest message.
    pub last: &'a str,
    /// The tool whose result is the newest message.
    pub tool: Option<&'a str>,
    /// `true` if that result is an error.
    pub failed: Option<bool>,
    /// 1 for the first reply of the conversation.
    pub turn: usize,
}

impl<'a> PlaceholderContext<'a> {
    pub fn for_request(request: &'a Request) -> Self {
        let result = request.messages.last().and_then(|message| match message {
            Message::Tool(result) => Some(result),
            Message::User { .. } | Message::Assistant { .. } => None,
        });
        let replies = request.messages.iter().filter(|message| match message {
            Message::Assistant { .. } => true,
            Message::User { .. } | Message::Tool(_) => false,
        });
        Self {
            request,
            answer: request.answer.as_ref().map_or("", |answer| answer.name.as_str()),
            task: request.messages.first().map_or("", message_text),
            last: request.messages.last().map_or("", message_text),
            tool: result.and_then(|result| tool_name_of(request, result)),
            failed: result.map(|result| result.is_error),
            turn: replies.count() + 1,
        }
    }

    /// Describes the request for the error that no rule matches.
    pub fn summarize_request(&self) -> String {
        let cut = |text: &str| text.chars().take(120).collect::<String>();
        let tool = self.tool.map_or_else(String::new, |tool| format!(", after {tool}"));
        format!("answer {:?}, turn {}{tool}, newest message {:?}", self.answer, self.turn, cut(self.last))
    }

    /// Returns a value with its placeholders replaced.
    ///
    /// # Errors
    /// A placeholder has no value.
    pub fn fill_placeholders(&self, value: &Value) -> Result<Value, String> {
        match value {
            Value::String(text) => self.fill_text(text),
            Value::Array(items) => items.iter().map(|item| self.fill_placeholders(item)).collect(),
            Value::Object(map) => {
                let filled = map.iter().map(|(key, value)| Ok((key.clone(), self.fill_placeholders(value)?)));
                Ok(Value::Object(filled.collect::<Result<Map<_, _>, String>>()?))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(value.clone()),
        }
    }

    fn fill_text(&self, template: &str) -> Result<Value, String> {
        let whole = template.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"));
        if let Some(path) = whole.filter(|path| !path.contains("{{")) {
            return self.resolve_placeholder(path.trim());
        }
        let mut filled = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once("{{") {
            let (path, after) =
                after.split_once("}}").ok_or_else(|| format!("{template:?} has no '}}}}'"))?;
            filled.push_str(before);
            filled.push_str(&value_to_text(&self.resolve_placeholder(path.trim())?));
            rest = after;
        }
        filled.push_str(rest);
        Ok(Value::String(filled))
    }

    fn resolve_placeholder(&self, path: &str) -> Result<Value, String> {
        let (root, fields) = path.split_once('.').map_or((path, None), |(root, fields)| (root, Some(fields)));
        let source = match root {
            "task" => self.task,
            "last" => self.last,
            "turn" if fields.is_none() => return Ok(self.turn.into()),
            _ => return Err(format!("{{{{{path}}}}} must begin with task, last or turn")),
        };
        let Some(fields) = fields else {
            return Ok(source.into());
        };
        let json = find_json_object(source).and_then(|json| serde_json::from_str::<Value>(json).ok());
        let json = json.ok_or_else(|| format!("{{{{{path}}}}}: there is no JSON in {root}"))?;
        let value = json.pointer(&format!("/{}", fields.replace('.', "/")));
        value.cloned().ok_or_else(|| format!("{{{{{path}}}}} is not in {json}"))
    }
}

pub fn value_to_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn message_text(message: &Message) -> &str {
    match message {
        Message::User { text } | Message::Assistant { text, .. } => text,
        Message::Tool(result) => &result.text,
    }
}

fn tool_name_of<'a>(request: &'a Request, result: &ToolResult) -> Option<&'a str> {
    let calls = request.messages.iter().rev().find_map(|message| match message {
        Message::Assistant { calls, .. } => Some(calls),
        Message::User { .. } | Message::Tool(_) => None,
    })?;
    calls.iter().find(|call| call.id == result.call_id).map(|call| call.name.as_str())
}
