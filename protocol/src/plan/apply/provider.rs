//! Waits for models' providers, and the pause of a run whose provider does not answer.

use jiff::Timestamp;

use crate::plan::state::{Plan, TaskPhase, TaskState, UncountedTime};
use crate::plan::{JournalKey, ProviderEvent};

impl Plan {
    pub(super) fn apply_provider(&mut self, event: &ProviderEvent, at: Timestamp) {
        match event {
            ProviderEvent::Awaited { journal, wait } => {
                if let Some(waits) = self.waits_of(journal) {
                    waits.report_wait(wait.clone(), at);
                }
            }
            ProviderEvent::Recovered { journal } => {
                if let Some(waits) = self.waits_of(journal) {
                    waits.end_wait(at);
                }
            }
            ProviderEvent::GivenUp { journal, wait } => {
                self.return_work(journal, at);
                self.run.paused.get_or_insert(at);
                self.run.paused_for_provider = Some(wait.clone());
            }
        }
    }

    fn waits_of(&mut self, journal: &JournalKey) -> Option<&mut UncountedTime> {
        match journal {
            JournalKey::Task(task, _) | JournalKey::Review(task, _) => {
                self.task_mut(task).map(|task| &mut task.uncounted)
            }
            JournalKey::Planning(..) => self.planning.turn.as_mut().map(|turn| &mut turn.uncounted),
        }
    }

    /// Lets work wait for a worker again, as the same attempt: its journal continues. Its reservation stays, because its
    /// usage so far is counted at its end.
    pub(super) fn return_work(&mut self, journal: &JournalKey, at: Timestamp) {
        match journal {
            JournalKey::Task(id, _) => {
                if self.task(id).is_some_and(|task| task.state() == TaskState::Running) {
                    self.move_task_to_phase(id, TaskPhase::Ready, at, |_| ());
                }
            }
            JournalKey::Review(id, _) => {
                if let Some(task) = self.task_mut(id) {
                    task.uncounted = UncountedTime::default();
                    task.since = at;
                }
            }
            JournalKey::Planning(..) => {
                if let Some(turn) = &mut self.planning.turn {
                    turn.worked = turn.worked.saturating_add(turn.uncounted.counted(turn.since, at));
                    turn.uncounted = UncountedTime::default();
                    turn.worker = None;
                    turn.since = at;
                }
            }
        }
    }
}
