//! The same requests to a real model that is served with OpenAI's API (for example by llama.cpp's server). A stub can only
//! show the behaviour that its author expected.

use millrace_models::ModelSettings;
use millrace_models::model::{AnswerSchema, FinishReason, Message, Model, ModelError, Request, ToolResult};
use millrace_models::wire::{Dialect, ModelEndpoint, WireProtocol, create_http_model};
use serde_json::{Value, json};
use std::sync::Arc;

use super::wires::{DeltaLog, tool};

/// Returns the model, if one is configured.
fn model(change: impl Fn(&mut ModelEndpoint)) -> Option<Arc<dyn Model>> {
    let Ok(base_url) = std::env::var("MILLRACE_TEST_LLM") else {
        eprintln!(
            "skipped: set MILLRACE_TEST_LLM to the base URL of a model behind OpenAI's interface, such as \
             http://127.0.0.1:8081/v1 (`llama-server --jinja -m MODEL.gguf --port 8081` gives one)"
        );
        return None;
    };
    let settings = ModelSettings { temperature: Some(0.0), timeout: Some(120.0), ..ModelSettings::default() };
    let name = std::env::var("MILLRACE_TEST_LLM_MODEL").unwrap_or_else(|_| "local".to_owned());
    let full_name = format!("openai-compatible:{name}");
    let mut endpoint = ModelEndpoint {
        wire: WireProtocol::OpenAiChat,
        dialect: Dialect { is_local: true, ..Dialect::STANDARD },
        base_url,
        key: None,
        model: name,
        full_name,
        settings,
        default_temperature: None,
    };
    change(&mut endpoint);
    Some(create_http_model(endpoint, Arc::default()))
}

fn ask(system: &str, text: &str) -> Request {
    Request {
        system: system.into(),
        messages: vec![Message::User { text: text.into() }],
        tools: Vec::new(),
        answer: None,
        max_output_tokens: 60,
        ..Request::default()
    }
}

#[tokio::test]
async fn a_real_model_answers_with_text_and_usage() {
    let Some(model) = model(|_| ()) else { return };
    let log = DeltaLog::default();
    let reply =
        model.reply(&ask("Answer with one word.", "What is the capital of France?"), &log).await.unwrap();
    assert!(reply.text.contains("Paris"), "{reply:?}");
    assert!(reply.usage.input_tokens > 5 && reply.usage.output_tokens > 0, "{reply:?}");
    assert_eq!(reply.finish, FinishReason::Stop);
    let streamed: String =
        log.0.into_inner().unwrap().iter().filter_map(|it| it.strip_prefix("text ")).collect();
    assert_eq!(streamed, reply.text);
}

#[tokio::test]
async fn a_real_model_reports_the_token_limit() {
    let Some(model) = model(|endpoint| endpoint.settings.max_output_tokens = Some(4)) else { return };
    let reply = model.reply(&ask("", "Count from one to one hundred in words."), &()).await.unwrap();
    assert_eq!((reply.finish, reply.usage.output_tokens), (FinishReason::Length, 4), "{reply:?}");
}

#[tokio::test]
async fn a_real_model_follows_a_schema() {
    let Some(model) = model(|_| ()) else { return };
    let mut request = ask("You judge.", "Is 2 + 2 = 4? Give your verdict.");
    let schema = json!({"type": "object", "properties": {
        "passed": {"type": "boolean"},
        "reason": {"type": "string", "maxLength": 40, "description": "A few words."},
        "kind": {"enum": ["sum", "other"]},
    }, "required": ["passed", "kind"]});
    request.answer = Some(AnswerSchema { name: "verdict".into(), schema });
    let reply = model.reply(&request, &()).await.unwrap();
    let value: Value = serde_json::from_str(&reply.text).unwrap_or_else(|error| panic!("{error}: {reply:?}"));
    assert!(
        value["passed"].is_boolean() && ["sum", "other"].contains(&value["kind"].as_str().unwrap()),
        "{value}"
    );
}

#[tokio::test]
async fn a_real_model_calls_a_tool_and_reads_its_result() {
    let required = json!({"tool_choice": "required"}).as_object().unwrap().clone();
    let Some(model) = model(|endpoint| endpoint.settings.extra_body = required.clone()) else { return };
    let mut request = ask("Use the tools.", "Read the file notes.txt");
    request.tools = vec![tool("read", "Reads a file and gives back its text.")];
    let log = DeltaLog::default();
    let reply = model.reply(&request, &log).await.unwrap();
    assert_eq!(reply.finish, FinishReason::ToolCalls, "{reply:?}");
    assert_eq!(reply.calls[0].name, "read");
    let arguments: Value = serde_json::from_str(&reply.calls[0].arguments).unwrap();
    assert!(arguments["path"].is_string(), "{reply:?}");
    assert!(log.0.into_inner().unwrap().contains(&"call read".to_owned()));
    let result = ToolResult {
        call_id: reply.calls[0].id.clone(),
        text: "The word is PELICAN.".into(),
        is_error: false,
        images: Vec::new(),
    };
    request.messages.push(Message::Assistant {
        text: reply.text,
        calls: reply.calls,
        provider_state: reply.provider_state,
    });
    request.messages.extend([Message::Tool(result), Message::User { text: "Which word is it?".into() }]);
    request.tools.clear();
    let Some(model) = self::model(|_| ()) else { return };
    let response = model.reply(&request, &()).await.unwrap();
    assert!(response.text.to_uppercase().contains("PELICAN"), "{response:?}");
}

#[tokio::test]
async fn a_too_long_conversation_is_a_context_overflow() {
    let Some(model) = model(|_| ()) else { return };
    let long = "one two three four five six seven ".repeat(20_000);
    let error = model.reply(&ask("", &long), &()).await.unwrap_err();
    assert!(matches!(error, ModelError::ContextOverflow { .. }), "{error:?}");
}

/// The form of verifiers: one word, whose probability is that of its first token.
#[tokio::test]
async fn a_real_model_gives_the_probabilities_of_its_first_token() {
    let Some(model) = model(|endpoint| endpoint.dialect.is_local = true) else { return };
    let text = "Document: The bridge was opened in 1931.\nClaim: The bridge was opened in 1931.\n\
        Is the claim supported by the document? Answer Yes or No.";
    let mut request = ask("", text);
    (request.max_output_tokens, request.first_token_probabilities) = (1, true);
    let reply = model.reply(&request, &()).await.unwrap();
    let sum: f64 = reply.first_token.iter().map(|alternative| alternative.probability).sum();
    assert!(reply.first_token.len() == 20 && (0.5..=1.001).contains(&sum), "{reply:?}");
    let has = |word: &str| reply.first_token.iter().any(|alternative| alternative.token.trim() == word);
    assert!(has("Yes") && has("No"), "{reply:?}");
}
