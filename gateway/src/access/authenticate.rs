//! Finds the caller of a request by its token, in the header `Authorization` or in a cookie.
//!
//! A gateway that serves several tenants takes the tenant from the credentials alone: from the text of a token, or from a claim
//! of a signed one. The account of that tenant verifies the token then. A client learns from the responses neither which tenants
//! exist nor what is wrong with a token.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Method, header};
use millrace_protocol::tenant::TenantName;
use millrace_protocol::token::TokenText;

use super::browser::{AllowedHosts, comes_from_own_page, find_cookie, find_tenant_cookie};
use super::caller::{Caller, ClientAddress, refused_token, unauthenticated};
use super::limits::{CallerLimits, LimitEnforcer};
use super::oidc::{OidcSettings, OidcVerifier, TokenHolder};
use super::tenants::{Access, ServedTenants, TenantDirectory};
use crate::problem::{Problem, ProblemKind};

/// The header with which the holder of a token for several tenants chooses one.
pub const TENANT_HEADER: HeaderName = HeaderName::from_static("millrace-tenant");

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
    tenants: ServedTenants,
    settings: AccessSettings,
    local: Option<Arc<Caller>>,
    /// The limits of token lookups for each client address.
    lookups: LimitEnforcer,
    oidc: Option<OidcVerifier>,
}

/// The parts of a request that say who sends it.
pub struct RequestHead<'a> {
    method: &'a Method,
    headers: &'a HeaderMap,
    address: Option<IpAddr>,
}

impl<'a> RequestHead<'a> {
    #[must_use]
    pub fn of(request: &'a Request) -> Self {
        let address = request.extensions().get::<ClientAddress>().and_then(|address| address.0);
        Self { method: request.method(), headers: request.headers(), address }
    }
}

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
    pub fn new(tenants: ServedTenants, settings: AccessSettings) -> Result<Self, String> {
        let local = settings.local_user.clone().map(Caller::local);
        let lookups = LimitEnforcer::new(settings.limits, None);
        let oidc = settings.oidc.clone().map(OidcVerifier::new).transpose()?;
        Ok(Self { tenants, settings, local: local.map(Arc::new), lookups, oidc })
    }

    /// The names by which clients may call this server.
    pub fn allowed_hosts(&self) -> &AllowedHosts {
        &self.settings.allowed_hosts
    }

    /// `true` if connections come from a proxy.
    pub fn is_behind_proxy(&self) -> bool {
        self.settings.is_behind_proxy
    }

    /// `true` if requests without a token are refused.
    pub fn needs_token(&self) -> bool {
        self.settings.local_user.is_none()
    }

    /// `true` if the connections of clients are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.settings.is_encrypted
    }

    /// Finds the caller of a request.
    pub async fn authenticate(&self, head: RequestHead<'_>) -> Result<Access, Problem> {
        let RequestHead { method, headers, address } = head;
        let (text, choice) = match find_credential(headers)? {
            Credential::Bearer(text) => (text, TenantChoice::of_header(headers)),
            Credential::Cookie(text) => {
                // A browser sends the cookie with every request, whichever page has caused it.
                if !method.is_safe() && !comes_from_own_page(headers) {
                    let detail = "a change with a cookie must have an Origin or a Sec-Fetch-Site header of this server";
                    return Err(Problem::new(ProblemKind::CrossOrigin, detail));
                }
                (text, TenantChoice::of_header_or_cookie(headers))
            }
            Credential::None => return self.admit_local_user(),
        };
        self.accept_token(text, choice, address).await
    }

    /// Returns the access of the holder of a token.
    pub async fn accept_token(
        &self,
        text: &str,
        choice: TenantChoice<'_>,
        address: Option<IpAddr>,
    ) -> Result<Access, Problem> {
        if let Some(oidc) = self.oidc.as_ref().filter(|_| OidcVerifier::has_form_of_token(text)) {
            let TokenHolder { caller, tenants } = oidc.find_holder(text, address).await?;
            let tenant = match &self.tenants {
                ServedTenants::Only(tenant) => tenant.clone(),
                ServedTenants::Several(directory) => {
                    let name = choose_tenant(tenants, choice, directory)?;
                    directory.find(&name).ok_or_else(refused_token)??
                }
            };
            return tenant.admit(Arc::new(caller));
        }
        let text: TokenText = text.parse().map_err(unauthenticated)?;
        let tenant = match &self.tenants {
            ServedTenants::Only(tenant) => tenant.clone(),
            ServedTenants::Several(directory) => {
                let name = text.tenant.as_ref().filter(|name| choice.allows(name));
                match name.and_then(|name| directory.find(name)) {
                    Some(tenant) => tenant?,
                    None => {
                        // As for a token that must be looked up.
                        self.lookups.count_lookup(address)?;
                        return Err(refused_token());
                    }
                }
            }
        };
        tenant.accept_token(&text, address, &self.lookups).await
    }

    fn admit_local_user(&self) -> Result<Access, Problem> {
        match (&self.local, &self.tenants) {
            (Some(local), ServedTenants::Only(tenant)) => tenant.admit(local.clone()),
            (None, ServedTenants::Only(_)) => Err(unauthenticated(
                "this gateway needs a token; send it in the header Authorization: Bearer TOKEN",
            )),
            (_, ServedTenants::Several(_)) => Err(unauthenticated(
                "this gateway serves several tenants, so that every request needs a token, which names its tenant; send it in \
                 the header Authorization: Bearer TOKEN",
            )),
        }
    }
}

/// The tenant that a request chooses, in a header or in the cookie of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantChoice<'a>(Option<&'a str>);

impl<'a> TenantChoice<'a> {
    /// Finds the choice of a page, which has its token in a cookie too. The header has precedence.
    #[must_use]
    fn of_header_or_cookie(headers: &'a HeaderMap) -> Self {
        let Self(header) = Self::of_header(headers);
        Self(header.or_else(|| find_tenant_cookie(headers)))
    }

    /// Finds the choice in the header. Cookies don't count with a token in a header, nor for a login, which replaces them.
    #[must_use]
    pub fn of_header(headers: &'a HeaderMap) -> Self {
        // A value that is no text is no tenant either.
        Self(headers.get(TENANT_HEADER).map(|value| value.to_str().unwrap_or_default().trim()))
    }

    /// `true` if the request chooses a tenant.
    #[must_use]
    pub fn is_made(self) -> bool {
        self.0.is_some()
    }

    /// `true` if the request chooses this tenant, or none.
    fn allows(self, name: &TenantName) -> bool {
        self.0.is_none_or(|chosen| chosen == name.as_str())
    }
}

/// Returns the tenant of a request, of those in the claim of its token.
fn choose_tenant(
    named: Vec<TenantName>,
    choice: TenantChoice<'_>,
    directory: &TenantDirectory,
) -> Result<TenantName, Problem> {
    // A claim may have groups that are no tenants.
    let mut served: Vec<TenantName> = named.into_iter().filter(|name| directory.contains(name)).collect();
    served.sort();
    served.dedup();
    if choice.is_made() {
        return served.into_iter().find(|name| choice.allows(name)).ok_or_else(refused_token);
    }
    match served.as_slice() {
        [] => Err(refused_token()),
        [only] => Ok(only.clone()),
        [_, ..] => {
            let names: Vec<&str> = served.iter().map(TenantName::as_str).collect();
            let detail = format!(
                "the token is for several tenants; choose one with the header Millrace-Tenant: {}",
                names.join(" or ")
            );
            Err(Problem::new(ProblemKind::TenantNotChosen, detail))
        }
    }
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
