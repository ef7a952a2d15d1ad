//! The histories of runs: folded from their decisions, and kept for the next request. What is kept can be read again: a request
//! reads only the decisions after it, and a history that they do not continue is dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use millrace_client::RunEndState;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Decision, Plan};
use millrace_runtime::log::follow::{LogStep, LogTopics, RunLog, RunPosition};
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::store::archive;
use millrace_runtime::{Bus, Fault};
use millrace_views::history::RunHistory;

/// The maximum size of the decisions whose histories are kept, in bytes.
const MAX_KEPT: usize = 32 * 1024 * 1024;

#[derive(Clone, Default)]
pub struct RunState {
    pub history: RunHistory,
    /// The sequence and the time of the last decision.
    pub last: Option<(u64, Timestamp)>,
    /// The position in the log up to which it was read.
    position: RunPosition,
    /// The size of its decisions in bytes.
    size: usize,
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
        self.position.sequence = self.position.sequence.max(record.sequence);
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
        let mut state = self.lock().find(run).unwrap_or_default();
        if !add_new_decisions(bus, run, &mut state).await? {
            state = Arc::default();
            add_new_decisions(bus, run, &mut state).await?;
        }
        self.keep(run.clone(), state.clone());
        Ok(state)
    }
}

/// Adds the decisions after a state. Returns `false` if the log does not continue it.
async fn add_new_decisions(bus: &Bus, run: &RunId, state: &mut Arc<RunState>) -> Result<bool, Fault> {
    let mut log = RunLog::new(bus, run, LogTopics::Decisions, state.position);
    loop {
        match log.next_part().await? {
            LogStep::Messages(records) => {
                if !fold(bus, Arc::make_mut(state), &records).await? {
                    return Ok(false);
                }
            }
            LogStep::EndOfLog | LogStep::Complete => break,
            LogStep::Deleted => return Ok(state.last.is_none()),
        }
        if log.is_at_end() {
            break;
        }
    }
    if state.position != log.position() {
        Arc::make_mut(state).position = log.position();
    }
    Ok(true)
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
    records.retain(|record| record.sequence <= at);
    fold(bus, &mut state, &records).await?;
    Ok(state)
}

/// Returns the end state of a run as of sequence `at`.
pub async fn read_end_state_at(bus: &Bus, run: &RunId, at: u64) -> Result<RunEndState, Fault> {
    let records = archive::read_decisions_from_log_or_archive(bus, bus.lane_of_run(run), run).await?;
    let mut end = RunEndState::No;
    for record in records.iter().take_while(|record| record.sequence <= at) {
        let decision: Decision = bus.decode_record(record).await?;
        end = decision.events.iter().fold(end, RunEndState::after_event);
    }
    Ok(end)
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
