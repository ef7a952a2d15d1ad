//! What an agent's steps are remembered in. It owns the interface and the in-memory form; a worker keeps the same
//! on the log. A journal is an ordered list of named values: on a resume it is read from the front, and only what
//! is not in it is done.

use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The journal of one attempt.
pub trait Journal: Send {
    /// The next recorded step, which is to be one of `names`: its place among them, and its value. `None` once the
    /// recorded steps are used up. Each recorded step is given out once, in the order of the record.
    ///
    /// # Errors
    /// [`JournalError::Diverged`] if the next recorded step has another name, [`JournalError::Failed`] if its value
    /// can't be fetched.
    fn recorded<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, JournalError>>;

    /// Appends a step that was just done. When this returns, the step is safe. Asked for only after
    /// [`Journal::recorded`] said `None`.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if the step could not be kept: nobody answers, or another process goes on with the
    /// attempt.
    fn append<'a>(&'a mut self, name: &'a str, value: &'a Value) -> BoxFuture<'a, Result<(), JournalError>>;

    /// Writes a sign of life with a line for whoever watches, where the journal is one that somebody watches. It is no
    /// step.
    ///
    /// # Errors
    /// As for [`Journal::append`].
    fn note<'a>(&'a mut self, text: &'a str) -> BoxFuture<'a, Result<(), JournalError>> {
        let _ = text;
        ready(Ok(())).boxed()
    }

    /// How long nothing may be written before a sign of life is wanted.
    fn pulse(&self) -> Duration {
        PULSE
    }
}

/// How often at most a sign of life is written where nobody asks for more.
pub const PULSE: Duration = Duration::from_secs(60);

/// Why a journal can't go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The work asks for another step than it did when the journal was written: the program or its input changed.
    #[error("the journal diverged at step {position}: it holds {recorded:?}, the work asks for {asked:?}")]
    Diverged {
        /// The place in the journal, from 0.
        position: usize,
        /// The step's name in the journal.
        recorded: String,
        /// The steps that were asked for.
        asked: String,
    },
    /// The journal can't be read or written.
    #[error("the journal can't be used: {0}")]
    Failed(String),
}

/// One recorded step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What it is called.
    pub name: String,
    /// What came of it.
    pub value: Value,
}

/// A journal in memory, for tests and for work that nobody needs to resume.
#[derive(Debug, Clone, Default)]
pub struct MemoryJournal {
    steps: Vec<Step>,
    position: usize,
}

impl MemoryJournal {
    /// A journal that holds these steps already.
    #[must_use]
    pub fn holding(steps: Vec<Step>) -> Self {
        Self { steps, position: 0 }
    }

    /// All steps, oldest first.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

impl MemoryJournal {
    fn next(&mut self, names: &[String]) -> Result<Option<(usize, Value)>, JournalError> {
        let Some(step) = self.steps.get(self.position) else {
            return Ok(None);
        };
        let Some(index) = names.iter().position(|name| *name == step.name) else {
            return Err(JournalError::Diverged {
                position: self.position,
                recorded: step.name.clone(),
                asked: names.join(" or "),
            });
        };
        self.position += 1;
        Ok(Some((index, step.value.clone())))
    }
}

impl Journal for MemoryJournal {
    fn recorded<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, JournalError>> {
        ready(self.next(names)).boxed()
    }

    fn append<'a>(&'a mut self, name: &'a str, value: &'a Value) -> BoxFuture<'a, Result<(), JournalError>> {
        self.steps.push(Step { name: name.to_owned(), value: value.clone() });
        self.position = self.steps.len();
        ready(Ok(())).boxed()
    }
}
