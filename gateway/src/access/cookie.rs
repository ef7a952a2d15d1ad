//! The cookie with which a page in a browser sends a token: an event source can't set headers.
//!
//! The cookie has the token itself, so that no gateway holds sessions, each gateway accepts it, and a revocation ends it. Scripts
//! can't read it, and browsers send it with requests of the same site only, below the path of the API.

use axum::http::{HeaderMap, HeaderValue, header};

/// The name of the cookie.
const NAME: &str = "millrace_token";
/// The path below which browsers send it.
const PATH: &str = "/api/v1";
/// The time for which a browser keeps it: a working week and its weekend.
const MAX_AGE: u32 = 7 * 24 * 60 * 60;

/// Returns the token in the cookies of a request.
pub fn find_cookie(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, value)| *name == NAME && !value.is_empty()).map(|(_, value)| value)
}

/// Returns the header that sets the cookie; `None` if the token has characters that a cookie can't have.
pub fn set_cookie(token: &str, is_encrypted: bool) -> Option<HeaderValue> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if token.is_empty() || !token.bytes().all(is_plain) {
        return None;
    }
    HeaderValue::from_str(&format!("{NAME}={token}; Max-Age={MAX_AGE}; {}", attributes(is_encrypted))).ok()
}

/// Returns the header that removes the cookie.
pub fn remove_cookie(is_encrypted: bool) -> HeaderValue {
    let text = format!("{NAME}=; Max-Age=0; {}", attributes(is_encrypted));
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
}
