//! The options of `millrace serve` that decide who has access, also with the tokens of an OpenID Connect provider.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use axum::http::uri::Authority;
use millrace_runtime::program::ProgramError;
use url::Url;

use crate::access::{
    AccessSettings, AllowedHosts, CallerLimits, OidcSettings, RequiredClaim, ScopeGrant, is_safe_provider_url,
};
use crate::tls::CertificateFiles;

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

/// The options for the tokens of an OpenID Connect provider.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct OidcArguments {
    /// OpenID Connect provider whose tokens are accepted: the text of their claim iss
    #[arg(long, env = "MILLRACE_OIDC_ISSUER", value_name = "URL", requires = "oidc_audience")]
    pub oidc_issuer: Option<String>,
    /// This server as tokens name it in their claim aud
    #[arg(long, env = "MILLRACE_OIDC_AUDIENCE", value_name = "NAME", requires = "oidc_issuer")]
    pub oidc_audience: Option<String>,
    /// URL of the provider's keys [default: found by the issuer]
    #[arg(long, env = "MILLRACE_OIDC_KEYS", value_name = "URL", requires = "oidc_issuer")]
    pub oidc_keys: Option<Url>,
    /// Claim with the scopes of a token: words such as millrace:read, or values of --oidc-grant [default: scope]
    #[arg(long, env = "MILLRACE_OIDC_SCOPE_CLAIM", value_name = "CLAIM", requires = "oidc_issuer")]
    pub oidc_scope_claim: Option<String>,
    /// Value of that claim and the scopes that it gives, such as engineers=read,submit; may be repeated
    #[arg(long, env = "MILLRACE_OIDC_GRANTS", value_name = "VALUE=SCOPES", value_delimiter = ';', value_parser = parse_grant, requires = "oidc_issuer")]
    pub oidc_grant: Vec<ScopeGrant>,
    /// Claim that names the holder of a token, the author of its commands [default: sub]
    #[arg(long, env = "MILLRACE_OIDC_NAME_CLAIM", value_name = "CLAIM", requires = "oidc_issuer")]
    pub oidc_name_claim: Option<String>,
    /// Claim that a token must have, such as tenant=acme; may be repeated
    #[arg(long, env = "MILLRACE_OIDC_REQUIRE", value_name = "CLAIM=VALUE", value_delimiter = ';', value_parser = parse_claim, requires = "oidc_issuer")]
    pub oidc_require: Vec<RequiredClaim>,
    /// Claim with the tenant of a token, or with several, such as groups; needed with --tenants [default: none]
    #[arg(long, env = "MILLRACE_OIDC_TENANT_CLAIM", value_name = "CLAIM", requires = "oidc_issuer")]
    pub oidc_tenant_claim: Option<String>,
}

fn parse_grant(text: &str) -> Result<ScopeGrant, String> {
    let (value, scopes) = text.rsplit_once('=').ok_or("write VALUE=SCOPES, such as engineers=read,submit")?;
    let scopes = scopes.parse().map_err(|error| format!("{error}"))?;
    Ok(ScopeGrant { value: value.to_owned(), scopes })
}

fn parse_claim(text: &str) -> Result<RequiredClaim, String> {
    let (name, value) = text.split_once('=').ok_or("write CLAIM=VALUE, such as tenant=acme")?;
    Ok(RequiredClaim { name: name.to_owned(), value: value.to_owned() })
}

impl OidcArguments {
    /// Returns the settings, if there is a provider.
    pub fn settings(&self) -> Result<Option<OidcSettings>, ProgramError> {
        let (Some(issuer_text), Some(audience)) = (&self.oidc_issuer, &self.oidc_audience) else {
            return Ok(None);
        };
        let refused = |option: &str, reason: &dyn std::fmt::Display| {
            ProgramError::refused_input(format!("{option}: {reason}"))
        };
        let issuer: Url = issuer_text.parse().map_err(|error| refused("--oidc-issuer", &error))?;
        for (option, url) in [("--oidc-issuer", Some(&issuer)), ("--oidc-keys", self.oidc_keys.as_ref())] {
            if url.is_some_and(|url| !is_safe_provider_url(url)) {
                return Err(refused(
                    option,
                    &"the URL must begin with https://, unless it is on this machine",
                ));
            }
        }
        let claim = |name: &Option<String>, default: &str| name.clone().unwrap_or_else(|| default.to_owned());
        Ok(Some(OidcSettings {
            issuer,
            issuer_text: issuer_text.clone(),
            audience: audience.clone(),
            keys_url: self.oidc_keys.clone(),
            scope_claim: claim(&self.oidc_scope_claim, "scope"),
            grants: self.oidc_grant.clone(),
            name_claim: claim(&self.oidc_name_claim, "sub"),
            required: self.oidc_require.clone(),
            tenant_claim: self.oidc_tenant_claim.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_and_claims_are_parsed() {
        let grant = parse_grant("cn=engineers=read,submit").unwrap();
        assert_eq!(
            (grant.value.as_str(), grant.scopes.to_string().as_str()),
            ("cn=engineers", "read,submit")
        );
        assert!(parse_grant("engineers").is_err() && parse_grant("engineers=all").is_err());
        assert_eq!(parse_claim("tenant=a=b").unwrap().value, "a=b");
        assert!(parse_claim("tenant").is_err());
    }

    #[test]
    fn providers_need_encryption() {
        let settings = |issuer: &str| {
            let (oidc_issuer, oidc_audience) = (Some(issuer.to_owned()), Some("millrace".to_owned()));
            OidcArguments { oidc_issuer, oidc_audience, ..OidcArguments::default() }.settings()
        };
        assert_eq!(settings("https://id.example").unwrap().unwrap().issuer_text, "https://id.example");
        assert!(settings("http://id.example").is_err() && settings("id.example").is_err());
        assert!(OidcArguments::default().settings().unwrap().is_none());
    }
}
