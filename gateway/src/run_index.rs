//! The summaries of all runs, newest first. They are read from their bucket, and then only what changed since; whatever is
//! here can be read again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::registry::RunSummary;
use millrace_runtime::nats::direct_get::PagedReader;
use millrace_runtime::nats::topology::{RUNS, bucket_stream};
use millrace_runtime::{Bus, Fault};
use tokio::sync::Mutex;

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

/// The summaries of all runs.
#[derive(Default)]
pub struct RunIndex(Mutex<IndexContent>);

#[derive(Default)]
struct IndexContent {
    /// The sequence after the last summary that was read.
    next: u64,
    by_position: BTreeMap<RunPosition, Arc<RunSummary>>,
    positions: HashMap<RunId, RunPosition>,
}

impl IndexContent {
    fn insert(&mut self, summary: RunSummary) {
        let position = RunPosition { started: summary.started, run: summary.run.clone() };
        if let Some(old) = self.positions.insert(summary.run.clone(), position.clone()) {
            self.by_position.remove(&old);
        }
        self.by_position.insert(position, Arc::new(summary));
    }

    fn remove(&mut self, run: &str) {
        let Ok(run) = RunId::new(run) else { return };
        if let Some(old) = self.positions.remove(&run) {
            self.by_position.remove(&old);
        }
    }
}

/// A part of the list.
#[derive(Debug, Default)]
pub struct RunPage {
    /// The runs, newest first.
    pub runs: Vec<Arc<RunSummary>>,
    /// The position of the last one, if more follow.
    pub next: Option<RunPosition>,
}

impl RunIndex {
    /// Returns the first runs after `after` that `is_wanted` selects, newest first, at most `limit`.
    ///
    /// # Errors
    /// The server does not respond.
    pub async fn list_runs(
        &self,
        bus: &Bus,
        after: Option<RunPosition>,
        limit: usize,
        is_wanted: impl Fn(&RunSummary) -> bool,
    ) -> Result<RunPage, Fault> {
        let mut content = self.0.lock().await;
        content.read_changes(bus).await?;
        let end = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut page = RunPage::default();
        for (position, summary) in content.by_position.range((Bound::Unbounded, end)).rev() {
            if !is_wanted(summary) {
                continue;
            }
            if page.runs.len() == limit {
                let last = page.runs.last();
                page.next = last.map(|last| RunPosition { started: last.started, run: last.run.clone() });
                break;
            }
            debug_assert_eq!(position.run, summary.run);
            page.runs.push(summary.clone());
        }
        Ok(page)
    }

    /// Returns those of `runs` that have no summary.
    pub async fn without_summary(&self, runs: BTreeSet<RunId>) -> Vec<RunId> {
        let content = self.0.lock().await;
        runs.into_iter().filter(|run| !content.positions.contains_key(run)).collect()
    }
}

impl IndexContent {
    async fn read_changes(&mut self, bus: &Bus) -> Result<(), Fault> {
        let prefix = format!("$KV.{RUNS}.");
        let mut pages =
            PagedReader::new(bus.client(), bucket_stream(RUNS), format!("{prefix}>"), self.next.max(1));
        loop {
            let records = pages.next_page().await?;
            if records.is_empty() {
                return Ok(());
            }
            for record in records {
                self.next = record.sequence + 1;
                let Some(key) = record.subject.strip_prefix(&prefix) else { continue };
                if record.is_deletion {
                    self.remove(key);
                    continue;
                }
                match serde_json::from_slice::<RunSummary>(&record.payload) {
                    Ok(summary) if summary.run.as_str() == key => self.insert(summary),
                    // A value that was copied from another key, or of a newer release.
                    Ok(_) | Err(_) => {}
                }
            }
        }
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
