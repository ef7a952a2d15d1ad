//! Cassettes: files of recorded requests and replies, one JSON object per line, a model that records one, and a model
//! that replays one. It owns the file format and the comparison of requests. Requests contain no API key, so cassettes
//! contain none either. Fields about the circumstances of a request are ignored by a replay; files of releases that did not
//! record them can be replayed, too.
//!
//! Finds where a request differs from the most similar recorded one, for error messages of the replay. Pure.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::{error, warn};

use crate::model::{
    Delta, DeltaListener, Model, ModelAbility, ModelError, ProviderDeadline, Reply, ReplyFuture, ReplyResult,
    Request,
};

use crate::provider::ability_of_full_name;

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
    Reply(Box<Reply>),
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
        let entry = recording.finish(match outcome.clone() {
            Ok(reply) => RecordedOutcome::Reply(Box::new(reply)),
            Err(error) => RecordedOutcome::Error(error),
        });
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
                Ok((**reply).clone())
            }
            Some(RecordedOutcome::Error(error)) => Err(error.clone()),
            Some(RecordedOutcome::CutOff(_)) | None => {
                let nearest_request =
                    find_most_similar_request(self.entries.iter().map(|entry| &entry.request), request);
                let nearest_request = nearest_request.unwrap_or_else(|| "it is empty".to_owned());
                Err(ModelError::bad_request(format!(
                    "{} does not contain this request; {nearest_request}",
                    self.name
                )))
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

const EXCERPT_LENGTH: usize = 60;

/// Describes the recorded request most similar to `requested`, with its line in the cassette; `None` if nothing is recorded.
pub fn find_most_similar_request<'a>(
    recorded: impl Iterator<Item = &'a Request>,
    requested: &Request,
) -> Option<String> {
    let requested = list_request_parts(requested);
    let compared = recorded.enumerate().map(|(at, request)| {
        let mut comparison = RequestComparison::default();
        for ((path, recorded), (_, requested)) in list_request_parts(request).iter().zip(&requested) {
            comparison.compare_values(path, recorded, requested);
        }
        (comparison, at)
    });
    let similarity = |of: &RequestComparison| (of.same.cast_signed() - of.different.cast_signed(), of.common);
    let (comparison, at) =
        compared.max_by_key(|(comparison, at)| (similarity(comparison), usize::MAX - at))?;
    Some(format!("the most similar one is in line {} and differs first in {}", at + 1, comparison.first?))
}

/// Splits a request into parts, in the order in which people read them.
fn list_request_parts(request: &Request) -> [(&'static str, Value); 7] {
    let value = |value: serde_json::Result<Value>| value.expect("a request is JSON");
    [
        ("answer", value(serde_json::to_value(&request.answer))),
        ("system", Value::from(request.system.as_str())),
        ("tools", value(serde_json::to_value(&request.tools))),
        ("messages", value(serde_json::to_value(&request.messages))),
        ("max_output_tokens", request.max_output_tokens.into()),
        ("first_token_probabilities", request.first_token_probabilities.into()),
        ("embeddings", request.embeddings.into()),
    ]
}

#[derive(Default)]
struct RequestComparison {
    same: usize,
    different: usize,
    common: usize,
    first: Option<String>,
}

impl RequestComparison {
    fn compare_values(&mut self, path: &str, recorded: &Value, requested: &Value) {
        match (recorded, requested) {
            (Value::Object(a), Value::Object(b)) => {
                let added = b.keys().filter(|key| !a.contains_key(*key));
                for key in a.keys().chain(added) {
                    self.compare_optional_values(&format!("{path}.{key}"), a.get(key), b.get(key));
                }
            }
            (Value::Array(a), Value::Array(b)) => {
                for at in 0..a.len().max(b.len()) {
                    self.compare_optional_values(&format!("{path}[{at}]"), a.get(at), b.get(at));
                }
            }
            (a, b) if a == b => self.same += 1,
            (a, b) => self.record_value_difference(path, a, b),
        }
    }

    fn compare_optional_values(&mut self, path: &str, recorded: Option<&Value>, requested: Option<&Value>) {
        let excerpt = |value: Option<&Value>| {
            value.map_or("nothing".into(), |value| excerpt_around(&value.to_string(), 0))
        };
        match (recorded, requested) {
            (Some(a), Some(b)) => self.compare_values(path, a, b),
            (a, b) => self.record_difference(path, &excerpt(a), &excerpt(b)),
        }
    }

    fn record_value_difference(&mut self, path: &str, recorded: &Value, requested: &Value) {
        let (Some(a), Some(b)) = (recorded.as_str(), requested.as_str()) else {
            let [a, b] = [recorded, requested].map(|value| excerpt_around(&value.to_string(), 0));
            return self.record_difference(path, &a, &b);
        };
        let common = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
        self.common += common;
        let path = format!("{path} from character {}", common + 1);
        self.record_difference(&path, &excerpt_around(a, common), &excerpt_around(b, common));
    }

    fn record_difference(&mut self, path: &str, recorded: &str, requested: &str) {
        self.different += 1;
        self.first.get_or_insert_with(|| format!("{path}: recorded {recorded}, requested {requested}"));
    }
}

/// Cuts an excerpt from a text that begins shortly before character `from`.
fn excerpt_around(text: &str, from: usize) -> String {
    let start = from.saturating_sub(EXCERPT_LENGTH / 3);
    let cut: String = text.chars().skip(start).take(EXCERPT_LENGTH).collect();
    format!("{}{cut:?}", if start > 0 { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Message;

    fn user_request(text: &str) -> Request {
        Request {
            system: String::new(),
            messages: vec![Message::User { text: text.into() }],
            tools: Vec::new(),
            answer: None,
            max_output_tokens: 1,
            ..Request::default()
        }
    }

    #[test]
    fn a_later_difference_means_more_similar() {
        let recorded =
            [user_request("far away"), user_request("the patents of 2024"), user_request("the others")];
        let near = find_most_similar_request(recorded.iter(), &user_request("the patents of 2025")).unwrap();
        let expected = "the most similar one is in line 2 and differs first in messages[0].text from character 19: recorded \
                        \"the patents of 2024\", requested \"the patents of 2025\"";
        assert_eq!(near, expected);
    }
}
