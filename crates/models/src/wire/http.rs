//! Sends a request over HTTP and returns the response body: events, or one JSON value. It owns headers, size limits and
//! the check that the body is a response at all; it does not interpret events.

use std::time::Duration;

use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::secrets::{SecretRedactor, redact_text, remember_secrets};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use secrecy::ExposeSecret;
use serde_json::Value;

use super::endpoint::{Framing, ModelEndpoint, WireApi, WireProtocol};

use super::error::{self, Failure};
use super::events::{self, BodyFormat, ByteStream, EventStream, MAX_REPLY_BYTES, StreamError};

use crate::model::ModelError;

/// Size limit and timeout for reading the body of an error response: its status is what matters most.
const MAX_ERROR_BODY: usize = 64 << 10;
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) enum ResponseBody {
    EventStream(EventStream),
    Json(Value),
}

pub(super) struct HttpSender {
    client: reqwest::Client,
    url: String,
    headers: Result<HeaderMap, String>,
    framing: Framing,
    idle: Duration,
    pub(super) redactor: SecretRedactor,
}

impl HttpSender {
    /// Returns the sender of requests for embeddings; `None` if the API has none. Their response is one JSON value.
    pub(super) fn for_embeddings(endpoint: &ModelEndpoint, api: &WireApi) -> Option<Self> {
        let url = api.embeddings_url?(endpoint.base_url.trim().trim_end_matches('/'));
        Some(Self { url, framing: Framing::Sse, ..Self::new(endpoint, api) })
    }

    pub(super) fn new(endpoint: &ModelEndpoint, api: &WireApi) -> Self {
        let secrets = endpoint.secrets();
        remember_secrets(&secrets);
        Self {
            client: crate::http_client::shared_client(),
            url: (api.url)(endpoint, endpoint.base_url.trim().trim_end_matches('/')),
            headers: build_request_headers(endpoint, api),
            framing: api.framing,
            idle: endpoint.settings.idle_timeout(),
            redactor: secrets,
        }
    }

    /// Sends a request body. Fails if there is no connection, on an error status, and on an unexpected body.
    pub(super) async fn send_request(&self, body: Vec<u8>) -> Result<ResponseBody, Failure> {
        let headers = self.headers.clone().map_err(ModelError::bad_request)?;
        let request = self.client.post(&self.url).headers(headers).body(body);
        let response = request
            .send()
            .await
            .map_err(|error| error::model_error_from_send_error(&error, &self.redactor))?;
        if !response.status().is_success() {
            return Err(self.error_from_response(response).await);
        }
        let content_type =
            response.headers().get(CONTENT_TYPE).and_then(|content_type| content_type.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_ascii_lowercase();
        Ok(self.read_response_body(&content_type, events::limit_body_size(response.bytes_stream())).await?)
    }

    async fn error_from_response(&self, response: reqwest::Response) -> Failure {
        let (status, headers) = (response.status(), response.headers().clone());
        let body =
            events::read_body_as_text(events::limit_body_size(response.bytes_stream()), MAX_ERROR_BODY);
        let body = tokio::time::timeout(ERROR_BODY_TIMEOUT, body).await;
        let text = body.ok().and_then(Result::ok).unwrap_or_default();
        Failure {
            error: error::model_error_from_response(status, &headers, &text, &self.redactor),
            answer: Some(error::ProviderError::from_text(Some(status.as_u16()), &text)),
        }
    }

    /// Detects the kind of body by its first bytes: content types are often missing or wrong, and an HTML page must not be
    /// mistaken for a stream without events.
    async fn read_response_body(
        &self,
        content_type: &str,
        body: ByteStream,
    ) -> Result<ResponseBody, ModelError> {
        let broken = |error| self.broken_stream_error(&error, 0);
        let (start, body) = events::detect_body_format(body).await.map_err(broken)?;
        // A model may think for long before its first token, so the idle timeout begins with the first byte.
        let body = events::apply_idle_timeout(body, self.idle);
        let event_stream = |events| ResponseBody::EventStream(events::join_split_characters(events));
        match (start, self.framing) {
            (BodyFormat::Json, Framing::JsonLines) => Ok(event_stream(events::parse_json_lines(body))),
            (BodyFormat::Json, Framing::Sse | Framing::Frames) => {
                self.parse_json_body(body).await.map(ResponseBody::Json)
            }
            (BodyFormat::Event, Framing::Sse) => Ok(event_stream(events::parse_sse_events(body))),
            (BodyFormat::Frame, Framing::Frames) => Ok(event_stream(events::parse_frames(body))),
            (BodyFormat::Empty, _) => {
                Err(ModelError::Truncated { message: "the response is empty".to_owned() })
            }
            // Anything but events comes from a gateway or a server that is starting, which may answer properly later; events come from a
            // provider with another API.
            (BodyFormat::Page | BodyFormat::Other | BodyFormat::Frame | BodyFormat::Event, _) => {
                let text = events::read_body_as_text(body, MAX_ERROR_BODY).await.map_err(broken)?;
                let message = self.describe_unexpected_body(content_type, &text);
                match start == BodyFormat::Event {
                    true => Err(ModelError::Protocol { message }),
                    false => Err(ModelError::Truncated { message }),
                }
            }
        }
    }

    async fn parse_json_body(&self, body: ByteStream) -> Result<Value, ModelError> {
        let text = events::read_body_as_text(body, MAX_REPLY_BYTES).await;
        let text = text.map_err(|error| self.broken_stream_error(&error, 0))?;
        let text = redact_text(&text);
        // A proxy in front of a provider that is away may answer with anything: a body that is not JSON is an outage.
        parse_foreign_json(text.as_bytes()).map_err(|mistake| ModelError::Truncated {
            message: self.describe_invalid_json("the response", &text, &mistake),
        })
    }

    fn describe_unexpected_body(&self, content_type: &str, text: &str) -> String {
        let content_type = if content_type.is_empty() { "no content type" } else { content_type };
        let provider_error = error::ProviderError::from_text(None, text);
        let text = format!("{content_type}: {}; is the base URL right?", provider_error.message);
        error::redact_and_cut(&text, &self.redactor)
    }

    /// Converts the error of a stream that broke after a number of events.
    pub(super) fn broken_stream_error(&self, stream_error: &StreamError, events_before: usize) -> ModelError {
        let message =
            error::redact_and_cut(&format!("{stream_error} (after {events_before} events)"), &self.redactor);
        match stream_error {
            StreamError::Disconnected(_) | StreamError::IdleTimeout(_) | StreamError::BadFrame(_) => {
                ModelError::Truncated { message }
            }
            StreamError::NotUtf8(_) | StreamError::TooLong(..) => ModelError::Protocol { message },
        }
    }

    /// Returns the error for an event that is not JSON. JSON that ends early was cut, and text comes from a gateway: both may be
    /// better next time. Anything else is what the provider means to send, and a retry would cost the tokens again.
    pub(super) fn invalid_event_error(&self, data: &str, error: &serde_json::Error) -> ModelError {
        let message = self.describe_invalid_json("an event", data, error);
        match error.is_eof() || !data.trim_start().starts_with(['{', '[']) {
            true => ModelError::Truncated { message },
            false => ModelError::Protocol { message },
        }
    }

    fn describe_invalid_json(&self, what: &str, data: &str, error: &serde_json::Error) -> String {
        error::redact_and_cut(&format!("{what} is not JSON ({error}): {data}"), &self.redactor)
    }
}

/// Returns the headers of every request; those of the settings take precedence.
fn build_request_headers(endpoint: &ModelEndpoint, api: &WireApi) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(accept) = endpoint.dialect.accept {
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
    }
    if endpoint.wire == WireProtocol::Anthropic && !endpoint.dialect.is_vertex {
        headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
    }
    let key = endpoint.key.as_ref().map(|key| key.expose_secret().trim()).filter(|key| !key.is_empty());
    if let Some(key) = key {
        let (name, value) = match api.key_header {
            Some(name) if !endpoint.dialect.is_vertex => (name, key.to_owned()),
            Some(_) | None => ("authorization", format!("Bearer {key}")),
        };
        headers.insert(name, sensitive_header_value(name, &value)?);
    }
    for (name, value) in &endpoint.settings.extra_headers {
        let header =
            HeaderName::try_from(name).map_err(|_| format!("{name:?} is not a valid header name"))?;
        headers.insert(header, sensitive_header_value(name, value)?);
    }
    Ok(headers)
}

fn sensitive_header_value(name: &str, value: &str) -> Result<HeaderValue, String> {
    let mut header = HeaderValue::from_str(value).map_err(|_| {
        format!("the value of the header {name} contains characters that are not allowed in headers")
    })?;
    header.set_sensitive(true);
    Ok(header)
}
