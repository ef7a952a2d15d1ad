//! The operations of the API for clients of other protocols.

use axum::body::to_bytes;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use millrace_protocol::token::{Scope, ScopeSet};
use millrace_protocol::trace_context::TraceParent;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::access::Access;
use crate::extract::{IdempotencyKey, Json, Path, Query, parse_json};
use crate::idempotency::EarlyReply;
use crate::problem::{ApiResult, Problem, ProblemKind};
use crate::resources::files::{FileQuery, read_file};
use crate::resources::questions::{self, send_answer};
use crate::resources::runs;
use crate::resources::steering::{CommandQuery, Steering, steer};
use crate::resources::submission::{store_document, submit};

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
        let access = self.with(Scope::Submit)?;
        let key = IdempotencyKey::of_text(key)?;
        let body = parse_json(millrace_views::to_value(description).to_string().as_bytes())?;
        let mut stored = Vec::with_capacity(documents.len());
        for SubmittedDocument { path, content } in documents {
            stored.push(store_document(&access, path, &content).await?);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_of_paths_are_encoded() {
        assert_eq!(encode_path("notes/a b#1.md"), "notes/a%20b%231.md");
    }
}
