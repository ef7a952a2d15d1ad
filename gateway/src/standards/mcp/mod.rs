//! An MCP server: assistants start runs, wait for them, answer their questions and read their reports with tools. It speaks the
//! specification of 2026-07-28, and the earlier ones that its library knows.
//!
//! | file | contents |
//! |---|---|
//! | `tools` | the tools, as clients see them |
//! | `values` | the values of their calls |
//! | `calls` | the calls |
//! | `resources` | reports and files |
//! | `tasks` | runs as tasks of the tasks extension |
//!
//! # Invariants
//!
//! - I210: An MCP client has the permissions of its token over the HTTP API and no others; it sees the tools that it can use.
//!   (`tests/tests/standards.rs::mcp_clients_drive_runs_with_questions_to_their_ends`,
//!   `gateway/src/standards/mcp/tools.rs::caller_who_may_only_read_sees_no_tool_that_writes`)
//! - I211: A run that an MCP client has started is a task with the state, the questions and the result of the run; its questions
//!   are answered once. (`tests/tests/standards.rs::mcp_clients_drive_runs_with_questions_to_their_ends`)

mod calls;
mod resources;
mod tasks;
mod tools;
mod values;

use std::sync::Arc;

use axum::http::request::Parts;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CreateTaskResult, ErrorData, GetTaskParams,
    GetTaskResult, Implementation, ListResourceTemplatesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, UpdateTaskParams,
};
use rmcp::service::{RequestContext, ServerInitializeError};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler, ServiceExt};
use tokio_util::sync::CancellationToken;

use self::calls::{Call, ProgressSender, start_run};
use self::tools::{START_RUN, error_result, find_tool, list_tools, parse};
use super::api::Operator;
use crate::access::Access;

/// The maximum size of a request: a run may have documents.
pub const MAX_BODY: usize = 16 * 1024 * 1024;
/// The text that models read about the server.
const INSTRUCTIONS: &str = "Millrace carries out objectives as durable plans of agent tasks: research with cited sources, reports, and work \
with tools. Use start_run, then wait_for_run until `end` is present; runs take minutes to days, and survive restarts. If a run has open \
questions, ask the user and send the decision with answer_question. get_report returns the deliverable.";

#[derive(Clone)]
pub struct McpServer {
    /// The access of the user of this process; `None` if each request has its own.
    local: Option<Access>,
}

impl McpServer {
    /// Creates a server for requests whose access was checked.
    #[must_use]
    pub fn for_requests() -> Self {
        Self { local: None }
    }

    /// Creates a server for the user of this process.
    #[must_use]
    pub fn for_local_user(access: Access) -> Self {
        Self { local: Some(access) }
    }

    /// Returns the server as a service for the streamable HTTP transport. It has no sessions, so that any gateway serves the next
    /// request. The gateway checks hosts and origins.
    #[must_use]
    pub fn into_http_service(
        self,
        shutdown: CancellationToken,
    ) -> StreamableHttpService<Self, NeverSessionManager> {
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .with_json_response(true)
            .with_max_request_body_bytes(MAX_BODY)
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_cancellation_token(shutdown);
        StreamableHttpService::new(move || Ok(self.clone()), Arc::new(NeverSessionManager::default()), config)
    }

    /// Serves one client over standard input and output until it closes them.
    pub async fn serve_stdio(self, shutdown: CancellationToken) -> Result<(), Box<ServerInitializeError>> {
        let serving = Box::pin(self.serve_with_ct(rmcp::transport::stdio(), shutdown)).await;
        let running = match serving {
            Ok(running) => running,
            // The client has closed its end, or this process stops.
            Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => {
                return Ok(());
            }
            Err(error) => return Err(Box::new(error)),
        };
        drop(running.waiting().await);
        Ok(())
    }

    fn operator_of(&self, context: &RequestContext<RoleServer>) -> Result<Operator, ErrorData> {
        let operator = match (&self.local, context.extensions.get::<Parts>()) {
            (Some(access), _) => Ok(Operator::new(access.clone())),
            (None, Some(parts)) => Operator::of_request(parts),
            (None, None) => return Err(ErrorData::internal_error("the request has no head", None)),
        };
        let operator = operator.map_err(|problem| tasks::refused(&problem))?;
        Ok(operator.in_trace(context.meta.get_traceparent().unwrap_or_default()))
    }
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_tools().enable_resources().enable_tasks().build();
        let server = Implementation::new("millrace", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities).with_server_info(server).with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(list_tools(self.operator_of(&context)?.scopes())))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = find_tool(&request.name) else {
            return Err(ErrorData::invalid_params(format!("there is no tool {:?}", request.name), None));
        };
        let (operator, arguments) = (self.operator_of(&context)?, request.arguments.unwrap_or_default());
        let has_tasks = context.client_capabilities().is_some_and(|client| client.supports_tasks());
        let progress = ProgressSender::new(context.peer.clone(), context.meta.get_progress_token());
        let call = Call { operator: operator.clone(), progress };
        if request.name != START_RUN || !has_tasks {
            return Ok(tool.call(call, arguments).await.into());
        }
        // The run is in the log before the client gets the task.
        let started = match parse(arguments) {
            Ok(arguments) => start_run(call, arguments).await,
            Err(problem) => Err(problem),
        };
        Ok(match started {
            Ok(started) => {
                let task = tasks::read_task(&operator, &started.run).await?;
                CallToolResponse::Task(CreateTaskResult::new(task.task))
            }
            Err(problem) => error_result(&problem).into(),
        })
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(resources::list_templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        Ok(resources::read_resource(&self.operator_of(&context)?, &request.uri).await?.into())
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        Ok(GetTaskResult::new(tasks::read_task(&self.operator_of(&context)?, &request.task_id).await?))
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        tasks::answer_questions(&self.operator_of(&context)?, &request.task_id, request.input_responses).await
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        tasks::cancel_task(&self.operator_of(&context)?, &request.task_id).await
    }
}
