//! What the journal keeps of a step: what came of it and how long it took, so that a resume finds the same working time.
//! It owns the written form and nothing else.

use std::time::Duration;

use millrace_protocol::result::{ModelUsage, Usage};
use serde::{Deserialize, Serialize};

use super::Spent;
use crate::model::{Reply, ToolResult};

/// What came of asking the model. Errors that may pass are not kept: a resume asks again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Heard {
    /// A reply.
    Reply(Box<Reply>),
    /// The conversation is too long for the model, in the provider's words.
    Overflow(String),
    /// The working time was used up first.
    TimeUp,
}

/// A step `model.<turn>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Asked {
    pub heard: Heard,
    /// The full name of the model that was asked; `None` in the journals of versions that did not write it down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Milliseconds.
    pub took_ms: u64,
}

/// What a tool call gave back: a step `tool.<turn>.<index>.<tool>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Returned {
    /// What the model reads.
    #[serde(flatten)]
    pub result: ToolResult,
    /// What it took of the things that cost money.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// Of this, what was used of models, by their full names.
    #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
    pub models: ModelUsage,
    /// How long it took, in milliseconds.
    #[serde(default)]
    pub took_ms: u64,
}

impl Returned {
    /// What it took, in all and by model.
    pub(super) fn spent(&self) -> Spent {
        Spent { usage: self.usage, models: self.models.clone() }
    }

    /// How long it took.
    #[must_use]
    pub fn took(&self) -> Duration {
        Duration::from_millis(self.took_ms)
    }
}

/// A step `begin.<turn>`: the calls that are about to run and must not run twice, by the names of their steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begun {
    pub calls: Vec<String>,
}

/// Whole milliseconds, of which there are always few enough.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
