//! The attempt as the host of an agent that works on it: its journal, its stores and its waits.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::files::ContentStream;
use millrace_agent::session::{SessionEnvironment, SessionError};
use millrace_agent::sources::OrderInputError;
use millrace_agent::turn::{Host, KEEPALIVE};
use millrace_protocol::child::Delegation;
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_protocol::wait::{ProviderStatus, WaitEnd};
use millrace_protocol::wire::{BlobRef, InlineOrStoredBytes};
use millrace_runtime::Fault;
use serde_json::Value;

use super::{AttemptContext, handler_contract_error};
use crate::files::{BlobContent, NatsFiles};
use crate::live_stream::LiveOutputStream;

/// The largest value of a delegated task, in bytes, that is in the task itself: plans stay small.
const MAX_INLINE_VALUE: usize = 4 * 1024;

impl AttemptContext {
    /// Stores bytes that the work refers to.
    async fn put_blob(&mut self, bytes: &[u8]) -> Result<BlobRef, TaskError> {
        self.check_journal_is_writable()?;
        self.bus.blobs().put_blob(bytes).await.map_err(|fault| self.end_with_storing_fault(fault))
    }

    /// Converts the error of a session, or of its sources, into the error that the handler must return. If a source is
    /// unavailable, or a provider was away for too long, the attempt is released without an outcome and can be resumed; any other
    /// error is the task's.
    pub fn end_with_session_error(&mut self, error: impl Into<SessionError>) -> TaskError {
        match error.into() {
            SessionError::Task(error) => error,
            SessionError::ReservationTooSmall(needs) => self.give_up_reservation(needs),
            SessionError::ProviderAway(wait) => self.give_up_provider(wait),
            SessionError::Parked(waits, children) => self.park(waits, children),
            SessionError::Source(OrderInputError::Unavailable(why)) => {
                self.end_with_fault(Fault::unavailable("reading the inputs of the work", why))
            }
            SessionError::Source(OrderInputError::Broken(why)) => TaskError::new(ErrorKind::Other, why),
        }
    }

    /// Creates the environment of an agent that works on this attempt.
    pub fn agent_environment(&mut self) -> SessionEnvironment<'_> {
        let (bus, order) = (self.bus.clone(), self.order.clone());
        SessionEnvironment {
            files: Some(Arc::new(NatsFiles::new(&bus, &order))),
            memories: Some(Arc::new(NatsFiles::of_memories(&bus, &order))),
            observer: Arc::new(LiveOutputStream::start_publisher(&bus, &order)),
            allowance: order.allowance.unwrap_or_default(),
            provider_timeout: order.provider_timeout(),
            ..SessionEnvironment::new(Arc::new(self.cluster_reader()), self)
        }
    }
}

impl Host for AttemptContext {
    fn replay<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, TaskError>> {
        async move {
            if self.next.is_none() {
                self.next = self.journal.take_recorded_step();
            }
            let Some((recorded, blob)) = self.next.take() else {
                return Ok(None);
            };
            let Some(index) = names.iter().position(|name| *name == recorded) else {
                let diverged = handler_contract_error(format!(
                    "the journal diverged at step {}: it contains {recorded:?}, but the work expects {:?}; the program or \
                     its input has changed",
                    self.position + 1,
                    names.join(" or ")
                ));
                self.next = Some((recorded, blob));
                return Err(diverged);
            };
            self.position += 1;
            let value = self.read_step_value(&recorded, &blob).await?;
            Ok(Some((index, value)))
        }
        .boxed()
    }

    fn peek(&mut self) -> BoxFuture<'_, Result<Option<(String, Value)>, TaskError>> {
        async move {
            if self.next.is_none() {
                self.next = self.journal.take_recorded_step();
            }
            let Some((recorded, blob)) = self.next.clone() else {
                return Ok(None);
            };
            let value = self.read_step_value(&recorded, &blob).await?;
            Ok(Some((recorded, value)))
        }
        .boxed()
    }

    fn record<'a>(&'a mut self, name: &'a str, value: &'a Value) -> BoxFuture<'a, Result<(), TaskError>> {
        async move {
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
        .boxed()
    }

    fn note<'a>(&'a mut self, text: &'a str) -> BoxFuture<'a, Result<(), TaskError>> {
        async move {
            self.check_journal_is_writable()?;
            let appended = self.journal.append_note(text.to_owned()).await;
            appended.map_err(|error| self.end_with_journal_error(error))
        }
        .boxed()
    }

    fn report_provider<'a>(
        &'a mut self,
        text: &'a str,
        status: &'a ProviderStatus,
    ) -> BoxFuture<'a, Result<(), TaskError>> {
        async move {
            self.check_journal_is_writable()?;
            let appended = self.journal.append_provider_status(text.to_owned(), status.clone()).await;
            appended.map_err(|error| self.end_with_journal_error(error))?;
            self.is_waiting.send_replace(matches!(status, ProviderStatus::Waiting(_)));
            Ok(())
        }
        .boxed()
    }

    fn delegate(&mut self, delegation: Delegation) -> BoxFuture<'_, Result<(), TaskError>> {
        async move {
            self.check_journal_is_writable()?;
            let appended = self.journal.append_delegation(delegation).await;
            appended.map_err(|error| self.end_with_journal_error(error))
        }
        .boxed()
    }

    /// A value of more than [`MAX_INLINE_VALUE`] bytes is in the blob store.
    fn store_value(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<InlineOrStoredBytes, TaskError>> {
        async move {
            if bytes.len() <= MAX_INLINE_VALUE {
                self.check_journal_is_writable()?;
                return Ok(InlineOrStoredBytes::Inline(bytes.into()));
            }
            self.put_blob(&bytes).await.map(InlineOrStoredBytes::Stored)
        }
        .boxed()
    }

    fn load_value<'a>(
        &'a mut self,
        stored: &'a InlineOrStoredBytes,
    ) -> BoxFuture<'a, Result<Vec<u8>, TaskError>> {
        async move {
            let read = self.bus.blobs().read_inline_or_stored(stored).await;
            read.map_err(|fault| self.end_with_fault(fault))
        }
        .boxed()
    }

    fn store_blob(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), TaskError>> {
        async move { self.put_blob(&bytes).await.map(drop) }.boxed()
    }

    fn store_file(&mut self, file: Arc<File>) -> BoxFuture<'_, Result<BlobRef, TaskError>> {
        async move {
            self.check_journal_is_writable()?;
            let stored = self.bus.blobs().put_blob_from_file(file).await;
            stored.map_err(|fault| self.end_with_storing_fault(fault))
        }
        .boxed()
    }

    fn open_stored<'a>(
        &'a mut self,
        blob: &'a BlobRef,
    ) -> BoxFuture<'a, Result<Box<dyn ContentStream>, TaskError>> {
        async move {
            let opened = self.bus.blobs().open_blob(&blob.sha256, Some(blob.size)).await;
            let stream = opened.map_err(|fault| self.end_with_fault(fault))?;
            Ok(Box::new(BlobContent(stream)) as Box<dyn ContentStream>)
        }
        .boxed()
    }

    fn interrupt_wait(&mut self) {
        self.is_waiting.send_replace(false);
    }

    fn provider_status(&self) -> Option<ProviderStatus> {
        self.journal.provider_status().cloned()
    }

    fn ended_wait(&self, key: &str) -> Option<WaitEnd> {
        self.order.ended_waits.iter().find(|wait| wait.key == key).map(|wait| wait.end.clone())
    }

    /// A third of the task's silence limit, so that two heartbeats in a row may be late.
    fn keepalive_interval(&self) -> Duration {
        (self.order.limits.silence / 3).clamp(Duration::from_millis(100), KEEPALIVE)
    }
}
