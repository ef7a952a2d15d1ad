//! The connections of a process to MCP servers, and the tools that they offer.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millrace_agent::tool::Tool;
use tokio::sync::Mutex;
use tracing::warn;

use super::connection::Connection;
use super::settings::McpServer;
use super::tool::McpTool;
use super::tool_list::{OfferedTool, remove_oversized_tools};
use super::workspace::{AttemptServer, WorkspaceMcpTool, create_folder};
use crate::execute::Launcher;

/// Timeout for connecting and listing the tools, all pages together. Some servers are installed on first use.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// The reason why the tools of a server are not available.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the MCP server {server:?} {reason}")]
pub struct McpError {
    pub server: String,
    pub reason: String,
}

static SHARED_POOL: OnceLock<McpPool> = OnceLock::new();

#[derive(Default)]
pub struct McpPool {
    launcher: Option<Launcher>,
    connect_timeout: Option<Duration>,
    connections: Mutex<HashMap<String, Arc<Connection>>>,
}

impl McpPool {
    /// Creates a pool. With a launcher, the kernel kills the programs of the servers when this process dies for any
    /// reason.
    pub fn new(launcher: Option<Launcher>) -> Self {
        Self { launcher, ..Self::default() }
    }

    /// Sets the timeout for connecting and listing the tools; 60 s by default.
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Returns the pool that all capabilities of this process share. The launcher of the first call is used.
    pub fn shared(launcher: Option<Launcher>) -> &'static Self {
        SHARED_POOL.get_or_init(|| Self::new(launcher))
    }

    /// Closes the pool that all capabilities of this process share, if there is one. Called when the process ends.
    pub async fn close_shared() {
        if let Some(pool) = SHARED_POOL.get() {
            pool.close().await;
        }
    }

    /// Returns the tools of a server that its settings include, under their local names. Connects if necessary.
    pub async fn tools_of_server(&self, server: &McpServer) -> Result<Vec<Arc<dyn Tool>>, McpError> {
        let error = |reason| McpError { server: server.name.clone(), reason };
        server.check().map_err(|mistake| error(format!("has invalid settings: {mistake}")))?;
        let connection = self.connection_to_server(server).await;
        let connection = connection.map_err(|fault| error(format!("has no working folder: {fault}")))?;
        let offered = connection.tools().await.map_err(error)?;
        let mut included: Vec<OfferedTool> =
            offered.into_iter().filter(|tool| server.includes_tool(&tool.name)).collect();
        remove_oversized_tools(&server.name, &mut included);
        if included.is_empty() {
            warn!(server = server.name, "no tool of this MCP server is included; check include and exclude");
        }
        let names =
            server.local_tool_names(&included.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>());
        let tools = included
            .into_iter()
            .zip(names)
            .map(|(tool, name)| McpTool::new(server, Arc::clone(&connection), name, tool));
        if server.files.is_none() {
            return Ok(tools.map(|tool| Arc::new(tool) as Arc<dyn Tool>).collect());
        }
        let of_attempt = Arc::new(AttemptServer::new(server, self.launcher.clone(), self.timeout()));
        let on_files = tools.map(|tool| WorkspaceMcpTool { tool, server: of_attempt.clone(), files: None });
        Ok(on_files.map(|tool| Arc::new(tool) as Arc<dyn Tool>).collect())
    }

    fn timeout(&self) -> Duration {
        self.connect_timeout.unwrap_or(CONNECT_TIMEOUT)
    }

    async fn connection_to_server(&self, server: &McpServer) -> std::io::Result<Arc<Connection>> {
        // These settings are specific to a capability and do not affect the connection.
        let wire = McpServer {
            include: Vec::new(),
            exclude: Vec::new(),
            prefix: None,
            timeout_s: None,
            max_result: None,
            ..server.clone()
        };
        let key = serde_json::to_string(&wire).expect("settings are JSON");
        let mut connections = self.connections.lock().await;
        if let Some(existing) = connections.get(&key) {
            return Ok(existing.clone());
        }
        // A server that works on files only lists its tools here.
        let folder = wire.files.is_some().then(create_folder).transpose()?;
        let wire = folder.as_ref().map_or_else(|| wire.clone(), |folder| wire.in_folder(folder.path()));
        let connection = Connection::new(wire, self.launcher.clone(), self.timeout()).keeping_folder(folder);
        Ok(connections.entry(key).or_insert(Arc::new(connection)).clone())
    }

    /// Closes all connections and waits until the programs of the servers have ended.
    pub async fn close(&self) {
        let connections: Vec<Arc<Connection>> =
            self.connections.lock().await.drain().map(|(_, connection)| connection).collect();
        futures::future::join_all(connections.iter().map(|connection| connection.close())).await;
    }
}
