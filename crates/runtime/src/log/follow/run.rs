//! The log of one run from a sequence on: [`RunLog`] reads what is there, [`RunFollower`] also waits for more.
//!
//! The log of a run is its archive and then its lane, and both change while it is read: a run is archived, reopened and archived again.
//! **No gap.** A page of the lane is read before the summary of the run. A run is marked as archived before its messages are removed
//! from the lane, so that a page is complete if the run is not marked after it. Otherwise the archive is joined with the page. The mark
//! stays when the run is reopened. A decision also names the one before it, which shows a gap even if a replica has an older summary.
//!
//! # Invariants
//!
//! - I310: A reader of the log of a run gets each message once and in order, whatever is archived, reopened and archived again meanwhile.
//!   (`crates/runtime/tests/archive.rs::reader_of_a_run_gets_each_message_once_whatever_was_archived_meanwhile`)

use std::time::Duration;

use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::Decision;
use millrace_protocol::registry::RunSummary;
use millrace_protocol::subject::{self, Topic};
use tokio::time::Instant;

use super::LogTopics;
use crate::Fault;
use crate::fault::ReadRetries;
use crate::log::read::read_message;
use crate::nats::bus::Bus;
use crate::nats::direct_get::PagedReader;
use crate::nats::record::StreamRecord;
use crate::nats::topology::lane_stream;
use crate::store::archive::{has_reopening_command, is_submission, join_with_archive, read_archived_run};
use crate::store::retention::read_deletion;
use crate::work::registry::read_summary;

/// The maximum number of messages of a page, unless the caller chooses another one.
const PAGE: usize = 1_000;

/// A position in the log of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunPosition {
    /// The sequence up to which all messages were returned.
    pub sequence: u64,
    /// The archive that was read.
    archive: Option<ArchiveMark>,
}

impl RunPosition {
    /// Returns the position after the message with this sequence; 0 is the beginning.
    #[must_use]
    pub fn after(sequence: u64) -> Self {
        Self { sequence, archive: None }
    }
}

/// An archive of a run that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ArchiveMark {
    /// Its messages, as the summary of the run says: (0, 0) if it does not say it.
    span: (u64, u64),
    /// The sequence of its last message. The last one of the span may be a forged one, which no archive holds.
    through: u64,
}

/// The next part of the log of a run.
#[derive(Debug)]
pub enum LogStep {
    /// Messages that are not forged; at least one.
    Messages(Vec<StreamRecord>),
    /// All messages so far were returned.
    EndOfLog,
    /// The run is archived, and all its messages were returned: no more follow unless it is reopened.
    Complete,
    /// The run was deleted.
    Deleted,
}

/// A reader of the log of a run.
pub struct RunLog {
    bus: Bus,
    run: RunId,
    lane: Lane,
    topics: LogTopics,
    position: RunPosition,
    page_size: usize,
    is_at_end: bool,
}

impl RunLog {
    #[must_use]
    pub fn new(bus: &Bus, run: &RunId, topics: LogTopics, position: RunPosition) -> Self {
        let (lane, page_size) = (bus.lane_of_run(run), PAGE);
        Self { bus: bus.clone(), run: run.clone(), lane, topics, position, page_size, is_at_end: false }
    }

    /// Reads this number of messages of the lane at a time.
    #[must_use]
    pub fn with_page_size(self, page_size: usize) -> Self {
        Self { page_size, ..self }
    }

    pub fn position(&self) -> RunPosition {
        self.position
    }

    /// Continues after a sequence up to which the caller has received all messages.
    pub fn skip_to(&mut self, sequence: u64) {
        self.position.sequence = self.position.sequence.max(sequence);
    }

    /// `true` if the last messages were the last ones of the lane.
    pub fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// Reads the next messages. Cancellation loses nothing.
    /// Errors: the server does not respond, or the archive can't be read. The next call continues.
    pub async fn next_part(&mut self) -> Result<LogStep, Fault> {
        self.read_part(true).await
    }

    /// Reads the next messages. If the lane has none, the archive is looked up only if `is_thorough`.
    async fn read_part(&mut self, is_thorough: bool) -> Result<LogStep, Fault> {
        loop {
            let page = self.read_page().await?;
            if page.is_empty() && !is_thorough {
                return Ok(LogStep::EndOfLog);
            }
            // The order matters: see the documentation of this module.
            let summary = read_summary(&self.bus, &self.run).await?;
            let (records, position) = match self.needs_archive(&page, summary.as_ref()).await? {
                true => self.join_archive(page, summary.as_ref()).await?,
                false => (page, self.position),
            };
            let Some(last) = records.last() else {
                self.position = position;
                return self.end_of_log(summary).await;
            };
            self.position = RunPosition { sequence: last.sequence.max(position.sequence), ..position };
            let messages: Vec<_> = records.into_iter().filter(|record| !record.is_forged()).collect();
            if !messages.is_empty() {
                return Ok(LogStep::Messages(messages));
            }
        }
    }

    async fn read_page(&mut self) -> Result<Vec<StreamRecord>, Fault> {
        let filter = match self.topics {
            LogTopics::All => subject::all_subjects_of_run(self.lane, &self.run),
            LogTopics::Decisions => subject::topic_subject(self.lane, &self.run, &Topic::Plan),
        };
        let (stream, from) = (lane_stream(self.lane), self.position.sequence + 1);
        let mut pages =
            PagedReader::new(self.bus.client(), stream, filter, from).with_page_size(self.page_size);
        let records = pages.next_page().await?;
        self.is_at_end = pages.is_over();
        Ok(records)
    }

    /// `true` if messages before this page, or instead of it, may be in the archive.
    async fn needs_archive(
        &self,
        page: &[StreamRecord],
        summary: Option<&RunSummary>,
    ) -> Result<bool, Fault> {
        if let Some(summary) = summary {
            let span = summary.archived_span.unwrap_or_default();
            let is_read = self.position.archive.is_some_and(|archive| archive.span == span);
            // A decision in the lane of an archived run may come from a supervisor that was suspended.
            let is_continued = summary.archived && page.iter().any(StreamRecord::is_decision);
            if is_continued || (!is_read && (summary.archived || span.1 > self.position.sequence)) {
                return Ok(true);
            }
        }
        // A restored cluster, or a server that lost its newest messages, may have an archive and no mark of it.
        match page.iter().find(|record| record.is_decision()) {
            Some(first) => self.has_gap_before(first).await,
            None => Ok(self.position.sequence == 0 && !page.iter().any(is_submission)),
        }
    }

    /// `true` if the decision before this one was not returned.
    async fn has_gap_before(&self, first: &StreamRecord) -> Result<bool, Fault> {
        match self.bus.decode_record::<Decision>(first).await {
            Ok(decision) => Ok(decision.previous > self.position.sequence),
            Err(fault) if fault.is_transient() => Err(fault),
            Err(_) => Ok(false),
        }
    }

    /// Returns the messages after the position from the archive and then from a page of the lane, and the position with the archive.
    async fn join_archive(
        &self,
        page: Vec<StreamRecord>,
        summary: Option<&RunSummary>,
    ) -> Result<(Vec<StreamRecord>, RunPosition), Fault> {
        let joined = join_with_archive(&self.bus, &self.run, page, summary).await?;
        let (seen, through) = (self.position.sequence, joined.archived_through);
        let is_new = |record: &StreamRecord| record.sequence > seen && self.topics.select(record);
        let records = joined.records.into_iter().filter(is_new).collect();
        let archive =
            summary.filter(|_| through > 0).map(|summary| summary.archived_span.unwrap_or_default());
        let archive = archive.map(|span| ArchiveMark { span, through });
        Ok((records, RunPosition { sequence: seen.max(through), archive }))
    }

    async fn end_of_log(&self, summary: Option<RunSummary>) -> Result<LogStep, Fault> {
        let Some(summary) = summary else {
            let is_deleted = self.position.archive.is_some()
                || read_deletion(&self.bus, &self.run).await?.is_some_and(|it| it.state.is_deleted());
            return Ok(if is_deleted { LogStep::Deleted } else { LogStep::EndOfLog });
        };
        let is_complete = match self.position.archive {
            Some(archive) if summary.archived => {
                !has_reopening_command(&self.bus, self.lane, &self.run, archive.through).await?
            }
            Some(_) | None => false,
        };
        Ok(if is_complete { LogStep::Complete } else { LogStep::EndOfLog })
    }
}

/// Returns the message of a run with this sequence, from its lane or its archive; `None` if it was removed.
pub async fn find_message(
    bus: &Bus,
    lane: Lane,
    run: &RunId,
    sequence: u64,
) -> Result<Option<StreamRecord>, Fault> {
    if let Some(record) = read_message(bus, lane, sequence).await? {
        return Ok(Some(record));
    }
    let archived = read_archived_run(bus, run).await?.unwrap_or_default();
    Ok(archived.into_iter().find(|record| record.sequence == sequence))
}

/// The pause between two reads of a lane.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A follower of the log of a run. It polls the lane: clients have no permission to create consumers.
pub struct RunFollower {
    log: RunLog,
    quiet: Duration,
    /// `true` after the first read.
    has_begun: bool,
}

impl RunFollower {
    /// Starts from the position of `log`. `quiet` is the time without a message after which it is looked up whether the run was archived
    /// or deleted.
    #[must_use]
    pub fn new(log: RunLog, quiet: Duration) -> Self {
        Self { log, quiet, has_begun: false }
    }

    /// Waits for the next messages; returns [`LogStep::EndOfLog`] if there are none for some time. Cancellation loses nothing.
    /// Errors: as of [`Self::read_rest`].
    pub async fn next_step(&mut self) -> Result<LogStep, Fault> {
        let started = Instant::now();
        loop {
            let is_due = started.elapsed() >= self.quiet;
            let step = self.read_with_retry(is_due || !self.has_begun).await?;
            // A run that is submitted again after its deletion needs some time to start.
            if is_due || !matches!(step, LogStep::EndOfLog | LogStep::Deleted) {
                return Ok(step);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns the next messages that are there, and waits for none.
    /// Errors: the server has not responded for two minutes, or the archive can't be read.
    pub async fn read_rest(&mut self) -> Result<LogStep, Fault> {
        self.read_with_retry(true).await
    }

    async fn read_with_retry(&mut self, is_thorough: bool) -> Result<LogStep, Fault> {
        let retries = ReadRetries::start();
        loop {
            match self.log.read_part(is_thorough).await {
                Ok(step) => {
                    self.has_begun = true;
                    return Ok(step);
                }
                Err(fault) => retries.wait_after(fault).await?,
            }
        }
    }
}
