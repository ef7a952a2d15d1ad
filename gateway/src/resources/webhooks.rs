//! Webhooks, and the deliveries to their receivers.

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
use millrace_views::{DeliveryJson, DeliveryStateName, WebhookJson};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::{JsonBody, OptionalJsonBody, PathParts, QueryParts};
use crate::problem::{Problem, ProblemKind};
use crate::state::json_response;

/// The number of deliveries in a reply, if the client does not choose one.
const DEFAULT_LIMIT: usize = 100;
/// The maximum number of deliveries in a reply.
const MAX_LIMIT: usize = 1_000;
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
        .scoped(Scope::Admin, routes!(list_deliveries))
        .scoped(Scope::Admin, routes!(get_delivery))
        .scoped(Scope::Admin, routes!(redeliver))
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

async fn find_delivery(
    bus: &Bus,
    webhook: &WebhookId,
    id: &str,
) -> Result<PublishedEntry<StoredDelivery>, Problem> {
    let unknown = || {
        let detail = format!(
            "the webhook {webhook} has no delivery {id:?}; they are removed a week after their last change"
        );
        Problem::new(ProblemKind::DeliveryNotFound, detail)
    };
    let id: MessageId = id.parse().map_err(|_| unknown())?;
    store::read_delivery(bus, webhook, &id).await?.ok_or_else(unknown)
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

/// Deliveries.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DeliveryList<'a> {
    /// The deliveries, those that have changed last first.
    pub deliveries: Vec<DeliveryJson<'a>>,
    /// The cursor of the next part; empty if this is the last one.
    pub next: String,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct DeliveryQuery {
    /// Only deliveries in this state: `waiting`, `sending`, `delivered` or `failed`.
    #[param(value_type = Option<String>)]
    state: Option<DeliveryStateName>,
    /// The maximum number of deliveries, 100 by default and at most 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// The `next` of the part before.
    cursor: Option<String>,
}

/// List the deliveries of a webhook, those that have changed last first. They are removed a week after their last change.
#[utoipa::path(
    get, path = "/webhooks/{webhook}/deliveries", tag = "webhooks",
    params(("webhook" = String, Path, description = "The id of the webhook"), DeliveryQuery),
    responses((status = 200, description = "A part of the deliveries", body = ref("#/components/schemas/DeliveryList")))
)]
async fn list_deliveries(
    access: Access,
    PathParts(webhook): PathParts<String>,
    QueryParts(query): QueryParts<DeliveryQuery>,
) -> Result<Response, Problem> {
    let DeliveryQuery { state, limit, cursor } = query;
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(invalid(format!("limit: use a number from 1 to {MAX_LIMIT}")));
    }
    let parse = |text: String| text.parse().map_err(|_| invalid("cursor: it is not one of a reply"));
    let before: Option<u64> = cursor.filter(|text| !text.is_empty()).map(parse).transpose()?;
    let webhook = find_webhook(&access.bus, &webhook).await?.value;
    let is_wanted =
        |delivery: &StoredDelivery| state.is_none_or(|state| DeliveryStateName::of(&delivery.state) == state);
    // One more tells whether there is a next part.
    let mut found = store::read_deliveries(&access.bus, &webhook.id, before, limit + 1, is_wanted).await?;
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| has_more).map(|last| last.sequence.to_string());
    let deliveries = found.iter().map(|entry| DeliveryJson::new(&entry.value)).collect();
    Ok(json_response(StatusCode::OK, &DeliveryList { deliveries, next: next.unwrap_or_default() }))
}

/// Read a delivery.
#[utoipa::path(
    get, path = "/webhooks/{webhook}/deliveries/{delivery}", tag = "webhooks",
    params(
        ("webhook" = String, Path, description = "The id of the webhook"),
        ("delivery" = String, Path, description = "The id of the delivery: that of its message")
    ),
    responses((status = 200, description = "The delivery", body = ref("#/components/schemas/Delivery")))
)]
async fn get_delivery(
    access: Access,
    PathParts((webhook, delivery)): PathParts<(String, String)>,
) -> Result<Response, Problem> {
    let webhook = find_webhook(&access.bus, &webhook).await?.value;
    let entry = find_delivery(&access.bus, &webhook.id, &delivery).await?;
    Ok(json_response(StatusCode::OK, &DeliveryJson::new(&entry.value)))
}

/// Deliver a message again. It has the same id, and is attempted for three more days.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/deliveries/{delivery}/redeliver", tag = "webhooks",
    params(
        ("webhook" = String, Path, description = "The id of the webhook"),
        ("delivery" = String, Path, description = "The id of the delivery: that of its message")
    ),
    responses((status = 202, description = "The delivery, which is attempted at once", body = ref("#/components/schemas/Delivery")))
)]
async fn redeliver(
    access: Access,
    PathParts((webhook, delivery)): PathParts<(String, String)>,
) -> Result<Response, Problem> {
    let webhook = find_enabled_webhook(&access.bus, &webhook).await?;
    for _ in 0..MAX_CHANGES {
        let entry = find_delivery(&access.bus, &webhook.id, &delivery).await?;
        let again = entry.value.redelivered(clock::now());
        if store::write_delivery(&access.bus, &again, entry.sequence).await?.is_some() {
            return Ok(json_response(StatusCode::ACCEPTED, &DeliveryJson::new(&again)));
        }
    }
    Err(contention())
}
