//! The HTTP+JSON binding.

use std::sync::Arc;

use a2a::{
    A2AError, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
    ListTasksRequest, SendMessageRequest, SendMessageResponse, StreamResponse, TaskPushNotificationConfig,
};
use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use millrace_protocol::foreign_json::{parse_foreign_json, plain_json_error};
use millrace_runtime::store::blobs::sha256_hex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::binding::{A2aFault, last_event_id, operator_of, usual_name, with_usual_names};
use super::card::{A2aServer, ROOT, read_skills};
use super::operations::{cancel_task, get_task, list_tasks, send_message};
use super::push::{create_push_config, delete_push_config, get_push_config, list_push_configs};
use super::updates::{start_message_stream, start_task_stream, stream_response};
use crate::access::{Authenticator, RequestHead};
use crate::standards::api::Operator;
use crate::standards::mcp::MAX_BODY;

type SharedServer = Arc<A2aServer>;

/// The media type of answers and notifications.
pub const MEDIA_TYPE: &str = "application/a2a+json";

/// The caching of the card. Its skills change with the workers of the cluster.
const CARD_CACHING: &str = "private, max-age=60";

/// The sender of a request, with its head.
pub(super) struct Client(Operator, Parts);

impl<S: Send + Sync> FromRequestParts<S> for Client {
    type Rejection = A2aFault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, A2aFault> {
        Ok(Self(operator_of(parts)?, parts.clone()))
    }
}

fn json_response(value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("the types of A2A serialise to JSON");
    ([(header::CONTENT_TYPE, MEDIA_TYPE)], body).into_response()
}

fn encode_update(update: Result<&StreamResponse, A2aFault>) -> Value {
    match update {
        Ok(update) => millrace_views::to_value(update),
        Err(fault) => serde_json::json!({ "error": { "message": fault.error.message } }),
    }
}

pub(super) struct A2aBody<T>(T);

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

pub(super) async fn read_card(
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

pub(super) async fn read_extended_card(
    State(server): State<SharedServer>,
    Client(operator, parts): Client,
) -> Result<Response, A2aFault> {
    Ok(json_response(&server.card(&parts.headers, read_skills(&operator).await?)))
}

pub(super) async fn post_message(
    Client(operator, _): Client,
    A2aBody(request): A2aBody<SendMessageRequest>,
) -> Result<Response, A2aFault> {
    Ok(json_response(&SendMessageResponse::Task(send_message(&operator, request).await?)))
}

pub(super) async fn stream_message(
    Client(operator, parts): Client,
    A2aBody(request): A2aBody<SendMessageRequest>,
) -> Result<Response, A2aFault> {
    let receiver = start_message_stream(&operator, request, last_event_id(&parts.headers)).await?;
    Ok(stream_response(receiver, encode_update))
}

pub(super) type ParsedQuery<T> = Result<Query<T>, QueryRejection>;

fn refused_query(error: QueryRejection) -> A2aFault {
    A2aFault::invalid(error.body_text())
}

pub(super) async fn get_tasks(
    Client(operator, _): Client,
    query: ParsedQuery<Value>,
) -> Result<Response, A2aFault> {
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

pub(super) async fn read_or_follow_task(
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

pub(super) async fn act_on_task(
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
pub(super) struct PageQuery {
    page_size: Option<i32>,
    page_token: Option<String>,
}

pub(super) async fn get_push_configs(
    Client(operator, _): Client,
    Path(task_id): Path<String>,
    query: ParsedQuery<PageQuery>,
) -> Result<Response, A2aFault> {
    let Query(PageQuery { page_size, page_token }) = query.map_err(refused_query)?;
    let request = ListTaskPushNotificationConfigsRequest { task_id, page_size, page_token, tenant: None };
    Ok(json_response(&list_push_configs(&operator, request).await?))
}

pub(super) async fn post_push_config(
    Client(operator, _): Client,
    Path(task_id): Path<String>,
    A2aBody(config): A2aBody<TaskPushNotificationConfig>,
) -> Result<Response, A2aFault> {
    // The path names the task.
    let config = TaskPushNotificationConfig { task_id, ..config };
    Ok(json_response(&create_push_config(&operator, config).await?))
}

pub(super) async fn read_push_config(
    Client(operator, _): Client,
    Path((task_id, id)): Path<(String, String)>,
) -> Result<Response, A2aFault> {
    let request = GetTaskPushNotificationConfigRequest { task_id, id, tenant: None };
    Ok(json_response(&get_push_config(&operator, request).await?))
}

pub(super) async fn remove_push_config(
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
