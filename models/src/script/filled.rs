//! What a request looks like to a script, and how its placeholders are filled.

use serde_json::{Map, Value};

use crate::model::{Message, Request, ToolResult};
use crate::shape::json::object_in;

/// A request as rules see it.
pub struct Scene<'a> {
    pub request: &'a Request,
    /// The name of the answer's form; empty for plain text.
    pub answer: &'a str,
    /// The first message.
    pub task: &'a str,
    /// The newest message.
    pub last: &'a str,
    /// The tool whose result the newest message is.
    pub tool: Option<&'a str>,
    /// Whether that is an error.
    pub failed: Option<bool>,
    /// 1 for the first reply of the conversation.
    pub turn: usize,
}

impl<'a> Scene<'a> {
    pub fn of(request: &'a Request) -> Self {
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
            task: request.messages.first().map_or("", words),
            last: request.messages.last().map_or("", words),
            tool: result.and_then(|result| tool_of(request, result)),
            failed: result.map(|result| result.is_error),
            turn: replies.count() + 1,
        }
    }

    /// What it is, for whoever wonders why no rule fits.
    pub fn summary(&self) -> String {
        let cut = |text: &str| text.chars().take(120).collect::<String>();
        let tool = self.tool.map_or_else(String::new, |tool| format!(", after {tool}"));
        format!("answer {:?}, turn {}{tool}, newest message {:?}", self.answer, self.turn, cut(self.last))
    }

    /// A value with its placeholders filled.
    ///
    /// # Errors
    /// One names nothing.
    pub fn fill(&self, value: &Value) -> Result<Value, String> {
        match value {
            Value::String(text) => self.fill_text(text),
            Value::Array(items) => items.iter().map(|item| self.fill(item)).collect(),
            Value::Object(map) => {
                let filled = map.iter().map(|(key, value)| Ok((key.clone(), self.fill(value)?)));
                Ok(Value::Object(filled.collect::<Result<Map<_, _>, String>>()?))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(value.clone()),
        }
    }

    fn fill_text(&self, template: &str) -> Result<Value, String> {
        let whole = template.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"));
        if let Some(path) = whole.filter(|path| !path.contains("{{")) {
            return self.look_up(path.trim());
        }
        let mut filled = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once("{{") {
            let (path, after) =
                after.split_once("}}").ok_or_else(|| format!("{template:?} has no '}}}}'"))?;
            filled.push_str(before);
            filled.push_str(&text(&self.look_up(path.trim())?));
            rest = after;
        }
        filled.push_str(rest);
        Ok(Value::String(filled))
    }

    fn look_up(&self, path: &str) -> Result<Value, String> {
        let (root, fields) = path.split_once('.').map_or((path, None), |(root, fields)| (root, Some(fields)));
        let source = match root {
            "task" => self.task,
            "last" => self.last,
            "turn" if fields.is_none() => return Ok(self.turn.into()),
            _ => return Err(format!("{{{{{path}}}}} is none of task, last and turn")),
        };
        let Some(fields) = fields else {
            return Ok(source.into());
        };
        let json = object_in(source).and_then(|json| serde_json::from_str::<Value>(json).ok());
        let json = json.ok_or_else(|| format!("{{{{{path}}}}}: there is no JSON in {root}"))?;
        let found = json.pointer(&format!("/{}", fields.replace('.', "/")));
        found.cloned().ok_or_else(|| format!("{{{{{path}}}}} is not in {json}"))
    }
}

/// A value as it stands in a text.
pub fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn words(message: &Message) -> &str {
    match message {
        Message::User { text } | Message::Assistant { text, .. } => text,
        Message::Tool(result) => &result.text,
    }
}

fn tool_of<'a>(request: &'a Request, result: &ToolResult) -> Option<&'a str> {
    let calls = request.messages.iter().rev().find_map(|message| match message {
        Message::Assistant { calls, .. } => Some(calls),
        Message::User { .. } | Message::Tool(_) => None,
    })?;
    calls.iter().find(|call| call.id == result.call_id).map(|call| call.name.as_str())
}
