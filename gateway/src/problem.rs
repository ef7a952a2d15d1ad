//! Errors of the API: problem details (RFC 9457). `docs/api.md` lists the types.

use std::fmt;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use millrace_runtime::Fault;
use schemars::JsonSchema;
use serde::Serialize;

pub const MEDIA_TYPE: &str = "application/problem+json";
pub const TYPE_PREFIX: &str = "urn:millrace:problem:";
/// The seconds after which a client may repeat a request that failed because the cluster does not respond, or because of a limit.
const RETRY_AFTER: &str = "1";
/// The seconds after which a client may submit a run again that found as many waiting runs as allowed.
const RETRY_AFTER_FULL: &str = "5";

macro_rules! problem_kinds {
    ($($(#[$doc:meta])* $kind:ident = $status:ident, $name:literal, $title:literal;)*) => {
        /// The kinds of problems. Each has a `type`, a status and a title, which never change.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ProblemKind {
            $($(#[$doc])* $kind,)*
        }

        impl ProblemKind {
            /// All kinds, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The status, the last part of the `type`, and the title.
            #[must_use]
            pub const fn parts(self) -> (StatusCode, &'static str, &'static str) {
                match self {
                    $(Self::$kind => (StatusCode::$status, $name, $title),)*
                }
            }
        }
    };
}
problem_kinds! {
    /// The path, the query, a header or the body is malformed.
    InvalidRequest = BAD_REQUEST, "invalid-request", "The request is malformed";
    /// The `Host` of the request is not one of this server.
    UnknownHost = MISDIRECTED_REQUEST, "unknown-host", "The host is not one of this server";
    /// The request comes from a web page of another origin.
    CrossOrigin = FORBIDDEN, "cross-origin", "Requests of other origins are refused";
    /// The request does not say who sends it.
    Unauthenticated = UNAUTHORIZED, "unauthenticated", "The request needs a valid token";
    /// The token is for several tenants, and the request chooses none.
    TenantNotChosen = BAD_REQUEST, "tenant-not-chosen", "The request must choose a tenant";
    /// The caller lacks the scope of the operation.
    ScopeMissing = FORBIDDEN, "scope-missing", "The token lacks a scope";
    /// There is no such resource path.
    UnknownPath = NOT_FOUND, "unknown-path", "There is no such resource";
    /// The resource does not have this method.
    MethodNotAllowed = METHOD_NOT_ALLOWED, "method-not-allowed", "The resource has no such method";
    /// None of the accepted media types is available.
    NotAcceptable = NOT_ACCEPTABLE, "not-acceptable", "No accepted media type is available";
    /// The body has another media type than the resource needs.
    UnsupportedMediaType = UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", "The body has the wrong media type";
    BodyTooLarge = PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large";
    /// The content has no such range.
    RangeNotSatisfiable = RANGE_NOT_SATISFIABLE, "range-not-satisfiable", "The content has no such range";
    /// The body did not arrive in time.
    RequestTimeout = REQUEST_TIMEOUT, "request-timeout", "The request did not arrive in time";
    RunNotFound = NOT_FOUND, "run-not-found", "There is no such run";
    SessionNotFound = NOT_FOUND, "session-not-found", "There is no such session";
    /// The run has no such task.
    TaskNotFound = NOT_FOUND, "task-not-found", "The run has no such task";
    QuestionNotFound = NOT_FOUND, "question-not-found", "There is no such question";
    /// There is no such file, or version of it.
    FileNotFound = NOT_FOUND, "file-not-found", "There is no such file";
    BlobNotFound = NOT_FOUND, "blob-not-found", "There is no such blob";
    /// There is no such source, or its text is gone.
    SourceNotFound = NOT_FOUND, "source-not-found", "There is no such source";
    /// There is no such rate limit.
    LimitNotFound = NOT_FOUND, "limit-not-found", "There is no such rate limit";
    TokenNotFound = NOT_FOUND, "token-not-found", "There is no such token";
    TooManyTokens = CONFLICT, "too-many-tokens", "There are too many tokens";
    WebhookNotFound = NOT_FOUND, "webhook-not-found", "There is no such webhook";
    /// The webhook has no such delivery.
    DeliveryNotFound = NOT_FOUND, "delivery-not-found", "There is no such delivery";
    TooManyWebhooks = CONFLICT, "too-many-webhooks", "There are too many webhooks";
    WebhookDisabled = CONFLICT, "webhook-disabled", "The webhook is disabled";
    /// The run has no such push config.
    PushConfigNotFound = NOT_FOUND, "push-config-not-found", "The run has no such push config";
    /// The run has too many push configs.
    TooManyPushConfigs = CONFLICT, "too-many-push-configs", "The run has too many push configs";
    /// The caller has sent too many requests.
    RateLimited = TOO_MANY_REQUESTS, "rate-limited", "There were too many requests";
    /// The caller has too many open streams.
    TooManyStreams = TOO_MANY_REQUESTS, "too-many-streams", "There are too many open streams";
    /// As many runs as allowed wait for a place.
    TooManyRuns = TOO_MANY_REQUESTS, "too-many-runs", "As many runs as allowed wait for a place";
    RunDeleted = GONE, "run-deleted", "The run was deleted";
    RetentionRuleNotFound = NOT_FOUND, "retention-rule-not-found", "There is no such retention rule";
    NoDeliverable = NOT_FOUND, "no-deliverable", "The run has no deliverable";
    /// The description of the run, its plan or its budget is invalid.
    InvalidRun = UNPROCESSABLE_ENTITY, "invalid-run", "The run can't be submitted";
    /// The idempotency key was used for another request.
    KeyReused = UNPROCESSABLE_ENTITY, "idempotency-key-reused", "The idempotency key names another request";
    CommandRefused = CONFLICT, "command-refused", "The supervisor refused the command";
    /// The answer does not fit its question.
    AnswerRefused = CONFLICT, "answer-refused", "The answer does not fit its question";
    QuestionClosed = CONFLICT, "question-closed", "The question is closed";
    RunNotEnded = CONFLICT, "run-not-ended", "The run has not ended";
    /// The log of the run is damaged.
    LogDamaged = CONFLICT, "log-damaged", "The log of the run is damaged";
    /// The identity provider does not respond.
    ProviderUnavailable = SERVICE_UNAVAILABLE, "identity-provider-unavailable", "The identity provider does not respond";
    ClusterUnavailable = SERVICE_UNAVAILABLE, "cluster-unavailable", "The cluster does not respond";
    /// The store of the cluster is full.
    StoreFull = INSUFFICIENT_STORAGE, "store-full", "The store of the cluster is full";
    /// The gateway has no permission for this.
    GatewayForbidden = BAD_GATEWAY, "gateway-forbidden", "The gateway has no permission for this in the cluster";
    /// A stored value is damaged, or of a newer release.
    UnreadableData = BAD_GATEWAY, "unreadable-data", "Stored data can't be read";
}

/// The reply of an operation.
pub type ApiResult = Result<Response, Problem>;

/// An error of the API: problem details as in RFC 9457.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Problem {
    /// The kind of the problem: `urn:millrace:problem:` and a name that never changes.
    #[serde(rename = "type")]
    uri: String,
    /// The kind in a sentence.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// This problem: the mistake, its place and the remedy.
    detail: String,
    /// The mistakes, if there are several or their places are known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<Mistake>,
    #[serde(skip)]
    #[schemars(skip)]
    code: StatusCode,
    /// The seconds after which the client may repeat the request, if the problem is a temporary one.
    #[serde(skip)]
    #[schemars(skip)]
    retry_after: &'static str,
}

/// A mistake in a request.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Mistake {
    /// The place in the body, as a path of field names; empty for the body as a whole.
    pub pointer: String,
    /// The mistake.
    pub message: String,
}

impl Problem {
    /// Creates a problem. `detail` is the mistake, its place and the remedy.
    pub fn new(kind: ProblemKind, detail: impl fmt::Display) -> Self {
        let (code, name, title) = kind.parts();
        Self {
            uri: format!("{TYPE_PREFIX}{name}"),
            title,
            status: code.as_u16(),
            detail: detail.to_string(),
            errors: Vec::new(),
            code,
            retry_after: if kind == ProblemKind::TooManyRuns { RETRY_AFTER_FULL } else { RETRY_AFTER },
        }
    }

    /// Creates a problem with the client's request.
    pub fn invalid(detail: impl fmt::Display) -> Self {
        Self::new(ProblemKind::InvalidRequest, detail)
    }

    pub fn is(&self, kind: ProblemKind) -> bool {
        self.uri.strip_prefix(TYPE_PREFIX) == Some(kind.parts().1)
    }

    pub fn status(&self) -> StatusCode {
        self.code
    }

    /// Returns the mistake, its place and the remedy.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    #[must_use]
    pub fn with_mistakes(self, errors: Vec<Mistake>) -> Self {
        Self { errors, ..self }
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        let kind = match &fault {
            Fault::Unavailable { .. } | Fault::NoCluster { .. } => ProblemKind::ClusterUnavailable,
            Fault::Full { .. } => ProblemKind::StoreFull,
            Fault::Unauthorized { .. }
            | Fault::Forbidden { .. }
            | Fault::Unsuitable { .. }
            | Fault::Mismatch { .. } => ProblemKind::GatewayForbidden,
            Fault::InvalidMessage { .. } | Fault::Damaged { .. } | Fault::Missing { .. } => {
                ProblemKind::UnreadableData
            }
            Fault::TooLarge { .. } => ProblemKind::BodyTooLarge,
        };
        tracing::warn!(%fault, "request failed");
        Self::new(kind, fault)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).expect("problem details serialise to JSON");
        let mut response = (self.code, body).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        if self.code == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS].contains(&self.code) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(self.retry_after));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_page_lists_every_type_with_its_status() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/api.md");
        let page = std::fs::read_to_string(page).unwrap();
        let mut names = BTreeSet::new();
        for kind in ProblemKind::ALL {
            let (status, name, _) = kind.parts();
            assert!(names.insert(name), "{name} is used twice");
            let row = format!("| `{name}` | {} |", status.as_u16());
            assert!(page.contains(&row), "docs/api.md has no row {row}");
        }
    }
}
