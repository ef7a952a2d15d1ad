//! The file format of scripts: rules, their conditions, and their replies; and a request as scripts see it, with the values of their
//! placeholders.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use millrace_protocol::result::Usage;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::model::{FinishReason, Message, ModelAbility, ModelError, Request, TokenProbability};

use crate::structured::calls::find_json_object;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptFile {
    pub rules: Vec<ScriptRule>,
    #[serde(default = "default_max_attempts")]
    pub tries: u32,
    #[serde(default)]
    pub ledger: Option<PathBuf>,
    #[serde(default)]
    pub ability: ModelAbility,
}

fn default_max_attempts() -> u32 {
    1
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptRule {
    #[serde(default)]
    pub when: ScriptRuleConditions,
    /// The maximum number of requests it answers; unlimited if missing.
    #[serde(default)]
    pub times: Option<u64>,
    #[serde(default)]
    reply: Option<ScriptedReply>,
    #[serde(default)]
    turns: Vec<ScriptedReply>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename = "Conditions", default, deny_unknown_fields)]
pub struct ScriptRuleConditions {
    answer: Option<String>,
    system: Option<String>,
    task: Option<String>,
    last: Option<String>,
    tool: Option<String>,
    failed: Option<bool>,
    offered: Option<String>,
    turn: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScriptedReply {
    pub text: Option<String>,
    pub answer: Option<Value>,
    pub calls: Vec<ScriptedCall>,
    pub error: Option<ScriptedErrorKind>,
    message: Option<String>,
    retry_after: Option<f64>,
    pub delay: f64,
    pub pieces: usize,
    pub reasoning: Option<String>,
    pub usage: Option<Usage>,
    pub finish: Option<FinishReason>,
    /// The alternatives of the first token and their probabilities, for requests that ask for them.
    first_token: BTreeMap<String, f64>,
}

/// A tool call: `tool: {arguments}`, or the name of the tool alone.
#[derive(Debug, PartialEq)]
pub struct ScriptedCall {
    pub tool: String,
    /// Null for no arguments; a text is passed on unchanged, even if it is invalid.
    pub arguments: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename = "ErrorKind", rename_all = "snake_case")]
pub enum ScriptedErrorKind {
    RateLimited,
    Overloaded,
    ContextOverflow,
    Authentication,
    ContentFilter,
    Truncated,
    BadRequest,
    Protocol,
    Timeout,
    Connection,
}

impl ScriptFile {
    pub fn validate_rules(&self) -> Result<(), String> {
        if self.rules.is_empty() {
            return Err("it has no rules".to_owned());
        }
        self.rules.iter().enumerate().try_for_each(|(at, rule)| {
            rule.validate_rule().map_err(|mistake| format!("rule {}: {mistake}", at + 1))
        })
    }
}

impl ScriptRule {
    fn validate_rule(&self) -> Result<(), String> {
        match (&self.reply, self.turns.as_slice()) {
            (None, []) => Err("it has neither 'reply' nor 'turns'".to_owned()),
            (Some(_), [_, ..]) => Err("it has both 'reply' and 'turns'".to_owned()),
            (Some(scripted), []) => scripted.validate_reply(),
            (None, acts) => acts.iter().try_for_each(ScriptedReply::validate_reply),
        }
    }

    /// Returns the reply for a turn of a conversation; the last one repeats.
    pub fn reply_for_turn(&self, turn: usize) -> &ScriptedReply {
        let last = || self.turns.get(turn.saturating_sub(1)).or(self.turns.last());
        self.reply.as_ref().or_else(last).expect("a rule without replies is rejected on load")
    }
}

impl ScriptedReply {
    fn validate_reply(&self) -> Result<(), String> {
        let parts_set =
            [self.answer.is_some(), self.text.is_some() || !self.calls.is_empty(), self.error.is_some()];
        match parts_set.iter().filter(|parts_set| **parts_set).count() {
            0 => Err("a reply needs one of 'text', 'answer', 'calls' and 'error'".to_owned()),
            1 if self.error.is_none() && (self.message.is_some() || self.retry_after.is_some()) => {
                Err("'message' and 'retry_after' need an 'error'".to_owned())
            }
            1 if !(0.0..=86_400.0).contains(&self.delay) => {
                Err(format!("a delay of {} seconds is out of range", self.delay))
            }
            1 if self.first_token.values().any(|probability| !(0.0..=1.0).contains(probability)) => {
                Err("a probability in 'first_token' is not between 0 and 1".to_owned())
            }
            1 => Ok(()),
            _ => Err("a reply can have only one of 'text' with 'calls', 'answer' and 'error'".to_owned()),
        }
    }

    pub fn first_token(&self, request: &Request) -> Vec<TokenProbability> {
        let asked = self.first_token.iter().filter(|_| request.first_token_probabilities);
        let mut alternatives: Vec<_> = asked
            .map(|(token, probability)| TokenProbability { token: token.clone(), probability: *probability })
            .collect();
        alternatives.sort_by(|a, b| b.probability.total_cmp(&a.probability));
        alternatives
    }
}

impl ScriptRuleConditions {
    /// Returns why the conditions do not hold; `None` if they do.
    pub fn find_mismatched_condition(&self, view: &PlaceholderContext<'_>) -> Option<String> {
        let is = |what: &str, expected: &Option<String>, actual: &str| {
            expected
                .as_ref()
                .filter(|expected| *expected != actual)
                .map(|expected| format!("{what} is not {expected:?}"))
        };
        let has = |what: &str, expected: &Option<String>, actual: &str| {
            let expected = expected.as_ref().filter(|expected| !actual.contains(expected.as_str()));
            expected.map(|expected| format!("{what} does not contain {expected:?}"))
        };
        let offers = |tool: &&String| !view.request.tools.iter().any(|offered| offered.name == **tool);
        is("the answer", &self.answer, view.answer)
            .or_else(|| has("the system prompt", &self.system, &view.request.system))
            .or_else(|| has("the task", &self.task, view.task))
            .or_else(|| has("the newest message", &self.last, view.last))
            .or_else(|| is("the newest result's tool", &self.tool, view.tool.unwrap_or_default()))
            .or_else(|| {
                let failed = self.failed.filter(|failed| view.failed != Some(*failed))?;
                Some(if failed { "no tool failed just now" } else { "no tool succeeded just now" }.to_owned())
            })
            .or_else(|| self.offered.as_ref().filter(offers).map(|tool| format!("{tool} is not offered")))
            .or_else(|| {
                self.turn.filter(|turn| *turn != view.turn).map(|turn| format!("it is not turn {turn}"))
            })
    }
}

impl ScriptedErrorKind {
    pub fn to_model_error(self, scripted: &ScriptedReply) -> ModelError {
        let message = scripted.message.clone().unwrap_or_else(|| "scripted error".to_owned());
        let after = scripted.retry_after.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        match self {
            Self::RateLimited => ModelError::RateLimited { retry_after: after, message },
            Self::Overloaded => ModelError::Overloaded { retry_after: after, message },
            Self::ContextOverflow => ModelError::ContextOverflow { message },
            Self::Authentication => ModelError::Authentication { message },
            Self::ContentFilter => ModelError::ContentFilter { message },
            Self::Truncated => ModelError::Truncated { message },
            Self::BadRequest => ModelError::bad_request(message),
            Self::Protocol => ModelError::Protocol { message },
            Self::Timeout => ModelError::Timeout { after: after.unwrap_or_default() },
            Self::Connection => ModelError::Connection { message },
        }
    }
}

impl<'de> Deserialize<'de> for ScriptedCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScriptedCallVisitor)
    }
}

struct ScriptedCallVisitor;

impl<'de> Visitor<'de> for ScriptedCallVisitor {
    type Value = ScriptedCall;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a tool's name, or a map of one tool's name to its arguments")
    }

    fn visit_str<E: Error>(self, tool: &str) -> Result<ScriptedCall, E> {
        Ok(ScriptedCall { tool: tool.to_owned(), arguments: Value::Null })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ScriptedCall, A::Error> {
        let entry: Option<(String, Value)> = map.next_entry()?;
        let (tool, arguments) = entry.ok_or_else(|| A::Error::custom("a call needs the name of a tool"))?;
        match map.next_key::<String>()? {
            Some(second) => Err(A::Error::custom(format!(
                "a call has one tool, but there are {tool:?} and {second:?}; start each call with a dash"
            ))),
            None => Ok(ScriptedCall { tool, arguments }),
        }
    }
}

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
