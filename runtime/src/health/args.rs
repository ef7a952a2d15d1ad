//! What every process that has a page can be told about it on the command line.

use std::net::SocketAddr;

/// Where a process says how it is.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct HttpArgs {
    /// Address at which /livez, /readyz and /metrics are served, such as 0.0.0.0:8080; none where it is left out
    #[arg(long = "http", env = "MILLRACE_HTTP", value_name = "ADDR")]
    pub address: Option<SocketAddr>,
}
