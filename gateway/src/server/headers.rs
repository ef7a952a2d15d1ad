//! The headers of all requests and responses: ambiguous requests are refused (RFC 9112, section 3.2), and every response has the
//! security headers.
//!
//! A proxy or a cache in front of the gateway may take the last one of two equal lines where this server takes the first, so that each
//! would check another request.
//!
//! # Invariants
//!
//! - I340: A request whose host, origin, credentials, tenant or idempotency key can be read in two ways is answered with 400.
//!   (`tests/tests/gateway_access.rs::ambiguous_headers_are_refused`)
//! - I341: Every response of a router, redirects and errors included, has the security headers.
//!   (`tests/tests/gateway_access.rs::every_response_has_the_security_headers`)

use axum::extract::Request;
use axum::http::header::{self, HeaderName};
use axum::http::uri::{Authority, Scheme};
use axum::http::{HeaderMap, HeaderValue, Uri, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::access::{SEC_FETCH_SITE, TENANT_HEADER};
use crate::extract::IDEMPOTENCY_KEY;
use crate::problem::Problem;

/// The headers that a request may have once: those by which it is accepted, or carried out.
const SINGLE_HEADERS: [HeaderName; 7] = [
    header::HOST,
    header::AUTHORIZATION,
    header::ORIGIN,
    header::CONTENT_TYPE,
    SEC_FETCH_SITE,
    TENANT_HEADER,
    IDEMPOTENCY_KEY,
];

/// The policy of responses that are no pages: nothing in them is loaded, run or shown in a frame.
const POLICY: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Refuses requests that can be read in two ways.
pub async fn refuse_ambiguous_request(request: Request, next: Next) -> Response {
    match check_request_line(request.version(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Adds the security headers. A page keeps its own content security policy.
pub async fn add_security_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

fn check_request_line(version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    for name in &SINGLE_HEADERS {
        if headers.get_all(name).iter().count() > 1 {
            return Err(Problem::invalid(format!("the header {name} occurs several times; send it once")));
        }
    }
    let host = match headers.get(header::HOST) {
        // An empty host is allowed; the names of this server do not include it.
        Some(value) if value.is_empty() => None,
        Some(value) => {
            let host = value.to_str().ok().and_then(|text| text.parse().ok()).and_then(|it| Host::of(&it));
            Some(host.ok_or_else(|| {
                Problem::invalid(format!("the header Host must be NAME or NAME:PORT, not {value:?}"))
            })?)
        }
        None if version > Version::HTTP_10 => {
            return Err(Problem::invalid("the header Host is missing"));
        }
        None => None,
    };
    let Some(authority) = uri.authority() else { return Ok(()) };
    let target = Host::of(authority)
        .ok_or_else(|| Problem::invalid(format!("{authority:?} in the address must be NAME or NAME:PORT")))?;
    match (&host, headers.contains_key(header::HOST)) {
        // HTTP/1.0 knows requests without.
        (None, false) => Ok(()),
        (Some(host), _) if host.is_same(&target, uri.scheme()) => Ok(()),
        (Some(_) | None, _) => Err(Problem::invalid(format!(
            "the header Host names another server than the address, {authority}"
        ))),
    }
}

/// The name and the port of a server.
struct Host {
    name: String,
    port: Option<u16>,
}

impl Host {
    /// Returns `None` if there is a user or an impossible port.
    fn of(authority: &Authority) -> Option<Self> {
        let (text, name) = (authority.as_str(), authority.host());
        let port = match text.strip_prefix(name)? {
            "" | ":" => None,
            rest => {
                let digits = rest.strip_prefix(':').filter(|it| it.bytes().all(|it| it.is_ascii_digit()))?;
                Some(digits.parse().ok().filter(|port| *port > 0)?)
            }
        };
        (!name.is_empty()).then(|| Self { name: name.to_ascii_lowercase(), port })
    }

    fn is_same(&self, other: &Self, scheme: Option<&Scheme>) -> bool {
        let default_port = scheme.map(|scheme| if *scheme == Scheme::HTTPS { 443 } else { 80 });
        self.name == other.name && self.port.or(default_port) == other.port.or(default_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_clear(version: Version, target: &str, headers: &[(&str, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        check_request_line(version, &target.parse().unwrap(), &map).is_ok()
    }

    #[test]
    fn hosts_have_a_name_and_a_possible_port() {
        let is_clear = |host: &str| is_clear(Version::HTTP_11, "/", &[("host", host)]);
        for host in ["a", "a:1", "a:65535", "a:0080", "a:", "[::1]", "[::1]:7070", "127.0.0.1:7070", ""] {
            assert!(is_clear(host), "{host:?}");
        }
        for host in
            ["a:0", "a:65536", "a:99999", "a:-1", "a:+1", "a:b", "a:1:2", "a b", "a/b", "u@a", ":1", "[::1"]
        {
            assert!(!is_clear(host), "{host:?}");
        }
    }

    #[test]
    fn address_and_host_name_the_same_server() {
        let is_clear = |target: &str, host: &str| is_clear(Version::HTTP_11, target, &[("host", host)]);
        for (target, host) in
            [("http://a:1/x", "A:1"), ("http://a/", "a:80"), ("https://a:443/", "a"), ("a:1", "a:1")]
        {
            assert!(is_clear(target, host), "{target} {host}");
        }
        for (target, host) in
            [("http://a:1/", "b:1"), ("http://a:1/", "a"), ("http://a/", ""), ("http://u@a/", "a")]
        {
            assert!(!is_clear(target, host), "{target} {host}");
        }
    }

    #[test]
    fn only_old_clients_send_no_host() {
        assert!(is_clear(Version::HTTP_10, "/", &[]));
        assert!(!is_clear(Version::HTTP_11, "/", &[]));
    }

    #[test]
    fn lists_may_have_several_lines() {
        let host = ("host", "a");
        assert!(is_clear(Version::HTTP_11, "/", &[host, ("accept", "a/b"), ("accept", "c/d")]));
        for name in SINGLE_HEADERS {
            let twice = [host, (name.as_str(), "a"), (name.as_str(), "a")];
            assert!(!is_clear(Version::HTTP_11, "/", &twice), "{name}");
        }
    }
}
