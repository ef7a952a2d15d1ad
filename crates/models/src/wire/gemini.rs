//! Google's Gemini API, at Google and at Vertex AI. The signatures of thoughts return to the provider with the text or the
//! call that they came with: newer models reject calls without. Results of parallel calls are one turn.

use serde_json::{Value, json};

use super::conversation::CallIdForm;
use super::conversation::{images_after_results, tools_to_json};

use super::endpoint::{Framing, ModelEndpoint, WireApi};

use super::json::{has_field, items_of, json_to_text, read_text_at, set_field};

use super::reply::{
    MessagePart, Part, ReplyBuilder, is_generated_call_id, parse_arguments_object, read_usage,
    restore_message_parts,
};

use super::schema;
use crate::model::{Message, Request, ToolResult};

pub(super) const API: WireApi = WireApi {
    framing: Framing::Sse,
    url: |endpoint, base| {
        let publisher = if endpoint.dialect.is_vertex { "/publishers/google" } else { "" };
        format!("{base}{publisher}/models/{}:streamGenerateContent?alt=sse", endpoint.model)
    },
    embeddings_url: None,
    key_header: Some("x-goog-api-key"),
    call_ids: CallIdForm::Text(64),
    structured: |_| (true, false),
    takes_pdf: |_| Some(true),
    build_request_body,
    read_event,
};

/// The signature that newer models accept for a call of another model
/// (<https://ai.google.dev/gemini-api/docs/thought-signatures>).
const FOREIGN_CALL_SIGNATURE: &str = "skip_thought_signature_validator";

/// Families of models, and the first generation of each that has levels of thinking and verifies signatures.
const FAMILIES_WITH_LEVELS: [(&str, u32); 2] = [("gemini-", 3), ("gemma-", 4)];

fn build_request_body(endpoint: &ModelEndpoint, request: &Request) -> Value {
    let mut config = json!({
        "maxOutputTokens": endpoint.max_output_tokens(request),
        "thinkingConfig": thinking_config(endpoint),
    });
    endpoint.set_sampling(&mut config, "topP");
    if request.first_token_probabilities {
        config["responseLogprobs"] = json!(true);
        config["logprobs"] = json!(endpoint.max_token_alternatives());
    }
    if let Some(answer) = &request.answer {
        config["responseMimeType"] = json!("application/json");
        config["responseJsonSchema"] = schema::strict_or_original(&answer.schema).1;
    }
    let mut body = json!({"contents": turns(endpoint, request), "generationConfig": config});
    if !request.system.is_empty() {
        body["systemInstruction"] = json!({"parts": [{"text": request.system}]});
    }
    let tools = tools_to_json(
        request,
        |tool| json!({"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.schema}),
    );
    set_field(&mut body, "tools", tools.map(|tools| json!([{ "functionDeclarations": tools }])));
    body
}

/// Requests the thoughts and sets their amount: newer models have levels, older ones a budget in tokens.
fn thinking_config(endpoint: &ModelEndpoint) -> Value {
    let mut config = json!({"includeThoughts": true});
    let amount = match endpoint.reasoning_effort() {
        Some("minimal") => Some(("MINIMAL", 1_000)),
        Some("low") => Some(("LOW", 1_000)),
        Some("medium") => Some(("MEDIUM", 8_000)),
        Some("high" | "xhigh" | "max") => Some(("HIGH", 24_000)),
        Some(_) | None => None,
    };
    match amount {
        Some((level, _)) if has_thinking_levels(&endpoint.model) => config["thinkingLevel"] = json!(level),
        Some((_, budget)) => config["thinkingBudget"] = json!(budget),
        None => {}
    }
    config
}

fn has_thinking_levels(model: &str) -> bool {
    FAMILIES_WITH_LEVELS.iter().any(|(family, from)| {
        let generation = model.split_once(family).map_or("", |(_, rest)| rest);
        let digits = generation.find(|c: char| !c.is_ascii_digit()).unwrap_or(generation.len());
        generation[..digits].parse::<u32>().is_ok_and(|generation| generation >= *from)
    })
}

fn turns(endpoint: &ModelEndpoint, request: &Request) -> Vec<Value> {
    let mut turns: Vec<Value> = Vec::new();
    let mut push = |role: &str, parts: Vec<Value>| {
        if !parts.is_empty() {
            turns.push(json!({"role": role, "parts": parts}));
        }
    };
    let mut results: Vec<Value> = Vec::new();
    for (at, message) in request.messages.iter().enumerate() {
        match message {
            Message::User { text } => push("user", vec![json!({ "text": text })]),
            Message::Assistant { text, calls, provider_state } => {
                let state = provider_state.as_ref();
                let parts = restore_message_parts(&endpoint.full_name, text, calls, state);
                push("model", parts_to_json(endpoint, &parts));
            }
            Message::Tool(result) => {
                results.push(function_response(request, result));
                if !matches!(request.messages.get(at + 1), Some(Message::Tool(_))) {
                    push("user", std::mem::take(&mut results));
                }
                if let Some((text, images)) = images_after_results(&request.messages, at) {
                    let image = images.iter().map(|image| {
                        json!({"inlineData": {"mimeType": image.format.media_type(), "data": image.to_base64()}})
                    });
                    push("user", [json!({ "text": text })].into_iter().chain(image).collect());
                }
            }
        }
    }
    turns
}

fn parts_to_json(endpoint: &ModelEndpoint, parts: &[MessagePart<'_>]) -> Vec<Value> {
    let mut needs_signature = has_thinking_levels(&endpoint.model);
    let part_to_json = |part: &MessagePart<'_>| {
        let (mut json, signature) = match part {
            MessagePart::Opaque(item) => return (*item).clone(),
            MessagePart::Text(text, signature) => (json!({ "text": text }), *signature),
            MessagePart::Call(call, signature) => {
                // The first call of a turn needs a signature, and the others have none.
                let foreign = needs_signature.then_some(FOREIGN_CALL_SIGNATURE);
                needs_signature = false;
                let json = json!({"name": call.name, "args": parse_arguments_object(call)});
                (json!({"functionCall": with_call_id(json, &call.id)}), signature.or(foreign))
            }
        };
        set_field(&mut json, "thoughtSignature", signature);
        json
    };
    parts.iter().map(part_to_json).collect()
}

fn function_response(request: &Request, result: &ToolResult) -> Value {
    let key = if result.is_error { "error" } else { "output" };
    let json = json!({"name": request.tool_of_call(&result.call_id).unwrap_or_default(), "response": {key: result.text}});
    json!({"functionResponse": with_call_id(json, &result.call_id)})
}

/// Sets the id of a call or its result. Models that send no ids accept none.
fn with_call_id(mut json: Value, id: &str) -> Value {
    set_field(&mut json, "id", Some(id).filter(|id| !is_generated_call_id(id)));
    json
}

fn read_event(event: &Value, reply: &mut ReplyBuilder<'_>) -> Result<(), Value> {
    if has_field(event, "error") {
        return Err(event.clone());
    }
    if let Some(reason) = event.pointer("/promptFeedback/blockReason").and_then(Value::as_str) {
        let message = format!("the provider refused the prompt: {reason}");
        return Err(json!({"error": {"code": "content_filter", "message": message}}));
    }
    let candidate = &event["candidates"][0];
    read_first_token(candidate, reply);
    items_of(&candidate["content"]["parts"]).iter().for_each(|part| read_part(part, reply));
    reply.keeps_items_of_cut_reply = true;
    reply.set_finish(read_text_at(candidate, "/finishReason"))?;
    let usage = &event["usageMetadata"];
    if usage.is_object() {
        // Thoughts and the prompts of the provider's own tools are counted apart from the rest.
        reply.usage = read_usage(
            usage,
            &["/promptTokenCount", "/toolUsePromptTokenCount"],
            &["/candidatesTokenCount", "/thoughtsTokenCount"],
            ["/cachedContentTokenCount", "", "/thoughtsTokenCount"],
        );
    }
    Ok(())
}

/// Reads the alternatives of the first token. The provider lists those of all tokens, beside the tokens themselves.
fn read_first_token(candidate: &Value, reply: &mut ReplyBuilder<'_>) {
    let result = &candidate["logprobsResult"];
    let chosen = items_of(&result["chosenCandidates"]).iter();
    let at = chosen.take_while(|token| read_text_at(token, "/token").trim().is_empty()).count();
    let parts = items_of(&candidate["content"]["parts"]).iter().filter(|part| part["thought"] != true);
    let text: String = parts.map(|part| read_text_at(part, "/text")).collect();
    reply.set_first_token(&text, items_of(&result["topCandidates"][at]["candidates"]), "logProbability");
}

fn read_part(part: &Value, reply: &mut ReplyBuilder<'_>) {
    let tag = part["thoughtSignature"].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let (call, text) = (&part["functionCall"], read_text_at(part, "/text"));
    let new = if call.is_object() {
        let index = Some(reply.call_count() as u64);
        let arguments = json_to_text(&call["args"]);
        reply.push_call(index, read_text_at(call, "/id"), read_text_at(call, "/name"), &arguments);
        Part::Call { tag }
    } else if part["thought"] == true || text.is_empty() {
        reply.push_reasoning(text);
        match tag {
            Some(signature) => Part::Opaque(json!({"text": "", "thoughtSignature": signature})),
            None => return,
        }
    } else {
        reply.push_text(text);
        match (reply.parts.last_mut(), tag) {
            (Some((_, Part::Text { bytes, tag: None })), None) => return *bytes += text.len(),
            (_, tag) => Part::Text { bytes: text.len(), tag },
        }
    };
    reply.parts.push((0, new));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_generations_have_levels_of_thinking() {
        for (model, expected) in [
            ("gemini-3-pro-preview", true),
            ("gemini-3.8-flash", true),
            ("gemini-4-argon", true),
            ("gemma-4-26b-a4b-it", true),
            ("gemini-2.5-pro", false),
            ("gemini-flash-latest", false),
            ("gemma-3-27b-it", false),
        ] {
            assert_eq!(has_thinking_levels(model), expected, "{model}");
        }
    }
}
