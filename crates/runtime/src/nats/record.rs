//! A message of a stream, as the server returns it.

use async_nats::jetstream::Message;
use async_nats::jetstream::message::{Info, StreamMessage};
use bytes::Bytes;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{ENCODING_HEADER, ENCODING_JSON, Encoding};

use super::provenance::{DeliveryPath, Provenance};

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
