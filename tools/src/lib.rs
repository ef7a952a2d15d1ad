//! Tools that reach out of the process: the web ([`web`]), programs ([`execute`]) and MCP servers ([`mcp`]). They are
//! [`millrace_agent::tool::Tool`]s like any other. The crate owns what keeps each of them within bounds; it knows
//! nothing of runs, NATS or capability files, and whoever opens a tool brings its settings.

pub mod bound;
pub mod execute;
mod material;
#[cfg(feature = "mcp")]
pub mod mcp;
mod tls;
pub mod web;
