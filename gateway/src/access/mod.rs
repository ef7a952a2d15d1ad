//! Access control: authentication and authorisation of requests.
//!
//! | module | contents |
//! |---|---|
//! | `browser` | keeps web pages of other origins out |
//! | `authenticate` | finds the caller of a request |
//! | `tenants` | the tenants that the gateway serves, each with its own tokens and limits |
//! | `oidc/` | the tokens of an OpenID Connect provider |
//! | `limits` | the limits of single callers |
//! | `token_cache` | the tokens of a tenant, as they were read last |
//! | `tenant_metrics` | the metrics of a tenant |
//! | `cookie` | the cookies of pages in a browser |
//! | `caller` | the caller, and its access to the cluster as handlers receive it |
//! | `routes` | the routes, each with the scope that it demands |
//!
//! A handler gets the cluster by [`Access`] only, which exists after the checks of its route alone.

mod authenticate;
mod browser;
mod caller;
mod cookie;
mod limits;
mod oidc;
mod routes;
mod tenant_metrics;
mod tenants;
mod token_cache;

pub use authenticate::{AccessSettings, Authenticator, RequestHead, TENANT_HEADER, TenantChoice};
pub use browser::{AllowedHosts, check_request};
pub use caller::{Access, Caller, ClientAddress, PeerAddress};
pub use cookie::{remove_cookies, set_cookie, set_tenant_cookie};
pub use limits::{CallerLimits, StreamPermit};
pub use oidc::{OidcSettings, RequiredClaim, ScopeGrant, is_safe_provider_url};
pub use routes::{ApiRoutes, TOKEN_SCHEME};
pub use tenants::{ServedTenants, TenantAccess, TenantDirectory};
