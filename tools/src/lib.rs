//! Tools that reach out of the process: the web, programs and MCP servers. It knows nothing of NATS.
