//! Broken connections, endless streams, and responses that are not replies.

use std::time::{Duration, Instant};

use std::sync::Arc;

use millrace_models::model::ModelError;
use millrace_models::wire::{WireProtocol, create_http_model};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::stub::{Stub, StubAction, chunked, chunked_keep_alive, head, response, unterminated};
use super::wires::{
    ALL, SSE, TEXT, content_type, endpoint, events, expected, framed, question, reply_to, reply_to_events,
    stream_bytes,
};

#[track_caller]
fn assert_truncated(wire: WireProtocol, what: &str, actual: Result<millrace_models::Reply, ModelError>) {
    assert!(matches!(actual, Err(ModelError::Truncated { .. })), "{wire:?}: {what}: {actual:?}");
}

#[tokio::test]
async fn a_refused_connection_is_a_connection_error() {
    for wire in ALL {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let gone = format!("http://{}", free.local_addr().unwrap());
        drop(free);
        let error = create_http_model(endpoint(wire, &gone), Arc::default())
            .reply(&question(), &())
            .await
            .unwrap_err();
        assert!(
            matches!(&error, ModelError::Connection { message } if message.contains("refused")),
            "{error:?}"
        );
        let unknown = create_http_model(endpoint(wire, "http://nobody.invalid"), Arc::default())
            .reply(&question(), &())
            .await
            .unwrap_err();
        assert!(matches!(unknown, ModelError::Connection { .. }), "{unknown:?}");
        let none = create_http_model(endpoint(wire, "not an address"), Arc::default())
            .reply(&question(), &())
            .await
            .unwrap_err();
        assert!(matches!(none, ModelError::BadRequest { .. }), "{none:?}");
    }
}

#[tokio::test]
async fn plain_http_at_an_https_address_is_a_connection_error() {
    let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let secure = format!("https://{}", plain.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = plain.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    let error = create_http_model(endpoint(WireProtocol::OpenAiChat, &secure), Arc::default())
        .reply(&question(), &())
        .await
        .unwrap_err();
    assert!(matches!(error, ModelError::Connection { .. }), "{error:?}");
}

#[tokio::test]
async fn a_connection_closed_before_the_body_is_a_connection_error() {
    for wire in ALL {
        let begun = head(200, &[("content-type", content_type(wire))])[..20].to_vec();
        for actions in [
            vec![],
            vec![StubAction::Reset],
            vec![StubAction::Send(begun.clone())],
            vec![StubAction::Send(begun), StubAction::Reset],
        ] {
            let error = reply_to(wire, actions.clone()).await.unwrap_err();
            assert!(matches!(error, ModelError::Connection { .. }), "{wire:?}: {actions:?}: {error:?}");
        }
    }
}

#[tokio::test]
async fn a_connection_closed_in_the_body_means_truncated() {
    for wire in TEXT {
        let text = framed(wire, &events(wire));
        let middle = text.find("wörld").unwrap() + 2;
        let kind = content_type(wire);
        let none = unterminated(kind, &[]);
        let half = unterminated(kind, &[&text.as_bytes()[..middle]]);
        let reset: Vec<StubAction> = half
            .iter()
            .cloned()
            .chain([StubAction::Pause(Duration::from_millis(20)), StubAction::Reset])
            .collect();
        let long = vec![
            StubAction::Send(head(200, &[("content-type", kind), ("content-length", "100000")])),
            half[1].clone(),
        ];
        for (what, actions) in
            [("headers only", none), ("in an event", half), ("reset", reset), ("too short", long)]
        {
            assert_truncated(wire, what, reply_to(wire, actions).await);
        }
    }
}

/// A stream that ends regularly, but without the event with the finish reason.
#[tokio::test]
async fn a_stream_without_finish_reason_is_truncated() {
    for wire in TEXT {
        let all = events(wire);
        let ends = match wire {
            WireProtocol::OpenAiChat | WireProtocol::Anthropic => 2,
            WireProtocol::OpenAiResponses | WireProtocol::Gemini | WireProtocol::Ollama => 1,
            WireProtocol::Bedrock => 2,
        };
        for count in 0..=all.len() - ends {
            let text = framed(wire, &all[..count]).replace("data: [DONE]\n\n", "");
            if count == all.len() - ends && wire != WireProtocol::OpenAiChat || count < all.len() - ends {
                assert_truncated(
                    wire,
                    &format!("{count} events"),
                    reply_to(wire, chunked(content_type(wire), &[text.as_bytes()])).await,
                );
            }
        }
    }
}

#[tokio::test]
async fn a_stream_that_breaks_after_the_finish_reason_is_a_reply() {
    for wire in [WireProtocol::OpenAiChat, WireProtocol::Anthropic] {
        let all = events(wire);
        let text = framed(wire, &all[..all.len() - 1]).replace("data: [DONE]\n\n", "");
        let mut actions = unterminated(content_type(wire), &[text.as_bytes()]);
        actions.extend([StubAction::Pause(Duration::from_millis(20)), StubAction::Reset]);
        let reply = reply_to(wire, actions).await.unwrap();
        assert_eq!((reply.text, reply.calls.len()), (expected(wire).text, 2), "{wire:?}");
    }
}

#[tokio::test]
async fn idle_streams_time_out_unless_they_send_keep_alives() {
    for wire in TEXT {
        let text = framed(wire, &events(wire));
        let half = unterminated(content_type(wire), &[&text.as_bytes()[..text.len() / 2]]);
        let stub = Stub::new([half.clone(), vec![StubAction::AwaitClose]].concat()).await;
        let mut endpoint = endpoint(wire, &stub.url());
        endpoint.settings.idle_timeout = Some(0.3);
        let begun = Instant::now();
        let error =
            create_http_model(endpoint.clone(), Arc::default()).reply(&question(), &()).await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains("timed out"), "{wire:?}: {error:?}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{wire:?}: {:?}", begun.elapsed());
        stub.client_disconnected().await;

        // A keep-alive every 100 ms, for longer than the idle timeout.
        let alive = if wire == WireProtocol::Ollama { "\n" } else { ": still here\n\n" };
        let sign = format!("{:x}\r\n{alive}\r\n", alive.len()).into_bytes();
        let signs =
            std::iter::repeat_n([StubAction::Pause(Duration::from_millis(100)), StubAction::Send(sign)], 6)
                .flatten();
        let cut = text.find(if wire == WireProtocol::Ollama { "\n" } else { "\n\n" }).unwrap();
        let (first, rest) = text.split_at(cut + if wire == WireProtocol::Ollama { 1 } else { 2 });
        let mut actions = unterminated(content_type(wire), &[first.as_bytes()]);
        actions.extend(signs);
        let last = format!("{:x}\r\n{rest}\r\n0\r\n\r\n", rest.len()).into_bytes();
        actions.push(StubAction::Send(last));
        let stub = Stub::new(actions).await;
        endpoint.base_url = stub.url();
        let reply = create_http_model(endpoint, Arc::default()).reply(&question(), &()).await.unwrap();
        assert_eq!(reply.text, expected(wire).text, "{wire:?}");
    }
}

#[tokio::test]
async fn an_html_page_is_reported_as_one() {
    let page = "<!DOCTYPE html>\n<html><head><title>Sign in to the proxy</title></head><body>…</body></html>";
    for wire in ALL {
        for kind in ["text/html", content_type(wire), "application/json"] {
            let error = reply_to(wire, response(200, &[("content-type", kind)], page)).await.unwrap_err();
            let ModelError::Truncated { message } = &error else { panic!("{wire:?} {kind}: {error:?}") };
            assert!(error.is_transient(), "a gateway's page is an outage");
            assert!(message.contains("Sign in to the proxy"), "{message}");
            assert!(message.contains("base URL"), "{message}");
        }
    }
}

#[tokio::test]
async fn other_bodies_are_reported_as_what_they_are() {
    for wire in ALL {
        let plain = reply_to(wire, response(200, &[("content-type", "text/plain")], "upstream is away"))
            .await
            .unwrap_err();
        assert!(
            matches!(&plain, ModelError::Truncated { message } if message.contains("upstream is away")),
            "{plain:?}"
        );
        assert_truncated(
            wire,
            "nothing",
            reply_to(wire, response(200, &[("content-type", content_type(wire))], "")).await,
        );
        for json in ["{\"hello\":1}", "[]", "[1]", "null", "true", "\"maintenance\"", "503"] {
            let other = reply_to(wire, response(200, &[("content-type", "application/json")], json)).await;
            assert_truncated(wire, json, other);
        }
    }
    for wire in SSE {
        let cut =
            reply_to(wire, response(200, &[("content-type", "application/json")], "{\"choices\":[{\"mess"))
                .await;
        assert_truncated(wire, "truncated JSON", cut);
    }
}

#[tokio::test]
async fn events_that_are_not_json_or_utf8_are_errors_at_once() {
    for wire in TEXT {
        let broken: &[u8] = if wire == WireProtocol::Ollama {
            b"{\"message\": nonsense}\n"
        } else {
            b"data: {\"type\": nonsense}\n\n"
        };
        let error = reply_to(wire, chunked(content_type(wire), &[broken])).await.unwrap_err();
        assert!(
            matches!(&error, ModelError::Protocol { message } if message.contains("nonsense") && message.contains("line 1 column")),
            "{wire:?}: {error:?}"
        );
        let bytes: &[u8] = if wire == WireProtocol::Ollama {
            b"{\"a\":\"\xff\xfe\"}\n"
        } else {
            b"data: {\"a\":\"\xff\xfe\"}\n\n"
        };
        let error = reply_to(wire, chunked(content_type(wire), &[bytes])).await.unwrap_err();
        assert!(
            matches!(&error, ModelError::Protocol { message } if message.contains("UTF-8")),
            "{wire:?}: {error:?}"
        );
    }
}

/// Half a character is a replacement character, in text and in arguments; the halves of a character in two events are joined, also if
/// they are encoded as three bytes each, and wherever the chunks end.
#[tokio::test]
async fn halves_of_characters_are_replaced_or_joined() {
    for wire in TEXT {
        let text = framed(wire, &events(wire));
        let replaced = text.replace("wörld", "w\\ud83drld");
        let whole = reply_to(wire, chunked(content_type(wire), &[replaced.as_bytes()])).await;
        assert_eq!(whole.unwrap().text, "Hello w\u{fffd}rld", "{wire:?}");
        let raw: Vec<u8> = text.split("wörld").collect::<Vec<_>>().join("w\u{1}rld").into_bytes();
        let raw: Vec<u8> =
            raw.split(|byte| *byte == 1).collect::<Vec<_>>().join(&b"\xED\xA0\xBD\xED\xB8\x80"[..]);
        let bytes: Vec<&[u8]> = raw.chunks(1).collect();
        let joined = reply_to(wire, chunked(content_type(wire), &bytes)).await;
        assert_eq!(joined.unwrap().text, "Hello w\u{1f600}rld", "{wire:?}");
    }
    let delta =
        |text: &str| format!("data: {{\"choices\": [{{\"delta\": {{\"content\": \"{text}\"}}}}]}}\n\n");
    let end = "data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"stop\"}]}\n\ndata: [DONE]\n\n";
    for (pieces, expected) in [
        (&["a \\ud83d", "\\ude00 b"][..], "a \u{1f600} b"),
        (&["a \\ud83d", "", "\\ude00\\ud83d", "\\ude01"], "a \u{1f600}\u{1f601}"),
        (&["a \\ud83d", " b"], "a \u{fffd} b"),
        (&["a \\ud83d"], "a \u{fffd}"),
        (&["\\ude00", "\\ud83d"], "\u{fffd}\u{fffd}"),
    ] {
        let stream: String = pieces.iter().map(|text| delta(text)).collect();
        let actions = chunked("text/event-stream", &[stream.as_bytes(), end.as_bytes()]);
        assert_eq!(reply_to(WireProtocol::OpenAiChat, actions).await.unwrap().text, expected, "{pieces:?}");
    }
}

#[tokio::test]
async fn an_endless_event_is_a_protocol_error() {
    for wire in TEXT {
        let start: &[u8] = if wire == WireProtocol::Ollama { b"{\"a\":\"" } else { b"data: {\"a\":\"" };
        let flood = vec![b'x'; 1 << 20];
        let pieces: Vec<&[u8]> = std::iter::once(start).chain(std::iter::repeat_n(&flood[..], 12)).collect();
        let error = reply_to(wire, chunked(content_type(wire), &pieces)).await.unwrap_err();
        assert!(
            matches!(&error, ModelError::Protocol { message } if message.contains("8 MiB")),
            "{wire:?}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_large_event_is_parsed_quickly() {
    let words = "x".repeat(4 << 20);
    let event = json!({"choices": [{"delta": {"content": words}, "finish_reason": "stop"}]});
    let text = framed(WireProtocol::OpenAiChat, &[event]);
    let pieces: Vec<&[u8]> = text.as_bytes().chunks(16 << 10).collect();
    let begun = Instant::now();
    let reply = reply_to(WireProtocol::OpenAiChat, chunked("text/event-stream", &pieces)).await.unwrap();
    assert_eq!(reply.text.len(), 4 << 20);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn keep_alives_do_not_extend_the_request_timeout() {
    for wire in TEXT {
        let line: &[u8] = if wire == WireProtocol::Ollama { b"\n" } else { b": keep-alive\n\n" };
        let mut actions = unterminated(content_type(wire), &[line]);
        let again = actions[1].clone();
        actions.extend(
            std::iter::repeat_n([StubAction::Pause(Duration::from_millis(20)), again], 100).flatten(),
        );
        let silent = vec![StubAction::AwaitClose];
        for actions in [actions, silent] {
            let stub = Stub::new(actions).await;
            let mut endpoint = endpoint(wire, &stub.url());
            endpoint.settings.timeout = Some(0.2);
            let error =
                create_http_model(endpoint, Arc::default()).reply(&question(), &()).await.unwrap_err();
            assert_eq!(error, ModelError::Timeout { after: Duration::from_millis(200) }, "{wire:?}");
        }
    }
}

#[tokio::test]
async fn cancelling_a_request_closes_the_connection() {
    for wire in TEXT {
        let text = framed(wire, &events(wire)[..2]);
        let mut actions =
            unterminated(content_type(wire), &[text.replace("data: [DONE]\n\n", "").as_bytes()]);
        actions.push(StubAction::AwaitClose);
        let stub = Stub::new(actions).await;
        let model = create_http_model(endpoint(wire, &stub.url()), Arc::default());
        let request = question();
        let reply_to = model.reply(&request, &());
        assert!(tokio::time::timeout(Duration::from_millis(200), reply_to).await.is_err());
        stub.client_disconnected().await;
    }
}

#[tokio::test]
async fn connections_are_reused_after_a_reply() {
    for wire in ALL {
        let response = chunked_keep_alive(content_type(wire), &stream_bytes(wire, &events(wire)));
        let twice =
            [response.clone(), vec![StubAction::Next], response, vec![StubAction::AwaitClose]].concat();
        let stub = Stub::in_turn(vec![twice, vec![]]).await;
        let model = create_http_model(endpoint(wire, &stub.url()), Arc::default());
        for _ in 0..2 {
            model.reply(&question(), &()).await.unwrap_or_else(|error| panic!("{wire:?}: {error}"));
        }
        assert_eq!(stub.seen().len(), 2, "{wire:?}");
    }
}

/// Runs in its own process because the environment is read once: no certificate authorities, and an unreachable proxy.
#[tokio::test]
async fn without_certificate_authorities_http_works_and_https_explains() {
    if std::env::var_os("MILLRACE_TEST_CHILD").is_none() {
        let name = "conformance::breaks::without_certificate_authorities_http_works_and_https_explains";
        let mut child = tokio::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", name, "--nocapture"]).env("MILLRACE_TEST_CHILD", "1");
        child.env("SSL_CERT_FILE", "/nonexistent").env("SSL_CERT_DIR", "/nonexistent");
        child.env("http_proxy", "http://192.0.2.1:9").env("HTTPS_PROXY", "http://192.0.2.1:9");
        let output = child.output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let (_stub, model) = super::wires::streaming(WireProtocol::OpenAiChat).await;
    assert_eq!(
        model.reply(&question(), &()).await.unwrap().text,
        "Hello wörld",
        "loopback must not use a proxy"
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let secure = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { drop(listener.accept().await) });
    let error = create_http_model(endpoint(WireProtocol::OpenAiChat, &secure), Arc::default())
        .reply(&question(), &())
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ModelError::Connection { message } if message.contains("ca-certificates")),
        "{error:?}"
    );
}

#[tokio::test]
async fn token_limits_and_content_filters_are_finish_reasons() {
    use millrace_models::model::FinishReason;
    let chat =
        |reason: &str| vec![json!({"choices": [{"delta": {"content": "x"}, "finish_reason": reason}]})];
    let responses = |reason: &str| {
        vec![
            json!({"type": "response.output_text.delta", "output_index": 0, "delta": "x"}),
            json!({"type": "response.incomplete", "response": {"status": "incomplete", "incomplete_details": {"reason": reason}}}),
        ]
    };
    let anthropic = |reason: &str| {
        vec![
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "x"}}),
            json!({"type": "message_delta", "delta": {"stop_reason": reason}}),
            json!({"type": "message_stop"}),
        ]
    };
    let ollama =
        |reason: &str| vec![json!({"message": {"content": "x"}, "done": true, "done_reason": reason})];
    let gemini = |reason: &str| {
        vec![json!({"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": reason}]})]
    };
    let bedrock = |reason: &str| {
        vec![
            json!({"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "x"}}}),
            json!({"messageStop": {"stopReason": reason}}),
            json!({"metadata": {"usage": {"inputTokens": 1, "outputTokens": 1}}}),
        ]
    };
    let cases = [
        (WireProtocol::OpenAiChat, chat("length"), FinishReason::Length),
        (WireProtocol::OpenAiChat, chat("content_filter"), FinishReason::ContentFilter),
        (WireProtocol::OpenAiResponses, responses("max_output_tokens"), FinishReason::Length),
        (WireProtocol::OpenAiResponses, responses("content_filter"), FinishReason::ContentFilter),
        (WireProtocol::Anthropic, anthropic("max_tokens"), FinishReason::Length),
        (WireProtocol::Anthropic, anthropic("refusal"), FinishReason::ContentFilter),
        (WireProtocol::Anthropic, anthropic("end_turn"), FinishReason::Stop),
        (WireProtocol::Ollama, ollama("length"), FinishReason::Length),
        (WireProtocol::OpenAiChat, chat("MAX_TOKENS"), FinishReason::Length),
        (WireProtocol::OpenAiChat, chat("output_limit_reached"), FinishReason::Length),
        (WireProtocol::OpenAiChat, chat("end_turn"), FinishReason::Stop),
        (WireProtocol::OpenAiResponses, responses("max_tool_tokens"), FinishReason::Length),
        (WireProtocol::Anthropic, anthropic("MAX_TOKENS"), FinishReason::Length),
        (WireProtocol::Anthropic, anthropic("content_filter"), FinishReason::ContentFilter),
        (WireProtocol::Ollama, ollama("Length"), FinishReason::Length),
        (WireProtocol::Gemini, gemini("max_tokens"), FinishReason::Length),
        (WireProtocol::Gemini, gemini("BLOCKED_BY_ADMIN"), FinishReason::ContentFilter),
        (WireProtocol::Bedrock, bedrock("maxTokens"), FinishReason::Length),
        (WireProtocol::Bedrock, bedrock("length"), FinishReason::Length),
    ];
    for (wire, events, finish) in cases {
        let reply = reply_to_events(wire, &events).await.unwrap();
        assert_eq!(
            (reply.text.as_str(), reply.finish, reply.provider_state),
            ("x", finish, None),
            "{wire:?}"
        );
    }
    let cut = [
        json!({"type": "response.output_text.delta", "output_index": 1, "delta": "half a sen"}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": {"type": "reasoning"}}),
        json!({"type": "response.incomplete", "response": {"output": [], "incomplete_details": {"reason": "max_output_tokens"}}}),
    ];
    let half = reply_to_events(WireProtocol::OpenAiResponses, &cut).await.unwrap();
    assert_eq!((half.text.as_str(), half.provider_state), ("half a sen", None));
    let window = "model_context_window_exceeded";
    for (wire, events) in [
        (WireProtocol::Anthropic, anthropic(window)),
        (WireProtocol::OpenAiChat, chat(window)),
        (WireProtocol::Bedrock, bedrock(window)),
    ] {
        let full = reply_to_events(wire, &events).await;
        assert!(matches!(full, Err(ModelError::ContextOverflow { .. })), "{full:?}");
    }
    for (wire, events) in [
        (WireProtocol::OpenAiChat, chat("error")),
        (WireProtocol::OpenAiChat, chat("abort")),
        (WireProtocol::Gemini, gemini("server_error")),
        (WireProtocol::Ollama, ollama("cancelled")),
    ] {
        let error = reply_to_events(wire, &events).await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains("ended the reply early"), "{error:?}");
    }
}

/// The arguments of a call may be valid although the reply was cut off; its finish reason stays.
#[tokio::test]
async fn a_cut_reply_keeps_its_finish_reason_with_calls() {
    use millrace_models::model::FinishReason;
    for (wire, path, reason) in [
        (WireProtocol::OpenAiChat, "/choices/0/finish_reason", "Length"),
        (WireProtocol::Anthropic, "/delta/stop_reason", "max_tokens"),
        (WireProtocol::Ollama, "/done_reason", "LENGTH"),
        (WireProtocol::Gemini, "/candidates/0/finishReason", "MAX_TOKENS"),
        (WireProtocol::Bedrock, "/messageStop/stopReason", "max_tokens"),
        (WireProtocol::OpenAiResponses, "/response/status", "incomplete"),
    ] {
        let mut events = events(wire);
        let reasons = events.iter_mut().filter_map(|event| event.pointer_mut(path));
        reasons.filter(|old| old.is_string() && *old != "in_progress").for_each(|old| *old = json!(reason));
        if wire == WireProtocol::OpenAiResponses {
            events.last_mut().unwrap()["response"]["incomplete_details"] =
                json!({"reason": "max_output_tokens"});
        }
        let reply = reply_to_events(wire, &events).await.unwrap();
        assert_eq!((reply.finish, reply.calls.len()), (FinishReason::Length, 2), "{wire:?}");
    }
}
