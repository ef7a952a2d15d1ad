//! Tools that access the outside of the process: the web ([`web`]), programs ([`execute`]) and MCP servers ([`mcp`]).
//! They implement [`millrace_agent::tool::Tool`]. The crate restricts what each tool may do; it knows nothing of runs,
//! NATS or capability files, so the caller passes the settings of a tool.

pub mod execute;
mod http_client;
pub mod mcp;
pub mod program;
mod untrusted;
pub mod web;
mod working_folder;
