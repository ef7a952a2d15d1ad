//! Taking a backup: the parts, their order, and retries. It changes nothing in the cluster, but holds deletions up. A
//! lagging replica may respond to direct gets; the reads here continue until they have seen the last message that the leader had at their start.

use std::path::Path;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::{LastRawMessageErrorKind, State};
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use millrace_protocol::ids::Lane;
use millrace_protocol::webhook::StoredDelivery;
use millrace_protocol::wire::FORMAT;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::folder::{ChecksummedFile, UnfinishedBackupFolder};
use super::{
    BackupError, BackupManifest, BackupPart, BackupPartContent, BackupProgress, OnBackupProgress, snapshot,
};
use crate::fault::{ClientResult, backoff, fault_from_client_error};
use crate::nats::direct_get::PagedReader;
use crate::nats::record::StreamRecord;
use crate::nats::topology::{
    ADMISSION_BOARD, ARCHIVE, AUDIT, BLOBS, CAPABILITIES, DELIVERIES, FILES, KEYS, LIMITS, RETENTION, RUNS,
    SESSIONS, TOKENS, WEBHOOKS, bucket_stream, lane_stream, object_stream,
};
use crate::store::retention::RetentionHold;
use crate::{Bus, Fault};

/// The maximum number of attempts to copy a stream.
const MAX_ATTEMPTS: u32 = 4;

/// The effect of messages that are removed from a stream while it is copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RemovalPolicy {
    /// Ended runs are removed, which the order of copying allows for.
    Allowed,
    /// Messages are removed only when an object is replaced; then the copy is repeated.
    Repeat,
}

/// A choice of entries, by key and value.
type EntryFilter = fn(&str, &str) -> bool;

/// An entry of a bucket: one line of a backup file.
#[derive(Serialize, Deserialize)]
pub struct BucketEntryLine {
    pub key: String,
    /// Its value, which is JSON text.
    pub value: String,
}

/// Copies a cluster into a new folder. Dropping the future leaves no folder behind.
/// Errors: the folder exists or can't be written, or the server can't send a stream.
pub fn take_backup<'a>(
    bus: &'a Bus,
    destination: &'a Path,
    on_progress: OnBackupProgress<'a>,
) -> BoxFuture<'a, Result<BackupManifest, BackupError>> {
    async move {
        let folder = UnfinishedBackupFolder::new(destination)?;
        // The identity may have no permission for it.
        let hold = RetentionHold::take(bus, "backup").await;
        let hold =
            hold.inspect_err(|fault| debug!(%fault, "no hold on deletions; copying again if needed")).ok();
        let manifest = copy_cluster(bus, folder, on_progress).await;
        if let Some(hold) = hold {
            hold.release(bus).await;
        }
        manifest
    }
    .boxed()
}

/// Copies all parts of a cluster.
fn copy_cluster<'a>(
    bus: &'a Bus,
    folder: UnfinishedBackupFolder,
    on_progress: OnBackupProgress<'a>,
) -> BoxFuture<'a, Result<BackupManifest, BackupError>> {
    async move {
        let taken = Timestamp::now();
        let (mut parts, mut files_through) = (Vec::new(), Vec::new());
        for lane in (0..bus.settings().lanes).map(Lane) {
            parts.push(
                copy_stream(bus, &folder, &lane_stream(lane), RemovalPolicy::Allowed, on_progress).await?,
            );
            files_through.push(leader_stream_state(bus, FILES).await?.last_sequence);
        }
        parts.push(copy_bucket(bus, &folder, RUNS, is_summary_of_archived_run, on_progress).await?);
        for stream in [object_stream(ARCHIVE), FILES.into(), object_stream(BLOBS)] {
            parts.push(copy_stream(bus, &folder, &stream, RemovalPolicy::Repeat, on_progress).await?);
        }
        let is_kept: [(&str, EntryFilter); 9] = [
            (CAPABILITIES, |_, _| true),
            // The board follows from the lanes.
            (LIMITS, |key, _| key != ADMISSION_BOARD),
            (KEYS, |_, _| true),
            (SESSIONS, |_, _| true),
            (TOKENS, |_, _| true),
            (AUDIT, |_, _| true),
            (WEBHOOKS, |_, _| true),
            // After their position in the keys: whatever was read of the log since then is here.
            (DELIVERIES, is_open_delivery),
            (RETENTION, is_lasting_record),
        ];
        for (bucket, is_kept) in is_kept {
            parts.push(copy_bucket(bus, &folder, bucket, is_kept, on_progress).await?);
        }
        let (version, settings) = (env!("CARGO_PKG_VERSION").to_owned(), bus.settings().clone());
        let manifest = BackupManifest { format: FORMAT, version, taken, settings, files_through, parts };
        folder.finish_with_manifest(&manifest)?;
        Ok(manifest)
    }
    .boxed()
}

/// Copies a stream.
async fn copy_stream(
    bus: &Bus,
    folder: &UnfinishedBackupFolder,
    stream: &str,
    removals: RemovalPolicy,
    on_progress: OnBackupProgress<'_>,
) -> Result<BackupPart, BackupError> {
    let file = format!("{stream}.snapshot");
    let mut tries = 0;
    loop {
        let before = leader_stream_state(bus, stream).await?;
        let mut output = folder.create_file(&file)?;
        let copied = snapshot::copy_stream_snapshot(bus.client(), stream, &mut output, on_progress).await;
        let (bytes, sha256) = output.finish_with_checksum()?;
        let why = match copied {
            Ok(stream_copy) => {
                let after = leader_stream_state(bus, stream).await?;
                if removals == RemovalPolicy::Allowed
                    || removal_fingerprint(&after) == removal_fingerprint(&before)
                {
                    let content = BackupPartContent::Stream {
                        name: stream.into(),
                        config: stream_copy.config,
                        state: stream_copy.state,
                    };
                    return Ok(BackupPart { file, bytes, sha256, content });
                }
                "messages were removed during every attempt to copy it".to_owned()
            }
            Err(BackupError::Stream { why, .. }) => why,
            Err(error) => return Err(error),
        };
        tries += 1;
        if tries == MAX_ATTEMPTS {
            return Err(BackupError::Stream { what: "copying", stream: stream.into(), why });
        }
        debug!(stream, why, tries, "copying a stream again");
        tokio::time::sleep(backoff(tries + 3)).await;
    }
}

/// Returns a fingerprint that changes when messages are removed: the first sequence, and the number of gaps.
fn removal_fingerprint(state: &State) -> (u64, Option<u64>) {
    // The first message of an empty stream changes the first sequence from 0 to 1 and removes nothing.
    (state.first_sequence.max(1), state.deleted_count)
}

/// Returns the state of a stream, as its leader knows it.
async fn leader_stream_state(bus: &Bus, stream: &str) -> Result<State, Fault> {
    let read = bus.request_context().get_stream(stream).await;
    let stream = read.or_fault_with(|| format!("the state of stream {stream}"))?;
    Ok(stream.cached_info().state.clone())
}

/// `true` if readers of a bucket ignore entries without an id, which are forged.
pub fn has_entries_with_ids(bucket: &str) -> bool {
    [CAPABILITIES, RETENTION, SESSIONS, TOKENS, AUDIT, WEBHOOKS, DELIVERIES].contains(&bucket)
}

/// Copies the entries of a bucket that `is_included` accepts. A key that changes meanwhile may occur several times; the
/// last entry counts.
async fn copy_bucket(
    bus: &Bus,
    folder: &UnfinishedBackupFolder,
    bucket: &str,
    is_included: EntryFilter,
    on_progress: OnBackupProgress<'_>,
) -> Result<BackupPart, BackupError> {
    let file = format!("{bucket}.jsonl");
    let mut output = folder.create_file(&file)?;
    let prefix = format!("$KV.{bucket}.");
    let stream = bucket_stream(bucket);
    let mut reading =
        LeaderReader::start_reading(bus.request_context(), &stream, &format!("{prefix}>"), 1).await?;
    let mut entries = 0;
    loop {
        let records = reading.next_records().await?;
        if records.is_empty() {
            break;
        }
        let is_forged = |record: &StreamRecord| record.is_forged() && has_entries_with_ids(bucket);
        for record in records.iter().filter(|record| !record.is_deletion && !is_forged(record)) {
            let Some(key) = record.subject.strip_prefix(&prefix) else { continue };
            match std::str::from_utf8(&record.payload) {
                Ok(value) if is_included(key, value) => {
                    write_bucket_entry_line(
                        &mut output,
                        &BucketEntryLine { key: key.to_owned(), value: value.to_owned() },
                    )?;
                    entries += 1;
                }
                Ok(_) => {}
                Err(error) => warn!(bucket, key, %error, "ignoring an entry that is not text"),
            }
        }
    }
    on_progress(BackupProgress {
        operation: "copying",
        what: bucket,
        bytes: output.written_bytes(),
        is_done: true,
    });
    let (bytes, sha256) = output.finish_with_checksum()?;
    Ok(BackupPart {
        file,
        bytes,
        sha256,
        content: BackupPartContent::Bucket { name: bucket.into(), entries },
    })
}

fn write_bucket_entry_line(output: &mut ChecksummedFile, line: &BucketEntryLine) -> Result<(), BackupError> {
    let mut text = serde_json::to_vec(line).expect("a line serialises to JSON");
    text.push(b'\n');
    output.write_bytes(&text)
}

/// `true` for records of deletions, rules and settings; not for requests, and for holds such as that of this backup.
fn is_lasting_record(key: &str, _: &str) -> bool {
    ["deletion.", "rule.", "settings.", "sweep."].iter().any(|kind| key.starts_with(kind))
}

/// `true` if a delivery to the receiver of a webhook has not ended.
fn is_open_delivery(_: &str, delivery: &str) -> bool {
    serde_json::from_str::<StoredDelivery>(delivery).is_ok_and(|delivery| !delivery.has_ended())
}

/// `true` if a summary belongs to the run of its key, and the archive holds the run or, of a reopened one, its beginning. Other
/// summaries are derived again after a restore.
fn is_summary_of_archived_run(run: &str, summary: &str) -> bool {
    #[derive(Deserialize)]
    struct RunSummarySequence {
        run: String,
        #[serde(default)]
        archived: bool,
        #[serde(default)]
        archived_span: Option<(u64, u64)>,
    }
    serde_json::from_str::<RunSummarySequence>(summary)
        .is_ok_and(|summary| (summary.archived || summary.archived_span.is_some()) && summary.run == run)
}

/// The maximum lag of a replica.
const MAX_LAG: Duration = Duration::from_secs(60);
/// The interval at which a lagging replica is read again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A paged read of all messages whose subject matches a filter, from a sequence on, oldest first.
pub struct LeaderReader {
    context: Context,
    stream: String,
    filter: String,
    /// The last sequence that the leader had at the start.
    last: u64,
    next: u64,
    pages: PagedReader,
    last_progress: Instant,
}

impl LeaderReader {
    pub async fn start_reading(
        context: &Context,
        stream: &str,
        filter: &str,
        from: u64,
    ) -> Result<Self, Fault> {
        let last = read_last_sequence(context, stream, filter).await?;
        let pages = PagedReader::new(&context.client(), stream.into(), filter.into(), from);
        let (stream, filter) = (stream.to_owned(), filter.to_owned());
        let last_progress = Instant::now();
        Ok(Self { context: context.clone(), stream, filter, last, next: from, pages, last_progress })
    }

    /// Returns the next messages, or none after the last.
    pub fn next_records(&mut self) -> BoxFuture<'_, Result<Vec<StreamRecord>, Fault>> {
        async move {
            loop {
                let records = self.pages.next_page().await?;
                if let Some(last) = records.last() {
                    self.last_progress = Instant::now();
                    self.next = last.sequence + 1;
                    return Ok(records);
                }
                if self.next > self.last {
                    return Ok(records);
                }
                // The last message may have been removed meanwhile.
                self.last =
                    self.last.min(read_last_sequence(&self.context, &self.stream, &self.filter).await?);
                if self.last_progress.elapsed() > MAX_LAG {
                    let why =
                        format!("the replicas lag: read up to sequence {} of {}", self.next - 1, self.last);
                    return Err(Fault::unavailable(format!("reading stream {}", self.stream), why));
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
                let client = self.context.client();
                self.pages = PagedReader::new(&client, self.stream.clone(), self.filter.clone(), self.next);
            }
        }
        .boxed()
    }
}

/// Returns the sequence of the last matching message, as the leader knows it; 0 if there is none.
async fn read_last_sequence(context: &Context, stream: &str, filter: &str) -> Result<u64, Fault> {
    let what = || format!("reading stream {stream}");
    let stream = context.get_stream_no_info(stream).await.or_fault_with(what)?;
    match stream.get_last_raw_message_by_subject(filter).await {
        Ok(message) => Ok(message.sequence),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(0),
        Err(error) => Err(fault_from_client_error(&what(), error)),
    }
}
