//! One tool of an MCP server, as a tool like any other.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::tool::{Call, Effect, Output, Tool, ToolError, ToolSpec};
use rmcp::ServiceError;
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, Tool as Offered};
use serde_json::Value;

use super::connection::{Connection, Live, chain};
use super::result;
use super::settings::{MAX_RESULT, Server, TIMEOUT};

/// How JSON-RPC says that the arguments are wrong.
const INVALID_PARAMS: i32 = -32602;

/// A tool of a server.
pub(super) struct McpTool {
    connection: Arc<Connection>,
    server: String,
    /// As the server calls it.
    name: String,
    spec: ToolSpec,
    effect: Effect,
    timeout: Duration,
    max_result: usize,
}

impl McpTool {
    pub(super) fn new(server: &Server, connection: Arc<Connection>, name: String, tool: Offered) -> Self {
        let description = tool.description.clone().or_else(|| tool.title.clone().map(Into::into));
        let spec = ToolSpec {
            name,
            description: description.unwrap_or_default().into_owned(),
            schema: Value::Object((*tool.input_schema).clone()),
        };
        Self {
            connection,
            server: server.name.clone(),
            effect: effect(&tool),
            name: tool.name.into_owned(),
            spec,
            timeout: Duration::from_secs(server.timeout_s.unwrap_or(TIMEOUT).into()),
            max_result: server.max_result.unwrap_or(MAX_RESULT),
        }
    }

    async fn run(&self, arguments: Value, deadline: Option<Instant>) -> Result<String, ToolError> {
        let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        let limit = self.timeout.min(left);
        // Dropping the call tells the server that nobody waits for it any more.
        match tokio::time::timeout(limit, self.ask(arguments)).await {
            Ok(answer) => result::text(&answer?, self.max_result),
            Err(_) => {
                let what = format!("did not answer within {} s and was told to stop", limit.as_secs_f32());
                Err(self.failed(&what, "timeout".into()))
            }
        }
    }

    async fn ask(&self, arguments: Value) -> Result<CallToolResult, ToolError> {
        let mut params = CallToolRequestParams::new(self.name.clone());
        params.arguments = match arguments {
            Value::Object(arguments) => Some(arguments),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => None,
        };
        let answer = match self.send(params.clone()).await? {
            // What was never sent can be sent again.
            Err(error) if was_not_sent(&error) => self.send(params).await?,
            answer => answer,
        };
        match answer {
            Ok(CallToolResponse::Complete(result)) => Ok(result),
            Ok(_) => {
                let told =
                    format!("{} asks for more than it was given, which is not supported", self.spec.name);
                Err(ToolError::Failed { told, detail: self.server.clone() })
            }
            Err(error) => Err(self.fault(&error)),
        }
    }

    async fn send(
        &self,
        params: CallToolRequestParams,
    ) -> Result<Result<CallToolResponse, ServiceError>, ToolError> {
        let live = self.connection.live().await.map_err(|reason| ToolError::Failed {
            told: format!("the MCP server {:?} can't be reached now, so nothing was done", self.server),
            detail: reason,
        })?;
        let answer = live.service.peer().call_tool_once(params).await;
        if answer.as_ref().is_err_and(|error| is_dead(&live, error)) {
            self.connection.drop_dead(&live).await;
        }
        Ok(answer)
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the protocol's enum may grow")]
    fn fault(&self, error: &ServiceError) -> ToolError {
        match error {
            ServiceError::McpError(error) if error.code.0 == INVALID_PARAMS => {
                ToolError::Refused(format!("{} refuses the call: {}", self.spec.name, error.message))
            }
            ServiceError::McpError(error) => ToolError::Failed {
                told: format!("{} failed: {}", self.spec.name, error.message),
                detail: format!("{} {}", self.server, error.code.0),
            },
            _ => self.failed("was cut off: its server died or can't be reached", chain(error)),
        }
    }

    /// A call whose answer did not come. Whether it did something depends on the tool.
    fn failed(&self, what: &str, detail: String) -> ToolError {
        let then = match self.effect {
            Effect::Pure => "it changes nothing: call it again if its answer is needed",
            Effect::Idempotent => "it may have been done, and doing it twice does no harm: call it again",
            Effect::Effect => "its outcome is unknown: find out what was done before you call it again",
        };
        ToolError::Failed { told: format!("{} {what}; {then}", self.spec.name), detail }
    }
}

/// What the server says of its tool. Without a word it is taken for one that changes something each time.
fn effect(tool: &Offered) -> Effect {
    let hints = tool.annotations.clone().unwrap_or_default();
    match (hints.read_only_hint, hints.idempotent_hint) {
        (Some(true), _) => Effect::Pure,
        (_, Some(true)) => Effect::Idempotent,
        _ => Effect::Effect,
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the protocol's enum may grow")]
fn is_dead(live: &Arc<Live>, error: &ServiceError) -> bool {
    match error {
        ServiceError::TransportSend(_) | ServiceError::TransportClosed => true,
        _ => live.service.is_closed(),
    }
}

/// Whether a request did not even reach a connection.
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
        async move { Ok(self.run(arguments, call.deadline).await?.into()) }.boxed()
    }
}
