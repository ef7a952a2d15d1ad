//! A NATS cluster of three servers, configured as in a deployment: with the configuration file that Kubernetes and
//! compose use, and the accounts, identities and certificates that `millrace nats-config` generates. The servers run on
//! this machine or on three.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millrace_runtime::ConnectionSettings;
use millrace_runtime::nats::connection::{Credentials, TlsFiles};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::machines::{TestMachines, command_in_namespace};
use crate::processes::{remove_millrace_variables, save_logs, wait_for_exit};
use crate::program::millrace_program;
use crate::{find_nats_server_program, free_port, wait_for_value, web};

/// The time within which a server must start.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// The time within which three servers must find each other, or one that was away must catch up: it covers some
/// elections in a row.
const HEALTHY_TIMEOUT: Duration = Duration::from_secs(90);

/// The output of `millrace nats-config`: a server's configuration, and the identities that it lets in.
pub struct NatsIdentities {
    folder: TempDir,
}

impl NatsIdentities {
    /// Runs `millrace nats-config` with these arguments.
    ///
    /// # Panics
    /// It fails.
    #[must_use]
    pub fn generate(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let identities = Self { folder };
        identities.regenerate(arguments);
        identities
    }

    /// Runs it again with the same folder.
    ///
    /// # Panics
    /// It fails.
    pub fn regenerate(&self, arguments: &[&str]) {
        let mut command = remove_millrace_variables(Command::new(millrace_program()));
        command.args(["nats-config", "--out"]).arg(self.folder()).args(arguments);
        let output = command.stdin(Stdio::null()).output().expect("millrace can be started");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "nats-config {arguments:?} exited with {}: {text}", output.status);
    }

    /// The folder with the output.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The connection settings of an identity, such as `worker-echo` of the tenant `millrace`.
    #[must_use]
    pub fn connection_settings(&self, url: &str, tenant: &str, identity: &str) -> ConnectionSettings {
        let tls = |name: &str| self.folder().join("tls").join(name);
        ConnectionSettings {
            url: url.into(),
            credentials: Credentials::NkeyFile(self.seed_path(tenant, identity)),
            tls: TlsFiles {
                authorities: Some(tls("ca.crt")),
                identity: Some((tls("client.crt"), tls("client.key"))),
            },
        }
    }

    /// The environment variables with which a process connects as an identity.
    #[must_use]
    pub fn connection_environment(&self, tenant: &str, identity: &str) -> BTreeMap<&'static str, PathBuf> {
        let tls = |name: &str| self.folder().join("tls").join(name);
        BTreeMap::from([
            ("MILLRACE_NATS_NKEY", self.seed_path(tenant, identity)),
            ("MILLRACE_NATS_CA", tls("ca.crt")),
            ("MILLRACE_NATS_CERT", tls("client.crt")),
            ("MILLRACE_NATS_KEY", tls("client.key")),
        ])
    }

    fn seed_path(&self, tenant: &str, identity: &str) -> PathBuf {
        self.folder().join("seeds").join(tenant).join(format!("{identity}.nk"))
    }
}

/// The address and ports of a server.
#[derive(Debug, Clone)]
pub struct ServerAddress {
    /// The server's address.
    pub host: Ipv4Addr,
    /// The network namespace, if it has a machine of its own.
    pub namespace: Option<String>,
    /// The port for clients.
    pub clients: u16,
    /// The port for other servers.
    pub routes: u16,
    /// The monitoring port.
    pub monitor: u16,
}

impl ServerAddress {
    /// On this machine, with ports that are free.
    #[must_use]
    pub fn on_this_machine() -> Self {
        let [clients, routes, monitor] = [(); 3].map(|()| free_port());
        Self { host: Ipv4Addr::LOCALHOST, namespace: None, clients, routes, monitor }
    }

    /// On a machine of its own.
    #[must_use]
    pub fn on_machine(machines: &TestMachines, machine: usize) -> Self {
        let (host, namespace) = (machines.machine_address(machine), Some(machines.namespace_name(machine)));
        Self { host, namespace, clients: 4222, routes: 6222, monitor: 8222 }
    }
}

/// Three servers that are one cluster. Dropping it kills them and removes their stores.
pub struct NatsCluster {
    folder: TempDir,
    configuration: PathBuf,
    tls: PathBuf,
    places: [ServerAddress; 3],
    children: [Option<Child>; 3],
}

impl NatsCluster {
    /// Starts three servers at these addresses and waits until they form a cluster.
    ///
    /// # Panics
    /// They don't start, or don't find each other.
    pub async fn start_three_servers(identities: &NatsIdentities, places: [ServerAddress; 3]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let configuration = identities.folder().join("nats.conf");
        let tls = identities.folder().join("tls");
        let mut cluster = Self { folder, configuration, tls, places, children: [None, None, None] };
        (0..3).for_each(|server| cluster.spawn_until_ready(server));
        cluster.wait_until_healthy().await;
        cluster
    }

    /// The addresses of all three, for a client.
    #[must_use]
    pub fn server_urls(&self) -> String {
        self.places.each_ref().map(|place| format!("tls://{}:{}", place.host, place.clients)).join(",")
    }

    /// Returns the address and ports of a server.
    #[must_use]
    pub fn server_address(&self, server: usize) -> &ServerAddress {
        &self.places[server]
    }

    /// Waits until all three servers report that they are healthy.
    ///
    /// # Panics
    /// They are not healthy within 90 seconds.
    pub async fn wait_until_healthy(&self) {
        for (server, place) in self.places.iter().enumerate() {
            let what = format!("server {server} to be healthy");
            wait_for_value(HEALTHY_TIMEOUT, &what, async || {
                let (status, _) = web::http_get(place.host, place.monitor, "/healthz").await?;
                (status == 200).then_some(())
            })
            .await;
        }
    }

    /// Kills a server with SIGKILL, as in a crash. Its store stays.
    pub fn kill_server(&mut self, server: usize) {
        if let Some(mut child) = self.children[server].take() {
            drop(child.kill());
            child.wait().expect("a child can be waited for");
        }
    }

    /// Stops a server with SIGTERM.
    ///
    /// # Panics
    /// It does not run, or does not exit.
    pub fn stop_server(&mut self, server: usize) {
        let mut child = self.children[server].take().expect("it runs");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("a child can be signalled");
        wait_for_exit(&format!("server {server}"), &mut child);
    }

    /// Restarts a server that was killed or stopped.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart_server(&mut self, server: usize) {
        self.kill_server(server);
        self.spawn_until_ready(server);
    }

    /// Makes all servers reload their configuration.
    ///
    /// # Panics
    /// One of them does not run.
    pub fn reload_configuration(&self) {
        for child in self.children.iter().flatten() {
            kill_process(Pid::from_child(child), Signal::HUP).expect("a child can be signalled");
        }
    }

    /// The log of a server since its first start.
    #[must_use]
    pub fn read_server_log(&self, server: usize) -> String {
        let bytes = fs::read(self.server_log_path(server)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn server_log_path(&self, server: usize) -> PathBuf {
        self.folder.path().join(format!("nats-{server}.log"))
    }

    /// Starts a server and waits until it accepts connections.
    fn spawn_until_ready(&mut self, server: usize) {
        let before = self.read_server_log(server).matches(READY).count();
        let place = &self.places[server];
        let mut command = match &place.namespace {
            Some(namespace) => command_in_namespace(namespace, find_nats_server_program()),
            None => Command::new(find_nats_server_program()),
        };
        command.arg("-c").arg(&self.configuration).arg("-l").arg(self.server_log_path(server));
        command.envs(self.server_environment(server));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the nats-server can be started");
        let started = Instant::now();
        while self.read_server_log(server).matches(READY).count() == before {
            let has_exited = child.try_wait().expect("the status of a child can be read").is_some();
            if has_exited || started.elapsed() > START_TIMEOUT {
                drop(child.kill());
                drop(child.wait());
                panic!("nats-server {server} does not start:\n{}", self.read_server_log(server));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.children[server] = Some(child);
    }

    fn server_environment(&self, server: usize) -> BTreeMap<&'static str, String> {
        let place = &self.places[server];
        let at = |port: u16| format!("{}:{port}", place.host);
        let tls = |name: &str| self.tls.join(name).display().to_string();
        let routes = self.places.each_ref().map(|place| format!("nats://{}:{}", place.host, place.routes));
        BTreeMap::from([
            ("NATS_SERVER_NAME", format!("nats-{server}")),
            ("NATS_LISTEN", at(place.clients)),
            ("NATS_HTTP", at(place.monitor)),
            ("NATS_CLUSTER_LISTEN", at(place.routes)),
            ("NATS_ROUTES", format!("[{}]", routes.join(", "))),
            ("NATS_ROUTES_BY_NAME", "false".into()),
            ("NATS_STORE_DIR", self.folder.path().join(format!("store-{server}")).display().to_string()),
            ("NATS_MAX_FILE_STORE", "10GB".into()),
            ("NATS_TLS_CERT", tls("server.crt")),
            ("NATS_TLS_KEY", tls("server.key")),
            ("NATS_TLS_CA", tls("ca.crt")),
        ])
    }
}

const READY: &str = "Server is ready";

impl Drop for NatsCluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            save_logs(self.folder.path());
        }
        (0..3).for_each(|server| self.kill_server(server));
    }
}
