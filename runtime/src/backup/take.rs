//! Taking a backup: what is copied, in which order, and how often. It changes nothing in the cluster.

use std::path::Path;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::stream::State;
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use millrace_protocol::ids::Lane;
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use super::folder::{Output, Unfinished};
use super::leading::Leading;
use super::manifest::{Content, FORMAT, Manifest, Part};
use super::{Error, Progress, Told, snapshot};
use crate::fault::pause;
use crate::topology::{
    ARCHIVE, BLOBS, CAPABILITIES, FILES, LIMITS, RUNS, bucket_stream, code, fault, lane_stream, object_stream,
};
use crate::{Bus, Fault};

/// How often a stream is copied anew that could not be copied.
const TRIES: u32 = 4;

/// Whether messages are removed from a stream while all is well.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shrinks {
    /// Runs that are over are.
    Yes,
    /// Only where something is written again: a copy during which that happened is taken anew.
    No,
}

/// An entry of a bucket, as it stands in a line of a backup.
#[derive(Serialize, Deserialize)]
pub struct Line {
    /// Its key.
    pub key: String,
    /// Its value, which is JSON text.
    pub value: String,
}

/// Copies a cluster into a folder that is not there yet. A future that is dropped leaves nothing there.
///
/// # Errors
/// The folder is there or can't be written, or the server does not hand something out.
pub fn take<'a>(bus: &'a Bus, place: &'a Path, told: Told<'a>) -> BoxFuture<'a, Result<Manifest, Error>> {
    async move {
        let folder = Unfinished::new(place)?;
        let taken = Timestamp::now();
        let (mut parts, mut files_through) = (Vec::new(), Vec::new());
        for lane in (0..bus.settings().lanes).map(Lane) {
            parts.extend(copy(bus, &folder, &lane_stream(lane), Shrinks::Yes, told).await?);
            files_through.push(state(bus, FILES).await?.map_or(0, |state| state.last_sequence));
        }
        parts.push(copy_bucket(bus, &folder, RUNS, is_archived, told).await?);
        for stream in [object_stream(ARCHIVE), FILES.into(), object_stream(BLOBS)] {
            parts.extend(copy(bus, &folder, &stream, Shrinks::No, told).await?);
        }
        parts.push(copy_bucket(bus, &folder, CAPABILITIES, |_, _| true, told).await?);
        if state(bus, &bucket_stream(LIMITS)).await?.is_some() {
            parts.push(copy_bucket(bus, &folder, LIMITS, |_, _| true, told).await?);
        }
        let (version, settings) = (env!("CARGO_PKG_VERSION").to_owned(), bus.settings().clone());
        let manifest = Manifest { format: FORMAT, version, taken, settings, files_through, parts };
        folder.finish(&manifest)?;
        Ok(manifest)
    }
    .boxed()
}

/// Copies a stream; nothing where there is none, as in the clusters of older versions.
async fn copy(
    bus: &Bus,
    folder: &Unfinished,
    stream: &str,
    shrinks: Shrinks,
    told: Told<'_>,
) -> Result<Option<Part>, Error> {
    let file = format!("{stream}.snapshot");
    let mut tries = 0;
    loop {
        let Some(before) = state(bus, stream).await? else { return Ok(None) };
        let mut output = folder.begin(&file)?;
        let copied = snapshot::take(bus.client(), stream, &mut output, told).await;
        let (bytes, sha256) = output.finish()?;
        let why = match copied {
            Ok(taken) => {
                let after = state(bus, stream).await?;
                if shrinks == Shrinks::Yes || after.is_some_and(|after| removed(&after) == removed(&before)) {
                    let content =
                        Content::Stream { name: stream.into(), config: taken.config, state: taken.state };
                    return Ok(Some(Part { file, bytes, sha256, content }));
                }
                "something was removed from it meanwhile, each time that it was copied".to_owned()
            }
            Err(Error::Stream { why, .. }) => why,
            Err(error) => return Err(error),
        };
        tries += 1;
        if tries == TRIES {
            return Err(Error::Stream { what: "copying", stream: stream.into(), why });
        }
        debug!(stream, why, tries, "copying a stream anew");
        tokio::time::sleep(pause(tries + 3)).await;
    }
}

/// What tells whether messages were removed: the first that is there, and how many behind it are not.
fn removed(state: &State) -> (u64, Option<u64>) {
    // The first message that ever comes changes what is first, and removes nothing.
    (state.first_sequence.max(1), state.deleted_count)
}

/// The state of a stream, as its leader knows it; `None` if there is no such stream.
async fn state(bus: &Bus, stream: &str) -> Result<Option<State>, Fault> {
    match bus.control().get_stream(stream).await {
        Ok(found) => Ok(Some(found.cached_info().state.clone())),
        Err(error) if code(&error) == Some(ErrorCode::STREAM_NOT_FOUND) => Ok(None),
        Err(error) => Err(fault(&format!("the state of stream {stream}"), &error)),
    }
}

/// Copies the entries of a bucket that are to be kept. Of a key that is changed meanwhile there may be several; the
/// last counts.
async fn copy_bucket(
    bus: &Bus,
    folder: &Unfinished,
    bucket: &str,
    is_kept: fn(&str, &str) -> bool,
    told: Told<'_>,
) -> Result<Part, Error> {
    let file = format!("{bucket}.jsonl");
    let mut output = folder.begin(&file)?;
    let prefix = format!("$KV.{bucket}.");
    let stream = bucket_stream(bucket);
    let mut reading = Leading::begin(bus.control(), &stream, &format!("{prefix}>"), 1).await?;
    let mut entries = 0;
    loop {
        let records = reading.next().await?;
        if records.is_empty() {
            break;
        }
        for record in records.iter().filter(|record| !record.is_deletion) {
            let Some(key) = record.subject.strip_prefix(&prefix) else { continue };
            match std::str::from_utf8(&record.payload) {
                Ok(value) if is_kept(key, value) => {
                    write(&mut output, &Line { key: key.to_owned(), value: value.to_owned() })?;
                    entries += 1;
                }
                Ok(_) => {}
                Err(error) => warn!(bucket, key, %error, "an entry that is no text is passed over"),
            }
        }
    }
    told(Progress { doing: "copying", what: bucket, bytes: output.bytes(), is_done: true });
    let (bytes, sha256) = output.finish()?;
    Ok(Part { file, bytes, sha256, content: Content::Bucket { name: bucket.into(), entries } })
}

fn write(output: &mut Output, line: &Line) -> Result<(), Error> {
    let mut text = serde_json::to_vec(line).expect("a line has a form in JSON");
    text.push(b'\n');
    output.write(&text)
}

/// Whether a summary says of the run in whose place it stands that it is in the archive. Summaries of other runs are made
/// anew.
fn is_archived(run: &str, summary: &str) -> bool {
    #[derive(Deserialize)]
    struct Summary {
        run: String,
        #[serde(default)]
        archived: bool,
    }
    serde_json::from_str::<Summary>(summary).is_ok_and(|summary| summary.archived && summary.run == run)
}
