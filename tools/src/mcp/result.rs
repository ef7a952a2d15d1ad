//! From what a server answers to what a model reads.

use millrace_agent::tool::ToolError;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

/// The text of a result: texts joined, everything else named, structured content as JSON where nothing else was said.
///
/// # Errors
/// The server calls its result an error: refused, with its text.
pub(super) fn text(result: &CallToolResult, most: usize) -> Result<String, ToolError> {
    let mut parts: Vec<String> = result.content.iter().map(part).collect();
    parts.retain(|part| !part.is_empty());
    if let Some(structured) = result.structured_content.as_ref().filter(|_| parts.is_empty()) {
        parts.push(structured.to_string());
    }
    let whole = if parts.is_empty() { "(the tool answered nothing)".to_owned() } else { parts.join("\n\n") };
    let text = cut(whole, most);
    if result.is_error == Some(true) { Err(ToolError::Refused(text)) } else { Ok(text) }
}

fn cut(text: String, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text,
        Some((at, _)) => {
            let chars = text.chars().count();
            format!("{}\n[cut: the result has {chars} characters, the first {most} are shown]", &text[..at])
        }
    }
}

/// The protocol's enums may grow: hence the last arms.
fn part(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => media("image", &image.mime_type, &image.data),
        ContentBlock::Audio(audio) => media("audio", &audio.mime_type, &audio.data),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => format!("[resource {uri}]\n{text}"),
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                media(&format!("resource {uri}"), mime_type.as_deref().unwrap_or("bytes"), blob)
            }
            _ => "[a resource of an unknown kind]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[resource {}: {}]", link.name, link.uri),
        _ => "[content of an unknown kind]".to_owned(),
    }
}

/// `base64` has four characters for three bytes.
fn media(what: &str, kind: &str, base64: &str) -> String {
    format!("[{what}, {kind}, about {} bytes: not shown]", base64.len() / 4 * 3)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(result: Value, most: usize) -> Result<String, ToolError> {
        text(&serde_json::from_value(result).unwrap(), most)
    }

    #[test]
    fn texts_are_joined_and_everything_else_is_named() {
        let shown = read(
            json!({"content": [
                {"type": "text", "text": "one"},
                {"type": "image", "data": "QUJDRA==", "mimeType": "image/png"},
                {"type": "resource", "resource": {"uri": "file:///a", "text": "within"}},
                {"type": "resource", "resource": {"uri": "file:///b", "blob": "QUJD"}},
                {"type": "resource_link", "uri": "file:///c", "name": "c"},
                {"type": "text", "text": "two"},
            ]}),
            1_000,
        );
        let expected = "one\n\n[image, image/png, about 6 bytes: not shown]\n\n[resource file:///a]\nwithin\n\n\
                        [resource file:///b, bytes, about 3 bytes: not shown]\n\n[resource c: file:///c]\n\ntwo";
        assert_eq!(shown.unwrap(), expected);
    }

    #[test]
    fn structured_content_is_shown_where_nothing_else_was_said() {
        assert_eq!(read(json!({"content": [], "structuredContent": {"a": 1}}), 100).unwrap(), r#"{"a":1}"#);
        let both = json!({"content": [{"type": "text", "text": "{\"a\":1}"}], "structuredContent": {"a": 1}});
        assert_eq!(read(both, 100).unwrap(), r#"{"a":1}"#);
        assert_eq!(read(json!({"content": []}), 100).unwrap(), "(the tool answered nothing)");
    }

    #[test]
    fn an_error_of_the_tool_is_a_refusal_and_long_results_are_cut() {
        let error = json!({"content": [{"type": "text", "text": "no such zone"}], "isError": true});
        assert_eq!(read(error, 100), Err(ToolError::Refused("no such zone".into())));
        let long = json!({"content": [{"type": "text", "text": "äöüß"}]});
        assert_eq!(read(long, 2).unwrap(), "äö\n[cut: the result has 4 characters, the first 2 are shown]");
    }
}
