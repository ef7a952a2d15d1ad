//! The runs of a cluster as they start, are resumed and end, by the changes of their summaries.

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_protocol::ids::RunId;
use millrace_protocol::registry::RunSummary;
use millrace_runtime::store::bucket::{BucketChange, BucketChanges};
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault};

const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunChange {
    /// It was submitted, and a supervisor has started it.
    Started(RunSummary),
    /// It continues after its end.
    Resumed(RunSummary),
    Ended(RunSummary),
}

/// The changes of a cluster's runs from now on.
pub struct RunFeed {
    bus: Bus,
    summaries: BucketChanges<RunSummary>,
    states: RunStates,
}

impl RunFeed {
    /// Reads the present runs. Their changes so far are not returned.
    pub async fn open(bus: &Bus) -> Result<Self, Fault> {
        let mut feed =
            Self { bus: bus.clone(), summaries: registry::follow_summaries(0), states: RunStates::default() };
        feed.read_changes(&mut Vec::new()).await?;
        Ok(feed)
    }

    /// Waits for the next changes. Reads that fail are repeated: the server may be restarting.
    pub async fn next_changes(&mut self) -> Vec<RunChange> {
        let mut changes = Vec::new();
        while changes.is_empty() {
            tokio::time::sleep(POLL_INTERVAL).await;
            // After a failure the next read continues.
            self.read_changes(&mut changes).await.ok();
        }
        changes
    }

    async fn read_changes(&mut self, changes: &mut Vec<RunChange>) -> Result<(), Fault> {
        while let Some(page) = self.summaries.next_page(&self.bus).await? {
            for change in page {
                if let BucketChange::Set(entry) = change {
                    changes.extend(self.states.update(entry.value));
                }
            }
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct RunStates(BTreeMap<RunId, RunState>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunState {
    Live,
    Interrupted,
    Ended,
}

impl RunStates {
    fn update(&mut self, summary: RunSummary) -> Vec<RunChange> {
        let state = match summary.end {
            Some(_) => RunState::Ended,
            None if summary.is_interrupted => RunState::Interrupted,
            None => RunState::Live,
        };
        match (self.0.insert(summary.run.clone(), state), state) {
            (None, RunState::Live | RunState::Interrupted) => vec![RunChange::Started(summary)],
            // A short run may have ended before its first summary.
            (None, RunState::Ended) => vec![RunChange::Started(summary.clone()), RunChange::Ended(summary)],
            (Some(RunState::Live | RunState::Interrupted), RunState::Ended) => {
                vec![RunChange::Ended(summary)]
            }
            (Some(RunState::Ended | RunState::Interrupted), RunState::Live)
            | (Some(RunState::Ended), RunState::Interrupted) => vec![RunChange::Resumed(summary)],
            (Some(RunState::Ended), RunState::Ended)
            | (Some(RunState::Live), RunState::Live | RunState::Interrupted)
            | (Some(RunState::Interrupted), RunState::Interrupted) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::Lane;
    use millrace_protocol::plan::EndReason;
    use millrace_protocol::result::Usage;

    use super::*;

    fn summary(end: Option<EndReason>) -> RunSummary {
        let at = jiff::Timestamp::UNIX_EPOCH;
        RunSummary {
            run: RunId::new("r").unwrap(),
            lane: Lane(0),
            objective: "find out".into(),
            end,
            started: at,
            updated: at,
            counts: [0; 9],
            waiting: 0,
            open_questions: 0,
            questions: 0,
            archived: false,
            is_resumable: false,
            is_paused: false,
            is_interrupted: false,
            winding_down: None,
            waiting_for_provider: None,
            usage: Usage::default(),
            wait: None,
            waiting_for: None,
            log_damage: None,
            labels: Default::default(),
            session: None,
            session_position: None,
            hold: None,
            queue_place: None,
            spend: None,
            archived_span: None,
        }
    }

    #[test]
    fn each_change_is_reported_once() {
        let (live, ended) = (summary(None), summary(Some(EndReason::Failed)));
        let mut states = RunStates::default();
        assert_eq!(states.update(live.clone()), [RunChange::Started(live.clone())]);
        assert_eq!(states.update(live.clone()), []);
        assert_eq!(states.update(ended.clone()), [RunChange::Ended(ended.clone())]);
        assert_eq!(states.update(ended.clone()), [], "the summary is written again with the archive");
        assert_eq!(states.update(live.clone()), [RunChange::Resumed(live)]);
        let mut states = RunStates::default();
        assert_eq!(
            states.update(ended.clone()),
            [RunChange::Started(ended.clone()), RunChange::Ended(ended)]
        );
    }
}
