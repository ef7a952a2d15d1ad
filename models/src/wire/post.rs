//! The request over HTTP. It sends a body and gives back what came: events, or one JSON value. It owns headers, limits
//! and the check that an answer is one; it must not know what the events mean.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::events::{self, Body, Broken, Events, MAX_REPLY, Start};
use super::secret::Secrets;
use super::{Endpoint, Wire, fault};
use crate::model::ModelError;

/// How much of an error's body is read, and how long it may take: its status says the most.
const MAX_ERROR: usize = 64 << 10;
const ERROR_PATIENCE: Duration = Duration::from_secs(5);

/// An answer with a status of success.
pub(super) enum Answer {
    /// It comes in events.
    Events(Events),
    /// It came in one piece.
    Whole(Value),
}

/// Sends requests of one endpoint.
pub(super) struct Post {
    client: reqwest::Client,
    url: String,
    headers: Result<HeaderMap, String>,
    by_line: bool,
    idle: Duration,
    pub(super) secrets: Secrets,
}

impl Post {
    pub(super) fn new(endpoint: &Endpoint) -> Self {
        Self {
            client: crate::http::client(),
            url: url(endpoint),
            headers: headers(endpoint),
            by_line: endpoint.wire == Wire::Ollama,
            idle: endpoint.settings.idle_timeout(),
            secrets: Secrets::of(endpoint),
        }
    }

    /// Sends a body. Errors are those of the connection, of the status, and of answers that are none.
    pub(super) async fn send(&self, body: Vec<u8>) -> Result<Answer, ModelError> {
        let headers = self.headers.clone().map_err(|message| ModelError::BadRequest { message })?;
        let request = self.client.post(&self.url).headers(headers).body(body);
        let answer = request.send().await.map_err(|error| fault::of_sending(&error, &self.secrets))?;
        if !answer.status().is_success() {
            return Err(self.refused(answer).await);
        }
        let kind = answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().to_ascii_lowercase();
        self.read(&kind, events::body(answer.bytes_stream())).await
    }

    async fn refused(&self, answer: reqwest::Response) -> ModelError {
        let (status, headers) = (answer.status(), answer.headers().clone());
        let body = events::whole(events::body(answer.bytes_stream()), MAX_ERROR);
        let body = tokio::time::timeout(ERROR_PATIENCE, body).await;
        let text = body.ok().and_then(Result::ok).unwrap_or_default();
        fault::of_answer(status, &headers, &text, &self.secrets)
    }

    /// What the answer is, by its first bytes: content types are missing or wrong too often to rest on them, and a
    /// page in place of an answer must not be taken for a stream without events.
    async fn read(&self, kind: &str, body: Body) -> Result<Answer, ModelError> {
        let (start, body) = events::peeked(body).await.map_err(|broken| self.broken(&broken, 0))?;
        // A model may think for long before its first word; one that has begun goes on or says why not.
        let body = events::awake(body, self.idle);
        match start {
            Start::Json if self.by_line => Ok(Answer::Events(events::lines(body))),
            Start::Json => self.value(body).await.map(Answer::Whole),
            Start::Event if !self.by_line => Ok(Answer::Events(events::server_sent(body))),
            Start::Nothing => Err(ModelError::Truncated { message: "the answer is empty".to_owned() }),
            Start::Page | Start::Event | Start::Other => {
                let text = events::whole(body, MAX_ERROR).await.map_err(|broken| self.broken(&broken, 0))?;
                Err(self.no_reply(kind, &text))
            }
        }
    }

    async fn value(&self, body: Body) -> Result<Value, ModelError> {
        let text = events::whole(body, MAX_REPLY).await.map_err(|broken| self.broken(&broken, 0))?;
        serde_json::from_str(text.trim_start_matches('\u{feff}')).map_err(|error| {
            if error.is_eof() {
                return ModelError::Truncated {
                    message: format!("the answer ends within its JSON: {error}"),
                };
            }
            self.no_reply("JSON that can't be read", &text)
        })
    }

    fn no_reply(&self, kind: &str, text: &str) -> ModelError {
        let kind = if kind.is_empty() { "no content type" } else { kind };
        let told = fault::Told::of(None, text);
        let text = format!("{kind}: {}; is the base URL right?", told.message);
        ModelError::Protocol { message: fault::shown(&text, &self.secrets) }
    }

    /// The error of a stream that broke after so many events.
    pub(super) fn broken(&self, broken: &Broken, after: usize) -> ModelError {
        let message = fault::shown(&format!("{broken} (after {after} events)"), &self.secrets);
        match broken {
            Broken::Cut(_) | Broken::Silent(_) => ModelError::Truncated { message },
            Broken::TooLong(..) | Broken::NotText(_) => ModelError::Protocol { message },
        }
    }

    /// The error of an event that is not JSON.
    pub(super) fn unreadable(&self, data: &str, error: &serde_json::Error) -> ModelError {
        let text = format!("an event is not JSON ({error}): {data}");
        ModelError::Protocol { message: fault::shown(&text, &self.secrets) }
    }
}

/// The address with the path that the wire adds.
fn url(endpoint: &Endpoint) -> String {
    let base = endpoint.base_url.trim().trim_end_matches('/');
    match endpoint.wire {
        Wire::OpenAiChat => format!("{base}/chat/completions"),
        Wire::OpenAiResponses => format!("{base}/responses"),
        Wire::Anthropic => format!("{}/v1/messages", base.trim_end_matches("/v1")),
        Wire::Ollama => format!("{}/api/chat", base.trim_end_matches("/v1").trim_end_matches("/api")),
    }
}

/// The headers of every request; those of the settings win.
fn headers(endpoint: &Endpoint) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if endpoint.wire == Wire::Anthropic {
        headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
    }
    if let Some((name, value)) = endpoint.key.as_ref().and_then(|key| credential(endpoint.wire, key)) {
        headers.insert(name, secret_value(name, &value)?);
    }
    for (name, value) in &endpoint.settings.extra_headers {
        let known = HeaderName::try_from(name).map_err(|_| format!("{name:?} is no name of a header"))?;
        headers.insert(known, secret_value(name, value)?);
    }
    Ok(headers)
}

fn credential(wire: Wire, key: &SecretString) -> Option<(&'static str, String)> {
    let key = key.expose_secret().trim();
    let header = match wire {
        Wire::Anthropic => ("x-api-key", key.to_owned()),
        Wire::OpenAiChat | Wire::OpenAiResponses | Wire::Ollama => ("authorization", format!("Bearer {key}")),
    };
    (!key.is_empty()).then_some(header)
}

fn secret_value(name: &str, value: &str) -> Result<HeaderValue, String> {
    let mut header = HeaderValue::from_str(value)
        .map_err(|_| format!("the value of the header {name} has letters that no header may have"))?;
    header.set_sensitive(true);
    Ok(header)
}
