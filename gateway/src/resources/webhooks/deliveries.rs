//! The deliveries of a webhook.

use axum::http::StatusCode;
use axum::response::Response;
use millrace_client::webhooks;
use millrace_protocol::token::Scope;
use millrace_protocol::webhook::StoredDelivery;
use millrace_views::{DeliveryJson, DeliveryStateName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::routes;

use super::invalid;
use crate::access::{Access, ApiRoutes};
use crate::extract::{PathParts, QueryParts};
use crate::problem::Problem;
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
    let is_wanted =
        |delivery: &StoredDelivery| state.is_none_or(|state| DeliveryStateName::of(&delivery.state) == state);
    let page = webhooks::list_deliveries(&access.bus, &webhook, before, limit, is_wanted).await?;
    let deliveries = page.deliveries.iter().map(DeliveryJson::new).collect();
    let next = page.next.map(|sequence| sequence.to_string()).unwrap_or_default();
    Ok(json_response(StatusCode::OK, &DeliveryList { deliveries, next }))
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
    let delivery = webhooks::read_delivery(&access.bus, &webhook, &delivery).await?;
    Ok(json_response(StatusCode::OK, &DeliveryJson::new(&delivery)))
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
    let again = webhooks::redeliver(&access.bus, &webhook, &delivery).await?;
    Ok(json_response(StatusCode::ACCEPTED, &DeliveryJson::new(&again)))
}
