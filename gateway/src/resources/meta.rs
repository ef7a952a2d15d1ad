//! The version of the gateway, and the description of its API.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use utoipa_axum::routes;

use crate::access::ApiRoutes;
use crate::openapi::api_document_text;
use crate::state::json_response;

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new().public(routes!(read_version)).public(routes!(read_document))
}

/// The version.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Version {
    /// The version of the gateway.
    Version {
        /// The release.
        version: &'static str,
        /// The version of the API, which is in its paths.
        api: &'static str,
    },
}

/// Show the version of the gateway.
#[utoipa::path(
    get, path = "/version", tag = "cluster",
    responses((status = 200, description = "The version", body = ref("#/components/schemas/Version")))
)]
async fn read_version() -> Response {
    json_response(StatusCode::OK, &Version::Version { version: env!("CARGO_PKG_VERSION"), api: "v1" })
}

/// Read this description of the API (OpenAPI 3.1).
#[utoipa::path(
    get, path = "/openapi.json", tag = "cluster",
    responses((status = 200, description = "The description", content_type = "application/json", body = Object))
)]
async fn read_document() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], api_document_text()).into_response()
}
