//! The command line arguments of the health and metrics server.

use std::net::SocketAddr;

/// The address of the health and metrics server.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct HttpArgs {
    /// Address of the HTTP server for /livez, /readyz and /metrics, such as 0.0.0.0:8080; no server by default
    #[arg(long = "http", env = "MILLRACE_HTTP", value_name = "ADDR")]
    pub address: Option<SocketAddr>,
}
