//! A request as scripts see it, and the values of their placeholders.

use serde_json::{Map, Value};

use crate::model::{Message, Request};
use crate::structured::json::find_json_object;

pub struct PlaceholderContext<'a> {
    pub request: &'a Request,
    /// The name of the requested answer; empty for plain text.
    pub answer: &'a str,
    pub task: &'a str,
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
        let result = request.messages.last().and_then(Message::result);
        let is_reply = |message: &&Message| matches!(message, Message::Assistant { .. });
        Self {
            request,
            answer: request.answer.as_ref().map_or("", |answer| answer.name.as_str()),
            task: request.messages.first().map_or("", Message::text),
            last: request.messages.last().map_or("", Message::text),
            tool: result.and_then(|result| request.tool_of_call(&result.call_id)),
            failed: result.map(|result| result.is_error),
            turn: request.messages.iter().filter(is_reply).count() + 1,
        }
    }

    pub fn summarize_request(&self) -> String {
        let cut = |text: &str| text.chars().take(120).collect::<String>();
        let tool = self.tool.map_or_else(String::new, |tool| format!(", after {tool}"));
        format!("answer {:?}, turn {}{tool}, newest message {:?}", self.answer, self.turn, cut(self.last))
    }

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
