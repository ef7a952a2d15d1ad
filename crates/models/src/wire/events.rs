//! Parses bytes into events: server-sent events, or one JSON value per line. It owns the limits on the size of a response
//! and does not interpret events.
//!
//! Parses the frames of Amazon's event streams (`application/vnd.amazon.eventstream`): two lengths and their checksum, headers,
//! a payload, and a checksum. Each frame becomes a JSON object with one field, whose name is the event's type.
//!
//! # Invariants
//!
//! - I31: Every response of a provider becomes a reply or a typed error, with any content and cut anywhere.
//!   (`crates/models/tests/conformance/breaks.rs::a_stream_without_finish_reason_is_truncated`,
//!   `crates/models/src/wire/events.rs::events_and_lines_do_not_depend_on_chunk_boundaries`)

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use millrace_protocol::foreign_json::{
    HalfEscaper, ends_within_character, escape_raw_halves, join_character, parse_foreign_json,
};
use serde_json::{Value, json};
use sse_stream::SseByteStream;

use super::error::format_error_chain;

/// Maximum size of one event; real events are less than a hundredth of this.
pub(super) const MAX_EVENT_BYTES: usize = 8 << 20;

pub(super) const MAX_REPLY_BYTES: usize = 64 << 20;

/// Maximum number of events that wait for the other half of a character.
const MAX_HELD_EVENTS: usize = 16;

#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("the connection closed early: {0}")]
    Disconnected(String),
    /// The connection is open, but no data arrives.
    #[error("the stream timed out: no data for {0:?}")]
    IdleTimeout(Duration),
    #[error("{0} exceeds {1} MiB")]
    TooLong(&'static str, usize),
    #[error("an event is not UTF-8: {0}")]
    NotUtf8(String),
    #[error("an event is malformed: {0}")]
    BadFrame(&'static str),
}

pub(super) type ByteStream = BoxStream<'static, Result<Bytes, StreamError>>;

pub(super) type EventStream = BoxStream<'static, Result<String, StreamError>>;

type ByteCounter = Arc<AtomicUsize>;

pub(super) fn limit_body_size(
    bytes: impl Stream<Item = reqwest::Result<Bytes>> + Send + 'static,
) -> ByteStream {
    let broken = |error: reqwest::Error| StreamError::Disconnected(format_error_chain(&error));
    limit_bytes(bytes.map_err(broken), &ByteCounter::default(), "the reply", MAX_REPLY_BYTES)
}

/// Ends a body with an error if the bytes since the counter was reset exceed a limit.
fn limit_bytes(
    body: impl Stream<Item = Result<Bytes, StreamError>> + Send + 'static,
    counter: &ByteCounter,
    what: &'static str,
    limit: usize,
) -> ByteStream {
    let counter = Arc::clone(counter);
    let limited = body.map(move |piece| {
        let piece = piece?;
        let since = counter.fetch_add(piece.len(), Ordering::Relaxed) + piece.len();
        if since > limit { Err(StreamError::TooLong(what, limit >> 20)) } else { Ok(piece) }
    });
    limited.boxed()
}

/// Ends a body with an error if no data arrives for `timeout`.
pub(super) fn apply_idle_timeout(body: ByteStream, timeout: Duration) -> ByteStream {
    let pieces = futures::stream::unfold(Some(body), move |body| async move {
        let mut body = body?;
        match tokio::time::timeout(timeout, body.next()).await {
            Ok(piece) => piece.map(|piece| (piece, Some(body))),
            Err(_) => Some((Err(StreamError::IdleTimeout(timeout)), None)),
        }
    });
    pieces.fuse().boxed()
}

/// Parses server-sent events. Comments, names, ids and events without data are skipped.
pub(super) fn parse_sse_events(body: ByteStream) -> EventStream {
    let counter = ByteCounter::default();
    let mut escaper = HalfEscaper::default();
    let body = limit_bytes(body, &counter, "an event", MAX_EVENT_BYTES)
        .map_ok(move |piece| Bytes::from(escaper.push(&piece)));
    let events = SseByteStream::new(body.boxed());
    let data = events.filter_map(move |event| {
        counter.store(0, Ordering::Relaxed);
        std::future::ready(match event {
            Ok(event) => event.data.filter(|data| !data.trim().is_empty()).map(Ok),
            Err(error) => Some(Err(convert_sse_error(error))),
        })
    });
    data.boxed()
}

/// Joins characters whose halves are in two events: the first event is held back until the second one arrives, and has the whole
/// character.
pub(super) fn join_split_characters(events: EventStream) -> EventStream {
    let state = (events, VecDeque::new(), VecDeque::new());
    let joined = futures::stream::unfold(state, |(mut events, mut held, mut ready)| async move {
        while ready.is_empty() {
            match events.next().await {
                Some(Ok(mut event)) => {
                    let is_joined = held.front_mut().is_some_and(|first| join_character(first, &mut event));
                    let is_last = is_joined || held.len() == MAX_HELD_EVENTS;
                    if is_last || (held.is_empty() && !ends_within_character(&event)) {
                        ready.extend(held.drain(..).map(Ok));
                    }
                    match ends_within_character(&event) || !held.is_empty() {
                        true => held.push_back(event),
                        false => ready.push_back(Ok(event)),
                    }
                }
                Some(Err(error)) => {
                    ready.extend(held.drain(..).map(Ok));
                    ready.push_back(Err(error));
                }
                None => {
                    ready.extend(held.drain(..).map(Ok));
                    break;
                }
            }
        }
        ready.pop_front().map(|event| (event, (events, held, ready)))
    });
    joined.fuse().boxed()
}

fn convert_sse_error(error: sse_stream::Error) -> StreamError {
    let sse_stream::Error::Body(source) = error else { return StreamError::NotUtf8(error.to_string()) };
    match source.downcast::<StreamError>() {
        Ok(broken) => *broken,
        Err(other) => StreamError::Disconnected(other.to_string()),
    }
}

/// Parses one JSON value per line. The last line need not end with a line break.
pub(super) fn parse_json_lines(body: ByteStream) -> EventStream {
    let counter = ByteCounter::default();
    let pieces = limit_bytes(body, &counter, "an event", MAX_EVENT_BYTES);
    let state = (pieces, BytesMut::new(), counter, 0_usize);
    let lines =
        futures::stream::try_unfold(state, |(mut pieces, mut buffer, counter, mut seen)| async move {
            loop {
                if let Some(at) = buffer[seen..].iter().position(|byte| *byte == b'\n' || *byte == b'\r') {
                    let line = buffer.split_to(seen + at + 1);
                    counter.store(buffer.len(), Ordering::Relaxed);
                    seen = 0;
                    if let Some(text) = decode_json_line(&line)? {
                        return Ok(Some((text, (pieces, buffer, counter, seen))));
                    }
                    continue;
                }
                seen = buffer.len();
                let Some(piece) = pieces.try_next().await? else { break };
                buffer.extend_from_slice(&piece);
            }
            let last = buffer.split();
            Ok(decode_json_line(&last)?.map(|text| (text, (pieces, buffer, counter, 0))))
        });
    lines.boxed()
}

/// Decodes a line of JSON, without a byte order mark and white space around it; `None` if it is empty.
pub(super) fn decode_json_line(line: &[u8]) -> Result<Option<String>, StreamError> {
    let line = escape_raw_halves(line);
    let text = std::str::from_utf8(&line).map_err(|error| StreamError::NotUtf8(error.to_string()))?;
    let text = text.trim_start_matches('\u{feff}').trim();
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

/// The beginning of a response, after a byte order mark and white space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyFormat {
    Json,
    Page,
    Event,
    /// A binary frame: its length in four bytes, of which the first is zero.
    Frame,
    Other,
    Empty,
}

/// Detects the kind of body by its first bytes, without consuming them.
pub(super) async fn detect_body_format(
    mut body: ByteStream,
) -> Result<(BodyFormat, ByteStream), StreamError> {
    let mut buffer = BytesMut::new();
    let start = loop {
        let prefix = buffer.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&buffer).trim_ascii_start();
        // A field name has at most six bytes; a byte order mark may be split between two chunks.
        if prefix.len() >= 6 || matches!(prefix.first(), Some(b'{' | b'[' | b'<' | b':')) {
            break classify_body_prefix(prefix);
        }
        match body.try_next().await? {
            Some(piece) => buffer.extend_from_slice(&piece),
            None if prefix.is_empty() => break BodyFormat::Empty,
            None => break classify_body_prefix(prefix),
        }
    };
    let first = futures::stream::once(std::future::ready(Ok(buffer.freeze())));
    Ok((start, first.chain(body).boxed()))
}

fn classify_body_prefix(prefix: &[u8]) -> BodyFormat {
    let field = |name: &&[u8]| prefix.starts_with(name);
    match prefix {
        [b'{' | b'[', ..] => BodyFormat::Json,
        [b'<', ..] => BodyFormat::Page,
        [b':', ..] => BodyFormat::Event,
        [0, ..] => BodyFormat::Frame,
        _ if [&b"data:"[..], b"event:", b"id:", b"retry:", b"data\n", b"data\r"].iter().any(field) => {
            BodyFormat::Event
        }
        _ => BodyFormat::Other,
    }
}

pub(super) async fn read_body_as_text(mut body: ByteStream, limit: usize) -> Result<String, StreamError> {
    let mut buffer = Vec::new();
    while buffer.len() < limit
        && let Some(piece) = body.try_next().await?
    {
        buffer.extend_from_slice(&piece);
    }
    buffer.truncate(limit);
    Ok(String::from_utf8_lossy(&buffer).into_owned())
}

const PRELUDE_BYTES: usize = 12;
const CHECKSUM_BYTES: usize = 4;

pub(super) fn parse_frames(body: ByteStream) -> EventStream {
    let frames = futures::stream::try_unfold((body, BytesMut::new()), |(mut body, mut buffer)| async move {
        loop {
            if let Some(frame) = split_frame(&mut buffer)? {
                return Ok(Some((decode_frame(&frame)?, (body, buffer))));
            }
            match body.try_next().await? {
                Some(piece) => buffer.extend_from_slice(&piece),
                None if buffer.is_empty() => return Ok(None),
                None => return Err(StreamError::Disconnected("the last event is incomplete".to_owned())),
            }
        }
    });
    frames.boxed()
}

/// Returns the first frame of the buffer, without the last checksum; `None` if it is not complete.
fn split_frame(buffer: &mut BytesMut) -> Result<Option<Bytes>, StreamError> {
    let Some(prelude) = buffer.get(..PRELUDE_BYTES) else { return Ok(None) };
    let mut numbers = prelude;
    let total = numbers.get_u32() as usize;
    let _headers = numbers.get_u32();
    if numbers.get_u32() != crc32fast::hash(&prelude[..PRELUDE_BYTES - CHECKSUM_BYTES])
        || total < PRELUDE_BYTES + CHECKSUM_BYTES
    {
        return Err(StreamError::BadFrame("its lengths are wrong"));
    }
    if total > MAX_EVENT_BYTES {
        return Err(StreamError::TooLong("an event", MAX_EVENT_BYTES >> 20));
    }
    if buffer.len() < total {
        return Ok(None);
    }
    let mut frame = buffer.split_to(total);
    let mut checksum = frame.split_off(total - CHECKSUM_BYTES);
    if checksum.get_u32() != crc32fast::hash(&frame) {
        return Err(StreamError::BadFrame("its checksum is wrong"));
    }
    Ok(Some(frame.freeze()))
}

fn decode_frame(frame: &Bytes) -> Result<String, StreamError> {
    let mut rest = frame.slice(4..);
    let length = rest.get_u32() as usize;
    rest.advance(CHECKSUM_BYTES);
    if length > rest.len() {
        return Err(StreamError::BadFrame("its headers are too long"));
    }
    let headers = rest.split_to(length);
    let header = |name: &str| find_text_header(&headers, name);
    let payload = decode_json_line(&rest)?.unwrap_or_default();
    match header(":event-type") {
        Some(kind) => {
            let payload = if payload.is_empty() { "{}" } else { &payload };
            Ok(format!("{{{}:{payload}}}", json!(kind)))
        }
        None => {
            let kind = header(":exception-type").or_else(|| header(":error-code")).unwrap_or_default();
            let payload: Value = parse_foreign_json(&payload).unwrap_or_else(|_| json!({"message": payload}));
            let said = payload["message"].as_str().or_else(|| payload["Message"].as_str());
            let message = said.map(str::to_owned).or_else(|| header(":error-message"));
            Ok(json!({"error": {"type": kind, "message": message.unwrap_or_default()}}).to_string())
        }
    }
}

/// Returns the value of a header that is text. Headers are a name, a type, and a value whose length depends on the type.
fn find_text_header(mut headers: &[u8], wanted: &str) -> Option<String> {
    loop {
        let (&name_length, rest) = headers.split_first()?;
        let (name, rest) = rest.split_at_checked(name_length.into())?;
        let (&kind, rest) = rest.split_first()?;
        let (length, rest) = match kind {
            0 | 1 => (0, rest),
            2 => (1, rest),
            3 => (2, rest),
            4 => (4, rest),
            5 | 8 => (8, rest),
            9 => (16, rest),
            _ => {
                let (length, rest) = rest.split_first_chunk::<2>()?;
                (u16::from_be_bytes(*length).into(), rest)
            }
        };
        let (value, rest) = rest.split_at_checked(length)?;
        if name == wanted.as_bytes() {
            return std::str::from_utf8(value).ok().map(str::to_owned);
        }
        headers = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body_from_pieces(all: &[&[u8]]) -> ByteStream {
        let owned: Vec<_> = all.iter().map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        futures::stream::iter(owned).boxed()
    }

    async fn collect_events(events: EventStream) -> Vec<String> {
        events.map(|event| event.unwrap()).collect().await
    }

    #[tokio::test]
    async fn events_and_lines_do_not_depend_on_chunk_boundaries() {
        let text = "\u{feff}: hello\r\n\r\nevent: x\rdata: {\"a\":\rdata: \"ü\"}\r\rretry: 5\n\ndata:\n\ndata: [DONE]\n\n";
        let rows = "\u{feff}{\"a\":\"ü\"}\r\n\n{\"b\":2}\r{\"c\":3}";
        for cut in 0..=text.len() {
            let (one, two) = text.as_bytes().split_at(cut);
            let actual = collect_events(parse_sse_events(body_from_pieces(&[one, b"", two]))).await;
            assert_eq!(actual, ["{\"a\":\n\"ü\"}", "[DONE]"], "cut at {cut}");
        }
        for cut in 0..=rows.len() {
            let (one, two) = rows.as_bytes().split_at(cut);
            let actual = collect_events(parse_json_lines(body_from_pieces(&[one, two]))).await;
            assert_eq!(actual, ["{\"a\":\"ü\"}", "{\"b\":2}", "{\"c\":3}"], "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn oversized_events_and_replies_are_rejected() {
        let piece = vec![b'x'; 1 << 20];
        let oversized: Vec<&[u8]> =
            std::iter::once(&b"data: "[..]).chain(std::iter::repeat_n(&piece[..], 20)).collect();
        let of_events = parse_sse_events(body_from_pieces(&oversized)).next().await.unwrap();
        assert!(matches!(of_events, Err(StreamError::TooLong("an event", 8))), "{of_events:?}");
        let of_lines = parse_json_lines(body_from_pieces(&oversized)).next().await.unwrap();
        assert!(matches!(of_lines, Err(StreamError::TooLong("an event", 8))), "{of_lines:?}");
        let blank = Bytes::from([&piece[..], b"\n"].concat());
        let endless = futures::stream::repeat_with(move || Ok(blank.clone()));
        let mut of_reply = parse_json_lines(limit_body_size(endless));
        let end = loop {
            match of_reply.next().await {
                Some(Ok(_)) => {}
                other => break other,
            }
        };
        assert!(matches!(end, Some(Err(StreamError::TooLong("the reply", 64)))));
    }

    #[tokio::test]
    async fn the_kind_of_body_is_detected() {
        let cases: [(&[&[u8]], BodyFormat); 9] = [
            (&[b"\0", b"\0\x01\x02\0\0"], BodyFormat::Frame),
            (&[b"\xEF", b"\xBB\xBF", b" {}"], BodyFormat::Json),
            (&[b"\r\n", b"d", b"ata: 1\n\n"], BodyFormat::Event),
            (&[b": comment"], BodyFormat::Event),
            (&[b"<!doctype html>"], BodyFormat::Page),
            (&[b"dates"], BodyFormat::Other),
            (&[b"upstream error"], BodyFormat::Other),
            (&[], BodyFormat::Empty),
            (&[b"  \n", b""], BodyFormat::Empty),
        ];
        for (bytes, expected) in cases {
            let (start, rest) = detect_body_format(body_from_pieces(bytes)).await.unwrap();
            assert_eq!(start, expected, "{bytes:?}");
            assert_eq!(read_body_as_text(rest, 100).await.unwrap().as_bytes(), bytes.concat());
        }
    }
}
