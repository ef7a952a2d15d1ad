//! `millrace mcp`: an MCP server over standard input and output, for assistants and agents on this machine.

use clap::Args;
use millrace_gateway::serve_mcp_on_stdio;
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandExit, CommandResult};
use crate::target::ClusterTarget;

const EXAMPLES: &str = "\
An MCP client starts this command. Its tools start runs, wait for them, answer
their questions and read their reports. `millrace serve` has the same server
at /mcp, over HTTP.

Example, in the settings of a client:
  {\"mcpServers\": {\"millrace\": {\"command\": \"millrace\", \"args\": [\"mcp\"]}}}";

/// The arguments of `millrace mcp`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct McpArguments {
    /// Author of commands and answers, recorded in the log [default: your login name]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

/// Serves one client until it closes its end.
pub async fn run_command(arguments: McpArguments, shutdown: CancellationToken) -> CommandResult {
    // The cluster is in use until the client ends.
    let (bus, _cluster_use) = arguments.target.use_cluster().await?;
    serve_mcp_on_stdio(&bus, arguments.by, shutdown).await?;
    Ok(CommandExit::Completed)
}
