//! The requests of deliveries: for webhooks as Standard Webhooks defines them, with signatures; for push configs as A2A defines
//! them, with the token and the credentials that the client gave.

use std::fmt;

use jiff::Timestamp;
use millrace_protocol::ids::MessageId;
use millrace_protocol::secrets::SecretRedactor;
use millrace_protocol::webhook::{
    PushAuthentication, SigningSecret, StoredDelivery, StoredPushConfig, StoredSubscription, StoredWebhook,
};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use ring::hmac;

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
