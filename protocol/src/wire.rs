//! The wire format of messages: an envelope `{v, t, b | s}` around a body.
//!
//! `v` is the format, [`FORMAT`], `t` the type of the body, `b` the body, or `s` its address in the blob store. Both
//! layers are MessagePack with named fields; with the header `Millrace-Encoding: json` both are JSON, and `b` is a
//! JSON value instead of bytes, so that clients in any language can take part. The body is decoded only after `t` and
//! `v` were checked. Unknown fields are ignored, so that older readers accept newer messages.
//!
//! [`FORMAT`] is the version of everything that Millrace stores or sends. It is in the settings of a cluster, the envelope of each message and
//! the manifest of a backup, and a program refuses all others before it writes anything. A change of a stored format is
//! additive (a field with a default that older programs may ignore), or increments [`FORMAT`].
//!
//! # Invariants
//!
//! - I6: Bytes of this format stay readable, newer fields are ignored, and no input makes a decoder panic.
//!   (`protocol/tests/rules/wire.rs::unknown_fields_are_ignored_at_every_level`,
//!   `protocol/tests/rules/wire.rs::any_bytes_are_decoded_or_rejected`)
//! - I117: A worker leaves an order of a newer release in its queue.
//!   (`worker/tests/worker.rs::order_of_a_newer_release_stays_in_its_queue`)
//! - I61: Stores of this format are read, and their runs complete; a store of an older release is refused, and nothing of it is changed.
//!   (`tests/tests/stored_format.rs::stores_of_this_format_fold_to_the_same_state_and_their_runs_complete`,
//!   `tests/tests/stored_format.rs::commands_refuse_a_store_of_0_4_and_change_nothing`,
//!   `tests/tests/stored_format.rs::programs_refuse_to_join_a_cluster_of_0_4_and_change_nothing`)

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::foreign_json::parse_foreign_json;
use crate::result::TaskResult;

pub use crate::file::{BlobRef, InlineOrStoredBytes, MAX_BLOB, MAX_STREAMED_BLOB};

/// The maximum size of a body in an envelope; larger ones go to the blob store. 256 KiB, well below the 1 MiB limit of a
/// NATS server.
pub const MAX_INLINE: usize = 256 * 1024;

/// The maximum nesting depth of a message. Decoding recurses, and a thread's stack is limited. A JSON value from a tool or
/// a model may be 128 deep and fits in with the message around it.
pub const MAX_DEPTH: usize = 192;
/// The header that names the encoding; absent means MessagePack.
pub const ENCODING_HEADER: &str = "Millrace-Encoding";
/// The value of [`ENCODING_HEADER`] for JSON.
pub const ENCODING_JSON: &str = "json";

/// A type that can be the body of an envelope.
pub trait WireMessage: Serialize + DeserializeOwned {
    /// Its type on the wire.
    const KIND: &'static str;
}

impl WireMessage for crate::plan::Decision {
    const KIND: &'static str = "decision";
}
impl WireMessage for crate::plan::Submission {
    const KIND: &'static str = "submission";
}
impl WireMessage for crate::plan::RunCommand {
    const KIND: &'static str = "command";
}
impl WireMessage for crate::question::RunAnswer {
    const KIND: &'static str = "answer";
}
impl WireMessage for crate::file::FileVersion {
    const KIND: &'static str = "file";
}

/// The encoding of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// MessagePack with named fields.
    MessagePack,
    /// JSON.
    Json,
}

/// An error in decoding a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The envelope or the body is not valid MessagePack or JSON, or has other fields.
    #[error("{what} is unreadable: {why}")]
    Unreadable {
        /// "the envelope", or the type of the body.
        what: String,
        /// The decoder's error.
        why: String,
    },
    /// There are bytes after the end.
    #[error("{what} has {bytes} extra bytes after its end")]
    Trailing {
        /// "the envelope", or the type of the body.
        what: String,
        /// Their number.
        bytes: usize,
    },
    /// The message has another type.
    #[error("expected a message of type {expected:?}, found {found:?}")]
    WrongKind {
        /// Its type.
        found: String,
        /// The expected type.
        expected: &'static str,
    },
    /// The message has another format.
    #[error("{kind:?} {format}")]
    OtherFormat {
        /// Its type.
        kind: String,
        /// Its format.
        format: OtherFormat,
    },
    /// The envelope has neither a body nor an address of one.
    #[error("the envelope is empty")]
    Empty,
    /// The body is in the blob store and was not fetched.
    #[error("the body is in the blob store")]
    Elsewhere,
}

#[derive(Serialize)]
struct Envelope<'a> {
    v: u16,
    t: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    b: Option<&'a serde_bytes::Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<BlobRef>,
}

#[derive(Deserialize)]
struct OwnedEnvelope {
    v: u16,
    t: String,
    #[serde(default)]
    b: Option<ByteBuf>,
    #[serde(default)]
    s: Option<BlobRef>,
}

#[derive(Serialize, Deserialize)]
struct JsonEnvelope {
    v: u16,
    t: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    b: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    s: Option<BlobRef>,
}

/// Encodes the body of a message as MessagePack.
#[must_use]
pub fn encode_body<M: Serialize>(message: &M) -> Vec<u8> {
    rmp_serde::to_vec_named(message).expect("every protocol type can be encoded as MessagePack")
}

/// Encodes an envelope around an inline body.
#[must_use]
pub fn encode_with_inline_body<M: WireMessage>(body: &[u8]) -> Vec<u8> {
    encode_envelope(&Envelope { v: FORMAT, t: M::KIND, b: Some(serde_bytes::Bytes::new(body)), s: None })
}

/// Encodes an envelope around a body in the blob store.
#[must_use]
pub fn encode_with_stored_body<M: WireMessage>(blob_ref: BlobRef) -> Vec<u8> {
    encode_envelope(&Envelope { v: FORMAT, t: M::KIND, b: None, s: Some(blob_ref) })
}

fn encode_envelope(envelope: &Envelope<'_>) -> Vec<u8> {
    rmp_serde::to_vec_named(envelope).expect("an envelope can be encoded as MessagePack")
}

/// Encodes a message as JSON, for clients that send JSON.
/// Errors: the message has a part that JSON can't represent, such as a map whose keys are not strings.
pub fn encode_as_json<M: WireMessage>(message: &M) -> Result<Vec<u8>, serde_json::Error> {
    let b = Some(serde_json::to_value(message)?);
    serde_json::to_vec(&JsonEnvelope { v: FORMAT, t: M::KIND.into(), b, s: None })
}

/// Returns the address of the body if it is in the blob store. Cheap, because the body is not decoded.
/// Errors: the payload is not an envelope, or has another type or format.
pub fn decode_blob_ref_of_body<M: WireMessage>(
    payload: &[u8],
    encoding: Encoding,
) -> Result<Option<BlobRef>, DecodeError> {
    match encoding {
        Encoding::MessagePack => {
            let envelope: OwnedEnvelope = decode_message_pack(payload, "the envelope")?;
            check_kind_and_format::<M>(&envelope.t, envelope.v)?;
            Ok(envelope.s.filter(|_| envelope.b.is_none()))
        }
        Encoding::Json => {
            let envelope = decode_json_envelope(payload)?;
            check_kind_and_format::<M>(&envelope.t, envelope.v)?;
            Ok(envelope.s.filter(|_| envelope.b.is_none()))
        }
    }
}

/// Decodes a message whose body is inline.
/// Errors: the payload is not such a message, or its body is in the blob store.
pub fn decode_message<M: WireMessage>(payload: &[u8], encoding: Encoding) -> Result<M, DecodeError> {
    match encoding {
        Encoding::MessagePack => {
            let envelope: OwnedEnvelope = decode_message_pack(payload, "the envelope")?;
            check_kind_and_format::<M>(&envelope.t, envelope.v)?;
            match (envelope.b, envelope.s) {
                (Some(body), _) => decode_body(&body),
                (None, Some(_)) => Err(DecodeError::Elsewhere),
                (None, None) => Err(DecodeError::Empty),
            }
        }
        Encoding::Json => {
            let envelope = decode_json_envelope(payload)?;
            check_kind_and_format::<M>(&envelope.t, envelope.v)?;
            match (envelope.b, envelope.s) {
                (Some(body), _) => serde_json::from_value(body).map_err(|e| unreadable_error(M::KIND, &e)),
                (None, Some(_)) => Err(DecodeError::Elsewhere),
                (None, None) => Err(DecodeError::Empty),
            }
        }
    }
}

/// Decodes a body that was fetched from the blob store.
pub fn decode_body<M: WireMessage>(body: &[u8]) -> Result<M, DecodeError> {
    decode_message_pack(body, M::KIND)
}

/// Decodes a MessagePack value that takes up all bytes.
pub fn decode_message_pack<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T, DecodeError> {
    let mut reader = rmp_serde::Deserializer::new(std::io::Cursor::new(bytes));
    reader.set_max_depth(MAX_DEPTH);
    let value = T::deserialize(&mut reader).map_err(|e| unreadable_error(what, &e))?;
    let behind = bytes.len().saturating_sub(usize::try_from(reader.position()).unwrap_or(usize::MAX));
    if behind == 0 { Ok(value) } else { Err(DecodeError::Trailing { what: what.into(), bytes: behind }) }
}

/// Decodes a task's result: MessagePack or, from workers in other languages, JSON text. No MessagePack map begins with
/// the byte that a JSON object begins with.
pub fn decode_task_result(bytes: &[u8]) -> Result<TaskResult, DecodeError> {
    const WHAT: &str = "a result";
    if bytes.first() == Some(&b'{') {
        return parse_foreign_json(bytes).map_err(|e| unreadable_error(WHAT, &e));
    }
    decode_message_pack(bytes, WHAT)
}

fn decode_json_envelope(payload: &[u8]) -> Result<JsonEnvelope, DecodeError> {
    parse_foreign_json(payload).map_err(|e| unreadable_error("the envelope", &e))
}

fn check_kind_and_format<M: WireMessage>(kind: &str, format: u16) -> Result<(), DecodeError> {
    if kind != M::KIND {
        return Err(DecodeError::WrongKind { found: kind.into(), expected: M::KIND });
    }
    check_format(format).map_err(|format| DecodeError::OtherFormat { kind: kind.into(), format })
}

fn unreadable_error(what: &str, why: &dyn std::fmt::Display) -> DecodeError {
    DecodeError::Unreadable { what: what.into(), why: why.to_string() }
}

/// The format that this program reads and writes. Formats 1 and 2 are those of the releases before 0.5.
pub const FORMAT: u16 = 3;
/// The first format of release 0.5.
const FIRST: u16 = 3;

/// The format of something that this program does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OtherFormat {
    /// A release before 0.5 wrote it.
    #[error(
        "was written by a release before 0.5 (format {0}; this release has format {format}), and release 0.4.x can finish its runs",
        format = FORMAT
    )]
    Before05(u16),
    /// A later release wrote it.
    #[error(
        "was written by a newer release (format {0}; this release has format {format}); use that release",
        format = FORMAT
    )]
    Newer(u16),
}

/// Checks the format of something that is read.
/// Errors: this program does not read it.
pub fn check_format(found: u16) -> Result<(), OtherFormat> {
    match found {
        FORMAT => Ok(()),
        ..FIRST => Err(OtherFormat::Before05(found)),
        _ => Err(OtherFormat::Newer(found)),
    }
}
