//! One attempt at a piece of work, as its handler sees it, with the order and the journal. It also
//! handles failures of the journal: a handler that returns the error of a step does the right thing, and for one that
//! ignores the error every later step fails too.

mod agent;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use millrace_agent::turn::Host as _;
use millrace_protocol::ids::WorkerId;
use millrace_protocol::plan::{ResourceAmounts, ReviewPolicy, TaskSpec};
use millrace_protocol::result::{ErrorKind, MAX_SUMMARY, TaskError, TaskResult};
use millrace_protocol::wait::{ProviderWait, Wait, WaitCondition, WaitEnd};
use millrace_protocol::wire::InlineOrStoredBytes;
use millrace_protocol::work::{Assignment, Order, WorkOutcome};
use millrace_runtime::log::journal::{Journal, JournalError};
use millrace_runtime::{Bus, Fault};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::ClusterReader;

/// The delay after the first release of work; it doubles with each further release in a row.
const MIN_DELAY: Duration = Duration::from_secs(1);
/// The longest of these delays.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// One attempt at a piece of work, while it runs.
pub struct AttemptContext {
    bus: Bus,
    order: Arc<Order>,
    worker: WorkerId,
    journal: Journal,
    /// The next recorded step, if it was read ahead.
    next: Option<(String, InlineOrStoredBytes)>,
    position: usize,
    cancellation: CancellationToken,
    /// The error after which nothing may be appended to the journal.
    failed: Option<JournalError>,
    /// Why the handler gave the attempt up without an outcome.
    given_up: Option<GivenUp>,
    /// `true` while the handler waits for a provider, so that the work can be returned at once.
    is_waiting: watch::Sender<bool>,
}

/// Why a handler gave an attempt up without an outcome: the supervisor dispatches it again later.
#[derive(Debug)]
pub(crate) enum GivenUp {
    /// The provider stayed away for too long.
    Provider(ProviderWait),
    /// The reservation does not pay for the first request, which needs these amounts.
    Reservation(ResourceAmounts),
    /// The attempt waits for something outside.
    Parked(Vec<Wait>, Vec<TaskSpec>),
}

impl AttemptContext {
    pub(crate) fn new(
        bus: Bus,
        order: Arc<Order>,
        worker: WorkerId,
        journal: Journal,
        cancellation: CancellationToken,
    ) -> Self {
        let is_waiting = watch::Sender::new(false);
        let (next, position, failed, given_up) = (None, 0, None, None);
        Self { bus, order, worker, journal, next, position, cancellation, failed, given_up, is_waiting }
    }

    /// Completes when the handler waits for a provider and `draining` is cancelled: the process stops, and another one can
    /// wait as well.
    pub(crate) fn idle_in_draining_process(
        &self,
        draining: CancellationToken,
    ) -> impl Future<Output = ()> + use<> {
        let mut is_waiting = self.is_waiting.subscribe();
        async move {
            draining.cancelled().await;
            // The sender lives as long as the attempt, whose handler this future is raced with.
            drop(is_waiting.wait_for(|is_waiting| *is_waiting).await);
        }
    }

    pub fn order(&self) -> &Arc<Order> {
        &self.order
    }

    /// Returns the id of this process.
    pub fn worker(&self) -> &WorkerId {
        &self.worker
    }

    /// Returns the number of this claim, from 1. Above 1, an earlier claimant was lost or released the work.
    pub fn claim_number(&self) -> u32 {
        self.journal.claim_number()
    }

    /// Returns the token that is cancelled when the work is stopped. The handler's future is dropped at its next await
    /// anyway; threads and processes that it started must check this token.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.cancellation
    }

    /// Returns the client of the cluster.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Returns a reader for results, blobs and the plan; it can outlive the attempt.
    pub fn cluster_reader(&self) -> ClusterReader {
        ClusterReader::new(self.bus.clone(), self.order.lane, self.order.run.clone())
    }

    /// Executes a step once. If an earlier claim has recorded it, returns the recorded value without running `work`;
    /// otherwise runs `work` and records its value. Every attempt must execute steps of the same names in the same
    /// order. An error of `work` is not recorded.
    ///
    /// # Errors
    /// The error of `work`; or the journal contains another step here, was claimed by another worker, or can't be
    /// appended to. After the last two, the handler must return.
    pub async fn run_step_once<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &str,
        work: impl Future<Output = Result<T, TaskError>>,
    ) -> Result<T, TaskError> {
        if let Some(value) = self.next_recorded_value(name).await? {
            return serde_json::from_value(value).map_err(|mistake| {
                handler_contract_error(format!("the recorded step {name:?} can't be read: {mistake}"))
            });
        }
        let value = work.await?;
        let json = serde_json::to_value(&value).map_err(|mistake| {
            handler_contract_error(format!(
                "the value of step {name:?} can't be serialised to JSON: {mistake}"
            ))
        })?;
        self.record(name, &json).await?;
        Ok(value)
    }

    /// Returns the recorded value of the next step, whose name must be `name`; `None` if no recorded steps are left.
    ///
    /// # Errors
    /// The next recorded step has another name, or its value can't be read.
    pub async fn next_recorded_value(&mut self, name: &str) -> Result<Option<Value>, TaskError> {
        Ok(self.replay(&[name.to_owned()]).await?.map(|(_, value)| value))
    }

    async fn read_step_value(&mut self, step: &str, blob: &InlineOrStoredBytes) -> Result<Value, TaskError> {
        let bytes = match self.bus.blobs().read_inline_or_stored(blob).await {
            Ok(bytes) => bytes,
            Err(fault) => return Err(self.end_with_fault(fault)),
        };
        serde_json::from_slice(&bytes).map_err(|mistake| {
            handler_contract_error(format!("the recorded step {step:?} can't be read: {mistake}"))
        })
    }

    /// Gives up the wait for a provider: the attempt ends without an outcome, the run pauses, and the attempt continues when
    /// the run is resumed. Returns the error that the handler must return.
    fn give_up_provider(&mut self, wait: ProviderWait) -> TaskError {
        let message = format!("the provider of {} does not answer: {}", wait.model, wait.error);
        self.given_up = Some(GivenUp::Provider(wait));
        TaskError::new(ErrorKind::Model, message)
    }

    /// Gives the attempt up because its first request needs more than was reserved: nothing was sent. The attempt is
    /// dispatched again with a larger reservation. Returns the error that the handler must return.
    fn give_up_reservation(&mut self, needs: ResourceAmounts) -> TaskError {
        self.given_up = Some(GivenUp::Reservation(needs));
        TaskError::new(ErrorKind::Limit, format!("the first request needs {needs}, more than was reserved"))
    }

    /// Waits for something outside: returns the end of the wait if it has ended, and records it. Otherwise the attempt is parked:
    /// it holds no slot, and when the wait has ended the handler runs again, on any machine, with the recorded steps. `key`
    /// names the wait in the attempt and its step in the journal.
    ///
    /// # Errors
    /// The wait has not ended: the handler must return this error. Or as for a step.
    pub async fn wait_for(&mut self, key: &str, condition: WaitCondition) -> Result<WaitEnd, TaskError> {
        self.wait_for_children(key, condition, Vec::new()).await
    }

    /// Waits as [`AttemptContext::wait_for`] does, for children that are added to the plan when the attempt is parked.
    pub async fn wait_for_children(
        &mut self,
        key: &str,
        condition: WaitCondition,
        children: Vec<TaskSpec>,
    ) -> Result<WaitEnd, TaskError> {
        if let Some(value) = self.next_recorded_value(key).await? {
            return serde_json::from_value(value).map_err(|mistake| {
                handler_contract_error(format!("the recorded wait {key:?} can't be read: {mistake}"))
            });
        }
        let Some(end) = self.ended_wait(key) else {
            return Err(self.park(vec![Wait::new(key, condition)], children));
        };
        let value = serde_json::to_value(&end).expect("the end of a wait serialises to JSON");
        self.record(key, &value).await?;
        Ok(end)
    }

    /// Waits for all of these at once, as [`AttemptContext::wait_for`] does for one; returns their ends in the same order.
    pub async fn wait_for_all(&mut self, waits: Vec<Wait>) -> Result<Vec<WaitEnd>, TaskError> {
        let is_open = |wait: &&Wait| self.ended_wait(&wait.key).is_none();
        let open: Vec<Wait> = waits.iter().filter(is_open).cloned().collect();
        if !open.is_empty() {
            return Err(self.park(open, Vec::new()));
        }
        let mut ends = Vec::with_capacity(waits.len());
        for Wait { key, condition, .. } in waits {
            ends.push(self.wait_for(&key, condition).await?);
        }
        Ok(ends)
    }

    /// Parks the attempt until all of these waits have ended, and adds the children that they are for. Returns the error that the handler must return. Only attempts at
    /// tasks can be parked: the error of any other work is its outcome.
    pub fn park(&mut self, waits: Vec<Wait>, children: Vec<TaskSpec>) -> TaskError {
        if !matches!(self.order.assignment, Assignment::Task { .. }) {
            return handler_contract_error("only an attempt at a task can be parked".into());
        }
        let conditions: Vec<String> = waits.iter().map(|wait| wait.condition.to_string()).collect();
        let message = format!("the attempt waits for {}", conditions.join(", "));
        self.given_up = Some(GivenUp::Parked(waits, children));
        TaskError::new(ErrorKind::Other, message)
    }

    /// Takes the reason for which the handler gave the attempt up.
    pub(crate) fn take_given_up(&mut self) -> Option<GivenUp> {
        self.given_up.take().filter(|_| self.failed.is_none())
    }

    /// Releases the claim of an attempt that was given up.
    pub(crate) async fn release_given_up(&mut self, given_up: GivenUp) -> Result<(), JournalError> {
        match given_up {
            GivenUp::Provider(wait) => self.journal.release_for_provider(wait).await,
            GivenUp::Reservation(needs) => self.journal.release_for_reservation(needs).await,
            GivenUp::Parked(waits, children) => self.journal.park(waits, children).await,
        }
    }

    /// Creates the outcome of a result. Without a summary it gets the first line of its output; `review` is the review
    /// policy of its capability.
    ///
    /// # Errors
    /// The result is large, and the blob store does not accept it.
    pub async fn store_finished_outcome(
        &mut self,
        mut result: TaskResult,
        review: ReviewPolicy,
    ) -> Result<WorkOutcome, TaskError> {
        let (is_detailed, is_empty, usage) = (result.is_detailed(), result.is_empty(), result.usage);
        let is_answered = result.is_answered();
        result.summary = summary_or_first_line(&result);
        let (summary, models) = (result.summary.clone(), result.models.clone());
        let bytes = rmp_serde::to_vec_named(&result).expect("a result serialises to MessagePack");
        match self.bus.blobs().store_if_large(bytes).await {
            Ok(result) => Ok(WorkOutcome::Finished {
                summary,
                is_empty,
                is_detailed,
                is_answered,
                review,
                usage,
                models,
                result,
            }),
            Err(fault) => Err(self.end_with_storing_fault(fault)),
        }
    }

    /// Converts a fault of storing a value: one that is too large stays so on every worker, and fails the task.
    fn end_with_storing_fault(&mut self, fault: Fault) -> TaskError {
        if matches!(fault, Fault::TooLarge { .. }) {
            self.end_with_fault(fault)
        } else {
            self.end_with_journal_error(fault.into())
        }
    }

    /// Converts a fault to the error that the handler must return. A transient fault ends this attempt without an
    /// outcome, and another worker continues the work; any other fault fails the task.
    pub fn end_with_fault(&mut self, fault: Fault) -> TaskError {
        if fault.is_transient() {
            self.end_with_journal_error(fault.into())
        } else {
            TaskError::new(ErrorKind::Other, fault.to_string())
        }
    }

    pub(crate) async fn append_outcome(&mut self, outcome: WorkOutcome) -> Result<(), JournalError> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.journal.append_outcome(outcome).await,
        }
    }

    /// Records in the journal, if possible, that the work is released because of a fault. Returns the delay before it
    /// is redelivered, which grows with each release.
    pub(crate) async fn append_release(&mut self, fault: &Fault) -> Duration {
        if let Err(error) = self.journal.append_release(&fault.to_string()).await {
            debug!(%error, "could not record in the journal that the work was released; this claim counts as one without progress");
        }
        redelivery_delay(self.journal.release_count())
    }

    fn check_journal_is_writable(&self) -> Result<(), TaskError> {
        self.failed.as_ref().map_or(Ok(()), |error| Err(attempt_lost_error(error)))
    }

    fn end_with_journal_error(&mut self, error: JournalError) -> TaskError {
        let task_error = attempt_lost_error(&error);
        self.failed.get_or_insert(error);
        task_error
    }
}

/// Returns the delay after this number of releases.
fn redelivery_delay(releases: u32) -> Duration {
    MIN_DELAY.saturating_mul(1 << releases.min(10)).min(MAX_DELAY)
}

fn attempt_lost_error(error: &JournalError) -> TaskError {
    TaskError::new(ErrorKind::Other, format!("this attempt can't continue: {error}"))
}

fn handler_contract_error(message: String) -> TaskError {
    TaskError::new(ErrorKind::Panic, message)
}

/// Returns the summary of a result, or else the first line of its output without Markdown heading marks.
fn summary_or_first_line(result: &TaskResult) -> String {
    let texts = [result.summary.as_str(), result.output.as_str()];
    let line = texts.iter().flat_map(|text| text.lines()).map(|line| line.trim_start_matches('#').trim());
    let line = line.into_iter().find(|line| !line.is_empty()).unwrap_or_default();
    let text = if result.summary.trim().is_empty() { line } else { result.summary.trim() };
    text.chars().take(MAX_SUMMARY).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_grows_with_each_release() {
        let seconds: Vec<u64> = (0..9).map(|releases| redelivery_delay(releases).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(redelivery_delay(u32::MAX), MAX_DELAY);
    }

    #[test]
    fn result_without_summary_gets_first_line_of_output() {
        let result = |summary: &str, output: &str| TaskResult {
            summary: summary.into(),
            output: output.into(),
            ..TaskResult::default()
        };
        for (summary_text, output, expected) in [
            ("", "\n\n# Patents \nmore", "Patents"),
            (" \n", "plain", "plain"),
            (" mine\nin two lines", "# other", "mine\nin two lines"),
            ("", "", ""),
        ] {
            assert_eq!(
                summary_or_first_line(&result(summary_text, output)),
                expected,
                "{summary_text:?} {output:?}"
            );
        }
        assert_eq!(summary_or_first_line(&result("", &"ä".repeat(500))).chars().count(), MAX_SUMMARY);
    }
}
