//! The archive of ended runs: all messages of a run as one compressed object, so that lanes contain live runs only.
//! Everything that can be read from the lane can be read from the archive.
//!
//! A command can reopen an archived run. Its archive stays, and its lane holds what follows, until the run ends again and a new archive
//! replaces both. The log of a run is its archive, followed by the messages of its lane after the archive's last one: an archive is
//! written whole before anything is removed from the lane, so that what both hold is the same. [`join_with_archive`] applies the rule;
//! [`crate::log::follow`] reads and follows such a log.
//!
//! # Invariants
//!
//! - I260: The log of a reopened run is its archive and then its lane, at any time; a new archive replaces the one that it was
//!   made from, and no other. (`crates/runtime/tests/archive.rs::log_of_a_reopened_run_is_its_archive_and_then_its_lane`,
//!   `crates/runtime/tests/archive.rs::archive_is_not_replaced_by_one_that_was_made_from_an_older_one`,
//!   `crates/runtime/tests/archive.rs::stale_decision_after_the_archive_is_ignored`)

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};

use bytes::Bytes;
use lz4_flex::frame::{FrameDecoder, FrameEncoder};
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::{Decision, RunCommand};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::Encoding;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::fault::{backoff, max_replica_lag};
use crate::nats::bus::Bus;
use crate::nats::direct_get;
use crate::nats::object_store::{self, ObjectContent, StoredObjectInfo};
use crate::nats::record::{Provenance, StreamRecord};
use crate::nats::topology::{ARCHIVE, lane_stream};
use crate::work::registry;
use crate::{Fault, log};

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
    pub first: u64,
    /// The last one; 0 if nothing was archived.
    pub last: u64,
    /// The last one of a command; 0 if there is none. A command that the end of the run does not answer may reopen it.
    pub last_command: u64,
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
            if is_command(&record) {
                self.span.last_command = record.sequence;
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
/// the sequences of the archived messages. Archiving again replaces the archive. The new archive of a reopened run holds the
/// messages of the old one, too; if nothing follows these, the old one stays.
///
/// `end` is the sequence of the decision that ended the run. If the lane does not contain it any more, another process
/// has archived the run and is removing it, possibly during this read: then nothing is written, and the span is empty.
/// `messages` is the expected number of its messages in the lane, 0 if it is not known: a server that has sent that many does not
/// search the rest of the lane.
/// Errors: the server does not respond or is full, or another process has archived the run meanwhile.
pub async fn archive_run(
    bus: &Bus,
    lane: Lane,
    run: &RunId,
    end: u64,
    messages: usize,
) -> Result<ArchivedSpan, Fault> {
    match prepare_archive(bus, lane, run, (end, messages)).await? {
        ArchivePreparation::New(archive) => archive.write(bus).await,
        ArchivePreparation::Unchanged(span) => Ok(span),
    }
}

/// The outcome of reading a run for its archive.
pub enum ArchivePreparation {
    /// A new archive, which is not written yet.
    New(NewArchive),
    /// Nothing to write: the archive holds these messages, or, if the span is empty, another process has archived the run.
    Unchanged(ArchivedSpan),
}

/// A new archive of a run. It replaces the one that it was made from, and no other.
pub struct NewArchive {
    run: RunId,
    span: ArchivedSpan,
    bytes: Vec<u8>,
    /// The descriptions of the archive that it was made from.
    earlier: Vec<StoredObjectInfo>,
}

/// Reads a run for its archive, and writes nothing. For the arguments see [`archive_run`].
pub async fn prepare_archive(
    bus: &Bus,
    lane: Lane,
    run: &RunId,
    (end, messages): (u64, usize),
) -> Result<ArchivePreparation, Fault> {
    // Read before the lane: an archive that another process writes meanwhile must not be replaced by this one. Most runs are archived
    // once.
    let last = object_store::read_last_description_sequence(bus.client(), ARCHIVE, run.as_str()).await?;
    let earlier = match last {
        0 => Vec::new(),
        _ => object_store::read_object_descriptions(bus.client(), ARCHIVE, run.as_str()).await?,
    };
    let old = if earlier.is_empty() { None } else { read_joinable_archive(bus, lane, run).await? };
    let mut writer = ArchiveWriter::new(end);
    if let Some(old) = old {
        let joined = join_records(bus, old, log::read_run(bus, lane, run, 1).await?).await?;
        let is_new = joined.records.last().is_some_and(|last| last.sequence > joined.archived_through);
        writer = add_records_to_archive(writer, run, joined.records).await?;
        if !is_new {
            let is_in_lane = writer.is_complete && log::read_message(bus, lane, end).await?.is_some();
            let span = if is_in_lane { writer.span } else { ArchivedSpan::default() };
            return Ok(ArchivePreparation::Unchanged(span));
        }
    } else {
        let mut pages = log::read_run_pages(bus, lane, run).with_expected_count(messages);
        loop {
            let records = pages.next_page().await?;
            if records.is_empty() {
                break;
            }
            writer = add_records_to_archive(writer, run, records).await?;
        }
    }
    if !writer.is_complete {
        return Ok(ArchivePreparation::Unchanged(ArchivedSpan::default()));
    }
    let (run, span) = (run.clone(), writer.span);
    Ok(ArchivePreparation::New(NewArchive { run, span, bytes: writer.finish_archive(), earlier }))
}

impl NewArchive {
    /// Writes the archive. Returns the sequences of the archived messages.
    /// Errors: the server does not respond or is full, or another process has archived the run since it was read.
    pub async fn write(self, bus: &Bus) -> Result<ArchivedSpan, Fault> {
        let Self { run, span, bytes, earlier } = self;
        let (digest, content) = (Sha256::digest(&bytes), ObjectContent::Bytes(&bytes));
        let last = earlier.last().map_or(0, |stored| stored.sequence);
        let context = bus.request_context();
        if !object_store::write_object(context, ARCHIVE, run.as_str(), &content, &digest, last).await? {
            return Err(Fault::unavailable(
                format!("archiving run {run}"),
                "another process is archiving it",
            ));
        }
        for stored in earlier.iter().filter(|stored| !stored.provenance.is_forged()) {
            object_store::remove_object_parts(context, ARCHIVE, &stored.info).await?;
        }
        Ok(span)
    }
}

/// Compresses records on another thread.
async fn add_records_to_archive(
    mut writer: ArchiveWriter,
    run: &RunId,
    records: Vec<StreamRecord>,
) -> Result<ArchiveWriter, Fault> {
    tokio::task::spawn_blocking(move || {
        writer.add_records(records);
        writer
    })
    .await
    .map_err(|error| Fault::unavailable(format!("compressing run {run}"), error))
}

/// Returns the messages of the archive that the messages of the lane continue. If the lane holds a submission after all of them, the
/// run was submitted again after its deletion, and the archive is that of the deleted one.
async fn read_joinable_archive(
    bus: &Bus,
    lane: Lane,
    run: &RunId,
) -> Result<Option<Vec<StreamRecord>>, Fault> {
    let Some(old) = read_archived_run(bus, run).await? else { return Ok(None) };
    let last = old.last().map_or(0, |last| last.sequence);
    let submissions = log::read_topic(bus, lane, run, &Topic::Submitted).await?;
    let is_new = submissions.iter().any(|record| !record.is_forged() && record.sequence > last)
        && !submissions.iter().any(|record| record.sequence <= last);
    Ok(Some(old).filter(|_| !is_new))
}

/// Returns the messages of an archived run, oldest first; `None` if the run is not archived.
/// Fails also if the archive can't be read.
pub async fn read_archived_run(bus: &Bus, run: &RunId) -> Result<Option<Vec<StreamRecord>>, Fault> {
    let what = || format!("reading the archive of run {run}");
    let read = || async {
        let stored = object_store::read_valid_description(bus.client(), ARCHIVE, run.as_str()).await?;
        Ok::<_, Fault>(stored.filter(|stored| !stored.info.deleted))
    };
    let Some(mut stored) = read().await? else { return Ok(None) };
    let bytes = loop {
        if let Some(bytes) = object_store::read_verified_object(bus.client(), ARCHIVE, &stored).await? {
            break bytes;
        }
        // A new archive may have replaced it: that of a run that was reopened and has ended again.
        let is_newer = |now: &StoredObjectInfo| now.sequence != stored.sequence;
        stored = read()
            .await?
            .filter(is_newer)
            .ok_or_else(|| Fault::unavailable(what(), "the archive is incomplete or damaged"))?;
    };
    let records = tokio::task::spawn_blocking(move || unpack_messages(&bytes));
    let records = records.await.map_err(|error| Fault::unavailable(what(), error))?;
    records.map(Some).map_err(|why| Fault::unavailable(what(), why))
}

/// Returns `true` if the archive contains a complete and valid copy of a run. Waits for one as long as a replica may
/// lag.
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

/// The log of a run from its archive and its lane.
#[derive(Debug)]
pub struct JoinedLog {
    /// The messages, oldest first.
    pub records: Vec<StreamRecord>,
    /// The sequence of the last one that the archive holds; 0 if there is no archive.
    pub archived_through: u64,
}

/// Returns the log of a run: the archived messages, and then those of `in_lane`, which were read in the lane before, after the
/// archive's last one. Without an archive it is `in_lane`.
///
/// `summary` is the run's summary, read after `in_lane`: an archive that is older than it says comes from a replica that lags, and is
/// read again.
/// Fails also if the archive can't be read.
pub async fn join_with_archive(
    bus: &Bus,
    run: &RunId,
    in_lane: Vec<StreamRecord>,
    summary: Option<&RunSummary>,
) -> Result<JoinedLog, Fault> {
    let expected = summary.and_then(|summary| summary.archived_span).map_or(0, |(_, last)| last);
    match read_archive_through(bus, run, expected).await? {
        Some(archived) => join_records(bus, archived, in_lane).await,
        None => Ok(JoinedLog { records: in_lane, archived_through: 0 }),
    }
}

/// Returns the messages of an archived run, oldest first; `None` if the run is not archived. An archive that ends before sequence
/// `last`, which its last message is expected to have, is read again as long as a replica may lag.
pub(crate) async fn read_archive_through(
    bus: &Bus,
    run: &RunId,
    last: u64,
) -> Result<Option<Vec<StreamRecord>>, Fault> {
    let (started, lag) = (tokio::time::Instant::now(), max_replica_lag(bus.settings().replicas));
    let mut tries = 0;
    loop {
        let records = read_archived_run(bus, run).await?;
        // The last message may have been a forged one, which no archive holds.
        let is_complete = records.iter().flatten().last().map_or(0, |record| record.sequence) >= last;
        if is_complete || started.elapsed() >= lag {
            return Ok(records);
        }
        tries += 1;
        tokio::time::sleep(backoff(tries)).await;
    }
}

/// Returns the messages of an archive, and then those of a lane that continue it.
async fn join_records(
    bus: &Bus,
    archived: Vec<StreamRecord>,
    in_lane: Vec<StreamRecord>,
) -> Result<JoinedLog, Fault> {
    let archived_through = archived.last().map_or(0, |last| last.sequence);
    let rest = in_lane.into_iter().filter(|record| record.sequence > archived_through).collect();
    let rest = remove_stale_decisions(bus, rest, last_decision_sequence(&archived)).await?;
    Ok(JoinedLog { records: [archived, rest].concat(), archived_through })
}

/// Removes the decisions that do not follow the last one of the archive. The lane of an archived run is empty, so that the server
/// accepts the decision of a supervisor that was suspended while the run was reopened, ended and was archived again.
async fn remove_stale_decisions(
    bus: &Bus,
    mut rest: Vec<StreamRecord>,
    last_decision: u64,
) -> Result<Vec<StreamRecord>, Fault> {
    let mut stale = BTreeSet::new();
    for record in rest.iter().filter(|record| record.is_decision()) {
        match bus.decode_record::<Decision>(record).await {
            Ok(decision) if decision.previous < last_decision || stale.contains(&decision.previous) => {
                tracing::warn!(subject = %record.subject, sequence = record.sequence, "ignoring a stale decision");
                stale.insert(record.sequence);
            }
            // Those that follow it continue the log.
            Ok(_) => break,
            Err(fault) if fault.is_transient() => return Err(fault),
            Err(_) => {}
        }
    }
    rest.retain(|record| !stale.contains(&record.sequence));
    Ok(rest)
}

fn last_decision_sequence(records: &[StreamRecord]) -> u64 {
    records.iter().rfind(|record| record.is_decision()).map_or(0, |record| record.sequence)
}

/// Returns all messages of a run, oldest first, from its lane, its archive, or both. Empty if there is no such run.
pub async fn read_run_from_log_or_archive(
    bus: &Bus,
    lane: Lane,
    run: &RunId,
) -> Result<Vec<StreamRecord>, Fault> {
    read_matching_from_log_or_archive(bus, lane, run, &[subject::all_subjects_of_run(lane, run)], |_| true)
        .await
}

/// Returns the decisions of a run, oldest first, from its lane, its archive, or both.
pub async fn read_decisions_from_log_or_archive(
    bus: &Bus,
    lane: Lane,
    run: &RunId,
) -> Result<Vec<StreamRecord>, Fault> {
    let filters = [subject::topic_subject(lane, run, &Topic::Plan)];
    let mut records =
        read_matching_from_log_or_archive(bus, lane, run, &filters, |topic| *topic == Topic::Plan).await?;
    records.retain(StreamRecord::is_decision);
    Ok(records)
}

/// Returns the messages of a run on the subjects that `filters` match in the lane and `is_wanted` in the archive: those of each filter,
/// oldest first. The first filter matches the decisions.
pub async fn read_matching_from_log_or_archive(
    bus: &Bus,
    lane: Lane,
    run: &RunId,
    filters: &[String],
    is_wanted: impl Fn(&Topic) -> bool,
) -> Result<Vec<StreamRecord>, Fault> {
    let mut in_lane = Vec::new();
    for filter in filters {
        in_lane.extend(direct_get::read_matching(bus.client(), &lane_stream(lane), filter, 1).await?);
    }
    // The order matters: a summary is marked as archived before messages are removed from the lane. If it is not marked
    // after the read, the read was complete.
    let summary = registry::read_summary(bus, run).await?;
    if !summary.as_ref().is_some_and(has_archive) && begins_with_submission(bus, &in_lane).await? {
        return Ok(in_lane);
    }
    // After a loss of its newest bytes a server may hold the end of a run that it had removed.
    let mut records = join_with_archive(bus, run, in_lane, summary.as_ref()).await?.records;
    records.retain(|record| {
        subject::parse_lane_subject(&record.subject).is_none_or(|(_, _, topic)| is_wanted(&topic))
    });
    Ok(records)
}

/// `true` if the lane holds a command of a run after sequence `after` that may reopen it.
pub async fn has_reopening_command(bus: &Bus, lane: Lane, run: &RunId, after: u64) -> Result<bool, Fault> {
    for record in log::read_topic(bus, lane, run, &Topic::Control).await? {
        if record.sequence > after && may_reopen_run(bus, &record).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// `true` if a message is a command that may reopen an archived run.
pub async fn may_reopen_run(bus: &Bus, record: &StreamRecord) -> Result<bool, Fault> {
    if record.is_forged() || !is_command(record) {
        return Ok(false);
    }
    match bus.decode_record::<RunCommand>(record).await {
        Ok(command) => Ok(command.control.can_reopen_run()),
        Err(fault) if fault.is_transient() => Err(fault),
        Err(_) => Ok(false),
    }
}

/// `true` if the archive holds the run, or the beginning of a run that was reopened.
#[must_use]
pub fn has_archive(summary: &RunSummary) -> bool {
    summary.archived || summary.archived_span.is_some()
}

/// `true` if these messages of a lane are the whole log of their run, as far as it is not archived.
async fn begins_with_submission(bus: &Bus, records: &[StreamRecord]) -> Result<bool, Fault> {
    if records.iter().any(is_submission) {
        return Ok(records.iter().any(StreamRecord::is_decision));
    }
    begins_with_first_decision(bus, records).await
}

/// `true` if the first decision among these messages is the first one of its run.
pub async fn begins_with_first_decision(bus: &Bus, records: &[StreamRecord]) -> Result<bool, Fault> {
    let Some(first) = records.iter().find(|record| record.is_decision()) else { return Ok(false) };
    match bus.decode_record::<Decision>(first).await {
        Ok(decision) => Ok(decision.begins_run()),
        Err(fault) if fault.is_transient() => Err(fault),
        Err(_) => Ok(false),
    }
}

pub(crate) fn is_submission(record: &StreamRecord) -> bool {
    matches!(subject::parse_lane_subject(&record.subject), Some((_, _, Topic::Submitted)))
}

fn is_command(record: &StreamRecord) -> bool {
    matches!(subject::parse_lane_subject(&record.subject), Some((_, _, Topic::Control)))
}
