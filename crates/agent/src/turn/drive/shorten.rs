//! Carries out a shortening: it saves the conversation in the history file, asks a model for the summary, and records both as
//! one step. Nothing is recorded as dropped before the file has it.

use std::time::Duration;

use millrace_protocol::result::{ModelUsage, Usage};
use tokio::time::Instant;
use tracing::warn;

use super::Driver;
use crate::files::{FilePath, Files, FilesError, WriteCondition};

use crate::model::{ModelError, Request};

use crate::turn::context::{ContextStep, HistoryState, Shortening};

use crate::turn::outcome::{decode_step, encode_step};

use crate::turn::record::to_millis;
use crate::turn::{Answer, DriveError};

/// The tool with which an agent reads the history file.
const READER: &str = "read_file";
/// The number of tries to append to a file that others change.
const MAX_TRIES: u32 = 5;

/// A summary, or the reason that there is none, with its usage.
#[derive(Default)]
struct SummaryReply {
    text: Option<String>,
    error: Option<String>,
    usage: Usage,
    models: ModelUsage,
}

impl SummaryReply {
    fn failed(error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..Self::default() }
    }
}

impl<A: Answer> Driver<'_, A> {
    /// Returns the record of a shortening from the journal, or makes it.
    pub(super) async fn shorten_or_replay(
        &mut self,
        shortening: &Shortening,
        left: Option<Duration>,
    ) -> Result<ContextStep, DriveError> {
        let name = format!("context.{}", shortening.number);
        if let Some((_, value)) = self.host.replay(std::slice::from_ref(&name)).await? {
            return decode_step(&name, value);
        }
        let began = Instant::now();
        let history = self.save_history(shortening).await?;
        let summary = match (&shortening.summary, &history) {
            (Some(request), HistoryState::Saved { .. } | HistoryState::NoWorkspace) => {
                let shorter = shortening.shorter_summary.as_deref();
                self.request_summary(request, shorter, left).await?
            }
            (Some(_), HistoryState::Failed(_)) | (None, _) => SummaryReply::default(),
        };
        let step = ContextStep {
            history,
            summary: summary.text,
            summary_error: summary.error,
            tokens_before: shortening.tokens,
            usage: summary.usage,
            models: summary.models,
            took_ms: to_millis(began.elapsed()),
        };
        self.host.record(&name, &encode_step(&step)).await?;
        Ok(step)
    }

    /// Asks for a summary, with the `shorter` request if the model refuses the first one as too long. Without a summary the
    /// conversation continues from the agent's notes.
    async fn request_summary(
        &mut self,
        request: &Request,
        shorter: Option<&Request>,
        left: Option<Duration>,
    ) -> Result<SummaryReply, DriveError> {
        let conversation = self.conversation;
        let model = conversation.summarizer.as_ref().unwrap_or(&conversation.model).as_ref();
        let (mut outcome, took) = self.reply_through_outages(model, request, left).await?;
        if let (Some(Err(ModelError::ContextOverflow { .. })), Some(shorter)) = (&outcome, shorter) {
            let left = left.map(|left| left.saturating_sub(took));
            (outcome, _) = self.reply_through_outages(model, shorter, left).await?;
        }
        Ok(match outcome {
            None => SummaryReply::failed("the working time ran out"),
            Some(Err(error @ ModelError::Authentication { .. })) => return Err(error.into()),
            Some(Err(error)) => SummaryReply::failed(error.to_string()),
            Some(Ok(reply)) => {
                let usage = Usage { model_calls: 1, ..reply.usage };
                let name = reply.model.unwrap_or_else(|| model.name().to_owned());
                let text = Some(reply.text.trim().to_owned()).filter(|text| !text.is_empty());
                let text = text.map(|text| match reply.finish.is_cut_off() {
                    true => format!("{text}\n[The summary was cut off here]"),
                    false => text,
                });
                let error = text.is_none().then(|| "the model's summary is empty".to_owned());
                SummaryReply { text, error, usage, models: [(name, usage)].into() }
            }
        })
    }

    /// Appends the new part of the conversation to the history file. Repeated with the same number it changes nothing.
    async fn save_history(&mut self, shortening: &Shortening) -> Result<HistoryState, DriveError> {
        let conversation = self.conversation;
        let Some(files) = &conversation.files else { return Ok(HistoryState::NoWorkspace) };
        let path = match conversation.attempt.history_path() {
            Ok(path) => path,
            Err(invalid) => return Ok(HistoryState::Failed(invalid.to_string())),
        };
        let key = format!("{}/context.{}", conversation.attempt, shortening.number);
        match append_to_file(files.as_ref(), &path, &shortening.history, &key).await {
            Ok(()) => {
                let is_readable = conversation.toolbox.get(READER).is_some();
                Ok(HistoryState::Saved { path, is_readable })
            }
            Err(FilesError::Unavailable(reason)) => {
                Err(DriveError::Tool { tool: "conversation history".into(), reason })
            }
            Err(
                error @ (FilesError::Stale { .. }
                | FilesError::Denied(_)
                | FilesError::TooLarge { .. }
                | FilesError::Broken(_)),
            ) => {
                warn!(%path, %error, "cannot save the conversation; nothing is dropped from it");
                Ok(HistoryState::Failed(error.to_string()))
            }
        }
    }
}

/// Appends a text to a file, once for a key.
async fn append_to_file(files: &dyn Files, path: &FilePath, text: &str, key: &str) -> Result<(), FilesError> {
    if files.find_version_by_key(path, key).await?.is_some() {
        return Ok(());
    }
    let mut tries = 0;
    loop {
        tries += 1;
        let current = files.read(path).await?;
        let (expected, mut bytes) = match current {
            Some(file) => (WriteCondition::Version(file.entry.version), file.bytes),
            None => (WriteCondition::Absent, Vec::new()),
        };
        bytes.extend_from_slice(text.as_bytes());
        match files.write(path, bytes, expected, key).await {
            Ok(_) => return Ok(()),
            Err(FilesError::Stale { .. }) if tries < MAX_TRIES => {}
            Err(error) => return Err(error),
        }
    }
}
