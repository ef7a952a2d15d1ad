//! Access: who sends a request, and whether they may.
//!
//! | module | contents |
//! |---|---|
//! | `browser` | keeps web pages of other origins out |
//! | `authenticate` | finds the caller of a request |
//! | `caller` | the caller, and its access to the cluster as handlers receive it |
//! | `routes` | the routes, each with the scope that it demands |
//!
//! A handler gets the cluster by [`Access`] only, which exists after the checks of its route alone.

mod authenticate;
mod browser;
mod caller;
mod routes;

pub use authenticate::Authenticator;
pub use browser::check_request;
pub use caller::Access;
pub use routes::{ApiRoutes, TOKEN_SCHEME};
