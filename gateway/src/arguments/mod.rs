//! The options of `millrace serve` that decide who has access.

mod oidc;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use axum::http::uri::Authority;
use millrace_runtime::program::ProgramError;

use crate::access::{AccessSettings, AllowedHosts, CallerLimits};
use crate::tls::CertificateFiles;
use oidc::OidcArguments;

const MAX_REQUESTS: u32 = 1_000;
const MAX_STREAMS: u32 = 1_000;
/// The default of `--max-in-progress`: half of the connections of a gateway.
const MAX_IN_PROGRESS: u32 = 2_000;
const MAX_CONNECTIONS: u32 = 500;

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
    /// Certificate of this server and of its issuers in PEM, for encrypted connections; it is read again when it changes
    #[arg(
        long,
        env = "MILLRACE_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key",
        conflicts_with = "behind_proxy"
    )]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate in PEM
    #[arg(long, env = "MILLRACE_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The tokens of a provider.
    #[command(flatten)]
    pub oidc: OidcArguments,
    /// The limits of callers.
    #[command(flatten)]
    pub limits: LimitArguments,
}

/// The limits of single callers. The user of this machine has none.
#[derive(Debug, Clone, clap::Args)]
pub struct LimitArguments {
    /// Requests per second of a token, and lookups of tokens per second for an address; 0 for no limit
    #[arg(long, env = "MILLRACE_MAX_REQUESTS", value_name = "NUMBER", default_value_t = MAX_REQUESTS)]
    pub max_requests: u32,
    /// Open event streams of a token; 0 for no limit
    #[arg(long, env = "MILLRACE_MAX_STREAMS", value_name = "NUMBER", default_value_t = MAX_STREAMS)]
    pub max_streams: u32,
    /// Open connections from an address, unless it is a proxy or this machine; 0 for no limit
    #[arg(long, env = "MILLRACE_MAX_CONNECTIONS", value_name = "NUMBER", default_value_t = MAX_CONNECTIONS)]
    pub max_connections: u32,
    /// Requests and open event streams of a tenant at one time, with --tenants; 0 for no limit
    #[arg(long, env = "MILLRACE_MAX_IN_PROGRESS", value_name = "NUMBER", default_value_t = MAX_IN_PROGRESS)]
    pub max_in_progress: u32,
}

impl Default for LimitArguments {
    fn default() -> Self {
        Self {
            max_requests: MAX_REQUESTS,
            max_streams: MAX_STREAMS,
            max_connections: MAX_CONNECTIONS,
            max_in_progress: MAX_IN_PROGRESS,
        }
    }
}

impl LimitArguments {
    fn limits(&self) -> CallerLimits {
        CallerLimits {
            requests: NonZeroU32::new(self.max_requests),
            streams: NonZeroU32::new(self.max_streams),
        }
    }
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
    pub fn check_address(&self, address: SocketAddr) -> Result<(), ProgramError> {
        if address.ip().is_loopback() || self.behind_proxy || self.tls_cert.is_some() {
            return Ok(());
        }
        Err(ProgramError::refused_input(format!(
            "the API is not served on {address} without encryption: tokens could be read on the way; use \
             --tls-cert and --tls-key, --behind-proxy if a proxy encrypts the connections, or an address of this machine"
        )))
    }

    /// Returns the files of the certificate, if there are any.
    pub fn certificate_files(&self) -> Option<CertificateFiles> {
        let (certificate, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(CertificateFiles { certificate, key })
    }

    /// Returns the maximum number of connections from an address; `None` for no limit.
    pub fn max_connections(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.limits.max_connections).filter(|_| !self.behind_proxy)
    }

    /// Checks that the tenants of tokens can be found: `has_tenants` is `true` if the server serves several.
    pub fn check_tenants(&self, has_tenants: bool) -> Result<(), ProgramError> {
        let OidcArguments { oidc_issuer, oidc_tenant_claim, .. } = &self.oidc;
        let refused = |text: &str| Err(ProgramError::refused_input(text.to_owned()));
        match (has_tenants, oidc_issuer, oidc_tenant_claim) {
            (true, Some(_), None) => refused(
                "--oidc-issuer needs --oidc-tenant-claim if there is --tenants: a token of the provider must name its tenant",
            ),
            (false, _, Some(_)) => refused(
                "--oidc-tenant-claim needs --tenants: this gateway serves one tenant; use --oidc-require CLAIM=VALUE to accept \
                 its tokens only",
            ),
            (true, _, Some(_)) | (_, None, None) | (false, Some(_), None) => Ok(()),
        }
    }

    /// Returns the maximum number of requests and streams in progress of one of several tenants; `None` for no limit.
    pub fn max_in_progress(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.limits.max_in_progress)
    }

    /// Returns the settings of a server on an address. `user` is the user of this machine, if it needs no token.
    pub fn settings(
        &self,
        address: SocketAddr,
        user: Option<String>,
    ) -> Result<AccessSettings, ProgramError> {
        let is_local = address.ip().is_loopback() && !self.behind_proxy;
        Ok(AccessSettings {
            allowed_hosts: AllowedHosts::new(!is_local, self.hosts.clone()),
            is_behind_proxy: self.behind_proxy,
            is_encrypted: self.behind_proxy || self.tls_cert.is_some(),
            local_user: user.filter(|_| is_local && !self.require_token),
            limits: self.limits.limits(),
            oidc: self.oidc.settings()?,
        })
    }
}

#[cfg(test)]
impl AccessArguments {
    /// The options of a gateway behind a reverse proxy.
    pub fn behind_proxy() -> Self {
        Self { behind_proxy: true, ..Self::default() }
    }
}
