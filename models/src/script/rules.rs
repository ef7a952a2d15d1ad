//! The form of a script: its rules, when they fit, and what they reply.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use millrace_protocol::result::Usage;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

use super::filled::Scene;
use crate::model::{Finish, ModelError};

/// A script.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub rules: Vec<Rule>,
    #[serde(default = "once")]
    pub tries: u32,
    #[serde(default)]
    pub ledger: Option<PathBuf>,
}

fn once() -> u32 {
    1
}

/// What is replied, and when.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    #[serde(default)]
    pub when: When,
    /// How many requests it answers; all, if left out.
    #[serde(default)]
    pub times: Option<u64>,
    #[serde(default)]
    reply: Option<Act>,
    #[serde(default)]
    turns: Vec<Act>,
}

/// What must hold of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct When {
    answer: Option<String>,
    system: Option<String>,
    task: Option<String>,
    last: Option<String>,
    tool: Option<String>,
    failed: Option<bool>,
    offered: Option<String>,
    turn: Option<usize>,
}

/// One reply.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Act {
    pub text: Option<String>,
    pub answer: Option<Value>,
    pub calls: Vec<Call>,
    pub error: Option<Kind>,
    message: Option<String>,
    retry_after: Option<f64>,
    pub delay: f64,
    pub pieces: usize,
    pub reasoning: Option<String>,
    pub usage: Option<Usage>,
    pub finish: Option<Finish>,
}

/// A call: `tool: {its arguments}`, or the tool alone.
#[derive(Debug, PartialEq)]
pub struct Call {
    pub tool: String,
    /// Null for none; a text is what the model wrote, right or wrong.
    pub arguments: Value,
}

/// The kinds of [`ModelError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
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

impl File {
    /// What the form does not say by itself.
    pub fn check(&self) -> Result<(), String> {
        if self.rules.is_empty() {
            return Err("it has no rules".to_owned());
        }
        self.rules
            .iter()
            .enumerate()
            .try_for_each(|(at, rule)| rule.check().map_err(|mistake| format!("rule {}: {mistake}", at + 1)))
    }
}

impl Rule {
    fn check(&self) -> Result<(), String> {
        match (&self.reply, self.turns.as_slice()) {
            (None, []) => Err("it has neither 'reply' nor 'turns'".to_owned()),
            (Some(_), [_, ..]) => Err("it has both 'reply' and 'turns'".to_owned()),
            (Some(act), []) => act.check(),
            (None, acts) => acts.iter().try_for_each(Act::check),
        }
    }

    /// What it replies at a turn of a conversation; the last of its turns stays.
    pub fn act(&self, turn: usize) -> &Act {
        let last = || self.turns.get(turn.saturating_sub(1)).or(self.turns.last());
        self.reply.as_ref().or_else(last).expect("a rule without any reply is refused when it is read")
    }
}

impl Act {
    fn check(&self) -> Result<(), String> {
        let said =
            [self.answer.is_some(), self.text.is_some() || !self.calls.is_empty(), self.error.is_some()];
        match said.iter().filter(|said| **said).count() {
            0 => Err("a reply is one of 'text', 'answer', 'calls' and 'error'".to_owned()),
            1 if self.error.is_none() && (self.message.is_some() || self.retry_after.is_some()) => {
                Err("'message' and 'retry_after' belong to an 'error'".to_owned())
            }
            1 if !(0.0..=86_400.0).contains(&self.delay) => Err(format!("a delay of {} seconds", self.delay)),
            1 => Ok(()),
            _ => Err("a reply has only one of 'text' with 'calls', 'answer' and 'error'".to_owned()),
        }
    }
}

impl When {
    /// Why it does not fit; `None` if it does.
    pub fn misfit(&self, scene: &Scene<'_>) -> Option<String> {
        let is = |what: &str, wanted: &Option<String>, there: &str| {
            wanted
                .as_ref()
                .filter(|wanted| *wanted != there)
                .map(|wanted| format!("{what} is not {wanted:?}"))
        };
        let has = |what: &str, wanted: &Option<String>, there: &str| {
            let wanted = wanted.as_ref().filter(|wanted| !there.contains(wanted.as_str()));
            wanted.map(|wanted| format!("{what} does not say {wanted:?}"))
        };
        let offers = |tool: &&String| !scene.request.tools.iter().any(|offered| offered.name == **tool);
        is("the answer", &self.answer, scene.answer)
            .or_else(|| has("the system text", &self.system, &scene.request.system))
            .or_else(|| has("the task", &self.task, scene.task))
            .or_else(|| has("the newest message", &self.last, scene.last))
            .or_else(|| is("the newest result's tool", &self.tool, scene.tool.unwrap_or_default()))
            .or_else(|| {
                let failed = self.failed.filter(|failed| scene.failed != Some(*failed))?;
                Some(if failed { "no tool has just failed" } else { "no tool has just succeeded" }.to_owned())
            })
            .or_else(|| self.offered.as_ref().filter(offers).map(|tool| format!("{tool} is not offered")))
            .or_else(|| {
                self.turn.filter(|turn| *turn != scene.turn).map(|turn| format!("it is not turn {turn}"))
            })
    }
}

impl Kind {
    /// The error, as an agent meets it.
    pub fn error(self, act: &Act) -> ModelError {
        let message = act.message.clone().unwrap_or_else(|| "as the script says".to_owned());
        let after = act.retry_after.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        match self {
            Self::RateLimited => ModelError::RateLimited { retry_after: after, message },
            Self::Overloaded => ModelError::Overloaded { message },
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

impl<'de> Deserialize<'de> for Call {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CallVisitor)
    }
}

struct CallVisitor;

impl<'de> Visitor<'de> for CallVisitor {
    type Value = Call;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a tool's name, or a map of one tool's name to its arguments")
    }

    fn visit_str<E: Error>(self, tool: &str) -> Result<Call, E> {
        Ok(Call { tool: tool.to_owned(), arguments: Value::Null })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Call, A::Error> {
        let entry: Option<(String, Value)> = map.next_entry()?;
        let (tool, arguments) = entry.ok_or_else(|| A::Error::custom("a call names a tool"))?;
        match map.next_key::<String>()? {
            Some(second) => Err(A::Error::custom(format!(
                "a call has one tool, and here are {tool:?} and {second:?}; each call begins with a dash"
            ))),
            None => Ok(Call { tool, arguments }),
        }
    }
}
