//! Malformed events: every field of every kind of event is replaced by something else. A response must either be parsed
//! or rejected, never panic.

use millrace_protocol::secrets::SecretRedactor;
use serde_json::{Value, json};

use super::*;

fn build_request() -> Request {
    Request {
        system: String::new(),
        messages: Vec::new(),
        tools: Vec::new(),
        answer: None,
        max_output_tokens: 1,
        ..Request::default()
    }
}

fn sample_streams() -> [(WireProtocol, Vec<Value>); 6] {
    [
        (WireProtocol::OpenAiChat, chat_completion_events()),
        (WireProtocol::OpenAiResponses, responses_api_events()),
        (WireProtocol::Anthropic, anthropic_events()),
        (WireProtocol::Ollama, ollama_events()),
        (WireProtocol::Gemini, gemini_events()),
        (WireProtocol::Bedrock, bedrock_events()),
    ]
}

fn chat_completion_events() -> Vec<Value> {
    let call = json!({"index": 0, "id": "a", "function": {"name": "ls", "arguments": "{}"}});
    let delta = json!({"content": "x", "reasoning": "y", "reasoning_details": [{}], "refusal": null, "tool_calls": [call]});
    vec![
        json!({"choices": [{"delta": delta, "finish_reason": null}], "error": null}),
        json!({"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "1"}}]}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.1, "prompt_tokens_details": {"cached_tokens": 1}}}),
    ]
}

fn responses_api_events() -> Vec<Value> {
    let message =
        json!({"type": "message", "phase": "final", "content": [{"type": "output_text", "text": "x"}]});
    let call = json!({"type": "function_call", "call_id": "a", "name": "ls", "arguments": "{}"});
    vec![
        json!({"type": "response.output_item.added", "output_index": 1, "item": call}),
        json!({"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "{"}),
        json!({"type": "response.function_call_arguments.done", "output_index": 1, "arguments": "{}"}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": {"type": "reasoning"}}),
        json!({"type": "response.output_text.delta", "output_index": 2, "delta": "x"}),
        json!({"type": "response.completed", "response": {"output": [message, call], "usage": {"input_tokens": 1}}}),
    ]
}

fn anthropic_events() -> Vec<Value> {
    let start = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta =
        |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    vec![
        json!({"type": "message_start", "message": {"usage": {"input_tokens": 1, "cache_read_input_tokens": 2}}}),
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "x"})),
        delta(0, json!({"type": "signature_delta", "signature": "x"})),
        start(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "x"})),
        start(2, json!({"type": "tool_use", "id": "a", "name": "ls", "input": {"a": 1}})),
        delta(2, json!({"type": "input_json_delta", "partial_json": "{}"})),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}}),
        json!({"type": "message", "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"}),
    ]
}

fn ollama_events() -> Vec<Value> {
    let call = json!({"function": {"name": "ls", "arguments": {"a": 1}}});
    vec![
        json!({"message": {"content": "x", "thinking": "y", "tool_calls": [call]}, "done": false}),
        json!({"message": {"content": ""}, "done": true, "done_reason": "stop", "prompt_eval_count": 1}),
    ]
}

fn gemini_events() -> Vec<Value> {
    let call = json!({"functionCall": {"id": "a", "name": "ls", "args": {"a": 1}}, "thoughtSignature": "x"});
    let parts = json!([{"text": "x", "thought": true}, {"text": "y", "thoughtSignature": "x"}, call]);
    vec![
        json!({"candidates": [{"content": {"role": "model", "parts": parts}}], "promptFeedback": {}}),
        json!({"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 1,
            "toolUsePromptTokenCount": 1, "candidatesTokenCount": 1, "thoughtsTokenCount": 1}}),
    ]
}

fn bedrock_events() -> Vec<Value> {
    let delta =
        |place: u64, delta: Value| json!({"contentBlockDelta": {"contentBlockIndex": place, "delta": delta}});
    let call = json!({"toolUse": {"toolUseId": "a", "name": "ls"}});
    let usage =
        json!({"inputTokens": 1, "outputTokens": 1, "cacheReadInputTokens": 1, "cacheWriteInputTokens": 1});
    let whole = json!([{"text": "x"}, {"toolUse": {"toolUseId": "a", "name": "ls", "input": {}}},
        {"reasoningContent": {"reasoningText": {"text": "x", "signature": "y"}}}]);
    vec![
        delta(0, json!({"reasoningContent": {"text": "x"}})),
        delta(0, json!({"reasoningContent": {"signature": "x"}})),
        delta(1, json!({"text": "x"})),
        json!({"contentBlockStart": {"contentBlockIndex": 2, "start": call}}),
        delta(2, json!({"toolUse": {"input": "{}"}})),
        json!({"messageStop": {"stopReason": "tool_use"}}),
        json!({"metadata": {"usage": usage}}),
        json!({"output": {"message": {"content": whole}}, "stopReason": "end_turn", "usage": usage}),
    ]
}

/// Collects the JSON pointers of all parts of a value.
fn collect_json_pointers(value: &Value, at: String, all: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| collect_json_pointers(field, format!("{at}/{name}"), all))
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(n, item)| collect_json_pointers(item, format!("{at}/{n}"), all)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    all.push(at);
}

#[test]
fn malformed_events_are_parsed_or_rejected() {
    let others = [
        json!(null),
        json!(true),
        json!(-1),
        json!(u64::MAX),
        json!(1e300),
        json!("ü"),
        json!([[]]),
        json!({"a": {}}),
    ];
    let mut tried = 0;
    let request = build_request();
    for (wire, events) in sample_streams() {
        for (at, event) in events.iter().enumerate() {
            let mut all = Vec::new();
            collect_json_pointers(event, String::new(), &mut all);
            for pointer in all {
                for other in &others {
                    let mut events = events.clone();
                    *events[at].pointer_mut(&pointer).unwrap() = other.clone();
                    let mut reply = ReplyBuilder::new(&request, "p:m", &());
                    let read = wire.api().read_event;
                    let _ = events.iter().try_for_each(|event| read(event, &mut reply));
                    let _ = reply.build();
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 1_000, "{tried}");
}

#[test]
fn any_error_body_becomes_a_model_error() {
    let error = json!({"error": {"code": 400, "message": "m", "type": "t", "metadata": {"raw": "r", "reasons": ["x"]}}});
    let redactor = SecretRedactor::default();
    let mut all = Vec::new();
    collect_json_pointers(&error, String::new(), &mut all);
    for pointer in all {
        for other in [json!(null), json!(7), json!(""), json!([]), json!([null]), json!({"error": []})] {
            let mut error = error.clone();
            *error.pointer_mut(&pointer).unwrap() = other;
            assert!(!error::model_error_from_body(&error, &redactor).to_string().is_empty());
        }
    }
}
