//! Connections that break, streams that never end, and answers that are none.

use std::time::{Duration, Instant};

use millrace_models::model::ModelError;
use millrace_models::wire::{Wire, connect};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::stub::{Act, Stub, answer, chunked, cut_short, head, kept_open};
use crate::wires::{ALL, SSE, asked, content_type, endpoint, events, expected, framed, question, told};

#[track_caller]
fn assert_truncated(wire: Wire, what: &str, found: Result<millrace_models::Reply, ModelError>) {
    assert!(matches!(found, Err(ModelError::Truncated { .. })), "{wire:?}: {what}: {found:?}");
}

#[tokio::test]
async fn nobody_at_the_address_is_an_error_of_the_connection() {
    for wire in ALL {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let gone = format!("http://{}", free.local_addr().unwrap());
        drop(free);
        let error = connect(endpoint(wire, &gone)).reply(&question(), &()).await.unwrap_err();
        assert!(
            matches!(&error, ModelError::Connection { message } if message.contains("refused")),
            "{error:?}"
        );
        let unknown =
            connect(endpoint(wire, "http://nobody.invalid")).reply(&question(), &()).await.unwrap_err();
        assert!(matches!(unknown, ModelError::Connection { .. }), "{unknown:?}");
        let none = connect(endpoint(wire, "not an address")).reply(&question(), &()).await.unwrap_err();
        assert!(matches!(none, ModelError::BadRequest { .. }), "{none:?}");
    }
}

#[tokio::test]
async fn a_plain_server_at_a_secure_address_is_an_error_of_the_connection() {
    let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let secure = format!("https://{}", plain.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = plain.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    let error = connect(endpoint(Wire::OpenAiChat, &secure)).reply(&question(), &()).await.unwrap_err();
    assert!(matches!(error, ModelError::Connection { .. }), "{error:?}");
}

#[tokio::test]
async fn a_connection_cut_before_or_in_the_headers_is_an_error_of_the_connection() {
    for wire in ALL {
        let begun = head(200, &[("content-type", content_type(wire))])[..20].to_vec();
        for acts in
            [vec![], vec![Act::Reset], vec![Act::Send(begun.clone())], vec![Act::Send(begun), Act::Reset]]
        {
            let error = asked(wire, acts.clone()).await.unwrap_err();
            assert!(matches!(error, ModelError::Connection { .. }), "{wire:?}: {acts:?}: {error:?}");
        }
    }
}

#[tokio::test]
async fn a_reply_that_breaks_off_after_the_headers_is_truncated() {
    for wire in ALL {
        let text = framed(wire, &events(wire));
        let middle = text.find("wörld").unwrap() + 2;
        let kind = content_type(wire);
        let none = cut_short(kind, &[]);
        let half = cut_short(kind, &[&text.as_bytes()[..middle]]);
        let reset: Vec<Act> =
            half.iter().cloned().chain([Act::Pause(Duration::from_millis(20)), Act::Reset]).collect();
        let long = vec![
            Act::Send(head(200, &[("content-type", kind), ("content-length", "100000")])),
            half[1].clone(),
        ];
        for (what, acts) in
            [("headers only", none), ("in an event", half), ("reset", reset), ("too short", long)]
        {
            assert_truncated(wire, what, asked(wire, acts).await);
        }
    }
}

/// A stream that ends as if all were well, but without the event that says so.
#[tokio::test]
async fn a_stream_without_its_end_is_truncated_wherever_it_ends() {
    for wire in ALL {
        let all = events(wire);
        let ends = match wire {
            Wire::OpenAiChat | Wire::Anthropic => 2,
            Wire::OpenAiResponses | Wire::Ollama => 1,
        };
        for kept in 0..=all.len() - ends {
            let text = framed(wire, &all[..kept]).replace("data: [DONE]\n\n", "");
            if kept == all.len() - ends && wire != Wire::OpenAiChat || kept < all.len() - ends {
                assert_truncated(
                    wire,
                    &format!("{kept} events"),
                    asked(wire, chunked(content_type(wire), &[text.as_bytes()])).await,
                );
            }
        }
    }
}

#[tokio::test]
async fn a_reply_that_was_whole_before_its_stream_broke_is_a_reply() {
    for wire in [Wire::OpenAiChat, Wire::Anthropic] {
        let all = events(wire);
        let text = framed(wire, &all[..all.len() - 1]).replace("data: [DONE]\n\n", "");
        let mut acts = cut_short(content_type(wire), &[text.as_bytes()]);
        acts.extend([Act::Pause(Duration::from_millis(20)), Act::Reset]);
        let reply = asked(wire, acts).await.unwrap();
        assert_eq!((reply.text, reply.calls.len()), (expected(wire).text, 2), "{wire:?}");
    }
}

#[tokio::test]
async fn a_stream_that_falls_silent_is_broken_and_one_that_says_that_it_lives_is_not() {
    for wire in ALL {
        let text = framed(wire, &events(wire));
        let half = cut_short(content_type(wire), &[&text.as_bytes()[..text.len() / 2]]);
        let stub = Stub::new([half.clone(), vec![Act::AwaitClose]].concat()).await;
        let mut endpoint = endpoint(wire, &stub.url());
        endpoint.settings.idle_timeout = Some(0.3);
        let begun = Instant::now();
        let error = connect(endpoint.clone()).reply(&question(), &()).await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains("fell silent"), "{wire:?}: {error:?}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{wire:?}: {:?}", begun.elapsed());
        stub.client_went().await;

        // A sign of life each 100 ms, for longer than the patience.
        let alive = if wire == Wire::Ollama { "\n" } else { ": still here\n\n" };
        let sign = format!("{:x}\r\n{alive}\r\n", alive.len()).into_bytes();
        let signs =
            std::iter::repeat_n([Act::Pause(Duration::from_millis(100)), Act::Send(sign)], 6).flatten();
        let cut = text.find(if wire == Wire::Ollama { "\n" } else { "\n\n" }).unwrap();
        let (first, rest) = text.split_at(cut + if wire == Wire::Ollama { 1 } else { 2 });
        let mut acts = cut_short(content_type(wire), &[first.as_bytes()]);
        acts.extend(signs);
        let last = format!("{:x}\r\n{rest}\r\n0\r\n\r\n", rest.len()).into_bytes();
        acts.push(Act::Send(last));
        let stub = Stub::new(acts).await;
        endpoint.base_url = stub.url();
        let reply = connect(endpoint).reply(&question(), &()).await.unwrap();
        assert_eq!(reply.text, expected(wire).text, "{wire:?}");
    }
}

#[tokio::test]
async fn a_page_in_place_of_an_answer_is_told_as_one() {
    let page = "<!DOCTYPE html>\n<html><head><title>Sign in to the proxy</title></head><body>…</body></html>";
    for wire in ALL {
        for kind in ["text/html", content_type(wire), "application/json"] {
            let error = asked(wire, answer(200, &[("content-type", kind)], page)).await.unwrap_err();
            let ModelError::Protocol { message } = &error else { panic!("{wire:?} {kind}: {error:?}") };
            assert!(message.contains("Sign in to the proxy"), "{message}");
            assert!(message.contains("base URL"), "{message}");
        }
    }
}

#[tokio::test]
async fn what_is_no_reply_is_told_as_what_it_is() {
    for wire in ALL {
        let plain = asked(wire, answer(200, &[("content-type", "text/plain")], "upstream is away"))
            .await
            .unwrap_err();
        assert!(
            matches!(&plain, ModelError::Protocol { message } if message.contains("upstream is away")),
            "{plain:?}"
        );
        assert_truncated(
            wire,
            "nothing",
            asked(wire, answer(200, &[("content-type", content_type(wire))], "")).await,
        );
        let other = asked(wire, answer(200, &[("content-type", "application/json")], "{\"hello\":1}")).await;
        assert_truncated(wire, "another JSON", other);
    }
    for wire in SSE {
        let cut =
            asked(wire, answer(200, &[("content-type", "application/json")], "{\"choices\":[{\"mess")).await;
        assert_truncated(wire, "JSON cut off", cut);
    }
}

#[tokio::test]
async fn an_event_that_is_no_json_or_no_text_is_an_error_of_the_protocol() {
    for wire in ALL {
        let broken: &[u8] = if wire == Wire::Ollama {
            b"{\"message\": nonsense}\n"
        } else {
            b"data: {\"type\": nonsense}\n\n"
        };
        let error = asked(wire, chunked(content_type(wire), &[broken])).await.unwrap_err();
        assert!(
            matches!(&error, ModelError::Protocol { message } if message.contains("nonsense")),
            "{wire:?}: {error:?}"
        );
        let bytes: &[u8] =
            if wire == Wire::Ollama { b"{\"a\":\"\xff\xfe\"}\n" } else { b"data: {\"a\":\"\xff\xfe\"}\n\n" };
        let error = asked(wire, chunked(content_type(wire), &[bytes])).await.unwrap_err();
        assert!(
            matches!(&error, ModelError::Protocol { message } if message.contains("UTF-8")),
            "{wire:?}: {error:?}"
        );
    }
}

#[tokio::test]
async fn an_event_without_an_end_is_not_held_for_ever() {
    for wire in ALL {
        let start: &[u8] = if wire == Wire::Ollama { b"{\"a\":\"" } else { b"data: {\"a\":\"" };
        let flood = vec![b'x'; 1 << 20];
        let pieces: Vec<&[u8]> = std::iter::once(start).chain(std::iter::repeat_n(&flood[..], 12)).collect();
        let error = asked(wire, chunked(content_type(wire), &pieces)).await.unwrap_err();
        assert!(
            matches!(&error, ModelError::Protocol { message } if message.contains("8 MiB")),
            "{wire:?}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_large_event_is_read_quickly() {
    let words = "x".repeat(4 << 20);
    let event = json!({"choices": [{"delta": {"content": words}, "finish_reason": "stop"}]});
    let text = framed(Wire::OpenAiChat, &[event]);
    let pieces: Vec<&[u8]> = text.as_bytes().chunks(16 << 10).collect();
    let begun = Instant::now();
    let reply = asked(Wire::OpenAiChat, chunked("text/event-stream", &pieces)).await.unwrap();
    assert_eq!(reply.text.len(), 4 << 20);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_provider_that_only_keeps_the_connection_alive_runs_out_of_time() {
    for wire in ALL {
        let line: &[u8] = if wire == Wire::Ollama { b"\n" } else { b": keep-alive\n\n" };
        let mut acts = cut_short(content_type(wire), &[line]);
        let again = acts[1].clone();
        acts.extend(std::iter::repeat_n([Act::Pause(Duration::from_millis(20)), again], 100).flatten());
        let silent = vec![Act::AwaitClose];
        for acts in [acts, silent] {
            let stub = Stub::new(acts).await;
            let mut endpoint = endpoint(wire, &stub.url());
            endpoint.settings.timeout = Some(0.2);
            let error = connect(endpoint).reply(&question(), &()).await.unwrap_err();
            assert_eq!(error, ModelError::Timeout { after: Duration::from_millis(200) }, "{wire:?}");
        }
    }
}

#[tokio::test]
async fn whoever_stops_waiting_closes_the_connection() {
    for wire in ALL {
        let text = framed(wire, &events(wire)[..2]);
        let mut acts = cut_short(content_type(wire), &[text.replace("data: [DONE]\n\n", "").as_bytes()]);
        acts.push(Act::AwaitClose);
        let stub = Stub::new(acts).await;
        let model = connect(endpoint(wire, &stub.url()));
        let request = question();
        let asked = model.reply(&request, &());
        assert!(tokio::time::timeout(Duration::from_millis(200), asked).await.is_err());
        stub.client_went().await;
    }
}

#[tokio::test]
async fn a_connection_is_used_again_after_a_reply() {
    for wire in ALL {
        let answer = kept_open(content_type(wire), framed(wire, &events(wire)).as_bytes());
        let twice = [answer.clone(), vec![Act::Next], answer, vec![Act::AwaitClose]].concat();
        let stub = Stub::in_turn(vec![twice, vec![]]).await;
        let model = connect(endpoint(wire, &stub.url()));
        for _ in 0..2 {
            model.reply(&question(), &()).await.unwrap_or_else(|error| panic!("{wire:?}: {error}"));
        }
        assert_eq!(stub.seen().len(), 2, "{wire:?}");
    }
}

/// In a process of its own, since the environment is read once: no certificate authorities, and a proxy that is dead.
#[tokio::test]
async fn without_authorities_plain_addresses_work_and_secure_ones_say_what_is_missing() {
    if std::env::var_os("MILLRACE_TEST_CHILD").is_none() {
        let name = "breaks::without_authorities_plain_addresses_work_and_secure_ones_say_what_is_missing";
        let mut child = tokio::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", name, "--nocapture"]).env("MILLRACE_TEST_CHILD", "1");
        child.env("SSL_CERT_FILE", "/nonexistent").env("SSL_CERT_DIR", "/nonexistent");
        child.env("http_proxy", "http://192.0.2.1:9").env("HTTPS_PROXY", "http://192.0.2.1:9");
        let output = child.output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let (_stub, model) = crate::wires::streaming(Wire::OpenAiChat).await;
    assert_eq!(model.reply(&question(), &()).await.unwrap().text, "Hello wörld", "loopback knows no proxy");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let secure = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { drop(listener.accept().await) });
    let error = connect(endpoint(Wire::OpenAiChat, &secure)).reply(&question(), &()).await.unwrap_err();
    assert!(
        matches!(&error, ModelError::Connection { message } if message.contains("ca-certificates")),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_reply_at_its_limit_or_filtered_says_so() {
    use millrace_models::model::Finish;
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
    let ollama = vec![json!({"message": {"content": "x"}, "done": true, "done_reason": "length"})];
    let cases = [
        (Wire::OpenAiChat, chat("length"), Finish::Length),
        (Wire::OpenAiChat, chat("content_filter"), Finish::ContentFilter),
        (Wire::OpenAiResponses, responses("max_output_tokens"), Finish::Length),
        (Wire::OpenAiResponses, responses("content_filter"), Finish::ContentFilter),
        (Wire::Anthropic, anthropic("max_tokens"), Finish::Length),
        (Wire::Anthropic, anthropic("refusal"), Finish::ContentFilter),
        (Wire::Anthropic, anthropic("end_turn"), Finish::Stop),
        (Wire::Ollama, ollama, Finish::Length),
    ];
    for (wire, events, finish) in cases {
        let reply = told(wire, &events).await.unwrap();
        assert_eq!((reply.text.as_str(), reply.finish, reply.keepsake), ("x", finish, None), "{wire:?}");
    }
    let cut = [
        json!({"type": "response.output_text.delta", "output_index": 1, "delta": "half a sen"}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": {"type": "reasoning"}}),
        json!({"type": "response.incomplete", "response": {"output": [], "incomplete_details": {"reason": "max_output_tokens"}}}),
    ];
    let half = told(Wire::OpenAiResponses, &cut).await.unwrap();
    assert_eq!((half.text.as_str(), half.keepsake), ("half a sen", None));
    let full = told(Wire::Anthropic, &anthropic("model_context_window_exceeded")).await;
    assert!(matches!(full, Err(ModelError::ContextOverflow { .. })), "{full:?}");
}
