//! The changes of the summaries of runs.
//!
//! # Invariants
//!
//! - I265: A follower of the summaries of runs gets every change once, whether it reads few changes one by one or many in pages.
//!   (`crates/runtime/tests/summary_changes.rs::each_pass_returns_every_summary_that_was_written_since`)

use millrace_protocol::ids::RunId;
use millrace_protocol::registry::RunSummary;

use crate::nats::direct_get::ALL_SUBJECTS;
use crate::nats::record::StreamRecord;
use crate::nats::stream_tail::StreamTail;
use crate::nats::topology::{RUNS, bucket_stream};
use crate::{Bus, Fault};

/// A change of the summary of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum SummaryChange {
    /// The run has this summary.
    Written {
        summary: Box<RunSummary>,
        /// Its sequence in the bucket; it grows with each change.
        revision: u64,
    },
    /// The run was deleted.
    Removed(RunId),
}

/// The changes of the summaries of all runs, oldest first.
pub struct SummaryChanges {
    tail: StreamTail,
}

impl SummaryChanges {
    /// Starts after a revision; 0 is before the first summary.
    #[must_use]
    pub fn after(revision: u64) -> Self {
        Self { tail: StreamTail::new(bucket_stream(RUNS), ALL_SUBJECTS.into(), revision + 1) }
    }

    /// The revision up to which changes were read.
    pub fn seen(&self) -> u64 {
        self.tail.seen()
    }

    /// Returns the next changes; `None` if there were no more at this time. A page may be empty: a summary that is unreadable, because a
    /// newer release has written it, or that is under the key of another run, is left out.
    ///
    /// # Errors
    /// The server does not respond. The next call continues after the changes that were returned.
    pub async fn next_page(&mut self, bus: &Bus) -> Result<Option<Vec<SummaryChange>>, Fault> {
        let records = self.tail.next_page(bus.client()).await?;
        Ok((!records.is_empty()).then(|| records.iter().filter_map(parse_change).collect()))
    }
}

fn parse_change(record: &StreamRecord) -> Option<SummaryChange> {
    let key = record.subject.strip_prefix("$KV.")?.strip_prefix(RUNS)?.strip_prefix('.')?;
    if record.is_deletion {
        return RunId::new(key).ok().map(SummaryChange::Removed);
    }
    let summary: Box<RunSummary> = serde_json::from_slice(&record.payload).ok()?;
    (summary.run.as_str() == key).then_some(SummaryChange::Written { summary, revision: record.sequence })
}
