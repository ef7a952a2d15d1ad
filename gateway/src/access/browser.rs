//! Requests of web pages: none of another origin is accepted.
//!
//! A web page in a browser of this machine can send requests to loopback addresses. Two checks keep it out. *DNS rebinding*:
//! the page's own name resolves to a loopback address, so that the browser takes this server for the page's; such a request
//! names the page's host, and only names of this server are accepted. *Cross-site request forgery*: a page posts a form or a script
//! request to a loopback name; browsers then send `Origin` and `Sec-Fetch-Site`, and anything but the same origin is refused.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Extension;
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::authenticate::Authenticator;
use super::caller::ClientAddress;
use crate::problem::{Problem, ProblemKind};

/// The header in which browsers say which page has caused a request.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

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

/// Refuses requests of other hosts and origins.
pub async fn check_request(
    Extension(authenticator): Extension<Arc<Authenticator>>,
    mut request: Request,
    next: Next,
) -> Response {
    let address = ClientAddress::of_request(&request, authenticator.is_behind_proxy());
    request.extensions_mut().insert(address);
    let authority = request.uri().authority().map(ToString::to_string);
    let hosts = authenticator.allowed_hosts();
    match check_headers(request.method(), authority.as_deref(), request.headers(), hosts) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Returns `true` if a request that [`check_request`] accepts comes from a page of this server.
pub fn comes_from_own_page(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN) || headers.contains_key(SEC_FETCH_SITE)
}

fn check_headers(
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
