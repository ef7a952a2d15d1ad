//! The deliveries of a webhook.

use axum::http::StatusCode;
use axum::response::Response;
use millrace_protocol::ids::{MessageId, WebhookId};
use millrace_protocol::token::Scope;
use millrace_protocol::webhook::StoredDelivery;
use millrace_runtime::nats::published_bucket::PublishedEntry;
use millrace_runtime::store::webhooks as store;
use millrace_runtime::{Bus, clock};
use millrace_views::{DeliveryJson, DeliveryStateName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::routes;

use super::{MAX_CHANGES, contention, find_enabled_webhook, find_webhook, invalid};
use crate::access::{Access, ApiRoutes};
use crate::extract::{PathParts, QueryParts};
use crate::problem::{Problem, ProblemKind};
use crate::state::json_response;

/// The number of deliveries in a reply, if the client does not choose one.
const DEFAULT_LIMIT: usize = 100;
/// The maximum number of deliveries in a reply.
const MAX_LIMIT: usize = 1_000;

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new()
        .scoped(Scope::Admin, routes!(list_deliveries))
        .scoped(Scope::Admin, routes!(get_delivery))
        .scoped(Scope::Admin, routes!(redeliver))
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
