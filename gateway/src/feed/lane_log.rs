//! The messages of all runs of a lane in the order of the log, also those that were archived and removed from the lane since. The archive
//! of a run that was reopened holds its first part.
//!
//! A part of the log between two sequences is complete if the lane was read up to the second one, and then the archives of the
//! runs that were marked as archived by then: what is missing in the lane belongs to them. Archived messages are merged by their
//! sequences, a few runs at a time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::subject;
use millrace_runtime::fault::max_replica_lag;
use millrace_runtime::log::read_lane_end;
use millrace_runtime::nats::direct_get::{ALL_SUBJECTS, PagedReader};
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::topology::lane_stream;
use millrace_runtime::store::archive::join_with_archive;
use millrace_runtime::{Bus, Fault};

use super::message::LaneMessage;
use crate::listed_run::IndexedRun;
use crate::run_index::RunIndex;

/// The maximum number of messages of a page.
const PAGE: usize = 256;
/// The number of archives that are open at a time, unless more runs were live at once.
const OPEN_ARCHIVES: usize = 8;

pub struct LaneLog {
    bus: Bus,
    index: Arc<RunIndex>,
    lane: Lane,
    has_journals: bool,
    /// The sequence up to which all messages were returned.
    seen: u64,
    /// The archives that are being merged.
    open: HashMap<RunId, OpenArchive>,
}

/// The archive of a run, from the position of the reader on.
struct OpenArchive {
    messages: Vec<Arc<LaneMessage>>,
    /// The archived messages, as the run's summary says. The archive of a run that was reopened and has ended again has more.
    span: Option<(u64, u64)>,
}

pub struct LanePart {
    pub messages: Vec<Arc<LaneMessage>>,
    /// `true` if there are no more so far.
    pub is_end_of_log: bool,
}

impl LaneLog {
    /// Creates a reader of the messages after sequence `seen`.
    pub fn new(bus: &Bus, index: &Arc<RunIndex>, (lane, has_journals): (Lane, bool), seen: u64) -> Self {
        let (bus, index) = (bus.clone(), index.clone());
        Self { bus, index, lane, has_journals, seen, open: HashMap::new() }
    }

    /// The sequence up to which all messages were returned.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Continues after a sequence up to which the caller has received all messages.
    pub fn skip_to(&mut self, seen: u64) {
        self.seen = self.seen.max(seen);
    }

    /// Reads the next messages of the runs that `is_wanted` selects. Cancellation loses nothing.
    pub async fn next_part(&mut self, is_wanted: impl Fn(&RunId) -> bool) -> Result<LanePart, Fault> {
        let records = self.read_page(self.seen).await?;
        // The order matters: a run is marked as archived before its messages are removed.
        let archived = self.archived_runs(&is_wanted).await?;
        if archived.is_empty() {
            let is_end_of_log = records.is_empty();
            self.seen = records.last().map_or(self.seen, |last| last.sequence);
            return Ok(self.part(records, BTreeMap::new(), is_end_of_log));
        }
        self.merge_archives(is_wanted).await
    }

    async fn merge_archives(&mut self, is_wanted: impl Fn(&RunId) -> bool) -> Result<LanePart, Fault> {
        // The lane is read up to the end that its leader knows; a replica may need some time to know it too.
        let end = read_lane_end(&self.bus, self.lane).await?.max(self.seen);
        tokio::time::sleep(max_replica_lag(self.bus.settings().replicas)).await;
        let records = self.read_page(self.seen).await?;
        let mut through = match records.last() {
            Some(last) if records.len() >= PAGE => last.sequence,
            Some(last) => last.sequence.max(end),
            None => end,
        };
        let mut archived = self.archived_runs(&is_wanted).await?;
        archived.sort_by_key(|run| run.summary.archived_span.map_or(0, |(first, _)| first));
        let first_of = |run: &IndexedRun| run.summary.archived_span.map_or(0, |(first, _)| first);
        for (number, run) in archived.iter().enumerate() {
            let first = first_of(run);
            if first > through {
                break;
            }
            if number >= OPEN_ARCHIVES && first > self.seen + 1 {
                through = first - 1;
                break;
            }
            self.open_archive(run).await?;
        }
        let mut messages = BTreeMap::new();
        for message in self.open.values().flat_map(|archive| &archive.messages) {
            if message.sequence() > self.seen && message.sequence() <= through {
                messages.insert(message.sequence(), message.clone());
            }
        }
        self.open.retain(|_, archive| archive.messages.last().is_some_and(|last| last.sequence() > through));
        let is_end_of_log = through >= end && records.is_empty() && messages.is_empty();
        self.seen = through;
        Ok(self.part(records, messages, is_end_of_log))
    }

    async fn read_page(&self, after: u64) -> Result<Vec<StreamRecord>, Fault> {
        let filter = match self.has_journals {
            true => ALL_SUBJECTS.into(),
            false => subject::plan_subjects_of_lane(self.lane),
        };
        let pages = PagedReader::new(self.bus.client(), lane_stream(self.lane), filter, after + 1);
        pages.with_page_size(PAGE).next_page().await
    }

    /// Returns the archived runs that may have messages after the position.
    async fn archived_runs(&self, is_wanted: impl Fn(&RunId) -> bool) -> Result<Vec<Arc<IndexedRun>>, Fault> {
        self.index.refresh(&self.bus).await?;
        let mut runs = self.index.archived_after(self.lane, self.seen);
        runs.retain(|run| is_wanted(&run.summary.run));
        Ok(runs)
    }

    async fn open_archive(&mut self, run: &IndexedRun) -> Result<(), Fault> {
        let (id, span) = (&run.summary.run, run.summary.archived_span);
        if self.open.get(id).is_some_and(|archive| archive.span == span) {
            return Ok(());
        }
        let records = join_with_archive(&self.bus, id, Vec::new(), Some(&run.summary)).await?.records;
        let seen = self.seen;
        let rest = records.into_iter().filter(|record| record.sequence > seen);
        let rest = rest.filter_map(LaneMessage::from_record);
        let messages = rest.filter(|message| self.is_wanted_kind(message)).collect();
        self.open.insert(id.clone(), OpenArchive { messages, span });
        Ok(())
    }

    fn is_wanted_kind(&self, message: &LaneMessage) -> bool {
        self.has_journals || message.is_decision()
    }

    /// Merges the messages of the lane with those of archives, up to the position.
    fn part(
        &self,
        records: Vec<StreamRecord>,
        mut messages: BTreeMap<u64, Arc<LaneMessage>>,
        is_end_of_log: bool,
    ) -> LanePart {
        for message in records.into_iter().filter_map(LaneMessage::from_record) {
            if message.sequence() <= self.seen && self.is_wanted_kind(&message) {
                messages.insert(message.sequence(), message);
            }
        }
        LanePart { messages: messages.into_values().collect(), is_end_of_log }
    }
}
