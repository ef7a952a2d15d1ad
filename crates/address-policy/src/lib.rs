//! The addresses that requests on behalf of others may go to: pages that agents read, receivers of webhooks. Only the public
//! internet is allowed, and private networks that an operator names. An address is checked in the resolver of the HTTP client,
//! so that the connection goes to the address that was checked.
//!
//! The URLs of receivers of webhooks. A name that resolves to a private address is found when the connection is made.
//!
//! Resolves host names for HTTP clients, to allowed addresses only.
//!
//! Classifies IP addresses as public or not. A pure table: it does not resolve names.
//!
//! # Invariants
//!
//! - I32: No tool reaches a private address, for any answer of a resolver and any redirect of a page.
//!   (`crates/address-policy/src/lib.rs::every_address_of_the_corpus_is_classified`,
//!   `crates/tools/tests/web.rs::dns_rebinding_is_prevented`, `crates/tools/tests/web.rs::redirects_are_limited_and_checked`)
//! - I196: No webhook connects to an address outside the public internet, unless the operator names its network.
//!   (`tests/tests/gateway_webhooks.rs::names_of_private_addresses_are_refused_when_the_connection_is_made`,
//!   `crates/address-policy/src/lib.rs::receivers_are_public_unless_the_operator_names_their_networks`)

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::{fmt, io};

use futures::future::BoxFuture;
use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// A network: an address and a prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr(IpNet);

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| format!("{text:?} is not a network; write it as \"10.1.0.0/16\""))
    }
}

impl TryFrom<String> for Cidr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.0.to_string()
    }
}

impl JsonSchema for Cidr {
    fn schema_name() -> Cow<'static, str> {
        "Cidr".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "description": "a network, such as \"10.1.0.0/16\" or \"fd12::/32\""})
    }
}

/// A host that is, or resolves to, a forbidden address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{host} resolves to {class}; only the public internet is allowed")]
pub struct AddressRefusal {
    pub host: String,
    pub class: AddressClass,
}

/// Checks an address of a host. Addresses outside the public internet must be in one of the allowed networks.
pub fn check_address(allowed: &[Cidr], host: &str, address: IpAddr) -> Result<(), AddressRefusal> {
    let is_allowed =
        || equivalent_addresses(address).iter().any(|one| allowed.iter().any(|net| net.0.contains(one)));
    match non_public_class(address) {
        Some(class) if !is_allowed() => Err(AddressRefusal { host: host.to_owned(), class }),
        Some(_) | None => Ok(()),
    }
}

/// The maximum length of a URL.
const MAX_URL: usize = 2_000;

/// The receivers that are allowed.
#[derive(Debug, Clone, Default)]
pub struct ReceiverPolicy {
    /// The networks outside the public internet that are allowed.
    networks: Vec<Cidr>,
}

impl ReceiverPolicy {
    /// Allows the public internet, and these networks.
    #[must_use]
    pub fn new(networks: Vec<Cidr>) -> Self {
        Self { networks }
    }

    /// The networks outside the public internet that are allowed.
    pub fn networks(&self) -> &[Cidr] {
        &self.networks
    }

    /// Parses the URL of a receiver, and checks everything except the addresses of its host name.
    pub fn parse_url(&self, text: &str) -> Result<Url, String> {
        if text.len() > MAX_URL {
            return Err(format!("the URL is longer than {MAX_URL} bytes"));
        }
        let url = Url::parse(text).map_err(|error| format!("{text:?} is not a URL: {error}"))?;
        match url.scheme() {
            "https" => {}
            "http" if !self.networks.is_empty() => {}
            "http" => {
                return Err(
                    "the URL must begin with https://; http is possible for receivers in networks of \
                            --allow-private-webhooks"
                        .into(),
                );
            }
            other => return Err(format!("the URL must begin with https://, not {other}:")),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("the URL must have no user name and no password".into());
        }
        if url.fragment().is_some() {
            return Err("the URL must have no fragment".into());
        }
        self.check_literal_address(&url)?;
        Ok(url)
    }

    /// Checks an address in the place of a host name, which no resolver sees.
    fn check_literal_address(&self, url: &Url) -> Result<(), String> {
        let address: IpAddr = match url.host() {
            Some(Host::Domain(_)) => return Ok(()),
            Some(Host::Ipv4(address)) => address.into(),
            Some(Host::Ipv6(address)) => address.into(),
            None => return Err("the URL has no host".into()),
        };
        check_address(&self.networks, url.authority(), address)
            .map_err(|refusal| format!("{refusal}; --allow-private-webhooks NETWORK allows it"))
    }
}

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

/// The class of an address outside the public internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressClass {
    /// This machine, or no machine.
    Loopback,
    /// A private network, including carrier-grade NAT.
    Private,
    /// The local link, which includes cloud metadata services.
    LinkLocal,
    Multicast,
    /// Reserved for documentation, tests or future use.
    Reserved,
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "an address of this machine",
            Self::Private => "an address of a private network",
            Self::LinkLocal => "a link-local address, which includes cloud metadata services",
            Self::Multicast => "a multicast address",
            Self::Reserved => "a reserved address",
        })
    }
}

/// Tables of networks: address, prefix length, class. The first match counts.
const V4: &[([u8; 4], u32, AddressClass)] = &[
    ([0, 0, 0, 0], 8, AddressClass::Loopback),
    ([10, 0, 0, 0], 8, AddressClass::Private),
    ([100, 64, 0, 0], 10, AddressClass::Private),
    ([127, 0, 0, 0], 8, AddressClass::Loopback),
    ([169, 254, 0, 0], 16, AddressClass::LinkLocal),
    ([172, 16, 0, 0], 12, AddressClass::Private),
    ([192, 0, 0, 0], 24, AddressClass::Reserved),
    ([192, 0, 2, 0], 24, AddressClass::Reserved),
    ([192, 88, 99, 0], 24, AddressClass::Reserved),
    ([192, 168, 0, 0], 16, AddressClass::Private),
    ([198, 18, 0, 0], 15, AddressClass::Reserved),
    ([198, 51, 100, 0], 24, AddressClass::Reserved),
    ([203, 0, 113, 0], 24, AddressClass::Reserved),
    ([224, 0, 0, 0], 4, AddressClass::Multicast),
    ([240, 0, 0, 0], 4, AddressClass::Reserved),
    // The Azure host that serves metadata and DNS has a public address.
    ([168, 63, 129, 16], 32, AddressClass::LinkLocal),
];

/// Like [`V4`]. Everything else outside 2000::/3 is reserved.
const V6: &[([u16; 8], u32, AddressClass)] = &[
    ([0, 0, 0, 0, 0, 0, 0, 0], 127, AddressClass::Loopback),
    ([0x100, 0, 0, 0, 0, 0, 0, 0], 64, AddressClass::Reserved),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, AddressClass::Reserved),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, AddressClass::Reserved),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, AddressClass::Reserved),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, AddressClass::Private),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, AddressClass::LinkLocal),
    ([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, AddressClass::Private),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, AddressClass::Multicast),
];

/// Returns the class of an address outside the public internet, `None` for a public one. If an IPv6 address embeds an
/// IPv4 one, both are checked.
pub fn non_public_class(address: IpAddr) -> Option<AddressClass> {
    match address {
        IpAddr::V4(v4) => classify_v4(v4),
        IpAddr::V6(v6) => match embedded_v4_address(v6) {
            Some(EmbeddedV4::InsteadOf(v4)) => classify_v4(v4),
            Some(EmbeddedV4::Within(v4)) => classify_v4(v4).or_else(|| classify_v6(v6)),
            None => classify_v6(v6),
        },
    }
}

/// Returns an address and the IPv4 address embedded in it, if any.
pub fn equivalent_addresses(address: IpAddr) -> Vec<IpAddr> {
    let inner = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) => {
            embedded_v4_address(v6).map(|(EmbeddedV4::InsteadOf(v4) | EmbeddedV4::Within(v4))| IpAddr::V4(v4))
        }
    };
    std::iter::once(address).chain(inner).collect()
}

/// An IPv4 address embedded in an IPv6 one.
enum EmbeddedV4 {
    /// The IPv6 address is another notation of it.
    InsteadOf(Ipv4Addr),
    /// The IPv6 address is routed to it through its own network.
    Within(Ipv4Addr),
}

fn embedded_v4_address(v6: Ipv6Addr) -> Option<EmbeddedV4> {
    let s = v6.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match s {
        [0, 0, 0, 0, 0, 0xffff, high, low] => Some(EmbeddedV4::InsteadOf(v4(high, low))),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(EmbeddedV4::InsteadOf(v4(high, low))),
        [0x2002, high, low, ..] => Some(EmbeddedV4::Within(v4(high, low))),
        // ISATAP: the interface part of an address of any network.
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => Some(EmbeddedV4::Within(v4(high, low))),
        _ => None,
    }
}

fn classify_v4(v4: Ipv4Addr) -> Option<AddressClass> {
    let bits = u32::from(v4);
    V4.iter()
        .find(|(net, length, _)| (bits ^ u32::from_be_bytes(*net)) >> (32 - length) == 0)
        .map(|(.., class)| *class)
}

fn classify_v6(v6: Ipv6Addr) -> Option<AddressClass> {
    let bits = u128::from(v6);
    let global = v6.segments()[0] & 0xe000 == 0x2000;
    V6.iter()
        .find(|(net, length, _)| (bits ^ u128::from(Ipv6Addr::from(*net))) >> (128 - length) == 0)
        .map(|(.., class)| *class)
        .or((!global).then_some(AddressClass::Reserved))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_private_networks_are_allowed() {
        let allowed = ["10.1.0.0/16".parse().unwrap()];
        let check = |address: &str| check_address(&allowed, "a.example", address.parse().unwrap());
        for open in ["10.1.2.3", "::ffff:10.1.2.3", "9.9.9.9"] {
            assert_eq!(check(open), Ok(()), "{open}");
        }
        for closed in ["10.2.0.1", "127.0.0.1", "169.254.169.254", "::1"] {
            assert!(check(closed).is_err(), "{closed}");
        }
        assert!("10.0.0.0".parse::<Cidr>().unwrap_err().contains("write it as"));
    }

    #[test]
    fn receivers_are_public_unless_the_operator_names_their_networks() {
        let (public, private) =
            (ReceiverPolicy::default(), ReceiverPolicy::new(vec!["127.0.0.0/8".parse().unwrap()]));
        for url in ["https://a.example/hook?x=1", "https://a.example:9443/", "https://9.9.9.9/"] {
            assert!(public.parse_url(url).is_ok() && private.parse_url(url).is_ok(), "{url}");
        }
        for url in
            ["http://127.0.0.1:1/", "https://127.1/", "https://2130706433/", "https://[::ffff:127.0.0.1]/"]
        {
            assert!(public.parse_url(url).is_err() && private.parse_url(url).is_ok(), "{url}");
        }
        for url in [
            "",
            "a.example",
            "ftp://a.example/",
            "file:///etc/passwd",
            "https://user@a.example/",
            "https://:x@a.example/",
            "https://a.example/#x",
            "https://10.0.0.1/",
            "https://169.254.169.254/latest/meta-data",
            "https://[fd00::1]/",
            "https://0x0a000001/",
            "https://0/",
            &format!("https://a.example/{}", "x".repeat(MAX_URL)),
        ] {
            assert!(public.parse_url(url).is_err() && private.parse_url(url).is_err(), "{url}");
        }
    }

    /// `address  class`, one per line.
    const CORPUS: &str = include_str!("addresses.txt");

    #[test]
    fn every_address_of_the_corpus_is_classified() {
        let mut count = 0;
        for line in CORPUS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (address, verdict) = line.split_once(char::is_whitespace).unwrap();
            let actual = non_public_class(address.parse().unwrap());
            let actual = actual.map_or("public".to_owned(), |class| format!("{class:?}").to_lowercase());
            assert_eq!(actual, verdict.trim(), "{address}");
            count += 1;
        }
        assert!(count > 70, "{count}");
    }

    #[test]
    fn embedded_ipv4_addresses_are_equivalent() {
        let inner: IpAddr = "10.1.2.3".parse().unwrap();
        for outer in ["::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "2002:a01:203::1", "2a00::5efe:10.1.2.3"] {
            assert!(equivalent_addresses(outer.parse().unwrap()).contains(&inner), "{outer}");
        }
        assert_eq!(equivalent_addresses(inner), [inner]);
    }
}
