//! Events that nobody should send: every field of every kind of event replaced by something else. Whatever comes, a
//! stream is read or refused.

use serde_json::{Value, json};

use super::*;

fn request() -> Request {
    Request {
        system: String::new(),
        messages: Vec::new(),
        tools: Vec::new(),
        answer: None,
        max_output_tokens: 1,
    }
}

type Begin = fn() -> Box<dyn Reading>;

fn streams() -> Vec<(Begin, Vec<Value>)> {
    vec![
        (|| Box::new(openai_chat::Stream::new(&request(), "p:m".into())), chat()),
        (|| Box::new(openai_responses::Stream::new(&request(), "p:m".into())), responses()),
        (|| Box::new(anthropic::Stream::new(&request(), "p:m".into())), anthropic()),
        (|| Box::new(ollama::Stream::new(&request())), ollama()),
    ]
}

fn chat() -> Vec<Value> {
    let call = json!({"index": 0, "id": "a", "function": {"name": "ls", "arguments": "{}"}});
    let delta = json!({"content": "x", "reasoning": "y", "reasoning_details": [{}], "refusal": null, "tool_calls": [call]});
    vec![
        json!({"choices": [{"delta": delta, "finish_reason": null}], "error": null}),
        json!({"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "1"}}]}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.1, "prompt_tokens_details": {"cached_tokens": 1}}}),
    ]
}

fn responses() -> Vec<Value> {
    let message =
        json!({"type": "message", "phase": "final", "content": [{"type": "output_text", "text": "x"}]});
    let call = json!({"type": "function_call", "call_id": "a", "name": "ls", "arguments": "{}"});
    vec![
        json!({"type": "response.output_item.added", "output_index": 1, "item": call}),
        json!({"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "{"}),
        json!({"type": "response.function_call_arguments.done", "output_index": 1, "arguments": "{}"}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": {"type": "reasoning"}}),
        json!({"type": "response.output_text.delta", "output_index": 2, "delta": "x"}),
        json!({"type": "response.completed", "response": {"output": [message, call], "usage": {"input_tokens": 1}}}),
    ]
}

fn anthropic() -> Vec<Value> {
    let start = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta =
        |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    vec![
        json!({"type": "message_start", "message": {"usage": {"input_tokens": 1, "cache_read_input_tokens": 2}}}),
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "x"})),
        delta(0, json!({"type": "signature_delta", "signature": "x"})),
        start(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "x"})),
        start(2, json!({"type": "tool_use", "id": "a", "name": "ls", "input": {"a": 1}})),
        delta(2, json!({"type": "input_json_delta", "partial_json": "{}"})),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}}),
        json!({"type": "message", "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"}),
    ]
}

fn ollama() -> Vec<Value> {
    let call = json!({"function": {"name": "ls", "arguments": {"a": 1}}});
    vec![
        json!({"message": {"content": "x", "thinking": "y", "tool_calls": [call]}, "done": false}),
        json!({"message": {"content": ""}, "done": true, "done_reason": "stop", "prompt_eval_count": 1}),
    ]
}

/// The addresses of all that is in a value.
fn pointers(value: &Value, at: String, all: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| pointers(field, format!("{at}/{name}"), all))
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(n, item)| pointers(item, format!("{at}/{n}"), all))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    all.push(at);
}

#[test]
fn whatever_stands_in_an_event_it_is_read_or_refused() {
    let others = [
        json!(null),
        json!(true),
        json!(-1),
        json!(u64::MAX),
        json!(1e300),
        json!("ü"),
        json!([[]]),
        json!({"a": {}}),
    ];
    let mut tried = 0;
    for (begin, events) in streams() {
        for (at, event) in events.iter().enumerate() {
            let mut all = Vec::new();
            pointers(event, String::new(), &mut all);
            for pointer in all {
                for other in &others {
                    let mut events = events.clone();
                    *events[at].pointer_mut(&pointer).unwrap() = other.clone();
                    let mut reading = begin();
                    let _ = events.iter().try_for_each(|event| reading.take(event, &()).map(drop));
                    let _ = reading.reply();
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 1_000, "{tried}");
}

#[test]
fn whatever_an_error_holds_it_becomes_one_of_ours() {
    let error = json!({"error": {"code": 400, "message": "m", "type": "t", "metadata": {"raw": "r", "reasons": ["x"]}}});
    let secrets = secret::Secrets::default();
    let mut all = Vec::new();
    pointers(&error, String::new(), &mut all);
    for pointer in all {
        for other in [json!(null), json!(7), json!(""), json!([]), json!([null]), json!({"error": []})] {
            let mut error = error.clone();
            *error.pointer_mut(&pointer).unwrap() = other;
            assert!(!fault::of_value(&error, &secrets).to_string().is_empty());
        }
    }
}
