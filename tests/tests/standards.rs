//! Standard protocols, driven by the clients of their own SDKs.

use std::path::Path;
use std::process::{Command, Stdio};

use millrace_protocol::registry::ProcessRole;
use millrace_tests::cluster::{ClusterSetup, TestCluster};
use millrace_tests::machine::share_machine;
use millrace_tests::pages::repository_folder;
use millrace_tests::python::install_python_packages;

use crate::gateway::process::GatewayProcess;

/// The Python SDK of MCP.
const MCP_SDK: [&str; 1] = ["mcp==2.3.0"];

/// The Python SDK of A2A.
const A2A_SDK: [&str; 1] = ["a2a-sdk==1.3.0"];

/// Runs a script in `standards/` with an SDK; it checks what it gets.
fn drive(python: &Path, cluster: &TestCluster, script: &str, arguments: &[&str]) {
    let script = repository_folder().join("tests/tests/standards").join(script);
    let mut command = Command::new(python);
    // A server that the client starts has the environment of a command of the cluster.
    for (name, value) in cluster.millrace_command().get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.arg(script).args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.ends_with("passed\n"), "{arguments:?}: {text}\n{errors}");
}

async fn start_cluster() -> TestCluster {
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let bus = cluster.connect_bus().await;
    cluster.wait_for_heartbeats(&bus, ProcessRole::Worker, 1).await;
    cluster
}

fn create_token(cluster: &TestCluster, scopes: &str) -> String {
    let output = cluster.millrace_command().args(["token", "create", "sdk", "--scope", scopes]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_clients_drive_runs_with_questions_to_their_ends() {
    let python = match install_python_packages(&MCP_SDK) {
        Ok(python) => python,
        Err(why) => return println!("passed over: {why}"),
    };
    let _shared = share_machine();
    let cluster = start_cluster().await;
    let program = cluster.millrace_command().get_program().to_str().unwrap().to_owned();
    drive(&python, &cluster, "mcp_client.py", &["tools", "legacy", &program, "mcp"]);
    let mut gateway = GatewayProcess::start(&cluster, "gateway").await;
    let url = format!("http://{}/mcp", gateway.address);
    drive(&python, &cluster, "mcp_client.py", &["tools", "auto", &url]);
    drive(&python, &cluster, "mcp_client.py", &["tasks", "auto", &url]);

    let (address, options) = ("127.0.0.1:0".parse().unwrap(), ["--require-token"]);
    let mut private = GatewayProcess::start_with_options(&cluster, "private", address, &options).await;
    let url = format!("http://{}/mcp", private.address);
    let (reader, writer) =
        (create_token(&cluster, "read"), create_token(&cluster, "read,submit,answer,steer"));
    drive(&python, &cluster, "mcp_client.py", &["scopes", "auto", &url, &reader, &writer]);
    gateway.stop();
    private.stop();
    cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn a2a_clients_drive_runs_with_questions_to_their_ends() {
    let python = match install_python_packages(&A2A_SDK) {
        Ok(python) => python,
        Err(why) => return println!("passed over: {why}"),
    };
    let _shared = share_machine();
    let cluster = start_cluster().await;
    let (address, options) = ("127.0.0.1:0".parse().unwrap(), ["--require-token"]);
    let mut gateway = GatewayProcess::start_with_options(&cluster, "gateway", address, &options).await;
    let url = format!("http://{}", gateway.address);
    let token = create_token(&cluster, "read,submit,answer,steer");
    for binding in ["HTTP+JSON", "JSONRPC"] {
        drive(&python, &cluster, "a2a_client.py", &[binding, &url, &token]);
    }
    gateway.stop();
    cluster.stop_all();
}
