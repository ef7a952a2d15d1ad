//! Tools of MCP servers, over standard input and output or streamable HTTP. A [`McpPool`] keeps one connection per
//! server for the whole process: it connects on first use, lists the tools once per connection, and reconnects after a
//! server has died or hangs. Servers are untrusted: lists of tools are bounded, tool names are made valid, and all text of
//! a server is marked before a model sees it. The hints on side effects are taken from the server.

mod connection;
mod pool;
mod settings;
mod tool;
mod tool_list;
mod transport;
mod workspace;

pub use pool::{McpError, McpPool};
pub use settings::{DEFAULT_TIMEOUT, MAX_RESULT, McpServer};
