//! Requests that schemathesis derives from the description of the API, against a real gateway: no answer has a status from 500 on,
//! and each is valid by the description.

use std::process::Command;

use millrace_tests::cluster::{ClusterSetup, TestCluster};
use millrace_tests::machine::share_machine;
use millrace_tests::python::install_python_packages;
use serde_json::{Value, json};

use crate::gateway::http::Request;
use crate::gateway::process::GatewayProcess;

/// The number of examples for each operation; `MILLRACE_FUZZ_EXAMPLES` changes it.
const EXAMPLES: &str = "10";
/// The checks of schemathesis for each response.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_schema_conformance,response_headers_conformance";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes some minutes; needs schemathesis from PyPI"]
async fn every_answer_to_a_derived_request_is_described() {
    let _shared = share_machine();
    let python = match install_python_packages(&["schemathesis==4.32.5"]) {
        Ok(python) => python,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    cluster.connect_bus().await;
    let local = "127.0.0.1:0".parse().unwrap();
    let options = ["--require-token", "--max-requests", "0"];
    let gateway = GatewayProcess::start_with_options(&cluster, "gateway", local, &options).await;
    let arguments = ["token", "create", "fuzz", "--scope", "read,submit,steer,answer,admin"];
    let created = cluster.millrace_command().args(arguments).output().unwrap();
    let authorization = format!("Bearer {}", String::from_utf8(created.stdout).unwrap().trim());
    let post = async |path: &str, body: &Value| {
        let request = Request::new("POST", format!("/api/v1{path}")).json(body);
        let answer = gateway.send(request.header("Authorization", &authorization)).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json()
    };
    let task = json!({ "id": "a", "objective": "say it", "capability": "echo", "final": true });
    let run = post("/runs", &json!({ "objective": "say it", "plan": { "tasks": [task] } })).await;
    let webhook = post("/webhooks", &json!({ "url": "https://receiver.invalid/" })).await;

    // First with ids of things that exist, and then with any ids.
    let existing = format!(
        "\"path.run\" = {}\n\"path.task\" = \"a\"\n\"path.webhook\" = {}\n",
        run["run"], webhook["id"]
    );
    for (parameters, excluded) in [(existing, &["--exclude-method", "DELETE"][..]), (String::new(), &[])] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("schemathesis.toml"), format!("[parameters]\n{parameters}"))
            .unwrap();
        let examples = std::env::var("MILLRACE_FUZZ_EXAMPLES").unwrap_or_else(|_| EXAMPLES.into());
        let url = format!("http://{}", gateway.address);
        let mut command = Command::new(python.with_file_name("schemathesis"));
        command
            .current_dir(folder.path())
            .args(["run", &format!("{url}/api/v1/openapi.json"), "--url", &url])
            .args(["--header", &format!("Authorization: {authorization}")])
            .args(excluded)
            .args(["--phases", "examples,coverage,fuzzing", "--max-examples", &examples, "--workers", "2"])
            // Streams of events do not end, and the token must not be revoked.
            .args(["--exclude-path-regex", "/events$|/tokens/", "--request-timeout", "30"])
            .args(["--checks", CHECKS, "--continue-on-failure", "--no-color"]);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(!text.contains("Authentication failed"), "{text}");
    }
    let log = std::fs::read_to_string(cluster.test_folder().join("gateway.log")).unwrap();
    assert!(!log.contains("panicked"), "{log}");
}
