//! The URLs of receivers of webhooks. A name that resolves to a private address is found when the connection is made.

use std::net::IpAddr;

use url::{Host, Url};

use crate::{Cidr, check_address};

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
