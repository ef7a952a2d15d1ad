//! The providers of the long tail, by the crate `genai`: Gemini, Vertex, Bedrock, Groq, xAI, DeepSeek, Cohere and
//! others. It translates our words into the crate's and back, and makes up for what the crate leaves to its callers: a
//! stream that just ends is an error, an error in a stream keeps its status and headers, and no text shows a request.
//!
//! Two things it can't make up for: results of tools are not marked as errors, and the headers of successes are lost.

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

use super::draft::{Draft, Piece, arguments_of, text_of};
use super::secret::Secrets;
use super::{Endpoint, Native, fault, schema, sorted};
use crate::model::{
    Delta, Finish, Keepsake, Message, Model, ModelError, Reply, Request, ToolCall, ToolResult, Watch,
};

/// What all of them are taken to do by themselves: calling tools. What each does with a schema, and with both at once,
/// is not known here.
pub const NATIVE: Native = Native { structured: false, tools: true, tools_with_structured: false };

/// A model of one of them, by the name of its provider; `None` if none has that name. An empty `base_url` is the
/// provider's own address; the endpoint's wire is not looked at.
#[must_use]
pub fn connect(provider: &str, endpoint: Endpoint) -> Option<Arc<dyn Model>> {
    let adapter = adapter(provider)?;
    let (key, base_url) = (endpoint.key.clone(), endpoint.base_url.clone());
    let client = Client::builder()
        .with_reqwest(crate::http::client())
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
    let secrets = Secrets::of(&endpoint);
    Some(Arc::new(LongTail { client, adapter, endpoint, secrets }))
}

/// The crate's name for a provider; some of ours are shorter.
fn adapter(provider: &str) -> Option<AdapterKind> {
    match provider {
        "bedrock" => Some(AdapterKind::BedrockApi),
        "github" => Some(AdapterKind::GithubCopilot),
        other => AdapterKind::from_lower_str(&other.replace('-', "_")),
    }
}

struct LongTail {
    client: Client,
    adapter: AdapterKind,
    endpoint: Endpoint,
    secrets: Secrets,
}

impl Model for LongTail {
    fn name(&self) -> &str {
        &self.endpoint.full_name
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        watch: &'a dyn Watch,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        let patience = self.endpoint.settings.timeout();
        let asked = timeout(patience, Box::pin(self.ask(request, watch)));
        asked.map(move |reply| reply.unwrap_or(Err(ModelError::Timeout { after: patience }))).boxed()
    }
}

impl LongTail {
    async fn ask(&self, request: &Request, watch: &dyn Watch) -> Result<Reply, ModelError> {
        let model = ModelIden::new(self.adapter, self.endpoint.model.clone());
        let options = self.options(request);
        let asked = self.client.exec_chat_stream(model, self.chat(request), Some(&options));
        let mut stream = asked.await.map_err(|error| self.fault(&error))?.stream;
        let mut draft = Draft::new(request);
        let (mut patience, idle) = (self.endpoint.settings.timeout(), self.endpoint.settings.idle_timeout());
        while let Some(event) = timeout(patience, stream.next()).await.map_err(|_| silent(patience))? {
            let event = event.map_err(|error| self.fault(&error))?;
            if !matches!(event, ChatStreamEvent::Start) {
                patience = idle;
            }
            match event {
                ChatStreamEvent::Chunk(chunk) => draft.say(&chunk.content, watch),
                ChatStreamEvent::ReasoningChunk(chunk) => watch.delta(Delta::Reasoning(&chunk.content)),
                ChatStreamEvent::End(end) => return self.ended(draft, end, watch),
                ChatStreamEvent::Start
                | ChatStreamEvent::ThoughtSignatureChunk(_)
                | ChatStreamEvent::ToolCallChunk(_)
                | ChatStreamEvent::Heartbeat => {}
            }
        }
        Err(truncated())
    }

    fn ended(&self, mut draft: Draft, end: StreamEnd, watch: &dyn Watch) -> Result<Reply, ModelError> {
        // Some of the crate's streams make up an end where there was none, but never a reason.
        draft.finish = Some(finish(end.captured_stop_reason.as_ref().ok_or_else(truncated)?));
        let parts = end.captured_content.map(MessageContent::into_parts).unwrap_or_default();
        let mut kept = Vec::new();
        let mut signed = Vec::new();
        for part in parts {
            match part {
                ContentPart::ToolCall(call) => {
                    let (id, name) = (call.call_id.as_str(), call.fn_name.as_str());
                    let arguments = text_of(&call.fn_arguments);
                    draft.call(
                        &Piece { place: Some(signed.len() as u64), id, name, arguments: &arguments },
                        watch,
                    );
                    signed.push(json!(call.thought_signatures));
                }
                ContentPart::Text(text) if draft.text.is_empty() => draft.say(&text, watch),
                ContentPart::ThoughtSignature(_)
                | ContentPart::ReasoningContent(_)
                | ContentPart::Custom(_) => {
                    kept.push(json!(part));
                }
                ContentPart::Text(_) | ContentPart::Binary(_) | ContentPart::ToolResponse(_) => {}
            }
        }
        end.captured_usage.into_iter().for_each(|usage| used(&mut draft, &usage));
        let mut reply = draft.reply().ok_or_else(truncated)?;
        let any = !kept.is_empty() || signed.iter().any(|signatures| !signatures.is_null());
        reply.keepsake = any.then(|| Keepsake {
            model: self.endpoint.full_name.clone(),
            items: json!({"kept": kept, "signed": signed}),
        });
        Ok(reply)
    }

    fn options(&self, request: &Request) -> ChatOptions {
        let settings = &self.endpoint.settings;
        let mut options = ChatOptions::default()
            .with_max_tokens(self.endpoint.max_tokens(request))
            .with_capture_usage(true)
            .with_capture_content(true)
            .with_capture_tool_calls(true)
            .with_capture_reasoning_content(true);
        options.temperature = settings.temperature;
        options.top_p = settings.top_p;
        options.reasoning_effort =
            self.endpoint.effort().and_then(ReasoningEffort::from_keyword).or(self.as_named());
        if let Some(schema) = request.answer.as_ref().and_then(|answer| schema::strict(&answer.schema)) {
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

    /// The crate takes `-low`, `-max` and the like off the end of a name and makes an effort of them. An effort that
    /// its OpenAI-shaped adapters pass over keeps the name as it is.
    fn as_named(&self) -> Option<ReasoningEffort> {
        let own_words =
            [AdapterKind::Gemini, AdapterKind::GeminiIx, AdapterKind::Vertex, AdapterKind::BedrockApi];
        let is_cut = ReasoningEffort::from_model_name(&self.endpoint.model).0.is_some();
        (is_cut && !own_words.contains(&self.adapter)).then_some(ReasoningEffort::Budget(0))
    }

    fn chat(&self, request: &Request) -> ChatRequest {
        let mut chat = ChatRequest::new(self.messages(request));
        chat.system = Some(request.system.clone()).filter(|system| !system.is_empty());
        if request.tools.is_empty() {
            return chat;
        }
        let tool = |tool: &crate::model::ToolSpec| {
            Tool::new(tool.name.as_str()).with_description(&tool.description).with_schema(tool.schema.clone())
        };
        chat.with_tools(sorted(request).into_iter().map(tool).collect::<Vec<_>>())
    }

    /// Results of calls made at once are one message.
    fn messages(&self, request: &Request) -> Vec<ChatMessage> {
        let mut all: Vec<ChatMessage> = Vec::new();
        let mut results: Vec<ToolResponse> = Vec::new();
        for message in &request.messages {
            if let Message::Tool(result) = message {
                results.push(response(request, result));
                continue;
            }
            all.extend(flushed(&mut results));
            match message {
                Message::User { text } => all.push(ChatMessage::user(text.as_str())),
                Message::Assistant { text, calls, keepsake } => {
                    all.push(ChatMessage::assistant(self.said(text, calls, keepsake.as_ref())));
                }
                Message::Tool(_) => {}
            }
        }
        all.extend(flushed(&mut results));
        all
    }

    fn said(&self, text: &str, calls: &[ToolCall], keepsake: Option<&Keepsake>) -> MessageContent {
        let items = keepsake.filter(|own| own.model == self.endpoint.full_name).map(|own| &own.items);
        let of = |name: &str| items.and_then(|items| items[name].as_array()).map_or(&[][..], Vec::as_slice);
        let kept = of("kept").iter().filter_map(|part| serde_json::from_value(part.clone()).ok());
        let words = Some(ContentPart::Text(text.to_owned())).filter(|_| !text.is_empty());
        let calls = calls.iter().enumerate().map(|(at, call)| {
            let signatures = of("signed").get(at).and_then(|it| serde_json::from_value(it.clone()).ok());
            ContentPart::ToolCall(genai::chat::ToolCall {
                call_id: call.id.clone(),
                fn_name: call.name.clone(),
                fn_arguments: arguments_of(call),
                thought_signatures: signatures,
            })
        });
        MessageContent::from_parts(kept.chain(words).chain(calls).collect::<Vec<ContentPart>>())
    }

    /// An error of the crate's. Errors in a stream hide the true one; the texts of some hold the whole request, so that
    /// only what a provider said is taken out of them.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the crate's own refusals are many, and all mean the same"
    )]
    fn fault(&self, error: &genai::Error) -> ModelError {
        match error {
            genai::Error::WebStream { error, cause, .. } => match error.downcast_ref::<genai::Error>() {
                Some(inner) => self.fault(inner),
                None => match error.downcast_ref::<reqwest::Error>() {
                    Some(sending) if sending.is_connect() => fault::of_sending(sending, &self.secrets),
                    Some(_) | None => ModelError::Truncated { message: fault::shown(cause, &self.secrets) },
                },
            },
            genai::Error::HttpError { status, body, headers, .. } => {
                fault::of_answer(*status, headers, body, &self.secrets)
            }
            genai::Error::WebModelCall { webc_error, .. }
            | genai::Error::WebAdapterCall { webc_error, .. } => self.web_fault(webc_error),
            genai::Error::ChatResponse { body, .. } => fault::of_value(body, &self.secrets),
            genai::Error::StreamParse { serde_error, .. } => {
                let text = format!("an event is not what was expected: {serde_error}");
                ModelError::Protocol { message: fault::shown(&text, &self.secrets) }
            }
            genai::Error::ChatResponseGeneration { cause, .. } => {
                ModelError::Protocol { message: fault::shown(cause, &self.secrets) }
            }
            // The crate's own refusals: nothing was sent, and their texts name the model and what is missing.
            other => ModelError::BadRequest { message: fault::shown(&other.to_string(), &self.secrets) },
        }
    }

    fn web_fault(&self, error: &genai::webc::Error) -> ModelError {
        use genai::webc::Error;
        match error {
            Error::ResponseFailedStatus { status, body, headers } => {
                fault::of_answer(*status, headers, body, &self.secrets)
            }
            Error::Reqwest(error) => fault::of_sending(error, &self.secrets),
            Error::ResponseFailedNotJson { body, .. } | Error::ResponseFailedInvalidJson { body, .. } => {
                let told = fault::Told::of(None, body).message;
                ModelError::Protocol { message: fault::shown(&told, &self.secrets) }
            }
            Error::JsonValueExt(error) => {
                ModelError::Protocol { message: fault::shown(&error.to_string(), &self.secrets) }
            }
        }
    }
}

fn silent(patience: Duration) -> ModelError {
    ModelError::Truncated { message: format!("the stream fell silent: nothing came for {patience:?}") }
}

fn truncated() -> ModelError {
    let message =
        "the stream ended before the provider said why; if it never gives more, its address may be wrong";
    ModelError::Truncated { message: message.to_owned() }
}

fn flushed(results: &mut Vec<ToolResponse>) -> Option<ChatMessage> {
    (!results.is_empty()).then(|| ChatMessage::from(std::mem::take(results)))
}

/// A result with the name of its tool, which Gemini knows it by.
fn response(request: &Request, result: &ToolResult) -> ToolResponse {
    let calls = request.messages.iter().rev().filter_map(|message| match message {
        Message::Assistant { calls, .. } => calls.iter().find(|call| call.id == result.call_id),
        Message::User { .. } | Message::Tool(_) => None,
    });
    let name = calls.map(|call| call.name.as_str()).next().unwrap_or_default();
    ToolResponse::new(result.call_id.as_str(), result.text.as_str()).with_fn_name(name)
}

fn finish(reason: &StopReason) -> Finish {
    match reason {
        StopReason::MaxTokens(_) => Finish::Length,
        StopReason::ContentFilter(_) => Finish::ContentFilter,
        StopReason::ToolCall(_) => Finish::ToolCalls,
        StopReason::Completed(_) | StopReason::StopSequence(_) | StopReason::Other(_) => Finish::Stop,
    }
}

fn used(draft: &mut Draft, usage: &genai::chat::Usage) {
    let number = |number: Option<i32>| number.and_then(|number| u64::try_from(number).ok()).unwrap_or(0);
    let ours = &mut draft.usage;
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
