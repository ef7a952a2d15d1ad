//! A cluster on this machine, as a user starts it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millrace_tests::cluster::remove_millrace_variables;
use millrace_tests::program::millrace_program;
use millrace_tests::wait_for_value;
use serde_json::{Value, json};

use super::browser::TIMEOUT;
use crate::gateway::http::Request;

/// A cluster with a scripted model and the capability `publisher`. Dropping it stops it.
pub struct LocalCluster {
    folder: tempfile::TempDir,
    /// The address of its gateway.
    pub address: SocketAddr,
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The script of the examples.
pub fn example_script() -> String {
    let rules = ["script.yaml", "publisher.yaml"].map(|name| {
        let text = std::fs::read_to_string(root().join("examples/models").join(name)).unwrap();
        text.split_once("rules:\n").unwrap().1.to_owned()
    });
    // The rule of the publisher has no condition, so that it comes last.
    format!("tries: 3\nrules:\n{}{}", rules[0], rules[1])
}

impl LocalCluster {
    /// Starts it with a model that answers by a script.
    pub fn start(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("script.yaml");
        std::fs::write(&file, script).unwrap();
        let model = format!("script:{}", file.display());
        Self::start_in(folder, &[model])
    }

    /// Starts it with these models.
    pub fn start_with_models(models: &[String]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), models)
    }

    fn start_in(folder: tempfile::TempDir, models: &[String]) -> Self {
        let mut cluster = Self { folder, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let capability = root().join("examples/capabilities/publisher.yaml").display().to_string();
        let mut arguments = vec!["up", "--detach", "--workers", "1", "--api", "127.0.0.1:0"];
        arguments.extend(["--capability", &capability]);
        arguments.extend(models.iter().flat_map(|model| ["--model", model]));
        cluster.run(&arguments);
        let url = std::fs::read_to_string(cluster.data().join("api.url")).unwrap();
        cluster.address = url.trim().strip_prefix("http://").unwrap().parse().unwrap();
        cluster
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Runs a command of `millrace` and returns its output.
    pub fn run(&self, arguments: &[&str]) -> String {
        self.run_to_code(arguments, 0).0
    }

    /// Runs a command that ends with this exit code. Returns what it prints to standard output and to standard error.
    pub fn run_to_code(&self, arguments: &[&str], code: i32) -> (String, String) {
        let mut command = remove_millrace_variables(Command::new(millrace_program()));
        command.args(arguments).arg("--data").arg(self.data()).stdin(Stdio::null());
        let output = command.output().unwrap();
        let [printed, notes] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {notes}");
        (printed, notes)
    }

    /// Gets a resource of the API.
    pub async fn get(&self, path: &str) -> Value {
        let answer = Request::new("GET", format!("/api/v1{path}")).send(self.address).await;
        assert!(answer.status < 300, "{path}: {}", answer.text());
        answer.json()
    }

    /// Posts to a resource of the API.
    pub async fn post(&self, path: &str, body: &Value) -> Value {
        let answer = Request::new("POST", format!("/api/v1{path}")).json(body).send(self.address).await;
        assert!(answer.status < 300, "{path}: {}", answer.text());
        answer.json()
    }

    /// Submits a run and returns its id.
    pub async fn submit(&self, body: &Value) -> String {
        self.post("/runs", body).await["run"].as_str().unwrap().to_owned()
    }

    /// Waits until a run has ended.
    pub async fn wait_for_end(&self, run: &str) {
        wait_for_value(TIMEOUT, "the end of the run", async || {
            let run = self.get(&format!("/runs/{run}/wait?timeout=20")).await;
            (!run["end"].is_null()).then_some(())
        })
        .await;
    }

    /// Submits the plan of the publisher; its first question is an input, its second an approval.
    pub async fn publish(&self) -> String {
        let task = json!({ "id": "publish", "objective": "Publish the notes", "capability": "publisher", "final": true });
        self.submit(&json!({ "objective": "Publish the release notes", "plan": { "tasks": [task] } })).await
    }

    /// Waits for an open question of a kind, and returns its id.
    pub async fn wait_for_question(&self, run: &str, kind: &str) -> String {
        wait_for_value(TIMEOUT, "the question", async || {
            let list = self.get(&format!("/runs/{run}/questions")).await;
            let list = list["questions"].as_array()?.clone();
            list.iter().find(|one| one["kind"] == kind).map(|one| one["id"].as_str().unwrap().to_owned())
        })
        .await
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        self.run(&["down"]);
    }
}
