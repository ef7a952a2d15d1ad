//! Deviations of real servers from the documentation: calls out of order or without indices and ids, arguments as
//! objects, no usage, other fields for reasoning.

use millrace_models::model::{FinishReason, ToolCall};
use millrace_models::wire::WireProtocol;
use serde_json::{Value, json};

use super::wires::{assert_same, events, expected, reply_to_events};

fn chunk(delta: Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta}]})
}

fn end(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

async fn calls(chunks: Vec<Value>) -> Vec<(String, String, String)> {
    let mut all: Vec<Value> = chunks.into_iter().map(|call| chunk(json!({"tool_calls": [call]}))).collect();
    all.push(end("stop"));
    let reply = reply_to_events(WireProtocol::OpenAiChat, &all).await.unwrap();
    assert_eq!(reply.finish, FinishReason::ToolCalls, "calls determine the finish reason");
    reply.calls.into_iter().map(|ToolCall { id, name, arguments }| (id, name, arguments)).collect()
}

fn call(id: &str, name: &str, arguments: &str) -> (String, String, String) {
    (id.into(), name.into(), arguments.into())
}

/// Interleaved deltas of two calls, starting with the second call.
#[tokio::test]
async fn calls_are_ordered_by_index_not_by_arrival() {
    let split_calls = [
        WireProtocol::OpenAiChat,
        WireProtocol::OpenAiResponses,
        WireProtocol::Anthropic,
        WireProtocol::Bedrock,
    ];
    for wire in split_calls {
        let all = events(wire);
        let (of_first, of_second) = match wire {
            WireProtocol::OpenAiChat => (5..7, 7..10),
            WireProtocol::OpenAiResponses => (9..12, 12..16),
            WireProtocol::Anthropic => (11..15, 15..19),
            WireProtocol::Gemini | WireProtocol::Ollama => unreachable!("its calls are not split"),
            WireProtocol::Bedrock => (8..11, 11..15),
        };
        let (mut first, mut second) = (all[of_first.clone()].iter(), all[of_second.clone()].iter());
        let mut mixed = all[..of_first.start].to_vec();
        for _ in 0..of_second.len() {
            mixed.extend(second.next().cloned());
            mixed.extend(first.next().cloned());
        }
        mixed.extend_from_slice(&all[of_second.end..]);
        let reply = reply_to_events(wire, &mixed).await.unwrap();
        assert_same(wire, "mixed", reply, &expected(wire));
    }
}

#[tokio::test]
async fn calls_without_index_or_id_are_distinguished() {
    let function = |name: &str, arguments: &str| json!({"name": name, "arguments": arguments});
    let none =
        vec![json!({"function": function("ls", "{}")}), json!({"function": function("rm", "{\"x\":1}")})];
    assert_eq!(calls(none).await, [call("call_1_0", "ls", "{}"), call("call_1_1", "rm", "{\"x\":1}")]);
    let no_place = vec![
        json!({"id": "a", "function": function("ls", "{\"x\"")}),
        json!({"function": {"arguments": ":1}"}}),
        json!({"id": "b", "function": function("rm", "")}),
    ];
    assert_eq!(calls(no_place).await, [call("a", "ls", "{\"x\":1}"), call("b", "rm", "{}")]);
    let same_id = vec![
        json!({"index": 0, "id": "a", "function": function("ls", "{}")}),
        json!({"index": 1, "id": "a", "function": function("rm", "{}")}),
    ];
    assert_eq!(calls(same_id).await, [call("a", "ls", "{}"), call("a_1", "rm", "{}")]);
    let same_place = vec![
        json!({"index": 0, "id": "a", "function": function("ls", "{}")}),
        json!({"index": 0, "id": "b", "function": function("rm", "{}")}),
    ];
    assert_eq!(calls(same_place).await, [call("a", "ls", "{}"), call("b", "rm", "{}")]);
}

#[tokio::test]
async fn arguments_may_be_an_object_nothing_or_no_json() {
    let of = |arguments: Value| json!({"index": 0, "id": "a", "type": "function", "function": {"name": "ls", "arguments": arguments}});
    assert_eq!(calls(vec![of(json!({"x": {"y": [1]}}))]).await, [call("a", "ls", "{\"x\":{\"y\":[1]}}")]);
    assert_eq!(calls(vec![of(json!(null))]).await, [call("a", "ls", "{}")]);
    assert_eq!(calls(vec![of(json!("{\"x\": oops"))]).await, [call("a", "ls", "{\"x\": oops")]);
    let flat = json!({"index": 0, "id": "a", "name": "ls", "arguments": "{}"});
    assert_eq!(calls(vec![flat]).await, [call("a", "ls", "{}")]);
}

#[tokio::test]
async fn usage_and_finish_reason_are_optional() {
    let bare = reply_to_events(WireProtocol::OpenAiChat, &[chunk(json!({"content": "hi"}))]).await.unwrap();
    assert_eq!(
        (bare.text.as_str(), bare.finish, bare.usage.input_tokens > 0, bare.usage.output_tokens),
        ("hi", FinishReason::Stop, true, 1),
        "[DONE] is an end, and the usage is estimated, so that budgets hold"
    );
    let nulls = json!({"choices": [{"delta": {"content": "hi", "tool_calls": null, "refusal": null}, "finish_reason": "stop"}],
        "usage": null, "error": null});
    assert_eq!(reply_to_events(WireProtocol::OpenAiChat, &[nulls]).await.unwrap().text, "hi");
    let parts = chunk(json!({"content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}));
    assert_eq!(reply_to_events(WireProtocol::OpenAiChat, &[parts, end("stop")]).await.unwrap().text, "hi");
    let ollama = json!({"message": {"content": "hi"}, "done": true});
    assert_eq!(reply_to_events(WireProtocol::Ollama, &[ollama]).await.unwrap().text, "hi");
}

#[tokio::test]
async fn reported_cost_and_cached_tokens_are_returned() {
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "cost": 0.001234,
        "prompt_cache_hit_tokens": 4, "prompt_tokens_details": {"cache_write_tokens": 3}}});
    let reply =
        reply_to_events(WireProtocol::OpenAiChat, &[chunk(json!({"content": "hi"})), end("stop"), usage])
            .await
            .unwrap();
    let usage = reply.usage;
    assert_eq!((usage.cost_micros, usage.cached_tokens, usage.cache_write_tokens), (1_234, 4, 3));
}

/// Groq sends usage in a field of its own, and xAI counts the reasoning apart from the reply.
#[tokio::test]
async fn usage_is_found_and_includes_the_reasoning() {
    let counts = |output: u64, total: u64| {
        json!({"prompt_tokens": 32, "completion_tokens": output, "total_tokens": total,
            "completion_tokens_details": {"reasoning_tokens": 94}})
    };
    let ends = |usage: Value| [chunk(json!({"content": "hi"})), usage];
    let groq =
        json!({"choices": [{"delta": {}, "finish_reason": "stop"}], "x_groq": {"usage": counts(103, 135)}});
    let xai = json!({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": counts(9, 135)});
    for end in [groq, xai] {
        let usage = reply_to_events(WireProtocol::OpenAiChat, &ends(end)).await.unwrap().usage;
        assert_eq!((usage.input_tokens, usage.output_tokens, usage.reasoning_tokens), (32, 103, 94));
    }
}

#[tokio::test]
async fn a_refusal_is_a_content_filter_reply() {
    let chat = [chunk(json!({"refusal": "I can't "})), chunk(json!({"refusal": "do that."})), end("stop")];
    let reply = reply_to_events(WireProtocol::OpenAiChat, &chat).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.finish), ("I can't do that.", FinishReason::ContentFilter));
    let item = json!({"type": "message", "content": [{"type": "refusal", "refusal": "No."}]});
    let responses = [
        json!({"type": "response.refusal.delta", "output_index": 0, "delta": "No."}),
        json!({"type": "response.completed", "response": {"status": "completed", "output": [item]}}),
    ];
    let reply = reply_to_events(WireProtocol::OpenAiResponses, &responses).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.finish), ("No.", FinishReason::ContentFilter));
}

/// Gateways with the Responses API may stream pieces without sending the complete items at the end.
#[tokio::test]
async fn responses_without_final_items_are_complete() {
    let all: Vec<Value> = events(WireProtocol::OpenAiResponses)
        .into_iter()
        .filter(|event| event["type"] != "response.output_item.done")
        .map(|mut event| {
            if event["type"] == "response.completed" {
                event["response"]["output"] = json!([]);
            }
            event
        })
        .collect();
    let reply = reply_to_events(WireProtocol::OpenAiResponses, &all).await.unwrap();
    assert_same(
        WireProtocol::OpenAiResponses,
        "pieces only",
        reply,
        &expected(WireProtocol::OpenAiResponses),
    );
}

/// The request offers `read` and `ls`.
#[tokio::test]
async fn a_tool_is_called_by_any_spelling_of_its_name() {
    for written in
        ["functions.read", " read ", "Read", "read<|channel|>commentary", "functions.READ:0", "<|start|>read"]
    {
        let begun = json!({"index": 0, "id": "a", "function": {"name": written, "arguments": ""}});
        let rest = json!({"index": 0, "function": {"arguments": "{}"}});
        assert_eq!(calls(vec![begun, rest]).await, [call("a", "read", "{}")], "{written:?}");
    }
    let unknown = json!({"index": 0, "id": "a", "function": {"name": "functions.rm", "arguments": "{}"}});
    assert_eq!(
        calls(vec![unknown]).await,
        [call("a", "functions.rm", "{}")],
        "it stays as the model wrote it"
    );
}

#[tokio::test]
async fn the_older_form_of_a_call_is_read() {
    let piece = |function: Value| chunk(json!({ "function_call": function }));
    let all = [
        piece(json!({"name": "functions.ls", "arguments": ""})),
        piece(json!({"arguments": "{\"path\":"})),
        piece(json!({"arguments": "\"a\"}"})),
        end("function_call"),
    ];
    let reply = reply_to_events(WireProtocol::OpenAiChat, &all).await.unwrap();
    let [ToolCall { name, arguments, .. }] = &reply.calls[..] else { panic!("{reply:?}") };
    assert_eq!((name.as_str(), arguments.as_str()), ("ls", r#"{"path":"a"}"#));
}
