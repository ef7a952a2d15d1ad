//! The messages of all runs of a lane in the order of the log, also those that were archived and removed from the lane since. The archive
//! of a run that was reopened holds its first part.
//!
//! A part of the log between two sequences is complete if the lane was read up to the second one, and then the archives of the
//! runs that were marked as archived by then: what is missing in the lane belongs to them. Archived messages are merged by their
//! sequences, a few runs at a time.
//!
//! # Invariants
//!
//! - I311: A reader of the log of a lane gets each message once and in order, whichever runs are archived meanwhile.
//!   (`crates/runtime/tests/archive.rs::reader_of_a_lane_gets_each_message_once_in_the_order_of_the_log`)

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::future::BoxFuture;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::subject;

use super::LogTopics;
use crate::Fault;
use crate::fault::max_replica_lag;
use crate::log::read::read_lane_end;
use crate::nats::bus::Bus;
use crate::nats::direct_get::{ALL_SUBJECTS, PagedReader};
use crate::nats::record::StreamRecord;
use crate::nats::topology::lane_stream;
use crate::store::archive::read_archive_through;

/// The maximum number of messages of a page.
const PAGE: usize = 256;
/// The number of archives that are open at a time, unless more runs were live at once.
const OPEN_ARCHIVES: usize = 8;

/// The part of a run that the archive holds, as the summary of the run says.
#[derive(Debug, Clone)]
pub struct ArchivedRun {
    pub run: RunId,
    /// The sequences of its first and its last message in the lane.
    pub span: (u64, u64),
}

/// Returns the runs of a lane with archived messages after a sequence. A run that was marked as archived before the call is among them.
pub type FindArchived =
    Arc<dyn Fn(Lane, u64) -> BoxFuture<'static, Result<Vec<ArchivedRun>, Fault>> + Send + Sync>;

/// A reader of the log of a lane.
pub struct LaneLog {
    bus: Bus,
    lane: Lane,
    topics: LogTopics,
    find_archived: FindArchived,
    /// The sequence up to which all messages were returned.
    seen: u64,
    /// The archives that are being merged.
    open: HashMap<RunId, OpenArchive>,
}

/// The archive of a run, from the position of the reader on.
struct OpenArchive {
    records: Vec<StreamRecord>,
    /// The archived messages, as the run's summary says. The archive of a run that was reopened and has ended again has more.
    span: (u64, u64),
}

/// The next part of the log of a lane.
pub struct LanePart {
    /// Messages that are not forged, oldest first.
    pub records: Vec<StreamRecord>,
    /// `true` if there are no more so far.
    pub is_end_of_log: bool,
}

impl LaneLog {
    /// Creates a reader of the messages after sequence `seen`.
    #[must_use]
    pub fn new(bus: &Bus, find_archived: FindArchived, (lane, topics): (Lane, LogTopics), seen: u64) -> Self {
        Self { bus: bus.clone(), lane, topics, find_archived, seen, open: HashMap::new() }
    }

    /// The sequence up to which all messages were returned.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Continues after a sequence up to which the caller has received all messages.
    pub fn skip_to(&mut self, seen: u64) {
        self.seen = self.seen.max(seen);
    }

    /// Reads the next messages of the lane, and those of the archived runs that `is_wanted` selects. Cancellation loses nothing.
    /// Errors: the server does not respond, or an archive can't be read. The next call continues.
    pub async fn next_part(&mut self, is_wanted: impl Fn(&RunId) -> bool) -> Result<LanePart, Fault> {
        let page = self.read_page().await?;
        // The order matters: a run is marked as archived before its messages are removed.
        let archived = self.archived_runs(&is_wanted).await?;
        if archived.is_empty() {
            let is_end_of_log = page.is_empty();
            self.seen = page.last().map_or(self.seen, |last| last.sequence);
            return Ok(self.part(page, BTreeMap::new(), is_end_of_log));
        }
        self.merge_archives(is_wanted).await
    }

    async fn merge_archives(&mut self, is_wanted: impl Fn(&RunId) -> bool) -> Result<LanePart, Fault> {
        // The lane is read up to the end that its leader knows; a replica may need some time to know it too.
        let end = read_lane_end(&self.bus, self.lane).await?.max(self.seen);
        tokio::time::sleep(max_replica_lag(self.bus.settings().replicas)).await;
        let page = self.read_page().await?;
        let mut through = match page.last() {
            Some(last) if page.len() >= PAGE => last.sequence,
            Some(last) => last.sequence.max(end),
            None => end,
        };
        let mut archived = self.archived_runs(&is_wanted).await?;
        archived.sort_by_key(|run| run.span.0);
        for (number, run) in archived.iter().enumerate() {
            let (first, _) = run.span;
            if first > through {
                break;
            }
            if number >= OPEN_ARCHIVES && first > self.seen + 1 {
                through = first - 1;
                break;
            }
            self.open_archive(run).await?;
        }
        let mut merged = BTreeMap::new();
        for record in self.open.values().flat_map(|archive| &archive.records) {
            if record.sequence > self.seen && record.sequence <= through {
                merged.insert(record.sequence, record.clone());
            }
        }
        self.open.retain(|_, archive| archive.records.last().is_some_and(|last| last.sequence > through));
        let is_end_of_log = through >= end && page.is_empty() && merged.is_empty();
        self.seen = through;
        Ok(self.part(page, merged, is_end_of_log))
    }

    async fn read_page(&self) -> Result<Vec<StreamRecord>, Fault> {
        let filter = match self.topics {
            LogTopics::All => ALL_SUBJECTS.into(),
            LogTopics::Decisions => subject::plan_subjects_of_lane(self.lane),
        };
        let pages = PagedReader::new(self.bus.client(), lane_stream(self.lane), filter, self.seen + 1);
        pages.with_page_size(PAGE).next_page().await
    }

    /// Returns the archived runs that may have messages after the position.
    async fn archived_runs(&self, is_wanted: impl Fn(&RunId) -> bool) -> Result<Vec<ArchivedRun>, Fault> {
        let mut runs = (self.find_archived)(self.lane, self.seen).await?;
        runs.retain(|archived| is_wanted(&archived.run));
        Ok(runs)
    }

    async fn open_archive(&mut self, ArchivedRun { run, span }: &ArchivedRun) -> Result<(), Fault> {
        if self.open.get(run).is_some_and(|archive| archive.span == *span) {
            return Ok(());
        }
        let mut records = read_archive_through(&self.bus, run, span.1).await?.unwrap_or_default();
        records.retain(|record| record.sequence > self.seen && self.topics.select(record));
        self.open.insert(run.clone(), OpenArchive { records, span: *span });
        Ok(())
    }

    /// Merges the messages of the lane with those of archives, up to the position.
    fn part(
        &self,
        page: Vec<StreamRecord>,
        mut merged: BTreeMap<u64, StreamRecord>,
        is_end_of_log: bool,
    ) -> LanePart {
        for record in page {
            if record.sequence <= self.seen && self.topics.select(&record) {
                merged.insert(record.sequence, record);
            }
        }
        LanePart { records: merged.into_values().collect(), is_end_of_log }
    }
}
