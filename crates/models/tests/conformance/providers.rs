//! The providers of the list, from the name to the reply: the address, the credential and the body of their requests, and the
//! replies and errors that Millrace makes of theirs.

use std::sync::Arc;
use std::time::Duration;

use millrace_models::ModelSettings;
use millrace_models::model::{FinishReason, Message, Model, ModelError, ToolResult};
use millrace_models::provider::{ParsedModelName, ProviderRow, parse_model_name, resolve_model_endpoint};
use millrace_models::selection::ModelSpec;
use millrace_models::wire::{ModelEndpoint, WireProtocol, create_http_model};
use serde_json::{Value, json};

use super::stub::{ReceivedRequest, Stub, StubAction, chunked, response, unterminated};
use super::wires::{DeltaLog, KEY, content_type, events, framed, question, stream_bytes};

/// Providers with a model, the path of its requests at the provider's base URL, and the header with the key.
const PROVIDERS: [(&str, &str, &str); 23] = [
    ("openai:m", "/chat/completions", "authorization"),
    ("openai-chat:m", "/chat/completions", "authorization"),
    ("openai-responses:m", "/responses", "authorization"),
    ("anthropic:m", "/v1/messages", "x-api-key"),
    ("ollama:m", "/api/chat", "authorization"),
    ("lm-studio:m", "/chat/completions", "authorization"),
    ("openrouter:a/b", "/chat/completions", "authorization"),
    ("openai-compatible:m", "/chat/completions", "authorization"),
    ("gemini:m", "/models/m:streamGenerateContent?alt=sse", "x-goog-api-key"),
    (
        "vertex:gemini-3-pro",
        "/publishers/google/models/gemini-3-pro:streamGenerateContent?alt=sse",
        "authorization",
    ),
    (
        "vertex:claude-sonnet-4-5@20250929",
        "/publishers/anthropic/models/claude-sonnet-4-5@20250929:streamRawPredict",
        "authorization",
    ),
    (
        "bedrock:us.amazon.nova-lite-v1:0",
        "/model/us.amazon.nova-lite-v1%3A0/converse-stream",
        "authorization",
    ),
    ("groq:m", "/chat/completions", "authorization"),
    ("xai:m", "/chat/completions", "authorization"),
    ("deepseek:m", "/chat/completions", "authorization"),
    ("cohere:m", "/chat/completions", "authorization"),
    ("mistral:m", "/chat/completions", "authorization"),
    ("together:a/b", "/chat/completions", "authorization"),
    ("fireworks:m", "/chat/completions", "authorization"),
    ("nebius:m", "/chat/completions", "authorization"),
    ("zai:m", "/chat/completions", "authorization"),
    ("moonshot:m", "/chat/completions", "authorization"),
    ("github:a/b", "/chat/completions", "authorization"),
];

/// Resolves a name in an environment in which every key is [`KEY`].
fn resolve(name: &str, base_url: &str) -> ModelEndpoint {
    let settings = ModelSettings { base_url: Some(base_url.to_owned()), ..ModelSettings::default() };
    let spec = ModelSpec { name: name.to_owned(), settings };
    let ParsedModelName::Model { provider, model, address } = parse_model_name(name).unwrap() else {
        panic!("{name} is no provider's model")
    };
    let variable = |name: &str| (name.ends_with("_KEY") || name == "GITHUB_TOKEN").then(|| KEY.to_owned());
    resolve_model_endpoint(&spec, provider, &model, address, &variable).unwrap()
}

fn model(name: &str, base_url: &str) -> Arc<dyn Model> {
    create_http_model(resolve(name, base_url), Arc::default())
}

/// Returns the request to a model that sends the common reply.
async fn sent(name: &str) -> ReceivedRequest {
    let wire = resolve(name, "http://127.0.0.1:9").wire;
    let stub = Stub::new(chunked(content_type(wire), &[&stream_bytes(wire, &events(wire))])).await;
    let reply = model(name, &format!("{}/base", stub.url())).reply(&question(), &()).await;
    let reply = reply.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!((reply.text.as_str(), reply.calls.len()), ("Hello wörld", 2), "{name}");
    stub.only_request()
}

#[tokio::test]
async fn every_provider_gets_its_path_and_its_credential() {
    for (name, path, credential) in PROVIDERS {
        let received = sent(name).await;
        assert_eq!(received.line, format!("POST /base{path} HTTP/1.1"), "{name}");
        for header in ["authorization", "x-api-key", "x-goog-api-key"] {
            let value = if header == "authorization" { format!("Bearer {KEY}") } else { KEY.to_owned() };
            let expected = (header == credential).then_some(value.as_str());
            assert_eq!(received.header(header), expected, "{name}: {header}");
        }
        assert!(!received.line.contains(KEY) && !received.body.contains(KEY), "{name}");
    }
    assert_eq!(ProviderRow::from_name("nobody"), None);
}

#[tokio::test]
async fn requests_differ_where_the_providers_do() {
    let body = async |name: &str| sent(name).await.json();
    assert_eq!(body("fireworks:qwen").await["model"], "accounts/fireworks/models/qwen");
    assert_eq!(body("fireworks:accounts/own/models/x").await["model"], "accounts/own/models/x");
    assert_eq!(body("cohere:command-a").await.get("stream_options"), None);
    assert_eq!(body("groq:m").await["stream_options"], json!({"include_usage": true}));
    let github = sent("github:openai/gpt-4.1").await;
    assert_eq!(github.header("accept"), Some("application/vnd.github+json"));
    assert_eq!(sent("groq:m").await.header("accept"), Some("*/*"));
    let claude = sent("vertex:claude-sonnet-4-5").await;
    assert_eq!(claude.header("anthropic-version"), None);
    let claude = claude.json();
    assert_eq!((&claude["anthropic_version"], claude.get("model")), (&json!("vertex-2023-10-16"), None));
    assert!(resolve("deepseek:m", "http://127.0.0.1:9").dialect.has_thinking_switch);
    let arn = "bedrock:arn:aws:bedrock:us-east-1:1:inference-profile/us.x";
    let line = sent(arn).await.line;
    assert!(
        line.contains("/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fus.x/"),
        "{line}"
    );
}

/// A stream of an older Gemini model, which sends no ids: text, parallel calls with a signature, and usage.
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

fn gemini_stream(events: &[Value]) -> Vec<u8> {
    framed(WireProtocol::Gemini, events).replace('\n', "\r\n").into_bytes()
}

fn streaming(events: &[Value]) -> Vec<StubAction> {
    chunked("text/event-stream", &[&gemini_stream(events)])
}

#[tokio::test]
async fn gemini_requests_and_replies_are_translated() {
    let stub = Stub::new(streaming(&gemini())).await;
    let log = DeltaLog::default();
    let reply = model("gemini:gemini-2.5-pro", &stub.url()).reply(&question(), &log).await.unwrap();
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
    let body = stub.only_request().json();
    assert_eq!(body["generationConfig"]["maxOutputTokens"], json!(1000), "{body:#}");
    let tools = body["tools"][0]["functionDeclarations"].as_array().unwrap();
    assert_eq!((tools[0]["name"].as_str(), tools[1]["name"].as_str()), (Some("ls"), Some("read")));
}

#[tokio::test]
async fn signatures_return_to_gemini_and_results_are_one_turn() {
    let stub = Stub::new(streaming(&gemini())).await;
    let gemini = model("gemini:gemini-2.5-pro", &stub.url());
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
    let responses: Vec<_> = results.iter().map(|part| &part["functionResponse"]).collect();
    let names: Vec<_> = responses.iter().map(|response| response["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ls", "read"]);
    assert!(responses.iter().all(|response| response.get("id").is_none()), "it sent no ids");
}

#[tokio::test]
async fn model_names_with_an_effort_suffix_are_unchanged() {
    let received = sent("groq:local-max").await;
    let body = received.json();
    assert_eq!((&body["model"], body.get("reasoning_effort")), (&json!("local-max"), None));
}

#[tokio::test]
async fn errors_keep_status_and_wait_and_contain_no_key() {
    for (provider, ..) in PROVIDERS {
        let reply_to = async |actions: Vec<StubAction>| {
            let stub = Stub::new(actions).await;
            model(provider, &stub.url()).reply(&question(), &()).await.unwrap_err()
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
        assert!(!message.contains("Hello"), "{provider}: the request is in {message}");
        let denied = reply_to(response(401, &[("content-type", "application/json")], &body)).await;
        assert!(matches!(denied, ModelError::Authentication { .. }), "{provider}: {denied:?}");
        let long = "{\"error\":{\"message\":\"The input token count (9) exceeds the maximum number of tokens allowed (8).\"}}";
        let long = reply_to(response(400, &[("content-type", "application/json")], long)).await;
        assert!(matches!(long, ModelError::ContextOverflow { .. }), "{provider}: {long:?}");
    }
}

#[tokio::test]
async fn a_stream_without_finish_reason_is_truncated() {
    let half = gemini_stream(&gemini()[..2]);
    let page = "<html><title>Sign in</title></html>";
    for actions in [
        chunked("text/event-stream", &[&half]),
        unterminated("text/event-stream", &[&half]),
        response(200, &[("content-type", "text/html")], page),
        response(200, &[("content-type", "text/event-stream")], ""),
    ] {
        let stub = Stub::new(actions).await;
        let error = model("gemini:gemini-2.5-pro", &stub.url()).reply(&question(), &()).await.unwrap_err();
        assert!(matches!(error, ModelError::Truncated { .. } | ModelError::Protocol { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_refused_connection_is_a_connection_error() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    for (provider, ..) in PROVIDERS {
        let error = model(provider, &gone).reply(&question(), &()).await.unwrap_err();
        assert!(matches!(error, ModelError::Connection { .. }), "{provider}: {error:?}");
    }
}
