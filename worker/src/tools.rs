//! The tools that a capability file can name: the built-in ones of `millrace_agent`, and those that reach outside of the
//! process, which are opened here.
//!
//! The MCP servers of an agent, as its file configures them. Connections are in a pool that the whole process shares.

use std::process::ExitCode;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::session::tools as built_in;
use millrace_agent::spec::{AgentSpec, ToolNames, ToolReference};
use millrace_agent::tool::{Tool, schema_of};
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_strict_yaml::{
    MistakeCollector, YamlMistake, YamlMistakes, YamlNode, collect_node, deserialize_node,
};
use millrace_tools::execute::{self, ExecuteTool, Launcher, WorkspaceExecuteTool};
use millrace_tools::mcp::{McpPool, McpServer};
use millrace_tools::web::{self, FetchTool, SearchSettings, SearchTool};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A tool that reaches outside of the process. All of them have settings.
struct OutsideToolEntry {
    name: &'static str,
    /// The JSON Schema of its settings.
    schema: fn() -> Value,
    open: for<'a> fn(&'a ToolReference) -> OpenToolFuture<'a>,
}

/// A tool that is being opened.
type OpenToolFuture<'a> = BoxFuture<'a, Result<Arc<dyn Tool>, YamlMistakes>>;

/// Every tool that reaches outside of the process.
const OUTSIDE: [OutsideToolEntry; 3] = [
    OutsideToolEntry {
        name: "execute",
        schema: schema_of::<execute::ExecuteSettings>,
        open: |entry| open_execute(entry).boxed(),
    },
    OutsideToolEntry {
        name: "fetch_url",
        schema: schema_of::<web::FetchSettings>,
        open: |entry| open_fetch(entry).boxed(),
    },
    OutsideToolEntry {
        name: "web_search",
        schema: schema_of::<SearchSettings>,
        open: |entry| open_search(entry).boxed(),
    },
];

/// Does the work of an internal process if this process was started as one: the launcher of a tool that runs programs, the
/// keeper of a program, or the reader of a document. Returns `None` at once otherwise. It must be the first call in `main`, before
/// there are threads, so it must not run within `#[tokio::main]`. Without it there is no `execute` tool, processes of programs,
/// hooks and MCP servers may outlive their attempt and the worker, and PDF and office documents are not read.
#[must_use]
pub fn run_as_launcher() -> Option<ExitCode> {
    execute::launcher().or_else(millrace_documents::run_as_extractor)
}

/// Returns this program as a launcher, if its `main` calls [`launcher`].
pub(crate) fn launcher_of_this_program() -> Option<Launcher> {
    Launcher::this_program()
}

/// The catalogue of all tools that a worker's capability files can name.
pub(crate) struct AllToolNames;

impl ToolNames for AllToolNames {
    fn names(&self) -> Vec<&str> {
        built_in::list_built_in_tool_names().chain(OUTSIDE.map(|tool| tool.name)).collect()
    }

    fn has_settings(&self, name: &str) -> bool {
        OUTSIDE.iter().any(|tool| tool.name == name)
    }
}

/// Returns all names, with the settings' schema of those that have settings.
pub(crate) fn tool_schemas() -> Vec<(&'static str, Option<Value>)> {
    let built_in = built_in::list_built_in_tool_names().map(|name| (name, None));
    built_in.chain(OUTSIDE.map(|tool| (tool.name, Some((tool.schema)())))).collect()
}

/// Opens the tools of an agent that reach outside of the process.
pub(crate) async fn open_outside_tools(spec: &AgentSpec) -> Result<Vec<Arc<dyn Tool>>, YamlMistakes> {
    let mut tools = Vec::new();
    for entry in &spec.tools {
        if let Some(tool) = OUTSIDE.iter().find(|tool| tool.name == entry.name) {
            tools.push((tool.open)(entry).await?);
        }
    }
    Ok(tools)
}

async fn open_execute(entry: &ToolReference) -> Result<Arc<dyn Tool>, YamlMistakes> {
    let settings = parse_settings::<execute::ExecuteSettings>(entry)?;
    let launcher =
        launcher_of_this_program().ok_or_else(|| unavailable_tool_error(entry, &MissingLauncher))?;
    let tool =
        ExecuteTool::open(settings, launcher).await.map_err(|error| unavailable_tool_error(entry, &error))?;
    Ok(Arc::new(WorkspaceExecuteTool::new(tool)))
}

async fn open_fetch(entry: &ToolReference) -> Result<Arc<dyn Tool>, YamlMistakes> {
    let tool =
        FetchTool::new(parse_settings(entry)?).map_err(|error| unavailable_tool_error(entry, &error))?;
    Ok(Arc::new(tool))
}

async fn open_search(entry: &ToolReference) -> Result<Arc<dyn Tool>, YamlMistakes> {
    let tool =
        SearchTool::new(parse_settings(entry)?).map_err(|error| unavailable_tool_error(entry, &error))?;
    Ok(Arc::new(tool))
}

/// This program can't confine commands.
#[derive(Debug, thiserror::Error)]
#[error("this program can't sandbox commands; call millrace_worker::run_as_launcher() first in its main")]
struct MissingLauncher;

fn parse_settings<T: DeserializeOwned + Default>(entry: &ToolReference) -> Result<T, YamlMistakes> {
    entry.settings.as_ref().map_or_else(|| Ok(T::default()), |node| deserialize_node(node, &entry.name))
}

fn unavailable_tool_error(entry: &ToolReference, error: &dyn std::error::Error) -> YamlMistakes {
    let text = format!("the tool {:?} is not available here: {error}", entry.name);
    YamlMistake::at_position(entry.position, text).into()
}

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
