//! Requests of web pages: none of another origin is accepted; and the cookies of pages.
//!
//! A web page in a browser of this machine can send requests to loopback addresses. Two checks keep it out. *DNS rebinding*:
//! the page's own name resolves to a loopback address, so that the browser takes this server for the page's; such a request
//! names the page's host, and only names of this server are accepted. *Cross-site request forgery*: a page posts a form or a script
//! request to a loopback name; browsers then send `Origin` and `Sec-Fetch-Site`, and anything but the same origin is refused.
//!
//! An event source can't set headers, so that a page sends a token, and the tenant that it chooses, in cookies.
//! The first cookie has the token itself, so that no gateway holds sessions, each gateway accepts it, and a revocation ends it. Scripts
//! can't read it, and browsers send it with requests of the same site only, below the path of the API.

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, header};
use millrace_protocol::tenant::TenantName;

use crate::problem::{Problem, ProblemKind};

/// The header in which browsers say which page has caused a request.
pub const SEC_FETCH_SITE: header::HeaderName = header::HeaderName::from_static("sec-fetch-site");

/// The names by which clients may call this server.
#[derive(Debug, Clone)]
pub struct AllowedHosts {
    /// `true` if other machines reach this server. Any address is its own then: a page that uses the DNS for an attack has a name.
    is_public: bool,
    names: Vec<String>,
}

impl AllowedHosts {
    /// Returns the names of this machine and those that are given.
    #[must_use]
    pub fn new(is_public: bool, names: Vec<String>) -> Self {
        Self { is_public, names }
    }

    fn contains(&self, text: &str) -> bool {
        let Ok(authority) = text.parse::<Authority>() else { return false };
        let host = authority.host();
        if text.contains('@') {
            return false;
        }
        match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            Ok(address) => self.is_public || address.is_loopback(),
            Err(_) => {
                let is_host = |name: &String| name.eq_ignore_ascii_case(host);
                host.eq_ignore_ascii_case("localhost") || self.names.iter().any(is_host)
            }
        }
    }
}

/// Returns `true` if a request that is accepted comes from a page of this server.
pub fn comes_from_own_page(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN) || headers.contains_key(SEC_FETCH_SITE)
}

/// Refuses requests of other hosts and origins.
pub(super) fn check_headers(
    method: &Method,
    authority: Option<&str>,
    headers: &HeaderMap,
    hosts: &AllowedHosts,
) -> Result<(), Problem> {
    let text =
        |name: &header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("\u{fffd}"));
    let host = authority.or_else(|| text(&header::HOST)).unwrap_or_default();
    if !hosts.contains(host) {
        return Err(Problem::new(
            ProblemKind::UnknownHost,
            format!(
                "the host {host:?} is not a name of this server; use its address, or start it with --host NAME"
            ),
        ));
    }
    if method.is_safe() {
        return Ok(());
    }
    let foreign = |what: String| Err(Problem::new(ProblemKind::CrossOrigin, what));
    match text(&header::ORIGIN) {
        Some(origin) if !is_origin_of_host(origin, host) => {
            foreign(format!("the origin {origin:?} is not that of this server"))
        }
        Some(_) | None => match headers.get(SEC_FETCH_SITE).map(|value| value.as_bytes()) {
            None | Some(b"same-origin" | b"none") => Ok(()),
            Some(_) => foreign("the request was sent by a page of another site".into()),
        },
    }
}

fn is_origin_of_host(origin: &str, host: &str) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
}

/// The name of the cookie with the token.
const TOKEN_COOKIE: &str = "millrace_token";
/// The name of the cookie with the tenant.
const TENANT_COOKIE: &str = "millrace_tenant";
/// The path below which browsers send it.
const PATH: &str = "/api/v1";
/// The time for which a browser keeps it: a working week and its weekend.
const MAX_AGE: u32 = 7 * 24 * 60 * 60;

/// Returns the token in the cookies of a request.
pub fn find_cookie(headers: &HeaderMap) -> Option<&str> {
    find_value(headers, TOKEN_COOKIE)
}

/// Returns the tenant in the cookies of a request.
pub fn find_tenant_cookie(headers: &HeaderMap) -> Option<&str> {
    find_value(headers, TENANT_COOKIE)
}

fn find_value<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, value)| *name == wanted && !value.is_empty()).map(|(_, value)| value)
}

/// Returns the header that sets the cookie; `None` if the token has characters that a cookie can't have.
pub fn set_cookie(token: &str, is_encrypted: bool) -> Option<HeaderValue> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if token.is_empty() || !token.bytes().all(is_plain) {
        return None;
    }
    HeaderValue::from_str(&format!("{TOKEN_COOKIE}={token}; Max-Age={MAX_AGE}; {}", attributes(is_encrypted)))
        .ok()
}

/// Returns the header that sets the cookie with the tenant, or removes one that an earlier login has set.
pub fn set_tenant_cookie(tenant: Option<&TenantName>, is_encrypted: bool) -> HeaderValue {
    match tenant {
        Some(tenant) => {
            let text = format!("{TENANT_COOKIE}={tenant}; Max-Age={MAX_AGE}; {}", attributes(is_encrypted));
            HeaderValue::from_str(&text).expect("names of tenants are ASCII")
        }
        None => remove_cookie(TENANT_COOKIE, is_encrypted),
    }
}

/// Returns the headers that remove the cookies.
pub fn remove_cookies(is_encrypted: bool) -> [HeaderValue; 2] {
    [TOKEN_COOKIE, TENANT_COOKIE].map(|name| remove_cookie(name, is_encrypted))
}

fn remove_cookie(name: &str, is_encrypted: bool) -> HeaderValue {
    let text = format!("{name}=; Max-Age=0; {}", attributes(is_encrypted));
    HeaderValue::from_str(&text).expect("the attributes of the cookie are ASCII")
}

fn attributes(is_encrypted: bool) -> String {
    let secure = if is_encrypted { "; Secure" } else { "" };
    format!("Path={PATH}; HttpOnly; SameSite=Strict{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(method: &Method, headers: &[(&str, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(header::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        check_headers(method, None, &map, &AllowedHosts::new(false, Vec::new())).is_ok()
    }

    #[test]
    fn only_loopback_names_are_hosts() {
        for host in ["localhost", "LocalHost:7070", "127.0.0.1:7070", "127.9.9.9", "[::1]:7070", "[::1]"] {
            assert!(is_allowed(&Method::GET, &[("host", host)]), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:7070",
            "10.0.0.1",
            "a@localhost",
            "[::2]",
        ] {
            assert!(!is_allowed(&Method::GET, &[("host", host)]), "{host}");
        }
    }

    #[test]
    fn public_servers_have_addresses_and_the_given_names() {
        let hosts = AllowedHosts::new(true, vec!["api.example".into()]);
        for host in ["10.0.0.1:443", "[2001:db8::1]", "API.example:8443", "localhost"] {
            assert!(hosts.contains(host), "{host}");
        }
        for host in ["evil.example", "api.example.evil.example", "x@10.0.0.1", ""] {
            assert!(!hosts.contains(host), "{host}");
        }
    }

    #[test]
    fn other_origins_may_change_nothing() {
        let host = ("host", "127.0.0.1:7070");
        assert!(is_allowed(&Method::POST, &[host]));
        assert!(is_allowed(&Method::POST, &[host, ("origin", "http://127.0.0.1:7070")]));
        assert!(is_allowed(&Method::POST, &[host, ("sec-fetch-site", "same-origin")]));
        for (name, value) in [
            ("origin", "http://127.0.0.1:3000"),
            ("origin", "http://localhost:7070"),
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
                assert!(!is_allowed(&method, &[host, (name, value)]), "{method} {name}: {value}");
            }
            assert!(
                is_allowed(&Method::GET, &[host, (name, value)]),
                "browsers hide the answer from the page"
            );
        }
    }
}

#[cfg(test)]
mod cookie_tests {
    use super::*;

    #[test]
    fn cookie_is_set_and_found() {
        let set = set_cookie("mrt_a_b", true).unwrap();
        let text = set.to_str().unwrap();
        for part in ["HttpOnly", "SameSite=Strict", "Secure", "Path=/api/v1"] {
            assert!(text.contains(part), "{text}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, text.split(';').next().unwrap().parse().unwrap());
        assert_eq!(find_cookie(&headers), Some("mrt_a_b"));
        assert!(!set_cookie("mrt_a_b", false).unwrap().to_str().unwrap().contains("Secure"));
        for wrong in ["", "a b", "a;b", "a\"b", "ä"] {
            assert!(set_cookie(wrong, true).is_none(), "{wrong}");
        }
        headers.insert(header::COOKIE, "millrace_token=; other=mrt".parse().unwrap());
        assert_eq!(find_cookie(&headers), None);
    }

    #[test]
    fn tenant_has_a_cookie_of_its_own() {
        let set = set_tenant_cookie(Some(&"acme".parse().unwrap()), true);
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, set.to_str().unwrap().split(';').next().unwrap().parse().unwrap());
        assert_eq!((find_tenant_cookie(&headers), find_cookie(&headers)), (Some("acme"), None));
        assert!(set_tenant_cookie(None, true).to_str().unwrap().contains("Max-Age=0"));
    }
}
