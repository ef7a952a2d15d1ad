//! The policy for URLs: schemes, ports and hosts. `millrace_address_policy` decides which addresses are allowed.

use std::borrow::Cow;
use std::str::FromStr;

use millrace_address_policy::{AddressRefusal, Cidr, check_address};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// The ports that are always allowed.
const DEFAULT_PORTS: [u16; 4] = [80, 443, 8080, 8443];
/// Maximum length of a URL.
const MAX_URL: usize = 4_000;

/// The settings of `fetch_url`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Settings")]
pub struct FetchSettings {
    /// Allow only these hosts: `example.org`, or `*.example.org` for its subdomains. Empty allows all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_hosts: Vec<HostPattern>,
    /// Deny these hosts, even if they are allowed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub denied_hosts: Vec<HostPattern>,
    /// Allow these ports in addition to 80, 443, 8080 and 8443.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// Allow these networks outside the public internet, such as `10.1.0.0/16` or `fd12::/32`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_private: Vec<Cidr>,
}

/// A host name, or `*.` and a domain for all its subdomains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPattern(String);

impl HostPattern {
    fn matches(&self, host: &str) -> bool {
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
            return Err(format!(
                "{text:?}: a star is only allowed at the beginning, as in \"*.example.org\""
            ));
        }
        let host = Host::parse(name).map_err(|e| format!("{text:?} is not a host name: {e}"))?;
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
        json_schema!({"type": "string", "description": "a host name, or \"*.\" and a domain for all its subdomains"})
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlRefusal {
    #[error("{0:?} is not a URL: {1}; write the full URL, such as \"https://example.org/page\"")]
    NotAUrl(String, String),
    #[error("the URL is longer than {MAX_URL} characters")]
    TooLong,
    #[error("only http and https URLs can be fetched, not {0:?}")]
    Scheme(String),
    #[error("URLs with a user name or password are not allowed; remove them")]
    Credentials,
    #[error("the URL has no host")]
    NoHost,
    #[error("port {0} is not allowed; allowed ports: {1}")]
    Port(u16, String),
    #[error("the host {0} is not allowed")]
    Host(String),
    /// Its host is, or resolves to, an address outside the public internet.
    #[error(transparent)]
    Address(#[from] AddressRefusal),
    #[error("the page redirects from https to http, which is not allowed")]
    Downgrade,
}

impl FetchSettings {
    /// Parses a URL and checks everything except the addresses of its host name.
    pub(crate) fn parse_allowed_url(&self, text: &str) -> Result<Url, UrlRefusal> {
        if text.len() > MAX_URL {
            return Err(UrlRefusal::TooLong);
        }
        let url = Url::parse(text.trim())
            .map_err(|e| UrlRefusal::NotAUrl(text.chars().take(200).collect(), e.to_string()))?;
        self.check_url(&url)?;
        Ok(url)
    }

    /// Checks everything in a URL except the addresses of its host name.
    pub(crate) fn check_url(&self, url: &Url) -> Result<(), UrlRefusal> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(UrlRefusal::Scheme(url.scheme().to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(UrlRefusal::Credentials);
        }
        let host = url.host().ok_or(UrlRefusal::NoHost)?;
        self.check_port(url)?;
        self.check_host(&host.to_string())?;
        match host {
            Host::Domain(_) => Ok(()),
            Host::Ipv4(address) => Ok(check_address(&self.allow_private, url.authority(), address.into())?),
            Host::Ipv6(address) => Ok(check_address(&self.allow_private, url.authority(), address.into())?),
        }
    }

    /// Returns the target of a redirect, if it is allowed.
    pub(crate) fn resolve_redirect(&self, from: &Url, location: &str) -> Result<Url, UrlRefusal> {
        let mut to = from
            .join(location)
            .map_err(|e| UrlRefusal::NotAUrl(location.chars().take(200).collect(), e.to_string()))?;
        self.check_url(&to)?;
        if from.scheme() == "https" && to.scheme() == "http" {
            return Err(UrlRefusal::Downgrade);
        }
        to.set_fragment(None);
        Ok(to)
    }

    fn check_port(&self, url: &Url) -> Result<(), UrlRefusal> {
        let port = url.port_or_known_default().ok_or(UrlRefusal::NoHost)?;
        if DEFAULT_PORTS.contains(&port) || self.ports.contains(&port) {
            return Ok(());
        }
        let open: Vec<String> = DEFAULT_PORTS.iter().chain(&self.ports).map(u16::to_string).collect();
        Err(UrlRefusal::Port(port, open.join(", ")))
    }

    fn check_host(&self, host: &str) -> Result<(), UrlRefusal> {
        let host = host.trim_end_matches('.').to_lowercase();
        let matches_any = |patterns: &[HostPattern]| patterns.iter().any(|pattern| pattern.matches(&host));
        if matches_any(&self.denied_hosts)
            || (!self.allowed_hosts.is_empty() && !matches_any(&self.allowed_hosts))
        {
            return Err(UrlRefusal::Host(host));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `verdict URL`, one per line.
    const CORPUS: &str = include_str!("../../tests/corpora/urls.txt");

    fn verdict(refusal: &UrlRefusal) -> &'static str {
        match refusal {
            UrlRefusal::NotAUrl(..) => "no-url",
            UrlRefusal::TooLong => "too-long",
            UrlRefusal::Scheme(_) => "scheme",
            UrlRefusal::Credentials => "credentials",
            UrlRefusal::NoHost => "no-host",
            UrlRefusal::Port(..) => "port",
            UrlRefusal::Host(_) => "host",
            UrlRefusal::Address(..) => "address",
            UrlRefusal::Downgrade => "downgrade",
        }
    }

    #[test]
    fn every_url_of_the_corpus_is_judged() {
        let settings = FetchSettings {
            denied_hosts: vec!["denied.example".parse().unwrap()],
            ..FetchSettings::default()
        };
        for line in CORPUS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (expected, url) = line.split_once(' ').unwrap();
            let url = url.replace("\\t", "\t").replace("\\n", "\n");
            let addresses = settings.parse_allowed_url(&url);
            assert_eq!(addresses.as_ref().err().map_or("ok", verdict), expected, "{url:?} {addresses:?}");
        }
        assert_eq!(
            settings.parse_allowed_url(&format!("http://a.example/{}", "x".repeat(MAX_URL))),
            Err(UrlRefusal::TooLong)
        );
    }

    #[test]
    fn hosts_are_allowed_by_name_and_by_domain() {
        let patterns = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let settings = FetchSettings {
            allowed_hosts: patterns(&["Example.org", "*.docs.rs"]),
            denied_hosts: patterns(&["secret.docs.rs"]),
            ..FetchSettings::default()
        };
        for open in
            ["https://example.org/", "https://EXAMPLE.org./x", "https://a.docs.rs", "https://a.b.docs.rs"]
        {
            assert!(settings.parse_allowed_url(open).is_ok(), "{open}");
        }
        for closed in [
            "https://www.example.org/",
            "https://docs.rs/",
            "https://evildocs.rs/",
            "https://secret.docs.rs",
            "https://secret.docs.rs./",
            "https://example.org.evil.net/",
        ] {
            assert!(matches!(settings.parse_allowed_url(closed), Err(UrlRefusal::Host(_))), "{closed}");
        }
    }

    #[test]
    fn redirects_are_checked_and_never_downgraded() {
        let settings = FetchSettings::default();
        let from = settings.parse_allowed_url("https://a.example/dir/page?q").unwrap();
        let to = |location: &str| settings.resolve_redirect(&from, location).map(|url| url.to_string());
        assert_eq!(to("../other#part"), Ok("https://a.example/other".into()));
        assert_eq!(to("//b.example/x"), Ok("https://b.example/x".into()));
        assert_eq!(to("http://a.example/"), Err(UrlRefusal::Downgrade));
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
    fn only_configured_private_networks_are_allowed() {
        let settings = FetchSettings {
            allow_private: vec!["10.1.0.0/16".parse().unwrap()],
            ports: vec![9000],
            ..FetchSettings::default()
        };
        for open in ["http://10.1.2.3:9000/", "http://[::ffff:10.1.2.3]/"] {
            assert!(settings.parse_allowed_url(open).is_ok(), "{open}");
        }
        assert!(matches!(settings.parse_allowed_url("http://10.2.0.1/"), Err(UrlRefusal::Address(..))));
        assert!(matches!(settings.parse_allowed_url("http://127.0.0.1/"), Err(UrlRefusal::Address(..))));
    }

    #[test]
    fn invalid_settings_are_rejected() {
        let mistake = |json: &str| serde_json::from_str::<FetchSettings>(json).unwrap_err().to_string();
        assert!(mistake(r#"{"allow_private":["10.0.0.0"]}"#).contains("write it as"));
        assert!(
            mistake(r#"{"allowed_hosts":["a.*.b"]}"#).contains("a star is only allowed at the beginning")
        );
        assert!(mistake(r#"{"allowed":["a"]}"#).contains("unknown field"));
        let text = r#"{"allowed_hosts":["*.example.org"],"allow_private":["fd12::/32"]}"#;
        assert_eq!(
            serde_json::to_string(&serde_json::from_str::<FetchSettings>(text).unwrap()).unwrap(),
            text
        );
    }
}
