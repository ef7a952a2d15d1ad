//! The exact requests: method, path, headers and body. The expected bodies are in `golden/`; `UPDATE_GOLDEN=1` rewrites
//! them.

use std::path::PathBuf;

use std::sync::Arc;

use millrace_models::ModelSettings;
use millrace_models::model::{Message, Request};
use millrace_models::wire::{ModelEndpoint, WireProtocol, create_http_model};
use serde_json::{Value, json};

use super::stub::{ReceivedRequest, Stub, chunked};
use super::wires::{ALL, KEY, content_type, conversation, endpoint, events, path, question, stream_bytes};

async fn sent(wire: WireProtocol, request: &Request, change: impl Fn(&mut ModelEndpoint)) -> ReceivedRequest {
    let stub = Stub::new(chunked(content_type(wire), &[&stream_bytes(wire, &events(wire))])).await;
    let mut endpoint = endpoint(wire, &stub.url());
    change(&mut endpoint);
    create_http_model(endpoint, Arc::default()).reply(request, &()).await.unwrap();
    stub.only_request()
}

fn assert_golden(name: &str, body: &Value) {
    let file =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/conformance/golden/{name}.json"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, format!("{body:#}\n")).unwrap();
    }
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let golden: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(body, &golden, "{name}:\n{body:#}");
}

pub fn name(wire: WireProtocol) -> &'static str {
    match wire {
        WireProtocol::OpenAiChat => "openai_chat",
        WireProtocol::OpenAiResponses => "openai_responses",
        WireProtocol::Anthropic => "anthropic",
        WireProtocol::Ollama => "ollama",
        WireProtocol::Gemini => "gemini",
        WireProtocol::Bedrock => "bedrock",
    }
}

#[tokio::test]
async fn method_path_and_headers_are_those_of_the_api() {
    for wire in ALL {
        let received = sent(wire, &question(), |_| ()).await;
        assert_eq!(received.line, format!("POST {} HTTP/1.1", path(wire)), "{wire:?}");
        let mut names: Vec<&str> = received.headers.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        let (credential, value) = match wire {
            WireProtocol::Anthropic => ("x-api-key", KEY.to_owned()),
            WireProtocol::Gemini => ("x-goog-api-key", KEY.to_owned()),
            WireProtocol::OpenAiChat
            | WireProtocol::OpenAiResponses
            | WireProtocol::Ollama
            | WireProtocol::Bedrock => ("authorization", format!("Bearer {KEY}")),
        };
        let mut expected = vec![
            "accept",
            "accept-encoding",
            credential,
            "content-length",
            "content-type",
            "host",
            "user-agent",
        ];
        if wire == WireProtocol::Anthropic {
            expected.push("anthropic-version");
            assert_eq!(received.header("anthropic-version"), Some("2023-06-01"));
        }
        assert_eq!(received.header(credential), Some(value.as_str()));
        expected.sort_unstable();
        assert_eq!(names, expected, "{wire:?}");
        assert_eq!(received.header("content-type"), Some("application/json"));
        assert!(received.header("user-agent").unwrap().starts_with("millrace/"));
    }
}

#[tokio::test]
async fn the_body_of_a_full_conversation_matches_the_golden_file() {
    for wire in ALL {
        let received = sent(wire, &conversation(), |_| ()).await;
        assert_golden(name(wire), &received.json());
    }
}

#[tokio::test]
async fn settings_are_translated_to_the_api() {
    for wire in ALL {
        let mut request = question();
        request.tools.clear();
        let received = sent(wire, &request, |endpoint| {
            endpoint.settings = ModelSettings {
                temperature: Some(0.5),
                top_p: Some(0.9),
                max_output_tokens: Some(500),
                reasoning_effort: Some("high".into()),
                extra_body: json!({"metadata": {"a": 1}, "options": {"num_ctx": 4096}})
                    .as_object()
                    .unwrap()
                    .clone(),
                extra_headers: [("X-Team".to_owned(), "mill".to_owned())].into(),
                ..ModelSettings::default()
            };
        })
        .await;
        assert_eq!(received.header("x-team"), Some("mill"));
        assert_golden(&format!("{}_settings", name(wire)), &received.json());
    }
}

#[tokio::test]
async fn without_a_key_no_credential_is_sent_and_extra_headers_win() {
    for wire in ALL {
        let received = sent(wire, &question(), |endpoint| endpoint.key = None).await;
        for credential in ["authorization", "x-api-key", "x-goog-api-key"] {
            assert_eq!(received.header(credential), None, "{wire:?}");
        }
        let received = sent(wire, &question(), |endpoint| {
            endpoint.settings.extra_headers.insert("Authorization".into(), "Custom abc".into());
        })
        .await;
        assert_eq!(received.header("authorization"), Some("Custom abc"), "{wire:?}");
    }
}

#[tokio::test]
async fn base_urls_work_with_and_without_their_usual_suffix() {
    let cases = [
        (WireProtocol::OpenAiChat, "/v1/", "/v1/chat/completions"),
        (WireProtocol::OpenAiResponses, "/v1", "/v1/responses"),
        (WireProtocol::Anthropic, "/v1/", "/v1/messages"),
        (WireProtocol::Anthropic, "/anthropic", "/anthropic/v1/messages"),
        (WireProtocol::Ollama, "/v1", "/api/chat"),
        (WireProtocol::Ollama, "/api/", "/api/chat"),
        (WireProtocol::Bedrock, "/", "/model/anthropic.claude-sonnet-4-6/converse-stream"),
    ];
    for (wire, end, expected) in cases {
        let received = sent(wire, &question(), |endpoint| endpoint.base_url += end).await;
        assert_eq!(received.line, format!("POST {expected} HTTP/1.1"));
    }
}

/// A longer conversation begins with the bytes of the shorter one, so that the provider's prompt cache works.
#[tokio::test]
async fn continued_conversations_begin_with_the_same_bytes() {
    for wire in ALL {
        let mut before = conversation();
        before.messages.truncate(5);
        before.tools.reverse();
        let mut after = conversation();
        after.messages.truncate(7);
        let turns = |received: &ReceivedRequest| {
            let mut body = received.json();
            let name = ["input", "contents", "messages"].into_iter().find(|name| body[*name].is_array());
            let turns = body[name.unwrap()].take();
            let mut turns = turns.as_array().unwrap().clone();
            // Cache markers are not part of the cached prefix.
            turns.iter_mut().filter_map(|turn| turn["content"].as_array_mut()).flatten().for_each(|block| {
                block.as_object_mut().unwrap().remove("cache_control");
            });
            let head = ["tools", "toolConfig", "system", "systemInstruction", "instructions"];
            (turns, head.map(|name| body[name].take()))
        };
        let (short, head) = turns(&sent(wire, &before, |_| ()).await);
        let (long, same_head) = turns(&sent(wire, &after, |_| ()).await);
        assert_eq!(head, same_head, "{wire:?}");
        assert_eq!(short, long[..short.len()], "{wire:?}");
    }
}

#[tokio::test]
async fn older_anthropic_models_get_a_thinking_budget_or_none() {
    let body = async |model: &str, effort: &str| {
        let change = |endpoint: &mut ModelEndpoint| {
            endpoint.model = model.into();
            endpoint.settings.reasoning_effort = Some(effort.into());
            endpoint.settings.temperature = Some(0.5);
        };
        sent(WireProtocol::Anthropic, &question(), change).await.json()
    };
    let budget = body("claude-sonnet-4-5", "medium").await;
    assert_eq!(budget["thinking"], json!({"type": "enabled", "budget_tokens": 8192}));
    assert_eq!((&budget["max_tokens"], &budget["temperature"]), (&json!(9192), &Value::Null));
    let adaptive = body("claude-opus-4-7", "xhigh").await;
    assert_eq!(adaptive["thinking"], json!({"type": "adaptive"}));
    assert_eq!(adaptive["output_config"], json!({"effort": "xhigh"}));
    let old = body("claude-3-5-haiku-latest", "high").await;
    assert_eq!((&old["thinking"], &old["temperature"]), (&Value::Null, &json!(0.5)));
    let off = body("claude-opus-4-8", "none").await;
    assert_eq!((&off["thinking"], &off["temperature"]), (&Value::Null, &Value::Null));
}

/// At Bedrock each maker's models have their own fields for reasoning.
#[tokio::test]
async fn reasoning_at_bedrock_depends_on_the_maker() {
    let body = async |model: &str, effort: Option<&str>| {
        let change = |endpoint: &mut ModelEndpoint| {
            endpoint.model = model.into();
            endpoint.settings.reasoning_effort = effort.map(str::to_owned);
            endpoint.settings.temperature = Some(0.5);
        };
        let mut body = sent(WireProtocol::Bedrock, &question(), change).await.json();
        (body["inferenceConfig"].take(), body["additionalModelRequestFields"].take())
    };
    let limits = json!({"maxTokens": 1000, "temperature": 0.5});
    let nova = |level: &str| {
        let config = json!({"type": "enabled", "maxReasoningEffort": level});
        json!({"inferenceConfig": {"reasoningConfig": config}})
    };
    assert_eq!(body("us.amazon.nova-2-lite-v1:0", None).await, (limits.clone(), Value::Null));
    assert_eq!(body("us.amazon.nova-2-lite-v1:0", Some("low")).await, (limits.clone(), nova("low")));
    assert_eq!(body("amazon.nova-2-lite-v1:0", Some("high")).await, (Value::Null, nova("high")));
    let effort = json!({"reasoning": {"effort": "low"}});
    assert_eq!(body("openai.gpt-oss-120b-1:0", Some("low")).await, (limits.clone(), effort));
    assert_eq!(body("meta.llama3-1-70b-instruct-v1:0", Some("low")).await, (limits, Value::Null));
    let budget = json!({"thinking": {"type": "enabled", "budget_tokens": 2048}});
    let older = body("us.anthropic.claude-sonnet-4-5-20250929-v1:0", Some("low")).await;
    assert_eq!(older, (json!({"maxTokens": 3048}), budget));
    let adaptive = json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}});
    let newer = body("anthropic.claude-opus-4-7", Some("high")).await;
    assert_eq!(newer, (json!({"maxTokens": 1000}), adaptive));
}

#[tokio::test]
async fn older_gemini_models_get_a_thinking_budget() {
    let thinking = async |model: &str, effort: &str| {
        let change = |endpoint: &mut ModelEndpoint| {
            endpoint.model = model.into();
            endpoint.settings.reasoning_effort = Some(effort.into());
        };
        let body = sent(WireProtocol::Gemini, &question(), change).await.json();
        body["generationConfig"]["thinkingConfig"].clone()
    };
    let budget = json!({"includeThoughts": true, "thinkingBudget": 8000});
    assert_eq!(thinking("gemini-2.5-pro", "medium").await, budget);
    let level = json!({"includeThoughts": true, "thinkingLevel": "MEDIUM"});
    assert_eq!(thinking("gemini-3.8-flash", "medium").await, level);
    assert_eq!(thinking("gemini-2.5-pro", "none").await, json!({"includeThoughts": true}));
}

#[tokio::test]
async fn deepseek_gets_a_switch_for_thinking() {
    let switch = async |effort: Option<&str>| {
        let change = |endpoint: &mut ModelEndpoint| {
            endpoint.dialect.has_thinking_switch = true;
            endpoint.settings.reasoning_effort = effort.map(str::to_owned);
        };
        let mut body = sent(WireProtocol::OpenAiChat, &question(), change).await.json();
        (body["thinking"].take(), body["reasoning_effort"].take())
    };
    assert_eq!(switch(None).await, (Value::Null, Value::Null));
    assert_eq!(switch(Some("high")).await, (json!({"type": "enabled"}), json!("high")));
    assert_eq!(switch(Some("none")).await, (json!({"type": "disabled"}), Value::Null));
}

#[tokio::test]
async fn reasoning_is_requested_from_reasoning_models_only() {
    for (model, is_requested) in
        [("gpt-4.1-mini", false), ("gpt-5-chat-latest", false), ("o4-mini", true), ("gpt-6", true)]
    {
        let received =
            sent(WireProtocol::OpenAiResponses, &question(), |endpoint| endpoint.model = model.into()).await;
        assert_eq!(received.json().get("include").is_some(), is_requested, "{model}");
    }
}

#[tokio::test]
async fn schemas_that_cannot_be_strict_are_sent_unchanged_or_omitted() {
    let mut request = question();
    let map = json!({"type": "object", "additionalProperties": {"type": "integer"}});
    request.answer =
        Some(millrace_models::model::AnswerSchema { name: "counts".into(), schema: map.clone() });
    let chat = sent(WireProtocol::OpenAiChat, &request, |_| ()).await.json();
    assert_eq!(
        chat["response_format"]["json_schema"],
        json!({"name": "counts", "strict": false, "schema": map})
    );
    let responses = sent(WireProtocol::OpenAiResponses, &request, |_| ()).await.json();
    assert_eq!(responses["text"]["format"]["strict"], json!(false));
    assert_eq!(sent(WireProtocol::Anthropic, &request, |_| ()).await.json()["output_config"], Value::Null);
    assert_eq!(sent(WireProtocol::Ollama, &request, |_| ()).await.json()["format"], map);
}

#[tokio::test]
async fn local_servers_get_bounds_and_optional_fields() {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["output"],
        "properties": {
            "output": {"type": "string", "maxLength": 900},
            "marks": {"type": "array", "maxItems": 8, "items": {"type": "string"}},
        },
    });
    let mut request = question();
    request.answer =
        Some(millrace_models::model::AnswerSchema { name: "findings".into(), schema: schema.clone() });
    let local =
        sent(WireProtocol::OpenAiChat, &request, |endpoint| endpoint.dialect.is_local = true).await.json();
    assert_eq!(local["response_format"]["json_schema"]["schema"], schema);
    assert_eq!(sent(WireProtocol::Ollama, &request, |_| ()).await.json()["format"], schema);
    let hosted = sent(WireProtocol::OpenAiChat, &request, |_| ()).await.json();
    let strict = &hosted["response_format"]["json_schema"]["schema"];
    assert_eq!(strict["required"], json!(["output", "marks"]));
    assert_eq!(strict["properties"]["marks"].get("maxItems"), None);
}

#[tokio::test]
async fn blank_texts_are_omitted_for_anthropic() {
    let mut request = question();
    request.messages.push(Message::Assistant { text: " ".into(), calls: vec![], provider_state: None });
    request.messages.push(Message::User { text: "Still there?".into() });
    let body = sent(WireProtocol::Anthropic, &request, |_| ()).await.json();
    let turns = body["messages"].as_array().unwrap();
    assert_eq!((turns.len(), &turns[0]["role"]), (1, &json!("user")), "{body:#}");
    assert_eq!(turns[0]["content"].as_array().unwrap().len(), 2, "{body:#}");
}

/// These APIs reject calls to undeclared tools, but the last request of an agent may offer no tools.
#[tokio::test]
async fn earlier_called_tools_are_declared_to_anthropic_and_bedrock() {
    let mut request = conversation();
    request.tools.clear();
    let body = sent(WireProtocol::Anthropic, &request, |_| ()).await.json();
    let tool = |name: &str| json!({"name": name, "input_schema": {"type": "object"}});
    assert_eq!(body["tools"], json!([tool("ls"), tool("read")]));
    assert_eq!(body["tool_choice"], json!({"type": "none"}));
    let body = sent(WireProtocol::Bedrock, &request, |_| ()).await.json();
    let tool = |name: &str| json!({"toolSpec": {"name": name, "inputSchema": {"json": {"type": "object"}}}});
    assert_eq!(body["toolConfig"]["tools"], json!([tool("ls"), tool("read")]));
}
