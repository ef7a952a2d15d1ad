//! The HTTP+JSON binding, and the routes of both.

use std::convert::Infallible;
use std::sync::Arc;

use a2a::agent_card::{AgentCard, AgentSkill};
use a2a::{
    A2AError, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
    ListTasksRequest, SendMessageRequest, SendMessageResponse, StreamResponse, TaskPushNotificationConfig,
    VERSION,
};
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use millrace_protocol::foreign_json::{parse_foreign_json, plain_json_error};
use millrace_runtime::store::blobs::sha256_hex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;

use super::card::{ROOT, build_card, read_skills};
use super::fault::A2aFault;
use super::field_names::{usual_name, with_usual_names};
use super::operations::{Delivery, cancel_task, deliver_message, get_task, list_tasks, send_message};
use super::push::{create_push_config, delete_push_config, get_push_config, list_push_configs};
use super::rpc::answer_rpc;
use super::updates::{StreamEnd, StreamPart, StreamStart, start_stream};
use crate::access::{Authenticator, RequestHead};
use crate::standards::api::Operator;
use crate::standards::mcp::MAX_BODY;

/// The media type of answers and notifications.
pub const MEDIA_TYPE: &str = "application/a2a+json";

/// The caching of the card. Its skills change with the workers of the cluster.
const CARD_CACHING: &str = "private, max-age=60";

/// The A2A server.
#[derive(Clone)]
pub struct A2aServer {
    /// `true` if clients connect over TLS, which a proxy ends.
    is_encrypted: bool,
    needs_token: bool,
}

type SharedServer = Arc<A2aServer>;

impl A2aServer {
    #[must_use]
    pub fn new(is_encrypted: bool, needs_token: bool) -> Self {
        Self { is_encrypted, needs_token }
    }

    /// Returns the routes: those of the public card, and those of the operations, which need credentials.
    pub fn into_routes(self) -> (Router, Router) {
        let server = Arc::new(self);
        let card = Router::new().route("/.well-known/agent-card.json", get(read_card));
        // Clients that resolve a path against the address of the card end it with a slash.
        let with_slash = Router::new().route(&format!("{ROOT}/"), post(answer_rpc));
        let with_slash = with_slash.layer(DefaultBodyLimit::max(MAX_BODY)).with_state(server.clone());
        let operations = Router::new()
            .route("/", post(answer_rpc))
            .route("/message:send", post(post_message))
            .route("/message:stream", post(stream_message))
            .route("/tasks", get(get_tasks))
            .route("/tasks/{task}", get(read_or_follow_task).post(act_on_task))
            .route("/tasks/{task}/pushNotificationConfigs", get(get_push_configs).post(post_push_config))
            .route(
                "/tasks/{task}/pushNotificationConfigs/{config}",
                get(read_push_config).delete(remove_push_config),
            )
            .route("/extendedAgentCard", get(read_extended_card))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(server.clone());
        (card.with_state(server), Router::new().nest(ROOT, operations).merge(with_slash))
    }

    /// Returns the card, with the capabilities of the cluster as far as the client may know them.
    pub fn card(&self, headers: &HeaderMap, skills: Vec<AgentSkill>) -> AgentCard {
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or("localhost");
        let scheme = if self.is_encrypted { "https" } else { "http" };
        build_card(&format!("{scheme}://{host}"), skills, self.needs_token)
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

/// The sender of a request, with its head.
struct Client(Operator, Parts);

impl<S: Send + Sync> FromRequestParts<S> for Client {
    type Rejection = A2aFault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, A2aFault> {
        Ok(Self(operator_of(parts)?, parts.clone()))
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

struct A2aBody<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for A2aBody<T> {
    type Rejection = A2aFault;

    async fn from_request(request: Request, _: &S) -> Result<Self, A2aFault> {
        let bytes = axum::body::to_bytes(request.into_body(), MAX_BODY).await;
        let bytes =
            bytes.map_err(|_| A2aFault::invalid(format!("the body has more than {MAX_BODY} bytes")))?;
        let value: Value = parse_foreign_json(&bytes)
            .map_err(|error| A2aFault::invalid(format!("the body is no JSON: {error}")))?;
        serde_path_to_error::deserialize(with_usual_names(value)).map(Self).map_err(|error| {
            let mistake = plain_json_error(&error.inner().to_string());
            A2aFault::invalid(format!("the body is invalid: {}: {mistake}", error.path()))
        })
    }
}

async fn read_card(
    State(server): State<SharedServer>,
    Extension(authenticator): Extension<Arc<Authenticator>>,
    request: Request,
) -> Response {
    let skills = match authenticator.authenticate(RequestHead::of(&request)).await {
        Ok(access) => read_skills(&Operator::new(access)).await.unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    let headers = request.headers();
    let body = serde_json::to_vec(&server.card(headers, skills)).expect("the types of A2A serialise to JSON");
    let version = format!("\"{}\"", &sha256_hex(&body)[..32]);
    let is_known = headers.get_all(header::IF_NONE_MATCH).iter().any(|value| {
        let mut versions = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        versions.any(|known| known.strip_prefix(b"W/").unwrap_or(known) == version.as_bytes())
    });
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, CARD_CACHING),
        // Skills are shown to those who may read capabilities.
        (header::VARY, "Authorization, Cookie, Host, Millrace-Tenant"),
        (header::ETAG, &version),
    ];
    match is_known {
        true => (StatusCode::NOT_MODIFIED, headers).into_response(),
        false => (headers, body).into_response(),
    }
}

async fn read_extended_card(
    State(server): State<SharedServer>,
    Client(operator, parts): Client,
) -> Result<Response, A2aFault> {
    Ok(json_response(&server.card(&parts.headers, read_skills(&operator).await?)))
}

async fn post_message(
    Client(operator, _): Client,
    A2aBody(request): A2aBody<SendMessageRequest>,
) -> Result<Response, A2aFault> {
    Ok(json_response(&SendMessageResponse::Task(send_message(&operator, request).await?)))
}

async fn stream_message(
    Client(operator, parts): Client,
    A2aBody(request): A2aBody<SendMessageRequest>,
) -> Result<Response, A2aFault> {
    let receiver = start_message_stream(&operator, request, last_event_id(&parts.headers)).await?;
    Ok(stream_response(receiver, encode_update))
}

/// Delivers a message, and follows its task until it has ended or needs input.
pub async fn start_message_stream(
    operator: &Operator,
    request: SendMessageRequest,
    last: Option<String>,
) -> Result<mpsc::Receiver<StreamPart>, A2aFault> {
    let Delivery { run, before } = deliver_message(operator, &request).await?;
    let start = match (last, before) {
        (Some(id), _) => StreamStart::After(id),
        (None, Some(before)) => StreamStart::After(before.to_string()),
        (None, None) => StreamStart::First,
    };
    start_stream(operator, &run, start, StreamEnd::TaskOrInput).await
}

/// Follows a task until it has ended.
pub async fn start_task_stream(
    operator: &Operator,
    run: &str,
    last: Option<String>,
) -> Result<mpsc::Receiver<StreamPart>, A2aFault> {
    let start = last.map_or(StreamStart::Now, StreamStart::After);
    start_stream(operator, run, start, StreamEnd::Task).await
}

type ParsedQuery<T> = Result<Query<T>, QueryRejection>;

fn refused_query(error: QueryRejection) -> A2aFault {
    A2aFault::invalid(error.body_text())
}

async fn get_tasks(Client(operator, _): Client, query: ParsedQuery<Value>) -> Result<Response, A2aFault> {
    let Query(query) = query.map_err(refused_query)?;
    Ok(json_response(&list_tasks(&operator, parse_list_query(query)?).await?))
}

/// Parses the query of a list: all its values are texts.
fn parse_list_query(query: Value) -> Result<ListTasksRequest, A2aFault> {
    let typed = |(name, value): (String, Value)| {
        let name = usual_name(&name);
        let text = value.as_str().unwrap_or_default();
        let value = match name.as_str() {
            "pageSize" | "historyLength" | "includeArtifacts" => serde_json::from_str(text).unwrap_or(value),
            _ => value,
        };
        (name, value)
    };
    let fields = query.as_object().cloned().unwrap_or_default().into_iter().map(typed).collect();
    serde_json::from_value(Value::Object(fields)).map_err(|error| {
        A2aFault::invalid(format!("the query is invalid: {}", plain_json_error(&error.to_string())))
    })
}

async fn read_or_follow_task(
    Client(operator, parts): Client,
    Path(task): Path<String>,
) -> Result<Response, A2aFault> {
    if let Some(run) = task.strip_suffix(":subscribe") {
        let receiver = start_task_stream(&operator, run, last_event_id(&parts.headers)).await?;
        return Ok(stream_response(receiver, encode_update));
    }
    let history = parts.uri.query().unwrap_or_default().split('&');
    let history =
        history.filter_map(|pair| pair.split_once('=')).find(|(name, _)| usual_name(name) == "historyLength");
    let history = history.map(|(_, value)| value);
    let history_length = history.map(str::parse).transpose();
    let history_length = history_length.map_err(|_| A2aFault::invalid("historyLength must be a number"))?;
    Ok(json_response(&get_task(&operator, GetTaskRequest { id: task, history_length, tenant: None }).await?))
}

async fn act_on_task(
    Client(operator, parts): Client,
    Path(task): Path<String>,
) -> Result<Response, A2aFault> {
    if task.ends_with(":subscribe") {
        return read_or_follow_task(Client(operator, parts), Path(task)).await;
    }
    let Some(run) = task.strip_suffix(":cancel") else {
        return Err(A2AError::method_not_found(&format!("POST {ROOT}/tasks/{task}")).into());
    };
    let request = CancelTaskRequest { id: run.to_owned(), metadata: None, tenant: None };
    Ok(json_response(&cancel_task(&operator, request).await?))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageQuery {
    page_size: Option<i32>,
    page_token: Option<String>,
}

async fn get_push_configs(
    Client(operator, _): Client,
    Path(task_id): Path<String>,
    query: ParsedQuery<PageQuery>,
) -> Result<Response, A2aFault> {
    let Query(PageQuery { page_size, page_token }) = query.map_err(refused_query)?;
    let request = ListTaskPushNotificationConfigsRequest { task_id, page_size, page_token, tenant: None };
    Ok(json_response(&list_push_configs(&operator, request).await?))
}

async fn post_push_config(
    Client(operator, _): Client,
    Path(task_id): Path<String>,
    A2aBody(config): A2aBody<TaskPushNotificationConfig>,
) -> Result<Response, A2aFault> {
    // The path names the task.
    let config = TaskPushNotificationConfig { task_id, ..config };
    Ok(json_response(&create_push_config(&operator, config).await?))
}

async fn read_push_config(
    Client(operator, _): Client,
    Path((task_id, id)): Path<(String, String)>,
) -> Result<Response, A2aFault> {
    let request = GetTaskPushNotificationConfigRequest { task_id, id, tenant: None };
    Ok(json_response(&get_push_config(&operator, request).await?))
}

async fn remove_push_config(
    Client(operator, _): Client,
    Path((task_id, id)): Path<(String, String)>,
) -> Result<Response, A2aFault> {
    let request = DeleteTaskPushNotificationConfigRequest { task_id, id, tenant: None };
    Ok(json_response(&delete_push_config(&operator, request).await?))
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
