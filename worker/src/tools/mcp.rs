//! The MCP servers of an agent, as its file configures them. Connections are in a pool that the whole process shares.

use std::sync::Arc;

use millrace_agent::tool::{Tool, schema_of};
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_strict_yaml::{MistakeCollector, YamlMistake, YamlMistakes, YamlNode, collect_node};
use millrace_tools::mcp::{McpPool, McpServer};
use serde_json::Value;

use super::launcher_of_this_program;

/// The servers that one agent names.
#[derive(Clone, Default)]
pub(crate) struct McpServers(Vec<McpServer>);

impl McpServers {
    /// Parses and checks the servers of a file.
    pub fn parse(nodes: &[YamlNode]) -> Result<Self, YamlMistakes> {
        let mut mistakes = MistakeCollector::default();
        let mut servers = Vec::new();
        for node in nodes {
            let before = mistakes.count();
            let Some(server) = collect_node::<McpServer>(node, "MCP server", &mut mistakes) else { continue };
            match server.check() {
                Err(why) if mistakes.count() == before => {
                    let text = format!("this MCP server can't be used: {why}");
                    mistakes.add(YamlMistake::at_position(node.position, text));
                }
                Ok(()) | Err(_) => servers.push(server),
            }
        }
        mistakes.finish().map(|()| Self(servers))
    }

    /// Checks that the programs of the servers exist.
    pub fn check_environment(&self) -> Result<(), String> {
        self.0.iter().try_for_each(McpServer::check_environment)
    }

    /// Returns the tools of all servers. Servers are connected at the first call.
    ///
    /// # Errors
    /// One of the servers is not available.
    pub async fn open_tools(&self) -> Result<Vec<Arc<dyn Tool>>, TaskError> {
        let pool = McpPool::shared(launcher_of_this_program());
        let mut tools = Vec::new();
        for server in &self.0 {
            let listed = pool.tools_of_server(server).await;
            tools.extend(listed.map_err(|error| TaskError::new(ErrorKind::Tool, error.to_string()))?);
        }
        Ok(tools)
    }
}

/// Returns the JSON Schema of a server in a file.
pub(crate) fn mcp_servers_schema() -> Value {
    schema_of::<McpServer>()
}
