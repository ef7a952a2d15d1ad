//! Reads the messages of a run in the order of the log, from any sequence on, whether the run is in its lane or archived.

use std::collections::VecDeque;

use millrace_client::read_archived_records;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::JournalKey;
use millrace_protocol::subject::{self, Topic};
use millrace_runtime::nats::direct_get::PagedReader;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::topology::lane_stream;
use millrace_runtime::{Bus, Fault};

/// The maximum number of messages of a page.
const PAGE: usize = 64;

/// A reader of the messages of a run.
pub struct RunReader {
    bus: Bus,
    run: RunId,
    filter: String,
    /// `true` if journals are read too.
    has_journals: bool,
    /// The sequence of the last message that was returned.
    seen: u64,
    /// The rest of the run, once it has been archived.
    archived: Option<VecDeque<StreamRecord>>,
}

/// The next messages of a run.
pub struct RunRecords {
    /// The messages.
    pub records: Vec<StreamRecord>,
    /// `true` if there are no more messages yet. Messages that no stream shows count too, so that `records` may be empty
    /// while there are more.
    pub is_end_of_log: bool,
    /// `true` if no more will follow: the run is archived, and this is its end.
    pub is_complete: bool,
}

impl RunReader {
    /// Creates a reader of the messages after sequence `seen`: the decisions, and the journals if `has_journals`.
    pub fn new(bus: &Bus, run: &RunId, has_journals: bool, seen: u64) -> Self {
        let lane = bus.lane_of_run(run);
        let filter = match has_journals {
            true => subject::all_subjects_of_run(lane, run),
            false => subject::topic_subject(lane, run, &Topic::Plan),
        };
        Self { bus: bus.clone(), run: run.clone(), filter, has_journals, seen, archived: None }
    }

    /// The subject on which new messages appear.
    pub fn subject(&self) -> &str {
        &self.filter
    }

    /// Reads the next messages.
    ///
    /// # Errors
    /// The server does not respond.
    pub async fn next_records(&mut self) -> Result<RunRecords, Fault> {
        if self.archived.is_none() {
            let lane = lane_stream(self.bus.lane_of_run(&self.run));
            let pages = PagedReader::new(self.bus.client(), lane, self.filter.clone(), self.seen + 1);
            let records = pages.with_page_size(PAGE).next_page().await?;
            // The order matters: a run is marked as archived before its messages are removed from the lane. If it is not
            // marked after the read, no message of this page was missing.
            match read_archived_records(&self.bus, &self.run).await? {
                None => return Ok(self.take(records, false)),
                Some(all) => {
                    let rest = all.into_iter().filter(|record| record.sequence > self.seen);
                    self.archived = Some(rest.collect());
                }
            }
        }
        let rest = self.archived.get_or_insert_default();
        let records = rest.drain(..rest.len().min(PAGE)).collect();
        let is_complete = rest.is_empty();
        Ok(self.take(records, is_complete))
    }

    fn take(&mut self, mut records: Vec<StreamRecord>, is_complete: bool) -> RunRecords {
        let is_end_of_log = records.is_empty();
        self.seen = records.last().map_or(self.seen, |last| last.sequence);
        records.retain(|record| !record.is_forged() && self.is_wanted(record));
        RunRecords { records, is_end_of_log, is_complete }
    }

    fn is_wanted(&self, record: &StreamRecord) -> bool {
        match subject::parse_lane_subject(&record.subject) {
            Some((_, _, Topic::Plan)) => true,
            Some((
                _,
                _,
                Topic::Journal(JournalKey::Task(..) | JournalKey::Review(..) | JournalKey::Planning(..)),
            )) => self.has_journals,
            Some((_, _, Topic::Submitted | Topic::Control | Topic::Answer)) | None => false,
        }
    }
}
