//! Tools for the web: `fetch_url` reads one page, `web_search` finds some. What a URL may lead to is decided in
//! [`policy`] and [`address`], and nowhere else; what comes back is marked as material.

mod address;
mod engines;
mod fetch;
mod page;
mod policy;
mod search;

pub use address::Unreachable;
#[cfg(feature = "mcp")]
pub(crate) use fetch::chain;
pub use fetch::{DEFAULT_CHARS, Fetch, MAX_BODY, MAX_REDIRECTS};
pub use policy::{Cidr, HostPattern, Lookup, Refusal, Settings, SystemLookup};
pub use search::{Endpoint, MAX_RESULTS, OpenError, Search, SearchSettings};
