//! An agent's journal is that of its attempt on the log. It translates and keeps nothing.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::turn::{Journal, JournalError, PULSE};
use millrace_protocol::result::TaskError;
use millrace_runtime::host::Attempt;
use serde_json::Value;

/// The journal of an attempt, for as long as an agent works on it.
pub struct Recorded<'a>(pub &'a mut Attempt);

impl Journal for Recorded<'_> {
    fn recorded<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, JournalError>> {
        self.0.recorded_of(names).map(|found| found.map_err(unusable)).boxed()
    }

    fn append<'a>(&'a mut self, name: &'a str, value: &'a Value) -> BoxFuture<'a, Result<(), JournalError>> {
        self.0.append(name, value).map(|done| done.map_err(unusable)).boxed()
    }

    fn note<'a>(&'a mut self, text: &'a str) -> BoxFuture<'a, Result<(), JournalError>> {
        self.0.note(text).map(|done| done.map_err(unusable)).boxed()
    }

    /// Often enough for the plan's clock, of which two signs may be late.
    fn pulse(&self) -> Duration {
        (self.0.order().limits.silence / 3).clamp(Duration::from_millis(100), PULSE)
    }
}

/// What really happened, the attempt remembers; here it only has to end the agent's work.
fn unusable(error: TaskError) -> JournalError {
    JournalError::Failed(error.message)
}
