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
use sha2::{Digest, Sha256};

use crate::record::{ID_HEADER, ORIGIN_HEADER, Record, made_id};
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
    /// Whether nobody knows who said it: see [`crate::record::is_stray`]. Older programs left no mark.
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

/// What is said of an object by somebody who may: the last that one of ours has said, and where none has, the first that
/// an older program has, since then there was only one.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn genuine(client: &Client, bucket: &str, name: &str) -> Result<Option<Said>, Fault> {
    let mut said = said(client, bucket, name).await?;
    if let Some(ours) = said.iter().rposition(|said| !said.is_stray) {
        return Ok(Some(said.swap_remove(ours)));
    }
    for said in said {
        if is_of_older_program(client, bucket, said.sequence).await? {
            return Ok(Some(said));
        }
    }
    Ok(None)
}

/// Whether a message without our mark was written by the client library, by which older programs wrote objects: it has
/// the header that takes the message before it away. An answer of the server has none, or says where it is from beside.
async fn is_of_older_program(client: &Client, bucket: &str, sequence: u64) -> Result<bool, Fault> {
    let what = || format!("reading message {sequence} of bucket {bucket}");
    let question = serde_json::json!({ "seq": sequence }).to_string();
    let subject = format!("$JS.API.DIRECT.GET.{}", object_stream(bucket));
    let answer = client.request(subject, question.into()).await;
    let answer = answer.map_err(|error| Fault::unavailable(what(), error))?;
    if let Some(status) = answer.status {
        return Err(Fault::unavailable(what(), answer.description.unwrap_or_else(|| status.to_string())));
    }
    Ok(answer.headers.is_some_and(|headers| {
        headers.get(async_nats::header::NATS_ROLLUP).is_some() && headers.get_all(ORIGIN_HEADER).count() == 1
    }))
}

/// The content of an object as it was described; `None` if it is not all there, or another one. Where one of ours has
/// described it, parts that nobody wrote there are passed over.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn described(client: &Client, bucket: &str, said: &Said) -> Result<Option<Vec<u8>>, Fault> {
    let counts = |part: &Record| said.is_stray || !part.is_stray;
    let content = collect(client, bucket, &said.info, counts).await?;
    Ok(content.filter(|content| said.info.digest == digest_text(&Sha256::digest(content))))
}

/// The content of an object; `None` if not all of it is there, or not yet.
///
/// # Errors
/// The server does not answer.
pub(crate) async fn whole(client: &Client, bucket: &str, info: &Info) -> Result<Option<Vec<u8>>, Fault> {
    collect(client, bucket, info, |_| true).await
}

/// The parts of an object that count, put together; `None` if some are missing.
async fn collect(
    client: &Client,
    bucket: &str,
    info: &Info,
    counts: impl Fn(&Record) -> bool,
) -> Result<Option<Vec<u8>>, Fault> {
    // What is no token names no parts, or all.
    if info.nuid.is_empty() || !info.nuid.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Ok(None);
    }
    let size = usize::try_from(info.size).unwrap_or(usize::MAX);
    let mut content = Vec::new();
    let found = direct::read(client, &object_stream(bucket), &parts(bucket, &info.nuid), 1).await?;
    for part in found.iter().filter(|part| counts(part)) {
        content.extend_from_slice(&part.payload);
    }
    if content.len() < size {
        return Ok(None);
    }
    // What stands behind it was not there when it was described.
    content.truncate(size);
    Ok(Some(content))
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
        digest: digest_text(digest),
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

fn digest_text(digest: &[u8]) -> String {
    format!("SHA-256={}", URL_SAFE.encode(digest))
}

/// Where something is said of an object.
pub(crate) fn about(bucket: &str, name: &str) -> String {
    format!("$O.{bucket}.M.{}", URL_SAFE.encode(name))
}

/// Where the parts of an object are.
fn parts(bucket: &str, nuid: &str) -> String {
    format!("$O.{bucket}.C.{nuid}")
}
