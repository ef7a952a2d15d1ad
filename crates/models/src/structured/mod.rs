//! Structured output and tool calls for any model. Depending on what the model supports, a request is rewritten before it
//! is sent and its reply is converted back. Pure functions on requests and replies. Nothing is retried here; the caller
//! validates the answer against its schema.
//!
//! ```text
//! request ─▶ choose the output mode ─▶ rewritten request ─▶ wire
//! reply   ◀─ tool calls and answer   ◀─────────────────────── wire
//! ```
//! | output mode | tool calls | answer |
//! |---|---|---|
//! | [`StructuredOutputMode::Plain`] | the provider's | plain text |
//! | [`StructuredOutputMode::Native`] | the provider's | the provider's JSON schema |
//! | [`StructuredOutputMode::Submit`] | the provider's | the arguments of an additional tool |
//! | [`StructuredOutputMode::Envelope`] | `{"action": TOOL, "arguments": …}` | `{"action": "final", "answer": …}`, both with a JSON schema if supported |
//! | [`StructuredOutputMode::Prompt`] | the provider's | requested by an instruction in the prompt |
//!
//! Earlier parts of a rewritten request never depend on the newest messages, so that the provider can cache the prefix.

pub mod calls;
mod envelope;
pub mod json;
mod mode;
mod prompt;
mod submit;

use std::borrow::Cow;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::foreign_json::{mend_json_text, parse_foreign_json};
use serde_json::Value;

use crate::model::{
    Delta, DeltaListener, FinishReason, Model, ModelAbility, ModelError, Reply, Request, ToolCall,
};
use crate::resilience::ProviderDeadline;
use crate::selection::StructuredMode;
use crate::wire::schema::strict_answer_to_original;

pub use mode::{OutputSupport, StructuredOutputMode};

/// A model with support for structured output.
pub struct StructuredModel {
    inner: Arc<dyn Model>,
    support: OutputSupport,
    structured_mode: StructuredMode,
}

impl StructuredModel {
    /// Adds support for structured output to `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Model>, support: OutputSupport, structured_mode: StructuredMode) -> Self {
        Self { inner, support, structured_mode }
    }
}

impl Model for StructuredModel {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn ability(&self) -> ModelAbility {
        self.inner.ability()
    }

    fn context_window(&self) -> Option<u64> {
        self.inner.context_window()
    }

    fn uncounted_cost(&self) -> Option<&str> {
        self.inner.uncounted_cost()
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        listener: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        async move {
            let mode = StructuredOutputMode::choose_mode(request, self.structured_mode, self.support);
            let filter = StructuredDeltaFilter { mode, listener };
            let reply = self.inner.reply(&rewrite_request_for_mode(mode, request), &filter).await?;
            let reply = convert_reply_for_mode(mode, request, reply);
            if mode == StructuredOutputMode::Envelope {
                reply.calls.iter().for_each(|call| listener.on_delta(Delta::Call(&call.name)));
            }
            Ok(reply)
        }
        .boxed()
    }
}

/// Rewrites a request for an output mode.
#[must_use]
pub fn rewrite_request_for_mode(mode: StructuredOutputMode, request: &Request) -> Cow<'_, Request> {
    match mode {
        StructuredOutputMode::Plain | StructuredOutputMode::Native => Cow::Borrowed(request),
        StructuredOutputMode::Submit => Cow::Owned(submit::add_answer_tool(request)),
        StructuredOutputMode::Envelope => Cow::Owned(envelope::rewrite_request_as_envelope(request)),
        StructuredOutputMode::Prompt => Cow::Owned(prompt::add_schema_to_prompt(request)),
    }
}

/// Converts the reply to a rewritten request back.
#[must_use]
pub fn convert_reply_for_mode(mode: StructuredOutputMode, request: &Request, reply: Reply) -> Reply {
    let reply = match mode {
        StructuredOutputMode::Plain | StructuredOutputMode::Native | StructuredOutputMode::Prompt => {
            extract_text_calls(request, reply)
        }
        StructuredOutputMode::Submit => {
            submit::convert_answer_tool_call(extract_text_calls(&submit::add_answer_tool(request), reply))
        }
        StructuredOutputMode::Envelope => envelope::convert_envelope_reply(request, reply),
    };
    normalize_answer_text(request, reply)
}

/// Finds tool calls that a small model wrote as text. Only text that names an offered tool counts.
fn extract_text_calls(request: &Request, mut reply: Reply) -> Reply {
    if !reply.calls.is_empty() || request.tools.is_empty() {
        return reply;
    }
    if let Some(parsed) =
        calls::find_calls_in_text(&reply.text, &calls::AvailableTools::from_request(request))
    {
        reply.finish = finish_of_text_calls(reply.finish, &reply.text);
        reply.calls = assign_call_ids(request, parsed.calls);
        reply.text = parsed.prose;
    }
    reply
}

/// The finish reason of a reply whose text is calls. If the reply was cut off after the last of them, it is complete.
fn finish_of_text_calls(finish: FinishReason, text: &str) -> FinishReason {
    match finish {
        FinishReason::Length if text.ends_with(['}', ']']) => FinishReason::Length,
        FinishReason::ContentFilter => FinishReason::ContentFilter,
        FinishReason::Length | FinishReason::Stop | FinishReason::ToolCalls => FinishReason::ToolCalls,
    }
}

/// Returns `true` if a reply that was cut off has its whole answer: the cut was in the white space, the closing mark or the
/// remark after it. An answer that ends with the reply may have been closed by the server.
fn was_cut_after_answer(text: &str, answer: &str) -> bool {
    let rest = text.rsplit_once(answer).map_or("", |(_, rest)| rest);
    !rest.is_empty() && !rest.contains(['{', '}', '[', ']'])
}

/// Gives ids to calls. An id is derived from the call's position in the conversation, so that replaying the conversation
/// yields the same ids.
fn assign_call_ids(request: &Request, calls: Vec<calls::ParsedToolCall>) -> Vec<ToolCall> {
    let before = request.messages.iter().map(calls::count_tool_calls).sum::<usize>();
    let numbered = calls.into_iter().enumerate();
    let call = |(at, call): (usize, calls::ParsedToolCall)| ToolCall {
        id: format!("call_{}", before + at + 1),
        name: call.name,
        arguments: call.arguments,
    };
    numbered.map(call).collect()
}

/// Removes text around an answer, halves of characters in it, reasoning tags, and the nulls that stand for omitted optional properties.
fn normalize_answer_text(request: &Request, mut reply: Reply) -> Reply {
    for call in &mut reply.calls {
        let tool = request.tools.iter().find(|tool| tool.name == call.name);
        if let Some(plain) = tool.and_then(|tool| remove_optional_nulls(&tool.schema, &call.arguments)) {
            call.arguments = plain;
        }
    }
    match &request.answer {
        Some(answer) if reply.calls.is_empty() => {
            let object = json::find_json_object(&reply.text);
            let is_whole = object.is_some_and(|object| was_cut_after_answer(&reply.text, object));
            if reply.finish == FinishReason::Length && is_whole {
                reply.finish = FinishReason::Stop;
            }
            let text =
                mend_json_text(object.unwrap_or_else(|| json::strip_reasoning(&reply.text)).to_owned());
            reply.text = remove_optional_nulls(&answer.schema, &text).unwrap_or(text);
        }
        Some(_) | None => {
            if let Cow::Owned(text) = json::strip_leading_reasoning(&reply.text) {
                reply.text = text;
            }
        }
    }
    reply
}

fn remove_optional_nulls(schema: &Value, text: &str) -> Option<String> {
    if !text.contains("null") {
        return None;
    }
    let value: Value = parse_foreign_json(text).ok()?;
    let plain = strict_answer_to_original(schema, value.clone());
    (plain != value).then(|| plain.to_string())
}

/// Forwards deltas to the listener, except for the text of an envelope and the tool call that is the answer.
struct StructuredDeltaFilter<'a> {
    mode: StructuredOutputMode,
    listener: &'a dyn DeltaListener,
}

impl DeltaListener for StructuredDeltaFilter<'_> {
    fn on_delta(&self, delta: Delta<'_>) {
        let hidden = match (self.mode, delta) {
            (StructuredOutputMode::Envelope, Delta::Text(_)) => true,
            (StructuredOutputMode::Submit, Delta::Call(name)) => submit::is_answer_tool(name),
            (
                _,
                Delta::Text(_)
                | Delta::Reasoning(_)
                | Delta::Call(_)
                | Delta::Restart
                | Delta::Waiting(_)
                | Delta::Sending
                | Delta::Sent(_)
                | Delta::Hidden,
            ) => false,
        };
        self.listener.on_delta(if hidden { Delta::Hidden } else { delta });
    }

    fn provider_deadline(&self) -> Option<&ProviderDeadline> {
        self.listener.provider_deadline()
    }
}
