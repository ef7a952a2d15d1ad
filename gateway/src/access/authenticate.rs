//! Finds the caller of a request by its token, in the header `Authorization` or in a cookie.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, Method, header};
use jiff::Timestamp;
use millrace_protocol::token::{ScopeSet, StoredToken, TokenState, TokenText};

use super::browser::{AllowedHosts, comes_from_own_page};
use super::caller::{Access, Caller};
use super::cookie::find_cookie;
use super::limits::{CallerLimits, LimitEnforcer};
use super::oidc::{OidcSettings, OidcVerifier};
use super::token_cache::TokenCache;
use crate::problem::{Problem, ProblemKind};
use crate::state::SharedGateway;

/// The settings of access.
#[derive(Debug, Clone)]
pub struct AccessSettings {
    /// The names by which clients may call this server.
    pub allowed_hosts: AllowedHosts,
    /// `true` if connections come from a proxy, which names the client.
    pub is_behind_proxy: bool,
    /// `true` if the connections of clients are encrypted.
    pub is_encrypted: bool,
    /// The caller of requests without a token, who may do everything; `None` if they are refused.
    pub local_user: Option<String>,
    /// The limits of single callers.
    pub limits: CallerLimits,
    /// The provider whose tokens are accepted too.
    pub oidc: Option<OidcSettings>,
}

/// Finds the callers of requests.
pub struct Authenticator {
    gateway: SharedGateway,
    tokens: TokenCache,
    settings: AccessSettings,
    local: Option<Arc<Caller>>,
    limits: Arc<LimitEnforcer>,
    oidc: Option<OidcVerifier>,
}

/// The parts of a request that say who sends it.
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The address of the client.
    pub address: Option<IpAddr>,
}

/// The credential of a request.
#[derive(Debug, PartialEq, Eq)]
enum Credential<'a> {
    None,
    Bearer(&'a str),
    Cookie(&'a str),
}

impl Authenticator {
    /// Creates one.
    ///
    /// # Errors
    /// The TLS library can't be used: an error text for the user.
    pub fn new(gateway: SharedGateway, settings: AccessSettings) -> Result<Self, String> {
        let local = settings.local_user.clone();
        let scopes = ScopeSet::all();
        let local = local.map(|name| Caller { name, scopes, token: None, address: None, is_local: true });
        let limits = Arc::new(LimitEnforcer::new(settings.limits));
        let oidc = settings.oidc.clone().map(OidcVerifier::new).transpose()?;
        let (tokens, local) = (TokenCache::default(), local.map(Arc::new));
        Ok(Self { gateway, tokens, settings, local, limits, oidc })
    }

    /// The names by which clients may call this server.
    #[must_use]
    pub fn allowed_hosts(&self) -> &AllowedHosts {
        &self.settings.allowed_hosts
    }

    /// `true` if connections come from a proxy.
    #[must_use]
    pub fn is_behind_proxy(&self) -> bool {
        self.settings.is_behind_proxy
    }

    /// `true` if requests without a token are refused.
    #[must_use]
    pub fn needs_token(&self) -> bool {
        self.settings.local_user.is_none()
    }

    /// `true` if the connections of clients are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.settings.is_encrypted
    }

    /// Finds the caller of a request.
    ///
    /// # Errors
    /// The request has no valid token and needs one, or the cluster does not respond.
    pub async fn authenticate(&self, head: RequestHead<'_>) -> Result<Access, Problem> {
        match find_credential(head.headers)? {
            Credential::Bearer(text) => self.accept_token(text, head.address).await,
            Credential::Cookie(text) => {
                // A browser sends the cookie with every request, whichever page has caused it.
                if !head.method.is_safe() && !comes_from_own_page(head.headers) {
                    let detail = "a change with a cookie must have an Origin or a Sec-Fetch-Site header of this server";
                    return Err(Problem::new(ProblemKind::CrossOrigin, detail));
                }
                self.accept_token(text, head.address).await
            }
            Credential::None => match &self.local {
                Some(local) => self.admit(local.clone()),
                None => Err(unauthenticated(
                    "this gateway needs a token; send it in the header Authorization: Bearer TOKEN",
                )),
            },
        }
    }

    /// Returns the access of the holder of a token.
    ///
    /// # Errors
    /// The token is not valid, or the cluster does not respond.
    pub async fn accept_token(&self, text: &str, address: Option<IpAddr>) -> Result<Access, Problem> {
        if let Some(oidc) = self.oidc.as_ref().filter(|_| OidcVerifier::has_form_of_token(text)) {
            return self.admit(Arc::new(oidc.find_caller(text, address).await?));
        }
        let text: TokenText = text.parse().map_err(unauthenticated)?;
        // Whether the token, its tenant or its secret is wrong is no one's business.
        let refused = || unauthenticated("the token is not valid; it is unknown, expired, or was revoked");
        if text.tenant.is_some() {
            return Err(refused());
        }
        let token = match self.tokens.find_cached(&text.id) {
            Some(token) => token,
            None => {
                self.limits.count_lookup(address)?;
                self.tokens.read(&self.gateway.bus, &text.id).await?
            }
        };
        let token = token.filter(|token| token.is_of(&text)).ok_or_else(refused)?;
        match token.state_at(Timestamp::now()) {
            TokenState::Active => self.admit(Arc::new(caller_of(&token, address))),
            TokenState::Expired | TokenState::Revoked => Err(refused()),
        }
    }

    /// Returns the access of a caller, if it has not sent too many requests.
    fn admit(&self, caller: Arc<Caller>) -> Result<Access, Problem> {
        self.limits.count_request(&caller)?;
        Ok(Access::new(self.gateway.clone(), caller, self.limits.clone()))
    }
}

fn caller_of(token: &StoredToken, address: Option<IpAddr>) -> Caller {
    Caller {
        name: token.name.clone(),
        scopes: token.scopes.clone(),
        token: Some(token.id.clone()),
        address,
        is_local: false,
    }
}

fn unauthenticated(detail: impl std::fmt::Display) -> Problem {
    Problem::new(ProblemKind::Unauthenticated, detail)
}

/// Returns what a request has to show. The header has precedence, so that a program in a browser can use another token.
fn find_credential(headers: &HeaderMap) -> Result<Credential<'_>, Problem> {
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        return Ok(find_cookie(headers).map_or(Credential::None, Credential::Cookie));
    };
    let token = value.to_str().ok().and_then(|value| value.split_once(' '));
    match token {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
            Ok(Credential::Bearer(token.trim()))
        }
        Some(_) | None => Err(unauthenticated("the header Authorization must be: Bearer TOKEN")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(values: &[(&'static str, &str)]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.append(*name, value.parse().unwrap());
        }
        find_credential(&headers).ok().map(|credential| format!("{credential:?}"))
    }

    #[test]
    fn tokens_are_in_a_header_or_in_the_cookie() {
        assert_eq!(credential(&[]).unwrap(), "None");
        assert_eq!(credential(&[("authorization", "bearer  x")]).unwrap(), r#"Bearer("x")"#);
        assert_eq!(credential(&[("cookie", "a=b; millrace_token=x")]).unwrap(), r#"Cookie("x")"#);
        let both = [("authorization", "Bearer y"), ("cookie", "millrace_token=x")];
        assert_eq!(credential(&both).unwrap(), r#"Bearer("y")"#);
        for wrong in ["x", "Basic eDp5", "Bearer"] {
            assert_eq!(credential(&[("authorization", wrong)]), None, "{wrong}");
        }
    }
}
