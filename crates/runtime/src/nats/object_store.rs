//! Objects of an object store (ADR-20), read and written without the client library's own implementation, for two
//! reasons: that creates a consumer per object that it reads, and a stream has at most a thousand; and it deletes the
//! earlier version of an object that it writes, for which workers and clients have no permission. Here nothing is ever
//! overwritten: the parts of an object and its description are messages, and a new version has a new description after
//! the old one.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use async_nats::Client;
use async_nats::jetstream::context::{Context, PublishAckFuture};
use async_nats::jetstream::{ErrorCode, message::PublishMessage};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::direct_get::{self, PagedReader};
use super::record::{ID_HEADER, Provenance, StreamRecord, new_id};
use super::topology::streams::object_stream;
use crate::Fault;
use crate::fault::{ClientResult, fault_from_client_error, jetstream_error_code};

/// The size of a part in bytes, as in other clients.
const PART_SIZE: usize = 128 * 1024;
/// The number of bytes that are sent before their acknowledgements are awaited.
const BATCH_SIZE: usize = 8 * PART_SIZE;
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
    pub provenance: Provenance,
    /// When the server stored it.
    pub at: jiff::Timestamp,
    /// Its content.
    pub info: ObjectInfo,
}

impl StoredObjectInfo {
    /// Parses a description; `None` if it is unreadable.
    fn from_record(record: &StreamRecord) -> Option<Self> {
        let info: ObjectInfo = serde_json::from_slice(&record.payload).ok()?;
        let (sequence, provenance, at) = (record.sequence, record.provenance, record.time);
        Some(Self { sequence, provenance, at, info })
    }

    /// Parses a description; `None` if it is unreadable, or on the subject of another object.
    pub fn parse(bucket: &str, record: &StreamRecord) -> Option<Self> {
        Self::from_record(record).filter(|stored| {
            *record.subject == *object_info_subject(bucket, &stored.info.name) && stored.info.has_valid_nuid()
        })
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
pub(crate) async fn read_object_descriptions(
    client: &Client,
    bucket: &str,
    name: &str,
) -> Result<Vec<StoredObjectInfo>, Fault> {
    let records =
        direct_get::read_matching(client, &object_stream(bucket), &object_info_subject(bucket, name), 1)
            .await?;
    let descriptions = records.iter().filter_map(StoredObjectInfo::from_record);
    Ok(descriptions.collect())
}

/// Returns the sequence of the last description of an object, valid or not; 0 if there is none.
pub(crate) async fn read_last_description_sequence(
    client: &Client,
    bucket: &str,
    name: &str,
) -> Result<u64, Fault> {
    let subject = object_info_subject(bucket, name);
    let last = direct_get::read_last_of_subject(client, &object_stream(bucket), &subject).await?;
    Ok(last.map_or(0, |record| record.sequence))
}

/// Returns the valid description of an object: the last one that is not forged.
pub(crate) async fn read_valid_description(
    client: &Client,
    bucket: &str,
    name: &str,
) -> Result<Option<StoredObjectInfo>, Fault> {
    let subject = object_info_subject(bucket, name);
    let Some(last) = direct_get::read_last_of_subject(client, &object_stream(bucket), &subject).await? else {
        return Ok(None);
    };
    if let Some(stored) = StoredObjectInfo::from_record(&last)
        && !stored.provenance.is_forged()
    {
        return Ok(Some(stored));
    }
    let descriptions = read_object_descriptions(client, bucket, name).await?;
    Ok(descriptions.into_iter().rfind(|stored| !stored.provenance.is_forged()))
}

/// Returns the content of an object if it matches its description; `None` if it is incomplete or differs. Forged parts
/// are ignored.
pub(crate) async fn read_verified_object(
    client: &Client,
    bucket: &str,
    stored: &StoredObjectInfo,
) -> Result<Option<Vec<u8>>, Fault> {
    let content = read_and_join_parts(client, bucket, &stored.info, |part| !part.is_forged()).await?;
    Ok(content.filter(|content| stored.info.digest == format_digest(&Sha256::digest(content))))
}

/// Returns the content of an object without checking its digest; `None` if parts are missing, or not yet there.
pub(crate) async fn read_unverified_object(
    client: &Client,
    bucket: &str,
    info: &ObjectInfo,
) -> Result<Option<Vec<u8>>, Fault> {
    read_and_join_parts(client, bucket, info, |_| true).await
}

/// Returns the SHA-256 of the content of an object, one part in memory at a time; `None` if parts are missing, or not yet
/// there.
pub(crate) async fn hash_object(
    client: &Client,
    bucket: &str,
    info: &ObjectInfo,
) -> Result<Option<Vec<u8>>, Fault> {
    let mut parts = ObjectParts::new(client, bucket, info);
    let mut hash = Sha256::new();
    while let Some(part) = parts.next_part(&|_| true).await? {
        hash.update(&part);
    }
    Ok(parts.is_complete().then(|| hash.finalize().to_vec()))
}

/// Joins the parts of an object that `is_part` accepts; `None` if some are missing.
async fn read_and_join_parts(
    client: &Client,
    bucket: &str,
    info: &ObjectInfo,
    is_part: impl Fn(&StreamRecord) -> bool + Sync,
) -> Result<Option<Vec<u8>>, Fault> {
    let mut parts = ObjectParts::new(client, bucket, info);
    let mut content = Vec::new();
    while let Some(part) = parts.next_part(&is_part).await? {
        content.extend_from_slice(&part);
    }
    Ok(parts.is_complete().then_some(content))
}

/// Reads the parts of an object in their order.
pub(crate) struct ObjectParts {
    pages: PagedReader,
    page: std::vec::IntoIter<StreamRecord>,
    /// The bytes that are still to come. Others may have added any number of parts: no more are read than the object has.
    missing: u64,
    is_valid: bool,
}

impl ObjectParts {
    /// Starts at the first part. Sends no request.
    pub fn new(client: &Client, bucket: &str, info: &ObjectInfo) -> Self {
        let subject = object_parts_subject(bucket, &info.nuid);
        let pages =
            PagedReader::new(client, object_stream(bucket), subject, 1).with_page_size(PARTS_PER_PAGE);
        Self { pages, page: Vec::new().into_iter(), missing: info.size, is_valid: info.has_valid_nuid() }
    }

    /// Returns the next part that `is_part` accepts; `None` after the last byte of the object, or if parts are missing.
    pub async fn next_part(
        &mut self,
        is_part: &(dyn Fn(&StreamRecord) -> bool + Sync),
    ) -> Result<Option<Bytes>, Fault> {
        while self.is_valid && self.missing > 0 {
            let Some(record) = self.page.next() else {
                let records = self.pages.next_page().await?;
                if records.is_empty() {
                    break;
                }
                self.page = records.into_iter();
                continue;
            };
            if is_part(&record) {
                // Anything after that size was added after the object was described.
                let length = usize::try_from(self.missing).unwrap_or(usize::MAX).min(record.payload.len());
                self.missing -= length as u64;
                return Ok(Some(record.payload.slice(..length)));
            }
        }
        Ok(None)
    }

    /// `true` if the whole object was read.
    pub fn is_complete(&self) -> bool {
        self.is_valid && self.missing == 0
    }
}

/// The content of an object that is written.
#[derive(Clone)]
pub(crate) enum ObjectContent<'a> {
    /// It is in memory.
    Bytes(&'a [u8]),
    /// It is in a file, which is read when it is sent.
    File {
        file: Arc<File>,
        /// The number of its bytes.
        size: u64,
    },
}

impl ObjectContent<'_> {
    /// Its number of bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { size, .. } => *size,
        }
    }

    /// Computes its SHA-256. A file is read on another thread.
    /// Errors: the file can't be read, or is shorter than its size.
    pub async fn digest(&self) -> std::io::Result<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Ok(Sha256::digest(bytes).to_vec()),
            Self::File { file, size } => {
                let (file, size) = (file.clone(), *size);
                let hashing = tokio::task::spawn_blocking(move || {
                    let (mut hash, mut at) = (Sha256::new(), 0);
                    while at < size {
                        let batch = read_batch(&file, at, size)?;
                        at += batch.len() as u64;
                        hash.update(&batch);
                    }
                    Ok(hash.finalize().to_vec())
                });
                hashing.await.map_err(std::io::Error::other)?
            }
        }
    }

    /// Returns the bytes from `at` on, as many as are sent at once.
    async fn read_batch(&self, at: u64) -> std::io::Result<Bytes> {
        match self {
            Self::Bytes(bytes) => {
                let at = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                let end = bytes.len().min(at + BATCH_SIZE);
                Ok(Bytes::copy_from_slice(&bytes[at..end]))
            }
            Self::File { file, size } => {
                let (file, size) = (file.clone(), *size);
                let reading = tokio::task::spawn_blocking(move || read_batch(&file, at, size));
                reading.await.map_err(std::io::Error::other)?.map(Bytes::from)
            }
        }
    }
}

fn read_batch(file: &File, at: u64, size: u64) -> std::io::Result<Vec<u8>> {
    let length = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX).min(BATCH_SIZE);
    let mut batch = vec![0; length];
    file.read_exact_at(&mut batch, at)?;
    Ok(batch)
}

/// Writes an object with this SHA-256. `last` is the sequence of its last description, 0 if there is none. Returns
/// `false` if another description was added meanwhile.
/// Errors: the server does not respond or is full, or the content can't be read or has changed since its digest was computed.
pub(crate) async fn write_object(
    context: &Context,
    bucket: &str,
    name: &str,
    content: &ObjectContent<'_>,
    digest: &[u8],
    last: u64,
) -> Result<bool, Fault> {
    let what = format!("storing object {name} in bucket {bucket}");
    let (nuid, size) = (new_id(), content.size());
    let subject = object_parts_subject(bucket, &nuid);
    let (mut at, mut hash) = (0, Sha256::new());
    while at < size {
        let batch = content.read_batch(at).await.map_err(|error| Fault::unavailable(&*what, error))?;
        hash.update(&batch);
        let mut in_flight: Vec<PublishAckFuture> = Vec::with_capacity(BATCH_SIZE / PART_SIZE);
        for start in (0..batch.len()).step_by(PART_SIZE) {
            let part = message_with_id(batch.slice(start..batch.len().min(start + PART_SIZE)));
            let sent = context.send_publish(subject.clone(), part).await;
            in_flight.push(sent.or_fault(&what)?);
        }
        for acknowledgement in in_flight {
            acknowledgement.await.or_fault(&what)?;
        }
        at += batch.len() as u64;
    }
    if *hash.finalize() != *digest {
        return Err(Fault::unavailable(what, "the file changed while it was stored"));
    }
    let info = ObjectInfo {
        name: name.into(),
        bucket: bucket.into(),
        nuid,
        size,
        chunks: size.div_ceil(PART_SIZE as u64),
        digest: format_digest(digest),
        deleted: false,
    };
    Ok(append_description(context, bucket, &info, last).await?.is_some())
}

/// Appends a description of an object whose last one has the sequence `last`, 0 if there is none. Returns its sequence; `None`
/// if another description was added meanwhile.
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
    match sent.or_fault(&what)?.await {
        Ok(acknowledgement) => Ok(Some(acknowledgement.sequence)),
        Err(error) if jetstream_error_code(&error) == Some(WRONG_LAST_SEQUENCE) => Ok(None),
        Err(error) => Err(fault_from_client_error(&what, error)),
    }
}

/// Removes the descriptions of an object before sequence `before`.
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
    let stream = context.get_stream_no_info(object_stream(bucket)).await.or_fault(&what)?;
    let purge = stream.purge().filter(subject);
    let purged = match before {
        Some(before) => purge.sequence(before).await,
        None => purge.await,
    };
    purged.map(|_| ()).or_fault(&what)
}

/// Removes the content of a version of an object.
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
