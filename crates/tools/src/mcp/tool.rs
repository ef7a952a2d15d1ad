//! A tool of an MCP server, and the conversion of its result to text and images for a model.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::model::{MAX_IMAGE_BYTES, MAX_IMAGES};
use millrace_agent::tool::{Call, Effect, Image, Output, Tool, ToolError, ToolSpec};
use millrace_protocol::safe_text::strip_control_characters;
use rmcp::ServiceError;
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ResourceContents};
use serde_json::Value;

use super::connection::{Connection, LiveConnection};

use super::settings::{DEFAULT_TIMEOUT, MAX_RESULT, McpServer};

use super::tool_list::OfferedTool;
use super::transport::{UNREADABLE_MESSAGE, error_chain};

use crate::untrusted::{mark_untrusted, one_line};

const INVALID_PARAMS: i32 = -32602;

/// Maximum number of characters of the reason why an answer is not readable.
const MAX_ERROR: usize = 1_000;

#[derive(Clone)]
pub(super) struct McpTool {
    connection: Arc<Connection>,
    server: String,
    name: String,
    spec: ToolSpec,
    effect: Effect,
    timeout: Duration,
    max_result: usize,
}

impl McpTool {
    pub(super) fn new(
        server: &McpServer,
        connection: Arc<Connection>,
        name: String,
        tool: OfferedTool,
    ) -> Self {
        Self {
            connection,
            server: server.name.clone(),
            effect: tool.effect,
            name: tool.name,
            spec: ToolSpec { name, description: tool.description.into(), schema: tool.schema.into() },
            timeout: Duration::from_secs(server.timeout_s.unwrap_or(DEFAULT_TIMEOUT).into()),
            max_result: server.max_result.unwrap_or(MAX_RESULT),
        }
    }

    /// Calls the tool over another connection.
    pub(super) async fn call_on(
        &self,
        connection: &Arc<Connection>,
        arguments: Value,
        call: &Call,
    ) -> Result<Output, ToolError> {
        Self { connection: connection.clone(), ..self.clone() }.call(arguments, call).await
    }

    async fn call_server(
        &self,
        arguments: Value,
        deadline: Option<Instant>,
    ) -> Result<CallToolResult, ToolError> {
        let mut params = CallToolRequestParams::new(self.name.clone());
        params.arguments = match arguments {
            Value::Object(arguments) => Some(arguments),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => None,
        };
        let answer = match self.send_call(params.clone(), deadline).await? {
            // A request that was never sent can be retried.
            Err(error) if was_not_sent(&error) => self.send_call(params, deadline).await?,
            answer => answer,
        };
        match answer {
            Ok(CallToolResponse::Complete(result)) => Ok(result),
            Ok(_) => {
                let message = format!("{} requests further input, which is not supported", self.spec.name);
                Err(ToolError::Failed { message, detail: self.server.clone() })
            }
            Err(error) => Err(self.convert_service_error(&error)),
        }
    }

    /// Sends a call. Its timeout begins when the server is connected.
    async fn send_call(
        &self,
        params: CallToolRequestParams,
        deadline: Option<Instant>,
    ) -> Result<Result<CallToolResponse, ServiceError>, ToolError> {
        let connected = tokio::time::timeout(time_left(deadline), self.connection.live_connection()).await;
        let connected = connected.unwrap_or_else(|_| Err("the time of the task is used up".to_owned()));
        let live = connected.map_err(|reason| ToolError::Failed {
            message: format!(
                "the MCP server {:?} cannot be reached at the moment; nothing was done",
                self.server
            ),
            detail: reason,
        })?;
        let limit = self.timeout.min(time_left(deadline));
        let unanswered = live.begin_call();
        // Dropping the call cancels it at the server.
        let Ok(answer) = tokio::time::timeout(limit, live.service.peer().call_tool_once(params)).await else {
            let what = format!("timed out after {} s and was cancelled", limit.as_secs_f32());
            return Err(self.unanswered_call_error(&what, "timeout".into()));
        };
        unanswered.record_answer();
        if answer.as_ref().is_err_and(|error| is_connection_dead(&live, error)) {
            self.connection.discard_connection(&live).await;
        }
        Ok(answer)
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the protocol's enum may grow")]
    fn convert_service_error(&self, error: &ServiceError) -> ToolError {
        match error {
            ServiceError::McpError(error) if error.code.0 == INVALID_PARAMS => {
                let message = self.mark_server_text(&error.message);
                ToolError::Refused(format!("{} rejected the call:\n{message}", self.spec.name))
            }
            ServiceError::McpError(error) if error.code == UNREADABLE_MESSAGE => {
                let reason = one_line(&error.message, MAX_ERROR);
                self.unanswered_call_error("got an answer that is no message of MCP", reason)
            }
            ServiceError::McpError(error) => ToolError::Failed {
                message: format!("{} failed:\n{}", self.spec.name, self.mark_server_text(&error.message)),
                detail: format!("{} {}", self.server, error.code.0),
            },
            _ => self.unanswered_call_error(
                "was interrupted: its server died or cannot be reached",
                error_chain(error),
            ),
        }
    }

    fn mark_server_text(&self, text: &str) -> String {
        mark_server_text(&self.server, text, self.max_result)
    }

    /// Returns the error of a call without a response, whose effect depends on the tool.
    fn unanswered_call_error(&self, what: &str, detail: String) -> ToolError {
        let then = match self.effect {
            Effect::Pure => "it changes nothing: retry it if you need its result",
            Effect::Idempotent => "it may have been done, but a retry is safe: call it again",
            Effect::Effect => "its outcome is unknown: check what was done before you retry it",
        };
        ToolError::Failed { message: format!("{} {what}; {then}", self.spec.name), detail }
    }
}

fn time_left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the protocol's enum may grow")]
fn is_connection_dead(live: &Arc<LiveConnection>, error: &ServiceError) -> bool {
    match error {
        ServiceError::TransportSend(_) | ServiceError::TransportClosed => true,
        _ => live.service.is_closed(),
    }
}

/// Returns `true` if a request was never sent because there was no connection.
fn was_not_sent(error: &ServiceError) -> bool {
    let mut source: Option<&(dyn Error + 'static)> = Some(error);
    if let ServiceError::TransportSend(transport) = error {
        source = Some(&*transport.error);
    }
    while let Some(inner) = source {
        if inner.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_connect) {
            return true;
        }
        source = inner.source();
    }
    false
}

impl Tool for McpTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn effect(&self) -> Effect {
        self.effect
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        async move {
            let result = self.call_server(arguments, call.deadline).await?;
            let text = result_text(&self.server, &result, self.max_result)?;
            Ok(Output { images: result_images(&self.server, &result), ..text.into() })
        }
        .boxed()
    }
}

/// Returns the images of a result that a model can be shown.
pub(super) fn result_images(server: &str, result: &CallToolResult) -> Vec<Image> {
    let number = 1..;
    let images = result.content.iter().filter_map(decode_image).take(MAX_IMAGES).zip(number);
    images
        .map(|(image, number)| Image { name: format!("{number} of the MCP server {server:?}"), ..image })
        .collect()
}

/// Decodes an image, without a name. The protocol may add variants, hence the wildcard arms.
fn decode_image(block: &ContentBlock) -> Option<Image> {
    let data = match block {
        ContentBlock::Image(image) => &image.data,
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::BlobResourceContents { blob, .. } => blob,
            ResourceContents::TextResourceContents { .. } | _ => return None,
        },
        ContentBlock::Text(_) | ContentBlock::Audio(_) | ContentBlock::ResourceLink(_) | _ => return None,
    };
    // Larger images are refused anyway.
    let bytes = Some(data).filter(|data| data.len() <= MAX_IMAGE_BYTES / 3 * 4 + 4)?;
    Image::from_bytes("", &BASE64.decode(bytes.as_bytes()).ok()?).ok()
}

/// Returns a result as text, marked as material: texts are joined, other content is described, structured content is shown
/// as JSON if there is nothing else.
///
/// # Errors
/// The server reports the result as an error: `Refused`, with its text.
pub(super) fn result_text(
    server: &str,
    result: &CallToolResult,
    max_chars: usize,
) -> Result<String, ToolError> {
    let mut parts: Vec<String> = result.content.iter().map(content_block_to_text).collect();
    parts.retain(|text| !text.is_empty());
    if let Some(structured) = result.structured_content.as_ref().filter(|_| parts.is_empty()) {
        parts.push(structured.to_string());
    }
    let text = match parts.as_slice() {
        [] => "(the tool returned nothing)".to_owned(),
        parts => mark_server_text(server, &parts.join("\n\n"), max_chars),
    };
    if result.is_error == Some(true) { Err(ToolError::Refused(text)) } else { Ok(text) }
}

/// Returns text of a server without control characters and truncated, in the marks for untrusted text.
pub(super) fn mark_server_text(server: &str, text: &str, max_chars: usize) -> String {
    let origin = format!("the MCP server {server:?}");
    let text = strip_control_characters(text);
    match text.char_indices().nth(max_chars) {
        None => mark_untrusted(&origin, &text),
        Some((at, _)) => {
            let chars = text.chars().count();
            let marked = mark_untrusted(&origin, &text[..at]);
            format!("{marked}\n[truncated: the first {max_chars} of {chars} characters are shown]")
        }
    }
}

/// Returns a content block as text. The protocol may add variants, hence the wildcard arms.
fn content_block_to_text(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(_) if decode_image(block).is_some() => "[image: below]".to_owned(),
        ContentBlock::Image(image) => media_summary("image", &image.mime_type, &image.data),
        ContentBlock::Audio(audio) => media_summary("audio", &audio.mime_type, &audio.data),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => format!("[resource {uri}]\n{text}"),
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                media_summary(&format!("resource {uri}"), mime_type.as_deref().unwrap_or("bytes"), blob)
            }
            _ => "[a resource of an unsupported kind]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[resource {}: {}]", link.name, link.uri),
        _ => "[content of an unsupported kind]".to_owned(),
    }
}

/// Describes binary content; `base64` has four characters per three bytes.
fn media_summary(what: &str, kind: &str, base64: &str) -> String {
    format!("[{what}, {kind}, about {} bytes: not shown]", base64.len() / 4 * 3)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(result: Value, max_chars: usize) -> Result<String, ToolError> {
        result_text("s", &serde_json::from_value(result).unwrap(), max_chars)
    }

    /// Returns the text between the marks, and the text after them.
    fn unmarked(text: &str) -> (String, String) {
        let id = text.strip_prefix("[material ").unwrap().split(' ').next().unwrap();
        let (opening, rest) = text.split_once('\n').unwrap();
        assert!(opening.contains("from the MCP server \"s\""), "{opening}");
        let (inner, after) = rest.split_once(&format!("\n[end of material {id}]")).unwrap();
        (inner.to_owned(), after.to_owned())
    }

    fn read_unmarked(result: Value, max_chars: usize) -> (String, String) {
        unmarked(&read(result, max_chars).unwrap())
    }

    #[test]
    fn texts_are_joined_and_other_content_is_described() {
        let shown = read_unmarked(
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
        assert_eq!(shown, (expected.to_owned(), String::new()));
    }

    #[test]
    fn images_are_decoded_and_others_described() {
        let png = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAADCAIAAAA=";
        let value = json!({"content": [
            {"type": "image", "data": "QUJDRA==", "mimeType": "image/png"},
            {"type": "image", "data": png, "mimeType": "image/jpeg"},
            {"type": "resource", "resource": {"uri": "file:///b", "blob": png}},
            {"type": "image", "data": "no base64", "mimeType": "image/png"},
        ]});
        let result: CallToolResult = serde_json::from_value(value.clone()).unwrap();
        let images = result_images("s", &result);
        let described: Vec<String> = images.iter().map(Image::describe).collect();
        assert_eq!(
            described,
            [1, 2].map(|n| format!("image {n} of the MCP server \"s\", PNG 2×3, 29 bytes"))
        );
        let (text, _) = read_unmarked(value, 1_000);
        assert!(text.contains("[image, image/png, about 6 bytes: not shown]\n\n[image: below]"), "{text}");
    }

    #[test]
    fn structured_content_is_shown_if_there_is_no_other() {
        let structured = json!({"content": [], "structuredContent": {"a": 1}});
        assert_eq!(read_unmarked(structured, 100).0, r#"{"a":1}"#);
        let both = json!({"content": [{"type": "text", "text": "{\"a\":1}"}], "structuredContent": {"a": 1}});
        assert_eq!(read_unmarked(both, 100).0, r#"{"a":1}"#);
        assert_eq!(read(json!({"content": []}), 100).unwrap(), "(the tool returned nothing)");
    }

    #[test]
    fn tool_errors_are_refusals_and_long_results_are_truncated() {
        let error = json!({"content": [{"type": "text", "text": "no such zone"}], "isError": true});
        let Err(ToolError::Refused(text)) = read(error, 100) else { panic!("it is an error") };
        assert_eq!(unmarked(&text).0, "no such zone");
        let long = json!({"content": [{"type": "text", "text": "äöüß"}]});
        let note = "\n[truncated: the first 2 of 4 characters are shown]";
        assert_eq!(read_unmarked(long, 2), ("äö".to_owned(), note.to_owned()));
    }

    #[test]
    fn control_characters_are_removed() {
        let steering = json!({"content": [{"type": "text", "text": "a\u{1b}[2J\u{9b}b\u{202e}c\r\nd\te"}]});
        assert_eq!(read_unmarked(steering, 100).0, "a[2Jbc\nd\te");
    }
}
