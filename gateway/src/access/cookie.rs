//! The cookies with which a page in a browser sends a token, and the tenant that it chooses: an event source can't set headers.
//!
//! The first cookie has the token itself, so that no gateway holds sessions, each gateway accepts it, and a revocation ends it. Scripts
//! can't read it, and browsers send it with requests of the same site only, below the path of the API.

use axum::http::{HeaderMap, HeaderValue, header};
use millrace_protocol::tenant::TenantName;

const NAME: &str = "millrace_token";
/// The name of the cookie with the tenant.
const TENANT: &str = "millrace_tenant";
/// The path below which browsers send it.
const PATH: &str = "/api/v1";
/// The time for which a browser keeps it: a working week and its weekend.
const MAX_AGE: u32 = 7 * 24 * 60 * 60;

/// Returns the token in the cookies of a request.
pub fn find_cookie(headers: &HeaderMap) -> Option<&str> {
    find_value(headers, NAME)
}

/// Returns the tenant in the cookies of a request.
pub fn find_tenant_cookie(headers: &HeaderMap) -> Option<&str> {
    find_value(headers, TENANT)
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
    HeaderValue::from_str(&format!("{NAME}={token}; Max-Age={MAX_AGE}; {}", attributes(is_encrypted))).ok()
}

/// Returns the header that sets the cookie with the tenant, or removes one that an earlier login has set.
pub fn set_tenant_cookie(tenant: Option<&TenantName>, is_encrypted: bool) -> HeaderValue {
    match tenant {
        Some(tenant) => {
            let text = format!("{TENANT}={tenant}; Max-Age={MAX_AGE}; {}", attributes(is_encrypted));
            HeaderValue::from_str(&text).expect("names of tenants are ASCII")
        }
        None => remove_cookie(TENANT, is_encrypted),
    }
}

/// Returns the headers that remove the cookies.
pub fn remove_cookies(is_encrypted: bool) -> [HeaderValue; 2] {
    [NAME, TENANT].map(|name| remove_cookie(name, is_encrypted))
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
