//! The handler of the critics' queue: reads the result under review, lets the right reviewer judge it, and puts the
//! verdict into the words of the journal.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::desk::{Desk, DeskError, SourceError, Sources};
use millrace_agent::roles::Role;
use millrace_agent::turn::{Journal, JournalError};
use millrace_protocol::ids::{Capability, WorkerId};
use millrace_protocol::plan::Work;
use millrace_protocol::result::{CapabilityDescription, ErrorKind, TaskError, TaskResult, Verdict};
use millrace_protocol::subject::CRITIC;
use millrace_protocol::work::{Input, Order, Outcome};
use millrace_runtime::Fault;
use millrace_runtime::host::{Attempt, Handler, Reader};
use serde_json::Value;

use crate::echo;

/// The capability whose results need no agent.
const ECHO: &str = "echo";

pub(crate) struct Critic {
    desk: Desk,
}

impl Critic {
    pub fn new(desk: Desk) -> Self {
        Self { desk }
    }

    async fn review(&self, attempt: &mut Attempt) -> Result<Outcome, TaskError> {
        let order = attempt.order().clone();
        let (Work::Review { .. }, Some(input)) = (&order.work, order.inputs.first()) else {
            return Err(TaskError::new(ErrorKind::InvalidTask, "the order is no review of a result"));
        };
        let verdict = if order.capability.as_str() == ECHO {
            let read = attempt.reader().result(input).await;
            echo::judge(&order.criteria, &read.map_err(|fault| attempt.fault(fault))?)
        } else {
            self.judge(attempt, &order).await?
        };
        Ok(Outcome::Judged(verdict))
    }

    async fn judge(&self, attempt: &mut Attempt, order: &Order) -> Result<Verdict, TaskError> {
        let sources = Arc::new(Reading(attempt.reader()));
        let judged = self.desk.judge(order, sources, &mut Recorded(attempt)).await;
        judged.map_err(|error| match error {
            DeskError::Task(error) => error,
            DeskError::Source(SourceError::Broken(why)) => TaskError::new(ErrorKind::Other, why),
            DeskError::Source(SourceError::Unavailable(why)) => {
                attempt.fault(Fault::unavailable("reading what the review is about", why))
            }
        })
    }
}

impl Handler for Critic {
    fn describe(&self) -> CapabilityDescription {
        CapabilityDescription::new(
            Capability::new(CRITIC).expect("it is letters"),
            Role::Critic.description(),
        )
    }

    /// The author of a result never reviews it.
    fn takes(&self, order: &Order, me: &WorkerId) -> bool {
        order.inputs.iter().all(|input| input.worker != *me)
    }

    fn run<'a>(&'a self, attempt: &'a mut Attempt) -> BoxFuture<'a, Result<Outcome, TaskError>> {
        self.review(attempt).boxed()
    }
}

/// The reviewer's journal is that of its attempt.
struct Recorded<'a>(&'a mut Attempt);

impl Journal for Recorded<'_> {
    fn recorded<'a>(&'a mut self, name: &'a str) -> BoxFuture<'a, Result<Option<Value>, JournalError>> {
        self.0.recorded(name).map(|found| found.map_err(unusable)).boxed()
    }

    fn append<'a>(&'a mut self, name: &'a str, value: &'a Value) -> BoxFuture<'a, Result<(), JournalError>> {
        self.0.append(name, value).map(|done| done.map_err(unusable)).boxed()
    }
}

/// What really happened, the attempt remembers; here it only has to end the reviewer's work.
fn unusable(error: TaskError) -> JournalError {
    JournalError::Failed(error.message)
}

/// What a reviewer reads.
struct Reading(Reader);

impl Sources for Reading {
    fn result<'a>(&'a self, input: &'a Input) -> BoxFuture<'a, Result<TaskResult, SourceError>> {
        self.0.result(input).map(|read| read.map_err(source_error)).boxed()
    }

    fn blob<'a>(&'a self, sha256: &'a str) -> BoxFuture<'a, Result<Vec<u8>, SourceError>> {
        self.0.blob(sha256).map(|read| read.map_err(source_error)).boxed()
    }
}

fn source_error(fault: Fault) -> SourceError {
    let why = fault.to_string();
    if fault.is_transient() { SourceError::Unavailable(why) } else { SourceError::Broken(why) }
}
