//! The long tail of providers, by the crate `genai`: Gemini, Vertex, Bedrock, Groq, xAI, DeepSeek, Cohere and others.
//! It translates requests and replies, and handles what the crate leaves to its callers: a stream that just ends is an
//! error, an error inside a stream keeps its status and headers, and no error text contains the request.
//!
//! Two limitations remain: tool results are not marked as errors, and the headers of successful responses are lost.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use genai::adapter::AdapterKind;
use genai::chat::{
    ChatMessage, ChatOptions, ChatRequest, ChatResponseFormat, ChatStreamEvent, ContentPart, JsonSpec,
    MessageContent, ReasoningEffort, StopReason, StreamEnd, Tool, ToolResponse,
};
use genai::resolver::AuthData;
use genai::{Client, ModelIden, ServiceTarget};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::redact::SecretRedactor;
use super::reply_builder::{ReplyBuilder, ToolCallFragment, json_to_text, parse_arguments_object};
use super::{ModelEndpoint, NativeOutputSupport, error, introduce_images, schema, tools_sorted_by_name};
use crate::image::{ImageSupport, MediaSupport, replace_unsent_images};
use crate::model::{
    Delta, DeltaListener, FinishReason, Image, Message, Model, ModelError, ProviderState, Reply, Request,
    ToolCall, ToolResult,
};
use crate::vision::takes_pdf;

/// Returns what a provider supports natively. All support tool calls. Gemini takes the JSON Schema of an answer as it is
/// (<https://ai.google.dev/gemini-api/docs/structured-output>); for the others that differs by model and is not known here.
#[must_use]
pub fn native_output_support(provider: &str) -> NativeOutputSupport {
    NativeOutputSupport { structured: provider == "gemini", tools: true, tools_with_structured: false }
}

/// Returns a model of a provider; `None` for an unknown provider. An empty `base_url` is the provider's own address; the
/// endpoint's `wire` is ignored.
#[must_use]
pub fn connect_through_genai(provider: &str, endpoint: ModelEndpoint) -> Option<Arc<dyn Model>> {
    let adapter = genai_adapter_for(provider)?;
    let (key, base_url) = (endpoint.key.clone(), endpoint.base_url.clone());
    let client = Client::builder()
        .with_reqwest(crate::http_client::shared_client())
        .with_auth_resolver_fn(move |_: ModelIden| {
            Ok(key.as_ref().map(|key| AuthData::from_single(key.expose_secret().trim())))
        })
        .with_service_target_resolver_fn(move |mut target: ServiceTarget| {
            if !base_url.is_empty() {
                let address = format!("{}/", base_url.trim_end_matches('/'));
                target.endpoint = genai::resolver::Endpoint::from_owned(address);
            }
            Ok(target)
        })
        .build()
        .ok()?;
    let redactor = SecretRedactor::for_endpoint(&endpoint);
    Some(Arc::new(GenaiModel { client, adapter, endpoint, redactor }))
}

/// Returns the crate's adapter for a provider; some of our names are shorter.
fn genai_adapter_for(provider: &str) -> Option<AdapterKind> {
    match provider {
        "bedrock" => Some(AdapterKind::BedrockApi),
        "github" => Some(AdapterKind::GithubCopilot),
        other => AdapterKind::from_lower_str(&other.replace('-', "_")),
    }
}

struct GenaiModel {
    client: Client,
    adapter: AdapterKind,
    endpoint: ModelEndpoint,
    redactor: SecretRedactor,
}

impl Model for GenaiModel {
    fn name(&self) -> &str {
        &self.endpoint.full_name
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        listener: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        let patience = self.endpoint.settings.timeout();
        let response_future = timeout(patience, Box::pin(self.request_reply(request, listener)));
        response_future
            .map(move |reply| reply.unwrap_or(Err(ModelError::Timeout { after: patience })))
            .boxed()
    }
}

impl GenaiModel {
    /// The way in which the model gets images and PDF files. Of these providers only Gemini is known to take PDF files.
    fn media_support(&self) -> MediaSupport {
        let images = self.endpoint.image_support();
        let is_gemini = self.adapter == AdapterKind::Gemini && images == ImageSupport::Native;
        let takes_pdf = self.endpoint.settings.pdf.unwrap_or(is_gemini && takes_pdf(&self.endpoint.model));
        MediaSupport { images, takes_pdf }
    }

    async fn request_reply(
        &self,
        request: &Request,
        listener: &dyn DeltaListener,
    ) -> Result<Reply, ModelError> {
        let model = ModelIden::new(self.adapter, self.endpoint.model.clone());
        let request = &*replace_unsent_images(request, self.media_support());
        let options = self.build_chat_options(request);
        let response_future =
            self.client.exec_chat_stream(model, self.build_chat_request(request), Some(&options));
        let mut stream = response_future.await.map_err(|error| self.convert_genai_error(&error))?.stream;
        let mut builder = ReplyBuilder::new(request);
        let (mut patience, idle) = (self.endpoint.settings.timeout(), self.endpoint.settings.idle_timeout());
        while let Some(event) =
            timeout(patience, stream.next()).await.map_err(|_| idle_timeout_error(patience))?
        {
            let event = event.map_err(|error| self.convert_genai_error(&error))?;
            if !matches!(event, ChatStreamEvent::Start) {
                patience = idle;
            }
            match event {
                ChatStreamEvent::Chunk(chunk) => builder.push_text(&chunk.content, listener),
                ChatStreamEvent::ReasoningChunk(chunk) => listener.on_delta(Delta::Reasoning(&chunk.content)),
                ChatStreamEvent::End(end) => return self.build_reply_from_stream_end(builder, end, listener),
                ChatStreamEvent::Start
                | ChatStreamEvent::ThoughtSignatureChunk(_)
                | ChatStreamEvent::ToolCallChunk(_)
                | ChatStreamEvent::Heartbeat => {}
            }
        }
        Err(truncated_stream_error())
    }

    fn build_reply_from_stream_end(
        &self,
        mut builder: ReplyBuilder,
        end: StreamEnd,
        listener: &dyn DeltaListener,
    ) -> Result<Reply, ModelError> {
        // Some of the crate's streams simulate an end event, but never with a finish reason.
        builder.finish =
            Some(convert_stop_reason(end.captured_stop_reason.as_ref().ok_or_else(truncated_stream_error)?));
        let parts = end.captured_content.map(MessageContent::into_parts).unwrap_or_default();
        let mut opaque = Vec::new();
        let mut signatures_by_call = Vec::new();
        for part in parts {
            match part {
                ContentPart::ToolCall(call) => {
                    let (id, name) = (call.call_id.as_str(), call.fn_name.as_str());
                    let arguments = json_to_text(&call.fn_arguments);
                    builder.push_call_fragment(
                        &ToolCallFragment {
                            index: Some(signatures_by_call.len() as u64),
                            id,
                            name,
                            arguments: &arguments,
                        },
                        listener,
                    );
                    signatures_by_call.push(json!(call.thought_signatures));
                }
                ContentPart::Text(text) if builder.text.is_empty() => builder.push_text(&text, listener),
                ContentPart::ThoughtSignature(_)
                | ContentPart::ReasoningContent(_)
                | ContentPart::Custom(_) => {
                    opaque.push(json!(part));
                }
                ContentPart::Text(_) | ContentPart::Binary(_) | ContentPart::ToolResponse(_) => {}
            }
        }
        end.captured_usage.into_iter().for_each(|usage| record_usage(&mut builder, &usage));
        let mut reply = builder.build().ok_or_else(truncated_stream_error)?;
        let any = !opaque.is_empty() || signatures_by_call.iter().any(|signatures| !signatures.is_null());
        reply.provider_state = any.then(|| ProviderState {
            model: self.endpoint.full_name.clone(),
            items: json!({"kept": opaque, "signed": signatures_by_call}),
        });
        Ok(reply)
    }

    fn build_chat_options(&self, request: &Request) -> ChatOptions {
        let settings = &self.endpoint.settings;
        let mut options = ChatOptions::default()
            .with_max_tokens(self.endpoint.max_output_tokens(request))
            .with_capture_usage(true)
            .with_capture_content(true)
            .with_capture_tool_calls(true)
            .with_capture_reasoning_content(true);
        options.temperature = settings.temperature;
        options.top_p = settings.top_p;
        options.reasoning_effort = self
            .endpoint
            .reasoning_effort()
            .and_then(ReasoningEffort::from_keyword)
            .or(self.effort_to_preserve_model_name());
        if let Some(schema) =
            request.answer.as_ref().and_then(|answer| schema::to_strict_schema(&answer.schema))
        {
            let name = request.answer.as_ref().map_or("", |answer| answer.name.as_str());
            options.response_format = Some(ChatResponseFormat::JsonSpec(JsonSpec::new(name, schema)));
        }
        if !settings.extra_body.is_empty() {
            options.extra_body = Some(Value::Object(settings.extra_body.clone()));
        }
        if !settings.extra_headers.is_empty() {
            let headers: Vec<_> =
                settings.extra_headers.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            options = options.with_extra_headers(headers);
        }
        options
    }

    /// The crate interprets a suffix such as `-low` or `-max` of a model name as a reasoning effort and removes it. An
    /// effort that its OpenAI-like adapters ignore keeps the name unchanged.
    fn effort_to_preserve_model_name(&self) -> Option<ReasoningEffort> {
        let own_words =
            [AdapterKind::Gemini, AdapterKind::GeminiIx, AdapterKind::Vertex, AdapterKind::BedrockApi];
        let is_cut = ReasoningEffort::from_model_name(&self.endpoint.model).0.is_some();
        (is_cut && !own_words.contains(&self.adapter)).then_some(ReasoningEffort::Budget(0))
    }

    fn build_chat_request(&self, request: &Request) -> ChatRequest {
        let mut chat = ChatRequest::new(self.convert_messages(request));
        chat.system = Some(request.system.clone()).filter(|system| !system.is_empty());
        if request.tools.is_empty() {
            return chat;
        }
        let tool = |tool: &crate::model::ToolSpec| {
            Tool::new(tool.name.as_str())
                .with_description(&*tool.description)
                .with_schema(Value::clone(&tool.schema))
        };
        chat.with_tools(tools_sorted_by_name(request).into_iter().map(tool).collect::<Vec<_>>())
    }

    /// Converts the conversation. The results of parallel calls are merged into one message.
    fn convert_messages(&self, request: &Request) -> Vec<ChatMessage> {
        let mut all: Vec<ChatMessage> = Vec::new();
        let mut results: Vec<ToolResponse> = Vec::new();
        let mut images: Vec<&Image> = Vec::new();
        for message in &request.messages {
            if let Message::Tool(result) = message {
                results.push(convert_tool_result(request, result));
                images.extend(&result.images);
                continue;
            }
            all.extend(take_merged_tool_results(&mut results));
            all.extend(take_images(&mut images));
            match message {
                Message::User { text } => all.push(ChatMessage::user(text.as_str())),
                Message::Assistant { text, calls, provider_state } => {
                    all.push(ChatMessage::assistant(self.convert_assistant_message(
                        text,
                        calls,
                        provider_state.as_ref(),
                    )));
                }
                Message::Tool(_) => {}
            }
        }
        all.extend(take_merged_tool_results(&mut results));
        all.extend(take_images(&mut images));
        all
    }

    fn convert_assistant_message(
        &self,
        text: &str,
        calls: &[ToolCall],
        provider_state: Option<&ProviderState>,
    ) -> MessageContent {
        let items = provider_state.filter(|own| own.model == self.endpoint.full_name).map(|own| &own.items);
        let of = |name: &str| items.and_then(|items| items[name].as_array()).map_or(&[][..], Vec::as_slice);
        let opaque = of("kept").iter().filter_map(|part| serde_json::from_value(part.clone()).ok());
        let words = Some(ContentPart::Text(text.to_owned())).filter(|_| !text.is_empty());
        let calls = calls.iter().enumerate().map(|(at, call)| {
            let signatures = of("signed").get(at).and_then(|it| serde_json::from_value(it.clone()).ok());
            ContentPart::ToolCall(genai::chat::ToolCall {
                call_id: call.id.clone(),
                fn_name: call.name.clone(),
                fn_arguments: parse_arguments_object(call),
                thought_signatures: signatures,
            })
        });
        MessageContent::from_parts(opaque.chain(words).chain(calls).collect::<Vec<ContentPart>>())
    }

    /// Maps an error of the crate. Errors in a stream wrap the actual error. Some texts contain the whole request, so only
    /// the provider's message is used.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the crate has many errors of its own, all of which mean a bad request"
    )]
    fn convert_genai_error(&self, error: &genai::Error) -> ModelError {
        match error {
            genai::Error::WebStream { error, cause, .. } => match error.downcast_ref::<genai::Error>() {
                Some(inner) => self.convert_genai_error(inner),
                None => match error.downcast_ref::<reqwest::Error>() {
                    Some(sending) if sending.is_connect() => {
                        error::model_error_from_send_error(sending, &self.redactor)
                    }
                    Some(_) | None => {
                        ModelError::Truncated { message: error::redact_and_cut(cause, &self.redactor) }
                    }
                },
            },
            genai::Error::HttpError { status, body, headers, .. } => {
                error::model_error_from_response(*status, headers, body, &self.redactor)
            }
            genai::Error::WebModelCall { webc_error, .. }
            | genai::Error::WebAdapterCall { webc_error, .. } => self.convert_genai_http_error(webc_error),
            genai::Error::ChatResponse { body, .. } => error::model_error_from_body(body, &self.redactor),
            genai::Error::StreamParse { serde_error, .. } => {
                let text = format!("unexpected event: {serde_error}");
                let message = error::redact_and_cut(&text, &self.redactor);
                // An event that is JSON but not one of the provider's will be the same next time.
                match serde_error.is_data() {
                    true => ModelError::Protocol { message },
                    false => ModelError::Truncated { message },
                }
            }
            genai::Error::ChatResponseGeneration { cause, .. } => {
                ModelError::Protocol { message: error::redact_and_cut(cause, &self.redactor) }
            }
            // The crate's own errors: nothing was sent, and the text names the model and what is missing.
            other => {
                ModelError::BadRequest { message: error::redact_and_cut(&other.to_string(), &self.redactor) }
            }
        }
    }

    fn convert_genai_http_error(&self, error: &genai::webc::Error) -> ModelError {
        use genai::webc::Error;
        match error {
            Error::ResponseFailedStatus { status, body, headers } => {
                error::model_error_from_response(*status, headers, body, &self.redactor)
            }
            Error::Reqwest(error) => error::model_error_from_send_error(error, &self.redactor),
            Error::ResponseFailedNotJson { body, .. } | Error::ResponseFailedInvalidJson { body, .. } => {
                let message = error::ProviderError::from_text(None, body).message;
                ModelError::Truncated { message: error::redact_and_cut(&message, &self.redactor) }
            }
            Error::JsonValueExt(error) => {
                ModelError::Protocol { message: error::redact_and_cut(&error.to_string(), &self.redactor) }
            }
        }
    }
}

fn idle_timeout_error(patience: Duration) -> ModelError {
    ModelError::Truncated { message: format!("the stream timed out: no data for {patience:?}") }
}

fn truncated_stream_error() -> ModelError {
    let message =
        "the stream ended without a finish reason; if that happens every time, the address may be wrong";
    ModelError::Truncated { message: message.to_owned() }
}

fn take_merged_tool_results(results: &mut Vec<ToolResponse>) -> Option<ChatMessage> {
    (!results.is_empty()).then(|| ChatMessage::from(std::mem::take(results)))
}

/// The images of the tool results before, in a message of the user: a result can only have text.
fn take_images(images: &mut Vec<&Image>) -> Option<ChatMessage> {
    if images.is_empty() {
        return None;
    }
    let images = std::mem::take(images);
    let text = ContentPart::from_text(introduce_images(&images));
    let part =
        |image: &&Image| ContentPart::from_binary_base64(image.format.media_type(), image.to_base64(), None);
    let parts: Vec<ContentPart> = [text].into_iter().chain(images.iter().map(part)).collect();
    Some(ChatMessage::user(MessageContent::from_parts(parts)))
}

/// Converts a tool result; Gemini needs the name of the tool.
fn convert_tool_result(request: &Request, result: &ToolResult) -> ToolResponse {
    let calls = request.messages.iter().rev().filter_map(|message| match message {
        Message::Assistant { calls, .. } => calls.iter().find(|call| call.id == result.call_id),
        Message::User { .. } | Message::Tool(_) => None,
    });
    let name = calls.map(|call| call.name.as_str()).next().unwrap_or_default();
    ToolResponse::new(result.call_id.as_str(), result.text.as_str()).with_fn_name(name)
}

fn convert_stop_reason(reason: &StopReason) -> FinishReason {
    match reason {
        StopReason::MaxTokens(_) => FinishReason::Length,
        StopReason::ContentFilter(_) => FinishReason::ContentFilter,
        StopReason::ToolCall(_) => FinishReason::ToolCalls,
        StopReason::Completed(_) | StopReason::StopSequence(_) | StopReason::Other(_) => FinishReason::Stop,
    }
}

fn record_usage(builder: &mut ReplyBuilder, usage: &genai::chat::Usage) {
    let number = |number: Option<i32>| number.and_then(|number| u64::try_from(number).ok()).unwrap_or(0);
    let ours = &mut builder.usage;
    ours.input_tokens = number(usage.prompt_tokens);
    ours.output_tokens = number(usage.completion_tokens);
    if let Some(details) = &usage.prompt_tokens_details {
        ours.cached_tokens = number(details.cached_tokens);
        ours.cache_write_tokens = number(details.cache_creation_tokens);
    }
    if let Some(details) = &usage.completion_tokens_details {
        ours.reasoning_tokens = number(details.reasoning_tokens);
    }
}
