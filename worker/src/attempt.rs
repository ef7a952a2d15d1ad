//! What a capability has in hand while it works on one attempt: the order, the journal, what the order builds on, and
//! the documents of the run. It keeps nothing itself.

use std::future::Future;
use std::sync::Arc;

use millrace_agent::corpus::Corpus;
use millrace_agent::desk::{Desk, Seat, SourceError, Sources};
use millrace_agent::files::Files;
use millrace_agent::tool::Tool;
use millrace_protocol::ids::WorkerId;
use millrace_protocol::plan::Amounts;
use millrace_protocol::result::{ErrorKind, TaskError, TaskResult};
use millrace_protocol::work::{Input, Order};
use millrace_runtime::host;
use millrace_seat::{Live, Reading, Recorded, Shared};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// One attempt at a task, while it runs.
pub struct Attempt<'h> {
    host: &'h mut host::Attempt,
    desk: &'h Desk,
}

impl<'h> Attempt<'h> {
    pub(crate) fn new(host: &'h mut host::Attempt, desk: &'h Desk) -> Self {
        Self { host, desk }
    }

    /// What is to be done.
    #[must_use]
    pub fn order(&self) -> &Arc<Order> {
        self.host.order()
    }

    /// The worker that this process is.
    #[must_use]
    pub fn worker(&self) -> &WorkerId {
        self.host.worker()
    }

    /// Which claim of this attempt this is, from 1: above 1, another worker was lost over it.
    #[must_use]
    pub fn claim(&self) -> u32 {
        self.host.claim()
    }

    /// Cancelled when the attempt is not wanted any more. The capability's future is dropped at its next await by
    /// itself; threads and processes that it started must look at this.
    #[must_use]
    pub fn cancelled(&self) -> &CancellationToken {
        self.host.cancelled()
    }

    /// The order's parameters as a type of yours.
    ///
    /// # Errors
    /// They do not fit (kind `InvalidTask`).
    pub fn parameters<T: DeserializeOwned>(&self) -> Result<T, TaskError> {
        let object = self.order().parameters.clone().into_iter().collect();
        serde_json::from_value(Value::Object(object))
            .map_err(|mistake| invalid(format!("the parameters: {mistake}")))
    }

    /// One of the order's parameters.
    ///
    /// # Errors
    /// It is missing or does not fit (kind `InvalidTask`).
    pub fn parameter<T: DeserializeOwned>(&self, name: &str) -> Result<T, TaskError> {
        let value = self.order().parameters.get(name);
        let value = value.ok_or_else(|| invalid(format!("the parameter '{name}' is missing")))?;
        T::deserialize(value).map_err(|mistake| invalid(format!("the parameter '{name}': {mistake}")))
    }

    /// Does a step once. Where an earlier worker has done it already, `work` is not run and what came of it then is
    /// given back; else what comes of it is in the journal before this returns. Steps are asked for by the same names
    /// in the same order each time. An error of `work` is not recorded.
    ///
    /// # Errors
    /// That of `work`; or the journal holds another step here, was taken over by another worker, or can't be written.
    /// In the last two cases nothing more of this attempt counts: return.
    pub async fn step<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &str,
        work: impl Future<Output = Result<T, TaskError>>,
    ) -> Result<T, TaskError> {
        self.host.step(name, work).await
    }

    /// Writes a line for whoever watches; also a sign of life, where the task's limits ask for one.
    ///
    /// # Errors
    /// As for a step.
    pub async fn note(&mut self, text: impl Into<String>) -> Result<(), TaskError> {
        self.host.note(text).await
    }

    /// The whole result that one of the order's inputs names.
    ///
    /// # Errors
    /// It can't be had.
    pub async fn input_result(&mut self, input: &Input) -> Result<TaskResult, TaskError> {
        let read = self.host.reader().result(input).await;
        read.map_err(|fault| self.host.fault(fault))
    }

    /// The documents of the run, ready to be searched and read; `None` if it has none. Read and indexed once for the
    /// whole process, and kept in the cache folder.
    ///
    /// # Errors
    /// They can't be had or not be indexed.
    pub async fn documents(&mut self) -> Result<Option<Arc<Corpus>>, TaskError> {
        let order = self.order().clone();
        let Some(set) = &order.documents else {
            return Ok(None);
        };
        let sources = self.sources();
        let opened = self.desk.documents(set, sources.as_ref()).await;
        opened.map(Some).map_err(|error| self.unreadable(error))
    }

    pub(crate) fn desk(&self) -> &'h Desk {
        self.desk
    }

    fn sources(&self) -> Arc<dyn Sources> {
        Arc::new(Reading(self.host.reader()))
    }

    /// The place of an agent at this attempt.
    pub(crate) fn chair(&mut self) -> Chair<'_> {
        let (bus, order) = (self.host.bus().clone(), self.host.order().clone());
        Chair {
            sources: self.sources(),
            files: Arc::new(Shared::of(&bus, &order)),
            live: Live::of(&bus, &order),
            allowance: order.allowance.unwrap_or_default(),
            journal: Recorded(self.host),
        }
    }

    /// The recorded value of the next step, which is to be called `name`; `None` once no recorded steps are left.
    pub(crate) async fn recorded(&mut self, name: &str) -> Result<Option<Value>, TaskError> {
        self.host.recorded(name).await
    }

    /// Writes down a step that was just done.
    pub(crate) async fn append(&mut self, name: &str, value: &Value) -> Result<(), TaskError> {
        self.host.append(name, value).await
    }

    /// The error that an unreadable source means for the attempt.
    pub(crate) fn unreadable(&mut self, error: SourceError) -> TaskError {
        millrace_seat::unreadable(self.host, error)
    }
}

/// What an agent is seated with, for as long as it works on an attempt.
pub(crate) struct Chair<'a> {
    sources: Arc<dyn Sources>,
    files: Arc<Shared>,
    live: Live,
    allowance: Amounts,
    journal: Recorded<'a>,
}

impl Chair<'_> {
    /// The seat, with tools beyond those of the desk.
    pub fn seat(&mut self, tools: Vec<Arc<dyn Tool>>) -> Seat<'_> {
        let files: Arc<dyn Files> = self.files.clone();
        Seat {
            files: Some(files),
            tools,
            watch: &self.live,
            allowance: self.allowance,
            ..Seat::new(self.sources.clone(), &mut self.journal)
        }
    }
}

fn invalid(message: String) -> TaskError {
    TaskError::new(ErrorKind::InvalidTask, message)
}
