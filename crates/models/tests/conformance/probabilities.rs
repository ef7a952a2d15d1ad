//! Probabilities of the first token: requested where an API has them, read from the first token that is not blank, and left out
//! where a provider rejects them.

use std::sync::Arc;

use millrace_models::model::{Message, Request, TokenProbability};
use millrace_models::wire::{Dialect, WireProtocol, create_http_model};
use serde_json::{Value, json};

use super::stub::{Stub, chunked, response};
use super::wires::{ALL, content_type, endpoint, events, question, serving, stream_bytes};

fn yes_or_no() -> Request {
    let messages = vec![Message::User { text: "Is it so?".into() }];
    Request { messages, max_output_tokens: 1, first_token_probabilities: true, ..Request::default() }
}

fn has_probabilities(wire: WireProtocol) -> bool {
    !matches!(wire, WireProtocol::Anthropic | WireProtocol::Bedrock)
}

/// A token as OpenAI and Ollama list it.
fn listed(token: &str, alternatives: &[(&str, f64)]) -> Value {
    let alternative =
        |(token, probability): &(&str, f64)| json!({"token": token, "logprob": probability.ln()});
    json!({"token": token, "logprob": -0.1, "top_logprobs": alternatives.iter().map(alternative).collect::<Vec<_>>()})
}

/// Reasoning, a blank token, and "Yes." in two tokens.
fn answer_events(wire: WireProtocol) -> Vec<Value> {
    let wrong = || json!([listed("Hm", &[("Hm", 1.0)])]);
    let first = || json!([listed("\n", &[("\n", 1.0)]), listed(" Yes", &[("No", 0.25), (" Yes", 0.75)])]);
    match wire {
        WireProtocol::OpenAiChat => {
            let chunk = |delta: Value, tokens: Value| json!({"choices": [{"delta": delta, "logprobs": {"content": tokens}}]});
            vec![
                json!({"choices": [{"delta": {"role": "assistant", "content": null}, "logprobs": null}]}),
                chunk(json!({"reasoning_content": "Hm"}), wrong()),
                chunk(json!({"content": "\n Yes"}), first()),
                chunk(json!({"content": "."}), wrong()),
                json!({"choices": [{"delta": {}, "finish_reason": "stop"}]}),
            ]
        }
        WireProtocol::OpenAiResponses => {
            let text = |delta: &str, tokens: Value| json!({"type": "response.output_text.delta", "delta": delta, "logprobs": tokens});
            let done =
                json!({"type": "response.completed", "response": {"status": "completed", "output": []}});
            vec![text("\n Yes", first()), text(".", wrong()), done]
        }
        WireProtocol::Ollama => {
            let event = |message: Value, tokens: Value| json!({"message": message, "logprobs": tokens, "done": false});
            vec![
                event(json!({"thinking": "Hm"}), wrong()),
                event(json!({"content": "\n Yes"}), first()),
                event(json!({"content": "."}), wrong()),
                json!({"message": {"content": ""}, "done": true, "done_reason": "stop"}),
            ]
        }
        WireProtocol::Gemini => {
            let candidates = |pairs: &[(&str, f64)]| {
                let candidate = |(token, p): &(&str, f64)| json!({"token": token, "logProbability": p.ln()});
                json!({"candidates": pairs.iter().map(candidate).collect::<Vec<_>>()})
            };
            let top = json!([candidates(&[("\n", 1.0)]), candidates(&[("No", 0.25), (" Yes", 0.75)])]);
            let chosen =
                json!([{"token": "\n", "logProbability": 0.0}, {"token": " Yes", "logProbability": -0.3}]);
            let parts = json!([{"text": "Hm", "thought": true}, {"text": "\n Yes"}]);
            vec![
                json!({"candidates": [{"content": {"parts": parts},
                    "logprobsResult": {"topCandidates": top, "chosenCandidates": chosen}}]}),
                json!({"candidates": [{"content": {"parts": [{"text": "."}]}, "finishReason": "STOP"}]}),
            ]
        }
        WireProtocol::Anthropic | WireProtocol::Bedrock => events(wire),
    }
}

fn assert_yes(first_token: &[TokenProbability]) {
    let shown: Vec<String> =
        first_token.iter().map(|it| format!("{:?} {:.2}", it.token, it.probability)).collect();
    assert_eq!(shown, ["\" Yes\" 0.75", "\"No\" 0.25"]);
}

#[tokio::test]
async fn the_alternatives_of_the_first_token_that_is_not_blank_are_read() {
    for wire in ALL.into_iter().filter(|wire| has_probabilities(*wire)) {
        let body = chunked(content_type(wire), &[&stream_bytes(wire, &answer_events(wire))]);
        let (stub, model) = serving(wire, body).await;
        let reply = model.reply(&yes_or_no(), &()).await.unwrap();
        assert_eq!(reply.text, "\n Yes.", "{wire:?}");
        assert_yes(&reply.first_token);
        // Servers may list them without a request; a reply has them only if it was asked for.
        let plain = Request { first_token_probabilities: false, ..yes_or_no() };
        assert_eq!(model.reply(&plain, &()).await.unwrap().first_token, []);
        let bodies: Vec<Value> = stub.seen().iter().map(super::stub::ReceivedRequest::json).collect();
        assert_ne!(bodies[0], bodies[1], "{wire:?}");
    }
}

#[tokio::test]
async fn a_response_that_was_not_streamed_has_the_alternatives_too() {
    let part = json!({"type": "output_text", "text": " Yes", "logprobs": [listed(" Yes", &[(" Yes", 0.75), ("No", 0.25)])]});
    let item = json!({"type": "message", "content": [part]});
    let body = json!({"status": "completed", "output": [item]}).to_string();
    let (_stub, model) =
        serving(WireProtocol::OpenAiResponses, response(200, &[("content-type", "application/json")], body))
            .await;
    assert_yes(&model.reply(&yes_or_no(), &()).await.unwrap().first_token);
}

#[tokio::test]
async fn each_api_is_asked_in_its_own_fields() {
    for wire in ALL {
        let body = chunked(content_type(wire), &[&stream_bytes(wire, &answer_events(wire))]);
        let (stub, model) = serving(wire, body).await;
        model.reply(&yes_or_no(), &()).await.unwrap();
        let body = stub.only_request().json();
        let config = &body["generationConfig"];
        match wire {
            WireProtocol::OpenAiChat => {
                assert_eq!((&body["logprobs"], &body["top_logprobs"]), (&json!(true), &json!(5)))
            }
            WireProtocol::Ollama => {
                assert_eq!((&body["logprobs"], &body["top_logprobs"]), (&json!(true), &json!(20)))
            }
            WireProtocol::OpenAiResponses => {
                let include = json!(["reasoning.encrypted_content", "message.output_text.logprobs"]);
                assert_eq!((&body["include"], &body["top_logprobs"]), (&include, &json!(20)));
            }
            WireProtocol::Gemini => {
                assert_eq!((&config["responseLogprobs"], &config["logprobs"]), (&json!(true), &json!(20)));
            }
            WireProtocol::Anthropic | WireProtocol::Bedrock => {
                assert!(!body.to_string().contains("logprobs"), "{body}");
            }
        }
    }
}

/// The servers of local models list more alternatives than hosted ones accept.
#[tokio::test]
async fn a_local_server_is_asked_for_more_alternatives() {
    let wire = WireProtocol::OpenAiChat;
    let stub = Stub::new(chunked(content_type(wire), &[&stream_bytes(wire, &answer_events(wire))])).await;
    let mut endpoint = endpoint(wire, &stub.url());
    endpoint.dialect = Dialect { is_local: true, ..Dialect::STANDARD };
    create_http_model(endpoint, Arc::default()).reply(&yes_or_no(), &()).await.unwrap();
    assert_eq!(stub.only_request().json()["top_logprobs"], 20);
}

#[tokio::test]
async fn a_request_is_sent_once_more_without_probabilities_if_they_are_rejected() {
    let wire = WireProtocol::OpenAiChat;
    let message = r#"{"error": {"message": "`logprobs` is not supported with this model", "type": "invalid_request_error"}}"#;
    for status in [400, 422] {
        let rejection = response(status, &[("content-type", "application/json")], message);
        let answer = chunked(content_type(wire), &[&stream_bytes(wire, &answer_events(wire))]);
        let stub = Stub::in_turn(vec![rejection, answer]).await;
        let model = create_http_model(endpoint(wire, &stub.url()), Arc::default());
        for _ in 0..2 {
            assert_eq!(model.reply(&yes_or_no(), &()).await.unwrap().text, "\n Yes.");
        }
        let asked: Vec<bool> = stub.seen().iter().map(|seen| seen.json()["logprobs"] == true).collect();
        assert_eq!(asked, [true, false, false], "the model is remembered");
    }
}

/// An error that names nothing is returned, and the next request asks again. The layer above sends the least request then.
#[tokio::test]
async fn another_rejection_is_an_error_and_says_nothing_about_probabilities() {
    let wire = WireProtocol::OpenAiChat;
    let rejection =
        || response(400, &[("content-type", "application/json")], r#"{"error": {"message": "bad"}}"#);
    let stub = Stub::in_turn(vec![rejection(), rejection(), rejection()]).await;
    let model = create_http_model(endpoint(wire, &stub.url()), Arc::default());
    for _ in 0..2 {
        model.reply(&yes_or_no(), &()).await.unwrap_err();
    }
    let asked: Vec<bool> = stub.seen().iter().map(|seen| seen.json()["logprobs"] == true).collect();
    assert_eq!(asked, [true, true]);
    let plain = Stub::new(rejection()).await;
    create_http_model(endpoint(wire, &plain.url()), Arc::default())
        .reply(&question(), &())
        .await
        .unwrap_err();
    plain.only_request();
    let (stub, model) = serving(WireProtocol::Anthropic, rejection()).await;
    model.reply(&yes_or_no(), &()).await.unwrap_err();
    stub.only_request();
}
