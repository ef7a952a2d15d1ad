//! Changes webhooks and their deliveries: what the HTTP API and `millrace webhook` both do. Each change is recorded before it is carried
//! out.

mod definition;
mod deliveries;
mod push;

use jiff::{SignedDuration, Timestamp};
use millrace_protocol::audit::{Actor, AuditAction};
use millrace_protocol::ids::{MessageId, WebhookId};
use millrace_protocol::webhook::{DisableReason, ExpiringSecret, SigningSecret, StoredWebhook};
use millrace_runtime::store::bucket::Entry;
use millrace_runtime::store::webhooks::{
    self as store, CreateWebhookError, MAX_WEBHOOKS, new_secret, new_webhook_id, read_lane_ends,
    remove_webhook, write_webhook,
};
use millrace_runtime::{Bus, Fault, clock};

use crate::administration::record;

pub use definition::{InvalidWebhook, NewWebhook, WebhookChange};
pub use deliveries::{DeliveryPage, list_deliveries, read_delivery, redeliver, send_test};
pub use push::{
    NewPushConfig, PushConfigError, delete_push_config, find_push_config, list_push_configs, set_push_config,
};

/// The time for which an earlier secret signs messages too, if nobody chooses one.
pub const SECRET_OVERLAP: SignedDuration = SignedDuration::from_hours(24);
pub const MAX_SECRET_OVERLAP: SignedDuration = SignedDuration::from_hours(30 * 24);
/// The number of attempts to change something that others change at the same time.
const MAX_CHANGES: u32 = 5;

/// A reason why a webhook or a delivery can't be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    #[error("there is no webhook with the id {0:?}")]
    NotFound(String),
    #[error("the webhook {0} has no delivery {1:?}; they are removed a week after their last change")]
    DeliveryNotFound(WebhookId, String),
    #[error("the webhook {0} is disabled; enable it first")]
    Disabled(WebhookId),
    #[error("there are {MAX_WEBHOOKS} webhooks; delete unused ones")]
    TooMany,
    #[error(transparent)]
    Invalid(#[from] InvalidWebhook),
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl From<CreateWebhookError> for WebhookError {
    fn from(error: CreateWebhookError) -> Self {
        match error {
            CreateWebhookError::TooMany => Self::TooMany,
            CreateWebhookError::Fault(fault) => fault.into(),
        }
    }
}

pub async fn find_webhook(bus: &Bus, id: &str) -> Result<Entry<StoredWebhook>, WebhookError> {
    let unknown = || WebhookError::NotFound(id.chars().take(100).collect());
    let parsed: WebhookId = id.parse().map_err(|_| unknown())?;
    store::read_webhook(bus, &parsed).await?.ok_or_else(unknown)
}

async fn find_enabled_webhook(bus: &Bus, id: &str) -> Result<StoredWebhook, WebhookError> {
    let webhook = find_webhook(bus, id).await?.value;
    match webhook.disabled {
        None => Ok(webhook),
        Some(_) => Err(WebhookError::Disabled(webhook.id)),
    }
}

/// Creates a webhook. It tells of events after this call.
pub async fn create_webhook(bus: &Bus, new: NewWebhook, by: Actor) -> Result<StoredWebhook, WebhookError> {
    let NewWebhook { url, description, events, labels, secret } = new.checked()?;
    let webhook = StoredWebhook {
        id: new_webhook_id(),
        url: url.into(),
        description,
        events,
        labels,
        secret: secret.map_or_else(new_secret, Ok)?,
        earlier_secret: None,
        disabled: None,
        since: read_lane_ends(bus).await?,
        created: clock::now(),
        created_by: by.name.clone(),
    };
    let (id, url) = (webhook.id.clone(), webhook.url.clone());
    record(bus, by, AuditAction::WebhookCreated { webhook: id, url }).await?;
    store::create_webhook(bus, &webhook).await?;
    Ok(webhook)
}

pub async fn change_webhook(
    bus: &Bus,
    id: &str,
    change: WebhookChange,
    by: Actor,
) -> Result<StoredWebhook, WebhookError> {
    let WebhookChange { url, description, events, labels, enabled } = change.checked()?;
    let url: Option<String> = url.map(Into::into);
    let found = find_webhook(bus, id).await?.value;
    let action = AuditAction::WebhookChanged { webhook: found.id, url: url.clone().unwrap_or(found.url) };
    record(bus, by, action).await?;
    let ends = read_lane_ends(bus).await?;
    replace_webhook(bus, id, |stored| {
        let disabled = match enabled {
            Some(true) => None,
            Some(false) => Some(stored.disabled.unwrap_or(DisableReason::ByUser)),
            None => stored.disabled,
        };
        let is_enabled_again = stored.disabled.is_some() && disabled.is_none();
        StoredWebhook {
            url: url.clone().unwrap_or(stored.url),
            description: description.clone().unwrap_or(stored.description),
            events: events.clone().unwrap_or(stored.events),
            labels: labels.clone().unwrap_or(stored.labels),
            since: if is_enabled_again { ends.clone() } else { stored.since },
            disabled,
            ..stored
        }
    })
    .await
}

async fn replace_webhook(
    bus: &Bus,
    id: &str,
    change: impl Fn(StoredWebhook) -> StoredWebhook,
) -> Result<StoredWebhook, WebhookError> {
    for _ in 0..MAX_CHANGES {
        let entry = find_webhook(bus, id).await?;
        let changed = change(entry.value);
        if write_webhook(bus, &changed, entry.sequence).await? {
            return Ok(changed);
        }
    }
    Err(contention().into())
}

/// Replaces the secret of a webhook. The one before signs messages too for this time.
pub async fn replace_secret(
    bus: &Bus,
    id: &str,
    secret: Option<SigningSecret>,
    overlap: SignedDuration,
    by: Actor,
) -> Result<StoredWebhook, WebhookError> {
    if overlap > MAX_SECRET_OVERLAP {
        return Err(InvalidWebhook::Overlap.into());
    }
    let found = find_webhook(bus, id).await?.value;
    record(bus, by, AuditAction::WebhookSecretReplaced { webhook: found.id }).await?;
    let secret = secret.map_or_else(new_secret, Ok)?;
    let until = clock::now().checked_add(overlap).unwrap_or(Timestamp::MAX);
    replace_webhook(bus, id, |stored| StoredWebhook {
        earlier_secret: Some(ExpiringSecret { secret: stored.secret, until }),
        secret: secret.clone(),
        ..stored
    })
    .await
}

/// Deletes a webhook and returns it. Its deliveries that have not ended are not attempted any more.
pub async fn delete_webhook(bus: &Bus, id: &str, by: Actor) -> Result<StoredWebhook, WebhookError> {
    let StoredWebhook { id: webhook, url, .. } = find_webhook(bus, id).await?.value;
    record(bus, by, AuditAction::WebhookDeleted { webhook, url }).await?;
    let deleted = find_webhook(bus, id).await?.value;
    remove_webhook(bus, &deleted.id).await?;
    Ok(deleted)
}

fn contention() -> Fault {
    Fault::unavailable("changing a webhook", "other programs change it all the time; repeat the request")
}

/// Returns the id of a message that follows from no log.
fn random_message_id() -> MessageId {
    let id = MessageId::new(format!("msg_{}", uuid::Uuid::new_v4().simple()));
    id.expect("hexadecimal digits are a valid id")
}
