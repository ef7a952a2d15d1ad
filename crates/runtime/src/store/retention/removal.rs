//! Removing a run, by a supervisor. See the module docs of [`super`] for the order of the steps.
//!
//! Reading object stores as a whole: all descriptions, and the contents of all objects in the order in which they were stored.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use lz4_flex::frame::FrameDecoder;
use millrace_protocol::ids::RunId;
use millrace_protocol::retention::{
    BlobName, BlobNameScanner, DeletionRecord, DeletionState, DeletionStep, deletion_step, parse_blob_name,
};
use millrace_protocol::subject::{FileSpace, file_subjects_in_folder};
use tracing::{info, warn};

use crate::fault::ClientResult;
use crate::nats::direct_get::PagedReader;
use crate::nats::object_store::{self, ObjectInfo, StoredObjectInfo, object_parts_subject};
use crate::nats::record::StreamRecord;
use crate::nats::topology::{ARCHIVE, BLOBS, FILES, KEYS, RETENTION, RUNS, bucket_stream, object_stream};
use crate::store::bucket::Entry;
use crate::store::keys;
use crate::store::retention::{
    is_held, list_deletions, must_be_retired, read_deletion_entry, retire_run, update_deletion,
};
use crate::work::{queue, registry};
use crate::{Bus, Fault, log};

/// The time for which the record of a deletion stays after the run is gone.
pub const RECORD_AGE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Carries a requested deletion out, or continues it. Returns `false` if it must wait: the run is still moved to the archive, or a
/// backup is taken.
/// Errors: the server does not respond. The deletion is continued by calling this again.
pub async fn remove_requested_run(bus: &Bus, run: &RunId) -> Result<bool, Fault> {
    let (Some(record), last) = read_deletion_entry(bus, run).await? else { return Ok(true) };
    if !record.state.is_pending() {
        return Ok(true);
    }
    if is_held(bus).await? {
        return Ok(false);
    }
    let record = match record.state {
        DeletionState::Requested => match begin_removal(bus, record, last).await? {
            DeletionStart::Begun(record) => record,
            DeletionStart::Refused => return Ok(true),
            DeletionStart::Wait => return Ok(false),
        },
        DeletionState::Removing | DeletionState::Refused | DeletionState::Removed { .. } => record,
    };
    remove_parts_of_run(bus, run).await?;
    let (current, last) = read_deletion_entry(bus, run).await?;
    if current.is_some_and(|current| current.state == DeletionState::Removing) {
        let removed = DeletionRecord { state: DeletionState::Removed { at: Timestamp::now() }, ..record };
        update_deletion(bus, &removed, last).await?;
        info!(%run, by = removed.by, "run deleted");
    }
    Ok(true)
}

/// The beginning of a removal.
enum DeletionStart {
    /// The run counts as deleted.
    Begun(DeletionRecord),
    /// The deletion is refused.
    Refused,
    /// It can't begin yet.
    Wait,
}

/// Decides on a requested deletion, and writes the decision into its record.
async fn begin_removal(bus: &Bus, record: DeletionRecord, last: u64) -> Result<DeletionStart, Fault> {
    let summary = registry::read_summary(bus, &record.run).await?;
    let is_submitted =
        summary.is_none() && log::has_submission(bus, bus.lane_of_run(&record.run), &record.run).await?;
    let state = match deletion_step(summary.as_ref(), is_submitted) {
        DeletionStep::Wait { .. } => {
            // It was resumed before its retirement was decided, and has ended again.
            if let Some(summary) = summary.as_ref().filter(|summary| must_be_retired(summary)) {
                retire_run(bus, summary, &record.by).await?;
            }
            return Ok(DeletionStart::Wait);
        }
        DeletionStep::Refuse => DeletionState::Refused,
        DeletionStep::Remove => DeletionState::Removing,
    };
    let decided = DeletionRecord { state, ..record };
    if !update_deletion(bus, &decided, last).await? {
        return Ok(DeletionStart::Wait);
    }
    Ok(if decided.state.is_deleted() { DeletionStart::Begun(decided) } else { DeletionStart::Refused })
}

/// Removes everything of a run apart from its blobs.
async fn remove_parts_of_run(bus: &Bus, run: &RunId) -> Result<(), Fault> {
    registry::remove_summary(bus, run).await?;
    log::purge_run(bus, bus.lane_of_run(run), run, u64::MAX - 1).await?;
    queue::withdraw_orders_of_run(bus, run).await?;
    purge_stream(bus, FILES, file_subjects_in_folder(&FileSpace::Run(run.clone()), None), None).await?;
    remove_archive(bus, run).await
}

/// Removes all versions of the archive of a run: first their parts, so that a crash leaves descriptions from which the rest is
/// found.
async fn remove_archive(bus: &Bus, run: &RunId) -> Result<(), Fault> {
    let context = bus.request_context();
    let versions = object_store::read_object_descriptions(bus.client(), ARCHIVE, run.as_str()).await?;
    let Some(last) = versions.last() else { return Ok(()) };
    let mut removed = HashSet::new();
    for version in &versions {
        // A forged description is a copy of that of another run.
        let is_own = version.info.name == run.as_str();
        if is_own && removed.insert(&version.info.nuid) {
            object_store::remove_object_parts(context, ARCHIVE, &version.info).await?;
        }
    }
    object_store::remove_descriptions(context, ARCHIVE, run.as_str(), last.sequence + 1).await
}

/// Removes the messages of a subject; those before a sequence if there is one.
async fn purge_stream(bus: &Bus, stream: &str, subject: String, before: Option<u64>) -> Result<(), Fault> {
    let what = format!("removing {subject} from {stream}");
    let handle = bus.request_context().get_stream_no_info(stream).await.or_fault(&what)?;
    let purge = handle.purge().filter(subject);
    let purged = match before {
        Some(before) => purge.sequence(before).await,
        None => purge.await,
    };
    purged.map(|_| ()).or_fault(&what)
}

/// Removes the records of deletions that ended longer ago than `age`, with the idempotency keys of their runs and the markers of
/// their summaries. Returns the number of records.
pub async fn expire_records(bus: &Bus, age: Duration) -> Result<usize, Fault> {
    let now = Timestamp::now();
    let is_old = |at: Timestamp| now.duration_since(at).unsigned_abs() >= age;
    let expired = |record: &DeletionRecord| match record.state {
        DeletionState::Removed { at } => is_old(at),
        DeletionState::Refused => is_old(record.requested),
        DeletionState::Requested | DeletionState::Removing => false,
    };
    let mut records = list_deletions(bus).await?;
    records.retain(|entry| expired(&entry.value));
    if records.is_empty() {
        return Ok(0);
    }
    let removed = |entry: &DeletionRecord| entry.state.is_deleted();
    let runs: HashSet<&RunId> =
        records.iter().map(|entry| &entry.value).filter(|record| removed(record)).map(|it| &it.run).collect();
    for Entry { key, value, .. } in keys::STORE.read_all(bus).await? {
        if runs.contains(&value.run) {
            purge_stream(bus, &bucket_stream(KEYS), format!("$KV.{KEYS}.{key}"), None).await?;
        }
    }
    for entry in &records {
        let run = &entry.value.run;
        // A run of this name may have been submitted again.
        if runs.contains(run) && registry::read_summary(bus, run).await?.is_none() {
            purge_stream(bus, &bucket_stream(RUNS), format!("$KV.{RUNS}.{run}"), None).await?;
        }
        let subject = format!("$KV.{RETENTION}.deletion.{}", entry.key);
        purge_stream(bus, &bucket_stream(RETENTION), subject, Some(entry.sequence + 1)).await?;
    }
    Ok(records.len())
}

/// The number of messages per request.
pub(super) const PAGE: usize = 1_000;
/// The number of bytes per request.
pub(super) const PAGE_BYTES: usize = 8 * 1024 * 1024;
/// The maximum number of bytes of parts that wait for the description of their object. Larger objects are read by their parts.
const MAX_WAITING: usize = 64 * 1024 * 1024;
/// The size of the buffer for unpacked archives.
const UNPACK_BUFFER: usize = 64 * 1024;

/// Starts a read of a stream from a sequence on, with little memory.
pub(super) fn paged(bus: &Bus, stream: String, filter: String, from: u64) -> PagedReader {
    PagedReader::new(bus.client(), stream, filter, from).with_page_size(PAGE).with_max_bytes(PAGE_BYTES)
}

/// The descriptions of all blobs.
#[derive(Debug, Default)]
pub(super) struct BlobIndex {
    blobs: HashMap<BlobName, Vec<StoredObjectInfo>>,
    /// The blob of each token of parts; `None` if descriptions of several blobs name it, of which all but one are wrong.
    owners: HashMap<String, Option<BlobName>>,
    /// The sequence of the next description to read.
    next: u64,
}

impl BlobIndex {
    /// Reads the descriptions that were added since the last call. Returns the names of the blobs that have new ones.
    pub async fn read_new(&mut self, bus: &Bus) -> Result<Vec<BlobName>, Fault> {
        let mut pages = paged(bus, object_stream(BLOBS), format!("$O.{BLOBS}.M.>"), self.next);
        let mut names = Vec::new();
        loop {
            let records = pages.next_page().await?;
            let Some(last) = records.last() else { return Ok(names) };
            self.next = last.sequence + 1;
            for record in &records {
                let Some(stored) = StoredObjectInfo::parse(BLOBS, record) else { continue };
                let Some(name) = parse_blob_name(stored.info.name.as_bytes()) else { continue };
                let owner = self.owners.entry(stored.info.nuid.clone()).or_insert(Some(name));
                if *owner != Some(name) {
                    *owner = None;
                }
                self.blobs.entry(name).or_default().push(stored);
                names.push(name);
            }
        }
    }

    pub fn contains(&self, name: &BlobName) -> bool {
        self.blobs.contains_key(name)
    }

    /// `true` if only descriptions of one blob name these parts.
    pub fn is_sole_owner(&self, info: &ObjectInfo) -> bool {
        self.owners.get(&info.nuid).is_some_and(Option::is_some)
    }

    pub fn len(&self) -> usize {
        self.blobs.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&BlobName, &[StoredObjectInfo])> {
        self.blobs.iter().map(|(name, descriptions)| (name, descriptions.as_slice()))
    }

    pub fn descriptions(&self, name: &BlobName) -> &[StoredObjectInfo] {
        self.blobs.get(name).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Returns the size of a blob with these descriptions.
pub(super) fn blob_size(descriptions: &[StoredObjectInfo]) -> u64 {
    descriptions.iter().rev().find(|stored| !stored.info.deleted).map_or(0, |stored| stored.info.size)
}

/// Returns everything in the contents of a blob that may be the name of a blob. The content is read in parts.
pub(super) async fn names_in_blob(
    bus: &Bus,
    descriptions: Vec<StoredObjectInfo>,
) -> Result<Vec<BlobName>, Fault> {
    let (mut names, mut read) = (Vec::new(), Vec::new());
    for stored in descriptions {
        if stored.info.deleted || read.contains(&stored.info.nuid) {
            continue;
        }
        let subject = object_parts_subject(BLOBS, &stored.info.nuid);
        read.push(stored.info.nuid);
        let (mut pages, mut scanner) =
            (paged(bus, object_stream(BLOBS), subject, 1), BlobNameScanner::default());
        loop {
            let parts = pages.next_page().await?;
            if parts.is_empty() {
                break;
            }
            for part in parts {
                scanner.read(&part.payload, |name| names.push(name));
            }
        }
    }
    Ok(names)
}

/// Reads the archives in the order in which they were stored: one request returns the parts of many of them.
pub(super) struct ArchiveScan {
    next: u64,
    /// The parts of the objects whose descriptions have not been read yet.
    waiting: HashMap<String, Vec<Bytes>>,
    waiting_bytes: usize,
}

/// The names in an archive.
pub(super) struct ScannedArchive {
    /// Its run; `None` if the name is not one of a run.
    pub run: Option<RunId>,
    /// Everything in it that may be the name of a blob.
    pub names: Vec<BlobName>,
    /// The size of the object in bytes.
    pub size: u64,
}

impl ArchiveScan {
    pub fn new() -> Self {
        Self { next: 1, waiting: HashMap::new(), waiting_bytes: 0 }
    }

    /// Continues from this sequence.
    pub fn set_next(&mut self, next: u64) {
        self.next = next;
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    /// Reads the next archives. Returns the number of bytes that were read, 0 at the end of the store.
    pub async fn next_archives(&mut self, bus: &Bus) -> Result<(Vec<ScannedArchive>, usize), Fault> {
        let records = paged(bus, object_stream(ARCHIVE), ">".into(), self.next).next_page().await?;
        let Some(last) = records.last() else { return Ok((Vec::new(), 0)) };
        self.next = last.sequence + 1;
        let bytes = records.iter().map(|record| record.payload.len() + 1).sum();
        let prefix = format!("$O.{ARCHIVE}.C.");
        let mut scanned = Vec::new();
        for record in &records {
            if let Some(nuid) = record.subject.strip_prefix(&prefix) {
                self.keep_part(nuid, record);
            } else if let Some(stored) = StoredObjectInfo::parse(ARCHIVE, record) {
                scanned.extend(self.scan_described(bus, &stored.info).await?);
            }
        }
        Ok((scanned, bytes))
    }

    fn keep_part(&mut self, nuid: &str, record: &StreamRecord) {
        self.waiting_bytes += record.payload.len();
        if self.waiting_bytes > MAX_WAITING {
            self.waiting.clear();
            self.waiting_bytes = record.payload.len();
        }
        self.waiting.entry(nuid.to_owned()).or_default().push(record.payload.clone());
    }

    /// Scans the object of a description; `None` if it was replaced, or has lost parts, so that nobody can read it.
    async fn scan_described(
        &mut self,
        bus: &Bus,
        info: &ObjectInfo,
    ) -> Result<Option<ScannedArchive>, Fault> {
        if info.deleted {
            return Ok(None);
        }
        let parts = self.waiting.remove(&info.nuid).unwrap_or_default();
        let content = parts.concat();
        self.waiting_bytes = self.waiting_bytes.saturating_sub(content.len());
        let size = usize::try_from(info.size).unwrap_or(usize::MAX);
        let content = match content.len() >= size {
            true => Some(content),
            false => object_store::read_unverified_object(bus.client(), ARCHIVE, info).await?,
        };
        let Some(content) = content else { return Ok(None) };
        let name = info.name.clone();
        let names = tokio::task::spawn_blocking(move || names_in_archive(&name, &content)).await;
        let names = names.map_err(|error| Fault::unavailable("reading an archive", error))?;
        Ok(Some(ScannedArchive { run: RunId::new(&info.name).ok(), names, size: info.size }))
    }
}

/// Returns everything in an archive that may be the name of a blob. Of a damaged archive, which nobody can read, as much as can be
/// unpacked.
fn names_in_archive(name: &str, content: &[u8]) -> Vec<BlobName> {
    let (mut names, mut scanner) = (Vec::new(), BlobNameScanner::default());
    let mut unpacked = FrameDecoder::new(content);
    let mut buffer = vec![0; UNPACK_BUFFER];
    loop {
        match unpacked.read(&mut buffer) {
            Ok(0) => return names,
            Ok(count) => scanner.read(&buffer[..count], |name| names.push(name)),
            Err(error) => {
                warn!(name, %error, "an archive is damaged; only its beginning counts in the sweep of blobs");
                return names;
            }
        }
    }
}
