//! Standard protocols: assistants and agents that know nothing of Millrace use it as they use other servers. Each is a façade: it
//! calls the operations of the API on behalf of its client, so that the same checks, scopes and rules apply. It holds nothing, and
//! any gateway continues what another one has begun.
//!
//! | module | contents |
//! |---|---|
//! | `api` | the operations of the API, and the events of a run |
//! | `run_view` | runs as models and other agents read them |
//! | `mcp` | the Model Context Protocol |
//! | `a2a` | the Agent2Agent protocol |

mod a2a;
mod api;
mod mcp;
mod run_view;

pub use a2a::{A2aServer, MEDIA_TYPE as A2A_MEDIA_TYPE, build_notification};
pub use mcp::McpServer;
