//! The body of a submission: JSON, or a form with documents, which are stored as they arrive.

use std::time::Duration;

use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::StatusCode;
use millrace_agent::corpus::MAX_BYTES;
use millrace_protocol::plan::Document;

use super::SubmissionBody;
use crate::extract::{Json, media_type, parse_json, within_time};
use crate::problem::{Problem, ProblemKind};
use crate::state::Gateway;

/// The maximum size of a submission without documents, which is that of a plan file.
const MAX_DESCRIPTION: usize = 32 * 1024 * 1024;
/// The time in which all documents must arrive.
const UPLOAD_TIME: Duration = Duration::from_secs(600);
/// The maximum length of a document's path in bytes.
const MAX_PATH: usize = 1_024;
/// The name of the part of a multipart body that describes the run.
const RUN_PART: &str = "run";
/// The name of the parts that are documents.
const DOCUMENT_PART: &str = "documents";

/// Reads the body of the request. Documents are stored as they arrive.
pub async fn read_request(
    gateway: &Gateway,
    request: Request,
) -> Result<(SubmissionBody, Vec<Document>), Problem> {
    if !media_type(request.headers()).eq_ignore_ascii_case("multipart/form-data") {
        let Json(body) = Json::from_request(request, &()).await?;
        return Ok((body, Vec::new()));
    }
    let parts = Multipart::from_request(request, &()).await;
    let parts = parts.map_err(|error| Problem::invalid(error.body_text()))?;
    within_time(UPLOAD_TIME, read_parts(gateway, parts)).await?
}

async fn read_parts(
    gateway: &Gateway,
    mut parts: Multipart,
) -> Result<(SubmissionBody, Vec<Document>), Problem> {
    let (mut body, mut documents) = (None, Vec::new());
    while let Some(part) = parts.next_field().await.map_err(part_problem)? {
        match part.name() {
            Some(RUN_PART) => {
                let bytes = read_part(part, MAX_DESCRIPTION).await?;
                if body.replace(parse_json(&bytes)?).is_some() {
                    return Err(Problem::invalid("the part \"run\" is there twice"));
                }
            }
            Some(DOCUMENT_PART) => {
                let path = part.file_name().map(ToOwned::to_owned).unwrap_or_default();
                check_document_path(&path)?;
                let bytes = read_part(part, usize::try_from(MAX_BYTES).unwrap_or(usize::MAX)).await?;
                documents.push(store_document(gateway, path, &bytes).await?);
            }
            other => {
                let detail =
                    format!("the part {other:?} is unknown; valid: \"run\" (JSON), \"documents\" (files)");
                return Err(Problem::invalid(detail));
            }
        }
    }
    let body = body.ok_or_else(|| Problem::invalid("the part \"run\" is missing: a run as JSON"))?;
    Ok((body, documents))
}

pub async fn store_document(gateway: &Gateway, path: String, content: &[u8]) -> Result<Document, Problem> {
    check_document_path(&path)?;
    let stored = gateway.bus.blobs().put_blob(content).await?;
    Ok(Document { path, sha256: stored.sha256, size: stored.size })
}

/// Reads a part that may have at most `limit` bytes.
async fn read_part(mut part: Field<'_>, limit: usize) -> Result<Vec<u8>, Problem> {
    let name = part.file_name().or_else(|| part.name()).unwrap_or_default().to_owned();
    let mut bytes = Vec::new();
    while let Some(chunk) = part.chunk().await.map_err(part_problem)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > limit {
            let detail = format!("{name:?} has more than {limit} bytes");
            return Err(Problem::new(ProblemKind::BodyTooLarge, detail));
        }
    }
    Ok(bytes)
}

fn part_problem(error: MultipartError) -> Problem {
    let kind = match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ProblemKind::BodyTooLarge,
        _ => ProblemKind::InvalidRequest,
    };
    Problem::new(kind, error.body_text())
}

/// Checks that a path is one of a document.
pub fn check_document_path(path: &str) -> Result<(), Problem> {
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    let is_valid = path.len() <= MAX_PATH && path.split('/').all(is_part) && !path.contains(char::is_control);
    match is_valid {
        true => Ok(()),
        false => Err(Problem::invalid(format!(
            "{path:?} is no path of a document; give each document a relative path as its file name"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_documents_stay_below_their_folder() {
        for path in ["a.md", "notes/plan.md", "ä/b c.pdf"] {
            assert!(check_document_path(path).is_ok(), "{path}");
        }
        for path in ["", "/etc/passwd", "a/../b", "a//b", "./a", "a\n", "x/"] {
            assert!(check_document_path(path).is_err(), "{path:?}");
        }
    }
}
