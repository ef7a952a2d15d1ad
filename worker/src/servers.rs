//! The MCP servers of an agent. It owns what a file says of them; connecting is the pool's, which the whole process has
//! in common.

use std::sync::Arc;

use millrace_agent::tool::{Tool, schema_of};
use millrace_forms::{Mistake, Node, typed};
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_tools::mcp::{Pool, Server};
use serde_json::Value;

use crate::shelf::this_program;

/// The servers that one agent names.
#[derive(Clone, Default)]
pub(crate) struct Servers(Vec<Server>);

impl Servers {
    /// Reads them from their places in a file.
    ///
    /// # Errors
    /// The first mistake in them.
    pub fn read(nodes: &[Node]) -> Result<Self, Mistake> {
        let server = |node: &Node| {
            let server: Server = typed(node, "MCP server")?;
            match server.check() {
                Ok(()) => Ok(server),
                Err(why) => Err(Mistake::at(node.place, format!("this MCP server can't be used: {why}"))),
            }
        };
        nodes.iter().map(server).collect::<Result<_, _>>().map(Self)
    }

    /// Their tools. Servers are connected when they are first needed.
    ///
    /// # Errors
    /// One of them can't be had now.
    pub async fn tools(&self) -> Result<Vec<Arc<dyn Tool>>, TaskError> {
        let pool = Pool::of_this_process(this_program());
        let mut tools = Vec::new();
        for server in &self.0 {
            let offered = pool.tools(server).await;
            tools.extend(offered.map_err(|error| TaskError::new(ErrorKind::Tool, error.to_string()))?);
        }
        Ok(tools)
    }
}

/// The JSON Schema of a server in a file.
pub(crate) fn schema() -> Value {
    schema_of::<Server>()
}
