//! The requests of deliveries: for webhooks as Standard Webhooks defines them, with signatures; for push configs as A2A defines
//! them, with the token and the credentials that the client gave.
//!
//! A receiver's URL comes from a user, so that its address is checked when the connection is made: only the public internet is
//! allowed, and networks that the operator names. Redirects are not followed.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use millrace_address_policy::{CheckedResolver, ReceiverPolicy, SystemDns};
use millrace_protocol::ids::MessageId;
use millrace_protocol::safe_text::is_unsafe;
use millrace_protocol::secrets::SecretRedactor;
use millrace_protocol::webhook::{
    AttemptOutcome, DeliveryAttempt, MAX_REPLY, PushAuthentication, SigningSecret, StoredDelivery,
    StoredPushConfig, StoredSubscription, StoredWebhook,
};
use millrace_runtime::clock;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use ring::hmac;
use tokio::time::Instant;
use url::Url;

use crate::standards::{A2A_MEDIA_TYPE, build_notification};
use crate::state::Gateway;

/// The header with the id of a message.
const ID: HeaderName = HeaderName::from_static("webhook-id");
/// The header with the token of a push config.
const NOTIFICATION_TOKEN: HeaderName = HeaderName::from_static("x-a2a-notification-token");

pub struct OutgoingRequest {
    pub url: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl OutgoingRequest {
    /// Returns its secrets, which a receiver may send back.
    pub fn secrets(&self) -> SecretRedactor {
        let mut secrets = SecretRedactor::default();
        secrets.add_url(&self.url);
        for (name, value) in &self.headers {
            secrets.add_named(name.as_str(), value.to_str().unwrap_or_default());
        }
        secrets
    }
}

/// Builds the request of a delivery.
///
/// # Errors
/// The run can't be read: an error text for the record of the attempt.
pub async fn build_request(
    gateway: &Gateway,
    subscription: &StoredSubscription,
    delivery: &StoredDelivery,
    at: Timestamp,
) -> Result<OutgoingRequest, String> {
    match subscription {
        StoredSubscription::Webhook(webhook) => signed_request(webhook, delivery, at),
        StoredSubscription::Push(config) => {
            let state = gateway.histories.read(&gateway.bus, &config.run).await;
            let state = state.map_err(|fault| format!("reading the run failed: {fault}"))?;
            let body = build_notification(&config.run, &delivery.message, state.plan());
            notification_request(config, &delivery.id, body)
        }
    }
}

fn value(text: impl fmt::Display) -> Result<HeaderValue, String> {
    HeaderValue::try_from(text.to_string()).map_err(|_| "a header of the request is invalid".to_owned())
}

fn secret_value(text: impl fmt::Display) -> Result<HeaderValue, String> {
    let mut value = value(text)?;
    value.set_sensitive(true);
    Ok(value)
}

fn signed_request(
    webhook: &StoredWebhook,
    delivery: &StoredDelivery,
    at: Timestamp,
) -> Result<OutgoingRequest, String> {
    let body = delivery.message.to_body();
    let signature = sign(webhook.secrets_at(at), &delivery.id, at, &body);
    let headers = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (ID, value(&delivery.id)?),
        (HeaderName::from_static("webhook-timestamp"), value(at.as_second())?),
        (HeaderName::from_static("webhook-signature"), value(signature)?),
    ]);
    Ok(OutgoingRequest { url: webhook.url.clone(), headers, body })
}

fn notification_request(
    config: &StoredPushConfig,
    id: &MessageId,
    body: Vec<u8>,
) -> Result<OutgoingRequest, String> {
    let mut headers =
        HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(A2A_MEDIA_TYPE)), (ID, value(id)?)]);
    if let Some(token) = &config.token {
        headers.insert(NOTIFICATION_TOKEN, secret_value(token.reveal())?);
    }
    if let Some(PushAuthentication { scheme, credentials: Some(credentials) }) = &config.authentication {
        headers.insert(AUTHORIZATION, secret_value(format!("{scheme} {}", credentials.reveal()))?);
    }
    Ok(OutgoingRequest { url: config.url.clone(), headers, body })
}

/// Returns the signatures of a message, one for each secret.
fn sign<'a>(
    secrets: impl Iterator<Item = &'a SigningSecret>,
    id: &MessageId,
    at: Timestamp,
    body: &[u8],
) -> String {
    let content = [format!("{id}.{}.", at.as_second()).as_bytes(), body].concat();
    let signatures = secrets.map(|secret| {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.key()), &content);
        format!("v1,{}", data_encoding::BASE64.encode(tag.as_ref()))
    });
    signatures.collect::<Vec<_>>().join(" ")
}

const CONNECT_TIME: Duration = Duration::from_secs(10);
/// The time for a request, from name resolution to the last byte of the reply that is read.
const REQUEST_TIME: Duration = Duration::from_secs(20);
/// The maximum length of an error in the record of an attempt, in characters.
const MAX_ERROR: usize = 300;

/// Sends messages to receivers.
pub struct ReceiverClient {
    client: reqwest::Client,
    policy: ReceiverPolicy,
}

impl ReceiverClient {
    /// Creates one.
    ///
    /// # Errors
    /// The TLS library can't be used: an error text for the user.
    pub fn new(policy: ReceiverPolicy) -> Result<Self, String> {
        // An error means that another part of the process has installed a provider, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let resolver = CheckedResolver::new(policy.networks(), Arc::new(SystemDns));
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIME)
            .timeout(REQUEST_TIME)
            // Connections are not reused: each one goes to an address that was checked for it.
            .pool_max_idle_per_host(0)
            .dns_resolver(Arc::new(resolver))
            .user_agent(concat!("millrace/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("can't create an HTTP client: {error}"))?;
        Ok(Self { client, policy })
    }

    /// Sends a request, or notes why there is none.
    pub async fn send(&self, request: Result<OutgoingRequest, String>) -> AttemptOutcome {
        let (at, started) = (clock::now(), Instant::now());
        let secrets = request.as_ref().map(OutgoingRequest::secrets).unwrap_or_default();
        let response = match request {
            Ok(request) => match self.policy.parse_url(&request.url) {
                Ok(url) => self.post(url, request).await,
                Err(refusal) => Err(refusal),
            },
            Err(problem) => Err(problem),
        };
        let (status, error, reply, retry_after) = match response {
            Ok(response) => {
                let (status, retry_after) =
                    (response.status().as_u16(), find_retry_after(response.headers()));
                (Some(status), None, secrets.redact(&read_beginning(response).await), retry_after)
            }
            Err(error) => {
                (None, Some(secrets.redact(&error).chars().take(MAX_ERROR).collect()), String::new(), None)
            }
        };
        let milliseconds = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        AttemptOutcome { attempt: DeliveryAttempt { at, milliseconds, status, error, reply }, retry_after }
    }

    async fn post(&self, url: Url, request: OutgoingRequest) -> Result<reqwest::Response, String> {
        let OutgoingRequest { url: _, headers, body } = request;
        let request = self.client.post(url).headers(headers).body(body);
        request.send().await.map_err(|error| {
            // The text of the error itself repeats the URL, whose query may be secret.
            let mut text =
                if error.is_timeout() { "no response in time" } else { "request failed" }.to_owned();
            let mut source = error.source();
            while let Some(inner) = source {
                text = format!("{text}: {inner}");
                source = inner.source();
            }
            text
        })
    }
}

/// Returns the delay that a receiver wants, in seconds; other forms of the header are ignored.
fn find_retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Reads the beginning of a reply. What follows is not read.
async fn read_beginning(mut response: reqwest::Response) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_REPLY {
        match response.chunk().await {
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk[..chunk.len().min(MAX_REPLY - bytes.len())]),
            Ok(None) | Err(_) => break,
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    text.chars().map(|c| if is_unsafe(c) || (c.is_control() && c != '\n') { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_of_the_specification() {
        // The example of the specification and of its libraries.
        let secret: SigningSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap();
        let id = MessageId::new("msg_p5jXN8AQM9LWM0D4loKWxJek").unwrap();
        let at = Timestamp::from_second(1_614_265_330).unwrap();
        let body = br#"{"test": 2432232314}"#;
        let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(sign([&secret].into_iter(), &id, at, body), signature);
        let other = SigningSecret::from_bytes(&[7; 32]);
        let both = sign([&other, &secret].into_iter(), &id, at, body);
        assert_eq!((both.split(' ').count(), both.ends_with(signature)), (2, true));
    }
}
