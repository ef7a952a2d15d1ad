//! The sessions of a cluster: the runs of each whose turn has come, in their order. The owner of the session's lane adds a run
//! before it decides that its turn has come. A run that left its lane is known to its session from here.

use millrace_protocol::ids::{RunId, SessionId};
use serde::{Deserialize, Serialize};

use crate::Fault;
use crate::nats::bus::Bus;
use crate::nats::topology::SESSIONS;
use crate::store::bucket::{Bucket, Change};

static STORE: Bucket<SessionRecord> = Bucket::new(SESSIONS, "");

/// The number of runs of a session that its record names: the newest ones.
pub const MAX_SESSION_RUNS: usize = 1_000;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The number of runs so far.
    pub count: u32,
    /// The newest of them, oldest first, at most [`MAX_SESSION_RUNS`].
    pub runs: Vec<RunId>,
}

impl SessionRecord {
    /// Returns the number of a run, from 1, and the runs before it, oldest first; `None` if the record does not name it.
    pub fn find_run(&self, run: &RunId) -> Option<(u32, &[RunId])> {
        let at = self.runs.iter().position(|it| it == run)?;
        let after = u32::try_from(self.runs.len() - at - 1).unwrap_or(u32::MAX);
        Some((self.count.saturating_sub(after), &self.runs[..at]))
    }

    /// Adds a run as the newest one.
    fn add_run(&mut self, run: &RunId) {
        self.count = self.count.saturating_add(1);
        self.runs.push(run.clone());
        self.runs.drain(..self.runs.len().saturating_sub(MAX_SESSION_RUNS));
    }
}

/// Adds a run to its session, unless it is there. Returns its number, from 1, and the runs before it, oldest first.
///
/// # Errors
/// The server does not respond, or other processes change the session all the time.
pub async fn join_session(bus: &Bus, session: &SessionId, run: &RunId) -> Result<(u32, Vec<RunId>), Fault> {
    let join = |record: Option<SessionRecord>| {
        let mut record = record.unwrap_or_default();
        let is_new = record.find_run(run).is_none();
        if is_new {
            record.add_run(run);
        }
        let (position, before) = record.find_run(run).unwrap_or_default();
        let found = (position, before.to_vec());
        if is_new { Change::Write(record, found) } else { Change::Keep(found) }
    };
    STORE.change(bus, session.as_str(), join).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_id(number: usize) -> RunId {
        RunId::new(format!("r{number}")).unwrap()
    }

    #[test]
    fn runs_are_numbered_and_the_oldest_are_forgotten() {
        let mut record = SessionRecord::default();
        (1..=3).for_each(|number| record.add_run(&run_id(number)));
        assert_eq!(record.find_run(&run_id(3)), Some((3, &[run_id(1), run_id(2)][..])));
        assert_eq!(record.find_run(&run_id(1)), Some((1, &[][..])));
        assert_eq!(record.find_run(&run_id(4)), None);
        (4..=MAX_SESSION_RUNS + 2).for_each(|number| record.add_run(&run_id(number)));
        assert_eq!(record.find_run(&run_id(2)), None);
        let (position, before) = record.find_run(&run_id(MAX_SESSION_RUNS + 2)).unwrap();
        assert_eq!((position as usize, before.len()), (MAX_SESSION_RUNS + 2, MAX_SESSION_RUNS - 1));
    }
}
