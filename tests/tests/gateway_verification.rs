//! Verifications over HTTP and MCP: a real cluster, and a scripted model that verifies.

use std::collections::BTreeMap;

use millrace_protocol::registry;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::machine::share_machine;
use serde_json::{Value, json};

use crate::gateway::http::{Answer, Request};
use crate::gateway::process::GatewayProcess;

const KILN: &str =
    "# Kiln\n\nThe kiln at Osterby fires at 1,240 °C.\nIt was built in 1931 by two brothers.\n";
const TEXT: &str =
    "The kiln is hot \u{7f}[kiln.md:3]. Two brothers built it [kiln.md:4]. It was sold in 1987.\n";

/// The script of a verifier that knows the claims of the probe, and says of each statement with one of these texts how probable it is.
pub fn verifier_script(claims: &[(&str, f64)]) -> Value {
    let probe: Vec<BTreeMap<String, String>> =
        serde_json::from_str(include_str!("../../crates/verification/data/probe.json")).unwrap();
    let known = probe.iter().flat_map(|pair| [(pair["true"].as_str(), 0.9), (pair["false"].as_str(), 0.1)]);
    let rule = |(claim, yes): (&str, f64)| {
        let reply = json!({"text": "Yes", "first_token": {"Yes": yes, "No": 1.0 - yes}});
        json!({"when": {"last": format!("Claim: {claim}")}, "reply": reply})
    };
    let rules: Vec<Value> = claims.iter().copied().chain(known).map(rule).collect();
    json!({"ability": "small", "rules": rules, "ledger": "verifier.ledger"})
}

/// A cluster with a worker that verifies, and the model with which it does.
async fn start_cluster() -> (TestCluster, String) {
    let mut cluster = TestCluster::with_server_only(ClusterSetup::default());
    cluster.start_process(ProcessRole::Supervisor, "supervisor-1", &[]);
    cluster.start_process(ProcessRole::Worker, "worker-1", &["--capability", "verify"]);
    let script = cluster.test_folder().join("verifier.yaml");
    let claims = [("The kiln is hot", 0.9), ("Two brothers built it", 0.8)];
    std::fs::write(&script, verifier_script(&claims).to_string()).unwrap();
    let bus = cluster.connect_bus().await;
    cluster.wait_for_heartbeats(&bus, registry::ProcessRole::Worker, 1).await;
    (cluster, format!("verifier=script:{}", script.display()))
}

/// The number of requests that the verifier got.
fn request_count(cluster: &TestCluster) -> usize {
    std::fs::read_to_string(cluster.test_folder().join("verifier.ledger")).unwrap_or_default().lines().count()
}

fn upload(body: &Value, documents: &[(&str, &str)], key: &str) -> Request {
    let mut parts = format!(
        "--b\r\nContent-Disposition: form-data; name=\"run\"\r\nContent-Type: application/json\r\n\r\n{body}\r\n"
    );
    for (name, text) in documents {
        parts += &format!(
            "--b\r\nContent-Disposition: form-data; name=\"documents\"; filename=\"{name}\"\r\n\r\n{text}\r\n"
        );
    }
    Request::new("POST", "/api/v1/verifications")
        .header("Idempotency-Key", key)
        .body("multipart/form-data; boundary=b", (parts + "--b--\r\n").into_bytes())
}

async fn call_tool(gateway: &GatewayProcess, arguments: &Value) -> Value {
    let params = json!({"name": "verify_text", "arguments": arguments});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let request = Request::new("POST", "/mcp")
        .header("Accept", "application/json, text/event-stream")
        .json(&call)
        .send(gateway.address)
        .await;
    request.json()["result"].take()
}

fn verdicts(statements: &Value) -> Vec<&str> {
    statements.as_array().unwrap().iter().map(|one| one["verdict"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_verified_over_http_once_for_a_key() {
    let _shared = share_machine();
    let (cluster, model) = start_cluster().await;
    let mut gateway = GatewayProcess::start(&cluster, "gateway").await;
    let body =
        json!({"text": TEXT, "models": [model], "labels": {"team": "mill"}, "budget": {"tokens": "1M"}});
    let documents = [("kiln.md", KILN)];
    let submitted = gateway.send(upload(&body, &documents, "k")).await;
    assert_eq!(submitted.status, 201, "{}", submitted.text());
    let run = submitted.json()["run"].as_str().unwrap().to_owned();
    assert_eq!(submitted.header("location"), Some(format!("/api/v1/runs/{run}").as_str()));

    let ended = gateway.wait_for_end(&run).await;
    assert_eq!(ended["state"], "completed", "{ended:#}");
    assert!(ended["objective"].as_str().unwrap().starts_with("Verify: The kiln is hot"), "{ended:#}");
    let statements = &ended["result"]["statements"];
    assert_eq!(verdicts(statements), ["supported", "supported", "unsupported"]);
    assert_eq!(statements[2]["found_by"], "figure");
    let counts = &ended["verification"];
    assert_eq!(
        (&counts["statements"], &counts["supported"], &counts["unsupported"]),
        (&3.into(), &2.into(), &1.into())
    );
    let output =
        gateway.get(&format!("/runs/{run}/result")).await.json()["output"].as_str().unwrap().to_owned();
    assert!(output.starts_with(&TEXT.replace("1987.\n", "1987.[^v1]\n")), "{output:?}");
    let calls = request_count(&cluster);
    assert_eq!((calls, &ended["usage"]["model_calls"]), (32 + 2, &calls.into()));

    let again = gateway.send(upload(&body, &documents, "k")).await;
    assert_eq!((again.status, again.json()["run"].as_str()), (201, Some(run.as_str())));
    let other = gateway.send(upload(&body, &[("kiln.md", "# Other")], "k")).await;
    assert_eq!(other.status, 422, "{}", other.text());

    // The probe is remembered by the worker, and the document is in the store.
    let stored = ended_document(&gateway, &run).await;
    let body = json!({"text": TEXT, "models": [model], "documents": [stored]});
    let run = gateway.post("/verifications", &body).await.json()["run"].as_str().unwrap().to_owned();
    assert_eq!(gateway.wait_for_end(&run).await["verification"]["supported"], 2);
    assert_eq!(request_count(&cluster), calls + 2);

    // The largest text passes through the log, the queue and the worker.
    let line = "The kiln at Osterby fires at 1,240 °C, and in 1987 it was sold to the town with its tools and its house.\n\n";
    let text = line.repeat(256 * 1024 / line.len());
    let body = json!({"text": text, "models": ["verifier=none"], "documents": [stored]});
    let run = gateway.post("/verifications", &body).await.json()["run"].as_str().unwrap().to_owned();
    let counts = gateway.wait_for_end(&run).await["verification"].take();
    assert_eq!(
        (counts["statements"].as_u64().unwrap() as usize, &counts["unsupported"]),
        (text.len() / line.len(), &counts["statements"])
    );
    gateway.stop();
    cluster.stop_all();
}

/// The document of a run, as another submission refers to it.
async fn ended_document(gateway: &GatewayProcess, run: &str) -> Value {
    let sha256 = millrace_runtime::store::blobs::sha256_hex(KILN.as_bytes());
    assert_eq!(gateway.get(&format!("/blobs/{sha256}")).await.text(), KILN, "{run}");
    json!({"path": "kiln.md", "sha256": sha256})
}

#[tokio::test(flavor = "multi_thread")]
async fn verification_that_has_nothing_to_compare_is_refused() {
    let _shared = share_machine();
    let (cluster, model) = start_cluster().await;
    let mut gateway = GatewayProcess::start(&cluster, "gateway").await;
    let refused = |answer: Answer| (answer.status, answer.json()["detail"].as_str().unwrap().to_owned());
    let long = "It is hot. ".repeat(30_000);
    let empty = upload(&json!({"text": "# !\n"}), &[("kiln.md", KILN)], "e");
    let cases = [
        (
            gateway.post("/verifications", &json!({"text": TEXT})).await,
            422,
            "documents: a text is compared with documents",
        ),
        (gateway.send(empty).await, 422, "text: it has no words"),
        (
            gateway.send(upload(&json!({"text": long}), &[("kiln.md", KILN)], "l")).await,
            413,
            "at most 256 KiB",
        ),
        (
            gateway.send(upload(&json!({"text": TEXT, "models": ["none"]}), &[("kiln.md", KILN)], "m")).await,
            422,
            "models: ",
        ),
        (gateway.post("/verifications", &json!({"text": TEXT, "plan": {}})).await, 400, "plan"),
    ];
    for (answer, status, detail) in cases {
        let (is, text) = refused(answer);
        assert!(is == status && text.contains(detail), "{is} {text}");
    }
    // Documents without text are found by the worker.
    let body = json!({"text": TEXT, "models": [model]});
    let submitted = gateway.send(upload(&body, &[("blank.md", " \n")], "b")).await;
    let ended = gateway.wait_for_end(submitted.json()["run"].as_str().unwrap()).await;
    assert_eq!(ended["state"], "failed", "{ended:#}");
    assert!(ended["errors"].to_string().contains("no documents with text"), "{ended:#}");
    assert_eq!(request_count(&cluster), 0);
    gateway.stop();
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_tool_waits_for_the_verdicts() {
    let _shared = share_machine();
    let (cluster, model) = start_cluster().await;
    let mut gateway = GatewayProcess::start(&cluster, "gateway").await;
    let documents = json!([{"path": "kiln.md", "text": KILN}]);
    let arguments = json!({"text": TEXT, "documents": documents, "models": [model], "key": "k"});
    let result = call_tool(&gateway, &arguments).await["structuredContent"].take();
    assert_eq!(result["state"], "completed", "{result:#}");
    let statements = &result["statements"];
    assert_eq!(verdicts(statements), ["supported", "supported", "unsupported"]);
    assert_eq!(statements[1]["lines"], json!(["kiln.md:4"]));
    assert_eq!(statements[2]["reason"], "No source has “1987”.");
    let summary = result["summary"].as_str().unwrap();
    assert!(
        summary.starts_with("2 of 3 statements verified") && summary.ends_with("1 not supported"),
        "{summary}"
    );
    let again = call_tool(&gateway, &arguments).await["structuredContent"].take();
    assert_eq!(again, result);
    assert_eq!(request_count(&cluster), 32 + 2);
    let refused = call_tool(&gateway, &json!({"text": TEXT})).await;
    assert_eq!(refused["isError"], true);
    assert!(refused.to_string().contains("a text is compared with documents"), "{refused}");
    gateway.stop();
    cluster.stop_all();
}
