//! The frames of Amazon's event streams: the suite's other tests stream text.

use std::time::Duration;

use std::sync::Arc;

use millrace_models::model::{ModelError, Reply};
use millrace_models::wire::{WireProtocol, create_http_model};
use serde_json::{Value, json};

use super::stub::{Stub, StubAction, chunked, unterminated};
use super::wires::{content_type, endpoint, events, expected, question, reply_to, reply_to_events};

const WIRE: WireProtocol = WireProtocol::Bedrock;

/// Returns the frame of an event, which has one field with its type.
pub fn frame_event(event: &Value) -> Vec<u8> {
    let (kind, payload) = event.as_object().unwrap().iter().next().unwrap();
    let is_error = kind.ends_with("Exception");
    let (of_type, message) =
        if is_error { (":exception-type", "exception") } else { (":event-type", "event") };
    // A header whose value is no text must be passed over.
    let date = [&[5][..], b":date", &[8], &[0x41; 8]].concat();
    let headers = [
        date,
        text_header(of_type, kind),
        text_header(":content-type", "application/json"),
        text_header(":message-type", message),
    ];
    frame(&headers.concat(), payload.to_string().as_bytes())
}

fn text_header(name: &str, value: &str) -> Vec<u8> {
    let lengths = (u8::try_from(name.len()).unwrap(), u16::try_from(value.len()).unwrap());
    [&[lengths.0][..], name.as_bytes(), &[7], &lengths.1.to_be_bytes(), value.as_bytes()].concat()
}

fn frame(headers: &[u8], payload: &[u8]) -> Vec<u8> {
    let number = |number: usize| u32::try_from(number).unwrap().to_be_bytes();
    let mut frame = [number(headers.len() + payload.len() + 16), number(headers.len())].concat();
    frame.extend(checksum(&frame));
    frame.extend_from_slice(headers);
    frame.extend_from_slice(payload);
    frame.extend(checksum(&frame));
    frame
}

fn checksum(bytes: &[u8]) -> [u8; 4] {
    let mut checksum = flate2::Crc::new();
    checksum.update(bytes);
    checksum.sum().to_be_bytes()
}

async fn reply_to_bytes(bytes: &[u8]) -> Result<Reply, ModelError> {
    reply_to(WIRE, chunked(content_type(WIRE), &[bytes])).await
}

fn stream() -> Vec<u8> {
    events(WIRE).iter().flat_map(frame_event).collect()
}

#[tokio::test]
async fn a_stream_that_ends_anywhere_is_truncated() {
    let all = events(WIRE);
    for count in 0..=all.len() - 2 {
        let frames: Vec<u8> = all[..count].iter().flat_map(frame_event).collect();
        let error = reply_to_bytes(&frames).await.unwrap_err();
        assert!(matches!(error, ModelError::Truncated { .. }), "{count} events: {error:?}");
    }
    let stream = stream();
    let cut = reply_to_bytes(&stream[..100]).await.unwrap_err().to_string();
    assert!(cut.contains("the last event is incomplete"), "{cut}");
    let before_stop = all[..all.len() - 2].iter().flat_map(frame_event).count();
    for cut in (1..before_stop).step_by(97) {
        for actions in [
            chunked(content_type(WIRE), &[&stream[..cut]]),
            unterminated(content_type(WIRE), &[&stream[..cut]]),
        ] {
            let error = reply_to(WIRE, actions).await.unwrap_err();
            assert!(matches!(error, ModelError::Truncated { .. }), "{cut} bytes: {error:?}");
        }
    }
}

/// Only the usage follows the finish reason.
#[tokio::test]
async fn a_stream_that_breaks_after_the_finish_reason_is_a_reply() {
    let all = events(WIRE);
    let mut frames: Vec<u8> = all[..all.len() - 1].iter().flat_map(frame_event).collect();
    frames.extend_from_slice(&frame_event(&all[all.len() - 1])[..20]);
    let mut actions = unterminated(content_type(WIRE), &[&frames]);
    actions.extend([StubAction::Pause(Duration::from_millis(20)), StubAction::Reset]);
    let reply = reply_to(WIRE, actions).await.unwrap();
    assert_eq!((reply.text, reply.calls.len()), (expected(WIRE).text, 2));
}

#[tokio::test]
async fn damaged_frames_are_broken_replies() {
    let stream = stream();
    for at in [0, 3, 7, 9, 20, 60, stream.len() - 1] {
        let mut damaged = stream.clone();
        damaged[at] ^= 0x10;
        let error = reply_to_bytes(&damaged).await.unwrap_err();
        assert!(matches!(error, ModelError::Truncated { .. }), "byte {at}: {error:?}");
    }
    let kind = text_header(":event-type", "messageStop");
    for (what, frame, expected, is_transient) in [
        ("no JSON", frame(&kind, b"{nonsense}"), "nonsense", false),
        ("no UTF-8", frame(&kind, b"\xff\xfe"), "UTF-8", false),
        ("headers that are longer than the frame", overlong_headers(), "headers are too long", true),
    ] {
        let error = reply_to_bytes(&frame).await.unwrap_err();
        assert_eq!(error.is_transient(), is_transient, "{what}: {error:?}");
        assert!(error.to_string().contains(expected), "{what}: {error:?}");
    }
    let untyped = reply_to_bytes(&frame(&kind[..5], b"")).await.unwrap_err();
    assert!(untyped.is_transient(), "{untyped:?}");
}

fn overlong_headers() -> Vec<u8> {
    let mut frame: Vec<u8> = [20_u32.to_be_bytes(), 9_u32.to_be_bytes()].concat();
    frame.extend(checksum(&frame));
    frame.extend_from_slice(b"{}{}");
    frame.extend(checksum(&frame));
    frame
}

#[tokio::test]
async fn an_endless_event_is_a_protocol_error() {
    let mut start: Vec<u8> = [(9_u32 << 20).to_be_bytes(), 0_u32.to_be_bytes()].concat();
    start.extend(checksum(&start));
    let error = reply_to_bytes(&start).await.unwrap_err();
    assert!(matches!(&error, ModelError::Protocol { message } if message.contains("8 MiB")), "{error:?}");
}

#[tokio::test]
async fn cancelling_a_request_closes_the_connection() {
    let mut actions = unterminated(content_type(WIRE), &[&frame_event(&events(WIRE)[0])]);
    actions.push(StubAction::AwaitClose);
    let stub = Stub::new(actions).await;
    let model = create_http_model(endpoint(WIRE, &stub.url()), Arc::default());
    let request = question();
    let reply = tokio::time::timeout(Duration::from_millis(200), model.reply(&request, &())).await;
    assert!(reply.is_err());
    stub.client_disconnected().await;
}

/// Encrypted reasoning returns as it came; reasoning without a signature cannot return.
#[tokio::test]
async fn only_reasoning_that_can_return_is_kept() {
    let delta =
        |place: u64, delta: Value| json!({"contentBlockDelta": {"contentBlockIndex": place, "delta": delta}});
    let events = [
        delta(0, json!({"reasoningContent": {"redactedContent": "b3Bh"}})),
        delta(0, json!({"reasoningContent": {"redactedContent": "cXVl"}})),
        delta(1, json!({"reasoningContent": {"text": "unsigned"}})),
        delta(2, json!({"text": "hi"})),
        json!({"messageStop": {"stopReason": "end_turn"}}),
    ];
    let reply = reply_to_events(WIRE, &events).await.unwrap();
    let state = reply.provider_state.unwrap().items.to_string();
    assert!(state.contains("b3BhcXVl") && !state.contains("unsigned"), "{state}");
    assert!(reply.usage.output_tokens > 0, "without usage it is estimated");
}
