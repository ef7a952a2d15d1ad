//! Cassettes: files of recorded requests and replies, one JSON object per line, a model that records one, and a model
//! that replays one. It owns the file format and the comparison of requests. Requests contain no API key, so cassettes
//! contain none either.

mod difference;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tracing::{error, warn};

use crate::model::{Delta, DeltaListener, Model, ModelAbility, ModelError, Reply, Request};
use difference::find_most_similar_request;

/// A request and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Entry")]
struct RecordedExchange {
    /// The full name of the model.
    model: String,
    request: Request,
    #[serde(flatten)]
    outcome: RecordedOutcome,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Outcome", rename_all = "snake_case")]
enum RecordedOutcome {
    Reply(Reply),
    Error(ModelError),
}

/// A cassette that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file} is not a valid cassette: {mistake}")]
pub struct CassetteError {
    /// The file.
    pub file: String,
    /// The problem and its line.
    pub mistake: String,
}

/// A model whose requests and replies are recorded.
pub struct RecordingModel {
    inner: Arc<dyn Model>,
    file: Arc<PathBuf>,
}

impl RecordingModel {
    /// Records the requests to `inner` and their outcomes by appending to a file. Several processes may share it.
    ///
    /// # Errors
    /// The file is not writable.
    pub fn new(inner: Arc<dyn Model>, file: PathBuf) -> Result<Self, CassetteError> {
        let opened = private_append_options().open(&file);
        opened.map_err(|error| CassetteError {
            file: file.display().to_string(),
            mistake: format!("it is not writable ({error})"),
        })?;
        Ok(Self { inner, file: Arc::new(file) })
    }

    async fn reply_and_record(
        &self,
        request: &Request,
        listener: &dyn DeltaListener,
    ) -> Result<Reply, ModelError> {
        let outcome = self.inner.reply(request, listener).await;
        let entry = RecordedExchange {
            model: self.inner.name().to_owned(),
            request: request.clone(),
            outcome: outcome.clone().map_or_else(RecordedOutcome::Error, RecordedOutcome::Reply),
        };
        let file = self.file.clone();
        let written = tokio::task::spawn_blocking(move || {
            let line = serde_json::to_string(&entry).expect("requests and replies are JSON");
            append_line(&file, &line)
        });
        if let Ok(Err(fault)) = written.await {
            error!(file = %self.file.display(), %fault, "recording a model request failed");
        }
        outcome
    }
}

impl Model for RecordingModel {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn has_provider(&self) -> bool {
        self.inner.has_provider()
    }

    fn ability(&self) -> ModelAbility {
        self.inner.ability()
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        listener: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        self.reply_and_record(request, listener).boxed()
    }
}

/// Returns the options to append to a file that only this user may read: it contains prompts and documents.
fn private_append_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Appends a whole line to a file, which other processes may append to as well.
pub(crate) fn append_line(file: &Path, line: &str) -> std::io::Result<()> {
    let mut file = private_append_options().open(file)?;
    file.lock()?;
    file.write_all(format!("{line}\n").as_bytes())?;
    file.unlock()
}

/// A model that replays a cassette. Identical requests get their recorded replies in file order; after the last one, that
/// one is repeated.
#[derive(Debug)]
pub struct ReplayModel {
    name: String,
    entries: Vec<RecordedExchange>,
    played: Mutex<Vec<bool>>,
}

impl ReplayModel {
    /// Loads a cassette.
    ///
    /// # Errors
    /// The file is unreadable or invalid. An incomplete last line, left by a writer that died, is ignored.
    pub fn load(path: &Path) -> Result<Self, CassetteError> {
        let wrong = |mistake: String| CassetteError { file: path.display().to_string(), mistake };
        let text =
            std::fs::read_to_string(path).map_err(|error| wrong(format!("it is not readable ({error})")))?;
        let mut entries = Vec::new();
        for (at, line) in text.split_inclusive('\n').enumerate() {
            match serde_json::from_str(line) {
                Ok(entry) => entries.push(entry),
                Err(_) if !line.ends_with('\n') => {
                    warn!(file = %path.display(), "ignoring incomplete last line")
                }
                Err(error) => return Err(wrong(format!("line {}: {error}", at + 1))),
            }
        }
        let played = Mutex::new(vec![false; entries.len()]);
        Ok(Self { name: format!("replay:{}", path.display()), entries, played })
    }

    fn take_matching_exchange(&self, request: &Request) -> Option<&RecordedExchange> {
        let mut played = self.played.lock().unwrap_or_else(PoisonError::into_inner);
        let same = || (0..self.entries.len()).filter(|at| self.entries[*at].request == *request);
        let at = same().find(|at| !played[*at]).or_else(|| same().last())?;
        played[at] = true;
        Some(&self.entries[at])
    }

    fn replay_recorded_reply(
        &self,
        request: &Request,
        listener: &dyn DeltaListener,
    ) -> Result<Reply, ModelError> {
        match self.take_matching_exchange(request).map(|entry| &entry.outcome) {
            Some(RecordedOutcome::Reply(reply)) => {
                if !reply.text.is_empty() {
                    listener.on_delta(Delta::Text(&reply.text));
                }
                reply.calls.iter().for_each(|call| listener.on_delta(Delta::Call(&call.name)));
                Ok(reply.clone())
            }
            Some(RecordedOutcome::Error(error)) => Err(error.clone()),
            None => {
                let nearest_request =
                    find_most_similar_request(self.entries.iter().map(|entry| &entry.request), request);
                let nearest_request = nearest_request
                    .map_or_else(|| "it is empty".to_owned(), |nearest_request| nearest_request.to_string());
                Err(ModelError::BadRequest {
                    message: format!("{} does not contain this request; {nearest_request}", self.name),
                })
            }
        }
    }
}

impl Model for ReplayModel {
    fn name(&self) -> &str {
        &self.name
    }

    /// The ability of the recorded model: the prompts must be those that were recorded.
    fn ability(&self) -> ModelAbility {
        self.entries.first().map_or(ModelAbility::Strong, |entry| ModelAbility::of_full_name(&entry.model))
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        listener: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        futures::future::ready(self.replay_recorded_reply(request, listener)).boxed()
    }
}
