//! The archive of ended runs: all messages of a run as one compressed object, so that lanes contain live runs only.
//! Everything that can be read from the lane can be read from the archive.

use std::io::{BufRead, BufReader, Write};

use bytes::Bytes;
use lz4_flex::frame::{FrameDecoder, FrameEncoder};
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::Encoding;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::fault::{backoff, max_replica_lag};
use crate::nats::bus::Bus;
use crate::nats::object_store::{self, ObjectContent};
use crate::nats::provenance::Provenance;
use crate::nats::record::StreamRecord;
use crate::nats::topology::ARCHIVE;
use crate::work::registry;
use crate::{Fault, log};

/// A message in an archive.
#[derive(Serialize, Deserialize)]
struct ArchivedMessage {
    sequence: u64,
    subject: String,
    #[serde(with = "serde_bytes")]
    payload: Vec<u8>,
    json: bool,
    #[serde(with = "jiff::fmt::serde::timestamp::nanosecond::required")]
    time: jiff::Timestamp,
}

/// The sequences of the archived messages of a run in its lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArchivedSpan {
    /// The first one.
    pub first: u64,
    /// The last one; 0 if nothing was archived.
    pub last: u64,
}

/// Writes an archive: an LZ4 frame of MessagePack values, one per message.
struct ArchiveWriter {
    frame: FrameEncoder<Vec<u8>>,
    span: ArchivedSpan,
    /// The sequence of the message without which the archive is incomplete.
    end: u64,
    is_complete: bool,
}

impl ArchiveWriter {
    fn new(end: u64) -> Self {
        Self { frame: FrameEncoder::new(Vec::new()), span: ArchivedSpan::default(), end, is_complete: false }
    }

    fn add_records(&mut self, records: Vec<StreamRecord>) {
        for record in records {
            if self.span.last == 0 {
                self.span.first = record.sequence;
            }
            self.span.last = record.sequence;
            self.is_complete |= record.sequence == self.end;
            // Archived messages have no headers, so that a forged one could not be recognised later.
            if record.is_forged() {
                continue;
            }
            let message = ArchivedMessage {
                sequence: record.sequence,
                subject: record.subject.to_string(),
                payload: record.payload.into(),
                json: record.encoding == Encoding::Json,
                time: record.time,
            };
            let bytes =
                rmp_serde::to_vec_named(&message).expect("an archived message serialises to MessagePack");
            self.frame.write_all(&bytes).expect("writing to memory can't fail");
        }
    }

    fn finish_archive(self) -> Vec<u8> {
        self.frame.finish().expect("writing to memory can't fail")
    }
}

/// Archives a run: writes all its messages in the lane, page by page, so that a large run needs little memory. Returns
/// the sequences of the archived messages. Archiving again replaces the archive.
///
/// `end` is the sequence of the decision that ended the run. If the lane does not contain it any more, another process
/// has archived the run and is removing it, possibly during this read: then nothing is written, and the span is empty.
/// `messages` is the expected number of its messages in the lane, 0 if it is not known: a server that has sent that many does not
/// search the rest of the lane.
///
/// # Errors
/// The server does not respond or is full.
pub async fn archive_run(
    bus: &Bus,
    lane: Lane,
    run: &RunId,
    end: u64,
    messages: usize,
) -> Result<ArchivedSpan, Fault> {
    let mut pages = log::read_run_pages(bus, lane, run).with_expected_count(messages);
    let mut writer = ArchiveWriter::new(end);
    loop {
        let records = pages.next_page().await?;
        if records.is_empty() {
            break;
        }
        writer = tokio::task::spawn_blocking(move || {
            writer.add_records(records);
            writer
        })
        .await
        .map_err(|error| Fault::unavailable(format!("compressing run {run}"), error))?;
    }
    let span = writer.span;
    if !writer.is_complete {
        return Ok(ArchivedSpan::default());
    }
    let bytes = writer.finish_archive();
    write_archive(bus, run, &bytes).await?;
    Ok(span)
}

/// Writes the archive of a run, which replaces an earlier one.
async fn write_archive(bus: &Bus, run: &RunId, bytes: &[u8]) -> Result<(), Fault> {
    let (digest, content) = (Sha256::digest(bytes), ObjectContent::Bytes(bytes));
    let write = |last| {
        object_store::write_object(bus.request_context(), ARCHIVE, run.as_str(), &content, &digest, last)
    };
    // Most runs are archived once.
    let last = object_store::read_last_description_sequence(bus.client(), ARCHIVE, run.as_str()).await?;
    if last == 0 && write(0).await? {
        return Ok(());
    }
    let earlier = object_store::read_object_descriptions(bus.client(), ARCHIVE, run.as_str()).await?;
    if !write(earlier.last().map_or(0, |stored| stored.sequence)).await? {
        return Err(Fault::unavailable(format!("archiving run {run}"), "another process is archiving it"));
    }
    for stored in earlier.iter().filter(|stored| !stored.provenance.is_forged()) {
        object_store::remove_object_parts(bus.request_context(), ARCHIVE, &stored.info).await?;
    }
    Ok(())
}

/// Returns the messages of an archived run, oldest first; `None` if the run is not archived.
///
/// # Errors
/// The server does not respond, or the archive can't be read.
pub async fn read_archived_run(bus: &Bus, run: &RunId) -> Result<Option<Vec<StreamRecord>>, Fault> {
    let what = || format!("reading the archive of run {run}");
    let stored = object_store::read_valid_description(bus.client(), ARCHIVE, run.as_str()).await?;
    let Some(stored) = stored.filter(|stored| !stored.info.deleted) else { return Ok(None) };
    let bytes = object_store::read_verified_object(bus.client(), ARCHIVE, &stored).await?;
    let bytes = bytes.ok_or_else(|| Fault::unavailable(what(), "the archive is incomplete or damaged"))?;
    let records = tokio::task::spawn_blocking(move || unpack_messages(&bytes));
    let records = records.await.map_err(|error| Fault::unavailable(what(), error))?;
    records.map(Some).map_err(|why| Fault::unavailable(what(), why))
}

/// Returns `true` if the archive contains a complete and valid copy of a run. Waits for one as long as a replica may
/// lag.
///
/// # Errors
/// The server does not respond.
pub async fn is_archived(bus: &Bus, run: &RunId) -> Result<bool, Fault> {
    let (started, lag) = (tokio::time::Instant::now(), max_replica_lag(bus.settings().replicas));
    let mut tries = 0;
    loop {
        let stored = object_store::read_valid_description(bus.client(), ARCHIVE, run.as_str()).await?;
        if let Some(stored) = stored.filter(|stored| !stored.info.deleted)
            && object_store::read_verified_object(bus.client(), ARCHIVE, &stored).await?.is_some()
        {
            return Ok(true);
        }
        if started.elapsed() >= lag {
            return Ok(false);
        }
        tries += 1;
        tokio::time::sleep(backoff(tries)).await;
    }
}

fn unpack_messages(bytes: &[u8]) -> Result<Vec<StreamRecord>, String> {
    let mut input = BufReader::new(FrameDecoder::new(bytes));
    let mut records = Vec::new();
    while !input.fill_buf().map_err(|error| error.to_string())?.is_empty() {
        let message: ArchivedMessage = rmp_serde::from_read(&mut input).map_err(|error| error.to_string())?;
        records.push(message.into_record());
    }
    Ok(records)
}

impl ArchivedMessage {
    fn into_record(self) -> StreamRecord {
        StreamRecord {
            sequence: self.sequence,
            subject: self.subject.into(),
            payload: Bytes::from(self.payload),
            encoding: if self.json { Encoding::Json } else { Encoding::MessagePack },
            time: self.time,
            is_deletion: false,
            provenance: Provenance::Published,
        }
    }
}

/// Returns all messages of a run, oldest first, from its lane or from the archive. Empty if there is no such run.
///
/// # Errors
/// The server does not respond.
pub async fn read_run_from_log_or_archive(
    bus: &Bus,
    lane: Lane,
    run: &RunId,
) -> Result<Vec<StreamRecord>, Fault> {
    let records = log::read_run(bus, lane, run, 1).await?;
    // The order matters: a summary is marked as archived before messages are removed from the lane. If it is not marked
    // after the read, the read was complete.
    let is_archived = registry::read_summary(bus, run).await?.is_some_and(|summary| summary.archived);
    // After a loss of its newest bytes a server may hold the end of a run that it had removed.
    if !is_archived && records.iter().any(is_plan_decision) && records.iter().any(is_submission) {
        return Ok(records);
    }
    Ok(read_archived_run(bus, run).await?.unwrap_or(records))
}

fn is_submission(record: &StreamRecord) -> bool {
    matches!(subject::parse_lane_subject(&record.subject), Some((_, _, Topic::Submitted)))
}

fn is_plan_decision(record: &StreamRecord) -> bool {
    !record.is_forged() && matches!(subject::parse_lane_subject(&record.subject), Some((_, _, Topic::Plan)))
}
