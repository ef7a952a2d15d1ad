//! The summaries of all runs, newest first. They are read from their bucket, and then only what changed since; whatever is
//! here can be read again.
//!
//! Runs are listed by state, by session and by label, so that a filter that selects a few of a million runs looks at those few. A
//! search for a text looks at all that the other conditions select.
//!
//! # Invariants
//!
//! - I266: A list of runs has exactly those that its filter selects, whichever index of the gateway it is read from.
//!   (`gateway/src/run_index.rs::lists_of_states_sessions_and_labels_select_the_runs_that_the_filter_selects`)
//! - I272: A client that reads the list in parts gets each run that is there throughout exactly once, whatever starts, ends or is
//!   deleted meanwhile.
//!   (`tests/tests/gateway.rs::each_pass_through_the_list_has_each_run_once_while_runs_start_end_and_are_deleted`)

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;

use futures::FutureExt;
use itertools::{Itertools, kmerge_by};
use jiff::{SignedDuration, Timestamp};
use millrace_protocol::ids::{Lane, RunId, SessionId};
use millrace_protocol::registry::RunSummary;
use millrace_runtime::log::follow::{ArchivedRun, FindArchived};
use millrace_runtime::log::{SubmittedRun, SubmittedRuns};
use millrace_runtime::store::bucket::{BucketChange, BucketChanges, Entry};
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault};
use millrace_views::RunState;
use tokio::sync::Mutex;

use crate::feed::LaneMessage;
use crate::listed_run::{IndexedRun, ListedRun, RunPosition, UnstartedRun};
use crate::run_filter::RunFilter;

pub struct RunIndex {
    content: RwLock<IndexContent>,
    /// The submissions, read when runs are listed. Held during a read.
    submissions: Mutex<SubmissionReading>,
    /// Held during a read of changes, so that requests that arrive meanwhile share the next one.
    reading: Mutex<IndexReading>,
}

struct IndexReading {
    changes: BucketChanges<RunSummary>,
    /// The start of the last read; `None` if it failed.
    started: Option<Instant>,
}

#[derive(Default)]
struct SubmissionReading {
    submissions: SubmittedRuns,
    /// The start of the last read; `None` if it failed.
    started: Option<Instant>,
}

type RunList = BTreeMap<RunPosition, Arc<IndexedRun>>;

#[derive(Default)]
struct IndexContent {
    /// The revision up to which the summaries were read.
    revision: u64,
    runs: HashMap<RunId, Arc<IndexedRun>>,
    /// All runs, by the names of their states.
    by_state: BTreeMap<&'static str, RunList>,
    by_session: HashMap<SessionId, RunList>,
    /// The runs with a label, by its name and its value.
    by_label: HashMap<(String, String), RunList>,
    by_revision: BTreeMap<u64, Arc<IndexedRun>>,
    /// The runs with a part in the archive: the lane, the sequence of the last message, the revision of the summary.
    archived: BTreeSet<(u16, u64, u64)>,
    /// The runs without a summary.
    unstarted: HashMap<RunId, Arc<UnstartedRun>>,
    /// The runs whose summaries were removed: the submission of a run is removed after its summary.
    removed: HashSet<RunId>,
    /// The longest times for which the start of a run was after, and before, the time of its position.
    offsets: (SignedDuration, SignedDuration),
}

impl IndexContent {
    fn apply(&mut self, change: BucketChange<RunSummary>) {
        match change {
            BucketChange::Set(Entry { value, sequence, .. }) => self.insert(value, sequence),
            BucketChange::Removed(run) => {
                let Ok(run) = RunId::new(run) else { return };
                if let Some(old) = self.runs.remove(&run) {
                    self.forget(&old);
                }
                self.unstarted.remove(&run);
                self.removed.insert(run);
            }
        }
    }

    fn add_submitted(&mut self, submitted: SubmittedRun) {
        let run = &submitted.run;
        if !self.runs.contains_key(run) && !self.removed.contains(run) {
            self.unstarted.insert(run.clone(), Arc::new(UnstartedRun::new(submitted)));
        }
    }

    fn insert(&mut self, summary: RunSummary, revision: u64) {
        let indexed = Arc::new(IndexedRun::new(summary, revision));
        match self.runs.insert(indexed.summary.run.clone(), indexed.clone()) {
            Some(old) => self.forget(&old),
            None => {
                self.unstarted.remove(&indexed.summary.run);
                self.removed.remove(&indexed.summary.run);
            }
        }
        self.archived.extend(indexed.archived_key());
        let (position, summary) = (indexed.position.clone(), &indexed.summary);
        let offset = summary.started.duration_since(position.created);
        self.offsets = (self.offsets.0.max(offset), self.offsets.1.max(-offset));
        if let Some(session) = &summary.session {
            let list = self.by_session.entry(session.clone()).or_default();
            list.insert(position.clone(), indexed.clone());
        }
        for (name, value) in &summary.labels {
            let list = self.by_label.entry((name.clone(), value.clone())).or_default();
            list.insert(position.clone(), indexed.clone());
        }
        self.by_state.entry(indexed.state()).or_default().insert(position, indexed.clone());
        self.by_revision.insert(revision, indexed);
    }

    fn forget(&mut self, old: &IndexedRun) {
        let (position, summary) = (&old.position, &old.summary);
        if let Some(list) = self.by_state.get_mut(old.state()) {
            list.remove(position);
        }
        if let Some(session) = &summary.session {
            remove_from_list(&mut self.by_session, session, position);
        }
        for (name, value) in &summary.labels {
            remove_from_list(&mut self.by_label, &(name.clone(), value.clone()), position);
        }
        self.by_revision.remove(&old.revision);
        if let Some(key) = old.archived_key() {
            self.archived.remove(&key);
        }
    }

    /// Returns the runs of a lane with archived messages after a sequence.
    fn archived_after(&self, lane: Lane, sequence: u64) -> Vec<ArchivedRun> {
        let after = (lane.0, sequence.saturating_add(1), 0)..=(lane.0, u64::MAX, u64::MAX);
        let runs = self.archived.range(after).filter_map(|(_, _, revision)| self.by_revision.get(revision));
        let archived = |run: &Arc<IndexedRun>| {
            Some(ArchivedRun { run: run.summary.run.clone(), span: run.summary.archived_span? })
        };
        runs.filter_map(archived).collect()
    }

    /// The runs before `end` that a filter selects, newest first.
    fn select<'a>(
        &'a self,
        filter: &'a RunFilter,
        end: Option<&'a RunPosition>,
    ) -> impl Iterator<Item = &'a Arc<IndexedRun>> {
        let (after, before) = self.offsets;
        let first = filter.since.map(|since| since.saturating_sub(after).unwrap_or(Timestamp::MIN));
        let until = filter.until.map(|until| until.saturating_add(before).unwrap_or(Timestamp::MAX));
        let (first, until) = (first.map(RunPosition::at), until.map(RunPosition::at));
        let end = end.into_iter().chain(&until).min();
        let is_empty = first.as_ref().zip(end).is_some_and(|(first, end)| first > end);
        let bounds = (first.as_ref().map_or(Unbounded, Included), end.map_or(Unbounded, Excluded));
        let lists = if is_empty { Vec::new() } else { self.smallest_lists(filter) };
        let parts: Vec<_> =
            lists.into_iter().map(|list| list.range::<RunPosition, _>(bounds).rev()).collect();
        let merged = kmerge_by(parts, |(a, _): &(&RunPosition, _), (b, _): &(&RunPosition, _)| a > b);
        merged.map(|(_, run)| run).filter(|run| filter.selects(&run.traits()))
    }

    /// The same, with the runs that have no summary yet.
    fn select_all<'a>(
        &'a self,
        filter: &'a RunFilter,
        end: Option<&'a RunPosition>,
    ) -> impl Iterator<Item = ListedRun> {
        let unstarted = self.unstarted.values().filter(|run| filter.selects(&run.traits()));
        let unstarted = unstarted.map(|run| ListedRun::Submitted(run.clone()));
        let unstarted = unstarted.filter(move |run| end.is_none_or(|end| run.position() < *end));
        let unstarted = unstarted.sorted_by_cached_key(|run| Reverse(run.position()));
        let started = self.select(filter, end).map(|run| ListedRun::Started(run.clone()));
        started.merge_by(unstarted, |a, b| a.position() > b.position())
    }

    /// Returns lists that have, together and each once, all runs that a filter selects.
    fn smallest_lists(&self, filter: &RunFilter) -> Vec<&RunList> {
        let session = filter.session.iter().map(|session| self.by_session.get(session));
        let labels = filter.labels.iter().filter_map(|label| label.exact_label());
        let labels = labels.map(|(name, value)| self.by_label.get(&(name.to_owned(), value.to_owned())));
        let by_state = self.by_state.iter();
        let by_state: Vec<&RunList> = by_state
            .filter(|(state, _)| filter.states.is_empty() || filter.states.contains(*state))
            .map(|(_, list)| list)
            .collect();
        let size = by_state.iter().map(|list| list.len()).sum();
        match session.chain(labels).min_by_key(|list| list.map_or(0, BTreeMap::len)) {
            Some(list) if list.map_or(0, BTreeMap::len) < size => list.into_iter().collect(),
            Some(_) | None => by_state,
        }
    }
}

fn remove_from_list<K: Hash + Eq>(lists: &mut HashMap<K, RunList>, key: &K, position: &RunPosition) {
    if let Some(list) = lists.get_mut(key) {
        list.remove(position);
        if list.is_empty() {
            lists.remove(key);
        }
    }
}

/// A part of the list.
#[derive(Debug, Default)]
pub struct RunPage {
    /// The runs, newest first.
    pub runs: Vec<ListedRun>,
    /// The position of the last one, if more follow.
    pub next: Option<RunPosition>,
}

impl Default for RunIndex {
    fn default() -> Self {
        let reading = IndexReading { changes: registry::follow_summaries(0), started: None };
        Self { content: RwLock::default(), submissions: Mutex::default(), reading: Mutex::new(reading) }
    }
}

impl RunIndex {
    fn read(&self) -> RwLockReadGuard<'_, IndexContent> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the first runs after `after` that a filter selects, newest first, at most `limit`.
    pub async fn list_runs(
        &self,
        bus: &Bus,
        filter: &RunFilter,
        after: Option<RunPosition>,
        limit: usize,
    ) -> Result<RunPage, Fault> {
        if filter.selects_state(RunState::Submitted) {
            // Before the summaries: a run that is in neither list was submitted after this.
            self.read_submissions(bus).await?;
        }
        self.refresh(bus).await?;
        let content = self.read();
        let mut selected = content.select_all(filter, after.as_ref());
        let runs: Vec<ListedRun> = selected.by_ref().take(limit).collect();
        let has_more = selected.next().is_some();
        let next = runs.last().filter(|_| has_more).map(ListedRun::position);
        Ok(RunPage { runs, next })
    }

    /// Calls `visit` with each run that a filter selects, newest first.
    pub async fn visit_runs(
        &self,
        bus: &Bus,
        filter: &RunFilter,
        visit: impl FnMut(&IndexedRun),
    ) -> Result<(), Fault> {
        self.refresh(bus).await?;
        self.read().select(filter, None).map(AsRef::as_ref).for_each(visit);
        Ok(())
    }

    /// Calls `visit` with each run that belongs to a session.
    pub async fn visit_runs_of_sessions(
        &self,
        bus: &Bus,
        visit: impl FnMut(&IndexedRun),
    ) -> Result<(), Fault> {
        self.refresh(bus).await?;
        self.read().by_session.values().flat_map(BTreeMap::values).map(AsRef::as_ref).for_each(visit);
        Ok(())
    }

    pub fn without_summary(&self, runs: BTreeSet<RunId>) -> Vec<RunId> {
        let content = self.read();
        runs.into_iter().filter(|run| !content.runs.contains_key(run)).collect()
    }

    /// The revision up to which the summaries were read.
    pub fn revision(&self) -> u64 {
        self.read().revision
    }

    /// Returns the summary of a run, as far as it was read.
    pub fn find(&self, run: &RunId) -> Option<Arc<IndexedRun>> {
        self.read().runs.get(run).cloned()
    }

    /// Returns the runs whose summaries have changed after a revision, oldest change first and at most `limit`, and the revision up
    /// to which they are complete.
    pub fn changed_since(&self, revision: u64, limit: usize) -> (Vec<Arc<IndexedRun>>, u64) {
        let content = self.read();
        let changed = content.by_revision.range((Excluded(revision), Unbounded));
        let changed: Vec<Arc<IndexedRun>> = changed.take(limit).map(|(_, run)| run.clone()).collect();
        let complete = match changed.last().filter(|_| changed.len() == limit) {
            Some(last) => last.revision,
            None => content.revision,
        };
        (changed, complete)
    }

    /// Returns the archived runs of a lane whose summaries have changed after a revision, and the current revision.
    pub fn archived_since(&self, lane: Lane, revision: u64) -> (Vec<Arc<IndexedRun>>, u64) {
        let content = self.read();
        let changed = content.by_revision.range((Excluded(revision), Unbounded));
        let archived =
            changed.map(|(_, run)| run).filter(|run| run.summary.archived && run.summary.lane == lane);
        (archived.cloned().collect(), content.revision)
    }

    /// Returns a function for readers of lanes, which finds the archived runs in this index.
    pub fn find_archived(self: &Arc<Self>, bus: &Bus) -> FindArchived {
        let sources = (self.clone(), bus.clone());
        Arc::new(move |lane, sequence| {
            let (index, bus) = sources.clone();
            async move {
                index.refresh(&bus).await?;
                Ok(index.read().archived_after(lane, sequence))
            }
            .boxed()
        })
    }

    /// Removes the messages that are in the archive. Messages after the archived part belong to a run that was reopened.
    pub fn without_archived(&self, mut messages: Vec<Arc<LaneMessage>>) -> Vec<Arc<LaneMessage>> {
        let content = self.read();
        let is_archived = |message: &LaneMessage| {
            let span = content.runs.get(&message.run).and_then(|run| run.summary.archived_span);
            span.is_some_and(|(_, last)| message.sequence() <= last)
        };
        messages.retain(|message| !is_archived(message));
        messages
    }

    /// Reads the submissions that were added. Every submission before this call is read when it returns.
    async fn read_submissions(&self, bus: &Bus) -> Result<(), Fault> {
        let arrived = Instant::now();
        let mut reading = self.submissions.lock().await;
        if reading.started.is_some_and(|started| started > arrived) {
            return Ok(());
        }
        reading.started = None;
        let started = Instant::now();
        while let Some(page) = reading.submissions.next_page(bus).await? {
            let mut content = self.content.write().unwrap_or_else(PoisonError::into_inner);
            page.into_iter().for_each(|submitted| content.add_submitted(submitted));
        }
        reading.started = Some(started);
        Ok(())
    }

    /// Reads the summaries that have changed. Every change before this call is read when it returns.
    pub async fn refresh(&self, bus: &Bus) -> Result<(), Fault> {
        let arrived = Instant::now();
        let mut reading = self.reading.lock().await;
        if reading.started.is_some_and(|started| started > arrived) {
            return Ok(());
        }
        reading.started = None;
        let started = Instant::now();
        while let Some(changes) = reading.changes.next_page(bus).await? {
            let mut content = self.content.write().unwrap_or_else(PoisonError::into_inner);
            changes.into_iter().for_each(|change| content.apply(change));
            content.revision = reading.changes.seen();
        }
        reading.started = Some(started);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::plan::EndReason;

    use super::*;

    /// A run that differs from others in its start, state, session and labels.
    fn summary(number: u32, round: u32) -> RunSummary {
        let mixed = number.wrapping_mul(2_654_435_761).rotate_left(round) >> 7;
        let base = serde_json::json!({
            "run": format!("r-{number}"), "lane": 0, "objective": format!("Count {}", mixed % 11), "end": null,
            "started": i64::from(number / 3), "updated": 0, "counts": [0, 0, 0, 0, 0, 0, 0, 0, 0], "archived": false,
            "is_resumable": false, "is_paused": false, "winding_down": null, "usage": {},
        });
        let mut summary: RunSummary = serde_json::from_value(base).unwrap();
        let ends = [None, None, Some(EndReason::Completed), Some(EndReason::Failed)];
        summary.end = ends[mixed as usize % ends.len()];
        summary.is_paused = mixed.is_multiple_of(5);
        summary.session =
            (mixed.is_multiple_of(3)).then(|| SessionId::new(format!("s{}", mixed % 2)).unwrap());
        if mixed.is_multiple_of(2) {
            summary.labels.insert("team".into(), format!("t{}", mixed % 4));
        }
        summary
    }

    #[test]
    fn lists_of_states_sessions_and_labels_select_the_runs_that_the_filter_selects() {
        let mut content = IndexContent::default();
        let mut revision = 0;
        let mut write = |content: &mut IndexContent, number, round| {
            revision += 1;
            let (value, at) = (summary(number, round), Timestamp::UNIX_EPOCH);
            content.apply(BucketChange::Set(Entry {
                key: value.run.to_string(),
                value,
                sequence: revision,
                at,
            }));
        };
        (0..300).for_each(|number| write(&mut content, number, 0));
        (0..300).step_by(2).for_each(|number| write(&mut content, number, 3));
        (0..300).step_by(7).for_each(|number| {
            content.apply(BucketChange::Removed(format!("r-{number}")));
        });
        let mut all: Vec<_> = content.runs.values().cloned().collect();
        all.sort_by_key(|run| Reverse(run.position.clone()));
        assert_eq!(all.len(), 257);
        let at = |microseconds| Timestamp::from_microsecond(microseconds).unwrap();
        let none = RunFilter::default;
        let labels = |text: &str| crate::run_filter::parse_labels(Some(text)).unwrap();
        let filters = [
            none(),
            RunFilter::live(),
            RunFilter { states: ["failed", "paused"].into(), ..none() },
            RunFilter { labels: labels("team=t2"), ..none() },
            RunFilter { labels: labels("team"), ..none() },
            RunFilter { labels: labels("team=t9"), ..none() },
            RunFilter { session: Some(SessionId::new("s1").unwrap()), labels: labels("team=t0"), ..none() },
            RunFilter { text: "count 7".into(), since: Some(at(20)), until: Some(at(70)), ..none() },
            RunFilter { states: ["completed"].into(), since: Some(at(50)), ..none() },
            RunFilter { since: Some(at(50)), until: Some(at(40)), ..none() },
        ];
        for filter in filters {
            let expected: Vec<_> = all.iter().filter(|run| filter.selects(&run.traits())).collect();
            let selected: Vec<_> = content.select(&filter, None).collect();
            assert_eq!(selected.len(), expected.len(), "{filter:?}");
            assert!(selected.iter().zip(&expected).all(|(a, b)| Arc::ptr_eq(a, b)), "{filter:?}");
            for (at, run) in selected.iter().enumerate().step_by(9) {
                let rest = content.select(&filter, Some(&run.position)).count();
                assert_eq!(rest, selected.len() - at - 1, "{filter:?}");
            }
        }
        (0..300).for_each(|number| {
            content.apply(BucketChange::Removed(format!("r-{number}")));
        });
        assert!(content.by_state.values().all(BTreeMap::is_empty));
        assert!(
            content.by_session.is_empty() && content.by_label.is_empty() && content.by_revision.is_empty()
        );
    }
}
