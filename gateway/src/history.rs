//! The histories of runs: folded from their decisions, and kept for the next request. What is kept can be read again: a request
//! reads only the decisions after it, and a history that they do not continue is dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use millrace_client::RunEndState;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Decision, Plan};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::subject::{self, Topic};
use millrace_runtime::nats::direct_get::PagedReader;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::topology::lane_stream;
use millrace_runtime::store::archive;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault};
use millrace_views::history::RunHistory;

/// The maximum size of the decisions whose histories are kept, in bytes.
const MAX_KEPT: usize = 32 * 1024 * 1024;

#[derive(Clone, Default)]
pub struct RunState {
    pub history: RunHistory,
    /// The sequence and the time of the last decision.
    pub last: Option<(u64, Timestamp)>,
    /// The part of the run that was in the archive when it was read.
    archive: ArchiveMark,
    /// The size of its decisions in bytes.
    size: usize,
}

/// The part of a run that the archive holds, as its summary says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ArchiveMark {
    is_archived: bool,
    span: Option<(u64, u64)>,
}

impl ArchiveMark {
    fn from_summary(summary: Option<&RunSummary>) -> Self {
        summary.map_or_else(Self::default, |summary| Self {
            is_archived: summary.archived,
            span: summary.archived_span,
        })
    }
}

impl RunState {
    pub fn plan(&self) -> &Plan {
        &self.history.plan
    }

    /// The sequence of the last decision; 0 before the first.
    pub fn sequence(&self) -> u64 {
        self.last.map_or(0, |(sequence, _)| sequence)
    }

    /// Adds a decision. Returns `false` if it does not follow the last one.
    pub fn add_decision(&mut self, record: &StreamRecord, decision: &Decision) -> bool {
        if decision.previous != self.sequence() {
            return false;
        }
        self.history.add_decision(decision);
        self.last = Some((record.sequence, decision.at));
        self.size += record.payload.len();
        true
    }
}

#[derive(Default)]
pub struct HistoryCache(Mutex<CacheContent>);

#[derive(Default)]
struct CacheContent {
    states: HashMap<RunId, (u64, Arc<RunState>)>,
    size: usize,
    /// Counts the uses; the state that was used least recently is dropped first.
    uses: u64,
}

impl CacheContent {
    fn insert(&mut self, run: RunId, state: Arc<RunState>) {
        self.remove(&run);
        if state.size > MAX_KEPT / 2 {
            return;
        }
        self.uses += 1;
        self.size += state.size;
        self.states.insert(run, (self.uses, state));
        while self.size > MAX_KEPT {
            let oldest = self.states.iter().min_by_key(|(_, (used, _))| *used).map(|(run, _)| run.clone());
            let Some(oldest) = oldest else { return };
            self.remove(&oldest);
        }
    }

    fn find(&mut self, run: &RunId) -> Option<Arc<RunState>> {
        self.uses += 1;
        let (used, state) = self.states.get_mut(run)?;
        *used = self.uses;
        Some(state.clone())
    }

    fn remove(&mut self, run: &RunId) -> Option<Arc<RunState>> {
        let (_, state) = self.states.remove(run)?;
        self.size -= state.size;
        Some(state)
    }
}

impl HistoryCache {
    fn lock(&self) -> MutexGuard<'_, CacheContent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a state for later requests.
    pub fn keep(&self, run: RunId, state: Arc<RunState>) {
        self.lock().insert(run, state);
    }

    /// Returns the history of a run up to its last decision.
    pub async fn read(&self, bus: &Bus, run: &RunId) -> Result<Arc<RunState>, Fault> {
        let kept = self.lock().find(run);
        let state = match kept {
            Some(kept) => match continue_state(bus, run, kept).await? {
                Some(state) => state,
                None => read_state(bus, run).await?,
            },
            None => read_state(bus, run).await?,
        };
        self.keep(run.clone(), state.clone());
        Ok(state)
    }
}

/// Adds the decisions after a state; `None` if the log does not continue it.
async fn continue_state(
    bus: &Bus,
    run: &RunId,
    mut state: Arc<RunState>,
) -> Result<Option<Arc<RunState>>, Fault> {
    let records = read_plan_records(bus, run, state.sequence() + 1).await?;
    // The order matters, as in `read_state`.
    let archive = ArchiveMark::from_summary(registry::read_summary(bus, run).await?.as_ref());
    if records.is_empty() {
        // The rest of a run that was archived since is in the archive only.
        return Ok((archive == state.archive).then_some(state));
    }
    let continued = Arc::make_mut(&mut state);
    for record in &records {
        let decision: Decision = bus.decode_record(record).await?;
        if !continued.add_decision(record, &decision) {
            return Ok(None);
        }
    }
    continued.archive = archive;
    Ok((!archive.is_archived).then_some(state))
}

/// Reads the whole history of a run. The journals, which are most of its log, are read only if it is archived.
async fn read_state(bus: &Bus, run: &RunId) -> Result<Arc<RunState>, Fault> {
    let mut state = RunState::default();
    let records = read_plan_records(bus, run, 1).await?;
    // The order matters: a summary is marked as archived before messages are removed from the lane. If it is not marked after the
    // read, the read was complete.
    let summary = registry::read_summary(bus, run).await?;
    let is_in_archive = summary.as_ref().is_some_and(archive::has_archive);
    if !is_in_archive && fold(bus, &mut state, &records).await? && state.last.is_some() {
        return Ok(Arc::new(state));
    }
    // After a loss of its newest bytes a server may hold the end of a run that it had removed.
    let joined = archive::join_with_archive(bus, run, records, summary.as_ref()).await?;
    if joined.archived_through == 0 {
        return Ok(Arc::new(state));
    }
    let archive = ArchiveMark::from_summary(summary.as_ref());
    let mut state = RunState { archive, ..RunState::default() };
    let plan = joined.records.into_iter().filter(StreamRecord::is_decision).collect::<Vec<_>>();
    fold(bus, &mut state, &plan).await?;
    Ok(Arc::new(state))
}

/// Folds decisions. Returns `false` if one does not follow the one before.
async fn fold(bus: &Bus, state: &mut RunState, records: &[StreamRecord]) -> Result<bool, Fault> {
    for record in records {
        let decision: Decision = bus.decode_record(record).await?;
        if !state.add_decision(record, &decision) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads a run up to sequence `at`.
pub async fn read_state_at(bus: &Bus, run: &RunId, at: u64) -> Result<RunState, Fault> {
    let mut state = RunState::default();
    let mut records = archive::read_decisions_from_log_or_archive(bus, bus.lane_of_run(run), run).await?;
    records.retain(|record| record.sequence <= at && record.is_decision());
    fold(bus, &mut state, &records).await?;
    Ok(state)
}

/// Returns the end state of a run as of sequence `at`.
pub async fn read_end_state_at(bus: &Bus, run: &RunId, at: u64) -> Result<RunEndState, Fault> {
    let mut records = archive::read_decisions_from_log_or_archive(bus, bus.lane_of_run(run), run).await?;
    records.retain(StreamRecord::is_decision);
    let mut end = RunEndState::No;
    for record in records.iter().take_while(|record| record.sequence <= at) {
        let decision: Decision = bus.decode_record(record).await?;
        end = decision.events.iter().fold(end, RunEndState::after_event);
    }
    Ok(end)
}

/// Reads the decisions of a run in its lane, from a sequence on.
async fn read_plan_records(bus: &Bus, run: &RunId, from: u64) -> Result<Vec<StreamRecord>, Fault> {
    let lane = bus.lane_of_run(run);
    let filter = subject::topic_subject(lane, run, &Topic::Plan);
    let mut pages = PagedReader::new(bus.client(), lane_stream(lane), filter, from);
    let mut all = Vec::new();
    loop {
        let records = pages.next_page().await?;
        if records.is_empty() {
            return Ok(all);
        }
        all.extend(records.into_iter().filter(StreamRecord::is_decision));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_histories_are_dropped() {
        let mut cache = CacheContent::default();
        let state = || Arc::new(RunState { size: MAX_KEPT / 4, ..RunState::default() });
        let run = |number: u32| RunId::new(format!("r-{number}")).unwrap();
        for number in 0..4 {
            cache.insert(run(number), state());
        }
        cache.find(&run(0)).unwrap();
        cache.insert(run(4), state());
        assert!(cache.states.contains_key(&run(0)) && !cache.states.contains_key(&run(1)));
        assert_eq!(cache.size, MAX_KEPT);
        cache.insert(run(5), Arc::new(RunState { size: MAX_KEPT, ..RunState::default() }));
        assert!(!cache.states.contains_key(&run(5)), "one that is too large is not kept");
    }
}
