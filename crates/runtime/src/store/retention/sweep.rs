//! The sweep: the mark finds the blobs that anything refers to, and the others are removed. See the module docs of [`super`] for its rules.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use futures::StreamExt;
use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::retention::{BlobName, PruneForecast, SweepReport, find_blob_names, format_blob_name};
use millrace_protocol::subject::{
    FileSpace, parse_file_subject, parse_order_subject, run_token_of_lane_subject,
};
use tracing::{debug, info};

use crate::fault::ClientResult;
use crate::nats::direct_get::read_last_per_subject;
use crate::nats::object_store::{self, StoredObjectInfo, object_parts_subject};
use crate::nats::record::StreamRecord;
use crate::nats::topology::{ARCHIVE, BLOBS, RUNS, blob_referring_streams, object_stream};
use crate::store::retention::is_held;
use crate::store::retention::removal::{ArchiveScan, BlobIndex, blob_size, names_in_blob, paged};
use crate::{Bus, Fault};

/// The number of blobs that are removed between two looks at holds.
const BATCH: usize = 64;
/// The number of blobs that are removed at the same time.
const CONCURRENT: usize = 4;
/// The number of subjects that are looked up at once.
const MAX_LOOKUPS: usize = 500;

#[derive(Debug, Clone, Copy)]
pub struct SweepOptions {
    /// The age below which unreferenced blobs stay.
    pub grace: Duration,
    /// `true` if the sweep pauses as long as it reads, so that others come first.
    pub is_paced: bool,
}

/// Removes the blobs that nothing refers to. Returns `None` if a backup is taken.
/// Errors: the server does not respond. What has been removed until then was unreferenced.
pub async fn sweep_blobs(bus: &Bus, options: SweepOptions) -> Result<Option<SweepReport>, Fault> {
    if is_held(bus).await? {
        return Ok(None);
    }
    // The order matters: the second check reads everything after these ends, and all blobs that are not in the index.
    let began = Timestamp::now();
    let ends = StreamEnds::read(bus).await?;
    let none = HashSet::new();
    let mut mark = Mark::begin(bus, &none, options.is_paced).await?;
    let old: Vec<BlobName> = mark
        .index
        .iter()
        .filter(|(_, descriptions)| is_older_than(descriptions, options.grace, began))
        .map(|(name, _)| *name)
        .collect();
    let mut report = SweepReport { blobs: mark.index.len() as u64, ..SweepReport::default() };
    mark.mark_all().await?;
    mark.mark_new(&ends).await?;
    report.referenced = mark.referenced_count() as u64;
    let condemned: Vec<BlobName> = old.into_iter().filter(|name| !mark.is_referenced(name)).collect();
    report.too_young = (mark.index.len() as u64).saturating_sub(report.referenced + condemned.len() as u64);
    for batch in condemned.chunks(BATCH) {
        if is_held(bus).await? {
            info!("a backup is being taken; ending the sweep of blobs early");
            return Ok(Some(report));
        }
        let removals: Vec<_> = batch.iter().map(|name| remove_blob(bus, &mark.index, name)).collect();
        let mut removals = futures::stream::iter(removals).buffer_unordered(CONCURRENT);
        while let Some(removed) = removals.next().await {
            if let Some(bytes) = removed? {
                report.removed += 1;
                report.removed_bytes += bytes;
            }
        }
    }
    remove_renewed_descriptions(bus, &mark).await?;
    for bucket in [BLOBS, ARCHIVE] {
        remove_parts_without_description(bus, bucket, options.grace).await?;
    }
    Ok(Some(report))
}

fn is_older_than(descriptions: &[StoredObjectInfo], age: Duration, now: Timestamp) -> bool {
    let is_old = |at| Duration::try_from(now.duration_since(at)).is_ok_and(|actual| actual >= age);
    descriptions.last().is_some_and(|last| is_old(last.at))
}

/// Removes a blob unless somebody has stored it again since its descriptions were read. Returns its size; `None` if it stays.
async fn remove_blob(bus: &Bus, index: &BlobIndex, name: &BlobName) -> Result<Option<u64>, Fault> {
    let (context, text) = (bus.request_context(), format_blob_name(name));
    let descriptions = index.descriptions(name);
    let Some(last) = descriptions.last() else { return Ok(None) };
    // A sweep that died may have written this description already.
    let end = if last.info.deleted {
        last.sequence
    } else {
        let tombstone = last.info.clone().into_deleted();
        match object_store::append_description(context, BLOBS, &tombstone, last.sequence).await? {
            Some(sequence) => sequence,
            None => {
                debug!(blob = text, "the blob was stored again; keeping it");
                return Ok(None);
            }
        }
    };
    let mut removed = HashSet::new();
    for stored in descriptions.iter().filter(|stored| index.is_sole_owner(&stored.info)) {
        if !removed.insert(&stored.info.nuid) {
            continue;
        }
        object_store::remove_object_parts(context, BLOBS, &stored.info).await?;
    }
    object_store::remove_descriptions(context, BLOBS, &text, end + 1).await?;
    Ok(Some(blob_size(descriptions)))
}

/// Removes all but the last description of each blob whose descriptions have the same parts.
async fn remove_renewed_descriptions(bus: &Bus, mark: &Mark<'_>) -> Result<(), Fault> {
    for (name, descriptions) in mark.index.iter().filter(|(name, _)| mark.is_referenced(name)) {
        let Some((last, earlier)) = descriptions.split_last() else { continue };
        let is_same =
            |one: &StoredObjectInfo| one.info.nuid == last.info.nuid && one.info.size == last.info.size;
        let is_renewed = !last.info.deleted && !last.provenance.is_forged();
        if is_renewed && !earlier.is_empty() && earlier.iter().all(is_same) {
            let (context, name) = (bus.request_context(), format_blob_name(name));
            object_store::remove_descriptions(context, BLOBS, &name, last.sequence).await?;
        }
    }
    Ok(())
}

/// Removes the parts that no description names: of objects whose writers died.
async fn remove_parts_without_description(bus: &Bus, bucket: &str, age: Duration) -> Result<(), Fault> {
    let what = || format!("listing the parts of {bucket}");
    let handle = bus.request_context().get_stream_no_info(object_stream(bucket)).await.or_fault_with(what)?;
    let mut subjects =
        handle.info_with_subjects(object_parts_subject(bucket, ">")).await.or_fault_with(what)?;
    let mut parts = HashSet::new();
    while let Some(entry) = subjects.next().await {
        parts.insert(entry.or_fault_with(what)?.0);
    }
    // After the parts: an object that is described meanwhile is complete.
    let mut pages = paged(bus, object_stream(bucket), format!("$O.{bucket}.M.>"), 1);
    loop {
        let records = pages.next_page().await?;
        if records.is_empty() {
            break;
        }
        for stored in records.iter().filter_map(|record| StoredObjectInfo::parse(bucket, record)) {
            parts.remove(&object_parts_subject(bucket, &stored.info.nuid));
        }
    }
    let (parts, now): (Vec<String>, _) = (parts.into_iter().collect(), Timestamp::now());
    for batch in parts.chunks(MAX_LOOKUPS) {
        let last = read_last_per_subject(bus.client(), &object_stream(bucket), batch).await?;
        let is_old = |at| Duration::try_from(now.duration_since(at)).is_ok_and(|actual| actual >= age);
        for record in last.unwrap_or_default().iter().filter(|record| is_old(record.time)) {
            let purged = handle.purge().filter(record.subject.to_string()).await;
            purged.or_fault_with(what)?;
        }
    }
    Ok(())
}

/// The number of blobs that are read at the same time.
const CONCURRENT_BLOBS: usize = 8;

/// A mark in progress.
pub(super) struct Mark<'a> {
    bus: &'a Bus,
    pub index: BlobIndex,
    referenced: HashSet<BlobName>,
    /// The referenced blobs whose contents have not been read.
    unread: Vec<BlobName>,
    /// The sequence of the next message of each stream.
    positions: BTreeMap<String, u64>,
    archives: ArchiveScan,
    /// The runs that count as deleted.
    excluded: &'a HashSet<RunId>,
    /// The bytes of the archives of the excluded runs.
    excluded_bytes: u64,
    /// `true` if the mark pauses as long as it reads, so that others come first.
    is_paced: bool,
}

impl<'a> Mark<'a> {
    /// Starts a mark of everything that is in the store now, without these runs.
    pub async fn begin(bus: &'a Bus, excluded: &'a HashSet<RunId>, is_paced: bool) -> Result<Self, Fault> {
        let mut index = BlobIndex::default();
        index.read_new(bus).await?;
        let positions = blob_referring_streams(bus.settings().lanes).into_iter().map(|stream| (stream, 1));
        Ok(Self {
            bus,
            index,
            referenced: HashSet::new(),
            unread: Vec::new(),
            positions: positions.collect(),
            archives: ArchiveScan::new(),
            excluded,
            excluded_bytes: 0,
            is_paced,
        })
    }

    /// Marks everything.
    pub async fn mark_all(&mut self) -> Result<(), Fault> {
        // A run moves from its lane to the archive, so that the archive is read last.
        for stream in self.positions.keys().cloned().collect::<Vec<_>>() {
            self.mark_stream(&stream).await?;
        }
        self.mark_archives().await?;
        self.mark_contents().await
    }

    /// Marks what was added while the mark was in progress: new messages, and the contents of new blobs. Names in earlier messages
    /// may be those of blobs that are new; all of these are taken as referenced.
    pub async fn mark_new(&mut self, since: &StreamEnds) -> Result<(), Fault> {
        for name in self.index.read_new(self.bus).await? {
            self.refer_to(name);
        }
        for (stream, end) in &since.0 {
            self.positions.insert(stream.clone(), end + 1);
            self.mark_stream(stream).await?;
        }
        self.archives.set_next(since.1 + 1);
        self.mark_archives().await?;
        self.mark_contents().await
    }

    pub fn is_referenced(&self, name: &BlobName) -> bool {
        self.referenced.contains(name)
    }

    pub fn referenced_count(&self) -> usize {
        self.referenced.len()
    }

    fn refer_to(&mut self, name: BlobName) {
        if self.index.contains(&name) && self.referenced.insert(name) {
            self.unread.push(name);
        }
    }

    async fn mark_stream(&mut self, stream: &str) -> Result<(), Fault> {
        let from = self.positions.get(stream).copied().unwrap_or(1);
        let mut pages = paged(self.bus, stream.to_owned(), ">".into(), from);
        loop {
            let started = Instant::now();
            let records = pages.next_page().await?;
            if records.is_empty() {
                return Ok(());
            }
            let mut names = Vec::new();
            for record in records.iter().filter(|record| !self.is_excluded(record)) {
                find_blob_names(&record.payload, |name| names.push(name));
            }
            names.into_iter().for_each(|name| self.refer_to(name));
            self.pause_since(started).await;
        }
    }

    /// `true` if a message belongs to a run that counts as deleted.
    fn is_excluded(&self, record: &StreamRecord) -> bool {
        if self.excluded.is_empty() {
            return false;
        }
        let subject = &*record.subject;
        let summary = || subject.strip_prefix("$KV.")?.strip_prefix(RUNS)?.strip_prefix('.');
        let run = match parse_file_subject(subject) {
            Some((FileSpace::Run(run), _)) => Some(run),
            Some((FileSpace::Memories, _)) => None,
            None => parse_order_subject(subject)
                .map(|(_, run)| run)
                .or_else(|| RunId::new(run_token_of_lane_subject(subject).or_else(summary)?).ok()),
        };
        run.is_some_and(|run| self.excluded.contains(&run))
    }

    async fn mark_archives(&mut self) -> Result<(), Fault> {
        loop {
            let started = Instant::now();
            let (archives, bytes) = self.archives.next_archives(self.bus).await?;
            if bytes == 0 {
                return Ok(());
            }
            for archive in archives {
                if archive.run.is_some_and(|run| self.excluded.contains(&run)) {
                    self.excluded_bytes += archive.size;
                } else {
                    archive.names.into_iter().for_each(|name| self.refer_to(name));
                }
            }
            self.pause_since(started).await;
        }
    }

    /// Marks what the contents of referenced blobs refer to.
    async fn mark_contents(&mut self) -> Result<(), Fault> {
        while !self.unread.is_empty() {
            let started = Instant::now();
            let batch = self.unread.split_off(self.unread.len().saturating_sub(8 * CONCURRENT_BLOBS));
            let bus = self.bus;
            let reads: Vec<_> =
                batch.iter().map(|name| names_in_blob(bus, self.index.descriptions(name).to_vec())).collect();
            let mut reads = futures::stream::iter(reads).buffer_unordered(CONCURRENT_BLOBS);
            while let Some(names) = reads.next().await {
                names?.into_iter().for_each(|name| self.refer_to(name));
            }
            drop(reads);
            self.pause_since(started).await;
        }
        Ok(())
    }

    /// Pauses as long as the last read took.
    async fn pause_since(&self, started: Instant) {
        if self.is_paced {
            tokio::time::sleep(started.elapsed().min(Duration::from_secs(1))).await;
        }
    }
}

/// The last sequences of the streams that refer to blobs, and of the archive.
pub(super) struct StreamEnds(BTreeMap<String, u64>, u64);

impl StreamEnds {
    /// Reads the present ends, as the leaders of the streams know them.
    pub async fn read(bus: &Bus) -> Result<Self, Fault> {
        let mut ends = BTreeMap::new();
        for stream in blob_referring_streams(bus.settings().lanes) {
            let end = last_sequence(bus, &stream).await?;
            ends.insert(stream, end);
        }
        Ok(Self(ends, last_sequence(bus, &object_stream(ARCHIVE)).await?))
    }
}

async fn last_sequence(bus: &Bus, stream: &str) -> Result<u64, Fault> {
    let handle =
        bus.request_context().get_stream(stream).await.or_fault_with(|| format!("the state of {stream}"))?;
    Ok(handle.cached_info().state.last_sequence)
}

/// Computes what the deletion of these runs would free, by a mark without them.
pub async fn forecast_prune(bus: &Bus, runs: &HashSet<RunId>) -> Result<PruneForecast, Fault> {
    let none = HashSet::new();
    let (mut with, mut without) =
        (Mark::begin(bus, &none, false).await?, Mark::begin(bus, runs, false).await?);
    with.mark_all().await?;
    without.mark_all().await?;
    let freed: Vec<u64> = with
        .index
        .iter()
        .filter(|(name, _)| with.is_referenced(name) && !without.is_referenced(name))
        .map(|(_, descriptions)| blob_size(descriptions))
        .collect();
    Ok(PruneForecast {
        runs: runs.len() as u64,
        archive_bytes: without.excluded_bytes,
        blobs: freed.len() as u64,
        blob_bytes: freed.iter().sum(),
    })
}
