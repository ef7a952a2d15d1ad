//! A message as the server hands it out, and how one that somebody wrote is told from an answer of the server that ended
//! up in its place.

use async_nats::jetstream::message::StreamMessage;
use bytes::Bytes;
use millrace_protocol::wire::{ENCODING_HEADER, ENCODING_JSON, Encoding};

/// A message of the log.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its sequence in the lane.
    pub sequence: u64,
    /// Its subject.
    pub subject: async_nats::Subject,
    /// Its bytes.
    pub payload: Bytes,
    /// How they are encoded.
    pub encoding: Encoding,
    /// When the server stored it.
    pub time: jiff::Timestamp,
    /// In a bucket: whether it says that the key is gone.
    pub is_deletion: bool,
    /// In a log or a queue: whether nobody wrote it there (see [`is_stray`]).
    pub is_stray: bool,
}

impl From<StreamMessage> for Record {
    /// A message that the leader of its stream was asked for.
    fn from(found: StreamMessage) -> Self {
        Self {
            sequence: found.sequence,
            subject: found.subject,
            encoding: encoding(Some(&found.headers)),
            is_stray: is_stray(Some(&found.headers), 0),
            payload: found.payload,
            time: timestamp(found.time.unix_timestamp_nanos()),
            is_deletion: false,
        }
    }
}

/// The header with the id of an append, by which its writer recognises it. No message of a log or a queue, and
/// no stop, is without it, or without the id of the client library by which repeated ones are told.
pub const ID_HEADER: &str = "Millrace-Id";
/// The header by which the server says which stream a message that it hands out is from.
pub(crate) const ORIGIN_HEADER: &str = "Nats-Stream";

/// A new id for [`ID_HEADER`].
pub(crate) fn made_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// Whether nobody wrote a message with these headers where it stands. Who may ask the server for a message can have the
/// answer sent to any subject, also to those that it may not write to, and there it is kept like any other message. Such
/// an answer comes with the words of the server, or with no headers at all. `told` is how often the server has said
/// where the message is from when it handed it to us: once where it was asked for the message itself.
#[must_use]
pub fn is_stray(headers: Option<&async_nats::HeaderMap>, told: usize) -> bool {
    let Some(headers) = headers else { return true };
    let has_id =
        headers.get(ID_HEADER).is_some() || headers.get(async_nats::header::NATS_MESSAGE_ID).is_some();
    !has_id || headers.get_all(ORIGIN_HEADER).count() > told
}

/// The encoding that a message's headers name.
#[must_use]
pub fn encoding(headers: Option<&async_nats::HeaderMap>) -> Encoding {
    let json = headers
        .and_then(|headers| headers.get(ENCODING_HEADER))
        .is_some_and(|value| value.as_str() == ENCODING_JSON);
    if json { Encoding::Json } else { Encoding::MessagePack }
}

/// The time that is so many nanoseconds after the beginning of 1970; that beginning if it is out of range.
pub(crate) fn timestamp(nanoseconds: i128) -> jiff::Timestamp {
    jiff::Timestamp::from_nanosecond(nanoseconds).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}
