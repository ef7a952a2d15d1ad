//! Errors by status, body and header and inside a stream; none of them may contain an API key.

use std::time::Duration;

use std::sync::Arc;

use millrace_models::model::ModelError;
use millrace_models::wire::{WireProtocol, create_http_model};
use serde_json::{Value, json};

use super::stub::{Stub, StubAction, head, response};
use super::wires::{ALL, KEY, endpoint, error_for, events, question, reply_to, reply_to_events};

/// An error body in the format of the wire's provider.
fn body(wire: WireProtocol, code: &str, message: &str) -> Value {
    match wire {
        WireProtocol::OpenAiChat | WireProtocol::OpenAiResponses => {
            json!({"error": {"message": message, "type": "error", "code": code}})
        }
        WireProtocol::Anthropic => {
            json!({"type": "error", "error": {"type": code, "message": message}, "request_id": "req_1"})
        }
        WireProtocol::Gemini => json!({"error": {"message": message, "status": code}}),
        WireProtocol::Ollama => json!({ "error": message }),
        WireProtocol::Bedrock => json!({ "message": message }),
    }
}

fn kind(error: &ModelError) -> &'static str {
    match error {
        ModelError::RateLimited { .. } => "rate limited",
        ModelError::Overloaded { .. } => "overloaded",
        ModelError::ContextOverflow { .. } => "context overflow",
        ModelError::Authentication { .. } => "authentication",
        ModelError::Quota { .. } => "no quota",
        ModelError::Paused { .. } => "paused",
        ModelError::ContentFilter { .. } => "content filter",
        ModelError::Truncated { .. } => "truncated",
        ModelError::BadRequest { .. } => "bad request",
        ModelError::UnsupportedSetting { .. } => "unsupported setting",
        ModelError::Protocol { .. } => "protocol",
        ModelError::Timeout { .. } => "timeout",
        ModelError::Connection { .. } => "connection",
    }
}

#[tokio::test]
async fn statuses_and_bodies_map_to_error_kinds() {
    let cases = [
        (400, "invalid_request_error", "tools: wrong", "bad request"),
        (400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum", "context overflow"),
        (401, "authentication_error", "no", "authentication"),
        (403, "permission_error", "no", "authentication"),
        (404, "not_found_error", "no such model", "bad request"),
        (402, "", "pay first", "no quota"),
        (429, "insufficient_quota", "You exceeded your current quota", "no quota"),
        (413, "request_too_large", "too large", "context overflow"),
        (429, "rate_limit_error", "slow down", "rate limited"),
        (500, "api_error", "oops", "overloaded"),
        (502, "", "bad gateway", "overloaded"),
        (503, "", "away", "overloaded"),
        (529, "overloaded_error", "Overloaded", "overloaded"),
    ];
    for wire in ALL {
        for (status, code, message, expected) in cases {
            let error =
                error_for(wire, status, &[], &body(wire, code, message).to_string()).await.unwrap_err();
            assert_eq!(kind(&error), expected, "{wire:?}: {status}: {error:?}");
            assert!(error.to_string().contains(message), "{error}");
            let bare = reply_to(wire, response(status, &[], "")).await.unwrap_err();
            assert!(bare.to_string().contains(&status.to_string()), "{bare}");
        }
    }
}

#[tokio::test]
async fn the_requested_wait_is_returned() {
    for wire in ALL {
        let text = body(wire, "rate_limit_error", "slow down").to_string();
        let waited = async |name: &str, value: &str| match error_for(wire, 429, &[(name, value)], &text).await
        {
            Err(ModelError::RateLimited { retry_after, .. }) => retry_after,
            other => panic!("{wire:?}: {other:?}"),
        };
        assert_eq!(waited("retry-after", "7").await, Some(Duration::from_secs(7)));
        assert_eq!(waited("retry-after-ms", "1500").await, Some(Duration::from_millis(1500)));
        assert_eq!(waited("Retry-After", "Fri, 01 Jan 2010 00:00:00 GMT").await, Some(Duration::ZERO));
        assert_eq!(waited("x-other", "7").await, None);
    }
}

#[tokio::test]
async fn errors_inside_a_stream_are_errors() {
    let cases = [
        (
            WireProtocol::OpenAiChat,
            json!({"error": {"message": "gone", "code": "server_error"}}),
            "overloaded",
        ),
        (
            WireProtocol::OpenAiChat,
            json!({"error": {"message": "slow down", "code": 429}, "choices": [{"delta": {"content": ""}, "finish_reason": "error"}]}),
            "rate limited",
        ),
        (
            WireProtocol::OpenAiResponses,
            json!({"type": "error", "code": "rate_limit_exceeded", "message": "slow down", "param": null}),
            "rate limited",
        ),
        (
            WireProtocol::OpenAiResponses,
            json!({"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error", "message": "gone"}}}),
            "overloaded",
        ),
        (
            WireProtocol::OpenAiResponses,
            json!({"type": "response.failed", "response": {"error": {"code": "context_length_exceeded", "message": "too long"}}}),
            "context overflow",
        ),
        (
            WireProtocol::Anthropic,
            json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
            "overloaded",
        ),
        (
            WireProtocol::Anthropic,
            json!({"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}),
            "rate limited",
        ),
        (
            WireProtocol::Ollama,
            json!({"error": "an error was encountered while running the model"}),
            "overloaded",
        ),
        (
            WireProtocol::Gemini,
            json!({"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}),
            "rate limited",
        ),
        (WireProtocol::Gemini, json!({"promptFeedback": {"blockReason": "SAFETY"}}), "content filter"),
        (
            WireProtocol::Bedrock,
            json!({"throttlingException": {"message": "Too many requests"}}),
            "rate limited",
        ),
        (WireProtocol::Bedrock, json!({"modelStreamErrorException": {"message": "gone"}}), "overloaded"),
        (
            WireProtocol::Bedrock,
            json!({"validationException": {"message": "Input is too long for requested model."}}),
            "context overflow",
        ),
        (
            WireProtocol::Bedrock,
            json!({"messageStop": {"stopReason": "model_context_window_exceeded"}}),
            "context overflow",
        ),
    ];
    for (wire, event, expected) in cases {
        let mut all = events(wire)[..4].to_vec();
        all.push(event.clone());
        let error = reply_to_events(wire, &all).await.unwrap_err();
        assert_eq!(kind(&error), expected, "{wire:?}: {event}: {error:?}");
    }
}

#[tokio::test]
async fn an_error_with_a_status_of_success_is_an_error() {
    for wire in ALL {
        let text = body(wire, "overloaded_error", "Overloaded, come back later").to_string();
        for kind in ["application/json", "text/event-stream"] {
            let error = reply_to(wire, response(200, &[("content-type", kind)], &text)).await.unwrap_err();
            assert!(
                matches!(&error, ModelError::Overloaded { message, .. } if message.contains("come back")),
                "{wire:?}: {error:?}"
            );
        }
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    for wire in ALL {
        for status in [301, 302, 303, 307, 308] {
            let other = Stub::new(response(200, &[], "")).await;
            let to = format!("{}/v1?key={KEY}", other.url());
            let error = reply_to(wire, response(status, &[("location", &to)], "")).await.unwrap_err();
            let ModelError::Protocol { message } = &error else { panic!("{wire:?}: {error:?}") };
            assert!(message.contains(&other.address.to_string()) && !message.contains(KEY), "{message}");
            assert!(other.seen().is_empty(), "{wire:?}: {status}");
        }
    }
}

#[tokio::test]
async fn errors_never_contain_the_api_key() {
    let quoted = format!(
        "Incorrect API key provided: {KEY}. Header was Authorization: Bearer {KEY}; also sk-other-99999999."
    );
    for wire in ALL {
        let mut actions = vec![
            response(401, &[], &quoted),
            response(200, &[], &quoted),
            response(200, &[("content-type", "text/html")], format!("<p>{quoted}")),
        ];
        actions.push(response(429, &[], body(wire, "rate_limit_error", &quoted).to_string()));
        actions.push(response(
            200,
            &[("content-type", "application/json")],
            body(wire, "api_error", &quoted).to_string(),
        ));
        actions.push(response(
            200,
            &[],
            if wire == WireProtocol::Ollama {
                format!("{{\"a\": {KEY}")
            } else {
                format!("data: {{{KEY}\n\n")
            },
        ));
        actions.push(vec![StubAction::Send(head(200, &[(KEY, KEY)]))]);
        for actions in actions {
            let error = reply_to(wire, actions).await.unwrap_err();
            let shown = format!("{error} {error:?} {}", serde_json::to_string(&error).unwrap());
            assert!(!shown.contains("0123456789") && !shown.contains("sk-other"), "{wire:?}: {shown}");
        }
    }
}

#[tokio::test]
async fn a_key_that_fits_no_header_is_not_shown() {
    for wire in ALL {
        let mut endpoint = endpoint(wire, "http://127.0.0.1:9");
        endpoint.key = Some("line\none-secret-12345".into());
        let error = create_http_model(endpoint, Arc::default()).reply(&question(), &()).await.unwrap_err();
        assert!(matches!(error, ModelError::BadRequest { .. }), "{error:?}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
}

/// The body of an error response may be endless.
#[tokio::test]
async fn endless_error_bodies_are_cut() {
    for wire in ALL {
        let mut actions = vec![StubAction::Send(head(500, &[("content-type", "text/plain")]))];
        actions.extend(std::iter::repeat_n(StubAction::Send("word ".repeat(10_000).into_bytes()), 400));
        actions.push(StubAction::AwaitClose);
        let error = reply_to(wire, actions).await.unwrap_err();
        assert_eq!(kind(&error), "overloaded");
        assert!(error.to_string().len() < 1_200, "{}", error.to_string().len());
    }
}
