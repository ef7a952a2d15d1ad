//! The mark: finds the blobs that anything refers to.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use futures::StreamExt;
use millrace_protocol::ids::RunId;
use millrace_protocol::retention::{BlobName, PruneForecast, find_blob_names};
use millrace_protocol::subject::{
    FileSpace, parse_file_subject, parse_order_subject, run_token_of_lane_subject,
};

use super::objects::{ArchiveScan, BlobIndex, blob_size, names_in_blob, paged};
use crate::nats::error::fault_from_client_error;
use crate::nats::record::StreamRecord;
use crate::nats::topology::{ARCHIVE, RUNS, blob_referring_streams, object_stream};
use crate::{Bus, Fault};

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
    let handle = bus.request_context().get_stream(stream).await;
    let handle = handle.map_err(|error| fault_from_client_error(&format!("the state of {stream}"), error))?;
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
