//! Objects of an object store (ADR-20), read and written without the client library's own implementation, for two
//! reasons: that creates a consumer per object that it reads, and a stream has at most a thousand; and it deletes the
//! earlier version of an object that it writes, for which workers and clients have no permission. Here nothing is ever
//! overwritten: the parts of an object and its description are messages, and a new version has a new description after
//! the old one.

use async_nats::Client;
use async_nats::jetstream::context::{Context, PublishAckFuture};
use async_nats::jetstream::{ErrorCode, message::PublishMessage};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::direct_get::{self, PagedReader};
use super::error::{fault_from_client_error, jetstream_error_code};
use super::provenance::{ID_HEADER, ORIGIN_HEADER, Provenance, new_id};
use super::record::StreamRecord;
use super::topology::names::object_stream;
use crate::Fault;

/// The size of a part in bytes, as in other clients.
const PART_SIZE: usize = 128 * 1024;
/// The maximum number of parts that wait for their acknowledgements.
const MAX_IN_FLIGHT: usize = 8;
/// The number of parts per request of a read.
const PARTS_PER_PAGE: usize = 64;
/// The error code of the server for "the last sequence of the subject is another one".
const WRONG_LAST_SEQUENCE: ErrorCode = ErrorCode(10071);

/// The description of an object, in the format that all clients share (ADR-20).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ObjectInfo {
    pub name: String,
    bucket: String,
    /// The token in the subject of its parts.
    pub nuid: String,
    /// Its size in bytes.
    #[serde(default)]
    pub size: u64,
    #[serde(default)]
    chunks: u64,
    #[serde(default)]
    digest: String,
    /// `true` if the object is deleted.
    #[serde(default)]
    pub deleted: bool,
}

/// A stored description of an object.
#[derive(Debug, Clone)]
pub(crate) struct StoredObjectInfo {
    /// Its sequence in the stream.
    pub sequence: u64,
    /// Its provenance. Programs before 0.4 set no id, so their descriptions look forged.
    pub provenance: Provenance,
    /// When the server stored it.
    pub at: jiff::Timestamp,
    /// Its content.
    pub info: ObjectInfo,
}

impl StoredObjectInfo {
    /// Parses a description; `None` if it is unreadable, or on the subject of another object.
    pub fn parse(bucket: &str, record: &StreamRecord) -> Option<Self> {
        let info: ObjectInfo = serde_json::from_slice(&record.payload).ok()?;
        let is_own = *record.subject == *object_info_subject(bucket, &info.name) && info.has_valid_nuid();
        let (sequence, provenance, at) = (record.sequence, record.provenance, record.time);
        is_own.then_some(Self { sequence, provenance, at, info })
    }
}

impl ObjectInfo {
    /// Returns the description that deletes the object.
    pub fn into_deleted(self) -> Self {
        Self { deleted: true, ..self }
    }

    /// `true` if the token can be in a subject: an invalid one could contain a wildcard and match the parts of other objects.
    fn has_valid_nuid(&self) -> bool {
        !self.nuid.is_empty() && self.nuid.bytes().all(|byte| byte.is_ascii_alphanumeric())
    }
}

/// Returns all descriptions of an object, oldest first. Unreadable ones are ignored.
///
/// # Errors
/// The server does not respond.
pub(crate) async fn read_object_descriptions(
    client: &Client,
    bucket: &str,
    name: &str,
) -> Result<Vec<StoredObjectInfo>, Fault> {
    let records =
        direct_get::read_matching(client, &object_stream(bucket), &object_info_subject(bucket, name), 1)
            .await?;
    let descriptions = records.into_iter().filter_map(|record| {
        let info = serde_json::from_slice(&record.payload).ok()?;
        let (sequence, provenance, at) = (record.sequence, record.provenance, record.time);
        Some(StoredObjectInfo { sequence, provenance, at, info })
    });
    Ok(descriptions.collect())
}

/// Returns the valid description of an object: the last one that a program of this version has published, or else the
/// first one of an older program, which published only one.
///
/// # Errors
/// The server does not respond.
pub(crate) async fn read_valid_description(
    client: &Client,
    bucket: &str,
    name: &str,
) -> Result<Option<StoredObjectInfo>, Fault> {
    let mut descriptions = read_object_descriptions(client, bucket, name).await?;
    if let Some(last) = descriptions.iter().rposition(|stored| !stored.provenance.is_forged()) {
        return Ok(Some(descriptions.swap_remove(last)));
    }
    for stored in descriptions {
        if is_from_older_program(client, bucket, stored.sequence).await? {
            return Ok(Some(stored));
        }
    }
    Ok(None)
}

/// Returns `true` if a message without an id was published by the client library, with which programs before 0.4 wrote
/// objects: it has a rollup header. A redirected server reply has no such header, or a second [`ORIGIN_HEADER`].
async fn is_from_older_program(client: &Client, bucket: &str, sequence: u64) -> Result<bool, Fault> {
    let what = || format!("reading message {sequence} of bucket {bucket}");
    let request = serde_json::json!({ "seq": sequence }).to_string();
    let subject = format!("$JS.API.DIRECT.GET.{}", object_stream(bucket));
    let response = client.request(subject, request.into()).await;
    let response = response.map_err(|error| Fault::unavailable(what(), error))?;
    if let Some(status) = response.status {
        return Err(Fault::unavailable(what(), response.description.unwrap_or_else(|| status.to_string())));
    }
    Ok(response.headers.is_some_and(|headers| {
        headers.get(async_nats::header::NATS_ROLLUP).is_some() && headers.get_all(ORIGIN_HEADER).count() == 1
    }))
}

/// Returns the content of an object if it matches its description; `None` if it is incomplete or differs. Forged parts
/// are ignored, unless the description comes from an older program, whose parts look the same.
///
/// # Errors
/// The server does not respond.
pub(crate) async fn read_verified_object(
    client: &Client,
    bucket: &str,
    stored: &StoredObjectInfo,
) -> Result<Option<Vec<u8>>, Fault> {
    let is_part = |part: &StreamRecord| stored.provenance.is_forged() || !part.is_forged();
    let content = read_and_join_parts(client, bucket, &stored.info, is_part).await?;
    Ok(content.filter(|content| stored.info.digest == format_digest(&Sha256::digest(content))))
}

/// Returns the content of an object without checking its digest; `None` if parts are missing, or not yet there.
///
/// # Errors
/// The server does not respond.
pub(crate) async fn read_unverified_object(
    client: &Client,
    bucket: &str,
    info: &ObjectInfo,
) -> Result<Option<Vec<u8>>, Fault> {
    read_and_join_parts(client, bucket, info, |_| true).await
}

/// Joins the parts of an object that `is_part` accepts; `None` if some are missing.
async fn read_and_join_parts(
    client: &Client,
    bucket: &str,
    info: &ObjectInfo,
    is_part: impl Fn(&StreamRecord) -> bool,
) -> Result<Option<Vec<u8>>, Fault> {
    if !info.has_valid_nuid() {
        return Ok(None);
    }
    let size = usize::try_from(info.size).unwrap_or(usize::MAX);
    let mut content = Vec::new();
    let subject = object_parts_subject(bucket, &info.nuid);
    let mut pages =
        PagedReader::new(client, object_stream(bucket), subject, 1).with_page_size(PARTS_PER_PAGE);
    // Others may have added any number of parts: no more of them are read than the object has bytes.
    while content.len() < size {
        let records = pages.next_page().await?;
        if records.is_empty() {
            break;
        }
        for part in records.iter().filter(|part| is_part(part)) {
            content.extend_from_slice(&part.payload);
        }
    }
    if content.len() < size {
        return Ok(None);
    }
    // Anything after that size was added after the object was described.
    content.truncate(size);
    Ok(Some(content))
}

/// Writes an object with this SHA-256. `last` is the sequence of its last description, 0 if there is none. Returns
/// `false` if another description was added meanwhile.
///
/// # Errors
/// The server does not respond or is full.
pub(crate) async fn write_object(
    context: &Context,
    bucket: &str,
    name: &str,
    bytes: &[u8],
    digest: &[u8],
    last: u64,
) -> Result<bool, Fault> {
    let what = format!("storing object {name} in bucket {bucket}");
    let nuid = new_id();
    let subject = object_parts_subject(bucket, &nuid);
    let mut in_flight: Vec<PublishAckFuture> = Vec::with_capacity(MAX_IN_FLIGHT);
    for parts in bytes.chunks(PART_SIZE * MAX_IN_FLIGHT) {
        for part in parts.chunks(PART_SIZE) {
            let part = message_with_id(Bytes::copy_from_slice(part));
            let sent = context.send_publish(subject.clone(), part).await;
            in_flight.push(sent.map_err(|error| fault_from_client_error(&what, error))?);
        }
        for acknowledgement in in_flight.drain(..) {
            acknowledgement.await.map_err(|error| fault_from_client_error(&what, error))?;
        }
    }
    let info = ObjectInfo {
        name: name.into(),
        bucket: bucket.into(),
        nuid,
        size: bytes.len() as u64,
        chunks: bytes.len().div_ceil(PART_SIZE) as u64,
        digest: format_digest(digest),
        deleted: false,
    };
    Ok(append_description(context, bucket, &info, last).await?.is_some())
}

/// Appends a description of an object whose last one has the sequence `last`, 0 if there is none. Returns its sequence; `None`
/// if another description was added meanwhile.
///
/// # Errors
/// The server does not respond or is full.
pub(crate) async fn append_description(
    context: &Context,
    bucket: &str,
    info: &ObjectInfo,
    last: u64,
) -> Result<Option<u64>, Fault> {
    let what = format!("describing object {} in bucket {bucket}", info.name);
    let payload = serde_json::to_vec(info).expect("an object's description serialises to JSON");
    let message = message_with_id(payload.into()).expected_last_subject_sequence(last);
    let sent = context.send_publish(object_info_subject(bucket, &info.name), message).await;
    match sent.map_err(|error| fault_from_client_error(&what, error))?.await {
        Ok(acknowledgement) => Ok(Some(acknowledgement.sequence)),
        Err(error) if jetstream_error_code(&error) == Some(WRONG_LAST_SEQUENCE) => Ok(None),
        Err(error) => Err(fault_from_client_error(&what, error)),
    }
}

/// Removes the descriptions of an object before sequence `before`.
///
/// # Errors
/// The server does not respond.
pub(crate) async fn remove_descriptions(
    context: &Context,
    bucket: &str,
    name: &str,
    before: u64,
) -> Result<(), Fault> {
    purge_subject(context, bucket, object_info_subject(bucket, name), Some(before)).await
}

/// Removes the messages of a subject of an object store, those before a sequence if there is one.
async fn purge_subject(
    context: &Context,
    bucket: &str,
    subject: String,
    before: Option<u64>,
) -> Result<(), Fault> {
    let what = format!("removing {subject} from bucket {bucket}");
    let stream = context.get_stream_no_info(object_stream(bucket)).await;
    let stream = stream.map_err(|error| fault_from_client_error(&what, error))?;
    let purge = stream.purge().filter(subject);
    let purged = match before {
        Some(before) => purge.sequence(before).await,
        None => purge.await,
    };
    purged.map(|_| ()).map_err(|error| fault_from_client_error(&what, error))
}

/// Removes the content of a version of an object.
///
/// # Errors
/// The server does not respond.
pub(crate) async fn remove_object_parts(
    context: &Context,
    bucket: &str,
    info: &ObjectInfo,
) -> Result<(), Fault> {
    // Descriptions come from whoever may write objects.
    if !info.has_valid_nuid() {
        return Ok(());
    }
    purge_subject(context, bucket, object_parts_subject(bucket, &info.nuid), None).await
}

fn message_with_id(payload: Bytes) -> PublishMessage {
    PublishMessage::build().payload(payload).header(ID_HEADER, new_id().as_str())
}

fn format_digest(digest: &[u8]) -> String {
    format!("SHA-256={}", URL_SAFE.encode(digest))
}

/// Returns the subject of an object's descriptions.
pub(crate) fn object_info_subject(bucket: &str, name: &str) -> String {
    format!("$O.{bucket}.M.{}", URL_SAFE.encode(name))
}

/// Returns the subject of an object's parts.
pub(crate) fn object_parts_subject(bucket: &str, nuid: &str) -> String {
    format!("$O.{bucket}.C.{nuid}")
}
