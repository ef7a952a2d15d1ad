//! Checking the references of a cluster: each blob that a message names, and each archived run, must exist with all
//! parts. It only reads, and repairs nothing.

use std::collections::{HashMap, HashSet};

use async_nats::jetstream::Context;
use futures::StreamExt;
use millrace_protocol::child::Delegation;
use millrace_protocol::file::FileVersion;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::{Decision, Document, RunCommand, Submission};
use millrace_protocol::question::RunAnswer;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{BlobRef, InlineOrStoredBytes, WireMessage, decode_blob_ref_of_body};
use millrace_protocol::work::{JournalEntry, WorkOutcome};
use serde::Deserialize;

use super::copy::LeaderReader;
use super::{BackupProgress, OnBackupProgress};
use crate::Fault;
use crate::fault::{ClientResult, backoff, max_replica_lag};
use crate::nats::bus::Bus;
use crate::nats::object_store::object_info_subject;
use crate::nats::record::{Provenance, StreamRecord};
use crate::nats::topology::{ARCHIVE, BLOBS, FILES, lane_stream, object_stream};
use crate::store::archive;

/// The maximum number of attempts to read something that is missing.
const MAX_ATTEMPTS: u32 = 12;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DanglingReference {
    /// The missing item: a blob by its SHA-256, or the archive of a run.
    pub what: String,
    /// The message that refers to it.
    pub referenced_by: String,
}

/// A description of an object. One object may have several descriptions, of which each replaces the one before.
pub struct ObjectDescription {
    pub name: String,
    /// The subject of the description.
    pub subject: String,
    /// The subject of its parts.
    pub parts: String,
    /// `true` if all its parts exist.
    pub is_complete: bool,
    pub provenance: Provenance,
}

/// The fields of a description that are needed here.
#[derive(Deserialize)]
struct ObjectDescriptionFields {
    name: String,
    nuid: String,
    chunks: usize,
    #[serde(default)]
    deleted: bool,
}

/// Returns the descriptions of all objects of a store, oldest first. A description on the subject of another object is
/// ignored.
pub async fn read_object_descriptions(
    context: &Context,
    store: &str,
) -> Result<Vec<ObjectDescription>, Fault> {
    let parts = count_parts_by_object(context, store).await?;
    let mut reading =
        LeaderReader::start_reading(context, &object_stream(store), &format!("$O.{store}.M.>"), 1).await?;
    let mut descriptions = Vec::new();
    loop {
        let records = reading.next_records().await?;
        if records.is_empty() {
            return Ok(descriptions);
        }
        // Unreadable descriptions are ignored.
        let valid = records.iter().filter_map(|record| {
            let ObjectDescriptionFields { name, nuid, chunks, deleted } =
                serde_json::from_slice(&record.payload).ok()?;
            // Callers remove these subjects, so they must not contain wildcards.
            let is_token = |text: &str| text.chars().all(|letter| letter.is_ascii_alphanumeric());
            if *record.subject != *object_info_subject(store, &name) || !is_token(&nuid) {
                return None;
            }
            let parts_subject = format!("$O.{store}.C.{nuid}");
            let is_complete = !deleted && parts.get(&parts_subject).copied().unwrap_or_default() >= chunks;
            let (subject, provenance) = (record.subject.to_string(), record.provenance);
            Some(ObjectDescription { name, subject, parts: parts_subject, is_complete, provenance })
        });
        descriptions.extend(valid);
    }
}

/// Returns the number of parts of each object of a store, by subject.
async fn count_parts_by_object(context: &Context, store: &str) -> Result<HashMap<String, usize>, Fault> {
    let what = || format!("listing the objects of {store}");
    let stream = context.get_stream_no_info(object_stream(store)).await.or_fault_with(what)?;
    let mut subjects = stream.info_with_subjects(format!("$O.{store}.C.>")).await.or_fault_with(what)?;
    let mut parts = HashMap::new();
    while let Some(entry) = subjects.next().await {
        let (subject, count) = entry.or_fault_with(what)?;
        parts.insert(subject, count);
    }
    Ok(parts)
}

/// Reads all messages of a cluster and returns their dangling references.
pub async fn find_dangling_references(
    bus: &Bus,
    archived: &HashSet<RunId>,
    on_progress: OnBackupProgress<'_>,
) -> Result<Vec<DanglingReference>, Fault> {
    let complete = |objects: Vec<ObjectDescription>| -> HashSet<String> {
        objects.into_iter().filter(|object| object.is_complete).map(|object| object.name).collect()
    };
    let blobs = complete(read_object_descriptions(bus.request_context(), BLOBS).await?);
    let archives = complete_archive_names(read_object_descriptions(bus.request_context(), ARCHIVE).await?);
    let mut check = ReferenceCheck { bus, blobs, missing: Vec::new(), bytes: 0 };
    for lane in (0..bus.settings().lanes).map(Lane) {
        check.check_stream(&lane_stream(lane), on_progress).await?;
    }
    check.check_stream(FILES, on_progress).await?;
    for run in archived {
        let is_archived = archives.contains(run.as_str());
        let records = if is_archived { read_archive(bus, run).await? } else { None };
        if records.is_none() {
            let what = format!("the archive of run {run}");
            check.missing.push(DanglingReference { what, referenced_by: "its summary".into() });
        }
        for record in records.unwrap_or_default() {
            check.check_record(&record).await?;
        }
    }
    on_progress(BackupProgress { operation: "checking", what: ARCHIVE, bytes: check.bytes, is_done: true });
    Ok(check.missing)
}

/// Returns the messages of the archive of a run; `None` if there is none.
pub async fn read_archive(bus: &Bus, run: &RunId) -> Result<Option<Vec<StreamRecord>>, Fault> {
    let (started, lag) = (tokio::time::Instant::now(), max_replica_lag(bus.settings().replicas));
    let mut tries = 0;
    loop {
        let records = retry_for_replica_lag(|| archive::read_archived_run(bus, run)).await?;
        if records.is_some() || started.elapsed() >= lag {
            return Ok(records);
        }
        tries += 1;
        tokio::time::sleep(backoff(tries)).await;
    }
}

/// Returns the names of the complete archives. Forged descriptions are ignored.
fn complete_archive_names(objects: Vec<ObjectDescription>) -> HashSet<String> {
    let valid = objects.into_iter().filter(|object| !object.provenance.is_forged() && object.is_complete);
    valid.map(|object| object.name).collect()
}

/// The state of a check.
struct ReferenceCheck<'a> {
    bus: &'a Bus,
    blobs: HashSet<String>,
    missing: Vec<DanglingReference>,
    bytes: u64,
}

impl ReferenceCheck<'_> {
    async fn check_stream(&mut self, stream: &str, on_progress: OnBackupProgress<'_>) -> Result<(), Fault> {
        let mut reading = LeaderReader::start_reading(self.bus.request_context(), stream, ">", 1).await?;
        loop {
            let records = reading.next_records().await?;
            if records.is_empty() {
                break;
            }
            for record in records {
                self.check_record(&record).await?;
            }
        }
        on_progress(BackupProgress {
            operation: "checking",
            what: stream,
            bytes: std::mem::take(&mut self.bytes),
            is_done: true,
        });
        Ok(())
    }

    /// Checks the references of one message. An unreadable message has none.
    async fn check_record(&mut self, record: &StreamRecord) -> Result<(), Fault> {
        self.bytes += record.payload.len() as u64;
        match subject::parse_lane_subject(&record.subject) {
            Some((_, _, Topic::Plan)) => drop(self.check_body_exists::<Decision>(record)),
            Some((_, _, Topic::Submitted)) => self.check_submission(record).await?,
            Some((_, _, Topic::Control)) => drop(self.check_body_exists::<RunCommand>(record)),
            Some((_, _, Topic::Answer)) => drop(self.check_body_exists::<RunAnswer>(record)),
            Some((_, _, Topic::Journal(_))) => {
                self.check_body_and_its_blob::<JournalEntry>(record, values_of_entry).await?;
            }
            None if subject::parse_file_subject(&record.subject).is_some() => {
                self.check_body_and_its_blob::<FileVersion>(record, |file| file.content.iter().collect())
                    .await?;
            }
            None => {}
        }
        Ok(())
    }

    /// Checks that the body of a message exists; `false` if it is missing.
    fn check_body_exists<M: WireMessage>(&mut self, record: &StreamRecord) -> bool {
        match decode_blob_ref_of_body::<M>(&record.payload, record.encoding) {
            Ok(Some(place)) => self.check_stored_value(&place, record),
            Ok(None) | Err(_) => true,
        }
    }

    /// Checks that the body of a message exists, and the blob that it names.
    async fn check_body_and_its_blob<M: WireMessage>(
        &mut self,
        record: &StreamRecord,
        values_of: fn(&M) -> Vec<&InlineOrStoredBytes>,
    ) -> Result<(), Fault> {
        if !self.check_body_exists::<M>(record) {
            return Ok(());
        }
        match retry_for_replica_lag(|| self.bus.decode_record::<M>(record)).await {
            Ok(message) => {
                for value in values_of(&message) {
                    if let InlineOrStoredBytes::Stored(place) = value {
                        self.check_stored_value(place, record);
                    }
                }
                Ok(())
            }
            Err(fault) if fault.is_transient() => Err(fault),
            Err(_) => Ok(()),
        }
    }

    /// Checks that a submission exists, with its documents.
    async fn check_submission(&mut self, record: &StreamRecord) -> Result<(), Fault> {
        if !self.check_body_exists::<Submission>(record) {
            return Ok(());
        }
        let submission = match retry_for_replica_lag(|| self.bus.decode_record::<Submission>(record)).await {
            Err(fault) if fault.is_transient() => return Err(fault),
            Err(_) => return Ok(()),
            Ok(submission) => submission,
        };
        let Some(documents) = submission.documents else { return Ok(()) };
        if !self.check_blob(&documents.manifest, "a list of documents", record) {
            return Ok(());
        }
        let list = retry_for_replica_lag(|| self.bus.blobs().get(&documents.manifest)).await?;
        for document in rmp_serde::from_slice::<Vec<Document>>(&list).unwrap_or_default() {
            self.check_blob(&document.sha256, &format!("the document {}", document.path), record);
        }
        Ok(())
    }

    /// Checks that a stored value exists.
    fn check_stored_value(&mut self, place: &BlobRef, record: &StreamRecord) -> bool {
        self.check_blob(&place.sha256, &format!("{} bytes", place.size), record)
    }

    fn check_blob(&mut self, sha256: &str, what: &str, record: &StreamRecord) -> bool {
        let exists = self.blobs.contains(sha256);
        if !exists {
            let what = format!("blob {sha256} ({what})");
            let referenced_by = format!("{} at {}", record.subject, record.sequence);
            self.missing.push(DanglingReference { what, referenced_by });
        }
        exists
    }
}

/// Retries an operation as long as the responding replica may lag behind its leader.
async fn retry_for_replica_lag<T, F>(operation: impl Fn() -> F) -> Result<T, Fault>
where
    F: Future<Output = Result<T, Fault>>,
{
    for tries in 1..MAX_ATTEMPTS {
        match operation().await {
            Err(fault) if fault.is_transient() || matches!(fault, Fault::Missing { .. }) => {
                tokio::time::sleep(backoff(tries)).await;
            }
            result => return result,
        }
    }
    operation().await
}

/// The values of an entry that may be in the blob store.
fn values_of_entry(entry: &JournalEntry) -> Vec<&InlineOrStoredBytes> {
    match entry {
        JournalEntry::Step { value, .. } => vec![value],
        JournalEntry::Outcome { outcome: WorkOutcome::Finished { result, .. }, .. } => vec![result],
        JournalEntry::Parked { children, .. }
        | JournalEntry::Delegated { delegation: Delegation { children, .. }, .. } => {
            children.iter().filter_map(|child| child.fork.as_deref()).collect()
        }
        JournalEntry::Outcome { .. }
        | JournalEntry::Claimed { .. }
        | JournalEntry::Note { .. }
        | JournalEntry::Released { .. } => Vec::new(),
    }
}
