//! The providers of the crate `genai`: the requests it sends, and the replies and errors we make of its results.

use millrace_models::model::{FinishReason, Message, Model, ModelError, ToolResult};
use millrace_models::wire::{ModelEndpoint, WireProtocol, long_tail};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

use crate::stub::{Stub, StubAction, chunked, response, unterminated};
use crate::wires::{DeltaLog, KEY, endpoint, question};

fn model(provider: &str, name: &str, base_url: &str) -> Arc<dyn Model> {
    let endpoint = ModelEndpoint {
        model: name.into(),
        full_name: format!("{provider}:{name}"),
        ..endpoint(WireProtocol::OpenAiChat, base_url)
    };
    long_tail::connect_through_genai(provider, endpoint).unwrap()
}

/// A stream of Gemini: text, parallel calls with signatures, and usage.
fn gemini() -> Vec<Value> {
    let chunk = |parts: Value| json!({"candidates": [{"content": {"role": "model", "parts": parts}}]});
    let call = |name: &str, args: Value| json!({"functionCall": {"name": name, "args": args}});
    let mut signed = call("ls", json!({"path": "a"}));
    signed["thoughtSignature"] = json!("c2ln");
    let mut last = chunk(json!([signed, call("read", json!({"path": "ü"}))]));
    last["candidates"][0]["finishReason"] = json!("STOP");
    last["usageMetadata"] = json!({"promptTokenCount": 100, "candidatesTokenCount": 13, "thoughtsTokenCount": 7,
        "cachedContentTokenCount": 60, "totalTokenCount": 120});
    vec![
        chunk(json!([{"text": "Let me see.", "thought": true}])),
        chunk(json!([{"text": "Hello "}])),
        chunk(json!([{"text": "wörld"}])),
        last,
    ]
}

fn framed(events: &[Value]) -> String {
    events.iter().map(|event| format!("data: {event}\r\n\r\n")).collect()
}

fn streaming(events: &[Value]) -> Vec<StubAction> {
    chunked("text/event-stream", &[framed(events).as_bytes()])
}

#[tokio::test]
async fn gemini_requests_and_replies_are_translated() {
    let stub = Stub::new(streaming(&gemini())).await;
    let log = DeltaLog::default();
    let reply = model("gemini", "gemini-2.5-pro", &stub.url()).reply(&question(), &log).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.finish), ("Hello wörld", FinishReason::ToolCalls));
    let names: Vec<_> =
        reply.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
    assert_eq!(names, [("ls", "{\"path\":\"a\"}"), ("read", "{\"path\":\"ü\"}")]);
    let usage = reply.usage;
    assert_eq!(
        (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens),
        (100, 20, 60, 7)
    );
    let streamed = log.0.into_inner().unwrap();
    assert_eq!(streamed, ["reasoning Let me see.", "text Hello ", "text wörld", "call ls", "call read"]);
    let received = stub.only_request();
    assert!(received.line.contains("gemini-2.5-pro:streamGenerateContent"), "{}", received.line);
    assert!(!received.line.contains(KEY), "the URL must not contain the key");
    let body = received.json();
    assert_eq!(body["generationConfig"]["maxOutputTokens"], json!(1000), "{body:#}");
    let tools = body["tools"][0]["functionDeclarations"].as_array().unwrap();
    assert_eq!((tools[0]["name"].as_str(), tools[1]["name"].as_str()), (Some("ls"), Some("read")));
}

#[tokio::test]
async fn signatures_return_to_gemini_and_results_are_one_turn() {
    let stub = Stub::new(streaming(&gemini())).await;
    let gemini = model("gemini", "gemini-2.5-pro", &stub.url());
    let mut request = question();
    let reply = gemini.reply(&request, &()).await.unwrap();
    let results = reply.calls.clone().into_iter();
    request.messages.push(Message::Assistant {
        text: reply.text,
        calls: reply.calls,
        provider_state: reply.provider_state,
    });
    request.messages.extend(results.map(|call| {
        Message::Tool(ToolResult { call_id: call.id, text: "ok".into(), is_error: false, images: Vec::new() })
    }));
    gemini.reply(&request, &()).await.unwrap();
    let contents = stub.seen()[1].json()["contents"].as_array().unwrap().clone();
    assert_eq!(contents.len(), 3, "{contents:#?}");
    assert!(contents[1].to_string().contains("c2ln"), "{:#}", contents[1]);
    let results = contents[2]["parts"].as_array().unwrap();
    let names: Vec<_> =
        results.iter().map(|part| part["functionResponse"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ls", "read"]);
}

#[tokio::test]
async fn model_names_with_an_effort_suffix_are_unchanged() {
    let chunk = json!({"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]});
    let stub =
        Stub::new(chunked("text/event-stream", &[format!("data: {chunk}\n\ndata: [DONE]\n\n").as_bytes()]))
            .await;
    let reply =
        model("groq", "local-max", &format!("{}/v1", stub.url())).reply(&question(), &()).await.unwrap();
    assert_eq!(reply.text, "hi");
    let received = stub.only_request();
    assert_eq!(received.line, "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(
        (&received.json()["model"], received.json().get("reasoning_effort")),
        (&json!("local-max"), None)
    );
    assert_eq!(received.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
}

#[tokio::test]
async fn errors_keep_status_and_wait_and_contain_no_key() {
    for (provider, name) in
        [("gemini", "gemini-2.5-pro"), ("groq", "x"), ("deepseek", "deepseek-chat"), ("cohere", "command-r")]
    {
        let reply_to = async |actions: Vec<StubAction>| {
            let stub = Stub::new(actions).await;
            model(provider, name, &stub.url()).reply(&question(), &()).await.unwrap_err()
        };
        let body = format!("{{\"error\":{{\"message\":\"quota {KEY}\",\"status\":\"RESOURCE_EXHAUSTED\"}}}}");
        let limited =
            reply_to(response(429, &[("content-type", "application/json"), ("retry-after", "7")], &body))
                .await;
        let ModelError::RateLimited { retry_after, message } = &limited else {
            panic!("{provider}: {limited:?}")
        };
        assert_eq!(*retry_after, Some(Duration::from_secs(7)), "{provider}");
        assert!(message.contains("quota") && !message.contains(KEY), "{provider}: {message}");
        let denied = reply_to(response(401, &[("content-type", "application/json")], &body)).await;
        assert!(matches!(denied, ModelError::Authentication { .. }), "{provider}: {denied:?}");
        let long = "{\"error\":{\"message\":\"The input token count (9) exceeds the maximum number of tokens allowed (8).\"}}";
        let long = reply_to(response(400, &[("content-type", "application/json")], long)).await;
        assert!(matches!(long, ModelError::ContextOverflow { .. }), "{provider}: {long:?}");
    }
}

#[tokio::test]
async fn a_stream_without_finish_reason_is_truncated() {
    let half = framed(&gemini()[..2]);
    let page = "<html><title>Sign in</title></html>";
    for actions in [
        chunked("text/event-stream", &[half.as_bytes()]),
        unterminated("text/event-stream", &[half.as_bytes()]),
        response(200, &[("content-type", "text/html")], page),
        response(200, &[("content-type", "text/event-stream")], ""),
    ] {
        let stub = Stub::new(actions).await;
        let error = model("gemini", "gemini-2.5-pro", &stub.url()).reply(&question(), &()).await.unwrap_err();
        assert!(matches!(error, ModelError::Truncated { .. } | ModelError::Protocol { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn an_unknown_provider_is_none() {
    assert!(long_tail::connect_through_genai("nobody", endpoint(WireProtocol::OpenAiChat, "")).is_none());
    for known in
        ["gemini", "vertex", "bedrock", "groq", "xai", "deepseek", "cohere", "mistral", "together", "github"]
    {
        assert!(
            long_tail::connect_through_genai(known, endpoint(WireProtocol::OpenAiChat, "")).is_some(),
            "{known}"
        );
    }
}

#[tokio::test]
async fn a_refused_connection_is_a_connection_error() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let error = model("gemini", "gemini-2.5-pro", &gone).reply(&question(), &()).await.unwrap_err();
    assert!(matches!(error, ModelError::Connection { .. }), "{error:?}");
}
