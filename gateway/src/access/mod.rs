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
mod cookie;
mod limits;
mod oidc;
mod routes;
mod tenant_metrics;
mod tenants;
mod token_cache;

pub use authenticate::{AccessSettings, Authenticator, RequestHead, TenantChoice};
pub use browser::{AllowedHosts, check_request};
pub use caller::{Access, Caller, ClientAddress, PeerAddress};
pub use cookie::{remove_cookies, set_cookie, set_tenant_cookie};
pub use limits::{CallerLimits, StreamPermit};
pub use oidc::{OidcSettings, RequiredClaim, ScopeGrant, is_safe_provider_url};
pub use routes::{ApiRoutes, TOKEN_SCHEME, require_caller};
pub use tenants::{ServedTenants, TenantAccess, TenantDirectory};
