//! The options of `millrace serve` that accept the tokens of an OpenID Connect provider.

use millrace_runtime::program::ProgramError;
use url::Url;

use crate::access::{OidcSettings, RequiredClaim, ScopeGrant, is_safe_provider_url};

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
