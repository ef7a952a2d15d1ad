//! Resources: the reports and the files of runs.

use data_encoding::BASE64;
use rmcp::model::{ErrorData, ReadResourceResult, ResourceContents, ResourceTemplate};

use crate::problem::{Problem, ProblemKind};
use crate::standards::api::{Operator, read_content, read_report};

/// The beginning of the address of a run: `millrace://runs/RUN/report`.
const PREFIX: &str = "millrace://runs/";

pub fn list_templates() -> Vec<ResourceTemplate> {
    let report = ResourceTemplate::new(format!("{PREFIX}{{run}}/report"), "report")
        .with_description("The deliverable of a run, as Markdown with its sources")
        .with_mime_type("text/markdown");
    let file = ResourceTemplate::new(format!("{PREFIX}{{run}}/files/{{+path}}"), "file")
        .with_description("A file that the agents of a run have written");
    vec![report, file]
}

pub async fn read_resource(operator: &Operator, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let place = uri.strip_prefix(PREFIX).and_then(|place| place.split_once('/'));
    let contents = match place.map(|(run, part)| (run, part, part.strip_prefix("files/"))) {
        Some((run, "report", _)) => {
            let report = read_report(operator, run).await;
            report.map(|report| ResourceContents::text(report, uri).with_mime_type("text/markdown"))
        }
        Some((run, _, Some(path))) if !path.is_empty() => {
            read_content(operator, run, &decode(path)).await.map(|bytes| match String::from_utf8(bytes) {
                Ok(text) => ResourceContents::text(text, uri),
                Err(error) => ResourceContents::blob(BASE64.encode(error.as_bytes()), uri),
            })
        }
        Some(_) | None => Err(Problem::new(
            ProblemKind::UnknownPath,
            format!("{uri:?} is no resource of a run; valid: {PREFIX}RUN/report and {PREFIX}RUN/files/PATH"),
        )),
    };
    let contents =
        contents.map_err(|problem| ErrorData::resource_not_found(problem.detail().to_owned(), None))?;
    Ok(ReadResourceResult::new(vec![contents]))
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
    fn percent_signs_of_addresses_are_decoded() {
        assert_eq!(decode("a%20b/c.md"), "a b/c.md");
        assert_eq!(decode("a b%2"), "a b%2");
    }
}
