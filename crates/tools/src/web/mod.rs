//! Tools for the web: `fetch_url` reads a page, `web_search` searches. Only [`url_policy`] and [`public_address`] decide
//! which URLs may be fetched; everything that comes back is marked as untrusted.

mod download;
mod engines;
mod fetch;
mod page;
mod public_address;
mod search;
mod url_policy;

pub use download::{Download, DownloadError, download};
#[cfg(feature = "mcp")]
pub(crate) use fetch::error_chain;
pub use fetch::{DEFAULT_CHARS, FetchTool, MAX_BODY, MAX_REDIRECTS};
pub use public_address::AddressClass;
pub use search::{Endpoint, MAX_RESULTS, SearchError, SearchSettings, SearchTool};
pub use url_policy::{Cidr, DnsLookup, FetchSettings, HostPattern, SystemDns, UrlRefusal};
