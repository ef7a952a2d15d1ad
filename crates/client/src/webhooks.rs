//! Changes webhooks and their deliveries: what the HTTP API and `millrace webhook` both do. Each change is recorded before it is carried
//! out.
//!
//! A push config that is set on a run that has ended, or that waits for an answer, tells of that at once: the
//! event was before it.

use jiff::{SignedDuration, Timestamp};
use millrace_protocol::audit::{Actor, AuditAction};
use millrace_protocol::ids::{MessageId, RunId, WebhookId};
use millrace_protocol::labels::{LabelSelector, MAX_LABELS};
use millrace_protocol::plan::Plan;
use millrace_protocol::webhook::{
    DisableReason, ExpiringSecret, InvalidPushConfig, MAX_PUSH_CONFIGS, PushAuthentication, SecretText,
    SigningSecret, StoredDelivery, StoredPushConfig, StoredSubscription, StoredWebhook, WebhookData,
    WebhookEventKind, WebhookMessage, check_push_headers, check_push_id, find_description_problem,
};
use millrace_runtime::store::bucket::Entry;
use millrace_runtime::store::webhooks as store;
use millrace_runtime::store::webhooks::{
    CreateWebhookError, MAX_WEBHOOKS, create_deliveries, new_secret, new_webhook_id, read_lane_ends,
    remove_webhook, write_delivery, write_webhook,
};
use millrace_runtime::{Bus, Fault, clock};
use url::Url;

use crate::administration::record;
use crate::questions::{full_id, open_questions_of_plan};
use crate::read_plan;

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

/// A mistake in the definition of a webhook.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWebhook {
    #[error("events: a webhook has one or more events")]
    NoEvents,
    /// The list of events has one that is requested only.
    #[error("events: webhook_test is sent when it is requested only")]
    TestEvent,
    #[error("labels: at most {MAX_LABELS} are allowed")]
    TooManyLabels,
    #[error("description: {0}")]
    Description(String),
    /// The secret before would be used for too long.
    #[error("keep_earlier_for: at most 30d is allowed")]
    Overlap,
}

#[derive(Debug)]
pub struct NewWebhook {
    /// The URL of its receiver, which the policy of the cluster allows.
    pub url: Url,
    pub description: String,
    pub events: Vec<WebhookEventKind>,
    /// Only events of runs with all these labels.
    pub labels: Vec<LabelSelector>,
    /// The secret; `None` to have one created.
    pub secret: Option<SigningSecret>,
}

impl NewWebhook {
    /// Returns the definition if it has no mistake, with each event once.
    pub(super) fn checked(self) -> Result<Self, InvalidWebhook> {
        Ok(Self {
            description: check_description(self.description)?,
            events: check_events(self.events)?,
            labels: check_labels(self.labels)?,
            ..self
        })
    }
}

/// A change of a webhook. Fields that are `None` stay the same.
#[derive(Debug, Default)]
pub struct WebhookChange {
    /// The URL of its receiver, which the policy of the cluster allows.
    pub url: Option<Url>,
    pub description: Option<String>,
    pub events: Option<Vec<WebhookEventKind>>,
    /// Only events of runs with all these labels.
    pub labels: Option<Vec<LabelSelector>>,
    /// `false` delivers nothing until it is enabled again. It never tells of events in between.
    pub enabled: Option<bool>,
}

impl WebhookChange {
    /// The change that enables or disables a webhook.
    #[must_use]
    pub fn enabling(is_enabled: bool) -> Self {
        Self { enabled: Some(is_enabled), ..Self::default() }
    }

    /// Returns the change if it has no mistake, with each event once.
    pub(super) fn checked(self) -> Result<Self, InvalidWebhook> {
        Ok(Self {
            description: self.description.map(check_description).transpose()?,
            events: self.events.map(check_events).transpose()?,
            labels: self.labels.map(check_labels).transpose()?,
            ..self
        })
    }
}

fn check_events(mut events: Vec<WebhookEventKind>) -> Result<Vec<WebhookEventKind>, InvalidWebhook> {
    if events.is_empty() {
        return Err(InvalidWebhook::NoEvents);
    }
    if events.contains(&WebhookEventKind::WebhookTest) {
        return Err(InvalidWebhook::TestEvent);
    }
    events.sort();
    events.dedup();
    Ok(events)
}

fn check_labels(labels: Vec<LabelSelector>) -> Result<Vec<LabelSelector>, InvalidWebhook> {
    if labels.len() > MAX_LABELS { Err(InvalidWebhook::TooManyLabels) } else { Ok(labels) }
}

fn check_description(description: String) -> Result<String, InvalidWebhook> {
    match find_description_problem(&description) {
        Some(problem) => Err(InvalidWebhook::Description(problem)),
        None => Ok(description),
    }
}

/// A reason why a push config can't be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum PushConfigError {
    #[error("run {0} has no push config {1:?}")]
    NotFound(RunId, String),
    #[error("run {0} has {MAX_PUSH_CONFIGS} push configs; delete unused ones")]
    TooMany(RunId),
    #[error(transparent)]
    Invalid(#[from] InvalidPushConfig),
    #[error(transparent)]
    Fault(#[from] Fault),
}

#[derive(Debug)]
pub struct NewPushConfig {
    /// The id; `None` to have one created.
    pub config: Option<String>,
    /// The URL of the receiver, which the policy of the cluster allows.
    pub url: Url,
    /// The token that the receiver expects.
    pub token: Option<SecretText>,
    /// The authentication that the receiver expects.
    pub authentication: Option<PushAuthentication>,
}

impl NewPushConfig {
    /// Checks the parts that need no cluster.
    pub fn check(&self) -> Result<(), InvalidPushConfig> {
        self.config.as_deref().map_or(Ok(()), check_push_id)?;
        check_push_headers(self.token.as_ref(), self.authentication.as_ref())
    }
}

/// Sets a push config of a run, in place of the one with its id. It tells of events after this call, and of the current status if
/// that waits for the client.
pub async fn set_push_config(
    bus: &Bus,
    run: &RunId,
    new: NewPushConfig,
    by: &str,
) -> Result<StoredPushConfig, PushConfigError> {
    new.check()?;
    let NewPushConfig { config, url, token, authentication } = new;
    let config = config.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
    let stored = StoredPushConfig {
        id: StoredPushConfig::id_of(run, &config),
        run: run.clone(),
        config,
        url: url.into(),
        token,
        authentication,
        disabled: None,
        since: read_lane_ends(bus).await?,
        created: clock::now(),
        created_by: by.to_owned(),
    };
    write(bus, &stored).await?;
    // Events between the position and the write may have been passed over, so the status after the write counts.
    tell_status(bus, &stored, &read_plan(bus, run).await?).await?;
    Ok(stored)
}

async fn write(bus: &Bus, config: &StoredPushConfig) -> Result<(), PushConfigError> {
    let subscription = StoredSubscription::Push(config.clone());
    for _ in 0..MAX_CHANGES {
        let others = store::read_push_configs(bus, &config.run).await?;
        let is_new = !others.iter().any(|entry| entry.value.id == config.id);
        if is_new && others.len() >= MAX_PUSH_CONFIGS {
            return Err(PushConfigError::TooMany(config.run.clone()));
        }
        let last = store::read_subscription(bus, &config.key()).await?.last;
        if store::write_subscription(bus, &subscription, last).await? {
            return Ok(());
        }
    }
    Err(contention().into())
}

/// Stores deliveries about a status that waits for the client.
async fn tell_status(bus: &Bus, config: &StoredPushConfig, plan: &Plan) -> Result<(), Fault> {
    let data = WebhookData { run: Some(config.run.clone()), ..WebhookData::default() };
    let mut messages = Vec::new();
    if let Some(end) = &plan.run.end {
        let data = WebhookData { reason: Some(end.reason), ..data };
        messages.push(WebhookMessage { kind: WebhookEventKind::RunEnded, timestamp: end.at, data });
    } else {
        messages.extend(open_questions_of_plan(plan).into_iter().map(|question| {
            let data = WebhookData { question: Some(full_id(&config.run, &question.id)), ..data.clone() };
            let kind = WebhookEventKind::QuestionAsked;
            WebhookMessage { kind, timestamp: question.wait.since, data }
        }));
    }
    let deliveries = messages
        .into_iter()
        .map(|message| StoredDelivery::new(random_message_id(), config.id.clone(), message, clock::now()));
    create_deliveries(bus, &deliveries.collect::<Vec<_>>()).await
}

/// Returns the push configs of a run, oldest first.
pub async fn list_push_configs(bus: &Bus, run: &RunId) -> Result<Vec<StoredPushConfig>, Fault> {
    Ok(store::read_push_configs(bus, run).await?.into_iter().map(|entry| entry.value).collect())
}

pub async fn find_push_config(
    bus: &Bus,
    run: &RunId,
    config: &str,
) -> Result<StoredPushConfig, PushConfigError> {
    let id = StoredPushConfig::id_of(run, config);
    let key = format!("{}{id}", StoredPushConfig::key_prefix(run));
    match store::read_subscription(bus, &key).await?.entry.map(|entry| entry.value) {
        Some(StoredSubscription::Push(found)) if found.config == config => Ok(found),
        Some(StoredSubscription::Push(_) | StoredSubscription::Webhook(_)) | None => {
            Err(PushConfigError::NotFound(run.clone(), config.chars().take(100).collect()))
        }
    }
}

/// Deletes a push config of a run and returns it. Its deliveries that have not ended are not attempted any more.
pub async fn delete_push_config(
    bus: &Bus,
    run: &RunId,
    config: &str,
) -> Result<StoredPushConfig, PushConfigError> {
    let found = find_push_config(bus, run, config).await?;
    store::remove_push_config(bus, &found).await?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_with_mistakes_are_refused_with_the_field() {
        let change = |events: &[WebhookEventKind]| WebhookChange {
            events: Some(events.to_vec()),
            ..WebhookChange::default()
        };
        let twice = [WebhookEventKind::RunStarted, WebhookEventKind::RunEnded, WebhookEventKind::RunStarted];
        let checked = change(&twice).checked().unwrap();
        assert_eq!(checked.events.unwrap(), [WebhookEventKind::RunStarted, WebhookEventKind::RunEnded]);
        assert_eq!(change(&[]).checked().unwrap_err(), InvalidWebhook::NoEvents);
        assert_eq!(
            change(&[WebhookEventKind::WebhookTest]).checked().unwrap_err(),
            InvalidWebhook::TestEvent
        );
        let labels = vec!["a".parse().unwrap(); MAX_LABELS + 1];
        let many = WebhookChange { labels: Some(labels), ..WebhookChange::default() };
        assert_eq!(many.checked().unwrap_err(), InvalidWebhook::TooManyLabels);
        let hidden = WebhookChange { description: Some("a\u{7}".into()), ..WebhookChange::default() };
        assert!(hidden.checked().unwrap_err().to_string().starts_with("description: "));
    }
}
