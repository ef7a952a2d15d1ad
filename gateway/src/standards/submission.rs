//! A run with documents, as a request to the API.

use serde::{Deserialize, Serialize};

use super::api::{ApiClient, ApiProblem};

/// A document of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubmittedDocument {
    /// The path under which agents see and cite it.
    pub path: String,
    /// The content.
    pub content: Vec<u8>,
}

/// A run that was submitted.
#[derive(Debug, Deserialize)]
pub struct SubmittedRun {
    /// Its id.
    pub run: String,
}

/// Submits a run with a description, as `POST /runs` has it. With a key, a repetition returns the same run.
pub async fn submit_run(
    api: &ApiClient,
    description: &impl Serialize,
    documents: &[SubmittedDocument],
    key: Option<&str>,
) -> Result<SubmittedRun, ApiProblem> {
    let description = serde_json::to_vec(description).map_err(ApiProblem::invalid)?;
    if documents.is_empty() {
        return api.post_bytes("/runs", "application/json", description, key).await;
    }
    let boundary = find_boundary(&description, documents);
    let body = form_of(&boundary, &description, documents)?;
    api.post_bytes("/runs", &format!("multipart/form-data; boundary={boundary}"), body, key).await
}

/// Returns a line that no part has.
fn find_boundary(description: &[u8], documents: &[SubmittedDocument]) -> String {
    let contains = |text: &[u8], boundary: &[u8]| text.windows(boundary.len()).any(|part| part == boundary);
    loop {
        let boundary = uuid::Uuid::new_v4().simple().to_string();
        let bytes = boundary.as_bytes();
        if !contains(description, bytes) && !documents.iter().any(|one| contains(&one.content, bytes)) {
            return boundary;
        }
    }
}

fn form_of(
    boundary: &str,
    description: &[u8],
    documents: &[SubmittedDocument],
) -> Result<Vec<u8>, ApiProblem> {
    let mut form = Vec::new();
    let mut add = |head: String, content: &[u8]| {
        form.extend_from_slice(format!("--{boundary}\r\n{head}\r\n\r\n").as_bytes());
        form.extend_from_slice(content);
        form.extend_from_slice(b"\r\n");
    };
    add("Content-Disposition: form-data; name=\"run\"".into(), description);
    for SubmittedDocument { path, content } in documents {
        // The name stands in quotes, in one line.
        if path.contains(|c: char| c.is_control() || c == '"' || c == '\\') {
            return Err(ApiProblem::invalid(format!("{path:?} is no path of a document")));
        }
        let head = format!("Content-Disposition: form-data; name=\"documents\"; filename=\"{path}\"");
        add(head, content);
    }
    form.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    Ok(form)
}
