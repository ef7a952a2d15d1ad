//! What is asked, to the byte: method, path, headers and body. The bodies lie in `golden/`; `UPDATE_GOLDEN=1` writes
//! them anew.

use std::path::PathBuf;

use millrace_models::Settings;
use millrace_models::model::{Message, Request};
use millrace_models::wire::{Endpoint, Wire, connect};
use serde_json::{Value, json};

use crate::stub::{Seen, Stub, chunked};
use crate::wires::{ALL, KEY, content_type, conversation, endpoint, events, framed, path, question};

async fn sent(wire: Wire, request: &Request, change: impl Fn(&mut Endpoint)) -> Seen {
    let stub = Stub::new(chunked(content_type(wire), &[framed(wire, &events(wire)).as_bytes()])).await;
    let mut endpoint = endpoint(wire, &stub.url());
    change(&mut endpoint);
    connect(endpoint).reply(request, &()).await.unwrap();
    stub.only()
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

fn name(wire: Wire) -> &'static str {
    match wire {
        Wire::OpenAiChat => "openai_chat",
        Wire::OpenAiResponses => "openai_responses",
        Wire::Anthropic => "anthropic",
        Wire::Ollama => "ollama",
    }
}

#[tokio::test]
async fn the_method_the_path_and_the_headers_are_the_provider_s() {
    for wire in ALL {
        let seen = sent(wire, &question(), |_| ()).await;
        assert_eq!(seen.line, format!("POST {} HTTP/1.1", path(wire)), "{wire:?}");
        let mut names: Vec<&str> = seen.headers.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        let credential = if wire == Wire::Anthropic { "x-api-key" } else { "authorization" };
        let mut expected = vec![
            "accept",
            "accept-encoding",
            credential,
            "content-length",
            "content-type",
            "host",
            "user-agent",
        ];
        if wire == Wire::Anthropic {
            expected.push("anthropic-version");
            assert_eq!(seen.header("anthropic-version"), Some("2023-06-01"));
            assert_eq!(seen.header("x-api-key"), Some(KEY));
        } else {
            assert_eq!(seen.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
        }
        expected.sort_unstable();
        assert_eq!(names, expected, "{wire:?}");
        assert_eq!(seen.header("content-type"), Some("application/json"));
        assert!(seen.header("user-agent").unwrap().starts_with("millrace/"));
    }
}

#[tokio::test]
async fn the_body_of_a_conversation_with_everything_in_it_is_the_golden_one() {
    for wire in ALL {
        let seen = sent(wire, &conversation(), |_| ()).await;
        assert_golden(name(wire), &seen.json());
    }
}

#[tokio::test]
async fn settings_are_told_in_the_provider_s_words() {
    for wire in ALL {
        let mut request = question();
        request.tools.clear();
        let seen = sent(wire, &request, |endpoint| {
            endpoint.settings = Settings {
                temperature: Some(0.5),
                top_p: Some(0.9),
                max_output_tokens: Some(500),
                reasoning_effort: Some("high".into()),
                extra_body: json!({"metadata": {"a": 1}, "options": {"num_ctx": 4096}})
                    .as_object()
                    .unwrap()
                    .clone(),
                extra_headers: [("X-Team".to_owned(), "mill".to_owned())].into(),
                ..Settings::default()
            };
        })
        .await;
        assert_eq!(seen.header("x-team"), Some("mill"));
        assert_golden(&format!("{}_settings", name(wire)), &seen.json());
    }
}

#[tokio::test]
async fn without_a_key_no_credential_is_sent_and_a_header_of_the_settings_wins() {
    for wire in ALL {
        let seen = sent(wire, &question(), |endpoint| endpoint.key = None).await;
        assert_eq!((seen.header("authorization"), seen.header("x-api-key")), (None, None), "{wire:?}");
        let seen = sent(wire, &question(), |endpoint| {
            endpoint.settings.extra_headers.insert("Authorization".into(), "Custom abc".into());
        })
        .await;
        assert_eq!(seen.header("authorization"), Some("Custom abc"), "{wire:?}");
    }
}

#[tokio::test]
async fn addresses_are_understood_with_and_without_their_usual_ends() {
    let cases = [
        (Wire::OpenAiChat, "/v1/", "/v1/chat/completions"),
        (Wire::OpenAiResponses, "/v1", "/v1/responses"),
        (Wire::Anthropic, "/v1/", "/v1/messages"),
        (Wire::Anthropic, "/anthropic", "/anthropic/v1/messages"),
        (Wire::Ollama, "/v1", "/api/chat"),
        (Wire::Ollama, "/api/", "/api/chat"),
    ];
    for (wire, end, expected) in cases {
        let seen = sent(wire, &question(), |endpoint| endpoint.base_url += end).await;
        assert_eq!(seen.line, format!("POST {expected} HTTP/1.1"));
    }
}

/// A longer conversation begins with the bytes of the shorter one, so that a provider finds it in its cache.
#[tokio::test]
async fn a_conversation_that_goes_on_begins_with_the_same_bytes() {
    for wire in ALL {
        let mut before = conversation();
        before.messages.truncate(2);
        before.tools.reverse();
        let mut after = conversation();
        after.messages.truncate(4);
        let turns = |seen: &Seen| {
            let mut body = seen.json();
            let turns =
                if wire == Wire::OpenAiResponses { body["input"].take() } else { body["messages"].take() };
            let mut turns = turns.as_array().unwrap().clone();
            // Marks for the cache are no part of what is cached.
            turns.iter_mut().filter_map(|turn| turn["content"].as_array_mut()).flatten().for_each(|block| {
                block.as_object_mut().unwrap().remove("cache_control");
            });
            (turns, [body["tools"].take(), body["system"].take(), body["instructions"].take()])
        };
        let (short, head) = turns(&sent(wire, &before, |_| ()).await);
        let (long, same_head) = turns(&sent(wire, &after, |_| ()).await);
        assert_eq!(head, same_head, "{wire:?}");
        assert_eq!(short, long[..short.len()], "{wire:?}");
    }
}

#[tokio::test]
async fn anthropic_s_older_models_think_by_a_budget_and_the_oldest_not_at_all() {
    let body = async |model: &str, effort: &str| {
        let change = |endpoint: &mut Endpoint| {
            endpoint.model = model.into();
            endpoint.settings.reasoning_effort = Some(effort.into());
            endpoint.settings.temperature = Some(0.5);
        };
        sent(Wire::Anthropic, &question(), change).await.json()
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

#[tokio::test]
async fn openai_s_models_that_do_not_reason_are_not_asked_for_their_reasoning() {
    for (model, asked) in
        [("gpt-4.1-mini", false), ("gpt-5-chat-latest", false), ("o4-mini", true), ("gpt-6", true)]
    {
        let seen = sent(Wire::OpenAiResponses, &question(), |endpoint| endpoint.model = model.into()).await;
        assert_eq!(seen.json().get("include").is_some(), asked, "{model}");
    }
}

#[tokio::test]
async fn a_schema_that_can_t_be_strict_is_sent_as_it_is_or_left_to_others() {
    let mut request = question();
    let map = json!({"type": "object", "additionalProperties": {"type": "integer"}});
    request.answer =
        Some(millrace_models::model::AnswerSchema { name: "counts".into(), schema: map.clone() });
    let chat = sent(Wire::OpenAiChat, &request, |_| ()).await.json();
    assert_eq!(
        chat["response_format"]["json_schema"],
        json!({"name": "counts", "strict": false, "schema": map})
    );
    let responses = sent(Wire::OpenAiResponses, &request, |_| ()).await.json();
    assert_eq!(responses["text"]["format"]["strict"], json!(false));
    assert_eq!(sent(Wire::Anthropic, &request, |_| ()).await.json()["output_config"], Value::Null);
    assert_eq!(sent(Wire::Ollama, &request, |_| ()).await.json()["format"], map);
}

#[tokio::test]
async fn words_of_nothing_but_space_are_no_blocks_for_anthropic() {
    let mut request = question();
    request.messages.push(Message::Assistant { text: " ".into(), calls: vec![], keepsake: None });
    request.messages.push(Message::User { text: "Still there?".into() });
    let body = sent(Wire::Anthropic, &request, |_| ()).await.json();
    let turns = body["messages"].as_array().unwrap();
    assert_eq!((turns.len(), &turns[0]["role"]), (1, &json!("user")), "{body:#}");
    assert_eq!(turns[0]["content"].as_array().unwrap().len(), 2, "{body:#}");
}

/// Anthropic refuses calls in a conversation without their tools, and the last turn of an agent may call none.
#[tokio::test]
async fn tools_that_were_called_are_named_to_anthropic_though_none_may_be_called() {
    let mut request = conversation();
    request.tools.clear();
    let body = sent(Wire::Anthropic, &request, |_| ()).await.json();
    let tool = |name: &str| json!({"name": name, "input_schema": {"type": "object"}});
    assert_eq!(body["tools"], json!([tool("ls"), tool("read")]));
    assert_eq!(body["tool_choice"], json!({"type": "none"}));
}
