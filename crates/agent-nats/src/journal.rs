//! The journal of an attempt in the log, as an agent's journal.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::files::ContentStream;
use millrace_agent::turn::{Journal, JournalError, KEEPALIVE};
use millrace_protocol::child::Delegation;
use millrace_protocol::provider::ProviderStatus;
use millrace_protocol::result::TaskError;
use millrace_protocol::wait::WaitEnd;
use millrace_protocol::wire::{BlobRef, InlineOrStoredBytes};
use millrace_runtime::work::host::AttemptContext;
use serde_json::Value;

use crate::files::BlobContent;

/// The journal of an attempt while an agent works on it.
pub struct NatsJournal<'a>(pub &'a mut AttemptContext);

impl Journal for NatsJournal<'_> {
    fn read_recorded_step<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, JournalError>> {
        self.0.next_recorded_value_of_any(names).map(|step| step.map_err(convert_task_error)).boxed()
    }

    fn peek_recorded_step(&mut self) -> BoxFuture<'_, Result<Option<(String, Value)>, JournalError>> {
        self.0.peek_recorded_value().map(|step| step.map_err(convert_task_error)).boxed()
    }

    fn append_step<'a>(
        &'a mut self,
        name: &'a str,
        value: &'a Value,
    ) -> BoxFuture<'a, Result<(), JournalError>> {
        self.0.append_step(name, value).map(|done| done.map_err(convert_task_error)).boxed()
    }

    fn append_note<'a>(&'a mut self, text: &'a str) -> BoxFuture<'a, Result<(), JournalError>> {
        self.0.append_note(text).map(|done| done.map_err(convert_task_error)).boxed()
    }

    fn report_provider<'a>(
        &'a mut self,
        text: &'a str,
        status: &'a ProviderStatus,
    ) -> BoxFuture<'a, Result<(), JournalError>> {
        self.0.report_provider(text, status.clone()).map(|done| done.map_err(convert_task_error)).boxed()
    }

    fn append_delegation(&mut self, delegation: Delegation) -> BoxFuture<'_, Result<(), JournalError>> {
        self.0.append_delegation(delegation).map(|done| done.map_err(convert_task_error)).boxed()
    }

    fn store_value(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<InlineOrStoredBytes, JournalError>> {
        self.0.store_value(bytes).map(|stored| stored.map_err(convert_task_error)).boxed()
    }

    fn load_value<'a>(
        &'a mut self,
        stored: &'a InlineOrStoredBytes,
    ) -> BoxFuture<'a, Result<Vec<u8>, JournalError>> {
        self.0.load_value(stored).map(|loaded| loaded.map_err(convert_task_error)).boxed()
    }

    fn store_blob(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), JournalError>> {
        async move { self.0.store_blob(&bytes).await.map_err(convert_task_error) }.boxed()
    }

    fn store_file(&mut self, file: Arc<File>) -> BoxFuture<'_, Result<BlobRef, JournalError>> {
        async move { self.0.store_file(file).await.map_err(convert_task_error) }.boxed()
    }

    fn open_stored<'a>(
        &'a mut self,
        blob: &'a BlobRef,
    ) -> BoxFuture<'a, Result<Box<dyn ContentStream>, JournalError>> {
        async move {
            let stream = self.0.open_stored(blob).await.map_err(convert_task_error)?;
            Ok(Box::new(BlobContent(stream)) as Box<dyn ContentStream>)
        }
        .boxed()
    }

    fn interrupt_wait(&mut self) {
        self.0.interrupt_wait();
    }

    fn provider_status(&self) -> Option<ProviderStatus> {
        self.0.provider_status().cloned()
    }

    fn ended_wait(&self, key: &str) -> Option<WaitEnd> {
        self.0.ended_wait(key).cloned()
    }

    /// A third of the task's silence limit, so that two heartbeats in a row may be late.
    fn keepalive_interval(&self) -> Duration {
        (self.0.order().limits.silence / 3).clamp(Duration::from_millis(100), KEEPALIVE)
    }
}

/// The attempt keeps the cause and decides its outcome; the agent only has to stop.
fn convert_task_error(error: TaskError) -> JournalError {
    JournalError::Failed(error.message)
}
