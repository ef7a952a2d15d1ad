//! The one loop that carries out what a [`Machine`] says. It owns the order of asking and recording: a model reply
//! or tool result is in the journal before the machine sees it, and one that is already there is not asked for again.
//! It decides nothing about the work itself.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;
use tracing::debug;

use super::calls::Turn;
use super::pulse::Pulse;
use super::record::{Asked, Heard, millis};
use super::{Answer, AttemptName, Ended, Failure, Journal, JournalError, Machine, OutOfStep, Step};
use crate::files::Files;
use crate::model::{Model, ModelError, Reply, Request, Watch};
use crate::tool::{Purse, Toolbox};

/// Why the work could not be carried to its end. Nothing that is in the journal is lost by it.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The model gave no reply.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tool's service can't be reached.
    #[error("the tool {tool} can't be used: {reason}")]
    Tool {
        /// The tool.
        tool: String,
        /// Why.
        reason: String,
    },
    /// The journal can't go on.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A recorded value can't be read: it was written by a version that this one does not know.
    #[error("the journal's step {name:?} can't be read: {reason}")]
    Unreadable {
        /// The step.
        name: String,
        /// Why.
        reason: String,
    },
    /// The loop and the machine disagree: a bug.
    #[error(transparent)]
    OutOfStep(#[from] OutOfStep),
}

/// Checks an answer against what the answer itself can't show, and gives it back as it is to be kept; or says what is
/// wrong, in words that the model can mend it by. It is asked again on a resume, and must then say the same.
pub type Check<'a, A> = dyn Fn(A) -> Result<A, String> + Send + Sync + 'a;

/// Carries a machine to its end with a model, tools and a journal.
pub struct Driver<'a, A> {
    model: &'a dyn Model,
    toolbox: &'a Toolbox,
    journal: &'a mut dyn Journal,
    watch: &'a dyn Watch,
    attempt: AttemptName,
    files: Option<Arc<dyn Files>>,
    check: Option<&'a Check<'a, A>>,
}

impl<'a, A: Answer> Driver<'a, A> {
    /// A driver without a name, a watcher, a workspace and a check of answers.
    pub fn new(model: &'a dyn Model, toolbox: &'a Toolbox, journal: &'a mut dyn Journal) -> Self {
        let attempt = AttemptName::default();
        Self { model, toolbox, journal, watch: &(), attempt, files: None, check: None }
    }

    /// Names the attempt, for the keys of its calls and the paths of long results.
    #[must_use]
    pub fn attempt(self, attempt: AttemptName) -> Self {
        Self { attempt, ..self }
    }

    /// Tells what comes of replies while they are being written.
    #[must_use]
    pub fn watch(self, watch: &'a dyn Watch) -> Self {
        Self { watch, ..self }
    }

    /// Puts long results into a workspace, if there is one.
    #[must_use]
    pub fn files(self, files: Option<Arc<dyn Files>>) -> Self {
        Self { files, ..self }
    }

    /// Checks answers before they count.
    #[must_use]
    pub fn check(self, check: &'a Check<'a, A>) -> Self {
        Self { check: Some(check), ..self }
    }

    /// Runs a machine to its end. Steps are called `model.<turn>`, `begin.<turn>` and `tool.<turn>.<index>.<tool>`, all
    /// counted from 0; the calls of one turn run at once and are recorded as they end. Dropping the future between two
    /// steps loses only what was not yet recorded.
    ///
    /// # Errors
    /// See [`DriveError`]. Reaching a limit is no error: the machine's outcome says it.
    pub async fn drive(mut self, mut machine: Machine<A>) -> Result<Ended<A>, Failure> {
        match self.run(&mut machine).await {
            Ok(ended) => Ok(ended),
            Err(error) => {
                let (spent, produced) = (machine.spent().clone(), machine.produced());
                Err(Failure { error: Box::new(error), spent, produced })
            }
        }
    }

    async fn run(&mut self, machine: &mut Machine<A>) -> Result<Ended<A>, DriveError> {
        loop {
            let (turn, left) = (machine.turns(), machine.time_left());
            match machine.next() {
                Step::AskModel(request) => {
                    let asked = self.ask(request, turn, left).await?;
                    machine.feed(asked, self.model.name())?;
                }
                Step::CallTools(calls) => {
                    let (attempt, toolbox, files) = (&self.attempt, self.toolbox, self.files.as_ref());
                    // The turn of a call is that of the reply it stands in.
                    let purse = Purse::holding(machine.left_for_calls());
                    let number = turn.saturating_sub(1);
                    let turn = Turn { number, attempt, toolbox, files, left, purse };
                    let results = turn.results(calls, self.journal).await?;
                    machine.feed_results(results)?;
                }
                Step::CheckAnswer(answer) => {
                    let answer = answer.clone();
                    machine.feed_check(match self.check {
                        None => Ok(answer),
                        Some(check) => check(answer),
                    })?;
                }
                Step::Done(ended) => return Ok(ended),
            }
        }
    }

    async fn ask(
        &mut self,
        request: &Request,
        turn: u64,
        left: Option<Duration>,
    ) -> Result<Asked, DriveError> {
        let name = format!("model.{turn}");
        if let Some((_, value)) = self.journal.recorded(std::slice::from_ref(&name)).await? {
            return readable(&name, value);
        }
        debug!(step = name, model = self.model.name(), messages = request.messages.len(), "asking the model");
        let began = Instant::now();
        let heard = match self.reply(request, left).await? {
            Some(Ok(reply)) => Heard::Reply(Box::new(reply)),
            Some(Err(ModelError::ContextOverflow { message })) => Heard::Overflow(message),
            Some(Err(error)) => return Err(error.into()),
            None => Heard::TimeUp,
        };
        let model = Some(self.model.name().to_owned());
        let asked = Asked { heard, model, took_ms: millis(began.elapsed()) };
        self.journal.append(&name, &writable(&asked)).await?;
        Ok(asked)
    }

    /// The model's reply; `None` if the time was over first. While it is written or has to be waited for, the journal
    /// gets signs of life, at most one a pulse: a provider that wants a pause is no silence of ours.
    async fn reply(
        &mut self,
        request: &Request,
        left: Option<Duration>,
    ) -> Result<Option<Result<Reply, ModelError>>, JournalError> {
        let pulse = Pulse::of(self.watch);
        let mut reply = self.model.reply(request, &pulse);
        let time_up = left.map_or_else(|| pending().boxed(), |left| tokio::time::sleep(left).boxed());
        tokio::pin!(time_up);
        loop {
            tokio::select! {
                biased;
                reply = &mut reply => return Ok(Some(reply)),
                () = &mut time_up => return Ok(None),
                () = tokio::time::sleep(self.journal.pulse()) => {
                    if let Some(sign) = pulse.sign() {
                        self.journal.note(&sign).await?;
                    }
                }
            }
        }
    }
}

pub(super) fn readable<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, DriveError> {
    serde_json::from_value(value)
        .map_err(|mistake| DriveError::Unreadable { name: name.to_owned(), reason: mistake.to_string() })
}

pub(super) fn writable(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("replies and results hold only texts and numbers")
}
