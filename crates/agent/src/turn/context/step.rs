//! The data of a shortening: its settings, its plan and its journal record. Serialisation only.

use millrace_protocol::result::{ModelUsage, Usage};
use serde::{Deserialize, Serialize};

use crate::files::FilePath;
use crate::model::Request;

/// The settings by which a conversation is kept within its model's window. They are recorded with its first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextSettings {
    /// The window in tokens; `None` if it is not known: then only the provider tells that the conversation is too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// The percentage of the window from which on the conversation is shortened.
    pub compact_at: u8,
}

impl ContextSettings {
    /// The default of [`ContextSettings::compact_at`].
    pub const COMPACT_AT: u8 = 85;

    /// The settings for a window.
    #[must_use]
    pub const fn for_window(window: Option<u64>) -> Self {
        Self { window, compact_at: Self::COMPACT_AT }
    }

    /// The number of tokens from which on the conversation is shortened; `None` if the window is not known.
    #[must_use]
    pub fn trigger(self) -> Option<u64> {
        self.window.map(|window| window.saturating_mul(u64::from(self.compact_at)) / 100)
    }
}

impl Default for ContextSettings {
    fn default() -> Self {
        Self::for_window(None)
    }
}

/// The reason for a shortening.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::turn) enum ShortenCause {
    /// The conversation has reached the trigger.
    Trigger,
    /// The agent asked for it.
    Requested,
    /// The provider refused the conversation with this message.
    Overflow(String),
}

/// A shortening that is about to be made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shortening {
    /// Its number in the attempt, from 0.
    pub number: u32,
    /// The part of the conversation that the history file does not have yet.
    pub history: String,
    /// The request for the summary; `None` if cutting arguments and results is enough.
    pub summary: Option<Box<Request>>,
    /// A shorter request for the same, if the model refuses the first one as too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shorter_summary: Option<Box<Request>>,
    /// The estimated tokens of the conversation.
    pub tokens: u64,
    pub(in crate::turn) cause: ShortenCause,
}

/// The record of a shortening: a step `context.<number>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ContextStep {
    /// The state of the history file.
    pub history: HistoryState,
    /// The summary, if one was requested and the model gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The reason that there is no summary although one was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary_error: Option<String>,
    /// The estimated tokens of the conversation before.
    pub tokens_before: u64,
    /// The usage of the summary.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// The same by model.
    #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
    pub models: ModelUsage,
    /// The duration in milliseconds.
    pub took_ms: u64,
}

/// The state of the history file of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HistoryState {
    /// It has the whole conversation.
    Saved {
        path: FilePath,
        /// `true` if the agent can read it.
        is_readable: bool,
    },
    /// The attempt has no workspace; its journal has the whole conversation.
    NoWorkspace,
    /// It can't be written, for this reason: nothing may be dropped.
    Failed(String),
}

impl HistoryState {
    /// `true` if the older messages may be dropped.
    pub fn is_saved(&self) -> bool {
        match self {
            Self::Saved { .. } | Self::NoWorkspace => true,
            Self::Failed(_) => false,
        }
    }

    /// The path that the agent can read.
    pub fn readable_path(&self) -> Option<&FilePath> {
        match self {
            Self::Saved { path, is_readable: true } => Some(path),
            Self::Saved { is_readable: false, .. } | Self::NoWorkspace | Self::Failed(_) => None,
        }
    }
}
