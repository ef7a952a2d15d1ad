//! Webhooks of the HTTP API: requests that tell a receiver of an event of a run. Their definitions, their messages, and the rules
//! of their deliveries.
//!
//! | module | contents |
//! |---|---|
//! | `event` | the events that webhooks tell of, derived from decisions |
//! | `secret` | the secrets by which receivers verify messages |
//! | `push` | push configs of A2A clients: receivers for one run |
//! | `subscription` | webhooks and push configs, as the sender of deliveries sees them |
//! | `delivery` | deliveries: their states, retries and limits |

mod delivery;
mod event;
mod push;
mod secret;
mod subscription;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::WebhookId;
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
pub use secret::{InvalidSecret, SECRET_PREFIX, SigningSecret};
pub use subscription::StoredSubscription;

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
}
