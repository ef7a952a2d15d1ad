//! Requests for embeddings, in the forms of OpenAI (`/v1/embeddings`, which most servers have) and of Ollama (`/api/embed`). Both take a
//! list of texts; they differ in the address and in the names of the fields of their response.

use millrace_protocol::result::Usage;
use serde_json::{Value, json};

use super::json::{items_of, read_number_at};
use crate::limits::estimate_sent_tokens;
use crate::model::{FinishReason, Message, Reply, Request};

pub(super) fn openai_url(base: &str) -> String {
    format!("{base}/embeddings")
}

pub(super) fn ollama_url(base: &str) -> String {
    format!("{}/api/embed", ollama_root(base))
}

/// Returns the address of an Ollama server from that of one of its APIs.
pub(super) fn ollama_root(base: &str) -> &str {
    base.trim_end_matches("/v1").trim_end_matches("/api")
}

pub(super) fn build_request_body(model: &str, request: &Request) -> Value {
    let texts: Vec<&str> = request.messages.iter().map(Message::text).collect();
    json!({"model": model, "input": texts})
}

/// Reads a response. The error names its mistake.
pub(super) fn read_reply(response: &Value, request: &Request) -> Result<Reply, String> {
    let expected = request.messages.len();
    let vectors = match response.get("embeddings") {
        Some(of_ollama) => items_of(of_ollama).iter().map(read_vector).collect::<Option<Vec<_>>>(),
        None => read_numbered_vectors(items_of(&response["data"])),
    };
    let vectors = vectors.ok_or("an embedding in the response is not a list of numbers")?;
    if vectors.len() != expected {
        return Err(format!("the response has {} embeddings for {expected} texts", vectors.len()));
    }
    let dimensions = vectors.first().map_or(0, Vec::len);
    if dimensions == 0 || vectors.iter().any(|vector| vector.len() != dimensions) {
        return Err(
            "the embeddings in the response differ in their number of dimensions, or have none".into()
        );
    }
    let counted = ["/usage/prompt_tokens", "/usage/total_tokens", "/prompt_eval_count"]
        .map(|field| read_number_at(response, field));
    // Some servers report no usage. Budgets must hold with them, too.
    let input_tokens = counted.into_iter().find(|tokens| *tokens > 0);
    let input_tokens = input_tokens.unwrap_or_else(|| estimate_sent_tokens(request));
    let usage = Usage { input_tokens, ..Usage::default() };
    Ok(Reply { vectors, usage, finish: FinishReason::Stop, ..Reply::default() })
}

/// Returns OpenAI's embeddings in the order of the texts.
fn read_numbered_vectors(items: &[Value]) -> Option<Vec<Vec<f32>>> {
    let numbered = items.iter().enumerate().map(|(at, item)| {
        let index = item.get("index").and_then(Value::as_u64).unwrap_or(at as u64);
        Some((index, read_vector(&item["embedding"])?))
    });
    let mut numbered = numbered.collect::<Option<Vec<_>>>()?;
    numbered.sort_by_key(|(index, _)| *index);
    Some(numbered.into_iter().map(|(_, vector)| vector).collect())
}

fn read_vector(value: &Value) -> Option<Vec<f32>> {
    let number = |number: &Value| number.as_f64().map(|number| number as f32).filter(|it| it.is_finite());
    value.as_array()?.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(response: &Value) -> Result<Reply, String> {
        read_reply(response, &Request::for_embeddings(["one", "two"]))
    }

    #[test]
    fn responses_of_both_apis_are_read_in_the_order_of_the_texts() {
        let openai = json!({
            "data": [{"index": 1, "embedding": [0.0, 1]}, {"index": 0, "embedding": [0.5, -1.0]}],
            "usage": {"prompt_tokens": 7, "total_tokens": 7},
        });
        let ollama = json!({"embeddings": [[0.5, -1.0], [0.0, 1.0]], "prompt_eval_count": 7});
        for response in [openai, ollama] {
            let reply = read(&response).unwrap();
            assert_eq!(reply.vectors, [vec![0.5, -1.0], vec![0.0, 1.0]]);
            assert_eq!(reply.usage, Usage { input_tokens: 7, ..Usage::default() });
        }
    }

    #[test]
    fn responses_that_do_not_fit_the_texts_are_refused() {
        let table = [
            (json!({"data": [{"embedding": [1.0]}]}), "1 embeddings for 2 texts"),
            (json!({"embeddings": [[1.0], [1.0, 2.0]]}), "differ in their number of dimensions"),
            (json!({"embeddings": [[], []]}), "or have none"),
            (json!({"embeddings": [[1.0], ["x"]]}), "not a list of numbers"),
            (json!({"data": [{"embedding": "AAAA"}, {"embedding": "AAAA"}]}), "not a list of numbers"),
            (json!({}), "0 embeddings for 2 texts"),
        ];
        for (response, expected) in table {
            let error = read(&response).unwrap_err();
            assert!(error.contains(expected), "{response}: {error}");
        }
    }

    #[test]
    fn each_api_has_its_address() {
        assert_eq!(openai_url("http://host:1/v1"), "http://host:1/v1/embeddings");
        for base in ["http://host:1", "http://host:1/v1", "http://host:1/api"] {
            assert_eq!(ollama_url(base), "http://host:1/api/embed");
        }
    }

    #[test]
    fn tokens_are_estimated_where_a_server_counts_none() {
        let reply = read_reply(&json!({"embeddings": [[1.0]]}), &Request::for_embeddings([&*"x".repeat(40)]));
        assert_eq!(reply.unwrap().usage.input_tokens, 10);
    }
}
