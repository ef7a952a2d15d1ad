//! Tools for the web: `fetch_url` reads a page, `web_search` searches. Only [`url_policy`] and
//! `millrace_address_policy` decide which URLs may be fetched; everything that comes back is marked as untrusted.

mod fetch;
mod page;
mod search;
mod url_policy;

pub use millrace_address_policy::{Cidr, DnsLookup};

pub(crate) use fetch::error_chain;
pub use fetch::{DEFAULT_CHARS, Download, DownloadError, FetchTool, MAX_REDIRECTS, download};
pub use page::MAX_BODY;
pub use search::{Endpoint, MAX_RESULTS, SearchError, SearchSettings, SearchTool};
pub use url_policy::{FetchSettings, HostPattern, UrlRefusal};
