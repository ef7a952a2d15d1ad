//! Resolves host names for HTTP clients, to allowed addresses only.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::{Cidr, check_address};

/// Resolves host names.
pub trait DnsLookup: Send + Sync + 'static {
    /// Returns the addresses of a name.
    fn lookup(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The machine's resolver.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemDns;

impl DnsLookup for SystemDns {
    fn lookup(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let addresses = tokio::net::lookup_host((name, 0)).await?;
            Ok(addresses.map(|address| address.ip()).collect())
        })
    }
}

/// The resolver of an HTTP client, which returns allowed addresses only. A name with any forbidden address is refused
/// completely, because no public name has one for a good reason.
pub struct CheckedResolver {
    allowed: Arc<[Cidr]>,
    lookup: Arc<dyn DnsLookup>,
}

impl CheckedResolver {
    /// Creates a resolver. `allowed` are the networks outside the public internet that are allowed.
    #[must_use]
    pub fn new(allowed: &[Cidr], lookup: Arc<dyn DnsLookup>) -> Self {
        Self { allowed: allowed.into(), lookup }
    }
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (allowed, lookup) = (Arc::clone(&self.allowed), Arc::clone(&self.lookup));
        let name = name.as_str().to_owned();
        Box::pin(async move {
            let addresses = lookup.lookup(name.clone()).await?;
            for address in &addresses {
                check_address(&allowed, &name, *address)?;
            }
            // The client replaces 0 by the URL's port.
            Ok(Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}
