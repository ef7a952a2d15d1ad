//! Resources: the reports and the files of runs.

use data_encoding::BASE64;
use rmcp::model::{ErrorData, ReadResourceResult, ResourceContents, ResourceTemplate};

use crate::standards::api::{ApiClient, encode_part, encode_path};

/// The beginning of the address of a run: `millrace://runs/RUN/report`.
const PREFIX: &str = "millrace://runs/";

/// Returns the kinds of resources.
pub fn list_templates() -> Vec<ResourceTemplate> {
    let report = ResourceTemplate::new(format!("{PREFIX}{{run}}/report"), "report")
        .with_description("The deliverable of a run, as Markdown with its sources")
        .with_mime_type("text/markdown");
    let file = ResourceTemplate::new(format!("{PREFIX}{{run}}/files/{{+path}}"), "file")
        .with_description("A file that the agents of a run have written");
    vec![report, file]
}

/// Reads a resource.
///
/// # Errors
/// There is no such resource, or the caller may not read it.
pub async fn read_resource(api: &ApiClient, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let unknown = |detail: String| ErrorData::resource_not_found(detail, None);
    let path = path_of_resource(uri).ok_or_else(|| {
        unknown(format!(
            "{uri:?} is no resource of a run; valid: {PREFIX}RUN/report and {PREFIX}RUN/files/PATH"
        ))
    })?;
    let bytes = api.get_bytes(&path).await.map_err(|problem| unknown(problem.to_string()))?;
    let contents = match String::from_utf8(bytes) {
        Ok(text) => ResourceContents::text(text, uri),
        Err(error) => ResourceContents::blob(BASE64.encode(error.as_bytes()), uri),
    };
    let contents = match path.ends_with("/report") {
        true => contents.with_mime_type("text/markdown"),
        false => contents,
    };
    Ok(ReadResourceResult::new(vec![contents]))
}

/// Returns the path in the API; `None` if the address is not one of a resource.
fn path_of_resource(uri: &str) -> Option<String> {
    let (run, part) = uri.strip_prefix(PREFIX)?.split_once('/')?;
    let run = encode_part(run);
    match part.strip_prefix("files/") {
        Some(file) if !file.is_empty() => Some(format!("/runs/{run}/files/{}", encode_path(&decode(file)))),
        Some(_) => None,
        None => (part == "report").then(|| format!("/runs/{run}/report")),
    }
}

/// Decodes the percent signs of an address.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = (*first == b'%').then(|| tail.get(..2)).flatten();
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_reports_and_files() {
        let path = |uri: &str| path_of_resource(uri);
        assert_eq!(path("millrace://runs/r1/report").unwrap(), "/runs/r1/report");
        assert_eq!(path("millrace://runs/r1/files/a%20b/c.md").unwrap(), "/runs/r1/files/a%20b/c.md");
        assert_eq!(path("millrace://runs/r1/files/a b%2").unwrap(), "/runs/r1/files/a%20b%252");
        for uri in
            ["millrace://runs/r1", "millrace://runs/r1/files/", "millrace://runs/r1/log", "file:///etc"]
        {
            assert_eq!(path(uri), None, "{uri}");
        }
    }
}
