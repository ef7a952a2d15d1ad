//! The operations of the API for clients of other protocols.

use std::time::Duration;

use axum::body::to_bytes;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use millrace_protocol::plan::Document;
use millrace_protocol::token::{Scope, ScopeSet};
use millrace_protocol::trace_context::TraceParent;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::access::{Access, StreamPermit};
use crate::extract::{IdempotencyKey, Json, Path, Query, parse_json};
use crate::feed::{EventLevel, Frame};
use crate::idempotency::EarlyReply;
use crate::problem::{ApiResult, Problem, ProblemKind};
use crate::resources::events::{EventQuery, open_events};
use crate::resources::files::{FileQuery, read_file};
use crate::resources::questions::{self, send_answer};
use crate::resources::runs;
use crate::resources::steering::{CommandQuery, Steering, steer};
use crate::resources::submission::{SubmissionBody, store_document, submit};
use crate::resources::verifications::VerificationBody;

/// The maximum size of a reply.
const MAX_REPLY: usize = 32 * 1024 * 1024;

/// A caller of operations, who may use those of its scopes.
#[derive(Clone)]
pub struct Operator {
    access: Access,
    trace: Option<TraceParent>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubmittedDocument {
    /// The path under which agents see and cite it.
    pub path: String,
    pub content: Vec<u8>,
}

impl Operator {
    pub fn new(access: Access) -> Self {
        Self { access, trace: None }
    }

    /// Returns the sender of a request whose access was checked.
    pub fn of_request(parts: &Parts) -> Result<Self, Problem> {
        let access = parts.extensions.get::<Access>().cloned();
        let access =
            access.ok_or_else(|| Problem::new(ProblemKind::Unauthenticated, "there is no caller"))?;
        let trace = parts.headers.get("traceparent").and_then(|value| value.to_str().ok());
        Ok(Self::new(access).in_trace(trace.unwrap_or_default()))
    }

    /// Sets the trace of the next operations. A text that names none is ignored.
    #[must_use]
    pub fn in_trace(self, trace: &str) -> Self {
        Self { trace: trace.parse().ok().or(self.trace), ..self }
    }

    pub fn scopes(&self) -> &ScopeSet {
        &self.access.caller.scopes
    }

    /// Returns the access for an operation that needs a scope.
    pub fn with(&self, scope: Scope) -> Result<Access, Problem> {
        self.access.require(scope).map(|()| self.access.clone())
    }

    /// Submits a run with a description, as `POST /runs` has it, and returns its id. With a key, a repetition returns the same run.
    pub async fn submit_run(
        &self,
        description: &impl Serialize,
        documents: Vec<SubmittedDocument>,
        key: Option<&str>,
    ) -> Result<String, Problem> {
        self.submit_described(documents, key, |_| {
            parse_json(millrace_views::to_value(description).to_string().as_bytes())
        })
        .await
    }

    /// Submits the run of a verification, as `POST /verifications` does, and returns its id.
    pub async fn submit_verification(
        &self,
        body: VerificationBody,
        documents: Vec<SubmittedDocument>,
        key: Option<&str>,
    ) -> Result<String, Problem> {
        self.submit_described(documents, key, |stored| body.into_submission(stored)).await
    }

    async fn submit_described(
        &self,
        documents: Vec<SubmittedDocument>,
        key: Option<&str>,
        describe: impl FnOnce(&[Document]) -> Result<SubmissionBody, Problem>,
    ) -> Result<String, Problem> {
        let access = self.with(Scope::Submit)?;
        let key = IdempotencyKey::of_text(key)?;
        let mut stored = Vec::with_capacity(documents.len());
        for SubmittedDocument { path, content } in documents {
            stored.push(store_document(&access, path, &content).await?);
        }
        let body = describe(&stored)?;
        let submitted = submit(&access, (body, stored), key, self.trace).await;
        Ok(value_of::<SubmittedRun>(submitted).await?.run)
    }
}

#[derive(serde::Deserialize)]
struct SubmittedRun {
    run: String,
}

/// Returns the JSON of a reply.
pub async fn value_of<T: DeserializeOwned>(
    reply: Result<Response, impl Into<EarlyReply>>,
) -> Result<T, Problem> {
    let bytes = bytes_of(reply).await?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Problem::new(ProblemKind::UnreadableData, format!("unexpected reply: {error}")))
}

/// Returns the JSON of a reply, with the sequence of the log as of which it is.
pub async fn versioned_value_of<T: DeserializeOwned>(reply: ApiResult) -> Result<(T, u64), Problem> {
    let reply = reply?;
    let version = reply.headers().get(header::ETAG).and_then(|value| value.to_str().ok());
    let sequence = version.and_then(|version| version.trim_matches('"').parse().ok()).unwrap_or(0);
    Ok((value_of(Ok::<_, Problem>(reply)).await?, sequence))
}

pub async fn bytes_of(reply: Result<Response, impl Into<EarlyReply>>) -> Result<Vec<u8>, Problem> {
    let reply = reply.or_else(|early| early.into().into_result())?;
    let bytes = to_bytes(reply.into_body(), MAX_REPLY).await.map_err(|_| {
        Problem::new(ProblemKind::UnreadableData, format!("the reply has more than {MAX_REPLY} bytes"))
    })?;
    Ok(bytes.into())
}

/// Reads the report of a run as Markdown.
pub async fn read_report(operator: &Operator, run: &str) -> Result<String, Problem> {
    let access = operator.with(Scope::Read)?;
    let report = bytes_of(runs::read_report(access, Path(run.to_owned()), HeaderMap::new()).await).await?;
    Ok(String::from_utf8_lossy(&report).into_owned())
}

/// Reads the newest version of a file of a run.
pub async fn read_content(operator: &Operator, run: &str, path: &str) -> Result<Vec<u8>, Problem> {
    let (place, query) = ((run.to_owned(), path.to_owned()), Query(FileQuery::default()));
    let access = operator.with(Scope::Read)?;
    bytes_of(read_file(access, Path(place), query, HeaderMap::new()).await).await
}

pub async fn read_question<T: DeserializeOwned>(operator: &Operator, id: &str) -> Result<T, Problem> {
    value_of(questions::read_question(operator.with(Scope::Read)?, Path(id.to_owned())).await).await
}

/// Answers a question with a body as `POST /questions/{question}` has it.
pub async fn answer_question(operator: &Operator, id: &str, answer: &Value) -> Result<(), Problem> {
    let answer = Json(parse_json(answer.to_string().as_bytes())?);
    send_answer(operator.with(Scope::Answer)?, Path(id.to_owned()), answer).await.map(drop)
}

/// Sends a command to a run, and waits for the decision on it. With a key, a repetition is applied once.
pub async fn steer_run(
    operator: &Operator,
    run: &str,
    steering: Steering,
    key: Option<&str>,
) -> Result<(), Problem> {
    let key = IdempotencyKey::of_text(key)?;
    let steered =
        steer(&operator.with(Scope::Steer)?, (run, None), steering, (key, CommandQuery::default())).await;
    steered.or_else(EarlyReply::into_result).map(drop)
}

pub fn encode_path(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// The time in which further events belong to a batch, after its first one.
const BATCH_TIME: Duration = Duration::from_millis(200);
/// The longest data of an event for a model, in bytes: prompts and replies of agents are much longer.
const MAX_DATA: usize = 4_000;

/// An event of a run, or a notice of its stream.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RunEvent {
    /// The position in the log, such as `17.0`; absent for notices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name, such as `task_completed`.
    pub name: String,
    /// The event.
    pub data: Value,
}

impl RunEvent {
    /// `true` if the stream ends with it, because the run has ended.
    pub fn is_end(&self) -> bool {
        self.id.is_none() && self.name == "end"
    }

    /// Returns the event with at most some thousand bytes of data.
    pub fn shortened(mut self) -> Self {
        let text = self.data.to_string();
        if text.len() > MAX_DATA {
            let cut = text.floor_char_boundary(MAX_DATA);
            self.data = json!({ "cut_to": MAX_DATA, "of_bytes": text.len(), "text": &text[..cut] });
        }
        self
    }
}

/// A stream of the events of a run.
pub struct RunEvents {
    frames: mpsc::Receiver<Frame>,
    _permit: StreamPermit,
}

impl RunEvents {
    /// Opens the stream after a position: an event's id, or a sequence; empty is the beginning.
    pub async fn open(
        operator: &Operator,
        run: &str,
        after: &str,
        level: EventLevel,
    ) -> Result<Self, Problem> {
        let query = EventQuery { after: Some(after.to_owned()), level, ..EventQuery::default() };
        let (frames, permit) = open_events(&operator.with(Scope::Read)?, run, query).await?;
        Ok(Self { frames, _permit: permit })
    }

    /// Returns the next event; `None` after the end of the stream.
    pub async fn next_event(&mut self) -> Option<RunEvent> {
        loop {
            if let Frame::Event { id, name, data } = self.frames.recv().await? {
                return Some(RunEvent { id, name, data: serde_json::from_slice(&data).ok()? });
            }
        }
    }

    /// Returns the events up to the end of the run, `limit` events, or a pause after the first one. Waits for the first one
    /// until the deadline.
    pub async fn read_batch(&mut self, limit: usize, deadline: Instant) -> Vec<RunEvent> {
        let (mut events, mut until) = (Vec::new(), deadline);
        while events.len() < limit {
            let Ok(Some(event)) = timeout_at(until, self.next_event()).await else { break };
            let is_end = event.is_end();
            events.push(event);
            if is_end {
                break;
            }
            until = Instant::now() + BATCH_TIME;
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_of_paths_are_encoded() {
        assert_eq!(encode_path("notes/a b#1.md"), "notes/a%20b%231.md");
    }
}

#[cfg(test)]
mod events_tests {
    use super::*;

    #[test]
    fn long_data_is_cut() {
        let event =
            RunEvent { id: None, name: "step".into(), data: json!({ "text": "ä".repeat(MAX_DATA) }) };
        let event = event.shortened();
        assert!(event.data.to_string().len() < MAX_DATA + 200, "{}", event.data.to_string().len());
        assert_eq!(event.data["cut_to"], MAX_DATA);
    }
}
