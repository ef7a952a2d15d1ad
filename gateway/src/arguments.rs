//! The options of `millrace serve` that decide who has access.

use std::net::SocketAddr;

use axum::http::uri::Authority;
use millrace_runtime::program::ProgramError;

use crate::access::{AccessSettings, AllowedHosts};

/// The options that decide who has access.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct AccessArguments {
    /// Refuse requests without a token on this machine too; on other addresses they always are
    #[arg(long, env = "MILLRACE_REQUIRE_TOKEN")]
    pub require_token: bool,
    /// A proxy in front of this server encrypts connections and sets X-Forwarded-For; requests need a token
    #[arg(long, env = "MILLRACE_BEHIND_PROXY")]
    pub behind_proxy: bool,
    /// Host name by which clients call this server, besides localhost and its addresses; may be repeated
    #[arg(long = "host", env = "MILLRACE_API_HOSTS", value_name = "NAME", value_delimiter = ',', value_parser = parse_host)]
    pub hosts: Vec<String>,
}

/// Parses a host name without a port.
fn parse_host(text: &str) -> Result<String, String> {
    let authority = text.parse::<Authority>().ok().filter(|authority| authority.host() == text);
    match authority {
        Some(_) => Ok(text.to_owned()),
        None => Err("write a host name without a scheme and a port, such as millrace.example.com".into()),
    }
}

impl AccessArguments {
    /// Checks that the API may be served on an address.
    ///
    /// # Errors
    /// Others reach it, and connections would not be encrypted.
    pub fn check_address(&self, address: SocketAddr) -> Result<(), ProgramError> {
        if address.ip().is_loopback() || self.behind_proxy {
            return Ok(());
        }
        Err(ProgramError::refused_input(format!(
            "the API is not served on {address} without encryption: tokens could be read on the way; use \
             --behind-proxy if a proxy encrypts the connections, or an address of this machine"
        )))
    }

    /// Returns the settings of a server on an address, for a user of this machine.
    #[must_use]
    pub fn settings(&self, address: SocketAddr, user: String) -> AccessSettings {
        let is_local = address.ip().is_loopback() && !self.behind_proxy;
        AccessSettings {
            allowed_hosts: AllowedHosts::new(!is_local, self.hosts.clone()),
            is_behind_proxy: self.behind_proxy,
            is_encrypted: self.behind_proxy,
            local_user: (is_local && !self.require_token).then_some(user),
        }
    }
}

#[cfg(test)]
impl AccessArguments {
    /// The options of a server behind a proxy.
    pub fn behind_proxy() -> Self {
        Self { behind_proxy: true, ..Self::default() }
    }
}
