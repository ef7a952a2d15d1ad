//! The framing of a response does not matter: chunk boundaries, byte order mark, line breaks, comments, compression,
//! content type, or no streaming at all.

use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::stub::{StubAction, chunked, head, response};
use super::wires::{
    ALL, DeltaLog, SSE, assert_same, content_type, events, expected, framed, question, reply_to,
    stream_bytes, streaming,
};
use millrace_models::wire::WireProtocol;

fn stream(wire: WireProtocol) -> Vec<u8> {
    stream_bytes(wire, &events(wire))
}

async fn reads_the_same(wire: WireProtocol, what: &str, actions: Vec<StubAction>) {
    let reply = reply_to(wire, actions).await.unwrap_or_else(|error| panic!("{wire:?}: {what}: {error}"));
    assert_same(wire, what, reply, &expected(wire));
}

#[tokio::test]
async fn replies_are_streamed_to_the_listener() {
    for wire in ALL {
        let (_stub, model) = streaming(wire).await;
        let log = DeltaLog::default();
        let reply = model.reply(&question(), &log).await.unwrap();
        assert_same(wire, "plain", reply, &expected(wire));
        let streamed = log.0.into_inner().unwrap();
        let all =
            ["reasoning Let me ", "reasoning see.", "text Hello ", "text wörld", "call ls", "call read"];
        assert_eq!(streamed, all, "{wire:?}");
    }
}

#[tokio::test]
async fn single_byte_chunks_are_parsed() {
    for wire in ALL {
        let stream = stream(wire);
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        reads_the_same(wire, "byte by byte", chunked(content_type(wire), &bytes)).await;
    }
}

#[tokio::test]
async fn chunk_boundaries_do_not_matter() {
    for wire in ALL {
        let stream = stream(wire);
        let cuts: Vec<usize> = (0..stream.len()).step_by(13).collect();
        let all = cuts.into_iter().map(|cut| {
            let (one, two) = stream.split_at(cut);
            let mut actions = chunked(content_type(wire), &[one, two]);
            actions.insert(2, StubAction::Pause(Duration::from_millis(1)));
            reads_the_same(wire, "cut in two", actions)
        });
        futures::future::join_all(all).await;
    }
}

#[tokio::test]
async fn byte_order_marks_line_breaks_and_comments_do_not_matter() {
    for wire in SSE {
        let text = framed(wire, &events(wire));
        let bare = text.replace("data: ", "data:");
        let noisy = text.replace("data: ", ": keep-alive\n\nid: 7\nretry: 10\nunknown: x\ndata: ");
        let cases = [
            ("a byte order mark", format!("\u{feff}{text}")),
            ("CRLF", text.replace('\n', "\r\n")),
            ("CR", text.replace('\n', "\r")),
            ("comments and other fields", noisy),
            ("no space after the colon", bare),
            ("blank lines first", format!("\n\r\n{text}")),
            ("events without data between", text.replace("\n\n", "\n\nevent: ping\n\n")),
        ];
        for (what, text) in cases {
            reads_the_same(wire, what, chunked(content_type(wire), &[text.as_bytes()])).await;
        }
    }
    let lines = framed(WireProtocol::Ollama, &events(WireProtocol::Ollama));
    let cases = [
        ("a byte order mark", format!("\u{feff}{lines}")),
        ("CRLF and blank lines", lines.replace('\n', "\r\n\r\n")),
        ("no end of the last line", lines.trim_end().to_owned()),
    ];
    for (what, text) in cases {
        reads_the_same(
            WireProtocol::Ollama,
            what,
            chunked(content_type(WireProtocol::Ollama), &[text.as_bytes()]),
        )
        .await;
    }
}

#[tokio::test]
async fn compressed_streams_are_decompressed() {
    for wire in ALL {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packer.write_all(&stream(wire)).unwrap();
        let packed = packer.finish().unwrap();
        let headers = [("content-type", content_type(wire)), ("content-encoding", "gzip")];
        reads_the_same(wire, "gzip", response(200, &headers, packed)).await;
    }
}

#[tokio::test]
async fn the_content_type_does_not_matter() {
    for wire in ALL {
        for kind in ["text/plain", "application/json", "application/octet-stream", "text/html"] {
            reads_the_same(wire, kind, chunked(kind, &[&stream(wire)])).await;
        }
        let mut bare = vec![StubAction::Send(head(200, &[]))];
        bare.push(StubAction::Send(stream(wire)));
        reads_the_same(wire, "no content type, no length", bare).await;
    }
}

/// Servers without streaming support send one JSON value.
#[tokio::test]
async fn responses_need_not_be_streamed() {
    for wire in ALL {
        let body = format!("\u{feff} {:#}", unstreamed(wire));
        let body = if wire == WireProtocol::Ollama { unstreamed(wire).to_string() } else { body };
        reads_the_same(wire, "one piece", response(200, &[("content-type", "application/json")], body)).await;
    }
}

fn unstreamed(wire: WireProtocol) -> Value {
    match wire {
        WireProtocol::OpenAiChat => {
            json!({"id": "c", "object": "chat.completion", "choices": [{"index": 0, "finish_reason": "tool_calls",
            "message": {"role": "assistant", "content": "Hello wörld", "reasoning_content": "Let me see.", "tool_calls": [
                {"id": "call_a", "type": "function", "function": {"name": "ls", "arguments": "{\"path\":\"a\"}"}},
                {"id": "call_b", "type": "function", "function": {"name": "read", "arguments": "{\"path\":\"ü\",\"lines\":[1,2]}"}},
            ]}}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60},
                "completion_tokens_details": {"reasoning_tokens": 7}}})
        }
        WireProtocol::OpenAiResponses => events(wire).pop().unwrap()["response"].take(),
        WireProtocol::Anthropic => {
            json!({"id": "msg_1", "type": "message", "role": "assistant", "stop_reason": "tool_use", "content": [
                {"type": "thinking", "thinking": "Let me see.", "signature": "EqQB"},
                {"type": "text", "text": "Hello wörld"},
                {"type": "tool_use", "id": "call_a", "name": "ls", "input": {"path": "a"}},
                {"type": "tool_use", "id": "call_b", "name": "read", "input": {"path": "ü", "lines": [1, 2]}},
            ],
            "usage": {"input_tokens": 30, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 10, "output_tokens": 20,
                "output_tokens_details": {"thinking_tokens": 7}}})
        }
        WireProtocol::Gemini => {
            json!({"candidates": [{"index": 0, "finishReason": "STOP", "content": {"role": "model", "parts": [
                {"text": "Let me see.", "thought": true},
                {"text": "Hello wörld"},
                {"functionCall": {"id": "call_a", "name": "ls", "args": {"path": "a"}}, "thoughtSignature": "c2ln"},
                {"functionCall": {"id": "call_b", "name": "read", "args": {"path": "ü", "lines": [1, 2]}}},
            ]}}],
            "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 13, "thoughtsTokenCount": 7,
                "cachedContentTokenCount": 60}})
        }
        WireProtocol::Bedrock => {
            json!({"stopReason": "tool_use", "output": {"message": {"role": "assistant", "content": [
                {"reasoningContent": {"reasoningText": {"text": "Let me see.", "signature": "EqQB"}}},
                {"text": "Hello wörld"},
                {"toolUse": {"toolUseId": "call_a", "name": "ls", "input": {"path": "a"}}},
                {"toolUse": {"toolUseId": "call_b", "name": "read", "input": {"path": "ü", "lines": [1, 2]}}},
            ]}},
            "usage": {"inputTokens": 30, "cacheReadInputTokens": 60, "cacheWriteInputTokens": 10, "outputTokens": 20}})
        }
        WireProtocol::Ollama => {
            json!({"done": true, "done_reason": "stop", "prompt_eval_count": 100, "eval_count": 20,
            "message": {"role": "assistant", "content": "Hello wörld", "thinking": "Let me see.", "tool_calls": [
                {"function": {"name": "ls", "arguments": {"path": "a"}}},
                {"function": {"name": "read", "arguments": {"path": "ü", "lines": [1, 2]}}},
            ]}})
        }
    }
}
