//! Removes secrets from texts: the API key itself, and anything that looks like one. Providers and gateways quote requests
//! in their errors, so every text of theirs passes through here.
//!
//! # Invariants
//!
//! - I30: No API key appears in an error, a `Debug` output, a recording, or a header to another host.
//!   (`crates/models/tests/conformance/faults.rs::errors_never_contain_the_api_key`,
//!   `crates/models/src/wire/mod.rs::a_displayed_endpoint_contains_no_key`,
//!   `crates/models/tests/factory.rs::cassettes_contain_no_api_key`,
//!   `crates/models/tests/conformance/faults.rs::redirects_are_not_followed`)

use secrecy::{ExposeSecret, SecretString};

/// The replacement for a secret.
const HIDDEN: &str = "[hidden]";

/// Shorter keys are not secret (LM Studio's usual one is a word), and removing them would mutilate texts.
const MIN_SECRET_LENGTH: usize = 8;

/// Prefixes of API keys of well-known providers.
const KEY_PREFIXES: [&str; 14] = [
    "sk-", "sk_", "pk-", "pk_", "gsk_", "xai-", "hf_", "r8_", "nvapi-", "pplx-", "AIza", "AKIA", "ghp_",
    "eyJ",
];

/// Words that precede a credential.
const CREDENTIAL_LABELS: [&str; 10] = [
    "bearer",
    "basic",
    "authorization",
    "x-api-key",
    "api-key",
    "api_key",
    "apikey",
    "x-goog-api-key",
    "key",
    "password",
];

/// Headers whose values are secret.
const SECRET_HEADERS: [&str; 6] =
    ["authorization", "proxy-authorization", "api-key", "x-api-key", "cookie", "x-goog-api-key"];

/// The secrets of one endpoint.
#[derive(Clone, Default)]
pub(super) struct SecretRedactor {
    values: Vec<SecretString>,
}

impl SecretRedactor {
    /// Collects the API key, the values of headers with credentials, and the password in the URL.
    pub(super) fn for_endpoint(endpoint: &super::ModelEndpoint) -> Self {
        let mut values: Vec<SecretString> = endpoint.key.iter().cloned().collect();
        for (name, value) in &endpoint.settings.extra_headers {
            if is_secret_header(name) {
                let bare = value.rsplit(' ').next().unwrap_or(value);
                values.extend([SecretString::from(value.as_str()), SecretString::from(bare)]);
            }
        }
        let password =
            reqwest::Url::parse(&endpoint.base_url).ok().and_then(|url| url.password().map(str::to_owned));
        values.extend(password.map(SecretString::from));
        Self { values }
    }

    /// Returns the text without secrets.
    pub(super) fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in
            self.values.iter().map(ExposeSecret::expose_secret).filter(|it| it.len() >= MIN_SECRET_LENGTH)
        {
            text = text.replace(value, HIDDEN);
        }
        redact_credential_like_words(&text)
    }
}

/// Returns `true` if the value of a header is a credential.
pub(super) fn is_secret_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_HEADERS.contains(&name.as_str())
        || name.ends_with("-key")
        || name.contains("token")
        || name.contains("secret")
}

/// Removes every word that looks like a credential.
fn redact_credential_like_words(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut previous = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let word = &rest[..rest.find(|c| !is_token_char(c)).unwrap_or(rest.len())];
        if word.is_empty() {
            let between = rest.find(is_token_char).unwrap_or(rest.len());
            out.push_str(&rest[..between]);
            rest = &rest[between..];
            continue;
        }
        out.push_str(if looks_like_credential(word, &previous) { HIDDEN } else { word });
        previous = word.to_ascii_lowercase();
        rest = &rest[word.len()..];
    }
    out
}

fn is_token_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.*~+/".contains(c)
}

fn looks_like_credential(word: &str, previous: &str) -> bool {
    let long = word.len() >= MIN_SECRET_LENGTH;
    let has_prefix = KEY_PREFIXES.iter().any(|beginning| word.starts_with(beginning));
    let is_labelled = CREDENTIAL_LABELS.contains(&previous)
        && word.bytes().any(|byte| byte.is_ascii_digit() || byte == b'*');
    long && (has_prefix || is_labelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_redacted_and_words_are_not() {
        let redactor = SecretRedactor { values: vec!["very secret key 1".into(), "short".into()] };
        let cases = [
            ("Incorrect API key provided: sk-abc***xyz.", "Incorrect API key provided: [hidden]"),
            ("Authorization: Bearer abcdef123456", "Authorization: Bearer [hidden]"),
            ("{\"x-api-key\":\"0123456789\"}", "{\"x-api-key\":\"[hidden]\"}"),
            ("you sent very secret key 1, twice: very secret key 1", "you sent [hidden], twice: [hidden]"),
            (
                "a short text about key words and bearer tokens",
                "a short text about key words and bearer tokens",
            ),
            ("GET /v1?key=AIzaSyA-0123456789 failed", "GET /v1?key=[hidden] failed"),
            ("maximum context length is 8192 tokens – süß", "maximum context length is 8192 tokens – süß"),
        ];
        for (text, expected) in cases {
            assert_eq!(redactor.redact(text), expected);
        }
    }

    #[test]
    fn credential_headers_are_recognised_by_name() {
        for name in [
            "Authorization",
            "api-key",
            "X-Api-Key",
            "x-goog-api-key",
            "X-Auth-Token",
            "Ocp-Subscription-Key",
        ] {
            assert!(is_secret_header(name), "{name}");
        }
        assert!(!is_secret_header("OpenAI-Organization"));
    }
}
