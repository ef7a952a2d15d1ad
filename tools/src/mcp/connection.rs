//! Connections to MCP servers, one each, for the whole process. It owns connecting, listing tools and noticing that a
//! server has died; what a call means to a model is in [`super::tool`].

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use millrace_agent::tool::Tool;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientCapabilities, ClientConfig, Implementation, Tool as Offered};
use rmcp::service::{NotificationContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, RoleClient, ServiceExt};
use tokio::sync::Mutex;
use tracing::{info, warn};

use super::process;
use super::settings::Server;
use super::tool::McpTool;
use crate::bound::Group;
use crate::execute::Launcher;
use crate::tls;

/// How long connecting and listing the tools may take. Some servers are installed on the way.
const CONNECTING: Duration = Duration::from_secs(60);
/// The pause before a server that can't be connected to is tried again: doubled each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The most tools of one server.
const MAX_TOOLS: usize = 1_000;

/// Why a server's tools can't be had.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the MCP server {server:?} {reason}")]
pub struct McpError {
    /// Its name in the settings.
    pub server: String,
    /// What is wrong with it.
    pub reason: String,
}

/// The connections of a process.
#[derive(Default)]
pub struct Pool {
    launcher: Option<Launcher>,
    connections: Mutex<HashMap<String, Arc<Connection>>>,
}

impl Pool {
    /// A pool of its own. With a launcher, the kernel kills the servers' programs when this process dies, however it
    /// dies.
    #[must_use]
    pub fn new(launcher: Option<Launcher>) -> Self {
        Self { launcher, connections: Mutex::default() }
    }

    /// The pool that all capabilities of this process share. The first call decides on the launcher.
    pub fn of_this_process(launcher: Option<Launcher>) -> &'static Self {
        static POOL: OnceLock<Pool> = OnceLock::new();
        POOL.get_or_init(|| Self::new(launcher))
    }

    /// The tools of a server that its settings take, under their names here. Connects if need be.
    ///
    /// # Errors
    /// The settings make no sense, or the server can't be reached or does not speak MCP.
    pub async fn tools(&self, server: &Server) -> Result<Vec<Arc<dyn Tool>>, McpError> {
        let error = |reason| McpError { server: server.name.clone(), reason };
        server.check().map_err(|mistake| error(format!("is not set well: {mistake}")))?;
        let connection = self.connection(server).await;
        let offered = connection.tools().await.map_err(error)?;
        let taken: Vec<Offered> = offered.into_iter().filter(|tool| server.takes(&tool.name)).collect();
        if taken.is_empty() {
            warn!(server = server.name, "no tool of this MCP server is taken; look at include and exclude");
        }
        let names = server.names(&taken.iter().map(|tool| tool.name.to_string()).collect::<Vec<_>>());
        let tools = taken.into_iter().zip(names).map(|(tool, name)| {
            Arc::new(McpTool::new(server, Arc::clone(&connection), name, tool)) as Arc<dyn Tool>
        });
        Ok(tools.collect())
    }

    async fn connection(&self, server: &Server) -> Arc<Connection> {
        // What is taken of it, and how, is each capability's own.
        let wire = Server {
            include: Vec::new(),
            exclude: Vec::new(),
            prefix: None,
            timeout_s: None,
            max_result: None,
            ..server.clone()
        };
        let key = serde_json::to_string(&wire).expect("settings are JSON");
        let mut connections = self.connections.lock().await;
        let new = || {
            Arc::new(Connection { server: wire, launcher: self.launcher.clone(), state: Mutex::default() })
        };
        Arc::clone(connections.entry(key).or_insert_with(new))
    }

    /// Ends all connections and the programs behind them, and waits until they are gone.
    pub async fn close(&self) {
        let connections: Vec<Arc<Connection>> =
            self.connections.lock().await.drain().map(|(_, connection)| connection).collect();
        futures::future::join_all(connections.iter().map(|connection| connection.close())).await;
    }
}

/// A connection to one server, there or not.
pub(super) struct Connection {
    server: Server,
    launcher: Option<Launcher>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: Option<Arc<Live>>,
    failures: u32,
    not_before: Option<Instant>,
}

/// A connection that stands, as far as is known.
pub(super) struct Live {
    pub(super) service: RunningService<RoleClient, Handler>,
    tools: Mutex<Vec<Offered>>,
    /// After the service: first the server is asked to go, then what is left is killed.
    _program: Option<Group>,
}

impl Live {
    fn is_dead(&self) -> bool {
        self.service.is_closed() || self.service.peer().is_transport_closed()
    }
}

impl Connection {
    /// The connection, made anew if it is not there or dead.
    pub(super) async fn live(&self) -> Result<Arc<Live>, String> {
        let mut state = self.state.lock().await;
        if let Some(live) = state.live.as_ref().filter(|live| !live.is_dead()) {
            return Ok(Arc::clone(live));
        }
        state.live = None;
        if let Some(at) = state.not_before {
            tokio::time::sleep_until(at.into()).await;
        }
        let connected = tokio::time::timeout(CONNECTING, self.connect()).await;
        match connected.unwrap_or_else(|_| Err(format!("did not answer within {} s", CONNECTING.as_secs()))) {
            Ok(live) => {
                info!(server = self.server.name, "connected to an MCP server");
                *state = State { live: Some(Arc::new(live)), ..State::default() };
                state.live.clone().ok_or_else(|| "is gone".to_owned())
            }
            Err(reason) => {
                let pause = FIRST_PAUSE.saturating_mul(1 << state.failures.min(10)).min(LONGEST_PAUSE);
                state.failures = state.failures.saturating_add(1);
                state.not_before = Some(Instant::now() + pause);
                warn!(server = self.server.name, failures = state.failures, reason, "no MCP server");
                Err(reason)
            }
        }
    }

    /// Lets go of a connection that has failed, so that the next call makes another.
    pub(super) async fn drop_dead(&self, dead: &Arc<Live>) {
        let mut state = self.state.lock().await;
        if state.live.as_ref().is_some_and(|live| Arc::ptr_eq(live, dead)) {
            state.live = None;
        }
    }

    async fn close(&self) {
        let live = self.state.lock().await.live.take();
        let Some(live) = live else { return };
        match Arc::try_unwrap(live) {
            Ok(mut live) => {
                // An error means that it is gone already.
                let _ = live.service.close().await;
            }
            // A call is in flight; it ends with the connection.
            Err(live) => live.service.cancellation_token().cancel(),
        }
    }

    /// The tools, listed once a connection, and again after the server has said that they changed.
    async fn tools(&self) -> Result<Vec<Offered>, String> {
        let live = self.live().await?;
        let mut tools = live.tools.lock().await;
        if live.service.service().changed.swap(false, Ordering::AcqRel) {
            *tools = list(&live.service).await?;
        }
        Ok(tools.clone())
    }

    async fn connect(&self) -> Result<Live, String> {
        let handler = Handler::default();
        let not_mcp = |e: &dyn Error| format!("does not speak MCP: {}", chain(e));
        let mut group = None;
        let service = match &self.server.url {
            Some(url) => handler.serve(self.http(url.0.as_str())?).await.map_err(|e| not_mcp(&e))?,
            None => {
                let program = self.server.command.clone().unwrap_or_default();
                let child = process::start(&self.server, self.launcher.as_ref()).await;
                let child = child.map_err(|e| format!("can't be started: {}: {e}", program.display()))?;
                group = child.id().map(Group);
                handler.serve(child).await.map_err(|e| not_mcp(&e))?
            }
        };
        let tools = list(&service).await?;
        Ok(Live { service, tools: Mutex::new(tools), _program: group })
    }

    fn http(&self, url: &str) -> Result<StreamableHttpClientTransport<reqwest::Client>, String> {
        let headers = self.server.headers.iter().map(|(name, variable)| {
            let value =
                std::env::var(variable).map_err(|_| format!("needs {variable} for its header {name}"))?;
            let wrong = |_| format!("has a header {name} that is none, or {variable} holds no value of one");
            let key = HeaderName::try_from(name.as_str()).map_err(|e| wrong(e.to_string()))?;
            let mut value = HeaderValue::try_from(value).map_err(|e| wrong(e.to_string()))?;
            value.set_sensitive(true);
            Ok((key, value))
        });
        let headers = headers.collect::<Result<HashMap<_, _>, String>>()?;
        // Bodies that are not read to their end make connections that are slow to be used again.
        let client = tls::client().pool_max_idle_per_host(0).build().map_err(|e| chain(&e))?;
        let config = StreamableHttpClientTransportConfig::with_uri(url).custom_headers(headers);
        Ok(StreamableHttpClientTransport::with_client(client, config))
    }
}

async fn list(service: &RunningService<RoleClient, Handler>) -> Result<Vec<Offered>, String> {
    let tools =
        service.list_all_tools().await.map_err(|e| format!("does not list its tools: {}", chain(&e)))?;
    if tools.len() > MAX_TOOLS {
        return Err(format!("has {} tools; {MAX_TOOLS} is the most", tools.len()));
    }
    Ok(tools)
}

/// What this process answers to a server: it offers nothing, and notes that tools have changed.
#[derive(Default)]
pub(super) struct Handler {
    changed: AtomicBool,
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let this = Implementation::new("millrace", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), this)
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.store(true, Ordering::Release);
    }
}

pub(super) fn chain(error: &dyn Error) -> String {
    crate::web::chain(error)
}
