//! A NATS cluster of three servers, set up as it is deployed: by the configuration file that Kubernetes and compose use,
//! and by what `millrace nats-config` writes: accounts, identities, certificates. Where its servers stand, on this
//! machine or on three, is the test's choice.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millrace_runtime::Connection;
use millrace_runtime::connection::{Credentials, Tls};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::fleet::{clean, keep_logs, wait_for};
use crate::machines::{Machines, on};
use crate::program::millrace;
use crate::{binary, eventually, free_port, web};

/// How long a server may take to start.
const START: Duration = Duration::from_secs(30);
/// How long three of them may take to find each other, or one that was away to come into step: some elections, one after
/// another.
const IN_STEP: Duration = Duration::from_secs(90);

/// What `millrace nats-config` wrote: a server's configuration, and who may come in.
pub struct Identities {
    folder: TempDir,
}

impl Identities {
    /// Lets `millrace nats-config` write them, with these arguments.
    ///
    /// # Panics
    /// It fails.
    #[must_use]
    pub fn write(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let identities = Self { folder };
        identities.again(arguments);
        identities
    }

    /// Lets it write them again into the same folder.
    ///
    /// # Panics
    /// It fails.
    pub fn again(&self, arguments: &[&str]) {
        let mut command = clean(Command::new(millrace()));
        command.args(["nats-config", "--out"]).arg(self.folder()).args(arguments);
        let said = command.stdin(Stdio::null()).output().expect("millrace can be started");
        let text = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "nats-config {arguments:?} ended with {}: {text}", said.status);
    }

    /// Where they are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// How somebody connects, such as `worker-echo` of the tenant `millrace`.
    #[must_use]
    pub fn connection(&self, url: &str, tenant: &str, identity: &str) -> Connection {
        let tls = |name: &str| self.folder().join("tls").join(name);
        Connection {
            url: url.into(),
            credentials: Credentials::NkeyFile(self.seed(tenant, identity)),
            tls: Tls {
                authorities: Some(tls("ca.crt")),
                identity: Some((tls("client.crt"), tls("client.key"))),
            },
        }
    }

    /// The variables by which a process connects so.
    #[must_use]
    pub fn environment(&self, tenant: &str, identity: &str) -> BTreeMap<&'static str, PathBuf> {
        let tls = |name: &str| self.folder().join("tls").join(name);
        BTreeMap::from([
            ("MILLRACE_NATS_NKEY", self.seed(tenant, identity)),
            ("MILLRACE_NATS_CA", tls("ca.crt")),
            ("MILLRACE_NATS_CERT", tls("client.crt")),
            ("MILLRACE_NATS_KEY", tls("client.key")),
        ])
    }

    fn seed(&self, tenant: &str, identity: &str) -> PathBuf {
        self.folder().join("seeds").join(tenant).join(format!("{identity}.nk"))
    }
}

/// Where a server stands.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its address.
    pub host: Ipv4Addr,
    /// Its namespace, if it has a machine to itself.
    pub namespace: Option<String>,
    /// The port of clients.
    pub clients: u16,
    /// The port of other servers.
    pub routes: u16,
    /// The port of its health and counts.
    pub monitor: u16,
}

impl Place {
    /// On this machine, with ports that are free.
    #[must_use]
    pub fn here() -> Self {
        let [clients, routes, monitor] = [(); 3].map(|()| free_port());
        Self { host: Ipv4Addr::LOCALHOST, namespace: None, clients, routes, monitor }
    }

    /// On a machine of its own.
    #[must_use]
    pub fn on(machines: &Machines, machine: usize) -> Self {
        let (host, namespace) = (machines.address(machine), Some(machines.namespace(machine)));
        Self { host, namespace, clients: 4222, routes: 6222, monitor: 8222 }
    }
}

/// Three servers that are one cluster. Dropping it kills them and removes their stores.
pub struct Trio {
    folder: TempDir,
    configuration: PathBuf,
    tls: PathBuf,
    places: [Place; 3],
    children: [Option<Child>; 3],
}

impl Trio {
    /// Starts three servers there, and waits until they are one cluster.
    ///
    /// # Panics
    /// They don't start, or don't find each other.
    pub async fn start(identities: &Identities, places: [Place; 3]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let configuration = identities.folder().join("nats.conf");
        let tls = identities.folder().join("tls");
        let mut trio = Self { folder, configuration, tls, places, children: [None, None, None] };
        (0..3).for_each(|server| trio.spawn(server));
        trio.is_whole().await;
        trio
    }

    /// The addresses of all three, for a client.
    #[must_use]
    pub fn url(&self) -> String {
        self.places.each_ref().map(|place| format!("tls://{}:{}", place.host, place.clients)).join(",")
    }

    /// Where a server stands.
    #[must_use]
    pub fn place(&self, server: usize) -> &Place {
        &self.places[server]
    }

    /// Waits until all three are up and in step.
    ///
    /// # Panics
    /// They are not within a minute and a half.
    pub async fn is_whole(&self) {
        for (server, place) in self.places.iter().enumerate() {
            let what = format!("server {server} to be in step");
            eventually(IN_STEP, &what, async || {
                let (status, _) = web::get(place.host, place.monitor, "/healthz").await?;
                (status == 200).then_some(())
            })
            .await;
        }
    }

    /// Kills a server at once, as a crash would. Its store stays.
    pub fn kill(&mut self, server: usize) {
        if let Some(mut child) = self.children[server].take() {
            drop(child.kill());
            child.wait().expect("a child can be waited for");
        }
    }

    /// Stops a server in order.
    ///
    /// # Panics
    /// It does not run, or does not end.
    pub fn stop(&mut self, server: usize) {
        let mut child = self.children[server].take().expect("it runs");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("a child can be signalled");
        wait_for(&format!("server {server}"), &mut child);
    }

    /// Starts a server again that was killed or stopped.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart(&mut self, server: usize) {
        self.kill(server);
        self.spawn(server);
    }

    /// Makes all servers read their configuration again, as it was written anew.
    ///
    /// # Panics
    /// One of them does not run.
    pub fn reload(&self) {
        for child in self.children.iter().flatten() {
            kill_process(Pid::from_child(child), Signal::HUP).expect("a child can be signalled");
        }
    }

    /// What a server has said, in all its lives.
    #[must_use]
    pub fn log(&self, server: usize) -> String {
        let bytes = fs::read(self.log_file(server)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn log_file(&self, server: usize) -> PathBuf {
        self.folder.path().join(format!("nats-{server}.log"))
    }

    /// Starts a server and waits until it takes connections.
    fn spawn(&mut self, server: usize) {
        let before = self.log(server).matches(READY).count();
        let place = &self.places[server];
        let mut command = match &place.namespace {
            Some(namespace) => on(namespace, binary()),
            None => Command::new(binary()),
        };
        command.arg("-c").arg(&self.configuration).arg("-l").arg(self.log_file(server));
        command.envs(self.environment(server));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the nats-server can be started");
        let started = Instant::now();
        while self.log(server).matches(READY).count() == before {
            let has_ended = child.try_wait().expect("a child can be asked").is_some();
            if has_ended || started.elapsed() > START {
                drop(child.kill());
                drop(child.wait());
                panic!("nats-server {server} does not start:\n{}", self.log(server));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.children[server] = Some(child);
    }

    fn environment(&self, server: usize) -> BTreeMap<&'static str, String> {
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

impl Drop for Trio {
    fn drop(&mut self) {
        if std::thread::panicking() {
            keep_logs(self.folder.path());
        }
        (0..3).for_each(|server| self.kill(server));
    }
}
