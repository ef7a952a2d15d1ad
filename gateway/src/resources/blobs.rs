//! Large values by the SHA-256 of their content.

use axum::http::HeaderMap;
use axum::response::Response;
use futures::FutureExt;
use millrace_protocol::token::Scope;
use millrace_runtime::{Bus, Fault};
use utoipa_axum::routes;

use crate::access::{Access, ApiRoutes};
use crate::content::{Content, ContentInfo, respond_with_content};
use crate::extract::PathParts;
use crate::problem::{Problem, ProblemKind};

/// The routes.
pub fn routes() -> ApiRoutes {
    ApiRoutes::new().scoped(Scope::Read, routes!(read_blob))
}

/// Read a blob.
///
/// The content is streamed; the header `Range` selects a part of it. A damaged content breaks off before its end.
#[utoipa::path(
    get, path = "/blobs/{sha256}", tag = "blobs",
    params(("sha256" = String, Path, description = "The SHA-256 of its content in hexadecimal")),
    responses(
        (status = 200, description = "The content, which never changes", content_type = "application/octet-stream", body = String),
        (status = 206, description = "The requested range of it", content_type = "application/octet-stream", body = String)
    )
)]
async fn read_blob(
    gateway: Access,
    PathParts(sha256): PathParts<String>,
    request: HeaderMap,
) -> Result<Response, Problem> {
    let (blob, content) = open_blob(gateway.bus.clone(), sha256.clone()).await?;
    let cache_control = Some("private, max-age=31536000, immutable");
    let info = ContentInfo { size: blob, etag: sha256.clone(), cache_control };
    let bus = gateway.bus.clone();
    let open = || async move { Ok(open_blob(bus, sha256).await?.1) }.boxed();
    respond_with_content(&request, info, content, open).await
}

/// Returns the size of a blob and its content.
async fn open_blob(bus: Bus, sha256: String) -> Result<(u64, Content), Problem> {
    match bus.blobs().open_blob(&sha256, None).await {
        Ok(blob) => Ok((blob.size(), blob.into_stream())),
        Err(Fault::Missing { .. }) => {
            Err(Problem::new(ProblemKind::BlobNotFound, format!("there is no blob {sha256:?}")))
        }
        Err(fault) => Err(fault.into()),
    }
}
