//! The agent's turn as a state machine without I/O: it returns the next step, is fed the outcome, and can be serialised
//! between any two steps. It owns the conversation, the limits, the validation of tool calls, the agent's notes and the
//! correction of answers. It never calls a model or a tool and reads no clock.
//!
//! ```text
//!            ┌──────────── results ────────────┐
//!            ▼                                 │
//!   Ask the model ──calls──▶ check ─valid──▶ Call the tools
//!      ▲  │  ▲                 │
//!      │  │  └── all invalid ──┘
//!      │  │      or inner tools
//!      │  ├──too long, or about to be──▶ Shorten the conversation, and asked again
//!      │  └──answer──▶ read ──fits──▶ Check the answer ──passes──▶ Done(answered)
//!      │                 │                │
//!      └── correction, at most `repairs` times
//! ```
//! A correction is requested without tools, so that only the answer is possible. A call that repeats another, with the same
//! result and nothing new in between, gets a hint, then withdraws its tool, then ends the work. Reaching a limit ends in `Done(stopped)` with the reason and the partial result. Tool calls and turns are softer: when
//! they are used up, the model gets one notice and must answer without tools.

mod begin;
mod next_request;
mod repetition;
mod reply;
mod shorten;
mod state;

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_protocol::file::FilePath;
use millrace_protocol::plan::ResourceAmounts;
use millrace_protocol::result::{Artifact, MAX_PRODUCED, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::compact::compact_conversation;
use super::context::Shortening;
use super::record::{ModelStep, ModelStepOutcome, ToolCallRecord};
use super::scratch::Scratchpad;
use super::{Answer, Limits, StopReason, UsageTotals, WorkOutcome, WorkSummary};
use crate::model::{
    AnswerSchema, FinishReason, Message, ModelAbility, Reply, Request, ToolResult, count_model_call,
};
use crate::skills::SkillEntry;
use crate::state::AgentState;
use millrace_protocol::schema::CompiledSchema;

use crate::tool::{ToolSpecs, keep_head_and_tail};
use next_request::{LAST_TURN, NEARLY_SPENT, NO_CALLS_LEFT};
use repetition::RepetitionTracker;
use reply::make_ids_unique;
use shorten::ContextState;

/// The maximum number of compactions of a conversation.
pub const MAX_COMPACTIONS: u32 = 2;
/// The maximum number of calls in one reply; the others are refused.
pub const MAX_CALLS_AT_ONCE: usize = 50;

/// The input of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentBrief {
    /// The role's instructions.
    pub system: String,
    /// The task, as the first user message.
    pub task: String,
    /// The tools it may call.
    pub tools: ToolSpecs,
    /// The form of its answer; `None` for plain text.
    pub answer: Option<AnswerSchema>,
    pub limits: Limits,
    /// The maximum number of tokens of one reply.
    pub max_output_tokens: u32,
    /// The format of the conversation.
    pub ability: ModelAbility,
}

/// The next step of a machine.
#[derive(Debug, Clone, PartialEq)]
pub enum MachineStep<'a, A> {
    /// Send this model request, then [`Machine::feed_reply`], [`Machine::feed_overflow`] or [`Machine::feed_time_up`].
    AskModel(&'a Request),
    /// Run these calls, concurrently if possible, then [`Machine::feed_results`] with one result per call in this order.
    CallTools(&'a [ValidatedToolCall]),
    /// Save the conversation, and get a summary of it if one is requested, then [`Machine::feed_shortened`].
    Shorten(&'a Shortening),
    /// Check the answer against facts outside the machine, then [`Machine::feed_checked_answer`].
    CheckAnswer(&'a A),
    /// The work has ended.
    Done(WorkSummary<A>),
}

/// A validated tool call: the tool exists and the arguments fit its schema.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ValidatedToolCall {
    /// The model's id for the call.
    pub call_id: String,
    pub tool: String,
    pub arguments: Value,
}

/// The input was not the one that the machine waits for: a bug of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the agent waits for {waits_for} but got {fed}")]
pub struct UnexpectedInput {
    /// The expected input.
    pub waits_for: &'static str,
    /// The actual input.
    pub fed: String,
}

/// The agent's work on one task. See the module documentation for its steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "A: Answer")]
pub struct Machine<A> {
    ability: ModelAbility,
    limits: Limits,
    /// The reservation in the run's budget; it applies in addition to the limits.
    #[serde(default, skip_serializing_if = "ResourceAmounts::is_empty")]
    reserved: ResourceAmounts,
    /// The full name of the model.
    model: String,
    tools: ToolSpecs,
    max_output_tokens: u32,
    /// The next model request; its messages are the conversation.
    request: Request,
    scratch: Scratchpad,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agent_state: Option<Box<AgentState>>,
    /// The skills that it can read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    skills: Vec<SkillEntry>,
    spent: UsageTotals,
    /// The usage of delegated tasks: it counts against the limits, and those tasks report it.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    delegated: Usage,
    worked: Duration,
    /// The number of model requests so far.
    turns: u64,
    /// The number of replies that it had before its first request, if it is a fork.
    #[serde(default, skip_serializing_if = "is_zero")]
    inherited_turns: u64,
    /// The tokens sent by the last request: the next one sends at least as many.
    last_input: u64,
    calls_counted: u32,
    calls_allowed: u32,
    repairs: u32,
    /// `true` while a correction of the answer is awaited.
    #[serde(default)]
    is_correcting: bool,
    /// The calls that repeat others.
    #[serde(default)]
    repetition: RepetitionTracker,
    /// The last reply that was cut off and is not part of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cut_off: Option<String>,
    compactions: u32,
    /// The files that it made or changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    artifacts: BTreeMap<FilePath, Artifact>,
    /// The context of the conversation, if it is kept within its model's window.
    #[serde(default)]
    context: ContextState,
    /// `true` once the notice about used-up tool calls was sent.
    out_of_calls: bool,
    /// `true` once the notice to finish was sent.
    #[serde(rename = "told_to_end")]
    has_wrap_up_notice: bool,
    state: MachineState<A>,
    #[serde(skip)]
    answer_form: CompiledSchema,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "A: Answer")]
enum MachineState<A> {
    Asking,
    Calling {
        /// One entry per call of the last reply, in its order.
        calls: Vec<CheckedCall>,
        run: Vec<ValidatedToolCall>,
    },
    Checking(A),
    Shortening(Box<Shortening>),
    Over(WorkOutcome<A>),
}

/// A validated call of a reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum CheckedCall {
    /// The next of the calls to run.
    Run,
    /// Refused, or answered from the machine's own state.
    #[serde(rename = "Told")]
    Answered(ToolResult),
}

impl<A: Answer> Machine<A> {
    /// Adds the reservation in the run's budget to the limits. Call it before the first step.
    #[must_use]
    pub fn with_reserved_amounts(mut self, reserved: ResourceAmounts) -> Self {
        self.reserved = reserved;
        if let MachineState::Asking = self.state {
            self.request_reply();
        }
        self
    }

    /// Begins with these notes, if there are any. Call it before the first step.
    #[must_use]
    pub(crate) fn with_notes(mut self, notes: Vec<String>) -> Self {
        if !notes.is_empty() {
            self.scratch = self.scratch.with_notes(notes);
        }
        self
    }

    /// Returns the next step. Has no side effects.
    pub fn next_step(&self) -> MachineStep<'_, A> {
        match &self.state {
            MachineState::Asking => MachineStep::AskModel(&self.request),
            MachineState::Calling { run, .. } => MachineStep::CallTools(run),
            MachineState::Checking(answer) => MachineStep::CheckAnswer(answer),
            MachineState::Shortening(shortening) => MachineStep::Shorten(shortening),
            MachineState::Over(outcome) => MachineStep::Done(WorkSummary {
                outcome: outcome.clone(),
                usage: self.spent.usage,
                models: self.spent.models.clone(),
                artifacts: self.artifacts.values().cloned().collect(),
                produced: match outcome {
                    WorkOutcome::Answered(_) => None,
                    WorkOutcome::Stopped(_) => self.partial_result(),
                },
            }),
        }
    }

    /// The number of model requests so far.
    pub fn request_count(&self) -> u64 {
        self.turns
    }

    /// The format of the conversation.
    pub(super) fn ability(&self) -> ModelAbility {
        self.ability
    }

    pub fn usage_so_far(&self) -> &UsageTotals {
        &self.spent
    }

    /// The usage so far that counts against the limits.
    fn limited_usage(&self) -> Usage {
        let mut usage = self.spent.usage;
        usage.add(self.delegated);
        usage
    }

    /// The model usage that the calls of this step may have together: what is left, minus the next request.
    pub fn amounts_left_for_calls(&self) -> ResourceAmounts {
        self.attempt_allowance().amounts_left_for_calls(&self.limited_usage(), self.last_input)
    }

    /// The remaining working time; `None` if it is not limited.
    pub fn time_left(&self) -> Option<Duration> {
        self.limits.time.map(|limit| limit.saturating_sub(self.worked))
    }

    /// The conversation so far.
    pub fn messages(&self) -> &[Message] {
        &self.request.messages
    }

    /// The partial result: the model's last text, its notes and its to-do list, at most [`MAX_PRODUCED`] characters;
    /// `None` if there is nothing.
    pub fn partial_result(&self) -> Option<String> {
        let text = self.request.messages.iter().rev().find_map(|message| match message {
            Message::Assistant { text, .. } if !text.trim().is_empty() => Some(text.trim().to_owned()),
            Message::Assistant { .. } | Message::User { .. } | Message::Tool(_) => None,
        });
        let text = text.or_else(|| self.cut_off.clone());
        let notes =
            self.scratch.format_newest_notes(MAX_PRODUCED / 2).map(|notes| format!("Notes:\n{notes}"));
        let todos = self.scratch.format_todo_list().map(|todos| format!("To-do list:\n{todos}"));
        let text = text.map(|text| keep_head_and_tail(&text, MAX_PRODUCED / 4));
        let parts: Vec<String> = [text, notes, todos].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("\n\n").chars().take(MAX_PRODUCED).collect())
    }

    /// Feeds the model's reply and its duration.
    pub fn feed_reply(&mut self, reply: Reply, took: Duration) -> Result<(), UnexpectedInput> {
        self.require_waiting_for_reply("a reply")?;
        let Reply { text, mut calls, usage, finish, model, provider_state, first_token: _, vectors: _ } =
            reply;
        self.count_request(model, usage, took);
        make_ids_unique(&mut calls, self.inherited_turns + self.turns - 1);
        self.last_input = usage.input_tokens;
        self.measure_density(usage.input_tokens);
        if !self.context.is_unmanaged() {
            // Overflows count in a row.
            self.compactions = 0;
        }
        self.request.messages.push(Message::Assistant {
            text: text.clone(),
            calls: calls.clone(),
            provider_state,
        });
        if finish == FinishReason::ContentFilter {
            self.stop_with_reason(StopReason::ContentFilter);
        } else if calls.is_empty() {
            self.process_answer(&text, finish);
        } else {
            self.process_tool_calls(calls, finish);
        }
        Ok(())
    }

    /// Feeds the provider's message that the conversation is too long for the model: it is compacted and sent again, or
    /// the work ends.
    pub fn feed_overflow(&mut self, message: String, took: Duration) -> Result<(), UnexpectedInput> {
        self.require_waiting_for_reply("an overflow")?;
        self.count_request(None, Usage::default(), took);
        if !self.context.is_unmanaged() {
            self.shorten_after_overflow(message);
            return Ok(());
        }
        if self.compactions == MAX_COMPACTIONS {
            self.stop_with_reason(StopReason::Context { compactions: self.compactions, message });
            return Ok(());
        }
        let obsolete = [NO_CALLS_LEFT, LAST_TURN, NEARLY_SPENT];
        self.request.messages =
            compact_conversation(&self.request.messages, self.compactions > 0, &self.scratch, &obsolete);
        self.compactions += 1;
        // Earlier tool results are gone from the conversation, so repeating their calls is allowed.
        self.calls_counted = 0;
        self.calls_allowed = self.limits.tool_calls.div_ceil(2);
        self.last_input = 0;
        self.has_wrap_up_notice = false;
        self.repetition = RepetitionTracker::default();
        self.out_of_calls = false;
        self.request.tools = self.offered_tools();
        self.request_reply();
        Ok(())
    }

    /// Feeds that the working time ran out before the model replied.
    pub fn feed_time_up(&mut self, took: Duration) -> Result<(), UnexpectedInput> {
        self.require_waiting_for_reply("the end of the time")?;
        self.count_request(None, Usage::default(), took);
        self.stop_with_reason(StopReason::Time { limit: self.limits.time.unwrap_or(self.worked) });
        Ok(())
    }

    /// Feeds the record of a request to this model.
    pub(super) fn feed_model_step(&mut self, step: ModelStep, model: &str) -> Result<(), UnexpectedInput> {
        let took = Duration::from_millis(step.took_ms);
        self.model = step.model.unwrap_or_else(|| model.to_owned());
        match step.outcome {
            ModelStepOutcome::Reply(reply) => self.feed_reply(*reply, took),
            ModelStepOutcome::Overflow(message) => self.feed_overflow(message, took),
            ModelStepOutcome::TimeUp => self.feed_time_up(took),
        }
    }

    /// Feeds the results of the calls in [`MachineStep::CallTools`], in its order. Concurrent calls count with the longest
    /// duration.
    ///
    /// # Errors
    /// The machine does not wait for results, or they are not those of its calls.
    pub fn feed_results(&mut self, results: Vec<ToolCallRecord>) -> Result<(), UnexpectedInput> {
        let MachineState::Calling { calls, run } = &mut self.state else {
            return Err(self.out_of_step_error("tool results"));
        };
        let expected: Vec<&str> = run.iter().map(|call| call.call_id.as_str()).collect();
        let fed: Vec<&str> = results.iter().map(|call| call.result.call_id.as_str()).collect();
        if expected != fed {
            let waits_for = "the results of its calls in their order";
            return Err(UnexpectedInput { waits_for, fed: fed.join(", ") });
        }
        let (calls, run) = (std::mem::take(calls), std::mem::take(run));
        run.iter().zip(&results).for_each(|(call, record)| self.note_skill_read(call, &record.result));
        self.spent.usage.tool_calls += results.len() as u64;
        results.iter().for_each(|call| self.spent.add_totals(&call.usage_totals()));
        results.iter().for_each(|call| self.delegated.add(call.delegated));
        self.worked += results.iter().map(ToolCallRecord::duration).max().unwrap_or_default();
        let changes: Vec<bool> = results.iter().map(|call| self.has_changed_something(call)).collect();
        results.iter().flat_map(|call| &call.artifacts).for_each(|change| self.add_artifact(change));
        self.push_results(calls, results.into_iter().zip(changes).collect());
        Ok(())
    }

    /// Feeds the outcome of the answer check: the answer in its final form, or the mistake for the model to correct.
    pub fn feed_checked_answer(&mut self, checked: Result<A, String>) -> Result<(), UnexpectedInput> {
        let MachineState::Checking(_) = &self.state else {
            return Err(self.out_of_step_error("a checked answer"));
        };
        match checked {
            Ok(answer) => self.state = MachineState::Over(WorkOutcome::Answered(answer)),
            Err(mistake) => self.request_correction(mistake),
        }
        Ok(())
    }

    fn require_waiting_for_reply(&self, fed: &str) -> Result<(), UnexpectedInput> {
        match &self.state {
            MachineState::Asking => Ok(()),
            MachineState::Calling { .. }
            | MachineState::Checking(_)
            | MachineState::Shortening(_)
            | MachineState::Over(_) => Err(self.out_of_step_error(fed)),
        }
    }

    /// Counts a model request; `answered` names the model that replied if it was not the requested one.
    fn count_request(&mut self, answered: Option<String>, usage: Usage, took: Duration) {
        self.turns += 1;
        self.worked += took;
        let model = answered.as_ref().unwrap_or(&self.model);
        self.spent.add_totals(&UsageTotals::from_model_usage(model, count_model_call(model, usage)));
    }

    /// Counts usage and time beside the conversation: of the verification of an answer, and of embeddings before the first request.
    pub(in crate::turn) fn count_side_usage(&mut self, spent: &UsageTotals, took: Duration) {
        self.spent.add_totals(spent);
        self.worked += took;
    }

    fn push_user_message(&mut self, text: String) {
        self.request.messages.push(Message::User { text });
    }

    fn stop_with_reason(&mut self, reason: StopReason) {
        self.state = MachineState::Over(WorkOutcome::Stopped(reason));
    }

    fn out_of_step_error(&self, fed: &str) -> UnexpectedInput {
        let waits_for = match &self.state {
            MachineState::Asking => "a reply",
            MachineState::Calling { .. } => "tool results",
            MachineState::Checking(_) => "a checked answer",
            MachineState::Shortening(_) => "a shortened conversation",
            MachineState::Over(_) => "nothing",
        };
        UnexpectedInput { waits_for, fed: fed.to_owned() }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
