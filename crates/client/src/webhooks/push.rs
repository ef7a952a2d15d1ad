//! The push configs of a run. One that is set on a run that has ended, or that waits for an answer, tells of that at once: the
//! event was before it.

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::Plan;
use millrace_protocol::webhook::{
    InvalidPushConfig, MAX_PUSH_CONFIGS, PushAuthentication, SecretText, StoredDelivery, StoredPushConfig,
    StoredSubscription, WebhookData, WebhookEventKind, WebhookMessage, check_push_headers, check_push_id,
};
use millrace_runtime::store::webhooks::{self as store, create_deliveries, read_lane_ends};
use millrace_runtime::{Bus, Fault, clock};
use url::Url;

use super::{MAX_CHANGES, contention, random_message_id};
use crate::questions::{full_id, open_questions_of_plan};
use crate::read_plan;

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
