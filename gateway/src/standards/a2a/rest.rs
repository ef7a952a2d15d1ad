//! The HTTP+JSON binding, and the routes of both.

use std::convert::Infallible;
use std::sync::Arc;

use a2a::agent_card::AgentCard;
use a2a::{
    A2AError, CancelTaskRequest, GetTaskRequest, ListTasksRequest, SendMessageRequest, SendMessageResponse,
    StreamResponse, VERSION,
};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;

use super::card::{ROOT, build_card, read_skills};
use super::fault::A2aFault;
use super::operations::{Delivery, cancel_task, deliver_message, get_task, list_tasks, send_message};
use super::rpc::answer_rpc;
use super::updates::{StreamEnd, StreamPart, StreamStart, start_stream};
use crate::standards::api::ApiClient;
use crate::standards::mcp::MAX_BODY;

/// The media type of answers.
const MEDIA_TYPE: &str = "application/a2a+json";

/// The A2A server.
#[derive(Clone)]
pub struct A2aServer {
    api: Router,
    /// `true` if clients connect over TLS, which a proxy ends.
    is_encrypted: bool,
    /// `true` if clients need a token.
    needs_token: bool,
}

type SharedServer = Arc<A2aServer>;

impl A2aServer {
    /// Creates a server over the routes of the API.
    #[must_use]
    pub fn new(api: Router, is_encrypted: bool, needs_token: bool) -> Self {
        Self { api, is_encrypted, needs_token }
    }

    /// Returns the routes: those of the public card, and those of the operations, which need credentials.
    pub fn into_routes(self) -> (Router, Router) {
        let server = Arc::new(self);
        let card = Router::new().route("/.well-known/agent-card.json", get(read_card));
        let operations = Router::new()
            .route("/", post(answer_rpc))
            .route("/message:send", post(post_message))
            .route("/message:stream", post(stream_message))
            .route("/tasks", get(get_tasks))
            .route("/tasks/{task}", get(read_or_follow_task).post(act_on_task))
            .route("/tasks/{task}/pushNotificationConfigs", any(refuse_push))
            .route("/tasks/{task}/pushNotificationConfigs/{config}", any(refuse_push))
            .route("/extendedAgentCard", get(read_extended_card))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(server.clone());
        (card.with_state(server), Router::new().nest(ROOT, operations))
    }

    /// Returns the API as the sender of a request may use it.
    ///
    /// # Errors
    /// The client speaks another version of A2A.
    pub fn api_of(&self, parts: &Parts) -> Result<ApiClient, A2aFault> {
        let version = parts.headers.get("a2a-version").and_then(|value| value.to_str().ok());
        match version.map(str::trim).filter(|version| !version.is_empty()) {
            Some(version) if version.split('.').next() != VERSION.split('.').next() => {
                Err(A2AError::version_not_supported(version).into())
            }
            Some(_) | None => Ok(ApiClient::for_request(self.api.clone(), parts)),
        }
    }

    /// Returns the card, with the capabilities of the cluster as far as the client may know them.
    pub async fn card(&self, parts: &Parts) -> AgentCard {
        let host =
            parts.headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or("localhost");
        let scheme = if self.is_encrypted { "https" } else { "http" };
        let api = ApiClient::for_request(self.api.clone(), parts);
        let skills = read_skills(&api).await.unwrap_or_default();
        build_card(&format!("{scheme}://{host}"), skills, self.needs_token)
    }
}

/// The id of the last event that a client that reconnects has received.
pub fn last_event_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    id.filter(|id| !id.is_empty()).map(str::to_owned)
}

fn json_response(value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("the types of A2A serialise to JSON");
    ([(header::CONTENT_TYPE, MEDIA_TYPE)], body).into_response()
}

/// Returns a stream of server-sent events; `encode` returns the data of an update or a fault.
pub fn stream_response(
    receiver: mpsc::Receiver<StreamPart>,
    encode: impl Fn(Result<&StreamResponse, A2aFault>) -> Value + Send + 'static,
) -> Response {
    let frames = futures::stream::unfold((receiver, encode), |(mut receiver, encode)| async move {
        let frame = match receiver.recv().await? {
            StreamPart::KeepAlive => ": keep-alive\n\n".to_owned(),
            StreamPart::Update(id, update) => {
                let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
                format!("{id}data: {}\n\n", encode(Ok(&update)))
            }
            StreamPart::Fault(fault) => format!("data: {}\n\n", encode(Err(fault))),
        };
        Some((Ok::<_, Infallible>(Bytes::from(frame)), (receiver, encode)))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Proxies must not collect events.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(frames)).into_response()
}

fn encode_update(update: Result<&StreamResponse, A2aFault>) -> Value {
    match update {
        Ok(update) => millrace_views::to_value(update),
        Err(fault) => serde_json::json!({ "error": { "message": fault.error.message } }),
    }
}

async fn read_body<T: DeserializeOwned>(body: Body) -> Result<T, A2aFault> {
    let bytes = axum::body::to_bytes(body, MAX_BODY).await;
    let bytes = bytes.map_err(|_| A2aFault::invalid(format!("the body has more than {MAX_BODY} bytes")))?;
    let mut input = serde_json::Deserializer::from_slice(&bytes);
    serde_path_to_error::deserialize(&mut input).map_err(|error| {
        A2aFault::invalid(format!("the body is invalid: {}: {}", error.path(), error.inner()))
    })
}

async fn read_card(State(server): State<SharedServer>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let mut response = json_response(&server.card(&parts).await);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

async fn read_extended_card(
    State(server): State<SharedServer>,
    request: Request,
) -> Result<Response, A2aFault> {
    let (parts, _) = request.into_parts();
    let api = server.api_of(&parts)?;
    read_skills(&api).await?;
    Ok(json_response(&server.card(&parts).await))
}

async fn post_message(State(server): State<SharedServer>, request: Request) -> Result<Response, A2aFault> {
    let (parts, body) = request.into_parts();
    let api = server.api_of(&parts)?;
    let task = send_message(&api, read_body(body).await?).await?;
    Ok(json_response(&SendMessageResponse::Task(task)))
}

async fn stream_message(State(server): State<SharedServer>, request: Request) -> Result<Response, A2aFault> {
    let (parts, body) = request.into_parts();
    let api = server.api_of(&parts)?;
    let request: SendMessageRequest = read_body(body).await?;
    let receiver = start_message_stream(&api, &request, last_event_id(&parts.headers)).await?;
    Ok(stream_response(receiver, encode_update))
}

/// Delivers a message, and follows its task until it has ended or needs input.
pub async fn start_message_stream(
    api: &ApiClient,
    request: &SendMessageRequest,
    last: Option<String>,
) -> Result<mpsc::Receiver<StreamPart>, A2aFault> {
    let Delivery { run, before } = deliver_message(api, request).await?;
    let start = match (last, before) {
        (Some(id), _) => StreamStart::After(id),
        (None, Some(before)) => StreamStart::After(before.to_string()),
        (None, None) => StreamStart::First,
    };
    start_stream(api, &run, start, StreamEnd::TaskOrInput).await
}

/// Follows a task until it has ended.
pub async fn start_task_stream(
    api: &ApiClient,
    run: &str,
    last: Option<String>,
) -> Result<mpsc::Receiver<StreamPart>, A2aFault> {
    let start = last.map_or(StreamStart::Now, StreamStart::After);
    start_stream(api, run, start, StreamEnd::Task).await
}

async fn get_tasks(
    State(server): State<SharedServer>,
    query: Result<Query<Value>, axum::extract::rejection::QueryRejection>,
    request: Request,
) -> Result<Response, A2aFault> {
    let (parts, _) = request.into_parts();
    let api = server.api_of(&parts)?;
    let Query(query) = query.map_err(|error| A2aFault::invalid(error.body_text()))?;
    Ok(json_response(&list_tasks(&api, parse_list_query(query)?).await?))
}

/// Parses the query of a list: all its values are texts.
fn parse_list_query(query: Value) -> Result<ListTasksRequest, A2aFault> {
    let typed = |(name, value): (String, Value)| {
        let text = value.as_str().unwrap_or_default();
        let value = match name.as_str() {
            "pageSize" | "historyLength" | "includeArtifacts" => serde_json::from_str(text).unwrap_or(value),
            _ => value,
        };
        (name, value)
    };
    let fields = query.as_object().cloned().unwrap_or_default().into_iter().map(typed).collect();
    serde_json::from_value(Value::Object(fields))
        .map_err(|error| A2aFault::invalid(format!("the query is invalid: {error}")))
}

async fn read_or_follow_task(
    State(server): State<SharedServer>,
    Path(task): Path<String>,
    request: Request,
) -> Result<Response, A2aFault> {
    let (parts, _) = request.into_parts();
    let api = server.api_of(&parts)?;
    if let Some(run) = task.strip_suffix(":subscribe") {
        let receiver = start_task_stream(&api, run, last_event_id(&parts.headers)).await?;
        return Ok(stream_response(receiver, encode_update));
    }
    let history = parts.uri.query().unwrap_or_default().split('&');
    let history = history.filter_map(|pair| pair.strip_prefix("historyLength=")).next();
    let history_length = history.map(str::parse).transpose();
    let history_length = history_length.map_err(|_| A2aFault::invalid("historyLength must be a number"))?;
    Ok(json_response(&get_task(&api, GetTaskRequest { id: task, history_length, tenant: None }).await?))
}

async fn act_on_task(
    State(server): State<SharedServer>,
    Path(task): Path<String>,
    request: Request,
) -> Result<Response, A2aFault> {
    let (parts, _) = request.into_parts();
    let api = server.api_of(&parts)?;
    if let Some(run) = task.strip_suffix(":subscribe") {
        let receiver = start_task_stream(&api, run, last_event_id(&parts.headers)).await?;
        return Ok(stream_response(receiver, encode_update));
    }
    let Some(run) = task.strip_suffix(":cancel") else {
        return Err(A2AError::method_not_found(&format!("POST {ROOT}/tasks/{task}")).into());
    };
    let request = CancelTaskRequest { id: run.to_owned(), metadata: None, tenant: None };
    Ok(json_response(&cancel_task(&api, request).await?))
}

async fn refuse_push() -> A2aFault {
    A2AError::push_notification_not_supported().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_of_lists_are_typed() {
        let query = serde_json::json!({
            "pageSize": "5", "status": "TASK_STATE_WORKING", "contextId": "7", "includeArtifacts": "true",
            "statusTimestampAfter": "2026-01-01T00:00:00Z",
        });
        let parsed = parse_list_query(query).unwrap();
        assert_eq!((parsed.page_size, parsed.context_id.as_deref()), (Some(5), Some("7")));
        assert_eq!(parsed.include_artifacts, Some(true));
        for (name, value) in [("pageSize", "x"), ("status", "WORKING"), ("statusTimestampAfter", "x")] {
            assert!(parse_list_query(serde_json::json!({ name: value })).is_err(), "{name}");
        }
    }
}
