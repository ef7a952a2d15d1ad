//! The file format of scripts: rules, their conditions, and their replies.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use millrace_protocol::result::Usage;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

use super::placeholders::PlaceholderContext;
use crate::model::{FinishReason, ModelAbility, ModelError};

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
            1 => Ok(()),
            _ => Err("a reply can have only one of 'text' with 'calls', 'answer' and 'error'".to_owned()),
        }
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
            Self::BadRequest => ModelError::BadRequest { message },
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
