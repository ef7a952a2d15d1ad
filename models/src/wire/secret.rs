//! What must not be read in a text: the key itself, and whatever looks like one. Providers and gateways quote requests
//! in their errors, so that every text of theirs passes through here before it becomes part of ours.

use secrecy::{ExposeSecret, SecretString};

/// What stands where something was taken out.
const HIDDEN: &str = "[hidden]";

/// Shorter keys are no secrets (LM Studio's usual one is a word), and taking them out of texts would maim those.
const SHORTEST: usize = 8;

/// How keys of well-known providers begin.
const BEGINNINGS: [&str; 14] = [
    "sk-", "sk_", "pk-", "pk_", "gsk_", "xai-", "hf_", "r8_", "nvapi-", "pplx-", "AIza", "AKIA", "ghp_",
    "eyJ",
];

/// Words after which a credential comes.
const ANNOUNCING: [&str; 10] = [
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

/// Headers whose values are secrets, wherever they come from.
const HEADERS: [&str; 6] =
    ["authorization", "proxy-authorization", "api-key", "x-api-key", "cookie", "x-goog-api-key"];

/// The secrets of one endpoint.
#[derive(Clone, Default)]
pub(super) struct Secrets {
    values: Vec<SecretString>,
}

impl Secrets {
    /// The key, the values of headers that hold credentials, and the password of the address.
    pub(super) fn of(endpoint: &super::Endpoint) -> Self {
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

    /// The text without any of them.
    pub(super) fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in self.values.iter().map(ExposeSecret::expose_secret).filter(|it| it.len() >= SHORTEST) {
            text = text.replace(value, HIDDEN);
        }
        without_lookalikes(&text)
    }
}

/// Whether a header's value is a credential.
pub(super) fn is_secret_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    HEADERS.contains(&name.as_str())
        || name.ends_with("-key")
        || name.contains("token")
        || name.contains("secret")
}

/// Takes out every word that looks like a credential.
fn without_lookalikes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut previous = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let word = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
        if word.is_empty() {
            let between = rest.find(is_word).unwrap_or(rest.len());
            out.push_str(&rest[..between]);
            rest = &rest[between..];
            continue;
        }
        out.push_str(if is_credential(word, &previous) { HIDDEN } else { word });
        previous = word.to_ascii_lowercase();
        rest = &rest[word.len()..];
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.*~+/".contains(c)
}

fn is_credential(word: &str, previous: &str) -> bool {
    let long = word.len() >= SHORTEST;
    let begins = BEGINNINGS.iter().any(|beginning| word.starts_with(beginning));
    let announced =
        ANNOUNCING.contains(&previous) && word.bytes().any(|byte| byte.is_ascii_digit() || byte == b'*');
    long && (begins || announced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hidden_and_words_are_not() {
        let secrets = Secrets { values: vec!["very secret key 1".into(), "short".into()] };
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
            assert_eq!(secrets.hide(text), expected);
        }
    }

    #[test]
    fn headers_with_credentials_are_known_by_name() {
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
