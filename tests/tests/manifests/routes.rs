//! Routes between servers in `nats.conf` are encrypted and open to servers only.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use millrace_tests::program::millrace_program;
use millrace_tests::{find_nats_server_program, wait_for_value, web};
use serde_json::Value;

use super::real::find_free_port;

const TIMEOUT: Duration = Duration::from_secs(120);

/// A server with the output of nats-config, and its ports.
struct RoutedServer {
    child: Child,
    monitor: u16,
    routes: u16,
}

impl Drop for RoutedServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl RoutedServer {
    /// Starts a server with this certificate and routes to itself and the others.
    fn start(made: &Path, name: &str, certificate: &str, others: &[&Self]) -> Self {
        let (monitor, routes) = (find_free_port(), find_free_port());
        let route_urls = others.iter().map(|other| other.routes).chain([routes]);
        let route_urls: Vec<String> = route_urls.map(|port| format!("nats://localhost:{port}")).collect();
        let tls = made.join("tls");
        let mut command = Command::new(find_nats_server_program());
        command.arg("-c").arg(made.join("nats.conf")).env_clear();
        for (variable, value) in [
            ("NATS_SERVER_NAME", name.to_owned()),
            ("NATS_LISTEN", format!("127.0.0.1:{}", find_free_port())),
            ("NATS_HTTP", format!("127.0.0.1:{monitor}")),
            ("NATS_CLUSTER_LISTEN", format!("127.0.0.1:{routes}")),
            ("NATS_ROUTES", format!("[{}]", route_urls.join(", "))),
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

    async fn get_monitoring_json(&self, path: &str) -> Option<Value> {
        let (_, body) = web::http_get(Ipv4Addr::LOCALHOST, self.monitor, path).await?;
        serde_json::from_str(&body).ok()
    }

    /// The names of the servers to which it has a route.
    async fn route_peers(&self) -> Vec<String> {
        let Some(answer) = self.get_monitoring_json("/routez").await else { return Vec::new() };
        let routes = answer["routes"].as_array().cloned().unwrap_or_default();
        routes.iter().filter_map(|route| Some(route["remote_name"].as_str()?.to_owned())).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_need_a_server_certificate() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let made = folder.path().join("made");
    let status = Command::new(millrace_program()).arg("nats-config").arg("--out").arg(&made).output();
    assert!(status.is_ok_and(|status| status.status.success()));
    let first = RoutedServer::start(&made, "first", "server", &[]);
    let thief = RoutedServer::start(&made, "thief", "client", &[&first]);
    let second = RoutedServer::start(&made, "second", "server", &[&first]);
    wait_for_value(TIMEOUT, "a route", async || {
        first.route_peers().await.contains(&"second".to_owned()).then_some(())
    })
    .await;
    // It was started before the second server and has tried as often.
    wait_for_value(TIMEOUT, "the server with a client's certificate", async || {
        thief.get_monitoring_json("/varz").await
    })
    .await;
    for server in [&first, &second, &thief] {
        let routes = server.route_peers().await;
        assert!(routes.iter().all(|name| name == "first" || name == "second"), "{routes:?}");
    }
    assert_eq!(thief.route_peers().await, Vec::<String>::new());
    let store = first.get_monitoring_json("/jsz").await.expect("it answers");
    assert_eq!(store["config"]["sync_always"], true, "acknowledged messages are on disk: {store}");
}
