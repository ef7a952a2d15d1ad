//! A tool of an MCP server.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::tool::{Call, Effect, Output, Tool, ToolError, ToolSpec};
use rmcp::ServiceError;
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult};
use serde_json::Value;

use super::connection::{Connection, LiveConnection};
use super::settings::{DEFAULT_TIMEOUT, MAX_RESULT, McpServer};
use super::tool_list::OfferedTool;
use super::tool_result;
use super::transport::{UNREADABLE_MESSAGE, error_chain};
use crate::untrusted::one_line;

const INVALID_PARAMS: i32 = -32602;

/// Maximum number of characters of the reason why an answer is not readable.
const MAX_ERROR: usize = 1_000;

#[derive(Clone)]
pub(super) struct McpTool {
    connection: Arc<Connection>,
    server: String,
    name: String,
    spec: ToolSpec,
    effect: Effect,
    timeout: Duration,
    max_result: usize,
}

impl McpTool {
    pub(super) fn new(
        server: &McpServer,
        connection: Arc<Connection>,
        name: String,
        tool: OfferedTool,
    ) -> Self {
        Self {
            connection,
            server: server.name.clone(),
            effect: tool.effect,
            name: tool.name,
            spec: ToolSpec { name, description: tool.description.into(), schema: tool.schema.into() },
            timeout: Duration::from_secs(server.timeout_s.unwrap_or(DEFAULT_TIMEOUT).into()),
            max_result: server.max_result.unwrap_or(MAX_RESULT),
        }
    }

    /// Calls the tool over another connection.
    pub(super) async fn call_on(
        &self,
        connection: &Arc<Connection>,
        arguments: Value,
        call: &Call,
    ) -> Result<Output, ToolError> {
        Self { connection: connection.clone(), ..self.clone() }.call(arguments, call).await
    }

    async fn call_server(
        &self,
        arguments: Value,
        deadline: Option<Instant>,
    ) -> Result<CallToolResult, ToolError> {
        let mut params = CallToolRequestParams::new(self.name.clone());
        params.arguments = match arguments {
            Value::Object(arguments) => Some(arguments),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => None,
        };
        let answer = match self.send_call(params.clone(), deadline).await? {
            // A request that was never sent can be retried.
            Err(error) if was_not_sent(&error) => self.send_call(params, deadline).await?,
            answer => answer,
        };
        match answer {
            Ok(CallToolResponse::Complete(result)) => Ok(result),
            Ok(_) => {
                let message = format!("{} requests further input, which is not supported", self.spec.name);
                Err(ToolError::Failed { message, detail: self.server.clone() })
            }
            Err(error) => Err(self.convert_service_error(&error)),
        }
    }

    /// Sends a call. Its timeout begins when the server is connected.
    async fn send_call(
        &self,
        params: CallToolRequestParams,
        deadline: Option<Instant>,
    ) -> Result<Result<CallToolResponse, ServiceError>, ToolError> {
        let connected = tokio::time::timeout(time_left(deadline), self.connection.live_connection()).await;
        let connected = connected.unwrap_or_else(|_| Err("the time of the task is used up".to_owned()));
        let live = connected.map_err(|reason| ToolError::Failed {
            message: format!(
                "the MCP server {:?} cannot be reached at the moment; nothing was done",
                self.server
            ),
            detail: reason,
        })?;
        let limit = self.timeout.min(time_left(deadline));
        let unanswered = live.begin_call();
        // Dropping the call cancels it at the server.
        let Ok(answer) = tokio::time::timeout(limit, live.service.peer().call_tool_once(params)).await else {
            let what = format!("timed out after {} s and was cancelled", limit.as_secs_f32());
            return Err(self.unanswered_call_error(&what, "timeout".into()));
        };
        unanswered.record_answer();
        if answer.as_ref().is_err_and(|error| is_connection_dead(&live, error)) {
            self.connection.discard_connection(&live).await;
        }
        Ok(answer)
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the protocol's enum may grow")]
    fn convert_service_error(&self, error: &ServiceError) -> ToolError {
        match error {
            ServiceError::McpError(error) if error.code.0 == INVALID_PARAMS => {
                let message = self.mark_server_text(&error.message);
                ToolError::Refused(format!("{} rejected the call:\n{message}", self.spec.name))
            }
            ServiceError::McpError(error) if error.code == UNREADABLE_MESSAGE => {
                let reason = one_line(&error.message, MAX_ERROR);
                self.unanswered_call_error("got an answer that is no message of MCP", reason)
            }
            ServiceError::McpError(error) => ToolError::Failed {
                message: format!("{} failed:\n{}", self.spec.name, self.mark_server_text(&error.message)),
                detail: format!("{} {}", self.server, error.code.0),
            },
            _ => self.unanswered_call_error(
                "was interrupted: its server died or cannot be reached",
                error_chain(error),
            ),
        }
    }

    fn mark_server_text(&self, text: &str) -> String {
        tool_result::mark_server_text(&self.server, text, self.max_result)
    }

    /// Returns the error of a call without a response, whose effect depends on the tool.
    fn unanswered_call_error(&self, what: &str, detail: String) -> ToolError {
        let then = match self.effect {
            Effect::Pure => "it changes nothing: retry it if you need its result",
            Effect::Idempotent => "it may have been done, but a retry is safe: call it again",
            Effect::Effect => "its outcome is unknown: check what was done before you retry it",
        };
        ToolError::Failed { message: format!("{} {what}; {then}", self.spec.name), detail }
    }
}

fn time_left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the protocol's enum may grow")]
fn is_connection_dead(live: &Arc<LiveConnection>, error: &ServiceError) -> bool {
    match error {
        ServiceError::TransportSend(_) | ServiceError::TransportClosed => true,
        _ => live.service.is_closed(),
    }
}

/// Returns `true` if a request was never sent because there was no connection.
fn was_not_sent(error: &ServiceError) -> bool {
    let mut source: Option<&(dyn Error + 'static)> = Some(error);
    if let ServiceError::TransportSend(transport) = error {
        source = Some(&*transport.error);
    }
    while let Some(inner) = source {
        if inner.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_connect) {
            return true;
        }
        source = inner.source();
    }
    false
}

impl Tool for McpTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn effect(&self) -> Effect {
        self.effect
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        async move {
            let result = self.call_server(arguments, call.deadline).await?;
            let text = tool_result::result_text(&self.server, &result, self.max_result)?;
            Ok(Output { images: tool_result::result_images(&self.server, &result), ..text.into() })
        }
        .boxed()
    }
}
