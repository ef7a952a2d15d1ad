//! The journal records of an agent's steps: the outcome of each and how long it took, so that a resumed attempt has the
//! same working time. Serialisation only.

use std::borrow::Cow;
use std::time::Duration;

use millrace_protocol::result::{Artifact, ModelUsage, Usage};
use serde::{Deserialize, Serialize};

use super::{ArtifactChange, ContextSettings, RecordedChanges, UsageTotals};
use crate::corpus::WebPage;
use crate::material::keep_beginning_and_end;
use crate::model::{Message, ModelAbility, Reply, Request, ToolResult};
use crate::skills::SkillEntry;
use crate::state::StateRules;

/// The maximum number of characters that are recorded of a message. A step larger than 256 KiB would be stored apart from
/// the journal, which costs an attempt two more messages.
const MAX_RECORDED_CHARS: usize = 64_000;

/// The outcome of a model request. Transient errors are not recorded: a resumed attempt sends the request again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModelStepOutcome {
    Reply(Box<Reply>),
    /// The conversation is too long for the model, with the provider's message.
    Overflow(String),
    /// The working time ran out first.
    TimeUp,
}

/// The record of a model request: a step `model.<turn>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelStep {
    #[serde(rename = "heard")]
    pub outcome: ModelStepOutcome,
    /// The messages that the request added to the conversation, for people who read the journal; a resumed attempt does
    /// not need them. `None` if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<SentMessages>,
    /// The ability of the model that the prompts were written for; with the first request only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ability: Option<ModelAbility>,
    /// The rules for the agent's state; with the first request only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateRules>,
    /// The state that the attempt took over from earlier ones; with the first request only, and `None` if there is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited: Option<InheritedState>,
    /// The settings of the conversation's context; with the first request only, and `None` if it is not kept within a window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextSettings>,
    /// The skills that the agent can read; with the first request only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<SkillEntry>,
    /// The full name of the requested model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The duration in milliseconds.
    pub took_ms: u64,
}

/// The state that an attempt takes over from earlier attempts at its task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InheritedState {
    /// Their notes, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The attempt whose conversation it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_of: Option<u32>,
}

impl InheritedState {
    /// `true` if there is nothing to take over.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The messages that a model request added to the conversation and that no other step records: neither replies nor the
/// results of calls that were run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SentMessages {
    /// The system prompt; with the first request only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The user messages, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub user: Vec<String>,
    /// The results of calls that were refused, or answered by the agent's own state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<ToolResult>,
    /// The names of the tools that the agent may call; with the first request only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// `true` if the conversation was compacted before the request: most older messages are no longer in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_compacted: bool,
}

/// The events since the last model request that decide which of its messages are new.
#[derive(Debug, Default)]
pub(crate) struct SinceLastRequest {
    /// `true` if the conversation was compacted, so that its second message, the notice of that, is new.
    pub is_compacted: bool,
    /// The ids of the calls that were run, whose results are steps of their own.
    pub recorded_calls: Vec<String>,
}

impl SentMessages {
    /// Returns the new messages of a request; `None` if there are none.
    pub(crate) fn new_in(request: &Request, since: &SinceLastRequest) -> Option<Self> {
        let is_compacted = since.is_compacted;
        let messages = &request.messages;
        let last_reply = messages.iter().rposition(|message| matches!(message, Message::Assistant { .. }));
        let is_first = last_reply.is_none() && !is_compacted;
        let notice = messages.get(1).filter(|_| is_compacted);
        let begin = last_reply.map_or(if is_compacted { 2 } else { 0 }, |at| at + 1);
        let mut sent = Self { is_compacted, ..Self::default() };
        for message in notice.into_iter().chain(messages.get(begin..).unwrap_or_default()) {
            match message {
                Message::User { text } => sent.user.push(keep_beginning_and_end(text, MAX_RECORDED_CHARS)),
                // The request before a compaction had them already.
                Message::Tool(result) if !is_compacted && !since.recorded_calls.contains(&result.call_id) => {
                    sent.results.push(result.clone());
                }
                Message::Tool(_) | Message::Assistant { .. } => {}
            }
        }
        if is_first {
            sent.system = Some(keep_beginning_and_end(&request.system, MAX_RECORDED_CHARS));
            sent.tools = request.tools.iter().map(|tool| tool.name.clone()).collect();
        }
        (sent != Self::default()).then_some(sent)
    }

    /// Returns the system prompt and the task of a first request, if neither was shortened.
    pub(crate) fn into_whole_prompt(self) -> Option<(String, String)> {
        let task = self.user.into_iter().next()?;
        let is_whole = |text: &String| text.chars().count() <= MAX_RECORDED_CHARS;
        Some((self.system.filter(is_whole)?, Some(task).filter(is_whole)?))
    }
}

/// The result of a tool call: a step `tool.<turn>.<index>.<tool>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCallRecord {
    /// The result that the model sees.
    #[serde(flatten)]
    pub result: ToolResult,
    /// The model usage of the call.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// The same usage by full model name.
    #[serde(default, skip_serializing_if = "ModelUsage::is_empty")]
    pub models: ModelUsage,
    /// The usage of delegated tasks that counts against the limits of the attempt. Those tasks report it.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub delegated: Usage,
    /// The files that the call changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<ArtifactChange>,
    /// `true` if the call changed something outside that is not among the files, or waited while others could.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_effects: bool,
    /// `true` if the call waited for a time or an event, or if its tool had an effect outside: the same call with the same result
    /// is no repetition then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_progress: bool,
    /// The web page that the call has read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<Box<WebPage>>,
    /// The duration in milliseconds.
    #[serde(default)]
    pub took_ms: u64,
}

impl ToolCallRecord {
    /// The usage of the call, in total and by model.
    pub(super) fn usage_totals(&self) -> UsageTotals {
        UsageTotals { usage: self.usage, models: self.models.clone() }
    }

    /// The result for a comparison with that of an earlier call: without the versions of the files that it made, which are new
    /// each time, but with their contents.
    pub(super) fn comparable_result(&self) -> Cow<'_, str> {
        if self.artifacts.is_empty() {
            return Cow::Borrowed(&self.result.text);
        }
        let mut parts = self.result.text.split("version ");
        let mut text = parts.next().unwrap_or_default().to_owned();
        text.extend(parts.map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit())));
        for change in &self.artifacts {
            if let ArtifactChange::Written(Artifact { path, sha256, .. }) = change {
                text.push_str(&format!("\n{path} {sha256}"));
            }
        }
        Cow::Owned(text)
    }

    /// The duration of the call.
    pub fn duration(&self) -> Duration {
        Duration::from_millis(self.took_ms)
    }
}

/// A step `files.<turn>.<index>.<tool>`: the result of a call whose program has ended, and the files that it changed, before
/// they are written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileChangesStep {
    pub call: ToolCallRecord,
    pub changes: RecordedChanges,
}

/// A step `begin.<turn>`: the step names of calls that are about to run and must not run twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BegunCallsStep {
    pub calls: Vec<String>,
}

/// Converts a duration to whole milliseconds, saturating.
pub(crate) fn to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
