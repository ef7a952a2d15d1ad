//! The deliveries of a webhook.

use millrace_protocol::ids::MessageId;
use millrace_protocol::webhook::{StoredDelivery, WebhookMessage};
use millrace_runtime::store::bucket::Entry;
use millrace_runtime::store::webhooks::{self as store, create_deliveries, write_delivery};
use millrace_runtime::{Bus, clock};

use super::{MAX_CHANGES, WebhookError, contention, find_enabled_webhook, find_webhook, random_message_id};

/// A part of the deliveries of a webhook.
#[derive(Debug)]
pub struct DeliveryPage {
    /// The deliveries, those that have changed last first.
    pub deliveries: Vec<StoredDelivery>,
    /// The sequence before which the next part begins; `None` if this is the last one.
    pub next: Option<u64>,
}

/// Returns the deliveries of a webhook that have changed before a sequence, the last changes first.
pub async fn list_deliveries(
    bus: &Bus,
    webhook: &str,
    before: Option<u64>,
    limit: usize,
    is_wanted: impl Fn(&StoredDelivery) -> bool,
) -> Result<DeliveryPage, WebhookError> {
    let webhook = find_webhook(bus, webhook).await?.value;
    // One more tells whether there is a next part.
    let mut found =
        store::read_deliveries(bus, &webhook.id, before, limit.saturating_add(1), is_wanted).await?;
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| has_more).map(|last| last.sequence);
    Ok(DeliveryPage { deliveries: found.into_iter().map(|entry| entry.value).collect(), next })
}

async fn find_delivery(bus: &Bus, webhook: &str, id: &str) -> Result<Entry<StoredDelivery>, WebhookError> {
    let webhook = find_webhook(bus, webhook).await?.value.id;
    let unknown = || WebhookError::DeliveryNotFound(webhook.clone(), id.chars().take(100).collect());
    let id: MessageId = id.parse().map_err(|_| unknown())?;
    store::read_delivery(bus, &webhook, &id).await?.ok_or_else(unknown)
}

pub async fn read_delivery(bus: &Bus, webhook: &str, id: &str) -> Result<StoredDelivery, WebhookError> {
    Ok(find_delivery(bus, webhook, id).await?.value)
}

/// Has a message delivered again. It has the same id, and is attempted for three more days.
pub async fn redeliver(bus: &Bus, webhook: &str, id: &str) -> Result<StoredDelivery, WebhookError> {
    find_enabled_webhook(bus, webhook).await?;
    for _ in 0..MAX_CHANGES {
        let entry = find_delivery(bus, webhook, id).await?;
        let again = entry.value.redelivered(clock::now());
        if write_delivery(bus, &again, entry.sequence).await?.is_some() {
            return Ok(again);
        }
    }
    Err(contention().into())
}

/// Sends a test message to the receiver of a webhook.
pub async fn send_test(bus: &Bus, webhook: &str) -> Result<StoredDelivery, WebhookError> {
    let webhook = find_enabled_webhook(bus, webhook).await?;
    let now = clock::now();
    let delivery = StoredDelivery::new(random_message_id(), webhook.id, WebhookMessage::test(now), now);
    create_deliveries(bus, std::slice::from_ref(&delivery)).await?;
    Ok(delivery)
}
