//! Cassettes: files of recorded requests and replies, one JSON object per line, a model that records one, and a model
//! that replays one. It owns the file format and the comparison of requests. Requests contain no API key, so cassettes
//! contain none either. Fields about the circumstances of a request are ignored by a replay; files of releases that did not
//! record them can be replayed, too.

mod difference;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::{error, warn};

use crate::model::{
    Delta, DeltaListener, Model, ModelAbility, ModelError, ProviderDeadline, Reply, ReplyFuture, ReplyResult,
    Request,
};
use crate::provider::ability_of_full_name;
use difference::find_most_similar_request;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallLabels {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The role of the agent: its capability, `planner` or `critic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Entry")]
struct RecordedExchange {
    model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_token_seconds: Option<f64>,
    #[serde(flatten)]
    labels: CallLabels,
    request: Request,
    #[serde(flatten)]
    outcome: RecordedOutcome,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Outcome", rename_all = "snake_case")]
enum RecordedOutcome {
    Reply(Reply),
    Error(ModelError),
    /// The request was given up: its attempt was stopped, or ran out of time.
    CutOff(PartialReply),
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct PartialReply {
    text: String,
}

#[derive(Debug, thiserror::Error)]
#[error("{file} is not a valid cassette: {mistake}")]
pub struct CassetteError {
    pub file: String,
    pub mistake: String,
}

pub struct RecordingModel {
    inner: Arc<dyn Model>,
    file: Arc<PathBuf>,
    labels: CallLabels,
}

impl RecordingModel {
    /// Records the requests to `inner` and their outcomes by appending to a file. Several processes may share it.
    pub fn new(inner: Arc<dyn Model>, file: PathBuf, labels: CallLabels) -> Self {
        Self { inner, file: Arc::new(file), labels }
    }

    async fn reply_and_record(&self, request: &Request, listener: &dyn DeltaListener) -> ReplyResult {
        let mut recording = Recording {
            model: self,
            request,
            listener,
            at: Timestamp::now(),
            started: Instant::now(),
            progress: Mutex::default(),
            is_finished: false,
        };
        let outcome = self.inner.reply(request, &recording).await;
        let entry =
            recording.finish(outcome.clone().map_or_else(RecordedOutcome::Error, RecordedOutcome::Reply));
        let file = self.file.clone();
        let written = tokio::task::spawn_blocking(move || append_exchange(&file, &entry));
        if let Ok(Err(fault)) = written.await {
            log_write_fault(&self.file, &fault);
        }
        outcome
    }
}

fn append_exchange(file: &Path, exchange: &RecordedExchange) -> std::io::Result<()> {
    append_line(file, &serde_json::to_string(exchange).expect("requests and replies are JSON"))
}

fn log_write_fault(file: &Path, fault: &std::io::Error) {
    error!(file = %file.display(), %fault, "recording a model request failed");
}

/// A request that has no outcome yet. If it is dropped without one, it is recorded as cut off. It listens to the deltas of its reply.
struct Recording<'a> {
    model: &'a RecordingModel,
    request: &'a Request,
    listener: &'a dyn DeltaListener,
    at: Timestamp,
    started: Instant,
    progress: Mutex<ReplyProgress>,
    is_finished: bool,
}

#[derive(Debug, Default)]
struct ReplyProgress {
    first_token_at: Option<Instant>,
    text: String,
}

impl Recording<'_> {
    fn finish(&mut self, outcome: RecordedOutcome) -> RecordedExchange {
        self.is_finished = true;
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let first_token = progress.first_token_at.map(|at| at.duration_since(self.started));
        RecordedExchange {
            model: self.model.inner.name().to_owned(),
            at: Some(self.at),
            seconds: Some(round_to_milliseconds(self.started.elapsed())),
            first_token_seconds: first_token.map(round_to_milliseconds),
            labels: self.model.labels.clone(),
            request: self.request.clone(),
            outcome,
        }
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let text = std::mem::take(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner).text);
        let exchange = self.finish(RecordedOutcome::CutOff(PartialReply { text }));
        if let Err(fault) = append_exchange(&self.model.file, &exchange) {
            log_write_fault(&self.model.file, &fault);
        }
    }
}

fn round_to_milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1000.0).round() / 1000.0
}

impl DeltaListener for Recording<'_> {
    fn on_delta(&self, delta: Delta<'_>) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        match delta {
            Delta::Text(_) | Delta::Reasoning(_) | Delta::Call(_) | Delta::Hidden => {
                progress.first_token_at.get_or_insert_with(Instant::now);
                if let Delta::Text(text) | Delta::Reasoning(text) = delta {
                    progress.text.push_str(text);
                }
            }
            Delta::Restart => *progress = ReplyProgress::default(),
            Delta::Waiting(_) | Delta::Sending | Delta::Sent(_) => {}
        }
        drop(progress);
        self.listener.on_delta(delta);
    }

    fn provider_deadline(&self) -> Option<&ProviderDeadline> {
        self.listener.provider_deadline()
    }
}

impl Model for RecordingModel {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn inner(&self) -> Option<&dyn Model> {
        Some(self.inner.as_ref())
    }

    fn reply<'a>(&'a self, request: &'a Request, listener: &'a dyn DeltaListener) -> ReplyFuture<'a> {
        self.reply_and_record(request, listener).boxed()
    }
}

pub fn check_record_file(file: &Path) -> Result<(), CassetteError> {
    private_append_options().open(file).map(drop).map_err(|error| CassetteError {
        file: file.display().to_string(),
        mistake: format!("it is not writable ({error})"),
    })
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
    pub fn load(path: &Path) -> Result<Self, CassetteError> {
        let wrong = |mistake: String| CassetteError { file: path.display().to_string(), mistake };
        let text =
            std::fs::read_to_string(path).map_err(|error| wrong(format!("it is not readable ({error})")))?;
        let mut entries: Vec<RecordedExchange> = Vec::new();
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
        let has_outcome = |at: &usize| !matches!(self.entries[*at].outcome, RecordedOutcome::CutOff(_));
        let same =
            || (0..self.entries.len()).filter(has_outcome).filter(|at| self.entries[*at].request == *request);
        let at = same().find(|at| !played[*at]).or_else(|| same().last())?;
        played[at] = true;
        Some(&self.entries[at])
    }

    fn replay_recorded_reply(&self, request: &Request, listener: &dyn DeltaListener) -> ReplyResult {
        match self.take_matching_exchange(request).map(|entry| &entry.outcome) {
            Some(RecordedOutcome::Reply(reply)) => {
                if !reply.text.is_empty() {
                    listener.on_delta(Delta::Text(&reply.text));
                }
                reply.calls.iter().for_each(|call| listener.on_delta(Delta::Call(&call.name)));
                Ok(reply.clone())
            }
            Some(RecordedOutcome::Error(error)) => Err(error.clone()),
            Some(RecordedOutcome::CutOff(_)) | None => {
                let nearest_request =
                    find_most_similar_request(self.entries.iter().map(|entry| &entry.request), request);
                let nearest_request = nearest_request.unwrap_or_else(|| "it is empty".to_owned());
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
        self.entries.first().map_or(ModelAbility::Strong, |entry| ability_of_full_name(&entry.model))
    }

    fn reply<'a>(&'a self, request: &'a Request, listener: &'a dyn DeltaListener) -> ReplyFuture<'a> {
        futures::future::ready(self.replay_recorded_reply(request, listener)).boxed()
    }
}
