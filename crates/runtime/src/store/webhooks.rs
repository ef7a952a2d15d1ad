//! Webhooks and their deliveries, in two buckets. Each write expects the entry that it replaces, so that of several gateways
//! one makes an attempt.
//!
//! | bucket | key | content |
//! |---|---|---|
//! | `webhooks` | `ID` | a [`StoredWebhook`] |
//! | `webhooks` | `push.RUN.ID` | a [`StoredPushConfig`] |
//! | `deliveries` | `WEBHOOK.MESSAGE` | a [`StoredDelivery`], for a week after its last change |

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, TryStreamExt};
use millrace_protocol::ids::{Lane, MessageId, RunId, WebhookId};
use millrace_protocol::webhook::{
    SigningSecret, StoredDelivery, StoredPushConfig, StoredSubscription, StoredWebhook,
};

use crate::Fault;
use crate::log::read_lane_end;
use crate::nats::bus::Bus;
use crate::nats::topology::{DELIVERIES, WEBHOOKS};
use crate::store::bucket::{Bucket, BucketChange, BucketChanges, Entry, ExpectedEntry, KeyState};
use crate::store::tokens::random_bytes;

static HOOKS: Bucket<StoredWebhook> = Bucket::new(WEBHOOKS, "").with_key(|webhook| webhook.id.to_string());
static PUSH_CONFIGS: Bucket<StoredPushConfig> = Bucket::new(WEBHOOKS, "").with_key(StoredPushConfig::key);
static SUBSCRIPTIONS: Bucket<StoredSubscription> =
    Bucket::new(WEBHOOKS, "").with_key(StoredSubscription::key);
static SENT: Bucket<StoredDelivery> =
    Bucket::new(DELIVERIES, "").with_key(|delivery| delivery_key(&delivery.webhook, &delivery.id));

/// The maximum number of webhooks of a tenant.
pub const MAX_WEBHOOKS: usize = 100;
/// The number of deliveries that are written at the same time.
const CONCURRENT_WRITES: usize = 32;

/// The error of a creation.
#[derive(Debug, thiserror::Error)]
pub enum CreateWebhookError {
    /// There are too many.
    #[error("there are {MAX_WEBHOOKS} webhooks; delete unused ones")]
    TooMany,
    /// The server does not respond.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Returns a new secret.
pub fn new_secret() -> Result<SigningSecret, Fault> {
    Ok(SigningSecret::from_bytes(&random_bytes()?))
}

/// Returns a new id.
///
/// # Panics
/// Never: hexadecimal digits are a valid id.
#[must_use]
pub fn new_webhook_id() -> WebhookId {
    let digits = uuid::Uuid::now_v7().simple().to_string();
    WebhookId::new(format!("wh_{digits}")).expect("hexadecimal digits are a valid id")
}

/// Returns the ends of all lanes, after which a new webhook tells of events.
pub async fn read_lane_ends(bus: &Bus) -> Result<std::collections::BTreeMap<u16, u64>, Fault> {
    let mut ends = std::collections::BTreeMap::new();
    for lane in 0..bus.settings().lanes {
        ends.insert(lane, read_lane_end(bus, Lane(lane)).await?);
    }
    Ok(ends)
}

/// Stores a new webhook.
pub async fn create_webhook(bus: &Bus, webhook: &StoredWebhook) -> Result<(), CreateWebhookError> {
    if read_webhooks(bus).await?.len() >= MAX_WEBHOOKS {
        return Err(CreateWebhookError::TooMany);
    }
    match HOOKS.write(bus, webhook.id.as_str(), webhook, ExpectedEntry::Sequence(0)).await? {
        Some(_) => Ok(()),
        None => Err(Fault::unavailable("storing a webhook", "its id is taken; repeat the command").into()),
    }
}

/// Returns the webhooks, oldest first.
pub async fn read_webhooks(bus: &Bus) -> Result<Vec<Entry<StoredWebhook>>, Fault> {
    let mut all = HOOKS.read_all(bus).await?;
    all.sort_by(|one, other| (one.value.created, &one.value.id).cmp(&(other.value.created, &other.value.id)));
    Ok(all)
}

/// Returns a webhook with its sequence; `None` if there is none with this id.
pub async fn read_webhook(bus: &Bus, id: &WebhookId) -> Result<Option<Entry<StoredWebhook>>, Fault> {
    Ok(HOOKS.read_state(bus, id.as_str()).await?.entry)
}

/// Replaces a webhook that has this sequence. Returns `false` if it was changed since.
pub async fn write_webhook(bus: &Bus, webhook: &StoredWebhook, sequence: u64) -> Result<bool, Fault> {
    let expected = ExpectedEntry::Sequence(sequence);
    Ok(HOOKS.write(bus, webhook.id.as_str(), webhook, expected).await?.is_some())
}

/// Removes a webhook. Its deliveries end with it.
pub async fn remove_webhook(bus: &Bus, id: &WebhookId) -> Result<(), Fault> {
    HOOKS.remove(bus, id.as_str(), ExpectedEntry::Any).await.map(drop)
}

/// Returns the push configs of a run, oldest first.
pub async fn read_push_configs(bus: &Bus, run: &RunId) -> Result<Vec<Entry<StoredPushConfig>>, Fault> {
    let mut all = PUSH_CONFIGS.read_below(bus, &StoredPushConfig::key_prefix(run)).await?;
    all.sort_by(|one, other| {
        (one.value.created, &one.value.config).cmp(&(other.value.created, &other.value.config))
    });
    Ok(all)
}

/// Returns the state of the key of a subscription.
pub async fn read_subscription(bus: &Bus, key: &str) -> Result<KeyState<StoredSubscription>, Fault> {
    SUBSCRIPTIONS.read_state(bus, key).await
}

/// Writes a subscription in place of the one with this sequence; 0 is none. Returns `false` if it was changed since.
pub async fn write_subscription(
    bus: &Bus,
    subscription: &StoredSubscription,
    sequence: u64,
) -> Result<bool, Fault> {
    let expected = ExpectedEntry::Sequence(sequence);
    Ok(SUBSCRIPTIONS.write(bus, &subscription.key(), subscription, expected).await?.is_some())
}

/// Removes a push config. Its deliveries end with it.
pub async fn remove_push_config(bus: &Bus, config: &StoredPushConfig) -> Result<(), Fault> {
    PUSH_CONFIGS.remove(bus, &config.key(), ExpectedEntry::Any).await.map(drop)
}

fn delivery_key(webhook: &WebhookId, id: &MessageId) -> String {
    format!("{webhook}.{id}")
}

/// Stores new deliveries. Those that exist stay as they are.
pub fn create_deliveries<'a>(
    bus: &'a Bus,
    deliveries: &'a [StoredDelivery],
) -> BoxFuture<'a, Result<(), Fault>> {
    async move {
        for part in deliveries.chunks(CONCURRENT_WRITES) {
            let writes: FuturesUnordered<_> =
                part.iter().map(|delivery| write_delivery(bus, delivery, 0)).collect();
            writes.try_for_each(async |_| Ok(())).await?;
        }
        Ok(())
    }
    .boxed()
}

/// Writes a delivery in place of the one with this sequence. Returns the new sequence; `None` if it was changed since.
pub async fn write_delivery(
    bus: &Bus,
    delivery: &StoredDelivery,
    sequence: u64,
) -> Result<Option<u64>, Fault> {
    let key = delivery_key(&delivery.webhook, &delivery.id);
    SENT.write(bus, &key, delivery, ExpectedEntry::Sequence(sequence)).await
}

/// Returns a delivery with its sequence; `None` if there is none.
pub async fn read_delivery(
    bus: &Bus,
    webhook: &WebhookId,
    id: &MessageId,
) -> Result<Option<Entry<StoredDelivery>>, Fault> {
    Ok(SENT.read_state(bus, &delivery_key(webhook, id)).await?.entry)
}

/// Returns the deliveries of a webhook that changed last before a sequence, newest change first, at most `limit`.
pub async fn read_deliveries(
    bus: &Bus,
    webhook: &WebhookId,
    before: Option<u64>,
    limit: usize,
    is_wanted: impl Fn(&StoredDelivery) -> bool,
) -> Result<Vec<Entry<StoredDelivery>>, Fault> {
    let mut changes = SENT.changes_below(&format!("{webhook}."), 0);
    let mut last = std::collections::VecDeque::new();
    'pages: while let Some(page) = changes.next_page(bus).await? {
        for change in page {
            let BucketChange::Set(entry) = change else { continue };
            if before.is_some_and(|before| entry.sequence >= before) {
                break 'pages;
            }
            if is_wanted(&entry.value) {
                last.push_back(entry);
                if last.len() > limit {
                    last.pop_front();
                }
            }
        }
    }
    Ok(last.into_iter().rev().collect())
}

/// Returns a reader of the changes of all webhooks and push configs, which begins with the first one.
#[must_use]
pub fn follow_subscriptions() -> BucketChanges<StoredSubscription> {
    SUBSCRIPTIONS.changes()
}

/// Returns a reader of the changes of all deliveries, which begins with the first one.
#[must_use]
pub fn follow_deliveries() -> BucketChanges<StoredDelivery> {
    SENT.changes()
}
