//! The objects of an object store, written and read by hand. The client library makes a consumer for each object that it
//! reads, and a stream has a thousand of them at the most, which a thousand documents use up; and it writes an object
//! by taking the one before it away, which nobody may who may only write. Here what is there stays: the parts of an
//! object and what is said of it are messages, and what is said of it again comes behind.

use async_nats::Client;
use async_nats::jetstream::context::{Context, PublishAckFuture};
use async_nats::jetstream::{ErrorCode, message::PublishMessage};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::bus::ID_HEADER;
use crate::topology::{code, fault, object_stream};
use crate::{Fault, direct};

/// The size of a part in bytes, as other clients choose it.
const PART: usize = 128 * 1024;
/// How many parts are on their way at once.
const UNDER_WAY: usize = 8;
/// The code of "the last message of the subject is another one".
const WRONG_LAST_SEQUENCE: ErrorCode = ErrorCode(10071);

/// What is said of an object, in the words that all clients share (ADR-20).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Info {
    name: String,
    bucket: String,
    /// The token of the subject of its parts.
    pub nuid: String,
    /// Its size in bytes.
    #[serde(default)]
    pub size: u64,
    #[serde(default)]
    chunks: u64,
    #[serde(default)]
    digest: String,
    /// Whether it says that the object is gone.
    #[serde(default)]
    pub deleted: bool,
}

/// What is said of an object, as it stands in the store.
pub(crate) struct Said {
    /// Where.
    pub sequence: u64,
    /// Whether nobody knows who said it: see [`crate::bus::is_stray`]. Older programs left no mark.
    pub is_stray: bool,
    /// What.
    pub info: Info,
}

/// All that is said of an object, oldest first. What can't be read is passed over.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn said(client: &Client, bucket: &str, name: &str) -> Result<Vec<Said>, Fault> {
    let records = direct::read(client, &object_stream(bucket), &about(bucket, name), 1).await?;
    let said = records.into_iter().filter_map(|record| {
        let info = serde_json::from_slice(&record.payload).ok()?;
        Some(Said { sequence: record.sequence, is_stray: record.is_stray, info })
    });
    Ok(said.collect())
}

/// The content of an object.
///
/// # Errors
/// The server does not answer, or has not all of it: on a replicated bucket, the copy that answers may lag.
pub(crate) async fn content(client: &Client, bucket: &str, info: &Info) -> Result<Vec<u8>, Fault> {
    let size = usize::try_from(info.size).unwrap_or(usize::MAX);
    let mut content = Vec::new();
    for part in direct::read(client, &object_stream(bucket), &parts(bucket, &info.nuid), 1).await? {
        content.extend_from_slice(&part.payload);
    }
    if content.len() < size {
        let what = format!("reading object {} of bucket {bucket}", info.name);
        return Err(Fault::unavailable(what, format!("{} of {size} bytes are there", content.len())));
    }
    // What stands behind it was not there when it was described.
    content.truncate(size);
    Ok(content)
}

/// Writes an object with this SHA-256, where the last that was said of it stands at `last` (0 if nothing was). Says
/// whether that was still so.
///
/// # Errors
/// The server does not answer or is full.
pub(crate) async fn write(
    context: &Context,
    bucket: &str,
    name: &str,
    bytes: &[u8],
    digest: &[u8],
    last: u64,
) -> Result<bool, Fault> {
    let what = format!("storing object {name} in bucket {bucket}");
    let nuid = made_id();
    let subject = parts(bucket, &nuid);
    let mut under_way: Vec<PublishAckFuture> = Vec::with_capacity(UNDER_WAY);
    for parts in bytes.chunks(PART * UNDER_WAY) {
        for part in parts.chunks(PART) {
            let part = message(Bytes::copy_from_slice(part));
            let sent = context.send_publish(subject.clone(), part).await;
            under_way.push(sent.map_err(|error| fault(&what, &error))?);
        }
        for sent in under_way.drain(..) {
            sent.await.map_err(|error| fault(&what, &error))?;
        }
    }
    let info = Info {
        name: name.into(),
        bucket: bucket.into(),
        nuid,
        size: bytes.len() as u64,
        chunks: bytes.len().div_ceil(PART) as u64,
        digest: format!("SHA-256={}", URL_SAFE.encode(digest)),
        deleted: false,
    };
    let info = serde_json::to_vec(&info).expect("texts and numbers have a form in JSON");
    let info = message(info.into()).expected_last_subject_sequence(last);
    let sent = context.send_publish(about(bucket, name), info).await.map_err(|error| fault(&what, &error))?;
    match sent.await {
        Ok(_) => Ok(true),
        Err(error) if code(&error) == Some(WRONG_LAST_SEQUENCE) => Ok(false),
        Err(error) => Err(fault(&what, &error)),
    }
}

/// Takes the content of an object away of which something else is said by now.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn forget(context: &Context, bucket: &str, info: &Info) -> Result<(), Fault> {
    let what = format!("removing an earlier content of {} from bucket {bucket}", info.name);
    let stream =
        context.get_stream_no_info(object_stream(bucket)).await.map_err(|error| fault(&what, &error))?;
    let purged = stream.purge().filter(parts(bucket, &info.nuid)).await;
    purged.map(|_| ()).map_err(|error| fault(&what, &error))
}

fn message(payload: Bytes) -> PublishMessage {
    PublishMessage::build().payload(payload).header(ID_HEADER, made_id().as_str())
}

fn made_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// Where something is said of an object.
fn about(bucket: &str, name: &str) -> String {
    format!("$O.{bucket}.M.{}", URL_SAFE.encode(name))
}

/// Where the parts of an object are.
fn parts(bucket: &str, nuid: &str) -> String {
    format!("$O.{bucket}.C.{nuid}")
}
