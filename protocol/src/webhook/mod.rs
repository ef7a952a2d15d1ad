//! Webhooks of the HTTP API: requests that tell a receiver of an event of a run. Their definitions, their messages, and the rules
//! of their deliveries.
//!
//! | module | contents |
//! |---|---|
//! | `event` | the events that webhooks tell of, derived from decisions |
//! | `push` | push configs of A2A clients: receivers for one run |
//! | `delivery` | deliveries: their states, retries and limits |
//!
//! Secrets, by which receivers verify messages, are as Standard Webhooks defines them. A *subscription* is everything that deliveries go to.

mod delivery;
mod event;
mod push;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use data_encoding::BASE64;
use jiff::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::ids::{RunId, WebhookId};
use crate::labels::{LabelSelector, Labels};
use crate::safe_text::is_unsafe;

pub use delivery::{
    AttemptOutcome, DELIVERY_AGE, DeliveryAttempt, DeliveryState, DeliveryStep, GiveUpReason, MAX_REPLY,
    StoredDelivery,
};
pub use event::{
    EventNotice, UnknownEventKind, WebhookData, WebhookEventKind, WebhookMessage, notices_of_decision,
};
pub use push::{
    InvalidPushConfig, MAX_PUSH_CONFIGS, PUSH_PREFIX, PushAuthentication, SecretText, StoredPushConfig,
    check_push_headers, check_push_id,
};

/// The maximum length of a description in bytes.
const MAX_DESCRIPTION: usize = 200;

/// A webhook as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredWebhook {
    /// Its id.
    pub id: WebhookId,
    /// The URL of its receiver.
    pub url: String,
    /// A description for people; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The events that it tells of.
    pub events: Vec<WebhookEventKind>,
    /// Only events of runs with all these labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<LabelSelector>,
    /// The secret by which its messages are signed.
    pub secret: SigningSecret,
    /// The secret before, if messages are still signed with it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier_secret: Option<ExpiringSecret>,
    /// The reason why it delivers nothing; `None` if it is enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<DisableReason>,
    /// For each lane, the sequence after which it tells of events: the end of the lane when it was created or enabled.
    pub since: BTreeMap<u16, u64>,
    /// When it was created.
    pub created: Timestamp,
    /// The user or token holder that created it.
    pub created_by: String,
}

/// A secret that is replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiringSecret {
    /// The secret.
    pub secret: SigningSecret,
    /// When it is no longer used.
    pub until: Timestamp,
}

/// The reason why a webhook is disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DisableReason {
    /// A user has disabled it.
    ByUser,
    /// The receiver responded with 410 Gone.
    ReceiverGone,
    /// A delivery failed for three days, and none succeeded meanwhile.
    ReceiverAway,
    /// Too many deliveries were waiting.
    TooManyWaiting,
}

impl StoredWebhook {
    /// `true` if it tells of an event of a run with these labels, at this place of the log.
    pub fn selects(&self, kind: WebhookEventKind, labels: &Labels, lane: u16, sequence: u64) -> bool {
        self.disabled.is_none()
            && self.events.contains(&kind)
            && self.labels.iter().all(|label| label.selects(labels))
            && self.since.get(&lane).is_none_or(|since| *since < sequence)
    }

    /// The secrets by which its messages are signed at a time.
    pub fn secrets_at(&self, now: Timestamp) -> impl Iterator<Item = &SigningSecret> {
        let earlier = self.earlier_secret.as_ref().filter(|earlier| earlier.until > now);
        std::iter::once(&self.secret).chain(earlier.map(|earlier| &earlier.secret))
    }
}

/// Returns the mistake in the description of a webhook, if there is one.
#[must_use]
pub fn find_description_problem(description: &str) -> Option<String> {
    if description.len() > MAX_DESCRIPTION {
        return Some(format!("a description has at most {MAX_DESCRIPTION} bytes"));
    }
    description
        .chars()
        .any(|c| is_unsafe(c) || c.is_control())
        .then(|| "a description has printable characters only".into())
}

/// The beginning of the text of each secret.
pub const SECRET_PREFIX: &str = "whsec_";
/// The allowed lengths of a secret in bytes.
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// The secret by which the messages of a webhook are signed, and by which their receiver verifies them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SigningSecret(Vec<u8>);

/// A text that is no secret. It is not quoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a secret is whsec_ and 24 to 64 bytes in Base64; leave it out to have one created")]
pub struct InvalidSecret;

impl SigningSecret {
    /// Creates a secret of random bytes.
    ///
    /// # Panics
    /// Never: the length is right.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(bytes.to_vec())
    }

    /// The key of the signatures.
    pub fn key(&self) -> &[u8] {
        &self.0
    }

    /// Returns the text, which is shown once, and never in logs.
    pub fn reveal(&self) -> String {
        format!("{SECRET_PREFIX}{}", BASE64.encode(&self.0))
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(..)")
    }
}

impl FromStr for SigningSecret {
    type Err = InvalidSecret;

    fn from_str(text: &str) -> Result<Self, InvalidSecret> {
        let text = text.strip_prefix(SECRET_PREFIX).ok_or(InvalidSecret)?;
        let bytes = BASE64.decode(text.as_bytes()).map_err(|_| InvalidSecret)?;
        if LENGTHS.contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(InvalidSecret) }
    }
}

impl TryFrom<String> for SigningSecret {
    type Error = InvalidSecret;
    fn try_from(text: String) -> Result<Self, InvalidSecret> {
        text.parse()
    }
}

impl From<SigningSecret> for String {
    fn from(secret: SigningSecret) -> Self {
        secret.reveal()
    }
}

/// A subscription as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StoredSubscription {
    /// A webhook, for all runs that it selects.
    Webhook(StoredWebhook),
    /// A push config, for one run.
    Push(StoredPushConfig),
}

impl<'de> Deserialize<'de> for StoredSubscription {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Serde's own untagged enums refuse maps whose keys are numbers.
        let value = Value::deserialize(deserializer)?;
        let parsed = match value.get("run").is_some() {
            true => serde_json::from_value(value).map(Self::Push),
            false => serde_json::from_value(value).map(Self::Webhook),
        };
        parsed.map_err(D::Error::custom)
    }
}

impl StoredSubscription {
    /// Its id.
    pub fn id(&self) -> &WebhookId {
        match self {
            Self::Webhook(webhook) => &webhook.id,
            Self::Push(push) => &push.id,
        }
    }

    /// Returns its key in the bucket of webhooks.
    pub fn key(&self) -> String {
        match self {
            Self::Webhook(webhook) => webhook.id.to_string(),
            Self::Push(push) => push.key(),
        }
    }

    /// The run that it is for; `None` if it is for several.
    pub fn run(&self) -> Option<&RunId> {
        match self {
            Self::Webhook(_) => None,
            Self::Push(push) => Some(&push.run),
        }
    }

    /// `true` if it delivers messages.
    pub fn is_enabled(&self) -> bool {
        match self {
            Self::Webhook(webhook) => webhook.disabled.is_none(),
            Self::Push(push) => push.disabled.is_none(),
        }
    }

    /// Returns it disabled.
    #[must_use]
    pub fn disabled(self, reason: DisableReason) -> Self {
        let disabled = Some(reason);
        match self {
            Self::Webhook(webhook) => Self::Webhook(StoredWebhook { disabled, ..webhook }),
            Self::Push(push) => Self::Push(StoredPushConfig { disabled, ..push }),
        }
    }

    /// For each lane, the sequence after which it tells of events.
    pub fn since(&self) -> &BTreeMap<u16, u64> {
        match self {
            Self::Webhook(webhook) => &webhook.since,
            Self::Push(push) => &push.since,
        }
    }

    /// For each lane, the sequence after which it tells of events.
    pub fn since_mut(&mut self) -> &mut BTreeMap<u16, u64> {
        match self {
            Self::Webhook(webhook) => &mut webhook.since,
            Self::Push(push) => &mut push.since,
        }
    }

    /// `true` if it tells of events of a kind.
    pub fn tells_of(&self, kind: WebhookEventKind) -> bool {
        match self {
            Self::Webhook(webhook) => webhook.events.contains(&kind),
            Self::Push(_) => StoredPushConfig::EVENTS.contains(&kind),
        }
    }

    /// `true` if it tells of an event of a run with these labels, at this place of the log.
    pub fn selects(
        &self,
        kind: WebhookEventKind,
        (run, labels): (&RunId, &Labels),
        lane: u16,
        sequence: u64,
    ) -> bool {
        match self {
            Self::Webhook(webhook) => webhook.selects(kind, labels, lane, sequence),
            Self::Push(push) => push.selects(kind, run, lane, sequence),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook() -> StoredWebhook {
        StoredWebhook {
            id: WebhookId::new("wh-1").unwrap(),
            url: "https://a.example/".into(),
            description: String::new(),
            events: vec![WebhookEventKind::RunEnded],
            labels: vec!["team=search".parse().unwrap()],
            secret: SigningSecret::from_bytes(&[1; 32]),
            earlier_secret: None,
            disabled: None,
            since: BTreeMap::from([(0, 10)]),
            created: Timestamp::UNIX_EPOCH,
            created_by: "ann".into(),
        }
    }

    #[test]
    fn webhooks_select_events_by_kind_label_and_place() {
        let labels: Labels = BTreeMap::from([("team".into(), "search".into())]);
        let (webhook, kind) = (webhook(), WebhookEventKind::RunEnded);
        assert!(webhook.selects(kind, &labels, 0, 11));
        assert!(webhook.selects(kind, &labels, 1, 1), "a lane that did not exist");
        assert!(!webhook.selects(kind, &labels, 0, 10), "an event before its creation");
        assert!(!webhook.selects(kind, &Labels::new(), 0, 11));
        assert!(!webhook.selects(WebhookEventKind::RunStarted, &labels, 0, 11));
        let disabled = StoredWebhook { disabled: Some(DisableReason::ByUser), ..webhook };
        assert!(!disabled.selects(kind, &labels, 0, 11));
    }

    #[test]
    fn messages_are_signed_with_the_earlier_secret_until_it_expires() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let earlier = ExpiringSecret { secret: SigningSecret::from_bytes(&[2; 32]), until: at(10) };
        let webhook = StoredWebhook { earlier_secret: Some(earlier), ..webhook() };
        assert_eq!(webhook.secrets_at(at(9)).count(), 2);
        assert_eq!(webhook.secrets_at(at(10)).count(), 1);
    }

    #[test]
    fn stored_webhooks_stay_readable() {
        let text = serde_json::to_string(&webhook()).unwrap();
        assert_eq!(
            text,
            r#"{"id":"wh-1","url":"https://a.example/","events":["run_ended"],"labels":["team=search"],"secret":"whsec_AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=","since":{"0":10},"created":"1970-01-01T00:00:00Z","created_by":"ann"}"#
        );
        assert_eq!(serde_json::from_str::<StoredWebhook>(&text).unwrap(), webhook());
    }

    #[test]
    fn secrets_are_read_back_and_never_shown() {
        let secret = SigningSecret::from_bytes(&[255; 32]);
        assert_eq!(secret.reveal().parse(), Ok(secret.clone()));
        assert!(!format!("{secret:?}").contains("//"), "{secret:?}");
        let short = format!("{SECRET_PREFIX}{}", BASE64.encode(&[1; 23]));
        for wrong in ["", "whsec_", "whsec_x", &short, &secret.reveal()[1..]] {
            assert_eq!(wrong.parse::<SigningSecret>(), Err(InvalidSecret), "{wrong}");
        }
    }

    #[test]
    fn subscriptions_are_told_apart_when_they_are_read() {
        let webhook = r#"{"id":"wh-1","url":"https://a.example/","events":["run_ended"],"secret":"whsec_AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=","since":{"0":10},"created":"1970-01-01T00:00:00Z","created_by":"ann"}"#;
        let push = r#"{"id":"push_1","run":"r","config":"c","url":"https://a.example/","since":{"0":10},"created":"1970-01-01T00:00:00Z","created_by":"ann"}"#;
        for (text, key) in [(webhook, "wh-1"), (push, "push.r.push_1")] {
            let read: StoredSubscription = serde_json::from_str(text).unwrap();
            assert_eq!((read.key().as_str(), read.since().get(&0)), (key, Some(&10)));
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
            assert!(!read.disabled(DisableReason::ByUser).is_enabled());
        }
    }
}
