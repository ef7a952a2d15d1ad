//! `nats.conf` keeps its word about the ways between servers: they are encrypted, and open to servers alone.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use millrace_tests::program::millrace;
use millrace_tests::{binary, eventually, web};
use serde_json::Value;

use super::real::free_port;

const PATIENCE: Duration = Duration::from_secs(30);

/// A server on the folder that nats-config made, and how to reach it.
struct Server {
    child: Child,
    monitor: u16,
    routes: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Server {
    /// Starts one that shows this certificate, and knows itself and those that are there by name.
    fn start(made: &Path, name: &str, certificate: &str, others: &[&Self]) -> Self {
        let (monitor, routes) = (free_port(), free_port());
        let known = others.iter().map(|other| other.routes).chain([routes]);
        let known: Vec<String> = known.map(|port| format!("nats://localhost:{port}")).collect();
        let tls = made.join("tls");
        let mut command = Command::new(binary());
        command.arg("-c").arg(made.join("nats.conf")).env_clear();
        for (variable, value) in [
            ("NATS_SERVER_NAME", name.to_owned()),
            ("NATS_LISTEN", format!("127.0.0.1:{}", free_port())),
            ("NATS_HTTP", format!("127.0.0.1:{monitor}")),
            ("NATS_CLUSTER_LISTEN", format!("127.0.0.1:{routes}")),
            ("NATS_ROUTES", format!("[{}]", known.join(", "))),
            ("NATS_ROUTES_BY_NAME", "true".to_owned()),
            ("NATS_STORE_DIR", made.join(name).display().to_string()),
            ("NATS_MAX_FILE_STORE", "1GB".to_owned()),
            ("NATS_TLS_CERT", tls.join(format!("{certificate}.crt")).display().to_string()),
            ("NATS_TLS_KEY", tls.join(format!("{certificate}.key")).display().to_string()),
            ("NATS_TLS_CA", tls.join("ca.crt").display().to_string()),
        ] {
            command.env(variable, value);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self { child: child.expect("it can be started"), monitor, routes }
    }

    async fn asked(&self, path: &str) -> Option<Value> {
        let (_, body) = web::get(Ipv4Addr::LOCALHOST, self.monitor, path).await?;
        serde_json::from_str(&body).ok()
    }

    /// The names of the servers that it has a route to.
    async fn knows(&self) -> Vec<String> {
        let Some(answer) = self.asked("/routez").await else { return Vec::new() };
        let routes = answer["routes"].as_array().cloned().unwrap_or_default();
        routes.iter().filter_map(|route| Some(route["remote_name"].as_str()?.to_owned())).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_opens_a_route_and_whoever_has_the_certificate_of_a_client_does_not() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let made = folder.path().join("made");
    let done = Command::new(millrace()).arg("nats-config").arg("--out").arg(&made).output();
    assert!(done.is_ok_and(|done| done.status.success()));
    let first = Server::start(&made, "first", "server", &[]);
    let thief = Server::start(&made, "thief", "client", &[&first]);
    let second = Server::start(&made, "second", "server", &[&first]);
    eventually(PATIENCE, "a route", async || {
        first.knows().await.contains(&"second".to_owned()).then_some(())
    })
    .await;
    // It was there before the second, and has tried as often.
    eventually(PATIENCE, "the thief", async || thief.asked("/varz").await).await;
    for server in [&first, &second, &thief] {
        let known = server.knows().await;
        assert!(known.iter().all(|name| name == "first" || name == "second"), "{known:?}");
    }
    assert_eq!(thief.knows().await, Vec::<String>::new());
    let store = first.asked("/jsz").await.expect("it answers");
    assert_eq!(store["config"]["sync_always"], true, "what is acknowledged is on disk: {store}");
}
