//! Requests to the API within this process.

use std::fmt;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::ServiceExt;

use crate::access::{PeerAddress, TENANT_HEADER};
use crate::openapi::API_ROOT;
use crate::problem::{ProblemKind, TYPE_PREFIX};

/// The maximum size of a reply, except of event streams.
const MAX_REPLY: usize = 32 * 1024 * 1024;
/// The headers of a client's request that say who sends it, for which tenant, from where, and in which trace.
const CREDENTIALS: [HeaderName; 8] = [
    header::HOST,
    header::AUTHORIZATION,
    header::COOKIE,
    HeaderName::from_static(TENANT_HEADER),
    header::ORIGIN,
    HeaderName::from_static("sec-fetch-site"),
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("traceparent"),
];

/// The API, with the credentials of a client.
#[derive(Clone)]
pub struct ApiClient {
    api: Router,
    headers: HeaderMap,
    peer: Option<PeerAddress>,
}

/// A request was refused, or failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiProblem {
    /// The status.
    pub status: StatusCode,
    /// The kind, as `docs/api.md` lists them, such as `run-not-found`.
    pub kind: String,
    /// The mistake, its place and the remedy.
    pub detail: String,
}

impl fmt::Display for ApiProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl ApiProblem {
    /// `true` if it is of this kind.
    pub fn is(&self, kind: ProblemKind) -> bool {
        self.kind == kind.parts().1
    }

    fn internal(detail: impl fmt::Display) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self { status, kind: "internal".into(), detail: detail.to_string() }
    }

    /// Creates a problem with the client's request.
    pub fn invalid(detail: impl fmt::Display) -> Self {
        let (status, kind, _) = ProblemKind::InvalidRequest.parts();
        Self { status, kind: kind.into(), detail: detail.to_string() }
    }
}

impl ApiClient {
    /// Returns the API as the sender of a request may use it.
    pub fn for_request(api: Router, parts: &Parts) -> Self {
        let mut headers = HeaderMap::new();
        for name in CREDENTIALS {
            for value in parts.headers.get_all(&name) {
                headers.append(name.clone(), value.clone());
            }
        }
        Self { api, headers, peer: parts.extensions.get::<PeerAddress>().copied() }
    }

    /// Returns the API as the user may use it who has started this process.
    pub fn for_local_user(api: Router) -> Self {
        let host = HeaderValue::from_static("localhost");
        Self { api, headers: HeaderMap::from_iter([(header::HOST, host)]), peer: None }
    }

    /// Sets the trace of the next requests. A text that no header can have is ignored.
    #[must_use]
    pub fn in_trace(mut self, trace_parent: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(trace_parent) {
            self.headers.insert(HeaderName::from_static("traceparent"), value);
        }
        self
    }

    /// Reads a resource as JSON.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiProblem> {
        parse(&self.get_bytes(path).await?)
    }

    /// Reads a resource as JSON, with the sequence of the log as of which it is.
    pub async fn get_versioned<T: DeserializeOwned>(&self, path: &str) -> Result<(T, u64), ApiProblem> {
        let response = self.send(self.request(Method::GET, path, Body::empty())?).await?;
        let version = response.headers().get(header::ETAG).and_then(|value| value.to_str().ok());
        let sequence = version.and_then(|version| version.trim_matches('"').parse().ok()).unwrap_or(0);
        Ok((parse(&read_body(response).await?)?, sequence))
    }

    /// Reads a resource as text, Markdown if there is a choice.
    pub async fn get_text(&self, path: &str) -> Result<String, ApiProblem> {
        let bytes = self.get_bytes(path).await?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| {
            // A file of an agent may have any bytes.
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        }))
    }

    /// Reads a resource as it is.
    pub async fn get_bytes(&self, path: &str) -> Result<Vec<u8>, ApiProblem> {
        let response = self.send(self.request(Method::GET, path, Body::empty())?).await?;
        read_body(response).await
    }

    /// Opens a resource that is a stream of events.
    pub async fn open_stream(&self, path: &str) -> Result<Body, ApiProblem> {
        Ok(self.send(self.request(Method::GET, path, Body::empty())?).await?.into_body())
    }

    /// Sends a change as JSON.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ApiProblem> {
        let body = serde_json::to_vec(body).map_err(ApiProblem::internal)?;
        self.post_bytes(path, "application/json", body, None).await
    }

    /// Sends a change. A repetition with the same key returns the result of the first one.
    pub async fn post_bytes<T: DeserializeOwned>(
        &self,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
        key: Option<&str>,
    ) -> Result<T, ApiProblem> {
        let mut request = self.request(Method::POST, path, Body::from(body))?;
        let content_type = HeaderValue::from_str(content_type).map_err(ApiProblem::internal)?;
        request.headers_mut().insert(header::CONTENT_TYPE, content_type);
        if let Some(key) = key {
            let key = HeaderValue::from_str(key);
            let key = key.map_err(|_| ApiProblem::invalid("the key must have printable ASCII characters"))?;
            request.headers_mut().insert(HeaderName::from_static("idempotency-key"), key);
        }
        parse(&read_body(self.send(request).await?).await?)
    }

    /// Deletes a resource, and returns what it was.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiProblem> {
        let response = self.send(self.request(Method::DELETE, path, Body::empty())?).await?;
        parse(&read_body(response).await?)
    }

    fn request(&self, method: Method, path: &str, body: Body) -> Result<Request<Body>, ApiProblem> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = format!("{API_ROOT}{path}").parse().map_err(ApiProblem::internal)?;
        *request.headers_mut() = self.headers.clone();
        let accept = HeaderValue::from_static("text/markdown, */*;q=0.5");
        request.headers_mut().insert(header::ACCEPT, accept);
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
        Ok(request)
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, ApiProblem> {
        let response = self.api.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = read_body(response).await?;
        let problem: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let detail = problem["detail"].as_str().map_or_else(|| status.to_string(), str::to_owned);
        let kind = problem["type"].as_str().and_then(|uri| uri.strip_prefix(TYPE_PREFIX)).unwrap_or_default();
        Err(ApiProblem { status, kind: kind.to_owned(), detail })
    }
}

async fn read_body(response: Response<Body>) -> Result<Vec<u8>, ApiProblem> {
    let bytes = to_bytes(response.into_body(), MAX_REPLY).await;
    let bytes =
        bytes.map_err(|_| ApiProblem::internal(format!("the reply has more than {MAX_REPLY} bytes")))?;
    Ok(bytes.into())
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiProblem> {
    serde_json::from_slice(bytes)
        .map_err(|error| ApiProblem::internal(format!("unexpected reply of the API: {error}")))
}

/// Encodes a text as one part of a path.
pub fn encode_part(text: &str) -> String {
    encode(text, |byte| byte == b'/')
}

/// Encodes a path with slashes.
pub fn encode_path(text: &str) -> String {
    encode(text, |_| false)
}

fn encode(text: &str, is_special: impl Fn(u8) -> bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/'
                if !is_special(byte) =>
            {
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
    fn names_of_clients_stay_in_their_part_of_a_path() {
        assert_eq!(encode_part("a/b?c=ä"), "a%2Fb%3Fc%3D%C3%A4");
        assert_eq!(encode_path("notes/a b#1.md"), "notes/a%20b%231.md");
    }
}
