//! The public keys of a provider: read when they are needed, held, and read again when they are old or a token names one that is not
//! among them. While the provider is away, the keys that were read last are used for a day.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_protocol::foreign_json::parse_foreign_json;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;
use url::Url;

use super::jwt::PublicKey;

/// The path of a provider's description below its issuer URL.
const DESCRIPTION: &str = "/.well-known/openid-configuration";
/// The age from which keys are read again.
const MAX_AGE: Duration = Duration::from_secs(10 * 60);
/// The age up to which keys are used while the provider is away.
const MAX_STALE: Duration = Duration::from_secs(24 * 60 * 60);
/// The pause between two requests to the provider, whatever tokens arrive.
const MIN_INTERVAL: Duration = Duration::from_secs(5);
/// The time in which the provider must respond.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// The maximum size of a response.
const MAX_RESPONSE: usize = 512 * 1024;

pub struct ProviderKeys {
    client: reqwest::Client,
    issuer: Url,
    issuer_text: String,
    keys_url: Option<Url>,
    held: Mutex<HeldKeys>,
    /// Held during a request, so that requests that arrive meanwhile share it.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct HeldKeys {
    keys: Option<(Arc<[PublicKey]>, Instant)>,
    /// The last request, and why it failed.
    tried: Option<(Instant, Option<String>)>,
}

/// A provider's description, as far as it matters.
#[derive(Deserialize)]
struct ProviderDescription {
    issuer: String,
    jwks_uri: String,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

/// `true` if a provider may be called at a URL: with encryption, or on this machine.
#[must_use]
pub fn is_safe_url(url: &Url) -> bool {
    let is_local = match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && is_local)
}

impl ProviderKeys {
    /// Creates an empty set of keys.
    ///
    /// # Errors
    /// The TLS library can't be used: an error text for the user.
    pub fn new(issuer: Url, issuer_text: &str, keys_url: Option<Url>) -> Result<Self, String> {
        // An error means that another part of the process has installed a provider, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(REQUEST_TIME)
            .user_agent(concat!("millrace/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("can't create an HTTP client: {error}"))?;
        let issuer_text = issuer_text.to_owned();
        let (held, reading) = (Mutex::default(), tokio::sync::Mutex::default());
        Ok(Self { client, issuer, issuer_text, keys_url, held, reading })
    }

    /// Returns the keys that may have signed a token: the one with its key id, or all if it has none.
    ///
    /// # Errors
    /// The provider does not respond, and no keys are held: an error text for the log.
    pub async fn find(&self, id: Option<&str>) -> Result<Vec<PublicKey>, String> {
        if let Some(found) = self.find_held(id) {
            return found;
        }
        let _reading = self.reading.lock().await;
        if let Some(found) = self.find_held(id) {
            return found;
        }
        let outcome = self.read_keys().await;
        {
            let mut held = self.lock();
            held.tried = Some((Instant::now(), outcome.as_ref().err().cloned()));
            if let Ok(keys) = outcome {
                held.keys = Some((keys.into(), Instant::now()));
            }
        }
        self.find_held(id).unwrap_or_else(|| Ok(Vec::new()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HeldKeys> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the keys that are held, unless the provider should be asked.
    fn find_held(&self, id: Option<&str>) -> Option<Result<Vec<PublicKey>, String>> {
        let held = self.lock();
        let may_ask = held.tried.as_ref().is_none_or(|(at, _)| at.elapsed() >= MIN_INTERVAL);
        let usable = held.keys.as_ref().filter(|(_, read)| read.elapsed() < MAX_STALE);
        let Some((keys, read)) = usable else {
            let reason = held.tried.as_ref().and_then(|(_, reason)| reason.clone());
            return (!may_ask).then(|| Err(reason.unwrap_or_else(|| "the provider has no keys".into())));
        };
        let is_wanted = |key: &&PublicKey| match id {
            Some(id) => key.kid.as_deref() == Some(id),
            None => key.is_for_signatures(),
        };
        let found: Vec<PublicKey> = keys.iter().filter(is_wanted).cloned().collect();
        if may_ask && (found.is_empty() || read.elapsed() >= MAX_AGE) {
            return None;
        }
        Some(Ok(found))
    }

    async fn read_keys(&self) -> Result<Vec<PublicKey>, String> {
        let url = match &self.keys_url {
            Some(url) => url.clone(),
            None => self.find_keys_url().await?,
        };
        let set: KeySet = self.get(url).await?;
        // A key of a kind that is not known does not make the others unusable.
        Ok(set.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok()).collect())
    }

    async fn find_keys_url(&self) -> Result<Url, String> {
        let mut url = self.issuer.clone();
        url.set_path(&format!("{}{DESCRIPTION}", self.issuer.path().trim_end_matches('/')));
        let description: ProviderDescription = self.get(url).await?;
        if description.issuer != self.issuer_text {
            return Err(format!("the provider names itself {:?}", description.issuer));
        }
        let wrong = |reason: &dyn std::fmt::Display| {
            format!("the provider has its keys at {:?}: {reason}", description.jwks_uri)
        };
        let url: Url = description.jwks_uri.parse().map_err(|error| wrong(&error))?;
        if is_safe_url(&url) { Ok(url) } else { Err(wrong(&"that is not encrypted")) }
    }

    async fn get<T: DeserializeOwned>(&self, url: Url) -> Result<T, String> {
        let failed = |error: &dyn std::fmt::Display| format!("GET {url}: {error}");
        let response = self.client.get(url.clone()).send().await.map_err(|error| failed(&error))?;
        let mut response = response.error_for_status().map_err(|error| failed(&error))?;
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| failed(&error))? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MAX_RESPONSE {
                return Err(failed(&format!("the response is larger than {MAX_RESPONSE} bytes")));
            }
        }
        parse_foreign_json(&bytes).map_err(|error| failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_are_called_with_encryption_or_on_this_machine() {
        let is_safe = |url: &str| is_safe_url(&url.parse().unwrap());
        for url in ["https://id.example/", "http://localhost:8080/", "http://127.0.0.1/", "http://[::1]:1/"] {
            assert!(is_safe(url), "{url}");
        }
        for url in ["http://id.example/", "http://10.0.0.1/", "ftp://localhost/", "http://localhost.example/"]
        {
            assert!(!is_safe(url), "{url}");
        }
    }
}
