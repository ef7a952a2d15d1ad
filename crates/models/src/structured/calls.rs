//! Parses tool calls that a model wrote as text: bare JSON, a fenced code block, or tags. A call is the name of a known
//! tool with arguments and nothing else; text that merely contains JSON stays text.
//!
//! Finds JSON inside the text of a model. It extracts and does not repair.

use std::borrow::Cow;

use millrace_protocol::foreign_json::{mend_json_text, parse_foreign_json};
use serde_json::{Map, Value};

use crate::model::{Request, ToolCall};
use crate::tool_names::{NamedTool, resolve_tool_name};

const NAME_KEYS: [&str; 4] = ["name", "tool", "tool_name", "action"];
const ARGUMENT_KEYS: [&str; 6] = ["arguments", "args", "parameters", "params", "input", "action_input"];
const OPTIONAL_KEYS: [&str; 5] = ["id", "type", "thought", "reasoning", "action"];
/// The opening tag of a call and its closing tag, if it has one.
const CALL_TAGS: [(&str, Option<&str>); 5] = [
    ("<tool_call>", Some("</tool_call>")),
    ("<tool_calls>", Some("</tool_calls>")),
    ("<function_call>", Some("</function_call>")),
    ("[TOOL_CALLS]", None),
    ("<|python_tag|>", None),
];

/// The text before the calls in a text, and the calls, of which there is at least one. Their ids are empty.
pub type ParsedToolCalls = (String, Vec<ToolCall>);

pub struct AvailableTools<'a> {
    tools: Vec<&'a str>,
    /// The answer's properties: an object with one of them is the answer rather than a call.
    answer: Option<&'a Map<String, Value>>,
}

impl<'a> AvailableTools<'a> {
    pub fn from_request(request: &'a Request) -> Self {
        let answer = request.answer.as_ref().and_then(|answer| answer.schema.get("properties"));
        Self {
            tools: request.tools.iter().map(|tool| tool.name.as_str()).collect(),
            answer: answer.and_then(Value::as_object),
        }
    }

    /// Returns the tools of a request whose answer cannot be confused with a call.
    pub fn from_tools_only(request: &'a Request) -> Self {
        Self { answer: None, ..Self::from_request(request) }
    }
}

/// Returns the calls in a text that consists of calls or ends with them.
pub fn find_calls_in_text(text: &str, tools: &AvailableTools<'_>) -> Option<ParsedToolCalls> {
    let text = strip_reasoning(text);
    find_tagged_calls(text, tools)
        .or_else(|| parse_bare_calls(text, tools))
        .or_else(|| find_fenced_calls(text, tools))
}

fn parse_bare_calls(text: &str, tools: &AvailableTools<'_>) -> Option<ParsedToolCalls> {
    Some((String::new(), calls_from_json_values(&parse_json_values(text)?, tools)?))
}

/// Finds calls in consecutive fenced code blocks at the end of a text; prose may precede them.
fn find_fenced_calls(text: &str, tools: &AvailableTools<'_>) -> Option<ParsedToolCalls> {
    let blocks = find_fenced_blocks(text);
    let first = blocks.first()?;
    let are_adjacent = blocks.windows(2).all(|pair| {
        let between = &pair[1].before[text.len() - pair[0].after.len()..];
        between.trim().is_empty()
    });
    if !are_adjacent || !blocks.last()?.after.trim().is_empty() {
        return None;
    }
    let calls = blocks.iter().map(|block| calls_from_json_values(&parse_json_values(block.inside)?, tools));
    let calls = calls.collect::<Option<Vec<_>>>()?.concat();
    Some((first.before.trim().to_owned(), calls))
}

fn find_tagged_calls(text: &str, tools: &AvailableTools<'_>) -> Option<ParsedToolCalls> {
    CALL_TAGS.iter().find_map(|(open, close)| {
        let (prose, mut rest) = text.split_once(open)?;
        let mut calls = Vec::new();
        loop {
            let (inside, after) = match close {
                Some(close) => rest.split_once(close).unwrap_or((rest, "")),
                None => (rest, ""),
            };
            calls.append(&mut calls_from_json_values(&parse_json_values(inside.trim())?, tools)?);
            match after.split_once(open) {
                Some((_, next)) => rest = next,
                None => break,
            }
        }
        Some((prose.trim().to_owned(), calls))
    })
}

/// Parses values as calls; `None` unless all of them are calls.
pub(super) fn calls_from_json_values(values: &[Value], tools: &AvailableTools<'_>) -> Option<Vec<ToolCall>> {
    let calls =
        values.iter().map(|value| calls_from_json_value(value, tools)).collect::<Option<Vec<_>>>()?.concat();
    (!calls.is_empty()).then_some(calls)
}

fn calls_from_json_value(value: &Value, tools: &AvailableTools<'_>) -> Option<Vec<ToolCall>> {
    match value {
        Value::Array(items) => calls_from_json_values(items, tools),
        Value::Object(object) => match (object.get("tool_calls"), object.len()) {
            (Some(Value::Array(items)), 1) => calls_from_json_values(items, tools),
            (Some(_) | None, _) => call_from_json_object(object, tools).map(|call| vec![call]),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn call_from_json_object(object: &Map<String, Value>, tools: &AvailableTools<'_>) -> Option<ToolCall> {
    if let Some(Value::Object(function)) = object.get("function") {
        let envelope = object.keys().all(|key| key == "function" || OPTIONAL_KEYS.contains(&key.as_str()));
        return envelope.then(|| call_from_json_object(function, tools)).flatten();
    }
    let tool_at = |key: &&'static str| {
        let written = object.get(*key).and_then(Value::as_str)?;
        match resolve_tool_name(written, &tools.tools) {
            NamedTool::One(tool) => Some((*key, tool.to_owned())),
            NamedTool::Several(_) | NamedTool::None => None,
        }
    };
    let (name_key, name) = NAME_KEYS.iter().chain(&["function"]).find_map(tool_at)?;
    let arguments_key = ARGUMENT_KEYS.iter().find(|key| object.contains_key(**key));
    let is_call = object.keys().all(|key| {
        let key = key.as_str();
        key == name_key || Some(&key) == arguments_key || OPTIONAL_KEYS.contains(&key)
    });
    if !is_call || tools.answer.is_some_and(|answer| answer.contains_key(name_key)) {
        return None;
    }
    let arguments = arguments_as_text(arguments_key.map(|key| &object[*key]))?;
    Some(ToolCall { id: String::new(), name, arguments })
}

/// Returns the arguments, given as an object or as its JSON text; no arguments are an empty object.
fn arguments_as_text(value: Option<&Value>) -> Option<String> {
    match value {
        None | Some(Value::Null) => Some("{}".to_owned()),
        Some(Value::Object(arguments)) => Some(Value::Object(arguments.clone()).to_string()),
        Some(Value::String(text)) => match parse_foreign_json(text) {
            Ok(Value::Object(arguments)) => Some(Value::Object(arguments).to_string()),
            Ok(_) | Err(_) => None,
        },
        Some(Value::Bool(_) | Value::Number(_) | Value::Array(_)) => None,
    }
}

/// Maximum number of positions tried as the beginning of an object, so that text full of braces takes bounded time.
const MAX_POSITIONS: usize = 200;
const REASONING_TAGS: [(&str, &str); 3] =
    [("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<reasoning>", "</reasoning>")];

/// Removes the reasoning at the beginning of a text. Unterminated reasoning leaves an empty text.
pub fn strip_leading_reasoning(text: &str) -> Cow<'_, str> {
    let trimmed = text.trim_start();
    for (open, close) in REASONING_TAGS {
        if let Some(rest) = trimmed.strip_prefix(open) {
            let after = rest.split_once(close).map_or("", |(_, after)| after);
            return Cow::Owned(after.trim_start().to_owned());
        }
    }
    Cow::Borrowed(text)
}

/// Removes the reasoning at the beginning of a text, even if the chat template swallowed its opening tag; then it must
/// end before the first brace.
pub fn strip_reasoning(text: &str) -> &str {
    let text = text.trim();
    for (open, close) in REASONING_TAGS {
        let opened = text.starts_with(open);
        match text.split_once(close) {
            Some((before, after)) if opened || !before.contains('{') => return after.trim(),
            None if opened => return "",
            Some(_) | None => {}
        }
    }
    text
}

/// Returns the JSON object in a text: the text itself, the last fenced code block that is an object, or the longest
/// object in prose.
pub fn find_json_object(text: &str) -> Option<&str> {
    let text = strip_reasoning(text);
    if is_json_object(text) {
        return Some(text);
    }
    let fenced_blocks = find_fenced_blocks(text)
        .into_iter()
        .rev()
        .map(|block| block.inside)
        .find(|inside| is_json_object(inside));
    fenced_blocks.or_else(|| find_longest_json_object(text))
}

#[derive(Debug, PartialEq, Eq)]
pub struct FencedBlock<'a> {
    pub before: &'a str,
    pub inside: &'a str,
    pub after: &'a str,
}

/// Returns the fenced code blocks of a text in order. An unclosed last one extends to the end.
pub fn find_fenced_blocks(text: &str) -> Vec<FencedBlock<'_>> {
    let mut blocks = Vec::new();
    let mut from = 0;
    while let Some(open) = text[from..].find("```").map(|at| from + at) {
        let Some(line) = text[open + 3..].find('\n').map(|at| open + 3 + at) else {
            break;
        };
        let close = text[line..].find("```").map_or(text.len(), |at| line + at);
        from = (close + 3).min(text.len());
        let (before, after) = (&text[..open], &text[from..]);
        blocks.push(FencedBlock { before, inside: text[line..close].trim(), after });
    }
    blocks
}

/// Parses a text that consists of JSON objects and arrays only.
pub fn parse_json_values(text: &str) -> Option<Vec<Value>> {
    if !text.starts_with(['{', '[']) {
        return None;
    }
    let text = mend_json_text(text.to_owned());
    serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<_, _>>().ok()
}

fn is_json_object(text: &str) -> bool {
    text.starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

fn find_longest_json_object(text: &str) -> Option<&str> {
    let mut longest: Option<&str> = None;
    let mut from = 0;
    for _ in 0..MAX_POSITIONS {
        let Some(at) = text[from..].find('{').map(|at| from + at) else {
            break;
        };
        let mut stream = serde_json::Deserializer::from_str(&text[at..]).into_iter::<serde::de::IgnoredAny>();
        from = match stream.next() {
            Some(Ok(_)) => at + stream.byte_offset(),
            // An object inside a broken object is not the one we look for.
            Some(Err(mistake)) if at == 0 || mistake.is_eof() => break,
            Some(Err(_)) | None => at + 1,
        };
        let object = &text[at..from];
        if object.len() > 1 && longest.is_none_or(|longest| object.len() > longest.len()) {
            longest = Some(object);
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{AnswerSchema, ToolSpec};

    fn request_with_answer_schema(answer: Option<Value>) -> Request {
        let tool =
            |name: &str| ToolSpec { name: name.into(), description: "".into(), schema: json!({}).into() };
        Request {
            system: String::new(),
            messages: Vec::new(),
            tools: vec![tool("search"), tool("read")],
            answer: answer.map(|schema| AnswerSchema { name: "a".into(), schema }),
            max_output_tokens: 1,
            ..Request::default()
        }
    }

    fn find_calls_for(text: &str, request: &Request) -> Option<String> {
        let values = find_calls_in_text(text, &AvailableTools::from_request(request))?;
        let calls = values.1.iter().map(|call| format!("{}{}", call.name, call.arguments));
        Some(std::iter::once(values.0).chain(calls).collect::<Vec<_>>().join("|"))
    }

    #[test]
    fn calls_written_as_text_are_parsed_in_every_usual_form() {
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
            (r#"{"name":"functions.search","arguments":{"q":"x"}}"#, one),
            (r#"{"action":" Search ","arguments":{"q":"x"}}"#, one),
        ];
        for (text, calls) in cases {
            assert_eq!(
                find_calls_for(text, &request_with_answer_schema(None)).as_deref(),
                Some(calls),
                "{text:?}"
            );
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
            assert_eq!(find_calls_for(text, &request_with_answer_schema(None)), None, "{text:?}");
        }
    }

    #[test]
    fn an_answer_whose_fields_look_like_a_call_is_an_answer() {
        let form = json!({"type": "object", "properties": {"name": {"type": "string"}, "arguments": {}}});
        let text = r#"{"name":"search","arguments":{"q":"x"}}"#;
        assert_eq!(find_calls_for(text, &request_with_answer_schema(Some(form))), None);
        let form = json!({"type": "object", "properties": {"verdict": {"type": "string"}}});
        assert!(find_calls_for(text, &request_with_answer_schema(Some(form))).is_some());
    }

    #[test]
    fn an_object_is_extracted_from_the_text_around_it() {
        let cases = [
            (r#"{"a":1}"#, Some(r#"{"a":1}"#)),
            ("  {\"a\":1}\n", Some(r#"{"a":1}"#)),
            ("```json\n{\"a\":1}\n```", Some(r#"{"a":1}"#)),
            ("```\n{\"a\":1}\n```\nThat is it.", Some(r#"{"a":1}"#)),
            ("```json\n{\"a\":1}", Some(r#"{"a":1}"#)),
            ("First ```json\n{\"a\":1}\n``` then\n```json\n{\"a\":2}\n```", Some(r#"{"a":2}"#)),
            ("Here you are: {\"a\":{\"b\":\"}\"}} and {\"c\":1}.", Some(r#"{"a":{"b":"}"}}"#)),
            ("<think>maybe {\"a\":0}</think>\n{\"a\":1}", Some(r#"{"a":1}"#)),
            ("I should answer.\n</think>{\"a\":1}", Some(r#"{"a":1}"#)),
            ("{\"a\":\"</think>\"}", Some(r#"{"a":"</think>"}"#)),
            ("<think>endless {\"a\":0}", None),
            ("{\"a\": 1", None),
            ("{\"a\": {\"b\": 1}, 'c': 2}", None),
            ("Here: {\"a\": {\"b\": 1}, \"c\"", None),
            ("[1, 2]", None),
            ("no braces", None),
            ("", None),
        ];
        for (text, object) in cases {
            assert_eq!(find_json_object(text), object, "{text:?}");
        }
    }

    #[test]
    fn leading_reasoning_is_removed() {
        let cases = [
            ("<think>hm</think>\n\nYes.", "Yes."),
            ("  <thinking>a\nb</thinking>Yes.", "Yes."),
            ("Yes. <think>really?</think>", "Yes. <think>really?</think>"),
            ("The tag </think> ends it.", "The tag </think> ends it."),
            ("<think>never done", ""),
        ];
        for (text, plain) in cases {
            assert_eq!(strip_leading_reasoning(text), plain, "{text:?}");
        }
    }

    #[test]
    fn text_full_of_braces_takes_bounded_time() {
        let text = format!("so {}", "{ ".repeat(2_000_000));
        assert_eq!(find_json_object(&text), None);
    }
}
