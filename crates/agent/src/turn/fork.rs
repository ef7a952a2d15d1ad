//! Conversations that another attempt continues: a call of a shared agent continues the one that has ended before. A fork continues
//! that of its parent at a call, so that it pays for no reply again and providers find the beginning in their caches.
//!
//! # Invariants
//!
//! - I121: A fork begins with the conversation of its parent, byte for byte, on any worker and after any takeover, and delegates
//!   nothing. (`crates/agent/tests/turn/fork.rs::first_request_of_a_fork_begins_with_the_bytes_of_its_parents_last_one`,
//!   `crates/agent/tests/turn/fork.rs::forks_are_the_same_after_a_takeover`,
//!   `protocol/tests/rules/delegation.rs::fork_is_like_its_parent_and_delegates_nothing`,
//!   `tests/tests/delegation.rs::fork_continues_the_conversation_on_any_worker`)
//! - I122: Of a shared agent one call runs at a time, each continues the conversation of the last completed one, calls with
//!   different restrictions share none, and no two shared agents wait for each other.
//!   (`protocol/tests/rules/delegation.rs::calls_of_a_shared_agent_run_one_after_the_other`,
//!   `protocol/tests/rules/delegation.rs::calls_with_different_restrictions_share_no_conversation`,
//!   `protocol/tests/rules/delegation.rs::shared_agents_can_not_wait_for_themselves`,
//!   `crates/agent/tests/turn/fork.rs::call_of_a_shared_agent_continues_after_the_last_answer`,
//!   `tests/tests/delegation.rs::shared_agent_keeps_one_conversation_across_calls_and_workers`)

use millrace_protocol::work::Order;
use serde::{Deserialize, Serialize};

use super::AgentBrief;
use super::scratch::Scratchpad;
use crate::model::{AnswerSchema, Message, ModelAbility, ToolResult};
use crate::skills::SkillEntry;
use crate::state::{AgentState, StateRules};
use crate::tool::ToolSpecs;

/// The results of the other calls of the message that forked.
const OTHER_CALL: &str =
    "This call is made by the agent from which you were forked. You do not get its result.";

/// A conversation that another attempt continues. Its last message makes calls, one of which forks it; or it has ended with an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ForkedConversation {
    pub(super) system: String,
    pub(super) messages: Vec<Message>,
    pub(super) tools: ToolSpecs,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) answer: Option<AnswerSchema>,
    pub(super) ability: ModelAbility,
    pub(super) scratch: Scratchpad,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) agent_state: Option<Box<AgentState>>,
    /// The skills that the agent can read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) skills: Vec<SkillEntry>,
    /// The id of the call that forks; empty if the conversation has ended.
    pub(super) call_id: String,
}

impl ForkedConversation {
    /// The same conversation, forked by another call of its last message.
    pub fn at_call(&self, call_id: &str) -> Self {
        Self { call_id: call_id.to_owned(), ..self.clone() }
    }

    /// `true` if it has ended with an answer.
    pub(super) fn has_ended(&self) -> bool {
        !matches!(self.messages.last(), Some(Message::Assistant { calls, .. }) if !calls.is_empty())
    }

    /// The format of the conversation.
    pub fn ability(&self) -> ModelAbility {
        self.ability
    }

    /// The rules for the state of the agent, if it has one.
    pub fn state_rules(&self) -> Option<&StateRules> {
        self.agent_state.as_ref().map(|state| state.rules())
    }

    /// The skills that the agent can read.
    pub fn skills(&self) -> &[SkillEntry] {
        &self.skills
    }

    /// The brief of the attempt that continues it: with the prompt and the format of the conversation, and the limits of the attempt. A
    /// fork has the tools of the conversation as well, so that its first request begins with the same bytes; a call of a shared agent has
    /// its own tools.
    pub fn to_brief(&self, brief: AgentBrief) -> AgentBrief {
        let has_ended = self.call_id.is_empty();
        let task = match self.messages.first() {
            Some(Message::User { text }) => text.clone(),
            Some(Message::Assistant { .. } | Message::Tool(_)) | None => brief.task,
        };
        AgentBrief {
            system: self.system.clone(),
            task,
            tools: if has_ended { brief.tools } else { self.tools.clone() },
            answer: self.answer.clone(),
            ability: self.ability,
            ..brief
        }
    }

    /// The messages of the fork before its first request: those of the conversation, and a result for each call of the last one. That
    /// of the call that forked is the task.
    pub(super) fn to_messages(&self, task: &str) -> Vec<Message> {
        let calls = match self.messages.last() {
            Some(Message::Assistant { calls, .. }) if !calls.is_empty() => calls.as_slice(),
            // The conversation has ended: the task is the next message.
            Some(Message::Assistant { .. } | Message::User { .. } | Message::Tool(_)) | None => {
                let next = Message::User { text: task.to_owned() };
                return self.messages.iter().cloned().chain([next]).collect();
            }
        };
        let results = calls.iter().map(|call| {
            let text = if call.id == self.call_id { task } else { OTHER_CALL };
            Message::Tool(ToolResult {
                call_id: call.id.clone(),
                text: text.to_owned(),
                is_error: false,
                images: Vec::new(),
            })
        });
        self.messages.iter().cloned().chain(results).collect()
    }
}

/// The task of a fork, for its model.
#[must_use]
pub fn format_fork_task(order: &Order) -> String {
    let feedback: String = order.feedback.iter().map(|text| format!("\n- {text}")).collect();
    let feedback = match feedback.as_str() {
        "" => String::new(),
        list => format!("\n\nFeedback on earlier attempts:{list}"),
    };
    format!(
        "You are a fork: you have the conversation so far, and the agent that made this call waits for your result. Do only the task \
         below. You can't delegate. Then answer, in the form that was asked for.\n\n{}{feedback}",
        order.objective
    )
}
