//! How messages look on the wire: an envelope `{v, t, b | s}` around a body.
//!
//! `v` is the version of the body's schema, `t` its type, `b` the body, or `s` where it lies in the blob store. Both
//! layers are MessagePack with named fields; with the header `Millrace-Encoding: json` both are JSON, and `b` is a
//! JSON value rather than bytes, so that any language's client can take part. The body is decoded only after `t` and
//! `v` were looked at. Unknown fields are ignored: older readers survive newer writers.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::result::TaskResult;

/// Bodies above this many bytes go to the blob store: 256 KiB, well below the 1 MiB that a NATS server takes.
pub const MAX_INLINE: usize = 256 * 1024;
/// How deep a message may be nested. Whoever reads one goes as deep, and a thread's stack has an end; a JSON value from
/// a tool or a model, which may be 128 deep, fits in with all that is around it.
pub const MAX_DEPTH: usize = 192;
/// The header that names the encoding; absent means MessagePack.
pub const ENCODING_HEADER: &str = "Millrace-Encoding";
/// The value of [`ENCODING_HEADER`] for JSON.
pub const ENCODING_JSON: &str = "json";

/// What an envelope can hold.
pub trait Message: Serialize + DeserializeOwned {
    /// Its type on the wire.
    const KIND: &'static str;
    /// The version of its schema that this program writes, and the newest it reads.
    const VERSION: u16 = 1;
}

impl Message for crate::plan::Decision {
    const KIND: &'static str = "decision";
}
impl Message for crate::plan::Submission {
    const KIND: &'static str = "submission";
}
impl Message for crate::plan::Command {
    const KIND: &'static str = "command";
}
impl Message for crate::plan::Control {
    const KIND: &'static str = "control";
}
impl Message for crate::work::Entry {
    const KIND: &'static str = "entry";
}
impl Message for crate::file::FileVersion {
    const KIND: &'static str = "file";
}
impl Message for crate::work::Order {
    const KIND: &'static str = "order";
}

/// A value that is either here or in the blob store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blob {
    /// The bytes.
    Inline(ByteBuf),
    /// Where the bytes are.
    Stored(Stored),
}

/// Bytes in the blob store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Their SHA-256 in hexadecimal, which is their name there.
    pub sha256: String,
    /// How many they are.
    pub size: u64,
}

/// The two encodings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// MessagePack with named fields.
    MessagePack,
    /// JSON.
    Json,
}

/// Why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Garbage {
    /// The envelope or the body can't be read.
    #[error("{what} can't be read: {why}")]
    Unreadable {
        /// "the envelope", or the type of the body.
        what: String,
        /// What the decoder says.
        why: String,
    },
    /// There is something behind the end.
    #[error("{what} has {bytes} bytes behind its end")]
    Trailing {
        /// "the envelope", or the type of the body.
        what: String,
        /// How many.
        bytes: usize,
    },
    /// It is something else.
    #[error("it is a {found:?}, where a {expected:?} belongs")]
    WrongKind {
        /// What it is.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// It comes from a newer program.
    #[error("it is a {kind:?} of version {found}; this program reads up to {known}")]
    UnknownVersion {
        /// Its type.
        kind: String,
        /// Its version.
        found: u16,
        /// The newest that is known.
        known: u16,
    },
    /// It has neither a body nor a place where one is.
    #[error("the envelope is empty")]
    Empty,
    /// The body is in the blob store, and was not fetched.
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
    s: Option<Stored>,
}

#[derive(Deserialize)]
struct OwnedEnvelope {
    v: u16,
    t: String,
    #[serde(default)]
    b: Option<ByteBuf>,
    #[serde(default)]
    s: Option<Stored>,
}

#[derive(Serialize, Deserialize)]
struct JsonEnvelope {
    v: u16,
    t: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    b: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    s: Option<Stored>,
}

/// The body of a message, in MessagePack.
#[must_use]
pub fn body<M: Serialize>(message: &M) -> Vec<u8> {
    rmp_serde::to_vec_named(message).expect("words of the protocol have no form that MessagePack lacks")
}

/// An envelope around a body that is here.
#[must_use]
pub fn seal<M: Message>(body: &[u8]) -> Vec<u8> {
    seal_envelope(&Envelope { v: M::VERSION, t: M::KIND, b: Some(serde_bytes::Bytes::new(body)), s: None })
}

/// An envelope around a body in the blob store.
#[must_use]
pub fn seal_stored<M: Message>(stored: Stored) -> Vec<u8> {
    seal_envelope(&Envelope { v: M::VERSION, t: M::KIND, b: None, s: Some(stored) })
}

fn seal_envelope(envelope: &Envelope<'_>) -> Vec<u8> {
    rmp_serde::to_vec_named(envelope).expect("an envelope has no form that MessagePack lacks")
}

/// A message as JSON, for clients that send it so.
///
/// # Errors
/// The message has a part that JSON lacks, such as a map with keys that are not text.
pub fn seal_json<M: Message>(message: &M) -> Result<Vec<u8>, serde_json::Error> {
    let b = Some(serde_json::to_value(message)?);
    serde_json::to_vec(&JsonEnvelope { v: M::VERSION, t: M::KIND.into(), b, s: None })
}

/// Where the body of an envelope of type `M` is elsewhere: where it is. Cheap enough to ask of every message.
///
/// # Errors
/// It is no envelope, or of another type or a newer version.
pub fn stored<M: Message>(payload: &[u8], encoding: Encoding) -> Result<Option<Stored>, Garbage> {
    match encoding {
        Encoding::MessagePack => {
            let envelope: OwnedEnvelope = read(payload, "the envelope")?;
            recognise::<M>(&envelope.t, envelope.v)?;
            Ok(envelope.s.filter(|_| envelope.b.is_none()))
        }
        Encoding::Json => {
            let envelope = json_envelope(payload)?;
            recognise::<M>(&envelope.t, envelope.v)?;
            Ok(envelope.s.filter(|_| envelope.b.is_none()))
        }
    }
}

/// Reads a message whose body is in its envelope.
///
/// # Errors
/// It is no such message, or its body is elsewhere.
pub fn open<M: Message>(payload: &[u8], encoding: Encoding) -> Result<M, Garbage> {
    match encoding {
        Encoding::MessagePack => {
            let envelope: OwnedEnvelope = read(payload, "the envelope")?;
            recognise::<M>(&envelope.t, envelope.v)?;
            match (envelope.b, envelope.s) {
                (Some(body), _) => open_body(&body),
                (None, Some(_)) => Err(Garbage::Elsewhere),
                (None, None) => Err(Garbage::Empty),
            }
        }
        Encoding::Json => {
            let envelope = json_envelope(payload)?;
            recognise::<M>(&envelope.t, envelope.v)?;
            match (envelope.b, envelope.s) {
                (Some(body), _) => serde_json::from_value(body).map_err(|e| unreadable(M::KIND, &e)),
                (None, Some(_)) => Err(Garbage::Elsewhere),
                (None, None) => Err(Garbage::Empty),
            }
        }
    }
}

/// Reads a body that came from the blob store.
///
/// # Errors
/// It is no such body.
pub fn open_body<M: Message>(body: &[u8]) -> Result<M, Garbage> {
    read(body, M::KIND)
}

/// Reads a plain MessagePack value and nothing behind it.
///
/// # Errors
/// It can't be read, or there is something behind it.
pub fn read<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T, Garbage> {
    let mut reader = rmp_serde::Deserializer::new(std::io::Cursor::new(bytes));
    reader.set_max_depth(MAX_DEPTH);
    let value = T::deserialize(&mut reader).map_err(|e| unreadable(what, &e))?;
    let behind = bytes.len().saturating_sub(usize::try_from(reader.position()).unwrap_or(usize::MAX));
    if behind == 0 { Ok(value) } else { Err(Garbage::Trailing { what: what.into(), bytes: behind }) }
}

/// Reads a task's result, which is MessagePack or, from writers in other languages, JSON text. No MessagePack map begins
/// with the byte that a JSON object begins with.
///
/// # Errors
/// It can't be read, or there is something behind it.
pub fn read_result(bytes: &[u8]) -> Result<TaskResult, Garbage> {
    const WHAT: &str = "a result";
    if bytes.first() == Some(&b'{') {
        return serde_json::from_slice(bytes).map_err(|e| unreadable(WHAT, &e));
    }
    read(bytes, WHAT)
}

fn json_envelope(payload: &[u8]) -> Result<JsonEnvelope, Garbage> {
    serde_json::from_slice(payload).map_err(|e| unreadable("the envelope", &e))
}

fn recognise<M: Message>(kind: &str, version: u16) -> Result<(), Garbage> {
    if kind != M::KIND {
        return Err(Garbage::WrongKind { found: kind.into(), expected: M::KIND });
    }
    if version == 0 || version > M::VERSION {
        return Err(Garbage::UnknownVersion { kind: kind.into(), found: version, known: M::VERSION });
    }
    Ok(())
}

fn unreadable(what: &str, why: &dyn std::fmt::Display) -> Garbage {
    Garbage::Unreadable { what: what.into(), why: why.to_string() }
}
