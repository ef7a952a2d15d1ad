//! Subscriptions: everything that deliveries go to.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{DisableReason, StoredPushConfig, StoredWebhook, WebhookEventKind};
use crate::ids::{RunId, WebhookId};
use crate::labels::Labels;

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
