//! What a handler has in hand while it works: its order, its journal, and the log to read from. It hides what can go
//! wrong with the journal: a handler that goes on with the error it was given does the right thing, and one that does
//! not is found out.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::WorkerId;
use millrace_protocol::plan::Review;
use millrace_protocol::result::{ErrorKind, MAX_SUMMARY, TaskError, TaskResult};
use millrace_protocol::wire::Blob;
use millrace_protocol::work::{Order, Outcome};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Reader;
use crate::Fault;
use crate::bus::Bus;
use crate::journal::{Journal, JournalError};

/// How long work rests that is given back for the first time; each further time in a row twice as long.
const REST: Duration = Duration::from_secs(1);
/// The longest of these rests.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// One attempt at a piece of work, while it runs.
pub struct Attempt {
    bus: Bus,
    order: Arc<Order>,
    me: WorkerId,
    journal: Journal,
    /// The recorded step that was looked at and not yet asked for.
    next: Option<(String, Blob)>,
    position: usize,
    cancelled: CancellationToken,
    /// Why the journal is of no use any more; nothing is written after it.
    broken: Option<JournalError>,
}

impl Attempt {
    pub(super) fn new(
        bus: Bus,
        order: Arc<Order>,
        me: WorkerId,
        journal: Journal,
        cancelled: CancellationToken,
    ) -> Self {
        Self { bus, order, me, journal, next: None, position: 0, cancelled, broken: None }
    }

    /// What is to be done.
    #[must_use]
    pub fn order(&self) -> &Arc<Order> {
        &self.order
    }

    /// Who we are.
    #[must_use]
    pub fn worker(&self) -> &WorkerId {
        &self.me
    }

    /// Which claim of this work this is, from 1: above 1, another worker was lost over it.
    #[must_use]
    pub fn claim(&self) -> u32 {
        self.journal.claim_number()
    }

    /// Cancelled when the work is not wanted any more. The handler's future is dropped at its next await by itself;
    /// threads and processes that it started must look at this.
    #[must_use]
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }

    /// The connection to the cluster.
    #[must_use]
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// For reading results and blobs; may be kept and shared.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(self.bus.clone(), self.order.lane)
    }

    /// Does a step once. Where an earlier worker has done it already, `work` is not run and what came of it then is
    /// given back; else what comes of it is written down before this returns. Steps are asked for by the same names
    /// in the same order each time. An error of `work` is not recorded.
    ///
    /// # Errors
    /// That of `work`; or the journal holds another step here, was taken over, or can't be written. In the last two
    /// cases nothing more of this attempt counts: return.
    pub async fn step<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &str,
        work: impl Future<Output = Result<T, TaskError>>,
    ) -> Result<T, TaskError> {
        if let Some(value) = self.recorded(name).await? {
            return serde_json::from_value(value).map_err(|mistake| {
                broken_rule(format!("the journal's step {name:?} can't be read back: {mistake}"))
            });
        }
        let value = work.await?;
        let json = serde_json::to_value(&value).map_err(|mistake| {
            broken_rule(format!("what step {name:?} gave has no form in JSON: {mistake}"))
        })?;
        self.append(name, &json).await?;
        Ok(value)
    }

    /// The recorded value of the next step, which is to be called `name`; `None` once no recorded steps are left.
    ///
    /// # Errors
    /// The next recorded step has another name, or its value can't be had.
    pub async fn recorded(&mut self, name: &str) -> Result<Option<Value>, TaskError> {
        Ok(self.recorded_of(&[name]).await?.map(|(_, value)| value))
    }

    /// The next recorded step, which is to be one of `names` (steps that are done at once are recorded as they end):
    /// its place among them, and its value. `None` once no recorded steps are left.
    ///
    /// # Errors
    /// As for [`Attempt::recorded`].
    pub async fn recorded_of(
        &mut self,
        names: &[impl AsRef<str>],
    ) -> Result<Option<(usize, Value)>, TaskError> {
        if self.next.is_none() {
            self.next = self.journal.replay();
        }
        let Some((recorded, blob)) = self.next.take() else {
            return Ok(None);
        };
        let Some(index) = names.iter().position(|name| name.as_ref() == recorded) else {
            let asked: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
            let diverged = broken_rule(format!(
                "the journal diverged at step {}: it holds {recorded:?}, the work asks for {:?}; the program or its \
                 input changed since",
                self.position + 1,
                asked.join(" or ")
            ));
            self.next = Some((recorded, blob));
            return Err(diverged);
        };
        self.position += 1;
        let bytes = match self.bus.blobs().resolve(&blob).await {
            Ok(bytes) => bytes,
            Err(fault) => return Err(self.fault(fault)),
        };
        let value = serde_json::from_slice(&bytes).map_err(|mistake| {
            broken_rule(format!("the journal's step {recorded:?} can't be read: {mistake}"))
        })?;
        Ok(Some((index, value)))
    }

    /// Writes down a step that was just done: it is never done again. Asked for only after [`Attempt::recorded`] said
    /// `None`.
    ///
    /// # Errors
    /// The work was taken over, or the server does not take it: return, nothing more of this attempt counts.
    pub async fn append(&mut self, name: &str, value: &Value) -> Result<(), TaskError> {
        self.check()?;
        let bytes = serde_json::to_vec(value).expect("a JSON value has a form in JSON");
        let blob = match self.bus.blobs().spill(bytes).await {
            Ok(blob) => blob,
            Err(fault) => return Err(self.break_with(fault.into())),
        };
        self.position += 1;
        let written = self.journal.step(name.to_owned(), blob).await;
        written.map_err(|error| self.break_with(error))
    }

    /// Writes a line for whoever watches; also a sign of life, where limits ask for one.
    ///
    /// # Errors
    /// As for a step.
    pub async fn note(&mut self, text: impl Into<String>) -> Result<(), TaskError> {
        self.check()?;
        let written = self.journal.note(text.into()).await;
        written.map_err(|error| self.break_with(error))
    }

    /// The outcome that a result makes. One without a summary gets the first line of its output; `review` is how its
    /// capability wants it judged.
    ///
    /// # Errors
    /// The result is large, and the blob store does not take it.
    pub async fn finished(&mut self, mut result: TaskResult, review: Review) -> Result<Outcome, TaskError> {
        let (is_detailed, is_empty, usage) = (result.is_detailed(), result.is_empty(), result.usage);
        result.summary = summary(&result);
        let (summary, models) = (result.summary.clone(), result.models.clone());
        let bytes = rmp_serde::to_vec_named(&result).expect("a result has a form in MessagePack");
        match self.bus.blobs().spill(bytes).await {
            Ok(result) => {
                Ok(Outcome::Finished { summary, is_empty, is_detailed, review, usage, models, result })
            }
            Err(fault) => Err(self.break_with(fault.into())),
        }
    }

    /// What a fault of the world means for the work. One that may pass ends this attempt without an outcome, and
    /// another worker goes on with it; any other is an error of the task. To be returned either way.
    pub fn fault(&mut self, fault: Fault) -> TaskError {
        if fault.is_transient() {
            self.break_with(fault.into())
        } else {
            TaskError::new(ErrorKind::Other, fault.to_string())
        }
    }

    pub(super) async fn finish(&mut self, outcome: Outcome) -> Result<(), JournalError> {
        match self.broken.take() {
            Some(error) => Err(error),
            None => self.journal.finish(outcome).await,
        }
    }

    /// Says in the journal that the work is given back for a fault, as far as that can be said; gives how long it should
    /// rest, which is longer each time.
    pub(super) async fn release(&mut self, fault: &Fault) -> Duration {
        if let Err(error) = self.journal.release(&fault.to_string()).await {
            debug!(%error, "that work is given back could not be written down");
        }
        rest_after(self.journal.released())
    }

    fn check(&self) -> Result<(), TaskError> {
        self.broken.as_ref().map_or(Ok(()), |error| Err(lost(error)))
    }

    fn break_with(&mut self, error: JournalError) -> TaskError {
        let told = lost(&error);
        self.broken.get_or_insert(error);
        told
    }
}

/// How long work rests that was given back so often before.
fn rest_after(released: u32) -> Duration {
    REST.saturating_mul(1 << released.min(10)).min(LONGEST_REST)
}

fn lost(error: &JournalError) -> TaskError {
    TaskError::new(ErrorKind::Other, format!("this attempt can't go on: {error}"))
}

fn broken_rule(message: String) -> TaskError {
    TaskError::new(ErrorKind::Panic, message)
}

/// The summary that a result names, or else the first line of its output, without marks of Markdown.
fn summary(result: &TaskResult) -> String {
    let named = [result.summary.as_str(), result.output.as_str()];
    let line = named.iter().flat_map(|text| text.lines()).map(|line| line.trim_start_matches('#').trim());
    let line = line.into_iter().find(|line| !line.is_empty()).unwrap_or_default();
    let text = if result.summary.trim().is_empty() { line } else { result.summary.trim() };
    text.chars().take(MAX_SUMMARY).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_is_given_back_again_and_again_rests_longer_each_time() {
        let seconds: Vec<u64> = (0..9).map(|released| rest_after(released).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(rest_after(u32::MAX), LONGEST_REST);
    }

    #[test]
    fn a_result_without_a_summary_gets_the_first_line_of_its_output() {
        let result = |summary: &str, output: &str| TaskResult {
            summary: summary.into(),
            output: output.into(),
            ..TaskResult::default()
        };
        for (given, output, expected) in [
            ("", "\n\n# Patents \nmore", "Patents"),
            (" \n", "plain", "plain"),
            (" mine\nin two lines", "# other", "mine\nin two lines"),
            ("", "", ""),
        ] {
            assert_eq!(summary(&result(given, output)), expected, "{given:?} {output:?}");
        }
        assert_eq!(summary(&result("", &"ä".repeat(500))).chars().count(), MAX_SUMMARY);
    }
}
