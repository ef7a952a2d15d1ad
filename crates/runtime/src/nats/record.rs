//! A message of a stream, and its provenance: a client has published it, or it is a redirected server reply.
//!
//! A client of NATS chooses the reply subject of each request, and the server publishes its reply there without
//! checking whether the client may publish to that subject. A client that may only *read* a stream can therefore make
//! the server store a reply in any stream, on any subject: the content of another message (`DIRECT.GET`,
//! `STREAM.MSG.GET`), or a status. Permissions can't prevent this. So every program that reads a lane, a queue, a file
//! or a stop checks the provenance of each message first, and ignores server replies.
//!
//! A server reply can be recognised, because a client can't choose its headers: it has either no headers at all, or a
//! `Nats-Stream` header that the server added when it replied.
//!
//! # Invariants
//!
//! - I46: A server reply that was redirected into a log is not treated as a message.
//!   (`crates/runtime/tests/runtime.rs::redirected_server_reply_is_no_event_of_a_plan`,
//!   `crates/runtime/tests/runtime.rs::metadata_headers_set_by_a_publisher_are_ignored`,
//!   `crates/runtime/tests/workspace.rs::forged_message_hides_no_version_and_blocks_no_write`,
//!   `crates/runtime/tests/archive.rs::forged_archive_is_ignored`)

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::Message;
use async_nats::jetstream::message::{Info, StreamMessage};
use bytes::Bytes;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{ENCODING_HEADER, ENCODING_JSON, Encoding};

/// The header with the id of a message, by which its publisher recognises it. Every message of a lane, a queue or a
/// file, and every stop, has this header or the client library's own `Nats-Msg-Id`, by which the server drops
/// duplicates.
pub const ID_HEADER: &str = "Millrace-Id";
/// The header that the server adds to a message that it returns from a stream: the name of the stream.
const ORIGIN_HEADER: &str = "Nats-Stream";

/// The provenance of a message on a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provenance {
    /// A client with permission to publish to the subject has published it.
    Published,
    /// A forged message: a copy of a stored message, which the server sent as a reply and a client has redirected to the
    /// subject, whether or not it may publish there.
    ServerReply,
    /// A message without an id, and without a sign that it is a copy: another server reply that was redirected.
    Unmarked,
}

/// The way in which this process received a message, which decides how many `Nats-Stream` headers the server has added for
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryPath {
    /// From a subscription, a consumer, or a request that returns the stored headers as they are: the server has added
    /// no `Nats-Stream` header.
    AsStored,
    /// As the reply to a direct get: the server has added one such header.
    ByDirectGet,
}

impl Provenance {
    /// Returns the provenance of a message with these headers: published if it has an id, and no `Nats-Stream` header
    /// besides the one that the server added for us.
    #[must_use]
    pub fn from_headers(headers: Option<&HeaderMap>, received: DeliveryPath) -> Self {
        let Some(headers) = headers else { return Self::Unmarked };
        let has_id = headers.get(ID_HEADER).is_some() || headers.get(NATS_MESSAGE_ID).is_some();
        let added_for_us = match received {
            DeliveryPath::AsStored => 0,
            DeliveryPath::ByDirectGet => 1,
        };
        let is_reply = headers.get_all(ORIGIN_HEADER).count() > added_for_us;
        match (is_reply, has_id) {
            (true, _) => Self::ServerReply,
            (false, true) => Self::Published,
            (false, false) => Self::Unmarked,
        }
    }

    /// `true` if the message counts as a redirected server reply and must be ignored.
    #[must_use]
    pub fn is_forged(self) -> bool {
        self != Self::Published
    }
}

/// Returns a new random value for [`ID_HEADER`].
pub(crate) fn new_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// A message of a stream.
#[derive(Debug, Clone)]
pub struct StreamRecord {
    /// Its sequence in the stream.
    pub sequence: u64,
    pub subject: async_nats::Subject,
    pub payload: Bytes,
    /// The encoding of its payload.
    pub encoding: Encoding,
    /// When the server stored it.
    pub time: jiff::Timestamp,
    /// In a bucket: `true` if it deletes its key.
    pub is_deletion: bool,
    /// In a lane, a queue or a file: whether a client published it, or it is a forged message to be ignored.
    pub provenance: Provenance,
}

impl StreamRecord {
    /// `true` if the message is a redirected server reply and must be ignored.
    pub fn is_forged(&self) -> bool {
        self.provenance.is_forged()
    }

    /// `true` if the message is a decision of a run, and not a forged one.
    pub fn is_decision(&self) -> bool {
        !self.is_forged() && matches!(subject::parse_lane_subject(&self.subject), Some((_, _, Topic::Plan)))
    }

    /// Converts a message that a consumer delivered.
    pub fn from_delivery(message: &Message, info: &Info<'_>) -> Self {
        let headers = message.headers.as_ref();
        Self {
            sequence: info.stream_sequence,
            subject: message.subject.clone(),
            payload: message.payload.clone(),
            encoding: encoding_from_headers(headers),
            provenance: Provenance::from_headers(headers, DeliveryPath::AsStored),
            time: timestamp_from_nanoseconds(info.published.unix_timestamp_nanos()),
            is_deletion: false,
        }
    }
}

impl From<StreamMessage> for StreamRecord {
    /// Converts a message that the leader of its stream returned, with its stored headers.
    fn from(message: StreamMessage) -> Self {
        Self {
            sequence: message.sequence,
            subject: message.subject,
            encoding: encoding_from_headers(Some(&message.headers)),
            provenance: Provenance::from_headers(Some(&message.headers), DeliveryPath::AsStored),
            payload: message.payload,
            time: timestamp_from_nanoseconds(message.time.unix_timestamp_nanos()),
            is_deletion: false,
        }
    }
}

/// Returns the encoding that the headers of a message name; MessagePack by default.
#[must_use]
pub fn encoding_from_headers(headers: Option<&async_nats::HeaderMap>) -> Encoding {
    let json = headers
        .and_then(|headers| headers.get(ENCODING_HEADER))
        .is_some_and(|value| value.as_str() == ENCODING_JSON);
    if json { Encoding::Json } else { Encoding::MessagePack }
}

/// Converts nanoseconds since the Unix epoch; the epoch itself if they are out of range.
pub fn timestamp_from_nanoseconds(nanoseconds: i128) -> jiff::Timestamp {
    jiff::Timestamp::from_nanosecond(nanoseconds).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}
