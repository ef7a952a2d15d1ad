//! Calls that a model wrote as text instead of making them: bare JSON, a fenced block, tags. It owns what counts as a
//! call: a known tool's name with arguments, and nothing else beside them. Text that merely contains JSON stays text.

use serde_json::{Map, Value};

use super::json::{fenced, values, without_thoughts};
use crate::model::{Message, Request};

/// The keys that models name a tool with.
const NAMES: [&str; 4] = ["name", "tool", "tool_name", "action"];
/// The keys that they give its arguments with.
const ARGUMENTS: [&str; 6] = ["arguments", "args", "parameters", "params", "input", "action_input"];
/// The keys that may stand beside these.
const BESIDE: [&str; 5] = ["id", "type", "thought", "reasoning", "action"];
/// What stands before a call and, where there is one, behind it.
const TAGS: [(&str, Option<&str>); 5] = [
    ("<tool_call>", Some("</tool_call>")),
    ("<tool_calls>", Some("</tool_calls>")),
    ("<function_call>", Some("</function_call>")),
    ("[TOOL_CALLS]", None),
    ("<|python_tag|>", None),
];

/// A call as a model wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The tool.
    pub name: String,
    /// Its arguments, JSON text.
    pub arguments: String,
}

/// What was found in a text.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// What stands before the calls.
    pub prose: String,
    /// The calls; never empty.
    pub calls: Vec<Written>,
}

/// The tools that can be meant.
pub struct Known<'a> {
    tools: Vec<&'a str>,
    /// Keys of the answer's own: an object that has one is the answer.
    answer: Option<&'a Map<String, Value>>,
}

impl<'a> Known<'a> {
    /// Those that a request offers.
    #[must_use]
    pub fn of(request: &'a Request) -> Self {
        let answer = request.answer.as_ref().and_then(|answer| answer.schema.get("properties"));
        Self {
            tools: request.tools.iter().map(|tool| tool.name.as_str()).collect(),
            answer: answer.and_then(Value::as_object),
        }
    }

    /// Those that a request offers, where the answer has a place of its own.
    #[must_use]
    pub fn without_answer(request: &'a Request) -> Self {
        Self { answer: None, ..Self::of(request) }
    }

    fn is_tool(&self, name: &str) -> bool {
        self.tools.contains(&name)
    }

    fn is_answers(&self, key: &str) -> bool {
        self.answer.is_some_and(|answer| answer.contains_key(key))
    }
}

/// How many calls a message holds.
pub(super) fn count(message: &Message) -> usize {
    match message {
        Message::Assistant { calls, .. } => calls.len(),
        Message::User { .. } | Message::Tool(_) => 0,
    }
}

/// The calls that a text is, or ends in.
#[must_use]
pub fn in_text(text: &str, known: &Known<'_>) -> Option<Found> {
    let text = without_thoughts(text);
    tagged(text, known).or_else(|| bare(text, known)).or_else(|| in_fences(text, known))
}

fn bare(text: &str, known: &Known<'_>) -> Option<Found> {
    Some(Found { prose: String::new(), calls: all(&values(text)?, known)? })
}

/// Fenced blocks with nothing between them and nothing behind them; prose may stand before.
fn in_fences(text: &str, known: &Known<'_>) -> Option<Found> {
    let blocks = fenced(text);
    let first = blocks.first()?;
    let together = blocks.windows(2).all(|pair| {
        let between = &pair[1].before[text.len() - pair[0].after.len()..];
        between.trim().is_empty()
    });
    if !together || !blocks.last()?.after.trim().is_empty() {
        return None;
    }
    let calls = blocks.iter().map(|block| all(&values(block.inside)?, known));
    let calls = calls.collect::<Option<Vec<_>>>()?.concat();
    Some(Found { prose: first.before.trim().to_owned(), calls })
}

fn tagged(text: &str, known: &Known<'_>) -> Option<Found> {
    TAGS.iter().find_map(|(open, close)| {
        let (prose, mut rest) = text.split_once(open)?;
        let mut calls = Vec::new();
        loop {
            let (inside, after) = match close {
                Some(close) => rest.split_once(close).unwrap_or((rest, "")),
                None => (rest, ""),
            };
            calls.append(&mut all(&values(inside.trim())?, known)?);
            match after.split_once(open) {
                Some((_, next)) => rest = next,
                None => break,
            }
        }
        Some(Found { prose: prose.trim().to_owned(), calls })
    })
}

/// The calls that values are, if all of them are calls.
pub(super) fn all(found: &[Value], known: &Known<'_>) -> Option<Vec<Written>> {
    let calls = found.iter().map(|value| of_value(value, known)).collect::<Option<Vec<_>>>()?.concat();
    (!calls.is_empty()).then_some(calls)
}

fn of_value(value: &Value, known: &Known<'_>) -> Option<Vec<Written>> {
    match value {
        Value::Array(items) => all(items, known),
        Value::Object(object) => match (object.get("tool_calls"), object.len()) {
            (Some(Value::Array(items)), 1) => all(items, known),
            (Some(_) | None, _) => of_object(object, known).map(|call| vec![call]),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn of_object(object: &Map<String, Value>, known: &Known<'_>) -> Option<Written> {
    if let Some(Value::Object(function)) = object.get("function") {
        let envelope = object.keys().all(|key| key == "function" || BESIDE.contains(&key.as_str()));
        return envelope.then(|| of_object(function, known)).flatten();
    }
    let named =
        |key: &&&str| object.get(**key).and_then(Value::as_str).is_some_and(|name| known.is_tool(name));
    let name_key = NAMES.iter().chain(&["function"]).find(named)?;
    let arguments_key = ARGUMENTS.iter().find(|key| object.contains_key(**key));
    let alone = object.keys().all(|key| {
        let key = key.as_str();
        key == *name_key || Some(&key) == arguments_key || BESIDE.contains(&key)
    });
    if !alone || known.is_answers(name_key) {
        return None;
    }
    let name = object[*name_key].as_str()?.to_owned();
    Some(Written { name, arguments: arguments(arguments_key.map(|key| &object[*key]))? })
}

/// Arguments as an object, or as the text of one; a call without any has none.
fn arguments(value: Option<&Value>) -> Option<String> {
    match value {
        None | Some(Value::Null) => Some("{}".to_owned()),
        Some(Value::Object(arguments)) => Some(Value::Object(arguments.clone()).to_string()),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(Value::Object(_)) => Some(text.clone()),
            Ok(_) | Err(_) => None,
        },
        Some(Value::Bool(_) | Value::Number(_) | Value::Array(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{AnswerSchema, ToolSpec};

    fn request(answer: Option<Value>) -> Request {
        let tool = |name: &str| ToolSpec { name: name.into(), description: String::new(), schema: json!({}) };
        Request {
            system: String::new(),
            messages: Vec::new(),
            tools: vec![tool("search"), tool("read")],
            answer: answer.map(|schema| AnswerSchema { name: "a".into(), schema }),
            max_output_tokens: 1,
        }
    }

    fn told(text: &str, request: &Request) -> Option<String> {
        let found = in_text(text, &Known::of(request))?;
        let calls = found.calls.iter().map(|call| format!("{}{}", call.name, call.arguments));
        Some(std::iter::once(found.prose).chain(calls).collect::<Vec<_>>().join("|"))
    }

    #[test]
    fn a_call_that_is_written_as_text_is_understood_in_every_form_that_small_models_use() {
        let one = r#"|search{"q":"x"}"#;
        let cases = [
            (r#"{"name":"search","arguments":{"q":"x"}}"#, one),
            (r#"{"tool":"search","args":{"q":"x"}}"#, one),
            (r#"{"tool_name": "search", "parameters": {"q": "x"}}"#, one),
            (r#"{"action":"search","action_input":{"q":"x"},"thought":"look"}"#, one),
            (r#"{"action":"call_tool","tool":"search","arguments":{"q":"x"}}"#, one),
            (r#"{"function":"search","arguments":"{\"q\":\"x\"}"}"#, one),
            (r#"{"type":"function","function":{"name":"search","arguments":{"q":"x"}}}"#, one),
            (r#"{"tool_calls":[{"name":"search","arguments":{"q":"x"}}]}"#, one),
            ("```json\n{\"name\":\"search\",\"arguments\":{\"q\":\"x\"}}\n```", one),
            ("<tool_call>\n{\"name\":\"search\",\"arguments\":{\"q\":\"x\"}}\n</tool_call>", one),
            ("<tool_call>{\"name\":\"search\",\"arguments\":{\"q\":\"x\"}}", one),
            ("[TOOL_CALLS][{\"name\":\"search\",\"arguments\":{\"q\":\"x\"}}]", one),
            ("<|python_tag|>{\"name\":\"search\",\"parameters\":{\"q\":\"x\"}}", one),
            ("<think>{}</think>{\"name\":\"search\",\"arguments\":{\"q\":\"x\"}}", one),
            (r#"{"name":"read"}"#, "|read{}"),
            (
                "[{\"name\":\"search\",\"arguments\":{}},{\"name\":\"read\",\"arguments\":{}}]",
                "|search{}|read{}",
            ),
            (
                "{\"name\":\"search\",\"arguments\":{}}\n{\"name\":\"read\",\"arguments\":{}}",
                "|search{}|read{}",
            ),
            (
                "<tool_call>{\"name\":\"search\"}</tool_call>\n<tool_call>{\"name\":\"read\"}</tool_call>",
                "|search{}|read{}",
            ),
            (
                "I look.\n```json\n{\"name\":\"search\"}\n```\n\n```json\n{\"name\":\"read\"}\n```",
                "I look.|search{}|read{}",
            ),
            ("I look.\n<tool_call>{\"name\":\"read\"}</tool_call>", "I look.|read{}"),
        ];
        for (text, calls) in cases {
            assert_eq!(told(text, &request(None)).as_deref(), Some(calls), "{text:?}");
        }
    }

    #[test]
    fn text_that_merely_contains_json_stays_text() {
        let texts = [
            "",
            "search",
            r#"{"name":"unknown","arguments":{}}"#,
            r#"{"name":"search","arguments":[1]}"#,
            r#"{"name":"search","arguments":"not json"}"#,
            r#"{"name":"search","arguments":{},"city":"Bern"}"#,
            r#"{"name":"search","arguments":{}} is how it is called."#,
            r#"Call it with {"name":"search","arguments":{}}"#,
            "```json\n{\"name\":\"search\"}\n```\nThat is how it is called.",
            "```json\n{\"name\":\"search\"}\n```\nand\n```json\n{\"name\":\"read\"}\n```",
            "```json\n{\"name\":\"search\"}\n```\n```json\n{\"x\":1}\n```",
            "<tool_call>{\"name\":\"unknown\"}</tool_call>",
            "<tool_call>broken</tool_call>",
            "[]",
            "7",
        ];
        for text in texts {
            assert_eq!(told(text, &request(None)), None, "{text:?}");
        }
    }

    #[test]
    fn an_answer_whose_fields_look_like_a_call_is_an_answer() {
        let form = json!({"type": "object", "properties": {"name": {"type": "string"}, "arguments": {}}});
        let text = r#"{"name":"search","arguments":{"q":"x"}}"#;
        assert_eq!(told(text, &request(Some(form))), None);
        let form = json!({"type": "object", "properties": {"verdict": {"type": "string"}}});
        assert!(told(text, &request(Some(form))).is_some());
    }
}
