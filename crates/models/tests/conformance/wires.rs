//! The wires under test: for each, the stream of one common reply, and helpers for requests and errors. Every test runs
//! for all wires that it applies to.

use std::sync::{Arc, Mutex};

use millrace_models::ModelSettings;
use millrace_models::model::{
    AnswerSchema, Delta, DeltaListener, FinishReason, Message, Model, ModelError, ProviderState, Reply,
    Request, ToolCall, ToolResult, ToolSpec,
};
use millrace_models::wire::{Dialect, ModelEndpoint, WireProtocol, create_http_model};
use millrace_protocol::result::Usage;
use serde_json::{Value, json};

use super::stub::{Stub, StubAction, chunked, response};

pub const KEY: &str = "sk-conformance-0123456789";

/// All wires.
pub const ALL: [WireProtocol; 6] = [
    WireProtocol::OpenAiChat,
    WireProtocol::OpenAiResponses,
    WireProtocol::Anthropic,
    WireProtocol::Gemini,
    WireProtocol::Ollama,
    WireProtocol::Bedrock,
];

/// The wires that stream text. [`super::bedrock`] tests the frames of the other one.
pub const TEXT: [WireProtocol; 5] = [
    WireProtocol::OpenAiChat,
    WireProtocol::OpenAiResponses,
    WireProtocol::Anthropic,
    WireProtocol::Gemini,
    WireProtocol::Ollama,
];

/// The wires that stream server-sent events.
pub const SSE: [WireProtocol; 4] =
    [WireProtocol::OpenAiChat, WireProtocol::OpenAiResponses, WireProtocol::Anthropic, WireProtocol::Gemini];

/// Returns an endpoint with a reasoning model.
pub fn endpoint(wire: WireProtocol, base_url: &str) -> ModelEndpoint {
    let (model, provider) = match wire {
        WireProtocol::OpenAiChat => ("gpt-5", "openai-chat"),
        WireProtocol::OpenAiResponses => ("gpt-5", "openai"),
        WireProtocol::Anthropic => ("claude-sonnet-4-6", "anthropic"),
        WireProtocol::Ollama => ("qwen3:4b", "ollama"),
        WireProtocol::Gemini => ("gemini-3-pro", "gemini"),
        WireProtocol::Bedrock => ("anthropic.claude-sonnet-4-6", "bedrock"),
    };
    ModelEndpoint {
        wire,
        dialect: Dialect { is_local: wire == WireProtocol::Ollama, ..Dialect::STANDARD },
        base_url: base_url.to_owned(),
        key: Some(KEY.into()),
        model: model.to_owned(),
        full_name: format!("{provider}:{model}"),
        settings: ModelSettings::default(),
        default_temperature: None,
    }
}

pub fn path(wire: WireProtocol) -> &'static str {
    match wire {
        WireProtocol::OpenAiChat => "/chat/completions",
        WireProtocol::OpenAiResponses => "/responses",
        WireProtocol::Anthropic => "/v1/messages",
        WireProtocol::Ollama => "/api/chat",
        WireProtocol::Gemini => "/models/gemini-3-pro:streamGenerateContent?alt=sse",
        WireProtocol::Bedrock => "/model/anthropic.claude-sonnet-4-6/converse-stream",
    }
}

pub fn content_type(wire: WireProtocol) -> &'static str {
    match wire {
        WireProtocol::OpenAiChat
        | WireProtocol::OpenAiResponses
        | WireProtocol::Anthropic
        | WireProtocol::Gemini => "text/event-stream; charset=utf-8",
        WireProtocol::Ollama => "application/x-ndjson",
        WireProtocol::Bedrock => "application/vnd.amazon.eventstream",
    }
}

/// Formats events for any wire.
pub fn stream_bytes(wire: WireProtocol, events: &[Value]) -> Vec<u8> {
    if wire == WireProtocol::Bedrock {
        return events.iter().flat_map(super::bedrock::frame_event).collect();
    }
    framed(wire, events).into_bytes()
}

/// Formats events for a wire that streams text.
pub fn framed(wire: WireProtocol, events: &[Value]) -> String {
    match wire {
        WireProtocol::OpenAiChat => {
            let all: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
            all + "data: [DONE]\n\n"
        }
        WireProtocol::OpenAiResponses | WireProtocol::Anthropic => {
            let name = |event: &Value| event["type"].as_str().unwrap().to_owned();
            events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", name(event))).collect()
        }
        WireProtocol::Gemini => events.iter().map(|event| format!("data: {event}\n\n")).collect(),
        WireProtocol::Ollama => events.iter().map(|event| format!("{event}\n")).collect(),
        WireProtocol::Bedrock => panic!("its stream is no text"),
    }
}

/// The events of the common reply: reasoning, text, and two parallel calls, the second one's arguments in pieces.
pub fn events(wire: WireProtocol) -> Vec<Value> {
    match wire {
        WireProtocol::OpenAiChat => chat_events(),
        WireProtocol::OpenAiResponses => responses_events(),
        WireProtocol::Anthropic => anthropic_events(),
        WireProtocol::Ollama => ollama_events(),
        WireProtocol::Gemini => gemini_events(),
        WireProtocol::Bedrock => bedrock_events(),
    }
}

fn chat_events() -> Vec<Value> {
    let chunk = |delta: Value| json!({"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]});
    let call = |index: u64, more: Value| {
        let mut call = json!({"index": index});
        more.as_object().unwrap().iter().for_each(|(name, value)| call[name] = value.clone());
        chunk(json!({"tool_calls": [call]}))
    };
    vec![
        chunk(json!({"role": "assistant", "content": ""})),
        chunk(json!({"reasoning_content": "Let me "})),
        chunk(json!({"reasoning_content": "see."})),
        chunk(json!({"content": "Hello "})),
        chunk(json!({"content": "wörld"})),
        call(0, json!({"id": "call_a", "type": "function", "function": {"name": "ls", "arguments": ""}})),
        call(0, json!({"function": {"arguments": "{\"path\":\"a\"}"}})),
        call(1, json!({"id": "call_b", "type": "function", "function": {"name": "read", "arguments": ""}})),
        call(1, json!({"function": {"arguments": "{\"path\":\"ü\","}})),
        call(1, json!({"function": {"arguments": "\"lines\":[1,2]}"}})),
        json!({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        json!({"id": "c", "choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120,
            "prompt_tokens_details": {"cached_tokens": 60}, "completion_tokens_details": {"reasoning_tokens": 7}}}),
    ]
}

fn responses_events() -> Vec<Value> {
    let reasoning = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA=="});
    let message = json!({"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
        "content": [{"type": "output_text", "text": "Hello wörld", "annotations": []}]});
    let call = |id: &str, name: &str, arguments: &str| json!({"type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": name, "arguments": arguments, "status": "completed"});
    let (ls, read) = (
        call("call_a", "ls", "{\"path\":\"a\"}"),
        call("call_b", "read", "{\"path\":\"ü\",\"lines\":[1,2]}"),
    );
    let pieces = |index: u64, delta: &str| json!({"type": "response.function_call_arguments.delta", "output_index": index, "delta": delta});
    let item = |kind: &str, index: u64, item: &Value| json!({"type": format!("response.output_item.{kind}"), "output_index": index, "item": item});
    vec![
        json!({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}),
        item("added", 0, &json!({"type": "reasoning", "id": "rs_1", "summary": []})),
        json!({"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "Let me "}),
        json!({"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "see."}),
        item("done", 0, &reasoning),
        item("added", 1, &json!({"type": "message", "id": "msg_1", "content": []})),
        json!({"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "Hello "}),
        json!({"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "wörld"}),
        item("done", 1, &message),
        item("added", 2, &call("call_a", "ls", "")),
        pieces(2, "{\"path\":\"a\"}"),
        item("done", 2, &ls),
        item("added", 3, &call("call_b", "read", "")),
        pieces(3, "{\"path\":\"ü\","),
        pieces(3, "\"lines\":[1,2]}"),
        item("done", 3, &read),
        json!({"type": "response.completed", "response": {"id": "resp_1", "status": "completed",
            "output": [reasoning, message, ls, read],
            "usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 60}, "output_tokens": 20,
                "output_tokens_details": {"reasoning_tokens": 7}, "total_tokens": 120}}}),
    ]
}

fn anthropic_events() -> Vec<Value> {
    let start = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta =
        |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let stop = |index: u64| json!({"type": "content_block_stop", "index": index});
    let input =
        |index: u64, text: &str| delta(index, json!({"type": "input_json_delta", "partial_json": text}));
    vec![
        json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": [],
            "usage": {"input_tokens": 30, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 10, "output_tokens": 1}}}),
        json!({"type": "ping"}),
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "Let me "})),
        delta(0, json!({"type": "thinking_delta", "thinking": "see."})),
        delta(0, json!({"type": "signature_delta", "signature": "EqQB"})),
        stop(0),
        start(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "Hello "})),
        delta(1, json!({"type": "text_delta", "text": "wörld"})),
        stop(1),
        start(2, json!({"type": "tool_use", "id": "call_a", "name": "ls", "input": {}})),
        input(2, ""),
        input(2, "{\"path\":\"a\"}"),
        stop(2),
        start(3, json!({"type": "tool_use", "id": "call_b", "name": "read", "input": {}})),
        input(3, "{\"path\":\"ü\","),
        input(3, "\"lines\":[1,2]}"),
        stop(3),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null},
            "usage": {"output_tokens": 20, "output_tokens_details": {"thinking_tokens": 7}}}),
        json!({"type": "message_stop"}),
    ]
}

fn ollama_events() -> Vec<Value> {
    let part = |message: Value| json!({"model": "qwen3:4b", "created_at": "2026-11-22T10:00:00Z", "message": message, "done": false});
    let call = |name: &str, arguments: Value| json!({"function": {"name": name, "arguments": arguments}});
    vec![
        part(json!({"role": "assistant", "content": "", "thinking": "Let me "})),
        part(json!({"role": "assistant", "content": "", "thinking": "see."})),
        part(json!({"role": "assistant", "content": "Hello "})),
        part(json!({"role": "assistant", "content": "wörld"})),
        part(json!({"role": "assistant", "content": "", "tool_calls": [call("ls", json!({"path": "a"}))]})),
        part(
            json!({"role": "assistant", "content": "", "tool_calls": [call("read", json!({"path": "ü", "lines": [1, 2]}))]}),
        ),
        json!({"model": "qwen3:4b", "message": {"role": "assistant", "content": ""}, "done": true, "done_reason": "stop",
            "total_duration": 1, "prompt_eval_count": 100, "eval_count": 20}),
    ]
}

fn gemini_events() -> Vec<Value> {
    let chunk =
        |part: Value| json!({"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]});
    let call =
        |id: &str, name: &str, args: Value| json!({"functionCall": {"id": id, "name": name, "args": args}});
    let mut first = call("call_a", "ls", json!({"path": "a"}));
    first["thoughtSignature"] = json!("c2ln");
    let mut last = chunk(call("call_b", "read", json!({"path": "ü", "lines": [1, 2]})));
    last["candidates"][0]["finishReason"] = json!("STOP");
    last["usageMetadata"] = json!({"promptTokenCount": 100, "candidatesTokenCount": 13, "thoughtsTokenCount": 7,
        "cachedContentTokenCount": 60, "totalTokenCount": 120});
    vec![
        chunk(json!({"text": "Let me ", "thought": true})),
        chunk(json!({"text": "see.", "thought": true})),
        chunk(json!({"text": "Hello "})),
        chunk(json!({"text": "wörld"})),
        chunk(first),
        last,
    ]
}

/// Each event has one field with its type, as the frames' headers name it.
fn bedrock_events() -> Vec<Value> {
    let delta =
        |place: u64, delta: Value| json!({"contentBlockDelta": {"contentBlockIndex": place, "delta": delta}});
    let stop = |place: u64| json!({"contentBlockStop": {"contentBlockIndex": place}});
    let start = |place: u64, id: &str, name: &str| {
        let call = json!({"toolUse": {"toolUseId": id, "name": name}});
        json!({"contentBlockStart": {"contentBlockIndex": place, "start": call}})
    };
    vec![
        json!({"messageStart": {"role": "assistant"}}),
        delta(0, json!({"reasoningContent": {"text": "Let me "}})),
        delta(0, json!({"reasoningContent": {"text": "see."}})),
        delta(0, json!({"reasoningContent": {"signature": "EqQB"}})),
        stop(0),
        delta(1, json!({"text": "Hello "})),
        delta(1, json!({"text": "wörld"})),
        stop(1),
        start(2, "call_a", "ls"),
        delta(2, json!({"toolUse": {"input": "{\"path\":\"a\"}"}})),
        stop(2),
        start(3, "call_b", "read"),
        delta(3, json!({"toolUse": {"input": "{\"path\":\"ü\","}})),
        delta(3, json!({"toolUse": {"input": "\"lines\":[1,2]}"}})),
        stop(3),
        json!({"messageStop": {"stopReason": "tool_use"}}),
        json!({"metadata": {"usage": {"inputTokens": 30, "cacheReadInputTokens": 60, "cacheWriteInputTokens": 10,
            "outputTokens": 20, "totalTokens": 120}, "metrics": {"latencyMs": 1}}}),
    ]
}

/// The common reply, without the ids and counts that Ollama does not send.
pub fn expected(wire: WireProtocol) -> Reply {
    let call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    let (mut first, mut second) = ("call_a", "call_b");
    let mut usage = Usage {
        input_tokens: 100,
        output_tokens: 20,
        cached_tokens: 60,
        reasoning_tokens: 7,
        ..Usage::default()
    };
    match wire {
        WireProtocol::OpenAiChat | WireProtocol::OpenAiResponses | WireProtocol::Gemini => {}
        WireProtocol::Anthropic => usage.cache_write_tokens = 10,
        WireProtocol::Bedrock => (usage.cache_write_tokens, usage.reasoning_tokens) = (10, 0),
        WireProtocol::Ollama => {
            (first, second) = ("call_1_0", "call_1_1");
            (usage.cached_tokens, usage.reasoning_tokens) = (0, 0);
        }
    }
    Reply {
        text: "Hello wörld".into(),
        calls: vec![
            call(first, "ls", "{\"path\":\"a\"}"),
            call(second, "read", "{\"path\":\"ü\",\"lines\":[1,2]}"),
        ],
        usage,
        finish: FinishReason::ToolCalls,
        model: None,
        provider_state: None,
        first_token: Vec::new(),
        vectors: Vec::new(),
    }
}

/// Compares two replies; arguments are compared as JSON, provider state is ignored.
pub fn assert_same(wire: WireProtocol, what: &str, mut actual: Reply, expected: &Reply) {
    actual.provider_state = None;
    let values = |reply: &Reply| -> Vec<Value> {
        reply.calls.iter().map(|call| serde_json::from_str(&call.arguments).unwrap()).collect()
    };
    assert_eq!(values(&actual), values(expected), "{wire:?}: {what}");
    for (call, other) in actual.calls.iter_mut().zip(&expected.calls) {
        call.arguments.clone_from(&other.arguments);
    }
    assert_eq!(&actual, expected, "{wire:?}: {what}");
}

/// Returns a minimal request.
pub fn question() -> Request {
    Request {
        system: "Be short.".into(),
        messages: vec![Message::User { text: "Hello".into() }],
        tools: vec![tool("read", "Reads."), tool("ls", "Lists.")],
        answer: None,
        max_output_tokens: 1_000,
        ..Request::default()
    }
}

pub fn tool(name: &str, description: &str) -> ToolSpec {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    ToolSpec { name: name.into(), description: description.into(), schema: schema.into() }
}

/// Returns a conversation with everything: parallel calls with their results, one of them an error, a call with invalid
/// JSON, and text after them.
pub fn conversation() -> Request {
    let call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    let result = |id: &str, text: &str, is_error| {
        Message::Tool(ToolResult { call_id: id.into(), text: text.into(), is_error, images: Vec::new() })
    };
    let calls = vec![call("call_a", "ls", "{\"path\":\"a\"}"), call("call.b", "read", "{\"path\":")];
    let provider_state =
        Some(ProviderState { model: "other:model".into(), items: json!([{"kept": {"secret": 1}}]) });
    let mut request = question();
    request.messages.extend([
        Message::Assistant { text: "I look.".into(), calls, provider_state },
        result("call_a", "x y z", false),
        result("call.b", "that is no JSON", true),
        Message::User { text: "Go on".into() },
        Message::Assistant { text: "Done.".into(), calls: vec![], provider_state: None },
        Message::User { text: "Sum up".into() },
    ]);
    request.answer = Some(AnswerSchema {
        name: "verdict".into(),
        schema: json!({"type": "object", "properties": {
            "passed": {"type": "boolean"}, "score": {"type": "integer", "minimum": 0},
        }, "required": ["passed"]}),
    });
    request
}

/// Returns a stub that streams the common reply, and the model that uses it.
pub async fn streaming(wire: WireProtocol) -> (Stub, Arc<dyn Model>) {
    serving(wire, chunked(content_type(wire), &[&stream_bytes(wire, &events(wire))])).await
}

pub async fn serving(wire: WireProtocol, actions: Vec<StubAction>) -> (Stub, Arc<dyn Model>) {
    let stub = Stub::new(actions).await;
    let model = create_http_model(endpoint(wire, &stub.url()), Arc::default());
    (stub, model)
}

/// Returns the reply to a minimal request.
pub async fn reply_to(wire: WireProtocol, actions: Vec<StubAction>) -> Result<Reply, ModelError> {
    let (_stub, model) = serving(wire, actions).await;
    model.reply(&question(), &()).await
}

/// Returns the reply made from events.
pub async fn reply_to_events(wire: WireProtocol, events: &[Value]) -> Result<Reply, ModelError> {
    reply_to(wire, chunked(content_type(wire), &[&stream_bytes(wire, events)])).await
}

/// Returns the error made from a JSON response.
pub async fn error_for(
    wire: WireProtocol,
    status: u16,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<Reply, ModelError> {
    let headers = [headers, &[("content-type", "application/json")]].concat();
    reply_to(wire, response(status, &headers, body)).await
}

/// Records all deltas.
#[derive(Default)]
pub struct DeltaLog(pub Mutex<Vec<String>>);

impl DeltaListener for DeltaLog {
    fn on_delta(&self, delta: Delta<'_>) {
        let text = match delta {
            Delta::Text(text) => format!("text {text}"),
            Delta::Reasoning(text) => format!("reasoning {text}"),
            Delta::Call(name) => format!("call {name}"),
            Delta::Restart => "restart".to_owned(),
            Delta::Waiting(why) => format!("waiting {why}"),
            Delta::Sending => "asking".to_owned(),
            Delta::Sent(_) | Delta::Hidden => return,
        };
        self.0.lock().unwrap().push(text);
    }
}
