//! Access control: authentication and authorisation of requests.
//!
//! | module | contents |
//! |---|---|
//! | `browser` | keeps web pages of other origins out; the cookies of pages |
//! | `authenticate` | finds the caller of a request |
//! | `tenants` | the tenants that the gateway serves, with their tokens, limits and metrics, and the access of handlers to them |
//! | `oidc/` | the tokens of an OpenID Connect provider |
//! | `limits` | the limits of single callers |
//! | `caller` | the caller |
//! | `routes` | the routes, each with the scope that it demands |
//!
//! A handler gets the cluster by [`Access`] only, which exists after the checks of its route alone.
//!
//! # Invariants
//!
//! - I163: Requests without a token are accepted on this machine only, and no web page of another origin reads or changes
//!   anything. (`gateway/src/lib.rs::addresses_that_others_reach_need_encryption`,
//!   `gateway/src/lib.rs::requests_without_a_token_are_accepted_on_this_machine_only`,
//!   `gateway/src/access/browser.rs::other_origins_may_change_nothing`,
//!   `tests/tests/gateway.rs::web_pages_of_other_origins_change_nothing`)

mod authenticate;
mod browser;
mod caller;
mod limits;
mod oidc;
mod routes;
mod tenants;

pub use authenticate::{AccessSettings, Authenticator, RequestHead, TENANT_HEADER, TenantChoice};
pub use browser::{AllowedHosts, SEC_FETCH_SITE, remove_cookies, set_cookie, set_tenant_cookie};
pub use caller::{Caller, ClientAddress, PeerAddress};
pub use limits::{CallerLimits, StreamPermit};
pub use oidc::{OidcSettings, RequiredClaim, ScopeGrant, is_safe_provider_url};
pub use routes::{ApiRoutes, TOKEN_SCHEME, check_request, require_caller};
pub use tenants::{Access, ServedTenants, TenantAccess, TenantDirectory};
