//! The summaries of all runs, newest first. They are read from their bucket, and then only what changed since; whatever is
//! here can be read again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;

use jiff::Timestamp;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::registry::RunSummary;
use millrace_runtime::nats::direct_get::{ALL_SUBJECTS, PagedReader};
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::topology::{RUNS, bucket_stream};
use millrace_runtime::{Bus, Fault};
use tokio::sync::Mutex;

use crate::feed::LaneMessage;

/// The position of a run in the list: its start, and its id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunPosition {
    started: Timestamp,
    run: RunId,
}

/// A text is no position.
#[derive(Debug, thiserror::Error)]
#[error("the cursor is not one that a list has returned")]
pub struct InvalidPosition;

impl RunPosition {
    /// Returns the position as an opaque text.
    #[must_use]
    pub fn to_cursor(&self) -> String {
        let text = format!("{} {}", self.started.as_nanosecond(), self.run);
        data_encoding::BASE64URL_NOPAD.encode(text.as_bytes())
    }
}

impl FromStr for RunPosition {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let bytes = data_encoding::BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| InvalidPosition)?;
        let text = String::from_utf8(bytes).map_err(|_| InvalidPosition)?;
        let (started, run) = text.split_once(' ').ok_or(InvalidPosition)?;
        let started = started.parse().map_err(|_| InvalidPosition)?;
        Ok(Self {
            started: Timestamp::from_nanosecond(started).map_err(|_| InvalidPosition)?,
            run: RunId::new(run).map_err(|_| InvalidPosition)?,
        })
    }
}

/// A run in the index.
#[derive(Debug)]
pub struct IndexedRun {
    /// Its summary.
    pub summary: RunSummary,
    /// The sequence of its summary in the bucket; it grows with each change.
    pub revision: u64,
    /// Its id and its objective in lowercase, for searches.
    text: String,
}

impl IndexedRun {
    fn new(summary: RunSummary, revision: u64) -> Self {
        let text = format!("{}\n{}", summary.run, summary.objective).to_lowercase();
        Self { summary, revision, text }
    }

    fn position(&self) -> RunPosition {
        RunPosition { started: self.summary.started, run: self.summary.run.clone() }
    }

    /// The key of a run with a part in the archive: one that is archived, or was reopened.
    fn archived_key(&self) -> Option<(u16, u64, u64)> {
        let (_, last) = self.summary.archived_span?;
        Some((self.summary.lane.0, last, self.revision))
    }

    /// `true` if its id or its objective contains a text, which must be in lowercase.
    #[must_use]
    pub fn contains_text(&self, text: &str) -> bool {
        self.text.contains(text)
    }
}

/// The summaries of all runs.
#[derive(Default)]
pub struct RunIndex {
    content: RwLock<IndexContent>,
    /// The start of the last read of changes. Held during a read, so that requests that arrive meanwhile share the next one.
    reading: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct IndexContent {
    /// The sequence after the last summary that was read.
    next: u64,
    by_position: BTreeMap<RunPosition, Arc<IndexedRun>>,
    runs: HashMap<RunId, Arc<IndexedRun>>,
    by_revision: BTreeMap<u64, Arc<IndexedRun>>,
    /// The runs with a part in the archive: the lane, the sequence of the last message, the revision of the summary.
    archived: BTreeSet<(u16, u64, u64)>,
}

impl IndexContent {
    fn insert(&mut self, summary: RunSummary, revision: u64) {
        let indexed = Arc::new(IndexedRun::new(summary, revision));
        if let Some(old) = self.runs.insert(indexed.summary.run.clone(), indexed.clone()) {
            self.forget(&old);
        }
        self.archived.extend(indexed.archived_key());
        self.by_position.insert(indexed.position(), indexed.clone());
        self.by_revision.insert(revision, indexed);
    }

    fn remove(&mut self, run: &str) {
        let Ok(run) = RunId::new(run) else { return };
        if let Some(old) = self.runs.remove(&run) {
            self.forget(&old);
        }
    }

    fn forget(&mut self, old: &IndexedRun) {
        self.by_position.remove(&old.position());
        self.by_revision.remove(&old.revision);
        if let Some(key) = old.archived_key() {
            self.archived.remove(&key);
        }
    }

    fn add_record(&mut self, prefix: &str, record: &StreamRecord) {
        self.next = record.sequence + 1;
        let Some(key) = record.subject.strip_prefix(prefix) else { return };
        if record.is_deletion {
            self.remove(key);
            return;
        }
        match serde_json::from_slice::<RunSummary>(&record.payload) {
            Ok(summary) if summary.run.as_str() == key => self.insert(summary, record.sequence),
            // A value that was copied from another key, or of a newer release.
            Ok(_) | Err(_) => {}
        }
    }
}

/// A part of the list.
#[derive(Debug, Default)]
pub struct RunPage {
    /// The runs, newest first.
    pub runs: Vec<Arc<IndexedRun>>,
    /// The position of the last one, if more follow.
    pub next: Option<RunPosition>,
}

impl RunIndex {
    fn read(&self) -> RwLockReadGuard<'_, IndexContent> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the first runs after `after` that `is_wanted` selects, newest first, at most `limit`.
    ///
    /// # Errors
    /// The server does not respond.
    pub async fn list_runs(
        &self,
        bus: &Bus,
        after: Option<RunPosition>,
        limit: usize,
        is_wanted: impl Fn(&IndexedRun) -> bool,
    ) -> Result<RunPage, Fault> {
        self.refresh(bus).await?;
        let content = self.read();
        let end = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut page = RunPage::default();
        for (_, indexed) in content.by_position.range((Bound::Unbounded, end)).rev() {
            if !is_wanted(indexed) {
                continue;
            }
            if page.runs.len() == limit {
                page.next = page.runs.last().map(|last| last.position());
                break;
            }
            page.runs.push(indexed.clone());
        }
        Ok(page)
    }

    /// Calls `visit` with each run.
    ///
    /// # Errors
    /// The server does not respond.
    pub async fn visit_runs(&self, bus: &Bus, mut visit: impl FnMut(&IndexedRun)) -> Result<(), Fault> {
        self.refresh(bus).await?;
        self.read().by_position.values().for_each(|indexed| visit(indexed));
        Ok(())
    }

    /// Returns those of `runs` that have no summary.
    pub fn without_summary(&self, runs: BTreeSet<RunId>) -> Vec<RunId> {
        let content = self.read();
        runs.into_iter().filter(|run| !content.runs.contains_key(run)).collect()
    }

    /// The sequence up to which the summaries were read.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.read().next.saturating_sub(1)
    }

    /// Returns the summary of a run, as far as it was read.
    #[must_use]
    pub fn find(&self, run: &RunId) -> Option<Arc<IndexedRun>> {
        self.read().runs.get(run).cloned()
    }

    /// Returns the runs whose summaries have changed after a revision, oldest change first and at most `limit`, and the revision up
    /// to which they are complete.
    #[must_use]
    pub fn changed_since(&self, revision: u64, limit: usize) -> (Vec<Arc<IndexedRun>>, u64) {
        let content = self.read();
        let changed = content.by_revision.range((Bound::Excluded(revision), Bound::Unbounded));
        let changed: Vec<Arc<IndexedRun>> = changed.take(limit).map(|(_, run)| run.clone()).collect();
        let complete = match changed.last().filter(|_| changed.len() == limit) {
            Some(last) => last.revision,
            None => content.next.saturating_sub(1),
        };
        (changed, complete)
    }

    /// Returns the archived runs of a lane whose summaries have changed after a revision, and the current revision.
    #[must_use]
    pub fn archived_since(&self, lane: Lane, revision: u64) -> (Vec<Arc<IndexedRun>>, u64) {
        let content = self.read();
        let changed = content.by_revision.range((Bound::Excluded(revision), Bound::Unbounded));
        let archived =
            changed.map(|(_, run)| run).filter(|run| run.summary.archived && run.summary.lane == lane);
        (archived.cloned().collect(), content.next.saturating_sub(1))
    }

    /// Returns the runs of a lane with archived messages after a sequence. Of runs whose archived messages are unknown, because an
    /// earlier release archived them, only those whose summaries have changed after `revision`.
    #[must_use]
    pub fn archived_after(&self, lane: Lane, sequence: u64, revision: u64) -> Vec<Arc<IndexedRun>> {
        let content = self.read();
        let known =
            content.archived.range((lane.0, sequence.saturating_add(1), 0)..=(lane.0, u64::MAX, u64::MAX));
        let known = known.filter_map(|(_, _, revision)| content.by_revision.get(revision));
        let unknown = content.by_revision.range((Bound::Excluded(revision), Bound::Unbounded));
        let unknown = unknown.map(|(_, run)| run).filter(|run| {
            run.summary.archived && run.summary.lane == lane && run.summary.archived_span.is_none()
        });
        known.chain(unknown).cloned().collect()
    }

    /// Removes the messages that are in the archive. Messages after the archived part belong to a run that was reopened.
    #[must_use]
    pub fn without_archived(&self, mut messages: Vec<Arc<LaneMessage>>) -> Vec<Arc<LaneMessage>> {
        let content = self.read();
        let is_archived = |message: &LaneMessage| {
            let span = content.runs.get(&message.run).and_then(|run| run.summary.archived_span);
            span.is_some_and(|(_, last)| message.sequence() <= last)
        };
        messages.retain(|message| !is_archived(message));
        messages
    }

    /// Reads the summaries that have changed. Every change before this call is read when it returns.
    ///
    /// # Errors
    /// The server does not respond.
    pub async fn refresh(&self, bus: &Bus) -> Result<(), Fault> {
        let arrived = Instant::now();
        let mut reading = self.reading.lock().await;
        if reading.is_some_and(|started| started > arrived) {
            return Ok(());
        }
        *reading = None;
        let started = Instant::now();
        let prefix = format!("$KV.{RUNS}.");
        let next = self.read().next.max(1);
        let mut pages = PagedReader::new(bus.client(), bucket_stream(RUNS), ALL_SUBJECTS.into(), next);
        while !pages.is_over() {
            let records = pages.next_page().await?;
            let mut content = self.content.write().unwrap_or_else(PoisonError::into_inner);
            records.iter().for_each(|record| content.add_record(&prefix, record));
        }
        *reading = Some(started);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_back_and_others_are_refused() {
        let position = RunPosition {
            started: "2026-11-24T01:02:03.5Z".parse().unwrap(),
            run: RunId::new("r-1").unwrap(),
        };
        assert_eq!(position.to_cursor().parse::<RunPosition>().unwrap(), position);
        for text in ["", "x", "AAAA", "=", "\u{e9}"] {
            assert!(text.parse::<RunPosition>().is_err(), "{text}");
        }
    }
}
