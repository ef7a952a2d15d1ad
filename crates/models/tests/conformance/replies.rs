//! The replies and errors that are made of responses, with their deltas. `golden/replies_WIRE.json` has a case a line: the response,
//! and what becomes of it; `UPDATE_GOLDEN=1` rewrites the second part.

use std::path::PathBuf;

use millrace_models::wire::WireProtocol;
use serde_json::{Value, json};

use super::requests::name;
use super::stub::{StubAction, chunked, response};
use super::wires::{ALL, DeltaLog, content_type, events, question, serving, stream_bytes};

/// Returns the stub's actions for a case: `"common"` is the common reply, `events` are streamed, and anything else has a body.
fn actions(wire: WireProtocol, given: &Value) -> Vec<StubAction> {
    let streamed = |events: &[Value]| chunked(content_type(wire), &[&stream_bytes(wire, events)]);
    if given == "common" {
        return streamed(&events(wire));
    }
    if let Some(events) = given["events"].as_array() {
        return streamed(events);
    }
    let body = given["body"].as_str().map_or_else(|| given["body"].to_string(), str::to_owned);
    let status = given["status"].as_u64().map_or(200, |status| u16::try_from(status).unwrap());
    let own = given["headers"].as_object().into_iter().flatten();
    let own = own.map(|(name, value)| (name.as_str(), value.as_str().unwrap()));
    let headers: Vec<(&str, &str)> = [("content-type", "application/json")].into_iter().chain(own).collect();
    response(status, &headers, body)
}

async fn outcome(wire: WireProtocol, given: &Value) -> Value {
    let (_stub, model) = serving(wire, actions(wire, given)).await;
    let log = DeltaLog::default();
    let outcome = model.reply(&question(), &log).await;
    let deltas = log.0.into_inner().unwrap();
    match outcome {
        Ok(reply) => json!({"deltas": deltas, "reply": reply}),
        Err(error) => json!({"deltas": deltas, "text": error.to_string(), "error": error}),
    }
}

#[tokio::test]
async fn responses_become_the_replies_and_errors_of_the_golden_files() {
    for wire in ALL {
        let file = format!("tests/conformance/golden/replies_{}.json", name(wire));
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file);
        let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let mut lines = Vec::new();
        for mut case in cases {
            let then = outcome(wire, &case["given"]).await;
            if std::env::var_os("UPDATE_GOLDEN").is_none() {
                assert_eq!(then, case["then"], "{wire:?}: {}", case["name"]);
            }
            case["then"] = then;
            lines.push(case.to_string());
        }
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&file, format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
        }
    }
}
