//! The server's snapshots of a stream, taken and put back by hand: the client library has no call for them. Subjects,
//! fields and the way of the chunks are those of `server/jetstream_api.go` of nats-server 2.12 to 2.15 (types
//! `io.nats.jetstream.api.v1.stream_snapshot_*` and `stream_restore_*`).
//!
//! ```text
//! copy     request STREAM.SNAPSHOT.<stream> {deliver_subject} ─▶ {config, state}
//!          chunks come to that subject, each with a reply subject …<size>.<index>, which is answered: a window of them
//!          is under way at once; the last chunk has none; then an empty message, with a status if something failed
//! restore  request STREAM.RESTORE.<stream> {config, state} ─▶ {deliver_subject}
//!          chunks go to that subject, each is answered: empty if it was taken, an error in JSON if not; then an empty
//!          message, which is answered when the stream is there
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

use super::folder::{Output, file};
use super::{Error, Progress, Told};

/// Where the server is asked for a snapshot.
const SNAPSHOT: &str = "$JS.API.STREAM.SNAPSHOT";
/// Where the server is asked to take one.
const RESTORE: &str = "$JS.API.STREAM.RESTORE";
/// How large a chunk is, in both directions: the server's own default, well below the largest message.
const CHUNK: usize = 128 * 1024;
/// How much may be under way. The server's default is 8 MiB, which is much for a slow line to the machine of backups.
const WINDOW: usize = 2 * 1024 * 1024;
/// How long the next word of the server is waited for; it gives up by itself after 5 s without one of ours.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the server may take to answer a request. It gives none to an identity that may not ask.
const ANSWER: Duration = Duration::from_secs(10);
/// How long the server may take to read a stream in that it has got in full.
const RECOVERY: Duration = Duration::from_secs(1_800);
/// After how many bytes progress is told again.
const TELL_EVERY: u64 = 16 * 1024 * 1024;

/// A stream that was copied.
pub struct Taken {
    /// Its configuration.
    pub config: Value,
    /// Its state when the copy was begun.
    pub state: Value,
}

/// Copies a stream as it grows.
pub fn take<'a>(
    client: &'a Client,
    stream: &'a str,
    output: &'a mut Output,
    told: Told<'a>,
) -> BoxFuture<'a, Result<Taken, Error>> {
    Box::pin(async move {
        let broken = |why: String| Error::Stream { what: "copying", stream: stream.into(), why };
        let deliver = client.new_inbox();
        let mut chunks =
            client.subscribe(deliver.clone()).await.map_err(|error| broken(error.to_string()))?;
        let wish = json!({
            "deliver_subject": deliver, "no_consumers": true, "chunk_size": CHUNK, "window_size": WINDOW,
        });
        let mut answer = ask(client, &format!("{SNAPSHOT}.{stream}"), &wish).await.map_err(&broken)?;
        let (mut index, mut frames, mut next) = (0, Frames::default(), TELL_EVERY);
        while let Some(chunk) = within(PATIENCE, &mut chunks).await.map_err(&broken)? {
            if let Some(reply) = &chunk.reply {
                index += 1;
                if reply.rsplit('.').next() != Some(&index.to_string()) {
                    return Err(broken(format!("piece {index} was lost on the way")));
                }
                let sent = client.publish(reply.clone(), Bytes::new()).await;
                sent.map_err(|error| broken(error.to_string()))?;
            }
            if chunk.payload.is_empty() {
                is_whole(&chunk, &frames).map_err(&broken)?;
                told(Progress { doing: "copying", what: stream, bytes: output.bytes(), is_done: true });
                return Ok(Taken { config: answer["config"].take(), state: answer["state"].take() });
            }
            frames.pass(&chunk.payload);
            output.write(&chunk.payload)?;
            if output.bytes() >= next {
                next += TELL_EVERY;
                told(Progress { doing: "copying", what: stream, bytes: output.bytes(), is_done: false });
            }
        }
        Err(broken("the connection was closed".into()))
    })
}

/// Whether the message that ends a snapshot says that nothing failed, and what came ends where a frame ends.
fn is_whole(end: &Message, frames: &Frames) -> Result<(), String> {
    match end.status {
        None | Some(StatusCode::OK) => {}
        Some(status) if status.as_u16() == 204 => {}
        Some(status) => {
            let why = end.description.as_deref().unwrap_or("no reason given");
            return Err(format!("the server gave up: {why} ({status})"));
        }
    }
    if frames.is_whole() { Ok(()) } else { Err("its end was lost on the way".into()) }
}

/// A stream as it is to be put back.
pub struct Snapshot<'a> {
    /// Its name.
    pub stream: &'a str,
    /// Its configuration.
    pub config: &'a Value,
    /// Its state when it was copied.
    pub state: &'a Value,
    /// The file with the snapshot.
    pub file: &'a Path,
}

/// Puts a stream back. The server refuses one that is there. After a stop in the middle it has none.
pub fn put<'a>(
    client: &'a Client,
    snapshot: &'a Snapshot<'a>,
    stop: &'a CancellationToken,
    told: Told<'a>,
) -> BoxFuture<'a, Result<(), Error>> {
    Box::pin(async move {
        let Snapshot { stream, config, state, file: from } = *snapshot;
        let broken = |why: String| Error::Stream { what: "restoring", stream: stream.into(), why };
        let reading = |why| file("reading", from, why);
        let mut opened = std::fs::File::open(from).map_err(reading)?;
        let wish = json!({ "config": config, "state": state });
        let answer = ask(client, &format!("{RESTORE}.{stream}"), &wish).await.map_err(&broken)?;
        let deliver = answer["deliver_subject"].as_str().unwrap_or_default().to_owned();
        let reply = client.new_inbox();
        let mut answers = client.subscribe(reply.clone()).await.map_err(|error| broken(error.to_string()))?;
        let (mut under_way, mut bytes, mut next) = (0, 0, TELL_EVERY);
        loop {
            if stop.is_cancelled() {
                return Err(Error::Stopped);
            }
            let mut chunk = Vec::with_capacity(CHUNK);
            (&mut opened).take(CHUNK as u64).read_to_end(&mut chunk).map_err(reading)?;
            let is_last = chunk.is_empty();
            // The last is sent when all others were taken, so that its answer is the one that counts.
            let room = if is_last { 0 } else { WINDOW / CHUNK - 1 };
            while under_way > room {
                taken(&mut answers).await.map_err(&broken)?;
                under_way -= 1;
            }
            bytes += chunk.len() as u64;
            let sent = client.publish_with_reply(deliver.clone(), reply.clone(), chunk.into()).await;
            sent.map_err(|error| broken(error.to_string()))?;
            if is_last {
                break;
            }
            under_way += 1;
            if bytes >= next {
                next += TELL_EVERY;
                told(Progress { doing: "restoring", what: stream, bytes, is_done: false });
            }
        }
        let end = within(RECOVERY, &mut answers).await.map_err(&broken)?;
        let end = end.ok_or_else(|| broken("the connection was closed".into()))?;
        read(&end.payload).map_err(&broken)?;
        told(Progress { doing: "restoring", what: stream, bytes, is_done: true });
        Ok(())
    })
}

/// Waits until the server has taken a chunk.
async fn taken(answers: &mut Subscriber) -> Result<(), String> {
    match within(PATIENCE, answers).await? {
        Some(answer) if answer.payload.is_empty() && answer.status.is_none() => Ok(()),
        Some(answer) if answer.payload.is_empty() => Err("the server takes no more".into()),
        Some(answer) => read(&answer.payload).and(Err("the server ended before all was there".into())),
        None => Err("the connection was closed".into()),
    }
}

/// Asks the server for something; an error is what it says.
async fn ask(client: &Client, subject: &str, wish: &Value) -> Result<Value, String> {
    let request = async_nats::Request::new().payload(wish.to_string().into()).timeout(Some(ANSWER));
    let answer =
        client.send_request(subject.to_owned(), request).await.map_err(|error| match error.kind() {
            RequestErrorKind::TimedOut => {
                "the server gives no answer; an identity that may not ask gets none: use that of `backup`"
                    .to_owned()
            }
            RequestErrorKind::NoResponders
            | RequestErrorKind::InvalidSubject
            | RequestErrorKind::MaxPayloadExceeded
            | RequestErrorKind::Other => error.to_string(),
        })?;
    read(&answer.payload)
}

fn read(answer: &[u8]) -> Result<Value, String> {
    let answer: Value = serde_json::from_slice(answer)
        .map_err(|_| format!("the server says {:?}", String::from_utf8_lossy(answer)))?;
    let error = &answer["error"];
    if error.is_null() {
        return Ok(answer);
    }
    let description = error["description"].as_str().unwrap_or("the server gives no reason");
    Err(format!("{description} (error {})", error["err_code"]))
}

async fn within(patience: Duration, messages: &mut Subscriber) -> Result<Option<Message>, String> {
    tokio::time::timeout(patience, messages.next())
        .await
        .map_err(|_| format!("the server said nothing for {} s", patience.as_secs()))
}

/// Where the frames of a snapshot end: it is in S2, whose stream is a row of frames of one byte of kind, three of
/// length and the content. What ends in the middle of one was cut short.
#[derive(Default)]
struct Frames {
    /// The header of the next frame, as far as it was seen.
    header: Vec<u8>,
    /// How much of a frame's content is still to come.
    left: usize,
    count: usize,
}

impl Frames {
    fn pass(&mut self, mut bytes: &[u8]) {
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

    fn is_whole(&self) -> bool {
        self.left == 0 && self.header.is_empty() && self.count > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream of three frames, the second of which is empty.
    fn frames() -> Vec<u8> {
        let mut bytes = vec![0xff, 6, 0, 0];
        bytes.extend(b"S2sTwO");
        bytes.extend([0xfe, 0, 0, 0]);
        bytes.extend([0, 0x01, 0x01, 0]);
        bytes.extend(vec![7; 257]);
        bytes
    }

    #[test]
    fn only_what_ends_with_a_frame_is_whole_in_whatever_pieces_it_comes() {
        let bytes = frames();
        for cut in 0..=bytes.len() {
            for size in [1, 3, 1_000] {
                let mut passed = Frames::default();
                bytes[..cut].chunks(size).for_each(|piece| passed.pass(piece));
                let ends = [10, 14, bytes.len()];
                assert_eq!(passed.is_whole(), ends.contains(&cut), "cut behind {cut}, in pieces of {size}");
            }
        }
    }
}
