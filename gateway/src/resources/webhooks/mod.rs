//! Webhooks, and the deliveries to their receivers.

mod deliveries;

use axum::http::StatusCode;
use axum::response::Response;
use jiff::SignedDuration;
use millrace_client::webhooks::{
    self as webhooks, MAX_SECRET_OVERLAP, NewWebhook, SECRET_OVERLAP, WebhookChange, WebhookError,
};
use millrace_protocol::labels::LabelSelector;
use millrace_protocol::token::Scope;
use millrace_protocol::webhook::{SigningSecret, WebhookEventKind};
use millrace_runtime::clock;
use millrace_runtime::duration::parse_duration;
use millrace_runtime::store::webhooks::read_webhooks;
use millrace_views::{DeliveryJson, WebhookJson};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;
use utoipa_axum::routes;

pub use deliveries::DeliveryList;

use crate::access::{Access, ApiRoutes};
use crate::extract::{JsonBody, OptionalJsonBody, PathParts};
use crate::problem::{Problem, ProblemKind};
use crate::state::json_response;

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

impl From<WebhookError> for Problem {
    fn from(error: WebhookError) -> Self {
        match error {
            WebhookError::NotFound(_) => {
                Self::new(ProblemKind::WebhookNotFound, format!("{error}; /webhooks lists them"))
            }
            WebhookError::DeliveryNotFound(..) => Self::new(ProblemKind::DeliveryNotFound, error),
            WebhookError::Disabled(_) => {
                Self::new(ProblemKind::WebhookDisabled, format!("{error}: PATCH {{\"enabled\": true}}"))
            }
            WebhookError::TooMany => Self::new(ProblemKind::TooManyWebhooks, error),
            WebhookError::Invalid(mistake) => invalid(mistake),
            WebhookError::Fault(fault) => fault.into(),
        }
    }
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
    let (webhooks, now) = (read_webhooks(&access.bus).await?, clock::now());
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

impl Access {
    fn check_url(&self, url: &str) -> Result<Url, Problem> {
        self.receivers.parse_url(url).map_err(|error| invalid(format!("url: {error}")))
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
    let new = NewWebhook {
        url: access.check_url(&url)?,
        description,
        events: events.unwrap_or_else(|| WebhookEventKind::DEFAULT.to_vec()),
        labels,
        secret,
    };
    let webhook = webhooks::create_webhook(&access.bus, new, access.actor()).await?;
    Ok(json_response(StatusCode::CREATED, &WebhookJson::with_secret(&webhook, clock::now())))
}

/// Read a webhook.
#[utoipa::path(
    get, path = "/webhooks/{webhook}", tag = "webhooks",
    params(("webhook" = String, Path, description = "The id of the webhook")),
    responses((status = 200, description = "The webhook", body = ref("#/components/schemas/Webhook")))
)]
async fn get_webhook(access: Access, PathParts(webhook): PathParts<String>) -> Result<Response, Problem> {
    let entry = webhooks::find_webhook(&access.bus, &webhook).await?;
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
    let change = WebhookChange { url, description, events, labels, enabled };
    let changed = webhooks::change_webhook(&access.bus, &webhook, change, access.actor()).await?;
    Ok(json_response(StatusCode::OK, &WebhookJson::new(&changed, clock::now())))
}

/// Delete a webhook. Deliveries that have not ended are not attempted any more.
#[utoipa::path(
    delete, path = "/webhooks/{webhook}", tag = "webhooks",
    params(("webhook" = String, Path, description = "The id of the webhook")),
    responses((status = 200, description = "The webhook that was deleted", body = ref("#/components/schemas/Webhook")))
)]
async fn delete_webhook(access: Access, PathParts(webhook): PathParts<String>) -> Result<Response, Problem> {
    let deleted = webhooks::delete_webhook(&access.bus, &webhook, access.actor()).await?;
    Ok(json_response(StatusCode::OK, &WebhookJson::new(&deleted, clock::now())))
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
    let changed = webhooks::replace_secret(&access.bus, &webhook, secret, overlap, access.actor()).await?;
    Ok(json_response(StatusCode::OK, &WebhookJson::with_secret(&changed, clock::now())))
}

fn parse_overlap(text: &str) -> Result<SignedDuration, Problem> {
    let duration = parse_duration(text).map_err(|error| invalid(format!("keep_earlier_for: {error}")))?;
    let duration = SignedDuration::try_from(duration).ok().filter(|duration| *duration <= MAX_SECRET_OVERLAP);
    duration.ok_or_else(|| invalid("keep_earlier_for: at most 30d is allowed"))
}

/// Send a test message to the receiver of a webhook.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/test", tag = "webhooks",
    params(("webhook" = String, Path, description = "The id of the webhook")),
    responses((status = 202, description = "The delivery, which is attempted at once", body = ref("#/components/schemas/Delivery")))
)]
async fn test_webhook(access: Access, PathParts(webhook): PathParts<String>) -> Result<Response, Problem> {
    let delivery = webhooks::send_test(&access.bus, &webhook).await?;
    Ok(json_response(StatusCode::ACCEPTED, &DeliveryJson::new(&delivery)))
}
