//! Errors of A2A, in both bindings.

use a2a::errordetails::{PROTOCOL_DOMAIN, TypedDetail};
use a2a::{A2AError, error_code, error_reason};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::problem::{Problem, ProblemKind};

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
