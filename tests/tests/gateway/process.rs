//! A gateway as a process.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use millrace_tests::cluster::TestCluster;
use millrace_tests::wait_for_value;
use serde_json::Value;

use super::document::assert_described;
use super::http::{Answer, Request};

/// A running gateway. Dropping it kills it.
pub struct GatewayProcess {
    /// Its address.
    pub address: SocketAddr,
    child: Child,
    file: PathBuf,
}

impl GatewayProcess {
    /// Starts a gateway of a cluster on a free port.
    ///
    /// # Panics
    /// It does not start.
    pub async fn start(cluster: &TestCluster, name: &str) -> Self {
        Self::start_on(cluster, name, "127.0.0.1:0".parse().unwrap()).await
    }

    /// Starts a gateway on an address.
    pub async fn start_on(cluster: &TestCluster, name: &str, api: SocketAddr) -> Self {
        Self::start_with_options(cluster, name, api, &[]).await
    }

    /// Starts a gateway on an address, with more options.
    pub async fn start_with_options(
        cluster: &TestCluster,
        name: &str,
        api: SocketAddr,
        options: &[&str],
    ) -> Self {
        Self::spawn(cluster.millrace_command(), cluster.test_folder(), name, api, options).await
    }

    /// Starts a gateway by a command of the program under test. Its log is `NAME.log` in a folder.
    pub async fn spawn(
        mut command: Command,
        folder: &Path,
        name: &str,
        api: SocketAddr,
        options: &[&str],
    ) -> Self {
        let file = folder.join(format!("{name}.url"));
        drop(fs::remove_file(&file));
        let log = fs::File::create(folder.join(format!("{name}.log"))).unwrap();
        command
            .args(["serve", "--by", "ann", "--api", &api.to_string(), "--url-file"])
            .arg(&file)
            .args(options)
            .stderr(log);
        let child = command.spawn().expect("millrace starts");
        let url = wait_for_value(Duration::from_secs(60), "the URL of the gateway", async || {
            fs::read_to_string(&file).ok().filter(|url| url.ends_with('\n'))
        })
        .await;
        let (_, address) = url.trim().split_once("://").expect("a URL");
        let address = address.parse().expect("an address");
        Self { address, child, file }
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        drop(self.child.kill());
        self.child.wait().expect("a child can be waited for");
    }

    /// Stops it with SIGTERM, and returns how long that took.
    pub fn stop(&mut self) -> Duration {
        let started = std::time::Instant::now();
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a child can be signalled");
        let status = self.child.wait().expect("a child can be waited for");
        assert!(status.success(), "{status}");
        assert!(!self.file.exists(), "the URL of a gateway that is gone is left");
        started.elapsed()
    }

    /// Sends a request, and checks that the answer is described.
    pub async fn send(&self, request: Request) -> Answer {
        let answer = request.send(self.address).await;
        assert!(answer.status < 500, "{} {}: {}", request.method, request.path, answer.text());
        assert_described(&request, &answer);
        answer
    }

    /// Gets a resource below the root of the API.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(Request::new("GET", format!("/api/v1{path}"))).await
    }

    /// Posts JSON to a resource below the root of the API.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Request::new("POST", format!("/api/v1{path}")).json(body)).await
    }

    /// Submits a run and returns its id.
    pub async fn submit(&self, body: &Value) -> String {
        let answer = self.post("/runs", body).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json()["run"].as_str().expect("an id").to_owned()
    }

    /// Waits for the end of a run and returns it.
    pub async fn wait_for_end(&self, run: &str) -> Value {
        let answer = self.get(&format!("/runs/{run}/wait?timeout=100")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
