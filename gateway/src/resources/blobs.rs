//! Large values by the SHA-256 of their content.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use millrace_protocol::token::Scope;
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::extract::PathParts;
use crate::problem::{Problem, ProblemKind};
use crate::state::find_blob;

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new().scoped(Scope::Read, routes!(read_blob))
}

/// Read a blob.
#[utoipa::path(
    get, path = "/blobs/{sha256}", tag = "blobs",
    params(("sha256" = String, Path, description = "The SHA-256 of its content in hexadecimal")),
    responses((status = 200, description = "The content, which never changes", content_type = "application/octet-stream", body = String))
)]
async fn read_blob(gateway: Access, PathParts(sha256): PathParts<String>) -> Result<Response, Problem> {
    let is_digest =
        sha256.len() == 64 && sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let unknown = || Problem::new(ProblemKind::BlobNotFound, format!("there is no blob {sha256:?}"));
    let found = if is_digest { find_blob(&gateway.bus, &sha256).await? } else { None };
    let bytes = found.ok_or_else(unknown)?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'".to_owned()),
        (header::ETAG, format!("\"{sha256}\"")),
        (header::CACHE_CONTROL, "private, max-age=31536000, immutable".to_owned()),
    ];
    Ok((headers, bytes).into_response())
}
