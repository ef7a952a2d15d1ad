//! The steps of a leg: model calls, tool calls, steps of programs. The log has their ends and durations.

use jiff::{SignedDuration, Timestamp};
use millrace_agent::transcript::{
    ModelCall, ModelCallOutcome, PromptMessage, ToolCallResult, TranscriptStep,
};
use millrace_protocol::plan::JournalKey;
use millrace_protocol::result::Usage;
use millrace_protocol::subject::Topic;
use serde_json::{Value, json};

use super::RunTracer;
use super::legs::add_cost;
use crate::names::{self, operation, own};
use crate::span::{AttributeValue, Span, SpanContext, SpanId, SpanKind};

impl RunTracer {
    pub(super) fn add_step(&mut self, journal: &JournalKey, step: &TranscriptStep) {
        match step {
            TranscriptStep::ModelCall(call) => self.add_model_call(journal, call),
            TranscriptStep::ToolResult(result) => self.add_tool_call(journal, result),
            TranscriptStep::JudgeFailed { judge, error } => {
                let mut span = self.new_step_span(journal, "judge failed", 0);
                span.attributes.push((own::JUDGE, (*judge).into()));
                self.set_error(&mut span, "model", error);
                self.complete(span);
            }
            TranscriptStep::Step { name, value: _ } => {
                let mut span = self.new_step_span(journal, "step", 0);
                span.attributes.push((own::STEP, name.as_str().into()));
                self.complete(span);
            }
            TranscriptStep::CallsBegun { .. } => {}
        }
    }

    /// Creates the span of a step, which ends with the current message and took so many milliseconds. A step that arrives after
    /// the end of its leg belongs to the leg still.
    fn new_step_span(&self, journal: &JournalKey, name: impl Into<String>, duration_ms: u64) -> Span {
        let (at, sequence) = self.now;
        let topic = Topic::Journal(journal.clone()).to_string();
        let leg = self.leg_of_journal(journal).unwrap_or_else(|| self.anchor());
        let context =
            SpanContext { trace: leg.trace, span: SpanId::of_message(&self.run, &topic, sequence, 0) };
        let began = self.journals.get(journal).and_then(|trace| trace.leg.as_ref()).map(|leg| leg.start);
        let start = start_of_step(at, duration_ms).max(began.unwrap_or(Timestamp::MIN));
        let mut span = self.new_span(context, Some(leg.span), name, start);
        self.describe_journal(&mut span, journal);
        span
    }

    fn add_model_call(&mut self, journal: &JournalKey, call: &ModelCall) {
        let full = call.model.as_deref().unwrap_or_default();
        let (provider, model) = names::split_model(full);
        let name = format!("{} {model}", operation::CHAT);
        let mut span = self.new_step_span(journal, name.trim_end(), call.duration_ms);
        span.kind = SpanKind::Client;
        span.attributes.push((names::OPERATION, operation::CHAT.into()));
        span.attributes.push((names::CONVERSATION, self.run.as_str().into()));
        if !provider.is_empty() {
            span.attributes.push((names::PROVIDER, provider.into()));
        }
        if !model.is_empty() {
            span.attributes.push((names::REQUEST_MODEL, model.into()));
            span.attributes.push((names::RESPONSE_MODEL, model.into()));
        }
        span.attributes.push((own::TURN, call.turn.into()));
        span.attributes.extend(call.judge.map(|judge| (own::JUDGE, judge.into())));
        if let Some(finish) = call.finish {
            let finish = serde_json::to_value(finish).unwrap_or_default();
            let finish = finish.as_str().unwrap_or_default().to_owned();
            span.attributes.push((names::FINISH_REASONS, AttributeValue::Texts(vec![finish])));
        }
        self.add_tokens(&mut span, &call.usage);
        self.add_content(&mut span, names::INPUT_MESSAGES, || input_messages(&call.messages));
        self.add_content(&mut span, names::OUTPUT_MESSAGES, || output_messages(call));
        match call.outcome {
            ModelCallOutcome::Reply => {}
            ModelCallOutcome::Overflow => self.set_error(&mut span, "context_overflow", &call.text),
            ModelCallOutcome::TimeUp => self.set_error(&mut span, "timeout", "the working time ran out"),
        }
        self.complete(span);
        let has_content = self.options.has_content;
        if let Some(leg) = self.journals.get_mut(journal).and_then(|trace| trace.leg.as_mut()) {
            leg.usage.add(call.usage);
            if has_content {
                let arguments = call.calls.iter().map(|call| (call.id.clone(), call.arguments.to_string()));
                leg.arguments.extend(arguments);
            }
        }
    }

    fn add_tokens(&self, span: &mut Span, usage: &Usage) {
        for (name, count) in [
            (names::INPUT_TOKENS, usage.input_tokens),
            (names::OUTPUT_TOKENS, usage.output_tokens),
            (names::CACHE_READ_TOKENS, usage.cached_tokens),
            (self.options.convention.cache_write_tokens(), usage.cache_write_tokens),
            (names::REASONING_TOKENS, usage.reasoning_tokens),
        ] {
            if count > 0 {
                span.attributes.push((name, count.into()));
            }
        }
        add_cost(span, usage);
    }

    fn add_tool_call(&mut self, journal: &JournalKey, result: &ToolCallResult) {
        let name = format!("{} {}", operation::EXECUTE_TOOL, result.tool);
        let mut span = self.new_step_span(journal, name, result.duration_ms);
        span.attributes.push((names::OPERATION, operation::EXECUTE_TOOL.into()));
        span.attributes.push((names::TOOL_NAME, result.tool.as_str().into()));
        span.attributes.push((names::TOOL_TYPE, "function".into()));
        span.attributes.push((names::TOOL_CALL_ID, result.call_id.as_str().into()));
        span.attributes.push((own::TURN, result.turn.into()));
        span.attributes.extend(result.judge.map(|judge| (own::JUDGE, judge.into())));
        super::legs::add_usage(&mut span, &result.usage);
        let mut arguments = String::new();
        if let Some(leg) = self.journals.get_mut(journal).and_then(|trace| trace.leg.as_mut()) {
            leg.usage.add(result.usage);
            leg.usage.tool_calls = leg.usage.tool_calls.saturating_add(1);
            arguments = leg.arguments.remove(&result.call_id).unwrap_or_default();
        }
        self.add_content(&mut span, names::TOOL_CALL_ARGUMENTS, || arguments);
        self.add_content(&mut span, names::TOOL_CALL_RESULT, || result.text.clone());
        if result.is_error {
            self.set_error(&mut span, "tool", &result.text);
        }
        self.complete(span);
    }
}

fn start_of_step(end: Timestamp, duration_ms: u64) -> Timestamp {
    let duration = SignedDuration::from_millis(i64::try_from(duration_ms).unwrap_or(i64::MAX));
    end.checked_sub(duration).unwrap_or(Timestamp::MIN)
}

/// Returns messages in the form of the conventions.
fn input_messages(messages: &[PromptMessage]) -> String {
    let all = messages.iter().map(|message| {
        let part = match &message.call_id {
            Some(id) => json!({ "type": "tool_call_response", "id": id, "response": message.text }),
            None => json!({ "type": "text", "content": message.text }),
        };
        json!({ "role": message.role, "parts": [part] })
    });
    let all: Vec<Value> = all.collect();
    if all.is_empty() { String::new() } else { Value::Array(all).to_string() }
}

/// Returns a reply in the form of the conventions.
fn output_messages(call: &ModelCall) -> String {
    let text = (!call.text.is_empty()).then(|| json!({ "type": "text", "content": call.text }));
    let calls = call.calls.iter().map(
        |call| json!({ "type": "tool_call", "id": call.id, "name": call.tool, "arguments": call.arguments }),
    );
    let parts: Vec<Value> = text.into_iter().chain(calls).collect();
    json!([{ "role": "assistant", "parts": parts, "finish_reason": call.finish }]).to_string()
}
