//! One attempt at a piece of work, as its handler sees it: the order, the journal, and access to the log. It also
//! handles failures of the journal: a handler that returns the error of a step does the right thing, and for one that
//! ignores the error every later step fails too.

use std::fs::File;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::child::Delegation;
use millrace_protocol::ids::WorkerId;
use millrace_protocol::plan::{ResourceAmounts, ReviewPolicy, TaskSpec};
use millrace_protocol::provider::{ProviderStatus, ProviderWait};
use millrace_protocol::result::{ErrorKind, MAX_SUMMARY, TaskError, TaskResult};
use millrace_protocol::wait::{Wait, WaitCondition, WaitEnd};
use millrace_protocol::wire::{BlobRef, InlineOrStoredBytes};
use millrace_protocol::work::{Assignment, Order, WorkOutcome};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::ClusterReader;
use crate::Fault;
use crate::log::journal::{Journal, JournalError};
use crate::nats::bus::Bus;
use crate::store::blobs::BlobStream;

/// The delay after the first release of work; it doubles with each further release in a row.
const MIN_DELAY: Duration = Duration::from_secs(1);
/// The longest of these delays.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// The largest value of a delegated task, in bytes, that is in the task itself: plans stay small.
const MAX_INLINE_VALUE: usize = 4 * 1024;

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
pub(super) enum GivenUp {
    /// The provider stayed away for too long.
    Provider(ProviderWait),
    /// The reservation does not pay for the first request, which needs these amounts.
    Reservation(ResourceAmounts),
    /// The attempt waits for something outside.
    Parked(Vec<Wait>, Vec<TaskSpec>),
}

impl AttemptContext {
    pub(super) fn new(
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
    pub(super) fn idle_in_draining_process(
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
        self.append_step(name, &json).await?;
        Ok(value)
    }

    /// Returns the recorded value of the next step, whose name must be `name`; `None` if no recorded steps are left.
    ///
    /// # Errors
    /// The next recorded step has another name, or its value can't be read.
    pub async fn next_recorded_value(&mut self, name: &str) -> Result<Option<Value>, TaskError> {
        Ok(self.next_recorded_value_of_any(&[name]).await?.map(|(_, value)| value))
    }

    /// Returns the next recorded step, whose name must be one of `names` (concurrent steps are recorded in the order in
    /// which they end): the index of its name, and its value. `None` if no recorded steps are left.
    pub async fn next_recorded_value_of_any(
        &mut self,
        names: &[impl AsRef<str>],
    ) -> Result<Option<(usize, Value)>, TaskError> {
        if self.next.is_none() {
            self.next = self.journal.take_recorded_step();
        }
        let Some((recorded, blob)) = self.next.take() else {
            return Ok(None);
        };
        let Some(index) = names.iter().position(|name| name.as_ref() == recorded) else {
            let expected: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
            let diverged = handler_contract_error(format!(
                "the journal diverged at step {}: it contains {recorded:?}, but the work expects {:?}; the program or \
                 its input has changed",
                self.position + 1,
                expected.join(" or ")
            ));
            self.next = Some((recorded, blob));
            return Err(diverged);
        };
        self.position += 1;
        let value = self.read_step_value(&recorded, &blob).await?;
        Ok(Some((index, value)))
    }

    /// Returns the name and the value of the next recorded step and leaves it in place; `None` if no recorded steps are
    /// left.
    pub async fn peek_recorded_value(&mut self) -> Result<Option<(String, Value)>, TaskError> {
        if self.next.is_none() {
            self.next = self.journal.take_recorded_step();
        }
        let Some((recorded, blob)) = self.next.clone() else {
            return Ok(None);
        };
        let value = self.read_step_value(&recorded, &blob).await?;
        Ok(Some((recorded, value)))
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

    /// Records a step that was just executed. Must only be called after [`AttemptContext::next_recorded_value`] returned `None`.
    ///
    /// # Errors
    /// Another worker has claimed the work, or the server does not accept the entry: the handler must return.
    pub async fn append_step(&mut self, name: &str, value: &Value) -> Result<(), TaskError> {
        self.check_journal_is_writable()?;
        let bytes = serde_json::to_vec(value).expect("a JSON value serialises to JSON");
        let blob = match self.bus.blobs().store_if_large(bytes).await {
            Ok(blob) => blob,
            Err(fault) => return Err(self.end_with_storing_fault(fault)),
        };
        self.position += 1;
        let appended = self.journal.append_step(name.to_owned(), blob).await;
        appended.map_err(|error| self.end_with_journal_error(error))
    }

    /// Stores a value that a step or a delegated task refers to: in the blob store if it has more than [`MAX_INLINE_VALUE`] bytes.
    pub async fn store_value(&mut self, bytes: Vec<u8>) -> Result<InlineOrStoredBytes, TaskError> {
        self.check_journal_is_writable()?;
        if bytes.len() <= MAX_INLINE_VALUE {
            return Ok(InlineOrStoredBytes::Inline(bytes.into()));
        }
        match self.bus.blobs().put_blob(&bytes).await {
            Ok(stored) => Ok(InlineOrStoredBytes::Stored(stored)),
            Err(fault) => Err(self.end_with_storing_fault(fault)),
        }
    }

    /// Loads a value that [`AttemptContext::store_value`] has stored, in this process or another.
    pub async fn load_value(&mut self, stored: &InlineOrStoredBytes) -> Result<Vec<u8>, TaskError> {
        match self.bus.blobs().read_inline_or_stored(stored).await {
            Ok(bytes) => Ok(bytes),
            Err(fault) => Err(self.end_with_fault(fault)),
        }
    }

    /// Stores the content of a file, which may be larger than the memory.
    pub async fn store_file(&mut self, file: Arc<File>) -> Result<BlobRef, TaskError> {
        self.check_journal_is_writable()?;
        match self.bus.blobs().put_blob_from_file(file).await {
            Ok(stored) => Ok(stored),
            Err(fault) => Err(self.end_with_storing_fault(fault)),
        }
    }

    /// Opens a value that was stored, in this process or another, to read it part by part.
    pub async fn open_stored(&mut self, blob: &BlobRef) -> Result<BlobStream, TaskError> {
        match self.bus.blobs().open_blob(&blob.sha256, Some(blob.size)).await {
            Ok(stream) => Ok(stream),
            Err(fault) => Err(self.end_with_fault(fault)),
        }
    }

    /// Stores bytes in the blob store, under their SHA-256.
    pub async fn store_blob(&mut self, bytes: &[u8]) -> Result<(), TaskError> {
        self.check_journal_is_writable()?;
        match self.bus.blobs().put_blob(bytes).await {
            Ok(_) => Ok(()),
            Err(fault) => Err(self.end_with_storing_fault(fault)),
        }
    }

    /// Appends a note for observers, which also counts as progress for time limits.
    pub async fn append_note(&mut self, text: impl Into<String>) -> Result<(), TaskError> {
        self.check_journal_is_writable()?;
        let appended = self.journal.append_note(text.into()).await;
        appended.map_err(|error| self.end_with_journal_error(error))
    }

    /// Reports a change in the wait of the handler for its provider.
    pub async fn report_provider(
        &mut self,
        text: impl Into<String>,
        status: ProviderStatus,
    ) -> Result<(), TaskError> {
        self.check_journal_is_writable()?;
        let is_waiting = matches!(status, ProviderStatus::Waiting(_));
        let appended = self.journal.append_provider_status(text.into(), status).await;
        appended.map_err(|error| self.end_with_journal_error(error))?;
        self.is_waiting.send_replace(is_waiting);
        Ok(())
    }

    /// Returns the last report about the provider since the last step, of this claim or the claim before it.
    pub fn provider_status(&self) -> Option<&ProviderStatus> {
        self.journal.provider_status()
    }

    /// Notes that the handler sends a request to its provider: until the next report the work is not returned early.
    pub fn interrupt_wait(&mut self) {
        self.is_waiting.send_replace(false);
    }

    /// Gives up the wait for a provider: the attempt ends without an outcome, the run pauses, and the attempt continues when
    /// the run is resumed. Returns the error that the handler must return.
    pub fn give_up_provider(&mut self, wait: ProviderWait) -> TaskError {
        let message = format!("the provider of {} does not answer: {}", wait.model, wait.error);
        self.given_up = Some(GivenUp::Provider(wait));
        TaskError::new(ErrorKind::Model, message)
    }

    /// Gives the attempt up because its first request needs more than was reserved: nothing was sent. The attempt is
    /// dispatched again with a larger reservation. Returns the error that the handler must return.
    pub fn give_up_reservation(&mut self, needs: ResourceAmounts) -> TaskError {
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
        let Some(end) = self.ended_wait(key).cloned() else {
            return Err(self.park(vec![Wait::new(key, condition)], children));
        };
        let value = serde_json::to_value(&end).expect("the end of a wait serialises to JSON");
        self.append_step(key, &value).await?;
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

    /// Returns the end of the wait with this key, if the attempt was parked with it and it has ended.
    pub fn ended_wait(&self, key: &str) -> Option<&WaitEnd> {
        self.order.ended_waits.iter().find(|wait| wait.key == key).map(|wait| &wait.end)
    }

    /// Starts, cancels or instructs children of the attempt, which goes on.
    pub async fn append_delegation(&mut self, delegation: Delegation) -> Result<(), TaskError> {
        self.check_journal_is_writable()?;
        let appended = self.journal.append_delegation(delegation).await;
        appended.map_err(|error| self.end_with_journal_error(error))
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
    pub(super) fn take_given_up(&mut self) -> Option<GivenUp> {
        self.given_up.take().filter(|_| self.failed.is_none())
    }

    /// Releases the claim of an attempt that was given up.
    pub(super) async fn release_given_up(&mut self, given_up: GivenUp) -> Result<(), JournalError> {
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

    pub(super) async fn append_outcome(&mut self, outcome: WorkOutcome) -> Result<(), JournalError> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.journal.append_outcome(outcome).await,
        }
    }

    /// Records in the journal, if possible, that the work is released because of a fault. Returns the delay before it
    /// is redelivered, which grows with each release.
    pub(super) async fn append_release(&mut self, fault: &Fault) -> Duration {
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
