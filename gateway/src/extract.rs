//! Parts of requests, with problem details for malformed ones.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{self, FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use millrace_protocol::foreign_json::{mend_halves, plain_json_error};
use millrace_protocol::trace_context::TraceParent;
use serde::de::DeserializeOwned;

use crate::problem::{Mistake, Problem, ProblemKind};

/// The time in which a body of JSON must arrive.
const BODY_TIME: Duration = Duration::from_secs(20);
/// The longest idempotency key in bytes.
const MAX_KEY: usize = 256;

pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(extract::Path(value)) => Ok(Self(value)),
            Err(error) => Err(Problem::invalid(error.body_text())),
        }
    }
}

pub struct Query<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match extract::Query::<T>::from_request_parts(parts, state).await {
            Ok(extract::Query(value)) => Ok(Self(value)),
            Err(error) => Err(Problem::invalid(error.body_text())),
        }
    }
}

/// The header with the key of a request.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The key by which a repetition of a request is recognised; `None` if the client gives none.
pub struct IdempotencyKey(pub Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let Some(value) = parts.headers.get(IDEMPOTENCY_KEY) else { return Ok(Self(None)) };
        Self::parse(value.to_str().ok())
    }
}

impl IdempotencyKey {
    /// Checks the key of a client, if it gives one.
    pub fn of_text(key: Option<&str>) -> Result<Self, Problem> {
        key.map_or(Ok(Self(None)), |key| Self::parse(Some(key)))
    }

    /// Checks a key; `None` stands for one that is no text.
    fn parse(key: Option<&str>) -> Result<Self, Problem> {
        let is_valid = |key: &&str| {
            (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
        };
        match key.map(str::trim).filter(is_valid) {
            Some(key) => Ok(Self(Some(key.to_owned()))),
            None => Err(Problem::invalid(format!(
                "the header Idempotency-Key must have 1 to {MAX_KEY} printable ASCII characters"
            ))),
        }
    }
}

/// The span of the client, by the header `traceparent`. A value that is none is ignored, as the standard demands.
pub struct ClientTrace(pub Option<TraceParent>);

impl<S: Send + Sync> FromRequestParts<S> for ClientTrace {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let header = parts.headers.get("traceparent").and_then(|value| value.to_str().ok());
        Ok(Self(header.and_then(|value| value.parse().ok())))
    }
}

pub struct Json<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        parse_json(&read_json(request, false).await?).map(Self)
    }
}

/// A body of JSON that may be absent, which is the same as `{}`.
pub struct OptionalJson<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for OptionalJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        parse_json(&read_json(request, true).await?).map(Self)
    }
}

/// Reads a body of JSON. One that is absent is the same as `{}` if it is optional.
pub async fn read_json(request: Request, is_optional: bool) -> Result<Bytes, Problem> {
    let headers = request.headers().clone();
    let is_declared = !is_optional || headers.contains_key(header::CONTENT_TYPE);
    if is_declared {
        require_json(&headers)?;
    }
    let bytes = read_body(request).await?;
    match (is_declared, bytes.is_empty()) {
        (false, true) => Ok(Bytes::from_static(b"{}")),
        (false, false) => require_json(&headers).map(|()| bytes),
        (true, _) => Ok(bytes),
    }
}

/// Refuses a body that is not declared as JSON. A form of another site can't declare that.
fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let media_type = media_type(headers);
    if media_type.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Problem::new(
        ProblemKind::UnsupportedMediaType,
        format!("the body must have the Content-Type application/json, not {media_type:?}"),
    ))
}

/// Returns the media type of a body without its parameters; empty if it has none.
pub fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// Parses an object of JSON, and names the field of a mistake.
pub fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let bytes = mend_halves(bytes);
    // A list of the fields' values would be read as the object.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(Problem::invalid("the body is no object of JSON: it must begin with {"));
    }
    let mut input = serde_json::Deserializer::from_slice(&bytes);
    let parsed = serde_path_to_error::deserialize(&mut input).map_err(|error| {
        let pointer = error.path().to_string();
        (if pointer == "." { String::new() } else { pointer }, error.into_inner())
    });
    let ended = parsed.and_then(|value| input.end().map(|()| value).map_err(|error| (String::new(), error)));
    ended.map_err(|(pointer, error)| {
        let message = plain_json_error(&error.to_string());
        let place = if pointer.is_empty() { String::new() } else { format!("{pointer}: ") };
        Problem::invalid(format!("the body is invalid: {place}{message}"))
            .with_mistakes(vec![Mistake { pointer, message }])
    })
}

/// Reads a whole body, which must arrive in time.
async fn read_body(request: Request) -> Result<Bytes, Problem> {
    within_time(BODY_TIME, Bytes::from_request(request, &())).await?.map_err(body_problem)
}

/// Waits for a part of a request.
pub async fn within_time<T>(limit: Duration, part: impl Future<Output = T>) -> Result<T, Problem> {
    tokio::time::timeout(limit, part).await.map_err(|_| {
        Problem::new(
            ProblemKind::RequestTimeout,
            format!("the body did not arrive within {} s", limit.as_secs()),
        )
    })
}

fn body_problem(rejection: BytesRejection) -> Problem {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            Problem::new(ProblemKind::BodyTooLarge, "the body is larger than this resource accepts")
        }
        _ => Problem::invalid(rejection.body_text()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn bodies_may_have_a_byte_order_mark_and_halves_of_characters() {
        for body in
            [&b"\xEF\xBB\xBF{\"a\": \"\\ud83d\"}"[..], b" {\"a\": \"\\ud83d\"}", b"{\"a\": \"\xED\xA0\xBD\"}"]
        {
            assert_eq!(parse_json::<Value>(body).ok(), Some(json!({"a": "\u{fffd}"})));
        }
        assert!(parse_json::<Value>(b"\xEF\xBB\xBF[1]").is_err());
    }
}
