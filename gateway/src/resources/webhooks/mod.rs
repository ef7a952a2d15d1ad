//! Webhooks, and the deliveries to their receivers.

mod deliveries;

use axum::http::StatusCode;
use axum::response::Response;
use jiff::{SignedDuration, Timestamp};
use millrace_protocol::audit::AuditAction;
use millrace_protocol::ids::{MessageId, WebhookId};
use millrace_protocol::labels::{LabelSelector, MAX_LABELS};
use millrace_protocol::token::Scope;
use millrace_protocol::webhook::{
    DisableReason, ExpiringSecret, SigningSecret, StoredDelivery, StoredWebhook, WebhookEventKind,
    WebhookMessage, find_description_problem,
};
use millrace_runtime::duration::parse_duration;
use millrace_runtime::nats::published_bucket::PublishedEntry;
use millrace_runtime::store::webhooks::{
    self as store, CreateWebhookError, create_deliveries, create_webhook, new_secret, new_webhook_id,
    read_lane_ends, remove_webhook, write_webhook,
};
use millrace_runtime::{Bus, Fault, clock};
use millrace_views::{DeliveryJson, WebhookJson};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa_axum::routes;

pub use deliveries::DeliveryList;

use crate::access::{Access, ApiRoutes};
use crate::extract::{JsonBody, OptionalJsonBody, PathParts};
use crate::problem::{Problem, ProblemKind};
use crate::state::json_response;

/// The time for which an earlier secret signs messages too, if the client does not choose one.
const SECRET_OVERLAP: SignedDuration = SignedDuration::from_hours(24);
/// The longest such time.
const MAX_OVERLAP: SignedDuration = SignedDuration::from_hours(30 * 24);
/// The number of attempts to change something that others change at the same time.
const MAX_CHANGES: u32 = 5;

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Admin, routes!(list_webhooks, post_webhook))
        .scoped(Scope::Admin, routes!(get_webhook, patch_webhook, delete_webhook))
        .scoped(Scope::Admin, routes!(rotate_secret))
        .scoped(Scope::Admin, routes!(test_webhook))
        .merge(deliveries::routes())
}

fn invalid(detail: impl std::fmt::Display) -> Problem {
    Problem::new(ProblemKind::InvalidRequest, detail)
}

impl From<CreateWebhookError> for Problem {
    fn from(error: CreateWebhookError) -> Self {
        match error {
            CreateWebhookError::TooMany => Self::new(ProblemKind::TooManyWebhooks, error),
            CreateWebhookError::Fault(fault) => fault.into(),
        }
    }
}

async fn find_webhook(bus: &Bus, id: &str) -> Result<PublishedEntry<StoredWebhook>, Problem> {
    let unknown = || {
        let detail = format!("there is no webhook with the id {id:?}; /webhooks lists them");
        Problem::new(ProblemKind::WebhookNotFound, detail)
    };
    let parsed: WebhookId = id.parse().map_err(|_| unknown())?;
    store::read_webhook(bus, &parsed).await?.ok_or_else(unknown)
}

fn contention() -> Problem {
    Fault::unavailable("changing a webhook", "other programs change it all the time; repeat the request")
        .into()
}

/// Webhooks.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WebhookList<'a> {
    /// The webhooks, oldest first.
    pub webhooks: Vec<WebhookJson<'a>>,
}

/// List the webhooks. Their secrets can't be read.
#[utoipa::path(
    get, path = "/webhooks", tag = "webhooks",
    responses((status = 200, description = "The webhooks", body = ref("#/components/schemas/WebhookList")))
)]
async fn list_webhooks(access: Access) -> Result<Response, Problem> {
    let (webhooks, now) = (store::read_webhooks(&access.bus).await?, clock::now());
    let webhooks = webhooks.iter().map(|entry| WebhookJson::new(&entry.value, now)).collect();
    Ok(json_response(StatusCode::OK, &WebhookList { webhooks }))
}

/// A webhook to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookBody {
    /// The URL of its receiver.
    url: String,
    /// A description for people.
    #[serde(default)]
    description: String,
    /// The events that it tells of; `run_ended`, `question_asked` and `budget_low` if absent.
    #[serde(default)]
    events: Option<Vec<WebhookEventKind>>,
    /// Only events of runs with all these labels: `NAME=VALUE`, or `NAME` for any value.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    labels: Vec<LabelSelector>,
    /// The secret by which receivers verify messages: `whsec_` and 24 to 64 bytes in Base64. One is created if absent.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    secret: Option<SigningSecret>,
}

fn check_events(mut events: Vec<WebhookEventKind>) -> Result<Vec<WebhookEventKind>, Problem> {
    if events.is_empty() {
        return Err(invalid("events: a webhook has one or more events"));
    }
    if events.contains(&WebhookEventKind::WebhookTest) {
        return Err(invalid("events: webhook_test is sent when it is requested only"));
    }
    events.sort();
    events.dedup();
    Ok(events)
}

fn check_labels(labels: Vec<LabelSelector>) -> Result<Vec<LabelSelector>, Problem> {
    if labels.len() > MAX_LABELS {
        return Err(invalid(format!("labels: at most {MAX_LABELS} are allowed")));
    }
    Ok(labels)
}

fn check_description(description: String) -> Result<String, Problem> {
    match find_description_problem(&description) {
        Some(problem) => Err(invalid(format!("description: {problem}"))),
        None => Ok(description),
    }
}

impl Access {
    fn check_url(&self, url: &str) -> Result<String, Problem> {
        let url = self.receivers.parse_url(url).map_err(|error| invalid(format!("url: {error}")))?;
        Ok(url.into())
    }
}

/// Create a webhook. Its secret is in this reply only. It tells of events after this reply.
#[utoipa::path(
    post, path = "/webhooks", tag = "webhooks",
    request_body = ref("#/components/schemas/WebhookBody"),
    responses((status = 201, description = "The webhook was created", body = ref("#/components/schemas/Webhook")))
)]
async fn post_webhook(access: Access, JsonBody(body): JsonBody<WebhookBody>) -> Result<Response, Problem> {
    let WebhookBody { url, description, events, labels, secret } = body;
    let webhook = StoredWebhook {
        id: new_webhook_id(),
        url: access.check_url(&url)?,
        description: check_description(description)?,
        events: check_events(events.unwrap_or_else(|| WebhookEventKind::DEFAULT.to_vec()))?,
        labels: check_labels(labels)?,
        secret: secret.map_or_else(new_secret, Ok)?,
        earlier_secret: None,
        disabled: None,
        since: read_lane_ends(&access.bus).await?,
        created: clock::now(),
        created_by: access.caller.name.clone(),
    };
    let (id, url) = (webhook.id.clone(), webhook.url.clone());
    access.record(AuditAction::WebhookCreated { webhook: id, url }).await?;
    create_webhook(&access.bus, &webhook).await?;
    Ok(json_response(StatusCode::CREATED, &WebhookJson::with_secret(&webhook, clock::now())))
}

/// Read a webhook.
#[utoipa::path(
    get, path = "/webhooks/{webhook}", tag = "webhooks",
    params(("webhook" = String, Path, description = "The id of the webhook")),
    responses((status = 200, description = "The webhook", body = ref("#/components/schemas/Webhook")))
)]
async fn get_webhook(access: Access, PathParts(webhook): PathParts<String>) -> Result<Response, Problem> {
    let entry = find_webhook(&access.bus, &webhook).await?;
    Ok(json_response(StatusCode::OK, &WebhookJson::new(&entry.value, clock::now())))
}

/// A change of a webhook. Absent fields stay the same.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WebhookPatchBody {
    /// The URL of its receiver.
    url: Option<String>,
    /// A description for people.
    description: Option<String>,
    /// The events that it tells of.
    events: Option<Vec<WebhookEventKind>>,
    /// Only events of runs with all these labels: `NAME=VALUE`, or `NAME` for any value.
    #[schemars(with = "Option<Vec<String>>")]
    labels: Option<Vec<LabelSelector>>,
    /// `false` delivers nothing until it is enabled again. It never tells of events in between.
    enabled: Option<bool>,
}

/// Change a webhook, or enable or disable it.
#[utoipa::path(
    patch, path = "/webhooks/{webhook}", tag = "webhooks",
    params(("webhook" = String, Path, description = "The id of the webhook")),
    request_body = ref("#/components/schemas/WebhookPatchBody"),
    responses((status = 200, description = "The changed webhook", body = ref("#/components/schemas/Webhook")))
)]
async fn patch_webhook(
    access: Access,
    PathParts(webhook): PathParts<String>,
    JsonBody(body): JsonBody<WebhookPatchBody>,
) -> Result<Response, Problem> {
    let WebhookPatchBody { url, description, events, labels, enabled } = body;
    let url = url.map(|url| access.check_url(&url)).transpose()?;
    let description = description.map(check_description).transpose()?;
    let (events, labels) = (events.map(check_events).transpose()?, labels.map(check_labels).transpose()?);
    let found = find_webhook(&access.bus, &webhook).await?;
    access
        .record(AuditAction::WebhookChanged {
            webhook: found.value.id.clone(),
            url: url.clone().unwrap_or(found.value.url),
        })
        .await?;
    let ends = read_lane_ends(&access.bus).await?;
    let changed = change_webhook(&access.bus, &webhook, |stored| {
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
    .await?;
    Ok(json_response(StatusCode::OK, &WebhookJson::new(&changed, clock::now())))
}

async fn change_webhook(
    bus: &Bus,
    id: &str,
    change: impl Fn(StoredWebhook) -> StoredWebhook,
) -> Result<StoredWebhook, Problem> {
    for _ in 0..MAX_CHANGES {
        let entry = find_webhook(bus, id).await?;
        let changed = change(entry.value);
        if write_webhook(bus, &changed, entry.sequence).await? {
            return Ok(changed);
        }
    }
    Err(contention())
}

/// Delete a webhook. Deliveries that have not ended are not attempted any more.
#[utoipa::path(
    delete, path = "/webhooks/{webhook}", tag = "webhooks",
    params(("webhook" = String, Path, description = "The id of the webhook")),
    responses((status = 200, description = "The webhook that was deleted", body = ref("#/components/schemas/Webhook")))
)]
async fn delete_webhook(access: Access, PathParts(webhook): PathParts<String>) -> Result<Response, Problem> {
    let StoredWebhook { id, url, .. } = &find_webhook(&access.bus, &webhook).await?.value;
    access.record(AuditAction::WebhookDeleted { webhook: id.clone(), url: url.clone() }).await?;
    let deleted = find_webhook(&access.bus, &webhook).await?;
    remove_webhook(&access.bus, id).await?;
    Ok(json_response(StatusCode::OK, &WebhookJson::new(&deleted.value, clock::now())))
}

/// A new secret.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SecretBody {
    /// The new secret: `whsec_` and 24 to 64 bytes in Base64. One is created if absent.
    #[schemars(with = "Option<String>")]
    secret: Option<SigningSecret>,
    /// The time for which messages are signed with the secret before too, such as `24h` or `0s`; a day if absent, at most 30 days.
    keep_earlier_for: Option<String>,
}

/// Replace the secret of a webhook. The new one is in this reply only. For a time messages have signatures with both.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/secret", tag = "webhooks",
    params(("webhook" = String, Path, description = "The id of the webhook")),
    request_body(content = ref("#/components/schemas/SecretBody"), content_type = "application/json"),
    responses((status = 200, description = "The webhook with its new secret", body = ref("#/components/schemas/Webhook")))
)]
async fn rotate_secret(
    access: Access,
    PathParts(webhook): PathParts<String>,
    OptionalJsonBody(body): OptionalJsonBody<SecretBody>,
) -> Result<Response, Problem> {
    let SecretBody { secret, keep_earlier_for } = body;
    let overlap = keep_earlier_for.as_deref().map_or(Ok(SECRET_OVERLAP), parse_overlap)?;
    let found = find_webhook(&access.bus, &webhook).await?;
    access.record(AuditAction::WebhookSecretReplaced { webhook: found.value.id }).await?;
    let (secret, now) = (secret.map_or_else(new_secret, Ok)?, clock::now());
    let until = now.checked_add(overlap).unwrap_or(Timestamp::MAX);
    let changed = change_webhook(&access.bus, &webhook, |stored| StoredWebhook {
        earlier_secret: Some(ExpiringSecret { secret: stored.secret, until }),
        secret: secret.clone(),
        ..stored
    })
    .await?;
    Ok(json_response(StatusCode::OK, &WebhookJson::with_secret(&changed, now)))
}

fn parse_overlap(text: &str) -> Result<SignedDuration, Problem> {
    let duration = parse_duration(text).map_err(|error| invalid(format!("keep_earlier_for: {error}")))?;
    let duration = SignedDuration::try_from(duration).ok().filter(|duration| *duration <= MAX_OVERLAP);
    duration.ok_or_else(|| invalid("keep_earlier_for: at most 30d is allowed"))
}

/// Send a test message to the receiver of a webhook.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/test", tag = "webhooks",
    params(("webhook" = String, Path, description = "The id of the webhook")),
    responses((status = 202, description = "The delivery, which is attempted at once", body = ref("#/components/schemas/Delivery")))
)]
async fn test_webhook(access: Access, PathParts(webhook): PathParts<String>) -> Result<Response, Problem> {
    let webhook = find_enabled_webhook(&access.bus, &webhook).await?;
    let now = clock::now();
    let id = MessageId::new(format!("msg_{}", uuid::Uuid::new_v4().simple()));
    let id = id.expect("hexadecimal digits are a valid id");
    let delivery = StoredDelivery::new(id, webhook.id, WebhookMessage::test(now), now);
    create_deliveries(&access.bus, std::slice::from_ref(&delivery)).await?;
    Ok(json_response(StatusCode::ACCEPTED, &DeliveryJson::new(&delivery)))
}

async fn find_enabled_webhook(bus: &Bus, id: &str) -> Result<StoredWebhook, Problem> {
    let webhook = find_webhook(bus, id).await?.value;
    match webhook.disabled {
        None => Ok(webhook),
        Some(_) => {
            let detail =
                format!("the webhook {id} is disabled; enable it first: PATCH {{\"enabled\": true}}");
            Err(Problem::new(ProblemKind::WebhookDisabled, detail))
        }
    }
}
