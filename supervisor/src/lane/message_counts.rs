//! The number of messages of each run that the owner has seen in its lane. It sizes the read of a run that is archived: a
//! server that has sent that many messages does not search the rest of the lane.

use std::collections::HashMap;

use millrace_protocol::ids::RunId;

/// Counts the messages of the runs of a lane. Runs of an earlier owner are counted from its takeover on.
#[derive(Default)]
pub(super) struct MessageCounts {
    /// The number of messages, and the sequence of the last one.
    runs: HashMap<RunId, (usize, u64)>,
}

impl MessageCounts {
    pub(super) fn count_message(&mut self, run: &RunId, sequence: u64) {
        match self.runs.get_mut(run) {
            Some((count, last)) => (*count, *last) = (*count + 1, sequence),
            None => {
                self.runs.insert(run.clone(), (1, sequence));
            }
        }
    }

    /// Returns the number of messages up to the decision `end`, which its owner may have appended and not read yet.
    pub(super) fn count_through(&self, run: &RunId, end: u64) -> usize {
        let (count, last) = self.runs.get(run).copied().unwrap_or_default();
        count + usize::from(last < end)
    }

    pub(super) fn remove_run(&mut self, run: &RunId) {
        self.runs.remove(run);
    }
}
