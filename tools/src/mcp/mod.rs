//! Tools of MCP servers, over standard input and output or over streamable HTTP. A [`Pool`] holds one connection a
//! server for the whole process: it connects when a server is first needed, lists its tools once a connection, and
//! connects again when a server has died. What a server says is its own: its tools' names are made valid, its schemas
//! and descriptions are passed on as they are, and its hints on what a call changes are believed.

mod connection;
mod process;
mod result;
mod settings;
mod tool;

pub use connection::{McpError, Pool};
pub use settings::{MAX_RESULT, Server, TIMEOUT};
