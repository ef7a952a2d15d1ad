//! The JSON-RPC binding.

use std::sync::Arc;

use a2a::error_code;
use a2a::jsonrpc::methods;
use a2a::{A2AError, JsonRpcId, JsonRpcRequest, JsonRpcResponse, SubscribeToTaskRequest};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use millrace_protocol::foreign_json::{parse_foreign_json, plain_json_error};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

use super::binding::{A2aFault, last_event_id, operator_of, with_usual_names};
use super::card::{A2aServer, read_skills};
use super::operations::{cancel_task, get_task, list_tasks, send_message};
use super::push::{create_push_config, delete_push_config, get_push_config, list_push_configs};
use super::updates::{StreamPart, start_message_stream, start_task_stream, stream_response};
use crate::standards::api::Operator;
use crate::standards::mcp::MAX_BODY;

/// Answers a request. Errors are in the body of the answer, as JSON-RPC demands.
pub async fn answer_rpc(State(server): State<Arc<A2aServer>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if let Some(content_type) = find_foreign_type(&parts.headers) {
        let detail = format!("the body must be application/json, not {content_type}");
        let error = A2AError::new(error_code::CONTENT_TYPE_NOT_SUPPORTED, detail);
        return rpc_response(&failure(JsonRpcId::Null, error.into()));
    }
    let Ok(bytes) = axum::body::to_bytes(body, MAX_BODY).await else {
        let fault = A2aFault::invalid(format!("the body has more than {MAX_BODY} bytes"));
        return rpc_response(&failure(JsonRpcId::Null, fault));
    };
    let JsonRpcRequest { id, method, params, .. } = match parse_request(&bytes) {
        Ok(request) => request,
        Err((id, error)) => return rpc_response(&failure(id, error.into())),
    };
    let params = params.unwrap_or_default();
    let outcome = match operator_of(&parts) {
        Err(fault) => Err(fault),
        Ok(operator) => match method.as_str() {
            methods::SEND_STREAMING_MESSAGE | methods::SUBSCRIBE_TO_TASK => {
                match start_stream(&operator, &method, params, last_event_id(&parts.headers)).await {
                    Ok(receiver) => return stream_rpc_response(receiver, id),
                    Err(fault) => Err(fault),
                }
            }
            methods::GET_EXTENDED_AGENT_CARD => {
                let skills = read_skills(&operator).await.unwrap_or_default();
                Ok(millrace_views::to_value(&server.card(&parts.headers, skills)))
            }
            method => Box::pin(answer_method(&operator, method, params)).await,
        },
    };
    rpc_response(&match outcome {
        Ok(result) => JsonRpcResponse::success(id, result),
        Err(fault) => failure(id, fault),
    })
}

async fn answer_method(operator: &Operator, method: &str, params: Value) -> Result<Value, A2aFault> {
    match method {
        methods::SEND_MESSAGE => {
            call(operator, params, send_message).await.map(|task| json!({ "task": task }))
        }
        methods::GET_TASK => call(operator, params, get_task).await,
        methods::LIST_TASKS => call(operator, params, list_tasks).await,
        methods::CANCEL_TASK => call(operator, params, cancel_task).await,
        methods::CREATE_PUSH_CONFIG => call(operator, params, create_push_config).await,
        methods::GET_PUSH_CONFIG => call(operator, params, get_push_config).await,
        methods::LIST_PUSH_CONFIGS => call(operator, params, list_push_configs).await,
        methods::DELETE_PUSH_CONFIG => call(operator, params, delete_push_config).await,
        other => Err(A2AError::method_not_found(other).into()),
    }
}

async fn start_stream(
    operator: &Operator,
    method: &str,
    params: Value,
    last: Option<String>,
) -> Result<Receiver<StreamPart>, A2aFault> {
    if method == methods::SUBSCRIBE_TO_TASK {
        let request: SubscribeToTaskRequest = parse_params(params)?;
        return start_task_stream(operator, &request.id, last).await;
    }
    start_message_stream(operator, parse_params(params)?, last).await
}

fn stream_rpc_response(receiver: Receiver<StreamPart>, id: JsonRpcId) -> Response {
    stream_response(receiver, move |update| {
        let response = match update {
            Ok(update) => JsonRpcResponse::success(id.clone(), millrace_views::to_value(update)),
            Err(fault) => failure(id.clone(), fault),
        };
        millrace_views::to_value(&response)
    })
}

/// Returns the media type of a body that is not JSON, as its client says.
fn find_foreign_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?;
    let media_type = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let media_type = media_type.to_ascii_lowercase();
    let is_json = media_type == "application/json" || media_type.ends_with("+json");
    (!is_json).then_some(media_type)
}

/// Parses a request; a malformed one is answered with its id if it has one.
fn parse_request(bytes: &[u8]) -> Result<JsonRpcRequest, (JsonRpcId, A2AError)> {
    let value: Value = parse_foreign_json(bytes)
        .map_err(|error| (JsonRpcId::Null, A2AError::parse_error(format!("the body is no JSON: {error}"))))?;
    let id = serde_json::from_value(value["id"].clone()).unwrap_or(JsonRpcId::Null);
    let request: JsonRpcRequest = serde_json::from_value(value).map_err(|error| {
        let mistake = plain_json_error(&error.to_string());
        (id.clone(), A2AError::invalid_request(format!("the request is invalid: {mistake}")))
    })?;
    match request.jsonrpc == "2.0" {
        true => Ok(request),
        false => Err((id, A2AError::invalid_request("the field jsonrpc must be \"2.0\""))),
    }
}

fn parse_params<T: DeserializeOwned>(params: Value) -> Result<T, A2aFault> {
    serde_path_to_error::deserialize(with_usual_names(params)).map_err(|error| {
        let mistake = plain_json_error(&error.inner().to_string());
        A2aFault::invalid(format!("params.{}: {mistake}", error.path()))
    })
}

async fn call<T: DeserializeOwned, R: Serialize>(
    operator: &Operator,
    params: Value,
    operation: impl AsyncFnOnce(&Operator, T) -> Result<R, A2aFault>,
) -> Result<Value, A2aFault> {
    operation(operator, parse_params(params)?).await.map(|result| millrace_views::to_value(&result))
}

fn failure(id: JsonRpcId, fault: A2aFault) -> JsonRpcResponse {
    JsonRpcResponse::error(id, fault.error.to_jsonrpc_error())
}

fn rpc_response(response: &JsonRpcResponse) -> Response {
    let body = serde_json::to_vec(response).expect("the types of A2A serialise to JSON");
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
