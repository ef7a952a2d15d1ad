//! What a URL may lead to: schemes, ports, hosts and addresses. Addresses are checked by the resolver that the HTTP
//! client uses, so that the connection goes to the very address that was checked.

use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use futures::future::BoxFuture;
use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use super::address::{Unreachable, meanings, unreachable};

/// The ports that are open without being named.
const PORTS: [u16; 4] = [80, 443, 8080, 8443];
/// The longest URL.
const MAX_URL: usize = 4_000;

/// What `fetch_url` may reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// If any are named, only these hosts may be reached: `example.org`, or `*.example.org` for all below it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_hosts: Vec<HostPattern>,
    /// These hosts may not be reached, allowed or not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub denied_hosts: Vec<HostPattern>,
    /// Ports that may be reached besides 80, 443, 8080 and 8443.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// Networks that may be reached although they are not of the public internet, as `10.1.0.0/16` or `fd12::/32`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_private: Vec<Cidr>,
}

/// A host name, or `*.` and one for all names below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPattern(String);

impl HostPattern {
    fn fits(&self, host: &str) -> bool {
        match self.0.strip_prefix("*.") {
            Some(parent) => host.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.')),
            None => self.0 == host,
        }
    }
}

impl FromStr for HostPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.strip_prefix("*.").unwrap_or(text);
        if name.contains('*') {
            return Err(format!("{text:?}: a star may only stand first, as in \"*.example.org\""));
        }
        let host = Host::parse(name).map_err(|e| format!("{text:?} is no host name: {e}"))?;
        let host = host.to_string();
        let host = host.trim_end_matches('.');
        Ok(Self(if name.len() < text.len() { format!("*.{host}") } else { host.to_owned() }))
    }
}

impl TryFrom<String> for HostPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<HostPattern> for String {
    fn from(pattern: HostPattern) -> Self {
        pattern.0
    }
}

impl JsonSchema for HostPattern {
    fn schema_name() -> Cow<'static, str> {
        "HostPattern".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "description": "a host name, or \"*.\" and one for all names below it"})
    }
}

/// A network: an address and the length of its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr(IpNet);

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| format!("{text:?} is no network; write it as \"10.1.0.0/16\""))
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
        json_schema!({"type": "string", "description": "a network, as \"10.1.0.0/16\" or \"fd12::/32\""})
    }
}

/// Why a URL is not fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is no URL.
    #[error("{0:?} is no URL: {1}; write it whole, as \"https://example.org/page\"")]
    NotAUrl(String, String),
    /// It is too long.
    #[error("the URL is longer than {MAX_URL} characters")]
    TooLong,
    /// It is not of the web.
    #[error("only http and https URLs can be fetched, not {0:?}")]
    Scheme(String),
    /// It holds a user name or password.
    #[error("URLs with a user name or password in them are not fetched; leave them out")]
    Credentials,
    /// It names no host.
    #[error("the URL names no host")]
    NoHost,
    /// Its port is closed.
    #[error("port {0} is not open to this tool; open are {1}")]
    Port(u16, String),
    /// Its host is not among those that are allowed.
    #[error("the host {0} is not open to this tool")]
    Host(String),
    /// Its host is, or resolves to, an address outside the public internet.
    #[error("{0} leads to {1}; this tool reaches the public internet only")]
    Address(String, Unreachable),
    /// A redirect leaves the encrypted connection.
    #[error("the page redirects from https to http, which is not followed")]
    Downgrade,
}

impl Settings {
    /// Reads a URL and checks all of it that needs no resolving.
    pub(crate) fn url(&self, text: &str) -> Result<Url, Refusal> {
        if text.len() > MAX_URL {
            return Err(Refusal::TooLong);
        }
        let url = Url::parse(text.trim())
            .map_err(|e| Refusal::NotAUrl(text.chars().take(200).collect(), e.to_string()))?;
        self.check(&url)?;
        Ok(url)
    }

    /// Checks all of a URL that needs no resolving.
    pub(crate) fn check(&self, url: &Url) -> Result<(), Refusal> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Refusal::Scheme(url.scheme().to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refusal::Credentials);
        }
        let host = url.host().ok_or(Refusal::NoHost)?;
        self.check_port(url)?;
        self.check_host(&host.to_string())?;
        match host {
            Host::Domain(_) => Ok(()),
            Host::Ipv4(address) => self.check_address(url.authority(), address.into()),
            Host::Ipv6(address) => self.check_address(url.authority(), address.into()),
        }
    }

    /// Where a redirect leads, if it may be followed.
    pub(crate) fn redirect(&self, from: &Url, location: &str) -> Result<Url, Refusal> {
        let mut to = from
            .join(location)
            .map_err(|e| Refusal::NotAUrl(location.chars().take(200).collect(), e.to_string()))?;
        self.check(&to)?;
        if from.scheme() == "https" && to.scheme() == "http" {
            return Err(Refusal::Downgrade);
        }
        to.set_fragment(None);
        Ok(to)
    }

    fn check_port(&self, url: &Url) -> Result<(), Refusal> {
        let port = url.port_or_known_default().ok_or(Refusal::NoHost)?;
        if PORTS.contains(&port) || self.ports.contains(&port) {
            return Ok(());
        }
        let open: Vec<String> = PORTS.iter().chain(&self.ports).map(u16::to_string).collect();
        Err(Refusal::Port(port, open.join(", ")))
    }

    fn check_host(&self, host: &str) -> Result<(), Refusal> {
        let host = host.trim_end_matches('.').to_lowercase();
        let named = |patterns: &[HostPattern]| patterns.iter().any(|pattern| pattern.fits(&host));
        if named(&self.denied_hosts) || (!self.allowed_hosts.is_empty() && !named(&self.allowed_hosts)) {
            return Err(Refusal::Host(host));
        }
        Ok(())
    }

    fn check_address(&self, host: &str, address: IpAddr) -> Result<(), Refusal> {
        let allowed =
            || meanings(address).iter().any(|one| self.allow_private.iter().any(|net| net.0.contains(one)));
        match unreachable(address) {
            Some(why) if !allowed() => Err(Refusal::Address(host.to_owned(), why)),
            Some(_) | None => Ok(()),
        }
    }
}

/// What turns names into addresses.
pub trait Lookup: Send + Sync + 'static {
    /// The addresses of a name.
    fn lookup(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The resolver of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// The HTTP client's resolver: it hands out checked addresses only. A name with one forbidden address among others is
/// refused whole, since no public name has one for a good reason.
pub(crate) struct CheckedResolver {
    pub(crate) settings: Arc<Settings>,
    pub(crate) lookup: Arc<dyn Lookup>,
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (settings, lookup) = (Arc::clone(&self.settings), Arc::clone(&self.lookup));
        let name = name.as_str().to_owned();
        Box::pin(async move {
            let found = lookup.lookup(name.clone()).await?;
            for address in &found {
                settings.check_address(&name, *address)?;
            }
            // The client puts the URL's port in place of 0.
            Ok(Box::new(found.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `URL  verdict`, one a line.
    const CORPUS: &str = include_str!("../../tests/corpora/urls.txt");

    fn verdict(refusal: &Refusal) -> &'static str {
        match refusal {
            Refusal::NotAUrl(..) => "no-url",
            Refusal::TooLong => "too-long",
            Refusal::Scheme(_) => "scheme",
            Refusal::Credentials => "credentials",
            Refusal::NoHost => "no-host",
            Refusal::Port(..) => "port",
            Refusal::Host(_) => "host",
            Refusal::Address(..) => "address",
            Refusal::Downgrade => "downgrade",
        }
    }

    #[test]
    fn every_url_of_the_corpus_gets_its_verdict() {
        let settings =
            Settings { denied_hosts: vec!["denied.example".parse().unwrap()], ..Settings::default() };
        for line in CORPUS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (expected, url) = line.split_once(' ').unwrap();
            let url = url.replace("\\t", "\t").replace("\\n", "\n");
            let found = settings.url(&url);
            assert_eq!(found.as_ref().err().map_or("ok", verdict), expected, "{url:?} {found:?}");
        }
        assert_eq!(settings.url(&format!("http://a.example/{}", "x".repeat(MAX_URL))), Err(Refusal::TooLong));
    }

    #[test]
    fn hosts_are_allowed_by_name_and_by_what_is_above_them() {
        let patterns = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let settings = Settings {
            allowed_hosts: patterns(&["Example.org", "*.docs.rs"]),
            denied_hosts: patterns(&["secret.docs.rs"]),
            ..Settings::default()
        };
        for open in
            ["https://example.org/", "https://EXAMPLE.org./x", "https://a.docs.rs", "https://a.b.docs.rs"]
        {
            assert!(settings.url(open).is_ok(), "{open}");
        }
        for closed in [
            "https://www.example.org/",
            "https://docs.rs/",
            "https://evildocs.rs/",
            "https://secret.docs.rs",
            "https://secret.docs.rs./",
            "https://example.org.evil.net/",
        ] {
            assert!(matches!(settings.url(closed), Err(Refusal::Host(_))), "{closed}");
        }
    }

    #[test]
    fn redirects_are_checked_like_urls_and_never_leave_encryption() {
        let settings = Settings::default();
        let from = settings.url("https://a.example/dir/page?q").unwrap();
        let to = |location: &str| settings.redirect(&from, location).map(|url| url.to_string());
        assert_eq!(to("../other#part"), Ok("https://a.example/other".into()));
        assert_eq!(to("//b.example/x"), Ok("https://b.example/x".into()));
        assert_eq!(to("http://a.example/"), Err(Refusal::Downgrade));
        for (location, expected) in [
            ("http://169.254.169.254/latest/meta-data", "address"),
            ("//[::1]/", "address"),
            ("https://user@a.example/", "credentials"),
            ("file:///etc/passwd", "scheme"),
            ("https://a.example:22/", "port"),
        ] {
            assert_eq!(to(location).map_err(|refusal| verdict(&refusal)), Err(expected), "{location}");
        }
    }

    #[test]
    fn a_private_network_that_is_allowed_is_reached_and_no_other() {
        let settings = Settings {
            allow_private: vec!["10.1.0.0/16".parse().unwrap()],
            ports: vec![9000],
            ..Settings::default()
        };
        for open in ["http://10.1.2.3:9000/", "http://[::ffff:10.1.2.3]/"] {
            assert!(settings.url(open).is_ok(), "{open}");
        }
        assert!(matches!(settings.url("http://10.2.0.1/"), Err(Refusal::Address(..))));
        assert!(matches!(settings.url("http://127.0.0.1/"), Err(Refusal::Address(..))));
    }

    #[test]
    fn settings_say_what_is_wrong_with_them() {
        let mistake = |json: &str| serde_json::from_str::<Settings>(json).unwrap_err().to_string();
        assert!(mistake(r#"{"allow_private":["10.0.0.0"]}"#).contains("write it as"));
        assert!(mistake(r#"{"allowed_hosts":["a.*.b"]}"#).contains("a star may only stand first"));
        assert!(mistake(r#"{"allowed":["a"]}"#).contains("unknown field"));
        let text = r#"{"allowed_hosts":["*.example.org"],"allow_private":["fd12::/32"]}"#;
        assert_eq!(serde_json::to_string(&serde_json::from_str::<Settings>(text).unwrap()).unwrap(), text);
    }
}
