//! The next request of a conversation: provider state returns to the provider unchanged and in its position, and to no
//! other provider.

use std::sync::Arc;

use millrace_models::model::{Message, ProviderState, Reply, Request, ToolResult};
use millrace_models::wire::{WireProtocol, create_http_model};
use serde_json::{Value, json};

use super::stub::{Stub, chunked};
use super::wires::{content_type, endpoint, events, question, reply_to_events, stream_bytes, streaming};

/// Returns the conversation after a reply and the results of its calls.
fn next(reply: Reply) -> Request {
    let mut request = question();
    let results: Vec<Message> = reply
        .calls
        .iter()
        .map(|call| {
            Message::Tool(ToolResult {
                call_id: call.id.clone(),
                text: "ok".into(),
                is_error: false,
                images: Vec::new(),
            })
        })
        .collect();
    let Reply { text, calls, provider_state, .. } = reply;
    request.messages.push(Message::Assistant { text, calls, provider_state });
    request.messages.extend(results);
    request
}

/// Returns the assistant messages of the second request of a conversation.
async fn sent_again(wire: WireProtocol, change: impl Fn(&mut ProviderState)) -> Vec<Value> {
    let (_first, model) = streaming(wire).await;
    let mut reply = model.reply(&question(), &()).await.unwrap();
    reply.provider_state.as_mut().into_iter().for_each(change);
    let stub = Stub::new(chunked(content_type(wire), &[&stream_bytes(wire, &events(wire))])).await;
    create_http_model(endpoint(wire, &stub.url()), Arc::default()).reply(&next(reply), &()).await.unwrap();
    let mut body = stub.only_request().json();
    match wire {
        WireProtocol::Anthropic | WireProtocol::Bedrock => {
            body["messages"][1]["content"].as_array().unwrap().clone()
        }
        WireProtocol::Gemini => body["contents"][1]["parts"].as_array().unwrap().clone(),
        WireProtocol::OpenAiResponses => body["input"].as_array().unwrap()[1..5].to_vec(),
        WireProtocol::OpenAiChat | WireProtocol::Ollama => vec![body["messages"][2].take()],
    }
}

#[tokio::test]
async fn signed_thinking_returns_to_anthropic_in_its_position() {
    let thinking = json!({"type": "thinking", "thinking": "Let me see.", "signature": "EqQB"});
    let words = json!({"type": "text", "text": "Hello wörld"});
    let call = |id: &str, name: &str, input: Value| json!({"type": "tool_use", "id": id, "name": name, "input": input});
    let (ls, read) = (
        call("call_a", "ls", json!({"path": "a"})),
        call("call_b", "read", json!({"path": "ü", "lines": [1, 2]})),
    );
    let all = [thinking, words, ls, read];
    assert_eq!(sent_again(WireProtocol::Anthropic, |_| ()).await, all);
    let to_another =
        sent_again(WireProtocol::Anthropic, |provider_state| provider_state.model = "anthropic:other".into())
            .await;
    assert_eq!(to_another, all[1..]);
}

#[tokio::test]
async fn signed_reasoning_returns_to_bedrock_in_its_position() {
    let text = json!({"text": "Let me see.", "signature": "EqQB"});
    let call = |id: &str, name: &str, input: Value| json!({"toolUse": {"toolUseId": id, "name": name, "input": input}});
    let all = [
        json!({"reasoningContent": {"reasoningText": text}}),
        json!({"text": "Hello wörld"}),
        call("call_a", "ls", json!({"path": "a"})),
        call("call_b", "read", json!({"path": "ü", "lines": [1, 2]})),
    ];
    assert_eq!(sent_again(WireProtocol::Bedrock, |_| ()).await, all);
    let to_another =
        sent_again(WireProtocol::Bedrock, |provider_state| provider_state.model = "bedrock:other".into())
            .await;
    assert_eq!(to_another, all[1..]);
}

#[tokio::test]
async fn signatures_return_to_gemini_with_their_calls() {
    let call =
        |id: &str, name: &str, args: Value| json!({"functionCall": {"id": id, "name": name, "args": args}});
    let mut first = call("call_a", "ls", json!({"path": "a"}));
    let second = call("call_b", "read", json!({"path": "ü", "lines": [1, 2]}));
    first["thoughtSignature"] = json!("c2ln");
    let parts = [json!({"text": "Hello wörld"}), first.clone(), second.clone()];
    assert_eq!(sent_again(WireProtocol::Gemini, |_| ()).await, parts);
    first["thoughtSignature"] = json!("skip_thought_signature_validator");
    let to_another =
        sent_again(WireProtocol::Gemini, |provider_state| provider_state.model = "gemini:other".into()).await;
    assert_eq!(
        to_another,
        [parts[0].clone(), first, second],
        "newer models reject a call without a signature"
    );
}

/// The signature of a text may come with the text, or after it with an empty one.
#[tokio::test]
async fn signatures_return_to_gemini_with_their_texts() {
    let chunk = |part: Value| json!({"candidates": [{"content": {"parts": [part]}}]});
    let mut end = chunk(json!({"text": "", "thoughtSignature": "YnR3"}));
    end["candidates"][0]["finishReason"] = json!("STOP");
    let events = [
        chunk(json!({"text": "Hel"})),
        chunk(json!({"text": "lo", "thoughtSignature": "YWJj"})),
        chunk(json!({"text": " there"})),
        end,
    ];
    let reply = reply_to_events(WireProtocol::Gemini, &events).await.unwrap();
    let stub = Stub::new(vec![]).await;
    let _ = create_http_model(endpoint(WireProtocol::Gemini, &stub.url()), Arc::default())
        .reply(&next(reply), &())
        .await;
    assert_eq!(
        stub.only_request().json()["contents"][1]["parts"],
        json!([
            {"text": "Hel"},
            {"text": "lo", "thoughtSignature": "YWJj"},
            {"text": " there"},
            {"text": "", "thoughtSignature": "YnR3"},
        ])
    );
}

/// Mistral sends reasoning in parts of the content, and rejects it in other fields.
#[tokio::test]
async fn thinking_parts_return_in_the_content() {
    let chunk = |delta: Value| json!({"choices": [{"index": 0, "delta": delta}]});
    let thinking = |text: &str| json!([{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]);
    let call = json!({"id": "a", "function": {"name": "ls", "arguments": "{}"}});
    let events = [
        chunk(json!({"content": thinking("Let me ")})),
        chunk(json!({"content": thinking("see.")})),
        chunk(json!({"content": "Hello", "tool_calls": [call]})),
        json!({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}),
    ];
    let reply = reply_to_events(WireProtocol::OpenAiChat, &events).await.unwrap();
    assert_eq!(reply.text, "Hello");
    let stub = Stub::new(vec![]).await;
    let _ = create_http_model(endpoint(WireProtocol::OpenAiChat, &stub.url()), Arc::default())
        .reply(&next(reply), &())
        .await;
    let message = &stub.only_request().json()["messages"][2];
    let content = json!([thinking("Let me see.")[0], {"type": "text", "text": "Hello"}]);
    assert_eq!((&message["content"], message.get("thinking")), (&content, None), "{message:#}");
}

#[tokio::test]
async fn encrypted_reasoning_returns_to_openai_in_its_position() {
    let reasoning = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA=="});
    let call = |id: &str, name: &str, arguments: &str| json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments});
    let all = [
        reasoning,
        json!({"role": "assistant", "content": "Hello wörld"}),
        call("call_a", "ls", "{\"path\":\"a\"}"),
        call("call_b", "read", "{\"path\":\"ü\",\"lines\":[1,2]}"),
    ];
    assert_eq!(sent_again(WireProtocol::OpenAiResponses, |_| ()).await, all);
    let to_another = sent_again(WireProtocol::OpenAiResponses, |provider_state| {
        provider_state.model = "openai:other".into()
    })
    .await;
    assert_eq!(to_another[..3], all[1..]);
}

#[tokio::test]
async fn plain_reasoning_returns_with_calls() {
    let message = sent_again(WireProtocol::OpenAiChat, |_| ()).await;
    assert_eq!(message[0]["reasoning_content"], json!("Let me see."));
    assert_eq!(message[0]["tool_calls"].as_array().unwrap().len(), 2);
    let to_another = sent_again(WireProtocol::OpenAiChat, |provider_state| {
        provider_state.model = "openrouter:other".into()
    })
    .await;
    assert_eq!(to_another[0].get("reasoning_content"), None);
    let without_calls =
        [json!({"choices": [{"delta": {"reasoning": "Hm.", "content": "hi"}, "finish_reason": "stop"}]})];
    assert_eq!(reply_to_events(WireProtocol::OpenAiChat, &without_calls).await.unwrap().provider_state, None);
    let details = [
        json!({"choices": [{"delta": {"reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]}}]}),
        json!({"choices": [{"delta": {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}, "finish_reason": "stop"}]}),
    ];
    let provider_state =
        reply_to_events(WireProtocol::OpenAiChat, &details).await.unwrap().provider_state.unwrap();
    assert_eq!(provider_state.items["reasoning_details"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn thinking_between_calls_keeps_its_position() {
    let start = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "ls", "input": {"path": "a"}});
    let thinking = |data: &str| json!({"type": "redacted_thinking", "data": data});
    let all =
        [thinking("one"), json!({"type": "text", "text": "now"}), call("a"), thinking("two"), call("b")];
    let mut events: Vec<Value> = (0..).zip(all.clone()).map(|(index, block)| start(index, block)).collect();
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}));
    events.push(json!({"type": "message_stop"}));
    let reply = reply_to_events(WireProtocol::Anthropic, &events).await.unwrap();
    let stub = Stub::new(vec![]).await;
    let _ = create_http_model(endpoint(WireProtocol::Anthropic, &stub.url()), Arc::default())
        .reply(&next(reply), &())
        .await;
    let sent = stub.only_request().json()["messages"][1]["content"].as_array().unwrap().clone();
    assert_eq!(sent, all);
}
