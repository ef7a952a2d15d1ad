//! Taking and restoring the server's snapshots of a stream, which the client library does not support. Subjects, fields
//! and flow control are those of `server/jetstream_api.go` of nats-server 2.12 to 2.15 (types
//! `io.nats.jetstream.api.v1.stream_snapshot_*` and `stream_restore_*`).
//!
//! ```text
//! copy     request STREAM.SNAPSHOT.<stream> {deliver_subject} ─▶ {config, state}
//!          chunks arrive on that subject, each with a reply subject …<size>.<index> to acknowledge it, up to a window at
//!          once; the last chunk has no reply subject; then an empty message, with a status if something failed
//! restore  request STREAM.RESTORE.<stream> {config, state} ─▶ {deliver_subject}
//!          chunks go to that subject; the response to each is empty, or an error in JSON; then an empty message, whose
//!          response comes when the stream is restored
//! ```

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use async_nats::{Client, Message, RequestErrorKind, StatusCode, Subscriber};
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::folder::{ChecksummedFile, file_error};
use super::{BackupError, BackupProgress, OnBackupProgress};

/// The subject of snapshot requests.
const SNAPSHOT: &str = "$JS.API.STREAM.SNAPSHOT";
/// The subject of restore requests.
const RESTORE: &str = "$JS.API.STREAM.RESTORE";
/// The chunk size in both directions: the default of the server, well below the maximum message size.
const CHUNK: usize = 128 * 1024;
/// The number of unacknowledged bytes. The default of the server, 8 MiB, is too much for a slow network.
const WINDOW: usize = 2 * 1024 * 1024;
/// The timeout of the next message of the server. The server itself gives up after 5 s without an acknowledgement.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of a request. The server does not respond to an identity without permission.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of the server's recovery of a stream that it has received in full.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(1_800);
/// The number of bytes between two progress reports.
const PROGRESS_INTERVAL: u64 = 16 * 1024 * 1024;

/// A copied stream.
pub struct StreamCopyInfo {
    /// Its configuration.
    pub config: Value,
    /// Its state when the copy was started.
    pub state: Value,
}

/// Copies a stream while it is written to.
pub fn copy_stream_snapshot<'a>(
    client: &'a Client,
    stream: &'a str,
    output: &'a mut ChecksummedFile,
    on_progress: OnBackupProgress<'a>,
) -> BoxFuture<'a, Result<StreamCopyInfo, BackupError>> {
    Box::pin(async move {
        let failed = |why: String| BackupError::Stream { what: "copying", stream: stream.into(), why };
        let deliver = client.new_inbox();
        let mut chunks =
            client.subscribe(deliver.clone()).await.map_err(|error| failed(error.to_string()))?;
        let request = json!({
            "deliver_subject": deliver, "no_consumers": true, "chunk_size": CHUNK, "window_size": WINDOW,
        });
        let mut response =
            send_request(client, &format!("{SNAPSHOT}.{stream}"), &request).await.map_err(&failed)?;
        let (mut index, mut frames, mut next) = (0, S2FrameTracker::default(), PROGRESS_INTERVAL);
        while let Some(chunk) = next_message_within(MESSAGE_TIMEOUT, &mut chunks).await.map_err(&failed)? {
            if let Some(reply) = &chunk.reply {
                index += 1;
                if reply.rsplit('.').next() != Some(&index.to_string()) {
                    return Err(failed(format!("chunk {index} was lost")));
                }
                let sent = client.publish(reply.clone(), Bytes::new()).await;
                sent.map_err(|error| failed(error.to_string()))?;
            }
            if chunk.payload.is_empty() {
                check_snapshot_complete(&chunk, &frames).map_err(&failed)?;
                on_progress(BackupProgress {
                    operation: "copying",
                    what: stream,
                    bytes: output.written_bytes(),
                    is_done: true,
                });
                return Ok(StreamCopyInfo {
                    config: response["config"].take(),
                    state: response["state"].take(),
                });
            }
            frames.track_bytes(&chunk.payload);
            output.write_bytes(&chunk.payload)?;
            if output.written_bytes() >= next {
                next += PROGRESS_INTERVAL;
                on_progress(BackupProgress {
                    operation: "copying",
                    what: stream,
                    bytes: output.written_bytes(),
                    is_done: false,
                });
            }
        }
        Err(failed("the connection was closed".into()))
    })
}

/// Checks that the server completed the snapshot, and that it ends with a complete frame.
fn check_snapshot_complete(end: &Message, frames: &S2FrameTracker) -> Result<(), String> {
    match end.status {
        None | Some(StatusCode::OK) => {}
        Some(status) if status.as_u16() == 204 => {}
        Some(status) => {
            let why = end.description.as_deref().unwrap_or("no reason given");
            return Err(format!("the server aborted: {why} ({status})"));
        }
    }
    if frames.is_at_frame_end() { Ok(()) } else { Err("the last chunks were lost".into()) }
}

/// A snapshot to restore.
pub struct StreamSnapshot<'a> {
    /// The name of the stream.
    pub stream: &'a str,
    /// Its configuration.
    pub config: &'a Value,
    /// Its state when it was copied.
    pub state: &'a Value,
    /// The file with the snapshot.
    pub file: &'a Path,
}

/// Restores a stream. The server rejects an existing one. After a stop the stream does not exist.
pub fn restore_stream<'a>(
    client: &'a Client,
    snapshot: &'a StreamSnapshot<'a>,
    stop: &'a CancellationToken,
    on_progress: OnBackupProgress<'a>,
) -> BoxFuture<'a, Result<(), BackupError>> {
    Box::pin(async move {
        let StreamSnapshot { stream, config, state, file: from } = *snapshot;
        let failed = |why: String| BackupError::Stream { what: "restoring", stream: stream.into(), why };
        let reading = |why| file_error("reading", from, why);
        let mut opened = std::fs::File::open(from).map_err(reading)?;
        let request = json!({ "config": config, "state": state });
        let response =
            send_request(client, &format!("{RESTORE}.{stream}"), &request).await.map_err(&failed)?;
        let deliver = response["deliver_subject"].as_str().unwrap_or_default().to_owned();
        let reply = client.new_inbox();
        let mut responses =
            client.subscribe(reply.clone()).await.map_err(|error| failed(error.to_string()))?;
        let (mut in_flight, mut bytes, mut next) = (0, 0, PROGRESS_INTERVAL);
        loop {
            if stop.is_cancelled() {
                return Err(BackupError::Stopped);
            }
            let mut chunk = Vec::with_capacity(CHUNK);
            (&mut opened).take(CHUNK as u64).read_to_end(&mut chunk).map_err(reading)?;
            let is_last = chunk.is_empty();
            // The last chunk is sent after all others are acknowledged, so that the next response belongs to it.
            let room = if is_last { 0 } else { WINDOW / CHUNK - 1 };
            while in_flight > room {
                wait_for_ack(&mut responses).await.map_err(&failed)?;
                in_flight -= 1;
            }
            bytes += chunk.len() as u64;
            let sent = client.publish_with_reply(deliver.clone(), reply.clone(), chunk.into()).await;
            sent.map_err(|error| failed(error.to_string()))?;
            if is_last {
                break;
            }
            in_flight += 1;
            if bytes >= next {
                next += PROGRESS_INTERVAL;
                on_progress(BackupProgress { operation: "restoring", what: stream, bytes, is_done: false });
            }
        }
        let end = next_message_within(RECOVERY_TIMEOUT, &mut responses).await.map_err(&failed)?;
        let end = end.ok_or_else(|| failed("the connection was closed".into()))?;
        parse_response(&end.payload).map_err(&failed)?;
        on_progress(BackupProgress { operation: "restoring", what: stream, bytes, is_done: true });
        Ok(())
    })
}

/// Waits until the server has acknowledged a chunk.
async fn wait_for_ack(responses: &mut Subscriber) -> Result<(), String> {
    match next_message_within(MESSAGE_TIMEOUT, responses).await? {
        Some(answer) if answer.payload.is_empty() && answer.status.is_none() => Ok(()),
        Some(answer) if answer.payload.is_empty() => Err("the server rejected a chunk".into()),
        Some(answer) => {
            parse_response(&answer.payload).and(Err("the server stopped before the last chunk".into()))
        }
        None => Err("the connection was closed".into()),
    }
}

/// Sends a request of the JetStream API; the error is that of the server.
async fn send_request(client: &Client, subject: &str, request: &Value) -> Result<Value, String> {
    let request =
        async_nats::Request::new().payload(request.to_string().into()).timeout(Some(REQUEST_TIMEOUT));
    let answer =
        client.send_request(subject.to_owned(), request).await.map_err(|error| match error.kind() {
            RequestErrorKind::TimedOut => {
                "no response from the server; it does not respond without permission: use the identity `backup`"
                    .to_owned()
            }
            RequestErrorKind::NoResponders
            | RequestErrorKind::InvalidSubject
            | RequestErrorKind::MaxPayloadExceeded
            | RequestErrorKind::Other => error.to_string(),
        })?;
    parse_response(&answer.payload)
}

/// Parses a response of the JetStream API; the error is that of the server.
fn parse_response(payload: &[u8]) -> Result<Value, String> {
    let response: Value = serde_json::from_slice(payload)
        .map_err(|_| format!("unexpected response: {:?}", String::from_utf8_lossy(payload)))?;
    let error = &response["error"];
    if error.is_null() {
        return Ok(response);
    }
    let description = error["description"].as_str().unwrap_or("no reason given");
    Err(format!("{description} (error {})", error["err_code"]))
}

async fn next_message_within(
    timeout: Duration,
    messages: &mut Subscriber,
) -> Result<Option<Message>, String> {
    tokio::time::timeout(timeout, messages.next())
        .await
        .map_err(|_| format!("no message from the server for {} s", timeout.as_secs()))
}

/// Tracks the frames of an S2 stream: each has one byte of kind, three bytes of length, and the content. A stream that
/// ends within a frame is truncated.
#[derive(Default)]
struct S2FrameTracker {
    /// The bytes of the next header that have arrived.
    header: Vec<u8>,
    /// The remaining bytes of the current frame.
    left: usize,
    count: usize,
}

impl S2FrameTracker {
    fn track_bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let passed = self.left.min(bytes.len());
            (self.left, bytes) = (self.left - passed, &bytes[passed..]);
            let missing = if self.left > 0 { 0 } else { (4 - self.header.len()).min(bytes.len()) };
            self.header.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            if let [_, low, middle, high] = self.header[..] {
                self.left = usize::from(low) | usize::from(middle) << 8 | usize::from(high) << 16;
                self.count += 1;
                self.header.clear();
            }
        }
    }

    fn is_at_frame_end(&self) -> bool {
        self.left == 0 && self.header.is_empty() && self.count > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a stream of three frames, the second of which is empty.
    fn test_frames() -> Vec<u8> {
        let mut bytes = vec![0xff, 6, 0, 0];
        bytes.extend(b"S2sTwO");
        bytes.extend([0xfe, 0, 0, 0]);
        bytes.extend([0, 0x01, 0x01, 0]);
        bytes.extend(vec![7; 257]);
        bytes
    }

    #[test]
    fn snapshot_is_complete_only_at_the_end_of_a_frame() {
        let bytes = test_frames();
        for cut in 0..=bytes.len() {
            for size in [1, 3, 1_000] {
                let mut passed = S2FrameTracker::default();
                bytes[..cut].chunks(size).for_each(|piece| passed.track_bytes(piece));
                let ends = [10, 14, bytes.len()];
                assert_eq!(
                    passed.is_at_frame_end(),
                    ends.contains(&cut),
                    "cut after {cut} bytes, in chunks of {size}"
                );
            }
        }
    }
}
