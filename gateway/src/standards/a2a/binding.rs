//! The parts of both bindings: errors, the sender of a request, and the names of fields. The JSON of Protocol Buffers allows two
//! names for each field of a request: `historyLength`, and `history_length` as in the definition. The types of A2A know the first one.

use a2a::errordetails::{PROTOCOL_DOMAIN, TypedDetail};
use a2a::{A2AError, VERSION, error_code, error_reason};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::problem::{Problem, ProblemKind};
use crate::standards::api::Operator;

/// The fields whose content is the client's own.
const FREE_FIELDS: [&str; 2] = ["metadata", "data"];

/// An error, with the status of the HTTP binding.
#[derive(Debug, Clone)]
pub struct A2aFault {
    pub error: A2AError,
    status: StatusCode,
}

impl From<A2AError> for A2aFault {
    fn from(error: A2AError) -> Self {
        let status = StatusCode::from_u16(error.http_status_code());
        Self { status: status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), error }
    }
}

impl From<Problem> for A2aFault {
    fn from(problem: Problem) -> Self {
        // The specification has no error for a push config that does not exist.
        let is_missing = [ProblemKind::RunNotFound, ProblemKind::RunDeleted, ProblemKind::PushConfigNotFound];
        let has_no_task = is_missing.into_iter().any(|kind| problem.is(kind));
        let code = match problem.status() {
            _ if has_no_task => error_code::TASK_NOT_FOUND,
            status if status.is_server_error() => error_code::INTERNAL_ERROR,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS => {
                error_code::INVALID_REQUEST
            }
            _ => error_code::INVALID_PARAMS,
        };
        let status = if has_no_task { StatusCode::NOT_FOUND } else { problem.status() };
        Self { status, error: A2AError::new(code, problem.detail()) }
    }
}

impl A2aFault {
    /// A mistake in a request.
    pub fn invalid(detail: impl Into<String>) -> Self {
        A2AError::invalid_params(detail).into()
    }
}

impl IntoResponse for A2aFault {
    fn into_response(self) -> Response {
        let status_name = match self.status {
            StatusCode::NOT_FOUND => "NOT_FOUND",
            StatusCode::UNAUTHORIZED => "UNAUTHENTICATED",
            StatusCode::FORBIDDEN => "PERMISSION_DENIED",
            StatusCode::TOO_MANY_REQUESTS => "RESOURCE_EXHAUSTED",
            StatusCode::SERVICE_UNAVAILABLE => "UNAVAILABLE",
            status if status.is_server_error() => "INTERNAL",
            _ => match self.error.code {
                error_code::INVALID_PARAMS | error_code::INVALID_REQUEST | error_code::PARSE_ERROR => {
                    "INVALID_ARGUMENT"
                }
                _ => "FAILED_PRECONDITION",
            },
        };
        let info = TypedDetail::error_info(error_reason(self.error.code), PROTOCOL_DOMAIN, None);
        let body = json!({ "error": {
            "code": self.status.as_u16(),
            "status": status_name,
            "message": self.error.message,
            "details": [info],
        } });
        let mut response = (self.status, body.to_string()).into_response();
        let media_type = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, media_type);
        response
    }
}

/// Returns the sender of a request.
pub fn operator_of(parts: &Parts) -> Result<Operator, A2aFault> {
    let version = parts.headers.get("a2a-version").and_then(|value| value.to_str().ok());
    match version.map(str::trim).filter(|version| !version.is_empty()) {
        Some(version) if version.split('.').next() != VERSION.split('.').next() => {
            Err(A2AError::version_not_supported(version).into())
        }
        Some(_) | None => Ok(Operator::of_request(parts)?),
    }
}

/// The id of the last event that a client that reconnects has received.
pub fn last_event_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    id.filter(|id| !id.is_empty()).map(str::to_owned)
}

/// Returns a request with the usual names of its fields.
pub fn with_usual_names(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut usual = Map::new();
            for (name, value) in fields {
                let value =
                    if FREE_FIELDS.contains(&name.as_str()) { value } else { with_usual_names(value) };
                usual.insert(usual_name(&name), value);
            }
            Value::Object(usual)
        }
        Value::Array(values) => values.into_iter().map(with_usual_names).collect(),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => other,
    }
}

pub fn usual_name(name: &str) -> String {
    let mut usual = String::with_capacity(name.len());
    let mut is_start = false;
    for c in name.chars() {
        match c {
            '_' => is_start = true,
            c if is_start => {
                usual.push(c.to_ascii_uppercase());
                is_start = false;
            }
            c => usual.push(c),
        }
    }
    usual
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_names_are_one_field_and_content_stays_as_it_is() {
        let request = json!({
            "history_length": 1, "pageSize": 2,
            "message": { "task_id": "a_b", "parts": [{ "data": { "max_tokens": 1 }, "media_type": "x" }],
                "metadata": { "my_key": 1 } },
        });
        let expected = json!({
            "historyLength": 1, "pageSize": 2,
            "message": { "taskId": "a_b", "parts": [{ "data": { "max_tokens": 1 }, "mediaType": "x" }],
                "metadata": { "my_key": 1 } },
        });
        assert_eq!(with_usual_names(request), expected);
    }
}
