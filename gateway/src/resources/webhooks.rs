//! Webhooks with the deliveries to their receivers, and push configs: receivers of A2A notifications about one run.

use axum::http::StatusCode;
use jiff::SignedDuration;
use millrace_client::webhooks::{
    self as webhooks, MAX_SECRET_OVERLAP, NewPushConfig, NewWebhook, PushConfigError, SECRET_OVERLAP,
    WebhookChange, WebhookError,
};
use millrace_protocol::ids::RunId;
use millrace_protocol::labels::LabelSelector;
use millrace_protocol::token::Scope;
use millrace_protocol::webhook::{
    PushAuthentication, SecretText, SigningSecret, StoredDelivery, StoredPushConfig, WebhookEventKind,
};
use millrace_runtime::clock;
use millrace_runtime::clock::parse_duration;
use millrace_runtime::store::webhooks::read_webhooks;
use millrace_views::{DeliveryJson, DeliveryStateName, PushConfigJson, WebhookJson};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::{Json, OptionalJson, Path, Query};
use crate::problem::{ApiResult, Problem, ProblemKind};
use crate::state::{json_response, reply};

pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Admin, routes!(list_webhooks, post_webhook))
        .scoped(Scope::Admin, routes!(get_webhook, patch_webhook, delete_webhook))
        .scoped(Scope::Admin, routes!(rotate_secret))
        .scoped(Scope::Admin, routes!(test_webhook))
        .scoped(Scope::Admin, routes!(list_deliveries))
        .scoped(Scope::Admin, routes!(get_delivery))
        .scoped(Scope::Admin, routes!(redeliver))
        .scoped(Scope::Read, routes!(list_push_configs))
        .scoped(Scope::Submit, routes!(set_push_config))
        .scoped(Scope::Read, routes!(read_push_config))
        .scoped(Scope::Submit, routes!(delete_push_config))
}

fn invalid(detail: impl std::fmt::Display) -> Problem {
    Problem::invalid(detail)
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
async fn list_webhooks(access: Access) -> ApiResult {
    let (webhooks, now) = (read_webhooks(&access.bus).await?, clock::now());
    let webhooks = webhooks.iter().map(|entry| WebhookJson::new(&entry.value, now)).collect();
    reply(&WebhookList { webhooks })
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
async fn post_webhook(access: Access, Json(body): Json<WebhookBody>) -> ApiResult {
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
async fn get_webhook(access: Access, Path(webhook): Path<String>) -> ApiResult {
    let entry = webhooks::find_webhook(&access.bus, &webhook).await?;
    reply(&WebhookJson::new(&entry.value, clock::now()))
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
    Path(webhook): Path<String>,
    Json(body): Json<WebhookPatchBody>,
) -> ApiResult {
    let WebhookPatchBody { url, description, events, labels, enabled } = body;
    let url = url.map(|url| access.check_url(&url)).transpose()?;
    let change = WebhookChange { url, description, events, labels, enabled };
    let changed = webhooks::change_webhook(&access.bus, &webhook, change, access.actor()).await?;
    reply(&WebhookJson::new(&changed, clock::now()))
}

/// Delete a webhook. Deliveries that have not ended are not attempted any more.
#[utoipa::path(
    delete, path = "/webhooks/{webhook}", tag = "webhooks",
    params(("webhook" = String, Path, description = "The id of the webhook")),
    responses((status = 200, description = "The webhook that was deleted", body = ref("#/components/schemas/Webhook")))
)]
async fn delete_webhook(access: Access, Path(webhook): Path<String>) -> ApiResult {
    let deleted = webhooks::delete_webhook(&access.bus, &webhook, access.actor()).await?;
    reply(&WebhookJson::new(&deleted, clock::now()))
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
    Path(webhook): Path<String>,
    OptionalJson(body): OptionalJson<SecretBody>,
) -> ApiResult {
    let SecretBody { secret, keep_earlier_for } = body;
    let overlap = keep_earlier_for.as_deref().map_or(Ok(SECRET_OVERLAP), parse_overlap)?;
    let changed = webhooks::replace_secret(&access.bus, &webhook, secret, overlap, access.actor()).await?;
    reply(&WebhookJson::with_secret(&changed, clock::now()))
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
async fn test_webhook(access: Access, Path(webhook): Path<String>) -> ApiResult {
    let delivery = webhooks::send_test(&access.bus, &webhook).await?;
    Ok(json_response(StatusCode::ACCEPTED, &DeliveryJson::new(&delivery)))
}

/// The number of deliveries in a reply, if the client does not choose one.
const DEFAULT_LIMIT: usize = 100;
/// The maximum number of deliveries in a reply.
const MAX_LIMIT: usize = 1_000;

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
    Path(webhook): Path<String>,
    Query(query): Query<DeliveryQuery>,
) -> ApiResult {
    let DeliveryQuery { state, limit, cursor } = query;
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(invalid(format!("limit: use a number from 1 to {MAX_LIMIT}")));
    }
    let parse = |text: String| text.parse().map_err(|_| invalid("cursor: it is not one of a reply"));
    let before: Option<u64> = cursor.filter(|text| !text.is_empty()).map(parse).transpose()?;
    let is_wanted =
        |delivery: &StoredDelivery| state.is_none_or(|state| DeliveryStateName::of(&delivery.state) == state);
    let page = webhooks::list_deliveries(&access.bus, &webhook, before, limit, is_wanted).await?;
    let deliveries = page.deliveries.iter().map(DeliveryJson::new).collect();
    let next = page.next.map(|sequence| sequence.to_string()).unwrap_or_default();
    reply(&DeliveryList { deliveries, next })
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
async fn get_delivery(access: Access, Path((webhook, delivery)): Path<(String, String)>) -> ApiResult {
    let delivery = webhooks::read_delivery(&access.bus, &webhook, &delivery).await?;
    reply(&DeliveryJson::new(&delivery))
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
async fn redeliver(access: Access, Path((webhook, delivery)): Path<(String, String)>) -> ApiResult {
    let again = webhooks::redeliver(&access.bus, &webhook, &delivery).await?;
    Ok(json_response(StatusCode::ACCEPTED, &DeliveryJson::new(&again)))
}

impl From<PushConfigError> for Problem {
    fn from(error: PushConfigError) -> Self {
        match error {
            PushConfigError::NotFound(..) => Self::new(ProblemKind::PushConfigNotFound, error),
            PushConfigError::TooMany(_) => Self::new(ProblemKind::TooManyPushConfigs, error),
            PushConfigError::Invalid(mistake) => invalid(mistake),
            PushConfigError::Fault(fault) => fault.into(),
        }
    }
}

/// A push config to set.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PushConfigBody {
    /// Its id, unique within the run; one is created if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The URL of its receiver.
    pub url: String,
    /// The token that requests have in the header `X-A2A-Notification-Token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub token: Option<SecretText>,
    /// The header `Authorization` of requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authentication: Option<PushAuthenticationBody>,
}

/// The header `Authorization` of requests to a receiver.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PushAuthenticationBody {
    /// The scheme, such as `Bearer`.
    pub scheme: String,
    /// The credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub credentials: Option<SecretText>,
}

impl Access {
    pub fn check_push_config(&self, body: PushConfigBody) -> Result<NewPushConfig, Problem> {
        let PushConfigBody { id, url, token, authentication } = body;
        let url = self.receivers.parse_url(&url).map_err(|error| invalid(format!("url: {error}")))?;
        let authentication = authentication
            .map(|PushAuthenticationBody { scheme, credentials }| PushAuthentication { scheme, credentials });
        let new = NewPushConfig { config: id, url, token, authentication };
        new.check().map_err(invalid)?;
        Ok(new)
    }

    /// Sets a push config of a run.
    pub async fn set_push_config(
        &self,
        run: &RunId,
        new: NewPushConfig,
    ) -> Result<StoredPushConfig, Problem> {
        Ok(webhooks::set_push_config(&self.bus, run, new, &self.caller.name).await?)
    }
}

/// The push configs of a run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PushConfigList<'a> {
    /// The push configs, oldest first.
    pub push_configs: Vec<PushConfigJson<'a>>,
}

/// List the push configs of a run. Their tokens and credentials can't be read.
#[utoipa::path(
    get, path = "/runs/{run}/push-configs", tag = "webhooks",
    params(("run" = String, Path, description = "The run")),
    responses((status = 200, description = "The push configs", body = ref("#/components/schemas/PushConfigList")))
)]
async fn list_push_configs(access: Access, Path(run): Path<String>) -> ApiResult {
    let (run, _) = access.find_run(&run).await?;
    let configs = webhooks::list_push_configs(&access.bus, &run).await?;
    let push_configs = configs.iter().map(PushConfigJson::new).collect();
    reply(&PushConfigList { push_configs })
}

/// Set a push config of a run: its receiver gets A2A notifications about the status of the run. One with the same id is replaced.
#[utoipa::path(
    post, path = "/runs/{run}/push-configs", tag = "webhooks",
    params(("run" = String, Path, description = "The run")),
    request_body = ref("#/components/schemas/PushConfigBody"),
    responses((status = 201, description = "The push config was set", body = ref("#/components/schemas/PushConfig")))
)]
async fn set_push_config(
    access: Access,
    Path(run): Path<String>,
    Json(body): Json<PushConfigBody>,
) -> ApiResult {
    let (run, _) = access.find_run(&run).await?;
    let new = access.check_push_config(body)?;
    let config = access.set_push_config(&run, new).await?;
    Ok(json_response(StatusCode::CREATED, &PushConfigJson::new(&config)))
}

/// Read a push config of a run.
#[utoipa::path(
    get, path = "/runs/{run}/push-configs/{config}", tag = "webhooks",
    params(
        ("run" = String, Path, description = "The run"),
        ("config" = String, Path, description = "The id of the push config")
    ),
    responses((status = 200, description = "The push config", body = ref("#/components/schemas/PushConfig")))
)]
async fn read_push_config(access: Access, Path((run, config)): Path<(String, String)>) -> ApiResult {
    let (run, _) = access.find_run(&run).await?;
    let config = webhooks::find_push_config(&access.bus, &run, &config).await?;
    reply(&PushConfigJson::new(&config))
}

/// Delete a push config of a run. Notifications that were not delivered are not attempted any more.
#[utoipa::path(
    delete, path = "/runs/{run}/push-configs/{config}", tag = "webhooks",
    params(
        ("run" = String, Path, description = "The run"),
        ("config" = String, Path, description = "The id of the push config")
    ),
    responses((status = 200, description = "The push config that was deleted", body = ref("#/components/schemas/PushConfig")))
)]
async fn delete_push_config(access: Access, Path((run, config)): Path<(String, String)>) -> ApiResult {
    let (run, _) = access.find_run(&run).await?;
    let deleted = webhooks::delete_push_config(&access.bus, &run, &config).await?;
    reply(&PushConfigJson::new(&deleted))
}
