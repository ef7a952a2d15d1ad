//! Connections to MCP servers, one per server and process: connecting, listing tools and detecting dead servers. The
//! tool calls themselves are in [`super::tool`].
//!
//! Starts the programs of MCP servers so that they end with this process, and logs their standard error.
//!
//! # Invariants
//!
//! - I35: An MCP server that dies during a call or hangs is reported, and the next call reaches a new one; no list of tools is
//!   without end. (`crates/tools/tests/mcp.rs::a_program_killed_during_a_call_is_reported_and_restarted`,
//!   `crates/tools/tests/mcp.rs::an_http_server_killed_during_a_call_is_reported`,
//!   `crates/tools/tests/mcp.rs::a_hung_server_is_replaced_at_the_next_call`,
//!   `crates/tools/tests/mcp.rs::a_list_of_tools_without_end_is_given_up`)

use std::collections::HashMap;
use std::error::Error;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millrace_protocol::secrets::{SecretRedactor, remember_secrets};
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientCapabilities, ClientConfig, ClientRequest, Implementation, PingRequest};
use rmcp::service::{NotificationContext, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientCacheConfig, ClientHandler, RoleClient, ServiceExt};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::Mutex;
use tracing::{info, warn};

use super::settings::McpServer;
use super::tool_list::{OfferedTool, list_tools};

use super::transport::{HttpMessages, ProgramTransport, error_chain};

use crate::execute::Launcher;
use crate::http_client;
use crate::program::{Program, RunningProgram};

use crate::untrusted::one_line;

/// Timeout for the ping of a server that did not answer a call in time. Without an answer the server hangs.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for closing a connection politely, and then for the exit of a server whose input was closed. Both fit into the time
/// that a worker has for stopping.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The delay before reconnecting after a failure; it doubles each time up to the maximum.
const INITIAL_RETRY_DELAY: Duration = Duration::from_millis(200);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);
pub(super) struct Connection {
    server: McpServer,
    launcher: Option<Launcher>,
    /// For connecting and listing the tools.
    timeout: Duration,
    state: Mutex<ConnectionState>,
    /// The working folder of a server that only lists its tools.
    _folder: Option<TempDir>,
}

#[derive(Default)]
struct ConnectionState {
    live: Option<Arc<LiveConnection>>,
    failures: u32,
    retry_at: Option<Instant>,
    failure: Option<(Instant, String)>,
}

pub(super) struct LiveConnection {
    pub(super) service: RunningService<RoleClient, ToolListChangeHandler>,
    tools: Mutex<Vec<OfferedTool>>,
    /// `true` if a call got no answer and nothing has been received since.
    may_hang: AtomicBool,
    /// The program of the server, which ends with the connection.
    program: Mutex<Option<RunningProgram>>,
}

/// A call without an answer yet. If it is dropped, because the call timed out or was cancelled, the server may hang: the next
/// call first checks that it does not.
pub(super) struct UnansweredCall<'a>(Option<&'a AtomicBool>);

impl UnansweredCall<'_> {
    pub(super) fn record_answer(mut self) {
        self.0 = None;
    }
}

impl Drop for UnansweredCall<'_> {
    fn drop(&mut self) {
        if let Some(may_hang) = self.0 {
            may_hang.store(true, Ordering::Release);
        }
    }
}

impl LiveConnection {
    fn is_dead(&self) -> bool {
        self.service.is_closed() || self.service.peer().is_transport_closed()
    }

    pub(super) fn begin_call(&self) -> UnansweredCall<'_> {
        UnansweredCall(Some(&self.may_hang))
    }

    /// Returns `true` if the server answers. It is only asked after a call without an answer.
    async fn is_responsive(&self) -> bool {
        if !self.may_hang.load(Ordering::Acquire) {
            return true;
        }
        let ping = self.service.peer().send_request(ClientRequest::PingRequest(PingRequest::default()));
        // A server that does not support pings answers with an error.
        let is_responsive = matches!(
            tokio::time::timeout(PING_TIMEOUT, ping).await,
            Ok(Ok(_) | Err(ServiceError::McpError(_) | ServiceError::UnexpectedResponse))
        );
        self.may_hang.store(!is_responsive, Ordering::Release);
        is_responsive
    }
}

impl Connection {
    pub(super) fn new(server: McpServer, launcher: Option<Launcher>, timeout: Duration) -> Self {
        Self { server, launcher, timeout, state: Mutex::default(), _folder: None }
    }

    pub(super) fn keeping_folder(self, folder: Option<TempDir>) -> Self {
        Self { _folder: folder, ..self }
    }

    /// Returns the connection; connects first if there is none, it is dead, or its server hangs. Calls in flight on a
    /// hung server keep their connection until they time out.
    pub(super) async fn live_connection(&self) -> Result<Arc<LiveConnection>, String> {
        let began = Instant::now();
        let mut state = self.state.lock().await;
        if let Some(live) = state.live.as_ref().filter(|live| !live.is_dead()) {
            if live.is_responsive().await {
                return Ok(Arc::clone(live));
            }
            warn!(server = self.server.name, "MCP server hangs; replacing the connection");
        }
        state.live = None;
        // Concurrent calls share one attempt to connect.
        if let Some((_, reason)) = state.failure.as_ref().filter(|(at, _)| *at > began) {
            return Err(reason.clone());
        }
        if let Some(at) = state.retry_at {
            tokio::time::sleep_until(at.into()).await;
        }
        let connected = tokio::time::timeout(self.timeout, self.connect()).await;
        match connected.unwrap_or_else(|_| Err(self.timeout_reason())) {
            Ok(live) => {
                info!(server = self.server.name, "connected to an MCP server");
                *state = ConnectionState { live: Some(Arc::new(live)), ..ConnectionState::default() };
                state.live.clone().ok_or_else(|| "is disconnected".to_owned())
            }
            Err(reason) => {
                let pause =
                    INITIAL_RETRY_DELAY.saturating_mul(1 << state.failures.min(10)).min(MAX_RETRY_DELAY);
                state.failures = state.failures.saturating_add(1);
                state.retry_at = Some(Instant::now() + pause);
                state.failure = Some((Instant::now(), reason.clone()));
                warn!(
                    server = self.server.name,
                    failures = state.failures,
                    reason,
                    "connecting to an MCP server failed"
                );
                Err(reason)
            }
        }
    }

    /// Discards a failed connection, so that the next call reconnects.
    pub(super) async fn discard_connection(&self, dead: &Arc<LiveConnection>) {
        let mut state = self.state.lock().await;
        if state.live.as_ref().is_some_and(|live| Arc::ptr_eq(live, dead)) {
            state.live = None;
        }
    }

    pub(super) async fn close(&self) {
        let live = self.state.lock().await.live.take();
        let Some(live) = live else { return };
        let program = live.program.lock().await.take();
        match Arc::try_unwrap(live) {
            Ok(mut live) => {
                // An error means that it is closed already.
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, live.service.close()).await;
            }
            // A call in flight ends with the connection.
            Err(live) => live.service.cancellation_token().cancel(),
        }
        if let Some(program) = program {
            program.end(CLOSE_TIMEOUT).await;
        }
    }

    /// Returns the tools, listed once per connection and again after the server has reported a change.
    pub(super) async fn tools(&self) -> Result<Vec<OfferedTool>, String> {
        let live = self.live_connection().await?;
        let mut tools = live.tools.lock().await;
        let changed = &live.service.service().changed;
        if changed.swap(false, Ordering::AcqRel) {
            let listing = live.begin_call();
            let listed =
                tokio::time::timeout(self.timeout, list_tools(&self.server.name, live.service.peer())).await;
            *tools = listed
                .unwrap_or_else(|_| Err(self.timeout_reason()))
                .inspect_err(|_| changed.store(true, Ordering::Release))?;
            listing.record_answer();
        }
        Ok(tools.clone())
    }

    fn timeout_reason(&self) -> String {
        format!("did not answer, or did not list its tools, within {} s", self.timeout.as_secs())
    }

    async fn connect(&self) -> Result<LiveConnection, String> {
        remember_secrets(&self.secrets());
        let handler = ToolListChangeHandler::default();
        let not_mcp_error = |e: &dyn Error| format!("is not a working MCP server: {}", error_chain(e));
        let mut program = None;
        let service = match &self.server.url {
            Some(url) => {
                handler.serve(self.http_transport(url.0.as_str())?).await.map_err(|e| not_mcp_error(&e))?
            }
            None => {
                let started = start_server_process(&self.server, self.launcher.as_ref()).await;
                let running = program.insert(started.map_err(|e| format!("cannot be started: {e}"))?);
                let pipes = running.stdout.take().zip(running.stdin.take());
                let (stdout, stdin) = pipes.ok_or_else(|| "has no pipes".to_owned())?;
                handler.serve(ProgramTransport::new(stdin, stdout)).await.map_err(|e| not_mcp_error(&e))?
            }
        };
        // The cache of the MCP library would keep every page.
        service.peer().set_response_cache_config(ClientCacheConfig::disabled()).await;
        let tools = list_tools(&self.server.name, service.peer()).await?;
        let may_hang = AtomicBool::new(false);
        Ok(LiveConnection { service, tools: Mutex::new(tools), may_hang, program: Mutex::new(program) })
    }

    /// Returns what the server gets and may echo: headers, variables, arguments, credentials in its URL.
    fn secrets(&self) -> SecretRedactor {
        let McpServer { headers, env, args, url, .. } = &self.server;
        let mut secrets = SecretRedactor::default();
        headers
            .values()
            .filter_map(|variable| std::env::var(variable).ok())
            .for_each(|value| secrets.add(&value));
        for name in env {
            secrets.add_named(name, &std::env::var(name).unwrap_or_default());
        }
        secrets.add_arguments(args);
        url.iter().for_each(|url| secrets.add_url(url.0.as_str()));
        secrets
    }

    fn http_transport(&self, url: &str) -> Result<StreamableHttpClientTransport<HttpMessages>, String> {
        let headers = self.server.headers.iter().map(|(name, variable)| {
            let value = std::env::var(variable)
                .map_err(|_| format!("needs the environment variable {variable} for its header {name}"))?;
            let invalid_header =
                |_| format!("has an invalid header {name}, or {variable} contains an invalid value");
            let key = HeaderName::try_from(name.as_str()).map_err(|e| invalid_header(e.to_string()))?;
            let mut value = HeaderValue::try_from(value).map_err(|e| invalid_header(e.to_string()))?;
            value.set_sensitive(true);
            Ok((key, value))
        });
        let headers = headers.collect::<Result<HashMap<_, _>, String>>()?;
        // Connections whose bodies were not read to the end are slow to reuse.
        let client = http_client::client().pool_max_idle_per_host(0).build().map_err(|e| error_chain(&e))?;
        let config = StreamableHttpClientTransportConfig::with_uri(url).custom_headers(headers);
        Ok(StreamableHttpClientTransport::with_client(HttpMessages(client), config))
    }
}

/// Handles messages from a server: this client supports no features, and records that the tools have changed.
#[derive(Default)]
pub(super) struct ToolListChangeHandler {
    changed: AtomicBool,
}

impl ClientHandler for ToolListChangeHandler {
    fn get_info(&self) -> ClientConfig {
        let this = Implementation::new("millrace", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), this)
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.store(true, Ordering::Release);
    }
}

/// Environment variables that are passed to all programs. Further ones are configured.
const DEFAULT_VARIABLES: [&str; 9] =
    ["HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"];

/// Maximum number of characters of a logged line.
const MAX_LOG_LINE: usize = 1_000;

/// The reason why the program of a server cannot be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("no such program `{}`; install it, or set `command` to its path", .0.display())]
    NoProgram(PathBuf),
    #[error("the program `{}` is not executable", .0.display())]
    NotExecutable(PathBuf),
    #[error("its working folder `{}` does not exist", .0.display())]
    NoFolder(PathBuf),
    #[error("{}: {error}", program.display())]
    Io { program: PathBuf, error: io::Error },
}

/// Checks that the program of a server exists. A failed start says less.
fn check_program(server: &McpServer, search_path: &OsStr) -> Result<(), StartError> {
    if let Some(folder) = server.cwd.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(StartError::NoFolder(folder.clone()));
    }
    let program = server.command.clone().unwrap_or_default();
    let candidates: Vec<PathBuf> = if program.components().count() > 1 || program.is_absolute() {
        vec![server.cwd.as_ref().map_or_else(|| program.clone(), |folder| folder.join(&program))]
    } else {
        std::env::split_paths(search_path).map(|folder| folder.join(&program)).collect()
    };
    let files: Vec<&PathBuf> = candidates.iter().filter(|path| path.is_file()).collect();
    let is_executable =
        |path: &&PathBuf| path.metadata().is_ok_and(|file| file.permissions().mode() & 0o111 != 0);
    match (files.iter().any(is_executable), files.is_empty()) {
        (true, _) => Ok(()),
        (false, false) => Err(StartError::NotExecutable(program)),
        (false, true) => Err(StartError::NoProgram(program)),
    }
}

impl McpServer {
    /// Checks that the program of a server exists, and its working folder.
    pub fn check_environment(&self) -> Result<(), String> {
        if self.command.is_none() {
            return Ok(());
        }
        let checked = check_program(self, &std::env::var_os("PATH").unwrap_or_default());
        checked.map_err(|error| format!("the MCP server {:?} can't start: {error}", self.name))
    }
}

pub(super) async fn start_server_process(
    server: &McpServer,
    launcher: Option<&Launcher>,
) -> Result<RunningProgram, StartError> {
    check_program(server, &std::env::var_os("PATH").unwrap_or_default())?;
    let name = server.command.clone().unwrap_or_default();
    let mut command = vec![name.clone().into_os_string()];
    command.extend(server.args.iter().map(Into::into));
    let program = Program { command, folder: server.cwd.clone(), ..Program::default() }
        .pass_variables(DEFAULT_VARIABLES.into_iter().chain(server.env.iter().map(String::as_str)));
    let started = RunningProgram::start(launcher, &program).await;
    let mut running = started.map_err(|error| StartError::Io { program: name, error })?;
    if let Some(stderr) = running.stderr.take() {
        tokio::spawn(log_stderr_lines(server.name.clone(), stderr));
    }
    Ok(running)
}

async fn log_stderr_lines(server: String, mut stderr: pipe::Receiver) {
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        for line in String::from_utf8_lossy(&buffer[..count]).lines().filter(|line| !line.trim().is_empty()) {
            info!(server, "{}", one_line(line, MAX_LOG_LINE));
        }
    }
}
