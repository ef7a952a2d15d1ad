//! Parses the frames of Amazon's event streams (`application/vnd.amazon.eventstream`): two lengths and their checksum, headers,
//! a payload, and a checksum. Each frame becomes a JSON object with one field, whose name is the event's type.

use bytes::{Buf, Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use millrace_protocol::foreign_json::parse_foreign_json;
use serde_json::{Value, json};

use super::events::{ByteStream, EventStream, MAX_EVENT_BYTES, StreamError, decode_json_line};

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
