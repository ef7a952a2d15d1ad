//! Objects of the HTTP API: tokens, administrative actions, webhooks, and deliveries to their receivers.

use jiff::Timestamp;
use millrace_protocol::audit::{Actor, AuditAction, AuditRecord};
use millrace_protocol::ids::{MessageId, RunId, WebhookId};
use millrace_protocol::token::{ScopeSet, StoredToken, TokenId, TokenState};
use millrace_protocol::webhook::{
    DeliveryAttempt, DeliveryState, DisableReason, GiveUpReason, StoredDelivery, StoredPushConfig,
    StoredWebhook, WebhookEventKind,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::Time;

/// A token of the HTTP API, without its secret.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TokenJson<'a> {
    /// A token.
    Token {
        /// Its id, which is a part of its text.
        id: &'a TokenId,
        /// The name of its holder: the author of its commands and answers.
        name: &'a str,
        /// The operations that it allows.
        scopes: &'a ScopeSet,
        /// Its state.
        state: TokenState,
        /// When it was created.
        created_at: Time,
        /// The name of its creator.
        created_by: &'a str,
        /// When it expires; absent for never.
        #[serde(skip_serializing_if = "Option::is_none")]
        expires_at: Option<Time>,
        /// When it was revoked.
        #[serde(skip_serializing_if = "Option::is_none")]
        revoked_at: Option<Time>,
        /// The name of the user or token holder that revoked it.
        #[serde(skip_serializing_if = "Option::is_none")]
        revoked_by: Option<&'a str>,
    },
}

impl<'a> TokenJson<'a> {
    #[must_use]
    pub fn new(token: &'a StoredToken, now: Timestamp) -> Self {
        let StoredToken { id, name, scopes, sha256: _, created, created_by, expires, revoked } = token;
        Self::Token {
            id,
            name,
            scopes,
            state: token.state_at(now),
            created_at: (*created).into(),
            created_by,
            expires_at: expires.map(Time::from),
            revoked_at: revoked.as_ref().map(|revoked| revoked.at.into()),
            revoked_by: revoked.as_ref().map(|revoked| revoked.by.as_str()),
        }
    }
}

/// An administrative action.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AuditLine<'a> {
    /// An action.
    AdministrativeAction {
        /// Its place among all actions.
        sequence: u64,
        /// When it was requested.
        at: Time,
        /// The requester.
        by: &'a Actor,
        /// The action.
        action: &'a AuditAction,
    },
}

impl<'a> AuditLine<'a> {
    #[must_use]
    pub fn new(sequence: u64, record: &'a AuditRecord) -> Self {
        let AuditRecord { at, by, action } = record;
        Self::AdministrativeAction { sequence, at: (*at).into(), by, action }
    }
}

/// A webhook.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum WebhookJson<'a> {
    /// A webhook.
    Webhook {
        /// Its id.
        id: &'a WebhookId,
        /// The URL of its receiver.
        url: &'a str,
        /// A description for people; may be empty.
        description: &'a str,
        /// The events that it tells of.
        events: &'a [WebhookEventKind],
        /// Only events of runs with all these labels; all if empty.
        labels: Vec<String>,
        /// `true` if it delivers messages.
        enabled: bool,
        /// The reason why it does not.
        #[serde(skip_serializing_if = "Option::is_none")]
        disabled_because: Option<DisableReason>,
        /// When it was created.
        created_at: Time,
        /// The name of its creator.
        created_by: &'a str,
        /// Until then messages are signed with the secret before too; absent if there is none.
        #[serde(skip_serializing_if = "Option::is_none")]
        earlier_secret_until: Option<Time>,
        /// The secret by which receivers verify messages: only in the reply that creates it.
        #[serde(skip_serializing_if = "Option::is_none")]
        secret: Option<String>,
    },
}

impl<'a> WebhookJson<'a> {
    /// Describes a webhook at a time, without its secret.
    #[must_use]
    pub fn new(webhook: &'a StoredWebhook, now: Timestamp) -> Self {
        Self::describe(webhook, now, None)
    }

    /// Describes a webhook at a time, with its secret.
    #[must_use]
    pub fn with_secret(webhook: &'a StoredWebhook, now: Timestamp) -> Self {
        Self::describe(webhook, now, Some(webhook.secret.reveal()))
    }

    fn describe(webhook: &'a StoredWebhook, now: Timestamp, revealed: Option<String>) -> Self {
        let StoredWebhook {
            id,
            url,
            description,
            events,
            labels,
            secret: _,
            earlier_secret,
            disabled,
            since: _,
            created,
            created_by,
        } = webhook;
        let earlier = earlier_secret.as_ref().filter(|earlier| earlier.until > now);
        Self::Webhook {
            id,
            url,
            description,
            events,
            labels: labels.iter().map(ToString::to_string).collect(),
            enabled: disabled.is_none(),
            disabled_because: *disabled,
            created_at: (*created).into(),
            created_by,
            earlier_secret_until: earlier.map(|earlier| earlier.until.into()),
            secret: revealed,
        }
    }
}

/// The state of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryStateName {
    /// The next attempt is due at a time.
    Waiting,
    /// An attempt is in progress.
    Sending,
    /// The receiver has accepted the message.
    Delivered,
    /// There is no further attempt.
    Failed,
}

impl DeliveryStateName {
    #[must_use]
    pub fn of(state: &DeliveryState) -> Self {
        match state {
            DeliveryState::Waiting { .. } => Self::Waiting,
            DeliveryState::Sending { .. } => Self::Sending,
            DeliveryState::Delivered { .. } => Self::Delivered,
            DeliveryState::Failed { .. } => Self::Failed,
        }
    }
}

/// A push config. Its token and credentials can't be read.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum PushConfigJson<'a> {
    /// A push config.
    PushConfig {
        /// Its id, unique within its run.
        id: &'a str,
        /// The run that it tells of.
        run: &'a RunId,
        /// The URL of its receiver.
        url: &'a str,
        /// `true` if requests have a token in the header `X-A2A-Notification-Token`.
        has_token: bool,
        /// The authentication scheme of requests; absent if there is none.
        #[serde(skip_serializing_if = "Option::is_none")]
        authentication_scheme: Option<&'a str>,
        /// `true` if it delivers messages.
        enabled: bool,
        /// The reason why it does not.
        #[serde(skip_serializing_if = "Option::is_none")]
        disabled_because: Option<DisableReason>,
        /// When it was set.
        created_at: Time,
        /// The name of its creator.
        created_by: &'a str,
    },
}

impl<'a> PushConfigJson<'a> {
    #[must_use]
    pub fn new(config: &'a StoredPushConfig) -> Self {
        let StoredPushConfig {
            id: _,
            run,
            config,
            url,
            token,
            authentication,
            disabled,
            since: _,
            created,
            created_by,
        } = config;
        Self::PushConfig {
            id: config,
            run,
            url,
            has_token: token.is_some(),
            authentication_scheme: authentication.as_ref().map(|one| one.scheme.as_str()),
            enabled: disabled.is_none(),
            disabled_because: *disabled,
            created_at: (*created).into(),
            created_by,
        }
    }
}

/// A delivery.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum DeliveryJson<'a> {
    /// A message on its way to a receiver.
    Delivery {
        /// The id of its message: the header `webhook-id`, the same in every attempt.
        id: &'a MessageId,
        /// The webhook.
        webhook: &'a WebhookId,
        /// The kind of the event.
        event: WebhookEventKind,
        /// The run.
        #[serde(skip_serializing_if = "Option::is_none")]
        run: Option<&'a str>,
        /// The state.
        state: DeliveryStateName,
        /// The reason, if it has failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        failed_because: Option<GiveUpReason>,
        /// When it was created.
        created_at: Time,
        /// When the next attempt is due; absent if none is.
        #[serde(skip_serializing_if = "Option::is_none")]
        next_attempt_at: Option<Time>,
        /// When it ended; absent until then.
        #[serde(skip_serializing_if = "Option::is_none")]
        ended_at: Option<Time>,
        /// The number of attempts.
        attempts: u32,
        /// The last attempts, at most 10, oldest first.
        log: &'a [DeliveryAttempt],
    },
}

impl<'a> DeliveryJson<'a> {
    #[must_use]
    pub fn new(delivery: &'a StoredDelivery) -> Self {
        let StoredDelivery {
            id,
            webhook,
            message,
            created,
            expires: _,
            state,
            attempts,
            round_attempts: _,
            log,
        } = delivery;
        let (next, ended, failed_because) = match *state {
            DeliveryState::Waiting { next } => (Some(next), None, None),
            DeliveryState::Sending { .. } => (None, None, None),
            DeliveryState::Delivered { at } => (None, Some(at), None),
            DeliveryState::Failed { at, reason } => (None, Some(at), Some(reason)),
        };
        Self::Delivery {
            id,
            webhook,
            event: message.kind,
            run: message.data.run.as_ref().map(|run| run.as_str()),
            state: DeliveryStateName::of(state),
            failed_because,
            created_at: (*created).into(),
            next_attempt_at: next.map(Time::from),
            ended_at: ended.map(Time::from),
            attempts: *attempts,
            log,
        }
    }
}
